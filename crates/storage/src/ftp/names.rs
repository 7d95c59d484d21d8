//! What is known of the entries that were walked.
//!
//! In: entries as the walk finds them. Out: their paths at the server and at the destination, what the server
//! told of them, on which session they are read.
//! Invariants: an entry is known from before it is announced until the session forgets it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use haul_core::entry::{Fingerprint, Name, Version};
use haul_core::ids::{DirId, FileId, TargetId};
use haul_core::layout::TargetName;
use haul_core::transfer::source::Lies;
use haul_ftp::Facts;

use super::time_of;
use crate::store::{SourceNames, Stamp};
use crate::targets::Targets;

/// What is younger than this may be changed again within the second that its time tells. As long as a day,
/// and a little more, for the clock of the server is not known here, nor its zone where it tells local time.
pub(super) const YOUNG: Duration = Duration::from_secs(26 * 3600);
/// How long a second takes, and what a clock may be out by within it.
pub(super) const SETTLES: Duration = Duration::from_millis(1100);

/// Where an entry lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Above {
    /// Directly in one of the paths that the walk began with.
    Base(usize),
    Dir(DirId),
}

/// An entry.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) above: Above,
    pub(super) name: Name,
    /// As it was announced last.
    pub(super) facts: Facts,
    /// It may not be read before.
    pub(super) not_before: Option<Instant>,
}

#[derive(Default)]
struct Inner {
    bases: Vec<Vec<u8>>,
    entries: HashMap<FileId, Entry>,
}

/// The entries of a walk.
pub(super) struct Names {
    inner: Mutex<Inner>,
    targets: Targets,
    /// Sessions that read, one target each.
    sessions: Vec<TargetId>,
    /// No two runs have it.
    nonce: [u8; 16],
}

impl Names {
    pub(super) fn new(sessions: usize, nonce: [u8; 16]) -> Names {
        let targets = Targets::new();
        let name = |n: usize| targets.id(&TargetName::new(&format!("session {}", n + 1)));
        let sessions = (0..sessions).map(name).collect();
        Names { inner: Mutex::default(), targets, sessions, nonce }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A path that the walk begins with.
    pub(super) fn add_base(&self, path: Vec<u8>) -> usize {
        let mut inner = self.lock();
        inner.bases.push(path);
        inner.bases.len() - 1
    }

    pub(super) fn add(&self, id: FileId, entry: Entry) {
        self.lock().entries.insert(id, entry);
    }

    pub(super) fn forget(&self, id: FileId) {
        self.lock().entries.remove(&id);
    }

    /// The path at the server, and what was told of it.
    pub(super) fn look(&self, id: FileId) -> Option<(Vec<u8>, Facts)> {
        let inner = self.lock();
        let entry = inner.entries.get(&id)?;
        Some((inner.path(entry.above, Some(&entry.name), true), entry.facts.clone()))
    }

    /// It was looked at again, and later reads hold against this.
    pub(super) fn renew(&self, id: FileId, facts: &Facts) {
        if let Some(entry) = self.lock().entries.get_mut(&id) {
            entry.facts = facts.clone();
        }
    }

    /// The path at the server of something in a directory, or of that itself.
    pub(super) fn server_path(&self, above: Above, name: Option<&Name>) -> Vec<u8> {
        self.lock().path(above, name, true)
    }

    /// The path at the destination.
    pub(super) fn path(&self, above: Above, name: Option<&Name>) -> Vec<u8> {
        self.lock().path(above, name, false)
    }

    /// What a file is known by. The version is another in each run, for nothing that a server tells proves
    /// that a file is what it was: what an earlier run left of it is asked about, and not believed.
    pub(super) fn fingerprint(&self, facts: &Facts) -> Fingerprint {
        let version = Version::new(&self.nonce).unwrap_or(Version::NONE);
        Fingerprint { size: facts.size.unwrap_or(0), mtime: time_of(facts), version }
    }

    /// The session that a file is read on.
    pub(super) fn session_of(&self, id: FileId) -> TargetId {
        self.sessions[(id.0 % self.sessions.len() as u64) as usize]
    }
}

impl Inner {
    fn path(&self, above: Above, name: Option<&Name>, at_server: bool) -> Vec<u8> {
        let mut names: Vec<&[u8]> = name.map(Name::as_bytes).into_iter().collect();
        let mut at = above;
        let base = loop {
            match at {
                Above::Base(base) => break self.bases.get(base).map_or(&b""[..], Vec::as_slice),
                Above::Dir(id) => match self.entries.get(&id.as_file()) {
                    Some(entry) => {
                        names.push(entry.name.as_bytes());
                        at = entry.above;
                    }
                    // It is forgotten only after all in it.
                    None => break b"",
                },
            }
        };
        names.reverse();
        let below = names.join(&b'/');
        match (at_server, below.is_empty()) {
            (false, _) => below,
            (true, true) => base.to_vec(),
            (true, false) => [base.strip_suffix(b"/").unwrap_or(base), b"/", &below].concat(),
        }
    }
}

/// Nothing that the server tells of a file differs.
pub(super) fn same_facts(one: &Facts, other: &Facts) -> bool {
    let of = |facts: &Facts| (facts.kind, facts.size, facts.modify, facts.unique.clone());
    of(one) == of(other)
}

impl SourceNames for Names {
    fn path_of(&self, id: FileId) -> Vec<u8> {
        let inner = self.lock();
        inner.entries.get(&id).map_or_else(Vec::new, |e| inner.path(e.above, Some(&e.name), false))
    }
    fn origin_of(&self, _: FileId) -> Option<(Vec<u8>, Stamp)> {
        None
    }
    fn lies(&self, id: FileId) -> Lies {
        Lies::At(self.session_of(id))
    }
    fn not_before(&self, id: FileId) -> Option<Instant> {
        self.lock().entries.get(&id).and_then(|entry| entry.not_before)
    }
    fn targets(&self) -> &Targets {
        &self.targets
    }
}

/// The same for who holds it in an `Arc`.
pub(super) type Shared = Arc<Names>;
