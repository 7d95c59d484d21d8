//! What becomes of files that change while they are copied, as the user chose.

use std::time::Duration;

use haul_core::digest::{DigestKind, Subtree, SubtreeSet};
use haul_core::entry::{EntryKind, Extras, Fingerprint, Meta, Name, Version};
use haul_core::ids::{BufferId, DirId, FileId, Generation, Holder, StreamId, TargetId, Time};
use haul_core::schedule::Policy;
use haul_core::transfer::Ended;
use haul_core::transfer::op::{BundleOk, HashOk, Look, ReadOk, SourceDone, SourceOp};
use haul_core::transfer::source::{Lies, OnChange, Source, SourceAction, SourceConfig};
use haul_core::wire::{
    Agreed, Announced, Change, DoneItem, Extent, Failure, FailureKind, FileState, Message, Outcome, Totals,
};

const ID: FileId = FileId(1);
const G0: Generation = Generation(0);
const G1: Generation = Generation(1);
const SIZE: u64 = 1000;

/// A source with one file of `size` bytes, and all that it has done.
struct Bench {
    source: Source,
    submitted: Vec<SourceOp>,
    sent: Vec<Message>,
    ended: Vec<Ended>,
}

impl Bench {
    fn new(changed: OnChange, size: u64) -> Bench {
        Bench::waiting(changed, size, false)
    }

    /// `wait`: for the state of the file.
    fn waiting(changed: OnChange, size: u64, wait: bool) -> Bench {
        let mut source = Source::new(SourceConfig {
            agreed: Agreed { holes: true, ..Agreed::plain(100) },
            memory: 1 << 30,
            reads_max: 8,
            reads_total: 8,
            bundle_files: 512,
            policy: Policy::ADAPTIVE,
            wait,
            verify: true,
            compares: true,
            patience: Duration::ZERO,
            dry: false,
            root: false,
            clones: false,
            changed,
        });
        source.handle_stream_up(StreamId(1));
        source.handle_message(Message::Grant { by: Holder::ALONE, sink_target: 0, total: 1 << 40 });
        let entry = Announced {
            id: ID,
            generation: G0,
            parent: DirId::ROOT,
            name: Name::new(b"log").expect("legal"),
            meta: Meta::default(),
            kind: EntryKind::File {
                fingerprint: of_size(size),
                object_size: 1 << 20,
                sparse: false,
                striped: false,
            },
            extras: Extras::default(),
        };
        source.handle_entry(entry, Lies::At(TargetId(0)), Time(0));
        source.handle_walk_end(Totals::default());
        let (submitted, sent, ended) = (Vec::new(), Vec::new(), Vec::new());
        let mut bench = Bench { source, submitted, sent, ended };
        bench.act();
        bench
    }

    fn act(&mut self) {
        while let Some(action) = self.source.poll_action() {
            match action {
                SourceAction::Submit(op) => self.submitted.push(op),
                SourceAction::Send(message) => self.sent.push(message),
                SourceAction::EntryEnded { end, .. } => self.ended.push(end),
                _ => {}
            }
        }
    }

    /// What was asked of storage since this was asked last.
    fn ops(&mut self) -> Vec<SourceOp> {
        std::mem::take(&mut self.submitted)
    }

    fn done(&mut self, done: SourceDone) {
        self.source.handle_done(done, Time(1));
        self.act();
    }

    /// The file is read, whole, and looked at in the same operation.
    fn read_small(&mut self, root: [u8; 32], look: Look) {
        let asked = self.ops().into_iter().find_map(|op| match op {
            SourceOp::ReadBundle { files } => Some(files),
            _ => None,
        });
        let item = (asked.expect("it is read")[0], Ok(BundleOk { root, look }));
        self.done(SourceDone::ReadBundle { buffer: BufferId(1), items: vec![item] });
    }

    /// The object that is asked for is read.
    fn read_object(&mut self, root: [u8; 32]) {
        let read = self.ops().into_iter().find_map(|op| match op {
            SourceOp::Read { id, generation, offset, len, target, .. } => {
                let (service, result) = (None, Ok(ReadOk { buffer: BufferId(1), cvs: vec![root] }));
                Some(SourceDone::Read { id, generation, offset, len, target, service, result })
            }
            _ => None,
        });
        self.done(read.expect("it is read"));
    }

    /// The objects that are asked for are read; `value`: what each of them is.
    fn read_objects(&mut self, value: impl Fn(u64) -> [u8; 32]) {
        for op in self.ops() {
            let SourceOp::Read { id, generation, offset, len, target, .. } = op else { panic!("{op:?}") };
            let cvs = vec![value(offset >> 20)];
            let (service, result) = (None, Ok(ReadOk { buffer: BufferId(1), cvs }));
            self.done(SourceDone::Read { id, generation, offset, len, target, service, result });
        }
    }

    /// A file of one object, whatever its size.
    fn read(&mut self, root: [u8; 32], (size, look): (u64, Look)) {
        match size {
            SIZE => self.read_small(root, look),
            _ => self.read_object(root),
        }
    }

    /// It was hashed; nothing of it was sent twice when it was known no more what it was first.
    fn hashed(&mut self, generation: Generation, result: Result<[u8; 32], Failure>) {
        let result = result.map(|root| HashOk { root, cvs: Vec::new() });
        self.done(SourceDone::HashFile { id: ID, generation, result });
    }

    fn refreshed(&mut self, generation: Generation, now: Fingerprint) {
        let result = Ok((now, Meta::default(), Duration::ZERO));
        self.done(SourceDone::Refresh { id: ID, generation, result });
    }

    fn is_sealed(&self) -> bool {
        self.sent.iter().any(|message| matches!(message, Message::Sealed(_)))
    }

    fn failed(&self) -> &str {
        match &self.ended[..] {
            [Ended::Failed(failure)] => {
                assert_eq!(failure.kind, FailureKind::Changed);
                &failure.text
            }
            ended => panic!("{ended:?}"),
        }
    }

    /// The sink says how it ended.
    fn finish(&mut self, outcome: Outcome) {
        let item = DoneItem { id: ID, generation: G0, outcome };
        self.source.handle_message(Message::Done(vec![item]));
        self.act();
    }
}

fn of_size(size: u64) -> Fingerprint {
    Fingerprint { size, version: Version::new(&[7]).expect("short"), ..Fingerprint::default() }
}

fn second_hash() -> SourceOp {
    SourceOp::HashFile { id: ID, generation: G0, map: None, seen: None, parts: Box::default() }
}

fn changed_failure() -> Failure {
    Failure { kind: FailureKind::Changed, errno: 0, text: "is shorter".into() }
}

/// Goal: with `fail` a file that changed is not tried again, however that was found; with `retry` it is,
/// once.
/// Method: a look that shows another file, and a read that ends early.
#[test]
fn a_change_fails_at_once_or_is_tried_again() {
    for found_by_look in [true, false] {
        for (changed, tries) in [(OnChange::Fail, 1), (OnChange::Retry, 2)] {
            let mut bench = Bench::new(changed, SIZE);
            for attempt in 1..=tries {
                assert!(bench.ended.is_empty(), "{changed:?}");
                if attempt == 2 {
                    assert_eq!(bench.ops(), [SourceOp::Refresh { id: ID, generation: G1 }]);
                    bench.refreshed(G1, of_size(SIZE + 1));
                }
                if found_by_look {
                    bench.read_small([0; 32], Look::Changed);
                    continue;
                }
                let Some(SourceOp::ReadBundle { files }) = bench.ops().pop() else {
                    panic!("it is not read")
                };
                let items = vec![(files[0], Err(changed_failure()))];
                bench.done(SourceDone::ReadBundle { buffer: BufferId(1), items });
            }
            let text = if found_by_look { "the source changed while it was read" } else { "is shorter" };
            assert!(bench.failed().starts_with(text), "{}", bench.failed());
            assert_eq!(bench.failed().contains("twice"), found_by_look && tries == 2);
            let withdrawn = |m: &&Message| matches!(m, Message::Withdraw { .. });
            assert_eq!(bench.sent.iter().filter(withdrawn).count(), tries);
            assert_eq!(bench.source.counts().prefixes, 0);
        }
    }
}

/// Goal: what was read of a file that grew is sealed only when it was read a second time and was the same; no
/// ctime is waited for.
#[test]
fn a_prefix_is_read_twice() {
    let mut bench = Bench::new(OnChange::Prefix, SIZE);
    bench.read_small([3; 32], Look::Grown { size: SIZE + 5 });
    assert!(!bench.is_sealed());
    assert_eq!(bench.ops(), [second_hash()]);
    bench.hashed(G0, Ok([3; 32]));
    assert!(bench.is_sealed());
    bench.finish(Outcome::Done { root: Some([3; 32]), change: Change::NONE });
    assert_eq!(bench.ended, [Ended::Copied]);
    let counts = bench.source.counts();
    assert_eq!((counts.prefixes, counts.prefix_bytes), (1, SIZE));
}

/// Goal: a beginning that differs the second time, or is not there any more, fails at once, and by its cause.
#[test]
fn a_prefix_that_differs_fails() {
    for (second, text) in
        [(Ok([4; 32]), "its first 1000 bytes were others"), (Err(changed_failure()), "is shorter")]
    {
        let mut bench = Bench::new(OnChange::Prefix, SIZE);
        bench.read_small([3; 32], Look::Grown { size: SIZE + 5 });
        bench.hashed(G0, second);
        assert!(!bench.is_sealed());
        assert!(bench.failed().starts_with(text), "{}", bench.failed());
        assert_eq!(bench.source.counts().prefixes, 0);
    }
    let mut bench = Bench::new(OnChange::Prefix, SIZE);
    bench.read_small([0; 32], Look::Changed);
    assert!(bench.failed().starts_with("the source changed otherwise than by growing"), "{}", bench.failed());
}

/// Goal: a file that was touched and did not grow is read twice too, and is no prefix in the counts; one that
/// nobody touched is read once.
#[test]
fn only_what_grew_is_counted() {
    let mut bench = Bench::new(OnChange::Prefix, SIZE);
    bench.read_small([3; 32], Look::Grown { size: SIZE });
    assert_eq!(bench.ops(), [second_hash()]);
    bench.hashed(G0, Ok([3; 32]));
    bench.finish(Outcome::Done { root: Some([3; 32]), change: Change::NONE });
    assert_eq!((bench.ended, bench.source.counts().prefixes), (vec![Ended::Copied], 0));

    let mut bench = Bench::new(OnChange::Prefix, SIZE);
    bench.read_small([3; 32], Look::Same);
    assert_eq!(bench.ops(), []);
}

/// Goal: what is read again after the second reading (it was lost on the way, say) is looked at and read a
/// second time as well.
/// Method: a large file; its stream is lost with its object after it was sealed.
#[test]
fn what_is_sent_again_is_read_twice_again() {
    let size = 1 << 20;
    let mut bench = Bench::new(OnChange::Prefix, size);
    for round in 1..=2 {
        bench.read_object([3; 32]);
        assert_eq!(bench.ops(), [SourceOp::Look { id: ID, generation: G0 }]);
        bench.done(SourceDone::Look { id: ID, generation: G0, result: Ok(Look::Grown { size: size + 1 }) });
        assert_eq!(bench.ops(), [second_hash()], "{round}");
        bench.hashed(G0, Ok([3; 32]));
        if round == 1 {
            bench.source.handle_stream_up(StreamId(2));
            bench.source.handle_message(Message::StreamClosed { stream: StreamId(1), frames: 0 });
            bench.act();
        }
    }
    bench.finish(Outcome::Done { root: Some([3; 32]), change: Change::NONE });
    assert_eq!(bench.ended, [Ended::Copied]);
    assert_eq!(bench.source.counts().prefixes, 1);
}

/// Goal: a hash that began before the last read of a file seals nothing, whatever the looks show: what was
/// read last is looked at again.
/// Method: a small file arrives damaged while it is hashed and is read again; then that hash comes back.
#[test]
fn an_old_hash_seals_nothing() {
    let meta_only = Look::MetaOnly { seen: of_size(SIZE), settle: Duration::ZERO };
    let young = Look::MetaOnly { seen: of_size(SIZE), settle: Duration::from_secs(2) };
    let grown = Look::Grown { size: SIZE + 5 };
    for (changed, first, second) in [
        (OnChange::Prefix, grown, grown),
        (OnChange::Prefix, meta_only, grown),
        (OnChange::Retry, meta_only, meta_only),
        (OnChange::Retry, meta_only, young),
    ] {
        let mut bench = Bench::new(changed, SIZE);
        bench.read_small([3; 32], first);
        assert!(matches!(bench.ops()[..], [SourceOp::HashFile { .. }]));
        let whole = Extent { id: ID, generation: G0, offset: 0, len: SIZE };
        bench.source.handle_message(Message::Resend(vec![whole]));
        bench.act();
        bench.read_small([3; 32], second);
        bench.hashed(G0, Ok([3; 32]));
        assert!(!bench.is_sealed(), "{second:?}: by a hash from before the last read");
        assert_eq!(bench.ops(), [SourceOp::Look { id: ID, generation: G0 }], "{second:?}");
        bench.done(SourceDone::Look { id: ID, generation: G0, result: Ok(first) });
        assert!(matches!(bench.ops()[..], [SourceOp::HashFile { .. }]));
        bench.hashed(G0, Ok([3; 32]));
        let sealed = bench.sent.iter().find_map(|message| match message {
            Message::Sealed(items) => Some(items.clone()),
            _ => None,
        });
        assert_eq!(sealed, Some(vec![(ID, G0, 1)]));
    }
}

/// Goal: a file of which the same bytes are read twice for sending, and are others the second time, has
/// changed, whatever comes of it later: what was sent last is not what its digest here is of.
/// Method: a small file and a large one arrive damaged, and are read again.
#[test]
fn what_is_read_otherwise_has_changed() {
    let meta_only = Look::MetaOnly { seen: of_size(SIZE), settle: Duration::ZERO };
    for size in [SIZE, 1 << 20] {
        for (changed, look) in [
            (OnChange::Retry, meta_only),
            (OnChange::Fail, meta_only),
            (OnChange::Prefix, Look::Grown { size: size + 5 }),
        ] {
            let mut bench = Bench::new(changed, size);
            bench.read([3; 32], (size, look));
            let whole = Extent { id: ID, generation: G0, offset: 0, len: size };
            bench.source.handle_message(Message::Resend(vec![whole]));
            bench.act();
            bench.read([4; 32], (size, look));
            match changed {
                OnChange::Retry => {
                    assert!(bench.ops().contains(&SourceOp::Refresh { id: ID, generation: G1 }))
                }
                OnChange::Fail | OnChange::Prefix => {
                    assert!(bench.failed().starts_with("the source changed"))
                }
            }
            assert!(!bench.is_sealed());
        }
    }
}

/// Goal: so it is with a large file, of which what was read first is known only as it was merged with its
/// neighbours: where a hash decides of it, what was sent twice must have been the same all three times.
/// Method: of four objects one is lost after the first look, and again after the second, and is read again
/// each time; then the file is as it was first, or as it was then, or never was another, or is another now.
#[test]
fn what_is_sent_twice_was_the_same() {
    let (size, at, len) = (4 << 20, 1 << 20, 1 << 20);
    let value = |object: u64| [object as u8; 32];
    let mut first = SubtreeSet::new(DigestKind::Blake3, size);
    for object in 0..4 {
        first.insert(object << 20, len, value(object)).expect("a node");
    }
    let root = first.root().expect("whole");
    let meta_only = Look::MetaOnly { seen: of_size(size), settle: Duration::ZERO };
    for (changed, look) in [
        (OnChange::Retry, meta_only),
        (OnChange::Fail, meta_only),
        (OnChange::Prefix, Look::Grown { size: size + 5 }),
    ] {
        for (second, third, hashed) in [
            (value(1), value(1), Some(value(1))),
            ([9; 32], [9; 32], Some(value(1))),
            ([9; 32], [9; 32], Some([9; 32])),
            (value(1), value(1), Some([9; 32])),
            (value(1), [9; 32], None),
        ] {
            let mut bench = Bench::new(changed, size);
            bench.read_objects(value);
            for read in [second, third] {
                bench.done(SourceDone::Look { id: ID, generation: G0, result: Ok(look) });
                bench.ops();
                let part = Extent { id: ID, generation: G0, offset: at, len };
                bench.source.handle_message(Message::Resend(vec![part]));
                bench.act();
                bench.read_objects(|object| if object == 1 { read } else { panic!("{object}") });
                // The hash that the look before asked for.
                bench.hashed(G0, Ok(root));
                assert!(!bench.is_sealed());
            }
            if let Some(now) = hashed {
                bench.ops();
                bench.done(SourceDone::Look { id: ID, generation: G0, result: Ok(look) });
                let Some(SourceOp::HashFile { parts, .. }) = bench.ops().pop() else { panic!("not hashed") };
                assert_eq!(*parts, [(at, len)], "once, however often it was sent");
                let root = if now == value(1) { root } else { [7; 32] };
                let result = Ok(HashOk { root, cvs: vec![now] });
                bench.done(SourceDone::HashFile { id: ID, generation: G0, result });
            }
            let same = hashed == Some(value(1)) && second == value(1);
            assert_eq!(bench.is_sealed(), same, "{changed:?} {second:?} {hashed:?}");
            match changed {
                _ if same => {}
                OnChange::Retry => {
                    assert!(bench.ops().contains(&SourceOp::Refresh { id: ID, generation: G1 }))
                }
                OnChange::Fail => assert!(bench.failed().starts_with("the source changed")),
                OnChange::Prefix if hashed.is_none() => {
                    assert!(bench.failed().starts_with("the source changed otherwise"))
                }
                OnChange::Prefix => assert!(bench.failed().contains("were others"), "{}", bench.failed()),
            }
        }
    }
}

/// Goal: what an earlier run left counts in the second reading as what was read in this one does; where the
/// sink's word on it makes no whole, that is no word on the source, and the file is begun anew.
#[test]
fn held_parts_are_read_once_more() {
    let size = 3 << 20;
    // The value of a node is no digest here: only that both readings agree is asked.
    let whole = vec![Subtree { offset: 0, len: size, cv: [9; 32] }];
    let held = FileState::Held { subtrees: whole, verify: false };
    let mut bench = Bench::waiting(OnChange::Prefix, size, true);
    bench.source.handle_message(Message::FileStates(vec![(ID, G0, held)]));
    bench.act();
    assert_eq!(bench.ops(), [SourceOp::Look { id: ID, generation: G0 }]);
    bench.done(SourceDone::Look { id: ID, generation: G0, result: Ok(Look::Grown { size: size + 1 }) });
    assert_eq!(bench.ops(), [second_hash()]);
    bench.hashed(G0, Ok([9; 32]));
    assert!(bench.is_sealed());
    bench.ops();
    let part = Extent { id: ID, generation: G0, offset: 0, len: 1 << 20 };
    bench.source.handle_message(Message::NotHeld(vec![part]));
    bench.act();
    bench.read_object([3; 32]);
    assert_eq!(bench.ops(), [SourceOp::Look { id: ID, generation: G0 }]);
    bench.done(SourceDone::Look { id: ID, generation: G0, result: Ok(Look::Grown { size: size + 2 }) });
    assert_eq!(bench.ops(), [second_hash()]);
    bench.hashed(G0, Ok([8; 32]));
    assert_eq!(bench.ops(), [SourceOp::Refresh { id: ID, generation: G1 }]);
}

/// Goal: what the user chose for changes of the source has no part in a file that the sink's storage gave
/// back wrong: it is tried once more. If it changed before that, the choice counts again.
#[test]
fn what_came_back_wrong_is_tried_again() {
    let (shorter, longer) = (of_size(SIZE - 1), of_size(SIZE + 1));
    let cases = [
        (OnChange::Fail, of_size(SIZE), true),
        (OnChange::Fail, longer, false),
        (OnChange::Prefix, longer, true),
        (OnChange::Prefix, shorter, false),
        (OnChange::Retry, shorter, true),
    ];
    for (changed, now, goes_on) in cases {
        let mut bench = Bench::new(changed, SIZE);
        bench.read_small([3; 32], Look::Same);
        let wrong = Failure { kind: FailureKind::Digest, errno: 0, text: "it came back wrong".into() };
        bench.finish(Outcome::Failed(wrong));
        assert_eq!(bench.ops(), [SourceOp::Refresh { id: ID, generation: G1 }]);
        bench.refreshed(G1, now);
        match goes_on {
            true => assert!(matches!(bench.ops()[..], [SourceOp::ReadBundle { .. }]), "{changed:?} {now:?}"),
            false => assert!(bench.failed().contains("before it could be sent again"), "{changed:?}"),
        }
    }
}

/// Goal: a file that gives more than its size says did not change: it is measured and tried again, however
/// changes are taken.
#[test]
fn a_size_that_says_nothing_is_no_change() {
    for changed in [OnChange::Fail, OnChange::Prefix] {
        let mut bench = Bench::new(changed, SIZE);
        bench.read_small([0; 32], Look::Longer);
        assert_eq!(bench.ops(), [SourceOp::Refresh { id: ID, generation: G1 }]);
        bench.refreshed(G1, of_size(SIZE + 500));
        assert!(matches!(bench.ops()[..], [SourceOp::ReadBundle { .. }]));
    }
}

/// Goal: what a source cannot read any more takes back nothing of what the sink has kept, also where that is
/// seen behind the end of the session.
#[test]
fn what_was_kept_stays_so_behind_the_end() {
    let mut bench = Bench::new(OnChange::default(), 3 << 20);
    let reads = bench.ops();
    assert_eq!(reads.len(), 3);
    let extents = vec![Extent { id: ID, generation: G0, offset: 0, len: 1 << 20 }];
    bench.source.handle_message(Message::Durable { by: Holder::ALONE, extents });
    let unread = || Failure { kind: FailureKind::Read, errno: 111, text: "refused".into() };
    bench.done(SourceDone::Gone { failure: unread() });
    bench.source.handle_message(Message::Abort(unread()));
    bench.act();
    assert_eq!(bench.ended, [Ended::Failed(unread())]);
    for op in reads {
        let SourceOp::Read { id, generation, offset, len, target, .. } = op else { panic!("{op:?}") };
        let (service, result) = (None, Err(unread()));
        bench.done(SourceDone::Read { id, generation, offset, len, target, service, result });
    }
    assert_eq!((bench.source.counts().durable, bench.ended.len()), (1 << 20, 1));
}
