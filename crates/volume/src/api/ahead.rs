//! What was read ahead of a file that is open.
//!
//! In: ranges that will be read, later what is read. Out: their bytes, if they are still those of the file.
//! Invariants: all that is held is of one version of the file's bytes; it is given only to a read whose own
//! map, asked for after it began, told that same version, so that it shows what the servers would; what is
//! held or under way is bounded. A version is told only while nobody can write the file directly, and moves
//! with each write.
//! Left out: a guess at what will be read.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_channel::{Receiver, bounded};
use haul_core::volume::ContentVersion;
use haul_core::wire::FILE_LEN_MAX;

use super::many::{Source, parts, stripes_of, together};
use crate::client::{Came, READ_MAX, VolumeError};

/// A piece holds so much at least, however few bytes it has.
const HELD_MIN: u64 = 4096;

/// See the head of this module.
pub(super) struct Ahead {
    max: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Of which all that is held is.
    version: Option<ContentVersion>,
    /// By where they begin: how long they are, and what came of them.
    pieces: BTreeMap<u64, (u64, Arc<Slot>)>,
    /// Where they begin, those that were asked for first in front.
    order: VecDeque<u64>,
    bytes: u64,
}

impl State {
    fn remove(&mut self, offset: u64) {
        if let Some((len, _)) = self.pieces.remove(&offset) {
            self.bytes -= len.max(HELD_MIN);
        }
    }

    fn clear(&mut self) {
        *self = State::default();
    }
}

/// A piece that is on its way, or came.
struct Slot(Mutex<Comes>);

enum Comes {
    Waits(Receiver<Result<Came, VolumeError>>),
    Came(Came),
    /// It failed; who needs it asks anew.
    Nothing,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Slot {
    /// Copies bytes of the piece, which is waited for. False: it failed.
    fn copy(&self, from: u64, room: &mut [u8]) -> bool {
        let mut comes = lock(&self.0);
        if let Comes::Waits(waiting) = &*comes {
            *comes = match waiting.recv() {
                // Of what no server has the read itself learns why.
                Ok(Ok(came)) if came.nowhere().is_none() => Comes::Came(came),
                _ => Comes::Nothing,
            };
        }
        let Comes::Came(came) = &*comes else { return false };
        came.copy(from as usize, room);
        true
    }
}

/// What is held, for a read that knows that the file's bytes are of that version.
pub(super) struct Held<'a> {
    ahead: &'a Ahead,
    version: ContentVersion,
}

impl Held<'_> {
    /// Copies the bytes from there on, and waits for those that are on their way. False: not all of them are
    /// held; what `room` has then is of no worth.
    pub(super) fn copy(&self, offset: u64, room: &mut [u8]) -> bool {
        let (mut at, mut room) = (offset, room);
        while !room.is_empty() {
            let found = {
                let state = lock(&self.ahead.state);
                let is_it = state.version == Some(self.version);
                let piece = state.pieces.range(..=at).next_back().filter(|_| is_it);
                piece.map(|(start, (len, slot))| (*start, *len, slot.clone()))
            };
            let Some((start, len, slot)) = found else { return false };
            let Some(left) = len.checked_sub(at - start).filter(|left| *left > 0) else { return false };
            let now = room.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let (head, rest) = room.split_at_mut(now);
            if !slot.copy(at - start, head) {
                return false;
            }
            (at, room) = (at + now as u64, rest);
        }
        true
    }
}

impl Ahead {
    pub(super) fn new(max: u64) -> Ahead {
        Ahead { max, state: Mutex::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        lock(&self.state).pieces.is_empty()
    }

    /// Nothing is held any more.
    pub(super) fn clear(&self) {
        lock(&self.state).clear();
    }

    /// What is held, if it is of this version; else it is dropped.
    pub(super) fn as_of(&self, version: Option<ContentVersion>) -> Option<Held<'_>> {
        let mut state = lock(&self.state);
        if haul_mutant::removed("volume-prefetch-is-not-stale") {
            return state.version.map(|version| Held { ahead: self, version });
        }
        match version {
            Some(version) if state.version == Some(version) => Some(Held { ahead: self, version }),
            _ => {
                state.clear();
                None
            }
        }
    }

    /// Begins to read ranges; see [`File::prefetch`](super::File::prefetch).
    pub(super) fn begin(&self, source: &Source<'_>, ranges: &[Range<u64>]) -> Result<u64, VolumeError> {
        let stripe_size = source.striping().stripe_size;
        let mut left = self.max;
        let lens = ranges.iter().map(|range| {
            let len = range.end.saturating_sub(range.start).min(left);
            left -= len;
            (range.start, len)
        });
        let lens: Vec<(u64, u64)> = lens.collect();
        let asked = parts(lens.iter().copied(), FILE_LEN_MAX, stripe_size, |_| READ_MAX);
        let stripes = stripes_of(&asked, stripe_size);
        if stripes.is_empty() {
            return Ok(0);
        }
        let maps_now = || source.maps(&stripes).map_err(|(_, why)| why);
        let mut maps = maps_now()?;
        if maps.version.is_none() {
            // Whoever could write it directly gives that up for the moment.
            match source.client.look(source.file).wait() {
                Ok(_) => maps = maps_now()?,
                Err(VolumeError::Busy) => {}
                Err(why) => return Err(why),
            }
        }
        let Some(version) = maps.version else { return Ok(0) };
        let max = |stripe| maps.max(stripe);
        let asked = parts(lens.into_iter(), maps.end, stripe_size, max);
        let mut state = lock(&self.state);
        if state.version != Some(version) {
            state.clear();
            state.version = Some(version);
        }
        // Of what this call asks for: as it counts, and as it is told.
        let (mut holds, mut began) = (0, 0);
        for run in together(&asked, stripe_size, max) {
            let len = run.end - run.offset;
            if state.pieces.get(&run.offset).is_some_and(|(has, _)| *has >= len) {
                began += len;
                continue;
            }
            state.remove(run.offset);
            // Room is made of what was asked for first; what this call asked for is not given up for the rest
            // of it.
            while state.bytes + len.max(HELD_MIN) > self.max && state.bytes > holds {
                let Some(first) = state.order.pop_front() else { break };
                state.remove(first);
            }
            if state.bytes + len.max(HELD_MIN) > self.max {
                break;
            }
            let (to, waiting) = bounded(1);
            source.client.piece(source.piece(&run, Some(&maps)), move |result| _ = to.send(result));
            let slot = Arc::new(Slot(Mutex::new(Comes::Waits(waiting))));
            state.pieces.insert(run.offset, (len, slot));
            state.order.push_back(run.offset);
            state.bytes += len.max(HELD_MIN);
            holds += len.max(HELD_MIN);
            began += len;
        }
        Ok(began)
    }
}
