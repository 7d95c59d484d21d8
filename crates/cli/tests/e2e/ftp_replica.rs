//! A source that lies at several servers: another one is used where the first does not give it, and no file
//! is put together of two versions.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use crate::support::beside::beside;
use crate::support::compare::{BELOW, Opts, assert_no_debris, assert_same};
use crate::support::ftpd::{Ftpd, Kind};
use crate::support::liar::{Liar, Lies, Manner};
use crate::support::run::{Haul, Outcome};
use crate::support::{Room, procs, read};

/// As often as anybody asks.
const ALWAYS: usize = usize::MAX;
/// A port that nobody listens at.
const NOBODY: &str = "ftp://127.0.0.1:1";

/// `haul cp -r --json URL SINK` with replicas.
fn cp(from: &str, replicas: &[&str], sink: &Path) -> Haul {
    let replicas = replicas.iter().map(|url| format!("--replica={url}"));
    Haul::cp(["-r", "--patience=5s"]).args(replicas).args([from]).args([sink])
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    crate::support::tree::bytes(&mut fastrand::Rng::with_seed(seed), len)
}

/// What the summary says of the replicas.
fn used(ended: &Outcome) -> String {
    ended.summary().chosen("replicas").to_owned()
}

fn file(lies: Lies, path: &str, content: &[u8], manner: Manner) -> Lies {
    lies.odd(path, content, content.len(), manner, ALWAYS)
}

/// Goal: what a server lists and does not give comes from another one, under whatever path that has it; what
/// it gives comes from it; and the summary says so.
#[test]
fn what_one_does_not_give_another_one_gives() {
    beside(
        [Manner::Refuse("550 not for you"), Manner::Cut(2, Some("550 it broke")), Manner::Short(2)],
        |manner| {
            let room = Room::new();
            let sink = room.dir("sink");
            let (small, large) = (bytes(1, 1000), bytes(2, 5 << 20));
            let here = Lies::default().file("/d/good", b"good");
            let here = file(file(here, "/d/sub/small", &small, manner), "/d/large", &large, manner).start();
            let there = Lies::default().file("/e/f/good", b"GOOD").file("/e/f/sub/small", &small);
            let there = there.file("/e/f/large", &large).start();
            let ended = cp(&here.url("/d/"), &[&there.url("/e/f")], &sink).run().sane();
            if let Manner::Short(_) = manner {
                // It says that this is all: the file is not what it told, and that is no trouble of the
                // server.
                assert_eq!(read(sink.join("good")), b"good");
                assert!(!sink.join("large").exists(), "{}", ended.describe());
                return;
            }
            let ended = ended.exits(0);
            assert_eq!(read(sink.join("good")), b"good");
            assert_eq!((read(sink.join("sub/small")), read(sink.join("large"))), (small, large));
            assert!(used(&ended).contains("gave 1 files (left"), "{}", ended.describe());
            assert!(used(&ended).contains("gave 2 files"), "{}", ended.describe());
            assert_no_debris(&sink);
        },
    );
}

/// Goal: a file that was begun at a server which is lost goes on at another one that has the same, and only
/// after that has shown it.
/// Method: the first one hangs up in the middle of the third object, always; the other one has the same, and
/// sends it from its beginning.
#[test]
fn a_file_goes_on_where_the_same_lies() {
    let room = Room::new();
    let content = bytes(3, 21 << 20);
    let here = file(Lies::default(), "/f", &content, Manner::HangUp(10 << 20)).start();
    let there = Lies::default().file("/mirror/g", &content).start();
    let sink = room.at("f");
    let ended = cp(&here.url("/f"), &[&there.url("/mirror/g")], &sink).run().sane().exits(0);
    assert_eq!(read(&sink), content);
    assert!(there.sent() >= content.len(), "{} bytes, {}", there.sent(), ended.describe());
    assert!(!there.heard().iter().any(|line| line.starts_with("REST")), "{:?}", there.heard());
    // Nothing was read twice for the sink: what was shown was not sent again.
    assert_eq!(ended.summary().number("bytes_sent"), content.len() as u64, "{}", ended.describe());
}

/// Goal: of two versions of a file, of one size and time, one is copied or none: never the beginning of one
/// and the end of the other.
/// Method: they differ in the first object, in what was just read, and in what comes.
#[test]
fn two_versions_are_never_mixed() {
    beside([100, (8 << 20) - 5, 9 << 20, 20 << 20], |differs| {
        let room = Room::new();
        let one = bytes(4, 21 << 20);
        let mut other = one.clone();
        other[differs] ^= 0x55;
        let here = file(Lies::default(), "/f", &one, Manner::HangUp(10 << 20)).start();
        let there = Lies::default().file("/f", &other).start();
        let sink = room.at("f");
        let ended = cp(&here.url("/f"), &[&there.url("/f")], &sink).run().sane();
        match fs::read(&sink) {
            Ok(content) => assert!(content == other, "at {differs}: mixed, {}", ended.describe()),
            Err(_) => assert_eq!(ended.status.code(), Some(3), "{}", ended.describe()),
        }
        // It is there: a file that cannot go on begins anew.
        assert!(sink.exists(), "at {differs}: {}", ended.describe());
        if differs < 8 << 20 {
            assert!(used(&ended).contains("had other content"), "{}", ended.describe());
        }
    });
}

/// Goal: what is of another size is no replica, and that is said.
#[test]
fn another_size_is_no_replica() {
    let room = Room::new();
    let (content, sink) = (bytes(5, 6 << 20), room.dir("sink"));
    for len in [content.len() - 1, content.len() + 1, 0] {
        let mut other = content.clone();
        other.resize(len, 7);
        let here = file(Lies::default(), "/d/f", &content, Manner::HangUp(5 << 20)).start();
        let there = Lies::default().file("/d/f", &other).start();
        let ended = cp(&here.url("/d/"), &[&there.url("/d")], &sink).run().sane().exits(3);
        ended.says("another size");
        assert!(!sink.join("f").exists());
        assert_no_debris(&sink);
    }
}

/// Goal: a replica of another time is read from its beginning, and what is copied has that time: the next run
/// sees that it is not the first server's.
#[test]
fn another_time_is_another_version() {
    let room = Room::new();
    let (one, other) = (bytes(6, 9 << 20), bytes(7, 9 << 20));
    let (small, small_other) = (b"12345".as_slice(), b"abcde".as_slice());
    let hangs = Lies::default().file("/d/at", b"x");
    let hangs = file(hangs, "/d/f", &one, Manner::HangUp(5 << 20));
    let here = file(hangs, "/d/small", small, Manner::Refuse("550 no")).start();
    let there = Lies::default().file("/d/f", &other).modified("/d/f", "20190102030405");
    let there = there.file("/d/small", small_other).modified("/d/small", "20190102030405").start();
    let sink = room.dir("sink");
    let ended = cp(&here.url("/d/"), &[&there.url("/d")], &sink).run().sane().exits(0);
    assert!(read(sink.join("f")) == other, "{}", ended.describe());
    assert_eq!(read(sink.join("small")), small_other);
    let secs = |name: &str| fs::metadata(sink.join(name)).expect("it is there").mtime();
    assert_eq!((secs("f"), secs("small")), (1_546_398_245, 1_546_398_245), "{}", ended.describe());
    assert_ne!(secs("at"), secs("f"));
}

/// Goal: a server that is not there, does not have the source, or hangs up whenever it lists, is replaced.
#[test]
fn a_server_that_gives_nothing_is_replaced() {
    let room = Room::new();
    let has = || Lies::default().file("/d/f", b"content").file("/d/sub/g", b"more").start();
    let hangs = Lies::default().file("/d/f", b"other").file("/d/sub/g", b"xxxx").hangs_up_while_listing();
    let (none, hangs): (Liar, Liar) = (Lies::default().file("/x", b"x").start(), hangs.start());
    beside(
        [format!("{NOBODY}/d/"), none.url("/d/"), hangs.url("/d/")].into_iter().enumerate(),
        |(at, first)| {
            let sink = room.dir(&format!("sink{at}"));
            let there = has();
            let ended = cp(&first, &[&format!("{NOBODY}/y"), &there.url("/d")], &sink).run().sane().exits(0);
            assert_eq!(read(sink.join("f")), b"content", "{}", ended.describe());
            assert_eq!(read(sink.join("sub/g")), b"more");
        },
    );
}

/// Goal: without any that has it the run fails, in bounded time, and names what the last one said.
#[test]
fn without_any_it_fails() {
    let room = Room::new();
    let none = Lies::default().file("/x", b"x").start();
    let ended = cp(&format!("{NOBODY}/d"), &[&none.url("/d")], &room.at("sink")).run().sane().exits(1);
    ended.says("no such file");
    assert!(!room.at("sink").exists());
}

/// Goal: replicas that make no sense are refused before anything is asked, and a password in one is shown to
/// nobody.
#[test]
fn replicas_that_make_no_sense_are_refused() {
    let room = Room::new();
    room.file("here", "x");
    let here = room.at("here").display().to_string();
    for (sources, replica, why) in [
        (vec![here.clone()], "ftp://u:geheim@127.0.0.1:1/f", "at FTP and GridFTP servers"),
        (vec![format!("{NOBODY}/a"), format!("{NOBODY}/b")], "ftp://u:geheim@127.0.0.1:1/f", "one source"),
        (vec![format!("{NOBODY}/a")], here.as_str(), "lies at a server"),
        (vec![format!("{NOBODY}/a")], "ftp://u:geheim@127.0.0.1:1/~/f", "whole path"),
        (vec![format!("{NOBODY}/a")], "h:ftp://u:geheim@127.0.0.1:1/f", "same host"),
    ] {
        let ended = Haul::cp(["--replica", replica]).args(&sources).args([room.at("sink")]).run().sane();
        let ended = ended.exits(2);
        assert!(ended.stderr.contains(why), "{}", ended.describe());
        assert!(!ended.describe().replace(replica, "").contains("geheim"), "{}", ended.describe());
    }
}

/// Goal: real servers: one that is killed in the middle of a tree is replaced by another of another make, and
/// the tree is as it was.
#[test]
fn a_real_server_that_dies_is_replaced() {
    need!("proftpd", "gridftp");
    let room = Room::new();
    let tree = room.dir("tree");
    for n in 0..12_u64 {
        room.dir(&format!("tree/sub{}", n % 3));
        room.file(&format!("tree/sub{}/small{n}", n % 3), bytes(20 + n, 3000));
    }
    for n in 0..6_u64 {
        room.file(&format!("tree/large{n}"), bytes(40 + n, 24 << 20));
    }
    let (mut one, other) = (Ftpd::start(Kind::Proftpd), Ftpd::start(Kind::Gridftp));
    let sink = room.dir("sink");
    let from = format!("{}/", one.url(&tree));
    let copy = cp(&from, &[&other.url(&tree)], &sink).args(["--rate=30MB/s"]);
    let mut run = copy.start();
    let begun = run.until(|_| fs::read_dir(&sink).is_ok_and(|mut dir| dir.next().is_some()));
    assert!(begun, "{}", run.stderr());
    procs::wait_until(Duration::from_millis(500), || false);
    one.kill();
    let ended = run.wait().sane().exits(0);
    assert!(used(&ended).contains("(left once at least"), "{}", ended.describe());
    assert_same(&tree, &sink, Opts { metadata: false, ..BELOW });
}
