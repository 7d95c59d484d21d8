//! Full and failing disks of a volume: a copy that meets one, what waits for room, and starts where there is
//! none.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use haul_core::entry::{Meta, Name, Timestamp};
use haul_core::volume::FileNo;
use haul_core::volume::catalog::{Place, ROOT};
use haul_volume::access::Access;
use haul_volume::catalog::client::Client as Catalog;
use haul_volume::client::{Client, Config};
use rustix::process::Signal;
use serde_json::Value;

use crate::support::compare::{ALL, assert_none_torn, assert_same};
use crate::support::disk::{Disk, Kind};
use crate::support::mount::Tmpfs;
use crate::support::run::{Haul, Outcome};
use crate::support::{Room, procs, tree};

const PATIENCE: Duration = Duration::from_secs(60);

/// A user with a volume `v` of three servers and a catalog, whose directories lie in places of the test's
/// choice.
struct User {
    room: Room,
    mark: String,
}

impl User {
    fn new() -> User {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        User { room: Room::new(), mark: format!("volfull-{}-{number}", std::process::id()) }
    }

    /// Makes the volume; `dirs` of its servers.
    fn create(&self, dirs: [&Path; 3], catalog: Option<&Path>) {
        let dirs = dirs.map(|dir| dir.to_str().expect("UTF-8")).join(",");
        let catalog = catalog.map(|dir| dir.to_str().expect("UTF-8"));
        let args = ["volume", "create", "v", "--stripe", "64KiB", "--server", &dirs];
        let more = catalog.map(|dir| ["--catalog", dir]).into_iter().flatten();
        self.env(Haul::new(args.into_iter().chain(more))).run().sane().exits(0);
    }

    /// Servers that it starts bear the user's mark.
    fn env(&self, haul: Haul) -> Haul {
        haul.env("XDG_STATE_HOME", self.room.at("state")).env(procs::MARK, &self.mark)
    }

    fn volume(&self, args: &[&str]) -> Outcome {
        self.env(Haul::new(["volume"].iter().chain(args).copied())).run().sane()
    }

    fn cp(&self, args: &[&str], from: impl AsRef<Path>, to: impl AsRef<Path>) -> Haul {
        let words = args.iter().map(|arg| PathBuf::from(*arg));
        self.env(Haul::cp(words.chain([from.as_ref().to_owned(), to.as_ref().to_owned()])))
    }

    /// What `health` says of each server, the catalog last, and whether all is well.
    fn health(&self) -> (Vec<Value>, bool) {
        let ended = self.volume(&["health", "v", "--json"]);
        let told: Value = serde_json::from_slice(&ended.stdout).expect("JSON");
        let healthy = told["healthy"].as_bool().expect("it says so");
        ended.exits(i32::from(!healthy));
        (told["servers"].as_array().expect("a list").clone(), healthy)
    }

    /// Whether all of them answer.
    fn all_answer(&self) -> bool {
        self.health().0.iter().all(|one| one["reached"] == true)
    }

    /// Whether what is in the volume is this tree.
    fn has(&self, data: &Path, out: &str) {
        self.cp(&["-r"], "vol://v/data", self.room.dir(out)).run().sane().exits(0);
        assert_same(data, &self.room.at(out).join("data"), ALL);
    }
}

impl Drop for User {
    fn drop(&mut self) {
        procs::signal_all(&procs::marked(&self.mark), Signal::KILL);
    }
}

fn said(ended: &Outcome, text: &str) {
    assert!(ended.describe().contains(text), "{text}: {}", ended.describe());
}

/// Takes all room of the file system of a directory.
fn fill(dir: &Path) {
    let mut filler = fs::File::options().create(true).append(true).open(dir.join("filler")).expect("made");
    for len in [1 << 16, 4096] {
        while filler.write_all(&vec![1; len]).is_ok() {}
    }
}

fn free(dir: &Path) {
    fs::remove_file(dir.join("filler")).expect("removed");
}

/// A file of the volume that is written as a program does, in small pieces, and gathered by another server
/// than the second one. Its name, and what it has.
fn write_small(user: &User, pieces: u64, len: usize) -> (String, Vec<u8>) {
    let access = Access::read(&user.room.at("state/haul"), "v").expect("it is known");
    let keys = access.keys().expect("a key");
    let at = access.catalog.address().expect("an address");
    let catalog = Catalog::connect(keys.clone(), at, PATIENCE).expect("it answers");
    let config = Config {
        keys,
        number: catalog.number(),
        servers: access.addresses().expect("addresses"),
        stripe_size: access.stripe.into(),
        write_threshold: Some(u64::MAX),
        patience: PATIENCE,
    };
    let client = Client::start_for(config, &catalog).expect("threads");
    let meta = Meta { mode: 0o644, uid: 0, gid: 0, mtime: Timestamp { secs: 1_600_000_000, nanos: 5 } };
    let make = |name: &String| {
        let at = Place { parent: ROOT, name: Name::new(name.as_bytes()).expect("a name") };
        catalog.create(at, meta, true, false).expect("made").0.id.0
    };
    let mut made = (0..).map(|number| format!("small{number}")).map(|name| (make(&name), name));
    let (file, name) = made.find(|(file, _)| file % 3 != 1).expect("they are gathered in turns");
    let mut all = Vec::new();
    for piece in 0..pieces {
        let bytes = vec![piece as u8 + 1; len];
        client.write(FileNo(file), piece * len as u64, bytes.clone()).wait().expect("gathered");
        all.extend(bytes);
    }
    client.sync(FileNo(file)).wait().expect("it lasts");
    (name, all)
}

/// Bytes that are free where a directory lies.
fn room_in(dir: &Path) -> u64 {
    let stat = rustix::fs::statvfs(dir).expect("it is there");
    stat.f_bavail * stat.f_frsize
}

/// Goal: a copy into a volume of which one server's disk is full waits for room as long as it is told, ends
/// with 1 and one error, which names that server, its directory and what to do, and publishes nothing that is
/// not whole; room that comes meanwhile is enough; the same command goes on once there is room.
/// Method: the disk is a small tmpfs, which is enlarged.
#[test]
fn a_full_server_ends_a_copy_and_it_goes_on() {
    need!("tmpfs");
    let user = User::new();
    let disk = user.room.dir("disk");
    let tmpfs = Tmpfs::mount(&disk, "size=12m");
    let (a, c, small) = (user.room.at("a"), user.room.at("c"), disk.join("server"));
    user.create([&a, &small, &c], None);
    let data = user.room.dir("data");
    (0..30).for_each(|n| drop(user.room.file(&format!("data/f{n:02}"), vec![n + 1; 3_000_000])));
    tree::settle(&data);
    let (files, _) = tree::totals(&data);
    let list = user.room.at("list");
    let failures = format!("--failures={}", list.display());
    let ended = user.cp(&["-r", "--patience=3s", &failures], &data, "vol://v/").run().sane().exits(1);
    let place = format!("volume v: its server 1, {}, has no room", small.display());
    for part in [&place, "No space left on device", "make room on that disk"] {
        said(&ended, part);
    }
    let summary = ended.summary();
    assert_eq!(summary.text("status"), "failed", "{}", ended.describe());
    let told = fs::read_to_string(&list).expect("a list");
    assert_eq!(told.lines().count() as u64, summary.number("failed"), "{}", ended.describe());
    assert!(told.lines().all(|line| line.contains("has no room")), "{told}");
    user.cp(&["-r"], "vol://v/data", user.room.dir("part")).run().sane();
    assert_none_torn(&data, &user.room.at("part/data"));
    // Room that comes while it waits.
    let mut running = user.cp(&["-r"], &data, "vol://v/").start();
    assert!(running.until(|_| room_in(&disk) < 1 << 20), "it fills the disk");
    // Bytes are refused meanwhile, and wait.
    std::thread::sleep(Duration::from_secs(1));
    tmpfs.remount("size=200m");
    let again = running.wait().sane().exits(0).summary();
    assert_eq!(again.number("files") + again.number("unchanged"), files, "{again:?}");
    user.has(&data, "whole");
    assert!(procs::wait_until(PATIENCE, || user.health().1), "{:?}", user.health());
}

/// Goal: what was gathered for a server without room lasts and is read, and `health` says how much of it
/// waits, for which server and directory, why and since when, and ends with 1; when there is room it is
/// brought by itself, and `health` is well again.
#[test]
fn what_waits_for_room_is_in_health() {
    need!("tmpfs");
    let user = User::new();
    let disk = user.room.dir("disk");
    let _tmpfs = Tmpfs::mount(&disk, "size=12m");
    let (a, c, small) = (user.room.at("a"), user.room.at("c"), disk.join("server"));
    user.create([&a, &small, &c], None);
    fill(&disk);
    let (name, bytes) = write_small(&user, 100, 3_000);
    let is_whole = |out: &str| {
        let (from, to) = (format!("vol://v/{name}"), user.room.at(out));
        user.cp(&[], from, &to).run().sane().exits(0);
        assert!(fs::read(&to).expect("there") == bytes);
    };
    let is_told = || {
        let (servers, healthy) = user.health();
        let mut ills = servers.iter().flat_map(|one| one["ills"].as_array().into_iter().flatten());
        !healthy
            && ills.any(|ill| {
                ill["what"] == "gathered"
                    && ill["by"] == 1
                    && ill["dir"] == small.to_str().expect("UTF-8")
                    && ill["bytes"].as_u64().is_some_and(|bytes| bytes > 0)
                    && ill["errno"] == 28
            })
    };
    assert!(procs::wait_until(PATIENCE, is_told), "{:?}", user.health());
    let words = user.volume(&["health", "v"]).exits(1);
    for part in ["wait for server 1", small.to_str().expect("UTF-8"), "No space left on device", "make room"]
    {
        said(&words, part);
    }
    is_whole("waiting");
    free(&disk);
    assert!(procs::wait_until(PATIENCE, || user.health().1), "{:?}", user.health());
    user.volume(&["stop", "v"]).exits(0);
    user.volume(&["start", "v"]).exits(0);
    is_whole("brought");
}

/// Goal: a server and a catalog whose disks have no room at all are started again, by the program as anybody
/// does it, as often as that is; files can be removed then, by their names, and that makes room for others.
/// Method: the disks are filled anew after each stop, for an end gives room back.
#[test]
fn a_volume_starts_on_full_disks_and_is_cleared() {
    need!("tmpfs");
    let user = User::new();
    let (disk, names) = (user.room.dir("disk"), user.room.dir("names"));
    let _tmpfs = (Tmpfs::mount(&disk, "size=24m"), Tmpfs::mount(&names, "size=24m"));
    let (a, c, small) = (user.room.at("a"), user.room.at("c"), disk.join("server"));
    user.create([&a, &small, &c], Some(&names.join("catalog")));
    let data = user.room.dir("data");
    (0..12).for_each(|n| drop(user.room.file(&format!("data/f{n:02}"), vec![n + 1; 3_000_000])));
    tree::settle(&data);
    user.cp(&["-r"], &data, "vol://v/").run().sane().exits(0);
    for round in 0..2 {
        user.volume(&["stop", "v"]).exits(0);
        fill(&disk);
        fill(&names);
        user.volume(&["start", "v"]).exits(0);
        assert!(user.all_answer(), "{:?}", user.health());
        user.has(&data, &format!("out{round}"));
    }
    // There is no room for a name.
    let ended = user.cp(&["-r"], &data, "vol://v/more/").run().sane().exits(1);
    said(&ended, names.to_str().expect("UTF-8"));
    (0..6).for_each(|n| drop(user.volume(&["rm", &format!("v/data/f{n:02}")]).exits(0)));
    let had = room_in(&disk);
    assert!(procs::wait_until(PATIENCE, || room_in(&disk) > had.max(3 << 20)), "what was removed makes room");
    free(&names);
    let more = user.room.dir("more");
    user.room.file("more/one", vec![7; 3_000_000]);
    assert!(procs::wait_until(PATIENCE, || user.health().1), "{:?}", user.health());
    user.cp(&["-r"], &more, "vol://v/").run().sane().exits(0);
    user.cp(&["-r"], "vol://v/data", user.room.dir("left")).run().sane().exits(0);
    for n in 0..12 {
        let (is, was) = (user.room.at(&format!("left/data/f{n:02}")), data.join(format!("f{n:02}")));
        match n {
            0..6 => assert!(!is.exists(), "it was removed"),
            _ => assert!(fs::read(is).expect("there") == fs::read(was).expect("there"), "f{n:02}"),
        }
    }
    user.cp(&["-r"], "vol://v/more", user.room.dir("got")).run().sane().exits(0);
    assert_same(&more, &user.room.at("got/more"), ALL);
}

/// Goal: a disk of a server that fails ends a copy at once with 1 and one error, which names it and what to
/// do; when it is well again and the server was started on it, the same command brings what is left. Method:
/// the server's file system is shut down below it, as a device that is gone does it.
#[test]
fn a_failing_disk_ends_a_copy_at_once() {
    need!("ext4");
    let user = User::new();
    let disk = Disk::new(&user.room, "disk", Kind::Ext4);
    let (a, c, small) = (user.room.at("a"), user.room.at("c"), disk.at("server"));
    user.create([&a, &small, &c], None);
    let data = user.room.dir("data");
    (0..30).for_each(|n| drop(user.room.file(&format!("data/f{n:02}"), vec![n + 1; 3_000_000])));
    tree::settle(&data);
    let (files, _) = tree::totals(&data);
    let had = room_in(&small);
    let mut running = user.cp(&["-r", "--rate=20MB/s"], &data, "vol://v/").start();
    assert!(running.until(|_| room_in(&small) + (8 << 20) < had), "it goes on");
    disk.cut();
    let ended = running.wait().sane().exits(1);
    for part in [&format!("the disk of its server 1, {}, failed", small.display()), "Input/output error"] {
        said(&ended, part);
    }
    user.volume(&["stop", "v"]);
    disk.power_on();
    user.volume(&["start", "v"]).exits(0);
    let again = user.cp(&["-r"], &data, "vol://v/").run().sane().exits(0).summary();
    assert_eq!(again.number("files") + again.number("unchanged"), files, "{again:?}");
    user.has(&data, "whole");
}
