//! Extended attributes and access control lists: kept as they are with -X and -A, compared, and never those
//! that file systems keep for themselves.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;
use std::process::Command;

use rustix::fs::XattrFlags;
use rustix::process::Signal;

use crate::support::compare::assert_no_debris;
use crate::support::disk::{Disk, Kind};
use crate::support::mount::{Btrfs, Ramfs, Tmpfs};
use crate::support::run::Outcome;
use crate::support::way::Way;
use crate::support::{Room, procs, set_mode, tree};

/// `cap_net_raw` permitted and effective.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Sets an attribute of what stands there, not through a link.
pub fn set(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty())
        .unwrap_or_else(|errno| panic!("set {name} of {}: {errno}", path.display()));
}

pub fn value_of(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut room = vec![0; 65536];
    let len = rustix::fs::lgetxattr(path, name, &mut room[..]).ok()?;
    room.truncate(len);
    Some(room)
}

pub fn setfacl(words: &[&str], path: &Path) {
    let done = Command::new("setfacl").args(words).arg(path).status().expect("run setfacl");
    assert!(done.success(), "setfacl {words:?}");
}

fn said(program: &str, words: &[&str], within: &Path) -> String {
    let output = Command::new(program).args(words).arg(".").current_dir(within).output().expect("run it");
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// All attributes and lists of a tree, as Debian's tools tell them, in the order of paths.
pub fn told(root: &Path) -> Vec<String> {
    let parts = |text: String| {
        let mut parts: Vec<String> = text.split("\n\n").map(str::trim).map(str::to_owned).collect();
        parts.retain(|part| !part.is_empty());
        parts.sort();
        parts
    };
    let xattrs = said("getfattr", &["-h", "-R", "-P", "-d", "-m", "-", "-e", "hex"], root);
    let xattrs: String = xattrs
        .lines()
        .filter(|line| !line.starts_with("security.selinux") && !line.starts_with("trusted.SGI_"))
        .fold(String::new(), |mut all, line| {
            all.push_str(line);
            all.push('\n');
            all
        });
    let mut all = parts(xattrs);
    all.extend(parts(said("getfacl", &["-R", "-P", "-n"], root)));
    all
}

/// What rsync would change to make the copy what the source is.
pub fn rsync_would(source: &Path, copy: &Path) -> String {
    let mut words = [source, copy].map(|path| path.as_os_str().to_owned());
    words.iter_mut().for_each(|word| word.push("/"));
    let output =
        Command::new("rsync").args(["-aAXn", "--delete", "-i"]).args(words).output().expect("run rsync");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// What was said of an entry that failed.
pub fn failure_of(run: &Outcome, path: &str) -> Option<String> {
    let begins = format!("haul: {path}: ");
    run.stderr.lines().find_map(|line| Some(line.strip_prefix(&begins)?.to_owned()))
}

/// A tree with every kind of attribute and list that is kept.
fn dressed(data: &Path) {
    fs::create_dir_all(data.join("d/closed")).expect("make directories");
    for name in ["f", "program", "d/g", "d/plain"] {
        fs::write(data.join(name), name).expect("write");
    }
    fs::write(data.join("large"), vec![5; 1 << 20]).expect("write");
    fs::File::create(data.join("sparse")).and_then(|file| file.set_len(2 << 20)).expect("make a hole");
    symlink("f", data.join("link")).expect("a link");
    set(&data.join("f"), "user.a", b"1");
    set(&data.join("f"), "user.empty", b"");
    set(&data.join("f"), "user.bytes", &[0, 255, 10, 0]);
    set(&data.join("f"), "trusted.t", b"root's");
    set(&data.join("large"), "user.long", &[7; 3000]);
    set(&data.join("sparse"), "user.hole", b"2");
    set(&data.join("d"), "user.of-a-directory", b"3");
    set(&data.join("link"), "trusted.of-a-link", b"4");
    set(&data.join("program"), "security.capability", &CAPABILITY);
    setfacl(&["-m", "u:1234:rw,g:77:r"], &data.join("f"));
    setfacl(&["-m", "u:1234:rwx,g::---,m::rwx"], &data.join("d"));
    setfacl(&["-d", "-m", "u:55:rwx,g:66:r-x"], &data.join("d"));
    setfacl(&["-m", "u:9:r"], &data.join("large"));
    setfacl(&["-m", "u:9:-"], &data.join("d/closed"));
    fs::set_permissions(data.join("d/closed"), std::os::unix::fs::PermissionsExt::from_mode(0o550))
        .expect("chmod");
    set_mode(&data.join("d/g"), 0o444);
    set(&data.join("d/g"), "user.read-only", b"5");
}

/// Goal: with -aAX a copy has every attribute and every list of its source, and rsync would change nothing; a
/// rerun changes nothing either. Without them it has none.
/// Method: each way, with and without; both trees as getfattr and getfacl tell them.
#[test]
fn attributes_and_lists_are_kept() {
    need!("attr", "rsync");
    for way in Way::all() {
        let room = Room::new();
        let (data, sink) = (room.at("data"), room.dir("sink"));
        dressed(&data);
        way.cp(&["-aAX"], &[&data], &sink).run().sane().exits(0);
        assert_eq!(told(&sink.join("data")), told(&data), "{}", way.name());
        assert_eq!(rsync_would(&data, &sink.join("data")), "", "{}", way.name());
        let again = way.cp(&["-aAX"], &[&data], &sink).run().sane().exits(0).summary();
        let counts = ["files", "unchanged", "metadata_only", "bytes_sent"].map(|name| again.number(name));
        assert_eq!(counts, [0, 6, 0, 0], "{}", way.name());
        let bare = room.dir("bare");
        way.cp(&["-a"], &[&data], &bare).run().sane().exits(0);
        assert_eq!(value_of(&bare.join("data/f"), "user.a"), None);
        assert_eq!(value_of(&bare.join("data/f"), "system.posix_acl_access"), None);
        assert_no_debris(&sink);
    }
}

/// Goal: it holds on every file system that has them, and between them.
/// Method: pairs of ext4, XFS, btrfs and tmpfs.
#[test]
fn file_systems_keep_what_they_are_given() {
    need!("attr", "rsync", "ext4", "xfs", "btrfs", "tmpfs");
    let room = Room::new();
    let (ext4, xfs) = (Disk::new(&room, "ext4", Kind::Ext4), Disk::new(&room, "xfs", Kind::Xfs));
    let (btrfs, tmpfs) = (room.dir("btrfs"), room.dir("tmpfs"));
    let _btrfs = Btrfs::mount_with(&room, &btrfs, "rw");
    let _tmpfs = Tmpfs::mount(&tmpfs, "size=64m");
    let roots = [ext4.at("r"), xfs.at("r"), btrfs.join("r"), tmpfs.join("r")];
    for root in &roots {
        fs::create_dir(root).expect("make a directory");
    }
    // Older kernels have no attributes of users on a tmpfs.
    let probe = roots[3].join("probe");
    fs::write(&probe, "").expect("write");
    let all = rustix::fs::setxattr(&probe, "user.x", b"", XattrFlags::empty()).is_ok();
    fs::remove_file(&probe).expect("remove");
    dressed(&roots[0].join("data"));
    for (from, to) in
        [(0, 1), (1, 2), (2, 3), (3, 0)].into_iter().filter(|pair| all || !matches!(pair, (2, 3) | (3, 0)))
    {
        let (data, sink) = (roots[from].join("data"), &roots[to]);
        let copy = sink.join("data");
        if to == 0 {
            fs::remove_dir_all(&copy).expect("make room");
        }
        Way::Here.cp(&["-aAX", "--durability", "none"], &[&data], sink).run().sane().exits(0);
        assert!(told(&copy) == told(&data), "{} to {}", data.display(), copy.display());
        // rsync takes the lists that XFS has for attributes besides.
        if from != 1 && to != 1 {
            assert_eq!(rsync_would(&data, &copy), "");
        }
    }
}

/// Goal: what differs in attributes or lists alone is told as rsync tells it, before and while it is mended;
/// no byte is sent, nothing is made anew, and what the source has not goes.
/// Method: each change alone, on either side; a dry run and a run held against `rsync -n -i`.
#[test]
fn what_differs_is_mended_where_it_stands() {
    need!("attr", "rsync");
    for way in Way::all() {
        let room = Room::new();
        let (data, sink) = (room.at("data"), room.dir("sink"));
        dressed(&data);
        way.cp(&["-aAX"], &[&data], &sink).run().sane().exits(0);
        let copy = sink.join("data");
        let inode = |name: &str| fs::symlink_metadata(copy.join(name)).expect("stat").ino();
        let names = ["f", "program", "d/g", "d/plain", "large", "link", "d"];
        let inodes = names.map(inode);
        set(&data.join("f"), "user.a", b"another");
        set(&copy.join("d/g"), "user.extra", b"goes");
        set(&copy.join("link"), "trusted.extra", b"goes");
        set(&data.join("d"), "user.more", b"comes");
        setfacl(&["-m", "u:7:r"], &copy.join("d/plain"));
        setfacl(&["-b"], &data.join("large"));
        rustix::fs::removexattr(data.join("program"), "security.capability").expect("take its rights");
        let mut expected: Vec<String> = rsync_would(&data, &copy)
            .lines()
            .map(|line| line.split(" -> ").next().expect("a name").trim_end_matches('/').to_owned())
            .collect();
        expected.sort();
        assert_eq!(expected.len(), 7, "{expected:?}");
        for dry in [true, false] {
            let options = if dry { &["-aAXni"][..] } else { &["-aAXi"] };
            let run = way.plain(options, &[&data], &sink).run().exits(0);
            let stdout = String::from_utf8(run.stdout).expect("text");
            let mut lines: Vec<String> = stdout
                .lines()
                .map(|line| line.replace(" data/", " ").trim_end_matches('/').to_owned())
                .collect();
            lines.sort();
            assert_eq!(lines, expected, "{} {dry}", way.name());
            if dry {
                assert_eq!(value_of(&copy.join("f"), "user.a"), Some(b"1".to_vec()), "nothing is changed");
            }
        }
        assert_eq!(told(&copy), told(&data), "{}", way.name());
        assert_eq!(rsync_would(&data, &copy), "");
        assert_eq!(names.map(inode), inodes, "nothing was made anew");
    }
}

/// Goal: layouts and labels of file systems are neither copied nor removed, nor what haul keeps for itself.
/// Method: some at the source, others at the destination's file and directory.
#[test]
fn layouts_and_labels_stay_where_they_are() {
    need!("attr");
    for way in Way::all() {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        room.file("data/f", "x");
        for name in [
            "trusted.lov",
            "trusted.lma",
            "trusted.gfid",
            "trusted.afr.dirty",
            "trusted.glusterfs.dht",
            "user.haul.x",
        ] {
            set(&data.join("f"), name, b"source");
            set(&data, name, b"source");
        }
        set(&data.join("f"), "user.kept", b"1");
        way.cp(&["-aAX"], &[&data], &sink).run().sane().exits(0);
        let copy = sink.join("data");
        for path in [&copy, &copy.join("f")] {
            assert_eq!(value_of(path, "trusted.lov"), None);
            assert_eq!(value_of(path, "user.haul.x"), None);
            set(path, "trusted.lov", b"sink");
            set(path, "trusted.glusterfs.dht", b"sink");
        }
        set(&data.join("f"), "user.kept", b"2");
        let again = way.cp(&["-aAX"], &[&data], &sink).run().sane().exits(0).summary();
        assert_eq!(again.number("metadata_only"), 1, "{}", way.name());
        for path in [&copy, &copy.join("f")] {
            assert_eq!(value_of(path, "trusted.lov"), Some(b"sink".to_vec()));
            assert_eq!(value_of(path, "trusted.glusterfs.dht"), Some(b"sink".to_vec()));
            assert_eq!(value_of(path, "trusted.gfid"), None);
        }
    }
}

/// Goal: what cannot be kept is named with its file and the reason, the rest of the entry is copied, and the
/// run is partial: each time, until it can be.
/// Method: a destination without attributes; one that has no room for a long one; a user who may not give
/// programs rights.
#[test]
fn what_cannot_be_kept_is_named() {
    need!("attr", "setpriv", "ext4", "xfs");
    for way in Way::all() {
        let room = Room::new();
        let (data, sink) = (room.at("data"), room.dir("sink"));
        dressed(&data);
        let ram = Ramfs::mount(&sink);
        for _ in 0..2 {
            let run = way.cp(&["-aAX"], &[&data], &sink).run().exits(3);
            for (name, what) in [
                ("large", "user.long"),
                ("large", "not supported"),
                ("link", "trusted.of-a-link"),
                ("program", "security.capability"),
                ("d", "user.of-a-directory"),
                ("d/closed", "posix_acl"),
            ] {
                let text = failure_of(&run, &format!("data/{name}"));
                assert!(text.is_some_and(|text| text.contains(what)), "{name}, {what}: {}", run.describe());
            }
            assert_eq!(failure_of(&run, "data/d/plain"), None, "it has none");
        }
        assert_eq!(fs::read(ram.at("data/large")).expect("it is there"), vec![5; 1 << 20]);
        assert_eq!(fs::symlink_metadata(ram.at("data/f")).expect("stat").mode() & 0o7777, 0o644, "no mask");
    }
    let room = Room::new();
    let (xfs, ext4) = (Disk::new(&room, "xfs", Kind::Xfs), Disk::new(&room, "ext4", Kind::Ext4));
    let (data, sink) = (xfs.at("data"), ext4.at("sink"));
    fs::create_dir(&data).and_then(|()| fs::create_dir(&sink)).expect("make directories");
    fs::write(data.join("f"), "x").expect("write");
    set(&data.join("f"), "user.large", &[1; 60_000]);
    set(&data.join("f"), "user.small", b"2");
    let run = Way::Here.cp(&["-aX"], &[&data], &sink).run().exits(3);
    let text = failure_of(&run, "data/f").expect("it is named");
    assert!(text.contains("user.large") && text.contains("No space left"), "{text}");
    assert_eq!(fs::read(sink.join("data/f")).expect("it is there"), b"x");
    assert_eq!(value_of(&sink.join("data/f"), "user.small"), Some(b"2".to_vec()));

    let (data, sink) = (room.dir("program"), room.dir("of-nobody"));
    fs::write(data.join("p"), "x").expect("write");
    set(&data.join("p"), "security.capability", &CAPABILITY);
    std::os::unix::fs::chown(&sink, Some(65534), Some(65534)).expect("give it away");
    let run = Way::Here.cp(&["-aX"], &[&data], &sink).run_by_nobody(&room).run().exits(3);
    let text = failure_of(&run, "program/p").expect("it is named");
    assert!(text.contains("security.capability") && text.contains("not permitted"), "{text}");
}

/// Goal: a user keeps and mends what is his, also of files that he may not write.
/// Method: a tree of nobody's, copied by nobody; a change of what is read-only; rsync as nobody.
#[test]
fn users_keep_what_is_theirs() {
    need!("attr", "setpriv");
    let room = Room::new();
    let (data, sink) = (room.at("data"), room.dir("sink"));
    dressed(&data);
    rustix::fs::removexattr(data.join("program"), "security.capability").expect("take its rights");
    for path in [&data, &sink] {
        let given = Command::new("chown").args(["-hR", "65534:65534"]).arg(path).status().expect("run chown");
        assert!(given.success());
    }
    let copy = || Way::Here.cp(&["-aAX"], &[&data], &sink).run_by_nobody(&room).run().exits(0);
    copy();
    set(&data.join("d/g"), "user.read-only", b"another");
    set(&data.join("d/closed"), "user.closed", b"too");
    copy();
    for (name, attribute) in [
        ("d/g", "user.read-only"),
        ("d/closed", "user.closed"),
        ("f", "user.a"),
        ("f", "system.posix_acl_access"),
        ("d", "system.posix_acl_default"),
    ] {
        let value = value_of(&data.join(name), attribute);
        assert!(value.is_some());
        assert_eq!(value_of(&sink.join("data").join(name), attribute), value, "{attribute} of {name}");
    }
    assert_eq!(value_of(&sink.join("data/f"), "trusted.t"), None, "that is root's to read");
    assert_eq!(fs::metadata(sink.join("data/d/g")).expect("stat").mode() & 0o7777, 0o444);
    let again = copy().summary();
    assert_eq!(again.number("metadata_only"), 0);
}

/// Goal: what a destination's directory gives to all that is made in it is no list of the copy's.
/// Method: a default list at the destination; copies with and without -A, the second into what stands there.
#[test]
fn inherited_lists_are_not_the_sources() {
    need!("attr");
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    room.file("data/f", "x");
    room.file("data/large", "y".repeat(300_000));
    setfacl(&["-d", "-m", "u:1234:rwx"], &sink);
    Way::Here.cp(&["-aA"], &[&data], &sink).run().sane().exits(0);
    for name in ["f", "large", ""] {
        let path = sink.join("data").join(name);
        assert_eq!(value_of(&path, "system.posix_acl_access"), None, "{name}");
        assert_eq!(value_of(&path, "system.posix_acl_default"), None, "{name}");
    }
    assert_eq!(told(&sink.join("data")), told(&data));
}

/// Goal: files that are written in place, and those that a killed run began, have what the source has now.
/// Method: a copy in place over files with other attributes; a large file that is stopped half-way, gets
/// another attribute, and goes on.
#[test]
fn it_holds_in_place_and_behind_a_kill() {
    need!("attr");
    for way in Way::all() {
        let room = Room::new();
        let (data, sink) = (room.at("data"), room.dir("sink"));
        dressed(&data);
        way.cp(&["-aAX"], &[&data], &sink).run().sane().exits(0);
        let copy = sink.join("data");
        fs::write(data.join("f"), "longer than before").expect("write");
        fs::write(data.join("large"), vec![6; (1 << 20) + 5]).expect("write");
        fs::write(data.join("program"), "a new one").expect("write");
        set(&data.join("program"), "security.capability", &CAPABILITY);
        set(&copy.join("f"), "user.other", b"goes");
        let inode = fs::metadata(copy.join("f")).expect("stat").ino();
        way.cp(&["-aAX", "--in-place"], &[&data], &sink).run().exits(0);
        assert_eq!(fs::metadata(copy.join("f")).expect("stat").ino(), inode);
        assert_eq!(told(&copy), told(&data), "{}", way.name());
    }
    let room = Room::new();
    let (half, sink) = (room.dir("half"), room.dir("sink"));
    tree::random_file(&half.join("big"), &mut fastrand::Rng::with_seed(7), 96 << 20);
    set(&half.join("big"), "user.state", b"before");
    let mut run = Way::Here.cp(&["-aX", "--rate", "20MiB/s"], &[&half], &sink).start();
    assert!(run.until(|run| procs::written(&run.near()) >= 16 << 20), "it was over before");
    run.signal(Signal::KILL);
    assert!(run.wait().was_killed());
    set(&half.join("big"), "user.state", b"after");
    let summary = Way::Here.cp(&["-aX"], &[&half], &sink).run().exits(0).summary();
    assert_eq!(value_of(&sink.join("half/big"), "user.state"), Some(b"after".to_vec()));
    assert_eq!(fs::read(sink.join("half/big")).expect("read"), fs::read(half.join("big")).expect("read"));
    assert!(summary.number("bytes_sent") < 96 << 20, "it went on");
    assert_no_debris(&sink);
}

/// Goal: where an end has no place for them that is counted, and no failure.
/// Method: a copy to nowhere, which loses nothing; the words for a server and a volume are theirs.
#[test]
fn ends_without_attributes_are_no_failure() {
    need!("attr");
    let room = Room::new();
    let data = room.at("data");
    dressed(&data);
    let run = Way::Here.cp(&["-aAX"], &[&data], "null://").run().exits(0);
    assert_eq!(run.summary().number("files"), 6);
}
