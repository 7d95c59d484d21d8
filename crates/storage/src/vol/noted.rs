//! What the catalog is told of files that a copy published: where they came from.
//!
//! In: files and links that got their names. Out: notes, many at a time, when there are enough of them and at
//! the end of a run. Invariant: a home is noted only of an entry in the state that it got by being published:
//! what was written, renamed or given a time since is another. What a run that is killed did not tell has no
//! home, and a drain brings it. That a file is whole is told with its time, before it has its name
//! (`publish`), so that this is known of all that has one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use haul_core::entry::Name;
use haul_core::volume::ContentVersion;
use haul_core::volume::catalog::{Brought, EntryNo, Noting, PAGE_MAX};

use super::Volume;
use super::homes::Homes;

/// So many are told at a time.
const TOLD_AT: usize = PAGE_MAX / 2;
/// A file that is published got a time and a name, a link a name.
pub(super) const FILE: u64 = 2;
pub(super) const LINK: u64 = 1;

/// What is to be told.
#[derive(Debug, Default)]
pub(super) struct Noted {
    /// Where what is copied has its home.
    homes: Homes,
    notes: Mutex<Vec<(Arc<str>, Noting)>>,
}

impl Noted {
    pub(super) fn new(homes: Homes) -> Noted {
        Noted { homes, notes: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Arc<str>, Noting)>> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An entry was published, of that version if it is a file; `first`: the first name on its way below the
    /// destination.
    pub(super) fn add(
        &self,
        volume: &Volume,
        first: &Name,
        (id, state): (EntryNo, u64),
        version: ContentVersion,
    ) {
        let Some(place) = self.homes.of(first) else { return };
        let full = {
            let mut notes = self.lock();
            notes.push((place, Noting { id, state, version, whole: None, home: Some(Brought::In) }));
            (notes.len() >= TOLD_AT).then(|| std::mem::take(&mut *notes))
        };
        self.tell(volume, full.unwrap_or_default());
    }

    /// Tells what was not told yet.
    pub(super) fn tell_all(&self, volume: &Volume) {
        let notes = std::mem::take(&mut *self.lock());
        self.tell(volume, notes);
    }

    fn tell(&self, volume: &Volume, notes: Vec<(Arc<str>, Noting)>) {
        let mut places: BTreeMap<Arc<str>, Vec<Noting>> = BTreeMap::new();
        for (place, note) in notes {
            places.entry(place).or_default().push(note);
        }
        for (place, notes) in places {
            for page in notes.chunks(PAGE_MAX) {
                if volume.is_gone() {
                    return;
                }
                // What is not noted is not known, as if it had been written by somebody else.
                let _ = volume.catalog.note(&place, page.to_vec());
            }
        }
    }
}
