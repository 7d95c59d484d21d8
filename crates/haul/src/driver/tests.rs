//! Both drivers against hostile peers and bad links.
//!
//! [`evil`] is a second, tiny writer of the wire format in which every field can be set to anything. It plays
//! a source against the real sink driver and a sink against the real source driver; a sentinel tree beside
//! the destination must stay as it was. [`mutate`] replays recorded sessions with random damage. [`links`]
//! runs both real drivers over links that damage, cut and stall; [`rejoin`] over links that are replaced.
//! [`turns`] counts who waits for whom; [`flood`] and [`roots`] say more than an end keeps.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use haul_core::entry::Timestamp;
use haul_core::ids::StreamId;
use haul_core::transfer::SessionEnd;

use super::sink::SinkRequest;
use super::source::SourceRequest;
use super::{Links, Protection, Report, Watch, sink, source};
use crate::options::{Durability, Options};
use haul_base::buffer::Pool;
use haul_storage::descriptors::{Claim, Share};
use haul_storage::options::{LayoutChoice, StorageOptions};
use haul_storage::place::Place;
use haul_storage::source::wall_clock;
use haul_transport::rejoin::Joins;
use haul_transport::{Link, memory};

mod choices;
mod evil;
mod evil_holes;
mod evil_links;
mod evil_sink;
mod evil_source;
mod flood;
mod given;
mod links;
mod live_settings;
mod mutate;
mod rejoin;
mod roots;
mod stores;
mod tables;
mod turns;

const SESSION: [u8; 16] = [7; 16];
pub(super) const MEMORY: u64 = 8 * 1024 * 1024;
/// Everything ends long before this, or it hangs.
const PATIENCE: Duration = Duration::from_secs(30);

thread_local! {
    static POOLS: RefCell<Vec<Pool>> = const { RefCell::new(Vec::new()) };
}

/// The drivers tell their pool, so that a test can see whether it got everything back.
pub(super) fn keep_pool(pool: &Pool) {
    POOLS.with_borrow_mut(|pools| pools.push(pool.clone()));
}

static PANICS: AtomicU64 = AtomicU64::new(0);

/// Counts panics of every thread of the drivers and of their streams and engines.
fn count_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            // Tests of engines plant panics; those say that they are on purpose.
            let planted = info.payload_as_str().is_some_and(|text| text.contains("on purpose"));
            if !planted && thread::current().name().is_some_and(|name| name.starts_with("haul-")) {
                PANICS.fetch_add(1, Ordering::SeqCst);
            }
            before(info);
        }));
    });
}

/// What stands below a path: kind, mode, and content or target.
type Snapshot = BTreeMap<PathBuf, (u32, Vec<u8>)>;

fn snapshot(root: &Path) -> Snapshot {
    let mut all = Snapshot::new();
    let mut stack = vec![root.to_owned()];
    while let Some(path) = stack.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let content = if meta.is_dir() {
            stack.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            Vec::new()
        } else if meta.is_symlink() {
            fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
        } else {
            blake3::hash(&fs::read(&path).unwrap()).as_bytes().to_vec()
        };
        all.insert(path.strip_prefix(root).unwrap().to_owned(), (meta.mode(), content));
    }
    all
}

/// A source, a destination, and a sentinel tree beside them.
struct Bench {
    dir: tempfile::TempDir,
    sentinel: Snapshot,
}

impl Bench {
    fn new() -> Bench {
        count_panics();
        let dir = tempfile::tempdir().unwrap();
        for name in ["src", "dst", "outside/deep"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        let outside = dir.path().join("outside");
        fs::write(outside.join("secret"), b"keep me").unwrap();
        fs::write(outside.join("deep/x"), b"and me").unwrap();
        fs::set_permissions(outside.join("secret"), fs::Permissions::from_mode(0o640)).unwrap();
        symlink("secret", outside.join("link")).unwrap();
        let sentinel = snapshot(&outside);
        Bench { dir, sentinel }
    }

    fn src(&self) -> PathBuf {
        self.dir.path().join("src")
    }
    fn dst(&self) -> PathBuf {
        self.dir.path().join("dst")
    }
    fn outside(&self) -> PathBuf {
        self.dir.path().join("outside")
    }

    /// The sentinel is as it was, nothing lies beside it that was not there, and no thread panicked.
    fn check(&self, case: &str) {
        assert_eq!(snapshot(&self.outside()), self.sentinel, "{case}: something outside was touched");
        let mut names: Vec<_> =
            fs::read_dir(self.dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["dst", "outside", "src"], "{case}: something was made outside");
        assert_eq!(PANICS.load(Ordering::SeqCst), 0, "{case}: a thread panicked");
    }

    /// No file stands under a final name that is not byte for byte what `src` has there.
    fn no_wrong_bytes(&self) {
        let (src, dst) = (snapshot(&self.src()), snapshot(&self.dst()));
        for (path, (mode, content)) in dst {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if mode & 0o170000 == 0o100000 && !name.starts_with('.') {
                let same = src.get(&path).is_some_and(|(_, source)| *source == content);
                assert!(same, "wrong bytes under {}", path.display());
            }
        }
    }

    /// The destination is exactly the source.
    fn same(&self) {
        let plain = |snapshot: Snapshot| -> Snapshot {
            snapshot.into_iter().filter(|(path, _)| !path.as_os_str().is_empty()).collect()
        };
        let (src, dst) = (plain(snapshot(&self.src())), plain(snapshot(&self.dst())));
        let missing: Vec<_> =
            src.iter().filter(|(path, what)| dst.get(*path) != Some(what)).take(5).collect();
        let extra: Vec<_> = dst.keys().filter(|path| !src.contains_key(*path)).take(5).collect();
        assert!(missing.is_empty() && extra.is_empty(), "missing or wrong {missing:?}, extra {extra:?}");
    }
}

/// Bytes that differ everywhere and that a seed decides.
fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut out = vec![0; len];
    rng.fill(&mut out);
    out
}

/// Runs one end on a thread of its own and sees that all its buffers come back.
fn spawn_end(name: &str, work: impl FnOnce() -> Report + Send + 'static) -> thread::JoinHandle<Report> {
    let work = move || {
        let report = work();
        let deadline = Instant::now() + PATIENCE;
        for pool in POOLS.take() {
            while pool.in_use().0 > 0 {
                // Threads of streams that were cut give their buffer back when they notice.
                assert!(Instant::now() < deadline, "buffers of {} bytes never came back", pool.in_use().0);
                thread::yield_now();
            }
        }
        report
    };
    thread::Builder::new().name(format!("haul-test-{name}")).spawn(work).unwrap()
}

pub(super) fn sink_request(dst: &Path) -> SinkRequest {
    SinkRequest {
        given: Default::default(),
        nodes: Default::default(),
        part: None,
        in_place: false,
        in_place_asked: false,
        links: Default::default(),
        sources_here: Vec::new(),
        clones: None,
        destination: Place::file(dst.as_os_str().as_encoded_bytes()),
        state_dir: None,
        parts_dir: None,
        home: None,
        volumes: None,
        data_channel: Default::default(),
        ssh: (Vec::new(), false),
        retry: Arc::new(haul_core::reliability::Bounded),
        patience: None,
        memory: MEMORY,
        writers: 2,
        claim: Claim::new(&Share::whole(), 2, 2, 0).0,
        window: None,
        storage: StorageOptions::default(),
        layout: LayoutChoice::Auto,
        what: "a test".into(),
        asked: None,
        hears: None,
    }
}

fn source_request(sources: &[PathBuf]) -> SourceRequest {
    let options = Options { recursive: true, durability: Durability::None, ..Options::default() };
    let sources = sources.iter().map(|path| Place::file(path.as_os_str().as_encoded_bytes())).collect();
    // The files of a test are too young for their ctime to tell changes apart, and a test has no time to
    // wait.
    let clock = Arc::new(|| {
        let now = wall_clock()();
        Timestamp { secs: now.secs + 10, ..now }
    });
    let pacer = Arc::new(haul_transport::pace::Pacer::new(None));
    let memory_why = String::new();
    SourceRequest {
        sources,
        replicas: Vec::new(),
        retry: Arc::new(haul_core::reliability::Bounded),
        ssh: (Vec::new(), false),
        options,
        home: None,
        sink_here: None,
        originals: None,
        volumes: None,
        picks: None,
        memory: MEMORY,
        memory_why,
        readers: 2,
        claim: Claim::new(&Share::whole(), 2, 2, 0).0,
        pacer,
        clock,
        trial: None,
    }
}

/// `path/`: the contents of a directory.
fn contents(path: &Path) -> PathBuf {
    path.join("")
}

/// Both ends of a session's links over memory: one for control and `streams` for data.
fn link_pairs(streams: u16) -> Vec<(Link, Link)> {
    (0..=streams).map(|_| memory::pair(256 * 1024)).collect()
}

/// The same, as a copy in one process has them: payload goes from hand to hand.
fn local_pairs(streams: u16) -> Vec<(Link, Link)> {
    let mut pairs = link_pairs(0);
    pairs.extend((0..streams).map(|_| memory::handing_pair(256 * 1024)));
    pairs
}

fn links_of(mut links: Vec<Link>) -> Links {
    let data: Vec<_> = links.split_off(1).into_iter().zip(1..).map(|(link, n)| (StreamId(n), link)).collect();
    let control = links.pop().expect("control comes first");
    let (joins, patience) = (Joins::Never, Duration::ZERO);
    Links {
        session: SESSION,
        control,
        streams: data.len() as u16,
        data,
        joins,
        patience,
        waits: Duration::ZERO,
        strays: Arc::default(),
        protection: Protection::default(),
    }
}

fn start_sink(links: Vec<Link>, request: SinkRequest) -> thread::JoinHandle<Report> {
    spawn_end("sink", move || sink::run(links_of(links), &request, &Watch::silent()))
}

fn start_source(links: Vec<Link>, request: SourceRequest) -> thread::JoinHandle<Report> {
    spawn_end("source", move || source::run(links_of(links), &request, &Watch::silent()))
}

/// The report of an end that must come to one.
fn finish(case: &str, end: thread::JoinHandle<Report>) -> Report {
    let deadline = Instant::now() + PATIENCE;
    while !end.is_finished() {
        assert!(Instant::now() < deadline, "{case}: the session does not end");
        thread::sleep(Duration::from_millis(1));
    }
    end.join().unwrap_or_else(|_| panic!("{case}: the driver panicked"))
}

/// The text of a session that failed.
fn failure(report: &Report) -> Option<&str> {
    match &report.end {
        SessionEnd::Failed(failure) => Some(&failure.text),
        SessionEnd::Complete | SessionEnd::Stopped => None,
    }
}
