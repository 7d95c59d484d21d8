//! What lately came, and what it makes servers do.

use super::Piece;
use super::lane::Least;

/// What lately came for a server, of one class; older ones count less.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    /// Those of which it has a piece, and the pieces.
    pub(super) requests: f64,
    pub(super) pieces: f64,
    pub(super) bytes: f64,
}

impl Load {
    pub(super) fn add(&mut self, len: u64) {
        self.pieces += 1.0;
        self.bytes += len as f64;
    }

    /// The mean piece.
    pub(super) fn len(self) -> u64 {
        (self.bytes / self.pieces) as u64
    }

    /// What comes of one request.
    pub(super) fn at_once(self) -> u64 {
        (self.bytes / self.requests.max(f64::MIN_POSITIVE)) as u64
    }
}

/// Requests of a size, and what may be lost to learn of them.
#[derive(Clone, Debug)]
pub(super) struct Traffic {
    pub(super) requests: f64,
    pub(super) bytes: f64,
    /// What they are for each server, were they to go directly, and were they gathered.
    pub(super) direct: Vec<Load>,
    pub(super) gather: Vec<Load>,
    /// Stripes that were not written lately: to write them directly takes a lease.
    pub(super) fresh: f64,
    /// Those that have such a stripe: of several leases at a time it waits for one.
    pub(super) opening: f64,
    /// Nanoseconds that direct writes waited for such a lease.
    pub(super) leases: Least,
    /// Nanoseconds that exploration may lose.
    pub(super) allowed: f64,
    /// What the next exploration is expected to lose.
    pub(super) wanted: f64,
    /// Nanoseconds that a request takes if all are like it, directly and gathered, and when that was worked
    /// out.
    pub(super) alone: [Option<f64>; 2],
    pub(super) worked_out: Option<crate::ids::Time>,
}

impl Traffic {
    pub(super) fn new(servers: usize) -> Traffic {
        Traffic {
            requests: 0.0,
            bytes: 0.0,
            direct: vec![Load::default(); servers],
            gather: vec![Load::default(); servers],
            fresh: 0.0,
            opening: 0.0,
            leases: Least::default(),
            allowed: 0.0,
            wanted: 0.0,
            alone: [None; 2],
            worked_out: None,
        }
    }

    /// Bytes of the mean one. `None`: none came.
    pub(super) fn mean_len(&self) -> Option<u64> {
        (self.requests > 0.0).then(|| (self.bytes / self.requests) as u64)
    }

    /// One of so many bytes comes.
    pub(super) fn add(&mut self, len: u64, gatherer: usize, pieces: &[Piece], fresh: u32) {
        self.requests += 1.0;
        self.bytes += len as f64;
        self.fresh += f64::from(fresh);
        self.opening += f64::from(fresh.min(1));
        self.gather[gatherer].requests += 1.0;
        for (at, piece) in pieces.iter().enumerate() {
            self.gather[gatherer].add(piece.len);
            let load = &mut self.direct[piece.server];
            load.add(piece.len);
            let is_first = pieces[..at].iter().all(|other| other.server != piece.server);
            load.requests += if is_first { 1.0 } else { 0.0 };
        }
    }

    pub(super) fn scale(&mut self, by: f64) {
        self.requests *= by;
        self.bytes *= by;
        self.fresh *= by;
        self.opening *= by;
        for load in self.direct.iter_mut().chain(&mut self.gather) {
            for sum in [&mut load.requests, &mut load.pieces, &mut load.bytes] {
                *sum *= by;
            }
        }
    }
}

/// What the servers' work in all weighs beside that of the one that has most of it: of two paths that are
/// alike the one is taken that leaves more to others.
const WORK: f64 = 0.02;

/// What requests make servers do: nanoseconds of each server, nanoseconds that requests take, and those in
/// which nothing but a sync is under way.
#[derive(Clone, Debug)]
pub(super) struct Work {
    pub(super) servers: Vec<f64>,
    pub(super) waits: f64,
    pub(super) stops: f64,
}

impl Work {
    pub(super) fn none(servers: usize) -> Work {
        Work { servers: vec![0.0; servers], waits: 0.0, stops: 0.0 }
    }

    /// How long that takes with so many under way.
    pub(super) fn time(&self, under_way: f64) -> f64 {
        let most = self.servers.iter().copied().fold(self.waits / under_way + self.stops, f64::max);
        most + WORK * self.servers.iter().sum::<f64>() / self.servers.len() as f64
    }

    /// The same so many times.
    pub(super) fn times(&self, times: f64) -> Work {
        let mut work = Work::none(self.servers.len());
        work.add(self, times);
        work
    }

    pub(super) fn add(&mut self, other: &Work, times: f64) {
        for (all, one) in self.servers.iter_mut().zip(&other.servers) {
            *all += one * times;
        }
        self.waits += other.waits * times;
        self.stops += other.stops * times;
    }
}
