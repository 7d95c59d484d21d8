//! Who is slow: the storage targets of both ends in `haul top`, in events, in the report and beside the
//! progress line.
//!
//! The targets are a model that can be frozen; a copy whose files lie there lasts until it is thawed.

use std::path::PathBuf;

use serde_json::Value;

use crate::support::compare::{ALL, assert_same};
use crate::support::model::Model;
use crate::support::run::{Haul, Outcome, Running};
use crate::support::way::Way;
use crate::support::{Room, set_mode, tree};

/// Files, which lie on the targets in turns, and the size of each: some objects, and an odd end.
const FILES: u64 = 12;
const LEN: usize = (3 << 20) + 12_345;
/// Targets, and the one that is frozen.
const TARGETS: u64 = 4;
const FROZEN: (u32, &str) = (2, "OST0002");
/// So many events that tell of it: more than two seconds of them.
const EVENTS: usize = 6;

/// A tree to copy, from the model or to it.
struct Bench {
    room: Room,
    way: Way,
    model: Model,
    data: PathBuf,
    sink: PathBuf,
}

impl Bench {
    /// `end`: the one that has the model.
    fn new(way: Way, end: &str) -> Bench {
        let (room, model) = (Room::new(), Model::up(TARGETS as u32));
        set_mode(&room.dir("run"), 0o700);
        let (data, sink) = match end {
            "source" => (model.mount.join("data"), room.dir("sink")),
            _ => (room.at("data"), model.mount.join("sink")),
        };
        for dir in [&data, &sink] {
            std::fs::create_dir_all(dir).expect("make a directory");
        }
        for at in 0..FILES {
            tree::random_file(&data.join(format!("f{at}")), &mut fastrand::Rng::with_seed(at), LEN);
        }
        model.freeze(FROZEN.0);
        Bench { room, way, model, data, sink }
    }

    fn start(&self) -> Running {
        let haul = self.way.cp(&["-r", "--object-size", "1MiB"], &[&self.data], &self.sink);
        haul.env("XDG_RUNTIME_DIR", self.room.at("run")).start()
    }

    fn top(&self, line: &str) -> Outcome {
        let words = ["top", "--once"].into_iter().chain(line.split_whitespace());
        Haul::new(words).env("XDG_RUNTIME_DIR", self.room.at("run")).run().sane()
    }

    /// What `haul top` tells programs; null if there is no copy.
    fn told(&self) -> Value {
        let said = self.top("--json");
        serde_json::from_slice(&said.stdout).unwrap_or_default()
    }

    /// Waits until somebody who looks sees that a target of this end hangs; what he sees.
    fn hangs(&self, run: &mut Running, end: &str) -> Value {
        let mut told = Value::Null;
        let hangs = run.until(|_| {
            told = self.told();
            told[end]["table"]["hung"] == 1
        });
        assert!(hangs, "{}: the copy ended, and no target hung: {told}\n{}", self.way.name(), run.stderr());
        told
    }
}

/// The `targets` events so far.
fn tables(stdout: &[u8]) -> Vec<Value> {
    let lines = String::from_utf8_lossy(stdout).into_owned();
    // The last line may be half of one.
    let events = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    events.filter(|event| event["event"] == "targets").collect()
}

/// Goal: a target that is frozen is named as such at whichever end it is, near or far: by `haul top` for
/// people and programs, in events, and in the report; the other end, which has one target, has no events; and
/// the copy is right.
/// Method: over each way a copy from or to the model; it goes on when all that was seen.
#[test]
fn a_frozen_target_is_named_at_whichever_end() {
    need!("targets");
    for way in Way::all() {
        let end = if matches!(way, Way::Push(_)) { "sink" } else { "source" };
        let name = way.name();
        let bench = Bench::new(way, end);
        let mut run = bench.start();
        let told = bench.hangs(&mut run, end);
        let table = &told[end]["table"];
        assert_eq!((table["end"].as_str(), table["targets"].as_u64()), (Some(end), Some(TARGETS)), "{name}");
        let rows = table["shown"].as_array().expect("rows");
        assert_eq!(rows.len() as u64, TARGETS);
        assert_eq!(
            (rows[0]["name"].as_str(), rows[0]["state"].as_str()),
            (Some(FROZEN.1), Some("hung")),
            "{told}"
        );
        assert!(rows[0]["in_flight"].as_u64() > Some(0), "{told}");
        assert!(rows[1..].iter().all(|row| row["name"] != FROZEN.1 && row["state"] != "hung"), "{told}");
        assert!(rows[1..].iter().any(|row| row["done"].as_u64() > Some(0)), "{told}");
        assert_eq!(told["job"]["name"], "data");
        let text = bench.top("data").exits(0);
        let text = String::from_utf8(text.stdout).expect("UTF-8");
        let line = |part: &str| text.lines().find(|line| line.contains(part)).unwrap_or_default();
        assert!(line(FROZEN.1).contains(" hung "), "{name}:\n{text}");
        assert!(
            line("storage targets: ").starts_with(&format!("{end}: 4 storage targets: 1 hung, ")),
            "{text}"
        );
        let said = run
            .until(|run| tables(&run.stdout()).iter().filter(|event| event["hung"] == 1).count() >= EVENTS);
        assert!(said, "{name}: the copy ended before its events told of it");
        bench.model.thaw(FROZEN.0);
        let ended = run.wait().sane().exits(0);
        assert_same(&bench.data, &bench.sink.join("data"), ALL);
        for event in tables(&ended.stdout) {
            assert_eq!(event["end"], end, "{name}: {event}");
            let hung = event["shown"].as_array().expect("rows").iter().filter(|row| row["state"] == "hung");
            hung.for_each(|row| assert_eq!(row["name"], FROZEN.1, "{event}"));
        }
        let summary = ended.summary();
        let slow = &summary.0["slow_targets"][0];
        assert_eq!((slow["end"].as_str(), slow["name"].as_str()), (Some(end), Some(FROZEN.1)), "{slow}");
        assert!(slow["hung_seconds"].as_f64() > Some(0.0), "{name}: {slow}");
        ended.says(&format!("the {end}'s storage target {} hung for ", FROZEN.1));
    }
}

/// Goal: without a name the only copy is meant; where there is none, or several, that is said, and which.
#[test]
fn the_only_copy_is_meant() {
    need!("targets");
    let bench = Bench::new(Way::Here, "source");
    bench.top("").exits(1).says("no copy of this user runs");
    let mut run = bench.start();
    assert_eq!(bench.hangs(&mut run, "source")["job"]["name"], "data");
    bench.top("other").exits(1).says("no job other");
    // Its end has no targets that are told apart, and says so.
    let text = bench.top("da").exits(0);
    assert!(String::from_utf8_lossy(&text.stdout).contains("sink: no storage targets are told apart"));
    let second = bench.room.dir("second");
    let to = |dir: &str| bench.way.cp(&["-r"], &[&bench.data], bench.room.at(dir));
    let other = to("second").env("XDG_RUNTIME_DIR", bench.room.at("run")).start();
    let both = run.until(|_| {
        let said = bench.top("");
        said.status.code() == Some(1) && String::from_utf8_lossy(&said.stdout).lines().count() == 2
    });
    assert!(both, "both are listed");
    bench.top("").says("several copies run");
    bench.model.thaw(FROZEN.0);
    other.wait().sane().exits(0);
    run.wait().sane().exits(0);
    assert_same(&bench.data, &second.join("data"), ALL);
}

/// Goal: `--watch` says what to use where there is no terminal, and the copy runs on; on a terminal the table
/// stands below the progress line.
#[test]
fn the_table_needs_a_terminal() {
    need!("script");
    let room = Room::new();
    let file = room.file("plain", vec![7; 3 << 20]);
    let copy = |to: &str| Haul::new(["cp", "--watch"]).args([&file, &room.at(to)]);
    copy("one").run().sane().exits(0).says("`haul top` shows the storage targets");
    let shown = copy("two").args(["--rate", "1MB/s"]).on_a_terminal().run().exits(0);
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(text.contains("source: one storage target") && text.contains("\x1b[K\r\n  target "), "{text:?}");
    assert!(!text.contains("haul top"), "{text:?}");
    for to in ["one", "two"] {
        assert!(std::fs::read(room.at(to)).expect("read") == vec![7; 3 << 20]);
    }
}
