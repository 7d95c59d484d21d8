//! What the requests of late would cost with another threshold.
//!
//! In: what came, and what is known of both paths. Out: nanoseconds for all of it, of which only the
//! relation to those of another threshold means anything.

use super::lane::Lane;
use super::traffic::{Traffic, Work};
use super::{EVERY, Path, Piece, Threshold};
use crate::ids::Time;
use crate::volume::cost::{CLASSES, class_start};

/// What sizes weigh together that did not come lately: they decide where those that came decide nothing.
const ELSE: f64 = 1e-4;

/// What came lately, divided by a threshold.
#[derive(Default)]
struct Split {
    /// Of all requests: the part that each server would gather.
    gatherers: Vec<f64>,
    /// Bytes that are gathered.
    gathered: f64,
    /// What goes directly: pieces for each server, and in all.
    pieces: Vec<f64>,
    requests: f64,
    bytes: f64,
    fresh: f64,
}

impl Split {
    /// More goes directly, or with -1 less.
    fn goes(&mut self, traffic: &Traffic, times: f64) {
        self.requests += traffic.requests * times;
        self.bytes += traffic.bytes * times;
        self.fresh += traffic.fresh * times;
        for (all, load) in self.pieces.iter_mut().zip(&traffic.direct) {
            *all += load.pieces * times;
        }
    }
}

impl Threshold {
    /// What a request of a class makes servers do on a path, in the mean.
    fn work(&self, class: usize, path: Path) -> Option<Work> {
        let (lane, traffic) = (self.lane(path), &self.traffic[class]);
        let len = match traffic.requests > 0.0 {
            true => (traffic.bytes / traffic.requests) as u64,
            false => class_start(class),
        };
        let mut work = Work::none(lane.servers.len());
        work.waits = lane.way.cost(len)?;
        if traffic.requests == 0.0 {
            // Nobody knows where such ones would go: to all alike.
            let cost = lane.all.cost(len)?;
            let each = cost / work.servers.len() as f64;
            work.servers.fill(each);
            work.waits += cost;
            return Some(work);
        }
        let loads = match path {
            Path::Direct => &traffic.direct,
            Path::Gather => &traffic.gather,
        };
        let mut longest: f64 = 0.0;
        for (server, load) in loads.iter().enumerate().filter(|(_, load)| load.pieces > 0.0) {
            let cost = lane.cost(server, load.len())?;
            work.servers[server] = cost * load.pieces / traffic.requests;
            longest = longest.max(cost);
        }
        work.waits += longest;
        if path == Path::Direct {
            work.waits += self.leases.mean().unwrap_or(0.0) * traffic.fresh / traffic.requests;
        }
        Some(work)
    }

    /// All that came lately, as what goes directly.
    fn all_direct(&self) -> Split {
        let servers = self.direct.servers.len();
        let mut split =
            Split { gatherers: vec![0.0; servers], pieces: vec![0.0; servers], ..Split::default() };
        let requests: f64 = self.traffic.iter().map(|traffic| traffic.requests).sum();
        for traffic in &self.traffic {
            split.goes(traffic, 1.0);
            for (part, load) in split.gatherers.iter_mut().zip(&traffic.gather) {
                *part += load.pieces / requests.max(f64::MIN_POSITIVE);
            }
        }
        split
    }

    /// What the syncs of late add to what is to be done.
    ///
    /// Whoever gathers a file syncs it in any case: it says then where a file ends that was written directly.
    fn add_syncs(&self, work: &mut Work, split: &Split) {
        if self.syncs <= 0.0 {
            return;
        }
        let cost = |lane: &Lane, server, bytes| lane.sync(server, bytes, &self.all_syncs).unwrap_or(0.0);
        let mut stops = 0.0;
        let bytes = split.gathered / self.syncs;
        for (server, part) in split.gatherers.iter().enumerate().filter(|(_, part)| **part > 0.0) {
            // Of a file one server gathers.
            let cost = part * cost(&self.gather, server, bytes);
            work.servers[server] += cost * self.syncs;
            stops += cost;
        }
        let pieces: f64 = split.pieces.iter().sum();
        let is_part = (split.requests / self.syncs).min(1.0);
        let touched = (split.fresh / self.syncs).clamp(1.0, work.servers.len() as f64);
        let bytes = split.bytes / self.syncs / touched;
        let (mut longest, mut mean) = (0.0_f64, 0.0);
        // Of what was subtracted a trace may be left.
        for (server, some) in split.pieces.iter().enumerate().filter(|(_, some)| **some > 1e-6) {
            let (part, cost) = (some / pieces, cost(&self.direct, server, bytes));
            work.servers[server] += cost * (part * touched).min(1.0) * is_part * self.syncs;
            longest = longest.max(cost);
            mean += part * cost;
        }
        // Of several at a time the longest is waited for.
        stops = f64::max(stops, is_part * if touched > 1.5 { longest } else { mean });
        work.stops += stops * self.syncs / self.syncing.mean();
    }

    /// By how many nanoseconds a sync takes longer if some few of what is gathered goes directly.
    pub(super) fn more_sync(&self, gatherer: usize, pieces: &[Piece]) -> f64 {
        if self.syncs <= 0.0 {
            return 0.0;
        }
        let all = &self.all_syncs;
        let bytes = self.traffic.iter().map(|traffic| traffic.bytes).sum::<f64>() / self.syncs;
        let direct = pieces.iter().filter_map(|piece| self.direct.sync(piece.server, piece.len as f64, all));
        let gather = self.gather.sync(gatherer, bytes, all).unwrap_or(0.0);
        (direct.fold(0.0, f64::max) - gather).max(0.0)
    }

    /// Nanoseconds that a request of a class takes if all are like it, as that was a moment ago.
    pub(super) fn alone(&mut self, now: Time, class: usize, path: Path) -> Option<f64> {
        let is_old = |at: Time| now.since(at) >= EVERY;
        if self.traffic[class].worked_out.is_none_or(is_old) {
            let alone = [Path::Direct, Path::Gather].map(|path| self.work(class, path));
            let alone = alone.map(|work| work.map(|work| work.time(self.under_way.mean())));
            self.traffic[class].worked_out = Some(now);
            self.traffic[class].alone = alone;
        }
        self.traffic[class].alone[path as usize]
    }

    /// The least that the requests of late may cost, with which threshold, and what they cost with this one.
    /// `None`: of a path nothing is known.
    pub(super) fn best(&self) -> Option<(f64, usize, f64)> {
        let crowd = self.under_way.mean();
        let mut works = Vec::with_capacity(CLASSES);
        for class in 0..CLASSES {
            works.push((self.work(class, Path::Gather)?, self.work(class, Path::Direct)?));
        }
        let requests: f64 = self.traffic.iter().map(|traffic| traffic.requests).sum();
        let mut all = Work::none(self.direct.servers.len());
        // Sizes that do not come weigh alike, and hardly.
        let alone = |work: &Work| work.time(crowd).max(1.0);
        let (mut idle_all, mut idle) = (0.0, Vec::with_capacity(CLASSES));
        for (class, (gather, direct)) in works.iter().enumerate() {
            all.add(direct, self.traffic[class].requests);
            let (gather, direct) = (alone(gather), alone(direct));
            idle.push((gather / gather.min(direct), direct / gather.min(direct)));
            idle_all += direct / gather.min(direct);
        }
        let scale = all.time(crowd).max(1.0) * ELSE / CLASSES as f64;
        let mut split = self.all_direct();
        let time = |all: &Work, idle: f64, split: &Split| {
            if requests == 0.0 {
                return idle;
            }
            let mut all = all.clone();
            self.add_syncs(&mut all, split);
            all.time(crowd) + scale * idle
        };
        let none = time(&all, idle_all, &split);
        let (mut least, mut at, mut here) = (none, 0, none);
        for (class, (gather, direct)) in works.iter().enumerate() {
            all.add(direct, -self.traffic[class].requests);
            all.add(gather, self.traffic[class].requests);
            idle_all += idle[class].0 - idle[class].1;
            split.goes(&self.traffic[class], -1.0);
            split.gathered += self.traffic[class].bytes;
            let time = time(&all, idle_all, &split);
            if time < least {
                (least, at) = (time, class + 1);
            }
            if class + 1 == self.from {
                here = time;
            }
        }
        Some((least, at, here))
    }
}
