//! Files that are written into what stands at their names: no temporary, no rename.
//!
//! In: a file whose objects come. Out: what stands at its name, or a new file there, open; a file that is
//! whole.
//! What must hold: nothing but a regular file is written into, no link is followed to one, and it is no
//! source of the copy (`beside`). From before its first byte until all of it is on media and right, a file
//! looks like no version of the source: it is longer than the new one, so that a later run never takes it for
//! a copy, whatever its mtime is, and so that it is seen when something else cuts it. A file that holds more
//! than the part that comes keeps that, and its mode, owner and size. What an earlier run wrote is gone on
//! with only where that file still stands at the name: a second name of it, formed like a temporary, is made
//! before the journal speaks of its parts, and says which inode they are in. No two entries write into one
//! inode, nor into one that another entry counts on; nor do two runs: the file is locked while it is open.
//! Left out: space in advance, for what stands has it; readers, who see what is written while it is; other
//! programs that write, and know no locks; runs that were not proven dead, which the claim of the job keeps
//! off (`store`).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use haul_core::entry::Name;
use haul_core::ids::{DirId, FileId};
use haul_core::transfer::SMALL_LEN_MAX;
use haul_core::transfer::op::SinkFile;
use haul_core::wire::{Failure, FailureKind};
use rustix::fs::{FileType, FlockOperation, Mode, Stat, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use rustix::io::{Errno, Result as OsResult, retry_on_intr};

use super::aliases::Verdict;
use super::{Files, OpenFile};
use crate::sink::beside::Beside;
use crate::sink::calls::write_all_at;
use crate::sink::fault;
use crate::sink::holes::clear_holes;
use crate::sink::names::{tag_bits, temp_name};
use crate::sink::stat::{inode_of, is_regular};
use crate::store::NOT_IN_PLACE;

/// Direct writes of large files may go beyond their end, up to a multiple of this at most.
const PAD_MAX: u64 = 1 << 20;
/// Setuid and setgid.
const SETID: u32 = 0o6000;
/// How long another writer's lock is waited for. What this run had open itself a moment ago is free by then.
const LOCK_WAIT: Duration = Duration::from_secs(2);
const LOCK_TICK: Duration = Duration::from_millis(50);
/// Bytes of zeros that are written at a time, where a file system makes no holes.
const ZEROS_LEN: u64 = 1 << 20;

/// How files are written in place, in one session.
pub struct InPlace {
    /// Where the part that comes begins in the destination's file, which keeps the rest; `None`: files come
    /// as a whole.
    part: Option<u64>,
    durable: bool,
    /// Sources on this host, which nothing is written into.
    sources: Beside,
}

impl InPlace {
    pub fn new(part: Option<u64>, durable: bool, sources: Beside) -> InPlace {
        InPlace { part, durable, sources }
    }

    /// Where an entry's first byte lies.
    pub(in crate::sink) fn base(&self) -> u64 {
        self.part.unwrap_or(0)
    }

    pub(in crate::sink) fn is_part(&self) -> bool {
        self.part.is_some()
    }

    /// Whether it is a source's file, which nothing is written into.
    pub(in crate::sink) fn is_of_a_source(&self, stat: &Stat) -> bool {
        self.sources.has(stat, 0)
    }

    /// Keeps other runs that write in place away from an open file, for as long as its descriptor is open: a
    /// whole file is nobody else's, parts of one go side by side. False: another has it.
    fn keep(&self, fd: &OwnedFd) -> bool {
        if haul_mutant::removed("in-place-one-run-per-file") {
            return true;
        }
        let how = match self.is_part() {
            true => FlockOperation::NonBlockingLockShared,
            false => FlockOperation::NonBlockingLockExclusive,
        };
        let start = Instant::now();
        loop {
            match retry_on_intr(|| rustix::fs::flock(fd, how)) {
                Err(Errno::AGAIN) if start.elapsed() < LOCK_WAIT => std::thread::sleep(LOCK_TICK),
                Err(Errno::AGAIN) => return false,
                // Some file systems have no locks.
                Ok(()) | Err(_) => return true,
            }
        }
    }

    /// Makes a file that is about to be written look like no version of the source. `before`: as it stood.
    fn spoil(&self, fd: BorrowedFd<'_>, before: &Stat, len: u64, is_new: bool) -> OsResult<()> {
        let (size, synced) = (before.st_size as u64, self.durable && !is_new);
        if self.is_part() {
            // What it is a copy of, if of anything, it will not be any more.
            let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
            let keep = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
            retry_on_intr(|| {
                rustix::fs::futimens(fd, &Timestamps { last_access: keep, last_modification: now })
            })?;
            return if synced { retry_on_intr(|| rustix::fs::fsync(fd)) } else { Ok(()) };
        }
        if size >= unfinished_len(len) || haul_mutant::removed("in-place-looks-unfinished") {
            return Ok(());
        }
        retry_on_intr(|| rustix::fs::ftruncate(fd, unfinished_len(len)))?;
        // Of any other size a power cut leaves that one, or the longer one.
        if synced && size == len {
            return retry_on_intr(|| rustix::fs::fsync(fd));
        }
        Ok(())
    }
}

impl Files {
    /// Whether the entry may have the inode to write into: of those with several names another entry may have
    /// it already, or may have counted on what is in it.
    pub(super) fn may_have(&self, stat: &Stat, id: FileId) -> bool {
        self.aliases.find(stat, id, None) == Verdict::Mine
            || haul_mutant::removed("in-place-one-entry-per-inode")
    }

    /// Where the bytes of an entry begin in its file.
    pub(in crate::sink) fn base(&self) -> u64 {
        self.in_place.as_ref().map_or(0, InPlace::base)
    }

    /// The name that an entry's file has while it is written.
    pub(in crate::sink) fn written_name(&self, file: &SinkFile) -> Name {
        match self.in_place.is_some() {
            true => file.name.clone(),
            false => self.temp_name(file),
        }
    }

    /// Opens what stands at a file's name, or makes it.
    pub(super) fn open_in_place(&self, place: &InPlace, open: &OpenFile) -> Result<OwnedFd, Failure> {
        let dir = self.tree.dirfd(open.parent)?;
        let jail = self.tree.jail();
        let path = || self.tree.path_of(open.parent, &open.name);
        let fail = |what, errno| fault::os_at(FailureKind::Create, what, &path(), errno, &dir);
        let (fd, is_new) = match jail.stat(&dir, &open.name) {
            Err(Errno::NOENT) => {
                (jail.create_temp(&dir, &open.name).map_err(|errno| fail("create", errno))?, true)
            }
            Err(errno) => return Err(fail("stat", errno)),
            Ok(stat) if !is_regular(&stat) => return Err(self.not_in_place(open, &stat)),
            Ok(_) => {
                // Without following, and without waiting for a FIFO that took the name.
                let fd = jail.open_file(&dir, &open.name, true).map_err(|errno| fail("open", errno))?;
                (fd, false)
            }
        };
        let stat = rustix::fs::fstat(&fd).map_err(|errno| fail("stat", errno))?;
        if !is_regular(&stat) {
            return Err(self.not_in_place(open, &stat));
        }
        if !self.may_have(&stat, open.id)
            || !self.tree.claim(open.parent, &dir, &open.name, inode_of(&stat), open.id)
        {
            return Err(self.has_other_entry(open.parent, &open.name));
        }
        if place.sources.has(&stat, 0) {
            return Err(self.is_a_source(open.parent, &open.name));
        }
        if !place.keep(&fd) {
            return Err(self.has_other_writer(open.parent, &open.name));
        }
        self.is_live(open, &stat);
        self.prepare(place, open, &fd, is_new)?;
        Ok(fd)
    }

    /// Makes a file ready for its first byte: it looks unfinished, and has no data where the source has none.
    fn prepare(&self, place: &InPlace, open: &OpenFile, fd: &OwnedFd, is_new: bool) -> Result<(), Failure> {
        let fail = |what, errno| {
            fault::os_at(FailureKind::Create, what, &self.tree.path_of(open.parent, &open.name), errno, fd)
        };
        if place.is_part() && is_new {
            // It is no copy of anything, and gets what any new file gets.
            let mode = Mode::from_raw_mode(0o666 & !haul_base::kernel::umask());
            retry_on_intr(|| rustix::fs::fchmod(fd, mode)).map_err(|errno| fail("set the mode of", errno))?;
        }
        let before = rustix::fs::fstat(fd).map_err(|errno| fail("stat", errno))?;
        if !place.is_part() && before.st_mode & SETID != 0 && !haul_mutant::removed("in-place-runs-as-nobody")
        {
            // Nobody runs what is half new as somebody else; at its end it gets the mode of its source. Who
            // may not set it is no privileged writer, whose writes the kernel has clear these bits.
            let mode = Mode::from_raw_mode(before.st_mode & 0o7777 & !SETID);
            let _ = retry_on_intr(|| rustix::fs::fchmod(fd, mode));
        }
        place.spoil(fd.as_fd(), &before, open.size, is_new).map_err(|errno| fail("make longer", errno))?;
        let Some(map) = open.map.as_ref().filter(|_| !is_new && !haul_mutant::removed("in-place-holes"))
        else {
            return Ok(());
        };
        if !clear_holes(fd.as_fd(), map, place.base()) {
            let mut at = 0;
            for extent in map.extents() {
                zero(fd, place.base() + at, extent.offset - at)
                    .map_err(|errno| fail("write zeros to", errno))?;
                at = extent.end();
            }
            zero(fd, place.base() + at, map.size() - at).map_err(|errno| fail("write zeros to", errno))?;
        }
        Ok(())
    }

    /// Why nothing is written at a name.
    fn not_in_place(&self, open: &OpenFile, stat: &Stat) -> Failure {
        let path = self.tree.path_of(open.parent, &open.name);
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let text = format!("{path}: a directory stands there; nothing was removed");
                fault::failure(FailureKind::Create, Errno::ISDIR.raw_os_error(), text)
            }
            _ => fault::failure(
                FailureKind::Create,
                Errno::EXIST.raw_os_error(),
                format!("{path}: {NOT_IN_PLACE}"),
            ),
        }
    }

    pub(super) fn has_other_entry(&self, parent: DirId, name: &Name) -> Failure {
        has_other_entry(&self.tree.path_of(parent, name))
    }

    fn is_a_source(&self, parent: DirId, name: &Name) -> Failure {
        is_a_source(&self.tree.path_of(parent, name))
    }

    fn has_other_writer(&self, parent: DirId, name: &Name) -> Failure {
        let text = format!(
            "{}: another program has it locked, as one that writes it in place does; it was left as it is",
            self.tree.path_of(parent, name)
        );
        fault::failure(FailureKind::Create, Errno::BUSY.raw_os_error(), text)
    }

    /// What the run with `tag` wrote in place, under our tag and open. `None`: what stands at the name is not
    /// what it wrote.
    pub(super) fn take_over_in_place(
        &self,
        place: &InPlace,
        file: &SinkFile,
        dir: &Arc<OwnedFd>,
        tag: u32,
    ) -> Result<Option<OwnedFd>, Failure> {
        // One that may still write is kept off by the claim.
        if !self.adopt.former.is_dead(tag_bits(tag)) {
            return Ok(None);
        }
        let jail = self.tree.jail();
        let (old, new) = (temp_name(&file.name, tag, file.number), self.temp_name(file));
        let fail = |what, errno| {
            fault::os(FailureKind::Open, what, &self.tree.path_of(file.parent, &file.name), errno)
        };
        let look = |name: &Name| match jail.stat(dir, name) {
            Err(Errno::NOENT) => Ok(None),
            other => other.map(Some).map_err(|errno| fail("stat", errno)),
        };
        let (Some(marked), Some(named)) = (look(&old)?, look(&file.name)?) else { return Ok(None) };
        let same =
            inode_of(&marked) == inode_of(&named) || haul_mutant::removed("in-place-is-what-was-written");
        if !same || !is_regular(&named) {
            return Ok(None);
        }
        let fd = match jail.open_file(dir, &file.name, true) {
            Err(Errno::LOOP | Errno::NOENT | Errno::ACCESS | Errno::PERM | Errno::NXIO) => return Ok(None),
            other => other.map_err(|errno| fail("open", errno))?,
        };
        let stat = rustix::fs::fstat(&fd).map_err(|errno| fail("stat", errno))?;
        if inode_of(&stat) != inode_of(&named) || !self.may_have(&stat, file.id) {
            return Ok(None);
        }
        if place.sources.has(&stat, 1) {
            return Err(self.is_a_source(file.parent, &file.name));
        }
        if !place.keep(&fd) {
            return Err(self.has_other_writer(file.parent, &file.name));
        }
        match jail.rename_new(dir, &old, &new) {
            Err(Errno::NOENT | Errno::EXIST) => return Ok(None),
            other => other.map_err(|errno| fail("take over", errno))?,
        }
        self.adopt.met(tag, file.number);
        let entry = self.entry(file);
        self.prepare(place, &entry, &fd, false)?;
        Ok(Some(fd))
    }

    /// Gives a file that is written in place its second name, by which a later run knows it again. Where it
    /// cannot have one, that run begins the file anew.
    pub(in crate::sink) fn mark_in_place(&self, open: &OpenFile, fd: BorrowedFd<'_>) {
        if let Ok(dir) = self.tree.dirfd(open.parent) {
            let _ = self.tree.jail().link_open(fd, &dir, &open.temp);
        }
    }
}

pub(in crate::sink) fn has_other_entry(path: &str) -> Failure {
    let text = format!(
        "{path}: it is another name of a file that this copy has under a name of its own, and what is written to the one \
         would be in the other; it was left as it is (without `in_place` each gets a file of its own)"
    );
    fault::failure(FailureKind::Create, Errno::NOTUNIQ.raw_os_error(), text)
}

pub(in crate::sink) fn is_a_source(path: &str) -> Failure {
    let text = format!(
        "{path}: it is another name of a source of this copy, and what is written to the one would be in the other; it was left as it \
         is (without `in_place` it is replaced)"
    );
    fault::failure(FailureKind::Create, Errno::NOTUNIQ.raw_os_error(), text)
}

/// How long a file of `len` bytes is at least while it is written: longer than any write to it makes it, so
/// that it can be seen whether something else cut it meanwhile.
pub(in crate::sink) fn unfinished_len(len: u64) -> u64 {
    match len > SMALL_LEN_MAX {
        true => len.next_multiple_of(PAD_MAX) + 1,
        false => len + 1,
    }
}

/// Writes so many zeros at `at`.
fn zero(fd: &OwnedFd, mut at: u64, mut len: u64) -> OsResult<()> {
    let zeros = vec![0; len.min(ZEROS_LEN) as usize];
    while len > 0 {
        let part = len.min(ZEROS_LEN);
        write_all_at(fd, &zeros[..part as usize], at)?;
        (at, len) = (at + part, len - part);
    }
    Ok(())
}
