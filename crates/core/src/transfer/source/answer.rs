//! What the sink answers about an entry: what it holds of it, and how it ended.
//!
//! In: states and outcomes; failures of this side. Out: files queued to be read, subtrees to compare, entries
//! that ended.
//! Invariants: a file counts as copied only if it was sealed and the sink's digest of it agrees with all that
//! was read here; no value of the sink's is taken for one that was made here; held subtrees are disjoint
//! nodes of the file's tree before anything is hashed for them.
//! Left out: parts that were lost or damaged (`seal`).

use super::file::{Queue, SourcePhase};
use super::held::Held;
use super::{Source, SourceAction};
use crate::change::Change;
use crate::digest::{Subtree, SubtreeSet};
use crate::ids::{DirId, FileId, Generation};
use crate::transfer::op::SourceOp;
use crate::transfer::{Ended, SessionEnd, link_end, other_end, protocol};
use crate::wire::{Extent, Failure, FailureKind, FileState, Message, Outcome};

impl Source {
    pub(super) fn handle_state(&mut self, id: FileId, generation: Generation, state: FileState) {
        if state == FileState::Finished {
            let text = "the sink says that a directory is finished, which this session was not to have";
            return self.finish(SessionEnd::Failed(protocol(text)));
        }
        if self.is_name(id) {
            return self.handle_name_state(id, generation, &state);
        }
        let Some(file) = self.files.get_mut(&id) else { return };
        // What will not be sent needs no map.
        let unwanted = file.phase == SourcePhase::Mapping
            && matches!(
                state,
                FileState::Unchanged | FileState::Skipped | FileState::Planned(_) | FileState::Amended(_)
            );
        if file.generation != generation || !(file.phase == SourcePhase::AwaitState || unwanted) {
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
            FileState::Cloned if !self.config.clones && !haul_mutant::removed("clones-are-agreed") => {
                let text = "the sink says that it cloned a file, which this session was not to have";
                self.finish(SessionEnd::Failed(protocol(text)));
            }
            FileState::Cloned => {
                file.phase = SourcePhase::Cloned;
                self.unsealed -= 1;
            }
            FileState::Fresh => self.start_sending(id),
            FileState::Finished => {}
            FileState::Unchanged => self.end_file(id, Ended::Unchanged, (None, Change::NONE)),
            FileState::Amended(change) => self.end_file(id, Ended::Unchanged, (None, change)),
            FileState::Planned(change) => self.end_file(id, Ended::Copied, (None, change)),
            FileState::Skipped => self.end_file(id, Ended::Skipped, (None, Change::NONE)),
            // However young it is: the sink need not go on to read for it.
            FileState::Held { verify: true, .. }
                if !self.config.compares && !haul_mutant::removed("held-in-vain-is-said-at-once") =>
            {
                self.begin_afresh(id);
            }
            FileState::Held { subtrees, verify } => {
                file.held = Held::new(disjoint(subtrees, file.digest.fresh()));
                self.counts.held = self.counts.held.saturating_add(file.held.open);
                self.counts.held_open = self.counts.held_open.saturating_add(file.held.open);
                if verify {
                    file.phase = SourcePhase::Verifying;
                    if !self.is_young(id) {
                        self.verify_held(id);
                    }
                } else {
                    self.start_sending(id);
                }
            }
        }
    }

    /// Has what the sink holds compared with the source.
    pub(super) fn verify_held(&mut self, id: FileId) {
        let Some(file) = self.files.get(&id) else { return };
        let (generation, size, subtrees) = (file.generation, file.size(), file.held.claims().to_vec());
        let op = SourceOp::Verify { id, generation, size, subtrees };
        self.actions.push_back(SourceAction::Submit(op));
    }

    /// What the sink says of what it holds was read here, and it fits: these values are this end's own.
    pub(super) fn take_verified(&mut self, id: FileId) {
        let Some(file) = self.files.get_mut(&id) else { return };
        for subtree in file.held.claims() {
            let _ = file.digest.insert(subtree.offset, subtree.len, subtree.cv);
        }
        self.start_sending(id);
    }

    /// What the sink holds of it is not of this version, or nobody can tell: it starts afresh under the next
    /// generation.
    pub(super) fn begin_afresh(&mut self, id: FileId) {
        let Some(file) = self.files.get_mut(&id) else { return };
        let message = Message::Withdraw { id, generation: file.generation, retry: true, failure: None };
        file.generation = Generation(file.generation.0 + 1);
        file.phase = SourcePhase::Refreshing;
        file.again.clear();
        let generation = file.generation;
        self.drop_held(id);
        self.drop_map(id);
        self.unsealed -= 1;
        self.refreshing += 1;
        self.actions.push_back(SourceAction::Send(message));
        self.actions.push_back(SourceAction::Submit(SourceOp::Refresh { id, generation }));
    }

    /// The sink holds nothing of it any more, or the file is over.
    pub(super) fn drop_held(&mut self, id: FileId) {
        let Some(file) = self.files.get_mut(&id) else { return };
        self.counts.held_open = self.counts.held_open.saturating_sub(std::mem::take(&mut file.held).open);
    }

    pub(super) fn start_sending(&mut self, id: FileId) {
        let young = self.is_young(id);
        let Some(file) = self.files.get_mut(&id) else { return };
        file.phase = if young { SourcePhase::Young } else { SourcePhase::Sending };
        if young {
            return;
        }
        if file.is_small() && file.digest.is_empty() && file.held.is_empty() {
            file.queue = Queue::Small;
            self.small_bytes += file.size();
            self.small.push_back(id);
        } else if file.next_missing(0).is_some() {
            self.queue_objects(id);
        } else {
            self.look(id);
        }
    }

    /// What an earlier run left in a range that the sink said to hold is not what it wrote: it is sent.
    /// Nothing was damaged on its way, so that this costs the sink nothing of what it may ask for again; each
    /// byte can be asked for once.
    pub(super) fn handle_not_held(&mut self, extent: Extent) {
        let Extent { id, generation, offset, len } = extent;
        let Some(file) = self.files.get_mut(&id).filter(|f| f.generation == generation) else { return };
        let held = file.held.take(offset, len);
        if held == 0 {
            return;
        }
        let open = held.min(file.held.open);
        file.held.open -= open;
        self.counts.held_open = self.counts.held_open.saturating_sub(open);
        if matches!(file.phase, SourcePhase::Verifying | SourcePhase::Young) {
            return file.held.unplan(offset, len);
        }
        if file.layout.is_none() && !file.is_small() {
            // Nothing of it was planned yet, for its objects follow from where it lies.
            file.held.unplan(offset, len);
            // Of what was compared nothing was sent: it is read once more, with the rest.
            let compared: Vec<u64> = file.digest.touching(offset, len).map(|node| node.offset).collect();
            for node in compared {
                file.digest.remove(node);
            }
            let adding = file.adding;
            if self.reopen(id) && !adding {
                self.queue_objects(id);
            }
            return;
        }
        let (mut pieces, mut at) = (Vec::new(), offset);
        while at < offset.saturating_add(len) {
            let Some((start, len)) = file.piece(at) else { break };
            at = start + u64::from(len);
            // A piece of which more was missing was planned from the beginning, and goes or went whole.
            if file.held.planned_end_at(start).is_some_and(|end| end >= at) {
                // All of it goes now.
                let also = file.held.take(start, len.into()).min(file.held.open);
                file.held.open -= also;
                self.counts.held_open = self.counts.held_open.saturating_sub(also);
                pieces.push(start);
            }
        }
        for start in pieces {
            self.send_once_more(id, generation, start);
        }
    }

    pub(super) fn handle_entry_done(&mut self, id: FileId, generation: Generation, outcome: Outcome) {
        if outcome == Outcome::Persisted && !haul_mutant::removed("persisted-is-not-published") {
            let text = "the sink says that something is persisted and not published, which this session was not to have";
            return self.finish(SessionEnd::Failed(protocol(text)));
        }
        if id == DirId::ROOT.as_file() {
            self.end_root(outcome);
        } else if self.dirs.remove(&id.as_dir()).is_some() {
            self.end_other((id, None), outcome, other_end, SourceOp::ForgetDir { id: id.as_dir() });
        } else if let Some(link) = self.links.remove(&id) {
            self.joins -= usize::from(link.is_some());
            let ends = if link.is_some() { other_end } else { link_end };
            let joined = link.map(|joins| joins.to);
            self.end_other((id, joined), outcome, ends, SourceOp::Forget { id });
        } else if let Some(file) = self.files.get(&id) {
            // What failed at the sink is over there, even if it is to begin again here.
            let failed = matches!(outcome, Outcome::Failed(_)) && generation < file.generation;
            if generation != file.generation && !failed {
                return;
            }
            let sealed = file.phase == SourcePhase::Sealed && generation == file.generation;
            match outcome {
                Outcome::Failed(failure)
                    if self.config.verify && sealed && failure.kind == FailureKind::Digest =>
                {
                    self.came_back_wrong(id, failure)
                }
                Outcome::Failed(failure) => self.end_file(id, Ended::Failed(failure), (None, Change::NONE)),
                Outcome::Persisted => {}
                Outcome::Done { change, .. } if file.phase == SourcePhase::Cloned => {
                    self.end_file(id, Ended::Copied, (None, change));
                }
                Outcome::Done { .. } if file.phase != SourcePhase::Sealed => {
                    let text = "the sink says that a file is done before all of it was sent and sealed";
                    self.finish(SessionEnd::Failed(protocol(text)));
                }
                Outcome::Done { root, change } if root.is_some_and(|root| file.agrees(root)) => {
                    self.end_file(id, Ended::Copied, (root, change));
                }
                Outcome::Done { .. } => {
                    let text = "the sink's digest of the whole file differs from the source's; \
                                remove the destination file and run again";
                    let failure = Failure { kind: FailureKind::Digest, errno: 0, text: text.into() };
                    self.end_file(id, Ended::Failed(failure), (None, Change::NONE));
                }
            }
        }
    }

    /// The destination root is what it was to be, or could not be made so. Said once, if it was asked for.
    fn end_root(&mut self, outcome: Outcome) {
        let (id, root) = (DirId::ROOT.as_file(), None);
        self.metadata.forget(id);
        if std::mem::take(&mut self.config.root) {
            let (end, change) = match outcome {
                Outcome::Done { change, .. } => (other_end(change), change),
                Outcome::Failed(failure) => (Ended::Failed(failure), Change::NONE),
                Outcome::Persisted => return,
            };
            self.actions.push_back(SourceAction::EntryEnded {
                id,
                end,
                root,
                bytes: 0,
                joined: None,
                change,
            });
        }
    }

    /// Ends a directory or a link; `forget` is what the engine is told.
    fn end_other(
        &mut self,
        (id, joined): (FileId, Option<FileId>),
        outcome: Outcome,
        ends: fn(Change) -> Ended,
        forget: SourceOp,
    ) {
        let (end, change) = match outcome {
            Outcome::Done { change, .. } => (ends(change), change),
            Outcome::Failed(failure) => (Ended::Failed(failure), Change::NONE),
            Outcome::Persisted => return,
        };
        self.metadata.forget(id);
        self.actions.push_back(SourceAction::EntryEnded { id, end, root: None, bytes: 0, joined, change });
        self.actions.push_back(SourceAction::Submit(forget));
    }

    fn end_file(&mut self, id: FileId, end: Ended, (root, change): (Option<[u8; 32]>, Change)) {
        // A sparse root is no hash of the content.
        let root = root.filter(|_| self.files.get(&id).is_some_and(|f| f.digest.map().is_none()));
        let map = self.files.get(&id).and_then(|file| file.digest.map()).filter(|_| end == Ended::Copied);
        let mut holes = map.map_or(0, |map| map.size() - map.data_len());
        let cloned = self.files.get(&id).filter(|f| f.phase == SourcePhase::Cloned && end == Ended::Copied);
        if let Some(file) = cloned {
            holes = file.size();
            self.counts.cloned += 1;
            self.counts.cloned_bytes = self.counts.cloned_bytes.saturating_add(holes);
        }
        self.drop_map(id);
        self.drop_objects(id);
        self.drop_held(id);
        self.metadata.forget(id);
        let Some(file) = self.files.remove(&id) else { return };
        match file.phase {
            SourcePhase::Sealed | SourcePhase::Cloned | SourcePhase::Retry => {}
            SourcePhase::Refreshing => self.refreshing -= 1,
            _ => self.unsealed -= 1,
        }
        if file.queue == Queue::Small {
            self.small_bytes -= file.size();
        }
        self.counts.durable = self.counts.durable.saturating_sub(file.durable);
        self.counts.files_done += 1;
        self.counts.bytes_done = self.counts.bytes_done.saturating_add(file.size());
        self.counts.holes = self.counts.holes.saturating_add(holes);
        match end {
            Ended::Unchanged => self.counts.unchanged += 1,
            Ended::Copied if file.grown_to > file.size() => {
                self.counts.prefixes += 1;
                self.counts.prefix_bytes = self.counts.prefix_bytes.saturating_add(file.size());
            }
            Ended::Copied | Ended::Skipped | Ended::Failed(_) => {}
        }
        let (bytes, joined) = (file.size(), None);
        self.actions.push_back(SourceAction::EntryEnded { id, end, root, bytes, joined, change });
        self.actions.push_back(SourceAction::Submit(SourceOp::Forget { id }));
    }

    /// The file cannot be read: the sink forgets it, the report names it. Not where none can be read any
    /// more, for then the sink keeps what it has of each.
    pub(super) fn fail_file(&mut self, id: FileId, failure: Failure) {
        if self.is_gone() {
            return;
        }
        let Some(file) = self.files.get(&id) else { return };
        let generation = file.generation;
        let failure = match self.config.agreed.in_place {
            // What changed had been begun, and nothing else was touched for it.
            true => Failure { text: failure.text.replace(AS_IT_WAS, PARTLY_NEW).into(), ..failure },
            false => failure,
        };
        let message = Message::Withdraw { id, generation, retry: false, failure: Some(failure.clone()) };
        self.flush_announcements();
        self.actions.push_back(SourceAction::Send(message));
        self.end_file(id, Ended::Failed(failure), (None, Change::NONE));
    }
}

/// What is said of the destination's file when its source changed; and where it was written in place.
const AS_IT_WAS: &str = "the destination is as it was";
const PARTLY_NEW: &str = "the destination's file is partly new, as far as it was written";

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
