//! The destination itself, where the contents of a directory come into it: with -a it becomes what that
//! directory is, as with rsync; without, one that stood there stays as it is.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::process::Signal;

use crate::attributes::{failure_of, rsync_would, set, setfacl, told, value_of};
use crate::support::compare::assert_no_debris;
use crate::support::run::Outcome;
use crate::support::way::{Way, contents};
use crate::support::{Room, procs, set_mode, tree};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("stat").mode() & 0o7777
}

fn set_mtime(path: &Path, secs: u64) {
    let file = fs::File::open(path).expect("open");
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(secs)).expect("set its time");
}

/// A directory with everything that there is to keep, which denies one user what others may.
fn dressed(room: &Room, name: &str) -> PathBuf {
    let data = room.dir(name);
    room.file(&format!("{name}/f"), "x");
    fs::create_dir(data.join("d")).expect("make a directory");
    chown(&data, Some(1234), Some(77)).expect("give it away");
    set_mode(&data, 0o755);
    set(&data, "user.of-the-root", b"1");
    set(&data, "trusted.of-the-root", b"2");
    setfacl(&["-m", "u:65534:-"], &data);
    setfacl(&["-d", "-m", "u:55:rwx"], &data);
    set_mtime(&data, 1_000_000_000);
    data
}

/// The lines of `-i`, without those of entries in the root.
fn lines_of_root(run: &Outcome) -> Vec<String> {
    let stdout = String::from_utf8(run.stdout.clone()).expect("text");
    stdout.lines().filter(|line| line.ends_with(" ./")).map(str::to_owned).collect()
}

/// Goal: with -aAX the destination has mode, owner, time, attributes and lists of the directory whose
/// contents come, whether it stood there or not; it is told as rsync tells it, before and while it is done,
/// and then neither rsync nor haul would change anything.
/// Method: each way, into nothing and into a directory that differs in all of it.
#[test]
fn the_destination_becomes_what_its_source_is() {
    need!("attr", "rsync");
    for way in Way::all() {
        for stands in [false, true] {
            let room = Room::new();
            let (data, sink) = (dressed(&room, "data"), room.at("sink"));
            if stands {
                room.dir("sink");
                set_mode(&sink, 0o777);
                set(&sink, "user.goes", b"3");
                setfacl(&["-m", "u:9:rwx"], &sink);
            }
            let expected: Vec<String> = match stands {
                true => rsync_would(&data, &sink)
                    .lines()
                    .filter(|l| l.ends_with(" ./"))
                    .map(str::to_owned)
                    .collect(),
                false => vec!["cd+++++++++ ./".to_owned()],
            };
            assert_eq!(expected.len(), 1, "{expected:?}");
            for options in [&["-aAXni"][..], &["-aAXi"]] {
                let run = way.plain(options, &[contents(&data)], &sink).run().exits(0);
                assert_eq!(lines_of_root(&run), expected, "{} {stands} {options:?}", way.name());
            }
            assert_eq!(told(&sink), told(&data), "{} {stands}", way.name());
            assert_eq!(rsync_would(&data, &sink), "", "{} {stands}", way.name());
            let again = way.plain(&["-aAXi"], &[contents(&data)], &sink).run().exits(0);
            assert_eq!(again.stdout, b"", "{} {stands}", way.name());
            assert_eq!(rsync_would(&data, &sink), "", "{} {stands}", way.name());
            assert_no_debris(&sink);
        }
    }
}

/// Goal: without -a, -A and -X a destination that stood there keeps mode, owner and lists; sources by name
/// never change it.
#[test]
fn a_destination_that_stood_there_stays_without() {
    need!("attr");
    for way in Way::all() {
        let room = Room::new();
        let (data, sink) = (dressed(&room, "data"), room.dir("sink"));
        set_mode(&sink, 0o2711);
        set(&sink, "user.stays", b"1");
        setfacl(&["-m", "u:9:r"], &sink);
        let before = (fs::metadata(&sink).expect("stat").uid(), mode(&sink));
        way.cp(&["-r"], &[contents(&data)], &sink).run().sane().exits(0);
        way.cp(&["-aAX"], &[&data], &sink).run().sane().exits(0);
        assert_eq!((fs::metadata(&sink).expect("stat").uid(), mode(&sink)), before, "{}", way.name());
        assert_eq!(value_of(&sink, "user.stays"), Some(b"1".to_vec()));
        assert_eq!(value_of(&sink, "user.of-the-root"), None);
        // A list is asked for, and so is what it says of the mode.
        way.cp(&["-rA"], &[contents(&data)], &sink).run().sane().exits(0);
        assert_eq!(value_of(&sink, "system.posix_acl_access"), value_of(&data, "system.posix_acl_access"));
        assert_eq!(fs::metadata(&sink).expect("stat").uid(), before.0, "no owner was asked for");
        assert_eq!(value_of(&sink, "user.stays"), Some(b"1".to_vec()));
    }
}

/// Goal: of several directories the destination becomes what the first is, as with rsync.
/// Method: two of them and a file, in either order, held against rsync itself.
#[test]
fn of_several_the_first_counts() {
    need!("root", "rsync");
    for way in Way::all() {
        let room = Room::new();
        let (a, b, file) = (room.dir("a"), room.dir("b"), room.file("x", "x"));
        for (dir, mode, owner, time) in [(&a, 0o750, 7, 1_000_000_000), (&b, 0o711, 8, 1_100_000_000)] {
            chown(dir, Some(owner), Some(owner)).expect("give it away");
            set_mode(dir, mode);
            set_mtime(dir, time);
        }
        for (at, order) in [[&a, &b], [&b, &a]].into_iter().enumerate() {
            let (sink, theirs) = (room.at(&format!("sink{at}")), room.at(&format!("rsync{at}")));
            let words = [file.as_os_str().to_owned(), contents(order[0]), contents(order[1])];
            way.cp(&["-a"], &words, &sink).run().sane().exits(0);
            let done = std::process::Command::new("rsync").arg("-a").args(&words).arg(&theirs).status();
            assert!(done.expect("run rsync").success());
            let seen = |path: &Path| {
                let stat = fs::metadata(path).expect("stat");
                (stat.mode(), stat.uid(), stat.gid(), stat.mtime())
            };
            assert_eq!(seen(&sink), seen(&theirs), "{}", way.name());
            assert_eq!(seen(&sink), seen(order[0]), "{}", way.name());
        }
    }
}

/// Goal: a user's destination becomes what its source is, also where that is closed to him, and again in the
/// next run; of one that is another user's it is told what was not kept, and that is no failure.
/// Method: nobody copies his directory of mode 0555 twice, with a change between, and one into a root-owned
/// directory that all may write to.
#[test]
fn users_have_theirs_and_leave_others() {
    need!("attr", "setpriv", "rsync");
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    let run = |options: &[&str], sink: &Path| {
        Way::Here.cp(options, &[contents(&data)], sink).run_by_nobody(&room).run()
    };
    for path in [&data, &sink, &room.file("data/f", "x")] {
        chown(path, Some(65534), Some(65534)).expect("give it away");
    }
    set(&data, "user.mine", b"1");
    set_mode(&data, 0o555);
    set_mtime(&data, 1_000_000_000);
    run(&["-aAX"], &sink).sane().exits(0);
    assert_eq!(rsync_would(&data, &sink), "");
    assert_eq!(mode(&sink), 0o555);
    fs::write(data.join("f"), "longer").expect("write");
    set(&data, "user.mine", b"2");
    let dry = Way::Here.plain(&["-aAXni"], &[contents(&data)], &sink).run_by_nobody(&room).run().exits(0);
    assert_eq!(lines_of_root(&dry), [".d........x ./"]);
    assert_eq!(mode(&sink), 0o555, "nothing is changed");
    run(&["-aAX"], &sink).sane().exits(0);
    assert_eq!(rsync_would(&data, &sink), "");
    assert_eq!((mode(&sink), fs::read(sink.join("f")).expect("read")), (0o555, b"longer".to_vec()));
    assert_no_debris(&sink);

    let others = room.dir("others");
    set_mode(&others, 0o1777);
    let told = run(&["-a"], &others).exits(0).summary();
    assert_eq!((mode(&others), fs::metadata(&others).expect("stat").uid()), (0o1777, 0));
    let lost = told.0["not_kept"].to_string();
    assert!(lost.contains("owners or groups not set") && lost.contains("modes that"), "{lost}");
    let failed = run(&["-aA"], &others).exits(0);
    assert_eq!(failure_of(&failed, "."), None, "neither has a list");
}

/// Goal: a destination that is made is its owner's alone while its list is missing, and is what its source is
/// when the next run has ended what a kill interrupted.
/// Method: a large file, killed half-way; the list of the source denies somebody what its mode allows.
#[test]
fn while_it_is_filled_it_is_no_wider() {
    need!("attr", "rsync");
    let room = Room::new();
    let (data, sink) = (dressed(&room, "data"), room.at("sink"));
    tree::random_file(&data.join("big"), &mut fastrand::Rng::with_seed(5), 96 << 20);
    set_mtime(&data, 1_000_000_000);
    let options = ["-aAX", "--rate", "20MiB/s"];
    let mut run = Way::Here.cp(&options, &[contents(&data)], &sink).start();
    assert!(run.until(|run| procs::written(&run.near()) >= 16 << 20), "it was over before");
    assert_eq!(mode(&sink), 0o700);
    run.signal(Signal::KILL);
    assert!(run.wait().was_killed());
    assert_eq!(mode(&sink), 0o700);
    Way::Here.cp(&["-aAX"], &[contents(&data)], &sink).run().sane().exits(0);
    assert_eq!(told(&sink), told(&data));
    assert_eq!(rsync_would(&data, &sink), "");
    assert_no_debris(&sink);
}

/// Goal: a destination, and directories in it, that their owner may not read, fill or enter by the modes that
/// they get are filled by the next run as by the first, and have these modes at its end; a dry run changes
/// nothing, and says what it cannot look at. Behind a kill they are open to their owner and give nobody else
/// more, and the next run ends it. Sources by name, and a copy without -a, open nothing.
/// Method: nobody copies with --chmod, to modes of every kind, three times with a change between; the second
/// run is killed. (rsync does not come into such a destination; into such directories it does.)
#[test]
fn what_is_closed_to_its_owner_is_filled_again() {
    need!("root", "setpriv");
    for closed in [0, 0o300, 0o500, 0o100, 0o077, 0o2377] {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        room.dir("data/d");
        for path in [&data, &data.join("d"), &sink, &room.file("data/f", "f"), &room.file("data/d/g", "g")] {
            chown(path, Some(65534), Some(65534)).expect("give it away");
        }
        let chmod = format!("--chmod=D{closed:o}");
        let run = |options: &[&str]| {
            let options = [&[chmod.as_str()][..], options].concat();
            Way::Here.cp(&options, &[contents(&data)], &sink).run_by_nobody(&room)
        };
        let modes = || (mode(&sink), mode(&sink.join("d")));
        run(&["-a"]).run().sane().exits(0);
        assert_eq!(modes(), (closed, closed));
        let new = room.file("data/d/new", "new");
        tree::random_file(&data.join("big"), &mut fastrand::Rng::with_seed(7), 64 << 20);
        for path in [&new, &data.join("big")] {
            chown(path, Some(65534), Some(65534)).expect("give it away");
        }
        let dry = run(&["-an"]).run().sane().exits(0);
        assert_eq!(dry.stderr.contains("not looked at: "), closed & 0o500 != 0o500, "{}", dry.describe());
        assert_eq!(modes(), (closed, closed));
        let mut copy = run(&["-a", "--rate", "20MiB/s"]).start();
        assert!(copy.until(|run| procs::written(&run.near()) >= 8 << 20), "it was over before");
        assert_eq!(mode(&sink), closed | 0o700);
        copy.signal(Signal::KILL);
        assert!(copy.wait().was_killed());
        assert_eq!((mode(&sink), mode(&sink.join("d")) & !0o700), (closed | 0o700, closed & !0o700));
        run(&["-a"]).run().sane().exits(0);
        assert_eq!(modes(), (closed, closed));
        assert_eq!(fs::read(sink.join("d/new")).expect("read"), b"new");
        assert_eq!(fs::metadata(sink.join("big")).expect("stat").len(), 64 << 20);
        let last = run(&["-a"]).run().sane().exits(0).summary();
        assert_eq!((last.number("bytes_sent"), last.number("files")), (0, 0), "{closed:o}");
        assert_eq!(modes(), (closed, closed));
        assert_no_debris(&sink);
        let by_name = Way::Here.cp(&["-a"], &[&data.join("f")], &sink).run_by_nobody(&room).run();
        let without = run(&["-r"]).run();
        for refused in [by_name, without] {
            if closed & 0o300 != 0o300 {
                refused.exits(1).says("no permission");
            }
            assert_eq!(modes(), (closed, closed));
        }
    }
}
