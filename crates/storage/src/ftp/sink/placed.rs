//! What is known of files that are written in place: where their bytes go, and what came of each.
//!
//! In: what the user wants; files as they are begun and end. Out: the same, for whoever goes on with it.
//! Invariant: a file at the server that has a name of its own there is one entry's.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use haul_core::ids::FileId;
use haul_core::wire::Failure;
use haul_ftp::{Facts, Way};

/// See the module.
pub(super) struct InPlace {
    /// Where the part that comes begins in the server's file; `None`: files come as a whole.
    pub(super) part: Option<u64>,
    /// The user said so himself, and `REST` may do.
    pub(super) asked_for: bool,
    inner: Mutex<Inner>,
}

#[derive(Default)]
pub(super) struct Inner {
    pub(super) files: HashMap<FileId, State>,
    /// How long each was before this run wrote into it.
    pub(super) stood: HashMap<FileId, u64>,
    /// Whose each file is, where the server has a name of its own for it.
    owners: HashMap<Box<[u8]>, FileId>,
    /// How parts go to their places, once that was tried.
    pub(super) way: Option<Way>,
}

#[derive(Clone)]
pub(super) enum State {
    /// The server said that it has all of it; the sum of what was sent.
    Stored(Option<Vec<u8>>),
    /// Why it came to nothing, and whether it is taken once more.
    Failed(Failure, bool),
}

impl InPlace {
    pub(super) fn new(part: Option<u64>, asked_for: bool) -> InPlace {
        InPlace { part, asked_for, inner: Mutex::default() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the bytes of an entry begin in its file.
    pub(super) fn base(&self) -> u64 {
        self.part.unwrap_or(0)
    }

    pub(super) fn forget(&self, id: FileId) {
        self.lock().files.remove(&id);
    }

    pub(super) fn failed(&self, id: FileId) -> Option<(Failure, bool)> {
        match self.lock().files.get(&id) {
            Some(State::Failed(failure, again)) => Some((failure.clone(), *again)),
            _ => None,
        }
    }

    pub(super) fn set(&self, id: FileId, state: State) {
        self.lock().files.insert(id, state);
    }

    /// What is there is another entry's. One that was let in before stays in: some servers replace what they
    /// are told to write into, and call the next file as that one was.
    pub(super) fn is_of_another(&self, id: FileId, facts: &Facts) -> bool {
        let mut inner = self.lock();
        if inner.stood.contains_key(&id) {
            return false;
        }
        let Some(unique) = facts.unique.as_deref() else { return false };
        *inner.owners.entry(unique.into()).or_insert(id) != id
    }

    /// For people.
    pub(super) fn words(&self) -> String {
        match (self.part, self.lock().way) {
            (None, _) => "STOR into what stands there, from its first byte on".into(),
            (Some(_), Some(way)) => {
                format!("by {}, which was tried on a file of its own first", way.name())
            }
            (Some(_), None) => "nothing was written into a file so far".into(),
        }
    }
}
