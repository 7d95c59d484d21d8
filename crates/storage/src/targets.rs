//! The storage targets of one end by number: what the schedule counts with, and what people read.
//!
//! In: targets as file systems name them, and devices of file systems that name none. Out: a [`TargetId`] for
//! each, and its name again.
//! Invariants: a name has one number as long as this lives; numbers are given from 0 on in the order in which
//! targets are met; there are at most [`TARGETS_MAX`]: what is met beyond them counts as the last one.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use haul_core::ids::TargetId;
use haul_core::layout::{Layout, TargetName};
use haul_core::schedule::TARGETS_MAX;

use super::layout::device_name;

/// The targets of one end. All its threads share it.
#[derive(Debug, Default)]
pub struct Targets(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    names: Vec<TargetName>,
    ids: HashMap<TargetName, TargetId>,
    devices: HashMap<u64, TargetId>,
}

impl Targets {
    pub fn new() -> Targets {
        Targets::default()
    }

    /// The number of a target.
    pub fn id(&self, name: &TargetName) -> TargetId {
        self.lock().id(name)
    }

    /// The number of a device (`st_dev`), for files that lie on it as a whole.
    pub fn device(&self, dev: u64) -> TargetId {
        let mut inner = self.lock();
        if let Some(id) = inner.devices.get(&dev) {
            return *id;
        }
        let id = inner.id(&device_name(dev));
        if inner.devices.len() < TARGETS_MAX {
            inner.devices.insert(dev, id);
        }
        id
    }

    /// The same layout by numbers.
    pub fn layout(&self, layout: &Layout) -> Layout<TargetId> {
        let mut inner = self.lock();
        layout.map(|name| inner.id(name))
    }

    /// The name that has this number; `None` if none has it yet.
    pub fn name(&self, id: TargetId) -> Option<TargetName> {
        self.lock().names.get(usize::from(id.0)).cloned()
    }

    /// Targets that were met.
    pub fn count(&self) -> usize {
        self.lock().names.len()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Names are added before anything speaks of them: a panic leaves it whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn id(&mut self, name: &TargetName) -> TargetId {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let number = |index: usize| TargetId(u16::try_from(index).expect("few targets"));
        if self.names.len() >= TARGETS_MAX {
            return number(TARGETS_MAX - 1);
        }
        let id = number(self.names.len());
        self.names.push(name.clone());
        self.ids.insert(name.clone(), id);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: usize) -> TargetName {
        TargetName::new(&format!("OST{number:04x}"))
    }

    /// Goal: one name, one number, and back; devices are named as `haul layout` names them.
    #[test]
    fn names_and_numbers_fit_each_other() {
        let targets = Targets::new();
        assert_eq!(targets.id(&name(9)), TargetId(0));
        assert_eq!(targets.device(0x801), TargetId(1));
        assert_eq!(targets.id(&name(2)), TargetId(2));
        assert_eq!(targets.id(&name(9)), TargetId(0));
        assert_eq!(targets.device(0x801), TargetId(1));
        assert_eq!(targets.id(&device_name(0x801)), TargetId(1));
        assert_eq!(targets.name(TargetId(2)), Some(name(2)));
        assert_eq!(targets.name(TargetId(3)), None);
        let layout = targets.layout(&Layout::flat(name(2)));
        assert_eq!(layout, Layout::flat(TargetId(2)));
        assert_eq!(targets.count(), 3);
    }

    /// Goal: what is met beyond the bound is the last one, and nothing grows.
    #[test]
    fn targets_are_bounded() {
        let targets = Targets::new();
        let ids: Vec<TargetId> = (0..TARGETS_MAX + 9).map(|number| targets.id(&name(number))).collect();
        let last = TargetId(TARGETS_MAX as u16 - 1);
        assert!(ids.iter().zip(0..TARGETS_MAX as u16).all(|(id, number)| *id == TargetId(number)));
        assert_eq!(ids[TARGETS_MAX..], [last; 9]);
        assert_eq!(targets.device(5), last);
        assert_eq!(targets.count(), TARGETS_MAX);
    }
}
