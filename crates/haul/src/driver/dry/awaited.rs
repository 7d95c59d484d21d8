//! Entries of a dry run, in order, each with its metadata.
//!
//! In: announcements and metadata in pieces. Out: entries whose metadata are whole.
//! Invariants: entries keep their order; what waits is bounded, whoever announces it.

use std::collections::VecDeque;

use haul_core::entry::{METADATA_OPEN_MAX, Namespace};
use haul_core::ids::DirId;
use haul_core::metadata::{Gathering, Values, is_mark, may_be_kept};
use haul_core::transfer::ENTRIES_MAX;
use haul_core::wire::{Announced, Failure, Message, MetadataPiece, SinkOptions};

use crate::driver::protocol;

struct Waits {
    entry: Announced,
    gathering: Option<Gathering>,
    values: Option<Values>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Awaited {
    /// The session has metadata, and which.
    agreed: bool,
    xattrs: bool,
    acls: bool,
    entries: VecDeque<Waits>,
    /// Those of the destination root, which come by themselves, as of entry 0.
    root: Option<Gathering>,
    root_values: Option<Values>,
    /// Of all that was gathered.
    cost: usize,
}

impl Awaited {
    pub(super) fn new(agreed: bool, root: bool, policy: SinkOptions) -> Awaited {
        let root = (root && agreed).then(Gathering::default);
        Awaited { agreed, root, xattrs: policy.xattrs, acls: policy.acls, ..Awaited::default() }
    }

    /// What the destination root is to have.
    pub(super) fn take_root(&mut self) -> Option<Values> {
        self.root_values.take()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// An announcement, or metadata.
    pub(super) fn hear(&mut self, message: Message) -> Result<(), Failure> {
        match message {
            Message::Announce(entries) => entries.into_iter().try_for_each(|entry| self.announce(entry)),
            Message::Metadata(pieces) => pieces.into_iter().try_for_each(|piece| self.add(piece)),
            _ => Ok(()),
        }
    }

    fn announce(&mut self, entry: Announced) -> Result<(), Failure> {
        if entry.extras.metadata && !self.agreed {
            return Err(protocol("an entry with what this session was not to have"));
        }
        if self.entries.len() >= ENTRIES_MAX as usize {
            return Err(protocol(format!("more than {ENTRIES_MAX} entries wait for their metadata")));
        }
        let gathering = entry.extras.metadata.then(Gathering::default);
        self.entries.push_back(Waits { entry, gathering, values: None });
        Ok(())
    }

    fn add(&mut self, piece: MetadataPiece) -> Result<(), Failure> {
        if piece.id == DirId::ROOT.as_file() && self.agreed {
            let Some(root) = &mut self.root else { return Ok(()) };
            if let Some(values) = root.add(piece).map_err(|error| protocol(error.to_string()))? {
                self.root_values = Some(kept(values, (self.xattrs, self.acls)));
                self.root = None;
            }
            return Ok(());
        }
        // They come in the order of their entries.
        let of = self.entries.iter_mut().find(|waits| waits.gathering.is_some());
        let of = of.filter(|waits| (waits.entry.id, waits.entry.generation) == (piece.id, piece.generation));
        let Some(waits) = of else { return Err(protocol("metadata of no entry that waits for them")) };
        let Some(gathering) = &mut waits.gathering else { return Ok(()) };
        self.cost -= gathering.cost();
        let values = gathering.add(piece).map_err(|error| protocol(error.to_string()))?;
        self.cost += gathering.cost();
        if self.cost > METADATA_OPEN_MAX {
            return Err(protocol("more metadata of open entries than the limit"));
        }
        if let Some(values) = values {
            self.cost -= gathering.cost();
            waits.gathering = None;
            waits.values = Some(kept(values, (self.xattrs, self.acls)));
        }
        Ok(())
    }

    /// The next entry, if all of it is there, with its metadata.
    pub(super) fn next(&mut self) -> Option<(Announced, Option<Values>)> {
        let is_whole = self.entries.front().is_some_and(|waits| waits.gathering.is_none());
        let waits = if is_whole { self.entries.pop_front() } else { None };
        waits.map(|waits| (waits.entry, waits.values))
    }
}

/// Of these, what a copy would keep.
fn kept(mut values: Values, (xattrs, acls): (bool, bool)) -> Values {
    values.retain(|(namespace, name), _| match namespace {
        _ if is_mark(*namespace, name) => true,
        Namespace::Xattr => xattrs && may_be_kept(name),
        _ => acls,
    });
    values
}
