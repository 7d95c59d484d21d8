//! The write engine: threads that execute `SinkOp`s and post their completions.
//!
//! In: operations with payload buffers. Out: one completion for each, from the engine's own threads.
//! Objects of large files go to the lanes (`data`), the rest is done by the threads here.
//! Commits, directory syncs and links are shared among the threads, for what makes many small files durable
//! in little time is syncing them side by side. The journal has a thread of its own, so that its records
//! keep their order.
//!
//! What must hold: a buffer is given back before its completion is posted; every operation completes, also
//! if executing it panics. Order between operations that run at once is the session's: it must not discard
//! a file while writes of it are under way.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use haul_core::entry::Meta;
use haul_core::ids::DirId;
use haul_core::stage::Stage as MeterStage;
use haul_core::transfer::op::{BundleWrite, CommitItem, SinkDone, SinkOp};
use haul_core::wire::{Failure, Stage};

use super::clean::remove_tagged_in;
use super::commit::NotKeptCounters;
use super::data::{Data, Tag};
use super::files::Files;
use super::journal::Journal;
use super::mode::Choice;
use super::names::tag_bits;
use super::space::Spaces;
use super::tree::SinkTree;
use super::{fault, lock, tree};
use crate::buffer::Buffer;
use crate::job::StorageOptions;
use crate::meter::Meter;
use crate::storage::descriptors::budget;
use crate::storage::io::lanes::{LaneConfig, Lanes, OnDone};
use crate::storage::knobs::Knobs;
use crate::storage::{Post, SinkCompletion, SinkEngine, SinkJob, Stuck};

/// Most items of a shared operation that a thread takes at once.
const CHUNK_MAX: usize = 32;
/// Most threads of an engine.
pub const THREADS_MAX: usize = 256;
/// For so long an answer that the job is ours is good for other files: a question costs requests to the file
/// system, and what happens between question and rename can never be seen.
const OWNER_FRESH: Duration = Duration::from_millis(50);
/// How often a waiting thread tells the meter.
const IDLE_TICK: Duration = Duration::from_millis(100);

/// What an engine is made of.
pub struct EngineConfig {
    pub tree: Arc<SinkTree>,
    /// Stands in the names of this session's temporaries.
    pub tag: u32,
    /// Tags of dead runs of this job, whose leftovers are removed.
    pub old_tags: Vec<u32>,
    /// 1 to [`THREADS_MAX`].
    pub threads: usize,
    /// Keep owner and group of directories (files and links say it themselves).
    pub dir_owner: bool,
    /// Whether this run still owns the job; asked before each publication. Usually `Owner::still_owner`.
    pub still_owner: Arc<dyn Fn() -> Result<(), Failure> + Send + Sync>,
    /// `None`: the session keeps no journal (`Journal` operations fail).
    pub journal: Option<Journal>,
    /// How objects are written.
    pub storage: StorageOptions,
    /// Most payload bytes in memory.
    pub memory: u64,
    /// Commits will be durable. (Without, nothing ever waits for media, not even to find the faster mode.)
    pub durable: bool,
}

/// A share of an operation that several threads work at.
type Help = Arc<dyn Fn() + Send + Sync>;

/// Executes `SinkOp`s. When it is dropped, its threads finish what was submitted and end.
pub struct WriteEngine {
    /// Both until it ends.
    work: Option<Sender<SinkJob>>,
    journal: Option<Sender<SinkJob>>,
    threads: Vec<std::thread::JoinHandle<()>>,
    pub(super) sink: Arc<Sink>,
}

/// What the threads share.
pub(super) struct Sink {
    pub(super) tree: Arc<SinkTree>,
    pub(super) files: Files,
    pub(super) data: Data,
    pub(super) old_tags: HashSet<u32>,
    pub(super) dir_owner: bool,
    still_owner: Arc<dyn Fn() -> Result<(), Failure> + Send + Sync>,
    /// When the job was last seen to be ours.
    seen_owner: Mutex<Option<Instant>>,
    pub(super) not_kept: Arc<NotKeptCounters>,
    help: Sender<Help>,
    threads: usize,
    pub(super) post: Post<SinkCompletion>,
    meter: Arc<Meter>,
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
        WriteEngine::start(config, meter, post, Lanes::start)
    }

    /// Starts the threads, with lanes as `start_lanes` makes them.
    pub(super) fn start(
        config: EngineConfig,
        meter: Arc<Meter>,
        post: Post<SinkCompletion>,
        start_lanes: impl FnOnce(LaneConfig, Arc<Meter>, OnDone<Tag>) -> std::io::Result<Lanes<Tag>>,
    ) -> std::io::Result<WriteEngine> {
        // Unbounded, but what lies in them is bounded by the session: payload by grants, the rest by the
        // entries that may be announced and not done. The shares' sender is the threads' own, so that the end
        // of `work` alone ends them; whoever shared an operation finishes what nobody helped with.
        let (work, jobs) = unbounded();
        let (journal, records) = unbounded();
        let (help, shares) = unbounded();
        let threads = config.threads.clamp(1, THREADS_MAX);
        let no_preallocate = config.storage.no_preallocate;
        let choice = Choice::new(config.storage.io, config.durable, budget().sink_direct);
        let knobs = Knobs::new(config.storage, config.memory, MeterStage::SinkStorage);
        let lanes = knobs.lanes.clone();
        let sink = Arc::new(Sink {
            files: Files::new(config.tree.clone(), config.tag, Spaces::new(no_preallocate)),
            data: Data::new(choice, knobs),
            tree: config.tree,
            // Never the own tag: those are no leftovers.
            old_tags: config
                .old_tags
                .into_iter()
                .map(tag_bits)
                .filter(|tag| *tag != tag_bits(config.tag))
                .collect(),
            dir_owner: config.dir_owner,
            still_owner: config.still_owner,
            seen_owner: Mutex::new(None),
            not_kept: Arc::default(),
            help,
            threads,
            post,
            meter: meter.clone(),
        });
        let on_done: OnDone<Tag> = {
            let sink = sink.clone();
            Arc::new(move |done| sink.on_written(done))
        };
        sink.data.set_lanes(start_lanes(lanes, meter, on_done)?);
        let mut handles = Vec::with_capacity(threads + 1);
        for i in 0..threads {
            let (sink, jobs, shares) = (sink.clone(), jobs.clone(), shares.clone());
            let builder = std::thread::Builder::new().name(format!("haul-file-{i}"));
            handles.push(builder.spawn(move || sink.run(&jobs, &shares))?);
        }
        let (store, keeper) = (config.journal, sink.clone());
        let builder = std::thread::Builder::new().name("haul-journal".into());
        handles.push(builder.spawn(move || keep_journal(&keeper, store, &records))?);
        Ok(WriteEngine { work: Some(work), journal: Some(journal), threads: handles, sink })
    }

    /// What the destination would not keep, countable also after the engine is gone.
    pub fn not_kept(&self) -> Arc<NotKeptCounters> {
        self.sink.not_kept.clone()
    }

    /// Ends the threads after all that was submitted, and waits for them.
    pub fn join(self) {
        drop(self);
    }
}

impl Drop for WriteEngine {
    fn drop(&mut self) {
        // Writes go from the threads to the lanes, and changes of mode back to the threads: both live until the
        // last write has completed.
        self.sink.data.drain();
        self.work = None;
        self.journal = None;
        for thread in self.threads.drain(..) {
            // A panic outside of an operation is a bug that the thread has reported already.
            let _ = thread.join();
        }
    }
}

impl SinkEngine for WriteEngine {
    fn submit(&mut self, job: SinkJob) {
        let mut job = job;
        if matches!(job.op, SinkOp::Write { .. }) {
            self.sink.begin_write();
            match self.sink.write_if_ready(job) {
                None => return,
                Some(first) => job = first,
            }
        }
        let journal = matches!(job.op, SinkOp::Journal { .. } | SinkOp::RemoveJournal);
        let queue = if journal { &self.journal } else { &self.work };
        let sent = queue.as_ref().is_some_and(|queue| queue.send(job).is_ok());
        assert!(sent, "the engine's threads live as long as the engine");
    }

    fn stuck(&self) -> Vec<Stuck> {
        self.sink.data.lanes().map_or(Vec::new(), |lanes| lanes.stuck())
    }

    fn report(&self) -> Vec<(String, String)> {
        self.sink.data.report(&self.sink.files.spaces)
    }
}

impl Sink {
    /// One thread's life.
    fn run(self: &Arc<Self>, jobs: &Receiver<SinkJob>, shares: &Receiver<Help>) {
        let mut since = Instant::now();
        loop {
            let mut idle = || {
                let now = Instant::now();
                self.meter.add_idle(MeterStage::SinkStorage, now - std::mem::replace(&mut since, now));
            };
            crossbeam_channel::select! {
                recv(jobs) -> job => {
                    idle();
                    let Ok(job) = job else { return };
                    if matches!(job.op, SinkOp::Write { .. }) {
                        self.meter.busy(MeterStage::SinkStorage, || self.write_first(job));
                    } else {
                        let SinkJob { op, buffer } = job;
                        let done = self.meter.busy(MeterStage::SinkStorage, || self.execute(op, buffer));
                        (self.post)(SinkCompletion { done });
                    }
                }
                recv(shares) -> help => {
                    idle();
                    if let Ok(help) = help {
                        self.meter.busy(MeterStage::SinkStorage, || help());
                    }
                }
                default(IDLE_TICK) => {
                    // While lanes write, a thread without work does not mean that storage waits for data.
                    match self.data.is_writing() {
                        true => since = Instant::now(),
                        false => idle(),
                    }
                    continue;
                }
            }
            since = Instant::now();
        }
    }

    /// Whether the job is still ours, as of at most [`OWNER_FRESH`] ago.
    pub(super) fn check_owner(&self) -> Result<(), Failure> {
        let now = Instant::now();
        if lock(&self.seen_owner).is_some_and(|seen| now.duration_since(seen) < OWNER_FRESH) {
            return Ok(());
        }
        (self.still_owner)()?;
        *lock(&self.seen_owner) = Some(now);
        Ok(())
    }

    /// Executes one operation. The buffer is dropped in here, whatever happens.
    fn execute(self: &Arc<Self>, op: SinkOp, buffer: Option<Buffer>) -> SinkDone {
        let payload = buffer.as_ref().map(Buffer::as_slice).unwrap_or_default();
        match op {
            SinkOp::MakeDirs { dirs } => SinkDone::MakeDirs {
                results: self.share(dirs, |id| *id, Stage::Create, |sink, id| sink.tree.dirfd(*id).map(drop)),
            },
            SinkOp::Lookup { items } => SinkDone::Lookup {
                results: self.share(
                    items,
                    |item| item.file.id,
                    Stage::Open,
                    |sink, item| sink.files.look(item),
                ),
            },
            SinkOp::WriteBundle { buffer, items } => {
                let write = |item: &BundleWrite| {
                    let data = slice(payload, item.start, item.file.size)?;
                    // Of an empty one this makes the temporary to publish.
                    self.files.write_whole(&item.file, data)
                };
                let results =
                    items.iter().map(|item| (item.file.id, guard(Stage::Write, || write(item)))).collect();
                SinkDone::WriteBundle { buffer, results }
            }
            SinkOp::Commit { durable, items } => {
                let commit = move |sink: &Sink, item: &CommitItem| sink.commit(item, durable);
                let results = self.share(items, |item| item.id, Stage::Publish, commit);
                self.data.choice.on_commit();
                SinkDone::Commit { results }
            }
            SinkOp::MakeLinks { items } => SinkDone::MakeLinks {
                results: self.share(
                    items,
                    |item| item.file.id,
                    Stage::Publish,
                    |sink, item| sink.make_link(item),
                ),
            },
            SinkOp::SyncDirs { dirs } => SinkDone::SyncDirs {
                results: self.share(dirs, |id| *id, Stage::Sync, |sink, id| sink.sync_dir(*id)),
            },
            SinkOp::FinishDirs { durable, dirs } => {
                SinkDone::FinishDirs { results: self.finish_dirs(durable, &dirs) }
            }
            SinkOp::Discard { id } => {
                let _ = guard(Stage::Write, || {
                    self.files.close(id, true);
                    Ok(())
                });
                SinkDone::Discard { id }
            }
            // The threads pass these to `write_first`.
            SinkOp::Write { .. } => unreachable!("a write goes to the lanes"),
            // These go to the journal's thread.
            SinkOp::Journal { .. } => SinkDone::Journal { result: Err(no_journal()) },
            SinkOp::RemoveJournal => SinkDone::RemoveJournal { result: Err(no_journal()) },
        }
    }

    /// Finishes directories, the deepest first: a finished one may be closed to us, and then nothing below it
    /// could be reached.
    fn finish_dirs(
        self: &Arc<Self>,
        durable: bool,
        dirs: &[(DirId, Meta)],
    ) -> Vec<(DirId, Result<(), Failure>)> {
        let mut by_depth: BTreeMap<usize, Vec<(DirId, Meta)>> = BTreeMap::new();
        for (id, meta) in dirs {
            by_depth.entry(self.tree.depth(*id)).or_default().push((*id, *meta));
        }
        let mut ended = HashMap::new();
        for (_, level) in by_depth.into_iter().rev() {
            ended.extend(self.share(
                level,
                |(id, _)| *id,
                Stage::Metadata,
                move |sink, (id, meta)| sink.finish_dir(*id, meta, durable),
            ));
        }
        let lost = || Err(fault::failure(Stage::Metadata, 0, "the directory was asked for twice"));
        let results: Vec<_> =
            dirs.iter().map(|(id, _)| (*id, ended.remove(id).unwrap_or_else(lost))).collect();
        for (id, _) in dirs {
            self.tree.forget(*id);
        }
        results
    }

    /// Has a thread of the engine do `work`, as soon as one is idle.
    pub(super) fn spawn(self: &Arc<Self>, work: impl Fn(&Arc<Sink>) + Send + Sync + 'static) {
        let sink = self.clone();
        let help: Help = Arc::new(move || work(&sink));
        // Without receivers the engine has ended, and this comes of a request that hung until then.
        let _ = self.help.send(help);
    }

    /// Does `work` on each item, together with the threads that are idle; results are in the items' order.
    fn share<T, K, R>(
        self: &Arc<Self>,
        items: Vec<T>,
        key: impl Fn(&T) -> K,
        stage: Stage,
        work: impl Fn(&Sink, &T) -> Result<R, Failure> + Send + Sync + 'static,
    ) -> Vec<(K, Result<R, Failure>)>
    where
        T: Send + Sync + 'static,
        R: Send + 'static,
    {
        let count = items.len();
        if count == 0 {
            return Vec::new();
        }
        let chunk = (count / (4 * self.threads)).clamp(1, CHUNK_MAX);
        let shared = Arc::new(Shared {
            items,
            next: AtomicUsize::new(0),
            ended: Mutex::new((0, (0..count).map(|_| None).collect())),
            all_ended: Condvar::new(),
        });
        let step: Help = {
            let (sink, shared) = (self.clone(), shared.clone());
            Arc::new(move || {
                loop {
                    let first = shared.next.fetch_add(chunk, Ordering::Relaxed);
                    if first >= shared.items.len() {
                        return;
                    }
                    let last = (first + chunk).min(shared.items.len());
                    for i in first..last {
                        let result = guard(stage, || work(&sink, &shared.items[i]));
                        let mut ended = lock(&shared.ended);
                        ended.1[i] = Some(result);
                        ended.0 += 1;
                        if ended.0 == shared.items.len() {
                            shared.all_ended.notify_one();
                        }
                    }
                }
            })
        };
        for _ in 1..self.threads.min(count.div_ceil(chunk)) {
            // Without receivers the engine is ending, and this thread does all of it.
            let _ = self.help.send(step.clone());
        }
        step();
        let mut ended = lock(&shared.ended);
        while ended.0 < count {
            ended = shared.all_ended.wait(ended).unwrap_or_else(PoisonError::into_inner);
        }
        let results = std::mem::take(&mut ended.1);
        drop(ended);
        let results = results.into_iter().map(|result| result.expect("all items ended"));
        shared.items.iter().map(key).zip(results).collect()
    }
}

/// An operation that several threads work at.
struct Shared<T, R> {
    items: Vec<T>,
    next: AtomicUsize,
    /// How many ended, and the results.
    ended: Mutex<(usize, Vec<Option<Result<R, Failure>>>)>,
    all_ended: Condvar,
}

/// The payload from `start`, `len` bytes long.
pub(super) fn slice(payload: &[u8], start: u32, len: u64) -> Result<&[u8], Failure> {
    let start = start as usize;
    usize::try_from(len).ok().and_then(|len| payload.get(start..start.checked_add(len)?)).ok_or_else(|| {
        let text = format!("{len} bytes at {start} are not in a payload of {} bytes", payload.len());
        fault::failure(Stage::Protocol, 0, text)
    })
}

/// Runs `work`; a panic in it becomes a failure, so that nobody waits for ever.
pub(super) fn guard<T>(stage: Stage, work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let told = panic.downcast_ref::<&str>().copied().map(str::to_owned);
        let told = told.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(fault::failure(stage, 0, format!("internal error: {told}")))
    })
}

fn no_journal() -> Failure {
    fault::failure(Stage::Write, 0, "this session keeps no journal")
}

/// The journal's thread.
fn keep_journal(sink: &Sink, mut store: Option<Journal>, records: &Receiver<SinkJob>) {
    for SinkJob { op, .. } in records {
        let done = match op {
            SinkOp::Journal { bytes, durable } => SinkDone::Journal {
                result: guard(Stage::Write, || match &mut store {
                    Some(store) => store.append(&bytes, durable),
                    None => Err(no_journal()),
                }),
            },
            _ => SinkDone::RemoveJournal {
                result: guard(Stage::Write, || {
                    (sink.still_owner)()?;
                    if !sink.old_tags.is_empty() {
                        // As in finished directories; the root is never finished.
                        let _ = remove_tagged_in(sink.tree.jail(), sink.tree.root(), &sink.old_tags);
                    }
                    // An epoch syncs the parents of files and links; of an empty directory at the top nothing
                    // but this puts the name on media. The journal's own sync may be elsewhere.
                    let root = sink.tree.root();
                    tree::sync_dir(root).map_err(|errno| {
                        let path = sink.tree.path_of_dir(DirId::ROOT);
                        fault::os_at(Stage::Sync, "sync", &path, errno, root)
                    })?;
                    match &mut store {
                        // Only the journal knows the tag of what could not be removed; the next run will.
                        Some(_) if sink.files.left_any() => Ok(()),
                        Some(store) => store.remove(),
                        None => Ok(()),
                    }
                }),
            },
        };
        (sink.post)(SinkCompletion { done });
    }
}

#[cfg(test)]
#[path = "engine_tests.rs"]
pub(super) mod tests;
