//! Volumes: they are made, looked after, ended, and leave nothing behind; on this host and over ssh.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use haul_core::entry::{Meta, Name};
use haul_core::volume::FileNo;
use haul_core::volume::catalog::{Place, ROOT};
use haul_volume::access::Access;
use haul_volume::catalog::client::Client as Catalog;
use haul_volume::client::{Client, Config};
use rustix::process::{Pid, Signal};
use serde_json::Value;

use crate::support::run::{Haul, Outcome};
use crate::support::sshd::{FarHaul, Sshd};
use crate::support::{Room, procs, set_mode};

/// Nothing here takes so long on a machine that works.
const PATIENCE: Duration = Duration::from_secs(60);

/// A user with a place for what is known of volumes, whose servers end with the test.
struct User {
    room: Room,
    mark: String,
}

impl User {
    fn new() -> User {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mark = format!("volume-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        User { room: Room::new(), mark }
    }

    /// `haul ARGS...` of this user. Servers that it starts here bear the user's mark.
    fn haul(&self, args: &[&str]) -> Haul {
        Haul::new(args).env("XDG_STATE_HOME", self.state()).env(procs::MARK, &self.mark)
    }

    fn state(&self) -> PathBuf {
        self.room.at("state")
    }

    /// What is known of the volume `v`.
    fn access(&self) -> Access {
        Access::read(&self.state().join("haul"), "v").expect("it is known")
    }

    fn access_file(&self) -> PathBuf {
        self.state().join("haul/volumes/v")
    }

    fn at(&self, name: &str) -> String {
        self.room.at(name).to_str().expect("UTF-8").to_owned()
    }

    /// Directories on this host with these names, as `--server` takes them.
    fn dirs(&self, names: &[&str]) -> String {
        names.iter().map(|name| self.at(name)).collect::<Vec<_>>().join(",")
    }

    /// Makes the volume `v` of three servers on this host.
    fn create(&self) {
        let dirs = self.dirs(&["a", "b", "c"]);
        let made = self.haul(&["volume", "create", "v", "--server", &dirs]).run().sane().exits(0);
        assert!(out(&made).starts_with("volume v: 3 servers, the catalog at "), "{}", made.describe());
    }

    /// What `health` says of each server of `v`, the catalog last, and whether all is well.
    fn health(&self) -> (Vec<Value>, bool) {
        let ended = self.haul(&["volume", "health", "v", "--json"]).run().sane();
        let told: Value = serde_json::from_slice(&ended.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", ended.describe()));
        let healthy = told["healthy"].as_bool().expect("it says so");
        ended.exits(i32::from(!healthy));
        (told["servers"].as_array().expect("a list").clone(), healthy)
    }

    /// The processes of the servers, the catalog's last.
    fn processes(&self) -> Vec<u64> {
        let (servers, healthy) = self.health();
        assert!(healthy, "{servers:?}");
        servers.iter().map(|server| server["process"].as_u64().expect("a number")).collect()
    }

    /// Nothing of the volume is on this host: no directory of these, no server, nothing that is known.
    fn has_nothing(&self, dirs: &[&str]) {
        procs::wait_gone(&self.mark);
        for dir in dirs {
            assert!(!self.room.at(dir).exists(), "{dir} is there");
        }
        assert!(!self.access_file().exists(), "the volume is known");
    }
}

impl Drop for User {
    fn drop(&mut self) {
        procs::signal_all(&procs::marked(&self.mark), Signal::KILL);
    }
}

fn out(ended: &Outcome) -> String {
    String::from_utf8_lossy(&ended.stdout).into_owned()
}

fn kill(process: u64) {
    let pid = Pid::from_raw(i32::try_from(process).expect("a number")).expect("a process");
    rustix::process::kill_process(pid, Signal::KILL).expect("it is there");
    let path = PathBuf::from(format!("/proc/{process}/exe"));
    assert!(procs::wait_until(PATIENCE, || fs::read_link(&path).is_err()), "it does not die");
}

/// A file of a volume, through its catalog and its servers.
struct Opened {
    catalog: Catalog,
    client: Client,
}

impl Opened {
    fn new(access: &Access) -> Opened {
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
        Opened { client: Client::start_for(config, &catalog).expect("threads"), catalog }
    }

    fn place(name: &str) -> Place {
        Place { parent: ROOT, name: Name::new(name.as_bytes()).expect("a name") }
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        let meta = Meta { mode: 0o640, uid: 1, gid: 2, mtime: Default::default() };
        let (entry, _) = self.catalog.create(Opened::place(name), meta, true, false).expect("made");
        let file: FileNo = entry.file().expect("a file");
        let mut begun = Vec::new();
        for (number, part) in bytes.chunks(300_000).enumerate() {
            begun.push(self.client.write(file, number as u64 * 300_000, part.to_vec()));
        }
        begun.into_iter().for_each(|one| one.wait().expect("written"));
        self.client.sync(file).wait().expect("synced");
    }

    fn read(&self, name: &str) -> Vec<u8> {
        let file = self.catalog.lookup(Opened::place(name)).expect("there").file().expect("a file");
        let end = self.client.read(file, 0, 0).wait().expect("read").end;
        self.client.read(file, 0, end).wait().expect("read").bytes
    }
}

/// Goal: `health` says what writes to each server cost, directly and gathered, as a client that writes
/// measured it, and the threshold between them; and that nobody did where nobody wrote. A threshold that is
/// pinned for a copy is told as such.
#[test]
fn health_tells_what_writes_cost() {
    let user = User::new();
    user.create();
    let text = |user: &User| out(&user.haul(&["volume", "health", "v"]).run().sane().exits(0));
    assert!(text(&user).contains("no client has said"), "{}", text(&user));
    let opened = Opened::new(&user.access());
    // Of files of all gatherers, on both sides of the threshold that it begins with.
    for number in 0..6 {
        opened.write(&format!("f{number}"), &vec![number; 3_000_000]);
        // Small ones into stripes of their own: where a large one went they would go the same way.
        opened.write(&format!("s{number}"), b"");
        let file = opened.catalog.lookup(Opened::place(&format!("s{number}"))).expect("there").file();
        let file = file.expect("a file");
        for at in 0..40 {
            opened.client.write(file, at * 5_000, vec![1; 700]).wait().expect("written");
        }
    }
    let told = |server: &Value, path: &str| {
        server["costs"][path]["points"].as_array().is_some_and(|all| !all.is_empty())
    };
    // A client tells every now and then, so the first word may be of a few of them.
    let writes = |server: &Value| server["costs"]["writes"].as_u64().unwrap_or(0);
    let mut servers = Vec::new();
    assert!(
        procs::wait_until(PATIENCE, || {
            servers = user.health().0;
            // Which of them gather is the threshold's to say, which moves.
            servers[..3].iter().all(|server| told(server, "direct") && writes(server) > 200)
                && servers[..3].iter().any(|server| told(server, "gathered"))
        }),
        "{servers:?}"
    );
    for server in &servers[..3] {
        let costs = &server["costs"];
        assert!(costs["clients"] == 1 && costs["pinned"] == false, "{costs}");
        assert!(costs["age_seconds"].is_u64(), "{costs}");
        let points = costs["direct"]["points"].as_array().expect("a list");
        assert!(
            points.iter().all(|point| point[0].as_u64() > Some(0) && point[1].as_f64() >= Some(0.0)),
            "{costs}"
        );
    }
    assert!(servers[3].get("costs").is_none(), "the catalog has no writes: {}", servers[3]);
    let said = text(&user);
    assert_eq!(said.matches("writes to server").count(), 3, "{said}");
    assert!(said.contains("directly") && said.contains("1 client in the last minute"), "{said}");
    // Pinned: everything goes where it is told to.
    std::fs::write(user.room.at("data"), vec![7; 2_000_000]).expect("written");
    let (from, to) = (user.at("data"), "vol://v/pinned");
    let copied =
        user.haul(&["cp", "--json", "--write-threshold", "all", &from, to]).run().sane().exits(0).summary();
    assert_eq!(copied.chosen("write threshold"), "pinned: everything is gathered");
    assert_eq!(opened.read("pinned"), vec![7; 2_000_000]);
    // Elsewhere nothing is gathered: it is refused before anything is written.
    for to in [user.at("elsewhere"), "null://".into()] {
        let refused = user.haul(&["cp", "--write-threshold", "4KiB", &from, &to]).run().sane().exits(2);
        refused.says("the destination is none");
    }
    assert!(!user.room.at("elsewhere").exists());
    // From one neither.
    let refused = user.haul(&["cp", "--write-threshold", "0", to, &user.at("elsewhere")]).run().sane();
    refused.exits(2).says("vol://NAME/PATH");
}

/// Goal: a volume is made, answers, keeps its bytes over an end of all its servers, is not destroyed by
/// accident, and leaves nothing when it is.
/// Method: three servers on this host; a file of several stripes, its bytes held against what was written.
#[test]
fn a_volume_from_its_making_to_its_end() {
    let user = User::new();
    user.create();
    let first = user.processes();
    assert_eq!(first.len(), 4);
    let listed = user.haul(&["volume", "ls"]).run().sane().exits(0);
    let words = out(&listed);
    assert!(words.starts_with("v  3 servers, stripes of 1.05 MB, round-robin, all answer, "), "{words}");
    assert!(words.ends_with(" free\n"), "{words}");
    user.haul(&["volume", "create", "v", "--server", &user.at("d")])
        .run()
        .exits(1)
        .says("known here already");
    assert!(!user.room.at("d").exists());

    let bytes: Vec<u8> = (0..3_500_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    Opened::new(&user.access()).write("f", &bytes);
    let listed = user.haul(&["volume", "ls", "v"]).run().sane().exits(0);
    assert!(
        out(&listed).starts_with("-rw-r-----        3,500,000  1970-01-01T00:00:00Z  f\n"),
        "{}",
        out(&listed)
    );
    let stat = user.haul(&["volume", "stat", "v/f", "--json"]).run().sane().exits(0);
    let stat: Value = serde_json::from_slice(&stat.stdout).expect("JSON");
    assert_eq!(
        (&stat["kind"], &stat["size"], &stat["mode"]),
        (&"file".into(), &3_500_000.into(), &0o640.into())
    );

    user.haul(&["volume", "stop", "v"]).run().sane().exits(0);
    procs::wait_gone(&user.mark);
    let (servers, healthy) = user.health();
    assert!(!healthy && servers.iter().all(|server| server["reached"] == false), "{servers:?}");
    user.haul(&["volume", "ls"]).run().sane().exits(0);
    let started = user.haul(&["volume", "start", "v"]).run().sane().exits(0);
    assert_eq!(out(&started), "volume v: 4 servers started, 0 ran already\n");
    assert!(user.processes().iter().all(|process| !first.contains(process)));
    assert_eq!(blake3::hash(&Opened::new(&user.access()).read("f")), blake3::hash(&bytes));

    let refused = user.haul(&["volume", "destroy", "v"]).run().sane().exits(1);
    let refused = refused.says(
        "there is 1 file in the volume v that has no home outside of it: v/f; `haul volume drain v --to DST` brings them to one, and \
         --yes destroys it all the same",
    );
    assert!(user.health().1, "{}", refused.describe());
    user.haul(&["volume", "rm", "v/g"]).run().sane().exits(1).says("v/g: ");
    user.haul(&["volume", "rm", "v/f"]).run().sane().exits(0);
    let listed = user.haul(&["volume", "ls", "v/"]).run().sane().exits(0);
    // As copies have it.
    let same = user.haul(&["volume", "ls", "vol://v/"]).run().sane().exits(0);
    assert_eq!(same.stdout, listed.stdout);
    user.haul(&["volume", "fsck", "vol://v/"]).run().sane().exits(0);
    assert_eq!(out(&listed), "");
    user.haul(&["volume", "destroy", "v"]).run().sane().exits(0);
    user.has_nothing(&["a", "b", "c"]);
}

/// Goal: `create`, `stop`, `start` and `destroy` say what they did as one JSON object, too. `health` and `ls`
/// say how much room there is, on each server's disk and in all, and count no disk twice. What is wrong with
/// a stripe's size is said of that.
#[test]
fn what_was_done_and_what_is_free_is_told() {
    let user = User::new();
    let json = |args: &[&str]| {
        let ended = user.haul(&[&["volume"], args, &["--json"]].concat()).run().sane().exits(0);
        serde_json::from_slice::<Value>(&ended.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", ended.describe()))
    };
    let dirs = user.dirs(&["a", "b", "c"]);
    let wrong = user.haul(&["volume", "create", "v", "--server", &dirs, "--stripe", "100K"]).run().exits(2);
    let wrong = wrong.says("a stripe has a power of two of bytes, from 64KiB to 64MiB");
    assert!(!wrong.stderr.contains("object"), "{}", wrong.describe());
    let made = json(&["create", "v", "--server", &dirs]);
    assert_eq!((&made["name"], &made["stripe"]), (&"v".into(), &(1 << 20).into()), "{made}");
    assert_eq!(made["servers"].as_array().map(Vec::len), Some(3), "{made}");
    let told = json(&["health", "v"]);
    let free: Vec<u64> =
        (0..3).map(|n| told["servers"][n]["free_bytes"].as_u64().expect("it says so")).collect();
    let all = told["free_bytes"].as_u64().expect("it says so");
    assert!(free.contains(&all), "they lie on one disk: {told}");
    assert!(told["used_bytes"].as_u64().is_some_and(|used| used > 0), "{told}");
    let words = out(&user.haul(&["volume", "health", "v"]).run().sane().exits(0));
    assert!(words.contains("in all ") && words.contains(" used, on 1 disk, "), "{words}");
    assert!(json(&["ls"])["free_bytes"].as_u64().is_some());
    assert_eq!(json(&["stop", "v"])["ended"], 4);
    let started = json(&["start", "v"]);
    assert_eq!((&started["started"], &started["ran"], &started["failed"]), (&4.into(), &0.into(), &0.into()));
    assert_eq!(json(&["destroy", "v"])["destroyed"], true);
    user.has_nothing(&["a", "b", "c"]);
}

/// Goal: what lies in a server's directory and is none of haul's stays, and is named.
#[test]
fn only_what_is_hauls_is_destroyed() {
    let user = User::new();
    user.room.dir("a");
    user.create();
    user.room.file("b/mine", "precious");
    Opened::new(&user.access()).write("f", b"bytes");
    let ended = user.haul(&["volume", "destroy", "v", "--yes"]).run().sane().exits(0);
    ended.says("b/mine is none of haul's, and was left");
    assert_eq!(fs::read(user.room.at("b/mine")).expect("it is there"), b"precious");
    assert_eq!(fs::read_dir(user.room.at("b")).expect("there").count(), 1);
    assert_eq!(fs::read_dir(user.room.at("a")).expect("it was there before").count(), 0);
    user.has_nothing(&["c"]);
}

/// Goal: a server that was killed is shown, and started again alone, at the same place with what it had; one
/// whose port somebody else has is told so.
#[test]
fn a_killed_server_is_started_again() {
    let user = User::new();
    user.create();
    Opened::new(&user.access()).write("f", b"some bytes");
    let first = user.processes();
    kill(first[1]);
    let (servers, healthy) = user.health();
    let reached: Vec<_> = servers.iter().map(|server| server["reached"].as_bool().expect("said")).collect();
    assert!(!healthy && reached == [true, false, true, true], "{servers:?}");
    let address: SocketAddr = servers[1]["address"].as_str().expect("said").parse().expect("an address");

    let taken = TcpListener::bind(address).expect("its port is free");
    let ended = user.haul(&["volume", "start", "v"]).run().sane().exits(1);
    ended.says(&format!("cannot listen at {address}"));
    drop(taken);
    let started = user.haul(&["volume", "start", "v"]).run().sane().exits(0);
    assert_eq!(out(&started), "volume v: 1 server started, 3 ran already\n");
    let again = user.processes();
    assert!(again[1] != first[1] && [0, 2, 3].iter().all(|n| again[*n] == first[*n]), "{first:?} {again:?}");
    assert_eq!(Opened::new(&user.access()).read("f"), b"some bytes");

    // By hand, as a service manager does it.
    kill(again[1]);
    let dir = user.at("b");
    let mut by_hand = user.haul(&["serve", "volume", "--root", &dir]).start();
    assert!(by_hand.until(|running| running.stderr().contains("server 1 of 3 of a volume at ")));
    assert_eq!(user.processes()[1], u64::from(by_hand.id()));
    user.haul(&["serve", "volume", "--root", &dir]).run().exits(1).says("is served already");
    user.haul(&["serve", "catalog", "--dir", &dir]).run().exits(1).says("is served already");
    by_hand.signal_one(Signal::TERM);
    by_hand.wait().sane().exits(0);
    assert!(!user.health().1);
    user.haul(&["serve", "catalog", "--dir", &dir]).run().exits(2).says("haul serve volume --root");
    user.haul(&["volume", "destroy", "v", "--yes"]).run().sane().exits(0);
    user.has_nothing(&["a", "b", "c"]);
}

/// Goal: servers are started on other hosts over ssh, also where haul is not installed, go on when ssh is
/// gone, and are started again and removed over it.
/// Method: a real sshd of this host.
#[test]
fn servers_are_started_over_ssh() {
    need!("sshd");
    for haul in [FarHaul::Built, FarHaul::Absent] {
        let user = User::new();
        let sshd = Sshd::start_as(haul, None);
        let ssh = |args: &[&str]| user.haul(args).by(&sshd);
        let servers = format!("127.0.0.1:{},{}127.0.0.1:{}", user.at("a"), far_user(), user.at("b"));
        ssh(&["volume", "create", "v", "--server", &servers]).run().sane().exits(0);
        assert!(procs::marked_ssh(&user.mark).is_empty(), "an ssh is left");
        assert!(procs::marked(&user.mark).is_empty(), "something runs here");
        let far = user.processes();
        assert_eq!(procs::marked(&sshd.mark).len(), 3, "the servers and the catalog, and no agent");
        Opened::new(&user.access()).write("f", b"bytes over there");
        assert!(user.room.at("a/data").is_dir() && user.room.at("a/catalog/data").is_dir());
        kill(far[0]);
        assert_eq!(user.health().0[0]["reached"], false);
        // How hosts are reached is known.
        let started = user.haul(&["volume", "start", "v"]).run().sane().exits(0);
        assert_eq!(out(&started), "volume v: 1 server started, 2 ran already\n");
        assert_eq!(Opened::new(&user.access()).read("f"), b"bytes over there");
        user.haul(&["volume", "destroy", "v", "--yes"]).run().sane().exits(0);
        procs::wait_gone(&sshd.mark);
        user.has_nothing(&["a", "b"]);
    }
}

fn far_user() -> String {
    let id = std::process::Command::new("id").arg("-un").output().expect("run id");
    format!("{}@", String::from_utf8_lossy(&id.stdout).trim())
}

/// Goal: a program that starts others on hosts, as srun does, starts servers and stays with them.
/// Method: env in its place, which is this host.
#[test]
fn servers_are_started_by_a_launcher() {
    let user = User::new();
    let servers = format!("localhost:{},127.0.0.1:{}", user.at("a"), user.at("b"));
    let launch = "env ON={host}";
    let create = ["volume", "create", "v", "--server", &servers, "--launch"];
    user.haul(&create).args([launch]).run().sane().exits(0);
    assert_eq!(user.processes().len(), 3);
    user.haul(&["volume", "stop", "v"]).run().sane().exits(0);
    procs::wait_gone(&user.mark);
    user.haul(&["volume", "start", "v"]).run().sane().exits(0);
    assert_eq!(user.processes().len(), 3);
    user.haul(&["volume", "destroy", "v"]).run().sane().exits(0);
    user.has_nothing(&["a", "b"]);
    user.haul(&create)
        .args(["false {host}"])
        .run()
        .sane()
        .exits(1)
        .says("haul ended there without an answer");
    user.haul(&create).args(["cat /no/such/file/{host}"]).run().exits(1).says("unrecognized option");
    user.has_nothing(&["a", "b"]);
}

/// Goal: a volume of which one server cannot be is not made at all, and the reason names the server.
/// Method: each thing that can be wrong with the last of three directories, while the others could be.
#[test]
fn all_servers_or_none() {
    need!("sshd");
    let user = User::new();
    user.room.dir("full");
    user.room.file("full/x", "precious");
    let file = user.room.file("file", "precious");
    let silent = user.room.file("silent", "#!/bin/sh\nexec sleep 1000\n");
    set_mode(&silent, 0o755);
    let (silent, hangs) = (silent.to_str().expect("UTF-8").to_owned(), "127.0.0.1:h".to_owned());
    let sshd = Sshd::start();
    let far = format!("127.0.0.1:{}", user.at("far"));
    let launch = vec!["--launch", "env ON={host}"];
    for (last, options, why) in [
        (user.at("full"), vec![], "full is not empty (x lies in it)"),
        (user.at("no/c"), vec![], "cannot make"),
        (user.at("file"), vec![], "cannot open"),
        (user.at("a"), vec![], "is named twice"),
        (format!("{}/.", user.at("a")), vec![], "is named twice"),
        (format!("localhost:{}", user.at("a")), launch.clone(), "is served already, or being set up"),
        ("somewhere:/c".into(), vec![], "cannot be reached from the host of somewhere"),
        (hangs.clone(), vec!["-e", &silent, "--within", "2s"], "no answer within 2s"),
        (hangs, vec!["-e", "/no/such/ssh"], "ssh"),
        (far.clone(), vec!["-e", "ssh -F none -p 1 -o StrictHostKeyChecking=yes"], "ssh to 127.0.0.1 ended"),
    ] {
        let servers = format!("{},{last}", user.dirs(&["a", "b"]));
        let ended = user.haul(&["volume", "create", "v", "--server", &servers]).args(&options).run().sane();
        let code = ended.status.code().expect("it ended by itself");
        assert!(code == 1 || code == 2, "{}", ended.describe());
        ended.says(why);
        user.has_nothing(&["a", "b", "far"]);
    }
    // Somebody does not want it any more.
    let servers = format!("{},127.0.0.1:{}", user.at("a"), user.at("b"));
    let silent = user.at("silent");
    let mut running = user.haul(&["volume", "create", "v", "--server", &servers, "-e", &silent]).start();
    assert!(running.until(|_| user.room.at("a/lock").exists()));
    running.signal_one(Signal::INT);
    running.wait().sane().exits(130).says("it was stopped");
    user.has_nothing(&["a", "b"]);

    // Here the far one could be.
    let servers = format!("{far},{}", user.at("full"));
    let ended = user.haul(&["volume", "create", "v", "--server", &servers]).by(&sshd).run().sane().exits(1);
    ended.says("server 1 of the volume");
    procs::wait_gone(&sshd.mark);
    user.has_nothing(&["far"]);
    assert_eq!(fs::read(user.room.at("full/x")).expect("there"), b"precious");
    assert_eq!(fs::read(file).expect("there"), b"precious");

    // And a directory of a volume is not taken for another one.
    user.create();
    let (other, dir) = (user.haul(&["volume", "create", "w", "--server"]), user.at("b"));
    other.args([dir]).run().sane().exits(1).says("is a directory of a volume already");
    assert!(user.health().1);
    for nested in ["d,d/sub", "d/sub,d"] {
        let nested = user.dirs(&nested.split(',').collect::<Vec<_>>());
        let ended = user.haul(&["volume", "create", "w", "--server", &nested]).run().sane().exits(2);
        ended.says("one lies in the other");
    }
    let words = ["volume", "create", "w", "--server", "/x", "--placement", "x"];
    user.haul(&words).run().exits(2).says("round-robin");
}

/// Goal: whenever whoever makes a volume is killed, either the volume is known and can be destroyed, or
/// nothing is left of it.
/// Method: kills at moments spread over its making.
#[test]
fn a_killed_maker_leaves_nothing_unknown() {
    let user = User::new();
    let dirs = user.dirs(&["a", "b", "c"]);
    let (mut known, mut unknown) = (0, 0);
    for wait in 0..24 {
        let running = user.haul(&["volume", "create", "v", "--server", &dirs]).start();
        std::thread::sleep(Duration::from_millis(wait * 4));
        // The maker alone: its servers bear the same mark.
        running.signal_one(Signal::KILL);
        running.wait();
        if user.access_file().exists() {
            known += 1;
            user.haul(&["volume", "destroy", "v", "--yes"]).run().sane().exits(0);
        } else {
            unknown += 1;
        }
        user.has_nothing(&["a", "b", "c"]);
    }
    eprintln!("{known} were known, {unknown} were not");
    assert!(unknown > 0, "none was killed early enough");
}

/// Goal: whenever whoever makes a volume is interrupted, all of it is there and answers, or nothing is.
/// Method: SIGINT at moments spread over its making, and as soon as it is known; that a stopped one is not
/// destroyed says how to start it.
#[test]
fn an_interrupted_maker_makes_all_or_nothing() {
    let user = User::new();
    let dirs = user.dirs(&["a", "b", "c"]);
    let (mut made, mut unmade) = (0, 0);
    for wait in 0..30 {
        let mut running = user.haul(&["volume", "create", "v", "--server", &dirs]).start();
        match wait % 2 {
            0 => std::thread::sleep(Duration::from_millis(wait * 4)),
            // It is known, and its servers are being told to stay.
            _ => _ = running.until(|_| user.access_file().exists()),
        }
        running.signal_one(Signal::INT);
        let ended = running.wait();
        if !user.access_file().exists() {
            unmade += 1;
            assert_ne!(ended.status.code(), Some(0), "{}", ended.describe());
        } else {
            made += 1;
            ended.sane().exits(0);
            assert!(user.health().1, "not all of it answers");
            if made == 1 {
                user.haul(&["volume", "stop", "v"]).run().sane().exits(0);
                let ended = user.haul(&["volume", "destroy", "v"]).run().sane().exits(1);
                ended.says("`haul volume start v` starts it again");
            }
            user.haul(&["volume", "destroy", "v", "--yes"]).run().sane().exits(0);
        }
        user.has_nothing(&["a", "b", "c"]);
    }
    eprintln!("{made} were made, {unmade} were not");
    assert!(unmade > 0 && made > 0, "all of them were interrupted too early, or too late");
}

/// Goal: who holds another key, or none, is no user of a volume; a key that others can read is not used.
/// Method: the same access with another volume's key; a file of the wrong mode, and one that is torn.
#[test]
fn a_volume_is_its_keys() {
    let user = User::new();
    user.create();
    let whole = fs::read_to_string(user.access_file()).expect("it is known");
    let mode = |mode| set_mode(&user.access_file(), mode);
    for open in [0o644, 0o640, 0o606] {
        mode(open);
        for words in [&["volume", "health", "v"][..], &["volume", "destroy", "v", "--yes"]] {
            user.haul(words).run().sane().exits(1).says("chmod 600");
        }
    }
    mode(0o600);
    assert!(user.health().1);
    let secret = whole.split("\"key\": \"").nth(1).and_then(|rest| rest.split('"').next()).expect("a key");

    // Another's key.
    let stranger = User::new();
    stranger.create();
    let other = fs::read_to_string(stranger.access_file()).expect("it is known");
    let theirs = other.split("\"key\": \"").nth(1).and_then(|rest| rest.split('"').next()).expect("a key");
    fs::write(user.access_file(), whole.replace(secret, theirs)).expect("written");
    let (servers, healthy) = user.health();
    let is_refused = |server: &Value| {
        server["reached"] == false
            && server["error"].as_str().is_some_and(|why| why.contains("none of this volume"))
    };
    assert!(!healthy && servers.iter().all(is_refused), "{servers:?}");
    user.haul(&["volume", "ls", "v"]).run().sane().exits(1);
    user.haul(&["volume", "stop", "v"]).run().sane().exits(1).says("none of this volume");
    user.haul(&["volume", "destroy", "v", "--yes"]).run().sane().exits(1).says("is served already");
    fs::write(user.access_file(), &whole[..whole.len() / 2]).expect("written");
    user.haul(&["volume", "health", "v"]).run().sane().exits(1).says("no access to a volume");
    fs::write(user.access_file(), &whole).expect("written");
    assert!(user.health().1, "a stranger ended it");

    // On another host the same addresses are other servers'.
    let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let here = format!("\"on\": \"{node}\"");
    assert_eq!(whole.matches(&here).count(), 4);
    fs::write(user.access_file(), whole.replace(&here, "\"on\": \"elsewhere\"")).expect("written");
    for words in
        [&["volume", "stop", "v"][..], &["volume", "start", "v"], &["volume", "destroy", "v", "--yes"]]
    {
        user.haul(words).run().sane().exits(1).says("on the host elsewhere");
    }
    fs::write(user.access_file(), &whole).expect("written");
    assert!(user.health().1);

    // The keys are nobody's to see but in files of their owner, and that of the servers is in none of others.
    let setup = fs::read_to_string(user.room.at("a/volume.json")).expect("it is set up");
    let servers_key =
        setup.split("\"key\": \"").nth(1).and_then(|rest| rest.split('"').next()).expect("a key");
    for process in user.processes() {
        for name in ["cmdline", "environ"] {
            let said = fs::read(format!("/proc/{process}/{name}")).expect("read");
            let said = String::from_utf8_lossy(&said);
            assert!(!said.contains(secret) && !said.contains(servers_key), "a key is in {name}");
        }
    }
    let mut with_key = Vec::new();
    files_with(user.room.at("").as_path(), secret, &mut with_key);
    assert_eq!(with_key, [user.access_file()]);
    with_key.clear();
    files_with(user.room.at("").as_path(), servers_key, &mut with_key);
    assert_eq!(with_key.len(), 4, "{with_key:?}");
    assert!(!with_key.contains(&user.access_file()));
    for name in ["../w", ".v", "v w", ""] {
        user.haul(&["volume", "health", name]).run().exits(2);
    }
    user.haul(&["volume", "health", "w"]).run().exits(1).says("no volume w is known here");
}

/// Files below a directory that hold a text; each of them is its owner's alone.
fn files_with(dir: &Path, text: &str, found: &mut Vec<PathBuf>) {
    use std::os::unix::fs::PermissionsExt as _;
    for entry in fs::read_dir(dir).expect("read").map(|entry| entry.expect("an entry")) {
        let meta = entry.metadata().expect("there");
        if meta.is_dir() {
            files_with(&entry.path(), text, found);
        } else if meta.is_file()
            && String::from_utf8_lossy(&fs::read(entry.path()).expect("read")).contains(text)
        {
            assert_eq!(meta.permissions().mode() & 0o077, 0, "{:?}", entry.path());
            found.push(entry.path());
        }
    }
}
