//! The sink's file system with its cache: what is there, and what a power cut would leave.
//!
//! Data are kept by block and become durable by a sync of their file; names by a sync of their directory.
//! A power cut leaves of each directory's unsynced changes a prefix, of a file's unsynced blocks any part.
//! A failed sync forgets which blocks are dirty, as kernels do: a later sync that succeeds says nothing.

use std::collections::{BTreeMap, HashMap};

use fastrand::Rng;

use super::model::{BLOCK, GARBAGE, KEYS, NOTHING};

/// A name: the entry's number and the tag and number of a temporary.
pub type Name = (usize, Option<(u32, u64)>);
/// A directory: the entry's number, `None` is the root.
pub type DirKey = Option<usize>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    Dir,
    Link,
    File(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Put(Name, Node),
    Remove(Name),
    Rename(Name, Name),
}

fn apply(names: &mut BTreeMap<Name, Node>, change: Change) {
    match change {
        Change::Put(name, node) => drop(names.insert(name, node)),
        Change::Remove(name) => drop(names.remove(&name)),
        Change::Rename(from, to) => {
            if let Some(node) = names.remove(&from) {
                names.insert(to, node);
            }
        }
    }
}

#[derive(Default)]
pub struct Dir {
    pub live: BTreeMap<Name, Node>,
    pub durable: BTreeMap<Name, Node>,
    changes: Vec<Change>,
    /// Set when it was finished; any change of a name in it sets it back.
    pub mtime: Option<i64>,
}

#[derive(Clone, Copy, Debug)]
pub struct Block {
    pub live: u8,
    pub durable: u8,
    pub dirty: bool,
}

#[derive(Default, Debug)]
pub struct File {
    pub blocks: Vec<Block>,
    pub len: u64,
    pub len_durable: u64,
    pub mtime: i64,
    pub mtime_durable: i64,
}

impl File {
    /// The content of each block.
    pub fn keys(&self, durable: bool) -> Vec<u8> {
        self.blocks.iter().map(|b| if durable { b.durable } else { b.live }).collect()
    }
}

#[derive(Default)]
pub struct Disk {
    pub files: Vec<File>,
    dirs: HashMap<DirKey, Dir>,
}

impl Disk {
    pub fn new() -> Disk {
        Disk { files: Vec::new(), dirs: HashMap::from([(None, Dir::default())]) }
    }

    pub fn dir(&self, dir: DirKey) -> &Dir {
        &self.dirs[&dir]
    }

    pub fn has_dir(&self, dir: DirKey) -> bool {
        self.dirs.contains_key(&dir)
    }

    fn change(&mut self, dir: DirKey, change: Change) {
        let dir = self.dirs.get_mut(&dir).expect("the directory was made");
        dir.mtime = None;
        dir.changes.push(change);
        apply(&mut dir.live, change);
    }

    pub fn make_dir(&mut self, parent: DirKey, entry: usize) {
        if self.dir(parent).live.get(&(entry, None)) != Some(&Node::Dir) {
            self.change(parent, Change::Put((entry, None), Node::Dir));
            self.dirs.insert(Some(entry), Dir::default());
        }
    }

    pub fn make_file(&mut self, dir: DirKey, name: Name) -> usize {
        self.files.push(File::default());
        let file = self.files.len() - 1;
        self.change(dir, Change::Put(name, Node::File(file)));
        file
    }

    pub fn make_link(&mut self, dir: DirKey, name: Name) {
        self.change(dir, Change::Put(name, Node::Link));
    }

    pub fn rename(&mut self, dir: DirKey, from: Name, to: Name) {
        self.change(dir, Change::Rename(from, to));
    }

    /// What stands at a name.
    pub fn at(&self, dir: DirKey, name: Name) -> Option<Node> {
        self.dirs.get(&dir)?.live.get(&name).copied()
    }

    /// A copy of a file in an inode of its own, on media.
    pub fn copy_file(&mut self, dir: DirKey, name: Name, from: usize) -> usize {
        let blocks = self.files[from].blocks.iter();
        let blocks = blocks.map(|b| Block { live: b.live, durable: b.live, dirty: false }).collect();
        let len = self.files[from].len;
        let made = self.make_file(dir, name);
        self.files[made] = File { blocks, len, len_durable: len, ..File::default() };
        made
    }

    pub fn remove(&mut self, dir: DirKey, name: Name) {
        if self.dir(dir).live.contains_key(&name) {
            self.change(dir, Change::Remove(name));
        }
    }

    pub fn write(&mut self, file: usize, first: usize, keys: &[u8], end: u64) {
        let file = &mut self.files[file];
        while file.blocks.len() < first + keys.len() {
            file.blocks.push(Block { live: NOTHING, durable: NOTHING, dirty: false });
        }
        for (block, key) in file.blocks[first..].iter_mut().zip(keys) {
            block.live = *key;
            block.dirty = true;
        }
        file.len = file.len.max(end);
    }

    /// Makes holes of these blocks.
    pub fn punch(&mut self, file: usize, is_hole: impl Fn(usize) -> bool) {
        for (i, block) in self.files[file].blocks.iter_mut().enumerate().filter(|(i, _)| is_hole(*i)) {
            let _ = i;
            if block.live != NOTHING {
                (block.live, block.dirty) = (NOTHING, true);
            }
        }
    }

    /// Somebody alters a file that nobody has open. What he did, in words.
    pub fn alter(&mut self, file: usize, rng: &mut Rng) -> &'static str {
        let file = &mut self.files[file];
        let (what, key) = match rng.u8(..4) {
            0 => {
                let kept = rng.usize(..=file.blocks.len());
                file.blocks.truncate(kept);
                file.len = file.len.min(kept as u64 * BLOCK);
                file.len_durable = file.len;
                return "truncated";
            }
            1 => ("flipped", GARBAGE),
            2 => ("made an older copy of itself", NOTHING),
            _ => ("mixed with another version", rng.u8(1..=KEYS)),
        };
        for block in &mut file.blocks {
            if rng.u8(..3) == 0 {
                *block = Block { live: key, durable: key, dirty: false };
            }
        }
        what
    }

    /// Makes a file longer by a hole.
    pub fn extend(&mut self, file: usize, blocks: usize, len: u64) {
        let file = &mut self.files[file];
        assert!(file.len <= len && file.blocks.len() <= blocks);
        file.blocks.resize(blocks, Block { live: NOTHING, durable: NOTHING, dirty: false });
        file.len = len;
    }

    pub fn sync_file(&mut self, file: usize, good: bool) {
        let file = &mut self.files[file];
        for block in &mut file.blocks {
            if block.dirty && good {
                block.durable = block.live;
            }
            block.dirty = false;
        }
        if good {
            file.len_durable = file.len;
            file.mtime_durable = file.mtime;
        }
    }

    pub fn sync_dir(&mut self, dir: DirKey) {
        let dir = self.dirs.get_mut(&dir).expect("the directory was made");
        dir.durable = dir.live.clone();
        dir.changes.clear();
    }

    pub fn set_dir_mtime(&mut self, dir: DirKey, mtime: i64) {
        self.dirs.get_mut(&dir).expect("the directory was made").mtime = Some(mtime);
    }

    /// What stands at a name for certain after a power cut now. `path`: the directories above, outermost
    /// first.
    pub fn survivor(&self, path: &[usize], name: Name) -> Option<Node> {
        let mut at = None;
        for dir in path {
            if self.dir(at).durable.get(&(*dir, None)) != Some(&Node::Dir) {
                return None;
            }
            at = Some(*dir);
        }
        self.dirs.get(&at)?.durable.get(&name).copied()
    }

    /// Power is lost. `spare`: data and names under final names are lucky (no promise was made for them).
    pub fn power_cut(&mut self, rng: &mut Rng, spare: bool) {
        let mut keys: Vec<DirKey> = self.dirs.keys().copied().collect();
        keys.sort_unstable();
        for key in &keys {
            let dir = self.dirs.get_mut(key).expect("it is there");
            let kept = if spare { dir.changes.len() } else { rng.usize(..=dir.changes.len()) };
            for change in dir.changes.drain(..).take(kept) {
                apply(&mut dir.durable, change);
            }
            dir.live = dir.durable.clone();
        }
        // Directories without a name are gone with all that is in them.
        let mut reached = vec![None];
        let mut at = 0;
        while at < reached.len() {
            let inner: Vec<_> = self.dirs[&reached[at]].live.iter().collect();
            reached.extend(inner.iter().filter(|(_, n)| **n == Node::Dir).map(|((e, _), _)| Some(*e)));
            at += 1;
        }
        self.dirs.retain(|key, _| reached.contains(key));
        let mut final_files = Vec::new();
        for key in &reached {
            for (name, node) in &self.dirs[key].live {
                if let (None, Node::File(file), true) = (name.1, node, spare) {
                    final_files.push(*file);
                }
            }
        }
        for (i, file) in self.files.iter_mut().enumerate() {
            if final_files.contains(&i) {
                for block in &mut file.blocks {
                    block.durable = block.live;
                }
                (file.len_durable, file.mtime_durable) = (file.len, file.mtime);
                continue;
            }
            for block in &mut file.blocks {
                if block.dirty && rng.bool() {
                    block.durable = block.live;
                }
                (block.live, block.dirty) = (block.durable, false);
            }
            if file.len != file.len_durable && rng.bool() {
                file.len_durable = file.len;
            }
            file.len = file.len_durable;
            file.mtime = file.mtime_durable;
        }
    }

    /// All names, by directory.
    pub fn names(&self) -> impl Iterator<Item = (DirKey, Name, Node)> + '_ {
        self.dirs.iter().flat_map(|(key, dir)| dir.live.iter().map(|(name, node)| (*key, *name, *node)))
    }
}

/// The journal's file.
#[derive(Default)]
pub struct JournalFile {
    /// `None`: there is none.
    pub bytes: Option<Vec<u8>>,
    pub durable: usize,
    pub broken: bool,
}

impl JournalFile {
    /// Power is lost: of what was not synced a part is left, perhaps damaged. True if anything was not.
    pub fn power_cut(&mut self, rng: &mut Rng) -> bool {
        let Some(bytes) = &mut self.bytes else { return false };
        let torn = bytes.len() > self.durable;
        let kept = rng.usize(self.durable..=bytes.len());
        bytes.truncate(kept);
        if kept > self.durable && rng.bool() {
            let at = rng.usize(self.durable..kept);
            bytes[at] ^= 1 << rng.u8(..8);
        }
        self.durable = bytes.len();
        torn
    }
}
