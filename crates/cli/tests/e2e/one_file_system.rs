//! `-x`: what is mounted below a source is not entered.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use crate::attributes::{set, setfacl, told};
use crate::support::compare::{ALL, assert_same};
use crate::support::mount::Tmpfs;
use crate::support::way::{Way, contents};
use crate::support::{Room, age, set_mode};

/// A tree with two file systems mounted in it, one of them in the other's sibling, and links to both.
fn mounted(room: &Room) -> (Tmpfs, Tmpfs) {
    room.file("data/a", "a");
    room.file("data/sub/b", "b");
    let mounts = ["data/one", "data/sub/two"].map(|name| Tmpfs::mount(&room.dir(name), "size=1m,mode=750"));
    room.file("data/one/in-it", "one");
    room.file("data/one/deep/in-it", "one");
    room.file("data/sub/two/in-it", "two");
    symlink("one/in-it", room.at("data/to_file")).expect("symlink");
    symlink("one/deep", room.at("data/to_dir")).expect("symlink");
    age(&room.at("data"));
    let [one, two] = mounts;
    (one, two)
}

fn rsync(room: &Room, options: &str, from: &str, to: &str) {
    let done = Command::new("rsync").arg(options).args([room.at(from), room.at(to)]).status();
    assert!(done.expect("run rsync").success(), "rsync {options}");
}

/// Goal: with -x nothing is copied of what is mounted below a source, whose place is made as rsync makes it;
/// with -xx not even that; both are counted and named. Without it all is copied.
/// Method: each way, against rsync's own copy; a second run changes nothing.
#[test]
fn what_is_mounted_is_not_entered() {
    need!("root", "tmpfs", "rsync");
    for way in Way::all() {
        let room = Room::new();
        let _mounts = mounted(&room);
        for (options, names) in [("-x", "-rlptx"), ("-xx", "-rlptxx"), ("-xL", "-rLptx")] {
            let (ours, theirs) = (room.dir(&format!("ours{options}")), format!("theirs{options}/"));
            room.dir(&theirs);
            let ended = way.cp(&["-r", options], &[room.at("data")], &ours).run().sane().exits(0);
            rsync(&room, names, "data", &theirs);
            assert_same(&room.at(&theirs).join("data"), &ours.join("data"), ALL);
            assert!(!ours.join("data/one/in-it").exists(), "{}: {options}", way.name());
            assert_eq!(ours.join("data/one").exists(), options != "-xx", "{}: {options}", way.name());
            let told = ended.summary().chosen("skipped").to_owned();
            let count = if options == "-xL" { 3 } else { 2 };
            assert!(told.contains("data/one") && told.contains("data/sub/two"), "{told}");
            assert!(
                told.contains(&format!("other file systems, of which nothing was copied: {count}")),
                "{told}"
            );
            let again = way.cp(&["-r", options], &[room.at("data")], &ours).run().sane().exits(0).summary();
            assert_eq!((again.number("files"), again.number("dirs")), (0, 0), "{}", way.name());
            way.plain(&["-r", options], &[room.at("data")], room.dir(&format!("plain{options}")))
                .run()
                .sane()
                .exits(0)
                .says("other file systems");
        }
        let all = room.dir("all");
        way.cp(&["-r"], &[room.at("data")], &all).run().sane().exits(0);
        assert_same(&room.at("data"), &all.join("data"), ALL);
    }
}

/// Goal: each source has its own file system, whatever it lies on, and a file on another one is copied.
/// Method: what is mounted as a source, by its name and by its contents, beside one of the host's; a link to
/// a file that lies elsewhere.
#[test]
fn each_source_has_its_own_file_system() {
    need!("root", "tmpfs");
    let room = Room::new();
    let _mounts = mounted(&room);
    let sink = room.dir("sink");
    Way::Here.cp(&["-rx"], &[room.at("data/one"), room.at("data/sub")], &sink).run().sane().exits(0);
    assert_eq!(fs::read(sink.join("one/deep/in-it")).expect("read"), b"one");
    assert_eq!(fs::read_dir(sink.join("sub/two")).expect("an empty directory").count(), 0);
    let below = room.dir("below");
    Way::Here.cp(&["-rx"], &[contents(&room.at("data/one"))], &below).run().sane().exits(0);
    assert!(below.join("in-it").exists() && below.join("deep/in-it").exists());
    let files = room.dir("files");
    Way::Here.cp(&["-rxL"], &[room.at("data")], &files).run().sane().exits(0);
    assert_eq!(fs::read(files.join("data/to_file")).expect("read"), b"one");
    assert_eq!(fs::read_dir(files.join("data/to_dir")).expect("an empty directory").count(), 0);
}

/// Goal: with -aAX, -x and -xx the destination becomes what its source is, whatever is mounted, and so does
/// the empty directory that stands for a file system, as rsync has it.
/// Method: contents of a tree with mounts and of what is mounted itself, against rsync.
#[test]
fn roots_become_what_they_are() {
    need!("root", "tmpfs", "attr", "rsync");
    let room = Room::new();
    let _mounts = mounted(&room);
    for (at, mode) in [("data", 0o711), ("data/one", 0o700)] {
        let source = room.at(at);
        set_mode(&source, mode);
        set(&source, "trusted.of-it", at.as_bytes());
        setfacl(&["-m", "u:5:r"], &source);
    }
    for (at, source) in ["data", "data/one"].into_iter().enumerate() {
        for options in ["-aAXx", "-aAXxx"] {
            let source = room.at(source);
            let [ours, theirs] = ["ours", "theirs"].map(|who| room.dir(&format!("{who}{at}{options}")));
            Way::Here.cp(&[options], &[contents(&source)], &ours).run().sane().exits(0);
            let done =
                Command::new("rsync").arg(options).args([contents(&source), contents(&theirs)]).status();
            assert!(done.expect("run rsync").success(), "rsync {options}");
            assert_eq!(told(&ours), told(&theirs), "{options} {}", source.display());
        }
    }
}

/// Goal: who has no file systems is not asked to stay on one.
#[test]
fn servers_and_volumes_refuse() {
    let room = Room::new();
    Way::Here
        .cp(&["-rx"], &["zero://5"], room.at("sink"))
        .run()
        .sane()
        .exits(2)
        .says("-x is not possible there");
}
