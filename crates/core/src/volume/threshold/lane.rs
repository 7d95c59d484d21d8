//! What is known of one path, what its requests and syncs take, and of the way to servers, which is one for
//! both.

use super::Served;
use crate::ids::Time;
use crate::volume::cost::{Curve, Syncs};

/// No server is thought to be so many times slower than others, or faster.
const TIMES_MAX: f64 = 100.0;
/// A sync that should take no more than so much of what syncs take in the mean tells hardly anything of how
/// fast its server is: one of a log that has nothing new is over at once everywhere.
const TELLS: f64 = 0.1;

/// A mean of the last few.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mean {
    of: f64,
    count: u32,
}

impl Mean {
    /// Each of the last so many weighs alike.
    const LAST: u32 = 4;

    pub(super) fn add(&mut self, value: f64) {
        self.count = (self.count + 1).min(Mean::LAST);
        self.of += (value - self.of) / f64::from(self.count);
    }

    pub(super) fn mean(self) -> Option<f64> {
        (self.count > 0).then_some(self.of)
    }
}

/// How long something takes if it has to wait for nothing else: the least of late.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Least(Option<f64>);

impl Least {
    /// What was so little once and is not any more is believed less with each that takes longer: half as much
    /// after some two hundred.
    const RISES: f64 = 1.003;

    pub(super) fn add(&mut self, value: f64) {
        self.0 = Some(self.0.map_or(value, |least| value.min(least * Least::RISES)));
    }

    pub(super) fn least(self) -> Option<f64> {
        self.0
    }
}

/// Nanoseconds of what a request sends to a server at once that the server has none of it: the way there and
/// back, and what goes before it. It is the same way whether that is gathered there or belongs there.
#[derive(Clone, Debug)]
pub(super) struct Ways {
    servers: Vec<Curve>,
    all: Curve,
}

impl Ways {
    pub(super) fn new(servers: usize) -> Ways {
        Ways { servers: vec![Curve::default(); servers], all: Curve::default() }
    }

    pub(super) fn add(&mut self, now: Time, served: &[Served]) {
        for (at, piece) in served.iter().enumerate() {
            let is_its = |other: &&Served| other.server == piece.server;
            if served[..at].iter().any(|other| is_its(&other)) {
                continue;
            }
            let of_it = || served[at..].iter().filter(is_its);
            let len = of_it().map(|piece| piece.len).sum();
            let way = of_it().map(|piece| piece.took.saturating_sub(piece.stayed)).max().unwrap_or_default();
            self.servers[piece.server].add(now, len, way.as_nanos() as f64);
            self.all.add(now, len, way.as_nanos() as f64);
        }
    }

    /// To one server, or to one of whom nothing is known.
    pub(super) fn cost(&self, server: Option<usize>, len: u64) -> Option<f64> {
        server.and_then(|server| self.servers[server].cost(len)).or_else(|| self.all.cost(len))
    }
}

/// See the head of this module.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    /// Nanoseconds that each server is busy with a piece.
    pub(super) servers: Vec<Curve>,
    /// The same of all servers, for one that nothing is known of.
    pub(super) all: Curve,
    /// How many times as long as all in the mean syncs of each server take, for as many bytes.
    syncs: Vec<Mean>,
    /// Bytes since the last sync of each server.
    unsynced: Vec<f64>,
}

impl Lane {
    pub(super) fn new(servers: usize) -> Lane {
        Lane {
            servers: vec![Curve::default(); servers],
            all: Curve::default(),
            syncs: vec![Mean::default(); servers],
            unsynced: vec![0.0; servers],
        }
    }

    /// Nanoseconds that a server is busy with a piece.
    pub(super) fn cost(&self, server: usize, len: u64) -> Option<f64> {
        self.servers[server].cost(len).or_else(|| self.all.cost(len))
    }

    /// No server needs less for a byte of a large piece, nanoseconds.
    pub(super) fn byte(&self) -> Option<f64> {
        self.servers.iter().filter_map(Curve::byte).reduce(f64::min)
    }

    pub(super) fn is_written(&mut self, server: usize, len: u64) {
        self.unsynced[server] += len as f64;
    }

    /// A sync of a server is over; `all` has those of all servers and both paths.
    pub(super) fn is_synced(&mut self, server: usize, nanos: f64, all: &mut Syncs) {
        let bytes = std::mem::take(&mut self.unsynced[server]);
        all.add(bytes, nanos);
        if let (Some(usual), Some(mean)) = (all.cost(bytes), all.mean()) {
            let least =
                if haul_mutant::removed("volume-empty-syncs-tell-nothing") { 1.0 } else { TELLS * mean };
            let times = (nanos + least) / (usual + least).max(1.0);
            self.syncs[server].add(times.clamp(1.0 / TIMES_MAX, TIMES_MAX));
        }
    }

    /// Nanoseconds that a sync of so many bytes takes a server. `None`: none was made anywhere.
    pub(super) fn sync(&self, server: usize, bytes: f64, all: &Syncs) -> Option<f64> {
        Some(all.cost(bytes)? * self.syncs[server].mean().unwrap_or(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a server that takes ten times as long for its syncs is told from the others, and one whose syncs
    /// had nothing to do is taken for as fast as these, whatever those took.
    /// Method: as in a copy of large files: syncs of much at all servers, more or less, which take as long as
    /// they happen to, and between them those of a log that has nothing new.
    #[test]
    fn empty_syncs_tell_nothing_of_a_server() {
        let mut random = fastrand::Rng::with_seed(5);
        let (mut direct, mut gather, mut all) = (Lane::new(4), Lane::new(4), Syncs::default());
        let much = 256 << 20;
        for _ in 0..20 {
            for server in 0..4 {
                let bytes = random.u64(much / 4..2 * much);
                direct.is_written(server, bytes);
                let each = 4.0 * (0.5 + random.f64()) * if server == 3 { 10.0 } else { 1.0 };
                direct.is_synced(server, each * bytes as f64, &mut all);
            }
            gather.is_synced(0, 1e6, &mut all);
        }
        let sync = |lane: &Lane, server| lane.sync(server, much as f64, &all).expect("there were some");
        let usual = sync(&direct, 1);
        assert!((2.0..40.0).contains(&(sync(&direct, 3) / usual)), "{} {usual}", sync(&direct, 3));
        assert!((0.3..3.0).contains(&(sync(&gather, 0) / usual)), "{} {usual}", sync(&gather, 0));
    }

    /// Goal: the least is what was least of late: it is believed less with each that takes longer.
    #[test]
    fn the_least_is_of_late() {
        let mut least = Least::default();
        assert_eq!(least.least(), None);
        [7.0, 3.0, 100.0].into_iter().for_each(|value| least.add(value));
        assert!(least.least().is_some_and(|least| (3.0..3.1).contains(&least)), "{least:?}");
        (0..300).for_each(|_| least.add(100.0));
        assert!(least.least() > Some(6.0), "{least:?}");
        (0..3000).for_each(|_| least.add(100.0));
        assert_eq!(least.least(), Some(100.0));
    }
}
