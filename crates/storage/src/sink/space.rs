//! Space for a file before its data comes.
//!
//! In: the descriptor of a new or adopted temporary, its size, where data will lie. Out: blocks, or the word
//! that this file system gives none in advance, or the error that the file will not fit.
//!
//! What must hold: zeros are never written. Raw `fallocate` says so where a file system cannot allocate
//! (the C library would write every block then), and where even a longer size means
//! zeros on media (FAT and its kin know no holes), the size is left to the writes. Where the file system
//! compresses, nothing is allocated: what fits compressed must not fail for its length. Where it lies in
//! memory, room is looked for and not taken: taking clears each page, while all writes to the file wait, and
//! its pages have no neighbours to lie with. Left out: small files. One write makes them, so there is nothing
//! to tear apart.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use haul_core::transfer::SMALL_LEN_MAX;
use haul_core::wire::{Failure, FailureKind};
use rustix::fs::{FallocateFlags, FsWord, IFlags};
use rustix::io::{Errno, Result, retry_on_intr};

use super::{fault, lock};
use haul_base::mounts::Mount;

/// Magic numbers of file systems that fill a longer size with zeros: FAT, exFAT, HFS, HFS+.
const FILLS_WITH_ZEROS: [FsWord; 4] = [0x4d44, 0x2011_bab0, 0x4244, 0x482b];

/// Magic numbers of file systems that compress by options of theirs: btrfs, bcachefs, ZFS. ZFS says neither
/// for which files nor lets blocks be kept for one, so that there is nothing to gain.
const BTRFS: FsWord = 0x9123_683e;
const BCACHEFS: FsWord = 0xca45_1a4e_u32 as FsWord;
const ZFS: FsWord = 0x2fc1_2fc1;

/// Magic numbers of file systems in memory: tmpfs, ramfs.
const IN_MEMORY: [FsWord; 2] = [0x0102_1994, 0x8584_58f6_u32 as FsWord];

/// Whether what is written to the file may be compressed: then blocks in advance would hold all of its
/// length, and on btrfs keep it from being compressed at all.
fn compresses(fd: impl AsFd) -> bool {
    let fd = fd.as_fd();
    let magic = rustix::fs::fstatfs(fd).map_or(0, |stat| stat.f_type);
    // A property of the file, mostly from its directory.
    let marked = || rustix::fs::ioctl_getflags(fd).is_ok_and(|flags| flags.contains(IFlags::COMPRESSED));
    let mounted = || {
        let mount = Mount::of(fd).ok().flatten();
        mount.is_some_and(|mount| compresses_by(&mount.options))
    };
    match magic {
        ZFS => true,
        BTRFS | BCACHEFS => marked() || mounted(),
        _ => marked(),
    }
}

/// Options of a mount that has files compressed: `compress=zstd:3`, `compress-force`, `compression=lz4`.
fn compresses_by(options: &str) -> bool {
    options.split(',').any(|option| {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        matches!(name, "compress" | "compress-force" | "compression") && !matches!(value, "no" | "none")
    })
}

/// What became of a file's space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    Allocated,
    /// The file system allocates nothing in advance.
    Unsupported,
    /// It lies in memory, and has room for the file now.
    InMemory,
}

/// Gives the file its full `size` and allocates blocks for its `extents` of data (offset and length; `None`:
/// all of it). What the file holds already stays as it is.
///
/// Edge: extents are cut to the size. Nothing that is left out of them is allocated.
///
/// # Errors
/// `ENOSPC`, `EDQUOT`, `EFBIG`: it will not fit. The file is as long as before then.
pub fn preallocate(fd: impl AsFd, size: u64, extents: Option<&[(u64, u64)]>) -> Result<Space> {
    let fd = fd.as_fd();
    let magic = rustix::fs::fstatfs(fd).map_or(0, |stat| stat.f_type);
    if FILLS_WITH_ZEROS.contains(&magic) {
        return Ok(Space::Unsupported);
    }
    let stat = rustix::fs::fstat(fd)?;
    let before = stat.st_size as u64;
    retry_on_intr(|| rustix::fs::ftruncate(fd, size))?;
    // Beyond the size an extent would make the file longer.
    let all = [(0, size)];
    let cut = |(offset, len): &(u64, u64)| (*offset, (*len).min(size.saturating_sub(*offset)));
    let extents = extents.unwrap_or(&all).iter().map(cut).filter(|(_, len)| *len > 0);
    let need = extents.clone().fold(0, |sum: u64, (_, len)| sum.saturating_add(len));
    let fits = fits(fd, need.saturating_sub(stat.st_blocks as u64 * 512));
    if fits && IN_MEMORY.contains(&magic) {
        return Ok(Space::InMemory);
    }
    for (offset, len) in extents {
        // What cannot fit is not tried: until it fails it would take all the room that others need. One block
        // tells whether the file system allocates at all, for only then is it an error.
        let len = if fits { len } else { 1 };
        match retry_on_intr(|| rustix::fs::fallocate(fd, FallocateFlags::empty(), offset, len)) {
            Ok(()) if fits => {}
            told @ (Ok(()) | Err(Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => {
                // Gives back what was allocated, so that what is told to be free is.
                let _ = retry_on_intr(|| rustix::fs::ftruncate(fd, before));
                return Err(told.err().unwrap_or(Errno::NOSPC));
            }
            // EOPNOTSUPP, ENOSYS, EINVAL by file systems and kernels, EPERM by sandboxes. What is wrong
            // beyond that the writes will tell.
            Err(_) => return Ok(Space::Unsupported),
        }
    }
    Ok(Space::Allocated)
}

/// Whether so many more bytes could be had, as far as the file system tells.
pub(crate) fn fits(fd: impl AsFd, need: u64) -> bool {
    match rustix::fs::fstatvfs(fd) {
        // Some network file systems tell nothing.
        Ok(room) if room.f_blocks > 0 => need <= room.f_bfree.saturating_mul(room.f_frsize),
        _ => true,
    }
}

/// Who gets space in advance, in one session.
pub(super) struct Spaces {
    /// `--no-preallocate`.
    off: bool,
    /// File systems (by device) that allocate nothing in advance, and files that went without for it.
    unsupported: Mutex<BTreeMap<u64, u64>>,
    /// Files that will be compressed.
    compressed: AtomicU64,
    in_memory: AtomicU64,
    allocated: AtomicU64,
}

impl Spaces {
    pub(super) fn new(off: bool) -> Spaces {
        Spaces {
            off,
            unsupported: Mutex::default(),
            compressed: AtomicU64::new(0),
            in_memory: AtomicU64::new(0),
            allocated: AtomicU64::new(0),
        }
    }

    /// Makes room for a file's data, where that is of use. `path` is for the failure.
    pub(super) fn reserve(
        &self,
        fd: impl AsFd,
        device: u64,
        size: u64,
        extents: Option<&[(u64, u64)]>,
        path: impl Fn() -> String,
    ) -> std::result::Result<(), Failure> {
        if self.off || size <= SMALL_LEN_MAX {
            return Ok(());
        }
        if let Some(files) = lock(&self.unsupported).get_mut(&device) {
            *files += 1;
            return Ok(());
        }
        if compresses(&fd) && !haul_mutant::removed("room-for-compression") {
            self.compressed.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        match preallocate(&fd, size, extents) {
            Ok(Space::Allocated) => {
                self.allocated.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Ok(Space::InMemory) => {
                self.in_memory.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Ok(Space::Unsupported) => {
                *lock(&self.unsupported).entry(device).or_default() += 1;
                Ok(())
            }
            Err(errno) => {
                let need = extents.map_or(size, |list| list.iter().map(|(_, len)| len).sum());
                let path = format!("the {need} bytes of {}", path());
                Err(fault::os_at(FailureKind::Create, "allocate", &path, errno, fd))
            }
        }
    }

    /// For people: what was done, and why not.
    pub(super) fn report(&self) -> String {
        if self.off {
            return "no (as asked)".into();
        }
        let count = |files: &AtomicU64| files.load(Ordering::Relaxed);
        let allocated = count(&self.allocated);
        let without = [
            (count(&self.compressed), "the file system compresses"),
            (count(&self.in_memory), "the file system is in memory, and has room"),
            (lock(&self.unsupported).values().sum(), "the file system allocates nothing in advance"),
        ];
        let without: Vec<String> = without
            .iter()
            .filter(|(files, _)| *files > 0)
            .map(|(files, why)| format!("{why}; {files} files"))
            .collect();
        match (allocated, without.is_empty()) {
            (0, true) => "no (no large file)".into(),
            (_, true) => format!("{allocated} files (blocks of one file lie together)"),
            (0, false) => format!("no ({})", without.join(", ")),
            _ => format!("{allocated} files; no others ({})", without.join(", ")),
        }
    }
}

#[cfg(test)]
#[path = "space_tests.rs"]
mod tests;
