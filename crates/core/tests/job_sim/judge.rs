//! What must hold, seen from outside of the coordinator.

use std::collections::{BTreeMap, BTreeSet};

use haul_core::digest::DigestKind;
use haul_core::ids::{FileId, Generation, Lease, PairId};
use haul_core::job::{Action, Temp, WorkKind};
use haul_core::journal::Replay;
use haul_core::transfer::Ended;

use super::store::{BLOCK, Inode, NOTHING, Store, blocks_of, root};
use super::world::{Kind, World};

#[derive(Default)]
pub struct Judge {
    /// Entries that did not end, with their parents.
    pub open: BTreeMap<FileId, Option<FileId>>,
    kinds: BTreeMap<(FileId, Generation), Kind>,
    /// Files with a name to give, and who is to give it.
    naming: BTreeMap<FileId, (PairId, Lease)>,
    live: BTreeMap<PairId, Lease>,
    temps: BTreeMap<(FileId, Generation), Temp>,
    finishing: BTreeMap<FileId, (PairId, Lease)>,
    copied: BTreeSet<(FileId, Generation)>,
    /// By entry, the mtime of the version that it was last said to be a copy of.
    said: BTreeMap<usize, i64>,
}

impl Judge {
    pub fn begin(&mut self) {
        self.open.clear();
        self.naming.clear();
        self.live.clear();
        self.finishing.clear();
    }

    pub fn open_entry(&mut self, id: FileId, parent: Option<FileId>) {
        self.open.insert(id, parent);
    }

    pub fn announced(&mut self, id: FileId, generation: Generation, kind: Kind) {
        self.kinds.insert((id, generation), kind);
    }

    /// A name shows one version, whole, from the moment when it is given; and none that is older than what it
    /// is said to show.
    pub fn name_given(&self, entry: usize, inode: &Inode) {
        check_whole(entry, inode);
        let said = self.said.get(&entry).copied().unwrap_or(0);
        assert!(
            inode.print.is_some_and(|print| print.1 >= said),
            "entry {entry} shows an older version again"
        );
    }

    /// And it goes on to show one, whatever is written late.
    pub fn finals(&self, store: &Store) {
        for ((entry, temp), inode) in &store.names {
            if temp.is_none() {
                check_whole(*entry, &store.inodes[*inode]);
            }
        }
    }

    /// Who had a name to give says that it does not.
    pub fn given_up(&mut self, id: FileId, at: (PairId, Lease)) {
        if self.naming.get(&id) == Some(&at) {
            self.naming.remove(&id);
        }
    }

    fn gives_name(&mut self, id: FileId, at: (PairId, Lease)) {
        if let Some(before) = self.naming.insert(id, at) {
            let lives = self.live.get(&before.0) == Some(&before.1);
            assert!(!lives || before == at, "{id} is to be named by two ends that both live");
        }
    }

    pub fn see(&mut self, action: &Action, world: &World) {
        match action {
            Action::Assign { pair, lease, works } => {
                assert!(works.len() <= haul_core::job::ITEMS_MAX);
                self.live.insert(*pair, *lease);
                for work in works {
                    assert!(self.open.contains_key(&work.id), "work at what ended");
                    self.temps.insert((work.id, work.generation), work.temp);
                    if work.kind == WorkKind::Whole {
                        self.gives_name(work.id, (*pair, *lease));
                    }
                }
            }
            Action::Publish { pair, lease, publication } => {
                self.live.insert(*pair, *lease);
                self.gives_name(publication.id, (*pair, *lease));
            }
            Action::End { pair, lease, .. } if self.live.get(pair) == Some(lease) => {
                self.live.remove(pair);
            }
            Action::Durable { extents, .. } => {
                for extent in extents {
                    self.check_durable(extent.id, extent.generation, extent.offset, extent.len, world);
                }
            }
            Action::FinishDir { pair, lease, dir, .. } => {
                let id = dir.as_file();
                let inside = self.open.iter().find(|(_, parent)| **parent == Some(id));
                assert!(inside.is_none(), "directory {id} is finished before {inside:?}");
                if let Some(before) = self.finishing.insert(id, (*pair, *lease)) {
                    assert!(world.lease_of(before.0) != Some(before.1), "directory {id} is finished twice");
                }
            }
            Action::Ended { id, generation, end, root: told } => {
                assert!(self.open.remove(id).is_some(), "{id} ended twice");
                self.naming.remove(id);
                let Some(Kind::File(key, len, mtime)) = self.kinds.get(&(*id, *generation)).copied() else {
                    assert!(!matches!(end, Ended::Failed(_)), "{id}: {end:?}");
                    return;
                };
                assert!(!matches!(end, Ended::Failed(_)), "file {id}: {end:?}");
                let entry = world.entry(*id);
                let inode = world.store.names.get(&(entry, None));
                let inode = inode.unwrap_or_else(|| panic!("{id} ended, and has no name"));
                let inode = &world.store.inodes[*inode];
                self.said.insert(entry, mtime);
                assert_eq!(inode.print, Some((len, mtime)), "file {id} is another version");
                assert!(inode.blocks.iter().all(|k| *k == key), "file {id}: {:?}", inode.blocks);
                if *end == Ended::Copied {
                    assert!(self.copied.insert((*id, *generation)), "{id} is copied twice");
                    assert_eq!(*told, Some(root(&inode.blocks, len)));
                }
            }
            _ => {}
        }
    }

    /// What is said to be durable is on media, and the journal says so.
    fn check_durable(&self, id: FileId, generation: Generation, offset: u64, len: u64, world: &World) {
        let entry = world.entry(id);
        let Kind::File(_, total, mtime) = self.kinds[&(id, generation)] else { panic!("no file") };
        let temp = self.temps[&(id, generation)];
        let inode = world.store.names.get(&(entry, Some(temp))).or(world.store.names.get(&(entry, None)));
        let inode = inode.unwrap_or_else(|| panic!("{id} is durable and not there"));
        let blocks = &world.store.inodes[*inode].blocks;
        let range = (offset / BLOCK) as usize..blocks_of(offset + len);
        assert!(
            !blocks[range.clone()].contains(&NOTHING),
            "{id}: {offset}+{len} is not on media: {blocks:?}"
        );
        let mut replay = Replay::new();
        replay.feed(&world.journal).expect("it is a journal");
        let known = replay.finish([1; 16], true).expect("it is a journal");
        let path = world.path_of(entry);
        let partial = known.partials.get(&path).filter(|p| p.fingerprint.mtime.secs == mtime);
        let covers = |p: &haul_core::journal::Partial| {
            p.subtrees.kind() == DigestKind::Blake3
                && p.subtrees.total() == total
                && p.subtrees.covers(offset, len)
        };
        let above = std::iter::successors(world.entries[entry].parent, |at| world.entries[*at].parent);
        for dir in above.map(|at| world.path_of(at)) {
            assert!(
                !known.finished.contains_key(&dir),
                "{id} is made anew in what the journal calls finished"
            );
        }
        let done = known.done.contains_key(&path);
        assert!(done || partial.is_some_and(covers), "{id}: the journal does not know {offset}+{len}");
    }
}

fn check_whole(entry: usize, inode: &Inode) {
    let Some((len, _)) = inode.print else { panic!("entry {entry} has a name for nothing") };
    let first = inode.blocks.first().copied();
    let whole = inode.blocks.len() == blocks_of(len)
        && inode.blocks.iter().all(|key| Some(*key) == first && *key != NOTHING);
    assert!(whole, "entry {entry} shows a part or a mixture: {:?}", inode.blocks);
}
