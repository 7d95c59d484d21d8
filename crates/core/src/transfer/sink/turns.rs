//! Stores that take the bytes of a file in ascending order alone, and few files at a time: whose turn it is.
//!
//! In: files that are to be begun, objects as they come, how many files the store takes at a time. Out:
//! files in their turn, objects in the order of their offsets, objects asked for again.
//! A file of several objects is begun, and the source told so, only when the store has a place for it; small
//! files, which come whole, keep a place of their own, for they wait for nothing that is still to come. A
//! store with one place has either one large file or small ones.
//! Invariants: of a file the object that is written next begins where the last one ended; what comes before
//! its turn is held. Nothing waits for ever: where all that was granted is held here before its turn, what is
//! furthest from it is dropped, and asked for again when that comes. So of what the source sends of its own
//! accord each object is dropped once at most, and what a file lacks always has room.
//! Where the store lost what was written of a file, it is begun anew as often as the store says, at most
//! [`LOST_MAX`] times, and what had come is asked for again.
//! Left out: what stands at the destination (`lookup`); the order in which the store writes, which is the
//! order in which it is told.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::data::Frame;
use super::file::{Mark, SinkPhase};
use super::{File, Sink, SinkAction};
use crate::id_map::IdMap;
use crate::ids::{FileId, Generation, Time};
use crate::job::naming::Naming;
use crate::transfer::{BUNDLE_LEN_MAX, LOST_MAX, SMALL_LEN_MAX, piece_at};
use crate::wire::{Extent, Failure, FailureKind, FileState, Message, credit_cost};

/// Objects of a file that are asked for again at a time.
const ASKED_MAX: u64 = 8;
/// Nothing came for so long: what is to come may have no room.
const QUIET: Duration = Duration::from_secs(1);
/// How often a file is begun again of which the store gave back something else.
const DIFFERS_MAX: u8 = 1;

/// A file that is written in its turn.
#[derive(Default)]
struct Turn {
    /// Where the next object begins.
    next: u64,
    /// Objects before their turn.
    held: BTreeMap<u64, Frame>,
    /// Objects that came and were dropped.
    missing: BTreeSet<u64>,
    /// Those of them that were asked for, and did not come yet.
    asked: BTreeSet<u64>,
    /// Objects that came because they were asked for, and are held: others are dropped before them.
    came: BTreeSet<u64>,
    /// How often it was begun again, because the store lost it, and because it gave back something else.
    lost: u8,
    differed: u8,
}

/// Whose turn it is.
pub(super) struct Turns {
    /// Files that the store takes at a time.
    places: u32,
    files: IdMap<FileId, Turn>,
    /// Files of several objects that have a place.
    large: BTreeSet<FileId>,
    /// Others that were begun; counted only for a store with one place.
    small: BTreeSet<FileId>,
    waiting_large: VecDeque<(FileId, Generation)>,
    waiting_small: VecDeque<(FileId, Generation)>,
    /// A large file was the last.
    small_next: bool,
    /// Where too little room may be left, and nothing comes, more is made then.
    quiet_until: Option<Time>,
}

impl Turns {
    pub(super) fn new(places: u32) -> Turns {
        Turns {
            places,
            files: IdMap::default(),
            large: BTreeSet::new(),
            small: BTreeSet::new(),
            waiting_large: VecDeque::new(),
            waiting_small: VecDeque::new(),
            small_next: true,
            quiet_until: None,
        }
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.quiet_until
    }

    fn holds(&self) -> bool {
        self.files.values().any(|turn| !turn.held.is_empty())
    }

    /// All that is held.
    pub(super) fn take_held(&mut self) -> Vec<Frame> {
        self.files.values_mut().flat_map(|turn| std::mem::take(&mut turn.held).into_values()).collect()
    }

    /// The next file that is begun.
    fn next(&mut self) -> Option<(FileId, Generation, bool)> {
        let (large, small) = (&mut self.waiting_large, &mut self.waiting_small);
        let (small_may, large_may) = match self.places {
            0 | 1 => (
                self.large.is_empty() && (self.small_next || large.is_empty()),
                self.large.is_empty() && self.small.is_empty(),
            ),
            places => (true, self.large.len() < places as usize - 1),
        };
        if let Some((id, generation)) = small.front().copied().filter(|_| small_may) {
            small.pop_front();
            return Some((id, generation, false));
        }
        // Those that wait have had their turn.
        self.small_next = false;
        if let Some((id, generation)) = large.front().copied().filter(|_| large_may) {
            large.pop_front();
            self.small_next = true;
            return Some((id, generation, true));
        }
        None
    }
}

/// It may come in several objects. How it is cut may still be to be told.
fn is_large(file: &File) -> bool {
    file.size() > u64::from(file.kept.object_size)
        || (file.size() > SMALL_LEN_MAX && file.is(Mark::WaitsLayout))
}

impl Sink {
    /// The store takes so many files at a time from now on.
    pub fn set_places(&mut self, places: u32) {
        if let Some(turns) = &mut self.turns {
            turns.places = places;
        }
    }

    /// Files that were announced and are not over.
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// A file that is to be begun: at once, or in its turn.
    pub(super) fn begin_in_turn(&mut self, id: FileId) {
        let Some(file) = self.files.get(&id) else { return };
        let generation = file.kept.generation;
        let Some(turns) = &mut self.turns else {
            self.states.push((id, generation, FileState::Fresh));
            return self.open(id);
        };
        match is_large(file) {
            true => turns.waiting_large.push_back((id, generation)),
            false => turns.waiting_small.push_back((id, generation)),
        }
    }

    /// Begins files whose turn it is.
    pub(super) fn run_turns(&mut self) {
        if self.stop.is_some() {
            return;
        }
        while let Some((id, generation, large)) = self.turns.as_mut().and_then(Turns::next) {
            let waits = |file: &&mut Box<File>| {
                let phase = matches!(file.phase, SinkPhase::Looking | SinkPhase::Again);
                file.kept.generation == generation && phase
            };
            let Some(file) = self.files.get_mut(&id).filter(waits) else { continue };
            let begins = std::mem::replace(&mut file.phase, SinkPhase::Open) == SinkPhase::Looking;
            if let Some(turns) = &mut self.turns {
                let places = if large { &mut turns.large } else { &mut turns.small };
                places.insert(id);
            }
            if begins {
                self.states.push((id, generation, FileState::Fresh));
            }
            self.open(id);
            self.ask_missing(id);
        }
    }

    /// Takes a frame out of those that are taken up, if its object is before its turn. `None`: it was held.
    pub(super) fn in_turn(&mut self, frame: Frame) -> Option<Frame> {
        let Some(turns) = &mut self.turns else { return Some(frame) };
        let ([entry], [true]) = (&frame.header.entries[..], &frame.good[..]) else { return Some(frame) };
        let fits = |file: &File| {
            file.kept.generation == entry.generation
                && file.phase == SinkPhase::Open
                && piece_at(file.size(), None, file.kept.object_size, entry.offset)
                    == Some((entry.offset, entry.len.into()))
        };
        // What does not fit is refused where it is taken up.
        if entry.root || self.files.get(&entry.id).filter(|file| fits(file)).is_none() {
            return Some(frame);
        }
        let turn = turns.files.entry(entry.id).or_default();
        let was_asked = turn.asked.remove(&entry.offset);
        turn.missing.remove(&entry.offset);
        if entry.offset <= turn.next || haul_mutant::removed("ascending-files-wait-their-turn") {
            return Some(frame);
        }
        if turn.held.contains_key(&entry.offset) {
            self.free(frame.buffer);
            return None;
        }
        let id = entry.id;
        if was_asked {
            turn.came.insert(entry.offset);
        }
        turn.held.insert(entry.offset, frame);
        self.ask_missing(id);
        None
    }

    /// An object of this file is being written, which ends there: what follows is next.
    pub(super) fn turned(&mut self, id: FileId, end: u64) {
        let Some(turn) = self.turns.as_mut().map(|turns| turns.files.entry(id).or_default()) else { return };
        turn.next = turn.next.max(end);
        turn.came.remove(&turn.next);
        if let Some(frame) = turn.held.remove(&turn.next) {
            self.deferred.push_front(frame);
        }
        self.ask_missing(id);
    }

    /// Asks for what was dropped, as far as it is next.
    fn ask_missing(&mut self, id: FileId) {
        let Some(turn) = self.turns.as_mut().and_then(|turns| turns.files.get_mut(&id)) else { return };
        if turn.missing.is_empty() {
            return;
        }
        let Some(file) = self.files.get(&id).filter(|file| file.phase == SinkPhase::Open) else { return };
        let (generation, mut at, mut extents) = (file.kept.generation, turn.next, Vec::new());
        // No more than there is room for, or what was asked for would be dropped again.
        let room = self.config.memory / 4 / self.frame_cost_max.max(1);
        let room = room.clamp(1, ASKED_MAX);
        // What is next is asked for in any case: nothing else has room before it came.
        // What came because it was asked for has its room until its turn: were more asked for beside it, that
        // would be sent before what was asked for earlier, dropped here, and asked for without end.
        let came = if haul_mutant::removed("what-came-keeps-its-room") { 0 } else { turn.came.len() };
        while (at == turn.next || ((turn.asked.len() + came) as u64) < room)
            && let Some((offset, len)) = piece_at(file.size(), None, file.kept.object_size, at)
        {
            if turn.missing.remove(&offset) {
                turn.asked.insert(offset);
                extents.push(Extent { id, generation, offset, len });
            } else if !turn.asked.contains(&offset) && !turn.held.contains_key(&offset) {
                // It is still to come, and what is behind it waits for that.
                break;
            }
            at = offset + len;
            if file.size() == 0 {
                break;
            }
        }
        if !extents.is_empty() {
            // What is asked for last is sent first.
            extents.reverse();
            self.actions.push_back(SinkAction::Send(Message::Resend(extents)));
        }
    }

    /// An object that came while its file waits to be begun again.
    pub(super) fn missed(&mut self, id: FileId, offset: u64) {
        if let Some(turns) = &mut self.turns {
            let turn = turns.files.entry(id).or_default();
            turn.asked.remove(&offset);
            turn.missing.insert(offset);
        }
    }

    /// Nothing is written, and objects are held before their turn.
    pub(super) fn waits_for_turns(&self) -> bool {
        self.writes == 0 && self.turns.as_ref().is_some_and(Turns::holds)
    }

    /// What is held leaves no room for what the source may have to send next. That may be a bundle, longer
    /// than anything so far, and where it was read ahead nothing else goes before it: then nothing comes for
    /// a while.
    pub(super) fn is_out_of_room(&mut self) -> bool {
        let room = self.granted - self.received;
        let Some(turns) = &mut self.turns else { return false };
        if room < self.frame_cost_max {
            return true;
        }
        let usual = credit_cost(BUNDLE_LEN_MAX).min(self.config.memory);
        if room >= usual {
            turns.quiet_until = None;
            return false;
        }
        let until = *turns.quiet_until.get_or_insert(self.now.after(QUIET));
        let due = self.now >= until;
        if due {
            turns.quiet_until = None;
        }
        due
    }

    /// Something came.
    pub(super) fn see_data(&mut self) {
        if let Some(turns) = &mut self.turns {
            turns.quiet_until = None;
        }
    }

    /// All that was granted is here, and none of it can be written: what is furthest from its turn makes room
    /// for what is next.
    pub(super) fn drop_furthest(&mut self) {
        let Some(turns) = &mut self.turns else { return };
        let furthest = turns.files.iter_mut().filter_map(|(id, turn)| {
            let offsets = turn.held.keys().rev();
            let offset = *offsets.max_by_key(|offset| (!turn.came.contains(*offset), **offset))?;
            Some(((!turn.came.contains(&offset), offset - turn.next, *id), offset, turn))
        });
        // By its id, too: the order of a hash map differs from run to run.
        let Some((_, offset, turn)) = furthest.max_by_key(|(key, ..)| *key) else { return };
        let Some(frame) = turn.held.remove(&offset) else { return };
        turn.came.remove(&offset);
        turn.missing.insert(offset);
        self.free(frame.buffer);
    }

    /// All of the file is written, or it has no place any more: another one may be begun.
    pub(super) fn leave_place(&mut self, id: FileId) {
        if let Some(turns) = &mut self.turns {
            turns.large.remove(&id);
            turns.small.remove(&id);
        }
    }

    /// The file is over, or another generation of it comes.
    pub(super) fn leave_turns(&mut self, id: FileId) {
        self.leave_place(id);
        let turn = self.turns.as_mut().and_then(|turns| turns.files.remove(&id));
        for frame in turn.map(|turn| turn.held).unwrap_or_default().into_values() {
            self.free(frame.buffer);
        }
    }

    /// The store lost what was written of a file and takes it once more, or gave back something else: it is
    /// begun again, from its beginning. False: that was tried often enough.
    pub(super) fn begin_again(&mut self, id: FileId, failure: &Failure) -> bool {
        if self.turns.is_none() || self.stop.is_some() {
            return false;
        }
        let lives = |file: &&mut Box<File>| matches!(file.phase, SinkPhase::Open | SinkPhase::Committing);
        let Some(file) = self.files.get_mut(&id).filter(lives) else { return false };
        let (size, object_size) = (file.size(), file.kept.object_size);
        let large = is_large(file);
        let Some(turn) = self.turns.as_mut().map(|turns| turns.files.entry(id).or_default()) else {
            return false;
        };
        let (times, most) = match failure.kind {
            FailureKind::Digest => (&mut turn.differed, DIFFERS_MAX),
            _ => (&mut turn.lost, LOST_MAX),
        };
        if *times >= most {
            return false;
        }
        *times += 1;
        let held = std::mem::take(&mut turn.held);
        turn.came.clear();
        turn.missing.extend(held.keys());
        let end = if large { std::mem::take(&mut turn.next) } else { 1 };
        turn.missing.extend((0..end).step_by(object_size.max(1) as usize).filter(|at| *at < size.max(1)));
        (file.phase, file.naming) = (SinkPhase::Again, Naming::new());
        file.unmark(Mark::Broken);
        file.unmark(Mark::InEpoch);
        self.counts.sent_back += 1;
        held.into_values().for_each(|frame| self.free(frame.buffer));
        self.leave_place(id);
        let had = self.files.get(&id).is_some_and(|file| file.is(Mark::HasTemp));
        self.discard(id);
        if !had {
            self.begin_in_turn(id);
        }
        true
    }
}
