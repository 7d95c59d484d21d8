//! `--resume=trust` from servers: what an interrupted run had of a large file is gone on with.

use std::fs;
use std::path::Path;

use rustix::process::Signal;

use crate::support::beside::beside;
use crate::support::compare::{BELOW, Opts, assert_no_debris, assert_same};
use crate::support::ftpd::{Ftpd, Kind, contents};
use crate::support::liar::{Lies, Manner, Rest};
use crate::support::run::{Haul, Outcome};
use crate::support::sshd::Sshd;
use crate::support::{Room, procs, read, tree};

const MIB: usize = 1 << 20;

fn some_bytes(seed: u64) -> Vec<u8> {
    bytes(seed, 40 * MIB + 7)
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    tree::bytes(&mut fastrand::Rng::with_seed(seed), len)
}

/// A copy that is killed when so much of it was written that some of that is on record.
fn killed(url: &str, sink: &Path) {
    let copy = Haul::cp(["--rate=16MiB/s", "--memory=16MiB", "--patience=3s", url]).args([sink]);
    let mut run = copy.start();
    let begun = run.until(|run| procs::written(&run.near()) > 24 << 20);
    assert!(begun, "it ended before it had begun\n{}", run.stderr());
    run.signal(Signal::KILL);
    assert!(run.wait().was_killed());
    assert!(!sink.exists(), "half a file has its name");
}

fn resumed(url: &str, sink: &Path) -> Outcome {
    Haul::cp(["--resume=trust", "--patience=3s", url]).args([sink]).run().sane()
}

/// Goal: with trust an interrupted copy goes on where it was, and what arrives is the file; without it, it
/// begins anew. A file that has another time, or other bytes where the interrupted run ended, begins anew
/// with trust, too.
#[test]
fn an_interrupted_file_is_gone_on_with() {
    beside(Kind::these(&[Kind::Proftpd, Kind::Gridftp]), |kind| {
        let room = Room::new();
        let (big, other) = (some_bytes(3), some_bytes(4));
        let path = room.file("big", &big);
        let (server, sink) = (Ftpd::start(kind), room.at("copy"));
        let url = server.url(&path);
        let sent = |ended: &Outcome| ended.summary().number("bytes_sent");
        let trusted = |ended: &Outcome| ended.summary().0["held"]["trusted"].as_u64().expect("a number");

        killed(&url, &sink);
        let ended = resumed(&url, &sink).exits(0);
        assert!(read(&sink) == big, "{kind:?}: {}", ended.describe());
        assert!(sent(&ended) < 36 * MIB as u64, "{kind:?}: all came again\n{}", ended.describe());
        assert!(trusted(&ended) > 0, "{kind:?}: {}", ended.describe());
        assert_no_debris(&room.at(""));

        // Of the same length and time.
        fs::remove_file(&sink).expect("remove the copy");
        killed(&url, &sink);
        let time = fs::metadata(&path).expect("there").modified().expect("a time");
        fs::write(&path, &other).expect("write it anew");
        fs::File::options().write(true).open(&path).and_then(|file| file.set_modified(time)).expect("set it");
        let ended = resumed(&url, &sink).exits(0);
        assert!(read(&sink) == other, "{kind:?}: two versions are mixed\n{}", ended.describe());
        assert!(sent(&ended) >= other.len() as u64, "{kind:?}: {}", ended.describe());
        assert_eq!(trusted(&ended), 0, "{kind:?}: nothing of it was believed\n{}", ended.describe());

        if kind == Kind::Gridftp {
            return;
        }
        fs::remove_file(&sink).expect("remove the copy");
        killed(&url, &sink);
        let ended = Haul::cp([&url]).args([&sink]).run().sane().exits(0);
        assert!(sent(&ended) >= big.len() as u64, "{kind:?}: {}", ended.describe());
        // It is young, and waited for; meanwhile nobody reads what will not be gone on with.
        assert_eq!(ended.summary().0["held"]["checked"].as_u64(), Some(0), "{}", ended.describe());
        assert!(!ended.stderr.contains("held from an earlier run"), "{}", ended.describe());

        fs::remove_file(&sink).expect("remove the copy");
        killed(&url, &sink);
        fs::write(&path, &big).expect("write it anew");
        fs::File::options()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_modified(time + std::time::Duration::from_secs(5)))
            .expect("set it");
        let ended = resumed(&url, &sink).exits(0);
        assert!(read(&sink) == big, "{kind:?}: two versions are mixed\n{}", ended.describe());
    });
}

/// The names of all that failed, in their order.
fn failures(list: &Path) -> Vec<String> {
    let text = fs::read_to_string(list).expect("read the list");
    let path = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
        // The last line may say how it ended.
        line["path"].as_str().map(str::to_owned)
    };
    let mut paths: Vec<String> = text.lines().filter_map(path).collect();
    paths.sort();
    paths
}

/// Goal: a server that goes away for longer than is tried costs nothing of what came: the run has failed,
/// names what is not there, and says what it keeps; the same command goes on there when the server is back.
/// Without trust it says that nothing of unfinished files is kept.
/// Method: several files at a time, of which one is finished; all processes of the server are killed.
#[test]
fn a_server_that_goes_away_leaves_what_came() {
    beside(Kind::these(&[Kind::Proftpd, Kind::Gridftp]), |kind| {
        let (room, mut server) = (Room::new(), Ftpd::start(kind));
        let (data, sink, list) = (room.dir("data"), room.dir("sink"), room.at("list"));
        let large = ["one", "other"];
        // What lies in sockets arrives behind the end of a server: one file is longer than that.
        for (name, len) in [("early", 2 * MIB), ("one", 40 * MIB), ("other", 128 * MIB)] {
            room.file(&format!("data/{name}"), bytes(len as u64, len));
        }
        let url = server.url(contents(&data));
        let copy = |options: &[&str]| {
            Haul::cp(["-r", "--patience=3s", "--memory=32MiB"]).args(options).args([&url]).args([&sink])
        };
        let sent = |ended: &Outcome| ended.summary().number("bytes_sent");
        let ends = |options: &[&str], server: &mut Ftpd| {
            let failed = format!("--failures={}", list.display());
            let mut run = copy(&["--rate=16MiB/s", &failed]).args(options).start();
            let begun =
                run.until(|run| sink.join("early").exists() && procs::written(&run.near()) > 40 << 20);
            assert!(begun, "{kind:?}: it ended before it had begun\n{}", run.stderr());
            server.kill();
            let ended = run.wait().sane().exits(1).says("the source's server is gone");
            assert!(read(sink.join("early")) == read(data.join("early")), "{kind:?}: {}", ended.describe());
            // What is not there is named, and nothing else; no half has a name.
            let named = failures(&list);
            let missing: Vec<&str> = large.into_iter().filter(|name| !sink.join(name).exists()).collect();
            assert!(!missing.is_empty() && named == missing, "{kind:?}: {named:?}\n{}", ended.describe());
            ended
        };

        let ended = ends(&["--resume=trust"], &mut server).says("kept for the resume");
        let kept = ended.summary().number("kept");
        assert!(kept > 16 << 20, "{kind:?}: {}", ended.describe());
        server.start_again();
        let ended = copy(&["--resume=trust"]).run().sane().exits(0);
        assert!(ended.summary().0["held"]["trusted"].as_u64() > Some(0), "{kind:?}: {}", ended.describe());
        assert!(sent(&ended) < (170 - 8) << 20, "{kind:?}: all came again\n{}", ended.describe());
        assert_same(&data, &sink, Opts { metadata: false, ..BELOW });
        assert_no_debris(&sink);

        if kind == Kind::Proftpd {
            large.iter().for_each(|name| fs::remove_file(sink.join(name)).expect("remove the copy"));
            ends(&[], &mut server).says("nothing of unfinished ones, unless it has --resume=trust");
            server.start_again();
            // It has other bytes now, of the same length and time as before.
            let path = data.join("one");
            let time = fs::metadata(&path).expect("there").modified().expect("a time");
            fs::write(&path, bytes(10, 40 * MIB)).expect("write it anew");
            let file = fs::File::options().write(true).open(&path).expect("open it");
            file.set_modified(time).expect("set it");
            copy(&["--resume=trust"]).run().sane().exits(0);
            assert_same(&data, &sink, Opts { metadata: false, ..BELOW });
        }
    });
}

/// Goal: where the haul of another host, or two hosts, are between server and destination, it is the same.
/// Method: the server is read by the other host, and then from here to it.
#[test]
fn two_hosts_keep_what_came_from_a_server_that_is_gone() {
    need!("sshd", "proftpd");
    let (room, sshd, mut server) = (Room::new(), Sshd::start(), Ftpd::start(Kind::Proftpd));
    // More than what is on its way between the ends when it is seen to be under way.
    let path = room.file("big", bytes(11, 96 * MIB));
    for far_reads in [true, false] {
        let sink = room.at(&format!("copy-{far_reads}"));
        let url = server.url(&path);
        let (from, to) = match far_reads {
            true => (sshd.path(Path::new(&url)), sink.clone().into_os_string()),
            false => (url.into(), sshd.path(&sink)),
        };
        let copy = |options: &[&str]| {
            let options = [&["--resume=trust", "--memory=16MiB"], options].concat();
            Haul::cp(options).by(&sshd).args([&from, &to])
        };
        let mut run = copy(&["--rate=16MiB/s"]).start();
        let mark = if far_reads { run.mark.clone() } else { sshd.mark.clone() };
        let begun = run.until(|_| procs::written(&procs::marked(&mark)) > 24 << 20);
        assert!(begun, "it ended before it had begun\n{}", run.stderr());
        server.kill();
        let ended =
            run.wait().sane().exits(1).says("the source's server is gone").says("kept for the resume");
        assert!(!sink.exists(), "{}", ended.describe());
        server.start_again();
        let ended = copy(&[]).run().sane().exits(0);
        assert!(read(&sink) == read(&path), "{}", ended.describe());
        let sent = ended.summary().number("bytes_sent");
        assert!(sent < 88 << 20, "all came again\n{}", ended.describe());
    }
    assert_no_debris(&room.at(""));
}

/// Goal: a server that loses each session at one file, and is there, costs that file alone.
/// Method: a server of ours that hangs up in the middle of it.
#[test]
fn a_server_that_lives_is_not_gone() {
    let (room, big) = (Room::new(), some_bytes(6));
    let sink = room.dir("sink");
    let lies = Lies::default().odd("/d/lost", &big, big.len(), Manner::HangUp(MIB), usize::MAX);
    let liar = lies.file("/d/a", &big).file("/d/b", &big).file("/d/c", &big).start();
    let list = room.at("list");
    let failed = format!("--failures={}", list.display());
    let ended =
        Haul::cp(["-r", "--patience=3s", &failed, &liar.url("/d/")]).args([&sink]).run().sane().exits(3);
    assert_eq!(failures(&list), ["lost"], "{}", ended.describe());
    for name in ["a", "b", "c"] {
        assert!(read(sink.join(name)) == big, "{name}: {}", ended.describe());
    }
}

/// Goal: a server that obeys no offset gives no wrong file with trust.
#[test]
fn an_offset_that_is_not_obeyed_is_no_resume() {
    beside([Rest::Ignored, Rest::Kept], |rest| {
        let (room, big) = (Room::new(), some_bytes(5));
        let sink = room.at("copy");
        let liar = Lies::default().rest(rest).file("/d/big", &big).start();
        let url = liar.url("/d/big");
        killed(&url, &sink);
        let ended = resumed(&url, &sink);
        match fs::read(&sink) {
            Ok(copy) => assert!(copy == big, "{}", ended.describe()),
            Err(_) => assert!(ended.status.code() != Some(0), "{}", ended.describe()),
        }
    });
}
