//! LADS's congestion avoidance: a target whose mean service time over a window W is above a threshold T is
//! skipped M times.
//!
//! In: requests that came back. Out: whether a target is passed over when it is its turn.
//! Source: Kim, Atchley, Vallée, Shipman, "LADS: Optimizing Data Transfers Using Layout-Aware Data
//! Scheduling", FAST '15. After M turns it has one, whatever its mean, by which its recovery is seen. The
//! mean is of the requests that came back within W before now, [`SAMPLES_MAX`] at most.

use std::collections::VecDeque;
use std::time::Duration;

use super::history::History;
use super::{LadsNumbers, Limits, PolicyKind, Rule, Sample};
use crate::ids::Time;

/// Targets take turns, and congested ones are skipped some times: by numbers that a user gives, as in the
/// paper.
pub(super) const POLICY: PolicyKind = PolicyKind {
    name: "lads",
    numbers: "T,W,M",
    meaning: "T and W in milliseconds, M times",
    rule: |[threshold, window, skips]| {
        let ms = |number: u32| Duration::from_millis(number.into());
        Box::new(Lads::new(LadsNumbers { threshold: ms(threshold), window: ms(window), skips }))
    },
};

/// Requests of one target that are remembered.
const SAMPLES_MAX: usize = 64;
/// A target is skipped so often at most, whatever M is.
pub const SKIPS_MAX: u32 = 1024;

#[derive(Clone, Debug)]
struct Lads {
    numbers: LadsNumbers,
    targets: Vec<Recent>,
    history: History,
}

#[derive(Clone, Debug, Default)]
struct Recent {
    /// When each came back, and its service time in nanoseconds.
    samples: VecDeque<(Time, u64)>,
    sum: u64,
    skipped: u32,
}

impl Lads {
    fn new(numbers: LadsNumbers) -> Lads {
        Lads { numbers, targets: Vec::new(), history: History::default() }
    }
}

impl Recent {
    fn drop_first(&mut self) {
        if let Some((_, service)) = self.samples.pop_front() {
            self.sum -= service;
        }
    }
}

impl Rule for Lads {
    fn on_done(&mut self, t: usize, _: u32, sample: Option<Sample>, limits: &Limits, now: Time) {
        let Some(sample) = sample else { return };
        self.history.add(t, sample, limits.each);
        if self.targets.len() <= t {
            self.targets.resize_with(t + 1, Recent::default);
        }
        let recent = &mut self.targets[t];
        if recent.samples.len() == SAMPLES_MAX {
            recent.drop_first();
        }
        // Bounded, so that no sum overflows: no request takes 9 years.
        let service = u64::try_from(sample.service.as_nanos()).unwrap_or(u64::MAX).min(u64::MAX / 64);
        recent.samples.push_back((now, service));
        recent.sum += service;
    }

    fn window(&self, _: usize, limits: &Limits) -> u32 {
        limits.each
    }

    fn passes_over(&mut self, t: usize, now: Time) -> bool {
        let LadsNumbers { threshold, window, skips } = self.numbers;
        let Some(recent) = self.targets.get_mut(t) else { return false };
        while recent.samples.front().is_some_and(|(time, _)| now.since(*time) > window) {
            recent.drop_first();
        }
        let mean = recent.sum.checked_div(recent.samples.len() as u64).unwrap_or(0);
        let over = u128::from(mean) > threshold.as_nanos() && recent.skipped < skips.min(SKIPS_MAX);
        recent.skipped = if over { recent.skipped + 1 } else { 0 };
        over
    }

    fn history(&self) -> &History {
        &self.history
    }
}
