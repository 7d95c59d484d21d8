//! What is known of one path: what its requests, leases and syncs take.

use crate::volume::cost::{Curve, Syncs};

/// No server is thought to be so many times slower than others, or faster.
const TIMES_MAX: f64 = 100.0;

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

/// See the head of this module.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    /// Nanoseconds that each server is busy with a piece.
    pub(super) servers: Vec<Curve>,
    /// The same of all servers, for one that nothing is known of.
    pub(super) all: Curve,
    /// Nanoseconds of a request that no server has it.
    pub(super) way: Curve,
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
            way: Curve::default(),
            syncs: vec![Mean::default(); servers],
            unsynced: vec![0.0; servers],
        }
    }

    /// Nanoseconds that a server is busy with a piece.
    pub(super) fn cost(&self, server: usize, len: u64) -> Option<f64> {
        self.servers[server].cost(len).or_else(|| self.all.cost(len))
    }

    pub(super) fn is_written(&mut self, server: usize, len: u64) {
        self.unsynced[server] += len as f64;
    }

    /// A sync of a server is over; `all` has those of all servers and both paths.
    pub(super) fn is_synced(&mut self, server: usize, nanos: f64, all: &mut Syncs) {
        let bytes = std::mem::take(&mut self.unsynced[server]);
        all.add(bytes, nanos);
        if let Some(mean) = all.cost(bytes) {
            self.syncs[server].add((nanos / mean.max(1.0)).clamp(1.0 / TIMES_MAX, TIMES_MAX));
        }
    }

    /// Nanoseconds that a sync of so many bytes takes a server. `None`: none was made anywhere.
    pub(super) fn sync(&self, server: usize, bytes: f64, all: &Syncs) -> Option<f64> {
        Some(all.cost(bytes)? * self.syncs[server].mean().unwrap_or(1.0))
    }
}
