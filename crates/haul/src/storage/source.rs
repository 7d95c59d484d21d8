//! Reads a source: threads that take operations, and post what became of them.
//!
//! In: [`SourceOp`]s with buffers to fill. Out: completions, with payload hashed by the thread that read it,
//! while it is in the cache. Every operation but the two that forget is answered exactly once, also when a
//! thread panics; after the engine is dropped, those that wait are dropped unanswered.
//! Invariants: a byte is read by `pread` only (a mapped file that shrinks would kill the process). What is
//! not the file that was announced is never read as that file. A file that ended early is a failure, never
//! filled up with zeroes.
//!
//! # What is kept, and what is not
//!
//! Kept: content, holes, mode, mtime, and symlinks as they are; owner and group where the user asks for them.
//!
//! Not kept, and counted by the walk ([`walk::NotKept`](super::walk::NotKept)):
//! - hard links: each name becomes a file of its own;
//! - fifos, sockets and devices are skipped.
//!
//! Not kept, and not counted, for to look would cost a system call per file: extended attributes, ACLs, file
//! flags, atime and birth time.
//!
//! # What a change looks like
//!
//! A file is the same as long as size, mtime, ctime and inode are. A ctime younger than 2 s
//! ([`CTIME_GRAIN`]) proves nothing yet: file systems keep it as coarsely as 2 s, so that a second change
//! might not show. The clocks of this host and of a file server are taken to agree to within that. A network
//! file system that caches attributes shows other hosts' changes as late as its cache does.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crossbeam_channel::{Receiver, Sender, bounded};
use haul_core::entry::Timestamp;
use haul_core::stage::Stage;

use crate::meter::Meter;
use crate::storage::{Post, SourceCompletion, SourceEngine, SourceJob};
use read::Reader;

pub mod failure;
mod holes;
mod read;
pub mod roots;
pub(in crate::storage) mod stat;
pub mod tree;

/// Operations that wait for a thread at most; beyond, `submit` waits until one is taken.
pub const QUEUE_MAX: usize = 4096;
/// Most reading threads.
pub const READERS_MAX: usize = 256;
/// How old a ctime must be before an unchanged one proves that nothing changed: as coarsely as any file
/// system keeps it.
pub const CTIME_GRAIN: Duration = Duration::from_secs(2);
/// The same on file systems of this kernel: they take ctime from its tick, 10 ms at most.
pub const CTIME_GRAIN_LOCAL: Duration = Duration::from_millis(50);

/// Tells the time of day. Given from outside, so that tests can set it.
pub type WallClock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The time of day of this host.
pub fn wall_clock() -> WallClock {
    Arc::new(|| match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => {
            let secs = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
            Timestamp { secs, nanos: since.subsec_nanos() }
        }
        // A clock before 1970 is not set; no ctime will be held to be recent.
        Err(_) => Timestamp::default(),
    })
}

/// Reads with plain `pread` on threads of its own.
pub struct PreadEngine {
    jobs: Sender<SourceJob>,
    stopped: Arc<AtomicBool>,
}

impl PreadEngine {
    /// Starts `readers` threads (1 to [`READERS_MAX`]).
    ///
    /// Errors: not one thread can be started; with fewer than asked for it goes on.
    pub fn start(
        tree: Arc<tree::SourceTree>,
        post: Post<SourceCompletion>,
        meter: Arc<Meter>,
        readers: usize,
        clock: WallClock,
    ) -> io::Result<PreadEngine> {
        let (jobs, queue) = bounded(QUEUE_MAX);
        let stopped = Arc::new(AtomicBool::new(false));
        for i in 0..readers.clamp(1, READERS_MAX) {
            let reader = Reader::new(tree.clone(), meter.clone(), clock.clone(), stopped.clone());
            let (queue, post, meter) = (queue.clone(), post.clone(), meter.clone());
            let work = move || serve(reader, &queue, &post, &meter);
            match thread::Builder::new().name(format!("haul-read-{i}")).spawn(work) {
                Ok(_) => {}
                Err(_) if i > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(PreadEngine { jobs, stopped })
    }
}

impl SourceEngine for PreadEngine {
    fn submit(&mut self, job: SourceJob) {
        self.jobs.send(job).expect("the threads live as long as the engine");
    }
}

impl Drop for PreadEngine {
    // Not joined: a thread may hang in a read of a server that is gone.
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}

fn serve(mut reader: Reader, queue: &Receiver<SourceJob>, post: &Post<SourceCompletion>, meter: &Meter) {
    loop {
        let waited = Instant::now();
        let Ok(SourceJob { op, mut buffer }) = queue.recv() else { return };
        // Both stages are this thread's: while it has nothing to do, neither works.
        let waited = waited.elapsed();
        meter.add_idle(Stage::SourceStorage, waited);
        meter.add_idle(Stage::SourceHost, waited);
        if reader.stopped() {
            continue;
        }
        let id = buffer.as_ref().map(crate::buffer::Buffer::id);
        let done = catch_unwind(AssertUnwindSafe(|| reader.run(&op, &mut buffer)))
            .unwrap_or_else(|_| read::broken(&op, id));
        if let Some(done) = done {
            post(SourceCompletion { done, buffer });
        }
    }
}

#[cfg(test)]
mod tests;
