//! What one run left of a file, taken over by the next.

use haul_core::digest::Cv;
use haul_core::volume::catalog::EntryNo;

use super::*;
use crate::sink::tag_of;

/// Objects that the first run wrote.
const LEFT: usize = 3;

/// A run that wrote some objects of a file, whose journal may say so, and that is over; what is there.
struct Left {
    volume: Arc<TestVolume>,
    sink: Sink,
    data: Vec<u8>,
    tag: u32,
    temp: (Vec<u8>, EntryNo),
}

fn temps(volume: &TestVolume) -> Vec<(Vec<u8>, EntryNo)> {
    let temps = names(volume, b"/dst").into_iter().filter(|name| tag_of(name).is_some());
    temps
        .map(|name| (name.clone(), volume.entry(&[b"/dst/", &name[..]].concat()).expect("there").id))
        .collect()
}

fn one(left: &Left) -> SinkFile {
    file(1, DirId::ROOT, b"f", left.data.len())
}

impl Left {
    fn new() -> Left {
        let volume = Arc::new(TestVolume::start(3));
        let sink = Sink::in_volume(&volume, b"/dst/");
        let data = bytes(6, 5 * OBJECT + 77);
        let mut run = sink.begin();
        let one = file(1, DirId::ROOT, b"f", data.len());
        for (n, part) in data.chunks(OBJECT).take(LEFT).enumerate() {
            run.write(&one, n * OBJECT, part).expect("written");
        }
        let done = run.run(
            SinkOp::Commit { durable: true, items: vec![CommitItem { id: one.id, publish: None }] },
            None,
        );
        assert_eq!(done, SinkDone::Commit { results: vec![(one.id, Ok(()))], lost: Vec::new() });
        // It speaks of nothing, and is there.
        let done = run.run(SinkOp::Journal { bytes: Vec::new(), durable: true }, None);
        assert_eq!(done, SinkDone::Journal { result: Ok(()) });
        run.end();
        let mut all = temps(&volume);
        assert_eq!(all.len(), 1, "what was synced stays: {:?}", names(&volume, b"/dst"));
        let temp = all.remove(0);
        let tag = tag_of(&temp.0).expect("a temporary");
        Left { volume, sink, data, tag, temp }
    }

    /// Another run, and what it found of the temporary.
    fn next(&self) -> (Run, Found) {
        let mut run = self.sink.begin();
        let found = self.look(&mut run, &one(self));
        (run, found)
    }

    fn look(&self, run: &mut Run, file: &SinkFile) -> Found {
        let fingerprint =
            Fingerprint { size: file.size, mtime: META.mtime, version: haul_core::entry::Version::NONE };
        let items = vec![LookupItem { file: file.clone(), fingerprint, meta: META, adopt: Some(self.tag) }];
        match run.run(SinkOp::Lookup { items }, None) {
            SinkDone::Lookup { mut results } => results.remove(0).1.expect("looked up"),
            other => panic!("{other:?}"),
        }
    }

    /// What is read of the objects that were left.
    fn values(&self, run: &mut Run) -> Vec<Option<Cv>> {
        let ranges = (0..LEFT).map(|n| ((n * OBJECT) as u64, OBJECT as u64)).collect();
        match run.run(SinkOp::Check { file: one(self), kind: DigestKind::Blake3, ranges }, None) {
            SinkDone::Check { result, .. } => result.expect("read"),
            other => panic!("{other:?}"),
        }
    }

    fn expected(&self) -> Vec<Option<Cv>> {
        let value = |(n, part): (usize, &[u8])| {
            let values = digest::chaining_values(DigestKind::Blake3, (n * OBJECT) as u64, part, false);
            assert_eq!(values.len(), 1, "an object is a node");
            Some(values[0])
        };
        self.data.chunks(OBJECT).take(LEFT).enumerate().map(value).collect()
    }

    /// The rest is written, and the file has its name.
    fn finish(&self, mut run: Run) {
        for (n, part) in self.data.chunks(OBJECT).enumerate().skip(LEFT) {
            run.write(&one(self), n * OBJECT, part).expect("written");
        }
        run.commit(&one(self), None, false).expect("published");
        assert_eq!(run.run(SinkOp::RemoveJournal, None), SinkDone::RemoveJournal { result: Ok(()) });
        run.job.finish();
        run.end();
        assert_eq!(names(&self.volume, b"/dst"), [b"f"]);
        assert!((self.sink.read)(b"f").as_ref() == Some(&self.data));
    }
}

/// Goal: what a run left that is proven dead is gone on with where it lies, is read there, and is published
/// with what comes; nothing of the job stays.
#[test]
fn parts_go_on_where_they_were_synced() {
    let left = Left::new();
    let (mut run, found) = left.next();
    assert_eq!((found.adopted, found.len, found.existing), (true, (LEFT * OBJECT) as u64, Existing::Nothing));
    assert_eq!(left.values(&mut run), left.expected());
    let now = temps(&left.volume);
    assert!(now.len() == 1 && now[0].1 == left.temp.1 && now[0].0 != left.temp.0, "{now:?}");
    left.finish(run);
    assert_eq!(left.volume.entry(b"/dst/f").expect("there").id, left.temp.1, "no byte was written twice");
}

/// Goal: what a run had open that nobody saw die is never published: a copy of it is, under a number of its
/// own, and what that run writes later is in nothing.
/// Method: its entry says neither who it was nor that it was left; a later run's was left, so that nobody
/// waits.
#[test]
fn what_an_unproven_run_has_open_is_copied() {
    let left = Left::new();
    let own =
        names(&left.volume, b"/dst").into_iter().find(|name| name.ends_with(b".own.1")).expect("an entry");
    let path = |name: &[u8]| [b"/dst/", name].concat();
    let Kind::Link(text) = left.volume.entry(&path(&own)).expect("there").kind else {
        panic!("it is a link")
    };
    let cut = text.windows(4).position(|four| four == b" by ").expect("it says who it was");
    left.volume.remove(&path(&own));
    left.volume.link(&path(&own), &text[..cut]);
    let next = path(&[&own[..own.len() - 1], b"2"].concat());
    left.volume.link(&next, b"haul-run 5 in 1");
    let v = left.volume.volume();
    let id = left.volume.entry(&next).expect("there").id;
    v.catalog.set_attr(id, Setting { mode: Some(0), ..Setting::default() }).expect("left");
    let (mut run, found) = left.next();
    assert_eq!((found.adopted, found.len), (true, (LEFT * OBJECT) as u64));
    // Too late: it has another number, or none.
    let _ = v.client.write(FileNo(left.temp.1.0), 7, vec![0; 9]).wait();
    assert_eq!(left.values(&mut run), left.expected());
    left.finish(run);
    assert_ne!(left.volume.entry(b"/dst/f").expect("there").id, left.temp.1);
}

/// Goal: a temporary that is not there, that somebody took for his own, or of a file that is a sparse one by
/// now is not gone on with; a new one is made, and what was left goes.
#[test]
fn what_is_not_ours_is_not_gone_on_with() {
    let deeds: [fn(&Left) -> Option<SinkFile>; 3] = [
        |left| {
            left.volume.remove(&[b"/dst/", &left.temp.0[..]].concat());
            None
        },
        |left| {
            let set = Setting { mode: Some(0o644), ..Setting::default() };
            left.volume.volume().catalog.set_attr(left.temp.1, set).expect("set");
            None
        },
        |left| {
            let map = haul_core::extents::ExtentMap::new(left.data.len() as u64, Vec::new());
            Some(SinkFile { map: Some(map.expect("a hole")), ..one(left) })
        },
    ];
    for deed in deeds {
        let left = Left::new();
        let asked = deed(&left).unwrap_or_else(|| one(&left));
        let mut run = left.sink.begin();
        let found = left.look(&mut run, &asked);
        assert_eq!((found.adopted, found.len), (false, 0));
        for (n, part) in left.data.chunks(OBJECT).enumerate() {
            run.write(&one(&left), n * OBJECT, part).expect("written");
        }
        left.finish(run);
        assert_ne!(left.volume.entry(b"/dst/f").expect("there").id, left.temp.1);
    }
}

/// Goal: a part is told to last only if all servers synced it: one that was started anew since it took a part
/// may have lost it, and says so.
#[test]
fn parts_last_when_the_servers_said_so() {
    let volume = Arc::new(TestVolume::start(3));
    let sink = Sink::in_volume(&volume, b"/dst/");
    let mut run = sink.begin();
    let data = bytes(5, 5 << 20);
    let one = file(1, DirId::ROOT, b"f", 2 * data.len());
    for (n, part) in data.chunks(1 << 20).enumerate() {
        run.write(&one, n << 20, part).expect("written");
    }
    volume.kill(1);
    volume.revive(1);
    let items = vec![CommitItem { id: one.id, publish: None }];
    let SinkDone::Commit { results, lost } = run.run(SinkOp::Commit { durable: true, items }, None) else {
        panic!("a commit")
    };
    assert!(results[0].1.is_err() && lost == [one.id], "{results:?}");
    run.run(SinkOp::Discard { id: one.id }, None);
    run.end();
    assert!(temps(&volume).is_empty());
}

/// Goal: a journal is whole after a server lost what was written of it and not synced, and after the run
/// that began it; nothing of one is there before a part of a file lasts.
#[test]
fn journals_are_begun_for_parts() {
    let left = Left::new();
    let journals = || {
        let found = names(&left.volume, b"/dst").into_iter();
        found.filter(|name| name.starts_with(b".haul~") && !name.ends_with(b".own.1")).count()
    };
    assert_eq!(journals(), 1);
    let sink = Sink::in_volume(&left.volume, b"/other/");
    let mut run = sink.begin();
    let small = file(1, DirId::ROOT, b"small", 5);
    run.write(&small, 0, b"12345").expect("written");
    run.commit(&small, None, false).expect("published");
    run.run(SinkOp::Journal { bytes: vec![1; 100], durable: true }, None);
    assert_eq!(names(&left.volume, b"/other").len(), 2, "its entry and the file");
    run.run(SinkOp::RemoveJournal, None);
    run.job.finish();
    run.end();
    assert_eq!(names(&left.volume, b"/other"), [b"small"]);
}
