//! One suite for every store: what the seam promises, and what each store says that it can do.
//!
//! In: ways to make a source, or a sink, over something fresh, and to look at what came of it. A store that
//! cannot do a thing must refuse it by name; one that says it can must do it.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};
use haul_core::digest::DigestKind;
use haul_core::entry::{EntryKind, Fingerprint, Meta, Name, Part, Timestamp, Version};
use haul_core::ids::{BufferId, DirId, FileId, Generation, Holder, TargetId};
use haul_core::journal::{DoneMark, PathKey, Record, Resume};
use haul_core::reliability::Bounded;
use haul_core::transfer::op::{
    AmendItem, BundleFile, BundleWrite, CommitItem, Existing, Inode, LinkItem, Look, LookupItem, Publish,
    Seen, SinkDone, SinkFile, SinkOp, SourceDone, SourceOp,
};
use haul_core::transfer::source::{Lies, OnChange};
use haul_core::wire::{Agreed, Failure, SinkOptions, SourceRoot};

use super::model::{FTP_LIKE, Lying, MEMORY, Shelf, ShelfPair};
use super::null::{NULL, ZERO};
use super::place::{Destination, Place, Scheme, Sources};
use super::source::wall_clock;
use super::store::delegated::{DelegatedEnd, DelegatedMove};
use super::store::{
    Capabilities, Coming, DelegatedEntry, DelegatedPair, HeldJob, Marker, Parts, Publishing, Reading,
    SinkStore, SourceStore, Waiting, WriteOrder, Writing,
};
use super::walk::WalkItem;
use super::{Payload, SinkCompletion, SinkEngine, SinkJob, SourceCompletion, SourceJob, stores};
use crate::descriptors::budget;
use crate::options::{DataChannel, LayoutChoice, StorageOptions};
use haul_base::buffer::Pool;
use haul_base::digest;
use haul_base::meter::Meter;
use haul_base::stop::Stop;

pub(crate) const META: Meta =
    Meta { mode: 0o640, uid: 0, gid: 0, mtime: Timestamp { secs: 1_600_000_000, nanos: 5_000 } };
pub(crate) const OBJECT: usize = 64 * 1024;
/// Everything is answered long before this.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) fn name(text: &[u8]) -> Name {
    Name::new(text).expect("a legal name")
}

pub(crate) fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut out);
    out
}

/// A shelf that no other test has.
fn fresh(scheme: &'static Scheme) -> Place {
    static NEXT: AtomicU64 = AtomicU64::new(1000);
    Place::sized(scheme, NEXT.fetch_add(1, Ordering::SeqCst))
}

/// Nobody waits for a job that another run has.
pub(crate) struct Impatient;

impl Waiting for Impatient {
    fn say(&self, _: &str) {}
    fn stopped(&self) -> bool {
        true
    }
}

/// A destination, and what stands there.
pub(crate) struct Sink {
    pub(crate) place: Place,
    pub(crate) read: Box<dyn Fn(&[u8]) -> Option<Vec<u8>>>,
    /// What is published can be read.
    pub(crate) keeps: bool,
    /// How the store is opened; `None`: as its scheme has it.
    pub(crate) open: Option<Box<dyn Fn() -> Box<dyn SinkStore>>>,
    pub(crate) _dir: Option<tempfile::TempDir>,
}

impl Sink {
    fn directory() -> Sink {
        let dir = tempfile::tempdir().expect("tempdir");
        let root = dir.path().to_owned();
        let place = Place::file(root.join("dst/").into_os_string().into_encoded_bytes());
        let read = move |path: &[u8]| fs::read(root.join("dst").join(of_bytes(path))).ok();
        Sink { place, read: Box::new(read), keeps: true, open: None, _dir: Some(dir) }
    }

    fn shelf(scheme: &'static Scheme) -> Sink {
        let place = fresh(scheme);
        let shelf = Shelf::at(&place);
        Sink { place, read: Box::new(move |path| shelf.file(path)), keeps: true, open: None, _dir: None }
    }

    #[cfg(feature = "volume")]
    pub(crate) fn in_volume(volume: &Arc<super::vol::test_volume::TestVolume>, typed: &'static [u8]) -> Sink {
        let (seen, opened) = (volume.clone(), volume.clone());
        Sink {
            place: Place::file(typed),
            read: Box::new(move |path| seen.read(&[typed, path].concat())),
            keeps: true,
            open: Some(Box::new(move || opened.sink(typed))),
            _dir: None,
        }
    }

    fn nowhere() -> Sink {
        Sink { place: Place::root(&NULL), read: Box::new(|_| None), keeps: false, open: None, _dir: None }
    }

    fn store(&self) -> Box<dyn SinkStore> {
        if let Some(open) = &self.open {
            return open();
        }
        let (home, state, patience, stop) = (None, None, None, Stop::never());
        let ssh = (&[][..], false);
        let data_channel = Default::default();
        let retry = Arc::new(Bounded);
        let (place, parts) = (&self.place, None);
        let (volumes, links) = (None, Default::default());
        let to = Destination {
            place,
            home,
            state,
            parts,
            ssh,
            data_channel,
            volumes,
            patience,
            retry,
            links,
            stop,
        };
        stores::sink(&to).expect("a store")
    }

    fn can(&self) -> Capabilities {
        self.store().capabilities()
    }

    pub(crate) fn try_begin(&self) -> Result<Run, Failure> {
        self.try_begin_with(None)
    }

    /// A run; with a part, that of a file which is written in place.
    fn try_begin_with(&self, part: Option<Part>) -> Result<Run, Failure> {
        let coming = Coming {
            roots: &[SourceRoot::Contents { of: None, meta: META }],
            policy: SinkOptions::PLAIN,
            lease: Holder::ALONE,
            what: "a test",
            part,
            in_place: part.is_some(),
            in_place_asked: part.is_some(),
            sources_here: &[],
            tells_root: false,
        };
        let claimed = self.store().claim(&coming, &Impatient)?;
        let mut job = claimed.job;
        let (post, posted) = unbounded();
        let engine = job.start(Writing {
            agreed: Agreed::plain(1000),
            policy: SinkOptions::PLAIN,
            clones: None,
            writers: 2,
            storage: StorageOptions::default(),
            layout: LayoutChoice::Auto,
            memory: 1 << 26,
            budget: budget(),
            meter: Arc::new(Meter::default()),
            post: Arc::new(move |SinkCompletion { done }| drop(post.send(done))),
        })?;
        let (resume, resumed) = (claimed.resume, claimed.resumed);
        let (pool, gone) = (Pool::new(1 << 26), Vec::new());
        Ok(Run { engine, job, posted, pool, resume, resumed, gone })
    }

    pub(crate) fn begin(&self) -> Run {
        self.try_begin().unwrap_or_else(|failure| panic!("{}", failure.text))
    }
}

fn of_bytes(path: &[u8]) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(path))
}

/// A job of a sink, and what its engine posts.
pub(crate) struct Run {
    pub(crate) engine: Box<dyn SinkEngine>,
    pub(crate) job: Box<dyn HeldJob>,
    posted: Receiver<SinkDone>,
    pool: Pool,
    resume: Resume,
    resumed: bool,
    /// How often the destination was said to be gone, and why.
    pub(crate) gone: Vec<Failure>,
}

impl Run {
    pub(crate) fn submit(&mut self, op: SinkOp, payload: Option<&[u8]>) {
        let buffer = payload.map(|payload| {
            let mut buffer = self.pool.take(payload.len()).expect("a buffer");
            buffer.as_mut_slice()[..payload.len()].copy_from_slice(payload);
            Payload::Own(buffer)
        });
        self.engine.submit(SinkJob { op, buffer });
    }

    pub(crate) fn run(&mut self, op: SinkOp, payload: Option<&[u8]>) -> SinkDone {
        self.submit(op, payload);
        loop {
            match self.posted.recv_timeout(PATIENCE).expect("an answer") {
                SinkDone::Gone { failure } => self.gone.push(failure),
                done => return done,
            }
        }
    }

    pub(crate) fn write(&mut self, file: &SinkFile, offset: usize, part: &[u8]) -> Result<(), Failure> {
        let (offset, len, buffer) = (offset as u64, part.len() as u32, BufferId(0));
        let op = SinkOp::Write { file: file.clone(), offset, len, buffer, start: 0 };
        match self.run(op, Some(part)) {
            SinkDone::Write { id, result, .. } if id == file.id => result,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn commit(
        &mut self,
        file: &SinkFile,
        found: Option<Seen>,
        no_replace: bool,
    ) -> Result<(), Failure> {
        let publish =
            Publish { file: file.clone(), meta: META, owner: false, found, no_replace, verify: None };
        let items = vec![CommitItem { id: file.id, publish: Some(publish) }];
        match self.run(SinkOp::Commit { durable: true, items }, None) {
            SinkDone::Commit { mut results, .. } => results.remove(0).1,
            other => panic!("{other:?}"),
        }
    }

    /// Ends the engine and the job, and leaves the journal as it is.
    pub(crate) fn end(mut self) -> Receiver<SinkDone> {
        assert_eq!(self.engine.end(), Vec::<String>::new());
        self.job.leave();
        self.posted
    }
}

pub(crate) fn file(id: u64, parent: DirId, text: &[u8], size: usize) -> SinkFile {
    SinkFile { id: FileId(id), parent, name: name(text), number: id, size: size as u64, map: None }
}

/// All that a sink must keep.
fn sink_conforms(make: &dyn Fn() -> Sink) {
    published_whole_or_not(&make());
    parts_keep_the_rest(&make());
    order_is_kept_or_refused(&make());
    names_and_directories(&make());
    failures_have_names(&make());
    one_claim_at_a_time(&make());
    journals_last(&make());
    all_is_answered_once(&make());
}

/// Nothing is seen of a file under its name before it is published, unless the store says so; then all of it;
/// of one that is given up, nothing.
fn published_whole_or_not(sink: &Sink) {
    let mut run = sink.begin();
    let data = bytes(1, 2 * OBJECT + 77);
    let whole = file(1, DirId::ROOT, b"whole", data.len());
    run.write(&whole, 0, &data[..OBJECT]).expect("written");
    let seen = (sink.read)(b"whole");
    assert!(seen.is_none() || sink.can().publishing == Publishing::OnClose);
    run.write(&whole, OBJECT, &data[OBJECT..]).expect("written");
    run.commit(&whole, None, false).expect("published");
    let half = file(2, DirId::ROOT, b"half", data.len());
    run.write(&half, 0, &data[..OBJECT]).expect("written");
    assert!(matches!(run.run(SinkOp::Discard { id: half.id }, None), SinkDone::Discard { .. }));
    run.end();
    assert_eq!((sink.read)(b"whole"), sink.keeps.then_some(data));
    assert_eq!((sink.read)(b"half"), None);
}

/// A part goes to its place in what stands there, and is there when it was published; a store that cannot do
/// that says so.
fn parts_keep_the_rest(sink: &Sink) {
    if !sink.can().in_place {
        return;
    }
    let mut run = sink.begin();
    let old = bytes(3, 2 * OBJECT + 5);
    let whole = file(1, DirId::ROOT, b"whole", old.len());
    run.write(&whole, 0, &old[..OBJECT]).expect("written");
    run.write(&whole, OBJECT, &old[OBJECT..]).expect("written");
    run.commit(&whole, None, false).expect("published");
    run.end();
    let (at, new) = (OBJECT - 3, bytes(4, 7));
    let part = Part { source: 11, len: Some(7), sink: Some(at as u64) };
    let mut run = sink.try_begin_with(Some(part)).unwrap_or_else(|failure| panic!("{}", failure.text));
    let part = file(1, DirId::ROOT, b"whole", new.len());
    run.write(&part, 0, &new).expect("written");
    run.commit(&part, None, false).expect("published");
    run.end();
    let want = [&old[..at], &new, &old[at + 7..]].concat();
    assert!((sink.read)(b"whole").expect("a file") == want);
}

/// Bytes come in any order where the store says so; else what is out of turn is refused by the file's name,
/// and nothing is published.
fn order_is_kept_or_refused(sink: &Sink) {
    let mut run = sink.begin();
    let data = bytes(2, 2 * OBJECT);
    let turned = file(1, DirId::ROOT, b"turned", data.len());
    let second = run.write(&turned, OBJECT, &data[OBJECT..]);
    match sink.can().write_order {
        WriteOrder::Any => {
            second.expect("any order");
            run.write(&turned, 0, &data[..OBJECT]).expect("any order");
            run.commit(&turned, None, false).expect("published");
        }
        WriteOrder::Ascending => {
            let refused = second.expect_err("only ascending");
            assert!(refused.text.contains("turned"), "{}", refused.text);
            run.run(SinkOp::Discard { id: turned.id }, None);
        }
    }
    run.end();
    let stands = sink.keeps && sink.can().write_order == WriteOrder::Any;
    assert_eq!((sink.read)(b"turned"), stands.then_some(data));
}

/// Directories are made with those above them, and names are bytes, up to the length that the store says.
fn names_and_directories(sink: &Sink) {
    let mut run = sink.begin();
    run.engine.register(DirId(1), DirId::ROOT, name(b"above"));
    run.engine.register(DirId(2), DirId(1), name(b"below"));
    let made = run.run(SinkOp::MakeDirs { dirs: vec![DirId(2)] }, None);
    assert_eq!(made, SinkDone::MakeDirs { results: vec![(DirId(2), Ok(()))] });
    let long = vec![b'n'; sink.can().name_len_max];
    let first: &[u8] = if sink.can().line_ends { b"\xff \n'$" } else { b"\xff '$" };
    let odd: [&[u8]; 3] = [first, b"-rf", &long];
    for (n, text) in (10..).zip(odd) {
        let one = file(n, DirId(2), text, 3);
        let (buffer, items) = (BufferId(0), vec![BundleWrite { file: one.clone(), start: 0, mode: 0o600 }]);
        let done = run.run(SinkOp::WriteBundle { buffer, items, more: false }, Some(b"abc"));
        let SinkDone::WriteBundle { results, .. } = done else { panic!("{done:?}") };
        assert_eq!(results, [(one.id, Ok(()))]);
        run.commit(&one, None, false).expect("published");
    }
    let dirs = vec![(DirId(2), META), (DirId(1), META)];
    let done = run.run(SinkOp::FinishDirs { durable: true, dirs }, None);
    let SinkDone::FinishDirs { results } = done else { panic!("{done:?}") };
    assert!(results.iter().all(|(_, result)| result.is_ok()), "{results:?}");
    run.end();
    for text in odd {
        let path = [b"above/below/".as_slice(), text].concat();
        assert_eq!((sink.read)(&path), sink.keeps.then(|| b"abc".to_vec()));
    }
}

/// What cannot be done is refused by name, and what stood there stays: a name that is taken, a link where
/// there are none.
fn failures_have_names(sink: &Sink) {
    if !sink.keeps {
        return;
    }
    let mut run = sink.begin();
    for id in [1, 2] {
        let taken = file(id, DirId::ROOT, b"taken", 3);
        run.write(&taken, 0, if id == 1 { b"old" } else { b"new" }).expect("written");
        let result = run.commit(&taken, None, true);
        match (id, sink.can().publishing) {
            (1, _) | (_, Publishing::OnClose) => result.expect("published"),
            _ => {
                let refused = result.expect_err("taken");
                assert!(refused.text.contains("taken"), "{}", refused.text);
                run.run(SinkOp::Discard { id: taken.id }, None);
                assert_eq!((sink.read)(b"taken").as_deref(), Some(b"old".as_slice()));
            }
        }
    }
    let result = run.run(SinkOp::MakeLinks { items: vec![link(3)] }, None);
    let SinkDone::MakeLinks { results } = result else { panic!("{result:?}") };
    match (&results[0].1, sink.can().links) {
        (Ok(_), true) => {}
        (Err(refused), false) => assert!(refused.text.contains("link"), "{}", refused.text),
        (result, can) => panic!("{result:?}, though it says {can}"),
    }
    run.end();
}

fn link(id: u64) -> LinkItem {
    let target: &[u8] = b"to";
    LinkItem {
        file: file(id, DirId::ROOT, b"link", 0),
        target: target.into(),
        node: None,
        meta: META,
        owner: false,
        no_replace: false,
        force: false,
    }
}

/// A job has one run at a time, and can be had again when that is over.
fn one_claim_at_a_time(sink: &Sink) {
    let first = sink.begin();
    if sink.keeps && sink.can().exclusive {
        assert!(sink.try_begin().is_err(), "two runs have one job");
    }
    first.end();
    sink.begin().end();
}

/// What was appended to a journal is there for the next run, and nothing once it was removed.
fn journals_last(sink: &Sink) {
    let (parent, path, mtime) = (PathKey([6; 16]), PathKey([7; 16]), META.mtime);
    let mark = DoneMark::new(parent, &Fingerprint { size: 5, mtime, version: Version::NONE }, [3; 32]);
    let mut first = sink.begin();
    assert!(!first.resumed);
    let mut record = Vec::new();
    first.resume.log.append(&Record::Done { path, mark }, &mut record);
    let done = first.run(SinkOp::Journal { bytes: record, durable: true }, None);
    assert_eq!(done, SinkDone::Journal { result: Ok(()) });
    first.end();
    let mut second = sink.begin();
    assert_eq!(second.resumed, sink.can().journal);
    assert_eq!(second.resume.replayed.done.get(&path), sink.can().journal.then_some(&mark));
    assert_eq!(second.run(SinkOp::RemoveJournal, None), SinkDone::RemoveJournal { result: Ok(()) });
    second.end();
    let third = sink.begin();
    assert!(!third.resumed && third.resume.replayed.done.is_empty());
    third.end();
}

/// Every operation is answered once, whether it could be done or not.
fn all_is_answered_once(sink: &Sink) {
    let mut run = sink.begin();
    run.engine.register(DirId(1), DirId::ROOT, name(b"dir"));
    let one = file(1, DirId::ROOT, b"one", 6);
    let (buffer, kind) = (BufferId(0), DigestKind::Blake3);
    let inode = Inode { dev: 0, ino: 0 };
    let found = Seen { inode, size: 0, mtime: META.mtime, ctime: META.mtime, links: 1 };
    let look = LookupItem {
        file: one.clone(),
        fingerprint: Fingerprint { size: one.size, mtime: META.mtime, version: Version::NONE },
        meta: META,
        adopt: Some(4),
    };
    let bundled = BundleWrite { file: file(2, DirId::ROOT, b"two", 6), start: 0, mode: 0o600 };
    let amended = AmendItem { file: file(3, DirId::ROOT, b"none", 6), meta: META, owner: false, found };
    let ops = [
        (SinkOp::MakeDirs { dirs: vec![DirId(1)] }, false),
        (SinkOp::Lookup { items: vec![look] }, false),
        (SinkOp::Create { file: one.clone(), striping: None }, false),
        (SinkOp::Write { file: one.clone(), offset: 0, len: 6, buffer, start: 0 }, true),
        (SinkOp::WriteBundle { buffer, items: vec![bundled], more: false }, true),
        (SinkOp::Check { file: one.clone(), kind, ranges: vec![(0, 6)] }, false),
        (SinkOp::Commit { durable: true, items: vec![CommitItem { id: one.id, publish: None }] }, false),
        (SinkOp::Amend { durable: true, items: vec![amended] }, false),
        (SinkOp::MakeLinks { items: vec![link(4)] }, false),
        (SinkOp::SyncDirs { dirs: vec![DirId(1)] }, false),
        (SinkOp::FinishDirs { durable: true, dirs: vec![(DirId(1), META)] }, false),
        (SinkOp::Discard { id: one.id }, false),
        (SinkOp::Discard { id: FileId(2) }, false),
        (SinkOp::Journal { bytes: Vec::new(), durable: true }, false),
        (SinkOp::RemoveJournal, false),
    ];
    for (op, carries) in ops {
        let what = format!("{op:?}");
        let done = run.run(op, carries.then_some(b"abcdef"));
        let kind = |text: &str| text.split([' ', '{']).next().unwrap_or_default().to_owned();
        assert_eq!(kind(&format!("{done:?}")), kind(&what));
        if let SinkDone::Lookup { results } = &done {
            assert_eq!(results[0].1.as_ref().expect("looked").existing, Existing::Nothing);
        }
    }
    let pool = run.pool.clone();
    assert!(run.end().try_recv().is_err(), "one was answered twice");
    assert_eq!(pool.in_use().0, 0, "a buffer was kept");
}

/// A source, and what lies there.
struct Source {
    place: Place,
    files: Vec<(Vec<u8>, Vec<u8>)>,
    _dir: Option<tempfile::TempDir>,
}

/// All that a source must keep: each entry is walked once and known by its path, every range and every small
/// file reads as it is, with its digest, and every operation is answered once.
fn source_conforms(source: &Source) {
    source_conforms_with(source, stores::source);
}

fn source_conforms_with(
    source: &Source,
    open: impl Fn(&Sources<'_>) -> Result<Box<dyn SourceStore>, Failure>,
) {
    let places = [source.place.clone()];
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
    let store: Box<dyn SourceStore> = open(&sources).unwrap_or_else(|failure| panic!("{}", failure.text));
    assert_eq!(store.roots().expect("roots").len(), 1);
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
        changed: OnChange::Fail,
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
    let mut parts = parts.unwrap_or_else(|failure| panic!("{}", failure.text));
    let mut items: Vec<WalkItem> = Vec::new();
    while !matches!(items.last(), Some(WalkItem::End(_))) {
        items.extend(parts.walk.items().recv_timeout(PATIENCE).expect("the walk ends"));
    }
    let (mut ids, mut found) = (Vec::new(), Vec::new());
    for item in &items {
        if let WalkItem::Entry(entry) = item
            && let EntryKind::File { fingerprint, .. } = entry.kind
        {
            let path = parts.names.path_of(entry.id);
            assert!(path.ends_with(entry.name.as_bytes()));
            ids.push((entry.id, path.clone(), fingerprint.size as usize));
            found.push(path);
        }
    }
    found.sort();
    let mut expected: Vec<_> = source.files.iter().map(|(path, _)| path.clone()).collect();
    expected.sort();
    assert_eq!(found, expected);
    let (pool, kind) = (Pool::new(1 << 26), DigestKind::Blake3);
    let engine = &mut parts.engine;
    let mut ask = |op, len: Option<usize>| {
        let buffer = len.map(|len| pool.take(len).expect("a buffer"));
        engine.submit(SourceJob { op, buffer });
        let SourceCompletion { done, buffer } = posted.recv_timeout(PATIENCE).expect("an answer");
        (done, buffer.map(|buffer| buffer.as_slice().to_vec()))
    };
    for (id, path, size) in ids {
        let data = &source.files.iter().find(|(name, _)| *name == path).expect("known").1;
        assert_eq!(data.len(), size);
        let generation = Generation(0);
        let target = match parts.names.lies(id) {
            Lies::At(target) => target,
            Lies::Ask => TargetId(0),
        };
        for offset in (0..size).step_by(OBJECT) {
            let len = OBJECT.min(size - offset);
            let (tail, whole) = (offset + len == size, len == size);
            let (offset64, len32) = (offset as u64, len as u32);
            let op = SourceOp::Read { id, generation, offset: offset64, len: len32, tail, whole, target };
            let (done, buffer) = ask(op, Some(len));
            let SourceDone::Read { result, .. } = done else { panic!("{done:?}") };
            let part = &data[offset..offset + len];
            assert_eq!(&buffer.expect("filled")[..len], part);
            let cvs = match whole {
                true => vec![digest::root(kind, part)],
                false => digest::chaining_values(kind, offset64, part, tail),
            };
            assert_eq!(result.expect("read").cvs, cvs);
        }
        let bundle = BundleFile { id, generation, size: size as u32 };
        let (done, _) = ask(SourceOp::ReadBundle { files: vec![bundle] }, Some(size.max(1)));
        let SourceDone::ReadBundle { items, .. } = done else { panic!("{done:?}") };
        assert_eq!(items[0].1.as_ref().expect("read").root, digest::root(kind, data));
        let (done, _) = ask(SourceOp::Look { id, generation }, None);
        assert_eq!(done, SourceDone::Look { id, generation, result: Ok(Look::Same) });
    }
    assert!(posted.try_recv().is_err(), "one was answered twice");
}

fn some_files() -> Vec<(Vec<u8>, Vec<u8>)> {
    vec![
        (b"big".to_vec(), bytes(7, 3 * OBJECT + 100)),
        (b"dir/\xfe odd".to_vec(), bytes(8, 1000)),
        (b"dir/empty".to_vec(), Vec::new()),
    ]
}

#[test]
fn directories_conform() {
    sink_conforms(&Sink::directory);
    let dir = tempfile::tempdir().expect("tempdir");
    let files = some_files();
    fs::create_dir(dir.path().join("dir")).expect("made");
    for (path, data) in &files {
        fs::write(dir.path().join(of_bytes(path)), data).expect("written");
    }
    let place = Place::file(dir.path().join("").into_os_string().into_encoded_bytes());
    source_conforms(&Source { place, files, _dir: Some(dir) });
}

/// A server over a directory of this machine, and its place.
#[cfg(feature = "ftp")]
fn server(dir: &Path) -> (super::ftp::test_server::TestServer, Place) {
    let server = super::ftp::test_server::TestServer::start();
    let word = format!("ftp://127.0.0.1:{}{}/", server.port, dir.display());
    let place = Place::parse(word.as_bytes()).expect("a place");
    (server, place)
}

#[cfg(feature = "ftp")]
#[test]
fn servers_conform() {
    sink_conforms(&|| {
        let dir = tempfile::tempdir().expect("tempdir");
        let root = dir.path().join("dst");
        let (server, place) = server(&root);
        // It serves as long as somebody may read.
        let read = move |path: &[u8]| {
            let _ = &server;
            fs::read(root.join(of_bytes(path))).ok()
        };
        Sink { place, read: Box::new(read), keeps: true, open: None, _dir: Some(dir) }
    });
    let dir = tempfile::tempdir().expect("tempdir");
    let files = some_files();
    fs::create_dir(dir.path().join("dir")).expect("made");
    for (path, data) in &files {
        let path = dir.path().join(of_bytes(path));
        fs::write(&path, data).expect("written");
        let then = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_500_000_000);
        fs::File::open(&path).and_then(|file| file.set_modified(then)).expect("aged");
    }
    let (_server, place) = server(dir.path());
    source_conforms(&Source { place, files, _dir: Some(dir) });
}

#[cfg(feature = "volume")]
#[test]
fn volumes_conform() {
    use super::vol::test_volume::TestVolume;
    sink_conforms(&|| Sink::in_volume(&Arc::new(TestVolume::start(3)), b"/dst/"));
    let (volume, files) = (TestVolume::start(3), some_files());
    files.iter().for_each(|(path, data)| volume.put(&[b"/src/", &path[..]].concat(), data));
    let source = Source { place: Place::file("/src/"), files, _dir: None };
    source_conforms_with(&source, |sources| volume.source(sources));
}

#[test]
fn null_and_zero_conform() {
    sink_conforms(&Sink::nowhere);
    for scheme in [&NULL, &ZERO] {
        let size = 2 * OBJECT + 5;
        let files = vec![(scheme.name.as_bytes().to_vec(), vec![0; size])];
        source_conforms(&Source { place: Place::sized(scheme, size as u64), files, _dir: None });
    }
}

#[test]
fn shelves_in_memory_conform() {
    for scheme in [&MEMORY, &FTP_LIKE] {
        sink_conforms(&|| Sink::shelf(scheme));
        let place = fresh(scheme);
        let (shelf, files) = (Shelf::at(&place), some_files());
        shelf.put(b"dir", Lying::Dir(META));
        files.iter().for_each(|(path, data)| shelf.put(path, Lying::File(data.clone(), META)));
        source_conforms(&Source { place, files, _dir: None });
    }
}

/// Goal: a store behind a network shows it and can be told how many connections to use; others show none.
#[test]
fn stores_behind_a_network_show_it() {
    for (sink, shows) in
        [(Sink::shelf(&FTP_LIKE), true), (Sink::shelf(&MEMORY), false), (Sink::nowhere(), false)]
    {
        let mut run = sink.begin();
        run.write(&file(1, DirId::ROOT, b"x", 4), 0, b"abcd").expect("written");
        let network = run.engine.network();
        assert_eq!(network.is_some(), shows);
        if let Some(network) = network {
            assert_eq!(network.look().bytes, 4);
            assert_eq!((network.set_connections(3), network.look().connections), (3, 3));
        }
        run.end();
    }
}

/// Goal: a copy is refused a store that cannot take what a copy sends, and no other.
#[test]
fn what_a_store_lacks_is_said() {
    let sinks = [Sink::directory(), Sink::nowhere(), Sink::shelf(&MEMORY), Sink::shelf(&FTP_LIKE)];
    assert_eq!(sinks.map(|sink| sink.can().lacks()), [None; 4]);
    let one = Capabilities { many_open: false, ..Capabilities::POSIX };
    let parts = Parts { len_min: 1, len_max: 2, count_max: 3 };
    let whole = Capabilities { ranges: false, ..Capabilities::POSIX };
    let ascending = Capabilities { parts: Some(parts), ..Sink::shelf(&FTP_LIKE).can() };
    assert!([one, whole, ascending].iter().all(|can| can.lacks().is_some()));
}

/// Goal: a pair that moves data itself tells how far it is, and how each entry ended, by name where it
/// failed.
#[test]
fn pairs_tell_how_far_they_are() {
    let shelves = [0, 1].map(|_| Shelf::at(&fresh(&MEMORY)));
    let [from, to] = shelves;
    from.put(b"there", Lying::File(b"abc".to_vec(), META));
    let (post, posted) = unbounded();
    let post = Arc::new(move |marker| drop(post.send(marker)));
    let mut pair: Box<dyn DelegatedPair> = Box::new(ShelfPair { from, to: to.clone(), post });
    let entry = |id, from: &[u8]| DelegatedEntry {
        id: FileId(id),
        from: from.to_vec(),
        to: b"new".to_vec(),
        size: 3,
        meta: Meta { mode: 0o644, uid: u32::MAX, gid: u32::MAX, mtime: Timestamp { secs: 1, nanos: 0 } },
    };
    pair.submit(entry(1, b"there"));
    pair.submit(entry(2, b"missing"));
    let markers: Vec<Marker> = posted.try_iter().collect();
    let moved = DelegatedEnd::Moved(DelegatedMove { size: 3, moved: 3, ..DelegatedMove::default() });
    assert_eq!(
        markers[..2],
        [
            Marker::Moved { id: FileId(1), len: 3, held: 0 },
            Marker::Ended { id: FileId(1), result: Ok(moved) }
        ]
    );
    assert!(
        matches!(&markers[2], Marker::Ended { result: Err(failure), .. } if failure.text.contains("missing"))
    );
    assert_eq!((markers.len(), to.file(b"new")), (3, Some(b"abc".to_vec())));
}
