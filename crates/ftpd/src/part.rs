//! An upload: bytes gather under a name of their own and get the one that was asked for when all are on
//! media.
//!
//! In: bytes at offsets. Out: a file under its name, whole, or nothing new under it.
//! What must hold:
//! - Who reads the name sees the old file or the whole new one.
//! - [`Upload::confirm`] calls bytes safe only after they were synced **and** a record of that, beside the
//!   part, was synced too; `111` markers tell no others. A later upload goes on only with bytes of that
//!   record, and from then on the record has no others: over those the new one writes. Of bytes of which two
//!   versions came the record says nothing.
//! - What an earlier upload confirmed stays until the first byte of another one has come.
//! - One upload at a time has a part: it holds a lock on it, which ends with the process.
//! - A part, and a record, counts only where it is the session's user's and nobody else can write it: who may
//!   write in the directory can lay down files of these names.
//! - What was begun from an older version of the file (`APPE`, `ESTO`, `REST` in stream mode) is published
//!   only if that version still stands there.
//! - After a failed sync nothing is published, and nothing more is called safe ([`syncer`]).
//!
//! The part of NAME is `.NAME.haul~...`, its record likewise, and so is a new one of either as long as the
//! old one stands.
//! Left out: bytes as they come from connections; replies.

use std::sync::Arc;

use haul_core::entry::Name;
use haul_gridftp::ranges::Ranges;
use rustix::fs::Mode;
use rustix::io::Errno;

use crate::seen::{Seen, settled};
use crate::store::{Dir, Fault, File, Stat};
use crate::tree::{Lost, Spot, Tree, regular};
use copy::copy;
use file::{create, is_ours, lock_earlier, remove};
use record::{Place, Record};
use syncer::Fate;
pub use syncer::Syncer;

mod copy;
pub mod file;
pub mod nodes;
mod record;
mod syncer;

/// Bytes of zeros that are looked for at a time: what a block of a file system has at least.
const HOLE_LEN: usize = 64 << 10;

/// Why an upload fails.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    #[error("{0}")]
    Lost(#[from] Lost),
    #[error("{what}: {fault}")]
    System { what: &'static str, fault: Fault },
    #[error("another upload of this file is under way")]
    Busy,
    #[error("these bytes were never confirmed here: begin the upload anew, without REST")]
    NotConfirmed,
    #[error("the file was changed by somebody else meanwhile; what stands there now was left as it is")]
    Changed,
    #[error(
        "the part of this upload was moved or removed by somebody else who may write in its directory; what has \
         the name now may be a piece of it: look at it"
    )]
    Moved,
    #[error("it was aborted, or the client is gone")]
    Aborted,
    #[error("bytes {0} to {1} never came")]
    Gap(u64, u64),
    #[error("{got} bytes came, and ALLO said {said}")]
    Short { got: u64, said: u64 },
    #[error("bytes {0} to {1} came twice")]
    Twice(u64, u64),
    #[error("the pieces that came are too many to be kept apart")]
    Fragments,
    #[error(
        "this node does not see the part that the front end made: both must serve one file system by --root"
    )]
    Elsewhere,
}

impl Failed {
    /// What was being done, for a fault of a store.
    pub fn of<F: Into<Fault>>(what: &'static str) -> impl Fn(F) -> Failed {
        move |fault| Failed::System { what, fault: fault.into() }
    }

    /// The code of a reply.
    pub fn code(&self) -> u16 {
        let errno = match self {
            Failed::Lost(lost) => lost.errno(),
            Failed::System { fault, .. } => Some(fault.errno),
            _ => None,
        };
        match self {
            _ if matches!(errno, Some(Errno::NOSPC | Errno::DQUOT)) => 452,
            // A server of a volume is away.
            Failed::Lost(Lost::Told(fault)) if fault.is(Errno::TIMEDOUT) || fault.is(Errno::BUSY) => 451,
            Failed::Lost(Lost::System(_) | Lost::Told(_)) => 550,
            // It will not pass by itself, as what has 4 in front may.
            Failed::System { .. } if matches!(errno, Some(Errno::ACCESS | Errno::PERM | Errno::ROFS)) => 550,
            Failed::Lost(_) => 553,
            Failed::Busy => 450,
            Failed::NotConfirmed => 554,
            Failed::Aborted => 426,
            _ => 451,
        }
    }
}

/// What an upload begins with.
#[derive(Clone, Debug)]
pub enum Begin {
    /// Nothing: `STOR`.
    Fresh,
    /// All but these bytes will come: `REST`.
    Restart(Ranges),
    /// What stands there, and bytes behind its end: `APPE`.
    Append,
    /// What stands there, and bytes at any place: `ESTO`.
    Into,
}

/// What an upload's files are called.
struct Names {
    part: Name,
    record: Name,
    next_part: Name,
    next_record: Name,
}

/// A file that comes.
pub struct Upload {
    dir: Arc<dyn Dir>,
    name: Name,
    names: Names,
    /// The part of an earlier upload, which is locked and stands until a byte has come.
    earlier: Option<Box<dyn File>>,
    file: Arc<dyn File>,
    record: Option<Arc<Record>>,
    fate: Arc<Fate>,
    /// What stood at the name, if the upload begins with it.
    base: Option<Seen>,
    /// Mode of what stands there, which the new one gets too.
    mode: Option<u32>,
    /// Bytes that are there: of the part before, and those that came.
    pub written: Ranges,
    /// Of the written bytes those that the client brought, in this upload or in the one that it goes on with.
    came: Ranges,
    /// Bytes that are on media, as far as that was told.
    pub safe: Ranges,
    /// Where the first byte of the wire belongs.
    pub at: u64,
    /// Offsets beyond the written ones hold zeros: the part is new.
    hollow: bool,
    /// How many bytes came.
    received: u64,
    /// What comes is put into a file that stood there: `APPE`, `ESTO`.
    is_part: bool,
    done: bool,
    /// It may be gone on with after a failure.
    keep: bool,
    /// An earlier upload has confirmed these bytes of it, which stay whatever becomes of this one.
    resumed: Option<Ranges>,
    /// Some byte came twice, and which one is right nobody knows.
    is_doubtful: bool,
    /// Nodes write into it, and this process does not.
    is_of_nodes: bool,
    /// It is the part of a front end, which alone records, names and removes it.
    is_joined: bool,
}

impl Upload {
    /// Begins one to what `spot` names. With `keep` its part stays if it fails, with a record of what is
    /// safe. `is_wanted` is asked between the pieces of a copy of what stands there.
    ///
    /// # Errors
    /// What stands there is no regular file; another upload of it runs; what `REST` names is not there.
    pub fn begin(
        tree: &Tree,
        spot: Spot,
        begin: &Begin,
        keep: bool,
        is_wanted: &mut dyn FnMut() -> bool,
    ) -> Result<Upload, Failed> {
        let name = spot.name().map_err(|_| Lost::Directory)?.clone();
        if let Some(stat) = &spot.stat {
            regular(stat)?;
        }
        let names = Names::of(tree, &name);
        let dir: Arc<dyn Dir> = spot.dir.into();
        let mut earlier = lock_earlier(&*dir, &names.part)?;
        if earlier.as_ref().is_some_and(|file| !is_ours(&*dir, &names.next_record, &**file)) {
            remove(&*dir, &names.part)?;
            earlier = None;
        }
        // In stream mode the client has no more to go on with than what it sees, and that is what stands
        // there: the part may be of another upload.
        let mut upload = match (begin, earlier) {
            (Begin::Restart(claimed), Some(file)) if keep => {
                if !names.place(&*dir).is_claimed(&*file, claimed) {
                    // What is there stays, for who says it rightly.
                    return Err(Failed::NotConfirmed);
                }
                let is_of_nodes = names.place(&*dir).is_of_nodes();
                let mut upload = Upload::over(dir, name, names, file);
                upload.resumed = Some(claimed.clone());
                if is_of_nodes {
                    upload.file = nodes::apart(&upload, claimed, is_wanted)?.into();
                }
                // What is not claimed may be written over, and is not safe any more.
                upload.record = Some(Arc::new(upload.place().begin(&*upload.file, claimed, false)?));
                upload.written = claimed.clone();
                upload.came = claimed.clone();
                upload.safe = claimed.clone();
                upload
            }
            (_, earlier) => {
                let base = match begin {
                    Begin::Fresh => None,
                    _ => spot.stat.as_ref(),
                };
                if let Begin::Restart(claimed) = begin {
                    let end = claimed.list().last().map_or(0, |range| range.1);
                    // In MODE E ranges are what a `111` told, and none told these: they are of another part,
                    // and never of what stands there.
                    if keep || base.is_none_or(|base| base.len < end) {
                        return Err(Failed::NotConfirmed);
                    }
                }
                let file = match earlier {
                    // The lock is held, so nobody else is here; what has this name is of somebody who died.
                    Some(_) => {
                        remove(&*dir, &names.next_part)?;
                        create(&*dir, &names.next_part)?
                    }
                    None => {
                        // A record goes first, and always: none is to speak for another part than its own.
                        remove(&*dir, &names.record)?;
                        create(&*dir, &names.part)?
                    }
                };
                let mut upload = Upload::over(dir, name, names, file);
                upload.earlier = earlier;
                upload.hollow = true;
                if let Some(base) = base {
                    upload.copy_base(base, begin, is_wanted)?;
                }
                upload
            }
        };
        upload.keep = keep;
        upload.is_part = matches!(begin, Begin::Append | Begin::Into);
        upload.mode = spot.stat.as_ref().map(|stat| stat.mode & 0o777);
        Ok(upload)
    }

    fn over(dir: Arc<dyn Dir>, name: Name, names: Names, file: Box<dyn File>) -> Upload {
        Upload {
            dir,
            name,
            names,
            earlier: None,
            file: file.into(),
            record: None,
            fate: Arc::default(),
            base: None,
            mode: None,
            written: Ranges::new(),
            came: Ranges::new(),
            safe: Ranges::new(),
            at: 0,
            hollow: false,
            received: 0,
            is_part: false,
            done: false,
            keep: false,
            resumed: None,
            is_doubtful: false,
            is_of_nodes: false,
            is_joined: false,
        }
    }

    fn place(&self) -> Place<'_> {
        self.names.place(&*self.dir)
    }

    /// From here on the part of an earlier upload is gone.
    fn take_place(&mut self) -> Result<(), Failed> {
        let Some(earlier) = self.earlier.take() else { return Ok(()) };
        // A record goes first, and always: none is to speak for another part than its own.
        remove(&*self.dir, &self.names.record)?;
        let renamed = self.dir.rename(&self.names.next_part, &*self.dir, &self.names.part);
        renamed.map_err(Failed::of("take the earlier part's place"))?;
        drop(earlier);
        Ok(())
    }

    /// Of some bytes two versions came: the record is to say no more than it did before.
    fn doubt(&mut self) {
        self.is_doubtful = true;
        self.record = None;
        if self.is_joined {
            return;
        }
        let before = self.resumed.take();
        self.resumed =
            before.filter(|before| self.place().begin(&*self.file, before, self.is_of_nodes).is_ok());
        if self.resumed.is_none() {
            // Where that fails, too, the part goes with the upload.
            let _ = remove(&*self.dir, &self.names.record);
        }
    }

    /// Begins with what stands there.
    fn copy_base(
        &mut self,
        base: &Stat,
        begin: &Begin,
        is_wanted: &mut dyn FnMut() -> bool,
    ) -> Result<(), Failed> {
        let open = self.dir.open(&self.name, false).map_err(Failed::of("open the file"))?;
        let stat = open.stat().map_err(Failed::of("look at the file"))?;
        let stat = settled(&*open, stat).map_err(Failed::of("look at the file"))?;
        let Some(stat) = stat.filter(|stat| Seen::here(stat) == Seen::here(base)) else {
            return Err(Failed::Changed);
        };
        let size = stat.len;
        // Of a restart only what the client says that it need not send.
        let len = match begin {
            Begin::Restart(claimed) => claimed.list().last().map_or(0, |range| range.1),
            _ => size,
        };
        let cloned = match (self.file.fd(), open.fd()) {
            (Some(to), Some(from)) if len == size => rustix::fs::ioctl_ficlone(to, from).is_ok(),
            _ => false,
        };
        if !cloned {
            copy(&*open, &*self.file, len, is_wanted)?;
        }
        let after = open.stat().map_err(Failed::of("look at the file"))?;
        if Seen::here(&after) != Seen::here(base) {
            return Err(Failed::Changed);
        }
        self.base = Some(Seen::here(base));
        self.hollow = false;
        match begin {
            Begin::Restart(claimed) => {
                self.written = claimed.clone();
                self.came = claimed.clone();
            }
            _ => self.written.insert(0, size).map_err(|_| Failed::Fragments)?,
        }
        if matches!(begin, Begin::Append) {
            self.at = size;
        }
        Ok(())
    }

    /// Puts bytes where they belong: `offset` is that of the wire.
    ///
    /// # Errors
    /// They are not there then.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Failed> {
        if bytes.is_empty() {
            return Ok(());
        }
        let bad = || Failed::of("write")(Errno::FBIG);
        let start = self.at.checked_add(offset).ok_or_else(bad)?;
        let end =
            start.checked_add(bytes.len() as u64).filter(|end| *end <= i64::MAX as u64).ok_or_else(bad)?;
        // Which of two is right nobody can tell, and a sender that sends a byte twice has another view of the
        // file than this side.
        if self.came.overlaps(start, end) {
            self.doubt();
            return Err(Failed::Twice(start, end));
        }
        self.take_place()?;
        let mut put = 0;
        // Zeros into what holds zeros need no blocks; only while nothing was written there.
        let hollow = self.hollow && !self.written.overlaps(start, end);
        while put < bytes.len() {
            let rest = &bytes[put..];
            let piece = &rest[..rest.len().min(HOLE_LEN)];
            if hollow && is_zero(piece) {
                put += piece.len();
                continue;
            }
            // What follows up to the next zeros goes in one call.
            let mut len = piece.len();
            while hollow && len < rest.len() {
                let next = &rest[len..][..(rest.len() - len).min(HOLE_LEN)];
                if is_zero(next) {
                    break;
                }
                len += next.len();
            }
            let len = if hollow { len } else { rest.len() };
            self.file.write_at(&rest[..len], start + put as u64).map_err(Failed::of("write"))?;
            put += len;
        }
        self.received += bytes.len() as u64;
        self.came.insert(start, end).map_err(|_| Failed::Fragments)?;
        self.written.insert(start, end).map_err(|_| Failed::Fragments)
    }

    /// What makes the bytes safe that were written so far.
    ///
    /// # Errors
    /// The file cannot be made as long as it is.
    pub fn syncer(&mut self) -> Result<Syncer, Failed> {
        self.take_place()?;
        // Zeros at the end may not have been written; nobody else writes while this thread is here.
        let end = self.written.list().last().map_or(0, |range| range.1);
        // How long it is by now only who writes there knows.
        if !self.is_of_nodes && self.part_len()? < end {
            self.file.set_len(end).map_err(Failed::of("set the length"))?;
        }
        if self.keep && self.record.is_none() && !self.is_joined {
            self.record = Some(Arc::new(self.place().begin(&*self.file, &Ranges::new(), false)?));
        }
        let dir = self.safe.is_empty().then(|| Arc::clone(&self.dir));
        let (file, fate) = (Arc::clone(&self.file), Arc::clone(&self.fate));
        Ok(Syncer { file, record: self.record.clone(), dir, fate })
    }

    fn part_len(&self) -> Result<u64, Failed> {
        self.file.length().map_err(Failed::of("look at the part"))
    }

    /// What was written and is not known to be safe.
    pub fn unsafe_yet(&self) -> Ranges {
        let end = self.written.list().last().map_or(0, |range| range.1);
        let mut rest = Ranges::new();
        let mut written = self.written.list().iter().copied().peekable();
        let mut gaps = self.safe.missing(end).peekable();
        while let (Some(w), Some(g)) = (written.peek().copied(), gaps.peek().copied()) {
            let (start, stop) = (w.0.max(g.0), w.1.min(g.1));
            if start < stop && rest.insert(start, stop).is_err() {
                break;
            }
            if w.1 <= g.1 {
                written.next().is_some()
            } else {
                gaps.next().is_some()
            };
        }
        rest
    }

    /// Markers can be told: a record is kept of them.
    pub fn is_recorded(&self) -> bool {
        self.keep && !self.is_doubtful
    }

    /// These bytes are safe from now on: [`Syncer::sync`] of them came back.
    ///
    /// # Errors
    /// The part is not where it is looked for any more, so that nobody could go on with it.
    pub fn confirm(&mut self, ranges: &Ranges) -> Result<(), Failed> {
        // The part's name is the front end's affair.
        if !self.is_joined {
            self.is_in_place()?;
        }
        self.safe.merge(ranges).map_err(|_| Failed::Fragments)
    }

    /// The part has its name still, and no other that somebody could have given it instead.
    fn is_in_place(&mut self) -> Result<(), Failed> {
        let part = self.file.identity().map_err(Failed::of("look at the part"))?;
        let here = match self.dir.identity(&self.names.part) {
            Ok(here) => Some(here),
            Err(fault) if fault.is(Errno::NOENT) => None,
            Err(fault) => return Err(Failed::of("look at the part")(fault)),
        };
        if here == Some(part) || haul_mutant::removed("ftpd-parts-are-in-place") {
            return Ok(());
        }
        // What is recorded of it speaks for nothing that is there.
        (self.is_doubtful, self.resumed) = (true, None);
        Err(Failed::Moved)
    }

    /// So many bytes are there of what `ALLO` announces: the whole file, or what comes where there was one
    /// before.
    pub fn got(&self) -> u64 {
        let end = self.written.list().last().map_or(0, |range| range.1);
        if self.is_part { self.received } else { end }
    }

    /// Everything came, and is on media when it returns. `expected`: so many bytes the client has announced.
    ///
    /// # Errors
    /// It is not to be published.
    pub fn complete(&mut self, expected: Option<u64>) -> Result<(), Failed> {
        self.take_place()?;
        let end = self.written.list().last().map_or(0, |range| range.1);
        // What was copied hides what did not come over it.
        let first = if self.is_part { self.at } else { 0 };
        let last = self.came.list().last().map_or(0, |range| range.1);
        if let Some((from, to)) = self.came.missing(last).find(|gap| gap.1 > first) {
            return Err(Failed::Gap(from.max(first), to));
        }
        // `ESTO` may begin behind the end of what stands there, which is the start where nothing does, and
        // nowhere else is a gap of the file's.
        let stood = self.base.map_or(0, |base| base.size);
        let asked = self.is_part.then_some((stood, self.at));
        if let Some((from, to)) = self.written.missing(end).find(|gap| Some(*gap) != asked) {
            return Err(Failed::Gap(from, to));
        }
        let got = self.got();
        if let Some(said) = expected.filter(|said| *said > got) {
            return Err(Failed::Short { got, said });
        }
        if self.part_len()? != end {
            self.file.set_len(end).map_err(Failed::of("set the length"))?;
        }
        let mode = self.mode.unwrap_or_else(|| 0o666 & !umask());
        self.file.set_mode(mode).map_err(Failed::of("set the mode"))?;
        // Mode and length are needed to read it, so no sync of data alone.
        self.fate.after(|| self.file.sync()).map_err(Failed::of("sync"))
    }

    /// Gives a file that is complete its name: it is on media by that when it returns.
    ///
    /// # Errors
    /// What stood at the name stands there still, except where the last sync of the directory failed.
    pub fn publish(&mut self) -> Result<(), Failed> {
        self.is_in_place()?;
        if let Some(base) = self.base {
            let now = self.dir.look(&self.name).map_err(|_| Failed::Changed)?;
            if Seen::here(&now) != base {
                return Err(Failed::Changed);
            }
        }
        let renamed = self.dir.rename(&self.names.part, &*self.dir, &self.name);
        renamed.map_err(Failed::of("give it its name"))?;
        self.done = true;
        if self.record.is_some() {
            // It speaks of an inode that is no part any more; what it leaves is looked at and no more.
            let _ = remove(&*self.dir, &self.names.record);
        }
        self.dir.sync().map_err(Failed::of("sync the directory"))?;
        let end = self.written.list().last().map_or(0, |range| range.1);
        let _ = self.safe.insert(0, end);
        Ok(())
    }
}

impl Drop for Upload {
    /// What nobody can go on with goes.
    fn drop(&mut self) {
        let is_kept = self.resumed.is_some() || self.keep && !self.is_doubtful && !self.safe.is_empty();
        if self.done || is_kept || self.is_joined {
            return;
        }
        if self.earlier.is_some() {
            let _ = remove(&*self.dir, &self.names.next_part);
            return;
        }
        let _ = remove(&*self.dir, &self.names.record);
        let _ = remove(&*self.dir, &self.names.part);
    }
}

impl Names {
    fn of(tree: &Tree, name: &Name) -> Names {
        Names {
            part: tree.part_of(name),
            record: tree.record_of(name),
            next_part: tree.next_part_of(name),
            next_record: tree.next_record_of(name),
        }
    }

    fn place<'a>(&'a self, dir: &'a dyn Dir) -> Place<'a> {
        Place { dir, name: &self.record, next: &self.next_record }
    }
}

fn is_zero(piece: &[u8]) -> bool {
    static ZEROS: [u8; HOLE_LEN] = [0; HOLE_LEN];
    piece == &ZEROS[..piece.len()]
}

/// The mask of new files. It is asked by setting it, and this process has one thread that makes files.
pub fn umask() -> u32 {
    let mask = rustix::process::umask(Mode::from_raw_mode(0o022));
    rustix::process::umask(mask);
    mask.bits()
}
