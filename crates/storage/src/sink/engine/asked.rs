//! Who waits until the journal knows of a directory that is about to be opened to its owner.
//!
//! In: directories that are closed to us. Out: an answer, when the session has written down what mode each
//! had, or will not.
//! Left out: which directories these are, and what becomes of them (`widened`).

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use haul_base::errno;
use haul_core::ids::DirId;
use haul_core::journal::Widened;
use haul_core::transfer::op::SinkDone;
use haul_core::wire::{Failure, FailureKind};
use rustix::io::{Errno, Result as OsResult};

use super::{END_TICK, Sink};
use crate::SinkCompletion;
use crate::sink::tree::Note;
use crate::sink::{fault, lock};

/// Who waits until the journal knows of a directory.
#[derive(Default)]
pub(super) struct Asked {
    next: u64,
    waiting: HashMap<u64, Sender<Result<(), Failure>>>,
}

impl Sink {
    /// Has directories written down before they are opened.
    pub(super) fn note_widened(self: &Arc<Self>) {
        let sink: Weak<Sink> = Arc::downgrade(self);
        let note: Note = Box::new(move |id, dir| match sink.upgrade() {
            Some(sink) => sink.ask_to_widen(id, dir),
            None => Err(Errno::CANCELED),
        });
        self.tree.set_note(note);
    }

    /// Waits until the journal knows of the directory. Whoever keeps the journal waits for nobody here.
    fn ask_to_widen(&self, id: DirId, dir: Widened) -> OsResult<()> {
        let (settled, hears) = bounded(1);
        let ask = {
            let mut asked = lock(&self.asked);
            asked.next += 1;
            let ask = asked.next;
            asked.waiting.insert(ask, settled);
            ask
        };
        (self.post)(SinkCompletion { done: SinkDone::Widen { ask, id, dir } });
        let answer = loop {
            match hears.recv_timeout(END_TICK) {
                Ok(answer) => break answer,
                Err(RecvTimeoutError::Timeout) if !self.has_ended() => {}
                Err(_) => {
                    lock(&self.asked).waiting.remove(&ask);
                    break Err(fault::failure(
                        FailureKind::Create,
                        Errno::CANCELED.raw_os_error(),
                        "it is over",
                    ));
                }
            }
        };
        answer.map_err(|failure| errno::of(failure.errno).unwrap_or(Errno::ACCESS))
    }

    /// The journal knows of the directory, or will not.
    pub(super) fn answer(&self, ask: u64, answer: Result<(), Failure>) {
        if let Some(waits) = lock(&self.asked).waiting.remove(&ask) {
            let _ = waits.send(answer);
        }
    }
}
