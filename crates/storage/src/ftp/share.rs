//! Over how many connections a file goes in blocks, to a server or from it.
//!
//! In: the round trip, how long a file is, which files are under way. Out: a number of connections; for
//! people, what was used.
//! Invariant: there are few different numbers, for another one costs new connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Connections of one file at a server that is near, and at one that is far.
const NEAR: u32 = 4;
const FAR_MAX: u32 = 16;
/// So much of a round trip is worth one more connection: each brings what fits into its buffers in one.
const WORTH_ONE: Duration = Duration::from_millis(6);
/// What is shorter has one connection, for each costs the server something at each file.
const SEVERAL_FROM: u64 = 16 << 20;

/// See the module.
pub(super) struct Share {
    round_trip: Option<Duration>,
    /// Sessions in the middle of a file in blocks; and the most connections that one had.
    active: AtomicU32,
    most: AtomicU32,
}

/// A session is in the middle of a file in blocks as long as it has this.
pub(super) struct Active(Arc<Share>);

impl Drop for Active {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Share {
    pub(super) fn new(round_trip: Option<Duration>) -> Arc<Share> {
        Arc::new(Share { round_trip, active: AtomicU32::new(0), most: AtomicU32::new(0) })
    }

    /// Over how many connections a file of this size goes: several files at a time share them.
    pub(super) fn connections(&self, size: u64) -> u32 {
        if size < SEVERAL_FROM {
            return 1;
        }
        let worth = self.round_trip.map_or(0, |time| (time.as_millis() / WORTH_ONE.as_millis()) as u32);
        let all = worth.next_power_of_two().clamp(NEAR, FAR_MAX);
        (all / self.active.load(Ordering::Relaxed).max(1).next_power_of_two()).max(2)
    }

    /// A session begins a file over so many connections.
    pub(super) fn begin(self: &Arc<Share>, connections: u32) -> Active {
        self.active.fetch_add(1, Ordering::Relaxed);
        self.used(connections);
        Active(self.clone())
    }

    /// A round trip takes less than a further connection is worth.
    pub(super) fn is_near(&self) -> bool {
        self.round_trip.is_none_or(|time| time < WORTH_ONE)
    }

    /// A file went over so many.
    pub(super) fn used(&self, connections: u32) {
        self.most.fetch_max(connections, Ordering::Relaxed);
    }

    /// For people, if there is anything to say. `off`: why files do not go in blocks, or not any more; empty
    /// where that needs no words.
    pub(super) fn words(&self, off: Option<&str>) -> Option<String> {
        let used = match self.most.load(Ordering::Relaxed) {
            0 => None,
            1 => Some("in blocks, one connection a file".to_owned()),
            most => Some(format!("in blocks, up to {most} connections a file")),
        };
        match (used, off) {
            (used, None) => used,
            (_, Some("")) => None,
            (None, Some(why)) => Some(format!("one connection a session: {why}")),
            (Some(used), Some(why)) => Some(format!("{used}; then one connection a session: {why}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the farther the server and the fewer files at a time, the more connections has one; small files
    /// have one.
    #[test]
    fn connections_follow_the_way() {
        for (millis, alone) in [(0, 4), (20, 4), (30, 8), (50, 8), (90, 16), (300, 16), (10_000, 16)] {
            let share = Share::new(Some(Duration::from_millis(millis)));
            assert_eq!(share.connections(1 << 40), alone, "{millis} ms");
            assert_eq!(share.connections(1 << 20), 1);
            let all: Vec<Active> = (0..8).map(|_| share.begin(1)).collect();
            assert_eq!(share.connections(1 << 40), 2, "{millis} ms, shared");
            drop(all);
            assert_eq!(share.connections(1 << 40), alone, "{millis} ms");
        }
    }
}
