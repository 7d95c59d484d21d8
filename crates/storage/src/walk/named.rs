//! Sources that were named: the names that they take at the destination, and what is no source.
//!
//! Invariant: no two entries take one name in the destination root.

use std::collections::HashSet;
use std::os::fd::BorrowedFd;

use haul_core::entry::{Name, Nodes};
use rustix::fs::{AtFlags, FileType, fstatfs, statat};

use super::probe::Probed;
use crate::source::roots::{RootSpec, RootTarget};

/// Names in the destination root that are taken. Kept only where two sources could collide, and sources by
/// name were compared before: so contents are held against those, and against contents that came earlier.
pub(super) struct RootNames {
    taken: HashSet<[u8; 16]>,
    /// More than one source has contents: remember those too.
    remember: bool,
}

impl RootNames {
    pub(super) fn of(roots: &[RootSpec]) -> RootNames {
        let mut taken = HashSet::new();
        let mut contents = 0;
        for root in roots {
            match &root.target {
                RootTarget::Named(name) => {
                    taken.insert(short_hash(name));
                }
                RootTarget::Contents => contents += 1,
            }
        }
        RootNames { taken, remember: contents > 1 }
    }

    /// Takes a name that comes from contents; false if it is taken.
    pub(super) fn take(&mut self, name: &Name) -> bool {
        if (self.taken.is_empty() && !self.remember) || haul_mutant::removed("contents-take-names-once") {
            return true;
        }
        let hash = short_hash(name);
        if self.remember { self.taken.insert(hash) } else { !self.taken.contains(&hash) }
    }
}

fn short_hash(name: &Name) -> [u8; 16] {
    let mut short = [0; 16];
    short.copy_from_slice(&blake3::hash(name.as_bytes()).as_bytes()[..16]);
    short
}

/// Why a source that was named cannot be copied, and what to do. Below a directory such entries are skipped
/// and counted; who names one wants what it gives.
pub(super) fn no_file(
    dir: BorrowedFd<'_>,
    name: &Name,
    Probed { seen, link, .. }: &Probed,
    nodes: Nodes,
) -> Option<&'static str> {
    if haul_mutant::removed("named-special-files-fail") {
        return None;
    }
    if seen.node().is_some_and(|node| nodes.keep(node)) {
        return None;
    }
    match seen.kind {
        FileType::RegularFile | FileType::Directory => None,
        FileType::Symlink => is_descriptor(dir, name, link.as_deref().unwrap_or_default()).then_some(
            "it is a name for what a process has open, as <(...) gives one; write that to a file first, and copy the file",
        ),
        FileType::Fifo => Some("it is a FIFO; write what comes out of it to a file first (cat FIFO > FILE), and copy that; -D copies the FIFO itself"),
        FileType::Socket => Some("it is a socket, of which nothing can be copied; -D makes one like it"),
        _ => Some("it is a device; read it into a file first (dd if=DEVICE of=FILE), and copy that; -D makes one like it"),
    }
}

/// Whether a symbolic link stands for a descriptor: as it is, it would lead nowhere at the destination. One
/// to a device elsewhere (`/dev/null` masks a unit of systemd so) is a link like any other.
fn is_descriptor(dir: BorrowedFd<'_>, name: &Name, target: &[u8]) -> bool {
    const PROC: u64 = 0x9fa0;
    if target.starts_with(b"/proc/self/fd/") || target.starts_with(b"/dev/fd/") {
        return true;
    }
    let on_proc = fstatfs(dir).is_ok_and(|stat| stat.f_type as u64 & 0xffff_ffff == PROC);
    on_proc
        && statat(dir, name.as_bytes(), AtFlags::empty()).is_ok_and(|stat| {
            !matches!(FileType::from_raw_mode(stat.st_mode), FileType::RegularFile | FileType::Directory)
        })
}
