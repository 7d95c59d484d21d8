//! What is asked of the catalog of a volume, and what it answers.
//!
//! A volume has one catalog: the names of its files, their attributes, and which numbers were given. A file's
//! bytes lie at the storage servers under its [`FileNo`], which is the number of its entry.
//!
//! What a client can count on:
//! - What was answered without a failure lasts, whatever happens to the catalog's process or host.
//! - A request that changes names bears a number. Asked again under that number, after a connection broke, it
//!   is answered as it was at first, and not done twice. So that the catalog need not remember for ever, a
//!   client has at most [`WINDOW`] numbers under way: it uses number `n` only when each below `n - WINDOW +
//!   1` was answered.
//! - The bytes of a file that has no name any more stay as long as a client has it open.
//!
//! Left out: permissions, which nobody who has the key of a volume is bound by; the length of a file, which
//! its gatherer knows; hard links; times that nobody set: a directory's changes only when it is told to, and
//! a file's when somebody says that it was written.

pub mod wire;

use std::ops::Range;

use super::layout::{Given, Placing};
use super::{ClientNo, ContentVersion, FileNo, RequestNo, ServerNo, Session};
use crate::entry::{Meta, Name, Timestamp};
use wire::VolumeId;

/// An entry, by a number that no other of the volume ever has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryNo(pub u64);

/// The directory that all names are below.
pub const ROOT: EntryNo = EntryNo(1);
/// Numbers of one client that may be under way; see the head.
pub const WINDOW: u64 = 64;
/// Most entries of one page of a directory; most files that one request opens, closes or tells of.
pub const PAGE_MAX: usize = 1024;
/// Files that one client may have open.
pub const OPEN_MAX: usize = 65_536;
/// Permission bits: all that a mode may have.
pub const MODE_MAX: u32 = 0o7777;
/// Servers of one volume.
pub const SERVERS_MAX: usize = 1024;
/// Longest address of a server, as text: a host's name, a colon and a port.
pub const ADDRESS_LEN_MAX: usize = 300;
/// Longest word for how files are placed.
pub const PLACEMENT_LEN_MAX: usize = 64;
/// Longest text for where a home is, bytes.
pub const PLACE_LEN_MAX: usize = 256;
/// Most faults that one look at the catalog tells, and the longest of their texts, bytes.
pub const FAULTS_MAX: usize = 64;
pub const FAULT_LEN_MAX: usize = 512;

/// Most ranges of numbers that a catalog says that it never gave.
pub const SKIPS_MAX: usize = 64;

/// What was settled when the volume was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Bytes of one stripe.
    pub stripe: u32,
    /// How files lie on the servers.
    pub placement: Box<str>,
    /// Where each server is, `host:port`, in the order of their numbers.
    pub servers: Vec<Box<str>>,
}

/// What an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Directory,
    File,
    /// A symbolic link, and where it leads: 1 to [`LINK_LEN_MAX`](crate::entry::LINK_LEN_MAX) bytes.
    Link(Box<[u8]>),
}

/// An entry as the catalog has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub id: EntryNo,
    /// The directory that it is in; `None`: it has no name any more, or it is the root.
    pub parent: Option<EntryNo>,
    pub kind: Kind,
    pub meta: Meta,
}

impl Entry {
    /// What its bytes are called at the storage servers, if it is a file.
    pub fn file(&self) -> Option<FileNo> {
        (self.kind == Kind::File).then_some(FileNo(self.id.0))
    }
}

/// Where the contents of a file, or a symbolic link, lie outside of the volume, as they were told.
///
/// It counts only while nobody has written since, and the entry has the names still under which it was
/// brought: the catalog forgets it with the first write that it is told of, and with each new name of the
/// entry or of a directory above it. Of what nobody told yet the gatherer knows: so it is asked for after a
/// look at the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    /// For people.
    pub place: Box<str>,
    /// What its gatherer told of its bytes then; of a link nothing.
    pub version: ContentVersion,
}

/// How an entry came to have a home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Brought {
    /// It was copied into the volume.
    In,
    /// It was copied out of it, by this path: BLAKE3 of the names from the root on, with slashes between.
    Out([u8; 32]),
}

/// What the catalog knows of an entry beside its attributes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// It rises with each write that the catalog is told of, each time that is set of a file, and each time
    /// that it gets another name.
    pub state: u64,
    /// Each byte up to there was written, and lies on its server or in the log of its gatherer.
    pub whole: Option<u64>,
    pub home: Option<Home>,
}

/// What is to be known of an entry, if its state is this one still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noting {
    pub id: EntryNo,
    pub state: u64,
    pub version: ContentVersion,
    pub whole: Option<u64>,
    /// It has a home; one that was brought out only if that is its path still.
    pub home: Option<Brought>,
}

/// What a look at all of the catalog showed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// What is not as it should be, in words; at most [`FAULTS_MAX`].
    pub faults: Vec<Box<str>>,
    /// The last number that an entry got, or that was skipped.
    pub last: u64,
    /// Numbers that were not given here, but by a newer catalog that this one is an older copy of; in
    /// ascending order, at most [`SKIPS_MAX`].
    pub skipped: Vec<Range<u64>>,
    /// Entries that have a name, and files that have none and whose bytes are not removed everywhere yet.
    pub named: u64,
    pub nameless: u64,
    /// Files that clients have open, each as often as clients have it so; and those of clients that are gone
    /// and may still come back.
    pub open: u64,
    pub open_of_gone: u64,
}

/// One name of one directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub parent: EntryNo,
    pub name: Name,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    Mkdir {
        at: Place,
        meta: Meta,
    },
    /// A file: with `exclusive` it must not be there yet, otherwise one that is there is taken as it is. With
    /// `open` the client has it open from then on. A new one is placed as `placing` says, for all its life.
    Create {
        at: Place,
        meta: Meta,
        exclusive: bool,
        open: bool,
        placing: Placing,
    },
    Symlink {
        at: Place,
        meta: Meta,
        target: Box<[u8]>,
    },
    Lookup(Place),
    Stat(EntryNo),
    /// Entries whose names come after `after` in the order of bytes; of all, without it.
    ReadDir {
        dir: EntryNo,
        after: Option<Name>,
        max: u16,
    },
    /// What is `None` stays as it is.
    SetAttr {
        id: EntryNo,
        set: Setting,
    },
    Rename {
        from: Place,
        to: Place,
        noreplace: bool,
    },
    Unlink(Place),
    Rmdir(Place),
    /// The client has these files open, or still has them after a connection was lost.
    Open(Vec<EntryNo>),
    Close(Vec<EntryNo>),
    /// Files above `after` that nobody can use any more, whose bytes this server has not removed yet.
    ToRemove {
        server: ServerNo,
        after: FileNo,
    },
    /// This server has no bytes of these files any more, and will not have after a crash.
    Removed {
        server: ServerNo,
        files: Vec<FileNo>,
    },
    /// The client is done: what it has open is closed, and its number is not used again.
    Leave,
    /// What is known of these entries beside their attributes.
    Known(Vec<EntryNo>),
    /// Notes what is to be known of entries, of each only if its state is still the one that is told.
    Note {
        /// Where homes are, for people.
        place: Box<str>,
        files: Vec<Noting>,
    },
    /// Looks at all that the catalog has. Nobody else is answered meanwhile.
    Check,
    /// Tickets for these files, which come before the answer: of which of them it gave some.
    Tickets(Vec<EntryNo>),
    /// Files are to lie as this list says: which placing does, from then on and for all the volume's life.
    /// Only a volume that was made for it takes any.
    Place(Given),
    /// The list of this one, which has one.
    List(Placing),
}

impl Request {
    /// Whether it would not be the same if it were done twice: its answer is remembered.
    pub fn is_once(&self) -> bool {
        match self {
            Request::Mkdir { .. }
            | Request::Create { .. }
            | Request::Symlink { .. }
            | Request::SetAttr { .. }
            | Request::Rename { .. }
            | Request::Unlink(_)
            | Request::Rmdir(_) => true,
            Request::Lookup(_)
            | Request::Stat(_)
            | Request::ReadDir { .. }
            | Request::Open(_)
            | Request::Close(_)
            | Request::ToRemove { .. }
            | Request::Removed { .. }
            | Request::Leave
            | Request::Known(_)
            | Request::Note { .. }
            | Request::Check
            | Request::Tickets(_)
            // The same list has the same placing.
            | Request::Place(_)
            | Request::List(_) => false,
        }
    }
}

/// Attributes that are to be set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub mtime: Option<Timestamp>,
    /// It was written: where no `mtime` is given the catalog sets that to its time, or to a nanosecond after
    /// the last one where its clock is not beyond that. So each time is another, whatever the clock does.
    pub written: bool,
    /// Each of so many bytes of it was written and lasts, and nothing lies behind them: see [`Known::whole`].
    pub whole: Option<u64>,
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was made; or, where `new` is not set, it was there.
    Made {
        entry: Entry,
        new: bool,
    },
    Entry(Entry),
    /// In the order of their names; whether there are more behind them.
    Page {
        entries: Vec<(Name, Entry)>,
        more: bool,
    },
    Done,
    /// Of files that were to be opened: those that cannot be, for nobody had them open any more.
    Opened {
        lost: Vec<EntryNo>,
    },
    /// Of what was noted: those of which it was.
    Files(Vec<FileNo>),
    Failed(Failure),
    /// In the order in which they were asked for; `None`: there is no such entry, not even a nameless one.
    Known(Vec<Option<Known>>),
    Checked(Checked),
    Placed(Placing),
    List(Given),
}

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{words}")]
pub struct Failure {
    /// A number of Linux.
    pub errno: i32,
    pub words: Box<str>,
}

/// What is said over a connection to the catalog, beside what ends it and what shows that its client is
/// there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The first, from the client: its number, or none if it has none yet.
    Join {
        volume: VolumeId,
        client: Option<ClientNo>,
        session: Session,
    },
    /// The client's number, and what it must know of the volume.
    Joined {
        client: ClientNo,
        facts: Facts,
    },
    Ask(RequestNo, Request),
    Answer(RequestNo, Answer),
}
