//! Copies by haul from and to file systems of several storage targets: `lab targets` models, sets of local
//! mounts.
//!
//! In: the built programs. Every byte is compared; the report has to name as many targets at each end as
//! there are. Needs root, and /dev/fuse where there are models; skipped aloud without (`HAUL_TEST_REQUIRE`
//! and `HAUL_TEST_SKIPS` as in the other end-to-end tests).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::Value;

mod support;

use support::needs;

const MIB: u64 = 1 << 20;
const LOV: &str = "lustre.lov";
/// How long something that must happen may take: a safety net.
const PATIENCE: Duration = Duration::from_secs(60);

fn lab(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lab")).arg("targets").args(args).output().expect("run lab")
}

fn lab_ok(args: &[&str]) -> String {
    let output = lab(args);
    assert!(output.status.success(), "lab targets {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// The `haul` that was built beside `lab`.
fn haul() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_lab")).with_file_name("haul")
}

/// Leaves the test, aloud, unless the machine has what it needs.
fn here(fuse: bool) -> bool {
    needs("root", rustix::process::geteuid().is_root())
        && needs("fuse", !fuse || Path::new("/dev/fuse").exists())
        && needs("haul", haul().exists())
}

/// Modelled targets that are taken down when the test ends, however it does.
struct Up {
    name: String,
    mount: PathBuf,
}

impl Up {
    fn new(test: &str, targets: u32, args: &[&str]) -> Up {
        let name = format!("test-copy-{test}-{}", std::process::id());
        let count = targets.to_string();
        let all = [&["up", "--name", &name, "--memory", "--strict-layout", "--model", &count], args].concat();
        let said: Value = serde_json::from_str(&lab_ok(&all)).expect("one JSON line");
        Up { name, mount: said["mount"].as_str().expect("a mount").into() }
    }

    fn set(&self, target: u32, what: &str) {
        lab_ok(&["set", &self.name, &target.to_string(), what]);
    }

    /// A figure of each target.
    fn stat(&self, field: &str) -> Vec<u64> {
        let stats: Value = serde_json::from_str(&lab_ok(&["stats", &self.name])).expect("JSON");
        let targets = stats["targets"].as_array().expect("an array");
        targets.iter().map(|target| target[field].as_u64().expect("a number")).collect()
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        lab(&["down", &self.name]);
    }
}

/// A haul that runs. It is killed if the test leaves it.
struct Copy(Child);

impl Copy {
    /// Copies what is in a directory.
    fn start(from: &Path, to: &Path, args: &[&str]) -> Copy {
        let from = format!("{}/", from.display());
        let mut haul = Command::new(haul());
        haul.args(["cp", "-r", "--json"]).args(args).arg(from).arg(to);
        Copy(haul.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start haul"))
    }

    /// Its report, the last of its events.
    fn ends(mut self) -> Value {
        let (mut out, mut err) = (self.0.stdout.take().expect("piped"), self.0.stderr.take().expect("piped"));
        let read = |from: &mut dyn std::io::Read| {
            let mut text = String::new();
            from.read_to_string(&mut text).expect("UTF-8");
            text
        };
        let err = std::thread::spawn(move || read(&mut err));
        let out = read(&mut out);
        let status = self.0.wait().expect("wait for haul");
        let err = err.join().expect("it reads");
        assert!(status.success(), "haul: {err}");
        serde_json::from_str(out.lines().last().expect("a summary")).expect("JSON")
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("what haul waits for:\n{}", waits(self.0.id()));
        }
        let _ = self.0.kill();
        // One that waits for a frozen target does not end before that is taken down, which comes after this.
        let end = Instant::now() + Duration::from_secs(5);
        while matches!(self.0.try_wait(), Ok(None)) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// What each thread of a process waits for, as the kernel says it.
fn waits(pid: u32) -> String {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let told = |task: &Path, what: &str| {
        fs::read_to_string(task.join(what))
            .unwrap_or_default()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    let line = |task: fs::DirEntry| {
        let task = task.path();
        format!("{}: {} {}\n", told(&task, "comm"), told(&task, "syscall"), told(&task, "stack"))
    };
    tasks.map(line).collect()
}

fn copy(from: &Path, to: &Path, args: &[&str]) -> Value {
    Copy::start(from, to, args).ends()
}

/// What a report says that was chosen, or found.
fn said<'a>(report: &'a Value, name: &str) -> &'a str {
    let mut chosen = report["chosen"].as_array().expect("an array").iter();
    let found = chosen.find(|chosen| chosen["name"] == name);
    found.map_or("", |found| found["value"].as_str().expect("text"))
}

/// Storage targets that a report names at the source and at the sink; 1 if it names none.
fn targets(report: &Value) -> (usize, usize) {
    let count = |text: &str| {
        let before = text.split(" targets").next().filter(|before| before.len() < text.len());
        before.and_then(|before| before.rsplit(' ').next()?.parse().ok()).unwrap_or(1)
    };
    (count(said(report, "schedule")), count(said(report, "sink targets")))
}

/// Bytes that no file system takes for zeros or repetition.
fn noise(seed: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// A tree of large files of odd lengths and of small ones: path and content.
fn tree(large: u64, small: u64) -> BTreeMap<String, Vec<u8>> {
    let large = (0..large).map(|at| {
        let len = 2 * MIB + at * 1_234_567 % (5 * MIB);
        (format!("d{}/large{at}", at % 3), noise(at, len))
    });
    let small = (0..small).map(|at| (format!("small{at}"), noise(at + 100, at * 7919 % 262_144)));
    large.chain(small).collect()
}

fn write(root: &Path, tree: &BTreeMap<String, Vec<u8>>) {
    for (name, bytes) in tree {
        let path = root.join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("make a directory");
        fs::write(path, bytes).expect("write a file");
    }
}

/// Every file is there, with every byte, and nothing else.
fn holds(root: &Path, tree: &BTreeMap<String, Vec<u8>>) {
    for (name, bytes) in tree {
        let there = fs::read(root.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(there == *bytes, "{name} differs");
    }
    assert_eq!(files(root), tree.len());
}

/// Files below a directory, but for haul's own.
fn files(root: &Path) -> usize {
    let Ok(entries) = fs::read_dir(root) else { return 0 };
    let count = |entry: fs::DirEntry| match entry.file_type() {
        _ if entry.file_name().as_encoded_bytes().starts_with(b".") => 0,
        Ok(kind) if kind.is_dir() => files(&entry.path()),
        _ => 1,
    };
    entries.flatten().map(count).sum()
}

/// Waits until it is so.
fn until(what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < end, "{what} does not come");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn lov(path: &Path) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    let len = getxattr(path, LOV, &mut bytes[..]).expect("getxattr");
    bytes.truncate(len);
    bytes
}

/// Stripe size and targets of a file in a model.
fn striped(path: &Path) -> (u32, Vec<u8>) {
    let bytes = lov(path);
    let size = u32::from_le_bytes(bytes[24..28].try_into().expect("four bytes"));
    (size, bytes[32..].chunks(24).map(|object| object[20]).collect())
}

/// Sets the layout of a new file, or of the files to come in a directory.
fn set_layout(path: &Path, stripe_size: u32, count: u16) {
    let mut bytes = 0x0BD1_0BD0_u32.to_le_bytes().to_vec();
    bytes.extend([0; 20]);
    bytes.extend(stripe_size.to_le_bytes());
    bytes.extend(count.to_le_bytes());
    bytes.extend(u16::MAX.to_le_bytes());
    setxattr(path, LOV, &bytes, XattrFlags::empty()).expect("set a layout");
}

/// Goal: a FUSE file system that answers as Lustre does is served so, and is not called Lustre.
#[test]
fn a_model_is_not_called_lustre() {
    if !here(true) {
        return;
    }
    let model = Up::new("name", 2, &["--stripe-count", "2", "--stripe-size", "1MiB"]);
    let file = model.mount.join("file");
    fs::write(&file, noise(1, 3 * MIB)).expect("write a file");
    let output = Command::new(haul()).args(["layout", "--json"]).arg(&file).output().expect("run haul");
    let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        (&said["provider"], &said["components"][0]["stripe_count"]),
        (&"fuse".into(), &2.into()),
        "{said}"
    );
}

/// Goal: bytes come whole from a striped file system into another one and out of it, and the report names the
/// targets of both; into it threads write, and directly.
/// Method: models of four and three targets whose stripes do not fit each other; then to and from an ordinary
/// file system; every target must have served.
#[test]
fn striped_to_striped() {
    if !here(true) {
        return;
    }
    let from = Up::new("from", 4, &["--stripe-count", "4"]);
    let to = Up::new("to", 3, &["--stripe-count", "2", "--stripe-size", "1472KiB"]);
    let tree = tree(8, 40);
    write(&from.mount, &tree);
    let report = copy(&from.mount, &to.mount.join("in"), &[]);
    assert_eq!(targets(&report), (4, 3), "{report}");
    let (engine, io) = (said(&report, "sink engine"), said(&report, "sink io"));
    assert!(engine.starts_with("pread (") && io.starts_with("direct (what the cache takes"), "{report}");
    holds(&to.mount.join("in"), &tree);
    assert!(from.stat("read_bytes").iter().all(|bytes| *bytes >= MIB), "all targets of the source took part");
    assert!(to.stat("written_bytes").iter().all(|bytes| *bytes >= MIB), "all of the sink too");
    let dir = tempfile::tempdir().expect("make a directory");
    let report = copy(&to.mount.join("in"), &dir.path().join("out"), &[]);
    assert_eq!(targets(&report), (3, 1), "{report}");
    assert!(!said(&report, "sink engine").contains("this file system"), "{report}");
    holds(&dir.path().join("out"), &tree);
    let report = copy(&dir.path().join("out"), &from.mount.join("back"), &[]);
    assert_eq!(targets(&report), (1, 4), "{report}");
    holds(&from.mount.join("back"), &tree);
}

/// Goal: a frozen target of the sink costs its own files alone, and all is there after the thaw.
/// Method: files on one target each, one target frozen before the copy begins; at least half of them must get
/// their names before it thaws.
#[test]
fn a_frozen_target_of_the_sink() {
    if !here(true) {
        return;
    }
    let to = Up::new("sink-frost", 4, &["--stripe-count", "1"]);
    let dir = tempfile::tempdir().expect("make a directory");
    let tree = tree(16, 0);
    write(dir.path(), &tree);
    to.set(2, "--freeze");
    let root = to.mount.join("in");
    // The journal must not come to lie on the frozen target.
    let state = tempfile::tempdir().expect("make a directory");
    let copy = Copy::start(dir.path(), &root, &["--state", state.path().to_str().expect("UTF-8")]);
    until("half of the files", || files(&root) >= 8);
    until("a request at the frozen target", || to.stat("queue")[2] > 0);
    assert!(files(&root) < tree.len());
    to.set(2, "--thaw");
    let report = copy.ends();
    assert_eq!(targets(&report), (1, 4), "{report}");
    holds(&root, &tree);
}

/// Goal: a frozen target of the source costs its own files alone.
/// Method: as above; all files on other targets must get their names before it thaws.
#[test]
fn a_frozen_target_of_the_source() {
    if !here(true) {
        return;
    }
    let from = Up::new("source-frost", 4, &["--stripe-count", "1"]);
    let dir = tempfile::tempdir().expect("make a directory");
    let tree = tree(16, 0);
    write(&from.mount, &tree);
    let elsewhere = tree.keys().filter(|name| striped(&from.mount.join(name)).1 != [2]).count();
    assert!((1..tree.len()).contains(&elsewhere), "{elsewhere} of {}", tree.len());
    from.set(2, "--freeze");
    let root = dir.path().join("in");
    let copy = Copy::start(&from.mount, &root, &[]);
    until("all other files", || files(&root) >= elsewhere);
    assert_eq!(files(&root), elsewhere);
    from.set(2, "--thaw");
    let report = copy.ends();
    assert_eq!(targets(&report), (4, 1), "{report}");
    holds(&root, &tree);
}

/// Goal: of striped files too only what lies on the frozen target waits: objects are cut by the stripes of
/// the sink, and of the source.
/// Method: files in four stripes of 1 MiB; with one target frozen all stripes on the others are written
/// before it thaws.
#[test]
fn objects_follow_the_stripes() {
    if !here(true) {
        return;
    }
    let to = Up::new("stripes", 4, &["--stripe-count", "4"]);
    let dir = tempfile::tempdir().expect("make a directory");
    let tree: BTreeMap<String, Vec<u8>> = (0..2).map(|at| (format!("f{at}"), noise(at, 16 * MIB))).collect();
    write(dir.path(), &tree);
    to.set(1, "--freeze");
    let before: u64 = to.stat("written_bytes").iter().sum();
    let root = to.mount.join("in");
    let state = tempfile::tempdir().expect("make a directory");
    let copy = Copy::start(dir.path(), &root, &["--state", state.path().to_str().expect("UTF-8")]);
    let others = || {
        to.stat("written_bytes").iter().enumerate().filter(|(at, _)| *at != 1).map(|(_, n)| n).sum::<u64>()
    };
    until("three of four stripes", || others() >= before + 24 * MIB);
    assert!(to.stat("queue")[1] > 0);
    to.set(1, "--thaw");
    let report = copy.ends();
    assert_eq!(targets(&report), (1, 4), "{report}");
    holds(&root, &tree);
    // The same the other way round, where each file's own stripes decide.
    to.set(3, "--freeze");
    let read = to.stat("read_bytes");
    let copy = Copy::start(&root, &dir.path().join("out"), &[]);
    let others = || {
        to.stat("read_bytes")
            .iter()
            .zip(&read)
            .enumerate()
            .filter(|(at, _)| *at != 3)
            .map(|(_, (now, was))| now - was)
            .sum::<u64>()
    };
    until("three of four stripes", || others() >= 24 * MIB);
    to.set(3, "--thaw");
    copy.ends();
    holds(&dir.path().join("out"), &tree);
}

/// Goal: `--layout` decides how files come to lie: as the destination's directory has it, as the file that is
/// replaced, as at the source; and never pins a target.
/// Method: a source of two kinds of stripes, a destination with a default of its own; layouts and bytes read
/// back.
#[test]
fn layouts_are_kept_and_copied() {
    if !here(true) {
        return;
    }
    let from = Up::new("like", 4, &["--stripe-count", "1"]);
    let to = Up::new("unlike", 4, &["--stripe-count", "2"]);
    let tree: BTreeMap<String, Vec<u8>> =
        ["a/one", "a/two", "a/three", "b/four"].map(|name| (name.to_owned(), noise(3, 3 * MIB + 17))).into();
    for (dir, size, count) in [("a", 2 << 20, 3), ("b", 128 << 10, 4)] {
        fs::create_dir(from.mount.join(dir)).expect("make a directory");
        set_layout(&from.mount.join(dir), size, count);
    }
    write(&from.mount, &tree);
    let shape = |path: PathBuf| {
        let (size, targets) = striped(&path);
        (size, targets.len())
    };
    for (name, layout) in [("auto", (1 << 20, 2)), ("keep", (1 << 20, 2))] {
        let root = to.mount.join(name);
        copy(&from.mount, &root, &["--layout", name]);
        holds(&root, &tree);
        assert_eq!([shape(root.join("a/one")), shape(root.join("b/four"))], [layout; 2], "{name}");
    }
    let root = to.mount.join("copy");
    let report = copy(&from.mount, &root, &["--layout", "copy"]);
    holds(&root, &tree);
    assert!(said(&report, "sink layout").contains("4 files"), "{report}");
    assert_eq!([shape(root.join("a/one")), shape(root.join("b/four"))], [(2 << 20, 3), (128 << 10, 4)]);
    let firsts = ["one", "two", "three"].map(|name| striped(&root.join("a").join(name)).1[0]);
    assert!(firsts.iter().any(|first| *first != firsts[0]), "each begins elsewhere: {firsts:?}");
    // What is replaced keeps its layout if that is asked for, and gets the directory's if not.
    for (how, layout) in [("keep", (2 << 20, 3)), ("auto", (1 << 20, 2))] {
        copy(&from.mount, &root, &["--layout", how, "--force"]);
        holds(&root, &tree);
        assert_eq!(shape(root.join("a/one")), layout, "{how}");
    }
    // Where there are no stripes it is said, and nothing fails.
    let dir = tempfile::tempdir().expect("make a directory");
    let report = copy(&from.mount, dir.path(), &["--layout", "copy"]);
    holds(dir.path(), &tree);
    assert!(said(&report, "sink layout").contains("no stripes"), "{report}");
}

/// A mount that goes with it.
struct Mounted(PathBuf);

impl Mounted {
    fn tmpfs(at: PathBuf) -> Mounted {
        fs::create_dir_all(&at).expect("make a directory");
        mount("haul-test", &at, "tmpfs", MountFlags::empty(), None).expect("mount");
        Mounted(at)
    }

    fn bind(from: &Path, at: PathBuf) -> Mounted {
        fs::create_dir_all(&at).expect("make a directory");
        rustix::mount::mount_bind(from, &at).expect("mount");
        Mounted(at)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// Goal: file systems that are mounted below one root are targets, each device one, at both ends; a second
/// mount of the same device is none.
/// Method: a tmpfs, and another one of which two directories are mounted at two places, below one directory;
/// so at the source and at the sink.
#[test]
fn mounted_devices_are_targets() {
    if !here(false) {
        return;
    }
    let dir = tempfile::tempdir().expect("make a directory");
    let mut mounts = Vec::new();
    let ends = ["from", "to"].map(|end| {
        let (root, side) = (dir.path().join(end), dir.path().join(format!("side-{end}")));
        mounts.push(Mounted::tmpfs(root.join("d0")));
        mounts.push(Mounted::tmpfs(side.clone()));
        for (part, at) in [("a", "d1"), ("b", "d2/again")] {
            fs::create_dir_all(side.join(part)).expect("make a directory");
            mounts.push(Mounted::bind(&side.join(part), root.join(at)));
        }
        root
    });
    let mut tree = tree(9, 5);
    tree.insert("d2/again/bound".into(), noise(77, 3 * MIB));
    write(&ends[0], &tree);
    let report = copy(&ends[0], &ends[1], &[]);
    assert_eq!(targets(&report), (3, 3), "{report}");
    holds(&ends[1], &tree);
}

/// Goal: subvolumes of one btrfs, each with a device number of its own, are one target, at both ends; a
/// second btrfs is another one.
/// Method: two small file systems on loop devices, mounted side by side at both ends, one with a subvolume.
#[test]
fn subvolumes_are_no_targets() {
    let tool = |name: &str| Command::new(name).arg("--version").output().is_ok();
    let kernel = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let btrfs = kernel.contains("\tbtrfs\n") && tool("mkfs.btrfs") && tool("btrfs") && tool("losetup");
    if !here(false) || !needs("btrfs", btrfs) {
        return;
    }
    let run = |program: &str, args: &[&std::ffi::OsStr]| {
        let output = Command::new(program).args(args).output().expect("run a program");
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let dir = tempfile::tempdir().expect("make a directory");
    let mut mounts = Vec::new();
    let ends = ["from", "to"].map(|end| {
        let root = dir.path().join(end);
        for name in ["d0", "d1"] {
            let (image, at) = (dir.path().join(format!("{end}-{name}.img")), root.join(name));
            File::create(&image).and_then(|file| file.set_len(128 * MIB)).expect("make an image");
            run("mkfs.btrfs", &["-q".as_ref(), image.as_ref()]);
            fs::create_dir_all(&at).expect("make a directory");
            run("mount", &["-o".as_ref(), "loop".as_ref(), image.as_ref(), at.as_ref()]);
            mounts.push(Mounted(at));
        }
        run("btrfs", &["-q".as_ref(), "subvolume".as_ref(), "create".as_ref(), root.join("d0/sub").as_ref()]);
        root
    });
    // Several on each: what is written before the second target is met is not counted.
    let names = ["d0/a", "d0/sub/b", "d1/c"];
    let files = names.iter().flat_map(|name| (0..4).map(move |at| format!("{name}{at}")));
    let tree: BTreeMap<String, Vec<u8>> = files.map(|name| (name, noise(9, 3 * MIB))).collect();
    write(&ends[0], &tree);
    let device = |name: &str| {
        std::os::unix::fs::MetadataExt::dev(&fs::metadata(ends[0].join(name)).expect("it is there"))
    };
    assert_ne!(device("d0/a0"), device("d0/sub/b0"), "a subvolume has a number of its own");
    let report = copy(&ends[0], &ends[1], &[]);
    assert_eq!(targets(&report), (2, 2), "{report}");
    holds(&ends[1], &tree);
}
