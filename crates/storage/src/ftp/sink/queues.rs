//! What the threads of a destination share: the operations that wait for a session, and what is known of
//! files.
//!
//! In: operations as they are submitted. Out: each to the thread that takes it.
//! Invariants: each operation is answered once, by whoever took it, or as given up; a file of several objects
//! is written by one thread, its *home*, from its first object to its last, and a thread is home to one file
//! at a time; what has no home goes to whichever thread has none.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use haul_core::ids::{BufferId, DirId, FileId};
use haul_core::reliability::Step;
use haul_core::transfer::op::{AmendItem, BundleWrite, CommitItem, LookupItem, SinkDone, SinkFile, SinkOp};
use haul_core::wire::{Failure, FailureKind};
use haul_ftp::{Error, Server, Settings, Sum};
use rustix::io::Errno;

use super::again::Again;
use super::ending::Ending;
use super::lanes::Lanes;
use super::logins::Logins;
use super::parts::Parts;
use super::placed::InPlace;
use super::shown::{AllAlike, Shown};
use super::summed::{InParts, Summed};
use super::sums::Sums;
use super::tree::Tree;
use super::unwritten;
use crate::ftp::begun::Begun;
use crate::ftp::line::{Attempts, Retry};
use crate::ftp::said;
use crate::ftp::times::SetsTimes;
use crate::owed::Owed;
use crate::store::{NetworkFacet, NotKept, StoreNetwork};
use crate::{Post, SinkCompletion};
use haul_base::buffer::Buffer;
use haul_base::meter::Meter;

/// Temporaries that are named, of those that stay.
const LEFT_NAMED: usize = 5;

/// What all threads of a destination share.
pub(super) struct Common {
    pub(super) server: Server,
    pub(super) settings: Settings,
    /// What becomes of what fails, and that nobody wants more.
    pub(super) retry: Arc<Retry>,
    pub(super) ends: Arc<Ending>,
    pub(super) tree: Tree,
    pub(super) tag: u32,
    /// The server drops bytes of names.
    pub(super) drops: bool,
    /// What the server makes sums by, if it does.
    pub(super) sum: Option<Sum>,
    /// Large files are compared in parts.
    pub(super) in_parts: InParts,
    pub(super) meter: Arc<Meter>,
    pub(super) post: Post<SinkCompletion>,
    pub(super) queues: Mutex<Queues>,
    pub(super) ready: Condvar,
    pub(super) temps: Mutex<HashMap<FileId, Temp>>,
    pub(super) network: Network,
    pub(super) lanes: Arc<Lanes>,
    /// The server does not answer what it is asked while a file is under way.
    pub(super) hears_late: AtomicBool,
    pub(super) lost: Lost,
    pub(super) told: Told,
    pub(super) parts: Parts,
    /// What goes more than once.
    pub(super) again: Again,
    /// Files are written into what stands at their names.
    pub(super) in_place: Option<InPlace>,
    /// Files that were begun in place, and are not proved.
    pub(super) begun: Begun,
    /// Size and time decide what is sent, where they prove something.
    pub(super) asks_times: bool,
    /// Temporaries that could not be removed.
    pub(super) left: Mutex<Vec<Vec<u8>>>,
    /// Temporaries that may still come to be, for the session that sent them was lost.
    pub(super) doubted: Mutex<Vec<Vec<u8>>>,
    /// Files of several objects that came to nothing so far.
    pub(super) tries: Mutex<HashMap<FileId, Tries>>,
    /// Temporaries that the server refused before it began with them: they are removed as any other, and not
    /// told of unless one was seen to stand there.
    pub(super) refused: Mutex<HashSet<Vec<u8>>>,
    /// Of the temporaries so far.
    pub(super) numbers: AtomicU64,
    /// The server was silent when it was spoken to last: nothing is asked of it that can be left.
    pub(super) silent: AtomicBool,
}

#[derive(Default)]
pub(super) struct Queues {
    /// What belongs to the file that a thread is home to.
    pub(super) own: Vec<VecDeque<Work>>,
    pub(super) home: Vec<Option<FileId>>,
    /// Files without a home yet, and what is to be written of them.
    pub(super) homeless: VecDeque<(FileId, VecDeque<Work>)>,
    /// Small files that are sent again, for the session that had them is over.
    pub(super) smalls: VecDeque<Small>,
    pub(super) common: VecDeque<Work>,
    /// Sessions that the server took.
    pub(super) open: Vec<bool>,
    /// Threads that are over.
    pub(super) gone: Vec<bool>,
    /// Sessions that were silent, and are asked whether they are there.
    pub(super) asking: Vec<bool>,
    /// Which sessions are worth a login, and what became of those that were asked for.
    pub(super) logins: Logins,
    /// Since when each session is at what.
    pub(super) busy: Vec<Option<(Instant, &'static str, Vec<u8>)>>,
    pub(super) ends: bool,
}

/// A file under the name that it has until it is whole.
#[derive(Clone)]
pub(super) struct Temp {
    pub(super) path: Vec<u8>,
    pub(super) state: TempState,
    pub(super) in_blocks: bool,
}

#[derive(Clone)]
pub(super) enum TempState {
    /// It is being sent.
    Partial,
    /// The server said that it has all of it; the sum of what was sent.
    Stored(Option<Sums>),
    Failed(Gone),
}

/// Why what was sent of a file came to nothing, and whether it is taken once more.
#[derive(Clone)]
pub(super) struct Gone {
    pub(super) failure: Failure,
    pub(super) again: bool,
}

impl From<Failure> for Gone {
    fn from(failure: Failure) -> Gone {
        Gone { failure, again: false }
    }
}

/// How often a file came to nothing.
pub(super) struct Tries {
    attempts: Attempts,
    /// So many bytes of it went, at most.
    furthest: u64,
    /// When it is tried again.
    next: Instant,
    /// What it was sent as before.
    before: Vec<Vec<u8>>,
}

/// Something to do.
pub(super) enum Work {
    Write(Box<Write>),
    /// Whatever is asked of no file that is being written.
    Op(SinkOp, Owed<SinkDone>),
    Bundle(Arc<Batch<BundleWrite>>),
    Small(Small),
    Publish(Arc<Batch<CommitItem>>),
    /// Parts of a file that is whole, whose sums somebody else waits for.
    Sums(Arc<Summed>),
}

/// An object.
pub(super) struct Write {
    pub(super) file: SinkFile,
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) buffer: BufferId,
    pub(super) payload: Arc<Buffer>,
    pub(super) start: u32,
    pub(super) owed: Owed<SinkDone>,
}

/// Items of one operation, shared among threads: who ends the last of them answers.
pub(super) struct Batch<T> {
    pub(super) items: Vec<T>,
    /// Items that are taken together.
    pub(super) step: usize,
    next: AtomicUsize,
    payload: Mutex<Option<Arc<Buffer>>>,
    results: Mutex<Ends>,
    /// Of a bundle: which buffer it lies in, and whether more of that is to be written.
    pub(super) of: Option<(BufferId, bool)>,
}

struct Ends {
    results: Vec<Option<Result<(), Failure>>>,
    left: usize,
    owed: Option<Owed<SinkDone>>,
}

/// A part of a batch.
pub(super) struct Taken {
    pub(super) range: std::ops::Range<usize>,
    pub(super) payload: Option<Arc<Buffer>>,
}

/// A small file of a bundle.
pub(super) struct Small {
    pub(super) batch: Arc<Batch<BundleWrite>>,
    pub(super) taken: Taken,
    /// How often it was in a line that was lost.
    pub(super) lines: u8,
}

impl<T> Batch<T> {
    pub(super) fn new(
        items: Vec<T>,
        step: usize,
        payload: Option<(Option<Arc<Buffer>>, (BufferId, bool))>,
        owed: Owed<SinkDone>,
    ) -> Arc<Batch<T>> {
        let (payload, of) = payload.map_or((None, None), |(payload, of)| (payload, Some(of)));
        let (results, left) = (items.iter().map(|_| None).collect(), items.len());
        Arc::new(Batch {
            items,
            step,
            next: AtomicUsize::new(0),
            payload: Mutex::new(payload),
            results: Mutex::new(Ends { results, left, owed: Some(owed) }),
            of,
        })
    }

    /// Some may not be taken yet.
    pub(super) fn has_more(&self) -> bool {
        self.next.load(Ordering::Relaxed) < self.items.len()
    }

    /// The next items that nobody took.
    pub(super) fn take(&self) -> Option<Taken> {
        let start = self.next.fetch_add(self.step, Ordering::SeqCst);
        let range = start..(start + self.step).min(self.items.len());
        let payload = || self.payload.lock().unwrap_or_else(PoisonError::into_inner).clone();
        (start < self.items.len()).then(|| Taken { range, payload: payload() })
    }

    /// These items came to that. The last ones make the answer of them all.
    pub(super) fn end(
        &self,
        taken: Taken,
        results: Vec<Result<(), Failure>>,
        answer: impl FnOnce(Vec<Result<(), Failure>>) -> SinkDone,
    ) {
        let Taken { range, payload } = taken;
        drop(payload);
        let mut ends = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        ends.left -= range.len();
        for (at, result) in range.zip(results) {
            ends.results[at] = Some(result);
        }
        if ends.left > 0 {
            return;
        }
        let lost = || Failure { kind: FailureKind::Local, errno: 0, text: "nobody did it".into() };
        let all = ends.results.drain(..).map(|result| result.unwrap_or_else(|| Err(lost()))).collect();
        let owed = ends.owed.take();
        drop(ends);
        // Its pool has it back before anybody hears of the end.
        drop(self.payload.lock().unwrap_or_else(PoisonError::into_inner).take());
        if let Some(owed) = owed {
            owed.settle(Ok(answer(all)));
        }
    }
}

/// The network that the destination is reached over.
#[derive(Default)]
pub(super) struct Network {
    pub(super) connections: AtomicU16,
    pub(super) bytes: AtomicU64,
    pub(super) round_trip: Option<Duration>,
}

impl NetworkFacet for Network {
    fn look(&self) -> StoreNetwork {
        StoreNetwork {
            connections: self.connections.load(Ordering::Relaxed),
            round_trip: self.round_trip,
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
    fn set_connections(&self, _: u16) -> u16 {
        // Each session is somebody's, who has a file in it.
        self.connections.load(Ordering::Relaxed)
    }
}

/// Entries of which something was not kept.
#[derive(Default)]
pub(super) struct Lost {
    pub(super) setid: AtomicU64,
    pub(super) mode: AtomicU64,
    pub(super) mtime: AtomicU64,
}

impl Lost {
    pub(super) fn read(&self) -> NotKept {
        NotKept {
            setid: self.setid.load(Ordering::Relaxed),
            mode: self.mode.load(Ordering::Relaxed),
            mtime: self.mtime.load(Ordering::Relaxed),
            ..NotKept::default()
        }
    }
}

/// What a server calls a file, with its length and time.
pub(super) type Given = (u64, u64, i64);

/// What the server showed of itself.
#[derive(Default)]
pub(super) struct Told {
    /// A file without a length.
    pub(super) no_size: AtomicBool,
    /// Files that it made no sum of, though it says that it makes them.
    pub(super) uncompared: AtomicU64,
    /// Files that were compared by their sum, and how many of them in parts.
    pub(super) compared: AtomicU64,
    pub(super) compared_in_parts: AtomicU64,
    /// Files that were taken by their length alone: of a server that makes no sums, and not read back.
    pub(super) unproven: AtomicU64,
    /// Files are read back.
    pub(super) reads_back: AtomicBool,
    /// It renamed a file; how many it refused to rename.
    pub(super) renamed: AtomicBool,
    pub(super) unrenamed: AtomicU32,
    /// It takes names that differ in case alone for one.
    pub(super) folds: Mutex<Option<bool>>,
    /// It takes names for those without the blank or dot at their end.
    pub(super) drops_ends: Mutex<Option<bool>>,
    /// It sets times, so that they prove something.
    pub(super) times: Mutex<SetsTimes>,
    /// Held by who asks about that.
    pub(super) asks_times: Mutex<()>,
    /// What files that have their names are to it, and whose that is.
    pub(super) given: Mutex<HashMap<Given, FileId>>,
    pub(super) given_to: Mutex<HashMap<FileId, Given>>,
    /// Who found a file unchanged, by what the server calls that; and by names that some
    /// servers take for one.
    pub(super) found: Mutex<HashMap<u64, FileId>>,
    pub(super) twins: Mutex<HashMap<[u8; 16], HashSet<FileId>>>,
    /// The names of directories, at some time of this run.
    pub(super) listed: Mutex<HashMap<DirId, Arc<Shown>>>,
    /// What looks alike, and may be links.
    pub(super) alike: AllAlike,
    /// Such names that were published.
    pub(super) folded: Mutex<HashMap<(DirId, Vec<u8>), FileId>>,
    /// Bytes of names that it was seen to keep.
    pub(super) kept_bytes: Mutex<HashSet<u8>>,
}

impl Common {
    pub(super) fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn temps(&self) -> MutexGuard<'_, HashMap<FileId, Temp>> {
        self.temps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a file is written to, and how that ended.
    pub(super) fn temp(&self, id: FileId) -> Option<Temp> {
        self.temps().get(&id).cloned()
    }

    pub(super) fn set_temp(&self, id: FileId, state: TempState) {
        if let Some(temp) = self.temps().get_mut(&id) {
            temp.state = state;
        }
    }

    /// What it is written to goes in blocks.
    pub(super) fn set_in_blocks(&self, id: FileId) {
        if let Some(temp) = self.temps().get_mut(&id) {
            temp.in_blocks = true;
        }
    }

    pub(super) fn path(&self, file: &SinkFile) -> Vec<u8> {
        self.tree.path(file.parent, &file.name)
    }

    /// The failure of a path.
    pub(super) fn failure(&self, kind: FailureKind, path: &[u8], error: &Error) -> Failure {
        unwritten(&self.server, kind, path, error)
    }

    /// The same in our words. What is not made for a reason of ours is not made by another run either.
    pub(super) fn say(&self, kind: FailureKind, path: &[u8], why: &str) -> Failure {
        let failure = said(&self.server, kind, path, why);
        match kind {
            FailureKind::Create => Failure { errno: Errno::INVAL.raw_os_error(), ..failure },
            _ => failure,
        }
    }

    /// A stop was asked for, and this was not begun: it is not, and counts as what never came.
    pub(super) fn not_begun(&self, path: &[u8]) -> Option<Failure> {
        let why = "a stop was asked for before it was begun";
        self.ends.is_stopped().then(|| self.say(FailureKind::Network, path, why))
    }

    /// It could not be removed.
    pub(super) fn leave(&self, path: Vec<u8>) {
        self.left.lock().unwrap_or_else(PoisonError::into_inner).push(path);
    }

    /// Something came to nothing.
    pub(super) fn note_silence(&self, error: &Error) {
        self.silent.fetch_or(error.is_silence(), Ordering::Relaxed);
    }

    /// The server did something.
    pub(super) fn well(&self) {
        self.silent.store(false, Ordering::Relaxed);
        self.retry.well();
    }

    /// It took a file, so that a data connection came up.
    pub(super) fn took(&self) {
        self.well();
        self.retry.connected();
    }

    /// A file of which `len` bytes went came to nothing, as `temp` if it was sent at all. True: it is tried
    /// again, when it is time ([`Common::tries`]).
    pub(super) fn is_tried_again(
        &self,
        (id, path): (FileId, &[u8]),
        (error, len): (&Error, u64),
        temp: Option<&[u8]>,
    ) -> bool {
        let mut all = self.tries.lock().unwrap_or_else(PoisonError::into_inner);
        // A command may think for a while, and others do not wait for that.
        let mut tries = all.remove(&id).unwrap_or_else(|| Tries {
            attempts: Attempts::new(Step::File),
            furthest: 0,
            next: Instant::now(),
            before: Vec::new(),
        });
        drop(all);
        if len > tries.furthest {
            tries.furthest = len;
            tries.attempts.came_on();
        }
        // What can be gone on with stays.
        tries.before.extend(temp.filter(|temp| !self.parts.keeps_any(temp)).map(<[u8]>::to_vec));
        let Some(pause) = self.retry.failed(&mut tries.attempts, error, path, 0) else { return false };
        tries.next = Instant::now() + pause;
        self.tries.lock().unwrap_or_else(PoisonError::into_inner).insert(id, tries);
        true
    }

    /// Nothing more becomes of a file, or it has its name.
    pub(super) fn forget_tries(&self, id: FileId) {
        self.tries.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    /// When a file may be begun, that came to nothing before.
    pub(super) fn next_try(&self, id: FileId) -> Option<Instant> {
        self.tries.lock().unwrap_or_else(PoisonError::into_inner).get(&id).map(|tries| tries.next)
    }

    /// What it was sent as before: told once.
    pub(super) fn sent_before(&self, id: FileId) -> Vec<Vec<u8>> {
        let mut all = self.tries.lock().unwrap_or_else(PoisonError::into_inner);
        all.get_mut(&id).map(|tries| std::mem::take(&mut tries.before)).unwrap_or_default()
    }

    pub(super) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed) && !haul_mutant::removed("ftp-silent-servers-are-left")
    }

    /// A number that no temporary of this run has.
    pub(super) fn number(&self) -> u64 {
        1 + self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// It may still come to be. What is gone on with stays.
    pub(super) fn doubt(&self, path: Vec<u8>) {
        // What stands at a final name is never removed.
        if self.in_place.is_some() || self.parts.keeps_any(&path) {
            return;
        }
        self.doubt_ours(path);
    }

    /// The same of what is no file of the copy.
    pub(super) fn doubt_ours(&self, path: Vec<u8>) {
        self.doubted.lock().unwrap_or_else(PoisonError::into_inner).push(path);
    }

    pub(super) fn take_doubted(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut *self.doubted.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The server refused to begin with it, or heard nothing of it, if that is what happened.
    pub(super) fn note_refusal(&self, path: &[u8], error: &Error) {
        if never_began(error) {
            self.refused.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_vec());
        }
    }

    /// It stands there, whatever was said before.
    pub(super) fn stands(&self, path: &[u8]) {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).remove(path);
    }

    /// It is gone.
    pub(super) fn stays_not(&self, path: &[u8]) {
        self.parts.gone(path);
        self.left.lock().unwrap_or_else(PoisonError::into_inner).retain(|other| other != path);
    }

    /// What stays at the server, in words.
    pub(super) fn left(&self) -> Option<String> {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Nobody came to remove them.
        left.extend(self.doubted.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned());
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        left.retain(|path| !refused.contains(path));
        left.sort();
        left.dedup();
        let named = |some: &[Vec<u8>]| {
            let shown: Vec<String> =
                some.iter().take(LEFT_NAMED).map(|path| crate::ftp::shown(&self.server, path)).collect();
            match some.len().saturating_sub(LEFT_NAMED) {
                0 => shown.join(", "),
                more => format!("{} and {more} more", shown.join(", ")),
            }
        };
        let (known, left): (Vec<_>, Vec<_>) =
            left.into_iter().partition(|path| self.parts.is_on_record(path));
        let all = [(known, "the same command removes them"), (left, "remove them at the server")];
        let all = all.into_iter().filter(|(some, _)| !some.is_empty());
        let all: Vec<String> = all.map(|(some, what)| format!("{}; {what}", named(&some))).collect();
        (!all.is_empty()).then(|| format!("parts of files that could not be removed: {}", all.join("; ")))
    }

    /// Files that the server takes at a time.
    pub(super) fn places(&self) -> u32 {
        self.lock().sessions().max(1) as u32
    }
}

impl Queues {
    pub(super) fn new(sessions: usize) -> Queues {
        Queues {
            own: (0..sessions).map(|_| VecDeque::new()).collect(),
            home: vec![None; sessions],
            open: vec![false; sessions],
            gone: vec![false; sessions],
            asking: vec![false; sessions],
            busy: vec![None; sessions],
            logins: Logins::new(sessions),
            ..Queues::default()
        }
    }

    /// Takes an object of a file that several have. `Err`: it has no home, and does not begin there.
    pub(super) fn add_write(&mut self, write: Box<Write>) -> Result<(), Box<Write>> {
        let id = write.file.id;
        if let Some(home) = self.home.iter().position(|home| *home == Some(id)) {
            self.own[home].push_back(Work::Write(write));
            return Ok(());
        }
        if let Some((_, works)) = self.homeless.iter_mut().find(|(other, _)| *other == id) {
            works.push_back(Work::Write(write));
            return Ok(());
        }
        if write.offset > 0 {
            return Err(write);
        }
        // Whoever is free takes it, and not who is still at something else, that may never be answered.
        self.homeless.push_back((id, VecDeque::from([Work::Write(write)])));
        Ok(())
    }

    /// A file is given up: whoever has it does that behind what is under way.
    pub(super) fn add_discard(&mut self, id: FileId, work: Work) {
        match self.home.iter().position(|home| *home == Some(id)) {
            Some(home) => self.own[home].push_back(work),
            None => match self.homeless.iter_mut().find(|(other, _)| *other == id) {
                Some((_, works)) => works.push_back(work),
                None => self.common.push_back(work),
            },
        }
    }

    /// Sessions that work.
    pub(super) fn sessions(&self) -> usize {
        self.open.iter().zip(&self.gone).filter(|(open, gone)| **open && !**gone).count()
    }

    /// What a session has begun of a file of several objects goes on elsewhere, or comes to nothing there.
    pub(super) fn leave_all(&mut self, index: usize) {
        let own = std::mem::take(&mut self.own[index]);
        if let Some(id) = self.home[index].take() {
            self.homeless.push_back((id, own));
        }
    }

    /// Whether the server has other sessions than this one.
    pub(super) fn has_others(&self, index: usize) -> bool {
        (0..self.open.len()).any(|at| at != index && self.open[at] && !self.gone[at])
    }

    /// The same, of those that may do what this one is not given.
    pub(super) fn has_others_there(&self, index: usize) -> bool {
        (0..self.open.len()).any(|at| at != index && self.open[at] && !self.gone[at] && !self.asking[at])
    }

    /// The next thing that this thread does; `None`: nothing now.
    pub(super) fn next(&mut self, index: usize) -> Option<Work> {
        if let Some(work) = self.own[index].pop_front() {
            return Some(work);
        }
        if self.home[index].is_some() {
            return None;
        }
        if let Some((id, works)) = self.homeless.pop_front() {
            self.home[index] = Some(id);
            self.own[index] = works;
            return self.own[index].pop_front();
        }
        if let Some(small) = self.smalls.pop_front() {
            return Some(Work::Small(small));
        }
        self.common.pop_front()
    }

    /// What comes next of that helps with sums, for which nobody waits long.
    pub(super) fn is_help_next(&self) -> bool {
        self.homeless.is_empty()
            && self.smalls.is_empty()
            && matches!(self.common.front(), Some(Work::Sums(_)))
    }

    /// What this thread would do next may be done by any.
    pub(super) fn waits_for_anybody(&self, index: usize) -> bool {
        self.own[index].is_empty()
            && self.home[index].is_none()
            && !(self.homeless.is_empty() && self.smalls.is_empty() && self.common.is_empty())
    }

    /// Nothing is left to do, or will come, for this thread.
    pub(super) fn is_over(&self, index: usize) -> bool {
        self.ends
            && self.own[index].is_empty()
            && self.common.is_empty()
            && self.homeless.is_empty()
            && self.smalls.is_empty()
    }
}

/// The server refused to begin, or heard nothing of it.
pub(super) fn never_began(error: &Error) -> bool {
    matches!(error, Error::Refused { .. })
        || error.is_unheard() && !haul_mutant::removed("ftp-what-never-began-is-not-left")
}

/// The completion of an operation that came to nothing.
pub(super) fn refuse(op: SinkOp, failure: &Failure) -> SinkDone {
    let failed = || failure.clone();
    match op {
        SinkOp::MakeDirs { dirs } => {
            SinkDone::MakeDirs { results: dirs.into_iter().map(|dir| (dir, Err(failed()))).collect() }
        }
        SinkOp::Lookup { items } => {
            let fail = |item: LookupItem| (item.file.id, Err(failed()));
            SinkDone::Lookup { results: items.into_iter().map(fail).collect() }
        }
        SinkOp::Amend { items, .. } => {
            let fail = |item: AmendItem| (item.file.id, Err(failed()));
            SinkDone::Amend { results: items.into_iter().map(fail).collect() }
        }
        SinkOp::FinishDirs { dirs, .. } => {
            SinkDone::FinishDirs { results: dirs.into_iter().map(|(dir, _)| (dir, Err(failed()))).collect() }
        }
        SinkOp::Discard { id } => SinkDone::Discard { id },
        SinkOp::RemoveJournal => SinkDone::RemoveJournal { result: Ok(()) },
        // Answered where they are submitted.
        _ => SinkDone::Journal { result: Err(failed()) },
    }
}
