//! Symbolic links that are followed, at the source and at the destination, or left out: as rsync does it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::support::compare::{ALL, BELOW, Opts, assert_no_debris, assert_same};
use crate::support::way::{Way, contents};
use crate::support::{Room, age};

/// A tree with links of every kind, and what they lead to outside of it.
fn linked(room: &Room) {
    for file in ["data/f", "data/d/g", "data/d/deep/h", "outside/o", "outside/dir/p"] {
        room.file(file, file);
    }
    room.file("outside/large", vec![7; 3 << 20]);
    for (name, target) in [
        ("to_file", "f"),
        ("to_dir", "d/deep"),
        ("out_file", "../outside/o"),
        ("out_large", "../outside/large"),
        ("out_dir", "../outside/dir"),
        ("dangling", "nowhere"),
        ("d/up", "../f"),
        ("d/out", "../../outside/o"),
        ("d/within", "deep/../deep"),
    ] {
        symlink(target, room.at("data").join(name)).expect("symlink");
    }
    symlink(room.at("outside/dir"), room.at("data/whole")).expect("symlink");
    ["data", "outside"].iter().for_each(|tree| age(&room.at(tree)));
}

/// What rsync makes of a source; `code`: how it ends.
fn rsync(room: &Room, options: &[&str], from: impl AsRef<std::ffi::OsStr>, to: &Path, code: i32) {
    let done = Command::new("rsync").args(options).arg(from).arg(to).current_dir(room.at("")).output();
    let done = done.expect("run rsync");
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(code), "rsync {options:?}: {said}");
}

/// Goal: what is made of links is what rsync makes of them, by each option and each way; what cannot be
/// followed fails by name and alone.
/// Method: a directory by name and by its contents, of which other links lead out; both copies compared; a
/// second run finds everything unchanged.
#[test]
fn links_become_what_rsync_makes_of_them() {
    need!("rsync");
    for way in Way::all() {
        let room = Room::new();
        linked(&room);
        for (at, (options, theirs, codes)) in [
            (&["-rL"][..], &["-rLpt"][..], (3, 23)),
            (&["-rk"], &["-rlptk"], (0, 0)),
            (&["-r", "--safe-links"], &["-rlpt", "--safe-links"], (0, 0)),
            (&["-r", "--copy-unsafe-links"], &["-rlpt", "--copy-unsafe-links"], (0, 0)),
            (&["-rk", "--safe-links"], &["-rlptk", "--safe-links"], (0, 0)),
            (&["-rk", "--no-links"], &["-rptk"], (0, 0)),
        ]
        .into_iter()
        .enumerate()
        {
            for (name, source) in
                [("named", room.at("data").into_os_string()), ("inner", contents(&room.at("data")))]
            {
                let [ours, theirs_at] = ["ours", "theirs"].map(|who| room.dir(&format!("{who}{at}-{name}")));
                let ended = way.cp(options, &[&source], &ours).run().sane().exits(codes.0);
                rsync(&room, theirs, &source, &theirs_at, codes.1);
                assert_same(&theirs_at, &ours, BELOW);
                if options == ["-rL"] {
                    ended.says("dangling").says("No such file or directory: nowhere");
                }
                let again = way.cp(options, &[&source], &ours).run().sane().exits(codes.0).summary();
                assert_eq!(again.number("files") + again.number("symlinks"), 0, "{} {options:?}", way.name());
            }
        }
    }
}

/// Goal: links that are left out are counted and named, and a manifest of what links lead to is right.
#[test]
fn what_is_left_out_is_named() {
    for way in Way::all() {
        let room = Room::new();
        linked(&room);
        let sink = room.dir("sink");
        let ended =
            way.cp(&["-r", "--safe-links"], &[contents(&room.at("data"))], &sink).run().sane().exits(0);
        let told = ended.summary().chosen("skipped").to_owned();
        assert!(told.contains("out_dir") && told.contains("lead out of what is copied: 6"), "{told}");
        fs::remove_file(room.at("data/dangling")).expect("rm");
        for run in ["first", "second"] {
            let list = room.at(&format!("{run}-{}", way.name()));
            let manifest = format!("--manifest={}", list.display());
            let followed = room.dir("followed");
            way.cp(&["-rL", &manifest], &[contents(&room.at("data"))], &followed).run().sane().exits(0);
            let lines = fs::read_to_string(&list).expect("a manifest");
            let sum = blake3::hash(&fs::read(room.at("outside/large")).expect("read"));
            assert!(lines.contains(&format!("{sum}  out_large\n")), "{run}: {lines}");
        }
    }
}

/// Goal: links that lead round in circles end by name, and all else is copied.
#[test]
fn circles_end_by_name() {
    for way in Way::all() {
        let room = Room::new();
        room.file("data/a/f", "f");
        symlink("..", room.at("data/a/up")).expect("symlink");
        symlink(".", room.at("data/here")).expect("symlink");
        symlink("self", room.at("data/self")).expect("symlink");
        for options in ["-rL", "-rk"] {
            let sink = room.dir(&format!("sink{options}"));
            let ended = way.cp(&[options], &[room.at("data")], &sink).run().sane().exits(3);
            let ended = ended.says("data/a/up").says("data/here").says("leads back");
            assert_eq!(fs::read(sink.join("data/a/f")).expect("read"), b"f");
            match options {
                "-rL" => drop(ended.says("data/self")),
                _ => assert!(sink.join("data/self").is_symlink()),
            }
            assert_no_debris(&sink);
        }
    }
}

/// Goal: with -K what comes into a directory goes where the link leads that stands for it, as rsync does it;
/// the link stays. Without, it fails and says what to do. A dry run says the same.
#[test]
fn links_that_stand_there_are_kept() {
    need!("rsync");
    for way in Way::all() {
        let room = Room::new();
        room.file("data/d/g", "g");
        room.file("data/d/in/h", "h");
        room.file("data/f", "f");
        for who in ["ours", "theirs"] {
            room.dir(&format!("{who}/data"));
            room.dir(&format!("{who}/elsewhere"));
            symlink("../elsewhere", room.at(&format!("{who}/data/d"))).expect("symlink");
        }
        let ours = room.at("ours");
        let refused = way.cp(&["-r"], &[room.at("data")], &ours).run().sane().exits(3);
        refused.says("follow such links with -K");
        assert_eq!(fs::read_dir(room.at("ours/elsewhere")).expect("list").count(), 0);
        way.cp(&["-rKn"], &[room.at("data")], &ours).run().sane().exits(0);
        assert_eq!(fs::read_dir(room.at("ours/elsewhere")).expect("list").count(), 0);
        way.cp(&["-rK"], &[room.at("data")], &ours).run().sane().exits(0);
        rsync(&room, &["-rlptK"], room.at("data"), &room.at("theirs"), 0);
        // rsync gives the link the time of the directory, and not what it leads to.
        assert_same(&room.at("theirs"), &ours, Opts { metadata: false, ..BELOW });
        assert!(room.at("ours/data/d").is_symlink());
        assert_same(&room.at("data/d"), &room.at("ours/elsewhere"), ALL);
        let again = way.cp(&["-rK"], &[room.at("data")], &ours).run().sane().exits(0).summary();
        assert_eq!((again.number("files"), again.number("dirs")), (0, 0), "{}", way.name());
    }
}

/// Goal: with -K no directory of the destination is that of two of the source by a link: the second fails by
/// name and says what to do, in whatever order they come and how often the copy is run, and what it is to
/// have does not take the place of what the first has. One that leads to what nobody else has is followed.
/// Method: a link to a directory that is copied too, of a name before and after it; to one below, to the
/// root, to the directory that it lies in, and from above the root down to it; two links to one directory.
#[test]
fn two_directories_do_not_become_one() {
    for way in Way::all() {
        for (link, target, other) in [
            ("l", "real", "real"),
            ("zl", "real", "real"),
            ("l", "real/sub", "real/sub"),
            ("l", ".", "."),
            ("zl", ".", "."),
            ("real/l", ".", "real"),
            ("l", "outside", "l2"),
        ] {
            let room = Room::new();
            room.file(&format!("s/{link}/g"), "x");
            room.file(&format!("s/{other}/g"), "long content");
            room.file("s/alone/h", "h");
            for dir in [room.at("d/outside"), room.at("d").join(other), room.at("elsewhere")] {
                fs::create_dir_all(dir).expect("make directories");
            }
            symlink("../elsewhere", room.at("d/alone")).expect("symlink");
            symlink(target, room.at("d").join(link)).expect("symlink");
            if other == "l2" {
                fs::remove_dir(room.at("d/l2")).expect("rmdir");
                symlink(target, room.at("d/l2")).expect("symlink");
            }
            age(&room.at("s"));
            // What the first run finds there is right for one of both.
            let right = fs::copy(room.at(&format!("s/{other}/g")), room.at(&format!("d/{other}/g")));
            right.expect("copy");
            age(&room.at("d"));
            for options in ["-aKn", "-aK", "-aK", "-aK"] {
                let case = format!("{} {link} -> {target}, {options}", way.name());
                let ended = way.cp(&[options], &[contents(&room.at("s"))], room.at("d")).run().sane();
                let ended = ended.exits(3);
                ended.says("and is followed; leave -K out, or remove the link");
                if options == "-aK" {
                    assert_eq!(fs::read(room.at("elsewhere/h")).expect("read"), b"h", "{case}");
                }
            }
            assert_no_debris(&room.at("d"));
        }
        // From above the root down to it.
        let room = Room::new();
        room.file("s/up/d/g", "x");
        room.file("s/g", "long content");
        room.dir("d");
        symlink("..", room.at("d/up")).expect("symlink");
        for _ in 0..2 {
            let ended = way.cp(&["-aK"], &[contents(&room.at("s"))], room.at("d")).run().sane();
            ended.exits(3).says("up/d: another directory of this copy is");
            assert_eq!(fs::read(room.at("d/g")).expect("read"), b"long content");
        }
    }
}

/// Goal: a single link is followed as a source, and words that contradict each other are refused.
#[test]
fn words_that_contradict_are_refused() {
    let room = Room::new();
    linked(&room);
    let copy =
        |options: &[&str], source: &str, sink: &str| Way::Here.cp(options, &[room.at(source)], room.at(sink));
    copy(&["-L"], "data/to_file", "one").run().sane().exits(0);
    assert_eq!(fs::read(room.at("one")).expect("read"), b"data/f");
    copy(&["-L"], "data/to_dir", "two").run().sane().exits(2).says("is a directory");
    copy(&["-rL"], "data/dangling", "two").run().sane().exits(1).says("where the link leads to");
    assert!(!room.at("two").exists());
    for options in
        [&["-rL", "--no-links"][..], &["-rL", "--safe-links"], &["-r", "--copy-unsafe-links", "--safe-links"]]
    {
        copy(options, "data", "two").run().sane().exits(2);
    }
    let null = Way::Here.cp(&["-rK"], &[room.at("data")], "null://").run().sane().exits(2);
    null.says("-K is not possible there");
    assert!(!room.at("two").exists());
}
