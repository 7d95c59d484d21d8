//! A file that the source announced: where it stands between its announcement and its end.
//!
//! In: nothing; the other parts of the machine write its fields. Out: what is to be read of an object.
//! Invariants: a piece is given out once, unless it is asked for again; `queue` says whether it waits for a
//! bundle, and its id is passed over wherever else it is left; `left` objects of it are in the schedule or
//! waiting for room there.
//! Left out: the steps from phase to phase, which are beside their events.

use alloc::sync::Arc;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use super::held::Held;
use crate::digest::{Cv, Root, SubtreeSet};
use crate::entry::{Extras, Fingerprint, Meta, Name};
use crate::ids::{DirId, Generation, SinkTarget, TargetId, Time};
use crate::layout::Layout;
use crate::transfer::op::HashOk;
use crate::transfer::{SMALL_LEN_MAX, piece_at};

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(super) enum SourcePhase {
    /// Announced; where it has data is being found out, and then told.
    Mapping,
    /// Announced; the sink's `FileState` decides.
    AwaitState,
    /// Held subtrees are being compared with the source.
    Verifying,
    /// To be sent, but changed so recently that what is read now proves nothing.
    Young,
    /// Objects are read and sent.
    Sending,
    /// All read; a look at the fingerprint is under way or due.
    Looking,
    /// ctime alone changed; the whole file is hashed, or is to be when its ctime is old enough. Or it grew,
    /// and what was read of it is hashed a second time.
    Hashing,
    /// Sealed; the sink will say how it ended.
    Sealed,
    /// The sink cloned it, and will say how it ended. Nothing of it was read.
    Cloned,
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
    /// What else was announced of it, and is again.
    pub(super) extras: Extras,
    /// What is read before proves nothing, see `young`.
    pub(super) not_before: Time,
    /// As a look showed it when its ctime alone had changed; `None`: it grows, and may be longer each time.
    pub(super) seen: Option<Fingerprint>,
    /// The longest that a look showed of a file of which the beginning is copied; else 0.
    pub(super) grown_to: u64,
    /// It gave bytes beyond its size.
    pub(super) measured: bool,
    pub(super) object_size: u32,
    /// As it is announced.
    pub(super) object_size_max: u32,
    /// The sink was told that it will hear how the file is cut.
    pub(super) striped: bool,
    pub(super) phase: SourcePhase,
    /// Chaining values of everything that was read here.
    pub(super) digest: SubtreeSet,
    /// What was read once more when its first value had been merged already: by offset, length and value of
    /// that later reading. A hash of the whole shows whether the first was the same.
    pub(super) twice: BTreeMap<u64, (u64, Cv)>,
    /// What the sink holds: not to be sent unless it asks.
    pub(super) held: Held,
    /// Where it lies; `None`: not known yet.
    pub(super) layout: Option<Arc<Layout<TargetId>>>,
    /// Its file system was asked for that, or is to be.
    pub(super) asks: bool,
    /// Where it goes at the sink, as far as that is known.
    pub(super) sink_targets: Option<Arc<Layout<SinkTarget>>>,
    /// The first object that is not in the schedule yet, while `adding`.
    pub(super) queued: u64,
    /// More of its objects are to be given to the schedule.
    pub(super) adding: bool,
    /// Objects that the schedule will still give out.
    pub(super) left: u64,
    /// One of the two; counted in the plan.
    pub(super) works: bool,
    /// Objects of which something was given out and is not read yet: up to where.
    pub(super) given: BTreeMap<u64, u64>,
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
    /// Hashes of this generation that came to nothing, for its metadata changed meanwhile.
    pub(super) hashes: u8,
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
    /// The first range at or after `from` that was not read and that the sink did not hold.
    pub(super) fn next_missing(&self, from: u64) -> Option<(u64, u64)> {
        let mut at = from;
        loop {
            let (start, end) = self.digest.next_missing(at)?;
            match self.held.planned_end_at(start) {
                Some(behind) => at = behind,
                None => {
                    return Some((start, self.held.planned_from(start).map_or(end, |next| end.min(next))));
                }
            }
        }
    }
    /// Every byte was read here, or is held by the sink, which did not ask for it.
    fn is_accounted(&self) -> bool {
        let mut at = 0;
        while let Some((start, _)) = self.digest.next_missing(at) {
            match self.held.end_at(start) {
                Some(behind) => at = behind,
                None => return false,
            }
        }
        true
    }
    /// The digest of the whole, as far as it is known here; with what the sink holds as it says.
    fn root_with_held(&self) -> Option<Root> {
        let mut all = self.digest.clone();
        for claim in self.held.claims() {
            let _ = all.insert(claim.offset, claim.len, claim.cv);
        }
        all.root()
    }
    /// This node was read, and is sent. False: it was read before, as something else. Of one that was merged
    /// meanwhile that is not known at once: then the value is kept, for [`File::hashed`].
    pub(super) fn take_reading(&mut self, offset: u64, len: u64, value: Cv) -> bool {
        let known = self.digest.covering(offset).filter(|node| node.offset + node.len >= offset + len);
        let first = match known {
            None => {
                let _ = self.digest.insert(offset, len, value);
                value
            }
            Some(node) if (node.offset, node.len) == (offset, len) => node.cv,
            Some(_) => self.twice.entry(offset).or_insert((len, value)).1,
        };
        first == value || haul_mutant::removed("second-reading-agrees")
    }
    /// Nodes of which a hash of the whole file has to tell the value, too.
    pub(super) fn sent_twice(&self) -> Box<[(u64, u64)]> {
        self.twice.iter().map(|(offset, (len, _))| (*offset, *len)).collect()
    }
    /// The whole file was hashed, after all that was read of it. Whether it was in each earlier reading what
    /// it was in that one; `None`: what the sink says that it holds makes no whole.
    pub(super) fn hashed(&self, all: &HashOk) -> Option<bool> {
        let parts = self.twice.values().map(|(_, value)| value).eq(&all.cvs);
        let first = self.root_with_held()?;
        Some(first == all.root && (parts || haul_mutant::removed("sent-twice-is-hashed")))
    }
    /// The sink's digest of the whole agrees with what is known here. What was sent it checked object by
    /// object, and of what it held before it says itself what it read.
    pub(super) fn agrees(&self, root: Root) -> bool {
        match self.digest.root() {
            Some(own) => own == root,
            None => self.is_accounted(),
        }
    }
    fn object_end(&self, object: u64) -> u64 {
        (object + 1).saturating_mul(self.object_size.into()).min(self.size())
    }
    /// The objects that are to be given to the schedule next, from `queued` on, side by side.
    pub(super) fn next_objects(&self) -> Option<Range<u64>> {
        let object_size = u64::from(self.object_size);
        let (start, end) = self.next_missing(self.queued.checked_mul(object_size)?)?;
        Some((start / object_size).max(self.queued)..end.div_ceil(object_size))
    }
    /// The next piece of this object that has to be read, and whether there is another one.
    pub(super) fn take_piece(&mut self, object: u64) -> (Option<(u64, u32)>, bool) {
        let is_in = |offset: &u64| offset / u64::from(self.object_size) == object;
        if let Some(at) = self.again.iter().position(is_in) {
            let offset = self.again.remove(at).expect("it was just found");
            return (self.piece(offset), false);
        }
        let end = self.object_end(object);
        let from = self.given.get(&object).copied().unwrap_or(object * u64::from(self.object_size));
        let missing = |from: u64| self.next_missing(from).map(|(start, _)| start).filter(|s| *s < end);
        let Some((offset, len)) = missing(from).and_then(|start| self.piece(start)) else {
            return (None, false);
        };
        let behind = offset + u64::from(len);
        let more = missing(behind).is_some();
        self.given.insert(object, behind);
        (Some((offset, len)), more)
    }
    /// A piece was read, and is in the digest.
    pub(super) fn piece_done(&mut self, offset: u64) {
        let object = offset / u64::from(self.object_size);
        let start = object * u64::from(self.object_size);
        let read = |behind: &u64| self.next_missing(start).is_none_or(|(at, _)| at >= *behind);
        if self.given.get(&object).is_some_and(read) {
            self.given.remove(&object);
        }
    }
    /// All of it was given out, and nothing is under way.
    pub(super) fn is_read(&self) -> bool {
        self.reads == 0 && self.left == 0 && !self.adding && self.queue == Queue::None
    }
}
