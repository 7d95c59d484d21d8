//! What the catalog of a volume knows of lengths, where servers have lost bytes or are older: nothing of that
//! is given as zeros, drained over what is good, or called unchanged; and which homes are none.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use haul_core::entry::Name;
use haul_core::volume::catalog::{Place, ROOT};
use haul_core::volume::layout::Striping;
use haul_core::volume::{FileNo, ServerNo};
use rustix::process::Signal;
use serde_json::Value;

use crate::support::compare::{ALL, assert_same};
use crate::support::run::{Haul, Outcome};
use crate::support::{read, tree};
use crate::volume_copy::{Pen, User, said};

const SERVERS: [&str; 3] = ["a", "b", "c"];

fn volume(user: &User, args: &[&str]) -> Haul {
    user.env(Haul::new(["volume"].iter().chain(args)))
}

fn stat(user: &User, path: &str) -> Value {
    let told = volume(user, &["stat", path, "--json"]).run().sane().exits(0);
    serde_json::from_slice(&told.stdout).expect("JSON")
}

fn home(user: &User, path: &str) -> Option<String> {
    stat(user, path)["home"].as_str().map(str::to_owned)
}

/// Where in a file those bytes stand that are at `stored` of what a server has of it, in stripes of 64 KiB.
fn offset_at(user: &User, server: usize, path: &str, stored: u64) -> u64 {
    const STRIPE: u64 = 65_536;
    let number = FileNo(stat(user, path)["number"].as_u64().expect("a number"));
    let striping = Striping::new(STRIPE, SERVERS.len() as u16);
    striping.nth(number, ServerNo(server as u16), stored / STRIPE) * STRIPE + stored % STRIPE
}

/// The file that a server has of one in the volume.
fn shelf(user: &User, server: usize, path: &str) -> PathBuf {
    let number = stat(user, path)["number"].as_u64().expect("a number");
    user.room.at(SERVERS[server]).join(format!("data/files/{:02x}/{number:016x}", number % 256))
}

/// The last line of `fsck --json`.
fn fsck(user: &User, code: i32) -> Value {
    let ended = volume(user, &["fsck", "v", "--json"]).run().sane().exits(code);
    let text = String::from_utf8_lossy(&ended.stdout).into_owned();
    serde_json::from_str(text.lines().last().expect("a last line")).expect("JSON")
}

fn stop(user: &User) {
    volume(user, &["stop", "v"]).run().sane().exits(0);
}

fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path());
    entries.map(|path| (path.clone(), read(path))).collect()
}

/// Nothing that failed is there, and all else is.
fn failed(ended: &Outcome, names: &[&str]) {
    names.iter().for_each(|name| said(ended, name));
}

fn filled(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..len).map(|_| rng.u8(..)).collect()
}

/// Goal: of a file that was copied in and of which a server lost its part, or the end of that, nothing comes
/// out, and who is told learns which server lost it; a drain to where the good ones lie leaves those alone.
/// Holes that nobody wrote stay zeros: of a sparse file, and of one that a program wrote. The same copy again
/// brings in what was lost, and nothing else.
#[test]
fn what_was_lost_is_no_hole() {
    let user = User::of(&["--stripe=64KiB"]);
    let data = user.room.dir("data");
    for (seed, name) in ["lost", "cut", "good"].into_iter().enumerate() {
        user.room.file(&format!("data/{name}"), filled(seed as u64, 1_000_000));
    }
    user.room.file("data/small", filled(9, 3000));
    let sparse = fs::File::create(data.join("sparse")).expect("made");
    sparse.set_len(3_000_000).expect("long");
    sparse.write_all_at(b"here", 900_000).expect("written");
    drop(sparse);
    tree::settle(&data);
    user.cp(&["-r", "--write-threshold=0"], &data, "vol://v/").run().sane().exits(0);
    user.room.file("holes", vec![]);
    user.cp(&[], user.room.at("holes"), "vol://v/").run().sane().exits(0);
    let pen = Pen::new(&user);
    pen.write("holes", 2_000_000, &[7; 70_000]);
    let place = Place { parent: ROOT, name: Name::new(b"holes").expect("a name") };
    let holes = FileNo(pen.catalog.lookup(place).expect("there").id.0);
    haul_volume::contents::sync(&pen.catalog, &pen.client, holes).expect("synced");
    drop(pen);
    let (lost, cut) = (shelf(&user, 1, "v/data/lost"), shelf(&user, 2, "v/data/cut"));
    let at = [offset_at(&user, 1, "v/data/lost", 0), offset_at(&user, 2, "v/data/cut", 100_000)];
    stop(&user);
    fs::remove_file(lost).expect("removed");
    fs::File::options().write(true).open(cut).expect("there").set_len(100_000).expect("cut");
    user.start();

    let out = user.room.dir("out");
    let ended = user.cp(&["-r"], "vol://v/", &out).run().sane().exits(3);
    failed(&ended, &["data/lost", "data/cut", "server 1", "server 2", "fsck"]);
    at.iter().for_each(|at| said(&ended, &format!("has lost its bytes at {at},")));
    assert!(!out.join("data/lost").exists() && !out.join("data/cut").exists(), "{}", ended.describe());
    for name in ["good", "small", "sparse"] {
        assert!(read(data.join(name)) == read(out.join("data").join(name)), "{name}");
    }
    let holes = [vec![0; 2_000_000], vec![7; 70_000]].concat();
    assert!(read(out.join("holes")) == holes, "what was never written is zeros");

    let before = contents(&data);
    let to = data.parent().and_then(Path::to_str).expect("UTF-8");
    volume(&user, &["drain", "v", "--all", "--to", to]).run().sane().exits(3);
    assert!(contents(&data) == before, "a drain replaced what is good");
    assert_eq!(fsck(&user, 1)["faults"].as_u64(), Some(2));

    let again = user.cp(&["-r"], &data, "vol://v/").run().sane().exits(0).summary();
    assert_eq!((again.number("files"), again.number("unchanged")), (2, 3), "{again:?}");
    assert_eq!(fsck(&user, 0)["faults"].as_u64(), Some(0));
    let whole = user.room.dir("whole");
    user.cp(&["-r"], "vol://v/data", &whole).run().sane().exits(0);
    assert_same(&data, &whole.join("data"), ALL);
}

/// Goal: where a server's directory is brought back from before the files, they do not come out shorter than
/// the catalog knows them, and a drain to where they came from replaces none of them.
#[test]
fn an_older_directory_empties_nothing() {
    let user = User::of(&["--stripe=64KiB"]);
    let data = user.room.dir("data");
    (0..9).for_each(|n| drop(user.room.file(&format!("data/f{n}"), filled(n, 300_000))));
    tree::settle(&data);
    stop(&user);
    let (at, old) = (user.room.at("b/data"), user.room.at("old"));
    let copied = std::process::Command::new("cp").args(["-a"]).args([&at, &old]).status();
    assert!(copied.is_ok_and(|status| status.success()));
    user.start();
    user.cp(&["-r"], &data, "vol://v/").run().sane().exits(0);
    stop(&user);
    fs::remove_dir_all(&at).expect("removed");
    fs::rename(&old, &at).expect("brought back");
    user.start();

    let before = contents(&data);
    let to = data.parent().and_then(Path::to_str).expect("UTF-8");
    let ended = volume(&user, &["drain", "v", "--to", to]).run().sane().exits(3);
    said(&ended, "which gathers it, knows of 0 bytes, and 300000 were there when it was copied in");
    assert!(contents(&data) == before, "a drain replaced what is good");
    let ended = user.cp(&["-r"], "vol://v/data", user.room.dir("out")).run().sane().exits(3);
    said(&ended, "that directory is older than the file");
    for (path, bytes) in contents(&user.room.at("out/data")) {
        assert!(read(data.join(path.file_name().expect("a name"))) == bytes, "{path:?}");
    }
    volume(&user, &["destroy", "v"]).run().sane().exits(1);
}

/// Goal: all that has its name is known to be whole, also of a copy that was killed, and of what its next run
/// finds unchanged.
#[test]
fn a_killed_copy_is_known_to_be_whole() {
    let user = User::of(&["--stripe=64KiB"]);
    let data = user.room.dir("data");
    (0..60).for_each(|n| drop(user.room.file(&format!("data/f{n}"), filled(n, 300_000))));
    tree::settle(&data);
    let mut running = user.cp(&["-r", "--rate=6MB/s"], &data, "vol://v/").start();
    let published = || {
        let names = volume(&user, &["ls", "v/data"]).run();
        String::from_utf8_lossy(&names.stdout).lines().filter(|line| !line.contains("haul~")).count()
    };
    assert!(running.until(|_| published() >= 10), "it begins");
    running.signal_one(Signal::KILL);
    running.wait();
    let some = fsck(&user, 0);
    assert!(some["whole"].as_u64().is_some_and(|whole| whole >= 10), "{some}");
    let again = user.cp(&["-r"], &data, "vol://v/").run().sane().exits(0).summary();
    assert!(again.number("unchanged") >= 10, "{again:?}");
    let all = fsck(&user, 0);
    assert_eq!((all["files"].as_u64(), all["whole"].as_u64()), (Some(60), Some(60)), "{all}");
}

/// Goal: each of several sources is the home of what came from it; what the kernel makes up and what lies in
/// memory is none, nor is what a drain brought there; `destroy` says so.
#[test]
fn a_home_is_ones_own_and_lasts() {
    let user = User::new();
    for (n, dir) in ["p", "q", "r"].into_iter().enumerate() {
        user.room.dir(dir);
        user.room.file(&format!("{dir}/f{n}"), vec![n as u8; 9000]);
    }
    let from = |path: &str| user.room.at(path);
    let words = [from("p/f0"), from("q/f1"), from("r"), PathBuf::from("vol://v/")];
    user.env(Haul::cp([PathBuf::from("-r")].into_iter().chain(words))).run().sane().exits(0);
    for (file, source) in [("f0", "p/f0"), ("f1", "q/f1"), ("r/f2", "r/f2")] {
        let home = home(&user, &format!("v/{file}")).expect("it has one");
        assert!(home.ends_with(&format!(":{}", from(source).display())), "{file}: {home}");
    }
    user.cp(&[], "/proc/version", "vol://v/kernel").run().exits(0);
    assert_eq!(home(&user, "v/kernel"), None, "nobody keeps that");
    volume(&user, &["rm", "v/kernel"]).run().sane().exits(0);

    let memory = PathBuf::from(format!("/dev/shm/haul-e2e-lengths-{}", std::process::id()));
    let tmpfs = 0x0102_1994;
    if !rustix::fs::statfs("/dev/shm").is_ok_and(|fs| fs.f_type as u64 & 0xffff_ffff == tmpfs) {
        eprintln!("SKIP a part of a_home_is_ones_own_and_lasts: no tmpfs at /dev/shm");
        return;
    }
    fs::create_dir_all(memory.join("in")).expect("made");
    fs::write(memory.join("in/f3"), vec![3; 9000]).expect("written");
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        user.cp(&["-r"], memory.join("in"), "vol://v/").run().exits(0);
        assert_eq!(home(&user, "v/in/f3"), None, "it is gone with the next boot");
        let to = memory.join("out").display().to_string();
        let ended = volume(&user, &["drain", "v", "--all", "--to", &to]).run().exits(0);
        said(&ended, "have no home in");
        assert_eq!(read(memory.join("out/in/f3")), vec![3; 9000]);
        assert_eq!(home(&user, "v/in/f3"), None);
        assert!(home(&user, "v/f0").is_some_and(|home| home.ends_with("p/f0")), "that is still its home");
        volume(&user, &["destroy", "v"]).run().sane().exits(1).says("v/in/f3");
    }));
    let _ = fs::remove_dir_all(&memory);
    if let Err(why) = outcome {
        std::panic::resume_unwind(why);
    }
}
