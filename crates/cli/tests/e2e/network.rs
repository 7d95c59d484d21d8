//! `haul probe network`: a network is measured for a moment, reported in every form, kept, and used by the
//! next copy.

use std::fs;
use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::netns::{FAR_BLOCKED, NetnsPair};
use crate::support::run::{Haul, Outcome};
use crate::support::sshd::{FarHaul, Sshd};
use crate::support::{Room, read};

/// The loopback host of [`Sshd::start`].
const HOST: &str = "127.0.0.1";

/// A small probe, with its state in the room.
fn probe(room: &Room, sshd: &Sshd, host: &str) -> Haul {
    let few = ["--time", "30s", "--streams", "1,2", "--congestion", "reno"];
    let haul = Haul::new(["probe", "network"]).by(sshd).args([host]).args(few);
    haul.env("XDG_STATE_HOME", room.at("state"))
}

fn passports(room: &Room) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(room.at("state/haul/networks")) else { return Vec::new() };
    entries.map(|entry| entry.expect("list the passports").path()).collect()
}

fn stdout(outcome: &Outcome) -> String {
    String::from_utf8(outcome.stdout.clone()).expect("stdout is UTF-8")
}

/// The last event, which is the summary of the probe.
fn last(outcome: &Outcome) -> Value {
    let last = outcome.events().pop().expect("an event");
    assert_eq!(last["event"], "network_summary", "{}", outcome.describe());
    last
}

/// Goal: over a real sshd the events begin with what was met, have a point per measurement and end with a
/// setting to use that was measured; every rate is of bytes that arrived in that time; the time that all
/// points took is within the limit.
#[test]
fn a_network_is_measured() {
    need!("sshd");
    let (room, sshd) = (Room::new(), Sshd::start());
    let outcome =
        probe(&room, &sshd, HOST).args(["--json", "--no-save"]).run().exits(0).sane().says("at most");
    let events = outcome.events();
    assert_eq!((&events[0]["event"], &events[0]["address"]), (&"network_started".into(), &HOST.into()));
    let points: Vec<&Value> = events.iter().filter(|event| event["event"] == "network_point").collect();
    assert!((2..=8).contains(&points.len()), "{}", outcome.describe());
    let number = |value: &Value| value.as_f64().expect("a number");
    for point in &points {
        assert!(
            [1, 2].contains(&point["streams"].as_u64().expect("a count")) && point["congestion"] == "reno"
        );
        let rate = number(&point["bytes"]) / number(&point["seconds"]);
        // The slope of a line through all answers, against that of the first and the last.
        assert!((rate / number(&point["rate"]) - 1.0).abs() < 0.3 && rate > 0.0, "{point}");
        assert!(number(&point["seconds"]) >= 2.0, "{point}");
        // Headers and seals come on top.
        assert!(number(&point["sent"]) > 0.5 * number(&point["bytes"]), "{point}");
        assert!(number(&point["rtt_median"]) > 0.0, "{point}");
    }
    let seconds: f64 = points.iter().map(|point| number(&point["seconds"])).sum();
    assert!(seconds < 30.0, "{seconds}");
    let summary = last(&outcome);
    let (status, chosen) = (&summary["status"], &summary["recommended"]);
    assert!(status == "complete" && points.iter().any(|p| p["streams"] == chosen["streams"]), "{summary}");
    assert!(number(&summary["mss"]) > 500.0 && number(&summary["rtt_min"]) > 0.0, "{summary}");
    assert!(summary["far"]["rmem_auto"].is_u64() && number(&summary["cpu_far"]) > 0.0, "{summary}");
    let moved: f64 = points.iter().map(|point| number(&point["bytes"])).sum();
    assert!(number(&summary["bytes"]) >= moved, "{summary}");
    assert!(passports(&room).is_empty(), "--no-save keeps nothing");
}

/// Goal: what was found is kept, shown, and what the next copy to that host starts with, and it says so; what
/// the user names wins; another way of naming the host knows nothing of it.
#[test]
fn a_copy_starts_with_the_passport() {
    need!("sshd");
    let (room, sshd) = (Room::new(), Sshd::start());
    let (page, csv) = (room.at("page.html"), room.at("points.csv"));
    let forms = [page.as_os_str(), "--csv".as_ref(), csv.as_os_str()];
    let outcome = probe(&room, &sshd, HOST).args(["--html"]).args(forms).run().exits(0).sane();
    let table = stdout(&outcome);
    for part in ["use: ", "reno", "round trip", "kept as the network's passport"] {
        assert!(table.contains(part), "{part}: {table}");
    }
    assert!(String::from_utf8(read(&page)).expect("the page is UTF-8").contains("<figure>"));
    assert!(String::from_utf8(read(&csv)).expect("the CSV is UTF-8").lines().count() >= 3);
    let kept = passports(&room);
    assert_eq!(kept.len(), 1);
    // A number that no copy over loopback would choose.
    let mut passport: Value = serde_json::from_slice(&read(&kept[0])).expect("the passport is JSON");
    passport["recommended"]["streams"] = 7.into();
    fs::write(&kept[0], serde_json::to_vec(&passport).expect("it is JSON")).expect("write the passport");
    let show = |args: &[&str]| {
        Haul::new(["probe", "show"]).args(args).env("XDG_STATE_HOME", room.at("state")).run().exits(0)
    };
    assert!(stdout(&show(&[])).contains(HOST));
    let shown = show(&["--json"]).events().pop().expect("one passport");
    assert!(shown["event"] == "network_passport" && shown["probe"]["to"] == HOST, "{shown}");

    let file = room.file("file", vec![7; 3_000_000]);
    let copy = |options: &[&str], name: &str| {
        let to = sshd.path(&room.at(name));
        let haul = Haul::cp(options).by(&sshd).args([file.as_os_str(), &to]);
        let outcome = haul.env("XDG_STATE_HOME", room.at("state")).run().sane().exits(0);
        assert_eq!(read(room.at(name)), read(&file));
        outcome.summary().0["chosen"].clone()
    };
    let says = |chosen: &Value, name: &str, text: &str| {
        let line = chosen.as_array().into_iter().flatten().find(|line| line["name"] == name);
        let value = line.and_then(|line| line["value"].as_str());
        assert!(value.is_some_and(|value| value.contains(text)), "{name}: {chosen}");
    };
    let chosen = copy(&[], "a");
    says(&chosen, "streams", "7 (from the network passport of");
    says(&chosen, "congestion control", "reno (from the network passport of");
    says(&chosen, "rate to expect", "from the network passport of");
    let chosen = copy(&["--streams", "2"], "b");
    says(&chosen, "streams", "2 (as asked)");
    says(&chosen, "congestion control", "reno (from the network passport of");
    // Streams were measured with another control.
    let other = copy(&["--congestion", "cubic"], "c");
    says(&other, "congestion control", "cubic (as asked)");
    assert!(!other.to_string().contains("passport"), "{other}");
    // Damaged: the copy goes on, and says why it knows nothing.
    fs::write(&kept[0], "{").expect("write the passport");
    let chosen = copy(&[], "d");
    assert!(chosen.to_string().contains("is damaged and ignored"), "{chosen}");
}

/// Goal: a host that cannot be reached, words that are no host, and a control that there is not end with a
/// sentence and the right code; nothing is kept.
#[test]
fn what_cannot_be_probed_is_said() {
    need!("sshd");
    let (room, sshd) = (Room::new(), Sshd::start());
    for host in ["", "host:path", "a/b", "-oProxyCommand=x", "host:"] {
        Haul::new(["probe", "network", "--", host]).run().exits(2).sane();
    }
    Haul::new(["probe", "network"]).run().exits(2);
    Haul::new(["probe", "network", "--time", "0s", HOST]).run().exits(2);
    Haul::new(["probe", "network", "--streams", "65", HOST]).run().exits(2);
    let outcome = probe(&room, &sshd, "no-such-host.invalid").args(["--json"]).run().exits(1).sane();
    let summary = last(&outcome);
    assert!(summary["status"] == "failed" && summary["recommended"].is_null(), "{summary}");
    let wrong = Haul::new(["probe", "network", "--congestion", "nonesuch"]).by(&sshd).args([HOST]);
    wrong.run().exits(1).says("'nonesuch' cannot be used").sane();
    let nowhere = room.at("no/page.html");
    probe(&room, &sshd, HOST).args(["--html"]).args([&nowhere]).run().exits(1).says("cannot write");
    assert!(passports(&room).is_empty());
}

/// Goal: Ctrl-C ends a probe with 130 and keeps nothing.
#[test]
fn an_interrupted_probe_keeps_nothing() {
    need!("sshd");
    let (room, sshd) = (Room::new(), Sshd::start());
    let mut running = probe(&room, &sshd, HOST).args(["--json"]).start();
    let begun = running.until(|running| running.stdout().windows(13).any(|text| text == b"network_point"));
    assert!(begun, "no point was measured: {}", running.stderr());
    running.signal(Signal::INT);
    let outcome = running.wait().exits(130).sane().says("stop");
    assert_eq!(last(&outcome)["status"], "interrupted");
    assert!(passports(&room).is_empty());
}

/// Goal: where the port is closed the way through ssh is measured as it is, and the report says that nothing
/// can be set.
#[test]
fn the_way_through_ssh_is_measured_as_it_is() {
    need!("netns", "sshd");
    let pair = NetnsPair::new();
    let (room, sshd) = (Room::new(), Sshd::start_as(FarHaul::Built, Some(&pair)));
    let host = crate::support::netns::FAR;
    // Neither direction is open.
    pair.close(&pair.near, 40111);
    let blocked = ["--port", "40111", "--via", FAR_BLOCKED];
    let haul = Haul::new(["probe", "network", "--json", "--time", "6s"]).args(blocked).by(&sshd);
    let haul = haul.args([host]).env("XDG_STATE_HOME", room.at("state")).near(&pair);
    let summary = last(&haul.run().sane().exits(0));
    assert!(summary["protect"] == "ssh" && summary["address"].is_null(), "{summary}");
    assert!(summary["recommended"]["rate"].as_f64() > Some(0.0), "{summary}");
    assert!(summary["remarks"].to_string().contains("through ssh"), "{summary}");
}

/// Goal: the way from the other host is measured by that host and told here: points with what its sockets
/// saw, as the way to it has them; its passport is another than that of the way there, and pulls start with
/// it.
#[test]
fn the_way_back_is_measured() {
    need!("sshd");
    let (room, sshd) = (Room::new(), Sshd::start());
    let outcome = probe(&room, &sshd, HOST).args(["--json", "--reverse"]).run().exits(0).sane();
    let events = outcome.events();
    assert_eq!((&events[0]["event"], &events[0]["address"]), (&"network_started".into(), &HOST.into()));
    let points: Vec<&Value> = events.iter().filter(|event| event["event"] == "network_point").collect();
    let summary = last(&outcome);
    assert!(points.len() >= 2 && summary["way"] == "from" && summary["status"] == "complete", "{summary}");
    assert_eq!(summary["points"].as_array().map(Vec::len), Some(points.len()));
    let number = |value: &Value| value.as_f64().expect("a number");
    for point in &points {
        assert!(point["congestion"] == "reno" && number(&point["rate"]) > 0.0, "{point}");
        assert!(number(&point["sent"]) > 0.5 * number(&point["bytes"]), "{point}");
        assert!(number(&point["rtt_median"]) > 0.0, "{point}");
    }
    assert!(number(&summary["mss"]) > 500.0 && number(&summary["cpu_far"]) > 0.0, "{summary}");
    assert!(summary["recommended"]["rate"].as_f64() > Some(0.0), "{summary}");

    let kept = passports(&room);
    assert!(kept.len() == 1 && kept[0].to_string_lossy().ends_with("-from.json"), "{kept:?}");
    let mut passport: Value = serde_json::from_slice(&read(&kept[0])).expect("the passport is JSON");
    passport["recommended"]["streams"] = 7.into();
    fs::write(&kept[0], serde_json::to_vec(&passport).expect("it is JSON")).expect("write the passport");
    let file = room.file("file", vec![7; 3_000_000]);
    let chosen = |copy: Haul, name: &str| {
        let outcome = copy.env("XDG_STATE_HOME", room.at("state")).run().sane().exits(0);
        assert_eq!(read(room.at(name)), read(&file));
        outcome.summary().0["chosen"].to_string()
    };
    let pull = Haul::cp([] as [&str; 0]).by(&sshd).args([sshd.path(&file), room.at("a").into_os_string()]);
    let chosen_by_pull = chosen(pull, "a");
    assert!(chosen_by_pull.contains("7 (from the network passport of"), "{chosen_by_pull}");
    let push =
        Haul::cp([] as [&str; 0]).by(&sshd).args([file.clone().into_os_string(), sshd.path(&room.at("b"))]);
    let chosen_by_push = chosen(push, "b");
    assert!(!chosen_by_push.contains("passport"), "{chosen_by_push}");
    let wrong =
        Haul::new(["probe", "network", "--reverse", "--congestion", "nonesuch"]).by(&sshd).args([HOST]);
    wrong.run().exits(1).says("'nonesuch' cannot be used").sane();
}
