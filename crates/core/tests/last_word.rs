//! How a source ends when its data streams are gone: the sink's last word counts, if it comes in time; and
//! what a sink says last.

use std::time::Duration;

use haul_core::digest::DigestKind;
use haul_core::entry::{EntryKind, Extras, Fingerprint, Meta, Name};
use haul_core::ids::{DirId, FileId, Generation, StreamId, TargetId, Time};
use haul_core::journal::{Log, Replayed, Resume};
use haul_core::schedule::Policy;
use haul_core::transfer::op::SourceDone;
use haul_core::transfer::sink::{Sink, SinkAction, SinkConfig};
use haul_core::transfer::source::{Lies, Source, SourceAction, SourceConfig};
use haul_core::transfer::{Ended, SessionEnd};
use haul_core::wire::{Agreed, Announced, Failure, FailureKind, Message, SinkOptions, Totals};

/// The way to the other end is lost.
fn gone(text: &str) -> Failure {
    Failure { kind: FailureKind::Network, errno: 0, text: text.into() }
}

/// A source with a file to send and one data stream, which is lost.
fn cut_off() -> Source {
    cut_off_with(Duration::ZERO)
}

fn cut_off_with(patience: Duration) -> Source {
    let (wait, holes, digest) = (false, false, DigestKind::Blake3);
    let config = SourceConfig {
        agreed: Agreed { holes, digest, ..Agreed::plain(100) },
        memory: 1 << 24,
        reads_max: 4,
        reads_total: 4,
        bundle_files: 512,
        policy: Policy::ADAPTIVE,
        wait,
        dry: false,
        root: false,
        clones: false,
        changed: Default::default(),
        verify: false,
        compares: true,
        patience,
    };
    let mut source = Source::new(config);
    source.handle_stream_up(StreamId(1));
    let fingerprint = Fingerprint { size: 1 << 20, ..Fingerprint::default() };
    let entry = Announced {
        id: FileId(1),
        generation: Generation(0),
        parent: DirId::ROOT,
        name: Name::new(b"file").expect("legal"),
        meta: Meta::default(),
        kind: EntryKind::File { fingerprint, object_size: 1 << 20, sparse: false, striped: false },
        extras: Extras::default(),
    };
    source.handle_entry(entry, Lies::At(TargetId(0)), Time(0));
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

/// Goal: why the sink ended is what the source says, also if the streams are seen to go before the word
/// arrives.
#[test]
fn the_reason_comes_after_the_streams() {
    let mut source = cut_off();
    assert_eq!(end_of(&mut source), None);
    let quota = Failure { kind: FailureKind::Write, errno: 122, text: "the quota is used up".into() };
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

/// Goal: a source whose place cannot be reached any more withdraws nothing, also of what fails behind that;
/// it waits for the sink's answer, names what is left, and has failed. What all was read of, or was to stop
/// anyway, ends as it would.
#[test]
fn what_came_from_a_lost_source_is_not_withdrawn() {
    let unread = || Failure { kind: FailureKind::Read, errno: 111, text: "refused".into() };
    let lost = |source: &mut Source| {
        source.handle_done(SourceDone::Gone { failure: unread() }, Time(6));
        let (id, generation) = (FileId(1), Generation(0));
        source.handle_done(SourceDone::Refresh { id, generation, result: Err(unread()) }, Time(6));
        source.handle_done(SourceDone::Verify { id, generation, result: Err(unread()) }, Time(6));
        std::iter::from_fn(|| source.poll_action()).collect::<Vec<_>>()
    };
    let is_sent = |actions: &[SourceAction], is: fn(&Message) -> bool| {
        actions.iter().any(|action| matches!(action, SourceAction::Send(message) if is(message)))
    };
    let ends = |actions: &[SourceAction]| {
        actions
            .iter()
            .any(|action| matches!(action, SourceAction::Finished(_) | SourceAction::EntryEnded { .. }))
    };
    let mut source = cut_off();
    let actions = lost(&mut source);
    assert!(is_sent(&actions, |message| matches!(message, Message::Abort(failure) if failure.errno == 111)));
    assert!(!is_sent(&actions, |message| matches!(message, Message::Withdraw { .. })), "{actions:?}");
    assert!(!ends(&actions), "what the sink says is durable was not heard: {actions:?}");
    // No stream is left, and none is needed.
    source.handle_tick(Time(u64::MAX / 2));
    assert_eq!(end_of(&mut source), None);
    source.handle_message(Message::Abort(unread()));
    let actions: Vec<_> = std::iter::from_fn(|| source.poll_action()).collect();
    let named = actions.iter().any(|action| {
        matches!(action, SourceAction::EntryEnded { id: FileId(1), end: Ended::Failed(why), .. } if *why == unread())
    });
    assert!(named && actions.contains(&SourceAction::Finished(SessionEnd::Failed(unread()))), "{actions:?}");

    let mut stopped = cut_off();
    stopped.stop("interrupted");
    let actions = lost(&mut stopped);
    assert!(!is_sent(&actions, |message| matches!(message, Message::Abort(_))), "{actions:?}");
    stopped.handle_message(Message::Stopped);
    assert_eq!(end_of(&mut stopped), Some(SessionEnd::Stopped));
}

/// Goal: where streams can join later, the source waits for one as long as it is told, and then goes on.
#[test]
fn a_stream_that_joins_later_goes_on() {
    let patience = Duration::from_secs(300);
    let mut source = cut_off_with(patience);
    assert_eq!(end_of(&mut source), None);
    let until = source.next_deadline().expect("it does not wait for ever");
    assert_eq!(until.since(Time(5)), patience);
    source.handle_stream_up(StreamId(2));
    source.handle_tick(until);
    assert_eq!(end_of(&mut source), None);
    source.handle_message(Message::StreamClosed { stream: StreamId(3), frames: 0 });
    source.handle_stream_up(StreamId(3));
    let closed =
        std::iter::from_fn(|| source.poll_action()).any(|a| a == SourceAction::CloseStream(StreamId(3)));
    assert!(closed, "the sink had closed it before its join was known here");
    source.handle_stream_up(StreamId(2));
    assert_eq!(source.streams(), (1, 0), "an id is used once");
}

/// Goal: a parked stream gets no frames and stays up; as many are unparked as are wanted, and what is missing
/// is told.
#[test]
fn streams_are_parked_and_unparked() {
    let mut source = cut_off_with(Duration::from_secs(1));
    for id in 2..=5 {
        source.handle_stream_up(StreamId(id));
    }
    assert_eq!((source.use_streams(2), source.streams()), (0, (4, 2)));
    assert_eq!((source.use_streams(7), source.streams()), (3, (4, 0)));
    source.park(StreamId(3));
    assert_eq!(source.streams(), (4, 1));
    assert_eq!((source.use_streams(4), source.streams()), (0, (4, 0)));
    source.use_streams(1);
    source.handle_stream_lost(StreamId(2));
    assert_eq!(source.streams(), (3, 2), "another takes its place");
}

/// Goal: a sink that stops says why it does, and not that the rest of what was on its way does not fit any
/// more.
/// Method: an END with an open directory, to a sink that works and to one that stops already.
#[test]
fn a_sink_that_stops_finds_no_other_reason() {
    let aborts = |stops: bool| {
        let resume = Resume { replayed: Replayed::default(), log: Log::start(&mut Vec::new()), next_slot: 0 };
        let config = SinkConfig {
            root: None,
            clones: None,
            nodes: Default::default(),
            part: None,
            agreed: Agreed::plain(100),
            policy: SinkOptions::PLAIN,
            memory: 1 << 24,
            wait: false,
            files_open_max: 100,
            tag: 1,
            targets: None,
            ascending: None,
            round_trip: None,
            names: None,
        };
        let mut sink = Sink::new(config, resume);
        if stops {
            sink.handle_control_lost(gone("it is gone"));
        }
        for _ in 0..2 {
            sink.handle_message(Message::End(Totals::default()), Time(1));
        }
        std::iter::from_fn(|| sink.poll_action())
            .any(|action| matches!(action, SinkAction::Send(Message::Abort(why)) if why.text.contains("END")))
    };
    assert_eq!((aborts(false), aborts(true)), (true, false));
}
