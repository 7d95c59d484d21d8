//! The nodes of an XXH3 tree: what two siblings make, and the root.
//!
//! In: values of nodes. Out: that of their parent, or the digest of the file. The leaves, which need payload,
//! are made by who has it (`haul::digest`): XXH3-128 with seed 0 of each [`LEAF_LEN`] bytes.
//!
//! A value is 16 bytes, the canonical (big-endian) form of an XXH128, and then [`TAG`], so that it has the
//! length of a BLAKE3 value and can never be taken for one. Leaves, parents and roots are hashed with seeds
//! of their own.
//! What it is good for: it finds accidents. Whoever wants to can make two files with one such digest.

use twox_hash::XxHash3_128;

use super::{Cv, Root};

/// Bytes that make one leaf. Every object and every data extent begins at a multiple of it.
pub const LEAF_LEN: u64 = 64 * 1024;
/// What stands behind the hash in every value.
pub const TAG: [u8; 16] = *b"haul xxh3-128 v1";

/// The seed of a leaf's hash.
pub const LEAF_SEED: u64 = 0;
const PARENT_SEED: u64 = 1;
const ROOT_SEED: u64 = 2;
const HASH_LEN: usize = 16;

fn value(hash: u128) -> Cv {
    let mut value = [0; 32];
    value[..HASH_LEN].copy_from_slice(&hash.to_be_bytes());
    value[HASH_LEN..].copy_from_slice(&TAG);
    value
}

/// The value of a leaf whose XXH3-128 (seed 0) is `hash`.
pub fn leaf(hash: u128) -> Cv {
    value(hash)
}

/// The value of the parent of two siblings.
pub fn parent(left: &Cv, right: &Cv) -> Cv {
    let mut both = [0; 2 * HASH_LEN];
    both[..HASH_LEN].copy_from_slice(&left[..HASH_LEN]);
    both[HASH_LEN..].copy_from_slice(&right[..HASH_LEN]);
    value(XxHash3_128::oneshot_with_seed(PARENT_SEED, &both))
}

/// The digest of a file of `total` bytes whose topmost node has the value `top`.
pub fn root(total: u64, top: &Cv) -> Root {
    let mut text = [0; 8 + HASH_LEN];
    text[..8].copy_from_slice(&total.to_le_bytes());
    text[8..].copy_from_slice(&top[..HASH_LEN]);
    value(XxHash3_128::oneshot_with_seed(ROOT_SEED, &text))
}

/// The digest of an empty file.
pub(super) fn empty() -> Root {
    root(0, &leaf(XxHash3_128::oneshot_with_seed(LEAF_SEED, &[])))
}

/// A hash of another kind, that of a sparse file's parts, as a value of this one.
pub(super) fn cut(hash: [u8; 32]) -> Root {
    let mut root = hash;
    root[HASH_LEN..].copy_from_slice(&TAG);
    root
}
