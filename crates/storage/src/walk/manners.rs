//! The walk where the user says more of it: what is not entered, what leads nowhere, what was wanted and is
//! not there.
//!
//! In: directories and links as they were seen. Out: whether the walk goes on there, and what is told if not.
//! What must hold: a directory of another file system is not opened where these are not entered; no directory
//! is entered below itself where links are followed; of what was wanted by name each is met or told, and so
//! is each file of which some names alone were.

use std::os::fd::OwnedFd;

use haul_core::entry::Name;
use haul_core::ids::DirId;
use haul_core::wire::FailureKind;
use rustix::fs::{FileType, fstat, stat};
use rustix::io::Errno;

use super::probe::{Looks, Probed};
use super::way::Level;
use super::{CountsAs, NotKept, NotKeptWhat, WalkItem, Walker};
use crate::manners::{Mounted, OnlyThese, Wanted};
use crate::source::failure::own_failure;
use crate::source::stat::Seen;
use crate::source::view::Place;

/// How a directory is entered.
pub(super) struct Down {
    /// Directories between what lies in it and the destination's root.
    pub(super) depth: usize,
    /// What of it is wanted; `None`: all.
    pub(super) only: Option<OnlyThese>,
    /// Device and inode of those above it, where links are followed.
    pub(super) trail: Vec<(u64, u64)>,
}

impl<F: FnMut(u64) -> u32> Walker<F> {
    pub(super) fn looks(&self, depth: usize) -> Looks {
        Looks { keeps: self.tree.keeps(), links: self.tree.manners().links, depth }
    }

    /// Whether a directory is one of another file system, and these are not entered. `identity`: device and
    /// inode.
    pub(super) fn is_mounted(&self, (device, _): (u64, u64)) -> bool {
        self.tree.manners().mounted != Mounted::Copied
            && device != self.root_dev
            && !haul_mutant::removed("one-file-system-is-one")
    }

    /// Tells of a directory of another file system. False: it is not even made.
    pub(super) fn is_made_empty(&mut self, place: Place, name: &Name) -> bool {
        let path = self.path(place, name);
        self.out.push(WalkItem::NotKept(NotKept { path, what: NotKeptWhat::Mounted }));
        self.tree.manners().mounted == Mounted::Empty
    }

    /// Whether a directory is one of those above it, or the destination, where links are followed; that is
    /// told.
    pub(super) fn leads_back(
        &mut self,
        place: Place,
        name: &Name,
        identity: (u64, u64),
        trail: &[(u64, u64)],
    ) -> bool {
        let cause = if trail.contains(&identity) && !haul_mutant::removed("no-directory-below-itself") {
            "it leads back to a directory that it lies in, which would never end: left out"
        } else if self.is_sink(identity) && !haul_mutant::removed("no-link-into-the-copy") {
            "it is the destination of this copy, which would copy itself: left out"
        } else {
            return false;
        };
        let path = self.path(place, name);
        let failure = own_failure(FailureKind::Walk, "follow", &path, cause);
        self.out.push(WalkItem::Failed { path, failure, counts_as: CountsAs::Subtree });
        true
    }

    /// Whether a directory is the destination, where links are followed.
    fn is_sink(&mut self, identity: (u64, u64)) -> bool {
        let manners = self.tree.manners();
        if let (None, true, Some(path)) = (self.sink, manners.links.follows(), &manners.sink_here) {
            // What is still to be made no link leads to yet.
            let seen = stat(path).map(Seen::from);
            self.sink = seen.ok().map(|seen| (seen.dev, seen.stamp.ino));
        }
        self.sink == Some(identity)
    }

    /// A link that is to be followed leads nowhere.
    pub(super) fn fail_link(&mut self, place: Place, name: &Name, target: &[u8], errno: Errno) {
        let path = self.path(place, name);
        let target = haul_base::escape::within(target);
        let cause = format!("where the link leads to: {}: {target}", haul_base::errno::text(errno));
        let failure = own_failure(FailureKind::Walk, "follow", &path, &cause);
        self.out.push(WalkItem::Failed { path, failure, counts_as: CountsAs::Entry });
    }

    /// Whether an entry of the level that was looked for by its name is not there, or what is wanted of it
    /// cannot be; that is told.
    pub(super) fn is_not_there_below(
        &mut self,
        level: &Level,
        name: &Name,
        probed: &Result<Probed, Errno>,
    ) -> bool {
        if level.id == DirId::ROOT {
            match probed {
                // There may be another source that has it.
                Err(Errno::NOENT) => return true,
                _ => drop(self.met.insert(name.clone())),
            }
        }
        self.is_not_there(level.place, name, probed, &level.wants(name))
    }

    /// The same of an entry at `place`.
    pub(super) fn is_not_there(
        &mut self,
        place: Place,
        name: &Name,
        probed: &Result<Probed, Errno>,
        wanted: &Wanted,
    ) -> bool {
        let is_dir = match probed {
            Ok(probed) => probed.seen.kind == FileType::Directory,
            Err(Errno::NOENT) => false,
            Err(_) => return false,
        };
        match wanted {
            Wanted::Some(only) if !is_dir => only.paths().for_each(|path| self.tell_gone(path)),
            Wanted::All if probed.is_err() => {
                let path = self.path(place, name);
                self.tell_gone(path);
            }
            _ => return false,
        }
        true
    }

    /// Tells of what was wanted below the destination's root and is in no source.
    pub(super) fn tell_missing(&mut self, only: &OnlyThese) {
        for name in only.names() {
            if self.met.contains(&name) {
                continue;
            }
            match only.below(&name) {
                Wanted::Some(below) => below.paths().for_each(|path| self.tell_gone(path)),
                Wanted::All => self.tell_gone(name.as_bytes().to_vec()),
                Wanted::Nothing => {}
            }
        }
    }

    /// Of files with several names of which some alone are wanted nobody can say here whether those are names
    /// of what stands at the destination.
    pub(super) fn tell_parted(&mut self) {
        let parted = self.names.parted().into_iter();
        let parted: Vec<_> = parted.map(|(path, left, links)| (path.to_vec(), left, links)).collect();
        for (path, left, links) in parted {
            let cause = format!(
                "a hard link that may not be kept: {left} of the {links} names of its file are not among the entries to copy, and it \
                 may be a file of its own now; a copy of all of the source joins them again"
            );
            let failure = own_failure(FailureKind::Walk, "link", &path, &cause);
            self.out.push(WalkItem::Failed { path, failure, counts_as: CountsAs::Entry });
        }
    }

    fn tell_gone(&mut self, path: Vec<u8>) {
        let failure = own_failure(FailureKind::Vanished, "copy", &path, "it is not there any more");
        self.out.push(WalkItem::Failed { path, failure, counts_as: CountsAs::Vanished });
    }
}

/// Device and inode of what is open.
pub(super) fn identity_of(fd: &OwnedFd) -> Result<(u64, u64), Errno> {
    let seen = Seen::from(fstat(fd)?);
    Ok((seen.dev, seen.stamp.ino))
}

#[cfg(test)]
#[path = "manners_tests.rs"]
mod tests;
