//! The sink's storage targets as this end knows them: what may be sent for each, and which files go where.
//!
//! In: grants by class, how the classes fare, where the sink put files. Out: classes that are shut in the schedule; runs of
//! objects anew, with their class.
//! A class's credit lies below the general one: an object needs both. It is taken when the object's read begins (of one that
//! waits on flash, when it is fetched), and given back when its frame does not go.
//! Invariants: what was taken of a class is never more than was granted, but by one object where the longest object of a
//! session came late; a class of which nothing was granted is shut. Without [`SourceConfig::targets`](super::SourceConfig)
//! there are no classes.
//! Left out: bundles, which are of no class.

use alloc::sync::Arc;
use std::collections::HashMap;

use super::Source;
use crate::ids::{Class, FileId, Generation};
use crate::layout::Layout;
use crate::schedule::{Health, TARGETS_MAX};
use crate::wire::credit_cost;

#[derive(Default)]
pub(super) struct Classes {
    credits: Vec<Credit>,
    /// Of reads under way: file, generation and offset.
    reading: HashMap<(FileId, Generation, u64), Class>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Credit {
    granted: u64,
    used: u64,
}

impl Source {
    /// So many bytes may have been sent for a class since the session began, as [`Grant`](crate::wire::Message::Grant)
    /// counts them. [`Class::ANY`]: in all.
    pub fn handle_grant(&mut self, class: Class, total: u64) {
        if class == Class::ANY {
            self.credit = self.credit.max(total);
        } else if let Some(credit) = self.credit_of(class) {
            credit.granted = credit.granted.max(total);
            self.see_class(class);
        }
    }

    /// How a class fares, as the sink says.
    pub fn handle_sink_health(&mut self, class: Class, health: Health) {
        if self.config.agreed.targets {
            self.plan.schedule.handle_sink_health(class, health, self.now);
        }
    }

    /// Where a file goes. What is still to be read of it goes by that from now on.
    pub fn handle_file_targets(&mut self, id: FileId, generation: Generation, layout: Arc<Layout<Class>>) {
        let current = |file: &&mut super::File| file.generation == generation;
        if !self.config.agreed.targets || self.files.get_mut(&id).filter(current).is_none() {
            return;
        }
        for class in layout.targets() {
            if self.credit_of(*class).is_some() {
                self.see_class(*class);
            }
        }
        let file = self.files.get_mut(&id).expect("it was just there");
        file.classes = Some(layout);
        if file.works {
            self.queue_anew(id);
        }
    }

    /// What goes to places that are not known yet is held back while there is something else: it could be for a target of
    /// the sink that hangs, and would fill the sink's buffers.
    pub(super) fn hold_unplaced(&mut self) {
        let placed = self.plan.schedule.has_placed() || self.spill.has_placed();
        let hold = self.config.agreed.targets && placed;
        self.plan.schedule.set_shut(Class::ANY, hold);
    }

    /// A read begins that costs so much.
    pub(super) fn take_class(&mut self, class: Class, read: (FileId, Generation, u64), cost: u64) {
        if let Some(credit) = self.credit_of(class) {
            credit.used += cost;
            self.classes.reading.insert(read, class);
            self.see_class(class);
        }
    }

    /// A frame that was read without credit goes: its class has room for it, and has less from now on.
    pub(super) fn charge_class(&mut self, class: Class, cost: u64) -> bool {
        let Some(credit) = self.credit_of(class) else { return true };
        let has = credit.used + cost <= credit.granted;
        if has {
            credit.used += cost;
            self.see_class(class);
        }
        has
    }

    /// The class of a read that came back.
    pub(super) fn class_of_read(&mut self, read: (FileId, Generation, u64)) -> Class {
        self.classes.reading.remove(&read).unwrap_or(Class::ANY)
    }

    /// A frame does not go, or never arrived.
    pub(super) fn give_back(&mut self, class: Class, cost: u64) {
        if let Some(credit) = self.credit_of(class) {
            credit.used -= cost;
            self.see_class(class);
        }
    }

    /// The longest object is longer than before.
    pub(super) fn see_classes(&mut self) {
        for c in 1..self.classes.credits.len() {
            self.see_class(Class(u16::try_from(c).expect("a class")));
        }
    }

    fn credit_of(&mut self, class: Class) -> Option<&mut Credit> {
        let c = usize::from(class.0);
        if !self.config.agreed.targets || class == Class::ANY || c >= TARGETS_MAX {
            return None;
        }
        let credits = &mut self.classes.credits;
        if credits.len() <= c {
            credits.resize(c + 1, Credit::default());
        }
        Some(&mut credits[c])
    }

    fn see_class(&mut self, class: Class) {
        let Credit { granted, used } = self.classes.credits[usize::from(class.0)];
        let shut = used + credit_cost(self.plan.object_max) > granted;
        self.plan.schedule.set_shut(class, shut);
    }
}
