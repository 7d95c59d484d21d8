//! The far end's part of a path: its storage is probed there, before the session.
//!
//! In: a [`StorageQuestion`]. Out: [`Told`], one JSON text each, the last one the answer.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, unbounded};
use serde::{Deserialize, Serialize};

use super::super::{self as probe, Probe, ProbeError, ProbeEvent, passport};
use super::place::{self, Limits};
use haul::api::Handle;
use haul::options::StorageQuestion;

/// Something is told at least this often.
const TELL_EVERY: Duration = Duration::from_millis(500);

/// What is told of a storage that is far away.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Told {
    Progress {
        seconds: f64,
        seconds_left: f64,
        bytes: u64,
    },
    /// For people.
    Note(String),
    /// There is no storage: what is copied is made up, or thrown away.
    Nothing,
    Found(Box<Probe>),
    Failed(String),
}

/// Answers a question; see [`haul_launch::Answers`]. `state`: where the passports of this host lie.
pub(crate) fn answer(
    question: &StorageQuestion,
    (home, state): (Option<&Path>, Option<&Path>),
    tell: &mut dyn FnMut(String) -> bool,
) {
    let mut tell = |told: &Told| tell(serde_json::to_string(told).expect("plain fields serialise"));
    let limits = Limits {
        time: Duration::from_millis(question.time_ms),
        bytes: question.bytes,
        network_ok: question.network_ok,
    };
    let request = place::request(&question.place, home, question.direction, limits);
    let told = match request {
        Ok(None) => Told::Nothing,
        Ok(Some(request)) => match probe(&request, &mut tell) {
            Ok(found) => {
                if let Some(state) = state.filter(|_| question.keep)
                    && let Err(error) = passport::add(state, &found)
                {
                    tell(&Told::Note(error.to_string()));
                }
                Told::Found(Box::new(found))
            }
            Err(error) => Told::Failed(in_words(&error)),
        },
        Err(error) => Told::Failed(in_words(&error)),
    };
    tell(&told);
}

/// An error for somebody who has other options than `haul probe storage`.
pub(super) fn in_words(error: &ProbeError) -> String {
    match error {
        ProbeError::AskFirst(_) => format!("{error}; with `network_ok` it does"),
        error => error.to_string(),
    }
}

/// Runs a probe on a thread of its own, and tells of it from this one: whoever listens may be gone, which
/// ends it.
fn probe(request: &probe::Request, tell: &mut dyn FnMut(&Told) -> bool) -> Result<Probe, ProbeError> {
    let plan = probe::plan(request)?;
    for warning in &plan.warnings {
        tell(&Told::Note(warning.clone()));
    }
    let (post, events) = unbounded();
    let handle = Handle::new();
    let (begun, gone) = (Instant::now(), Arc::new(AtomicBool::new(false)));
    thread::scope(|scope| {
        let running = {
            let (plan, handle) = (&plan, &handle);
            scope.spawn(move || {
                let ended = probe::run(plan, &|event| drop(post.send(event)), handle);
                drop(post);
                ended
            })
        };
        let mut last = Told::Progress { seconds: 0.0, seconds_left: plan.seconds_max, bytes: 0 };
        let mut due = Instant::now();
        loop {
            match events.recv_timeout(TELL_EVERY) {
                Ok(ProbeEvent::Progress(p)) => {
                    last =
                        Told::Progress { seconds: p.seconds, seconds_left: p.seconds_left, bytes: p.bytes };
                }
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if Instant::now() >= due {
                due = Instant::now() + TELL_EVERY;
                if let Told::Progress { seconds, .. } = &mut last {
                    *seconds = begun.elapsed().as_secs_f64();
                }
                if !gone.load(Ordering::Relaxed) && !tell(&last) {
                    gone.store(true, Ordering::Relaxed);
                    handle.stop();
                }
            }
        }
        running.join().unwrap_or(Err(ProbeError::Stopped))
    })
}
