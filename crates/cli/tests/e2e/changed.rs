//! Sources that change while they are copied, and what `--changed` makes of them.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::compare::{BELOW, assert_no_debris, assert_same};
use crate::support::run::{Haul, Outcome, Running};
use crate::support::way::{Way, contents};
use crate::support::{Room, read, tree};

/// Bytes of the file that changes, and how fast it goes: some of it was read and some was not when something
/// happens to it, for with so little memory not much is read ahead.
const LEN: usize = 8 << 20;
const SLOWLY: [&str; 5] = ["-r", "--rate=3MB/s", "--object-size=64KiB", "--streams=1", "--memory=8MiB"];

/// A source with a file `log`, at the destination an older one.
struct Logs {
    room: Room,
    data: PathBuf,
    sink: PathBuf,
    content: Vec<u8>,
    mtime: SystemTime,
}

impl Logs {
    fn new() -> Logs {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        tree::random_file(&data.join("log"), &mut fastrand::Rng::with_seed(26), LEN);
        tree::random_file(&data.join("quiet"), &mut fastrand::Rng::with_seed(27), 100_000);
        room.file("sink/log", "old");
        let content = read(data.join("log"));
        let mtime = fs::metadata(data.join("log")).and_then(|m| m.modified()).expect("stat");
        Logs { room, data, sink, content, mtime }
    }

    fn log(&self) -> PathBuf {
        self.data.join("log")
    }

    /// The command, so slow that there is time for what happens meanwhile.
    fn cp(&self, way: &Way, options: &[&str]) -> Haul {
        way.cp(&[&SLOWLY[..], options].concat(), &[contents(&self.data)], &self.sink)
    }

    /// Copies, and does something to the source when some of the log was sent and some was not.
    fn copy_while(&self, way: &Way, options: &[&str], act: impl FnOnce(&Path)) -> Outcome {
        let mut run = self.cp(way, options).start();
        assert!(run.until(|run| sent(run) > 1 << 20), "{}: it is over too early", way.name());
        act(&self.log());
        run.wait().sane()
    }

    /// What stood at the destination stands there still, and what is beside it was copied.
    #[track_caller]
    fn assert_old_stays(&self, way: &Way) {
        assert_eq!(read(self.sink.join("log")), b"old", "{}", way.name());
        assert!(read(self.sink.join("quiet")) == read(self.data.join("quiet")), "{}", way.name());
        assert_no_debris(&self.sink);
    }

    /// At the destination stands the beginning of the log, with the mtime that it had.
    #[track_caller]
    fn assert_prefix(&self, way: &Way) {
        assert!(read(self.sink.join("log")) == self.content, "{}: not the first bytes", way.name());
        let copied = fs::metadata(self.sink.join("log")).expect("stat");
        assert_eq!(copied.modified().expect("mtime"), self.mtime, "{}", way.name());
        assert_no_debris(&self.sink);
    }
}

/// Payload that was on the wire, as the run has told so far.
fn sent(run: &Running) -> u64 {
    let text = String::from_utf8_lossy(&run.stdout()).into_owned();
    let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    events.filter_map(|event| event["bytes_sent"].as_u64()).max().unwrap_or(0)
}

fn append(path: &Path, bytes: &[u8]) {
    File::options().append(true).open(path).and_then(|mut file| file.write_all(bytes)).expect("append");
}

/// Writes every byte of the file in its place, and goes on behind its end.
fn rewrite_and_grow(path: &Path) {
    File::options()
        .write(true)
        .open(path)
        .and_then(|file| file.write_all_at(&[7; LEN + 100], 0))
        .expect("write");
}

/// Writes until it is told to end, as a log or a detector does.
fn keep_appending(path: &Path, over: &AtomicBool) {
    let mut file = File::options().append(true).open(path).expect("open");
    for line in 0_u64.. {
        if over.load(Ordering::Relaxed) {
            break;
        }
        writeln!(file, "line {line}").expect("append");
        std::thread::yield_now();
    }
}

/// Goal: with `prefix` a file that grows is copied up to the length that it had, with the mtime of then, and
/// counted; the manifest has the hash of that. The next run sees that there is more, and that a file is
/// another one which came to the same length since.
/// Method: lines are appended from when some of it was sent until the copy is over.
#[test]
fn a_file_that_grows_is_copied_up_to_its_start() {
    for way in Way::all() {
        let logs = Logs::new();
        let manifest = logs.room.at("manifest");
        let option = format!("--manifest={}", manifest.display());
        let over = AtomicBool::new(false);
        let ended = std::thread::scope(|scope| {
            let run = logs.copy_while(&way, &["--changed=prefix", &option], |log| {
                append(log, b"one more line\n");
                let (log, over) = (log.to_owned(), &over);
                scope.spawn(move || keep_appending(&log, over));
            });
            over.store(true, Ordering::Relaxed);
            run
        });
        let ended = ended.exits(0).says("1 file grew while it was copied: its first 8.39 MB were copied");
        let summary = ended.summary();
        let counts = ["files", "prefixes", "prefix_bytes"].map(|name| summary.number(name));
        assert_eq!(counts, [2, 1, LEN as u64], "{}", way.name());
        assert_eq!(summary.text("changed"), "prefix");
        logs.assert_prefix(&way);
        let line = format!("{}  log", blake3::hash(&logs.content).to_hex());
        let text = String::from_utf8(read(&manifest)).expect("UTF-8");
        assert!(text.lines().any(|l| l == line), "{}: {text}", way.name());

        let again =
            way.cp(&["-r", "--changed=prefix"], &[contents(&logs.data)], &logs.sink).run().sane().exits(0);
        let counts = ["files", "unchanged", "prefixes"].map(|name| again.summary().number(name));
        assert_eq!(counts, [1, 1, 0], "{}: what is new", way.name());
        assert_same(&logs.data, &logs.sink, BELOW);
    }
}

/// Goal: what comes to the length of a copied prefix later is not taken for it.
/// Method: the log begins anew and is written up to that very length.
#[test]
fn another_file_of_the_prefix_length_is_seen() {
    let (way, logs) = (Way::Here, Logs::new());
    logs.copy_while(&way, &["--changed=prefix"], |log| append(log, b"more")).exits(0);
    logs.assert_prefix(&way);
    fs::write(logs.log(), vec![b'n'; LEN]).expect("write");
    let again = way.cp(&["-r"], &[contents(&logs.data)], &logs.sink).run().sane().exits(0);
    assert_eq!(again.summary().number("files"), 1);
    assert_same(&logs.data, &logs.sink, BELOW);
}

/// Goal: files that grow all the time, from before the walk on, are copied; of each some beginning, whole.
/// Method: a large, a small and a sparse one, appended to by a thread each until the copy is over.
#[test]
fn files_that_always_grow_are_copied() {
    for way in Way::all() {
        let logs = Logs::new();
        logs.room.file("data/small", "the first line\n");
        let sparse = File::create(logs.data.join("sparse")).expect("create");
        sparse.set_len(1 << 20).and_then(|()| sparse.write_all_at(b"data", 1 << 19)).expect("write");
        let manifest = logs.room.at("manifest");
        let option = format!("--manifest={}", manifest.display());
        let (names, over) = (["log", "small", "sparse"], AtomicBool::new(false));
        let ended = std::thread::scope(|scope| {
            for name in names {
                let (path, over) = (logs.data.join(name), &over);
                scope.spawn(move || keep_appending(&path, over));
            }
            let ended = logs.cp(&way, &["--changed=prefix", &option]).run();
            over.store(true, Ordering::Relaxed);
            ended
        });
        let summary = ended.sane().exits(0).summary();
        assert!(summary.number("prefixes") > 0, "{}: the log goes on", way.name());
        let text = String::from_utf8(read(&manifest)).expect("UTF-8");
        for name in names {
            let (whole, copy) = (read(logs.data.join(name)), read(logs.sink.join(name)));
            assert!(whole.starts_with(&copy), "{}: {name} is no beginning of its source", way.name());
            let line = format!("{}  {name}", blake3::hash(&copy).to_hex());
            assert!(text.lines().any(|l| l == line), "{}: {name} in {text}", way.name());
        }
        assert!(read(logs.sink.join("log")).len() >= LEN);
        assert_no_debris(&logs.sink);
    }
}

/// Goal: a file that does not only grow fails by name with `prefix`, and what stood at the destination stays.
/// Method: while it is copied its beginning is written anew, it is cut short, or it is replaced as logs are
/// rotated.
#[test]
fn what_does_not_only_grow_fails() {
    type Act = fn(&Path);
    let acts: [(Act, &str); 4] = [
        (rewrite_and_grow, "its first 8388608 bytes were others when they were read a second time"),
        (|log| File::options().write(true).open(log).and_then(|f| f.set_len(1000)).expect("cut"), "shorter"),
        (
            |log| {
                fs::rename(log, log.with_extension("1")).expect("rename");
                fs::write(log, vec![b'n'; LEN + 1]).expect("write");
            },
            "otherwise than by growing",
        ),
        (|log| fs::remove_file(log).expect("remove"), "vanished"),
    ];
    for (way, acts) in Way::all().iter().zip([&acts[..], &acts[..1], &acts[..1]]) {
        for (act, says) in acts {
            let logs = Logs::new();
            let ended = logs.copy_while(way, &["--changed=prefix"], act);
            let code = if *says == "vanished" { 4 } else { 3 };
            let summary = ended.exits(code).says(says).summary();
            assert_eq!((summary.number("failed"), summary.number("prefixes")), (1, 0), "{}", way.name());
            logs.assert_old_stays(way);
        }
    }
}

/// Goal: with `fail` a file that changed once is not tried again; by default it is, and arrives as it is
/// then.
/// Method: one line is appended when some of it was sent.
#[test]
fn only_who_retries_tries_again() {
    for way in Way::all() {
        let logs = Logs::new();
        let ended = logs.copy_while(&way, &["--changed=fail"], |log| append(log, b"one more line\n"));
        let ended = ended.exits(3).says("the source changed while it was read; the destination is as it was");
        let summary = ended.summary();
        assert_eq!((summary.number("failed"), summary.number("vanished")), (1, 0));
        let sent = summary.number("bytes_sent");
        assert!(sent <= LEN as u64 + 100_000, "{}: {sent} bytes were sent", way.name());
        logs.assert_old_stays(&way);

        for options in [&[][..], &["--changed=retry"]] {
            let logs = Logs::new();
            let ended = logs.copy_while(&way, options, |log| append(log, b"one more line\n")).exits(0);
            assert_eq!(ended.summary().text("changed"), "retry");
            assert_eq!(ended.summary().number("prefixes"), 0);
            assert_same(&logs.data, &logs.sink, BELOW);
        }
    }
}

/// Goal: what an interrupted copy left of a file that has grown since is not taken over, with `prefix` as
/// without; of one that did not it is, and is read again with the rest if the file grows then.
/// Method: a copy is stopped, and made again with and without growth between.
#[test]
fn parts_of_a_shorter_file_are_not_taken_over() {
    for grows_between in [true, false] {
        let (way, logs) = (Way::Here, Logs::new());
        let mut run = logs.cp(&way, &["--changed=prefix"]).start();
        assert!(run.until(|run| sent(run) > 2 << 20), "it is over too early");
        run.signal(Signal::INT);
        run.wait().sane().exits(130);
        if grows_between {
            append(&logs.log(), b"between the runs\n");
        }
        let before = read(logs.log());
        let ended = logs.copy_while(&way, &["--changed=prefix"], |log| append(log, b"meanwhile\n")).exits(0);
        let summary = ended.summary();
        assert_eq!(summary.number("prefixes"), 1);
        assert_eq!(summary.0["held"]["checked"].as_u64() > Some(0), !grows_between, "{}", summary.0["held"]);
        assert!(read(logs.sink.join("log")) == before, "not the first bytes");
        assert_no_debris(&logs.sink);
    }
}
