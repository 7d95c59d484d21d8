//! Which file system a directory lies on, in bytes that stay the same.
//!
//! In: an open directory. Out: what tells its file system from others, for versions of source files; and with
//! its inode what tells it from all other directories, for a job's key and journal: two file systems may have
//! equal inode numbers, as the roots of all ext4 have.
//! What must hold: it is the same after a reboot, after a remount, and for every host that has the file
//! system mounted. So no device number is in it, nor an address or a path. Where it changes all the same, the
//! job is another one: parts go again, nothing is lost. What is asked, the first that there is: the UUID of
//! XFS, whose `fsid` is a device number; the `fsid` of `statfs` (ext4 and btrfs make it from their UUID, Ceph
//! from the cluster's), unless it is the device's number; size and type of a local file system.
//! Left out: telling two shares of NFS apart, which have no `fsid`: there the inode of the root must do.

use std::os::fd::{AsFd, BorrowedFd};

use haul_core::journal::RootId;
use rustix::fs::{StatVfs, fstat, fstatfs, fstatvfs};
use rustix::io::Errno;

use haul_base::sys;

/// See the module. Empty where the system says nothing.
pub(crate) fn identity(dir: impl AsFd) -> Vec<u8> {
    let dir = dir.as_fd();
    if let Some(unique) = unique(dir) {
        return unique;
    }
    match asked(dir) {
        Some((kind, stat, _)) => likely(kind, &stat),
        None => Vec::new(),
    }
}

/// The same, where it is one that no other file system has.
pub(crate) fn unique(dir: impl AsFd) -> Option<Vec<u8>> {
    let dir = dir.as_fd();
    if let Ok(uuid) = sys::xfs_uuid(dir) {
        return Some([b"xfs".as_slice(), &uuid].concat());
    }
    let (kind, stat, device) = asked(dir)?;
    numbered(kind, &stat, device)
}

/// What tells a destination root from all others: its inode, and behind that its file system, with a length.
/// So it delimits itself, as whatever a job's key is made of must.
pub(crate) fn root_id(dir: impl AsFd) -> Result<RootId, Errno> {
    let dir = dir.as_fd();
    Ok(joined(&identity(dir), fstat(dir)?.st_ino))
}

fn joined(volume: &[u8], ino: u64) -> RootId {
    let volume = if haul_mutant::removed("job-key-names-the-volume") { &[] } else { volume };
    let bytes = [&ino.to_le_bytes()[..], &(volume.len() as u64).to_le_bytes(), volume].concat();
    RootId::new(&bytes).expect("an identity is below 50 bytes")
}

/// Whether an identity is this directory's. Where its file system may change what it says of itself (its
/// size, say), the inode has to do.
pub fn is_of(root: &RootId, dir: impl AsFd) -> bool {
    let dir = dir.as_fd();
    let Ok(stat) = fstat(dir) else { return false };
    match unique(dir) {
        Some(volume) => *root == joined(&volume, stat.st_ino),
        None => root.as_bytes().first_chunk().is_some_and(|ino| u64::from_le_bytes(*ino) == stat.st_ino),
    }
}

fn asked(dir: BorrowedFd<'_>) -> Option<([u8; 8], StatVfs, u64)> {
    let kind = fstatfs(dir).ok()?.f_type as u64;
    Some((kind.to_le_bytes(), fstatvfs(dir).ok()?, fstat(dir).map_or(0, |stat| stat.st_dev)))
}

fn numbered(kind: [u8; 8], stat: &StatVfs, device: u64) -> Option<Vec<u8>> {
    let id = stat.f_fsid;
    (id != 0 && id != encoded(device)).then(|| [b"id".as_slice(), &kind, &id.to_le_bytes()].concat())
}

fn likely(kind: [u8; 8], stat: &StatVfs) -> Vec<u8> {
    // Without any id it is a server's, whose size may change by the hour (NFS over ZFS).
    let size = if stat.f_fsid == 0 { 0 } else { stat.f_blocks.saturating_mul(stat.f_frsize) };
    [b"type".as_slice(), &kind, &size.to_le_bytes()].concat()
}

/// A device number as the kernel makes an `fsid` of it (`huge_encode_dev`).
fn encoded(device: u64) -> u64 {
    let (major, minor) = (u64::from(rustix::fs::major(device)), u64::from(rustix::fs::minor(device)));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: an id that is a device number, which changes from boot to boot, is not taken; one that is made
    /// of a UUID is, and nothing else then.
    /// Method: answers of the kernel, made up from a real one.
    #[test]
    fn device_numbers_are_no_identity() {
        let dir = tempfile::tempdir().expect("tempdir");
        let real = fstatvfs(std::fs::File::open(dir.path()).expect("open")).expect("statvfs");
        let stat = |f_fsid, f_blocks| StatVfs { f_fsid, f_blocks, ..real };
        let kind = [1; 8];
        let (here, there) = (rustix::fs::makedev(253, 0), rustix::fs::makedev(253, 1));
        let of = |id, blocks, device| {
            let stat = stat(id, blocks);
            numbered(kind, &stat, device).unwrap_or_else(|| likely(kind, &stat))
        };
        assert_eq!(of(encoded(here), 9, here), of(encoded(there), 9, there), "another boot");
        assert_ne!(of(encoded(here), 9, here), of(encoded(here), 10, here), "another disk");
        assert_eq!(of(77, 9, here), of(77, 10, there), "a UUID");
        assert_ne!(of(77, 9, here), of(78, 9, here));
        assert_eq!(of(0, 9, here), of(0, 10, there), "a server that says nothing");
        assert_ne!(identity(std::fs::File::open(dir.path()).expect("open")), Vec::<u8>::new());
    }

    /// Goal: a directory is known again by its identity, and no other one takes it.
    /// Method: two directories of one file system; an inode number of another one.
    #[test]
    fn a_root_is_known_again() {
        let (one, two) = (tempfile::tempdir().expect("tempdir"), tempfile::tempdir().expect("tempdir"));
        let open = |dir: &tempfile::TempDir| std::fs::File::open(dir.path()).expect("open");
        let id = |dir: &tempfile::TempDir| root_id(open(dir)).expect("stat");
        assert_eq!(id(&one), id(&one));
        assert_ne!(id(&one), id(&two));
        assert!(is_of(&id(&one), open(&one)) && !is_of(&id(&one), open(&two)));
        assert!(!is_of(&RootId::new(&[7]).expect("short"), open(&one)), "of another kind of storage");
        assert_ne!(joined(b"a", 1), joined(b"b", 1));
    }
}
