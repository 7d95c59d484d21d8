//! Tests of the control socket: over real sockets in real directories.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Instant;

use super::*;
use crate::handle::LiveSetting;

/// A hang's end.
const HANGS_AFTER: Duration = Duration::from_secs(30);

struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Bench {
        Bench { dir: tempfile::tempdir().unwrap() }
    }
    fn dirs(&self) -> Vec<PathBuf> {
        vec![self.dir.path().join("ctl")]
    }
    fn serve(&self, name: &str) -> (Server, Handle) {
        let handle = Handle::new();
        (Server::start(&self.dirs(), name, "a to b".into(), handle.clone()).unwrap(), handle)
    }
    fn socket(&self, name: &str) -> PathBuf {
        self.dirs()[0].join(format!("{}-{name}.sock", std::process::id()))
    }
    fn raw(&self, name: &str) -> UnixStream {
        let stream = UnixStream::connect(self.socket(name)).unwrap();
        stream.set_read_timeout(Some(HANGS_AFTER)).unwrap();
        stream
    }
}

fn reply_to(mut stream: &UnixStream, line: &[u8]) -> Reply {
    // What is too long is refused before all of it was taken.
    let _ = stream.write_all(line);
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply);
    serde_json::from_slice(&reply).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&reply)))
}

/// Goal: what is asked reaches the control, and the reply says how things stand.
/// Method: each request once, through the client's side.
#[test]
fn requests_reach_the_control() {
    let bench = Bench::new();
    let (server, handle) = bench.serve("data");
    let found = jobs(&bench.dirs()).unwrap();
    let [job] = &found[..] else { panic!("one job runs") };
    assert_eq!((job.pid, job.name.as_str()), (std::process::id(), "data"));
    let ok = |request| {
        let reply = ask(job, &request).unwrap();
        assert_eq!(reply.error, None);
        reply.job.unwrap()
    };
    let shown = ok(Request::Show);
    assert_eq!((shown.what.as_str(), shown.state, shown.pid), ("a to b", CopyPhase::Starting, job.pid));
    ok(Request::Pause);
    assert!(handle.paused());
    ok(Request::Resume);
    assert!(!handle.paused());
    let shown = ok(Request::Set { setting: LiveSetting::Rate, value: 500_000 });
    assert_eq!(shown.rate.asked, Some(500_000));
    assert_eq!(handle.live_settings().rate, 500_000);
    let refused = ask(job, &Request::Set { setting: LiveSetting::Streams, value: 0 }).unwrap();
    assert!(refused.error.is_some_and(|text| text.contains("streams 0")));
    drop(server);
    assert!(!bench.socket("data").exists(), "it is removed at the end");
    assert!(jobs(&bench.dirs()).unwrap().is_empty());
    assert!(ask(job, &Request::Show).is_err());
}

/// Goal: directory and socket are closed to others, and a directory that is not private is not used: neither
/// made use of by a job, nor believed by a client.
#[test]
fn only_private_directories_are_used() {
    let bench = Bench::new();
    let dir = bench.dirs().remove(0);
    let (server, _) = bench.serve("data");
    assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o7777, 0o700);
    assert_eq!(fs::metadata(bench.socket("data")).unwrap().mode() & 0o777, 0o600);
    drop(server);
    let try_it = || {
        let error = Server::start(&bench.dirs(), "data", String::new(), Handle::new()).err();
        let listed = jobs(&bench.dirs()).err();
        (error.map(|e| e.to_string()), listed.map(|e| e.to_string()))
    };
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    let (error, listed) = try_it();
    assert!(error.is_some_and(|e| e.contains("open to others")) && listed.is_some());
    fs::remove_dir(&dir).unwrap();
    let real = bench.dir.path().join("real");
    fs::create_dir(&real).unwrap();
    fs::set_permissions(&real, fs::Permissions::from_mode(0o700)).unwrap();
    symlink(&real, &dir).unwrap();
    let (error, listed) = try_it();
    assert!(error.is_some_and(|e| e.contains("symlink")) && listed.is_some());
    assert!(fs::read_dir(&real).unwrap().next().is_none(), "a symlink was followed");
    // The next place is as good.
    let dirs = [dir, bench.dir.path().join("other")];
    let server = Server::start(&dirs, "data", String::new(), Handle::new()).unwrap();
    assert!(dirs[1].join(format!("{}-data.sock", std::process::id())).exists());
    drop(server);
    assert!(Server::start(&[], "data", String::new(), Handle::new()).is_err());
}

/// Goal: what is no request is refused in words, and does nothing.
/// Method: broken JSON, other JSON, values out of range, a line of exactly the limit and one byte more.
#[test]
fn what_is_no_request_is_refused() {
    let bench = Bench::new();
    let (_server, handle) = bench.serve("data");
    let mut long = br#"{"do":"show"}"#.to_vec();
    long.resize(REQUEST_LEN_MAX - 1, b' ');
    long.push(b'\n');
    assert_eq!(reply_to(&bench.raw("data"), &long).error, None, "a line of the limit is one");
    long.insert(5, b' ');
    let too_long = reply_to(&bench.raw("data"), &long).error.unwrap();
    assert!(too_long.contains("4096"), "{too_long}");
    assert!(reply_to(&bench.raw("data"), &[b'x'; 100_000]).error.is_some_and(|e| e.contains("4096")));
    for line in [
        "\n",
        "{\n",
        "null\n",
        "\"show\"\n",
        "{\"do\":\"explode\"}\n",
        "{\"do\":\"set\",\"knob\":\"rate\"}\n",
        "{\"do\":\"set\",\"knob\":\"rate\",\"value\":-1}\n",
        "{\"do\":\"set\",\"knob\":\"colour\",\"value\":1}\n",
        "{\"do\":\"set\",\"knob\":\"readers\",\"value\":1,\"more\":2}\n",
        "\u{0}\u{1}\n",
    ] {
        let reply = reply_to(&bench.raw("data"), line.as_bytes());
        assert!(reply.error.is_some_and(|e| e.starts_with("no request")) && reply.job.is_none(), "{line:?}");
    }
    assert_eq!(reply_to(&bench.raw("data"), b"\xff\xfe\n").job, None);
    assert_eq!(handle.changes(), 0, "nothing was done");
}

/// Goal: clients that are silent, or slow, hold up nobody, and are dropped in the end.
/// Method: as many silent ones as are listened to, less one; then requests; then wait for the silent ones'
/// end.
#[test]
fn a_silent_client_holds_nobody() {
    let bench = Bench::new();
    let (_server, _) = bench.serve("data");
    let silent: Vec<UnixStream> = (0..15).map(|_| bench.raw("data")).collect();
    (&silent[0]).write_all(b"{\"do\":").unwrap();
    let begun = Instant::now();
    for _ in 0..5 {
        assert_eq!(reply_to(&bench.raw("data"), b"{\"do\":\"show\"}\n").error, None);
    }
    let answered = begun.elapsed();
    for mut stream in &silent {
        assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0, "it is dropped without a word");
    }
    assert!(begun.elapsed() > answered, "answers came while they were silent");
    // More than are listened to at a time: the next is heard when one of them is dropped.
    let _crowd: Vec<UnixStream> = (0..16).map(|_| bench.raw("data")).collect();
    assert_eq!(reply_to(&bench.raw("data"), b"{\"do\":\"show\"}\n").error, None);
}

/// Goal: what a dead job left is removed, what is none of ours is left alone, and what lives stays.
#[test]
fn stale_sockets_are_removed() {
    let bench = Bench::new();
    let (_server, _) = bench.serve("alive");
    let dir = bench.dirs().remove(0);
    let mut child = std::process::Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let stale = dir.join(format!("{}-gone.sock", child.id()));
    drop(UnixListener::bind(&stale).unwrap());
    // Of another pid namespace, as it seems: no such process here, but somebody listens.
    let elsewhere = dir.join("4194304-elsewhere.sock");
    let listener = UnixListener::bind(&elsewhere).unwrap();
    fs::write(dir.join("notes.txt"), "mine").unwrap();
    fs::write(dir.join("0-x.sock"), "mine").unwrap();
    let mut names: Vec<String> = jobs(&bench.dirs()).unwrap().into_iter().map(|job| job.name).collect();
    names.sort();
    assert_eq!(names, ["alive", "elsewhere"]);
    assert!(!stale.exists() && elsewhere.exists());
    assert!(dir.join("notes.txt").exists() && dir.join("0-x.sock").exists());
    drop(listener);
    assert_eq!(jobs(&bench.dirs()).unwrap().len(), 1);
    assert!(!elsewhere.exists());
    // A live process has the number of a dead job: its socket is passed over.
    let taken = dir.join(format!("{}-before.sock", std::process::id()));
    drop(UnixListener::bind(&taken).unwrap());
    assert_eq!(jobs(&bench.dirs()).unwrap().len(), 1);
    fs::remove_file(&taken).unwrap();
    // A socket of our own number that nobody serves is taken over.
    drop(UnixListener::bind(bench.socket("again")).unwrap());
    let (_again, _) = bench.serve("again");
    assert_eq!(jobs(&bench.dirs()).unwrap().len(), 2);
    assert!(
        Server::start(&bench.dirs(), "again", String::new(), Handle::new()).is_err(),
        "one that is served is not"
    );
}

/// Goal: a job is found by pid, name or a prefix of one, and only if one alone is meant.
#[test]
fn jobs_are_found_by_pid_name_or_prefix() {
    let place = std::sync::Arc::new(Place { dir: fs::File::open("/").unwrap().into(), path: "/".into() });
    let jobs: Vec<Found> = [(12, "data"), (123, "data-2"), (45, "runs"), (46, "7"), (7, "runs")]
        .map(|(pid, name)| Found { pid, name: name.into(), place: place.clone(), file: String::new() })
        .into();
    let found = |word| find(&jobs, word).map(|job| job.pid);
    let both = |a: &str, b: &str| Err(Lost::Ambiguous(vec![a.into(), b.into()]));
    for (word, pid) in
        [("12", 12), ("123", 123), ("data", 12), ("data-", 123), ("7", 7), ("46-", 46), ("45-r", 45)]
    {
        assert_eq!(found(word), Ok(pid), "{word}");
    }
    assert_eq!(found("runs"), both("45-runs", "7-runs"));
    assert_eq!(found("r"), both("45-runs", "7-runs"));
    assert_eq!(found("4"), both("45-runs", "46-7"));
    assert_eq!(found("x"), Err(Lost::Unknown));
    assert_eq!(found(""), Err(Lost::Unknown));
}

/// Goal: names of jobs do as names of files, and only such are read as sockets of jobs.
#[test]
fn names_are_plain() {
    assert_eq!(short_name(b"data.2024-01_x"), "data.2024-01_x");
    assert_eq!(short_name(b"a b/\xff\n"), "a_b___");
    assert_eq!(short_name(b""), "copy");
    assert_eq!(short_name(&[b'x'; 300]).len(), NAME_LEN_MAX);
    assert_eq!(parse_file(b"12-a-b.sock"), Some((12, "a-b")));
    for file in
        ["12-a b.sock", "012-a.sock", "+12-a.sock", "0-a.sock", "12-.sock", "12.sock", "x-a.sock", "12-a", ""]
    {
        assert_eq!(parse_file(file.as_bytes()), None, "{file}");
    }
}
