//! Hashing of payload: the chaining values that `haul_core::digest` merges.
//!
//! In: the bytes of a range and where they lie. Out: BLAKE3 values of them. Runs on the thread that has the
//! bytes at hand (reader or stream), one pass, no copy.

use blake3::hazmat::HasherExt;
use haul_core::digest::{Cv, Root, subtrees};

/// The canonical list of chaining values of `data`, which lies at `offset` of its file; `tail`: it ends at
/// the end of the file. The ranges are those of `haul_core::digest::subtrees(offset, len, tail)`.
///
/// Not for a range that is the whole file: that is [`root`].
/// Edge: empty for a range that cannot be cut into subtrees (`haul_core::digest::is_aligned`).
pub fn chaining_values(offset: u64, data: &[u8], tail: bool) -> Vec<Cv> {
    let mut rest = data;
    subtrees(offset, data.len() as u64, tail)
        .map(|(at, len)| {
            // The ranges tile `data`, so each length fits and is not zero.
            let (subtree, behind) = rest.split_at(len as usize);
            rest = behind;
            blake3::Hasher::new().set_input_offset(at).update(subtree).finalize_non_root()
        })
        .collect()
}

/// The BLAKE3 hash of a whole file.
pub fn root(data: &[u8]) -> Root {
    *blake3::hash(data).as_bytes()
}

#[cfg(test)]
mod tests {
    use haul_core::digest::SubtreeSet;

    use super::*;

    /// Inserts the values of a range of a file as a sink does.
    fn insert(set: &mut SubtreeSet, data: &[u8], start: usize, end: usize) {
        let (offset, len) = (start as u64, (end - start) as u64);
        let tail = end == data.len();
        if start == 0 && tail {
            set.insert(offset, len, root(data)).expect("the whole file is a node");
            return;
        }
        let values = chaining_values(offset, &data[start..end], tail);
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
            let mut set = SubtreeSet::new(size as u64);
            for start in starts {
                insert(&mut set, data, start, size.min(start + OBJECT));
            }
            assert_eq!(set.root(), Some(root(data)), "{size} bytes");
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
            let mut set = SubtreeSet::new(size as u64);
            for (start, end) in pieces {
                insert(&mut set, &data, start, end);
            }
            assert_eq!(set.root(), Some(root(&data)), "{size} bytes");
        }
    }

    /// Goal: a range off the chunk grid gives no values instead of wrong ones.
    #[test]
    fn unaligned_ranges_have_no_values() {
        assert!(chaining_values(1, &[0; 1024], true).is_empty());
        assert!(chaining_values(1024, &[0; 1000], false).is_empty());
        assert!(chaining_values(u64::MAX - 1023, &[0; 2048], true).is_empty());
    }
}
