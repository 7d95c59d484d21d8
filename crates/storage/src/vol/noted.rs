//! What the catalog is told of files that a copy published: that they are whole, and where they came from.
//!
//! In: files and links that got their names. Out: notes, many at a time, when there are enough of them and at
//! the end of a run. Invariant: a file is noted only in the state that it got by being published: what was
//! written, renamed or given a time since is another. What a run that is killed did not tell is not known,
//! and nothing else follows from that.

use std::sync::{Mutex, MutexGuard, PoisonError};

use haul_core::volume::ContentVersion;
use haul_core::volume::catalog::{Brought, EntryNo, Noting, PAGE_MAX, PLACE_LEN_MAX};

use super::Volume;

/// So many are told at a time.
const TOLD_AT: usize = PAGE_MAX / 2;
/// A file that is published got a time and a name, a link a name.
pub(super) const FILE: u64 = 2;
pub(super) const LINK: u64 = 1;

/// What is to be told.
#[derive(Debug, Default)]
pub(super) struct Noted {
    /// Where all that is copied has its home; `None`: nowhere that is known.
    home: Option<String>,
    notes: Mutex<Vec<Noting>>,
}

impl Noted {
    pub(super) fn new(home: Option<String>) -> Noted {
        let cut = |mut home: String| {
            while home.len() > PLACE_LEN_MAX {
                home.pop();
            }
            home
        };
        Noted { home: home.map(cut), notes: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Noting>> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An entry was published, of that version and with so many bytes, if it is a file.
    pub(super) fn add(
        &self,
        volume: &Volume,
        (id, state): (EntryNo, u64),
        version: ContentVersion,
        whole: Option<u64>,
    ) {
        let home = self.home.as_ref().map(|_| Brought::In);
        if home.is_none() && whole.is_none() {
            return;
        }
        let full = {
            let mut notes = self.lock();
            notes.push(Noting { id, state, version, whole, home });
            (notes.len() >= TOLD_AT).then(|| std::mem::take(&mut *notes))
        };
        self.tell(volume, full.unwrap_or_default());
    }

    /// Tells what was not told yet.
    pub(super) fn tell_all(&self, volume: &Volume) {
        let notes = std::mem::take(&mut *self.lock());
        self.tell(volume, notes);
    }

    fn tell(&self, volume: &Volume, notes: Vec<Noting>) {
        let mut notes = &notes[..];
        while !notes.is_empty() && !volume.is_gone() {
            let (page, rest) = notes.split_at(notes.len().min(PAGE_MAX));
            // What is not noted is not known, as if it had been written by somebody else.
            let _ = volume.catalog.note(self.home.as_deref().unwrap_or_default(), page.to_vec());
            notes = rest;
        }
    }
}
