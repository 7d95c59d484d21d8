//! How a source ends when its data streams are gone: the sink's last word counts, if it comes in time.

use std::time::Duration;

use haul_core::entry::{EntryKind, Fingerprint, Meta, Name};
use haul_core::ids::{DirId, FileId, Generation, StreamId, Time};
use haul_core::transfer::SessionEnd;
use haul_core::transfer::source::{Source, SourceAction, SourceConfig};
use haul_core::wire::{Announced, Failure, Message, Stage};

/// A source with a file to send and one data stream, which is lost.
fn cut_off() -> Source {
    let config = SourceConfig { entries_max: 100, memory: 1 << 24, reads_max: 4, wait: false, holes: false };
    let mut source = Source::new(config);
    source.handle_stream_up(StreamId(1));
    let fingerprint = Fingerprint { size: 1 << 20, ..Fingerprint::default() };
    source.handle_entry(Announced {
        id: FileId(1),
        generation: Generation(0),
        parent: DirId::ROOT,
        name: Name::new(b"file").expect("legal"),
        meta: Meta::default(),
        kind: EntryKind::File { fingerprint, object_size: 1 << 20, sparse: false },
    });
    source.handle_tick(Time(5));
    source.handle_stream_lost(StreamId(1));
    source
}

/// The end, if it is reached.
fn end_of(source: &mut Source) -> Option<SessionEnd> {
    std::iter::from_fn(|| source.poll_action()).find_map(|action| match action {
        SourceAction::Finished(end) => Some(end),
        _ => None,
    })
}

/// Goal: why the sink ended is what the source says, also if the streams are seen to go before the word arrives.
#[test]
fn the_reason_comes_after_the_streams() {
    let mut source = cut_off();
    assert_eq!(end_of(&mut source), None);
    let quota = Failure { stage: Stage::Write, errno: 122, text: "the quota is used up".into() };
    source.handle_message(Message::Abort(quota));
    let Some(SessionEnd::Failed(failure)) = end_of(&mut source) else { panic!("it goes on") };
    assert_eq!((failure.errno, &*failure.text), (122, "the quota is used up"));
}

/// Goal: a sink that says nothing more is waited for until a stated time, and no longer.
#[test]
fn silence_ends_it_too() {
    let mut source = cut_off();
    assert_eq!(end_of(&mut source), None);
    let until = source.next_deadline().expect("it does not wait for ever");
    assert!(until.since(Time(5)) <= Duration::from_secs(5));
    source.handle_tick(Time(until.0 - 1));
    assert_eq!(end_of(&mut source), None);
    source.handle_tick(until);
    let Some(SessionEnd::Failed(failure)) = end_of(&mut source) else { panic!("it goes on") };
    assert!(failure.text.contains("stream"), "{failure:?}");
}
