//! Storage targets of the source: where its files lie, how long reads there take, and one that is frozen for
//! a time.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use haul_core::ids::{TargetId, Time};
use haul_core::layout::{Component, Layout};
use haul_core::schedule::{LadsNumbers, Policy};
use haul_core::transfer::op::SourceOp;
use haul_core::transfer::source::Lies;

use super::model::BLOCK;

/// The targets of one session. Numbers of its own, so that the other seeds stay what they were.
pub struct Targets {
    rng: Rng,
    count: u16,
    pub policy: Policy,
    /// Nothing comes back from this one until then.
    frozen: Option<(TargetId, Time)>,
}

impl Targets {
    pub fn new(mut rng: Rng, now: Time) -> Targets {
        let ms = Duration::from_millis;
        let lads = LadsNumbers { threshold: ms(rng.u64(1..20)), window: ms(50), skips: rng.u32(0..9) };
        let policy =
            [Policy::ADAPTIVE, Policy::ROUND_ROBIN, Policy::FILE, Policy::lads(lads)][rng.usize(..4)];
        let count = rng.u16(1..6);
        let until = now.after(ms(rng.u64(0..10_000)));
        let frozen = rng.bool().then(|| (TargetId(rng.u16(..count)), until));
        Targets { rng, count, policy, frozen }
    }

    /// Where a file lies that the walk found.
    pub fn lies(&mut self) -> Lies {
        match self.rng.u8(..4) {
            0 => Lies::At(TargetId(self.rng.u16(..self.count))),
            _ => Lies::Ask,
        }
    }

    /// The answer to the layout question: up to three components, stripes of blocks, or of what no object
    /// fits.
    pub fn layout(&mut self) -> Arc<Layout<TargetId>> {
        let mut components = Vec::new();
        let mut start = 0;
        for _ in 0..self.rng.usize(1..4) {
            let targets = (0..self.rng.usize(1..5)).map(|_| TargetId(self.rng.u16(..self.count))).collect();
            let stripe_size = [BLOCK, 2 * BLOCK, BLOCK / 2, 3 * BLOCK, BLOCK + 4096][self.rng.usize(..5)];
            components.push(Component { start, stripe_size, targets });
            start += self.rng.u64(1..4) * BLOCK;
        }
        Arc::new(Layout::new(components).expect("a layout"))
    }

    /// Whether this operation can end now.
    pub fn answers(&self, op: &SourceOp, now: Time) -> bool {
        match (op, self.frozen) {
            (SourceOp::Read { target, .. }, Some((frozen, until))) => *target != frozen || now >= until,
            _ => true,
        }
    }

    /// When the frozen one is over it.
    pub fn thaws(&self) -> Option<Time> {
        self.frozen.map(|(_, until)| until)
    }

    /// How long a read took: a target's number makes it slow. Some were at hand elsewhere.
    pub fn service(&mut self, target: TargetId) -> Option<Duration> {
        assert!(target.0 < self.count, "a target that there is not: {target}");
        let ms = u64::from(target.0 + 1) * self.rng.u64(1..8);
        (self.rng.u8(..8) != 0).then(|| Duration::from_millis(ms))
    }
}
