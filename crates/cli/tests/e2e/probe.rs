//! `haul probe`: real storage is measured for a moment, reported in every form, kept, matched and shown.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::mount::Tmpfs;
use crate::support::run::{Haul, Outcome};
use crate::support::{Room, read};

/// A small probe of `dir`, with its state in the room.
fn probe(room: &Room, dir: &Path) -> Haul {
    let limits = ["--size", "16MiB", "--time", "3s", "--max-bytes", "1GiB", "--request-size", "256KiB,1MiB"];
    let haul = Haul::new(["probe", "storage"]).args([dir]).args(limits).args(["--depth", "1,4"]);
    haul.env("XDG_STATE_HOME", room.at("state"))
}

fn passports(room: &Room) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(room.at("state/haul/passports")) else { return Vec::new() };
    entries.map(|entry| entry.expect("list the passports").path()).collect()
}

#[track_caller]
fn assert_empty(dir: &Path) {
    let left: Vec<_> = fs::read_dir(dir).expect("list a directory").collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

fn stdout(outcome: &Outcome) -> String {
    String::from_utf8(outcome.stdout.clone()).expect("stdout is UTF-8")
}

/// Goal: the events begin with `started`, have a point per measurement, and end with the best of both
/// directions.
#[test]
fn events_end_with_the_best_settings() {
    let room = Room::new();
    let dir = room.dir("data");
    let outcome = probe(&room, &dir).args(["--json"]).run().exits(0).sane().says("at most");
    let events = outcome.events();
    assert!(events[0]["event"] == "started" && events[0]["bytes_max"].as_u64() <= Some(1 << 30));
    let points = events.iter().filter(|event| event["event"] == "point").count();
    assert!(points > 0 && points + 2 == events.len(), "{}", outcome.describe());
    let summary = outcome.summary().0;
    assert_eq!(summary["status"], "complete");
    for best in ["read_best", "write_best"] {
        let best = &summary[best];
        assert!(best["rate"].as_f64() > Some(0.0), "{}", outcome.describe());
        assert!([256 << 10, 1 << 20].contains(&best["request_size"].as_u64().expect("a size")));
        assert!([1, 4].contains(&best["depth"].as_u64().expect("a depth")));
        assert!(["strict", "serial", "loose", "none"].contains(&best["order"].as_str().expect("an order")));
        assert!(["direct", "buffered"].contains(&best["io"].as_str().expect("a way of I/O")));
    }
    // What was measured several times is one point of the summary.
    let settings = summary["points"].as_array().expect("points").len();
    assert!((1..=points).contains(&settings), "{}", outcome.describe());
    assert_empty(&dir);
}

/// Goal: the reports into files are whole, and the page asks nothing of anybody.
#[test]
fn reports_are_written_into_files() {
    let room = Room::new();
    let dir = room.dir("<script>alert(1)<");
    let files = ["page.html", "points.csv", "probe.json"].map(|name| room.at(name));
    let args = [&files[0], &files[1], &files[2]].map(|path| path.as_os_str().to_owned());
    let [html, csv, json] = args;
    let outcome = probe(&room, &dir)
        .args(["--no-save", "--html"])
        .args([html])
        .args(["--csv"])
        .args([csv])
        .args(["--save-as"])
        .args([json])
        .run()
        .exits(0)
        .sane();
    let table = stdout(&outcome);
    assert!(table.contains("best read: ") && table.contains("best write: "), "{table}");
    let page = String::from_utf8(read(&files[0])).expect("the page is UTF-8");
    for word in ["<script", "http:", "https:", "src=", "href=", "url(", "@import"] {
        assert!(!page.contains(word), "{word}");
    }
    assert!(page.contains("&lt;script&gt;") && page.contains("<figure>") && page.ends_with("</html>\n"));
    let probe: Value = serde_json::from_slice(&read(&files[2])).expect("the saved probe is JSON");
    let points = probe["points"].as_array().expect("points").len();
    let csv = String::from_utf8(read(&files[1])).expect("the CSV is UTF-8");
    assert_eq!(csv.split_terminator("\r\n").count(), points + 1);
    assert!(passports(&room).is_empty(), "--no-save keeps nothing");
    assert_empty(&dir);
    let mut left: Vec<_> =
        fs::read_dir(room.at("")).expect("list the room").flatten().map(|e| e.file_name()).collect();
    left.sort();
    assert_eq!(left, ["<script>alert(1)<", "page.html", "points.csv", "probe.json"]);
}

/// Goal: what would not be written at the end is refused at the start.
#[test]
fn reports_that_cannot_be_written_are_refused_at_once() {
    let room = Room::new();
    let dir = room.dir("data");
    let nowhere = room.at("no/page.html");
    let outcome = probe(&room, &dir).args(["--html"]).args([&nowhere]).run().exits(1).says("cannot write");
    assert!(outcome.stdout.is_empty());
    probe(&room, &dir).args(["--json", "--csv", "-"]).run().exits(2);
    assert_empty(&dir);
    assert!(passports(&room).is_empty());
}

/// Goal: a report that does not fit is said, leaves the older one as it was, and does not hide the result.
#[test]
fn reports_that_do_not_fit_leave_the_older_one() {
    need!("root", "tmpfs");
    let room = Room::new();
    let (dir, small) = (room.dir("data"), room.dir("small"));
    let _small = Tmpfs::mount(&small, "size=16k");
    let page = small.join("page.html");
    fs::write(&page, "old").expect("write a file");
    let outcome =
        probe(&room, &dir).args(["--json", "--html"]).args([&page]).run().exits(1).says("cannot write");
    let summary = outcome.summary().0;
    assert!(summary["status"] == "failed" && summary["read_best"].is_object(), "{summary}");
    assert_eq!(read(&page), b"old");
    assert_eq!(fs::read_dir(&small).expect("list a directory").count(), 1);
}

/// Goal: too little space is refused before anything is written, and so is what is no directory.
#[test]
fn too_little_space_is_refused() {
    need!("root", "tmpfs");
    let room = Room::new();
    let dir = room.dir("small");
    let _small = Tmpfs::mount(&dir, "size=8m");
    let outcome = probe(&room, &dir).args(["--json"]).run().exits(1).says("space").sane();
    if let Some(last) = outcome.events().last() {
        assert_eq!(last["status"], "failed");
    }
    assert_empty(&dir);
    Haul::new(["probe", "storage"]).args([room.file("file", "x")]).run().exits(1).says("not a directory");
}

/// Goal: Ctrl-C ends a probe with 130, and nothing of it stays.
#[test]
fn an_interrupted_probe_leaves_nothing() {
    let room = Room::new();
    let dir = room.dir("data");
    let long = ["--size", "64MiB", "--time", "100s", "--max-bytes", "64GiB", "--full", "--json"];
    let mut running = Haul::new(["probe", "storage"])
        .args([&dir])
        .args(long)
        .env("XDG_STATE_HOME", room.at("state"))
        .start();
    let begun = running.until(|running| running.stdout().windows(7).any(|text| text == b"\"point\""));
    assert!(begun, "no point was measured: {}", running.stderr());
    running.signal(Signal::INT);
    let outcome = running.wait().exits(130).sane().says("stop");
    let summary = outcome.summary().0;
    assert!(
        summary["status"] == "interrupted" && summary["exit_code"] == 130 && summary["read_best"].is_null()
    );
    assert_empty(&dir);
    assert!(passports(&room).is_empty());
}

/// Goal: any file that holds a probe can be paired; what is wrong with another is said.
/// Method: a file of `--save-as` with the output of `--json`, then files that hold no probe.
#[test]
fn saved_probes_are_paired() {
    let room = Room::new();
    let dir = room.dir("data");
    let saved = room.at("a.json");
    probe(&room, &dir).args(["--no-save", "--save-as"]).args([&saved]).run().exits(0);
    let lines = room.file("b.json", probe(&room, &dir).args(["--no-save", "--json"]).run().exits(0).stdout);
    let text = stdout(&Haul::new(["probe", "pair"]).args([&saved, &lines]).run().exits(0).sane());
    assert!(text.contains("source") && text.contains("sink") && text.contains("expect"), "{text}");
    let outcome = Haul::new(["probe", "pair", "--json"]).args([&saved, &lines]).run().exits(0);
    let pairing = outcome.events().pop().expect("one object");
    assert!(pairing["event"] == "pairing" && pairing["rate"].as_f64() > Some(0.0), "{pairing}");
    assert!(["read", "write"].contains(&pairing["limited_by"].as_str().expect("a direction")));
    for content in ["", "{}", "no json\n", "{\"format\": 1}", "[[[["] {
        let wrong = room.file("wrong.json", content);
        Haul::new(["probe", "pair"])
            .args([&saved, &wrong])
            .run()
            .exits(1)
            .says("wrong.json holds no probe")
            .sane();
    }
    let newer = room.file("newer.json", "{\"format\": 99}");
    Haul::new(["probe", "pair"]).args([&newer, &saved]).run().exits(1).says("newer haul").sane();
    Haul::new(["probe", "pair"]).args([&saved, &room.at("none")]).run().exits(1).says("cannot read");
}

/// Goal: a probe is kept as its storage's passport and shown from there, in every form.
#[test]
fn passports_are_kept_and_shown() {
    let room = Room::new();
    let dir = room.dir("data");
    let show = || Haul::new(["probe", "show"]).env("XDG_STATE_HOME", room.at("state"));
    assert!(stdout(&show().run().exits(0)).contains("haul probe storage"));
    show().args([&dir]).run().exits(1).says("no storage passport");
    probe(&room, &dir).run().exits(0);
    assert_eq!(passports(&room).len(), 1);
    let list = stdout(&show().run().exits(0).sane());
    assert!(list.lines().count() >= 2 && list.contains("/s"), "{list}");
    // Its age, and with it the columns, may be another a moment later.
    let without_age = |list: &str| -> Vec<Vec<String>> {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let ages = ["second", "seconds"];
        let timeless = |word: &String| !ages.contains(&word.as_str()) && word.parse::<u32>().is_err();
        list.lines().map(|line| words(line).into_iter().filter(timeless).collect()).collect()
    };
    let all = stdout(&show().args(["--all"]).run().exits(0));
    assert_eq!(without_age(&list), without_age(&all));
    assert!(stdout(&show().args([&dir]).run().exits(0)).contains("best read: "));
    let passport = show().args(["--json"]).run().exits(0).events().pop().expect("one passport");
    assert!(passport["event"] == "passport" && passport["probe"]["write_best"]["rate"].as_f64() > Some(0.0));
    let page = room.at("page.html");
    for args in [vec![], vec![dir.as_path()]] {
        show().args(args).args(["--html"]).args([&page]).run().exits(0);
        assert!(String::from_utf8(read(&page)).expect("the page is UTF-8").contains("<figure>"));
    }
    // A passport can be paired as it lies there.
    Haul::new(["probe", "pair"]).args([&passports(&room)[0], &passports(&room)[0]]).run().exits(0);
    // One that is damaged is named, and does not hide the others.
    fs::write(room.at("state/haul/passports/broken.json"), "{").expect("write a file");
    let outcome = show().run().exits(0).says("broken.json");
    assert_eq!(without_age(&stdout(&outcome)), without_age(&list));
}
