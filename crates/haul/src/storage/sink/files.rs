//! Files being written: one temporary and one descriptor each, from the first write to the commit.
//!
//! What must hold: a file has one temporary, also when its first writes come at once; the descriptor that
//! wrote stays open until the file is committed or discarded, for only through it are failed write-backs seen.
//! The session bounds how many are open (`descriptors::budget`).

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use haul_core::entry::{Name, Timestamp};
use haul_core::ids::{DirId, FileId};
use haul_core::transfer::op::{Existing, Found, LookupItem, SinkFile};
use haul_core::wire::{Failure, Stage};
use rustix::fs::{FileType, Stat, Timespec, Timestamps};
use rustix::io::{Errno, retry_on_intr};

use super::names::temp_name;
use super::tree::SinkTree;
use super::{fault, lock};

/// The open files of a session.
pub(super) struct Files {
    pub(super) tree: Arc<SinkTree>,
    /// Stands in the names of this session's temporaries.
    tag: u32,
    open: Mutex<HashMap<FileId, Arc<OpenFile>>>,
    grain: OnceLock<u32>,
    /// A temporary of this session could not be removed.
    left: AtomicBool,
}

/// A file being written.
pub(super) struct OpenFile {
    parent: DirId,
    name: Name,
    pub(super) temp: Name,
    state: Mutex<State>,
    /// Held while a buffered write goes on: local file systems take the inode's lock for it, and threads that
    /// wait for that one spin. (Direct I/O will write side by side.)
    writing: Mutex<()>,
}

enum State {
    New,
    Open(Arc<OwnedFd>),
    Failed(Failure),
    Closed,
}

impl Files {
    pub(super) fn new(tree: Arc<SinkTree>, tag: u32) -> Files {
        Files { tree, tag, open: Mutex::default(), grain: OnceLock::new(), left: AtomicBool::new(false) }
    }

    /// The temporary's name for `name` in this session.
    pub(super) fn temp_name(&self, name: &Name) -> Name {
        temp_name(name, self.tag)
    }

    /// The descriptor of the file's temporary, made at the first call.
    pub(super) fn fd(&self, file: &SinkFile) -> Result<Arc<OwnedFd>, Failure> {
        let open = lock(&self.open).entry(file.id).or_insert_with(|| self.entry(file)).clone();
        let mut state = lock(&open.state);
        match &*state {
            State::Open(fd) => return Ok(fd.clone()),
            State::Failed(failure) => return Err(failure.clone()),
            State::Closed => return Err(self.closed(&open)),
            State::New => {}
        }
        match self.create(&open) {
            Ok(fd) => {
                let fd = Arc::new(fd);
                *state = State::Open(fd.clone());
                Ok(fd)
            }
            Err(failure) => {
                *state = State::Failed(failure.clone());
                Err(failure)
            }
        }
    }

    /// The descriptor of a file that was written before.
    pub(super) fn fd_of(&self, id: FileId) -> Result<(Arc<OpenFile>, Arc<OwnedFd>), Failure> {
        let open = lock(&self.open).get(&id).cloned();
        let Some(open) = open else {
            return Err(fault::failure(
                Stage::Publish,
                0,
                format!("file {id} has no temporary in this session"),
            ));
        };
        let state = lock(&open.state);
        match &*state {
            State::Open(fd) => {
                let fd = fd.clone();
                drop(state);
                Ok((open, fd))
            }
            State::Failed(failure) => Err(failure.clone()),
            State::New | State::Closed => Err(self.closed(&open)),
        }
    }

    /// Closes the file; its temporary, if it has one and `remove`, loses its name.
    pub(super) fn close(&self, id: FileId, remove: bool) {
        let Some(open) = lock(&self.open).remove(&id) else { return };
        let was = std::mem::replace(&mut *lock(&open.state), State::Closed);
        if let (State::Open(_), true) = (was, remove) {
            let dir = self.tree.dirfd(open.parent).ok();
            let gone = dir.map(|dir| self.tree.jail().unlink(&dir, &open.temp));
            if !matches!(gone, Some(Ok(()) | Err(Errno::NOENT))) {
                self.left.store(true, Ordering::Release);
            }
        }
    }

    /// Whether a temporary of this session could not be removed. By its tag in the journal a later run finds it.
    pub(super) fn left_any(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    fn entry(&self, file: &SinkFile) -> Arc<OpenFile> {
        Arc::new(OpenFile {
            parent: file.parent,
            name: file.name.clone(),
            temp: self.temp_name(&file.name),
            state: Mutex::new(State::New),
            writing: Mutex::new(()),
        })
    }

    fn closed(&self, open: &OpenFile) -> Failure {
        let path = self.tree.path_of(open.parent, &open.name);
        fault::failure(Stage::Write, 0, format!("{path} was discarded before this"))
    }

    fn create(&self, open: &OpenFile) -> Result<OwnedFd, Failure> {
        let dir = self.tree.dirfd(open.parent)?;
        let jail = self.tree.jail();
        let mut made = jail.create_temp(&dir, &open.temp);
        if matches!(made, Err(Errno::EXIST)) {
            // Only this session writes this tag, so it is a leftover of its own.
            let _ = jail.unlink(&dir, &open.temp);
            made = jail.create_temp(&dir, &open.temp);
        }
        made.map_err(|errno| {
            let path = self.tree.path_of(open.parent, &open.temp);
            fault::os_at(Stage::Create, "create", &path, errno, &dir)
        })
    }

    /// Writes `data` at `offset` of the file.
    pub(super) fn write(&self, file: &SinkFile, offset: u64, data: &[u8]) -> Result<(), Failure> {
        let path = || self.tree.path_of(file.parent, &file.name);
        let end = offset.checked_add(data.len() as u64);
        if end.is_none_or(|end| end > file.size) {
            let text =
                format!("{} bytes at {offset} do not fit into the {} of {}", data.len(), file.size, path());
            return Err(fault::failure(Stage::Protocol, 0, text));
        }
        let fd = self.fd(file)?;
        let open = lock(&self.open).get(&file.id).cloned();
        let _turn = open.as_ref().map(|open| lock(&open.writing));
        write_all_at(&fd, data, offset)
            .map_err(|errno| fault::os_at(Stage::Write, "write", &path(), errno, &fd))
    }

    /// What stands at the item's name; and takes over the temporary of an earlier run.
    pub(super) fn look(&self, item: &LookupItem) -> Result<Found, Failure> {
        let file = &item.file;
        let dir = self.tree.dirfd(file.parent)?;
        let adopted = match item.adopt {
            Some(tag) => self.adopt(file, &dir, tag)?,
            None => false,
        };
        // Nothing can stand in a directory that this run made; that spares a request per new file.
        if self.tree.was_created(file.parent) {
            return Ok(Found { existing: Existing::Nothing, adopted });
        }
        let existing = match self.tree.jail().stat(&dir, &file.name) {
            Err(Errno::NOENT) => Existing::Nothing,
            Err(errno) => {
                let path = self.tree.path_of(file.parent, &file.name);
                return Err(fault::os(Stage::Open, "stat", &path, errno));
            }
            Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => {
                    let mtime = mtime_of(&stat);
                    Existing::File { size: stat.st_size as u64, mtime, grain: self.grain_for(mtime) }
                }
                FileType::Directory => Existing::Dir,
                _ => Existing::Other,
            },
        };
        Ok(Found { existing, adopted })
    }

    /// Renames the temporary of the run with `tag` to ours and opens it. False if it is not there, or is not
    /// what we left: a regular file with one name.
    fn adopt(&self, file: &SinkFile, dir: &OwnedFd, tag: u32) -> Result<bool, Failure> {
        let jail = self.tree.jail();
        let (old, new) = (temp_name(&file.name, tag), self.temp_name(&file.name));
        let fail = |what, errno| fault::os(Stage::Open, what, &self.tree.path_of(file.parent, &old), errno);
        let ours = |stat: &Stat| {
            FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_nlink == 1
        };
        match jail.stat(dir, &old) {
            Err(Errno::NOENT) => return Ok(false),
            Err(errno) => return Err(fail("stat", errno)),
            Ok(stat) if !ours(&stat) => return Ok(false),
            Ok(_) => {}
        }
        match jail.rename(dir, &old, &new, false) {
            Err(Errno::NOENT) => return Ok(false),
            other => other.map_err(|errno| fail("take over", errno))?,
        }
        let fd = match jail.open_file(dir, &new, true) {
            // Made by another user, or changed meanwhile: worthless to us.
            Err(Errno::LOOP | Errno::NOENT | Errno::ACCESS | Errno::PERM | Errno::NXIO) => {
                let _ = jail.unlink(dir, &new);
                return Ok(false);
            }
            other => other.map_err(|errno| fail("open", errno))?,
        };
        // Looked at again through the descriptor, for the name may have been changed in between.
        if !ours(&rustix::fs::fstat(&fd).map_err(|errno| fail("stat", errno))?) {
            let _ = jail.unlink(dir, &new);
            return Ok(false);
        }
        let open = self.entry(file);
        *lock(&open.state) = State::Open(Arc::new(fd));
        lock(&self.open).insert(file.id, open);
        Ok(true)
    }

    /// The granularity of the destination's mtimes, nanoseconds. It is probed once, and only when it could
    /// matter: an mtime that is no multiple of 100 ns proves that there is none.
    fn grain_for(&self, mtime: Timestamp) -> u32 {
        if !mtime.nanos.is_multiple_of(100) {
            return 1;
        }
        *self.grain.get_or_init(|| self.probe_grain().unwrap_or(1))
    }

    fn probe_grain(&self) -> Option<u32> {
        let (root, jail) = (self.tree.root(), self.tree.jail());
        let name = self.temp_name(&Name::new(b"haul~grain").ok()?);
        let fd = jail.create_temp(root, &name).ok()?;
        let set = Timestamp { secs: 1_000_000_001, nanos: 123_456_789 };
        let read = set_mtime(&fd, set).and_then(|()| rustix::fs::fstat(&fd));
        // A file system that is asked again without its cache would truncate too; the name goes at once.
        let _ = jail.unlink(root, &name);
        Some(grain_between(set, mtime_of(&read.ok()?)))
    }
}

/// The smallest usual granularity that makes `read` of `set`; 1 if none does.
fn grain_between(set: Timestamp, read: Timestamp) -> u32 {
    let total = |t: Timestamp| i128::from(t.secs) * 1_000_000_000 + i128::from(t.nanos);
    let (set, read) = (total(set), total(read));
    [1, 100, 1_000, 1_000_000, 10_000_000, 1_000_000_000, 2_000_000_000]
        .into_iter()
        .find(|grain| set - set.rem_euclid(i128::from(*grain)) == read)
        .unwrap_or(1)
}

pub(super) fn mtime_of(stat: &Stat) -> Timestamp {
    Timestamp { secs: stat.st_mtime, nanos: u32::try_from(stat.st_mtime_nsec).unwrap_or(0) }
}

/// The times to set for this mtime; atime stays. `None`: nanoseconds that the kernel would read as a command.
pub(super) fn times(mtime: Timestamp) -> Option<Timestamps> {
    (mtime.nanos < 1_000_000_000).then(|| Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        last_modification: Timespec { tv_sec: mtime.secs, tv_nsec: i64::from(mtime.nanos) },
    })
}

pub(super) fn set_mtime(fd: &OwnedFd, mtime: Timestamp) -> rustix::io::Result<()> {
    rustix::fs::futimens(fd, &times(mtime).ok_or(Errno::INVAL)?)
}

/// Writes all of `data`, however the kernel splits it.
pub(super) fn write_all_at(fd: &OwnedFd, mut data: &[u8], mut offset: u64) -> rustix::io::Result<()> {
    while !data.is_empty() {
        match retry_on_intr(|| rustix::io::pwrite(fd, data, offset))? {
            0 => return Err(Errno::IO),
            written => {
                data = &data[written..];
                offset += written as u64;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the grain is recognised from what the file system made of a known mtime.
    /// Method: each usual grain applied to the probe's value; and a value that no grain explains.
    #[test]
    fn grains_are_recognised() {
        let set = Timestamp { secs: 1_000_000_001, nanos: 123_456_789 };
        let cases =
            [(1, 1, 123_456_789), (100, 1, 123_456_700), (1_000, 1, 123_456_000), (1_000_000_000, 1, 0)];
        for (grain, secs, nanos) in cases {
            assert_eq!(grain_between(set, Timestamp { secs: 1_000_000_000 + secs, nanos }), grain);
        }
        assert_eq!(grain_between(set, Timestamp { secs: 1_000_000_000, nanos: 0 }), 2_000_000_000);
        assert_eq!(grain_between(set, Timestamp { secs: 5, nanos: 5 }), 1);
    }
}
