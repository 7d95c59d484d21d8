//! The seam of stores: where data comes from and where it goes, whatever keeps it.
//!
//! In: what the user named. Out: a [`SourceStore`], whose roots are told and which is then read, or a
//! [`SinkStore`], which is claimed for one job and then written. What a store cannot do it says once, in its
//! [`Capabilities`]; a store behind a network of its own shows that ([`NetworkFacet`]); a pair of stores that
//! moves data itself only reports how far it is ([`DelegatedPair`]). Whoever drives a session knows these
//! names and no others. `storage/conformance.rs` holds each store against the same rules.
//! Invariants: nothing is written before the claim; what a claim did not win, nobody writes; a finished file
//! is seen whole or not at all, as far as the store's `publish` says; every operation of an engine is
//! answered once.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use haul_core::change::{Change, Stood};
use haul_core::entry::{Fingerprint, KeptNodes, Meta, Name, Node, Part};
use haul_core::ids::{DirId, FileId, Holder};
use haul_core::journal::Resume;
use haul_core::metadata::Values;
use haul_core::transfer::op::{Existing, Inode, Joined};
use haul_core::transfer::source::{Lies, OnChange};
use haul_core::volume::catalog::Failure as Refusal;
use haul_core::volume::{Candidate, Wanted};
use haul_core::wire::{Agreed, Failure, FailureKind, SinkOptions, SourceRoot};

pub use super::attributes::Keeps;
pub use super::source::{Originals, Stamp, WallClock};
use super::targets::Targets;
use super::walk::Walk;
use super::{Post, SinkCompletion, SinkEngine, SourceCompletion, SourceEngine};
use crate::descriptors::Budget;
use crate::manners::{ByName, Manners};
use crate::options::{LayoutChoice, StorageOptions};
use haul_base::meter::Meter;
use rustix::io::Errno;

pub mod delegated;
pub(crate) mod job;

pub use delegated::{DelegatedEntry, DelegatedPair, Marker};

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

/// Objects are put together to larger parts: a store with a limit on their number must take them longer as
/// files get longer.
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
    /// Names may hold CR and LF.
    pub line_ends: bool,
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
    /// A job has one run at a time.
    pub exclusive: bool,
    /// It keeps a job's journal, so that an interrupted run is resumed.
    pub journal: bool,
    /// `None`: objects are taken as they come.
    pub parts: Option<Parts>,
}

impl Capabilities {
    /// Of an ordinary file system.
    pub const POSIX: Capabilities = Capabilities {
        name_len_max: 255,
        line_ends: true,
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
        exclusive: true,
        journal: true,
        parts: None,
    };

    /// What a sink would need that this store has not. `None`: a copy can go there.
    pub fn lacks(&self) -> Option<&'static str> {
        match self {
            Capabilities { parts: Some(_), .. } => Some("takes files in parts of its own length"),
            // These are written as a whole, and as few at a time as the store takes.
            Capabilities { write_order: WriteOrder::Ascending, .. } => None,
            Capabilities { ranges: false, .. } => Some("takes files as a whole alone"),
            Capabilities { many_open: false, .. } => Some("takes one file at a time"),
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

/// Whoever wants some entries of a volume alone, and has to know of which version they are read.
pub trait Picks: std::fmt::Debug + Send + Sync {
    /// Which of these come, in their order. They were looked at before.
    ///
    /// # Errors
    /// The volume's catalog does not say.
    fn pick(&self, entries: &[Candidate]) -> Result<Vec<Wanted>, Refusal>;
    /// One that was picked changed, and is read anew as this.
    fn is_another(&self, entry: &Candidate);
}

/// How a source is read.
pub struct Reading {
    /// What of a volume comes, if not all; of other sources all does.
    pub picks: Option<Arc<dyn Picks>>,
    /// Told of the files, where the sink is in this process and may clone them.
    pub originals: Option<Arc<Originals>>,
    pub agreed: Agreed,
    /// Threads for all that is no object.
    pub readers: usize,
    pub storage: StorageOptions,
    /// Payload bytes in buffers, at most.
    pub memory: u64,
    pub object_size: u32,
    /// Tells whether a change of a file could hide in the grain of its ctime.
    pub clock: WallClock,
    /// How coarsely the destination keeps mtimes; zero: as finely as they are, as far as it said.
    pub kept: Duration,
    pub changed: OnChange,
    /// Symbolic links are left out, and told as that.
    pub no_links: bool,
    /// What else is said of how it is walked. A store that is no file system knows none of it.
    pub manners: Manners,
    /// Whether owners are told by name, too.
    pub by_name: ByName,
    /// FIFOs, sockets and devices that are told.
    pub nodes: KeptNodes,
    /// Extended attributes and lists that are read and told.
    pub keeps: Keeps,
    /// Further names of files and symbolic links are told as such.
    pub hard_links: bool,
    /// What its files and directories may hold.
    pub budget: Budget,
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
    pub policy: SinkOptions,
    /// As whom this run says what is durable.
    pub lease: Holder,
    /// What is said of this run, for people who meet it.
    pub what: &'a str,
    /// The part of one file that comes, if not files as a whole.
    pub part: Option<Part>,
    /// Files are written into those that stand there. A run that may still write must not be followed.
    pub in_place: bool,
    /// The user said so, and did not only name a place in a file.
    pub in_place_asked: bool,
    /// Where the sources are, if they are on this host: nothing is written into them.
    pub sources_here: &'a [PathBuf],
    /// The source tells what it has of the root's attributes and lists, and hears how that ended.
    pub tells_root: bool,
}

impl Coming<'_> {
    /// What the destination root becomes, whether it stands there or not.
    pub(crate) fn root(&self) -> Option<Meta> {
        let becomes = self.tells_root && !haul_mutant::removed("destinations-become-their-source");
        SourceRoot::of_destination(self.roots, &self.policy).filter(|_| becomes)
    }
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
    /// Looks at it as a claim would, up to the point where that would make something; and the new name of a
    /// single file.
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
    /// The names that the sources may take in the root: a source must not bring others along. `None`: those
    /// of the contents of a directory, which only the source knows.
    pub names: Option<HashSet<Name>>,
    /// What the root becomes at the end, by [`SinkOp::FinishDirs`](haul_core::transfer::op::SinkOp) of it;
    /// `None`: it stays as it is, or becomes what it is to be by itself.
    pub root: Option<Meta>,
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

/// Files of a source in the same process, which are cloned where the file system can do that.
#[derive(Clone, Debug)]
pub struct CloneFrom {
    pub originals: Arc<Originals>,
    /// Where they are, as typed.
    pub sources: Vec<PathBuf>,
    /// What cannot be cloned fails, so that nothing is asked of the file system before.
    pub always: bool,
    /// Why none is cloned, if that follows from what else the user chose.
    pub off: Option<&'static str>,
}

/// How a destination is written.
pub struct Writing {
    pub agreed: Agreed,
    pub policy: SinkOptions,
    /// `None`: nothing is cloned, and nothing said of that.
    pub clones: Option<CloneFrom>,
    pub writers: usize,
    pub storage: StorageOptions,
    /// How new files come to lie on storage targets.
    pub layout: LayoutChoice,
    /// Most payload bytes in memory.
    pub memory: u64,
    /// What its files and directories may hold.
    pub budget: Budget,
    pub meter: Arc<Meter>,
    pub post: Post<SinkCompletion>,
}

/// Entries of which something was not kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotKept {
    /// Owner or group were asked for and refused.
    pub owner: u64,
    /// Setuid or setgid were dropped, because the owner was not kept.
    pub setid: u64,
    /// The file system refused the mode, or keeps another.
    pub mode: u64,
    /// The file system refused the mtime; these are sent again by the next run.
    pub mtime: u64,
    /// The file system cannot hold the mtime and keeps the nearest that it can.
    pub clamped: u64,
    /// The destination has no place for NFSv4 lists.
    pub nfs4: u64,
    /// Files with holes, of which the file system made zeros.
    pub sparse: u64,
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
    /// The root, if it is there. `None`: a source has no say in what it becomes.
    fn root(&self) -> Option<Result<Option<Stood>, Failure>> {
        None
    }
    /// What the entry that is asked for next is to have of extended attributes and lists (`None`: none), and
    /// whose it is to be, where that is kept.
    fn expect(&self, _values: Option<Values>, _owned: Option<Meta>) {}
    /// What of owner and mode of what was looked at last differs and stays so, for this user can give it to
    /// no file.
    fn beyond(&self) -> Change {
        Change::NONE
    }
    /// What is in the directory cannot be looked at before a copy opens it, or one above it, to us.
    fn is_closed(&self, id: DirId) -> bool;
    /// What no look at this store tells, for people.
    fn unseen(&self) -> Option<String> {
        None
    }
    /// What stands at a file's name.
    ///
    /// # Errors
    /// It, or its directory, cannot be looked at.
    fn file(&self, parent: DirId, name: &Name) -> Result<Existing, Failure>;
    /// Which inode stands at a name, where that can be told.
    fn inode(&self, _parent: DirId, _name: &Name) -> Option<Inode> {
        None
    }
    /// Whether an entry may have what stands at its name, or be made there, as far as that can be told
    /// without doing it. `counts`: what stands there looks like what it is to be, whose source this is;
    /// `writes`: a copy would write it.
    ///
    /// # Errors
    /// Why a copy would fail.
    fn may_have(
        &self,
        _at: (DirId, &Name),
        _id: FileId,
        (_counts, _writes): (Option<&Fingerprint>, bool),
    ) -> Result<(), Failure> {
        Ok(())
    }
    /// What a FIFO, socket or device would change, with `owner` in what is wanted whose it is too, and what
    /// stands at its name, if that would have to give way.
    ///
    /// # Errors
    /// A directory stands there, it cannot be looked at, or this user cannot make such a thing.
    fn node(
        &self,
        _parent: DirId,
        _name: &Name,
        _node: Node,
        (_meta, _owner): (&Meta, bool),
    ) -> Result<(Change, Existing), Failure> {
        Err(no_nodes())
    }
    /// What a link to `target` would change, with `owner` in what is wanted whose it is too, and what stands
    /// at its name.
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

/// What no look at a server tells of a destination there.
pub const UNSEEN_AT_SERVERS: &str = "whether this user may write there, and whether the server takes each name and keeps times and modes: it tells of what \
                                     is done alone";

/// What stands where it must not be replaced or written into, in the words of a copy and of a dry run.
pub(crate) const DIRECTORY: &str = "a directory stands there; nothing was removed";
pub(crate) const NOT_IN_PLACE: &str = "a link, device, FIFO or socket stands there, and nothing is written into one: it was left alone; without `in_place` a link is replaced";
pub(crate) const SPECIAL: &str =
    "a device, FIFO or socket stands there and was left alone; `force` replaces it";

/// What becomes of further names where there are none.
pub(crate) fn no_hard_links() -> Joined {
    let text = "there are no hard links where it lies; it is a file of its own";
    let errno = Errno::OPNOTSUPP.raw_os_error();
    Joined::Never(Failure { kind: FailureKind::Publish, errno, text: text.into() })
}

/// A file or link takes no directory's place.
pub fn dir_stands() -> Failure {
    refused(Errno::ISDIR, DIRECTORY)
}

/// What a store says of a FIFO, socket or device that has none.
pub fn no_nodes() -> Failure {
    refused(Errno::OPNOTSUPP, "there are no FIFOs, sockets and devices there")
}

/// Nothing that is announced takes the place of a device, unless the user insists.
pub fn special_stands() -> Failure {
    refused(Errno::EXIST, SPECIAL)
}

/// What is no file is neither followed nor written into.
pub fn not_in_place() -> Failure {
    refused(Errno::EXIST, NOT_IN_PLACE)
}

fn refused(errno: Errno, why: &str) -> Failure {
    Failure { kind: FailureKind::Create, errno: errno.raw_os_error(), text: why.into() }
}
