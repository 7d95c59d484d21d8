//! Which congestion control a path gets.
//!
//! In: the names that this host may use, the default, the round-trip time, the share of bytes that had to be
//! sent again.
//! Out: a name and why. Only the sender's control matters, so the source decides, of itself.
//!
//! The rule, from what was measured: on loopback and in one room cubic moves twice what bbr does, for bbr
//! paces; on a long path that loses packets by itself bbr keeps the rate where cubic and reno halve it at
//! each loss. A long path without loss keeps the default.

use std::time::Duration;

use super::{Choice, LOCAL_RTT, show_ms};
use crate::ids::Time;

/// More than this share of the bytes sent again, in each of [`LOSSY_TIMES`] looks one after the other and
/// without a queue, is the path's own loss: what streams lose by filling the buffer themselves comes while it
/// is full, and in bursts with rest between them.
pub const LOSS: f64 = 3e-5;
/// See [`LOSS`].
pub const LOSSY_TIMES: u32 = 3;
/// Below this round-trip time a loss is made good before it matters.
const LONG_RTT: Duration = Duration::from_millis(5);

/// Controls that pace, best first: at home on long paths.
const PACED: [&str; 3] = ["bbr3", "bbr2", "bbr"];
/// Controls that do not, best first.
const UNPACED: [&str; 2] = ["cubic", "reno"];

/// What is known when the control is chosen.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// What this process may use.
    pub usable: &'a [String],
    /// What the streams have now.
    pub current: &'a str,
    /// The shortest round trip.
    pub rtt: Duration,
    /// [`LossMeter::is_lossy`].
    pub lossy: bool,
}

/// The control to use from now on, and why; `None`: the one that is.
pub fn choose(facts: &Facts<'_>) -> Option<Choice<String>> {
    let first =
        |names: &[&str]| names.iter().find(|n| facts.usable.iter().any(|u| u == *n)).map(|n| n.to_string());
    let is_paced = PACED.contains(&facts.current);
    if facts.rtt < LOCAL_RTT {
        let value = first(&UNPACED).filter(|_| is_paced)?;
        let why = format!(
            "the path is {} long, where {} loses more by pacing than it gains",
            show_ms(facts.rtt),
            facts.current
        );
        return Some(Choice { value, why });
    }
    if facts.lossy && facts.rtt >= LONG_RTT && !is_paced {
        let value = first(&PACED)?;
        let why = format!(
            "the path loses packets over {}, which {} takes for congestion",
            show_ms(facts.rtt),
            facts.current
        );
        return Some(Choice { value, why });
    }
    None
}

/// Tells a path that loses packets from streams that fill a buffer now and then.
#[derive(Clone, Debug, Default)]
pub struct LossMeter {
    at: Time,
    sent: u64,
    again: u64,
    times: u32,
    share: f64,
    /// Of this look: how often it was asked, and how often packets waited in a queue.
    asked: u32,
    queued: u32,
}

/// Bytes sent between two looks, at least: fewer than this say nothing of one loss in 30,000 packets. Or so
/// many sent again: where much is lost, little is sent, and a dozen losses say enough.
const LOOK_LEN: u64 = 64 << 20;
const AGAIN_LEN: u64 = 16 << 10;
/// And so much time: what streams lose by their own start is sent again within a few round trips.
const LOOK_TIME: Duration = Duration::from_secs(1);

impl LossMeter {
    /// Bytes sent so far on all streams, and how many of them were sent again; `queued`: round trips are
    /// longer now than the path is, for packets wait in a queue. Counts that go back (a stream is gone) begin
    /// a new look.
    pub fn handle_sent(&mut self, now: Time, sent: u64, again: u64, queued: bool) {
        (self.asked, self.queued) = (self.asked.saturating_add(1), self.queued + u32::from(queued));
        let (Some(more), Some(more_again)) = (sent.checked_sub(self.sent), again.checked_sub(self.again))
        else {
            return self.begin(now, sent, again);
        };
        if more < LOOK_LEN && more_again < AGAIN_LEN || now.since(self.at) < LOOK_TIME {
            return;
        }
        self.share = more_again as f64 / more.max(1) as f64;
        // A queue that stands means that the line is full, whatever is lost.
        let is_full = self.queued * 2 > self.asked;
        self.times = if self.share > LOSS && !is_full { self.times + 1 } else { 0 };
        self.begin(now, sent, again);
    }

    fn begin(&mut self, now: Time, sent: u64, again: u64) {
        (self.at, self.sent, self.again) = (now, sent, again);
        (self.asked, self.queued) = (0, 0);
    }
    /// The path itself loses packets.
    pub fn is_lossy(&self) -> bool {
        self.times >= LOSSY_TIMES
    }
    /// Share of the bytes of the last look that were sent again.
    pub fn share(&self) -> f64 {
        self.share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(usable: &[&str], current: &str, rtt_us: u64, lossy: bool) -> Option<String> {
        let usable: Vec<String> = usable.iter().map(|s| s.to_string()).collect();
        let rtt = Duration::from_micros(rtt_us);
        choose(&Facts { usable: &usable, current, rtt, lossy }).map(|choice| choice.value)
    }

    /// Goal: each row of the rule, and nothing that is not allowed.
    #[test]
    fn the_rule_by_facts() {
        let all = ["reno", "bbr", "cubic"];
        assert_eq!(chosen(&all, "bbr", 30, false).as_deref(), Some("cubic"));
        assert_eq!(chosen(&["reno", "bbr"], "bbr", 30, true).as_deref(), Some("reno"));
        assert_eq!(chosen(&["bbr"], "bbr", 30, false), None);
        for current in ["cubic", "reno", "dctcp", "nonesuch"] {
            assert_eq!(chosen(&all, current, 30, true), None);
            assert_eq!(chosen(&all, current, 128_000, false), None);
            assert_eq!(chosen(&all, current, 128_000, true).as_deref(), Some("bbr"));
            assert_eq!(chosen(&["reno", "cubic"], current, 128_000, true), None);
            assert_eq!(chosen(&all, current, 2_000, true), None);
        }
        assert_eq!(chosen(&all, "bbr", 128_000, true), None);
        assert_eq!(chosen(&["bbr", "bbr3"], "cubic", 128_000, true).as_deref(), Some("bbr3"));
    }

    /// Goal: steady loss is noticed, soon where there is much of it; a burst is not, nor what is lost by a
    /// full queue; and a count that goes back harms nothing.
    #[test]
    fn bursts_are_no_loss_of_the_path() {
        let gib = 1_u64 << 30;
        let at = |i: u64| Time(i * 3_000_000_000);
        let mut steady = LossMeter::default();
        for i in 1..=3 {
            assert!(!steady.is_lossy());
            steady.handle_sent(at(i), i * gib, i * gib / 10_000, false);
        }
        assert!(steady.is_lossy() && (0.9e-4..1.1e-4).contains(&steady.share()));
        steady.handle_sent(at(4), 0, 0, false);
        steady.handle_sent(at(5), gib, 0, false);
        assert!(!steady.is_lossy());
        let mut bursts = LossMeter::default();
        for i in 1..=100 {
            bursts.handle_sent(at(i), i * gib, i.div_ceil(3) * gib / 1000, false);
            assert!(!bursts.is_lossy(), "{i}");
        }
        // The start of a fast path: much is lost, and soon over.
        let mut start = LossMeter::default();
        for i in 1..=40 {
            start.handle_sent(Time(i * 100_000_000), i * gib, i.min(20) * gib / 1000, false);
            assert!(!start.is_lossy(), "{i}");
        }
        // One in a thousand lets little through: 10 MB/s.
        let lossy_after = |queued: &dyn Fn(u64) -> bool| {
            let mut meter = LossMeter::default();
            (1..100_u64).find(|i| {
                meter.handle_sent(Time(i * 200_000_000), i * 2_000_000, i * 2_000, queued(*i));
                meter.is_lossy()
            })
        };
        assert!(lossy_after(&|_| false).is_some_and(|i| i <= 30), "within 6 s");
        assert!(lossy_after(&|i| i % 4 == 0).is_some_and(|i| i <= 30), "a queue that comes and goes");
        assert_eq!(lossy_after(&|i| i % 4 != 0), None);
    }
}
