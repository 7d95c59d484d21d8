//! The seam of stores: where data comes from and where it goes, whatever keeps it.
//!
//! In: what the user named. Out: a [`SourceStore`], whose roots are told and which is then read, or a [`SinkStore`], which is claimed
//! for one job and then written. What a store cannot do it says once, in its [`Capabilities`]; a store behind a network of its own
//! shows that ([`NetworkFacet`]); a pair of stores that moves data itself only reports how far it is ([`DelegatedPair`]).
//! Whoever drives a session knows these names and no others. `storage/conformance.rs` holds each store against the same rules.
//! Invariants: nothing is written before the claim; what a claim did not win, nobody writes; a finished file is seen whole or not at
//! all, as far as the store's `publish` says; every operation of an engine is answered once.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use haul_core::change::{Change, Stood};
use haul_core::entry::{Meta, Name, Part};
use haul_core::ids::{DirId, FileId, Holder};
use haul_core::journal::{Record, Replayed, Resume, RootId, compact};
use haul_core::transfer::op::Existing;
use haul_core::transfer::source::{Lies, OnChange};
use haul_core::wire::{Agreed, Failure, Policy, SourceRoot};

pub use super::sink::looker::{dir_stands, not_in_place, special_stands};
use super::sink::owner::boot_id;
pub use super::sink::stripes::in_words as stripes_in_words;
pub use super::sink::{Foreseen, NotKept};
pub use super::source::{Stamp, WallClock};
use super::targets::Targets;
use super::walk::Walk;
use super::{Post, SinkCompletion, SinkEngine, SourceCompletion, SourceEngine};
use crate::options::{LayoutChoice, StorageOptions};
use haul_base::meter::Meter;

/// In which order bytes of a file may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOrder {
    Any,
    /// Each write begins where the last one ended.
    Ascending,
}

/// What makes data last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durable {
    /// A sync, which tells of errors.
    Sync,
    /// The server says so when it has taken the file.
    ServersWord,
    Nothing,
}

/// How a file comes to be seen under its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Publishing {
    /// It is written under another name, and renamed: whole or not at all.
    Rename,
    /// It is seen while it is written; only its end says that it is whole.
    OnClose,
    /// A request at the end puts its parts together: whole or not at all.
    Complete,
}

/// What directories are to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Directories {
    /// Made and kept by themselves, with a mode and times.
    Kept,
    /// A part of names.
    Implied,
    None,
}

/// Objects are put together to larger parts: a store with a limit on their number must take them longer as files get longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Bytes; the last of a file may be shorter.
    pub len_min: u64,
    pub len_max: u64,
    pub count_max: u32,
}

/// What a store can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Longest name of an entry, bytes.
    pub name_len_max: usize,
    pub directories: Directories,
    /// Symbolic links.
    pub links: bool,
    pub write_order: WriteOrder,
    pub durable: Durable,
    pub publishing: Publishing,
    /// A part of a file can be read, or written, by itself.
    pub ranges: bool,
    /// What stands there can be written into, and keeps the rest.
    pub in_place: bool,
    /// What an interrupted run wrote of a file can be gone on with at its end.
    pub append: bool,
    /// It tells digests of what it holds, when it is asked.
    pub digests: bool,
    /// Many files can be written at a time.
    pub many_open: bool,
    /// It keeps a job's journal, so that an interrupted run is resumed.
    pub journal: bool,
    /// `None`: objects are taken as they come.
    pub parts: Option<Parts>,
}

impl Capabilities {
    /// Of an ordinary file system.
    pub const POSIX: Capabilities = Capabilities {
        name_len_max: 255,
        directories: Directories::Kept,
        links: true,
        write_order: WriteOrder::Any,
        durable: Durable::Sync,
        publishing: Publishing::Rename,
        ranges: true,
        in_place: true,
        append: true,
        digests: false,
        many_open: true,
        journal: true,
        parts: None,
    };

    /// What a sink would need that this store has not. `None`: a copy can go there.
    pub fn lacks(&self) -> Option<&'static str> {
        match self {
            Capabilities { write_order: WriteOrder::Ascending, .. } => {
                Some("takes the bytes of a file in ascending order alone")
            }
            Capabilities { ranges: false, .. } => Some("takes files as a whole alone"),
            Capabilities { many_open: false, .. } => Some("takes one file at a time"),
            Capabilities { parts: Some(_), .. } => Some("takes files in parts of its own length"),
            _ => None,
        }
    }
}

/// The network of a store that is reached over one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreNetwork {
    pub connections: u16,
    pub round_trip: Option<Duration>,
    /// Bytes that went over it, either way.
    pub bytes: u64,
}

impl StoreNetwork {
    /// For the report.
    pub fn in_words(&self) -> String {
        let rtt = self.round_trip.map(haul_core::tune::show_ms);
        let rtt = rtt.map_or_else(String::new, |rtt| format!(", round trip {rtt}"));
        format!("{} connections{rtt}, {}", self.connections, haul_core::tune::show_size(self.bytes))
    }
}

/// A store's network, as whoever tunes and reports sees it.
pub trait NetworkFacet: Send + Sync {
    fn look(&self) -> StoreNetwork;
    /// Uses so many connections from now on, as far as it can; how many these are.
    fn set_connections(&self, connections: u16) -> u16;
}

/// How a source is read.
pub struct Reading {
    pub agreed: Agreed,
    /// Threads for all that is no object.
    pub readers: usize,
    pub storage: StorageOptions,
    /// Payload bytes in buffers, at most.
    pub memory: u64,
    pub object_size: u32,
    /// Tells whether a change of a file could hide in the grain of its ctime.
    pub clock: WallClock,
    pub changed: OnChange,
    pub meter: Arc<Meter>,
    pub post: Post<SourceCompletion>,
}

/// Sources that were found.
pub trait SourceStore: Send {
    fn capabilities(&self) -> Capabilities;
    /// What the sink is told of them.
    ///
    /// # Errors
    /// Two of them would take one name, or one is gone.
    fn roots(&self) -> Result<Vec<SourceRoot>, Failure>;
    /// Begins to walk and to read them.
    ///
    /// # Errors
    /// The system gives no threads.
    fn start(self: Box<Self>, reading: Reading) -> Result<SourceParts, Failure>;
}

/// A source that is read.
pub struct SourceParts {
    pub names: Arc<dyn SourceNames>,
    pub engine: Box<dyn SourceEngine>,
    pub walk: Walk,
}

/// What is known of the entries that were walked, by their ids.
pub trait SourceNames: Send + Sync {
    /// At the destination, as people see it.
    fn path_of(&self, id: FileId) -> Vec<u8>;
    /// At the source, where a manifest may read it, and which version of it was read.
    fn origin_of(&self, id: FileId) -> Option<(Vec<u8>, Stamp)>;
    /// Where its objects lie.
    fn lies(&self, id: FileId) -> Lies;
    /// It is too young to be read before this.
    fn not_before(&self, _id: FileId) -> Option<Instant> {
        None
    }
    fn targets(&self) -> &Targets;
}

/// What will come, as the source told.
#[derive(Clone, Copy)]
pub struct Coming<'a> {
    pub roots: &'a [SourceRoot],
    pub policy: Policy,
    /// As whom this run says what is durable.
    pub lease: Holder,
    /// What is said of this run, for people who meet it.
    pub what: &'a str,
    /// The part of one file that comes, if not files as a whole.
    pub part: Option<Part>,
    /// Files are written into those that stand there. A run that may still write must not be followed.
    pub in_place: bool,
    /// Where the sources are, if they are on this host: nothing is written into them.
    pub sources_here: &'a [PathBuf],
}

/// Whoever waits for a claim.
pub trait Waiting {
    /// Says one line to the user.
    fn say(&self, text: &str);
    /// Nobody wants it any more.
    fn stopped(&self) -> bool;
}

/// A destination.
pub trait SinkStore: Send {
    fn capabilities(&self) -> Capabilities;
    /// Makes sure of the destination, takes it for one job, and finds what an earlier run of that left.
    ///
    /// # Errors
    /// It cannot be used, or another run has the job.
    fn claim(self: Box<Self>, coming: &Coming<'_>, waiting: &dyn Waiting) -> Result<Claimed, Failure>;
    /// Looks at it as a claim would, up to the point where that would make something; and the new name of a single file.
    ///
    /// # Errors
    /// It cannot be used.
    fn look(self: Box<Self>, coming: &Coming<'_>) -> Result<(Box<dyn Looks>, Option<Name>), Failure>;
}

/// A destination that is a job's.
pub struct Claimed {
    pub job: Box<dyn HeldJob>,
    pub resume: Resume,
    /// Which run this is of the job: takers count it up.
    pub epoch: u32,
    /// Stands in the names of this run's temporaries.
    pub tag: u32,
    /// Names may stand there already.
    pub wait: bool,
    /// The new name of a single file.
    pub rename: Option<Name>,
    pub resumed: bool,
    /// The names that the sources may take in the root: a source must not bring others along. `None`: those of the contents of a
    /// directory, which only the source knows.
    pub names: Option<HashSet<Name>>,
    pub found: Vec<Finding>,
}

/// What a claim found that people should hear of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// What dead copies of other jobs left there, and how to remove it.
    Debris(String),
    /// The destination keeps files in memory alone: the name of its file system.
    InMemory(&'static str),
}

/// How a destination is written.
pub struct Writing {
    pub agreed: Agreed,
    pub policy: Policy,
    pub writers: usize,
    pub storage: StorageOptions,
    /// How new files come to lie on storage targets.
    pub layout: LayoutChoice,
    /// Most payload bytes in memory.
    pub memory: u64,
    pub meter: Arc<Meter>,
    pub post: Post<SinkCompletion>,
}

/// The job of a claim, until it is left or dropped.
pub trait HeldJob: Send {
    /// Begins to write. Once.
    ///
    /// # Errors
    /// The system gives no threads.
    fn start(&mut self, writing: Writing) -> Result<Box<dyn SinkEngine>, Failure>;
    /// Whether this run ends soon: another one that asks for the job waits for that.
    fn set_ends(&self, ends: bool);
    /// Whether another run that asks for the job gets it.
    fn set_yields(&self, yields: bool);
    /// All is done: nothing of the job stays.
    fn finish(&self);
    /// What stays of it all the same, in words.
    fn stays(&self) -> Option<String> {
        None
    }
    /// This run is over, whatever became of the job. Also after [`HeldJob::finish`].
    fn leave(&self);
}

/// A destination that is looked at and never changed.
pub trait Looks: Send {
    /// Makes a directory known, as it was announced.
    fn register(&self, id: DirId, parent: DirId, name: Name);
    /// The directory and all in it is over.
    fn forget(&self, id: DirId);
    /// The directory, if it is there.
    ///
    /// # Errors
    /// Something else stands there, or it cannot be looked at.
    fn dir(&self, id: DirId) -> Result<Option<Stood>, Failure>;
    /// What is in the directory cannot be looked at before a copy opens it, or one above it, to us.
    fn is_closed(&self, id: DirId) -> bool;
    /// What stands at a file's name.
    ///
    /// # Errors
    /// It, or its directory, cannot be looked at.
    fn file(&self, parent: DirId, name: &Name) -> Result<Existing, Failure>;
    /// What a link to `target` would change, with `owner` in what is wanted whose it is too, and what stands at its name.
    ///
    /// # Errors
    /// A directory stands there, or it cannot be looked at.
    fn link(
        &self,
        parent: DirId,
        name: &Name,
        target: &[u8],
        wanted: (&Meta, bool),
    ) -> Result<(Change, Existing), Failure>;
}

/// One entry for a pair of stores that moves data itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelegatedEntry {
    pub id: FileId,
    /// Paths in their stores.
    pub from: Vec<u8>,
    pub to: Vec<u8>,
    pub size: u64,
}

/// What such a pair says of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Marker {
    /// So many bytes from its start are there.
    Durable { id: FileId, len: u64 },
    /// It is over.
    Ended { id: FileId, result: Result<(), Failure> },
}

/// A pair of stores that moves data between them by itself: two servers that talk to each other, a clone within one file system, a
/// copy on a server. No payload comes by here.
pub trait DelegatedPair: Send {
    /// Begins with an entry. Its markers are posted, the last of them [`Marker::Ended`], once.
    fn submit(&mut self, entry: DelegatedEntry);
    /// Entries that did not end yet end soon.
    fn cancel(&mut self);
}

/// The records with which a run's journal begins, and what it goes on from.
pub(super) fn begin_journal(
    replayed: Replayed,
    (job, root): ([u8; 16], RootId),
    (epoch, tag): (u32, u32),
    coming: &Coming<'_>,
) -> (Vec<u8>, Resume) {
    let head = Record::Head { job, root };
    let (durable, lease) = (coming.policy.durable, coming.lease);
    let session = Record::Session { epoch, tag, boot: boot_id(), durable, lease };
    let (bytes, log, _, next_slot) = compact(&replayed, head, session);
    (bytes, Resume { replayed, log, next_slot })
}

/// The names that the sources may take in the destination root.
pub(super) fn names_of(roots: &[SourceRoot], rename: Option<&Name>) -> Option<HashSet<Name>> {
    if let Some(name) = rename {
        return Some(HashSet::from([name.clone()]));
    }
    let name = |root: &SourceRoot| match root {
        SourceRoot::Named { name, .. } => Some(name.clone()),
        SourceRoot::Contents { .. } => None,
    };
    roots.iter().map(name).collect()
}

/// Job key: the destination root's identity, the final top-level names, and which part of a file goes where in it; never host, source
/// path or any other option.
pub(super) fn job_of(
    root: &RootId,
    roots: &[SourceRoot],
    rename: Option<&Name>,
    part: Option<&Part>,
) -> [u8; 16] {
    let mut parts: Vec<Vec<u8>> = roots
        .iter()
        .map(|root| match (root, rename) {
            (SourceRoot::Named { .. }, Some(name)) => [b"n".as_slice(), name.as_bytes()].concat(),
            (SourceRoot::Named { name, .. }, None) => [b"n".as_slice(), name.as_bytes()].concat(),
            (SourceRoot::Contents { of, .. }, _) => {
                [b"c".as_slice(), of.as_ref().map_or(&[], Name::as_bytes)].concat()
            }
        })
        .collect();
    parts.sort();
    // As ever: what an older haul left here must be found, and refused, under the same key.
    let mut hasher = blake3::Hasher::new_derive_key("haul job v2");
    hasher.update(root.as_bytes());
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(&part);
    }
    if let Some(Part { source, len, sink }) = part.filter(|_| !haul_mutant::removed("ranges-are-jobs")) {
        // No name is so long.
        hasher.update(&u64::MAX.to_le_bytes());
        for number in [Some(*source), *len, *sink] {
            hasher.update(&[number.is_some().into()]);
            hasher.update(&number.unwrap_or(0).to_le_bytes());
        }
    }
    let mut job = [0; 16];
    job.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    job
}

/// A tag for this run's temporaries.
pub(super) fn fresh_tag() -> u32 {
    let mut bytes = [0; 4];
    // The tag only has to differ from those of earlier runs; a kernel without random numbers still has time.
    if aws_lc_rs::rand::fill(&mut bytes).is_err() {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        bytes = now.map_or(0, |now| now.subsec_nanos()).to_le_bytes();
    }
    u32::from_le_bytes(bytes) & 0x3fff_ffff
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: two destinations are two jobs, and so are two sources; one whose contents changed is not.
    /// Method: keys of the same roots in two destinations, and of other roots.
    #[test]
    fn jobs_in_two_destinations_differ() {
        let named = |name: &str| Name::new(name.as_bytes()).expect("legal");
        let contents = |name: &str| [SourceRoot::Contents { of: Some(named(name)), meta: Meta::default() }];
        let key =
            |root: &[u8], roots: &[SourceRoot]| job_of(&RootId::new(root).expect("short"), roots, None, None);
        assert_eq!(key(b"one", &contents("data")), key(b"one", &contents("data")));
        assert_ne!(key(b"one", &contents("data")), key(b"two", &contents("data")));
        assert_ne!(key(b"one", &contents("data")), key(b"one", &contents("other")));
        let whole = [SourceRoot::Named { name: named("data"), is_dir: true }];
        assert_ne!(key(b"one", &contents("data")), key(b"one", &whole));
    }

    /// Goal: each part of a file that goes into one name is a job of its own, and so is the same part at another offset there.
    /// Method: parts that differ in one number, or in whether it is given, against each other.
    #[test]
    fn parts_of_a_file_are_jobs_of_their_own() {
        let file = [SourceRoot::Named { name: Name::new(b"f").expect("legal"), is_dir: false }];
        let root = RootId::new(b"one").expect("short");
        let part = |source, len, sink| Some(Part { source, len, sink });
        let parts = [
            None,
            part(0, None, None),
            part(0, Some(1), None),
            part(1, Some(1), None),
            part(1, None, Some(1)),
            part(1, None, Some(0)),
            part(1, None, None),
        ];
        let keys: HashSet<_> = parts.iter().map(|part| job_of(&root, &file, None, part.as_ref())).collect();
        assert_eq!(keys.len(), parts.len());
    }
}
