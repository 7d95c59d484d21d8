//! What further names would become in a copy, as a dry run sees it.
//!
//! In: entries of which other names follow, and what they are at the destination; names, and what stands
//! there. Out: what would change.
//! Invariant: what is remembered is bounded, whoever announces it, and goes when all names came.
//! Left out: names of what would fail or be left alone, of which a copy makes one a file of its own: they are
//! told as names all the same.

use std::collections::HashMap;
use std::sync::Arc;

use haul_core::change::Change;
use haul_core::entry::{Meta, NAMES_COST, NAMES_OPEN_MAX, Node};
use haul_core::ids::FileId;
use haul_core::transfer::op::{Existing, Inode};
use haul_core::transfer::{Ended, other_end};
use haul_core::wire::{Failure, SinkOptions};
use haul_storage::store::{dir_stands, special_stands};

use crate::driver::sink::kind_of;
use crate::driver::{Kind, protocol};

struct First {
    path: Arc<[u8]>,
    left: u32,
    /// What stands at its name, and would stay. `None`: a copy makes it anew.
    stays: Option<Inode>,
    /// Of a file.
    size: Option<u64>,
    kind: Kind,
    /// Of a FIFO, socket or device.
    node: Option<Node>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Names {
    agreed: bool,
    firsts: HashMap<FileId, First>,
    cost: usize,
}

/// What becomes of a name, the path of the first, and what that is.
type Planned = (Result<(Ended, Change), Failure>, Arc<[u8]>, Kind);

impl Names {
    pub(super) fn new(agreed: bool) -> Names {
        Names { agreed, ..Names::default() }
    }

    /// An entry was announced of which so many names come in all.
    pub(super) fn expect(
        &mut self,
        id: FileId,
        names: u32,
        path: impl FnOnce() -> Vec<u8>,
    ) -> Result<(), Failure> {
        if names == 0 {
            return Ok(());
        }
        let path: Arc<[u8]> = path().into();
        self.cost += NAMES_COST + path.len();
        if !self.agreed || self.cost > NAMES_OPEN_MAX {
            return Err(protocol("files with other names, which this session was not to have, or too many"));
        }
        let (left, kind) = (names - 1, Kind::File);
        self.firsts.insert(id, First { path, left, stays: None, size: None, kind, node: None });
        Ok(())
    }

    /// What such an entry is at the destination, if it stays that; how large it is to be.
    pub(super) fn ended(&mut self, id: FileId, stays: Option<Inode>, size: Option<u64>) {
        if let Some(first) = self.firsts.get_mut(&id) {
            (first.stays, first.size) = (stays, size);
        }
    }

    /// It is a symbolic link, or such a FIFO, socket or device.
    pub(super) fn is_made_as_link(&mut self, id: FileId, node: Option<Node>) {
        if let Some(first) = self.firsts.get_mut(&id) {
            (first.kind, first.node) = (node.map_or(Kind::Symlink, kind_of), node);
        }
    }

    pub(super) fn node_of(&self, to: FileId) -> Option<Node> {
        self.firsts.get(&to)?.node
    }

    /// A further name, at which this stands.
    ///
    /// # Errors
    /// No such entry was announced.
    pub(super) fn plan(
        &mut self,
        to: FileId,
        (existing, inode): (Result<Existing, Failure>, Option<Inode>),
        meta: &Meta,
        policy: &SinkOptions,
    ) -> Result<Planned, Failure> {
        let first = self.firsts.get_mut(&to).filter(|first| first.left > 0);
        let first =
            first.ok_or_else(|| protocol("a hard link of what was not announced with other names"))?;
        first.left -= 1;
        let (path, kind) = (first.path.clone(), first.kind);
        let is_one = first.stays.is_some() && first.stays == inode;
        let goal = first.size;
        if first.left == 0 {
            self.cost -= NAMES_COST + path.len();
            self.firsts.remove(&to);
        }
        let planned = existing.and_then(|existing| {
            let change = match existing {
                _ if is_one => Change::NONE,
                Existing::Nothing => Change::NEW.with(Change::LINKED, true),
                Existing::Dir => return Err(dir_stands()),
                _ if policy.no_clobber => return Ok((Ended::Skipped, Change::NONE)),
                Existing::Special if !policy.force => return Err(special_stands()),
                Existing::Link | Existing::Special => Change::NEW.with(Change::LINKED, true),
                Existing::File { mtime, .. } if policy.update && mtime > meta.mtime => {
                    return Ok((Ended::Skipped, Change::NONE));
                }
                // A link takes the place of a file, or a file that of another one.
                Existing::File { .. } if kind != Kind::File => Change::NEW.with(Change::LINKED, true),
                Existing::File { size, mtime, .. } => Change::LINKED
                    .with(Change::SIZE, goal.is_some_and(|goal| goal != size))
                    .with(Change::TIME, mtime != meta.mtime),
            };
            Ok((other_end(change), change))
        });
        Ok((planned, path, kind))
    }
}
