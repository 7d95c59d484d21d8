//! Digests as a tree: chaining values of ranges, merged until the root.
//!
//! In: chaining values of ranges of a file, in any order, some of them twice. Out: the maximal subtrees that
//! are known, what is missing, and in the end the root, which of a BLAKE3 tree equals the plain BLAKE3 hash
//! of the file. Of a sparse file only the data extents are wanted, and its root is another, see
//! [`SubtreeSet::root`]. An XXH3 tree ([`xxh3`]) has the same shape over larger leaves and other values, so
//! that all that is said, kept and resumed of ranges is one thing for both.
//! Invariants: a [`SubtreeSet`] holds disjoint nodes of the tree of its file and never two siblings; the node
//! that is the whole file holds the root and nothing else does.
//! Left out: payload. Not one byte of it is hashed here; who has it makes the values (`haul::digest`). Nor
//! are values compared: a value goes in here after it was checked against the bytes.

use std::collections::BTreeMap;

use blake3::hazmat::{Mode, max_subtree_len, merge_subtrees_non_root, merge_subtrees_root};

use crate::extents::ExtentMap;

pub mod xxh3;

/// What the hash of a sparse root begins with: it is never a plain hash of anything.
const SPARSE_CONTEXT: &str = "haul v1 root of a sparse file";

/// The chaining value of a subtree that is not the root.
pub type Cv = [u8; 32];
/// The BLAKE3 hash of a whole file.
pub type Root = [u8; 32];

/// Length of BLAKE3's leaves, bytes: every subtree begins at a multiple of it.
pub const CHUNK_LEN: u64 = blake3::CHUNK_LEN as u64;

/// How the values of a tree are made. One session has one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DigestKind {
    #[default]
    Blake3,
    /// [`xxh3`]: for accidents only.
    Xxh3,
}

impl DigestKind {
    /// The name that users type and read.
    pub fn name(self) -> &'static str {
        match self {
            DigestKind::Blake3 => "blake3",
            DigestKind::Xxh3 => "xxh3",
        }
    }

    /// Length of the tree's leaves, bytes: a node begins at a multiple of it and ends at one, or with the
    /// file.
    pub fn leaf_len(self) -> u64 {
        match self {
            DigestKind::Blake3 => CHUNK_LEN,
            DigestKind::Xxh3 => xxh3::LEAF_LEN,
        }
    }

    /// Whether a range can be cut into nodes: as [`is_aligned`], on the grid of this kind's leaves.
    pub fn is_aligned(self, offset: u64, len: u64, tail: bool) -> bool {
        let leaf = self.leaf_len();
        is_aligned(offset, len, tail) && offset.is_multiple_of(leaf) && (tail || len.is_multiple_of(leaf))
    }

    /// Whether `value` can be a value of this kind: XXH3's carry a tag, BLAKE3's never do.
    pub fn is_value(self, value: &Cv) -> bool {
        value.ends_with(&xxh3::TAG) == (self == DigestKind::Xxh3)
    }
}

/// A subtree: the range `offset..offset + len` of its file and its chaining value (or the root, if the
/// range is the whole file).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subtree {
    pub offset: u64,
    pub len: u64,
    pub cv: Cv,
}

impl Subtree {
    /// Where the range ends, exclusive. No overflow: a subtree lies within its file.
    fn end(&self) -> u64 {
        self.offset + self.len
    }
}

/// Why a chaining value was refused. It says nothing about the value but whether it is of the right kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DigestError {
    #[error("{len} bytes at {offset} go beyond the end of a file of {total} bytes")]
    BeyondEnd { offset: u64, len: u64, total: u64 },
    #[error("{len} bytes at {offset} are no subtree of a file of {total} bytes")]
    NotASubtree { offset: u64, len: u64, total: u64 },
    #[error("{len} bytes at {offset} touch a hole of a sparse file")]
    InHole { offset: u64, len: u64 },
    #[error("the value of {len} bytes at {offset} is of another digest than the file's")]
    OtherDigest { offset: u64, len: u64 },
}

/// Whether a range can be cut into subtrees: `offset` on a chunk's edge, its end too unless it is the file's
/// (`tail`), and no overflow.
pub fn is_aligned(offset: u64, len: u64, tail: bool) -> bool {
    offset.is_multiple_of(CHUNK_LEN)
        && (tail || len.is_multiple_of(CHUNK_LEN))
        && offset.checked_add(len).is_some()
}

/// The canonical list of maximal subtrees of a range, as `(offset, len)`, in order and without gaps.
///
/// `tail`: the range ends at the end of the file, so that its last subtree may be odd. An object of the
/// design (length a power of two, offset a multiple of it, or the tail of such) is exactly one subtree.
/// At most 2 x log2(len) items.
/// Edge: a range that is not [`is_aligned`] has no subtrees, and neither has an empty one. Offset and length
/// may come from a peer; who compares lists must check `is_aligned` first, for two empty lists are equal.
pub fn subtrees(offset: u64, len: u64, tail: bool) -> impl Iterator<Item = (u64, u64)> {
    let mut at = offset;
    let mut left = if is_aligned(offset, len, tail) { len } else { 0 };
    std::iter::from_fn(move || {
        if left == 0 {
            return None;
        }
        let len_max = max_subtree_len(at).unwrap_or(u64::MAX);
        let len = if tail && left <= len_max { left } else { len_max.min(1 << left.ilog2()) };
        let item = (at, len);
        at += len;
        left -= len;
        Some(item)
    })
}

/// The chaining values that are known of one file, siblings merged.
///
/// Memory: one entry per maximal subtree. That is O(log n) when ranges arrive in order, and never more than
/// the gaps between them ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubtreeSet {
    kind: DigestKind,
    total: u64,
    covered: u64,
    /// By offset; disjoint.
    nodes: BTreeMap<u64, (u64, Cv)>,
    /// Where a sparse file has data; never a full map.
    map: Option<ExtentMap>,
    /// Siblings merge up to nodes of this length.
    merged_max: u64,
}

impl SubtreeSet {
    /// A set for a file of `total` bytes, of which nothing is known. An empty file is complete at once.
    pub fn new(kind: DigestKind, total: u64) -> SubtreeSet {
        SubtreeSet { kind, total, covered: 0, nodes: BTreeMap::new(), map: None, merged_max: u64::MAX }
    }

    /// As [`SubtreeSet::new`], but siblings merge up to nodes of `merged_max` bytes only, so that what is
    /// found wrong later is found to be in one of these. A file that is longer gets no root.
    pub fn capped(kind: DigestKind, total: u64, merged_max: u64) -> SubtreeSet {
        SubtreeSet { merged_max, ..SubtreeSet::new(kind, total) }
    }

    /// A set for the file of this map, of which nothing is known. One without data is complete at once; one
    /// without holes is as any other file.
    pub fn with_map(kind: DigestKind, map: ExtentMap) -> SubtreeSet {
        let total = map.size();
        SubtreeSet { map: Some(map).filter(|map| !map.is_full()), ..SubtreeSet::new(kind, total) }
    }

    /// As [`SubtreeSet::with_map`], capped as by [`SubtreeSet::capped`].
    pub fn capped_with_map(kind: DigestKind, map: ExtentMap, merged_max: u64) -> SubtreeSet {
        SubtreeSet { merged_max, ..SubtreeSet::with_map(kind, map) }
    }

    /// A set for the same file, of which nothing is known.
    pub fn fresh(&self) -> SubtreeSet {
        let empty = SubtreeSet::new(self.kind, self.total);
        SubtreeSet { map: self.map.clone(), merged_max: self.merged_max, ..empty }
    }

    /// How its values are made.
    pub fn kind(&self) -> DigestKind {
        self.kind
    }

    /// Where the file has data, if it is a sparse one.
    pub fn map(&self) -> Option<&ExtentMap> {
        self.map.as_ref()
    }

    /// Takes the chaining value of a subtree; of the whole file, its root. True if any of it was new.
    ///
    /// A range that is held already, alone or within a larger one, changes nothing (false). Smaller ones
    /// that are held within the range give way to it.
    ///
    /// # Errors
    /// If the range is no node of this file's tree. Two nodes of one tree never overlap in part, so a range
    /// that overlaps a held one in part is refused here too. In a sparse file also if any of it is a hole. A
    /// value that is plainly of the other kind is refused.
    pub fn insert(&mut self, offset: u64, len: u64, cv: Cv) -> Result<bool, DigestError> {
        self.would_take(offset, len, &cv)?;
        if len == 0 || self.covering(offset).is_some_and(|held| held.end() >= offset + len) {
            return Ok(false);
        }
        let mut node = Subtree { offset, len, cv };
        while let Some((&inner, &(inner_len, _))) = self.nodes.range(offset..node.end()).next() {
            self.nodes.remove(&inner);
            self.covered -= inner_len;
        }
        self.covered += len;
        while let Some(sibling) = self.take_sibling(&node) {
            node = self.merge(node, sibling);
        }
        self.nodes.insert(node.offset, (node.len, node.cv));
        Ok(true)
    }

    /// Whether [`SubtreeSet::insert`] would take this.
    ///
    /// # Errors
    /// As those of [`SubtreeSet::insert`].
    pub fn would_take(&self, offset: u64, len: u64, cv: &Cv) -> Result<(), DigestError> {
        self.check(offset, len)?;
        match self.kind.is_value(cv) || haul_mutant::removed("digest-kind") {
            true => Ok(()),
            false => Err(DigestError::OtherDigest { offset, len }),
        }
    }

    /// Size of the file, bytes.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Bytes that are covered.
    pub fn covered(&self) -> u64 {
        self.covered
    }

    /// How many maximal subtrees are held.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// True if nothing is held (so also for an empty file).
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// True if every byte is covered; of a sparse file, every byte of data.
    pub fn is_complete(&self) -> bool {
        self.covered == self.map.as_ref().map_or(self.total, ExtentMap::data_len)
    }

    /// The root, once the file is complete.
    ///
    /// Of a sparse file it is a hash of its map and of the chaining values of the maximal subtrees of its
    /// data, by offset. As no siblings are held, these follow from the map alone, in whatever order the
    /// values came.
    /// Cost: linear in the subtrees, for sparse files only.
    pub fn root(&self) -> Option<Root> {
        if let Some(map) = &self.map {
            if !self.is_complete() {
                return None;
            }
            let mut hasher = blake3::Hasher::new_derive_key(SPARSE_CONTEXT);
            hasher.update(&map.digest());
            for (_, cv) in self.nodes.values() {
                hasher.update(cv);
            }
            let root = *hasher.finalize().as_bytes();
            return Some(match self.kind {
                DigestKind::Blake3 => root,
                DigestKind::Xxh3 => xxh3::cut(root),
            });
        }
        if self.total == 0 {
            return Some(match self.kind {
                DigestKind::Blake3 => *blake3::hash(&[]).as_bytes(),
                DigestKind::Xxh3 => xxh3::empty(),
            });
        }
        // Never two siblings: a complete file is one node.
        self.nodes.get(&0).filter(|(len, _)| *len == self.total).map(|(_, root)| *root)
    }

    /// True if every byte of the range is covered. An empty range within the file is.
    pub fn covers(&self, offset: u64, len: u64) -> bool {
        let Some(end) = offset.checked_add(len).filter(|end| *end <= self.total) else { return false };
        let mut at = offset;
        while at < end {
            match self.covering(at) {
                Some(held) => at = held.end(),
                None => return false,
            }
        }
        true
    }

    /// The maximal subtree that contains the byte at `offset`.
    pub fn covering(&self, offset: u64) -> Option<Subtree> {
        let (&start, &(len, cv)) = self.nodes.range(..=offset).next_back()?;
        Some(Subtree { offset: start, len, cv }).filter(|held| offset < held.end())
    }

    /// The first range `start..end` at or after `from` of which nothing is known, and that is no hole.
    pub fn next_missing(&self, from: u64) -> Option<(u64, u64)> {
        let mut start = from;
        let end = loop {
            let end = match &self.map {
                Some(map) => {
                    let extent = map.next(start)?;
                    start = start.max(extent.offset);
                    extent.end()
                }
                None => self.total,
            };
            match self.covering(start) {
                Some(held) => start = held.end(),
                None => break end,
            }
        };
        let end = self.nodes.range(start..).next().map_or(end, |(next, _)| end.min(*next));
        (start < end).then_some((start, end))
    }

    /// Forgets the subtree that begins at `offset`, if one does.
    pub fn remove(&mut self, offset: u64) -> Option<Subtree> {
        let (len, cv) = self.nodes.remove(&offset)?;
        self.covered -= len;
        Some(Subtree { offset, len, cv })
    }

    /// The maximal subtrees that have a byte in common with a range.
    pub fn touching(&self, offset: u64, len: u64) -> impl Iterator<Item = Subtree> + '_ {
        let first = self.covering(offset).map_or(offset, |held| held.offset);
        let end = offset.saturating_add(len).max(first);
        self.nodes.range(first..end).map(|(&offset, &(len, cv))| Subtree { offset, len, cv })
    }

    /// The maximal subtrees, by offset.
    pub fn iter(&self) -> impl Iterator<Item = Subtree> + '_ {
        self.nodes.iter().map(|(&offset, &(len, cv))| Subtree { offset, len, cv })
    }

    /// Whether the range is a node of the tree: an aligned power of two, or cut off by the end of the file.
    fn check(&self, offset: u64, len: u64) -> Result<(), DigestError> {
        let total = self.total;
        let Some(end) = offset.checked_add(len).filter(|end| *end <= total) else {
            return Err(DigestError::BeyondEnd { offset, len, total });
        };
        let leaf_len = self.kind.leaf_len();
        let is_node = if offset == 0 && end == total {
            true
        } else if len == 0 || !offset.is_multiple_of(leaf_len) {
            false
        } else if end == total {
            max_subtree_len(offset).is_some_and(|len_max| len <= len_max)
        } else {
            len >= leaf_len && len.is_power_of_two() && offset.is_multiple_of(len)
        };
        if !is_node {
            return Err(DigestError::NotASubtree { offset, len, total });
        }
        match &self.map {
            Some(map) if !map.covers(offset, len) && !haul_mutant::removed("data-in-holes") => {
                Err(DigestError::InHole { offset, len })
            }
            _ => Ok(()),
        }
    }

    /// The range of the sibling of a node; `None` for the root.
    fn sibling(&self, node: &Subtree) -> Option<(u64, u64)> {
        let Subtree { offset, len, .. } = *node;
        if node.end() == self.total {
            // On the right edge a node may stand for several levels that hold nothing else; its parent is
            // the lowest that holds more, and there it is the right child of a full one.
            let left_len = max_subtree_len(offset)?;
            Some((offset - left_len, left_len))
        } else if (offset / len).is_multiple_of(2) {
            Some((node.end(), len.min(self.total - node.end())))
        } else {
            Some((offset - len, len))
        }
    }

    /// Takes the sibling of a node out of the set, if it is held.
    fn take_sibling(&mut self, node: &Subtree) -> Option<Subtree> {
        let (offset, len) = self.sibling(node)?;
        if node.len.saturating_add(len) > self.merged_max {
            return None;
        }
        let (_, cv) = *self.nodes.get(&offset).filter(|(held_len, _)| *held_len == len)?;
        self.nodes.remove(&offset);
        Some(Subtree { offset, len, cv })
    }

    /// The parent of two siblings.
    fn merge(&self, a: Subtree, b: Subtree) -> Subtree {
        let (left, right) = if a.offset < b.offset { (a, b) } else { (b, a) };
        let len = left.len + right.len;
        let cv = match (self.kind, len == self.total) {
            (DigestKind::Blake3, true) => *merge_subtrees_root(&left.cv, &right.cv, Mode::Hash).as_bytes(),
            (DigestKind::Blake3, false) => merge_subtrees_non_root(&left.cv, &right.cv, Mode::Hash),
            (DigestKind::Xxh3, true) => xxh3::root(len, &xxh3::parent(&left.cv, &right.cv)),
            (DigestKind::Xxh3, false) => xxh3::parent(&left.cv, &right.cv),
        };
        Subtree { offset: left.offset, len, cv }
    }
}

#[cfg(test)]
mod tests;
