//! How far the check of what an earlier run left is, for progress and report.
//!
//! In: bytes that are held and bytes that are still to be read, as the machine of either end counts them.
//! Out: what is left, and how long it takes at the rate so far.
//! Left out: the check, which the sink's machine has done.

use std::cell::Cell;
use std::time::Duration;

use haul_core::transfer::sink::Sink;
use haul_core::transfer::source::SourceCounts;

use crate::events::Checking;

/// A rate of less time than this says nothing.
const RATE_AFTER: f64 = 1.0;

/// What `left` bytes need, when `checked` took `seconds`. `None`: nothing is left.
fn checking(left: u64, checked: u64, seconds: f64) -> Option<Checking> {
    let seconds_left = (seconds >= RATE_AFTER && checked > 0).then(|| left as f64 * seconds / checked as f64);
    (left > 0).then_some(Checking { left, seconds_left })
}

/// As the sink sees it.
pub(super) fn at_sink(machine: &Sink) -> Option<Checking> {
    let (held, left) = machine.held();
    checking(left, held.checked, Duration::from_nanos(held.time).as_secs_f64())
}

/// As the source hears of it.
pub(super) struct AtSource {
    /// What an earlier run left is not read.
    trusts: bool,
    since: Cell<Option<Duration>>,
}

impl AtSource {
    pub(super) fn new(trusts: bool) -> AtSource {
        AtSource { trusts, since: Cell::default() }
    }

    pub(super) fn look(&self, counts: &SourceCounts, elapsed: Duration) -> Option<Checking> {
        if counts.held == 0 || self.trusts {
            return None;
        }
        let since = self.since.get().unwrap_or(elapsed);
        self.since.set(Some(since));
        let seconds = elapsed.saturating_sub(since).as_secs_f64();
        checking(counts.held_open, counts.held - counts.held_open, seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what is left is told from the beginning, a time only when there is a rate, and nothing when it
    /// is over.
    #[test]
    fn what_is_left_is_told() {
        assert_eq!(checking(10, 0, 0.0), Some(Checking { left: 10, seconds_left: None }));
        assert_eq!(checking(10, 5, 0.5), Some(Checking { left: 10, seconds_left: None }));
        assert_eq!(checking(10, 5, 4.0), Some(Checking { left: 10, seconds_left: Some(8.0) }));
        assert_eq!(checking(0, 5, 4.0), None);
    }
}
