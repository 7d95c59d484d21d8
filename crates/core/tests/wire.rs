//! The wire format as an independent peer sees it: only the public interface is used.

use fastrand::Rng;
use haul_core::digest::{Subtree, subtrees};
use haul_core::entry::{EntryKind, Fingerprint, LINK_LEN_MAX, Meta, NAME_LEN_MAX, Name, Timestamp};
use haul_core::extents::DataExtent;
use haul_core::ids::{Class, DirId, FileId, Generation, SessionEpoch, StreamId};
use haul_core::layout::{Component, Layout, STRIPES_MAX, Striping};
use haul_core::schedule::Health;
use haul_core::stage::StageTime;
use haul_core::wire::*;

/// Kinds of messages; [`index_of`] and [`message`] cover each.
const MESSAGES: usize = 34;

/// No wildcard: a new message does not compile here until it gets a number, and `MESSAGES` with it.
fn index_of(message: &Message) -> usize {
    match message {
        Message::Hello(_) => 0,
        Message::Sources { .. } => 1,
        Message::Destination { .. } => 2,
        Message::Announce(_) => 3,
        Message::DirEnd(_) => 4,
        Message::State(_) => 5,
        Message::Sealed(_) => 6,
        Message::Withdraw { .. } => 7,
        Message::End(_) => 8,
        Message::Grant { .. } => 9,
        Message::Written { .. } => 10,
        Message::Durable(_) => 11,
        Message::Done(_) => 12,
        Message::Resend(_) => 13,
        Message::StreamClosed { .. } => 14,
        Message::TargetHealth(_) => 15,
        Message::Stop { .. } => 16,
        Message::Stopped => 17,
        Message::Complete => 18,
        Message::Report(_) => 19,
        Message::Abort(_) => 20,
        Message::Ping(_) => 21,
        Message::Pong(_) => 22,
        Message::Trouble { .. } => 23,
        Message::Holes { .. } => 24,
        Message::Notice { .. } => 25,
        Message::Received(_) => 26,
        Message::Streams(_) => 27,
        Message::Knobs(_) => 28,
        Message::FileTargets { .. } => 29,
        Message::Trial(_) => 30,
        Message::FileLayout(_) => 31,
        Message::ObjectLen(_) => 32,
        Message::Placed(_) => 33,
    }
}

fn name(r: &mut Rng) -> Name {
    let len = if r.u8(..8) == 0 { NAME_LEN_MAX } else { r.usize(1..40) };
    let bytes: Vec<u8> = (0..len).map(|_| r.u8(b'0'..)).collect();
    Name::new(&bytes).expect("no slash, no dot, no NUL above '0'")
}

fn text(r: &mut Rng) -> Box<str> {
    (0..r.usize(..60)).map(|_| r.char(..)).collect::<String>().into()
}

/// Small and large numbers alike.
fn number(r: &mut Rng) -> u64 {
    r.u64(..) >> r.u32(..64)
}

fn bytes<const N: usize>(r: &mut Rng) -> [u8; N] {
    std::array::from_fn(|_| r.u8(..))
}

fn list<T>(r: &mut Rng, max: usize, mut item: impl FnMut(&mut Rng) -> T) -> Vec<T> {
    (0..r.usize(..=max)).map(|_| item(r)).collect()
}

fn time(r: &mut Rng) -> Timestamp {
    Timestamp { secs: r.i64(..), nanos: r.u32(..1_000_000_000) }
}

fn version(r: &mut Rng) -> (FileId, Generation) {
    (FileId(number(r)), Generation(r.u32(..)))
}

fn range(r: &mut Rng) -> (u64, u64) {
    (number(r) >> 2, number(r) >> 2)
}

fn extent(r: &mut Rng) -> Extent {
    let ((id, generation), (offset, len)) = (version(r), range(r));
    Extent { id, generation, offset, len }
}

fn failure(r: &mut Rng) -> Failure {
    let stages = [
        Stage::Walk,
        Stage::Open,
        Stage::Read,
        Stage::Changed,
        Stage::Create,
        Stage::Write,
        Stage::Sync,
        Stage::Publish,
        Stage::Metadata,
        Stage::Digest,
        Stage::Protocol,
    ];
    Failure { stage: stages[r.usize(..stages.len())], errno: r.i32(..), text: text(r) }
}

fn announced(r: &mut Rng) -> Announced {
    let kind = match r.u8(..3) {
        0 => EntryKind::Dir,
        1 => EntryKind::File {
            fingerprint: Fingerprint { size: number(r) >> 1, mtime: time(r), ctime: time(r), ino: r.u64(..) },
            object_size: 1 << r.u32(16..=26),
            sparse: r.bool(),
            striped: r.bool(),
        },
        _ => {
            let len = if r.u8(..8) == 0 { LINK_LEN_MAX } else { r.usize(1..80) };
            EntryKind::Symlink { target: (0..len).map(|_| r.u8(1..)).collect() }
        }
    };
    Announced {
        id: FileId(number(r) | 1),
        generation: Generation(r.u32(..)),
        parent: DirId(number(r)),
        name: name(r),
        meta: Meta { mode: r.u32(..0o10000), uid: r.u32(..), gid: r.u32(..), mtime: time(r) },
        kind,
    }
}

fn state(r: &mut Rng) -> (FileId, Generation, FileState) {
    let (id, generation) = version(r);
    let state = match r.u8(..4) {
        0 => FileState::Fresh,
        1 => FileState::Unchanged,
        2 => FileState::Skipped,
        _ => {
            let subtrees = list(r, 5, |r| {
                let (offset, len) = range(r);
                Subtree { offset, len, cv: bytes(r) }
            });
            FileState::Held { subtrees, verify: r.bool() }
        }
    };
    (id, generation, state)
}

fn done(r: &mut Rng) -> DoneItem {
    let (id, generation) = version(r);
    let outcome = match r.u8(..3) {
        0 => Outcome::Done { root: None },
        1 => Outcome::Done { root: Some(bytes(r)) },
        _ => Outcome::Failed(failure(r)),
    };
    DoneItem { id, generation, outcome }
}

fn hello(r: &mut Rng) -> Hello {
    let version_min = r.u16(1..);
    Hello {
        version_min,
        version_max: r.u16(version_min..),
        session: bytes(r),
        capabilities: list(r, 4, |r| Capability {
            kind: r.u16(..),
            required: r.bool(),
            value: list(r, CAPABILITY_LEN_MAX, |r| r.u8(..)).into(),
        }),
        limits: Limits { object_len: r.u32(..), entries: r.u32(..), streams: r.u16(..) },
    }
}

fn root(r: &mut Rng) -> SourceRoot {
    match r.bool() {
        true => SourceRoot::Named { name: name(r), is_dir: r.bool() },
        false => SourceRoot::Contents { names_hash: bytes(r), names: number(r) },
    }
}

/// A random message of the kind that [`index_of`] calls `index`.
fn target_health(r: &mut Rng) -> TargetHealth {
    let healths = [Health::Healthy, Health::Congested, Health::Resting, Health::Hung];
    TargetHealth {
        class: Class(r.u16(1..CLASSES_MAX)),
        health: healths[r.usize(..4)],
        waiting: r.u32(..),
        in_flight: r.u32(..),
        service: number(r),
        best: number(r),
        done: number(r),
    }
}

/// Components that rise from 0.
fn layout(r: &mut Rng) -> Layout<Class> {
    let mut start = 0;
    let components = (0..r.usize(1..6)).map(|_| {
        let targets = (0..r.usize(1..9)).map(|_| Class(r.u16(..CLASSES_MAX))).collect();
        let component = Component { start, stripe_size: r.u64(1..), targets };
        start += r.u64(1..1 << 60);
        component
    });
    Layout::new(components.collect()).expect("it is one")
}

fn file_layout(r: &mut Rng) -> FileLayout {
    let (id, generation) = version(r);
    let striping =
        r.bool().then(|| Striping { stripe_size: r.u64(1..), stripe_count: r.u16(1..=STRIPES_MAX as u16) });
    FileLayout { id, generation, object_size: 1 << r.u32(16..=26), striping }
}

fn message(index: usize, r: &mut Rng) -> Message {
    match index {
        0 => Message::Hello(hello(r)),
        1 => Message::Sources {
            roots: list(r, 5, root),
            policy: Policy {
                durable: r.bool(),
                force: r.bool(),
                no_clobber: r.bool(),
                update: r.bool(),
                owner: r.bool(),
                times: r.bool(),
                verify: r.bool(),
            },
        },
        2 => Message::Destination {
            wait: r.bool(),
            rename: if r.bool() { Some(name(r)) } else { None },
            epoch: r.u32(..),
            resumed: r.bool(),
        },
        3 => Message::Announce(list(r, 6, announced)),
        4 => Message::DirEnd(list(r, 6, |r| DirId(number(r)))),
        5 => Message::State(list(r, 6, state)),
        6 => Message::Sealed(list(r, 6, |r| {
            let (id, generation) = version(r);
            (id, generation, r.u16(..))
        })),
        7 => {
            let (id, generation) = version(r);
            let failure = r.bool().then(|| failure(r));
            Message::Withdraw { id, generation, retry: r.bool(), failure }
        }
        8 => {
            Message::End(Totals { files: number(r), dirs: number(r), symlinks: number(r), bytes: number(r) })
        }
        9 => Message::Grant { class: r.u16(..CLASSES_MAX), total: number(r) },
        10 => Message::Written { bytes: number(r), frames: list(r, 6, |r| (StreamId(r.u16(..)), number(r))) },
        11 => Message::Durable(list(r, 6, extent)),
        12 => Message::Done(list(r, 6, done)),
        13 => Message::Resend(list(r, 6, extent)),
        14 => Message::StreamClosed { stream: StreamId(r.u16(..)), frames: number(r) },
        15 => Message::TargetHealth(list(r, 6, target_health)),
        16 => Message::Stop { reason: text(r) },
        17 => Message::Stopped,
        18 => Message::Complete,
        19 => Message::Report(EndReport {
            cpu: number(r),
            rss_max: number(r),
            stages: std::array::from_fn(|_| StageTime {
                busy: number(r),
                starved: number(r),
                blocked: number(r),
            }),
            strays: number(r),
            payload: number(r),
            objects_resent: number(r),
            not_kept: std::array::from_fn(|_| number(r)),
        }),
        20 => Message::Abort(failure(r)),
        21 => Message::Ping(number(r)),
        22 => Message::Pong(number(r)),
        23 => Message::Trouble { path: bytes::<20>(r).into(), failure: failure(r) },
        24 => {
            let (id, generation) = version(r);
            let extents = list(r, 6, |r| {
                let (offset, len) = range(r);
                DataExtent { offset, len }
            });
            Message::Holes { id, generation, extents, last: r.bool() }
        }
        25 => Message::Notice { text: text(r) },
        26 => Message::Received(number(r)),
        27 => Message::Streams(r.u16(1..=STREAMS_MAX)),
        29 => {
            let (id, generation) = version(r);
            Message::FileTargets { id, generation, layout: layout(r) }
        }
        28 => Message::Knobs(Knobs {
            paused: r.bool(),
            rate: number(r),
            streams: r.u16(..=STREAMS_MAX),
            readers: r.u16(..=KNOB_THREADS_MAX),
            writers: r.u16(..=KNOB_THREADS_MAX),
        }),
        30 => Message::Trial(bytes::<20>(r).into()),
        31 => Message::FileLayout(list(r, 6, file_layout)),
        32 => Message::ObjectLen(1 << r.u32(16..=26)),
        33 => {
            Message::Placed(Placed { targets: r.u16(..), files: number(r), others: number(r), why: text(r) })
        }
        _ => unreachable!("there are {MESSAGES} kinds"),
    }
}

fn data_entry(r: &mut Rng, bundle: bool) -> DataEntry {
    let (id, generation) = version(r);
    let root = bundle || r.bool();
    let tail = r.bool();
    let (offset, len) = match root {
        true => (0, r.u32(..100_000)),
        false if tail => (((number(r) >> 20) | 1) * 65_536, r.u32(1..=OBJECT_LEN_MAX)),
        false => ((number(r) >> 20) * 1024, r.u32(1..=65_536) * 1024),
    };
    let cvs = if root { 1 } else { subtrees(offset, len.into(), tail).count() };
    DataEntry {
        id,
        generation,
        offset,
        len,
        root,
        hole: false,
        tail,
        sealed: r.bool(),
        pass: r.u16(..),
        digest: DigestKind::Blake3,
        cvs: (0..cvs).map(|_| bytes(r)).collect(),
    }
}

fn data_header(r: &mut Rng) -> DataHeader {
    let count = if r.bool() { 1 } else { r.usize(1..20) };
    DataHeader {
        class: Class(r.u16(..CLASSES_MAX)),
        entries: (0..count).map(|_| data_entry(r, count > 1)).collect(),
    }
}

fn encode(message: &Message) -> (u8, Vec<u8>) {
    let mut body = Vec::new();
    let kind = encode_message(message, &mut body);
    (kind, body)
}

fn header_of(frame: &[u8]) -> FrameHeader {
    FrameHeader::decode(frame.first_chunk().expect("a header's bytes")).expect("own header")
}

fn encode_data(header: &DataHeader) -> Vec<u8> {
    encode_data_header(header, StreamId(3), SessionEpoch(7), 11)
}

/// As a reader does it: header, preamble, descriptor.
fn decode_data(frame: &[u8]) -> Result<DataHeader, WireError> {
    let (header, rest) = frame.split_first_chunk().expect("a header's bytes");
    let header = FrameHeader::decode(header)?;
    let (preamble, rest) = rest.split_first_chunk().expect("a preamble's bytes");
    let preamble = DataPreamble::decode(&header, preamble)?;
    decode_data_descriptor(&preamble, rest)
}

/// Goal: what an encoder makes, the decoder takes, unchanged, for every kind of message; no kind is forgotten
/// and no two share a number.
/// Method: 500 seeded random messages of each kind.
#[test]
fn messages_survive_the_round_trip() {
    let mut kinds = std::collections::BTreeSet::new();
    for index in 0..MESSAGES {
        let r = &mut Rng::with_seed(index as u64);
        for seq in 0..500 {
            let message = message(index, r);
            assert_eq!(index_of(&message), index);
            let frame = encode_frame(&message, StreamId(0), SessionEpoch(9), seq);
            let header = header_of(&frame);
            assert_eq!(header.len as usize, frame.len() - HEADER_LEN);
            assert_eq!((header.stream, header.epoch, header.seq), (StreamId(0), SessionEpoch(9), seq));
            assert!(header.is_message());
            kinds.insert(header.kind);
            assert_eq!(decode_message(header.kind, &frame[HEADER_LEN..]), Ok(Decoded::Message(message)));
        }
    }
    assert_eq!(kinds.len(), MESSAGES);
}

/// Goal: the announced lengths are the encoded ones, so that who batches by bytes is right.
/// Method: messages of one random item each, against the length of their encoding.
#[test]
fn item_lengths_are_exact() {
    let r = &mut Rng::with_seed(1);
    for _ in 0..2000 {
        let (a, s, d, o) = (announced(r), state(r), done(r), root(r));
        let policy = Policy {
            durable: true,
            force: false,
            no_clobber: false,
            update: false,
            owner: false,
            times: true,
            verify: false,
        };
        assert_eq!(announced_len(&a) + 2, encode(&Message::Announce(vec![a])).1.len());
        assert_eq!(state_len(&s) + 2, encode(&Message::State(vec![s])).1.len());
        assert_eq!(done_len(&d) + 2, encode(&Message::Done(vec![d])).1.len());
        assert_eq!(source_root_len(&o) + 3, encode(&Message::Sources { roots: vec![o], policy }).1.len());
    }
}

/// Goal: data headers survive the round trip, decoded in the steps of a reader.
/// Method: seeded random objects and bundles, and the largest of both.
#[test]
fn data_headers_survive_the_round_trip() {
    let r = &mut Rng::with_seed(2);
    let mut samples: Vec<DataHeader> = (0..3000).map(|_| data_header(r)).collect();
    samples.push(DataHeader {
        class: Class::ANY,
        entries: (0..BUNDLE_ENTRIES_MAX).map(|_| data_entry(r, true)).collect(),
    });
    for header in samples {
        let frame = encode_data(&header);
        let fixed = header_of(&frame);
        let payload_len = header.payload_len();
        assert_eq!(u64::from(fixed.len), (frame.len() - HEADER_LEN) as u64 + payload_len);
        assert_eq!(decode_data(&frame), Ok(header));
    }
}

/// Goal: a frame that ends early is an error, never a panic and never another message.
/// Method: every truncation of samples of every message and of data headers.
#[test]
fn every_truncation_is_an_error() {
    let r = &mut Rng::with_seed(3);
    for index in 0..MESSAGES {
        for _ in 0..20 {
            let (kind, body) = encode(&message(index, r));
            for end in 0..body.len() {
                let error = decode_message(kind, &body[..end]).expect_err("cut short");
                assert!(matches!(error, WireError::Truncated { .. }), "{error}");
            }
        }
    }
    for _ in 0..100 {
        let frame = encode_data(&data_header(r));
        for end in HEADER_LEN + PREAMBLE_LEN..frame.len() {
            let error = decode_data(&frame[..end]).expect_err("cut short");
            assert!(matches!(error, WireError::Truncated { .. }), "{error}");
        }
    }
}

/// Goal: bytes after a message's or descriptor's end are an error.
#[test]
fn trailing_bytes_are_an_error() {
    let r = &mut Rng::with_seed(4);
    for index in 0..MESSAGES {
        let (kind, mut body) = encode(&message(index, r));
        body.push(0);
        assert!(
            matches!(decode_message(kind, &body), Err(WireError::Trailing { len: 1, .. })),
            "kind {kind}"
        );
    }
    let mut frame = encode_data(&data_header(r));
    frame.push(0);
    assert!(matches!(decode_data(&frame), Err(WireError::Trailing { len: 1, .. })));
}

/// Goal: damage never panics; damage that still is a message is a message that can be sent again.
/// Method: single bytes of every sample are overwritten; what decodes must survive its own round trip.
#[test]
fn mutated_bytes_decode_to_legal_messages_or_errors() {
    let r = &mut Rng::with_seed(5);
    for index in 0..MESSAGES {
        for _ in 0..10 {
            let (kind, body) = encode(&message(index, r));
            for at in 0..body.len() {
                let mut body = body.clone();
                body[at] = if r.bool() { r.u8(..) } else { [0, 1, 0x7f, 0xff][r.usize(..4)] };
                if let Ok(Decoded::Message(changed)) = decode_message(kind, &body) {
                    let (kind, body) = encode(&changed);
                    assert_eq!(decode_message(kind, &body), Ok(Decoded::Message(changed)));
                }
            }
        }
    }
    for _ in 0..100 {
        let frame = encode_data(&data_header(r));
        for at in 0..frame.len() {
            let mut frame = frame.clone();
            frame[at] = if r.bool() { r.u8(..) } else { [0, 1, 0x7f, 0xff][r.usize(..4)] };
            if let Ok(changed) = decode_data(&frame) {
                assert_eq!(decode_data(&encode_data(&changed)), Ok(changed));
            }
        }
    }
}

/// Goal: no bytes whatever panic a decoder.
/// Method: seeded random bytes of random lengths into each of them.
#[test]
fn random_bytes_never_panic() {
    let r = &mut Rng::with_seed(6);
    for _ in 0..20_000 {
        let len = r.usize(..300);
        let mut body = vec![0; len];
        r.fill(&mut body);
        for kind in 0..=u8::MAX {
            // Small counts get deeper than random ones.
            if let (true, Some(high)) = (kind % 2 == 0, body.get_mut(1)) {
                *high = 0;
            }
            let _ = decode_message(kind, &body);
        }
        let _ = FrameHeader::decode(&bytes(r));
        let _ = Join::decode(&bytes(r));
        let _ = Joined::decode(&bytes(r));
        let _ = SubHeader::decode(&bytes(r));
        let header = FrameHeader {
            len: r.u32(..1000),
            kind: kind::DATA,
            flags: 0,
            stream: StreamId(1),
            epoch: SessionEpoch(0),
            seq: 0,
        };
        let _ = DataPreamble::decode(&header, &bytes(r));
        let preamble = DataPreamble {
            entries: r.u16(..4),
            class: Class(r.u16(..)),
            descriptor_len: r.u32(..400),
            payload_len: r.u32(..),
        };
        let _ = decode_data_descriptor(&preamble, &body);
    }
}

/// Goal: a count over its named maximum is refused as such, before its items are looked at.
/// Method: for each list the maximum plus one, with a body that could hold that many.
#[test]
fn lists_over_their_maximum_are_refused() {
    // Kind, bytes before the count, maximum.
    let lists = [
        (kind::HELLO, 30, CAPABILITIES_MAX),
        (kind::SOURCES, 1, ITEMS_MAX),
        (kind::ANNOUNCE, 0, ANNOUNCE_ENTRIES_MAX),
        (kind::DIR_END, 0, ITEMS_MAX),
        (kind::STATE, 0, ITEMS_MAX),
        (kind::SEALED, 0, ITEMS_MAX),
        (kind::WRITTEN, 8, ITEMS_MAX),
        (kind::DURABLE, 0, ITEMS_MAX),
        (kind::DONE, 0, ITEMS_MAX),
        (kind::RESEND, 0, ITEMS_MAX),
        (kind::TARGET_HEALTH, 0, ITEMS_MAX),
        (kind::HOLES, 13, ITEMS_MAX),
        (kind::FILE_LAYOUT, 0, ITEMS_MAX),
        (kind::FILE_TARGETS, 12, TARGET_COMPONENTS_MAX),
        (kind::FILE_TARGETS, 30, TARGET_CLASSES_MAX),
    ];
    for (kind, before, max) in lists {
        let mut body = vec![0; 512 * 1024];
        if kind == kind::HELLO {
            body[0] = 1;
            body[2] = 1;
        }
        if (kind, before) == (kind::FILE_TARGETS, 30) {
            // One component.
            body[12] = 1;
        }
        body[before..before + 2].copy_from_slice(&((max + 1) as u16).to_le_bytes());
        let refused = decode_message(kind, &body);
        assert!(
            matches!(refused, Err(WireError::TooLong { len, max: m, .. }) if len == max as u64 + 1 && m == max as u64),
            "kind {kind:#04x}: {refused:?}"
        );
    }
    // Subtrees of one state.
    let mut body = vec![0; 512 * 1024];
    body[0] = 1;
    body[14] = 3;
    body[16..18].copy_from_slice(&((SUBTREES_MAX + 1) as u16).to_le_bytes());
    assert!(matches!(decode_message(kind::STATE, &body), Err(WireError::TooLong { .. })));
    // A body over the limit, whatever it says.
    let body = vec![0; CONTROL_LEN_MAX + 1];
    assert!(matches!(decode_message(kind::STATE, &body), Err(WireError::TooLong { .. })));
}

/// Goal: what a sink says of targets has one form: classes below their maximum, 0 where it means nothing, components
/// that rise from the file's start, not more classes in all than the maximum.
/// Method: legal bodies, changed in one way each.
#[test]
fn senseless_targets_are_refused() {
    let file = |parts: &[(u64, u64, Vec<u16>)]| {
        let mut body = vec![0; 12];
        body.extend((parts.len() as u16).to_le_bytes());
        for (start, stripe, classes) in parts {
            body.extend([start.to_le_bytes(), stripe.to_le_bytes()].concat());
            body.extend((classes.len() as u16).to_le_bytes());
            classes.iter().for_each(|class| body.extend(class.to_le_bytes()));
        }
        decode_message(kind::FILE_TARGETS, &body)
    };
    let last = CLASSES_MAX - 1;
    let parts = |count: u64| (0..count).map(|n| (n, 1, vec![1; TARGET_CLASSES_MAX / 4]));
    assert!(file(&[(0, 1, vec![0, last]), (1, u64::MAX, vec![1])]).is_ok());
    assert!(file(&parts(4).collect::<Vec<_>>()).is_ok());
    for bad in [
        vec![],
        vec![(1, 1, vec![1])],
        vec![(0, 0, vec![1])],
        vec![(0, 1, vec![])],
        vec![(0, 1, vec![CLASSES_MAX])],
        vec![(0, 1, vec![1]), (0, 1, vec![1])],
        vec![(0, 1, vec![1]), (9, 1, vec![1]), (8, 1, vec![1])],
        parts(4).chain([(9, 1, vec![1])]).collect(),
        vec![(0, 1, vec![1; STRIPES_MAX + 1])],
    ] {
        assert!(file(&bad).is_err(), "{bad:?}");
    }
    let health = |class: u16, state: u8| {
        let mut body = vec![0; 2 + 35];
        body[0] = 1;
        body[2..4].copy_from_slice(&class.to_le_bytes());
        body[4] = state;
        decode_message(kind::TARGET_HEALTH, &body)
    };
    assert!(health(1, 3).is_ok() && health(last, 0).is_ok());
    for (class, state) in [(0, 0), (CLASSES_MAX, 0), (u16::MAX, 0), (1, 4), (1, 255)] {
        assert!(health(class, state).is_err(), "class {class}, state {state}");
    }
    let grant = |class: u16| decode_message(kind::GRANT, &[&class.to_le_bytes()[..], &[0; 8]].concat());
    assert!(grant(0).is_ok() && grant(last).is_ok());
    assert!(grant(CLASSES_MAX).is_err() && grant(u16::MAX).is_err());
    // A data frame that names one.
    let mut frame = encode_data(&DataHeader { class: Class(last), ..data_header(&mut Rng::with_seed(8)) });
    assert_eq!(decode_data(&frame).map(|header| header.class), Ok(Class(last)));
    frame[HEADER_LEN + 2..HEADER_LEN + 4].copy_from_slice(&CLASSES_MAX.to_le_bytes());
    assert!(matches!(decode_data(&frame), Err(WireError::TooLong { .. })));
}

/// Goal: knobs beyond what can be asked for are refused, each by its name.
/// Method: a legal body with one count at its maximum, then one more.
#[test]
fn knobs_over_their_maximum_are_refused() {
    let max = [STREAMS_MAX, KNOB_THREADS_MAX, KNOB_THREADS_MAX];
    for (at, (max, name)) in max.into_iter().zip(["streams", "readers", "writers"]).enumerate() {
        let mut body = [0; 15];
        let at = 9 + 2 * at;
        body[at..at + 2].copy_from_slice(&max.to_le_bytes());
        assert!(decode_message(kind::KNOBS, &body).is_ok(), "{name}");
        body[at..at + 2].copy_from_slice(&(max + 1).to_le_bytes());
        match decode_message(kind::KNOBS, &body) {
            Err(error @ WireError::TooLong { .. }) => assert!(error.to_string().contains(name), "{error}"),
            other => panic!("{name}: {other:?}"),
        }
    }
    assert!(decode_message(kind::KNOBS, &[2; 15]).is_err(), "paused is a bool");
}

/// Goal: a count that the bytes at hand cannot hold is refused before anything is allocated for it.
/// Method: the largest legal counts in front of nothing.
#[test]
fn counts_beyond_the_body_are_refused() {
    for (kind, count) in
        [(kind::STATE, ITEMS_MAX), (kind::ANNOUNCE, ANNOUNCE_ENTRIES_MAX), (kind::DONE, ITEMS_MAX)]
    {
        let body = (count as u16).to_le_bytes();
        match decode_message(kind, &body) {
            // Missing is the whole list, not the first field of its first item.
            Err(WireError::Truncated { missing, .. }) => assert!(missing > 10 * count as u64),
            other => panic!("{other:?}"),
        }
    }
}

/// Goal: a frame that claims 4 GiB is refused by its header alone, whatever its kind.
/// Method: every kind with the largest length, and each limit with one byte more.
#[test]
fn frame_lengths_are_bounded_by_kind() {
    let header = |kind: u8, len: u32| {
        let mut bytes = [0; HEADER_LEN];
        bytes[..4].copy_from_slice(&len.to_le_bytes());
        bytes[4] = kind;
        bytes[6] = 1;
        FrameHeader::decode(&bytes)
    };
    for kind in 0..=u8::MAX {
        assert!(header(kind, u32::MAX).is_err(), "kind {kind:#04x}");
    }
    assert!(header(kind::DATA, FRAME_LEN_MAX as u32).is_ok());
    assert!(header(kind::DATA, FRAME_LEN_MAX as u32 + 1).is_err());
    for kind in [kind::HELLO, kind::ANNOUNCE, kind::PONG, kind::TARGET_HEALTH, 0xff] {
        assert!(header(kind, CONTROL_LEN_MAX as u32).is_ok());
        assert!(header(kind, CONTROL_LEN_MAX as u32 + 1).is_err());
    }
    assert!(SubHeader::decode(&[0, 0, 0, 0, 0, 0, 1, 0]).is_ok());
    assert!(SubHeader::decode(&[0, 0, 0, 0, 1, 0, 1, 0]).is_err());
}

/// Goal: bits and bytes that v1 reserves are refused, so that a later version can use them safely.
/// Method: each is set in an otherwise legal frame.
#[test]
fn reserved_bytes_must_be_zero() {
    let frame = encode_data(&data_header(&mut Rng::with_seed(7)));
    assert!(decode_data(&frame).is_ok());
    // Flags, host id; preamble: volume generation; entry: hole flag, unknown flag, reserved.
    let preamble = HEADER_LEN;
    let entry = HEADER_LEN + PREAMBLE_LEN;
    for (at, bit) in [
        (5, 1),
        (12, 1),
        (15, 128),
        (preamble + 12, 1),
        (preamble + 15, 1),
        (entry + 26, 2),
        (entry + 26, 16),
        (entry + 30, 1),
        (entry + 31, 1),
    ] {
        let mut frame = frame.clone();
        frame[at] |= bit;
        assert!(matches!(decode_data(&frame), Err(WireError::BadValue { .. })), "byte {at}");
    }
    assert!(SubHeader::decode(&[0, 0, 1, 0, 0, 0, 0, 0]).is_err());
}

/// Goal: data entries that contradict themselves are refused.
/// Method: one legal object, changed in one way each, through an encoder that checks nothing (bytes patched).
#[test]
fn contradictory_data_entries_are_refused() {
    let legal = DataEntry {
        id: FileId(5),
        generation: Generation(1),
        offset: 4 << 20,
        len: 4 << 20,
        root: false,
        hole: false,
        tail: false,
        sealed: false,
        pass: 0,
        digest: DigestKind::Blake3,
        cvs: vec![[1; 32]],
    };
    let entry = HEADER_LEN + PREAMBLE_LEN;
    let patched = |at: usize, bytes: &[u8]| {
        let mut frame = encode_data(&DataHeader { class: Class::ANY, entries: vec![legal.clone()] });
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        decode_data(&frame)
    };
    assert!(patched(entry, &[9]).is_ok());
    let refused: [(&str, usize, &[u8]); 11] = [
        ("end overflows", entry + 12, &u64::MAX.to_le_bytes()),
        ("end past the longest file", entry + 12, &(i64::MAX as u64 - 1023).to_le_bytes()),
        ("offset inside a chunk", entry + 12, &1u64.to_le_bytes()),
        ("root that is not at the start", entry + 26, &[1]),
        ("length that is not the payload's", entry + 20, &(2u32 << 20).to_le_bytes()),
        ("unknown digest kind", entry + 27, &[2]),
        ("no digest kind", entry + 27, &[0]),
        ("no chaining values", entry + 28, &[0]),
        ("more chaining values than bytes", entry + 28, &[2]),
        ("no entries", HEADER_LEN, &[0]),
        ("more entries than bytes", HEADER_LEN, &[2]),
    ];
    for (what, at, bytes) in refused {
        assert!(patched(at, bytes).is_err(), "{what}");
    }
    assert!(matches!(
        patched(entry + 20, &(OBJECT_LEN_MAX + 1024).to_le_bytes()),
        Err(WireError::TooLong { what: "data entry length", .. })
    ));
    // Payload and descriptor lengths must add up to the frame's.
    for at in [0, HEADER_LEN + 4, HEADER_LEN + 8] {
        let frame = encode_data(&DataHeader { class: Class::ANY, entries: vec![legal.clone()] });
        assert!(patched(at, &[frame[at] ^ 1]).is_err(), "length at byte {at}");
    }
    // A whole file without its root; a part that ends inside a chunk; an empty part.
    let whole = DataEntry { offset: 1 << 20, len: 1 << 20, tail: true, ..legal.clone() };
    let mut frame = encode_data(&DataHeader { class: Class::ANY, entries: vec![whole] });
    assert!(decode_data(&frame).is_ok());
    frame[entry + 12..entry + 20].fill(0);
    assert!(matches!(
        decode_data(&frame),
        Err(WireError::BadValue { what: "whole file without its root", .. })
    ));
    let odd = DataEntry { len: 1025, tail: true, ..legal.clone() };
    let mut frame = encode_data(&DataHeader { class: Class::ANY, entries: vec![odd] });
    assert!(decode_data(&frame).is_ok());
    frame[entry + 26] = 0;
    assert!(matches!(
        decode_data(&frame),
        Err(WireError::BadValue { what: "part of a file that is not made of whole chunks, at offset", .. })
    ));
}

/// Goal: the preamble alone bounds what a reader takes next.
/// Method: preambles over each limit, with a header that agrees with their sum; the largest legal one.
#[test]
fn preambles_are_bounded() {
    let decode = |entries: u16, descriptor: usize, payload: usize| {
        let len = (PREAMBLE_LEN + descriptor + payload) as u32;
        let (stream, epoch) = (StreamId(1), SessionEpoch(0));
        let header = FrameHeader { len, kind: kind::DATA, flags: 0, stream, epoch, seq: 1 };
        let mut bytes = [0; PREAMBLE_LEN];
        bytes[..2].copy_from_slice(&entries.to_le_bytes());
        bytes[4..8].copy_from_slice(&(descriptor as u32).to_le_bytes());
        bytes[8..12].copy_from_slice(&(payload as u32).to_le_bytes());
        let other = FrameHeader { kind: kind::STATE, ..header };
        assert!(DataPreamble::decode(&other, &bytes).is_err(), "not a data frame");
        DataPreamble::decode(&header, &bytes)
    };
    let object = OBJECT_LEN_MAX as usize;
    assert!(decode(512, DESCRIPTOR_LEN_MAX, object).is_ok());
    assert!(decode(1, 64, 0).is_ok());
    let too_long = |result| matches!(result, Err(WireError::TooLong { .. }));
    assert!(too_long(decode(513, DESCRIPTOR_LEN_MAX, 0)));
    assert!(too_long(decode(1, DESCRIPTOR_LEN_MAX + 1, 0)));
    assert!(too_long(decode(1, 64, object + 1)));
    assert!(matches!(decode(2, 127, 0), Err(WireError::Truncated { missing: 1, .. })));
    assert!(decode(0, 64, 0).is_err());
}

/// Goal: data never comes on the control stream, a yes-or-no is 0 or 1, and only a join is taken for one.
#[test]
fn small_rules_hold() {
    let mut frame = encode_data(&data_header(&mut Rng::with_seed(13)));
    frame[6] = 0;
    let what = "stream of a data frame";
    assert_eq!(decode_data(&frame), Err(WireError::BadValue { what, value: 0 }));

    let (id, generation) = (FileId(1), Generation(1));
    let (kind, mut body) = encode(&Message::Withdraw { id, generation, retry: true, failure: None });
    *body.last_mut().expect("not empty") = 2;
    let what = "withdraw: failed";
    assert_eq!(decode_message(kind, &body), Err(WireError::BadValue { what, value: 2 }));

    let join = Join {
        session: [1; 16],
        nonce: [3; 16],
        proof: [2; 32],
        stream: StreamId(0),
        epoch: SessionEpoch(0),
    };
    let mut bytes = join.encode();
    bytes[4] = kind::ABORT;
    let what = "kind of a frame at the start";
    assert_eq!(Join::decode(&bytes), Err(WireError::BadValue { what, value: kind::ABORT.into() }));
}

/// Goal: a bundle holds whole files only.
/// Method: the root flag of one entry of two is cleared.
#[test]
fn bundles_hold_whole_files_only() {
    let r = &mut Rng::with_seed(8);
    let entries = vec![data_entry(r, true), data_entry(r, true)];
    let mut frame = encode_data(&DataHeader { class: Class::ANY, entries });
    assert!(decode_data(&frame).is_ok());
    frame[HEADER_LEN + PREAMBLE_LEN + DATA_ENTRY_LEN + 32 + 26] &= !1;
    let what = "bundle entry that is not a whole file";
    assert_eq!(decode_data(&frame), Err(WireError::BadValue { what, value: 2 }));
}

/// Goal: a part of a file is not empty and brings values; a whole file brings one.
/// Method: samples with the right lengths, so that nothing but the rule can refuse them.
#[test]
fn entries_bring_the_values_that_they_need() {
    let part = DataEntry {
        id: FileId(5),
        generation: Generation(1),
        offset: 65_536,
        len: 135_536,
        root: false,
        hole: false,
        tail: true,
        sealed: false,
        pass: 0,
        digest: DigestKind::Blake3,
        cvs: vec![[1; 32], [2; 32]],
    };
    let bad = |what, value| Err(WireError::BadValue { what, value });
    let entry = HEADER_LEN + PREAMBLE_LEN;
    // Two values and the offset of a whole file.
    let mut frame = encode_data(&DataHeader { class: Class::ANY, entries: vec![part.clone()] });
    frame[entry + 12..entry + 20].fill(0);
    frame[entry + 26] |= 1;
    assert_eq!(decode_data(&frame), bad("chaining values of a whole file", 2));
    // One value too few for the range: the offset moves into a larger subtree's place.
    let single = DataEntry { offset: 1 << 20, cvs: vec![[1; 32]], ..part.clone() };
    let mut frame = encode_data(&DataHeader { class: Class::ANY, entries: vec![single] });
    frame[entry + 12..entry + 20].copy_from_slice(&65_536u64.to_le_bytes());
    assert_eq!(decode_data(&frame), bad("chaining values of a part of a file", 1));
    // No value; the descriptor is as long as an entry with one value must be, so trailing would come later.
    let single = DataEntry { offset: 1 << 20, cvs: vec![[1; 32]], ..part.clone() };
    let mut frame = encode_data(&DataHeader { class: Class::ANY, entries: vec![single.clone()] });
    frame[entry + 28] = 0;
    assert_eq!(decode_data(&frame), bad("chaining values of a part of a file", 0));
    // An empty part: no payload, and the frame says so.
    let mut frame = encode_data(&DataHeader { class: Class::ANY, entries: vec![single] });
    frame[entry + 20..entry + 24].fill(0);
    frame[HEADER_LEN + 8..HEADER_LEN + 12].fill(0);
    let len = (frame.len() - HEADER_LEN) as u32;
    frame[..4].copy_from_slice(&len.to_le_bytes());
    assert_eq!(decode_data(&frame), bad("length of a part of a file", 0));
}

/// Goal: a hello's versions are a range, a policy has known bits only, a link leads somewhere.
#[test]
fn senseless_values_are_refused() {
    let r = &mut Rng::with_seed(14);
    for versions in [[0, 0, 1, 0], [2, 0, 1, 0]] {
        let (kind, mut body) = encode(&Message::Hello(hello(r)));
        body[..4].copy_from_slice(&versions);
        let refused = decode_message(kind, &body);
        assert!(matches!(refused, Err(WireError::BadValue { what: "oldest version", .. })), "{refused:?}");
    }
    for bits in [128, 255] {
        let (kind, mut body) = encode(&message(1, r));
        body[0] = bits;
        assert_eq!(
            decode_message(kind, &body),
            Err(WireError::BadValue { what: "policy", value: bits.into() })
        );
    }
    let empty = Announced { kind: EntryKind::Symlink { target: [].into() }, ..announced(r) };
    let (kind, body) = encode(&Message::Announce(vec![empty]));
    assert!(matches!(
        decode_message(kind, &body),
        Err(WireError::BadValue { what: "target of a symlink", .. })
    ));
}

/// Goal: nanoseconds of a confused file system are cut, and do not end the session.
#[test]
fn senseless_nanoseconds_are_cut() {
    let mut entry = announced(&mut Rng::with_seed(15));
    entry.meta.mtime.nanos = u32::MAX;
    let (kind, body) = encode(&Message::Announce(vec![entry.clone()]));
    entry.meta.mtime.nanos = 999_999_999;
    assert_eq!(decode_message(kind, &body), Ok(Decoded::Message(Message::Announce(vec![entry]))));
}

/// Goal: our own broken invariants stop here, not at the peer.
/// Method: each illegal message or header must panic its encoder.
#[test]
fn encoders_refuse_what_decoders_would() {
    fn panics(f: impl FnOnce() + std::panic::UnwindSafe) -> bool {
        std::panic::catch_unwind(f).is_err()
    }
    let extent = Extent { id: FileId(1), generation: Generation(1), offset: 0, len: 1 };
    assert!(panics(move || drop(encode(&Message::Durable(vec![extent; ITEMS_MAX + 1])))));
    assert!(!panics(move || drop(encode(&Message::Durable(vec![extent; ITEMS_MAX])))));
    let names =
        vec![SourceRoot::Named { name: Name::new(&[b'n'; 255]).expect("legal"), is_dir: false }; ITEMS_MAX];
    let policy = Policy {
        durable: true,
        force: false,
        no_clobber: false,
        update: false,
        owner: false,
        times: true,
        verify: false,
    };
    assert!(panics(move || drop(encode(&Message::Sources { roots: names, policy }))), "over 1 MiB");
    assert!(panics(move || drop(encode(&Message::Durable(vec![Extent { offset: u64::MAX, ..extent }])))));
    let mut entry = data_entry(&mut Rng::with_seed(9), true);
    entry.hole = true;
    assert!(panics(move || drop(encode_data(&DataHeader { class: Class::ANY, entries: vec![entry] }))));
    assert!(panics(|| drop(encode_data(&DataHeader { class: Class::ANY, entries: vec![] }))));
    let header = FrameHeader {
        len: CONTROL_LEN_MAX as u32 + 1,
        kind: kind::STATE,
        flags: 0,
        stream: StreamId(0),
        epoch: SessionEpoch(0),
        seq: 0,
    };
    assert!(panics(move || _ = header.encode()));
}

/// Goal: after a split each part can be sent, none is empty, and together they say the same.
/// Method: lists of the largest items and far over the maximum, split, encoded, decoded, joined.
#[test]
fn split_messages_fit_and_lose_nothing() {
    let r = &mut Rng::with_seed(10);
    let long_name = Name::new(&[b'n'; NAME_LEN_MAX]).expect("legal");
    let entries: Vec<Announced> = (0..3000)
        .map(|_| Announced {
            name: long_name.clone(),
            kind: EntryKind::Symlink { target: vec![b't'; LINK_LEN_MAX].into() },
            ..announced(r)
        })
        .collect();
    let mut joined = Vec::new();
    for part in Message::Announce(entries.clone()).split() {
        let (kind, body) = encode(&part);
        match decode_message(kind, &body) {
            Ok(Decoded::Message(Message::Announce(part))) if !part.is_empty() => joined.extend(part),
            other => panic!("{other:?}"),
        }
    }
    assert!(joined == entries);

    let subtree = Subtree { offset: 0, len: 1, cv: [0; 32] };
    let held = FileState::Held { subtrees: vec![subtree; SUBTREES_MAX], verify: true };
    let states = vec![(FileId(1), Generation(1), held); 20];
    let parts = Message::State(states).split();
    assert_eq!(parts.iter().map(|p| encode(p).1.len().min(1)).sum::<usize>(), parts.len());
    assert!(parts.len() > 1);

    let failure = Failure { stage: Stage::Write, errno: 28, text: "x".repeat(5000).into() };
    let item = DoneItem { id: FileId(1), generation: Generation(1), outcome: Outcome::Failed(failure) };
    let parts = Message::Done(vec![item; 10_000]).split();
    assert!(parts.iter().all(|p| encode(p).1.len() <= CONTROL_LEN_MAX));

    let dirs: Vec<DirId> = (0..3 * ITEMS_MAX as u64 + 1).map(DirId).collect();
    let parts = Message::DirEnd(dirs.clone()).split();
    assert_eq!(parts.len(), 4);
    let mut joined = Vec::new();
    for part in parts {
        match part {
            Message::DirEnd(part) => joined.extend(part),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(joined, dirs);
    let healths = vec![target_health(r); ITEMS_MAX + 1];
    let parts = Message::TargetHealth(healths).split();
    assert_eq!(parts.iter().map(|p| encode(p).1.len().min(1)).sum::<usize>(), 2);
    assert_eq!(Message::DirEnd(vec![]).split(), vec![Message::DirEnd(vec![])]);
    assert_eq!(Message::Ping(1).split(), vec![Message::Ping(1)]);
}

/// Goal: a long path of a trouble is cut like a text, and never fails the frame.
#[test]
fn long_paths_are_cut() {
    let failure = Failure { stage: Stage::Walk, errno: 13, text: "denied".into() };
    let trouble = |len| Message::Trouble { path: vec![b'p'; len].into(), failure: failure.clone() };
    let (kind, body) = encode(&trouble(PATH_LEN_MAX + 1));
    assert_eq!(decode_message(kind, &body), Ok(Decoded::Message(trouble(PATH_LEN_MAX))));
}

/// Goal: a long text is cut between characters and never fails the frame.
/// Method: texts of characters of each width around the maximum.
#[test]
fn long_texts_are_cut_between_characters() {
    for unit in ["a", "é", "€", "🦀"] {
        for pad in 0..4 {
            let text = "a".repeat(pad) + &unit.repeat(TEXT_LEN_MAX);
            let (kind, body) = encode(&Message::Stop { reason: text.as_str().into() });
            match decode_message(kind, &body) {
                Ok(Decoded::Message(Message::Stop { reason })) => {
                    assert!(text.starts_with(&*reason));
                    assert!(reason.len() > TEXT_LEN_MAX - 4 && reason.len() <= TEXT_LEN_MAX);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Goal: names, links, times, modes and object sizes that could do harm are refused at the wire.
/// Method: one legal announcement with single fields patched.
#[test]
fn harmful_announcements_are_refused() {
    let entry = Announced {
        id: FileId(1),
        generation: Generation(1),
        parent: DirId::ROOT,
        name: Name::new(b"ab").expect("legal"),
        meta: Meta::default(),
        kind: EntryKind::File {
            fingerprint: Fingerprint::default(),
            object_size: 4 << 20,
            sparse: false,
            striped: false,
        },
    };
    let (kind, body) = encode(&Message::Announce(vec![entry.clone()]));
    let patched = |at: usize, bytes: &[u8]| {
        let mut body = body.clone();
        body[at..at + bytes.len()].copy_from_slice(bytes);
        decode_message(kind, &body)
    };
    assert!(patched(0, &[]).is_ok());
    let refused: [(&str, usize, &[u8]); 11] = [
        ("root announced", 2, &[0]),
        ("mode above 07777", 22, &0o10000u32.to_le_bytes()),
        ("nanoseconds", 42, &1_000_000_000u32.to_le_bytes()),
        ("kind 0", 46, &[0]),
        ("kind 4", 46, &[4]),
        ("slash", 48, b"/b"),
        ("dots", 48, b".."),
        ("NUL", 48, b"a\0"),
        ("size", 50, &(1u64 << 63).to_le_bytes()),
        ("object size not a power of two", 90, &(3u32 << 20).to_le_bytes()),
        ("object size under 64 KiB", 90, &(1u32 << 15).to_le_bytes()),
    ];
    for (what, at, bytes) in refused {
        assert!(patched(at, bytes).is_err(), "{what}");
    }
    let link = Announced { kind: EntryKind::Symlink { target: b"t".as_slice().into() }, ..entry };
    let (kind, mut body) = encode(&Message::Announce(vec![link]));
    assert!(decode_message(kind, &body).is_ok());
    body[52] = 0;
    assert!(decode_message(kind, &body).is_err(), "NUL in a link");
}

/// Goal: unknown extra fields of an entry are stepped over, unless the peer requires them.
/// Method: TLVs appended to an announced directory.
#[test]
fn extra_fields_are_skipped_or_required() {
    let entry = Announced {
        id: FileId(1),
        generation: Generation(1),
        parent: DirId::ROOT,
        name: Name::new(b"d").expect("legal"),
        meta: Meta::default(),
        kind: EntryKind::Dir,
    };
    let plain = Message::Announce(vec![entry]);
    let (kind, body) = encode(&plain);
    let with = |extra: &[u8], len: u16| {
        let mut body = body.clone();
        let end = body.len();
        body[end - 2..].copy_from_slice(&len.to_le_bytes());
        body.extend_from_slice(extra);
        decode_message(kind, &body)
    };
    let optional = [1, 0, 0, 2, 0, 9, 9];
    let two = [optional, optional].concat();
    assert_eq!(with(&optional, 7), Ok(Decoded::Message(plain.clone())));
    assert_eq!(with(&two, 14), Ok(Decoded::Message(plain)));
    let required = [1, 0, 1, 2, 0, 9, 9];
    assert_eq!(with(&required, 7), Err(WireError::UnknownRequired { what: "extra field", kind: 1 }));
    assert!(with(&optional, 8).is_err());
    assert!(with(&optional, 6).is_err());
    assert!(with(&[1, 0, 0, 3, 0, 9, 9], 7).is_err());
}

/// Goal: how a file is cut has one form: a legal object size, and stripes of a size and a number or none at all.
/// Method: bodies with one file, changed in one way each.
#[test]
fn senseless_stripes_are_refused() {
    let file = |object_size: u32, stripe_size: u64, count: u16| {
        let mut body = vec![1, 0];
        body.extend([0; 12]);
        body.extend(object_size.to_le_bytes());
        body.extend(stripe_size.to_le_bytes());
        body.extend(count.to_le_bytes());
        decode_message(kind::FILE_LAYOUT, &body)
    };
    let most = STRIPES_MAX as u16;
    assert!(file(1 << 20, 0, 0).is_ok() && file(1 << 16, 1, most).is_ok());
    for (object, size, count) in [
        (0, 1, 1),
        (3 << 20, 1, 1),
        (1 << 27, 1, 1),
        (1 << 20, 0, 1),
        (1 << 20, 1, 0),
        (1 << 20, 1, most + 1),
    ] {
        assert!(file(object, size, count).is_err(), "{object} {size} {count}");
    }
    let len = |len: u32| decode_message(kind::OBJECT_LEN, &len.to_le_bytes());
    assert!(len(1 << 16).is_ok() && len(0).is_err() && len(5 << 20).is_err());
}

/// Goal: the mark of a sparse file is the one that a writer makes, of a file, once; all others are refused.
/// Method: marks appended to an announced file and to a directory.
#[test]
fn marks_of_sparse_files_have_one_form() {
    let announced = |kind| {
        Message::Announce(vec![Announced {
            id: FileId(1),
            generation: Generation(1),
            parent: DirId::ROOT,
            name: Name::new(b"f").expect("legal"),
            meta: Meta::default(),
            kind,
        }])
    };
    let file = |sparse| EntryKind::File {
        fingerprint: Fingerprint::default(),
        object_size: 4 << 20,
        sparse,
        striped: false,
    };
    let with = |entry: EntryKind, extra: &[u8]| {
        let (kind, mut body) = encode(&announced(entry));
        let end = body.len();
        body[end - 2..].copy_from_slice(&(extra.len() as u16).to_le_bytes());
        body.extend_from_slice(extra);
        decode_message(kind, &body)
    };
    let mark = [4, 0, 1, 0, 0];
    assert_eq!(with(file(false), &mark), Ok(Decoded::Message(announced(file(true)))));
    assert_eq!(encode(&announced(file(true))).1[..].last_chunk(), Some(&mark));
    let bad: [&[u8]; 3] = [&[4, 0, 0, 0, 0], &[4, 0, 1, 1, 0, 7], &[mark, mark].concat()];
    for extra in bad {
        assert!(with(file(false), extra).is_err(), "{extra:?}");
    }
    assert!(with(EntryKind::Dir, &mark).is_err());
    // A striped one has a mark of its own, and may have both.
    let both = EntryKind::File {
        fingerprint: Fingerprint::default(),
        object_size: 4 << 20,
        sparse: true,
        striped: true,
    };
    let marks = [mark, [2, 0, 1, 0, 0]].concat();
    assert_eq!(with(file(false), &marks), Ok(Decoded::Message(announced(both.clone()))));
    assert!(encode(&announced(both)).1.ends_with(&marks));
    let twice: [&[u8]; 2] = [&[2, 0, 0, 0, 0], &[2, 0, 1, 0, 0, 2, 0, 1, 0, 0]];
    assert!(twice.iter().all(|extra| with(file(false), extra).is_err()));
    assert!(with(EntryKind::Dir, &marks[5..]).is_err());
}

/// Goal: an unknown kind ends the session cleanly, unless its number says that it may be ignored.
/// Method: all 256 kinds that the table of messages does not hold.
#[test]
fn unknown_kinds_are_ignored_or_named() {
    let r = &mut Rng::with_seed(11);
    let known: Vec<u8> = (0..MESSAGES).map(|index| encode(&message(index, r)).0).collect();
    for kind in (0..=u8::MAX).filter(|k| !known.contains(k)) {
        let decoded = decode_message(kind, b"anything");
        match kind {
            kind::JOIN | kind::JOINED | kind::RESUME | kind::DATA | kind::DATA_END => {
                assert!(matches!(decoded, Err(WireError::BadValue { .. })))
            }
            kind::IGNORABLE.. => assert_eq!(decoded, Ok(Decoded::Ignored)),
            _ => {
                assert_eq!(decoded, Err(WireError::UnknownKind(kind)));
                let mut header = [0; HEADER_LEN];
                header[4] = kind;
                assert_eq!(FrameHeader::decode(&header), Err(WireError::UnknownKind(kind)));
            }
        }
    }
}

/// Goal: join, its answer and subframe headers survive the round trip; the proof never shows in a log.
#[test]
fn fixed_frames_survive_the_round_trip() {
    let r = &mut Rng::with_seed(12);
    for _ in 0..1000 {
        let (stream, epoch) = (StreamId(r.u16(..)), SessionEpoch(r.u32(..)));
        let join = Join { session: bytes(r), nonce: bytes(r), proof: bytes(r), stream, epoch };
        assert_eq!(Join::decode(&join.encode()), Ok(join));
        for answer in [Joined::Accepted, Joined::UnknownSession, Joined::StaleEpoch, Joined::BadStream] {
            assert_eq!(Joined::decode(&answer.encode(stream, epoch)), Ok((answer, stream, epoch)));
        }
        let resume = ResumeFrom { epoch, received: number(r) };
        assert_eq!(ResumeFrom::decode(&resume.encode()), Ok(resume));
        let sub = SubHeader { channel: r.u16(..), len: r.u32(..=SUBFRAME_LEN_MAX) };
        assert_eq!(SubHeader::decode(&sub.encode()), Ok(sub));
    }
    let join = Join {
        session: [0; 16],
        nonce: [0; 16],
        proof: [0xab; 32],
        stream: StreamId(0),
        epoch: SessionEpoch(0),
    };
    assert!(!format!("{join:?}").contains("ab, ab") && !format!("{join:?}").contains("171"));
    // Neither is taken for the other, nor with a sequence number.
    let mut bytes = join.encode();
    bytes[4] = kind::JOINED;
    assert!(Join::decode(&bytes).is_err());
    let mut bytes = join.encode();
    bytes[16] = 1;
    assert!(Join::decode(&bytes).is_err());
}

/// Goal: a proof fits its secret, session, stream, epoch and nonce, and nothing else.
/// Method: each of them changed alone.
#[test]
fn a_proof_is_good_for_one_join() {
    let secret = [9; 32];
    let join = Join::prove(&secret, [1; 16], StreamId(3), SessionEpoch(4), [5; 16]);
    assert!(join.is_proved_by(&secret));
    assert!(!join.is_proved_by(&[8; 32]));
    for other in [
        Join { session: [2; 16], ..join },
        Join { stream: StreamId(2), ..join },
        Join { epoch: SessionEpoch(5), ..join },
        Join { nonce: [6; 16], ..join },
        Join { proof: [0; 32], ..join },
    ] {
        assert!(!other.is_proved_by(&secret), "{other:?}");
    }
}

/// Goal: two ends agree on the highest common version and the smaller limits, or say exactly why not.
/// Method: every pair of small version ranges against a model; each other condition alone.
#[test]
fn negotiation_finds_the_common_ground() {
    let base = Hello {
        version_min: 1,
        version_max: 1,
        session: [7; 16],
        capabilities: vec![],
        limits: Limits { object_len: 4 << 20, entries: 1000, streams: 8 },
    };
    let ranges = || (1..6u16).flat_map(|min| (min..6).map(move |max| (min, max)));
    for a in ranges() {
        for b in ranges() {
            let ours = Hello { version_min: a.0, version_max: a.1, ..base.clone() };
            let theirs = Hello { version_min: b.0, version_max: b.1, ..base.clone() };
            let common = (1..6).rev().find(|v| (a.0..=a.1).contains(v) && (b.0..=b.1).contains(v));
            match (negotiate(&ours, &theirs), common) {
                (Ok(agreed), Some(version)) => assert_eq!(agreed.version, version),
                (Err(error), None) => assert_eq!(error, WireError::Version { ours: a, theirs: b }),
                other => panic!("{a:?} {b:?}: {other:?}"),
            }
        }
    }
    let theirs = |limits: Limits| Hello { limits, ..base.clone() };
    let agreed = negotiate(&base, &theirs(Limits { object_len: 3 << 20, entries: 2000, streams: 2 }));
    assert_eq!(
        agreed,
        Ok(Agreed {
            version: 1,
            limits: Limits { object_len: 2 << 20, entries: 1000, streams: 2 },
            holes: false,
            targets: false,
            layouts: false,
            knobs: false,
            auth_only: false,
            digest: DigestKind::Blake3,
        })
    );
    let good = base.limits;
    for limits in [
        Limits { object_len: 0, ..good },
        Limits { object_len: OBJECT_LEN_MIN - 1, ..good },
        Limits { entries: 0, ..good },
        Limits { streams: 0, ..good },
    ] {
        assert!(matches!(negotiate(&base, &theirs(limits)), Err(WireError::BadValue { .. })), "{limits:?}");
    }
    let huge = Hello {
        limits: Limits { object_len: u32::MAX, entries: u32::MAX, streams: u16::MAX },
        ..base.clone()
    };
    let agreed = negotiate(&huge, &huge).expect("more than we take is no error");
    assert_eq!((agreed.limits.object_len, agreed.limits.streams), (OBJECT_LEN_MAX, STREAMS_MAX));

    let capability = |required| Hello {
        capabilities: vec![Capability { kind: 0x1234, required, value: [].into() }],
        ..base.clone()
    };
    assert!(negotiate(&base, &capability(false)).is_ok());
    let error = negotiate(&base, &capability(true)).expect_err("unknown and required");
    assert_eq!(error, WireError::UnknownRequired { what: "capability", kind: 0x1234 });
    assert!(error.to_string().contains("0x1234"));
    let holes = |required| Hello {
        capabilities: vec![Capability { kind: capability::HOLES, required, value: [].into() }],
        ..base.clone()
    };
    for required in [false, true] {
        let agreed = |a: &Hello, b: &Hello| negotiate(a, b).map(|agreed| agreed.holes);
        assert_eq!(agreed(&holes(false), &holes(required)), Ok(true), "both know holes");
        assert_eq!(agreed(&base, &holes(required)), Ok(false));
        assert_eq!(agreed(&holes(required), &base), Ok(false));
    }
    let targets = Hello {
        capabilities: vec![Capability { kind: capability::TARGETS, required: false, value: [].into() }],
        ..base.clone()
    };
    let agreed = |a: &Hello, b: &Hello| negotiate(a, b).map(|agreed| (agreed.targets, agreed.holes));
    assert_eq!(agreed(&targets, &targets), Ok((true, false)), "both know targets");
    assert_eq!(agreed(&base, &targets), Ok((false, false)));
    assert_eq!(agreed(&targets, &holes(false)), Ok((false, false)), "one knows the one, one the other");
    let knobs = Hello {
        capabilities: vec![Capability { kind: capability::KNOBS, required: false, value: [].into() }],
        ..base.clone()
    };
    let agreed = |a: &Hello, b: &Hello| negotiate(a, b).map(|agreed| (agreed.knobs, agreed.holes));
    assert_eq!(agreed(&knobs, &knobs), Ok((true, false)), "both know knobs");
    assert_eq!(agreed(&base, &knobs), Ok((false, false)));
    assert_eq!(agreed(&knobs, &holes(false)), Ok((false, false)), "one knows the one, one the other");
    // What protects data is never one end's alone.
    for kind in [capability::XXH3, capability::AUTH_ONLY] {
        for required in [false, true] {
            let wants =
                Hello { capabilities: vec![Capability { kind, required, value: [].into() }], ..base.clone() };
            let agreed = negotiate(&wants, &wants).expect("both want it");
            assert_eq!(agreed.digest == DigestKind::Xxh3, kind == capability::XXH3);
            assert_eq!(agreed.auth_only, kind == capability::AUTH_ONLY);
            for (ours, theirs) in [(&wants, &base), (&base, &wants)] {
                assert!(matches!(negotiate(ours, theirs), Err(WireError::OneSided { .. })), "{kind}");
            }
        }
    }
    let weak = Hello {
        capabilities: [capability::XXH3, capability::AUTH_ONLY]
            .map(|kind| Capability { kind, required: true, value: [].into() })
            .into(),
        ..base.clone()
    };
    assert_eq!(negotiate(&weak, &weak), Err(WireError::WeakDigest));
    let other = Hello { session: [8; 16], ..base.clone() };
    assert_eq!(negotiate(&base, &other), Err(WireError::WrongSession));
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Goal: v1 does not change by accident.
/// Method: one fixed sample of everything against the bytes in `golden_wire.txt`. A wanted change of the
/// protocol replaces the table with what the failing test prints, and needs a new version number once
/// v1 is released.
#[test]
fn golden_bytes_hold() {
    let mut lines = vec![];
    for index in 0..MESSAGES {
        let message = golden_message(index);
        assert_eq!(index_of(&message), index);
        let debug = format!("{message:?}");
        let label = debug.split([' ', '(', '{']).next().unwrap_or_default();
        lines.push(format!(
            "{label} {}",
            hex(&encode_frame(&message, StreamId(0), SessionEpoch(0x0a0b), 0x0102))
        ));
    }
    let entry = DataEntry {
        id: FileId(0x0102),
        generation: Generation(3),
        offset: 65_536,
        len: 135_536,
        root: false,
        hole: false,
        tail: true,
        sealed: true,
        pass: 1,
        digest: DigestKind::Blake3,
        cvs: vec![[0xc1; 32], [0xc2; 32]],
    };
    let small = DataEntry {
        offset: 0,
        len: 5,
        root: true,
        sealed: false,
        pass: 0,
        cvs: vec![[0xc3; 32]],
        ..entry.clone()
    };
    let frames = [
        ("data-object", Class::ANY, vec![entry.clone()]),
        ("data-of-target", Class(0x0102), vec![entry]),
        ("data-bundle", Class::ANY, vec![small.clone(), small]),
    ];
    for (label, class, entries) in frames {
        let header = DataHeader { class, entries };
        let frame = encode_data_header(&header, StreamId(2), SessionEpoch(0x0a0b), 0x0102);
        lines.push(format!("{label} {}", hex(&frame)));
    }
    let (stream, epoch) = (StreamId(2), SessionEpoch(0x0a0b));
    let join = Join::prove(&[0x52; 32], [0x51; 16], stream, epoch, [0x53; 16]);
    lines.push(format!("join {}", hex(&join.encode())));
    lines.push(format!("joined {}", hex(&Joined::StaleEpoch.encode(stream, epoch))));
    lines.push(format!("resume {}", hex(&ResumeFrom { epoch, received: 0x0102 }.encode())));
    lines.push(format!("subheader {}", hex(&SubHeader { channel: 2, len: 0x1234 }.encode())));
    let table = lines.join("\n") + "\n";
    let golden = include_str!("golden_wire.txt");
    assert!(table == golden, "the wire format changed; it is now:\n{table}");
}

fn golden_message(index: usize) -> Message {
    let (id, generation) = (FileId(0x0102), Generation(3));
    let name = |bytes: &[u8]| Name::new(bytes).expect("legal");
    let stamp = |secs| Timestamp { secs, nanos: 999_999_999 };
    let meta = Meta { mode: 0o4755, uid: 1000, gid: 100, mtime: stamp(-1) };
    let extent = Extent { id, generation, offset: 4 << 20, len: 1 << 16 };
    let failure = Failure { stage: Stage::Publish, errno: 28, text: "no space".into() };
    let subtree = Subtree { offset: 0, len: 4 << 20, cv: [0xcc; 32] };
    match index {
        0 => Message::Hello(Hello {
            version_min: 1,
            version_max: 2,
            session: [0x51; 16],
            capabilities: vec![
                Capability { kind: 0x0102, required: true, value: b"val".as_slice().into() },
                Capability { kind: 0x0103, required: false, value: [].into() },
            ],
            limits: Limits { object_len: 64 << 20, entries: 65_536, streams: 16 },
        }),
        1 => Message::Sources {
            roots: vec![
                SourceRoot::Named { name: name(b"file"), is_dir: false },
                SourceRoot::Named { name: name(b"dir"), is_dir: true },
                SourceRoot::Contents { names_hash: [0xab; 32], names: 3 },
            ],
            policy: Policy {
                durable: true,
                force: false,
                no_clobber: true,
                update: false,
                owner: false,
                times: true,
                verify: false,
            },
        },
        2 => Message::Destination { wait: true, rename: Some(name(b"b.txt")), epoch: 7, resumed: false },
        3 => Message::Announce(vec![
            Announced { id, generation, parent: DirId::ROOT, name: name(b"d"), meta, kind: EntryKind::Dir },
            Announced {
                id: FileId(0x0103),
                generation,
                parent: DirId(0x0102),
                name: name(b"\xfff"),
                meta,
                kind: EntryKind::File {
                    fingerprint: Fingerprint { size: 0x1234, mtime: stamp(1), ctime: stamp(2), ino: 9 },
                    object_size: 4 << 20,
                    sparse: false,
                    striped: false,
                },
            },
            Announced {
                id: FileId(0x0104),
                generation,
                parent: DirId(0x0102),
                name: name(b"l"),
                meta,
                kind: EntryKind::Symlink { target: b"../d".as_slice().into() },
            },
        ]),
        4 => Message::DirEnd(vec![DirId::ROOT, DirId(0x0102)]),
        5 => Message::State(vec![
            (id, generation, FileState::Fresh),
            (id, generation, FileState::Unchanged),
            (id, generation, FileState::Skipped),
            (id, generation, FileState::Held { subtrees: vec![subtree], verify: true }),
        ]),
        6 => Message::Sealed(vec![(id, generation, 2)]),
        7 => Message::Withdraw { id, generation, retry: true, failure: Some(failure) },
        8 => Message::End(Totals { files: 1, dirs: 2, symlinks: 3, bytes: 4 }),
        9 => Message::Grant { class: 1, total: 1 << 32 },
        10 => Message::Written { bytes: 5, frames: vec![(StreamId(1), 6), (StreamId(2), 7)] },
        11 => Message::Durable(vec![extent]),
        12 => Message::Done(vec![
            DoneItem { id, generation, outcome: Outcome::Done { root: None } },
            DoneItem { id, generation, outcome: Outcome::Done { root: Some([0xdd; 32]) } },
            DoneItem { id, generation, outcome: Outcome::Failed(failure) },
        ]),
        13 => Message::Resend(vec![extent, extent]),
        14 => Message::StreamClosed { stream: StreamId(2), frames: 8 },
        15 => Message::TargetHealth(vec![TargetHealth {
            class: Class(1),
            health: Health::Hung,
            waiting: 2,
            in_flight: 3,
            service: 4,
            best: 5,
            done: 6,
        }]),
        16 => Message::Stop { reason: "stop".into() },
        17 => Message::Stopped,
        18 => Message::Complete,
        19 => Message::Report(EndReport {
            cpu: 1,
            rss_max: 2,
            stages: std::array::from_fn(|i| StageTime {
                busy: 10 * i as u64,
                starved: 10 * i as u64 + 1,
                blocked: 10 * i as u64 + 2,
            }),
            strays: 3,
            payload: 4,
            objects_resent: 5,
            not_kept: [6, 7, 8, 9, 10, 11],
        }),
        20 => Message::Abort(failure),
        21 => Message::Ping(0x0102),
        22 => Message::Pong(0x0102),
        23 => Message::Trouble { path: b"d/f".as_slice().into(), failure },
        24 => Message::Holes {
            id,
            generation,
            extents: vec![DataExtent { offset: 0, len: 1 << 16 }, DataExtent { offset: 1 << 40, len: 5 }],
            last: true,
        },
        25 => Message::Notice { text: "waiting".into() },
        26 => Message::Received(0x0102),
        27 => Message::Streams(5),
        28 => Message::Knobs(Knobs { paused: true, rate: 0x0102, streams: 3, readers: 4, writers: 5 }),
        29 => Message::FileTargets {
            id,
            generation,
            layout: Layout::new(vec![
                Component { start: 0, stripe_size: 1 << 20, targets: vec![Class(3), Class(4)] },
                Component { start: 1 << 30, stripe_size: u64::MAX, targets: vec![Class::ANY] },
            ])
            .expect("it is one"),
        },
        30 => Message::Trial(b"{}".as_slice().into()),
        31 => {
            let striping = Some(Striping { stripe_size: 3 << 20, stripe_count: 4 });
            let file = FileLayout { id, generation, object_size: 1 << 20, striping };
            Message::FileLayout(vec![file, FileLayout { object_size: 4 << 20, striping: None, ..file }])
        }
        32 => Message::ObjectLen(2 << 20),
        33 => Message::Placed(Placed { targets: 3, files: 1, others: 2, why: "no stripes".into() }),
        _ => unreachable!("there are {MESSAGES} kinds"),
    }
}
