//! Hashing of payload: the chaining values that `haul_core::digest` merges.
//!
//! In: the bytes of a range and where they lie. Out: values of them, of either kind. Runs on the thread that
//! has the bytes at hand (reader or stream), one pass, no copy; whole or as they come ([`Hasher`],
//! [`RangeHasher`]).

use blake3::hazmat::HasherExt;
use haul_core::digest::{Cv, DigestKind, Root, subtrees, xxh3};
use twox_hash::XxHash3_128;

/// Length of XXH3's leaves.
const LEAF_LEN: usize = xxh3::LEAF_LEN as usize;

/// The canonical list of chaining values of `data`, which lies at `offset` of its file; `tail`: it ends at
/// the end of the file. The ranges are those of `haul_core::digest::subtrees(offset, len, tail)`.
///
/// Not for a range that is the whole file: that is [`root`].
/// Edge: empty for a range that cannot be cut into subtrees ([`DigestKind::is_aligned`]).
pub fn chaining_values(kind: DigestKind, offset: u64, data: &[u8], tail: bool) -> Vec<Cv> {
    let mut range = RangeHasher::part(kind, offset, data.len() as u64, tail);
    range.update(data);
    range.finish()
}

/// The digest of a whole file.
pub fn root(kind: DigestKind, data: &[u8]) -> Root {
    match kind {
        DigestKind::Blake3 => *blake3::hash(data).as_bytes(),
        DigestKind::Xxh3 => {
            let mut hasher = Hasher::new(kind, 0);
            hasher.update(data);
            hasher.root()
        }
    }
}

/// Hashes one node of a file's tree, in pieces of any length.
pub struct Hasher(Inner);

// One of each range or file at a time, on its thread's stack.
#[allow(clippy::large_enum_variant)]
enum Inner {
    Blake3(blake3::Hasher),
    Xxh3(Tree),
}

impl Hasher {
    /// A node that begins at `offset`, a multiple of [`DigestKind::leaf_len`]; 0 for a whole file.
    pub fn new(kind: DigestKind, offset: u64) -> Hasher {
        Hasher(match kind {
            DigestKind::Blake3 => {
                let mut hasher = blake3::Hasher::new();
                // It asserts that nothing else was done to it, and 0 is what it begins with.
                if offset > 0 {
                    hasher.set_input_offset(offset);
                }
                Inner::Blake3(hasher)
            }
            DigestKind::Xxh3 => Inner::Xxh3(Tree::default()),
        })
    }

    /// Takes the next bytes.
    pub fn update(&mut self, data: &[u8]) {
        match &mut self.0 {
            Inner::Blake3(hasher) => drop(hasher.update(data)),
            Inner::Xxh3(tree) => tree.update(data),
        }
    }

    /// The value of the node, which is not the whole file and not empty.
    pub fn value(&self) -> Cv {
        match &self.0 {
            Inner::Blake3(hasher) => hasher.finalize_non_root(),
            Inner::Xxh3(tree) => tree.top(),
        }
    }

    /// The digest of the file that these bytes are.
    pub fn root(&self) -> Root {
        match &self.0 {
            Inner::Blake3(hasher) => *hasher.finalize().as_bytes(),
            Inner::Xxh3(tree) => xxh3::root(tree.len, &tree.top()),
        }
    }
}

/// An XXH3 tree over bytes as they come.
#[derive(Default)]
struct Tree {
    len: u64,
    /// The leaf that is not full, and how much of it came.
    open: Option<(XxHash3_128Stream, usize)>,
    /// Nodes that wait for their sibling, each larger than the next: at most one of each size.
    nodes: Vec<Cv>,
    leaves: u64,
}

type XxHash3_128Stream = twox_hash::xxhash3_128::Hasher;

impl Tree {
    fn update(&mut self, mut data: &[u8]) {
        self.len += data.len() as u64;
        while !data.is_empty() {
            let (hasher, have) = match self.open.take() {
                // Whole leaves are hashed where they are.
                None if data.len() >= LEAF_LEN => {
                    let (leaf, rest) = data.split_at(LEAF_LEN);
                    self.push(xxh3::leaf(XxHash3_128::oneshot_with_seed(xxh3::LEAF_SEED, leaf)));
                    data = rest;
                    continue;
                }
                None => (XxHash3_128Stream::with_seed(xxh3::LEAF_SEED), 0),
                Some(open) => open,
            };
            let (part, rest) = data.split_at(data.len().min(LEAF_LEN - have));
            let mut hasher = hasher;
            hasher.write(part);
            data = rest;
            match have + part.len() {
                LEAF_LEN => self.push(xxh3::leaf(hasher.finish_128())),
                have => self.open = Some((hasher, have)),
            }
        }
    }

    /// Takes the next leaf. Two nodes of one size are siblings, for a leaf that is not full is the last.
    fn push(&mut self, leaf: Cv) {
        self.leaves += 1;
        let mut node = leaf;
        for _ in 0..self.leaves.trailing_zeros() {
            let Some(left) = self.nodes.pop() else { break };
            node = xxh3::parent(&left, &node);
        }
        self.nodes.push(node);
    }

    fn top(&self) -> Cv {
        let last = match &self.open {
            Some((hasher, _)) => Some(xxh3::leaf(hasher.finish_128())),
            None if self.nodes.is_empty() => {
                Some(xxh3::leaf(XxHash3_128::oneshot_with_seed(xxh3::LEAF_SEED, &[])))
            }
            None => None,
        };
        let mut nodes = self.nodes.iter().rev();
        let last = last.or_else(|| nodes.next().copied());
        // There is always one: the last leaf, or a node before it.
        nodes.fold(last.unwrap_or_default(), |right, left| xxh3::parent(left, &right))
    }
}

/// Hashes a range of a file as it comes: one [`Hasher`] for each of its subtrees.
pub struct RangeHasher {
    kind: DigestKind,
    /// The subtrees that are not begun, the next at the end; `None`: the range is the whole file.
    ahead: Vec<(u64, u64)>,
    whole: bool,
    /// The one that is begun, and how much of it is missing.
    open: Option<(Hasher, u64)>,
    values: Vec<Cv>,
}

impl RangeHasher {
    /// A range that is not the whole file; see [`chaining_values`].
    pub fn part(kind: DigestKind, offset: u64, len: u64, tail: bool) -> RangeHasher {
        let mut ahead: Vec<_> = match kind.is_aligned(offset, len, tail) {
            true => subtrees(offset, len, tail).collect(),
            false => Vec::new(),
        };
        ahead.reverse();
        let values = Vec::with_capacity(ahead.len());
        RangeHasher { kind, ahead, whole: false, open: None, values }
    }

    /// A range that is the whole file.
    pub fn whole(kind: DigestKind) -> RangeHasher {
        let open = Some((Hasher::new(kind, 0), u64::MAX));
        RangeHasher { kind, ahead: Vec::new(), whole: true, open, values: Vec::new() }
    }

    /// Takes the next bytes. What goes beyond the range is left out.
    pub fn update(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            let (mut hasher, left) = match self.open.take() {
                Some(open) => open,
                None => match self.ahead.pop() {
                    Some((offset, len)) => (Hasher::new(self.kind, offset), len),
                    None => return,
                },
            };
            let (part, rest) = data.split_at(left.min(data.len() as u64) as usize);
            hasher.update(part);
            data = rest;
            match left - part.len() as u64 {
                0 => self.values.push(hasher.value()),
                left => self.open = Some((hasher, left)),
            }
        }
    }

    /// The values of the subtrees that came whole, or the one of the whole file.
    pub fn finish(mut self) -> Vec<Cv> {
        if let Some((hasher, _)) = self.open.filter(|_| self.whole) {
            self.values.push(hasher.root());
        }
        self.values
    }
}

#[cfg(test)]
mod tests {
    use haul_core::digest::SubtreeSet;

    use super::*;

    const KIND: DigestKind = DigestKind::Blake3;

    /// Inserts the values of a range of a file as a sink does.
    fn insert(set: &mut SubtreeSet, data: &[u8], start: usize, end: usize) {
        let (offset, len) = (start as u64, (end - start) as u64);
        let tail = end == data.len();
        if start == 0 && tail {
            set.insert(offset, len, root(KIND, data)).expect("the whole file is a node");
            return;
        }
        let values = chaining_values(KIND, offset, &data[start..end], tail);
        let ranges: Vec<_> = subtrees(offset, len, tail).collect();
        assert_eq!(values.len(), ranges.len());
        for ((at, len), cv) in ranges.into_iter().zip(values) {
            set.insert(at, len, cv).expect("the list names nodes");
        }
    }

    /// Goal: what the sink puts together from objects is the plain hash.
    /// Method: sizes around every boundary, objects of 64 KiB in random order, against `blake3::hash`.
    #[test]
    fn objects_give_the_plain_hash() {
        const OBJECT: usize = 64 * 1024;
        let mut rng = fastrand::Rng::with_seed(1);
        let all: Vec<u8> = (0..10 * OBJECT).map(|_| rng.u8(..)).collect();
        let around = |n: usize| [n.saturating_sub(1025), n.saturating_sub(1), n, n + 1, n + 1024, n + 1025];
        let mut sizes: Vec<usize> = (0..9).flat_map(|i| around(i * OBJECT)).collect();
        sizes.extend((0..40).map(|_| rng.usize(..all.len())));
        for size in sizes {
            let data = &all[..size];
            let mut starts: Vec<usize> = (0..size).step_by(OBJECT).collect();
            rng.shuffle(&mut starts);
            let mut set = SubtreeSet::new(KIND, size as u64);
            for start in starts {
                insert(&mut set, data, start, size.min(start + OBJECT));
            }
            assert_eq!(set.root(), Some(root(KIND, data)), "{size} bytes");
        }
    }

    /// Goal: ranges that are no objects (odd starts, several subtrees) give the plain hash too.
    /// Method: files cut at random chunk edges, pieces in random order.
    #[test]
    fn odd_ranges_give_the_plain_hash() {
        let mut rng = fastrand::Rng::with_seed(2);
        for _ in 0..200 {
            let size = rng.usize(1..300_000);
            let data: Vec<u8> = (0..size).map(|_| rng.u8(..)).collect();
            let mut cuts: Vec<usize> =
                (0..rng.usize(0..12)).map(|_| rng.usize(..size) / 1024 * 1024).collect();
            cuts.extend([0, size]);
            cuts.sort_unstable();
            cuts.dedup();
            let mut pieces: Vec<_> = cuts.windows(2).map(|w| (w[0], w[1])).collect();
            rng.shuffle(&mut pieces);
            let mut set = SubtreeSet::new(KIND, size as u64);
            for (start, end) in pieces {
                insert(&mut set, &data, start, end);
            }
            assert_eq!(set.root(), Some(root(KIND, &data)), "{size} bytes");
        }
    }

    /// Goal: a range off the chunk grid gives no values instead of wrong ones.
    #[test]
    fn unaligned_ranges_have_no_values() {
        assert!(chaining_values(KIND, 1, &[0; 1024], true).is_empty());
        assert!(chaining_values(KIND, 1024, &[0; 1000], false).is_empty());
        assert!(chaining_values(KIND, u64::MAX - 1023, &[0; 2048], true).is_empty());
    }

    /// The XXH3 digest of a file as docs/wire.md defines it: by recursion.
    fn xxh3_by_definition(data: &[u8]) -> Root {
        fn node(data: &[u8]) -> [u8; 16] {
            if data.len() <= LEAF_LEN {
                return XxHash3_128::oneshot(data).to_be_bytes();
            }
            let leaves = data.len().div_ceil(LEAF_LEN);
            let (left, right) = data.split_at(leaves.next_power_of_two() / 2 * LEAF_LEN);
            XxHash3_128::oneshot_with_seed(1, &[node(left), node(right)].concat()).to_be_bytes()
        }
        let text = [&(data.len() as u64).to_le_bytes()[..], &node(data)].concat();
        let hash = XxHash3_128::oneshot_with_seed(2, &text).to_be_bytes();
        [hash, *b"haul xxh3-128 v1"].concat().try_into().expect("32 bytes")
    }

    /// Goal: whatever the objects and whatever their order, the XXH3 digest of a file is the defined one.
    /// Method: sizes around every boundary of leaf and object, objects of two sizes in random order.
    #[test]
    fn objects_give_the_defined_xxh3() {
        const KIND: DigestKind = DigestKind::Xxh3;
        let mut rng = fastrand::Rng::with_seed(3);
        let all: Vec<u8> = (0..18 * LEAF_LEN).map(|_| rng.u8(..)).collect();
        let around = |n: usize| [n.saturating_sub(1), n, n + 1, n + 1024];
        let mut sizes: Vec<usize> = (0..17).flat_map(|i| around(i * LEAF_LEN)).collect();
        sizes.extend((0..20).map(|_| rng.usize(..all.len())));
        for size in sizes {
            let data = &all[..size];
            let want = xxh3_by_definition(data);
            assert_eq!(root(KIND, data), want, "{size} bytes at once");
            for object in [LEAF_LEN, 4 * LEAF_LEN] {
                let mut starts: Vec<usize> = (0..size).step_by(object).collect();
                rng.shuffle(&mut starts);
                let mut set = SubtreeSet::new(KIND, size as u64);
                for start in starts {
                    let end = size.min(start + object);
                    let (offset, len, tail) = (start as u64, (end - start) as u64, end == size);
                    if start == 0 && tail {
                        set.insert(0, len, root(KIND, data)).expect("the whole file is a node");
                        continue;
                    }
                    let values = chaining_values(KIND, offset, &data[start..end], tail);
                    let ranges: Vec<_> = subtrees(offset, len, tail).collect();
                    assert_eq!(ranges.len(), values.len());
                    for ((at, len), value) in ranges.into_iter().zip(values) {
                        set.insert(at, len, value).expect("a node of the tree");
                    }
                }
                assert_eq!(set.root(), Some(want), "{size} bytes in objects of {object}");
            }
        }
    }

    /// Goal: bytes give the same values however they are cut on their way into a hasher, for both kinds.
    #[test]
    fn pieces_of_any_length_give_the_same() {
        let mut rng = fastrand::Rng::with_seed(4);
        let data: Vec<u8> = (0..5 * LEAF_LEN + 77).map(|_| rng.u8(..)).collect();
        for kind in [DigestKind::Blake3, DigestKind::Xxh3] {
            for _ in 0..30 {
                let mut whole = RangeHasher::whole(kind);
                let mut part = RangeHasher::part(kind, 3 * xxh3::LEAF_LEN, data.len() as u64, true);
                let mut rest = &data[..];
                while !rest.is_empty() {
                    let (piece, behind) = rest.split_at(rng.usize(1..=rest.len().min(100_000)));
                    whole.update(piece);
                    part.update(piece);
                    rest = behind;
                }
                assert_eq!(whole.finish(), [root(kind, &data)]);
                let want = chaining_values(kind, 3 * xxh3::LEAF_LEN, &data, true);
                assert!(want.len() > 1);
                assert_eq!(part.finish(), want);
            }
        }
    }

    /// Goal: values of one kind have no place in a tree of the other, and neither do nodes below its leaves.
    #[test]
    fn kinds_do_not_mix() {
        let data = vec![7; 2 * LEAF_LEN];
        let value = |kind| chaining_values(kind, 0, &data[..LEAF_LEN], false)[0];
        let (blake3, xxh3) = (DigestKind::Blake3, DigestKind::Xxh3);
        for (kind, other) in [(blake3, xxh3), (xxh3, blake3)] {
            let mut set = SubtreeSet::new(kind, data.len() as u64);
            assert!(set.insert(0, LEAF_LEN as u64, value(other)).is_err());
            assert!(set.insert(0, LEAF_LEN as u64, value(kind)).is_ok());
            assert_ne!(root(kind, &[]), root(other, &[]));
        }
        let mut set = SubtreeSet::new(xxh3, data.len() as u64);
        assert!(set.insert(1024, 1024, value(xxh3)).is_err(), "smaller than a leaf");
        assert!(chaining_values(xxh3, 1024, &data[..LEAF_LEN], false).is_empty());
    }
}
