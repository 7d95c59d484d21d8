//! Random messages of every kind, as far as they are legal; what encodes and decodes them.

use std::time::Duration;

use fastrand::Rng;
use haul_core::digest::{Subtree, subtrees};
use haul_core::entry::{
    EntryKind, Extras, FileRange, Fingerprint, LINK_LEN_MAX, METADATA_NAME_LEN_MAX, METADATA_VALUE_LEN_MAX,
    Meta, NAME_LEN_MAX, Name, Namespace, SHARD_RANGE_GRAIN, Timestamp, VERSION_LEN_MAX, Version,
};
use haul_core::extents::DataExtent;
use haul_core::ids::{DirId, FileId, Generation, HOSTS_MAX, Holder, SessionEpoch, SinkTarget, StreamId};
use haul_core::layout::{Component, Layout, STRIPES_MAX, Striping};
use haul_core::schedule::Health;
use haul_core::schedule::table::{
    NAME_LEN_MAX as TARGET_NAME_MAX, ROWS_MAX, Row, Table, UNWELL_MAX, Unwell, UnwellTargets,
};
use haul_core::stage::{Processors, StageTime};
use haul_core::wire::*;

/// Kinds of messages; [`index_of`] and [`message`] cover each.
pub const MESSAGES: usize = 44;

/// No wildcard: a new message does not compile here until it gets a number, and `MESSAGES` with it.
pub fn index_of(message: &Message) -> usize {
    match message {
        Message::Hello(_) => 0,
        Message::Sources { .. } => 1,
        Message::Destination { .. } => 2,
        Message::Announce(_) => 3,
        Message::DirEnd(_) => 4,
        Message::FileStates(_) => 5,
        Message::Sealed(_) => 6,
        Message::Withdraw { .. } => 7,
        Message::End(_) => 8,
        Message::Grant { .. } => 9,
        Message::Written { .. } => 10,
        Message::Durable { .. } => 11,
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
        Message::LiveSettings(_) => 28,
        Message::FileTargets { .. } => 29,
        Message::Trial(_) => 30,
        Message::SourceRoots(_) => 31,
        Message::AskTable => 32,
        Message::TargetTable(_) => 33,
        Message::UnwellTargets(_) => 34,
        Message::FileLayout(_) => 35,
        Message::ObjectLen(_) => 36,
        Message::Placed(_) => 37,
        Message::Choices(_) => 38,
        Message::Processors(_) => 39,
        Message::NotHeld(_) => 40,
        Message::Metadata(_) => 41,
        Message::OwnerNames(_) => 43,
        Message::TimeGrain(_) => 42,
    }
}

pub fn name(r: &mut Rng) -> Name {
    let len = if r.u8(..8) == 0 { NAME_LEN_MAX } else { r.usize(1..40) };
    let bytes: Vec<u8> = (0..len).map(|_| r.u8(b'0'..)).collect();
    Name::new(&bytes).expect("no slash, no dot, no NUL above '0'")
}

pub fn text(r: &mut Rng) -> Box<str> {
    (0..r.usize(..60)).map(|_| r.char(..)).collect::<String>().into()
}

/// Small and large numbers alike.
pub fn number(r: &mut Rng) -> u64 {
    r.u64(..) >> r.u32(..64)
}

pub fn bytes<const N: usize>(r: &mut Rng) -> [u8; N] {
    std::array::from_fn(|_| r.u8(..))
}

pub fn list<T>(r: &mut Rng, max: usize, mut item: impl FnMut(&mut Rng) -> T) -> Vec<T> {
    (0..r.usize(..=max)).map(|_| item(r)).collect()
}

pub fn time(r: &mut Rng) -> Timestamp {
    Timestamp { secs: r.i64(..), nanos: r.u32(..1_000_000_000) }
}

pub fn stamp(r: &mut Rng) -> Version {
    let bytes: Vec<u8> = (0..r.usize(..=VERSION_LEN_MAX)).map(|_| r.u8(..)).collect();
    Version::new(&bytes).expect("not too long")
}

pub fn version(r: &mut Rng) -> (FileId, Generation) {
    (FileId(number(r)), Generation(r.u32(..)))
}

pub fn range(r: &mut Rng) -> (u64, u64) {
    (number(r) >> 2, number(r) >> 2)
}

pub fn extent(r: &mut Rng) -> Extent {
    let ((id, generation), (offset, len)) = (version(r), range(r));
    Extent { id, generation, offset, len }
}

pub fn failure(r: &mut Rng) -> Failure {
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
    ];
    Failure { kind: stages[r.usize(..stages.len())], errno: r.i32(..), text: text(r) }
}

pub fn announced(r: &mut Rng) -> Announced {
    let id = FileId(number(r) | 1);
    let mut extras = Extras::default();
    let kind = match r.u8(..7) {
        0 => {
            extras.metadata = r.bool();
            EntryKind::Dir { version: stamp(r) }
        }
        1 => {
            let fingerprint = Fingerprint { size: number(r) >> 1, mtime: time(r), version: stamp(r) };
            let object_size = 1 << r.u32(16..=26);
            extras = Extras {
                range: file_range(r, fingerprint.size, object_size),
                metadata: r.bool(),
                names: [0, 2, u32::MAX][r.usize(..3)],
            };
            EntryKind::File { fingerprint, object_size, sparse: r.bool(), striped: r.bool() }
        }
        2 => EntryKind::Fifo,
        3 => EntryKind::Socket,
        4 => EntryKind::Device { block: r.bool(), major: r.u32(..), minor: r.u32(..) },
        5 if id.0 > 1 => EntryKind::HardLink { to: FileId(r.u64(1..id.0)) },
        _ => {
            extras.names = [0, 2, u32::MAX][r.usize(..3)];
            let len = if r.u8(..8) == 0 { LINK_LEN_MAX } else { r.usize(1..80) };
            EntryKind::Symlink { target: (0..len).map(|_| r.u8(1..)).collect() }
        }
    };
    Announced {
        id,
        generation: Generation(r.u32(..)),
        parent: DirId(number(r)),
        name: name(r),
        meta: meta(r),
        kind,
        extras,
    }
}

/// One that the file has, of either kind; `None` of an empty file, and now and then.
fn file_range(r: &mut Rng, size: u64, object_size: u32) -> Option<FileRange> {
    let source = r.u64(..size.max(1));
    let range = match r.u8(..3) {
        0 => {
            let grain = SHARD_RANGE_GRAIN.max(object_size.into());
            let source = source / grain * grain;
            let len = if r.bool() { size - source } else { (size - source) / grain * grain };
            FileRange { source, sink: source, len, partial: false }
        }
        // A file of its own, wherever it begins.
        1 if size <= 1 << 62 => {
            FileRange { source: number(r) >> 2, sink: number(r) >> 2, len: size, partial: true }
        }
        _ => return None,
    };
    Some(range).filter(|range| range.len > 0)
}

pub fn lease(r: &mut Rng) -> Holder {
    Holder { host: r.u16(..HOSTS_MAX), epoch: r.u32(..) }
}

pub fn owner_name(r: &mut Rng) -> OwnerName {
    let name = (0..r.usize(1..=OWNER_NAME_LEN_MAX)).map(|_| r.u8(..)).collect();
    OwnerName { group: r.bool(), id: r.u32(..), name }
}

pub fn metadata(r: &mut Rng) -> MetadataPiece {
    let (id, generation) = version(r);
    let namespaces = [Namespace::Xattr, Namespace::AccessAcl, Namespace::DefaultAcl, Namespace::Nfs4Acl];
    let namespace = namespaces[r.usize(..4)];
    let name_len = if namespace == Namespace::Xattr { r.usize(1..=METADATA_NAME_LEN_MAX) } else { 0 };
    let total = if r.bool() { METADATA_VALUE_LEN_MAX } else { r.u32(..100) };
    let offset = r.u32(..total.max(1));
    let len = (total - offset).min(METADATA_PIECE_LEN_MAX as u32);
    MetadataPiece {
        id,
        generation,
        namespace,
        name: (0..name_len).map(|_| r.u8(1..)).collect(),
        total,
        offset,
        piece: (0..len).map(|_| r.u8(..)).collect(),
        last: offset + len == total && r.bool(),
    }
}

pub fn change(r: &mut Rng) -> Change {
    Change::from_bits(r.u16(..1024)).unwrap()
}

pub fn state(r: &mut Rng) -> (FileId, Generation, FileState) {
    let (id, generation) = version(r);
    let state = match r.u8(..8) {
        6 => FileState::Finished,
        7 => FileState::Cloned,
        0 => FileState::Fresh,
        1 => FileState::Unchanged,
        2 => FileState::Skipped,
        4 => FileState::Planned(change(r)),
        5 => FileState::Amended(change(r)),
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

pub fn done(r: &mut Rng) -> DoneItem {
    let (id, generation) = version(r);
    let outcome = match r.u8(..4) {
        3 => Outcome::Persisted,
        0 => Outcome::Done { root: None, change: change(r) },
        1 => Outcome::Done { root: Some(bytes(r)), change: change(r) },
        _ => Outcome::Failed(failure(r)),
    };
    DoneItem { id, generation, outcome }
}

pub fn hello(r: &mut Rng) -> Hello {
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

fn meta(r: &mut Rng) -> Meta {
    Meta { mode: r.u32(..0o10000), uid: r.u32(..), gid: r.u32(..), mtime: time(r) }
}

pub fn root(r: &mut Rng) -> SourceRoot {
    match r.bool() {
        true => SourceRoot::Named { name: name(r), is_dir: r.bool() },
        false => SourceRoot::Contents { of: r.bool().then(|| name(r)), meta: meta(r) },
    }
}

/// A random message of the kind that [`index_of`] calls `index`.
pub fn target_health(r: &mut Rng) -> TargetHealth {
    let healths = [Health::Healthy, Health::Congested, Health::Resting, Health::Hung];
    TargetHealth {
        sink_target: SinkTarget(r.u16(1..SINK_TARGETS_MAX)),
        health: healths[r.usize(..4)],
        waiting: r.u32(..),
        in_flight: r.u32(..),
        service: number(r),
        best: number(r),
        done: number(r),
    }
}

fn span(r: &mut Rng) -> Duration {
    Duration::from_nanos(number(r))
}

fn target_name(r: &mut Rng) -> Box<str> {
    let len = if r.u8(..8) == 0 { TARGET_NAME_MAX } else { r.usize(1..40) };
    (0..len).map(|_| char::from(r.u8(..128))).collect::<String>().into()
}

/// Rows, and at least as many targets.
fn table(r: &mut Rng) -> Table {
    let rows = list(r, ROWS_MAX, |r| Row {
        name: target_name(r),
        health: Health::ALL[r.usize(..4)],
        waiting: r.u32(..),
        in_flight: r.u32(..),
        service: span(r),
        best: span(r),
        done: number(r),
        bytes: number(r),
    });
    let mut counts = [0; 4].map(|_: u16| r.u16(..1000));
    rows.iter().for_each(|row| counts[row.health as usize] += 1);
    Table { counts, rows }
}

/// Components that rise from 0.
pub fn layout(r: &mut Rng) -> Layout<SinkTarget> {
    let mut start = 0;
    let components = (0..r.usize(1..6)).map(|_| {
        let targets = (0..r.usize(1..9)).map(|_| SinkTarget(r.u16(..SINK_TARGETS_MAX))).collect();
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

pub fn message(index: usize, r: &mut Rng) -> Message {
    match index {
        0 => Message::Hello(hello(r)),
        1 => Message::Sources {
            roots: list(r, 5, root),
            policy: SinkOptions {
                trust: r.bool(),
                durable: r.bool(),
                force: r.bool(),
                no_clobber: r.bool(),
                update: r.bool(),
                owner: r.bool(),
                times: r.bool(),
                verify: r.bool(),
                xattrs: r.bool(),
                acls: r.bool(),
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
        5 => Message::FileStates(list(r, 6, state)),
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
        9 => Message::Grant { by: lease(r), sink_target: r.u16(..SINK_TARGETS_MAX), total: number(r) },
        10 => Message::Written { bytes: number(r), frames: list(r, 6, |r| (StreamId(r.u16(..)), number(r))) },
        11 => Message::Durable { by: lease(r), extents: list(r, 6, extent) },
        12 => Message::Done(list(r, 6, done)),
        13 => Message::Resend(list(r, 6, extent)),
        40 => Message::NotHeld(list(r, 6, extent)),
        41 => Message::Metadata(list(r, 3, metadata)),
        43 => Message::OwnerNames(list(r, 5, owner_name)),
        14 => Message::StreamClosed { stream: StreamId(r.u16(..)), frames: number(r) },
        15 => Message::TargetHealth(list(r, 6, target_health)),
        16 => Message::Stop { reason: text(r) },
        17 => Message::Stopped,
        18 => Message::Complete,
        19 => Message::Report(Box::new(EndReport {
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
            amended: number(r),
            prefixes: number(r),
            prefix_bytes: number(r),
            not_kept: std::array::from_fn(|_| number(r)),
            held: HeldReport { checked: number(r), wrong: number(r), trusted: number(r), time: number(r) },
        })),
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
        28 => Message::LiveSettings(LiveSettings {
            paused: r.bool(),
            rate: number(r),
            streams: r.u16(..=STREAMS_MAX),
            readers: r.u16(..=LIVE_THREADS_MAX),
            writers: r.u16(..=LIVE_THREADS_MAX),
        }),
        30 => Message::Trial(bytes::<20>(r).into()),
        31 => Message::SourceRoots(list(r, 5, root)),
        32 => Message::AskTable,
        33 => Message::TargetTable(table(r)),
        34 => Message::UnwellTargets(UnwellTargets {
            named: list(r, UNWELL_MAX, |r| Unwell {
                name: target_name(r),
                congested: span(r),
                hung: span(r),
            }),
            others: r.u16(..=4096),
        }),
        35 => Message::FileLayout(list(r, 6, file_layout)),
        36 => Message::ObjectLen(1 << r.u32(16..=26)),
        37 => {
            Message::Placed(Placed { targets: r.u16(..), files: number(r), others: number(r), why: text(r) })
        }
        38 => Message::Choices(list(r, 5, |r| Chosen { name: text(r), value: text(r) })),
        39 => Message::Processors(Processors { count: r.u16(..), busy: r.u16(..=Processors::ALL) }),
        42 => Message::TimeGrain(r.u32(1..)),
        _ => unreachable!("there are {MESSAGES} kinds"),
    }
}

pub fn data_entry(r: &mut Rng, bundle: bool) -> DataEntry {
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

pub fn data_header(r: &mut Rng) -> DataHeader {
    let count = if r.bool() { 1 } else { r.usize(1..20) };
    DataHeader {
        sink_target: SinkTarget(r.u16(..SINK_TARGETS_MAX)),
        entries: (0..count).map(|_| data_entry(r, count > 1)).collect(),
    }
}

pub fn encode(message: &Message) -> (u8, Vec<u8>) {
    let mut body = Vec::new();
    let kind = encode_message(message, &mut body);
    (kind, body)
}

pub fn header_of(frame: &[u8]) -> FrameHeader {
    FrameHeader::decode(frame.first_chunk().expect("a header's bytes")).expect("own header")
}

pub fn encode_data(header: &DataHeader) -> Vec<u8> {
    encode_data_header(header, StreamId(3), SessionEpoch(7), 11)
}

/// As a reader does it: header, preamble, descriptor.
pub fn decode_data(frame: &[u8]) -> Result<DataHeader, WireError> {
    let (header, rest) = frame.split_first_chunk().expect("a header's bytes");
    let header = FrameHeader::decode(header)?;
    let (preamble, rest) = rest.split_first_chunk().expect("a preamble's bytes");
    let preamble = DataPreamble::decode(&header, preamble)?;
    decode_data_descriptor(&preamble, rest)
}
