//! The directory of a storage server: which life it is in, and what of a volume's files lies there.
//!
//! In: requests of the storage server's machine. Out: bytes, and errors by their number.
//! Invariants: one server at a time serves a directory, and only one of its own volume; no number of a life
//! is ever given out twice; what [`Shelf::sync`] was answered well for is on media; a file whose sync failed
//! fails until the end of this life, for the kernel may have dropped what was written; in later lives what
//! was written before that sync is not read until it was written anew, as far as the disk could keep a note.
//! Left out: who may ask, and in which order, which `haul_core::volume::storage` knows.
//!
//! ```text
//! root/volume   what the directory is of
//!     /lives    how many lives there were
//!     /lock     held by whoever serves
//!     /log-id   which log belongs to it
//!     /term     the last term of tickets that it knew, which may be missing
//!     /reserve  room for the next start
//!     /lists/0007                   how files of the volume's list 7 lie, if there are such
//!     /lost/000000000000015a        what of file 0x15a may be lost since a sync failed, if there is such
//!     /files/5a/000000000000015a    stripes of file 0x15a that lie here, one behind the other
//! ```

mod files;
mod identity;
mod lists;
mod lost;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use haul_core::volume::FileNo;
use haul_core::volume::layout::{Given, Lists as _, Placing, Striping};
use haul_core::volume::ticket::Term;
use haul_core::volume::wire::BYTES_MAX;
use haul_core::wire::FILE_LEN_MAX;
use rustix::fs::Mode;
use rustix::io::{Errno, retry_on_intr};

pub(crate) use self::files::Page;
use self::files::{Files, OPEN_MAX};
pub use self::identity::Of;
use self::identity::{LEN_MAX, decode_lives, decode_term, encode_lives, encode_log, encode_term};
use self::lost::Lost;
use crate::disk::{Dir, Lock, SyncCall, lock, sync_call};
use crate::lists::{AnotherList, Known};
use crate::reserve::is_full_raw;

const IDENTITY: &str = "volume";
const LIVES: &str = "lives";
const LOCK: &str = "lock";
const FILES: &str = "files";
const LOG: &str = "log-id";
const TERM: &str = "term";
/// What a server that was killed may leave before the directory is one of a volume.
const BEFORE: [&str; 4] = [LOCK, LIVES, "lives.new", "volume.new"];
/// What the root of a file system has.
const OF_THE_SYSTEM: &str = "lost+found";

/// Why a directory is not served.
#[derive(Debug, thiserror::Error)]
pub enum ShelfError {
    #[error("cannot {op} {}", path.display())]
    Io { op: &'static str, path: PathBuf, source: io::Error },
    #[error("there is no {0}")]
    Settings(Of),
    #[error("{} is of the user {uid}; serve a directory of your own", path.display())]
    Owner { path: PathBuf, uid: u32 },
    #[error(
        "{} has no file \"volume\" and is not empty ({} lies in it), so it is no volume's; name an empty or \
         a missing directory",
        path.display(), name.display()
    )]
    Foreign { path: PathBuf, name: OsString },
    #[error(
        "{} is that of {is}, not that of {wanted}; name another directory, or destroy that volume first",
        path.display()
    )]
    Other { path: PathBuf, is: Of, wanted: Of },
    #[error(
        "{} is damaged or missing, so what lies beside it cannot be served; bring it back from a copy, or \
         give up what the volume has there",
        path.display()
    )]
    Damaged { path: PathBuf },
    #[error(
        "the log beside {} is not the one that it was served with, so what was gathered is missing; bring that \
         back, or give up what the volume has there",
        path.display()
    )]
    OtherLog { path: PathBuf },
    #[error("another server serves {}; end it first", path.display())]
    InUse { path: PathBuf },
    #[error("{} had its last life", path.display())]
    LastLife { path: PathBuf },
    #[error("the volume has {} servers, and a placement names others", .0.servers)]
    Beyond(Of),
    #[error(transparent)]
    AnotherList(#[from] AnotherList),
}

impl ShelfError {
    /// Whether it is room that lacks, and nothing is broken.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, ShelfError::Io { source, .. } if source.raw_os_error().is_some_and(is_full_raw))
    }
}

fn failed(op: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(Errno) -> ShelfError {
    let path = path.into();
    move |errno| ShelfError::Io { op, path, source: errno.into() }
}

/// See the head of this module.
pub struct Shelf {
    of: Of,
    root: Dir,
    /// The highest number that a life has, or that was tried.
    lives: Mutex<u32>,
    /// The term of tickets that was kept in this life.
    term: Mutex<Option<Term>>,
    /// Held while one is learnt.
    learns: Mutex<()>,
    lists: Arc<Known>,
    files: Files,
    _lock: Lock,
}

impl Shelf {
    /// Opens a directory of a volume for the only server of it; an empty or missing one becomes one.
    ///
    /// # Errors
    /// What was foreign is as it was.
    pub fn open(root: &Path, of: &Of) -> Result<Shelf, ShelfError> {
        Shelf::open_with(root, of, OPEN_MAX, Box::new(sync_call))
    }

    fn open_with(root: &Path, of: &Of, open_max: usize, sync: SyncCall) -> Result<Shelf, ShelfError> {
        if of.servers <= of.server.0 || of.stripe_size == 0 {
            return Err(ShelfError::Settings(*of));
        }
        let root = open_root(root)?;
        // Before anything is changed in what may be somebody else's.
        let is_one = is_of(&root, of)?;
        if !is_one {
            // Who made it may have been killed before its name lasted.
            sync_parent(root.path())
                .or_else(|errno| if errno == Errno::ACCESS { Ok(()) } else { Err(errno) })
                .map_err(failed("sync what is above", root.path()))?;
        }
        let stat = rustix::fs::fstat(&root).map_err(failed("look at", root.path()))?;
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            return Err(ShelfError::Owner { path: root.path().to_owned(), uid: stat.st_uid });
        }
        if stat.st_mode & 0o7777 != Mode::RWXU.as_raw_mode() {
            retry_on_intr(|| rustix::fs::fchmod(&root, Mode::RWXU))
                .map_err(failed("close to others", root.path()))?;
        }
        let held = root.lock(LOCK).map_err(|errno| match errno {
            Errno::WOULDBLOCK | Errno::STALE => ShelfError::InUse { path: root.path().to_owned() },
            errno => failed("lock", root.path_of(LOCK))(errno),
        })?;
        if !is_of(&root, of)? {
            write_small(&root, LIVES, &encode_lives(0))?;
            write_small(&root, IDENTITY, &of.encode())?;
        }
        let lives = lives_of(&root)?.ok_or_else(|| ShelfError::Damaged { path: root.path_of(LIVES) })?;
        // Without them all that was written would be read as zeros.
        if lives > 0 && root.sub(FILES).is_err_and(|errno| errno == Errno::NOENT) {
            return Err(ShelfError::Damaged { path: root.path_of(FILES) });
        }
        let files = root
            .make_sub(FILES)
            .and_then(|()| root.sync())
            .and_then(|()| Files::open((root.sub(FILES)?, Lost::open(root.again()?)?), open_max, sync))
            .map_err(failed("open", root.path_of(FILES)))?;
        let lists = Arc::new(lists::read(&root, of.servers)?);
        let (lives, term, learns) = (Mutex::new(lives), Mutex::new(None), Mutex::new(()));
        Ok(Shelf { of: *of, root, lives, term, learns, lists, files, _lock: held })
    }

    /// How files lie on all servers, as far as it is known here.
    pub fn striping(&self) -> Striping {
        self.of.striping().with_lists(self.lists.clone())
    }

    /// Files of this placing lie as the list says: that is known from here on, in all lives.
    ///
    /// # Errors
    /// They are known to lie otherwise; the disk says no.
    pub fn learn(&self, placing: Placing, list: &Given) -> Result<(), ShelfError> {
        if !list.fits(self.of.servers) {
            return Err(ShelfError::Beyond(self.of));
        }
        let _one = lock(&self.learns);
        if self.lists.list(placing).is_none() {
            lists::write(&self.root, placing, list)?;
        }
        Ok(self.lists.learn(placing, list.clone())?)
    }

    /// The log that belongs to this directory, by its [id](crate::log::Log::id): before the first life it
    /// may be any, and then it is that one for good.
    ///
    /// # Errors
    /// It is another one, such as a new one in the place of one that was lost.
    pub fn bind_log(&self, id: &[u8; 16]) -> Result<(), ShelfError> {
        let own = encode_log(id);
        let lives = *lock(&self.lives);
        match self.root.read_small(LOG, LEN_MAX).map_err(failed("read", self.root.path_of(LOG)))? {
            Some(bound) if bound == own => Ok(()),
            _ if haul_mutant::removed("volume-logs-are-their-shelfs") => Ok(()),
            _ if lives == 0 => write_small(&self.root, LOG, &own),
            _ => Err(ShelfError::OtherLog { path: self.root.path().to_owned() }),
        }
    }

    /// A life of the server begins. Its number is higher than that of each before it, and that lasts.
    pub fn begin_life(&self) -> Result<u32, ShelfError> {
        let mut lives = lock(&self.lives);
        let next =
            lives.checked_add(1).ok_or_else(|| ShelfError::LastLife { path: self.root.path().to_owned() })?;
        // Whether a number that could not be written lasts nobody knows: it is no life's.
        *lives = next;
        write_small(&self.root, LIVES, &encode_lives(next))?;
        Ok(next)
    }

    /// The next life of the server is to know of this term of tickets: the last that it was told to keep.
    ///
    /// # Errors
    /// The disk's; the one before is kept then.
    pub(crate) fn keep_term(&self, term: Term) -> Result<(), ShelfError> {
        // Threads may come here in another order than they were told to.
        let mut kept = lock(&self.term);
        if kept.is_some_and(|kept| kept >= term) {
            return Ok(());
        }
        write_small(&self.root, TERM, &encode_term(term))?;
        *kept = Some(term);
        Ok(())
    }

    /// The last term that a life before this one knew of, as far as it was kept.
    pub(crate) fn kept_term(&self) -> Option<Term> {
        let bytes = self.root.read_small(TERM, LEN_MAX).ok().flatten()?;
        decode_term(&bytes)
    }

    /// How many bytes lie here of a file, its stripes one behind the other; `None`: there is none.
    pub(crate) fn len(&self, file: FileNo) -> Result<Option<u64>, Errno> {
        self.files.len(file)
    }

    /// See [`Files::page`].
    pub(crate) fn page(&self, after: Option<FileNo>, max: usize) -> Result<Page, Errno> {
        self.files.page(after, max)
    }

    pub(crate) fn path(&self) -> &Path {
        self.root.path()
    }

    /// Which directory was removed, moved or replaced since this was opened, if one was.
    pub(crate) fn vanished(&self) -> Option<&Path> {
        [&self.root, self.files.dir()].into_iter().find(|dir| !dir.is_there()).map(Dir::path)
    }

    /// All files that lie here.
    pub(crate) fn numbers(&self) -> Result<Vec<FileNo>, Errno> {
        self.files.numbers()
    }

    /// What is not any more as it was when the directory was opened, in words. `log`: the id of its log.
    pub(crate) fn check(&self, log: &[u8; 16]) -> Vec<String> {
        let mut faults = Vec::new();
        let lives = *lock(&self.lives);
        let of = |name: &'static str, is: bool, read: Result<bool, ShelfError>| match read {
            Ok(true) => None,
            Ok(false) if is => Some(format!("{} is another than it was", self.root.path_of(name).display())),
            Ok(false) => Some(format!("{} is missing", self.root.path_of(name).display())),
            Err(error) => Some(haul_base::errno::with_causes(&error)),
        };
        let log_id = self.root.read_small(LOG, LEN_MAX).map_err(failed("read", self.root.path_of(LOG)));
        let (there, own) = (log_id.as_ref().is_ok_and(Option::is_some), encode_log(log));
        faults.extend(of(IDENTITY, false, is_of(&self.root, &self.of)));
        faults.extend(of(LIVES, true, lives_of(&self.root).map(|read| read == Some(lives))));
        faults.extend(of(LOG, there, log_id.map(|read| read == Some(own))));
        faults.extend(lists::check(&self.root, &self.lists));
        faults
    }

    /// Where in what lies here a request of `len` bytes begins.
    fn place(&self, file: FileNo, offset: u64, len: u64) -> Result<u64, Errno> {
        let Of { server, stripe_size, .. } = self.of;
        let end = offset.checked_add(len).filter(|end| *end <= FILE_LEN_MAX).ok_or(Errno::INVAL)?;
        let (striping, stripe) = (self.striping(), offset / stripe_size);
        let is_here =
            striping.server(file, stripe) == server || haul_mutant::removed("volume-stripes-lie-here");
        if !is_here
            || !striping.knows(file)
            || len > BYTES_MAX
            || end > (stripe * stripe_size).saturating_add(stripe_size)
        {
            return Err(Errno::INVAL);
        }
        Ok(striping.before(file, stripe, server) * stripe_size + offset % stripe_size)
    }

    /// Writes bytes, which lie in one stripe of this server. Offsets here are those of the whole file.
    pub fn write(&self, file: FileNo, offset: u64, bytes: &[u8]) -> Result<(), i32> {
        self.place(file, offset, bytes.len() as u64)
            .and_then(|place| self.files.write(file, place, bytes))
            .map_err(Errno::raw_os_error)
    }

    /// Whether [`Shelf::start_write_back`] is to be called, asked behind a write; said once.
    pub fn is_much_unwritten(&self, file: FileNo) -> bool {
        self.files.is_much_unwritten(file)
    }

    /// What was written of a file is on its way to media then, however far off the sync is. Waits for the
    /// device's queue, so it belongs where nobody waits.
    pub fn start_write_back(&self, file: FileNo) {
        self.files.start_write_back(file);
    }

    /// Reads bytes, which lie in one stripe of this server: fewer than were asked for where what lies here of
    /// the file ends before. Whether those behind were never written, or are lost, is not known here.
    pub fn read(&self, file: FileNo, offset: u64, len: u64) -> Result<Vec<u8>, i32> {
        let read = |place| {
            let mut bytes = vec![0; len as usize];
            let there = self.files.read(file, place, &mut bytes)?;
            if !haul_mutant::removed("volume-short-blocks-are-told") {
                bytes.truncate(there);
            }
            Ok(bytes)
        };
        self.place(file, offset, len).and_then(read).map_err(Errno::raw_os_error)
    }

    /// Makes last what was done before to a file.
    ///
    /// # Errors
    /// Every later write and sync of it fails as well.
    pub fn sync(&self, file: FileNo) -> Result<(), i32> {
        self.files.sync(file).map_err(Errno::raw_os_error)
    }

    /// What of a file lies here from that offset of the whole file on is zeros; that lasts after the next
    /// sync.
    pub fn cut(&self, file: FileNo, from: u64) -> Result<(), i32> {
        let Of { server, stripe_size, .. } = self.of;
        let (striping, stripe) = (self.striping(), from / stripe_size);
        if !striping.knows(file) {
            return Err(Errno::INVAL.raw_os_error());
        }
        let before = striping.before(file, stripe, server);
        let within = if striping.server(file, stripe) == server { from % stripe_size } else { 0 };
        self.files.cut(file, before * stripe_size + within).map_err(Errno::raw_os_error)
    }

    /// What of a file lies here is gone; that lasts after the next sync of it.
    pub fn remove(&self, file: FileNo) -> Result<(), i32> {
        self.files.remove(file).map_err(Errno::raw_os_error)
    }
}

fn write_small(root: &Dir, name: &'static str, bytes: &[u8]) -> Result<(), ShelfError> {
    root.replace(name, bytes).map_err(failed("write", root.path_of(name)))
}

fn open_root(path: &Path) -> Result<Dir, ShelfError> {
    match Dir::open(path) {
        Err(Errno::NOENT) => {}
        other => return other.map_err(failed("open", path)),
    }
    match retry_on_intr(|| rustix::fs::mkdir(path, Mode::RWXU)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(failed("make", path)(errno)),
    }
    sync_parent(path).map_err(failed("sync what is above", path))?;
    Dir::open(path).map_err(failed("open", path))
}

fn sync_parent(path: &Path) -> rustix::io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    Dir::open(parent.unwrap_or(Path::new(".")))?.sync()
}

/// Whether it is the directory of this server already. False: it can become it.
fn is_of(root: &Dir, of: &Of) -> Result<bool, ShelfError> {
    let path = || root.path_of(IDENTITY);
    let damaged = || ShelfError::Damaged { path: path() };
    if let Some(bytes) = root.read_small(IDENTITY, LEN_MAX).map_err(failed("read", path()))? {
        let is = Of::decode(&bytes).ok_or_else(damaged)?;
        return match is == *of {
            true => Ok(true),
            false => Err(ShelfError::Other { path: root.path().to_owned(), is, wanted: *of }),
        };
    }
    let names = root.names().map_err(failed("read", root.path()))?;
    let is_ours = |name: &OsString| BEFORE.iter().any(|ours| name == ours) || name == OF_THE_SYSTEM;
    if let Some(name) = names.into_iter().find(|name| !is_ours(name)) {
        return Err(ShelfError::Foreign { path: root.path().to_owned(), name });
    }
    // A life was begun, so this was a volume's.
    match lives_of(root)? {
        None | Some(0) => Ok(false),
        Some(_) => Err(damaged()),
    }
}

fn lives_of(root: &Dir) -> Result<Option<u32>, ShelfError> {
    let path = || root.path_of(LIVES);
    match root.read_small(LIVES, LEN_MAX).map_err(failed("read", path()))? {
        None => Ok(None),
        Some(bytes) => decode_lives(&bytes).map(Some).ok_or_else(|| ShelfError::Damaged { path: path() }),
    }
}
