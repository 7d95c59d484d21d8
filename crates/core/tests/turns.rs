//! Stores that take bytes in ascending order alone: a file that is begun again, with little memory.
//!
//! In: an announcement and frames, sent by a source of this test; writes that are done at once. Out: how
//! often the objects of the file had to be sent.

use haul_core::digest::{DigestKind, subtrees};
use haul_core::entry::{EntryKind, Extras, Fingerprint, Meta, Name, Timestamp, Version};
use haul_core::ids::{BufferId, DirId, FileId, Generation, Holder, SinkTarget, StreamId, Time};
use haul_core::journal::{Record, Replayed, Resume, RootId, compact};
use haul_core::transfer::op::{Existing, Found, SinkDone, SinkOp};
use haul_core::transfer::sink::{Sink, SinkAction, SinkConfig};
use haul_core::wire::{
    Agreed, Announced, DataEntry, DataHeader, Failure, FailureKind, Message, SinkOptions, credit_cost,
};

const OBJECT: u64 = 4 << 20;

/// A sink of such a store, and a source that does what the wire asks of it.
struct Bench {
    sink: Sink,
    size: u64,
    granted: u64,
    sent: u64,
    frames: u64,
    /// What is to be sent: the last is next.
    to_send: Vec<u64>,
    /// The store loses the file at its last object, once.
    loses: bool,
    written: Vec<u64>,
}

impl Bench {
    fn new(memory: u64, objects: u64) -> Bench {
        let head = Record::Head { job: [1; 16], root: RootId::new(&[1]).expect("short") };
        let session =
            Record::Session { epoch: 1, tag: 1, boot: [1; 16], durable: true, lease: Holder::ALONE };
        let replayed = Replayed::default();
        let (_, log, _, next_slot) = compact(&replayed, head, session);
        let config = SinkConfig {
            part: None,
            agreed: Agreed::plain(1000),
            policy: SinkOptions::PLAIN,
            memory,
            wait: true,
            files_open_max: 1000,
            tag: 1,
            targets: None,
            ascending: Some(8),
            round_trip: None,
            names: None,
        };
        let sink = Sink::new(config, Resume { replayed, log, next_slot });
        // Of its own accord the source sends them from the first on.
        let to_send = (0..objects).rev().map(|object| object * OBJECT).collect();
        let size = objects * OBJECT;
        Bench { sink, size, granted: 0, sent: 0, frames: 0, to_send, loses: true, written: Vec::new() }
    }

    fn announce(&mut self) {
        let mtime = Timestamp { secs: 1, nanos: 0 };
        let fingerprint = Fingerprint { size: self.size, mtime, version: Version::NONE };
        let object_size = OBJECT as u32;
        let file = Announced {
            id: FileId(1),
            generation: Generation(0),
            parent: DirId::ROOT,
            name: Name::new(b"large").expect("legal"),
            meta: Meta { mode: 0o644, uid: 0, gid: 0, mtime },
            kind: EntryKind::File { fingerprint, object_size, sparse: false, striped: false },
            extras: Extras::default(),
        };
        self.sink.handle_message(Message::Announce(vec![file]), Time(1));
    }

    /// The source sends one frame, if it may. False: it may not, or has nothing to send.
    fn send(&mut self) -> bool {
        let cost = credit_cost(OBJECT);
        if self.granted < self.sent + cost {
            return false;
        }
        let Some(offset) = self.to_send.pop() else { return false };
        self.sent += cost;
        self.frames += 1;
        let tail = offset + OBJECT == self.size;
        let entry = DataEntry {
            id: FileId(1),
            generation: Generation(0),
            offset,
            len: OBJECT as u32,
            root: false,
            hole: false,
            tail,
            sealed: false,
            pass: 0,
            digest: DigestKind::Blake3,
            cvs: subtrees(offset, OBJECT, tail).map(|_| [7; 32]).collect(),
        };
        let header = DataHeader { sink_target: SinkTarget::ANY, entries: vec![entry] };
        let buffer = BufferId(self.frames as u32);
        self.sink.handle_data(StreamId(1), header, Some(buffer), vec![true], Time(1));
        true
    }

    fn act(&mut self) {
        while let Some(action) = self.sink.poll_action() {
            let done = match action {
                SinkAction::Send(Message::Grant { total, .. }) => {
                    self.granted = total;
                    continue;
                }
                SinkAction::Send(Message::Resend(extents)) => {
                    self.to_send.extend(extents.iter().map(|extent| extent.offset));
                    continue;
                }
                SinkAction::Submit(SinkOp::Lookup { items }) => {
                    let existing = Existing::Nothing;
                    let nothing = Found { existing, seen: None, adopted: false, len: 0, begun: false };
                    let results = items.into_iter().map(|item| (item.file.id, Ok(nothing))).collect();
                    SinkDone::Lookup { results }
                }
                SinkAction::Submit(SinkOp::Discard { id }) => SinkDone::Discard { id },
                SinkAction::Submit(SinkOp::Write { file, offset, len, buffer, .. }) => {
                    let again = self.loses && offset + u64::from(len) == self.size;
                    self.loses &= !again;
                    match again {
                        true => self.written.clear(),
                        false => self.written.push(offset),
                    }
                    let lost = Failure { kind: FailureKind::Write, errno: 0, text: "it is lost".into() };
                    let result = if again { Err(lost) } else { Ok(()) };
                    SinkDone::Write { id: file.id, offset, len, buffer, took: None, result, again }
                }
                SinkAction::Submit(op) => panic!("{op:?}"),
                _ => continue,
            };
            self.sink.handle_done(done, Time(1));
        }
    }
}

/// Goal: a file that the store lost comes once more, and no object of it comes for ever, however few buffers
/// there are.
/// Method: a source that sends what was asked for last first, one frame after the other.
#[test]
fn what_is_asked_for_again_comes_to_an_end() {
    for objects in [2, 9, 65, 300] {
        for buffers in [2, 3, 8, 16, 64] {
            let mut bench = Bench::new(buffers * credit_cost(OBJECT), objects);
            bench.announce();
            bench.act();
            while bench.send() && bench.frames < 100 * objects {
                bench.act();
            }
            let all: Vec<u64> = (0..objects).map(|object| object * OBJECT).collect();
            assert_eq!(bench.written, all, "{objects} objects, {buffers} buffers: {} frames", bench.frames);
            assert!(bench.frames <= 3 * objects, "{objects} objects, {buffers} buffers: {}", bench.frames);
        }
    }
}
