//! `lab run` as a program: a tiny experiment over loopback, from the file to the three results, and nothing
//! left of it.
//!
//! In: the built programs. What a test needs and the machine lacks skips it, aloud; `HAUL_TEST_REQUIRE` and
//! `HAUL_TEST_SKIPS` as in the other end-to-end tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

mod support;

use support::needs;

const TINY: &str = r#"
title = "A tiny copy"
question = "Does it work?"
duration = "10s"
rounds = 2
limit = "1m"
networks = ["loopback"]
source = { on = "tmpfs" }
sink = { on = "tmpfs" }
ratio = ["haul"]
workload = [{ files = 3, size = "100KiB" }]

[[axis]]
name = "streams"
values = [1, 2]

[[competitor]]
peer = "haul"
axes = ["streams"]

[[competitor]]
peer = "haul"
label = "wrong"
settings = { streams = 0 }

[plot]
kind = "bars"
x = "streams"
y = ["rate", "cpu"]
series = "competitor"
"#;

/// The `haul` that was built beside `lab`.
fn haul() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_lab")).with_file_name("haul")
}

fn can_run() -> bool {
    needs("root", rustix::process::geteuid().is_root())
        && needs("sshd", Path::new("/usr/sbin/sshd").exists())
        && needs("haul", haul().exists())
}

/// Goal: an experiment is measured, every byte compared, one that fails is shown and makes the whole fail,
/// all three files are written, and nothing of the set-up is left.
/// Method: a tiny one over loopback; its raw figures, and the directories that it used.
#[test]
fn a_tiny_experiment_runs_from_file_to_results() {
    if !can_run() {
        return;
    }
    let dir = tempfile::tempdir().expect("make a directory");
    let (file, out) = (dir.path().join("tiny.toml"), dir.path().join("out"));
    fs::write(&file, TINY).expect("write the experiment");
    let run = |args: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_lab"))
            .args(["run", "--busy", "--out"])
            .args([&out, &file])
            .args(args)
            .env("LAB_ROOT", dir.path())
            .env("LAB_HAUL", haul())
            .env("RUST_BACKTRACE", "0")
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("start lab")
    };
    let child = run(&["--seed", "5"]);
    let id = child.id();
    let output = child.wait_with_output().expect("wait for lab");
    let (said, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "one of them fails: {told}");
    assert!(told.contains("2 of 6 runs failed"), "{told}");
    let read = |end: &str| fs::read_to_string(out.join(format!("tiny.{end}"))).expect("a result");
    let results: Value = serde_json::from_str(&read("json")).expect("JSON");
    let runs = results["runs"].as_array().expect("runs");
    assert_eq!((runs.len(), &results["seed"], &results["busy"]), (6, &5.into(), &true.into()));
    for run in runs {
        let well = run["competitor"] == "haul";
        assert_eq!((run["outcome"] == "ok", run["checked"] == true), (well, well), "{run}");
        if well {
            assert_eq!(run["bytes"], 3 * 100 * 1024);
            assert_eq!(run["said"]["streams"].to_string(), run["axes"]["streams"].as_str().expect("an axis"));
        }
    }
    let page = read("md");
    assert!(page.starts_with("# A tiny copy\n") && page.contains("**failed** 2 of 2"), "{page}");
    assert!(page.contains("--seed 5") && page.contains("tiny.svg") && said.contains("| haul "), "{page}");
    assert!(read("svg").contains("</svg>"));
    let left: Vec<_> = fs::read_dir("/dev/shm")
        .expect("list /dev/shm")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .filter(|name| name.contains(&format!("-run-{id}-")) || name.contains(&format!("-b{id}-")))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    let output = run(&["--add", "--rounds", "1"]).wait_with_output().expect("wait for lab");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("3 of 9 runs failed"), "{told}");
    let more: Value = serde_json::from_str(&read("json")).expect("JSON");
    assert_eq!(more["runs"].as_array().expect("runs")[..6], runs[..], "the earlier rounds are as they were");
    assert_eq!(
        (&more["rounds"], &more["seed"], &more["runs"][8]["round"]),
        (&3.into(), &5.into(), &3.into())
    );
    assert_eq!(more["dates"].as_array().map(Vec::len), Some(2));
    assert!(read("md").contains("--rounds 3 --seed 5"));
}

const CONGESTED: &str = r#"
title = "Congested"
question = "Is it seen?"
duration = "10s"
rounds = 2
limit = "1m"
networks = ["loopback"]
sink = { on = "tmpfs" }
workload = [{ files = 4, size = "512KiB" }]

[source]
on = "model"
targets = 2
stripe_count = 1
spec = { read_rate = 10000000, write_rate = 10000000, depth = 2 }
congestion = { steps = [{ for_ms = 60000, who = { targets = [1] }, slow = 4 }] }

[[competitor]]
peer = "haul"
settings = { schedule = "round-robin", in-flight = 4 }

[plot]
kind = "bars"
x = "workload"
y = ["bound"]
series = "competitor"
"#;

/// Goal: modelled targets are congested in each run, no run is faster than what that allows, and results say
/// what that is.
/// Method: one of two is four times as slow, so that its half of the data takes 0.42 s, as arithmetic says;
/// both rounds are held against that. What the model is asked for in a run is the data, once.
#[test]
fn congestion_begins_with_each_run() {
    if !can_run() || !needs("fuse", Path::new("/dev/fuse").exists()) {
        return;
    }
    let dir = tempfile::tempdir().expect("make a directory");
    let (file, out) = (dir.path().join("congested.toml"), dir.path().join("out"));
    fs::write(&file, CONGESTED).expect("write the experiment");
    let output = Command::new(env!("CARGO_BIN_EXE_lab"))
        .args(["run", "--busy", "--out"])
        .args([&out, &file])
        .env("LAB_ROOT", dir.path())
        .env("LAB_HAUL", haul())
        .output()
        .expect("run lab");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = fs::read_to_string(out.join("congested.json")).expect("a result");
    let results: Value = serde_json::from_str(&text).expect("JSON");
    let runs = results["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 2);
    for run in runs {
        let bound = run["bound"].as_f64().expect("a bound");
        assert!((bound - 2.0 * 524_288.0 / 2.5e6).abs() < 1e-6, "{bound}");
        assert!(run["seconds"].as_f64().expect("seconds") >= bound, "{run}");
        assert_eq!((run["checked"] == true, &run["outcome"]), (true, &"ok".into()));
        let last = run["flow"]["samples"].as_array().and_then(|all| all.last()).expect("a sample");
        assert_eq!(last[1], 4 * 524_288);
    }
    let page = fs::read_to_string(out.join("congested.md")).expect("a page");
    assert!(page.contains("% of the bound") && page.contains("0.419 s for 4 x 512KiB"), "{page}");
}

/// Goal: what cannot be measured is refused before anything is made, with the file and the key.
/// Method: a file with a key that is not known; a name that is none.
#[test]
fn wrong_experiments_are_refused() {
    let dir = tempfile::tempdir().expect("make a directory");
    let file = dir.path().join("wrong.toml");
    fs::write(&file, TINY.replace("rounds", "runs")).expect("write the experiment");
    for (name, words) in
        [(file.to_str().expect("text"), ["wrong.toml", "runs"]), ("moon", ["moon.toml", "lab list"])]
    {
        let output = Command::new(env!("CARGO_BIN_EXE_lab"))
            .args(["run", name])
            .env("LAB_ROOT", dir.path())
            .output()
            .expect("run lab");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && words.iter().all(|word| told.contains(word)), "{told}");
    }
}
