//! What is tried in a session, by whichever end measures, and the bench that both ends of it hold.

use std::sync::{Arc, Mutex, PoisonError};

use haul::trial::Connection;

use super::Only;
use super::bench::Bench;
use super::sweep::{Can, Sweep};

/// What is to be tried over what was met, and the number of settings. `met`: by the source, whose end is the
/// near one there.
pub(super) fn sweep(only: &Only, full: bool, connection: &Connection) -> Result<(Sweep, usize), String> {
    let missing = only.controls.iter().find(|name| !connection.controls.contains(name));
    if let Some(name) = missing.filter(|_| !connection.controls.is_empty()) {
        let can = connection.controls.join(", ");
        return Err(format!("congestion control '{name}' cannot be used here; possible are: {can}"));
    }
    let fixed = |limit: Option<u64>| limit.map_or(0, |bytes| bytes / 2);
    let far = connection.far.map_or(0, |far| fixed(far.limits.rmem_fixed));
    let window = match connection.controls.is_empty() {
        true => 0,
        false => fixed(connection.near.limits.wmem_fixed).min(far),
    };
    let can = Can { streams: connection.streams, controls: connection.controls.clone(), window };
    let sweep = Sweep::new(&can, only, full);
    let settings = sweep.settings();
    Ok((sweep, settings))
}

/// The bench, which stays here when the session is over.
pub(super) struct Shared(pub(super) Arc<Mutex<Option<Bench>>>);

impl haul::trial::Trial for Shared {
    fn look(&mut self, look: &haul::trial::Look<'_>) -> Option<haul::trial::Turn> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).as_mut()?.look(look)
    }

    fn refused(&mut self, why: String) {
        if let Some(bench) = self.0.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            bench.refused(why);
        }
    }
}
