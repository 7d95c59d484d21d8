//! What an earlier run left in a temporary, looked at by this one.
//!
//! In: temporaries that were taken over, ranges of them. Out: values of what storage gives back there; temporaries whose holes
//! are holes.
//! Invariants: nothing is taken from a journal; clean pages of a range are dropped before it is read, so that what was lost on
//! its way to storage is not taken for what is there, and after it, for nobody will read them soon. Ranges are read through the
//! cache: other ranges of the file are being written, in whatever mode.
//! Left out: what a value should be, which the session knows; dirty pages, which the next sync writes.

use std::os::fd::BorrowedFd;

use haul_core::digest::{Cv, DigestKind};
use haul_core::extents::ExtentMap;
use haul_core::transfer::op::SinkFile;
use haul_core::wire::Failure;
use rustix::fs::{Advice, FallocateFlags, SeekFrom};
use rustix::io::{Errno, retry_on_intr};

use super::engine::Sink;
use super::files::descriptor;
use super::verify::Back;

impl Sink {
    /// The values of what the temporary of `file` holds in these ranges, nodes of its tree; `None` where storage gives too
    /// little, or nothing.
    pub(super) fn check(
        &self,
        file: &SinkFile,
        kind: DigestKind,
        ranges: &[(u64, u64)],
    ) -> Result<Vec<Option<Cv>>, Failure> {
        let (_, temp, _) = self.files.fd_of(file.id)?;
        let fd = descriptor(&temp);
        let mut reader = Back::cached(fd);
        let mut values = Vec::with_capacity(ranges.len());
        for (offset, len) in ranges {
            self.check_over()?;
            drop_range(fd, *offset, *len);
            let whole = *offset == 0 && *len == file.size;
            // What cannot be read is not there; whoever writes it anew will hear if storage takes nothing either.
            values.push(reader.node(kind, (*offset, *len), whole, || self.check_over()).unwrap_or(None));
            drop_range(fd, *offset, *len);
        }
        Ok(values)
    }
}

/// Drops the clean pages of a range. A hint.
fn drop_range(fd: BorrowedFd<'_>, offset: u64, len: u64) {
    let _ = rustix::fs::fadvise(fd, offset, std::num::NonZeroU64::new(len), Advice::DontNeed);
}

/// Makes holes of what the map says are holes. False: this file system cannot, so that what lies there might be published.
pub(super) fn clear_holes(fd: BorrowedFd<'_>, map: &ExtentMap) -> bool {
    let size = rustix::fs::fstat(fd).map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0));
    let starts = map.extents().iter().map(|extent| extent.offset).chain([map.size()]);
    let ends = [0].into_iter().chain(map.extents().iter().map(|extent| extent.end()));
    for (from, to) in ends.zip(starts) {
        let mut at = from;
        while at < to.min(size) {
            // Where something lies that nobody should have written.
            at = match rustix::fs::seek(fd, SeekFrom::Data(at)) {
                Ok(data) if data < to => data,
                Ok(_) | Err(Errno::NXIO) => break,
                Err(_) => return false,
            };
            let end = match rustix::fs::seek(fd, SeekFrom::Hole(at)) {
                Ok(end) => end.min(to).max(at + 1),
                Err(_) => return false,
            };
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            if retry_on_intr(|| rustix::fs::fallocate(fd, punch, at, end - at)).is_err() {
                return false;
            }
            at = end;
        }
    }
    true
}
