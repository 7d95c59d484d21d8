//! What is copied: a small tree whose files have versions, and the content that belongs to a version.
//!
//! In: a seed. Out: entries, their versions, digests of ranges. Content is one of a few pseudo-random
//! strings per length (its *key*), hashed once per process; a block is 64 KiB of one key, or zeros where a
//! version has a hole.

use std::collections::HashMap;
use std::sync::OnceLock;

use blake3::hazmat::{HasherExt, Mode, max_subtree_len, merge_subtrees_non_root, merge_subtrees_root};
use fastrand::Rng;
use haul_core::digest::{Cv, Root, subtrees};
use haul_core::entry::{self, Fingerprint, Meta, Name, Timestamp};
use haul_core::extents::{ExtentMap, MapMaker};
use haul_core::transfer::SMALL_LEN_MAX;

/// The grain of content: what one read or write moves at least.
pub const BLOCK: u64 = 64 * 1024;
/// Contents of one length.
pub const KEYS: u8 = 6;
/// A block that was never written: a hole.
pub const NOTHING: u8 = 0;
/// A block that was read from a file of another length than expected.
pub const GARBAGE: u8 = 255;
/// What stood at the destination before; no version has it.
pub const OLD: u8 = 200;
/// A block of zeros.
pub const ZERO: u8 = 100;
/// The inode of a version that is none any more, for it was changed and its times were not.
pub const HIDDEN: u64 = u64::MAX;

const LENGTHS: [u64; 15] = [
    0, 1, 1000, 1024, 5000, 65_535, 65_536, 65_537, 131_072, 200_000, 262_144, 300_001, 393_216, 450_000,
    720_896,
];

/// Chaining values of one content.
pub struct Content {
    len: u64,
    blocks: Vec<Cv>,
    pub root: Root,
}

/// The content with this key and length.
pub fn content(key: u8, len: u64) -> &'static Content {
    static ALL: OnceLock<HashMap<(u8, u64), Content>> = OnceLock::new();
    let all = ALL.get_or_init(|| {
        (1..=KEYS)
            .chain([ZERO])
            .flat_map(|key| LENGTHS.map(|len| ((key, len), Content::new(key, len))))
            .collect()
    });
    &all[&(key, len)]
}

impl Content {
    fn new(key: u8, len: u64) -> Content {
        let mut bytes = vec![0; len as usize];
        if key != ZERO {
            Rng::with_seed(u64::from(key)).fill(&mut bytes);
        }
        let blocks = bytes.chunks(BLOCK as usize).enumerate().map(|(i, block)| {
            let mut hasher = blake3::Hasher::new();
            hasher.set_input_offset(i as u64 * BLOCK);
            hasher.update(block);
            hasher.finalize_non_root()
        });
        Content { len, blocks: blocks.collect(), root: *blake3::hash(&bytes).as_bytes() }
    }

    /// The chaining value of a subtree; the root, if it is the whole.
    pub fn node(&self, offset: u64, len: u64) -> Cv {
        if offset == 0 && len == self.len {
            return self.root;
        }
        if len <= BLOCK {
            return self.blocks[(offset / BLOCK) as usize];
        }
        let left = 1 << (len - 1).ilog2();
        let (a, b) = (self.node(offset, left), self.node(offset + left, len - left));
        merge_subtrees_non_root(&a, &b, Mode::Hash)
    }
}

/// The chaining value of a range whose blocks are of these contents, `keys` from the range's begin.
pub fn mixed_node(keys: &[u8], total: u64, offset: u64, len: u64) -> Cv {
    if len <= BLOCK {
        return content(keys[0], total).node(offset, len);
    }
    let left = 1 << (len - 1).ilog2();
    let (a, b) = keys.split_at((left / BLOCK) as usize);
    let (a, b) = (mixed_node(a, total, offset, left), mixed_node(b, total, offset + left, len - left));
    if len == total {
        *merge_subtrees_root(&a, &b, Mode::Hash).as_bytes()
    } else {
        merge_subtrees_non_root(&a, &b, Mode::Hash)
    }
}

/// The plain hash of a file whose blocks are of these contents.
pub fn plain_root(keys: &[u8], len: u64) -> Root {
    if len == 0 { content(1, 0).root } else { mixed_node(keys, len, 0, len) }
}

/// The map of a file in which the blocks that `is_data` names have data.
pub fn map_of(keys: &[u8], len: u64, is_data: impl Fn(u8) -> bool) -> ExtentMap {
    let mut maker = MapMaker::new(len);
    for (i, _) in keys.iter().enumerate().filter(|(_, key)| is_data(**key)) {
        maker.push(i as u64 * BLOCK, (i as u64 + 1) * BLOCK);
    }
    maker.finish()
}

/// The root by which the two ends call a file with these blocks: that of a sparse one, if not all were
/// written.
pub fn root_of(keys: &[u8], len: u64) -> Root {
    let map = map_of(keys, len, |key| key != NOTHING);
    if map.is_full() {
        return plain_root(keys, len);
    }
    let mut hasher = blake3::Hasher::new_derive_key("haul v1 root of a sparse file");
    hasher.update(&map.digest());
    for extent in map.extents() {
        for (offset, part) in subtrees(extent.offset, extent.len, extent.end() == len) {
            hasher.update(&mixed_node(&keys[(offset / BLOCK) as usize..], len, offset, part));
        }
    }
    *hasher.finalize().as_bytes()
}

/// Goal of a self-check: merged values equal the plain hash.
pub fn check_contents() {
    for len in LENGTHS {
        let content = content(1, len);
        if len > BLOCK {
            let left = 1 << (len - 1).ilog2();
            let (a, b) = (content.node(0, left), content.node(left, len - left));
            assert_eq!(*merge_subtrees_root(&a, &b, Mode::Hash).as_bytes(), content.root);
            assert!(max_subtree_len(left).is_some_and(|max| len - left <= max));
        }
    }
}

/// How many blocks a length has.
pub fn blocks_of(len: u64) -> usize {
    len.div_ceil(BLOCK) as usize
}

/// One version of a source file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    pub len: u64,
    pub key: u8,
    pub mtime: i64,
    pub ctime: i64,
    pub ino: u64,
    /// The blocks that are holes, one bit each.
    pub holes: u16,
}

/// The holes of a new version of this length: none, some or all blocks.
fn holes(rng: &mut Rng, len: u64) -> u16 {
    let some = rng.u16(..) | rng.u16(..);
    let mask = [0, 0, some, some, u16::MAX][rng.usize(..5)];
    // What travels whole in a bundle is never sparse.
    if len > SMALL_LEN_MAX {
        mask & ((1 << blocks_of(len)) - 1)
    } else {
        mask & rng.u16(..2) & u16::from(len > 0)
    }
}

impl Version {
    /// The content of each block.
    pub fn keys(&self) -> Vec<u8> {
        let key = |i: usize| if self.holes & 1 << i == 0 { self.key } else { ZERO };
        (0..blocks_of(self.len)).map(key).collect()
    }
    pub fn fingerprint(&self) -> Fingerprint {
        let at = |secs| Timestamp { secs, nanos: 7 };
        let version = [self.ctime.to_le_bytes(), self.ino.to_le_bytes()].concat();
        let version = entry::Version::new(&version).expect("short");
        Fingerprint { size: self.len, mtime: at(self.mtime), version }
    }
    pub fn meta(&self) -> Meta {
        Meta { mode: 0o644, uid: 1, gid: 1, mtime: self.fingerprint().mtime }
    }
    /// Its first `len` bytes, which are not more than it has.
    pub fn cut(self, len: u64) -> Version {
        Version { len, ..self }
    }
    pub fn same_content(&self, other: &Version) -> bool {
        self.len == other.len && self.mtime == other.mtime
    }
}

/// What an entry is.
pub enum Kind {
    Dir,
    Link,
    /// All versions so far, newest last.
    File(Vec<Version>),
}

/// An entry of the tree. Its number in [`Tree::entries`] is its name.
pub struct Entry {
    /// `None`: in the root.
    pub parent: Option<usize>,
    pub kind: Kind,
    /// False: it vanished from the source.
    pub alive: bool,
}

/// The source's tree.
pub struct Tree {
    pub entries: Vec<Entry>,
}

/// The name of an entry.
pub fn name_of(entry: usize) -> Name {
    Name::new(format!("e{entry}").as_bytes()).expect("a legal name")
}

/// The entry with this name.
pub fn entry_of(name: &Name) -> usize {
    std::str::from_utf8(&name.as_bytes()[1..]).ok().and_then(|s| s.parse().ok()).expect("a name of ours")
}

impl Tree {
    /// A random tree; every parent stands before its children.
    pub fn new(rng: &mut Rng) -> Tree {
        let count = match rng.u8(..20) {
            0 => rng.usize(20..60),
            1..4 => rng.usize(1..3),
            _ => rng.usize(3..14),
        };
        let mut dirs = vec![None];
        let mut entries = Vec::new();
        for i in 0..count {
            let parent = dirs[rng.usize(..dirs.len())];
            let kind = match rng.u8(..10) {
                0 | 1 => {
                    if dirs.len() < 6 {
                        dirs.push(Some(i));
                    }
                    Kind::Dir
                }
                2 => Kind::Link,
                _ => {
                    let len = LENGTHS[rng.usize(..LENGTHS.len())];
                    Kind::File(vec![Version {
                        len,
                        key: rng.u8(1..=KEYS),
                        mtime: rng.i64(1000..2000),
                        ctime: rng.i64(1000..2000),
                        ino: i as u64 + 1,
                        holes: holes(rng, len),
                    }])
                }
            };
            entries.push(Entry { parent, kind, alive: true });
        }
        Tree { entries }
    }

    /// The newest version of a file; of another entry `None`.
    pub fn version(&self, entry: usize) -> Option<Version> {
        match &self.entries[entry].kind {
            Kind::File(versions) => versions.last().copied(),
            Kind::Dir | Kind::Link => None,
        }
    }

    /// The newest version with this length, mtime and content; holes and zeros are the same content.
    /// `prefixes`: or any version that begins so, if there was one with this length and mtime.
    pub fn shown(
        &self,
        entry: usize,
        (len, mtime): (u64, i64),
        blocks: &[u8],
        prefixes: bool,
    ) -> Option<Version> {
        let Kind::File(versions) = &self.entries[entry].kind else { return None };
        let zeros = |key: &u8| if *key == NOTHING { ZERO } else { *key };
        let blocks: Vec<u8> = blocks.iter().map(zeros).collect();
        let is_told = |v: &Version| v.len == len && v.mtime == mtime && v.ino != HIDDEN;
        let exact = versions.iter().rev().find(|v| is_told(v) && v.keys() == blocks).copied();
        // What was hidden is not to be seen under its own size and mtime.
        let is_old = |v: &Version| v.ino == HIDDEN && v.len == len && v.mtime == mtime;
        let begins = |v: &&Version| v.len >= len && !is_old(v) && v.cut(len).keys() == blocks;
        let prefix = versions.iter().rev().find(begins).filter(|_| prefixes && versions.iter().any(is_told));
        exact.or(prefix.map(|v| v.cut(len)))
    }

    /// Some file that is not among the longest becomes longer. Returns which, if there is one.
    pub fn grow(&mut self, rng: &mut Rng) -> Option<usize> {
        let i = rng.usize(..self.entries.len());
        let entry = &mut self.entries[i];
        let Kind::File(versions) = &mut entry.kind else { return None };
        let last = versions.last().copied().filter(|_| entry.alive)?;
        let longer: Vec<u64> = LENGTHS.iter().copied().filter(|len| *len > last.len).collect();
        let len = *longer.get(rng.usize(..longer.len().max(1)))?;
        versions.push(Version { len, mtime: last.mtime + 1, ctime: last.ctime + 1, ..last });
        Some(i)
    }

    /// Somebody puts an older version of a file back, as it was. Returns it, if there is one.
    pub fn restore(&mut self, rng: &mut Rng, entry: usize) -> Option<Version> {
        let entry = &mut self.entries[entry];
        let Kind::File(versions) = &mut entry.kind else { return None };
        if !entry.alive || versions.len() < 2 {
            return None;
        }
        let ctime = versions.last().expect("at least one").ctime + 1;
        let version = Version { ctime, ..versions[rng.usize(..versions.len() - 1)] };
        versions.push(version);
        Some(version)
    }

    /// Something happens to a file at the source. Returns it and what happened; true: its content, length
    /// or mtime are not what they were.
    pub fn disturb(&mut self, rng: &mut Rng) -> Option<(usize, &'static str, bool)> {
        let i = rng.usize(..self.entries.len());
        let entry = &mut self.entries[i];
        let Kind::File(versions) = &mut entry.kind else { return None };
        if !entry.alive {
            return None;
        }
        let mut version = *versions.last().expect("at least one");
        version.ctime += 1;
        let (what, renewed) = match rng.u8(..10) {
            0..3 => {
                version.key = version.key % KEYS + 1;
                version.mtime += 1;
                version.holes = holes(rng, version.len);
                ("rewritten", true)
            }
            3 | 4 => {
                version.len = LENGTHS[rng.usize(..LENGTHS.len())];
                version.key = version.key % KEYS + 1;
                version.mtime += 1;
                version.ino += 1000;
                version.holes = holes(rng, version.len);
                ("replaced", true)
            }
            5 | 6 => ("chmod", false),
            7 | 8 => {
                version.key = version.key % KEYS + 1;
                if rng.bool() {
                    version.holes = holes(rng, version.len);
                }
                ("rewritten with its mtime set back", true)
            }
            _ => {
                entry.alive = false;
                ("removed", true)
            }
        };
        versions.push(version);
        Some((i, what, renewed))
    }
}
