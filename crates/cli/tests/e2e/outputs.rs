//! Files and streams that a user names to be written: the manifest, the list of failures, what goes to
//! stdout.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::support::run::{Haul, program};
use crate::support::way::contents;
use crate::support::{Room, procs, read, set_mode, tree};

fn option(name: &str, path: &Path) -> String {
    format!("--{name}={}", path.display())
}

/// A source of one file with its line in a manifest.
fn one_file(room: &Room) -> String {
    room.dir("data");
    room.file("data/f", "content");
    format!("{}  f\n", blake3::hash(b"content").to_hex())
}

fn copy(room: &Room, options: &[&str]) -> Haul {
    Haul::new(["cp", "-r"]).args(options).args([contents(&room.at("data")), room.at("sink").into()])
}

/// Goal: a user's own NAME.json is neither removed nor replaced by `--manifest NAME`: the run refuses before
/// it does anything.
/// Method: a file, an empty one and a directory of that name; then a list of an earlier run, which gives way.
#[test]
fn a_json_beside_the_manifest_stays() {
    let room = Room::new();
    let line = one_file(&room);
    let (manifest, json) = (room.at("package"), room.at("package.json"));
    let run = || copy(&room, &[&option("manifest", &manifest)]).run().sane();
    for content in ["{\"precious\":1}\n", ""] {
        fs::write(&json, content).expect("write");
        run().exits(2).says("move that file away");
        assert_eq!(read(&json), content.as_bytes());
        assert!(!manifest.exists() && !room.at("sink").exists());
    }
    fs::remove_file(&json).expect("rm");
    fs::create_dir(&json).expect("mkdir");
    run().exits(2).says("package.json");
    fs::remove_dir(&json).expect("rmdir");

    let odd = room.file("data/odd\r", "x");
    run().exits(0);
    assert!(json.exists());
    fs::remove_file(odd).expect("rm");
    run().exits(0);
    assert!(!json.exists(), "the list of the run before");
    assert_eq!(read(&manifest), line.as_bytes());
}

/// Goal: a device, a FIFO and `/dev/stdout` are written to and stay what they are.
/// Method: a copy with each of them as the manifest, and as the list of failures; names that b3sum cannot
/// check are said.
#[test]
fn lists_go_into_streams() {
    let room = Room::new();
    let line = one_file(&room);
    let fifo = room.at("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("run mkfifo").success());
    let mut reader = fs::File::options()
        .read(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
        .open(&fifo)
        .expect("open a FIFO");
    copy(&room, &[&option("manifest", &fifo), "--failures=/dev/null"]).run().sane().exits(0);
    let mut text = String::new();
    reader.read_to_string(&mut text).expect("read");
    assert_eq!(text, line);
    assert!(fs::metadata(&fifo).expect("stat").file_type().is_fifo());
    assert!(fs::metadata("/dev/null").expect("stat").file_type().is_char_device());

    let ended = copy(&room, &["--manifest=/dev/stdout"]).run().sane().exits(0);
    assert_eq!(ended.stdout, line.as_bytes(), "{}", ended.describe());
    let ended = copy(&room, &["--manifest=-"]).within(&room.dir("empty")).run().sane().exits(0);
    assert_eq!(ended.stdout, line.as_bytes(), "{}", ended.describe());
    assert_eq!(fs::read_dir(room.at("empty")).expect("list").count(), 0);
    for option in ["-i", "--json"] {
        copy(&room, &["--manifest=-", option]).run().sane().exits(2).says("stdout");
    }
    room.file("data/odd\r", "x");
    let ended = copy(&room, &["--manifest=/dev/stdout"]).run().sane().exits(1).says("lacks 1 file");
    assert_eq!(ended.stdout, line.as_bytes(), "{}", ended.describe());

    need!("root");
    let device = room.at("device");
    let made = Command::new("mknod").arg(&device).args(["c", "1", "3"]).status().expect("run mknod");
    if made.success() {
        fs::remove_file(room.at("data/odd\r")).expect("rm");
        copy(&room, &[&option("manifest", &device), &option("failures", &device)]).run().sane().exits(0);
        let stat = fs::symlink_metadata(&device).expect("stat");
        assert!(stat.file_type().is_char_device() && stat.rdev() == rustix::fs::makedev(1, 3));
    }
    assert!(!room.at("device.json").exists());
}

/// Goal: a link that is named is followed and stays; a list that is replaced keeps its mode.
#[test]
fn lists_follow_links_and_keep_modes() {
    let room = Room::new();
    let line = one_file(&room);
    room.dir("lists");
    for (list, old) in [("sums", "old"), ("failed", "old\n")] {
        set_mode(&room.file(&format!("lists/{list}"), old), 0o600);
        symlink(format!("lists/{list}"), room.at(list)).expect("link");
    }
    let options = [option("manifest", &room.at("sums")), option("failures", &room.at("failed"))];
    copy(&room, &options.each_ref().map(String::as_str)).run().sane().exits(0);
    assert_eq!(read(room.at("lists/sums")), line.as_bytes());
    let failed = String::from_utf8(read(room.at("lists/failed"))).expect("text");
    assert!(failed.lines().count() == 1 && failed.contains("\"whole\":true"), "{failed}");
    for list in ["sums", "failed"] {
        assert!(fs::symlink_metadata(room.at(list)).expect("stat").is_symlink());
        assert_eq!(fs::metadata(room.at(list)).expect("stat").mode() & 0o777, 0o600);
    }
    assert_eq!(fs::read_dir(room.at("lists")).expect("list").count(), 2, "no temporary is left");
}

/// Goal: a list in a source, or one that would replace a source or its copy, is refused before anything is
/// written.
/// Method: each such name for both lists; the source must stay as it was, with its times.
#[test]
fn lists_lie_outside_of_the_copy() {
    let room = Room::new();
    one_file(&room);
    room.dir("data/sub");
    room.dir("sink");
    let look = || {
        let stat = fs::metadata(room.at("data")).expect("stat");
        (fs::read_dir(room.at("data")).expect("list").count(), stat.mtime(), stat.mtime_nsec())
    };
    let before = look();
    for list in ["manifest", "failures"] {
        for (name, words) in [
            ("data/list", "inside the source"),
            ("data/sub/list", "inside the source"),
            ("data/f", "inside the source"),
            ("sink/f", "replace a file of the copy"),
        ] {
            copy(&room, &[&option(list, &room.at(name))]).run().sane().exits(2).says(words);
            assert_eq!(look(), before, "{list} {name}");
        }
        let (one, to) = (room.at("data/f"), room.at("out"));
        Haul::new(["cp", &option(list, &one)]).args([&one, &to]).run().sane().exits(2).says("source itself");
    }
    assert_eq!(read(room.at("data/f")), b"content");
    assert_eq!(fs::read_dir(room.at("data/sub")).expect("list").count(), 0);
    assert_eq!(fs::read_dir(room.at("sink")).expect("list").count(), 0);
}

/// Goal: wrong usage leaves the list of failures of the run before; a run that is killed leaves what it knew.
/// Method: a directory without `-r`; then a slow copy with one entry that fails, killed as soon as the list
/// says so.
#[test]
fn failures_survive_what_they_should() {
    let room = Room::new();
    let data = room.dir("data");
    tree::plain(&data, 4, 0, 64 << 20);
    room.file("data/clash", "x");
    room.dir("sink/clash");
    let list = room.file("failed", "old\n");
    let option = option("failures", &list);
    Haul::new(["cp", &option]).args([&data, &room.at("sink")]).run().sane().exits(2);
    assert_eq!(read(&list), b"old\n");
    let mut run = copy(&room, &["--rate=4MB/s", &option]).start();
    let clashed = || String::from_utf8_lossy(&read(&list)).contains("\"clash\"");
    assert!(run.until(|_| clashed()), "it was over too early");
    run.signal(Signal::KILL);
    assert!(run.wait().was_killed());
    let left = String::from_utf8(read(&list)).expect("text");
    assert!(left.lines().count() == 1 && left.ends_with("}\n"), "{left}");
}

/// Goal: a list on stdout that cannot be written is no success; the copy is whole all the same.
/// Method: `/dev/full` as stdout of a dry run, an itemized and a JSON one. A reader that leaves is another
/// test's.
#[test]
fn a_full_stdout_is_no_success() {
    for options in ["-n", "-i", "--json"] {
        let room = Room::new();
        one_file(&room);
        let line = format!(
            "'{}' cp -r {options} '{}/' '{}' >/dev/full",
            program().display(),
            room.at("data").display(),
            room.at("sink").display()
        );
        let ended =
            Command::new("sh").args(["-c", &line]).stdin(Stdio::null()).output().expect("run a shell");
        let told = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(1), "{options}: {told}");
        assert!(told.contains("No space left"), "{options}: {told}");
        if options != "-n" {
            assert_eq!(read(room.at("sink/f")), b"content", "{options}");
        }
    }
}

/// Goal: a list that takes the place of a file with another name leaves the content there: a source cannot be
/// emptied by one.
/// Method: both lists under a hard link of a source's file, whose other name lies outside.
#[test]
fn lists_leave_other_names_of_a_file() {
    for list in ["manifest", "failures"] {
        let room = Room::new();
        one_file(&room);
        fs::hard_link(room.at("data/f"), room.at("list")).expect("link");
        copy(&room, &[&option(list, &room.at("list"))]).run().sane().exits(0);
        assert_eq!(read(room.at("data/f")), b"content", "{list}");
        assert_eq!(read(room.at("sink/f")), b"content", "{list}");
        assert_ne!(read(room.at("list")), b"content", "{list}");
    }
}

/// Goal: a list takes nothing but itself to another owner, and only what was written gets the name.
/// Method: root replaces a list of nobody's; while it gives its temporary away, that becomes a link to a file
/// of root's.
#[test]
fn lists_give_no_other_file_away() {
    need!("root");
    need!("strace");
    for list in ["manifest", "failures"] {
        let room = Room::new();
        one_file(&room);
        let secret = room.file("secret", "secret");
        set_mode(&secret, 0o600);
        room.dir("theirs");
        let old = room.file("theirs/list", "old");
        for path in [room.at("theirs"), old.clone()] {
            std::os::unix::fs::chown(path, Some(65534), Some(65534)).expect("chown");
        }
        let calls = "chown,lchown,fchown,fchownat:delay_enter=1500000:when=1";
        let mut run = copy(&room, &[&option(list, &old)]).injected(&[calls.into()]).start();
        let temporary = || {
            let names =
                fs::read_dir(room.at("theirs")).expect("list").map(|entry| entry.expect("entry").path());
            names.into_iter().find(|path| path.file_name() != old.file_name())
        };
        assert!(run.until(|_| temporary().is_some()), "it makes no temporary");
        let name = temporary().expect("a temporary");
        fs::rename(&name, room.at("kept")).expect("move");
        symlink(&secret, &name).expect("link");
        run.wait().sane().exits(1).says("temporary");
        assert_eq!(fs::metadata(&secret).expect("stat").uid(), 0, "{list}");
        assert_eq!(read(&old), b"old", "{list}");
        assert_eq!(read(room.at("sink/f")), b"content", "{list}");
    }
}

/// Goal: a link that another user planted where all may write leads a list nowhere.
/// Method: one in a directory as `/tmp` is; nothing of the copy is begun.
#[test]
fn lists_follow_no_planted_links() {
    need!("root");
    let room = Room::new();
    one_file(&room);
    let precious = room.file("precious", "precious");
    set_mode(&room.dir("shared"), 0o1777);
    symlink(&precious, room.at("shared/list")).expect("link");
    std::os::unix::fs::lchown(room.at("shared/list"), Some(65534), Some(65534)).expect("chown");
    for list in ["manifest", "failures"] {
        let ended = copy(&room, &[&option(list, &room.at("shared/list"))]).run().sane().exits(1);
        ended.says("another user put it");
        assert_eq!(read(&precious), b"precious", "{list}");
        assert!(!room.at("sink").exists(), "{list}");
    }
}

/// Goal: a bind mount hides neither that a list would replace a copied file or lie in a source, nor that a
/// destination lies in its source; other places behind one are as good as any.
/// Method: mounts of the destination, of a part of it and of a part of the source, in a mount namespace of
/// each run.
#[test]
fn bind_mounts_hide_nothing() {
    need!("root");
    need!("unshare");
    let room = Room::new();
    one_file(&room);
    for dir in ["data/sub", "sink/sub", "whole", "part", "inside"] {
        room.dir(dir);
    }
    room.file("data/sub/g", "g");
    let mounts: Vec<String> = [("sink", "whole"), ("sink/sub", "part"), ("data/sub", "inside")]
        .map(|(from, to)| format!("mount --bind '{}' '{}'", room.at(from).display(), room.at(to).display()))
        .into();
    let script = format!("{} && exec \"$0\" \"$@\"", mounts.join(" && "));
    let mounted = |haul: Haul| haul.wrapped(["unshare", "-m", "sh", "-c", &script]).run().sane();
    for list in ["manifest", "failures"] {
        for (name, words) in [
            ("whole/f", "replace a file of the copy"),
            ("whole/sub/g", "replace a file of the copy"),
            ("part/g", "replace a file of the copy"),
            ("inside/list", "inside the source"),
        ] {
            mounted(copy(&room, &[&option(list, &room.at(name))])).exits(2).says(words);
        }
        mounted(copy(&room, &[&option(list, &room.at("part/list"))])).exits(0);
        assert!(room.at("sink/sub/list").exists());
        fs::remove_file(room.at("sink/sub/list")).expect("rm");
    }
    let into = Haul::new(["cp", "-r"]).args([room.at("data"), room.at("inside")]);
    mounted(into).exits(2).says("lies inside the source");
    assert_eq!(fs::read_dir(room.at("data/sub")).expect("list").count(), 1);
}

/// Goal: from its beginning on a signal ends a run with its exit code, also before its first line is told.
/// Method: stdout is a pipe that is full, and of which nobody takes anything before the signal.
#[test]
fn a_signal_at_the_start_has_its_exit_code() {
    const SIGINT: u64 = 1 << 1;
    let room = Room::new();
    let (mut reader, writer) = std::io::pipe().expect("make a pipe");
    rustix::io::ioctl_fionbio(&writer, true).expect("set an option");
    let mut all = &writer;
    while all.write(&[b' '; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&writer, false).expect("set an option");
    // Whoever runs the tests in the background may have left SIGINT ignored.
    let mut command = Command::new("env");
    command.arg("--default-signal=INT").arg(program()).args(["cp", "--json", "--rate=1MiB/s"]);
    command.args(["null://1TiB", "null://"]).env("HOME", room.at(""));
    command.stdin(Stdio::null()).stdout(writer).stderr(Stdio::null());
    let mut run = command.spawn().expect("start haul");
    drop(command);
    let watches = || {
        let status = fs::read_to_string(format!("/proc/{}/status", run.id())).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        caught.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask & SIGINT != 0))
    };
    let watched = procs::wait_until(Duration::from_secs(60), watches);
    let pid = rustix::process::Pid::from_raw(run.id().cast_signed()).expect("a process");
    rustix::process::kill_process(pid, Signal::INT).expect("send it");
    let mut told = Vec::new();
    reader.read_to_end(&mut told).expect("read it");
    let ended = run.wait().expect("it ends");
    assert!(watched && ended.code() == Some(130), "{ended:?}: {}", String::from_utf8_lossy(&told));
}
