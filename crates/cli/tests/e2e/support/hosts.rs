//! Two hosts with a network of their own, and a tree to copy between them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use super::compare::{ALL, assert_no_debris, assert_same};
use super::netns::NetnsPair;
use super::run::{Haul, Running};
use super::sshd::{FarHaul, Sshd};
use super::{Room, procs, tree};

/// See the module.
pub struct Hosts {
    pub pair: NetnsPair,
    pub sshd: Sshd,
    pub room: Room,
    pub data: PathBuf,
}

impl Hosts {
    /// With a tree of `files` small files and one of `big` bytes.
    pub fn new(seed: u64, files: usize, big: usize) -> Hosts {
        Hosts::with(seed, files, big, |pair| Sshd::start_as(FarHaul::Built, Some(pair)))
    }

    /// As [`Hosts::new`], with the sshd that `start` makes.
    pub fn with(seed: u64, files: usize, big: usize, start: impl FnOnce(&NetnsPair) -> Sshd) -> Hosts {
        let pair = NetnsPair::new();
        let sshd = start(&pair);
        let room = Room::new();
        let data = room.dir("data");
        tree::plain(&data, seed, files, big);
        Hosts { pair, sshd, room, data }
    }

    /// A copy from the near host to the far one, or back where `pull`, into the directory `sink`.
    pub fn copy_to(&self, sink: &str, pull: bool, options: &[&str]) -> Haul {
        let sink = self.room.dir(sink);
        let (from, to) = match pull {
            true => (self.sshd.path(&self.data), sink.into_os_string()),
            false => (self.data.clone().into_os_string(), self.sshd.path(&sink)),
        };
        Haul::cp(["-r"]).args(options).by(&self.sshd).args([&from, &to]).near(&self.pair)
    }

    /// [`Hosts::copy_to`] `sink`.
    pub fn copy(&self, pull: bool, options: &[&str]) -> Haul {
        self.copy_to("sink", pull, options)
    }

    /// As [`Hosts::copy`], when it has begun to write; slow enough that trouble comes before its end.
    pub fn begin(&self, pull: bool, options: &[&str]) -> Running {
        let options = [&["--streams=4", "--rate=150MB/s"], options].concat();
        self.begun(pull, self.copy(pull, &options))
    }

    /// Starts it and waits until its sink writes.
    pub fn begun(&self, pull: bool, copy: Haul) -> Running {
        let mut run = copy.start();
        let mark = if pull { run.mark.clone() } else { self.sshd.mark.clone() };
        assert!(run.until(|_| procs::written(&procs::marked(&mark)) > 8 << 20), "it has begun");
        run
    }

    /// The near ends of the connections to `port` of the far host.
    pub fn near_ends(&self, port: u16) -> BTreeSet<u16> {
        self.ends("dport", port, 2)
    }

    /// The far ends of the connections to `port` of the near host.
    pub fn far_ends(&self, port: u16) -> BTreeSet<u16> {
        self.ends("sport", port, 3)
    }

    fn ends(&self, side: &str, port: u16, field: usize) -> BTreeSet<u16> {
        let listed = self.near(&["ss", "-Htn", "state", "established", side, "=", &format!(":{port}")]);
        let other = |line: &str| line.split_whitespace().nth(field)?.rsplit_once(':')?.1.parse().ok();
        listed.lines().filter_map(other).collect()
    }

    /// Runs a command in the near host's network; what it says.
    pub fn near(&self, words: &[&str]) -> String {
        let run = Command::new("ip").args(["netns", "exec", &self.pair.near]).args(words).output();
        let output = run.expect("run ip netns exec");
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The tree is in the directory `sink`, and nothing else.
    pub fn assert_copied_to(&self, sink: &str) {
        assert_same(&self.data, &self.room.at(sink).join("data"), ALL);
        assert_no_debris(&self.room.at(sink));
    }

    /// [`Hosts::assert_copied_to`] `sink`.
    pub fn assert_copied(&self) {
        self.assert_copied_to("sink");
    }

    /// Removes the directory `sink`.
    pub fn make_room(&self, sink: &str) {
        std::fs::remove_dir_all(self.room.at(sink)).expect("make room");
    }
}
