//! `lab run` of volumes: every pattern and everybody that it is measured on, tiny, from the file to the
//! results, with real servers on real devices; and nothing left of them.
//!
//! In: the built programs. What a test needs and the machine lacks skips it, aloud; `HAUL_TEST_REQUIRE` and
//! `HAUL_TEST_SKIPS` as in the other end-to-end tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

mod support;

use support::needs;

const HEAD: &str = r#"
title = "Tiny volumes"
question = "Does it work?"
duration = "1m"
rounds = 1
limit = "1m"
networks = ["loopback"]
source = { on = "none" }
sink = { on = "disk" }
counts = "things"
workload = [{ files = 30, size = "64KiB" }]
plot = { kind = "bars", x = "workload", y = ["rate", "files"], series = "competitor" }
"#;

/// Two servers; 30 x 64 KiB are 1,966,080 bytes.
const HAUL: &str = r#"
better = ["gathered", "direct, two"]

[[competitor]]
peer = "volume"
label = "gathered"
settings = { servers = 2, device = "400MiB", threshold = "all", size = 1000, writes = 50 }

[[competitor]]
peer = "volume"
label = "direct, two"
settings = { servers = 2, device = "400MiB", threshold = "0", size = 3000, clients = 2, writes = 40 }

[[competitor]]
peer = "volume"
label = "adaptive"
settings = { servers = 2, device = "400MiB", size = 200000, warm = 3 }

[[competitor]]
peer = "volume"
label = "random"
settings = { servers = 2, device = "400MiB", pattern = "random", size = 32768, stripe = "64KiB", rate = "1MiB" }

[[competitor]]
peer = "volume"
label = "atlas"
settings = { servers = 2, device = "400MiB", pattern = "atlas", events = 3, threshold = "32KiB" }

[[competitor]]
peer = "volume"
label = "read"
settings = { servers = 2, device = "400MiB", pattern = "read", stripe = "64KiB", strided = "yes" }

[[competitor]]
peer = "volume"
label = "postmark"
settings = { servers = 2, device = "400MiB", pattern = "postmark", transactions = 40 }

[[competitor]]
peer = "volume"
label = "memory"
settings = { servers = 2, device = "400MiB", pattern = "memory", holding = "files", of = "servers" }

[[competitor]]
peer = "volume"
label = "start"
settings = { servers = 2, device = "400MiB", pattern = "start" }
"#;

const NAMES: &str = r#"
[[axis]]
name = "operation"
values = ["create", "stat", "rename", "unlink"]

[[competitor]]
peer = "volume"
label = "names"
settings = { servers = 2, device = "400MiB", pattern = "names", threads = 3 }
axes = ["operation"]
"#;

const OTHERS: &str = r#"
[[competitor]]
peer = "volume-devices"
label = "devices"
settings = { servers = 2, device = "400MiB", size = 100000 }

[[competitor]]
peer = "volume-devices"
label = "postmark"
settings = { servers = 2, device = "400MiB", pattern = "postmark", transactions = 40 }

[[competitor]]
peer = "volume-devices"
label = "wrong"
settings = { threshold = "0" }
"#;

const GLUSTER: &str = r#"
[[competitor]]
peer = "volume-gluster"
label = "gluster"
settings = { servers = 2, device = "1GiB", size = 1000, writes = 50, clients = 2 }

[[competitor]]
peer = "volume-gluster"
label = "postmark"
settings = { servers = 2, device = "1GiB", pattern = "postmark", transactions = 20 }
"#;

/// The `haul` that was built beside `lab`.
fn haul() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_lab")).with_file_name("haul")
}

fn can_run() -> bool {
    let there = |path: &str| Path::new(path).exists();
    needs("root", rustix::process::geteuid().is_root())
        && needs("sshd", there("/usr/sbin/sshd"))
        && needs(
            "loop",
            there("/dev/loop-control") && (there("/sbin/mkfs.xfs") || there("/usr/sbin/mkfs.xfs")),
        )
        && needs("blkio", there("/sys/fs/cgroup/blkio") || there("/sys/fs/cgroup/cgroup.controllers"))
        && needs("haul", haul().exists())
}

/// Runs an experiment that ends with this code; its results, and nothing of it is left.
fn run(text: &str, code: i32) -> Value {
    let dir = tempfile::tempdir().expect("make a directory");
    let (file, out) = (dir.path().join("tiny.toml"), dir.path().join("out"));
    // Whatever differs must be told apart in the picture.
    let head =
        if text.contains("[[axis]]") { HEAD.replace("\"workload\"", "\"operation\"") } else { HEAD.into() };
    fs::write(&file, format!("{head}{text}")).expect("write the experiment");
    let child = Command::new(env!("CARGO_BIN_EXE_lab"))
        .args(["run", "--busy", "--out"])
        .args([&out, &file])
        .env("LAB_ROOT", dir.path())
        .env("LAB_HAUL", haul())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start lab");
    let id = child.id();
    let output = child.wait_with_output().expect("wait for lab");
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{told}");
    let read = |end: &str| fs::read_to_string(out.join(format!("tiny.{end}"))).expect("a result");
    let mut results: Value = serde_json::from_str(&read("json")).expect("JSON");
    results["page"] = read("md").into();
    assert_eq!(traces(id), [""; 0], "{told}");
    results
}

/// What a lab of this process id has left: processes, devices, directories.
fn traces(id: u32) -> Vec<String> {
    let names = |dir: &str| -> Vec<String> {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    let mark = format!("HAUL_LAB=b{id}-");
    let runs = names("/proc").into_iter().filter(|pid| pid.parse::<u32>().is_ok());
    let runs = runs.filter(|pid| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|word| word.starts_with(mark.as_bytes()))
    });
    let mut found: Vec<String> = runs.map(|pid| format!("process {pid}")).collect();
    for dir in ["/run/haul-lab/targets", "/run/haul-lab/pfs"] {
        found.extend(names(dir).into_iter().filter(|name| name.starts_with(&format!("v{id}-"))));
    }
    for dir in ["/dev/shm", "/var/tmp"] {
        found.extend(names(dir).into_iter().filter(|name| name.contains(&format!("-run-{id}-"))));
    }
    found
}

/// The runs of a competitor, all of which are well and compared.
fn runs_of<'a>(results: &'a Value, label: &str) -> Vec<&'a Value> {
    let runs = results["runs"].as_array().expect("runs");
    let own: Vec<_> = runs.iter().filter(|run| run["competitor"] == label).collect();
    assert!(!own.is_empty(), "{label}");
    for run in &own {
        assert_eq!((&run["outcome"], run["checked"] == true), (&"ok".into(), true), "{run}");
        assert!(run["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0), "{run}");
    }
    own
}

/// Goal: each pattern moves what it says on a volume of real servers, every byte is compared afterwards, the
/// figures are those of the pattern alone, and nothing of servers and devices is left.
/// Method: two servers, little of each pattern; bytes and counts are arithmetic.
#[test]
fn patterns_run_on_a_volume() {
    if !can_run() {
        return;
    }
    let results = run(HAUL, 0);
    let bytes = |label: &str| runs_of(&results, label)[0]["bytes"].as_u64().expect("bytes");
    assert_eq!(bytes("gathered"), 50_000);
    assert_eq!(bytes("direct, two"), 2 * 40 * 3000);
    assert_eq!(bytes("adaptive"), 1_966_080 / 200_000 * 200_000, "as many as the workload has bytes for");
    assert_eq!(bytes("random"), 1_966_080);
    assert_eq!(bytes("read"), 16 * 65_536, "every second stripe of 15 on each server");
    assert!(bytes("atlas") > 0 && bytes("start") == 0);
    let atlas = &runs_of(&results, "atlas")[0]["said"];
    assert_eq!((&atlas["writes"], &atlas["clients"][0]["threshold"]), (&60.into(), &32_768.into()));
    let gathered = &runs_of(&results, "gathered")[0]["said"]["clients"][0];
    assert_eq!(gathered["writes_begun"], 50);
    assert_eq!(runs_of(&results, "postmark")[0]["files"], 40);
    let random = runs_of(&results, "random")[0];
    let bound = random["bound"].as_f64().expect("a bound");
    assert!((bound - (1_966_080.0 / (2.0 * 1_048_576.0) - 0.11)).abs() < 1e-9, "{bound}");
    // The kernel counts in its ticks, and one that comes late (a machine whose processors are taken away)
    // starts a slice before its time: half of the bound is what no such thing takes, and devices without a
    // rate do.
    let seconds = random["seconds"].as_f64().expect("seconds");
    assert!(seconds >= bound / 2.0, "devices are slow: {random}");
    let start = &runs_of(&results, "start")[0];
    let first = start["said"]["seconds"].as_f64().expect("seconds");
    assert!(
        start["seconds"].as_f64().is_some_and(|all| all > first),
        "servers start within the clock: {start}"
    );
    let memory = &runs_of(&results, "memory")[0];
    assert_eq!((&memory["files"], &memory["bytes"]), (&30.into(), &memory["said"]["server_bytes"]));
    let page = results["page"].as_str().expect("text");
    for words in ["of the better of gathered, direct, two", "things/s", "client: lab, BLAKE3 "] {
        assert!(page.contains(words), "{words:?} is not in {page}");
    }
}

/// Goal: names are made, found, renamed and removed by several threads, and looked for afterwards.
#[test]
fn names_run_on_a_volume() {
    if !can_run() {
        return;
    }
    let results = run(NAMES, 0);
    let runs = runs_of(&results, "names");
    assert_eq!(runs.len(), 4);
    assert!(runs.iter().all(|run| run["files"] == 30 && run["bytes"] == 0), "{runs:?}");
    let page = results["page"].as_str().expect("text");
    assert!(page.contains("things/s") && !page.contains("MB/s |"), "{page}");
}

/// Goal: the same patterns run on the devices alone, and what has no meaning there is refused.
#[test]
fn patterns_run_on_devices() {
    if !can_run() {
        return;
    }
    let results = run(OTHERS, 1);
    assert_eq!(runs_of(&results, "devices")[0]["bytes"], 1_900_000);
    assert_eq!(runs_of(&results, "postmark")[0]["files"], 40);
    let runs = results["runs"].as_array().expect("runs");
    let wrong = runs.iter().find(|run| run["competitor"] == "wrong").expect("a run");
    assert!(
        wrong["error"].as_str().is_some_and(|why| why.contains("no setting is called threshold")),
        "{wrong}"
    );
}

/// Goal: the same patterns run on another file system on devices that are alike, and it is taken down.
#[test]
fn patterns_run_on_gluster() {
    let gluster = ["/usr/sbin/glusterd", "/sbin/glusterd"].iter().any(|path| Path::new(path).exists());
    if !can_run() || !needs("fuse", Path::new("/dev/fuse").exists()) || !needs("gluster", gluster) {
        return;
    }
    let results = run(GLUSTER, 0);
    assert_eq!(runs_of(&results, "gluster")[0]["bytes"], 2 * 50 * 1000);
    assert_eq!(runs_of(&results, "postmark")[0]["files"], 20);
}
