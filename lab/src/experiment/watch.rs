//! What happens on a network while a run goes on: what it carries over time, and the troubles that an
//! experiment makes.
//!
//! In: a network of `lab wan`, its hosts, [`Trouble`]s. Out: a [`Trace`]. One thread; it asks the emulator
//! for its counters every [`STEP`], and does what is due. Invariant: a line that it took down is up again
//! when it ends, whatever happened.

use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};

use super::words::parse_time;
use crate::host::{Bench, Host};
use crate::wan;

/// The network is asked this often.
const STEP: Duration = Duration::from_millis(250);
/// Rates are those of so long, s.
const SPAN: f64 = 1.0;
/// A rate is reached at this share of the best, and data flows again from this one on.
const REACHED: f64 = 0.9;
const FLOWS: f64 = 0.5;
/// Bytes of a full frame on the wire, preamble and gap included, and of TCP's payload in it.
pub const FRAME: f64 = 1538.0;
pub const PAYLOAD: f64 = 1448.0;
/// How long `ss` may take.
const SS_PATIENCE: Duration = Duration::from_secs(5);

/// Something that befalls a run.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trouble {
    pub what: What,
    /// After the run's start, once; or again and again.
    pub at: Option<String>,
    pub every: Option<String>,
    /// Of `down`: how long.
    pub lasts: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum What {
    /// One established TCP connection of the near host to the far one is reset, not ssh's (`ss -K`): another
    /// one each time.
    Kill,
    /// The network carries nothing.
    Down,
}

impl Trouble {
    /// # Errors
    /// It is not said when, or for how long.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!(self.at.is_some() != self.every.is_some(), "one of at and every says when");
        ensure!((self.what == What::Down) == self.lasts.is_some(), "lasts is for down, which needs it");
        for time in [&self.at, &self.every, &self.lasts].into_iter().flatten() {
            ensure!(!parse_time(time)?.is_zero(), "{time:?} is no time");
        }
        Ok(())
    }

    fn time(text: Option<&String>) -> Option<Duration> {
        text.and_then(|text| parse_time(text).ok())
    }
}

/// What was seen of one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// Seconds since the start, and bytes of frames that were carried from near to far until then.
    pub carried: Vec<(f64, f64)>,
    /// What was done, and when.
    pub troubles: Vec<(f64, String)>,
}

/// How many troubles there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Befell {
    /// Connections that were reset, or should have been.
    pub kills: usize,
    /// Times that lines were taken down, or should have been.
    pub downs: usize,
    /// Those of either that failed, and lines that did not come up again.
    pub failed: usize,
}

impl Befell {
    /// Of two runs.
    pub fn and(self, other: Befell) -> Befell {
        Befell {
            kills: self.kills + other.kills,
            downs: self.downs + other.downs,
            failed: self.failed + other.failed,
        }
    }
}

/// What a trace comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Steady {
    /// Bytes of frames a second, from when the rate was reached until it ended for good.
    pub rate: f64,
    /// Seconds from the start until nine tenths of the best rate.
    pub reach: f64,
    /// Seconds from the end of a darkness until data flowed again, the worst.
    pub back: Option<f64>,
}

impl Trace {
    /// `None`: nothing that says anything was carried.
    pub fn steady(&self) -> Option<Steady> {
        let all = &self.carried;
        let rates: Vec<(f64, f64, f64)> = (1..all.len())
            .map(|i| {
                let (now, bytes) = all[i];
                let before = all[..i].iter().rev().find(|(then, _)| now - then >= SPAN).unwrap_or(&all[0]);
                (now, bytes, (bytes - before.1) / (now - before.0).max(SPAN / 2.0))
            })
            .collect();
        let best = rates.iter().map(|(_, _, rate)| *rate).fold(0.0, f64::max);
        let first = rates.iter().find(|(_, _, rate)| best > 0.0 && *rate >= REACHED * best)?;
        let last = rates.iter().rev().find(|(_, _, rate)| *rate >= REACHED * best)?;
        let time = last.0 - first.0;
        let rate = if time >= SPAN { (last.1 - first.1) / time } else { best };
        let ups = self.troubles.iter().filter(|(_, what)| what == "up").map(|(when, _)| *when);
        let back = ups.map(|up| {
            let flows = rates.iter().find(|(now, _, rate)| *now > up && *rate >= FLOWS * best);
            flows.map_or(f64::INFINITY, |(now, ..)| now - up)
        });
        Some(Steady { rate, reach: first.0, back: back.reduce(f64::max) })
    }

    /// Bytes of frames that were carried in each second of the run; what is left of the last one is not
    /// among them.
    pub fn each_second(&self) -> Vec<f64> {
        let at = |time: f64| {
            let next = self.carried.partition_point(|(then, _)| *then < time);
            let (Some(before), Some(after)) =
                (self.carried.get(next.saturating_sub(1)), self.carried.get(next))
            else {
                return self.carried.get(next.saturating_sub(1)).map_or(0.0, |(_, bytes)| *bytes);
            };
            let part = (time - before.0) / (after.0 - before.0).max(f64::MIN_POSITIVE);
            before.1 + (after.1 - before.1) * part.clamp(0.0, 1.0)
        };
        let whole = self.carried.last().map_or(0.0, |(end, _)| end.floor()) as u32;
        (0..whole).map(|second| at(f64::from(second) + 1.0) - at(f64::from(second))).collect()
    }

    /// What was done, counted.
    pub fn befell(&self) -> Befell {
        let count = |test: &dyn Fn(&str) -> bool| self.troubles.iter().filter(|(_, what)| test(what)).count();
        Befell {
            kills: count(&|what| what.starts_with("kill")),
            downs: count(&|what| what.starts_with("down")),
            failed: count(&|what| what.contains("failed")),
        }
    }
}

/// Watches one run.
pub struct Watch {
    stop: Sender<()>,
    thread: JoinHandle<Trace>,
}

impl Watch {
    /// # Errors
    /// No thread can be started.
    pub fn start(network: &str, bench: &Bench, troubles: &[Trouble]) -> anyhow::Result<Watch> {
        let (stop, stopped) = channel();
        let eye = Eye {
            network: network.to_owned(),
            near: bench.near().clone(),
            ssh_port: bench.ssh_port,
            begun: Instant::now(),
            trace: Trace::default(),
        };
        let troubles = troubles.to_vec();
        let thread = std::thread::Builder::new().name("lab-watch".into());
        let thread = thread.spawn(move || eye.run(&stopped, &troubles)).context("start a thread")?;
        Ok(Watch { stop, thread })
    }

    /// The run is over.
    pub fn finish(self) -> Trace {
        drop(self.stop);
        self.thread.join().unwrap_or_default()
    }
}

struct Eye {
    network: String,
    near: Host,
    ssh_port: u16,
    begun: Instant,
    trace: Trace,
}

impl Eye {
    fn run(mut self, stopped: &Receiver<()>, troubles: &[Trouble]) -> Trace {
        let mut due: Vec<Option<Duration>> =
            troubles.iter().map(|one| Trouble::time(one.at.as_ref().or(one.every.as_ref()))).collect();
        let mut up_at = None;
        loop {
            let now = self.begun.elapsed();
            self.look();
            if up_at.is_some_and(|up| now >= up) {
                up_at = None;
                self.line(false);
            }
            for (trouble, due) in troubles.iter().zip(&mut due) {
                if due.is_none_or(|due| now < due) {
                    continue;
                }
                *due = Trouble::time(trouble.every.as_ref()).and_then(|every| Some((*due)? + every));
                match trouble.what {
                    What::Kill => self.kill(),
                    What::Down => {
                        up_at = Trouble::time(trouble.lasts.as_ref()).map(|lasts| now + lasts);
                        self.line(true);
                    }
                }
            }
            if stopped.recv_timeout(STEP) != Err(RecvTimeoutError::Timeout) {
                break;
            }
        }
        if up_at.is_some() {
            self.line(false);
        }
        self.look();
        self.trace
    }

    fn now(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    fn look(&mut self) {
        let Ok(stats) = wan::stats(&self.network, false) else { return };
        let carried = stats["nics"].as_array().into_iter().flatten().map(|nic| {
            let count = |key: &str| nic["a_to_b"]["counts"][key].as_f64().unwrap_or(0.0);
            let lost = count("drops_buffer") + count("drops_loss") + count("drops_down");
            (count("bytes") - lost * FRAME).max(0.0)
        });
        let carried = carried.sum();
        self.trace.carried.push((self.now(), carried));
    }

    fn line(&mut self, down: bool) {
        let did = wan::set_down(&self.network, down);
        let word = if down { "down" } else { "up" };
        let what = did.map_or_else(|error| format!("{word} failed: {error:#}"), |()| word.to_owned());
        self.trace.troubles.push((self.now(), what));
    }

    /// Resets the connection after the one of the last time.
    fn kill(&mut self) {
        let what = self.try_kill().unwrap_or_else(|error| format!("kill failed: {error:#}"));
        self.trace.troubles.push((self.now(), what));
    }

    fn try_kill(&self) -> anyhow::Result<String> {
        // Nothing else runs on this host; by whichever address the far one was dialled.
        let listed = self.ss(&["-Htn", "state", "established"])?;
        let ssh = format!(":{}", self.ssh_port);
        let ports: Vec<&str> = listed
            .lines()
            .filter(|line| line.split_whitespace().nth(3).is_some_and(|peer| !peer.ends_with(&ssh)))
            .filter_map(|line| line.split_whitespace().nth(2)?.rsplit_once(':').map(|(_, port)| port))
            .collect();
        ensure!(!ports.is_empty(), "there is no connection");
        let port = ports[self.trace.troubles.len() % ports.len()];
        self.ss(&["-KHtn", "sport", "=", port])?;
        Ok("kill".to_owned())
    }

    fn ss(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let mut command: Command = self.near.command("ss");
        command.args(arguments);
        Ok(crate::process::run(&mut command, SS_PATIENCE).context("run ss (package iproute2)")?.stdout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run that carries `rates` (a second each) in steps of a quarter.
    fn trace(rates: &[f64]) -> Trace {
        let mut carried = vec![(0.0, 0.0)];
        for rate in rates.iter().flat_map(|rate| [*rate; 4]) {
            let (then, bytes) = carried[carried.len() - 1];
            carried.push((then + 0.25, bytes + rate / 4.0));
        }
        Trace { carried, troubles: Vec::new() }
    }

    /// Goal: what came before the rate was reached and after it ended is not steady; darkness is counted
    /// until data flows.
    /// Method: runs whose rates are known.
    #[test]
    fn steady_is_what_lasts() {
        let steady = trace(&[10.0, 50.0, 100.0, 100.0, 100.0, 100.0, 0.0, 0.0]).steady().unwrap();
        assert!((99.0..=101.0).contains(&steady.rate), "{steady:?}");
        assert!((2.5..=3.0).contains(&steady.reach) && steady.back.is_none(), "{steady:?}");
        let dark = Trace {
            troubles: vec![(2.0, "down".into()), (5.0, "up".into())],
            ..trace(&[100.0, 100.0, 0.0, 0.0, 0.0, 0.0, 100.0, 100.0])
        };
        let back = dark.steady().unwrap().back.unwrap();
        assert!((1.25..=2.0).contains(&back), "{back}");
        let never = Trace { carried: dark.carried[..20].to_vec(), ..dark };
        assert_eq!(never.steady().unwrap().back, Some(f64::INFINITY));
        assert_eq!(Trace::default().steady(), None);
        assert_eq!(trace(&[0.0, 0.0]).steady(), None);
    }

    /// Goal: each second has what was carried in it, the last part of one is left out.
    /// Method: rates that are known.
    #[test]
    fn seconds_have_their_bytes() {
        let all = trace(&[10.0, 50.0, 0.0, 100.0]).each_second();
        assert_eq!(all.iter().map(|rate| rate.round()).collect::<Vec<_>>(), [10.0, 50.0, 0.0, 100.0]);
        let cut = Trace { carried: vec![(0.0, 0.0), (1.5, 30.0)], ..Trace::default() };
        assert_eq!(cut.each_second(), [20.0]);
        assert!(Trace::default().each_second().is_empty());
    }

    /// Goal: troubles that are not said in full are refused.
    #[test]
    fn troubles_are_said_in_full() {
        let check =
            |text: &str| toml::from_str::<Trouble>(text).map_err(Into::into).and_then(|one| one.check());
        assert!(check("what = \"kill\"\nevery = \"1s\"").is_ok());
        assert!(check("what = \"down\"\nat = \"5s\"\nlasts = \"1m\"").is_ok());
        for wrong in [
            "what = \"kill\"",
            "what = \"kill\"\nat = \"1s\"\nevery = \"1s\"",
            "what = \"kill\"\nat = \"1s\"\nlasts = \"1s\"",
            "what = \"down\"\nat = \"5s\"",
            "what = \"down\"\nat = \"5s\"\nlasts = \"0s\"",
            "what = \"fire\"\nat = \"5s\"",
        ] {
            assert!(check(wrong).is_err(), "{wrong}");
        }
    }
}
