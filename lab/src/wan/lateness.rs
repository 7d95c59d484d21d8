//! How late packets were: mean, the 99th percentile, the worst.
//!
//! In: nanoseconds. Out: a summary. Memory is fixed: one counter for each eighth of a power of two, so that
//! the percentile is right to one part in eight.

use serde::Serialize;

const SLOTS: usize = 64 * 8;

/// A histogram of times.
#[derive(Clone)]
pub struct Lateness {
    slots: Box<[u64; SLOTS]>,
    count: u64,
    sum: u64,
    max: u64,
}

/// Units: microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Summary {
    pub mean: f64,
    /// Upper edge of the slot in which it lies.
    pub p99: f64,
    pub max: f64,
}

impl Default for Lateness {
    fn default() -> Self {
        Self { slots: Box::new([0; SLOTS]), count: 0, sum: 0, max: 0 }
    }
}

impl Lateness {
    pub fn add(&mut self, ns: u64) {
        self.slots[slot(ns)] += 1;
        self.count += 1;
        self.sum = self.sum.saturating_add(ns);
        self.max = self.max.max(ns);
    }

    /// Both together.
    pub fn merge(&mut self, other: &Lateness) {
        for (ours, theirs) in self.slots.iter_mut().zip(other.slots.iter()) {
            *ours += theirs;
        }
        self.count += other.count;
        self.sum = self.sum.saturating_add(other.sum);
        self.max = self.max.max(other.max);
    }

    pub fn summary(&self) -> Summary {
        let wanted = self.count - self.count / 100;
        let mut seen = 0;
        let p99 = self.slots.iter().position(|slot| {
            seen += slot;
            seen >= wanted && seen > 0
        });
        let p99 = p99.map_or(0, |slot| upper_edge(slot).min(self.max));
        let mean = if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 };
        Summary { mean: micros(mean), p99: micros(p99 as f64), max: micros(self.max as f64) }
    }
}

/// Three digits after the point are all that a clock of nanoseconds knows.
fn micros(ns: f64) -> f64 {
    ns.round() / 1e3
}

fn slot(ns: u64) -> usize {
    if ns < 8 {
        return ns as usize;
    }
    let power = 63 - ns.leading_zeros() as usize;
    (power - 2) * 8 + (ns >> (power - 3)) as usize - 8
}

fn upper_edge(slot: usize) -> u64 {
    if slot < 8 {
        return slot as u64;
    }
    let power = slot / 8 + 2;
    (((slot % 8 + 9) as u64) << (power - 3)).wrapping_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each time falls into a slot whose upper edge is at most an eighth above it; edges are without
    /// gaps.
    /// Method: all small times, and seeded large ones.
    #[test]
    fn wan_lateness_slots_are_tight() {
        let mut rng = fastrand::Rng::with_seed(3);
        let large = (0..10_000).map(|_| rng.u64(..) >> rng.u32(0..60));
        for ns in (0..5_000).chain(large.collect::<Vec<_>>()) {
            let edge = upper_edge(slot(ns));
            assert!(edge >= ns && edge - ns <= ns / 8, "{ns} {edge}");
        }
    }

    /// Goal: mean, percentile and maximum of a known population.
    /// Method: 1 to 1000 us, once each, in two histograms that are merged.
    #[test]
    fn wan_lateness_is_summed_up() {
        let mut parts = [Lateness::default(), Lateness::default()];
        for us in 1..=1000 {
            parts[us as usize % 2].add(us * 1000);
        }
        let [mut all, other] = parts;
        all.merge(&other);
        let summary = all.summary();
        assert_eq!(summary.mean, 500.5);
        assert_eq!(summary.max, 1000.0);
        assert!((990.0..=1000.0).contains(&summary.p99), "{summary:?}");
        assert_eq!(Lateness::default().summary().max, 0.0);
    }
}
