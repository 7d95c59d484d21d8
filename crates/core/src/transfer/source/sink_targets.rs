//! The sink's storage targets as this end knows them: what may be sent for each, and which files go where.
//!
//! In: grants by sink target, how the sink targets fare, where the sink put files. Out: sink targets that are
//! shut in the schedule; runs of objects anew, with their sink target. A sink target's credit lies below the
//! general one: an object needs both. It is taken when the object's read begins (of one that waits on flash,
//! when it is fetched), and given back when its frame does not go.
//! Invariants: what was taken of a sink target is never more than was granted, but by one object where the
//! longest object of a session came late; a sink target of which nothing was granted is shut. Without
//! [`SourceConfig::targets`](super::SourceConfig) there are no sink targets.
//! Left out: bundles, which are of no sink target.

use alloc::sync::Arc;
use std::collections::HashMap;

use super::Source;
use crate::ids::{FileId, Generation, SinkTarget};
use crate::layout::Layout;
use crate::schedule::{Health, TARGETS_MAX};
use crate::wire::credit_cost;

#[derive(Default)]
pub(super) struct SinkTargets {
    credits: Vec<Credit>,
    /// Of reads under way: file, generation and offset.
    reading: HashMap<(FileId, Generation, u64), SinkTarget>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Credit {
    granted: u64,
    used: u64,
}

impl Source {
    /// So many bytes may have been sent for a sink target since the session began, as
    /// [`Grant`](crate::wire::Message::Grant) counts them. [`SinkTarget::ANY`]: in all.
    pub fn handle_grant(&mut self, sink_target: SinkTarget, total: u64) {
        if sink_target == SinkTarget::ANY {
            self.credit = self.credit.max(total);
        } else if let Some(credit) = self.credit_of(sink_target) {
            credit.granted = credit.granted.max(total);
            self.see_sink_target(sink_target);
        }
    }

    /// How a sink target fares, as the sink says.
    pub fn handle_sink_health(&mut self, sink_target: SinkTarget, health: Health) {
        if self.config.agreed.targets {
            self.plan.schedule.handle_sink_health(sink_target, health, self.now);
        }
    }

    /// Where a file goes. What is still to be read of it goes by that from now on.
    pub fn handle_file_targets(
        &mut self,
        id: FileId,
        generation: Generation,
        layout: Arc<Layout<SinkTarget>>,
    ) {
        let current = |file: &&mut Box<super::File>| file.generation == generation;
        if !self.config.agreed.targets || self.files.get_mut(&id).filter(current).is_none() {
            return;
        }
        for sink_target in layout.targets() {
            if self.credit_of(*sink_target).is_some() {
                self.see_sink_target(*sink_target);
            }
        }
        let file = self.files.get_mut(&id).expect("it was just there");
        file.sink_targets = Some(layout);
        if file.works {
            self.queue_anew(id);
        }
    }

    /// What goes to places that are not known yet is held back while there is something else: it could be for
    /// a target of the sink that hangs, and would fill the sink's buffers.
    pub(super) fn hold_unplaced(&mut self) {
        let placed = self.plan.schedule.has_placed() || self.spill.has_placed();
        let hold = self.config.agreed.targets && placed;
        self.plan.schedule.set_shut(SinkTarget::ANY, hold);
    }

    /// A read begins that costs so much.
    pub(super) fn take_sink_target(
        &mut self,
        sink_target: SinkTarget,
        read: (FileId, Generation, u64),
        cost: u64,
    ) {
        if let Some(credit) = self.credit_of(sink_target) {
            credit.used += cost;
            self.sink_targets.reading.insert(read, sink_target);
            self.see_sink_target(sink_target);
        }
    }

    /// A frame that was read without credit goes: its sink target has room for it, and has less from now on.
    pub(super) fn charge_sink_target(&mut self, sink_target: SinkTarget, cost: u64) -> bool {
        let Some(credit) = self.credit_of(sink_target) else { return true };
        let has = credit.used + cost <= credit.granted;
        if has {
            credit.used += cost;
            self.see_sink_target(sink_target);
        }
        has
    }

    /// The sink target of a read that came back.
    pub(super) fn sink_target_of_read(&mut self, read: (FileId, Generation, u64)) -> SinkTarget {
        self.sink_targets.reading.remove(&read).unwrap_or(SinkTarget::ANY)
    }

    /// A frame does not go, or never arrived.
    pub(super) fn give_back(&mut self, sink_target: SinkTarget, cost: u64) {
        if let Some(credit) = self.credit_of(sink_target) {
            credit.used -= cost;
            self.see_sink_target(sink_target);
        }
    }

    /// The longest object is longer than before.
    pub(super) fn see_sink_targets(&mut self) {
        for c in 1..self.sink_targets.credits.len() {
            self.see_sink_target(SinkTarget(u16::try_from(c).expect("a sink target")));
        }
    }

    fn credit_of(&mut self, sink_target: SinkTarget) -> Option<&mut Credit> {
        let c = usize::from(sink_target.0);
        if !self.config.agreed.targets || sink_target == SinkTarget::ANY || c >= TARGETS_MAX {
            return None;
        }
        let credits = &mut self.sink_targets.credits;
        if credits.len() <= c {
            credits.resize(c + 1, Credit::default());
        }
        Some(&mut credits[c])
    }

    fn see_sink_target(&mut self, sink_target: SinkTarget) {
        let Credit { granted, used } = self.sink_targets.credits[usize::from(sink_target.0)];
        let shut = used + credit_cost(self.plan.object_max) > granted;
        self.plan.schedule.set_shut(sink_target, shut);
    }
}
