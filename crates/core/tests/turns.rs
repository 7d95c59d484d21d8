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
use haul_core::transfer::{Ended, SessionEnd};
use haul_core::wire::{
    Agreed, Announced, DataEntry, DataHeader, DoneItem, Failure, FailureKind, Message, Outcome, SinkOptions,
    credit_cost,
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
    /// What it told besides.
    told: Vec<SinkAction>,
}

impl Bench {
    fn new(memory: u64, objects: u64) -> Bench {
        let head = Record::Head { job: [1; 16], root: RootId::new(&[1]).expect("short") };
        let session =
            Record::Session { epoch: 1, tag: 1, boot: [1; 16], durable: true, lease: Holder::ALONE };
        let replayed = Replayed::default();
        let (_, log, _, next_slot) = compact(&replayed, head, session);
        let config = SinkConfig {
            root: None,
            clones: None,
            nodes: Default::default(),
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
        let (written, told) = (Vec::new(), Vec::new());
        Bench { sink, size, granted: 0, sent: 0, frames: 0, to_send, loses: true, written, told }
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
                other => {
                    self.told.push(other);
                    continue;
                }
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

/// Goal: a destination that cannot be reached any more ends the session at once, as one that failed. What was
/// announced and did not end is named before that, here and to the source, and once; what comes to nothing
/// behind it is no fault of its own. After a stop it changes nothing.
#[test]
fn a_destination_that_is_gone_ends_the_session() {
    let gone = || Failure { kind: FailureKind::Write, errno: 111, text: "it is gone".into() };
    let begun = || {
        let mut bench = Bench::new(8 * credit_cost(OBJECT), 3);
        bench.loses = false;
        bench.announce();
        bench.act();
        bench
    };
    let mut bench = begun();
    assert!(bench.send());
    let write = std::iter::from_fn(|| bench.sink.poll_action()).find_map(|action| match action {
        SinkAction::Submit(SinkOp::Write { file, offset, len, buffer, .. }) => {
            Some((file.id, offset, len, buffer))
        }
        _ => None,
    });
    let (id, offset, len, buffer) = write.expect("it is written");
    bench.sink.handle_done(SinkDone::Gone { failure: gone() }, Time(2));
    let early: Vec<SinkAction> = std::iter::from_fn(|| bench.sink.poll_action()).collect();
    assert!(!early.iter().any(|action| matches!(action, SinkAction::Finished(_))), "{early:?}");
    let lost = Failure { kind: FailureKind::Network, errno: 104, text: "reset".into() };
    let done = SinkDone::Write { id, offset, len, buffer, took: None, result: Err(lost), again: false };
    bench.sink.handle_done(done, Time(3));
    // Told again, as by each thread that meets it.
    bench.sink.handle_done(SinkDone::Gone { failure: gone() }, Time(3));
    bench.act();
    let actions: Vec<SinkAction> = std::mem::take(&mut bench.told);
    let named = actions.iter().filter(|action| {
        matches!(action, SinkAction::EntryEnded { id: FileId(1), end: Ended::Failed(why), .. } if *why == gone())
    });
    assert_eq!(named.count(), 1, "{actions:?}");
    let item = DoneItem { id, generation: Generation(0), outcome: Outcome::Failed(gone()) };
    let last = [
        SinkAction::Send(Message::Done(vec![item])),
        SinkAction::Send(Message::Abort(gone())),
        SinkAction::Finished(SessionEnd::Failed(gone())),
    ];
    assert!(actions.ends_with(&last), "{actions:?}");

    let mut stopped = begun();
    stopped.sink.stop();
    stopped.sink.handle_done(SinkDone::Gone { failure: gone() }, Time(2));
    stopped.sink.handle_tick(Time(u64::MAX / 2));
    stopped.act();
    assert_eq!(stopped.told.last(), Some(&SinkAction::Finished(SessionEnd::Stopped)), "{:?}", stopped.told);
}
