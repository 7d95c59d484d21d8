//! What a session was not to have ends it with words, whichever end says it, and does nothing before.

use haul_core::entry::{
    EntryKind, Extras, FileRange, Fingerprint, Meta, Name, Namespace, Nodes, Part, Version,
};
use haul_core::ids::{DirId, FileId, Generation, Holder, Time};
use haul_core::journal::{Log, Replayed, Resume};
use haul_core::schedule::Policy;
use haul_core::transfer::SessionEnd;
use haul_core::transfer::op::SinkOp;
use haul_core::transfer::sink::{Sink, SinkAction, SinkConfig};
use haul_core::transfer::source::{Lies, Source, SourceAction, SourceConfig};
use haul_core::wire::{
    Agreed, Announced, DoneItem, Extent, FailureKind, FileState, Message, MetadataPiece, Outcome, SinkOptions,
};

const G0: Generation = Generation(0);

fn entry(id: FileId, kind: EntryKind) -> Announced {
    Announced {
        id,
        generation: G0,
        parent: DirId::ROOT,
        name: Name::new(format!("f{id}").as_bytes()).expect("legal"),
        meta: Meta::default(),
        kind,
        extras: Extras::default(),
    }
}

fn file() -> EntryKind {
    let fingerprint = Fingerprint { size: 1 << 20, ..Fingerprint::default() };
    EntryKind::File { fingerprint, object_size: 1 << 20, sparse: false, striped: false }
}

fn sink(shards: u16) -> Sink {
    sink_of(shards, None)
}

fn sink_of(shards: u16, part: Option<Part>) -> Sink {
    sink_with(shards, part, Nodes::default())
}

fn sink_with(shards: u16, part: Option<Part>, nodes: Nodes) -> Sink {
    let config = SinkConfig {
        root: None,
        clones: None,
        nodes,
        part,
        agreed: Agreed { shards, ..Agreed::plain(100) },
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
    let resume = Resume { replayed: Replayed::default(), log: Log::start(&mut Vec::new()), next_slot: 0 };
    Sink::new(config, resume)
}

/// What the sink says why it cannot go on; what it would have its storage do does not count.
fn refusal_of(sink: &mut Sink, message: Message) -> Option<String> {
    sink.handle_message(message, Time(1));
    std::iter::from_fn(|| sink.poll_action()).find_map(|action| match action {
        SinkAction::Send(Message::Abort(failure)) => {
            assert_eq!(failure.kind, FailureKind::Protocol);
            Some(failure.text.into())
        }
        _ => None,
    })
}

fn source(lease: Holder) -> Source {
    let mut source = Source::new(SourceConfig {
        agreed: Agreed { lease, ..Agreed::plain(100) },
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
    });
    for (number, kind) in [(1, EntryKind::Dir { version: Version::NONE }), (2, file())] {
        source.handle_entry(entry(FileId(number), kind), Lies::Ask, Time(0));
    }
    source
}

/// Why the source ends, if it does.
fn end_of(source: &mut Source, message: Message) -> Option<String> {
    source.handle_message(message);
    std::iter::from_fn(|| source.poll_action()).find_map(|action| match action {
        SourceAction::Finished(SessionEnd::Failed(failure)) => Some(failure.text.into()),
        SourceAction::Finished(end) => panic!("{end:?}"),
        _ => None,
    })
}

/// Goal: a session of a part takes that part of one file, and nothing else: another range of it, a whole file
/// or another kind of entry ends it.
/// Method: one announcement of each to a sink of its own that was asked for bytes 5 to 9, or from byte 5 on,
/// to byte 7.
#[test]
fn a_part_is_the_one_that_was_asked_for() {
    let told = |source, sink, len| Some(FileRange { source, sink, len, partial: true });
    let with =
        |kind, range| Announced { extras: Extras { range, ..Extras::default() }, ..entry(FileId(2), kind) };
    let sized = |size| {
        let EntryKind::File { fingerprint, object_size, .. } = file() else { panic!("a file") };
        let fingerprint = Fingerprint { size, ..fingerprint };
        EntryKind::File { fingerprint, object_size, sparse: false, striped: false }
    };
    let asked = Part { source: 5, len: Some(4), sink: Some(7) };
    let open = Part { len: None, ..asked };
    let cases = [
        (asked, with(sized(4), told(5, 7, 4)), true),
        (open, with(sized(9), told(5, 7, 9)), true),
        (asked, with(sized(3), told(5, 7, 3)), false),
        (asked, with(sized(4), told(6, 7, 4)), false),
        (asked, with(sized(4), told(5, 0, 4)), false),
        (asked, with(sized(4), None), false),
        (asked, with(EntryKind::Dir { version: Version::NONE }, None), false),
        (asked, with(EntryKind::Symlink { target: b"t"[..].into() }, None), false),
    ];
    for (part, entry, fits) in cases {
        let told = refusal_of(&mut sink_of(1, Some(part)), Message::Announce(vec![entry.clone()]));
        assert_eq!(told.is_none(), fits, "{entry:?}: {told:?}");
    }
}

/// Goal: an entry of a kind that nobody agreed on, and metadata in pieces, end the session at the sink, with
/// a sentence that says which; those that every session may have do not.
/// Method: one announcement of each to a sink of its own.
#[test]
fn kinds_that_were_not_agreed_are_refused() {
    let special = "a FIFO, socket or device";
    let range = FileRange { source: 0, sink: 0, len: 1 << 20, partial: false };
    let with = |kind, extras| Announced { extras, ..entry(FileId(2), kind) };
    let (dir, link) =
        (EntryKind::Dir { version: Version::NONE }, EntryKind::Symlink { target: b"t"[..].into() });
    let metadata = Extras { metadata: true, ..Extras::default() };
    let names = Extras { names: 2, ..Extras::default() };
    let cases = [
        (entry(FileId(2), EntryKind::Fifo), Some(special)),
        (entry(FileId(2), EntryKind::Socket), Some(special)),
        (entry(FileId(2), EntryKind::Device { block: false, major: 1, minor: 3 }), Some(special)),
        (entry(FileId(2), EntryKind::HardLink { to: FileId(1) }), Some("a hard link")),
        (with(file(), Extras { range: Some(range), ..Extras::default() }), Some("a part of a file")),
        (with(file(), names), Some("other names follow")),
        (with(link.clone(), names), Some("other names follow")),
        (with(file(), metadata), Some("metadata")),
        (with(dir.clone(), metadata), Some("metadata")),
        (entry(FileId(2), file()), None),
        (entry(FileId(2), dir), None),
        (entry(FileId(2), link), None),
    ];
    for (entry, words) in cases {
        let told = refusal_of(&mut sink(1), Message::Announce(vec![entry.clone()]));
        assert_eq!(told.is_some(), words.is_some(), "{entry:?}: {told:?}");
        let fits = |told: &str, words| told.contains(words) && told.contains("was not to have");
        assert!(words.is_none_or(|words| told.is_some_and(|told| fits(&told, words))), "{entry:?}");
    }
    let piece = Message::Metadata(vec![MetadataPiece {
        id: FileId(2),
        generation: G0,
        namespace: Namespace::AccessAcl,
        name: [].into(),
        total: 0,
        offset: 0,
        piece: [].into(),
        last: true,
    }]);
    assert!(refusal_of(&mut sink(1), piece).is_some_and(|told| told.contains("metadata in pieces")));
}

/// Goal: a sink takes the special files that its own command keeps, and no others, whatever the source sends:
/// no source makes its devices.
/// Method: each kind, to sinks that keep none, either and both.
#[test]
fn kinds_are_those_of_the_command() {
    for (specials, devices) in [(false, false), (true, false), (false, true), (true, true)] {
        let device = |block| EntryKind::Device { block, major: 1, minor: 3 };
        for (kind, kept) in [
            (EntryKind::Fifo, specials),
            (EntryKind::Socket, specials),
            (device(true), devices),
            (device(false), devices),
        ] {
            let mut sink = sink_with(1, None, Nodes { specials, devices });
            sink.handle_message(Message::Announce(vec![entry(FileId(2), kind.clone())]), Time(1));
            let made = std::iter::from_fn(|| sink.poll_action()).any(|action| match action {
                SinkAction::Submit(SinkOp::MakeLinks { items }) => items[0].node == kind.node(),
                _ => false,
            });
            assert_eq!(made, kept, "{kind:?} {specials} {devices}");
        }
    }
}

/// Goal: ids are of agreed shards, rise within each, and one shard says nothing of another.
/// Method: announcements to sinks that agreed on one shard and on two.
#[test]
fn ids_rise_within_agreed_shards() {
    let announce = |sink: &mut Sink, shard, number| {
        refusal_of(sink, Message::Announce(vec![entry(FileId::new(shard, number), file())]))
    };
    for shard in [1, 2, u16::MAX] {
        let told = announce(&mut sink(1), shard, 5).expect("only shard 0 was agreed");
        assert!(told.contains("shard"), "{told}");
    }
    let mut two = sink(2);
    for (shard, number) in [(1, 9), (0, 3), (0, 4), (1, 10)] {
        assert_eq!(announce(&mut two, shard, number), None, "{shard} {number}");
    }
    assert!(announce(&mut two, 0, 4).is_some_and(|told| told.contains("twice, or out of order")));
    assert!(announce(&mut sink(2), 2, 1).is_some());
}

/// Goal: a grant, and what is durable, count only from whom it was agreed: an older lease of that host has no
/// effect, anybody else ends the session.
/// Method: both messages under leases around the agreed one; what became durable is what the source counts.
#[test]
fn leases_that_were_not_agreed_have_no_effect() {
    let agreed = Holder { host: 2, epoch: 5 };
    let extent = Extent { id: FileId(2), generation: G0, offset: 0, len: 1 << 20 };
    for (host, epoch, ends, counts) in
        [(2, 5, false, true), (2, 4, false, false), (2, 6, true, false), (1, 5, true, false)]
    {
        let by = Holder { host, epoch };
        let mut told = source(agreed);
        let end = end_of(&mut told, Message::Durable { by, extents: vec![extent] });
        assert_eq!((end.is_some(), told.counts().durable > 0), (ends, counts), "{by:?}");
        assert!(end.is_none_or(|end| end.contains("was not agreed")));
        let end = end_of(&mut source(agreed), Message::Grant { by, sink_target: 0, total: 1 << 20 });
        assert_eq!(end.is_some(), ends, "{by:?}");
    }
    let by = Holder { host: 0, epoch: 1 };
    let alone = end_of(&mut source(Holder::ALONE), Message::Grant { by, sink_target: 0, total: 1 });
    assert!(alone.is_some(), "one pair alone has no lease");
}

/// Goal: no sink makes a source believe that a directory is finished, or a file over, in words that were not
/// agreed on.
#[test]
fn ends_that_were_not_agreed_are_refused() {
    let state = Message::FileStates(vec![(FileId(1), G0, FileState::Finished)]);
    let told = end_of(&mut source(Holder::ALONE), state).expect("it ends");
    assert!(told.contains("a directory is finished"), "{told}");
    for id in [FileId(1), FileId(2)] {
        let done = DoneItem { id, generation: G0, outcome: Outcome::Persisted };
        let told = end_of(&mut source(Holder::ALONE), Message::Done(vec![done])).expect("it ends");
        assert!(told.contains("persisted and not published"), "{told}");
    }
}
