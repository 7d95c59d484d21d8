//! Copies within one file system whose files share the blocks of the source's.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::compare::{ALL, BELOW, assert_no_debris, assert_none_torn, assert_same};
use crate::support::disk::{Disk, Kind};
use crate::support::mount::{Btrfs, Tmpfs};
use crate::support::run::{Haul, Outcome, Summary};
use crate::support::way::{Way, contents};
use crate::support::{Room, needs, procs, read, tree};

const MIB: u64 = 1 << 20;
/// A large file, and what is read whatever it is.
const LARGE: usize = 5 << 20;
const SMALL: usize = 100_000;

/// Does `test` in a directory of each file system here that clones.
fn on_each(test: impl Fn(&Room, &Path)) {
    if needs::all_here(&["xfs", "filefrag"]) {
        let room = Room::new();
        let disk = Disk::new(&room, "xfs", Kind::Xfs);
        test(&room, &disk.at(""));
    }
    if needs::all_here(&["btrfs", "filefrag"]) {
        let room = Room::new();
        let at = room.dir("btrfs");
        let _disk = Btrfs::mount_with(&room, &at, "rw");
        test(&room, &at);
    }
}

/// What is said of each extent of a file by the file system itself.
fn extents(path: &Path) -> Vec<String> {
    // Without -s: what is not on media yet has no extents.
    let output = Command::new("filefrag").args(["-s", "-v"]).arg(path).output().expect("run filefrag");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let is_extent = |line: &&str| line.trim_start().starts_with(|c: char| c.is_ascii_digit());
    text.lines().filter(is_extent).map(str::to_owned).collect()
}

/// All its blocks are another file's, too.
fn is_shared(path: &Path) -> bool {
    let extents = extents(path);
    assert!(!extents.is_empty(), "{path:?} has no extents");
    extents.iter().all(|extent| extent.contains("shared"))
}

/// Large files and small ones, one with holes and of more than 4 GiB, an odd length, attributes, another
/// name.
fn make(data: &Path) -> Vec<PathBuf> {
    let mut rng = fastrand::Rng::with_seed(48);
    fs::create_dir_all(data.join("d/e")).expect("mkdir");
    let large = [data.join("large"), data.join("d/odd"), data.join("d/e/sparse")];
    tree::random_file(&large[0], &mut rng, LARGE);
    tree::random_file(&large[1], &mut rng, LARGE + 4321);
    let sparse = File::create(&large[2]).expect("create");
    sparse.set_len((5 << 30) + 77).expect("length");
    for at in [MIB, (5 << 30) - MIB] {
        sparse.write_all_at(&tree::bytes(&mut rng, 300_000), at).expect("write");
    }
    sparse.sync_all().expect("sync");
    fs::set_permissions(&large[1], fs::Permissions::from_mode(0o751)).expect("chmod");
    fs::hard_link(&large[0], data.join("d/another name")).expect("link");
    tree::random_file(&data.join("small"), &mut rng, SMALL);
    tree::random_file(&data.join("tiny"), &mut rng, 5);
    fs::write(data.join("empty"), b"").expect("write");
    tree::settle(data);
    large.to_vec()
}

fn here(options: &[&str], source: impl AsRef<std::ffi::OsStr>, sink: &Path) -> Outcome {
    Way::Here.cp(options, &[source], sink).run().sane()
}

fn cloned(summary: &Summary) -> (u64, u64) {
    (summary.number("cloned"), summary.number("cloned_bytes"))
}

/// Goal: within one file system that clones, large files come as clones: every byte, hole, mode, time,
/// name and attribute as in any copy, with blocks that are the source's; nothing of them counts as moved.
/// A second run finds all unchanged. What is written to one of the two later is not in the other.
/// Method: XFS and btrfs; the extents as the file system tells them, and every byte.
#[test]
fn clones_are_whole_and_share_their_blocks() {
    on_each(|_, disk| {
        let (data, sink) = (disk.join("data"), disk.join("sink"));
        let large = make(&data);
        let copy_of = |path: &Path| sink.join("data").join(path.strip_prefix(&data).expect("in it"));
        let options = ["-a", "-X", "-H", "-v"];
        let run =
            here(&options, &data, &sink).exits(0).says("cloned: 3 files share their blocks with the source");
        let summary = run.summary();
        let bytes: u64 = large.iter().map(|path| fs::metadata(path).expect("stat").len()).sum();
        assert_eq!(cloned(&summary), (3, bytes), "{}", run.describe());
        assert!(summary.number("bytes_sent") <= (SMALL + 5) as u64, "{}", run.describe());
        assert_eq!(summary.number("files"), 6);
        assert!(summary.chosen("reflink").starts_with("yes ("), "{}", run.describe());
        assert_same(&data, &sink.join("data"), ALL);
        for path in &large {
            assert!(is_shared(&copy_of(path)), "{path:?}: {:?}", extents(&copy_of(path)));
        }
        assert!(!is_shared(&sink.join("data/small")), "it is read, and checked");
        let blocks = |path: &Path| fs::metadata(path).expect("stat").blocks();
        assert!(blocks(&copy_of(&large[2])) <= blocks(&large[2]) + 256, "holes stay");
        let inode = |name: &str| fs::metadata(sink.join("data").join(name)).expect("stat").ino();
        assert_eq!(inode("large"), inode("d/another name"));
        let again = here(&options, &data, &sink).exits(0).summary();
        assert_eq!((cloned(&again), again.number("files")), ((0, 0), 0), "{again:?}");
        let before = read(&large[1]);
        let write = |path: &Path, byte: u8| {
            let file = File::options().write(true).open(path).expect("open");
            file.write_all_at(&vec![byte; LARGE], 0).and_then(|()| file.sync_all()).expect("write");
        };
        write(&copy_of(&large[1]), 1);
        assert!(read(&large[1]) == before, "what was written to the copy is in the source");
        let copied = read(copy_of(&large[0]));
        write(&large[0], 2);
        assert!(read(copy_of(&large[0])) == copied, "what was written to the source is in the copy");
    });
}

/// Goal: `never` reads every file, and none shares its blocks. A list of changes has clones as any other
/// file.
#[test]
fn never_reads_all() {
    on_each(|_, disk| {
        let data = disk.join("data");
        fs::create_dir(&data).expect("mkdir");
        tree::random_file(&data.join("large"), &mut fastrand::Rng::with_seed(1), LARGE);
        tree::settle(&data);
        let run = here(&["-r", "--reflink=never"], contents(&data), &disk.join("read")).exits(0);
        let summary = run.summary();
        assert_eq!((cloned(&summary), summary.number("bytes_sent")), ((0, 0), LARGE as u64));
        assert_eq!(summary.chosen("reflink"), "");
        assert!(!is_shared(&disk.join("read/large")));
        assert_same(&data, &disk.join("read"), BELOW);
        let list = Way::Here.plain(&["-r", "-i"], &[contents(&data)], disk.join("listed")).run().exits(0);
        assert!(String::from_utf8_lossy(&list.stdout).contains(">f+++++++++ large"), "{}", list.describe());
        assert!(is_shared(&disk.join("listed/large")));
    });
}

/// Goal: whoever wants a hash of what was copied, or has it read back, has the files read; nobody says of
/// a clone that it was verified.
/// Method: a manifest, and `--verify=disk`; together with `always` each is refused.
#[test]
fn what_is_hashed_is_read() {
    need!("xfs", "filefrag");
    let room = Room::new();
    let disk = Disk::new(&room, "xfs", Kind::Xfs);
    let data = disk.at("data");
    fs::create_dir(&data).expect("mkdir");
    tree::random_file(&data.join("large"), &mut fastrand::Rng::with_seed(2), LARGE);
    tree::settle(&data);
    let manifest = format!("--manifest={}", room.at("manifest").display());
    for (name, option) in [("m", &*manifest), ("v", "--verify=disk"), ("p", "--in-place")] {
        let sink = disk.at(name);
        let run = here(&["-r", option], contents(&data), &sink).exits(0);
        let summary = run.summary();
        assert_eq!((cloned(&summary), summary.number("bytes_sent")), ((0, 0), LARGE as u64), "{option}");
        assert!(summary.chosen("reflink").starts_with("no ("), "{}", run.describe());
        assert!(!is_shared(&sink.join("large")), "{option}");
        here(&["-r", "--reflink=always", option], contents(&data), &disk.at("no"))
            .exits(2)
            .says("reflink=always");
        assert!(!disk.at("no").exists());
    }
    let line = format!("{}  large", blake3::hash(&read(data.join("large"))).to_hex());
    assert!(String::from_utf8_lossy(&read(room.at("manifest"))).contains(&line));
}

/// Goal: what cannot be cloned is read, which is said once; with `always` it fails by name, and leaves
/// nothing.
/// Method: another file system that is mounted in the source; from ext4 or whatever holds the tests to
/// XFS; to another host.
#[test]
fn what_cannot_be_cloned_is_read_or_fails() {
    need!("xfs", "filefrag", "tmpfs");
    let room = Room::new();
    let disk = Disk::new(&room, "xfs", Kind::Xfs);
    let data = disk.at("data");
    fs::create_dir_all(data.join("other")).expect("mkdir");
    let _other = Tmpfs::mount(&data.join("other"), "size=32m");
    let mut rng = fastrand::Rng::with_seed(3);
    for name in ["large", "other/one", "other/two"] {
        tree::random_file(&data.join(name), &mut rng, LARGE);
    }
    tree::random_file(&data.join("small"), &mut rng, SMALL);
    tree::settle(&data);
    let run = here(&["-r", "-v"], contents(&data), &disk.at("auto")).exits(0);
    let summary = run.summary();
    assert_eq!(cloned(&summary), (1, LARGE as u64), "{}", run.describe());
    assert!(summary.chosen("reflink").contains("; 2 not, the first: clone other/"), "{}", run.describe());
    assert_same(&data, &disk.at("auto"), BELOW);
    let run = here(&["-r", "--reflink=always"], contents(&data), &disk.at("always")).exits(3);
    let summary = run.summary();
    assert_eq!((summary.number("cloned"), summary.number("failed")), (2, 2), "{}", run.describe());
    assert!(is_shared(&disk.at("always/small")) && is_shared(&disk.at("always/large")));
    for name in ["other/one", "other/two"] {
        assert!(run.describe().contains(name) && !disk.at("always").join(name).exists());
    }
    assert_no_debris(&disk.at("always"));
    let far = room.dir("elsewhere");
    tree::random_file(&far.join("large"), &mut rng, LARGE);
    tree::settle(&far);
    let run = here(&["-r"], contents(&far), &disk.at("far")).exits(0).summary();
    assert_eq!(run.number("cloned"), 0);
    assert!(run.chosen("reflink").contains("different file systems"), "{run:?}");
    here(&["-r", "--reflink=always"], contents(&far), &disk.at("far2")).exits(3);
    assert!(!disk.at("far2/large").exists());
    Haul::cp(["--reflink=always", "host:x"]).args([disk.at("far3")]).run().exits(2).says("reflink=always");
}

/// Goal: a file that btrfs cannot clone to where files have sums is read; subvolumes of one btrfs are one
/// file system to it.
/// Method: a file without sums, and a destination in another subvolume.
#[test]
fn btrfs_clones_between_subvolumes() {
    need!("btrfs", "filefrag");
    let room = Room::new();
    let at = room.dir("btrfs");
    let _disk = Btrfs::mount_with(&room, &at, "rw");
    for name in ["a", "b"] {
        run("btrfs", &["subvolume", "create"], &at.join(name));
    }
    let data = at.join("a");
    let mut rng = fastrand::Rng::with_seed(4);
    tree::random_file(&data.join("large"), &mut rng, LARGE);
    File::create(data.join("no sums")).expect("create");
    run("chattr", &["+C"], &data.join("no sums"));
    File::options()
        .write(true)
        .open(data.join("no sums"))
        .and_then(|file| file.write_all_at(&tree::bytes(&mut rng, LARGE), 0))
        .expect("write");
    tree::settle(&data);
    let summary = here(&["-r"], contents(&data), &at.join("b/sink")).exits(0).summary();
    assert_eq!(cloned(&summary), (1, LARGE as u64), "{summary:?}");
    assert!(summary.chosen("reflink").contains("no sums: clone: Invalid argument"), "{summary:?}");
    assert_same(&data, &at.join("b/sink"), BELOW);
    assert!(is_shared(&at.join("b/sink/large")));
}

fn run(program: &str, args: &[&str], at: &Path) {
    let output = Command::new(program).args(args).arg(at).output().expect("run it");
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Goal: a kill around any clone, sync or change of a name loses nothing, and the same command completes
/// it.
/// Method: strace kills at the nth of these calls of a thread.
#[test]
fn kills_around_clones_lose_nothing() {
    need!("xfs", "strace", "filefrag");
    let room = Room::new();
    let disk = Disk::new(&room, "xfs", Kind::Xfs);
    let data = disk.at("data");
    fs::create_dir(&data).expect("mkdir");
    let mut rng = fastrand::Rng::with_seed(5);
    for n in 0..40 {
        tree::random_file(&data.join(format!("f{n}")), &mut rng, 300_000);
    }
    tree::settle(&data);
    let mut hits = 0;
    let calls = [("ioctl", &[2, 3, 5, 9][..]), ("/^rename", &[1, 3, 8]), ("fsync,fdatasync,syncfs", &[2, 5])];
    for (calls, nths) in calls {
        for nth in nths {
            let sink = disk.at(&format!("{}{nth}", calls.replace(['/', '^', ','], "")));
            let injection = format!("{calls}:signal=SIGKILL:when={nth}");
            let run = Way::Here.cp(&["-r"], &[contents(&data)], &sink).injected(&[injection]).start();
            let mark = run.mark.clone();
            let ended = run.wait().sane();
            hits += u32::from(ended.was_killed());
            procs::wait_gone(&mark);
            assert_none_torn(&data, &sink);
            here(&["-r"], contents(&data), &sink).exits(0);
            assert_same(&data, &sink, BELOW);
            assert!(is_shared(&sink.join("f0")));
        }
    }
    assert!(hits > 3, "{hits} kills");
}

/// Goal: after exit 0 clones are on media under their names.
/// Method: the power is cut as soon as the program has ended.
#[test]
fn clones_survive_a_cut() {
    need!("xfs", "filefrag");
    let room = Room::new();
    let disk = Disk::new(&room, "xfs", Kind::Xfs);
    let data = disk.at("data");
    make(&data);
    run("sync", &["-f"], &data);
    let summary = here(&["-a", "-H"], &data, &disk.at("sink")).exits(0).summary();
    assert_eq!(cloned(&summary).0, 3, "{summary:?}");
    disk.cut();
    disk.power_on();
    assert_same(&data, &disk.at("sink/data"), ALL);
    assert!(is_shared(&disk.at("sink/data/large")));
}

/// Goal: a run that was killed while it read is gone on with, or what it left is replaced by a clone;
/// both are right.
/// Method: the first run reads, and is killed in the middle.
#[test]
fn what_a_reading_run_left_is_completed() {
    need!("xfs", "strace", "filefrag");
    let room = Room::new();
    let disk = Disk::new(&room, "xfs", Kind::Xfs);
    let data = disk.at("data");
    fs::create_dir(&data).expect("mkdir");
    tree::random_file(&data.join("large"), &mut fastrand::Rng::with_seed(6), 60 << 20);
    tree::settle(&data);
    for option in ["--reflink=auto", "--reflink=always"] {
        let sink = disk.at(&option[10..]);
        let slowly = ["-r", "--reflink=never", "--rate=20MiB/s"];
        let mut run = Way::Here.cp(&slowly, &[contents(&data)], &sink).start();
        // Something is durable by then.
        let has_journal = |dir: &Path| {
            let names = fs::read_dir(dir).into_iter().flatten().flatten();
            names.filter_map(|entry| entry.metadata().ok()).any(|stat| stat.len() == 60 << 20)
        };
        assert!(run.until(|_| has_journal(&sink)), "it ended before it began");
        let mark = run.mark.clone();
        run.signal(rustix::process::Signal::KILL);
        run.wait();
        procs::wait_gone(&mark);
        let summary = here(&["-r", option], contents(&data), &sink).exits(0).summary();
        assert_same(&data, &sink, BELOW);
        if option == "--reflink=always" {
            assert_eq!(cloned(&summary).0, 1, "{summary:?}");
            assert!(is_shared(&sink.join("large")));
        }
    }
}

/// Goal: of a file that is written to while it is cloned the destination has one version, or what it had.
/// Method: somebody writes both halves of a file, one after the other, all the time, through several
/// copies; then it is quiet.
#[test]
fn a_source_that_is_written_is_never_half_new() {
    on_each(|_, disk| {
        let (data, sink) = (disk.join("data"), disk.join("sink"));
        fs::create_dir(&data).expect("mkdir");
        let half = LARGE / 2;
        fs::write(data.join("live"), vec![0; 2 * half]).expect("write");
        tree::random_file(&data.join("quiet"), &mut fastrand::Rng::with_seed(7), LARGE);
        tree::settle(&data);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let file = File::options().write(true).open(data.join("live")).expect("open");
                for n in (1..=250_u8).cycle() {
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    let bytes = vec![n; half];
                    file.write_all_at(&bytes, 0).expect("write");
                    file.write_all_at(&bytes, half as u64).expect("write");
                }
            });
            for _ in 0..6 {
                let run = here(&["-r", "--force"], contents(&data), &sink);
                let code = run.status.code();
                assert!(matches!(code, Some(0 | 3)), "{}", run.describe());
                if code == Some(3) {
                    assert!(run.describe().contains("changed"), "{}", run.describe());
                }
                if let Ok(live) = fs::read(sink.join("live")) {
                    assert!(live.len() == 2 * half && live.iter().all(|byte| *byte == live[0]), "half new");
                }
                assert!(read(sink.join("quiet")) == read(data.join("quiet")));
            }
            over.store(true, Ordering::Relaxed);
        });
        assert_no_debris(&sink);
        tree::settle(&data);
        let summary = here(&["-r", "--force"], contents(&data), &sink).exits(0).summary();
        assert_eq!(cloned(&summary).0, 2);
        assert_same(&data, &sink, BELOW);
    });
}
