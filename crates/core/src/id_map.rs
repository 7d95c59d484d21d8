//! Tables by the ids of a session.
//!
//! In: ids, of this end's making or of the peer's. Out: hash tables that cost one multiplication a look.
//! Invariant: where an id lies in its table depends on two secret words of that table alone, which are taken
//! where the standard library takes those of its own tables, so that a peer that chooses the ids cannot
//! choose which of them meet.
//! Left out: keys of other kinds. Text of a peer stays with SipHash, which is made for that.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

/// A table by [`FileId`](crate::ids::FileId) or [`DirId`](crate::ids::DirId).
pub type IdMap<K, V> = HashMap<K, V, IdState>;

/// The secret words of a table.
#[derive(Clone)]
pub struct IdState {
    mask: u64,
    factor: u64,
}

impl Default for IdState {
    fn default() -> IdState {
        let state = RandomState::new();
        // Odd, so that no two ids become one.
        IdState { mask: state.hash_one(0_u64), factor: state.hash_one(1_u64) | 1 }
    }
}

impl BuildHasher for IdState {
    type Hasher = IdHasher;

    fn build_hasher(&self) -> IdHasher {
        IdHasher { state: self.mask, factor: self.factor }
    }
}

/// Hashes one id.
pub struct IdHasher {
    state: u64,
    factor: u64,
}

impl Hasher for IdHasher {
    fn write_u64(&mut self, id: u64) {
        // Both halves of the product: tables look at the lowest bits and at the highest.
        let product = u128::from(self.state ^ id) * u128::from(self.factor);
        self.state = product as u64 ^ (product >> 64) as u64;
    }

    fn write(&mut self, bytes: &[u8]) {
        for bytes in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn finish(&self) -> u64 {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap as Model;

    use super::*;
    use crate::ids::FileId;

    /// What a table sees of a hash: the bits that say where it begins to look, and those that tell entries
    /// apart there.
    fn crowd(state: &IdState, ids: impl Iterator<Item = u64>) -> (usize, usize) {
        let (mut places, mut marks) = (Model::new(), Model::new());
        for id in ids {
            let hash = state.hash_one(FileId(id));
            *places.entry(hash & 0xffff).or_insert(0_usize) += 1;
            *marks.entry(hash >> 57).or_insert(0_usize) += 1;
        }
        (places.into_values().max().unwrap_or(0), marks.into_values().max().unwrap_or(0))
    }

    /// Goal: no common series of ids crowds in a table: neither where looks begin nor in the marks.
    /// Method: 65,536 places and as many ids: dense ones, steps of powers of two, of a shard, and the
    /// reverse.
    #[test]
    fn series_of_ids_are_spread() {
        for _ in 0..8 {
            let state = IdState::default();
            for shift in [0, 1, 8, 16, 32, 47] {
                let (places, marks) = crowd(&state, (0..65_536_u64).map(|i| i << shift));
                assert!(places <= 64, "shift {shift}: {places} ids begin at one place");
                assert!(marks <= 8 * 65_536 / 128, "shift {shift}: {marks} ids have one mark");
            }
        }
    }

    /// Goal: two tables have different words, and one table finds what it holds.
    #[test]
    fn tables_have_words_of_their_own() {
        let (one, other) = (IdState::default(), IdState::default());
        assert!((0..64).any(|id| one.hash_one(FileId(id)) != other.hash_one(FileId(id))));
        let mut map = IdMap::default();
        for id in 0..10_000 {
            map.insert(FileId(id * 7919), id);
        }
        assert!((0..10_000).all(|id| map.get(&FileId(id * 7919)) == Some(&id)));
        assert_eq!(map.get(&FileId(1)), None);
    }
}
