//! Announcements: entries that the source will send, directories and links to make.
//!
//! In: what the source announces. Out: open entries; lookups, directories, links and nodes for the engine.
//! Invariants: ids rise within their shard, and only agreed shards have any; no entry is of a kind that was
//! not agreed; parents are open, names of the root are among those agreed, nothing is deeper or more than the
//! limits; a file that comes again is the one that was withdrawn, under a higher generation.
//! Left out: what stands at the destination already (`lookup`).

use std::collections::BTreeMap;

use super::file::{EarlyTemporary, File, Mark, Marks, SinkPhase};
use super::{Link, Sink, SinkAction};
use crate::change::Change;
use crate::digest::SubtreeSet;
use crate::entry::{DEPTH_MAX, EntryKind, NAMES_LEFT, Nodes, Part};
use crate::ids::{DirId, FileId, Generation, SHARDS_MAX};
use crate::job::kept::Kept;
use crate::job::naming::Naming;
use crate::transfer::op::{LinkItem, SinkFile, SinkOp};
use crate::wire::{self, credit_cost};

/// How far each shard has announced.
pub(super) struct Announced(Vec<FileId>);

impl Announced {
    pub(super) fn new(shards: u16) -> Announced {
        assert!((1..=SHARDS_MAX).contains(&shards), "own number of shards {shards}");
        // The entry 0 of each is never announced.
        Announced((0..shards).map(|shard| FileId::new(shard, 0)).collect())
    }

    /// The session may have such an id.
    pub(super) fn has_shard(&self, id: FileId) -> bool {
        usize::from(id.shard()) < self.0.len()
    }

    /// It was announced, or others of its shard behind it were.
    pub(super) fn is_past(&self, id: FileId) -> bool {
        self.0.get(usize::from(id.shard())).is_some_and(|last| id <= *last)
    }

    fn add(&mut self, id: FileId) {
        if let Some(last) = self.0.get_mut(usize::from(id.shard())) {
            *last = id.max(*last);
        }
    }
}

/// What this session was not to have, if an entry is such a thing; each has a capability, which the ends did
/// not name, or which this end's own command does not keep.
fn was_not_agreed(
    entry: &wire::Announced,
    part: Option<&Part>,
    (metadata, hard_links, nodes): (bool, bool, Nodes),
) -> Option<&'static str> {
    if haul_mutant::removed("kinds-are-agreed") {
        return None;
    }
    match &entry.kind {
        kind if kind.node().is_some_and(|node| !nodes.keep(node)) => {
            Some("a FIFO, socket or device, which this session was not to have")
        }
        EntryKind::HardLink { .. } if !hard_links => Some("a hard link, which this session was not to have"),
        _ if entry.extras.names > 0 && !hard_links => {
            Some("a file of which other names follow, which this session was not to have")
        }
        EntryKind::File { .. } if part.is_some() => match (part, &entry.extras.range) {
            (Some(part), Some(told)) if part.is(told) || haul_mutant::removed("ranges-are-asked-for") => None,
            _ => Some("another part of a file than was asked for"),
        },
        _ if part.is_some() => Some("an entry in a session that was to have a part of a file alone"),
        _ if entry.extras.range.is_some() => Some("a part of a file, which this session was not to have"),
        _ if entry.extras.metadata && !metadata => {
            Some("an entry with metadata in pieces, which this session was not to have")
        }
        EntryKind::HardLink { .. } if entry.extras.metadata => Some("a hard link with metadata of its own"),
        _ => None,
    }
}

impl Sink {
    pub(super) fn handle_announce(&mut self, entries: Vec<wire::Announced>) {
        let (mut lookups, mut made, mut links) = (Vec::new(), Vec::new(), Vec::new());
        for entry in entries {
            if self.files.len() + self.links.len() + self.dirs.len()
                > self.config.agreed.limits.entries as usize
            {
                return self.violation("more entries announced than the limit that was agreed");
            }
            let agreed = &self.config.agreed;
            let kept = (agreed.metadata, agreed.hard_links, self.config.nodes);
            if let Some(text) = was_not_agreed(&entry, self.config.part.as_ref(), kept) {
                return self.violation(text);
            }
            if !self.announced.has_shard(entry.id) && !haul_mutant::removed("shards-are-agreed") {
                return self.violation("an entry of a shard that this session was not to have");
            }
            let is_file = matches!(entry.kind, EntryKind::File { .. });
            let known = self.files.contains_key(&entry.id) || self.links.contains_key(&entry.id);
            if is_file && !known && entry.generation > Generation(0) && self.announced.is_past(entry.id) {
                // It failed here, and the source had not heard of that yet.
                continue;
            }
            let Some(path) = self.dirs.path(entry.parent) else {
                return self.violation("an entry in a directory that is not open");
            };
            let path = path.child(&entry.name);
            let known = self.files.get(&entry.id);
            let again =
                known.filter(|f| f.phase == SinkPhase::Withdrawn && f.kept.generation < entry.generation);
            // The file holds its directory open: it must stay the same one.
            let moved = again.is_some_and(|f| f.kept.parent != entry.parent || f.name != entry.name);
            let again = again.is_some();
            // What was to be a further name comes as an entry of its own.
            let apart = self.links.get(&entry.id).filter(|l| l.is_apart() && l.generation < entry.generation);
            let moved = moved || apart.is_some_and(|l| l.parent != entry.parent || l.name != entry.name);
            let apart = apart.is_some();
            let is_own = !matches!(entry.kind, EntryKind::Dir { .. } | EntryKind::HardLink { .. });
            if moved || (again && !is_file) || (apart && !is_own) {
                return self.violation("a file announced again as something else");
            }
            if self.announced.is_past(entry.id) && !again && !apart && !haul_mutant::removed("announced-once")
            {
                return self.violation("an entry announced twice, or out of order");
            }
            if !again && !apart && self.dirs.is_ended(entry.parent) {
                return self.violation("an entry in a directory that is not open any more");
            }
            let names = self.config.names.as_ref().filter(|_| entry.parent == DirId::ROOT);
            if names.is_some_and(|names| !names.contains(&entry.name))
                && !haul_mutant::removed("names-asked-for")
            {
                return self.violation("an entry whose name is not among the sources");
            }
            self.announced.add(entry.id);
            let wire::Announced { id, generation, parent, name, meta, kind, extras } = entry;
            // What was told of another generation means nothing any more.
            self.forget_metadata(id);
            if extras.metadata {
                self.metadata.expect(id, generation);
            }
            if apart {
                // The directory stays held.
                self.links.remove(&id);
            }
            if extras.names == NAMES_LEFT && (again || apart) {
                // Those that wait are names of what was there before.
                self.first_ended(id, false);
            } else if extras.names > NAMES_LEFT && !again && !apart {
                let is_link = !is_file;
                if let Err(text) = self.expect_names(id, (parent, &name), (extras.names, is_link)) {
                    return self.violation(text);
                }
            }
            match kind {
                EntryKind::Dir { version } => {
                    if again || self.dirs.depth(parent) >= DEPTH_MAX {
                        return self.violation("a directory deeper than the limit");
                    }
                    self.dirs.add(id.as_dir(), parent, name.clone(), path, (meta, version));
                    self.actions.push_back(SinkAction::RegisterDir { id: id.as_dir(), parent, name });
                    if extras.metadata {
                        self.dirs.hold(id.as_dir());
                    }
                    made.push(id.as_dir());
                }
                EntryKind::HardLink { to } => {
                    if let Err(text) = self.announce_name((id, generation), (parent, name), meta, to) {
                        return self.violation(text);
                    }
                }
                EntryKind::Symlink { .. }
                | EntryKind::Fifo
                | EntryKind::Socket
                | EntryKind::Device { .. } => {
                    let node = kind.node();
                    let target = if let EntryKind::Symlink { target } = kind { target } else { [].into() };
                    if !apart {
                        self.dirs.hold(parent);
                    }
                    let number = self.earlier.take_temp().number;
                    let file = SinkFile { id, parent, name: name.clone(), number, size: 0, map: None };
                    let policy = self.config.policy;
                    let (owner, no_replace, force) = (policy.owner, policy.no_clobber, policy.force);
                    let link = LinkItem { file, target, node, meta, owner, no_replace, force };
                    match extras.metadata {
                        true => self.metadata.hold_link(link),
                        false => links.push(link),
                    }
                    let change = Change::NEW;
                    self.links.insert(id, Link { parent, name, generation, change, joins: None });
                }
                EntryKind::File { fingerprint, object_size, sparse, striped } => {
                    // Its frames must fit into what is granted.
                    let len = u64::from(object_size).min(fingerprint.size);
                    self.frame_cost_max = self.frame_cost_max.max(credit_cost(len));
                    if let Some(targets) = &mut self.targets {
                        targets.set_object(credit_cost(len));
                    }
                    if sparse && !self.config.agreed.holes {
                        return self.violation("a sparse file, which this session was not to have");
                    }
                    if striped && !self.config.agreed.layouts {
                        return self.violation("a striped file, of which this session was not to know");
                    }
                    if again {
                        let old = self.files.remove(&id).expect("it is known");
                        self.counts.bytes = self.counts.bytes.saturating_sub(old.size());
                    } else {
                        if !apart {
                            self.dirs.hold(parent);
                        }
                        self.counts.files += 1;
                    }
                    // A peer's numbers: their sum may be anything.
                    self.counts.bytes = self.counts.bytes.saturating_add(fingerprint.size);
                    let mut file = Box::new(File {
                        kept: Kept::new(
                            (parent, path, generation),
                            (fingerprint, object_size),
                            self.earlier.take_temp(),
                            self.config.agreed.digest,
                        ),
                        name,
                        meta,
                        phase: SinkPhase::Looking,
                        marks: Marks::default()
                            .with(Mark::WaitsJournal, again)
                            .with(Mark::WaitsMap, sparse)
                            .with(Mark::WaitsLayout, striped)
                            .with(Mark::WaitsMetadata, extras.metadata),
                        digest: SubtreeSet::new(self.config.agreed.digest, fingerprint.size),
                        check_next: 0,
                        checks: 0,
                        writing: BTreeMap::new(),
                        written: Vec::new(),
                        found: None,
                        change: Change::NEW,
                        // A crash must not leave the new temporary under an old promise.
                        striping: None,
                        map_parts: Vec::new(),
                        writes: 0,
                        naming: Naming::new(),
                        held: None,
                        adopt: Vec::new(),
                        made: EarlyTemporary::No,
                        places: None,
                        set: None,
                        damaged: 0,
                    });
                    // Of a sparse file that is known with its map.
                    if !sparse {
                        file.take_up(&mut self.earlier);
                    }
                    if again {
                        self.files.insert(id, file);
                        self.epochs.begin_after(id, generation);
                        continue;
                    }
                    if sparse {
                        self.files.insert(id, file);
                        continue;
                    }
                    if self.config.wait && extras.metadata {
                        self.files.insert(id, file);
                        continue;
                    }
                    if self.config.wait {
                        lookups.push(file.lookup(id));
                    } else {
                        file.phase = SinkPhase::Open;
                    }
                    self.files.insert(id, file);
                    if !self.config.wait {
                        self.wish(id);
                    }
                    self.wake(id);
                }
            }
        }
        if !made.is_empty() {
            self.submit(SinkOp::MakeDirs { dirs: made });
        }
        if !lookups.is_empty() {
            self.submit(SinkOp::Lookup { items: lookups });
        }
        if !links.is_empty() {
            self.submit(SinkOp::MakeLinks { items: links });
        }
    }
}
