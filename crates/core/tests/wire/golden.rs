//! The bytes of this version, fixed.

use std::time::Duration;

use haul_core::digest::Subtree;
use haul_core::entry::{
    EntryKind, Extras, FileRange, Fingerprint, Meta, Name, Namespace, Timestamp, Version,
};
use haul_core::extents::DataExtent;
use haul_core::ids::{DirId, FileId, Generation, Holder, SessionEpoch, SinkTarget, StreamId};
use haul_core::layout::{Component, Layout, Striping};
use haul_core::schedule::Health;
use haul_core::schedule::table::{Row, Table, Unwell, UnwellTargets};
use haul_core::stage::{Processors, StageTime};
use haul_core::wire::*;

use crate::samples::{MESSAGES, index_of};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Goal: the format does not change by accident.
/// Method: one fixed sample of everything against the bytes in `golden_wire.txt`. A wanted change of the
/// protocol replaces the table with what the failing test prints, and needs a new version number once
/// this one is released.
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
        ("data-object", SinkTarget::ANY, vec![entry.clone()]),
        ("data-of-target", SinkTarget(0x0102), vec![entry]),
        ("data-bundle", SinkTarget::ANY, vec![small.clone(), small]),
    ];
    for (label, sink_target, entries) in frames {
        let header = DataHeader { sink_target, entries };
        let frame = encode_data_header(&header, StreamId(2), SessionEpoch(0x0a0b), 0x0102);
        lines.push(format!("{label} {}", hex(&frame)));
    }
    let (stream, epoch) = (StreamId(2), SessionEpoch(0x0a0b));
    let join = Join::prove(&[0x52; 32], [0x51; 16], stream, epoch, [0x53; 16]);
    lines.push(format!("join {}", hex(&join.encode())));
    lines.push(format!("joined {}", hex(&Joined::StaleEpoch.encode(stream, epoch))));
    lines.push(format!("resume {}", hex(&ResumeFrom { epoch, received: 0x0102 }.encode())));
    let end = FrameHeader { len: 0, kind: kind::DATA_END, flags: 0, stream, epoch, seq: 0x0102 };
    lines.push(format!("data-end {}", hex(&end.encode())));
    lines.push(format!("subheader {}", hex(&SubHeader { channel: 2, len: 0x1234 }.encode())));
    let table = lines.join("\n") + "\n";
    let golden = include_str!("../golden_wire.txt");
    assert!(table == golden, "the wire format changed; it is now:\n{table}");
}

/// Goal: no stage of a failure changes its number, and each survives.
#[test]
fn stages_keep_their_numbers() {
    let stages = [
        FailureKind::Walk,
        FailureKind::Open,
        FailureKind::Read,
        FailureKind::Changed,
        FailureKind::Create,
        FailureKind::Write,
        FailureKind::Sync,
        FailureKind::Publish,
        FailureKind::Metadata,
        FailureKind::Digest,
        FailureKind::Protocol,
        FailureKind::Usage,
        FailureKind::Vanished,
        FailureKind::Local,
        FailureKind::Network,
    ];
    for (number, stage) in (1..).zip(stages) {
        let message = Message::Abort(Failure { kind: stage, errno: 5, text: "x".into() });
        let frame = encode_frame(&message, StreamId(0), SessionEpoch(1), 1);
        let body = &frame[HEADER_LEN..];
        assert_eq!(body[0], number, "{stage:?}");
        assert_eq!(decode_message(frame[4], body), Ok(Decoded::Message(message)));
    }
    let frame = encode_frame(&golden_message(20), StreamId(0), SessionEpoch(1), 1);
    let mut unknown = frame[HEADER_LEN..].to_vec();
    unknown[0] = stages.len() as u8 + 1;
    assert!(decode_message(frame[4], &unknown).is_err());
}

/// Goal: no kind of frame without a fixed sample.
/// Method: every number that decoders take for a kind that they know, against the kinds of the samples.
#[test]
fn every_kind_has_a_golden_sample() {
    let frames = include_str!("../golden_wire.txt").lines().filter(|line| !line.starts_with("subheader "));
    let kind_of = |line: &str| {
        let (_, hex) = line.split_once(' ').expect("a label and bytes");
        u8::from_str_radix(&hex[8..10], 16).expect("hex")
    };
    let sampled: Vec<u8> = frames.map(kind_of).collect();
    let unknown = |kind| match decode_message(kind, b"") {
        Ok(Decoded::Ignored) => true,
        decoded => decoded == Err(WireError::UnknownKind(kind)),
    };
    let missing: Vec<u8> = (0..=u8::MAX).filter(|kind| !unknown(*kind) && !sampled.contains(kind)).collect();
    assert!(missing.is_empty(), "no samples of the kinds {missing:02x?}");
}

fn golden_message(index: usize) -> Message {
    let (id, generation) = (FileId(0x0102), Generation(3));
    let name = |bytes: &[u8]| Name::new(bytes).expect("legal");
    let stamp = |secs| Timestamp { secs, nanos: 999_999_999 };
    let meta = Meta { mode: 0o4755, uid: 1000, gid: 100, mtime: stamp(-1) };
    let extent = Extent { id, generation, offset: 4 << 20, len: 1 << 16 };
    let failure = Failure { kind: FailureKind::Publish, errno: 28, text: "no space".into() };
    let subtree = Subtree { offset: 0, len: 4 << 20, cv: [0xcc; 32] };
    let plain = Extras::default();
    let other = |id, kind| Announced {
        id: FileId(id),
        generation,
        parent: DirId(0x0102),
        name: name(b"o"),
        meta,
        kind,
        extras: plain,
    };
    let fingerprint = Fingerprint { size: 9 << 20, mtime: stamp(1), version: Version::NONE };
    let whole = EntryKind::File { fingerprint, object_size: 4 << 20, sparse: false, striped: false };
    let range = FileRange { source: 8 << 20, sink: 8 << 20, len: 1 << 20, partial: false };
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
                SourceRoot::Contents { of: Some(name(b"data")), meta },
            ],
            policy: SinkOptions {
                durable: true,
                force: false,
                no_clobber: true,
                update: false,
                owner: false,
                times: true,
                verify: false,
                trust: false,
                xattrs: true,
                acls: false,
            },
        },
        2 => Message::Destination { wait: true, rename: Some(name(b"b.txt")), epoch: 7, resumed: false },
        3 => Message::Announce(vec![
            Announced {
                id,
                generation,
                parent: DirId::ROOT,
                name: name(b"d"),
                meta,
                kind: EntryKind::Dir { version: Version::new(b"version").expect("short") },
                extras: Extras { metadata: true, ..plain },
            },
            Announced {
                id: FileId(0x0103),
                generation,
                parent: DirId(0x0102),
                name: name(b"\xfff"),
                meta,
                kind: EntryKind::File {
                    fingerprint: Fingerprint {
                        size: 0x1234,
                        mtime: stamp(1),
                        version: Version::new(b"version").expect("short"),
                    },
                    object_size: 4 << 20,
                    sparse: false,
                    striped: false,
                },
                extras: plain,
            },
            Announced {
                id: FileId(0x0104),
                generation,
                parent: DirId(0x0102),
                name: name(b"l"),
                meta,
                kind: EntryKind::Symlink { target: b"../d".as_slice().into() },
                extras: plain,
            },
            other(0x0105, EntryKind::Fifo),
            other(0x0106, EntryKind::Socket),
            other(0x0107, EntryKind::Device { block: true, major: 8, minor: 1 }),
            other(0x0108, EntryKind::HardLink { to: FileId(0x0103) }),
            Announced { extras: Extras { range: Some(range), ..plain }, ..other(0x0109, whole) },
            Announced {
                extras: Extras { names: 3, ..plain },
                ..other(0x010a, EntryKind::Symlink { target: b"t".as_slice().into() })
            },
        ]),
        4 => Message::DirEnd(vec![DirId::ROOT, DirId(0x0102)]),
        5 => Message::FileStates(vec![
            (id, generation, FileState::Fresh),
            (id, generation, FileState::Unchanged),
            (id, generation, FileState::Skipped),
            (id, generation, FileState::Held { subtrees: vec![subtree], verify: true }),
            (id, generation, FileState::Planned(Change::NEW)),
            (id, generation, FileState::Amended(Change::MODE)),
            (id, generation, FileState::Finished),
            (id, generation, FileState::Cloned),
        ]),
        6 => Message::Sealed(vec![(id, generation, 2)]),
        7 => Message::Withdraw { id, generation, retry: true, failure: Some(failure) },
        8 => Message::End(Totals { files: 1, dirs: 2, symlinks: 3, bytes: 4 }),
        9 => Message::Grant { by: Holder { host: 0x0102, epoch: 0x0304 }, sink_target: 1, total: 1 << 32 },
        10 => Message::Written { bytes: 5, frames: vec![(StreamId(1), 6), (StreamId(2), 7)] },
        11 => Message::Durable { by: Holder { host: 0x0102, epoch: 0x0304 }, extents: vec![extent] },
        12 => Message::Done(vec![
            DoneItem { id, generation, outcome: Outcome::Done { root: None, change: Change::NONE } },
            DoneItem {
                id,
                generation,
                outcome: Outcome::Done { root: Some([0xdd; 32]), change: Change::SIZE },
            },
            DoneItem { id, generation, outcome: Outcome::Failed(failure) },
            DoneItem { id, generation, outcome: Outcome::Persisted },
        ]),
        13 => Message::Resend(vec![extent, extent]),
        40 => Message::NotHeld(vec![extent, extent]),
        14 => Message::StreamClosed { stream: StreamId(2), frames: 8 },
        15 => Message::TargetHealth(vec![TargetHealth {
            sink_target: SinkTarget(1),
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
        19 => Message::Report(Box::new(EndReport {
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
            amended: 6,
            prefixes: 16,
            prefix_bytes: 17,
            not_kept: [7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17],
            held: HeldReport { checked: 12, wrong: 13, trusted: 14, time: 15 },
        })),
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
        28 => Message::LiveSettings(LiveSettings {
            paused: true,
            rate: 0x0102,
            streams: 3,
            readers: 4,
            writers: 5,
        }),
        29 => Message::FileTargets {
            id,
            generation,
            layout: Layout::new(vec![
                Component { start: 0, stripe_size: 1 << 20, targets: vec![SinkTarget(3), SinkTarget(4)] },
                Component { start: 1 << 30, stripe_size: u64::MAX, targets: vec![SinkTarget::ANY] },
            ])
            .expect("it is one"),
        },
        30 => Message::Trial(b"{}".as_slice().into()),
        31 => Message::SourceRoots(vec![SourceRoot::Named { name: name(b"file"), is_dir: false }]),
        32 => Message::AskTable,
        33 => Message::TargetTable(Table {
            counts: [9, 0, 0, 1],
            rows: vec![Row {
                name: "OST0001".into(),
                health: Health::Hung,
                waiting: 2,
                in_flight: 3,
                service: Duration::from_nanos(4),
                best: Duration::from_nanos(5),
                done: 6,
                bytes: 7,
            }],
        }),
        34 => Message::UnwellTargets(UnwellTargets {
            named: vec![Unwell {
                name: "OST0001".into(),
                congested: Duration::from_nanos(8),
                hung: Duration::from_nanos(9),
            }],
            others: 10,
        }),
        35 => {
            let striping = Some(Striping { stripe_size: 3 << 20, stripe_count: 4 });
            let file = FileLayout { id, generation, object_size: 1 << 20, striping };
            Message::FileLayout(vec![file, FileLayout { object_size: 4 << 20, striping: None, ..file }])
        }
        36 => Message::ObjectLen(2 << 20),
        37 => Message::Placed(Placed { targets: 3, files: 1, others: 2, why: "no stripes".into() }),
        38 => Message::Choices(vec![Chosen { name: "readers".into(), value: "2 (as asked)".into() }]),
        39 => Message::Processors(Processors { count: 64, busy: 957 }),
        42 => Message::TimeGrain(1_000_000_000),
        43 => {
            Message::OwnerNames(vec![OwnerName { group: true, id: 0x0102, name: b"users".as_slice().into() }])
        }
        41 => Message::Metadata(vec![MetadataPiece {
            id,
            generation,
            namespace: Namespace::Xattr,
            name: b"user.x".as_slice().into(),
            total: 9,
            offset: 4,
            piece: b"value".as_slice().into(),
            last: true,
        }]),
        _ => unreachable!("there are {MESSAGES} kinds"),
    }
}
