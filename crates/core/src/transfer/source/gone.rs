//! The place that the source lies at cannot be reached any more, after all that was tried there.
//!
//! In: that this is so. Out: the end of the session, as one that failed.
//! What came is worth keeping then, as when this end is killed, and no other file can be read, either. So
//! nothing is withdrawn: the sink hears why there is an end, closes its epoch and keeps its journal, as it
//! does for a source that fails as a whole. Its answer is waited for, behind what it says is durable.
//! Invariants: such a session never ends as complete, and each file that was announced and did not end is
//! named as failed.
//! Left out: who decides that (the store); files that fail alone (`answer`).

use super::{Source, SourceAction};
use crate::change::Change;
use crate::ids::FileId;
use crate::transfer::{Ended, SessionEnd};
use crate::wire::{Failure, Message};

impl Source {
    /// Nothing can be read any more, and why. Where a stop was asked for before, or all was read, that
    /// changes nothing. (After the end was told the sink may still ask for something again.)
    pub fn handle_gone(&mut self, failure: Failure) {
        let needs_more = !(self.end_sent && self.all_sealed());
        let goes_on = !self.stopping && !self.finished;
        if goes_on && needs_more && !haul_mutant::removed("what-came-from-gone-servers-stays") {
            self.gone = Some(failure.clone());
            self.stopping = true;
            self.drop_frames();
            self.flush_announcements();
            self.actions.push_back(SourceAction::Send(Message::Abort(failure)));
        }
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone.is_some()
    }

    /// Names what did not end, where that is because nothing can be read any more. What comes to nothing
    /// behind that is of the same, and takes nothing back of what was kept.
    pub(super) fn name_what_is_left(&mut self, end: &SessionEnd) {
        let (Some(failure), SessionEnd::Failed(_)) = (self.gone.clone(), end) else { return };
        let mut left: Vec<FileId> = self.files.keys().copied().collect();
        // The order of a hash map differs from run to run.
        left.sort_unstable();
        for id in left {
            let (end, root, change) = (Ended::Failed(failure.clone()), None, Change::NONE);
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
}
