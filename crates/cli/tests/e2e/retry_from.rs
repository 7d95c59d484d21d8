//! `--retry-from`: what an earlier run did not copy, and nothing else.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::process::Signal;

use crate::support::compare::{ALL, BELOW, assert_no_debris, assert_same};
use crate::support::run::Haul;
use crate::support::way::{Way, contents};
use crate::support::{Room, set_mode, tree};

/// The last line of a list of a run that tried all there is.
const END: &str = "{\"stage\":\"run\",\"errno\":0,\"text\":\"all was tried\",\"whole\":true}\n";

/// A tree, and a destination where directories stand at the names of two of its files.
fn half_way(room: &Room) {
    for file in ["a", "b/c", "b/d", "e/f/g", "e/f/h"] {
        room.file(&format!("data/{file}"), file);
    }
    for file in ["data/b/c", "data/e/f/g"] {
        room.dir(&format!("sink/{file}"));
    }
}

/// A list of these names.
fn listing(names: &[&str]) -> String {
    names.iter().map(|name| format!("{{\"path\":\"{name}\"}}\n")).collect::<String>() + END
}

fn option(name: &str, list: &Path) -> String {
    format!("--{name}={}", list.display())
}

/// Goal: what failed is copied again, and nothing else is looked at; the list may be renewed in its place.
/// Method: a run in which two files fail; then what is in their way goes, and so does what a whole run would
/// copy again; directories by name and by their contents.
#[test]
fn what_failed_is_copied_alone() {
    for way in Way::all() {
        let room = Room::new();
        half_way(&room);
        let (list, sink) = (room.at("list"), room.at("sink"));
        let copy = |more: &[&str]| {
            let options = [&["-r"][..], more].concat();
            way.cp(&options, &[room.at("data")], &sink).run().sane()
        };
        copy(&[&option("failures", &list)]).exits(3);
        assert_eq!(fs::read_to_string(&list).expect("a list").lines().count(), 3);
        for stands in ["data/b/c", "data/e/f/g"] {
            fs::remove_dir(sink.join(stands)).expect("rmdir");
        }
        fs::remove_file(sink.join("data/a")).expect("rm");
        let ended = copy(&[&option("retry-from", &list), &option("failures", &list)]).exits(0).summary();
        assert_eq!((ended.number("files"), ended.number("unchanged")), (2, 0), "{}", way.name());
        assert_eq!(fs::read_to_string(&list).expect("a list"), END);
        assert!(!sink.join("data/a").exists(), "it had not failed");
        assert_eq!(fs::read(sink.join("data/e/f/g")).expect("read"), b"e/f/g");
        // A list of nothing is nothing to do.
        let ended = copy(&[&option("retry-from", &list)]).exits(0).summary();
        assert_eq!((ended.number("files"), ended.number("dirs")), (0, 0));
        copy(&[]).exits(0);
        assert_same(&room.at("data"), &sink.join("data"), ALL);
        // Contents, whose paths have no directory of the source in them.
        let inner = room.dir("inner");
        let list = room.file("list", listing(&["e/f", "b/d"]));
        let words = ["-r", &option("retry-from", &list)];
        way.cp(&words, &[contents(&room.at("data"))], &inner).run().sane().exits(0);
        assert!(inner.join("e/f/h").exists() && inner.join("b/d").exists());
        assert!(!inner.join("a").exists() && !inner.join("b/c").exists());
        assert_no_debris(&inner);
    }
}

/// Goal: a list may name the destination itself, as `.`, and FIFOs; with -a the destination and directories
/// on the way become what their sources are, and no other entry is made.
/// Method: a list of both, one of the root alone, each way.
#[test]
fn the_root_and_special_files_are_tried_again() {
    for way in Way::all() {
        let room = Room::new();
        let data = room.dir("data");
        room.file("data/d/other", "x");
        for pipe in ["data/d/pipe", "data/pipe"] {
            let (fifo, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from(0o640));
            rustix::fs::mknodat(rustix::fs::CWD, room.at(pipe), fifo, mode, 0).expect("make a FIFO");
        }
        set_mode(&data, 0o711);
        set_mode(&data.join("d"), 0o710);
        let mode = |path: &Path| fs::symlink_metadata(path).expect("stat").mode() & 0o7777;
        for (list, pipes) in [(&["."][..], false), (&[".", "d/pipe"], true), (&["d/pipe"], true)] {
            let (list, sink) = (room.file("list", listing(list)), room.dir("sink"));
            set_mode(&sink, 0o700);
            let words = ["-a", &option("retry-from", &list)];
            let ended = way.cp(&words, &[contents(&data)], &sink).run().sane().exits(0).summary();
            assert_eq!(ended.number("specials"), u64::from(pipes), "{}", way.name());
            assert_eq!(mode(&sink), 0o711, "{}", way.name());
            assert_eq!(sink.join("d").exists(), pipes);
            if pipes {
                assert_eq!((mode(&sink.join("d")), mode(&sink.join("d/pipe"))), (0o710, 0o640));
                assert_eq!(fs::read_dir(sink.join("d")).expect("list").count(), 1);
            }
            assert!(!sink.join("pipe").exists());
            fs::remove_dir_all(&sink).expect("rm");
        }
    }
}

/// Goal: what is not there any more is told, by its name and as vanished.
#[test]
fn what_is_gone_is_told() {
    for way in Way::all() {
        let room = Room::new();
        half_way(&room);
        let sink = room.dir("sink2");
        let list = room.file("list", listing(&["data/b/gone", "data/no/such", "data/a"]));
        let words = ["-r", &option("retry-from", &list)];
        let ended = way.cp(&words, &[room.at("data")], &sink).run().sane().exits(4);
        let summary = ended.says("data/b/gone").says("data/no/such").says("not there any more").summary();
        assert_eq!((summary.number("files"), summary.number("failed")), (1, 2), "{}", way.name());
        assert_eq!(fs::read(sink.join("data/a")).expect("read"), b"a");
    }
}

/// Goal: a list that does not name all that failed is refused, as is what is none; nothing is copied then.
#[test]
fn lists_that_are_not_whole_are_refused() {
    let room = Room::new();
    half_way(&room);
    for (text, why) in [
        (
            "{\"stage\":\"run\",\"errno\":28,\"text\":\"no space\",\"whole\":false}\n",
            "before all was tried (no space)",
        ),
        ("data/a\n", "line 1 is none of a list"),
        (&listing(&["data/../../a"]), "no path at the destination"),
        // Of a haul that wrote no end, of a run that was killed, and of two runs.
        ("", "its end is missing"),
        ("{\"path\":\"data/a\"}\n", "its end is missing"),
        (&listing(&["data/a"]).repeat(2), "line 3 stands behind the end of the list of one run"),
    ] {
        let list = room.file("list", text);
        let sink = room.at("new");
        let copy = Haul::cp(["-r", &option("retry-from", &list)]).args([room.at("data"), sink.clone()]);
        copy.run().sane().exits(2).says(why);
        assert!(!sink.join("data").exists(), "{text}");
    }
    let missing = option("retry-from", &room.at("none"));
    Haul::cp(["-r", &missing])
        .args([room.at("data"), room.at("new")])
        .run()
        .sane()
        .exits(2)
        .says("No such file");
}

/// Goal: the list of a run that was stopped or killed does not name all that was not copied, and is refused.
/// Method: each in the middle of a large file, with one entry that fails; then the command itself.
#[test]
fn lists_of_runs_without_an_end_are_refused() {
    for (signal, why) in [(Signal::TERM, "(it was stopped)"), (Signal::KILL, "its end is missing")] {
        let room = Room::new();
        let (data, sink, list) = (room.dir("data"), room.dir("sink"), room.at("list"));
        room.file("data/clash", "x");
        room.dir("sink/clash");
        tree::plain(&data, 2, 0, 32 << 20);
        let copy = |more: &[&str]| Haul::cp(["-r"]).args(more).args([contents(&data)]).args([&sink]);
        let mut run = copy(&["--rate=4MB/s", &option("failures", &list)]).start();
        let begun = || fs::read_to_string(&list).is_ok_and(|told| told.contains("clash"));
        assert!(run.until(|_| begun()), "it was over too early: {}", run.stderr());
        run.signal(signal);
        let ended = run.wait();
        assert_eq!(ended.was_killed(), signal == Signal::KILL, "{}", ended.describe());
        let again = copy(&[&option("retry-from", &list)]).run().sane().exits(2);
        again.says(why).says("run the same command without --retry-from");
        fs::remove_dir(sink.join("clash")).expect("rmdir");
        copy(&[]).run().sane().exits(0);
        assert_same(&data, &sink, BELOW);
    }
}

/// Goal: a list that is renewed in its place stays as it is until the new one is whole: behind a run that was
/// stopped or killed the same command goes on.
/// Method: a list of two files, of which one fails, and one is large; each signal in the middle of that.
#[test]
fn lists_are_renewed_when_the_new_one_is_whole() {
    for signal in [Signal::TERM, Signal::KILL] {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        room.file("data/clash", "x");
        tree::plain(&data, 1, 0, 32 << 20);
        tree::settle(&data);
        let mut names: Vec<String> = fs::read_dir(&data)
            .expect("list")
            .map(|entry| entry.expect("entry").file_name().into_string().expect("UTF-8"))
            .collect();
        names.sort();
        let text = listing(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let list = room.file("list", &text);
        room.dir("sink/clash");
        let copy = |more: &[&str]| {
            let lists = [option("retry-from", &list), option("failures", &list)];
            Haul::cp(["-a", "-v"]).args(more).args(lists).args([contents(&data)]).args([&sink])
        };
        let mut run = copy(&["--rate=4MB/s"]).start();
        assert!(
            run.until(|run| String::from_utf8_lossy(&run.stdout()).contains("\"failed\"")),
            "it was over too early: {}",
            run.stderr()
        );
        run.signal(signal);
        let ended = run.wait();
        assert_eq!(ended.was_killed(), signal == Signal::KILL, "{}", ended.describe());
        assert_eq!(fs::read_to_string(&list).expect("a list"), text, "{}", ended.describe());
        let ended = copy(&[]).run().sane().exits(3);
        let left = fs::read_to_string(&list).expect("a list");
        assert!(left.lines().count() == 2 && left.contains("clash"), "{left}: {}", ended.describe());
        fs::remove_dir(sink.join("clash")).expect("rmdir");
        copy(&[]).run().sane().exits(0);
        assert_eq!(fs::read_to_string(&list).expect("a list"), END);
        assert_same(&data, &sink, ALL);
    }
}

/// Goal: what is no regular file is refused, and not waited for.
#[test]
fn lists_are_regular_files() {
    let room = Room::new();
    half_way(&room);
    let (fifo, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from(0o640));
    rustix::fs::mknodat(rustix::fs::CWD, room.at("pipe"), fifo, mode, 0).expect("make a FIFO");
    for list in [room.at("pipe"), room.at("data"), "/dev/null".into()] {
        let copy = Haul::cp(["-r", &option("retry-from", &list)]).args([room.at("data"), room.at("new")]);
        copy.run().sane().exits(2).says("it is no regular file");
    }
}

/// Goal: with -H a file of which some names alone are in the list is told, for it may be parted; a whole run
/// joins its names again.
/// Method: one of three names fails; then all three of another file.
#[test]
fn files_with_names_beside_the_list_are_told() {
    for way in Way::all() {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        for set in ["a", "z"] {
            let first = room.file(&format!("data/{set}1"), set);
            for other in ["2", "3"] {
                fs::hard_link(&first, room.at(&format!("data/{set}{other}"))).expect("link");
            }
        }
        tree::settle(&data);
        for stands in ["a2", "z1", "z2", "z3"] {
            room.dir(&format!("sink/{stands}"));
        }
        let list = room.at("list");
        let copy = |more: &[&str]| {
            let options = [&["-aH"][..], more].concat();
            way.cp(&options, &[contents(&data)], &sink).run().sane()
        };
        copy(&[&option("failures", &list)]).exits(3);
        for stands in ["a2", "z1", "z2", "z3"] {
            fs::remove_dir(sink.join(stands)).expect("rmdir");
        }
        let ended =
            copy(&[&option("retry-from", &list)]).exits(3).says("2 of the 3 names of its file").says("a2");
        assert_eq!(ended.summary().number("failed"), 1, "{}", ended.describe());
        let inode = |name: &str| fs::metadata(sink.join(name)).expect("stat").ino();
        assert!(inode("z1") == inode("z2") && inode("z2") == inode("z3"), "{}", way.name());
        copy(&[]).exits(0);
        assert!(inode("a1") == inode("a2") && inode("a2") == inode("a3"), "{}", way.name());
    }
}
