//! IoThreads: the threads that drive I/O engines. They split and join, order, hold back, retry, and notice
//! what hangs.
//!
//! In: [`Transfer`]s, one object each, from the session's engine. Out: the same transfers with what became of
//! them, by a callback on the I/O thread (which hashes there, while the payload is at hand).
//!
//! A transfer is cut into requests of `request_size` bytes, and transfers side by side in one file are joined
//! into one request of up to that size. The ordering policy decides which I/O thread may issue which request
//! and when; it orders what is waiting here, never what has not been submitted, for a sink must not wait for
//! an object whose buffer others hold. The slots of `haul_core::io::slots` decide how many are in flight at
//! each target; a request past its deadline loses its slot.
//!
//! What must hold: a transfer is answered once, with its buffer whole, or its tag is dropped; no byte is told
//! as moved that was not; an errno is told of the transfers that have it, with the byte, and of no others. An
//! I/O thread that panics ends all of them: every tag is dropped, now and from then on. (A tag that owes an
//! answer gives it when it is dropped.)
//!
//! Reading order: the words here, then [`request`] (one request, whatever becomes of it), [`dispatch`] (who
//! gets which), [`thread`] (a thread). Left out: a bound of what waits; who submits holds a buffer for it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use haul_core::io::OrderPolicy;
use haul_core::io::slots::TARGET_DEPTHS;
use haul_core::stage::Stage;
use rustix::io::Errno;

use super::{DEPTH_MAX, Engine, EngineConfig, EngineFacts, IoFile, IoKind, IoTarget, Waker};
use crate::Stuck;
use haul_base::Post;
use haul_base::buffer::Buffer;
use haul_base::errno;
use haul_base::meter::Meter;

mod dispatch;
mod request;
mod thread;

use dispatch::Dispatch;
use request::Settled;
use thread::IoThread;

/// Most I/O threads.
pub const IO_THREADS_MAX: usize = 64;
/// Requests per I/O thread that may hang before the targets that they hang at rest.
pub const STUCK_PER_THREAD: usize = 8;
/// Bytes of the smallest request; sizes are multiples of it.
pub const REQUEST_SIZE_MIN: u32 = request::ALIGN as u32;

/// How I/O threads work.
#[derive(Clone, Debug)]
pub struct IoThreadsConfig {
    pub engine: EngineConfig,
    /// Threads, 1 to [`IO_THREADS_MAX`].
    pub io_threads: usize,
    /// Requests in flight at one target, over all I/O threads. All targets together have at most
    /// [`TARGET_DEPTHS`] times as many.
    pub depth: usize,
    /// Bytes, a power of two from 4 KiB.
    pub request_size: u32,
    pub order: OrderPolicy,
    /// After so long a request loses its slot and is reported by [`IoThreads::stuck`].
    pub deadline: Duration,
    /// The stage whose time the I/O threads count.
    pub stage: Stage,
    /// `haul-read` or `haul-write`.
    pub thread_name: &'static str,
}

/// One object to read or write.
///
/// The buffer stands before the tag: dropped together, the buffer is back in its pool before the tag tells of
/// it.
pub struct Transfer<T> {
    pub buffer: Buffer,
    /// The caller's; comes back with the completion.
    pub tag: T,
    pub file: Arc<IoFile>,
    /// Where this range of it lies: what it counts for.
    pub target: IoTarget,
    /// [`IoKind::Read`] or [`IoKind::Write`].
    pub kind: IoKind,
    pub offset: u64,
    /// The payload's range in the buffer.
    pub start: usize,
    pub len: usize,
    /// See `IoOp::pad`.
    pub pad: usize,
    /// See `IoOp::uncached`. Where that is refused the I/O threads go on without and say so in
    /// `refused_uncached`.
    pub uncached: bool,
}

/// How a transfer ended. The buffer stands first, as in [`Transfer`].
pub struct TransferDone<T> {
    pub buffer: Buffer,
    pub tag: T,
    pub file: Arc<IoFile>,
    pub offset: u64,
    pub start: usize,
    pub len: usize,
    /// Payload bytes moved from the beginning without a gap, pad not counted; fewer than `len` without an
    /// errno: the file ended.
    pub moved: usize,
    /// The first errno, and at which byte of the file.
    pub error: Option<(Errno, u64)>,
    /// From the submission of its first request to the completion of its last.
    pub service: Duration,
    /// `uncached` was asked for and refused.
    pub refused_uncached: bool,
}

/// How long requests to a target took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceStats {
    /// Answers of the engine; a request that was tried again counts each time.
    pub count: u64,
    pub total: Duration,
    pub max: Duration,
}

/// The I/O threads of one end.
///
/// Dropped, they take nothing more. Transfers of which something was not begun are dropped unanswered; what
/// is in flight is waited for by the I/O threads, not here, and answered if nothing of it is missing.
pub struct IoThreads<T: Send + 'static> {
    shared: Arc<Shared<T>>,
    /// What one more I/O thread is made of.
    make_engine: Box<MakeEngine>,
    engine_depth: usize,
    thread_name: &'static str,
    /// Held while I/O threads are started.
    starting: Mutex<()>,
}

type MakeEngine = dyn Fn() -> std::io::Result<Box<dyn Engine>> + Send + Sync;

/// What the I/O threads and their owner share.
struct Shared<T> {
    dispatch: Mutex<Dispatch<T>>,
    facts: Mutex<EngineFacts>,
    on_done: Post<TransferDone<T>>,
    meter: Arc<Meter>,
    stage: Stage,
    /// For this long a closed I/O thread waits for what its engine has.
    deadline: Duration,
}

impl<T: Send + 'static> IoThreads<T> {
    /// Opens the engines and starts the threads. If only some can be had, there are fewer I/O threads, and
    /// the facts have a remark.
    ///
    /// # Errors
    /// Not one thread, or no engine at all, can be started.
    pub fn start(
        config: IoThreadsConfig,
        meter: Arc<Meter>,
        on_done: Post<TransferDone<T>>,
    ) -> std::io::Result<IoThreads<T>> {
        let engine = EngineConfig { depth: engine_depth(&config), ..config.engine.clone() };
        IoThreads::start_with(config, meter, on_done, move || super::open(&engine))
    }

    /// As [`IoThreads::start`], with engines from elsewhere. Each has to take [`engine_depth`] operations, or
    /// I/O threads keep back what it does not take.
    ///
    /// # Errors
    /// As [`IoThreads::start`].
    pub fn start_with(
        config: IoThreadsConfig,
        meter: Arc<Meter>,
        on_done: Post<TransferDone<T>>,
        make_engine: impl Fn() -> std::io::Result<Box<dyn Engine>> + Send + Sync + 'static,
    ) -> std::io::Result<IoThreads<T>> {
        let request_size = clamp_request_size(config.request_size);
        let dispatch = Dispatch::new(config.depth.max(1), request_size, config.order, config.deadline);
        let shared = Arc::new(Shared {
            dispatch: Mutex::new(dispatch),
            facts: Mutex::new(EngineFacts { name: "none", remarks: Vec::new() }),
            on_done,
            meter,
            stage: config.stage,
            deadline: config.deadline,
        });
        // From here on an early return stops the I/O threads that run.
        let io_threads = IoThreads {
            shared: shared.clone(),
            make_engine: Box::new(make_engine),
            engine_depth: engine_depth(&config),
            thread_name: config.thread_name,
            starting: Mutex::default(),
        };
        *lock(&shared.facts) = io_threads.start_thread()?;
        io_threads.grow(config.io_threads.clamp(1, IO_THREADS_MAX));
        Ok(io_threads)
    }

    fn start_thread(&self) -> std::io::Result<EngineFacts> {
        let engine = (self.make_engine)()?;
        let facts = engine.facts();
        let index = self.shared.lock().add_thread(engine.waker(), self.engine_depth, STUCK_PER_THREAD);
        let io_thread = IoThread::new(index, engine, self.shared.clone());
        let name = format!("{}-{index}", self.thread_name);
        let thread = std::thread::Builder::new().name(name).spawn(move || io_thread.run());
        thread.map(|_| facts).inspect_err(|_| self.shared.lock().drop_thread(STUCK_PER_THREAD))
    }

    /// Starts I/O threads until there are `count`, or no more can be had.
    fn grow(&self, count: usize) {
        let _alone = lock(&self.starting);
        for index in self.count()..count {
            if let Err(error) = self.start_thread() {
                return self
                    .shared
                    .remark(format!("{index} I/O threads instead of {count}: {}", errno::text(error)));
            }
        }
    }

    /// Takes a transfer; never blocks. It is answered exactly once, unless the I/O threads are dropped first
    /// or end by a panic (its tag is dropped then), or an engine breaks that has a part of it (it is listed
    /// by [`IoThreads::stuck`] then).
    pub fn submit(&self, transfer: Transfer<T>) {
        let mut refused = None;
        self.with(|dispatch| match dispatch.is_closed() {
            true => refused = Some(transfer),
            false => dispatch.submit(transfer),
        });
        // Its tag may tell somebody: not under the lock.
        drop(refused);
    }

    /// What the engines turned out to be.
    pub fn facts(&self) -> EngineFacts {
        lock(&self.shared.facts).clone()
    }

    /// IoThreads that were started.
    pub fn count(&self) -> usize {
        self.shared.lock().thread_count()
    }

    /// Requests past their deadline, the oldest first.
    pub fn stuck(&self) -> Vec<Stuck> {
        let mut stuck = Vec::new();
        self.with(|dispatch| stuck = dispatch.stuck(Instant::now()));
        stuck
    }

    /// How long single requests to each target took so far.
    pub fn service(&self) -> Vec<(IoTarget, ServiceStats)> {
        self.shared.lock().service()
    }

    /// Switches the ordering policy while requests are under way.
    pub fn set_order(&self, order: OrderPolicy) {
        self.with(|dispatch| dispatch.set_order(order));
    }

    /// Changes the request size (bytes, see [`IoThreadsConfig::request_size`]) for transfers that come from
    /// now on.
    pub fn set_request_size(&self, request_size: u32) {
        self.with(|dispatch| dispatch.set_request_size(clamp_request_size(request_size)));
    }

    /// Changes how many I/O threads get requests, 1 to [`IO_THREADS_MAX`], and starts what is missing. Those
    /// beyond it end what they have, and then sleep. Returns how many there are now, which are fewer where no
    /// more can be started.
    pub fn use_threads(&self, io_threads: usize) -> usize {
        let io_threads = io_threads.clamp(1, IO_THREADS_MAX);
        self.grow(io_threads);
        self.with(|dispatch| dispatch.use_threads(io_threads));
        io_threads.min(self.count())
    }

    /// Changes the depth. Engines keep the size that they were opened with: a depth beyond it needs more I/O
    /// threads, or a larger `IoThreadsConfig::engine.depth` at the start.
    pub fn set_depth(&self, depth: usize) {
        self.with(|dispatch| dispatch.set_depth(depth.max(1)));
    }

    /// Changes what is shared, then gives sleeping I/O threads what they may start.
    fn with(&self, change: impl FnOnce(&mut Dispatch<T>)) {
        let mut wakes = Vec::new();
        {
            let mut dispatch = self.shared.lock();
            change(&mut dispatch);
            dispatch.release(None, Instant::now(), &mut wakes);
        }
        wakes.iter().for_each(|wake| wake());
    }
}

impl<T: Send + 'static> Drop for IoThreads<T> {
    fn drop(&mut self) {
        let mut wakes: Vec<Waker> = Vec::new();
        let dropped = self.shared.lock().close(&mut wakes);
        wakes.iter().for_each(|wake| wake());
        // Buffers go back to their pools, and files are closed: not under the lock.
        drop(dropped);
    }
}

impl<T> Shared<T> {
    /// The state stays whole at every panic that could happen under the lock.
    fn lock(&self) -> MutexGuard<'_, Dispatch<T>> {
        lock(&self.dispatch)
    }

    fn remark(&self, remark: String) {
        let mut facts = lock(&self.facts);
        if facts.remarks.len() < IO_THREADS_MAX {
            facts.remarks.push(remark);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Operations that an engine has to take: an I/O thread's share of the depth for [`TARGET_DEPTHS`] targets,
/// and what may hang; or `config.engine.depth`, if that is more. At most [`DEPTH_MAX`].
pub fn engine_depth(config: &IoThreadsConfig) -> usize {
    let share = config.depth.max(1).div_ceil(config.io_threads.clamp(1, IO_THREADS_MAX));
    share
        .saturating_mul(TARGET_DEPTHS as usize)
        .saturating_add(STUCK_PER_THREAD)
        .max(config.engine.depth)
        .min(DEPTH_MAX)
}

/// A multiple of what direct I/O asks for.
fn clamp_request_size(request_size: u32) -> u32 {
    (request_size - request_size % REQUEST_SIZE_MIN).max(REQUEST_SIZE_MIN)
}

/// A transfer under way: what of it is settled, and how much is not.
struct Assembly<T> {
    /// Before the tag, as the buffer is in [`Transfer`].
    settled: Vec<Settled>,
    tag: T,
    file: Arc<IoFile>,
    /// See `dispatch`.
    file_key: dispatch::FileKey,
    offset: u64,
    start: usize,
    len: usize,
    buffer_len: usize,
    /// Pieces that are not settled.
    left: usize,
    begun: Option<Instant>,
    ended: Option<Instant>,
    refused_uncached: bool,
}

impl<T> Assembly<T> {
    /// A piece is settled by an operation that was submitted and completed at `times`. True if it was the
    /// last.
    fn take(&mut self, piece: Settled, times: (Instant, Instant)) -> bool {
        self.begun = Some(self.begun.map_or(times.0, |begun| begun.min(times.0)));
        self.ended = Some(self.ended.map_or(times.1, |ended| ended.max(times.1)));
        self.left -= usize::from(!piece.more);
        self.settled.push(piece);
        self.left == 0
    }

    fn finish(mut self) -> TransferDone<T> {
        self.settled.sort_unstable_by_key(|piece| piece.at);
        let (mut moved, mut whole, mut error) = (0, true, None);
        for piece in &self.settled {
            if whole {
                moved += piece.moved;
            }
            whole &= piece.moved == piece.part.len();
            if let (None, Some(errno)) = (error, piece.error) {
                error = Some((errno, self.offset + (piece.at + piece.moved) as u64));
            }
        }
        let service = match (self.begun, self.ended) {
            (Some(begun), Some(ended)) => ended.saturating_duration_since(begun),
            _ => Duration::ZERO,
        };
        let parts = self.settled.into_iter().map(|piece| piece.part).collect();
        TransferDone {
            tag: self.tag,
            file: self.file,
            offset: self.offset,
            buffer: Buffer::join(parts, self.buffer_len),
            start: self.start,
            len: self.len,
            moved,
            error,
            service,
            refused_uncached: self.refused_uncached,
        }
    }
}

#[cfg(test)]
#[path = "threads_tests.rs"]
mod tests;
