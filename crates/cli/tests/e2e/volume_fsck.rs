//! `haul volume fsck`: what is lost, what nobody has, and that a volume in use is clean.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use haul_core::entry::Name;
use haul_core::volume::catalog::{Place, ROOT};
use serde_json::Value;

use crate::support::compare::{ALL, assert_same};
use crate::support::run::Haul;
use crate::support::tree;
use crate::volume_copy::{Pen, User};

const SERVERS: [&str; 3] = ["a", "b", "c"];

/// What `fsck` says: of each fault, and at the end of all of it.
fn fsck(user: &User, args: &[&str], code: i32) -> (Vec<Value>, Value) {
    let words = ["volume", "fsck", "v", "--json"].iter().chain(args);
    let ended = user.env(Haul::new(words)).run().sane().exits(code);
    let line = |line: &str| serde_json::from_str(line).unwrap_or_else(|_| panic!("{}", ended.describe()));
    let mut lines: Vec<Value> = String::from_utf8_lossy(&ended.stdout).lines().map(line).collect();
    let sum = lines.pop().expect("a last line");
    assert_eq!(sum["clean"], code == 0, "{}", ended.describe());
    (lines, sum)
}

fn is_clean(user: &User) -> Value {
    fsck(user, &[], 0).1
}

/// The file that a server has of a number.
fn shelf(user: &User, server: usize, number: u64) -> PathBuf {
    user.room.at(SERVERS[server]).join(format!("data/files/{:02x}/{number:016x}", number % 256))
}

fn number(user: &User, path: &str) -> u64 {
    let told = user.env(Haul::new(["volume", "stat", path, "--json"])).run().sane().exits(0);
    let told: Value = serde_json::from_slice(&told.stdout).expect("JSON");
    told["number"].as_u64().expect("a number")
}

/// Goal: a volume is clean after copies, kills, restarts, removals and writes of programs; a server that is
/// away is a fault, and nothing else is then.
#[test]
fn a_volume_that_was_used_is_clean() {
    let user = User::new();
    let data = user.room.dir("data");
    tree::everything(&data, 5);
    tree::settle(&data);
    let (files, _) = tree::totals(&data);
    let none = is_clean(&user);
    assert_eq!((none["files"].as_u64(), none["reached"].as_u64()), (Some(0), Some(3)), "{none}");
    user.cp(&["-r"], &data, "vol://v/").run().sane().exits(0);
    let all = is_clean(&user);
    assert_eq!((all["files"].as_u64(), all["whole"].as_u64()), (Some(files), Some(files)), "{all}");
    user.kill(1);
    let (faults, sum) = fsck(&user, &[], 1);
    assert_eq!((sum["reached"].as_u64(), faults.len()), (Some(2), 1), "{faults:?}");
    assert_eq!((&faults[0]["fault"], faults[0]["server"].as_u64()), (&Value::from("away"), Some(1)));
    user.start();
    is_clean(&user);
    user.room.file("one", vec![3; 3_000_000]);
    user.cp(&[], user.room.at("one"), "vol://v/").run().sane().exits(0);
    let pen = Pen::new(&user);
    pen.write("one", 5_000, b"gathered");
    pen.write("one", 9_000_000, &[9; 200_000]);
    let written = is_clean(&user);
    assert_eq!(written["files"].as_u64(), Some(files + 1), "{written}");
    user.env(Haul::new(["volume", "rm", "-r", "v/data"])).run().sane().exits(0);
    assert_eq!(is_clean(&user)["files"].as_u64(), Some(1));
}

/// Goal: a stripe file that is gone, or shorter than it should be, is named with its server, and a repair
/// removes nothing of it; what a server was opened with is missed as well.
#[test]
fn what_is_lost_is_named() {
    let user = User::new();
    let data = user.room.dir("data");
    user.room.file("data/lost", vec![1; 5_000_000]);
    user.room.file("data/cut", vec![2; 5_000_000]);
    user.room.file("data/whole", vec![3; 5_000_000]);
    tree::settle(&data);
    user.cp(&["-r", "--write-threshold=0"], &data, "vol://v/").run().sane().exits(0);
    is_clean(&user);
    let (lost, cut) = (number(&user, "v/data/lost"), number(&user, "v/data/cut"));
    let bytes = fs::read(shelf(&user, 1, lost)).expect("it is there");
    fs::remove_file(shelf(&user, 1, lost)).expect("removed");
    let short = fs::File::options().write(true).open(shelf(&user, 2, cut)).expect("it is there");
    short.set_len(100).expect("cut");
    for args in [&[][..], &["--repair"]] {
        let (faults, sum) = fsck(&user, args, 1);
        let told = |fault: &Value| {
            let path = fault["path"].as_str().expect("a path").to_owned();
            (path, (fault["fault"].as_str().expect("a word").to_owned(), fault["server"].as_u64()))
        };
        let told: BTreeMap<_, _> = faults.iter().map(told).collect();
        let missing = |server| ("missing".to_owned(), Some(server));
        let expected = [("data/lost".to_owned(), missing(1)), ("data/cut".to_owned(), missing(2))];
        assert_eq!(told, BTreeMap::from(expected), "{faults:?}");
        assert_eq!((sum["removed"].as_u64(), sum["whole"].as_u64()), (Some(0), Some(3)), "{sum}");
        assert!(
            faults.iter().any(|fault| fault["text"].as_str().is_some_and(|text| text.starts_with("100 of")))
        );
    }
    let words = user.env(Haul::new(["volume", "fsck", "v"])).run().sane().exits(1);
    let said = String::from_utf8_lossy(&words.stdout).into_owned();
    assert!(said.contains("missing: v/data/lost: server 1: 0 of ") && said.contains("2 faults"), "{said}");
    fs::write(shelf(&user, 1, lost), bytes).expect("back");
    let (faults, _) = fsck(&user, &[], 1);
    assert_eq!(faults.len(), 1, "{faults:?}");
    for name in ["volume", "lives", "log-id", "log/head"] {
        let (at, away) = (user.room.at("a/data").join(name), user.room.at("away"));
        fs::rename(&at, &away).expect("moved");
        let (faults, _) = fsck(&user, &[], 1);
        let of_server = faults.iter().filter(|fault| fault["fault"] == "server").count();
        assert_eq!((of_server, faults.len()), (1, 2), "{name}: {faults:?}");
        fs::rename(away, at).expect("moved back");
    }
}

/// Goal: bytes that no entry has are found and, if that is wanted, removed, and nothing else is: not what has
/// a name, nor what lies under a number that the catalog never gave.
#[test]
fn what_nobody_has_is_removed() {
    let user = User::new();
    let data = user.room.dir("data");
    tree::plain(&data, 6, 10, 4_000_000);
    tree::settle(&data);
    symlink("nowhere", user.room.at("link")).expect("a link");
    user.cp(&[], user.room.at("link"), "vol://v/").run().sane().exits(0);
    user.cp(&["-r"], &data, "vol://v/").run().sane().exits(0);
    // A number that was given, and is nobody's any more.
    let free = number(&user, "v/link");
    user.env(Haul::new(["volume", "rm", "v/link"])).run().sane().exits(0);
    let orphan = [shelf(&user, 0, free), shelf(&user, 2, free)];
    orphan.iter().for_each(|path| fs::write(path, vec![7; 1000]).expect("planted"));
    let foreign = shelf(&user, 1, 1 << 30);
    let odd = user.room.at("b/data/files/07/odd");
    fs::write(&foreign, b"foreign").expect("planted");
    fs::write(&odd, b"odd").expect("planted");
    let kinds = |faults: &[Value]| {
        let mut kinds: Vec<_> =
            faults.iter().map(|fault| fault["fault"].as_str().expect("a word").to_owned()).collect();
        kinds.sort();
        kinds
    };
    let (faults, sum) = fsck(&user, &[], 1);
    assert_eq!(kinds(&faults), ["foreign", "odd", "orphan"], "{faults:?}");
    assert_eq!(sum["removed"].as_u64(), Some(0));
    assert!(orphan.iter().all(|path| path.exists()), "nothing is removed unasked");
    let (faults, sum) = fsck(&user, &["--repair"], 1);
    assert_eq!(kinds(&faults), ["foreign", "odd", "orphan"], "{faults:?}");
    assert_eq!((sum["removed"].as_u64(), sum["faults"].as_u64()), (Some(1), Some(2)), "{sum}");
    assert!(!orphan.iter().any(|path| path.exists()), "the orphan went");
    assert!(foreign.exists() && odd.exists(), "nothing else did");
    fs::remove_file(foreign).expect("removed");
    fs::remove_file(odd).expect("removed");
    assert_eq!(fsck(&user, &["--repair"], 0).1["removed"].as_u64(), Some(0));
    user.has(&data, "out");
}

/// Goal: whatever is copied, renamed, removed and killed meanwhile, nothing but a server that is away is a
/// fault.
/// Method: one thread looks again and again, with repairs, while copies come and go, directories are renamed
/// and servers killed; at the end all is there, and clean.
#[test]
fn a_volume_in_use_has_no_faults() {
    let user = User::new();
    let data = user.room.dir("data");
    tree::plain(&data, 7, 40, 6_000_000);
    tree::settle(&data);
    let over = AtomicBool::new(false);
    let (looks, whole) = thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let (mut looks, mut whole) = (0, 0);
            while !over.load(Ordering::Acquire) {
                let words = ["volume", "fsck", "v", "--json", "--repair"];
                let ended = user.env(Haul::new(words)).run();
                let text = String::from_utf8_lossy(&ended.stdout).into_owned();
                let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
                let (faults, sums): (Vec<_>, Vec<_>) = lines.partition(|line| line["fault"].is_string());
                assert!(faults.iter().all(|fault| fault["fault"] == "away"), "{}", ended.describe());
                looks += sums.len();
                whole += sums.iter().filter(|sum| sum["clean"] == true && sum["whole"] != 0).count();
            }
            (looks, whole)
        });
        let pen = Pen::new(&user);
        let place = |name: &str| Place { parent: ROOT, name: Name::new(name.as_bytes()).expect("a name") };
        for round in 0..6 {
            let mut copy = user.cp(&["-r", "--rate=20MB/s"], &data, "vol://v/").start();
            if round % 3 == 1 {
                assert!(copy.until(|_| user.holds() > 2_000_000), "it begins");
                user.kill(round % 3);
                user.start();
            }
            copy.wait().sane().exits(0);
            pen.write("data/big", 1_000_000, &[round as u8; 300_000]);
            pen.catalog.rename(place("data"), place(&format!("r{round}")), false).expect("renamed");
            if round % 2 == 1 {
                let of = format!("v/r{}", round - 1);
                user.env(Haul::new(["volume", "rm", "-r", &of])).run().sane().exits(0);
            }
        }
        user.cp(&["-r"], &data, "vol://v/").run().sane().exits(0);
        over.store(true, Ordering::Release);
        looking.join().expect("it looks to the end")
    });
    assert!(looks > 3 && whole > 0, "{looks} looks, {whole} of them at what was there");
    is_clean(&user);
    user.cp(&["-r"], "vol://v/data", user.room.dir("out")).run().sane().exits(0);
    assert_same(&data, &user.room.at("out/data"), ALL);
}
