//! What a copy that runs tells its observer.

use std::sync::Arc;
use std::time::Duration;

use haul_base::role::Role;
use haul_core::change::Change;

use crate::error::{ErrorKind, Operation};
use crate::target_tables::TargetTable;

/// Hears what happens. A reference, a `Box` and an `Arc` of an observer are observers, and so is a closure in
/// [`OnEvent`].
pub trait Observer: Send + Sync {
    /// Something happened. Called from the thread that runs the copy, and from others of haul's; whoever
    /// blocks here holds up the copy. Whoever panics here ends it, as a stop does: what was written is kept
    /// for the same copy again, nothing more is told, and the panic goes on where the copy was run.
    fn event(&self, event: Event);
}

impl<T: Observer + ?Sized> Observer for &T {
    fn event(&self, event: Event) {
        T::event(self, event);
    }
}

impl<T: Observer + ?Sized> Observer for Box<T> {
    fn event(&self, event: Event) {
        T::event(self, event);
    }
}

impl<T: Observer + ?Sized> Observer for Arc<T> {
    fn event(&self, event: Event) {
        T::event(self, event);
    }
}

/// A closure that hears what happens.
#[derive(Clone, Copy, Debug)]
pub struct OnEvent<F>(pub F);

impl<F: Fn(Event) + Send + Sync> Observer for OnEvent<F> {
    fn event(&self, event: Event) {
        (self.0)(event);
    }
}

/// Something that happened. Paths are bytes, as the systems have them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// One line for people: push, firewall, what was chosen and why.
    Note(String),
    /// Dry run: one of the first mappings.
    Plan {
        /// What would be copied.
        source: Vec<u8>,
        /// Where it would go.
        destination: Vec<u8>,
        /// Its size, of a file.
        bytes: Option<u64>,
        /// Of a file whose content would not be copied.
        metadata_only: bool,
    },
    /// About every 200 ms.
    Progress(Progress),
    /// Before the copy has begun, about every second: what it waits for, in words, as in
    /// [`Progress::waiting`].
    Waiting(String),
    /// Only if [`CopyRequest::targets`]: how the storage targets of one end stand, about twice a second for
    /// each end that tells.
    Targets(TargetTable),
    /// Only if [`CopyRequest::targets`]: an end will not tell of its targets.
    NoTargets {
        /// Which end.
        end: Role,
        /// Why not, for people.
        why: String,
    },
    /// Only if [`CopyRequest::verbose`]: an entry that ended well.
    Entry {
        /// Below the destination.
        path: Vec<u8>,
        /// What it is.
        kind: EntryKind,
        /// How it ended.
        end: EntryEnd,
        /// What differs at the destination from before this run; in a dry run: would differ.
        change: Change,
        /// Its size, of a file.
        bytes: u64,
        /// It is a hard link of the entry with this path, also below the destination; then it has no bytes of
        /// its own.
        link_of: Option<Vec<u8>>,
    },
    /// An entry that was not copied.
    Failed {
        /// Below the destination.
        path: Vec<u8>,
        /// Whose fault it is.
        kind: ErrorKind,
        /// What failed.
        operation: Operation,
        /// Of the system call that failed; 0 if none did.
        errno: i32,
        /// The same for people.
        text: String,
    },
    /// Only if [`Options::manifest`](crate::options::Options::manifest): the hash of a file at the
    /// destination.
    Digest {
        /// Below the destination.
        path: Vec<u8>,
        /// BLAKE3 of the content.
        root: [u8; 32],
        /// How much that is of, if it was copied.
        bytes: Option<u64>,
    },
}

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A FIFO or a socket.
    Special,
    /// A block or character device.
    Device,
}

/// How an entry ended, if it did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryEnd {
    /// It is at the destination as it was at the source.
    Copied,
    /// It was there already.
    Unchanged,
    /// An option said to leave what stands there; or a symbolic link, which the destination has no way to
    /// make.
    Skipped,
}

/// How far a copy is. Counts are since the start of this run.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// Sizes of the files that are done, and of the parts of others that are: holes and what was unchanged
    /// included.
    pub bytes_done: u64,
    /// What the walk has found so far; final once `counting` is false.
    pub bytes_total: u64,
    /// Files that ended, however they did.
    pub files_done: u64,
    /// Files that the walk has found so far.
    pub files_total: u64,
    /// Files that were there already.
    pub unchanged: u64,
    /// Entries that failed.
    pub failed: u64,
    /// The walk still runs.
    pub counting: bool,
    /// Since the run began.
    pub elapsed: Duration,
    /// Data that was moved, also within one host: no holes, nothing unchanged; what was sent again is
    /// included.
    pub bytes_sent: u64,
    /// Of `bytes_done`, holes of copied files.
    pub holes: u64,
    /// What holds it up, in words: a storage operation of either end that hangs ("waiting 12 s for the sink's
    /// write of big.dat"), a server of a volume that is away ("waiting 12 s of 60 s for the catalog of volume
    /// v, ..."), or the network ("waiting 12 s for the network").
    pub waiting: Option<String>,
    /// Parts that an earlier run left are being read; none of that is in `bytes_done` yet.
    pub checking: Option<Checking>,
    /// Somebody paused the copy.
    pub paused: bool,
    /// Data crosses the network unencrypted.
    pub unencrypted: bool,
}

/// The parts of files that an earlier run left are being read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Checking {
    /// Bytes still to be read.
    pub left: u64,
    /// At the rate so far, if that is known.
    pub seconds_left: Option<f64>,
}
