//! Volumes of which a part is older than the rest, is away, or stands still: no file shows another's bytes,
//! and nothing is told to be well or gone that is not.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::Value;

use crate::support::compare::{ALL, assert_same};
use crate::support::run::{Haul, Outcome};
use crate::support::tree;
use crate::volume_copy::{Pen, User, said, said_out, signal};

fn volume(user: &User, words: &[&str], code: i32) -> Outcome {
    user.env(Haul::new(["volume"].iter().chain(words))).run().sane().exits(code)
}

/// A tree of files whose bytes no other one has.
fn make(user: &User, name: &str, seed: u8) -> PathBuf {
    let dir = user.room.dir(name);
    for n in 0..4_u8 {
        let bytes = (0..600_000_u32).map(|at| (at % 251) as u8 ^ seed ^ (n << 4)).collect::<Vec<_>>();
        user.room.file(&format!("{name}/f{n}"), bytes);
    }
    tree::settle(&dir);
    dir
}

fn copy_dir(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    assert!(Command::new("cp").arg("-a").args([from, to]).status().expect("cp runs").success());
}

/// Goal: a catalog that was brought back from an older copy gives no number again under which a server has
/// bytes: what is made then, and what the newer catalog has when that is brought back, has its own bytes.
/// `health`, `stat`, `fsck` and `destroy` say that servers hold what the catalog does not know, and a repair
/// removes none of it.
#[test]
fn an_older_catalog_gives_no_number_again() {
    let user = User::new();
    let (a, b, c) = (make(&user, "a1", 1), make(&user, "b1", 2), make(&user, "c1", 3));
    let (catalog, older, newer) = (user.room.at("a/catalog"), user.room.at("older"), user.room.at("newer"));
    user.cp(&["-r"], &a, "vol://v/").run().sane().exits(0);
    volume(&user, &["stop", "v"], 0);
    copy_dir(&catalog, &older);
    user.start();
    user.cp(&["-r"], &b, "vol://v/").run().sane().exits(0);
    volume(&user, &["stop", "v"], 0);
    copy_dir(&catalog, &newer);
    copy_dir(&older, &catalog);
    user.start();

    // At once, before anybody else asks anything.
    user.cp(&["-r"], &c, "vol://v/").run().sane().exits(0);
    let unknown = "that the catalog does not know";
    said_out(&volume(&user, &["health", "v"], 1), unknown);
    said_out(&volume(&user, &["stat", "v"], 0), unknown);
    said(&volume(&user, &["destroy", "v"], 1), unknown);
    let repaired = volume(&user, &["fsck", "v", "--repair", "--json"], 1);
    let lines = String::from_utf8_lossy(&repaired.stdout).into_owned();
    let mut lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let sum = lines.pop().expect("a last line");
    assert_eq!((lines.len(), sum["removed"].as_u64()), (4, Some(0)), "{lines:?}");
    assert!(lines.iter().all(|line| line["fault"] == "foreign"), "{lines:?}");
    for (data, out) in [(&a, "out-a"), (&c, "out-c")] {
        let name = data.file_name().expect("a name").to_str().expect("UTF-8");
        user.cp(&["-r"], format!("vol://v/{name}"), user.room.dir(out)).run().sane().exits(0);
        assert_same(data, &user.room.at(out).join(name), ALL);
    }

    volume(&user, &["stop", "v"], 0);
    copy_dir(&newer, &catalog);
    user.start();
    user.cp(&["-r"], "vol://v/b1", user.room.dir("out-b")).run().sane().exits(0);
    assert_same(&b, &user.room.at("out-b/b1"), ALL);
    let d = make(&user, "d1", 4);
    user.cp(&["-r"], &d, "vol://v/").run().sane().exits(0);
    said_out(&volume(&user, &["health", "v"], 1), unknown);
    for (data, name) in [(&b, "b1"), (&d, "d1")] {
        let out = format!("again-{name}");
        user.cp(&["-r"], format!("vol://v/{name}"), user.room.dir(&out)).run().sane().exits(0);
        assert_same(data, &user.room.at(&out).join(name), ALL);
    }
}

/// Goal: where the catalog lost what it had written, files that nobody has anywhere else do not go unasked.
#[test]
fn what_a_catalog_forgot_is_not_destroyed() {
    let user = User::new();
    let pen = Pen::new(&user);
    let data = make(&user, "data", 5);
    user.cp(&["-r"], &data, "vol://v/").run().sane().exits(0);
    drop(pen);
    signal(user.process(None), Signal::KILL);
    fs::remove_file(user.room.at("a/catalog/data/catalog.db-wal")).expect("it was there");
    user.start();
    let out = user.room.at("out");
    let drain = ["drain", "v", "--all", "--to", out.to_str().expect("UTF-8")];
    let refused = volume(&user, &drain, 1);
    said(&refused, "that the catalog does not know");
    said(&refused, "--force brings what the catalog knows all the same");
    assert!(!out.exists(), "it may be older than what stands there");
    volume(&user, &[&drain[..], &["--force"]].concat(), 0);
    said(&volume(&user, &["destroy", "v"], 1), "that the catalog does not know");
    assert!(user.room.at("state/haul/volumes/v").exists() && user.room.at("b/data/files").exists());
    said(&volume(&user, &["destroy", "v"], 1), "--yes destroys it all the same");
    volume(&user, &["destroy", "v", "--yes"], 0);
    assert!(!user.room.at("b").exists());
}

/// Goal: before all servers have said what they have, nothing new is made, and who wants it is told why; what
/// is there is read. Of a server that has not said it nobody destroys anything unasked.
#[test]
fn all_servers_are_asked_first() {
    let user = User::new();
    let data = make(&user, "data", 6);
    user.cp(&["-r"], &data, "vol://v/").run().sane().exits(0);
    let frozen = user.process(Some(1));
    signal(frozen, Signal::STOP);
    signal(user.process(None), Signal::KILL);
    let _catalog = user.start_catalog();
    let pen = Pen::new(&user);
    let refused = pen.mkdir("new").expect_err("not all servers have said what they have");
    assert!(refused.words.contains("not heard yet: server 1, "), "{refused}");
    assert_eq!(user.names("v"), ["data"]);
    said_out(&volume(&user, &["health", "v"], 1), "has not said which files it has");
    said(&volume(&user, &["destroy", "v"], 1), "has not said which files it has");
    signal(frozen, Signal::CONT);
    pen.mkdir("new").expect("all servers have said what they have");
}

/// Goal: the directory of a server that was moved away, or is an empty place where nothing is mounted, is not
/// told to be destroyed: it is named, and the volume stays known until it is back.
#[test]
fn a_directory_that_is_away_is_not_destroyed() {
    let user = User::new();
    let data = make(&user, "data", 7);
    user.cp(&["-r"], &data, "vol://v/").run().sane().exits(0);
    volume(&user, &["stop", "v"], 0);
    let (dir, away, access) = (user.room.at("b"), user.room.at("away"), user.room.at("state/haul/volumes/v"));
    fs::rename(&dir, &away).expect("moved");
    for is_there in [false, true] {
        if is_there {
            fs::create_dir(&dir).expect("an empty directory");
        }
        let ended = volume(&user, &["destroy", "v", "--yes"], 1);
        said(&ended, "server 1 of the volume, ");
        said(&ended, "was not removed");
        assert!(access.exists(), "{}", ended.describe());
        assert!(!user.room.at("a").exists() && !user.room.at("c").exists(), "the rest went");
    }
    fs::remove_dir(&dir).expect("it is empty");
    fs::rename(&away, &dir).expect("moved back");
    volume(&user, &["destroy", "v", "--yes"], 0);
    assert!(!dir.exists() && !access.exists());
}

/// Goal: `fsck` and `health` say of a server that stands still that it does not answer, and not that it is
/// somebody else; `fsck` goes on with the others.
/// Method: without that it would take longer than any command here may.
#[test]
fn a_server_that_stands_still_is_no_stranger() {
    let user = User::new();
    let data = make(&user, "data", 8);
    user.cp(&["-r"], &data, "vol://v/").run().sane().exits(0);
    let frozen = user.process(Some(1));
    signal(frozen, Signal::STOP);
    let ended = volume(&user, &["fsck", "v"], 1);
    said_out(&ended, "away: server 1: ");
    said_out(&ended, "did not answer within");
    said_out(&ended, "2 of 3 servers and the catalog looked at; 4 files");
    let health = volume(&user, &["health", "v"], 1);
    said_out(&health, "not reached: ");
    for ended in [&ended, &health] {
        assert!(!ended.describe().contains("none of this volume"), "{}", ended.describe());
    }
    signal(frozen, Signal::CONT);
    volume(&user, &["fsck", "v"], 0);
}

/// Goal: a server, or a catalog, whose files are removed under it tells nobody that something lasts: it ends
/// as where its disk fails, and a copy that meets it fails. Method: the whole directory; the log alone, of
/// which the next sync is told; the catalog's database.
#[test]
fn what_is_removed_under_a_server_is_noticed() {
    let user = User::new();
    let data = make(&user, "data", 9);
    user.cp(&["-r"], &data, "vol://v/").run().sane().exits(0);
    let pen = Pen::new(&user);
    let ends = |process: Pid| {
        let until = Instant::now() + Duration::from_secs(30);
        while rustix::process::test_kill_process(process).is_ok() {
            assert!(Instant::now() < until, "it did not notice");
            thread::sleep(Duration::from_millis(50));
        }
    };
    let (server, catalog) = (user.process(Some(1)), user.process(None));
    fs::remove_dir_all(user.room.at("b/data")).expect("removed");
    ends(server);
    let log = fs::read_to_string(user.room.at("b/log.txt")).expect("it is there");
    assert!(log.contains("was removed, moved or replaced"), "{log}");
    for name in ["catalog.db", "catalog.db-wal"] {
        fs::remove_file(user.room.at("a/catalog/data").join(name)).expect("it was there");
    }
    let lied = pen.mkdir("new").err();
    ends(catalog);
    assert!(lied.is_some(), "it was told that it lasts");
    let log = fs::read_to_string(user.room.at("a/catalog/log.txt")).expect("it is there");
    assert!(log.contains("ended by itself"), "{log}");
}

/// Goal: a copy that waits for a server ends when it is told to, and does not wait for the server.
/// Method: its patience is beyond what any command here may take, and a stop's own clock as well.
#[test]
fn who_waits_for_a_server_can_be_stopped() {
    let user = User::new();
    let data = user.room.dir("data");
    (0..84).for_each(|n| drop(user.room.file(&format!("data/f{n}"), vec![n; 700_000])));
    tree::settle(&data);
    let (_, bytes) = tree::totals(&data);
    let mut copy = user.cp(&["-r", "--rate=20MB/s", "--patience=1h"], &data, "vol://v/").start();
    assert!(copy.until(|_| user.holds() > bytes / 8), "it begins");
    let frozen = user.process(Some(1));
    signal(frozen, Signal::STOP);
    thread::sleep(Duration::from_secs(6));
    copy.signal_one(Signal::TERM);
    let until = Instant::now() + Duration::from_secs(40);
    while !copy.ended() {
        assert!(Instant::now() < until, "it still waits for the server");
        thread::sleep(Duration::from_millis(50));
    }
    signal(frozen, Signal::CONT);
    copy.wait().sane().exits(143);
    user.cp(&["-r"], &data, "vol://v/").run().sane().exits(0);
    user.has(&data, "out");
}
