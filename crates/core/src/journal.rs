//! Restart markers on disk: an append-only log of records, each with length, checksum and chain.
//!
//! In: what became durable at the sink. Out: bytes to append; after a crash, from the bytes that are there,
//! what is known to be on media. Encoded and replayed here, so that the simulator can tear it.
//! Invariant: replay believes a record only if every record before it was whole.
//! STUB: the codec is being written; the types below are final.

use crate::digest::{Root, Subtree};
use crate::entry::{Fingerprint, Name};

/// The path of an entry below the destination root, as 16 bytes of BLAKE3: `root` is all zero, a child is
/// the hash of its parent's key and its name. Paths are not needed to resume, only to recognise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathKey(pub [u8; 16]);

impl PathKey {
    pub const ROOT: PathKey = PathKey([0; 16]);

    /// The key of `name` in the directory with this key.
    pub fn child(self, name: &Name) -> PathKey {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.0);
        hasher.update(name.as_bytes());
        let mut key = [0; 16];
        key.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        PathKey(key)
    }
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// First record: what this journal belongs to.
    Head { job: [u8; 16], root_ino: u64 },
    /// A run of the job took it over. `tag` stands in the names of its temporaries. Records that follow
    /// count only on this boot if `durable` is false.
    Session { epoch: u32, tag: u32, boot: [u8; 16], durable: bool },
    /// A file of which a part is durable. `slot` names it in `Durable` records of this session.
    Partial { slot: u32, path: PathKey, fingerprint: Fingerprint, object_size: u32 },
    /// These subtrees of the file in `slot` are on media.
    Durable { slot: u32, subtrees: Vec<Subtree> },
    /// The partial file in `slot` is worth nothing any more.
    Withdrawn { slot: u32 },
    /// This file is complete under its final name.
    Done { path: PathKey, fingerprint: Fingerprint, root: Root },
}
