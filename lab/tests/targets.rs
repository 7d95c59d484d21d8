//! `lab targets` on a real mount: needs root and /dev/fuse, some tests loop devices; skipped aloud without.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::mpsc::channel;

use fastrand::Rng;
use rustix::fs::{XattrFlags, getxattr, setxattr};
use serde_json::Value;

mod support;

use support::needs;

const MIB: u64 = 1 << 20;
const LOV: &str = "lustre.lov";

fn lab(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lab")).arg("targets").args(args).output().expect("run lab")
}

fn lab_ok(args: &[&str]) -> String {
    let output = lab(args);
    assert!(output.status.success(), "lab targets {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Leaves the test, aloud, unless the machine has what it needs.
fn fuse_here() -> bool {
    needs("root", rustix::process::geteuid().is_root()) && needs("fuse", Path::new("/dev/fuse").exists())
}

fn loop_here() -> bool {
    let tool = |name: &str| Command::new(name).arg("-V").output().is_ok();
    needs("root", rustix::process::geteuid().is_root())
        && needs(
            "loop",
            Path::new("/dev/loop-control").exists()
                && tool("losetup")
                && tool("mkfs.xfs")
                && tool("mkfs.ext4"),
        )
}

/// Targets that are taken down when the test ends, however it does.
struct Up {
    name: String,
    mount: PathBuf,
    said: Value,
}

impl Up {
    fn new(test: &str, args: &[&str]) -> Up {
        let name = format!("test-{test}-{}", std::process::id());
        let said: Value =
            serde_json::from_str(&lab_ok(&[&["up", "--name", &name], args].concat())).expect("one JSON line");
        let mount = PathBuf::from(said["mount"].as_str().expect("a mount"));
        Up { name, mount, said }
    }

    fn set(&self, args: &[&str]) {
        lab_ok(&[&["set", &self.name], args].concat());
    }

    fn stats(&self) -> Vec<Value> {
        let stats: Value = serde_json::from_str(&lab_ok(&["stats", &self.name])).expect("JSON");
        stats["targets"].as_array().expect("an array").clone()
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        lab(&["down", &self.name]);
    }
}

fn lov(path: &Path) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    let len = getxattr(path, LOV, &mut bytes[..]).expect("getxattr");
    bytes.truncate(len);
    bytes
}

/// The bytes that a program sets: `lov_user_md_v1` without objects.
fn wish(stripe_size: u32, count: u16, offset: u16) -> Vec<u8> {
    let mut bytes = 0x0BD1_0BD0u32.to_le_bytes().to_vec();
    bytes.extend([0; 20]);
    bytes.extend(stripe_size.to_le_bytes());
    bytes.extend(count.to_le_bytes());
    bytes.extend(offset.to_le_bytes());
    bytes
}

/// Goal: bytes written anywhere, in pieces of any size, over stripes are read back equal, and cut where they
/// were cut.
/// Method: seeded writes, reads and truncations against a vector, with data in memory and in a directory.
#[test]
fn model_targets_give_back_what_was_written() {
    if !fuse_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let in_dir = ["--dir", dir.path().to_str().unwrap()];
    for (test, space) in [("bytes-memory", &["--memory"][..]), ("bytes-dir", &in_dir)] {
        let up =
            Up::new(test, &[&["--model", "3", "--spec", "ssd", "--stripe-size", "64KiB"], space].concat());
        let mut rng = Rng::with_seed(11);
        let mut model: Vec<u8> = Vec::new();
        let path = up.mount.join("file");
        let file = File::options().create_new(true).read(true).write(true).open(&path).unwrap();
        for _ in 0..150 {
            let offset = rng.usize(0..3 << 20);
            let len = rng.usize(0..600_000);
            match rng.u32(0..10) {
                0 => {
                    file.set_len(offset as u64).unwrap();
                    model.resize(offset, 0);
                }
                1..6 => {
                    let bytes: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(len).collect();
                    file.write_all_at(&bytes, offset as u64).unwrap();
                    model.resize(model.len().max(if len == 0 { 0 } else { offset + len }), 0);
                    if len > 0 {
                        model[offset..offset + len].copy_from_slice(&bytes);
                    }
                }
                _ => {
                    let mut got = vec![0; len];
                    let got_len = file.read_at(&mut got, offset as u64).unwrap();
                    let end = model.len().min(offset + got_len);
                    assert_eq!(got_len, model.len().saturating_sub(offset).min(len));
                    assert!(got_len == 0 || got[..got_len] == model[offset..end]);
                }
            }
        }
        file.sync_all().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), model.len() as u64);
        assert!(fs::read(&path).unwrap() == model);
        assert!(
            up.stats().iter().all(|target| target["requests"].as_u64() > Some(0)),
            "all targets took part"
        );
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "down removes the data");
}

/// Goal: names behave as on any file system: make, list, rename over, exchange, link, unlink while open,
/// remove.
/// Method: one of each on a real mount.
#[test]
fn model_targets_keep_names() {
    if !fuse_here() {
        return;
    }
    let up = Up::new("names", &["--model", "2", "--spec", "null"]);
    let at = |name: &str| up.mount.join(name);
    fs::create_dir(at("d")).unwrap();
    for name in 0..500 {
        fs::write(at("d").join(name.to_string()), name.to_string()).unwrap();
    }
    assert_eq!(fs::read_dir(at("d")).unwrap().count(), 500);
    assert_eq!(fs::remove_dir(at("d")).unwrap_err().kind(), ErrorKind::DirectoryNotEmpty);
    fs::rename(at("d/7"), at("d/8")).unwrap();
    assert_eq!(fs::read(at("d/8")).unwrap(), b"7");
    assert_eq!(fs::read(at("d/7")).unwrap_err().kind(), ErrorKind::NotFound);
    let cwd = rustix::fs::CWD;
    let rename = |flags| rustix::fs::renameat_with(cwd, at("d/8"), cwd, at("d/9"), flags);
    assert_eq!(rename(rustix::fs::RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST));
    rename(rustix::fs::RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read(at("d/8")).unwrap(), b"9");
    symlink("d/8", at("s")).unwrap();
    assert_eq!(fs::read(at("s")).unwrap(), b"9");
    assert_eq!(fs::read_link(at("s")).unwrap(), Path::new("d/8"));
    fs::hard_link(at("d/8"), at("h")).unwrap();
    let open = File::open(at("h")).unwrap();
    fs::remove_file(at("h")).unwrap();
    fs::remove_file(at("d/8")).unwrap();
    let mut byte = [0];
    open.read_exact_at(&mut byte, 0).unwrap();
    assert_eq!(byte, *b"9");
    setxattr(at("d"), "user.a", b"b", XattrFlags::CREATE).unwrap();
    assert_eq!(setxattr(at("d"), "user.a", b"b", XattrFlags::CREATE), Err(rustix::io::Errno::EXIST));
    fs::set_permissions(at("d"), fs::Permissions::from_mode(0o2751)).unwrap();
    assert_eq!(fs::metadata(at("d")).unwrap().permissions().mode() & 0o7777, 0o2751);
    let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_nanos(1_000_000_001);
    File::open(at("d/9")).unwrap().set_modified(time).unwrap();
    assert_eq!(fs::metadata(at("d/9")).unwrap().modified().unwrap(), time);
    fs::remove_dir_all(at("d")).unwrap();
    assert_eq!(fs::read_dir(&up.mount).unwrap().count(), 1);
}

/// Goal: the layout question is answered as by Lustre's client, byte for byte, before and after a layout was
/// set.
/// Method: blobs written by hand; stripes counted at the targets.
#[test]
fn model_targets_answer_the_layout_question() {
    if !fuse_here() {
        return;
    }
    let up = Up::new(
        "layout",
        &["--model", "4", "--spec", "null", "--stripe-count", "2", "--stripe-size", "1MiB"],
    );
    let path = up.mount.join("a");
    fs::write(&path, b"").unwrap();
    #[rustfmt::skip]
    let first = [
        0xd0, 0x0b, 0xd1, 0x0b, 1, 0, 0, 0, // magic V1, RAID0
        2, 0, 0, 0, 0, 0, 0, 0, 0x01, 0x04, 0, 0, 2, 0, 0, 0, // the second inode
        0, 0, 0x10, 0, 2, 0, 0, 0, // 1 MiB, 2 stripes
        1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // object 1 on target 0
        2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, // object 2 on target 1
    ];
    assert_eq!(lov(&path), first);
    let mut short = [0; 79];
    assert_eq!(getxattr(&path, LOV, &mut short[..]), Err(rustix::io::Errno::RANGE));
    assert_eq!(getxattr(&path, "trusted.lov", &mut [0; 80][..]), Ok(80));
    assert_eq!(getxattr(&up.mount, LOV, &mut [0; 80][..]), Err(rustix::io::Errno::NODATA));

    setxattr(&path, LOV, &wish(64 << 10, 3, 2), XattrFlags::empty()).unwrap();
    let set = lov(&path);
    assert_eq!(set[24..30], [0, 0, 1, 0, 3, 0]);
    let targets: Vec<u8> = (0..3).map(|at| set[32 + 24 * at + 20]).collect();
    assert_eq!(targets, [2, 3, 0]);
    fs::write(&path, vec![1; 5 << 16]).unwrap();
    let written: Vec<_> =
        up.stats().iter().map(|target| target["written_bytes"].as_u64().unwrap() >> 16).collect();
    assert_eq!(written, [1, 0, 2, 2], "stripes 0 to 4 on targets 2, 3, 0, 2, 3");
    setxattr(&path, LOV, &wish(0, 1, 0), XattrFlags::empty()).unwrap();
    assert_eq!(lov(&path), set, "too late, and as silent as Lustre");
    assert_eq!(setxattr(&path, LOV, b"x", XattrFlags::empty()), Err(rustix::io::Errno::INVAL));

    let dir = up.mount.join("d");
    fs::create_dir(&dir).unwrap();
    setxattr(&dir, LOV, &wish(128 << 10, 0xffff, 3), XattrFlags::empty()).unwrap();
    fs::write(dir.join("f"), b"x").unwrap();
    let inherited = lov(&dir.join("f"));
    assert_eq!((inherited[26], inherited[28], inherited[32 + 20]), (2, 4, 3));
    assert_eq!(lov(&dir).len(), 32);
}

/// Goal: a frozen target holds up nobody who does not need it, and goes on after the thaw.
/// Method: one file on each target; a reader of the frozen one waits while others read, write and sync.
#[test]
fn a_frozen_target_does_not_stop_other_targets() {
    if !fuse_here() {
        return;
    }
    let up = Up::new("frost", &["--model", "2", "--spec", "ssd", "--stripe-count", "1"]);
    let file = |at: u8| {
        let path = up.mount.join(at.to_string());
        fs::write(&path, vec![at; 1 << 20]).unwrap();
        assert_eq!(lov(&path)[32 + 20], at);
        File::options().read(true).write(true).open(&path).unwrap()
    };
    let (frozen, well) = (file(0), file(1));
    up.set(&["0", "--freeze"]);
    let (tell, told) = channel();
    let readers: Vec<_> = (0..8)
        .map(|at| {
            let (frozen, tell) = (frozen.try_clone().unwrap(), tell.clone());
            std::thread::spawn(move || {
                let mut bytes = vec![9; 4096];
                frozen.read_exact_at(&mut bytes, at * 4096).unwrap();
                tell.send(bytes == [0; 4096]).unwrap();
            })
        })
        .collect();
    // All eight are with the target before the others are asked.
    while up.stats()[0]["queue"] != 8 {
        std::thread::yield_now();
    }
    let mut bytes = vec![0; 1 << 20];
    for _ in 0..20 {
        well.read_exact_at(&mut bytes, 0).unwrap();
        well.write_all_at(&bytes, 0).unwrap();
        well.sync_all().unwrap();
    }
    assert!(bytes == [1; 1 << 20]);
    assert!(told.try_recv().is_err());
    up.set(&["0", "--thaw"]);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    assert!(told.iter().take(8).all(|right| right));
}

/// Goal: no mount is faster than its model says, a slow target slower by its factor; sync waits for
/// write-back.
/// Method: a modelled disk of known rate; the lower bound of the time only.
#[test]
fn model_targets_are_never_faster_than_the_model() {
    if !fuse_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let spec = dir.path().join("spec.json");
    fs::write(&spec, r#"{"read_rate": 200000000, "write_rate": 100000000, "seek_us": [5000, 5000], "write_back": 67108864}"#)
        .unwrap();
    let up = Up::new("rate", &["--model", "1", "--spec", spec.to_str().unwrap()]);
    let path = up.mount.join("f");
    let start = std::time::Instant::now();
    let file = File::options().create_new(true).read(true).write(true).open(&path).unwrap();
    let bytes = vec![7; 8 << 20];
    file.write_all_at(&bytes, 0).unwrap();
    file.sync_all().unwrap();
    assert!(start.elapsed().as_nanos() >= 5_000_000 + (u128::from(8 * MIB)) * 10);
    up.set(&["0", "--slow", "4"]);
    let start = std::time::Instant::now();
    file.read_exact_at(&mut vec![0; 1 << 20], 0).unwrap();
    assert!(start.elapsed().as_nanos() >= 20_000_000 + u128::from(MIB) * 5 * 4);
}

/// Goal: down leaves no mount, process or directory, also when the model's process was killed, also when a
/// file is open on a frozen target.
/// Method: one set is killed, one frozen with an open file and a reader; then both are taken down and looked
/// for.
#[test]
fn down_leaves_nothing_of_model_targets() {
    if !fuse_here() {
        return;
    }
    let killed = Up::new("down-killed", &["--model", "2", "--null"]);
    let pid = killed.said["pid"].as_i64().unwrap();
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
    let frozen = Up::new("down-frozen", &["--model", "2", "--null", "--stripe-count", "1"]);
    let path = frozen.mount.join("f");
    fs::write(&path, b"f").unwrap();
    let open = File::open(&path).unwrap();
    frozen.set(&["all", "--freeze"]);
    let reader = std::thread::spawn(move || open.read_at(&mut [0], 0));
    while frozen.stats().iter().all(|target| target["queue"] == 0) {
        std::thread::yield_now();
    }
    let again = lab(&["up", "--model", "1", "--name", &frozen.name]);
    assert!(!again.status.success(), "a name is taken once");
    for up in [&killed, &frozen] {
        lab_ok(&["down", &up.name]);
        assert!(!fs::read_to_string("/proc/self/mountinfo").unwrap().contains(&up.name));
        assert!(!up.mount.parent().unwrap().exists());
        assert!(!lab_ok(&["list"]).contains(&up.name));
        let pid = up.said["pid"].as_i64().unwrap();
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        assert!(stat.is_empty() || stat.contains(") Z "), "{stat}");
    }
    assert!(reader.join().unwrap().is_err(), "who waited hears of the end");
    assert!(!lab(&["down", &frozen.name]).status.success());
}

/// Goal: an `up` that cannot be leaves nothing behind, and says why.
/// Method: one wrong thing each.
#[test]
fn refused_targets_leave_nothing() {
    if !fuse_here() {
        return;
    }
    let name = format!("test-refused-{}", std::process::id());
    for (args, why) in [
        (&["--model", "0"][..], "0 targets"),
        (&["--model", "2", "--stripe-count", "3"], "stripe count 3"),
        (&["--model", "2", "--stripe-size", "1000"], "stripe size 1000"),
        (&["--model", "2", "--spec", "nothing"], "neither"),
        (&["--devices", "1", "--size", "1MiB"], "XFS needs"),
    ] {
        let output = lab(&[&["up", "--name", &name], args].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(why), "{args:?}: {said}");
        assert!(!lab_ok(&["list"]).contains(&name));
    }
}

/// Goal: devices are mounted file systems of their own, can be throttled while they are used, and down leaves
/// no mount, loop device or file of them.
/// Method: two small ext4 devices; rates set and read back from the block layer; one file left open.
#[test]
fn device_targets_come_up_and_down_leaves_nothing() {
    if !loop_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let args = [
        "--devices",
        "2",
        "--size",
        "32MiB",
        "--fs",
        "ext4",
        "--dir",
        dir.path().to_str().unwrap(),
        "--rate",
        "50MB",
    ];
    let up = Up::new("devices", &args);
    let mounts: Vec<PathBuf> =
        up.said["mounts"].as_array().unwrap().iter().map(|mount| mount.as_str().unwrap().into()).collect();
    let bytes = vec![3; 1 << 20];
    for mount in &mounts {
        let mut file = File::create(mount.join("f")).unwrap();
        file.write_all(&bytes).unwrap();
        file.sync_all().unwrap();
        assert!(fs::read(mount.join("f")).unwrap() == bytes);
    }
    assert!(up.stats().iter().all(|target| target["written_bytes"].as_u64() >= Some(MIB)));
    up.set(&["1", "--read-rate", "7MB"]);
    let rates: Vec<u64> = up.stats().iter().map(|target| target["read_rate"].as_u64().unwrap()).collect();
    assert_eq!(rates, [50_000_000, 7_000_000]);
    let throttle = Path::new("/sys/fs/cgroup/blkio/blkio.throttle.read_bps_device");
    if throttle.exists() {
        assert!(fs::read_to_string(throttle).unwrap().contains(" 7000000\n"));
    }
    lab_ok(&["down", &up.name]);
    assert!(!fs::read_to_string("/proc/self/mountinfo").unwrap().contains(&up.name));
    let loops =
        Command::new("losetup").args(["--list", "--noheadings", "--output", "BACK-FILE"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&loops.stdout).contains(&up.name));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
