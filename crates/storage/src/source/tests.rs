use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use blake3::hazmat::HasherExt;
use crossbeam_channel::{Receiver, unbounded};
use haul_core::digest::{DigestKind, Subtree};
use haul_core::entry::{Fingerprint, Name};
use haul_core::extents::ExtentMap;
use haul_core::ids::{DirId, FileId, Generation, TargetId};
use haul_core::metadata::Values;
use haul_core::transfer::op::{BundleFile, Look, SourceDone, SourceOp};
use haul_core::transfer::source::OnChange;
use haul_core::wire;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::tree::SourceTree;
use super::view::Place;
use super::*;
use crate::options::StorageOptions;
use crate::walk::{Walk, WalkItem};
use haul_base::buffer::Pool;
use haul_base::digest;

mod changed;
mod objects;
mod originals;
pub(super) mod pages;

const G0: Generation = Generation(0);
const G1: Generation = Generation(1);

/// One source directory, its tree, and an engine with a clock that stands a day ahead of it all.
struct Bench {
    temp: tempfile::TempDir,
    tree: Arc<SourceTree>,
    base: Place,
    engine: ReadEngine,
    done: Receiver<SourceCompletion>,
    meter: Arc<Meter>,
    pool: Pool,
    next_id: u64,
}

fn tomorrow() -> WallClock {
    let now = wall_clock()();
    Arc::new(move || Timestamp { secs: now.secs + 86_400, nanos: 0 })
}

fn config(readers: usize) -> ReadConfig {
    ReadConfig { readers, storage: StorageOptions::default(), memory: 256 << 20, digest: DigestKind::Blake3 }
}

impl Bench {
    fn new() -> Bench {
        Bench::with(1, tomorrow())
    }

    fn with(readers: usize, clock: WallClock) -> Bench {
        Bench::start(tempfile::tempdir().expect("tempdir"), clock, |tree, post, meter| {
            ReadEngine::start(tree, post, meter, config(readers))
        })
    }

    fn start(
        temp: tempfile::TempDir,
        clock: WallClock,
        start: impl FnOnce(Arc<SourceTree>, Post<SourceCompletion>, Arc<Meter>) -> io::Result<ReadEngine>,
    ) -> Bench {
        Bench::of(temp, clock, OnChange::Retry, start)
    }

    fn of(
        temp: tempfile::TempDir,
        clock: WallClock,
        changed: OnChange,
        start: impl FnOnce(Arc<SourceTree>, Post<SourceCompletion>, Arc<Meter>) -> io::Result<ReadEngine>,
    ) -> Bench {
        let keeps = crate::attributes::Keeps { xattrs: true, acls: true };
        let tree = Arc::new(SourceTree::with_clock(clock).on_change(changed).keeping(keeps));
        let base = tree.add_base(Arc::new(fs::File::open(temp.path()).expect("open").into()), b"");
        let (sender, done) = unbounded();
        let post: Post<SourceCompletion> = Arc::new(move |completion| {
            let _ = sender.send(completion);
        });
        let meter = Arc::new(Meter::default());
        let engine = start(tree.clone(), post, meter.clone()).expect("starts");
        Bench { temp, tree, base, engine, done, meter, pool: Pool::new(1 << 30), next_id: 1 }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    /// Makes a file and registers it as the walk does.
    fn file(&mut self, name: &str, content: &[u8]) -> FileId {
        fs::write(self.path(name), content).expect("write");
        self.register(name)
    }

    fn register(&mut self, name: &str) -> FileId {
        let id = FileId(self.next_id);
        self.next_id += 1;
        let dir = self.tree.dir_fd(self.base).expect("base");
        let name = Name::new(name.as_bytes()).expect("legal");
        let seen = stat::look_at(dir.as_fd(), &name).expect("there");
        let subject = crate::attributes::Subject::Name(dir.as_fd(), &name);
        let (values, _) = crate::attributes::read(subject, seen.kind, self.tree.keeps());
        self.tree.add_entry(id, self.base, name, Some(&seen), &values);
        id
    }

    fn run(&mut self, op: SourceOp, len: Option<usize>) -> SourceCompletion {
        let buffer = len.map(|len| self.pool.take(len).expect("room"));
        self.engine.submit(SourceJob { op, buffer });
        self.done.recv_timeout(Duration::from_secs(60)).expect("every operation is answered")
    }

    fn read(&mut self, id: FileId, offset: u64, len: u32, size: u64) -> SourceCompletion {
        let tail = offset + u64::from(len) == size;
        let whole = u64::from(len) == size;
        let op = SourceOp::Read { id, generation: G0, offset, len, tail, whole, target: TargetId(0) };
        self.run(op, Some(len as usize))
    }

    fn look(&mut self, id: FileId, generation: Generation) -> Result<Look, wire::Failure> {
        match self.run(SourceOp::Look { id, generation }, None).done {
            SourceDone::Look { result, .. } => result,
            other => panic!("{other:?}"),
        }
    }

    fn hash(&mut self, id: FileId, generation: Generation) -> Result<[u8; 32], wire::Failure> {
        let name = self.tree.file(id).expect("registered").name;
        let dir = self.tree.dir_fd(self.base).expect("base");
        let seen = self.tree.announced(&stat::look_at(dir.as_fd(), &name).expect("there"));
        match self.run(hash_op(id, generation, None, Some(seen)), None).done {
            SourceDone::HashFile { result, .. } => result.map(|all| all.root),
            other => panic!("{other:?}"),
        }
    }
}

/// Has a file hashed, and nothing of it by itself.
fn hash_op(
    id: FileId,
    generation: Generation,
    map: Option<ExtentMap>,
    seen: Option<Fingerprint>,
) -> SourceOp {
    SourceOp::HashFile { id, generation, map, seen: seen.map(Box::new), parts: Box::default() }
}

fn read_result(completion: &SourceCompletion) -> &Result<haul_core::transfer::op::ReadOk, wire::Failure> {
    match &completion.done {
        SourceDone::Read { result, .. } => result,
        other => panic!("{other:?}"),
    }
}

fn random(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// Goal: objects hold the file's bytes and digests, whatever their order and the number of threads.
/// Method: a file of odd length cut in 64 KiB objects, read shuffled by four threads, put together again.
#[test]
fn objects_hold_the_bytes_of_the_file() {
    let mut bench = Bench::with(4, tomorrow());
    let content = random(1_000_003, 1);
    let id = bench.file("f", &content);
    let size = content.len() as u64;
    let mut offsets: Vec<u64> = (0..size).step_by(65536).collect();
    fastrand::Rng::with_seed(2).shuffle(&mut offsets);
    for &offset in &offsets {
        let len = (size - offset).min(65536) as u32;
        let buffer = bench.pool.take(len as usize).expect("room");
        let tail = offset + u64::from(len) == size;
        let op = SourceOp::Read { id, generation: G0, offset, len, tail, whole: false, target: TargetId(0) };
        bench.engine.submit(SourceJob { op, buffer: Some(buffer) });
    }
    let mut copy = vec![0; content.len()];
    for _ in &offsets {
        let completion = bench.done.recv_timeout(Duration::from_secs(60)).expect("answered");
        let SourceDone::Read { offset, len, .. } = completion.done else { panic!("{:?}", completion.done) };
        let ok = read_result(&completion).as_ref().expect("reads");
        let buffer = completion.buffer.as_ref().expect("comes back");
        assert_eq!(ok.buffer, buffer.id());
        let tail = offset + u64::from(len) == size;
        assert_eq!(ok.cvs, digest::chaining_values(DigestKind::Blake3, offset, buffer.as_slice(), tail));
        copy[offset as usize..][..len as usize].copy_from_slice(buffer.as_slice());
    }
    assert!(copy == content);
    let whole = bench.read(id, 0, size as u32, size);
    assert_eq!(read_result(&whole).as_ref().expect("reads").cvs, [*blake3::hash(&content).as_bytes()]);
    assert_eq!(bench.look(id, G0), Ok(Look::Same));
    // An idle thread tells the meter at its next tick.
    let begun = std::time::Instant::now();
    let counted = |stages: [haul_core::stage::StageTime; 5]| {
        stages[0].busy > 0 && stages[1].busy > 0 && stages[0].starved > 0
    };
    while !counted(bench.meter.read()) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", bench.meter.read());
        std::thread::yield_now();
    }
    bench.engine.submit(SourceJob { op: SourceOp::Forget { id }, buffer: None });
    // Nobody is told when it is, and another thread may look before.
    while bench.look(id, G0).is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it is not forgotten");
        std::thread::yield_now();
    }
    assert!(bench.tree.is_empty());
}

type Change = (&'static str, fn(&Path));

/// What can happen to a file of 200,000 bytes named `f`.
const CHANGES: [Change; 9] = [
    ("grows", |f| append(f, b"more")),
    ("shrinks", |f| truncate(f, 100_000)),
    ("shrinks to nothing", |f| truncate(f, 0)),
    ("is rewritten in its size", |f| fs::write(f, random(200_000, 9)).expect("write")),
    ("is replaced by rename", |f| {
        fs::write(f.with_extension("new"), random(200_000, 9)).expect("write");
        fs::rename(f.with_extension("new"), f).expect("rename");
    }),
    ("is deleted", |f| fs::remove_file(f).expect("remove")),
    ("becomes a directory", |f| {
        fs::remove_file(f).expect("remove");
        fs::create_dir(f).expect("mkdir");
    }),
    ("becomes a symlink", |f| {
        fs::rename(f, f.with_extension("old")).expect("rename");
        symlink(f.with_extension("old"), f).expect("symlink");
    }),
    ("becomes a fifo", |f| {
        fs::remove_file(f).expect("remove");
        mknodat(CWD, f, FileType::Fifo, Mode::RUSR, 0).expect("mkfifo");
    }),
];

fn append(path: &Path, bytes: &[u8]) {
    use std::io::Write;
    fs::OpenOptions::new().append(true).open(path).and_then(|mut f| f.write_all(bytes)).expect("append");
}

fn truncate(path: &Path, len: u64) {
    fs::OpenOptions::new().write(true).open(path).and_then(|f| f.set_len(len)).expect("truncate");
}

const PAST: std::time::SystemTime = std::time::UNIX_EPOCH;

/// A file whose mtime lies in the past, so that any change moves it.
fn aged(bench: &mut Bench, name: &str, content: &[u8]) -> FileId {
    fs::write(bench.path(name), content).expect("write");
    fs::File::options()
        .write(true)
        .open(bench.path(name))
        .and_then(|f| f.set_modified(PAST))
        .expect("set mtime");
    bench.register(name)
}

/// Goal: no change between the walk and the last look passes for the same file.
/// Method: each change before the first read, between first read and look, and with the descriptor closed
/// between; none is `Same`, and one that must be read again says `Changed`.
#[test]
fn no_change_passes_unseen() {
    for (what, change) in CHANGES {
        let content = random(200_000, 3);
        // Before the first read.
        let mut bench = Bench::new();
        let id = aged(&mut bench, "f", &content);
        change(&bench.path("f"));
        let completion = bench.read(id, 0, 200_000, 200_000);
        let failure = read_result(&completion).as_ref().expect_err(what);
        match what {
            "is deleted" => assert_eq!(failure.kind, wire::FailureKind::Vanished, "{failure:?}"),
            _ => assert!(
                matches!(failure.kind, wire::FailureKind::Changed | wire::FailureKind::Open),
                "{what}: {failure:?}"
            ),
        }
        assert!(failure.text.starts_with("open f: "), "{what}: {}", failure.text);
        if matches!(what, "becomes a directory" | "becomes a fifo") {
            assert_eq!(&*failure.text, "open f: is no regular file any more");
        }
        assert!(completion.buffer.is_some(), "the buffer comes back");
        assert_eq!(bench.look(id, G0), Ok(Look::Changed), "{what}");

        // Between read and look.
        let mut bench = Bench::new();
        let id = aged(&mut bench, "f", &content);
        assert!(read_result(&bench.read(id, 0, 65536, 200_000)).is_ok());
        assert_eq!(bench.look(id, G0), Ok(Look::Same), "{what}");
        change(&bench.path("f"));
        assert_eq!(bench.look(id, G0), Ok(Look::Changed), "{what}");

        // In a bundle between two others.
        let mut bench = Bench::new();
        let ids = ["a", "f", "z"].map(|name| aged(&mut bench, name, &content));
        change(&bench.path("f"));
        let files = ids.map(|id| BundleFile { id, generation: G0, size: 200_000 }).to_vec();
        let completion = bench.run(SourceOp::ReadBundle { files }, Some(600_000));
        let SourceDone::ReadBundle { buffer, items } = &completion.done else { panic!() };
        let payload = completion.buffer.as_ref().expect("comes back");
        assert_eq!(*buffer, payload.id());
        assert!(payload.as_slice() == [&content[..], &content[..]].concat(), "{what}");
        let root = *blake3::hash(&content).as_bytes();
        for good in [0, 2] {
            let ok = items[good].1.as_ref().expect(what);
            assert_eq!((ok.root, ok.look), (root, Look::Same));
        }
        match &items[1].1 {
            Ok(ok) => assert_eq!(ok.look, Look::Changed, "{what}"),
            Err(failure) if what == "is deleted" => assert_eq!(failure.kind, wire::FailureKind::Vanished),
            Err(failure) => assert_eq!(failure.kind, wire::FailureKind::Open, "{what}"),
        }
    }
}

/// Goal: a replacement that keeps size and mtime is not taken for the file that was read.
/// Method: with the old file held open, and with none open; then also by a bundle, which opens and reads at
/// once.
#[test]
fn replacement_with_equal_times_is_seen() {
    for (held, old_stays) in [(true, true), (true, false), (false, false)] {
        let mut bench = Bench::new();
        let id = aged(&mut bench, "f", &[1; 1000]);
        if held {
            assert!(read_result(&bench.read(id, 0, 1000, 1000)).is_ok());
        }
        if old_stays {
            fs::hard_link(bench.path("f"), bench.path("old")).expect("link");
        }
        aged(&mut bench, "new", &[2; 1000]);
        fs::rename(bench.path("new"), bench.path("f")).expect("rename");
        assert_eq!(bench.look(id, G0), Ok(Look::Changed));
        if !held {
            let failure = bench.hash(id, G0).expect_err("not the announced file");
            assert_eq!(failure.kind, wire::FailureKind::Changed);
            let files = vec![BundleFile { id, generation: G0, size: 1000 }];
            let done = bench.run(SourceOp::ReadBundle { files }, Some(1000)).done;
            let SourceDone::ReadBundle { items, .. } = done else { panic!() };
            assert_eq!(items[0].1.as_ref().expect("read").look, Look::Changed);
        }
    }
}

/// Goal: a change of ctime alone is told from a change of content, and a digest settles it.
#[test]
fn chmod_is_meta_only() {
    let mut bench = Bench::new();
    let content = random(3_000_000, 4);
    let id = aged(&mut bench, "f", &content);
    assert!(read_result(&bench.read(id, 0, 65536, 3_000_000)).is_ok());
    fs::set_permissions(bench.path("f"), fs::Permissions::from_mode(0o600)).expect("chmod");
    fs::hard_link(bench.path("f"), bench.path("g")).expect("link");
    assert!(matches!(bench.look(id, G0), Ok(Look::MetaOnly { .. })));
    assert_eq!(bench.hash(id, G0), Ok(*blake3::hash(&content).as_bytes()));
    let files = vec![BundleFile { id, generation: G0, size: 3_000_000 }];
    let completion = bench.run(SourceOp::ReadBundle { files }, Some(3_000_000));
    let SourceDone::ReadBundle { items, .. } = completion.done else { panic!() };
    assert!(matches!(items[0].1.as_ref().expect("reads").look, Look::MetaOnly { .. }));
}

/// Goal: wherever a fingerprint is taken (walk, second try, a look that sees another ctime) it is said for
/// how long a read does not count yet; the last look itself never waits.
/// Method: a clock that a test sets, a grain before and behind the ctime of one file; that it lies on a file
/// system of this kernel is what `age` tests.
#[test]
fn young_ctime_is_waited_out() {
    for (ahead, young) in [(0, true), (10, true), (-10, true), (3_000, false)] {
        let now: Arc<std::sync::Mutex<Timestamp>> = Arc::default();
        let clock = now.clone();
        let mut bench = Bench::with(1, Arc::new(move || *clock.lock().expect("unpoisoned")));
        let set = |ctime: Timestamp, ahead: i128| {
            let nanos = i128::from(ctime.secs) * 1_000_000_000 + i128::from(ctime.nanos) + ahead * 1_000_000;
            *now.lock().expect("unpoisoned") =
                Timestamp { secs: (nanos / 1_000_000_000) as i64, nanos: (nanos % 1_000_000_000) as u32 };
        };
        let ctime = |bench: &Bench| {
            let meta = fs::metadata(bench.path("f")).expect("stat");
            Timestamp { secs: meta.ctime(), nanos: meta.ctime_nsec() as u32 }
        };
        fs::write(bench.path("f"), b"x").expect("write");
        set(ctime(&bench), ahead);
        let before = Instant::now();
        let id = bench.register("f");
        let not_before = bench.tree.not_before(id);
        assert_eq!(not_before.is_some_and(|at| at >= before + age::CTIME_GRAIN_LOCAL), young, "{ahead}");
        assert_eq!(bench.look(id, G0), Ok(Look::Same));
        fs::set_permissions(bench.path("f"), fs::Permissions::from_mode(0o600)).expect("chmod");
        set(ctime(&bench), ahead);
        let Ok(Look::MetaOnly { settle, .. }) = bench.look(id, G0) else { panic!("its ctime changed") };
        assert_eq!(settle >= age::CTIME_GRAIN_LOCAL, young, "{ahead}");
        let done = bench.run(SourceOp::Refresh { id, generation: G1 }, None).done;
        let SourceDone::Refresh { result: Ok((_, _, settle)), .. } = done else { panic!("{done:?}") };
        assert_eq!(settle >= age::CTIME_GRAIN_LOCAL, young, "{ahead}");
    }
}

/// Goal: a hash settles a change of ctime only of the file that a look saw.
#[test]
fn what_is_hashed_is_what_was_seen() {
    let mut bench = Bench::new();
    let id = aged(&mut bench, "f", &[1; 1000]);
    fs::set_permissions(bench.path("f"), fs::Permissions::from_mode(0o600)).expect("chmod");
    let Ok(Look::MetaOnly { seen, .. }) = bench.look(id, G0) else { panic!("its ctime changed") };
    fs::write(bench.path("f"), [2; 1000]).expect("write");
    fs::File::options()
        .write(true)
        .open(bench.path("f"))
        .and_then(|f| f.set_modified(PAST))
        .expect("set mtime");
    let op = hash_op(id, G0, None, Some(seen));
    let done = bench.run(op, None).done;
    let SourceDone::HashFile { result: Err(failure), .. } = done else { panic!("{done:?}") };
    assert_eq!(failure.kind, wire::FailureKind::Changed);
}

/// Goal: a file that ends early while it is read is a failure that says where, and never zeroes.
#[test]
fn short_file_is_a_failure() {
    let mut bench = Bench::new();
    let id = aged(&mut bench, "f", &[5; 300_000]);
    assert!(read_result(&bench.read(id, 0, 65536, 300_000)).is_ok());
    truncate(&bench.path("f"), 150_000);
    let completion = bench.read(id, 131_072, 65536, 300_000);
    let failure = read_result(&completion).as_ref().expect_err("short");
    assert_eq!(failure.kind, wire::FailureKind::Changed);
    assert_eq!(&*failure.text, "read at byte 150000 of f: the file is shorter than it was");
}

/// Goal: a refresh takes the new version; operations of the old one are refused, of the new one work.
#[test]
fn refresh_begins_a_new_generation() {
    let mut bench = Bench::new();
    let id = aged(&mut bench, "f", b"old");
    assert!(read_result(&bench.read(id, 0, 3, 3)).is_ok());
    fs::write(bench.path("new"), b"newer").expect("write");
    fs::rename(bench.path("new"), bench.path("f")).expect("rename");
    let SourceDone::Refresh { result, .. } = bench.run(SourceOp::Refresh { id, generation: G1 }, None).done
    else {
        panic!()
    };
    let (fingerprint, meta, _) = result.expect("refreshes");
    assert_eq!((fingerprint.size, fingerprint.mtime), (5, meta.mtime));
    assert_eq!(bench.look(id, G0).expect_err("old").kind, wire::FailureKind::Changed);
    assert_eq!(bench.look(id, G1), Ok(Look::Same));
    let op = SourceOp::Read {
        id,
        generation: G1,
        offset: 0,
        len: 5,
        tail: true,
        whole: true,
        target: TargetId(0),
    };
    let completion = bench.run(op, Some(5));
    assert_eq!(completion.buffer.expect("comes back").as_slice(), b"newer");
    for (what, change) in &CHANGES[5..] {
        let mut bench = Bench::new();
        let id = aged(&mut bench, "f", b"old");
        change(&bench.path("f"));
        let done = bench.run(SourceOp::Refresh { id, generation: G1 }, None).done;
        assert!(matches!(done, SourceDone::Refresh { result: Err(_), .. }), "{what}");
    }
}

/// Goal: what is sent of a file has the attributes that were announced with it: where it got others, it is
/// taken for another version, whose attributes are told with it.
/// Method: an attribute that is changed between the walk and the reading, of a small file and of a large one;
/// then the next version.
#[test]
fn attributes_are_of_what_is_read() {
    let mut bench = Bench::new();
    let set = |path: &Path, value: &[u8]| {
        rustix::fs::setxattr(path, "user.a", value, rustix::fs::XattrFlags::empty()).expect("set");
    };
    for (name, len) in [("small", 100), ("large", 300_000)] {
        aged(&mut bench, name, &vec![5; len]);
        set(&bench.path(name), b"before");
        let id = bench.register(name);
        set(&bench.path(name), b"after");
        let file = BundleFile { id, generation: G0, size: len as u32 };
        let bundle = SourceOp::ReadBundle { files: vec![file] };
        if len == 100 {
            let SourceDone::ReadBundle { items, .. } = bench.run(bundle, Some(len)).done else { panic!() };
            assert_eq!(items[0].1.as_ref().map(|ok| ok.look), Ok(Look::Changed));
        } else {
            let completion = bench.read(id, 0, 65536, len as u64);
            let failure = read_result(&completion).as_ref().expect_err("other attributes");
            assert_eq!(failure.kind, wire::FailureKind::Changed, "{failure:?}");
        }
        let first = bench.run(SourceOp::Refresh { id, generation: G1 }, None).done;
        let SourceDone::Metadata { values, .. } = first else { panic!("{first:?}") };
        assert_eq!(values.values().collect::<Vec<_>>(), [b"after"]);
        let done = bench.done.recv_timeout(Duration::from_secs(60)).expect("answered").done;
        assert!(matches!(done, SourceDone::Refresh { result: Ok(_), .. }), "{done:?}");
        assert_eq!(bench.look(id, G1), Ok(Look::Same));
    }
}

/// Goal: subtrees are believed only if their bytes are there, and no list from a peer can break the reader.
/// Method: true lists, every one of them damaged, and ranges that are none.
#[test]
fn verify_compares_subtrees() {
    let mut bench = Bench::new();
    let size = (5 << 20) + 777;
    let content = random(size as usize, 5);
    let id = bench.file("f", &content);
    let cv = |offset: u64, len: u64| {
        let mut hasher = blake3::Hasher::new();
        hasher.set_input_offset(offset);
        hasher.update(&content[offset as usize..(offset + len) as usize]);
        Subtree { offset, len, cv: hasher.finalize_non_root() }
    };
    let mut verify = |subtrees: Vec<Subtree>| {
        let op = SourceOp::Verify { id, generation: G0, size, subtrees };
        match bench.run(op, None).done {
            SourceDone::Verify { result, .. } => result.expect("reads"),
            other => panic!("{other:?}"),
        }
    };
    let good = vec![cv(0, 4 << 20), cv(4 << 20, 1 << 20), cv(5 << 20, 777), cv(1 << 20, 65536)];
    assert!(verify(good.clone()));
    assert!(verify(vec![]));
    let root = Subtree { offset: 0, len: size, cv: *blake3::hash(&content).as_bytes() };
    assert!(verify(vec![root]));
    for i in 0..good.len() {
        let mut bad = good.clone();
        bad[i].cv[31] ^= 1;
        assert!(!verify(bad));
    }
    for (offset, len) in [
        (1, 1024),
        (0, 0),
        (0, 1500),
        (1024, 2048),
        (u64::MAX - 1023, 1024),
        (1 << 20, u64::MAX),
        (4 << 20, 2 << 20),
        (0, size + 1),
        (3072, size - 3072),
    ] {
        assert!(!verify(vec![Subtree { offset, len, cv: [0; 32] }]), "{offset} {len}");
    }
}

/// Goal: files stay readable whatever descriptors were given up, and the kept ones are few.
/// Method: 200 files in a chain of directories from a real walk, a tree that keeps two of each.
#[test]
fn reads_survive_evicted_descriptors() {
    let temp = tempfile::tempdir().expect("tempdir");
    let mut dir = temp.path().join("top");
    for i in 0..200_u32 {
        if i % 10 == 0 {
            dir.push(format!("d{i}"));
            fs::create_dir_all(&dir).expect("mkdir");
        }
        fs::write(dir.join(format!("f{i}")), i.to_le_bytes()).expect("write");
    }
    let tree = Arc::new(SourceTree::with_limits(2, 2));
    let paths = [temp.path().join("top").into_os_string().into_encoded_bytes()];
    let roots = roots::resolve_sources(&paths, true, None).expect("there");
    let walk = Walk::start(roots, tree.clone(), 1, |_| 1 << 16).expect("starts");
    let items: Vec<WalkItem> = walk.items().iter().flatten().collect();
    let mut bench = Bench::with(3, tomorrow());
    let (sender, done) = unbounded();
    let post: Post<SourceCompletion> = Arc::new(move |completion| {
        let _ = sender.send(completion);
    });
    let start = ReadEngine::start(tree.clone(), post, bench.meter.clone(), config(3));
    (bench.engine, bench.done) = (start.expect("starts"), done);
    let mut files = Vec::new();
    let mut dirs: Vec<DirId> = Vec::new();
    for item in &items {
        match item {
            WalkItem::Entry(entry) if !matches!(entry.kind, haul_core::entry::EntryKind::Dir { .. }) => {
                let name = std::str::from_utf8(entry.name.as_bytes()).expect("ascii");
                files.push((entry.id, name[1..].parse::<u32>().expect("a number")));
            }
            WalkItem::DirEnd(id) => dirs.push(*id),
            _ => {}
        }
    }
    assert_eq!((files.len(), dirs.len()), (200, 21));
    let mut rng = fastrand::Rng::with_seed(6);
    for _ in 0..3 {
        rng.shuffle(&mut files);
        for &(id, number) in &files {
            let completion = bench.read(id, 0, 4, 4);
            assert!(read_result(&completion).is_ok(), "{:?}", completion.done);
            assert_eq!(completion.buffer.expect("comes back").as_slice(), number.to_le_bytes());
        }
    }
    for (id, _) in files {
        tree.forget(id);
    }
    dirs.into_iter().for_each(|id| tree.forget_dir(id));
    assert!(tree.is_empty());
}

/// Goal: mistakes of ours and a panic in a reading thread are answered with failures, and the thread goes on.
/// Method: a clock that panics, wrong buffers, ids that are unknown.
#[test]
fn mistakes_are_answered() {
    let broken = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let flag = broken.clone();
    let clock: WallClock = Arc::new(move || {
        assert!(!flag.load(Ordering::Relaxed), "on purpose");
        Timestamp::default()
    });
    let mut bench = Bench::with(1, clock);
    let id = bench.file("f", b"x");
    fs::set_permissions(bench.path("f"), fs::Permissions::from_mode(0o600)).expect("chmod");
    broken.store(true, Ordering::Relaxed);
    assert!(bench.look(id, G0).expect_err("panics").text.contains("internal error"));
    let bundle = || SourceOp::ReadBundle { files: vec![BundleFile { id, generation: G0, size: 1 }] };
    let completion = bench.run(bundle(), Some(1));
    let SourceDone::ReadBundle { buffer, items } = completion.done else { panic!() };
    assert!(items[0].1.is_err());
    assert_eq!(completion.buffer.expect("comes back").id(), buffer);
    broken.store(false, Ordering::Relaxed);
    assert!(matches!(bench.look(id, G0), Ok(Look::MetaOnly { .. })));

    for len in [None, Some(0)] {
        let done = bench.run(bundle(), len).done;
        assert!(matches!(&done, SourceDone::ReadBundle { items, .. } if items[0].1.is_err()), "{done:?}");
    }
    for len in [None, Some(2)] {
        let op = SourceOp::Read {
            id,
            generation: G0,
            offset: 0,
            len: 1,
            tail: true,
            whole: true,
            target: TargetId(0),
        };
        assert!(read_result(&bench.run(op, len)).is_err());
    }
    assert!(bench.look(FileId(99), G0).is_err());
    let gone = SourceOp::Refresh { id: FileId(99), generation: G0 };
    assert!(matches!(bench.run(gone, None).done, SourceDone::Refresh { result: Err(_), .. }));
}

/// Goal: a file that gives bytes beyond its size is not taken for one that ends there, whichever way it is
/// read; its second try is of what it gives, and ends there.
/// Method: files of `/proc`, whose size is 0; one that gives far more than a small file has.
#[test]
fn sizes_that_say_nothing_are_measured() {
    let content = fs::read("/proc/version").expect("read");
    let mut bench = Bench::new();
    let base = bench.tree.add_base(Arc::new(fs::File::open("/proc").expect("open").into()), b"");
    let add = |bench: &mut Bench, id: u64, name: &[u8]| {
        let name = Name::new(name).expect("legal");
        let dir = bench.tree.dir_fd(base).expect("base");
        let seen = stat::look_at(dir.as_fd(), &name).expect("there");
        assert_eq!(seen.stamp.size, 0);
        bench.tree.add_entry(FileId(id), base, name, Some(&seen), &Values::new());
        FileId(id)
    };
    let bundle = |bench: &mut Bench, id, generation, size: usize| {
        let files = vec![BundleFile { id, generation, size: size as u32 }];
        let done = bench.run(SourceOp::ReadBundle { files }, Some(size));
        let SourceDone::ReadBundle { items, .. } = done.done else { panic!() };
        (items[0].1.clone().expect("reads"), done.buffer.expect("comes back").as_slice().to_vec())
    };
    let refresh = |bench: &mut Bench, id| match bench.run(SourceOp::Refresh { id, generation: G1 }, None).done
    {
        SourceDone::Refresh { result, .. } => result,
        other => panic!("{other:?}"),
    };
    for by_look in [false, true] {
        let id = add(&mut bench, 100 + u64::from(by_look), b"version");
        match by_look {
            true => assert_eq!(bench.look(id, G0), Ok(Look::Longer)),
            false => assert_eq!(bundle(&mut bench, id, G0, 0).0.look, Look::Longer),
        }
        let (fingerprint, ..) = refresh(&mut bench, id).expect("measured");
        assert_eq!(fingerprint.size, content.len() as u64);
        let (ok, bytes) = bundle(&mut bench, id, G1, content.len());
        assert_eq!((ok.look, ok.root), (Look::Same, *blake3::hash(&content).as_bytes()));
        assert!(bytes == content);
        assert_eq!(bench.look(id, G1), Ok(Look::Same));
    }
    let id = add(&mut bench, 102, b"kallsyms");
    assert_eq!(bundle(&mut bench, id, G0, 0).0.look, Look::Longer);
    let failure = refresh(&mut bench, id).expect_err("too long");
    assert!(
        failure.text.starts_with("read kallsyms: it gives more bytes than its size says"),
        "{}",
        failure.text
    );
}

/// Goal: a read error of the system says operation, byte and path.
/// Method: `/proc/self/mem` at its unmapped beginning answers EIO.
#[test]
fn read_error_says_where() {
    let mut bench = Bench::new();
    let base = bench.tree.add_base(Arc::new(fs::File::open("/proc/self").expect("open").into()), b"");
    let name = Name::new(b"mem").expect("legal");
    let dir = bench.tree.dir_fd(base).expect("base");
    let seen = stat::look_at(dir.as_fd(), &name).expect("there");
    bench.tree.add_entry(FileId(1), base, name, Some(&seen), &Values::new());
    let failure_of = |completion: SourceCompletion| read_result(&completion).clone().expect_err("unmapped");
    let failure = failure_of(bench.read(FileId(1), 4096, 10, 10_000));
    assert_eq!(&*failure.text, "read at byte 4096 of mem: Input/output error");
    assert_eq!(
        (failure.kind, failure.errno),
        (wire::FailureKind::Read, rustix::io::Errno::IO.raw_os_error())
    );
    assert!(fs::File::open("/proc/self/mem").expect("open").read_at(&mut [0; 10], 4096).is_err());
}

/// Goal: the map says where a file has data, rounded to slots, and its sparse root is that of its pieces; a
/// file whose ctime alone changed keeps its root, one of whose holes was filled is found out, zeros in a hole
/// change nothing.
/// Method: a file with data in three places, one odd; against `SubtreeSet` fed from the bytes.
#[test]
fn sparse_files_are_mapped_and_hashed_by_their_data() {
    use haul_core::digest::{SubtreeSet, subtrees};
    use haul_core::extents::DataExtent;
    const A: u64 = 65_536;
    let mut bench = Bench::new();
    let size = 100 * A + 77;
    let mut content = vec![0; size as usize];
    let file = fs::File::create(bench.path("s")).expect("create");
    file.set_len(size).expect("truncate");
    for (at, len) in [(0, 10), (40 * A + 7, 3 * A), (100 * A + 70, 7)] {
        let data = random(len as usize, at);
        content[at as usize..][..len as usize].copy_from_slice(&data);
        file.write_all_at(&data, at).expect("write");
    }
    file.sync_all().expect("sync");
    let id = bench.register("s");
    let map_of = |bench: &mut Bench, id| match bench.run(SourceOp::Map { id, generation: G0 }, None).done {
        SourceDone::Map { result, .. } => result,
        other => panic!("{other:?}"),
    };
    let map = map_of(&mut bench, id).expect("mapped");
    let extent = |offset, len| DataExtent { offset, len };
    assert_eq!(map.extents(), [extent(0, A), extent(40 * A, 4 * A), extent(100 * A, 77)]);
    let mut set = SubtreeSet::with_map(DigestKind::Blake3, map.clone());
    for extent in map.extents() {
        let tail = extent.end() == size;
        let bytes = &content[extent.offset as usize..extent.end() as usize];
        let cvs = digest::chaining_values(DigestKind::Blake3, extent.offset, bytes, tail);
        for ((offset, len), cv) in subtrees(extent.offset, extent.len, tail).zip(cvs) {
            set.insert(offset, len, cv).expect("a node of data");
        }
    }
    let hash = |bench: &mut Bench, map: &ExtentMap| {
        let Ok(Look::MetaOnly { seen, .. }) = bench.look(id, G0) else { panic!("its ctime changed") };
        match bench.run(hash_op(id, G0, Some(map.clone()), Some(seen)), None).done {
            SourceDone::HashFile { result, .. } => result.map(|all| all.root),
            other => panic!("{other:?}"),
        }
    };
    fs::set_permissions(bench.path("s"), fs::Permissions::from_mode(0o600)).expect("chmod");
    assert_eq!(hash(&mut bench, &map).ok(), set.root());
    // Filled behind the back of its mtime, with zeros first.
    let fill = |byte: u8| {
        let time = file.metadata().expect("stat").modified().expect("a time");
        file.write_all_at(&[byte; 5], 70 * A).expect("write");
        file.set_modified(time).expect("set back");
    };
    fill(0);
    assert_eq!(hash(&mut bench, &map).ok(), set.root(), "zeros are what a hole reads as");
    fill(1);
    let refused = hash(&mut bench, &map).expect_err("another content");
    assert_eq!(refused.kind, wire::FailureKind::Changed, "{refused:?}");

    let full = bench.file("full", &random(300_000, 1));
    assert!(map_of(&mut bench, full).expect("mapped").is_full());
}
