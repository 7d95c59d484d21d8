//! Copies to and from a volume whose catalog or servers are away: how long they wait, what they say of it,
//! and how they end.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal};
use serde_json::Value;

use crate::support::run::{Haul, Running};
use crate::support::tree;
use crate::volume_copy::{User, said, signal};

/// Files of the tree: so many that a second or two for each of them is more than a command here may take.
const FILES: usize = 3000;
/// A test that waits for this to be over does not end.
const LONG: &str = "--patience=1h";
/// So that it is still under way when something is killed.
const SLOW: &str = "--rate=1MB/s";

/// A user with a tree of many small files.
fn user_with(seed: u64) -> (User, PathBuf) {
    let user = User::new();
    let data = user.room.dir("data");
    let mut random = fastrand::Rng::with_seed(seed);
    for file in 0..FILES {
        let dir = data.join(format!("d{}", file / 200));
        if file % 200 == 0 {
            fs::create_dir(&dir).expect("made");
        }
        let len = random.usize(1..6000);
        fs::write(dir.join(format!("f{file}")), tree::bytes(&mut random, len)).expect("written");
    }
    tree::settle(&data);
    (user, data)
}

/// What it told of how far it is, the last first.
fn told(running: &Running) -> Vec<Value> {
    let said = running.stdout();
    let lines = said.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"));
    let events = lines.map(|line| serde_json::from_slice::<Value>(line).expect("JSON"));
    events.filter(|event| event["event"] == "progress").collect::<Vec<_>>().into_iter().rev().collect()
}

/// Waits until some files were copied.
fn is_under_way(running: &mut Running) -> bool {
    running.until(|running| told(running).iter().any(|event| event["files_done"].as_u64() >= Some(50)))
}

/// Waits until it says that it waits for this.
fn waits_for(running: &mut Running, what: &str) -> bool {
    let says = |event: &Value| event["waiting"].as_str().is_some_and(|text| text.contains(what));
    running.until(|running| told(running).first().is_some_and(says))
}

fn start(user: &User, args: &[&str], from: &Path, to: &Path) -> Running {
    user.cp(&[&["-r"], args].concat(), from, to).start()
}

/// Goal: a copy of a tree into a volume whose catalog dies in the middle ends when its patience is over, and
/// not later by each of its files: with 1 and one error that says who is gone, where that was and what to do.
/// All that was not copied is in `--failures`, each entry of it, and said on the screen once; the same
/// command copies it when the catalog is there again.
#[test]
fn a_catalog_that_is_killed_in_mid_tree_ends_the_copy() {
    let (user, data) = user_with(1);
    let failures = user.room.at("failures");
    let args = ["--patience=3s", SLOW, "--failures", failures.to_str().expect("UTF-8")];
    let catalog = user.process(None);
    let mut running = start(&user, &args, &data, Path::new("vol://v/"));
    assert!(is_under_way(&mut running), "{}", running.stderr());
    signal(catalog, Signal::KILL);
    assert!(waits_for(&mut running, " s of 3 s for the catalog of volume v, "), "{}", running.stderr());
    let ended = running.wait().sane().exits(1);
    let at = user.room.at("a/catalog");
    said(&ended, &format!("volume v: its catalog, {} at 127.0.0.1:", at.display()));
    said(&ended, "is gone, and was not heard for 3 s");
    said(&ended, "`haul volume start v`");
    let summary = ended.summary();
    let (copied, failed) = (summary.number("files"), summary.number("failed"));
    assert!(copied + failed >= FILES as u64, "{copied} and {failed} of {FILES}");
    let listed = fs::read_to_string(&failures).expect("it was written").lines().count() as u64;
    assert!(listed >= failed, "{listed} of {failed}");
    let lines = ended.stderr.lines().filter(|line| line.contains("is gone")).count();
    assert!(lines <= 2, "the cause, and the error of the run: {}", ended.describe());
    said(&ended, "other entries failed as ");
    user.start();
    user.cp(&["-r"], &data, "vol://v/").run().sane().exits(0);
    user.has(&data, "out");
}

/// Goal: a copy into a volume whose catalog is killed in the middle goes on when that is back within its
/// patience, and copies the right bytes.
#[test]
fn a_catalog_that_comes_back_is_waited_for() {
    let (user, data) = user_with(2);
    let catalog = user.process(None);
    let mut running = start(&user, &[LONG, SLOW], &data, Path::new("vol://v/"));
    assert!(is_under_way(&mut running), "{}", running.stderr());
    signal(catalog, Signal::KILL);
    assert!(waits_for(&mut running, "for the catalog of volume v, "), "{}", running.stderr());
    user.start();
    running.wait().sane().exits(0);
    user.has(&data, "out");
}

/// Starts a copy, stops or kills a process of the volume in the middle, and sends one signal when that is
/// waited for.
fn is_ended(
    user: &User,
    mut running: Running,
    (process, how): (Pid, Signal),
    (what, signal_of_user): (&str, Signal),
    is_under_way: impl Fn(&Value) -> bool,
) {
    assert!(running.until(|running| told(running).iter().any(&is_under_way)), "{}", running.stderr());
    signal(process, how);
    assert!(waits_for(&mut running, what), "{what}: {}", running.stderr());
    running.signal_one(signal_of_user);
    let code = if signal_of_user == Signal::INT { 130 } else { 143 };
    let ended = running.wait().sane().exits(code);
    assert_eq!(ended.summary().text("status"), "interrupted", "{}", ended.describe());
    if how == Signal::STOP {
        signal(process, Signal::CONT);
    }
    user.start();
}

/// Goal: one signal ends a copy into a volume that waits for the catalog, which is killed or stands still, or
/// for a server; and one out of it that waits for a server.
/// Method: what comes out is more than fits into the buffers.
#[test]
fn one_signal_ends_a_copy_that_waits() {
    let (user, data) = user_with(3);
    let cases = [
        (None, Signal::KILL, ("the catalog of volume v, ", Signal::TERM), "vol://v/0/"),
        (None, Signal::STOP, ("the catalog of volume v, ", Signal::INT), "vol://v/1/"),
        (Some(1), Signal::KILL, ("server 1 of volume v, ", Signal::TERM), "vol://v/2/"),
    ];
    for (who, how, waits, to) in cases {
        let process = user.process(who);
        let running = start(&user, &[LONG, SLOW], &data, Path::new(to));
        is_ended(&user, running, (process, how), waits, |event| event["files_done"].as_u64() >= Some(50));
    }
    let large = user.room.file("large", tree::bytes(&mut fastrand::Rng::with_seed(3), 48 << 20));
    user.cp(&[], &large, "vol://v/").run().sane().exits(0);
    let process = user.process(Some(1));
    let args = [LONG, "--rate=4MB/s", "--memory=8MiB"];
    let running = start(&user, &args, Path::new("vol://v/large"), &user.room.at("out"));
    let waits = ("server 1 of volume v, ", Signal::INT);
    is_ended(&user, running, (process, Signal::KILL), waits, |event| event["bytes_sent"].as_u64() > Some(0));
}

/// Goal: a copy to or from a volume that was stopped says for what it waits, and for how long, before it has
/// begun: as `waiting` and on stderr. One Ctrl-C ends it; so does its patience, with an error that says what
/// to do; and when the volume is started it goes on. A dry run waits no other way.
#[test]
fn a_copy_at_a_stopped_volume_says_that_it_waits() {
    let user = User::new();
    let data = user.room.dir("data");
    fs::write(data.join("f"), b"some").expect("written");
    user.cp(&["-r"], &data, "vol://v/in/").run().sane().exits(0);
    let out = user.room.at("out");
    let (into, from_it) =
        ((data.as_path(), Path::new("vol://v/")), (Path::new("vol://v/in/data"), out.as_path()));
    user.env(Haul::new(["volume", "stop", "v"])).run().sane().exits(0);
    for (args, (from, to)) in [(&[LONG][..], into), (&[LONG], from_it), (&[LONG, "-n"], into)] {
        let mut running = start(&user, args, from, to);
        assert!(
            waits_for(&mut running, " s of 3600 s for the catalog of volume v, "),
            "{}",
            running.stderr()
        );
        assert!(running.until(|running| running.stderr().contains("for the catalog of volume v, ")));
        running.signal_one(Signal::INT);
        running.wait().sane().exits(130);
    }
    for (from, to) in [into, from_it] {
        let ended = start(&user, &["--patience=2s"], from, to).wait().sane().exits(1);
        said(&ended, "was not reached within 2 s");
        said(&ended, "`haul volume start v`");
    }
    for (from, to) in [into, from_it] {
        let mut running = start(&user, &[LONG], from, to);
        assert!(waits_for(&mut running, "for the catalog of volume v, "), "{}", running.stderr());
        user.start();
        running.wait().sane().exits(0);
        user.env(Haul::new(["volume", "stop", "v"])).run().sane().exits(0);
    }
    assert_eq!(fs::read(out.join("data/f")).expect("it came out"), b"some");
}
