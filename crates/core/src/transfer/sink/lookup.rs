//! What stands at the destination already, and what of it is taken over.
//!
//! In: what a lookup found; what the journal of an earlier run promised. Out: the state that the source is
//! told; files that are open for data.
//! Invariants: a temporary is taken over only under a tag that the journal knows; where the journal promises
//! parts that are not found, it takes the promise back before a new temporary is made; with `--force` nothing
//! that stands is taken for the copy, whatever a journal says of it.
//! Left out: the looking itself, which is the engine's; whether what was taken over is what the journal says
//! (`check`).

use super::file::{EarlyTemporary, File, Mark, SinkPhase};
use super::{EEXIST, Sink};
use crate::change::{Change, same_time};
use crate::ids::{FileId, Generation};
use crate::transfer::Ended;
use crate::transfer::op::{AmendItem, Existing, Found, Seen, SinkOp};
use crate::wire::{Failure, FailureKind, FileState};

impl Sink {
    pub(super) fn look_up_or_open(&mut self, id: FileId) {
        let wait = self.config.wait;
        let waits = |f: &File| if wait { f.waits_to_be_looked_up() } else { f.is(Mark::WaitsMap) };
        let Some(file) = self.files.get_mut(&id).filter(|f| !waits(f)) else { return };
        if wait {
            let item = file.lookup(id);
            self.submit(SinkOp::Lookup { items: vec![item] });
        } else {
            self.open(id);
        }
    }

    /// Takes objects of a file from here on.
    pub(super) fn open(&mut self, id: FileId) {
        let Some(file) = self.files.get_mut(&id) else { return };
        file.phase = SinkPhase::Open;
        self.wish(id);
        self.wake(id);
        // Of a file that is one hole nothing comes but its seal, and that may have been earlier.
        self.try_complete(id);
    }

    pub(super) fn handle_found(&mut self, id: FileId, result: Result<Found, Failure>) {
        if self.files.get(&id).is_none_or(|file| file.phase != SinkPhase::Looking) {
            return;
        }
        let found = match result {
            Ok(found) => found,
            Err(failure) if self.is_of_the_stop(&failure) => return,
            Err(failure) => return self.fail_file(id, failure),
        };
        let Some(file) = self.files.get_mut(&id) else { return };
        let policy = self.config.policy;
        let clones_all = self.config.clones.is_some_and(|clones| clones.always);
        let goes_into = self.config.part.is_some_and(|part| part.sink.is_some());
        file.change = match goes_into {
            true => Change::of_part_of_file(&found.existing),
            false => Change::of_file(&found.existing, file.size(), &file.meta, policy.owner),
        };
        file.found = found.seen;
        if found.adopted {
            file.mark(Mark::HasTemp);
            self.files_open += 1;
        }
        if found.begun {
            file.mark(Mark::Begun);
        }
        let mut amend = None;
        let verdict = match found.existing {
            Existing::Dir => {
                let text = "a directory stands there; nothing was removed";
                let failure = Failure { kind: FailureKind::Create, errno: 21, text: text.into() };
                return self.fail_file(id, failure);
            }
            Existing::Nothing => None,
            // In place it is refused where it would be opened, and nobody is told that it gives way.
            Existing::Special if !policy.no_clobber && !policy.force && !self.config.agreed.in_place => {
                let text = "a device, FIFO or socket stands there and was left alone; `force` replaces it";
                return self
                    .fail_file(id, Failure { kind: FailureKind::Create, errno: EEXIST, text: text.into() });
            }
            Existing::Link | Existing::Special => policy.no_clobber.then_some(Ended::Skipped),
            Existing::File { size, mtime, grain, rights } => {
                let fits = size == file.size() && same_time(file.kept.fingerprint.mtime, mtime, grain);
                // With `--no-clobber` other rights are as they should be.
                let differ = file.change.has(Change::RIGHTS) || !rights.beyond.is_none();
                let differ = differ && !policy.no_clobber;
                if differ && fits && !file.change.may_be_set(rights, &file.meta, policy.owner) {
                    None
                } else if fits
                    && self.config.part.is_none()
                    && (!policy.force || haul_mutant::removed("force-copies"))
                {
                    amend = found.seen.filter(|_| differ);
                    Some(Ended::Unchanged)
                } else if file.is(Mark::Begun) && policy.no_clobber {
                    let text = "an interrupted run began to write it in place, and it is half new: the same command without \
                                `no_clobber` completes it";
                    let failure = Failure { kind: FailureKind::Create, errno: EEXIST, text: text.into() };
                    // Nothing of it is this run's to discard, and the journal goes on to promise it.
                    return self.leave_file(id, failure);
                } else if file.is(Mark::Begun) {
                    // Half of it is ours: that is nothing to leave alone.
                    None
                } else if policy.no_clobber || (policy.update && mtime > file.kept.fingerprint.mtime) {
                    Some(Ended::Skipped)
                } else {
                    None
                }
            }
        };
        let generation = file.kept.generation;
        if verdict == Some(Ended::Skipped) && !found.adopted && !file.adopt.is_empty() {
            // Another of the earlier runs may have begun it in place.
            let item = file.lookup(id);
            return self.submit(SinkOp::Lookup { items: vec![item] });
        }
        if let Some(end) = verdict {
            file.change = Change::NONE;
            if found.adopted {
                self.discard(id);
            }
            if let Some(found) = amend {
                return self.amend(id, found);
            }
            if end == Ended::Unchanged
                && let Some(failure) = self.take_unkept(id)
            {
                self.first_ended(id, true);
                return self.leave_file(id, failure);
            }
            let state = if end == Ended::Skipped { FileState::Skipped } else { FileState::Unchanged };
            self.states.push((id, generation, state));
            return self.end_file(id, end, None);
        }
        if found.adopted && clones_all {
            // The journal takes back what it promises, and then it is looked up once more.
            file.held = None;
            file.mark(Mark::WaitsJournal);
            self.discard(id);
            return self.epochs.begin_after(id, generation);
        } else if found.adopted {
            let (claimed, partial) = match file.held.take() {
                Some(held) => (held.claimed, Some(held.partial)),
                None => (None, None),
            };
            let verify = claimed.is_some();
            file.kept.promise(claimed);
            file.mark(Mark::InEpoch);
            self.epochs.add_dirty(id, 0, self.now);
            let subtrees = self.take_held(id, partial, found.len);
            self.states.push((id, generation, FileState::Held { subtrees, verify }));
        } else if let Some(tag) = file.adopt.pop() {
            file.adopt.push(tag);
            let item = file.lookup(id);
            return self.submit(SinkOp::Lookup { items: vec![item] });
        } else if file.kept.is_promised() {
            // The journal promises parts of it that cannot be found. A new temporary would be taken for them
            // by the next run, so the journal takes it back before one is made.
            file.mark(Mark::WaitsJournal);
            self.discard(id);
            return self.epochs.begin_after(id, generation);
        } else if self.clone_file(id) {
            return;
        } else {
            return self.begin_in_turn(id);
        }
        self.open(id);
    }

    /// The content is right, mode or owner is not: these alone are set, and the source hears of it when that
    /// is done.
    fn amend(&mut self, id: FileId, found: Seen) {
        let Some(file) = self.files.get_mut(&id) else { return };
        file.phase = SinkPhase::Amending;
        let (durable, owner) = (self.config.policy.durable, self.config.policy.owner);
        let item = AmendItem { file: file.sink_file(id), meta: file.meta, owner, found };
        self.submit(SinkOp::Amend { durable, items: vec![item] });
    }

    pub(super) fn handle_amended(&mut self, id: FileId, result: Result<Change, Failure>) {
        let Some(file) = self.files.get_mut(&id).filter(|f| f.phase == SinkPhase::Amending) else { return };
        let generation = file.kept.generation;
        if let (Ok(_), Some(failure)) = (&result, self.take_unkept(id)) {
            // What it is to be but for this.
            self.first_ended(id, true);
            return self.leave_file(id, failure);
        }
        let Some(file) = self.files.get_mut(&id) else { return };
        match result {
            Ok(change) => {
                file.change = change;
                let amended = !change.is_none();
                self.counts.amended += u64::from(amended);
                let state = if amended { FileState::Amended(change) } else { FileState::Unchanged };
                self.states.push((id, generation, state));
                self.end_file(id, Ended::Unchanged, None);
            }
            Err(failure) => self.fail_file(id, failure),
        }
    }

    /// The journal promises nothing of this file any more: it begins afresh.
    pub(super) fn begin(&mut self, id: FileId, generation: Generation) {
        let waits = |f: &&mut Box<File>| {
            f.kept.generation == generation && matches!(f.phase, SinkPhase::Looking | SinkPhase::Again)
        };
        let Some(file) = self.files.get_mut(&id).filter(waits) else { return };
        file.unmark(Mark::WaitsJournal);
        if file.phase == SinkPhase::Again {
            return self.begin_anew(id);
        }
        if self.stop.is_none() && !self.drains.contains_key(&id) {
            self.look_up_or_open(id);
        }
    }

    /// Frames that waited for this file are taken up.
    pub(super) fn wake(&mut self, id: FileId) {
        let waits = |f: &File| {
            f.phase == SinkPhase::Looking || f.is(Mark::WaitsLayout) || f.made == EarlyTemporary::Asked
        };
        if !self.files.get(&id).is_some_and(|file| waits(file)) {
            for frame in self.waiting.remove(&id).unwrap_or_default() {
                self.waiting_count -= 1;
                self.defer(frame);
            }
        }
    }
}
