//! Bad input: each a clear error or a counted skip, and nothing lost.

use std::fs;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags};

use crate::support::compare::{ALL, BELOW, assert_no_debris, assert_none_torn, assert_same, snapshot};
use crate::support::mount::Tmpfs;
use crate::support::run::Haul;
use crate::support::sshd::Sshd;
use crate::support::way::{Way, contents};
use crate::support::{Room, procs, read, set_mode, tree};

/// Goal: wrong usage is exit 2, before anything is made.
/// Method: command lines that cannot be meant.
#[test]
fn wrong_usage_is_exit_2() {
    let room = Room::new();
    room.file("one", "one");
    let before = snapshot(&room.at(""));
    for line in [
        vec!["cp"],
        vec!["cp", "one"],
        vec!["cp", "--no-such-option", "one", "two"],
        vec!["cp", "--streams", "65", "one", "two"],
        vec!["cp", "--durability=maybe", "one", "two"],
        vec!["cp", "--port", "9-1", "one", "two"],
        vec!["no-such-command"],
    ] {
        Haul::new(&line).within(&room.at("")).run().sane().exits(2);
        assert_eq!(snapshot(&room.at("")), before, "{line:?}");
    }
}

/// Goal: usage that only a look at the sources shows to be wrong is exit 2 as well, whichever end sees it.
/// Method: over each way a directory without `-r`, and two sources of one name; here a destination inside its
/// source.
#[test]
fn usage_that_only_the_source_shows_is_exit_2() {
    for way in Way::all() {
        let room = Room::new();
        let (data, other) = (room.dir("data"), room.dir("b/data"));
        let sink = room.dir("sink");
        room.file("data/f", "f");
        way.cp(&[], &[&data], &sink).run().sane().exits(2).says("-r");
        way.cp(&["-n"], &[&data], &sink).run().sane().exits(2).says("-r");
        way.cp(&["-r"], &[&data, &other], &sink).run().sane().exits(2).says("would both become");
        assert!(sink.read_dir().expect("list the sink").next().is_none(), "{}", way.name());
    }
    let room = Room::new();
    let data = room.dir("data");
    Way::Here.cp(&["-r"], &[&data], data.join("in")).run().sane().exits(2).says("inside");
}

/// Goal: a run of which nothing failed but what had vanished exits with 4, and with 3 if anything else failed
/// too.
/// Method: the reading of a link is answered with ENOENT after its directory was read; then beside a file
/// whose name a directory has.
#[test]
fn what_vanished_alone_is_exit_4() {
    need!("strace");
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    tree::plain(&data, 17, 40, 0);
    let vanishing = |code: i32, sources: &[&Path], expected: u64| {
        let run = Way::Here.cp(&["-r", "--readers", "1"], sources, &sink);
        let ended = run.injected(&["readlinkat:error=ENOENT:when=1".into()]).run().sane().exits(code);
        let summary = ended.summary();
        assert_eq!((summary.number("vanished"), summary.text("status")), (expected, "partial"));
    };
    std::os::unix::fs::symlink("somewhere", data.join("link")).expect("make a link");
    vanishing(4, &[&data], 1);
    // What stands in the way of another entry is no such thing.
    room.dir("sink/data/stands");
    room.file("data/stands", "a file");
    fs::remove_file(sink.join("data/link")).ok();
    vanishing(3, &[&data], 1);
}

/// Goal: a source that is not there is named and never ends in code 0; beside a good one the run is either
/// refused before anything is made, or copies the good one and says partial.
/// Method: a missing source alone, then beside a good one, over each way.
#[test]
fn a_missing_source_is_named() {
    for way in Way::all() {
        let room = Room::new();
        let (good, missing, sink) = (room.file("good", "good"), room.at("absent-one"), room.dir("sink"));
        way.cp(&["-r"], &[&missing], &sink).run().sane().exits(1).says("absent-one");
        way.cp(&["-r"], &[&missing, &good], &sink).run().sane().exits(1).says("absent-one");
        assert!(!sink.join("good").exists(), "data moved before the sources were checked");
        assert_no_debris(&sink);
    }
}

/// Goal: what cannot be read fails alone: it is counted, listed with its errno, and the rest is copied.
/// Method: a file and a directory of mode 0, copied by a user who is not root.
#[test]
fn unreadable_files_fail_alone() {
    need!("setpriv");
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    set_mode(&sink, 0o777);
    room.dir("data/closed");
    for name in ["open", "secret", "closed/inside"] {
        room.file(&format!("data/{name}"), name);
    }
    set_mode(&data.join("secret"), 0);
    set_mode(&data.join("closed"), 0);
    set_mode(&room.dir("lists"), 0o777);
    let failures = room.at("lists/failures");
    let option = format!("--failures={}", failures.display());
    let haul = Way::Here.cp(&["-r", &option], &[contents(&data)], &sink).run_by_nobody(&room);
    let ended = haul.run().sane().exits(3);
    assert_eq!(ended.summary().text("status"), "partial");
    assert_eq!(read(sink.join("open")), b"open");
    assert!(!sink.join("secret").exists());
    let listed = String::from_utf8_lossy(&read(&failures)).into_owned();
    for fact in ["secret", "closed", "13"] {
        assert!(listed.contains(fact), "no {fact} among the failures: {listed}");
    }
    assert_no_debris(&sink);
}

/// Goal: read-only directories arrive with their content, also for a user whom their mode binds.
/// Method: the tree of modes, copied by a user who is not root; then again with a change inside.
#[test]
fn read_only_directories_bind_nobody() {
    need!("setpriv");
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    set_mode(&sink, 0o777);
    room.dir("data/locked/deeper");
    room.file("data/locked/deeper/f", "f");
    set_mode(&room.file("data/locked/read-only", "g"), 0o444);
    set_mode(&data.join("locked/deeper"), 0o555);
    set_mode(&data.join("locked"), 0o555);
    let copy = || Way::Here.cp(&["-r"], &[&data], &sink).run_by_nobody(&room).run().sane().exits(0);
    copy();
    assert_same(&data, &sink.join("data"), ALL);
    fs::write(data.join("locked/deeper/f"), "longer").expect("change the source");
    copy();
    assert_same(&data, &sink.join("data"), ALL);
}

/// Goal: a destination that cannot be written is an error that names it, and no code 0.
/// Method: a directory of root's, as another user.
#[test]
fn an_unwritable_destination_is_named() {
    need!("setpriv");
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink-of-root"));
    room.file("data/f", "f");
    let ended = Way::Here.cp(&["-r"], &[&data], &sink).run_by_nobody(&room).run().sane().says("sink-of-root");
    assert!(matches!(ended.status.code(), Some(1 | 3)), "{}", ended.describe());
    assert!(sink.read_dir().expect("list the sink").next().is_none());
}

/// Goal: a destination inside its source is refused before anything is made; a neighbour with the same
/// beginning is none.
/// Method: both, over each way: at the far end only the agent can see it.
#[test]
fn a_destination_inside_its_source_is_refused() {
    let room = Room::new();
    let data = room.dir("data");
    room.dir("data/sub");
    room.file("data/f", "f");
    let before = snapshot(&data);
    for inside in ["data", "data/sub", "data/sub/new"] {
        let ended = Way::Here.cp(&["-r"], &[&data], room.at(inside)).run().sane();
        assert!(matches!(ended.status.code(), Some(1 | 2)), "{inside}: {}", ended.describe());
        assert_eq!(snapshot(&data), before, "{inside}");
    }
    Way::Here.cp(&["-r"], &[&data], room.at("data-2")).run().sane().exits(0);
    assert_same(&data, &room.at("data-2/data"), ALL);
}

/// Goal: a full file system ends the run with one message that says so; nothing half-made has a name; with
/// space again the same command completes and sends only what is missing.
/// Method: 16 MiB into a tmpfs of 8 MiB, which is then enlarged.
#[test]
fn a_full_file_system_is_said_and_resumed() {
    need!("tmpfs");
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    let tmpfs = Tmpfs::mount(&sink, "size=8m");
    let mut rng = fastrand::Rng::with_seed(10);
    for index in 0..32 {
        tree::random_file(&data.join(format!("f{index:02}")), &mut rng, 1 << 19);
    }
    let (_, bytes) = tree::totals(&data);
    let list = room.at("failures");
    let failures = format!("--failures={}", list.display());
    let full =
        Way::Here.cp(&["-r", &failures], &[contents(&data)], &sink).run().sane().exits(1).says("space");
    let told = fs::read_to_string(&list).expect("a list");
    let last = told.lines().last().unwrap_or_default();
    assert!(last.starts_with(r#"{"stage":"run","errno":28,"#), "{told}");
    // Once when it happens and once in the summary, not once for each file.
    assert!(full.stderr.to_lowercase().matches("no space").count() <= 2, "{}", full.describe());
    assert_none_torn(&data, &sink);
    tmpfs.remount("size=64m");
    let resumed = Way::Here.cp(&["-r"], &[contents(&data)], &sink).run().sane().exits(0).summary();
    assert_same(&data, &sink, BELOW);
    assert!(resumed.number("bytes_sent") < bytes, "everything was sent again: {resumed:?}");
}

/// Goal: where space ran out, no more is said to be missing than is, and of what is missing something is
/// said.
/// Method: large files that are taken up at once, with space taken in advance and without, into a tmpfs that
/// holds one and a part.
#[test]
fn what_is_missing_is_not_overstated() {
    need!("tmpfs");
    for option in ["--durability=disk", "--no-preallocate"] {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        let _tmpfs = Tmpfs::mount(&sink, "size=20m");
        for index in 0..4 {
            tree::random_file(
                &data.join(format!("f{index}")),
                &mut fastrand::Rng::with_seed(index),
                12 << 20,
            );
        }
        let full = Way::Here.cp(&["-r", option], &[contents(&data)], &sink).run().sane().exits(1);
        let said =
            full.stderr.split("at least ").nth(1).and_then(|rest| rest.split(" more are needed").next());
        let said = said.unwrap_or_else(|| panic!("{option}: {}", full.describe()));
        let (number, unit) = said.split_once(' ').expect("an amount");
        let scale = match unit {
            "kB" => 1e3,
            "MB" => 1e6,
            other => panic!("{other}"),
        };
        let said = number.parse::<f64>().expect("a number") * scale;
        // The journal takes a little too; and the amount is rounded.
        let missing = f64::from((4 * 12 - 20) << 20) + 0.1e6;
        assert!(
            said <= missing && said > missing / 4.0,
            "{option}: {said} of {missing}\n{}",
            full.describe()
        );
    }
}

/// Goal: running out of inodes is told apart from running out of blocks.
/// Method: 200 files into a tmpfs of 64 inodes.
#[test]
fn running_out_of_inodes_is_said() {
    need!("tmpfs");
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    let tmpfs = Tmpfs::mount(&sink, "size=8m,nr_inodes=64");
    tree::plain(&data, 11, 200, 0);
    Way::Here.cp(&["-r"], &[contents(&data)], &sink).run().sane().exits(1).says("inode");
    tmpfs.remount("nr_inodes=1000");
    Way::Here.cp(&["-r"], &[contents(&data)], &sink).run().sane().exits(0);
    assert_same(&data, &sink, BELOW);
}

/// Goal: a source that changes while it is read is reported as changed, and the old destination stays; its
/// neighbours are copied.
/// Method: a thread that appends to one file as long as haul runs.
#[test]
fn a_source_that_changes_is_reported() {
    for way in Way::all() {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        tree::random_file(&data.join("quiet"), &mut fastrand::Rng::with_seed(12), 3_000_000);
        room.file("data/log", vec![b'x'; 9_000_000]);
        room.file("sink/log", "old");
        let over = AtomicBool::new(false);
        let ended = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut log = fs::File::options().append(true).open(data.join("log")).expect("open the log");
                while !over.load(Ordering::Relaxed) {
                    log.write_all(b"one more line\n").expect("append to the log");
                    std::thread::yield_now();
                }
            });
            let ended = way.cp(&["-r"], &[contents(&data)], &sink).run();
            over.store(true, Ordering::Relaxed);
            ended
        });
        ended.sane().exits(3).says("changed");
        assert_eq!(read(sink.join("log")), b"old", "{}", way.name());
        assert_eq!(read(sink.join("quiet")), read(data.join("quiet")));
        assert_no_debris(&sink);
    }
}

/// Goal: files that vanish while the copy runs are counted; every other file arrives, and nothing hangs.
/// Method: half of the tree is removed as soon as the first bytes are written.
#[test]
fn vanishing_files_are_counted() {
    for way in Way::all() {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        tree::plain(&data, 13, 2000, 0);
        let mut run = way.cp(&["-r"], &[contents(&data)], &sink).start();
        run.until(|run| procs::written(&run.near()) > 0);
        for index in 16..32 {
            let _ = fs::remove_dir_all(data.join(format!("d{index:03}")));
        }
        let ended = run.wait().sane();
        assert!(matches!(ended.status.code(), Some(0 | 4)), "{}", ended.describe());
        for index in 0..16 {
            let dir = format!("d{index:03}");
            assert_same(&data.join(&dir), &sink.join(&dir), BELOW);
        }
        assert_no_debris(&sink);
    }
}

/// Goal: pipes and sockets are skipped and said; a copy never waits in one.
/// Method: a tree with a pipe that nobody writes.
#[test]
fn special_files_are_skipped() {
    for way in Way::all() {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        room.file("data/f", "f");
        for name in ["pipe", "odd\nname"] {
            assert!(Command::new("mkfifo").arg(data.join(name)).status().expect("run mkfifo").success());
        }
        let ended = way.cp(&["-r"], &[contents(&data)], &sink).run().sane();
        assert!(matches!(ended.status.code(), Some(0 | 3)), "{}", ended.describe());
        assert_eq!(read(sink.join("f")), b"f");
        assert!(!sink.join("pipe").exists());
        let told = ended.describe();
        assert!(told.contains("skipped: ") && told.contains("odd\\nname"), "{told}");
        assert!(told.contains("pipe") && told.contains("(fifos, sockets, devices)"), "{told}");
    }
}

/// Goal: a special file that is named itself, or what a shell gives for `<(...)`, fails by name, and what is
/// beside it is copied.
/// Method: a FIFO, a device and an inherited pipe as sources, each beside a good file.
#[test]
fn named_special_files_fail() {
    let room = Room::new();
    let (good, sink) = (room.file("good", "good"), room.dir("sink"));
    assert!(Command::new("mkfifo").arg(room.at("fifo")).status().expect("run mkfifo").success());
    for (i, special) in [room.at("fifo"), "/dev/zero".into(), "/dev/stdin".into()].iter().enumerate() {
        let sink = sink.join(i.to_string());
        fs::create_dir(&sink).expect("make a directory");
        let ended = Way::Here.cp(&[], &[special, &good], &sink).run().sane().exits(3);
        let text = ended.describe();
        assert!(text.contains(&format!("source {}: it is ", special.display())), "{text}");
        assert_eq!(read(sink.join("good")), b"good");
        assert_eq!(fs::read_dir(&sink).expect("list").count(), 1, "{text}");
    }
}

/// Goal: what a file gives is copied, whatever its size is said to be; where that is too much it fails by
/// name.
/// Method: files of `/proc`, whose size is 0, over each way; twice, for nothing of the first run may be in
/// the way of the second.
#[test]
fn sizes_of_zero_are_not_believed() {
    for way in Way::all() {
        let room = Room::new();
        let sink = room.dir("sink");
        let files = ["/proc/version", "/proc/sys/kernel/ostype"];
        for _ in 0..2 {
            way.cp(&[], &files, &sink).run().sane().exits(0);
            assert_eq!(read(sink.join("version")), read("/proc/version"), "{}", way.name());
            assert_eq!(read(sink.join("ostype")), read("/proc/sys/kernel/ostype"), "{}", way.name());
        }
        way.cp(&[], &["/proc/kallsyms"], &sink).run().sane().exits(3).says("more bytes than its size");
        assert!(!sink.join("kallsyms").exists());
        assert_no_debris(&sink);
    }
}

/// Goal: a path longer than any system call takes is no obstacle.
/// Method: twenty nested directories of 250 bytes each, made and read by descriptor.
#[test]
fn paths_may_be_longer_than_path_max() {
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    let bottom = descend(&data, true);
    let flags = OFlags::CREATE | OFlags::WRONLY;
    let file = rustix::fs::openat(&bottom, "f", flags, Mode::from_raw_mode(0o644)).expect("make the file");
    fs::File::from(file).write_all(b"deep").expect("write the file");
    Way::Here.cp(&["-r"], &[contents(&data)], &sink).run().sane().exits(0);
    let copy =
        rustix::fs::openat(descend(&sink, false), "f", OFlags::RDONLY, Mode::empty()).expect("open the copy");
    assert_eq!(std::io::read_to_string(fs::File::from(copy)).expect("read the copy"), "deep");
}

/// Goal: nor is a tree that is deeper than descriptors are allowed.
/// Method: two chains of 1,000 directories with a file in each, and 3,000 small files beside them, under a
/// limit of 1,024.
#[test]
fn deep_trees_need_few_descriptors() {
    need!("prlimit");
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    tree::plain(&data, 41, 3000, 100);
    for chain in ["x", "y"] {
        let mut dir: OwnedFd = fs::File::open(&data).expect("open").into();
        for _ in 0..1000 {
            rustix::fs::mkdirat(&dir, chain, Mode::RWXU).expect("make a directory");
            dir = rustix::fs::openat(&dir, chain, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())
                .expect("open it");
            let file = rustix::fs::openat(&dir, "f", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR)
                .expect("make a file");
            fs::File::from(file).write_all(chain.as_bytes()).expect("write a file");
        }
    }
    let copy = Way::Here.cp(&["-r"], &[contents(&data)], &sink);
    copy.limited("--nofile=1024").run().sane().exits(0);
    assert_same(&data, &sink, BELOW);
    let again = Way::Here.cp(&["-r"], &[contents(&data)], &sink);
    let summary = again.limited("--nofile=1024").run().sane().exits(0).summary();
    assert_eq!(summary.number("bytes_sent"), 0, "{summary:?}");
}

fn descend(root: &Path, make: bool) -> OwnedFd {
    let open = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut dir = rustix::fs::open(root, open, Mode::empty()).expect("open the root");
    let name = "d".repeat(250);
    for _ in 0..20 {
        if make {
            rustix::fs::mkdirat(&dir, &name, Mode::from_raw_mode(0o755)).expect("make a directory");
        }
        dir = rustix::fs::openat(&dir, &name, open, Mode::empty()).expect("go down");
    }
    dir
}

/// Goal: when ssh fails, its own words are shown and the run ends at once with code 1.
/// Method: a remote shell that complains, one that says nothing, one that is not there, and a key that is
/// refused.
#[test]
fn ssh_that_fails_speaks_for_itself() {
    let room = Room::new();
    room.file("f", "f");
    let complains =
        room.file("complains", "#!/bin/sh\necho 'Permission denied (publickey).' >&2\nexit 255\n");
    set_mode(&complains, 0o755);
    let source = room.at("f");
    let with =
        |ssh: &str| Haul::cp(["-e", ssh]).args([source.as_os_str(), "host.invalid:x".as_ref()]).run().sane();
    with(&complains.display().to_string()).exits(1).says("Permission denied (publickey)");
    with("false").exits(1);
    with("/no/such/ssh").exits(1).says("/no/such/ssh");

    need!("sshd");
    let sshd = Sshd::start();
    fs::write(sshd.room.at("authorized_keys"), "").expect("forget the key");
    Haul::cp([source.as_os_str(), &sshd.path(&room.at("sink"))])
        .by(&sshd)
        .run()
        .sane()
        .exits(1)
        .says("denied");
}

/// Goal: ssh is told never to ask where nobody could answer, and only there.
/// Method: an ssh that shows its options; a terminal, a program that asks in its place, one that answers for
/// it, and none.
#[test]
fn ssh_may_ask_where_somebody_can_answer() {
    need!("script", "setsid");
    let room = Room::new();
    room.file("f", "f");
    for name in ["ssh", "sshpass"] {
        set_mode(&room.file(name, "#!/bin/sh\necho \"told $*\" >&2\nexit 255\n"), 0o755);
    }
    let haul = |program: &str| {
        let ssh = room.at(program).display().to_string();
        Haul::new(["cp", "-e", &ssh]).args([room.at("f").as_os_str(), "host.invalid:x".as_ref()])
    };
    let forbidden = |haul: Haul| {
        let ended = haul.run().sane().exits(1);
        let said = format!("{}{}", String::from_utf8_lossy(&ended.stdout), ended.stderr);
        assert_eq!(said.matches("told ").count(), 1, "its words are said once\n{said}");
        said.contains("BatchMode=yes")
    };
    let program = || haul("ssh").without_a_terminal().env("SSH_ASKPASS", "/bin/false");
    assert!(forbidden(haul("ssh").without_a_terminal()));
    assert!(forbidden(program()));
    assert!(!forbidden(program().env("DISPLAY", ":0")));
    assert!(!forbidden(program().env("SSH_ASKPASS_REQUIRE", "force")));
    assert!(!forbidden(haul("sshpass").without_a_terminal()));
    assert!(!forbidden(haul("ssh").args(["</dev/null"]).on_a_terminal()), "a terminal that is not stdin");
}

/// Goal: an old kernel is named by one sentence, and nothing is done there.
#[test]
fn an_old_kernel_is_named() {
    need!("setarch");
    let room = Room::new();
    let (from, to) = (room.file("f", "f"), room.at("g"));
    let ended = Haul::new(["cp"]).args([&from, &to]).on_an_old_kernel().run().sane().exits(1);
    assert!(ended.stderr.starts_with("haul: this host runs Linux 2.6."), "{}", ended.describe());
    assert!(ended.stderr.ends_with(", and haul needs Linux 4.18 or newer\n"), "{}", ended.describe());
    assert!(!to.exists());
}

/// Goal: a low limit on open files slows a copy at most: no entry fails for want of descriptors.
/// Method: 6,000 small files, which are all open until their epoch ends, and a deep chain of directories,
/// under a limit of 600 descriptors.
#[test]
fn few_descriptors_are_enough() {
    need!("prlimit");
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    tree::plain(&data, 40, 6000, 100);
    let deep = (0..40).fold(data.clone(), |dir, level| dir.join(format!("level {level}")));
    fs::create_dir_all(&deep).expect("make the chain");
    fs::write(deep.join("bottom"), b"bottom").expect("write the bottom");
    let copy = Way::Here.cp(&["-r"], &[contents(&data)], &sink);
    copy.limited("--nofile=600").run().sane().exits(0);
    assert_same(&data, &sink, BELOW);
}

/// Goal: threads and I/O threads that are asked for are counted with the descriptors, and a copy that asks
/// for more than the limit allows is complete all the same, and says so.
/// Method: as many readers, writers and I/O threads as there can be, for small files and large ones, under a
/// low limit and a higher one.
#[test]
fn many_threads_leave_descriptors_for_files() {
    need!("prlimit");
    let room = Room::new();
    let data = room.dir("data");
    tree::plain(&data, 41, 2000, 100);
    for i in 0..20 {
        room.file(&format!("data/large {i}"), vec![i; 1 << 20]);
    }
    for limit in [600, 4096] {
        let sink = room.dir(&format!("sink {limit}"));
        let options = ["-r", "--readers=256", "--writers=256", "--io-threads=64"];
        let copy = Way::Here.cp(&options, &[contents(&data)], &sink);
        let ended = copy.limited(&format!("--nofile={limit}")).run().sane().exits(0);
        assert_same(&data, &sink, BELOW);
        let said = String::from_utf8_lossy(&ended.stdout).contains("the limit on open files allows");
        assert_eq!(said, limit == 600, "{}", ended.describe());
    }
}

/// Goal: a FIFO, socket or device at a destination name is left alone, is named, and is never waited for;
/// `--force` replaces it.
/// Method: a FIFO and (as root) a device as the destination itself and below it, for files and links.
#[test]
fn special_files_at_the_destination_stay() {
    use std::os::unix::fs::FileTypeExt as _;
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    fs::create_dir(sink.join("data")).expect("mkdir");
    let mut kinds = vec!["fifo"];
    let root = rustix::process::geteuid().is_root();
    if root {
        kinds.push("device");
    }
    let make = |path: &Path, kind: &str| {
        let (kind, device) = match kind {
            "fifo" => (rustix::fs::FileType::Fifo, 0),
            _ => (rustix::fs::FileType::CharacterDevice, rustix::fs::makedev(1, 3)),
        };
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, device).expect("mknod");
    };
    let special = |path: &Path| {
        let kind = fs::symlink_metadata(path).expect("stat").file_type();
        kind.is_fifo() || kind.is_char_device()
    };
    fs::write(data.join("plain"), "plain").expect("write");
    for kind in &kinds {
        let (file, link) = (data.join(kind), data.join(format!("{kind}.link")));
        fs::write(&file, "content").expect("write");
        std::os::unix::fs::symlink("target", &link).expect("link");
        for at in [&file, &link] {
            make(&sink.join("data").join(at.file_name().expect("a name")), kind);
        }
        let alone = sink.join(format!("{kind}.alone"));
        make(&alone, kind);
        let run = Haul::cp([data.join("plain").as_os_str(), alone.as_os_str()]).run().sane();
        assert!(run.status.code() != Some(0) && special(&alone), "{}", run.describe());
        assert!(run.describe().contains("device, FIFO or socket"), "{}", run.describe());
    }
    let run = Way::Here.cp(&["-r"], &[&data], &sink).run().sane().exits(3);
    let summary = run.summary();
    assert_eq!(summary.number("failed"), 2 * kinds.len() as u64, "{}", run.describe());
    assert_eq!(summary.number("files"), 1, "{}", run.describe());
    for kind in &kinds {
        assert!(special(&sink.join("data").join(kind)), "{kind} was replaced");
        assert!(special(&sink.join("data").join(format!("{kind}.link"))), "{kind} was replaced by a link");
    }
    Way::Here.cp(&["-r", "--force"], &[&data], &sink).run().sane().exits(0);
    assert_same(&data, &sink.join("data"), ALL);
    let alone = sink.join("fifo.alone");
    Haul::cp([data.join("plain").as_os_str(), alone.as_os_str(), "--force".as_ref()]).run().sane().exits(0);
    assert_eq!(read(&alone), b"plain");
    if !root {
        eprintln!("skipped: devices need root");
    }
}

/// Goal: a link to a device, or into `/proc` as `/dev/stdout` is one, is no destination: it is refused in
/// words and stays, nothing is made beside it, whatever --force says; a dry run says the same.
/// Method: links to a device, into `/proc` (stdout is a file), to such a link, and the name in `/proc`
/// itself.
#[test]
fn links_to_devices_are_no_destination() {
    let room = Room::new();
    let (file, sink) = (room.file("file", "content"), room.dir("sink"));
    for (name, target) in [("null", "/dev/null"), ("stdout", "/proc/self/fd/1"), ("twice", "../sink/stdout")]
    {
        let link = sink.join(name);
        std::os::unix::fs::symlink(target, &link).expect("link");
        for options in [
            &[][..],
            &["-n"],
            &["--force"],
            &["--no-clobber"],
            &["--in-place"],
            &["--range=0:1", "--to=0"],
            &["-n", "--range=0:1", "--to=0"],
        ] {
            let before = snapshot(&sink);
            let refused = Way::Here.cp(options, &[&file], &link).run().sane().exits(1);
            refused.says("is a link to a device or into /proc");
            assert_eq!(snapshot(&sink), before, "{name} {options:?}");
        }
    }
    for options in [&[][..], &["-n"], &["--force"]] {
        let refused = Way::Here.cp(options, &[&file], "/proc/self/fd/1").run().sane().exits(1);
        refused.says("in /proc, which holds no files");
    }
    // Another link gives way, as ever.
    let link = sink.join("plain");
    std::os::unix::fs::symlink(&file, &link).expect("link");
    Way::Here.cp(&[], &[&room.file("other", "other")], &link).run().sane().exits(0);
    assert_eq!((read(&link), read(&file)), (b"other".to_vec(), b"content".to_vec()));
    assert_no_debris(&sink);
}

/// Goal: a destination that cannot be used is named with what to do, not by a file of haul's own, and a dry
/// run says the same.
/// Method: a directory that is not there above a single file's name; one that this user may not write to; a
/// state directory that is not there.
#[test]
fn an_unfit_destination_is_named() {
    need!("setpriv");
    let room = Room::new();
    let (file, data) = (room.file("f", "x"), room.dir("data"));
    let closed = room.dir("closed");
    for options in [&["-n"][..], &[]] {
        let run = |args: &[&str], from: &Path, to: &Path| {
            let haul = Haul::new(["cp", "-r"]).args(options).args(args).args([from, to]);
            haul.run_by_nobody(&room).run().sane().exits(1)
        };
        run(&[], &file, &room.at("no/deep"))
            .says("there is no directory")
            .says("end the destination with a slash");
        let denied = run(&[], &data, &closed).says("no permission to write there");
        assert!(!denied.stderr.contains(".haul~"), "{}", denied.describe());
    }
    let state = format!("--state={}", room.at("missing").display());
    let run = Haul::new(["cp", "-r", &state]).args([&data, &room.dir("sink")]).run().sane().exits(2);
    run.says("--state").says("there is no such directory at the destination's host; make it first");
    assert_eq!(fs::read_dir(&closed).expect("list").count(), 0);
}

/// Goal: a file whose early write-back finds no place for its bytes fails, for no sync behind that need say
/// so, and has no name; so it does where nothing is to be synced.
/// Method: a file system that has its write-back asked for, and a kernel that refuses it once.
#[test]
fn write_back_that_fails_fails_the_file() {
    need!("root");
    need!("strace");
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    let _tmpfs = Tmpfs::mount(&sink, "size=64m");
    fs::write(data.join("f"), vec![7; 24 << 20]).expect("write");
    fs::write(data.join("small"), "small").expect("write");
    // Without room the run ends.
    for (error, code, durability) in [("EIO", 3, "disk"), ("ENOSPC", 1, "disk"), ("EIO", 3, "none")] {
        let options = ["-r", "--durability", durability];
        let call = format!("sync_file_range:error={error}:when=1");
        let run = Haul::cp(options).args([data.join("").as_path(), &sink]).injected(&[call]).run();
        let run = run.sane().exits(code);
        assert!(run.stderr.contains("what was written is not to be trusted"), "{}", run.describe());
        assert!(!sink.join("f").exists(), "{}", run.describe());
        assert_eq!(fs::read(sink.join("small")).expect("read"), b"small");
    }
    Haul::cp(["-r"]).args([data.join("").as_path(), &sink]).run().sane().exits(0);
    assert!(fs::read(sink.join("f")).expect("read") == vec![7; 24 << 20]);
}
