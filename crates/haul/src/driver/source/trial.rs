//! A source whose network is measured: what the trial sees, and what it turns.

use std::sync::PoisonError;

use haul_core::ids::Time;
use haul_core::wire::{Message, STREAMS_MAX};

use super::{Session, SourceEnd};
use crate::driver::cpu_time;
use crate::driver::trial::{LOOK_EVERY, Look};

impl SourceEnd {
    /// Shows the network to the trial, and does what it wants. `true`: there is one.
    pub(super) fn try_out(&mut self, now: Time, session: &mut Session<'_>) -> bool {
        let Some(trial) = self.network.trial.clone() else { return false };
        let taken = self.machine.counts().durable;
        if self.network.taken.1 != taken {
            self.network.taken = (now, taken);
        }
        if self.network.looked.is_some_and(|then| now.since(then) < LOOK_EVERY) {
            return true;
        }
        self.network.looked = Some(now);
        let machine = &self.machine;
        let seen = self.network.net.see(|stream| machine.is_parked(stream));
        let (up, parked) = self.machine.streams();
        let look = Look {
            now,
            taken,
            taken_at: self.network.taken.0,
            streams: u16::try_from(up - parked).unwrap_or(STREAMS_MAX),
            flows: &seen.flows,
            sent: seen.sent,
            again: seen.again,
            cpu: cpu_time(),
        };
        let mut trial = trial.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = trial.look(&look) {
            if let Err(why) = self.network.net.turn(turn.control.as_deref(), turn.window) {
                trial.refused(why);
            }
            self.want_streams(turn.streams, session);
        }
        while let Some(json) = trial.say() {
            session.other.send(Message::Trial(json.into()));
        }
        true
    }
}
