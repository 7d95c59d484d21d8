//! `haul probe path`: all that a copy passes is measured for a moment, over a real sshd and within this host.

use std::fs;
use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::mount::Tmpfs;
use crate::support::run::{Haul, Outcome};
use crate::support::sshd::Sshd;
use crate::support::{Room, read};

const PARTS: [&str; 5] = ["source_storage", "source_host", "network", "sink_host", "sink_storage"];

/// A small probe, with its state in the room.
fn probe(room: &Room) -> Haul {
    let few = ["probe", "path", "--time", "10s", "--max-bytes", "64MiB", "--json"];
    Haul::new(few).env("XDG_STATE_HOME", room.at("state"))
}

fn last(outcome: &Outcome) -> Value {
    let last = outcome.events().pop().expect("an event");
    assert_eq!(last["event"], "path_summary", "{}", outcome.describe());
    last
}

#[track_caller]
fn assert_empty(dir: &Path) {
    let left: Vec<_> = fs::read_dir(dir).expect("list a directory").collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

/// The five rates are there, the least of them is what is to be expected, and its part is named.
#[track_caller]
fn assert_whole(summary: &Value) -> Vec<Option<f64>> {
    let parts = summary["parts"].as_array().expect("parts");
    let names: Vec<&str> = parts.iter().filter_map(|part| part["part"].as_str()).collect();
    assert_eq!(names, PARTS, "{summary}");
    let rates: Vec<Option<f64>> = parts.iter().map(|part| part["rate"].as_f64()).collect();
    let least = rates.iter().flatten().copied().fold(f64::INFINITY, f64::min);
    assert_eq!(summary["expected"].as_f64(), Some(least), "{summary}");
    let (startup, whole) = (summary["startup"].as_f64().expect("it says so"), &summary["expected_seconds"]);
    match summary["bytes"].as_u64() {
        Some(bytes) => {
            let seconds = whole.as_f64().expect("a time");
            assert!((seconds - startup - bytes as f64 / least).abs() < 1e-6, "{summary}");
        }
        None => assert!(whole.is_null(), "{summary}"),
    }
    let weakest = PARTS.iter().position(|part| summary["weakest"] == *part).expect("a part");
    assert!(rates[weakest].is_some_and(|rate| rate <= 1.01 * least), "{summary}");
    rates
}

/// Goal: within one host both storages and the host are measured, in every form; nothing stays but the
/// passports, with which copies start.
#[test]
fn a_path_within_this_host_is_measured() {
    let (room, state) = (Room::new(), Room::new());
    let (from, to) = (room.dir("from"), room.dir("to"));
    let (page, csv) = (room.at("page.html"), room.at("parts.csv"));
    let forms = ["--html".as_ref(), page.as_os_str(), "--csv".as_ref(), csv.as_os_str()];
    let run = probe(&room).env("XDG_STATE_HOME", state.at("state")).args([&from, &to]).args(forms);
    let outcome = run.run().exits(0).sane().says("at most");
    let events = outcome.events();
    assert!(events[0]["event"] == "path_started" && events[0]["bytes_max"] == 64 << 20, "{}", events[0]);
    let summary = last(&outcome);
    let rates = assert_whole(&summary);
    assert!(rates[2].is_none() && rates.iter().flatten().count() == 4, "{summary}");
    assert!(
        summary["source_storage"]["write_best"].is_null() && summary["sink_storage"]["read_best"].is_null()
    );
    let moved = |storage: &Value| storage["bytes_read"].as_u64().zip(storage["bytes_written"].as_u64());
    for storage in ["source_storage", "sink_storage"] {
        let (read, written) = moved(&summary[storage]).expect("counts");
        assert!(read + written <= 64 << 20, "{summary}");
    }
    assert!(String::from_utf8(read(&page)).expect("the page is UTF-8").contains("The five parts"));
    assert_eq!(String::from_utf8(read(&csv)).expect("the CSV is UTF-8").lines().count(), 6);
    assert_empty(&from);
    assert_empty(&to);
    let kept = fs::read_dir(state.at("state/haul/passports")).expect("passports").count();
    assert_eq!(kept, 1, "both lie on one file system");
    let shown =
        Haul::new(["probe", "show", "--json"]).env("XDG_STATE_HOME", state.at("state")).run().exits(0);
    let passport = shown.events().pop().expect("one");
    assert!(passport["probe"]["read_best"].is_object() && passport["probe"]["write_best"].is_object());
}

/// Goal: over a real sshd, both ways: the far storage is measured there, the network in the way of the data,
/// and the passports of both are kept where copies look for them.
#[test]
fn a_path_to_another_host_is_measured() {
    need!("sshd");
    let (room, sshd) = (Room::new(), Sshd::start());
    let (near, far) = (room.dir("near"), room.dir("far"));
    for way in ["to", "from"] {
        let args = match way {
            "to" => [near.clone().into_os_string(), sshd.path(&far)],
            _ => [sshd.path(&far), near.clone().into_os_string()],
        };
        let outcome = probe(&room).by(&sshd).args(args).run().exits(0).sane();
        let summary = last(&outcome);
        let rates = assert_whole(&summary);
        assert!(rates.iter().all(Option::is_some), "{summary}");
        assert_eq!(summary["network"]["way"], way, "{summary}");
        assert!(summary["source_storage"]["read_best"].is_object(), "{summary}");
        assert!(summary["sink_storage"]["write_best"].is_object(), "{summary}");
        assert!(outcome.events().iter().any(|event| event["event"] == "network_point"));
        assert_empty(&far);
        assert_empty(&near);
    }
    let networks = fs::read_dir(room.at("state/haul/networks")).expect("passports").count();
    assert_eq!(networks, 2, "one for each way");
    assert_eq!(fs::read_dir(room.at("state/haul/passports")).expect("passports").count(), 1);
    // No storage at either end: what is left is the network and the hosts.
    let args = ["null://1GiB".into(), sshd.path(Path::new("null://"))];
    let mut words: Vec<std::ffi::OsString> = args.into();
    words[1] = "127.0.0.1:null://".into();
    let summary = last(&probe(&room).args(["--no-save"]).by(&sshd).args(words).run().exits(0).sane());
    let rates = assert_whole(&summary);
    assert!(rates[0].is_none() && rates[4].is_none() && rates[2].is_some(), "{summary}");
    assert_eq!(summary["bytes"], 1 << 30);
    assert!(
        summary["startup"].as_f64().is_some_and(|startup| startup > 0.0),
        "a login takes time: {summary}"
    );
}

/// Goal: an end that cannot be probed is said before anything is measured, at either end: read-only, full,
/// not there; two remote ends.
#[test]
fn what_cannot_be_probed_is_said() {
    need!("sshd");
    let (room, sshd) = (Room::new(), Sshd::start());
    let dir = room.dir("dir");
    let fails = |words: [std::ffi::OsString; 2], code, text: &str| {
        let outcome = probe(&room).by(&sshd).args(words).run().exits(code).says(text).sane();
        if let Some(last) = outcome.events().pop() {
            assert!(last["event"] == "path_summary" && last["expected"].is_null(), "{last}");
        }
    };
    let here = || dir.clone().into_os_string();
    fails([room.at("none").into_os_string(), here()], 1, "none");
    fails([here(), "/proc/none".into()], 1, "/proc");
    fails([here(), sshd.path(Path::new("/proc/none"))], 1, "127.0.0.1: ");
    fails([sshd.path(&room.at("none")), here()], 1, "127.0.0.1: ");
    fails([sshd.path(&dir), sshd.path(&dir)], 2, "both ends");
    Haul::new(["probe", "path", "--time", "1s"]).args([&dir, &dir]).run().exits(2).says("time limit");
    assert_empty(&dir);
    need!("root", "tmpfs");
    let small = room.dir("small");
    let _full = Tmpfs::mount(&small, "size=1m");
    fails([here(), small.clone().into_os_string()], 1, "not enough space");
    fails([here(), sshd.path(&small)], 1, "not enough space");
    let frozen = room.dir("frozen");
    let _read_only = Tmpfs::mount(&frozen, "size=64m,ro");
    fails([here(), frozen.clone().into_os_string()], 1, "read-only");
    fails([here(), sshd.path(&frozen)], 1, "read-only");
}

/// Goal: Ctrl-C, and a kill, leave no scratch file at either end.
#[test]
fn a_probe_that_ends_early_leaves_nothing() {
    need!("sshd");
    let (room, sshd) = (Room::new(), Sshd::start());
    let far = room.dir("far");
    for signal in [Signal::INT, Signal::KILL] {
        let args = ["null://1GiB".into(), sshd.path(&far)];
        let long = Haul::new(["probe", "path", "--json", "--no-save", "--max-bytes", "1GiB"]);
        let mut running = long.env("XDG_STATE_HOME", room.at("state")).by(&sshd).args(args).start();
        assert!(running.until(|running| running.stdout().windows(12).any(|text| text == b"path_started")));
        running.signal(signal);
        let outcome = running.wait();
        if signal == Signal::INT {
            assert_eq!(last(&outcome.exits(130))["status"], "interrupted");
        }
        assert_empty(&far);
    }
}
