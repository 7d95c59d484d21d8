//! BLAKE3 as a tree: chaining values of ranges, merged until the root. No payload byte is seen here.
//! STUB: being written; the types below are final.

/// The chaining value of a subtree that is not the root.
pub type Cv = [u8; 32];
/// The BLAKE3 hash of a whole file.
pub type Root = [u8; 32];

/// A subtree: the range `offset..offset + len` of its file and its chaining value (or the root, if the
/// range is the whole file).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subtree {
    pub offset: u64,
    pub len: u64,
    pub cv: Cv,
}
