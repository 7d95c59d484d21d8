//! What happens between two runs: a copy is killed, what it left is altered, and the same command is run
//! again.
//!
//! The end is a right file with a true manifest, or a failure that leaves what stood at the name as it was.
//! All single alterations and some pairs; `HAUL_TEST_KILLS` says how many pairs, and from [`ALL`] on owner
//! files take part.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::process::Signal;

use crate::support::disk::{Disk, Kind};
use crate::support::run::{Haul, Outcome};
use crate::support::{Room, number_from_env, procs, read, tree};

const SIZE: usize = 6 << 20;
/// What is written when it is killed, so that some of it is durable and some of it is not there.
const KILLED_AT: u64 = 7 << 19;
/// Pairs of a run that is not asked for more.
const PAIRS: u64 = 24;
/// More pairs than there are.
const ALL: u64 = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thing {
    Temporary,
    Journal,
    Owner,
    Destination,
    Source,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    Flip,
    Truncate,
    Extend,
    Replace,
    RollBack,
    ReOwn,
    Delete,
}

const THINGS: [Thing; 5] =
    [Thing::Temporary, Thing::Journal, Thing::Owner, Thing::Destination, Thing::Source];
const DEEDS: [Deed; 7] =
    [Deed::Flip, Deed::Truncate, Deed::Extend, Deed::Replace, Deed::RollBack, Deed::ReOwn, Deed::Delete];

/// Files by name, with their times.
type State = BTreeMap<PathBuf, (Vec<u8>, SystemTime)>;

/// A copy of one file over another, killed half-way.
struct Killed {
    room: Room,
    source: PathBuf,
    sink: PathBuf,
    left: State,
    earlier: State,
}

impl Killed {
    fn new(seed: u64, options: &[&str]) -> Killed {
        let room = Room::new();
        let (data, sink) = (room.dir("data"), room.dir("sink"));
        let source = data.join("f");
        let mut rng = fastrand::Rng::with_seed(seed);
        fs::write(&source, tree::bytes(&mut rng, SIZE)).expect("write the source");
        tree::age(&source, &mut rng);
        fs::write(sink.join("f"), tree::bytes(&mut rng, 5000)).expect("write what it replaces");
        let slow = ["--object-size=64KiB", "--rate=4MB/s", "--memory=4MiB"];
        let mut run = Haul::cp(slow).args(options).args([&source, &sink.join("")]).start();
        let mark = run.mark.clone();
        // The journal grows with each epoch: an earlier state is one of its own.
        assert!(run.until(|run| procs::written(&run.near()) >= KILLED_AT / 3), "it ends before the kill");
        let earlier = state(&sink);
        assert!(run.until(|run| procs::written(&run.near()) >= KILLED_AT), "it ends before the kill");
        run.signal(Signal::KILL);
        drop(run);
        procs::wait_gone(&mark);
        let left = state(&sink);
        Killed { room, source, sink, left, earlier }
    }

    fn find(&self, thing: Thing) -> PathBuf {
        let found = |wanted: fn(&str) -> bool| {
            let names = self.left.keys().filter_map(|path| path.file_name()?.to_str());
            let name = names.into_iter().find(|name| wanted(name)).expect("the killed run left it");
            self.sink.join(name)
        };
        match thing {
            Thing::Temporary => found(|name| name.starts_with(".f.")),
            Thing::Journal => found(|name| name.starts_with(".haul~") && !name.contains(".own.")),
            Thing::Owner => found(|name| name.contains(".own.")),
            Thing::Destination => self.sink.join("f"),
            Thing::Source => self.source.clone(),
        }
    }

    /// Everything as it was when the run was dead; the directory stays the one that it was.
    fn restore(&self, source: &(Vec<u8>, SystemTime)) {
        for entry in fs::read_dir(&self.sink).expect("list").map(|entry| entry.expect("an entry").path()) {
            fs::remove_file(entry).expect("remove");
        }
        for (path, content) in &self.left {
            put(path, content);
        }
        put(&self.source, source);
    }

    fn alter(&self, thing: Thing, deed: Deed, rng: &mut fastrand::Rng) {
        let path = self.find(thing);
        let Ok(before) = fs::metadata(&path) else { return };
        let mut content = read(&path);
        let time = before.modified().expect("an mtime");
        match deed {
            Deed::Flip if content.is_empty() => {}
            Deed::Flip => {
                // In what the journal of the killed run holds for certain: near the begin.
                let at = rng.usize(..content.len().min(1 << 20));
                content[at] ^= 1 << rng.u8(..8);
                overwrite(&path, &content);
            }
            Deed::Truncate => overwrite(&path, &content[..rng.usize(..=content.len() / 2)]),
            Deed::Extend => {
                content.extend(tree::bytes(rng, 100_000));
                overwrite(&path, &content);
            }
            Deed::Replace => {
                fs::remove_file(&path).expect("remove");
                put(&path, &(tree::bytes(rng, content.len()), time));
            }
            Deed::RollBack => match self.earlier.get(&path) {
                Some((earlier, _)) => overwrite(&path, earlier),
                None => {
                    content.fill(0);
                    overwrite(&path, &content);
                }
            },
            Deed::ReOwn => {
                // Who is not root cannot; then nothing happens, which is a case too.
                let _ = std::os::unix::fs::chown(&path, Some(65_534), Some(65_534));
            }
            Deed::Delete => fs::remove_file(&path).expect("remove"),
        }
        // Somebody who alters bytes may set the time back.
        if fs::metadata(&path).is_ok() && rng.bool() {
            tree::set_mtime(&path, time);
        }
    }

    fn run(&self, options: &[&str]) -> Outcome {
        // Objects as before: a longer one that is held in part would go whole.
        let options = options.iter().chain(&["--object-size=64KiB"]);
        Haul::cp(options).args([&self.source, &self.sink.join("")]).run().sane()
    }

    /// Runs the same command again, and judges its end.
    fn judge(&self, case: &str) {
        let manifest = self.room.at("manifest");
        let _ = fs::remove_file(&manifest);
        let target = self.sink.join("f");
        let before = fs::read(&target).ok();
        let ended = self.run(&[&format!("--manifest={}", manifest.display())]);
        let (after, source) = (fs::read(&target).ok(), fs::read(&self.source).ok());
        if ended.status.code() != Some(0) {
            assert!(
                after == before,
                "{case}: it failed, and what stood there is another\n{}",
                ended.describe()
            );
            return;
        }
        assert!(source.is_some(), "{case}: without a source it is complete\n{}", ended.describe());
        assert!(after == source, "{case}: complete, with a wrong file\n{}", ended.describe());
        let told = String::from_utf8(read(&manifest)).expect("a manifest of plain names is UTF-8");
        let hash = blake3::hash(&after.expect("it is there")).to_hex();
        assert_eq!(told, format!("{hash}  f\n"), "{case}: a manifest that is not true");
    }
}

fn state(dir: &Path) -> State {
    let paths = fs::read_dir(dir).expect("list").map(|entry| entry.expect("an entry").path());
    let paths = paths.filter_map(|path| {
        let content = fs::read(&path).ok()?;
        let time = fs::metadata(&path).ok()?.modified().ok()?;
        Some((path, (content, time)))
    });
    paths.collect()
}

/// A new file of mode 0600.
fn put(path: &Path, (content, time): &(Vec<u8>, SystemTime)) {
    fs::write(path, content).expect("write");
    crate::support::set_mode(path, 0o600);
    tree::set_mtime(path, *time);
}

/// Other bytes in the same inode.
fn overwrite(path: &Path, content: &[u8]) {
    let file = fs::OpenOptions::new().write(true).truncate(true).open(path).expect("open");
    std::os::unix::fs::FileExt::write_all_at(&file, content, 0).expect("write");
}

/// Goal: whatever becomes of what a killed run left, of the source and of the destination, the next run ends
/// with a right file and a true manifest, or fails and leaves what stood there.
/// Method: one killed copy, restored for each case; each deed to each thing, alone and in pairs.
#[test]
fn what_happens_between_runs_is_seen() {
    let count = number_from_env("HAUL_TEST_KILLS", PAIRS);
    let mut rng = fastrand::Rng::with_seed(number_from_env("HAUL_TEST_SEED", 1));
    let killed = Killed::new(31, &[]);
    let source = (read(&killed.source), fs::metadata(&killed.source).unwrap().modified().unwrap());
    let singles: Vec<(Thing, Deed)> = THINGS
        .into_iter()
        // An owner that cannot be told dead is watched for 15 s.
        .filter(|thing| count >= ALL || *thing != Thing::Owner)
        .flat_map(|thing| DEEDS.map(|deed| (thing, deed)))
        .collect();
    let mut cases: Vec<Vec<(Thing, Deed)>> = singles.iter().map(|single| vec![*single]).collect();
    let mut pairs: Vec<Vec<(Thing, Deed)>> = Vec::new();
    for (i, first) in singles.iter().enumerate() {
        pairs.extend(
            singles[i + 1..]
                .iter()
                .filter(|(thing, _)| *thing != first.0)
                .map(|second| vec![*first, *second]),
        );
    }
    rng.shuffle(&mut pairs);
    pairs.truncate(count as usize);
    cases.append(&mut pairs);
    for case in cases {
        killed.restore(&source);
        for (thing, deed) in &case {
            killed.alter(*thing, *deed, &mut rng);
        }
        killed.judge(&format!("{case:?}"));
    }
}

/// Goal: a byte that changed in a temporary between two runs is found by reading, what holds it goes again
/// alone, and it is told.
/// Method: a killed copy, one byte, the bytes of both runs; the same with a journal whose values and sums
/// were made to fit.
#[test]
fn held_parts_are_read_before_they_count() {
    for forged in [false, true] {
        let killed = Killed::new(32, &[]);
        let (temp, journal) = (killed.find(Thing::Temporary), killed.find(Thing::Journal));
        match forged {
            false => {
                let mut content = read(&temp);
                content[70_000] ^= 1;
                overwrite(&temp, &content);
            }
            true => overwrite(&journal, &forge(&read(&journal))),
        }
        let ended = killed.run(&[]).exits(0);
        assert!(read(killed.sink.join("f")) == read(&killed.source), "{}", ended.describe());
        let held = ended.summary().0["held"].clone();
        let number = |name: &str| held[name].as_u64().expect("a number");
        assert!(number("checked") >= number("wrong") && number("wrong") > 0, "{held}");
        assert_eq!(number("trusted"), 0);
        assert_eq!(ended.summary().number("objects_resent"), 0, "nothing was damaged on its way");
    }
}

/// Goal: a file is never made of parts of two, also where all that their file systems say of them is equal:
/// size, times and inode.
/// Method: two file systems that keep whole seconds, each with a file of the same number that was written in
/// the same second; a copy of one is killed, and the other, whose directory has the same name, is copied to
/// the same place.
#[test]
fn parts_count_only_for_the_file_that_they_are_of() {
    need!("ext4");
    let room = Room::new();
    let sink = room.dir("sink");
    let disks = ["a/data", "b/data"].map(|name| Disk::new(&room, name, Kind::Ext4Old));
    let files = disks.each_ref().map(|disk| disk.at("f"));
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_600_000_000);
    for (file, byte) in files.iter().zip([1, 2]) {
        fs::write(file, vec![byte; SIZE]).expect("write");
    }
    let version = |file: &Path| {
        let meta = fs::metadata(file).expect("stat");
        (meta.ino(), meta.len(), meta.mtime(), meta.ctime(), meta.ctime_nsec())
    };
    let equal = procs::wait_until(Duration::from_secs(60), || {
        files.iter().for_each(|file| tree::set_mtime(file, time));
        version(&files[0]) == version(&files[1])
    });
    assert!(equal, "{:?} and {:?}", version(&files[0]), version(&files[1]));
    let [a, b] = disks.each_ref().map(|disk| disk.at(""));
    let options = ["-r", "--object-size=64KiB", "--rate=4MB/s", "--memory=4MiB"];
    let mut run = Haul::cp(options).args([&a, &sink]).start();
    let mark = run.mark.clone();
    assert!(run.until(|run| procs::written(&run.near()) >= KILLED_AT), "it ends before the kill");
    run.signal(Signal::KILL);
    drop(run);
    procs::wait_gone(&mark);
    // In objects of the first run's size: a larger one that is held in part goes again as a whole.
    Haul::cp(["-r", "--object-size=64KiB"]).args([&b, &sink]).run().sane().exits(0);
    let copy = read(sink.join("f"));
    assert!(
        copy == read(&files[1]),
        "{} bytes are of the other file",
        copy.iter().filter(|b| **b == 1).count()
    );
}

/// Goal: who asks for trust gets it, is told so, and gets no manifest.
/// Method: a killed copy and a changed byte: it is not found, the report says what was not read; the option
/// with a manifest.
#[test]
fn trust_is_asked_for_and_said() {
    let killed = Killed::new(33, &[]);
    let temp = killed.find(Thing::Temporary);
    let mut content = read(&temp);
    content[70_000] ^= 1;
    overwrite(&temp, &content);
    killed.run(&["--resume=trust", "--manifest=/nowhere"]).exits(2);
    let ended = killed.run(&["--resume=trust"]).exits(0);
    let summary = ended.summary();
    assert_eq!(summary.text("resume"), "trust");
    assert!(summary.0["held"]["trusted"].as_u64() > Some(0), "{}", summary.0["held"]);
    assert!(read(killed.sink.join("f")) != read(&killed.source), "it was read, so this shows nothing");
}

/// Goal: `--force` copies what an interrupted run with it had finished, for only the bytes could say that it
/// is the same.
/// Method: a run of two files with `--force` that is killed when the first is done; other bytes of the same
/// size and time.
#[test]
fn force_believes_no_done_mark() {
    let room = Room::new();
    let (data, sink) = (room.dir("data"), room.dir("sink"));
    let mut rng = fastrand::Rng::with_seed(34);
    fs::write(data.join("a"), tree::bytes(&mut rng, 300_000)).expect("write");
    fs::write(data.join("b"), tree::bytes(&mut rng, SIZE)).expect("write");
    tree::age(&data.join("a"), &mut rng);
    let time = fs::metadata(data.join("a")).unwrap().modified().unwrap();
    let slow = ["-r", "--force", "--object-size=64KiB", "--rate=3MB/s", "--memory=4MiB"];
    let mut run = Haul::cp(slow).args([&data, &sink]).start();
    let mark = run.mark.clone();
    let done = sink.join("data/a");
    // The journal says so with the epoch after.
    assert!(
        run.until(|run| done.exists() && procs::written(&run.near()) >= KILLED_AT),
        "it ends before the kill"
    );
    run.signal(Signal::KILL);
    drop(run);
    procs::wait_gone(&mark);
    fs::write(data.join("a"), tree::bytes(&mut rng, 300_000)).expect("write");
    tree::set_mtime(&data.join("a"), time);
    Haul::cp(["-r", "--force"]).args([&data, &sink]).run().sane().exits(0);
    assert!(read(&done) == read(data.join("a")), "the done mark of another version was believed");
}

/// A journal in which the last value of each record of subtrees is another, with sums that fit.
fn forge(journal: &[u8]) -> Vec<u8> {
    const DURABLE: u8 = 5;
    let (magic, mut rest) = journal.split_at(16);
    let (mut out, mut chain) = (magic.to_vec(), magic.to_vec());
    let mut forged = 0;
    while let Some((len, behind)) = rest.split_first_chunk::<4>() {
        let Some((body, behind)) = behind.split_at_checked(u32::from_le_bytes(*len) as usize) else { break };
        let Some((_, behind)) = behind.split_at_checked(16) else { break };
        rest = behind;
        let mut body = body.to_vec();
        if body[0] == DURABLE {
            *body.last_mut().expect("a value") ^= 1;
            forged += 1;
        }
        chain = blake3::hash(&[chain, body.clone()].concat()).as_bytes()[..16].to_vec();
        out.extend(len);
        out.extend(body);
        out.extend(&chain);
    }
    assert!(forged > 0, "no record of subtrees is in this journal");
    out
}
