//! What a copy that runs tells its observer.

use std::time::Duration;

use haul_base::role::Role;
use haul_core::change::Change;

use crate::target_tables::TargetTable;

/// Hears what happens. Called from haul's own threads; must not block.
pub trait Observer: Send + Sync {
    fn event(&self, event: Event);
}

/// Something that happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// One line for people: push, firewall, what was chosen and why.
    Note(String),
    /// Dry run: one of the first mappings. `metadata_only`: of a file whose content would not be copied.
    Plan { source: Vec<u8>, destination: Vec<u8>, bytes: Option<u64>, metadata_only: bool },
    /// About every 200 ms.
    Progress(Progress),
    /// Only if [`CopyRequest::targets`]: how the storage targets of one end stand, about twice a second for each end that tells.
    Targets(TargetTable),
    /// Only if [`CopyRequest::targets`]: this end will not tell of its targets, and why.
    NoTargets { end: Role, why: String },
    /// Only if [`CopyRequest::verbose`]. `change`: what differs at the destination from before this run (in a dry run: would).
    Entry { path: Vec<u8>, kind: EntryKind, end: EntryEnd, change: Change, bytes: u64 },
    /// An entry that was not copied. `errno` is 0 if no system call failed.
    Failed { path: Vec<u8>, stage: String, errno: i32, text: String },
    /// Only if [`Options::manifest`](crate::options::Options::manifest): the BLAKE3 hash of a file at the destination, and how much
    /// that is of, if it was copied.
    Digest { path: Vec<u8>, root: [u8; 32], bytes: Option<u64> },
}

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    File,
    Dir,
    Symlink,
}

/// How an entry ended, if it did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryEnd {
    Copied,
    Unchanged,
    Skipped,
}

/// How far a copy is. Counts are since the start of this run.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// Sizes of the files that are done, and of the parts of others that are: holes and what was unchanged included.
    pub bytes_done: u64,
    /// What the walk has found so far; final once `counting` is false.
    pub bytes_total: u64,
    pub files_done: u64,
    pub files_total: u64,
    pub unchanged: u64,
    pub failed: u64,
    /// The walk still runs.
    pub counting: bool,
    pub elapsed: Duration,
    /// Data that was moved, also within one host: no holes, nothing unchanged; what was sent again is included.
    pub bytes_sent: u64,
    /// Of `bytes_done`, holes of copied files.
    pub holes: u64,
    /// What holds it up, in words: a storage operation of either end that hangs ("waiting 12 s for the sink's write of
    /// big.dat"), or the network ("waiting 12 s for the network").
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
