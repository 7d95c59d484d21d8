//! `sshftp://`: a GridFTP server that ssh starts; the one of Globus behind a real sshd, and programs in the
//! place of ssh that do what ssh never would.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::compare::{BELOW, Opts, assert_same};
use crate::support::run::Haul;
use crate::support::sshd::Sshd;
use crate::support::{Room, procs, read};

/// As root it wants to be told that it may; data connections are of this host.
const SERVER: &str =
    "exec globus-gridftp-server -c '' -ssh -anonymous-user root -allow-root -data-interface 127.0.0.1";

fn program(path: PathBuf, script: &str) -> PathBuf {
    crate::support::program(&path, &format!("#!/bin/sh\n{script}\n"));
    path
}

/// What Globus' own script would be at the host.
fn enable(sshd: &Sshd, script: &str) {
    let dir = sshd.home().join(".globus");
    fs::create_dir_all(&dir).expect("make a directory");
    program(dir.join("sshftp"), script);
}

fn url(path: &Path) -> String {
    format!("sshftp://127.0.0.1{}", path.display())
}

/// A copy through a program in the place of ssh.
fn through(room: &Room, script: &str, from: &Path, sink: &Path) -> Haul {
    let ssh = program(room.at("not ssh"), script);
    let words = format!("'{}'", ssh.display());
    Haul::cp(["-r", "--patience=2s", "-e", &words]).args([url(from)]).args([sink])
}

/// A tree with files of up to 12 MiB.
fn filled(room: &Room) -> PathBuf {
    let tree = room.dir("tree");
    room.dir("tree/sub");
    for n in 0..20_u64 {
        let content = crate::support::tree::bytes(&mut fastrand::Rng::with_seed(n), 100 << n.min(17));
        room.file(&format!("tree/sub/f{n}"), content);
    }
    tree
}

/// Goal: a tree comes as it is, over several sessions, and it is said what is protected.
#[test]
fn a_tree_comes_through_ssh() {
    need!("sshd", "gridftp");
    let (room, sshd) = (Room::new(), Sshd::start());
    // Shells may say something first.
    enable(&sshd, SERVER);
    let tree = filled(&room);
    let sink = room.dir("sink");
    let copy = Haul::cp(["-r", "-v"]).by(&sshd).args([url(&tree) + "/"]).args([&sink]);
    let ended = copy.run().sane().exits(0);
    assert_same(&tree, &sink, Opts { metadata: false, ..BELOW });
    let summary = ended.summary();
    assert!(summary.chosen("source protection").contains("data go as they are"), "{}", ended.describe());
    assert!(sshd.logins() >= 2, "one session alone: {}", ended.describe());
}

/// Goal: a tree goes there as it is, and what was sent is under its names.
#[test]
fn a_tree_goes_through_ssh() {
    need!("sshd", "gridftp");
    let (room, sshd) = (Room::new(), Sshd::start());
    enable(&sshd, SERVER);
    let tree = filled(&room);
    let sink = room.dir("sink");
    let ended = Haul::cp(["-r", "-v"]).by(&sshd).args([room.at("tree/")]).args([url(&sink)]).run();
    ended.sane().exits(0);
    assert_same(&tree, &sink, Opts { metadata: false, ..BELOW });
}

/// Goal: a host without the server is told of in words that say what to do, and so is an ssh that does not
/// get there; nothing of it is tried again where it cannot help.
#[test]
fn what_is_missing_is_told() {
    need!("sshd");
    let (room, sshd) = (Room::new(), Sshd::start());
    let copy = Haul::cp(["--retry-for=1h"]).by(&sshd).args([url(Path::new("/etc/hostname"))]);
    let ended = copy.args([room.at("a")]).run().sane().exits(1);
    ended.says("globus-gridftp-server-enable-sshftp");
    for (script, says) in [
        ("echo 'user@host: Permission denied (publickey).' >&2; exit 255", "Permission denied"),
        ("echo 'Host key verification failed.' >&2; exit 255", "Host key verification failed"),
    ] {
        let copy = through(&room, script, Path::new("/f"), &room.at("b")).args(["--retry-for=1h"]);
        copy.run().sane().exits(1).says(says);
    }
    let ended = through(&room, "exit 255", Path::new("/f"), &room.at("b")).run().sane().exits(1);
    ended.says("ssh ended before the server spoke");
}

/// Goal: neither a host nor a user is an option of ssh, and a password in the URL is refused and not shown.
#[test]
fn no_word_of_a_url_is_an_option() {
    let room = Room::new();
    for server in ["-oProxyCommand=x", "-oProxyCommand=x@h", "%2doProxyCommand=x@h", "u:geheim@h"] {
        let ssh = program(room.at("ssh"), &format!("touch '{}'", room.at("ran").display()));
        let words = format!("'{}'", ssh.display());
        let copy = Haul::cp(["-e", &words]).args([format!("sshftp://{server}/f")]).args([room.at("a")]);
        let ended = copy.run().sane().exits(2);
        assert!(!room.at("ran").exists(), "{server}: {}", ended.describe());
        assert!(!ended.stderr.contains("geheim"), "{}", ended.describe());
    }
}

/// Goal: a program in the place of ssh that chatters, hangs, or sends what is no FTP ends the run in bounded
/// time, with words, and is gone then.
#[test]
fn what_is_no_ssh_is_borne_for_a_bounded_time() {
    let room = Room::new();
    for script in [
        "yes",
        "exec sleep 600",
        "printf '220 ready\\r\\n'; exec sleep 600",
        "head -c 100000 /dev/zero; exec sleep 600",
        "echo 'HAUL-SSHFTP at 1 2 3 4 5'; yes",
        "echo 'HAUL-SSHFTP none'",
        // What is behind the mark is not looked at twice.
        "echo 'HAUL-SSHFTP at 127.0.0.1 1 127.0.0.1 2'; echo; yes 110-x",
        "trap '' TERM INT HUP; printf '220 ready\\r\\n331 x\\r\\n230 x\\r\\n'; while :; do sleep 1; done",
    ] {
        let pid = room.at("pid");
        let script = format!("echo $$ >'{}'; {script}", pid.display());
        let ended = through(&room, &script, Path::new("/f"), &room.at("a")).run().sane().exits(1);
        assert!(ended.stderr.len() < 4000, "{}", ended.describe());
        let pid = fs::read_to_string(&pid).expect("it ran");
        let gone = || !Path::new("/proc").join(pid.trim()).exists();
        assert!(procs::wait_until(Duration::from_secs(20), gone), "{script}: {pid} goes on");
    }
    assert!(!room.at("a").exists());
}

/// Goal: a host where a user is bound to one command has the server speak at once, and its own word on where
/// data connections go counts; and what shells say before is passed over.
#[test]
fn a_server_may_speak_at_once() {
    need!("gridftp");
    let room = Room::new();
    room.file("f", b"content".repeat(1000));
    let from = room.at("f");
    for (at, before) in
        ["", "echo 'Welcome to this host'; echo; ", "echo 'HAUL-SSHFTP at 127.0.0.1 1 127.0.0.1 22'; "]
            .into_iter()
            .enumerate()
    {
        let sink = room.at(&format!("sink{at}"));
        let script = format!("SSH_CLIENT='127.0.0.1 1 22'; export SSH_CLIENT; {before}{SERVER}");
        through(&room, &script, &from, &sink).run().sane().exits(0);
        assert_eq!(read(&sink), read(&from));
    }
}
