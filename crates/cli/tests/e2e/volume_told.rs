//! What `haul volume` says of a volume: leftovers, homes that nobody knows of, names that are not there, the
//! write threshold.

use std::fs;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::run::{Haul, Outcome};
use crate::support::tree;
use crate::volume_copy::{User, said, signal};

fn volume(user: &User, args: &[&str], code: i32) -> Outcome {
    user.env(Haul::new(["volume"]).args(args)).run().sane().exits(code)
}

fn out(ended: &Outcome) -> String {
    String::from_utf8_lossy(&ended.stdout).into_owned()
}

fn json(ended: &Outcome) -> Vec<Value> {
    out(ended).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Goal: of files that were at home when their gatherer was heard last, and that is away, it is said that
/// nobody knows; and the volume is not destroyed unasked. What has no home has none all the same.
#[test]
fn a_home_may_be_unknown() {
    let user = User::new();
    let data = user.room.dir("data");
    for file in 0..6 {
        fs::write(data.join(format!("f{file}")), b"some").expect("written");
    }
    user.cp(&["-r"], &data, "vol://v/").run().sane().exits(0);
    let told = json(&volume(&user, &["stat", "v", "--json"], 0)).remove(0);
    assert_eq!((told["homeless"].as_u64(), told["at_home"].as_u64()), (Some(0), Some(6)), "{told}");
    user.kill(1);
    let told = json(&volume(&user, &["stat", "v", "--json"], 0)).remove(0);
    let counts = ["homeless", "home_unknown", "at_home"].map(|name| told[name].as_u64());
    assert_eq!(counts, [Some(0), Some(2), Some(4)], "{told}");
    let ended = volume(&user, &["destroy", "v"], 1);
    said(&ended, "not known to have a home outside of the volume: 2 files, v/data/f");
    said(&ended, "server 1 of the volume: ");
    said(&ended, "does not run: nobody listens at ");
    said(&ended, "`haul volume start v` starts what was stopped");
    assert!(!ended.stderr.contains("no home outside"), "{}", ended.describe());
    said(&ended, "--yes destroys it all the same");
    user.start();
    volume(&user, &["destroy", "v"], 0);
}

/// Goal: of a volume that was stopped everybody who asks hears so, and how it is started; where one server
/// does not run, of the files that it gathers.
#[test]
fn a_stopped_volume_names_its_start() {
    let user = User::new();
    let data = user.room.dir("data");
    (0..6).for_each(|file| fs::write(data.join(format!("f{file}")), b"some").expect("written"));
    user.cp(&["-r"], &data, "vol://v/").run().sane().exits(0);
    user.kill(1);
    let ended = volume(&user, &["ls", "v/data"], 1);
    assert_eq!(out(&ended).lines().filter(|line| line.contains("  ?  ")).count(), 2, "{}", ended.describe());
    said(&ended, "its length: server 1, ");
    said(&ended, "does not run: nobody listens at ");
    said(&ended, "`haul volume start v`");
    volume(&user, &["stop", "v"], 0);
    for words in
        [&["ls", "v/data"][..], &["stat", "v"], &["stat", "v/data/f1"], &["fsck", "v"], &["destroy", "v"]]
    {
        let ended = volume(&user, words, 1);
        said(&ended, "does not run: nobody listens at ");
        said(&ended, "`haul volume start v` starts");
    }
    let ended = volume(&user, &["ls"], 0);
    assert!(out(&ended).contains("nobody answers (`haul volume start v`"), "{}", ended.describe());
    user.start();
    assert_eq!(user.names("v/data").len(), 6);
}

/// Goal: Ctrl-C ends `destroy` while it waits to hear what is in the volume: nothing of it was ended.
/// Method: the catalog stands still.
#[test]
fn a_destroy_that_waits_is_interrupted() {
    let user = User::new();
    let catalog = user.process(None);
    signal(catalog, Signal::STOP);
    let mut running = user.env(Haul::new(["volume", "destroy", "v"])).start();
    assert!(running.until(|running| running.stderr().contains("waiting for the catalog of volume v")));
    running.signal_one(Signal::INT);
    let ended = running.wait().sane().exits(130);
    said(&ended, "it was interrupted; nothing was ended or removed");
    signal(catalog, Signal::CONT);
    volume(&user, &["health", "v"], 0);
}

/// Goal: `rm` removes all that it can of several names, says what it could not, and ends as a copy of which
/// some failed. What is written wrong removes nothing.
#[test]
fn rm_goes_on_behind_what_is_missing() {
    let user = User::new();
    let data = user.room.dir("data");
    for name in ["a", "b", "c"] {
        fs::write(data.join(name), b"some").expect("written");
    }
    user.cp(&["-r"], &data, "vol://v/").run().sane().exits(0);
    let ended = volume(&user, &["rm", "v/data/a", "v", "v/data/b"], 2);
    said(&ended, "v is the whole volume");
    let ended = volume(&user, &["rm", "v/data/../data/a"], 2);
    said(&ended, "no `..` is followed in a path of a volume");
    assert_eq!(user.names("v/data"), ["a", "b", "c"]);
    let ended = volume(&user, &["rm", "v/data/a", "v/data/missing", "v/data/c"], 3);
    said(&ended, "v/data/missing: ");
    said(&ended, "1 of 3 names not removed");
    assert_eq!(user.names("v/data"), ["b"]);
    volume(&user, &["rm", "v/data/a", "v/data/c"], 1);
    volume(&user, &["rm", "v/data/a"], 1);
}

/// Goal: what a copy that was killed left is said to be that by `ls`, with what removes it; and the same copy
/// does.
#[test]
fn leftovers_are_said_to_be_such() {
    let user = User::new();
    let bytes = tree::bytes(&mut fastrand::Rng::with_seed(4), 24 << 20);
    let from = user.room.file("f", bytes);
    let mut running = user.cp(&["--rate=6MB/s", "--object-size=256KiB"], &from, "vol://v/").start();
    let has = || user.names("v").iter().any(|name| name.starts_with(".f.haul~"));
    assert!(running.until(|_| has()), "{}", running.stderr());
    running.signal_one(Signal::KILL);
    running.wait();
    let ended = volume(&user, &["ls", "v"], 0);
    let lines: Vec<String> = out(&ended).lines().map(str::to_owned).collect();
    assert!(
        lines.len() >= 2 && lines.iter().all(|line| line.ends_with("(of an unfinished copy)")),
        "{lines:?}"
    );
    said(&ended, "the same `haul cp` goes on with it and removes that");
    let told = json(&volume(&user, &["ls", "v", "--json"], 0));
    assert!(told.iter().all(|entry| entry["unfinished"] == true), "{told:?}");
    user.cp(&[], &from, "vol://v/").run().sane().exits(0);
    let told = json(&volume(&user, &["ls", "v", "--json"], 0));
    assert!(told.len() == 1 && told[0].get("unfinished").is_none(), "{told:?}");
}

/// Goal: `health` explains the write threshold: what it is, what writes beside it cost, and how far that was
/// measured.
#[test]
fn the_write_threshold_is_explained() {
    let user = User::new();
    let threshold =
        || json(&volume(&user, &["health", "v", "--json"], 0)).remove(0)["write_threshold"].clone();
    assert_eq!(threshold(), Value::Null);
    let from = user.room.file("f", tree::bytes(&mut fastrand::Rng::with_seed(5), 3 << 20));
    user.cp(&["--write-threshold=64KiB"], &from, "vol://v/").run().sane().exits(0);
    let told = threshold();
    assert_eq!((told["state"].as_str(), told["bytes"].as_u64()), (Some("pinned"), Some(65_536)), "{told}");
    let ended = volume(&user, &["health", "v"], 0);
    let words = out(&ended);
    let words = words.lines().find(|line| line.starts_with("write threshold ")).expect("it is explained");
    assert!(
        words.contains("65.5 kB: a smaller write goes through the server that gathers its file"),
        "{words}"
    );
    assert!(words.ends_with("(pinned by --write-threshold)"), "{words}");
}

/// Goal: a directory that cannot be made for want of one above it, and one with `..` in it, is refused with
/// what to do; nothing is made.
#[test]
fn directories_that_cannot_be_made_are_explained() {
    let user = User::new();
    let (no, above) = (user.room.at("no/such/d"), user.room.at("a/../e"));
    let ended = volume(&user, &["create", "w", "--server", no.to_str().expect("UTF-8")], 1);
    said(&ended, &format!("there is no directory {} to make it in", user.room.at("no/such").display()));
    let ended = volume(&user, &["create", "w", "--server", above.to_str().expect("UTF-8")], 2);
    said(&ended, "has `..` in it");
    assert!(!user.room.at("no").exists() && !user.room.at("e").exists());
}
