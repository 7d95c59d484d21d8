//! Which congestion control a path gets.
//!
//! In: the names that this host may use, the default, the round-trip time, the share of bytes that had to be sent again.
//! Out: a name and why. Only the sender's control matters, so the source decides, of itself.
//!
//! The rule, from what was measured: on loopback and in one room cubic moves twice what bbr does, for bbr paces; on a
//! long path that loses packets by itself bbr keeps the rate where cubic and reno halve it at each loss. A long path
//! without loss keeps the default, but for a line that is full of our own packets ([`Full`]): there cubic is tried in place of
//! bbr, which overfills the queue again and again, and drains it each ten seconds.

use std::time::Duration;

use super::{Choice, LOCAL_RTT, show_ms, show_rate};
use crate::ids::Time;

/// More than this share of the bytes sent again, in each of [`LOSSY_TIMES`] looks one after the other and without a queue,
/// is the path's own loss: what streams lose by filling the buffer themselves comes while it is full, and in bursts with
/// rest between them.
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

/// What [`Full`] found.
#[derive(Clone, Debug, PartialEq)]
pub enum Turn {
    /// From now on this control, and why.
    To(Choice<String>),
    /// It brought less: the one before again, and why.
    Back(String),
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Way {
    #[default]
    Looking,
    /// The other control is on; the rate before, bytes per second.
    Trying(f64),
    Over,
}

/// Tries the best control that does not pace in place of one that does, once, where a queue stands and much is sent again: what
/// is lost there is our own doing. It goes back when the rate falls, for the queue may be others' doing, too.
#[derive(Clone, Debug, Default)]
pub struct Full {
    way: Way,
    /// Looks one after the other that said the same, and their rates together.
    times: u32,
    rates: f64,
}

/// So much sent again while a queue stands is more than what finding a line's rate takes.
const WASTE: f64 = 3e-3;
/// Looks in which the rate fell below this share of what it was, one after the other, end the trial. What was lost counts as sent
/// until it is sent again, so the rate before looks better than it is.
const WORSE: f64 = 0.85;
const WORSE_TIMES: u32 = 2;

impl Full {
    /// A look is over, with these facts.
    pub fn handle_look(&mut self, look: &Look, facts: &Facts<'_>) -> Option<Turn> {
        let is_paced = PACED.contains(&facts.current);
        if facts.lossy || self.way != Way::Looking && is_paced {
            // The path loses packets by itself, or somebody has chosen otherwise.
            self.way = Way::Over;
        }
        let says = match self.way {
            Way::Looking => is_paced && facts.rtt >= LONG_RTT && look.is_full && look.share > WASTE,
            Way::Trying(before) => look.rate < before * WORSE,
            Way::Over => return None,
        };
        (self.times, self.rates) = if says { (self.times + 1, self.rates + look.rate) } else { (0, 0.0) };
        let mean = self.rates / f64::from(self.times.max(1));
        match self.way {
            Way::Looking if self.times >= LOSSY_TIMES => {
                let value = UNPACED[0];
                if !facts.usable.iter().any(|usable| usable == value) {
                    self.way = Way::Over;
                    return None;
                }
                *self = Full { way: Way::Trying(mean), ..Full::default() };
                let why = format!("{} overfills the queue of a path that is full", facts.current);
                Some(Turn::To(Choice { value: value.into(), why }))
            }
            Way::Trying(before) if self.times >= WORSE_TIMES => {
                self.way = Way::Over;
                let [mean, before] = [mean, before].map(show_rate);
                Some(Turn::Back(format!("{} brought {mean}, this {before}", facts.current)))
            }
            _ => None,
        }
    }
}

/// What was seen between two looks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Look {
    /// Share of the bytes that were sent again.
    pub share: f64,
    /// Packets waited in a queue most of the time: the line is full, whatever is lost.
    pub is_full: bool,
    /// Bytes sent for the first time, per second.
    pub rate: f64,
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

/// Bytes sent between two looks, at least: fewer than this say nothing of one loss in 30,000 packets. Or so many sent again:
/// where much is lost, little is sent, and a dozen losses say enough.
const LOOK_LEN: u64 = 64 << 20;
const AGAIN_LEN: u64 = 16 << 10;
/// And so much time: what streams lose by their own start is sent again within a few round trips.
const LOOK_TIME: Duration = Duration::from_secs(1);

impl LossMeter {
    /// Bytes sent so far on all streams, and how many of them were sent again; `queued`: round trips are longer now than the
    /// path is, for packets wait in a queue. Counts that go back (a stream is gone) begin a new look. `Some` when one is over.
    pub fn handle_sent(&mut self, now: Time, sent: u64, again: u64, queued: bool) -> Option<Look> {
        (self.asked, self.queued) = (self.asked.saturating_add(1), self.queued + u32::from(queued));
        let (Some(more), Some(more_again)) = (sent.checked_sub(self.sent), again.checked_sub(self.again))
        else {
            self.begin(now, sent, again);
            return None;
        };
        let span = now.since(self.at);
        if more < LOOK_LEN && more_again < AGAIN_LEN || span < LOOK_TIME {
            return None;
        }
        let look = Look {
            share: more_again as f64 / more.max(1) as f64,
            is_full: self.queued * 2 > self.asked,
            rate: more.saturating_sub(more_again) as f64 / span.as_secs_f64(),
        };
        self.share = look.share;
        self.times = if look.share > LOSS && !look.is_full { self.times + 1 } else { 0 };
        self.begin(now, sent, again);
        Some(look)
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

    /// Goal: bbr gives way on a full line of ours, once; it is back when that brings less, or when the path loses packets; and
    /// nothing of it where there is no queue, little is sent again, the path is short, or cubic is not allowed.
    #[test]
    fn a_full_line_is_not_overfilled() {
        let all = ["reno", "bbr", "cubic"].map(str::to_owned);
        let turns =
            |usable: &[String], rtt_ms: u64, share: f64, is_full: bool, after: f64, lossy_at: usize| {
                let (mut full, mut current, mut turns) = (Full::default(), "bbr".to_owned(), Vec::new());
                for i in 0..20 {
                    let rate = if current == "cubic" { after } else { 100e6 };
                    let lossy = i >= lossy_at;
                    let facts =
                        Facts { usable, current: &current, rtt: Duration::from_millis(rtt_ms), lossy };
                    let (look, chosen) = (Look { share, is_full, rate }, choose(&facts));
                    let turn = full.handle_look(&look, &facts);
                    match turn.clone() {
                        Some(Turn::To(choice)) => current = choice.value,
                        Some(Turn::Back(_)) => current = "bbr".into(),
                        None => {}
                    }
                    if let Some(choice) = chosen {
                        current = choice.value;
                    }
                    turns.extend(turn.map(|_| (i, current.clone())));
                }
                (turns, current)
            };
        let cubic = || "cubic".to_owned();
        assert_eq!(turns(&all, 128, 0.02, true, 103e6, 99), (vec![(2, cubic())], cubic()));
        let back = (vec![(2, cubic()), (4, "bbr".into())], "bbr".to_owned());
        assert_eq!(turns(&all, 128, 0.02, true, 60e6, 99), back);
        // The path loses packets itself, as it turns out.
        assert_eq!(turns(&all, 128, 0.02, true, 103e6, 8), (vec![(2, cubic())], "bbr".to_owned()));
        for (usable, rtt, share, is_full, lossy_at) in [
            (&all[..2], 128, 0.02, true, 99),
            (&all[..], 2, 0.02, true, 99),
            (&all[..], 128, 0.001, true, 99),
            (&all[..], 128, 0.02, false, 99),
            (&all[..], 128, 0.02, true, 1),
        ] {
            assert_eq!(turns(usable, rtt, share, is_full, 103e6, lossy_at), (vec![], "bbr".to_owned()));
        }
    }

    /// Goal: steady loss is noticed, soon where there is much of it; a burst is not, nor what is lost by a full queue; and a
    /// count that goes back harms nothing.
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
