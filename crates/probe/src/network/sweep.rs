//! Which setting is measured next, and which ones need not be.
//!
//! In: what can be set, points as they are measured, the time that is left. Out: settings, cheap ones first.
//!
//! In this order: more and more streams with the system's own congestion control, while that helps; the other
//! controls with the number that was enough for the first, then fewer while they are as fast and more while
//! that helps; the setting to recommend and the fastest once more, so that neither is an accident; fixed
//! windows with the recommended one. `full` leaves nothing out but what there is no time for.
//!
//! Invariant: every combination is measured or left out with a reason, and none of both.

use std::collections::{BTreeSet, VecDeque};

use super::{LeftOut, Only, Point, Setting, judge};

/// The smallest window that is tried, bytes.
const WINDOW_MIN: u64 = 64 << 10;
/// More streams must bring so much more, or two doublings one after the other end it.
const GAIN: f64 = 1.05;
/// A control that reaches less than this share with the same streams cannot win with fewer, nor cheaply with
/// more.
const HOPELESS: f64 = 0.5;
/// A window that cannot carry this share of the best rate cannot win.
const TOO_SMALL: f64 = 0.9;
/// The setting to recommend is measured so often.
const TIMES: usize = 2;

/// What can be set.
#[derive(Clone, Debug, Default)]
pub(super) struct Can {
    /// Most streams.
    pub(super) streams: u16,
    /// Congestion controls, the system's own first; empty: nothing can be set.
    pub(super) controls: Vec<String>,
    /// The largest window that both ends allow, bytes; 0: none.
    pub(super) window: u64,
}

#[derive(Clone, Debug)]
enum SweepPhase {
    /// Index into the counts, doublings that brought nothing.
    Streams(usize, usize),
    /// Index into the controls; counts that are still to try, and whether up.
    Control {
        control: usize,
        walk: Walk,
    },
    Repeat,
    Windows(VecDeque<u64>),
    Full(VecDeque<Setting>),
    Over,
}

/// How the numbers of streams of one control are gone through.
#[derive(Clone, Debug, PartialEq)]
enum Walk {
    Begin,
    /// The index that was measured last.
    Down(usize),
    Up(usize, usize),
}

/// See the module.
pub(super) struct Sweep {
    counts: Vec<u16>,
    controls: Vec<String>,
    windows: Vec<u64>,
    /// The kernel's own growth is to be tried.
    own_window: bool,
    phase: SweepPhase,
    points: Vec<Point>,
    left_out: Vec<LeftOut>,
    known: BTreeSet<Setting>,
}

impl Sweep {
    pub(super) fn new(can: &Can, only: &Only, full: bool) -> Sweep {
        let mut counts: Vec<u16> = match only.streams.is_empty() {
            true => (0..7).map(|i| 1 << i).filter(|n| *n <= can.streams).collect(),
            false => only.streams.iter().map(|n| (*n).clamp(1, can.streams.max(1))).collect(),
        };
        counts.sort_unstable();
        counts.dedup();
        let mut controls = can.controls.clone();
        if !only.controls.is_empty() {
            controls.retain(|name| only.controls.contains(name));
        }
        if controls.is_empty() {
            controls.push(String::new());
        }
        let mut windows: Vec<u64> = match only.windows.is_empty() {
            true => [1, 4, 16].iter().map(|part| can.window / part).filter(|n| *n >= WINDOW_MIN).collect(),
            false => only.windows.iter().copied().filter(|n| *n > 0).collect(),
        };
        windows.sort_unstable();
        windows.dedup();
        let own_window = only.windows.is_empty() || only.windows.contains(&0);
        let mut sweep = Sweep {
            counts,
            controls,
            windows,
            own_window,
            phase: SweepPhase::Streams(0, 0),
            points: Vec::new(),
            left_out: Vec::new(),
            known: BTreeSet::new(),
        };
        if full || !own_window {
            sweep.phase = SweepPhase::Full(sweep.all().into());
        }
        sweep
    }

    /// How many settings there are.
    pub(super) fn settings(&self) -> usize {
        self.all().len()
    }

    /// Every combination, fixed windows last: after one, the kernel's own growth does not come back.
    fn all(&self) -> Vec<Setting> {
        let own = self.own_window.then_some(None);
        let windows = own.into_iter().chain(self.windows.iter().map(|window| Some(*window)));
        let mut all = Vec::new();
        for window in windows {
            for congestion in &self.controls {
                for streams in &self.counts {
                    all.push(Setting { streams: *streams, window, congestion: congestion.clone() });
                }
            }
        }
        all
    }

    fn setting(&self, control: usize, count: usize) -> Setting {
        let congestion = self.controls[control].clone();
        Setting { streams: self.counts[count], window: None, congestion }
    }

    /// The rate of a setting, if it was measured.
    fn rate(&self, setting: &Setting) -> Option<f64> {
        judge::settings(&self.points).into_iter().find(|one| one.setting == *setting).map(|one| one.rate)
    }

    fn top(&self) -> f64 {
        judge::best(&self.points).map_or(0.0, |best| best.rate)
    }

    /// The highest rate of all other controls.
    fn top_without(&self, control: usize) -> f64 {
        let of = judge::settings(&self.points).into_iter();
        let others = of.filter(|one| one.setting.congestion != self.controls[control]);
        others.map(|one| one.rate).fold(0.0, f64::max)
    }

    /// The next setting; `None`: nothing more. `rtt`: the shortest round trip that was seen, seconds.
    pub(super) fn next(&mut self, rtt: f64) -> Option<Setting> {
        loop {
            match self.phase.clone() {
                SweepPhase::Streams(index, idle) => {
                    if index < self.counts.len() && idle < 2 {
                        return Some(self.setting(0, index));
                    }
                    for index in index..self.counts.len() {
                        let why = "more streams brought nothing more twice";
                        self.leave_out(self.setting(0, index), why);
                    }
                    self.phase = SweepPhase::Control { control: 1, walk: Walk::Begin };
                }
                SweepPhase::Control { control, walk } => {
                    if control >= self.controls.len() {
                        self.phase = SweepPhase::Repeat;
                        continue;
                    }
                    match self.step(control, &walk) {
                        Some((index, walk)) => {
                            self.phase = SweepPhase::Control { control, walk };
                            return Some(self.setting(control, index));
                        }
                        None => {
                            for index in 0..self.counts.len() {
                                let why = "cannot win, by what its neighbours reached";
                                self.leave_out(self.setting(control, index), why);
                            }
                            self.phase = SweepPhase::Control { control: control + 1, walk: Walk::Begin };
                        }
                    }
                }
                SweepPhase::Repeat => match self.again() {
                    Some(setting) => return Some(setting),
                    None => self.phase = SweepPhase::Windows(self.windows.iter().rev().copied().collect()),
                },
                SweepPhase::Windows(mut windows) => {
                    let Some(window) = windows.pop_front() else {
                        self.end("only tried with the setting that was best without");
                        continue;
                    };
                    self.phase = SweepPhase::Windows(windows);
                    let Some(base) = judge::recommended(&self.points, &self.controls[0]) else { continue };
                    let setting = Setting { window: Some(window), ..base.setting };
                    let carries = window as f64 * f64::from(setting.streams) / rtt.max(1e-6);
                    if carries < TOO_SMALL * self.top() {
                        self.leave_out(setting, "holds too little for the path's length");
                    } else {
                        return Some(setting);
                    }
                }
                SweepPhase::Full(mut rest) => {
                    let next = rest.pop_front();
                    self.phase = if next.is_some() { SweepPhase::Full(rest) } else { SweepPhase::Over };
                    if next.is_some() {
                        return next;
                    }
                }
                SweepPhase::Over => return None,
            }
        }
    }

    /// Where one control's numbers of streams go on.
    fn step(&self, control: usize, walk: &Walk) -> Option<(usize, Walk)> {
        let rate = |index: usize| self.rate(&self.setting(control, index));
        let top = self.top();
        match *walk {
            Walk::Begin => {
                let base = judge::recommended(&self.points, &self.controls[0])?;
                let index = self.counts.iter().position(|count| *count == base.setting.streams)?;
                Some((index, Walk::Down(index)))
            }
            Walk::Down(index) => {
                let here = rate(index)?;
                let lower = index.checked_sub(1);
                match lower {
                    Some(lower) if here >= judge::MARGIN * top => Some((lower, Walk::Down(lower))),
                    _ => {
                        // From the highest that was measured.
                        let index = (0..self.counts.len()).rev().find(|index| rate(*index).is_some())?;
                        let here = rate(index)?;
                        let next = index + 1;
                        // As fast as the others: so is the line. Far behind them: nothing to gain above.
                        let others = self.top_without(control);
                        let slower = (HOPELESS * others..judge::MARGIN * others).contains(&here);
                        let pays = slower || here > GAIN * others;
                        (pays && next < self.counts.len()).then_some((next, Walk::Up(next, 0)))
                    }
                }
            }
            Walk::Up(index, idle) => {
                let before = (0..index).filter_map(rate).fold(0.0, f64::max);
                let idle = if rate(index)? < GAIN * before { idle + 1 } else { 0 };
                let next = index + 1;
                (idle < 2 && next < self.counts.len()).then_some((next, Walk::Up(next, idle)))
            }
        }
    }

    /// What is to be measured again.
    fn again(&self) -> Option<Setting> {
        let times = |setting: &Setting| self.points.iter().filter(|point| point.setting == *setting).count();
        let chosen = judge::recommended(&self.points, &self.controls[0])?;
        let best = judge::best(&self.points)?;
        [chosen, best].into_iter().map(|one| one.setting).find(|setting| times(setting) < TIMES)
    }

    /// Takes what was measured.
    pub(super) fn record(&mut self, point: Point) {
        if let SweepPhase::Streams(index, idle) = &mut self.phase {
            let before = judge::best(&self.points).map_or(0.0, |best| best.rate);
            *idle = if point.rate < GAIN * before { *idle + 1 } else { 0 };
            *index += 1;
        }
        self.known.insert(point.setting.clone());
        self.points.push(point);
    }

    /// What `next` said could not be measured; something else is.
    pub(super) fn failed(&mut self, setting: Setting, why: &str) {
        if let SweepPhase::Streams(index, _) = &mut self.phase {
            *index += 1;
        } else if let SweepPhase::Control { control, .. } = self.phase {
            self.phase = SweepPhase::Control { control: control + 1, walk: Walk::Begin };
        } else if matches!(self.phase, SweepPhase::Repeat) {
            self.phase = SweepPhase::Windows(self.windows.iter().rev().copied().collect());
        }
        self.leave_out(setting, why);
    }

    /// Nothing more is measured: what is missing was left out for this reason.
    pub(super) fn end(&mut self, why: &str) {
        for setting in self.all() {
            self.leave_out(setting, why);
        }
        self.phase = SweepPhase::Over;
    }

    fn leave_out(&mut self, setting: Setting, why: &str) {
        if self.known.insert(setting.clone()) {
            self.left_out.push(LeftOut { setting, why: why.into() });
        }
    }

    pub(super) fn points(&self) -> &[Point] {
        &self.points
    }

    /// Points, and what was left out.
    pub(super) fn into_parts(mut self) -> (Vec<Point>, Vec<LeftOut>) {
        self.end("the probe was over before it");
        (self.points, self.left_out)
    }
}

#[cfg(test)]
#[path = "sweep_tests.rs"]
mod tests;
