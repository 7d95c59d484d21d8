//! Metadata of announced entries, in pieces behind their announcements.
//!
//! In: the values of an entry that was walked, or looked at anew. Out: `METADATA`.
//! Invariants: the pieces of an entry go directly behind its announcement; no entry is begun while those that
//! are open have more than half of [`METADATA_OPEN_MAX`], and of that half directories have no more than
//! half, for they stay open until all in them ended.
//! Left out: reading them, and whether they are those of the bytes that are sent, which is storage's.

use std::collections::HashSet;

use super::{Source, SourceAction};
use crate::entry::METADATA_OPEN_MAX;
use crate::id_map::IdMap;
use crate::ids::{FileId, Generation};
use crate::metadata::{Values, cost_of, pieces_of};
use crate::wire::{Message, MetadataPiece};

const ENTRIES_COST_MAX: usize = METADATA_OPEN_MAX / 2;
const DIRS_COST_MAX: usize = ENTRIES_COST_MAX / 2;

/// What of it is under way.
#[derive(Default)]
pub(super) struct Metadata {
    /// Behind the next announcements.
    pieces: Vec<MetadataPiece>,
    /// Bytes of these.
    pub(super) pieces_len: usize,
    /// What each open entry costs, and all together.
    costs: IdMap<FileId, usize>,
    cost: usize,
    dirs: HashSet<FileId>,
    dirs_cost: usize,
    /// Of files that are announced anew.
    anew: IdMap<FileId, Values>,
}

impl Metadata {
    /// There is room for another entry's.
    pub(super) fn has_room(&self) -> bool {
        self.cost < ENTRIES_COST_MAX || haul_mutant::removed("sources-wait-for-open-metadata")
    }

    /// Values of a directory that fit.
    pub(super) fn fit_dir(&self, values: &Values) -> bool {
        self.dirs_cost + cost_of(values) <= DIRS_COST_MAX
    }

    /// Whether the bound still holds with these instead of what the file has.
    pub(super) fn fit_again(&self, id: FileId, values: &Values) -> bool {
        let before = self.costs.get(&id).copied().unwrap_or(0);
        self.cost - before + cost_of(values) <= METADATA_OPEN_MAX
    }

    /// Puts them behind the announcement that was just made.
    pub(super) fn push(&mut self, id: FileId, generation: Generation, values: Values, is_dir: bool) {
        self.forget(id);
        let cost = cost_of(&values);
        self.cost += cost;
        self.costs.insert(id, cost);
        if is_dir {
            self.dirs.insert(id);
            self.dirs_cost += cost;
        }
        self.pieces_len += cost;
        self.pieces.extend(pieces_of(id, generation, values));
    }

    /// The entry is over.
    pub(super) fn forget(&mut self, id: FileId) {
        let cost = self.costs.remove(&id).unwrap_or(0);
        self.cost -= cost;
        self.anew.remove(&id);
        if self.dirs.remove(&id) {
            self.dirs_cost -= cost;
        }
    }

    /// As they are of a file that is looked at anew.
    pub(super) fn set_anew(&mut self, id: FileId, values: Values) {
        self.anew.insert(id, values);
    }

    pub(super) fn take_anew(&mut self, id: FileId) -> Option<Values> {
        self.anew.remove(&id).filter(|values| !values.is_empty())
    }
}

impl Source {
    /// Behind the announcements that they belong to.
    pub(super) fn flush_metadata(&mut self) {
        if !self.metadata.pieces.is_empty() {
            self.metadata.pieces_len = 0;
            let pieces = std::mem::take(&mut self.metadata.pieces);
            // The last entry's come whole to those that waited, however many they are.
            let parts = match haul_mutant::removed("metadata-fit-their-messages") {
                true => vec![Message::Metadata(pieces)],
                false => Message::Metadata(pieces).split(),
            };
            self.actions.extend(parts.into_iter().map(SourceAction::Send));
        }
    }
}
