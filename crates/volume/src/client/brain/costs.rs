//! What a client tells servers of what writes cost it, for whoever looks after them.

use std::time::{Duration, Instant};

use haul_core::volume::cost::Curve;
use haul_core::volume::threshold::Path;
use haul_core::volume::wire::{Costs, Message};

use super::Brain;
use crate::line::Bytes;

/// Servers hear of it as often; the first time as soon as a client shows that it is there.
const TELL_EVERY: Duration = Duration::from_secs(10);

impl Brain {
    pub(super) fn tell_costs_now_and_then(&mut self) {
        if self.told.0.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
            self.tell_costs();
        }
    }

    /// Tells each server what writes to it cost, if there were any since it heard that.
    pub(super) fn tell_costs(&mut self) {
        let writes = self.threshold.counts().begun;
        if writes == self.told.1 {
            return;
        }
        self.told = (Some(Instant::now()), writes);
        let points = |curve: &Curve| {
            let mut points: Vec<(u64, u64)> = curve
                .points()
                .map(|(len, cost)| (len.round().max(1.0) as u64, cost.round() as u64))
                .collect();
            points.dedup_by_key(|(len, _)| *len);
            points
        };
        for (server, connection) in self.connections.iter().filter(|(_, one)| one.gatherer_joined) {
            let [direct, gather] =
                [Path::Direct, Path::Gather].map(|path| points(self.threshold.curve(path, server.0.into())));
            if direct.is_empty() && gather.is_empty() {
                continue;
            }
            let (threshold, pinned) = (self.threshold.threshold(), self.threshold.is_pinned());
            let costs = Costs { threshold, pinned, writes, direct, gather };
            connection.mouth.say(Message::Costs(costs), Bytes::default());
        }
    }
}
