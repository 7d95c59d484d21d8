//! The page cache as it was found: pages of what we write leave it.
//!
//! In: files that were written through the cache. Out: their pages are on their way to media early, and gone
//! after the sync. Every page of a temporary is ours, so whole files can be dropped; other people's stay.
//!
//! Two ways. Writes with `RWF_DONTCACHE` (Linux 6.14) start their own write-back, and the kernel drops each
//! page when it is on media. Where a file system refuses that, write-back is started by `sync_file_range`
//! behind each write, and the pages are dropped after the commit's sync, when they are clean.
//!
//! Left out: small files and refusing file systems without durability. Their pages stay until the kernel
//! needs the room; to drop them they would have to be clean, and waiting for that is what the user declined.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::Advice;
use rustix::io::{Errno, retry_on_intr};

use haul_base::sys;

/// How written pages leave the cache; one for a session.
#[derive(Default)]
pub(super) struct Cache {
    /// A write with `RWF_DONTCACHE` was refused.
    refused: AtomicBool,
}

impl Cache {
    /// Whether writes ask that their pages do not stay.
    pub(super) fn asks_uncached(&self) -> bool {
        !self.refused.load(Ordering::Relaxed)
    }

    pub(super) fn on_refused(&self) {
        self.refused.store(true, Ordering::Relaxed);
    }

    /// For people.
    pub(super) fn report(&self) -> &'static str {
        match self.asks_uncached() {
            true => "written pages leave the cache (RWF_DONTCACHE)",
            false => "written pages leave the cache (early write-back, dropped after the sync)",
        }
    }
}

/// Starts write-back of a range that was just written, where that can be asked for.
///
/// # Errors
/// Bytes have no place to go to. The kernel may give them up then, and tell nobody else: a sync behind it can
/// be good.
pub(super) fn start_write_back(fd: impl AsFd, offset: u64, len: u64) -> rustix::io::Result<()> {
    match retry_on_intr(|| sys::sync_file_range_write(fd.as_fd(), offset, len)) {
        Err(Errno::SPIPE | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(()),
        started => started,
    }
}

/// Drops the clean pages of the file. A hint too.
pub(super) fn drop_pages(fd: impl AsFd) {
    let _ = rustix::fs::fadvise(fd, 0, None, Advice::DontNeed);
}
