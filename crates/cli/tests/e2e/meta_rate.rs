//! `--meta-rate`: both ends keep to it, say so, and end at once when they are stopped.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use rustix::process::Signal;

use crate::support::compare::{BELOW, assert_same};
use crate::support::way::{Way, contents};
use crate::support::{Room, age};

/// What an end says of its rate.
fn told(summary: &crate::support::run::Summary, end: &str) -> String {
    summary.chosen(&format!("metadata rate at the {end}")).to_owned()
}

/// Goal: each end hears of the rate, counts each entry, and says what it did; one end can have its own.
/// Method: each way, a tree of small and empty files, a link and directories, at a rate that holds nothing
/// up; then the same again, where nothing is made.
#[test]
fn both_ends_keep_to_it_and_say_so() {
    for way in Way::all() {
        let room = Room::new();
        for i in 0..30 {
            room.file(&format!("data/{}/{i}", i % 3), if i % 2 == 0 { "x" } else { "" });
            // A mode that no list may stand behind.
            let at = room.at(&format!("data/{}/{i}", i % 3));
            for (path, mode) in [(at.as_path(), 0o644), (at.parent().expect("above"), 0o755)] {
                fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
            }
        }
        std::os::unix::fs::symlink("0", room.at("data/link")).expect("symlink");
        age(&room.at("data"));
        let (data, sink) = (contents(&room.at("data")), room.dir("sink"));
        let rates = ["-r", "--meta-rate", "500k", "--meta-rate=sink=400k/s"];
        let first = way.cp(&rates, &[&data], &sink).run().sane().exits(0).summary();
        assert_same(&room.at("data"), &sink, BELOW);
        let operations = |told: &str| -> u64 {
            let words: Vec<&str> = told.split([' ', '(']).collect();
            let at = words.iter().position(|word| word.starts_with("operations")).expect("operations");
            words[at - 1].parse().expect("a number")
        };
        let source = told(&first, "source");
        assert!(source.starts_with("500000/s, as asked"), "{}: {source}", way.name());
        // 34 looks, a link, the source and three directories, and files opened for their data, of which half
        // have some.
        let walked = 34 + 1 + 4 * 2;
        let range = walked + 15 * 2..=walked + 30 * 2;
        assert!(range.contains(&operations(&source)), "{}: {source}", way.name());
        let of_sink = told(&first, "sink");
        assert!(of_sink.starts_with("400000/s, as asked"), "{}: {of_sink}", way.name());
        assert!(operations(&of_sink) >= 30 * 6 + 3 * 3, "{}: {of_sink}", way.name());
        let again = way.cp(&rates, &[&data], &sink).run().sane().exits(0).summary();
        assert_eq!(again.number("files"), 0, "{}", way.name());
        assert!(operations(&told(&again, "sink")) < operations(&of_sink), "{}", way.name());
        assert_eq!(operations(&told(&again, "source")), walked, "{}", way.name());
        let without = way.cp(&["-r", "--force"], &[&data], &sink).run().sane().exits(0).summary();
        assert_eq!(told(&without, "source") + &told(&without, "sink"), "", "{}", way.name());
    }
}

/// Goal: a stop ends a copy at once that would wait for its rate for hours, and what waits is not called
/// hung.
/// Method: one operation a second at either end and 4,000 files; SIGINT when it has begun.
#[test]
fn a_stop_ends_all_waits() {
    for way in Way::all() {
        for end in ["source", "sink"] {
            let room = Room::new();
            let data = room.dir("data");
            (0..4000).for_each(|i| fs::write(data.join(i.to_string()), "x").expect("write"));
            let rate = format!("--meta-rate={end}=1/s");
            let options = ["-r", rate.as_str(), "--io-deadline=1s"];
            let mut run = way.cp(&options, &[&data], room.dir("sink")).start();
            let events = |run: &crate::support::run::Running| {
                run.stdout().iter().filter(|byte| **byte == b'\n').count()
            };
            assert!(run.until(|run| events(run) > 3), "{}: {end}: it does not begin", way.name());
            run.signal_one(Signal::INT);
            let ended = run.wait().exits(130);
            let said = ended.describe();
            assert!(!said.contains("s for the "), "{}: {end}: {said}", way.name());
        }
    }
}
