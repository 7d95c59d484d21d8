//! What the sink answers about an entry: what it holds of it, and how it ended.
//!
//! In: states and outcomes; failures of this side. Out: files queued to be read, subtrees to compare, entries that
//! ended.
//! Invariants: a file counts as copied only if it was sealed and both ends have the same digest of it; held subtrees are
//! disjoint nodes of the file's tree before anything is hashed for them.
//! Left out: parts that were lost or damaged (`seal`).

use super::file::{Phase, Queue};
use super::{Source, SourceAction};
use crate::change::Change;
use crate::digest::{Subtree, SubtreeSet};
use crate::ids::{FileId, Generation};
use crate::transfer::op::SourceOp;
use crate::transfer::{Ended, SessionEnd, other_end, protocol};
use crate::wire::{Failure, FileState, Message, Outcome, Stage};

impl Source {
    pub(super) fn handle_state(&mut self, id: FileId, generation: Generation, state: FileState) {
        let Some(file) = self.files.get_mut(&id) else { return };
        // What will not be sent needs no map.
        let unwanted = file.phase == Phase::Mapping
            && matches!(
                state,
                FileState::Unchanged | FileState::Skipped | FileState::Planned(_) | FileState::Amended(_)
            );
        if file.generation != generation || !(file.phase == Phase::AwaitState || unwanted) {
            return;
        }
        match state {
            FileState::Fresh | FileState::Held { .. } if self.config.dry => {
                let text = "the sink asks for data in a dry run";
                self.finish(SessionEnd::Failed(protocol(text)));
            }
            FileState::Planned(_) if !self.config.dry && !haul_mutant::removed("plans-only-in-dry-runs") => {
                let text = "the sink answers as in a dry run";
                self.finish(SessionEnd::Failed(protocol(text)));
            }
            FileState::Fresh => self.start_sending(id),
            FileState::Unchanged => self.end_file(id, Ended::Unchanged, (None, Change::NONE)),
            FileState::Amended(change) => self.end_file(id, Ended::Unchanged, (None, change)),
            FileState::Planned(change) => self.end_file(id, Ended::Copied, (None, change)),
            FileState::Skipped => self.end_file(id, Ended::Skipped, (None, Change::NONE)),
            FileState::Held { subtrees, verify } => {
                file.held = disjoint(subtrees, file.digest.fresh());
                if verify {
                    file.phase = Phase::Verifying;
                    let op =
                        SourceOp::Verify { id, generation, size: file.size(), subtrees: file.held.clone() };
                    self.actions.push_back(SourceAction::Submit(op));
                } else {
                    self.believe_held(id);
                }
            }
        }
    }

    /// Takes what the sink holds as read.
    pub(super) fn believe_held(&mut self, id: FileId) {
        let Some(file) = self.files.get_mut(&id) else { return };
        for subtree in std::mem::take(&mut file.held) {
            // A subtree that does not fit the file is the sink's error; without it the range is sent again.
            let _ = file.digest.insert(subtree.offset, subtree.len, subtree.cv);
        }
        file.durable = file.digest.covered();
        self.counts.durable += file.durable;
        self.start_sending(id);
    }

    pub(super) fn start_sending(&mut self, id: FileId) {
        let Some(file) = self.files.get_mut(&id) else { return };
        file.phase = Phase::Sending;
        if file.is_small() && file.digest.covered() == 0 {
            file.queue = Queue::Small;
            self.small_bytes += file.size();
            self.small.push_back(id);
        } else if file.digest.next_missing(0).is_some() {
            self.queue_objects(id);
        } else {
            self.look(id);
        }
    }

    pub(super) fn handle_entry_done(&mut self, id: FileId, generation: Generation, outcome: Outcome) {
        if self.dirs.remove(&id.as_dir()).is_some() {
            self.end_other(id, outcome, SourceOp::ForgetDir { id: id.as_dir() });
        } else if self.links.remove(&id).is_some() {
            self.end_other(id, outcome, SourceOp::Forget { id });
        } else if let Some(file) = self.files.get(&id) {
            // What failed at the sink is over there, even if it is to begin again here.
            let failed = matches!(outcome, Outcome::Failed(_)) && generation < file.generation;
            if generation != file.generation && !failed {
                return;
            }
            let sealed = file.phase == Phase::Sealed && generation == file.generation;
            match outcome {
                Outcome::Failed(failure)
                    if self.config.verify && sealed && failure.stage == Stage::Digest =>
                {
                    self.came_back_wrong(id, failure)
                }
                Outcome::Failed(failure) => self.end_file(id, Ended::Failed(failure), (None, Change::NONE)),
                Outcome::Done { .. } if file.phase != Phase::Sealed => {
                    let text = "the sink says that a file is done before all of it was sent and sealed";
                    self.finish(SessionEnd::Failed(protocol(text)));
                }
                Outcome::Done { root, change } if root.is_some() && root == file.digest.root() => {
                    self.end_file(id, Ended::Copied, (root, change));
                }
                Outcome::Done { .. } => {
                    let text = "the sink's digest of the whole file differs from the source's; \
                                remove the destination file and run again";
                    let failure = Failure { stage: Stage::Digest, errno: 0, text: text.into() };
                    self.end_file(id, Ended::Failed(failure), (None, Change::NONE));
                }
            }
        }
    }

    /// Ends a directory or a link; `forget` is what the engine is told.
    fn end_other(&mut self, id: FileId, outcome: Outcome, forget: SourceOp) {
        let (end, change) = match outcome {
            Outcome::Done { change, .. } => (other_end(change), change),
            Outcome::Failed(failure) => (Ended::Failed(failure), Change::NONE),
        };
        self.actions.push_back(SourceAction::EntryEnded { id, end, root: None, bytes: 0, change });
        self.actions.push_back(SourceAction::Submit(forget));
    }

    fn end_file(&mut self, id: FileId, end: Ended, (root, change): (Option<[u8; 32]>, Change)) {
        // A sparse root is no hash of the content.
        let root = root.filter(|_| self.files.get(&id).is_some_and(|f| f.digest.map().is_none()));
        self.drop_map(id);
        self.drop_objects(id);
        let Some(file) = self.files.remove(&id) else { return };
        match file.phase {
            Phase::Sealed | Phase::Retry => {}
            Phase::Refreshing => self.refreshing -= 1,
            _ => self.unsealed -= 1,
        }
        if file.queue == Queue::Small {
            self.small_bytes -= file.size();
        }
        self.counts.durable -= file.durable;
        self.counts.files_done += 1;
        self.counts.bytes_done += file.size();
        if end == Ended::Unchanged {
            self.counts.unchanged += 1;
        }
        self.actions.push_back(SourceAction::EntryEnded { id, end, root, bytes: file.size(), change });
        self.actions.push_back(SourceAction::Submit(SourceOp::Forget { id }));
    }

    /// The file cannot be read: the sink forgets it, the report names it.
    pub(super) fn fail_file(&mut self, id: FileId, failure: Failure) {
        let Some(file) = self.files.get(&id) else { return };
        let generation = file.generation;
        let message = Message::Withdraw { id, generation, retry: false, failure: Some(failure.clone()) };
        self.flush_announcements();
        self.actions.push_back(SourceAction::Send(message));
        self.end_file(id, Ended::Failed(failure), (None, Change::NONE));
    }
}

/// What the sink may hold of a file, of which nothing is in `set`: nodes of its tree in order, none within
/// another. Else it could have the same bytes hashed thousands of times.
fn disjoint(subtrees: Vec<Subtree>, mut set: SubtreeSet) -> Vec<Subtree> {
    let mut end = 0;
    let mut keep = |s: &Subtree| {
        let fits = s.offset >= end && s.len > 0 && set.insert(s.offset, s.len, s.cv).is_ok();
        if fits {
            end = s.offset + s.len;
        }
        fits
    };
    subtrees.into_iter().filter(|s| keep(s)).collect()
}
