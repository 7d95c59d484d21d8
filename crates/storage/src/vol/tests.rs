//! What is a volume's own about its stores, on three real servers and a real catalog.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};
use haul_core::digest::{DigestKind, Root};
use haul_core::entry::{EntryKind, Fingerprint, Meta, Timestamp};
use haul_core::ids::{DirId, FileId, Generation, TargetId};
use haul_core::reliability::Bounded;
use haul_core::transfer::op::{
    CommitItem, Existing, Found, LinkItem, Look, LookupItem, Publish, SinkDone, SinkFile, SinkOp, SourceDone,
    SourceOp,
};
use haul_core::transfer::source::OnChange;
use haul_core::volume::FileNo;
use haul_core::volume::catalog::{Kind, Setting};
use haul_core::wire::{Agreed, Failure, FailureKind};
use haul_volume::contents;

use super::test_volume::TestVolume;
use crate::conformance::{META, OBJECT, PATIENCE, Run, Sink, bytes, file, name};
use crate::descriptors::budget;
use crate::options::{DataChannel, StorageOptions};
use crate::place::{Place, Sources};
use crate::source::wall_clock;
use crate::store::{Reading, SourceParts};
use crate::walk::WalkItem;
use crate::{SourceCompletion, SourceJob};
use haul_base::buffer::Pool;
use haul_base::digest;
use haul_base::meter::Meter;
use haul_base::stop::Stop;

mod drains;
mod gone;
mod ours;
mod resume;

/// A source that is read, and what it posts.
struct Reads {
    parts: SourceParts,
    posted: Receiver<SourceCompletion>,
    items: Vec<WalkItem>,
    pool: Pool,
    /// How often the source was said to be gone, and why.
    gone: Vec<Failure>,
}

impl Reads {
    fn of(volume: &TestVolume, typed: &str, changed: OnChange) -> Reads {
        let places = [Place::file(typed)];
        let sources = Sources {
            places: &places,
            recursive: true,
            part: None,
            home: None,
            replicas: &[],
            trust: false,
            retry: Arc::new(Bounded),
            ssh: (&[], false),
            patience: None,
            data_channel: DataChannel::default(),
            volumes: None,
            links: Default::default(),
            stop: Stop::never(),
        };
        let store = volume.source(&sources).unwrap_or_else(|failure| panic!("{}", failure.text));
        let (post, posted) = unbounded();
        let parts = store.start(Reading {
            picks: None,
            originals: None,
            agreed: Agreed::plain(1000),
            readers: 2,
            storage: StorageOptions::default(),
            memory: 1 << 26,
            object_size: OBJECT as u32,
            clock: wall_clock(),
            kept: Duration::ZERO,
            changed,
            no_links: false,
            hard_links: false,
            manners: Default::default(),
            by_name: Default::default(),
            nodes: Default::default(),
            keeps: Default::default(),
            budget: budget(),
            meter: Arc::new(Meter::default()),
            post: Arc::new(move |completion: SourceCompletion| drop(post.send(completion))),
        });
        let parts = parts.unwrap_or_else(|failure| panic!("{}", failure.text));
        let mut items = Vec::new();
        while !matches!(items.last(), Some(WalkItem::End(_))) {
            items.extend(parts.walk.items().recv_timeout(PATIENCE).expect("the walk ends"));
        }
        Reads { parts, posted, items, pool: Pool::new(1 << 26), gone: Vec::new() }
    }

    /// The only file of this path, and its length.
    fn file(&self, path: &[u8]) -> (FileId, u64) {
        let found = self.items.iter().find_map(|item| match item {
            WalkItem::Entry(entry) => match entry.kind {
                EntryKind::File { fingerprint, .. } if self.parts.names.path_of(entry.id) == path => {
                    Some((entry.id, fingerprint.size))
                }
                _ => None,
            },
            _ => None,
        });
        found.unwrap_or_else(|| panic!("{:?}", self.items))
    }

    fn ask(&mut self, op: SourceOp, len: Option<usize>) -> (SourceDone, Vec<u8>) {
        let buffer = len.map(|len| self.pool.take(len).expect("a buffer"));
        self.parts.engine.submit(SourceJob { op, buffer });
        let (done, buffer) = loop {
            match self.posted.recv_timeout(PATIENCE).expect("an answer") {
                SourceCompletion { done: SourceDone::Gone { failure }, .. } => self.gone.push(failure),
                SourceCompletion { done, buffer } => break (done, buffer),
            }
        };
        (done, buffer.map_or_else(Vec::new, |buffer| buffer.as_slice().to_vec()))
    }

    fn look(&mut self, id: FileId) -> Result<Look, Failure> {
        match self.ask(SourceOp::Look { id, generation: Generation(0) }, None).0 {
            SourceDone::Look { result, .. } => result,
            other => panic!("{other:?}"),
        }
    }

    /// Has a file hashed of which that was seen.
    fn hash(&mut self, id: FileId, seen: Fingerprint) -> Result<Root, Failure> {
        let (generation, seen) = (Generation(0), Some(Box::new(seen)));
        let op = SourceOp::HashFile { id, generation, map: None, seen, parts: Box::new([]) };
        match self.ask(op, None).0 {
            SourceDone::HashFile { result, .. } => result.map(|hashed| hashed.root),
            other => panic!("{other:?}"),
        }
    }

    fn read(&mut self, id: FileId, offset: u64, len: u32) -> Result<Vec<u8>, Failure> {
        let (generation, target) = (Generation(0), TargetId(0));
        let op = SourceOp::Read { id, generation, offset, len, tail: false, whole: false, target };
        match self.ask(op, Some(len as usize)) {
            (SourceDone::Read { result, .. }, bytes) => result.map(|_| bytes),
            (other, _) => panic!("{other:?}"),
        }
    }
}

fn looked(run: &mut Run, file: &SinkFile) -> Result<Found, Failure> {
    let fingerprint = haul_core::entry::Fingerprint {
        size: file.size,
        mtime: META.mtime,
        version: haul_core::entry::Version::NONE,
    };
    let item = LookupItem { file: file.clone(), fingerprint, meta: META, adopt: None };
    match run.run(SinkOp::Lookup { items: vec![item] }, None) {
        SinkDone::Lookup { mut results } => results.remove(0).1,
        other => panic!("{other:?}"),
    }
}

fn made(run: &mut Run, dir: DirId) -> Result<(), Failure> {
    match run.run(SinkOp::MakeDirs { dirs: vec![dir] }, None) {
        SinkDone::MakeDirs { mut results } => results.remove(0).1,
        other => panic!("{other:?}"),
    }
}

fn names(volume: &TestVolume, path: &[u8]) -> Vec<Vec<u8>> {
    volume.list(path).into_iter().map(|(name, _)| name).collect()
}

fn published(run: &mut Run, publish: Publish) -> Result<(), Failure> {
    let items = vec![CommitItem { id: publish.file.id, publish: Some(publish) }];
    match run.run(SinkOp::Commit { durable: true, items }, None) {
        SinkDone::Commit { mut results, .. } => results.remove(0).1,
        other => panic!("{other:?}"),
    }
}

fn publish(file: &SinkFile) -> Publish {
    Publish { file: file.clone(), meta: META, owner: false, found: None, no_replace: false, verify: None }
}

/// Goal: each change of a source is seen by the look after the last read: another length, another time, no
/// name any more; bytes that somebody wrote, over either path, whether he tells of it, dies before, or sets
/// the time back; and a file that nobody wrote is the same, after its gatherer was started anew too.
#[test]
fn changes_of_a_source_are_seen() {
    let volume = TestVolume::start(3);
    let data = bytes(1, 3 * OBJECT);
    for path in [
        &b"/s/longer"[..],
        b"/s/shorter",
        b"/s/touched",
        b"/s/gone",
        b"/s/gathered",
        b"/s/direct",
        b"/s/restored",
        b"/s/same",
    ] {
        volume.put(path, &data);
    }
    let mut reads = Reads::of(&volume, "/s/", OnChange::Fail);
    let v = volume.volume();
    let no = |path: &[u8]| volume.entry(path).expect("there").file().expect("a file");
    let (longer, shorter) = (no(b"/s/longer"), no(b"/s/shorter"));
    let (gathered, direct, restored) = (no(b"/s/gathered"), no(b"/s/direct"), no(b"/s/restored"));
    v.client.write(longer, data.len() as u64, vec![1]).wait().expect("written");
    v.client.sync(longer).wait().expect("synced");
    v.client.truncate(shorter, 10).wait().expect("cut");
    // Nobody syncs or tells of these.
    v.client.write(gathered, 5, vec![1]).wait().expect("written");
    v.client.write(direct, OBJECT as u64, vec![1; OBJECT]).wait().expect("written");
    v.client.write(restored, 5, vec![1]).wait().expect("written");
    let set = Setting { mtime: Some(super::test_volume::META.mtime), ..Setting::default() };
    let look = v.client.look(restored).wait().expect("looked at");
    contents::tell(&v.catalog, &v.client, restored, &look, set).expect("told");
    let later = Timestamp { secs: 1_600_000_000, nanos: 1 };
    let touched = volume.entry(b"/s/touched").expect("there").id;
    v.catalog.set_attr(touched, Setting { mtime: Some(later), ..Setting::default() }).expect("set");
    volume.remove(b"/s/gone");
    for (path, look) in [
        (&b"longer"[..], Look::Changed),
        (b"shorter", Look::Changed),
        (b"touched", Look::Changed),
        (b"gathered", Look::Changed),
        (b"direct", Look::Changed),
        (b"same", Look::Same),
    ] {
        let (id, _) = reads.file(path);
        assert_eq!(reads.look(id), Ok(look), "{}", String::from_utf8_lossy(path));
    }
    // Where its time is as it was, all of its bytes tell.
    let (id, _) = reads.file(b"restored");
    let Ok(Look::MetaOnly { seen, .. }) = reads.look(id) else { panic!("nobody sees it") };
    assert_ne!(reads.hash(id, seen).expect("hashed"), digest::root(DigestKind::Blake3, &data));
    let gatherer = (no(b"/s/same").0 % 3) as usize;
    volume.kill(gatherer);
    volume.revive(gatherer);
    let (id, _) = reads.file(b"same");
    let Ok(Look::MetaOnly { seen, .. }) = reads.look(id) else { panic!("it is another life") };
    assert_eq!(reads.hash(id, seen).expect("hashed"), digest::root(DigestKind::Blake3, &data));
    // What was seen is not there any more when it is hashed.
    v.client.write(no(b"/s/same"), 5, vec![1]).wait().expect("written");
    let failure = reads.hash(id, seen).expect_err("it changed");
    assert_eq!(failure.kind, FailureKind::Changed, "{}", failure.text);
    let (gone, _) = reads.file(b"gone");
    let failure = reads.look(gone).expect_err("it is gone");
    assert_eq!(failure.kind, FailureKind::Vanished);
    assert!(failure.text.contains("vol://v/s/gone"), "{}", failure.text);
    // What a volume gives behind the end of a file is zeros, and they are no bytes of it.
    let (id, _) = reads.file(b"shorter");
    let failure = reads.read(id, OBJECT as u64, OBJECT as u32).expect_err("it is shorter");
    assert_eq!(failure.kind, FailureKind::Changed, "{}", failure.text);
    let (id, _) = reads.file(b"touched");
    assert_eq!(reads.read(id, OBJECT as u64, 100).expect("read"), data[OBJECT..OBJECT + 100]);
}

/// Goal: who syncs as a program should has moved the file's time when that returns, each time to a later one,
/// and the gatherer knows that; who wrote nothing moves nothing.
#[test]
fn who_syncs_moves_the_time() {
    let volume = TestVolume::start(2);
    volume.put(b"/f", &bytes(1, 3 * OBJECT));
    let v = volume.volume();
    let file = volume.entry(b"/f").expect("there").file().expect("a file");
    let sync = || {
        contents::sync(&v.catalog, &v.client, file).expect("synced");
        assert!(!v.client.look(file).wait().expect("looked at").untold);
        volume.entry(b"/f").expect("there").meta.mtime
    };
    let mut last = super::test_volume::META.mtime;
    assert_eq!(sync(), last);
    for round in 0..4 {
        let written = vec![round; if round % 2 == 0 { 5 } else { OBJECT }];
        v.client.write(file, 0, written).wait().expect("written");
        let time = sync();
        assert!(time > last, "{time:?} after {last:?}");
        assert_eq!(sync(), time);
        last = time;
    }
}

/// Goal: a tree is walked whole: links, empty directories, names of bytes, more entries than a page has.
#[test]
fn trees_are_walked_whole() {
    let volume = TestVolume::start(3);
    volume.dir(b"/s/empty");
    volume.put(b"/s/\xff\n", b"x");
    volume.put(b"/s/nothing", b"");
    volume.link(b"/s/link", b"../away/\xfe");
    let v = volume.volume();
    let many = volume.dir(b"/s/many");
    let count = haul_core::volume::catalog::PAGE_MAX + 10;
    for n in 0..count {
        let at = haul_core::volume::catalog::Place { parent: many, name: name(format!("f{n}").as_bytes()) };
        v.catalog.create(at, super::test_volume::META, true, false).expect("made");
    }
    let reads = Reads::of(&volume, "/s/", OnChange::Fail);
    let (mut files, mut dirs, mut links, mut ends) = (0, 0, 0, 0);
    for item in &reads.items {
        match item {
            WalkItem::Entry(entry) => match &entry.kind {
                EntryKind::File { .. } => files += 1,
                EntryKind::Dir { .. } => dirs += 1,
                EntryKind::Symlink { target } => {
                    assert_eq!(&**target, b"../away/\xfe");
                    assert_eq!(entry.meta, super::test_volume::META);
                    links += 1;
                }
                other => panic!("{other:?}"),
            },
            WalkItem::DirEnd(_) => ends += 1,
            WalkItem::End(totals) => assert_eq!(totals.files, files),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((files, dirs, links, ends), (2 + count as u64, 2, 1, 2));
    assert_eq!(reads.file(b"nothing").1, 0);
    assert_eq!(reads.file(b"\xff\n").1, 1);
}

/// Goal: a file that is not whole gets no name, and leaves nothing.
#[test]
fn half_a_file_has_no_name() {
    let volume = Arc::new(TestVolume::start(3));
    let sink = Sink::in_volume(&volume, b"/dst/");
    let mut run = sink.begin();
    let data = bytes(2, 2 * OBJECT);
    let half = file(1, DirId::ROOT, b"half", data.len());
    run.write(&half, OBJECT, &data[OBJECT..]).expect("written");
    let failure = run.commit(&half, None, false).expect_err("half is missing");
    assert!(failure.text.contains("vol://v/dst/half"), "{}", failure.text);
    // It stays failed until it is discarded.
    assert!(run.write(&half, 0, &data[..OBJECT]).is_err());
    run.run(SinkOp::Discard { id: half.id }, None);
    // What the servers give back is compared where that is asked.
    let other = file(2, DirId::ROOT, b"other", data.len());
    run.write(&other, 0, &data[..OBJECT]).expect("written");
    run.write(&other, OBJECT, &data[OBJECT..]).expect("written");
    let verify = |root| Publish { verify: Some((DigestKind::Blake3, root)), ..publish(&other) };
    let failure = published(&mut run, verify([1; 32])).expect_err("other bytes");
    assert_eq!(failure.kind, FailureKind::Digest, "{}", failure.text);
    run.run(SinkOp::Discard { id: other.id }, None);
    run.write(&other, 0, &data[..OBJECT]).expect("written");
    run.write(&other, OBJECT, &data[OBJECT..]).expect("written");
    published(&mut run, verify(digest::root(DigestKind::Blake3, &data))).expect("the same bytes");
    assert_eq!((sink.read)(b"other"), Some(data));
    run.job.finish();
    run.end();
    assert_eq!(names(&volume, b"/dst"), [b"other"]);
}

/// Goal: what stands at a name is replaced only if it is what was found; nothing is replaced where nothing
/// was.
#[test]
fn only_what_was_found_is_replaced() {
    let volume = Arc::new(TestVolume::start(3));
    let sink = Sink::in_volume(&volume, b"/dst/");
    for path in [&b"/dst/kept"[..], b"/dst/changed"] {
        volume.put(path, b"old");
    }
    let mut run = sink.begin();
    let mut all = Vec::new();
    for (id, text) in [(1, &b"kept"[..]), (2, b"changed"), (3, b"appeared")] {
        let one = file(id, DirId::ROOT, text, 3);
        let found = looked(&mut run, &one).expect("looked").seen;
        assert_eq!(found.is_some(), id < 3);
        run.write(&one, 0, b"new").expect("written");
        all.push((one, found));
    }
    volume.put(b"/dst/changed", b"other");
    volume.put(b"/dst/appeared", b"other");
    for (one, found) in all {
        let result = run.commit(&one, found, false);
        assert_eq!(result.is_ok(), one.id == FileId(1), "{result:?}");
    }
    assert_eq!((sink.read)(b"kept").as_deref(), Some(&b"new"[..]));
    for text in [&b"changed"[..], b"appeared"] {
        assert_eq!((sink.read)(text).as_deref(), Some(&b"other"[..]));
    }
    // Mode and time are as at the source, to the nanosecond.
    let meta = volume.entry(b"/dst/kept").expect("there").meta;
    assert_eq!((meta.mode, meta.mtime), (META.mode, META.mtime));
    run.end();
}

/// Goal: nothing is written through a link below the destination, nor in place of what is no directory; a
/// link takes no directory's place, and not that of the file that it leads to.
#[test]
fn links_and_files_are_no_directories() {
    let volume = Arc::new(TestVolume::start(3));
    let sink = Sink::in_volume(&volume, b"/dst/");
    volume.dir(b"/away");
    volume.link(b"/dst/link", b"../away");
    volume.put(b"/dst/file", b"stays");
    volume.dir(b"/dst/dir");
    let mut run = sink.begin();
    for (id, text) in [(1, &b"link"[..]), (2, b"file"), (3, b"dir")] {
        run.engine.register(DirId(id), DirId::ROOT, name(text));
        run.engine.register(DirId(id + 10), DirId(id), name(b"below"));
        let result = made(&mut run, DirId(id + 10));
        assert_eq!(result.is_ok(), id == 3, "{result:?}");
    }
    assert!(volume.list(b"/away").is_empty());
    assert_eq!((sink.read)(b"file").as_deref(), Some(&b"stays"[..]));
    let link = |id, text: &[u8], target: &[u8]| LinkItem {
        file: file(id, DirId::ROOT, text, 0),
        target: target.into(),
        node: None,
        meta: META,
        owner: false,
        no_replace: false,
        force: false,
    };
    let items = vec![
        link(21, b"dir", b"x"),
        link(22, b"file", b"./../dst/file"),
        link(23, b"link", b"../dst"),
        link(24, b"new", b"\xff"),
    ];
    let SinkDone::MakeLinks { results } = run.run(SinkOp::MakeLinks { items }, None) else { panic!() };
    let good: Vec<bool> = results.iter().map(|(_, result)| result.is_ok()).collect();
    assert_eq!(good, [false, false, true, true], "{results:?}");
    for (path, target) in [(&b"/dst/link"[..], &b"../dst"[..]), (b"/dst/new", b"\xff")] {
        let entry = volume.entry(path).expect("there");
        assert_eq!(entry.kind, Kind::Link(target.into()));
        assert_eq!(entry.meta.mtime, META.mtime);
    }
    // A file takes no directory's place either.
    let one = file(30, DirId::ROOT, b"dir", 3);
    assert_eq!(looked(&mut run, &one).expect("looked").existing, Existing::Dir);
    run.write(&one, 0, b"new").expect("written");
    let failure = run.commit(&one, None, false).expect_err("a directory stands there");
    assert_eq!(failure.errno, 21, "{}", failure.text);
    run.end();
    assert_eq!(volume.entry(b"/dst/dir").expect("there").kind, Kind::Directory);
}

/// Goal: what a run left that was given up is removed by the next one of the job, and of nobody else.
#[test]
fn leftovers_of_dead_runs_go() {
    let volume = Arc::new(TestVolume::start(3));
    let sink = Sink::in_volume(&volume, b"/dst/");
    let mut first = sink.begin();
    first.engine.register(DirId(1), DirId::ROOT, name(b"dir"));
    for (id, dir) in [(1, DirId::ROOT), (2, DirId(1))] {
        let one = file(id, dir, b"f", 10);
        first.write(&one, 0, b"12345").expect("written");
    }
    volume.put(b"/dst/.f.haul~aaaaaaaaaaaaaa", b"a user's");
    // A run that is killed removes nothing; its entry says that it was left, so that nobody waits.
    let before = volume.list(b"/dst");
    first.job.leave();
    std::mem::forget(first);
    assert_eq!(before.len(), 4, "{before:?}");
    assert_eq!(names(&volume, b"/dst/dir").len(), 1);
    let mut second = sink.begin();
    second.engine.register(DirId(1), DirId::ROOT, name(b"dir"));
    let dirs = vec![(DirId(1), Meta { mode: 0o750, ..META })];
    let SinkDone::FinishDirs { results } = second.run(SinkOp::FinishDirs { durable: true, dirs }, None)
    else {
        panic!()
    };
    assert!(results[0].1.is_ok(), "{results:?}");
    second.run(SinkOp::RemoveJournal, None);
    second.job.finish();
    second.end();
    assert_eq!(names(&volume, b"/dst"), [&b".f.haul~aaaaaaaaaaaaaa"[..], b"dir"]);
    assert!(names(&volume, b"/dst/dir").is_empty());
    assert_eq!(volume.entry(b"/dst/dir").expect("there").meta.mode, 0o750);
}

/// Goal: a run whose job another one took over publishes nothing.
/// Method: an entry of a later run appears; the first run hears of it at its next look.
#[test]
fn losers_publish_nothing() {
    let volume = Arc::new(TestVolume::start(3));
    let sink = Sink::in_volume(&volume, b"/dst/");
    let mut run = sink.begin();
    let own = names(&volume, b"/dst").remove(0);
    let next = [own.strip_suffix(b"1").expect("the first run"), b"2"].concat();
    volume.link(&[b"/dst/", &next[..]].concat(), b"haul-run 5 a test");
    let begun = Instant::now();
    for id in 1.. {
        let one = file(id, DirId::ROOT, format!("f{id}").as_bytes(), 3);
        if let Err(failure) = run.write(&one, 0, b"new").and_then(|()| run.commit(&one, None, false)) {
            assert!(failure.text.contains("another run"), "{}", failure.text);
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "it goes on for ever");
        std::thread::sleep(Duration::from_millis(100));
    }
    run.job.finish();
    run.end();
    assert!(names(&volume, b"/dst").contains(&next), "it is the other one's");
}

/// Goal: with a server killed and started anew in the middle of writes and reads no byte is wrong: a file is
/// whole, or failed by its name, and the same again succeeds.
#[test]
fn a_server_that_dies_costs_no_bytes() {
    let volume = Arc::new(TestVolume::start(3));
    let sink = Sink::in_volume(&volume, b"/dst/");
    let data: Vec<Vec<u8>> = (0..6).map(|n| bytes(n, 6 * OBJECT + n as usize)).collect();
    let mut failed = 0;
    for round in 0..3 {
        let mut run = sink.begin();
        for (n, data) in data.iter().enumerate() {
            let text = format!("f{n}");
            if (sink.read)(text.as_bytes()).as_ref() == Some(data) {
                continue;
            }
            let one = file(n as u64 + 1, DirId::ROOT, text.as_bytes(), data.len());
            let mut result = Ok(());
            for (at, part) in data.chunks(OBJECT).enumerate() {
                if round == 0 && (n, at) == (2, 3) {
                    volume.kill(1);
                    volume.revive(1);
                }
                result = result.and_then(|()| run.write(&one, at * OBJECT, part));
            }
            let result = result.and_then(|()| run.commit(&one, None, false));
            if let Err(failure) = result {
                assert!(failure.text.contains(&text), "{}", failure.text);
                run.run(SinkOp::Discard { id: one.id }, None);
                failed += 1;
            }
        }
        run.job.finish();
        run.end();
    }
    assert!(failed <= 1, "only what was not synced is lost: {failed}");
    let expected: Vec<Vec<u8>> = (0..6).map(|n| format!("f{n}").into_bytes()).collect();
    assert_eq!(names(&volume, b"/dst"), expected);
    let mut reads = Reads::of(&volume, "/dst/", OnChange::Fail);
    for (n, data) in data.iter().enumerate() {
        let (id, len) = reads.file(format!("f{n}").as_bytes());
        assert_eq!(len, data.len() as u64);
        for (at, part) in data.chunks(OBJECT).enumerate() {
            if (n, at) == (1, 1) {
                volume.kill(2);
                volume.revive(2);
            }
            assert!(reads.read(id, (at * OBJECT) as u64, part.len() as u32).expect("read") == part);
        }
        match reads.look(id) {
            Ok(Look::Same) => {}
            // Who gathers it was started anew: all of its bytes tell.
            Ok(Look::MetaOnly { seen, .. }) => {
                assert_eq!(reads.hash(id, seen).expect("hashed"), digest::root(DigestKind::Blake3, data));
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Goal: nobody waits longer than the patience of the run, and the words say for whom.
#[test]
fn waits_end_with_the_patience() {
    let volume = Arc::new(TestVolume::start_with(3, Duration::from_secs(3)));
    volume.put(b"/s/f", &bytes(1, 3 * OBJECT));
    let sink = Sink::in_volume(&volume, b"/dst/");
    let mut reads = Reads::of(&volume, "/s/", OnChange::Fail);
    let mut run = sink.begin();
    volume.kill(0);
    let (id, _) = reads.file(b"f");
    let mut late = Vec::new();
    for at in 0..3 {
        late.extend(reads.read(id, (at * OBJECT) as u64, OBJECT as u32).err());
    }
    assert!(!late.is_empty(), "each server has a stripe of it");
    for failure in late {
        assert_eq!(failure.kind, FailureKind::Network, "{}", failure.text);
        assert!(
            failure.text.contains("server 0") && failure.text.contains("vol://v/s/f"),
            "{}",
            failure.text
        );
    }
    volume.kill_catalog();
    let one = file(1, DirId::ROOT, b"f", 3);
    let failure = run.write(&one, 0, b"new").expect_err("nobody makes it");
    assert!(failure.text.contains("catalog") && failure.text.contains("vol://v/dst/f"), "{}", failure.text);
}

/// Goal: what was written is there as soon as it has its name, for others too, whatever is promised.
#[test]
fn others_see_the_whole_file_at_once() {
    let volume = Arc::new(TestVolume::start(3));
    let sink = Sink::in_volume(&volume, b"/dst/");
    let mut run = sink.begin();
    // So long that they go to the storage servers, and not through the file's gatherer.
    let (data, step) = (bytes(5, 5 << 20), 1 << 20);
    let one = file(1, DirId::ROOT, b"f", data.len());
    for (at, part) in data.chunks(step).enumerate() {
        run.write(&one, at * step, part).expect("written");
    }
    let items = vec![CommitItem { id: one.id, publish: Some(publish(&one)) }];
    let SinkDone::Commit { results, .. } = run.run(SinkOp::Commit { durable: false, items }, None) else {
        panic!()
    };
    results[0].1.as_ref().expect("published");
    let no = volume.entry(b"/dst/f").expect("there").id;
    assert_eq!(volume.volume().ask_len(FileNo(no.0)).wait().expect("asked").end, data.len() as u64);
    assert_eq!((sink.read)(b"f"), Some(data));
    run.end();
}
