//! Room that the log takes in advance behind its end, and its segments.
//!
//! Invariant: what has bytes leaves room behind it for what has none, where the file system gives blocks in
//! advance; a segment that could not be begun is not there.

use std::sync::{Arc, PoisonError};

use rustix::fs::FallocateFlags;
use rustix::io::{Errno, retry_on_intr};

use super::{Segment, Shared, Tail, segment_name};
use crate::reserve::is_full;

/// So much more is taken in advance at a time, bytes.
const ROOM_STEP: u64 = 256 << 10;

impl Shared {
    /// The current segment has blocks up to `to` and for `room` more bytes, if the file system gives any in
    /// advance.
    pub(super) fn take_room(&self, tail: &mut Tail, to: u64, room: u64) -> Result<(), Errno> {
        if tail.no_room || tail.room_to >= to + room {
            return Ok(());
        }
        let from = tail.room_to;
        let take = |end: u64| {
            let (fd, keep) = (&tail.current.fd, FallocateFlags::KEEP_SIZE);
            retry_on_intr(|| rustix::fs::fallocate(fd, keep, from, end - from)).map(|()| end)
        };
        let least = to + room;
        match take(least + ROOM_STEP).or_else(|errno| if is_full(errno) { take(least) } else { Err(errno) }) {
            Ok(end) => tail.room_to = end,
            Err(errno) if is_full(errno) => return Err(errno),
            Err(_) => tail.no_room = true,
        }
        Ok(())
    }

    /// What was taken in advance is free again.
    pub(super) fn give_room(&self, tail: &mut Tail) -> Result<(), Errno> {
        let len = rustix::fs::fstat(&tail.current.fd)?.st_size as u64;
        retry_on_intr(|| rustix::fs::ftruncate(&tail.current.fd, len))?;
        tail.room_to = tail.end;
        Ok(())
    }

    /// The next record begins a segment, which has `room` in advance.
    ///
    /// # Errors
    /// The current one goes on.
    pub(super) fn begin_segment(&self, tail: &mut Tail, room: u64) -> Result<(), Errno> {
        let name = segment_name(tail.next);
        // An attempt that failed may have left one.
        let begun = self.dir.empty_file(&name).and_then(|fd| match tail.no_room {
            true => Ok((fd, 0)),
            false => {
                match retry_on_intr(|| rustix::fs::fallocate(&fd, FallocateFlags::KEEP_SIZE, 0, room.max(1)))
                {
                    Err(errno) if is_full(errno) => Err(errno),
                    Err(_) => Ok((fd, 0)),
                    Ok(()) => Ok((fd, room)),
                }
            }
        });
        let (fd, room_to) = match begun {
            Ok(begun) => begun,
            Err(errno) => {
                // Between segments with records it would look like one that lost them.
                if let Err(stays) = self.dir.remove(&name)
                    && stays != Errno::NOENT
                {
                    tail.failed = Some(stays);
                }
                return Err(errno);
            }
        };
        // What is left of the one before goes to others; its mark is where it ends.
        let _ = self.give_room(tail);
        tail.room_to = room_to;
        let segment = Arc::new(Segment::new(tail.next, tail.next, fd, Vec::new(), 0));
        self.segments.write().unwrap_or_else(PoisonError::into_inner).push_back(segment.clone());
        tail.unsynced.push(segment.clone());
        tail.has_new_names = true;
        tail.current = segment;
        tail.end = 0;
        Ok(())
    }
}

/// How far a segment has blocks from an earlier life, or a little less: a few of a file's blocks are the file
/// system's own.
pub(super) fn blocks_to(segment: &Segment) -> u64 {
    let blocks = rustix::fs::fstat(&segment.fd).map_or(0, |stat| stat.st_blocks as u64);
    (blocks * 512).saturating_sub(16 << 10)
}
