//! The way down a tree: its levels, of which few are open.
//!
//! In: directories that are entered and left, by a walk of a source or in search of debris. Out: the level
//! that is walked now, open.
//! Invariants: open are the first level and the last few, never more than the limit and one. A level that was
//! closed is opened again on the way up: from the directory below it by `..`, or by name from the nearest
//! level above that is open; either only if device and inode are those that it had. It goes on behind the
//! last name that was read, by the position that the directory itself gave, if its file system keeps
//! positions from one opening to the next (NFS knows no other). Elsewhere (overlayfs, tmpfs, FUSE) a position
//! can be a mere count, which is wrong as soon as a name is removed: there all names are read before a level
//! is closed, and one that has too many stays open.

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use haul_core::entry::{Name, NameError};
use rustix::fs::{Mode, OFlags, RawDir, SeekFrom, fstat, fstatfs, openat, seek};
use rustix::io::Errno;

/// How a directory is opened that is to be read.
pub(super) const DIR_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);

/// Reads of a level that are kept, when it is to be closed; each is a buffer of names.
const AHEAD_MAX: usize = 64;

/// What one read of a directory gave.
#[derive(Default)]
pub(super) struct Names {
    pub(super) names: Vec<Name>,
    /// What cannot be a name here, and why.
    pub(super) impossible: Vec<(Vec<u8>, NameError)>,
    /// Why nothing more can be read.
    pub(super) broken: Option<Errno>,
}

/// A directory on the way down, and what the walk knows of it.
pub(super) struct Level<T> {
    what: T,
    /// In the level above; `None`: it is the first.
    name: Option<Name>,
    /// The name is a link, which is followed.
    followed: bool,
    fd: Option<Arc<OwnedFd>>,
    /// Device and inode, known when it is closed.
    identity: (u64, u64),
    /// Behind the last name that was read.
    position: u64,
    /// All names were read.
    pub(super) read: bool,
    /// Names that were read before they were needed.
    ahead: VecDeque<Names>,
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
        let (followed, identity, position, read) = (false, (0, 0), 0, false);
        Level { what, name, followed, fd: Some(fd), identity, position, read, ahead: VecDeque::new() }
    }

    /// The same, whose name is a link that is followed. It is opened again only as the directory that it was.
    pub(super) fn through_link(self) -> Level<T> {
        Level { followed: true, ..self }
    }

    /// How it is opened by its name.
    fn flags(&self) -> OFlags {
        if self.followed { DIR_FLAGS.difference(OFlags::NOFOLLOW) } else { DIR_FLAGS }
    }

    /// Its descriptor; only of a level that is open.
    pub(super) fn fd(&self) -> Arc<OwnedFd> {
        self.fd.clone().expect("the last level is opened before it is used")
    }

    /// Nothing of its names is left.
    pub(super) fn is_read(&self) -> bool {
        self.read && self.ahead.is_empty()
    }

    /// Nothing more is read of it.
    pub(super) fn end_reading(&mut self) {
        self.read = true;
        self.ahead.clear();
    }

    /// The names that come next: those that were read ahead, or what fits in `buffer`.
    pub(super) fn next_names(&mut self, buffer: &mut [MaybeUninit<u8>]) -> Names {
        self.ahead.pop_front().unwrap_or_else(|| self.read_names(buffer))
    }

    /// Reads what fits in the buffer of an open directory's names.
    fn read_names(&mut self, buffer: &mut [MaybeUninit<u8>]) -> Names {
        let Names { mut names, mut impossible, mut broken } = Names::default();
        let fd = self.fd();
        let mut entries = RawDir::new(&fd, buffer);
        loop {
            match entries.next() {
                None => {
                    self.read = true;
                    break;
                }
                Some(Err(Errno::INTR)) => continue,
                Some(Err(errno)) => {
                    self.read = true;
                    broken = Some(errno);
                    break;
                }
                Some(Ok(entry)) => {
                    self.position = entry.next_entry_cookie();
                    match entry.file_name().to_bytes() {
                        b"." | b".." => {}
                        bytes => match Name::new(bytes) {
                            Ok(name) => names.push(name),
                            Err(why) => impossible.push((bytes.to_vec(), why)),
                        },
                    }
                }
            }
            // What lies in our buffer would be lost when we stop; the rest waits in the descriptor.
            if entries.is_buffer_empty() {
                break;
            }
        }
        Names { names, impossible, broken }
    }

    /// Gives up its descriptor. What cannot be recognised again, or gone on with, stays open.
    fn close(&mut self, buffer: &mut [MaybeUninit<u8>]) {
        if self.fd.is_none() {
            return;
        }
        if !self.read && !keeps_positions(&self.fd()) {
            while !self.read && self.ahead.len() < AHEAD_MAX {
                let names = self.read_names(buffer);
                self.ahead.push_back(names);
            }
            if !self.read {
                return;
            }
        }
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

/// Whether the file system keeps a directory's positions from one opening to the next, whatever is removed
/// meanwhile.
fn keeps_positions(dir: &OwnedFd) -> bool {
    const EXT4: u64 = 0xef53;
    const XFS: u64 = 0x5846_5342;
    const BTRFS: u64 = 0x9123_683e;
    const F2FS: u64 = 0xf2f5_2010;
    const ZFS: u64 = 0x2fc1_2fc1;
    const NFS: u64 = 0x6969;
    if haul_mutant::removed("positions-that-last") {
        return true;
    }
    let kind = fstatfs(dir).map_or(0, |stat| stat.f_type as u64 & 0xffff_ffff);
    matches!(kind, EXT4 | XFS | BTRFS | F2FS | ZFS | NFS) || crate::layout::keeps_positions(kind)
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

    /// What is known of the directories on the way, from the first down.
    pub(super) fn levels(&self) -> impl Iterator<Item = &T> {
        self.levels.iter().map(|level| &level.what)
    }

    /// The directory that is walked now.
    pub(super) fn last(&mut self) -> Option<&mut Level<T>> {
        self.levels.last_mut()
    }

    /// Goes down. `buffer`: for the names of a level that is closed.
    pub(super) fn enter(&mut self, level: Level<T>, buffer: &mut [MaybeUninit<u8>]) {
        self.levels.push(level);
        // One goes down at a time: what lies above that is closed already.
        if let Some(at) = self.levels.len().checked_sub(self.open_max + 1).filter(|at| *at > 0) {
            self.levels[at].close(buffer);
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
            level.take(openat(&*fd, name, level.flags(), Mode::empty())?)?;
            fd = level.fd();
            // On the way through; only the last is walked now.
            if at < last {
                level.fd = None;
            }
        }
        Ok(())
    }
}
