//! The library as another program uses it.

use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use haul::api::{
    Copy, CopyPhase, Endpoint, ErrorKind, Event, Handle, Observer, OnEvent, Operation, Progress,
    RemoteOptions, Role, Running, Status,
};
use haul::options::{Durability, Options, StorageOptions};

/// Stops the copy as soon as something has moved, and keeps what it heard.
struct Stopper {
    handle: Handle,
    heard: Mutex<Vec<&'static str>>,
}

impl Observer for Stopper {
    fn event(&self, event: Event) {
        let what = match event {
            Event::Progress(progress) if progress.bytes_done > 0 => {
                self.handle.stop();
                "moved"
            }
            Event::Progress(_) => "progress",
            Event::Entry { .. } => "entry",
            _ => "other",
        };
        self.heard.lock().unwrap().push(what);
    }
}

/// Goal: a caller sees how far a copy is, stops it, and the same call again moves the rest; every byte is
/// there.
/// Method: 64 MiB at 32 MiB/s, stopped at the first progress that tells of bytes.
#[test]
fn a_copy_is_watched_stopped_and_completed() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("data"), dir.path().join("copy"));
    let data: Vec<u8> = std::iter::repeat_with({
        let mut rng = fastrand::Rng::with_seed(7);
        move || rng.u8(..)
    })
    .take(64 << 20)
    .collect();
    fs::write(&from, &data).unwrap();
    let handle = Handle::new();
    let stopper: &'static Stopper =
        Box::leak(Box::new(Stopper { handle: handle.clone(), heard: Mutex::default() }));
    let options = Options { rate: Some(32 << 20), ..Options::default() };
    let first = Copy::from([&from]).to(&to).options(options).observer(stopper).handle(&handle).run();
    assert_eq!((first.status, first.error), (Status::Interrupted, None));
    assert!(stopper.heard.lock().unwrap().contains(&"moved"));
    assert!(!to.exists(), "a file is there whole or not at all");

    let second = Copy::from([&from]).to(&to).run();
    assert_eq!((second.status, second.files, second.resumed), (Status::Complete, 1, true));
    assert!(fs::read(&to).unwrap() == data, "every byte is as it was");
}

/// Goal: whose fault a failure is can be matched on.
#[test]
fn errors_say_whose_fault_it_is() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("tree")).unwrap();
    let kind = |copy: Copy| copy.run().error.map(|error| error.kind);
    let path = |name: &str| dir.path().join(name);
    // A directory without `recursive`.
    assert_eq!(kind(Copy::from([path("tree")]).to(path("x"))), Some(ErrorKind::Usage));
    assert_eq!(kind(Copy::from([path("no")]).to(path("x"))), Some(ErrorKind::NotFound));
    let ssh = vec!["/nonexistent/ssh".into()];
    let remote = haul::api::RemoteOptions { ssh, ..haul::api::RemoteOptions::default() };
    let far = haul::api::Endpoint::remote("h", "x");
    assert_eq!(kind(Copy::from([path("tree")]).to(far).recursive().remote(remote)), Some(ErrorKind::Launch));
    assert_eq!(haul::api::clean(&path("no"), None, false).map(drop).unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(haul::api::layout(&path("tree")).map(drop).unwrap_err().kind, ErrorKind::Usage);
}

/// Goal: a dry run is one wherever it was asked for, and whatever was said after it.
#[test]
fn a_dry_run_makes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("data"), dir.path().join("copy"));
    fs::write(&from, b"data").unwrap();
    let dry = || Options { dry_run: true, ..Options::default() };
    let copy = || Copy::from([&from]).to(&to);
    for asked in [
        copy().options(dry()),
        copy().dry_run(),
        copy().dry_run().options(Options::default()),
        copy().dry_run().options(dry()),
    ] {
        let summary = asked.run();
        assert_eq!((summary.status, summary.bytes_sent), (Status::Complete, 0));
        assert!(!to.exists());
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else was made either");
}

/// Goal: ends that no copy can have are refused before anything is read: no host but the one that is named is
/// asked.
/// Method: each of them, with a file of that path here, which must not be taken.
#[test]
fn ends_that_do_not_fit_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (mine, to) = (dir.path().join("mine"), dir.path().join("to"));
    fs::write(&mine, b"mine").unwrap();
    let here = || Endpoint::from(&mine);
    let at = |host: &str| Endpoint::remote(host, mine.to_str().unwrap());
    let local = || Endpoint::from(&to);
    for (sources, destination) in [
        (vec![at("a.invalid"), here()], local()),
        (vec![here(), at("a.invalid")], local()),
        (vec![at("a.invalid"), at("b.invalid")], local()),
        (vec![at("a.invalid")], at("b.invalid")),
        (vec![at("a.invalid")], at("a.invalid")),
        (vec![at("")], local()),
        (vec![here()], Endpoint::local("")),
        (vec![Endpoint::local("")], local()),
        (vec![here(), Endpoint::local("")], local()),
        (vec![here()], Endpoint::remote("a.invalid", "")),
        (vec![], local()),
    ] {
        let case = format!("{sources:?} {destination:?}");
        let summary = Copy::from(sources).to(destination).run();
        let kind = summary.error.map(|error| error.kind);
        assert_eq!(
            (summary.status, kind, summary.files),
            (Status::Failed, Some(ErrorKind::Usage), 0),
            "{case}"
        );
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// Goal: numbers out of their range are wrong usage, and those at its edges are not.
#[test]
fn numbers_are_held_to_their_ranges() {
    let storage = |change: &dyn Fn(&mut StorageOptions)| {
        let mut storage = StorageOptions::default();
        change(&mut storage);
        storage
    };
    let good = Options::default;
    let bad = [
        Options { object_size: Some(0), ..good() },
        Options { object_size: Some(7), ..good() },
        Options { object_size: Some(100_000), ..good() },
        Options { object_size: Some(4096), ..good() },
        Options { object_size: Some(128 << 20), ..good() },
        Options { memory: Some(1), ..good() },
        Options { memory: Some(u64::MAX), ..good() },
        Options { rate: Some(0), ..good() },
        Options { rate: Some(1), ..good() },
        Options { streams: Some(0), ..good() },
        Options { streams: Some(65), ..good() },
        Options { readers: Some(0), ..good() },
        Options { writers: Some(60_000), ..good() },
        Options { window: Some(1), ..good() },
        Options { patience: Some(u32::MAX), ..good() },
        Options { spill_size: Some(0), ..good() },
        Options { source_storage: storage(&|s| s.depth = Some(0)), ..good() },
        Options { sink_storage: storage(&|s| s.request_size = Some(5000)), ..good() },
        Options { sink_storage: storage(&|s| s.threads = Some(65)), ..good() },
        Options { source_storage: storage(&|s| s.in_flight = Some(0)), ..good() },
        Options { source_storage: storage(&|s| s.deadline_ms = Some(0)), ..good() },
    ];
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("data"), dir.path().join("copy"));
    fs::write(&from, vec![7; 100_000]).unwrap();
    for options in bad {
        let case = format!("{options:?}");
        let summary = Copy::from([&from]).to(&to).options(options).run();
        assert_eq!(summary.error.map(|error| error.kind), Some(ErrorKind::Usage), "{case}");
        assert!(summary.usage && !to.exists(), "{case}");
    }
    for options in [
        Options { object_size: Some(64 << 10), memory: Some(128 << 10), ..good() },
        Options { object_size: Some(64 << 20), memory: Some(1 << 60), ..good() },
        Options { streams: Some(64), readers: Some(256), writers: Some(256), ..good() },
        Options { rate: Some(64 << 10), window: Some(64 << 10), patience: Some(0), ..good() },
    ] {
        let case = format!("{options:?}");
        let summary = Copy::from([&from]).to(&to).options(options).run();
        assert_eq!((summary.status, summary.error), (Status::Complete, None), "{case}");
        assert!(fs::read(&to).unwrap() == vec![7; 100_000]);
        fs::remove_file(&to).unwrap();
    }
}

/// Keeps the last progress.
struct Last(Mutex<Progress>);

impl Observer for Last {
    fn event(&self, event: Event) {
        if let Event::Progress(progress) = event {
            *self.0.lock().unwrap() = progress;
        }
    }
}

/// Goal: who watches a copy sees that it is over, and how far it came.
/// Method: a quick one, a failed one, and the handle used again.
#[test]
fn a_copy_that_is_over_is_told_so() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("data"), dir.path().join("copy"));
    fs::write(&from, vec![7; 1_000_000]).unwrap();
    let last: &'static Last = Box::leak(Box::new(Last(Mutex::default())));
    let handle = Handle::new();
    assert_eq!(handle.state().phase, CopyPhase::Starting);
    assert_eq!(Copy::from([&from]).to(&to).observer(last).handle(&handle).run().status, Status::Complete);
    let state = handle.state();
    let told = last.0.lock().unwrap();
    for progress in [&*told, &state.progress] {
        assert_eq!((progress.bytes_done, progress.bytes_total), (1_000_000, 1_000_000));
        assert_eq!((progress.files_done, progress.files_total, progress.counting), (1, 1, false));
    }
    assert_eq!(state.phase, CopyPhase::Ended);
    drop(told);
    assert_eq!(Copy::from([dir.path().join("no")]).to(&to).handle(&handle).run().status, Status::Failed);
    assert_eq!(handle.state().phase, CopyPhase::Ended);
}

/// Goal: an error has what a caller needs to act: the kind, what the system said, which end, and which path.
/// Method: as root the only thing that refuses is a file system, so the rest is told by errno alone (see
/// `error.rs`).
#[test]
fn errors_tell_what_and_where() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let bytes = |path: &std::path::Path| path.to_str().unwrap().as_bytes().to_vec();
    let failed = |copy: Copy| copy.run().error.expect("it fails");
    fs::write(path("file"), b"x").unwrap();

    let error = failed(Copy::from([path("file"), path("no")]).to(path("to")));
    assert_eq!((error.kind, error.errno(), error.end()), (ErrorKind::NotFound, Some(2), Some(Role::Source)));
    assert_eq!(error.path(), Some(&bytes(&path("no"))[..]));

    let below = path("file").join("below");
    let error = failed(Copy::from([path("file")]).to(&below));
    assert_eq!((error.errno(), error.end()), (Some(20), Some(Role::Sink)), "{error:?}");
    assert_eq!(error.path(), Some(&bytes(&below)[..]));

    let error = failed(Copy::from([path("file")]).to(Endpoint::local("/proc/x")));
    assert_eq!((error.kind, error.end()), (ErrorKind::Storage, Some(Role::Sink)), "{error:?}");

    let error = haul::api::clean(&path("no"), None, false).map(drop).unwrap_err();
    assert_eq!((error.errno(), error.path()), (Some(2), Some(&bytes(&path("no"))[..])));
    let error =
        failed(Copy::from([path("file")]).to(path("to")).options(Options { rate: Some(1), ..good() }));
    assert_eq!((error.kind, error.errno(), error.end(), error.path()), (ErrorKind::Usage, None, None, None));
}

fn good() -> Options {
    Options::default()
}

/// Goal: what failed at an entry can be matched on, and whose fault it was.
/// Method: a directory stands where a file is to go.
#[test]
fn a_failed_entry_tells_its_operation() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("data"), dir.path().join("to"));
    fs::create_dir_all(to.join("a")).unwrap();
    fs::create_dir(&from).unwrap();
    fs::write(from.join("a"), b"x").unwrap();
    let heard: &'static Failures = Box::leak(Box::default());
    let copy = Copy::from([Endpoint::local(from.join(".").to_str().unwrap())]).to(&to).recursive();
    let summary = copy.observer(heard).run();
    assert_eq!((summary.status, summary.failed), (Status::Partial, 1));
    let heard = heard.0.lock().unwrap();
    assert!(
        matches!(&heard[..], [(path, ErrorKind::Storage, Operation::Publish | Operation::Create)] if path == b"a"),
        "{heard:?}"
    );
}

/// Keeps what failed.
#[derive(Default)]
struct Failures(Mutex<Vec<(Vec<u8>, ErrorKind, Operation)>>);

impl Observer for Failures {
    fn event(&self, event: Event) {
        if let Event::Failed { path, kind, operation, .. } = event {
            self.0.lock().unwrap().push((path, kind, operation));
        }
    }
}

/// Panics at an event that `at` names, once.
struct Panics {
    at: fn(&Event) -> bool,
    heard_after: AtomicUsize,
    panicked: AtomicBool,
}

impl Observer for Panics {
    fn event(&self, event: Event) {
        if self.panicked.load(Ordering::SeqCst) {
            self.heard_after.fetch_add(1, Ordering::SeqCst);
        } else if (self.at)(&event) {
            self.panicked.store(true, Ordering::SeqCst);
            std::panic::panic_any("that one");
        }
    }
}

/// Goal: an observer that panics ends its copy as a stop does: what was written is kept for the same call
/// again, nothing more is told, and the panic goes on in the thread that runs the copy.
/// Method: at the first progress that tells of bytes, in the driver's thread; and at the hash of a file that
/// was not moved, in the thread that makes it.
#[test]
fn a_panic_of_an_observer_ends_the_copy_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("data"), dir.path().join("copy"));
    let mut rng = fastrand::Rng::with_seed(11);
    let data: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(64 << 20).collect();
    fs::write(&from, &data).unwrap();
    let handle = Handle::new();
    let observer = |at: fn(&Event) -> bool| -> &'static Panics {
        Box::leak(Box::new(Panics { at, heard_after: AtomicUsize::new(0), panicked: AtomicBool::new(false) }))
    };
    let panics = |copy: Copy| {
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| copy.run()));
        let payload = ran.map(|summary| summary.error).expect_err("the panic goes on");
        assert_eq!(payload.downcast_ref(), Some(&"that one"));
    };
    let at_bytes = observer(|event| matches!(event, Event::Progress(progress) if progress.bytes_done > 0));
    let options = Options { rate: Some(32 << 20), ..Options::default() };
    panics(Copy::from([&from]).to(&to).options(options).observer(at_bytes).handle(&handle));
    assert_eq!(at_bytes.heard_after.load(Ordering::SeqCst), 0);
    assert_eq!(handle.state().phase, CopyPhase::Ended);

    // The handle is as good as new: nobody asked it for a stop.
    let again = Copy::from([&from]).to(&to).handle(&handle).run();
    assert_eq!((again.status, again.files, again.resumed), (Status::Complete, 1, true));
    assert!(again.held.checked > 0, "what was written before the panic was kept: {:?}", again.held);
    assert!(fs::read(&to).unwrap() == data);

    let at_hash = observer(|event| matches!(event, Event::Digest { .. }));
    let options = Options { manifest: true, ..Options::default() };
    panics(Copy::from([&from]).to(&to).options(options).observer(at_hash));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing but the source and its copy");
}

/// Goal: a copy runs beside its caller, who can stop it; a panic of its observer reaches who joins.
#[test]
fn a_copy_runs_beside_its_caller() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("data"), dir.path().join("copy"));
    fs::write(&from, vec![7; 4 << 20]).unwrap();
    let slow = Options { rate: Some(64 << 10), ..Options::default() };
    let running = Copy::from([&from]).to(&to).options(slow).spawn().unwrap();
    assert!(!running.is_finished(), "it takes a minute");
    running.handle().stop();
    assert_eq!(running.join().status, Status::Interrupted);

    let panics = Copy::from([&from]).to(&to).on_event(|_| std::panic::panic_any("that one")).spawn().unwrap();
    let joined = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| panics.join().status));
    assert_eq!(joined.unwrap_err().downcast_ref(), Some(&"that one"));
    assert_eq!(Copy::from([&from]).to(&to).spawn().unwrap().join().status, Status::Complete);
}

/// Goal: what points to an observer is one.
#[test]
fn pointers_to_observers_are_observers() {
    fn takes<T: Observer>(_: &T) {}
    let heard: &'static Failures = Box::leak(Box::default());
    takes(&heard);
    takes(&std::sync::Arc::new(Failures::default()));
    let boxed: Box<dyn Observer> = Box::new(std::sync::Arc::new(OnEvent(|_| {})));
    takes(&boxed);
}

/// Goal: a handle is for one copy at a time, and what was wished of one copy is not the next one's, but a
/// stop.
#[test]
fn a_handle_is_for_one_copy_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("data"), dir.path().join("copy"));
    fs::write(&from, vec![1; 8 << 20]).unwrap();
    let handle = Handle::new();
    let copy = |name: &str| Copy::from([&from]).to(to.join(name)).handle(&handle);
    let slow = Options { rate: Some(1 << 20), ..Options::default() };
    fs::create_dir(&to).unwrap();
    let first = copy("a").options(slow).spawn().unwrap();
    while handle.state().phase != CopyPhase::Running {
        std::thread::yield_now();
    }
    let second = copy("b").run();
    let error = second.error.expect("it is refused");
    assert!(error.kind == ErrorKind::Usage && error.text.contains("handle"), "{error}");
    assert!(!to.join("b").exists());
    handle.set(haul::api::LiveSetting::Rate, 0).unwrap();
    assert_eq!(first.join().status, Status::Complete);

    // Wished after its end.
    handle.pause(true).unwrap();
    handle.set(haul::api::LiveSetting::Rate, 1 << 20).unwrap();
    let third = copy("c").spawn().unwrap();
    assert_eq!(third.join().status, Status::Complete);
    assert_eq!(handle.state().settings[0].asked, None);
    handle.stop();
    assert_eq!(copy("d").run().status, Status::Interrupted);
}

/// Goal: no text of a request shows a password, its debug form neither.
#[test]
fn a_request_shows_no_password() {
    let word = std::ffi::OsStr::new("ftp://alice:geheim@h/x");
    let Ok(end) = Endpoint::parse(word, |_| false) else { return };
    let request = haul::api::CopyRequest::new(vec![end.clone()], Endpoint::from("/tmp/x"));
    for text in [format!("{end:?}"), format!("{request:?}"), format!("{:?}", Copy::from([end]))] {
        assert!(!text.contains("geheim") && text.contains("ftp://alice@h/x"), "{text}");
    }
}

/// Goal: copies that run at a time never fail for descriptors that another one has: each is complete, or was
/// refused before it did anything.
/// Method: this test in a process of its own with few descriptors, eight copies of a tree at once.
#[test]
fn copies_at_a_time_share_the_descriptors() {
    const CHILD: &str = "HAUL_TEST_FEW_DESCRIPTORS";
    if std::env::var_os(CHILD).is_none() {
        for limit in ["700", "1024", "4096"] {
            let this = std::env::current_exe().unwrap();
            let output = std::process::Command::new("sh")
                .args(["-c", "ulimit -n $0 && exec \"$@\"", limit])
                .arg(this)
                .args(["--exact", "copies_at_a_time_share_the_descriptors", "--nocapture"])
                .env(CHILD, limit)
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{limit}: {}{text}", String::from_utf8_lossy(&output.stdout));
        }
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("data");
    for d in 0..20 {
        fs::create_dir_all(from.join(format!("d{d}"))).unwrap();
        for f in 0..40 {
            fs::write(from.join(format!("d{d}/f{f}")), vec![f as u8; 100 + d]).unwrap();
        }
    }
    let options = Options { recursive: true, durability: Durability::None, ..Options::default() };
    let copy = |n: usize| Copy::from([&from]).to(dir.path().join(format!("to{n}"))).options(options.clone());
    let running: Vec<_> = (0..8).map(|n| copy(n).spawn().unwrap()).collect();
    let (mut complete, mut refused) = (0, Vec::new());
    for (n, copy) in running.into_iter().enumerate() {
        let summary = copy.join();
        match summary.error {
            None => {
                assert_eq!((summary.status, summary.files, summary.failed), (Status::Complete, 800, 0));
                complete += 1;
            }
            Some(error) => {
                assert_eq!((error.kind, error.errno()), (ErrorKind::Local, Some(24)), "{error}");
                assert!(!dir.path().join(format!("to{n}")).exists());
                refused.push(n);
            }
        }
    }
    assert!(complete >= 1, "none was made");
    // There is room again.
    for n in refused {
        assert_eq!(copy(n).run().status, Status::Complete);
    }
}

/// What takes longer than this hangs.
const HANGS_AFTER: Duration = Duration::from_secs(30);

/// An ssh that says who it is, and nothing else for ten minutes.
struct MuteSsh {
    dir: tempfile::TempDir,
}

impl MuteSsh {
    fn new() -> MuteSsh {
        MuteSsh { dir: tempfile::tempdir().unwrap() }
    }

    /// Somebody can be asked, so that no time is set to a login.
    fn remote(&self) -> RemoteOptions {
        let said = self.dir.path().join("said");
        let script = "echo $$ > \"$0.new\" && mv \"$0.new\" \"$0\" && exec sleep 600";
        let ssh = ["sh", "-c", script, said.to_str().unwrap()].map(String::from).into();
        RemoteOptions { ssh, interactive: true, ..RemoteOptions::default() }
    }

    /// Its number, if it runs by now.
    fn process(&self) -> Option<u32> {
        fs::read_to_string(self.dir.path().join("said")).ok()?.trim().parse().ok()
    }
}

impl Drop for MuteSsh {
    fn drop(&mut self) {
        if let Some(process) = self.process().filter(|process| runs(*process)) {
            let _ = std::process::Command::new("kill").args(["-9", &process.to_string()]).status();
        }
    }
}

fn runs(process: u32) -> bool {
    Path::new(&format!("/proc/{process}")).exists()
}

#[track_caller]
fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + HANGS_AFTER;
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Goal: a copy whose ssh never says a word ends when it is stopped: as interrupted and without an error,
/// with no ssh left behind and nothing made, whichever way the data were to go.
/// Method: an ssh that would sleep for ten minutes.
#[test]
fn a_stop_ends_a_copy_whose_ssh_says_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("data"), dir.path().join("copy"));
    fs::write(&from, b"data").unwrap();
    let far = |path: &Path| Endpoint::remote("h", path.to_str().unwrap());
    let ends = [
        (Endpoint::from(&from), far(&to)),
        (far(&from), Endpoint::from(&to)),
        // A relative one, which begins where the far end's user is at home.
        (Endpoint::remote("h", "data"), Endpoint::from(&to)),
    ];
    for (from, to) in ends {
        let ssh = MuteSsh::new();
        let running: Running = Copy::from([from]).to(to).remote(ssh.remote()).spawn().unwrap();
        wait_until("ssh is not started", || ssh.process().is_some());
        assert_eq!(running.handle().state().phase, CopyPhase::Starting);
        running.handle().stop();
        wait_until("the stop does not end it", || running.is_finished());
        let summary = running.join();
        assert_eq!((summary.status, summary.error, summary.usage), (Status::Interrupted, None, false));
        assert!(!runs(ssh.process().unwrap()), "ssh outlives its copy");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing was made");
    // One that was stopped before it began starts no ssh at all.
    let (handle, ssh) = (Handle::new(), MuteSsh::new());
    handle.stop();
    let summary = Copy::from([&from]).to(far(&to)).remote(ssh.remote()).handle(&handle).run();
    assert_eq!((summary.status, summary.error), (Status::Interrupted, None));
    assert_eq!(ssh.process(), None);
}
