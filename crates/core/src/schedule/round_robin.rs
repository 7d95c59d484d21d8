//! Targets take turns, and each has at most a fixed number of requests: LADS's queues, without its congestion
//! avoidance.
//!
//! In: requests that came back, for the report. Out: the fixed number.

use super::history::History;
use super::{Limits, PolicyKind, Rule, Sample};
use crate::ids::Time;

/// Targets take turns; those with all the requests that they may have are skipped.
pub(super) const POLICY: PolicyKind =
    PolicyKind { name: "round-robin", numbers: "", meaning: "", rule: |_| Box::new(RoundRobin::default()) };

#[derive(Clone, Debug, Default)]
struct RoundRobin {
    history: History,
}

impl Rule for RoundRobin {
    fn on_done(&mut self, t: usize, _: u32, sample: Option<Sample>, limits: &Limits, _: Time) {
        if let Some(sample) = sample {
            self.history.add(t, sample, limits.each);
        }
    }

    fn window(&self, _: usize, limits: &Limits) -> u32 {
        limits.each
    }

    fn history(&self) -> &History {
        &self.history
    }
}
