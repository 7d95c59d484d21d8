//! Reading ahead into a file on flash while the sink stands still.
//!
//! Both ends are models: the source's reads take their time, so that storage is what the copy waits for, and
//! the sink's targets can be frozen.

use serde_json::Value;

use crate::support::compare::{ALL, assert_same};
use crate::support::model::Model;
use crate::support::run::Running;
use crate::support::way::Way;
use crate::support::{Room, tree};

const TARGETS: u32 = 4;
const FILES: u64 = 16;
const LEN: usize = 8 << 20;
/// Bytes of an object, of each end's buffers, and what is read before the sink freezes. All that is not
/// spilled is less than there is.
const OBJECT: u64 = 256 << 10;
const MEMORY: u64 = 32 << 20;
const BEFORE: u64 = 24 << 20;

/// All targets stand still while this is there: what hangs there could not be ended else.
struct Frozen<'a>(&'a Model);

impl<'a> Frozen<'a> {
    fn all(model: &'a Model) -> Frozen<'a> {
        (0..TARGETS).for_each(|target| model.freeze(target));
        Frozen(model)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        (0..TARGETS).for_each(|target| self.0.thaw(target));
    }
}

/// Objects that were read of all targets of the source, as the events say.
fn objects_read(run: &Running) -> u64 {
    let said = String::from_utf8_lossy(&run.stdout()).into_owned();
    let mut events = said.lines().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let last = events.find(|event| event["event"] == "targets" && event["end"] == "source");
    let rows = last.as_ref().and_then(|event| event["shown"].as_array());
    rows.into_iter().flatten().filter_map(|row| row["done"].as_u64()).sum()
}

/// Goal: while no target of the sink takes anything, storage at the source is read to its end, into the spill
/// file; when they go on, every byte arrives, and the report says when and how much lay there, whichever end
/// the source is.
#[test]
fn the_source_is_read_while_the_sink_stands_still() {
    need!("targets");
    const { assert!(BEFORE + 2 * MEMORY < FILES * LEN as u64) };
    for way in Way::all() {
        let room = Room::new();
        let slow =
            r#"{"read_rate":16000000,"write_rate":1000000000,"overhead_us":500,"depth":4,"jitter":0.1}"#;
        let slow = room.file("slow.json", slow);
        let (from, to) = (Model::up_as(TARGETS, slow.to_str().expect("UTF-8")), Model::up(TARGETS));
        let (data, sink) = (from.mount.join("data"), to.mount.join("sink"));
        for dir in [&data, &sink] {
            std::fs::create_dir(dir).expect("make a directory");
        }
        for at in 0..FILES {
            tree::random_file(&data.join(format!("f{at}")), &mut fastrand::Rng::with_seed(at), LEN);
        }
        let (flash, memory, object) = (room.dir("flash"), MEMORY.to_string(), OBJECT.to_string());
        let options =
            ["-r", "--memory", &memory, "--object-size", &object, "--spill-size", "256MiB", "--spill"];
        let options = [&options[..], &[flash.to_str().expect("UTF-8")]].concat();
        let mut run = way.cp(&options, &[&data], &sink).start();
        assert!(run.until(|run| objects_read(run) >= BEFORE / OBJECT), "{}: it ended", way.name());
        let frozen = Frozen::all(&to);
        let all = FILES * LEN as u64 / OBJECT;
        assert!(run.until(|run| objects_read(run) == all), "{}: it ended", way.name());
        drop(frozen);
        let ended = run.wait().sane().exits(0);
        assert_same(&data, &sink.join("data"), ALL);
        assert!(std::fs::read_dir(&flash).expect("list").next().is_none(), "the spill file has no name");
        let summary = ended.summary();
        let chosen = summary.0["chosen"].as_array().expect("choices");
        let said = chosen.iter().find(|choice| choice["name"] == "spill file").expect("it is told of");
        let text = said["value"].as_str().expect("text");
        assert!(text.contains(" stored in ") && text.contains(" s on for "), "{}: {text}", way.name());
    }
}
