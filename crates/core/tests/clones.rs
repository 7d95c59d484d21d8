//! Files that the sink clones from the source's: what is asked of the engine, what the source is told, and
//! what becomes of those that cannot be cloned.

use std::collections::BTreeSet;
use std::time::Duration;

use haul_core::entry::{EntryKind, Extras, Fingerprint, Meta, Name, Nodes};
use haul_core::ids::{DirId, FileId, Generation, StreamId, Time};
use haul_core::journal::{Log, Replayed, Resume};
use haul_core::schedule::Policy;
use haul_core::transfer::op::{Cloned, Existing, Found, SinkDone, SinkOp};
use haul_core::transfer::sink::{Clones, Sink, SinkAction, SinkConfig};
use haul_core::transfer::source::{Lies, Source, SourceAction, SourceConfig};
use haul_core::transfer::{Ended, SessionEnd};
use haul_core::wire::{
    Agreed, Announced, Change, DoneItem, Extent, Failure, FailureKind, FileState, Message, Outcome,
    SinkOptions, Totals,
};

const G0: Generation = Generation(0);
const LEN: u64 = 1 << 20;

fn entry(id: u64, size: u64) -> Announced {
    let fingerprint = Fingerprint { size, ..Fingerprint::default() };
    Announced {
        id: FileId(id),
        generation: G0,
        parent: DirId::ROOT,
        name: Name::new(format!("f{id}").as_bytes()).expect("legal"),
        meta: Meta::default(),
        kind: EntryKind::File { fingerprint, object_size: 1 << 20, sparse: false, striped: false },
        extras: Extras::default(),
    }
}

fn refusal() -> Failure {
    Failure { kind: FailureKind::Create, errno: 95, text: "no".into() }
}

/// A sink that clones, what it did, and an engine that does what it is told to.
struct Bench {
    sink: Sink,
    now: u64,
    /// Files of which no clone can be made.
    refuses: BTreeSet<FileId>,
    /// What a clone ends with, for all.
    fails: Option<Failure>,
    asked: Vec<FileId>,
    /// With a temporary, and the most there were.
    open: BTreeSet<FileId>,
    open_most: usize,
    states: Vec<(FileId, FileState)>,
    done: Vec<DoneItem>,
    ended: Vec<(FileId, Ended, Option<[u8; 32]>)>,
    finished: Option<SessionEnd>,
}

impl Bench {
    fn new(always: bool, files_open_max: u32) -> Bench {
        let config = SinkConfig {
            part: None,
            agreed: Agreed::plain(20_000),
            policy: SinkOptions { durable: true, ..SinkOptions::PLAIN },
            memory: 1 << 24,
            wait: true,
            files_open_max,
            tag: 1,
            targets: None,
            ascending: None,
            round_trip: None,
            names: None,
            nodes: Nodes::default(),
            root: None,
            clones: Some(Clones { len_min: if always { 1 } else { LEN }, always }),
        };
        let resume = Resume { replayed: Replayed::default(), log: Log::start(&mut Vec::new()), next_slot: 0 };
        Bench {
            sink: Sink::new(config, resume),
            now: 1,
            refuses: BTreeSet::new(),
            fails: None,
            asked: Vec::new(),
            open: BTreeSet::new(),
            open_most: 0,
            states: Vec::new(),
            done: Vec::new(),
            ended: Vec::new(),
            finished: None,
        }
    }

    fn hear(&mut self, message: Message) {
        self.sink.handle_message(message, Time(self.now));
        self.run();
    }

    /// Time passes, in which epochs close.
    fn pass(&mut self) {
        for _ in 0..4 {
            self.now += 1_000_000_000;
            self.sink.handle_tick(Time(self.now));
            self.run();
        }
    }

    fn run(&mut self) {
        while let Some(action) = self.sink.poll_action() {
            match action {
                SinkAction::Submit(op) => {
                    let done = self.engine(op);
                    self.sink.handle_done(done, Time(self.now));
                }
                SinkAction::Send(Message::FileStates(states)) => {
                    self.states.extend(states.into_iter().map(|(id, _, state)| (id, state)));
                }
                SinkAction::Send(Message::Done(done)) => self.done.extend(done),
                SinkAction::EntryEnded { id, end, root, .. } => self.ended.push((id, end, root)),
                SinkAction::Finished(end) => self.finished = Some(end),
                _ => {}
            }
        }
    }

    fn engine(&mut self, op: SinkOp) -> SinkDone {
        match op {
            SinkOp::Lookup { items } => {
                let nothing =
                    Found { existing: Existing::Nothing, seen: None, adopted: false, len: 0, begun: false };
                SinkDone::Lookup { results: items.iter().map(|item| (item.file.id, Ok(nothing))).collect() }
            }
            SinkOp::Clone { items } => {
                let mut results = Vec::new();
                for id in items.into_iter().map(|item| item.file.id) {
                    self.asked.push(id);
                    results.push((
                        id,
                        match (&self.fails, self.refuses.contains(&id)) {
                            (Some(failure), _) => Err(failure.clone()),
                            (None, true) => Ok(Cloned::Not(refusal())),
                            (None, false) => {
                                self.open.insert(id);
                                Ok(Cloned::Whole)
                            }
                        },
                    ));
                }
                self.open_most = self.open_most.max(self.open.len());
                SinkDone::Clone { results }
            }
            SinkOp::Commit { items, .. } => {
                for item in &items {
                    assert!(item.publish.is_some() && self.open.remove(&item.id), "{item:?}");
                }
                let results = items.iter().map(|item| (item.id, Ok(()))).collect();
                SinkDone::Commit { results, lost: Vec::new() }
            }
            SinkOp::Journal { .. } => SinkDone::Journal { result: Ok(()) },
            SinkOp::Discard { id } => {
                self.open.remove(&id);
                SinkDone::Discard { id }
            }
            SinkOp::SyncDirs { dirs } => {
                SinkDone::SyncDirs { results: dirs.into_iter().map(|dir| (dir, Ok(()))).collect() }
            }
            SinkOp::RemoveJournal => SinkDone::RemoveJournal { result: Ok(()) },
            other => panic!("{other:?}"),
        }
    }
}

/// Goal: what is long enough is cloned and nothing of it asked for; it gets its name as any other file, and
/// nobody claims a digest of it. What is shorter, or cannot be cloned, is read.
/// Method: one of each.
#[test]
fn what_is_cloned_is_not_sent() {
    let mut bench = Bench::new(false, 100);
    bench.refuses.insert(FileId(3));
    bench.hear(Message::Announce(vec![entry(1, LEN), entry(2, LEN - 1), entry(3, LEN)]));
    bench.pass();
    assert_eq!(bench.asked, [FileId(1), FileId(3)]);
    let mut states = bench.states.clone();
    states.sort_by_key(|(id, _)| *id);
    let [a, b, c] = [FileState::Cloned, FileState::Fresh, FileState::Fresh];
    assert_eq!(states, [(FileId(1), a), (FileId(2), b), (FileId(3), c)]);
    assert_eq!(bench.ended, [(FileId(1), Ended::Copied, None)]);
    let outcome = Outcome::Done { root: None, change: Change::NEW };
    assert_eq!(bench.done, [DoneItem { id: FileId(1), generation: G0, outcome }]);
    assert_eq!((bench.sink.counts().holes, bench.sink.counts().written), (LEN, 0), "nothing moved for it");
}

/// Goal: with `always` no file is read: what cannot be cloned fails by name, and the others are cloned.
/// Method: one that cannot among three, one of one byte.
#[test]
fn always_clones_or_fails() {
    let mut bench = Bench::new(true, 100);
    bench.refuses.insert(FileId(2));
    bench.hear(Message::Announce(vec![entry(1, LEN), entry(2, LEN), entry(3, 1)]));
    bench.pass();
    assert_eq!(bench.states, [(FileId(1), FileState::Cloned), (FileId(3), FileState::Cloned)]);
    assert!(bench.ended.contains(&(FileId(2), Ended::Failed(refusal()), None)), "{:?}", bench.ended);
    assert!(bench.open.is_empty() && bench.ended.len() == 3, "{:?}", bench.ended);
}

/// Goal: a destination without room ends the run, as in any copy; what was cloned and has no name goes.
/// Method: a clone that says ENOSPC.
#[test]
fn no_room_is_no_reason_to_read() {
    let mut bench = Bench::new(false, 100);
    bench.fails = Some(Failure { kind: FailureKind::Write, errno: 28, text: "full".into() });
    bench.hear(Message::Announce(vec![entry(1, LEN)]));
    bench.pass();
    assert_eq!(bench.states, []);
    assert!(matches!(&bench.finished, Some(SessionEnd::Failed(failure)) if failure.errno == 28));
}

/// Goal: however many files are cloned, no more are open than may be, and all of them come to their end.
/// Method: a hundred files and three descriptors.
#[test]
fn clones_wait_for_descriptors() {
    let mut bench = Bench::new(false, 3);
    bench.hear(Message::Announce((1..=100).map(|id| entry(id, LEN)).collect()));
    for _ in 0..100 {
        bench.pass();
    }
    assert_eq!((bench.ended.len(), bench.open_most), (100, 3));
    bench.hear(Message::End(Totals::default()));
    bench.pass();
    assert_eq!(bench.finished, Some(SessionEnd::Complete));
}

fn source(clones: bool) -> Source {
    let mut source = Source::new(SourceConfig {
        agreed: Agreed::plain(20_000),
        memory: 1 << 24,
        reads_max: 4,
        reads_total: 4,
        bundle_files: 512,
        policy: Policy::ADAPTIVE,
        wait: true,
        dry: false,
        root: false,
        clones,
        changed: Default::default(),
        verify: false,
        compares: true,
        patience: Duration::ZERO,
    });
    source.handle_stream_up(StreamId(1));
    source.handle_entry(entry(1, LEN), Lies::Ask, Time(0));
    source.handle_walk_end(Totals::default());
    acts(&mut source);
    source
}

fn acts(source: &mut Source) -> Vec<SourceAction> {
    std::iter::from_fn(|| source.poll_action()).collect()
}

/// Goal: of a file that the sink cloned nothing is read, not even if it asks for a part of it; the end is
/// told while it gets its name, and it is counted as cloned when it has it.
#[test]
fn sources_read_nothing_of_clones() {
    let mut source = source(true);
    source.handle_message(Message::FileStates(vec![(FileId(1), G0, FileState::Cloned)]));
    let actions = acts(&mut source);
    assert!(actions.iter().any(|action| matches!(action, SourceAction::Send(Message::End(_)))));
    let extent = Extent { id: FileId(1), generation: G0, offset: 0, len: LEN };
    source.handle_message(Message::Resend(vec![extent]));
    let grant = Message::Grant { by: Agreed::plain(1).lease, sink_target: 0, total: 1 << 30 };
    source.handle_message(grant);
    let reads = |action: &SourceAction| matches!(action, SourceAction::Submit(_));
    assert!(!acts(&mut source).iter().any(reads));
    assert_eq!(source.counts().cloned, 0);
    let outcome = Outcome::Done { root: None, change: Change::NEW };
    source.handle_message(Message::Done(vec![DoneItem { id: FileId(1), generation: G0, outcome }]));
    let ended = acts(&mut source).into_iter().find_map(|action| match action {
        SourceAction::EntryEnded { id, end, root, .. } => Some((id, end, root)),
        _ => None,
    });
    assert_eq!(ended, Some((FileId(1), Ended::Copied, None)));
    let counts = source.counts();
    assert_eq!((counts.cloned, counts.cloned_bytes, counts.payload), (1, LEN, 0));
    source.handle_message(Message::Complete);
    let complete = SourceAction::Finished(SessionEnd::Complete);
    assert!(acts(&mut source).contains(&complete));
}

/// Goal: a sink that was not to clone cannot say that it did, and so have a file count that it never got.
#[test]
fn clones_are_agreed() {
    let mut source = source(false);
    source.handle_message(Message::FileStates(vec![(FileId(1), G0, FileState::Cloned)]));
    let ends = |action: &SourceAction| matches!(action, SourceAction::Finished(SessionEnd::Failed(_)));
    assert!(acts(&mut source).iter().any(ends));
}
