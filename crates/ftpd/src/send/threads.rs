//! Blocks of MODE E from several threads, each with connections of its own.
//!
//! In: connections, and a feed with much left. Out: the blocks that one thread would send, in an order of
//! chance. What must hold: what [`super`] says, of all connections together; the first thread that fails ends
//! all; none outlives the transfer, whoever ends it; the client is heard all the while, and no thread but the
//! one that hears it says anything to it.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use haul_gridftp::mode_e::Header;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::{Feed, Piece, Turn, send_blocks};
use crate::control::{Abort, Control};
use crate::data::Conn;
use crate::progress::Progress;
use crate::transfer::Stop;

/// What is shorter comes from one thread: it is over before others are there.
const LEN_MIN: u64 = 64 << 20;
/// More gain little: what they have in common is the way out of this host.
const THREADS_MAX: usize = 4;
/// How often it is looked how far the others are.
const TICK: Duration = Duration::from_millis(100);

/// How many threads send `left` bytes over so many connections, if it is more than one.
pub(super) fn count(conns: usize, left: u64) -> Option<usize> {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let count = conns.min(processors).min(THREADS_MAX);
    (count > 1 && left >= LEN_MIN).then_some(count)
}

/// What the threads share.
struct Shared<'a> {
    feed: Mutex<Left<'a>>,
    file: Option<OwnedFd>,
    moved: AtomicU64,
    /// Threads that have ended.
    ended: AtomicUsize,
    /// Why the first one failed that did.
    failed: Mutex<Option<Stop>>,
    quits: AtomicBool,
    /// Ready when all are to end.
    quit: OwnedFd,
    /// Ready when one has.
    told: OwnedFd,
}

struct Left<'a> {
    feed: &'a mut (dyn Feed + Send),
    ends: Box<dyn Iterator<Item = Header> + Send>,
    is_over: bool,
}

/// Sends all of `feed` through `conns` from `count` threads, and hears the client meanwhile.
///
/// # Errors
/// It was not all.
pub(super) fn send(
    control: &mut Control,
    conns: &mut [Conn],
    feed: &mut (dyn Feed + Send),
    progress: &Progress,
    count: usize,
) -> Result<(), Stop> {
    let fd = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(unmade);
    let file = feed.file().map(|fd| fd.try_clone_to_owned()).transpose().map_err(Stop::Data)?;
    let ends = Box::new(Header::ends(conns.len() as u64, false)?);
    let shared = Shared {
        feed: Mutex::new(Left { feed, ends, is_over: false }),
        file,
        moved: AtomicU64::new(0),
        ended: AtomicUsize::new(0),
        failed: Mutex::new(None),
        quits: AtomicBool::new(false),
        quit: fd()?,
        told: fd()?,
    };
    thread::scope(|scope| {
        // They get their connections when it is known how many they are: the system may refuse some.
        let mut senders = Vec::with_capacity(count);
        let mut refused = None;
        for _ in 0..count {
            let (give, get) = channel::<&mut [Conn]>();
            let shared = &shared;
            let run = move || get.into_iter().for_each(|conns| shared.send(conns));
            match thread::Builder::new().name("send".into()).spawn_scoped(scope, run) {
                Ok(_) => senders.push(give),
                Err(error) => refused = Some(error),
            }
        }
        if let (true, Some(error)) = (senders.is_empty(), refused) {
            return Err(Stop::Data(error));
        }
        let each = conns.len().div_ceil(senders.len());
        let parts = conns.chunks_mut(each);
        let count = parts.len();
        for (conns, give) in parts.zip(&senders) {
            let _ = give.send(conns);
        }
        drop(senders);
        let watched = shared.watch(control, progress, count);
        shared.end_all();
        watched
    })?;
    match lock(&shared.failed).take() {
        Some(stop) => Err(stop),
        None => Ok(()),
    }
}

fn unmade(errno: rustix::io::Errno) -> Stop {
    Stop::Data(errno.into())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared<'_> {
    /// Waits for `count` threads, and hears the client.
    fn watch(&self, control: &mut Control, progress: &Progress, count: usize) -> Result<(), Stop> {
        let mut known = 0;
        loop {
            let moved = self.moved.load(Ordering::Relaxed);
            if moved > known {
                progress.add(usize::try_from(moved - known).unwrap_or(usize::MAX));
                known = moved;
            }
            if self.ended.load(Ordering::Acquire) == count {
                return Ok(());
            }
            let until = progress.deadline().min(Instant::now() + TICK);
            match control.wait(&[(self.told.as_fd(), PollFlags::IN)], until, Some(progress)) {
                Ok(_) => {}
                Err(Abort::Late) if Instant::now() < progress.deadline() => {}
                Err(abort) => return Err(abort.into()),
            }
            let _ = rustix::io::read(&self.told, &mut [0; 8]);
        }
    }

    /// One thread's work.
    fn send(&self, conns: &mut [Conn]) {
        if let Err(stop) = send_blocks(conns, &mut One(self)) {
            lock(&self.failed).get_or_insert(stop);
            self.end_all();
        }
        self.ended.fetch_add(1, Ordering::Release);
        let _ = rustix::io::write(&self.told, &1_u64.to_ne_bytes());
    }

    fn end_all(&self) {
        self.quits.store(true, Ordering::Release);
        let _ = rustix::io::write(&self.quit, &1_u64.to_ne_bytes());
    }
}

/// One of several.
struct One<'s, 'f>(&'s Shared<'f>);

impl Turn for One<'_, '_> {
    fn next(&mut self) -> Result<Option<Piece>, Stop> {
        let mut left = lock(&self.0.feed);
        if left.is_over {
            return Ok(None);
        }
        let piece = left.feed.next()?;
        left.is_over = piece.is_none();
        Ok(piece)
    }
    fn end(&mut self) -> Header {
        lock(&self.0.feed).ends.next().expect("one for each connection")
    }
    fn file(&self) -> Option<BorrowedFd<'_>> {
        self.0.file.as_ref().map(OwnedFd::as_fd)
    }
    fn moved(&self, len: usize) {
        self.0.moved.fetch_add(len as u64, Ordering::Relaxed);
    }
    fn wait(&mut self, wanted: &[(BorrowedFd<'_>, PollFlags)]) -> Result<Vec<bool>, Stop> {
        let mut fds: Vec<PollFd<'_>> =
            wanted.iter().map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
        fds.push(PollFd::new(&self.0.quit, PollFlags::IN));
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(unmade(errno)),
        }
        // Nobody hears of this one: who ended all said why.
        if self.0.quits.load(Ordering::Acquire) {
            return Err(Stop::Missing("The transfer was ended"));
        }
        Ok(fds[..wanted.len()].iter().map(|fd| !fd.revents().is_empty()).collect())
    }
}
