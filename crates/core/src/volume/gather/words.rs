//! What clients and a gatherer say to each other, what its log remembers, and what its driver does.

use std::ops::Range;

use super::{AppendNo, CutNo};
use crate::volume::{ClientNo, ContentVersion, Epoch, FileNo, RequestNo};

/// A record's place in the log; later ones are higher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub u64);

/// A push, until it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PushNo(pub u64);

/// What clients ask. `B` stands for bytes, which nobody here looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request<B> {
    /// Puts bytes, which lie in one stripe, into the log. A lease of the asker on that stripe ends with it.
    Write { file: FileNo, offset: u64, len: u64, bytes: B },
    /// Wants to write these stripes directly.
    Lease { file: FileNo, stripes: Range<u64> },
    /// Gives leases back: no write under them is under way any more.
    Release { file: FileNo, stripes: Range<u64> },
    /// Which bytes of that range the log has.
    Read { file: FileNo, offset: u64, len: u64 },
    /// Which of these stripes are gathered.
    Map { file: FileNo, stripes: Range<u64> },
    /// By what was written directly under that epoch, the file ends at `end` at least. There is no answer.
    Grow { file: FileNo, epoch: Epoch, end: u64 },
    /// Makes what it gathered last, and the file's length.
    Sync { file: FileNo },
    /// Puts bytes behind the file's end.
    Append { file: FileNo, number: AppendNo, len: u64, bytes: B },
    /// The file ends there: what is behind it is gone, and what was not there is zeros.
    Truncate { file: FileNo, len: u64 },
    /// Removes the file, which nobody has open and no name leads to.
    Remove { file: FileNo },
    /// Which version of its bytes it has. It is answered when nobody has a lease on it and nothing that was
    /// written under one can come any more; all of it lasts then.
    Look { file: FileNo },
    /// The catalog knows that the file was written, up to this version of it.
    Told { file: FileNo, version: ContentVersion },
}

impl<B> Request<B> {
    /// Which file it is about.
    pub fn file(&self) -> FileNo {
        match self {
            Request::Write { file, .. }
            | Request::Lease { file, .. }
            | Request::Release { file, .. }
            | Request::Read { file, .. }
            | Request::Map { file, .. }
            | Request::Grow { file, .. }
            | Request::Sync { file }
            | Request::Append { file, .. }
            | Request::Truncate { file, .. }
            | Request::Remove { file }
            | Request::Look { file }
            | Request::Told { file, .. } => *file,
        }
    }

    /// The file, if it is one that changes it or may do so.
    pub(super) fn changes(&self) -> Option<FileNo> {
        match self {
            Request::Release { .. }
            | Request::Read { .. }
            | Request::Map { .. }
            | Request::Grow { .. }
            | Request::Sync { .. }
            | Request::Look { .. }
            | Request::Told { .. } => None,
            _ => Some(self.file()),
        }
    }
}

/// Whether a request has no answer.
pub fn is_mute<B>(request: &Request<B>) -> bool {
    matches!(request, Request::Release { .. } | Request::Grow { .. })
}

/// What the gatherer says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is in the log, and lost if the host stops before a sync.
    Written,
    /// The asker may write these stripes directly, under that epoch, as long as it is heard.
    Leased { stripes: Range<u64>, epoch: Epoch },
    /// The log has these parts, and where: offset, length, record and the offset within its bytes. All else
    /// of the range is where the stripes lie, or never was.
    Read { parts: Vec<Part>, end: u64 },
    /// It lasts.
    Durable,
    /// It is appended there, and lost if the host stops before a sync.
    Appended { offset: u64 },
    /// The file has grown for it, which lasts: the asker is to write it there.
    Reserved { offset: u64 },
    /// The file ends there, and that lasts.
    Truncated,
    /// The file is removed, and that lasts.
    Removed,
    /// It was removed before.
    Gone,
    /// The log has bytes of these stripes, of those that were asked for, and the file ends there. While
    /// nobody can write it directly it is of that version.
    Map { gathered: Vec<Range<u64>>, end: u64, version: Option<ContentVersion> },
    /// The file is of that version, and ends there. `untold`: it was written since somebody told the catalog.
    Looked { version: ContentVersion, end: u64, untold: bool },
    /// It was heard, and stands in the log. False: the file is of another version by now, and it counts for
    /// nothing.
    Told { counts: bool },
    /// The disk says no: to this alone where there was no room, else to everything from then on.
    Failed(i32),
    /// There is no lease: the disk of the server where the stripes lie does not take what was gathered of
    /// them.
    Refused(i32),
}

/// Bytes of a file that a record of the log has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Where in the file, bytes.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
    /// The record.
    pub seq: Seq,
    /// Where in the record's bytes.
    pub from: u64,
}

/// What the log remembers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record<B> {
    /// Bytes of a file.
    Bytes { file: FileNo, offset: u64, len: u64, bytes: B },
    /// The file ends there at least.
    End { file: FileNo, end: u64 },
    /// What records up to that one have of a stripe lies where it belongs.
    Brought { file: FileNo, stripe: u64, upto: Seq },
    /// The file is to end there: servers cut what is behind it, under that epoch.
    Cut { file: FileNo, from: u64, epoch: Epoch },
    /// They have cut, and it ends there: what records before say of what is behind it does not count.
    IsCut { file: FileNo, from: u64, epoch: Epoch },
    /// Servers remove the file.
    Remove { file: FileNo },
    /// They have: what records before say of it does not count.
    Gone { file: FileNo },
    /// It was cut last under that epoch: ends of before do not count.
    LastCut { file: FileNo, epoch: Epoch },
    /// That client may have leases from now on.
    Client(ClientNo),
    /// The file is written from here on, or may be, and nobody has told the catalog.
    Untold { file: FileNo },
    /// The catalog knows of all that was written to it before.
    Told { file: FileNo },
    /// There was no room for what was to stand here.
    Nothing,
}

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<B> {
    /// Append a record, in this order; then [`Gatherer::appended`].
    Append(Seq, Record<B>),
    /// Sync the log; then [`Gatherer::synced`].
    Sync,
    /// Say so to a client.
    Answer(ClientNo, RequestNo, Answer),
    /// A client was not heard for too long: nothing that it said counts any more. End its connection, so
    /// that it makes another.
    Drop(ClientNo),
    /// Ask a client for its leases on stripes.
    Recall(ClientNo, FileNo, Range<u64>),
    /// Bring these parts of a stripe to its server, under this epoch, and have them synced there; then
    /// [`Gatherer::pushed`].
    Push { push: PushNo, file: FileNo, stripe: u64, epoch: Epoch, parts: Vec<Part> },
    /// Have all servers cut a file from there on, under this epoch, and sync it; then [`Gatherer::was_cut`].
    Cut { cut: CutNo, file: FileNo, epoch: Epoch, from: u64 },
    /// Have all servers remove a file, under this epoch, and sync that; then [`Gatherer::was_cut`].
    Remove { cut: CutNo, file: FileNo, epoch: Epoch },
    /// Have the servers of these stripes take nothing more under an older epoch than this, and sync the file;
    /// then [`Gatherer::was_cut`]. A cut behind everything does it.
    Fence { cut: CutNo, file: FileNo, epoch: Epoch, stripes: Range<u64> },
    /// Records before this one are of no use any more.
    Forget(Seq),
}

/// What a gatherer goes by.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Bytes.
    pub stripe_size: u64,
    /// The log's beginning is given up when so many records of it are of no use.
    pub forget_records: u64,
}
