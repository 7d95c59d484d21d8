//! Files that the store clones from the source's, where both ends are on one host and one file system: they
//! are neither read nor sent, and nothing is hashed.
//!
//! In: files that the lookups left to be copied; what became of their clones. Out: clones for the engine,
//! several at a time; states for the source; files for the next epoch.
//! Invariants: nothing of a file is there before it is cloned, and all of it after; what is published is what
//! had the announced fingerprint before and after the clone, which the engine sees to; the source is told
//! that a file was cloned, and its root is nobody's; what could not be cloned is read as any other file, and
//! with `always` fails.
//! Left out: how a file is cloned, and which file systems do that, which is the engine's.

use std::collections::VecDeque;

use super::Sink;
use super::file::{File, Mark, SinkPhase};
use crate::ids::{FileId, Generation};
use crate::transfer::op::{CloneItem, Cloned, SinkOp};
use crate::wire::{Failure, FileState};

/// Files that are cloned with one operation: few, for each of them is told with the last.
const CLONES_PER_OP: usize = 32;

/// Which files are cloned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clones {
    /// Shorter ones are read, which is as fast, and checked; at least one byte.
    pub len_min: u64,
    /// What cannot be cloned fails, and nothing is read.
    pub always: bool,
}

/// Files that wait for a descriptor.
#[derive(Default)]
pub(super) struct Cloning {
    waiting: VecDeque<(FileId, Generation)>,
}

impl Cloning {
    /// Some wait.
    pub(super) fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }
}

impl Sink {
    /// A file of which nothing is here: it is cloned. False: it is to be read.
    pub(super) fn clone_file(&mut self, id: FileId) -> bool {
        let Some(clones) = self.config.clones else { return false };
        let Some(file) = self.files.get_mut(&id) else { return false };
        if file.size() < clones.len_min.max(1) {
            return false;
        }
        file.phase = SinkPhase::Cloning;
        self.cloning.waiting.push_back((id, file.kept.generation));
        true
    }

    /// Has files cloned, as far as there are descriptors.
    pub(super) fn run_clones(&mut self) {
        while self.stop.is_none() && self.cloning.waits() {
            let mut items = Vec::new();
            while items.len() < CLONES_PER_OP && self.files_open < self.config.files_open_max {
                let Some((id, generation)) = self.cloning.waiting.pop_front() else { break };
                let due =
                    |file: &File| file.phase == SinkPhase::Cloning && file.kept.generation == generation;
                let Some(file) = self.files.get_mut(&id).filter(|file| due(file)) else { continue };
                file.mark(Mark::HasTemp);
                self.files_open += 1;
                items.push(CloneItem { file: file.sink_file(id), generation, mode: file.meta.mode });
            }
            if items.is_empty() {
                return;
            }
            self.submit(SinkOp::Clone { items });
        }
    }

    pub(super) fn handle_cloned(&mut self, id: FileId, result: Result<Cloned, Failure>) {
        let clones_all = self.config.clones.is_some_and(|clones| clones.always);
        let Some(file) = self.files.get_mut(&id).filter(|f| f.phase == SinkPhase::Cloning) else { return };
        match result {
            Ok(Cloned::Whole) => {
                file.mark(Mark::Cloned);
                // The engine looked at it behind the clone.
                file.naming.handle_seal(0);
                let generation = file.kept.generation;
                if file.naming.give((), true) {
                    file.phase = SinkPhase::Committing;
                    file.mark(Mark::InEpoch);
                    self.epochs.add_complete(id, self.now);
                    self.states.push((id, generation, FileState::Cloned));
                }
            }
            Ok(Cloned::Not(why)) => {
                // Its temporary is gone.
                file.unmark(Mark::HasTemp);
                self.files_open -= 1;
                match clones_all && !haul_mutant::removed("always-clones-or-fails") {
                    true => self.leave_file(id, why),
                    false => {
                        file.phase = SinkPhase::Looking;
                        self.begin_in_turn(id);
                    }
                }
            }
            Err(failure) if self.is_of_the_stop(&failure) => {}
            Err(failure) => self.fail_file(id, failure),
        }
    }
}
