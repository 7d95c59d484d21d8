//! Networks that fail under a copy: killed connections, a dark link, a black hole. The copy goes on and is
//! exact.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use rustix::process::Signal;

use crate::support::flood::Flood;
use crate::support::hosts::Hosts;
use crate::support::netns::{FAR, NEAR};
use crate::support::procs;
use crate::support::run::Haul;

/// The port of the far end in these tests; each has its own namespaces.
const PORT: u16 = 40300;
const PORT_OPTION: &str = "--port=40300";

/// Goal: connections that are killed, control among them, are replaced, and the copy goes on, both ways.
/// Method: `ss -K` of every connection of the start, one after the other; there are new ones afterwards.
#[test]
fn killed_connections_are_replaced() {
    need!("netns", "sshd", "ss");
    for pull in [false, true] {
        let hosts = Hosts::new(71, 200, 640 << 20);
        let run = hosts.begin(pull, &[PORT_OPTION]);
        let first = hosts.near_ends(PORT);
        assert_eq!(first.len(), 5, "control and four streams");
        for port in &first {
            hosts.near(&["ss", "-Kt", "sport", "=", &format!(":{port}")]);
            procs::wait_until(Duration::from_millis(100), || false);
        }
        let mut last = BTreeSet::new();
        procs::wait_until(Duration::from_secs(30), || {
            last = hosts.near_ends(PORT);
            last.len() == 5 || last.is_empty()
        });
        let ended = run.wait().sane().exits(0);
        assert!(first.is_disjoint(&last), "they were killed: {first:?}, {last:?}\n{}", ended.describe());
        assert_eq!(last.len(), 5, "not replaced, or the copy was too short\n{}", ended.describe());
        hosts.assert_copied();
    }
}

/// Goal: strangers keep no copy from starting, nor a stream or control that was cut from coming back, both
/// ways.
/// Method: 80 silent connections to the far end's port, opened again whenever they are closed, and some 300
/// new ones a second, from the near host's own address and from another, before the start and until the end;
/// `ss -K` of two connections of the start, control or streams as they come.
#[test]
fn a_flood_keeps_no_copy_out() {
    need!("netns", "sshd", "ss");
    for pull in [false, true] {
        let hosts = Hosts::new(73, 50, 200 << 20);
        let other = Ipv4Addr::new(10, 79, 0, 9);
        hosts.near(&["ip", "addr", "add", &format!("{other}/24"), "dev", "veth0"]);
        let near: Ipv4Addr = NEAR.parse().expect("an address");
        let to = SocketAddrV4::new(FAR.parse().expect("an address"), PORT);
        let flood = Flood::start(&hosts.pair.near, &[near, other], to, 80);
        let copy = hosts.copy(pull, &["--streams=4", "--rate=10MB/s", PORT_OPTION]);
        let mut run = hosts.begun(pull, copy);
        // Those of the near haul, among all the others.
        let ours = || -> BTreeSet<u16> {
            let dport = format!(":{PORT}");
            let listed = hosts.near(&["ss", "-Htnp", "state", "established", "dport", "=", &dport]);
            let ours = listed.lines().filter(|line| line.contains("\"haul\""));
            ours.filter_map(|line| line.split_whitespace().nth(2)?.rsplit_once(':')?.1.parse().ok()).collect()
        };
        let mut first = BTreeSet::new();
        let all = run.until(|_| {
            first = ours();
            first.len() == 5 && flood.came() > 100
        });
        let strangers = flood.came();
        assert!(all, "not all came: ours {first:?}, and {strangers} strangers\n{}", run.stderr());
        let cut: Vec<u16> = first.iter().copied().step_by(3).collect();
        for port in &cut {
            hosts.near(&["ss", "-Kt", "sport", "=", &format!(":{port}")]);
        }
        let mut last = BTreeSet::new();
        let back = run.until(|_| {
            last = ours();
            last.len() == 5 && cut.iter().all(|port| !last.contains(port))
        });
        assert!(back, "what was cut never came back: {first:?}, {last:?}\n{}", run.stderr());
        assert!(flood.lasts(), "it was over before");
        run.wait().sane().exits(0);
        drop(flood);
        hosts.assert_copied();
    }
}

/// Goal: a link that is down for longer than any connection lives is waited out, and the progress says so.
/// Method: the cable is out for 20 seconds in the middle of the copy.
#[test]
fn a_dark_link_is_waited_out() {
    need!("netns", "sshd");
    for pull in [false, true] {
        let hosts = Hosts::new(71, 200, 512 << 20);
        let run = hosts.begin(pull, &[PORT_OPTION]);
        hosts.pair.cable(false);
        procs::wait_until(Duration::from_secs(20), || false);
        hosts.pair.cable(true);
        let ended = run.wait().sane().exits(0);
        let waited = ended.events().iter().any(|event| event.to_string().contains("s for the network"));
        assert!(waited, "{}", ended.describe());
        hosts.assert_copied();
    }
}

/// Goal: a near link that is down behind a gateway that refuses everything in the far host's name is waited
/// out as one that says nothing, though ssh is lost with it.
/// Method: the near host takes the far one's address for its own, until the progress has told for longer than
/// a dead far end was ever asked.
#[test]
fn a_refusing_gateway_is_waited_out() {
    need!("netns", "sshd");
    for pull in [false, true] {
        let hosts = Hosts::new(71, 200, 512 << 20);
        let mut run = hosts.begin(pull, &[PORT_OPTION]);
        let taken = format!("{FAR}/32");
        hosts.near(&["ip", "addr", "add", &taken, "dev", "lo"]);
        let waited = run.until(|run| {
            let said = String::from_utf8_lossy(&run.stdout()).into_owned();
            let seconds = said.rsplit_once("waiting ").and_then(|(_, rest)| rest.split(' ').next());
            seconds.and_then(|number| number.parse::<u32>().ok()) >= Some(25)
        });
        assert!(waited, "it gave up\n{}", run.stderr());
        hosts.near(&["ip", "addr", "del", &taken, "dev", "lo"]);
        run.wait().sane().exits(0);
        hosts.assert_copied();
    }
}

/// Goal: a far end that is killed is not waited for, whatever the patience: its shell says that it has ended.
#[test]
fn a_far_end_that_is_killed_is_not_waited_for() {
    need!("netns", "sshd");
    for pull in [false, true] {
        let hosts = Hosts::new(71, 200, 256 << 20);
        // Nothing refuses: its port is answered by nobody any more.
        let run = hosts.begin(pull, &[PORT_OPTION, "--patience=1h"]);
        hosts.pair.close(&hosts.pair.far, PORT);
        procs::signal_all(&procs::marked(&hosts.sshd.mark), Signal::KILL);
        run.wait().sane().exits(1).says("the haul at the other end is gone");
    }
}

/// Goal: a connection whose packets vanish while the others move is cut and replaced, and what was on it goes
/// again.
/// Method: a rule of the near host's routing that swallows what one of the connections sends.
#[test]
fn a_black_holed_stream_is_replaced() {
    need!("netns", "sshd", "ss");
    for pull in [false, true] {
        let hosts = Hosts::new(71, 200, 512 << 20);
        let run = hosts.begin(pull, &[PORT_OPTION]);
        let victim = *hosts.near_ends(PORT).iter().next_back().expect("there are connections");
        let (from, to) = (victim.to_string(), PORT.to_string());
        let rule = ["rule", "add", "pref", "5", "ipproto", "tcp", "sport", &from, "dport", &to, "blackhole"];
        hosts.near(&[&["ip"][..], &rule].concat());
        run.wait().sane().exits(0);
        hosts.assert_copied();
    }
}

/// Goal: a network that does not come back ends the copy after `--patience`, and the same command completes
/// it when it is back, though the far end of the first may still wait.
/// Method: the cable is out until the first command has failed.
#[test]
fn patience_is_bounded_and_a_new_run_takes_over() {
    need!("netns", "sshd");
    let hosts = Hosts::new(71, 200, 256 << 20);
    let run = hosts.begin(false, &[PORT_OPTION, "--patience=2s"]);
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
