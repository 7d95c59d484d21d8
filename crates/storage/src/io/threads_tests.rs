use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Condvar;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};

use haul_core::io::IoMode;

use super::*;
use crate::io::{Full, IoDone, IoOp};
use crate::options::EngineName;
use haul_base::buffer::Pool;

#[path = "threads_tests/trouble.rs"]
mod trouble;
#[path = "threads_tests/turns.rs"]
mod turns;

/// Longest wait for something that must come: no test passes or fails by time.
const PATIENCE: Duration = Duration::from_secs(60);

fn config(io_threads: usize, depth: usize, request_size: u32, order: OrderPolicy) -> IoThreadsConfig {
    IoThreadsConfig {
        engine: EngineConfig { name: EngineName::Pread, depth: 1, registered_max: 0 },
        io_threads,
        depth,
        request_size,
        order,
        deadline: PATIENCE,
        stage: Stage::SourceStorage,
        thread_name: "test",
    }
}

/// A channel that hears of completions.
fn listener<T: Send + 'static>() -> (Post<TransferDone<T>>, Receiver<TransferDone<T>>) {
    let (send, receive) = channel();
    (Arc::new(move |done| drop(send.send(done))), receive)
}

fn file(file: std::fs::File, mode: IoMode, target: u64, one_writer: bool) -> Arc<IoFile> {
    let fd = Some(OwnedFd::from(file));
    Arc::new(IoFile {
        fd,
        mode,
        target: IoTarget::Device(target),
        one_writer,
        name: format!("file-{target}").into(),
    })
}

fn scratch() -> std::fs::File {
    tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR").to_owned() + "/../../target").unwrap()
}

/// What a scripted engine does with an operation.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Whole,
    /// So many bytes at most.
    Short(usize),
    Fail(Errno),
    /// Nothing until [`World::release`].
    Hang,
    /// Handing it over blocks until [`World::release`], as FUSE may have it.
    Block,
}

#[derive(Clone, Debug)]
struct Event {
    issued: bool,
    io_thread: usize,
    key: u64,
    file: String,
    target: u64,
    kind: IoKind,
    offset: u64,
    parts: usize,
    uncached: bool,
}

/// What the scripted engines of one test share.
struct World {
    script: Box<dyn Fn(&IoOp) -> Fate + Send + Sync>,
    trace: Mutex<Vec<Event>>,
    rng: Mutex<fastrand::Rng>,
    engines: AtomicUsize,
    wakes: AtomicUsize,
    released: Mutex<bool>,
    unblocked: Condvar,
    wakers: Mutex<Vec<Waker>>,
    /// Completions come when they come; else all at once.
    dawdle: bool,
    /// `reap` waits until it is woken, however short its time is.
    deaf: bool,
    /// Engines of these numbers fail.
    broken: Vec<usize>,
}

impl World {
    fn new(script: impl Fn(&IoOp) -> Fate + Send + Sync + 'static) -> World {
        World {
            script: Box::new(script),
            trace: Mutex::default(),
            rng: Mutex::new(fastrand::Rng::with_seed(7)),
            engines: AtomicUsize::new(0),
            wakes: AtomicUsize::new(0),
            released: Mutex::new(false),
            unblocked: Condvar::new(),
            wakers: Mutex::default(),
            dawdle: false,
            deaf: false,
            broken: Vec::new(),
        }
    }

    fn start<T: Send>(
        self,
        config: IoThreadsConfig,
        on_done: Post<TransferDone<T>>,
    ) -> (IoThreads<T>, Arc<World>) {
        let world = Arc::new(self);
        let made = world.clone();
        let make = move || -> std::io::Result<Box<dyn Engine>> { Ok(Box::new(Scripted::new(made.clone()))) };
        (IoThreads::start_with(config, Arc::default(), on_done, make).unwrap(), world)
    }

    fn release(&self) {
        *self.released.lock().unwrap() = true;
        self.unblocked.notify_all();
        self.wakers.lock().unwrap().iter().for_each(|wake| wake());
    }

    fn issued(&self) -> Vec<Event> {
        self.trace.lock().unwrap().iter().filter(|event| event.issued).cloned().collect()
    }

    fn wait_for_issues(&self, count: usize) {
        wait_until(|| self.issued().len() >= count);
    }
}

fn wait_until(condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "it never came");
        std::thread::yield_now();
    }
}

/// An engine that does what the script says, and records it.
struct Scripted {
    io_thread: usize,
    world: Arc<World>,
    pending: Vec<(IoOp, Fate, Instant)>,
    bell: Arc<(Mutex<bool>, Condvar)>,
}

impl Scripted {
    fn new(world: Arc<World>) -> Scripted {
        let io_thread = world.engines.fetch_add(1, Ordering::Relaxed);
        let engine = Scripted { io_thread, world, pending: Vec::new(), bell: Arc::default() };
        engine.world.wakers.lock().unwrap().push(engine.bell());
        engine
    }

    fn bell(&self) -> Waker {
        let bell = self.bell.clone();
        Arc::new(move || {
            *bell.0.lock().unwrap() = true;
            bell.1.notify_all();
        })
    }

    fn record(&self, issued: bool, op: &IoOp) {
        self.world.trace.lock().unwrap().push(Event {
            issued,
            io_thread: self.io_thread,
            key: op.key,
            file: op.file.name.to_string(),
            target: op.file.target.device(),
            kind: op.kind,
            offset: op.offset,
            parts: op.parts.len(),
            uncached: op.uncached,
        });
    }
}

impl Engine for Scripted {
    fn submit(&mut self, op: IoOp) -> Result<(), Full> {
        if op.file.mode == IoMode::Direct {
            assert!(op.offset.is_multiple_of(4096) && op.wanted().is_multiple_of(4096));
            let last = op.parts.len() - 1;
            assert!(op.parts[..last].iter().all(|part| part.len().is_multiple_of(4096)));
        }
        let fate = (self.world.script)(&op);
        if self.world.dawdle {
            // Who does not keep the others from issuing meanwhile is overtaken.
            let pause = self.world.rng.lock().unwrap().u64(0..100);
            std::thread::sleep(Duration::from_micros(pause));
        }
        self.record(true, &op);
        if matches!(fate, Fate::Block) {
            let released = self.world.released.lock().unwrap();
            drop(self.world.unblocked.wait_while(released, |released| !*released).unwrap());
        }
        self.pending.push((op, fate, Instant::now()));
        Ok(())
    }

    fn reap(&mut self, done: &mut VecDeque<IoDone>, wait: Duration) -> std::io::Result<()> {
        if self.world.broken.contains(&self.io_thread) {
            return Err(std::io::Error::other("as planned"));
        }
        let released = *self.world.released.lock().unwrap();
        let mut ready: Vec<usize> = (0..self.pending.len())
            .filter(|i| released || !matches!(self.pending[*i].1, Fate::Hang))
            .collect();
        if ready.is_empty() {
            let wait = if self.world.deaf { PATIENCE * 2 } else { wait };
            let woken = self.bell.0.lock().unwrap();
            let (mut woken, _) = self.bell.1.wait_timeout_while(woken, wait, |woken| !*woken).unwrap();
            *woken = false;
            return Ok(());
        }
        if self.world.dawdle {
            let mut rng = self.world.rng.lock().unwrap();
            rng.shuffle(&mut ready);
            ready.truncate(rng.usize(0..=2));
            drop(rng);
            std::thread::yield_now();
        }
        ready.sort_unstable();
        for i in ready.into_iter().rev() {
            let (mut op, fate, submitted) = self.pending.remove(i);
            let result = match fate {
                Fate::Whole | Fate::Hang | Fate::Block => carry_out(&mut op, usize::MAX),
                Fate::Short(most) => carry_out(&mut op, most),
                Fate::Fail(errno) => Err(errno),
            };
            self.record(false, &op);
            done.push_back(IoDone { op, result, submitted, completed: Instant::now() });
        }
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.pending.len()
    }

    fn waker(&self) -> Waker {
        let (bell, world) = (self.bell(), self.world.clone());
        Arc::new(move || {
            world.wakes.fetch_add(1, Ordering::Relaxed);
            bell();
        })
    }

    fn facts(&self) -> EngineFacts {
        EngineFacts { name: "scripted", remarks: Vec::new() }
    }
}

/// Moves at most `most` bytes, part by part; all of them if there is no file.
fn carry_out(op: &mut IoOp, most: usize) -> Result<usize, Errno> {
    let wanted = op.wanted();
    let IoOp { file, kind, offset, parts, pad, .. } = op;
    let Some(fd) = &file.fd else { return Ok(wanted.min(most)) };
    let (mut moved, last) = (0, parts.len() - 1);
    for (i, part) in parts.iter_mut().enumerate() {
        let len = part.len() + if i == last { *pad } else { 0 };
        let slice = &mut part.room_mut()[..len.min(most - moved)];
        let count = match kind {
            IoKind::Read => rustix::io::pread(fd, &mut *slice, *offset + moved as u64)?,
            IoKind::Write => rustix::io::pwrite(fd, slice, *offset + moved as u64)?,
            IoKind::Sync => 0,
        };
        moved += count;
        if count < len {
            break;
        }
    }
    Ok(moved)
}

/// No file at all: for what matters but bytes.
fn nothing(name: &str, target: u64, one_writer: bool) -> Arc<IoFile> {
    Arc::new(IoFile {
        fd: None,
        mode: IoMode::Buffered,
        target: IoTarget::Device(target),
        one_writer,
        name: name.into(),
    })
}

fn transfer<T>(tag: T, file: &Arc<IoFile>, kind: IoKind, offset: u64, buffer: Buffer) -> Transfer<T> {
    let len = buffer.as_slice().len();
    let (file, target) = (file.clone(), file.target);
    Transfer { tag, file, target, kind, offset, buffer, start: 0, len, pad: 0, uncached: false }
}

const K64: usize = 65536;

/// Goal: whatever the settings, what is written is what was given, and what is read is what lies there.
/// Method: seeded I/O threads, depths, request sizes and orders; a file of odd length in objects of seeded
/// length, in shuffled order, written, then read back by transfers of which the last asks for more than there
/// is.
#[test]
fn bytes_are_exact_for_any_settings() {
    let mut rng = fastrand::Rng::with_seed(1);
    for round in 0..60 {
        let request_size = 4096 << rng.u32(0..10);
        let order = OrderPolicy::ALL[round % 4];
        let (io_threads, depth) = (rng.usize(1..6), rng.usize(1..12));
        let object = 65536 << rng.usize(0..3);
        let len = rng.usize(1..1_000_000);
        let content: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(len).collect();
        let pool = Pool::new(64 << 20);
        let (on_done, done) = listener();
        let config = config(io_threads, depth, request_size, order);
        let io_threads = IoThreads::start(config, Arc::default(), on_done).unwrap();
        let scratch = scratch();
        let target = file(scratch.try_clone().unwrap(), IoMode::Buffered, 1, rng.bool());
        let mut objects: Vec<usize> = (0..len.div_ceil(object)).collect();
        if rng.bool() {
            rng.shuffle(&mut objects);
        }
        for &i in &objects {
            let range = i * object..len.min((i + 1) * object);
            let start = rng.usize(0..100);
            let mut buffer = pool.take(start + range.len()).unwrap();
            buffer.as_mut_slice()[start..].copy_from_slice(&content[range.clone()]);
            io_threads.submit(Transfer {
                tag: i,
                file: target.clone(),
                target: target.target,
                kind: IoKind::Write,
                offset: range.start as u64,
                buffer,
                start,
                len: range.len(),
                pad: 0,
                uncached: rng.bool(),
            });
        }
        for _ in &objects {
            let done = done.recv_timeout(PATIENCE).unwrap();
            assert_eq!((done.moved, done.error), (done.len, None));
        }
        let mut there = vec![0; len];
        scratch.read_exact_at(&mut there, 0).unwrap();
        assert!(there == content, "round {round}: what was written is there");
        for &i in &objects {
            io_threads.submit(Transfer {
                tag: i,
                file: target.clone(),
                target: target.target,
                kind: IoKind::Read,
                offset: (i * object) as u64,
                buffer: pool.take(object).unwrap(),
                start: 0,
                len: object,
                pad: 0,
                uncached: false,
            });
        }
        for _ in &objects {
            let done = done.recv_timeout(PATIENCE).unwrap();
            let range = done.tag * object..len.min((done.tag + 1) * object);
            assert_eq!((done.moved, done.error), (range.len(), None));
            assert!(done.buffer.as_slice()[..done.moved] == content[range], "round {round}");
        }
        drop(io_threads);
        assert!(done.recv_timeout(PATIENCE).is_err(), "answered once, and the threads end");
        assert_eq!(pool.in_use().0, 0);
    }
}
