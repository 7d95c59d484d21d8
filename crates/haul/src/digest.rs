//! Hashing of payload: the chaining values that `haul_core::digest` merges.
//! STUB: being written; signatures are final.

use haul_core::digest::{Cv, Root};

/// The canonical list of chaining values of `data`, which lies at `offset` of its file; `tail`: it ends at
/// the end of the file. The ranges are those of `haul_core::digest::subtrees(offset, len, tail)`.
/// Not for a range that is the whole file: that is [`root`].
pub fn chaining_values(_offset: u64, _data: &[u8], _tail: bool) -> Vec<Cv> {
    todo!()
}

/// The BLAKE3 hash of a whole file.
pub fn root(data: &[u8]) -> Root {
    *blake3::hash(data).as_bytes()
}
