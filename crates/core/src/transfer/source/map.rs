//! Sparse files: their maps, before anything of them is sent.
//!
//! In: files that may have holes, the maps that storage found. Out: maps to take; `HOLES` behind the
//! announcement.
//! Invariants: no data of a file goes before the last part of its map; the extents of all open files, with
//! those of maps that are being taken, stay within [`EXTENTS_OPEN_MAX`].
//! Left out: what a map means for reading (`file`).

use std::collections::VecDeque;

use super::file::{File, SourcePhase};
use super::{Source, SourceAction};
use crate::digest::SubtreeSet;
use crate::extents::{EXTENTS_MAX, EXTENTS_OPEN_MAX, ExtentMap};
use crate::ids::{FileId, Generation};
use crate::transfer::op::SourceOp;
use crate::wire::{Failure, FailureKind, ITEMS_MAX, Message};

/// Maps that are held, asked for and waited for.
#[derive(Default)]
pub(super) struct Maps {
    wanted: VecDeque<FileId>,
    asked: usize,
    /// Extents in the maps of open files.
    extents: usize,
}

impl Maps {
    /// No map is held.
    pub(super) fn are_gone(&self) -> bool {
        self.extents == 0
    }
}

impl Source {
    /// An announcement of the file is queued; it goes on with its map, its state or its first read.
    pub(super) fn announced(&mut self, id: FileId, sparse: bool) {
        let Some(file) = self.files.get_mut(&id) else { return };
        if sparse {
            file.phase = SourcePhase::Mapping;
            if !self.is_young(id) {
                self.maps.wanted.push_back(id);
            }
        } else if !self.config.wait {
            self.start_sending(id);
        }
    }

    /// The map of a file can be taken as soon as there is room.
    pub(super) fn want_map(&mut self, id: FileId) {
        self.maps.wanted.push_back(id);
    }

    /// Has maps taken, as long as there is room for the longest.
    pub(super) fn take_maps(&mut self) {
        while !self.stopping
            && !self.paused
            && self.maps.extents + (self.maps.asked + 1) * EXTENTS_MAX <= EXTENTS_OPEN_MAX
            && let Some(id) = self.maps.wanted.pop_front()
        {
            if let Some(file) = self.files.get(&id).filter(|f| f.phase == SourcePhase::Mapping) {
                self.maps.asked += 1;
                let op = SourceOp::Map { id, generation: file.generation };
                self.actions.push_back(SourceAction::Submit(op));
            }
        }
    }

    /// A map was taken: the sink hears of it, and the file goes on.
    pub(super) fn handle_mapped(
        &mut self,
        id: FileId,
        generation: Generation,
        result: Result<ExtentMap, Failure>,
    ) {
        self.maps.asked -= 1;
        let mapping = |f: &&mut Box<File>| f.generation == generation && f.phase == SourcePhase::Mapping;
        let Some(file) = self.files.get_mut(&id).filter(mapping) else { return };
        if self.stopping {
            return;
        }
        let map = match result {
            Ok(map) if map.size() == file.size() => map,
            Ok(_) => return self.changed(id, None),
            Err(failure) if failure.kind == FailureKind::Changed => return self.changed(id, Some(failure)),
            Err(failure) => return self.fail_file(id, failure),
        };
        if !map.is_full() {
            self.maps.extents += map.extents().len();
            file.digest = SubtreeSet::with_map(self.config.agreed.digest, map.clone());
        }
        file.phase = SourcePhase::AwaitState;
        self.flush_announcements();
        let mut left = map.extents();
        loop {
            let (part, rest) = left.split_at(left.len().min(ITEMS_MAX));
            left = rest;
            let (extents, last) = (part.to_vec(), left.is_empty());
            self.actions.push_back(SourceAction::Send(Message::Holes { id, generation, extents, last }));
            if last {
                break;
            }
        }
        if !self.config.wait {
            self.start_sending(id);
        }
    }

    /// The file ended or begins afresh: its map is worth nothing any more.
    pub(super) fn drop_map(&mut self, id: FileId) {
        let Some(file) = self.files.get_mut(&id) else { return };
        self.maps.extents -= file.digest.map().map_or(0, |map| map.extents().len());
        file.digest = SubtreeSet::new(self.config.agreed.digest, file.size());
    }
}
