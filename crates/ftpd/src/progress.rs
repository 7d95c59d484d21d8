//! How far a transfer is, for whoever asks, and for the front end that a data node works for.
//!
//! In: bytes that moved. Out: words of `STAT`, `112`. What must hold: a node that is asked to tell says so at
//! each interval as long as its process goes on, whatever it waits for, and only then.

use std::cell::Cell;
use std::time::{Duration, Instant, SystemTime};

use haul_gridftp::markers::Performance;
use haul_gridftp::reply::Reply;

use crate::config::STALL_MAX;

/// How far a transfer is.
pub struct Progress {
    verb: &'static str,
    moved: Cell<u64>,
    last: Cell<Instant>,
    /// Told by whoever waits: so often, and when next.
    told: Option<(Duration, Cell<Instant>)>,
}

impl Progress {
    pub fn new(verb: &'static str) -> Progress {
        Progress { verb, moved: Cell::new(0), last: Cell::new(Instant::now()), told: None }
    }

    /// One that is told so often, also where nothing moves.
    pub fn told(verb: &'static str, every: Duration) -> Progress {
        let told = Some((every, Cell::new(Instant::now() + every)));
        Progress { told, ..Progress::new(verb) }
    }

    pub fn add(&self, len: usize) {
        self.moved.set(self.moved.get() + len as u64);
        self.last.set(Instant::now());
    }

    pub fn moved(&self) -> u64 {
        self.moved.get()
    }

    /// If nothing moves until then, the transfer has failed.
    pub fn deadline(&self) -> Instant {
        self.last.get() + STALL_MAX
    }

    /// When it is to be told next.
    pub fn next(&self) -> Option<Instant> {
        self.told.as_ref().map(|(_, next)| next.get())
    }

    /// What is to be told now.
    pub fn due(&self) -> Option<Reply> {
        let (every, next) = self.told.as_ref()?;
        let now = Instant::now();
        if now < next.get() || haul_mutant::removed("ftpd-senders-tell-that-they-go-on") {
            return None;
        }
        next.set(now + *every);
        Some(marker(self.moved()))
    }

    pub fn in_words(&self) -> String {
        format!("Status: {}, {} bytes so far.", self.verb, self.moved.get())
    }
}

/// So much has moved, of one stripe of one.
pub fn marker(moved: u64) -> Reply {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Performance { secs: since.as_secs(), nanos: since.subsec_nanos(), stripe: 0, moved, stripes: 1 }.reply()
}
