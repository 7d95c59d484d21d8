//! Further names of files and of what is made as links are, which are announced as hard links.
//!
//! In: names that the walk found, with what was announced before; what the sink makes of them. Out:
//! announcements; those that are to be entries of their own, announced once more as such.
//! Invariants: nothing of such a name is read or sent unless the sink says that it cannot be a name of the
//! file; the end is not told while it may still say so; a file that took the place of one with other names
//! has none of them.
//! Left out: which names belong together (the walk).

use super::{Lies, Source, SourceAction};
use crate::entry::{EntryKind, Extras, NAMES_LEFT};
use crate::ids::{FileId, Generation, Time};
use crate::metadata::Values;
use crate::transfer::op::SourceOp;
use crate::transfer::source::file::SourcePhase;
use crate::transfer::{SessionEnd, protocol};
use crate::wire::{Announced, FileState};

/// A further name, and what it is by itself.
pub(super) struct Joins {
    pub(super) to: FileId,
    entry: Announced,
    /// Of what is no file. Those of a file are read anew.
    values: Option<Values>,
    lies: Lies,
    not_before: Time,
}

impl Source {
    /// The walk found another name of `to`, which was handed in before with the number of its names, and is
    /// no other kind of entry. The rest is as in [`Source::handle_entry_with`].
    pub fn handle_name(
        &mut self,
        entry: Announced,
        to: FileId,
        values: Option<Values>,
        lies: Lies,
        not_before: Time,
    ) {
        let (kind, extras) = (EntryKind::HardLink { to }, Extras::default());
        let announced = Announced { kind, extras, name: entry.name.clone(), ..entry };
        let is_file = matches!(entry.kind, EntryKind::File { .. });
        let values = values.filter(|_| !is_file);
        self.joins += 1;
        self.links.insert(entry.id, Some(Box::new(Joins { to, entry, values, lies, not_before })));
        self.push_announcement(announced);
    }

    /// It is not the file any more of which the walk found other names. From here on it is announced so.
    pub(super) fn leave_names(&mut self, id: FileId) {
        if haul_mutant::removed("another-file-has-no-names") {
            return;
        }
        if let Some(file) = self.files.get_mut(&id).filter(|_| self.config.agreed.hard_links) {
            file.extras.names = NAMES_LEFT;
        }
    }

    pub(super) fn is_name(&self, id: FileId) -> bool {
        self.links.get(&id).is_some_and(Option::is_some)
    }

    /// What the sink says of a further name: that it is to come as an entry of its own.
    pub(super) fn handle_name_state(&mut self, id: FileId, generation: Generation, state: &FileState) {
        if self.config.dry || *state != FileState::Fresh {
            let text = "the sink says of a hard link what no session has";
            return self.finish(SessionEnd::Failed(protocol(text)));
        }
        let of = |joins: &&mut Option<Box<Joins>>| {
            joins.as_ref().is_some_and(|joins| joins.entry.generation == generation)
        };
        let Some(joins) = self.links.get_mut(&id).filter(of).and_then(Option::take) else { return };
        self.joins -= 1;
        let Joins { mut entry, values, lies, not_before, .. } = *joins;
        entry.generation = Generation(generation.0 + 1);
        let (fingerprint, object_size) = match &entry.kind {
            EntryKind::File { fingerprint, object_size, .. } => (*fingerprint, *object_size),
            _ => {
                let generation = entry.generation;
                let values = values.filter(|values| self.config.agreed.metadata && !values.is_empty());
                entry.extras.metadata = values.is_some();
                self.push_announcement(entry);
                if let Some(values) = values {
                    self.metadata.push(id, generation, values, false);
                }
                return;
            }
        };
        self.links.remove(&id);
        self.count_file(fingerprint.size);
        let mut file = self.new_file(&entry, (fingerprint, object_size, false), lies, not_before);
        // It was walked long ago: as it is now it is announced.
        file.phase = SourcePhase::Refreshing;
        let generation = file.generation;
        self.files.insert(id, file);
        self.refreshing += 1;
        self.actions.push_back(SourceAction::Submit(SourceOp::Refresh { id, generation }));
    }
}
