//! Reads a source: objects through I/O threads of requests, all else on threads of its own.
//!
//! In: [`SourceOp`]s with buffers to fill. Out: completions, with payload hashed by the thread that has it at
//! hand, while it is in the cache. Every operation but the two that forget is answered exactly once, also
//! when a thread panics; after the engine is dropped, those that wait are dropped unanswered.
//! Invariants: a byte is read into a buffer only (a mapped file that shrinks would kill the process). What is
//! not the file that was announced is never read as that file. A file that ended early is a failure, never
//! filled up with zeroes. The page cache is left as it was found ([`cache`]).
//!
//! An object of an open file goes straight to the I/O threads ([`objects`]); one of a file that is not open
//! goes to a thread of the pool first, for to open may wait for a server. Bundles, looks and hashes stay with
//! the pool ([`read`]), which sees to it that a file system that hangs holds up only what lies on it.
//!
//! # What is kept, and what is not
//!
//! Kept: content, holes, mode, mtime, and symlinks as they are; owner and group, extended attributes and
//! lists where the user asks for them. Attributes are read by the walk, for the destination holds its own
//! against them, and once more of the open file: what is sent has those that were announced.
//!
//! Not kept, and counted by the walk ([`walk::NotKept`](super::walk::NotKept)):
//! - hard links: each name becomes a file of its own;
//! - fifos, sockets and devices are skipped.
//!
//! Not kept, and not counted, for to look would cost a system call per file: file flags, atime and birth
//! time, and attributes and lists that nobody asked for.
//!
//! # What a change looks like
//!
//! A file is the same as long as size, mtime, ctime and inode are. What is read counts only if a change after
//! the walk's look could not leave these as they are: a ctime that is too young for that is waited for before
//! anything is read ([`age`]). The look after the last read asks the server of a network file system,
//! whatever this host has cached.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use haul_core::entry::Timestamp;
use haul_core::stage::Stage;
use haul_core::transfer::op::SourceOp;
use rustix::time::{ClockId, clock_gettime};

use crate::blocking_pool::{self, BlockingPool, BlockingPoolConfig, Turn};
use crate::io::threads::IoThreads;
use crate::io::threads::IoThreadsConfig;
use crate::io_settings::{depth_of, io_threads_of};
use crate::{Post, SourceCompletion, SourceEngine, SourceJob, Stuck, oldest_first};
use haul_base::meter::Meter;
use mode::Modes;
use objects::{Objects, Shared};
pub use originals::Originals;
use read::Reader;
pub use read_config::ReadConfig;
pub use stat::Stamp;
pub use stat::version_of;

pub(super) mod acl;
pub mod age;
mod cache;
pub mod failure;
mod fds;
mod holes;
mod mode;
mod objects;
mod open;
mod originals;
pub(crate) mod read;
mod read_config;
pub mod roots;
pub(crate) mod stat;
pub mod store;
pub mod tree;
mod version;
pub(crate) mod view;

/// Most reading threads for one storage target.
pub const READERS_MAX: usize = 256;

/// Tells the time of day. Given from outside, so that tests can set it.
pub type WallClock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The time of day from which this kernel takes the times of files: as coarse as they are, and never ahead of
/// them.
pub fn wall_clock() -> WallClock {
    Arc::new(|| {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        Timestamp { secs: now.tv_sec, nanos: u32::try_from(now.tv_nsec).unwrap_or(0) }
    })
}

/// Reads the source of a session.
pub struct ReadEngine {
    pool: BlockingPool<SourceJob>,
    objects: Arc<Objects>,
    shared: Arc<Shared>,
    config: ReadConfig,
    /// The same at the width that it has now.
    now: ReadConfig,
}

impl ReadEngine {
    /// Starts the I/O threads and a blocking pool of `config.readers` threads (1 to [`READERS_MAX`]) for a
    /// target.
    ///
    /// # Errors
    /// Not one thread, or no I/O engine, can be started; with fewer threads than asked for it goes on.
    pub fn start(
        tree: Arc<tree::SourceTree>,
        post: Post<SourceCompletion>,
        meter: Arc<Meter>,
        config: ReadConfig,
    ) -> io::Result<ReadEngine> {
        let shared = shared(tree, post, meter, &config, cache::Pages::new());
        let io_threads = IoThreads::start(
            config.io_settings().io_threads,
            shared.meter.clone(),
            objects::on_done(&shared),
        )?;
        ReadEngine::with_io_threads(shared, io_threads, config)
    }

    /// As [`ReadEngine::start`], with engines from the caller.
    #[cfg(test)]
    fn start_with(
        tree: Arc<tree::SourceTree>,
        post: Post<SourceCompletion>,
        meter: Arc<Meter>,
        config: ReadConfig,
        pages: cache::Pages,
        engines: impl Fn() -> io::Result<Box<dyn crate::io::Engine>> + Send + Sync + 'static,
    ) -> io::Result<ReadEngine> {
        let shared = shared(tree, post, meter, &config, pages);
        let on_done = objects::on_done(&shared);
        let io_threads =
            IoThreads::start_with(config.io_settings().io_threads, shared.meter.clone(), on_done, engines)?;
        ReadEngine::with_io_threads(shared, io_threads, config)
    }

    fn with_io_threads(
        shared: Arc<Shared>,
        io_threads: IoThreads<objects::Tag>,
        config: ReadConfig,
    ) -> io::Result<ReadEngine> {
        let objects = Objects::new(shared.clone(), io_threads, config.io_settings().io_threads.request_size);
        let pool = {
            let pool_config = pool_config(&shared, &config);
            let (reader_of, objects) = (shared.clone(), objects.clone());
            let make = move || Reader::new(reader_of.clone(), objects.clone());
            let shared = shared.clone();
            BlockingPool::start(pool_config, make, move |reader, turn, job| {
                serve(reader, turn, job, &shared)
            })?
        };
        Ok(ReadEngine { pool, objects, shared, now: config.clone(), config })
    }
}

fn pool_config(shared: &Arc<Shared>, config: &ReadConfig) -> BlockingPoolConfig {
    let threads = config.readers.clamp(1, READERS_MAX);
    let shared = shared.clone();
    // Both stages are a thread's: while it has nothing to do, neither works. Where the I/O threads do the
    // work, they tell how much of the time is spent.
    let on_idle = move |waited| {
        if !shared.has_objects() {
            shared.meter.add_idle(Stage::SourceStorage, waited);
            shared.meter.add_idle(Stage::SourceHost, waited);
        }
    };
    BlockingPoolConfig {
        name: "haul-open",
        threads,
        threads_max: blocking_pool::with_spare(threads),
        deadline: config.io_settings().io_threads.deadline,
        // Told where it is spent, for a thread serves two stages.
        on_busy: Arc::new(|_| {}),
        on_idle: Arc::new(on_idle),
    }
}

fn shared(
    tree: Arc<tree::SourceTree>,
    post: Post<SourceCompletion>,
    meter: Arc<Meter>,
    config: &ReadConfig,
    pages: cache::Pages,
) -> Arc<Shared> {
    Shared::new(tree, meter, post, pages, Modes::new(config.storage.io), config.digest)
}

impl SourceEngine for ReadEngine {
    fn submit(&mut self, job: SourceJob) {
        let job = match job.op {
            SourceOp::Read { .. } => match self.objects.submit(job) {
                Ok(()) => return,
                Err(job) => job,
            },
            SourceOp::Forget { id } if self.shared.tree.forget_at_once(id) => return,
            _ => job,
        };
        let (id, label) = read::label(&self.shared.tree, &job.op);
        self.pool.submit(self.shared.tree.target_of(id), label, job);
    }

    fn set_width(&mut self, width: Option<u16>) -> u16 {
        let started = self.config.readers.clamp(1, READERS_MAX);
        let asked = width;
        let width = width.map_or(started, usize::from).clamp(1, READERS_MAX);
        self.now = match asked {
            None => self.config.clone(),
            Some(_) => self.config.with_width(width as u16),
        };
        self.pool.set_threads(width);
        let IoThreadsConfig { depth, io_threads, .. } = self.config.io_settings().io_threads;
        self.objects.io_threads().use_threads(io_threads_of(io_threads, width, started));
        self.objects.io_threads().set_depth(depth_of(depth, width, started));
        width as u16
    }

    fn reads_max(&self, object_size: u32) -> (u32, u32) {
        (self.now.reads_max(object_size), self.now.reads_total(object_size))
    }

    fn stuck(&self) -> Vec<Stuck> {
        oldest_first(self.objects.io_threads().stuck(), self.pool.stuck())
    }

    fn hurry(&self) {
        self.shared.tree.rate().lift();
    }

    fn report(&self) -> Vec<(String, String)> {
        let io_threads = self.objects.io_threads().facts();
        let mut lines = self.config.io_settings().report(&io_threads, &self.shared.modes.report());
        lines.extend(self.shared.tree.rate().report("source"));
        lines
    }
}

impl Drop for ReadEngine {
    // Not joined: a thread may hang in a read of a server that is gone.
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        self.shared.tree.rate().lift();
    }
}

fn serve(reader: &mut Reader, turn: &Turn<SourceJob>, job: SourceJob, shared: &Shared) {
    let SourceJob { op, mut buffer } = job;
    let id = buffer.as_ref().map(haul_base::buffer::Buffer::id);
    let done = catch_unwind(AssertUnwindSafe(|| reader.run(turn, &op, &mut buffer)))
        .unwrap_or_else(|_| read::broken(&op, id));
    // A thread that hung until the engine was gone tells nobody.
    if let Some(done) = done.filter(|_| !reader.stopped()) {
        (shared.post)(SourceCompletion { done, buffer });
    }
}

#[cfg(test)]
mod tests;
