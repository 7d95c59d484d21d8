//! A window of requests for each target that finds itself: as delay-based congestion control does it (TCP
//! Vegas), with a look at the peers.
//!
//! In: requests that came back, and those that do not. Out: how many requests a target may have in flight,
//! and how it fares. There is no number to set.
//!
//! - *Healthy*: after each round the window grows if the target's requests take hardly longer than at best
//!   (at first doubling, then by one), and if the window was used up. It shrinks to what would make them so
//!   if they take much longer: then they queue there, ours or others'.
//! - *Congested*: the window is one, and they still take [`SLOW`] times as long as at best, and as those of
//!   its peers, each held against its own best; and longer than those of its peers; or nothing came back for
//!   [`SILENT`] times as long as a request takes. If all are slow nobody is congested. After each request
//!   that is slow still the target rests as long as that took, the second time twice as long, and so on up to
//!   [`REST_MAX`]; then one request shows how it is. Two that are not slow, and it is healthy. The schedule
//!   lets congested targets have no more than a part of what may be in flight. It heeds no rest while the
//!   others can use no more; and when only congested ones have work it lets them have the window that they
//!   had, [`SPARE_MAX`] at most.
//! - *Hung*: nothing came back for [`HUNG`] times as long, at least [`HUNG_MIN`]. It keeps what it has and
//!   gets no more.
//!
//! Source of the idea: Brakmo, Peterson, "TCP Vegas", 1995; LADS (FAST '15) for what it is used for.

use std::time::Duration;

use super::history::{History, NOISE};
use super::{Health, Limits, PolicyKind, Rule, Sample};
use crate::ids::Time;

/// Targets take turns, each with a window of requests that finds itself.
pub(super) const POLICY: PolicyKind =
    PolicyKind { name: "adaptive", numbers: "", meaning: "", rule: |_| Box::new(Adaptive::default()) };

/// The window shrinks above this inflation, to what would make it [`NOISE`].
const SHRINK: f64 = 2.2;
/// A target is congested at this inflation, times that of its peers.
const SLOW: f64 = 3.0;
/// It recovers below this one.
const WELL: f64 = 2.2;
/// Requests in a row below that.
const WELL_TIMES: u32 = 2;
/// It is congested when nothing came back for so many times what a request took lately, and at least
/// [`SILENT_MIN`].
const SILENT: u32 = 5;
const SILENT_MIN: Duration = Duration::from_millis(20);
/// .. if nothing is known of any target, for
const SILENT_UNKNOWN: Duration = Duration::from_secs(1);
/// It is hung after so many times that time, within these bounds.
const HUNG: u32 = 64;
const HUNG_MIN: Duration = Duration::from_secs(2);
const HUNG_MAX: Duration = Duration::from_secs(60);
/// Most requests of a congested target when nobody else has work.
const SPARE_MAX: u32 = 4;
/// Bounds of a rest.
const REST_MIN: Duration = Duration::from_millis(1);
pub(super) const REST_MAX: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, Default)]
struct Adaptive {
    targets: Vec<Target>,
    history: History,
}

#[derive(Clone, Copy, Debug)]
struct Target {
    window: u32,
    /// It doubles still.
    doubling: bool,
    /// It was used up since the last round.
    used_up: bool,
    /// What it was when the target was last healthy.
    window_well: u32,
    /// The last time that something came back, or that it began to have something in flight.
    alive: Time,
    state: WindowState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WindowState {
    Healthy,
    Slow {
        /// The end of its rest, while it rests.
        rests: Option<Time>,
        /// The next rest is so long, if it is longer than a request.
        rest: Duration,
        /// Requests in a row that were not slow.
        well: u32,
    },
    Hung,
}

const NEW: Target = Target {
    window: 1,
    window_well: 1,
    doubling: true,
    used_up: false,
    alive: Time(0),
    state: WindowState::Healthy,
};
const SLOW_NOW: WindowState = WindowState::Slow { rests: None, rest: Duration::ZERO, well: 0 };

impl Adaptive {
    fn target(&mut self, t: usize) -> &mut Target {
        if self.targets.len() <= t {
            self.targets.resize(t + 1, NEW);
        }
        &mut self.targets[t]
    }

    fn on_round(&mut self, t: usize, inflation: f64, limits: &Limits) {
        let slow = self.history.is_slow(t, inflation, SLOW);
        let target = &mut self.targets[t];
        if slow {
            // With one in flight the queue is not ours.
            if target.window == 1 {
                target.state = SLOW_NOW;
            } else {
                target.window_well = target.window;
            }
            (target.window, target.doubling) = (1, false);
        } else if inflation > SHRINK {
            target.window = ((f64::from(target.window) * NOISE / inflation) as u32).max(1);
            target.doubling = false;
        } else if inflation < NOISE && target.used_up {
            target.window = if target.doubling { target.window * 2 } else { target.window + 1 };
        }
        target.window = target.window.min(limits.each);
        target.used_up = false;
    }

    fn on_trial(&mut self, t: usize, sample: Sample, now: Time) {
        let inflation = self.history.add_trial(t, sample);
        let slow = self.history.is_slow(t, inflation, WELL);
        let target = &mut self.targets[t];
        let (rest, well) = match target.state {
            WindowState::Slow { rest, well, .. } => (rest, well),
            WindowState::Healthy | WindowState::Hung => (Duration::ZERO, 0),
        };
        target.state = if slow {
            let rest = rest.max(sample.service).clamp(REST_MIN, REST_MAX);
            WindowState::Slow { rests: Some(now.after(rest)), rest: rest * 2, well: 0 }
        } else if well + 1 < WELL_TIMES {
            WindowState::Slow { rests: None, rest: Duration::ZERO, well: well + 1 }
        } else {
            *target = Target { alive: target.alive, ..NEW };
            WindowState::Healthy
        };
    }

    fn silent_after(&self, t: usize) -> Duration {
        self.history.lately(t).map_or(SILENT_UNKNOWN, |time| time.saturating_mul(SILENT).max(SILENT_MIN))
    }

    fn hung_after(&self, t: usize) -> Duration {
        let time = self.history.lately(t).map_or(HUNG_MIN, |time| time.saturating_mul(HUNG));
        time.clamp(HUNG_MIN, HUNG_MAX)
    }
}

impl Rule for Adaptive {
    fn on_start(&mut self, t: usize, in_flight: u32, now: Time) {
        let target = self.target(t);
        target.used_up |= in_flight >= target.window;
        if in_flight == 1 {
            target.alive = now;
        }
        if let WindowState::Slow { rests, .. } = &mut target.state {
            *rests = None;
        }
    }

    fn on_done(&mut self, t: usize, _: u32, sample: Option<Sample>, limits: &Limits, now: Time) {
        let target = self.target(t);
        target.alive = now;
        let (window, healthy) = (target.window, target.state == WindowState::Healthy);
        match sample {
            None if target.state == WindowState::Hung => target.state = SLOW_NOW,
            None => {}
            Some(sample) if healthy => {
                if let Some(inflation) = self.history.add(t, sample, window) {
                    self.on_round(t, inflation, limits);
                }
            }
            Some(sample) => self.on_trial(t, sample, now),
        }
    }

    fn on_time(&mut self, t: usize, in_flight: u32, now: Time) {
        let (silent, hung) = (self.silent_after(t), self.hung_after(t));
        let target = self.target(t);
        let since = now.since(target.alive);
        match &mut target.state {
            WindowState::Healthy if in_flight > 0 && since >= silent => {
                target.window_well = target.window_well.max(target.window);
                (target.window, target.doubling, target.state) = (1, false, SLOW_NOW);
            }
            WindowState::Slow { .. } if in_flight > 0 && since >= hung => target.state = WindowState::Hung,
            WindowState::Slow { rests, .. } if rests.is_some_and(|end| end <= now) => *rests = None,
            _ => {}
        }
    }

    fn deadline(&self, t: usize, in_flight: u32) -> Option<Time> {
        let target = self.targets.get(t)?;
        match target.state {
            WindowState::Healthy if in_flight > 0 => Some(target.alive.after(self.silent_after(t))),
            WindowState::Slow { .. } if in_flight > 0 => Some(target.alive.after(self.hung_after(t))),
            WindowState::Slow { rests, .. } => rests,
            _ => None,
        }
    }

    fn window(&self, t: usize, limits: &Limits) -> u32 {
        self.targets.get(t).map_or(1, |target| target.window).min(limits.each)
    }

    fn spare(&self, t: usize, limits: &Limits) -> u32 {
        let well = self.targets.get(t).map_or(1, |target| target.window_well);
        well.clamp(2, SPARE_MAX).min(limits.each)
    }

    fn health(&self, t: usize) -> Health {
        match self.targets.get(t).map_or(WindowState::Healthy, |target| target.state) {
            WindowState::Healthy => Health::Healthy,
            WindowState::Slow { rests: Some(_), .. } => Health::Resting,
            WindowState::Slow { rests: None, .. } => Health::Congested,
            WindowState::Hung => Health::Hung,
        }
    }

    fn spreads(&self) -> bool {
        true
    }

    fn history(&self) -> &History {
        &self.history
    }
}
