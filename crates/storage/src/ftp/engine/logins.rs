//! When a session that the server did not take, or takes no more, is tried again: while the others have more
//! to do than they are enough for, each time after a longer pause, and at once where another session was
//! closed meanwhile.
//!
//! In: sessions that were refused or lost, sessions that were opened. Out: whether one is to be opened now.
//! Invariant: of all such sessions one is tried at a time.

use std::time::{Duration, Instant};

use haul_core::reliability::pause;

/// A server that takes no further session is asked more seldom than one that is away: others have to leave
/// first. In pauses of the policy for what may pass.
const FULL_PAUSES: u32 = 10;

/// See the module.
#[derive(Default)]
pub(super) struct Logins {
    /// Attempts in a row that came to nothing; those at the same time count as one.
    failed: u32,
    until: Option<Instant>,
    /// How many sessions had been closed when the last one was refused.
    left: u64,
    under_way: bool,
}

/// Whether a session is tried again.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Opens {
    Now,
    /// When something changes, or after that time.
    Later(Option<Duration>),
}

impl Logins {
    /// A session was not taken, and is over for now. `is_full`: by the server's word; `left`: how many had
    /// been closed by then.
    pub(super) fn refused(&mut self, is_full: bool, left: u64, now: Instant) {
        self.left = left;
        if self.until.is_none_or(|until| until <= now) {
            self.failed = self.failed.saturating_add(1);
            self.until = Some(now + pause(self.failed) * if is_full { FULL_PAUSES } else { 1 });
        }
    }

    /// One is tried again.
    pub(super) fn begin(&mut self) {
        self.under_way = true;
    }

    /// And that is over. `is_taken`: the server has it.
    pub(super) fn tried(&mut self, is_taken: bool) {
        self.under_way = false;
        if is_taken {
            (self.failed, self.until) = (0, None);
        }
    }

    /// `is_wanted`: those that there are have more than they are enough for. `left`: how many were closed.
    pub(super) fn opens(&self, is_wanted: bool, left: u64, now: Instant) -> Opens {
        if !is_wanted || self.under_way {
            return Opens::Later(None);
        }
        let wait = self.until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
        if wait.is_zero() || left != self.left { Opens::Now } else { Opens::Later(Some(wait)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what was refused is tried again while it is wanted, one at a time, later and later; at once
    /// where a session was closed, and anew where one was taken.
    #[test]
    fn refused_sessions_are_tried_again() {
        let (mut logins, mut now, mut last) = (Logins::default(), Instant::now(), Duration::ZERO);
        for n in 0..6 {
            // Several at the same time.
            (0..7).for_each(|_| logins.refused(true, 3, now));
            assert_eq!(logins.opens(false, 4, now), Opens::Later(None));
            let Opens::Later(Some(wait)) = logins.opens(true, 3, now) else { panic!("it waits") };
            assert!(wait > last, "{n}: {wait:?} after {last:?}");
            assert_eq!(logins.opens(true, 4, now), Opens::Now, "one was closed");
            now += wait;
            assert_eq!(logins.opens(true, 3, now), Opens::Now);
            logins.begin();
            assert_eq!(logins.opens(true, 3, now), Opens::Later(None));
            logins.tried(false);
            last = wait;
        }
        logins.tried(true);
        assert_eq!(logins.opens(true, 3, now), Opens::Now);
        logins.refused(false, 3, now);
        let Opens::Later(Some(wait)) = logins.opens(true, 3, now) else { panic!("it waits") };
        assert!(wait < Duration::from_secs(1), "{wait:?}");
    }
}
