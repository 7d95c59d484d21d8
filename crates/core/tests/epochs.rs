//! Epochs of the sink: what holds up what.
//!
//! In: announcements and frames, as a source sends them; completions, kept back as the test wants. Out: what
//! is synced, and of what the source hears that it is durable.

use std::time::Duration;

use haul_core::change::Change;
use haul_core::digest::{DigestKind, SubtreeSet, subtrees};
use haul_core::entry::{EntryKind, Extras, Fingerprint, Meta, Name, Timestamp, Version};
use haul_core::ids::{BufferId, DirId, FileId, Generation, Holder, SinkTarget, StreamId, Time};
use haul_core::journal::{
    DirMark, Partial, PathKey, Record, Replay, Replayed, Resume, RootId, WIDENED_LEN_MAX,
    WIDENED_PATH_LEN_MAX, Widened, compact,
};
use haul_core::transfer::SessionEnd;
use haul_core::transfer::op::{CommitItem, SinkDone, SinkOp};
use haul_core::transfer::sink::{Sink, SinkAction, SinkConfig};
use haul_core::wire::{
    Agreed, Announced, DataEntry, DataHeader, Extent, Failure, FailureKind, Message, SinkOptions,
};

const OBJECT: u64 = 4 << 20;
const SMALL: u64 = 1000;
/// Small files that a frame brings.
const BUNDLE: u64 = 100;

/// A sink, and what it asked for that is not done.
struct Bench {
    sink: Sink,
    now: Time,
    commits: Vec<Vec<CommitItem>>,
    durable: Vec<Extent>,
    done: Vec<FileId>,
    end: Option<SessionEnd>,
    buffers: u32,
    /// Payload of large files that was written.
    written: u64,
    /// Files of bundles that were written, and where each began.
    bundled: Vec<(FileId, u32)>,
    freed: Vec<BufferId>,
    journal: Vec<u8>,
    refused: Vec<u64>,
    /// What was asked for again.
    resent: Vec<Extent>,
    /// Writes of objects are not told, and lie here.
    holds_writes: bool,
    held_writes: Vec<SinkDone>,
}

/// The way to the other end is lost.
fn gone(text: &str) -> Failure {
    Failure { kind: FailureKind::Network, errno: 0, text: text.into() }
}

fn entry(id: u64, size: u64, offset: u64, sealed: bool) -> DataEntry {
    let len = OBJECT.min(size - offset);
    let tail = offset + len == size;
    let (root, digest, generation) = (len == size, DigestKind::Blake3, Generation(0));
    let cvs = if root { vec![[7; 32]] } else { subtrees(offset, len, tail).map(|_| [7; 32]).collect() };
    let (id, len) = (FileId(id), len as u32);
    DataEntry { id, generation, offset, len, root, hole: false, tail, sealed, pass: 0, digest, cvs }
}

fn print(size: u64) -> Fingerprint {
    Fingerprint { size, mtime: Timestamp { secs: 1, nanos: 0 }, version: Version::NONE }
}

fn file(id: u64, parent: DirId, name: &str, size: u64) -> Announced {
    let (fingerprint, object_size) = (print(size), OBJECT as u32);
    Announced {
        id: FileId(id),
        generation: Generation(0),
        parent,
        name: Name::new(name.as_bytes()).expect("legal"),
        meta: Meta { mode: 0o644, uid: 0, gid: 0, mtime: fingerprint.mtime },
        kind: EntryKind::File { fingerprint, object_size, sparse: false, striped: false },
        extras: Extras::default(),
    }
}

fn dir_name(id: u64) -> Name {
    Name::new(format!("d{id}").as_bytes()).expect("legal")
}

impl Bench {
    fn new(files_open_max: u32) -> Bench {
        Bench::resumed(files_open_max, Replayed::default())
    }

    /// With what an earlier run left.
    fn resumed(files_open_max: u32, replayed: Replayed) -> Bench {
        let head = Record::Head { job: [1; 16], root: RootId::new(&[1]).expect("short") };
        let session =
            Record::Session { epoch: 1, tag: 1, boot: [1; 16], durable: true, lease: Holder::ALONE };
        let (journal, log, _, next_slot) = compact(&replayed, head, session);
        let resume = Resume { replayed, log, next_slot };
        let config = SinkConfig {
            root: None,
            clones: None,
            nodes: Default::default(),
            part: None,
            agreed: Agreed::plain(100_000),
            policy: SinkOptions::PLAIN,
            memory: 1 << 30,
            wait: false,
            files_open_max,
            tag: 1,
            targets: None,
            ascending: None,
            round_trip: None,
            names: None,
        };
        let sink = Sink::new(config, resume);
        let (commits, durable, done) = (Vec::new(), Vec::new(), Vec::new());
        let (bundled, freed) = (Vec::new(), Vec::new());
        let mut bench = Bench {
            sink,
            now: Time(1),
            commits,
            durable,
            done,
            end: None,
            buffers: 0,
            written: 0,
            bundled,
            freed,
            journal,
            refused: Vec::new(),
            resent: Vec::new(),
            holds_writes: false,
            held_writes: Vec::new(),
        };
        bench.act();
        bench
    }

    fn announce(&mut self, ids: std::ops::Range<u64>, size: u64) {
        self.announce_in(DirId::ROOT, ids, size);
    }

    fn announce_in(&mut self, parent: DirId, ids: std::ops::Range<u64>, size: u64) {
        let all: Vec<Announced> = ids.map(|id| file(id, parent, &format!("f{id}"), size)).collect();
        for part in all.chunks(100) {
            self.sink.handle_message(Message::Announce(part.to_vec()), self.now);
            self.act();
        }
    }

    fn frame(&mut self, entries: Vec<DataEntry>) {
        self.buffers += 1;
        let good = vec![true; entries.len()];
        let header = DataHeader { sink_target: SinkTarget::ANY, entries };
        self.sink.handle_data(StreamId(1), header, Some(BufferId(self.buffers)), good, self.now);
        self.act();
    }

    fn small(&mut self, ids: std::ops::Range<u64>) {
        self.small_in(DirId::ROOT, ids);
    }

    fn small_in(&mut self, dir: DirId, ids: std::ops::Range<u64>) {
        self.announce_in(dir, ids.clone(), SMALL);
        for first in ids.step_by(BUNDLE as usize) {
            self.frame((first..first + BUNDLE).map(|id| entry(id, SMALL, 0, true)).collect());
        }
    }

    /// Announces a directory, whose name is `d` and its number.
    fn dir(&mut self, id: u64, parent: DirId, mode: u32) {
        let dir = Announced {
            id: FileId(id),
            generation: Generation(0),
            parent,
            name: dir_name(id),
            meta: Meta { mode, uid: 0, gid: 0, mtime: Timestamp { secs: 1, nanos: 0 } },
            kind: EntryKind::Dir { version: Version::new(&[id as u8]).expect("short") },
            extras: Extras::default(),
        };
        self.sink.handle_message(Message::Announce(vec![dir]), self.now);
        self.act();
    }

    fn end_dirs(&mut self, ids: &[u64]) {
        let dirs = ids.iter().map(|id| DirId(*id)).collect();
        self.sink.handle_message(Message::DirEnd(dirs), self.now);
        self.act();
    }

    /// Whatever is to be synced is.
    fn settle(&mut self) {
        for _ in 0..9 {
            self.pass(Duration::from_secs(1));
            while !self.commits.is_empty() {
                self.commit(0);
            }
        }
    }

    fn replayed(&self) -> Replayed {
        let mut replay = Replay::new();
        replay.feed(&self.journal).expect("a journal");
        let replayed = replay.finish([1; 16], true).expect("a journal");
        assert!(!replayed.damaged, "a record is not in its chain");
        replayed
    }

    /// All but commits is done at once.
    fn act(&mut self) {
        while let Some(action) = self.sink.poll_action() {
            let done = match action {
                SinkAction::Send(Message::Durable { extents, .. }) => {
                    self.durable.extend(extents);
                    continue;
                }
                SinkAction::Send(Message::Done(items)) => {
                    self.done.extend(items.iter().map(|item| item.id));
                    continue;
                }
                SinkAction::Send(Message::Resend(extents)) => {
                    self.resent.extend(extents);
                    continue;
                }
                SinkAction::Finished(end) => {
                    self.end = Some(end);
                    continue;
                }
                SinkAction::Submit(SinkOp::Commit { items, .. }) => {
                    self.commits.push(items);
                    continue;
                }
                SinkAction::Submit(SinkOp::Write { file, offset, len, buffer, .. }) => {
                    self.written += u64::from(len);
                    let done = SinkDone::Write {
                        id: file.id,
                        offset,
                        len,
                        buffer,
                        took: None,
                        result: Ok(()),
                        again: false,
                    };
                    if self.holds_writes {
                        self.held_writes.push(done);
                        continue;
                    }
                    done
                }
                SinkAction::Submit(SinkOp::WriteBundle { buffer, items, more }) => {
                    self.bundled.extend(items.iter().map(|item| (item.file.id, item.start)));
                    let results = items.into_iter().map(|item| (item.file.id, Ok(()))).collect();
                    SinkDone::WriteBundle { buffer, results, more }
                }
                SinkAction::FreeBuffer(buffer) => {
                    self.freed.push(buffer);
                    continue;
                }
                SinkAction::Submit(SinkOp::SyncDirs { dirs }) => {
                    SinkDone::SyncDirs { results: dirs.into_iter().map(|dir| (dir, Ok(()))).collect() }
                }
                SinkAction::Submit(SinkOp::Journal { bytes, .. }) => {
                    self.journal.extend(bytes);
                    SinkDone::Journal { result: Ok(()) }
                }
                SinkAction::Submit(SinkOp::Note { bytes, durable, .. }) => {
                    assert!(durable);
                    self.journal.extend(bytes);
                    SinkDone::Note { result: Ok(()) }
                }
                SinkAction::Submit(SinkOp::RefuseNote { ask, .. }) => {
                    self.refused.push(ask);
                    continue;
                }
                SinkAction::Submit(SinkOp::MakeDirs { dirs }) => {
                    SinkDone::MakeDirs { results: dirs.into_iter().map(|dir| (dir, Ok(()))).collect() }
                }
                SinkAction::Submit(SinkOp::FinishDirs { dirs, .. }) => {
                    let finished = |(dir, meta): (DirId, Meta)| match meta.mode {
                        0 => (dir, Err(Failure { kind: FailureKind::Metadata, errno: 1, text: "no".into() })),
                        _ => (dir, Ok(Change::NONE)),
                    };
                    SinkDone::FinishDirs { results: dirs.into_iter().map(finished).collect() }
                }
                SinkAction::Submit(SinkOp::Discard { id }) => SinkDone::Discard { id },
                SinkAction::Submit(op) => panic!("{op:?}"),
                _ => continue,
            };
            self.sink.handle_done(done, self.now);
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now.after(time);
        self.sink.handle_tick(self.now);
        self.act();
    }

    /// The commit with this number is done.
    fn commit(&mut self, at: usize) {
        let items = self.commits.remove(at);
        let results = items.into_iter().map(|item| (item.id, Ok(()))).collect();
        self.sink.handle_done(SinkDone::Commit { results, lost: Vec::new() }, self.now);
        self.act();
    }

    /// The store lost what it had of the files of this commit.
    fn lose(&mut self, at: usize) {
        let lost: Vec<FileId> = self.commits.remove(at).into_iter().map(|item| item.id).collect();
        let failed = Failure { kind: FailureKind::Sync, errno: 5, text: "lost".into() };
        let results = lost.iter().map(|id| (*id, Err(failed.clone()))).collect();
        self.sink.handle_done(SinkDone::Commit { results, lost }, self.now);
        self.act();
    }

    /// The same, where a write that was under way beside that commit is told first.
    fn lose_a_write_first(&mut self, at: usize, object: u64) {
        let id = self.commits[at][0].id;
        self.holds_writes = true;
        self.frame(vec![entry(id.0, 4 * OBJECT, object * OBJECT, false)]);
        self.holds_writes = false;
        let failed = Failure { kind: FailureKind::Sync, errno: 5, text: "lost".into() };
        let Some(SinkDone::Write { id, offset, len, buffer, took, .. }) = self.held_writes.pop() else {
            panic!("nothing was written")
        };
        let done = SinkDone::Write { id, offset, len, buffer, took, result: Err(failed), again: true };
        self.sink.handle_done(done, self.now);
        self.act();
        self.lose(at);
    }

    fn is_small(items: &[CommitItem]) -> bool {
        items.iter().all(|item| item.publish.as_ref().is_some_and(|publish| publish.file.size == SMALL))
    }
}

/// Goal: what is written of a large file becomes durable while small files, as many as there may be open, are
/// still being synced; and its data do not wait behind those of small ones for descriptors.
/// Method: small files whose first sync never ends; objects of a large file come behind them, and are asked
/// after.
#[test]
fn small_files_hold_up_no_parts() {
    let mut bench = Bench::new(800);
    bench.small(1..2001);
    bench.announce(5000..5001, 16 * OBJECT);
    bench.pass(Duration::from_secs(1));
    assert!(bench.commits.len() == 1 && Bench::is_small(&bench.commits[0]));
    for object in 0..8 {
        bench.frame(vec![entry(5000, 16 * OBJECT, object * OBJECT, false)]);
    }
    assert_eq!(bench.written, 8 * OBJECT, "its data waited for descriptors of small files");
    bench.pass(Duration::from_secs(1));
    let parts = bench.commits.iter().position(|items| items.iter().any(|item| item.id == FileId(5000)));
    bench.commit(parts.expect("its parts are being synced"));
    let durable: u64 = bench.durable.iter().map(|extent| extent.len).sum();
    assert_eq!(durable, 8 * OBJECT);
    assert!(bench.done.is_empty());
}

/// Goal: small files are synced as many at a time as take about half a second, so that what was written of
/// them is not long in doubt, on slow storage and on quick.
/// Method: syncs of a millisecond and of 20 ms for each file; the longest epoch after the first ones.
#[test]
fn epochs_are_as_long_as_storage_allows() {
    for (each, most) in [(Duration::from_micros(100), 1024), (Duration::from_millis(20), 64)] {
        let mut bench = Bench::new(100_000);
        bench.small(1..20_001);
        bench.pass(Duration::from_secs(1));
        let mut sizes = Vec::new();
        while let Some(items) = bench.commits.first() {
            let count = items.len();
            sizes.push(count);
            bench.now = bench.now.after(each * count as u32);
            bench.commit(0);
        }
        assert_eq!(bench.done.len(), 20_000);
        let later = &sizes[3..sizes.len() - 1];
        assert!(later.iter().all(|count| *count <= most), "{each:?}: {sizes:?}");
        assert!(later.iter().any(|count| 2 * count >= most.min(50)), "{each:?}: {sizes:?}");
    }
}

/// Goal: an orderly stop makes durable all that was written, also of files that wait for another sync then.
/// Method: a stop while small files and parts of a large one are being synced and more of both was written.
#[test]
fn a_stop_makes_all_that_was_written_durable() {
    let mut bench = Bench::new(10_000);
    bench.small(1..1001);
    bench.announce(5000..5001, 16 * OBJECT);
    bench.frame(vec![entry(5000, 16 * OBJECT, 0, false)]);
    bench.pass(Duration::from_secs(1));
    bench.frame(vec![entry(5000, 16 * OBJECT, OBJECT, false)]);
    bench.sink.stop();
    bench.pass(Duration::from_secs(1));
    bench.pass(Duration::from_secs(1));
    assert_eq!(bench.end, None, "nothing was synced yet");
    while !bench.commits.is_empty() {
        bench.commit(0);
    }
    assert_eq!(bench.end, Some(SessionEnd::Stopped));
    assert_eq!(bench.durable.iter().map(|extent| extent.len).sum::<u64>(), 2 * OBJECT);
    assert_eq!(bench.done.len(), 1000);
}

/// Goal: a destination that is gone takes nothing back of what is durable: it is told as kept, and the
/// journal goes on to promise it, although the file is named as failed.
#[test]
fn what_lasted_is_kept_where_all_is_gone() {
    let mut bench = Bench::new(10_000);
    bench.announce(5000..5001, 16 * OBJECT);
    for object in 0..3 {
        bench.frame(vec![entry(5000, 16 * OBJECT, object * OBJECT, false)]);
    }
    bench.pass(Duration::from_secs(1));
    bench.commit(0);
    assert_eq!(bench.sink.kept(), 3 * OBJECT);
    bench.sink.handle_done(SinkDone::Gone { failure: gone("it is gone") }, bench.now);
    bench.pass(Duration::from_secs(1));
    assert_eq!(bench.end, Some(SessionEnd::Failed(gone("it is gone"))));
    assert_eq!((bench.done.len(), bench.sink.kept()), (1, 3 * OBJECT));
    let promised = bench.replayed().partials.into_values().map(|partial| partial.subtrees.covered());
    assert_eq!(promised.sum::<u64>(), 3 * OBJECT);
}

/// Goal: a bundle of more files than may be open is taken up as far as there are descriptors, in its order,
/// and the rest when there are some again; no more files than the bound are ever open.
/// Method: bundles of 100 small files under bounds below that, their syncs kept back; how many are written
/// and not done yet.
#[test]
fn bundles_open_no_more_than_the_bound() {
    for most in [1, 7, 64, 99, 120] {
        let mut bench = Bench::new(most);
        bench.small(1..401);
        let mut rounds = 0;
        while bench.done.len() < 400 {
            rounds += 1;
            assert!(rounds < 2000, "{most}: it stands still, {} are done", bench.done.len());
            let open = bench.bundled.len() - bench.done.len();
            assert!(open <= most as usize, "{open} files are open, and {most} may be");
            match bench.commits.is_empty() {
                true => bench.pass(Duration::from_secs(1)),
                false => bench.commit(0),
            }
        }
        let each: Vec<(FileId, u32)> =
            (1..401).map(|id| (FileId(id), (id - 1) as u32 % BUNDLE as u32 * SMALL as u32)).collect();
        assert_eq!(bench.bundled, each, "each is written once, from its place");
        assert!(bench.freed.is_empty(), "buffers go with their writes");
    }
}

/// Goal: a stop while a part of a bundle is written and the rest waits gives each buffer back once.
/// Method: the stop comes between the write of the part and its end; before, and behind it.
#[test]
fn a_stop_frees_a_divided_bundle_once() {
    for early in [true, false] {
        let mut bench = Bench::new(8);
        bench.announce(1..101, SMALL);
        let header = DataHeader {
            sink_target: SinkTarget::ANY,
            entries: (1..101).map(|id| entry(id, SMALL, 0, true)).collect(),
        };
        bench.sink.handle_data(StreamId(1), header, Some(BufferId(9)), vec![true; 100], bench.now);
        let (mut written, mut freed) = (None, 0);
        let mut take = |bench: &mut Bench, written: &mut Option<SinkDone>| {
            while let Some(action) = bench.sink.poll_action() {
                match action {
                    SinkAction::Submit(SinkOp::WriteBundle { buffer, items, more }) => {
                        assert!(more && items.len() == 7, "an eighth is kept for large files");
                        let results = items.into_iter().map(|item| (item.file.id, Ok(()))).collect();
                        *written = Some(SinkDone::WriteBundle { buffer, results, more });
                    }
                    SinkAction::FreeBuffer(buffer) => {
                        assert_eq!(buffer, BufferId(9));
                        freed += 1;
                    }
                    _ => {}
                }
            }
        };
        take(&mut bench, &mut written);
        if early {
            bench.sink.handle_control_lost(gone("gone"));
            take(&mut bench, &mut written);
        }
        bench.sink.handle_done(written.take().expect("a part is being written"), bench.now);
        if !early {
            bench.sink.handle_control_lost(gone("gone"));
        }
        take(&mut bench, &mut written);
        assert_eq!(freed, 1, "early: {early}");
    }
}

/// Goal: the journal knows of a directory that is opened to us until it was finished, and of one that could
/// not be finished to the end; what would be too much to remember is refused.
/// Method: three directories that the engine is about to open, among records of epochs; the journal is
/// replayed at each step.
#[test]
fn the_journal_knows_what_is_open() {
    let mut bench = Bench::new(100);
    let knows = |bench: &Bench| {
        let mut replay = Replay::new();
        replay.feed(&bench.journal).expect("a journal");
        let replayed = replay.finish([1; 16], true).expect("a journal");
        assert!(!replayed.damaged, "a record is not in its chain");
        replayed.widened.iter().map(|dir| dir.ino).collect::<Vec<_>>()
    };
    let mtime = Timestamp { secs: 1, nanos: 0 };
    let dirs = (1..4).map(|id| Announced {
        id: FileId(id),
        generation: Generation(0),
        parent: DirId::ROOT,
        name: Name::new(format!("d{id}").as_bytes()).expect("legal"),
        meta: Meta { mode: if id == 3 { 0 } else { 0o755 }, uid: 0, gid: 0, mtime },
        kind: EntryKind::Dir { version: Version::NONE },
        extras: Extras::default(),
    });
    bench.sink.handle_message(Message::Announce(dirs.collect()), bench.now);
    bench.act();
    bench.small(10..110);
    for id in 1..4 {
        let dir = Widened { path: format!("d{id}").into_bytes().into(), ino: id, mode: 0o500 };
        bench.sink.handle_done(SinkDone::Widen { ask: id, id: DirId(id), dir }, bench.now);
        bench.act();
        // Records of an epoch between them.
        bench.pass(Duration::from_secs(1));
        if !bench.commits.is_empty() {
            bench.commit(0);
        }
    }
    assert_eq!(knows(&bench), [1, 2, 3]);
    let long = Widened { path: vec![b'd'; WIDENED_PATH_LEN_MAX + 1].into(), ino: 9, mode: 0 };
    bench.sink.handle_done(SinkDone::Widen { ask: 77, id: DirId(9), dir: long }, bench.now);
    bench.act();
    assert_eq!((&bench.refused[..], knows(&bench)), (&[77][..], vec![1, 2, 3]));
    bench.sink.handle_message(Message::DirEnd(vec![DirId(2), DirId(3)]), bench.now);
    bench.act();
    bench.pass(Duration::from_secs(1));
    assert_eq!(knows(&bench), [1, 3], "one was finished, one could not be");
    let most = WIDENED_LEN_MAX / WIDENED_PATH_LEN_MAX;
    for id in 0..most as u64 {
        let dir = Widened { path: vec![b'd'; WIDENED_PATH_LEN_MAX].into(), ino: 9, mode: 0 };
        bench.sink.handle_done(SinkDone::Widen { ask: 100 + id, id: DirId(100 + id), dir }, bench.now);
        bench.act();
    }
    assert!(!bench.refused.contains(&100) && bench.refused.contains(&(99 + most as u64)));
}

/// Goal: a directory whose entries ended well stands in the journal for the marks of all of them, at any
/// depth, and no sync is made for it alone.
/// Method: two directories, one in the other, with files in both, and files beside them; the journal is
/// replayed at each step.
#[test]
fn finished_directories_stand_for_what_is_in_them() {
    let mut bench = Bench::new(1000);
    bench.dir(1, DirId::ROOT, 0o755);
    bench.dir(2, DirId(1), 0o755);
    bench.small_in(DirId(2), 100..200);
    bench.small_in(DirId(1), 200..300);
    bench.settle();
    let replayed = bench.replayed();
    assert_eq!((replayed.done.len(), replayed.finished.len()), (200, 0));
    bench.end_dirs(&[2]);
    let written = bench.journal.len();
    bench.settle();
    assert_eq!(bench.journal.len(), written, "it waits for another record");
    bench.small(300..400);
    bench.settle();
    let (outer, inner) =
        (PathKey::ROOT.child(&dir_name(1)), PathKey::ROOT.child(&dir_name(1)).child(&dir_name(2)));
    let replayed = bench.replayed();
    assert_eq!(replayed.done.len(), 200, "those in the inner one are gone");
    assert_eq!(replayed.finished.keys().collect::<Vec<_>>(), [&inner]);
    assert_eq!(replayed.finished[&inner].version.as_bytes(), [2]);
    bench.end_dirs(&[1]);
    bench.small(400..500);
    bench.settle();
    let replayed = bench.replayed();
    assert_eq!(replayed.done.len(), 200, "those of the root, which is never finished");
    assert!(replayed.done.values().all(|mark| mark.parent == PathKey::ROOT));
    assert_eq!(replayed.finished.keys().collect::<Vec<_>>(), [&outer], "it stands for the inner one too");
}

/// Goal: many directories without anything else to journal are journaled all the same, and not one at a time.
/// Method: as many empty directories as that takes, and one less.
#[test]
fn many_finished_directories_are_journaled_alone() {
    for (count, told) in [(4095, 0), (4096, 4096)] {
        let mut bench = Bench::new(10);
        for id in 1..=count {
            bench.dir(id, DirId::ROOT, 0o755);
        }
        (1..=count).for_each(|id| bench.end_dirs(&[id]));
        bench.settle();
        assert_eq!(bench.replayed().finished.len(), told, "{count}");
    }
}

/// Goal: a directory is not called finished if anything in it, at any depth, failed, at either end or before
/// it was announced; one that has nothing to do with that is.
/// Method: one thing goes wrong at a time in a directory with one below and one beside it.
#[test]
fn only_what_ended_well_is_finished() {
    let failure = || Failure { kind: FailureKind::Read, errno: 5, text: "broken".into() };
    let key = |ids: &[u64]| ids.iter().fold(PathKey::ROOT, |path, id| path.child(&dir_name(*id)));
    let (outer, inner, beside) = (key(&[1]), key(&[1, 2]), key(&[3]));
    for (what, expected) in [
        ("nothing", vec![outer, beside]),
        ("a file at the source", vec![beside]),
        ("the metadata of the inner one", vec![beside]),
        ("something that was never announced", vec![]),
        ("something before they came", vec![outer, beside]),
    ] {
        let mut bench = Bench::new(1000);
        let trouble = || Message::Trouble { path: b"x"[..].into(), failure: failure() };
        if what == "something before they came" {
            bench.sink.handle_message(trouble(), bench.now);
        }
        bench.dir(1, DirId::ROOT, 0o755);
        bench.dir(2, DirId(1), if what == "the metadata of the inner one" { 0 } else { 0o755 });
        bench.dir(3, DirId::ROOT, 0o755);
        bench.small_in(DirId(2), 100..200);
        if what == "a file at the source" {
            bench.announce_in(DirId(2), 200..201, SMALL);
            let (id, generation) = (FileId(200), Generation(0));
            let withdraw = Message::Withdraw { id, generation, retry: false, failure: Some(failure()) };
            bench.sink.handle_message(withdraw, bench.now);
        }
        if what == "something that was never announced" {
            bench.sink.handle_message(trouble(), bench.now);
        }
        bench.settle();
        bench.end_dirs(&[3, 2, 1]);
        bench.small(300..400);
        bench.settle();
        let finished = bench.replayed().finished;
        assert_eq!(finished.len(), expected.len(), "{what}: {finished:?}");
        assert!(expected.iter().all(|path| finished.contains_key(path)), "{what}");
        assert!(!finished.contains_key(&inner), "{what}: it is said by the outer one, or by none");
    }
}

/// Goal: what an earlier run finished is not finished any more when something below it is made anew, before
/// the journal says a word of that; what lies beside it stays finished.
/// Method: a journal with two finished directories; a run that writes a file two levels below the one.
#[test]
fn what_is_made_anew_reopens_its_directories() {
    let key = |ids: &[u64]| ids.iter().fold(PathKey::ROOT, |path, id| path.child(&dir_name(*id)));
    let (outer, beside) = (key(&[1]), key(&[3]));
    let mark =
        DirMark { parent: PathKey::ROOT, mtime: Timestamp { secs: 1, nanos: 0 }, version: Version::NONE };
    let mut replayed = Replayed::default();
    replayed.finished.extend([(outer, mark), (beside, mark)]);
    let mut bench = Bench::resumed(1000, replayed);
    assert_eq!(bench.replayed().finished.len(), 2);
    bench.dir(1, DirId::ROOT, 0o755);
    bench.dir(2, DirId(1), 0o755);
    bench.announce_in(DirId(2), 10..11, 4 * OBJECT);
    assert_eq!(bench.replayed().finished.len(), 2, "nothing is made anew yet");
    bench.frame(vec![entry(10, 4 * OBJECT, 0, false)]);
    bench.settle();
    let replayed = bench.replayed();
    assert_eq!(replayed.partials.len(), 1);
    assert_eq!(replayed.finished.keys().collect::<Vec<_>>(), [&beside]);
}

/// Goal: of two entries of one name the journal keeps what it says of the parts of the second, however the
/// first ends.
/// Method: parts of the second become durable; then the first, to which an earlier run left parts, or which
/// left some in this run, is given up or gets its name; the journal is replayed, once more when the next part
/// of the second is durable.
#[test]
fn the_second_of_a_name_keeps_what_was_said_of_it() {
    let name = "x";
    let path = PathKey::ROOT.child(&Name::new(name.as_bytes()).expect("legal"));
    let (kind, first, second) = (DigestKind::Blake3, 2 * OBJECT, 16 * OBJECT);
    for (earlier, begun, published) in
        [(true, false, false), (true, true, false), (false, true, false), (true, true, true)]
    {
        let mut replayed = Replayed::default();
        if earlier {
            let mut subtrees = SubtreeSet::new(kind, first);
            subtrees.insert(0, OBJECT, [7; 32]).expect("a part of it");
            let (fingerprint, object_size) = (print(first), OBJECT as u32);
            let left = Partial { fingerprint, object_size, tag: 7, number: 1, map: None, subtrees };
            replayed.partials.insert(path, left);
        }
        let mut bench = Bench::resumed(100, replayed);
        let both = [(1, first), (2, second)].map(|(id, size)| file(id, DirId::ROOT, name, size));
        bench.sink.handle_message(Message::Announce(both.to_vec()), bench.now);
        bench.act();
        let of_second = |bench: &Bench| {
            let partial = bench.replayed().partials.remove(&path).expect("the journal speaks of the name");
            assert_eq!(partial.fingerprint, print(second), "and of the second");
            partial.subtrees.covered()
        };
        if begun {
            bench.frame(vec![entry(1, first, 0, false)]);
            bench.settle();
        }
        bench.frame(vec![entry(2, second, 0, false)]);
        bench.settle();
        assert_eq!(of_second(&bench), OBJECT);
        match published {
            true => bench.frame(vec![entry(1, first, OBJECT, true)]),
            false => {
                let (id, generation, failure) = (FileId(1), Generation(0), None);
                let withdraw = Message::Withdraw { id, generation, retry: false, failure };
                bench.sink.handle_message(withdraw, bench.now);
                bench.act();
            }
        }
        bench.settle();
        if published {
            assert_eq!(bench.done, [FileId(1)]);
        } else {
            assert_eq!(of_second(&bench), OBJECT, "earlier: {earlier}, begun: {begun}");
        }
        bench.frame(vec![entry(2, second, OBJECT, false)]);
        bench.settle();
        assert_eq!(of_second(&bench), 2 * OBJECT, "earlier: {earlier}, begun: {begun}, {published}");
    }
}

/// Goal: a file that its store lost is sent once more, in the same session: what had come of it is asked for,
/// once; what had not is waited for; and it has its name only behind a seal that is of its last read. That
/// ends, where the store loses it again and again.
#[test]
fn what_a_store_loses_is_sent_again() {
    [false, true].into_iter().for_each(lose_and_send_again);
}

/// `by_a_write`: the first loss is told with a write of one more object before the commit tells it.
fn lose_and_send_again(by_a_write: bool) {
    const LEN: u64 = 4 * OBJECT;
    let id = FileId(5000);
    let mut bench = Bench::new(800);
    bench.announce(5000..5001, LEN);
    for object in 0..3 {
        bench.frame(vec![entry(5000, LEN, object * OBJECT, false)]);
    }
    bench.pass(Duration::from_secs(1));
    match by_a_write {
        true => bench.lose_a_write_first(0, 3),
        false => bench.lose(0),
    }
    let asked: Vec<u64> = bench.resent.drain(..).map(|extent| extent.offset).collect();
    assert_eq!(asked, [0, OBJECT, 2 * OBJECT, 3 * OBJECT][..if by_a_write { 4 } else { 3 }]);
    for object in [3, 0, 1, 2] {
        bench.frame(vec![entry(5000, LEN, object * OBJECT, false)]);
    }
    bench.sink.handle_message(Message::Sealed(vec![(id, Generation(0), 0)]), bench.now);
    // It was committed by half, or whole.
    for pass in 1..=16 {
        bench.pass(Duration::from_secs(1));
        while bench.commits[0].iter().all(|item| item.publish.is_none()) {
            bench.commit(0);
            bench.pass(Duration::from_secs(1));
        }
        assert!(bench.done.is_empty(), "it ended at {pass}");
        bench.lose(0);
        if pass == 16 {
            break;
        }
        assert_eq!(std::mem::take(&mut bench.resent).len(), 4, "{pass}");
        for object in 0..4 {
            let mut entry = entry(5000, LEN, object * OBJECT, false);
            entry.pass = pass;
            bench.frame(vec![entry]);
        }
        bench.pass(Duration::from_secs(1));
        let published = bench.commits.iter().flatten().any(|item| item.publish.is_some());
        assert!(!published, "it was not looked at after its last read");
        bench.sink.handle_message(Message::Sealed(vec![(id, Generation(0), pass)]), bench.now);
        if pass == 9 {
            // Small files are lost as well.
            bench.small(6001..6101);
            bench.pass(Duration::from_secs(1));
            let small =
                bench.commits.iter().position(|items| Bench::is_small(items)).expect("they are synced");
            bench.lose(small);
            assert_eq!(std::mem::take(&mut bench.resent).len(), 100);
            bench.frame((6001..6101).map(|id| entry(id, SMALL, 0, true)).collect());
            bench.pass(Duration::from_secs(1));
            let small = bench.commits.iter().position(|items| Bench::is_small(items)).expect("they came");
            bench.commit(small);
            assert_eq!(std::mem::take(&mut bench.done).len(), 100);
        }
    }
    assert_eq!(bench.done, [id], "it is not tried for ever");
    assert!(bench.resent.is_empty());
}
