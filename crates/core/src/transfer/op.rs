//! What the session machines ask of storage, and what storage answers.
//!
//! Each operation goes to a storage engine's threads and comes back as one completion. Operations are
//! batched where files are small, so that a file costs a fraction of a hand-over between threads.
//! Names of directories are registered with the engine's tree when they are announced or walked; the
//! operations speak of ids.

use alloc::sync::Arc;
use std::time::Duration;

use crate::change::Change;
pub use crate::change::{Existing, Rights};
use crate::digest::{Cv, DigestKind, Root, Subtree};
use crate::entry::{Fingerprint, Meta, Name, Node, Timestamp};
use crate::extents::ExtentMap;
use crate::ids::{BufferId, DirId, FileId, Generation, TargetId};
use crate::journal::Widened;
use crate::layout::{Layout, Striping};
use crate::metadata::Values;
use crate::wire::Failure;

/// An operation on the source's storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceOp {
    /// Find out where the file has data: by `SEEK_DATA` and `SEEK_HOLE`, or, where the file system does not
    /// know them, everywhere.
    Map { id: FileId, generation: Generation },
    /// Read one object into a buffer and hash it. `whole`: the object is the whole file, so that the
    /// digest is its root; `tail`: it ends at the end of the file. Of a sparse file it is a piece of an
    /// object: data alone, beginning at a whole slot. `target`: where it lies.
    Read {
        id: FileId,
        generation: Generation,
        offset: u64,
        len: u32,
        tail: bool,
        whole: bool,
        target: TargetId,
    },
    /// Find out on which storage targets these files lie, at least one and at most
    /// [`LOCATE_FILES_MAX`](super::source::LOCATE_FILES_MAX). Whose answer cannot be had lies on its device.
    Locate { files: Vec<(FileId, Generation)> },
    /// Read whole small files one after another into one buffer; each gets its root, and its fingerprint
    /// is checked after the read.
    ReadBundle { files: Vec<BundleFile> },
    /// Check the fingerprint after the last read.
    Look { id: FileId, generation: Generation },
    /// Hash these subtrees of the file and compare.
    Verify { id: FileId, generation: Generation, size: u64, subtrees: Vec<Subtree> },
    /// Hash the whole file (ctime alone changed), which must be what was `seen` before and after that;
    /// `None`: it grows, so hash the size of its generation, which must be there, whatever lies behind it.
    /// With a `map` it is a sparse one: give its sparse root
    /// ([`SubtreeSet::root`](crate::digest::SubtreeSet::root)) under that map, if what lies between the map's
    /// extents is still zeros; where it is not, the file changed. `parts`: nodes of its tree, by offset and
    /// none within another, of which the values are wanted too, as they were in that very reading.
    HashFile {
        id: FileId,
        generation: Generation,
        map: Option<ExtentMap>,
        seen: Option<Box<Fingerprint>>,
        parts: Box<[(u64, u64)]>,
    },
    /// Take a new fingerprint and metadata of a file that changed; later operations of `generation` hold
    /// against it. Of one that gives bytes beyond its size ([`Look::Longer`]) the size is what it gave. What
    /// is read of it counts only if the read begins as long after the answer as that says.
    Refresh { id: FileId, generation: Generation },
    /// The file is over: close it and forget its id.
    Forget { id: FileId },
    /// The directory will not be needed again.
    ForgetDir { id: DirId },
}

/// A file of a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BundleFile {
    pub id: FileId,
    pub generation: Generation,
    pub size: u32,
}

/// What a look at a source file showed, held against the fingerprint of its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    Same,
    /// Size and mtime agree, the version does not: a digest must decide. `seen`: what it is now. Hashing may
    /// begin after `settle`, when no later change can hide in the grain of the ctime that was seen.
    MetaOnly {
        seen: Fingerprint,
        settle: Duration,
    },
    /// Only where the user asked for files that grow ([`OnChange::Prefix`](super::source::OnChange::Prefix)):
    /// it is the same inode and not shorter, and of this `size` now; size or mtime differ. A second hash of
    /// what was read must decide.
    Grown {
        size: u64,
    },
    /// It gives bytes beyond its size, as files of `/proc` do: what it has must be found by reading, which
    /// [`SourceOp::Refresh`] does.
    Longer,
    Changed,
}

impl Look {
    /// What was read of a small file is worth sending.
    pub fn has_payload(self) -> bool {
        !matches!(self, Look::Longer | Look::Changed)
    }
}

/// The completion of a [`SourceOp`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceDone {
    Map {
        id: FileId,
        generation: Generation,
        result: Result<ExtentMap, Failure>,
    },
    Read {
        id: FileId,
        generation: Generation,
        offset: u64,
        len: u32,
        target: TargetId,
        /// From the read's submission to its end at the target; `None` if the target was not asked (it was in
        /// the page cache, or it came to no read).
        service: Option<Duration>,
        result: Result<ReadOk, Failure>,
    },
    /// One item per file asked for, in order.
    Locate {
        files: Vec<(FileId, Generation, Arc<Layout<TargetId>>)>,
    },
    /// One item per file asked for, in order; payload of the good ones lies in the buffer in that order.
    ReadBundle {
        buffer: BufferId,
        items: Vec<(BundleFile, Result<BundleOk, Failure>)>,
    },
    Look {
        id: FileId,
        generation: Generation,
        result: Result<Look, Failure>,
    },
    Verify {
        id: FileId,
        generation: Generation,
        result: Result<bool, Failure>,
    },
    HashFile {
        id: FileId,
        generation: Generation,
        result: Result<HashOk, Failure>,
    },
    Refresh {
        id: FileId,
        generation: Generation,
        result: Result<(Fingerprint, Meta, Duration), Failure>,
    },
    /// The completion of no operation: extended attributes and lists of a file of which a new fingerprint is
    /// being taken, told before that.
    Metadata {
        id: FileId,
        generation: Generation,
        values: Values,
    },
    /// The completion of no operation: a file of which a new fingerprint is being taken is not the one that
    /// the walk found, or has no other name any more. It is told before that.
    Another {
        id: FileId,
        generation: Generation,
    },
    /// The completion of no operation: the place that the source lies at cannot be reached any more, after
    /// all that was tried. It is told before the operations that met it fail.
    Gone {
        failure: Failure,
    },
}

/// An object that was read. `buffer` is given back by the driver when the read failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadOk {
    pub buffer: BufferId,
    pub cvs: Vec<Cv>,
}

/// A file that was hashed whole, and the values of the parts that were asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HashOk {
    pub root: Root,
    pub cvs: Vec<Cv>,
}

/// A small file that was read whole. Its payload is in the buffer if [`Look::has_payload`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BundleOk {
    pub root: Root,
    pub look: Look,
}

/// An operation on the sink's storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SinkOp {
    /// Make sure that these directories exist (parents too).
    MakeDirs { dirs: Vec<DirId> },
    /// What stands under these names now, and is a partial file of an earlier run still there?
    Lookup { items: Vec<LookupItem> },
    /// Make the file's temporary, if it has none, and its space, and tell where it lies. `striping`: how it
    /// is cut at the source, which it shall be here too if the user asked for that.
    Create { file: SinkFile, striping: Option<Striping> },
    /// Write an object from a buffer at `offset`; the first write of a file makes its temporary.
    /// `start` is where the payload begins in the buffer.
    Write { file: SinkFile, offset: u64, len: u32, buffer: BufferId, start: u32 },
    /// Make temporaries that share the blocks of the source's files. Only where the engine can reach those.
    Clone { items: Vec<CloneItem> },
    /// Write whole small files, each into its own temporary, from one buffer. `more`: other files of it come
    /// with a later operation, so that the buffer must stay.
    WriteBundle { buffer: BufferId, items: Vec<BundleWrite>, more: bool },
    /// Read these ranges of the file's temporary, nodes of its tree of at most
    /// [`SUBTREE_KEPT_MAX`](crate::journal::SUBTREE_KEPT_MAX) bytes, and make their values; other ranges of
    /// it may be written meanwhile.
    Check { file: SinkFile, kind: DigestKind, ranges: Vec<(u64, u64)> },
    /// Make the written part of each file durable (if `durable`); then publish those that are complete:
    /// size, metadata, sync, rename. The temporary of one that fails is removed, and writes of it fail until
    /// it is discarded: a temporary that they made again would be taken for the one in the journal.
    Commit { durable: bool, items: Vec<CommitItem> },
    /// Bring mode (and owner) of files up to date whose content is right, and make that durable (if
    /// `durable`). The inode that was found is changed, or nothing.
    Amend { durable: bool, items: Vec<AmendItem> },
    /// Replace what stands at the name with a symbolic link, or a FIFO, socket or device.
    MakeLinks { items: Vec<LinkItem> },
    /// Give files that have their names these further names; what stands there gives way as for a file. The
    /// inode that was published, or found to be right, gets the name, or nothing does.
    Join { items: Vec<JoinItem> },
    /// Sync these directories, so that names in them are on media.
    SyncDirs { dirs: Vec<DirId> },
    /// Set mode and mtime of finished directories (and sync them if `durable`), then forget them.
    FinishDirs { durable: bool, dirs: Vec<(DirId, Meta)> },
    /// Remove the temporary of a file and close it.
    Discard { id: FileId },
    /// Append to the journal, and sync it if `durable`.
    Journal { bytes: Vec<u8>, durable: bool },
    /// The same, for [`SinkDone::Widen`] with this number, which is waited for.
    Note { ask: u64, bytes: Vec<u8>, durable: bool },
    /// [`SinkDone::Widen`] with this number comes to nothing. It has no completion.
    RefuseNote { ask: u64, failure: Failure },
    /// The job is complete: sync the destination root (it is never finished, and what was made or removed in
    /// it last may not be on media), then remove the journal and the owner file, and sync their directory.
    RemoveJournal,
}

/// A file as the sink's engine needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SinkFile {
    pub id: FileId,
    pub parent: DirId,
    pub name: Name,
    /// Stands in the name of its temporary, with the session's tag. No other file of the session has it.
    pub number: u64,
    pub size: u64,
    /// Where a sparse file has data; nothing else of it is ever written. It may end in a hole, or have no
    /// data.
    pub map: Option<ExtentMap>,
}

/// A name to look up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupItem {
    pub file: SinkFile,
    /// As announced: a destination that cannot hold its time keeps the nearest that it can, which is then
    /// told as this one.
    pub fingerprint: Fingerprint,
    /// What its mode, owner and group are to be.
    pub meta: Meta,
    /// The tag in the name of the temporary that an earlier run left, under the file's number: rename it to
    /// ours and open it.
    pub adopt: Option<u32>,
}

/// Which inode stands at a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Inode {
    pub dev: u64,
    pub ino: u64,
}

/// What a look saw at a name. Of what nobody holds open the inode's number alone says little: once it is
/// removed, the next file that somebody makes may get the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pub inode: Inode,
    pub size: u64,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    /// Names that it has.
    pub links: u64,
}

impl Seen {
    /// Whether `now` is what was seen, and nobody changed it since. The ctime of a file with several names
    /// also changes when one is made or removed (by this very copy, if it replaces that one).
    pub fn is_still(&self, now: &Seen) -> bool {
        let same = (self.inode, self.size, self.mtime) == (now.inode, now.size, now.mtime);
        same && (self.ctime == now.ctime || self.links != now.links)
    }
}

/// The answer to a [`LookupItem`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub existing: Existing,
    /// What it is; `None` where there is nothing.
    pub seen: Option<Seen>,
    /// The temporary of the earlier run is ours now.
    pub adopted: bool,
    /// Its length, if so.
    pub len: u64,
    /// What stands there is what an earlier run began to write in place and did not end.
    pub begun: bool,
}

/// A small file to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleWrite {
    pub file: SinkFile,
    pub start: u32,
    /// What it is to have, which is given to it at once where nobody can see the file before it has its name.
    pub mode: u32,
}

/// A file to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloneItem {
    pub file: SinkFile,
    /// It is what was announced as this, before and after it is cloned.
    pub generation: Generation,
    /// What it is to have, as in [`BundleWrite::mode`].
    pub mode: u32,
}

/// What became of a clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cloned {
    /// Its temporary has all of it.
    Whole,
    /// It cannot be cloned, or is not what was announced; it has no temporary.
    Not(Failure),
}

/// A file in a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitItem {
    pub id: FileId,
    /// `Some`: all of it is written; give it this metadata and its final name.
    pub publish: Option<Publish>,
}

/// How to publish a complete file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publish {
    pub file: SinkFile,
    pub meta: Meta,
    pub owner: bool,
    /// What the look found at the name: this alone is replaced, and where it found nothing, nothing is.
    pub found: Option<Seen>,
    /// Fail with EEXIST instead of replacing (`--no-clobber`).
    pub no_replace: bool,
    /// Before that, what storage gives back must have this digest; where it has not, the failure's stage is
    /// `Digest`.
    pub verify: Option<(DigestKind, Root)>,
}

/// A file whose content is right and whose mode or owner is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AmendItem {
    pub file: SinkFile,
    pub meta: Meta,
    pub owner: bool,
    /// What the look found: this alone is changed, and only if nothing of it changed since.
    pub found: Seen,
}

/// A symbolic link to make; or a FIFO, socket or device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkItem {
    pub file: SinkFile,
    /// Of a link; of a node it is empty.
    pub target: Box<[u8]>,
    /// It is no link, but this.
    pub node: Option<Node>,
    pub meta: Meta,
    pub owner: bool,
    pub no_replace: bool,
    /// Replace also a device, FIFO or socket.
    pub force: bool,
}

/// A further name to give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinItem {
    pub file: SinkFile,
    /// Of what was announced as this, of which the engine was told before that other names follow.
    pub to: FileId,
    pub meta: Meta,
    /// Leave what stands there (`--no-clobber`).
    pub no_replace: bool,
    /// Leave a file that is newer (`--update`).
    pub update: bool,
    /// Replace also a device, FIFO or socket.
    pub force: bool,
}

/// What became of a further name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Joined {
    /// It is the file's; what that changed, nothing where it was before.
    Is(Change),
    /// What stands there was left, as was asked.
    Skipped,
    /// The file takes no further name, or is not what it was any more: this one is to be a file of its own.
    Apart(Failure),
    /// The same, for there are no hard links where it lies.
    Never(Failure),
}

/// How long the write of an object took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Took {
    /// From the submission of its first request to the end of its last.
    pub time: Duration,
    /// It ended in the page cache: a time below what the target needs, until the cache has no room and its
    /// writers wait for the target. (Direct I/O, and RAM.)
    pub cached: bool,
}

/// The completion of a [`SinkOp`]. `Ok` lists are in the order of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SinkDone {
    MakeDirs {
        results: Vec<(DirId, Result<(), Failure>)>,
    },
    Lookup {
        results: Vec<(FileId, Result<Found, Failure>)>,
    },
    /// Where it lies; `None`: nobody can say.
    Create {
        id: FileId,
        result: Result<Option<Layout<TargetId>>, Failure>,
    },
    /// `took`: `None` if it failed. `again`: the store lost what it had of this file, and takes it once more
    /// from its beginning.
    Write {
        id: FileId,
        offset: u64,
        len: u32,
        buffer: BufferId,
        took: Option<Took>,
        result: Result<(), Failure>,
        again: bool,
    },
    Clone {
        results: Vec<(FileId, Result<Cloned, Failure>)>,
    },
    WriteBundle {
        buffer: BufferId,
        results: Vec<(FileId, Result<(), Failure>)>,
        more: bool,
    },
    /// One value for each range, in order; `None`: storage gives too little of it, or nothing.
    Check {
        id: FileId,
        ranges: Vec<(u64, u64)>,
        result: Result<Vec<Option<Cv>>, Failure>,
    },
    /// `lost`: of these, which failed, the store lost what it had taken and not synced, and takes them once
    /// more.
    Commit {
        results: Vec<(FileId, Result<(), Failure>)>,
        lost: Vec<FileId>,
    },
    /// What each changed; nothing, where it was not allowed to.
    Amend {
        results: Vec<(FileId, Result<Change, Failure>)>,
    },
    /// What each changed; nothing, where the same link stood already.
    MakeLinks {
        results: Vec<(FileId, Result<Change, Failure>)>,
    },
    Join {
        results: Vec<(FileId, Result<Joined, Failure>)>,
    },
    SyncDirs {
        results: Vec<(DirId, Result<(), Failure>)>,
    },
    /// What each changed since before this run.
    FinishDirs {
        results: Vec<(DirId, Result<Change, Failure>)>,
    },
    Discard {
        id: FileId,
    },
    Journal {
        result: Result<(), Failure>,
    },
    /// The completion of no operation: one that is under way waits until the journal says that this
    /// directory, which is closed to us, will be opened. [`SinkOp::Note`] is the answer.
    Widen {
        ask: u64,
        id: DirId,
        dir: Widened,
    },
    Note {
        result: Result<(), Failure>,
    },
    RemoveJournal {
        result: Result<(), Failure>,
    },
    /// The completion of no operation: what the entry was to have, and the user asked for by name, cannot be
    /// kept. It gets its name all the same; this is told before the operation ends that gives it.
    Unkept {
        id: FileId,
        failure: Failure,
    },
    /// The completion of no operation: the place that the destination lies at cannot be reached any more,
    /// after all that was tried, or takes nothing of anything. It is told before the operations that met it
    /// fail.
    Gone {
        failure: Failure,
    },
}
