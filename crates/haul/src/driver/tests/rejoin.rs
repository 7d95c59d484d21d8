//! Both real drivers over links that are cut again and again, with a network that joins new ones, or is down.

use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{fs, thread};

use haul_core::ids::{SessionEpoch, StreamId};
use haul_core::transfer::SessionEnd;

use super::{
    Bench, Links, Report, SESSION, Watch, bytes, contents, failure, finish, sink, sink_request, source,
    source_request, spawn_end,
};
use crate::driver::Protection;
use crate::events::{Event, Observer};
use crate::handle::{Handle, LiveSetting};
use haul_transport::rejoin::{Dial, Door, JoinEvent, Joins, Peer};
use haul_transport::{Guard, Link, Post, memory};

type Closer = Arc<dyn Fn() + Send + Sync>;

/// A network in memory: it makes links, cuts them, and may be down, or have lost the other end.
#[derive(Default)]
struct Net {
    down: AtomicBool,
    refuses: AtomicBool,
    orphaned: AtomicBool,
    door: Mutex<Option<Post<JoinEvent>>>,
    closers: Mutex<Vec<(StreamId, Closer)>>,
    joined: AtomicU64,
    /// So often control was refused.
    refused: AtomicU64,
    /// Each link is cut after about so many bytes: of data, and of control.
    budgets: Mutex<Option<(fastrand::Rng, u64, u64)>>,
    /// Links of control that have a budget.
    controls: AtomicU64,
}

/// More than the longest frame of control in these tests, and what comes before it: 300 announcements take
/// 30 KB.
const CONTROL_FRAME_MAX: u64 = 64_000;

/// Counts what passes, and cuts the link when its budget is used up.
struct Meter<T> {
    inner: T,
    left: Arc<AtomicU64>,
    closer: Closer,
}

impl<T> Meter<T> {
    /// How much of `len` may pass.
    fn pass(&self, len: usize) -> io::Result<usize> {
        match self.left.load(Ordering::SeqCst) {
            0 => {
                // What has passed gets its chance to arrive, as in a network.
                thread::sleep(Duration::from_millis(3));
                (self.closer)();
                Err(io::ErrorKind::ConnectionReset.into())
            }
            left => Ok(len.min(left as usize)),
        }
    }
    fn passed(&self, bytes: usize) {
        let less = |left: u64| Some(left.saturating_sub(bytes as u64));
        let _ = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    }
}

impl<T: Read> Read for Meter<T> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let len = self.pass(out.len())?;
        let n = self.inner.read(&mut out[..len])?;
        self.passed(n);
        Ok(n)
    }
}

impl<T: Write> Write for Meter<T> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let len = self.pass(data.len())?;
        let n = self.inner.write(&data[..len])?;
        self.passed(n);
        Ok(n)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Waits until data is written: the set-up, which survives no cut, is over.
fn begun(bench: &Bench) {
    let deadline = Instant::now() + super::PATIENCE;
    let is_part = |entry: io::Result<fs::DirEntry>| {
        entry.is_ok_and(|entry| entry.file_name().to_string_lossy().contains("large"))
    };
    while !fs::read_dir(bench.dst()).is_ok_and(|mut entries| entries.any(is_part)) {
        assert!(Instant::now() < deadline, "nothing is written");
        thread::sleep(Duration::from_millis(1));
    }
}

impl Net {
    /// Both ends of a new link.
    fn link(&self, stream: StreamId) -> (Link, Link) {
        let (near, far) = memory::pair(256 * 1024);
        let closer = near.closer.clone();
        self.closers.lock().unwrap().push((stream, closer.clone()));
        let mut budgets = self.budgets.lock().unwrap();
        let Some((rng, data, control)) = &mut *budgets else { return (near, far) };
        let is_control = stream == StreamId(0);
        let mean = if is_control { *control } else { *data };
        let left = rng.u64(mean / 10..mean * 2);
        // Every second one gets the longest frame across, whatever luck the others have.
        let is_second = is_control && self.controls.fetch_add(1, Ordering::SeqCst) % 2 == 1;
        let left = Arc::new(AtomicU64::new(if is_second { left.max(CONTROL_FRAME_MAX) } else { left }));
        let reader = |inner| Box::new(Meter { inner, left: left.clone(), closer: closer.clone() });
        let writer = Meter { inner: near.writer, left: left.clone(), closer: closer.clone() };
        let near = Link {
            reader: reader(near.reader),
            writer: Box::new(writer),
            closer: near.closer,
            connection: None,
            guard: Guard::default(),
            hands: None,
        };
        (near, far)
    }

    /// The reports of source and sink. When one end is gone its port is closed, and its pipe ends.
    fn finish(
        &self,
        case: &str,
        source: thread::JoinHandle<Report>,
        sink: thread::JoinHandle<Report>,
    ) -> (Report, Report) {
        let deadline = Instant::now() + 2 * super::PATIENCE;
        while !source.is_finished() && !sink.is_finished() {
            assert!(
                Instant::now() < deadline,
                "{case}: after {} joins neither end is over",
                self.joined.load(Ordering::SeqCst)
            );
            thread::sleep(Duration::from_millis(1));
        }
        self.refuses.store(true, Ordering::SeqCst);
        self.orphaned.store(true, Ordering::SeqCst);
        *self.budgets.lock().unwrap() = None;
        (finish(case, source), finish(case, sink))
    }

    fn cut_all(&self) {
        for (_, closer) in self.closers.lock().unwrap().drain(..) {
            closer();
        }
    }

    fn cut(&self, control: bool) {
        let mut closers = self.closers.lock().unwrap();
        closers.retain(|(stream, closer)| {
            let this = (*stream == StreamId(0)) == control;
            if this {
                closer();
            }
            !this
        });
    }
}

struct Dialler(Arc<Net>);

impl Dial for Dialler {
    fn dial(&self, stream: StreamId, epoch: SessionEpoch, post: Post<JoinEvent>) {
        let net = self.0.clone();
        thread::spawn(move || {
            let event = |link| match stream {
                StreamId(0) => JoinEvent::Control { epoch, link },
                _ => JoinEvent::Stream { stream, epoch, link },
            };
            let refused = net.refuses.load(Ordering::SeqCst);
            if net.down.load(Ordering::SeqCst) || refused {
                net.refused.fetch_add(u64::from(refused && stream == StreamId(0)), Ordering::SeqCst);
                return post(JoinEvent::Failed { stream, why: "the net is down".into(), refused });
            }
            let (near, far) = net.link(stream);
            net.joined.fetch_add(1, Ordering::SeqCst);
            // The listening end knows first.
            if let Some(door) = &*net.door.lock().unwrap() {
                door(event(far));
            }
            post(event(near));
        });
    }
    fn peer(&self) -> Peer {
        if self.0.orphaned.load(Ordering::SeqCst) { Peer::Orphaned } else { Peer::Unknown }
    }
}

impl Door for Net {
    fn open(&self, post: Post<JoinEvent>) {
        *self.door.lock().unwrap() = Some(post);
    }
    fn left(&self, _: StreamId) {}
    fn is_orphaned(&self) -> bool {
        self.orphaned.load(Ordering::SeqCst)
    }
}

/// Remembers what the progress line waits for.
#[derive(Default)]
struct Seen(Mutex<Vec<String>>);

impl Observer for Seen {
    fn event(&self, event: Event) {
        if let Event::Progress(progress) = event {
            self.0.lock().unwrap().extend(progress.waiting);
        }
    }
}

/// The links of the end that dials and of the one that listens, of a session over `net` with `streams` data
/// streams.
fn ends(net: &Arc<Net>, streams: u16, patience: Duration) -> (Links, Links) {
    let links = |mut all: Vec<(StreamId, Link)>, joins| Links {
        session: SESSION,
        control: all.remove(0).1,
        streams,
        data: all,
        joins,
        patience,
        waits: Duration::ZERO,
        strays: Arc::default(),
        protection: Protection::default(),
    };
    let ids = (0..=streams).map(StreamId);
    let (near, far) = ids.map(|id| (id, net.link(id))).map(|(id, (a, b))| ((id, a), (id, b))).unzip();
    (links(near, Joins::Dial(Arc::new(Dialler(net.clone())))), links(far, Joins::Accept(net.clone())))
}

/// A copy over `net`; `pull`: the sink dials. `during` runs while it does. Reports of source and sink.
fn copy(
    case: &str,
    bench: &Bench,
    net: &Arc<Net>,
    pull: bool,
    patience: Duration,
    during: impl FnOnce(),
) -> (Report, Report) {
    let (dialling, listening) = ends(net, 3, patience);
    let (at_source, at_sink) = if pull { (listening, dialling) } else { (dialling, listening) };
    let mut request = source_request(&[contents(&bench.src())]);
    request.options.object_size = Some(64 * 1024);
    let source = spawn_end("source", move || source::run(at_source, &request, &Watch::silent()));
    let request = sink_request(&bench.dst());
    let sink = spawn_end("sink", move || sink::run(at_sink, &request, &Watch::silent()));
    during();
    let reports = net.finish(case, source, sink);
    bench.check(case);
    bench.no_wrong_bytes();
    reports
}

fn complete(case: &str, bench: &Bench, (source, sink): &(Report, Report)) {
    assert_eq!((&source.end, &sink.end), (&SessionEnd::Complete, &SessionEnd::Complete), "{case}");
    bench.same();
}

fn plant(bench: &Bench, large: usize, small: usize) {
    fs::write(bench.src().join("large"), bytes(1, large)).unwrap();
    for i in 0..small {
        let dir = bench.src().join(format!("d{}", i % 7));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(i.to_string()), bytes(i as u64, 100 + i * 37 % 9000)).unwrap();
    }
}

/// Goal: streams and control that are lost at any point are replaced, whichever end dials, and the copy is
/// exact.
/// Method: every link has a budget of bytes after which it is cut, also in the middle of a frame, and each
/// that joins has one again; several seeds, so that the cuts lie anywhere.
#[test]
fn links_that_are_cut_are_replaced() {
    for seed in 0..8 {
        let (bench, net) = (Bench::new(), Arc::new(Net::default()));
        plant(&bench, 12_000_000, 300);
        let mut rng = fastrand::Rng::with_seed(seed);
        let control = rng.u64(20_000..60_000);
        let data = rng.u64(600_000..3_000_000);
        let case = format!("seed {seed}");
        let pull = seed % 2 == 1;
        let reports = copy(&case, &bench, &net, pull, Duration::from_secs(20), || {
            begun(&bench);
            *net.budgets.lock().unwrap() = Some((rng, data, control));
            net.cut_all();
        });
        complete(&case, &bench, &reports);
        assert!(net.joined.load(Ordering::SeqCst) >= 4, "{case}: nothing was replaced");
        let later = later(&reports.0).expect("the report says so");
        assert!(later.ends_with("(others were lost)"), "{case}: {later}");
    }
}

fn later(report: &Report) -> Option<&str> {
    let line = report.chosen.iter().find(|(name, _)| name == "connections joined later");
    line.map(|(_, text)| text.as_str())
}

/// Goal: streams that join because more are wanted are not told as replacements, and those that replace
/// others are.
/// Method: two more are asked for, then one of all is cut; the copy is paused until all that has come.
#[test]
fn more_streams_are_no_replacements() {
    let (bench, net) = (Bench::new(), Arc::new(Net::default()));
    plant(&bench, 3_000_000, 0);
    let (a, b) = ends(&net, 2, Duration::from_secs(20));
    let handle = Handle::new();
    handle.pause(true).unwrap();
    handle.set(LiveSetting::Streams, 4).unwrap();
    let watch =
        Watch { observer: Some(Arc::new(Seen::default())), handle: handle.clone(), ..Watch::silent() };
    let request = source_request(&[contents(&bench.src())]);
    let source = spawn_end("source", move || source::run(a, &request, &watch));
    let request = sink_request(&bench.dst());
    let sink = spawn_end("sink", move || sink::run(b, &request, &Watch::silent()));
    let deadline = Instant::now() + super::PATIENCE;
    let wait_for = |joined: u64| {
        let streams = || handle.state().settings[LiveSetting::Streams as usize].now;
        while net.joined.load(Ordering::SeqCst) < joined || streams() != Some(4) {
            assert!(Instant::now() < deadline, "{:?}", handle.state());
            thread::yield_now();
        }
    };
    wait_for(2);
    let first = net.closers.lock().unwrap().iter().position(|(id, _)| *id == StreamId(1)).unwrap();
    let (_, closer) = net.closers.lock().unwrap().swap_remove(first);
    closer();
    wait_for(3);
    handle.pause(false).unwrap();
    let reports = net.finish("more", source, sink);
    complete("more", &bench, &reports);
    assert_eq!(later(&reports.0), Some("3 (1 as others were lost, 2 as more were wanted)"));
}

/// Goal: control alone, or the data streams alone, can go and come back.
#[test]
fn either_kind_is_replaced_alone() {
    for (control, pull) in [(true, false), (true, true), (false, false), (false, true)] {
        let (bench, net) = (Bench::new(), Arc::new(Net::default()));
        plant(&bench, 30_000_000, 100);
        let case = format!("control {control}, pull {pull}");
        let reports = copy(&case, &bench, &net, pull, Duration::from_secs(20), || {
            begun(&bench);
            for _ in 0..3 {
                net.cut(control);
                thread::sleep(Duration::from_millis(20));
            }
        });
        complete(&case, &bench, &reports);
        assert!(net.joined.load(Ordering::SeqCst) >= 1, "{case}: nothing was replaced");
    }
}

/// Goal: darkness is waited out, and the end that people watch says so.
/// Method: everything is cut and nothing joins for a while.
#[test]
fn darkness_is_waited_out_and_shown() {
    let (bench, net) = (Bench::new(), Arc::new(Net::default()));
    plant(&bench, 20_000_000, 50);
    let seen = Arc::new(Seen::default());
    let (a, b) = ends(&net, 2, Duration::from_secs(20));
    let watch = Watch { observer: Some(seen.clone()), ..Watch::silent() };
    let mut request = source_request(&[contents(&bench.src())]);
    request.options.object_size = Some(64 * 1024);
    let source = spawn_end("source", move || source::run(a, &request, &watch));
    let request = sink_request(&bench.dst());
    let sink = spawn_end("sink", move || sink::run(b, &request, &Watch::silent()));
    begun(&bench);
    net.down.store(true, Ordering::SeqCst);
    net.cut_all();
    let deadline = Instant::now() + Duration::from_secs(20);
    let told = || seen.0.lock().unwrap().iter().any(|text| text.ends_with("s for the network"));
    while !told() {
        assert!(Instant::now() < deadline && !source.is_finished(), "{:?}", seen.0.lock().unwrap());
        thread::sleep(Duration::from_millis(10));
    }
    net.down.store(false, Ordering::SeqCst);
    let reports = net.finish("dark", source, sink);
    complete("dark", &bench, &reports);
    assert!(told());
}

/// Goal: a connection that is refused is waited out as one that is not answered, as long as nobody has said
/// that the other end is gone.
/// Method: everything is cut and control is refused more often than a dead end is asked; then it comes back.
#[test]
fn refusals_are_waited_out() {
    for pull in [false, true] {
        let (bench, net) = (Bench::new(), Arc::new(Net::default()));
        plant(&bench, 20_000_000, 50);
        let case = format!("refused, pull {pull}");
        let reports = copy(&case, &bench, &net, pull, Duration::from_secs(600), || {
            begun(&bench);
            net.refuses.store(true, Ordering::SeqCst);
            net.cut_all();
            let deadline = Instant::now() + super::PATIENCE;
            while net.refused.load(Ordering::SeqCst) < 6 {
                assert!(Instant::now() < deadline, "{case}: it is not dialled any more");
                thread::sleep(Duration::from_millis(5));
            }
            net.refuses.store(false, Ordering::SeqCst);
        });
        complete(&case, &bench, &reports);
    }
}

/// Goal: a network that does not come back ends both ends after the user's patience, one that lost the other
/// end at once; the same copy again completes, and sends nothing again that was on media.
#[test]
fn patience_ends() {
    for (refuses, pull) in [(false, false), (false, true), (true, false), (true, true)] {
        let (bench, net) = (Bench::new(), Arc::new(Net::default()));
        plant(&bench, 40_000_000, 20);
        let case = format!("refuses {refuses}, pull {pull}");
        let patience = Duration::from_secs(if refuses { 600 } else { 1 });
        let (source, sink) = copy(&case, &bench, &net, pull, patience, || {
            begun(&bench);
            net.down.store(true, Ordering::SeqCst);
            net.refuses.store(refuses, Ordering::SeqCst);
            net.orphaned.store(refuses, Ordering::SeqCst);
            net.cut_all();
        });
        for (end, report) in [("source", &source), ("sink", &sink)] {
            let text = failure(report).unwrap_or_else(|| panic!("{case}: {end} did not fail"));
            assert!(text.contains("gone") || text.contains("back"), "{case}: {end}: {text}");
        }
        let again = Arc::new(Net::default());
        let reports = copy(&case, &bench, &again, pull, patience, || {});
        complete(&case, &bench, &reports);
        assert!(reports.1.resumed, "{case}");
    }
}
