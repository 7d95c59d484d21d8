//! Pairs of stores that move data between them by themselves: two servers that talk to each other, a clone
//! within one file system, a copy on a server. No payload comes by here.
//!
//! In: entries of a walk, with the paths that they have in both stores. Out: markers: how far each is, and
//! how it ended.
//! Invariants: an entry ends once; one that ended well has its name, and all that could be compared was
//! compared before it got it; until then what stood there stands.
//! Left out: which entries there are and what becomes of the run, see who drives a pair.

use std::path::PathBuf;

use haul_core::change::Change;
use haul_core::entry::{Meta, Name};
use haul_core::ids::FileId;
use haul_core::wire::Failure;
use serde::{Deserialize, Serialize};

use crate::Post;
use crate::place::{Place, Sources};
use crate::walk::Walk;

/// One entry for a pair, a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelegatedEntry {
    pub id: FileId,
    /// Paths in their stores.
    pub from: Vec<u8>,
    pub to: Vec<u8>,
    pub size: u64,
    pub meta: Meta,
}

/// How an entry ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DelegatedEnd {
    Moved(DelegatedMove),
    /// It was there already.
    Unchanged,
    /// An option said to leave what stands there.
    Skipped,
}

/// What was moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DelegatedMove {
    pub size: u64,
    /// Bytes that this run moved, those of attempts that came to nothing among them.
    pub moved: u64,
    /// Bytes that an earlier run had moved.
    pub held: u64,
    /// The sum that both stores tell alike; `None`: content was compared by nobody.
    pub compared: Option<&'static str>,
    pub change: Change,
    /// The destination did not take them.
    pub mtime_lost: bool,
    pub mode_lost: bool,
}

/// What stands at an entry's name, and what that means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    New,
    /// It would be replaced.
    Differs(Change),
    Unchanged,
    Skipped,
}

/// What a pair says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Marker {
    /// So many bytes of it are there, as far as its store says, and so many of these were before; again from
    /// none when it is begun anew.
    Moved { id: FileId, len: u64, held: u64 },
    /// It is over.
    Ended { id: FileId, result: Result<DelegatedEnd, Failure> },
    /// Something that people should hear.
    Note(String),
    /// The two cannot move anything between them, and why: everything that is submitted ends so.
    NoWay(String),
    /// One of the two is gone: nothing more can be had of it, by whatever way.
    Gone(Failure),
}

/// What is asked of a pair.
pub struct DelegatedJob<'a> {
    pub sources: Sources<'a>,
    pub destination: &'a Place,
    pub settings: DelegatedSettings,
    pub post: Post<Marker>,
}

/// How a pair is to move.
#[derive(Clone, Debug, Default)]
pub struct DelegatedSettings {
    /// Copy even what is alike.
    pub force: bool,
    pub no_clobber: bool,
    pub update: bool,
    /// Symbolic links are left out.
    pub no_links: bool,
    /// What an earlier run moved counts although nothing compares it.
    pub trust: bool,
    /// What cannot be compared fails.
    pub must_compare: bool,
    /// Data connections of one file, where several can be had.
    pub connections: Option<u32>,
    pub stripes: Option<Stripes>,
    /// Where it is kept what a destination has of unfinished files; `None`: nowhere.
    pub state: Option<PathBuf>,
    /// Where copies through this host have on record what they began in place; `None`: nowhere.
    pub begun: Option<PathBuf>,
    /// Nothing is made or changed.
    pub look: bool,
}

/// How a file is laid out over several nodes of one store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stripes {
    /// Blocks of so many bytes go round.
    Blocked(u64),
    /// Each node has one part.
    Partitioned,
}

/// A pair that begins.
pub struct Delegated {
    pub walk: Walk,
    /// Where the sources go, and the new name of a single file.
    pub to: Vec<u8>,
    pub rename: Option<Name>,
    pub pair: Box<dyn DelegatedPair>,
}

/// A pair of stores that moves data between them by itself.
pub trait DelegatedPair: Send {
    /// Where an entry of the walk lies in its store.
    fn origin(&self, id: FileId) -> Vec<u8>;
    /// Makes a directory before anything in it is submitted; whether it is new.
    ///
    /// # Errors
    /// Something else stands there, or it cannot be made.
    fn make_dir(&mut self, to: &[u8]) -> Result<bool, Failure>;
    /// Gives directories their mtimes and modes, once nothing more is made in them. How many did not take
    /// their time, and how many their mode.
    fn finish_dirs(&mut self, all: &[(Vec<u8>, Meta)]) -> (u64, u64);
    /// What stands at the names of entries, and what would become of it.
    fn look(&mut self, all: &[DelegatedEntry]) -> Vec<Result<Standing, Failure>>;
    /// A directory can be made now. Where not, what is under way is waited for, which ends soon: it is better
    /// to hear of that first, and to ask again.
    fn is_ready(&mut self) -> bool {
        true
    }
    /// Begins with an entry. Its markers are posted, the last of them [`Marker::Ended`], once.
    fn submit(&mut self, entry: DelegatedEntry);
    /// All in a directory was walked, or an entry will not be submitted.
    fn forget(&mut self, id: FileId);
    /// Entries that did not end yet end soon.
    fn cancel(&mut self);
    /// What it moves of an unfinished file is kept in mind for a later run.
    fn resumes(&self) -> bool;
    /// How it was done, for the report.
    fn report(&self) -> Vec<(String, String)>;
}
