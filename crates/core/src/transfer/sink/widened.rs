//! Directories of the destination that were closed to us and are open while the copy runs.
//!
//! In: what the engine is about to open; directories that were finished. Out: records of the journal.
//! Invariants: the engine opens none before the journal says so, and what it says is what a later run may
//! take back; what is open at a time is bounded.
//! Left out: taking it back, which whoever reads the journal does.

use super::{Sink, SinkAction};
use crate::ids::DirId;
use crate::job::facts::Fact;
use crate::journal::{Record, WIDENED_LEN_MAX, WIDENED_PATH_LEN_MAX, Widened};
use crate::transfer::SessionEnd;
use crate::transfer::op::SinkOp;
use crate::wire::{Failure, FailureKind};

/// Permission denied.
const EACCES: i32 = 13;

/// A directory that is open: its slot in the journal, and what it counts of [`WIDENED_LEN_MAX`].
pub(super) struct Open {
    slot: u32,
    cost: usize,
}

impl Sink {
    /// The engine is about to open a directory.
    pub(super) fn handle_widen(&mut self, ask: u64, id: DirId, dir: Widened) {
        let cost = dir.cost();
        let fits = dir.path.len() <= WIDENED_PATH_LEN_MAX && self.widened_len + cost <= WIDENED_LEN_MAX;
        let slot = self.epochs.take_slot();
        let bytes = match fits {
            true => self.epochs.note(&Record::Widened { slot, dir }),
            false => {
                let text = "it is closed, and too many directories are open that were";
                Err(Failure { kind: FailureKind::Create, errno: EACCES, text: text.into() })
            }
        };
        match bytes {
            Ok(bytes) => {
                self.widened_len += cost;
                if let Some(before) = self.widened.insert(id, Open { slot, cost }) {
                    self.widened_len -= before.cost;
                }
                let durable = self.config.policy.durable;
                self.submit(SinkOp::Note { ask, bytes, durable });
            }
            Err(failure) => {
                self.actions.push_back(SinkAction::Submit(SinkOp::RefuseNote { ask, failure }));
            }
        }
    }

    /// The journal has the record, or will never have another one.
    pub(super) fn handle_noted(&mut self, result: Result<(), Failure>) {
        self.other_ops = self.other_ops.saturating_sub(1);
        if let Err(failure) = result {
            self.epochs.break_off(&failure);
            if !self.is_fatal(&failure) {
                self.begin_stop(SessionEnd::Failed(failure));
            }
        }
    }

    /// The directory was finished, and has its mode: nothing of it is to be taken back.
    pub(super) fn settle_dir(&mut self, id: DirId) {
        if let Some(Open { slot, cost }) = self.widened.remove(&id) {
            self.widened_len -= cost;
            self.epochs.say(Fact::Noted(Record::Narrowed { slot }));
        }
    }
}
