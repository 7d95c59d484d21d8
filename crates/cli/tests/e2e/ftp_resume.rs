//! `--resume=trust` from servers: what an interrupted run had of a large file is gone on with.

use std::fs;
use std::path::Path;

use rustix::process::Signal;

use crate::support::beside::beside;
use crate::support::compare::assert_no_debris;
use crate::support::ftpd::{Ftpd, Kind};
use crate::support::liar::{Lies, Rest};
use crate::support::run::{Haul, Outcome};
use crate::support::{Room, procs, read, tree};

const MIB: usize = 1 << 20;

fn some_bytes(seed: u64) -> Vec<u8> {
    tree::bytes(&mut fastrand::Rng::with_seed(seed), 40 * MIB + 7)
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
