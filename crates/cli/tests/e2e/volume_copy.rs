//! Copies to and from a volume, which haul itself makes of three servers on this host.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use haul_core::entry::{Meta, Name, Timestamp};
use haul_core::volume::FileNo;
use haul_core::volume::catalog::{Entry, Failure, Place, ROOT};
use haul_volume::access::Access;
use haul_volume::catalog::client::Client as Catalog;
use haul_volume::client::{Client, Config};
use rustix::process::{Pid, Signal};
use serde_json::Value;

use crate::support::compare::{ALL, assert_none_torn, assert_same};
use crate::support::run::{Haul, Outcome, Running};
use crate::support::{Room, procs, read, tree};

const PATIENCE: Duration = Duration::from_secs(60);

/// A user with a volume `v`, whose servers end with the test.
pub struct User {
    pub room: Room,
    mark: String,
}

impl User {
    pub fn new() -> User {
        User::of(&[])
    }

    /// With more words for `haul volume create`.
    pub fn of(more: &[&str]) -> User {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let user = User { room: Room::new(), mark: format!("volcopy-{}-{number}", std::process::id()) };
        let dirs = ["a", "b", "c"].map(|name| user.room.at(name).to_str().expect("UTF-8").to_owned());
        let create = Haul::new(["volume", "create", "v", "--server", &dirs.join(",")]).args(more);
        user.env(create).run().sane().exits(0);
        user
    }

    /// Servers that it starts bear the user's mark.
    pub fn env(&self, haul: Haul) -> Haul {
        haul.env("XDG_STATE_HOME", self.room.at("state")).env(procs::MARK, &self.mark)
    }

    pub fn cp(&self, args: &[&str], from: impl AsRef<Path>, to: impl AsRef<Path>) -> Haul {
        let words = args.iter().map(|arg| PathBuf::from(*arg));
        self.env(Haul::cp(words.chain([from.as_ref().to_owned(), to.as_ref().to_owned()])))
    }

    pub fn health(&self) -> Vec<Value> {
        let ended = self.env(Haul::new(["volume", "health", "v", "--json"])).run().sane();
        let told: Value = serde_json::from_slice(&ended.stdout).expect("JSON");
        told["servers"].as_array().expect("a list").clone()
    }

    /// The process of a storage server; `None`: of the catalog.
    pub fn process(&self, server: Option<u64>) -> Pid {
        let all = self.health();
        let one = all.iter().find(|one| one["server"].as_u64() == server).expect("the volume has it");
        let process = one["process"].as_u64().expect("it runs");
        Pid::from_raw(i32::try_from(process).expect("a number")).expect("a process")
    }

    /// Kills a storage server.
    pub fn kill(&self, number: u64) {
        signal(self.process(Some(number)), Signal::KILL);
    }

    /// Bytes that the storage servers have on disk.
    pub fn holds(&self) -> u64 {
        (0..3).map(|server| self.holds_at(server)).sum()
    }

    /// Bytes of all that one server has.
    pub fn holds_at(&self, server: u64) -> u64 {
        let mut all = 0;
        let mut todo = vec![self.room.at(["a", "b", "c"][server as usize])];
        while let Some(dir) = todo.pop() {
            for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
                match entry.metadata() {
                    Ok(meta) if meta.is_dir() => todo.push(entry.path()),
                    Ok(meta) => all += meta.len(),
                    Err(_) => {}
                }
            }
        }
        all
    }

    /// The names in a directory of the volume.
    pub fn names(&self, path: &str) -> Vec<String> {
        let listed = self.env(Haul::new(["volume", "ls", path])).run().sane().exits(0);
        let lines = String::from_utf8_lossy(&listed.stdout).into_owned();
        let name = |line: &str| {
            let line = line.trim_end_matches("  (of an unfinished copy)");
            line.split(" -> ").next()?.split_whitespace().last().map(str::to_owned)
        };
        lines.lines().filter_map(name).collect()
    }

    /// Whether the volume has this tree and nothing beside it.
    pub fn has(&self, data: &Path, out: &str) {
        assert_eq!(self.names("v"), ["data"]);
        self.cp(&["-r"], "vol://v/data", self.room.dir(out)).run().sane().exits(0);
        assert_same(data, &self.room.at(out).join("data"), ALL);
    }

    /// Starts the catalog alone, which was killed.
    pub fn start_catalog(&self) -> Running {
        let dir = self.room.at("a/catalog");
        let words = ["serve", "catalog", "--dir", dir.to_str().expect("UTF-8")];
        let mut catalog = self.env(Haul::new(words)).start();
        assert!(
            catalog.until(|running| running.stderr().contains("a volume's catalog at ")),
            "{}",
            catalog.stderr()
        );
        catalog
    }

    /// Starts what does not run.
    pub fn start(&self) {
        self.env(Haul::new(["volume", "start", "v"])).run().sane().exits(0);
    }
}

impl Drop for User {
    fn drop(&mut self) {
        procs::signal_all(&procs::marked(&self.mark), Signal::KILL);
    }
}

/// Writes into files of a volume by their paths, as a program does that knows nothing of copies.
pub struct Pen {
    pub catalog: Catalog,
    pub client: Client,
}

impl Pen {
    pub fn new(user: &User) -> Pen {
        let access = Access::read(&user.room.at("state/haul"), "v").expect("it is known");
        let keys = access.keys().expect("a key");
        let at = access.catalog.address().expect("an address");
        let catalog = Catalog::connect(keys.clone(), at, PATIENCE).expect("it answers");
        let config = Config {
            keys,
            number: catalog.number(),
            servers: access.addresses().expect("addresses"),
            stripe_size: access.stripe.into(),
            write_threshold: None,
            patience: PATIENCE,
        };
        Pen { client: Client::start_for(config, &catalog).expect("threads"), catalog }
    }

    /// Makes a directory in the root.
    pub fn mkdir(&self, name: &str) -> Result<Entry, Failure> {
        let place = Place { parent: ROOT, name: Name::new(name.as_bytes()).expect("a name") };
        let mtime = Timestamp { secs: 0, nanos: 0 };
        self.catalog.mkdir(place, Meta { mode: 0o755, uid: 0, gid: 0, mtime })
    }

    /// Puts bytes into a file that is there, and neither syncs it nor tells anybody.
    pub fn write(&self, path: &str, offset: u64, bytes: &[u8]) {
        let mut at = ROOT;
        for name in path.split('/') {
            let place = Place { parent: at, name: Name::new(name.as_bytes()).expect("a name") };
            at = self.catalog.lookup(place).expect("there").id;
        }
        self.client.write(FileNo(at.0), offset, bytes.to_vec()).wait().expect("written");
    }
}

pub fn signal(process: Pid, signal: Signal) {
    rustix::process::kill_process(process, signal).expect("it is there");
}

pub fn said(ended: &Outcome, text: &str) {
    assert!(ended.describe().contains(text), "{}", ended.describe());
}

/// Goal: a tree with every size, name, mode, time and link goes into a volume and comes out as it was, byte
/// for byte; a second run either way sends nothing and changes nothing.
/// Method: one seeded tree, a sparse file and a long name beside it, compared by code that is not haul's.
#[test]
fn trees_go_in_and_come_out_as_they_were() {
    let user = User::new();
    let (data, out) = (user.room.dir("data"), user.room.dir("out"));
    tree::everything(&data, 1);
    let sparse = fs::File::create(data.join("sparse")).expect("made");
    sparse.set_len(9_000_000).expect("a hole");
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"in the middle", 5_000_000).expect("written");
    fs::write(data.join("n".repeat(255)), b"long").expect("written");
    symlink("nowhere/at all", data.join("dangling")).expect("a link");
    tree::settle(&data);
    let (files, bytes) = tree::totals(&data);
    let first = user.cp(&["-r"], &data, "vol://v/in/").run().sane().exits(0).summary();
    assert_eq!((first.number("files"), first.number("bytes")), (files, bytes));
    assert_eq!((first.text("status"), first.text("durability")), ("complete", "disk"));
    user.cp(&["-r"], "vol://v/in/data", &out).run().sane().exits(0);
    assert_same(&data, &out.join("data"), ALL);
    for (from, to) in [(data.as_path(), Path::new("vol://v/in/")), (Path::new("vol://v/in/data"), &out)] {
        let again = user.cp(&["-r"], from, to).run().sane().exits(0).summary();
        assert_eq!((again.number("bytes_sent"), again.number("unchanged")), (0, files), "{again:?}");
        assert_eq!((again.number("files"), again.number("dirs")), (0, 0), "{again:?}");
    }
    // The contents, and a single file by its new name; within the volume, too.
    user.cp(&["-r"], "vol://v/in/data/", "vol://v/again").run().sane().exits(0);
    user.cp(&["-r"], "vol://v/again/", user.room.at("third")).run().sane().exits(0);
    assert_same(&data, &user.room.at("third"), ALL);
    user.cp(&[], "vol://v/in/data/sparse", user.room.at("one")).run().sane().exits(0);
    assert_eq!(read(user.room.at("one")), read(data.join("sparse")));
    // What is asked for, and is not.
    let ended = user.cp(&[], "vol://v/in/data", &out).run().sane().exits(2);
    said(&ended, "is a directory");
    let ended = user.cp(&[], "vol://v/none", &out).run().sane().exits(1);
    said(&ended, "vol://v/none");
    let ended = user.cp(&[], "vol://w/none", &out).run().sane();
    said(&ended, "no volume w is known here");
    let ended = user.cp(&[], "vol:///none", &out).run().sane().exits(2);
    said(&ended, "there is no volume behind the slashes");
    let ended = user.cp(&[], "vol:/v/none", &out).run().sane().exits(2);
    said(&ended, "for a volume write vol://v/none");
    let ended = user.cp(&["-r"], "vol://v/in", "vol://v/in/deeper/").run().sane().exits(2);
    said(&ended, "lies inside the source");
}

/// Goal: a dry run says what a copy would do, and does nothing; a file that changed is copied again, and
/// nothing but that.
#[test]
fn what_changed_is_copied_again() {
    let user = User::new();
    let data = user.room.dir("data");
    tree::plain(&data, 2, 30, 3_000_000);
    let (files, _) = tree::totals(&data);
    let dry = user.cp(&["-r", "--dry-run"], &data, "vol://v/").run().sane().exits(0).summary();
    assert_eq!(dry.number("files"), files, "{dry:?}");
    let listed = user.env(Haul::new(["volume", "ls", "v"])).run().sane().exits(0);
    assert!(listed.stdout.is_empty(), "{}", listed.describe());
    user.cp(&["-r"], &data, "vol://v/").run().sane().exits(0);
    fs::write(data.join("changed"), b"new").expect("written");
    let one = fs::read_dir(&data).expect("read").map(|entry| entry.expect("an entry").path());
    let one = one.filter(|path| path.is_file() && path.metadata().expect("stat").size() > 0).min();
    let one = one.expect("a file");
    let mut content = read(&one);
    content[0] ^= 1;
    fs::write(&one, content).expect("written");
    tree::settle(&data);
    let again = user.cp(&["-r", "--verify=disk"], &data, "vol://v/").run().sane().exits(0).summary();
    assert!(again.number("files") <= 2 && again.number("unchanged") >= files - 1, "{again:?}");
    user.cp(&["-r"], "vol://v/data", user.room.at("out")).run().sane().exits(0);
    assert_same(&data, &user.room.at("out/data"), ALL);
}

/// Goal: bytes that a program wrote into a file of a volume, without another length, a sync or a word to
/// anybody, are in the next copy out, and go with the next copy in; and that is found unchanged then.
#[test]
fn what_was_written_into_is_copied_again() {
    let user = User::new();
    let (data, out) = (user.room.dir("data"), user.room.dir("out"));
    tree::plain(&data, 4, 6, 6_000_000);
    fs::write(data.join("small"), vec![7; 5_000]).expect("written");
    fs::write(data.join("large"), vec![7; 3_000_000]).expect("written");
    tree::settle(&data);
    let (files, _) = tree::totals(&data);
    user.cp(&["-r"], &data, "vol://v/").run().sane().exits(0);
    user.cp(&["-r"], "vol://v/data", &out).run().sane().exits(0);
    let pen = Pen::new(&user);
    pen.write("data/small", 4_000, b"small");
    pen.write("data/large", 1_000_000, &[9; 200_000]);
    let again = user.cp(&["-r"], "vol://v/data", &out).run().sane().exits(0).summary();
    assert_eq!((again.number("files"), again.number("unchanged")), (2, files - 2), "{again:?}");
    assert_eq!(&read(out.join("data/small"))[4_000..4_005], b"small");
    assert!(read(out.join("data/large"))[1_000_000..1_200_000].iter().all(|byte| *byte == 9));
    let again = user.cp(&["-r"], "vol://v/data", &out).run().sane().exits(0).summary();
    assert_eq!((again.number("files"), again.number("unchanged")), (0, files), "{again:?}");
    // What stands at a destination is looked at likewise.
    let back = user.cp(&["-r"], &data, "vol://v/").run().sane().exits(0).summary();
    assert_eq!((back.number("files"), back.number("unchanged")), (2, files - 2), "{back:?}");
    user.cp(&["-r"], "vol://v/data", user.room.at("third")).run().sane().exits(0);
    assert_same(&data, &user.room.at("third/data"), ALL);
}

/// Goal: a file that is written into while it is copied out arrives as it was at one time, or fails by its
/// name.
/// Method: all of it is written anew, byte after byte of another value, while a slow copy is in the middle.
#[test]
fn what_changes_under_a_copy_is_not_mixed() {
    let user = User::new();
    let (data, out) = (user.room.dir("data"), user.room.dir("out"));
    let len = 12_000_000;
    fs::write(data.join("f"), vec![1; len]).expect("written");
    tree::settle(&data);
    user.cp(&["-r"], &data, "vol://v/").run().sane().exits(0);
    let pen = Pen::new(&user);
    let mut running = user.cp(&["-r", "--rate=4MB/s"], "vol://v/data", &out).start();
    let begun = |dir: &Path| {
        let inside = fs::read_dir(dir.join("data")).into_iter().flatten().flatten();
        inside.filter_map(|entry| entry.metadata().ok()).any(|meta| meta.is_file())
    };
    assert!(running.until(|_| begun(&out)), "it begins");
    for at in (0..len).step_by(1 << 20) {
        pen.write("data/f", at as u64, &vec![2; (1 << 20).min(len - at)]);
    }
    let ended = running.wait().sane();
    match fs::read(out.join("data/f")) {
        Ok(bytes) => {
            assert_eq!(bytes.len(), len);
            assert!(bytes.iter().all(|byte| *byte == bytes[0]), "{}", ended.describe());
        }
        Err(_) => said(&ended, "changed while it was read"),
    }
    user.cp(&["-r"], "vol://v/data", &out).run().sane().exits(0);
    assert!(read(out.join("data/f")).iter().all(|byte| *byte == 2));
}

/// Files that are there.
fn files_in(dir: &Path) -> u64 {
    if dir.exists() { tree::totals(dir).0 } else { 0 }
}

/// Goal: storage servers that are killed in the middle of a copy, and started again, cost no byte and no
/// file: what they had taken and not synced is sent once more by the same run, which says so and ends well.
/// Method: while another one stands still no sync of a file comes to an end, so that there is something,
/// unless that one has to grant leases first.
#[test]
fn a_killed_server_costs_no_bytes() {
    let user = User::new();
    let data = user.room.dir("data");
    tree::plain(&data, 3, 40, 40_000_000);
    tree::plain(&data.join("more"), 4, 0, 20_000_000);
    tree::settle(&data);
    let (files, bytes) = tree::totals(&data);
    let mut running = user.cp(&["-r", "--rate=10MB/s"], &data, "vol://v/").start();
    let mut is_lost = false;
    for (server, frozen, part) in [(1, 2, 8), (2, 0, 4), (0, 1, 2)] {
        assert!(running.until(|_| user.holds() > bytes / part), "it goes on");
        let [killed, frozen] = [server, frozen].map(|of| user.process(Some(of)));
        signal(frozen, Signal::STOP);
        let had = user.holds_at(server);
        let mut looks = 0..100;
        let grows = || user.holds_at(server) > had + 1_000_000;
        assert!(running.until(|_| grows() || looks.next().is_none()), "it goes on");
        is_lost |= grows();
        signal(killed, Signal::KILL);
        signal(frozen, Signal::CONT);
        user.start();
    }
    let first = running.wait().sane().exits(0);
    let summary = first.summary();
    assert_eq!((summary.number("files"), summary.number("failed")), (files, 0), "{}", first.describe());
    assert!(!is_lost || summary.chosen("sent again").contains("had lost"), "{}", first.describe());
    // What of each file is another, where one would be copied once more.
    let looked = user.env(Haul::new(["cp", "-rni"]).args([data.as_path(), Path::new("vol://v/")])).run();
    let again = user.cp(&["-r"], &data, "vol://v/").run().sane().exits(0).summary();
    let all = (again.number("files"), again.number("unchanged"));
    assert_eq!(all, (0, files), "{again:?}\n{}", looked.describe());
    user.has(&data, "out");
}

/// Goal: a storage server that is away for one patience ends a copy into the volume, with one error that
/// names it and what to do. One out of it goes on: what lies there fails by its name, all else comes, and
/// no file waits for that server anew. When it is there again, the same command brings what is left.
/// Method: it is killed in the middle, and not started; then it stands still, which no connection shows; then
/// it is killed before the copy begins.
#[test]
fn a_server_that_is_gone_ends_the_copy() {
    let user = User::new();
    let (data, out, list) = (user.room.dir("data"), user.room.dir("out"), user.room.at("list"));
    (0..84).for_each(|n| drop(user.room.file(&format!("data/f{n}"), vec![n; 700_000])));
    tree::settle(&data);
    let (files, bytes) = tree::totals(&data);
    let failures = format!("--failures={}", list.display());
    let options = ["-r", "--rate=20MB/s", "--patience=6s", &failures];
    let is_over = |ended: Outcome| {
        let ended = ended.sane().exits(1);
        for part in ["its server 1, ", "is gone", "`haul volume start v`"] {
            said(&ended, part);
        }
        let told = fs::read_to_string(&list).expect("a list");
        let (failed, summary) = (told.lines().count() as u64, ended.summary());
        assert!(failed > 0 && summary.number("failed") == failed, "{failed}: {}", ended.describe());
        assert!(summary.number("files") + failed <= files, "{failed}: {}", ended.describe());
        // What met it first, and what was left.
        assert!(told.lines().all(|line| line.contains("is gone")), "{told}");
        assert_eq!(summary.text("status"), "failed", "{}", ended.describe());
    };
    let mut into = user.cp(&options, &data, "vol://v/").start();
    assert!(into.until(|_| user.holds() > bytes / 8), "it begins");
    user.kill(1);
    is_over(into.wait());
    user.start();
    let again = user.cp(&["-r"], &data, "vol://v/").run().sane().exits(0).summary();
    assert_eq!(again.number("files") + again.number("unchanged"), files, "{again:?}");
    user.has(&data, "whole");

    let goes_on = |ended: Outcome, out: &Path| {
        let ended = ended.sane().exits(3);
        for part in ["its server 1, ", "is gone", "`haul volume start v`"] {
            said(&ended, part);
        }
        assert_none_torn(&data, &out.join("data"));
        let (told, summary) = (fs::read_to_string(&list).expect("a list"), ended.summary());
        let line = |line: &str| serde_json::from_str::<Value>(line).expect("JSON");
        let (end, told): (Vec<&str>, Vec<&str>) = told.lines().partition(|text| line(text)["whole"] == true);
        assert_eq!(end.len(), 1, "{told:?}");
        let mut named: Vec<String> =
            told.iter().map(|text| line(text)["path"].as_str().expect("a path").to_owned()).collect();
        let is_there = |path: &String| out.join(path).exists();
        let mut missing: Vec<String> =
            (0..84).map(|n| format!("data/f{n}")).filter(|path| !is_there(path)).collect();
        named.sort();
        missing.sort();
        assert_eq!(named, missing, "{}", ended.describe());
        assert!(told.iter().all(|line| line.contains("is gone")), "{told:?}");
        assert!((1..=28).contains(&missing.len()), "a third of them is gathered there: {}", missing.len());
        assert_eq!(summary.number("failed"), missing.len() as u64, "{}", ended.describe());
    };
    let mut from = user.cp(&options, "vol://v/data", &out).start();
    assert!(from.until(|_| files_in(&out) > 5), "it begins");
    let frozen = user.process(Some(1));
    signal(frozen, Signal::STOP);
    goes_on(from.wait(), &out);
    signal(frozen, Signal::KILL);
    let other = user.room.dir("other");
    goes_on(user.cp(&options, "vol://v/data", &other).run(), &other);
    user.start();
    let again = user.cp(&["-r"], "vol://v/data", &out).run().sane().exits(0).summary();
    assert_eq!(again.number("files") + again.number("unchanged"), files, "{again:?}");
    assert_same(&data, &out.join("data"), ALL);
}

/// Goal: the same of the catalog, which names everything.
#[test]
fn a_catalog_that_is_gone_ends_the_copy() {
    let user = User::new();
    let (data, out) = (user.room.dir("data"), user.room.dir("out"));
    (0..84).for_each(|n| drop(user.room.file(&format!("data/f{n}"), vec![n; 700_000])));
    tree::settle(&data);
    let (files, bytes) = tree::totals(&data);
    let options = ["-r", "--rate=20MB/s", "--patience=5s"];
    let is_over = |ended: Outcome| {
        let ended = ended.sane().exits(1);
        ["its catalog, ", "is gone", "`haul volume start v`"].iter().for_each(|part| said(&ended, part));
    };
    let mut into = user.cp(&options, &data, "vol://v/").start();
    assert!(into.until(|_| user.holds() > bytes / 8), "it begins");
    signal(user.process(None), Signal::KILL);
    is_over(into.wait());
    user.start();
    let again = user.cp(&["-r"], &data, "vol://v/").run().sane().exits(0).summary();
    assert_eq!(again.number("files") + again.number("unchanged"), files, "{again:?}");
    user.has(&data, "whole");
    let mut from = user.cp(&options, "vol://v/data", &out).start();
    assert!(from.until(|_| files_in(&out) > 5), "it begins");
    signal(user.process(None), Signal::KILL);
    is_over(from.wait());
    user.start();
    user.cp(&["-r"], "vol://v/data", &out).run().sane().exits(0);
    assert_same(&data, &out.join("data"), ALL);
}

/// Goal: in a volume that is partitioned each file that is copied lies in as many parts as there are servers,
/// each on one of them; `stat` says so, and what comes out is what went in. What is made without a length
/// lies round and round. Method: what the servers have on disk, put together in their order, is the file.
#[test]
fn files_are_placed_as_the_volume_says() {
    let user = User::new();
    let (data, out) = (user.room.dir("data"), user.room.dir("out"));
    let (long, stripe) = (27 * 65_536 + 1234, 65_536);
    let bytes: Vec<u8> = (0..long as u64).map(|at| (at * 7 + at / 65_536) as u8).collect();
    user.room.file("data/long", bytes.clone());
    for n in 0..5 {
        user.room.file(&format!("data/short{n}"), &bytes[..stripe / 2 + n]);
    }
    let dirs = ["pa", "pb", "pc"].map(|name| user.room.at(name));
    let words = dirs.clone().map(|dir| dir.to_str().expect("UTF-8").to_owned()).join(",");
    let create = ["volume", "create", "p", "--stripe", "64KiB", "--placement", "partitioned", "--server"];
    user.env(Haul::new(create.into_iter().chain([&*words]))).run().sane().exits(0);
    user.cp(&["-r"], &data, "vol://p/").run().sane().exits(0);
    user.cp(&["-r"], "vol://p/data", &out).run().sane().exits(0);
    assert_same(&data, &out.join("data"), ALL);

    let stat = |path: &str| -> Value {
        let told = user.env(Haul::new(["volume", "stat", path, "--json"])).run().sane().exits(0);
        serde_json::from_slice(&told.stdout).expect("JSON")
    };
    let told = stat("p/data/long");
    let number = told["number"].as_u64().expect("a number");
    let first = told["first_server"].as_u64().expect("a server") as usize;
    // 28 stripes on three servers: ten, ten and eight.
    assert_eq!(told["placement"], "partitioned, 10 stripes on each server");
    let name = format!("data/files/{:02x}/{number:016x}", number & 0xff);
    let parts: Vec<Vec<u8>> = (0..3).map(|nth| read(dirs[(first + nth) % 3].join(&name))).collect();
    assert_eq!(
        parts.iter().map(Vec::len).collect::<Vec<_>>(),
        [10 * stripe, 10 * stripe, long - 20 * stripe]
    );
    assert!(parts.concat() == bytes);
    let begins: std::collections::BTreeSet<u64> = (0..5)
        .map(|n| stat(&format!("p/data/short{n}"))["first_server"].as_u64().expect("a server"))
        .collect();
    assert_eq!(begins.len(), 3, "files begin at different servers");
    let human = user.env(Haul::new(["volume", "stat", "p/data/long"])).run().sane().exits(0);
    said_out(&human, "partitioned, 10 stripes on each server, from server");
    let listed = user.env(Haul::new(["volume", "ls"])).run().sane().exits(0);
    said_out(&listed, "p  3 servers, stripes of 65.5 kB, partitioned, all answer");
    let health = user.env(Haul::new(["volume", "health", "p"])).run().sane().exits(0);
    said_out(&health, "new files lie partitioned");
    // In another one they lie round and round, also what comes from there.
    user.cp(&["-r"], "vol://p/data", "vol://v/").run().sane().exits(0);
    assert_eq!(stat("v/data/long")["placement"], "round-robin");
    user.has(&data, "again");
}

pub fn said_out(ended: &Outcome, words: &str) {
    let out = String::from_utf8_lossy(&ended.stdout);
    assert!(out.contains(words), "{words}: {out}");
}
