//! The place that the destination lies at cannot be reached any more, after all that was tried there, or
//! takes nothing of anything.
//!
//! In: that this is so. Out: the end of the session, as one that failed.
//! No other file can be written then, either, and each would cost as much time as the first: so none is
//! tried. What is under way comes to nothing by itself, and is no fault of its entries.
//! Invariants: such a session never ends as complete; each file that was announced and did not end is named
//! as failed, here and to the source, before the end is told.
//! Left out: who decides that (the store); the same of a source (`source::gone`).

use super::Sink;
use crate::ids::FileId;
use crate::transfer::SessionEnd;
use crate::wire::Failure;

impl Sink {
    /// Nothing can be written any more, and why. Where the end was near anyway, that changes nothing.
    pub(super) fn handle_gone(&mut self, failure: Failure) {
        let needs_more = self.end.is_none() || !self.files.is_empty();
        let ends = self.stop.is_some() || self.stop_at.is_some() || self.finished;
        if needs_more && !ends && !haul_mutant::removed("gone-destinations-end-the-run") {
            self.gone = Some(failure.clone());
            self.begin_stop(SessionEnd::Failed(failure));
        }
    }

    /// Names what did not end, where that is because nothing can be written any more. True: there was some.
    pub(super) fn name_what_is_left(&mut self) -> bool {
        let Some(failure) = self.gone.take() else { return false };
        // They end, and what is promised of them stays promised.
        self.kept_of_gone = self.kept();
        let mut left: Vec<FileId> = self.files.keys().copied().collect();
        // The order of a hash map differs from run to run.
        left.sort_unstable();
        for id in &left {
            self.leave_file(*id, failure.clone());
        }
        !left.is_empty()
    }
}
