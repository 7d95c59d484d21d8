//! Credit by the sink's targets: an object goes only where there is room, and what does not go is given back.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use haul_core::digest::Subtree;
use haul_core::entry::{EntryKind, Extras, Fingerprint, Meta, Name};
use haul_core::ids::{BufferId, DirId, FileId, Generation, Holder, SinkTarget, StreamId, TargetId, Time};
use haul_core::layout::{Component, Layout, Striping};
use haul_core::schedule::Policy;
use haul_core::transfer::op::{ReadOk, SourceDone, SourceOp};
use haul_core::transfer::source::{
    Lies, SPILL_STALL, Source, SourceAction, SourceConfig, SpillConfig, Stall,
};
use haul_core::wire::{
    Agreed, Announced, Extent, Failure, FailureKind, FileLayout, FileState, Message, credit_cost,
};

const OBJECT: u32 = 1 << 20;
const FILE: FileId = FileId(1);
const G0: Generation = Generation(0);
const MS: Duration = Duration::from_millis(1);

/// A source with a file of twelve objects and one data stream; even objects go to sink target 1, odd ones to
/// sink target 2.
fn source(targets: bool) -> Source {
    source_of(targets, Lies::At(TargetId(0)), OBJECT, 64)
}

/// A source whose file has to be asked for, in objects of at most this length.
fn source_with(object_size: u32) -> Source {
    source_of(true, Lies::Ask, object_size, 64)
}

fn source_of(targets: bool, lies: Lies, object_size: u32, reads_max: u32) -> Source {
    // The window of each target is another test's.
    let policy = if lies == Lies::Ask { Policy::ROUND_ROBIN } else { Policy::ADAPTIVE };
    let config = SourceConfig { reads_max, reads_total: reads_max, policy, ..config(targets) };
    begun(config, lies, object_size)
}

fn config(targets: bool) -> SourceConfig {
    SourceConfig {
        agreed: Agreed { targets, layouts: true, ..Agreed::plain(100) },
        memory: 1 << 30,
        reads_max: 64,
        reads_total: 64,
        bundle_files: 512,
        policy: Policy::ADAPTIVE,
        wait: false,
        dry: false,
        root: false,
        clones: false,
        changed: Default::default(),
        verify: false,
        compares: true,
        patience: Duration::from_secs(60),
    }
}

fn begun(config: SourceConfig, lies: Lies, object_size: u32) -> Source {
    let mut source = Source::new(config);
    source.handle_stream_up(StreamId(1));
    let fingerprint = Fingerprint { size: 12 * u64::from(OBJECT), ..Fingerprint::default() };
    let entry = Announced {
        id: FILE,
        generation: G0,
        parent: DirId::ROOT,
        name: Name::new(b"file").expect("legal"),
        meta: Meta::default(),
        kind: EntryKind::File { fingerprint, object_size, sparse: false, striped: false },
        extras: Extras::default(),
    };
    source.handle_entry(entry, lies, Time(0));
    source
}

fn tell_layout(source: &mut Source) {
    let targets = vec![SinkTarget(1), SinkTarget(2)];
    let layout = Layout::new(vec![Component { start: 0, stripe_size: OBJECT.into(), targets }]);
    source.handle_file_targets(FILE, G0, Arc::new(layout.expect("a layout")));
}

/// The objects that are read now, by number.
fn reads(source: &mut Source) -> Vec<u64> {
    let ask = std::iter::from_fn(|| source.poll_action()).filter_map(|action| match action {
        SourceAction::Submit(SourceOp::Read { offset, .. }) => Some(offset / u64::from(OBJECT)),
        _ => None,
    });
    ask.collect()
}

fn done(source: &mut Source, object: u64) {
    let (buffer, offset) = (BufferId(object as u32), object * u64::from(OBJECT));
    let result = Ok(ReadOk { buffer, cvs: vec![[7; 32]; 16] });
    let (target, service) = (TargetId(0), Some(Duration::from_millis(1)));
    let done = SourceDone::Read { id: FILE, generation: G0, offset, len: OBJECT, target, service, result };
    source.handle_done(done, Time(1_000_000));
}

fn grant(source: &mut Source, sink_target: u16, objects: u64) {
    let total = objects * credit_cost(OBJECT.into());
    source.handle_message(Message::Grant { by: Holder::ALONE, sink_target, total });
}

/// Goal: an object needs credit of its sink target and the general one; each object is read once, also those
/// that wait when the sink says where the file goes.
#[test]
fn objects_go_where_there_is_room() {
    let mut source = source(true);
    grant(&mut source, 0, 2);
    assert_eq!(reads(&mut source), [0, 1], "before the sink said where it goes");
    tell_layout(&mut source);
    grant(&mut source, 0, 100);
    assert_eq!(reads(&mut source), [0; 0], "nothing is granted for either");
    grant(&mut source, 2, 2);
    assert_eq!(reads(&mut source), [3, 5]);
    grant(&mut source, 1, 1);
    assert_eq!(reads(&mut source), [2]);
    grant(&mut source, 2, 3);
    grant(&mut source, 1, 9);
    assert_eq!(
        {
            let mut all = reads(&mut source);
            all.sort_unstable();
            all
        },
        [4, 6, 7, 8, 10]
    );
    grant(&mut source, 2, 9);
    assert_eq!(reads(&mut source), [9, 11]);
}

/// Goal: what a stream lost gives its credit back, to its sink target and once.
#[test]
fn credit_of_lost_frames_comes_back() {
    let mut source = source(true);
    tell_layout(&mut source);
    grant(&mut source, 0, 100);
    grant(&mut source, 1, 1);
    assert_eq!(reads(&mut source), [0]);
    done(&mut source, 0);
    assert_eq!(reads(&mut source), [0; 0]);
    source.handle_message(Message::StreamClosed { stream: StreamId(1), frames: 0 });
    source.handle_stream_up(StreamId(2));
    assert_eq!(reads(&mut source), [0], "the lost one, with what it gave back");
    assert_eq!(reads(&mut source), [0; 0]);
}

/// Goal: what is asked for of a file that the sink held whole is read within the memory, the grant, and the
/// grant of its sink target, although nothing was queued to be read before that could tell how long its
/// objects are.
/// Method: a session whose only file is held whole and then is not; each of the three bounds in turn leaves
/// three objects and a half.
#[test]
fn what_was_held_whole_is_read_within_bounds() {
    let object = OBJECT / 8;
    let cost = credit_cost(object.into());
    let (bound, plenty) = (3 * cost + cost / 2, 1 << 30);
    for (memory, general, sink_target) in
        [(bound, plenty, plenty), (plenty, bound, plenty), (plenty, plenty, bound)]
    {
        let config = SourceConfig { wait: true, memory, ..config(true) };
        let mut source = begun(config, Lies::At(TargetId(0)), object);
        let size = 12 * u64::from(OBJECT);
        let subtrees = vec![Subtree { offset: 0, len: size, cv: [9; 32] }];
        let held = FileState::Held { subtrees, verify: false };
        source.handle_message(Message::FileStates(vec![(FILE, G0, held)]));
        source.handle_file_targets(FILE, G0, Arc::new(Layout::flat(SinkTarget(1))));
        source.handle_grant(SinkTarget::ANY, general);
        source.handle_grant(SinkTarget(1), sink_target);
        assert_eq!(reads(&mut source), [0; 0], "all of it is held");
        let all = Extent { id: FILE, generation: G0, offset: 0, len: size };
        source.handle_message(Message::NotHeld(vec![all]));
        let read = reads(&mut source).len() as u64;
        assert_eq!(read, 3, "memory {memory}, granted {general}, for its sink target {sink_target}");
    }
}

/// A source with a spill file. A read takes 40 ms, one after another, and all else no time.
struct Spilling {
    source: Source,
    now: Duration,
    /// Objects of the frames that go, in order.
    sent: Vec<u64>,
    /// What lies in the slots.
    slots: HashMap<u32, u64>,
    /// So many can be stored; then the file fails.
    stores: u32,
}

impl Spilling {
    fn new(reads_max: u32) -> Spilling {
        let mut source = source_of(true, Lies::At(TargetId(0)), OBJECT, reads_max);
        let stall = Duration::from_millis(200);
        source.use_spill(SpillConfig { slots: 64, slot_len: 2 * OBJECT, stall });
        Spilling { source, now: Duration::ZERO, sent: Vec::new(), slots: HashMap::new(), stores: u32::MAX }
    }

    fn run(&mut self, end: Duration) {
        loop {
            while let Some(action) = self.source.poll_action() {
                match action {
                    SourceAction::Submit(SourceOp::Read { offset, .. }) => {
                        self.now += 40 * MS;
                        self.source.handle_tick(Time(0).after(self.now));
                        let (buffer, target) = (BufferId((offset / u64::from(OBJECT)) as u32), TargetId(0));
                        let result = Ok(ReadOk { buffer, cvs: vec![[7; 32]; 16] });
                        let service = Some(40 * MS);
                        let read = SourceDone::Read {
                            id: FILE,
                            generation: G0,
                            offset,
                            len: OBJECT,
                            target,
                            service,
                            result,
                        };
                        self.source.handle_done(read, Time(0).after(self.now));
                    }
                    SourceAction::SendData { stream, header, .. } => {
                        self.sent.extend(header.entries.iter().map(|entry| entry.offset / u64::from(OBJECT)));
                        self.source.handle_sent(stream, self.sent.len() as u64);
                    }
                    SourceAction::Store { slot, buffer, .. } => {
                        let result = if self.stores > 0 { Ok(()) } else { Err(full()) };
                        if result.is_ok() {
                            self.stores -= 1;
                            self.slots.insert(slot, buffer.0.into());
                        }
                        self.source.handle_stored(slot, result);
                    }
                    SourceAction::Fetch { slot, .. } => {
                        let object = self.slots.remove(&slot).expect("it was stored");
                        self.source.handle_fetched(slot, Ok(BufferId(object as u32)));
                    }
                    _ => {}
                }
            }
            let due = self.source.next_deadline().map(|time| time.since(Time(0)));
            if self.now >= end {
                return;
            }
            self.now = due.filter(|due| (self.now..end).contains(due)).unwrap_or(end).max(self.now + MS);
            self.source.handle_tick(Time(0).after(self.now));
        }
    }
}

/// Goal: what goes to sink targets that are shut is read ahead to flash in a stall, whatever general credit
/// is left, takes their credit when it goes and not before, and goes by sink target: one that stays shut
/// keeps only its own. So it is, too, where reads take all that is granted at once.
#[test]
fn shut_sink_targets_spill() {
    for reads_max in [2, 64] {
        let mut spilling = Spilling::new(reads_max);
        tell_layout(&mut spilling.source);
        grant(&mut spilling.source, 0, 100);
        grant(&mut spilling.source, 1, 3);
        grant(&mut spilling.source, 2, 3);
        spilling.run(Duration::from_millis(300));
        assert_eq!(spilling.sent.len(), 6);
        assert!(spilling.slots.is_empty(), "the sink has not stood still for long enough");
        spilling.run(Duration::from_secs(2));
        assert_eq!((spilling.sent.len(), spilling.slots.len()), (6, 6), "the rest waits on flash");
        let counts = spilling.source.spill_counts();
        assert_eq!((counts.stalls, counts.stored), (1, 6 * u64::from(OBJECT)));
        let stall = counts.longest[0];
        assert_eq!((stall.stored, counts.longest[1]), (counts.stored, Stall::default()));
        let (began, ends) = (Duration::from_millis(240), spilling.now);
        assert!(
            stall.at >= began && stall.at <= began + SPILL_STALL,
            "the sixth was sent after 240 ms: {stall:?}"
        );
        assert!(stall.lasted <= ends - stall.at, "{stall:?}");
        assert!(stall.lasted + SPILL_STALL >= ends - stall.at, "it goes on: {stall:?}");
        grant(&mut spilling.source, 2, 5);
        spilling.run(Duration::from_secs(3));
        assert_eq!(spilling.sent[6..], [7, 9], "two of sink target 2");
        grant(&mut spilling.source, 1, 6);
        grant(&mut spilling.source, 2, 6);
        spilling.run(Duration::from_secs(4));
        assert!(spilling.slots.is_empty());
        spilling.sent.sort_unstable();
        assert_eq!(spilling.sent, (0..12).collect::<Vec<_>>());
        let after = spilling.source.spill_counts();
        assert_eq!(
            (after.stalls, after.longest[0].stored),
            (1, counts.stored),
            "what was missed later was no stall"
        );
        assert!(after.longest[0].at == stall.at && after.stall_time == after.longest[0].lasted, "{after:?}");
    }
}

/// Goal: a sink that grants something now and then, far below what it took before, stalls.
#[test]
fn a_sink_that_crawls_stalls() {
    let mut spilling = Spilling::new(2);
    tell_layout(&mut spilling.source);
    grant(&mut spilling.source, 0, 100);
    grant(&mut spilling.source, 1, 3);
    grant(&mut spilling.source, 2, 3);
    spilling.run(Duration::from_millis(400));
    for more in 1..=2 {
        // An object in 170 ms where four were read.
        grant(&mut spilling.source, 1, 3 + more);
        spilling.run(Duration::from_millis(400 + 170 * more));
    }
    assert_eq!(spilling.sent.len(), 8);
    assert!(!spilling.slots.is_empty());
}

/// Goal: without the capability grants are what they always were.
#[test]
fn without_targets_every_grant_is_general() {
    let mut source = source(false);
    tell_layout(&mut source);
    grant(&mut source, 3, 4);
    assert_eq!(reads(&mut source), [0, 1, 2, 3]);
}

/// Goal: where the source's stripes are shorter than objects, objects are as long as these, but not under 1
/// MiB; and the sink hears of it before the first read.
/// Method: a file whose place is asked for, in stripes of several sizes.
#[test]
fn objects_are_as_long_as_stripes() {
    let mib = u64::from(OBJECT);
    for (stripe_size, len) in [(4 * mib, 4 * mib), (2 * mib, 2 * mib), (3 * mib, mib), (mib / 4, mib)] {
        let mut source = source_with(4 * OBJECT);
        grant(&mut source, 0, 100);
        let asked: Vec<SourceAction> = std::iter::from_fn(|| source.poll_action()).collect();
        let announces = |action: &SourceAction| match action {
            SourceAction::Send(Message::Announce(entries)) => {
                matches!(entries[0].kind, EntryKind::File { striped: true, object_size, .. } if object_size == 4 * OBJECT)
            }
            _ => false,
        };
        assert!(asked.iter().any(announces), "{asked:?}");
        assert!(matches!(asked.last(), Some(SourceAction::Submit(SourceOp::Locate { .. }))), "{asked:?}");
        let targets = (0..3).map(TargetId).collect();
        let layout = Layout::new(vec![Component { start: 0, stripe_size, targets }]).expect("a layout");
        let files = vec![(FILE, G0, Arc::new(layout))];
        source.handle_done(SourceDone::Locate { files }, Time(1));
        let told = source.poll_action();
        let striping = Some(Striping { stripe_size, stripe_count: 3 });
        let expected = FileLayout { id: FILE, generation: G0, object_size: len as u32, striping };
        assert_eq!(told, Some(SourceAction::Send(Message::FileLayout(vec![expected]))));
        let read = std::iter::from_fn(|| source.poll_action()).filter_map(|action| match action {
            SourceAction::Submit(SourceOp::Read { offset, len, .. }) => Some((offset, u64::from(len))),
            _ => None,
        });
        let mut read: Vec<_> = read.collect();
        read.sort_unstable();
        let all: Vec<_> = (0..12 * mib / len).map(|at| (at * len, len)).collect();
        assert_eq!(read, all, "stripes of {stripe_size}");
    }
}

fn full() -> Failure {
    Failure { kind: FailureKind::Write, errno: 28, text: "no space".into() }
}

/// Goal: when the spill file fails the stall is over for the report: nobody looks when the sink goes on.
#[test]
fn a_stall_is_not_told_beyond_the_spill_file() {
    let mut spilling = Spilling::new(2);
    spilling.stores = 2;
    tell_layout(&mut spilling.source);
    grant(&mut spilling.source, 0, 100);
    grant(&mut spilling.source, 1, 3);
    grant(&mut spilling.source, 2, 3);
    spilling.run(Duration::from_secs(1));
    assert_eq!(spilling.slots.len(), 2);
    let counts = spilling.source.spill_counts();
    assert_eq!((counts.stalls, counts.stored), (1, 2 * u64::from(OBJECT)));
    spilling.run(Duration::from_secs(9));
    assert_eq!(spilling.source.spill_counts().longest, counts.longest);
    assert!(counts.stall_time > Duration::ZERO && counts.stall_time < Duration::from_secs(1), "{counts:?}");
    grant(&mut spilling.source, 1, 6);
    grant(&mut spilling.source, 2, 6);
    spilling.run(Duration::from_secs(11));
    spilling.sent.sort_unstable();
    assert_eq!(spilling.sent, (0..12).collect::<Vec<_>>(), "nothing is lost with it");
}
