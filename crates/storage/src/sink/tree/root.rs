//! The destination root: opened where it is closed to its owner, and what is done to it last.
//!
//! In: a path; what the root is to become. Out: it is open; at the end it has the mode and the time that it
//! is to have.
//! What must hold: only a directory of this user's own is opened to him, and nobody else may do more in it
//! meanwhile; it is closed again whatever ends the run, but for a kill.
//! Left out: which roots may be opened so (`store`); owner, lists and the rest of the mode (`engine/root`).

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use haul_core::change::Change;
use haul_core::entry::{Meta, Timestamp};
use haul_core::ids::DirId;
use haul_core::wire::{Failure, FailureKind};
use rustix::fs::{Mode, Stat};
use rustix::io::{Errno, Result as OsResult};

use super::SinkTree;
use crate::jail::Jail;
use crate::sink::calls::{set_mtime, sync_dir};
use crate::sink::meta::{NotKeptCounters, Wanted, count, permitted, set_meta};
use crate::sink::stat::mtime_of;
use crate::sink::{fault, lock};

/// How a root is opened that stands there and is closed to its owner, who is this user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sink) enum Closed {
    /// Not at all.
    Stays,
    /// It is opened to us, until [`SinkTree::end_root`].
    Opens,
    /// To be looked at from outside.
    Looks,
}

/// A root that is open; it is closed again when this is dropped, if it was opened to us and nobody took it.
pub(super) struct Opened {
    pub(super) fd: Arc<OwnedFd>,
    /// As it stood, where it was opened to us.
    pub(super) stood: Option<Stat>,
    taken: bool,
}

impl Opened {
    pub(super) fn at(path: &Path, closed: Closed) -> OsResult<Opened> {
        let (fd, stood) = match (Jail::open_root(path), closed) {
            (Err(Errno::ACCESS), Closed::Opens) if !haul_mutant::removed("closed-roots-are-opened") => {
                let (fd, stood) = Jail::open_root_by_force(path, is_closed_to_us)?;
                (fd, Some(stood))
            }
            (Err(Errno::ACCESS), Closed::Looks) => {
                let held = Jail::hold_root(path)?;
                if !is_closed_to_us(&rustix::fs::fstat(&held)?) {
                    return Err(Errno::ACCESS);
                }
                (held, None)
            }
            (opened, _) => (opened?, None),
        };
        Ok(Opened { fd: Arc::new(fd), stood, taken: false })
    }

    /// The tree has it now, and what is to be done last.
    pub(super) fn take(mut self) -> Option<LastOfRoot> {
        self.taken = true;
        self.stood.map(|stood| LastOfRoot { mode: Some(opened_to_us(&stood)), mtime: None })
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some(stood) = self.stood.filter(|_| !self.taken) {
            let _ = rustix::fs::fchmod(&self.fd, opened_to_us(&stood).1);
        }
    }
}

/// A directory of this user's that he may not read, fill or enter, and who is not root.
pub(in crate::sink) fn is_closed_to_us(stat: &Stat) -> bool {
    let (me, open) = (rustix::process::geteuid(), Mode::RWXU.as_raw_mode());
    !me.is_root() && stat.st_uid == me.as_raw() && stat.st_mode & open != open
}

/// The mode of such a directory while it is opened to us, and the one that it has.
fn opened_to_us(stat: &Stat) -> (Mode, Mode) {
    let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
    (mode | Mode::RWXU, mode)
}

/// See [`SinkTree::end_root`].
pub(super) struct LastOfRoot {
    /// The mode that it was given, with which its owner can remove what is in it; and the one that it is to
    /// have.
    mode: Option<(Mode, Mode)>,
    mtime: Option<Timestamp>,
}

impl SinkTree {
    /// Gives a root that this run made what `like` has besides: the rest of its mode, with `owner` whose it
    /// is, and its mtime.
    ///
    /// # Errors
    /// The system refuses it, or with `durable` the sync.
    pub fn finish_root(
        &self,
        like: &Meta,
        (owner, durable): (bool, bool),
        lost: &NotKeptCounters,
    ) -> Result<(), Failure> {
        if !self.root_created {
            return Ok(());
        }
        let path = || self.path_of_dir(DirId::ROOT);
        let fail = |stage, what, errno| fault::os(stage, what, &path(), errno);
        let stat =
            rustix::fs::fstat(&self.root).map_err(|errno| fail(FailureKind::Metadata, "stat", errno))?;
        let keep = stat.st_mode & Change::kept_of_dirs(owner);
        set_meta(
            &self.root,
            &Wanted { meta: like, owner, keep, mtime: true, made_with: None, may_stand: false },
            lost,
            &path,
        )?;
        match durable {
            true => sync_dir(&self.root).map_err(|errno| fail(FailureKind::Sync, "sync", errno)),
            false => Ok(()),
        }
    }

    /// Where the root is this user's own and closed to him, it is opened to him until [`SinkTree::end_root`]:
    /// what it becomes is set there, and nobody else may do more in it meanwhile.
    ///
    /// # Errors
    /// The system refuses it.
    pub(in crate::sink) fn open_root_to_us(&self) -> OsResult<()> {
        if self.root_created || !is_closed_to_us(&self.root_stat) {
            return Ok(());
        }
        let (opened, mode) = opened_to_us(&self.root_stat);
        rustix::fs::fchmod(&self.root, opened)?;
        *lock(&self.root_last) = Some(LastOfRoot { mode: Some((opened, mode)), mtime: None });
        Ok(())
    }

    /// The root has all that it is to have, but for this.
    pub(in crate::sink) fn set_last_of_root(&self, mode: Option<(Mode, Mode)>, mtime: Option<Timestamp>) {
        *lock(&self.root_last) = Some(LastOfRoot { mode, mtime });
    }

    /// Does to the root what must wait until the job's own files in it are gone: takes from its owner what
    /// let him remove them, unless somebody gave it another mode meanwhile, and sets its mtime. With
    /// `durable` it is synced.
    ///
    /// # Errors
    /// The system refuses it.
    pub(in crate::sink) fn end_root(&self, durable: bool, lost: &NotKeptCounters) -> OsResult<()> {
        let Some(LastOfRoot { mode, mtime }) = lock(&self.root_last).take() else { return Ok(()) };
        if let Some((given, last)) = mode
            && rustix::fs::fstat(&self.root)?.st_mode & 0o7777 == given.as_raw_mode()
        {
            let closes = !haul_mutant::removed("roots-are-closed-again");
            rustix::fs::fchmod(&self.root, if closes { last } else { given })?;
        }
        if let Some(mtime) = mtime {
            match permitted(set_mtime(&self.root, mtime))? {
                true => lost.note_time(mtime, mtime_of(&rustix::fs::fstat(&self.root)?)),
                false => count(&lost.mtime),
            }
        }
        if durable { sync_dir(&self.root) } else { Ok(()) }
    }
}
