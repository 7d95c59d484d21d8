//! What lately came, and what it makes servers do.

/// What lately came for a server, of one class; older ones count less.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
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
            allowed: 0.0,
            wanted: 0.0,
            alone: [None; 2],
            worked_out: None,
        }
    }

    pub(super) fn scale(&mut self, by: f64) {
        self.requests *= by;
        self.bytes *= by;
        self.fresh *= by;
        for load in self.direct.iter_mut().chain(&mut self.gather) {
            load.pieces *= by;
            load.bytes *= by;
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

    pub(super) fn add(&mut self, other: &Work, times: f64) {
        for (all, one) in self.servers.iter_mut().zip(&other.servers) {
            *all += one * times;
        }
        self.waits += other.waits * times;
        self.stops += other.stops * times;
    }
}
