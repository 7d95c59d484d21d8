//! Servers of which some sessions are silent and stay open: the others do the work.
//!
//! Nothing here depends on how long anything takes: the patience is longer than a test may be, so that what
//! is given to a session that stands still is never copied, and the copy never ends.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal};

use crate::support::compare::assert_no_debris;
use crate::support::ftpd::{Ftpd, Kind, contents};
use crate::support::run::{Haul, Running};
use crate::support::{Room, procs, read, tree};

const MIB: usize = 1 << 20;
const PATIENT: &str = "--patience=1h";

/// How many bytes a copy has said last that it has sent.
fn sent(run: &Running) -> u64 {
    let last = |text: &str| {
        let line = text.lines().rev().find(|line| line.contains("\"bytes_sent\":"))?;
        let (_, rest) = line.split_once("\"bytes_sent\":")?;
        rest.split(|char: char| !char.is_ascii_digit()).next()?.parse().ok()
    };
    last(&String::from_utf8_lossy(&run.stdout())).unwrap_or(0)
}

/// Sessions of a server that have no file of `part` open, when there are so many of them and another one has.
fn idle(server: &Ftpd, part: &str, count: usize) -> Vec<Pid> {
    let mut found = Vec::new();
    procs::wait_until(Duration::from_secs(60), || {
        let all = server.sessions();
        let busy = procs::holding(&all, part);
        found = all.into_iter().filter(|pid| !busy.contains(pid)).collect();
        found.len() >= count && !busy.is_empty()
    });
    found
}

/// Goal: what has not begun at a destination goes to sessions that answer.
/// Method: of a real server all sessions that have nothing to do stand still, while a large file goes over
/// another one; then it is to be looked at, renamed and given its time.
#[test]
fn sessions_that_stand_still_are_given_nothing() {
    need!("proftpd");
    let (room, server) = (Room::new(), Ftpd::start(Kind::Proftpd));
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    let mut rng = fastrand::Rng::with_seed(83);
    fs::write(data.join("a"), tree::bytes(&mut rng, 60 * MIB)).expect("write a file");
    // Sessions are opened for files.
    for n in 0..100 {
        fs::write(data.join(format!("b{n}")), tree::bytes(&mut rng, 100)).expect("write a file");
    }
    let url = server.url(&sink);
    let mut run = Haul::cp(["-r", PATIENT, "--rate=8MiB/s", "--memory=16MiB"])
        .args([contents(&data)])
        .args([url])
        .start();
    assert!(run.until(|run| sent(run) > 2 * MIB as u64), "{}", run.stderr());
    // One is the large file's.
    let frozen = idle(&server, ".haul~", 7);
    procs::signal_all(&frozen, Signal::STOP);
    let ended = run.wait().sane();
    procs::signal_all(&frozen, Signal::CONT);
    let ended = ended.exits(0);
    assert!(frozen.len() >= 7, "{} sessions were idle\n{}", frozen.len(), ended.describe());
    assert!(read(sink.join("a")) == read(data.join("a")), "{}", ended.describe());
    assert_no_debris(Path::new(&sink));
}
