//! Extended attributes and lists between two ends: what waits for them, what is refused, what is bounded.

use haul_core::entry::{
    EntryKind, Extras, Fingerprint, METADATA_LEN_MAX, METADATA_OPEN_MAX, METADATA_VALUE_LEN_MAX, Meta, Name,
    Namespace, Version,
};
use haul_core::ids::{DirId, FileId, Generation, Time};
use haul_core::journal::{Log, Replayed, Resume};
use haul_core::metadata::{Gathering, Unread, Values, pieces_of};
use haul_core::schedule::Policy;
use haul_core::transfer::op::{SinkDone, SinkOp};
use haul_core::transfer::sink::{Sink, SinkAction, SinkConfig};
use haul_core::transfer::source::{Lies, Source, SourceAction, SourceConfig};
use haul_core::wire::{
    Agreed, Announced, Change, DoneItem, Failure, FailureKind, Message, MetadataPiece, Outcome, SinkOptions,
    encode_message,
};

const G0: Generation = Generation(0);
const ID: FileId = FileId(1);

fn agreed() -> Agreed {
    Agreed { metadata: true, holes: true, ..Agreed::plain(2000) }
}

fn sink(wait: bool) -> Sink {
    sink_of(wait, None)
}

fn sink_of(wait: bool, root: Option<Meta>) -> Sink {
    let config = SinkConfig {
        part: None,
        agreed: agreed(),
        policy: SinkOptions { xattrs: true, durable: false, ..SinkOptions::PLAIN },
        memory: 1 << 24,
        wait,
        files_open_max: 100,
        tag: 1,
        targets: None,
        ascending: None,
        round_trip: None,
        root,
        clones: None,
        nodes: Default::default(),
        names: None,
    };
    let resume = Resume { replayed: Replayed::default(), log: Log::start(&mut Vec::new()), next_slot: 0 };
    Sink::new(config, resume)
}

fn entry(id: FileId, kind: EntryKind, metadata: bool) -> Announced {
    Announced {
        id,
        generation: G0,
        parent: DirId::ROOT,
        name: Name::new(format!("f{id}").as_bytes()).expect("legal"),
        meta: Meta::default(),
        kind,
        extras: Extras { metadata, ..Extras::default() },
    }
}

/// All of it is one hole, so that no data has to come.
fn file() -> EntryKind {
    let fingerprint = Fingerprint { size: 1 << 20, ..Fingerprint::default() };
    EntryKind::File { fingerprint, object_size: 1 << 20, sparse: true, striped: false }
}

fn dir() -> EntryKind {
    EntryKind::Dir { version: Version::NONE }
}

fn link() -> EntryKind {
    EntryKind::Symlink { target: b"t"[..].into() }
}

fn values(of: &[(&str, usize)]) -> Values {
    of.iter().map(|(name, len)| ((Namespace::Xattr, name.as_bytes().into()), vec![7; *len])).collect()
}

fn metadata(id: FileId, values: Values) -> Message {
    Message::Metadata(pieces_of(id, G0, values))
}

/// What it does when it hears this.
fn hears(sink: &mut Sink, message: Message) -> Vec<SinkAction> {
    sink.handle_message(message, Time(1));
    acts(sink)
}

fn acts(sink: &mut Sink) -> Vec<SinkAction> {
    std::iter::from_fn(|| sink.poll_action()).collect()
}

fn ops(actions: &[SinkAction]) -> Vec<&SinkOp> {
    actions
        .iter()
        .filter_map(|action| if let SinkAction::Submit(op) = action { Some(op) } else { None })
        .collect()
}

fn refusal(actions: &[SinkAction]) -> Option<String> {
    actions.iter().find_map(|action| match action {
        SinkAction::Send(Message::Abort(failure)) => Some(failure.text.to_string()),
        _ => None,
    })
}

fn is_published(actions: &[SinkAction]) -> bool {
    let publishes = |op: &&SinkOp| matches!(op, SinkOp::Commit { items, .. } if items[0].publish.is_some());
    ops(actions).iter().any(publishes)
}

/// Announces a file that is whole but for its metadata.
fn begin(sink: &mut Sink) -> Vec<SinkAction> {
    let mut actions = hears(sink, Message::Announce(vec![entry(ID, file(), true)]));
    let holes = Message::Holes { id: ID, generation: G0, extents: Vec::new(), last: true };
    actions.extend(hears(sink, holes));
    actions.extend(hears(sink, Message::Sealed(vec![(ID, G0, 0)])));
    sink.handle_tick(Time(10_000_000_000));
    actions.extend(acts(sink));
    actions
}

/// Goal: a file gets its name only when its metadata are whole, and the engine knows them by then; it is not
/// looked up before, either.
/// Method: all else of a file is there; its metadata come in two messages.
#[test]
fn names_wait_for_metadata() {
    for wait in [false, true] {
        let mut sink = sink(wait);
        let actions = begin(&mut sink);
        assert!(!is_published(&actions) && refusal(&actions).is_none(), "{wait}: {actions:?}");
        assert!(!ops(&actions).iter().any(|op| matches!(op, SinkOp::Lookup { .. })), "{actions:?}");
        let mut pieces = pieces_of(ID, G0, values(&[("user.a", 1), ("user.b", 2)]));
        let last = pieces.pop().expect("two");
        assert!(!is_published(&hears(&mut sink, Message::Metadata(pieces))));
        let mut actions = hears(&mut sink, Message::Metadata(vec![last]));
        sink.handle_tick(Time(20_000_000_000));
        actions.extend(acts(&mut sink));
        let told = actions
            .iter()
            .position(|action| matches!(action, SinkAction::Metadata { values, .. } if values.len() == 2));
        let op = actions.iter().position(|action| match action {
            SinkAction::Submit(SinkOp::Commit { .. }) => !wait,
            SinkAction::Submit(SinkOp::Lookup { .. }) => wait,
            _ => false,
        });
        assert!(told.is_some() && told < op, "{wait}: {actions:?}");
    }
}

/// Goal: directories are finished, and links made, when theirs are whole.
/// Method: one of each, first without.
#[test]
fn directories_and_links_wait_for_theirs() {
    let mut sink = sink(false);
    let (a, b) = (FileId(1), FileId(2));
    let mut actions =
        hears(&mut sink, Message::Announce(vec![entry(a, dir(), true), entry(b, link(), true)]));
    sink.handle_done(SinkDone::MakeDirs { results: vec![(a.as_dir(), Ok(()))] }, Time(2));
    actions.extend(hears(&mut sink, Message::DirEnd(vec![a.as_dir()])));
    let is_due = |actions: &[SinkAction], of: FileId| {
        ops(actions).iter().any(|op| match op {
            SinkOp::FinishDirs { dirs, .. } => dirs[0].0 == of.as_dir(),
            SinkOp::MakeLinks { items } => items[0].file.id == of,
            _ => false,
        })
    };
    assert!(!is_due(&actions, a) && !is_due(&actions, b), "{actions:?}");
    let actions = hears(&mut sink, metadata(b, values(&[("trusted.x", 1)])));
    assert!(is_due(&actions, b) && !is_due(&actions, a), "{actions:?}");
    let actions = hears(&mut sink, metadata(a, values(&[("user.x", 1)])));
    assert!(is_due(&actions, a), "{actions:?}");
}

/// Goal: the destination root is finished once, behind all that is in it and with all that came of its
/// attributes, and its end is told before the journal goes. Without being asked for nothing is done to it.
/// Method: a link in the root; attributes of entry 0 before it, in two messages; the same without a root to
/// finish; an end in the middle of them.
#[test]
fn the_root_is_finished_last() {
    let (root, link_id) = (DirId::ROOT.as_file(), FileId(1));
    let meta = Meta { mode: 0o750, ..Meta::default() };
    for asked in [true, false] {
        let mut sink = sink_of(false, asked.then_some(meta));
        let mut pieces = pieces_of(root, G0, values(&[("user.a", 1), ("user.b", 2)]));
        let last = pieces.pop().expect("two");
        let mut actions = hears(&mut sink, Message::Metadata(pieces));
        actions.extend(hears(&mut sink, Message::Metadata(vec![last])));
        actions.extend(hears(&mut sink, Message::Announce(vec![entry(link_id, link(), false)])));
        actions.extend(hears(&mut sink, Message::End(Default::default())));
        assert_eq!(refusal(&actions), None);
        let of_root =
            |op: &&SinkOp| matches!(op, SinkOp::FinishDirs { dirs, .. } if dirs[0].0 == DirId::ROOT);
        assert!(!ops(&actions).iter().any(of_root), "the link is under way: {actions:?}");
        let told = |action: &SinkAction| matches!(action, SinkAction::Metadata { id, values } if *id == root && values.len() == 2);
        assert_eq!(actions.iter().any(told), asked, "{actions:?}");
        sink.handle_done(SinkDone::MakeLinks { results: vec![(link_id, Ok(Change::NEW))] }, Time(2));
        let mut actions = acts(&mut sink);
        for _ in 0..3 {
            for op in ops(&actions).into_iter().cloned().collect::<Vec<_>>() {
                match op {
                    SinkOp::SyncDirs { dirs } => {
                        let results = dirs.into_iter().map(|dir| (dir, Ok(()))).collect();
                        sink.handle_done(SinkDone::SyncDirs { results }, Time(3));
                    }
                    SinkOp::Journal { .. } => sink.handle_done(SinkDone::Journal { result: Ok(()) }, Time(3)),
                    _ => {}
                }
            }
            let more = acts(&mut sink);
            if more.is_empty() {
                break;
            }
            actions = more;
        }
        let goes = |op: &&SinkOp| **op == SinkOp::RemoveJournal;
        let due = ops(&actions);
        assert_eq!(due.iter().any(of_root), asked, "{actions:?}");
        assert_eq!(due.iter().any(goes), !asked, "{actions:?}");
        if asked {
            let results = vec![(DirId::ROOT, Ok(Change::MODE))];
            sink.handle_done(SinkDone::FinishDirs { results }, Time(4));
            let actions = acts(&mut sink);
            let item = DoneItem {
                id: root,
                generation: G0,
                outcome: Outcome::Done { root: None, change: Change::MODE },
            };
            assert!(actions.contains(&SinkAction::Send(Message::Done(vec![item]))), "{actions:?}");
            assert!(ops(&actions).iter().any(goes) && !ops(&actions).iter().any(of_root), "{actions:?}");
        }
    }
    let mut sink = sink_of(false, Some(meta));
    let mut pieces = pieces_of(root, G0, values(&[("user.a", 1), ("user.b", 2)]));
    pieces.pop();
    hears(&mut sink, Message::Metadata(pieces));
    let text = refusal(&hears(&mut sink, Message::End(Default::default()))).expect("it is refused");
    assert!(text.contains("destination root"), "{text}");
}

/// Goal: a source tells of the root once, and hears of its end once; one that was not to have it ignores
/// that.
#[test]
fn the_source_tells_of_the_root() {
    for asked in [true, false] {
        let mut source = source_of(asked);
        source.handle_root(values(&[("user.a", 1)]));
        let sent = std::iter::from_fn(|| source.poll_action())
            .any(|action| matches!(action, SourceAction::Send(Message::Metadata(pieces)) if pieces[0].id == FileId(0)));
        assert_eq!(sent, asked);
        for (at, ends) in [(1, asked), (2, false)] {
            let outcome = Outcome::Done { root: None, change: Change::TIME };
            let item = DoneItem { id: FileId(0), generation: G0, outcome };
            source.handle_message(Message::Done(vec![item]));
            let ended = std::iter::from_fn(|| source.poll_action()).any(|action| {
                matches!(action, SourceAction::EntryEnded { id, change: Change::TIME, .. } if id == FileId(0))
            });
            assert_eq!(ended, ends, "{asked} {at}");
        }
    }
}

/// Goal: what is never kept, and what was not asked for, reaches no engine, and is counted.
/// Method: attributes of each class and a list, in a session that keeps attributes alone.
#[test]
fn classes_that_are_never_kept_are_held_back() {
    let mut sink = sink(false);
    begin(&mut sink);
    let mut sent = values(&[
        ("user.a", 1),
        ("trusted.lov", 1),
        ("security.selinux", 1),
        ("system.x", 1),
        ("user.haul.x", 1),
    ]);
    sent.insert((Namespace::AccessAcl, [].into()), vec![1]);
    // That not all came is no attribute, and the engine has to know it.
    let mark = Unread { xattrs: true, acls: false };
    mark.mark(&mut sent);
    let actions = hears(&mut sink, metadata(ID, sent));
    let told = actions.iter().find_map(|action| match action {
        SinkAction::Metadata { values, .. } => Some((**values).clone()),
        _ => None,
    });
    let mut kept = values(&[("user.a", 1)]);
    mark.mark(&mut kept);
    assert_eq!(told, Some(kept));
    assert_eq!(sink.counts().refused_metadata, 5);
}

/// Goal: all open entries together have no more than their bound, whoever sends it; nothing comes for what
/// was never announced; what comes for what is over has no effect.
/// Method: as much as fits, in many entries, and one piece more; a piece of an unknown entry.
#[test]
fn open_metadata_are_bounded() {
    let mut sink = sink(false);
    let entries = (1..2000).map(|id| entry(FileId(id), file(), true)).collect();
    assert_eq!(refusal(&hears(&mut sink, Message::Announce(entries))), None);
    let len = METADATA_VALUE_LEN_MAX as usize;
    let most = METADATA_OPEN_MAX / len;
    let mut ended = None;
    for id in 1..2000 {
        let names: Vec<String> = (0..8).map(|at| format!("user.{at}")).collect();
        let all: Vec<(&str, usize)> = names.iter().map(|name| (name.as_str(), len)).collect();
        if let Some(text) = refusal(&hears(&mut sink, metadata(FileId(id), values(&all)))) {
            ended = Some((id as usize * 8, text));
            break;
        }
    }
    let (sent, text) = ended.expect("it is refused");
    assert!(sent <= most + 8 && sent >= most - 8, "{sent} of {most}");
    assert!(text.contains("more metadata of open entries"), "{text}");
    let mut sink = self::sink(false);
    let told = refusal(&hears(&mut sink, metadata(FileId(9), values(&[("user.a", 1)]))));
    assert!(told.is_some_and(|text| text.contains("never announced")));
    let mut sink = self::sink(false);
    begin(&mut sink);
    let later = Generation(3);
    let late = Message::Metadata(pieces_of(ID, later, values(&[("user.a", 1)])));
    assert_eq!(refusal(&hears(&mut sink, late)), None);
    let too_much: Vec<MetadataPiece> = (0..=METADATA_LEN_MAX / METADATA_VALUE_LEN_MAX)
        .flat_map(|at| pieces_of(ID, G0, values(&[(&format!("user.{at}"), len)])))
        .map(|piece| MetadataPiece { last: false, ..piece })
        .collect();
    assert!(refusal(&hears(&mut sink, Message::Metadata(too_much))).is_some());
}

/// Goal: an entry of which something could not be kept has its name, and is told as failed, with the reason.
/// Method: a file whose engine says so before it ends its commit.
#[test]
fn what_is_unkept_is_told_behind_the_name() {
    let mut sink = sink(false);
    begin(&mut sink);
    hears(&mut sink, metadata(ID, values(&[("user.a", 1)])));
    sink.handle_tick(Time(20_000_000_000));
    acts(&mut sink);
    let failure = Failure { kind: FailureKind::Metadata, errno: 28, text: "no room for it".into() };
    sink.handle_done(SinkDone::Unkept { id: ID, failure: failure.clone() }, Time(3));
    sink.handle_done(SinkDone::Commit { results: vec![(ID, Ok(()))], lost: Vec::new() }, Time(4));
    let mut actions = acts(&mut sink);
    if ops(&actions).iter().any(|op| matches!(op, SinkOp::Journal { .. })) {
        sink.handle_done(SinkDone::Journal { result: Ok(()) }, Time(5));
        actions.extend(acts(&mut sink));
    }
    let done = DoneItem { id: ID, generation: G0, outcome: Outcome::Failed(failure) };
    assert!(actions.contains(&SinkAction::Send(Message::Done(vec![done]))), "{actions:?}");
    assert!(!ops(&actions).iter().any(|op| matches!(op, SinkOp::Discard { .. })), "{actions:?}");
    assert!(!actions.iter().any(|action| matches!(action, SinkAction::Finished(_))), "the run goes on");
    assert!(actions.contains(&SinkAction::ForgetMetadata { id: ID }));
}

/// Goal: a source sends metadata directly behind their entries, begins no other entry while open ones have
/// half of the bound, and gives directories no more than half of that.
/// Method: files with as much as an entry may have, until it wants no more; one ends. Then directories.
#[test]
fn sources_wait_for_open_metadata() {
    let mut source = source();
    let len = METADATA_VALUE_LEN_MAX as usize;
    let names: Vec<String> = (0..15).map(|at| format!("user.{at}")).collect();
    let most: Vec<(&str, usize)> = names.iter().map(|name| (name.as_str(), len)).collect();
    let mut count = 0;
    while source.wants_entries() {
        count += 1;
        assert!(source.handle_entry_with(
            entry(FileId(count), link(), false),
            Some(values(&most)),
            Lies::Ask,
            Time(0)
        ));
        assert!(count < 1000);
    }
    assert!((count as usize) * 15 * len <= METADATA_OPEN_MAX / 2 + METADATA_LEN_MAX as usize);
    let sent: Vec<Message> = std::iter::from_fn(|| source.poll_action())
        .filter_map(|action| if let SourceAction::Send(message) = action { Some(message) } else { None })
        .collect();
    let (mut announced, mut whole) = (0, 0);
    for message in sent {
        match message {
            Message::Announce(entries) => {
                assert_eq!(announced, whole, "those of the entries before came");
                assert!(entries.iter().all(|entry| entry.extras.metadata));
                announced += entries.len();
            }
            Message::Metadata(pieces) => whole += pieces.iter().filter(|piece| piece.last).count(),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((announced, whole), (count as usize, count as usize));
    let done =
        DoneItem { id: ID, generation: G0, outcome: Outcome::Done { root: None, change: Change::NEW } };
    source.handle_message(Message::Done(vec![done]));
    assert!(source.wants_entries());

    let mut source = self::source();
    let took = (1..100)
        .filter(|id| {
            source.handle_entry_with(
                entry(FileId(*id), dir(), false),
                Some(values(&most)),
                Lies::Ask,
                Time(0),
            )
        })
        .count();
    assert!(took * 15 * len <= METADATA_OPEN_MAX / 4 && took > 10, "{took}");
    assert!(source.wants_entries(), "what lies in them comes");
    let mut marked = 0;
    while let Some(action) = source.poll_action() {
        let SourceAction::Send(Message::Metadata(pieces)) = action else { continue };
        for piece in pieces.into_iter().filter(|piece| piece.last) {
            let last: Values = [((piece.namespace, piece.name), piece.piece.into())].into();
            marked += usize::from(Unread::of(&last).any());
        }
    }
    assert_eq!(took + marked, 99, "of those without theirs nothing is removed");
}

/// Goal: whatever entries have of attributes, each message of them can be sent, and they come whole.
/// Method: one file with many of a medium length; many with a few of the longest; names of the longest.
#[test]
fn metadata_fit_their_messages() {
    let long = |at: usize| format!("user.{at:0250}");
    let short = |at: usize| format!("user.{at}");
    let many = |count: usize, len: usize, name: &dyn Fn(usize) -> String| -> Values {
        (0..count).map(|at| ((Namespace::Xattr, name(at).into_bytes().into()), vec![7; len])).collect()
    };
    let mut of: Vec<Vec<Values>> =
        vec![vec![many(261, 4000, &short)], vec![many(4000, 7, &long)], vec![many(30_000, 0, &short)]];
    of.push((0..40).map(|file| many(1 + file % 15, 65_000, &short)).collect());
    for entries in of {
        let mut source = source();
        for (at, values) in entries.iter().enumerate() {
            let id = FileId(at as u64 + 1);
            assert!(source.handle_entry_with(
                entry(id, link(), false),
                Some(values.clone()),
                Lies::Ask,
                Time(0)
            ));
        }
        let mut whole: Vec<Gathering> = Vec::new();
        whole.resize_with(entries.len(), Gathering::default);
        let mut told = Vec::new();
        while let Some(action) = source.poll_action() {
            let SourceAction::Send(message) = action else { continue };
            let mut body = Vec::new();
            // It panics over what no message may be.
            encode_message(&message, &mut body);
            let Message::Metadata(pieces) = message else { continue };
            for piece in pieces {
                let at = piece.id.0 as usize - 1;
                told.extend(whole[at].add(piece).expect("it follows").map(|values| (at, values)));
            }
        }
        assert!(told.into_iter().eq(entries.into_iter().enumerate()));
    }
}

fn source() -> Source {
    source_of(false)
}

fn source_of(root: bool) -> Source {
    Source::new(SourceConfig {
        agreed: agreed(),
        memory: 1 << 24,
        reads_max: 4,
        reads_total: 4,
        bundle_files: 512,
        policy: Policy::ADAPTIVE,
        wait: true,
        dry: false,
        root,
        clones: false,
        changed: Default::default(),
        verify: false,
        compares: true,
        patience: std::time::Duration::ZERO,
    })
}
