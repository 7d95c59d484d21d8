//! Modes and owners that the destination gets instead of the source's: `--chmod`, `--chown`, `--usermap` and
//! `--groupmap`, held against rsync where it is there.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{FileType, Mode};

use crate::support::beside::beside;
use crate::support::ftpd::{Ftpd, Kind};
use crate::support::run::Haul;
use crate::support::way::{Way, contents};
use crate::support::{Room, set_mode};

/// Mode and owners of all that is below a directory, and of itself, by path.
fn told(root: &Path) -> Vec<(PathBuf, String)> {
    let mut all = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(path) = open.pop() {
        let stat = fs::symlink_metadata(&path).expect("stat");
        let mode = if stat.is_symlink() { 0 } else { stat.mode() };
        let below = path.strip_prefix(root).expect("below").to_owned();
        all.push((below, format!("{mode:o} {} {} {}", stat.uid(), stat.gid(), stat.nlink())));
        if stat.is_dir() {
            open.extend(fs::read_dir(&path).expect("read").map(|entry| entry.expect("read").path()));
        }
    }
    all.sort_unstable();
    all
}

/// A tree with modes of every kind, a link, a file with two names and a FIFO.
fn modes(room: &Room) -> PathBuf {
    let data = room.dir("data");
    for (dir, mode) in [("d", 0o755), ("d/open", 0o1777), ("closed", 0o700), ("group", 0o2775)] {
        room.dir(&format!("data/{dir}"));
        set_mode(&data.join(dir), mode);
    }
    for (file, mode) in [
        ("f", 0o644),
        ("d/run", 0o755),
        ("d/mine", 0o600),
        ("d/open/all", 0o666),
        ("x", 0o711),
        ("none", 0o400),
    ] {
        room.file(&format!("data/{file}"), file.repeat(3));
        set_mode(&data.join(file), mode);
    }
    room.file("data/large", "large ".repeat(100_000));
    fs::hard_link(data.join("f"), data.join("d/also-f")).expect("a hard link");
    std::os::unix::fs::symlink("f", data.join("link")).expect("a link");
    let fifo = rustix::fs::CWD;
    rustix::fs::mknodat(fifo, data.join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o640), 0)
        .expect("a FIFO");
    data
}

fn rsync(options: &[&str], data: &Path, sink: &Path) {
    let mut rsync = Command::new("rsync");
    rsync.args(options).arg(contents(data)).arg(sink);
    assert!(rsync.status().expect("run rsync").success(), "{options:?}");
}

/// What a run with these options changes, as it says itself, in order.
fn changes(haul: Haul) -> Vec<String> {
    let said = String::from_utf8(haul.run().exits(0).stdout).expect("text");
    let mut lines: Vec<String> = said.lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

/// None.
const NOTHING: [&str; 0] = [];

/// Goal: what comes has the modes that rsync gives it, the destination itself too; a second run and a dry
/// one change nothing, and what differs in its mode alone gets it without data.
/// Method: each text, on each way, beside rsync; then the same copy once without the option and once with.
#[test]
fn modes_are_those_of_rsync() {
    need!("rsync", "root");
    for way in Way::all() {
        let room = Room::new();
        let data = modes(&room);
        set_mode(&data, 0o751);
        // Which end does what is the same for each of them.
        let texts = if way.name() == "here" { usize::MAX } else { 3 };
        for (at, text) in [
            "D2755,F640",
            "u=rwX,go=",
            "Dg+s,ug+rwX,o-w",
            "go-rwx",
            "+X",
            "a+rX,D+t",
            "-w",
            "=rw",
            "Fa-x,F+X",
            "0",
        ]
        .into_iter()
        .enumerate()
        .take(texts)
        {
            let (sink, theirs) = (room.at(&format!("sink{at}")), room.at(&format!("rsync{at}")));
            let option = format!("--chmod={text}");
            let ours = ["-aH", &option];
            rsync(&ours, &data, &theirs);
            way.cp(&ours, &[contents(&data)], &sink).run().sane().exits(0);
            assert_eq!(told(&sink), told(&theirs), "{} {text}", way.name());
            for more in ["-aHi", "-aHin"] {
                let again = changes(way.plain(&[more, &option], &[contents(&data)], &sink));
                assert_eq!(again, NOTHING, "{} {text} {more}", way.name());
            }
        }
        // From the modes of the source to others, and the other way.
        let sink = room.at("both");
        way.cp(&["-aH"], &[contents(&data)], &sink).run().sane().exits(0);
        let inode = fs::metadata(sink.join("large")).expect("stat").ino();
        let options = ["--chmod=Fg+w", "--chmod", "Do-rx"];
        let would = changes(way.plain(&[&["-aHin"][..], &options].concat(), &[contents(&data)], &sink));
        let done = changes(way.plain(&[&["-aHi"][..], &options].concat(), &[contents(&data)], &sink));
        assert_eq!(would, done, "{}", way.name());
        for line in [".f...p..... large", ".d...p..... d/", ".d...p..... ./", ".S...p..... pipe"] {
            assert!(done.iter().any(|said| said == line), "{}: {line}: {done:?}", way.name());
        }
        // What has other names as well is never changed where it stands.
        let twins = |line: &&String| line.ends_with(" f") || line.contains("also-f");
        assert!(done.iter().filter(|l| !twins(l)).all(|l| l.starts_with('.')), "{}: {done:?}", way.name());
        assert_eq!(fs::metadata(sink.join("large")).expect("stat").ino(), inode);
        assert!(told(&sink) != told(&data));
        way.cp(&["-aH"], &[contents(&data)], &sink).run().sane().exits(0);
        assert_eq!(told(&sink), told(&data), "{}", way.name());
    }
}

/// Goal: without -a, too, and for a single file under another name; set-id bits stay only with their owner;
/// what is no text of a mode is wrong usage, and so is -A with it.
#[test]
fn modes_of_files_alone() {
    for way in Way::all() {
        let room = Room::new();
        let (file, sink) = (room.file("a", "a"), room.at("sink/b"));
        set_mode(&file, 0o640);
        room.dir("sink");
        for again in ["", "-q"] {
            let options: Vec<&str> =
                ["-i", "--chmod=u+x,o=r", again].into_iter().filter(|o| !o.is_empty()).collect();
            let said = changes(way.plain(&options, &[&file], &sink));
            assert_eq!(said.is_empty(), !again.is_empty(), "{said:?}");
            assert_eq!(fs::metadata(&sink).expect("stat").mode() & 0o7777, 0o744, "{}", way.name());
        }
        way.cp(&["--chmod=u+s,o=r", "--force"], &[&file], &sink).run().sane().exits(0);
        assert_eq!(fs::metadata(&sink).expect("stat").mode() & 0o7777, 0o644, "{}", way.name());
        way.cp(&["--chmod=rw"], &[&file], &sink).run().exits(2).says("'rw'");
        way.cp(&["-A", "--chmod=o-r"], &[&file], &sink).run().exits(2).says("--chmod");
    }
}

/// Goal: modes are changed on their way to a server and from one, too, and a second run changes nothing;
/// owners are not mapped there, which is said.
/// Method: each kind of server that takes modes and tells them.
#[test]
fn modes_change_on_the_way_to_servers() {
    beside(Kind::here(), |kind| {
        if !kind.has_mlsd() {
            return;
        }
        let (room, ftpd) = (Room::new(), Ftpd::start(kind));
        let (data, sink, back) = (room.dir("data"), room.dir("sink"), room.at("back"));
        for (name, mode) in [("a", 0o644), ("run", 0o755)] {
            set_mode(&room.file(&format!("data/{name}"), name), mode);
        }
        room.dir("data/d");
        room.file("data/d/b", "b");
        let mode = |path: &Path| fs::metadata(path).expect("stat").mode() & 0o7777;
        let (url, chmod) = (ftpd.url(&sink), "--chmod=D755,Fg+w,Fo-r");
        Haul::cp(["-r", chmod]).args([contents(&data)]).args([&url]).run().sane().exits(0);
        let got = ["a", "run", "d", "d/b"].map(|name| mode(&sink.join(name)));
        assert_eq!(got, [0o660, 0o771, 0o755, 0o660], "{kind:?}");
        let again = Haul::cp(["-r", chmod]).args([contents(&data)]).args([&url]).run().sane().exits(0);
        assert_eq!(again.summary().number("bytes_sent"), 0, "{kind:?}: {}", again.describe());
        let chmod = "--chmod=D700,F600";
        Haul::cp(["-r", chmod]).args([format!("{url}/")]).args([&back]).run().sane().exits(0);
        let got = ["a", "run", "d", "d/b"].map(|name| mode(&back.join(name)));
        assert_eq!(got, [0o600, 0o600, 0o700, 0o600], "{kind:?}");
        let refused = Haul::cp(["-a", "--chown=root"]).args([contents(&data)]).args([&url]);
        refused.run().exits(2).says("is a server");
    });
}

/// Owners that every host has as names, with numbers, and one that none knows.
fn owned(room: &Room) -> PathBuf {
    let data = room.dir("data");
    let table = |file: &str, name: &str| {
        let table = fs::read_to_string(file).expect("read");
        let line =
            table.lines().find(|line| line.starts_with(&format!("{name}:"))).expect("every host has it");
        line.split(':').nth(2).expect("a number").parse::<u32>().expect("a number")
    };
    for (name, user, group) in [
        ("daemon", table("/etc/passwd", "daemon"), table("/etc/group", "daemon")),
        ("bin", table("/etc/passwd", "bin"), table("/etc/group", "bin")),
        ("unknown", 41_000, 41_001),
        ("another", 45_000, 45_001),
        ("root", 0, 0),
    ] {
        room.dir(&format!("data/{name}"));
        let file = room.file(&format!("data/{name}/file"), name);
        std::os::unix::fs::symlink("file", data.join(name).join("link")).expect("a link");
        fs::hard_link(&file, data.join(name).join("twin")).expect("a hard link");
        for path in [data.join(name), file, data.join(name).join("link")] {
            std::os::unix::fs::lchown(path, Some(user), Some(group)).expect("give it away");
        }
    }
    chown(&data, Some(41_000), Some(41_001)).expect("give it away");
    data
}

/// Goal: who stands for whom is as with rsync: by name, number, range, pattern and the lack of a name, the
/// first that fits, of files, links, directories and the destination itself; then nothing is left to do.
/// Method: maps on each way, beside rsync on this host.
#[test]
fn owners_are_mapped_as_rsync_maps_them() {
    need!("rsync", "root");
    for way in Way::all() {
        let room = Room::new();
        let data = owned(&room);
        for (at, options) in [
            &["--chown=daemon:bin"][..],
            &["--chown=12345"],
            &["--chown=:12346"],
            &["--usermap=daemon:bin,0-999:777,*:778"],
            &["--usermap=41000:bin", "--groupmap=41001-45001:daemon"],
            &["--usermap=d*:1,?in:2,:3", "--groupmap=[a-c]*:4,root:5,*:6"],
            &["--usermap=bin:daemon,daemon:bin", "--groupmap=bin:daemon,daemon:bin"],
            &["--numeric-ids", "--usermap=0-100:9,*:10"],
            &["--groupmap=41000-41002:root"],
        ]
        .into_iter()
        .enumerate()
        {
            let (sink, theirs) = (room.at(&format!("sink{at}")), room.at(&format!("rsync{at}")));
            let all = |first| [&[first][..], options].concat();
            rsync(&all("-aH"), &data, &theirs);
            way.cp(&all("-aH"), &[contents(&data)], &sink).run().sane().exits(0);
            assert_eq!(told(&sink), told(&theirs), "{} {options:?}", way.name());
            for more in ["-aHi", "-aHin"] {
                let again = changes(way.plain(&all(more), &[contents(&data)], &sink));
                assert_eq!(again, NOTHING, "{} {options:?} {more}", way.name());
            }
        }
        // What differs in its owner alone gets it where it stands, and a dry run says so.
        let sink = room.at("both");
        way.cp(&["-aH"], &[contents(&data)], &sink).run().sane().exits(0);
        let map = "--usermap=41000:41001";
        let would = changes(way.plain(&["-aHin", map], &[contents(&data)], &sink));
        let done = changes(way.plain(&["-aHi", map], &[contents(&data)], &sink));
        assert_eq!(would, done, "{}", way.name());
        let of_file = |line: &&String| line.contains("unknown/file") || line.contains("unknown/twin");
        let (of_file, others): (Vec<_>, Vec<_>) = done.iter().partition(of_file);
        // What has other names as well is never changed where it stands.
        let sent = if way.name() == "push" { "<" } else { ">" };
        assert!(of_file[0].starts_with(&format!("{sent}f....o.... unknown/")), "{}: {done:?}", way.name());
        let wanted = [".L....o.... unknown/link", ".d....o.... ./", ".d....o.... unknown/"];
        assert!(others.len() == wanted.len(), "{}: {done:?}", way.name());
        for (line, wanted) in others.iter().zip(wanted) {
            assert!(line.starts_with(wanted), "{}: {line}", way.name());
        }
    }
}

/// Goal: with -a directories have the set-id and sticky bits of their sources and no others, whether they
/// stood there, were made in one that hands its own on, or are the destination itself, as with rsync; a dry
/// run says it before. Without -a those that stand keep their setgid, and what is made has its parent's.
/// Method: each way, into directories with other bits, beside rsync.
#[test]
fn set_id_bits_of_directories_are_those_of_the_source() {
    need!("rsync", "root");
    for way in Way::all() {
        let room = Room::new();
        let data = room.dir("data");
        let dirs =
            [("none", 0o755), ("set", 0o2775), ("sticky", 0o1777), ("none/deep", 0o700), ("user", 0o4755)];
        for (dir, mode) in dirs {
            set_mode(&room.dir(&format!("data/{dir}")), mode);
        }
        set_mode(&data, 0o755);
        let stood = |name: &str, mode: u32| {
            let sink = room.dir(name);
            for dir in ["", "none", "set", "sticky", "user"] {
                set_mode(&room.dir(&format!("{name}/{dir}")), mode);
                chown(sink.join(dir), None, Some(55)).expect("give it to a group");
                set_mode(&sink.join(dir), mode);
            }
            sink
        };
        for mode in [0o2755, 0o7755, 0o6711, 0o1755] {
            let (sink, theirs) =
                (stood(&format!("sink{mode:o}"), mode), stood(&format!("rsync{mode:o}"), mode));
            rsync(&["-a"], &data, &theirs);
            let would = changes(way.plain(&["-ain"], &[contents(&data)], &sink));
            let done = changes(way.plain(&["-ai"], &[contents(&data)], &sink));
            assert_eq!(would, done, "{} {mode:o}", way.name());
            assert!(done.iter().any(|line| line.starts_with(".d") && line.ends_with(" none/")), "{done:?}");
            assert_eq!(told(&sink), told(&theirs), "{} {mode:o}", way.name());
            for more in ["-ai", "-ain"] {
                assert_eq!(
                    changes(way.plain(&[more], &[contents(&data)], &sink)),
                    NOTHING,
                    "{mode:o} {more}"
                );
            }
        }
        let sink = stood("without", 0o2750);
        way.cp(&["-r"], &[contents(&data)], &sink).run().sane().exits(0);
        let mode = |name: &str| fs::metadata(sink.join(name)).expect("stat").mode() & 0o7777;
        assert_eq!((mode(""), mode("none"), mode("none/deep")), (0o2750, 0o2755, 0o2700), "{}", way.name());
    }
}

/// Goal: set-id bits go with the owner that a file gets, and stay only where it has him.
#[test]
fn setid_goes_with_the_new_owner() {
    need!("root");
    for way in Way::all() {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.at("sink"));
        let file = room.file("data/program", "x");
        chown(&file, Some(41_000), Some(41_001)).expect("give it away");
        set_mode(&file, 0o6755);
        let options = ["-a", "--chown=41002:41003"];
        way.cp(&options, &[contents(&data)], &sink).run().sane().exits(0);
        let stat = fs::metadata(sink.join("program")).expect("stat");
        assert_eq!(
            (stat.uid(), stat.gid(), stat.mode() & 0o7777),
            (41_002, 41_003, 0o6755),
            "{}",
            way.name()
        );
    }
}

/// Goal: whom nobody knows at the destination ends the copy before anything is made; maps without -a, or by
/// name with --numeric-ids, are wrong usage, and say what to do.
#[test]
fn what_cannot_be_mapped_is_refused() {
    for way in Way::all() {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.at("sink"));
        room.file("data/f", "x");
        for option in ["--chown=no-such-user-of-haul", "--groupmap=1:2,*:no-such-group-of-haul"] {
            for more in ["-a", "-an"] {
                way.cp(&[more, option], &[contents(&data)], &sink).run().exits(2).says("no-such-");
                assert!(!sink.exists(), "{} {option} {more}", way.name());
            }
        }
        for (options, says) in [
            (&["-r", "--chown=root"][..], "give -a"),
            (&["-r", "--usermap=1:2"], "give -a"),
            (&["-a", "--numeric-ids", "--usermap=bin:2"], "--numeric-ids"),
            (&["-a", "--usermap=bin:"], "behind the colon"),
            (&["-a", "--chown=a", "--usermap=1:2"], "leave one of them out"),
            (&["-a", "--chown=4294967295"], "is no number"),
            (&["-a", "--chown=:04294967295"], "is no number"),
            (&["-a", "--usermap=*:4294967295"], "is no number"),
            (&["-a", "--groupmap=0-4294967295:1"], "is no number"),
            (&["-a", "--chown=-1"], "there is no user -1"),
        ] {
            way.cp(options, &[contents(&data)], &sink).run().exits(2).says(says);
            assert!(!sink.exists(), "{} {options:?}", way.name());
        }
    }
}
