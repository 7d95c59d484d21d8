//! One session in which settings are measured, one after the other.
//!
//! In: looks at the network, settings of the sweep. Out: turns, points. No clock and no socket in here.
//!
//! A setting is measured in three steps: its streams come up or are parked; they settle for [`SETTLE_RTTS`];
//! then what the sink takes is looked at, answer by answer, over [`MEASURE_RTTS`] and [`MEASURE_MIN`] at
//! least. The rate is the slope of a line through these answers that few late ones cannot turn ([`slope`]);
//! or what the sockets say has reached the other end, in whatever order, if that is less: what waited behind
//! a lost packet is let go at once, and no line carried it so fast. A rate that still rises, or falls because
//! something that had been held back is still being let go, is measured again, a few times. What the sockets
//! had acknowledged is not counted: after a change that is the rate at which buffers fill.

use std::collections::BTreeMap;
use std::time::Duration;

use haul_core::ids::{StreamId, Time};
use haul_core::tune::streams::{self, Flow, Sample};
use serde::{Deserialize, Serialize};

use super::sweep::Sweep;
use super::{Event, Limit, Point, Progress, Setting};
use haul::api::Handle;
use haul::trial::{Look, Trial, Turn};
use haul_transport::tcp::TcpSample;

/// Streams settle for so many round trips after a change, and at least so long.
const SETTLE_RTTS: u32 = 12;
const SETTLE_MIN: Duration = Duration::from_millis(500);
/// A rate is taken over so many round trips, and at least so long.
const MEASURE_RTTS: u32 = 8;
const MEASURE_MIN: Duration = Duration::from_millis(2000);
/// And over so many answers of the sink, but not for longer than this.
const ANSWERS_MIN: usize = 6;
/// Most answers through which a line is laid: 10 s have 40 of them, and more where the path is fast.
const ANSWERS_MAX: usize = 1000;
/// Slopes are taken between answers that are this share of all apart.
const APART: f64 = 0.4;
const MEASURE_MAX: Duration = Duration::from_secs(10);
/// A half of a measurement that is so much faster than the other: the rate has not settled. Measured again so
/// often.
const MOVING: f64 = 1.05;
const MOVING_TIMES: u32 = 3;
/// As long as there is time for so many measurements.
const AGAIN_LEAVES: u32 = 4;
/// Streams that do not come within this time do not come at all.
const JOIN_MAX: Duration = Duration::from_secs(10);
/// Most round-trip times that are kept of all; a probe of a minute over 64 streams has 80,000.
const RTTS_MAX: usize = 500_000;

/// What is being done with a setting.
enum Step {
    Joining(Time),
    Settling(Time),
    Measuring(Box<Measure>),
}

/// A measurement that runs.
struct Measure {
    begun: Time,
    /// When the sink had taken how much, from its first answer on.
    answers: Vec<(Time, u64)>,
    /// What had reached the other end in whatever order, bytes of segments, since the begin; empty where
    /// nobody says.
    reached: Vec<(Time, u64)>,
    first: BTreeMap<StreamId, TcpSample>,
    sent: u64,
    again: u64,
    cpu: Duration,
    /// Seconds.
    rtts: Vec<f32>,
    again_times: u32,
}

/// How a rate moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moves {
    No,
    Up,
    Down,
}

/// What was seen of the network over the whole session. Times in seconds, 0: nobody could be asked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Seen {
    pub(super) rtt_min: f64,
    pub(super) rtt_median: f64,
    pub(super) rtt_p99: f64,
    pub(super) mtu: u32,
    pub(super) mss: u32,
    pub(super) reordering: u32,
    pub(super) reorderings: u64,
    pub(super) sent: u64,
    pub(super) again: u64,
    pub(super) taken: u64,
    pub(super) seconds: f64,
}

/// See the module.
pub(super) struct Bench {
    sweep: Sweep,
    /// The path's round-trip time as it was found before.
    rtt: Duration,
    time_limit: Duration,
    bytes_limit: u64,
    current: Option<(Setting, Step)>,
    /// The mean time of a point so far.
    cost: Duration,
    began: Option<Time>,
    point_began: Time,
    seen: Seen,
    rtts: Vec<f32>,
    reorderings: BTreeMap<StreamId, u32>,
    /// Ends the session.
    handle: Handle,
    tell: Box<dyn Fn(Event) + Send>,
    told: Option<Time>,
    over: bool,
}

impl Bench {
    pub(super) fn new(
        sweep: Sweep,
        rtt: Duration,
        (time_limit, bytes_limit): (Duration, u64),
        handle: Handle,
        tell: Box<dyn Fn(Event) + Send>,
    ) -> Bench {
        let settle = (rtt * SETTLE_RTTS).max(SETTLE_MIN);
        Bench {
            sweep,
            rtt,
            time_limit,
            bytes_limit,
            current: None,
            cost: settle + (rtt * MEASURE_RTTS).max(MEASURE_MIN),
            began: None,
            point_began: Time(0),
            seen: Seen::default(),
            rtts: Vec::new(),
            reorderings: BTreeMap::new(),
            handle,
            tell,
            told: None,
            over: false,
        }
    }

    /// The sweep and what was seen, when the session is over.
    pub(super) fn into_parts(mut self) -> (Sweep, Seen) {
        self.rtts.sort_by(f32::total_cmp);
        self.seen.rtt_median = quantile(&self.rtts, 0.5);
        self.seen.rtt_p99 = quantile(&self.rtts, 0.99);
        self.seen.reorderings = self.reorderings.values().map(|n| u64::from(*n)).sum();
        (self.sweep, self.seen)
    }

    /// Nothing more is measured.
    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    fn spent(&self, now: Time) -> Duration {
        self.began.map_or(Duration::ZERO, |began| now.since(began))
    }

    /// The shortest round trip, seconds.
    fn rtt_min(&self) -> f64 {
        if self.seen.rtt_min > 0.0 { self.seen.rtt_min } else { self.rtt.as_secs_f64() }
    }

    /// Begins with the next setting, or ends the session.
    fn begin(&mut self, look: &Look<'_>) -> Option<Turn> {
        let now = look.now;
        if look.taken > self.bytes_limit {
            self.sweep.end("the limit of bytes was reached before");
        } else if self.spent(now) + self.cost > self.time_limit && self.spent(now) > Duration::ZERO {
            self.sweep.end("there was no time left for it");
        }
        let Some(setting) = self.sweep.next(self.rtt_min()) else {
            self.over = true;
            self.handle.stop();
            return None;
        };
        self.point_began = now;
        let control = Some(setting.congestion.clone()).filter(|name| !name.is_empty());
        let turn = Turn { streams: setting.streams, control, window: setting.window };
        self.current = Some((setting, Step::Joining(later(now, JOIN_MAX))));
        self.progress(look);
        Some(turn)
    }

    fn progress(&mut self, look: &Look<'_>) {
        let Some((setting, _)) = &self.current else { return };
        self.told = Some(look.now);
        let spent = self.spent(look.now);
        (self.tell)(Event::Progress(Progress {
            setting: setting.clone(),
            done: self.sweep.points().len(),
            bytes: look.taken,
            seconds: spent.as_secs_f64(),
            seconds_left: self.time_limit.saturating_sub(spent).as_secs_f64(),
        }));
    }

    /// Keeps what is known of the path, whatever is being measured.
    fn note(&mut self, look: &Look<'_>) {
        let seen = &mut self.seen;
        for (stream, flow) in look.flows {
            let shortest = flow.min_rtt.unwrap_or(flow.rtt).as_secs_f64();
            if shortest > 0.0 && (seen.rtt_min == 0.0 || shortest < seen.rtt_min) {
                seen.rtt_min = shortest;
            }
            (seen.mtu, seen.mss) = (flow.pmtu, flow.mss);
            seen.reordering = seen.reordering.max(flow.reordering);
            self.reorderings.insert(*stream, flow.reord_seen.unwrap_or(0));
        }
        (seen.sent, seen.again) = (seen.sent.max(look.sent), seen.again.max(look.again));
        seen.taken = look.taken;
        seen.seconds = self.began.map_or(0.0, |began| look.now.since(began).as_secs_f64());
    }

    /// Goes on with the current setting; `None`: it is done.
    fn go_on(&mut self, look: &Look<'_>, setting: &Setting, step: Step) -> Option<Step> {
        let now = look.now;
        match step {
            Step::Joining(_) if look.streams == setting.streams => {
                Some(Step::Settling(later(now, (self.rtt * SETTLE_RTTS).max(SETTLE_MIN))))
            }
            Step::Joining(until) if now < until => Some(step),
            Step::Joining(_) => {
                self.sweep.failed(setting.clone(), "its connections did not come up");
                None
            }
            Step::Settling(until) if now < until => Some(step),
            Step::Settling(_) => Some(Step::Measuring(Box::new(Measure::begin(look)))),
            Step::Measuring(mut measure) => {
                measure.add(look);
                let least = (self.rtt * MEASURE_RTTS).max(MEASURE_MIN);
                if !measure.is_done(now, least) {
                    return Some(Step::Measuring(measure));
                }
                let moves = measure.moves();
                // Others are to be measured, too.
                let time = self.spent(now) + AGAIN_LEAVES * least <= self.time_limit;
                if moves != Moves::No
                    && time
                    && measure.again_times < MOVING_TIMES
                    && look.taken <= self.bytes_limit
                {
                    let again_times = measure.again_times + 1;
                    return Some(Step::Measuring(Box::new(Measure { again_times, ..Measure::begin(look) })));
                }
                if self.rtts.len() < RTTS_MAX {
                    self.rtts.extend(&measure.rtts);
                }
                match measure.point(look, setting, moves == Moves::Up) {
                    Some(point) => {
                        let count = self.sweep.points().len() as u32;
                        self.cost = (self.cost * count + now.since(self.point_began)) / (count + 1);
                        (self.tell)(Event::Point(point.clone()));
                        self.sweep.record(point);
                    }
                    None => self.sweep.failed(setting.clone(), "the other end took nothing in the time"),
                }
                None
            }
        }
    }
}

impl Trial for Bench {
    fn look(&mut self, look: &Look<'_>) -> Option<Turn> {
        if self.over {
            return None;
        }
        self.began.get_or_insert(look.now);
        self.note(look);
        if let Some((setting, step)) = self.current.take()
            && let Some(step) = self.go_on(look, &setting, step)
        {
            self.current = Some((setting, step));
            if self.told.is_none_or(|told| look.now.since(told) >= Duration::from_millis(200)) {
                self.progress(look);
            }
            return None;
        }
        self.begin(look)
    }

    fn refused(&mut self, why: String) {
        // What could not be set was not measured.
        if let Some((setting, _)) = self.current.take() {
            self.sweep.failed(setting, &why);
        }
    }
}

impl Measure {
    fn begin(look: &Look<'_>) -> Measure {
        Measure {
            begun: look.now,
            // What was taken before this look is known; when, is not.
            answers: vec![(look.taken_at, look.taken)],
            reached: Vec::new(),
            first: look.flows.iter().copied().collect(),
            sent: look.sent,
            again: look.again,
            cpu: look.cpu,
            rtts: Vec::new(),
            again_times: 0,
        }
    }

    fn add(&mut self, look: &Look<'_>) {
        if self.answers.last().is_some_and(|(_, taken)| look.taken > *taken)
            && self.answers.len() < ANSWERS_MAX
        {
            self.answers.push((look.taken_at, look.taken));
        }
        let reached = look.flows.iter().map(|(stream, now)| {
            let then = self.first.get(stream)?.delivered?;
            Some(u64::from(now.delivered?.wrapping_sub(then)) * u64::from(now.mss))
        });
        if let Some(bytes) = reached.sum::<Option<u64>>().filter(|_| !look.flows.is_empty())
            && self.reached.len() < ANSWERS_MAX
        {
            self.reached.push((look.now, bytes));
        }
        self.rtts.extend(look.flows.iter().map(|(_, flow)| flow.rtt.as_secs_f32()));
    }

    /// The answers of the sink: the first of them only says where counting begins.
    fn counted(&self) -> &[(Time, u64)] {
        self.answers.get(1..).unwrap_or(&[])
    }

    fn is_done(&self, now: Time, least: Duration) -> bool {
        let span = match self.counted() {
            [first, .., last] => last.0.since(first.0),
            _ => Duration::ZERO,
        };
        let begun = now.since(self.begun);
        (span >= least && self.counted().len() >= ANSWERS_MIN) || begun >= MEASURE_MAX.max(2 * least)
    }

    /// Whether the two halves differ.
    fn moves(&self) -> Moves {
        let counted = self.counted();
        let middle = counted.len() / 2;
        let (Some(first), Some(last)) = (counted.get(..=middle), counted.get(middle..)) else {
            return Moves::No;
        };
        match (slope(first), slope(last)) {
            (Some(first), Some(last)) if last > MOVING * first => Moves::Up,
            (Some(first), Some(last)) if first > MOVING * last => Moves::Down,
            _ => Moves::No,
        }
    }

    /// Bytes per second.
    fn rate(&self) -> Option<f64> {
        let taken = slope(self.counted())?;
        let reached = slope(&self.reached).filter(|rate| *rate > 0.0);
        Some(reached.map_or(taken, |reached| taken.min(reached)))
    }

    fn point(&self, look: &Look<'_>, setting: &Setting, rising: bool) -> Option<Point> {
        let [first, .., last] = self.counted() else { return None };
        let seconds = last.0.since(first.0).as_secs_f64();
        // Sockets and processors were looked at over a little more time than the answers span.
        let part = seconds / look.now.since(self.begun).as_secs_f64().max(1e-9);
        let scaled = |n: u64| (n as f64 * part).round() as u64;
        let mut rtts = self.rtts.clone();
        rtts.sort_by(f32::total_cmp);
        let (rtt_median, rtt_p99) = (quantile(&rtts, 0.5), quantile(&rtts, 0.99));
        let shortest = look.flows.iter().map(|(_, flow)| flow.min_rtt.unwrap_or(flow.rtt)).min();
        Some(Point {
            setting: setting.clone(),
            rate: self.rate()?,
            bytes: last.1 - first.1,
            seconds,
            sent: scaled(look.sent.saturating_sub(self.sent)),
            resent: scaled(look.again.saturating_sub(self.again)),
            rtt_min: shortest.unwrap_or_default().as_secs_f64(),
            rtt_median,
            rtt_p99,
            cpu_seconds: look.cpu.saturating_sub(self.cpu).as_secs_f64() * part,
            limit: self.limit(look),
            rising,
        })
    }

    fn limit(&self, look: &Look<'_>) -> Limit {
        let span = look.now.since(self.begun).as_secs_f64().max(1e-9);
        let flows: Vec<Flow> = look
            .flows
            .iter()
            .map(|(stream, now)| {
                let then = self.first.get(stream).copied().unwrap_or_default();
                let share = |then: Option<Duration>, now: Option<Duration>| {
                    (now.unwrap_or_default().saturating_sub(then.unwrap_or_default())).as_secs_f64() / span
                };
                Flow {
                    busy: share(then.busy, now.busy),
                    rwnd_limited: share(then.rwnd_limited, now.rwnd_limited),
                    sndbuf_limited: share(then.sndbuf_limited, now.sndbuf_limited),
                    lost: 0.0,
                }
            })
            .collect();
        let sample = Sample {
            now: look.now,
            delivered: look.taken,
            flows: &flows,
            rate_limited: false,
            queued: false,
        };
        match streams::limit(&sample) {
            streams::Limit::Window => Limit::Window,
            streams::Limit::Path | streams::Limit::Full => Limit::Path,
            streams::Limit::Ends | streams::Limit::Rate => Limit::Hosts,
        }
    }
}

fn later(now: Time, wait: Duration) -> Time {
    Time(now.0.saturating_add(wait.as_nanos() as u64))
}

/// Bytes per second: the median of the slopes between all answers that are [`APART`] or more of the whole
/// time from each other (after Theil, 1950, and Sen, 1968). Answers that were late, as long as they are few,
/// have no say. `None`: fewer than two.
fn slope(answers: &[(Time, u64)]) -> Option<f64> {
    let [first, .., last] = answers else { return None };
    let apart = last.0.since(first.0).mul_f64(APART);
    let mut slopes = Vec::new();
    for (i, from) in answers.iter().enumerate() {
        for to in answers[i + 1..].iter().filter(|to| to.0.since(from.0) >= apart) {
            let seconds = to.0.since(from.0).as_secs_f64().max(1e-9);
            slopes.push(to.1.saturating_sub(from.1) as f64 / seconds);
        }
    }
    slopes.sort_by(f64::total_cmp);
    let middle = slopes.len() / 2;
    let lower = slopes.get((slopes.len() - 1) / 2)?;
    Some(f64::midpoint(*lower, slopes[middle]))
}

/// The value that this share of sorted values does not exceed; 0 if there are none.
fn quantile(sorted: &[f32], share: f64) -> f64 {
    let at = (sorted.len() as f64 * share) as usize;
    sorted.get(at.min(sorted.len().saturating_sub(1))).map_or(0.0, |value| f64::from(*value))
}

#[cfg(test)]
#[path = "bench_tests.rs"]
mod tests;
