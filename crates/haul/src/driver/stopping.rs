//! A stop that was asked for: graceful first, then by the clock.

use std::time::{Duration, Instant};

use super::Watch;

/// A graceful stop is given up after this long; that of a sink after as long without a step, or where storage
/// hangs, and at the latest after [`STOP_LONGEST`]: what was written is made durable first.
const STOP_MAX: Duration = Duration::from_secs(5);
const STOP_LONGEST: Duration = Duration::from_secs(60);

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
    /// The graceful stop took too long.
    pub(crate) fn is_overdue(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() >= STOP_MAX)
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
