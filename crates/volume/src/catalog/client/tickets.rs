//! The tickets of a client of a catalog, for whoever speaks to servers for it.
//!
//! In: files. Out: tickets that are not over, or why there are none. It holds up nobody but who asks for
//! others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use haul_core::volume::FileNo;
use haul_core::volume::catalog::{Answer, EntryNo, Failure, Request};
use haul_core::volume::ticket::Sealed;

use super::{Shared, nonsense};

/// See the module.
pub struct Tickets {
    pub(super) shared: Arc<Shared>,
    pub(super) patience: Duration,
}

impl Tickets {
    /// Whether servers want any.
    pub(crate) fn needed(&self) -> bool {
        self.shared.lock().wallet.needed()
    }

    /// One that is not over, and whether another should be had soon.
    pub(crate) fn get(&self, file: FileNo) -> Option<(Sealed, bool)> {
        self.shared.lock().wallet.get(file).map(|(sealed, is_last)| (sealed.clone(), is_last))
    }

    /// Why the catalog gives none, while it does not.
    pub(crate) fn why(&self) -> String {
        let state = self.shared.lock();
        match state.mouth {
            Some(_) => "it is connected and silent".into(),
            None => state.why.clone(),
        }
    }

    /// A server did not take this one; false: it was not the newest.
    pub(crate) fn forget(&self, file: FileNo, name: u64) -> bool {
        self.shared.lock().wallet.forget(file, name)
    }

    /// Asks for tickets for these files, at most [`PAGE_MAX`](haul_core::volume::catalog::PAGE_MAX); for
    /// which of them there are some now.
    ///
    /// # Errors
    /// The catalog did not answer.
    pub(crate) fn ask(&self, files: &[FileNo]) -> Result<Vec<FileNo>, Failure> {
        let limit = (Instant::now(), self.patience);
        let mut state = self.shared.lock();
        // Whoever waits for what it is for waits elsewhere.
        let request = Request::Tickets(files.iter().map(|file| EntryNo(file.0)).collect());
        let number = state.ask_beside(request);
        let answer = loop {
            let Some(waiting) = state.waiting.get_mut(&number) else { return Err(state.late()) };
            if let Some(answer) = waiting.answer.take() {
                break answer;
            }
            // Who used this client is gone.
            if state.over {
                drop(state);
                return Err(self.give_up(number));
            }
            state = match self.shared.wait_beside(state, limit) {
                Ok(state) => state,
                Err(_) => return Err(self.give_up(number)),
            };
        };
        state.waiting.remove(&number);
        match answer {
            Answer::Files(files) => Ok(files),
            Answer::Failed(failure) => Err(failure),
            other => Err(nonsense(&other)),
        }
    }

    fn give_up(&self, number: u64) -> Failure {
        let mut state = self.shared.lock();
        state.waiting.remove(&number);
        state.late()
    }
}
