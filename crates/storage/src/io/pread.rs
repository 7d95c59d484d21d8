//! The engine of threads: one blocking `preadv2`, `pwritev2` or `fdatasync` each.
//!
//! In: operations, put into a queue. Out: completions, in a second queue, in the order in which they ended.
//! Works on every kernel that haul runs on, and where io_uring is forbidden.
//!
//! Invariants: whatever is in flight has a thread or is about to get one (there may be as many threads as
//! operations), so an operation that hangs holds up nobody else. Both queues are bounded by the depth.
//! Threads are started only when all others are at work, and live as long as the engine; those of a dropped
//! engine end when their operation does, and nobody waits for them.
//!
//! Left out: giving idle threads back. The most that were ever needed at once sleep until the engine goes.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::{Errno, ReadWriteFlags};

use super::{DEPTH_MAX, Engine, EngineFacts, Full, IoDone, IoKind, IoOp, RWF_DONTCACHE, Waker};
use haul_base::errno;

/// Bytes of a thread's stack: it makes one system call from a short frame.
const STACK_LEN: usize = 128 << 10;

/// An engine of at most as many threads as operations in flight.
pub struct Pread {
    shared: Arc<Shared>,
    depth: usize,
    in_flight: usize,
    remarks: Vec<String>,
    /// A thread could not be started, and that was said.
    said: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<PreadState>,
    /// For the threads: there is work, or the engine is gone.
    work: Condvar,
    /// For the owner: something ended, or it was woken.
    news: Condvar,
}

#[derive(Default)]
struct PreadState {
    waiting: VecDeque<Job>,
    ended: VecDeque<IoDone>,
    threads: usize,
    /// Threads that wait for work, those included that were notified and do not run yet.
    idle: usize,
    woken: bool,
    closed: bool,
}

struct Job {
    op: IoOp,
    submitted: Instant,
}

impl Pread {
    /// An engine for `depth` operations in flight (1 to [`DEPTH_MAX`]); no thread is started yet.
    pub fn new(depth: usize) -> Pread {
        let depth = depth.clamp(1, DEPTH_MAX);
        Pread { shared: Arc::default(), depth, in_flight: 0, remarks: Vec::new(), said: false }
    }

    /// The same engine with a word for [`EngineFacts::remarks`].
    pub fn with_remark(mut self, remark: String) -> Pread {
        self.remarks.push(remark);
        self
    }

    /// One more thread. If that fails and there is none at all, what waits ends with `EAGAIN`; else it waits
    /// for the threads that there are.
    fn start_thread(&mut self) {
        let shared = self.shared.clone();
        let builder = std::thread::Builder::new().name("haul-pread".into()).stack_size(STACK_LEN);
        let Err(error) = builder.spawn(move || shared.run()) else { return };
        let mut state = self.shared.lock();
        state.threads -= 1;
        if !self.said {
            self.said = true;
            self.remarks.push(format!(
                "no more than {} threads could be started: {}",
                state.threads,
                errno::text(error)
            ));
        }
        if state.threads == 0 {
            let completed = Instant::now();
            let PreadState { waiting, ended, .. } = &mut *state;
            ended.extend(waiting.drain(..).map(|job| IoDone {
                op: job.op,
                result: Err(Errno::AGAIN),
                submitted: job.submitted,
                completed,
            }));
        }
    }
}

impl Engine for Pread {
    fn submit(&mut self, op: IoOp) -> Result<(), Full> {
        if self.in_flight == self.depth {
            return Err(Full(op));
        }
        self.in_flight += 1;
        let short_of_threads = {
            let mut state = self.shared.lock();
            state.waiting.push_back(Job { op, submitted: Instant::now() });
            let short = state.idle < state.waiting.len() && state.threads < self.depth;
            state.threads += usize::from(short);
            short
        };
        match short_of_threads {
            true => self.start_thread(),
            false => self.shared.work.notify_one(),
        }
        Ok(())
    }

    fn reap(&mut self, done: &mut VecDeque<IoDone>, wait: Duration) -> std::io::Result<()> {
        let nothing = |state: &mut PreadState| state.ended.is_empty() && !state.woken;
        let state = self.shared.lock();
        let waited = self.shared.news.wait_timeout_while(state, wait, nothing);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.woken = false;
        self.in_flight -= state.ended.len();
        done.append(&mut state.ended);
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn waker(&self) -> Waker {
        let shared = self.shared.clone();
        Arc::new(move || {
            shared.lock().woken = true;
            shared.news.notify_one();
        })
    }

    fn facts(&self) -> EngineFacts {
        EngineFacts { name: "pread", remarks: self.remarks.clone() }
    }
}

impl Drop for Pread {
    fn drop(&mut self) {
        let unstarted = {
            let mut state = self.shared.lock();
            state.closed = true;
            (std::mem::take(&mut state.waiting), std::mem::take(&mut state.ended))
        };
        self.shared.work.notify_all();
        // Closing files takes time: not under the lock.
        drop(unstarted);
    }
}

impl Shared {
    /// The state stays whole at every panic that could happen under the lock.
    fn lock(&self) -> MutexGuard<'_, PreadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread's life.
    fn run(&self) {
        let mut state = self.lock();
        while !state.closed {
            let Some(Job { mut op, submitted }) = state.waiting.pop_front() else {
                state.idle += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                continue;
            };
            drop(state);
            let result = carry_out(&mut op);
            let done = IoDone { op, result, submitted, completed: Instant::now() };
            state = self.lock();
            if state.closed {
                // Nobody asks any more. Memory and descriptor go, outside the lock.
                drop(state);
                drop(done);
                return;
            }
            state.ended.push_back(done);
            self.news.notify_one();
        }
    }
}

/// One system call.
fn carry_out(op: &mut IoOp) -> Result<usize, Errno> {
    op.check()?;
    let IoOp { file, kind, offset, parts, pad, uncached, .. } = op;
    let fd = file.fd.as_ref().ok_or(Errno::BADF)?;
    let flags = match uncached {
        true => ReadWriteFlags::from_bits_retain(RWF_DONTCACHE as _),
        false => ReadWriteFlags::empty(),
    };
    let last = parts.len().wrapping_sub(1);
    let slices = parts.iter_mut().enumerate().map(|(i, part)| {
        let len = part.len() + if i == last { *pad } else { 0 };
        &mut part.room_mut()[..len]
    });
    match kind {
        IoKind::Read => {
            let mut slices: Vec<_> = slices.map(IoSliceMut::new).collect();
            rustix::io::preadv2(fd, &mut slices, *offset, flags)
        }
        IoKind::Write => {
            let slices: Vec<_> = slices.map(|slice| IoSlice::new(slice)).collect();
            rustix::io::pwritev2(fd, &slices, *offset, flags)
        }
        IoKind::Sync => rustix::fs::fdatasync(fd).map(|()| 0),
    }
}
