//! Owners between hosts that have other numbers for the same names, and what they may do until the mode is
//! set.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::support::run::{Haul, Outcome};
use crate::support::way::{Way, contents};
use crate::support::{Room, age, set_mode};

/// The number that `daemon` has where the near end runs, as a user and as a group.
const NEAR: (u32, u32) = (41_234, 42_345);
/// And at the far end, which has the files of this host.
fn far() -> (u32, u32) {
    let number = |file: &str| {
        let table = fs::read_to_string(file).expect("read");
        let line = table.lines().find(|line| line.starts_with("daemon:")).expect("every host has it");
        line.split(':').nth(2).expect("a number").parse().expect("a number")
    };
    (number("/etc/passwd"), number("/etc/group"))
}

/// Has the near end see other users and groups: `daemon` has other numbers there, and 41,000 is a user whom
/// nobody else knows.
fn elsewhere(room: &Room, haul: Haul) -> Haul {
    elsewhere_with(room, haul, NEAR)
}

/// The same with these numbers of `daemon`.
fn elsewhere_with(room: &Room, haul: Haul, near: (u32, u32)) -> Haul {
    let table = |file: &str, number: u32, of_one: &str| -> PathBuf {
        let here = fs::read_to_string(format!("/etc/{file}")).expect("read");
        let mut lines: Vec<String> =
            here.lines().filter(|line| !line.starts_with("daemon:")).map(str::to_owned).collect();
        lines.push(format!("daemon:x:{number}{of_one}"));
        lines.push(format!("of-the-near-end:x:41000{of_one}"));
        room.file(&format!("etc-{file}"), lines.join("\n") + "\n")
    };
    let passwd = table("passwd", near.0, ":1::/:/usr/sbin/nologin");
    let group = table("group", near.1, ":");
    let script = format!(
        "mount --bind {} /etc/passwd && mount --bind {} /etc/group && exec \"$@\"",
        passwd.display(),
        group.display()
    );
    haul.wrapped(["unshare", "-m", "--propagation", "private", "sh", "-c", &script, "sh"])
}

fn owner(path: &Path) -> (u32, u32) {
    let stat = fs::symlink_metadata(path).expect("stat");
    (stat.uid(), stat.gid())
}

/// Goal: between hosts owner and group are who has the name, of files, directories, links and the destination
/// itself; who is not known keeps his number, and so do all with --numeric-ids. A second run changes nothing,
/// and a dry run says so.
/// Method: pushes and pulls between two ends of which one has other numbers.
#[test]
fn owners_are_kept_by_name() {
    need!("unshare", "sshd", "root");
    for way in Way::all().into_iter().skip(1) {
        let (from, to) = if way.name() == "push" { (NEAR, far()) } else { (far(), NEAR) };
        for (numeric, wanted) in [(false, to), (true, from)] {
            let room = Room::new();
            let (data, sink) = (room.dir("data"), room.at("sink"));
            room.dir("data/d");
            for name in ["f", "d/g", "unknown", "roots"] {
                room.file(&format!("data/{name}"), name);
            }
            std::os::unix::fs::symlink("f", data.join("link")).expect("a link");
            for name in ["", "f", "d", "d/g"] {
                chown(data.join(name), Some(from.0), Some(from.1)).expect("give it away");
            }
            std::os::unix::fs::lchown(data.join("link"), Some(from.0), Some(from.1)).expect("give it away");
            chown(data.join("unknown"), Some(41_000), Some(41_001)).expect("give it away");
            let options = if numeric { &["-a", "--numeric-ids"][..] } else { &["-a"] };
            elsewhere(&room, way.cp(options, &[contents(&data)], &sink)).run().sane().exits(0);
            for name in ["", "f", "d", "d/g", "link"] {
                assert_eq!(owner(&sink.join(name)), wanted, "{} {numeric} {name:?}", way.name());
            }
            assert_eq!(owner(&sink.join("unknown")), (41_000, 41_001), "{} {numeric}", way.name());
            assert_eq!(owner(&sink.join("roots")), (0, 0), "{} {numeric}", way.name());
            for more in ["-i", "-in"] {
                let options = [options, &[more]].concat();
                let again = elsewhere(&room, way.plain(&options, &[contents(&data)], &sink)).run().exits(0);
                assert_eq!(String::from_utf8_lossy(&again.stdout), "", "{} {options:?}", way.name());
            }
        }
    }
}

/// Goal: on one host owners are numbers, whatever they are called.
#[test]
fn on_one_host_numbers_do() {
    need!("root");
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    room.file("data/f", "x");
    chown(data.join("f"), Some(far().0), Some(41_001)).expect("give it away");
    Way::Here.cp(&["-a"], &[contents(&data)], &sink).run().sane().exits(0);
    assert_eq!(owner(&sink.join("f")), (far().0, 41_001));
}

/// Goal: what stands there is given to nobody while its mode gives him what he has not at the source: not the
/// destination, nor a directory, file or FIFO in it.
/// Method: the calls of a copy that finds all of them open to their group: before each is given away, the
/// same thread has taken from its mode what the wanted one has not. Each of the three modes is another one.
#[test]
fn modes_are_narrowed_before_owners_are_set() {
    need!("root", "strace");
    let room = Room::new();
    let (data, sink, log) = (room.at("data"), room.at("sink"), room.at("log"));
    for tree in [&data, &sink] {
        fs::create_dir_all(tree.join("d")).expect("make directories");
        fs::write(tree.join("f"), "x").expect("write");
        mknodat(CWD, tree.join("p"), FileType::Fifo, Mode::RUSR, 0).expect("make a FIFO");
        let is_data = tree == &data;
        for (name, theirs, ours) in
            [("", 0o705, 0o770), ("d", 0o705, 0o770), ("f", 0o604, 0o660), ("p", 0o604, 0o660)]
        {
            set_mode(&tree.join(name), if is_data { theirs } else { ours });
            if is_data {
                chown(tree.join(name), Some(5), Some(6)).expect("give it away");
            }
        }
        age(tree);
    }
    Way::Here.cp(&["-a"], &[contents(&data)], &sink).traced("/chmod,/chown", &log).run().exits(0);
    let calls = fs::read_to_string(&log).expect("what strace wrote");
    let mut given = 0;
    let mut last: BTreeMap<&str, &str> = BTreeMap::new();
    // The end of a call that another thread's came between says nothing new.
    for line in calls.lines().filter(|line| !line.contains(" resumed>")) {
        let (thread, call) = line.split_once(' ').expect("a thread and its call");
        let before = last.insert(thread, call).unwrap_or_default();
        let Some(fd) = call.trim_start().strip_prefix("fchown").filter(|call| call.contains(", 5, 6")) else {
            continue;
        };
        let fd: String = fd
            .trim_start_matches(|c: char| !c.is_ascii_digit())
            .chars()
            .take_while(char::is_ascii_digit)
            .collect();
        let is_same = before.contains(&format!("chmod({fd}<")) || before.contains(&format!("/fd/{fd}\""));
        let is_narrow =
            before.contains("chmod") && [", 0700", ", 0600"].iter().any(|mode| before.contains(mode));
        assert!(is_same && is_narrow, "{before}, then {call}\n{calls}");
        given += 1;
    }
    assert_eq!(given, 4, "{calls}");
    for (name, mode) in [("", 0o705), ("d", 0o705), ("f", 0o604), ("p", 0o604)] {
        let stat = fs::metadata(sink.join(name)).expect("stat");
        assert_eq!((stat.mode() & 0o7777, stat.uid(), stat.gid()), (mode, 5, 6), "{name:?}");
    }
}

/// Goal: `-og`, and cp's word for it, keep owner and group and nothing else of `-a`: no device is made, and a
/// directory without -r is refused. rsync's bundle for `-a` is `-a`.
/// Method: rsync lists what it would change behind the copy.
#[test]
fn owners_come_without_the_rest() {
    need!("root", "rsync");
    for options in [&["-rog"][..], &["-r", "--preserve=ownership"], &["-rlptgoD"], &["-r", "--preserve"]] {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.at("sink"));
        let file = room.file("data/f", "f");
        chown(&file, Some(41_000), Some(41_001)).expect("give it away");
        mknodat(CWD, data.join("fifo"), FileType::Fifo, Mode::from(0o600), 0).expect("make a FIFO");
        Haul::cp(options).args([contents(&data).as_os_str(), sink.as_os_str()]).run().sane().exits(0);
        assert_eq!(owner(&sink.join("f")), (41_000, 41_001), "{options:?}");
        assert_eq!(sink.join("fifo").symlink_metadata().is_ok(), options == ["-rlptgoD"], "{options:?}");
        let like = if options == ["-rlptgoD"] { "-ani" } else { "-rlptogni" };
        let left = std::process::Command::new("rsync").arg(like).arg(contents(&data)).arg(&sink).output();
        let left = String::from_utf8(left.expect("run rsync").stdout).expect("UTF-8");
        // Without -D it says that it skips the FIFO.
        let left: Vec<&str> = left.lines().filter(|line| !line.contains("fifo")).collect();
        assert!(left.is_empty(), "{options:?}: {left:?}");
    }
    let room = Room::new();
    let data = room.dir("data");
    let said = Haul::cp(["-og"]).args([&data, &room.at("sink")]).run().sane().exits(2);
    assert!(said.stderr.contains("-r"), "{}", said.describe());
}

/// Path, inode and time of the last change of all that is below a directory and is none.
fn inodes(root: &Path) -> Vec<(PathBuf, u64, (i64, i64))> {
    let (mut all, mut open) = (Vec::new(), vec![root.to_owned()]);
    while let Some(path) = open.pop() {
        let stat = fs::symlink_metadata(&path).expect("stat");
        if stat.is_dir() {
            open.extend(fs::read_dir(&path).expect("read").map(|entry| entry.expect("read").path()));
            continue;
        }
        all.push((path, stat.ino(), (stat.ctime(), stat.ctime_nsec())));
    }
    all.sort_unstable();
    all
}

/// Goal: owners that this user cannot keep are nothing to copy for. Behind a copy with -aH of what others own
/// a second run sends nothing, makes and changes no inode, tells nothing (nor does a dry run), and counts
/// what is not kept as the first. What he can keep is mended, once.
/// Method: names of files, links and FIFOs of another user, with set-id bits, copied by nobody again and
/// again; then modes, a group and content that differ.
#[test]
fn owners_that_cannot_be_kept_are_no_difference() {
    need!("root", "setpriv");
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    room.dir("data/d");
    for name in ["a", "suid", "sgid", "alone", "alone-suid"] {
        room.file(&format!("data/{name}"), name.repeat(100));
    }
    for name in ["pipe", "alone-pipe"] {
        mknodat(CWD, data.join(name), FileType::Fifo, Mode::from_raw_mode(0o640), 0).expect("make a FIFO");
    }
    for name in ["link", "alone-link"] {
        std::os::unix::fs::symlink("a", data.join(name)).expect("a link");
    }
    for (name, further) in
        [("a", "b"), ("a", "d/c"), ("suid", "d/s"), ("sgid", "t"), ("pipe", "q"), ("link", "m")]
    {
        fs::hard_link(data.join(name), data.join(further)).expect("a hard link");
    }
    let all =
        ["", "d", "a", "suid", "sgid", "alone", "alone-suid", "pipe", "alone-pipe", "link", "alone-link"];
    for name in all {
        std::os::unix::fs::lchown(data.join(name), Some(1234), Some(55)).expect("give it away");
    }
    for (name, mode) in [("d", 0o2755), ("suid", 0o4755), ("sgid", 0o2755), ("alone-suid", 0o4755)] {
        set_mode(&data.join(name), mode);
    }
    age(&data);
    chown(&sink, Some(65534), Some(65534)).expect("give it away");
    let run = |options: &[&str]| {
        let haul = Way::Here.cp(options, &[contents(&data)], &sink);
        haul.run_by_nobody(&room).run().sane().exits(0)
    };
    let told = |options: &[&str]| {
        let haul = Way::Here.plain(options, &[contents(&data)], &sink);
        String::from_utf8(haul.run_by_nobody(&room).run().exits(0).stdout).expect("text")
    };
    let lost = |run: &Outcome| run.summary().0["not_kept"].to_string();
    let first = run(&["-aH"]);
    assert!(lost(&first).contains("owners or groups not set"), "{}", first.describe());
    let made = inodes(&sink);
    for round in 0..2 {
        assert_eq!((told(&["-aHin"]), told(&["-aHi"])), Default::default(), "{round}");
        for options in [&["-aHn"][..], &["-aH"]] {
            let again = run(options);
            assert_eq!(lost(&again), lost(&first), "{options:?} {}", again.describe());
            let summary = again.summary();
            let counts = ["files", "hard_links", "bytes_sent"].map(|name| summary.number(name));
            assert_eq!(counts, [0, 0, 0], "{options:?} {}", again.describe());
        }
        assert_eq!(inodes(&sink), made, "{round}");
        // In place it is none either.
        assert_eq!(told(&["-aHi", "--in-place"]), "");
    }
    // What he can keep is sent again where several names are of it, and no more than once.
    set_mode(&data.join("a"), 0o600);
    chown(data.join("a"), Some(65534), Some(65534)).expect("give it to nobody");
    chown(data.join("sgid"), None, Some(65534)).expect("give it to his group");
    set_mode(&data.join("sgid"), 0o2755);
    fs::write(data.join("suid"), "another").expect("write");
    set_mode(&data.join("suid"), 0o4755);
    assert_eq!(run(&["-aH"]).summary().number("files"), 3);
    let mode = |name: &str| fs::metadata(sink.join(name)).expect("stat").mode() & 0o7777;
    assert_eq!((mode("d/c"), mode("d/s"), mode("t")), (0o600, 0o755, 0o2755));
    assert_eq!(owner(&sink.join("sgid")), (65534, 65534));
    assert_eq!(run(&["-aH"]).summary().number("files"), 0);
    // A set-id bit that is not the owner's to be goes.
    set_mode(&sink.join("suid"), 0o4755);
    run(&["-aH"]);
    assert_eq!((mode("suid"), mode("d/s")), (0o755, 0o755));
    assert_eq!(told(&["-aHi"]), "");
}

/// Goal: a program of another user that was written in place, and lost its set-id bits for that, is not sent
/// again by each run in place: that is told as not kept, and a copy that is not in place mends it.
#[test]
fn set_id_bits_that_are_lost_in_place_are_no_difference() {
    need!("root");
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    let source = room.file("data/program", "old");
    let own = || {
        chown(&source, Some(1234), Some(55)).expect("give it away");
        set_mode(&source, 0o6755);
    };
    own();
    let copy = |options: &[&str]| Way::Here.cp(options, &[contents(&data)], &sink).run().sane().exits(0);
    let mode = || fs::metadata(sink.join("program")).expect("stat").mode() & 0o7777;
    copy(&["-a"]);
    assert_eq!(mode(), 0o6755);
    fs::write(&source, "newer").expect("write");
    own();
    let lost = |run: Outcome| run.summary().0["not_kept"].to_string();
    let foreseen = lost(copy(&["-a", "--in-place", "-n"]));
    assert_eq!(lost(copy(&["-a", "--in-place"])), foreseen);
    assert_eq!((mode(), owner(&sink.join("program"))), (0o755, (1234, 55)));
    for options in [&["-a", "--in-place", "-n"][..], &["-a", "--in-place"]] {
        let again = copy(options);
        assert_eq!((again.summary().number("files"), mode()), (0, 0o755), "{}", again.describe());
        assert_eq!(lost(again), foreseen, "{options:?}");
    }
    assert_eq!(copy(&["-a"]).summary().number("files"), 1);
    assert_eq!(mode(), 0o6755);
}

/// Goal: who has nobody's number at the destination's host owns nothing there by a name: his entries come
/// without an owner, each is named and the run is partial, in a dry run too, and the next run sends nothing.
/// As the one that files are to belong to he is refused before anything is made.
/// Method: a pull to a host where `daemon` has the number 4294967295, as a user, as a group, and as both.
#[test]
fn nobodys_number_is_refused_by_name() {
    need!("unshare", "sshd", "root");
    let way = Way::all().pop().expect("a pull");
    for (near, whose) in [((u32::MAX, 7), "user"), ((7, u32::MAX), "group"), ((u32::MAX, u32::MAX), "user")] {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.at("sink"));
        room.dir("data/d");
        for name in ["f", "d/g", "roots"] {
            room.file(&format!("data/{name}"), name);
        }
        fs::hard_link(data.join("f"), data.join("d/f")).expect("a hard link");
        std::os::unix::fs::symlink("f", data.join("link")).expect("a link");
        mknodat(CWD, data.join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o640), 0).expect("make a FIFO");
        for name in ["f", "d", "d/g", "link", "pipe"] {
            std::os::unix::fs::lchown(data.join(name), Some(far().0), Some(far().1)).expect("give it away");
        }
        set_mode(&data.join("f"), 0o6755);
        let run = |options: &[&str]| {
            elsewhere_with(&room, way.cp(options, &[contents(&data)], &sink), near).run().sane()
        };
        let says = format!("{whose} daemon has the number 4294967295 at the destination's host");
        let dry = run(&["-aHn"]).exits(3).says(&says);
        assert_eq!(dry.summary().number("failed"), 5, "{}", dry.describe());
        for round in 0..2 {
            let copied = run(&["-aH"]).exits(3).says(&says);
            let summary = copied.summary();
            assert_eq!(summary.number("failed"), 5, "{}", copied.describe());
            assert!(round == 0 || summary.number("bytes_sent") == 0, "{}", copied.describe());
            for name in ["f", "d", "d/g", "link", "pipe", "roots"] {
                assert_eq!(owner(&sink.join(name)), (0, 0), "{name}");
            }
            assert_eq!(fs::read(sink.join("d/f")).expect("read"), b"f");
            let mode = |name: &str| fs::metadata(sink.join(name)).expect("stat").mode() & 0o7777;
            assert_eq!((mode("f"), mode("pipe")), (0o755, 0o640));
        }
        let option = if whose == "user" { "--chown=daemon" } else { "--chown=:daemon" };
        let nowhere = room.at("nowhere");
        for more in ["-a", "-an"] {
            let haul = way.cp(&[more, option], &[contents(&data)], &nowhere);
            elsewhere_with(&room, haul, near).run().exits(2).says(&says);
            assert!(!nowhere.exists());
        }
    }
}
