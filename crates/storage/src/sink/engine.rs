//! The write engine: threads that execute `SinkOp`s and post their completions.
//!
//! In: operations with payload buffers. Out: one completion for each, from the engine's own threads.
//! Objects of large files go to the I/O threads (`data`), the rest is done by a blocking pool of threads
//! ([`blocking_pool`]). An operation of many items is split by the storage targets that they lie on: what
//! hangs at one holds no item of another. The items of one target are shared among threads, for what makes
//! many small files durable in little time is syncing them side by side. The journal has a thread of its own,
//! so that its records keep their order.
//!
//! What must hold: a buffer is given back before its completion is posted; every operation completes, also
//! if executing it panics or its thread does ([`Owed`](crate::owed::Owed)), but for those that hang when the
//! engine ends; the engine ends within what its deadlines allow, and says what it left. Order between
//! operations that run at once is the session's: it must not discard a file while writes of it are under way.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use haul_core::entry::Name;
use haul_core::id_map::IdMap;
use haul_core::ids::{DirId, FileId};
use haul_core::metadata::Values;
use haul_core::schedule::Limits;
use haul_core::stage::Stage as MeterStage;
use haul_core::transfer::op::{Existing, Found, LookupItem, SinkOp};
use haul_core::wire::{Failure, FailureKind, Placed};

use super::confirm::Published;
use super::files::Files;
use super::files::adopt::Adopt;
use super::files::in_place::InPlace;
use super::journal::Journal;
use super::layout::SinkLayout;
use super::leftovers::{Left, Leftovers};
use super::meta::NotKeptCounters;
use super::mode::Choice;
use super::space::Spaces;
use super::stripes::Stripes;
use super::tree::SinkTree;
use super::whole_sync::WholeSync;
use super::{fault, lock, looker};
use crate::attributes::Keeps;
use crate::blocking_pool::{self, BlockingPool, BlockingPoolConfig, Doing, Turn};
use crate::descriptors::Budget;
use crate::io::threads::{IoThreads, IoThreadsConfig, TransferDone};
use crate::io::{IoFile, IoTarget};
use crate::io_settings::IoSettings;
use crate::meta_rate::MetaRate;
use crate::options::StorageOptions;
use crate::owed::words_of;
use crate::store::{CloneFrom, NotKept};
use crate::targets::Targets;
use crate::{Post, SinkCompletion, SinkEngine, SinkJob, Stuck, oldest_first};
use asked::Asked;
use clones::Clones;
use data::{Data, Tag};
use fan_out::Place;
use haul_base::meter::Meter;
use journal_writer::JournalWriter;
use names::Firsts;

mod amend;
mod asked;
mod attributes;
mod begin;
mod clones;
mod commit;
mod data;
mod fan_out;
mod journal_writer;
mod names;
mod nodes;
mod root;
mod together;
mod verify;

/// The name of a line about directories of other users, into which was copied what is closed to them at the
/// source.
pub const OTHERS_DIRS: &str = "directories of other users";

/// Most threads of an engine for one storage target.
pub const THREADS_MAX: usize = 256;
/// For so long an answer that the job is ours is good for what publishes nothing: before each rename it is
/// asked anew.
const OWNER_FRESH: Duration = Duration::from_millis(50);
/// How often an engine that ends looks whether all that is left hangs.
const END_TICK: Duration = Duration::from_millis(50);

/// What an engine is made of.
pub struct EngineConfig {
    pub tree: Arc<SinkTree>,
    /// Stands in the names of this session's temporaries.
    pub tag: u32,
    /// Tags of dead runs of this job, whose leftovers are removed, oldest first.
    pub old_tags: Vec<u32>,
    /// Where these may lie.
    pub left: Left,
    /// What dead runs of this job left may be taken over.
    pub adopt: Adopt,
    /// The run before this one was not proven dead: at the end, look again at what was published.
    pub confirm: bool,
    /// 1 to [`THREADS_MAX`].
    pub threads: usize,
    /// Keep owner and group of directories (files and links say it themselves).
    pub dir_owner: bool,
    /// What is kept of extended attributes and lists.
    pub keeps: Keeps,
    /// Whether this run still owns the job; asked before each publication. Usually `Owner::still_owner`.
    pub still_owner: Arc<dyn Fn() -> Result<(), Failure> + Send + Sync>,
    /// `None`: the session keeps no journal (`Journal` operations fail).
    pub journal: Option<Journal>,
    /// How objects are written.
    pub storage: StorageOptions,
    /// Most payload bytes in memory.
    pub memory: u64,
    /// What files and directories may hold.
    pub budget: Budget,
    /// `None`: the destination has one storage target.
    pub sink_layout: Option<SinkLayout>,
    /// What new files are given of stripes; only where there are `layout`.
    pub stripes: Stripes,
    /// How long objects fit these stripes.
    pub object_len: Option<u32>,
    /// `None`: each file is written to a temporary, which then takes the name.
    pub in_place: Option<InPlace>,
    /// Nothing that stands counts as unchanged.
    pub copies_all: bool,
    /// `None`: files are synced one by one.
    pub whole_sync: Option<WholeSync>,
    /// Files of the source that may be cloned.
    pub clones: Option<CloneFrom>,
    /// Commits will be durable. (Without, nothing ever waits for media, not even to find the faster mode.)
    pub durable: bool,
}

/// Something to do for a thread of the pool.
struct Task(Box<dyn FnOnce(&Arc<Sink>, &Turn<Task>) + Send>);

/// What an engine left when it ended, in words; empty if all its threads ended.
pub type Hanging = Vec<String>;

/// Executes `SinkOp`s. When it is dropped, its threads finish what was submitted and end; those that hang are
/// left.
pub struct WriteEngine {
    pool: Arc<BlockingPool<Task>>,
    journal_writer: JournalWriter,
    deadline: Duration,
    /// Threads for a target at the start.
    started: usize,
    /// Once the threads were asked to end: what was left of them.
    ended: Option<Hanging>,
    object_len: Option<u32>,
    /// `None`: there is one.
    targets: Option<Arc<Targets>>,
    pub(super) sink: Arc<Sink>,
}

/// What the threads share.
pub(super) struct Sink {
    tree: Arc<SinkTree>,
    files: Files,
    data: Data,
    /// `None`: files are synced one by one.
    pub(super) whole_sync: Option<WholeSync>,
    /// `None`: nothing is cloned.
    clones: Option<Clones>,
    /// `None`: no run came before that may have left something.
    leftovers: Option<Leftovers>,
    /// How to remove what is left.
    clean: String,
    dir_owner: bool,
    keeps: Keeps,
    /// What entries are to have of them.
    metadata: Mutex<IdMap<FileId, Arc<Values>>>,
    /// Of which other names may follow.
    firsts: Firsts,
    /// Operations that this end makes in a second.
    rate: Arc<MetaRate>,
    still_owner: Arc<dyn Fn() -> Result<(), Failure> + Send + Sync>,
    /// `None`: nobody else can have published.
    published: Option<Published>,
    /// Directories of other users that were filled: how many, and one of them.
    others_dirs: Mutex<(u64, Option<String>)>,
    /// When the job was last seen to be ours.
    seen_owner: Mutex<Option<Instant>>,
    not_kept: Arc<NotKeptCounters>,
    pool: OnceLock<Weak<BlockingPool<Task>>>,
    /// The session is over: nothing more is published by what hung until now.
    over: AtomicBool,
    /// The engine is asked to end, or has ended: it answers nothing any more.
    pub(super) ends: AtomicBool,
    asked: Mutex<Asked>,
    post: Post<SinkCompletion>,
}

impl WriteEngine {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system gives no more threads.
    pub fn new(
        config: EngineConfig,
        meter: Arc<Meter>,
        post: Post<SinkCompletion>,
    ) -> std::io::Result<WriteEngine> {
        WriteEngine::start(config, meter, post, IoThreads::start)
    }

    /// Starts the threads, with I/O threads as `start_threads` makes them.
    fn start(
        config: EngineConfig,
        meter: Arc<Meter>,
        post: Post<SinkCompletion>,
        start_threads: impl FnOnce(
            IoThreadsConfig,
            Arc<Meter>,
            Post<TransferDone<Tag>>,
        ) -> std::io::Result<IoThreads<Tag>>,
    ) -> std::io::Result<WriteEngine> {
        let threads = config.threads.clamp(1, THREADS_MAX);
        let no_preallocate = config.storage.no_preallocate;
        let rate = Arc::new(MetaRate::new(config.storage.meta_rate));
        config.tree.set_rate(&rate);
        config.tree.set_dirs_open(config.budget.sink_dirs);
        let choice = Choice::new(config.storage.io, config.durable, config.budget.sink_direct);
        let spaces = Spaces::new(no_preallocate);
        let leftovers = Leftovers::new(&config.old_tags, config.tag, &config.left, &config.adopt);
        let targets = config.sink_layout.as_ref().map(SinkLayout::targets);
        let object_len = config.object_len;
        let files = Files::new(
            config.tree.clone(),
            (config.tag, config.adopt),
            spaces,
            config.sink_layout,
            config.stripes,
            (config.in_place, config.copies_all),
        );
        let mut settings = IoSettings::new(config.storage, config.memory, MeterStage::SinkStorage);
        if !files.is_local() {
            settings.set_remote();
        }
        let io_threads = settings.io_threads.clone();
        let deadline = io_threads.deadline;
        config.tree.set_own_tags(config.old_tags.iter().copied().chain([config.tag]));
        let sink = Arc::new(Sink {
            files,
            data: Data::new(choice, settings),
            whole_sync: config.whole_sync,
            clones: config.clones.map(|from| Clones::new(from, &config.tree)),
            tree: config.tree,
            leftovers,
            clean: config.left.clean,
            dir_owner: config.dir_owner,
            keeps: config.keeps,
            metadata: Mutex::default(),
            firsts: Firsts::default(),
            rate,
            still_owner: config.still_owner,
            published: config.confirm.then(Published::default),
            others_dirs: Mutex::default(),
            seen_owner: Mutex::new(None),
            not_kept: Arc::default(),
            pool: OnceLock::new(),
            over: AtomicBool::new(false),
            ends: AtomicBool::new(false),
            asked: Mutex::default(),
            post,
        });
        let on_done: Post<TransferDone<Tag>> = {
            let sink = sink.clone();
            Arc::new(move |done| sink.on_written(done))
        };
        sink.data.set_threads(start_threads(io_threads, meter.clone(), on_done)?);
        let on_busy = {
            let meter = meter.clone();
            move |time| meter.add_busy(MeterStage::SinkStorage, time)
        };
        let on_idle = {
            let sink = sink.clone();
            // While I/O threads write, a thread without work does not mean that storage waits for data.
            move |time| {
                if !sink.data.is_writing() {
                    meter.add_idle(MeterStage::SinkStorage, time);
                }
            }
        };
        let pool_config = BlockingPoolConfig {
            name: "haul-file",
            threads,
            threads_max: blocking_pool::with_spare(threads),
            deadline,
            on_busy: Arc::new(on_busy),
            on_idle: Arc::new(on_idle),
        };
        let worker = sink.clone();
        let work = move |(): &mut (), turn: &Turn<Task>, Task(task): Task| task(&worker, turn);
        let pool = Arc::new(BlockingPool::start(pool_config, || (), work)?);
        // Set here alone, once.
        let _ = sink.pool.set(Arc::downgrade(&pool));
        if config.journal.is_some() {
            sink.note_widened();
        }
        let journal_writer = JournalWriter::start(sink.clone(), config.journal)?;
        Ok(WriteEngine {
            pool,
            journal_writer,
            deadline,
            started: threads,
            ended: None,
            object_len,
            targets,
            sink,
        })
    }

    /// What the destination would not keep, countable also after the engine is gone.
    pub fn not_kept_counters(&self) -> Arc<NotKeptCounters> {
        self.sink.not_kept.clone()
    }

    /// As [`SinkEngine::end`].
    pub fn join(mut self) -> Hanging {
        self.end_all()
    }

    /// Ends the threads after all that was submitted, and waits for them. Returns what hangs and was left;
    /// the same when it is called again.
    fn end_all(&mut self) -> Hanging {
        if let Some(left) = &self.ended {
            return left.clone();
        }
        self.sink.ends.store(true, Ordering::Relaxed);
        self.sink.rate.lift();
        // Writes go from the threads to the I/O threads, and changes of mode back to the threads: both live
        // until the last write has completed.
        let mut left = self.sink.data.drain();
        while !self.pool.finish(END_TICK) {
            if self.pool.hangs() {
                left.extend(self.pool.stuck().iter().map(Stuck::in_words));
                left.extend((left.is_empty()).then(|| "threads that did not end".into()));
                break;
            }
        }
        if !self.journal_writer.end(END_TICK, self.deadline) {
            left.extend(self.journal_writer.stuck(self.deadline).iter().map(Stuck::in_words));
        }
        if !left.is_empty() {
            self.sink.over.store(true, Ordering::Relaxed);
        } else {
            let ours = || (self.sink.still_owner)().is_ok();
            if self.sink.tree.is_widened() && !haul_mutant::removed("directories-close-again") {
                // A new owner of the job needs them open.
                self.sink.tree.close_again(&ours);
            }
            if self.sink.files.has_any() && !ours() {
                self.sink.files.abandon();
            }
        }
        self.ended = Some(left.clone());
        left
    }
}

impl Drop for WriteEngine {
    fn drop(&mut self) {
        self.end_all();
    }
}

impl SinkEngine for WriteEngine {
    fn submit(&mut self, job: SinkJob) {
        match job.op {
            SinkOp::Write { .. } => {
                let write = self.sink.new_write(job);
                if let Some(first) = self.sink.write_if_ready(write) {
                    self.sink.begin_first(first);
                }
            }
            SinkOp::Journal { .. } | SinkOp::Note { .. } | SinkOp::RemoveJournal => {
                self.journal_writer.submit(&self.sink, job);
            }
            SinkOp::RefuseNote { ask, failure } => self.sink.answer(ask, Err(failure)),
            _ => self.sink.begin(job.op, job.buffer),
        }
    }

    fn set_width(&mut self, width: Option<u16>) -> Option<u16> {
        let started = self.started;
        let width = width.map_or(started, usize::from).clamp(1, THREADS_MAX);
        self.pool.set_threads(width);
        self.sink.data.set_width(width, started);
        u16::try_from(width).ok()
    }

    fn stuck(&self) -> Vec<Stuck> {
        let mut stuck = self.sink.data.io_threads().map_or(Vec::new(), |io_threads| io_threads.stuck());
        stuck.extend(self.journal_writer.stuck(self.deadline));
        oldest_first(stuck, self.pool.stuck())
    }

    fn hurry(&self) {
        self.sink.rate.lift();
    }

    fn report(&self) -> Vec<(String, String)> {
        let mut lines = self.sink.data.report(&self.sink.files.spaces);
        lines.extend(self.sink.rate.report("sink"));
        let synced = self.sink.whole_sync.as_ref().and_then(WholeSync::report);
        lines.extend(synced.map(|told| ("small files at the sink".into(), told)));
        lines.extend(self.sink.clones.as_ref().map(|clones| ("reflink".into(), clones.report())));
        lines.extend(self.sink.others_dirs().map(|told| (OTHERS_DIRS.to_owned(), told)));
        lines
    }

    fn register(&self, id: DirId, parent: DirId, name: Name) {
        self.sink.tree.register(id, parent, name);
    }

    fn forget(&self, id: DirId) {
        self.sink.tree.forget(id);
    }

    fn keep_metadata(&self, id: FileId, values: Arc<Values>) {
        lock(&self.sink.metadata).insert(id, values);
    }

    fn forget_metadata(&self, id: FileId) {
        lock(&self.sink.metadata).remove(&id);
    }

    fn lead(&self, id: FileId, parent: DirId, name: &Name) {
        self.sink.firsts.lead(&self.sink.tree, id, parent, name);
    }

    fn forget_lead(&self, id: FileId) {
        self.sink.firsts.forget(id);
    }

    fn room(&self) -> Option<u64> {
        // First what is free: what is taken meanwhile counts twice, and never not at all.
        let free = fault::free(&**self.sink.tree.root());
        free.map(|free| free.saturating_add(self.sink.files.allocated()))
    }

    fn object_len(&self) -> Option<u32> {
        self.object_len
    }

    fn time_grain(&self) -> Option<u32> {
        looker::coarse_grain(self.sink.tree.root())
    }

    fn clones(&self) -> bool {
        self.sink.clones.as_ref().is_some_and(Clones::are_made)
    }

    fn limits(&self) -> Option<Limits> {
        self.targets.is_some().then(|| self.sink.data.limits())
    }

    fn targets(&self) -> Arc<Targets> {
        self.targets.clone().unwrap_or_default()
    }

    fn placed(&self) -> Placed {
        self.sink.files.stripes.placed()
    }

    fn not_kept(&self) -> NotKept {
        self.sink.not_kept.read()
    }

    fn left(&self) -> Option<String> {
        self.sink.left()
    }

    fn end(&mut self) -> Hanging {
        self.end_all()
    }
}

impl Sink {
    /// Whether the job is ours now: asked directly before what cannot be undone. What happens between the
    /// answer and that can never be seen.
    fn fence(&self) -> Result<(), Failure> {
        // It may have hung in a sync until nobody waits any more, or may hang in the question itself.
        self.check_over()?;
        if !haul_mutant::removed("fence-before-each-rename") {
            (self.still_owner)()?;
        }
        self.check_over()
    }

    /// What was left, for people, whose journal stays therefore.
    fn left(&self) -> Option<String> {
        if self.leftovers.as_ref().is_some_and(Leftovers::is_half_new) {
            let text = "what an interrupted run began in place is half new, and its journal stays until the same command without \
                        `no_clobber` completes it";
            return Some(text.to_owned());
        }
        // What is another run's by now is that one's to tell.
        let kept = || self.files.kept_any() && (self.still_owner)().is_ok();
        let why = match self.files.left_any() || kept() {
            true => Some("a temporary of this copy could not be removed".to_owned()),
            false => self.leftovers.as_ref().and_then(Leftovers::left),
        }?;
        Some(format!("{why}; its journal stays: {}", self.clean))
    }

    /// Whether the job is still ours, as of at most [`OWNER_FRESH`] ago.
    fn check_owner(&self) -> Result<(), Failure> {
        self.check_over()?;
        let now = Instant::now();
        if lock(&self.seen_owner).is_some_and(|seen| now.duration_since(seen) < OWNER_FRESH) {
            return Ok(());
        }
        (self.still_owner)()?;
        *lock(&self.seen_owner) = Some(now);
        Ok(())
    }

    /// Asked before a temporary is made: one of a run that lost its job would be debris, in a directory that
    /// may be finished. What is written in place would be the next owner's file, which may be finished.
    fn may_make(&self) -> Result<(), Failure> {
        match haul_mutant::removed("losers-make-nothing") {
            true => Ok(()),
            false if self.files.in_place.is_some() => self.fence(),
            false => self.check_owner(),
        }
    }

    /// Looks up one name; see `SinkOp::Lookup`. What is found there may be all that the copy needs.
    fn look(&self, item: &LookupItem) -> Result<Found, Failure> {
        if item.adopt.is_some() && self.files.in_place.is_some() {
            self.may_make()?;
        }
        let mut found = self.files.look(item)?;
        if let (Existing::File { .. }, Some(seen)) = (&found.existing, found.seen) {
            self.firsts.see(item.file.id, seen);
        }
        self.look_at_rights(item, &mut found.existing)?;
        if let (Some(published), Existing::File { .. }, Some(seen)) =
            (&self.published, &found.existing, found.seen)
            && !haul_mutant::removed("found-names-are-confirmed")
        {
            published.add(&self.tree, item.file.parent, &item.file.name, seen)?;
        }
        Ok(found)
    }

    /// Whether the session is still there that this is done for.
    fn check_over(&self) -> Result<(), Failure> {
        match self.over.load(Ordering::Relaxed) {
            true => Err(fault::failure(FailureKind::Publish, 0, "the session ended while the storage hung")),
            false => Ok(()),
        }
    }

    /// The engine has ended, or is about to: nobody is there to be asked.
    fn has_ended(&self) -> bool {
        self.ends.load(Ordering::Relaxed) || self.over.load(Ordering::Relaxed)
    }

    /// Whether the engine was asked to end, by a session that waits for nothing more.
    fn check_ends(&self) -> Result<(), Failure> {
        match self.ends.load(Ordering::Relaxed) && !haul_mutant::removed("a-stop-ends-the-sweep") {
            true => Err(fault::failure(FailureKind::Write, 0, "stopped while leftovers were looked for")),
            false => Ok(()),
        }
    }

    fn doing(&self, what: &'static str, Place(dir, name): Place) -> Doing {
        let name = name.map_or_else(|| self.tree.path_of_dir(dir), |name| self.tree.path_of(dir, &name));
        Doing { what, name, offset: 0 }
    }

    /// Has a thread of the pool do `work` on an open file, `what` in a word.
    fn spawn(
        self: &Arc<Self>,
        file: &Arc<IoFile>,
        what: &'static str,
        work: impl FnOnce(&Arc<Sink>) + Send + 'static,
    ) {
        let (target, file) = (file.target, file.clone());
        let label = move || Doing { what, name: file.name.to_string(), offset: 0 };
        self.submit(target, label, Task(Box::new(move |sink, _| work(sink))));
    }

    fn submit(&self, target: IoTarget, label: impl Fn() -> Doing + Send + Sync + 'static, task: Task) {
        // Without a blocking pool the engine has ended, and this comes of a request that hung until then:
        // what the task owes is answered as it is dropped.
        if let Some(pool) = self.pool.get().and_then(Weak::upgrade) {
            pool.submit(target, label, task);
        }
    }
}

/// The payload from `start`, `len` bytes long.
fn slice(payload: &[u8], start: u32, len: u64) -> Result<&[u8], Failure> {
    let start = start as usize;
    usize::try_from(len).ok().and_then(|len| payload.get(start..start.checked_add(len)?)).ok_or_else(|| {
        let text = format!("{len} bytes at {start} are not in a payload of {} bytes", payload.len());
        fault::failure(FailureKind::Local, 0, text)
    })
}

/// Runs `work`; a panic in it becomes a failure, so that nobody waits for ever.
fn guard<T>(stage: FailureKind, work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        Err(fault::failure(stage, 0, format!("internal error: {}", words_of(&*panic))))
    })
}

#[cfg(test)]
#[path = "engine_tests.rs"]
pub(super) mod tests;
