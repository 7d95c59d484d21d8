//! Further names of files between two ends: what they wait for, what becomes of those that cannot be given,
//! what is refused and bounded.

use haul_core::entry::{
    EntryKind, Extras, Fingerprint, Meta, NAMES_LEFT, NAMES_OPEN_MAX, Name, Nodes, Version,
};
use haul_core::ids::{DirId, FileId, Generation, Time};
use haul_core::journal::{Log, Replayed, Resume};
use haul_core::schedule::Policy;
use haul_core::transfer::op::{Existing, Found, Joined, Seen, SinkDone, SinkOp, SourceDone, SourceOp};
use haul_core::transfer::sink::{Sink, SinkAction, SinkConfig};
use haul_core::transfer::source::{Lies, Source, SourceAction, SourceConfig};
use haul_core::transfer::{Ended, SessionEnd};
use haul_core::wire::{
    Agreed, Announced, Change, DoneItem, Failure, FailureKind, FileState, Message, Outcome, SinkOptions,
    Totals,
};

const G0: Generation = Generation(0);
const G1: Generation = Generation(1);
const A: FileId = FileId(1);
const B: FileId = FileId(2);
const C: FileId = FileId(3);

fn agreed() -> Agreed {
    Agreed { hard_links: true, holes: true, ..Agreed::plain(20_000) }
}

fn sink(wait: bool) -> Sink {
    let config = SinkConfig {
        part: None,
        agreed: agreed(),
        policy: SinkOptions { durable: false, ..SinkOptions::PLAIN },
        memory: 1 << 24,
        wait,
        files_open_max: 100,
        tag: 1,
        targets: None,
        ascending: None,
        round_trip: None,
        names: None,
        nodes: Nodes::default(),
        root: None,
        clones: None,
    };
    let resume = Resume { replayed: Replayed::default(), log: Log::start(&mut Vec::new()), next_slot: 0 };
    Sink::new(config, resume)
}

fn entry(id: FileId, kind: EntryKind, names: u32) -> Announced {
    Announced {
        id,
        generation: G0,
        parent: DirId::ROOT,
        name: Name::new(format!("f{id}").as_bytes()).expect("legal"),
        meta: Meta::default(),
        kind,
        extras: Extras { names, ..Extras::default() },
    }
}

/// All of it is one hole, so that no data has to come.
fn file() -> EntryKind {
    let fingerprint = Fingerprint { size: 1 << 20, ..Fingerprint::default() };
    EntryKind::File { fingerprint, object_size: 1 << 20, sparse: true, striped: false }
}

fn name_of(id: FileId, to: FileId) -> Announced {
    entry(id, EntryKind::HardLink { to }, 0)
}

fn failure() -> Failure {
    Failure { kind: FailureKind::Publish, errno: 13, text: "no".into() }
}

/// A sink, what it did, and an engine that does what it is told to.
struct Bench {
    sink: Sink,
    now: u64,
    /// How commits of these end.
    fails: Vec<FileId>,
    /// What becomes of names, of which none is given before.
    joined: Option<fn(FileId) -> Joined>,
    asked: Vec<(FileId, FileId)>,
    states: Vec<(FileId, Generation, FileState)>,
    done: Vec<DoneItem>,
    ended: Vec<(FileId, Ended, Option<FileId>)>,
    led: Vec<FileId>,
    forgotten: Vec<FileId>,
    refused: Option<String>,
}

impl Bench {
    fn new(wait: bool) -> Bench {
        Bench {
            sink: sink(wait),
            now: 1,
            fails: Vec::new(),
            joined: Some(|_| Joined::Is(Change::NEW)),
            asked: Vec::new(),
            states: Vec::new(),
            done: Vec::new(),
            ended: Vec::new(),
            led: Vec::new(),
            forgotten: Vec::new(),
            refused: None,
        }
    }

    fn hear(&mut self, message: Message) {
        self.sink.handle_message(message, Time(self.now));
        self.run();
    }

    fn announce(&mut self, entries: Vec<Announced>) {
        self.hear(Message::Announce(entries));
    }

    /// All of a file comes, which is announced.
    fn comes(&mut self, id: FileId, generation: Generation) {
        self.hear(Message::Holes { id, generation, extents: Vec::new(), last: true });
        self.hear(Message::Sealed(vec![(id, generation, 0)]));
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
                    if let Some(done) = self.engine(op) {
                        self.sink.handle_done(done, Time(self.now));
                    }
                }
                SinkAction::Send(Message::FileStates(states)) => self.states.extend(states),
                SinkAction::Send(Message::Done(done)) => self.done.extend(done),
                SinkAction::Send(Message::Abort(failure)) => self.refused = Some(failure.text.into()),
                SinkAction::EntryEnded { id, end, joined, .. } => self.ended.push((id, end, joined)),
                SinkAction::Lead { id, .. } => self.led.push(id),
                SinkAction::ForgetLead { id } => self.forgotten.push(id),
                _ => {}
            }
        }
    }

    fn engine(&mut self, op: SinkOp) -> Option<SinkDone> {
        Some(match op {
            SinkOp::Commit { items, .. } => {
                let end = |id| if self.fails.contains(&id) { Err(failure()) } else { Ok(()) };
                let results = items.iter().map(|item| (item.id, end(item.id))).collect();
                SinkDone::Commit { results, lost: Vec::new() }
            }
            SinkOp::Join { items } => {
                self.asked.extend(items.iter().map(|item| (item.file.id, item.to)));
                let joined = self.joined?;
                let results =
                    items.into_iter().map(|item| (item.file.id, Ok(joined(item.file.id)))).collect();
                SinkDone::Join { results }
            }
            SinkOp::Lookup { items } => {
                let inode = haul_core::transfer::op::Inode { dev: 1, ino: 2 };
                let mtime = Default::default();
                let seen = Seen { inode, size: 1 << 20, mtime, ctime: mtime, links: 1 };
                let rights = Default::default();
                let existing = Existing::File { size: 1 << 20, mtime, grain: 1, rights };
                let found = Found { existing, seen: Some(seen), adopted: false, len: 0, begun: false };
                SinkDone::Lookup { results: items.iter().map(|item| (item.file.id, Ok(found))).collect() }
            }
            SinkOp::Journal { .. } => SinkDone::Journal { result: Ok(()) },
            SinkOp::Discard { id } => SinkDone::Discard { id },
            SinkOp::SyncDirs { dirs } => {
                SinkDone::SyncDirs { results: dirs.into_iter().map(|dir| (dir, Ok(()))).collect() }
            }
            SinkOp::RemoveJournal => SinkDone::RemoveJournal { result: Ok(()) },
            other => panic!("{other:?}"),
        })
    }

    fn end_of(&self, id: FileId) -> Option<&Ended> {
        self.ended.iter().find(|(of, ..)| *of == id).map(|(_, end, _)| end)
    }
}

/// Goal: a further name is given when its file has its own, and not before; then nothing of them is
/// remembered.
/// Method: a file and two names, one of which comes when it is done; the file is whole after that.
#[test]
fn names_wait_for_their_file() {
    let mut bench = Bench::new(false);
    bench.announce(vec![entry(A, file(), 3), name_of(B, A)]);
    bench.pass();
    assert_eq!((&bench.asked[..], &bench.led[..]), (&[][..], &[A][..]), "it is not whole");
    bench.comes(A, G0);
    bench.pass();
    assert_eq!(bench.end_of(A), Some(&Ended::Copied));
    assert_eq!((&bench.asked[..], &bench.forgotten[..]), (&[(B, A)][..], &[][..]));
    bench.announce(vec![name_of(C, A)]);
    bench.pass();
    assert_eq!(bench.asked, [(B, A), (C, A)]);
    let named: Vec<_> = bench.ended.iter().map(|(id, _, joined)| (*id, *joined)).collect();
    assert_eq!(named, [(A, None), (B, Some(A)), (C, Some(A))]);
    assert!(bench.done.iter().all(|item| matches!(item.outcome, Outcome::Done { .. })), "{:?}", bench.done);
    assert_eq!((&bench.forgotten[..], bench.refused), (&[A][..], None));
}

/// Goal: a file that is right already takes names too, when that is known.
/// Method: a look that finds it.
#[test]
fn unchanged_files_take_names() {
    let mut bench = Bench::new(true);
    bench.announce(vec![entry(A, file(), 2), name_of(B, A)]);
    assert_eq!(bench.asked, []);
    bench.hear(Message::Holes { id: A, generation: G0, extents: Vec::new(), last: true });
    bench.pass();
    assert_eq!((bench.end_of(A), &bench.asked[..]), (Some(&Ended::Unchanged), &[(B, A)][..]));
}

/// Goal: of a file that fails no other name is made: the next is to come as a file of its own, and the rest
/// become names of that.
/// Method: the first of three names fails at its publication; the second comes again, whole.
#[test]
fn failed_files_have_no_other_names() {
    let mut bench = Bench::new(false);
    bench.fails = vec![A];
    bench.announce(vec![entry(A, file(), 3), name_of(B, A), name_of(C, A)]);
    bench.comes(A, G0);
    bench.pass();
    assert!(matches!(bench.end_of(A), Some(Ended::Failed(_))));
    assert_eq!((&bench.asked[..], &bench.states[..]), (&[][..], &[(B, G0, FileState::Fresh)][..]));
    assert_eq!((&bench.led[..], &bench.forgotten[..]), (&[A, B][..], &[A][..]));
    bench.announce(vec![Announced { generation: G1, ..entry(B, file(), 0) }]);
    bench.comes(B, G1);
    bench.pass();
    assert_eq!(bench.end_of(B), Some(&Ended::Copied));
    assert_eq!((bench.end_of(C), &bench.asked[..]), (Some(&Ended::Copied), &[(C, B)][..]));
    assert_eq!(bench.refused, None);
}

/// Goal: a name that the file does not take comes as a file of its own, and fails as an entry that is there;
/// the next is a name of that one. Where there are no hard links none is tried after the first.
/// Method: a file that takes no name; a file system without.
#[test]
fn names_that_cannot_be_given_come_apart() {
    for never in [false, true] {
        let mut bench = Bench::new(false);
        bench.joined = Some(match never {
            true => |_| Joined::Never(failure()),
            false => |id| if id == B { Joined::Apart(failure()) } else { Joined::Is(Change::NEW) },
        });
        bench.announce(vec![entry(A, file(), 3), name_of(B, A)]);
        bench.comes(A, G0);
        bench.pass();
        assert_eq!(bench.states, [(B, G0, FileState::Fresh)]);
        bench.announce(vec![name_of(C, A), Announced { generation: G1, ..entry(B, file(), 0) }]);
        bench.comes(B, G1);
        bench.pass();
        assert_eq!(bench.end_of(B), Some(&Ended::Failed(failure())), "it is there, and no hard link");
        assert_eq!(bench.sink.counts().apart, 1 + u64::from(never));
        match never {
            true => assert_eq!((bench.asked.len(), bench.states.len()), (1, 2), "both come by themselves"),
            false => {
                assert_eq!(bench.asked, [(B, A), (C, B)]);
                assert_eq!(bench.end_of(C), Some(&Ended::Copied));
            }
        }
        assert_eq!(bench.refused, None);
    }
}

/// Goal: a name that was to come by itself and cannot be read any more is over, and the next takes its place.
/// Method: the source withdraws it.
#[test]
fn names_that_vanish_are_over() {
    let mut bench = Bench::new(false);
    bench.fails = vec![A];
    bench.announce(vec![entry(A, file(), 3), name_of(B, A), name_of(C, A)]);
    bench.comes(A, G0);
    bench.pass();
    bench.hear(Message::Withdraw { id: B, generation: G1, retry: false, failure: Some(failure()) });
    bench.pass();
    assert_eq!(bench.end_of(B), Some(&Ended::Failed(failure())));
    assert_eq!(bench.states, [(B, G0, FileState::Fresh), (C, G0, FileState::Fresh)]);
    assert!(!bench.done.iter().any(|item| item.id == B), "the source knows");
}

/// Goal: names of what was not announced so, more than there are, and more than can be remembered end the
/// session.
/// Method: one of each to a sink of its own; files of long paths.
#[test]
fn what_is_no_name_is_refused() {
    let refusal = |entries: Vec<Announced>| {
        let mut bench = Bench::new(false);
        bench.announce(entries);
        bench.refused
    };
    assert_eq!(refusal(vec![entry(A, file(), 2), name_of(B, A)]), None);
    for entries in [
        vec![entry(A, file(), 0), name_of(B, A)],
        vec![entry(A, file(), 2), name_of(B, A), name_of(C, A)],
        vec![entry(A, EntryKind::Dir { version: Version::NONE }, 0), name_of(B, A)],
    ] {
        let told = refusal(entries).expect("it is refused");
        assert!(told.contains("a hard link of what was not announced"), "{told}");
    }
}

/// Goal: what is remembered of names has a bound, whoever announces them.
/// Method: links of long paths, of each of which another name may come, that end at once.
#[test]
fn open_names_are_bounded() {
    let mut sink = sink(false);
    let long = |n: u64| Name::new(format!("{n:0>255}").as_bytes()).expect("legal");
    let mut parent = DirId::ROOT;
    let mut hears = |entry: Announced| {
        sink.handle_message(Message::Announce(vec![entry]), Time(1));
        let mut refused = None;
        while let Some(action) = sink.poll_action() {
            match action {
                SinkAction::Submit(SinkOp::MakeDirs { dirs }) => {
                    let results = dirs.into_iter().map(|dir| (dir, Ok(()))).collect();
                    sink.handle_done(SinkDone::MakeDirs { results }, Time(1));
                }
                SinkAction::Submit(SinkOp::MakeLinks { items }) => {
                    let results = items.iter().map(|item| (item.file.id, Err(failure()))).collect();
                    sink.handle_done(SinkDone::MakeLinks { results }, Time(1));
                }
                SinkAction::Send(Message::Abort(failure)) => refused = Some(failure.text),
                _ => {}
            }
        }
        refused
    };
    for n in 1..1000 {
        let kind = EntryKind::Dir { version: Version::NONE };
        let dir = Announced { parent, name: long(n), ..entry(FileId(n), kind, 0) };
        assert_eq!(hears(dir), None);
        parent = FileId(n).as_dir();
    }
    // Each is of a path of 256,000 bytes.
    let most = NAMES_OPEN_MAX as u64 / 256_000 + 3;
    let refused = (0..most).find_map(|n| {
        let link = EntryKind::Symlink { target: b"t"[..].into() };
        hears(Announced { parent, name: long(n), ..entry(FileId(1000 + n), link, 2) })
    });
    assert!(refused.is_some_and(|text| text.contains("other names follow than the limit")));
}

fn source() -> Source {
    Source::new(SourceConfig {
        agreed: agreed(),
        memory: 1 << 24,
        reads_max: 4,
        reads_total: 4,
        bundle_files: 512,
        policy: Policy::ADAPTIVE,
        wait: true,
        dry: false,
        root: false,
        clones: false,
        changed: Default::default(),
        verify: false,
        compares: true,
        patience: std::time::Duration::ZERO,
    })
}

fn acts(source: &mut Source) -> Vec<SourceAction> {
    std::iter::from_fn(|| source.poll_action()).collect()
}

fn announced(actions: &[SourceAction]) -> Vec<(FileId, Generation, bool)> {
    let told = actions.iter().filter_map(|action| match action {
        SourceAction::Send(Message::Announce(entries)) => Some(entries),
        _ => None,
    });
    let is_name = |entry: &Announced| matches!(entry.kind, EntryKind::HardLink { .. });
    told.flatten().map(|entry| (entry.id, entry.generation, is_name(entry))).collect()
}

fn whole() -> EntryKind {
    let fingerprint = Fingerprint { size: 100, ..Fingerprint::default() };
    EntryKind::File { fingerprint, object_size: 1 << 20, sparse: false, striped: false }
}

/// Goal: a further name is announced as one and nothing of it is read; where the sink wants it by itself it
/// is looked at anew and announced as a file. The end is told when no name is open.
/// Method: two names of a file, of which one is given and one is not; a symbolic link.
#[test]
fn sources_announce_names_and_send_them_if_they_must() {
    let mut source = source();
    source.handle_stream_up(haul_core::ids::StreamId(1));
    source.handle_entry(entry(A, whole(), 3), Lies::Ask, Time(0));
    source.handle_name(entry(B, whole(), 0), A, None, Lies::Ask, Time(0));
    let link = EntryKind::Symlink { target: b"t"[..].into() };
    source.handle_name(entry(C, link, 0), A, None, Lies::Ask, Time(0));
    source.handle_walk_end(Totals::default());
    let actions = acts(&mut source);
    assert_eq!(announced(&actions), [(A, G0, false), (B, G0, true), (C, G0, true)]);
    source.handle_message(Message::FileStates(vec![(A, G0, FileState::Unchanged)]));
    let has_end = |actions: &[SourceAction]| {
        actions.iter().any(|action| matches!(action, SourceAction::Send(Message::End(_))))
    };
    assert!(!has_end(&acts(&mut source)), "the sink may still want a name by itself");
    source.handle_message(Message::FileStates(vec![(B, G0, FileState::Fresh), (C, G0, FileState::Fresh)]));
    let actions = acts(&mut source);
    assert_eq!(announced(&actions), [(C, G1, false)]);
    let refresh = SourceAction::Submit(SourceOp::Refresh { id: B, generation: G1 });
    assert!(actions.contains(&refresh) && !has_end(&actions), "{actions:?}");
    let looked = (Fingerprint { size: 100, ..Fingerprint::default() }, Meta::default(), Default::default());
    source.handle_done(SourceDone::Refresh { id: B, generation: G1, result: Ok(looked) }, Time(1));
    assert_eq!(announced(&acts(&mut source)), [(B, G1, false)]);
    source.handle_message(Message::FileStates(vec![(B, G1, FileState::Unchanged)]));
    let done = DoneItem { id: C, generation: G1, outcome: Outcome::Done { root: None, change: Change::NEW } };
    source.handle_message(Message::Done(vec![done]));
    assert!(has_end(&acts(&mut source)));
}

/// Goal: a name that is given ends as one; a state that no name has ends the session.
/// Method: one of each.
#[test]
fn names_end_as_such() {
    let mut source = source();
    source.handle_entry(entry(A, whole(), 2), Lies::Ask, Time(0));
    source.handle_name(entry(B, whole(), 0), A, None, Lies::Ask, Time(0));
    acts(&mut source);
    let done = DoneItem { id: B, generation: G0, outcome: Outcome::Done { root: None, change: Change::NEW } };
    source.handle_message(Message::Done(vec![done]));
    let named = acts(&mut source).into_iter().find_map(|action| match action {
        SourceAction::EntryEnded { id, end: Ended::Copied, joined, .. } => Some((id, joined)),
        _ => None,
    });
    assert_eq!(named, Some((B, Some(A))));
    source.handle_name(entry(C, whole(), 0), A, None, Lies::Ask, Time(0));
    acts(&mut source);
    source.handle_message(Message::FileStates(vec![(C, G0, FileState::Unchanged)]));
    let ends = |action: &SourceAction| matches!(action, SourceAction::Finished(SessionEnd::Failed(_)));
    assert!(acts(&mut source).iter().any(ends));
}

/// Goal: what took the place of a file that has other names is told so, whether it came first or as one of
/// them, and one that only changed stays what they are names of.
/// Method: a first name that changed, and a further one that is to come by itself.
#[test]
fn sources_tell_that_a_file_is_another() {
    for another in [false, true] {
        let mut source = source();
        source.handle_stream_up(haul_core::ids::StreamId(1));
        source.handle_entry(entry(A, whole(), 3), Lies::Ask, Time(0));
        source.handle_name(entry(B, whole(), 0), A, None, Lies::Ask, Time(0));
        acts(&mut source);
        source.handle_message(Message::FileStates(vec![(B, G0, FileState::Fresh)]));
        acts(&mut source);
        if another {
            source.handle_done(SourceDone::Another { id: B, generation: G1 }, Time(1));
            // Of what is not looked at it says nothing.
            source.handle_done(SourceDone::Another { id: A, generation: G0 }, Time(1));
        }
        let looked = (Fingerprint { size: 9, ..Fingerprint::default() }, Meta::default(), Default::default());
        source.handle_done(SourceDone::Refresh { id: B, generation: G1, result: Ok(looked) }, Time(1));
        let names = acts(&mut source).into_iter().find_map(|action| match action {
            SourceAction::Send(Message::Announce(entries)) => Some(entries[0].extras.names),
            _ => None,
        });
        assert_eq!(names, Some(if another { NAMES_LEFT } else { 0 }));
    }
}

/// Goal: where a file is announced again as another one, the names that wait are not given it: the next of
/// them comes by itself, and the rest are names of that; and so on where that one is another as well.
#[test]
fn another_file_has_no_names() {
    let mut bench = Bench::new(true);
    bench.announce(vec![entry(A, file(), 3), name_of(B, A), name_of(C, A)]);
    bench.hear(Message::Withdraw { id: A, generation: G0, retry: true, failure: None });
    bench.announce(vec![Announced { generation: G1, ..entry(A, file(), NAMES_LEFT) }]);
    assert_eq!(bench.states.iter().filter(|(id, ..)| *id == B).count(), 1, "{:?}", bench.states);
    assert!(bench.asked.is_empty());
    bench.comes(A, G1);
    assert!(bench.asked.is_empty(), "{:?}", bench.asked);
    bench.announce(vec![Announced { generation: G1, ..entry(B, file(), NAMES_LEFT) }]);
    bench.comes(B, G1);
    assert!(bench.asked.is_empty(), "{:?}", bench.asked);
    bench.announce(vec![Announced { generation: G1, ..entry(C, file(), 0) }]);
    bench.comes(C, G1);
    assert!(bench.asked.is_empty(), "{:?}", bench.asked);
    let ended: Vec<FileId> = bench.ended.iter().map(|(id, ..)| *id).collect();
    assert_eq!(ended, [B, C], "the first waits for the journal, which nobody writes here");
    assert_eq!(bench.refused, None);
}
