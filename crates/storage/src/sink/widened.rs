//! Directories that were closed to us, and are opened to their owner while they are filled.
//!
//! In: directories of the destination that are about to be opened; those that a dead run left open, as its
//! journal says.
//! Out: the journal knows each before it is opened; those that were left have their modes again.
//! What must hold: a record proves nothing against whoever may write a journal. So what it can bring about is
//! little: of a directory of ours below the destination, reached through no link, with the very inode and the
//! very mode that opening it would have left, the bits are taken from its owner that opening it gives.
//! Nothing gets wider.
//! Left out: which records count, which is `core`'s.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use haul_core::entry::{DEPTH_MAX, Name};
use haul_core::ids::DirId;
use haul_core::journal::Widened;
use rustix::fs::{Mode, Stat};
use rustix::io::{Errno, Result as OsResult};

use super::calls::sync_dir;
use super::lock;
use super::ours::Ours;
use super::tree::{Note, SinkTree};
use crate::jail::Jail;

/// What an owner needs to fill a directory.
const OWNER: u32 = 0o700;
/// The bits of a mode that say who may do what. Others may go with a change of mode that nobody asked for.
const RIGHTS: u32 = 0o777;

impl SinkTree {
    /// Directories are open to us that were closed, and not finished.
    pub fn is_widened(&self) -> bool {
        !lock(&self.widened).is_empty()
    }

    /// Gives directories that were opened to us, and are not finished, the modes that they had; the deepest
    /// first, for then the way to the others is still open. What cannot be reached any more stays as it is,
    /// and what has another mode by now. `may` is asked before each.
    pub fn close_again(&self, may: &dyn Fn() -> bool) {
        let mut widened: Vec<(DirId, Mode)> = std::mem::take(&mut *lock(&self.widened)).into_iter().collect();
        widened.sort_by_key(|(id, _)| std::cmp::Reverse(self.depth(*id)));
        for (id, mode) in widened {
            if let Ok(fd) = self.dirfd(id)
                && may()
            {
                close_as_it_was_left(&fd, mode);
            }
        }
    }

    /// Gives one directory that is given up the mode that it had, if it was opened to us.
    pub(super) fn close_one(&self, id: DirId) {
        let mode = lock(&self.widened).remove(&id);
        if let Some(mode) = mode
            && let Ok(fd) = self.dirfd(id)
        {
            close_as_it_was_left(&fd, mode);
        }
    }

    /// Has each directory written down before it is opened to its owner. The first word counts.
    pub(super) fn set_note(&self, note: Note) {
        let _ = self.note.set(note);
    }

    /// A directory that is closed to us is about to be opened.
    pub(super) fn before_widening(&self, id: DirId, stat: &Stat) -> OsResult<()> {
        // Who closed it again since has made it no other directory.
        if lock(&self.widened).contains_key(&id) {
            return Ok(());
        }
        if let Some(note) = self.note.get()
            && !haul_mutant::removed("widened-is-journaled-first")
        {
            note(id, about(&self.names_of(id), stat))?;
        }
        lock(&self.widened).insert(id, Mode::from_raw_mode(stat.st_mode & 0o7777));
        Ok(())
    }
}

/// Takes back what was given to the owner of a directory that had this mode. Where somebody gave it another
/// one meanwhile, that counts.
fn close_as_it_was_left(fd: &OwnedFd, mode: Mode) {
    let mode = mode.as_raw_mode();
    let Ok(stat) = rustix::fs::fstat(fd) else { return };
    if is_as_left(&stat, mode) || haul_mutant::removed("modes-given-meanwhile-stay") {
        let _ = rustix::fs::fchmod(fd, Mode::from_raw_mode(mode));
    }
}

/// The directory, which had this mode, has the one that opening it to us left.
fn is_as_left(stat: &Stat, mode: u32) -> bool {
    stat.st_mode & RIGHTS == (mode | OWNER) & RIGHTS
}

/// What the journal has to know of the directory with this path and `stat`.
fn about(names: &[Name], stat: &Stat) -> Widened {
    let path = names.iter().map(Name::as_bytes).collect::<Vec<_>>().join(&b'/');
    Widened { path: path.into(), ino: stat.st_ino, mode: stat.st_mode & 0o7777 }
}

/// Takes back what dead runs of a job left open below `root`. Returns those that could not be looked at.
pub fn restore(root: &Arc<OwnedFd>, jail: Jail, ours: Ours, mut left: Vec<Widened>) -> Vec<Widened> {
    if haul_mutant::removed("widened-directories-are-restored") {
        return Vec::new();
    }
    // The deepest first: then the way to the others is still open.
    left.sort_by_key(|dir| std::cmp::Reverse(dir.path.iter().filter(|byte| **byte == b'/').count()));
    left.retain(|dir| match restore_one(root, jail, ours, dir) {
        Ok(()) => false,
        // It is gone, or something else stands on the way to it.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::INVAL) => false,
        Err(_) => true,
    });
    left
}

fn restore_one(root: &Arc<OwnedFd>, jail: Jail, ours: Ours, dir: &Widened) -> OsResult<()> {
    let mut fd = root.clone();
    for (depth, name) in dir.path.split(|byte| *byte == b'/').enumerate() {
        let name = Name::new(name).ok().filter(|_| depth <= DEPTH_MAX).ok_or(Errno::INVAL)?;
        fd = Arc::new(jail.open_dir(&fd, &name)?);
    }
    let stat = rustix::fs::fstat(&fd)?;
    let as_we_left_it = stat.st_ino == dir.ino
        && stat.st_uid == ours.uid
        && is_as_left(&stat, dir.mode)
        && dir.mode & OWNER != OWNER;
    if as_we_left_it || haul_mutant::removed("restored-as-it-was-left") {
        let given = OWNER & !dir.mode;
        rustix::fs::fchmod(&fd, Mode::from_raw_mode(stat.st_mode & 0o7777 & !given))?;
        // The record of it goes next.
        sync_dir(&fd)?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "widened_tests.rs"]
mod tests;
