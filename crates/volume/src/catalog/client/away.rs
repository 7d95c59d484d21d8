//! A catalog that is away, or does nothing: how long calls wait for it, and what is told of that.
//!
//! In: when it was heard, who has no more patience with it, who wants to know of waits. Out: the end of a
//! wait.
//! Invariant: once there is a hurry, a catalog that does nothing for so long is waited for by nobody, however
//! many calls there are and whenever they begin; one that does what it is asked has as long as it needs, up
//! to the patience of each call.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use haul_core::volume::catalog::Failure;
use rustix::io::Errno;

use super::{Client, Shared, State};

/// One that is connected says something each second; one that was not heard for so long is away.
const SILENT: Duration = Duration::from_secs(5);
/// The same for words alone: that something waits for it is said before.
const QUIET: Duration = Duration::from_secs(2);
/// One that is there, and is heard, has so many times as long where there is a hurry: its disk may be slow.
const THERE: u32 = 3;
/// How often who attends is asked.
const LOOK: Duration = Duration::from_millis(200);

/// Is asked again and again while a call waits: since when it does, how long it may, and why the catalog is
/// not there, if it is not; false: it is to wait no longer.
pub type Attends = Arc<dyn Fn(Instant, Duration, Option<&str>) -> bool + Send + Sync>;

impl Client {
    /// From now on calls end as soon as the catalog has done nothing for so long; `None`: they have the
    /// patience that they had.
    pub fn hurry(&self, patience: Option<Duration>) {
        let mut state = self.shared.lock();
        state.hurry = patience.map(|patience| state.hurry.unwrap_or((Instant::now(), patience)));
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Who is asked from now on while a call waits.
    pub fn attend(&self, attends: Option<Attends>) {
        self.shared.lock().attends = attends;
    }

    /// For how long the catalog has not been heard, and why, if it is not there, or is connected and says
    /// nothing.
    pub fn away(&self) -> Option<(Duration, String)> {
        self.shared.lock().away()
    }

    /// For how long something has waited, for how long the catalog has been away, and why, if both is so.
    /// What is asked beside does not count.
    pub fn waits(&self) -> Option<(Duration, String)> {
        let state = self.shared.lock();
        let (_, why) = state.away_for(QUIET)?;
        let waiting = state.waiting.values().filter(|waiting| waiting.answer.is_none());
        waiting.filter_map(|waiting| waiting.since).min().map(|since| (since.elapsed(), why))
    }
}

impl Shared {
    /// Waits for anything to change, no longer than until so long after `begun`.
    pub(super) fn wait<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        limit: (Instant, Duration),
    ) -> Result<MutexGuard<'a, State>, Failure> {
        let Some(attends) = state.attends.clone() else { return self.wait_beside(state, limit) };
        let left = state.until(limit).saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(state.late());
        }
        let waited = self.changed.wait_timeout(state, left.min(LOOK)).unwrap_or_else(PoisonError::into_inner);
        let (state, timed_out) = waited;
        if !timed_out.timed_out() {
            return Ok(state);
        }
        let why = state.away_for(QUIET).map(|(_, why)| why);
        // It may want to ask something of this client; what changes meanwhile is looked at behind this.
        drop(state);
        if !attends(limit.0, limit.1, why.as_deref()) {
            let words = "a stop was asked for".into();
            return Err(Failure { errno: Errno::CANCELED.raw_os_error(), words });
        }
        Ok(self.lock())
    }

    /// The same; nobody attends to it.
    pub(super) fn wait_beside<'a>(
        &self,
        state: MutexGuard<'a, State>,
        limit: (Instant, Duration),
    ) -> Result<MutexGuard<'a, State>, Failure> {
        let left = state.until(limit).saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => Err(state.late()),
            false => Ok(self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0),
        }
    }
}

impl State {
    fn until(&self, (begun, patience): (Instant, Duration)) -> Instant {
        let until = begun + patience;
        let Some((since, hurry)) = self.hurry else { return until };
        let hurry = if self.away().is_none() { hurry * THERE } else { hurry };
        let from = match haul_mutant::removed("lost-catalogs-are-left-at-once") {
            // Each call anew.
            true => since.max(begun),
            false => self.missed.map_or(since.max(begun), |missed| missed.max(since)),
        };
        until.min(from + hurry)
    }

    /// The catalog did something: what is left is waited for from now on.
    pub(super) fn has_done(&mut self) {
        let is_asked = self.waiting.values().any(|waiting| waiting.answer.is_none());
        self.missed = is_asked.then(Instant::now);
    }

    fn away(&self) -> Option<(Duration, String)> {
        self.away_for(SILENT)
    }

    /// One that is connected is if it says nothing for so long.
    fn away_for(&self, silent: Duration) -> Option<(Duration, String)> {
        let time = self.said.unwrap_or(self.started).elapsed();
        match self.mouth {
            Some(_) if time < silent => None,
            Some(_) => Some((time, "it is connected, and says nothing".into())),
            None if self.why.is_empty() => Some((time, "it took no connection yet".into())),
            None => Some((time, self.why.clone())),
        }
    }

    pub(super) fn late(&self) -> Failure {
        let why = if self.mouth.is_some() { "it is connected" } else { &*self.why };
        let words = format!("the catalog did not answer in time: {why}").into();
        Failure { errno: Errno::TIMEDOUT.raw_os_error(), words }
    }
}
