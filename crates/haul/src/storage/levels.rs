//! The way down a tree: its levels, of which few are open.
//!
//! In: directories that are entered and left, by a walk of a source or in search of debris. Out: the level that is walked now,
//! open.
//! Invariants: open are the first level and the last few, never more than the limit and one. A level that was closed is opened
//! again on the way up: from the directory below it by `..`, or by name from the nearest level above that is open; either only if
//! device and inode are those that it had. It goes on behind the last name that was read, by the position that the directory itself
//! gave (what holds for NFS, which knows no other).

use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use haul_core::entry::Name;
use rustix::fs::{Mode, OFlags, SeekFrom, fstat, openat, seek};
use rustix::io::Errno;

/// How a directory is opened that is to be read.
pub(super) const DIR_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);

/// A directory on the way down, and what the walk knows of it.
pub(super) struct Level<T> {
    what: T,
    /// In the level above; `None`: it is the first.
    name: Option<Name>,
    fd: Option<Arc<OwnedFd>>,
    /// Device and inode, known when it is closed.
    identity: (u64, u64),
    /// Behind the last name that was read.
    pub(super) position: u64,
    /// All names were read.
    pub(super) read: bool,
}

impl<T> Deref for Level<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.what
    }
}

impl<T> DerefMut for Level<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.what
    }
}

impl<T> Level<T> {
    pub(super) fn new(what: T, name: Option<Name>, fd: Arc<OwnedFd>) -> Level<T> {
        Level { what, name, fd: Some(fd), identity: (0, 0), position: 0, read: false }
    }

    /// Its descriptor; only of a level that is open.
    pub(super) fn fd(&self) -> Arc<OwnedFd> {
        self.fd.clone().expect("the last level is opened before it is used")
    }

    /// Gives up its descriptor. What cannot be recognised again stays open.
    fn close(&mut self) {
        if let Some(fd) = &self.fd
            && let Ok(identity) = identity_of(fd)
        {
            self.identity = identity;
            self.fd = None;
        }
    }

    /// Takes `fd`, if that is this directory.
    fn take(&mut self, fd: OwnedFd) -> Result<(), Errno> {
        let same =
            identity_of(&fd)? == self.identity || haul_mutant::removed("reopened-directories-are-the-same");
        if !same {
            return Err(Errno::STALE);
        }
        if !self.read {
            seek(&fd, SeekFrom::Start(self.position))?;
        }
        self.fd = Some(Arc::new(fd));
        Ok(())
    }
}

// The widths of these fields differ between the CPUs that Linux runs on.
#[allow(clippy::unnecessary_cast)]
fn identity_of(fd: &OwnedFd) -> Result<(u64, u64), Errno> {
    fstat(fd).map(|stat| (stat.st_dev as u64, stat.st_ino as u64))
}

/// The levels from a source down to the directory that is walked now.
pub(super) struct Way<T> {
    levels: Vec<Level<T>>,
    open_max: usize,
}

impl<T> Way<T> {
    /// A way of one level. `open_max`: levels that are open at a time, besides the first.
    pub(super) fn new(top: Level<T>, open_max: usize) -> Way<T> {
        Way { levels: vec![top], open_max: open_max.max(1) }
    }

    pub(super) fn len(&self) -> usize {
        self.levels.len()
    }

    /// The directory that is walked now.
    pub(super) fn last(&mut self) -> Option<&mut Level<T>> {
        self.levels.last_mut()
    }

    /// Goes down.
    pub(super) fn enter(&mut self, level: Level<T>) {
        self.levels.push(level);
        // One goes down at a time: what lies above that is closed already.
        if let Some(at) = self.levels.len().checked_sub(self.open_max + 1).filter(|at| *at > 0) {
            self.levels[at].close();
        }
    }

    /// Goes up.
    pub(super) fn leave(&mut self) -> Option<Level<T>> {
        let left = self.levels.pop()?;
        if let (Some(above), Some(fd)) = (self.levels.last_mut(), &left.fd)
            && above.fd.is_none()
        {
            // Where this fails it is opened by name, when it is needed.
            let opened = openat(&**fd, c"..", DIR_FLAGS, Mode::empty());
            let _ = opened.and_then(|fd| above.take(fd));
        }
        Some(left)
    }

    /// Opens the directory that is walked now, if it was closed.
    ///
    /// # Errors
    /// Of the opening; `ESTALE` where its name leads to another one by now.
    pub(super) fn open_last(&mut self) -> Result<(), Errno> {
        let Some(open) = self.levels.iter().rposition(|level| level.fd.is_some()) else {
            return Err(Errno::STALE);
        };
        let mut fd = self.levels[open].fd();
        let last = self.levels.len() - 1;
        for at in open + 1..=last {
            let level = &mut self.levels[at];
            let name = level.name.as_ref().map_or(&b"."[..], Name::as_bytes);
            level.take(openat(&*fd, name, DIR_FLAGS, Mode::empty())?)?;
            fd = level.fd();
            // On the way through; only the last is walked now.
            if at < last {
                level.fd = None;
            }
        }
        Ok(())
    }
}
