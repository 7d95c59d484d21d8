//! What `stat` says of an entry at the destination, in core's words.
//!
//! Left out: what the destination makes of times (`look`), and whose a file is ([`ours`](super::ours)).

use std::sync::OnceLock;

use haul_core::change::{Change, Stood};
use haul_core::entry::{Node, Timestamp};
use haul_core::transfer::op::{Existing, Inode, Rights, Seen};
use rustix::fs::{FileType, Stat};
use rustix::process::geteuid;
use rustix::thread::{CapabilitySet, capabilities};

use crate::attributes::Differs;
use crate::source::acl::mode_by;
use crate::source::stat::node_of;

pub(super) fn is_regular(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

/// Which FIFO, socket or device it is, if it is one.
#[allow(clippy::unnecessary_cast)]
pub(super) fn node_as(stat: &Stat) -> Option<Node> {
    node_of(FileType::from_raw_mode(stat.st_mode), stat.st_rdev as u64)
}

/// Whether it is this FIFO, socket or device.
pub(super) fn is_node(stat: &Stat, node: Node) -> bool {
    node_as(stat) == Some(node)
}

pub(super) fn inode_of(stat: &Stat) -> Inode {
    Inode { dev: stat.st_dev, ino: stat.st_ino }
}

// The widths of these fields differ between the CPUs that Linux runs on.
#[allow(clippy::unnecessary_cast)]
pub(super) fn seen_of(stat: &Stat) -> Seen {
    let nanos = u32::try_from(stat.st_ctime_nsec).unwrap_or(0);
    Seen {
        inode: inode_of(stat),
        size: stat.st_size as u64,
        mtime: mtime_of(stat),
        ctime: Timestamp { secs: stat.st_ctime, nanos },
        links: stat.st_nlink as u64,
    }
}

pub(super) fn mtime_of(stat: &Stat) -> Timestamp {
    Timestamp { secs: stat.st_mtime, nanos: u32::try_from(stat.st_mtime_nsec).unwrap_or(0) }
}

/// `me`: to whom files belong that we make there, if that says anything.
pub(super) fn rights_of(stat: &Stat, me: Option<u32>) -> Rights {
    Rights {
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        linked: stat.st_nlink > 1,
        foreign: me.is_some_and(|me| me != stat.st_uid) && may_give(),
        untold: false,
        other_xattrs: false,
        other_acl: false,
        gains_rights: false,
        beyond: Change::NONE,
    }
}

/// Whether this process may give files to others, or change those of others: as root, or by one of root's
/// capabilities.
pub(super) fn may_give() -> bool {
    static MAY: OnceLock<bool> = OnceLock::new();
    *MAY.get_or_init(|| {
        let any = CapabilitySet::CHOWN | CapabilitySet::FOWNER | CapabilitySet::FSETID;
        let has = |any: CapabilitySet| {
            capabilities(None).is_ok_and(|sets| sets.effective.intersects(any))
                && !haul_mutant::removed("capabilities-are-roots")
        };
        geteuid().is_root() || has(any)
    })
}

/// What was looked at; `grain` of this mtime, where it matters.
pub(super) fn existing_of(stat: &Stat, me: Option<u32>, grain: impl FnOnce(Timestamp) -> u32) -> Existing {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {
            let mtime = mtime_of(stat);
            let rights = rights_of(stat, me);
            Existing::File { size: stat.st_size as u64, mtime, grain: grain(mtime), rights }
        }
        FileType::Directory => Existing::Dir,
        FileType::Symlink => Existing::Link,
        _ if haul_mutant::removed("special-files-stay") => Existing::Link,
        _ => Existing::Special,
    }
}

/// Puts what differs into the rights that are compared.
pub(super) fn note_differs(rights: &mut Rights, differs: &Differs) {
    rights.other_xattrs = differs.xattrs;
    rights.other_acl = differs.acl;
    rights.gains_rights = differs.gains_rights;
    if let Some(list) = &differs.access {
        rights.mode = mode_by(rights.mode, list);
    }
}

/// How a directory stood that is told by `stat`.
pub(super) fn stood_of(stat: &Stat, grain: impl FnOnce(Timestamp) -> u32) -> Stood {
    let mtime = mtime_of(stat);
    Stood { rights: rights_of(stat, None), mtime, grain: grain(mtime), untold: false }
}
