//! `lab pfs` as a program: real file systems from Debian's packages, real bytes through haul, and nothing
//! left of them.
//!
//! Needs root, /dev/fuse, loop devices and the packages; skipped aloud without (`HAUL_TEST_REQUIRE` and
//! `HAUL_TEST_SKIPS` as in the other end-to-end tests). Times are compared one-sidedly: what a throttled
//! device takes is never less than its rate allows. One test at a time, for each takes several processes and
//! the machine may be small.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::fs::{Advice, fadvise, getxattr};
use serde_json::Value;

mod support;

use support::needs;

const MIB: u64 = 1 << 20;
/// How long something that must happen may take: a safety net.
const PATIENCE: Duration = Duration::from_secs(60);

static ALONE: Mutex<()> = Mutex::new(());

fn lab(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lab")).arg("pfs").args(args).output().expect("run lab")
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn said(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().expect("run a program");
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The program under test elsewhere; cargo builds it beside ours.
fn haul() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_lab")).with_file_name("haul")
}

/// Whether the machine has what a test needs; if not, it is said aloud.
fn here(package: &str, program: &str) -> bool {
    let found = |name: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path)
            .chain(["/usr/sbin".into(), "/sbin".into()])
            .any(|dir| dir.join(name).is_file())
    };
    let all = [
        ("root", rustix::process::geteuid().is_root()),
        ("fuse", Path::new("/dev/fuse").exists()),
        ("netns", found("ip") && found("nsenter") && found("unshare")),
        ("loop", Path::new("/dev/loop-control").exists() && found("losetup") && found("mkfs.xfs")),
        (package, found(program)),
        ("haul", haul().exists()),
    ];
    all.into_iter().all(|(need, there)| needs(need, there))
}

/// A file system that is taken down when the test ends, however it does.
struct Pfs {
    name: String,
    said: Value,
    mount: PathBuf,
    _alone: MutexGuard<'static, ()>,
}

impl Pfs {
    fn new(kind: &str, args: &[&str]) -> Pfs {
        let alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let name = format!("t{}-{kind}", std::process::id());
        assert_eq!(traces(&name), [""; 0], "before");
        let said = json(&lab(&[&["up", kind, "--name", &name], args].concat()));
        assert_eq!(said["kind"], kind);
        let mount = PathBuf::from(said["mount"].as_str().expect("a mount"));
        assert_ne!(traces(&name), [""; 0], "what is up can be seen");
        Pfs { name, said, mount, _alone: alone }
    }

    fn servers(&self) -> &Vec<Value> {
        self.said["servers"].as_array().expect("an array")
    }

    fn text(&self, server: usize, field: &str) -> &str {
        self.servers()[server][field].as_str().expect("text")
    }

    fn set(&self, server: usize, args: &[&str]) -> Value {
        json(&lab(&[&["set", &self.name, &server.to_string()], args].concat()))
    }

    /// A path of the servers' mount namespace, seen from here.
    fn inside(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.said["keeper"]))
    }

    fn network(&self) -> String {
        format!("--net=/run/netns/{}", self.said["namespace"].as_str().expect("text"))
    }

    /// `haul`, where it can reach the servers.
    fn haul(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(self.network()).arg("--").arg(haul());
        command
    }

    /// Copies what is in a directory; gives back the report.
    fn copy(&self, from: &Path, to: &Path) -> Value {
        let from = format!("{}/", from.display());
        let output = self.haul().args(["cp", "-r", "--json", &from]).arg(to).output().expect("run haul");
        assert!(output.status.success(), "haul: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        serde_json::from_str(text.lines().last().expect("a summary")).expect("JSON")
    }

    /// The targets on which a file lies, as haul says.
    fn layout(&self, file: &Path) -> BTreeSet<String> {
        let said = json(&self.haul().args(["layout", "--json"]).arg(file).output().expect("run haul"));
        // A dispersed volume of GlusterFS 10 does not tell, and counts as one target.
        let mute = said["why_flat"].as_str().is_some_and(|why| why.contains("Cannot allocate memory"));
        assert!(said["provider"] != "flat" || mute, "{said}");
        let components = said["components"].as_array().expect("an array").iter();
        let names = components.flat_map(|component| component["targets"].as_array().expect("an array"));
        names.map(|name| name.as_str().expect("text").to_owned()).collect()
    }

    /// Copies a tree to it and back by haul, and compares every byte; the first reading is not from memory.
    /// The reports name as many targets as the large files lie on, at the sink if new files have places
    /// there.
    fn carries_a_tree(&self, placed: bool) {
        let dir = tempfile::tempdir().expect("make a directory");
        let (from, to, back) = (dir.path().join("from"), self.mount.join("tree"), dir.path().join("back"));
        fs::create_dir(&from).expect("make a directory");
        for at in 0..20 {
            // The first are longer than an object, a bundle and a stripe; then all lengths down to nothing.
            let len = match at {
                0 => 20 * MIB + 4321,
                1..8 => at * MIB + at * 4321,
                _ => (20 - at) * 17_771 % 300_000,
            };
            fs::write(from.join(format!("f{at}")), noise(at, len as usize)).expect("write a file");
        }
        fs::write(from.join("empty"), b"").expect("write a file");
        let there = self.copy(&from, &to);
        let mut files = 0;
        for entry in fs::read_dir(&from).expect("list") {
            let entry = entry.expect("an entry");
            let file = File::open(to.join(entry.file_name())).expect("it has arrived");
            fadvise(&file, 0, None, Advice::DontNeed).expect("forget what is in memory");
            let there = fs::read(to.join(entry.file_name())).expect("read it");
            assert!(there == fs::read(entry.path()).expect("read"), "{:?} differs", entry.file_name());
            files += 1;
        }
        assert_eq!(files, 21);
        let home = self.copy(&to, &back);
        said("diff", &["-r", &from.display().to_string(), &back.display().to_string()]);
        let large = fs::read_dir(&to).expect("list").flatten().map(|entry| entry.path());
        let large = large.filter(|path| fs::metadata(path).expect("look at it").len() > 262_144);
        let on: BTreeSet<String> = large.flat_map(|path| self.layout(&path)).collect();
        assert_eq!(targets(&home, "schedule"), on.len(), "{on:?}: {home}");
        let sink = if placed { on.len() } else { 1 };
        assert_eq!(targets(&there, "sink targets"), sink, "{on:?}: {there}");
    }

    /// A copy into it and one out of it end right although a server answers nothing for two seconds.
    fn survives_frost(&self, server: usize) {
        let dir = tempfile::tempdir().expect("make a directory");
        let (from, to, back) = (dir.path().join("from"), self.mount.join("frost"), dir.path().join("back"));
        fs::create_dir(&from).expect("make a directory");
        for at in 0..9 {
            fs::write(from.join(format!("f{at}")), noise(at, (MIB + at * 4321) as usize)).expect("write");
        }
        for (from, to) in [(&from, &to), (&to, &back)] {
            self.set(server, &["--freeze"]);
            let from = format!("{}/", from.display());
            let mut haul = self.haul().args(["cp", "-r", "-q", &from]).arg(to).spawn().expect("start haul");
            std::thread::sleep(Duration::from_secs(2));
            let early = haul.try_wait().expect("look at haul");
            self.set(server, &["--thaw"]);
            let status = haul.wait().expect("wait for haul");
            // What was just written may be read back from memory.
            assert!((early.is_none() || *to == back) && status.success(), "{early:?} {status}");
        }
        said("diff", &["-r", &from.display().to_string(), &back.display().to_string()]);
    }

    /// Goal of a throttle: a file on that server alone is written no faster than the rate, and a little from
    /// memory.
    fn is_throttled(&self, server: usize, file: &str) {
        let said = self.set(server, &["--rate", "16MiB"]);
        let by = said["throttle"]["by"].as_str().expect("text");
        if by.starts_with("none") || said["throttle"]["dirty_limited"] != true {
            eprintln!("this machine cannot throttle: {said}");
            return;
        }
        let bytes = noise(99, (48 * MIB) as usize);
        let began = Instant::now();
        overwrite(&self.mount.join(file), &bytes);
        // 48 MiB, of which memory may hold 16 back, take 2 s; half of it without a limit at all would be a
        // fast machine.
        assert!(began.elapsed() > Duration::from_secs(1), "{:?} at 16 MiB/s", began.elapsed());
        self.set(server, &["--rate", "0"]);
    }

    /// A frozen server answers nothing, and goes on where it was.
    fn is_frozen(&self, server: usize, file: &str) {
        let path = self.mount.join(file).display().to_string();
        let before = noise(7, MIB as usize);
        overwrite(Path::new(&path), &before);
        self.set(server, &["--freeze"]);
        let stats = json(&lab(&["stats", &self.name]));
        let frozen = |stats: &Value| -> Vec<bool> {
            let servers = stats["servers"].as_array().expect("an array");
            servers.iter().map(|server| server["frozen"].as_bool().expect("a truth")).collect()
        };
        let expected: Vec<bool> = (0..self.servers().len()).map(|at| at == server).collect();
        assert_eq!(frozen(&stats), expected);
        let mut reader = Command::new("dd")
            .args(["iflag=direct", "bs=1M", &format!("if={path}")])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("start dd");
        std::thread::sleep(Duration::from_millis(300));
        let early = reader.try_wait().expect("look at dd");
        self.set(server, &["--thaw"]);
        assert!(early.is_none(), "a frozen server has answered");
        let output = reader.wait_with_output().expect("wait for dd");
        assert!(output.stdout == before, "thawed, it gives what it had");
        assert!(!frozen(&json(&lab(&["stats", &self.name]))).contains(&true));
    }

    fn down(self) {
        let network = format!("/run/netns/{}", self.said["namespace"].as_str().expect("text"));
        let network = fs::metadata(network).expect("look at the namespace").ino();
        assert_ne!(self.said["pids"].as_array().expect("an array").len(), 0);
        json(&lab(&["down", &self.name]));
        assert_eq!(traces(&self.name), [""; 0], "after");
        assert_eq!(processes(network), [""; 0].map(PathBuf::from));
        let listed = json(&lab(&["list"]));
        assert!(listed.as_array().expect("an array").iter().all(|one| one["name"] != self.name[..]));
    }
}

impl Drop for Pfs {
    fn drop(&mut self) {
        lab(&["down", &self.name]);
    }
}

/// Storage targets that a report counts under this name; 1 if it counts none.
fn targets(report: &Value, name: &str) -> usize {
    let mut chosen = report["chosen"].as_array().expect("an array").iter();
    let text = chosen
        .find(|chosen| chosen["name"] == name)
        .map_or("", |found| found["value"].as_str().expect("text"));
    let before = text.split(" targets").next().filter(|before| before.len() < text.len());
    before.and_then(|before| before.rsplit(' ').next()?.parse().ok()).unwrap_or(1)
}

/// Processes in a network namespace, by its inode.
fn processes(network: u64) -> Vec<PathBuf> {
    let all = fs::read_dir("/proc").expect("list processes").flatten().map(|entry| entry.path());
    all.filter(|process| fs::metadata(process.join("ns/net")).is_ok_and(|found| found.ino() == network))
        .collect()
}

/// Writes over the beginning of a file, down to the disk. Cut to nothing first, it could come to lie
/// elsewhere.
fn overwrite(path: &Path, bytes: &[u8]) {
    let mut out = File::options().write(true).open(path).expect("open");
    out.write_all(bytes).and_then(|()| out.sync_all()).expect("write");
}

/// Bytes that no file system takes for zeros or repetition.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// Everything on this machine that bears the name: processes, mounts, devices, namespaces, directories,
/// limits.
fn traces(name: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut note = |what: &str, text: &str| {
        found.extend(text.lines().filter(|line| line.contains(name)).map(|line| format!("{what}: {line}")));
    };
    note("mount", &fs::read_to_string("/proc/self/mountinfo").expect("read the mounts"));
    note("namespace", &said("ip", &["netns", "list"]));
    let devices = said("losetup", &["--noheadings", "--output", "NAME,MAJ:MIN,BACK-FILE", "--list"]);
    note("device", &devices);
    for dir in ["/var/tmp", "/run/haul-lab/pfs", "/sys/fs/cgroup/blkio", "/sys/fs/cgroup"] {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            note(dir, &entry.file_name().to_string_lossy());
        }
    }
    for entry in fs::read_dir("/proc").expect("list processes").flatten() {
        let own = entry.file_name() == *std::process::id().to_string();
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if !own {
            note("process", &String::from_utf8_lossy(&line).replace('\0', " "));
        }
    }
    found
}

/// Limits of the block layer that stand for some devices.
fn limits(servers: &[Value]) -> Vec<String> {
    let mut found = Vec::new();
    for server in servers {
        let device = server["device"].as_str().expect("text").trim_start_matches("/dev/");
        let number = fs::read_to_string(format!("/sys/block/{device}/dev")).unwrap_or_default();
        let rules = ["read", "write"].map(|way| {
            fs::read_to_string(format!("/sys/fs/cgroup/blkio/blkio.throttle.{way}_bps_device"))
                .unwrap_or_default()
        });
        let of_device = format!("{} ", number.trim());
        found.extend(rules.join("").lines().filter(|line| line.starts_with(&of_device)).map(str::to_owned));
        let strict = fs::read_to_string(format!("/sys/class/bdi/{}/strict_limit", number.trim()));
        found.extend(
            strict.ok().filter(|strict| strict.trim() == "1").map(|_| format!("{of_device}is strict")),
        );
    }
    found
}

/// Where GlusterFS says that a file lies.
fn pathinfo(path: &Path) -> String {
    let mut bytes = vec![0; 4096];
    let len = getxattr(path, "trusted.glusterfs.pathinfo", &mut bytes[..]).expect("ask where it lies");
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}

/// Goal: GlusterFS carries bytes, says where they lie, is as slow as its bricks, and leaves nothing.
/// Method: a tree by haul; names until every brick was named, each found on that brick; a throttled and a
/// frozen brick.
#[test]
fn gluster_is_real_and_leaves_nothing() {
    if !here("glusterfs", "glusterd") {
        return;
    }
    let pfs = Pfs::new("gluster", &["--bricks", "3"]);
    pfs.carries_a_tree(true);
    pfs.survives_frost(1);
    let mut on = vec![None; 3];
    for at in 0.. {
        let name = format!("n{at}");
        fs::write(pfs.mount.join(&name), &name).expect("write");
        let info = pathinfo(&pfs.mount.join(&name));
        let named: Vec<usize> = (0..3).filter(|server| info.contains(pfs.text(*server, "path"))).collect();
        let [server] = named[..] else { panic!("{info} names {named:?}") };
        let brick = pfs.inside(pfs.text(server, "path"));
        assert_eq!(fs::read(brick.join(&name)).expect("it lies on that brick"), name.as_bytes());
        on[server].get_or_insert(name);
        if on.iter().all(Option::is_some) {
            break;
        }
        assert!(at < 300, "a brick gets no file: {on:?}");
    }
    pfs.is_throttled(1, on[1].as_ref().expect("found"));
    pfs.is_frozen(2, on[2].as_ref().expect("found"));
    pfs.set(0, &["--write-rate", "50MiB"]);
    let servers = pfs.servers().clone();
    pfs.down();
    assert_eq!(limits(&servers), [""; 0]);
}

/// Goal: files in pieces on all bricks are carried too.
/// Method: a dispersed volume; a tree by haul, and a frozen brick.
#[test]
fn dispersed_gluster_carries_bytes() {
    if !here("glusterfs", "glusterd") {
        return;
    }
    let pfs = Pfs::new("gluster", &["--bricks", "3", "--kind", "disperse"]);
    pfs.carries_a_tree(true);
    pfs.down();
}

/// Goal: what a crash leaves is removed: an `up` that was killed half-way, and servers that were.
/// Method: SIGKILL of `up` as soon as its servers' first process is written down; then of that process, when
/// all is up.
#[test]
fn gluster_that_crashed_is_removed() {
    if !here("glusterfs", "glusterd") {
        return;
    }
    let alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let name = format!("t{}-crash", std::process::id());
    let mut up = Command::new(env!("CARGO_BIN_EXE_lab"))
        .args(["pfs", "up", "gluster", "--bricks", "2", "--rate", "100MiB", "--name", &name])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("start lab");
    let (state, until) = (format!("/run/haul-lab/pfs/{name}/state.json"), Instant::now() + PATIENCE);
    while fs::read(&state)
        .ok()
        .and_then(|text| serde_json::from_slice::<Value>(&text).ok())
        .is_none_or(|state| state["keeper"].is_null())
    {
        assert!(Instant::now() < until && up.try_wait().expect("look at lab").is_none(), "it did not start");
        std::thread::sleep(Duration::from_millis(5));
    }
    up.kill().expect("kill lab");
    up.wait().expect("wait for lab");
    json(&lab(&["down", &name]));
    assert_eq!(traces(&name), [""; 0], "after a crash of up");
    drop(alone);

    let pfs = Pfs::new("gluster", &["--bricks", "1"]);
    said("kill", &["-KILL", &pfs.said["keeper"].to_string()]);
    let until = Instant::now() + PATIENCE;
    let alive = || {
        let listed = json(&lab(&["list"]));
        let mut all = listed.as_array().expect("an array").iter();
        all.find(|one| one["name"] == pfs.name[..]).expect("it is listed")["alive"].clone()
    };
    while alive() != false {
        assert!(Instant::now() < until, "a killed file system is called alive");
        std::thread::sleep(Duration::from_millis(20));
    }
    pfs.down();
}

/// Goal: MooseFS carries bytes, says where they lie, is as slow as its chunk servers, and leaves nothing.
/// Method: a tree by haul; files until every server was named, each chunk found there; a throttled and a
/// frozen server.
#[test]
fn moosefs_is_real_and_leaves_nothing() {
    if !here("moosefs", "mfsmaster") {
        return;
    }
    let pfs = Pfs::new("moosefs", &["--servers", "2"]);
    pfs.carries_a_tree(false);
    pfs.survives_frost(0);
    let mut on = vec![None; 2];
    for at in 0.. {
        let name = format!("n{at}");
        fs::write(pfs.mount.join(&name), &name).expect("write");
        let path = pfs.mount.join(&name).display().to_string();
        let info = said("nsenter", &[&pfs.network(), "--", "mfsfileinfo", &path]);
        let named: Vec<usize> =
            (0..2).filter(|server| info.contains(&format!(" {}:", pfs.text(*server, "address")))).collect();
        let [server] = named[..] else { panic!("{info} names {named:?}") };
        // chunk 0: 0000000000000004_00000001 / ...
        let chunk =
            info.split("chunk 0: ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a chunk's id");
        let dir = pfs.inside(pfs.text(server, "path"));
        let lies = said("find", &[&dir.display().to_string(), "-name", &format!("chunk_{chunk}.mfs")]);
        assert_eq!(lies.lines().count(), 1, "{info}: {lies}");
        let address = format!("{}:", pfs.text(server, "address"));
        let told = pfs.layout(&pfs.mount.join(&name));
        assert!(told.len() == 1 && told.iter().all(|name| name.starts_with(&address)), "{told:?}: {info}");
        on[server].get_or_insert(name);
        if on.iter().all(Option::is_some) {
            break;
        }
        assert!(at < 300, "a server gets no chunk: {on:?}");
    }
    // One of two chunks, of which the servers take turns.
    let long = pfs.mount.join("long");
    fs::write(&long, noise(5, 65 * MIB as usize)).expect("write");
    let path = long.display().to_string();
    let info = said("nsenter", &[&pfs.network(), "--", "mfsfileinfo", &path]);
    let named = (0..2).filter(|server| info.contains(&format!(" {}:", pfs.text(*server, "address")))).count();
    assert_eq!(pfs.layout(&long).len(), named, "{info}");
    pfs.is_throttled(1, on[1].as_ref().expect("found"));
    pfs.is_frozen(0, on[0].as_ref().expect("found"));
    let servers = pfs.servers().clone();
    pfs.down();
    assert_eq!(limits(&servers), [""; 0]);
}

/// Goal: CephFS carries bytes, stripes files as it was told, is as slow as its OSDs, and leaves nothing.
/// Method: a tree by haul; the layout of a file, its objects, and who has them; a throttled OSD.
#[test]
fn ceph_is_real_and_leaves_nothing() {
    if !here("ceph", "ceph-osd") {
        return;
    }
    let layout = ["--stripe-unit", "1MiB", "--stripe-count", "2", "--object-size", "4MiB"];
    let pfs = Pfs::new("ceph", &[&["--osds", "3"][..], &layout].concat());
    pfs.carries_a_tree(true);
    let conf = format!("{}/ceph.conf", pfs.said["work"].as_str().expect("text"));
    let network = pfs.network();
    let ceph = |args: &[&str]| said("nsenter", &[&[&network[..], "--", "timeout", "60"], args].concat());
    // 20 MiB and some: two sets of two objects with 4 MiB each, and the rest over two more.
    let long = pfs.mount.join("tree/f0");
    let mut bytes = vec![0; 256];
    let len = getxattr(&long, "ceph.file.layout", &mut bytes[..]).expect("ask for the layout");
    let text = String::from_utf8_lossy(&bytes[..len]).into_owned();
    assert_eq!(text, "stripe_unit=1048576 stripe_count=2 object_size=4194304 pool=data");
    let inode = format!("{:x}", fs::metadata(&long).expect("look at it").ino());
    let objects = ceph(&["rados", "-c", &conf, "-p", "data", "ls"]);
    let of_file: BTreeSet<&str> = objects.lines().filter(|object| object.starts_with(&inode)).collect();
    let expected: Vec<String> = (0..6).map(|at| format!("{inode}.{at:08x}")).collect();
    assert!(of_file.iter().eq(&expected), "{of_file:?}");
    let osd = |object: &str| -> usize {
        let map = ceph(&["ceph", "-c", &conf, "osd", "map", "data", object, "--format", "json"]);
        let map: Value = serde_json::from_str(&map).expect("JSON");
        map["acting_primary"].as_u64().expect("a number") as usize
    };
    let on: BTreeSet<usize> = of_file.iter().map(|object| osd(object)).collect();
    assert!(on.len() > 1 && on.iter().all(|osd| *osd < 3), "{on:?}");
    let slow = osd(&expected[0]);
    // Half of a file of 48 MiB lies in objects like its first; all are written at the rate of the slowest.
    for other in 0..3 {
        pfs.set(other, &["--rate", "16MiB"]);
    }
    pfs.is_throttled(slow, "tree/f0");
    let servers = pfs.servers().clone();
    pfs.down();
    assert_eq!(limits(&servers), [""; 0]);
}
