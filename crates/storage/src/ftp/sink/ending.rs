//! Nobody wants more of a destination: a stop was asked for, or its engine ends.
//!
//! In: the one and the other. Out: whether anything new is begun at the server, and how long a wait for it
//! may still last. Invariant: what is under way when a stop is asked for goes on as long as the server does
//! something within [`ENDS_WITHIN`]; then that session is left.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use haul_base::stop::Stop;

/// So long a server may be silent behind a stop, from then on or from when it is waited for, whatever the
/// patience: for an answer, a connection, or that it takes something.
const ENDS_WITHIN: Duration = Duration::from_secs(3);

/// See the module.
#[derive(Default)]
pub(super) struct Ending {
    /// The engine was started: who stops it says so here, and a stop that only the user knows of is not
    /// heeded before that one.
    begun: AtomicBool,
    stopped: Mutex<Option<Instant>>,
    over: AtomicBool,
}

impl Ending {
    /// A stop was asked for, or is not wanted any more.
    pub(super) fn set_stopped(&self, stopped: bool) {
        let mut since = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        *since = stopped.then(|| since.unwrap_or_else(Instant::now));
    }

    pub(super) fn set_begun(&self) {
        self.begun.store(true, Ordering::Relaxed);
    }

    /// The engine ends.
    pub(super) fn set_over(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn since(&self) -> Option<Instant> {
        *self.stopped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing new is begun.
    pub(super) fn is_stopped(&self) -> bool {
        self.since().is_some() && !haul_mutant::removed("ftp-stops-begin-nothing")
    }

    /// Nothing is tried again. `user`: who wants an end before the engine is there.
    pub(super) fn of_attempts(self: &Arc<Ending>, user: Stop) -> Stop {
        let ends = self.clone();
        Stop::when(move || {
            let early = !ends.begun.load(Ordering::Relaxed) && user.is_asked();
            early || ends.is_over() || ends.since().is_some()
        })
    }

    /// What is waited for at the server ends, some time behind a stop.
    pub(super) fn of_waits(self: &Arc<Ending>) -> Stop {
        let ends = self.clone();
        Stop::of_waits(move |begun| {
            let since = ends.since().map(|since| since.max(begun));
            since.is_some_and(|since| since.elapsed() >= ENDS_WITHIN)
                && !haul_mutant::removed("ftp-stops-end-waits")
        })
    }
}
