//! The far end dials: sites that allow connections in one direction only, and what goes wrong meanwhile.

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::process::Signal;

use crate::support::hosts::Hosts;
use crate::support::netns::NEAR;
use crate::support::procs;
use crate::support::run::Haul;
use crate::support::sshd::Sshd;

/// The port of the end that listens in these tests; each has its own namespaces.
const PORT: u16 = 40400;
const PORT_OPTION: &str = "--port=40400";

/// A copy to or from the far host; the far end dials, unless the options say otherwise.
fn far_dials<'a>(pull: bool, options: &[&'a str]) -> Vec<&'a str> {
    let dial = if pull { "--dial=source" } else { "--dial=sink" };
    let dial = if options.iter().any(|option| option.starts_with("--dial")) { None } else { Some(dial) };
    [PORT_OPTION].into_iter().chain(dial).chain(options.iter().copied()).collect()
}

/// Goal: where only one direction is open the copy takes it by itself, and where it is pinned it takes that;
/// the summary says which end dialled; nothing outlives the run.
/// Method: a firewall at one host that drops what comes for haul's port; the direction pinned; both ways.
#[test]
fn the_open_direction_is_taken() {
    need!("netns", "sshd");
    for pull in [false, true] {
        let hosts = Hosts::new(81, 100, 9_000_000);
        let from_far = format!("tcp from the far end to {NEAR}:{PORT}");
        let run = |options: &[&str]| {
            let ended = hosts.copy(pull, &far_dials(pull, options)).run().sane().exits(0);
            assert_eq!(ended.summary().text("protect"), "tls", "{}", ended.describe());
            assert_eq!(ended.summary().number("strays"), 0, "{}", ended.describe());
            hosts.assert_copied();
            procs::wait_gone(&hosts.sshd.mark);
            hosts.make_room("sink");
            ended.summary().text("path").to_owned()
        };
        assert_eq!(run(&[]), from_far);
        assert_eq!(run(&["--via", NEAR]), from_far);
        hosts.pair.close(&hosts.pair.far, PORT);
        assert_eq!(run(&["--dial=auto"]), from_far);
    }
}

/// Goal: a pinned direction that is closed ends the copy with a sentence that says what to do; both closed
/// lead through ssh.
#[test]
fn a_closed_direction_is_named() {
    need!("netns", "sshd");
    let hosts = Hosts::new(81, 20, 1_000_000);
    hosts.pair.close(&hosts.pair.near, PORT);
    hosts.copy(false, &far_dials(false, &[])).run().sane().exits(1).says("is closed to").says("--dial auto");
    hosts.pair.close(&hosts.pair.far, PORT);
    let ended = hosts.copy(false, &[PORT_OPTION, "--dial=auto"]).run().sane().exits(0);
    let ended = ended.says("through ssh").says("allow tcp").says(NEAR);
    assert_eq!(ended.summary().text("protect"), "ssh", "{}", ended.describe());
    hosts.assert_copied();
}

/// Goal: connections that are killed, control among them, are replaced by the far end, which dialled, both
/// ways.
/// Method: `ss -K` of every connection of the start, one after the other; there are new ones afterwards.
#[test]
fn killed_connections_are_dialled_again_by_the_far_end() {
    need!("netns", "sshd", "ss");
    for pull in [false, true] {
        let hosts = Hosts::new(81, 50, 640 << 20);
        let run = hosts.begin(pull, &far_dials(pull, &[]));
        let first = hosts.far_ends(PORT);
        assert_eq!(first.len(), 5, "control and four streams");
        for port in &first {
            hosts.near(&["ss", "-Kt", "dport", "=", &format!(":{port}")]);
            procs::wait_until(Duration::from_millis(100), || false);
        }
        let mut last = BTreeSet::new();
        procs::wait_until(Duration::from_secs(30), || {
            last = hosts.far_ends(PORT);
            (last.len() == 5 && last.is_disjoint(&first)) || last.is_empty()
        });
        let ended = run.wait().sane().exits(0);
        assert!(first.is_disjoint(&last), "they were killed: {first:?}, {last:?}\n{}", ended.describe());
        assert_eq!(last.len(), 5, "not replaced, or the copy was too short\n{}", ended.describe());
        hosts.assert_copied();
    }
}

/// Goal: an end that is killed does not leave the other one behind, whichever it is, and the same command
/// goes on.
#[test]
fn a_killed_end_ends_the_other() {
    need!("netns", "sshd");
    for (pull, near) in [(false, true), (true, true), (false, false), (true, false)] {
        let hosts = Hosts::new(81, 20, 256 << 20);
        let run = hosts.begin(pull, &far_dials(pull, &[]));
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
        hosts.copy(pull, &far_dials(pull, &[])).run().sane().exits(0);
        hosts.assert_copied();
    }
}

/// Goal: a host that ssh reaches through another one by its configuration (`ProxyJump`) or by `-J` is one
/// like any other: data take a connection of their own where there is a way, whichever end dials.
/// Method: two sshds, of which only the first forwards; what the far end takes for the near one's address is
/// the first's.
#[test]
fn a_jump_host_is_no_end() {
    need!("netns", "sshd");
    let hosts = Hosts::new(81, 50, 9_000_000);
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
            hosts.make_room("sink");
        }
    }
}
