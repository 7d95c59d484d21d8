//! What reaches the modelled targets of an end while a run goes on, and what that comes to where one of them
//! is frozen.
//!
//! In: the name of a model, its script. Out: a [`Flow`]. One thread; it asks the model for its counters every
//! [`STEP`].

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::targets::{self, Player, Script};

/// The model is asked this often.
const STEP: Duration = Duration::from_millis(250);
/// A copy has started after so long, s; and what was on its way when a target froze has come.
const START: f64 = 2.0;
const SETTLE: f64 = 0.5;
/// The rest is at its end when it has this part of all that it gets.
const NEARLY: f64 = 0.97;
/// Shorter spans, s, say nothing.
const SPAN_MIN: f64 = 1.0;

/// What was seen of one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Flow {
    /// Seconds since the start, bytes asked of all targets until then, and of those that never freeze.
    pub samples: Vec<(f64, u64, u64)>,
    /// The most that a target was asked for, over the mean of all.
    pub most: f64,
}

/// Rates of the targets that never freeze, bytes a second, before another one does, meanwhile, and after.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rest {
    pub before: f64,
    pub during: f64,
    /// None: they had nothing left to do.
    pub after: Option<f64>,
}

/// Which targets freeze, and when for the first time: from, to, seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Frost {
    pub who: Vec<usize>,
    pub from: f64,
    pub to: f64,
}

impl Frost {
    /// The first one of a script; none if nobody freezes.
    pub fn of(script: &Script, count: u32) -> Option<Frost> {
        let mut player = Player::new(script.clone(), count).ok()?;
        let mut now = 0.0;
        for _ in 0..script.steps.len() {
            let (lasts, all) = player.advance()?;
            let who: Vec<usize> = (0..all.len()).filter(|t| all[*t].frozen).collect();
            if !who.is_empty() {
                return Some(Frost { who, from: now, to: now + lasts.as_secs_f64() });
            }
            now += lasts.as_secs_f64();
        }
        None
    }
}

impl Flow {
    /// None: too little was seen before or during the frost.
    pub fn rest(&self, frost: &Frost) -> Option<Rest> {
        let all = self.samples.last()?.2 as f64;
        let end = self.samples.iter().find(|sample| sample.2 as f64 >= NEARLY * all)?.0;
        let at = |when: f64| {
            let next = self.samples.iter().position(|sample| sample.0 >= when)?;
            let (b, a) = (self.samples[next], self.samples[next.saturating_sub(1)]);
            let part = if b.0 > a.0 { ((when - a.0) / (b.0 - a.0)).clamp(0.0, 1.0) } else { 1.0 };
            Some(a.2 as f64 + (b.2 as f64 - a.2 as f64) * part)
        };
        let rate = |from: f64, to: f64| {
            let to = to.min(end);
            (to - from >= SPAN_MIN).then(|| Some((at(to)? - at(from)?) / (to - from))).flatten()
        };
        Some(Rest {
            before: rate(START, frost.from)?,
            during: rate(frost.from + SETTLE, frost.to)?,
            after: rate(frost.to + SETTLE, f64::INFINITY),
        })
    }
}

/// Watches one run.
pub struct FlowWatch {
    stop: Sender<()>,
    thread: JoinHandle<Flow>,
}

impl FlowWatch {
    /// `write`: what is written counts, else what is read. `apart`: targets that are no part of the rest.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(model: &str, write: bool, apart: Vec<usize>) -> anyhow::Result<FlowWatch> {
        let (stop, stopped) = channel();
        let name = model.to_owned();
        let thread = std::thread::Builder::new().name("lab-flow".into());
        let thread = thread.spawn(move || watch(&name, write, &apart, &stopped)).context("start a thread")?;
        Ok(FlowWatch { stop, thread })
    }

    /// The run is over.
    pub fn finish(self) -> Flow {
        drop(self.stop);
        self.thread.join().unwrap_or_default()
    }
}

fn watch(model: &str, write: bool, apart: &[usize], stopped: &Receiver<()>) -> Flow {
    let begun = Instant::now();
    let first = counts(model, write);
    let mut flow = Flow::default();
    let mut last = first.clone();
    loop {
        let over = stopped.recv_timeout(STEP) != Err(RecvTimeoutError::Timeout);
        let now = counts(model, write);
        if now.len() == first.len() {
            let moved = |at: usize| now[at].saturating_sub(first[at]);
            let all = (0..now.len()).map(moved).sum();
            let rest = (0..now.len()).filter(|at| !apart.contains(at)).map(moved).sum();
            flow.samples.push((begun.elapsed().as_secs_f64(), all, rest));
            last = now;
        }
        if over {
            break;
        }
    }
    let moved: Vec<f64> = first.iter().zip(&last).map(|(a, b)| b.saturating_sub(*a) as f64).collect();
    let mean = moved.iter().sum::<f64>() / moved.len().max(1) as f64;
    flow.most = moved.iter().copied().fold(0.0, f64::max) / mean.max(1.0);
    flow
}

/// Bytes that each target was asked for; empty: it does not answer.
fn counts(model: &str, write: bool) -> Vec<u64> {
    let key = if write { "written_bytes" } else { "read_bytes" };
    let stats = targets::model_stats(model).unwrap_or_default();
    stats.as_array().into_iter().flatten().map(|target| target[key].as_u64().unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run of which the rest moves so many bytes in each second, and one frozen target nothing.
    fn flow(rates: &[u64]) -> Flow {
        let mut samples = vec![(0.0, 0, 0)];
        for rate in rates.iter().flat_map(|rate| [*rate; 4]) {
            let (then, _, bytes) = samples[samples.len() - 1];
            samples.push((then + 0.25, bytes + rate / 4, bytes + rate / 4));
        }
        Flow { samples, most: 1.0 }
    }

    /// Goal: the rates before, during and after a frost are those of the seconds concerned, whatever the
    /// start and the end are like; and nothing is told of what was not seen.
    /// Method: runs whose rates are known.
    #[test]
    fn rates_around_a_frost() {
        let script: Script = serde_json::from_str(
            r#"{"steps":[{"for_ms":5000},{"for_ms":4000,"who":{"targets":[3]},"freeze":true},{"for_ms":1}]}"#,
        )
        .unwrap();
        let frost = Frost::of(&script, 4).unwrap();
        assert_eq!(frost, Frost { who: vec![3], from: 5.0, to: 9.0 });
        let rest = flow(&[8, 400, 800, 800, 800, 600, 600, 600, 600, 800, 800, 800, 800, 0, 0])
            .rest(&frost)
            .unwrap();
        let near = |a: f64, b: f64| (a - b).abs() < 1.0;
        assert!(near(rest.before, 800.0) && near(rest.during, 600.0), "{rest:?}");
        assert!(near(rest.after.unwrap(), 800.0), "{rest:?}");
        // The rest is through while the other one is frozen still.
        let rest = flow(&[8, 400, 800, 800, 800, 600, 600, 0, 0, 0]).rest(&frost).unwrap();
        assert!(near(rest.during, 600.0) && rest.after.is_none(), "{rest:?}");
        assert_eq!(flow(&[800, 800, 800]).rest(&frost), None);
        assert_eq!(Flow::default().rest(&frost), None);
        let slow = r#"{"repeat":true,"steps":[{"for_ms":5,"who":{"next":1},"slow":10}]}"#;
        assert_eq!(Frost::of(&serde_json::from_str(slow).unwrap(), 4), None);
    }
}
