//! One run: clock and counters right before and after the copy, and the judgement of its end.
//!
//! In: a peer, a job, the processes that play networks and storage. Out: an [`End`]. That a run that takes
//! too long is ended with all that it started is the peers' part.

use std::time::Instant;

use anyhow::Context as _;
use serde_json::Value;

use super::machine::{Ticks, seconds_of};
use super::result::Outcome;
use crate::peers::{Job, Peer};
use crate::process::{Interrupted, OverLimit};

/// Longest words of a failure that are kept.
const WORDS_MAX: usize = 2000;

/// What came of a run.
#[derive(Debug)]
pub struct End {
    pub outcome: Outcome,
    pub error: Option<String>,
    pub wall_seconds: f64,
    pub seconds: f64,
    pub bytes: u64,
    /// Of the machine without emulators, during `seconds`.
    pub cpu_seconds: f64,
    pub emulator_seconds: f64,
    /// Part of the machine that its host took meanwhile.
    pub stolen: f64,
    /// Nothing lies at the far end.
    pub memory_only: bool,
    /// The program has compared every byte itself.
    pub checked: bool,
    /// What it counts in place of files, and the least time that its devices allow.
    pub operations: Option<u64>,
    pub bound: Option<f64>,
    pub said: Value,
}

/// Runs it. A failure of the peer is no error, but an outcome. `begin` is called when its far end is up,
/// right before the clock.
///
/// # Errors
/// The counters cannot be read; the lab was asked to end; what `begin` says.
pub fn run(
    peer: &dyn Peer,
    job: &Job<'_>,
    emulators: &[i32],
    begin: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<End> {
    let server = match peer.start(job.bench) {
        Ok(server) => server,
        Err(error) => return failed(error.context("start its far end"), 0.0),
    };
    begin()?;
    let (ticks, emulated, began) = (Ticks::now()?, seconds_of(emulators), Instant::now());
    let copied = peer.copy(job);
    let wall_seconds = began.elapsed().as_secs_f64();
    let after = Ticks::now()?;
    let (busy, stolen) = (after.seconds_since(&ticks), after.stolen_since(&ticks));
    let emulator_seconds = seconds_of(emulators) - emulated;
    drop(server);
    let said = match copied {
        Ok(said) => said,
        Err(error) => return failed(error, wall_seconds).map(|end| End { stolen, ..end }),
    };
    let seconds = said.seconds.unwrap_or(wall_seconds);
    // One that counts only a part of its time, after a start-up, is charged for that part only.
    let part = if wall_seconds > 0.0 { (seconds / wall_seconds).clamp(0.0, 1.0) } else { 1.0 };
    Ok(End {
        outcome: Outcome::Ok,
        error: None,
        wall_seconds,
        seconds,
        bytes: said.bytes.unwrap_or_else(|| job.workload.bytes()),
        cpu_seconds: said.cpu_seconds.unwrap_or((busy - emulator_seconds).max(0.0) * part),
        emulator_seconds,
        stolen,
        memory_only: said.memory_only,
        checked: said.checked,
        operations: said.operations,
        bound: said.bound,
        said: said.more,
    })
}

fn failed(error: anyhow::Error, wall_seconds: f64) -> anyhow::Result<End> {
    if error.downcast_ref::<Interrupted>().is_some() {
        return Err(error).context("a run was stopped");
    }
    let over = error.downcast_ref::<OverLimit>().is_some();
    Ok(End {
        outcome: if over { Outcome::Over } else { Outcome::Failed },
        error: Some(format!("{error:#}").chars().take(WORDS_MAX).collect()),
        wall_seconds,
        seconds: wall_seconds,
        bytes: 0,
        cpu_seconds: 0.0,
        emulator_seconds: 0.0,
        stolen: 0.0,
        memory_only: false,
        checked: false,
        operations: None,
        bound: None,
        said: Value::Null,
    })
}
