//! Objects through the I/O threads: modes, sizes and errors.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;

use haul_core::io::{IoMode, IoPolicy};
use rustix::io::Errno;

use super::pages::disk_dir;
use super::*;
use crate::io::fault::{Faulty, Hung, What, When};
use crate::io::{Engine, EngineConfig, EngineFacts, Full, IoDone, IoFile, IoKind, IoOp, Waker};
use crate::options::EngineName;
use crate::source::cache::Pages;

/// Bytes of an object in these tests.
const OBJECT: u64 = 65536;

/// A bench whose one I/O thread has an engine with faults, and the handle of what hangs.
fn faulty(io: IoPolicy, plan: Vec<(When, What)>) -> (Bench, Hung) {
    let handle = Arc::new(Mutex::new(None));
    let kept = handle.clone();
    let temp = disk_dir().unwrap_or_else(|| tempfile::tempdir().expect("tempdir"));
    let bench = Bench::start(temp, tomorrow(), |tree, post, meter| {
        let mut config = config(1);
        config.storage = StorageOptions {
            io,
            threads: Some(1),
            request_size: Some(OBJECT as u32),
            deadline_ms: Some(50),
            ..Default::default()
        };
        ReadEngine::start_with(tree, post, meter, config, Pages::new(), move || {
            // Threads, so that tests do not depend on what the kernel allows.
            let inner = EngineConfig { name: EngineName::Pread, depth: 64, registered_max: 0 };
            let (engine, hung) = Faulty::new(crate::io::open(&inner)?, plan.clone());
            *kept.lock().expect("unpoisoned") = Some(hung);
            Ok(Box::new(engine))
        })
    });
    let hung = handle.lock().expect("unpoisoned").take().expect("the I/O thread has an engine");
    (bench, hung)
}

impl Bench {
    /// Has all objects of a file read, one submitted after the other.
    fn submit_all(&mut self, id: FileId, size: u64) -> usize {
        let offsets: Vec<u64> = (0..size).step_by(OBJECT as usize).collect();
        for &offset in &offsets {
            let len = (size - offset).min(OBJECT) as u32;
            let tail = offset + u64::from(len) == size;
            let op =
                SourceOp::Read { id, generation: G0, offset, len, tail, whole: false, target: TargetId(0) };
            let buffer = Some(self.pool.take(len as usize).expect("room"));
            self.engine.submit(SourceJob { op, buffer });
        }
        offsets.len()
    }

    /// Takes `count` completions: the offsets that were read well, with their bytes held against `content`;
    /// and the failures.
    fn take_all(&mut self, count: usize, content: &[u8]) -> (Vec<u64>, Vec<(u64, wire::Failure)>) {
        let (mut good, mut failed) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let completion = self.done.recv_timeout(Duration::from_secs(60)).expect("answered");
            let SourceDone::Read { offset, len, result, .. } = completion.done else { panic!() };
            let buffer = completion.buffer.expect("the buffer comes back");
            assert_eq!(buffer.as_slice().len(), len as usize);
            match result {
                Ok(ok) => {
                    assert!(buffer.as_slice() == &content[offset as usize..][..len as usize], "at {offset}");
                    let tail = offset + u64::from(len) == content.len() as u64;
                    assert_eq!(
                        ok.cvs,
                        digest::chaining_values(
                            haul_core::digest::DigestKind::Blake3,
                            offset,
                            buffer.as_slice(),
                            tail
                        )
                    );
                    good.push(offset);
                }
                Err(failure) => failed.push((offset, failure)),
            }
        }
        good.sort_unstable();
        (good, failed)
    }
}

/// Drops a file's pages, so that storage has to answer.
fn uncache(bench: &Bench, name: &str) {
    let file = fs::File::open(bench.path(name)).expect("open");
    file.sync_all().expect("sync");
    super::pages::cache_exactly(&file, &[]);
}

/// Goal: files of any size are read right in either mode, first and last byte and all between.
/// Method: sizes around pages, objects and the smallest file that is read direct, with and without pages in
/// the cache.
#[test]
fn any_size_is_read_in_any_mode() {
    const MIN: u64 = crate::source::objects::DIRECT_FILE_MIN;
    for io in IoPolicy::ALL {
        let (mut bench, _) = faulty(io, Vec::new());
        for (i, size) in [1, 4095, 65536, 65537, MIN - 1, MIN, MIN + 1, MIN + 511, MIN + 4096, 2 * MIN - 1]
            .into_iter()
            .enumerate()
        {
            let content = random(size as usize, size);
            let name = format!("f{i}");
            let id = aged(&mut bench, &name, &content);
            for cold in [true, false] {
                if cold {
                    uncache(&bench, &name);
                }
                let count = bench.submit_all(id, size);
                let (good, failed) = bench.take_all(count, &content);
                assert_eq!((good.len(), failed), (count, Vec::new()), "{io:?} {size}");
                assert_eq!(bench.look(id, G0), Ok(Look::Same));
            }
            let whole = bench.read(id, 0, size as u32, size);
            assert_eq!(
                read_result(&whole).as_ref().expect("reads").cvs,
                [*blake3::hash(&content).as_bytes()]
            );
        }
        let report = bench.engine.report();
        let mode = &report.iter().find(|(name, _)| name == "source io").expect("told").1;
        match io {
            IoPolicy::Buffered => assert_eq!(mode, "buffered (asked for)"),
            _ => assert!(mode.starts_with("direct ("), "{mode}"),
        }
    }
}

/// Goal: an error of one request is told with operation, byte and path, and nothing else is lost.
/// Method: 40 objects; the seventh request fails with each errno.
#[test]
fn one_error_loses_one_object() {
    let size = 40 * OBJECT - 77;
    let content = random(size as usize, 20);
    for (errno, cause) in [
        (Errno::IO, "Input/output error"),
        (Errno::NODEV, "No such device"),
        (Errno::STALE, "Stale file handle"),
    ] {
        for io in [IoPolicy::Buffered, IoPolicy::Direct] {
            let (mut bench, _) = faulty(io, vec![(When::Nth(IoKind::Read, 6), What::Fail(errno))]);
            let id = aged(&mut bench, "f", &content);
            uncache(&bench, "f");
            // The first one alone, so that the file is open and the order of the others is known.
            assert!(read_result(&bench.read(id, 0, OBJECT as u32, size)).is_ok());
            let count = bench.submit_all(id, size);
            let (good, failed) = bench.take_all(count, &content);
            assert_eq!(failed.len(), 1, "{failed:?}");
            assert_eq!(good.len(), count - 1);
            let (offset, failure) = &failed[0];
            assert_eq!(&*failure.text, format!("read at byte {offset} of f: {cause}"));
            assert_eq!((failure.kind, failure.errno), (wire::FailureKind::Read, errno.raw_os_error()));
            // Once more, as the machine does at the end.
            let len = (size - offset).min(OBJECT) as u32;
            assert!(read_result(&bench.read(id, *offset, len, size)).is_ok());
        }
    }
}

/// Goal: interrupted, refused for a moment, or short: the bytes come all the same.
/// Method: each happens to several requests of 40 objects, in each mode.
#[test]
fn passing_troubles_are_no_failures() {
    let size = 40 * OBJECT - 77;
    let content = random(size as usize, 21);
    for what in [What::Fail(Errno::INTR), What::Fail(Errno::AGAIN), What::Short(8192), What::Short(10_000)] {
        for io in [IoPolicy::Buffered, IoPolicy::Direct] {
            let plan = [3, 4, 9, 20].map(|nth| (When::Nth(IoKind::Read, nth), what)).to_vec();
            let (mut bench, _) = faulty(io, plan);
            let id = aged(&mut bench, "f", &content);
            uncache(&bench, "f");
            let count = bench.submit_all(id, size);
            let (good, failed) = bench.take_all(count, &content);
            assert_eq!((good.len(), failed), (count, Vec::new()), "{io:?} {what:?}");
        }
    }
}

/// Goal: a direct read that is refused within an object is made again through the cache, and is no word on
/// the file system: direct I/O ends within objects where a file shrank.
/// Method: the second object's request is short, and what is asked for then is refused.
#[test]
fn a_refusal_within_an_object_is_of_that_file() {
    let size = 40 * OBJECT - 77;
    let content = random(size as usize, 28);
    let read = |nth| When::Nth(IoKind::Read, nth);
    let plan = vec![(read(1), What::Short(8192)), (read(2), What::Fail(Errno::INVAL))];
    let (mut bench, _) = faulty(IoPolicy::Direct, plan);
    let id = aged(&mut bench, "f", &content);
    uncache(&bench, "f");
    for i in 0..3 {
        let completion = bench.read(id, i * OBJECT, OBJECT as u32, size);
        assert!(read_result(&completion).is_ok(), "{:?}", completion.done);
        let payload = completion.buffer.expect("comes back");
        assert!(payload.as_slice() == &content[(i * OBJECT) as usize..][..OBJECT as usize]);
    }
    let open = bench.tree.open_file(id).expect("open");
    assert!(open.direct().is_none(), "of this file");
    assert!(bench.engine.shared.modes.may_be_direct(open.dev()), "not of the others");
}

/// Goal: a file that ends early is a failure that says where, in each mode, and never zeroes.
/// Method: a file cut within an object after the first read; every object read.
#[test]
fn a_shortened_file_is_a_failure_in_each_mode() {
    let size = 40 * OBJECT;
    let content = random(size as usize, 22);
    for io in IoPolicy::ALL {
        let (mut bench, _) = faulty(io, Vec::new());
        let id = aged(&mut bench, "f", &content);
        uncache(&bench, "f");
        assert!(read_result(&bench.read(id, 0, OBJECT as u32, size)).is_ok());
        let end = 30 * OBJECT + 12_345;
        truncate(&bench.path("f"), end);
        let count = bench.submit_all(id, size);
        let (good, failed) = bench.take_all(count, &content);
        assert_eq!(good.len(), 30, "{io:?}");
        assert_eq!(failed.len(), 10, "{io:?}");
        for (offset, failure) in failed {
            let at = offset.max(end);
            assert_eq!(&*failure.text, format!("read at byte {at} of f: the file is shorter than it was"));
            assert_eq!(failure.kind, wire::FailureKind::Changed);
        }
        assert_eq!(bench.look(id, G0), Ok(Look::Changed));
        let mode = bench.engine.report().into_iter().find(|(name, _)| name == "source io").expect("told").1;
        assert!(!mode.contains("refused"), "a file that shrank is no word on direct I/O: {mode}");
    }
}

/// Goal: a file system that refuses direct reads is no error: all is read through the cache, and the report
/// says why.
/// Method: from the first or the fifth request on, every direct read is refused; asked for direct or auto.
#[test]
fn refused_direct_reads_are_made_buffered() {
    let size = 40 * OBJECT - 77;
    let content = random(size as usize, 23);
    for io in [IoPolicy::Auto, IoPolicy::Direct] {
        let plan = vec![(When::Nth(IoKind::Read, 0), What::Fail(Errno::INVAL))];
        let (mut bench, _) = faulty(io, plan);
        let id = aged(&mut bench, "f", &content);
        uncache(&bench, "f");
        let first = bench.read(id, 0, OBJECT as u32, size);
        assert!(read_result(&first).is_ok(), "{:?}", first.done);
        let count = bench.submit_all(id, size);
        let (good, failed) = bench.take_all(count, &content);
        assert_eq!((good.len(), failed), (count, Vec::new()));
        let mode = bench.engine.report().into_iter().find(|(name, _)| name == "source io").expect("told").1;
        assert_eq!(mode, "buffered (direct is refused: a read was refused: Invalid argument)");
    }
    // Not the first one: those in flight are made again too.
    let plan = vec![(When::From(IoKind::Read, 4), What::Fail(Errno::INVAL))];
    let (mut bench, _) = faulty(IoPolicy::Direct, plan);
    let id = aged(&mut bench, "f", &content);
    uncache(&bench, "f");
    for i in 0..4 {
        assert!(read_result(&bench.read(id, i * OBJECT, OBJECT as u32, size)).is_ok());
    }
    let failure =
        read_result(&bench.read(id, 4 * OBJECT, OBJECT as u32, size)).clone().expect_err("refused twice");
    assert_eq!(&*failure.text, "read at byte 262144 of f: Invalid argument");
}

/// Goal: an engine that refuses to leave the cache alone is asked once; from then on we clean up ourselves.
/// Method: every such request is refused; the pages of the file after a second round.
#[test]
fn refused_help_with_the_cache_is_made_up_for() {
    let size = 16 * OBJECT;
    let content = random(size as usize, 27);
    let plan = vec![(When::Uncached, What::Fail(Errno::OPNOTSUPP))];
    let (mut bench, _) = faulty(IoPolicy::Buffered, plan);
    let id = aged(&mut bench, "f", &content);
    for round in 0..2 {
        uncache(&bench, "f");
        assert!(read_result(&bench.read(id, 0, OBJECT as u32, size)).is_ok());
        let count = bench.submit_all(id, size);
        let (good, failed) = bench.take_all(count, &content);
        assert_eq!((good.len(), failed), (count, Vec::new()));
        let file = fs::File::open(bench.path("f")).expect("open");
        let absent = Pages::new().absent(file.as_fd(), 0, size);
        // The object by which it was learnt stays behind.
        let learnt = if round == 0 { OBJECT } else { 0 };
        assert_eq!(absent, vec![learnt..size], "round {round}");
    }
}

/// Goal: a request that hangs is named with operation, file and byte, and nothing else waits for it.
/// Method: the fifth request hangs; all others come; it is released, and comes too.
#[test]
fn a_hung_request_is_named_and_others_go_on() {
    let size = 12 * OBJECT;
    let content = random(size as usize, 24);
    let (mut bench, hung) = faulty(IoPolicy::Buffered, vec![(When::Nth(IoKind::Read, 4), What::Hang)]);
    let id = aged(&mut bench, "dir-f", &content);
    let count = bench.submit_all(id, size);
    let (good, failed) = bench.take_all(count - 1, &content);
    assert_eq!((good.len(), failed), (count - 1, Vec::new()));
    let missing =
        (0..size).step_by(OBJECT as usize).find(|offset| !good.contains(offset)).expect("one hangs");
    let started = Instant::now();
    let stuck = loop {
        if let Some(stuck) = bench.engine.stuck().pop() {
            break stuck;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "it is named");
        std::thread::yield_now();
    };
    assert_eq!((stuck.what, &*stuck.name, stuck.offset), ("read", "dir-f", missing));
    hung.release();
    let (good, failed) = bench.take_all(1, &content);
    assert_eq!((good, failed), (vec![missing], Vec::new()));
}

/// An engine that writes down in which mode it was asked, and which can answer direct reads through the page
/// cache, as some file systems do.
struct Watching {
    inner: Box<dyn Engine>,
    modes: Arc<Mutex<Vec<IoMode>>>,
    /// Read instead of the file that is open for direct reads.
    instead: Option<PathBuf>,
    replaced: HashMap<u64, Arc<IoFile>>,
}

impl Engine for Watching {
    fn submit(&mut self, mut op: IoOp) -> Result<(), Full> {
        self.modes.lock().expect("unpoisoned").push(op.file.mode);
        if let (IoMode::Direct, Some(path)) = (op.file.mode, &self.instead) {
            let fd = Some(fs::File::open(path).expect("open").into());
            let (mode, target, name) = (IoMode::Direct, op.file.target, op.file.name.clone());
            let file = Arc::new(IoFile { fd, mode, target, one_writer: false, name });
            self.replaced.insert(op.key, std::mem::replace(&mut op.file, file));
        }
        self.inner.submit(op)
    }

    fn reap(&mut self, done: &mut VecDeque<IoDone>, wait: Duration) -> io::Result<()> {
        self.inner.reap(done, wait)?;
        for one in done {
            if let Some(file) = self.replaced.remove(&one.op.key) {
                one.op.file = file;
            }
        }
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }

    fn facts(&self) -> EngineFacts {
        self.inner.facts()
    }
}

/// A bench that tells the mode of each request. `instead`: the name of the file that is read through the
/// cache where direct reads are asked for.
fn watching(io: IoPolicy, instead: Option<&str>) -> Option<(Bench, Arc<Mutex<Vec<IoMode>>>)> {
    let modes: Arc<Mutex<Vec<IoMode>>> = Arc::default();
    let seen = modes.clone();
    let temp = disk_dir()?;
    let instead = instead.map(|name| temp.path().join(name));
    let bench = Bench::start(temp, tomorrow(), |tree, post, meter| {
        let mut config = config(1);
        let request_size = Some(OBJECT as u32);
        config.storage = StorageOptions { io, threads: Some(1), request_size, ..Default::default() };
        ReadEngine::start_with(tree, post, meter, config, Pages::new(), move || {
            let inner = EngineConfig { name: EngineName::Pread, depth: 64, registered_max: 0 };
            let inner = crate::io::open(&inner)?;
            let (modes, instead) = (seen.clone(), instead.clone());
            Ok(Box::new(Watching { inner, modes, instead, replaced: HashMap::new() }))
        })
    });
    Some((bench, modes))
}

/// Goal: direct reads are for what storage has to answer: not for objects that are cached whole, nor for
/// small files, nor where they were not asked for.
/// Method: a file with its first half cached and one page of the second, read in each mode; a small file.
#[test]
fn cached_objects_and_small_files_are_read_buffered() {
    let size = 32 * OBJECT;
    let content = random(size as usize, 25);
    for io in IoPolicy::ALL {
        let Some((mut bench, modes)) = watching(io, None) else { return };
        let id = aged(&mut bench, "f", &content);
        let small = aged(&mut bench, "small", &content[..16 * OBJECT as usize - 1]);
        uncache(&bench, "small");
        let file = fs::File::open(bench.path("f")).expect("open");
        file.sync_all().expect("sync");
        let pages = size as usize / rustix::param::page_size();
        let cached: Vec<bool> = (0..pages).map(|i| i < pages / 2 || i == pages / 2 + 3).collect();
        super::pages::cache_exactly(&file, &cached);
        let count = bench.submit_all(id, size);
        let (good, failed) = bench.take_all(count, &content);
        assert_eq!((good.len(), failed), (count, Vec::new()));
        let taken = std::mem::take(&mut *modes.lock().expect("unpoisoned"));
        let direct = taken.iter().filter(|mode| **mode == IoMode::Direct).count();
        assert_eq!(direct, if io == IoPolicy::Buffered { 0 } else { 16 }, "{io:?}");
        let count = bench.submit_all(small, 16 * OBJECT - 1);
        let (good, failed) = bench.take_all(count, &content[..16 * OBJECT as usize - 1]);
        assert_eq!((good.len(), failed), (count, Vec::new()));
        assert!(modes.lock().expect("unpoisoned").iter().all(|mode| *mode == IoMode::Buffered), "{io:?}");
    }
}

/// Goal: where direct reads leave pages behind, these go, and the file system is read through the cache from
/// then on.
/// Method: an engine that answers the first direct reads through the cache.
#[test]
fn direct_reads_through_the_cache_are_given_up() {
    let size = 32 * OBJECT;
    let content = random(size as usize, 26);
    let Some((mut bench, modes)) = watching(IoPolicy::Direct, Some("f")) else { return };
    let id = aged(&mut bench, "f", &content);
    uncache(&bench, "f");
    assert!(read_result(&bench.read(id, 0, OBJECT as u32, size)).is_ok());
    let file = fs::File::open(bench.path("f")).expect("open");
    let first = Pages::new().absent(file.as_fd(), 0, OBJECT);
    assert_eq!(first, vec![0..OBJECT], "the pages of the first object are gone");
    let count = bench.submit_all(id, size);
    let (good, failed) = bench.take_all(count, &content);
    assert_eq!((good.len(), failed), (count, Vec::new()));
    let modes = modes.lock().expect("unpoisoned");
    assert_eq!(modes[0], IoMode::Direct);
    assert!(modes[1..].iter().all(|mode| *mode == IoMode::Buffered));
}

/// Goal: the report names engine, mode, sizes and order, each with its reason.
#[test]
fn the_report_names_each_choice() {
    let (bench, _) = faulty(IoPolicy::Buffered, Vec::new());
    let report = bench.engine.report();
    let of = |name: &str| report.iter().find(|pair| pair.0 == name).map(|pair| &*pair.1);
    assert_eq!(of("source engine"), Some("pread"));
    assert_eq!(of("source io"), Some("buffered (asked for)"));
    assert_eq!(of("source io threads"), Some("1 (as asked)"));
    assert_eq!(of("source depth"), Some("16 (enough for any target with requests of this size)"));
    assert_eq!(of("source request size"), Some("65536 bytes (as asked)"));
    assert_eq!(of("source order"), Some("none (nothing has to wait for another)"));
}

/// Goal: a read over which an I/O thread panics is answered with a failure, once, and others go on.
/// Method: panics before the answer is made, and in the I/O thread itself, by the name of the file.
#[test]
fn a_panic_is_a_failed_read() {
    for (point, ends_all) in [("panic~take_up", false), ("panic~io_thread", true)] {
        let (mut bench, _) = faulty(IoPolicy::Buffered, Vec::new());
        let content = random(OBJECT as usize, 1);
        let (bad, good) = (aged(&mut bench, point, &content), aged(&mut bench, "good", &content));
        for _ in 0..2 {
            let done = bench.read(bad, 0, OBJECT as u32, 2 * OBJECT);
            let SourceDone::Read { result, .. } = done.done else { panic!() };
            let failure = result.expect_err("it panicked");
            assert!(failure.text.contains("internal error"), "{point}: {failure:?}");
        }
        let done = bench.read(good, 0, OBJECT as u32, 2 * OBJECT);
        let SourceDone::Read { result, .. } = done.done else { panic!() };
        assert_eq!(result.is_err(), ends_all, "{point}");
        drop(done.buffer);
        assert_eq!(bench.pool.in_use().0, 0);
        assert!(bench.done.try_recv().is_err(), "{point}: answered twice");
    }
}
