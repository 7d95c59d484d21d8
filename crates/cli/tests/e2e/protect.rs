//! What protects the data is the user's choice: each choice moves every byte, over connections of either direction, through
//! lost ones and over kills.

use std::path::PathBuf;

use rustix::process::Signal;

use crate::support::compare::{ALL, assert_no_debris, assert_same};
use crate::support::netns::NetnsPair;
use crate::support::run::Haul;
use crate::support::sshd::{FarHaul, Sshd};
use crate::support::{Room, procs, tree};

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
        tree::plain(&data, 91, files, big);
        Hosts { pair, sshd, room, data }
    }

    fn copy(&self, pull: bool, options: &[&str]) -> Haul {
        let sink = self.room.dir("sink");
        let (from, to) = match pull {
            true => (self.sshd.path(&self.data), sink.into_os_string()),
            false => (self.data.clone().into_os_string(), self.sshd.path(&sink)),
        };
        Haul::cp(["-r"]).args(options).by(&self.sshd).args([&from, &to]).near(&self.pair)
    }

    fn assert_copied(&self) {
        assert_same(&self.data, &self.room.at("sink/data"), ALL);
        assert_no_debris(&self.room.at("sink"));
        std::fs::remove_dir_all(self.room.at("sink")).expect("make room");
    }
}

/// Goal: every byte arrives under each choice, both ways, whichever end dials, and the summary says what protected it; what
/// cannot go together is refused before anything is touched.
#[test]
fn each_choice_moves_every_byte() {
    need!("netns", "sshd");
    let hosts = Hosts::new(300, 20_000_000);
    for pull in [false, true] {
        for (options, protect) in [
            (&["--protect=integrity"][..], "integrity"),
            (&["--protect=integrity", "--dial=source"], "integrity"),
            (&["--protect=integrity", "--dial=sink", "--verify=disk"], "integrity"),
            (&["--digest=xxh3"], "tls"),
            (&["--digest=xxh3", "--verify=disk"], "tls"),
            (&["--verify=disk"], "tls"),
        ] {
            let ended = hosts.copy(pull, options).run().sane().exits(0);
            assert_eq!(ended.summary().text("protect"), protect, "{options:?}: {}", ended.describe());
            hosts.assert_copied();
        }
        hosts.copy(pull, &["--protect=integrity", "--digest=xxh3"]).run().sane().exits(2).says("xxh3");
        assert!(!hosts.room.at("sink/data").exists());
    }
}

/// Goal: connections without encryption are replaced as others are, and a killed copy goes on under another choice.
/// Method: `ss -K` of all connections but ssh's of a copy that has begun; SIGKILL of another, whose rest is copied with another digest.
#[test]
fn unencrypted_copies_survive() {
    need!("netns", "sshd", "ss");
    let hosts = Hosts::new(20, 400 << 20);
    let begin = |options: &[&str]| {
        let options = [&["--streams=4", "--rate=150MB/s", "--port=40120"], options].concat();
        let mut run = hosts.copy(false, &options).start();
        let mark = hosts.sshd.mark.clone();
        assert!(run.until(|_| procs::written(&procs::marked(&mark)) > 8 << 20), "it has begun");
        run
    };
    let run = begin(&["--protect=integrity"]);
    let kill = std::process::Command::new("ip")
        .args(["netns", "exec", &hosts.pair.near, "ss", "-Kt", "dport", "=", ":40120"])
        .output()
        .expect("run ss");
    assert!(kill.status.success(), "{}", String::from_utf8_lossy(&kill.stderr));
    let ended = run.wait().sane().exits(0);
    assert_eq!(ended.summary().text("protect"), "integrity", "{}", ended.describe());
    hosts.assert_copied();

    let run = begin(&["--digest=xxh3"]);
    run.signal(Signal::KILL);
    assert!(run.wait().was_killed());
    procs::wait_gone(&hosts.sshd.mark);
    hosts.copy(false, &["--protect=integrity"]).run().sane().exits(0);
    hosts.assert_copied();
}
