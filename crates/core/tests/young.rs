//! When a source begins to read a file that changed just now.

use std::time::Duration;

use haul_core::digest::Subtree;
use haul_core::entry::{EntryKind, Extras, Fingerprint, Meta, Name, Version};
use haul_core::ids::{DirId, FileId, Generation, Holder, StreamId, TargetId, Time};
use haul_core::schedule::Policy;
use haul_core::transfer::op::{Look, SourceDone, SourceOp};
use haul_core::transfer::source::{Lies, Source, SourceAction, SourceConfig};
use haul_core::wire::{Agreed, Announced, FileState, Message, Totals};

const G0: Generation = Generation(0);
const GRAIN: Duration = Duration::from_secs(2);

fn source(wait: bool) -> Source {
    source_that(true, wait)
}

fn source_that(compares: bool, wait: bool) -> Source {
    let mut source = Source::new(SourceConfig {
        agreed: Agreed { holes: true, ..Agreed::plain(100) },
        memory: 1 << 30,
        reads_max: 8,
        reads_total: 8,
        bundle_files: 512,
        policy: Policy::ADAPTIVE,
        wait,
        verify: false,
        compares,
        patience: Duration::ZERO,
        dry: false,
        root: false,
        clones: false,
        changed: Default::default(),
    });
    source.handle_stream_up(StreamId(1));
    source.handle_message(Message::Grant { by: Holder::ALONE, sink_target: 0, total: 1 << 40 });
    source
}

fn add(source: &mut Source, id: u64, size: u64, sparse: bool, not_before: Time) {
    let fingerprint = Fingerprint { size, ..Fingerprint::default() };
    let entry = Announced {
        id: FileId(id),
        generation: G0,
        parent: DirId::ROOT,
        name: Name::new(format!("f{id}").as_bytes()).expect("legal"),
        meta: Meta::default(),
        kind: EntryKind::File { fingerprint, object_size: 1 << 20, sparse, striped: false },
        extras: Extras::default(),
    };
    source.handle_entry(entry, Lies::At(TargetId(0)), not_before);
}

/// What is asked of storage now.
fn ops(source: &mut Source) -> Vec<SourceOp> {
    let ask = std::iter::from_fn(|| source.poll_action()).filter_map(|action| match action {
        SourceAction::Submit(op) => Some(op),
        _ => None,
    });
    ask.collect()
}

/// The files of which something is asked.
fn files(ops: &[SourceOp]) -> Vec<u64> {
    let ids = ops.iter().flat_map(|op| match op {
        SourceOp::Read { id, .. } | SourceOp::Map { id, .. } | SourceOp::Verify { id, .. } => vec![id.0],
        SourceOp::ReadBundle { files } => files.iter().map(|file| file.id.0).collect(),
        other => panic!("{other:?}"),
    });
    ids.collect()
}

/// Goal: nothing of a young file is read, mapped or compared before it is old enough; the others do not wait
/// for it, and then it waits for nothing else.
/// Method: an old and a young file of each sort: large, small, sparse, and held at the sink.
#[test]
fn young_files_go_last() {
    let until = Time(0).after(GRAIN);
    let mut source = source(true);
    for id in 1..=8 {
        let size = if matches!(id, 3 | 4) { 1000 } else { 1 << 20 };
        let not_before = if id % 2 == 0 { until } else { Time(0) };
        add(&mut source, id, size, matches!(id, 5 | 6), not_before);
    }
    source.handle_walk_end(Totals::default());
    let held =
        FileState::Held { subtrees: vec![Subtree { offset: 0, len: 1 << 19, cv: [1; 32] }], verify: true };
    let states = [1, 2, 3, 4].map(|id| (FileId(id), G0, FileState::Fresh)).into_iter();
    let states = states.chain([7, 8].map(|id| (FileId(id), G0, held.clone())));
    source.handle_message(Message::FileStates(states.collect()));
    let mut first = files(&ops(&mut source));
    first.sort_unstable();
    assert_eq!(first, [1, 3, 5, 7], "the old ones");
    assert_eq!(source.next_deadline(), Some(until));
    source.handle_tick(Time(until.0 - 1));
    assert_eq!(ops(&mut source), []);
    source.handle_tick(until);
    let mut then = files(&ops(&mut source));
    then.sort_unstable();
    assert_eq!(then, [2, 4, 6, 8], "the young ones");
}

/// Goal: where nobody can tell whether what the sink holds is of the version that the file has now, the sink
/// hears at once that it is in vain, for it reads all of it meanwhile; the file begins afresh, and is not
/// read while it is young.
#[test]
fn what_is_held_in_vain_is_said_at_once() {
    let until = Time(0).after(GRAIN);
    let mut source = source_that(false, true);
    add(&mut source, 1, 1 << 20, false, until);
    source.handle_walk_end(Totals::default());
    while source.poll_action().is_some() {}
    let held =
        FileState::Held { subtrees: vec![Subtree { offset: 0, len: 1 << 19, cv: [1; 32] }], verify: true };
    source.handle_message(Message::FileStates(vec![(FileId(1), G0, held)]));
    let actions: Vec<SourceAction> = std::iter::from_fn(|| source.poll_action()).collect();
    let withdraw = Message::Withdraw { id: FileId(1), generation: G0, retry: true, failure: None };
    let refresh = SourceOp::Refresh { id: FileId(1), generation: Generation(1) };
    assert_eq!(actions, [SourceAction::Send(withdraw), SourceAction::Submit(refresh)]);
    let fingerprint = Fingerprint { size: 1 << 20, ..Fingerprint::default() };
    let result = Ok((fingerprint, Meta::default(), GRAIN));
    let generation = Generation(1);
    source.handle_done(SourceDone::Refresh { id: FileId(1), generation, result }, Time(9));
    source.handle_message(Message::FileStates(vec![(FileId(1), generation, FileState::Fresh)]));
    assert_eq!(ops(&mut source), []);
    source.handle_tick(Time(9).after(GRAIN));
    assert_eq!(files(&ops(&mut source)), [1]);
}

/// Goal: where a look shows another ctime, the file is hashed as the look saw it, and not before that ctime
/// is old enough.
#[test]
fn a_young_look_is_waited_out_before_the_hash() {
    let mut source = source(false);
    add(&mut source, 1, 1000, false, Time(0));
    source.handle_walk_end(Totals::default());
    let Some(SourceOp::ReadBundle { files: asked }) = ops(&mut source).pop() else {
        panic!("it is not read")
    };
    let seen =
        Fingerprint { size: 1000, version: Version::new(&[7]).expect("short"), ..Fingerprint::default() };
    let look = Look::MetaOnly { seen, settle: GRAIN };
    let ok = haul_core::transfer::op::BundleOk { root: [3; 32], look };
    let items = vec![(asked[0], Ok(ok))];
    let buffer = haul_core::ids::BufferId(1);
    source.handle_done(SourceDone::ReadBundle { buffer, items }, Time(5));
    assert_eq!(ops(&mut source), []);
    let until = Time(5).after(GRAIN);
    assert_eq!(source.next_deadline(), Some(until));
    source.handle_tick(until);
    let (id, seen, parts) = (FileId(1), Some(Box::new(seen)), Box::default());
    let op = SourceOp::HashFile { id, generation: G0, map: None, seen, parts };
    assert_eq!(ops(&mut source), [op]);
    source.handle_tick(Time(until.0 + 1));
    assert_eq!(ops(&mut source), [], "once");
}

/// Goal: the second try of a file that changed is held to the same.
#[test]
fn a_refreshed_file_is_waited_for() {
    let mut source = source(false);
    add(&mut source, 1, 1000, false, Time(0));
    source.handle_walk_end(Totals::default());
    let Some(SourceOp::ReadBundle { files: asked }) = ops(&mut source).pop() else {
        panic!("it is not read")
    };
    let ok = haul_core::transfer::op::BundleOk { root: [0; 32], look: Look::Changed };
    let (buffer, items) = (haul_core::ids::BufferId(1), vec![(asked[0], Ok(ok))]);
    source.handle_done(SourceDone::ReadBundle { buffer, items }, Time(5));
    let generation = Generation(1);
    assert_eq!(ops(&mut source), [SourceOp::Refresh { id: FileId(1), generation }]);
    let fingerprint = Fingerprint { size: 2000, ..Fingerprint::default() };
    let result = Ok((fingerprint, Meta::default(), GRAIN));
    source.handle_done(SourceDone::Refresh { id: FileId(1), generation, result }, Time(9));
    assert_eq!(ops(&mut source), []);
    source.handle_tick(Time(9).after(GRAIN));
    let again = ops(&mut source);
    assert_eq!(files(&again), [1]);
}
