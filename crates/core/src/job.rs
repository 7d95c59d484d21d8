//! The coordinator of a job: which pair of ends moves what, what is durable, who gives a file its name.
//!
//! In: pairs that join and are lost, entries that the walk announces, what the pairs say of them, completions
//! of the journal, time. Out: work for pairs, records for the journal, what is durable, names to be given,
//! directories to be finished, entries that ended. It runs where the journal lies and nowhere else; no I/O,
//! no clock, no payload.
//! Invariants:
//! - whatever comes under a lease that ended has no effect; what a pair wrote counts only if the journal said
//!   so before its lease ended;
//! - a range is durable once the journal says so, never before, and only then does its source hear of it;
//! - nothing unread is believed: a root consists of values that ends computed in this run, from frames or by
//!   reading; what an earlier run's journal says is read first;
//! - a file is published when every byte of it is durable and its source was looked at after that, by one end
//!   that is told so; another end is told only when the lease of the first ended, and then makes a new inode
//!   of what it reads and finds right;
//! - nothing more goes into a file that an end which may still act was writing: it goes on in a new one, into
//!   which what is durable is taken over; and the names that such an end might still give are taken from it
//!   first;
//! - a directory is finished after everything in it ended, from the deepest up;
//! - two ends never write one page: ranges begin at multiples of [`PAGE_LEN`] and of the object size.
//!
//! The sink of a session, which is all that a job of one pair needs, has no coordinator but decides by the
//! same parts of it: `facts`, `kept`, `earlier`, `naming`, `dirs`.
//!
//! Left out: sessions, which move what is assigned (`transfer`); how ends are started; the looks at names
//! that an earlier run may have given late, which belong to the storage that gives names.
//!
//! An entry's way: announced (`entry`), assigned whole or in ranges (`assign`), persisted (`said`) and
//! journaled (`facts`, `kept`), sealed and published (`finish`, `naming`). Pairs and their leases are in
//! `pairs`, directories in `dirs`, what earlier runs left in `earlier`.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::digest::{Cv, DigestKind, Root, Subtree, SubtreeSet};
use crate::entry::{Fingerprint, Meta, Name};
use crate::extents::ExtentMap;
use crate::id_map::IdMap;
use crate::ids::{DirId, FileId, Generation, Holder, Lease, PairId, SessionEpoch, Time};
use crate::journal::{PathKey, Resume};
use crate::transfer::{Ended, SessionEnd};
use crate::wire::{Extent, Failure};

mod assign;
pub mod delegated;
pub(crate) mod dirs;
pub(crate) mod earlier;
mod entry;
pub(crate) mod facts;
mod finish;
pub(crate) mod kept;
pub(crate) mod ledger;
pub(crate) mod naming;
mod pairs;
mod said;
#[cfg(test)]
mod tests;

use dirs::Dirs;
use earlier::Earlier;
use entry::File;
use facts::{Fact, Facts, Known};
use kept::Kept;
use naming::Naming;
use pairs::Pair;

/// Ranges begin at multiples of it: the largest page or record that a client of a file system reads, changes
/// and writes back.
pub const PAGE_LEN: u64 = 1 << 20;
/// Pairs of ends at a time, at most: sixteen hosts a side.
pub const PAIRS_MAX: usize = 256;
/// What one pair has to do at a time, at most: files, ranges, reads.
pub const WORKS_MAX: usize = 1024;
/// Most items of one [`Action::Assign`], [`Action::GiveBack`] and [`Action::Durable`].
pub const ITEMS_MAX: usize = 256;
/// What pairs said and the journal did not hear yet, at most; in subtrees and ends. A pair that says more is
/// not believed.
pub const FACTS_MAX: usize = 256 * 1024;
/// Temporaries of one file that an end might still give its name, at most; then the file fails.
pub const FORMER_MAX: usize = 16;
/// How often a file is begun anew because what was to be published was not what had been written, at most.
pub const RESTARTS_MAX: u8 = 3;

/// What the coordinator must know before it starts.
#[derive(Clone, Debug)]
pub struct Config {
    /// Entries announced and not yet ended, at most.
    pub entries_max: u32,
    pub digest: DigestKind,
    pub durable: bool,
    /// Of this run; leases carry it.
    pub epoch: SessionEpoch,
    /// In the names of this run's temporaries.
    pub tag: u32,
    /// Files of this length and longer go in ranges where there are several pairs, bytes.
    pub shared_min: u64,
    /// Of a range, at most, bytes.
    pub range_max: u64,
    /// A pair that is not heard for so long has no lease any more. `None`: it lives as long as this run.
    pub lease_time: Option<Duration>,
}

/// The name of a temporary, beside its file's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Temp {
    pub tag: u32,
    pub number: u64,
}

/// A file as the walk announces it.
#[derive(Clone, Debug)]
pub struct FileSpec {
    pub id: FileId,
    pub generation: Generation,
    pub parent: DirId,
    pub name: Name,
    pub fingerprint: Fingerprint,
    pub object_size: u32,
    /// Where a sparse file has data.
    pub map: Option<ExtentMap>,
}

/// How a pair shall treat what it is assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkKind {
    /// All of the entry: look what stands there, move it, seal it, give it its name, say so.
    Whole,
    /// Look what stands there, make the temporary at its full length or find it, say so; then move the range.
    Begin,
    /// Move the range into the temporary, which is there.
    Range,
    /// Read the range and say its value: an earlier run wrote it, or it lies where somebody may still write.
    Read,
}

/// Something for a pair to do. Its range begins at a multiple of the object size and of [`PAGE_LEN`], and
/// ends at one or with the file (of what is only read: it is a node of the file's tree).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    pub id: FileId,
    pub generation: Generation,
    pub kind: WorkKind,
    pub offset: u64,
    pub len: u64,
    pub temp: Temp,
    /// Of what is read: where it lies. If that is another temporary, what was read is written into this one,
    /// on media, before its value is said.
    pub from: Temp,
    /// Of whole entries: temporaries of the same name to remove before it is given.
    pub former: Vec<Temp>,
}

/// A part of a work: what lies behind `from` is not to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Return {
    pub id: FileId,
    pub generation: Generation,
    /// Where the work begins.
    pub offset: u64,
    pub from: u64,
}

/// From what a file is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The temporary gets the name.
    Rename,
    /// A new temporary does, into which the end copied what it read and found to have this root: from the
    /// temporary, from a former one, or from what has the name already.
    Copy { to: Temp },
}

/// What an end shall give its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    pub id: FileId,
    pub generation: Generation,
    pub temp: Temp,
    pub root: Root,
    pub way: Way,
    /// To be removed before the name is given.
    pub former: Vec<Temp>,
}

/// Whether a pair that was lost can still act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// Nothing under its lease is done any more: its sink's process is seen to be dead, or lives and says so.
    Settled,
    /// Nobody knows.
    Unknown,
}

/// What somebody must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Assign {
        pair: PairId,
        lease: Lease,
        works: Vec<Work>,
    },
    /// What was not begun of these is wanted back, answered by [`Coordinator::handle_returned`].
    GiveBack {
        pair: PairId,
        lease: Lease,
        items: Vec<Return>,
    },
    /// Nothing of this generation is worth anything any more. Not answered.
    Revoke {
        pair: PairId,
        lease: Lease,
        id: FileId,
        generation: Generation,
    },
    /// This lease ended. The end is told if it can be, and is not heard any more.
    End {
        pair: PairId,
        lease: Lease,
        text: &'static str,
    },
    /// Write down, where the sinks look before they give a name, that this lease ended; then
    /// [`Coordinator::handle_fenced`].
    Fence {
        pair: PairId,
        lease: Lease,
    },
    /// Append to the journal, on media if so configured; then [`Coordinator::handle_journaled`].
    Journal {
        bytes: Vec<u8>,
    },
    /// The journal says that these are on media.
    Durable {
        pair: PairId,
        lease: Lease,
        extents: Vec<Extent>,
    },
    /// Look whether the source is still what it was announced as, and say so: all of it was read.
    Seal {
        pair: PairId,
        lease: Lease,
        id: FileId,
        generation: Generation,
    },
    Publish {
        pair: PairId,
        lease: Lease,
        publication: Publication,
    },
    /// Remove what is left of an entry that is not published.
    Discard {
        pair: PairId,
        lease: Lease,
        id: FileId,
        temps: Vec<Temp>,
    },
    /// Everything in it ended.
    FinishDir {
        pair: PairId,
        lease: Lease,
        dir: DirId,
        meta: Meta,
    },
    /// An entry is over.
    Ended {
        id: FileId,
        generation: Generation,
        end: Ended,
        root: Option<Root>,
    },
    Finished(SessionEnd),
}

/// What an event was that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("more entries announced than the limit that was agreed")]
    TooMany,
    #[error("an entry in a directory that is not open")]
    NoDirectory,
    #[error("an entry announced twice")]
    Twice,
    #[error("a directory deeper than the limit")]
    TooDeep,
    #[error("more pairs of ends than {PAIRS_MAX}")]
    Pairs,
}

/// See the module. One owner, no locks: feed it events, then drain [`Coordinator::poll_action`].
pub struct Coordinator {
    config: Config,
    earlier: Earlier,
    pairs: BTreeMap<PairId, Pair>,
    leases: u32,
    /// Leases that ended and may still be acted under, until that is written down; and the files that wait
    /// for it.
    fences: BTreeMap<Lease, Vec<FileId>>,
    dirs: Dirs,
    files: IdMap<FileId, File>,
    /// Files of which something may be assigned.
    queue: VecDeque<FileId>,
    /// Files to be sealed, published or removed by some pair.
    acts: VecDeque<FileId>,
    /// What pairs said and the journal did not hear; at most [`FACTS_MAX`].
    facts: Facts<entry::At>,
    /// When it was last looked whether somebody should give something back.
    stolen: Time,
    walked: bool,
    stopped: bool,
    finished: bool,
    now: Time,
    actions: VecDeque<Action>,
}

impl Coordinator {
    /// A coordinator that knows of no pair and no entry.
    pub fn new(config: Config, mut resume: Resume) -> Coordinator {
        Coordinator {
            facts: Facts::new(Holder::ALONE, resume.log, resume.next_slot),
            dirs: Dirs::new(std::mem::take(&mut resume.replayed.finished)),
            earlier: Earlier::new(resume.replayed, config.tag),
            config,
            pairs: BTreeMap::new(),
            leases: 0,
            fences: BTreeMap::new(),
            files: IdMap::default(),
            queue: VecDeque::new(),
            acts: VecDeque::new(),
            stolen: Time::default(),
            walked: false,
            stopped: false,
            finished: false,
            now: Time::default(),
            actions: VecDeque::new(),
        }
    }

    /// Entries that are open.
    pub fn open_entries(&self) -> usize {
        self.files.len() + self.dirs.len()
    }

    /// What is held of all that: files, directories, works, facts, ids in queues. Bounded by the named
    /// maxima, whatever number of entries went through.
    pub fn held(&self) -> usize {
        let works: usize = self.pairs.values().map(Pair::held).sum();
        let fenced: usize = self.fences.values().map(Vec::len).sum();
        let waiting = self.queue.len() + self.acts.len() + self.facts.len() + self.actions.len();
        self.open_entries() + works + fenced + waiting
    }

    /// When [`Coordinator::handle_tick`] is due at the latest, if there is something to be timed.
    pub fn next_deadline(&self) -> Option<Time> {
        (!self.pairs.is_empty()).then(|| self.now.after(pairs::TICK))
    }

    /// Time passed.
    pub fn handle_tick(&mut self, now: Time) {
        self.now = self.now.max(now);
        self.end_silent();
        self.steal();
    }

    /// Assigns nothing more, and ends when the journal has what was persisted.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// The walk is over: nothing more is announced.
    pub fn handle_walked(&mut self) {
        self.dirs.end(DirId::ROOT);
        self.walked = true;
    }

    /// The walk failed to announce something, perhaps in a directory that is open.
    pub fn handle_trouble(&mut self) {
        self.dirs.trouble();
    }

    /// The next thing to do, or `None` until the next event.
    pub fn poll_action(&mut self) -> Option<Action> {
        if self.actions.is_empty() && !self.finished {
            self.journal_facts();
            if !self.stopped {
                self.assign();
                self.run_acts();
                self.finish_dirs();
            }
            self.end_if_over();
        }
        self.actions.pop_front()
    }

    fn end_if_over(&mut self) {
        if !self.actions.is_empty() || !self.facts.is_empty() {
            return;
        }
        let end = match self.facts.broken() {
            Some(failure) => SessionEnd::Failed(failure.clone()),
            None if self.stopped => SessionEnd::Stopped,
            None if self.walked && self.files.is_empty() && self.dirs.is_empty() => SessionEnd::Complete,
            None => return,
        };
        self.finished = true;
        self.actions.push_back(Action::Finished(end));
    }

    fn take_temp(&mut self) -> Temp {
        self.earlier.take_temp()
    }
}
