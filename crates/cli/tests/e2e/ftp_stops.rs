//! Copies to servers of which something does not come up any more: data connections whose answers are dropped
//! on the way, and processes that stand still. A stop ends them all the same, and tells what was done.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::support::beside::beside;
use crate::support::compare::debris;
use crate::support::ftpd::{self, Ftpd, Kind};
use crate::support::netns::{FAR, NetnsPair, command_in};
use crate::support::run::Haul;
use crate::support::{Room, procs, tree};

/// A hang would last for longer: this is how long a server may be silent in these runs.
const PATIENCE: &str = "--patience=10m";
/// What ends in some seconds on an idle machine.
const ENDS_WITHIN: Duration = Duration::from_secs(50);
const PORT: u16 = 2121;
const DATA_PORTS: &str = "50000-51000";

/// A server in a namespace of its own, whose data connections can be blocked.
struct Behind {
    pair: NetnsPair,
    room: Room,
    kind: Kind,
    daemon: Child,
}

impl Behind {
    fn start(kind: Kind) -> Behind {
        let (pair, room) = (NetnsPair::new(), Room::new());
        room.dir("home");
        let of = match kind {
            Kind::Proftpd => ftpd::proftpd(&room, PORT, "PassivePorts 50000 51000\n"),
            _ => ftpd::gridftp(&room, PORT, &["-aa", "-anonymous-user", "root"]),
        };
        if kind == Kind::Proftpd {
            let config = fs::read_to_string(room.at("proftpd.conf")).expect("it is there");
            room.file("proftpd.conf", config.replace("127.0.0.1", FAR));
        }
        let mut command = command_in(&pair.far, of.get_program());
        let there = |word: &OsStr| if word == "127.0.0.1" { FAR.into() } else { word.to_owned() };
        command.args(of.get_args().map(there)).env("GLOBUS_TCP_PORT_RANGE", "50000,51000");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let daemon = command.spawn().expect("start a server");
        let behind = Behind { pair, room, kind, daemon };
        let listens =
            || !behind.sockets(&behind.pair.far, &["-Hltn", &format!("sport = :{PORT}")]).is_empty();
        assert!(procs::wait_until(Duration::from_secs(60), listens), "{kind:?} does not start");
        behind
    }

    /// Whether answers from data ports are dropped.
    fn block(&self, blocks: bool) {
        let what = if blocks { "add" } else { "del" };
        rule(&self.pair, &format!("{what} pref 5 ipproto tcp sport {DATA_PORTS} blackhole"));
    }

    fn sockets(&self, namespace: &str, words: &[&str]) -> String {
        let run = command_in(namespace, OsStr::new("ss")).args(words).output();
        String::from_utf8_lossy(&run.expect("run ss").stdout).trim().to_owned()
    }

    fn dials(&self) -> bool {
        !self.sockets(&self.pair.near, &["-Htn", "state", "syn-sent"]).is_empty()
    }

    fn cp(&self, options: &[&str], data: &Path, sink: &Path) -> Haul {
        let who = match self.kind {
            Kind::Proftpd => format!("{}:{}@", ftpd::USER, ftpd::escaped_word(ftpd::PASSWORD)),
            _ => String::new(),
        };
        let url = format!("ftp://{who}{FAR}:{PORT}{}", sink.display());
        Haul::cp(["-r"]).args(options).args([ftpd::contents(data)]).args([url]).near(&self.pair)
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        let all = procs::descendants(self.daemon.id());
        let _ = self.daemon.kill();
        procs::signal_all(&all, Signal::KILL);
        let _ = self.daemon.wait();
    }
}

fn rule(pair: &NetnsPair, words: &str) {
    let run = Command::new("ip").args(["-n", &pair.far, "rule"]).args(words.split(' ')).output();
    let run = run.expect("run ip");
    assert!(run.status.success(), "{words}: {}", String::from_utf8_lossy(&run.stderr));
}

fn files(room: &Room, count: usize) -> PathBuf {
    let data = room.dir("data");
    let mut rng = fastrand::Rng::with_seed(22);
    (0..count)
        .for_each(|n| fs::write(data.join(format!("f{n}")), tree::bytes(&mut rng, 100)).expect("write"));
    data
}

/// Files that have their names.
fn named(sink: &Path) -> u64 {
    let names = fs::read_dir(sink).expect("list it").flatten().map(|entry| entry.file_name());
    names.filter(|name| name.as_encoded_bytes().starts_with(b"f")).count() as u64
}

/// Goal: a stop does not wait for data connections that do not come up; where they come up after it, nothing
/// new is begun, and what was under way is counted.
/// Method: the answers of the data ports are dropped when the run begins; the stop comes as it dials. Then
/// they come again, or not.
#[test]
fn a_stop_does_not_wait_for_data_connections() {
    need!("proftpd", "netns", "ss");
    beside([Kind::Proftpd], |kind| {
        let behind = Behind::start(kind);
        let (data, sink) = (files(&behind.room, 300), behind.room.dir("home/sink"));
        for comes_again in [false, true] {
            behind.block(true);
            let mut run = behind.cp(&[PATIENCE], &data, &sink).start();
            assert!(run.until(|_| behind.dials()), "{}", run.stderr());
            run.signal(Signal::INT);
            if comes_again {
                behind.block(false);
            }
            let from = std::time::Instant::now();
            let ended = run.wait().sane().exits(130);
            assert!(from.elapsed() < ENDS_WITHIN, "{kind:?}: {}", ended.describe());
            if !comes_again {
                behind.block(false);
            }
            let (done, summary) = (named(&sink), ended.summary());
            assert_eq!(summary.number("files"), done, "{kind:?}: {}", ended.describe());
            assert_eq!(summary.number("failed"), 0, "{kind:?}: {}", ended.describe());
            assert!(done < if comes_again { 100 } else { 1 }, "{kind:?}: {}", ended.describe());
            assert!(debris(&sink).is_empty(), "{kind:?}: {}", ended.describe());
        }
    });
}

/// Goal: a stop does not wait for a server whose processes stand still, however many files are left.
#[test]
fn a_stop_does_not_wait_for_a_frozen_server() {
    need!("proftpd", "gridftp");
    beside([Kind::Proftpd, Kind::Gridftp, Kind::GridftpGsi], |kind| {
        let (room, ftpd) = (Room::new(), Ftpd::start(kind));
        let (data, sink) = (files(&room, 2_000), room.dir("sink"));
        let url = ftpd.url(&sink);
        let haul = match kind {
            Kind::GridftpGsi => super::ftp_gsi::of(&ftpd).env("X509_USER_PROXY", ftpd.of_grid("alice")),
            _ => Haul::cp(["-r"]),
        };
        let mut run = haul.args([PATIENCE]).args([ftpd::contents(&data)]).args([url]).start();
        assert!(run.until(|_| !debris(&sink).is_empty()), "{}", run.stderr());
        ftpd.freeze();
        let done = named(&sink);
        run.signal(Signal::INT);
        let from = std::time::Instant::now();
        let ended = run.wait().sane().exits(130);
        assert!(from.elapsed() < ENDS_WITHIN, "{kind:?}: {}", ended.describe());
        let summary = ended.summary();
        let counted = summary.number("files");
        assert!(counted <= done && done < 2_000, "{kind:?}: {done} and {counted}: {}", ended.describe());
        // Renames under way: it may be that the server did them.
        assert!(counted + summary.number("failed") >= done, "{kind:?}: {done}: {}", ended.describe());
    });
}
