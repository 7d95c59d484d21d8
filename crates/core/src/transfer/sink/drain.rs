//! Files that are given up: what was written of them is removed.
//!
//! In: withdrawals, failures, a stop. Out: temporaries to remove; promises that the journal takes back.
//! Invariants: a temporary is removed only when no write, no check and no commit of it is under way; its
//! directory stays held, and the next generation waits, until it is gone.
//! Left out: debris of earlier jobs, which the engine removes.

use super::Sink;
use super::file::{File, Mark, SinkPhase};
use crate::ids::{DirId, FileId, Generation};
use crate::job::facts::Fact;
use crate::transfer::op::SinkOp;
use crate::transfer::{Ended, protocol};
use crate::wire::Failure;

/// The temporary of a file that was given up: it is removed when nothing is under way on it any more.
pub(super) struct Drain {
    pub(super) writes: u32,
    /// Reads of what an earlier run left.
    pub(super) checks: u32,
    pub(super) in_commit: bool,
    /// The file ended; its directory is held until the temporary is gone, which counts as open until then.
    pub(super) release: Option<DirId>,
}

impl Sink {
    pub(super) fn handle_withdraw(
        &mut self,
        id: FileId,
        generation: Generation,
        retry: bool,
        failure: Option<Failure>,
    ) {
        if self.links.get(&id).is_some_and(|link| link.is_apart() && link.generation < generation) {
            // It was to come as a file of its own, and does not.
            if !retry {
                let failure = failure.unwrap_or_else(|| protocol("the source gave it up"));
                self.forget_link(id, Ended::Failed(failure));
            }
            return;
        }
        // A file that was withdrawn before may be given up under a generation that was never announced.
        let names = |f: &&mut Box<File>| {
            f.kept.generation == generation
                || (f.phase == SinkPhase::Withdrawn && f.kept.generation < generation)
        };
        let Some(file) = self.files.get_mut(&id).filter(names) else { return };
        if file.phase == SinkPhase::Committing {
            // A seal was sent for it before, so the source may not take it back.
            return self.violation("a sealed file was withdrawn");
        }
        let looks = file.phase == SinkPhase::Looking && self.config.wait && !file.waits_to_be_looked_up();
        if looks || matches!(file.phase, SinkPhase::Amending | SinkPhase::Cloning) {
            // The answer of the lookup would be taken for the next generation's.
            return self.violation("a file was withdrawn before its state was told");
        }
        file.phase = SinkPhase::Withdrawn;
        self.discard(id);
        self.drop_map(id);
        if self.targets.is_some() {
            // What waited to know where it lies is worth nothing any more.
            self.wake(id);
        }
        if !retry {
            let failure = failure.unwrap_or_else(|| protocol("the source gave it up"));
            self.end_file(id, Ended::Failed(failure), None);
        }
    }

    /// Removes what was written of a file and tells the journal.
    pub(super) fn discard(&mut self, id: FileId) {
        self.leave_targets(id);
        self.expect_nothing(id);
        if self.files.get(&id).is_some_and(|file| file.phase != SinkPhase::Again) {
            self.leave_turns(id);
            self.ask_nothing_again(id);
        }
        self.count_no_held(id);
        let Some(file) = self.files.get_mut(&id) else { return };
        file.written.clear();
        file.digest = file.digest.fresh();
        file.held = None;
        if let Some((slot, named)) = file.kept.forget() {
            self.epochs.say(Fact::Forgotten { slot, named });
        }
        file.writing.clear();
        if file.is(Mark::HasTemp) {
            file.unmark(Mark::HasTemp);
            let writes = std::mem::take(&mut file.writes);
            let checks = std::mem::take(&mut file.checks);
            let in_commit = file.unmark(Mark::InCommit);
            self.drains.insert(id, Drain { writes, checks, in_commit, release: None });
            self.check_drain(id);
        }
    }

    /// Removes the temporary of a file that was given up, when its last write and its commit are over.
    pub(super) fn check_drain(&mut self, id: FileId) {
        if self.drains.get(&id).is_some_and(|d| d.writes == 0 && d.checks == 0 && !d.in_commit) {
            self.submit(SinkOp::Discard { id });
        }
    }

    /// The temporary is gone; the next generation of the file may begin.
    pub(super) fn drained(&mut self, id: FileId) {
        let Some(drain) = self.drains.remove(&id) else { return };
        self.files_open -= 1;
        if let Some(dir) = drain.release {
            self.dirs.release(dir);
            self.forget_metadata(id);
        }
        if self.files.get(&id).is_some_and(|f| f.phase == SinkPhase::Again) {
            match self.turns {
                Some(_) => self.begin_in_turn(id),
                None => self.begin_anew(id),
            }
        } else if self
            .files
            .get(&id)
            .is_some_and(|f| f.phase == SinkPhase::Looking && !f.is(Mark::WaitsJournal))
        {
            self.look_up_or_open(id);
        }
    }

    /// Before a stop: removes temporaries of which nothing is durable; a resume could not use them.
    pub(super) fn sweep(&mut self) {
        // What the journal did not take whole it may have in part.
        let broken = self.epochs.is_broken();
        let holds_nothing = |f: &File| {
            f.kept.durable.is_empty() && f.kept.expected().is_none() && !(broken && f.kept.is_promised())
        };
        let useless = self.files.iter().filter(|(_, f)| f.is(Mark::HasTemp) && holds_nothing(f));
        let mut useless: Vec<FileId> = useless.map(|(id, _)| *id).collect();
        // The order of a hash map differs from run to run, and a simulation must not.
        useless.sort_unstable();
        for id in useless {
            self.discard(id);
        }
    }
}
