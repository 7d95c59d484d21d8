//! Restart markers on disk: an append-only log of records, each with length, checksum and chain.
//!
//! In: what became durable at the sink. Out: bytes to append; after a crash, from the bytes that are there,
//! what is known to be on media. Encoded ([`Log`], [`compact`]) and replayed ([`Replay`]) here, so that the
//! simulator can tear it.
//! Invariants: replay believes a record only if every record before it was whole. Whatever is forgotten only
//! costs a re-send, so every bound and every doubt is settled by forgetting.
//! Left out: paths. They are not needed to resume, only to recognise ([`PathKey`]).
//!
//! Layout, integers little-endian:
//! ```text
//! file   := MAGIC record*            MAGIC: 12 bytes of text, 2 zero, format version u16
//! record := len u32, body[len], sum[16]
//! sum    := first 16 bytes of BLAKE3(sum of the record before, or MAGIC; body)
//! body   := type u8, fields
//! ```

use std::collections::{HashMap, HashSet};

use crate::digest::{DigestKind, Root, Subtree, SubtreeSet};
use crate::entry::{Fingerprint, Name, Timestamp, Version};
use crate::ids::Holder;

mod codec;
mod log;
mod replay;

pub use log::{Log, compact};
pub use replay::Replay;

/// Version of the format, part of the file's first bytes. 2: `Partial` says the map of a sparse file. 3: and
/// the digest. 4: and the number of its temporary; runs that may still write are named, and directories that
/// were opened to us. 5: versions of the source's storage instead of ctime and inode; the destination root by
/// an identity; finished directories stand for what is in them, and who says what is durable is named.
pub const FORMAT_VERSION: u16 = 5;
/// Longest body of a record, bytes. A reader holds no more than one record.
pub const RECORD_LEN_MAX: usize = 64 * 1024;
/// Most subtrees in one [`Record::Durable`] on disk; [`Log::append`] splits longer lists.
pub const SUBTREES_PER_RECORD: usize = 1024;
/// Most tags that a replay remembers; the oldest are forgotten first.
pub const TAGS_MAX: usize = 1024;
/// Most finished files that a replay remembers.
pub const DONE_REPLAYED_MAX: usize = 4_194_304;
/// Most finished directories that a replay remembers. One whose parent is finished takes no part.
pub const FINISHED_REPLAYED_MAX: usize = 4_194_304;
/// Most partial files that a replay remembers.
pub const PARTIALS_REPLAYED_MAX: usize = 1_048_576;
/// Most subtrees of all partial files that a replay remembers.
pub const SUBTREES_REPLAYED_MAX: usize = 4_194_304;
/// Longest subtree that is kept, bytes: what a later run finds wrong is sent again in pieces of this length.
/// No object is longer, and [`SUBTREES_REPLAYED_MAX`] of them are 256 TiB.
pub const SUBTREE_KEPT_MAX: u64 = 64 << 20;

/// Longest path of a directory in [`Record::Widened`], bytes.
pub const WIDENED_PATH_LEN_MAX: usize = 60 * 1024;
/// Paths of all directories that are opened to us at a time, bytes, at most; [`WIDENED_LEN`] more for each.
pub const WIDENED_LEN_MAX: usize = 16 << 20;
pub const WIDENED_LEN: usize = 64;

const MAGIC_LEN: usize = 16;
/// What a journal of this format begins with.
const MAGIC: [u8; MAGIC_LEN] = {
    let mut magic = *b"haul-journal\0\0\0\0";
    let [low, high] = FORMAT_VERSION.to_le_bytes();
    magic[14] = low;
    magic[15] = high;
    magic
};
/// The length before a body, and the checksum behind it, bytes.
const LEN_LEN: usize = 4;
const SUM_LEN: usize = 16;

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

/// Longest [`RootId`], bytes.
pub const ROOT_ID_LEN_MAX: usize = 64;

/// What tells the destination root of a job from all others, as its storage says: for POSIX the file system
/// and the inode. Only that storage understands it. It delimits itself, for a job's key is made of it and
/// what follows. 1 to [`ROOT_ID_LEN_MAX`] bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootId(Box<[u8]>);

impl RootId {
    /// These bytes; `None` if they are none, or too many.
    pub fn new(bytes: &[u8]) -> Option<RootId> {
        (1..=ROOT_ID_LEN_MAX).contains(&bytes.len()).then(|| RootId(bytes.into()))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// What stays of a finished file: which directory it is in, the size and mtime of the source that it is a
/// copy of, and its hash. The source's version is not kept, for a change of it alone must not make a finished
/// file unfinished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoneMark {
    pub parent: PathKey,
    pub size: u64,
    pub mtime: Timestamp,
    pub root: Root,
}

impl DoneMark {
    /// The mark of a file in this directory that was copied from a source with this fingerprint.
    pub fn new(parent: PathKey, fingerprint: &Fingerprint, root: Root) -> DoneMark {
        DoneMark { parent, size: fingerprint.size, mtime: fingerprint.mtime, root }
    }
}

/// What stays of a finished directory, in place of the marks of all that is in it: every entry that was
/// announced in it ended well, at any depth, and it had its own metadata.
///
/// It says what was so then. Content changes without the mtime of its directory, so it never stands for a
/// look at a file; and where the source's directory has another fingerprint, or the destination's another
/// mtime, it stands for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirMark {
    /// The directory that it is in.
    pub parent: PathKey,
    /// The fingerprint of the source's directory. The mtime is also what the destination's was given.
    pub mtime: Timestamp,
    pub version: Version,
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// First record, and only there: what this journal belongs to.
    Head { job: [u8; 16], root: RootId },
    /// A run of the job took it over. `tag` stands in the names of its temporaries. Records that follow
    /// count only on this boot if `durable` is false. Slots of earlier sessions are void. `lease`: as whom it
    /// writes.
    Session { epoch: u32, tag: u32, boot: [u8; 16], durable: bool, lease: Holder },
    /// Tags of earlier sessions, oldest first, whose own records were compacted away.
    Tags { tags: Vec<u32> },
    /// Those of them whose runs nobody saw die, oldest first: such a run may be frozen and write on, into any
    /// file that it ever had open.
    Unproven { tags: Vec<u32> },
    /// A file of which a part is durable, in a temporary with `tag` and `number` in its name. What earlier
    /// records said of the path is void. `slot` names the file in later records of this session. `map`: it is
    /// a sparse one, and this is the digest of its [`ExtentMap`](crate::extents::ExtentMap); holes are in no
    /// other record. `digest`: how the values in the records of this slot were made.
    Partial {
        slot: u32,
        path: PathKey,
        fingerprint: Fingerprint,
        object_size: u32,
        tag: u32,
        number: u64,
        map: Option<[u8; 32]>,
        digest: DigestKind,
    },
    /// These subtrees of the file in `slot` are on media, as `by` says. Of another than the session's own
    /// lease it is dropped: what a host says that lost what it had is late, and nobody else was agreed on.
    Durable { slot: u32, by: Holder, subtrees: Vec<Subtree> },
    /// The partial file in `slot` is worth nothing any more.
    Withdrawn { slot: u32 },
    /// This file is complete under its final name. What earlier records said of the path is void.
    Done { path: PathKey, mark: DoneMark },
    /// This directory is finished: the marks of all that is in it are void, for this one says it.
    Finished { path: PathKey, mark: DirMark },
    /// Something in this directory, or below it, is made anew: it is not finished any more. A mark of what is
    /// directly in it says so too.
    Reopened { path: PathKey },
    /// A directory that stood there and was closed to us is about to be opened to its owner. `slot` names it
    /// in later records of this session. Counts on every boot, whatever the session promises: it is held
    /// against the directory anyway.
    Widened { slot: u32, dir: Widened },
    /// The directory in `slot` was finished: it has its mode.
    Narrowed { slot: u32 },
}

/// A directory of the destination that a run opened to its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Widened {
    /// The names that lead to it from the destination root, with slashes between them.
    pub path: Box<[u8]>,
    pub ino: u64,
    /// The mode that it had, without its kind.
    pub mode: u32,
}

impl Widened {
    /// What it counts of [`WIDENED_LEN_MAX`].
    pub fn cost(&self) -> usize {
        self.path.len() + WIDENED_LEN
    }
}

/// A file that an earlier session left unfinished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partial {
    /// The version of the source that the parts are of.
    pub fingerprint: Fingerprint,
    pub object_size: u32,
    /// Both stand in the name of the temporary that holds the parts. The number is this file's alone in its
    /// session, and a later session that takes the temporary over keeps it.
    pub tag: u32,
    pub number: u64,
    /// The digest of its map, if it is a sparse one: with another map the parts are worth nothing.
    pub map: Option<[u8; 32]>,
    /// What of it can be relied on.
    pub subtrees: SubtreeSet,
}

/// What a journal is worth to the next session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Job and identity of the destination root; `None` if not even the head was whole.
    pub head: Option<([u8; 16], RootId)>,
    /// The highest epoch of any session, 0 if there was none.
    pub epoch_max: u32,
    /// The tags of all sessions, each once, newest last, at most [`TAGS_MAX`].
    pub tags: Vec<u32>,
    /// Those of runs that were not seen to die: what they had open is never published.
    pub unproven: Vec<u32>,
    pub partials: HashMap<PathKey, Partial>,
    pub done: HashMap<PathKey, DoneMark>,
    pub finished: HashMap<PathKey, DirMark>,
    /// Directories that may still be open to us, in the order in which they were opened.
    pub widened: Vec<Widened>,
    /// Facts that were read and not kept: over a bound, or about a range that the file does not have.
    pub dropped: u64,
    /// Some facts here were made without durability and count on this boot only.
    pub volatile: bool,
    /// Bytes up to the end of the last whole record.
    pub good_len: u64,
    /// Something follows the last whole record: a torn write or a broken file.
    pub damaged: bool,
}

impl Replayed {
    /// The session follows a run that was not seen to die: what that one has open it may still write, and
    /// what it was about to publish it may still publish.
    pub fn follow_unproven(&mut self) {
        // It began the journal, or never made anything.
        if let Some(last) = self.tags.last().copied() {
            self.unproven.retain(|tag| *tag != last);
            self.unproven.push(last);
        }
    }

    /// Whether a former run may still give names, so that those which this session gives have to be looked at
    /// again. That the run directly before is dead says nothing of those before it.
    pub fn may_be_overtaken(&self) -> bool {
        !self.unproven.is_empty() && !haul_mutant::removed("unproven-runs-are-remembered")
    }
}

/// What the journal of an earlier run knew, and the log that this run goes on writing.
pub struct Resume {
    pub replayed: Replayed,
    pub log: Log,
    pub next_slot: u32,
}

/// The earlier runs of a job, and which of them can write nothing any more.
#[derive(Clone, Debug, Default)]
pub struct Former {
    known: HashSet<u32>,
    unproven: HashSet<u32>,
}

impl Former {
    /// `tags` are all that are known, `unproven` those of runs that were not seen to die.
    pub fn new<'a>(
        tags: impl IntoIterator<Item = &'a u32>,
        unproven: impl IntoIterator<Item = &'a u32>,
    ) -> Former {
        Former {
            known: tags.into_iter().copied().collect(),
            unproven: unproven.into_iter().copied().collect(),
        }
    }

    /// The run of this tag can write nothing any more. Of one that is not known nobody can say that.
    pub fn is_dead(&self, tag: u32) -> bool {
        let dead = self.known.contains(&tag) && !self.unproven.contains(&tag);
        dead || haul_mutant::removed("unproven-inodes-are-copied")
    }
}

/// Why a file is not read as a journal. A journal that is only torn or broken is no error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    #[error("the file is no haul journal")]
    NotAJournal,
    #[error(
        "journal format {0}, this program knows only {FORMAT_VERSION}: run the copy once more with the haul that wrote it, or remove what \
         it left with that one's `haul clean`"
    )]
    Version(u16),
}

/// The checksum of a record: it vouches for everything before it too.
fn sum(chain: &[u8; SUM_LEN], body: &[u8]) -> [u8; SUM_LEN] {
    let mut hasher = blake3::Hasher::new();
    if !haul_mutant::removed("journal-chain") {
        hasher.update(chain);
    }
    hasher.update(body);
    let mut sum = [0; SUM_LEN];
    sum.copy_from_slice(&hasher.finalize().as_bytes()[..SUM_LEN]);
    sum
}

#[cfg(test)]
mod tests;
