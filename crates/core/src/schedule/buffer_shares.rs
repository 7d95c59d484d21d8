//! What part of the sink's buffers each of its storage targets may hold.
//!
//! In: which targets are wanted; bytes that arrived for them and were written; how long writes took; the
//! round trip. Out: for each sink target the bytes that may have been sent for it since the session began,
//! for `GRANT`.
//!
//! A share is what the target drains within a write and [`GAIN`] round trips, and one object: what is being
//! written, what is on its way, and as much again that waits at the sink, so that a target can show that it
//! could do more. So a slow target's share is small, and that of one that hangs falls with every [`HALF`] in
//! which nothing was written, down to one object. Alone a target may hold all.
//!
//! Invariants: a share is at least one object and never more than the memory; the number that was told never
//! falls, for what was granted cannot be taken back: a share that shrinks takes hold as buffers become free.
//! Shares together may be more than the memory, for most are not used up: they are limits below the general
//! grant (sink target 0), which alone says that there is room.
//! Left out: the general grant, and which sink target a file's objects go to.

use std::time::Duration;

use super::TARGETS_MAX;
use super::bits::Bits;
use crate::ids::{SinkTarget, Time};

/// See the module's head.
pub const GAIN: f64 = 2.0;
/// What an object takes from its grant until the source sends it, where memory allows for that.
pub const AT_SOURCE: Duration = Duration::from_millis(250);
/// A target of which nothing is known may hold so many objects.
pub const START_OBJECTS: u64 = 4;
/// A target's rate counts half when it had something to write and wrote nothing for so long.
pub const HALF: Duration = Duration::from_millis(500);
/// A rate is measured over so long at least.
const MEASURE_MIN: Duration = Duration::from_millis(50);
/// What was told is told anew when this part of the share was added, or one object.
const TELL_PART: u64 = 8;

/// The shares. See the module's head.
#[derive(Clone, Debug)]
pub struct Shares {
    memory: u64,
    object: u64,
    round_trip: Duration,
    sink_targets: Vec<Of>,
    /// SinkTargets that somebody wants to send to.
    wanted: usize,
    changed: Bits,
}

#[derive(Clone, Copy, Debug, Default)]
struct Of {
    /// Files that go to it.
    wanted: u32,
    /// Bytes that arrived and were not written yet.
    held: u64,
    freed: u64,
    told: u64,
    /// Bytes a nanosecond; `None`: not known.
    rate: Option<f64>,
    /// Smoothed, nanoseconds.
    service: f64,
    /// Since when the rate is measured, while something is held; and what was written since, and held before
    /// that.
    since: Time,
    written: u64,
    busy: Duration,
    /// When something was last written, or came after all had been.
    alive: Time,
}

impl Shares {
    /// `object`: the largest object's length (raised by [`Shares::set_object`]).
    pub fn new(memory: u64, object: u64, round_trip: Duration) -> Shares {
        let object = object.max(1);
        let memory = memory.max(object);
        Shares { memory, object, round_trip, sink_targets: Vec::new(), wanted: 0, changed: Bits::default() }
    }

    /// A longer object came. Memory is at least as much.
    pub fn set_object(&mut self, object: u64) {
        self.object = self.object.max(object);
        self.memory = self.memory.max(self.object);
    }

    /// The path's round trip, when it is measured anew.
    pub fn set_round_trip(&mut self, round_trip: Duration) {
        self.round_trip = round_trip;
    }

    /// A file that goes to this sink target was announced.
    ///
    /// # Panics
    /// If the sink target is [`SinkTarget::ANY`] or [`TARGETS_MAX`] or more.
    pub fn handle_wanted(&mut self, sink_target: SinkTarget) {
        let of = self.of(sink_target);
        of.wanted += 1;
        if of.wanted == 1 {
            self.wanted += 1;
            self.changed.set(sink_target.0.into(), true);
        }
    }

    /// Such a file is over. Unknown ones are ignored.
    pub fn handle_over(&mut self, sink_target: SinkTarget) {
        let Some(of) = self.sink_targets.get_mut(usize::from(sink_target.0)).filter(|of| of.wanted > 0)
        else {
            return;
        };
        of.wanted -= 1;
        if of.wanted == 0 {
            self.wanted -= 1;
            if self.wanted == 1 {
                // It is alone now.
                let all = self.sink_targets.iter().position(|of| of.wanted > 0);
                self.changed.set(all.expect("one is wanted"), true);
            }
        }
    }

    /// Bytes for this sink target are in a buffer.
    pub fn handle_arrived(&mut self, sink_target: SinkTarget, bytes: u64, now: Time) {
        let of = self.of(sink_target);
        if of.held == 0 {
            (of.since, of.alive) = (now, now);
        }
        of.held = of.held.saturating_add(bytes);
    }

    /// They were written (or given up), and their buffer is free. `service`: how long the write took, if
    /// there was one.
    pub fn handle_freed(
        &mut self,
        sink_target: SinkTarget,
        bytes: u64,
        service: Option<Duration>,
        now: Time,
    ) {
        let round_trip = self.round_trip;
        let of = self.of(sink_target);
        let bytes = bytes.min(of.held);
        of.held -= bytes;
        of.freed += bytes;
        of.alive = now;
        if let Some(service) = service {
            let nanos = service.as_nanos() as f64;
            of.service = if of.service == 0.0 { nanos } else { of.service + (nanos - of.service) / 8.0 };
        }
        of.written += bytes;
        let busy = of.busy + now.since(of.since);
        if busy >= round_trip.max(MEASURE_MIN) {
            let rate = of.written as f64 / busy.as_nanos() as f64;
            of.rate = Some(of.rate.map_or(rate, |before| (before + rate) / 2.0));
            (of.since, of.written, of.busy) = (now, 0, Duration::ZERO);
        } else if of.held == 0 {
            // While nothing is there no rate is measured.
            of.busy = busy;
        }
        self.changed.set(sink_target.0.into(), true);
    }

    /// What this sink target may hold, on its way and here, in bytes.
    pub fn share(&self, sink_target: SinkTarget, now: Time) -> u64 {
        let of = self.sink_targets.get(usize::from(sink_target.0)).copied().unwrap_or_default();
        if self.wanted <= 1 && (of.wanted > 0 || self.wanted == 0) {
            return self.memory;
        }
        let Some(rate) = of.rate else {
            return self.object.saturating_mul(START_OBJECTS).min(self.memory);
        };
        let silent = if of.held == 0 { Duration::ZERO } else { now.since(of.alive) };
        let halves = silent.as_nanos() / HALF.as_nanos();
        let rate = rate / 2.0_f64.powi(i32::try_from(halves).unwrap_or(i32::MAX));
        let time = GAIN * self.round_trip.as_nanos() as f64 + of.service;
        let equal = self.memory / self.wanted.max(1) as u64;
        let longer = (rate * (time + AT_SOURCE.as_nanos() as f64)).min((equal / 2) as f64);
        let drained = (rate * time).max(longer) as u64;
        drained.saturating_add(self.object).min(self.memory)
    }

    /// A sink target whose grant grew by enough to be told, and the bytes that may have been sent for it in
    /// all.
    pub fn poll_grant(&mut self, now: Time) -> Option<(SinkTarget, u64)> {
        while let Some(c) = self.changed.next(0, |_| u64::MAX) {
            self.changed.set(c, false);
            let sink_target = SinkTarget(u16::try_from(c).expect("a sink target"));
            let share = self.share(sink_target, now);
            let of = &mut self.sink_targets[c];
            let total = of.freed.saturating_add(share);
            let least = (share / TELL_PART).max(self.object.min(share / 2)).max(1);
            // Where what was told is less than an object, whatever there is: it may be waited for.
            let short = of.told < of.freed.saturating_add(self.object) && total > of.told;
            if of.wanted > 0 && (short || total >= of.told.saturating_add(least)) {
                of.told = total;
                return Some((sink_target, total));
            }
        }
        None
    }

    /// SinkTargets that somebody wants to send to.
    pub fn wanted(&self) -> usize {
        self.wanted
    }

    /// Whether somebody wants to send to this sink target.
    pub fn is_wanted(&self, sink_target: SinkTarget) -> bool {
        self.sink_targets.get(usize::from(sink_target.0)).is_some_and(|of| of.wanted > 0)
    }

    /// What was told of this sink target so far.
    pub fn told(&self, sink_target: SinkTarget) -> u64 {
        self.sink_targets.get(usize::from(sink_target.0)).map_or(0, |of| of.told)
    }

    fn of(&mut self, sink_target: SinkTarget) -> &mut Of {
        let c = usize::from(sink_target.0);
        assert!(sink_target != SinkTarget::ANY && c < TARGETS_MAX, "a sink target of a target");
        if self.sink_targets.len() <= c {
            self.sink_targets.resize(c + 1, Of::default());
        }
        &mut self.sink_targets[c]
    }
}
