//! What the walk says of what it finds.

use std::sync::Arc;

use haul_core::ids::{DirId, FileId};
use haul_core::metadata::Values;
use haul_core::wire::{Announced, Failure, OwnerName, Totals};

/// What the walk says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WalkItem {
    /// Of generation 0.
    Entry(Announced),
    /// Extended attributes and lists of the entry that comes next.
    Metadata(Values),
    /// The entry that comes next, after its attributes if it has any, is another name of this one, which came
    /// before and has this path, relative to the destination.
    NameOf {
        to: FileId,
        path: Arc<[u8]>,
    },
    /// Those of the directory that the destination root becomes, if it has any.
    Root(Values),
    /// What owners of entries that come are called.
    Owners(Vec<OwnerName>),
    /// No more entries will come in this directory. Not said of [`DirId::ROOT`].
    DirEnd(DirId),
    /// An entry, or what lies below it, cannot be copied. `path` is relative to the destination.
    Failed {
        path: Vec<u8>,
        failure: Failure,
        counts_as: CountsAs,
    },
    NotKept(NotKept),
    /// The place that the source lies at cannot be reached any more, after all that was tried.
    Gone(Failure),
    /// Something that whoever copies should know of the whole source.
    Note(&'static str),
    /// The walk is over. A channel that closes without it: the walk was cancelled or broke.
    End(Totals),
}

/// What a failed item of the walk means for the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CountsAs {
    /// One entry is missing.
    Entry,
    /// A directory's entries are missing, nobody knows how many.
    Subtree,
    /// It was removed while the walk was on its way to it.
    Vanished,
}

/// Something that the copy does not carry over. `path` is relative to the destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotKept {
    pub path: Vec<u8>,
    pub what: NotKeptWhat,
}

/// What is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NotKeptWhat {
    /// Skipped.
    Fifo,
    /// Skipped.
    Socket,
    /// Skipped.
    Device,
    /// Left out: a temporary, a journal or an owner file of a job whose destination this directory is, or one
    /// above it.
    Debris,
    /// A symbolic link, where none is wanted.
    Link,
    /// A symbolic link that leads out of what is copied, where none of these is wanted.
    LinkOut,
    /// A directory of another file system, where these are not entered. It is made, or left out.
    Mounted,
    /// The file has other names too, and becomes a file of its own, for hard links are not kept, or there are
    /// more than can be told apart.
    HardLink,
}
