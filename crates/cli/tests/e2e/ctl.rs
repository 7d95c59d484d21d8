//! Copies that run, in the hands of `haul ctl`: paused and going on, their live settings changed, and who may
//! do so.
//!
//! Copies are made slow by strace, which holds up each request of the near end's storage; that end drives one
//! request at a time. So a copy lasts as long as a test needs it, and no longer by much.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use rustix::thread::{Gid, Uid};
use serde_json::Value;

use crate::support::compare::{ALL, assert_no_debris, assert_none_torn, assert_same};
use crate::support::run::{Haul, Outcome, Running};
use crate::support::way::Way;
use crate::support::{Room, procs, set_mode, tree};

/// A wait that takes longer hangs.
const HANGS_AFTER: Duration = Duration::from_secs(60);
/// For so long nothing may move in a paused copy. Unpaused, one moves some MB in this time.
const LOOK_FOR: Duration = Duration::from_millis(1500);
/// Size of the file that is copied, which is more than both ends can hold in memory, and of a request.
const BIG: usize = 40 << 20;
const REQUEST: &str = "256KiB";

/// A tree to copy, and where sockets lie.
struct Bench {
    room: Room,
    way: Way,
    data: PathBuf,
}

impl Bench {
    fn new(way: Way, seed: u64) -> Bench {
        let room = Room::new();
        let data = room.dir("data");
        tree::plain(&data, seed, 40, BIG);
        room.dir("sink");
        set_mode(&room.dir("run"), 0o700);
        Bench { room, way, data }
    }

    fn sink(&self) -> PathBuf {
        self.room.at("sink")
    }

    fn haul(&self) -> Haul {
        let sizes = ["--object-size", REQUEST, "--request-size", REQUEST, "--memory", "8MiB"];
        let options = [&["-r", "--no-preallocate"][..], &sizes].concat();
        self.way.cp(&options, &[&self.data], self.sink()).env("XDG_RUNTIME_DIR", self.room.at("run"))
    }

    /// Starts a slow copy, and waits until some of it is at the destination.
    fn start(&self) -> Running {
        let slow = ["--depth", "1", "--io-threads", "1", "--engine", "pread", "--io", "buffered"];
        let delays = ["preadv2", "pwritev2"].map(|call| format!("{call}:delay_enter=40000"));
        let mut run = self.haul().args(slow).injected(&delays).start();
        let begun = run.until(|_| self.arrived() > (1 << 20) && self.job()["state"] == "running");
        assert!(begun, "the copy was over too soon:\n{}", run.stderr());
        run
    }

    /// The same without delays, to its end; all must be there.
    fn completes(&self) -> Outcome {
        let ended = self.haul().run().sane().exits(0);
        assert_same(&self.data, &self.sink().join("data"), ALL);
        assert_no_debris(&self.sink());
        ended
    }

    fn ctl(&self, line: &str) -> Outcome {
        let words = ["ctl"].into_iter().chain(line.split_whitespace());
        Haul::new(words).env("XDG_RUNTIME_DIR", self.room.at("run")).run().sane()
    }

    fn ask(&self, line: &str) -> Value {
        let said = self.ctl(&format!("{line} --json")).exits(0);
        serde_json::from_slice(&said.stdout).unwrap_or_else(|e| panic!("{e}\n{}", said.describe()))
    }

    /// The one job that runs, as it says of itself; null if none does.
    fn job(&self) -> Value {
        self.ask("list")["jobs"][0]["job"].clone()
    }

    /// Bytes that lie below the destination, in temporaries too: blocks, for lengths are set in advance.
    fn arrived(&self) -> u64 {
        fn below(dir: &Path) -> u64 {
            let Ok(entries) = fs::read_dir(dir) else { return 0 };
            let size = |entry: fs::DirEntry| match entry.metadata() {
                Ok(meta) if meta.is_dir() => below(&entry.path()),
                // Gone, or renamed, since it was listed.
                Ok(meta) => meta.blocks() * 512,
                Err(_) => 0,
            };
            entries.flatten().map(size).sum()
        }
        below(&self.sink())
    }

    /// Waits until nothing more arrives: what was on its way has landed.
    fn settled(&self) -> u64 {
        let mut last = (self.arrived(), self.job()["bytes_sent"].clone());
        let settled = procs::wait_until(HANGS_AFTER, || {
            std::thread::sleep(Duration::from_millis(500));
            let now = (self.arrived(), self.job()["bytes_sent"].clone());
            std::mem::replace(&mut last, now.clone()) == now
        });
        assert!(settled, "a paused copy goes on moving data");
        last.0
    }

    /// Waits until `setting` stands at `value`.
    fn stands(&self, setting: &str, value: impl Into<Value>) {
        let value = value.into();
        let mut job = Value::Null;
        let stands = procs::wait_until(HANGS_AFTER, || {
            job = self.job();
            job[setting]["now"] == value
        });
        assert!(stands, "{setting} does not become {value}: {job}");
    }

    fn socket(&self) -> PathBuf {
        let dir = self.room.at("run/haul");
        let mut sockets =
            fs::read_dir(&dir).expect("list the sockets").map(|entry| entry.expect("list").path());
        sockets.next().expect("a socket is there")
    }
}

/// A way over ssh: a far end at which live settings must be turned, too.
fn over_ssh() -> Vec<Way> {
    Way::all().into_iter().filter(|way| !matches!(way, Way::Here)).collect()
}

/// Goal: a paused copy moves nothing, keeps what it has, and goes on when it is told to; every byte is right.
/// Method: over each way, a slow copy paused half-way; what lies at the destination and what was sent are
/// looked at twice; resumed, it completes.
#[test]
fn a_paused_copy_moves_nothing_and_goes_on() {
    need!("strace");
    for way in Way::all() {
        let name = way.name();
        let bench = Bench::new(way, 31);
        let mut run = bench.start();
        let job = bench.job();
        assert_eq!(job["name"], "data", "{name}");
        assert!(job["what"].as_str().is_some_and(|what| what.contains("data to ")), "{name}: {job}");
        bench.ctl("data pause").exits(0);
        let there = bench.settled();
        assert_eq!(bench.job()["state"], "paused", "{name}");
        std::thread::sleep(LOOK_FOR);
        assert_eq!(bench.arrived(), there, "{name}: data arrived in a pause");
        assert!(there < BIG as u64, "{name}: all had arrived when it was paused");
        assert!(!run.ended(), "{name}: {}", run.stderr());
        bench.ctl("data resume").exits(0);
        let moves = run.until(|_| bench.arrived() > there);
        assert!(moves || run.ended(), "{name}: it does not go on");
        let ended = run.wait().sane().exits(0);
        let events = ended.events();
        assert!(events.iter().any(|event| event["paused"] == true), "{name}: progress shows no pause");
        assert_same(&bench.data, &bench.sink().join("data"), ALL);
        assert_no_debris(&bench.sink());
        assert!(
            fs::read_dir(bench.room.at("run/haul")).expect("list").next().is_none(),
            "{name}: a socket is left"
        );
    }
}

/// Goal: a paused copy is interrupted as any other: exit 130, what arrived is kept, and the same command
/// completes it.
#[test]
fn a_paused_copy_stops_in_order_and_is_resumed() {
    need!("strace");
    for way in Way::all() {
        let name = way.name();
        let bench = Bench::new(way, 32);
        let run = bench.start();
        bench.ctl("data pause").exits(0);
        bench.settled();
        run.signal(Signal::INT);
        run.wait().sane().exits(130);
        assert_none_torn(&bench.data, &bench.sink().join("data"));
        let sent = bench.completes().summary().number("bytes_sent");
        let (_, bytes) = tree::totals(&bench.data);
        assert!(sent < bytes, "{name}: {sent} of {bytes} bytes were sent again");
    }
}

/// Goal: each live setting is turned while the copy runs, at whichever end it is, without a new connection;
/// what cannot be is refused with its reason; and the copy is as good as any.
/// Method: over ssh both ways, values up and down, until the end that has the live setting says that they
/// stand.
#[test]
fn settings_are_changed_at_both_ends() {
    need!("sshd", "strace");
    for way in over_ssh() {
        let bench = Bench::new(way, 33);
        let run = bench.start();
        let before = bench.job();
        for setting in ["streams", "readers", "writers"] {
            assert!(before[setting]["now"].as_u64().is_some_and(|now| now > 0), "{setting}: {before}");
        }
        for (setting, values) in [("readers", [5, 1]), ("writers", [40, 2]), ("streams", [1, 6])] {
            for value in values {
                bench.ctl(&format!("data set {setting} {value}")).exits(0);
                bench.stands(setting, value);
                assert_eq!(bench.job()[setting]["asked"], value);
            }
        }
        bench.ctl("data set rate 1GB/s").exits(0);
        bench.stands("rate", 1_000_000_000);
        bench.ctl("data set rate none").exits(0);
        bench.stands("rate", Value::Null);
        for line in [
            "data set streams 65",
            "data set streams 0",
            "data set readers 1000",
            "data set rate 5",
            "data set",
        ] {
            bench.ctl(line).exits(2);
        }
        let shown = bench.ctl("data show").exits(0);
        let text = String::from_utf8_lossy(&shown.stdout);
        assert!(text.contains("writers  2\n") && text.contains("state    running"), "{text}");
        run.wait().sane().exits(0);
        assert_same(&bench.data, &bench.sink().join("data"), ALL);
    }
}

/// Goal: a limit on the rate is lifted while the copy runs, whichever end the source is, and one that is set
/// holds it.
/// Method: copies that would take ten minutes by the limit that they begin with; or by one that is set, until
/// it is interrupted.
#[test]
fn a_limit_is_set_and_lifted() {
    for way in Way::all() {
        let name = way.name();
        let bench = Bench::new(way, 37);
        let mut run = bench.haul().args(["--rate", "64KiB/s"]).start();
        assert!(run.until(|_| bench.job()["state"] == "running"), "{name}: {}", run.stderr());
        bench.stands("rate", 65_536);
        bench.ctl("data set rate none").exits(0);
        run.wait().sane().exits(0);
        assert_same(&bench.data, &bench.sink().join("data"), ALL);
        // Once more, into another directory, the other way round.
        let again = Bench::new(bench.way, 38);
        let mut run = again.haul().args(["--rate", "1MiB/s"]).start();
        assert!(run.until(|_| again.job()["state"] == "running"), "{name}: {}", run.stderr());
        again.ctl("data set rate 64KiB/s").exits(0);
        again.stands("rate", 65_536);
        let sent = || again.job()["bytes_sent"].as_u64().unwrap_or(0);
        // What the streams have queued is counted as sent, so a while passes.
        let begin = sent();
        std::thread::sleep(LOOK_FOR);
        let more = sent().saturating_sub(begin);
        assert!(more < BIG as u64 / 2, "{name}: {more} bytes went under a limit of 64 KiB/s");
        run.signal(Signal::INT);
        run.wait().sane().exits(130);
        assert_none_torn(&again.data, &again.sink().join("data"));
    }
}

/// Goal: a job is meant by its number, its name or the beginning of one; else the error lists what runs. What
/// a killed copy left is removed by the list.
#[test]
fn jobs_are_found_and_dead_ones_forgotten() {
    need!("strace");
    let bench = Bench::new(Way::Here, 34);
    bench.ctl("data show").exits(1).says("no copy of this user runs");
    let said = bench.ctl("list").exits(0);
    assert!(String::from_utf8_lossy(&said.stdout).contains("no copy"), "{}", said.describe());
    let run = bench.start();
    let pid = bench.job()["pid"].as_u64().expect("a number");
    for word in ["data", "da", &pid.to_string(), &format!("{pid}-d")] {
        assert_eq!(bench.ask(&format!("{word} show"))["pid"], pid, "{word}");
    }
    bench.ctl("other show").exits(1).says(&format!("{pid}-data"));
    bench.ctl("data set streams 3").exits(1).says("has 2, and no more can join it");
    // A second of the same name.
    let twin = Bench { room: Room::new(), way: Way::Here, data: bench.data.clone() };
    twin.room.dir("sink");
    std::os::unix::fs::symlink(bench.room.at("run"), twin.room.at("run")).expect("link to the sockets");
    let other = twin.start_beside();
    let both = |_: &Running| bench.ask("list")["jobs"].as_array().is_some_and(|jobs| jobs.len() == 2);
    let mut run = run;
    assert!(run.until(both), "the second is not listed:\n{}", other.stderr());
    bench.ctl("data show").exits(1).says("several jobs are meant by data");
    assert_eq!(bench.ask(&format!("{pid} show"))["pid"], pid);
    drop(other);
    let mark = run.mark.clone();
    run.signal(Signal::KILL);
    assert!(run.wait().status.code() != Some(0));
    procs::wait_gone(&mark);
    assert!(bench.room.at(&format!("run/haul/{pid}-data.sock")).exists(), "a killed copy leaves its socket");
    let none = || bench.ask("list")["jobs"].as_array().is_some_and(Vec::is_empty);
    assert!(procs::wait_until(HANGS_AFTER, none), "{}", bench.ask("list"));
    // A socket goes with the first look after its process is gone.
    let removed = || none() && fs::read_dir(bench.room.at("run/haul")).expect("list").next().is_none();
    assert!(procs::wait_until(HANGS_AFTER, removed), "it is still there");
    bench.completes();
}

impl Bench {
    /// A slow copy that is not waited for.
    fn start_beside(&self) -> Running {
        let slow = ["--depth", "1", "--io-threads", "1", "--engine", "pread", "--io", "buffered"];
        self.haul().args(slow).injected(&["pwritev2:delay_enter=40000".to_owned()]).start()
    }
}

/// Goal: nobody but this user and root is listened to, even where the file system lets him in, and no
/// nonsense from the socket does anything to a copy.
/// Method: mode bits opened to all, then a thread that is another user; root with lines that are no requests,
/// one that is too long, and silence.
#[test]
fn strangers_and_nonsense_are_refused() {
    need!("setpriv", "strace");
    let bench = Bench::new(Way::Here, 35);
    let run = bench.start();
    let socket = bench.socket();
    let mode = |path: &Path| fs::metadata(path).expect("look").mode() & 0o777;
    let dir = bench.room.at("run/haul");
    assert_eq!((mode(&dir), mode(&socket)), (0o700, 0o600));
    let silent = UnixStream::connect(&socket).expect("connect");
    for line in [&b"{\"do\":\"pause\"\n"[..], b"pause\n", b"\xff\xff\n", &[b' '; 5000]] {
        assert!(say(&socket, line).contains("error"), "{line:?}");
    }
    assert!(say(&socket, b"{\"do\":\"show\"}\n").contains("\"running\""), "one is silent, another is heard");
    drop(silent);
    set_mode(&bench.room.at("run"), 0o755);
    set_mode(&dir, 0o755);
    set_mode(&socket, 0o666);
    let path = socket.clone();
    let stranger = std::thread::spawn(move || {
        // Of this thread alone.
        rustix::thread::set_thread_groups(&[]).expect("leave the groups");
        let gid = Gid::from_raw(65534);
        rustix::thread::set_thread_res_gid(gid, gid, gid).expect("be in another group");
        let uid = Uid::from_raw(65534);
        rustix::thread::set_thread_res_uid(uid, uid, uid).expect("be another user");
        say(&path, b"{\"do\":\"pause\"}\n")
    });
    let answer = stranger.join().expect("the stranger's thread");
    assert!(answer.contains("another user"), "{answer}");
    // A client does not use such a directory either.
    bench.ctl("list").exits(1).says("open to others");
    set_mode(&dir, 0o700);
    assert_eq!(bench.job()["state"], "running");
    run.wait().sane().exits(0);
    assert_same(&bench.data, &bench.sink().join("data"), ALL);
}

/// One request by hand.
fn say(socket: &Path, line: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket).unwrap_or_else(|e| panic!("connect: {e}"));
    stream.set_read_timeout(Some(HANGS_AFTER)).expect("set a limit");
    // It may be answered before all of it is taken.
    let _ = stream.write_all(line);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// Goal: a copy that cannot be reached runs as well, and says so where more is asked for.
#[test]
fn a_copy_without_a_socket_runs_on() {
    need!("strace");
    let bench = Bench::new(Way::Here, 36);
    let haul = |options: &[&str]| bench.haul().args(options).injected(&["bind:error=EPERM".to_owned()]);
    haul(&["-v"]).run().sane().exits(0).says("haul ctl cannot reach this copy");
    let quiet = haul(&["--force"]).run().sane().exits(0);
    assert!(!quiet.stderr.contains("haul ctl"), "{}", quiet.describe());
    assert_same(&bench.data, &bench.sink().join("data"), ALL);
}
