//! What a sink says of parts that an earlier run left, by what the source makes of them.
//!
//! In: a journal that promises parts of a file of another version, which the source has to compare. Out: what
//! counts as held.

use haul_core::digest::{DigestKind, SubtreeSet, subtrees};
use haul_core::entry::{EntryKind, Extras, Fingerprint, Meta, Name, Timestamp, Version};
use haul_core::ids::{BufferId, DirId, FileId, Generation, Holder, SinkTarget, StreamId, Time};
use haul_core::journal::{Partial, PathKey, Record, Replayed, Resume, RootId, compact};
use haul_core::transfer::op::{Existing, Found, SinkDone, SinkOp};
use haul_core::transfer::sink::{Sink, SinkAction, SinkConfig};
use haul_core::wire::{
    Agreed, Announced, DataEntry, DataHeader, FileState, HeldReport, Message, SinkOptions,
};

const OBJECT: u64 = 4 << 20;
const SIZE: u64 = 2 * OBJECT;
const ID: FileId = FileId(1);
const G0: Generation = Generation(0);

fn print(version: u8) -> Fingerprint {
    let version = Version::new(&[version]).expect("short");
    Fingerprint { size: SIZE, mtime: Timestamp { secs: 1, nanos: 0 }, version }
}

/// A sink with a journal that promises the first object, of version 1.
fn sink(name: &Name) -> Sink {
    let kind = DigestKind::Blake3;
    let mut subtrees = SubtreeSet::new(kind, SIZE);
    subtrees.insert(0, OBJECT, [7; 32]).expect("a part of it");
    let left =
        Partial { fingerprint: print(1), object_size: OBJECT as u32, tag: 7, number: 1, map: None, subtrees };
    let mut replayed = Replayed { tags: vec![7], ..Replayed::default() };
    replayed.partials.insert(PathKey::ROOT.child(name), left);
    let head = Record::Head { job: [1; 16], root: RootId::new(&[1]).expect("short") };
    let session = Record::Session { epoch: 1, tag: 8, boot: [1; 16], durable: true, lease: Holder::ALONE };
    let (_, log, _, next_slot) = compact(&replayed, head, session);
    let config = SinkConfig {
        part: None,
        agreed: Agreed::plain(100),
        policy: SinkOptions::PLAIN,
        memory: 1 << 30,
        wait: true,
        files_open_max: 100,
        tag: 8,
        targets: None,
        ascending: None,
        round_trip: None,
        root: None,
        clones: None,
        nodes: Default::default(),
        names: None,
    };
    Sink::new(config, Resume { replayed, log, next_slot })
}

/// All that is asked for is done; what the temporary holds is as it was left. Out: what it said of the file.
fn act(sink: &mut Sink, now: Time) -> Vec<FileState> {
    let mut said = Vec::new();
    while let Some(action) = sink.poll_action() {
        let done = match action {
            SinkAction::Send(Message::FileStates(states)) => {
                said.extend(states.into_iter().map(|(.., state)| state));
                continue;
            }
            SinkAction::Submit(SinkOp::Lookup { items }) => {
                let found = |adopted| Found {
                    existing: Existing::Nothing,
                    seen: None,
                    adopted,
                    len: if adopted { SIZE } else { 0 },
                    begun: false,
                };
                let results = items.iter().map(|item| (item.file.id, Ok(found(item.adopt == Some(7)))));
                SinkDone::Lookup { results: results.collect() }
            }
            SinkAction::Submit(SinkOp::Check { file, ranges, .. }) => {
                let result = Ok(ranges.iter().map(|_| Some([7; 32])).collect());
                SinkDone::Check { id: file.id, ranges, result }
            }
            SinkAction::Submit(SinkOp::Write { file, offset, len, buffer, .. }) => {
                SinkDone::Write { id: file.id, offset, len, buffer, took: None, result: Ok(()), again: false }
            }
            SinkAction::Submit(SinkOp::Discard { id }) => SinkDone::Discard { id },
            SinkAction::Submit(SinkOp::Journal { .. }) => SinkDone::Journal { result: Ok(()) },
            _ => continue,
        };
        sink.handle_done(done, now);
    }
    said
}

/// Goal: what was read of an earlier run's parts and was as it was left counts as held when the source goes
/// on with it, and not when the source says that it is not of its version: then all of it comes again, and
/// nobody is told that it was held.
#[test]
fn what_was_read_in_vain_is_not_told_as_held() {
    for goes_on in [true, false] {
        let (name, now) = (Name::new(b"f").expect("legal"), Time(1));
        let mut sink = sink(&name);
        let file = Announced {
            id: ID,
            generation: G0,
            parent: DirId::ROOT,
            name,
            meta: Meta { mode: 0o644, uid: 0, gid: 0, mtime: print(2).mtime },
            kind: EntryKind::File {
                fingerprint: print(2),
                object_size: OBJECT as u32,
                sparse: false,
                striped: false,
            },
            extras: Extras::default(),
        };
        sink.handle_message(Message::Announce(vec![file]), now);
        let said = act(&mut sink, now);
        assert!(matches!(&said[..], [FileState::Held { verify: true, .. }]), "{said:?}");
        let held = |sink: &Sink| sink.held().0;
        assert_eq!(held(&sink).checked, OBJECT, "it is read");
        match goes_on {
            true => {
                let (generation, digest) = (G0, DigestKind::Blake3);
                let cvs = subtrees(OBJECT, OBJECT, true).map(|_| [7; 32]).collect();
                let entry = DataEntry {
                    id: ID,
                    generation,
                    offset: OBJECT,
                    len: OBJECT as u32,
                    root: false,
                    hole: false,
                    tail: true,
                    sealed: false,
                    pass: 0,
                    digest,
                    cvs,
                };
                let header = DataHeader { sink_target: SinkTarget::ANY, entries: vec![entry] };
                sink.handle_data(StreamId(1), header, Some(BufferId(1)), vec![true], now);
            }
            false => {
                let withdraw = Message::Withdraw { id: ID, generation: G0, retry: true, failure: None };
                sink.handle_message(withdraw, now);
            }
        }
        act(&mut sink, now);
        let told = HeldReport { checked: if goes_on { OBJECT } else { 0 }, ..held(&sink) };
        assert_eq!((held(&sink), told.wrong, told.trusted), (told, 0, 0), "goes on: {goes_on}");
    }
}
