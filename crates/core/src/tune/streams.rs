//! How many streams are live: more only while that helps, fewer where it costs nothing.
//!
//! In: samples, about five a second, of what all streams together delivered, how each of them fared, and
//! whether the stages around the network had to wait for it. Out: the number of streams that there shall be,
//! and why.
//!
//! A search with memory. At each count it waits until the streams have settled ([`SETTLE_RTTS`]), then
//! measures for [`MEASURE_RTTS`]. It doubles while the rate rises by more than the noise, then tries smaller
//! steps from the best, then fewer; a count with the same rate and fewer streams is the better one. Then it
//! rests, for longer each time that a search ended where it began, and searches again after that, or when the
//! rate has shifted for good. Where packets wait in a queue the line is full: more streams can add nothing
//! but to that queue, and to what is lost when it overflows, so only fewer are tried.
//!
//! Invariants: the count stays within 1 and the most that is possible. It moves only while the network is the
//! limit: with a slow source, sink or user's limit it stays where it is. After a trial that did not help it
//! goes back to the best.

use std::time::Duration;

use super::{show_ms, show_rate};
use crate::ids::Time;

/// Streams settle within so many round trips after a change (slow start to a few MiB takes eight), and at
/// least [`SETTLE_MIN`].
pub const SETTLE_RTTS: u32 = 10;
const SETTLE_MIN: Duration = Duration::from_millis(400);
/// The rate of a count is measured over so many round trips, and at least [`MEASURE_MIN`].
pub const MEASURE_RTTS: u32 = 6;
const MEASURE_MIN: Duration = Duration::from_secs(1);
/// A rate that rises by so much within a measurement has not settled; it is measured again, so often at most.
const RISING: f64 = 1.05;
const RISING_TIMES: u32 = 5;
/// More streams must bring this much more, and twice what the rate varies by itself.
const GAIN: f64 = 0.03;
/// Fewer streams may cost this much of the best rate that was seen.
const COST: f64 = 0.025;
/// First and longest rest between two searches.
const REST_MIN: Duration = Duration::from_secs(30);
const REST_MAX: Duration = Duration::from_secs(480);
/// Round trips of the first rest at least.
const REST_RTTS: u32 = 400;
/// A rate that differs by this much for [`SHIFTS`] measurements has shifted.
const SHIFT: f64 = 0.25;
const SHIFTS: u32 = 3;
/// Streams that were busy for less of the time than this wait for somebody else.
const BUSY_MIN: f64 = 0.7;
/// New streams that do not come within this time do not come at all.
const JOIN_MAX: Duration = Duration::from_secs(10);

/// How one stream fared since the last sample: shares of the time, 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Flow {
    /// There was something to send.
    pub busy: f64,
    /// The receiver's window held it up; our send buffer did.
    pub rwnd_limited: f64,
    pub sndbuf_limited: f64,
    /// Share of its bytes that were sent again.
    pub lost: f64,
}

/// All streams at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    pub now: Time,
    /// Bytes delivered since the session began, by streams that are gone too.
    pub delivered: u64,
    /// Each live stream since the last sample.
    pub flows: &'a [Flow],
    /// The user's limit holds the streams back.
    pub rate_limited: bool,
    /// Packets of most streams wait in a queue: round trips are longer than the path is.
    pub queued: bool,
}

/// What limits the streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Windows, or the buffers behind them.
    Window,
    /// The path: its rate, or losses.
    Path,
    /// The path's rate, for a queue stands before it.
    Full,
    /// Streams wait for data or for the sink's grants.
    Ends,
    /// `--rate`.
    Rate,
}

/// What limits these streams at the moment.
pub fn limit(sample: &Sample<'_>) -> Limit {
    let n = sample.flows.len().max(1) as f64;
    let mean = |of: fn(&Flow) -> f64| sample.flows.iter().map(of).sum::<f64>() / n;
    if sample.rate_limited {
        Limit::Rate
    } else if mean(|f| f.busy) < BUSY_MIN {
        Limit::Ends
    } else if mean(|f| f.rwnd_limited + f.sndbuf_limited) > 0.5 * mean(|f| f.busy) {
        Limit::Window
    } else if sample.queued {
        Limit::Full
    } else {
        Limit::Path
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum StreamsPhase {
    /// Waits for streams to join or part, until this time at most.
    Joining(Time),
    Settling(Time),
    Measuring,
    Resting(Time),
}

/// Which way the trial goes, and by how much of the best count.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trial {
    Base,
    Up(f64),
    Down(f64),
    /// A little more than the best, for the best may lie between a count that was too small and one too
    /// large.
    Last,
}

/// The first step up, and how small one becomes; likewise down.
const UP: [f64; 3] = [2.0, 1.5, 1.2];
const DOWN: [f64; 3] = [0.7, 0.85, 0.95];
const LAST: f64 = 1.06;

/// The controller. See the module's head.
#[derive(Clone, Debug)]
pub struct Streams {
    rtt: Duration,
    max: u16,
    wanted: u16,
    phase: StreamsPhase,
    trial: Trial,
    best: (u16, f64),
    /// Counts of this search that are known to be worse than the best, below and above it.
    low: u16,
    high: u16,
    /// The best rate of this search at any count: small losses must not add up.
    top: f64,
    /// Where this search began, and how long the rest after it is.
    began: u16,
    rest: Duration,
    window: Window,
    /// How often this count was measured while the rate still rose.
    rising: u32,
    /// Measurements one after the other that differ from the best rate.
    shifts: u32,
    limit: Limit,
    why: String,
}

/// One measurement.
#[derive(Clone, Debug, Default)]
struct Window {
    start: Option<(Time, u64)>,
    /// About half way.
    middle: Option<(Time, u64)>,
    last: (Time, u64),
    /// Rates between samples: count, sum and sum of squares.
    n: f64,
    sum: f64,
    squares: f64,
    limits: [u32; 5],
}

impl Window {
    /// `length`: how long the measurement shall become.
    fn add(&mut self, sample: &Sample<'_>, length: Duration) {
        let at = (sample.now, sample.delivered);
        if self.start.is_some() {
            let time = at.0.since(self.last.0).as_secs_f64();
            if time <= 0.0 {
                return;
            }
            let rate = at.1.saturating_sub(self.last.1) as f64 / time;
            (self.n, self.sum, self.squares) = (self.n + 1.0, self.sum + rate, self.squares + rate * rate);
            self.limits[limit(sample) as usize] += 1;
        }
        self.start.get_or_insert(at);
        self.last = at;
        if self.length() * 2 >= length {
            self.middle.get_or_insert(at);
        }
    }
    /// The streams are still growing: the second half was faster than the first.
    fn is_rising(&self) -> bool {
        let (Some(start), Some(middle)) = (self.start, self.middle) else { return false };
        let rate = |from: (Time, u64), to: (Time, u64)| {
            to.1.saturating_sub(from.1) as f64 / to.0.since(from.0).as_secs_f64().max(1e-3)
        };
        rate(middle, self.last) > rate(start, middle) * RISING
    }
    fn length(&self) -> Duration {
        self.start.map_or(Duration::ZERO, |start| self.last.0.since(start.0))
    }
    fn rate(&self) -> f64 {
        let (Some(start), time) = (self.start, self.length().as_secs_f64()) else { return 0.0 };
        if time > 0.0 { self.last.1.saturating_sub(start.1) as f64 / time } else { 0.0 }
    }
    /// How far the mean may be off, as a share of it.
    fn noise(&self) -> f64 {
        if self.n < 2.0 || self.sum <= 0.0 {
            return 0.0;
        }
        let mean = self.sum / self.n;
        let variance = (self.squares / self.n - mean * mean).max(0.0) / (self.n - 1.0);
        variance.sqrt() / mean
    }
    /// What limited most of the time.
    fn limit(&self) -> Limit {
        let all = [Limit::Window, Limit::Path, Limit::Full, Limit::Ends, Limit::Rate];
        all.into_iter().max_by_key(|l| self.limits[*l as usize]).unwrap_or(Limit::Path)
    }
}

impl Streams {
    /// Begins with `start` streams, which are up; `max` are possible.
    pub fn new(now: Time, start: u16, max: u16, rtt: Duration) -> Streams {
        let max = max.max(1);
        let start = start.clamp(1, max);
        let mut streams = Streams {
            // A peer's clock cannot make it wait for ever.
            rtt: rtt.min(Duration::from_secs(2)),
            max,
            wanted: start,
            phase: StreamsPhase::Measuring,
            trial: Trial::Base,
            best: (start, 0.0),
            low: 0,
            high: u16::MAX,
            top: 0.0,
            began: start,
            rest: REST_MIN,
            window: Window::default(),
            rising: 0,
            shifts: 0,
            limit: Limit::Path,
            why: String::new(),
        };
        streams.settle(now);
        streams
    }

    /// The number of streams that there shall be.
    pub fn wanted(&self) -> u16 {
        self.wanted
    }
    /// What the last decision was, in words; empty before the first.
    pub fn why(&self) -> &str {
        &self.why
    }
    /// What limited the streams when they were last measured.
    pub fn limit(&self) -> Limit {
        self.limit
    }

    /// Takes a sample. `Some`: from now on there shall be so many streams; the caller opens or parks, and
    /// says in the samples that follow how many there are.
    pub fn handle_sample(&mut self, sample: &Sample<'_>) -> Option<u16> {
        let before = self.wanted;
        let live = u16::try_from(sample.flows.len()).unwrap_or(u16::MAX);
        match self.phase {
            StreamsPhase::Joining(until) => {
                if live == self.wanted {
                    self.settle(sample.now);
                } else if sample.now >= until && live >= 1 {
                    // More cannot be had: what there is is what can be measured.
                    self.max = self.max.min(live.max(self.best.0));
                    self.wanted = live.min(self.max);
                    self.settle(sample.now);
                }
            }
            _ if live != self.wanted && live >= 1 => {
                // A stream was lost, or another came: what is measured is no more what was wanted.
                self.phase = StreamsPhase::Joining(after(sample.now, JOIN_MAX));
            }
            StreamsPhase::Settling(until) if sample.now < until => {}
            StreamsPhase::Settling(_) => {
                self.window = Window::default();
                self.window.add(sample, self.measure());
                self.rising = 0;
                self.phase = StreamsPhase::Measuring;
            }
            StreamsPhase::Measuring => {
                self.window.add(sample, self.measure());
                if self.window.length() >= self.measure() {
                    let window = std::mem::take(&mut self.window);
                    if window.is_rising() && self.rising < RISING_TIMES {
                        self.rising += 1;
                        self.window.add(sample, self.measure());
                        return None;
                    }
                    self.limit = window.limit();
                    self.judge(sample.now, window.rate(), window.noise());
                }
            }
            StreamsPhase::Resting(until) => {
                self.window.add(sample, self.measure());
                if self.window.length() < self.measure() {
                    return None;
                }
                let window = std::mem::take(&mut self.window);
                self.limit = window.limit();
                let is_network = matches!(self.limit, Limit::Window | Limit::Path | Limit::Full);
                let shifted = (window.rate() / self.best.1.max(1.0) - 1.0).abs() > SHIFT;
                self.shifts = if shifted && is_network { self.shifts + 1 } else { 0 };
                if self.shifts >= SHIFTS {
                    self.rest = REST_MIN;
                }
                if is_network && (sample.now >= until || self.shifts >= SHIFTS) {
                    self.began = self.wanted;
                    self.trial = Trial::Base;
                    self.judge(sample.now, window.rate(), window.noise());
                }
            }
        }
        (self.wanted != before).then_some(self.wanted)
    }

    /// Nothing was sent for a while, for a reason that says nothing of the path: somebody paused, or the
    /// network was away. What was being measured is void, and the same count settles again.
    pub fn handle_gap(&mut self, now: Time) {
        match self.phase {
            StreamsPhase::Joining(_) => self.phase = StreamsPhase::Joining(after(now, JOIN_MAX)),
            StreamsPhase::Settling(_) | StreamsPhase::Measuring => self.settle(now),
            StreamsPhase::Resting(until) => {
                self.window = Window::default();
                self.shifts = 0;
                // The first measurement after it holds the start, too: no search begins from that.
                let again = after(now, SETTLE_MIN.max(self.rtt * SETTLE_RTTS) + self.measure());
                self.phase = StreamsPhase::Resting(until.max(again));
            }
        }
    }

    /// How long a count is measured.
    fn measure(&self) -> Duration {
        MEASURE_MIN.max(self.rtt * MEASURE_RTTS)
    }

    fn settle(&mut self, now: Time) {
        self.window = Window::default();
        self.phase = StreamsPhase::Settling(after(now, SETTLE_MIN.max(self.rtt * SETTLE_RTTS)));
    }

    /// `wanted` streams deliver `rate`.
    fn judge(&mut self, now: Time, rate: f64, noise: f64) {
        let count = self.wanted;
        let gain = GAIN.max(2.0 * noise);
        let is_network = matches!(self.limit, Limit::Window | Limit::Path | Limit::Full);
        let better = match self.trial {
            Trial::Base => {
                (self.best, self.top) = ((count, rate), rate);
                (self.low, self.high) = (0, u16::MAX);
                // Not the network: nothing is to be gained here.
                if !is_network {
                    return self.rest(now);
                }
                return self.next(now, Trial::Up(UP[0]));
            }
            Trial::Up(_) | Trial::Last => rate > self.best.1 * (1.0 + gain),
            Trial::Down(_) => rate >= self.top * (1.0 - COST),
        };
        self.say(count, rate, better);
        // The one of the two that is no longer in question.
        let other = if better { self.best.0 } else { count };
        let other_is_above = (count > self.best.0) != better;
        if other_is_above {
            self.high = self.high.min(other);
        } else {
            self.low = self.low.max(other);
        }
        if better {
            self.best = (count, rate);
            self.top = self.top.max(rate);
            if !is_network {
                return self.rest(now);
            }
        }
        // After a smaller step the larger ones are known not to help.
        let trial = if better { Some(self.trial) } else { following(self.trial) };
        let Some(trial) = trial else { return self.rest(now) };
        self.next(now, trial);
    }

    /// Goes on with this trial, or with the first after it that leads to a count other than the best.
    fn next(&mut self, now: Time, trial: Trial) {
        let best = f64::from(self.best.0);
        let mut trial = Some(trial);
        while let Some(this) = trial {
            let count = match this {
                Trial::Base => best,
                Trial::Up(step) => (best * step).ceil().min(f64::from(self.max)),
                Trial::Down(step) => (best * step).floor().max(1.0),
                Trial::Last => (best * LAST).ceil().min(f64::from(self.max)),
            };
            let is_open = f64::from(self.low) < count && count < f64::from(self.high);
            let helps = self.limit != Limit::Full || count < best;
            if count != best && is_open && helps {
                self.trial = this;
                self.wanted = count as u16;
                self.phase = StreamsPhase::Joining(after(now, JOIN_MAX));
                return;
            }
            trial = following(this);
        }
        self.rest(now);
    }

    /// Back to the best, and rest there.
    fn rest(&mut self, now: Time) {
        self.wanted = self.best.0;
        // A search costs some of the rate: on a long path, where it takes longer, it comes more seldom.
        let least = REST_MIN.max(self.rtt * REST_RTTS);
        let as_before = self.best.0.abs_diff(self.began) <= (self.began / 8).max(1);
        self.rest = if as_before { (self.rest * 2).clamp(least, REST_MAX) } else { least };
        self.began = self.best.0;
        self.shifts = 0;
        self.window = Window::default();
        self.phase = StreamsPhase::Resting(after(now, self.rest));
    }

    fn say(&mut self, count: u16, rate: f64, better: bool) {
        let (n, was) = self.best;
        let limit = match self.limit {
            Limit::Window => "the window limits",
            Limit::Path => "the path limits",
            Limit::Full => "the line is full",
            Limit::Ends => "an end limits",
            Limit::Rate => "`rate` limits",
        };
        let (rate, was) = (show_rate(rate), show_rate(was));
        self.why = match (better, count > n) {
            (true, true) => format!("{count} bring {rate}, {n} brought {was} over {}", show_ms(self.rtt)),
            (true, false) => format!("{count} bring {rate}, as much as {n}"),
            (false, true) => format!("{n} bring {was}, {count} brought no more ({rate}); {limit}"),
            (false, false) => format!("{n} bring {was}, {count} brought less ({rate}); {limit}"),
        };
    }
}

/// What is tried when this did not help.
fn following(trial: Trial) -> Option<Trial> {
    match trial {
        Trial::Base => Some(Trial::Up(UP[0])),
        Trial::Up(step) => Some(finer(&UP, step).map_or(Trial::Down(DOWN[0]), Trial::Up)),
        Trial::Down(step) => Some(finer(&DOWN, step).map_or(Trial::Last, Trial::Down)),
        Trial::Last => None,
    }
}

fn finer(steps: &[f64], step: f64) -> Option<f64> {
    let at = steps.iter().position(|s| *s == step)?;
    steps.get(at + 1).copied()
}

fn after(now: Time, time: Duration) -> Time {
    Time(now.0.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
}
