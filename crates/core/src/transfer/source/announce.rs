//! Entries of the walk, and their announcement to the sink.
//!
//! In: entries, their attributes, ends of directories, what could not be read. Out: messages of many entries
//! each.
//! Invariants: what was handed in is announced in its order; attributes come behind the entry that they are
//! of, and the end of a directory behind all of its entries.

use alloc::sync::Arc;
use std::collections::{BTreeMap, VecDeque};

use super::file::{File, Queue, SourcePhase};
use super::held::Held;
use super::plan::Lies;
use super::{Source, SourceAction};
use crate::digest::SubtreeSet;
use crate::entry::{EntryKind, Fingerprint};
use crate::ids::{DirId, Generation, Time};
use crate::layout::Layout;
use crate::metadata::{Unread, Values};
use crate::transfer::SMALL_LEN_MAX;
use crate::wire::{ANNOUNCE_ENTRIES_MAX, Announced, Failure, ITEMS_MAX, Message, Totals, announced_len};

/// Bytes of entries in one announcement, at most.
const ANNOUNCE_LEN_MAX: usize = 512 * 1024;

impl Source {
    /// The walk found an entry. Its id was never used before and its parent was handed in before it.
    /// `lies`: where a file lies; of other entries it means nothing. `not_before`: what is read of a file
    /// before this time proves nothing, for a change could hide in the grain of the ctime that its
    /// fingerprint has.
    pub fn handle_entry(&mut self, entry: Announced, lies: Lies, not_before: Time) {
        self.handle_entry_with(entry, None, lies, not_before);
    }

    /// As [`Source::handle_entry`], of an entry that has these extended attributes and lists. False: it is a
    /// directory, and open ones have as many as they may have; it goes without them.
    pub fn handle_entry_with(
        &mut self,
        mut entry: Announced,
        values: Option<Values>,
        lies: Lies,
        not_before: Time,
    ) -> bool {
        let is_dir = matches!(entry.kind, EntryKind::Dir { .. });
        let asked = values.filter(|values| self.config.agreed.metadata && !values.is_empty());
        let had = asked.is_some();
        let mut values = asked.filter(|values| !is_dir || self.metadata.fit_dir(values));
        let fits = had == values.is_some();
        if !fits {
            let mut none = Values::new();
            Unread { xattrs: true, acls: true }.mark(&mut none);
            values = Some(none);
        }
        entry.extras.metadata = values.is_some();
        if let EntryKind::File { fingerprint, sparse, striped, .. } = &mut entry.kind {
            *sparse &= self.config.agreed.holes && fingerprint.size > SMALL_LEN_MAX;
            *striped = self.config.agreed.layouts && lies == Lies::Ask && fingerprint.size > SMALL_LEN_MAX;
        }
        match &entry.kind {
            EntryKind::Dir { .. } => {
                self.dirs.insert(entry.id.as_dir(), ());
            }
            EntryKind::Symlink { .. }
            | EntryKind::Fifo
            | EntryKind::Socket
            | EntryKind::Device { .. }
            | EntryKind::HardLink { .. } => {
                self.links.insert(entry.id, None);
            }
            EntryKind::File { fingerprint, object_size, striped, .. } => {
                self.count_file(fingerprint.size);
                self.unsealed += 1;
                let file = self.new_file(&entry, (*fingerprint, *object_size, *striped), lies, not_before);
                self.files.insert(entry.id, file);
            }
        }
        let (id, generation) = (entry.id, entry.generation);
        let file = if let EntryKind::File { sparse, .. } = entry.kind { Some(sparse) } else { None };
        self.push_announcement(entry);
        if let Some(values) = values {
            self.metadata.push(id, generation, values, is_dir);
        }
        if let Some(sparse) = file {
            self.announced(id, sparse);
        }
        fits
    }

    pub(super) fn count_file(&mut self, size: u64) {
        self.counts.files += 1;
        // What file systems say: the sum may be anything.
        self.counts.bytes = self.counts.bytes.saturating_add(size);
    }

    /// A file as it is announced first.
    pub(super) fn new_file(
        &self,
        entry: &Announced,
        (fingerprint, object_size, striped): (Fingerprint, u32, bool),
        lies: Lies,
        not_before: Time,
    ) -> Box<File> {
        Box::new(File {
            generation: entry.generation,
            parent: entry.parent,
            name: entry.name.clone(),
            meta: entry.meta,
            fingerprint,
            extras: entry.extras,
            not_before,
            seen: None,
            grown_to: 0,
            measured: false,
            object_size,
            object_size_max: object_size,
            striped,
            phase: SourcePhase::AwaitState,
            digest: SubtreeSet::new(self.config.agreed.digest, fingerprint.size),
            twice: BTreeMap::new(),
            held: Held::default(),
            layout: match lies {
                Lies::At(target) => Some(Arc::new(Layout::flat(target))),
                Lies::Ask => None,
            },
            asks: lies == Lies::Ask,
            sink_targets: None,
            queued: 0,
            adding: false,
            left: 0,
            works: false,
            given: BTreeMap::new(),
            again: VecDeque::new(),
            reads: 0,
            checking: false,
            look_again: false,
            durable: 0,
            pass: 0,
            tries: 1,
            hashes: 0,
            queue: Queue::None,
            resends: 0,
        })
    }

    /// The walk read what the directory has of extended attributes and lists that the destination root
    /// becomes. Once, at any time before its end.
    pub fn handle_root(&mut self, values: Values) {
        if self.config.root && self.config.agreed.metadata && !values.is_empty() {
            self.metadata.push(DirId::ROOT.as_file(), Generation(0), values, true);
        }
    }

    pub(super) fn push_announcement(&mut self, entry: Announced) {
        let len = announced_len(&entry);
        let metadata_len = self.metadata.pieces_len;
        if self.announce.len() >= ANNOUNCE_ENTRIES_MAX
            || self.announce_bytes + len > ANNOUNCE_LEN_MAX
            || metadata_len > ANNOUNCE_LEN_MAX
        {
            self.flush_announcements();
        }
        self.announce_bytes += len;
        self.announce.push(entry);
    }

    /// The walk emitted the last entry of this directory.
    pub fn handle_dir_end(&mut self, dir: DirId) {
        self.dir_ends.push(dir);
        if self.dir_ends.len() >= ITEMS_MAX {
            self.flush_announcements();
        }
    }

    /// The walk could not read something that was therefore never announced.
    pub fn handle_trouble(&mut self, path: &[u8], failure: Failure) {
        self.actions.push_back(SourceAction::Send(Message::Trouble { path: path.into(), failure }));
    }

    /// The walk is over.
    pub fn handle_walk_end(&mut self, totals: Totals) {
        self.totals = Some(totals);
    }

    pub(super) fn flush_announcements(&mut self) {
        if !self.announce.is_empty() {
            self.announce_bytes = 0;
            let entries = std::mem::take(&mut self.announce);
            self.actions.push_back(SourceAction::Send(Message::Announce(entries)));
        }
        // The destination root's come by themselves.
        self.flush_metadata();
        if !self.dir_ends.is_empty() {
            let dirs = std::mem::take(&mut self.dir_ends);
            self.actions.push_back(SourceAction::Send(Message::DirEnd(dirs)));
        }
    }
}
