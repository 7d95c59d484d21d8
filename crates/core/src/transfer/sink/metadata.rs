//! Metadata that come in pieces behind the announcements of their entries.
//!
//! In: `METADATA` of entries that were announced with it; what of it the engine could not keep. Out: values
//! that are whole, for the engine; entries that go on with them.
//! Invariants: an entry has its name, or is finished, only when its metadata are whole; nothing of a class
//! that is never kept, or that this session does not keep, reaches the engine ([`may_be_kept`]); the values
//! of all open entries stay within [`METADATA_OPEN_MAX`].
//! Left out: what a file system makes of them, and what stands there, which are the engine's to know.

use alloc::sync::Arc;

use super::file::{Mark, SinkPhase};
use super::{Sink, SinkAction};
use crate::entry::{METADATA_OPEN_MAX, Namespace};
use crate::id_map::IdMap;
use crate::ids::{DirId, FileId, Generation};
use crate::metadata::{Gathering, Values, is_mark, may_be_kept};
use crate::transfer::op::{LinkItem, SinkOp};
use crate::wire::{Failure, MetadataPiece};

/// What is known of the metadata of open entries.
#[derive(Default)]
pub(super) struct Metadata {
    /// Not whole yet.
    gathering: IdMap<FileId, (Generation, Gathering)>,
    /// Links that are made when theirs are whole.
    links: IdMap<FileId, LinkItem>,
    /// What each entry costs whose values are kept, and all together.
    costs: IdMap<FileId, usize>,
    cost: usize,
    /// What could not be kept of entries that get their names all the same.
    unkept: IdMap<FileId, Failure>,
}

impl Metadata {
    /// `root`: those of the destination root come, as those of entry 0, if it has any.
    pub(super) fn of_root(root: bool) -> Metadata {
        let mut metadata = Metadata::default();
        if root {
            metadata.expect(FileId(0), Generation(0));
        }
        metadata
    }

    /// Some of it came, and not all.
    pub(super) fn is_half_told(&self, id: FileId) -> bool {
        self.gathering.contains_key(&id) && self.costs.contains_key(&id)
    }

    /// An entry was announced with metadata, which follow.
    pub(super) fn expect(&mut self, id: FileId, generation: Generation) {
        self.gathering.insert(id, (generation, Gathering::default()));
    }

    /// It is made when its metadata are whole.
    pub(super) fn hold_link(&mut self, link: LinkItem) {
        self.links.insert(link.file.id, link);
    }

    /// No value of any entry is kept.
    pub(super) fn is_empty(&self) -> bool {
        self.cost == 0 && self.gathering.is_empty()
    }

    fn costs(&mut self, id: FileId, cost: usize) {
        let before = self.costs.insert(id, cost).unwrap_or(0);
        self.cost = self.cost - before + cost;
    }

    /// Whether the engine has values of it.
    fn forget(&mut self, id: FileId) -> bool {
        self.gathering.remove(&id);
        self.links.remove(&id);
        let cost = self.costs.remove(&id);
        self.cost -= cost.unwrap_or(0);
        cost.is_some()
    }
}

impl Sink {
    pub(super) fn handle_metadata(&mut self, pieces: Vec<MetadataPiece>) {
        if !self.config.agreed.metadata {
            return self.violation("metadata in pieces, which this session was not to have");
        }
        let (mut lookups, mut links) = (Vec::new(), Vec::new());
        for piece in pieces {
            let (id, generation) = (piece.id, piece.generation);
            let gathering = self.metadata.gathering.get_mut(&id);
            let Some((_, gathering)) = gathering.filter(|(of, _)| *of == generation) else {
                if !self.announced.is_past(id) {
                    return self.violation("metadata of an entry that was never announced");
                }
                // It failed here, and the source had not heard of that yet.
                continue;
            };
            let values = match gathering.add(piece) {
                Ok(values) => values,
                Err(error) => return self.violation(&error.to_string()),
            };
            let cost = gathering.cost();
            self.metadata.costs(id, cost);
            if self.metadata.cost > METADATA_OPEN_MAX && !haul_mutant::removed("open-metadata-are-bounded") {
                return self.violation("more metadata of open entries than the limit");
            }
            if let Some(values) = values {
                self.metadata_are_whole(id, values, (&mut lookups, &mut links));
            }
        }
        if !lookups.is_empty() {
            self.submit(SinkOp::Lookup { items: lookups });
        }
        if !links.is_empty() {
            self.submit(SinkOp::MakeLinks { items: links });
        }
    }

    fn metadata_are_whole(
        &mut self,
        id: FileId,
        mut values: Values,
        (lookups, links): (&mut Vec<crate::transfer::op::LookupItem>, &mut Vec<LinkItem>),
    ) {
        self.metadata.gathering.remove(&id);
        let policy = self.config.policy;
        let sent = values.len();
        values.retain(|(namespace, name), _| match namespace {
            _ if is_mark(*namespace, name) => true,
            Namespace::Xattr => {
                policy.xattrs
                    && (may_be_kept(name) || haul_mutant::removed("classes-are-held-back-at-the-sink"))
            }
            Namespace::AccessAcl | Namespace::DefaultAcl | Namespace::Nfs4Acl => policy.acls,
        });
        self.counts.refused_metadata += (sent - values.len()) as u64;
        self.actions.push_back(SinkAction::Metadata { id, values: Arc::new(values) });
        if let Some(link) = self.metadata.links.remove(&id) {
            return links.push(link);
        }
        if id == DirId::ROOT.as_file() {
            return;
        }
        let Some(file) = self.files.get_mut(&id) else {
            // A directory, which is held open for them.
            return self.dirs.release_held(id.as_dir());
        };
        file.unmark(Mark::WaitsMetadata);
        match file.phase {
            SinkPhase::Looking => {
                let waits = file.is(Mark::WaitsMap) || file.is(Mark::WaitsJournal);
                if self.config.wait && !waits && !self.drains.contains_key(&id) {
                    lookups.push(file.lookup(id));
                }
            }
            _ => self.try_complete(id),
        }
    }

    /// The entry ended, or begins anew: its metadata are worth nothing any more.
    pub(super) fn forget_metadata(&mut self, id: FileId) {
        if self.metadata.forget(id) {
            self.actions.push_back(SinkAction::ForgetMetadata { id });
        }
    }

    /// The entry gets its name, or is what it is to be, but for this.
    pub(super) fn handle_unkept(&mut self, id: FileId, failure: Failure) {
        self.metadata.unkept.entry(id).or_insert(failure);
    }

    /// This end knows of an entry that was announced, and is not over, that something of it cannot be kept.
    /// It gets its name all the same.
    pub fn tell_unkept(&mut self, id: FileId, failure: Failure) {
        let is_open = id == DirId::ROOT.as_file()
            || self.files.contains_key(&id)
            || self.links.contains_key(&id)
            || self.dirs.path(id.as_dir()).is_some();
        if is_open {
            self.handle_unkept(id, failure);
        }
    }

    /// What could not be kept of an entry that otherwise ends well.
    pub(super) fn take_unkept(&mut self, id: FileId) -> Option<Failure> {
        self.metadata.unkept.remove(&id)
    }
}
