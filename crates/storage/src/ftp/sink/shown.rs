//! What listings of a destination say of its names; and what looks alike there, of which nothing else is
//! known.
//!
//! In: what was told under a path, whose it is. Out: who had the same size and time first; words for people
//! where nothing tells links.
//! Invariant: what has a name of its own at the server (`Unique`) is not in here.

use std::collections::hash_map::Entry as Slot;
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use haul_core::entry::Name;
use haul_core::ids::{DirId, FileId};
use haul_core::transfer::op::SinkFile;
use haul_ftp::{Asked, Facts};

/// What a listing says of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shows {
    Link,
    /// No link; how many names it has, if that is told.
    Itself(Option<u64>),
    /// It may be a link.
    Untold,
}

/// The names in a directory.
pub(super) type Shown = HashMap<Vec<u8>, Shows>;

/// Size and time of what the server has no name of its own for, and what was found so.
#[derive(Default)]
pub(super) struct AllAlike {
    all: Mutex<HashMap<(u64, i64), Alike>>,
    /// Directories that stood there, and files that were found unchanged, which may be links.
    dirs: Mutex<HashSet<DirId>>,
    files: Mutex<HashSet<FileId>>,
}

/// The entry that had this size and time first.
struct Alike {
    id: FileId,
    /// It was taken for unchanged, and not looked at in its directory yet.
    unlooked: Option<(DirId, Name)>,
}

impl AllAlike {
    /// An entry has got its name, and looks so.
    pub(super) fn note(&self, id: FileId, asked: &Asked) {
        let Asked::Is(facts) = asked else { return };
        let Some(key) = key_of(facts) else { return };
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(key).or_insert(Alike { id, unlooked: None });
    }

    /// An entry found a file that looks so: whether another one did, or wrote one; and which of the two are
    /// to be looked at.
    pub(super) fn find(
        &self,
        file: &SinkFile,
        key: (u64, i64),
        unchanged: bool,
    ) -> Option<Option<(DirId, Name)>> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        match all.entry(key) {
            Slot::Occupied(mut first) if first.get().id != file.id => Some(first.get_mut().unlooked.take()),
            Slot::Occupied(_) => None,
            Slot::Vacant(slot) => {
                let unlooked = unchanged.then(|| (file.parent, file.name.clone()));
                slot.insert(Alike { id: file.id, unlooked });
                None
            }
        }
    }

    /// Nothing tells whether a directory that stood there is a link.
    pub(super) fn leave_dir(&self, dir: DirId) {
        self.dirs.lock().unwrap_or_else(PoisonError::into_inner).insert(dir);
    }

    /// The same of a file that was found unchanged.
    pub(super) fn leave_file(&self, id: FileId) {
        self.files.lock().unwrap_or_else(PoisonError::into_inner).insert(id);
    }

    /// What could not be told, for people.
    pub(super) fn words(&self) -> Option<String> {
        let count = |count: usize| Some(count).filter(|count| *count > 0);
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner).len();
        let dirs = self.dirs.lock().unwrap_or_else(PoisonError::into_inner).len();
        let dirs = count(dirs).map(|dirs| {
            format!(
                "whether directories that stood there ({dirs}) are links to others of this copy, for the server tells of none: files of one \
                 name in two that are one have the bytes of the last one"
            )
        });
        let files = count(files).map(|files| {
            format!(
                "whether files that look unchanged and alike ({files}) are links to one, for the server tells of none: one at most has its \
                 own bytes then"
            )
        });
        let all: Vec<String> = dirs.into_iter().chain(files).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

/// What alone is told of a file that has no name of its own.
pub(super) fn key_of(facts: &Facts) -> Option<(u64, i64)> {
    let (size, modify) = (facts.size?, facts.modify?);
    facts.unique.is_none().then_some((size, modify.secs))
}
