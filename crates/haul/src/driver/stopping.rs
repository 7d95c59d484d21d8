//! A stop that was asked for: graceful first, then by the clock.

use std::time::{Duration, Instant};

use super::Watch;
use super::pulse::Pulse;

/// A graceful stop is given up after as long without a word of the sink; that of a sink after as long
/// without a step, or where storage hangs, and at the latest after [`STOP_LONGEST`]: what was written is
/// made durable first. The source waits a little longer ([`SINK_ENDS_WITHIN`]): what the sink ends
/// meanwhile was copied.
const STOP_MAX: Duration = Duration::from_secs(5);
const STOP_LONGEST: Duration = Duration::from_secs(60);
const SINK_ENDS_WITHIN: Duration = Duration::from_secs(15);

/// A stop that was asked for: graceful first, then by the clock.
#[derive(Default)]
pub(crate) struct Stopping {
    since: Option<Instant>,
    /// Steps that were made, and when the last was seen.
    steps: Option<(u64, Instant)>,
}

impl Stopping {
    /// True once, when the user asked for a stop.
    pub(crate) fn begins(&mut self, watch: &Watch) -> bool {
        if self.since.is_none() && watch.handle.stopped() {
            self.since = Some(Instant::now());
            return true;
        }
        false
    }
    /// The graceful stop took too long: the sink is not there any more, or does not come to an end.
    pub(crate) fn is_overdue(&self, pulse: &Pulse) -> bool {
        let heard = pulse.is_heard_within(STOP_MAX) && !haul_mutant::removed("stops-are-heard-out");
        let most = if heard { STOP_LONGEST + SINK_ENDS_WITHIN } else { STOP_MAX };
        self.since.is_some_and(|since| since.elapsed() >= most)
    }
    /// The same of a sink, which is given time while it makes steps (`steps` grows) or its storage does not
    /// hang.
    pub(crate) fn is_overdue_at(&mut self, steps: u64, hangs: impl FnOnce() -> bool) -> bool {
        let Some(since) = self.since else { return false };
        let last = match self.steps {
            Some((seen, at)) if seen == steps => at,
            _ => self.steps.insert((steps, Instant::now())).1,
        };
        let patient = last.elapsed() < STOP_MAX || !hangs();
        since.elapsed() >= if patient { STOP_LONGEST } else { STOP_MAX }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a source hears out what the sink ends behind a stop, as long as that is there, and not for ever.
    #[test]
    fn a_source_waits_for_a_sink_that_is_there() {
        let pulse = Pulse::new();
        let after = |time: Duration| {
            let since = Some(Instant::now() - time);
            Stopping { since, steps: None }.is_overdue(&pulse)
        };
        assert!(!Stopping::default().is_overdue(&pulse));
        assert!(!after(2 * STOP_MAX) && !after(STOP_LONGEST));
        assert!(after(STOP_LONGEST + SINK_ENDS_WITHIN));
        std::thread::sleep(Duration::from_millis(1));
        assert!(!pulse.is_heard_within(Duration::ZERO), "what was heard grows old");
    }
}
