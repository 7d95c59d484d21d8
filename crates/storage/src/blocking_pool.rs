//! A blocking pool: threads for operations that block (open, stat, sync, rename, small files).
//!
//! In: jobs, each with the storage target that it goes to and words for the status line. Out: a call of the
//! `work` function on one of the pool's threads, once for each job.
//!
//! What must hold: `submit` never blocks. A target holds at most `threads` threads, all targets together
//! twice as many, so that none holds more than half when others need some. A job past its deadline gives its
//! slot to another, for which a further thread is started, up to `threads_max`; when it ends at last, so does
//! its thread. Targets take turns; the jobs of a target begin in the order in which they came. A panic in a
//! job ends neither its thread nor the pool. Nobody ever waits for a thread that hangs.
//!
//! A job of many items can share them with threads that are idle ([`Turn::share`]), and each step of a job
//! that lasts counts its deadline anew ([`Turn::track`]): steps cost no lock, so that they may be many.
//!
//! Left out: a bound of what waits (the session bounds what it submits), and results: `work` posts them.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use haul_base::Post;
use haul_core::ids::Time;
use haul_core::io::slots::Slots;

use super::Stuck;
use super::io::IoTarget;

mod share;

/// Most threads of a blocking pool, stuck ones included.
pub const THREADS_MAX: usize = 1024;
/// Of so many threads of a target one has no part in what is shared.
const SPARED: usize = 4;
/// How often a thread that waits tells so.
const IDLE_TICK: Duration = Duration::from_millis(100);
/// A shorter deadline would have the watch run all the time.
const DEADLINE_MIN: Duration = Duration::from_millis(1);
/// Steps tell that they make progress so many times in a deadline at most: what hangs may be named that much
/// early.
const RENEWALS: u32 = 8;

/// Threads of a blocking pool with `threads` for each target that may hang before their targets rest: a few
/// times what one target can hold, for each costs its stack only.
pub fn with_spare(threads: usize) -> usize {
    const SPARE_MIN: usize = 16;
    (2 * threads + (2 * threads).max(SPARE_MIN)).min(THREADS_MAX)
}

/// What a job is doing, in words: asked for only when it is stuck.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doing {
    /// `open`, `stat`, `sync`, ..
    pub what: &'static str,
    pub name: String,
    pub offset: u64,
}

type Label = Arc<dyn Fn() -> Doing + Send + Sync>;

/// How a blocking pool works.
#[derive(Clone)]
pub struct BlockingPoolConfig {
    /// Its threads are called `name-N`.
    pub name: &'static str,
    /// Threads that one target may hold, at least 1; all targets together twice as many.
    pub threads: usize,
    /// Threads in all, stuck ones included: from `2 * threads` to [`THREADS_MAX`]. When as many hang as are
    /// beyond `2 * threads`, their targets rest.
    pub threads_max: usize,
    /// After so long without a step a job loses its slot.
    pub deadline: Duration,
    /// Hears how long a thread worked. Called often, on the pool's threads; so is `on_idle`.
    pub on_busy: Post<Duration>,
    /// Hears how long a thread waited.
    pub on_idle: Post<Duration>,
}

/// Threads that do jobs. When it is dropped, jobs that wait are dropped with it, and those under way end by
/// themselves; [`BlockingPool::finish`] waits for them.
pub struct BlockingPool<J: Send + 'static> {
    shared: Arc<Shared<J>>,
}

/// The steps of a job, see [`Turn::track`].
pub struct Track<J: Send + 'static> {
    turn: Turn<J>,
    at: Arc<AtomicU64>,
    renewed: Instant,
}

/// A thread's turn at a job.
pub struct Turn<J: Send + 'static> {
    shared: Arc<Shared<J>>,
    id: u64,
    target: IoTarget,
}

struct Shared<J: Send + 'static> {
    config: BlockingPoolConfig,
    begin: Instant,
    state: Mutex<PoolState<J>>,
    /// There may be something to do, or the pool ends.
    work: Condvar,
    /// The pool ends: for the watch.
    over: Condvar,
    /// A thread ended: for who finishes.
    ended: Condvar,
    stopped: AtomicBool,
    /// A thread's life, which knows the type of its own state.
    life: Box<dyn Fn(Arc<Shared<J>>) + Send + Sync>,
}

struct PoolState<J: Send + 'static> {
    slots: Slots<IoTarget>,
    /// As in the configuration, or as it was changed since.
    threads_each: usize,
    threads_max: usize,
    /// Targets with jobs that wait, in the order of their turns.
    targets: VecDeque<IoTarget>,
    waiting: HashMap<IoTarget, VecDeque<(Label, J)>>,
    /// Jobs whose items others may help with, the oldest first.
    shares: VecDeque<SharedItems<J>>,
    /// What each job under way does.
    doing: HashMap<u64, Label>,
    next_id: u64,
    threads: usize,
    /// Threads ever started, for their names.
    started: usize,
    /// Those that wait for something to do, or are about to look for it.
    idle: usize,
    /// Of the threads that live, and of some that ended.
    handles: Vec<JoinHandle<()>>,
    /// Jobs that wait are done, then the pool ends.
    finishing: bool,
}

/// Items that others may help with.
struct SharedItems<J: Send + 'static> {
    id: u64,
    target: IoTarget,
    /// Threads that may still join.
    hands: usize,
    help: Help<J>,
    label: Label,
}

type Help<J> = Arc<dyn Fn(&Turn<J>) + Send + Sync>;

/// What a thread does next.
enum Task<J: Send + 'static> {
    Job(J),
    Help(Help<J>),
}

impl<J: Send + 'static> BlockingPool<J> {
    /// Starts a blocking pool with its first thread. `make` makes what a thread keeps for itself (once for
    /// each thread, and anew after a panic), `work` does a job. A panic in `work` is caught: whoever waits
    /// for the job must be told by `work` itself.
    ///
    /// # Errors
    /// Not one thread can be started. Later on it goes on with fewer than it may have.
    pub fn start<S: 'static>(
        config: BlockingPoolConfig,
        make: impl Fn() -> S + Send + Sync + 'static,
        work: impl Fn(&mut S, &Turn<J>, J) + Send + Sync + 'static,
    ) -> io::Result<BlockingPool<J>> {
        let threads = config.threads.clamp(1, THREADS_MAX / 2);
        let threads_max = config.threads_max.clamp(2 * threads, THREADS_MAX);
        let deadline = config.deadline.max(DEADLINE_MIN);
        let config = BlockingPoolConfig { threads, threads_max, deadline, ..config };
        // A stuck job holds a thread, so together with the running ones they are as many as there may be.
        let slots = Slots::new(threads as u32, 2, (threads_max - 2 * threads) as u32);
        let state = PoolState {
            slots,
            threads_each: threads,
            threads_max,
            targets: VecDeque::new(),
            waiting: HashMap::new(),
            shares: VecDeque::new(),
            doing: HashMap::new(),
            next_id: 0,
            threads: 0,
            started: 0,
            idle: 0,
            handles: Vec::new(),
            finishing: false,
        };
        let shared = Arc::new(Shared {
            config,
            begin: Instant::now(),
            state: Mutex::new(state),
            work: Condvar::new(),
            over: Condvar::new(),
            ended: Condvar::new(),
            stopped: AtomicBool::new(false),
            life: Box::new(move |shared| live(&shared, &make, &work)),
        });
        let pool = BlockingPool { shared };
        pool.shared.spawn(&mut pool.shared.lock())?;
        // Threads that all hang do not see that they do.
        let shared = pool.shared.clone();
        let builder = std::thread::Builder::new().name(format!("{}-watch", shared.config.name));
        let watch = builder.spawn(move || shared.watch())?;
        pool.shared.lock().handles.push(watch);
        Ok(pool)
    }

    /// Takes a job; never blocks. `label` says what it does, if it gets stuck.
    pub fn submit(&self, target: IoTarget, label: impl Fn() -> Doing + Send + Sync + 'static, job: J) {
        let mut state = self.shared.lock();
        let queue = state.waiting.entry(target).or_default();
        queue.push_back((Arc::new(label), job));
        if queue.len() == 1 {
            state.targets.push_back(target);
        }
        self.shared.call_hands(&mut state);
    }

    /// Jobs past their deadline, the oldest first.
    pub fn stuck(&self) -> Vec<Stuck> {
        let (now, stuck) = {
            let now = self.shared.now();
            let mut state = self.shared.lock();
            state.tick(now);
            self.shared.call_hands(&mut state);
            let label = |id| state.doing.get(&id).expect("what is in flight has its label").clone();
            (now, state.slots.stuck().map(|s| (label(s.id), s.started)).collect::<Vec<_>>())
        };
        // Not under the lock: a label may look into tables that have locks of their own.
        let tell = |(label, since): (Label, Time)| {
            let Doing { what, name, offset } = label();
            Stuck { what, name, offset, since: now.since(since) }
        };
        stuck.into_iter().map(tell).collect()
    }

    /// Changes how many threads a target may hold, 1 to half of [`THREADS_MAX`]. More are started as they are
    /// needed; with fewer, jobs that were begun go on, and nothing begins until there is room again.
    pub fn set_threads(&self, threads: usize) {
        let threads = threads.clamp(1, THREADS_MAX / 2);
        let mut state = self.shared.lock();
        state.threads_each = threads;
        // Never lowered, for those that were started live on.
        state.threads_max = state.threads_max.max(with_spare(threads));
        let stuck_max = state.threads_max - 2 * threads;
        state.slots.set_depth(threads as u32);
        state.slots.set_stuck_max(stuck_max as u32);
        self.shared.call_hands(&mut state);
    }

    /// Threads that live now, stuck ones included.
    pub fn threads(&self) -> usize {
        self.shared.lock().threads
    }

    /// Whether something is under way, and all of it is past its deadline, so that nothing that waits can
    /// begin.
    pub fn hangs(&self) -> bool {
        let now = self.shared.now();
        let mut state = self.shared.lock();
        state.tick(now);
        state.slots.in_flight() > 0 && state.slots.running() == 0 && !state.may_begin()
    }

    /// Has all that was submitted done, and waits until the threads have ended, at most for `patience`.
    /// Returns whether they have; if not, it can be asked again. Nothing may be submitted any more.
    pub fn finish(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let mut state = self.shared.lock();
        state.finishing = true;
        self.shared.work.notify_all();
        while state.threads > 0 {
            let now = Instant::now();
            if now >= until {
                return false;
            }
            let waited = self.shared.ended.wait_timeout(state, until - now);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let handles = std::mem::take(&mut state.handles);
        drop(state);
        for handle in handles {
            // They are past their last job. A panic outside of a job was reported by its hook.
            let _ = handle.join();
        }
        true
    }
}

impl<J: Send + 'static> Drop for BlockingPool<J> {
    // Not joined: a thread may hang in a call to a server that is gone.
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        let mut state = self.shared.lock();
        state.finishing = true;
        state.targets.clear();
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        drop(waiting);
        self.shared.work.notify_all();
        self.shared.over.notify_all();
    }
}

impl<J: Send + 'static> Turn<J> {
    /// Follows the steps of a job: `label` says what the step with a number does, if it gets stuck.
    pub fn track(&self, label: impl Fn(u64) -> Doing + Send + Sync + 'static) -> Track<J> {
        let at = Arc::new(AtomicU64::new(0));
        let shown = at.clone();
        self.renew(Some(Arc::new(move || label(shown.load(Ordering::Relaxed)))));
        Track { turn: self.again(), at, renewed: Instant::now() }
    }

    /// The job makes progress: its deadline counts from now.
    fn renew(&self, label: Option<Label>) {
        let now = self.shared.now();
        let deadline = self.shared.config.deadline;
        let mut state = self.shared.lock();
        state.slots.renew(self.id, now, deadline);
        let before = label.and_then(|label| state.doing.insert(self.id, label));
        drop(state);
        drop(before);
    }

    /// How often the job has to tell that it waits for something that does not hang, and how: its deadline
    /// counts from then.
    pub(crate) fn watch(&self) -> (Duration, Option<impl Fn() + '_>) {
        (self.shared.config.deadline / RENEWALS, Some(|| self.renew(None)))
    }

    /// The same turn, for who keeps it.
    pub(crate) fn again(&self) -> Turn<J> {
        Turn { shared: self.shared.clone(), id: self.id, target: self.target }
    }

    /// The pool is dropped: a job that lasts may end early.
    pub fn stopped(&self) -> bool {
        self.shared.stopped.load(Ordering::Relaxed)
    }
}

impl<J: Send + 'static> Track<J> {
    /// The step with this number begins.
    pub fn at(&mut self, step: u64) {
        self.at.store(step, Ordering::Relaxed);
        let now = Instant::now();
        if now - self.renewed >= self.turn.shared.config.deadline / RENEWALS {
            self.turn.renew(None);
            self.renewed = now;
        }
    }
}

impl<J: Send + 'static> Shared<J> {
    fn lock(&self) -> MutexGuard<'_, PoolState<J>> {
        lock(&self.state)
    }

    fn now(&self) -> Time {
        Time(u64::try_from(self.begin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Sees to it that somebody takes what can be begun: an idle thread, or a new one. Whoever takes
    /// something calls this again, so that one call for many jobs is enough.
    fn call_hands(self: &Arc<Self>, state: &mut PoolState<J>) {
        if !state.may_begin() {
            return;
        }
        if state.idle > 0 {
            self.work.notify_one();
        } else if state.threads < state.threads_max {
            // The system gives no more: those that are there do it in time.
            let _ = self.spawn(state);
        }
    }

    fn spawn(self: &Arc<Self>, state: &mut PoolState<J>) -> io::Result<()> {
        let shared = self.clone();
        let name = format!("{}-{}", self.config.name, state.started);
        let builder = std::thread::Builder::new().name(name);
        let handle = builder.spawn(move || (shared.life)(shared.clone()))?;
        state.handles.retain(|handle| !handle.is_finished());
        state.handles.push(handle);
        state.started += 1;
        state.threads += 1;
        state.idle += 1;
        Ok(())
    }

    /// Takes their slots from jobs past their deadline, until the pool is over.
    fn watch(self: Arc<Self>) {
        let mut state = self.lock();
        while state.threads > 0 && !(state.finishing && state.is_over()) {
            let now = self.now();
            state.tick(now);
            self.call_hands(&mut state);
            // What starts while this sleeps cannot be late before it wakes.
            let wait = state.slots.next_deadline().map_or(self.config.deadline, |next| next.since(now));
            if self.stopped.load(Ordering::Relaxed) && state.slots.running() == 0 {
                return;
            }
            let waited = self.over.wait_timeout(state, wait);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl<J: Send + 'static> PoolState<J> {
    /// Whether something waits that may begin now.
    fn may_begin(&self) -> bool {
        self.shares.iter().any(|share| share.hands > 0 && self.slots.may_start(share.target))
            || self.targets.iter().any(|target| self.slots.may_start(*target))
    }

    /// Takes their slots from those past their deadline. Shares get as many hands more, for one of theirs may
    /// be among them, and what is left of their items must not wait for it.
    fn tick(&mut self, now: Time) {
        let threads = self.threads_each;
        let late = self.slots.tick(now);
        if late > 0 {
            for share in &mut self.shares {
                share.hands = (share.hands + late).min(threads - threads / SPARED);
            }
        }
    }

    /// Nothing waits or is under way.
    fn is_over(&self) -> bool {
        self.targets.is_empty() && self.slots.in_flight() == 0
    }

    /// Begins what is next: help before jobs, for a job that is shared holds a thread.
    fn begin(&mut self, now: Time, deadline: Duration) -> Option<(u64, IoTarget, Task<J>)> {
        let slots = &self.slots;
        let helped = self.shares.iter().position(|s| s.hands > 0 && slots.may_start(s.target));
        let (target, label, task) = match helped {
            Some(at) => {
                let share = &mut self.shares[at];
                share.hands -= 1;
                (share.target, share.label.clone(), Task::Help(share.help.clone()))
            }
            None => {
                let at = self.targets.iter().position(|target| slots.may_start(*target))?;
                let target = self.targets.remove(at).expect("it was just found");
                let queue = self.waiting.get_mut(&target).expect("a target in the ring has jobs");
                let (label, job) = queue.pop_front().expect("a target in the ring has jobs");
                if queue.is_empty() {
                    self.waiting.remove(&target);
                } else {
                    self.targets.push_back(target);
                }
                (target, label, Task::Job(job))
            }
        };
        let id = self.next_id;
        self.next_id += 1;
        self.slots.start(id, target, now, deadline);
        self.doing.insert(id, label);
        Some((id, target, task))
    }
}

/// A thread's life.
fn live<J: Send + 'static, S>(
    shared: &Arc<Shared<J>>,
    make: &(impl Fn() -> S + Send + Sync),
    work: &(impl Fn(&mut S, &Turn<J>, J) + Send + Sync),
) {
    let mut own = None;
    // Dropped outside of the lock, like all that comes from the caller.
    let mut spent = None;
    let mut since = Instant::now();
    let tell = |hook: &Post<Duration>, since: &mut Instant| {
        let now = Instant::now();
        hook(now - std::mem::replace(since, now));
    };
    let mut state = shared.lock();
    // It counted as idle from when it was started.
    state.idle -= 1;
    loop {
        let Some((id, target, task)) = state.begin(shared.now(), shared.config.deadline) else {
            if state.finishing && state.is_over() {
                break;
            }
            // While it tells, it is idle too: it looks again before it waits.
            state.idle += 1;
            let waited = shared.work.wait_timeout(state, IDLE_TICK);
            drop(waited);
            drop(spent.take());
            tell(&shared.config.on_idle, &mut since);
            state = shared.lock();
            state.idle -= 1;
            continue;
        };
        shared.call_hands(&mut state);
        drop(state);
        drop(spent.take());
        tell(&shared.config.on_idle, &mut since);
        let turn = Turn { shared: shared.clone(), id, target };
        let done = catch_unwind(AssertUnwindSafe(|| match task {
            Task::Job(job) => work(own.get_or_insert_with(make), &turn, job),
            Task::Help(help) => help(&turn),
        }));
        if done.is_err() {
            // What it left half done is no base for the next job. (The panic's hook has reported it.)
            own = None;
        }
        tell(&shared.config.on_busy, &mut since);
        state = shared.lock();
        spent = state.doing.remove(&id);
        let ended = state.slots.end(id, shared.now());
        // Another thread has its place, or gets it when it is needed.
        if ended.is_some_and(|ended| ended.was_stuck) && state.threads > 1 {
            break;
        }
    }
    state.threads -= 1;
    shared.call_hands(&mut state);
    drop(state);
    drop(spent);
    shared.work.notify_all();
    shared.ended.notify_all();
    shared.over.notify_all();
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The state is whole at every panic that could happen under the lock.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "blocking_pool_tests.rs"]
mod tests;
