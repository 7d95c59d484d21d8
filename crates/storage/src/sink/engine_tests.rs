use super::*;
use crate::Payload;
use crate::jail::{Jail, Resolve};
use crate::layout::Provider;
use crate::options::LayoutChoice;
use crate::sink::owner::{JobDir, Owner, Patience};
use crate::sink::stat::seen_of;
use crate::sink::tree::tests::as_nobody;
use crate::sink::{JobKey, Ours, temp_name};
use crate::store::NotKept;
use crossbeam_channel::{Receiver, unbounded};
use haul_base::buffer::Pool;
use haul_core::change::Change;
use haul_core::entry::{Fingerprint, Meta, Name, Timestamp, Version};
use haul_core::ids::{BufferId, FileId};
use haul_core::transfer::op::*;
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

#[path = "engine_tests/attributes.rs"]
mod attributes;
#[path = "engine_tests/in_place.rs"]
mod in_place;
#[path = "engine_tests/job.rs"]
mod job;
#[path = "engine_tests/kept.rs"]
mod kept;
#[path = "engine_tests/meta_rate.rs"]
mod meta_rate;
#[path = "engine_tests/nameless.rs"]
mod nameless;
#[path = "engine_tests/names.rs"]
mod names;
#[path = "engine_tests/publish.rs"]
mod publish;
#[path = "engine_tests/together.rs"]
mod together;
#[path = "engine_tests/trouble.rs"]
mod trouble;

pub(in crate::sink) const TAG: u32 = 77;
/// What a source tells of a file.
pub(in crate::sink) fn told(size: u64, mtime: Timestamp) -> Fingerprint {
    Fingerprint { size, mtime, version: Version::NONE }
}

pub(in crate::sink) const META: Meta =
    Meta { mode: 0o640, uid: 0, gid: 0, mtime: Timestamp { secs: 1_600_000_000, nanos: 123_456_700 } };

pub(in crate::sink) fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("a legal name")
}

/// An engine on a fresh directory, and what it posted.
pub(in crate::sink) struct Bench {
    pub(in crate::sink) root: PathBuf,
    pub(in crate::sink) tree: Arc<SinkTree>,
    pub(in crate::sink) engine: Option<WriteEngine>,
    pub(in crate::sink) posted: Receiver<(SinkDone, u64)>,
    pub(in crate::sink) pool: Pool,
    pub(in crate::sink) lost: Arc<AtomicBool>,
    pub(in crate::sink) _dir: tempfile::TempDir,
}

impl Bench {
    pub(in crate::sink) fn new() -> Bench {
        Bench::with(|_| {})
    }
    pub(in crate::sink) fn with(change: impl FnOnce(&mut EngineConfig)) -> Bench {
        let dir = tempfile::tempdir().expect("tempdir");
        let root = dir.path().join("root");
        Bench::at(dir, root, change)
    }
    pub(in crate::sink) fn at(
        dir: tempfile::TempDir,
        root: PathBuf,
        change: impl FnOnce(&mut EngineConfig),
    ) -> Bench {
        Bench::start(dir, root, change, WriteEngine::new)
    }
    pub(in crate::sink) fn start(
        dir: tempfile::TempDir,
        root: PathBuf,
        change: impl FnOnce(&mut EngineConfig),
        start: impl FnOnce(EngineConfig, Arc<Meter>, Post<SinkCompletion>) -> std::io::Result<WriteEngine>,
    ) -> Bench {
        let tree = Arc::new(SinkTree::open_root(&root, true).expect("root"));
        let (post, posted) = unbounded();
        let pool = Pool::new(1 << 30);
        let lost = Arc::new(AtomicBool::new(false));
        let asked = lost.clone();
        let mut config = EngineConfig {
            tree: tree.clone(),
            tag: TAG,
            old_tags: vec![],
            left: Left::default(),
            adopt: Adopt::new(
                Ours::learn(tree.jail(), tree.root(), &name("probe")).ok(),
                &[5, 6],
                &[6],
                false,
            ),
            confirm: false,
            threads: 4,
            dir_owner: false,
            keeps: Default::default(),
            still_owner: Arc::new(move || match asked.load(Ordering::SeqCst) {
                true => Err(fault::failure(FailureKind::Publish, 0, "lost")),
                false => Ok(()),
            }),
            journal: None,
            storage: StorageOptions::default(),
            memory: 1 << 30,
            budget: crate::descriptors::budget(),
            sink_layout: None,
            in_place: None,
            copies_all: false,
            stripes: Stripes::new(LayoutChoice::Auto, Provider::Flat),
            object_len: None,
            whole_sync: WholeSync::new(&tree),
            clones: None,
            durable: true,
        };
        change(&mut config);
        let buffers = pool.clone();
        // Together with what was still out of the pool when it was posted.
        let post: Post<SinkCompletion> = Arc::new(move |completion: SinkCompletion| {
            let _ = post.send((completion.done, buffers.in_use().0));
        });
        let engine = start(config, Arc::new(Meter::default()), post).expect("threads");
        Bench { root, tree, engine: Some(engine), posted, pool, lost, _dir: dir }
    }
    pub(in crate::sink) fn submit(&mut self, op: SinkOp, payload: &[u8]) {
        let buffer = match &op {
            SinkOp::Write { .. } | SinkOp::WriteBundle { .. } => {
                let mut buffer = self.pool.take(payload.len()).expect("a buffer");
                buffer.as_mut_slice()[..payload.len()].copy_from_slice(payload);
                Some(Payload::Own(buffer))
            }
            _ => None,
        };
        self.engine.as_mut().expect("running").submit(SinkJob { op, buffer });
    }
    pub(in crate::sink) fn run(&mut self, op: SinkOp, payload: &[u8]) -> SinkDone {
        self.submit(op, payload);
        self.posted.recv_timeout(Duration::from_secs(60)).expect("a completion").0
    }
    pub(in crate::sink) fn write(
        &mut self,
        file: &SinkFile,
        offset: u64,
        data: &[u8],
    ) -> Result<(), Failure> {
        let len = data.len() as u32;
        let op = SinkOp::Write { file: file.clone(), offset, len, buffer: BufferId(0), start: 0 };
        match self.run(op, data) {
            SinkDone::Write { id, result, .. } if id == file.id => result,
            other => panic!("{other:?}"),
        }
    }
    pub(in crate::sink) fn commit(&mut self, items: Vec<CommitItem>) -> Vec<Result<(), Failure>> {
        let ids: Vec<_> = items.iter().map(|item| item.id).collect();
        let items = items.into_iter().map(|item| self.looked_at(item)).collect();
        self.commit_as_it_is(items, ids)
    }
    /// Commits what was looked at before, or never.
    pub(in crate::sink) fn commit_as_it_is(
        &mut self,
        items: Vec<CommitItem>,
        ids: Vec<FileId>,
    ) -> Vec<Result<(), Failure>> {
        match self.run(SinkOp::Commit { durable: true, items }, b"") {
            SinkDone::Commit { results, .. } => {
                assert_eq!(results.iter().map(|(id, _)| *id).collect::<Vec<_>>(), ids);
                results.into_iter().map(|(_, result)| result).collect()
            }
            other => panic!("{other:?}"),
        }
    }
    /// The item as a session has it that looked at its name.
    fn looked_at(&self, mut item: CommitItem) -> CommitItem {
        if let Some(publish) = item.publish.as_mut().filter(|publish| publish.file.parent == DirId::ROOT) {
            let path =
                self.root.join(std::ffi::OsStr::new(&*String::from_utf8_lossy(publish.file.name.as_bytes())));
            publish.found = seen_at(&path);
        }
        item
    }
    pub(in crate::sink) fn publish(&mut self, file: &SinkFile) -> Result<(), Failure> {
        self.commit(vec![whole(file, META)]).remove(0)
    }
    pub(in crate::sink) fn look(&mut self, file: &SinkFile, adopt: Option<u32>) -> Found {
        match self.run(SinkOp::Lookup { items: vec![self.lookup_item(file, adopt)] }, b"") {
            SinkDone::Lookup { mut results } => results.remove(0).1.expect("found"),
            other => panic!("{other:?}"),
        }
    }
    fn lookup_item(&self, file: &SinkFile, adopt: Option<u32>) -> LookupItem {
        LookupItem { file: file.clone(), fingerprint: told(file.size, META.mtime), meta: META, adopt }
    }
    pub(in crate::sink) fn finish(&mut self, dirs: Vec<(DirId, Meta)>) -> Vec<Result<(), Failure>> {
        match self.run(SinkOp::FinishDirs { durable: true, dirs }, b"") {
            SinkDone::FinishDirs { results } => {
                results.into_iter().map(|(_, result)| result.map(drop)).collect()
            }
            other => panic!("{other:?}"),
        }
    }
    pub(in crate::sink) fn dir(&self, id: u64, parent: DirId, text: &str) -> DirId {
        self.tree.register(DirId(id), parent, name(text));
        DirId(id)
    }
    pub(in crate::sink) fn not_kept(&self) -> NotKept {
        self.engine.as_ref().expect("running").not_kept()
    }
    /// Path of the temporary with this tag of the file that [`file`] makes.
    pub(in crate::sink) fn temp(&self, text: &str, tag: u32) -> PathBuf {
        self.root.join(
            String::from_utf8(temp_name(&name(text), tag, number(text)).as_bytes().to_vec()).expect("ASCII"),
        )
    }
    pub(in crate::sink) fn ls(&self) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(&self.root)
            .expect("ls")
            .map(|e| e.expect("entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if let Some(engine) = self.engine.take() {
            engine.join();
        }
    }
}

/// A number for a file's temporary, another one for each name.
pub(in crate::sink) fn number(text: &str) -> u64 {
    u64::from_le_bytes(blake3::hash(text.as_bytes()).as_bytes()[..8].try_into().expect("eight bytes"))
}

pub(in crate::sink) fn file(id: u64, parent: DirId, text: &str, size: u64) -> SinkFile {
    SinkFile { id: FileId(id), parent, name: name(text), number: number(text), size, map: None }
}

pub(in crate::sink) fn whole(file: &SinkFile, meta: Meta) -> CommitItem {
    let (owner, found, no_replace, verify) = (false, None, false, None);
    let publish = Publish { file: file.clone(), meta, owner, found, no_replace, verify };
    CommitItem { id: file.id, publish: Some(publish) }
}

/// What a look at this path sees.
pub(in crate::sink) fn seen_at(path: &Path) -> Option<Seen> {
    rustix::fs::lstat(path).ok().map(|stat| seen_of(&stat))
}

pub(in crate::sink) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Goal: objects written in any order make the file; nothing stands under its name before its commit, and
/// then content, size, mode and mtime do; the old content stays until then.
/// Method: objects in seeded random order at once, over an existing file; partial commits in between.
#[test]
fn file_appears_whole_or_not_at_all() {
    let mut bench = Bench::new();
    fs::write(bench.root.join("f"), "old").expect("write");
    let mut rng = fastrand::Rng::with_seed(3);
    let object = 4096;
    let data: Vec<u8> = (0..object * 32 - 7).map(|_| rng.u8(..)).collect();
    let f = file(1, DirId::ROOT, "f", data.len() as u64);
    let mut objects: Vec<_> = data.chunks(object).enumerate().collect();
    rng.shuffle(&mut objects);
    for (i, chunk) in &objects {
        let offset = (i * object) as u64;
        let op =
            SinkOp::Write { file: f.clone(), offset, len: chunk.len() as u32, buffer: BufferId(0), start: 0 };
        bench.submit(op, chunk);
    }
    for _ in &objects {
        let (done, _) = bench.posted.recv_timeout(Duration::from_secs(60)).expect("a completion");
        assert!(matches!(done, SinkDone::Write { result: Ok(()), .. }), "{done:?}");
    }
    assert_eq!(bench.pool.in_use().0, 0);
    bench.commit(vec![CommitItem { id: f.id, publish: None }]).remove(0).expect("partial");
    assert_eq!(fs::read(bench.root.join("f")).expect("read"), b"old");
    assert_eq!(fs::metadata(bench.temp("f", TAG)).expect("stat").permissions().mode() & 0o7777, 0o600);
    bench.publish(&f).expect("published");
    assert_eq!(fs::read(bench.root.join("f")).expect("read"), data);
    let stat = fs::metadata(bench.root.join("f")).expect("stat");
    assert_eq!((stat.mode() & 0o7777, stat.mtime(), stat.mtime_nsec()), (0o640, 1_600_000_000, 123_456_700));
    assert_eq!(bench.ls(), ["f"]);
}

/// Goal: the payload's buffer is free when its completion is posted, good or bad.
/// Method: one write at a time; the pool is read inside of the post.
#[test]
fn buffers_are_free_before_the_completion() {
    let mut bench = Bench::new();
    let f = file(1, DirId::ROOT, "f", 10);
    for (offset, good) in [(0, true), (5, true), (6, false), (u64::MAX, false)] {
        let op = SinkOp::Write { file: f.clone(), offset, len: 5, buffer: BufferId(0), start: 0 };
        bench.submit(op, b"12345");
        let (done, in_use) = bench.posted.recv_timeout(Duration::from_secs(60)).expect("a completion");
        assert_eq!(in_use, 0);
        assert!(matches!(done, SinkDone::Write { result, .. } if result.is_ok() == good));
    }
    // A range that is not in the buffer.
    let op = SinkOp::Write { file: f, offset: 0, len: 5, buffer: BufferId(0), start: u32::MAX };
    assert!(matches!(bench.run(op, b"12345"), SinkDone::Write { result: Err(_), .. }));
}

/// Goal: a file has one temporary, also when its first writes come at the same moment.
/// Method: 200 files with four first writes each on four threads; each must be whole.
#[test]
fn first_writes_at_once_make_one_temporary() {
    let mut bench = Bench::new();
    let files: Vec<_> = (0..200).map(|i| file(1 + i, DirId::ROOT, &format!("f{i}"), 4)).collect();
    for f in &files {
        for offset in 0..4 {
            let op = SinkOp::Write { file: f.clone(), offset, len: 1, buffer: BufferId(0), start: 0 };
            bench.submit(op, &[b'a' + offset as u8]);
        }
    }
    for _ in 0..800 {
        let (done, _) = bench.posted.recv_timeout(Duration::from_secs(60)).expect("a completion");
        assert!(matches!(done, SinkDone::Write { result: Ok(()), .. }), "{done:?}");
    }
    for result in bench.commit(files.iter().map(|f| whole(f, META)).collect()) {
        result.expect("published");
    }
    for i in 0..200 {
        assert_eq!(fs::read(bench.root.join(format!("f{i}"))).expect("read"), b"abcd");
    }
    assert_eq!(bench.ls().len(), 200);
}

/// Goal: bundles of small files, empty ones among them, are published in one commit with results in order,
/// though several threads work at it and some items fail.
/// Method: 500 files of 0 to 20 bytes in ten directories; every seventh is not in the bundle.
#[test]
fn bundles_are_committed_in_parallel() {
    let mut bench = Bench::new();
    for id in 1..=10 {
        bench.dir(id, DirId::ROOT, &format!("d{id}"));
    }
    let (mut payload, mut items, mut files) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..500u64 {
        let size = i % 21;
        let f = file(100 + i, DirId(1 + i % 10), &format!("f{i}"), size);
        if i % 7 != 0 {
            items.push(BundleWrite { file: f.clone(), start: payload.len() as u32, mode: META.mode });
            payload.extend(std::iter::repeat_n(i as u8, size as usize));
        }
        files.push(f);
    }
    match bench.run(SinkOp::WriteBundle { buffer: BufferId(0), items, more: false }, &payload) {
        SinkDone::WriteBundle { results, .. } => assert!(results.iter().all(|(_, result)| result.is_ok())),
        other => panic!("{other:?}"),
    }
    let results = bench.commit(files.iter().map(|f| whole(f, META)).collect());
    for (i, result) in results.iter().enumerate() {
        let path = bench.root.join(format!("d{}/f{i}", 1 + i % 10));
        // An empty file needs no write before it.
        let good = i % 7 != 0 || i % 21 == 0;
        assert_eq!(result.is_ok(), good, "{i}: {result:?}");
        assert_eq!(fs::read(path).ok(), good.then(|| vec![i as u8; i % 21]));
    }
    let dirs = (1..=10).map(DirId).collect();
    match bench.run(SinkOp::SyncDirs { dirs }, b"") {
        SinkDone::SyncDirs { results } => assert!(results.iter().all(|(_, result)| result.is_ok())),
        other => panic!("{other:?}"),
    }
}

/// Goal: a file over a directory, or over anything with `no_replace`, fails for that entry; what stands
/// there stays and the temporary goes. A symbolic link is replaced itself.
/// Method: each case, with both jails.
#[test]
fn what_must_not_be_replaced_stays() {
    for resolve in [Resolve::Openat2, Resolve::Components] {
        let mut bench = Bench::with(|config| {
            let tree = SinkTree::open_root(&config_root(config), false).expect("root");
            config.tree = Arc::new(tree.with_limits(Jail::with(resolve), 4));
        });
        fs::create_dir(bench.root.join("dir")).expect("mkdir");
        fs::write(bench.root.join("file"), "old").expect("write");
        symlink("file", bench.root.join("link")).expect("symlink");

        let f = file(1, DirId::ROOT, "dir", 1);
        bench.write(&f, 0, b"x").expect("written");
        let failure = bench.publish(&f).expect_err("a directory stands there");
        assert!(failure.text.ends_with("a directory stands there; nothing was removed"), "{}", failure.text);

        let f = file(2, DirId::ROOT, "file", 1);
        bench.write(&f, 0, b"x").expect("written");
        let mut item = whole(&f, META);
        item.publish.as_mut().expect("set").no_replace = true;
        let failure = bench.commit(vec![item]).remove(0).expect_err("exists");
        assert_eq!(failure.errno, Errno::EXIST.raw_os_error());
        assert_eq!(fs::read(bench.root.join("file")).expect("read"), b"old");

        let f = file(3, DirId::ROOT, "link", 1);
        bench.write(&f, 0, b"x").expect("written");
        bench.publish(&f).expect("published");
        assert!(fs::symlink_metadata(bench.root.join("link")).expect("stat").is_file());
        assert_eq!(fs::read(bench.root.join("file")).expect("read"), b"old");
        assert_eq!(bench.ls(), ["dir", "file", "link"]);
    }
}

/// The directory of a configuration's tree.
pub(in crate::sink) fn config_root(config: &EngineConfig) -> PathBuf {
    let text = config.tree.path_of_dir(DirId::ROOT);
    PathBuf::from(text)
}

/// Goal: a file of which bytes are missing is not published; one with too many is cut.
/// Method: one byte short; a longer temporary that was adopted.
#[test]
fn size_must_be_right() {
    let mut bench = Bench::new();
    let f = file(1, DirId::ROOT, "short", 5);
    bench.write(&f, 0, b"1234").expect("written");
    assert!(bench.publish(&f).is_err());
    fs::write(bench.temp("long", 5), "123456789").expect("write");
    let f = file(2, DirId::ROOT, "long", 4);
    assert!(bench.look(&f, Some(5)).adopted);
    bench.publish(&f).expect("published");
    assert_eq!(fs::read(bench.root.join("long")).expect("read"), b"1234");
    assert_eq!(bench.ls(), ["long"]);
}

/// Goal: the destination's grain is probed once where an existing mtime could have been cut, and leaves no
/// file behind.
/// Method: an existing file with a whole second.
#[test]
fn grain_is_probed_where_it_matters() {
    let mut bench = Bench::new();
    let old = bench.dir(50, DirId::ROOT, "old");
    fs::create_dir(bench.root.join("old")).expect("mkdir");
    fs::write(bench.root.join("old/f"), "").expect("write");
    let second = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000);
    fs::File::open(bench.root.join("old/f")).expect("open").set_modified(second).expect("utimes");
    for _ in 0..2 {
        assert!(matches!(
            bench.look(&file(1, old, "f", 0), None).existing,
            Existing::File { grain: 1.., .. }
        ));
    }
    assert_eq!(bench.ls(), ["old"]);
}

/// Goal: links are made as they are, replace files and links, respect `no_replace` and directories, and get
/// their own mtime.
/// Method: each case; a target that leads outside is stored, not followed.
#[test]
fn links_are_made() {
    let mut bench = Bench::new();
    fs::write(bench.root.join("b"), "old").expect("write");
    fs::write(bench.root.join("c"), "old").expect("write");
    fs::create_dir(bench.root.join("d")).expect("mkdir");
    let link = |id, text: &str, no_replace| LinkItem {
        file: file(id, DirId::ROOT, text, 0),
        target: b"../../etc/passwd"[..].into(),
        node: None,
        meta: META,
        owner: false,
        no_replace,
        force: false,
    };
    let items = vec![link(1, "a", true), link(2, "b", false), link(3, "c", true), link(4, "d", false)];
    match bench.run(SinkOp::MakeLinks { items }, b"") {
        SinkDone::MakeLinks { results } => {
            let good: Vec<_> = results.iter().map(|(_, result)| result.is_ok()).collect();
            assert_eq!(good, [true, true, false, false]);
        }
        other => panic!("{other:?}"),
    }
    for text in ["a", "b"] {
        let path = bench.root.join(text);
        assert_eq!(fs::read_link(&path).expect("link").as_os_str(), "../../etc/passwd");
        assert_eq!(fs::symlink_metadata(&path).expect("stat").mtime(), 1_600_000_000);
    }
    assert_eq!(fs::read(bench.root.join("c")).expect("read"), b"old");
    assert_eq!(bench.ls(), ["a", "b", "c", "d"]);
}

/// Goal: directories get mode and mtime when they are finished, read-only ones and their parents in one
/// request too, and are forgotten then.
/// Method: a chain of three with mode 0555 (the middle one 0000) in the wrong order, one descriptor kept; a
/// file in the deepest; as somebody else than root.
#[test]
fn directories_are_finished_deepest_first() {
    if as_nobody("sink::engine::tests::directories_are_finished_deepest_first") {
        return;
    }
    let mut bench = Bench::with(|config| {
        let tree = SinkTree::open_root(&config_root(config), false).expect("root");
        let jail = tree.jail();
        config.tree = Arc::new(tree.with_limits(jail, 1));
        for (id, parent, text) in [(1, 0, "a"), (2, 1, "b"), (3, 2, "c")] {
            config.tree.register(DirId(id), DirId(parent), name(text));
        }
    });
    match bench.run(SinkOp::MakeDirs { dirs: vec![DirId(3)] }, b"") {
        SinkDone::MakeDirs { results } => assert_eq!(results, [(DirId(3), Ok(()))]),
        other => panic!("{other:?}"),
    }
    let f = file(9, DirId(3), "f", 0);
    bench.publish(&f).expect("published");
    let closed = Meta { mode: 0o555, ..META };
    let shut = Meta { mode: 0, ..META };
    let results = bench.finish(vec![(DirId(1), closed), (DirId(2), shut), (DirId(3), closed)]);
    assert_eq!(results, [Ok(()), Ok(()), Ok(())]);
    for (path, mode) in [("a", 0o555), ("a/b", 0), ("a/b/c", 0o555)] {
        let stat = fs::metadata(bench.root.join(path)).expect("stat");
        assert_eq!((stat.mode() & 0o7777, stat.mtime()), (mode, 1_600_000_000), "{path}");
        // Open it again, for the next look and for whoever removes it.
        fs::set_permissions(bench.root.join(path), fs::Permissions::from_mode(0o755)).expect("chmod");
    }
    assert!(bench.finish(vec![(DirId(1), closed)])[0].is_err());
}

/// Goal: setuid and setgid are dropped and counted unless the owner is kept; a directory keeps the setgid
/// that it has from its parent.
/// Method: a file with mode 06755 without and (as root) with owner; a directory in a setgid parent.
#[test]
fn setid_needs_the_owner() {
    let mut bench = Bench::new();
    let meta = Meta { mode: 0o6755, uid: 12345, gid: 54321, ..META };
    let f = file(1, DirId::ROOT, "f", 0);
    bench.commit(vec![whole(&f, meta)]).remove(0).expect("published");
    assert_eq!(fs::metadata(bench.root.join("f")).expect("stat").mode() & 0o7777, 0o755);
    assert_eq!(bench.not_kept(), NotKept { setid: 1, ..NotKept::default() });
    if is_root() {
        let g = file(2, DirId::ROOT, "g", 0);
        let mut item = whole(&g, meta);
        item.publish.as_mut().expect("set").owner = true;
        bench.commit(vec![item]).remove(0).expect("published");
        let stat = fs::metadata(bench.root.join("g")).expect("stat");
        assert_eq!((stat.mode() & 0o7777, stat.uid(), stat.gid()), (0o6755, 12345, 54321));
        assert_eq!(bench.not_kept().setid, 1);
    } else {
        eprintln!("skipped: owners need root");
    }
    fs::set_permissions(&bench.root, fs::Permissions::from_mode(0o2755)).expect("chmod");
    let dir = bench.dir(5, DirId::ROOT, "d");
    bench.finish(vec![(dir, META)]).remove(0).expect("finished");
    assert_eq!(fs::metadata(bench.root.join("d")).expect("stat").mode() & 0o7777, 0o2640);
}

/// Goal: names of 255 bytes and of any bytes work.
/// Method: written, committed, read back.
#[test]
fn long_and_odd_names_work() {
    let mut bench = Bench::new();
    let odd: Vec<u8> = (1..=255u8).filter(|b| *b != b'/').collect();
    for (id, bytes) in [(1, vec![b'n'; 255]), (2, odd)] {
        let f = SinkFile {
            id: FileId(id),
            parent: DirId::ROOT,
            name: Name::new(&bytes).expect("legal"),
            number: 1,
            size: 1,
            map: None,
        };
        bench.write(&f, 0, b"x").expect("written");
        bench.publish(&f).expect("published");
        let path = bench.root.join(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(&bytes));
        assert_eq!(fs::read(path).expect("read"), b"x");
    }
    assert_eq!(bench.ls().len(), 2);
}

/// Goal: a sparse file gets its size and nothing but its data, also if it ends in a hole or has no data at
/// all; what stood at its name is gone.
/// Method: one piece written of 1 TiB, none of another, over old files; a file that is not sparse stays
/// refused.
#[test]
fn sparse_files_end_in_holes() {
    use haul_core::extents::{DataExtent, ExtentMap};
    const SIZE: u64 = 1 << 40;
    let mut bench = Bench::new();
    let piece = vec![7; 65_536];
    let extents = [vec![DataExtent { offset: 1 << 30, len: 65_536 }], Vec::new()];
    for (id, extents) in (1..).zip(extents) {
        let text = format!("f{id}");
        fs::write(bench.root.join(&text), vec![b'x'; 1 << 20]).expect("write");
        let map = Some(ExtentMap::new(SIZE, extents).expect("a map"));
        let f = SinkFile { map, ..file(id, DirId::ROOT, &text, SIZE) };
        if id == 1 {
            bench.write(&f, 1 << 30, &piece).expect("written");
        }
        bench.publish(&f).expect("published");
        let made = fs::File::open(bench.root.join(&text)).expect("open");
        let stat = made.metadata().expect("stat");
        assert_eq!(stat.len(), SIZE);
        assert!(stat.blocks() * 512 <= 4 * 65_536, "{} blocks", stat.blocks());
        let mut found = vec![1; 3 * 65_536];
        let at = (1 << 30) - 65_536;
        std::os::unix::fs::FileExt::read_exact_at(&made, &mut found, at).expect("read");
        let data = if id == 1 { &piece[..] } else { &[0; 65_536][..] };
        assert!(found == [&[0; 65_536], data, &[0; 65_536]].concat());
    }
    let f = file(3, DirId::ROOT, "plain", 1 << 20);
    bench.write(&f, 0, &piece).expect("written");
    assert!(bench.publish(&f).is_err(), "a plain file that is too short");
    assert_eq!(bench.ls(), ["f1", "f2"]);
}

/// Unmounts, also when the test fails.
pub(in crate::sink) struct Unmount<'a>(pub(in crate::sink) &'a Path);
impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(self.0).status();
    }
}
