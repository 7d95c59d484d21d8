//! Files with holes: what they cost on the way, and what they are at the destination.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use crate::support::compare::assert_no_debris;
use crate::support::way::{Way, contents};
use crate::support::{Room, procs, read, tree};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// What a copy may hold beyond the data: extents are rounded to 64 KiB at both ends, and file systems keep
/// maps.
const SLACK_PER_EXTENT: u64 = 256 * KIB;

/// A sparse file that a test made: where it has data.
struct Sparse {
    path: PathBuf,
    size: u64,
    extents: Vec<(u64, u64)>,
}

impl Sparse {
    fn make(path: PathBuf, seed: u64, size: u64, extents: &[(u64, u64)]) -> Sparse {
        let mut rng = fastrand::Rng::with_seed(seed);
        let file = File::create(&path).unwrap_or_else(|error| panic!("create {path:?}: {error}"));
        file.set_len(size).expect("a file system that takes this size");
        for (offset, len) in extents {
            let data = tree::bytes(&mut rng, usize::try_from(*len).expect("little data"));
            file.write_all_at(&data, *offset).expect("write");
        }
        // Delayed allocation would make it look emptier than it is.
        file.sync_all().expect("sync");
        tree::age(&path, &mut rng);
        Sparse { path, size, extents: extents.to_vec() }
    }

    fn data(&self) -> u64 {
        self.extents.iter().map(|(_, len)| len).sum()
    }

    /// The copy has the same bytes where there is data, zeros elsewhere (at samples), and no more blocks than
    /// needed.
    #[track_caller]
    fn assert_copied(&self, copy: &Path) {
        let (ours, theirs) =
            (File::open(&self.path).expect("open"), File::open(copy).expect("open the copy"));
        let stat = theirs.metadata().expect("stat");
        assert_eq!(stat.len(), self.size, "{copy:?}: size");
        let source = ours.metadata().expect("stat");
        assert_eq!(
            (stat.mtime(), stat.mtime_nsec()),
            (source.mtime(), source.mtime_nsec()),
            "{copy:?}: mtime"
        );
        let most = self.data() + self.extents.len() as u64 * SLACK_PER_EXTENT;
        assert!(stat.blocks() * 512 <= most, "{copy:?} holds {} bytes, not {most}", stat.blocks() * 512);
        let at = |file: &File, offset: u64, len: u64| {
            let mut bytes = vec![0; len as usize];
            file.read_exact_at(&mut bytes, offset).expect("read");
            bytes
        };
        let mut hole = 0;
        for (offset, len) in self.extents.iter().chain([&(self.size, 0)]) {
            assert!(at(&ours, *offset, *len) == at(&theirs, *offset, *len), "{copy:?}: data at {offset}");
            let end = *offset;
            let len = (end - hole).min(200 * KIB);
            for sample in [hole, hole + (end - hole - len) / 2, end - len] {
                assert!(at(&theirs, sample, len).iter().all(|byte| *byte == 0), "{copy:?}: hole at {sample}");
            }
            hole = offset + self.extents.iter().find(|(o, _)| o == offset).map_or(0, |(_, len)| *len);
        }
    }
}

/// Goal: holes cost nothing on the way, and are holes at the destination; a second run finds all unchanged.
/// Method: files of 1 TiB with little data in odd places, one of holes alone, one that ends in a hole, one
/// with data up to its odd end; over old files of the same names, whose content must not shine through.
#[test]
fn holes_cost_nothing_and_stay() {
    for way in Way::all() {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        let quarter = 256 * KIB;
        let files = [
            Sparse::make(
                data.join("four places"),
                1,
                TIB,
                &[
                    (0, quarter),
                    (300 * GIB + 12_345, quarter),
                    (700 * GIB, quarter),
                    (TIB - quarter, quarter),
                ],
            ),
            Sparse::make(data.join("nothing"), 2, TIB, &[]),
            Sparse::make(data.join("hole at its end"), 3, 5 * GIB + 77, &[(MIB, 100 * KIB)]),
            Sparse::make(data.join("data at its odd end"), 4, 3 * GIB + 4_321, &[(3 * GIB, 4_321)]),
            Sparse::make(data.join("hole in a small file"), 5, 200 * KIB, &[(0, 5)]),
        ];
        fs::write(sink.join("nothing"), vec![b'x'; 3 << 20]).expect("write");
        fs::write(sink.join("hole at its end"), vec![b'x'; 3 << 20]).expect("write");
        let run = way.cp(&["-r"], &[contents(&data)], &sink).run().sane().exits(0);
        let sent = run.summary().number("bytes_sent");
        assert!(sent < 2 * MIB, "{}: {sent} bytes were sent", way.name());
        let not_kept = run.summary().0["not_kept"].to_string();
        assert!(!not_kept.contains("sparse"), "{}: {not_kept}", way.name());
        for file in &files[..4] {
            file.assert_copied(&sink.join(file.path.file_name().expect("a name")));
        }
        assert_eq!(read(sink.join("hole in a small file")), read(&files[4].path));
        assert_no_debris(&sink);
        let again = way.cp(&["-r"], &[contents(&data)], &sink).run().sane().exits(0).summary();
        assert_eq!((again.number("bytes_sent"), again.number("unchanged")), (0, 5), "{}", way.name());
    }
}

/// 64 GiB with 200 MiB of data in 50 places.
fn large(path: PathBuf) -> Sparse {
    let extents: Vec<(u64, u64)> = (0..50).map(|i| (i * 1300 * MIB + i * 4096, 4 * MIB)).collect();
    Sparse::make(path, 6, 64 * GIB, &extents)
}

/// Goal: a sparse file that was cut off in the middle is completed by the same command, as any other; what
/// was acknowledged before a stop in good order is not sent again.
/// Method: both ends killed, or the near end stopped, when a third of the data is written.
#[test]
fn a_cut_off_sparse_file_is_completed() {
    for way in Way::all() {
        for signal in [Signal::KILL, Signal::INT] {
            let room = Room::new();
            let (data, sink) = (room.dir("data"), room.dir("sink"));
            let file = large(data.join("image"));
            let far = match &way {
                Way::Here => None,
                Way::Push(sshd) | Way::Pull(sshd) => Some(sshd.mark.as_str()),
            };
            let mut run = way.cp(&["-r"], &[&data], &sink).start();
            let mut pids = Vec::new();
            let mut looks = 0;
            run.until(|run| {
                if looks % 16 == 0 {
                    pids = run.near().into_iter().chain(far.map(procs::marked).unwrap_or_default()).collect();
                }
                looks += 1;
                procs::written(&pids) >= file.data() / 3
            });
            let mark = run.mark.clone();
            match signal {
                Signal::KILL => procs::signal_all(&pids, signal),
                _ => run.signal(signal),
            }
            let first = run.wait().sane();
            procs::wait_gone(&mark);
            far.into_iter().for_each(procs::wait_gone);
            let copy = sink.join("data/image");
            if copy.exists() {
                // Whole, or not at all.
                file.assert_copied(&copy);
            }
            let second = way.cp(&["-r"], &[&data], &sink).run().sane().exits(0).summary();
            file.assert_copied(&copy);
            assert_no_debris(&sink);
            let sent = second.number("bytes_sent");
            // Extents are rounded to 64 KiB at both of their ends.
            let most = file.data() + 50 * 128 * KIB;
            assert!(sent <= most, "{}: {sent} bytes sent after {signal:?}", way.name());
            if first.status.code() == Some(130) {
                let both = first.summary().number("bytes_sent") + sent;
                assert!(sent < file.data(), "{}: all of it was sent again", way.name());
                assert!(both <= most + 64 * MIB, "{}: {both} bytes sent by both runs", way.name());
            }
        }
    }
}

/// Goal: a file of 1 TiB that was killed at any of its writes, syncs or names is completed at no more than
/// its data costs.
/// Method: strace kills at the first or second such call of a thread; the bytes of the run after it.
#[test]
fn a_killed_terabyte_is_cheap_too() {
    need!("strace");
    let room = Room::new();
    let data = room.dir("data");
    let places: Vec<(u64, u64)> = (0..16).map(|i| (i * 60 * GIB, 64 * KIB)).collect();
    let file = Sparse::make(data.join("image"), 9, TIB, &places);
    let mut hits = 0;
    for (i, call) in ["pwrite64", "pwrite64", "fdatasync", "fsync", "/^rename"].iter().enumerate() {
        let sink = room.dir(&format!("sink{i}"));
        let injection = format!("{call}:signal=SIGKILL:when={}", 1 + i % 2);
        let run = Way::Here.cp(&["-r"], &[&data], &sink).injected(&[injection]).start();
        let mark = run.mark.clone();
        hits += u32::from(run.wait().sane().was_killed());
        procs::wait_gone(&mark);
        let second = Way::Here.cp(&["-r"], &[&data], &sink).run().sane().exits(0).summary();
        assert!(second.number("bytes_sent") <= 2 * MIB, "{call}: {second:?}");
        file.assert_copied(&sink.join("data/image"));
        assert_no_debris(&sink);
    }
    assert!(hits > 2, "only {hits} runs were killed");
}

/// Goal: a file whose holes changed between two runs, though size and mtime did not, is copied afresh.
/// Method: a run stopped in the middle; then a hole is filled, and the mtime set back.
#[test]
fn other_holes_are_another_file() {
    let way = Way::Here;
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    let mut file = large(data.join("image"));
    let mut run = way.cp(&["-r"], &[&data], &sink).start();
    run.until(|run| procs::written(&run.near()) >= file.data() / 3);
    let mark = run.mark.clone();
    run.signal(Signal::KILL);
    drop(run);
    procs::wait_gone(&mark);
    let time = fs::metadata(&file.path).expect("stat").modified().expect("a time");
    let filled = (1000 * MIB, 64 * KIB);
    let handle = File::options().write(true).open(&file.path).expect("open");
    handle.write_all_at(&vec![7; filled.1 as usize], filled.0).expect("write");
    handle.sync_all().expect("sync");
    drop(handle);
    tree::set_mtime(&file.path, time);
    file.extents.insert(1, filled);
    way.cp(&["-r"], &[&data], &sink).run().sane().exits(0);
    file.assert_copied(&sink.join("data/image"));
    assert_no_debris(&sink);
}

/// Goal: the manifest of a sparse file has the plain hash of its content.
/// Method: `b3sum --check` on a manifest with sparse files; each is in it once.
#[test]
fn the_manifest_of_a_sparse_file_is_its_plain_hash() {
    need!("b3sum");
    for way in Way::all() {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        Sparse::make(data.join("some"), 7, 40 * MIB + 11, &[(3 * MIB, MIB), (30 * MIB, 5 * MIB)]);
        Sparse::make(data.join("none"), 8, 10 * MIB, &[]);
        room.file("data/plain", "plain");
        let manifest = room.at("manifest");
        let option = format!("--manifest={}", manifest.display());
        way.cp(&["-r", &option], &[contents(&data)], &sink).run().sane().exits(0);
        let text = String::from_utf8(read(&manifest)).expect("UTF-8");
        assert_eq!(text.lines().count(), 3, "{}: {text}", way.name());
        let mut check = Command::new("b3sum");
        let check = check.arg("--check").arg(&manifest).current_dir(&sink).output().expect("run b3sum");
        assert!(check.status.success(), "{}: {}", way.name(), String::from_utf8_lossy(&check.stdout));
    }
}
