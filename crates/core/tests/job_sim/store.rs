//! The file system that all sinks see, and the cache that each host has of it.
//!
//! A host caches in pages: what it writes of one is merged into what it read of it before, and the whole page
//! goes back, at a sync or whenever the kernel likes. Names change at the server at once. What a host did not
//! write back is lost with it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use blake3::hazmat::{Mode, merge_subtrees_non_root, merge_subtrees_root};
use fastrand::Rng;
use haul_core::digest::{Cv, Root};
use haul_core::ids::Lease;
use haul_core::job::{PAGE_LEN, Temp};

/// The grain of content.
pub const BLOCK: u64 = 64 * 1024;
const PAGE: usize = (PAGE_LEN / BLOCK) as usize;
/// A block that was never written.
pub const NOTHING: u8 = 0;

/// A name: the entry, and what its temporary is called.
pub type Name = (usize, Option<Temp>);
/// What tells versions apart: length and mtime.
pub type Print = (u64, i64);

#[derive(Clone, Default, Debug)]
pub struct Inode {
    pub blocks: Vec<u8>,
    /// Set when it gets its name.
    pub print: Option<Print>,
}

#[derive(Default)]
pub struct Store {
    pub inodes: Vec<Inode>,
    pub names: BTreeMap<Name, usize>,
    /// Leases that ended, and the epoch below which all did.
    pub fenced: BTreeSet<Lease>,
    pub epoch: u32,
    /// Dirty pages by host and inode.
    caches: HashMap<(u16, usize), BTreeMap<usize, Vec<u8>>>,
}

pub fn blocks_of(len: u64) -> usize {
    len.div_ceil(BLOCK) as usize
}

impl Store {
    pub fn allows(&self, lease: Lease) -> bool {
        lease.epoch().0 >= self.epoch && !self.fenced.contains(&lease)
    }

    /// Opens a file, and makes it if it is not there; true if it was.
    pub fn open(&mut self, name: Name, len: u64) -> (usize, bool) {
        if let Some(inode) = self.names.get(&name) {
            return (*inode, true);
        }
        self.inodes.push(Inode { blocks: vec![NOTHING; blocks_of(len)], print: None });
        let inode = self.inodes.len() - 1;
        self.names.insert(name, inode);
        (inode, false)
    }

    pub fn write(&mut self, host: u16, inode: usize, first: usize, keys: &[u8]) {
        let server = &self.inodes[inode].blocks;
        let cache = self.caches.entry((host, inode)).or_default();
        for (i, key) in keys.iter().enumerate() {
            let at = first + i;
            let page = cache.entry(at / PAGE).or_insert_with(|| {
                let end = server.len().min((at / PAGE + 1) * PAGE);
                server[at / PAGE * PAGE..end].to_vec()
            });
            page[at % PAGE] = *key;
        }
    }

    /// What a host sees of a file.
    pub fn read(&self, host: u16, inode: usize) -> Vec<u8> {
        let mut seen = self.inodes[inode].blocks.clone();
        for (page, blocks) in self.caches.get(&(host, inode)).into_iter().flatten() {
            seen[page * PAGE..page * PAGE + blocks.len()].copy_from_slice(blocks);
        }
        seen
    }

    fn put(&mut self, inode: usize, page: usize, blocks: &[u8]) {
        self.inodes[inode].blocks[page * PAGE..page * PAGE + blocks.len()].copy_from_slice(blocks);
    }

    pub fn sync(&mut self, host: u16, inode: usize) {
        for (page, blocks) in self.caches.remove(&(host, inode)).unwrap_or_default() {
            self.put(inode, page, &blocks);
        }
    }

    /// The kernel of a host that is not frozen writes some page back.
    pub fn write_back(&mut self, rng: &mut Rng, runs: impl Fn(u16) -> bool) {
        let mut keys: Vec<(u16, usize)> = self.caches.keys().copied().filter(|key| runs(key.0)).collect();
        keys.sort_unstable();
        let Some(key) = rng.choice(&keys).copied() else { return };
        let cache = self.caches.get_mut(&key).expect("it is there");
        if let Some((page, blocks)) = cache.pop_first() {
            self.put(key.1, page, &blocks);
        }
        if self.caches[&key].is_empty() {
            self.caches.remove(&key);
        }
    }

    /// The host is gone, and what it had not written back.
    pub fn lose(&mut self, host: u16) {
        self.caches.retain(|(held, _), _| *held != host);
    }
}

fn leaf(key: u8, offset: u64, len: u64) -> Cv {
    let mut text = [0; 17];
    text[0] = key;
    text[1..9].copy_from_slice(&offset.to_le_bytes());
    text[9..].copy_from_slice(&len.to_le_bytes());
    *blake3::hash(&text).as_bytes()
}

/// The value of a node, from the blocks of the range.
pub fn node(keys: &[u8], total: u64, offset: u64, len: u64) -> Cv {
    if len <= BLOCK {
        return leaf(keys[0], offset, len);
    }
    let left = 1 << (len - 1).ilog2();
    let (a, b) = keys.split_at((left / BLOCK) as usize);
    let (a, b) = (node(a, total, offset, left), node(b, total, offset + left, len - left));
    match len == total {
        true => *merge_subtrees_root(&a, &b, Mode::Hash).as_bytes(),
        false => merge_subtrees_non_root(&a, &b, Mode::Hash),
    }
}

/// The root of a file with these blocks.
pub fn root(keys: &[u8], len: u64) -> Root {
    if len == 0 { *blake3::hash(&[]).as_bytes() } else { node(keys, len, 0, len) }
}
