//! Messages of a job of many hosts: round trips, refusals, golden samples.

use fastrand::Rng;
use haul_core::digest::Subtree;
use haul_core::entry::{Meta, Timestamp};
use haul_core::ids::{DirId, FileId, Generation, HostId, Lease, PairId, SessionEpoch};
use haul_core::job::{Publication, Return, Temp, Way, Work, WorkKind};
use haul_core::wire::*;

const BODIES: usize = 16;
const LEN_MAX: u64 = FILE_LEN_MAX / 2;

fn temp(r: &mut Rng) -> Temp {
    Temp { tag: r.u32(..), number: r.u64(..) }
}

fn temps(r: &mut Rng) -> Vec<Temp> {
    (0..r.usize(..=TEMPS_MAX)).map(|_| temp(r)).collect()
}

fn value(r: &mut Rng) -> [u8; 32] {
    let mut value = [0; 32];
    r.fill(&mut value);
    value
}

fn some(r: &mut Rng) -> Option<[u8; 32]> {
    r.bool().then(|| value(r))
}

fn failure(r: &mut Rng) -> Failure {
    Failure { kind: FailureKind::Write, errno: r.i32(..), text: "no room".into() }
}

fn work(r: &mut Rng) -> Work {
    let kinds = [WorkKind::Whole, WorkKind::Begin, WorkKind::Range, WorkKind::Read];
    let (id, generation) = (FileId(r.u64(..)), Generation(r.u32(..)));
    let (offset, len) = (r.u64(..LEN_MAX), r.u64(..LEN_MAX));
    let kind = kinds[r.usize(..4)];
    Work { id, generation, kind, offset, len, temp: temp(r), from: temp(r), former: temps(r) }
}

fn body(index: usize, r: &mut Rng) -> JobBody {
    let (id, generation) = (FileId(r.u64(..)), Generation(r.u32(..)));
    let offset = r.u64(..LEN_MAX);
    match index {
        0 => JobBody::Lease { time: r.u32(..) },
        1 => JobBody::LeaseEnded,
        2 => JobBody::Assign((0..r.usize(..=JOB_ITEMS_MAX)).map(|_| work(r)).collect()),
        3 => {
            let item = |r: &mut Rng| Return { id, generation, offset, from: offset + r.u64(..LEN_MAX) };
            JobBody::GiveBack((0..r.usize(..=JOB_ITEMS_MAX)).map(|_| item(r)).collect())
        }
        4 => {
            let from = r.bool().then(|| offset + r.u64(..LEN_MAX));
            JobBody::GaveBack { id, generation, offset, from }
        }
        5 => JobBody::Revoke { id, generation },
        6 => JobBody::Begun { id, generation, found: r.bool() },
        7 => {
            let subtree =
                |r: &mut Rng| Subtree { offset: r.u64(..LEN_MAX), len: r.u64(1..LEN_MAX), cv: value(r) };
            let subtrees = (0..r.usize(..=40)).map(|_| subtree(r)).collect();
            JobBody::Persisted { id, generation, offset, subtrees, over: r.bool() }
        }
        8 => JobBody::Read { id, generation, offset, value: some(r) },
        9 => JobBody::Seal { id, generation, root: some(r) },
        10 => {
            let way = if r.bool() { Way::Rename } else { Way::Copy { to: temp(r) } };
            let (temp, root, former) = (temp(r), value(r), temps(r));
            JobBody::Publish(Publication { id, generation, temp, root, way, former })
        }
        11 => JobBody::Published { id, generation, root: some(r) },
        12 => {
            let plain = [Why::Unchanged, Why::Skipped, Why::Changed];
            let why = match r.usize(..5) {
                3 => Why::GivenUp(failure(r)),
                4 => Why::Failed(failure(r)),
                index => plain[index].clone(),
            };
            JobBody::NotPublished { id, generation, why }
        }
        13 => JobBody::Discard { id, temps: temps(r) },
        14 => {
            let mtime = Timestamp { secs: r.i64(..), nanos: r.u32(..1_000_000_000) };
            let meta = Meta { mode: r.u32(..0o10000), uid: r.u32(..), gid: r.u32(..), mtime };
            JobBody::FinishDir { dir: DirId(r.u64(..)), meta }
        }
        _ => {
            let failure = r.bool().then(|| failure(r));
            JobBody::FinishedDir { dir: DirId(r.u64(..)), failure }
        }
    }
}

fn message(index: usize, r: &mut Rng) -> JobMessage {
    let pair = PairId { source: HostId(r.u16(..)), sink: HostId(r.u16(..)) };
    JobMessage { pair, lease: Lease(r.u64(..)), body: body(index, r) }
}

fn encode(message: &JobMessage) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_job(message, &mut bytes);
    bytes
}

/// Goal: what is encoded is decoded unchanged, every kind has a number of its own, and none is longer than a
/// control frame.
/// Method: 300 seeded messages of each kind.
#[test]
fn messages_of_a_job_survive_the_round_trip() {
    let mut kinds = std::collections::BTreeSet::new();
    for index in 0..BODIES {
        let r = &mut Rng::with_seed(index as u64);
        for _ in 0..300 {
            let message = message(index, r);
            let bytes = encode(&message);
            assert!(bytes.len() <= CONTROL_LEN_MAX);
            kinds.insert(message.body.kind());
            assert_eq!(decode_job(message.body.kind(), &bytes), Ok(message));
        }
    }
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), (0x30..=0x3f).collect::<Vec<u8>>());
}

/// Goal: what is cut, too long or damaged is refused or decodes to what encodes to the same bytes; nothing
/// panics.
/// Method: every prefix, one byte too many, and each byte changed, of small messages of each kind.
#[test]
fn damaged_messages_of_a_job_are_refused() {
    for index in 0..BODIES {
        let r = &mut Rng::with_seed(100 + index as u64);
        let message = loop {
            let message = message(index, r);
            if encode(&message).len() < 4000 {
                break message;
            }
        };
        let kind = message.body.kind();
        let bytes = encode(&message);
        for len in 0..bytes.len() {
            assert!(decode_job(kind, &bytes[..len]).is_err(), "{message:?} cut at {len}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(decode_job(kind, &longer).is_err());
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << (at % 8);
            if let Ok(other) = decode_job(kind, &changed) {
                assert_eq!(encode(&other), changed, "{message:?} changed at {at}");
            }
        }
    }
    assert!(matches!(decode_job(0x2f, &[0; 12]), Err(WireError::UnknownKind(0x2f))));
}

/// Goal: numbers that cannot be are refused by name.
#[test]
fn impossible_numbers_of_a_job_are_refused() {
    let r = &mut Rng::with_seed(7);
    let head =
        |body| JobMessage { pair: PairId { source: HostId(1), sink: HostId(2) }, lease: Lease(3), body };
    let refused = |message: &JobMessage| {
        let result = decode_job(message.body.kind(), &encode(message));
        assert!(matches!(result, Err(WireError::BadValue { .. })), "{result:?}");
    };
    let far = Work { offset: FILE_LEN_MAX, len: 1, ..work(r) };
    refused(&head(JobBody::Assign(vec![far])));
    refused(&head(JobBody::Assign(vec![Work { offset: FILE_LEN_MAX + 1, len: 0, ..work(r) }])));
    let (id, generation) = (FileId(1), Generation(0));
    refused(&head(JobBody::GiveBack(vec![Return { id, generation, offset: 9, from: 8 }])));
    refused(&head(JobBody::GaveBack { id, generation, offset: 9, from: Some(8) }));
    let empty = Subtree { offset: 0, len: 0, cv: [0; 32] };
    refused(&head(JobBody::Persisted { id, generation, offset: 0, subtrees: vec![empty], over: false }));
    let meta = Meta { mode: 0o10000, ..Meta::default() };
    refused(&head(JobBody::FinishDir { dir: DirId(1), meta }));
    // Counts beyond the limit, with all the bytes that they ask for.
    let mut many = encode(&head(JobBody::Discard { id, temps: Vec::new() }));
    let count = many.len() - 2;
    many[count..].copy_from_slice(&((TEMPS_MAX as u16) + 1).to_le_bytes());
    many.extend(vec![0; (TEMPS_MAX + 1) * 12]);
    assert!(matches!(decode_job(job_kind::DISCARD, &many), Err(WireError::TooLong { .. })));
}

/// Goal: the bytes do not change unseen.
/// Method: one sample of each kind against `golden_job.txt`. Where they change on purpose, the version of the
/// wire does too.
#[test]
fn bytes_of_a_job_are_golden() {
    let (id, generation) = (FileId(0x0102), Generation(3));
    let (a, b) = (Temp { tag: 0x11, number: 0x22 }, Temp { tag: 0x33, number: 0x44 });
    let work = Work {
        id,
        generation,
        kind: WorkKind::Range,
        offset: 1 << 20,
        len: 2 << 20,
        temp: a,
        from: a,
        former: vec![b],
    };
    let failure = || Failure { kind: FailureKind::Write, errno: 28, text: "full".into() };
    let mtime = Timestamp { secs: 100, nanos: 7 };
    let samples = [
        JobBody::Lease { time: 8000 },
        JobBody::LeaseEnded,
        JobBody::Assign(vec![work]),
        JobBody::GiveBack(vec![Return { id, generation, offset: 1 << 20, from: 2 << 20 }]),
        JobBody::GaveBack { id, generation, offset: 1 << 20, from: Some(2 << 20) },
        JobBody::Revoke { id, generation },
        JobBody::Begun { id, generation, found: true },
        JobBody::Persisted {
            id,
            generation,
            offset: 1 << 20,
            subtrees: vec![Subtree { offset: 1 << 20, len: 1 << 20, cv: [0xc1; 32] }],
            over: false,
        },
        JobBody::Read { id, generation, offset: 1 << 20, value: Some([0xc2; 32]) },
        JobBody::Seal { id, generation, root: None },
        JobBody::Publish(Publication {
            id,
            generation,
            temp: a,
            root: [0xc3; 32],
            way: Way::Copy { to: b },
            former: vec![a],
        }),
        JobBody::Published { id, generation, root: Some([0xc3; 32]) },
        JobBody::NotPublished { id, generation, why: Why::Failed(failure()) },
        JobBody::Discard { id, temps: vec![a, b] },
        JobBody::FinishDir { dir: DirId(5), meta: Meta { mode: 0o750, uid: 1, gid: 2, mtime } },
        JobBody::FinishedDir { dir: DirId(5), failure: Some(failure()) },
    ];
    let lines = samples.map(|body| {
        let pair = PairId { source: HostId(1), sink: HostId(2) };
        let message = JobMessage { pair, lease: Lease::new(SessionEpoch(3), 4), body };
        let hex: String = encode(&message).iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{:02x} {hex}", message.body.kind())
    });
    let table = lines.join("\n") + "\n";
    assert!(
        table == include_str!("../golden_job.txt"),
        "the messages of a job changed; they are now:\n{table}"
    );
}
