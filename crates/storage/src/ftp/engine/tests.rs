//! Tests of the engine over a server of ours.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, SystemTime};

use crossbeam_channel::{Receiver, unbounded};
use haul_base::buffer::Pool;
use haul_base::meter::Meter;
use haul_base::stop::Stop;
use haul_core::entry::EntryKind;
use haul_core::ids::{FileId, Generation, TargetId};
use haul_core::reliability::Bounded;
use haul_core::transfer::op::{BundleFile, SourceDone, SourceOp};
use haul_core::transfer::source::OnChange;
use haul_core::wire::Agreed;

use crate::descriptors::budget;
use crate::ftp::SILENT_AFTER;
use crate::ftp::test_server::TestServer;
use crate::options::{DataChannel, StorageOptions};
use crate::place::{Place, Sources};
use crate::source::wall_clock;
use crate::store::{Reading, SourceParts};
use crate::walk::{BATCH_ITEMS_MAX, BATCHES_MAX, Walk, WalkItem};
use crate::{SourceCompletion, SourceJob, stores};

const OBJECT: u32 = 64 * 1024;
const LEN: usize = 1000;
/// Everything is answered long before this, and a session that stands still is waited for for longer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Files in a directory, more than wait for whoever takes what a walk finds.
const MANY: usize = (BATCHES_MAX + 4) * BATCH_ITEMS_MAX;

/// Writes a file that was changed long ago.
fn old(path: &Path, content: &[u8]) {
    fs::write(path, content).expect("written");
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_500_000_000);
    fs::File::open(path).and_then(|file| file.set_modified(then)).expect("aged");
}

/// A source of two sessions at a server, begun; what it answers.
fn begun(server: &TestServer, dir: &Path) -> (SourceParts, Receiver<SourceCompletion>) {
    let word = format!("ftp://127.0.0.1:{}{}/", server.port, dir.display());
    let places = [Place::parse(word.as_bytes()).expect("a place")];
    let sources = Sources {
        places: &places,
        recursive: true,
        part: None,
        home: None,
        replicas: &[],
        trust: false,
        retry: Arc::new(Bounded),
        ssh: (&[], false),
        patience: Some(Duration::from_secs(3600)),
        data_channel: DataChannel::default(),
        volumes: None,
        links: Default::default(),
        stop: Stop::never(),
    };
    let (post, posted) = unbounded();
    let parts = stores::source(&sources).expect("a store").start(Reading {
        picks: None,
        originals: None,
        agreed: Agreed::plain(1000),
        readers: 2,
        storage: StorageOptions::default(),
        // Two sessions.
        memory: 4 * u64::from(OBJECT),
        object_size: OBJECT,
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
    (parts.unwrap_or_else(|failure| panic!("{}", failure.text)), posted)
}

/// What a walk finds up to its end.
fn walked(walk: &Walk) -> Vec<WalkItem> {
    let mut items: Vec<WalkItem> = Vec::new();
    while !matches!(items.last(), Some(WalkItem::End(_))) {
        items.extend(walk.items().recv_timeout(PATIENCE).expect("the walk ends"));
    }
    items
}

fn files(items: &[WalkItem]) -> Vec<FileId> {
    let file = |item: &WalkItem| match item {
        WalkItem::Entry(entry) if matches!(entry.kind, EntryKind::File { .. }) => Some(entry.id),
        _ => None,
    };
    items.iter().filter_map(file).collect()
}

/// Goal: small files are not given to a session that stands still while another one is there, also where
/// both have said nothing for long.
/// Method: two sessions read a file each; the first one stands still for longer than a session may be silent;
/// then file after file is asked for.
#[test]
fn readers_that_stand_still_are_given_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    for n in 0..30 {
        old(&dir.path().join(format!("f{n:02}")), &[n; LEN]);
    }
    let server = TestServer::start();
    let (mut parts, posted) = begun(&server, dir.path());
    let mut files = files(&walked(&parts.walk));
    let (pool, generation) = (Pool::new(1 << 20), Generation(0));
    let engine = &mut parts.engine;
    let mut ask = |op| {
        engine.submit(SourceJob { op, buffer: Some(pool.take(LEN).expect("a buffer")) });
        posted.recv_timeout(PATIENCE).expect("it is answered").done
    };
    for (n, id) in files.drain(..2).enumerate() {
        let target = TargetId(u16::try_from(n).expect("small"));
        let (offset, len) = (0, LEN as u32);
        let read = SourceOp::Read { id, generation, offset, len, tail: true, whole: true, target };
        let done = ask(read);
        assert!(matches!(done, SourceDone::Read { result: Ok(_), .. }), "{done:?}");
        if n == 0 {
            let path = dir.path().join(std::ffi::OsStr::from_bytes(&parts.names.path_of(id)));
            server.freeze(&path);
        }
    }
    sleep(SILENT_AFTER);
    for id in files {
        let bundle = BundleFile { id, generation, size: LEN as u32 };
        let done = ask(SourceOp::ReadBundle { files: vec![bundle] });
        assert!(matches!(&done, SourceDone::ReadBundle { items, .. } if items[0].1.is_ok()), "{done:?}");
    }
}

/// Goal: a walk and those that read have the only session that a server takes in turns, and neither waits for
/// the other without an end: who reads is given it when nobody takes what the walk finds, and the walk when
/// there is nothing to read.
/// Method: two directories of more files than wait for whoever takes them. Some of the first are asked for
/// while nothing of the walk is taken, some of both behind it.
#[test]
fn a_walk_and_who_reads_have_one_session_in_turns() {
    let dir = tempfile::tempdir().expect("a directory");
    for name in ["a", "b"] {
        fs::create_dir(dir.path().join(name)).expect("made");
        (0..MANY).for_each(|n| {
            let path = format!("{name}/{n:06}");
            old(&dir.path().join(&path), path.as_bytes());
        });
    }
    let server = TestServer::taking(1);
    let (mut parts, posted) = begun(&server, dir.path());
    let (pool, generation) = (Pool::new(1 << 20), Generation(0));
    let (engine, names) = (&mut parts.engine, parts.names.clone());
    // One for each session, both at a time.
    let mut read = |ids: [FileId; 2]| {
        for (target, id) in ids.into_iter().enumerate() {
            let target = TargetId(u16::try_from(target).expect("small"));
            let op = SourceOp::Read { id, generation, offset: 0, len: 8, tail: true, whole: true, target };
            engine.submit(SourceJob { op, buffer: Some(pool.take(8).expect("a buffer")) });
        }
        for _ in ids {
            let SourceCompletion { done, buffer } = posted.recv_timeout(PATIENCE).expect("it is answered");
            let SourceDone::Read { id, result: Ok(_), .. } = done else { panic!("{done:?}") };
            // Each holds its path.
            assert_eq!(buffer.expect("as given").as_slice(), names.path_of(id));
        }
    };
    let mut all = Vec::new();
    while all.len() < 2 {
        all.extend(files(&parts.walk.items().recv_timeout(PATIENCE).expect("it begins")));
    }
    read([all[0], all[1]]);
    all.extend(files(&walked(&parts.walk)));
    assert_eq!(all.len(), 2 * MANY);
    read([all[2], all[2 * MANY - 1]]);
}
