//! Reading ahead while the sink stalls: frames that wait on flash for their grant.
//!
//! In: a file on flash as slots of one length; reads that no grant covers; credit and the time. Out: frames
//! to store in a slot and to fetch from it again. A slot is reserved before its read begins. What comes back
//! while credit is there by then goes to a stream at once; else it is stored, its buffer is free, and it is
//! fetched when a grant covers it. What is stored for a sink target goes before what is not yet read for it,
//! the oldest first; sink targets take turns.
//!
//! The sink stalls when nothing that waits may be sent, for want of general credit or of that of its sink
//! target, in most of a while, and in that while less than a part of the usual was sent: a sink that crawls
//! grants something now and then. When it takes more than the usual afterwards, storage goes on reading ahead
//! while flash is emptied.
//! Invariants: a slot has one frame at a time; what is on the way to flash holds at most a quarter of the
//! memory, so that flash which hangs stops nothing else; a frame that cannot be stored waits in memory, one
//! that cannot be fetched is read again at the source.
//!
//! It pays only where storage is what the streams wait for whenever the sink takes something: what was read
//! during a stall comes faster from flash then. So time without a stall is measured, and the share of it that
//! storage was waited for decides. (That more could be read if more were granted says nothing: all grants may
//! be under way in storage that is busy.)
//! Left out: digests, which the frames keep in their headers.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use super::file::SourcePhase;
use super::read::Ready;
use super::{Source, SourceAction};
use crate::ids::{BufferId, FileId, Generation, SinkTarget, Time};
use crate::wire::{DataHeader, Failure, credit_cost};

/// Most slots of a spill file.
pub const SPILL_SLOTS_MAX: u32 = 1 << 20;
/// Grants that are missed for so long are a stall; shorter waits belong to every path.
pub const SPILL_STALL: Duration = Duration::from_millis(200);
/// A stall begins when the sink takes less than one part in so many of what it takes else, and ends when it
/// takes twice that.
const STALL_PART: f64 = 4.0;
/// .. and grants are missed in so much of the time.
const STALL_SHARE: f64 = 0.75;
/// It is looked for so many times in [`SpillConfig::stall`].
const PARTS: usize = 4;
/// Frames that are fetched at a time, at most.
const FETCHES_MAX: usize = 8;
/// What is on its way to flash holds at most this part of the memory.
const MEMORY_PART: u64 = 4;
/// It pays if storage was waited for in more than one part in so many of the time without stalls.
const STARVED_PART: u32 = 10;
/// Stalls that are told one by one.
pub const STALLS_TOLD: usize = 4;
/// The past counts half after so long.
const MEASURED_MAX: Duration = Duration::from_secs(10);

/// A file on flash for frames that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpillConfig {
    /// Frames that it holds, at most [`SPILL_SLOTS_MAX`].
    pub slots: u32,
    /// Bytes of a slot; longer frames are never stored.
    pub slot_len: u32,
    /// [`SPILL_STALL`], but for tests.
    pub stall: Duration,
}

/// A stall of the sink in which storage was read on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stall {
    /// When it began, since the session did.
    pub at: Duration,
    pub lasted: Duration,
    /// Payload bytes that were stored from then to the next stall.
    pub stored: u64,
}

/// What a spill file was good for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpillCounts {
    /// Payload bytes that were stored, and the most that were there at a time.
    pub stored: u64,
    pub peak: u64,
    /// Stalls in which storage was read on, and how long they lasted in all.
    pub stalls: u64,
    pub stall_time: Duration,
    /// The longest of them, by when they began. Those that are not there have lasted no time.
    pub longest: [Stall; STALLS_TOLD],
    /// Time in which nothing could be done for want of grants; some of it was a stall.
    pub missed: Duration,
    pub stalled: bool,
    /// Time in which something was sent or read for that, without stalls, and how much of it storage was
    /// waited for; the past counts less.
    pub flowing: Duration,
    pub starved: Duration,
}

impl SpillCounts {
    /// A stall will not be added to any more.
    fn retire(&mut self, stall: Option<Stall>) {
        let Some(stall) = stall else { return };
        self.stalls += 1;
        self.stall_time += stall.lasted;
        let shortest = self.longest.iter_mut().min_by_key(|told| told.lasted).expect("there are some");
        if shortest.lasted < stall.lasted {
            *shortest = stall;
        }
        self.longest.sort_by_key(|told| (told.lasted.is_zero(), told.at));
    }
}

/// What a read is known by until it comes back: its first file, and where it begins (bundles: nowhere).
pub(super) type ReadKey = (FileId, Generation, Option<u64>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Storing {
        buffer: BufferId,
        held: u64,
    },
    /// It has no credit: that is taken when it is fetched.
    Stored,
    Fetching,
}

struct Slot {
    header: DataHeader,
    cost: u64,
    sink_target: SinkTarget,
    at: At,
}

/// What the time is spent with.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Spent {
    /// Nothing to say: idle, paused, or flash gives what the streams take.
    #[default]
    Otherwise,
    /// Nothing is sent or read, for want of grants.
    Missing,
    /// Streams have what they can send.
    Flowing,
    /// A stream is idle, and what it could send is being read.
    Starved,
}

#[derive(Default)]
pub(super) struct Spill {
    config: Option<SpillConfig>,
    free: Vec<u32>,
    /// Reads without a grant and the sink targets that they are for, and what they hold in memory; as many
    /// free slots are reserved.
    reads: HashMap<ReadKey, SinkTarget>,
    reading: u64,
    slots: HashMap<u32, Slot>,
    /// What is stored, by sink target, the oldest first; and the sink target whose turn it is.
    stored: BTreeMap<SinkTarget, VecDeque<u32>>,
    turn: u16,
    fetching: usize,
    /// Bytes of memory that frames hold until they are stored.
    storing: u64,
    /// Frames that could not be stored.
    kept: VecDeque<Ready>,
    /// The sink stalls, as far as the last while says; or it takes more than storage gives, and something is
    /// stored.
    stalls: bool,
    catches_up: bool,
    /// When this stall, or the last one, began; and what there is to tell of it, if storage was read on.
    stalls_since: Duration,
    stall: Option<Stall>,
    spent: Spent,
    /// What waits has no grant.
    short: bool,
    looked: Time,
    /// What was sent by then.
    sent: u64,
    /// What was sent while it flowed.
    flowed: u64,
    /// The last while in parts, the present one first.
    lately: [While; PARTS],
    in_slots: u64,
    counts: SpillCounts,
}

/// A part of a while of [`SpillConfig::stall`].
#[derive(Clone, Copy, Default)]
struct While {
    time: Duration,
    /// Something waited that had no grant, whatever else went on.
    short: Duration,
    sent: u64,
    /// As in [`SpillCounts`], and what was sent in it.
    flowing: Duration,
    starved: Duration,
    flowed: u64,
}

impl While {
    fn plus(self, other: &While) -> While {
        While {
            time: self.time + other.time,
            short: self.short + other.short,
            sent: self.sent + other.sent,
            flowing: self.flowing + other.flowing,
            starved: self.starved + other.starved,
            flowed: self.flowed + other.flowed,
        }
    }
}

impl Spill {
    /// Something waits here of which it is known where it goes.
    pub(super) fn has_placed(&self) -> bool {
        self.stored.keys().next_back().is_some_and(|sink_target| *sink_target != SinkTarget::ANY)
    }

    /// Nothing waits here, on flash or in memory.
    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.kept.is_empty()
    }

    /// There is flash to use, a slot is free, the sink has stalled for long enough, and reading ahead pays.
    fn wants(&self) -> bool {
        let Some(config) = self.config else { return false };
        (self.stalls || self.catches_up) && self.free.len() > self.reads.len() && self.pays(config.stall)
    }

    fn pays(&self, measured_min: Duration) -> bool {
        let SpillCounts { flowing, starved, .. } = self.counts;
        flowing >= measured_min && starved * STARVED_PART >= flowing
    }

    /// Time passed as it was spent; `sent` payload bytes went to streams so far.
    fn look(&mut self, now: Time, (spent, short): (Spent, bool), sent: u64) {
        let time = now.since(self.looked);
        let more = sent - std::mem::replace(&mut self.sent, sent);
        self.looked = self.looked.max(now);
        let nothing = Duration::ZERO;
        let flows = matches!(self.spent, Spent::Flowing | Spent::Starved);
        self.lately[0] = self.lately[0].plus(&While {
            time,
            short: if self.short { time } else { nothing },
            sent: more,
            flowing: if flows { time } else { nothing },
            starved: if self.spent == Spent::Starved { time } else { nothing },
            flowed: if flows { more } else { 0 },
        });
        self.counts.missed += if self.spent == Spent::Missing { time } else { nothing };
        (self.spent, self.short) = (spent, short);
        let Some(SpillConfig { stall, .. }) = self.config else { return };
        if self.lately[0].time >= stall / PARTS as u32 {
            let part = self.lately[0];
            if !self.is_stall(&part) {
                self.count(&part);
            }
            let all = self.lately.iter().fold(While::default(), While::plus);
            if all.time >= stall {
                let stalls = self.is_stall(&all);
                self.note_stall(stalls, now.since(Time(0)), all.time);
                let (sent, usual) = self.sent_and_usual(&all);
                self.catches_up = !self.stored.is_empty() && sent > usual;
                self.counts.stalled |= self.stalls;
            }
            self.lately.rotate_right(1);
            self.lately[0] = While::default();
        }
    }

    /// The last while, so long, was a stall or was not.
    fn note_stall(&mut self, stalls: bool, now: Duration, time: Duration) {
        match (self.stalls, stalls) {
            (false, true) => {
                self.stalls_since = now.saturating_sub(time);
                self.counts.retire(self.stall.take());
            }
            (true, false) => self.end_stall(now),
            (true, true) | (false, false) => {}
        }
        self.stalls = stalls;
    }

    /// The stall is over; what was read in it may still come.
    fn end_stall(&mut self, now: Duration) {
        if let Some(stall) = &mut self.stall {
            stall.lasted = now.saturating_sub(stall.at);
        }
    }

    fn count(&mut self, part: &While) {
        self.counts.flowing += part.flowing;
        self.counts.starved += part.starved;
        self.flowed += part.flowed;
        if self.counts.flowing > MEASURED_MAX {
            self.counts.flowing /= 2;
            self.counts.starved /= 2;
            self.flowed /= 2;
        }
    }

    fn is_stall(&self, last: &While) -> bool {
        let (sent, usual) = self.sent_and_usual(last);
        let part = if self.stalls { STALL_PART / 2.0 } else { STALL_PART };
        let slow = if self.flowed > 0 { sent * part <= usual } else { last.sent == 0 };
        slow && last.short.as_secs_f64() >= last.time.as_secs_f64() * STALL_SHARE
    }

    /// What was sent, and what would have been if it had flowed; in the same unit.
    fn sent_and_usual(&self, last: &While) -> (f64, f64) {
        let sent = last.sent as f64 * self.counts.flowing.as_secs_f64();
        (sent, self.flowed as f64 * last.time.as_secs_f64())
    }

    /// When a while ends that may be found a stall.
    pub(super) fn deadline(&self) -> Option<Time> {
        let config = self.config.filter(|_| self.short && !self.stalls)?;
        Some(self.looked.after((config.stall / PARTS as u32).saturating_sub(self.lately[0].time)))
    }

    /// Nothing more is stored; what is there is fetched.
    fn give_up(&mut self, now: Time) {
        // Nobody looks any more when the sink goes on.
        self.note_stall(false, now.since(Time(0)), Duration::ZERO);
        self.config = None;
    }

    fn release(&mut self, slot: u32) -> Option<Slot> {
        let gone = self.slots.remove(&slot)?;
        self.in_slots -= gone.header.payload_len();
        self.free.push(slot);
        Some(gone)
    }
}

impl Source {
    /// Frames may be stored on flash while the sink stalls. Before the first entry; more than
    /// [`SPILL_SLOTS_MAX`] slots are not used.
    pub fn use_spill(&mut self, config: SpillConfig) {
        let slots = config.slots.min(SPILL_SLOTS_MAX);
        self.spill.free = (0..slots).rev().collect();
        self.spill.config = (slots > 0).then_some(config);
    }

    /// What the spill file was good for so far.
    pub fn spill_counts(&self) -> SpillCounts {
        let (mut counts, mut stall) = (self.spill.counts, self.spill.stall);
        if let Some(stall) = stall.as_mut().filter(|_| self.spill.stalls) {
            stall.lasted = self.now.since(Time(0)).saturating_sub(stall.at);
        }
        counts.retire(stall);
        counts
    }

    /// Payload bytes that lie on flash now.
    pub fn spilled(&self) -> u64 {
        self.spill.in_slots
    }

    /// A read of `len` bytes may begin that no grant covers, for flash takes it.
    pub(super) fn may_spill(&self, len: u64) -> bool {
        let cost = credit_cost(len);
        let on_the_way = self.spill.reading + self.spill.storing + cost;
        self.spill.config.is_some_and(|config| len <= u64::from(config.slot_len))
            && self.buffers_used + cost <= self.config.memory
            && on_the_way <= (self.config.memory / MEMORY_PART).max(cost)
            && self.spill.wants()
    }

    /// Counts a read that [`Source::may_spill`] allowed.
    pub(super) fn take_spilling(&mut self, key: ReadKey, len: u64, sink_target: SinkTarget) {
        let cost = credit_cost(len);
        self.buffers_used += cost;
        self.reads += 1;
        self.spill.reading += cost;
        self.spill.reads.insert(key, sink_target);
        if self.spill.stalls {
            let at = self.spill.stalls_since;
            self.spill.stall.get_or_insert(Stall { at, ..Stall::default() });
        }
    }

    /// A read came back that held `held` bytes of memory: its sink target, if no grant covers it.
    pub(super) fn end_spilling(&mut self, key: ReadKey, held: u64) -> Option<SinkTarget> {
        let sink_target = self.spill.reads.remove(&key)?;
        self.spill.reading -= held;
        Some(sink_target)
    }

    /// A frame that was read without credit goes, if there is some by now.
    fn charge(&mut self, sink_target: SinkTarget, cost: u64) -> bool {
        let goes = self.credit_used + cost <= self.credit && self.charge_sink_target(sink_target, cost);
        self.credit_used += if goes { cost } else { 0 };
        goes
    }

    /// A frame is ready. `granted`: its read took `cost` of the credit.
    pub(super) fn land(&mut self, ready: Ready, granted: bool) {
        let Ready { cost, held, sink_target, .. } = ready;
        self.landed += cost;
        if granted {
            return self.frames.push_back(ready);
        }
        if self.charge(sink_target, cost) {
            return self.frames.push_back(ready);
        }
        match (ready.buffer, self.spill.config.and_then(|_| self.spill.free.pop())) {
            (Some(buffer), Some(slot)) => {
                let spill = &mut self.spill;
                let len = ready.header.payload_len();
                let at = At::Storing { buffer, held };
                spill.slots.insert(slot, Slot { header: ready.header, cost, sink_target, at });
                spill.storing += held;
                spill.in_slots += len;
                spill.counts.stored += len;
                spill.counts.peak = spill.counts.peak.max(spill.in_slots);
                spill.stall.iter_mut().for_each(|stall| stall.stored += len);
                self.actions.push_back(SourceAction::Store { slot, buffer, len: len as u32 });
            }
            _ => self.spill.kept.push_back(ready),
        }
    }

    /// A frame was stored, or could not be. Its buffer is still the driver's.
    pub fn handle_stored(&mut self, slot: u32, result: Result<(), Failure>) {
        let Some(held) = self.spill.slots.get_mut(&slot) else { return };
        let At::Storing { buffer, held: bytes } = held.at else { return };
        self.spill.storing -= bytes;
        match result {
            Ok(()) if !self.stopping => {
                held.at = At::Stored;
                self.spill.stored.entry(held.sink_target).or_default().push_back(slot);
                self.buffers_used -= bytes;
                self.actions.push_back(SourceAction::FreeBuffer(buffer));
            }
            Err(failure) if !self.stopping => {
                let gone = self.spill.release(slot).expect("it is there");
                self.spill.counts.stored -= gone.header.payload_len();
                self.no_more_spill(&failure);
                let Slot { header, cost, sink_target, .. } = gone;
                self.spill.kept.push_back(Ready {
                    header,
                    buffer: Some(buffer),
                    cost,
                    held: bytes,
                    sink_target,
                });
            }
            Ok(()) | Err(_) => {
                self.spill.release(slot);
                self.buffers_used -= bytes;
                self.actions.push_back(SourceAction::FreeBuffer(buffer));
            }
        }
    }

    /// A frame was fetched, or could not be (the driver has its buffer back then).
    pub fn handle_fetched(&mut self, slot: u32, result: Result<BufferId, Failure>) {
        if self.spill.slots.get(&slot).is_none_or(|held| held.at != At::Fetching) {
            return;
        }
        self.spill.fetching -= 1;
        let Slot { header, cost, sink_target, .. } = self.spill.release(slot).expect("it is there");
        match result {
            Ok(buffer) if !self.stopping => {
                self.landed += cost;
                self.frames.push_back(Ready { header, buffer: Some(buffer), cost, held: cost, sink_target });
                return;
            }
            Ok(buffer) => self.actions.push_back(SourceAction::FreeBuffer(buffer)),
            Err(failure) => {
                self.no_more_spill(&failure);
                for entry in &header.entries {
                    self.send_again(entry.id, entry.generation, entry.offset);
                }
            }
        }
        self.buffers_used -= cost;
        self.credit_used -= cost;
        self.give_back(sink_target, cost);
    }

    fn no_more_spill(&mut self, failure: &Failure) {
        if self.spill.config.is_some() {
            self.spill.give_up(self.now);
            let text = format!("spilling ends: {}", failure.text);
            self.actions.push_back(SourceAction::Notice(text.into()));
        }
    }

    /// Fetches what a grant covers, before anything new is read for it.
    pub(super) fn drain_spill(&mut self) {
        if self.paused || self.stopping {
            return;
        }
        for _ in 0..self.spill.kept.len() {
            let ready = self.spill.kept.pop_front().expect("it is there");
            if !self.is_wanted(&ready.header) {
                self.buffers_used -= ready.held;
                self.actions.extend(ready.buffer.map(SourceAction::FreeBuffer));
            } else if self.charge(ready.sink_target, ready.cost) {
                self.frames.push_back(ready);
            } else {
                self.spill.kept.push_back(ready);
            }
        }
        // SinkTargets in a row that had no room.
        let mut shut = 0;
        while self.spill.fetching < FETCHES_MAX && shut < self.spill.stored.len() {
            let (stored, turn) = (&self.spill.stored, SinkTarget(self.spill.turn));
            let from_turn = stored.range(turn..).chain(stored.range(..turn)).next();
            let (&sink_target, slots) = from_turn.expect("one is there");
            let slot = *slots.front().expect("a sink target has something");
            self.spill.turn = sink_target.0.wrapping_add(1);
            let held = &self.spill.slots[&slot];
            let (cost, len) = (held.cost, held.header.payload_len());
            let wanted = self.is_wanted(&held.header);
            if wanted && !self.room(len) {
                return;
            }
            if wanted && !self.charge(sink_target, cost) {
                shut += 1;
                continue;
            }
            shut = 0;
            self.take_stored(sink_target);
            if wanted {
                self.buffers_used += cost;
                self.spill.fetching += 1;
                self.spill.slots.get_mut(&slot).expect("it is there").at = At::Fetching;
                self.actions.push_back(SourceAction::Fetch { slot, len: len as u32 });
            } else {
                self.spill.release(slot);
            }
        }
    }

    /// Some of a frame is still to be sent: the sink grants nothing for what was withdrawn.
    fn is_wanted(&self, header: &DataHeader) -> bool {
        header.entries.iter().any(|entry| {
            let file = self.files.get(&entry.id).filter(|file| file.generation == entry.generation);
            file.is_some_and(|file| !matches!(file.phase, SourcePhase::Retry | SourcePhase::Refreshing))
        })
    }

    /// The oldest that is stored for a sink target is no more.
    fn take_stored(&mut self, sink_target: SinkTarget) {
        if let Entry::Occupied(mut slots) = self.spill.stored.entry(sink_target) {
            slots.get_mut().pop_front();
            if slots.get().is_empty() {
                slots.remove();
            }
        }
    }

    /// Looks at what this moment is spent with.
    pub(super) fn look_at_spill(&mut self) {
        if self.spill.config.is_none() {
            return;
        }
        let waits = self.plan.files > 0 || !self.small.is_empty();
        let short = waits && self.is_short_of(self.least_read().unwrap_or(0));
        let shut_out = self.plan.files > 0 && self.plan.shut_out && self.small.is_empty();
        let rests = self.paused || self.stopping || self.streams.all_lost();
        let short = (short || shut_out) && !rests;
        let idle = self.frames.is_empty() && self.streams.free().is_some();
        let reads = self.reads as usize > self.spill.reads.len();
        let spent = match (idle, reads) {
            _ if rests => Spent::Otherwise,
            (true, false) if short => Spent::Missing,
            _ if !self.spill.slots.is_empty() => Spent::Otherwise,
            (true, true) => Spent::Starved,
            (true, false) => Spent::Otherwise,
            (false, _) => Spent::Flowing,
        };
        self.spill.look(self.now, (spent, short), self.counts.payload);
    }

    /// What the next read would be, bytes.
    fn least_read(&self) -> Option<u64> {
        let large = (self.plan.files > 0).then_some(self.plan.object_max);
        let small = self.small.iter().find_map(|id| self.files.get(id)).map(|file| file.size());
        large.into_iter().chain(small).min()
    }

    /// Nothing of it is sent any more.
    pub(super) fn drop_spill(&mut self) {
        for slot in std::mem::take(&mut self.spill.stored).into_values().flatten() {
            self.spill.release(slot);
        }
        for Ready { buffer, held, .. } in std::mem::take(&mut self.spill.kept) {
            self.buffers_used -= held;
            self.actions.extend(buffer.map(SourceAction::FreeBuffer));
        }
    }
}
