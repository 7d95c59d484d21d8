//! A transfer between two farms over one link, both ends scheduled by the very same core.
//!
//! What is modelled: reads and writes, buffers at both ends, the link's rate and delay, the general grant,
//! shares of the sink's targets, health told by the sink; what the sink says arrives half a round trip later.
//! What is not: files' openings and ends, epochs, digests.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use fastrand::Rng;
use haul_core::ids::{FileId, SinkTarget, TargetId, Time};
use haul_core::schedule::buffer_shares::Shares;
use haul_core::schedule::{Health, Limits, Policy, Run, Schedule};

use super::farm::{Farm, Load, Shape};

/// Everything about a run but the policy.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub shape: Shape,
    pub source: Load,
    pub sink: Load,
    /// Bytes a second.
    pub link: f64,
    pub round_trip: Duration,
    /// Bytes of buffers at each end.
    pub memory: u64,
    pub object: u64,
    /// Objects of a file, and targets that it is striped over, at each end anew.
    pub file_objects: u64,
    pub stripes: usize,
    pub files: u64,
    pub seed: u64,
}

/// How the ends choose.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    pub policy: Policy,
    pub limits: Limits,
    /// The sink gives shares and tells how its targets fare.
    pub feedback: bool,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub end: Time,
    /// When the last object was written that touches neither end's frozen target.
    pub rest_end: Time,
    pub rest_bytes: u64,
    /// Most buffers of the sink that objects of one of its targets held, and most in flight at one source
    /// target.
    pub held_max: u64,
    pub in_flight_max: u32,
    /// A hash of all that happened.
    pub trace: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Read { from: u16, to: u16, began: Time },
    Sent,
    Arrived { from: u16, to: u16 },
    Written { from: u16, to: u16, began: Time },
    Freed,
    Grant { sink_target: u16, total: u64 },
    Health { sink_target: u16, health: Health },
    Wake,
}

struct World {
    s: Setting,
    feedback: bool,
    now: Time,
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    count: u64,
    source: Schedule,
    sink: Schedule,
    farms: [Farm; 2],
    shares: Shares,
    link_free: Time,
    /// Objects in the source's buffers, and such as were begun and whose buffer at the sink is not known to
    /// be free.
    reading: u64,
    granted: u64,
    /// By sink target: bytes begun in all, and told that may be.
    used: Vec<u64>,
    told: Vec<u64>,
    /// Origin of each object at the sink, in the order of its file id there.
    origins: Vec<u16>,
    /// By sink target: objects in its buffers.
    held: Vec<u64>,
    in_flight: Vec<u32>,
    wakes: [Time; 2],
    left: u64,
    out: Outcome,
}

/// Objects of each target at both ends, and what each file's are.
fn files(s: &Setting) -> (Vec<(TargetId, Run)>, [Vec<u64>; 2]) {
    let mut rng = Rng::with_seed(s.seed ^ 0x5eed);
    let mut runs = Vec::new();
    let mut counts = [vec![0; s.shape.targets], vec![0; s.shape.targets]];
    for file in 0..s.files {
        // As file systems do it: some target, and its neighbours at other servers.
        let mut stripe = || {
            let (start, hop) = (rng.usize(0..s.shape.targets), s.shape.targets / s.stripes + 1);
            move |i: usize| (start + i * hop) % s.shape.targets
        };
        let (from, to) = (stripe(), stripe());
        for i in 0..s.stripes as u64 {
            let (t, k) = (from(i as usize), to(i as usize));
            let count = (s.file_objects + s.stripes as u64 - 1 - i) / s.stripes as u64;
            if count == 0 {
                continue;
            }
            counts[0][t] += count;
            counts[1][k] += count;
            let sink = SinkTarget(k as u16 + 1);
            let run = Run { file: FileId(file), sink, first: i, count, group: 1, step: s.stripes as u64 };
            runs.push((TargetId(t as u16), run));
        }
    }
    (runs, counts)
}

/// The earliest end that storage and link allow, buffers and threads without end.
pub fn bound(s: &Setting) -> Time {
    let (_, counts) = files(s);
    let bytes = s.files * s.file_objects * s.object;
    let link = Time((bytes as f64 / s.link * 1e9) as u64).after(s.round_trip / 2);
    let [source, sink] = farms(s);
    link.max(source.bound(&counts[0], s.object)).max(sink.bound(&counts[1], s.object))
}

fn farms(s: &Setting) -> [Farm; 2] {
    [Farm::new(s.shape, s.source, s.seed), Farm::new(s.shape, s.sink, !s.seed)]
}

/// Runs one transfer to its end.
pub fn run(s: &Setting, choice: Choice) -> Outcome {
    let (runs, counts) = files(s);
    let targets = s.shape.targets;
    let mut shares = Shares::new(s.memory, s.object, s.round_trip);
    for (k, n) in counts[1].iter().enumerate().filter(|(_, n)| **n > 0) {
        // One for all files of a target is as good as one for each.
        let _ = n;
        shares.handle_wanted(SinkTarget(k as u16 + 1));
    }
    let mut world = World {
        s: *s,
        feedback: choice.feedback,
        now: Time(0),
        events: BinaryHeap::new(),
        count: 0,
        source: Schedule::new(choice.policy, choice.limits),
        sink: Schedule::new(
            if choice.policy == Policy::FILE { Policy::ROUND_ROBIN } else { choice.policy },
            choice.limits,
        ),
        farms: farms(s),
        shares,
        link_free: Time(0),
        reading: 0,
        granted: 0,
        used: vec![0; targets + 1],
        told: vec![if choice.feedback { 0 } else { u64::MAX }; targets + 1],
        origins: Vec::new(),
        held: vec![0; targets],
        in_flight: vec![0; targets],
        wakes: [Time(u64::MAX); 2],
        left: s.files * s.file_objects,
        out: Outcome {
            end: Time(0),
            rest_end: Time(0),
            rest_bytes: 0,
            held_max: 0,
            in_flight_max: 0,
            trace: 0,
        },
    };
    if choice.feedback {
        for sink_target in 1..=targets {
            world.source.set_shut(SinkTarget(sink_target as u16), true);
        }
    }
    // A walk is fast here: what it finds is known at once, as far as there is room.
    let mut runs = runs.into_iter().peekable();
    loop {
        while let Some((target, run)) = runs.next_if(|_| world.source.room() > 0) {
            world.source.add(target, run).expect("there is room");
        }
        world.sink_asks();
        world.source_asks();
        if world.left == 0 {
            return world.out;
        }
        let Reverse((time, _, event)) = world.events.pop().expect("it never comes to rest before the end");
        world.now = time;
        world.handle(event);
    }
}

impl World {
    fn at(&mut self, time: Time, event: Event) {
        self.count += 1;
        self.events.push(Reverse((time, self.count, event)));
    }

    fn later(&mut self, event: Event) {
        self.at(self.now.after(self.s.round_trip / 2), event);
    }

    fn handle(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Read { from, to, began } => {
                self.in_flight[usize::from(from)] -= 1;
                self.source.done(TargetId(from), self.s.object, now.since(began), now);
                let time = Duration::from_secs_f64(self.s.object as f64 / self.s.link);
                self.link_free = self.link_free.max(now).after(time);
                self.at(self.link_free, Event::Sent);
                self.at(self.link_free.after(self.s.round_trip / 2), Event::Arrived { from, to });
            }
            Event::Sent => self.reading -= 1,
            Event::Arrived { from, to } => {
                self.shares.handle_arrived(SinkTarget(to + 1), self.s.object, now);
                self.held[usize::from(to)] += 1;
                self.out.held_max = self.out.held_max.max(self.held[usize::from(to)]);
                let id = FileId(self.origins.len() as u64);
                self.origins.push(from);
                self.sink
                    .add(TargetId(to), Run::objects(id, SinkTarget::ANY, 0, 1))
                    .expect("buffers bound it");
            }
            Event::Written { from, to, began } => {
                self.held[usize::from(to)] -= 1;
                self.left -= 1;
                self.sink.done(TargetId(to), self.s.object, now.since(began), now);
                self.shares.handle_freed(SinkTarget(to + 1), self.s.object, Some(now.since(began)), now);
                self.later(Event::Freed);
                self.out.end = now;
                let frozen = |load: &Load, t: u16| load.frozen.is_some_and(|(f, ..)| f == usize::from(t));
                if !frozen(&self.s.source, from) && !frozen(&self.s.sink, to) {
                    self.out.rest_end = now;
                    self.out.rest_bytes += self.s.object;
                }
                let mix = now.0 ^ u64::from(from) << 48 ^ u64::from(to) << 32;
                self.out.trace = self.out.trace.rotate_left(5).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ mix;
            }
            Event::Freed => self.granted -= 1,
            Event::Grant { sink_target, total } => {
                self.told[usize::from(sink_target)] = total;
                self.shut_if_used_up(sink_target);
            }
            Event::Health { sink_target, health } => {
                self.source.handle_sink_health(SinkTarget(sink_target), health, now)
            }
            Event::Wake => {}
        }
    }

    fn shut_if_used_up(&mut self, sink_target: u16) {
        let c = usize::from(sink_target);
        let shut = self.used[c] + self.s.object > self.told[c];
        self.source.set_shut(SinkTarget(sink_target), shut);
    }

    fn source_asks(&mut self) {
        let (object, memory) = (self.s.object, self.s.memory);
        self.source.handle_tick(self.now);
        while (self.reading + 1) * object <= memory && (self.granted + 1) * object <= memory {
            let Some(issue) = self.source.next(self.now) else { break };
            let sink_target = issue.sink.0;
            self.reading += 1;
            self.granted += 1;
            self.used[usize::from(sink_target)] += object;
            self.shut_if_used_up(sink_target);
            let t = usize::from(issue.target.0);
            self.in_flight[t] += 1;
            self.out.in_flight_max = self.out.in_flight_max.max(self.in_flight[t]);
            let end = self.farms[0].serve(t, object, self.now);
            self.at(end, Event::Read { from: issue.target.0, to: sink_target - 1, began: self.now });
        }
        self.wake(0, self.source.next_deadline());
    }

    fn sink_asks(&mut self) {
        while let Some(issue) = self.sink.next(self.now) {
            let end = self.farms[1].serve(usize::from(issue.target.0), self.s.object, self.now);
            let from = self.origins[issue.file.0 as usize];
            self.at(end, Event::Written { from, to: issue.target.0, began: self.now });
        }
        self.wake(1, self.sink.next_deadline());
        if self.feedback {
            while let Some((sink_target, total)) = self.shares.poll_grant(self.now) {
                self.later(Event::Grant { sink_target: sink_target.0, total });
            }
            while let Some((target, health)) = self.sink.take_change() {
                self.later(Event::Health { sink_target: target.0 + 1, health });
            }
        }
    }

    fn wake(&mut self, end: usize, deadline: Option<Time>) {
        if self.wakes[end] <= self.now {
            self.wakes[end] = Time(u64::MAX);
        }
        if let Some(time) = deadline.filter(|time| *time < self.wakes[end]) {
            let time = time.max(self.now.after(Duration::from_nanos(1)));
            self.wakes[end] = time;
            self.at(time, Event::Wake);
        }
    }
}
