//! A file that the source announced: where it stands between its announcement and its end.
//!
//! In: nothing; the other parts of the machine write its fields. Out: the object to read next.
//! Invariants: an object is given out once, unless it is asked for again; `queue` says in which queue it waits, and
//! its id is passed over wherever else it is left.
//! Left out: the steps from phase to phase, which are beside their events.

use std::collections::VecDeque;

use crate::digest::{Subtree, SubtreeSet};
use crate::entry::{Fingerprint, Meta, Name};
use crate::ids::{DirId, Generation};
use crate::transfer::{SMALL_LEN_MAX, piece_at};

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(super) enum Phase {
    /// Announced; where it has data is being found out, and then told.
    Mapping,
    /// Announced; the sink's `FileState` decides.
    AwaitState,
    /// Held subtrees are being compared with the source.
    Verifying,
    /// Objects are read and sent.
    Sending,
    /// All read; a look at the fingerprint is under way or due.
    Looking,
    /// ctime alone changed; the whole file is hashed.
    Hashing,
    /// Sealed; the sink will say how it ended.
    Sealed,
    /// Changed while it was read; waits for its second try.
    Retry,
    /// A new fingerprint is being taken for the second try.
    Refreshing,
}

pub(super) struct File {
    pub(super) generation: Generation,
    pub(super) parent: DirId,
    pub(super) name: Name,
    pub(super) meta: Meta,
    pub(super) fingerprint: Fingerprint,
    pub(super) object_size: u32,
    pub(super) phase: Phase,
    /// Chaining values of everything that was read or is held at the sink.
    pub(super) digest: SubtreeSet,
    pub(super) held: Vec<Subtree>,
    /// Next offset to read for the first time.
    pub(super) cursor: u64,
    /// Offsets of pieces to read again.
    pub(super) again: VecDeque<u64>,
    pub(super) reads: u32,
    /// A look or a hash of this generation is under way.
    pub(super) checking: bool,
    /// The look that is due must begin after the one that is under way: more was read since.
    pub(super) look_again: bool,
    /// Bytes of it that the sink said are on media.
    pub(super) durable: u64,
    /// How often the file had been sealed (or was about to be) before the next read.
    pub(super) pass: u16,
    pub(super) tries: u8,
    pub(super) queue: Queue,
    /// How often the sink asked for objects of it again.
    pub(super) resends: u64,
}

/// Where a file waits to be read.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(super) enum Queue {
    None,
    /// Whole, in a bundle; its size is counted in `small_bytes`.
    Small,
    /// By objects.
    Large,
}

impl File {
    pub(super) fn size(&self) -> u64 {
        self.fingerprint.size
    }
    pub(super) fn is_small(&self) -> bool {
        self.size() <= SMALL_LEN_MAX && self.size() <= u64::from(self.object_size)
    }
    /// The object that holds the byte at `at`, or the piece of it that is data.
    pub(super) fn piece(&self, at: u64) -> Option<(u64, u32)> {
        let (offset, len) = piece_at(self.size(), self.digest.map(), self.object_size, at)?;
        Some((offset, u32::try_from(len).expect("an object's length")))
    }
    /// The next object to read: offset and length.
    pub(super) fn next_object(&mut self) -> Option<(u64, u32)> {
        if let Some(offset) = self.again.pop_front() {
            return self.piece(offset);
        }
        let (start, _) = self.digest.next_missing(self.cursor)?;
        let (offset, len) = self.piece(start)?;
        self.cursor = offset + u64::from(len);
        Some((offset, len))
    }
    pub(super) fn has_unread(&self) -> bool {
        !self.again.is_empty() || self.digest.next_missing(self.cursor).is_some()
    }
}
