//! The destination root, where it becomes what the directory is whose contents come into it.
//!
//! In: that all in it is over; what the engine made of it. Out: the operation that sets its metadata; its
//! end, here and to the source.
//! Invariants: it is finished once, behind all that lies in it, and before the journal goes; its attributes
//! and lists are those that came, all of them.
//! Left out: which directory that is ([`SourceRoot::of_destination`](crate::wire::SourceRoot)); a root that
//! was made and of which nobody asked for more than its mode, which is the store's.

use super::{Sink, SinkAction};
use crate::change::Change;
use crate::ids::{DirId, Generation};
use crate::transfer::op::SinkOp;
use crate::transfer::{Ended, other_end};
use crate::wire::{DoneItem, Failure, Outcome};

impl Sink {
    /// All else is over. True: the root is being finished.
    pub(super) fn finish_root(&mut self) -> bool {
        let Some(meta) = self.root.take().filter(|_| !haul_mutant::removed("roots-are-finished")) else {
            return false;
        };
        let durable = self.config.policy.durable;
        self.submit(SinkOp::FinishDirs { durable, dirs: vec![(DirId::ROOT, meta)] });
        true
    }

    pub(super) fn end_root(&mut self, result: Result<Change, Failure>) {
        let id = DirId::ROOT.as_file();
        let unkept = self.take_unkept(id);
        self.forget_metadata(id);
        let (outcome, end, change) = match result.and_then(|change| unkept.map_or(Ok(change), Err)) {
            Ok(change) => (Outcome::Done { root: None, change }, other_end(change), change),
            Err(failure) => (Outcome::Failed(failure.clone()), Ended::Failed(failure), Change::NONE),
        };
        self.done.push(DoneItem { id, generation: Generation(0), outcome });
        self.actions.push_back(SinkAction::RootEnded { end, change });
    }
}
