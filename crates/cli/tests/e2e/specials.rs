//! FIFOs, sockets and devices: kept with -D and -a, never opened, and said where they cannot be made.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, chown};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use crate::attributes::{failure_of, rsync_would, setfacl, told};
use crate::support::compare::assert_no_debris;
use crate::support::run::Outcome;
use crate::support::way::{Way, contents};
use crate::support::{Room, set_mode};

fn make(path: &Path, kind: FileType, rdev: u64) -> bool {
    let made = mknodat(CWD, path, kind, Mode::from(0o640), rdev);
    made.inspect_err(|errno| eprintln!("{}: {errno}", path.display())).is_ok()
}

/// A FIFO, a socket and, where root may make them, two devices.
fn dressed(data: &Path) -> bool {
    fs::create_dir_all(data.join("d")).expect("make directories");
    fs::write(data.join("f"), "x").expect("write");
    assert!(make(&data.join("pipe"), FileType::Fifo, 0) && make(&data.join("d/socket"), FileType::Socket, 0));
    make(&data.join("null"), FileType::CharacterDevice, makedev(1, 3))
        && make(&data.join("d/disk"), FileType::BlockDevice, makedev(7, 200))
}

fn set_mtime(path: &Path, secs: i64) {
    use rustix::fs::{AtFlags, Timespec, Timestamps, UTIME_OMIT, utimensat};
    let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    let times = Timestamps { last_access, last_modification: Timespec { tv_sec: secs, tv_nsec: 0 } };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).expect("set a time");
}

fn lines(run: &Outcome) -> Vec<String> {
    let mut lines: Vec<String> = String::from_utf8(run.stdout.clone())
        .expect("text")
        .lines()
        .map(|line| line.replace("<f", ">f"))
        .collect();
    lines.sort();
    lines
}

fn rsync_lines(source: &Path, copy: &Path) -> Vec<String> {
    let mut lines: Vec<String> = rsync_would(source, copy).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Goal: with -a FIFOs, sockets and devices are at the destination what they are at the source, with owner,
/// mode, time and lists, and are told as rsync tells them; rsync would change nothing, and a second run
/// changes nothing.
/// Method: each way; then each difference alone on either side, in a dry and a real run, held against rsync.
#[test]
fn special_files_are_kept() {
    need!("attr", "rsync");
    for way in Way::all() {
        let room = Room::new();
        let (data, sink) = (room.at("data"), room.dir("sink"));
        if !dressed(&data) {
            return eprintln!("skipped: no devices here");
        }
        for (name, mode, owner) in
            [("pipe", 0o620, 1234), ("d/socket", 0o755, 7), ("null", 0o600, 8), ("d/disk", 0o660, 9)]
        {
            chown(data.join(name), Some(owner), Some(77)).expect("give it away");
            set_mode(&data.join(name), mode);
        }
        setfacl(&["-m", "u:65534:-,g:66:rw"], &data.join("pipe"));
        setfacl(&["-m", "u:5:r"], &data.join("null"));
        set_mtime(&data.join("pipe"), 1_000_000_000);
        // rsync tells times by the second.
        set_mtime(&data, 1_000_000_000);
        set_mtime(&data.join("null"), 1_000_000_001);
        let expected = rsync_lines(&data, &sink);
        assert!(
            expected.iter().any(|line| line == "cD+++++++++ null")
                && expected.iter().any(|line| line == "cS+++++++++ pipe")
        );
        for options in [&["-aAXni"][..], &["-aAXi"]] {
            let run = way.plain(options, &[contents(&data)], &sink).run().exits(0);
            assert_eq!(lines(&run), expected, "{} {options:?}", way.name());
        }
        assert_eq!(rsync_would(&data, &sink), "", "{}", way.name());
        assert_eq!(told(&sink), told(&data), "{}", way.name());
        let again = way.plain(&["-aAXi"], &[contents(&data)], &sink).run().exits(0);
        assert_eq!(again.stdout, b"", "{}", way.name());

        let inode = |name: &str| fs::symlink_metadata(sink.join(name)).expect("stat").ino();
        let names = ["pipe", "null", "d/disk", "d/socket"];
        let before = names.map(inode);
        set_mode(&sink.join("d/disk"), 0o666);
        chown(sink.join("null"), Some(0), Some(0)).expect("give it away");
        set_mtime(&sink.join("pipe"), 5);
        setfacl(&["-m", "u:3:rx"], &sink.join("d/socket"));
        let expected = rsync_lines(&data, &sink);
        assert_eq!(expected.len(), 4, "{expected:?}");
        for options in [&["-aAXni"][..], &["-aAXi"]] {
            let run = way.plain(options, &[contents(&data)], &sink).run().exits(0);
            assert_eq!(lines(&run), expected, "{} {options:?}", way.name());
        }
        assert_eq!(rsync_would(&data, &sink), "", "{}", way.name());
        assert_eq!(names.map(inode), before, "nothing was made anew");
        assert_no_debris(&sink);
    }
}

/// Goal: what stands in the place of one is replaced as by a link: a file and a link give way, another
/// special file with --force alone.
/// Method: a file, a link and other devices at the destination, with and without --force.
#[test]
fn what_stands_in_their_place_gives_way_as_to_links() {
    need!("attr", "rsync");
    let room = Room::new();
    let (data, sink) = (room.at("data"), room.dir("sink"));
    if !dressed(&data) {
        return eprintln!("skipped: no devices here");
    }
    fs::create_dir(sink.join("d")).expect("make a directory");
    fs::write(sink.join("pipe"), "a file").expect("write");
    std::os::unix::fs::symlink("nowhere", sink.join("d/socket")).expect("a link");
    assert!(make(&sink.join("null"), FileType::CharacterDevice, makedev(1, 5)));
    assert!(make(&sink.join("d/disk"), FileType::Fifo, 0));
    let run = Way::Here.cp(&["-a"], &[contents(&data)], &sink).run().exits(3);
    let text = failure_of(&run, "null").or_else(|| failure_of(&run, "d/disk"));
    assert!(text.is_some_and(|text| text.contains("force")), "{}", run.describe());
    assert_eq!(run.summary().number("failed"), 2);
    let stat = |name: &str| fs::symlink_metadata(sink.join(name)).expect("stat");
    assert!(stat("pipe").file_type().is_fifo() && stat("d/socket").file_type().is_socket());
    assert_eq!(stat("null").rdev(), makedev(1, 5));
    Way::Here.cp(&["-a", "--no-clobber"], &[contents(&data)], &sink).run().exits(0);
    assert_eq!(stat("null").rdev(), makedev(1, 5));
    assert!(stat("d/disk").file_type().is_fifo(), "nothing was replaced");
    Way::Here.cp(&["-a", "--force"], &[contents(&data)], &sink).run().sane().exits(0);
    assert_eq!((stat("null").rdev(), stat("d/disk").rdev()), (makedev(1, 3), makedev(7, 200)));
    assert_eq!(rsync_would(&data, &sink), "");
    assert_no_debris(&sink);
}

/// Goal: a user keeps FIFOs and sockets; a device that he cannot make is counted with -a, and named, and is
/// an error where -D asks for it. Without either all are left out and counted, and --no-devices leaves these
/// out alone.
#[test]
fn what_cannot_be_made_is_said() {
    need!("attr", "setpriv", "rsync");
    let room = Room::new();
    let data = room.at("data");
    if !dressed(&data) {
        return eprintln!("skipped: no devices here");
    }
    for name in ["", "d", "f", "pipe", "d/socket", "null", "d/disk"] {
        chown(data.join(name), Some(65534), Some(65534)).expect("give it away");
    }
    let (sink, dry) = (room.dir("sink"), ["-a", "-n"]);
    chown(&sink, Some(65534), Some(65534)).expect("give it away");
    for options in [&dry[..], &["-a"]] {
        let run = Way::Here.cp(options, &[contents(&data)], &sink).run_by_nobody(&room).run().exits(0);
        let summary = run.summary();
        assert_eq!((summary.number("specials"), summary.number("skipped")), (2, 2), "{options:?}");
        let lost = summary.0["not_kept"].to_string();
        assert!(lost.contains("could not be made"), "{lost}");
        assert!(summary.chosen("skipped").contains("null"), "{}", run.describe());
    }
    assert!(fs::symlink_metadata(sink.join("pipe")).expect("stat").file_type().is_fifo());
    assert!(!sink.join("null").exists());
    for options in [&["-aD", "-n"][..], &["-aD"]] {
        let run = Way::Here.cp(options, &[contents(&data)], &sink).run_by_nobody(&room).run().exits(3);
        let text = failure_of(&run, "null").expect("it is named");
        assert!(text.contains("device") && text.contains("not permitted"), "{text}");
    }
    let bare = Way::Here.cp(&["-r"], &[&data], room.dir("bare")).run().exits(0).summary();
    assert_eq!(bare.number("specials"), 0);
    assert!(bare.0["not_kept"].to_string().contains("special files"));
    let less = room.dir("less");
    let some = Way::Here.cp(&["-a", "--no-devices"], &[&data], &less).run().exits(0).summary();
    assert_eq!(some.number("specials"), 2);
    assert!(less.join("data/pipe").exists() && !less.join("data/null").exists());
    let alone = room.dir("alone");
    Way::Here.cp(&["-D"], &[data.join("pipe"), data.join("null")], &alone).run().sane().exits(0);
    assert!(fs::symlink_metadata(alone.join("pipe")).expect("stat").file_type().is_fifo());
    assert_eq!(fs::symlink_metadata(alone.join("null")).expect("stat").rdev(), makedev(1, 3));
}

/// Goal: none is ever opened, at either end: a FIFO would wait for its other end, and a device might act.
/// Method: a copy, and one that mends modes, with each call that opens by a name written down.
#[test]
fn none_is_ever_opened() {
    need!("attr", "strace");
    let room = Room::new();
    let (data, sink, log) = (room.at("data"), room.dir("sink"), room.at("log"));
    dressed(&data);
    setfacl(&["-m", "u:5:r"], &data.join("pipe"));
    for turn in 0..2 {
        Way::Here.cp(&["-aAX"], &[contents(&data)], &sink).traced("open,openat,openat2", &log).run().exits(0);
        let calls = fs::read_to_string(&log).expect("what strace wrote");
        assert!(calls.contains("openat"), "it was traced");
        for line in calls.lines() {
            let names = ["pipe", "socket", "null", "disk"].map(|name| format!("\"{name}\""));
            let is_theirs = names.iter().any(|name| line.contains(name));
            assert!(!is_theirs || line.contains("O_PATH"), "{line}");
        }
        set_mode(&sink.join("pipe"), 0o600 + turn);
    }
}

/// Goal: what a link leads to that is a FIFO, socket or device is made as such where links are followed and
/// such things kept, and is never opened; without -D it is skipped and counted, as rsync does it. Links to
/// directories alone leave these links what they are.
/// Method: links to each kind, held against rsync's own copy; calls that open by a name are written down.
#[test]
fn links_to_special_files_are_followed_unopened() {
    need!("attr", "rsync", "strace");
    let room = Room::new();
    let outside = room.at("outside");
    if !dressed(&outside) {
        return eprintln!("skipped: no devices here");
    }
    let data = room.dir("data");
    for (name, target) in [
        ("to-pipe", "pipe"),
        ("to-socket", "d/socket"),
        ("to-null", "null"),
        ("to-disk", "d/disk"),
        ("to-d", "d"),
    ] {
        std::os::unix::fs::symlink(Path::new("../outside").join(target), data.join(name)).expect("a link");
    }
    for (at, options, theirs) in [(0, "-aL", "-aL"), (1, "-ak", "-ak"), (2, "-aU", "--copy-unsafe-links")] {
        let (ours, rsyncs) = (room.dir(&format!("ours{at}")), room.dir(&format!("theirs{at}")));
        let options = if options == "-aU" { &["-a", "--copy-unsafe-links"][..] } else { &[options] };
        let log = room.at("log");
        Way::Here.cp(options, &[contents(&data)], &ours).traced("open,openat,openat2", &log).run().exits(0);
        let calls = fs::read_to_string(&log).expect("what strace wrote");
        assert!(calls.contains("openat"), "it was traced");
        for line in calls.lines() {
            let names = ["pipe", "socket", "null", "disk"];
            let is_theirs =
                names.iter().any(|n| line.contains(&format!("{n}\"")) && !line.contains("/dev/null"));
            assert!(!is_theirs || line.contains("O_PATH"), "{line}");
        }
        let done = std::process::Command::new("rsync")
            .args(["-a", theirs])
            .args([contents(&data), contents(&rsyncs)])
            .status();
        assert!(done.expect("run rsync").success());
        assert_eq!(told(&ours), told(&rsyncs), "{options:?}");
        let stat = |name: &str| fs::symlink_metadata(ours.join(name)).expect("stat");
        match at {
            1 => assert!(stat("to-pipe").is_symlink() && stat("to-d/socket").file_type().is_socket()),
            _ => {
                assert!(stat("to-pipe").file_type().is_fifo() && stat("to-socket").file_type().is_socket());
                assert_eq!(
                    (stat("to-null").rdev(), stat("to-disk").rdev()),
                    (makedev(1, 3), makedev(7, 200))
                );
            }
        }
        let again = Way::Here.cp(options, &[contents(&data)], &ours).run().exits(0).summary();
        assert_eq!((again.number("specials"), again.number("failed")), (0, 0), "{options:?}");
    }
    let bare = room.dir("bare");
    let run = Way::Here.cp(&["-rL"], &[contents(&data)], &bare).run().exits(0).summary();
    assert_eq!(run.number("specials"), 0);
    assert!(run.0["not_kept"].to_string().contains("special files"), "{}", run.0);
    assert!(!bare.join("to-pipe").exists());
}
