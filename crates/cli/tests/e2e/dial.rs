//! The far end dials: sites that allow connections in one direction only, and what goes wrong meanwhile.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::support::compare::{ALL, assert_no_debris, assert_same};
use crate::support::netns::{NEAR, NetnsPair};
use crate::support::run::{Haul, Running};
use crate::support::sshd::{FarHaul, Sshd};
use crate::support::{Room, procs, tree};

/// The port of the end that listens in these tests; each has its own namespaces.
const PORT: u16 = 40400;

/// Two hosts with a tree.
struct Hosts {
    pair: NetnsPair,
    sshd: Sshd,
    room: Room,
    data: PathBuf,
}

impl Hosts {
    fn new(files: usize, big: usize) -> Hosts {
        let pair = NetnsPair::new();
        let sshd = Sshd::start_as(FarHaul::Built, Some(&pair));
        let room = Room::new();
        let data = room.dir("data");
        tree::plain(&data, 81, files, big);
        Hosts { pair, sshd, room, data }
    }

    /// A copy to or from the far host; the far end dials, unless the options say otherwise.
    fn copy(&self, pull: bool, options: &[&str]) -> Haul {
        let sink = self.room.dir("sink");
        let (from, to) = match pull {
            true => (self.sshd.path(&self.data), sink.into_os_string()),
            false => (self.data.clone().into_os_string(), self.sshd.path(&sink)),
        };
        let dial = if pull { "--dial=source" } else { "--dial=sink" };
        let dial = if options.iter().any(|option| option.starts_with("--dial")) { &[][..] } else { &[dial] };
        let port = format!("--port={PORT}");
        let haul = Haul::cp(["-r", port.as_str()]).args(dial).args(options).by(&self.sshd);
        haul.args([&from, &to]).near(&self.pair)
    }

    /// A copy that has begun to write, slow enough that the trouble comes before its end.
    fn begin(&self, pull: bool, options: &[&str]) -> Running {
        let options = [&["--streams=4", "--rate=150MB/s"], options].concat();
        let mut run = self.copy(pull, &options).start();
        let mark = if pull { run.mark.clone() } else { self.sshd.mark.clone() };
        assert!(run.until(|_| procs::written(&procs::marked(&mark)) > 8 << 20), "it has begun");
        run
    }

    /// The far ends of the connections to the near host's port.
    fn connections(&self) -> BTreeSet<u16> {
        let listed = self.near(&["ss", "-Htn", "state", "established", "sport", "=", &format!(":{PORT}")]);
        let peer = |line: &str| line.split_whitespace().nth(3)?.rsplit_once(':')?.1.parse().ok();
        listed.lines().filter_map(peer).collect()
    }

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

/// Goal: where only one direction is open the copy takes it by itself, and where it is pinned it takes that; the summary
/// says which end dialled; nothing outlives the run.
/// Method: a firewall at one host that drops what comes for haul's port; the direction pinned; both ways.
#[test]
fn the_open_direction_is_taken() {
    need!("netns", "sshd");
    for pull in [false, true] {
        let hosts = Hosts::new(100, 9_000_000);
        let from_far = format!("tcp from the far end to {NEAR}:{PORT}");
        let run = |options: &[&str]| {
            let ended = hosts.copy(pull, options).run().sane().exits(0);
            assert_eq!(ended.summary().text("protect"), "tls", "{}", ended.describe());
            assert_eq!(ended.summary().number("strays"), 0, "{}", ended.describe());
            hosts.assert_copied();
            procs::wait_gone(&hosts.sshd.mark);
            std::fs::remove_dir_all(hosts.room.at("sink")).expect("make room");
            ended.summary().text("path").to_owned()
        };
        assert_eq!(run(&[]), from_far);
        assert_eq!(run(&["--via", NEAR]), from_far);
        hosts.pair.close(&hosts.pair.far, PORT);
        assert_eq!(run(&["--dial=auto"]), from_far);
    }
}

/// Goal: a pinned direction that is closed ends the copy with a sentence that says what to do; both closed lead through ssh.
#[test]
fn a_closed_direction_is_named() {
    need!("netns", "sshd");
    let hosts = Hosts::new(20, 1_000_000);
    hosts.pair.close(&hosts.pair.near, PORT);
    hosts.copy(false, &[]).run().sane().exits(1).says("is closed to").says("--dial auto");
    hosts.pair.close(&hosts.pair.far, PORT);
    let ended = hosts.copy(false, &["--dial=auto"]).run().sane().exits(0);
    let ended = ended.says("through ssh").says("allow tcp").says(NEAR);
    assert_eq!(ended.summary().text("protect"), "ssh", "{}", ended.describe());
    hosts.assert_copied();
}

/// Goal: connections that are killed, control among them, are replaced by the far end, which dialled, both ways.
/// Method: `ss -K` of every connection of the start, one after the other; there are new ones afterwards.
#[test]
fn killed_connections_are_dialled_again_by_the_far_end() {
    need!("netns", "sshd", "ss");
    for pull in [false, true] {
        let hosts = Hosts::new(50, 640 << 20);
        let run = hosts.begin(pull, &[]);
        let first = hosts.connections();
        assert_eq!(first.len(), 5, "control and four streams");
        for port in &first {
            hosts.near(&["ss", "-Kt", "dport", "=", &format!(":{port}")]);
            procs::wait_until(Duration::from_millis(100), || false);
        }
        let mut last = BTreeSet::new();
        procs::wait_until(Duration::from_secs(30), || {
            last = hosts.connections();
            (last.len() == 5 && last.is_disjoint(&first)) || last.is_empty()
        });
        let ended = run.wait().sane().exits(0);
        assert!(first.is_disjoint(&last), "they were killed: {first:?}, {last:?}\n{}", ended.describe());
        assert_eq!(last.len(), 5, "not replaced, or the copy was too short\n{}", ended.describe());
        hosts.assert_copied();
    }
}

/// Goal: an end that is killed does not leave the other one behind, whichever it is, and the same command goes on.
#[test]
fn a_killed_end_ends_the_other() {
    need!("netns", "sshd");
    for (pull, near) in [(false, true), (true, true), (false, false), (true, false)] {
        let hosts = Hosts::new(20, 256 << 20);
        let run = hosts.begin(pull, &[]);
        match near {
            true => run.signal(Signal::KILL),
            false => procs::signal_all(&procs::marked(&hosts.sshd.mark), Signal::KILL),
        }
        let ended = run.wait();
        assert!(
            if near { ended.was_killed() } else { ended.status.code() == Some(1) },
            "{}",
            ended.describe()
        );
        procs::wait_gone(&hosts.sshd.mark);
        hosts.copy(pull, &[]).run().sane().exits(0);
        hosts.assert_copied();
    }
}

/// Goal: a host that ssh reaches through another one by its configuration (`ProxyJump`) or by `-J` is one like any other:
/// data take a connection of their own where there is a way, whichever end dials.
/// Method: two sshds, of which only the first forwards; what the far end takes for the near one's address is the first's.
#[test]
fn a_jump_host_is_no_end() {
    need!("netns", "sshd");
    let hosts = Hosts::new(50, 9_000_000);
    let jump = Sshd::start_jump(&hosts.pair);
    let config = hosts.room.at("ssh_config");
    let through = |line: &str| {
        let text = [jump.config("jump"), hosts.sshd.config("target"), line.to_owned()].concat();
        std::fs::write(&config, text).expect("write ssh's configuration");
    };
    for (line, option) in [("ProxyJump jump\n", ""), ("", " -J jump")] {
        through(line);
        let ssh = format!("ssh -F {}{option}", config.display());
        for (dial, path) in [("--dial=source", "tcp to "), ("--dial=sink", "tcp from the far end to ")] {
            let sink = hosts.room.dir("sink");
            let to = format!("target:{}", sink.display());
            let haul = Haul::cp(["-r", "-e", &ssh, dial]).args([hosts.data.as_os_str(), to.as_ref()]);
            let ended = haul.near(&hosts.pair).run().sane().exits(0);
            assert!(ended.summary().text("path").starts_with(path), "{}", ended.describe());
            assert_eq!(ended.summary().text("protect"), "tls", "{}", ended.describe());
            hosts.assert_copied();
            procs::wait_gone(&hosts.sshd.mark);
            std::fs::remove_dir_all(&sink).expect("make room");
        }
    }
}
