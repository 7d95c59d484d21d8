//! The journal's thread: records are kept one after another, beside all other work of the engine.
//!
//! In: `SinkOp::Journal`, `SinkOp::Note` and `SinkOp::RemoveJournal`, in the session's order. Out: their
//! completions, in the same order.
//! Invariant: the journal goes only when every name is on media and the job is still ours.
//! Left out: what records mean, which is `core`'s, and their file ([`crate::sink::journal`]).

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use haul_core::ids::DirId;
use haul_core::transfer::op::{SinkDone, SinkOp};
use haul_core::wire::{Failure, FailureKind};

use super::{Sink, guard};
use crate::owed::Owed;
use crate::sink::journal::Journal;
use crate::sink::{calls, fault, lock};
use crate::{SinkCompletion, SinkJob, Stuck};

/// The journal's thread.
pub(super) struct JournalWriter {
    /// Until the engine ends.
    records: Option<Sender<(SinkJob, Owed<SinkDone>)>>,
    /// Nothing comes; it is closed when the thread has ended.
    over: Receiver<()>,
    /// Of the journal.
    path: String,
    /// When it began what it does.
    since: Arc<Mutex<Option<Instant>>>,
}

impl JournalWriter {
    /// Starts the thread. Without a journal every record of one fails.
    ///
    /// # Errors
    /// The system gives no more threads.
    pub(super) fn start(sink: Arc<Sink>, store: Option<Journal>) -> std::io::Result<JournalWriter> {
        // Unbounded, but the session waits for each record.
        let (records, queue) = unbounded();
        let (alive, over) = unbounded();
        let since = Arc::new(Mutex::new(None));
        let path = store.as_ref().map(Journal::path).unwrap_or_default();
        let begun = since.clone();
        let work = move || {
            keep_journal(&sink, store, &queue, &begun);
            drop(alive);
        };
        std::thread::Builder::new().name("haul-journal".into()).spawn(work)?;
        Ok(JournalWriter { records: Some(records), over, path, since })
    }

    /// A record, or the journal's removal, in its turn. Fails where the thread is gone.
    pub(super) fn submit(&self, sink: &Arc<Sink>, job: SinkJob) {
        let (sink, removes) = (sink.clone(), matches!(job.op, SinkOp::RemoveJournal));
        let ask = if let SinkOp::Note { ask, .. } = job.op { Some(ask) } else { None };
        let owed = Owed::new(FailureKind::Write, move |result: Result<SinkDone, Failure>| {
            let done = result.unwrap_or_else(|failure| match (removes, ask) {
                (true, _) => SinkDone::RemoveJournal { result: Err(failure) },
                (false, None) => SinkDone::Journal { result: Err(failure) },
                (false, Some(_)) => SinkDone::Note { result: Err(failure) },
            });
            if let (Some(ask), SinkDone::Note { result }) = (ask, &done) {
                sink.answer(ask, result.clone());
            }
            (sink.post)(SinkCompletion { done });
        });
        // What cannot be sent is dropped, and answered so.
        if let Some(records) = &self.records {
            let _ = records.send((job, owed));
        }
    }

    /// Nothing more comes. Waits until all is kept, in steps of `tick`; false: it hangs for longer than
    /// `deadline`.
    pub(super) fn end(&mut self, tick: Duration, deadline: Duration) -> bool {
        self.records = None;
        while self.over.recv_timeout(tick) == Err(RecvTimeoutError::Timeout) {
            if self.stuck(deadline).is_some() {
                return false;
            }
        }
        true
    }

    /// What it has been at for longer than `deadline`.
    pub(super) fn stuck(&self, deadline: Duration) -> Option<Stuck> {
        let since = lock(&self.since).map(|since| since.elapsed()).filter(|since| *since >= deadline)?;
        Some(Stuck { what: "sync", name: self.path.clone(), offset: 0, since })
    }
}

/// The journal's thread.
fn keep_journal(
    sink: &Sink,
    mut store: Option<Journal>,
    records: &Receiver<(SinkJob, Owed<SinkDone>)>,
    begun: &Mutex<Option<Instant>>,
) {
    for (SinkJob { op, .. }, owed) in records {
        *lock(begun) = Some(Instant::now());
        let done = match op {
            SinkOp::Journal { bytes, durable } => {
                SinkDone::Journal { result: append(&mut store, &bytes, durable) }
            }
            SinkOp::Note { bytes, durable, .. } => {
                SinkDone::Note { result: append(&mut store, &bytes, durable) }
            }
            _ => SinkDone::RemoveJournal {
                result: guard(FailureKind::Write, || {
                    sink.check_over()?;
                    (sink.still_owner)()?;
                    if let Some(leftovers) = &sink.leftovers {
                        // It may take long: it does not hang as long as it goes on, and nobody who ends waits
                        // for it.
                        let goes_on = || {
                            *lock(begun) = Some(Instant::now());
                            sink.check_ends()
                        };
                        leftovers.sweep(&sink.tree, &goes_on, &*sink.still_owner)?;
                    }
                    // An epoch syncs the parents of files and links; of an empty directory at the top nothing
                    // but this puts the name on media. The journal's own sync may be elsewhere.
                    let root = sink.tree.root();
                    (if haul_mutant::removed("the-destination-is-synced") {
                        Ok(())
                    } else {
                        calls::sync_dir(root)
                    })
                    .map_err(|errno| {
                        let path = sink.tree.path_of_dir(DirId::ROOT);
                        fault::os_at(FailureKind::Sync, "sync", &path, errno, root)
                    })?;
                    if let Some(published) = &sink.published
                        && !haul_mutant::removed("published-names-are-confirmed")
                    {
                        published.confirm(&sink.tree)?;
                    }
                    match &mut store {
                        // Only the journal knows the tag of what could not be removed; the next run and
                        // `haul clean` will.
                        Some(_) if sink.left().is_some() => Ok(()),
                        Some(store) => store.remove(),
                        None => Ok(()),
                    }
                }),
            },
        };
        *lock(begun) = None;
        owed.settle(Ok(done));
    }
}

fn append(store: &mut Option<Journal>, bytes: &[u8], durable: bool) -> Result<(), Failure> {
    guard(FailureKind::Write, || match store {
        Some(store) => store.append(bytes, durable),
        None => Err(no_journal()),
    })
}

fn no_journal() -> Failure {
    fault::failure(FailureKind::Write, 0, "this session keeps no journal")
}
