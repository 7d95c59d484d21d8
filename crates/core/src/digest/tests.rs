use blake3::hazmat::{HasherExt, left_subtree_len};

use super::*;

fn payload(len: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(len);
    (0..len).map(|_| rng.u8(..)).collect()
}

/// What `haul::digest` does for one subtree.
fn cv(data: &[u8], offset: u64, len: u64) -> Cv {
    let range = &data[offset as usize..(offset + len) as usize];
    if len == data.len() as u64 {
        return *blake3::hash(range).as_bytes();
    }
    blake3::Hasher::new().set_input_offset(offset).update(range).finalize_non_root()
}

/// The ranges of the objects of a file.
fn objects(total: u64, object_len: u64) -> Vec<(u64, u64)> {
    (0..total.div_ceil(object_len))
        .map(|i| (i * object_len, object_len.min(total - i * object_len)))
        .collect()
}

/// All nodes of the tree of a file, by BLAKE3's own recursive rule.
fn all_nodes(offset: u64, len: u64, out: &mut Vec<(u64, u64)>) {
    out.push((offset, len));
    if len > CHUNK_LEN {
        let left = left_subtree_len(len);
        all_nodes(offset, left, out);
        all_nodes(offset + left, len - left, out);
    }
}

/// What must hold of a set, whatever went in.
fn check_invariants(set: &SubtreeSet, data: &[u8]) {
    let mut end = 0;
    let mut covered = 0;
    for held in set.iter() {
        assert!(held.offset >= end);
        assert_eq!(held.cv, cv(data, held.offset, held.len), "value of {} + {}", held.offset, held.len);
        end = held.offset + held.len;
        covered += held.len;
    }
    assert_eq!(covered, set.covered());
    assert_eq!(set.iter().count(), set.len());
    assert_eq!(set.root().is_some(), set.is_complete());
}

/// Goal: from objects in any order, with duplicates, comes the plain hash of the file, and every value that
/// stands in the set on the way is right.
/// Method: every file length up to 17 KiB, small objects, three orders, against `blake3::hash`.
#[test]
fn any_order_gives_the_plain_hash() {
    let all = payload(17 * 1024);
    let mut rng = fastrand::Rng::with_seed(1);
    for total in 0..=17 * 1024 {
        let data = &all[..total as usize];
        let hash = *blake3::hash(data).as_bytes();
        for object_len in [1024, 2048, 4096] {
            // Checking every value after every insert is dear: only around the chunks' edges.
            let near = total % 1024 <= 1 || total % 1024 == 1023;
            let values: Vec<_> =
                objects(total, object_len).into_iter().map(|(o, l)| (o, l, cv(data, o, l))).collect();
            for order in 0..3 {
                let mut inserts = values.clone();
                match order {
                    0 => {}
                    1 => inserts.reverse(),
                    _ => {
                        inserts.extend_from_slice(&values);
                        rng.shuffle(&mut inserts);
                    }
                }
                let mut set = SubtreeSet::new(DigestKind::Blake3, total);
                for (offset, len, value) in inserts {
                    let known = set.covers(offset, len);
                    assert_eq!(set.insert(offset, len, value), Ok(!known));
                    assert!(set.covers(offset, len));
                    if near {
                        check_invariants(&set, data);
                    }
                }
                assert!(set.is_complete());
                assert_eq!(set.root(), Some(hash), "{total} bytes in objects of {object_len}");
                assert_eq!(set.len(), usize::from(total > 0));
            }
        }
    }
}

/// Goal: exactly the nodes of the tree are taken, and every other range is refused without effect.
/// Method: every range on chunk edges (and off them) of small files, against the recursive definition.
#[test]
fn only_nodes_of_the_tree_are_taken() {
    for total in [1, 1023, 1024, 1025, 2048, 3000, 5 * 1024, 6 * 1024 + 1, 7 * 1024, 8 * 1024, 13 * 1024 - 1]
    {
        let mut nodes = Vec::new();
        all_nodes(0, total, &mut nodes);
        let mut edges: Vec<u64> = (0..=total / 1024 + 2).map(|i| i * 1024).collect();
        edges.extend([total, total + 1, 1, 1023, 1025, u64::MAX, u64::MAX - 1023]);
        for &start in &edges {
            for len in edges.iter().filter_map(|end| end.checked_sub(start)).chain([u64::MAX, 512]) {
                let mut set = SubtreeSet::new(DigestKind::Blake3, total);
                let result = set.insert(start, len, [7; 32]);
                if nodes.contains(&(start, len)) {
                    assert_eq!(result, Ok(true), "{start} + {len} of {total}");
                } else {
                    assert!(result.is_err(), "{start} + {len} of {total}");
                    assert_eq!(set, SubtreeSet::new(DigestKind::Blake3, total));
                    let beyond = start.checked_add(len).is_none_or(|end| end > total);
                    assert_eq!(matches!(result, Err(DigestError::BeyondEnd { .. })), beyond);
                }
            }
        }
    }
}

/// Goal: nodes of all levels mix: a larger one replaces smaller ones, a smaller one within a larger one
/// changes nothing, and coverage is that of a bitmap.
/// Method: random nodes of random files, against a bit per byte.
#[test]
fn nodes_of_all_levels_mix() {
    let mut rng = fastrand::Rng::with_seed(2);
    for _ in 0..300 {
        let total = rng.u64(1..24 * 1024);
        let data = payload(total);
        let mut nodes = Vec::new();
        all_nodes(0, total, &mut nodes);
        // The root last, else most sets would be complete at once.
        nodes.remove(0);
        rng.shuffle(&mut nodes);
        nodes.push((0, total));
        let mut set = SubtreeSet::new(DigestKind::Blake3, total);
        let mut model = vec![false; total as usize];
        for (offset, len) in nodes {
            let bits = &mut model[offset as usize..(offset + len) as usize];
            let known = bits.iter().all(|b| *b);
            bits.fill(true);
            assert_eq!(set.insert(offset, len, cv(&data, offset, len)), Ok(!known));
            check_invariants(&set, &data);

            let from = rng.u64(0..=total);
            let start = (from..total).find(|i| !model[*i as usize]);
            let missing = start.map(|s| (s, (s..total).find(|i| model[*i as usize]).unwrap_or(total)));
            assert_eq!(set.next_missing(from), missing);
            let end = rng.u64(from..=total);
            assert_eq!(set.covers(from, end - from), model[from as usize..end as usize].iter().all(|b| *b));
            if from < total {
                let holder = set.covering(from);
                assert_eq!(holder.is_some(), model[from as usize]);
                assert!(holder.is_none_or(|h| h.offset <= from && from < h.offset + h.len));
            }
        }
        assert_eq!(set.root(), Some(*blake3::hash(&data).as_bytes()));
    }
}

/// Goal: an empty file is complete from the start and takes its own empty range.
#[test]
fn empty_file_is_complete() {
    let mut set = SubtreeSet::new(DigestKind::Blake3, 0);
    assert!(set.is_complete());
    assert_eq!(set.root(), Some(*blake3::hash(b"").as_bytes()));
    assert_eq!(set.insert(0, 0, [1; 32]), Ok(false));
    assert_eq!(set.root(), Some(*blake3::hash(b"").as_bytes()));
    assert_eq!(set.next_missing(0), None);
    assert!(set.covers(0, 0) && !set.covers(0, 1) && set.covering(0).is_none());
    assert!(set.insert(0, 1, [1; 32]).is_err());
}

/// Goal: objects in order need logarithmic memory.
/// Method: 2^16 + 1 objects of a file; the most nodes held at once.
#[test]
fn in_order_memory_is_logarithmic() {
    let object_len = 4 << 20;
    let objects = (1 << 16) + 1;
    let total = object_len * (objects - 1) + 1;
    let mut set = SubtreeSet::new(DigestKind::Blake3, total);
    for i in 0..objects {
        let len = object_len.min(total - i * object_len);
        assert_eq!(set.insert(i * object_len, len, [0; 32]), Ok(true));
        assert!(set.len() <= 17);
    }
    assert!(set.is_complete());
}

/// Goal: arithmetic holds up to the largest file that can be named.
#[test]
fn largest_file_does_not_overflow() {
    let mut set = SubtreeSet::new(DigestKind::Blake3, u64::MAX);
    let last = u64::MAX - 1023;
    assert_eq!(set.insert(last, 1023, [1; 32]), Ok(true));
    assert_eq!(set.insert(1 << 63, 1 << 62, [2; 32]), Ok(true));
    assert_eq!(set.insert(0, 1 << 63, [3; 32]), Ok(true));
    assert!(set.insert(1 << 63, 1 << 63, [3; 32]).is_err());
    assert_eq!(set.insert(1 << 63, (1 << 63) - 1, [4; 32]), Ok(true));
    assert!(set.is_complete() && set.root().is_some());
    assert_eq!(set.next_missing(u64::MAX), None);
    assert_eq!(subtrees(0, u64::MAX, true).collect::<Vec<_>>(), [(0, u64::MAX)]);
    assert_eq!(subtrees(1024, u64::MAX - 1024, true).map(|(_, len)| len).sum::<u64>(), u64::MAX - 1024);
    assert_eq!(subtrees(1024, u64::MAX, true).count(), 0);
}

/// Goal: the list of a range tiles it with nodes of the file's tree, none of which could be joined; an
/// aligned object is one node; what cannot be cut gives nothing.
/// Method: every range on chunk edges of every small file, against the recursive definition.
#[test]
fn subtrees_are_the_maximal_nodes() {
    for total in (1..=17 * 1024).filter(|t| t % 1024 <= 1 || t % 1024 == 1023) {
        let mut nodes = Vec::new();
        all_nodes(0, total, &mut nodes);
        for offset in (0..total).step_by(1024) {
            for end in (offset + 1024..total).step_by(1024).chain([total]) {
                let list: Vec<_> = subtrees(offset, end - offset, end == total).collect();
                let mut at = offset;
                for &(start, len) in &list {
                    assert_eq!(start, at);
                    at += len;
                    assert!(nodes.contains(&(start, len)), "{start} + {len} of {total}");
                    let wider = |(o, l): &(u64, u64)| {
                        *o <= start && o + l >= start + len && *l > len && *o >= offset && o + l <= end
                    };
                    assert!(!nodes.iter().any(wider), "{start} + {len} of {total} is not maximal");
                }
                assert_eq!(at, end);
            }
        }
        for object_len in [1024, 2048, 4096, 8192] {
            for (offset, len) in objects(total, object_len) {
                let list: Vec<_> = subtrees(offset, len, offset + len == total).collect();
                assert_eq!(list, [(offset, len)]);
            }
        }
    }
    for (offset, len, tail) in [(0, 0, true), (1, 1024, true), (1024, 1023, false), (512, 512, false)] {
        assert_eq!(subtrees(offset, len, tail).count(), 0);
    }
}

/// Goal: a sparse file's root follows from its data and its map alone, and every value is of data.
/// Method: random maps; pieces of two object sizes in random orders, some twice; against the definition: a
/// hash of map and of the values of the canonical subtrees of each extent. One other byte or hole gives
/// another root.
#[test]
fn sparse_roots_follow_from_data_and_map() {
    use crate::extents::{EXTENT_ALIGN, MapMaker};
    let mut rng = fastrand::Rng::with_seed(5);
    let all = payload(24 * EXTENT_ALIGN);
    let mut roots = Vec::new();
    for round in 0..60 {
        let total = rng.u64(EXTENT_ALIGN + 1..=24 * EXTENT_ALIGN);
        let data = &all[..total as usize];
        let mut maker = MapMaker::new(total);
        for slot in (0..total.div_ceil(EXTENT_ALIGN)).filter(|_| rng.u8(..3) != 0) {
            maker.push(slot * EXTENT_ALIGN, (slot + 1) * EXTENT_ALIGN);
        }
        let map = maker.finish();
        if map.is_full() {
            assert_eq!(
                SubtreeSet::with_map(DigestKind::Blake3, map),
                SubtreeSet::new(DigestKind::Blake3, total),
                "a file like any other"
            );
            continue;
        }
        let mut sets = Vec::new();
        for object_len in [EXTENT_ALIGN, 4 * EXTENT_ALIGN] {
            let mut pieces = Vec::new();
            for (start, len) in objects(total, object_len) {
                for extent in map.extents() {
                    let (from, to) = (start.max(extent.offset), (start + len).min(extent.end()));
                    if from < to {
                        pieces.extend(subtrees(from, to - from, to == total));
                    }
                }
            }
            pieces.extend(pieces.clone().into_iter().filter(|_| rng.bool()));
            rng.shuffle(&mut pieces);
            let mut set = SubtreeSet::with_map(DigestKind::Blake3, map.clone());
            assert_eq!(set.is_complete(), map.data_len() == 0);
            for (offset, len) in pieces {
                let known = set.covers(offset, len);
                assert_eq!(set.insert(offset, len, cv(data, offset, len)), Ok(!known));
            }
            assert_eq!(set.next_missing(0), None);
            check_invariants(&set, data);
            sets.push(set);
        }
        assert_eq!(sets[0], sets[1], "the same nodes, whatever the pieces");
        let canonical: Vec<Cv> = map
            .extents()
            .iter()
            .flat_map(|e| subtrees(e.offset, e.len, e.end() == total))
            .map(|(offset, len)| cv(data, offset, len))
            .collect();
        let mut hasher = blake3::Hasher::new_derive_key(SPARSE_CONTEXT);
        hasher.update(&map.digest());
        canonical.iter().for_each(|cv| {
            hasher.update(cv);
        });
        assert_eq!(sets[0].root(), Some(*hasher.finalize().as_bytes()), "round {round}");
        assert_ne!(sets[0].root(), Some(*blake3::hash(data).as_bytes()));
        roots.push(sets[0].root());
    }
    assert!(roots.len() > 40);
    roots.sort_unstable();
    roots.dedup();
    assert!(roots.len() > 40, "other maps, other roots");
}

/// Goal: what is missing of a sparse file is its data and nothing else, and no value enters a hole.
/// Method: every slot of random maps, each either held or not, against one flag for each slot.
#[test]
fn holes_are_neither_missing_nor_taken() {
    use crate::extents::{EXTENT_ALIGN, MapMaker};
    let mut rng = fastrand::Rng::with_seed(6);
    for _ in 0..500 {
        let slots = rng.u64(2..30);
        let total = slots * EXTENT_ALIGN;
        let is_data: Vec<bool> = (0..slots).map(|_| rng.bool()).collect();
        let mut maker = MapMaker::new(total);
        for slot in (0..slots).filter(|slot| is_data[*slot as usize]) {
            maker.push(slot * EXTENT_ALIGN, (slot + 1) * EXTENT_ALIGN);
        }
        let map = maker.finish();
        if map.is_full() {
            continue;
        }
        let mut set = SubtreeSet::with_map(DigestKind::Blake3, map);
        let mut missing = is_data.clone();
        for slot in 0..slots {
            let (offset, data) = (slot * EXTENT_ALIGN, is_data[slot as usize]);
            if !data {
                let error = DigestError::InHole { offset, len: EXTENT_ALIGN };
                assert_eq!(set.insert(offset, EXTENT_ALIGN, [1; 32]), Err(error));
            } else if rng.bool() {
                assert_eq!(set.insert(offset, EXTENT_ALIGN, [1; 32]), Ok(true));
                missing[slot as usize] = false;
            }
        }
        assert!(set.insert(0, total, [1; 32]).is_err(), "the whole is more than data");
        let mut at = 0;
        let mut found = vec![false; slots as usize];
        while let Some((start, end)) = set.next_missing(at) {
            assert!(start >= at && start < end);
            found[(start / EXTENT_ALIGN) as usize..(end / EXTENT_ALIGN) as usize].fill(true);
            at = end;
        }
        assert_eq!(found, missing);
        assert_eq!(set.is_complete(), !missing.contains(&true));
        assert_eq!(set.root().is_some(), set.is_complete());
    }
}
