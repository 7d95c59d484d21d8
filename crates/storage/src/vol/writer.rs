//! Writes files of a volume: objects to all servers at once, many of them at a time.
//!
//! In: operations of the session machine. Out: their completions. A thread waits for each object; operations
//! of many items are done by all threads that are idle, so that they share what the catalog's syncs cost.
//! Invariants: each operation is answered once, also of a thread that panics, and its buffer is back in its
//! pool before; a file that failed stays failed until it is discarded; what has no final name at the end of
//! the run is removed, or known to the journal.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use haul_core::change::Change;
use haul_core::entry::{Meta, Name};
use haul_core::ids::DirId;
use haul_core::journal::Former;
use haul_core::stage::Stage;
use haul_core::transfer::op::{
    AmendItem, BundleWrite, CommitItem, Found, LinkItem, LookupItem, SinkDone, SinkFile, SinkOp, Took,
};
use haul_core::volume::catalog::Place as At;
use haul_core::wire::{Failure, FailureKind};

use super::Volume;
use super::claim::Claim;
use super::files::{Committed, Common, lock};
use super::homes::Homes;
use super::journal::Journal;
use super::look::sound_at;
use super::noted::Noted;
use super::tree::Tree;
use crate::blocking_pool::{BlockingPool, BlockingPoolConfig, Doing, Turn, with_spare};
use crate::io::IoTarget;
use crate::owed::Owed;
use crate::store::{NotKept, Writing, no_hard_links};
use crate::{Payload, SinkCompletion, SinkEngine, SinkJob, Stuck};
use haul_base::escape;

/// Threads that write, at least and at most.
const THREADS_MIN: usize = 8;
const THREADS_MAX: usize = 32;
/// After so long something that was asked counts as stuck, and gives its place to another.
const DEADLINE: Duration = Duration::from_secs(10);
/// Why files were sent again, for people.
const LOST: &str = ", of which a server had lost what was not synced";
/// How often it is looked whether the threads have ended.
const END_TICK: Duration = Duration::from_secs(1);
pub(super) struct Job(Box<dyn FnOnce(&Turn<Job>) + Send>);

/// The engine of a destination in a volume.
pub(super) struct Writer {
    common: Arc<Common>,
    pool: BlockingPool<Job>,
    /// The write threshold, where it is pinned.
    threshold: Option<u64>,
    /// What hung at the end, once that was asked.
    ended: Option<Vec<String>>,
}

/// What a run has of its job.
pub(super) struct Held {
    pub(super) claim: Arc<Claim>,
    pub(super) journal: Arc<Journal>,
    /// The runs before.
    pub(super) former: Former,
    /// Of this run's temporaries.
    pub(super) tag: u32,
}

fn pinned_in_words(threshold: u64) -> String {
    match threshold {
        0 => "pinned: nothing is gathered".into(),
        u64::MAX => "pinned: everything is gathered".into(),
        size => format!("pinned: what is below {} is gathered", haul_core::tune::show_size(size)),
    }
}

impl Writer {
    /// Starts the threads. `made`: of temporaries. `homes`: where what comes has one.
    ///
    /// # Errors
    /// The system gives none.
    pub(super) fn start(
        volume: Arc<Volume>,
        tree: Tree,
        Held { claim, journal, former, tag }: Held,
        (made, homes): (Meta, Homes),
        writing: Writing,
    ) -> std::io::Result<Writer> {
        let Writing { policy, writers, storage, meter, post, .. } = writing;
        let threshold = storage.write_threshold;
        if let Some(threshold) = threshold {
            volume.client.pin_threshold(threshold);
        }
        volume.begins();
        let (busy, idle) = (meter.clone(), meter.clone());
        let threads = writers.clamp(THREADS_MIN, THREADS_MAX);
        let config = BlockingPoolConfig {
            name: "haul-volume",
            threads,
            threads_max: with_spare(threads),
            deadline: DEADLINE,
            on_busy: Arc::new(move |time| busy.add_busy(Stage::SinkStorage, time)),
            on_idle: Arc::new(move |time| idle.add_idle(Stage::SinkStorage, time)),
        };
        let work = |(): &mut (), turn: &Turn<Job>, Job(work): Job| work(turn);
        let pool = BlockingPool::start(config, || (), work)?;
        let common = Arc::new(Common {
            volume,
            tree,
            claim,
            journal,
            former,
            policy,
            tag,
            made,
            files: Mutex::default(),
            noted: Noted::new(homes),
            meter,
            setid: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            has_parts: AtomicBool::new(false),
            post,
        });
        let told = common.post.clone();
        common
            .volume
            .tell_when_gone(move |failure| told(SinkCompletion { done: SinkDone::Gone { failure } }));
        Ok(Writer { common, pool, threshold, ended: None })
    }

    fn owed(
        &self,
        kind: FailureKind,
        refused: impl FnOnce(Failure) -> SinkDone + Send + 'static,
    ) -> Owed<SinkDone> {
        let post = self.common.post.clone();
        Owed::new(kind, move |answer: Result<SinkDone, Failure>| {
            post(SinkCompletion { done: answer.unwrap_or_else(refused) });
        })
    }

    /// Has a thread do `work`, which is `what` with a file or directory.
    fn spawn(
        &self,
        (what, path, offset): (&'static str, Path, u64),
        owed: Owed<SinkDone>,
        work: impl FnOnce(&Arc<Common>, &Turn<Job>) -> SinkDone + Send + 'static,
    ) {
        let (told, common) = (self.common.clone(), self.common.clone());
        let label = move || told.doing(what, &path, offset);
        let job = move |turn: &Turn<Job>| owed.settle(Ok(work(&common, turn)));
        self.pool.submit(IoTarget::default(), label, Job(Box::new(job)));
    }

    /// Has the threads do `work` on each item; `done` makes the answer of the results, in the items' order.
    fn spread<T: Send + Sync + Clone + 'static, R: Send + 'static>(
        &self,
        (what, kind): (&'static str, FailureKind),
        items: Vec<T>,
        path: impl Fn(&T) -> Path + Send + Sync + Copy + 'static,
        work: impl Fn(&Common, &T) -> Result<R, Failure> + Send + Sync + 'static,
        done: impl Fn(&[T], Vec<Result<R, Failure>>) -> SinkDone + Send + Sync + 'static,
    ) {
        let items = Arc::new(items);
        let Some(first) = items.first() else {
            return (self.common.post)(SinkCompletion { done: done(&[], Vec::new()) });
        };
        let first = path(first);
        let done = Arc::new(done);
        let owed = {
            let (items, done) = (items.clone(), done.clone());
            self.owed(kind, move |failure| {
                let results = items.iter().map(|_| Err(failure.clone())).collect();
                done(&items, results)
            })
        };
        self.spawn((what, first, 0), owed, move |common, turn| {
            let (told, worker) = (common.clone(), common.clone());
            let label = move |item: &T| told.doing(what, &path(item), 0);
            let results = turn.share(items.clone(), label, move |item| work(&worker, item));
            let lost = || {
                let text = "internal error: a thread panicked".into();
                Err(Failure { kind, errno: 0, text })
            };
            done(&items, results.into_iter().map(|result| result.unwrap_or_else(lost)).collect())
        });
    }

    fn write(&self, file: SinkFile, (offset, len): (u64, u32), job: Option<Payload>, op: SinkOp) {
        let SinkOp::Write { buffer, start, .. } = op else { return };
        let id = file.id;
        let owed = self.owed(FailureKind::Write, move |failure| {
            let (took, result) = (None, Err(failure));
            SinkDone::Write { id, offset, len, buffer, took, result, again: false }
        });
        let path = Path::of(&file);
        self.spawn(("write", path, offset), owed, move |common, _| {
            let begun = Instant::now();
            let payload = job.map(Payload::shared);
            let result = common.write(&file, offset, payload.as_deref(), (start, len.into()));
            // Back in its pool before it is told.
            drop(payload);
            let took = result.is_ok().then(|| Took { time: begun.elapsed(), cached: true });
            // A commit beside this one found that, and is perhaps told later.
            let again = result.is_err() && common.is_lost(id);
            SinkDone::Write { id, offset, len, buffer, took, result, again }
        });
    }

    fn end_all(&mut self) -> Vec<String> {
        if let Some(left) = &self.ended {
            return left.clone();
        }
        let mut left = Vec::new();
        while !self.pool.finish(END_TICK) {
            if self.pool.hangs() {
                left.extend(self.pool.stuck().iter().map(Stuck::in_words));
                left.extend(left.is_empty().then(|| "threads that did not end".into()));
                break;
            }
        }
        if left.is_empty() {
            self.common.noted.tell_all(&self.common.volume);
            self.common.abandon();
            self.common.journal.keep();
        }
        self.ended = Some(left.clone());
        left
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.end_all();
    }
}

/// What an operation goes to: a directory, or a name in one.
#[derive(Clone)]
pub(super) struct Path(DirId, Option<Name>);

impl Path {
    fn of(file: &SinkFile) -> Path {
        Path(file.parent, Some(file.name.clone()))
    }
}

impl SinkEngine for Writer {
    fn submit(&mut self, SinkJob { op, buffer }: SinkJob) {
        match op {
            SinkOp::Write { ref file, offset, len, .. } => {
                self.write(file.clone(), (offset, len), buffer, op);
            }
            SinkOp::WriteBundle { buffer: id, items, more } => {
                let payload = Mutex::new(buffer.map(Payload::shared));
                let holds = Arc::new(payload);
                let lent = holds.clone();
                let work = move |common: &Common, item: &BundleWrite| {
                    let payload = lock(&lent).clone();
                    let at = (item.start, item.file.size);
                    common.write(&item.file, 0, payload.as_deref(), at)
                };
                let done = move |items: &[BundleWrite], results: Vec<Result<(), Failure>>| {
                    // Back in its pool before it is told.
                    drop(lock(&holds).take());
                    let results = items.iter().map(|item| item.file.id).zip(results).collect();
                    SinkDone::WriteBundle { buffer: id, results, more }
                };
                self.spread(("write", FailureKind::Write), items, |item| Path::of(&item.file), work, done);
            }
            SinkOp::MakeDirs { dirs } => self.spread(
                ("create directory", FailureKind::Create),
                dirs,
                |dir| Path(*dir, None),
                |common, dir| common.tree.dir(*dir).map(drop),
                |dirs, results| SinkDone::MakeDirs { results: dirs.iter().copied().zip(results).collect() },
            ),
            SinkOp::Lookup { items } => self.spread(
                ("look up", FailureKind::Open),
                items,
                |item: &LookupItem| Path::of(&item.file),
                Common::look_up,
                |items, results| SinkDone::Lookup {
                    results: items.iter().map(|item| item.file.id).zip(results).collect(),
                },
            ),
            SinkOp::Create { file, .. } => {
                let id = file.id;
                let owed = self
                    .owed(FailureKind::Create, move |failure| SinkDone::Create { id, result: Err(failure) });
                self.spawn(("create", Path::of(&file), 0), owed, move |common, _| {
                    // Nobody counts by target here.
                    SinkDone::Create { id, result: common.temp(&common.open(&file)).map(|_| None) }
                });
            }
            SinkOp::Check { file, kind, ranges } => {
                let (id, asked) = (file.id, ranges.clone());
                let owed = self.owed(FailureKind::Read, move |failure| SinkDone::Check {
                    id,
                    ranges: asked,
                    result: Err(failure),
                });
                self.spawn(("read", Path::of(&file), 0), owed, move |common, _| {
                    let result = common.check(&file, kind, &ranges);
                    SinkDone::Check { id, ranges, result }
                });
            }
            SinkOp::Commit { items, .. } => self.spread(
                ("publish", FailureKind::Publish),
                items,
                |item: &CommitItem| match &item.publish {
                    Some(publish) => Path::of(&publish.file),
                    None => Path(DirId::ROOT, None),
                },
                Common::commit,
                |items, results| {
                    let mut lost = Vec::new();
                    let results = items.iter().map(|item| item.id).zip(results);
                    let results = results.map(|(id, result)| match result {
                        Ok(Committed::Lost(failure)) => {
                            lost.push(id);
                            (id, Err(failure))
                        }
                        result => (id, result.map(drop)),
                    });
                    SinkDone::Commit { results: results.collect(), lost }
                },
            ),
            SinkOp::Clone { .. } => unreachable!("nobody is asked to clone who does not say that he does"),
            SinkOp::Amend { items, .. } => self.spread(
                ("set the mode of", FailureKind::Metadata),
                items,
                |item: &AmendItem| Path::of(&item.file),
                Common::amend,
                |items, results| SinkDone::Amend {
                    results: items.iter().map(|item| item.file.id).zip(results).collect(),
                },
            ),
            SinkOp::MakeLinks { items } => self.spread(
                ("make the link", FailureKind::Create),
                items,
                |item: &LinkItem| Path::of(&item.file),
                Common::make_link,
                |items, results| SinkDone::MakeLinks {
                    results: items.iter().map(|item| item.file.id).zip(results).collect(),
                },
            ),
            SinkOp::Join { items } => {
                let results = items.into_iter().map(|item| (item.file.id, Ok(no_hard_links()))).collect();
                (self.common.post)(SinkCompletion { done: SinkDone::Join { results } });
            }
            SinkOp::FinishDirs { dirs, .. } => {
                let common = self.common.clone();
                let done = move |dirs: &[(DirId, Meta)], results: Vec<Result<Change, Failure>>| {
                    // Not before: the way to one may lead through another.
                    dirs.iter().for_each(|(dir, _)| common.tree.forget(*dir));
                    let results = dirs.iter().map(|(dir, _)| *dir).zip(results).collect();
                    SinkDone::FinishDirs { results }
                };
                let work = |common: &Common, (dir, meta): &(DirId, Meta)| common.finish_dir(*dir, meta);
                let doing = ("set the mode of", FailureKind::Metadata);
                self.spread(doing, dirs, |(dir, _)| Path(*dir, None), work, done);
            }
            SinkOp::Discard { id } => {
                let Some(file) = lock(&self.common.files).remove(&id) else {
                    return (self.common.post)(SinkCompletion { done: SinkDone::Discard { id } });
                };
                let owed = self.owed(FailureKind::Write, move |_| SinkDone::Discard { id });
                let path = Path(file.parent, Some(file.name.clone()));
                self.spawn(("remove", path, 0), owed, move |common, _| {
                    let _ = common.remove(&file, common.given_up(&file));
                    SinkDone::Discard { id }
                });
            }
            // What the catalog has answered lasts.
            SinkOp::SyncDirs { dirs } => {
                let results = dirs.into_iter().map(|dir| (dir, Ok(()))).collect();
                (self.common.post)(SinkCompletion { done: SinkDone::SyncDirs { results } });
            }
            // One comes when the one before was answered.
            SinkOp::Journal { bytes, .. } => {
                let owed =
                    self.owed(FailureKind::Write, |failure| SinkDone::Journal { result: Err(failure) });
                self.spawn(("write the journal of", Path(DirId::ROOT, None), 0), owed, move |common, _| {
                    SinkDone::Journal { result: common.note(&bytes) }
                });
            }
            SinkOp::Note { bytes, .. } => {
                let owed = self.owed(FailureKind::Write, |failure| SinkDone::Note { result: Err(failure) });
                self.spawn(("write the journal of", Path(DirId::ROOT, None), 0), owed, move |common, _| {
                    SinkDone::Note { result: common.note(&bytes) }
                });
            }
            // No directory is closed to who has the volume's key.
            SinkOp::RefuseNote { .. } => {}
            SinkOp::RemoveJournal => {
                let owed =
                    self.owed(FailureKind::Write, |failure| SinkDone::RemoveJournal { result: Err(failure) });
                self.spawn(("clean up", Path(DirId::ROOT, None), 0), owed, |common, _| {
                    common.noted.tell_all(&common.volume);
                    common.claim.sweep(common.tree.root().id);
                    common.journal.remove();
                    SinkDone::RemoveJournal { result: Ok(()) }
                });
            }
        }
    }

    fn register(&self, id: DirId, parent: DirId, name: Name) {
        self.common.tree.register(id, parent, name);
    }

    fn forget(&self, id: DirId) {
        self.common.tree.forget(id);
    }

    fn set_width(&mut self, _: Option<u16>) -> Option<u16> {
        None
    }

    fn fixed(&self) -> Option<&'static str> {
        Some("what is under way at each server of a volume is its client's to say")
    }

    fn stuck(&self) -> Vec<Stuck> {
        self.pool.stuck()
    }

    fn in_wait(&self) -> Option<String> {
        self.common.volume.in_wait()
    }

    fn report(&self) -> Vec<(String, String)> {
        let mut all = vec![("sink storage".into(), self.common.volume.in_words())];
        all.extend(self.threshold.map(|threshold| ("write threshold".into(), pinned_in_words(threshold))));
        match self.common.lost.load(Ordering::Relaxed) {
            0 => {}
            1 => all.push(("sent again".into(), format!("once a file{LOST}"))),
            times => all.push(("sent again".into(), format!("{times} times a file{LOST}"))),
        }
        all
    }

    fn not_kept(&self) -> NotKept {
        NotKept { setid: self.common.setid.load(Ordering::Relaxed), ..NotKept::default() }
    }

    fn left(&self) -> Option<String> {
        self.common.claim.stays()
    }

    fn end(&mut self) -> Vec<String> {
        self.end_all()
    }
}

impl Common {
    fn doing(&self, what: &'static str, Path(dir, name): &Path, offset: u64) -> Doing {
        let name = escape::within(&self.volume.url(&self.tree.path(*dir, name.as_ref())));
        Doing { what, name, offset }
    }

    /// Records for the journal.
    fn note(&self, records: &[u8]) -> Result<(), Failure> {
        self.journal.append(records, self.has_parts.load(Ordering::Acquire))
    }

    /// What stands at a name, and whether the temporary of an earlier run is ours now.
    fn look_up(&self, item: &LookupItem) -> Result<Found, Failure> {
        let file = &item.file;
        let nothing = Found {
            existing: haul_core::transfer::op::Existing::Nothing,
            seen: None,
            adopted: false,
            len: 0,
            begun: false,
        };
        // Nothing can stand in a directory that this run made; that spares a request for each new file.
        if self.tree.was_made(file.parent) {
            return Ok(nothing);
        }
        let parent = self.tree.dir(file.parent)?;
        let at = At { parent, name: file.name.clone() };
        let found = sound_at(&self.volume, &at, &|| self.path(file))?;
        let found =
            found.map_or(nothing, |(_, existing, seen)| Found { existing, seen: Some(seen), ..nothing });
        let taken = match item.adopt {
            Some(tag) => self.take_over(file, parent, tag)?,
            None => None,
        };
        Ok(Found { adopted: taken.is_some(), len: taken.unwrap_or(0), ..found })
    }
}
