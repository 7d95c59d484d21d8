//! Power cuts and other faults of real file systems: exit 0 means on media under its name.
//!
//! The power of a file system on a loop device is cut by its own shutdown, without a flush; then it is
//! mounted again. The first two tests show that such a cut really loses what was not synced.
//!
//! XFS and ext4 put everything on media that happened before, whoever syncs anything. The last sync of the
//! journal would hide one that is missing elsewhere, so half of the runs keep their journal on another file
//! system (`--state`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::compare::{
    ALL, BELOW, assert_no_debris, assert_none_torn, assert_same, debris, differences,
};
use crate::support::disk::{Disk, Kind};
use crate::support::mount::{Btrfs, Tmpfs};
use crate::support::run::Haul;
use crate::support::sshd::Sshd;
use crate::support::way::{Way, contents};
use crate::support::{Room, number_from_env, procs, tree};

fn cuts() -> u64 {
    number_from_env("HAUL_TEST_CUTS", 4)
}

fn seed() -> u64 {
    number_from_env("HAUL_TEST_SEED", 1)
}

/// Goal: the rig bites: what was synced is there after a cut, what was not is lost.
/// Method: one file of each sort, by plain system calls.
fn a_cut_loses_what_was_not_synced(kind: Kind) {
    let room = Room::new();
    let disk = Disk::new(&room, "disk", kind);
    for round in 0..3 {
        let (synced, lost) = (disk.at(&format!("synced{round}")), disk.at(&format!("lost{round}")));
        for (path, sync) in [(&synced, true), (&lost, false)] {
            let mut file = File::create(path).expect("create a file");
            file.write_all(&[7; 100_000]).expect("write a file");
            if sync {
                file.sync_all().expect("sync a file");
                File::open(disk.at("")).and_then(|dir| dir.sync_all()).expect("sync a directory");
            }
        }
        disk.cut();
        disk.power_on();
        assert_eq!(fs::read(&synced).expect("read what was synced"), [7; 100_000]);
        assert!(fs::read(&lost).unwrap_or_default().len() < 100_000, "{kind:?} wrote what was not synced");
    }
}

#[test]
fn a_cut_of_xfs_loses_what_was_not_synced() {
    need!("xfs");
    a_cut_loses_what_was_not_synced(Kind::Xfs);
}

#[test]
fn a_cut_of_ext4_loses_what_was_not_synced() {
    need!("ext4");
    a_cut_loses_what_was_not_synced(Kind::Ext4);
}

/// One copy to a disk of its own.
struct Copy {
    room: Room,
    disk: Disk,
    data: PathBuf,
    bytes: u64,
}

impl Copy {
    fn new(kind: Kind, seed: u64, entries: usize, big: usize) -> Copy {
        let room = Room::new();
        let disk = Disk::new(&room, "disk", kind);
        let data = room.at("data");
        tree::mixed(&data, seed, entries, big);
        room.dir("state");
        let (_, bytes) = tree::totals(&data);
        Copy { room, disk, data, bytes }
    }

    /// The command; with `elsewhere` the journal is not on the disk that is cut.
    fn haul(&self, options: &[&str], elsewhere: bool) -> Haul {
        let state = format!("--state={}", self.room.at("state").display());
        let mut options = [&["-r"], options].concat();
        if elsewhere {
            options.push(&state);
        }
        Way::Here.cp(&options, &[&self.data], self.sink())
    }

    /// Not there before the first run.
    fn sink(&self) -> PathBuf {
        self.disk.at("new/sink")
    }

    fn copy(&self) -> PathBuf {
        self.sink().join("data")
    }

    fn cut_and_power_on(&self) {
        self.disk.cut();
        self.disk.power_on();
    }
}

/// Goal: a disk that is powered on again is a new one, although somebody else copied its mount before the
/// cut. Method: a namespace of mounts with a copy, that ends after a moment; without waiting for it nothing
/// could be written, as on a disk whose power is off.
#[test]
fn copies_of_a_mount_are_waited_for() {
    need!("ext4", "unshare");
    let room = Room::new();
    let disk = Disk::new(&room, "disk", Kind::Ext4);
    let mut holds = Command::new("unshare").args(["-m", "sleep", "1"]).spawn().expect("run unshare");
    let copied = format!("/proc/{}/mounts", holds.id());
    let at = disk.at("").to_string_lossy().trim_end_matches('/').to_owned();
    let ours = fs::read_link("/proc/self/ns/mnt").expect("read a link");
    let is_copied = || {
        fs::read_link(format!("/proc/{}/ns/mnt", holds.id())).is_ok_and(|theirs| theirs != ours)
            && fs::read_to_string(&copied).is_ok_and(|mounts| mounts.contains(&at))
    };
    assert!(procs::wait_until(Duration::from_secs(60), is_copied), "no copy of the mounts");
    disk.cut();
    disk.power_on();
    fs::write(disk.at("new"), b"written").expect("the disk has power");
    holds.wait().expect("it ends by itself");
}

/// Goal: after exit 0 everything is there, byte for byte, with times and modes, whatever happens next.
/// Method: the power is cut as soon as the program has ended. With the sync of files removed from the engine
/// this fails at the content of files; with the syncs of directories removed, it fails at missing names. (The
/// sync of an epoch's directories alone is not missed here, for those of finished directories follow.)
fn exit_0_survives_a_cut(kind: Kind) {
    for round in 0..cuts() {
        let copy = Copy::new(kind, seed() + round, 300, 9 << 20);
        let elsewhere = round % 2 == 0;
        copy.haul(&[], elsewhere).run().sane().exits(0);
        copy.cut_and_power_on();
        assert_same(&copy.data, &copy.copy(), ALL);
        let again = copy.haul(&[], elsewhere).run().sane().exits(0).summary();
        assert_eq!(again.number("bytes_sent"), 0, "{again:?}");
        copy.cut_and_power_on();
        assert_same(&copy.data, &copy.copy(), ALL);
        assert_no_debris(&copy.sink());
        assert_no_debris(&copy.room.at("state"));
    }
}

#[test]
fn exit_0_survives_a_cut_of_xfs() {
    need!("xfs");
    exit_0_survives_a_cut(Kind::Xfs);
}

#[test]
fn exit_0_survives_a_cut_of_ext4() {
    need!("ext4");
    exit_0_survives_a_cut(Kind::Ext4);
}

/// Goal: also the names at the top of a destination are on media, when the journal is elsewhere.
/// Method: a tree of an empty directory, for which no epoch syncs anything; no cut shows it, for XFS and ext4
/// sync more than they are asked to, so strace does.
#[test]
fn the_destination_itself_is_synced() {
    need!("strace");
    let room = Room::new();
    let (data, sink, trace) = (room.dir("data"), room.dir("sink"), room.at("trace"));
    room.dir("data/empty");
    let state = format!("--state={}", room.dir("state").display());
    let copy = Way::Here.cp(&["-r", &state], &[contents(&data)], &sink);
    copy.traced("fsync,mkdirat,unlinkat", &trace).run().sane().exits(0);
    let trace = String::from_utf8_lossy(&fs::read(&trace).expect("read the trace")).into_owned();
    let made = trace.find("mkdirat").expect("a directory is made");
    let synced = trace.rfind(&format!("<{}>) = 0", sink.display())).unwrap_or(0);
    let over = trace.rfind("unlinkat").expect("the journal is removed");
    assert!(made < synced && synced < over, "{trace}");
}

/// Goal: a file is synced before its name, and the name before the journal says so.
/// Method: the order of the calls by strace, for a cut shows this of the last epoch only. A sync of the file
/// system is one of all that was written before it began. Small files alone
/// and a large one alone, for these are synced and journaled apart: what one is journaled with says nothing
/// of the other's names. Without the epoch's sync of directories this fails.
#[test]
fn names_are_synced_before_the_journal_says_so() {
    need!("strace");
    for (files, big) in [(300, 0), (0, 9 << 20)] {
        names_come_before_the_journal(files, big);
    }
}

fn names_come_before_the_journal(files: usize, big: usize) {
    let room = Room::new();
    let (data, sink, trace) = (room.dir("data"), room.dir("sink"), room.at("trace"));
    tree::plain(&data, seed(), files, big);
    let copy = Way::Here.cp(&["-r"], &[&data], &sink);
    copy.traced("fsync,syncfs,/^rename,linkat,pwrite64", &trace).run().sane().exits(0);
    let trace = String::from_utf8_lossy(&fs::read(&trace).expect("read the trace")).into_owned();
    let (mut synced, mut unsynced, mut names) = (BTreeSet::new(), BTreeSet::new(), 0);
    let mut written = BTreeSet::new();
    for line in trace.lines() {
        // The path of the call's first descriptor, and the name behind it.
        let Some((call, rest)) = line.split_once('<').filter(|(call, _)| call.contains('(')) else {
            continue;
        };
        let path = rest.split('>').next().expect("a path").to_owned();
        if call.contains("syncfs(") {
            synced.append(&mut written);
        } else if call.contains("fsync(") {
            unsynced.remove(&path);
            synced.insert(path);
        } else if call.contains("rename") && !rest.contains("\".haul~") {
            let temporary = rest.split('"').nth(1).expect("a name");
            assert!(synced.contains(&format!("{path}/{temporary}")), "no sync before {line}");
            unsynced.insert(path);
            names += 1;
        } else if call.contains("linkat(") && !rest.contains("\".haul~") {
            // The file itself, and the directory in which it gets its only name.
            assert!(synced.contains(&path), "no sync before {line}");
            let dir = rest.split('<').nth(1).and_then(|dir| dir.split('>').next()).expect("a directory");
            unsynced.insert(dir.to_owned());
            names += 1;
        } else if call.contains("pwrite64(") && path.contains("/.haul~") && !path.contains(".own.") {
            assert!(unsynced.is_empty(), "{unsynced:?} not synced before {}", &line[..line.len().min(200)]);
        } else if call.contains("pwrite64(") {
            written.insert(path);
        }
    }
    assert_eq!(names, files + usize::from(big > 0));
}

/// Goal: `--durability=none` promises nothing, and says so; a durable run makes good what was lost.
/// Method: the same cut; something must be missing, or the rig and the test above show nothing.
fn no_durability_may_lose(kind: Kind) {
    let copy = Copy::new(kind, seed(), 300, 9 << 20);
    copy.haul(&["--durability=none"], false).run().sane().exits(0);
    assert_same(&copy.data, &copy.copy(), ALL);
    copy.cut_and_power_on();
    assert!(!differences(&copy.data, &copy.copy(), ALL).is_empty(), "{kind:?}: nothing was lost");
    copy.haul(&[], false).run().sane().exits(0);
    copy.cut_and_power_on();
    assert_same(&copy.data, &copy.copy(), ALL);
}

#[test]
fn no_durability_may_lose_on_xfs() {
    need!("xfs");
    no_durability_may_lose(Kind::Xfs);
}

#[test]
fn no_durability_may_lose_on_ext4() {
    need!("ext4");
    no_durability_may_lose(Kind::Ext4);
}

/// The entries that a run said were copied, with their bytes. A run that was killed may end within a line.
fn acknowledged(stdout: &[u8]) -> BTreeMap<String, u64> {
    let text = String::from_utf8_lossy(stdout);
    let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let copied = events.filter(|event| event["event"] == "entry" && event["kind"] == "copied");
    copied
        .map(|event| {
            let path = event["path"].as_str().expect("names here are UTF-8").to_owned();
            (path, event["bytes"].as_u64().expect("a number"))
        })
        .collect()
}

/// Checks each entry that was acknowledged, and gives the sum of their bytes.
fn assert_kept(copy: &Copy, kept: &BTreeMap<String, u64>) -> u64 {
    for path in kept.keys() {
        let (from, to) = (copy.room.at(path), copy.sink().join(path));
        // What lies in a directory may still come, but then the directory itself is not acknowledged.
        let found = differences(&from, &to, ALL);
        assert!(found.is_empty(), "{path} was acknowledged and is lost: {found:?}");
    }
    kept.values().sum()
}

/// What a cut run left of its ownership says whose it was: only then the next run need not watch it.
fn assert_owner_is_known(dir: &Path) {
    for path in debris(dir).iter().filter(|path| path.to_string_lossy().contains(".own.")) {
        let owner = fs::read(path).expect("read an owner file");
        let told = serde_json::from_slice::<Value>(&owner).unwrap_or_default();
        assert!(told["pid"].is_i64(), "{path:?} says nothing: {} bytes", owner.len());
    }
}

/// Goal: a cut at any moment loses nothing that was acknowledged, nothing torn has a name, and the same
/// command completes without sending again what was acknowledged.
/// Method: cuts spread over the bytes written, or when so many entries were acknowledged. Most runs are
/// killed before: XFS syncs a directory without an error after its shutdown, which no machine without power
/// sees. The others go on with the errors that follow. Every byte compared after the rerun and one more cut.
fn a_cut_at_any_moment_loses_nothing_acknowledged(kind: Kind) {
    // So many that they need several epochs.
    const ENTRIES: usize = 2000;
    let cuts = cuts();
    let mut rng = fastrand::Rng::with_seed(seed());
    let (mut hits, mut kept_total) = (0, 0);
    for round in 0..cuts {
        let copy = Copy::new(kind, seed() + round, ENTRIES, 64 << 20);
        tree::settle(&copy.data);
        let (elsewhere, killed) = (round % 2 == 1, round % 4 != 2);
        let after_words = (round % 3 != 0).then(|| rng.usize(1..ENTRIES));
        // Not before the journal is begun: a run that never began has nothing to resume.
        let moment = (copy.bytes * round / cuts + rng.u64(0..copy.bytes / cuts)).max(1 << 20);
        let mut run = copy.haul(&["-v", "--writers=1", "--object-size=1MiB"], elsewhere).start();
        let mark = run.mark.clone();
        let mut pids = Vec::new();
        let hit = run.until(|run| {
            if let Some(words) = after_words {
                let acknowledged = acknowledged(&run.stdout());
                return acknowledged.len() > words && acknowledged.values().any(|bytes| *bytes > 0);
            }
            if pids.is_empty() {
                pids = run.near();
            }
            procs::written(&pids) >= moment
        });
        hits += u64::from(hit);
        if killed {
            run.signal(Signal::KILL);
            procs::wait_gone(&mark);
        }
        let kept = acknowledged(&run.stdout());
        copy.disk.cut();
        run.wait().sane();
        procs::wait_gone(&mark);
        copy.disk.power_on();
        let kept = assert_kept(&copy, &kept);
        kept_total += kept;
        if !hit {
            assert_same(&copy.data, &copy.copy(), ALL);
            continue;
        }
        assert_none_torn(&copy.data, &copy.copy());
        assert_owner_is_known(&copy.sink());
        let again = copy.haul(&["--object-size=1MiB"], elsewhere).run().sane().exits(0).summary();
        copy.cut_and_power_on();
        assert_same(&copy.data, &copy.copy(), ALL);
        assert_no_debris(&copy.sink());
        assert_no_debris(&copy.room.at("state"));
        let sent = again.number("bytes_sent");
        let told = format!("{sent} of {} bytes sent, {kept} were acknowledged", copy.bytes);
        assert!(sent <= copy.bytes - kept, "{told}");
        eprintln!("{kind:?} {round}: killed {killed}, elsewhere {elsewhere}, {told}");
    }
    assert!(hits > 0, "no cut of {cuts} hit a run");
    assert!(kept_total > 0 || cuts < 4, "no run of {cuts} acknowledged anything before its cut");
}

#[test]
fn a_cut_of_xfs_at_any_moment_loses_nothing_acknowledged() {
    need!("xfs");
    a_cut_at_any_moment_loses_nothing_acknowledged(Kind::Xfs);
}

#[test]
fn a_cut_of_ext4_at_any_moment_loses_nothing_acknowledged() {
    need!("ext4");
    a_cut_at_any_moment_loses_nothing_acknowledged(Kind::Ext4);
}

/// Goal: a destination that fills up in one big file is one error that says what ran out and how much is
/// needed; what is durable of the file is not sent again.
/// Method: 64 MiB into 24, pushed, so that the far end is full; then there is room. Without space in advance,
/// which would tell before anything fits.
#[test]
fn what_fitted_of_a_big_file_is_not_sent_again() {
    need!("tmpfs", "sshd");
    let way = Way::Push(Sshd::start());
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    let tmpfs = Tmpfs::mount(&sink, "size=24m");
    tree::random_file(&data.join("big"), &mut fastrand::Rng::with_seed(seed()), 64 << 20);
    tree::settle(&data);
    let options = ["-r", "--object-size=1MiB", "--no-preallocate"];
    let full = way.cp(&options, &[contents(&data)], &sink).run().sane().exits(1);
    let full = full.says("out of blocks").says("more are needed").says("run the same command again");
    assert!(full.stderr.matches("out of blocks").count() <= 2, "{}", full.describe());
    procs::wait_gone(&sshd_mark(&way));
    tmpfs.remount("size=100m");
    let resumed = way.cp(&options, &[contents(&data)], &sink).run().sane().exits(0).summary();
    assert_same(&data, &sink, BELOW);
    assert_no_debris(&sink);
    // Objects are of 1 MiB: at least one of 24 was written whole, whatever was in the hands of the writers.
    let sent = resumed.number("bytes_sent");
    assert!(sent < 64 << 20, "{sent} bytes sent again: {resumed:?}");
}

/// Goal: blocks or inodes that run out amid many files are one error, after which no new file is begun; the
/// files that were acknowledged are not sent again.
/// Method: pushed into a small tmpfs, with and without few inodes, which is then enlarged.
#[test]
fn a_far_end_that_fills_up_is_resumed() {
    need!("tmpfs", "sshd");
    let way = Way::Push(Sshd::start());
    for (options, word, files, big) in [
        ("size=6m,nr_inodes=9000", "out of blocks", 2000, 0),
        ("size=60m,nr_inodes=700", "out of inodes", 1000, 9 << 20),
    ] {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        let tmpfs = Tmpfs::mount(&sink, options);
        tree::plain(&data, seed(), files, big);
        tree::settle(&data);
        let (_, bytes) = tree::totals(&data);
        let full = way.cp(&["-r", "-v"], &[contents(&data)], &sink).run().sane().exits(1).says(word);
        assert!(full.stderr.matches(word).count() <= 2, "{}", full.describe());
        procs::wait_gone(&sshd_mark(&way));
        assert_none_torn(&data, &sink);
        let failed = full.events().iter().filter(|event| event["event"] == "failed").count();
        assert_eq!(failed, 0, "one cause, many failures\n{}", full.describe());
        let kept: u64 = acknowledged(&full.stdout).values().sum();
        // The journal has space of its own, so what has its name is acknowledged too.
        assert!(kept > 0, "nothing was acknowledged\n{}", full.describe());
        tmpfs.remount("size=100m,nr_inodes=20000");
        let resumed = way.cp(&["-r"], &[contents(&data)], &sink).run().sane().exits(0).summary();
        assert_same(&data, &sink, BELOW);
        assert_no_debris(&sink);
        let sent = resumed.number("bytes_sent");
        assert!(sent <= bytes - kept, "{word}: {sent} of {bytes} bytes sent, {kept} were acknowledged");
        assert!(sent < bytes, "{word}: everything was sent again");
    }
}

fn sshd_mark(way: &Way) -> String {
    match way {
        Way::Push(sshd) | Way::Pull(sshd) => sshd.mark.clone(),
        Way::Here => unreachable!("these tests go over ssh"),
    }
}

/// Goal: a file system that turns read-only ends the run with one error; the same command completes later.
/// Method: strace answers for the kernel from the nth write or name on, for a mount cannot be made read-only
/// while files are open for writing.
#[test]
fn a_destination_that_turns_read_only_is_said() {
    need!("strace");
    for injection in ["pwrite64:error=EROFS:when=9+", "/^rename,linkat:error=EROFS:when=4+"] {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        tree::plain(&data, seed(), 200, 24 << 20);
        let run = Way::Here.cp(&["-r"], &[&data], &sink).injected(&[injection.to_owned()]).run();
        let failed = run.sane().exits(1).says("read-only file system");
        assert!(failed.stderr.to_lowercase().matches("read-only").count() <= 2, "{}", failed.describe());
        assert_none_torn(&data, &sink.join("data"));
        Way::Here.cp(&["-r"], &[&data], &sink).run().sane().exits(0);
        assert_same(&data, &sink.join("data"), ALL);
        assert_no_debris(&sink);
    }
}

/// Goal: a limit on the size of files (EFBIG) fails the files that exceed it, by name; the others are copied.
/// Method: `ulimit -f` of 4 MiB.
#[test]
fn a_file_over_the_size_limit_fails_alone() {
    need!("prlimit");
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    tree::plain(&data, seed(), 50, 12 << 20);
    let limited = Way::Here.cp(&["-r"], &[contents(&data)], &sink).limited("--fsize=4194304").run().sane();
    let limited = limited.exits(3).says("big").says("too large");
    assert_eq!(limited.summary().number("failed"), 1);
    assert!(!sink.join("big").exists());
    assert_no_debris(&sink);
    Way::Here.cp(&["-r"], &[contents(&data)], &sink).run().sane().exits(0);
    assert_same(&data, &sink, BELOW);
}

/// Goal: a quota that is used up ends the run with one error that says so, and is resumed when it is raised.
/// Method: a group quota of btrfs; once met before data moves, for space is taken in advance, and once while
/// data is written, at a rate that uses the quota up in four seconds: epochs have closed by then, and what
/// they hold stays, though the last one may find no room in the quota for its names and for the journal.
#[test]
fn a_quota_that_is_used_up_is_said_and_resumed() {
    need!("btrfs");
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("disk"));
    let disk = Btrfs::mount(&room, &sink);
    // More than the eight writers can have in their hands at once, in objects of 4 MiB.
    disk.limit("64M");
    tree::plain(&data, seed(), 100, 96 << 20);
    tree::settle(&data);
    for options in [&[][..], &["--no-preallocate", "--rate=16MiB/s"]] {
        let options = [&["-r"], options].concat();
        let full = Way::Here.cp(&options, &[contents(&data)], &sink).run().sane().exits(1).says("quota");
        assert!(full.stderr.matches("the quota is used up").count() <= 2, "{}", full.describe());
    }
    assert_none_torn(&data, &sink);
    disk.limit("none");
    let resumed = Way::Here.cp(&["-r"], &[contents(&data)], &sink).run().sane().exits(0).summary();
    assert_same(&data, &sink, BELOW);
    assert_no_debris(&sink);
    assert!(resumed.number("bytes_sent") < tree::totals(&data).1, "everything was sent again: {resumed:?}");
}

/// Goal: no space is taken in advance where the file system compresses, for what fits compressed must not
/// fail for its length.
/// Method: 600 MB of one byte on a btrfs of 512 MB with `compress-force`; how many blocks it took.
#[test]
fn compressed_files_need_no_room_for_their_length() {
    need!("btrfs");
    let room = Room::new();
    let at = room.dir("sink");
    let _btrfs = Btrfs::mount_with(&room, &at, "compress-force=zstd:1");
    let data = room.file("data", vec![b'x'; 600 << 20]);
    let run = Haul::cp([data.as_os_str(), at.join("copy").as_os_str(), "-v".as_ref()]).run().sane().exits(0);
    assert_eq!(fs::metadata(at.join("copy")).expect("stat").len(), 600 << 20);
    assert!(run.describe().contains("the file system compresses"), "{}", run.describe());
}
