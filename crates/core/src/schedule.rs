//! Which object is read or written next, and at which storage target: the decision of LADS (FAST '15),
//! without its thresholds, for either end.
//!
//! In: what waits at each target, by ranges of objects; how long each request took there; how the sink's
//! targets fare; limits; the time. Out: the next object, how each target fares, and when to ask again
//! although nothing happened.
//! Reading order: `types`, this file, then [`queue`] (what waits), `history` (how long things take), the
//! policies of [`POLICIES`], each in its file; [`buffer_shares`] and [`table`] stand alone.
//!
//! The source's machine asks for reads, the sink's for writes: the same type, one at each end. At the sink
//! all that waits has its buffer and is of sink target [`SinkTarget::ANY`].
//!
//! Invariants: an object is given out once for each time that it was added; never more in flight than
//! [`Limits`] say, nor at a target more than its policy lets it have; nothing of a sink target that is shut;
//! whatever waits at a target that answers, for a sink target that is not shut, has its turn within bounded
//! time, however much else there is. The same calls give the same answers.
//! Left out: offsets, lengths, buffers and grants. Who calls knows them: it shuts a sink target whose share
//! is used up, and does not ask while it has no buffer.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use crate::ids::{FileId, SinkTarget, TargetId, Time};

mod adaptive;
mod bits;
pub mod buffer_shares;
mod file;
mod history;
mod lads;
pub mod queue;
mod round_robin;
pub mod table;
mod target_ranks;
mod types;

use bits::Bits;
use history::{History, Told};
use queue::{Queues, Way};
use target_ranks::LEVELS;
pub use types::{Full, Health, Issue, LadsNumbers, Limits, NoPolicy, Policy, PolicyKind, Run, TargetState};

/// Every policy there is, the default first. A new one is a file with its `POLICY` and a line here.
pub static POLICIES: [PolicyKind; 4] = [adaptive::POLICY, round_robin::POLICY, file::POLICY, lads::POLICY];

/// Most targets of an end, and targets of a sink. What lies at further ones is scheduled as if it lay at the
/// last; a sink target beyond is [`SinkTarget::ANY`].
pub const TARGETS_MAX: usize = 4096;
/// A slow target of the sink gets one object so often, whatever else could go, so that the sink sees when it
/// recovers.
pub const TRY_EVERY: Duration = Duration::from_millis(500);

/// What a policy decides, mostly of each target. Targets are numbers below [`TARGETS_MAX`].
trait Rule {
    /// The target has a request more, `in_flight` now.
    fn on_start(&mut self, _t: usize, _in_flight: u32, _now: Time) {}
    /// A request came back after `service`, `None` if it failed; `in_flight` are left.
    fn on_done(&mut self, t: usize, in_flight: u32, sample: Option<Sample>, limits: &Limits, now: Time);
    /// The time that [`Rule::deadline`] named has come, or not yet.
    fn on_time(&mut self, _t: usize, _in_flight: u32, _now: Time) {}
    fn deadline(&self, _t: usize, _in_flight: u32) -> Option<Time> {
        None
    }
    /// Requests that it may have in flight if there is room for them in all.
    fn window(&self, t: usize, limits: &Limits) -> u32;
    /// The same when no healthy target has anything to do.
    fn spare(&self, t: usize, limits: &Limits) -> u32 {
        self.window(t, limits)
    }
    fn health(&self, _t: usize) -> Health {
        Health::Healthy
    }
    /// It is this one's turn: whether it is passed over for this time. Not for ever, if it is asked often
    /// enough.
    fn passes_over(&mut self, _t: usize, _now: Time) -> bool {
        false
    }
    /// Whether targets have more turns that have nothing in flight, or at which much waits.
    fn spreads(&self) -> bool {
        false
    }
    /// There are no turns: what is first of all goes next, and the rest waits behind it. Only such a rule is
    /// asked for [`Rule::first`].
    fn is_in_order(&self) -> bool {
        false
    }
    /// The object that is next of this target may be another one. The rule is in order, so all that waits
    /// there is in the list of [`SinkTarget::ANY`].
    fn on_waiting(&mut self, _t: usize, _queues: &mut Queues) {}
    /// The target of the object that is first of all.
    fn first(&mut self, _queues: &mut Queues) -> Option<usize> {
        None
    }
    fn history(&self) -> &History;
}

/// A request that came back.
#[derive(Clone, Copy, Debug)]
struct Sample {
    bytes: u64,
    service: Duration,
}

/// Targets that may have a request more.
#[derive(Clone, Debug, Default)]
struct Ring {
    ready: Bits,
    /// Where the next turn begins.
    at: usize,
}

/// Targets that may have a request more, by how much waits there: each ring has those with up to a quarter
/// more than the one before.
#[derive(Clone, Debug)]
struct Lengths {
    rings: Vec<Ring>,
    /// Rings that are not empty, and how many are in each.
    filled: u128,
    fills: Vec<u16>,
}

impl Default for Lengths {
    fn default() -> Lengths {
        Lengths { rings: vec![Ring::default(); LEVELS], filled: 0, fills: vec![0; LEVELS] }
    }
}

impl Lengths {
    fn set(&mut self, level: u8, t: usize, on: bool) {
        let level = usize::from(level);
        if self.rings[level].ready.set(t, on) {
            let fill = &mut self.fills[level];
            *fill = if on { *fill + 1 } else { *fill - 1 };
            let filled = u128::from(*fill > 0) << level;
            self.filled = self.filled & !(1 << level) | filled;
        }
    }
}

/// Chooses. See the module's head.
pub struct Schedule {
    limits: Limits,
    queues: Queues,
    rule: Box<dyn Rule + Send>,
    in_flight: Vec<u32>,
    total: u32,
    /// In flight at targets that are not healthy; at those that are hung.
    slow: u32,
    hung: u32,
    /// Those that have nothing in flight, and those that have (all, unless the policy spreads).
    healthy_rings: [Ring; 2],
    /// The same targets by how much waits there.
    lengths: [Lengths; 2],
    /// In which ring of these each target is.
    levels: Vec<u8>,
    /// The next turn goes by that.
    by_length: bool,
    slow_ring: Ring,
    /// Slow targets that may have something, although they rest, when nobody else has work.
    spare_ring: Ring,
    /// Slow targets that rest and have nothing in flight.
    resting_ring: Ring,
    /// Healthy targets at which something waits.
    waiting: Bits,
    waiting_count: usize,
    health: Vec<Health>,
    changed: Bits,
    /// What is to be looked at when: a target, or from [`TARGETS_MAX`] on a sink target. Perhaps earlier than
    /// needed.
    timers: BinaryHeap<Reverse<(Time, u32)>>,
    /// When the timer of each of those is, if there is one.
    armed: Vec<Time>,
    /// How targets of the sink fare, and when a slow one may have an object again.
    sink: Vec<(Health, Time)>,
    /// Targets that ever had something; and those that have something waiting or in flight.
    known: Bits,
    known_count: usize,
    busy: Bits,
    busy_count: usize,
}

/// No timer.
const NEVER: Time = Time(u64::MAX);

impl Schedule {
    /// A schedule with nothing to do.
    pub fn new(policy: Policy, limits: Limits) -> Schedule {
        Schedule {
            limits: limits.sane(),
            queues: Queues::default(),
            rule: policy.rule(),
            in_flight: Vec::new(),
            total: 0,
            slow: 0,
            hung: 0,
            healthy_rings: Default::default(),
            lengths: Default::default(),
            levels: Vec::new(),
            by_length: false,
            slow_ring: Ring::default(),
            spare_ring: Ring::default(),
            resting_ring: Ring::default(),
            waiting: Bits::default(),
            waiting_count: 0,
            health: Vec::new(),
            changed: Bits::default(),
            timers: BinaryHeap::new(),
            armed: Vec::new(),
            sink: Vec::new(),
            known: Bits::default(),
            known_count: 0,
            busy: Bits::default(),
            busy_count: 0,
        }
    }

    /// From now on. What is in flight stays; nothing begins until there is room again.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits.sane();
        for t in 0..self.in_flight.len() {
            self.refresh(t);
        }
    }

    /// Objects of a file that may be given out from now on, behind all that waits at the target.
    ///
    /// # Errors
    /// There is no room.
    ///
    /// # Panics
    /// If the run is empty, or its groups are.
    pub fn add(&mut self, target: TargetId, run: Run) -> Result<(), Full> {
        self.push(target, run, false)
    }

    /// As [`Schedule::add`], before all that waits at the target: what must go once more.
    ///
    /// # Errors
    /// As there.
    pub fn add_again(&mut self, target: TargetId, run: Run) -> Result<(), Full> {
        self.push(target, run, true)
    }

    fn push(&mut self, target: TargetId, run: Run, again: bool) -> Result<(), Full> {
        assert!(run.count > 0 && run.group > 0, "a run has objects");
        let t = usize::from(target.0).min(TARGETS_MAX - 1);
        let target = TargetId(u16::try_from(t).expect("a target"));
        let run = Run { sink: known(run.sink), ..run };
        let list = if self.rule.is_in_order() { SinkTarget::ANY } else { run.sink };
        self.queues.add(target, list, run, again)?;
        if self.in_flight.len() <= t {
            self.in_flight.resize(t + 1, 0);
            self.health.resize(t + 1, Health::Healthy);
            self.levels.resize(t + 1, 0);
        }
        if self.known.set(t, true) {
            self.known_count += 1;
            if self.known_count == 2 {
                // The first one has a peer now.
                (0..t).for_each(|first| self.refresh(first));
                (t + 1..self.in_flight.len()).for_each(|first| self.refresh(first));
            }
        }
        self.refresh(t);
        Ok(())
    }

    /// Only one target ever had anything. It has no peer to be held against, and nobody waits for what it
    /// holds: it may have [`Limits::each`] in flight, however it fares.
    pub fn is_lone(&self) -> bool {
        self.known_count <= 1
    }

    /// Runs for which there is room.
    pub fn room(&self) -> usize {
        self.queues.room()
    }

    /// Nothing of this file is given out any more, until it is added anew. What was given out still counts
    /// until it is done.
    pub fn forget(&mut self, file: FileId) {
        self.queues.forget(file);
    }

    /// Something waits of a target of the sink, besides [`SinkTarget::ANY`], and could go before what is of
    /// that one. Where one file goes after another nothing can.
    pub fn has_placed(&self) -> bool {
        !self.rule.is_in_order() && self.queues.has_placed()
    }

    /// Whether a target of the sink has no room. `false` at first.
    pub fn set_shut(&mut self, sink_target: SinkTarget, shut: bool) {
        if sink_target == known(sink_target) {
            self.queues.set_shut(sink_target, shut);
        }
    }

    /// How a target of the sink fares, as the sink says. What goes to one that is not healthy goes when
    /// nothing else can; and one object every [`TRY_EVERY`], unless it hangs.
    pub fn handle_sink_health(&mut self, sink_target: SinkTarget, health: Health, now: Time) {
        if sink_target == SinkTarget::ANY || sink_target != known(sink_target) {
            return;
        }
        let c = usize::from(sink_target.0);
        if self.sink.len() <= c {
            self.sink.resize(c + 1, (Health::Healthy, Time(0)));
        }
        self.sink[c] = (health, now.after(TRY_EVERY));
        self.queues.set_poor(sink_target, health != Health::Healthy);
        if is_tried(health) {
            self.arm(TARGETS_MAX + c, now.after(TRY_EVERY));
        }
    }

    /// The next object to begin, which is in flight from here on; `None`: there is none, or it may not begin
    /// now.
    pub fn next(&mut self, now: Time) -> Option<Issue> {
        self.next_of(&[Way::Good, Way::Any], now)
    }

    /// As [`Schedule::next`], also of sink targets that are shut: who asks has another place for it until
    /// they are not. Nothing of [`SinkTarget::ANY`] while that one is.
    pub fn next_ahead(&mut self, now: Time) -> Option<Issue> {
        self.next_of(&[Way::Ahead], now)
    }

    /// Something waits, and all of it that could go is of sink targets that are shut.
    pub fn is_shut_out(&mut self) -> bool {
        if self.rule.is_in_order() {
            let found =
                self.rule.first(&mut self.queues).and_then(|t| self.queues.sink_of(t, SinkTarget::ANY));
            return found.is_some_and(|sink_target| {
                sink_target != SinkTarget::ANY && self.queues.is_shut(sink_target)
            });
        }
        self.queues.find(&self.known, 0, Way::Any).is_none()
            && self.queues.find(&self.known, 0, Way::Ahead).is_some()
    }

    fn next_of(&mut self, ways: &[Way], now: Time) -> Option<Issue> {
        self.handle_tick(now);
        if self.total - self.excused() >= self.limits.total {
            return None;
        }
        if self.rule.is_in_order() {
            return self.next_in_order(ways == [Way::Ahead], now);
        }
        for &way in ways {
            // Slow targets have their turn, but no more than a part of what may be in flight while others
            // have work.
            let issue = if self.slow < self.slow_max() { self.turn(Of::Slow, way, now) } else { None };
            let issue = issue.or_else(|| self.turn_of_healthy(way, now));
            if issue.is_some() {
                return issue;
            }
            // The healthy ones can use no more now: what they may want in a moment is left free. Then a rest
            // spares nobody anything, and who has recovered would be found out late.
            if self.slow < (self.limits.total / SLOW_PART_OF_IDLE).max(1) {
                let idle = if self.waiting_count == 0 { Of::Spare } else { Of::Resting };
                let issue = self.turn(Of::Slow, way, now);
                let issue = issue.or_else(|| self.turn(idle, way, now));
                if issue.is_some() {
                    return issue;
                }
            }
        }
        None
    }

    /// Objects in flight that take no room from the others: those at targets that hang, up to half of
    /// [`Limits::total`].
    pub fn excused(&self) -> u32 {
        self.hung.min(self.limits.total / 2)
    }

    /// Objects in flight at targets that are not healthy.
    pub fn slow_in_flight(&self) -> u32 {
        self.slow
    }

    /// Most in flight at slow targets while healthy ones have work.
    fn slow_max(&self) -> u32 {
        (self.limits.total / SLOW_PART).max(1)
    }

    /// A target with nothing in flight comes first: a request there adds all that the target can do,
    /// elsewhere it may only wait behind another. Every second turn goes to one at which most waits, or the
    /// last objects would all be of a few targets.
    fn turn_of_healthy(&mut self, way: Way, now: Time) -> Option<Issue> {
        self.by_length = self.rule.spreads() && !self.by_length;
        for side in [IDLE, BUSY] {
            let mut left = if self.by_length { self.lengths[side].filled } else { 0 };
            while left != 0 {
                let level = left.ilog2();
                let issue = self.turn(Of::Level(side, level as usize), way, now);
                if issue.is_some() {
                    return issue;
                }
                left ^= 1 << level;
            }
            let issue = self.turn(Of::Healthy(side), way, now);
            if issue.is_some() {
                return issue;
            }
        }
        None
    }

    fn turn(&mut self, of: Of, way: Way, now: Time) -> Option<Issue> {
        loop {
            let ring = match of {
                Of::Healthy(side) => &mut self.healthy_rings[side],
                Of::Level(side, level) => &mut self.lengths[side].rings[level],
                Of::Slow => &mut self.slow_ring,
                Of::Spare => &mut self.spare_ring,
                Of::Resting => &mut self.resting_ring,
            };
            let (t, sink_target) = self.queues.find(&ring.ready, ring.at, way)?;
            ring.at = t + 1;
            if self.is_lone() || !self.rule.passes_over(t, now) {
                return Some(self.begin(t, sink_target, now));
            }
        }
    }

    fn next_in_order(&mut self, ahead: bool, now: Time) -> Option<Issue> {
        let t = self.rule.first(&mut self.queues)?;
        // The rest waits behind it.
        let sink_target = self.queues.sink_of(t, SinkTarget::ANY)?;
        let waits = self.queues.is_shut(sink_target) && (!ahead || sink_target == SinkTarget::ANY);
        (!waits).then(|| self.begin(t, SinkTarget::ANY, now))
    }

    fn begin(&mut self, t: usize, list: SinkTarget, now: Time) -> Issue {
        let (run, object) = self.queues.take(t, list);
        self.in_flight[t] += 1;
        self.total += 1;
        match self.health[t] {
            Health::Healthy => {}
            Health::Hung => (self.slow, self.hung) = (self.slow + 1, self.hung + 1),
            Health::Congested | Health::Resting => self.slow += 1,
        }
        self.rule.on_start(t, self.in_flight[t], now);
        self.refresh(t);
        if let Some((health, due)) = self.sink.get_mut(usize::from(run.sink.0))
            && is_tried(*health)
        {
            *due = now.after(TRY_EVERY);
            self.arm(TARGETS_MAX + usize::from(run.sink.0), now.after(TRY_EVERY));
        }
        let target = TargetId(u16::try_from(t).expect("a target"));
        Issue { target, file: run.file, sink: run.sink, object }
    }

    /// An object is done at its target: `service` is from its submission to its end there (at a sink: until
    /// it is on media, or as near as can be known), `bytes` its length.
    ///
    /// # Panics
    /// If nothing is in flight there.
    pub fn done(&mut self, target: TargetId, bytes: u64, service: Duration, now: Time) {
        self.end(target, Some(Sample { bytes, service }), now);
    }

    /// An object failed at its target, or came to nothing: it proves nothing about the target but that it
    /// answers.
    ///
    /// # Panics
    /// If nothing is in flight there.
    pub fn failed(&mut self, target: TargetId, now: Time) {
        self.end(target, None, now);
    }

    /// An object was not asked of its target at all (nobody needs it any more, or it was at hand elsewhere):
    /// that says nothing about the target.
    ///
    /// # Panics
    /// If nothing is in flight there.
    pub fn not_asked(&mut self, target: TargetId, now: Time) {
        let t = self.take_out(target);
        if self.in_flight[t] == 0 && self.health[t] == Health::Hung {
            // Else nothing would ever come back from it.
            self.rule.on_done(t, 0, None, &self.limits, now);
        }
        self.refresh(t);
    }

    fn end(&mut self, target: TargetId, sample: Option<Sample>, now: Time) {
        let t = self.take_out(target);
        self.rule.on_done(t, self.in_flight[t], sample, &self.limits, now);
        self.refresh(t);
    }

    fn take_out(&mut self, target: TargetId) -> usize {
        let t = usize::from(target.0).min(TARGETS_MAX - 1);
        let in_flight = self.in_flight.get_mut(t).filter(|n| **n > 0).expect("something is in flight there");
        *in_flight -= 1;
        self.total -= 1;
        match self.health[t] {
            Health::Healthy => {}
            Health::Hung => (self.slow, self.hung) = (self.slow - 1, self.hung - 1),
            Health::Congested | Health::Resting => self.slow -= 1,
        }
        t
    }

    /// Time passed.
    pub fn handle_tick(&mut self, now: Time) {
        while let Some(&Reverse((time, key))) = self.timers.peek() {
            if time > now {
                break;
            }
            self.timers.pop();
            let key = key as usize;
            if self.armed[key] != time {
                continue;
            }
            self.armed[key] = NEVER;
            if key < TARGETS_MAX {
                self.rule.on_time(key, self.in_flight[key], now);
                self.refresh(key);
                continue;
            }
            let (health, due) = self.sink[key - TARGETS_MAX];
            if is_tried(health) && due > now {
                self.arm(key, due);
            } else if is_tried(health) {
                self.queues.try_poor(SinkTarget(u16::try_from(key - TARGETS_MAX).expect("a sink target")));
            }
        }
    }

    /// When [`Schedule::next`] may have something although nothing was added and nothing ended:
    /// [`Schedule::handle_tick`] is due then, also if there is no room to ask for more.
    pub fn next_deadline(&self) -> Option<Time> {
        self.timers.peek().map(|Reverse((time, _))| *time)
    }

    fn arm(&mut self, key: usize, time: Time) {
        if self.armed.len() <= key {
            self.armed.resize(key + 1, NEVER);
        }
        // An earlier one is kept: it looks again.
        let before = self.armed[key];
        if time < before {
            self.armed[key] = time;
            self.timers.push(Reverse((time, u32::try_from(key).expect("few keys"))));
        }
    }

    /// Objects that were given out and are not done.
    pub fn in_flight(&self) -> u32 {
        self.total
    }

    /// Targets that have objects in flight or waiting.
    pub fn busy(&self) -> usize {
        self.busy_count
    }

    /// How a target fares.
    pub fn health(&self, target: TargetId) -> Health {
        self.health.get(usize::from(target.0)).copied().unwrap_or_default()
    }

    /// A target whose health changed since this was asked about it, and how it is now. That a congested one
    /// rests, or has rested, is no change.
    pub fn take_change(&mut self) -> Option<(TargetId, Health)> {
        let t = self.changed.next(0, |_| u64::MAX)?;
        self.changed.set(t, false);
        Some((TargetId(u16::try_from(t).expect("a target")), self.health[t]))
    }

    /// Targets that have something to do and are not healthy.
    pub fn unwell(&self) -> impl Iterator<Item = (TargetId, Health)> + '_ {
        self.sick().filter(|(target, _)| self.busy.contains(usize::from(target.0)))
    }

    /// Targets that are not healthy, whether or not they have something to do.
    pub fn sick(&self) -> impl Iterator<Item = (TargetId, Health)> + '_ {
        let all = self.health.iter().enumerate().filter(|(_, health)| **health != Health::Healthy);
        all.map(|(t, health)| (TargetId(u16::try_from(t).expect("a target")), *health))
    }

    /// All targets that ever had something.
    pub fn targets(&self) -> impl Iterator<Item = TargetState> + '_ {
        let known = |(t, _): &(usize, &u32)| self.known.contains(*t);
        self.in_flight.iter().enumerate().filter(known).map(|(t, in_flight)| {
            let Told { service, best, done, bytes } = self.rule.history().told(t);
            TargetState {
                target: TargetId(u16::try_from(t).expect("a target")),
                health: self.health[t],
                waiting: self.queues.objects(t),
                in_flight: *in_flight,
                window: self.window(t),
                service,
                best,
                done,
                bytes,
            }
        })
    }
}

/// Slow targets together have at most one part in so many of what may be in flight, while others have work.
const SLOW_PART: u32 = 8;
/// .. and while these cannot use it.
const SLOW_PART_OF_IDLE: u32 = 2;
#[derive(Clone, Copy)]
enum Of {
    Healthy(usize),
    Level(usize, usize),
    Slow,
    Spare,
    Resting,
}

/// Sides of healthy targets: those with nothing in flight, and the others.
const IDLE: usize = 0;
const BUSY: usize = 1;

/// A sink target of this health gets an object now and then.
fn is_tried(health: Health) -> bool {
    matches!(health, Health::Congested | Health::Resting)
}

/// A sink target that there may be.
fn known(sink_target: SinkTarget) -> SinkTarget {
    if usize::from(sink_target.0) < TARGETS_MAX { sink_target } else { SinkTarget::ANY }
}

#[cfg(test)]
#[path = "schedule/tests.rs"]
mod tests;
