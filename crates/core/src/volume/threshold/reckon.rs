//! What the requests of late would cost with another threshold.
//!
//! In: what came, and what is known of both paths. Out: nanoseconds for all of it, of which only the
//! relation to those of another threshold means anything.
//!
//! Nothing is reckoned of what was not measured. Of sizes that came and of which one path is not known that
//! one is taken to be dearer, until exploration has looked; of sizes that neither came nor are known on both
//! paths it is believed what was believed in the beginning.

use super::lane::Lane;
use super::traffic::{Traffic, Work};
use super::{EVERY, Path, Piece, Threshold};
use crate::ids::Time;
use crate::volume::cost::{CLASSES, class_start};

/// What sizes weigh together that did not come lately: they decide where those that came decide nothing.
const ELSE: f64 = 1e-4;
/// A path that is not known is so many times dearer than the other.
const UNKNOWN: f64 = 2.0;
/// The bytes of a message take as long as the message itself, if it has so many: at 10 Gb/s 0.2 ms.
const HEAVY: f64 = 262_144.0;

/// What is gathered goes twice over the network and to two disks: first to the gatherer, and then from there
/// to where it lies, several writes in one. So its bytes count twice on the way, and at the server where they
/// lie as what they need there at least. Without that a log that takes them fast, or one look at a time at
/// which nothing else was under way, has it that large writes are gathered for nothing.
fn goes_on() -> bool {
    !haul_mutant::removed("volume-gathered-bytes-go-on")
}

/// The part of a message's way that is for its bytes.
fn of_bytes(len: u64) -> f64 {
    len as f64 / (len as f64 + HEAVY)
}

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
    /// What a request of a class makes servers do on a path, in the mean. `None`: that is not known.
    fn work(&self, class: usize, path: Path) -> Option<Work> {
        let (lane, traffic) = (self.lane(path), &self.traffic[class]);
        let mut work = Work::none(lane.servers.len());
        if traffic.requests == 0.0 {
            // Nobody knows where such ones would go: to all alike.
            let len = class_start(class);
            let cost = lane.all.cost(len)?;
            work.waits = cost + self.ways.cost(None, len)?;
            work.servers.fill(cost / lane.servers.len() as f64);
        } else {
            let loads = match path {
                Path::Direct => &traffic.direct,
                Path::Gather => &traffic.gather,
            };
            let (mut longest, mut farthest, mut ways, mut ends) = (0.0_f64, 0.0_f64, 0.0, 0.0);
            for (server, load) in loads.iter().enumerate().filter(|(_, load)| load.pieces > 0.0) {
                let cost = lane.cost(server, load.len())?;
                work.servers[server] = cost * load.pieces / traffic.requests;
                longest = longest.max(cost);
                let way = self.ways.cost(Some(server), load.at_once())?;
                farthest = farthest.max(way);
                ways += way * load.requests;
                ends += load.requests;
            }
            // Of several servers at a time the farthest is waited for.
            let way =
                if ends > 1.5 * traffic.requests { farthest } else { ways / ends.max(f64::MIN_POSITIVE) };
            work.waits = longest + way;
        }
        let len = traffic.mean_len().unwrap_or(class_start(class));
        match path {
            Path::Direct => {
                let lease = traffic.leases.least().or(self.leases.mean()).unwrap_or(0.0);
                let disturbed = self.disturbed.cost(len).unwrap_or(0.0);
                work.waits += disturbed + lease * traffic.opening / traffic.requests.max(f64::MIN_POSITIVE);
            }
            Path::Gather if goes_on() => self.goes_on(class, len, &mut work),
            Path::Gather => {}
        }
        Some(work)
    }

    /// What a request that is gathered makes others do when its bytes are brought.
    fn goes_on(&self, class: usize, len: u64, work: &mut Work) {
        let traffic = &self.traffic[class];
        if let Some(way) = self.ways.cost(None, len) {
            work.waits += way * of_bytes(len);
        }
        let Some(byte) = self.direct.byte() else { return };
        let servers = work.servers.len() as f64;
        for (work, load) in work.servers.iter_mut().zip(&traffic.direct) {
            let bytes = match traffic.requests > 0.0 {
                true => load.bytes / traffic.requests,
                false => len as f64 / servers,
            };
            *work += byte * bytes;
        }
    }

    /// The same on both paths, gathered and directly.
    fn both(&self, class: usize) -> Option<(Work, Work)> {
        match (self.work(class, Path::Gather), self.work(class, Path::Direct)) {
            (Some(gather), Some(direct)) => Some((gather, direct)),
            (Some(gather), None) => Some((gather.clone(), gather.times(UNKNOWN))),
            (None, Some(direct)) => Some((direct.times(UNKNOWN), direct)),
            (None, None) => None,
        }
    }

    /// How many times as dear as the better path a class is that does not come, gathered and directly.
    fn idle(&self, class: usize, crowd: f64) -> (f64, f64) {
        match (self.work(class, Path::Gather), self.work(class, Path::Direct)) {
            (Some(gather), Some(direct)) => {
                let [gather, direct] = [gather, direct].map(|work| work.time(crowd).max(1.0));
                (gather / gather.min(direct), direct / gather.min(direct))
            }
            _ if class < self.began => (1.0, UNKNOWN),
            _ => (UNKNOWN, 1.0),
        }
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
    /// `None`: none came of which anything is known.
    pub(super) fn best(&self) -> Option<(f64, usize, f64)> {
        let crowd = self.under_way.mean();
        let none = || Work::none(self.direct.servers.len());
        let works: Vec<(Work, Work)> = (0..CLASSES)
            .map(|class| match self.traffic[class].requests > 0.0 {
                true => self.both(class).unwrap_or_else(|| (none(), none())),
                false => (none(), none()),
            })
            .collect();
        let mut all = none();
        for ((_, direct), traffic) in works.iter().zip(&self.traffic) {
            all.add(direct, traffic.requests);
        }
        let total = all.time(crowd);
        if total <= 0.0 {
            return None;
        }
        // Sizes that do not come weigh alike, and hardly.
        let idle: Vec<(f64, f64)> = (0..CLASSES).map(|class| self.idle(class, crowd)).collect();
        let mut idle_all: f64 = idle.iter().map(|(_, direct)| direct).sum();
        let scale = total.max(1.0) * ELSE / CLASSES as f64;
        let mut split = self.all_direct();
        let time = |all: &Work, idle: f64, split: &Split| {
            let mut all = all.clone();
            self.add_syncs(&mut all, split);
            all.time(crowd) + scale * idle
        };
        let direct = time(&all, idle_all, &split);
        let (mut least, mut at, mut here) = (direct, 0, direct);
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
