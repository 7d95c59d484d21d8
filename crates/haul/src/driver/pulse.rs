//! Whether the other end is there: pings over control, and how long nothing came back.
//!
//! In: what was heard, and looks many times a second. Out: pings, and an error when the silence is too long.
//! What must hold: silence counts only while somebody listened. A process that was suspended finds what came
//! meanwhile when it goes on, so it has not been left alone.

use std::time::{Duration, Instant};

use haul_core::wire::Message;

use super::streams::Lines;
use haul_transport::stream::ControlHandle;

/// Something is said on the control stream at least this often.
const PING_EVERY: Duration = Duration::from_secs(10);
/// The same while an end is waited for.
const PING_EVERY_AT_THE_END: Duration = Duration::from_secs(1);
/// Nothing heard for this long: the other end is taken for dead.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Who did not look for so long was suspended.
const SUSPENDED_MIN: Duration = Duration::from_secs(5);

/// Keeps the control stream alive and notices when the other end is silent.
pub(crate) struct Pulse {
    heard: Instant,
    pinged: Instant,
    /// When the silence was last looked at.
    looked: Instant,
    number: u64,
    /// An end is waited for.
    ends: bool,
}

impl Pulse {
    pub(crate) fn new() -> Pulse {
        let now = Instant::now();
        Pulse { heard: now, pinged: now, looked: now, number: 0, ends: false }
    }
    /// Something came from the other end.
    pub(crate) fn heard(&mut self) {
        self.heard = Instant::now();
    }
    /// Control joined again: it has to show that it works before long.
    pub(crate) fn rejoined(&mut self) {
        self.heard = Instant::now() - SILENCE_MAX.saturating_sub(Lines::resume_max());
        self.pinged = Instant::now() - PING_EVERY;
    }
    /// An end is waited for as long as the other end is there: it is asked often whether it is.
    pub(crate) fn set_ends(&mut self) {
        self.ends = true;
    }
    /// Something was heard within this time.
    pub(crate) fn is_heard_within(&self, time: Duration) -> bool {
        self.heard.elapsed() < time
    }
    /// For how long nothing was heard while somebody listened: what came while this process was suspended
    /// waits to be read.
    fn silence(&mut self, now: Instant) -> Duration {
        let away = now.saturating_duration_since(self.looked);
        self.looked = now;
        if away >= SUSPENDED_MIN {
            self.heard = (self.heard + away).min(now);
        }
        now.saturating_duration_since(self.heard)
    }
    /// Says something if it is time to; `Err` if the other end was silent for too long.
    pub(crate) fn beat(&mut self, control: &ControlHandle) -> Result<(), String> {
        if self.pinged.elapsed() >= if self.ends { PING_EVERY_AT_THE_END } else { PING_EVERY } {
            self.pinged = Instant::now();
            self.number += 1;
            control.send(Message::Ping(self.number));
        }
        if self.silence(Instant::now()) >= SILENCE_MAX {
            return Err(format!("nothing was heard from the other end for {} s", SILENCE_MAX.as_secs()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a silence ends a session, and a suspension of this process does not.
    /// Method: looks at made-up times: one after another, and after an hour without any.
    #[test]
    fn suspended_time_is_no_silence() {
        let mut pulse = Pulse::new();
        let start = pulse.looked;
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(pulse.silence(at(1)), Duration::from_secs(1));
        assert_eq!(pulse.silence(at(3601)), Duration::from_secs(1));
        let mut silence = Duration::ZERO;
        for second in 3602..=3700 {
            silence = pulse.silence(at(second));
        }
        assert_eq!(silence, Duration::from_secs(100));
        assert!(silence >= SILENCE_MAX);
    }
}
