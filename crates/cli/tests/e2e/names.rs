//! Where things go: by the text of the command only, so that a rerun never nests.

use std::ffi::OsString;
use std::fs;

use crate::support::compare::{BELOW, assert_no_debris, assert_same, snapshot};
use crate::support::model::Model;
use crate::support::run::Haul;
use crate::support::sshd::Sshd;
use crate::support::way::Way;
use crate::support::{Room, read, set_mode, tree};

/// One line of the table of names.
struct Case {
    sources: &'static [&'static str],
    destination: &'static str,
    /// What lies there before.
    before: &'static [&'static str],
    /// The files that must be there afterwards, below the room.
    expected: &'static [&'static str],
}

const CASES: &[Case] = &[
    Case { sources: &["data"], destination: "new", before: &[], expected: &["new/data/f", "new/data/sub/g"] },
    Case {
        sources: &["data"],
        destination: "new/",
        before: &[],
        expected: &["new/data/f", "new/data/sub/g"],
    },
    Case {
        sources: &["data"],
        destination: "old",
        before: &["old/"],
        expected: &["old/data/f", "old/data/sub/g"],
    },
    Case { sources: &["data/"], destination: "new", before: &[], expected: &["new/f", "new/sub/g"] },
    Case { sources: &["data/"], destination: "old/", before: &["old/"], expected: &["old/f", "old/sub/g"] },
    Case { sources: &["data/."], destination: "new", before: &[], expected: &["new/f", "new/sub/g"] },
    Case { sources: &["data/sub"], destination: "new", before: &[], expected: &["new/sub/g"] },
    Case { sources: &["data//"], destination: "new", before: &[], expected: &["new/f", "new/sub/g"] },
    Case { sources: &["one"], destination: "new", before: &[], expected: &["new"] },
    Case { sources: &["one"], destination: "old", before: &["old/"], expected: &["old/one"] },
    Case { sources: &["one"], destination: "new/", before: &[], expected: &["new/one"] },
    Case { sources: &["one"], destination: "new/.", before: &[], expected: &["new/one"] },
    Case { sources: &["one"], destination: "old/.", before: &["old/"], expected: &["old/one"] },
    Case { sources: &["one"], destination: "old/deep/..", before: &["old/deep/"], expected: &["old/one"] },
    Case {
        sources: &["data"],
        destination: "new/.",
        before: &[],
        expected: &["new/data/f", "new/data/sub/g"],
    },
    Case { sources: &["one"], destination: "taken", before: &["taken"], expected: &["taken"] },
    Case {
        sources: &["one", "two"],
        destination: "old",
        before: &["old/"],
        expected: &["old/one", "old/two"],
    },
    Case {
        sources: &["one", "data"],
        destination: "new/",
        before: &[],
        expected: &["new/one", "new/data/f"],
    },
    Case { sources: &["one", "data/"], destination: "new/", before: &[], expected: &["new/one", "new/f"] },
];

/// Goal: each command puts its files where its text says, and the same command again puts them there again.
/// Method: the table above, on this host and in part over ssh, each line twice; the files that are there, no
/// more and no fewer.
#[test]
fn names_follow_the_text_and_reruns_never_nest() {
    for way in Way::all() {
        // Over ssh a third of the table: a run costs a login there, and the mapping is the same code.
        let step = if matches!(way, Way::Here) { 1 } else { 3 };
        for case in CASES.iter().step_by(step) {
            let room = furnished(case);
            let sources: Vec<_> = case.sources.iter().map(|source| typed(&room, source)).collect();
            let mut listed = Vec::new();
            for _ in 0..2 {
                // Without syncs: there are many runs, and names do not depend on them.
                way.cp(&["-r", "--durability=none"], &sources, typed(&room, case.destination))
                    .run()
                    .sane()
                    .exits(0);
                let context = format!("{} {:?} -> {}", way.name(), case.sources, case.destination);
                for expected in case.expected {
                    let path = room.at(expected);
                    assert!(path.is_file(), "{context}: no {expected}");
                    let source =
                        expected.rsplit('/').next().filter(|name| ["f", "g", "one", "two"].contains(name));
                    assert_eq!(read(&path), source.unwrap_or("one").as_bytes(), "{context}: {expected}");
                }
                listed.push(files(&room, case.destination));
            }
            assert_eq!(listed[0], listed[1], "{} {:?} nests", way.name(), case.sources);
        }
    }
}

/// Goal: above a directory that is not there is no destination, and none is made.
/// Method: a file and a tree to `absent/..`.
#[test]
fn above_nothing_is_no_destination() {
    let room = Room::new();
    let sources = [room.file("one", "one"), room.dir("data")];
    let before = snapshot(&room.at(""));
    for source in sources {
        let ended = Way::Here.cp(&["-r"], &[source], typed(&room, "absent/..")).run().sane().exits(1);
        assert_eq!(snapshot(&room.at("")), before, "{}", ended.describe());
    }
}

/// Goal: `haul cp a* DST` takes as many names as a shell makes of the star, on every way.
/// Method: 5,000 empty files, each named; more than a message of the wire holds.
#[test]
fn as_many_sources_as_a_star_makes_are_copied() {
    let room = Room::new();
    room.dir("src");
    let sources: Vec<_> = (0..5000).map(|i| room.file(&format!("src/a{i:04}"), "")).collect();
    for (way, n) in Way::all().into_iter().zip(0..) {
        let sink = room.dir(&format!("sink{n}"));
        way.cp(&["--durability=none"], &sources, &sink).run().sane().exits(0);
        assert_same(&room.at("src"), &sink, BELOW);
    }
}

/// Goal: two sources that map to one name are refused before anything is made.
/// Method: two files and two directories of one name from different places.
#[test]
fn sources_that_clash_are_refused() {
    for way in Way::all() {
        let room = Room::new();
        for dir in ["a/x", "b/x"] {
            room.dir(dir);
            room.file(&format!("{dir}/f"), dir);
        }
        room.dir("sink");
        let before = snapshot(&room.at("sink"));
        for pair in [["a/x", "b/x"], ["a/x/f", "b/x/f"]] {
            let sources = pair.map(|source| room.at(source));
            let ended = way.cp(&["-r"], &sources, room.at("sink")).run().sane();
            assert_eq!(ended.status.code(), Some(2), "{}", ended.describe());
            assert_eq!(snapshot(&room.at("sink")), before, "{}", ended.describe());
        }
    }
}

/// Goal: a directory without `-r` or `-a` is an error that names the option, not a silent nothing.
/// Method: one such command.
#[test]
fn a_directory_needs_recursive() {
    let room = Room::new();
    room.dir("data");
    room.file("data/f", "x");
    let ended = Way::Here.cp(&[], &[room.at("data")], room.at("sink")).run().sane().says("-r");
    assert_eq!(ended.status.code(), Some(2), "{}", ended.describe());
    assert!(!room.at("sink/data/f").exists());
}

/// Goal: a colon before the first slash means a host, unless a local file has that very name.
/// Method: a local file `a:b` as source: an error that suggests `./`; with `./` it is copied.
#[test]
fn a_local_file_with_a_colon_is_not_a_host() {
    let room = Room::new();
    room.file("a:b", "colon");
    Haul::cp(["a:b", "copy"]).within(&room.at("")).run().sane().exits(2).says("./");
    assert!(!room.at("copy").exists());
    Haul::cp(["./a:b", "copy"]).within(&room.at("")).run().sane().exits(0);
    assert_eq!(read(room.at("copy")), b"colon");
}

/// Goal: from host to host is refused in words, before any ssh is run.
/// Method: an ssh that would leave a file behind.
#[test]
fn host_to_host_is_refused() {
    let room = Room::new();
    let trap = format!("touch {}", room.at("ran").display());
    Haul::cp(["-e", &trap, "one:a", "two:b"]).run().sane().exits(2);
    assert!(!room.at("ran").exists());
}

/// Goal: a source never takes the place of itself, nor a link that of the file that it leads to: nothing is
/// made, and the exit code is that of wrong usage, in a dry run too. A link among others fails alone.
/// Method: `cp sl a`, `cp a a`, `cp d/a d`; a tree with a link to the file that stands at its name.
#[test]
fn no_source_is_copied_over_itself() {
    let room = Room::new();
    room.dir("d");
    for file in ["a", "d/a"] {
        room.file(file, "DATA");
    }
    std::os::unix::fs::symlink("a", room.at("sl")).expect("symlink");
    let before = snapshot(&room.at(""));
    for (line, says) in [
        (&["sl", "a"][..], "the content would be lost"),
        (&["--force", "sl", "a"], "the content would be lost"),
        (&["-n", "sl", "a"], "the content would be lost"),
        (&["a", "a"], "are the same"),
        (&["d/a", "d"], "are the same"),
        (&["-r", "d", "."], "are the same"),
    ] {
        let ended = Haul::cp(line).within(&room.at("")).run().sane().exits(2).says(says);
        assert_eq!(snapshot(&room.at("")), before, "{}", ended.describe());
    }
    room.dir("sink");
    room.dir("sink/d");
    room.file("sink/d/kept", "DATA");
    std::os::unix::fs::symlink(room.at("sink/d/kept"), room.at("d/kept")).expect("symlink");
    Haul::cp(["-r", "d", "sink"])
        .within(&room.at(""))
        .run()
        .sane()
        .exits(3)
        .says("leads to the file that stands there");
    assert_eq!(
        (read(room.at("sink/d/kept")), read(room.at("sink/d/a"))),
        (b"DATA".to_vec(), b"DATA".to_vec())
    );
    assert!(!room.at("sink/d/kept").is_symlink());
}

/// Goal: what cannot be used is named as it was typed, with its side and its host, and says what to do; what
/// is missing for an option is wrong usage.
/// Method: a destination below nothing, one that may not be written to, a journal directory that is not
/// there; the same and a missing source at a far host.
#[test]
fn what_cannot_be_used_is_named_as_typed() {
    let room = Room::new();
    let one = room.file("one", "one");
    let here = |line: &[&str]| Haul::cp(line).within(&room.at(""));
    here(&["one", "b/c/d"])
        .run()
        .sane()
        .exits(1)
        .says("destination b/c/d: there is no directory b/c; make it");
    here(&["--state", "none", "one", "two"])
        .run()
        .sane()
        .exits(2)
        .says("--state none: there is no such directory");
    here(&["--congestion", "none", "one", "h:two"]).run().sane().exits(2);
    if rustix::process::geteuid().is_root() {
        room.dir("closed");
        let ended = here(&["one", "closed"]).run_by_nobody(&room).run().sane().exits(1);
        let ended = ended.says("destination closed: no permission to write there");
        assert!(!ended.stderr.contains(".haul~"), "{}", ended.describe());
        room.dir("u");
        set_mode(&room.file("u/no", "no"), 0);
        room.file("u/ok", "ok");
        std::os::unix::fs::chown(room.dir("ud"), Some(65534), None).expect("chown");
        let ended = here(&["u/no", "u/ok", "ud"]).run_by_nobody(&room).run().sane().exits(3);
        let ended = ended.says("source u/no: open: Permission denied").says("will fail again");
        assert!(!ended.stderr.contains("run the same command again"), "{}", ended.describe());
    }
    need!("sshd");
    let sshd = Sshd::start();
    let far = |path: &str| sshd.path(std::path::Path::new(path));
    let told = |side: &str, path: &str| format!("{side} {}", far(path).to_string_lossy());
    Haul::cp([far("/no/such"), room.at("x").into()])
        .by(&sshd)
        .run()
        .sane()
        .exits(1)
        .says(&told("source", "/no/such: "));
    let below = Haul::cp([one.into(), far("/no/such/x")]).by(&sshd).run().sane().exits(1);
    below.says(&told("destination", "/no/such/x: ")).says("make it first");
}

/// Goal: `~` expands at the far end; `$VAR` and globs there are taken as they are.
/// Method: files in the far home, one of them called `$HOME *`.
#[test]
fn far_paths_are_not_for_a_shell() {
    need!("sshd");
    let sshd = Sshd::start();
    let room = Room::new();
    room.file("one", "one");
    let far = |path: &str| {
        let mut typed = sshd.path(std::path::Path::new(""));
        typed.push(path);
        typed
    };
    Haul::cp([room.at("one").into_os_string(), far("~/$HOME *;touch x")]).by(&sshd).run().sane().exits(0);
    assert_eq!(read(sshd.home().join("$HOME *;touch x")), b"one");
    Haul::cp([far("~/$HOME *;touch x"), room.at("back").into_os_string()]).by(&sshd).run().sane().exits(0);
    assert_eq!(read(room.at("back")), b"one");
    let hint = Haul::cp([far("~/no*such"), room.at("nothing").into_os_string()]).by(&sshd).run().sane();
    assert!(!hint.status.success(), "{}", hint.describe());
    assert!(!room.at("nothing").exists());
}

/// Goal: each odd name survives as the top-level name too, not only deep in a tree.
/// Method: each of them as the only source, in its own directory.
#[test]
fn odd_names_survive_as_sources() {
    let room = Room::new();
    room.dir("sink");
    let sources: Vec<_> = tree::hard_names().iter().map(|name| room.at("data").join(name)).collect();
    room.dir("data");
    for (index, source) in sources.iter().enumerate() {
        fs::write(source, format!("{index}")).expect("write a file");
    }
    Way::Here.cp(&[], &sources, room.at("sink")).run().sane().exits(0);
    for (index, name) in tree::hard_names().iter().enumerate() {
        assert_eq!(read(room.at("sink").join(name)), format!("{index}").as_bytes(), "{name:?}");
    }
    assert_no_debris(&room.at("sink"));
}

/// A room with the sources of the table and what lies at the destination before.
fn furnished(case: &Case) -> Room {
    let room = Room::new();
    room.dir("data/sub");
    for (path, content) in [("data/f", "f"), ("data/sub/g", "g"), ("one", "one"), ("two", "two")] {
        room.file(path, content);
    }
    for path in case.before {
        match path.strip_suffix('/') {
            Some(dir) => drop(room.dir(dir)),
            None => drop(room.file(path, "before")),
        }
    }
    room
}

/// The path as typed: no component and no slash is tidied away.
fn typed(room: &Room, text: &str) -> OsString {
    let mut path = room.at("").into_os_string();
    path.push(text);
    path
}

/// All files at the destination, sorted.
fn files(room: &Room, destination: &str) -> Vec<String> {
    let mut lines: Vec<String> = snapshot(&room.at(destination.trim_end_matches(['/', '.'])))
        .iter()
        .filter_map(|line| line.split_once("\" ").map(|(path, _)| path.to_owned()))
        .collect();
    lines.sort();
    lines
}

/// Goal: two names that the destination takes for one fail alone and by name; neither replaces the other,
/// nothing is merged, and everything else is copied: in one run, in a rerun, and over what an earlier run
/// left.
/// Method: files large and small, directories and links whose names differ in case, onto a file system that
/// folds it, three times; then with another source that has one of each pair.
#[test]
fn names_that_fold_fail_alone() {
    need!("targets");
    let (room, model) = (Room::new(), Model::folding());
    let (data, sink) = (room.dir("data"), model.mount.join("sink"));
    let pairs = [("small", "Small"), ("large", "LARGE"), ("link", "Link"), ("dir", "Dir"), ("file", "File")];
    for (one, other) in pairs {
        for (name, text) in [(one, "one"), (other, "other")] {
            let at = data.join(name);
            match one {
                "large" => fs::write(&at, text.repeat(100_000)).expect("write"),
                "link" => std::os::unix::fs::symlink(text, &at).expect("link"),
                "dir" => {
                    fs::create_dir(&at).expect("mkdir");
                    fs::write(at.join(text), text).expect("write");
                }
                // A file and a directory.
                "file" if name == other => fs::create_dir(&at).expect("mkdir"),
                _ => fs::write(&at, text).expect("write"),
            }
        }
    }
    fs::write(data.join("alone"), "alone").expect("write");
    for round in 0..3 {
        let run = Way::Here.cp(&["-r"], &[&data], &sink).run().sane().exits(3);
        let summary = run.summary();
        // With a directory that is not there fails what lies in it.
        assert!((5..=6).contains(&summary.number("failed")), "round {round}: {}", run.describe());
        assert_eq!(read(sink.join("data/alone")), b"alone");
        let seen = |name: &str| read(sink.join("data").join(name));
        for (name, len) in [("small", 1), ("large", 100_000)] {
            let content = seen(name);
            let whole = ["one", "other"].iter().any(|text| content == text.repeat(len).into_bytes());
            assert!(whole, "round {round}: {name} is neither of the two");
        }
        let below = fs::read_dir(sink.join("data/dir")).expect("ls").count();
        // Which of the two is the one may differ from run to run, and then both have brought something.
        assert!(below <= round + 1 && below <= 2, "round {round}: two directories were made one");
        let names = fs::read_dir(sink.join("data")).expect("ls").count();
        assert_eq!(names, pairs.len() + 1, "round {round}");
        if round == 0 {
            assert!(run.describe().contains("takes both names for one"), "{}", run.describe());
        }
    }
    let single = room.dir("single");
    fs::create_dir(single.join("data")).expect("mkdir");
    fs::write(single.join("data/SMALL"), "a third").expect("write");
    Way::Here.cp(&["-r"], &[&single.join("data")], &sink).run().sane().exits(0);
    assert_eq!(
        read(sink.join("data/small")),
        b"a third",
        "one entry may replace what stands under its other name"
    );
}
