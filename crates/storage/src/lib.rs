//! Storage: reading a source, writing a sink.
//!
//! [`store`] is the seam: what a store is, before and while it is read or written. [`stores`] is the list of
//! them. Engines are completion-shaped: a job is submitted, its completion is posted later from one of the
//! engine's own threads. Posting never blocks.
//!
#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

pub use haul_base::Post;
use haul_core::entry::Name;
use haul_core::ids::{DirId, FileId};
use haul_core::metadata::Values;
use haul_core::schedule::Limits;
use haul_core::transfer::op::{SinkDone, SinkOp, SourceDone, SourceOp};
use haul_core::wire::{BUNDLE_ENTRIES_MAX, HeldReport, Placed};

use haul_base::buffer::Buffer;
use store::{NetworkFacet, NotKept};
use targets::Targets;

mod attributes;
pub mod blocking_pool;
#[cfg(test)]
mod conformance;
pub mod descriptors;
#[cfg(feature = "ftp")]
pub mod ftp;
pub mod io;
mod io_settings;
pub mod jail;
pub mod layout;
mod levels;
pub mod manners;
pub mod meta_rate;
#[cfg(any(test, feature = "testing"))]
pub mod model;
pub mod null;
pub mod options;
#[doc(hidden)]
pub mod owed;
pub mod place;
pub mod sink;
pub mod source;
pub mod spill;
pub mod store;
pub mod stores;
pub mod targets;
#[cfg(feature = "volume")]
pub mod vol;
pub mod volume;
pub mod walk;

/// Every kind of place that there is: one line for each that a back end brings.
pub static SCHEMES: &[&place::Scheme] = &[
    &place::FILE,
    &null::NULL,
    &null::ZERO,
    #[cfg(feature = "ftp")]
    &ftp::FTP,
    #[cfg(feature = "ftp")]
    &ftp::FTPS,
    #[cfg(feature = "ftp")]
    &ftp::GSIFTP,
    #[cfg(feature = "ftp")]
    &ftp::SSHFTP,
    #[cfg(feature = "volume")]
    &vol::VOL,
];

/// An operation with the buffers that it needs: `Read` and `ReadBundle` bring one to fill (its length is
/// the length to read).
pub struct SourceJob {
    pub op: SourceOp,
    pub buffer: Option<Buffer>,
}

/// A completion with the buffer that was filled, or that comes back unused from a failed read.
pub struct SourceCompletion {
    pub done: SourceDone,
    pub buffer: Option<Buffer>,
}

/// An operation with the payload that it needs (`Write`, `WriteBundle`).
pub struct SinkJob {
    pub op: SinkOp,
    pub buffer: Option<Payload>,
}

/// The buffer of an operation.
pub enum Payload {
    Own(Buffer),
    /// More of it is to be written.
    Shared(Arc<Buffer>),
}

impl Payload {
    /// Another hold on it; it goes back to its pool when all are gone.
    pub fn share(self) -> (Payload, Payload) {
        let shared = self.shared();
        (Payload::Shared(shared.clone()), Payload::Shared(shared))
    }

    pub(crate) fn shared(self) -> Arc<Buffer> {
        match self {
            Payload::Own(buffer) => Arc::new(buffer),
            Payload::Shared(buffer) => buffer,
        }
    }
}

/// A completion; the payload buffer was dropped (and so went back to its pool) before it was posted.
pub struct SinkCompletion {
    pub done: SinkDone,
}

/// A storage operation that is past its deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// `read`, `write`, `sync`, `open`, ..
    pub what: &'static str,
    /// For people: the path.
    pub name: String,
    /// Bytes from the start of the file.
    pub offset: u64,
    pub since: Duration,
}

impl Stuck {
    /// For people.
    pub(crate) fn in_words(&self) -> String {
        let Stuck { what, name, offset, since } = self;
        let at = if *offset > 0 { format!(" at byte {offset}") } else { String::new() };
        format!("{what} of {name}{at} hangs for {} s", since.as_secs())
    }
}

/// What hangs in two places, the oldest first.
pub(crate) fn oldest_first(mut stuck: Vec<Stuck>, more: Vec<Stuck>) -> Vec<Stuck> {
    stuck.extend(more);
    stuck.sort_by_key(|stuck| std::cmp::Reverse(stuck.since));
    stuck
}

/// Reads a source.
pub trait SourceEngine: Send {
    fn submit(&mut self, job: SourceJob);
    /// Changes how many operations may be in flight at each storage target, and with them, in proportion, how
    /// many requests of objects; `None`: as at the start. What was begun goes on. Returns how many operations
    /// that are.
    fn set_width(&mut self, width: Option<u16>) -> u16;
    /// Objects of this length that may be read at a time at that width: at one target, and at all together.
    fn reads_max(&self, object_size: u32) -> (u32, u32);
    /// Small files that it reads in one go, at most [`BUNDLE_ENTRIES_MAX`].
    fn bundle_files(&self) -> usize {
        BUNDLE_ENTRIES_MAX
    }
    /// It can tell whether what a sink holds of a file is of the version that it has now
    /// ([`SourceOp::Verify`](haul_core::transfer::op::SourceOp::Verify)). Where it cannot, nothing of that is
    /// gone on with, and nobody reads it for that.
    fn compares(&self) -> bool {
        true
    }
    /// Operations that hang, the oldest first.
    fn stuck(&self) -> Vec<Stuck>;
    /// What is waited for that is away, and for how long, in words.
    fn in_wait(&self) -> Option<String> {
        None
    }
    /// A stop was asked for: nothing waits for a rate that the user set.
    fn hurry(&self) {}
    /// What was chosen, by name, with the reason.
    fn report(&self) -> Vec<(String, String)>;
    /// The network that it is reached over, if it is.
    fn network(&self) -> Option<&dyn NetworkFacet> {
        None
    }
}

/// Writes a sink.
pub trait SinkEngine: Send {
    fn submit(&mut self, job: SinkJob);
    /// Makes a directory known, before any operation in it.
    fn register(&self, _id: DirId, _parent: DirId, _name: Name) {}
    /// The directory may be forgotten.
    fn forget(&self, _id: DirId) {}
    /// What an entry is to have of extended attributes and lists, before any operation of it.
    fn keep_metadata(&self, _id: FileId, _values: Arc<Values>) {}
    /// That may be forgotten.
    fn forget_metadata(&self, _id: FileId) {}
    /// Other names may follow of a file or symbolic link, before any operation of it.
    fn lead(&self, _id: FileId, _parent: DirId, _name: &Name) {}
    /// None do any more.
    fn forget_lead(&self, _id: FileId) {}
    /// As [`SourceEngine::set_width`]; `None` comes back where there is nothing to change.
    fn set_width(&mut self, width: Option<u16>) -> Option<u16>;
    /// Why there is nothing to change.
    fn fixed(&self) -> Option<&'static str> {
        None
    }
    /// Operations that hang, the oldest first.
    fn stuck(&self) -> Vec<Stuck>;
    /// As [`SourceEngine::in_wait`].
    fn in_wait(&self) -> Option<String> {
        None
    }
    /// As [`SourceEngine::hurry`].
    fn hurry(&self) {}
    /// What was chosen, by name, with the reason.
    fn report(&self) -> Vec<(String, String)>;
    /// Bytes that there is room for, if that can be told.
    fn room(&self) -> Option<u64> {
        None
    }
    /// How long objects fit where files will lie, if anything asks for a length.
    fn object_len(&self) -> Option<u32> {
        None
    }
    /// How coarsely mtimes are kept there, nanoseconds, where that is no finer than a second.
    fn time_grain(&self) -> Option<u32> {
        None
    }
    /// Writes of objects that it can have in flight, where there are several storage targets.
    fn limits(&self) -> Option<Limits> {
        None
    }
    /// Files that it takes at a time, where it takes the bytes of each in ascending order alone; it may
    /// become more or fewer. `None`: in any order, of as many as come.
    fn places(&self) -> Option<u32> {
        None
    }
    /// So many files are known of and not over. Told where it takes few at a time, before they are looked up.
    fn expect(&self, _files: usize) {}
    /// It clones files of the source ([`SinkOp::Clone`]).
    fn clones(&self) -> bool {
        false
    }
    /// How long a commit takes, however few files it has.
    fn commit_cost(&self) -> Duration {
        Duration::ZERO
    }
    fn targets(&self) -> Arc<Targets> {
        Arc::default()
    }
    /// Which stripes files got.
    fn placed(&self) -> Placed {
        Placed::default()
    }
    /// Entries of which something was not kept.
    fn not_kept(&self) -> NotKept {
        NotKept::default()
    }
    /// What this run or those before it left, and how to remove it.
    fn left(&self) -> Option<String> {
        None
    }
    /// Bytes of unfinished files that it keeps for a later run, and that the session machine knows nothing
    /// of.
    fn kept(&self) -> u64 {
        0
    }
    /// Bytes that were written and did not go anywhere, for they were there.
    fn spared(&self) -> u64 {
        0
    }
    /// Something that an earlier run left was gone on with, of which the session machine knows nothing.
    fn resumed(&self) -> bool {
        false
    }
    /// What became of those that an earlier run left.
    fn held(&self) -> HeldReport {
        HeldReport::default()
    }
    /// The network that it is reached over, if it is.
    fn network(&self) -> Option<&dyn NetworkFacet> {
        None
    }
    /// Ends it after all that was submitted. What hangs and was left, in words.
    fn end(&mut self) -> Vec<String> {
        Vec::new()
    }
}
