//! Where each target stands: how it fares, what it may have in flight, and so in whose ring it is.
//!
//! In: a target of which anything changed. Out: its place among those that may have an object.
//! Invariants: a target is in a ring only if something waits there and its window has room; a lone one is
//! always healthy.
//! Left out: what a policy makes of its requests.

use super::{BUSY, Health, IDLE, Schedule};

/// Lengths of queues are told apart by quarters of their power of two, up to 2^32.
pub(super) const LEVELS: usize = 128;

impl Schedule {
    /// Puts a target where it belongs after anything about it changed.
    pub(super) fn refresh(&mut self, t: usize) {
        let was_alone = self.busy_count <= 1;
        let busy = self.in_flight[t] > 0 || self.queues.objects(t) > 0;
        if self.busy.set(t, busy) {
            self.busy_count = if busy { self.busy_count + 1 } else { self.busy_count - 1 };
        }
        if was_alone != (self.busy_count <= 1) {
            // The other one that has something: it is alone now, or was.
            let other = self.busy.next(t + 1, |_| u64::MAX).filter(|other| *other != t);
            other.into_iter().for_each(|other| self.place(other));
        }
        self.place(t);
    }

    /// Requests that a target may have in flight: as its rule says, unless no other has anything to do and it
    /// is well.
    pub(super) fn window(&self, t: usize) -> u32 {
        match self.is_lone() || (self.busy_count <= 1 && self.health[t] == Health::Healthy) {
            true => self.limits.each,
            false => self.rule.window(t, &self.limits),
        }
    }

    /// How the target fares, and in which rings it is.
    fn place(&mut self, t: usize) {
        let health = if self.is_lone() { Health::Healthy } else { self.rule.health(t) };
        let in_flight = self.in_flight[t];
        let before = std::mem::replace(&mut self.health[t], health);
        if before != health {
            // To rest is to be congested still.
            let told = |health| if health == Health::Resting { Health::Congested } else { health };
            if told(before) != told(health) {
                self.changed.set(t, true);
            }
            let part = |health, of: &[Health]| if of.contains(&health) { in_flight } else { 0 };
            let slow = [Health::Congested, Health::Resting, Health::Hung];
            self.slow = self.slow - part(before, &slow) + part(health, &slow);
            self.hung = self.hung - part(before, &slow[2..]) + part(health, &slow[2..]);
        }
        if let Some(time) = self.rule.deadline(t, in_flight).filter(|_| !self.is_lone()) {
            self.arm(t, time);
        }
        if self.rule.is_in_order() {
            return self.rule.on_waiting(t, &mut self.queues);
        }
        let objects = self.queues.objects(t);
        let waits = objects > 0;
        let ready = waits && in_flight < self.window(t);
        let spreads = self.rule.spreads();
        let side = if spreads && in_flight == 0 { IDLE } else { BUSY };
        let before = std::mem::replace(&mut self.levels[t], level_of(objects));
        for of in [IDLE, BUSY] {
            let is_of = ready && health == Health::Healthy && of == side;
            self.healthy_rings[of].ready.set(t, is_of);
            if spreads {
                self.lengths[of].set(before, t, false);
                self.lengths[of].set(self.levels[t], t, is_of);
            }
        }
        self.slow_ring.ready.set(t, ready && health == Health::Congested);
        let spare = matches!(health, Health::Congested | Health::Resting);
        let spare = spare && waits && in_flight < self.rule.spare(t, &self.limits);
        self.spare_ring.ready.set(t, spare);
        self.resting_ring.ready.set(t, waits && in_flight == 0 && health == Health::Resting);
        if self.waiting.set(t, waits && health == Health::Healthy) {
            match self.waiting.contains(t) {
                true => self.waiting_count += 1,
                false => self.waiting_count -= 1,
            }
        }
    }
}

/// The ring of those at which so much waits.
fn level_of(objects: u64) -> u8 {
    let objects = objects.clamp(1, u64::from(u32::MAX));
    let power = objects.ilog2();
    let quarter = (objects << 2 >> power) & 3;
    u8::try_from(u64::from(power) * 4 + quarter).expect("few levels")
}
