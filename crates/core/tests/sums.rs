//! Numbers of file systems and peers whose sums no number holds.
//!
//! In: files of the largest size that there is. Out: totals that stand at the largest number, and sessions
//! that go on.

use std::time::Duration;

use haul_core::entry::{EntryKind, Extras, Fingerprint, Meta, Name};
use haul_core::ids::{DirId, FileId, Generation, Holder, StreamId, TargetId, Time};
use haul_core::schedule::Policy;
use haul_core::stage::StageTime;
use haul_core::transfer::source::{Lies, Source, SourceAction, SourceConfig};
use haul_core::wire::{Agreed, Announced, DoneItem, Extent, Failure, FailureKind, Message, Outcome};

/// Goal: totals of a source saturate: nothing that a file system says of its sizes, or a sink of what it did
/// with them, makes a sum wrap or a session panic.
/// Method: three files of 2^63 - 1 bytes, told to be durable, and done, by a sink that says so at once.
#[test]
fn totals_of_a_source_saturate() {
    let config = SourceConfig {
        agreed: Agreed::plain(100),
        memory: 1 << 24,
        reads_max: 4,
        reads_total: 4,
        bundle_files: 512,
        policy: Policy::ADAPTIVE,
        wait: true,
        verify: false,
        compares: true,
        patience: Duration::ZERO,
        dry: false,
        root: false,
        clones: false,
        changed: Default::default(),
    };
    let mut source = Source::new(config);
    source.handle_stream_up(StreamId(1));
    let size = i64::MAX as u64;
    for id in 1..=3 {
        let entry = Announced {
            id: FileId(id),
            generation: Generation(0),
            parent: DirId::ROOT,
            name: Name::new(format!("f{id}").as_bytes()).expect("legal"),
            meta: Meta::default(),
            kind: EntryKind::File {
                fingerprint: Fingerprint { size, ..Fingerprint::default() },
                object_size: 1 << 20,
                sparse: false,
                striped: false,
            },
            extras: Extras::default(),
        };
        source.handle_entry(entry, Lies::At(TargetId(0)), Time(0));
    }
    assert_eq!(source.counts().bytes, u64::MAX);
    for id in 1..=3 {
        let extent = Extent { id: FileId(id), generation: Generation(0), offset: 0, len: u64::MAX };
        source.handle_message(Message::Durable { by: Holder::ALONE, extents: vec![extent] });
    }
    assert_eq!(source.counts().durable, u64::MAX);
    for id in 1..=3 {
        let failure = Failure { kind: FailureKind::Write, errno: 28, text: "no room".into() };
        let done = DoneItem { id: FileId(id), generation: Generation(0), outcome: Outcome::Failed(failure) };
        source.handle_message(Message::Done(vec![done]));
    }
    let ended =
        std::iter::from_fn(|| source.poll_action()).filter(|a| matches!(a, SourceAction::EntryEnded { .. }));
    assert_eq!(ended.count(), 3);
    assert_eq!((source.counts().bytes_done, source.counts().durable), (u64::MAX, 0));
}

/// Goal: what a peer says of its time is shown as shares, whatever the numbers.
#[test]
fn shares_of_any_times_are_shares() {
    let time = StageTime { busy: u64::MAX, starved: u64::MAX, blocked: u64::MAX };
    let (busy, starved, blocked) = time.shares();
    assert!((busy + starved + blocked - 1.0).abs() < 1e-9 && busy > 0.3);
}
