//! `haul layout`: where files lie, for people and for programs.

use std::fs::File;

use serde_json::Value;

use crate::support::Room;
use crate::support::run::{Haul, Outcome};

/// One JSON object a line.
fn lines_of(outcome: &Outcome) -> Vec<Value> {
    let text = std::str::from_utf8(&outcome.stdout).expect("stdout is UTF-8");
    text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

/// Goal: a file on local storage is one component on one target, in text and JSON; each file has its line,
/// names that are no UTF-8 come through, and what is no regular file is an error beside the others.
#[test]
fn files_are_shown_with_their_targets() {
    let room = Room::new();
    let file = room.file("plain", vec![7; 70_000]);
    let odd = room.at(std::str::from_utf8(b"a\nb").expect("ASCII"));
    File::create(&odd).expect("make a file");
    let text = Haul::new(["layout"]).args([&file, &odd]).run().exits(0);
    let text = String::from_utf8(text.stdout).expect("stdout is UTF-8");
    assert!(
        text.contains("plain: flat, 70000 bytes\n  0..end  ") && text.contains("a\\nb: flat, 0 bytes"),
        "{text}"
    );
    let lines = Haul::new(["layout", "--json"]).args([&file, &odd]).run().exits(0);
    let lines = lines_of(&lines);
    assert_eq!(lines.len(), 2);
    let (first, second) = (&lines[0], &lines[1]);
    assert_eq!((first["path"].as_str(), first["size"].as_u64()), (file.to_str(), Some(70_000)));
    assert_eq!((second["path"].as_str(), second["size"].as_u64()), (odd.to_str(), Some(0)));
    for line in &lines {
        assert_eq!(line["provider"], "flat", "{line}");
        let components = line["components"].as_array().expect("components");
        assert_eq!(components.len(), 1);
        let one = &components[0];
        assert!(one["start"] == 0 && one["end"].is_null() && one["stripe_size"].is_null(), "{line}");
        assert!(one["stripe_count"] == 1 && one["targets"].as_array().map(Vec::len) == Some(1), "{line}");
    }
    // Both lie on one device.
    assert_eq!(first["components"][0]["targets"], second["components"][0]["targets"]);
    let mixed = Haul::new(["layout", "--json"]).args([&room.at("none"), &file]).run().exits(1).says("none");
    assert_eq!(lines_of(&mixed).len(), 1, "the other is shown");
    Haul::new(["layout"]).args([room.dir("dir")]).run().exits(1);
    Haul::new(["layout"]).run().exits(2);
}
