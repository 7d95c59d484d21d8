//! Where a file has data, and the digest of one with holes.
//!
//! In: files that may have holes. Out: extent maps; sparse roots, and values of parts with them.
//! Invariants: a file system that does not know `SEEK_DATA`, or answers it with nonsense, has data
//! everywhere; what is left out of a digest was seen to be a hole or zeros.
//! Left out: FIEMAP. Extents that are allocated and not written are what the seeks say they are.

use std::os::fd::BorrowedFd;

use haul_core::digest::{SubtreeSet, subtrees};
use haul_core::extents::{DataExtent, ExtentMap, MapMaker};
use haul_core::ids::{FileId, Generation};
use haul_core::transfer::op::HashOk;
use haul_core::wire::{self, Failure};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::open::OpenFile;
use super::read::Reader;
use haul_base::digest::Hasher;

/// Bytes that are looked through for zeros at a time.
const ZEROS_LEN: usize = 256 * 1024;

impl Reader {
    /// The map of a file of this generation.
    pub(super) fn map(&mut self, id: FileId, generation: Generation) -> Result<ExtentMap, Failure> {
        let view = self.view(id, generation)?;
        let open = self.open(id, &view)?;
        self.map_of(id, &open, view.size())
    }

    fn map_of(&self, id: FileId, open: &OpenFile, size: u64) -> Result<ExtentMap, Failure> {
        match self.storage(|| seek_data(open.fd(), (self.tree.base(), size), || self.stopped())) {
            Ok(Some(map)) => Ok(map),
            Ok(None) => Err(self.own(wire::FailureKind::Read, "find the holes of", id, "stopped")),
            Err(errno) => Err(self.tree.failed(wire::FailureKind::Read, "find the holes of", id, errno)),
        }
    }

    /// The sparse root of a file under this map, which is of its size, and the values of `parts`; see
    /// `SourceOp::HashFile`.
    pub(super) fn hash_sparse(
        &mut self,
        id: FileId,
        open: &OpenFile,
        map: &ExtentMap,
        parts: &[(u64, u64)],
    ) -> Result<HashOk, Failure> {
        let all = self.hash_parts(id, open, map, parts)?;
        // What the map calls a hole may have been filled meanwhile.
        for extent in self.map_of(id, open, map.size())?.extents() {
            for (offset, len) in holes_in(map, extent) {
                if !self.is_zeros(id, open, offset, len)? {
                    let what = "a hole of it was filled while it was read";
                    return Err(self.own(wire::FailureKind::Changed, "hash", id, what));
                }
            }
        }
        Ok(all)
    }

    /// The root of what the map calls data, and the values of `parts`, which are nodes of its tree: each byte
    /// is read once for both.
    pub(super) fn hash_parts(
        &mut self,
        id: FileId,
        open: &OpenFile,
        map: &ExtentMap,
        parts: &[(u64, u64)],
    ) -> Result<HashOk, Failure> {
        let mut digest = SubtreeSet::with_map(self.shared.digest, map.clone());
        let (mut parts, mut cvs) = (parts.iter().copied().peekable(), Vec::with_capacity(parts.len()));
        for extent in map.extents() {
            let (mut at, end) = (extent.offset, extent.end());
            while at < end {
                let part = parts.next_if(|(offset, _)| *offset == at);
                // What lies between them is cut where the next one begins.
                let next = parts.peek().map_or(end, |(offset, _)| *offset).clamp(at, end);
                let between = if next > at { next - at } else { end - at };
                let len = part.map_or(between, |(_, len)| len);
                for (offset, len) in subtrees(at, len, at + len == map.size()) {
                    let mut hasher = Hasher::new(self.shared.digest, offset);
                    self.hash_range(id, open, &mut hasher, offset, len)?;
                    let whole = offset == 0 && len == map.size();
                    let value = if whole { hasher.root() } else { hasher.value() };
                    let taken = digest.insert(offset, len, value);
                    debug_assert!(taken.is_ok(), "subtrees of data are nodes of the tree");
                    cvs.extend(part.map(|_| value));
                }
                at += len;
            }
        }
        let text = "has no holes any more";
        let root = digest.root().ok_or_else(|| self.own(wire::FailureKind::Changed, "hash", id, text))?;
        Ok(HashOk { root, cvs })
    }

    fn is_zeros(&mut self, id: FileId, open: &OpenFile, offset: u64, len: u64) -> Result<bool, Failure> {
        let base = self.tree.base();
        let mut buffer = vec![0; ZEROS_LEN];
        let mut done = 0;
        while done < len {
            let part = &mut buffer[..(len - done).min(ZEROS_LEN as u64) as usize];
            self.step(offset + done);
            let end =
                self.storage(|| self.shared.pages.read_at(open.fd(), open.dev(), part, base + offset + done));
            self.full(id, offset + done, end)?;
            if self.stopped() {
                return Err(self.own(wire::FailureKind::Read, "read", id, "stopped"));
            }
            if part.iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            done += part.len() as u64;
        }
        Ok(true)
    }
}

/// The map of `size` bytes of an open file from `base` on, as the file system tells it. `None`: it was
/// stopped.
fn seek_data(
    fd: BorrowedFd<'_>,
    (base, size): (u64, u64),
    stopped: impl Fn() -> bool,
) -> Result<Option<ExtentMap>, Errno> {
    // What lies outside is cut off.
    let seek = |from: SeekFrom| seek(fd, from).map(|at| at.saturating_sub(base).min(size));
    let mut maker = MapMaker::new(size);
    let mut at = 0;
    while at < size {
        if stopped() {
            return Ok(None);
        }
        let start = match seek(SeekFrom::Data(base + at)) {
            // The next data lies behind the part.
            Ok(start) if start >= size => break,
            Ok(start) => start,
            // Nothing but a hole up to the end.
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(Some(ExtentMap::full(size))),
            Err(errno) => return Err(errno),
        };
        let end = match seek(SeekFrom::Hole(base + start)) {
            Ok(end) => end,
            // It became shorter; the look after the last read will say so.
            Err(Errno::NXIO) => size,
            Err(errno) => return Err(errno),
        };
        if start < at || end <= start {
            return Ok(Some(ExtentMap::full(size)));
        }
        maker.push(start, end);
        at = end;
    }
    Ok(Some(maker.finish()))
}

/// What of `extent` the map calls a hole, as offset and length.
fn holes_in(map: &ExtentMap, extent: &DataExtent) -> impl Iterator<Item = (u64, u64)> {
    let (mut at, end) = (extent.offset, extent.end());
    std::iter::from_fn(move || {
        while let Some(known) = map.at(at) {
            at = known.end();
        }
        let start = at;
        at = map.next(start).map_or(end, |next| next.offset.min(end));
        (start < end).then(|| (start, at - start))
    })
}
