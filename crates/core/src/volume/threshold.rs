//! The write threshold: which path a write takes, directly to the storage servers or through the server
//! that gathers; and it sets itself.
//!
//! In: writes as they begin and end, what each was for the servers that had to do with it, and syncs. Out:
//! the path of each, and the threshold: what is smaller is gathered, everything else goes directly.
//!
//! - How long a request takes tells little of what it costs: one that is alone waits for the network, one
//!   of many waits for the others. So servers say how long they were busy with it. For each power of two it
//!   is known what the requests of the last seconds would make each server do if what is smaller were
//!   gathered. All together they take as long as the server that has most to do, or as what they wait for
//!   divided by how many are under way at a time, whichever is more. The threshold is where that is least,
//!   and it moves only if that is [`GAIN`] less.
//! - What a size costs on the path that it does not take is found by *exploration*: now and then a few
//!   requests of that size, as many as are under way at a time, go there. That is at most one request in
//!   [`EXPLORED_ONE_IN`], and only as long as what was lost by it is at most [`LOST`] of what the requests
//!   of that size cost: a path that is a hundred times dearer is looked at a hundred times more rarely.
//!
//! Source: Hildebrand, Ward, Honeyman, "Large files, small writes, and pNFS" (ICS '06), whose threshold
//! stood still; the bounds of Denning and Buzen, "The Operational Analysis of Queueing Network Models"
//! (1978).

use std::time::Duration;

use super::cost::{CLASSES, Curve, class_of, class_start};
use crate::ids::Time;

/// The threshold as long as nothing is known of one of the paths: the paper's best one for its trace.
pub const START: u64 = 32 * 1024;
/// It moves if the requests cost so much less then.
const GAIN: f64 = 0.05;
/// At most one request in so many is for exploration.
pub const EXPLORED_ONE_IN: u64 = 50;
/// What exploration may lose, of what requests of that size cost.
const LOST: f64 = 0.02;
/// Requests that explore in a row: no more than cost so much more than they should.
const BURST_MAX: u32 = 16;
const BURST_LOSES: f64 = 50e6;
/// Requests that came so long ago count a third in what the threshold is for.
const MEMORY: Duration = Duration::from_secs(5);
/// The threshold is looked at again after so long.
const EVERY: Duration = Duration::from_millis(5);
/// What sizes weigh together that did not come lately: they decide where those that came decide nothing.
const ELSE: f64 = 1e-4;
/// What the servers' work in all weighs beside that of the one that has most of it: of two paths that are
/// alike the one is taken that leaves more to others.
const WORK: f64 = 0.02;
/// No server is so busy with others that it does less than this part of what it could.
const LEFT_MIN: f64 = 0.02;

/// One of two ways of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// To the servers on which its stripes lie.
    Direct,
    /// To the server that gathers small writes of its file.
    Gather,
}

impl Path {
    /// Not this one.
    pub fn other(self) -> Path {
        match self {
            Path::Direct => Path::Gather,
            Path::Gather => Path::Direct,
        }
    }
}

/// A part of a write for one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which server, from 0.
    pub server: usize,
    /// Bytes.
    pub len: u64,
}

/// What a server says of a part of a write.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Served {
    /// Which server, from 0.
    pub server: usize,
    /// Bytes.
    pub len: u64,
    /// How long the server was busy with it, what it did beside that at the same time taken off.
    pub busy: Duration,
    /// From its last byte's arrival to the answer.
    pub stayed: Duration,
    /// The part of its time, 0 to 1, for which the server was busy with other clients lately.
    pub others: f64,
}

/// A write that is under way.
#[derive(Debug)]
#[must_use = "a request ends, or is given up"]
pub struct Request {
    /// Where it goes.
    pub path: Path,
    len: u64,
    begun: Time,
    /// It goes there to see what that costs; on the other path it would have cost so many nanoseconds.
    instead: Option<f64>,
}

/// What is known of one path.
#[derive(Clone, Debug)]
struct Lane {
    /// Nanoseconds that each server is busy with a piece.
    servers: Vec<Curve>,
    /// The same of all servers, for one that nothing is known of.
    all: Curve,
    /// Nanoseconds of a request that no server has it.
    way: Curve,
}

impl Lane {
    fn new(servers: usize) -> Lane {
        Lane { servers: vec![Curve::default(); servers], all: Curve::default(), way: Curve::default() }
    }

    fn cost(&self, server: usize, len: u64) -> Option<f64> {
        self.servers[server].cost(len).or_else(|| self.all.cost(len))
    }
}

/// What lately came for a server, of one class; older ones count less.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    pieces: f64,
    bytes: f64,
}

impl Load {
    fn add(&mut self, weight: f64, len: u64) {
        self.pieces += weight;
        self.bytes += weight * len as f64;
    }

    /// The mean piece.
    fn len(self) -> u64 {
        (self.bytes / self.pieces) as u64
    }
}

/// Requests of a size, and what may be lost to learn of them.
#[derive(Clone, Debug)]
struct Traffic {
    requests: f64,
    bytes: f64,
    /// What they are for each server, were they to go directly, and were they gathered.
    direct: Vec<Load>,
    gather: Vec<Load>,
    /// Nanoseconds that exploration may lose.
    allowed: f64,
    /// What the next exploration is expected to lose.
    wanted: f64,
    /// Nanoseconds that a request takes if all are like it, directly and gathered, and when that was worked
    /// out.
    alone: [Option<f64>; 2],
    worked_out: Option<Time>,
}

impl Traffic {
    fn new(servers: usize) -> Traffic {
        Traffic {
            requests: 0.0,
            bytes: 0.0,
            direct: vec![Load::default(); servers],
            gather: vec![Load::default(); servers],
            allowed: 0.0,
            wanted: 0.0,
            alone: [None; 2],
            worked_out: None,
        }
    }

    fn loads(&self, path: Path) -> &[Load] {
        match path {
            Path::Direct => &self.direct,
            Path::Gather => &self.gather,
        }
    }

    fn scale(&mut self, by: f64) {
        self.requests *= by;
        self.bytes *= by;
        for load in self.direct.iter_mut().chain(&mut self.gather) {
            load.pieces *= by;
            load.bytes *= by;
        }
    }
}

/// Which class explores, and how many requests more.
#[derive(Clone, Copy, Debug)]
struct Exploring {
    class: usize,
    path: Path,
    left: u32,
}

/// What requests make servers do: nanoseconds of each server, and nanoseconds that requests take.
#[derive(Clone, Debug)]
struct Work {
    servers: Vec<f64>,
    waits: f64,
}

impl Work {
    /// How long that takes with so many under way.
    fn time(&self, under_way: f64) -> f64 {
        let most = self.servers.iter().copied().fold(self.waits / under_way, f64::max);
        most + WORK * self.servers.iter().sum::<f64>() / self.servers.len() as f64
    }

    fn add(&mut self, other: &Work, times: f64) {
        for (all, one) in self.servers.iter_mut().zip(&other.servers) {
            *all += one * times;
        }
        self.waits += other.waits * times;
    }
}

/// The threshold of one client of a volume.
#[derive(Clone, Debug)]
pub struct Threshold {
    pinned: Option<u64>,
    direct: Lane,
    gather: Lane,
    traffic: Vec<Traffic>,
    exploring: Option<Exploring>,
    /// Classes below this one are gathered; [`CLASSES`]: all are.
    from: usize,
    looked: Time,
    under_way: u32,
    /// Requests under way, integrated over time, and that time; both fade.
    crowd: (f64, f64),
    at: Time,
    begun: u64,
    explored: u64,
}

impl Threshold {
    /// One that sets itself, or with `pinned` (bytes) stands still: 0 gathers nothing, `u64::MAX` everything.
    ///
    /// # Panics
    /// There is no server.
    pub fn new(servers: usize, pinned: Option<u64>) -> Threshold {
        assert!(servers > 0);
        Threshold {
            pinned,
            direct: Lane::new(servers),
            gather: Lane::new(servers),
            traffic: vec![Traffic::new(servers); CLASSES],
            exploring: None,
            from: class_of(START),
            looked: Time::default(),
            under_way: 0,
            crowd: (0.0, 0.0),
            at: Time::default(),
            begun: 0,
            explored: 0,
        }
    }

    /// What is smaller is gathered, bytes. `u64::MAX`: everything is.
    pub fn threshold(&self) -> u64 {
        self.pinned.unwrap_or(match self.from {
            0 => 0,
            CLASSES => u64::MAX,
            from => class_start(from),
        })
    }

    /// It stands still from here on: 0 gathers nothing, `u64::MAX` everything.
    pub fn pin(&mut self, threshold: u64) {
        self.pinned = Some(threshold);
    }

    /// Whether it stands still.
    pub fn is_pinned(&self) -> bool {
        self.pinned.is_some()
    }

    /// What a server needs for requests on a path.
    pub fn curve(&self, path: Path, server: usize) -> &Curve {
        &self.lane(path).servers[server]
    }

    /// Requests that began, and those of them that went elsewhere to see what that costs.
    pub fn counts(&self) -> (u64, u64) {
        (self.begun, self.explored)
    }

    fn lane(&self, path: Path) -> &Lane {
        match path {
            Path::Direct => &self.direct,
            Path::Gather => &self.gather,
        }
    }

    fn lane_mut(&mut self, path: Path) -> &mut Lane {
        match path {
            Path::Direct => &mut self.direct,
            Path::Gather => &mut self.gather,
        }
    }

    /// Time passes.
    fn move_to(&mut self, now: Time) {
        let passed = now.since(self.at);
        self.at = self.at.max(now);
        if self.under_way > 0 {
            let kept = (-(passed.as_secs_f64() / MEMORY.as_secs_f64())).exp();
            let passed = passed.as_nanos() as f64;
            self.crowd.0 = self.crowd.0 * kept + passed * f64::from(self.under_way);
            self.crowd.1 = self.crowd.1 * kept + passed;
        }
    }

    /// How many requests are under way at a time, while any are.
    fn crowd(&self) -> f64 {
        if self.crowd.1 > 0.0 { (self.crowd.0 / self.crowd.1).max(1.0) } else { 1.0 }
    }

    /// A write of `len` bytes begins, which `gatherer` would gather, and which would go directly in `pieces`.
    /// With `only` it can take no other path.
    ///
    /// The request goes to [`Threshold::end`] or [`Threshold::give_up`].
    ///
    /// # Panics
    /// There is no such server.
    pub fn begin(
        &mut self,
        now: Time,
        len: u64,
        gatherer: usize,
        pieces: &[Piece],
        only: Option<Path>,
    ) -> Request {
        self.move_to(now);
        self.begun += 1;
        let class = class_of(len);
        let traffic = &mut self.traffic[class];
        traffic.requests += 1.0;
        traffic.bytes += len as f64;
        traffic.gather[gatherer].add(1.0, len);
        pieces.iter().for_each(|piece| traffic.direct[piece.server].add(1.0, piece.len));
        let usual = match len < self.threshold() {
            true => Path::Gather,
            false => Path::Direct,
        };
        let instead = match only {
            None if self.pinned.is_none() && self.explores(now, class, usual) => {
                self.alone(now, class, usual)
            }
            _ => None,
        };
        let path = only.unwrap_or(if instead.is_some() { usual.other() } else { usual });
        self.explored += u64::from(instead.is_some());
        self.under_way += 1;
        Request { path, len, begun: now, instead }
    }

    /// What a request of a class makes servers do on a path, in the mean.
    fn work(&self, class: usize, path: Path) -> Option<Work> {
        let (lane, traffic) = (self.lane(path), &self.traffic[class]);
        let len = match traffic.requests > 0.0 {
            true => (traffic.bytes / traffic.requests) as u64,
            false => class_start(class),
        };
        let way = lane.way.cost(len)?;
        let mut servers = vec![0.0; lane.servers.len()];
        let mut longest: f64 = 0.0;
        for (server, load) in traffic.loads(path).iter().enumerate().filter(|(_, load)| load.pieces > 0.0) {
            let cost = lane.cost(server, load.len())?;
            servers[server] = cost * load.pieces / traffic.requests;
            longest = longest.max(cost);
        }
        if traffic.requests == 0.0 {
            // Nobody knows where such ones would go: to all alike.
            longest = lane.all.cost(len)?;
            let each = longest / servers.len() as f64;
            servers.fill(each);
        }
        Some(Work { servers, waits: way + longest })
    }

    /// Nanoseconds that a request of a class takes if all are like it, as that was a moment ago.
    fn alone(&mut self, now: Time, class: usize, path: Path) -> Option<f64> {
        let is_old = |at: Time| now.since(at) >= EVERY;
        if self.traffic[class].worked_out.is_none_or(is_old) {
            let alone = [Path::Direct, Path::Gather].map(|path| self.work(class, path));
            let alone = alone.map(|work| work.map(|work| work.time(self.crowd())));
            self.traffic[class].worked_out = Some(now);
            self.traffic[class].alone = alone;
        }
        self.traffic[class].alone[path as usize]
    }

    /// Whether a request goes where it does not belong, to see what that costs.
    fn explores(&mut self, now: Time, class: usize, usual: Path) -> bool {
        if let Some(exploring) = &mut self.exploring
            && exploring.class == class
        {
            let goes_on = exploring.left > 0 && exploring.path != usual;
            exploring.left = exploring.left.saturating_sub(1);
            if goes_on {
                return true;
            }
            self.exploring = None;
        }
        let free = (self.begun / EXPLORED_ONE_IN).saturating_sub(self.explored);
        if free == 0 || self.exploring.is_some() {
            return false;
        }
        let Some(here) = self.alone(now, class, usual) else { return false };
        // Of what nothing is known nobody knows what it loses either: one request tells more.
        let loses = self.alone(now, class, usual.other()).map(|there| (there - here).max(1.0));
        let burst = loses.map_or(1.0, |loses| (BURST_LOSES / loses).clamp(1.0, f64::from(BURST_MAX)));
        let burst = burst.min(self.crowd().round());
        let traffic = &mut self.traffic[class];
        traffic.wanted = loses.unwrap_or(here) * burst;
        if traffic.allowed < traffic.wanted || free < burst as u64 {
            return false;
        }
        self.exploring = Some(Exploring { class, path: usual.other(), left: burst as u32 - 1 });
        true
    }

    /// It is written, as far as its path says so; the servers say what it was for them.
    ///
    /// # Panics
    /// There is no such server.
    pub fn end(&mut self, now: Time, request: Request, served: &[Served]) {
        self.move_to(now);
        self.under_way = self.under_way.checked_sub(1).expect("each request ends once");
        let lane = self.lane_mut(request.path);
        for piece in served {
            let left = (1.0 - piece.others).clamp(LEFT_MIN, 1.0);
            let cost = piece.busy.as_nanos() as f64 / left;
            lane.servers[piece.server].add(now, piece.len, cost);
            lane.all.add(now, piece.len, cost);
        }
        let stayed = served.iter().map(|piece| piece.stayed).max().unwrap_or_default();
        let way = now.since(request.begun).saturating_sub(stayed);
        lane.way.add(now, request.len, way.as_nanos() as f64);
        let class = class_of(request.len);
        if self.pinned.is_some() {
            return;
        }
        if request.instead.is_some() {
            // What it tells counts from now on.
            self.traffic[class].worked_out = None;
        }
        let cost = self.alone(now, class, request.path).unwrap_or(0.0);
        let traffic = &mut self.traffic[class];
        match request.instead {
            Some(usual) => traffic.allowed -= (cost - usual).max(0.0),
            None => {
                let most = 2.0 * traffic.wanted.max(cost);
                traffic.allowed = (traffic.allowed + cost * LOST).min(most.max(traffic.allowed));
            }
        }
        let passed = now.since(self.looked);
        if passed >= EVERY {
            self.looked = now;
            self.look();
            let kept = (-(passed.as_secs_f64() / MEMORY.as_secs_f64())).exp();
            self.traffic.iter_mut().for_each(|traffic| traffic.scale(kept));
        }
    }

    /// It failed, or nobody waits for it: it tells nothing of what requests cost.
    pub fn give_up(&mut self, now: Time, request: Request) {
        self.move_to(now);
        drop(request);
        self.under_way = self.under_way.checked_sub(1).expect("each request ends once");
    }

    /// All that went over a path to a server is on media there; the server was busy with that for so long.
    ///
    /// # Panics
    /// There is no such server.
    pub fn synced(&mut self, now: Time, path: Path, server: usize, busy: Duration) {
        let lane = self.lane_mut(path);
        lane.servers[server].add_sync(now, busy);
        lane.all.add_sync(now, busy);
    }

    /// Moves the threshold to where the requests of late cost least.
    fn look(&mut self) {
        let crowd = self.crowd();
        let mut works = Vec::with_capacity(CLASSES);
        for class in 0..CLASSES {
            let (gather, direct) = (self.work(class, Path::Gather), self.work(class, Path::Direct));
            let (Some(gather), Some(direct)) = (gather, direct) else { return };
            works.push((gather, direct));
        }
        let requests: f64 = self.traffic.iter().map(|traffic| traffic.requests).sum();
        let mut all = Work { servers: vec![0.0; self.direct.servers.len()], waits: 0.0 };
        // Sizes that do not come weigh alike, and hardly.
        let each = |work: &Work| 1.0 / work.time(crowd).max(1.0);
        let (mut idle_all, mut idle) = (0.0, Vec::with_capacity(CLASSES));
        for (class, (gather, direct)) in works.iter().enumerate() {
            all.add(direct, self.traffic[class].requests);
            let (gather, direct) = (1.0 / each(gather), 1.0 / each(direct));
            idle.push((gather / gather.min(direct), direct / gather.min(direct)));
            idle_all += direct / gather.min(direct);
        }
        let scale = all.time(crowd).max(1.0) * ELSE / CLASSES as f64;
        let time = |all: &Work, idle: f64| if requests > 0.0 { all.time(crowd) + scale * idle } else { idle };
        let (mut least, mut at, mut here) = (time(&all, idle_all), 0, time(&all, idle_all));
        for (class, (gather, direct)) in works.iter().enumerate() {
            all.add(direct, -self.traffic[class].requests);
            all.add(gather, self.traffic[class].requests);
            idle_all += idle[class].0 - idle[class].1;
            let time = time(&all, idle_all);
            if time < least {
                (least, at) = (time, class + 1);
            }
            if class + 1 == self.from {
                here = time;
            }
        }
        if least < here * (1.0 - GAIN) {
            self.from = at;
        }
    }
}

#[cfg(test)]
#[path = "threshold_tests.rs"]
mod tests;
