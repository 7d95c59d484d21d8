//! The list of what a copy changes: before it, and after.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::support::run::{Haul, Outcome};
use crate::support::way::{Way, contents};
use crate::support::{Room, set_mode};

/// A time that all ends keep.
const THEN: u64 = 1_000_000_000;

fn set_time(path: &Path, seconds: u64) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    let file = fs::File::open(path).expect("open what gets a time");
    file.set_times(fs::FileTimes::new().set_modified(time)).expect("set the time");
}

/// A source and a destination that differ in every way that an entry can; all times are the same but those
/// that are meant.
fn different(room: &Room) {
    for (path, content) in [
        ("s/new", "a"),
        ("s/size", "bb"),
        ("d/size", "x"),
        ("s/time", "c"),
        ("d/time", "c"),
        ("s/both", "dd"),
        ("d/both", "d"),
        ("s/mode", "p"),
        ("d/mode", "p"),
        ("s/same", "e"),
        ("d/same", "e"),
        ("s/sub/deep", "f"),
        ("s/there/in", "g"),
        ("s/was-link", "h"),
        ("d/was-file", "i"),
        ("d/only-here", "j"),
        ("s/made/deep/er", "k"),
    ] {
        if let Some((dir, _)) = path.rsplit_once('/') {
            room.dir(dir);
        }
        set_time(&room.file(path, content), THEN);
    }
    for (path, target) in [
        ("s/link-new", "t"),
        ("s/link-other", "t"),
        ("d/link-other", "o"),
        ("s/link-same", "t"),
        ("d/link-same", "t"),
        ("d/was-link", "t"),
        ("s/was-file", "t"),
    ] {
        symlink(target, room.at(path)).expect("make a link");
        let at = format!("@{THEN}");
        let touched = Command::new("touch").args(["-h", "-d", &at]).arg(room.at(path)).status();
        assert!(touched.expect("run touch").success());
    }
    set_mode(&room.at("d/mode"), 0o600);
    for (path, seconds) in [
        ("d/time", 5),
        ("d/both", 5),
        ("s/sub", THEN),
        ("s/made/deep", THEN),
        ("s/made", THEN),
        ("s/there", THEN),
    ] {
        set_time(&room.at(path), seconds);
    }
    for (path, seconds) in [("d/sub", 7), ("d/there", THEN)] {
        set_time(&room.dir(path), seconds);
    }
    for root in ["s", "d"] {
        set_time(&room.at(root), THEN);
    }
}

/// The lines of stdout, sorted.
fn listed(ended: &Outcome) -> Vec<String> {
    let mut lines: Vec<String> = String::from_utf8_lossy(&ended.stdout).lines().map(String::from).collect();
    lines.sort();
    lines
}

/// Goal: a dry run looks at the destination and says in rsync's letters what rsync would say, and a real run
/// says the same as it goes; the second run has nothing to say, and counts nothing.
/// Method: a tree that differs in every way, held against rsync's own list of the same pair; over each way.
#[test]
fn a_dry_run_says_what_rsync_says_and_the_copy_does_it() {
    need!("rsync");
    for way in Way::all() {
        let room = Room::new();
        different(&room);
        let (from, to) = (contents(&room.at("s")), room.at("d"));
        let rsync = Command::new("rsync")
            .args(["-nrlpt", "--out-format=%i %n"])
            .args([&from, to.as_os_str()])
            .output();
        let rsync = String::from_utf8(rsync.expect("run rsync").stdout).expect("text");
        let sends = matches!(way, Way::Push(_));
        let mut want: Vec<String> = rsync
            .lines()
            .filter(|line| !line.ends_with(" ./"))
            .map(|line| if sends { line.replacen('>', "<", 1) } else { line.into() })
            .collect();
        want.sort();
        assert!(want.len() >= 14, "{want:?}");
        let dry = way.plain(&["-rni"], &[&from], &to).run().sane().exits(0);
        assert_eq!(listed(&dry), want, "{}\n{}", way.name(), dry.describe());

        // Raw names between NULs are the same ones.
        let raw = way.plain(&["-rni0"], &[&from], &to).run().sane().exits(0);
        let mut raw: Vec<String> = raw
            .stdout
            .split(|byte| *byte == 0)
            .map(|line| String::from_utf8_lossy(line).into_owned())
            .collect();
        raw.retain(|line| !line.is_empty());
        raw.sort();
        assert_eq!(raw, want, "{}", way.name());

        let totals = way.cp(&["-rn"], &[&from], &to).run().sane().exits(0).summary();
        let kind = |kind: char| want.iter().filter(|line| line.chars().nth(1) == Some(kind)).count() as u64;
        let copied = want.iter().filter(|line| line.starts_with(['<', '>'])).count() as u64;
        let counted = ["files", "dirs", "symlinks"].map(|name| totals.number(name));
        assert_eq!(counted, [copied, kind('d'), kind('L')], "{}: {totals:?}", way.name());
        assert_eq!(totals.number("unchanged"), 2, "{}: {totals:?}", way.name());
        let amended = want.iter().filter(|line| line.starts_with(".f")).count() as u64;
        assert_eq!(totals.number("metadata_only"), amended, "{}: {totals:?}", way.name());

        let real = way.plain(&["-ri"], &[&from], &to).run().sane().exits(0);
        assert_eq!(listed(&real), want, "{}\n{}", way.name(), real.describe());

        let again = way.plain(&["-ri"], &[&from], &to).run().sane().exits(0);
        assert_eq!(listed(&again), Vec::<String>::new(), "{}", way.name());
        let again = way.cp(&["-r"], &[&from], &to).run().sane().exits(0).summary();
        let counted = ["files", "dirs", "symlinks", "failed"].map(|name| again.number(name));
        assert_eq!(counted, [0; 4], "{}: {again:?}", way.name());
        assert!(again.0["limited_by"].is_null(), "nothing was limited: {again:?}");
    }
}

/// Goal: the short form lists ten and says how many more there are, on stdout; a single file is shown under
/// its new name.
/// Method: fifteen files to a destination that is not there; one file to a new name.
#[test]
fn the_short_list_says_how_many_more() {
    for way in Way::all() {
        let room = Room::new();
        for index in 0..15 {
            room.dir("s");
            room.file(&format!("s/f{index:02}"), "x");
        }
        let dry = way.plain(&["-rn"], &[contents(&room.at("s"))], room.at("d")).run().sane().exits(0);
        let lines = String::from_utf8_lossy(&dry.stdout).into_owned();
        assert_eq!(lines.lines().count(), 11, "{}: {lines}", way.name());
        assert!(lines.contains("/d/f") && lines.ends_with("and 5 more (-i lists them all)\n"), "{lines}");
        assert!(dry.stderr.contains("would copy 15 files"), "{}", dry.describe());
        // Metadata alone is a change that is listed and counted.
        let (meta, to) = (room.dir("meta"), room.dir("to"));
        for dir in [&meta, &to] {
            set_time(&room.file(&format!("{}/f", dir.display()), "x"), THEN);
        }
        set_mode(&to.join("f"), 0o600);
        let alone =
            way.plain(&["-rn"], &[contents(&meta)], &to).run().sane().exits(0).says("1 file: metadata only");
        let line = String::from_utf8_lossy(&alone.stdout).into_owned();
        assert!(
            line.lines().count() == 1 && line.ends_with("/to/f (metadata only)\n"),
            "{}: {line}",
            way.name()
        );
        let one = way.plain(&["-n"], &[room.at("s/f00")], room.at("new-name")).run().sane().exits(0);
        let line = String::from_utf8_lossy(&one.stdout).into_owned();
        assert!(line.contains("s/f00 -> ") && line.contains("/new-name (1 B)\n"), "{}: {line}", way.name());
        assert!(!room.at("d").exists() && !room.at("new-name").exists());
        // Of what is there already, mode alone differs: that is listed and counted too, and it is not
        // unchanged.
        way.plain(&["-r"], &[contents(&room.at("s"))], room.at("d")).run().sane().exits(0);
        set_mode(&room.at("s/f03"), 0o600);
        let dry = way.plain(&["-rn"], &[contents(&room.at("s"))], room.at("d")).run().sane().exits(0);
        let line = String::from_utf8_lossy(&dry.stdout).into_owned();
        assert!(line.contains("/d/f03 (metadata only)\n") && line.lines().count() == 1, "{line}");
        for part in ["14 unchanged\n", "1 file: metadata only\n"] {
            assert!(dry.stderr.contains(part), "{}: {}", way.name(), dry.describe());
        }
    }
}

/// Goal: what lies in directories that are the user's own and closed to him is no failure of a dry run, for a
/// copy opens them: it is counted and told, and no mode changes. What a copy could not open fails in both.
/// Method: destinations of an unprivileged user closed in several ways, above files, links and directories;
/// then the copy.
#[test]
fn a_dry_run_tells_what_it_cannot_look_at() {
    need!("setpriv");
    let nobody = |path: &Path| {
        std::os::unix::fs::chown(path, Some(65534), Some(65534)).expect("give it away");
    };
    for (mode, open) in [(0o000, false), (0o600, false), (0o300, false), (0o500, true)] {
        let room = Room::new();
        for path in ["s", "s/c", "s/c/sub", "d", "d/c", "d/c/sub"] {
            nobody(&room.dir(path));
        }
        for path in ["s/c/f", "d/c/f", "s/c/sub/g", "s/new"] {
            nobody(&room.file(path, "x"));
            set_time(&room.at(path), THEN);
        }
        symlink("t", room.at("s/c/link")).expect("link");
        set_mode(&room.at("d/c"), mode);
        let run = |options: &[&str]| {
            Haul::new(["cp", "-r"])
                .args(options)
                .args([contents(&room.at("s")), room.at("d").into()])
                .run_by_nobody(&room)
                .run()
                .sane()
                .exits(0)
        };
        let dry = run(&["-n", "-i"]);
        let told = dry.stderr.contains("not looked at: 4 entries in directories that are closed to you");
        assert_eq!(told, !open, "{mode:o}\n{}", dry.describe());
        assert!(listed(&dry).contains(&">f+++++++++ new".to_owned()), "{}", dry.describe());
        let stat = fs::metadata(room.at("d/c")).expect("stat");
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&stat.permissions()) & 0o777, mode);
        let copied = listed(&run(&["-i"]));
        assert!(copied.contains(&">f+++++++++ c/sub/g".to_owned()), "{mode:o}: {copied:?}");
        assert!(!copied.iter().any(|line| line.ends_with(" c/f")), "{mode:o}: {copied:?}");
    }
    // Another user's, which a copy cannot open either.
    let room = Room::new();
    for path in ["s", "s/c", "d"] {
        nobody(&room.dir(path));
    }
    nobody(&room.file("s/c/f", "x"));
    set_mode(&room.dir("d/c"), 0o700);
    for options in [&["-n"][..], &[]] {
        let run = Haul::new(["cp", "-r"]).args(options).args([contents(&room.at("s")), room.at("d").into()]);
        run.run_by_nobody(&room).run().sane().exits(3);
    }
}
