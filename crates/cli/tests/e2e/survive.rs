//! Networks that fail under a copy: killed connections, a dark link, a black hole. The copy goes on and is exact.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::support::compare::{ALL, assert_no_debris, assert_same};
use crate::support::netns::NetnsPair;
use crate::support::run::{Haul, Running};
use crate::support::sshd::{FarHaul, Sshd};
use crate::support::{Room, procs, tree};

/// The port of the far end in these tests; each has its own namespaces.
const PORT: u16 = 40300;

/// Two hosts with a tree of which one large file is most.
struct Hosts {
    pair: NetnsPair,
    sshd: Sshd,
    room: Room,
    data: PathBuf,
}

impl Hosts {
    fn new(big: usize) -> Hosts {
        let pair = NetnsPair::new();
        let sshd = Sshd::start_as(FarHaul::Built, Some(&pair));
        let room = Room::new();
        let data = room.dir("data");
        tree::plain(&data, 71, 200, big);
        Hosts { pair, sshd, room, data }
    }

    /// A copy to or from the far host that has begun to write.
    fn begin(&self, pull: bool, options: &[&str]) -> Running {
        let sink = self.room.dir("sink");
        let (from, to) = match pull {
            true => (self.sshd.path(&self.data), sink.into_os_string()),
            false => (self.data.clone().into_os_string(), self.sshd.path(&sink)),
        };
        let port = format!("--port={PORT}");
        // Slow enough that the trouble comes before the end.
        let haul =
            Haul::cp(["-r", port.as_str(), "--streams=4", "--rate=150MB/s"]).args(options).by(&self.sshd);
        let mut run = haul.args([&from, &to]).near(&self.pair).start();
        let mark = if pull { run.mark.clone() } else { self.sshd.mark.clone() };
        assert!(run.until(|_| procs::written(&procs::marked(&mark)) > 8 << 20), "it has begun");
        run
    }

    /// The near ends of the connections to haul's port.
    fn connections(&self) -> BTreeSet<u16> {
        let listed = self.near(&["ss", "-Htn", "state", "established", "dport", "=", &format!(":{PORT}")]);
        let local = |line: &str| line.split_whitespace().nth(2)?.rsplit_once(':')?.1.parse().ok();
        listed.lines().filter_map(local).collect()
    }

    /// Runs a command in the near host's network; what it says.
    fn near(&self, words: &[&str]) -> String {
        let run = Command::new("ip").args(["netns", "exec", &self.pair.near]).args(words).output();
        let output = run.expect("run ip netns exec");
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn assert_copied(&self) {
        assert_same(&self.data, &self.room.at("sink/data"), ALL);
        assert_no_debris(&self.room.at("sink"));
    }
}

/// Goal: connections that are killed, control among them, are replaced, and the copy goes on, both ways.
/// Method: `ss -K` of every connection of the start, one after the other; there are new ones afterwards.
#[test]
fn killed_connections_are_replaced() {
    need!("netns", "sshd", "ss");
    for pull in [false, true] {
        let hosts = Hosts::new(640 << 20);
        let run = hosts.begin(pull, &[]);
        let first = hosts.connections();
        assert_eq!(first.len(), 5, "control and four streams");
        for port in &first {
            hosts.near(&["ss", "-Kt", "sport", "=", &format!(":{port}")]);
            procs::wait_until(Duration::from_millis(100), || false);
        }
        let mut last = BTreeSet::new();
        procs::wait_until(Duration::from_secs(30), || {
            last = hosts.connections();
            last.len() == 5 || last.is_empty()
        });
        let ended = run.wait().sane().exits(0);
        assert!(first.is_disjoint(&last), "they were killed: {first:?}, {last:?}\n{}", ended.describe());
        assert_eq!(last.len(), 5, "not replaced, or the copy was too short\n{}", ended.describe());
        hosts.assert_copied();
    }
}

/// Goal: a link that is down for longer than any connection lives is waited out, and the progress says so.
/// Method: the cable is out for 20 seconds in the middle of the copy.
#[test]
fn a_dark_link_is_waited_out() {
    need!("netns", "sshd");
    for pull in [false, true] {
        let hosts = Hosts::new(512 << 20);
        let run = hosts.begin(pull, &[]);
        hosts.pair.cable(false);
        procs::wait_until(Duration::from_secs(20), || false);
        hosts.pair.cable(true);
        let ended = run.wait().sane().exits(0);
        let waited = ended.events().iter().any(|event| event.to_string().contains("s for the network"));
        assert!(waited, "{}", ended.describe());
        hosts.assert_copied();
    }
}

/// Goal: a connection whose packets vanish while the others move is cut and replaced, and what was on it goes again.
/// Method: a rule of the near host's routing that swallows what one of the connections sends.
#[test]
fn a_black_holed_stream_is_replaced() {
    need!("netns", "sshd", "ss");
    for pull in [false, true] {
        let hosts = Hosts::new(512 << 20);
        let run = hosts.begin(pull, &[]);
        let victim = *hosts.connections().iter().next_back().expect("there are connections");
        let (from, to) = (victim.to_string(), PORT.to_string());
        let rule = ["rule", "add", "pref", "5", "ipproto", "tcp", "sport", &from, "dport", &to, "blackhole"];
        hosts.near(&[&["ip"][..], &rule].concat());
        run.wait().sane().exits(0);
        hosts.assert_copied();
    }
}

/// Goal: a network that does not come back ends the copy after `--patience`, and the same command completes it when it
/// is back, though the far end of the first may still wait.
/// Method: the cable is out until the first command has failed.
#[test]
fn patience_is_bounded_and_a_new_run_takes_over() {
    need!("netns", "sshd");
    let hosts = Hosts::new(256 << 20);
    let run = hosts.begin(false, &["--patience=2s"]);
    hosts.pair.cable(false);
    run.wait().sane().exits(1).says("did not come back");
    hosts.pair.cable(true);
    let sink = hosts.sshd.path(&hosts.room.at("sink"));
    // The link finds its neighbours again in its own time, and the far end may have noticed nothing yet.
    let again =
        || Haul::cp(["-r"]).by(&hosts.sshd).args([hosts.data.as_os_str(), &sink]).near(&hosts.pair).run();
    let mut ended = again().sane();
    procs::wait_until(Duration::from_secs(60), || {
        if !ended.status.success() {
            ended = again().sane();
        }
        ended.status.success()
    });
    ended.exits(0);
    hosts.assert_copied();
}
