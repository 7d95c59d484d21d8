//! The judge: what was said, held against what is there and what a power cut would leave.

use std::ops::Range;

use haul_core::digest::Subtree;
use haul_core::ids::{FileId, Generation};
use haul_core::wire::{Extent, FileState, Message, Outcome};

use super::disk::{Block, Node};
use super::model::{BLOCK, GARBAGE, Kind, NOTHING, OLD, Version, ZERO, blocks_of, mixed_node, root_of};
use super::world::{Ack, World};

impl World {
    /// Holds what the sink says against what a power cut at this instant would leave.
    pub fn judge(&mut self, message: &Message) {
        if self.freezes.in_aside {
            // Who has lost the job promises nothing.
            return;
        }
        match message {
            Message::Done(items) => {
                for item in items {
                    if let Outcome::Done { root, .. } = &item.outcome {
                        self.judge_done(item.id, item.generation, *root);
                    }
                }
            }
            Message::Durable { extents, .. } => extents.iter().for_each(|extent| self.judge_durable(extent)),
            Message::FileStates(states) => {
                for (id, generation, state) in states {
                    if let FileState::Held { subtrees, verify } = state {
                        self.judge_held(*id, *generation, subtrees, *verify);
                    }
                }
            }
            _ => {}
        }
    }

    fn judge_done(&mut self, id: FileId, generation: Generation, root: Option<[u8; 32]>) {
        let entry = self.entry(id);
        self.s.done.push(entry);
        let Some(version) = self.s.announced.get(&(id, generation)).copied() else {
            // A link. A directory's own name is durable when its parent is finished.
            return;
        };
        let live = self.disk.dir(self.tree.entries[entry].parent).live.get(&(entry, None)).copied();
        let node = match self.durable {
            true => self.disk.survivor(&self.path_of(entry), (entry, None)),
            false => live,
        };
        let Some(Node::File(file)) = node else {
            panic!("entry {entry} is done, but its name is not: {node:?}")
        };
        // Replaced since by a run that had lost the job: seen before this run ends, and judged then.
        let is_late = |node| matches!(node, Some(Node::File(file)) if self.freezes.late.contains(&file));
        let replaced = is_late(live);
        if is_late(node) {
            assert!(replaced, "entry {entry} is done, but its name is not on media: a late one is");
            return;
        }
        let file = &self.disk.files[file];
        let keys = file.keys(self.durable);
        let (len, mtime) = match self.durable {
            true => (file.len_durable, file.mtime_durable),
            false => (file.len, file.mtime),
        };
        assert_eq!((len, mtime), (version.len, version.mtime), "entry {entry} is done");
        let shown = self.tree.shown(entry, (len, mtime), &keys, self.prefixes());
        let shown = shown.unwrap_or_else(|| panic!("entry {entry} is done with content {keys:?}"));
        assert_eq!(root, Some(root_of(&keys, len)), "root of entry {entry}");
        if !replaced {
            // Else only a power cut would bring it back: who looks finds the late one, and sends it again.
            self.acknowledge(entry, shown.key, &version, 0..blocks_of(len));
        }
    }

    fn judge_durable(&mut self, extent: &Extent) {
        let entry = self.entry(extent.id);
        let version = self.s.announced[&(extent.id, extent.generation)];
        let first = (extent.offset / BLOCK) as usize;
        let range = first..first + blocks_of(extent.len);
        let Some(open) = self.snk().open.get(&extent.id) else {
            panic!("durable, but no file is open for entry {entry}")
        };
        let (number, temp) = (open.file, open.number);
        let file = &self.disk.files[number];
        let blocks = &file.blocks[range.clone()];
        let keys = || blocks.iter().map(|b| if self.durable { b.durable } else { b.live });
        // Zeros: the source lost data, or the other end does not know holes.
        let key = keys().find(|key| *key != ZERO).unwrap_or(ZERO);
        let same = keys().all(|other| other == key || other == ZERO);
        assert!(same && key != NOTHING, "entry {entry}: {extent:?} is not on media: {blocks:?}");
        if self.durable {
            let tag = (self.snk().tag, temp);
            let node = self.disk.survivor(&self.path_of(entry), (entry, Some(tag)));
            assert_eq!(node, Some(Node::File(number)), "entry {entry}: the temporary's name is not on media");
        }
        if key != GARBAGE {
            self.acknowledge(entry, key, &version, range);
        }
    }

    fn judge_held(&mut self, id: FileId, generation: Generation, subtrees: &[Subtree], verify: bool) {
        let entry = self.entry(id);
        let len = self.s.announced[&(id, generation)].len;
        self.s.held.push(entry);
        if self.altered.contains(&entry) {
            // The journal says what was there; what is there the session has to find out.
            return;
        }
        let file = &self.disk.files[self.s.sink.as_ref().expect("the sink runs").open[&id].file];
        for subtree in subtrees {
            let first = (subtree.offset / BLOCK) as usize;
            let blocks = &file.blocks[first..first + blocks_of(subtree.len)];
            // What must be compared first may be about to be written again, from a source that has changed.
            let synced = |b: &Block| verify || !self.durable || b.durable == b.live;
            let there = blocks.iter().all(|b| b.live != NOTHING && synced(b));
            assert!(there, "entry {entry}: held, but not there: {subtree:?} {blocks:?}");
            let keys: Vec<u8> = blocks.iter().map(|b| b.live).collect();
            if !keys.contains(&GARBAGE) && !verify {
                let cv = mixed_node(&keys, len, subtree.offset, subtree.len);
                assert_eq!(cv, subtree.cv, "entry {entry}: held with another content: {keys:?}");
            }
        }
    }

    /// The sink says that these blocks are on media.
    pub fn acknowledge(&mut self, entry: usize, key: u8, version: &Version, blocks: Range<usize>) {
        let now = self.tree.version(entry).expect("a file");
        // What was announced may have changed since: then the source will take it back.
        let same =
            now.same_content(version) && now.key == key && version.key == key && now.holes == version.holes;
        if !same || self.s.faulty.contains(&entry) || !self.tree.entries[entry].alive {
            return;
        }
        let new = || Ack { version: now, blocks: vec![false; blocks_of(now.len)] };
        let ack = self.acks[entry].get_or_insert_with(new);
        assert!(ack.version.same_content(&now) && ack.version.key == key, "a model's error");
        ack.blocks[blocks].fill(true);
    }

    /// The source reads these blocks for sending.
    pub fn check_not_acknowledged(&self, id: FileId, blocks: Range<usize>) {
        let entry = self.entry(id);
        if let Some(ack) = self.acks[entry].as_ref().filter(|_| !self.freezes.in_aside) {
            let again = !blocks.is_empty() && ack.blocks[blocks.clone()].iter().all(|acked| *acked);
            assert!(!again, "entry {entry}: blocks {blocks:?} were acknowledged and are read again");
        }
    }

    /// No final name shows a part or a mixture.
    pub fn judge_names(&self) {
        for (_, (entry, tag), node) in self.disk.names() {
            if let (None, Node::File(file)) = (tag, node) {
                self.judge_file(entry, file, false);
            }
        }
    }

    fn judge_file(&self, entry: usize, file: usize, newest: bool) {
        let file = &self.disk.files[file];
        let keys = file.keys(false);
        let old = keys.iter().all(|key| *key == OLD) && file.len == 70_000;
        let known = {
            let shown = self.tree.shown(entry, (file.len, file.mtime), &keys, self.prefixes());
            shown.is_some() || (old && !newest)
        };
        assert!(known, "entry {entry} shows what no version had: {file:?}");
        if newest {
            let version = self.tree.version(entry).expect("a file");
            assert_eq!(
                (file.len, file.mtime),
                (version.len, version.mtime),
                "entry {entry} is not the newest"
            );
        }
    }

    /// After the sink's "complete": nothing of ours is left, and what was done survives a power cut.
    pub fn judge_complete(&self) {
        assert!(self.journal.bytes.is_none(), "complete, but a journal is left");
        for (dir, (entry, tag), _) in self.disk.names() {
            let lost = tag.is_some_and(|(tag, _)| self.freezes.lost_tags.contains(&tag));
            assert!(tag.is_none() || lost, "complete, but a temporary of {entry} is left in {dir:?}");
        }
        self.judge_names();
        if self.durable {
            for entry in &self.s.done {
                let node = self.disk.survivor(&self.path_of(*entry), (*entry, None));
                assert!(node.is_some(), "complete, but the name of {entry} is not on media");
            }
        }
    }

    /// Every entry of the source is at the destination as it should be.
    pub fn judge_copy(&self) {
        for (entry, what) in self.tree.entries.iter().enumerate() {
            if !what.alive {
                continue;
            }
            let node = self.disk.dir(what.parent).live.get(&(entry, None)).copied();
            match (&what.kind, node) {
                (Kind::Dir, Some(Node::Dir)) => {
                    let mtime = self.disk.dir(Some(entry)).mtime;
                    assert_eq!(mtime, Some(500 + entry as i64), "mtime of directory {entry}");
                }
                (Kind::Link, Some(Node::Link)) => {}
                (Kind::File(_), Some(Node::File(file))) => self.judge_file(entry, file, true),
                (_, node) => panic!("entry {entry} is {node:?} at the end"),
            }
            if self.durable {
                let node = self.disk.survivor(&self.path_of(entry), (entry, None));
                assert!(node.is_some(), "complete, but the name of {entry} is not on media");
            }
        }
    }
}
