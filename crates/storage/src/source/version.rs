//! What the far end is told of a file's inode, so that a later run knows whether it is the version that was
//! read before.
//!
//! In: the file system of a file. Out: a number that is mixed into the number of its inode; ctime and that as
//! a version, which nobody but this module understands.
//!
//! Inode numbers are small and repeat from file system to file system, and so do ctimes, where they are kept
//! in whole seconds, are the mtime under another name, or come with an image; and what is written through a
//! memory map to a file that lies in memory (tmpfs) never moves it. So a version is known again only where
//! both are worth something: the file system has an identity, and is of a kind that moves ctime with each
//! change and keeps a number for one file. Of all others the number is another in each session: then parts
//! that an earlier run left are compared with the source before they count, which costs reading them.
//! Assumed: two file systems of one identity (a clone of a disk) were not changed apart within one step of
//! their clock.
//! Left out: telling versions apart within a run. There the descriptor and the device say which file it is.

use std::hash::{BuildHasher, Hasher};

use haul_core::entry::{FileRange, Fingerprint, VERSION_LEN_MAX, Version};

use super::stat::Stamp;

/// Seconds and nanoseconds of ctime, and the marked inode number.
const VERSION_LEN: usize = 20;
const _: () = assert!(VERSION_LEN <= VERSION_LEN_MAX);

/// Whether file systems of this type (`statfs`) move ctime with each change of a file, and never give its
/// inode's number to another file of the same ctime.
fn keeps_versions(kind: u64) -> bool {
    const EXT4: u64 = 0xef53;
    const XFS: u64 = 0x5846_5342;
    const BTRFS: u64 = 0x9123_683e;
    const F2FS: u64 = 0xf2f5_2010;
    const BCACHEFS: u64 = 0xca45_1a4e;
    const ZFS: u64 = 0x2fc1_2fc1;
    const GPFS: u64 = 0x4750_4653;
    matches!(kind & 0xffff_ffff, EXT4 | XFS | BTRFS | F2FS | BCACHEFS | ZFS | GPFS)
        || crate::layout::keeps_versions(kind)
}

/// What is mixed into the inode numbers of a file system of this type and identity, the same in every session
/// and on every host; `None` where a version cannot be known again.
pub(super) fn mark(kind: u64, identity: Option<&[u8]>) -> Option<u64> {
    if haul_mutant::removed("versions-are-of-one-file-system") {
        return Some(0);
    }
    let identity = identity.filter(|_| keeps_versions(kind))?;
    let hash = blake3::hash(&[b"haul source ".as_slice(), identity].concat());
    hash.as_bytes().first_chunk().map(|first| u64::from_le_bytes(*first))
}

/// The same for all others: another one in each session.
pub(super) fn salt() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}

/// The fingerprint of what was seen, on a file system with this mark: ctime and inode are the version. Of a
/// part of it the size is the part's, and size and offset are in the version, so that another part is another
/// version.
pub(super) fn fingerprint(stamp: &Stamp, mark: u64, part: Option<&FileRange>) -> Fingerprint {
    let Stamp { size, mtime, ctime, ino } = *stamp;
    let mut bytes = [0; VERSION_LEN];
    bytes[..8].copy_from_slice(&ctime.secs.to_le_bytes());
    bytes[8..12].copy_from_slice(&ctime.nanos.to_le_bytes());
    bytes[12..].copy_from_slice(&(ino ^ mark).to_le_bytes());
    let mut shown = size;
    if let Some(part) = part {
        let numbers = [size, part.source, part.len].map(u64::to_le_bytes).concat();
        let hash = blake3::hash(&[b"haul part ".as_slice(), &bytes, &numbers].concat());
        bytes.copy_from_slice(&hash.as_bytes()[..VERSION_LEN]);
        shown = part.len;
    }
    let version = Version::new(&bytes).expect("VERSION_LEN is below the maximum");
    Fingerprint { size: shown, mtime, version }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a mark says which file system it is, and only of those whose inode numbers and ctimes say which
    /// version.
    #[test]
    fn marks_tell_file_systems_apart() {
        let (ext4, fuse) = (0xef53, 0x6573_5546);
        let of = |kind, identity: &str| mark(kind, Some(identity.as_bytes()));
        assert!(of(ext4, "a").is_some());
        assert_eq!(of(ext4, "a"), of(ext4, "a"), "the next session knows it again");
        assert_ne!(of(ext4, "a"), of(ext4, "b"));
        assert_eq!((mark(ext4, None), of(fuse, "a")), (None, None));
        let (lustre, beegfs) = (0x0bd0_0bd0, 0x1983_0326);
        assert!(of(lustre, "a").is_some() && of(beegfs, "a").is_none(), "what a provider says of itself");
        assert_ne!(salt(), salt());
    }

    /// Goal: whatever tells two versions of a file apart is in the fingerprint, and nothing else.
    /// Method: each field of a stamp changed alone, and the mark.
    #[test]
    fn each_field_is_in_the_fingerprint() {
        let at = |secs, nanos| haul_core::entry::Timestamp { secs, nanos };
        let stamp = Stamp { size: 1, mtime: at(2, 3), ctime: at(4, 5), ino: 6 };
        let told = fingerprint(&stamp, 7, None);
        assert_eq!(told, fingerprint(&stamp, 7, None));
        assert_eq!((told.size, told.mtime), (stamp.size, stamp.mtime));
        for other in [
            Stamp { size: 9, ..stamp },
            Stamp { mtime: at(2, 9), ..stamp },
            Stamp { ctime: at(9, 5), ..stamp },
            Stamp { ctime: at(4, 9), ..stamp },
            Stamp { ino: 9, ..stamp },
        ] {
            assert_ne!(told, fingerprint(&other, 7, None), "{other:?}");
        }
        assert_ne!(told, fingerprint(&stamp, 8, None));
        let part = |source, len| {
            let part = FileRange { source, sink: 0, len, partial: true };
            fingerprint(&stamp, 7, Some(&part))
        };
        assert_eq!((part(0, 1), part(0, 1).size), (part(0, 1), 1));
        assert_ne!(part(0, 1), told, "all of a file as a part of it");
        assert_ne!(part(0, 1), part(1, 1), "another part of the same length");
    }
}
