//! Which temporaries are open, so that none is taken for a leftover.
//!
//! In: files as they are made and opened. Out: whether what stands at the name of a temporary is nobody's.
//! What must hold: one that is open, or is just being made, is never removed to make room for another,
//! whatever the file system takes their names for. Where that is not known for sure, it is somebody's.
//! Left out: of small files the inode, which is asked for by their descriptors when it matters.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use haul_core::entry::Name;
use haul_core::ids::FileId;
use haul_core::transfer::op::Inode;
use rustix::fs::Stat;

use super::{FileState, Files, OpenFile, descriptor};
use crate::io::IoFile;
use crate::sink::lock;
use crate::sink::stat::inode_of;

/// A temporary that is being made.
pub(in crate::sink) struct Making<'a>(&'a AtomicUsize);

impl Drop for Making<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl OpenFile {
    /// Asks which inode it is, by the descriptor of its temporary, unless that is known.
    pub(super) fn know(&self, file: &IoFile) {
        if self.inode.get().is_none()
            && let Ok(stat) = rustix::fs::fstat(descriptor(file))
        {
            let _ = self.inode.set(inode_of(&stat));
        }
    }

    /// Whether its temporary is this inode. One that somebody else is just at may be.
    fn may_be(&self, inode: Inode) -> bool {
        match self.state.try_lock().as_deref() {
            Ok(FileState::Open(opened)) => {
                self.know(&opened.file);
                self.inode.get().is_none_or(|own| *own == inode)
            }
            Ok(_) => false,
            Err(_) => true,
        }
    }
}

impl Files {
    /// Counts a temporary as being made until this is dropped.
    pub(in crate::sink) fn making(&self) -> Making<'_> {
        self.making.fetch_add(1, Ordering::AcqRel);
        Making(&self.making)
    }

    /// The temporary is this inode, and open.
    pub(in crate::sink) fn is_live(&self, open: &OpenFile, stat: &Stat) {
        lock(&self.live).insert(*open.inode.get_or_init(|| inode_of(stat)));
    }

    /// Whether what stands at the name of a temporary, which `own` has not made yet, is nobody's: none of the
    /// open ones, and none that is just being made.
    pub(in crate::sink) fn is_stale(&self, dir: &OwnedFd, temp: &Name, own: Option<FileId>) -> bool {
        let Ok(stat) = self.tree.jail().stat(dir, temp) else { return false };
        let inode = inode_of(&stat);
        let alone = self.making.load(Ordering::Acquire) <= 1;
        let is_nobodys = || {
            let open: Vec<Arc<OpenFile>> = lock(&self.open).values().cloned().collect();
            let others = open.iter().filter(|file| Some(file.id) != own);
            !lock(&self.live).contains(&inode) && !others.into_iter().any(|file| file.may_be(inode))
        };
        (alone && is_nobodys()) || haul_mutant::removed("live-temporaries-stay")
    }
}
