//! Reading back what was written, before it gets its name; and what an earlier run left in a temporary.
//!
//! In: a temporary whose data is synced, and the digest that the source and this end agree on. Out: whether
//! storage gives back those bytes. Read past the page cache where the file system knows direct I/O; else the
//! file's pages were dropped just before, so that they come from storage too.
//! In: temporaries that were taken over, ranges of them. Out: values of what storage gives back there.
//! Invariants: nothing is taken from a journal; clean pages of a range are dropped before it is read, so that
//! what was lost on its way to storage is not taken for what is there, and after it, for nobody will read
//! them soon. Ranges are read through the cache: other ranges of the file are being written, in whatever
//! mode.
//! Left out: holes, which nobody wrote; what a disk's own cache holds; what a value should be, which the
//! session knows; dirty pages, which the next sync writes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use haul_core::digest::{Cv, DigestKind, Root, SubtreeSet, subtrees};
use haul_core::transfer::op::SinkFile;
use haul_core::wire::{Failure, FailureKind};
use rustix::fs::Advice;
use rustix::io::{Errno, pread, retry_on_intr};

use super::Sink;
use crate::sink::cache::drop_pages;
use crate::sink::fault;
use crate::sink::files::descriptor;
use haul_base::digest::Hasher;

/// Bytes that are read and hashed at a time.
const STEP: usize = 1 << 20;
/// What direct reads are aligned to, in memory and in the file; no storage asks for more.
const ALIGN: usize = 4096;

impl Sink {
    /// Holds `file`, whose temporary is open as `fd` and synced, against `root`.
    ///
    /// # Errors
    /// FailureKind `digest`: storage gives back other bytes. FailureKind `read`: it gives none.
    pub(super) fn read_back(
        &self,
        file: &SinkFile,
        fd: BorrowedFd<'_>,
        (kind, root): (DigestKind, Root),
    ) -> Result<(), Failure> {
        drop_pages(fd);
        let dir = self.tree.dirfd(file.parent)?;
        let direct = self.tree.jail().open_direct(&dir, &self.files.written_name(file), fd);
        let mut reader =
            Back { fd, base: self.files.base(), direct: direct.ok(), room: vec![0; STEP + ALIGN] };
        let found = reader.digest(file, kind, || self.check_over());
        // What was read through the cache need not stay there.
        drop_pages(fd);
        let path = || self.tree.path_of(file.parent, &file.name);
        let found = found.map_err(|error| match error {
            Stop::Os(errno) => fault::os_at(FailureKind::Read, "read back", &path(), errno, fd),
            Stop::Over(failure) => failure,
        })?;
        match found == Some(root) || haul_mutant::removed("read-back-decides") {
            true => Ok(()),
            false => {
                let text = format!(
                    "verify {}: storage gives back other bytes than were written; it was not published",
                    path()
                );
                Err(fault::failure(FailureKind::Digest, 0, text))
            }
        }
    }
}

impl Sink {
    /// The values of what the temporary of `file` holds in these ranges, nodes of its tree; `None` where
    /// storage gives too little, or nothing.
    pub(super) fn check(
        &self,
        file: &SinkFile,
        kind: DigestKind,
        ranges: &[(u64, u64)],
    ) -> Result<Vec<Option<Cv>>, Failure> {
        let (_, temp, _) = self.files.fd_of(file.id)?;
        let fd = descriptor(&temp);
        let base = self.files.base();
        let mut reader = Back::cached(fd, base);
        let mut values = Vec::with_capacity(ranges.len());
        for (offset, len) in ranges {
            self.check_over()?;
            drop_range(fd, base + *offset, *len);
            let whole = *offset == 0 && *len == file.size;
            // What cannot be read is not there; whoever writes it anew will hear if storage takes nothing
            // either.
            values.push(reader.node(kind, (*offset, *len), whole, || self.check_over()).unwrap_or(None));
            drop_range(fd, base + *offset, *len);
        }
        Ok(values)
    }
}

/// Drops the clean pages of a range. A hint.
fn drop_range(fd: BorrowedFd<'_>, offset: u64, len: u64) {
    let _ = rustix::fs::fadvise(fd, offset, std::num::NonZeroU64::new(len), Advice::DontNeed);
}

enum Stop {
    Os(Errno),
    Over(Failure),
}

struct Back<'a> {
    fd: BorrowedFd<'a>,
    /// Where the bytes of the entry begin.
    base: u64,
    direct: Option<OwnedFd>,
    room: Vec<u8>,
}

impl<'a> Back<'a> {
    /// A reader through the page cache.
    fn cached(fd: BorrowedFd<'a>, base: u64) -> Back<'a> {
        Back { fd, base, direct: None, room: vec![0; STEP + ALIGN] }
    }

    /// The value of one node of the file's tree, of its root if it is the `whole` file; `None` if storage
    /// holds too little.
    fn node(
        &mut self,
        kind: DigestKind,
        (offset, len): (u64, u64),
        whole: bool,
        over: impl Fn() -> Result<(), Failure>,
    ) -> Result<Option<Cv>, Stop> {
        let mut hasher = Hasher::new(kind, offset);
        let held = self.hash(&mut hasher, offset, len, &over)?;
        Ok(held.then(|| if whole { hasher.root() } else { hasher.value() }))
    }

    /// The digest of what storage holds; `None` if it holds too little.
    fn digest(
        &mut self,
        file: &SinkFile,
        kind: DigestKind,
        over: impl Fn() -> Result<(), Failure>,
    ) -> Result<Option<Root>, Stop> {
        let Some(map) = &file.map else {
            let mut hasher = Hasher::new(kind, 0);
            return Ok(self.hash(&mut hasher, 0, file.size, &over)?.then(|| hasher.root()));
        };
        let mut set = SubtreeSet::with_map(kind, map.clone());
        for extent in map.extents() {
            for (offset, len) in subtrees(extent.offset, extent.len, extent.end() == map.size()) {
                let whole = offset == 0 && len == map.size();
                let Some(value) = self.node(kind, (offset, len), whole, &over)? else { return Ok(None) };
                if set.insert(offset, len, value).is_err() {
                    return Ok(None);
                }
            }
        }
        Ok(set.root())
    }

    /// False: the file ends too early.
    fn hash(
        &mut self,
        hasher: &mut Hasher,
        offset: u64,
        len: u64,
        over: &impl Fn() -> Result<(), Failure>,
    ) -> Result<bool, Stop> {
        let mut at = offset;
        let end = offset + len;
        while at < end {
            // It may have hung in a read until nobody waits any more.
            over().map_err(Stop::Over)?;
            let want = (end - at).min(STEP as u64) as usize;
            let got = self.read(self.base + at, want).map_err(Stop::Os)?;
            if got == 0 {
                return Ok(false);
            }
            let start = aligned(&self.room);
            hasher.update(&self.room[start..start + got]);
            at += got as u64;
        }
        Ok(true)
    }

    /// Bytes at `at`, at most `want`, into the aligned part of the room.
    fn read(&mut self, at: u64, want: usize) -> Result<usize, Errno> {
        let start = aligned(&self.room);
        // Off the grid after a short read, or refused once: through the cache, whose pages were dropped.
        if let Some(direct) = self.direct.as_ref().filter(|_| at.is_multiple_of(ALIGN as u64)) {
            let room = &mut self.room[start..start + want.next_multiple_of(ALIGN)];
            match retry_on_intr(|| pread(direct, &mut *room, at)) {
                Ok(got) => return Ok(got.min(want)),
                Err(Errno::INVAL) => self.direct = None,
                Err(errno) => return Err(errno),
            }
        }
        let room = &mut self.room[start..start + want];
        retry_on_intr(|| pread(self.fd.as_fd(), &mut *room, at))
    }
}

/// Where in `room` a multiple of [`ALIGN`] lies in memory; [`STEP`] bytes follow.
fn aligned(room: &[u8]) -> usize {
    room.as_ptr().align_offset(ALIGN).min(ALIGN)
}
