//! What a copy that nothing disturbs does: the same tree at the other end, nothing sent twice, no trace left.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use crate::support::compare::{
    ALL, BELOW, Opts, assert_no_debris, assert_same, differences, snapshot, snapshot_of_files,
};
use crate::support::disk::{Disk, Kind};
use crate::support::run::{Haul, program, strace_args};
use crate::support::sshd::Sshd;
use crate::support::way::{Way, contents};
use crate::support::{Room, procs, read, set_mode, tree};

/// Goal: a tree with every size, name, mode, time and link arrives as it is, whichever way it goes, and a
/// second run sends no payload, changes nothing and counts every file as unchanged.
/// Method: one seeded tree over each way, compared by code that is not haul's; then the same command again.
#[test]
fn trees_arrive_whole_and_only_once() {
    for way in Way::all() {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        tree::everything(&data, 1);
        let (files, bytes) = tree::totals(&data);
        let first = way.cp(&["-r"], &[&data], &sink).run().sane().exits(0).summary();
        assert_same(&data, &sink.join("data"), ALL);
        assert_eq!(first.text("status"), "complete", "{}", way.name());
        assert_eq!((first.number("files"), first.number("bytes")), (files, bytes), "{}", way.name());
        assert!(first.number("bytes_sent") >= bytes, "{}: {first:?}", way.name());
        assert_no_debris(&sink);

        let before = snapshot_of_files(&sink);
        let second = way.cp(&["-r"], &[&data], &sink).run().sane().exits(0).summary();
        assert_eq!(second.number("bytes_sent"), 0, "{}: {second:?}", way.name());
        assert_eq!(second.number("unchanged"), files, "{}: {second:?}", way.name());
        let counted = ["files", "dirs", "symlinks", "bytes"].map(|name| second.number(name));
        assert_eq!(counted, [0; 4], "{}: what was right is counted: {second:?}", way.name());
        assert_eq!(snapshot_of_files(&sink), before, "{}: a second run changed a file", way.name());
        assert_same(&data, &sink.join("data"), ALL);
    }
}

/// Goal: durability none copies the same tree and says so in the summary.
/// Method: one tree; the summary's word.
#[test]
fn durability_none_is_said() {
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    tree::plain(&data, 2, 100, 5_000_000);
    let none = Way::Here.cp(&["-r", "--durability=none"], &[&data], &sink).run().sane().exits(0).summary();
    assert_eq!(none.text("durability"), "none");
    assert_same(&data, &sink.join("data"), ALL);
    let disk = Way::Here.cp(&["-r", "--force"], &[&data], &sink).run().sane().exits(0).summary();
    assert_eq!(disk.text("durability"), "disk");
}

/// Goal: a limit on the rate is kept whichever end sends, and the summary names it as what limited.
/// Method: 6 MiB at 4 MiB/s over each way; it can only take longer than that, never less. (Where the far end
/// sends, what it waited is not known here, and a busy machine may be slower than the limit.)
#[test]
fn the_rate_limit_is_kept_and_named() {
    for way in Way::all() {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        tree::plain(&data, 4, 1, 6 << 20);
        let summary = way.cp(&["-r", "--rate", "4MiB/s"], &[&data], &sink).run().sane().exits(0).summary();
        assert_same(&data, &sink.join("data"), ALL);
        let (_, bytes) = tree::totals(&data);
        let least = bytes as f64 / f64::from(4 << 20) * 0.9;
        let seconds = summary.0["seconds"].as_f64().expect("seconds");
        assert!(seconds > least, "{}: {bytes} bytes in {seconds} s", way.name());
        if !matches!(way, Way::Pull(_)) {
            assert_eq!(summary.text("limited_by"), "rate_limit", "{}", way.name());
        }
    }
}

/// Goal: `-a` keeps modes and times as `-r` does.
/// Method: the seeded tree by `-a`.
#[test]
fn archive_copies_the_tree() {
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    tree::everything(&data, 3);
    Way::Here.cp(&["-a"], &[contents(&data)], &sink).run().sane().exits(0);
    assert_same(&data, &sink, BELOW);
}

/// Goal: setuid and setgid are dropped unless the owner is kept; the sticky bit stays.
/// Method: files with those bits over each way by `-r`.
#[test]
fn setuid_and_setgid_are_dropped() {
    for way in Way::all() {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        for mode in [0o4755, 0o2755, 0o6711, 0o1755] {
            set_mode(&room.file(&format!("data/{mode:o}"), "x"), mode);
        }
        way.cp(&["-r"], &[&data], &sink).run().sane().exits(0);
        assert_same(&data, &sink.join("data"), Opts { setid_dropped: true, ..ALL });
        for entry in fs::read_dir(sink.join("data")).expect("list the copy") {
            let mode = entry.expect("list the copy").metadata().expect("look at a copy").permissions().mode();
            assert_eq!(mode & 0o6000, 0, "{}", way.name());
        }
    }
}

/// Goal: nobody can read a copy while it arrives, and a private file's copy is never less private.
/// Method: a tree of mode 0600, 0400 and 0644 files, copied with the umask at 0; modes are looked at while
/// the large one arrives, and compared at the end.
#[test]
fn private_files_stay_private() {
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    set_mode(&room.file("data/secret", "x"), 0o600);
    set_mode(&room.file("data/read-only secret", "y"), 0o400);
    tree::random_file(&data.join("large"), &mut fastrand::Rng::with_seed(12), 24 << 20);
    set_mode(&data.join("large"), 0o644);
    let line = format!(
        "umask 0; exec '{}' cp -r --rate 12MB/s '{}' '{}'",
        program().display(),
        data.display(),
        sink.display()
    );
    let mut copy = Command::new("sh").args(["-c", &line]).stderr(Stdio::null()).spawn().expect("run a shell");
    let arriving = || {
        let entries = fs::read_dir(sink.join("data")).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.metadata().ok()).find(|data| data.len() > 1 << 20)
    };
    let mut seen = None;
    let mut status = None;
    procs::wait_until(Duration::from_secs(60), || {
        seen = arriving();
        status = copy.try_wait().expect("look at the copy");
        seen.is_some() || status.is_some()
    });
    let file = seen.expect("the copy was seen while it arrived");
    assert_eq!(file.permissions().mode() & 0o777, 0o600, "others may read what arrives");
    let dir = fs::metadata(sink.join("data")).expect("look at the directory");
    assert!(
        status.is_some() || dir.permissions().mode() & 0o777 == 0o700,
        "others may look into what arrives"
    );
    assert!(copy.wait().expect("the copy ends").success());
    assert_same(&data, &sink.join("data"), ALL);
}

/// Goal: an existing file is replaced when size or mtime differ, by a new inode, and skipped when both agree.
/// Method: three files, one untouched, one with another time, one with another size.
#[test]
fn changed_files_are_replaced_and_others_are_not() {
    for way in Way::all() {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        let mut rng = fastrand::Rng::with_seed(4);
        for name in ["same", "time", "size"] {
            tree::random_file(&data.join(name), &mut rng, 10_000);
        }
        way.cp(&["-r"], &[contents(&data)], &sink).run().exits(0);
        let inode = |name: &str| fs::metadata(sink.join(name)).expect("look at a copy").ino();
        let before = ["same", "time", "size"].map(inode);
        fs::write(data.join("time"), tree::bytes(&mut rng, 10_000)).expect("write");
        tree::random_file(&data.join("size"), &mut rng, 10_001);
        let again = way.cp(&["-r"], &[contents(&data)], &sink).run().sane().exits(0).summary();
        assert_eq!(again.number("unchanged"), 1, "{again:?}");
        assert_eq!(again.number("bytes_sent"), 20_001, "{again:?}");
        let after = ["same", "time", "size"].map(inode);
        assert_eq!(before[0], after[0]);
        assert!(before[1] != after[1] && before[2] != after[2], "a file was changed in place");
        assert_same(&data, &sink, BELOW);
    }
}

/// Goal: `--force` sends what would be skipped; `--no-clobber` keeps all that is there; `--update` keeps what
/// is newer.
/// Method: a sink file that differs, older or newer than its source; which content is there afterwards.
#[test]
fn force_no_clobber_and_update_choose() {
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let new = SystemTime::UNIX_EPOCH + Duration::from_secs(1_500_000_000);
    // (option, the sink's time, its content afterwards)
    for (option, time, expected) in [
        ("--no-clobber", old, "of the sink"),
        ("--no-clobber", new + Duration::from_secs(9), "of the sink"),
        ("--update", old, "of the source"),
        ("--update", new + Duration::from_secs(9), "of the sink"),
        ("--force", new + Duration::from_secs(9), "of the source"),
    ] {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        tree::set_mtime(&room.file("data/f", "of the source"), new);
        tree::set_mtime(&room.file("sink/f", "of the sink"), time);
        Way::Here.cp(&["-r", option], &[contents(&data)], &sink).run().sane().exits(0);
        assert_eq!(read(sink.join("f")), expected.as_bytes(), "{option} {time:?}");
        assert_no_debris(&sink);
    }
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    tree::plain(&data, 5, 3, 100_000);
    let (_, bytes) = tree::totals(&data);
    Way::Here.cp(&["-r"], &[contents(&data)], &sink).run().exits(0);
    let forced = Way::Here.cp(&["-r", "--force"], &[contents(&data)], &sink).run().sane().exits(0).summary();
    assert_eq!(forced.number("bytes_sent"), bytes, "{forced:?}");
}

/// Goal: a file never takes the place of a directory, nor the reverse; only that entry fails, nothing is
/// removed.
/// Method: both clashes beside a good file, over each way.
#[test]
fn kinds_that_clash_fail_alone() {
    for way in Way::all() {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        room.file("data/a", "a file");
        room.dir("data/b");
        room.file("data/b/inside", "inside");
        room.file("data/good", "good");
        room.dir("sink/a");
        room.file("sink/a/kept", "kept");
        room.file("sink/b", "kept too");
        let failures = room.at("failures");
        let option = format!("--failures={}", failures.display());
        let ended = way.cp(&["-r", &option], &[contents(&data)], &sink).run().sane().exits(3);
        assert_eq!(ended.summary().text("status"), "partial");
        assert_eq!(read(sink.join("a/kept")), b"kept");
        assert_eq!(read(sink.join("b")), b"kept too");
        assert_eq!(read(sink.join("good")), b"good");
        assert_no_debris(&sink);
        let listed = String::from_utf8_lossy(&read(&failures)).into_owned();
        assert!(
            listed.contains('a') && listed.contains('b') && listed.lines().count() >= 2,
            "failures: {listed:?}"
        );
    }
}

/// Goal: a symlink is copied as a link; one at the sink is replaced, never followed out of the destination.
/// Method: the sink has links to outside where the source has a file, a directory and a link.
#[test]
fn links_at_the_sink_are_not_followed() {
    for way in Way::all() {
        let room = Room::new();
        let (data, sink, outside) = (room.dir("data"), room.dir("sink"), room.dir("outside"));
        room.file("outside/file", "outside");
        room.file("data/file", "new");
        room.dir("data/dir");
        room.file("data/dir/escaped", "must not get out");
        symlink("new-target", data.join("link")).expect("make a symlink");
        symlink(outside.join("file"), sink.join("file")).expect("make a symlink");
        symlink(&outside, sink.join("dir")).expect("make a symlink");
        symlink("old-target", sink.join("link")).expect("make a symlink");
        let before = snapshot(&outside);
        let ended = way.cp(&["-r"], &[contents(&data)], &sink).run().sane();
        assert!(matches!(ended.status.code(), Some(0 | 3)), "{}", ended.describe());
        assert_eq!(snapshot(&outside), before, "{}: something outside was touched", way.name());
        assert_eq!(read(sink.join("file")), b"new");
        assert_eq!(fs::read_link(sink.join("link")).expect("read a link"), Path::new("new-target"));
    }
}

/// Goal: the destination itself may be a symlink to a directory.
/// Method: one file into such a destination.
#[test]
fn the_destination_may_be_a_link() {
    for way in Way::all() {
        let room = Room::new();
        let (data, real) = (room.dir("data"), room.dir("real"));
        room.file("data/f", "x");
        symlink(&real, room.at("sink")).expect("make a symlink");
        way.cp(&["-r"], &[contents(&data)], room.at("sink")).run().sane().exits(0);
        assert_eq!(read(real.join("f")), b"x");
        assert!(fs::symlink_metadata(room.at("sink")).expect("look at the link").is_symlink());
    }
}

/// Goal: a dry run changes nothing at all, and shows where things would go.
/// Method: snapshots, ctime included, of a destination before and after; then of one that is not there.
#[test]
fn a_dry_run_changes_nothing() {
    for way in Way::all() {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        tree::plain(&data, 6, 20, 1_000_000);
        room.file("sink/old", "old");
        let before = snapshot(&sink);
        let dry = way.cp(&["-r", "-n"], &[&data], &sink).run().sane().exits(0);
        assert_eq!(snapshot(&sink), before, "{}\n{}", way.name(), dry.describe());
        assert_eq!(dry.summary().number("bytes_sent"), 0);
        way.cp(&["-r", "--dry-run"], &[&data], room.at("absent")).run().sane();
        assert!(!room.at("absent").exists(), "{}: a dry run made the destination", way.name());
    }
}

/// Goal: stdout has JSON lines only, and a reader that goes away does not end the copy.
/// Method: a verbose run into `head -n 1` by a shell; the tree must be whole, the exit code 0.
#[test]
fn a_closed_stdout_does_not_end_the_copy() {
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    tree::plain(&data, 7, 500, 5_000_000);
    let line = format!(
        "{{ '{}' cp -r -v --json '{}' '{}'; echo $? >'{}'; }} | head -n 1 >/dev/null",
        program().display(),
        data.display(),
        sink.display(),
        room.at("code").display()
    );
    Command::new("sh").args(["-c", &line]).stderr(Stdio::null()).status().expect("run a shell");
    assert_eq!(read(room.at("code")), b"0\n");
    assert_same(&data, &sink.join("data"), ALL);
}

/// Goal: without `--json` nothing is on stdout, and without a terminal no control byte is on stderr.
/// Method: a tree with names full of control bytes, verbose.
#[test]
fn people_get_no_control_bytes() {
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    for name in tree::hard_names() {
        fs::write(data.join(name), "x").expect("write a file");
    }
    let ended = Haul::new(["cp", "-r", "-v"]).args([&data, &sink]).run().sane().exits(0);
    assert!(ended.stdout.is_empty(), "{}", ended.describe());
    let control = ended.stderr.chars().find(|c| c.is_control() && *c != '\n');
    assert_eq!(control, None, "{}", ended.describe());
}

/// Goal: the manifest of a rerun has each file's own hash, also where two sources have an entry of one name.
/// Method: `a/` holds a file `b`, and another `b` is named beside it: the second is copied. A push, then once
/// more.
#[test]
fn a_manifest_knows_which_source_it_was() {
    need!("sshd");
    let way = Way::Push(Sshd::start());
    let room = Room::new();
    let (a, sink) = (room.dir("a"), room.dir("sink"));
    room.file("a/b", "of the directory");
    let b = room.file("b", "named");
    let manifest = room.at("manifest");
    let option = format!("--manifest={}", manifest.display());
    for run in 0..2 {
        let sources = [contents(&a), b.clone().into_os_string()];
        way.cp(&["-r", &option], &sources, &sink).run().sane().exits(3);
        assert_eq!(read(sink.join("b")), b"named");
        let text = String::from_utf8(read(&manifest)).expect("plain names");
        assert_eq!(text.trim(), format!("{}  b", blake3::hash(b"named").to_hex()), "run {run}");
    }
}

/// Goal: a manifest is right: `b3sum --check` accepts it, and each file of the copy is in it.
/// Method: b3sum, not haul, over the copy; the names that b3sum cannot read are in the JSON manifest.
#[test]
fn b3sum_accepts_the_manifest() {
    need!("b3sum");
    for way in Way::all() {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        tree::plain(&data, 8, 50, 9_000_000);
        for size in tree::EDGE_SIZES {
            tree::random_file(&data.join(format!("size {size}")), &mut fastrand::Rng::with_seed(8), size);
        }
        let (files, _) = tree::totals(&data);
        let manifest = room.at("manifest");
        let option = format!("--manifest={}", manifest.display());
        way.cp(&["-r", &option], &[contents(&data)], &sink).run().sane().exits(0);
        let text = String::from_utf8(read(&manifest)).expect("a manifest of plain names is UTF-8");
        assert_eq!(text.lines().count() as u64, files, "{}: {text}", way.name());
        let check = Command::new("b3sum")
            .arg("--check")
            .arg(&manifest)
            .current_dir(&sink)
            .output()
            .expect("run b3sum");
        assert!(check.status.success(), "{}: {}", way.name(), String::from_utf8_lossy(&check.stdout));
    }
}

/// Goal: the verifier sees each kind of difference; without that none of these tests says anything.
/// Method: a copy made by `cp -a`, spoilt in one way at a time.
#[test]
fn the_verifier_sees_every_difference() {
    type Spoil = fn(&Path);
    let spoils: [(&str, Spoil); 8] = [
        ("byte", |root| {
            let mut content = read(root.join("big"));
            content[777_777] ^= 1;
            let times = fs::metadata(root.join("big")).expect("look").modified().expect("a time");
            fs::write(root.join("big"), content).expect("write");
            tree::set_mtime(&root.join("big"), times);
        }),
        ("length", |root| {
            fs::File::options().append(true).open(root.join("big")).expect("open").set_len(5).expect("cut")
        }),
        ("missing", |root| fs::remove_file(root.join("d000/f00003")).expect("remove")),
        ("more", |root| fs::write(root.join("d000/more"), "").expect("write")),
        ("mode", |root| set_mode(&root.join("big"), 0o611)),
        ("time", |root| {
            tree::set_mtime(&root.join("d000"), SystemTime::UNIX_EPOCH + Duration::from_nanos(1))
        }),
        ("kind", |root| {
            fs::remove_file(root.join("big")).expect("remove");
            fs::create_dir(root.join("big")).expect("make a directory");
        }),
        ("target", |root| {
            fs::remove_file(root.join("link")).expect("remove");
            symlink("elsewhere", root.join("link")).expect("make a symlink");
        }),
    ];
    let room = Room::new();
    let data = room.dir("data");
    tree::plain(&data, 9, 10, 1_000_000);
    symlink("somewhere", data.join("link")).expect("make a symlink");
    for (name, spoil) in spoils {
        let copy = room.at(name);
        assert!(Command::new("cp").arg("-a").args([&data, &copy]).status().expect("run cp").success());
        assert_eq!(differences(&data, &copy, ALL), Vec::<String>::new());
        spoil(&copy);
        assert!(!differences(&data, &copy, ALL).is_empty(), "a wrong {name} goes unseen");
    }
}

/// Goal: a destination that is made for the contents of a directory lets nobody do what that directory does
/// not, from the moment that it is there; one that stood there keeps its mode.
/// Method: contents of private, closed and open directories by each way, also from two at once; the mode
/// while they arrive.
#[test]
fn a_new_destination_is_no_wider_than_its_source() {
    let mode = |path: &Path| fs::metadata(path).expect("stat").mode() & 0o7777;
    for way in Way::all() {
        let room = Room::new();
        let data = room.dir("data");
        set_mode(&room.file("data/x", "secret"), 0o644);
        for (at, wanted) in [0o700, 0o750, 0o777, 0o500].into_iter().enumerate() {
            set_mode(&data, wanted);
            let sink = room.at("new").join(at.to_string());
            for option in ["-r", "-a"] {
                let sink = sink.join(option);
                way.cp(&[option], &[contents(&data)], &sink).run().sane().exits(0);
                assert_eq!(mode(&sink), wanted, "{}: {option}", way.name());
                assert_same(&data, &sink, ALL);
            }
        }
        set_mode(&data, 0o700);
        let stood = room.dir("stood");
        set_mode(&stood, 0o755);
        way.cp(&["-r"], &[contents(&data)], &stood).run().sane().exits(0);
        assert_eq!(mode(&stood), 0o755, "{}: it stood there", way.name());
        set_mode(&room.dir("other"), 0o755);
        let both = room.at("both");
        way.cp(&["-r"], &[contents(&room.at("other")), contents(&data)], &both).run().sane().exits(0);
        assert_eq!(mode(&both), 0o700, "{}: what both allow", way.name());
    }
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.at("new"));
    tree::random_file(&data.join("large"), &mut fastrand::Rng::with_seed(13), 24 << 20);
    set_mode(&data, 0o710);
    let running = Haul::cp(["-r", "--rate", "12MB/s"]).args([contents(&data), sink.clone().into()]).start();
    procs::wait_until(Duration::from_secs(60), || sink.exists());
    let mut seen = Vec::new();
    procs::wait_until(Duration::from_secs(60), || {
        seen.push(mode(&sink));
        fs::read_dir(&sink).into_iter().flatten().count() > 0
    });
    running.signal(rustix::process::Signal::KILL);
    running.wait();
    assert!(seen.iter().all(|mode| mode & !0o710 == 0), "{seen:?}");
    Haul::cp(["-r"]).args([contents(&data), sink.clone().into()]).run().sane().exits(0);
    assert_eq!(mode(&sink), 0o710, "a copy that was interrupted made it");
}

/// Goal: owner and group of a symbolic link that leads where it should are brought up to date with `-a`,
/// alone, counted and listed as metadata; a dry run says so before; `--no-clobber` leaves it.
/// Method: `chown -h` at the source after a copy, by each way.
#[test]
fn owners_of_links_are_brought_up_to_date() {
    need!("root");
    for way in Way::all() {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        std::os::unix::fs::symlink("target", data.join("link")).expect("make a link");
        way.cp(&["-a"], &[&data], &sink).run().sane().exits(0);
        let link = sink.join("data/link");
        let inode = fs::symlink_metadata(&link).expect("stat").ino();
        std::os::unix::fs::lchown(data.join("link"), Some(12), Some(34)).expect("chown");
        let owner = || fs::symlink_metadata(&link).map(|stat| (stat.uid(), stat.gid())).expect("stat");
        way.cp(&["-a", "--no-clobber"], &[&data], &sink).run().sane().exits(0);
        assert_eq!(owner(), (0, 0), "{}: --no-clobber", way.name());
        for option in ["-n", "--durability=disk"] {
            let run = way.cp(&["-a", option], &[&data], &sink).run().exits(0);
            let summary = run.summary();
            let counts = ["symlinks", "unchanged", "metadata_only"].map(|name| summary.number(name));
            assert_eq!(counts, [0, 1, 1], "{}: {}", way.name(), run.describe());
            if option == "-n" {
                let run = way.plain(&["-ani"], &[&data], &sink).run().exits(0);
                let list = String::from_utf8_lossy(&run.stdout).into_owned();
                assert_eq!(list, ".L....og... data/link\n", "{}: {}", way.name(), run.describe());
            }
        }
        assert_eq!(owner(), (12, 34), "{}", way.name());
        assert_eq!(
            fs::symlink_metadata(&link).expect("stat").ino(),
            inode,
            "{}: it was made anew",
            way.name()
        );
        let again = way.cp(&["-a"], &[&data], &sink).run().sane().exits(0).summary();
        assert_eq!(again.number("metadata_only"), 0, "{}", way.name());
    }
}

/// Goal: what a copy would not keep of owners and of setuid and setgid, its dry run tells in the same
/// numbers.
/// Method: a setuid and a setgid program and a stranger's file, without `-a`, and with it as a user who may
/// not give files away.
#[test]
fn a_dry_run_tells_what_is_not_kept() {
    let room = Room::new();
    let data = room.dir("data");
    for (name, mode) in [("suid", 0o4755), ("sgid", 0o2755), ("plain", 0o644)] {
        set_mode(&room.file(&format!("data/{name}"), name), mode);
    }
    let lost = |run: &crate::support::run::Outcome| {
        let all = run.summary().0["not_kept"].as_array().expect("a list").clone();
        ["owners", "setuid"].map(|what| {
            let found = all.iter().find(|lost| lost["what"].as_str().is_some_and(|w| w.starts_with(what)));
            found.and_then(|lost| lost["count"].as_u64()).unwrap_or(0)
        })
    };
    let both = |option: &str, nobody: bool| {
        let sink = room.dir(&format!("sink{option}{nobody}"));
        std::os::unix::fs::chown(&sink, nobody.then_some(65534), None).expect("chown");
        let runs = ["-n", "--durability=none"].map(|dry| {
            let haul = Haul::cp([option, dry]).args([&data, &sink]);
            let haul = if nobody { haul.run_by_nobody(&room) } else { haul };
            haul.run().exits(0)
        });
        let [dry, copy] = runs.each_ref().map(lost);
        assert_eq!(dry, copy, "{option} {nobody}: {}", runs[0].describe());
        copy
    };
    assert_eq!(both("-r", false), [0, 2]);
    need!("root");
    assert_eq!(both("-a", false), [0, 0]);
    assert_eq!(both("-a", true), [4, 2]);
}

/// Goal: mode and owner of files whose content is right are brought up to date, alone, and counted;
/// `--no-clobber` leaves them, and a link that took the place of one is not followed.
/// Method: a tree by `-a` over each way, then other modes at the source; a mode that its owner cannot read;
/// the same again finds nothing to do.
#[test]
fn metadata_alone_is_brought_up_to_date() {
    for way in Way::all() {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        for name in ["a", "b", "c", "d"] {
            fs::write(data.join(name), name.repeat(1000)).expect("write");
            set_mode(&data.join(name), 0o644);
        }
        way.cp(&["-a"], &[&data], &sink).run().sane().exits(0);
        let mode = |name: &str| fs::metadata(sink.join("data").join(name)).expect("stat").mode() & 0o7777;
        for (name, mode) in [("a", 0o600), ("b", 0o755), ("c", 0o000)] {
            set_mode(&data.join(name), mode);
        }
        way.cp(&["-a", "--no-clobber"], &[&data], &sink).run().sane().exits(0);
        assert_eq!(mode("a"), 0o644, "{}: --no-clobber", way.name());
        let run = way.cp(&["-a"], &[&data], &sink).run().sane().exits(0);
        let summary = run.summary();
        let counts = ["files", "unchanged", "metadata_only", "bytes_sent"].map(|name| summary.number(name));
        assert_eq!(counts, [0, 4, 3, 0], "{}: {}", way.name(), run.describe());
        assert_eq!((mode("a"), mode("b"), mode("c"), mode("d")), (0o600, 0o755, 0, 0o644), "{}", way.name());
        let again = way.cp(&["-a"], &[&data], &sink).run().sane().exits(0).summary();
        assert_eq!((again.number("unchanged"), again.number("metadata_only")), (4, 0), "{}", way.name());
    }
}

/// Goal: what another user put at a name, of the right size and time, is not made root's or setuid, where it
/// stands: the file is copied.
/// Method: a setuid program at the source, and a stranger's file at the destination, which he still holds; a
/// dry run says the same.
#[test]
fn what_others_put_there_is_not_given_away() {
    need!("root");
    for way in Way::all() {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        let (tool, planted) = (data.join("tool"), room.dir("sink/data").join("tool"));
        fs::write(&tool, "good").expect("write");
        fs::write(&planted, "evil").expect("write");
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_500_000_000);
        for (file, user, mode) in [(&tool, 0, 0o4755), (&planted, 65_534, 0o755)] {
            std::os::unix::fs::chown(file, Some(user), Some(user)).expect("chown");
            set_mode(file, mode);
            tree::set_mtime(file, time);
        }
        let held = fs::metadata(&planted).expect("stat").ino();
        let plan = way.cp(&["-a", "-n"], &[&data], &sink).run().exits(0).summary();
        assert_eq!((plan.number("files"), plan.number("metadata_only")), (1, 0), "{}", way.name());
        let run = way.cp(&["-a"], &[&data], &sink).run().sane().exits(0);
        let stat = fs::metadata(&planted).expect("stat");
        assert_ne!(stat.ino(), held, "{}: it was given away\n{}", way.name(), run.describe());
        assert_eq!((stat.uid(), stat.mode() & 0o7777), (0, 0o4755), "{}", way.name());
        assert_same(&data, &sink.join("data"), ALL);
        let again = way.cp(&["-a"], &[&data], &sink).run().sane().exits(0).summary();
        assert_eq!((again.number("unchanged"), again.number("files")), (1, 0), "{}", way.name());
    }
}

/// Goal: nor does one who is not root, and may give files away all the same, give away what another put
/// there.
/// Method: the same by a user with root's capabilities.
#[test]
fn capabilities_are_as_good_as_root() {
    need!("setpriv");
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    let (tool, planted) = (data.join("tool"), room.dir("sink/data").join("tool"));
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_500_000_000);
    for (file, content, user, mode) in [(&tool, "good", 0, 0o4755), (&planted, "evil", 4242, 0o755)] {
        fs::write(file, content).expect("write");
        std::os::unix::fs::chown(file, Some(user), Some(user)).expect("chown");
        set_mode(file, mode);
        tree::set_mtime(file, time);
    }
    set_mode(&sink, 0o777);
    set_mode(&sink.join("data"), 0o777);
    let caps = "+chown,+fowner,+dac_override,+fsetid";
    let (inherited, ambient) = (format!("--inh-caps={caps}"), format!("--ambient-caps={caps}"));
    let run = Haul::cp(["-a"]).args([&data, &sink]).run_by_nobody_with(&room, &[&inherited, &ambient]);
    let run = run.run().sane().exits(0);
    let stat = fs::metadata(&planted).expect("stat");
    assert_eq!((&*read(&planted), stat.uid()), (&b"good"[..], 0), "{}", run.describe());
}

/// Goal: rights of a file on which somebody has a lease are set when he has given it up.
/// Method: strace answers the first opening of what is held as the kernel does while a lease is being broken.
#[test]
fn leases_are_waited_for() {
    need!("strace");
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    fs::write(data.join("f"), "content").expect("write");
    set_mode(&data.join("f"), 0o644);
    Haul::cp(["-r"]).args([&data, &sink]).run().sane().exits(0);
    set_mode(&data.join("f"), 0o600);
    let mut words = strace_args(&["openat:error=EAGAIN:when=1".into()]);
    words.extend((3..200).flat_map(|fd| ["-P".to_owned(), format!("/proc/self/fd/{fd}")]));
    Haul::cp(["-r"]).args([&data, &sink]).wrapped(words).run().sane().exits(0);
    assert_eq!(fs::metadata(sink.join("data/f")).expect("stat").mode() & 0o7777, 0o600);
}

/// Goal: a file's mode changes at the destination only: another name of it, elsewhere, keeps its own.
/// Method: a copied file gets a second name beside the destination; another mode at the source, and the copy
/// again.
#[test]
fn names_elsewhere_keep_their_mode() {
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    let file = data.join("f");
    fs::write(&file, "content").expect("write");
    set_mode(&file, 0o644);
    Haul::cp(["-r"]).args([&data, &sink]).run().sane().exits(0);
    let elsewhere = room.at("elsewhere");
    fs::hard_link(sink.join("data/f"), &elsewhere).expect("link");
    set_mode(&file, 0o600);
    Haul::cp(["-r"]).args([&data, &sink]).run().sane().exits(0);
    let mode = |path: &Path| fs::metadata(path).expect("stat").mode() & 0o7777;
    assert_eq!((mode(&sink.join("data/f")), mode(&elsewhere)), (0o600, 0o644));
    assert_eq!(read(sink.join("data/f")), b"content");
}

/// Goal: an unchanged file that is not ours to change, and allows more than its source, fails by name.
/// Method: somebody's private file, and root's at the destination, which its group may read and write.
#[test]
fn what_is_anothers_and_wider_fails() {
    need!("setpriv");
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    let (file, stands) = (data.join("f"), room.dir("sink/data").join("f"));
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_500_000_000);
    for (file, user, mode) in [(&file, 65_534, 0o600), (&stands, 0, 0o060)] {
        fs::write(file, "content").expect("write");
        std::os::unix::fs::chown(file, Some(user), Some(0)).expect("chown");
        set_mode(file, mode);
        tree::set_mtime(file, time);
    }
    set_mode(&sink, 0o777);
    set_mode(&sink.join("data"), 0o777);
    let run = Haul::cp(["-r"]).args([&data, &sink]).run_by_nobody(&room).run().sane().exits(3);
    assert!(run.stderr.contains("belongs to user 0"), "{}", run.describe());
}

/// Goal: a directory has the time of its source at the end, whatever is tried in it to learn how times are
/// kept there.
/// Method: directories that stand already with times of whole seconds, which may have been cut, and hold
/// nothing to be looked at.
#[test]
fn times_of_directories_are_set_last() {
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    let at = |secs, nanos| SystemTime::UNIX_EPOCH + Duration::new(secs, nanos);
    for name in ["a", "b/c"] {
        tree::set_mtime(&room.dir(&format!("sink/data/{name}")), at(1_400_000_000, 0));
        tree::set_mtime(&room.dir(&format!("data/{name}")), at(1_500_000_000, 123_456_789));
    }
    Haul::cp(["-r"]).args([&data, &sink]).run().sane().exits(0);
    assert_same(&data, &sink.join("data"), ALL);
}

/// Goal: a group gets no more by a copy than it has by the access control list of the source.
/// Method: a list whose mask allows what it denies the group; then a change of the list, which a rerun brings
/// over.
#[test]
fn a_mask_gives_a_group_nothing() {
    for way in Way::all() {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        let file = room.file("data/f", "secret");
        let set = |group: u16| {
            let mut list = 2_u32.to_le_bytes().to_vec();
            for (tag, perm, id) in [
                (1_u16, 6_u16, u32::MAX),
                (2, 6, 1234),
                (4, group, u32::MAX),
                (0x10, 6, u32::MAX),
                (0x20, 0, u32::MAX),
            ] {
                list.extend(tag.to_le_bytes());
                list.extend(perm.to_le_bytes());
                list.extend(id.to_le_bytes());
            }
            rustix::fs::setxattr(&file, c"system.posix_acl_access", &list, rustix::fs::XattrFlags::empty())
        };
        if set(0).is_err() {
            return eprintln!("skipped: no access control lists here");
        }
        let mode = |path: &Path| fs::metadata(path).expect("stat").mode() & 0o7777;
        assert_eq!(mode(&file), 0o660, "stat shows the mask");
        way.cp(&["-r"], &[&data], &sink).run().sane().exits(0);
        assert_eq!(mode(&sink.join("data/f")), 0o600, "{}", way.name());
        let again = way.cp(&["-r"], &[&data], &sink).run().sane().exits(0).summary();
        assert_eq!((again.number("unchanged"), again.number("metadata_only")), (1, 0), "{}", way.name());
        set(4).expect("another list");
        way.cp(&["-r"], &[&data], &sink).run().sane().exits(0);
        assert_eq!(mode(&sink.join("data/f")), 0o640, "{}", way.name());
    }
}

/// Goal: times are compared as finely as the file system keeps them on which the file lies, not as the
/// destination's root does.
/// Method: a destination that keeps whole seconds with another mounted in it that keeps all, and the reverse:
/// a change within a second is copied where it can be told, and a rerun copies nothing.
#[test]
fn each_file_system_has_its_grain() {
    need!("ext4");
    for (above, below) in [(Kind::Ext4Old, Kind::Ext4), (Kind::Ext4, Kind::Ext4Old)] {
        let room = Room::new();
        let data = room.dir("data");
        let root = Disk::new(&room, "sink", above);
        let _sub = Disk::new(&room, "sink/sub", below);
        let (sink, sub) = (root.at(""), room.dir("data/sub"));
        let at = |nanos| SystemTime::UNIX_EPOCH + Duration::new(1_500_000_000, nanos);
        for file in [data.join("above"), sub.join("below")] {
            fs::write(&file, "aaaa").expect("write");
            tree::set_mtime(&file, at(123_456_789));
        }
        let copy =
            || Haul::cp(["-r"]).args([contents(&data), sink.clone().into()]).run().sane().exits(0).summary();
        assert_eq!(copy().number("files"), 2);
        assert_eq!(copy().number("unchanged"), 2, "{below:?}");
        for file in ["above", "sub/below"].map(|name| sink.join(name)) {
            fs::write(&file, "bbbb").expect("write");
            tree::set_mtime(&file, at(900_000_000));
        }
        // Where whole seconds are kept the two cannot be told apart. The grain of the root is asked for
        // first.
        assert_eq!(copy().number("files"), 1, "{below:?}");
        let is_new = |name| fs::read(sink.join(name)).expect("read") == b"aaaa";
        assert_eq!([is_new("above"), is_new("sub/below")], [above, below].map(|kind| kind == Kind::Ext4));
    }
}

/// Goal: an mtime that the destination cannot hold is said once, and the file is not copied again.
/// Method: files of 1800, 3000 and today, on a file system that ends before; the same again.
#[test]
fn odd_times_are_said_once_and_are_unchanged_then() {
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    let epoch = SystemTime::UNIX_EPOCH;
    let odd = [epoch - Duration::from_secs(5_364_662_400), epoch + Duration::from_secs(32_503_680_000)];
    // The source keeps what this file system cannot: tmpfs has no limits.
    let tmpfs = need_tmpfs(&data);
    for (name, time) in ["old", "new"].iter().zip(odd) {
        fs::write(data.join(name), *name).expect("write");
        tree::set_mtime(&data.join(name), time);
    }
    fs::write(data.join("now"), "now").expect("write");
    let kept = fs::metadata(data.join("old")).and_then(|stat| stat.modified()).expect("stat") == odd[0];
    if tmpfs.is_none() || !kept {
        return eprintln!("skipped: nothing here keeps such times");
    }
    let probe = room.file("probe", "");
    tree::set_mtime(&probe, odd[0]);
    if fs::metadata(&probe).and_then(|stat| stat.modified()).expect("stat") == odd[0] {
        return eprintln!("skipped: the destination keeps such times");
    }
    let clamped = |summary: &crate::support::run::Summary| {
        let all = summary.0["not_kept"].as_array().expect("a list").clone();
        let count = |entry: &serde_json::Value| entry["count"].as_u64().unwrap_or_default();
        let is =
            |entry: &&serde_json::Value| entry["what"].as_str().is_some_and(|what| what.contains("clamped"));
        all.iter().filter(is).map(count).sum::<u64>()
    };
    let first = Way::Here.cp(&["-r"], &[&contents(&data)], &sink).run().sane().exits(0).summary();
    assert_eq!((first.number("files"), clamped(&first)), (3, 2), "{first:?}");
    let second = Way::Here.cp(&["-r"], &[&contents(&data)], &sink).run().sane().exits(0).summary();
    assert_eq!(
        (second.number("files"), second.number("unchanged"), clamped(&second)),
        (0, 3, 0),
        "{second:?}"
    );
    assert_no_debris(&sink);
}

fn need_tmpfs(at: &Path) -> Option<crate::support::mount::Tmpfs> {
    rustix::process::geteuid().is_root().then(|| crate::support::mount::Tmpfs::mount(at, "size=8m"))
}
