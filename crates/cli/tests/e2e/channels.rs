//! Several channels of one ssh connection, where no port can be reached: one login, every byte, and nothing
//! left behind.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::support::hosts::Hosts;
use crate::support::procs;
use crate::support::run::{Haul, Outcome, Running};
use crate::support::sshd::Sshd;

/// The only port that haul may use here, and cannot.
const PORT: u16 = 40500;
const PORT_OPTION: &str = "--port=40500";

/// Two hosts that reach each other by ssh alone.
fn closed(files: usize, big: usize) -> Hosts {
    close(Hosts::new(51, files, big))
}

fn close(hosts: Hosts) -> Hosts {
    hosts.pair.close(&hosts.pair.near, PORT);
    hosts.pair.close(&hosts.pair.far, PORT);
    hosts
}

/// Where the near end's control sockets lie.
fn run_dir(hosts: &Hosts) -> PathBuf {
    hosts.room.dir("run")
}

fn copy(hosts: &Hosts, pull: bool, options: &[&str]) -> Haul {
    hosts.copy(pull, &[&[PORT_OPTION], options].concat()).env("XDG_RUNTIME_DIR", run_dir(hosts))
}

/// No process and no socket of either end is there.
fn assert_nothing_left(hosts: &Hosts, near: &str) {
    for mark in [near, &hosts.sshd.mark] {
        procs::wait_gone(mark);
    }
    let gone = procs::wait_until(Duration::from_secs(20), || procs::marked_ssh(near).is_empty());
    assert!(gone, "ssh clients are left");
    // The control socket of a haul that was killed is not ssh's.
    let names = std::fs::read_dir(run_dir(hosts).join("haul")).into_iter().flatten();
    let names = names.map(|entry| entry.expect("list a directory").file_name());
    let left: Vec<_> = names.filter(|name| name.to_string_lossy().starts_with("ssh-")).collect();
    assert!(left.is_empty(), "sockets are left: {left:?}");
}

fn chosen(ended: &Outcome) -> String {
    let summary = ended.summary();
    let all = summary.0["chosen"].as_array().cloned().unwrap_or_default();
    let line = all.iter().find(|line| line["name"] == "ssh channels");
    line.unwrap_or_else(|| panic!("nothing of channels\n{}", ended.describe()))["value"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// Runs the copy to its good end; the path and the channels that its summary names.
fn run(hosts: &Hosts, copy: Haul) -> (String, String) {
    let running = copy.start();
    let mark = running.mark.clone();
    let ended = running.wait().sane().exits(0);
    assert_eq!(ended.summary().text("protect"), "ssh", "{}", ended.describe());
    hosts.assert_copied();
    hosts.make_room("sink");
    assert_nothing_left(hosts, &mark);
    (ended.summary().text("path").to_owned(), chosen(&ended))
}

/// Goal: where no port can be reached the data take several channels of the one connection, both ways, after
/// one login; the summary says how many; a number of streams is kept to.
/// Method: an sshd that forwards nothing; its log; sockets and processes afterwards.
#[test]
fn several_channels_carry_every_byte() {
    need!("netns", "sshd");
    let hosts = closed(300, 40_000_000);
    let runs = [
        (false, &["--ssh-channels=6"][..], "through ssh, 6 channels", "6 (as asked)"),
        (true, &["--ssh-channels=6"], "through ssh, 6 channels", "6 (as asked)"),
        (false, &["--ssh-channels=1"], "through ssh", "1 (as asked)"),
        (true, &["--ssh-channels=6", "--streams=3"], "through ssh, 3 channels", "3 (as asked)"),
        (false, &["--ssh-channels=3", "--streams=7"], "through ssh, 3 channels", "3 (as asked)"),
    ];
    for (logins, (pull, options, path, why)) in (1..).zip(runs) {
        let said = run(&hosts, copy(&hosts, pull, options));
        assert_eq!(said, (path.to_owned(), why.to_owned()), "{options:?}");
        assert_eq!(hosts.sshd.logins(), logins, "{options:?}");
    }
}

/// Goal: sshd's `MaxSessions` costs the channels beyond it and nothing else, however many are left.
#[test]
fn refused_channels_are_fewer() {
    need!("netns", "sshd");
    for (sessions, path) in [(1, "through ssh"), (3, "through ssh, 3 channels")] {
        let hosts = close(Hosts::with(52, 50, 20_000_000, |pair| Sshd::start_narrow(pair, sessions)));
        let said = run(&hosts, copy(&hosts, false, &["--ssh-channels=8"]));
        assert_eq!(said.0, path);
        assert!(said.1.ends_with(&format!("{} refused)", 8 - sessions)), "{said:?}");
        assert_eq!(hosts.sshd.logins(), 1);
    }
}

/// Goal: what cannot share its connection goes on as it did, and the summary says why.
/// Method: a program of another name; no place for a socket; another way that is pinned.
#[test]
fn one_channel_where_ssh_does_not_share() {
    need!("netns", "sshd");
    let hosts = closed(50, 9_000_000);
    let wrapper = hosts.room.file("login", "#!/bin/sh\nexec \"$@\"\n");
    crate::support::set_mode(&wrapper, 0o755);
    let sink = hosts.room.dir("sink");
    let ssh = format!("{} {}", wrapper.display(), hosts.sshd.command());
    let to = hosts.sshd.path(&sink);
    let haul =
        Haul::cp(["-r", PORT_OPTION, "-e", &ssh]).args([hosts.data.as_os_str(), &to]).near(&hosts.pair);
    let said = run(&hosts, haul.env("XDG_RUNTIME_DIR", run_dir(&hosts)));
    assert_eq!(said, ("through ssh".to_owned(), "1 (only OpenSSH shares its connection)".to_owned()));
    assert_eq!(hosts.sshd.logins(), 1);
}

/// Goal: a control socket of the user's own is used, and his master lives on; without one that is up ours is
/// made; a configured one that our ssh opens itself is used too.
#[test]
fn the_users_master_is_used_and_stays() {
    need!("netns", "sshd");
    let hosts = closed(50, 9_000_000);
    let socket = hosts.room.at("cm");
    let config = hosts.room.at("ssh_config");
    let configure = |line: &str| {
        let text =
            [hosts.sshd.config("target"), format!("ControlPath {}\n{line}", socket.display())].concat();
        std::fs::write(&config, text).expect("write ssh's configuration");
    };
    let ssh = format!("ssh -F {}", config.display());
    let go = || {
        let sink = hosts.room.dir("sink");
        let to = format!("target:{}", sink.display());
        let haul = Haul::cp(["-r", PORT_OPTION, "--ssh-channels=4", "-e", &ssh]);
        let haul = haul.args([hosts.data.as_os_str(), to.as_ref()]).near(&hosts.pair);
        run(&hosts, haul.env("XDG_RUNTIME_DIR", run_dir(&hosts)))
    };
    let four = ("through ssh, 4 channels".to_owned(), "4 (as asked)".to_owned());
    for (line, logins) in [("", 1), ("ControlMaster auto\n", 2)] {
        configure(line);
        assert_eq!(go(), four, "{line}");
        assert_eq!(hosts.sshd.logins(), logins);
        assert!(!socket.exists());
    }
    configure("");
    let net = format!("--net=/run/netns/{}", hosts.pair.near);
    let mut master = Command::new("nsenter");
    master.args([&net, "ssh", "-F"]).arg(&config).args(["-M", "-N", "target"]).stdin(Stdio::null());
    let mut master = master.spawn().expect("start a master");
    assert!(procs::wait_until(Duration::from_secs(20), || socket.exists()), "the master does not come up");
    let said = (0..2).map(|_| go()).collect::<Vec<_>>();
    let alive = master.try_wait().expect("look at the master").is_none() && socket.exists();
    let _ = master.kill();
    let _ = master.wait();
    assert_eq!(said, [four.clone(), four]);
    assert!(alive, "the user's master was ended");
    assert_eq!(hosts.sshd.logins(), 3);
}

/// Goal: it works through a jump host, by configuration and by `-J`, with one login at each.
#[test]
fn channels_pass_a_jump_host() {
    need!("netns", "sshd");
    let hosts = closed(50, 9_000_000);
    let jump = Sshd::start_jump(&hosts.pair);
    let config = hosts.room.at("ssh_config");
    for (logins, (line, option)) in (1..).zip([("ProxyJump jump\n", ""), ("", " -J jump")]) {
        let text = [jump.config("jump"), hosts.sshd.config("target"), line.to_owned()].concat();
        std::fs::write(&config, text).expect("write ssh's configuration");
        let ssh = format!("ssh -F {}{option}", config.display());
        let to = format!("target:{}", hosts.room.dir("sink").display());
        let haul = Haul::cp(["-r", PORT_OPTION, "--ssh-channels=4", "-e", &ssh]);
        let haul = haul.args([hosts.data.as_os_str(), to.as_ref()]).near(&hosts.pair);
        let said = run(&hosts, haul.env("XDG_RUNTIME_DIR", run_dir(&hosts)));
        assert_eq!(said.0, "through ssh, 4 channels");
        assert_eq!((hosts.sshd.logins(), jump.logins()), (logins, logins));
    }
}

/// Who is killed in the middle.
#[derive(Clone, Copy, Debug)]
enum Victim {
    Near,
    Far,
    Master,
}

/// Goal: whichever end is killed, or the connection, nothing stays, and the same command goes on.
#[test]
fn a_killed_end_leaves_nothing() {
    need!("netns", "sshd");
    for victim in [Victim::Near, Victim::Far, Victim::Master] {
        for pull in [false, true] {
            let hosts = closed(20, 200 << 20);
            let options = ["--ssh-channels=4", "--rate=60MB/s"];
            let run: Running = hosts.begun(pull, copy(&hosts, pull, &options));
            let mark = run.mark.clone();
            let clients = procs::marked_ssh(&mark);
            assert!(clients.len() >= 4, "{clients:?}");
            match victim {
                Victim::Near => run.signal(Signal::KILL),
                Victim::Far => procs::signal_all(&procs::marked(&hosts.sshd.mark), Signal::KILL),
                Victim::Master => procs::signal_all(&clients[..1], Signal::KILL),
            }
            let ended = run.wait().sane();
            match victim {
                Victim::Near => assert!(ended.was_killed(), "{}", ended.describe()),
                Victim::Far | Victim::Master => {
                    assert_eq!(ended.status.code(), Some(1), "{victim:?}\n{}", ended.describe());
                }
            }
            assert_nothing_left(&hosts, &mark);
            copy(&hosts, pull, &options[..1]).run().sane().exits(0);
            hosts.assert_copied();
        }
    }
}

/// Goal: a channel that is lost in the middle does not hang the copy or spoil it: it ends well, or the same
/// command goes on.
/// Method: SIGKILL of one client of ssh that is not the first.
#[test]
fn a_lost_channel_spoils_nothing() {
    need!("netns", "sshd");
    for pull in [false, true] {
        let hosts = closed(20, 200 << 20);
        let run = hosts.begun(pull, copy(&hosts, pull, &["--ssh-channels=4", "--rate=60MB/s"]));
        let mark = run.mark.clone();
        procs::signal_all(&procs::marked_ssh(&mark)[3..4], Signal::KILL);
        let ended = run.wait().sane();
        assert!(matches!(ended.status.code(), Some(0 | 1)), "{}", ended.describe());
        assert_nothing_left(&hosts, &mark);
        if ended.status.code() == Some(1) {
            copy(&hosts, pull, &["--ssh-channels=4"]).run().sane().exits(0);
        }
        hosts.assert_copied();
    }
}
