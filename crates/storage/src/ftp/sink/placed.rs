//! What is known of files that are written in place: where their bytes go, and what came of each.
//!
//! In: what the user wants; files as they are begun and end. Out: the same, for whoever goes on with it.
//! Invariants: a file at the server that has a name of its own there (`Unique`) is one entry's, whether this
//! run wrote it, made it, or found it unchanged; of files that ended 16 bytes stay for each, so that it is
//! known whose what stands there is.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use haul_core::ids::FileId;
use haul_core::wire::Failure;
use haul_ftp::{Facts, Way};

/// Files that ended last, by their paths, for words.
const NAMED_MAX: usize = 256;

/// What a server calls a file, in few bytes.
type Called = [u8; 16];

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
    /// What stood at the names of files that did not end yet.
    pub(super) stood: HashMap<FileId, Stood>,
    /// Whose each file is that ended or was found unchanged, and whether it was written.
    owners: HashMap<Called, (FileId, bool)>,
    /// Those of them that ended last.
    named: VecDeque<(FileId, Vec<u8>)>,
    /// Files that were written which the server has no name of its own for.
    uncalled: u64,
    /// The same, of those that were found unchanged.
    uncalled_found: u64,
    /// How parts go to their places, once that was tried.
    pub(super) way: Option<Way>,
}

/// What was there before this run wrote into it.
#[derive(Clone, Copy)]
pub(super) struct Stood {
    /// How long it was.
    pub(super) len: u64,
    called: Option<Called>,
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

    pub(super) fn failed(&self, id: FileId) -> Option<(Failure, bool)> {
        match self.lock().files.get(&id) {
            Some(State::Failed(failure, again)) => Some((failure.clone(), *again)),
            _ => None,
        }
    }

    pub(super) fn set(&self, id: FileId, state: State) {
        self.lock().files.insert(id, state);
    }

    /// A file is begun, at whose name this stands: true if that is another entry's. One that was let in
    /// before stays in: some servers replace what they are told to write into, and call the next file as that
    /// one was.
    pub(super) fn is_of_another(&self, id: FileId, stands: Option<&Facts>, len: u64) -> bool {
        let mut inner = self.lock();
        if inner.stood.contains_key(&id) {
            return false;
        }
        let called = stands.and_then(called);
        if called.is_some_and(|called| inner.is_anothers(id, called)) {
            return true;
        }
        inner.stood.insert(id, Stood { len, called });
        false
    }

    /// A file looks unchanged: true if what stands there was, or is, written for another entry, or found by
    /// one.
    pub(super) fn is_written_by_another(&self, id: FileId, facts: &Facts) -> bool {
        let mut inner = self.lock();
        let Some(called) = called(facts) else {
            inner.uncalled_found += 1;
            return false;
        };
        let begun = inner.stood.iter().any(|(other, stood)| *other != id && stood.called == Some(called));
        let (owner, written) = *inner.owners.entry(called).or_insert((id, false));
        let counts = written || !haul_mutant::removed("ftp-found-files-are-one-entrys");
        begun || owner != id && counts
    }

    /// A file was written, and this stands there now: whose else that is, and its path where that is known.
    /// One that is not held against what the server has yet is looked at when its turn comes: a server that
    /// replaces files may call another one as it called that before.
    pub(super) fn is_shared(
        &self,
        id: FileId,
        path: &[u8],
        facts: &Facts,
    ) -> Option<(FileId, Option<Vec<u8>>)> {
        let mut inner = self.lock();
        let Some(called) = called(facts) else {
            inner.uncalled += 1;
            return None;
        };
        if let Some((other, _)) = inner.owners.get(&called).copied()
            && other != id
            && !inner.stood.contains_key(&other)
            && !haul_mutant::removed("ftp-in-place-one-entry-per-file")
        {
            let named = inner.named.iter().find(|(named, _)| *named == other);
            return Some((other, named.map(|(_, path)| path.clone())));
        }
        inner.disown(id);
        inner.owners.insert(called, (id, true));
        if let Some(stood) = inner.stood.get_mut(&id) {
            stood.called = Some(called);
        }
        if inner.named.len() >= NAMED_MAX {
            inner.named.pop_front();
        }
        inner.named.push_back((id, path.to_vec()));
        None
    }

    /// What was written of a file is wrong, and may be written again, if it is no other's then.
    pub(super) fn begins_anew(&self, id: FileId) {
        let mut inner = self.lock();
        inner.disown(id);
        if self.part.is_none() {
            inner.stood.remove(&id);
        }
    }

    /// Nothing more becomes of a file in this run.
    pub(super) fn end(&self, id: FileId) {
        let mut inner = self.lock();
        inner.files.remove(&id);
        inner.stood.remove(&id);
    }

    /// Files that were written or found of which nobody knows whether they are one with another one of the
    /// copy.
    pub(super) fn uncalled(&self) -> u64 {
        let inner = self.lock();
        // One alone is no other's.
        Some(inner.uncalled + inner.uncalled_found).filter(|all| *all > 1).unwrap_or(0)
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

impl Inner {
    /// What it was called before is nobody's.
    fn disown(&mut self, id: FileId) {
        let Some(called) = self.stood.get(&id).and_then(|stood| stood.called) else { return };
        if self.owners.get(&called).is_some_and(|(owner, _)| *owner == id) {
            self.owners.remove(&called);
        }
    }

    fn is_anothers(&self, id: FileId, called: Called) -> bool {
        !haul_mutant::removed("ftp-in-place-one-entry-per-file")
            && (self.owners.get(&called).is_some_and(|(owner, _)| *owner != id)
                || self.stood.iter().any(|(other, stood)| *other != id && stood.called == Some(called)))
    }
}

fn called(facts: &Facts) -> Option<Called> {
    let hash = blake3::hash(facts.unique.as_deref()?);
    hash.as_bytes()[..16].try_into().ok()
}
