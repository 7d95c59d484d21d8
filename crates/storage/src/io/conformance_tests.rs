//! What every engine is held against.
//!
//! In: a way to make an engine ([`Kind`]). The same tests run for each; those about bytes only where there
//! are files. An engine that the machine does not allow is passed over with a printed word.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use haul_core::io::IoMode;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::fault::{Faulty, What, When};
use super::null::Null;
use super::pread::Pread;
use super::uring::Uring;
use super::{Engine, EngineConfig, Full, IoDone, IoFile, IoKind, IoOp, IoTarget};
use crate::options::EngineName;
use haul_base::buffer::{Part, Pool};

/// A test that waits this long found a bug.
const PATIENCE: Duration = Duration::from_secs(60);
/// The kernel's word for the current position: what a pipe takes as an offset.
const CURRENT: u64 = u64::MAX;

struct Kind {
    make: fn(usize) -> Option<Box<dyn Engine>>,
    name: &'static str,
}

fn config(depth: usize, registered_max: u64) -> EngineConfig {
    EngineConfig { name: EngineName::Uring, depth, registered_max }
}

/// A ring, or a word that there is none here.
fn ring(depth: usize, registered_max: u64) -> Option<Box<dyn Engine>> {
    match Uring::open(&config(depth, registered_max)) {
        Ok(uring) => Some(Box::new(uring)),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

const URING: Kind = Kind { make: |depth| ring(depth, 64 << 20), name: "uring" };
const UNREGISTERED: Kind = Kind { make: |depth| ring(depth, 0), name: "uring" };
const PREAD: Kind = Kind { make: |depth| Some(Box::new(Pread::new(depth))), name: "pread" };
const NULL: Kind = Kind { make: |depth| Some(Box::new(Null::new(false, depth))), name: "null" };
const ZERO: Kind = Kind { make: |depth| Some(Box::new(Null::new(true, depth))), name: "zero" };
/// The engine that other tests put their faults into has to be right without them.
const FAULTLESS: Kind = Kind {
    make: |depth| Some(Box::new(Faulty::new(Box::new(Pread::new(depth)), Vec::new()).0)),
    name: "pread",
};

macro_rules! suite {
    ($($module:ident: $kind:ident, [$($test:ident),* $(,)?];)*) => {$(
        mod $module {
            $(#[test] fn $test() { super::$test(&super::$kind) })*
        }
    )*};
}

macro_rules! suite_with_files {
    ($($module:ident: $kind:ident;)*) => {
        suite! {$($module: $kind, [
            each_comes_back_once, full_gives_the_operation_back, a_wake_ends_the_wait, works_on_other_threads,
            nothing_to_move_is_fine, memory_of_others_is_refused,
            every_byte_is_right, the_end_of_a_file_is_a_short_read, errno_comes_as_it_is, direct_io_with_a_tail,
            uncached_works_or_is_refused, a_hang_holds_up_nobody, dropped_in_flight_is_safe,
        ];)*}
    };
}

suite_with_files! { uring: URING; uring_unregistered: UNREGISTERED; pread: PREAD; faultless: FAULTLESS; }
suite! {
    null: NULL, [
        each_comes_back_once, full_gives_the_operation_back, a_wake_ends_the_wait, works_on_other_threads,
        nothing_to_move_is_fine, memory_of_others_is_refused,
    ];
    zero: ZERO, [
        each_comes_back_once, full_gives_the_operation_back, a_wake_ends_the_wait, works_on_other_threads,
        nothing_to_move_is_fine, memory_of_others_is_refused,
    ];
}

fn io_file(fd: impl Into<OwnedFd>, mode: IoMode) -> Arc<IoFile> {
    Arc::new(IoFile {
        fd: Some(fd.into()),
        mode,
        target: IoTarget::Device(0),
        one_writer: false,
        name: "a file".into(),
    })
}

fn open(path: &Path, write: bool) -> File {
    File::options().read(true).write(write).create(write).truncate(false).open(path).unwrap()
}

/// A pipe whose reads wait until something is written, as an operation on a dead server does.
fn pipe() -> (Arc<IoFile>, File) {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    (io_file(reader, IoMode::Buffered), File::from(writer))
}

fn op(key: u64, file: &Arc<IoFile>, kind: IoKind, offset: u64, parts: Vec<Part>) -> IoOp {
    IoOp { key, file: file.clone(), kind, offset, parts, pad: 0, uncached: false }
}

/// One part of `len` bytes.
fn part(pool: &Pool, len: usize) -> Vec<Part> {
    pool.take(len).unwrap().split(0, len, len.max(1))
}

/// Parts of `len` bytes together, from several buffers, of any lengths and at any place in them.
fn scattered(pool: &Pool, rng: &mut fastrand::Rng, len: usize) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut left = len;
    loop {
        let here = if rng.bool() { left } else { rng.usize(0..=left) };
        let start = rng.usize(0..5000);
        let buffer = pool.take(start + here).unwrap();
        let part_len = if rng.bool() { here.max(1) } else { rng.usize(here / 5 + 1..=here + 1) };
        parts.extend(buffer.split(start, here, part_len));
        left -= here;
        if left == 0 {
            return parts;
        }
    }
}

fn identity(parts: &[Part]) -> Vec<(u64, usize, usize)> {
    parts.iter().map(|part| (part.slab().id, part.start(), part.len())).collect()
}

fn bytes_of(parts: &[Part]) -> Vec<u8> {
    parts.iter().flat_map(|part| part.as_slice()).copied().collect()
}

fn fill(parts: &mut [Part], bytes: &[u8]) {
    let mut at = 0;
    for part in parts {
        let len = part.len();
        part.as_mut_slice().copy_from_slice(&bytes[at..at + len]);
        at += len;
    }
}

/// Reaps until `count` are done.
fn reap(engine: &mut dyn Engine, count: usize) -> Vec<IoDone> {
    let (mut done, start) = (VecDeque::new(), Instant::now());
    while done.len() < count {
        assert!(start.elapsed() < PATIENCE, "{} of {count} came back", done.len());
        engine.reap(&mut done, PATIENCE).unwrap();
    }
    done.into()
}

/// Submits one and waits for it.
fn run(engine: &mut dyn Engine, op: IoOp) -> IoDone {
    engine.submit(op).unwrap();
    reap(engine, 1).pop().unwrap()
}

/// Goal: each operation comes back exactly once, with its key, its parts in order, and times that fit;
/// `in_flight` counts what was taken and not reaped.
/// Method: seeded kinds, lengths and parts at any number in flight, reaped now and then.
fn each_comes_back_once(kind: &Kind) {
    let dir = tempfile::tempdir().unwrap();
    let file = io_file(open(&dir.path().join("f"), true), IoMode::Buffered);
    let pool = Pool::new(256 << 20);
    let mut rng = fastrand::Rng::with_seed(1);
    for depth in [1, 2, 7, 64] {
        let Some(mut engine) = (kind.make)(depth) else { return };
        assert_eq!(engine.facts().name, kind.name);
        let mut out = HashMap::new();
        let mut done = VecDeque::new();
        for key in 0..400 {
            let len = rng.usize(0..100_000);
            let what = [IoKind::Read, IoKind::Write, IoKind::Sync][rng.usize(0..3)];
            let op = op(key, &file, what, rng.u64(0..1 << 20), scattered(&pool, &mut rng, len));
            out.insert(key, (identity(&op.parts), what, len));
            while engine.in_flight() == depth {
                engine.reap(&mut done, PATIENCE).unwrap();
            }
            engine.submit(op).unwrap();
            if rng.u8(0..4) == 0 {
                engine.reap(&mut done, Duration::ZERO).unwrap();
            }
            check(&mut done, &mut out);
            assert_eq!(engine.in_flight(), out.len());
        }
        let rest = out.len();
        done.extend(reap(&mut *engine, rest));
        check(&mut done, &mut out);
        assert_eq!((engine.in_flight(), out.len(), pool.in_use().0), (0, 0, 0));
    }

    fn check(done: &mut VecDeque<IoDone>, out: &mut HashMap<u64, (Vec<(u64, usize, usize)>, IoKind, usize)>) {
        for one in done.drain(..) {
            let (parts, kind, len) = out.remove(&one.op.key).expect("taken, and not yet back");
            assert_eq!(identity(&one.op.parts), parts);
            assert!(one.submitted <= one.completed && one.completed <= Instant::now());
            let moved = one.result.unwrap();
            assert!(
                moved <= len
                    && (kind != IoKind::Write || moved == len)
                    && (kind != IoKind::Sync || moved == 0)
            );
        }
    }
}

/// Goal: as many operations as the engine was made for are taken; one more comes back whole, and can be taken
/// when one is done.
fn full_gives_the_operation_back(kind: &Kind) {
    let dir = tempfile::tempdir().unwrap();
    let file = io_file(open(&dir.path().join("f"), true), IoMode::Buffered);
    let pool = Pool::new(16 << 20);
    for depth in [1, 3, 64] {
        let Some(mut engine) = (kind.make)(depth) else { return };
        for key in 0..depth as u64 {
            engine.submit(op(key, &file, IoKind::Write, key * 1000, part(&pool, 1000))).unwrap();
        }
        let parts = part(&pool, 77);
        let before = identity(&parts);
        let Err(Full(back)) = engine.submit(op(99, &file, IoKind::Write, 0, parts)) else {
            panic!("it was taken")
        };
        assert_eq!((back.key, identity(&back.parts), engine.in_flight()), (99, before, depth));
        let mut done = VecDeque::from(reap(&mut *engine, 1));
        engine.submit(back).unwrap();
        let left = depth + 1 - done.len();
        done.extend(reap(&mut *engine, left));
        let keys: BTreeSet<_> = done.iter().map(|one| one.op.key).collect();
        assert_eq!(keys.len(), depth + 1);
    }
}

/// Goal: a wake from another thread ends a wait with nothing in flight, also if it came before the wait, and
/// one wake ends one wait; a waker outlives its engine.
/// Method: wakes in turn with waits that would be far too long; then a wait of no length at all.
fn a_wake_ends_the_wait(kind: &Kind) {
    let Some(mut engine) = (kind.make)(4) else { return };
    let mut done = VecDeque::new();
    let waker = engine.waker();
    for round in 0..200 {
        let start = Instant::now();
        if round % 2 == 0 {
            waker();
            waker();
            engine.reap(&mut done, PATIENCE).unwrap();
        } else {
            std::thread::scope(|scope| {
                scope.spawn(|| waker());
                engine.reap(&mut done, PATIENCE).unwrap();
            });
        }
        assert!(start.elapsed() < PATIENCE && done.is_empty());
    }
    engine.reap(&mut done, Duration::ZERO).unwrap();
    drop(engine);
    waker();
}

/// Goal: an engine can be made, used and dropped on different threads, with operations in flight in between.
fn works_on_other_threads(kind: &Kind) {
    let dir = tempfile::tempdir().unwrap();
    let file = io_file(open(&dir.path().join("f"), true), IoMode::Buffered);
    let pool = Pool::new(16 << 20);
    let Some(mut engine) = (kind.make)(8) else { return };
    for round in 0..3 {
        let (file, pool) = (file.clone(), pool.clone());
        let used = std::thread::spawn(move || {
            for key in 0..4 {
                engine
                    .submit(op(round * 4 + key, &file, IoKind::Write, key * 5000, part(&pool, 5000)))
                    .unwrap();
            }
            engine
        });
        engine = used.join().unwrap();
        let waker = engine.waker();
        waker();
        let done = reap(&mut *engine, 4);
        assert!(done.iter().all(|one| one.result == Ok(5000)));
        // The wait that ended with its thread is taken up again.
        waker();
        engine.reap(&mut VecDeque::new(), PATIENCE).unwrap();
    }
    std::thread::spawn(move || drop(engine)).join().unwrap();
}

/// Goal: no parts, or parts without a byte, are moved as well, and nothing is waited for.
fn nothing_to_move_is_fine(kind: &Kind) {
    let dir = tempfile::tempdir().unwrap();
    let file = io_file(open(&dir.path().join("f"), true), IoMode::Buffered);
    let pool = Pool::new(1 << 20);
    let Some(mut engine) = (kind.make)(2) else { return };
    for what in [IoKind::Read, IoKind::Write, IoKind::Sync] {
        for parts in [Vec::new(), part(&pool, 0), [part(&pool, 0), part(&pool, 0)].concat_parts()] {
            assert_eq!(run(&mut *engine, op(0, &file, what, 0, parts)).result, Ok(0));
        }
    }
}

trait ConcatParts {
    fn concat_parts(self) -> Vec<Part>;
}

impl<const N: usize> ConcatParts for [Vec<Part>; N] {
    fn concat_parts(self) -> Vec<Part> {
        self.into_iter().flatten().collect()
    }
}

/// Goal: a pad beyond the room of the last part is refused, whatever the engine, and touches nothing.
fn memory_of_others_is_refused(kind: &Kind) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("f"), vec![7; 200_000]).unwrap();
    let file = io_file(open(&dir.path().join("f"), true), IoMode::Buffered);
    let pool = Pool::new(1 << 20);
    let Some(mut engine) = (kind.make)(2) else { return };
    let mut parts = pool.take(3000).unwrap().split(0, 3000, 1000);
    let last = parts.pop().unwrap();
    let middle = parts.pop().unwrap();
    assert_eq!(middle.room(), 1000);
    for (parts, pad) in [(vec![middle], 1), (Vec::new(), 1)] {
        let mut op = op(5, &file, IoKind::Read, 0, parts);
        op.pad = pad;
        let done = run(&mut *engine, op);
        assert_eq!((done.result, done.op.key), (Err(Errno::INVAL), 5));
    }
    assert!(last.as_slice().iter().all(|byte| *byte == 0));
}

/// Goal: every byte that is read is the file's, and every byte that is written gets there.
/// Method: seeded reads and writes of scattered parts at any depth, on two files, each opened twice, against
/// a model in memory; what overlaps with a write in flight waits. At the end the files are compared as a
/// whole.
fn every_byte_is_right(kind: &Kind) {
    const SIZE: usize = 600_000;
    let dir = tempfile::tempdir().unwrap();
    let pool = Pool::new(256 << 20);
    for depth in [1, 2, 5, 16, 64] {
        let Some(mut engine) = (kind.make)(depth) else { return };
        let mut rng = fastrand::Rng::with_seed(depth as u64);
        let paths = [dir.path().join("a"), dir.path().join("b")];
        let mut model = [vec![0u8; SIZE], vec![0u8; SIZE]];
        let mut files = Vec::new();
        for (path, bytes) in paths.iter().zip(&mut model) {
            rng.fill(bytes);
            std::fs::write(path, &bytes).unwrap();
            files.push([0, 1].map(|_| io_file(open(path, true), IoMode::Buffered)));
        }
        let mut flying: HashMap<u64, (usize, IoKind, usize, usize)> = HashMap::new();
        let mut done = VecDeque::new();
        for key in 0..500 {
            let which = rng.usize(0..2);
            let what = if rng.bool() { IoKind::Read } else { IoKind::Write };
            let from = rng.usize(0..SIZE);
            let len = if rng.bool() { rng.usize(0..3000) } else { rng.usize(0..150_000) }.min(SIZE - from);
            let clash = |(f, k, at, l): &(usize, IoKind, usize, usize)| {
                *f == which && (*k, what) != (IoKind::Read, IoKind::Read) && *at < from + len && from < at + l
            };
            while engine.in_flight() == depth || flying.values().any(clash) {
                engine.reap(&mut done, PATIENCE).unwrap();
                check(&mut done, &mut flying, &model);
            }
            let mut parts = scattered(&pool, &mut rng, len);
            if what == IoKind::Write {
                rng.fill(&mut model[which][from..from + len]);
                fill(&mut parts, &model[which][from..from + len]);
            } else {
                parts.iter_mut().for_each(|part| part.as_mut_slice().fill(0x55));
            }
            flying.insert(key, (which, what, from, len));
            engine.submit(op(key, &files[which][rng.usize(0..2)], what, from as u64, parts)).unwrap();
        }
        let rest = flying.len();
        done.extend(reap(&mut *engine, rest));
        check(&mut done, &mut flying, &model);
        for (path, bytes) in paths.iter().zip(&model) {
            assert!(std::fs::read(path).unwrap() == *bytes, "depth {depth}");
        }
        assert!(engine.facts().remarks.is_empty(), "{:?}", engine.facts());
    }

    fn check(
        done: &mut VecDeque<IoDone>,
        flying: &mut HashMap<u64, (usize, IoKind, usize, usize)>,
        model: &[Vec<u8>; 2],
    ) {
        for one in done.drain(..) {
            let (which, _, from, len) = flying.remove(&one.op.key).expect("in flight");
            assert_eq!(one.result, Ok(len));
            assert!(bytes_of(&one.op.parts) == model[which][from..from + len], "at {from}, {len} long");
        }
    }
}

/// Goal: a read across the end of a file is short, one beyond it moves nothing, and bytes after the end stay.
fn the_end_of_a_file_is_a_short_read(kind: &Kind) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    std::fs::write(&path, vec![7; 10_000]).unwrap();
    let file = io_file(open(&path, false), IoMode::Buffered);
    let pool = Pool::new(1 << 20);
    let Some(mut engine) = (kind.make)(2) else { return };
    for (offset, moved) in [(0, 10_000), (9_999, 1), (4_000, 6_000), (10_000, 0), (1 << 40, 0)] {
        for part_len in [20_000, 3_000] {
            let mut parts = pool.take(20_000).unwrap().split(0, 20_000, part_len);
            parts.iter_mut().for_each(|part| part.as_mut_slice().fill(1));
            let done = run(&mut *engine, op(0, &file, IoKind::Read, offset, parts));
            assert_eq!(done.result, Ok(moved));
            let bytes = bytes_of(&done.op.parts);
            assert!(
                bytes[..moved].iter().all(|byte| *byte == 7) && bytes[moved..].iter().all(|byte| *byte == 1)
            );
        }
    }
}

/// Goal: what the system refuses is reported with its errno, for one part and for several; the operation
/// comes back.
fn errno_comes_as_it_is(kind: &Kind) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    std::fs::write(&path, vec![7; 10_000]).unwrap();
    let pool = Pool::new(1 << 20);
    let Some(mut engine) = (kind.make)(2) else { return };
    let read_only = io_file(open(&path, false), IoMode::Buffered);
    let write_only = io_file(File::options().write(true).open(&path).unwrap(), IoMode::Buffered);
    let folder = io_file(File::open(dir.path()).unwrap(), IoMode::Buffered);
    let no_file = Arc::new(IoFile {
        fd: None,
        mode: IoMode::Buffered,
        target: IoTarget::Device(0),
        one_writer: false,
        name: "nothing".into(),
    });
    let (in_pipe, _writer) = pipe();
    for (file, what, offset, errno) in [
        (&read_only, IoKind::Write, 0, Errno::BADF),
        (&write_only, IoKind::Read, 0, Errno::BADF),
        (&folder, IoKind::Read, 0, Errno::ISDIR),
        (&no_file, IoKind::Read, 0, Errno::BADF),
        (&no_file, IoKind::Sync, 0, Errno::BADF),
        (&in_pipe, IoKind::Sync, 0, Errno::INVAL),
        (&write_only, IoKind::Write, i64::MAX as u64 + 2, Errno::INVAL),
    ] {
        // Again and again, so that the file is registered in between.
        for part_len in [4000, 1000, 4000, 1000] {
            let parts = pool.take(4000).unwrap().split(0, 4000, part_len);
            let done = run(&mut *engine, op(1, file, what, offset, parts));
            assert_eq!((done.result, done.op.parts.len()), (Err(errno), 4000 / part_len), "{what:?}");
        }
    }
}

/// Goal: direct I/O moves aligned parts, and with a pad the tail of a file of any length, without touching
/// what lies behind the pad.
/// Method: a file written direct with its pad, cut to length, read back direct and buffered.
fn direct_io_with_a_tail(kind: &Kind) {
    const ALIGN: usize = 4096;
    let dir = tempfile::tempdir().unwrap();
    let pool = Pool::new(16 << 20);
    let mut rng = fastrand::Rng::with_seed(9);
    let Some(mut engine) = (kind.make)(4) else { return };
    let mut skipped = 0;
    for (i, len) in [1, 4095, 4096, 100_000, (1 << 20) + 5].into_iter().enumerate() {
        let path = dir.path().join(i.to_string());
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::DIRECT;
        let file = match rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR) {
            Ok(fd) => io_file(fd, IoMode::Direct),
            Err(Errno::INVAL) => {
                skipped += 1;
                continue;
            }
            Err(errno) => panic!("{errno}"),
        };
        let mut bytes = vec![0; len];
        rng.fill(&mut bytes);
        let pad = len.next_multiple_of(ALIGN) - len;
        for part_len in [len.next_multiple_of(ALIGN), 8 * ALIGN] {
            let mut parts = pool.take(len).unwrap().split(0, len, part_len);
            fill(&mut parts, &bytes);
            let mut write = op(0, &file, IoKind::Write, 0, parts);
            write.pad = pad;
            assert_eq!(run(&mut *engine, write).result, Ok(len + pad));
            assert_eq!(std::fs::metadata(&path).unwrap().len(), (len + pad) as u64);
            rustix::fs::ftruncate(file.fd.as_ref().unwrap(), len as u64).unwrap();
            assert!(std::fs::read(&path).unwrap() == bytes);

            let mut parts = pool.take(len).unwrap().split(0, len, part_len);
            for part in &mut parts {
                part.room_mut().fill(0x55);
            }
            let mut read = op(0, &file, IoKind::Read, 0, parts);
            read.pad = pad;
            let mut done = run(&mut *engine, read);
            assert_eq!(done.result, Ok(len));
            assert!(bytes_of(&done.op.parts) == bytes);
            let last = done.op.parts.last_mut().unwrap();
            let behind = last.len() + pad;
            assert!(last.room_mut()[behind..].iter().all(|byte| *byte == 0x55));
        }
    }
    if skipped > 0 {
        println!(
            "skipped: {skipped} files, for the file system of {} refuses direct I/O",
            dir.path().display()
        );
    }
}

/// Goal: what is asked uncached is moved as well, or refused with `EOPNOTSUPP` and nothing else.
fn uncached_works_or_is_refused(kind: &Kind) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let file = io_file(open(&path, true), IoMode::Buffered);
    let pool = Pool::new(1 << 20);
    let Some(mut engine) = (kind.make)(2) else { return };
    let mut parts = part(&pool, 50_000);
    parts[0].as_mut_slice().fill(9);
    let mut write = op(0, &file, IoKind::Write, 0, parts);
    write.uncached = true;
    match run(&mut *engine, write).result {
        Ok(count) => assert!(count == 50_000 && std::fs::read(&path).unwrap() == vec![9; 50_000]),
        Err(errno) => {
            println!("skipped: no uncached writes here");
            assert_eq!(errno, Errno::OPNOTSUPP);
        }
    }
    std::fs::write(&path, vec![8; 50_000]).unwrap();
    let mut read = op(0, &file, IoKind::Read, 0, part(&pool, 50_000));
    read.uncached = true;
    let done = run(&mut *engine, read);
    match done.result {
        Ok(count) => assert!(count == 50_000 && bytes_of(&done.op.parts) == vec![8; 50_000]),
        Err(errno) => assert_eq!(errno, Errno::OPNOTSUPP),
    }
}

/// Goal: operations that hang do not keep others from completing, be they all but one of the depth; they
/// complete when the device comes back.
/// Method: reads of pipes that nobody writes to, more than the kernel's own limit of helping threads; reads,
/// writes and syncs past them; then the pipes are written to.
fn a_hang_holds_up_nobody(kind: &Kind) {
    const HUNG: usize = 40;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let file = io_file(open(&path, true), IoMode::Buffered);
    let pool = Pool::new(16 << 20);
    let Some(mut engine) = (kind.make)(HUNG + 1) else { return };
    let mut pipes: Vec<_> = (0..HUNG).map(|_| pipe()).collect();
    for (i, (reader, _)) in pipes.iter().enumerate() {
        engine.submit(op(i as u64, reader, IoKind::Read, CURRENT, part(&pool, 100))).unwrap();
    }
    for round in 0..100 {
        let what = [IoKind::Write, IoKind::Read, IoKind::Sync][round % 3];
        let done = run(&mut *engine, op(1000, &file, what, 0, part(&pool, 5000)));
        assert_eq!((done.op.key, done.result), (1000, Ok(if what == IoKind::Sync { 0 } else { 5000 })));
    }
    assert_eq!(engine.in_flight(), HUNG);
    for (i, (_, writer)) in pipes.iter_mut().enumerate() {
        writer.write_all(&[i as u8]).unwrap();
    }
    for done in reap(&mut *engine, HUNG) {
        assert_eq!((done.result, done.op.parts[0].as_slice()[0]), (Ok(1), done.op.key as u8));
    }
}

/// Goal: an engine can go while the system works for it: nobody waits for what hangs, memory and descriptors
/// live until it is done and no longer, and bytes that were taken out of a pipe are not put into memory of
/// others.
/// Method: writes and hung reads in flight; the pipes are fed after the engine went, and all memory must come
/// back to the pool while other buffers of it keep their bytes.
fn dropped_in_flight_is_safe(kind: &Kind) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let pool = Pool::new(64 << 20);
    for round in 0..5 {
        let Some(mut engine) = (kind.make)(16) else { return };
        let file = io_file(open(&path, true), IoMode::Buffered);
        let mut writers = Vec::new();
        for i in 0..8 {
            let (reader, writer) = pipe();
            writers.push(writer);
            engine.submit(op(i, &reader, IoKind::Read, CURRENT, part(&pool, 5000))).unwrap();
            engine.submit(op(i, &file, IoKind::Write, i << 20, part(&pool, 1 << 20))).unwrap();
        }
        if round % 2 == 0 {
            let mut done = VecDeque::new();
            engine.reap(&mut done, Duration::ZERO).unwrap();
        }
        drop(engine);
        let mut others: Vec<_> = (0..8).map(|_| pool.take(5000).unwrap()).collect();
        others.iter_mut().for_each(|buffer| buffer.as_mut_slice().fill(3));
        // A reader that is gone already breaks the pipe, which is as good.
        writers.iter_mut().for_each(|writer| drop(writer.write_all(&[9; 5000])));
        let start = Instant::now();
        while pool.in_use().0 > 8 * (64 << 10) {
            assert!(start.elapsed() < PATIENCE, "{} bytes are still out", pool.in_use().0);
            std::thread::yield_now();
        }
        assert!(others.iter().all(|buffer| buffer.as_slice().iter().all(|byte| *byte == 3)));
        // The last reader of each pipe is gone too.
        for writer in &mut writers {
            while writer.write(&[1]).is_ok() {
                assert!(start.elapsed() < PATIENCE, "a descriptor is still open");
                std::thread::yield_now();
            }
        }
    }
}

/// Goal: null touches nothing, zero fills what is read (and the pad) and nothing else.
#[test]
fn null_keeps_and_zero_fills() {
    let file = Arc::new(IoFile {
        fd: None,
        mode: IoMode::Buffered,
        target: IoTarget::Device(0),
        one_writer: false,
        name: "null://".into(),
    });
    let pool = Pool::new(1 << 20);
    for (fill_zeros, what, expected) in [
        (false, IoKind::Read, 5),
        (true, IoKind::Read, 0),
        (false, IoKind::Write, 5),
        (true, IoKind::Write, 5),
    ] {
        let mut parts = pool.take(10_000).unwrap().split(0, 10_000, 4000);
        parts.iter_mut().for_each(|part| part.room_mut().fill(5));
        let mut op = op(0, &file, what, 0, parts);
        op.pad = 100;
        let mut done = run(&mut Null::new(fill_zeros, 1), op);
        assert_eq!(done.result, Ok(10_100));
        assert!(bytes_of(&done.op.parts).iter().all(|byte| *byte == expected));
        let last = done.op.parts.last_mut().unwrap();
        assert_eq!((last.room_mut()[2099], last.room_mut()[2100]), (expected, 5));
    }
}

/// Goal: planned faults hit the operations that they name, a short transfer moves only what it says, and what
/// hangs goes on when it is released; times and keys are the caller's.
#[test]
fn faults_come_as_planned() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    std::fs::write(&path, vec![7; 10_000]).unwrap();
    let file = io_file(open(&path, true), IoMode::Buffered);
    let pool = Pool::new(1 << 20);
    let plan = vec![
        (When::Uncached, What::Fail(Errno::OPNOTSUPP)),
        (When::Nth(IoKind::Read, 1), What::Short(4500)),
        (When::Nth(IoKind::Write, 0), What::Short(100)),
        (When::Nth(IoKind::Write, 1), What::Fail(Errno::NOSPC)),
        (When::From(IoKind::Read, 3), What::Hang),
    ];
    let (mut engine, hung) = Faulty::new(Box::new(Pread::new(8)), plan);
    let read = |key| {
        let mut parts = pool.take(9000).unwrap().split(0, 9000, 3000);
        parts.iter_mut().for_each(|part| part.as_mut_slice().fill(1));
        op(key, &file, IoKind::Read, 0, parts)
    };
    assert_eq!(run(&mut engine, read(1)).result, Ok(9000));
    let short = run(&mut engine, read(2));
    assert_eq!(short.result, Ok(4500));
    let bytes = bytes_of(&short.op.parts);
    assert!(bytes[..4500].iter().all(|byte| *byte == 7) && bytes[4500..].iter().all(|byte| *byte == 1));
    let mut uncached = read(3);
    uncached.uncached = true;
    assert_eq!(run(&mut engine, uncached).result, Err(Errno::OPNOTSUPP));

    let write = |key| {
        let mut parts = part(&pool, 1000);
        parts[0].as_mut_slice().fill(0);
        op(key, &file, IoKind::Write, 0, parts)
    };
    assert_eq!(run(&mut engine, write(4)).result, Ok(100));
    assert_eq!(run(&mut engine, write(5)).result, Err(Errno::NOSPC));
    let bytes = std::fs::read(&path).unwrap();
    assert!(bytes[..100].iter().all(|byte| *byte == 0) && bytes[100..].iter().all(|byte| *byte == 7));

    let before = Instant::now();
    engine.submit(read(6)).unwrap();
    engine.submit(read(7)).unwrap();
    let after = Instant::now();
    assert_eq!(run(&mut engine, write(8)).result, Ok(1000));
    assert_eq!((hung.count(), engine.in_flight()), (2, 2));
    hung.release();
    let done = reap(&mut engine, 2);
    assert!(
        done.iter().all(|one| one.result == Ok(9000) && one.submitted >= before && one.submitted <= after)
    );
    assert_eq!(done.iter().map(|one| one.op.key).collect::<BTreeSet<_>>(), BTreeSet::from([6, 7]));
    assert_eq!(run(&mut engine, read(9)).result, Ok(9000));
}
