//! How many requests may be in flight, at each target and in all.
//!
//! In: requests that start and end, and the time. Out: whether another may start at a target, and which are
//! past their deadline. Such a request no longer counts at its target, so that others of that target and
//! of the rest go on; but the stuck ones together are bounded, for each holds a buffer and perhaps a thread.
//!
//! Invariant: no target holds more than `depth`, all targets together at most `depths` times that which are
//! not stuck, and at most `stuck_max` are stuck at a time before their targets rest. Requests of other
//! targets that were in flight by then may get stuck too; with all of them it is never more than
//! `depths * depth + stuck_max` in flight. (A depth that is lowered takes hold as requests end.)

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::time::Duration;

use crate::ids::Time;

/// So many depths all targets of an end together have in flight: what storage with many targets wants, and
/// engines and buffers can have.
pub const TARGET_DEPTHS: u32 = 8;

/// Requests in flight, each at a target of type `T`. See the module's head.
#[derive(Clone, Debug)]
pub struct Slots<T> {
    depth: u32,
    depths: u32,
    stuck_max: u32,
    in_flight: HashMap<u64, Held<T>>,
    targets: HashMap<T, Load>,
    /// Requests that hold a slot, over all targets.
    running: u32,
    /// When each of those loses it, and its id.
    deadlines: BTreeSet<(Time, u64)>,
    /// Requests that lost their slot: when they were last known to be alive, and id; with their target.
    stuck: BTreeMap<(Time, u64), T>,
}

#[derive(Clone, Debug)]
struct Held<T> {
    target: T,
    started: Time,
    /// When it started or was last renewed.
    alive: Time,
    deadline: Time,
    stuck: bool,
}

/// What a target has in flight.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    running: u32,
    stuck: u32,
}

/// A request that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended<T> {
    pub target: T,
    pub service: Duration,
    /// It had lost its slot.
    pub was_stuck: bool,
}

/// A request that lost its slot and has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stuck<T> {
    pub id: u64,
    pub target: T,
    /// When it started, or was last renewed.
    pub started: Time,
}

impl<T: Copy + Eq + Hash> Slots<T> {
    /// `depth` for each target, `depths` times as many for all; of both at least 1 is taken.
    pub fn new(depth: u32, depths: u32, stuck_max: u32) -> Slots<T> {
        Slots {
            depth: depth.max(1),
            depths: depths.max(1),
            stuck_max,
            in_flight: HashMap::new(),
            targets: HashMap::new(),
            running: 0,
            deadlines: BTreeSet::new(),
            stuck: BTreeMap::new(),
        }
    }

    /// Changes the depth. What is in flight stays; nothing starts until there is room again.
    pub fn set_depth(&mut self, depth: u32) {
        self.depth = depth.max(1);
    }

    /// Changes how many may be stuck before their targets rest.
    pub fn set_stuck_max(&mut self, stuck_max: u32) {
        self.stuck_max = stuck_max;
    }

    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Whether a request may start at `target`.
    pub fn may_start(&self, target: T) -> bool {
        let load = self.targets.get(&target).copied().unwrap_or_default();
        let stuck = self.stuck.len() as u64;
        let running_max = u64::from(self.depths) * u64::from(self.depth);
        let rests = load.stuck > 0 && stuck >= u64::from(self.stuck_max);
        load.running < self.depth
            && u64::from(self.running) < running_max
            && !rests
            && u64::from(self.running) + stuck < running_max + u64::from(self.stuck_max)
    }

    /// A request starts; it loses its slot when it is not over after `deadline`.
    ///
    /// # Panics
    /// If it may not start, or its id is in flight.
    pub fn start(&mut self, id: u64, target: T, now: Time, deadline: Duration) {
        assert!(self.may_start(target), "only what may start starts");
        let held = Held { target, started: now, alive: now, deadline: now.after(deadline), stuck: false };
        self.deadlines.insert((held.deadline, id));
        assert!(self.in_flight.insert(id, held).is_none(), "an id is in flight once");
        self.targets.entry(target).or_default().running += 1;
        self.running += 1;
    }

    /// A request ended, stuck or not. `None`: it was not in flight.
    pub fn end(&mut self, id: u64, now: Time) -> Option<Ended<T>> {
        let held = self.take_out(id)?;
        Some(Ended { target: held.target, service: now.since(held.started), was_stuck: held.stuck })
    }

    /// A request made progress (an operation of several steps): its deadline counts from `now`. If it had
    /// lost its slot, it gets one back if there is room, and else stays among the stuck. Unknown ids are
    /// ignored.
    pub fn renew(&mut self, id: u64, now: Time, deadline: Duration) {
        let Some(mut held) = self.take_out(id) else { return };
        held.alive = now;
        held.deadline = now.after(deadline);
        held.stuck = held.stuck && !self.may_start(held.target);
        let load = self.targets.entry(held.target).or_default();
        if held.stuck {
            load.stuck += 1;
            self.stuck.insert((held.alive, id), held.target);
        } else {
            load.running += 1;
            self.running += 1;
            self.deadlines.insert((held.deadline, id));
        }
        self.in_flight.insert(id, held);
    }

    fn take_out(&mut self, id: u64) -> Option<Held<T>> {
        let held = self.in_flight.remove(&id)?;
        let load = self.targets.get_mut(&held.target).expect("a target with requests has its load");
        if held.stuck {
            load.stuck -= 1;
            self.stuck.remove(&(held.alive, id));
        } else {
            load.running -= 1;
            self.running -= 1;
            self.deadlines.remove(&(held.deadline, id));
        }
        if load.running == 0 && load.stuck == 0 {
            self.targets.remove(&held.target);
        }
        Some(held)
    }

    /// Takes the slots of those whose deadline is at or before `now`. Returns how many those are.
    pub fn tick(&mut self, now: Time) -> usize {
        let mut count = 0;
        while let Some(&(deadline, id)) = self.deadlines.first() {
            if deadline > now {
                break;
            }
            self.deadlines.pop_first();
            let held = self.in_flight.get_mut(&id).expect("a request with a deadline is in flight");
            held.stuck = true;
            self.stuck.insert((held.alive, id), held.target);
            let load = self.targets.get_mut(&held.target).expect("a target with requests has its load");
            load.running -= 1;
            load.stuck += 1;
            self.running -= 1;
            count += 1;
        }
        count
    }

    /// The next moment at which a request may lose its slot.
    pub fn next_deadline(&self) -> Option<Time> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Requests that lost their slot, the oldest first.
    pub fn stuck(&self) -> impl Iterator<Item = Stuck<T>> {
        self.stuck.iter().map(|(&(started, id), &target)| Stuck { id, target, started })
    }

    /// Requests that hold a slot at `target`.
    pub fn running_at(&self, target: T) -> u32 {
        self.targets.get(&target).map_or(0, |load| load.running)
    }

    /// Requests that hold a slot.
    pub fn running(&self) -> u32 {
        self.running
    }

    /// Requests in flight, stuck ones included.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }
}

#[cfg(test)]
#[path = "slots_tests.rs"]
mod tests;
