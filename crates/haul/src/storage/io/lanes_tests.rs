use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Condvar;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};

use haul_core::io::IoMode;

use super::*;
use crate::buffer::Pool;
use crate::job::EngineName;
use crate::storage::io::{Full, IoDone, IoOp};

/// Longest wait for something that must come: no test passes or fails by time.
const PATIENCE: Duration = Duration::from_secs(60);

fn config(lanes: usize, depth: usize, request_size: u32, order: OrderPolicy) -> LaneConfig {
    LaneConfig {
        engine: EngineConfig { name: EngineName::Pread, depth: 1, registered_max: 0 },
        lanes,
        depth,
        request_size,
        order,
        deadline: PATIENCE,
        stage: Stage::SourceStorage,
        thread_name: "test",
    }
}

/// A channel that hears of completions.
fn listener<T: Send + 'static>() -> (OnDone<T>, Receiver<TransferDone<T>>) {
    let (send, receive) = channel();
    (Arc::new(move |done| drop(send.send(done))), receive)
}

fn file(file: std::fs::File, mode: IoMode, target: u64, one_writer: bool) -> Arc<IoFile> {
    let fd = Some(OwnedFd::from(file));
    Arc::new(IoFile { fd, mode, target: Target(target), one_writer, name: format!("file-{target}").into() })
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
}

#[derive(Clone, Debug)]
struct Event {
    issued: bool,
    lane: usize,
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
            wakers: Mutex::default(),
            dawdle: false,
            deaf: false,
            broken: Vec::new(),
        }
    }

    fn start<T: Send>(self, config: LaneConfig, on_done: OnDone<T>) -> (Lanes<T>, Arc<World>) {
        let world = Arc::new(self);
        let made = world.clone();
        let make = move || -> std::io::Result<Box<dyn Engine>> { Ok(Box::new(Scripted::new(made.clone()))) };
        (Lanes::start_with(config, Arc::default(), on_done, make).unwrap(), world)
    }

    fn release(&self) {
        *self.released.lock().unwrap() = true;
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
    lane: usize,
    world: Arc<World>,
    pending: Vec<(IoOp, Fate, Instant)>,
    bell: Arc<(Mutex<bool>, Condvar)>,
}

impl Scripted {
    fn new(world: Arc<World>) -> Scripted {
        let lane = world.engines.fetch_add(1, Ordering::Relaxed);
        let engine = Scripted { lane, world, pending: Vec::new(), bell: Arc::default() };
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
            lane: self.lane,
            key: op.key,
            file: op.file.name.to_string(),
            target: op.file.target.0,
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
        self.pending.push((op, fate, Instant::now()));
        Ok(())
    }

    fn reap(&mut self, done: &mut VecDeque<IoDone>, wait: Duration) -> std::io::Result<()> {
        if self.world.broken.contains(&self.lane) {
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
                Fate::Whole | Fate::Hang => carry_out(&mut op, usize::MAX),
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
        target: Target(target),
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

/// Goal: whatever the knobs, what is written is what was given, and what is read is what lies there.
/// Method: seeded lanes, depths, request sizes and orders; a file of odd length in objects of seeded length, in
/// shuffled order, written, then read back by transfers of which the last asks for more than there is.
#[test]
fn bytes_are_exact_for_any_knobs() {
    let mut rng = fastrand::Rng::with_seed(1);
    for round in 0..60 {
        let request_size = 4096 << rng.u32(0..10);
        let order = OrderPolicy::ALL[round % 4];
        let (lanes, depth) = (rng.usize(1..6), rng.usize(1..12));
        let object = 65536 << rng.usize(0..3);
        let len = rng.usize(1..1_000_000);
        let content: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(len).collect();
        let pool = Pool::new(64 << 20);
        let (on_done, done) = listener();
        let config = config(lanes, depth, request_size, order);
        let lanes = Lanes::start(config, Arc::default(), on_done).unwrap();
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
            lanes.submit(Transfer {
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
            lanes.submit(Transfer {
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
        drop(lanes);
        assert!(done.recv_timeout(PATIENCE).is_err(), "answered once, and the threads end");
        assert_eq!(pool.in_use().0, 0);
    }
}

/// Goal: short transfers, interruptions, waits and refusals do not change a byte, in either mode, while the knobs
/// move; direct requests stay aligned.
/// Method: seeded faults in a scripted engine that asserts alignment; write, then read back, with pad.
#[test]
fn faults_change_no_byte() {
    let mut rng = fastrand::Rng::with_seed(2);
    for round in 0..80 {
        let mode = IoMode::ALL[round % 2];
        let object = K64 << rng.usize(0..3);
        let len = rng.usize(1..600_000);
        let content: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(len).collect();
        let dice = Mutex::new(fastrand::Rng::with_seed(round as u64));
        let mut world = World::new(move |op| {
            let mut dice = dice.lock().unwrap();
            if op.uncached {
                return Fate::Fail(Errno::OPNOTSUPP);
            }
            match dice.u32(0..20) {
                0..6 => Fate::Short(dice.usize(1..op.wanted().max(2))),
                6 => Fate::Fail(Errno::INTR),
                7 => Fate::Fail(Errno::AGAIN),
                _ => Fate::Whole,
            }
        });
        world.dawdle = rng.bool();
        let pool = Pool::new(64 << 20);
        let (on_done, done) = listener();
        let order = OrderPolicy::ALL[rng.usize(0..4)];
        let config = config(rng.usize(1..5), rng.usize(1..10), 4096 << rng.u32(0..10), order);
        let (lanes, _world) = world.start(config, on_done);
        let scratch = scratch();
        let target = file(scratch.try_clone().unwrap(), mode, 1, rng.bool());
        let objects = len.div_ceil(object);
        for kind in [IoKind::Write, IoKind::Read] {
            for i in 0..objects {
                let range = i * object..len.min((i + 1) * object);
                let pad =
                    if mode == IoMode::Direct { range.len().next_multiple_of(4096) - range.len() } else { 0 };
                let mut buffer = pool.take(range.len()).unwrap();
                if kind == IoKind::Write {
                    buffer.as_mut_slice().copy_from_slice(&content[range.clone()]);
                } else {
                    buffer.as_mut_slice().fill(0);
                }
                let uncached = rng.bool();
                lanes.submit(Transfer {
                    pad,
                    uncached,
                    ..transfer((i, uncached), &target, kind, range.start as u64, buffer)
                });
                match rng.u32(0..6) {
                    0 => lanes.set_order(OrderPolicy::ALL[rng.usize(0..4)]),
                    1 => lanes.set_request_size(4096 << rng.u32(0..10)),
                    2 => lanes.set_depth(rng.usize(1..10)),
                    3 => drop(lanes.use_lanes(rng.usize(1..6))),
                    _ => {}
                }
            }
            for _ in 0..objects {
                let done = done.recv_timeout(PATIENCE).unwrap();
                let (i, uncached) = done.tag;
                assert_eq!((done.moved, done.error), (done.len, None), "round {round}");
                assert_eq!(done.refused_uncached, uncached);
                let range = i * object..len.min((i + 1) * object);
                assert!(done.buffer.as_slice() == &content[range], "round {round}: {kind:?} of {i}");
            }
            if kind == IoKind::Write {
                // Direct writes ended in padding; a sink truncates as well.
                scratch.set_len(len as u64).unwrap();
                let mut there = vec![0; len];
                scratch.read_exact_at(&mut there, 0).unwrap();
                assert!(there == content, "round {round}: what was written is there");
            }
        }
    }
}

/// Goal: requests go to as many lanes as are asked for, fewer and more than at the start, and none is lost.
/// Method: an engine that holds on to what it has, so that every lane in use gets its share of the depth.
#[test]
fn lanes_come_and_go() {
    let (on_done, done) = listener();
    let (lanes, world) = World::new(|_| Fate::Hang).start(config(2, 4, 4096, OrderPolicy::None), on_done);
    let (pool, target) = (Pool::new(16 << 20), nothing("a", 1, false));
    let submit = |range: std::ops::Range<u64>| {
        for i in range {
            let buffer = pool.take(4096).unwrap();
            lanes.submit(transfer(i, &target, IoKind::Read, i * 8192, buffer));
        }
    };
    let by_lane = || {
        let issued = world.issued();
        [0, 1, 2, 3].map(|lane| issued.iter().filter(|event| event.lane == lane).count())
    };
    assert_eq!(lanes.use_lanes(1), 1);
    submit(0..4);
    world.wait_for_issues(4);
    assert_eq!(by_lane(), [4, 0, 0, 0]);
    assert_eq!((lanes.use_lanes(4), lanes.count()), (4, 4));
    lanes.set_depth(16);
    submit(4..16);
    world.wait_for_issues(16);
    assert_eq!(by_lane(), [4; 4]);
    assert_eq!((lanes.use_lanes(1), lanes.use_lanes(0), lanes.count()), (1, 1, 4));
    world.release();
    submit(16..20);
    let mut told: Vec<u64> = (0..20).map(|_| done.recv_timeout(PATIENCE).unwrap().tag).collect();
    told.sort_unstable();
    assert_eq!(told, (0..20).collect::<Vec<_>>());
    assert_eq!(by_lane(), [8, 4, 4, 4]);
}

/// Goal: a file that ends early ends the transfer there, without an error, in either mode.
/// Method: files of seeded odd length, read beyond their end, by whole and by joined requests.
#[test]
fn the_end_of_file_is_no_error() {
    let mut rng = fastrand::Rng::with_seed(3);
    for round in 0..60 {
        let len = rng.usize(0..3 * K64);
        let scratch = scratch();
        let content: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(len).collect();
        scratch.write_all_at(&content, 0).unwrap();
        let target = file(scratch, IoMode::ALL[round % 2], 1, false);
        let (on_done, done) = listener();
        let request_size = 4096 << rng.u32(0..7);
        let pool = Pool::new(1 << 20);
        let (lanes, _) =
            World::new(|_| Fate::Whole).start(config(2, 3, request_size, OrderPolicy::None), on_done);
        for i in 0..4 {
            let buffer = pool.take(K64).unwrap();
            lanes.submit(transfer(i, &target, IoKind::Read, (i * K64) as u64, buffer));
        }
        for _ in 0..4 {
            let done = done.recv_timeout(PATIENCE).unwrap();
            let there = content.get(done.tag * K64..).unwrap_or_default();
            let there = &there[..there.len().min(K64)];
            assert_eq!((done.moved, done.error), (there.len(), None), "{len} bytes");
            assert!(&done.buffer.as_slice()[..done.moved] == there);
        }
    }
}

/// Goal: an errno is told with the first byte that it stands at, of the transfers that have it and of no others.
/// Method: everything from some byte on fails (a vanished device, a full disk), or one block does; an engine
/// fails all of a request that touches it, or moves what lies before. Joined and cut requests.
#[test]
fn errors_name_their_byte() {
    const BAD: u64 = 5 * K64 as u64 + 8192;
    for (errno, to_the_end) in [(Errno::IO, false), (Errno::NOSPC, true), (Errno::NODEV, true)] {
        for partial in [false, true] {
            for request_size in [4096_u64, 16384, K64 as u64, 1 << 20] {
                let world = World::new(move |op| {
                    let end = op.offset + op.wanted() as u64;
                    let bad_end = if to_the_end { u64::MAX } else { BAD + 4096 };
                    if end <= BAD || op.offset >= bad_end {
                        // The first one waits until all are there, so that those after it are joined.
                        return if op.offset == 0 { Fate::Hang } else { Fate::Whole };
                    }
                    match partial && op.offset < BAD {
                        true => Fate::Short((BAD - op.offset) as usize),
                        false => Fate::Fail(errno),
                    }
                });
                let (on_done, done) = listener();
                let (lanes, world) =
                    world.start(config(1, 1, request_size as u32, OrderPolicy::Loose), on_done);
                let target = nothing("bad", 1, false);
                let pool = Pool::new(1 << 20);
                for i in 0..8 {
                    let buffer = pool.take(K64).unwrap();
                    lanes.submit(transfer(i, &target, IoKind::Write, i * K64 as u64, buffer));
                    world.wait_for_issues(1);
                }
                world.release();
                for _ in 0..8 {
                    let done = done.recv_timeout(PATIENCE).unwrap();
                    let start = done.tag * K64 as u64;
                    let first = if partial {
                        BAD
                    } else {
                        start + (BAD - start.min(BAD)) / request_size * request_size
                    };
                    let wanted = match done.tag {
                        5 => (first - start, Some((errno, first))),
                        6.. if to_the_end => (0, Some((errno, start))),
                        _ => (K64 as u64, None),
                    };
                    assert_eq!((done.moved as u64, done.error), wanted, "{errno} {partial} {request_size}");
                }
                let joined = world.issued().iter().any(|event| event.parts == 7);
                assert_eq!(joined, request_size == 1 << 20);
            }
        }
    }
}

/// Goal: tries are bounded, and what never succeeds is an error in the end.
/// Method: engines that always answer the same; issues are counted.
#[test]
fn tries_are_bounded() {
    for (fate, kind, errno, tries) in [
        (Fate::Fail(Errno::INTR), IoKind::Read, Errno::INTR, request::INTERRUPTED_MAX),
        (Fate::Fail(Errno::AGAIN), IoKind::Read, Errno::AGAIN, request::AGAIN_MAX),
        (Fate::Short(0), IoKind::Write, Errno::IO, request::INTERRUPTED_MAX),
    ] {
        let (on_done, done) = listener();
        let (lanes, world) = World::new(move |_| fate).start(config(1, 1, 65536, OrderPolicy::None), on_done);
        lanes.submit(transfer(
            (),
            &nothing("never", 1, false),
            kind,
            0,
            Pool::new(1 << 20).take(100).unwrap(),
        ));
        let done = done.recv_timeout(PATIENCE).unwrap();
        assert_eq!((done.moved, done.error), (0, Some((errno, 0))));
        assert_eq!(world.issued().len(), tries as usize + 1);
    }
}

/// Goal: a target that refuses uncached requests is asked once, and every transfer that wanted it hears so.
/// Method: transfers one after another, to files of one target and one of another.
#[test]
fn a_refusal_is_remembered() {
    let world = World::new(|op| match op.uncached && op.file.target == Target(1) {
        true => Fate::Fail(Errno::OPNOTSUPP),
        false => Fate::Whole,
    });
    let (on_done, done) = listener();
    let (lanes, world) = world.start(config(1, 1, 4096, OrderPolicy::None), on_done);
    let pool = Pool::new(1 << 20);
    for (target, refused) in [(1, true), (1, true), (2, false)] {
        let file = nothing("some", target, false);
        let buffer = pool.take(16384).unwrap();
        lanes.submit(Transfer { uncached: true, ..transfer((), &file, IoKind::Read, 0, buffer) });
        let done = done.recv_timeout(PATIENCE).unwrap();
        assert_eq!((done.moved, done.refused_uncached), (16384, refused));
    }
    let asked = world.issued().iter().filter(|event| event.uncached && event.target == 1).count();
    assert_eq!(asked, 1);
}

/// Goal: a request that hangs is named, the rest of its target and other targets go on, and when it comes back
/// its transfer is delivered.
/// Method: depth 1, so that the target's only slot is the one that hangs; every lane count and policy but serial
/// for its own file.
#[test]
fn a_hung_request_stops_nobody_else() {
    for (lanes, order) in [(1, OrderPolicy::None), (1, OrderPolicy::Strict), (2, OrderPolicy::Loose)] {
        let world = World::new(|op| match &*op.file.name == "hung" {
            true => Fate::Hang,
            false => Fate::Whole,
        });
        let (on_done, done) = listener();
        let config = LaneConfig { deadline: Duration::from_millis(20), ..config(lanes, 1, 65536, order) };
        let (lanes, world) = world.start(config, on_done);
        let pool = Pool::new(1 << 20);
        let submit = |name: &str, target, offset| {
            let file = nothing(name, target, false);
            lanes.submit(transfer(name.to_owned(), &file, IoKind::Read, offset, pool.take(K64).unwrap()));
        };
        submit("hung", 1, 3 * K64 as u64);
        world.wait_for_issues(1);
        for _ in 0..3 {
            submit("same", 1, 0);
            submit("other", 2, 0);
            submit("third", 3, 0);
        }
        for _ in 0..9 {
            assert_ne!(done.recv_timeout(PATIENCE).unwrap().tag, "hung");
        }
        let stuck = lanes.stuck();
        assert_eq!(stuck.len(), 1);
        assert_eq!((stuck[0].what, &*stuck[0].name, stuck[0].offset), ("read", "hung", 3 * K64 as u64));
        assert!(stuck[0].since >= Duration::from_millis(20));
        world.release();
        let last = done.recv_timeout(PATIENCE).unwrap();
        assert_eq!((&*last.tag, last.moved, last.error), ("hung", K64, None));
        assert!(last.service >= Duration::from_millis(20));
        assert_eq!(lanes.stuck(), []);
        let service: HashMap<Target, ServiceStats> = lanes.service().into_iter().collect();
        assert_eq!((service[&Target(1)].count, service[&Target(2)].count), (4, 3));
        assert!(service[&Target(1)].max >= Duration::from_millis(20));
    }
}

/// Goal: requests that hang are bounded; then their target rests, and others still go on.
/// Method: a target where everything hangs gets more than the bound.
#[test]
fn a_dead_target_rests() {
    let world = World::new(|op| match op.file.target {
        Target(1) => Fate::Hang,
        _ => Fate::Whole,
    });
    let (on_done, done) = listener();
    let config = LaneConfig { deadline: Duration::from_millis(5), ..config(2, 2, 65536, OrderPolicy::None) };
    let bound = 2 * engine_depth(&config);
    let (lanes, world) = world.start(config, on_done);
    let pool = Pool::new(64 << 20);
    let count = 100;
    for i in 0..count {
        let dead = nothing(&format!("dead-{i}"), 1, false);
        lanes.submit(transfer(1, &dead, IoKind::Read, 0, pool.take(K64).unwrap()));
    }
    wait_until(|| lanes.stuck().len() >= 2 * STUCK_PER_LANE);
    for _ in 0..20 {
        lanes.submit(transfer(2, &nothing("good", 2, false), IoKind::Read, 0, pool.take(K64).unwrap()));
        assert_eq!(done.recv_timeout(PATIENCE).unwrap().tag, 2);
    }
    let hanging = world.issued().iter().filter(|event| event.target == 1).count();
    assert!(hanging <= bound, "{hanging} hang, of at most {bound}");
    world.release();
    for _ in 0..count {
        assert_eq!(done.recv_timeout(PATIENCE).unwrap().tag, 1);
    }
}

/// Goal: what lies on targets that freeze holds up itself, and nothing else of the same file, long before any deadline.
/// Method: a file in stripes over eight targets of which three hang, more objects for each than all depths together.
#[test]
fn frozen_parts_of_a_file_hold_up_themselves() {
    const TARGETS: u64 = 8;
    let target_of = |offset: u64| offset / K64 as u64 % TARGETS;
    let world = World::new(move |op| if target_of(op.offset) < 3 { Fate::Hang } else { Fate::Whole });
    let (on_done, done) = listener();
    let deadline = Duration::from_secs(3600);
    let config = LaneConfig { deadline, ..config(2, 2, K64 as u32, OrderPolicy::None) };
    let (lanes, world) = world.start(config, on_done);
    let (pool, file) = (Pool::new(64 << 20), nothing("striped", 1, false));
    let count = TARGETS * 40;
    for i in 0..count {
        let (offset, buffer) = (i * K64 as u64, pool.take(K64).unwrap());
        let target = Target(target_of(offset));
        lanes.submit(Transfer { target, ..transfer(target, &file, IoKind::Read, offset, buffer) });
    }
    for _ in 0..count / TARGETS * (TARGETS - 3) {
        assert!(done.recv_timeout(PATIENCE).unwrap().tag >= Target(3));
    }
    assert!(lanes.stuck().is_empty());
    world.release();
    for _ in 0..count / TARGETS * 3 {
        assert!(done.recv_timeout(PATIENCE).unwrap().tag < Target(3));
    }
}

/// Goal: each ordering policy is what the papers define, at the engine: strict deals a file's offsets round-robin
/// and each lane ascends; under serial nothing of a file is in flight when its next starts; loose issues in
/// order. And no target has more than the depth in flight, nor all more than twice that.
/// Method: seeded lanes and depths, transfers in order to three files on two targets; engines record issue and
/// completion, and complete in any order.
#[test]
fn policies_hold_at_the_engines() {
    let mut rng = fastrand::Rng::with_seed(5);
    for round in 0..40 {
        let order = OrderPolicy::ALL[round % 4];
        let (lane_count, depth) = (rng.usize(1..6), rng.usize(1..9));
        let mut world = World::new(|_| Fate::Whole);
        world.dawdle = true;
        let (on_done, done) = listener();
        let (lanes, world) = world.start(config(lane_count, depth, 65536, order), on_done);
        let files = [nothing("a", 1, false), nothing("b", 1, true), nothing("c", 2, false)];
        let pool = Pool::new(64 << 20);
        let count = 20;
        for i in 0..count {
            for file in &files {
                let buffer = pool.take(2 * K64).unwrap();
                lanes.submit(transfer((), file, IoKind::Write, (i * 2 * K64) as u64, buffer));
            }
        }
        for _ in 0..3 * count {
            assert_eq!(done.recv_timeout(PATIENCE).unwrap().moved, 2 * K64);
        }
        let trace = world.trace.lock().unwrap().clone();
        let mut flying: HashMap<(usize, u64), Event> = HashMap::new();
        for event in &trace {
            if !event.issued {
                assert!(flying.remove(&(event.lane, event.key)).is_some());
                continue;
            }
            let of_file = flying.values().filter(|other| other.file == event.file).count();
            assert!(order != OrderPolicy::Serial || of_file == 0, "serial");
            assert!(event.file != "b" || of_file == 0, "one writer");
            flying.insert((event.lane, event.key), event.clone());
            let at_target = flying.values().filter(|other| other.target == event.target).count();
            assert!(at_target <= depth && flying.len() <= 2 * depth, "{at_target} at a depth of {depth}");
        }
        for (i, file) in files.iter().enumerate() {
            let issued: Vec<Event> =
                trace.iter().filter(|e| e.issued && *e.file == *file.name).cloned().collect();
            assert_eq!(issued.len(), 2 * count);
            let ascends = |events: &[Event]| events.is_sorted_by_key(|event| event.offset);
            match order {
                OrderPolicy::Strict => {
                    for lane in 0..lane_count {
                        let own: Vec<Event> = issued.iter().filter(|e| e.lane == lane).cloned().collect();
                        assert!(ascends(&own));
                        for event in own {
                            assert_eq!((event.offset as usize / K64 + i) % lane_count, lane);
                        }
                    }
                }
                OrderPolicy::Serial | OrderPolicy::Loose => assert!(ascends(&issued), "{order}"),
                OrderPolicy::None => {}
            }
        }
    }
}

/// Goal: a file with one writer has one write in flight, and does not hold up other files.
/// Method: its first write hangs; reads of it and writes to another file complete meanwhile.
#[test]
fn one_writer_holds_up_its_file_alone() {
    let world = World::new(|op| match &*op.file.name == "one" && op.kind == IoKind::Write {
        true => Fate::Hang,
        false => Fate::Whole,
    });
    let (on_done, done) = listener();
    let (lanes, world) = world.start(config(3, 8, 65536, OrderPolicy::None), on_done);
    let (one, many) = (nothing("one", 1, true), nothing("many", 1, false));
    let pool = Pool::new(64 << 20);
    for i in 0..5 {
        for (tag, file, kind) in
            [("held", &one, IoKind::Write), ("read", &one, IoKind::Read), ("many", &many, IoKind::Write)]
        {
            lanes.submit(transfer(tag, file, kind, i * K64 as u64, pool.take(K64).unwrap()));
        }
    }
    for _ in 0..10 {
        assert_ne!(done.recv_timeout(PATIENCE).unwrap().tag, "held");
    }
    let writes = |event: &&Event| event.file == "one" && event.kind == IoKind::Write;
    assert_eq!(world.issued().iter().filter(writes).count(), 1);
    world.release();
    for _ in 0..5 {
        assert_eq!(done.recv_timeout(PATIENCE).unwrap().tag, "held");
    }
}

/// Goal: sleeping lanes are woken once for each request that can start, none for what cannot.
/// Method: engines that hang and count; the number of wakes is held against the number of requests.
#[test]
fn a_wake_for_each_request_that_starts() {
    let (on_done, done) = listener();
    let (lanes, world) = World::new(|_| Fate::Hang).start(config(8, 6, 65536, OrderPolicy::None), on_done);
    let asleep = || lanes.shared.lock().asleep() == 8;
    let pool = Pool::new(64 << 20);
    let file = nothing("f", 1, false);
    wait_until(asleep);
    assert_eq!(world.wakes.load(Ordering::Relaxed), 0);
    lanes.submit(transfer((), &file, IoKind::Read, 0, pool.take(K64).unwrap()));
    world.wait_for_issues(1);
    wait_until(asleep);
    assert_eq!(world.wakes.load(Ordering::Relaxed), 1);
    lanes.submit(transfer((), &file, IoKind::Read, 1 << 30, pool.take(4 * K64).unwrap()));
    world.wait_for_issues(5);
    wait_until(asleep);
    assert_eq!(world.wakes.load(Ordering::Relaxed), 5);
    // One slot is left.
    lanes.submit(transfer((), &file, IoKind::Read, 2 << 30, pool.take(9 * K64).unwrap()));
    world.wait_for_issues(6);
    wait_until(asleep);
    assert_eq!((world.issued().len(), world.wakes.load(Ordering::Relaxed)), (6, 6));
    let lanes_used: std::collections::HashSet<usize> =
        world.issued().iter().map(|event| event.lane).collect();
    assert_eq!(lanes_used.len(), 6, "a share of one each");
    world.release();
    for _ in 0..3 {
        done.recv_timeout(PATIENCE).unwrap();
    }
}

/// Goal: no wake is lost.
/// Method: engines that sleep until they are woken, whatever their time; transfers one at a time and in bursts.
#[test]
fn no_wake_is_lost() {
    for order in OrderPolicy::ALL {
        let mut world = World::new(|_| Fate::Whole);
        world.deaf = true;
        let (on_done, done) = listener();
        let (lanes, _world) = world.start(config(4, 3, 65536, order), on_done);
        let pool = Pool::new(64 << 20);
        let mut rng = fastrand::Rng::with_seed(9);
        for _ in 0..2000 {
            let burst = if rng.bool() { 1 } else { rng.u64(1..10) };
            for i in 0..burst {
                let file = nothing("f", rng.u64(0..3), rng.bool());
                lanes.submit(transfer((), &file, IoKind::Write, i * K64 as u64, pool.take(K64).unwrap()));
            }
            for _ in 0..burst {
                done.recv_timeout(PATIENCE).unwrap();
            }
        }
    }
}

/// Goal: a callback that panics costs its own transfer only.
/// Method: one lane, and every second callback panics.
#[test]
fn a_panic_in_the_callback_is_survived() {
    let (send, done) = channel();
    let on_done: OnDone<u64> = Arc::new(move |done| {
        assert!(done.tag % 2 == 0, "as planned");
        send.send(done.tag).unwrap();
    });
    let (lanes, _) = World::new(|_| Fate::Whole).start(config(1, 2, 65536, OrderPolicy::None), on_done);
    let pool = Pool::new(1 << 20);
    for i in 0..6 {
        let buffer = pool.take(100).unwrap();
        lanes.submit(transfer(i, &nothing("f", 1, false), IoKind::Read, 0, buffer));
    }
    for i in [0, 2, 4] {
        assert_eq!(done.recv_timeout(PATIENCE).unwrap(), i);
    }
}

/// Goal: dropped lanes begin nothing more, leak no buffer, and wait for nobody.
/// Method: a request that hangs and others behind it; then the lanes are dropped, and later it comes back.
#[test]
fn dropped_lanes_leave_nothing_behind() {
    let (on_done, done) = listener();
    let (lanes, world) = World::new(|_| Fate::Hang).start(config(2, 1, 65536, OrderPolicy::None), on_done);
    let pool = Pool::new(1 << 20);
    for i in 0..5 {
        lanes.submit(transfer(i, &nothing("f", 1, false), IoKind::Write, 0, pool.take(100).unwrap()));
    }
    world.wait_for_issues(1);
    drop(lanes);
    assert_eq!(pool.in_use().0, K64 as u64, "what was not begun is back");
    world.release();
    let first = done.recv_timeout(PATIENCE).unwrap();
    assert_eq!((first.tag, first.moved), (0, 100));
    drop(first);
    assert!(done.recv_timeout(PATIENCE).is_err(), "the threads end");
    assert_eq!((pool.in_use().0, world.issued().len()), (0, 1));
}

/// Goal: a broken engine does not take work from the others; when all are broken, every transfer fails.
/// Method: one broken of two, then two of two.
#[test]
fn broken_engines_are_given_up() {
    for broken in [vec![0], vec![0, 1]] {
        for order in [OrderPolicy::None, OrderPolicy::Strict] {
            let mut world = World::new(|_| Fate::Whole);
            world.broken = broken.clone();
            let (on_done, done) = listener();
            let (lanes, _world) = world.start(config(2, 2, 65536, order), on_done);
            wait_until(|| lanes.facts().remarks.len() == broken.len());
            wait_until(|| lanes.shared.lock().broken() == broken.len());
            let pool = Pool::new(1 << 20);
            for i in 0..10 {
                let buffer = pool.take(100).unwrap();
                lanes.submit(transfer((), &nothing("f", 1, false), IoKind::Read, i * K64 as u64, buffer));
            }
            let wanted = |offset| match broken.len() {
                1 => (100, None),
                _ => (0, Some((Errno::IO, offset))),
            };
            for _ in 0..10 {
                let done = done.recv_timeout(PATIENCE).unwrap();
                assert_eq!((done.moved, done.error), wanted(done.offset));
            }
        }
    }
}

/// Goal: a lane's time is idle while it has nothing, and busy while it has.
/// Method: a request that hangs for as long as it takes until the meter moved.
#[test]
fn time_is_counted() {
    let world = Arc::new(World::new(|_| Fate::Hang));
    let (made, meter) = (world.clone(), Arc::new(Meter::default()));
    let (on_done, done) = listener();
    let make = move || -> std::io::Result<Box<dyn Engine>> { Ok(Box::new(Scripted::new(made.clone()))) };
    let config = config(1, 1, 65536, OrderPolicy::None);
    let lanes = Lanes::start_with(config, meter.clone(), on_done, make).unwrap();
    let read = || meter.read()[Stage::SourceStorage as usize];
    wait_until(|| read().starved > 0);
    assert_eq!(read().busy, 0);
    let buffer = Pool::new(1 << 20).take(100).unwrap();
    lanes.submit(transfer((), &nothing("f", 1, false), IoKind::Read, 0, buffer));
    world.wait_for_issues(1);
    wait_until(|| read().busy > 0);
    world.release();
    done.recv_timeout(PATIENCE).unwrap();
}
