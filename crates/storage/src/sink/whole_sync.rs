//! One sync of the file system for many small files.
//!
//! In: files that are written, and lie on the file system of the destination. Out: whether all of them are on
//! media.
//!
//! What must hold, and what that is built on:
//! - The kernel tells of an error of write-back at each descriptor that was open when it happened, once
//!   (Linux 5.8; before that `syncfs` says nothing of data). So there is one descriptor, which is opened
//!   before anything is written; its syncs are made one at a time; and once one of them failed there is no
//!   other, for whose files the error was it does not say: these are then synced one by one, through
//!   descriptors that were open when they were written, and each hears of its own.
//! - That the file system's journal, its data and the cache of its device are written by it: so of the file
//!   systems on a block device of this machine that are known for it, and not of one that lies over others or
//!   behind a network.
//! - What lies on another file system, for something is mounted below the destination, is told apart by its
//!   device.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use haul_base::kernel;
use haul_core::io::together::Together;
use haul_core::transfer::op::Inode;
use rustix::fs::{FsWord, Mode, OFlags, fstat, fstatfs, openat};
use rustix::io::{Result as OsResult, retry_on_intr};

use super::lock;
use super::stat::inode_of;
use super::tree::SinkTree;

/// ext2 to ext4, XFS, btrfs, f2fs.
const KNOWN: [FsWord; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];
/// From here on `syncfs` tells of data that could not be written.
const TELLS: (u32, u32) = (5, 8);

/// Syncs a file system; tests give other answers.
pub(super) type WholeSyncCall = Arc<dyn Fn(BorrowedFd<'_>) -> OsResult<()> + Send + Sync>;

/// See the module.
pub struct WholeSync {
    fd: OwnedFd,
    device: u64,
    way: Mutex<Together>,
    /// Held while a sync is under way; true: one failed.
    failed: Mutex<bool>,
    call: WholeSyncCall,
    /// Bytes in the memory of this machine that wait to be written.
    dirty: fn() -> u64,
}

impl WholeSync {
    /// Of the destination's file system, before anything is written there; `None`: that cannot be synced so
    /// that all is known of it.
    pub fn new(tree: &SinkTree) -> Option<WholeSync> {
        let call: WholeSyncCall = Arc::new(|fd| retry_on_intr(|| rustix::fs::syncfs(fd)));
        let is_known = fstatfs(&**tree.root()).is_ok_and(|stat| KNOWN.contains(&stat.f_type));
        (is_known && kernel::is_from(TELLS)).then(|| WholeSync::with(tree, call, dirty)).flatten()
    }

    /// Of any, by `call`, where so much is `dirty`.
    pub(super) fn with(tree: &SinkTree, call: WholeSyncCall, dirty: fn() -> u64) -> Option<WholeSync> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = openat(&**tree.root(), ".", flags, Mode::empty()).ok()?;
        let device = inode_of(&fstat(&fd).ok()?).dev;
        Some(WholeSync { fd, device, way: Mutex::default(), failed: Mutex::default(), call, dirty })
    }

    /// It is on media behind [`WholeSync::sync`].
    pub(super) fn covers(&self, inode: Inode) -> bool {
        inode.dev == self.device || haul_mutant::removed("whole-syncs-are-of-one-device")
    }

    /// How many of `files`, which hold `bytes` together, are synced one by one; the others go together.
    pub(super) fn plan(&self, files: usize, bytes: u64) -> usize {
        lock(&self.way).plan(files, (self.dirty)().saturating_sub(bytes))
    }

    /// So many were synced one by one since then.
    pub(super) fn each_took(&self, files: usize, since: Instant) {
        lock(&self.way).each_took(files, since.elapsed());
    }

    /// Has all on media that was written before this was called; it was for so many files. False: that is not
    /// known of any of them.
    pub(super) fn sync(&self, files: usize) -> bool {
        let mut failed = lock(&self.failed);
        if *failed && !haul_mutant::removed("whole-syncs-fail-once") {
            return false;
        }
        // Stands if the sync panics: nobody knows what it heard.
        *failed = true;
        let (call, begun) = (self.call.clone(), Instant::now());
        let is_made =
            !(haul_mutant::removed("whole-syncs-are-made") || haul_mutant::removed("files-are-synced"));
        *failed = is_made && call(self.fd.as_fd()).is_err();
        let mut way = lock(&self.way);
        match *failed {
            true => way.failed(),
            false => way.all_took(files, begun.elapsed()),
        }
        !*failed
    }

    /// What both ways cost, in words, where they were compared.
    pub(super) fn report(&self) -> Option<String> {
        let ms = |time: std::time::Duration| format!("{:.2} ms", time.as_secs_f64() * 1e3);
        if *lock(&self.failed) {
            return Some("one by one, for a sync of the file system failed".into());
        }
        let (each, all) = lock(&self.way).costs()?;
        Some(format!("a sync of the file system takes {}, one of a file {}", ms(all), ms(each)))
    }
}

/// Bytes in the memory of this machine that wait to be written, or are being written; 0: it does not say.
fn dirty() -> u64 {
    let told = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let of = |line: &str| {
        let (name, rest) = line.split_once(':')?;
        let counts = matches!(name, "Dirty" | "Writeback");
        let kib: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
        counts.then_some(kib.saturating_mul(1024))
    };
    told.lines().filter_map(of).fold(0, u64::saturating_add)
}
