use super::*;
use crate::digest::CHUNK_LEN;
use crate::entry::VERSION_LEN_MAX;

const BOOT: [u8; 16] = [0xb0; 16];
const OTHER_BOOT: [u8; 16] = [0x0b; 16];

fn path(i: u8) -> PathKey {
    PathKey([i; 16])
}

fn fingerprint(rng: &mut fastrand::Rng, chunks: u64) -> Fingerprint {
    let mut time = || Timestamp { secs: rng.i64(..), nanos: rng.u32(..1_000_000_000) };
    let mtime = time();
    Fingerprint { size: chunks * CHUNK_LEN, mtime, version: version(rng) }
}

fn version(rng: &mut fastrand::Rng) -> Version {
    let bytes: Vec<u8> = (0..rng.usize(..=VERSION_LEN_MAX)).map(|_| rng.u8(..)).collect();
    Version::new(&bytes).expect("not too long")
}

fn leaf(i: u64, cv: u8) -> Subtree {
    Subtree { offset: i * CHUNK_LEN, len: CHUNK_LEN, cv: [cv; 32] }
}

/// Files 0 to 7 are in directories 100 and 101, these in 102, that one in 103, and so on in a circle that no
/// tree has.
fn parent_of(PathKey([i, ..]): PathKey) -> PathKey {
    PathKey([if i < 100 { 100 + i / 4 } else { 100 + [2, 2, 3, 0][usize::from(i - 100)] }; 16])
}

const LEASE: Holder = Holder { host: 3, epoch: 7 };

/// The bytes of a journal and where each record ends (the first end is that of the magic).
fn encode(records: &[Record]) -> (Vec<u8>, Vec<usize>) {
    let mut bytes = Vec::new();
    let mut log = Log::start(&mut bytes);
    let mut ends = vec![bytes.len()];
    for record in records {
        log.append(record, &mut bytes);
        ends.push(bytes.len());
    }
    (bytes, ends)
}

fn replay_for(bytes: &[u8], boot: [u8; 16], durable: bool) -> Result<Replayed, JournalError> {
    let mut replay = Replay::new();
    replay.feed(bytes)?;
    replay.finish(boot, durable)
}

fn replay(bytes: &[u8]) -> Replayed {
    replay_for(bytes, BOOT, false).expect("a journal")
}

fn head() -> Record {
    Record::Head { job: [3; 16], root: RootId::new(&[77; 8]).expect("short") }
}

/// Head, and a session of a kind.
fn opening(durable: bool, boot: [u8; 16]) -> Vec<Record> {
    vec![head(), Record::Session { epoch: 5, tag: 50, boot, durable, lease: LEASE }]
}

/// Records as a sink may write them, and some as it never would: few paths and slots, so that they meet.
fn random_records(rng: &mut fastrand::Rng, count: usize) -> Vec<Record> {
    let mut records = opening(rng.bool(), BOOT);
    for _ in 0..count {
        let (slot, path) = (rng.u32(..6), path(rng.u8(..8)));
        let chunks = rng.u64(..9);
        let record = match rng.u8(..29) {
            0 => {
                let boot = if rng.bool() { BOOT } else { OTHER_BOOT };
                Record::Session {
                    epoch: rng.u32(..),
                    tag: rng.u32(..8),
                    boot,
                    durable: rng.bool(),
                    lease: LEASE,
                }
            }
            1 => {
                let tags = (0..rng.usize(1..5)).map(|_| rng.u32(..20)).collect();
                if rng.bool() { Record::Tags { tags } } else { Record::Unproven { tags } }
            }
            2..6 => {
                let (fingerprint, object_size) = (fingerprint(rng, chunks), rng.u32(..));
                let map = rng.bool().then(|| [rng.u8(..); 32]);
                let digest = if rng.bool() { DigestKind::Blake3 } else { DigestKind::Xxh3 };
                let (tag, number) = (rng.u32(..), rng.u64(..));
                Record::Partial { slot, path, fingerprint, object_size, tag, number, map, digest }
            }
            6..16 => {
                let subtrees = (0..rng.usize(1..4)).map(|_| leaf(rng.u64(..9), 1)).collect();
                let by = if rng.u8(..8) == 0 { Holder::ALONE } else { LEASE };
                Record::Durable { slot, by, subtrees }
            }
            16 | 17 => Record::Withdrawn { slot },
            20 | 21 => {
                let dir = Widened {
                    path: vec![b'd'; rng.usize(1..9)].into(),
                    ino: rng.u64(..),
                    mode: rng.u32(..0o10000),
                };
                Record::Widened { slot, dir }
            }
            22 => Record::Narrowed { slot },
            18 => Record::Done {
                path,
                mark: DoneMark::new(parent_of(path), &fingerprint(rng, chunks), [rng.u8(..); 32]),
            },
            23..26 => {
                let Fingerprint { mtime, version, .. } = fingerprint(rng, 0);
                // Directories are of their own, but for some that no sink would write.
                let path = if rng.u8(..9) == 0 { path } else { PathKey([100 + rng.u8(..4); 16]) };
                Record::Finished { path, mark: DirMark { parent: parent_of(path), mtime, version } }
            }
            26 => Record::Reopened { path: PathKey([100 + rng.u8(..4); 16]) },
            _ => Record::Done {
                path,
                mark: DoneMark::new(parent_of(path), &fingerprint(rng, chunks), [rng.u8(..); 32]),
            },
        };
        records.push(record);
    }
    records
}

/// What [`model`] knows of a path.
#[derive(Clone)]
enum Fact {
    Partial(Partial, u32),
    Done(DoneMark),
    Finished(DirMark),
}

fn reopen(facts: &mut Vec<(PathKey, usize, Fact)>, dir: PathKey) {
    facts.retain(|(path, _, fact)| !(*path == dir && matches!(fact, Fact::Finished(_))));
}

/// Partials, done marks and finished directories by the definition: per path the last declaration, with the
/// session that made it; the session is judged at the end.
fn model(
    records: &[Record],
    boot: [u8; 16],
    durable: bool,
) -> (HashMap<PathKey, Partial>, HashMap<PathKey, DoneMark>, HashMap<PathKey, DirMark>) {
    let mut sessions: Vec<([u8; 16], bool)> = Vec::new();
    let mut facts: Vec<(PathKey, usize, Fact)> = Vec::new();
    for record in records {
        let now = sessions.len();
        // The last one that took the slot in this session, if it still stands.
        let by_slot = |facts: &Vec<(PathKey, usize, Fact)>, wanted: u32| {
            facts.iter().rposition(|(_, session, fact)| {
                *session == now && matches!(fact, Fact::Partial(_, slot) if *slot == wanted)
            })
        };
        match record.clone() {
            Record::Head { .. }
            | Record::Tags { .. }
            | Record::Unproven { .. }
            | Record::Widened { .. }
            | Record::Narrowed { .. } => {}
            Record::Session { boot, durable, .. } => sessions.push((boot, durable)),
            Record::Partial { slot, path, fingerprint, object_size, tag, number, map, digest } => {
                facts.retain(|(other, ..)| *other != path);
                for (_, session, fact) in &mut facts {
                    if let Fact::Partial(_, other) = fact
                        && *session == now
                        && *other == slot
                    {
                        *other = u32::MAX;
                    }
                }
                let subtrees = SubtreeSet::capped(digest, fingerprint.size, SUBTREE_KEPT_MAX);
                facts.push((
                    path,
                    now,
                    Fact::Partial(Partial { fingerprint, object_size, tag, number, map, subtrees }, slot),
                ));
            }
            Record::Durable { slot, by, subtrees } => {
                if by == LEASE
                    && let Some(i) = by_slot(&facts, slot)
                    && let Fact::Partial(partial, _) = &mut facts[i].2
                {
                    for s in subtrees {
                        let _ = partial.subtrees.insert(s.offset, s.len, s.cv);
                    }
                }
            }
            Record::Withdrawn { slot } => {
                if let Some(i) = by_slot(&facts, slot) {
                    facts.remove(i);
                }
            }
            Record::Done { path, mark } => {
                facts.retain(|(other, ..)| *other != path);
                reopen(&mut facts, mark.parent);
                facts.push((path, now, Fact::Done(mark)));
            }
            Record::Finished { path, mark } => {
                facts.retain(|(other, ..)| *other != path);
                reopen(&mut facts, mark.parent);
                facts.retain(|(_, _, fact)| match fact {
                    Fact::Partial(..) => true,
                    Fact::Done(mark) => mark.parent != path,
                    Fact::Finished(mark) => mark.parent != path,
                });
                facts.push((path, now, Fact::Finished(mark)));
            }
            Record::Reopened { path } => reopen(&mut facts, path),
        }
    }
    let (mut partials, mut done, mut finished) = (HashMap::new(), HashMap::new(), HashMap::new());
    for (path, session, fact) in facts {
        let (made_on, made_durable) = sessions[session - 1];
        // Another boot without durability in between means a reboot.
        let rebooted = sessions[session..].iter().any(|(b, d)| !d && *b != made_on);
        if !made_durable && (durable || made_on != boot || rebooted) {
            continue;
        }
        match fact {
            Fact::Partial(partial, _) => drop(partials.insert(path, partial)),
            Fact::Done(mark) => drop(done.insert(path, mark)),
            Fact::Finished(mark) => drop(finished.insert(path, mark)),
        }
    }
    (partials, done, finished)
}

/// The highest epoch, and every tag (and every unproven one) at the place of its last mention.
fn model_sessions(records: &[Record]) -> (u32, Vec<u32>, Vec<u32>) {
    let (mut epochs, mut mentions, mut unproven) = (vec![0], Vec::new(), Vec::new());
    for record in records {
        match record {
            Record::Session { epoch, tag, .. } => {
                epochs.push(*epoch);
                mentions.push(*tag);
            }
            Record::Tags { tags } => mentions.extend(tags),
            Record::Unproven { tags } => unproven.extend(tags),
            _ => {}
        }
    }
    let last = |all: Vec<u32>| {
        let last = |(i, tag): (usize, &u32)| (!all[i + 1..].contains(tag)).then_some(*tag);
        all.iter().enumerate().filter_map(last).collect()
    };
    (epochs.into_iter().max().unwrap_or(0), last(mentions), last(unproven))
}

/// Directories that were opened and not settled, whatever became of their session.
fn model_widened(records: &[Record]) -> Vec<Widened> {
    let mut open: Vec<(Option<u32>, Widened)> = Vec::new();
    for record in records {
        let void = |open: &mut Vec<(Option<u32>, Widened)>, gone: &dyn Fn(u32) -> bool| {
            open.iter_mut().filter(|(slot, _)| slot.is_some_and(gone)).for_each(|(slot, _)| *slot = None);
        };
        match record {
            Record::Session { .. } => void(&mut open, &|_| true),
            Record::Widened { slot, dir } => {
                void(&mut open, &|other| other == *slot);
                open.push((Some(*slot), dir.clone()));
            }
            Record::Narrowed { slot } => open.retain(|(other, _)| *other != Some(*slot)),
            _ => {}
        }
    }
    open.into_iter().map(|(_, dir)| dir).collect()
}

/// Goal: what was appended is what is replayed.
/// Method: random records, among them slots that are taken twice, withdrawn or unknown, against [`model`].
#[test]
fn replay_is_what_was_appended() {
    let mut rng = fastrand::Rng::with_seed(1);
    for _ in 0..1000 {
        let records = random_records(&mut rng, 60);
        let (bytes, _) = encode(&records);
        for (boot, durable) in [(BOOT, false), (BOOT, true), (OTHER_BOOT, false), ([0; 16], false)] {
            let replayed = replay_for(&bytes, boot, durable).expect("a journal");
            assert!(!replayed.damaged);
            assert_eq!(replayed.good_len, bytes.len() as u64);
            assert_eq!(replayed.head, Some(([3; 16], RootId::new(&[77; 8]).expect("short"))));
            let (partials, done, finished) = model(&records, boot, durable);
            assert_eq!(replayed.partials, partials);
            assert_eq!(replayed.done, done);
            assert_eq!(replayed.finished, finished);
            assert!(!(durable && replayed.volatile));
            assert_eq!((replayed.epoch_max, replayed.tags, replayed.unproven), model_sessions(&records));
            assert_eq!(replayed.widened, model_widened(&records));
        }
    }
}

/// Goal: every field of every kind of record survives.
/// Method: one of each through encode and decode; and the layout, spelled out once.
#[test]
fn records_round_trip() {
    let mut rng = fastrand::Rng::with_seed(2);
    for _ in 0..200 {
        for record in random_records(&mut rng, 30) {
            let mut body = Vec::new();
            codec::encode(&record, &mut body);
            assert_eq!(codec::decode(&body), Some(record));
            for cut in 0..body.len() {
                let shorter = codec::decode(&body[..cut]);
                assert!(shorter.is_none_or(|r| matches!(
                    r,
                    Record::Durable { .. }
                        | Record::Tags { .. }
                        | Record::Unproven { .. }
                        | Record::Widened { .. }
                )));
            }
            // A path ends where its record does.
            let path = matches!(codec::decode(&body), Some(Record::Widened { .. }));
            body.push(0);
            assert!(path || codec::decode(&body).is_none());
        }
    }
    let (bytes, _) = encode(&opening(true, BOOT)[..1]);
    let mut expected = b"haul-journal\0\0\x05\0".to_vec();
    expected.extend([26, 0, 0, 0, 1]);
    expected.extend([3; 16]);
    expected.push(8);
    expected.extend([77; 8]);
    let mut hashed = expected[..16].to_vec();
    hashed.extend(&expected[20..46]);
    expected.extend(&blake3::hash(&hashed).as_bytes()[..16]);
    assert_eq!(bytes, expected);
}

/// Goal: how the file is cut into pieces changes nothing.
/// Method: pieces of every size up to past the whole, and of random sizes.
#[test]
fn pieces_of_any_size_replay_the_same() {
    let mut rng = fastrand::Rng::with_seed(3);
    let (mut bytes, _) = encode(&random_records(&mut rng, 40));
    for garbage in [0, 7] {
        bytes.extend(vec![0xee; garbage]);
        let whole = replay(&bytes);
        for piece_len in (1..200).chain([bytes.len() - 1, bytes.len(), bytes.len() + 1]) {
            let mut replay = Replay::new();
            bytes.chunks(piece_len).for_each(|piece| replay.feed(piece).expect("a journal"));
            assert_eq!(replay.finish(BOOT, false), Ok(whole.clone()));
        }
        for _ in 0..100 {
            let mut replay = Replay::new();
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let (piece, behind) = rest.split_at(rng.usize(..=rest.len().min(90)));
                replay.feed(piece).expect("a journal");
                rest = behind;
            }
            assert_eq!(replay.finish(BOOT, false), Ok(whole.clone()));
        }
    }
}

/// Goal: after any damage to one byte, what is replayed is exactly what a whole prefix of the records says,
/// and the prefix is the longest that the damage spares.
/// Method: every byte of a journal flipped (each bit), zeroed, and cut off with all behind it.
#[test]
fn damage_leaves_a_prefix() {
    let mut rng = fastrand::Rng::with_seed(4);
    let mut records = random_records(&mut rng, 25);
    records.push(Record::Done {
        path: path(1),
        mark: DoneMark::new(path(90), &Fingerprint::default(), [4; 32]),
    });
    let (bytes, ends) = encode(&records);
    let prefixes: Vec<Replayed> = ends.iter().map(|end| replay(&bytes[..*end])).collect();
    assert!(prefixes.windows(2).any(|p| p[0].partials != p[1].partials));

    for at in 0..bytes.len() {
        // Records that end at or before `at`; the magic's end is the first.
        let whole = ends.iter().filter(|end| **end <= at).count();
        let mut broken: Vec<Vec<u8>> = (0..8).map(|bit| flipped(&bytes, at, 1 << bit)).collect();
        broken.push(flipped(&bytes, at, bytes[at]));
        for broken in broken.iter().filter(|b| **b != bytes) {
            match replay_for(broken, BOOT, false) {
                Err(error) => {
                    assert_eq!(whole, 0, "{error}");
                    assert_eq!(matches!(error, JournalError::Version(_)), at >= MAGIC_LEN - 2);
                }
                Ok(replayed) => {
                    assert_eq!(replayed, Replayed { damaged: true, ..prefixes[whole - 1].clone() });
                }
            }
        }

        let cut = replay(&bytes[..at]);
        if whole == 0 {
            assert_eq!(cut, Replayed { damaged: at > 0, ..Replayed::default() });
        } else {
            let damaged = ends[whole - 1] != at;
            assert_eq!(cut, Replayed { damaged, ..prefixes[whole - 1].clone() });
        }
        // A tail that the file system kept the length of, not the content.
        let mut zeroed = bytes[..at].to_vec();
        zeroed.resize(bytes.len() + 100, 0);
        if whole > 0 {
            let replayed = replay(&zeroed);
            assert!(replayed.damaged);
            // The first byte that is really lost may lie behind the cut.
            let first = (at..bytes.len()).find(|i| bytes[*i] != 0).unwrap_or(bytes.len());
            let spared = ends.iter().filter(|end| **end <= first).count();
            assert_eq!(replayed, Replayed { damaged: true, ..prefixes[spared - 1].clone() });
        }
    }
}

fn flipped(bytes: &[u8], at: usize, bits: u8) -> Vec<u8> {
    let mut copy = bytes.to_vec();
    copy[at] ^= bits;
    copy
}

/// Goal: whole records in another order, left out, doubled or from another journal are not believed.
#[test]
fn records_out_of_their_chain_end_the_replay() {
    let mut rng = fastrand::Rng::with_seed(5);
    let (bytes, ends) = encode(&random_records(&mut rng, 12));
    let (foreign, foreign_ends) = encode(&random_records(&mut rng, 12));
    let record = |i: usize| &bytes[ends[i]..ends[i + 1]];
    for i in 0..ends.len() - 2 {
        let prefix = replay(&bytes[..ends[i]]);
        let expected = Replayed { damaged: true, ..prefix };
        let start = &bytes[..ends[i]];
        let rest = &bytes[ends[i + 2]..];
        let swapped = [start, record(i + 1), record(i), rest].concat();
        assert_eq!(replay(&swapped), expected);
        let left_out = [start, record(i + 1), rest].concat();
        assert_eq!(replay(&left_out), expected);
        let foreign = &foreign[foreign_ends[i + 1]..foreign_ends[i + 2]];
        assert_eq!(replay(&[start, foreign, rest].concat()), expected);

        let doubled = [&bytes[..ends[i + 1]], record(i), record(i + 1), rest].concat();
        assert_eq!(replay(&doubled), Replayed { damaged: true, ..replay(&bytes[..ends[i + 1]]) });
    }
}

/// Goal: a record with a good checksum where it does not belong ends the replay too.
#[test]
fn records_in_the_wrong_place_end_the_replay() {
    let [head, session] = opening(true, BOOT).try_into().expect("two records");
    let done =
        Record::Done { path: path(1), mark: DoneMark::new(path(90), &Fingerprint::default(), [0; 32]) };
    for (records, good) in [
        (vec![session.clone(), head.clone()], 0),
        (vec![done.clone()], 0),
        (vec![head.clone(), done.clone(), session.clone()], 1),
        (vec![head.clone(), Record::Withdrawn { slot: 0 }], 1),
        (vec![head.clone(), session.clone(), head.clone(), done.clone()], 2),
    ] {
        let (bytes, ends) = encode(&records);
        let replayed = replay(&bytes);
        assert!(replayed.damaged && replayed.done.is_empty());
        assert_eq!(replayed.good_len, ends[good] as u64);
    }
}

/// Goal: arbitrary bytes never panic, and a length in the file never asks for memory.
/// Method: random bytes behind nothing, the magic, and a good journal; the largest length that can be told.
#[test]
fn arbitrary_bytes_are_survived() {
    let mut rng = fastrand::Rng::with_seed(6);
    let (good, _) = encode(&random_records(&mut rng, 20));
    for _ in 0..3000 {
        let start = [&good[..0], &good[..MAGIC_LEN], &good[..]][rng.usize(..3)];
        let mut bytes = start.to_vec();
        bytes.extend((0..rng.usize(..300)).map(|_| rng.u8(..)));
        if let Ok(replayed) = replay_for(&bytes, BOOT, false) {
            assert!(replayed.good_len <= start.len() as u64);
        }
    }
    // Bodies with a good checksum and any content.
    for _ in 0..20_000 {
        let mut body = vec![rng.u8(..13)];
        body.extend((0..rng.usize(..120)).map(|_| rng.u8(..)));
        if let Some(record) = codec::decode(&body) {
            let mut again = Vec::new();
            codec::encode(&record, &mut again);
            assert_eq!(again, body);
        }
    }
    for len in [RECORD_LEN_MAX as u32 + 1, u32::MAX, u32::MAX - 19] {
        let mut replay = Replay::new();
        replay.feed(&good).expect("a journal");
        // The refusal comes at once, so that nothing behind it is gathered.
        replay.feed(&len.to_le_bytes()).expect("a journal");
        let before = format!("{replay:?}");
        assert!(before.contains("state: Over"));
        replay.feed(&vec![1; 1 << 20]).expect("a journal");
        assert_eq!(format!("{replay:?}"), before);
    }
}

/// Goal: files that are no journal of this format are told apart from broken ones.
#[test]
fn other_files_are_refused() {
    let (bytes, _) = encode(&opening(true, BOOT));
    for version in [0, 1, FORMAT_VERSION + 1, 0x0100, u16::MAX] {
        let mut other = bytes.clone();
        other[14..16].copy_from_slice(&version.to_le_bytes());
        assert_eq!(replay_for(&other, BOOT, true), Err(JournalError::Version(version)));
    }
    for other in [&b"#!/bin/sh\n"[..], b"haul-journal and more", &[0xff; 100], b"x"] {
        assert_eq!(replay_for(other, BOOT, true), Err(JournalError::NotAJournal));
    }
    let mut replay = Replay::new();
    assert_eq!(replay.feed(&[1; 20]), Err(JournalError::NotAJournal));
    assert_eq!(replay.feed(&bytes), Err(JournalError::NotAJournal));
    assert_eq!(replay.finish(BOOT, true), Err(JournalError::NotAJournal));

    assert_eq!(replay_for(&[], BOOT, true), Ok(Replayed::default()));
    for torn in [&MAGIC[..5], &[0; 3], &[0; 16], &[0; 4096]] {
        assert_eq!(replay_for(torn, BOOT, true), Ok(Replayed { damaged: true, ..Replayed::default() }));
    }
}

/// Goal: a long list goes through as several records, none longer than allowed.
#[test]
fn long_lists_are_split() {
    let total = 8 * SUBTREES_PER_RECORD as u64;
    let mut records = opening(true, BOOT);
    let fingerprint = Fingerprint { size: total * CHUNK_LEN, ..Fingerprint::default() };
    records.push(Record::Partial {
        slot: 0,
        path: path(0),
        fingerprint,
        object_size: 1 << 16,
        tag: 1,
        number: 1,
        map: None,
        digest: DigestKind::Blake3,
    });
    // Every other chunk: nothing merges.
    let subtrees: Vec<_> = (0..total / 2).map(|i| leaf(2 * i, 1)).collect();
    let count = subtrees.len();
    records.push(Record::Durable { slot: 0, by: LEASE, subtrees });
    records.push(Record::Durable { slot: 0, by: LEASE, subtrees: Vec::new() });
    records.push(Record::Tags { tags: (100..100 + TAGS_MAX as u32 + 10).collect() });
    let (bytes, _) = encode(&records);
    let replayed = replay(&bytes);
    assert!(!replayed.damaged);
    assert_eq!(replayed.partials[&path(0)].subtrees.len(), count);
    // The oldest tags went, the newest are last.
    assert_eq!(replayed.tags, (110..110 + TAGS_MAX as u32).collect::<Vec<_>>());
}

/// Goal: the compacted journal says what the old one said, also in yet another run, and can be continued.
/// Method: random journals, compacted twice with sessions of both kinds, then a record in an adopted slot.
#[test]
fn compaction_keeps_the_state() {
    let mut rng = fastrand::Rng::with_seed(7);
    for round in 0..500 {
        let durable = round % 2 == 0;
        let (bytes, _) = encode(&random_records(&mut rng, 80));
        let mut state = replay_for(&bytes, BOOT, durable).expect("a journal");
        for run in 1..3 {
            let (epoch, tag) = (state.epoch_max.saturating_add(1), 1000 + run);
            let head = head();
            let session = Record::Session { epoch, tag, boot: BOOT, durable, lease: LEASE };
            let (mut bytes, mut log, slots, next_slot) = compact(&state, head.clone(), session.clone());
            assert_eq!(slots.len(), state.partials.len());
            assert!(slots.values().all(|slot| *slot < next_slot));
            assert_eq!(next_slot as usize, slots.len() + state.widened.len());

            let next = replay_for(&bytes, BOOT, durable).expect("a journal");
            let mut tags = state.tags.clone();
            tags.push(tag);
            let expected = Replayed {
                epoch_max: epoch,
                tags,
                good_len: bytes.len() as u64,
                dropped: 0,
                damaged: false,
                volatile: !(durable
                    || state.partials.is_empty() && state.done.is_empty() && state.finished.is_empty()),
                ..state.clone()
            };
            assert_eq!(next, expected);
            // Equal maps with other hash keys give the same bytes.
            let rehashed = Replayed {
                partials: state.partials.clone().into_iter().collect(),
                done: state.done.clone().into_iter().collect(),
                finished: state.finished.clone().into_iter().collect(),
                ..state.clone()
            };
            assert_eq!(compact(&rehashed, head, session).0, bytes);

            for (path, slot) in &slots {
                log.append(&Record::Withdrawn { slot: *slot }, &mut bytes);
                let left = replay_for(&bytes, BOOT, durable).expect("a journal");
                assert!(!left.damaged && !left.partials.contains_key(path));
            }
            state = next;
        }
    }
    // A job without a journal begins the same way.
    let [head, session] = opening(true, BOOT).try_into().expect("two records");
    let (bytes, ..) = compact(&Replayed::default(), head, session);
    assert_eq!(replay_for(&bytes, BOOT, true).map(|r| (r.tags, r.damaged)), Ok((vec![50], false)));
}

/// Goal: what was made without durability counts on its boot only, never for a session that promises
/// durability, and undoes what it replaced in any case; tags and epochs stay.
#[test]
fn without_durability_only_this_boot_counts() {
    let mut records = opening(true, OTHER_BOOT);
    let mark = DoneMark::new(path(90), &Fingerprint::default(), [1; 32]);
    records.push(Record::Done { path: path(1), mark });
    records.push(Record::Done { path: path(2), mark });
    records.push(Record::Session { epoch: 6, tag: 60, boot: BOOT, durable: false, lease: LEASE });
    let newer = DoneMark { root: [2; 32], ..mark };
    records.push(Record::Done { path: path(2), mark: newer });
    records.push(Record::Done { path: path(3), mark: newer });
    let fingerprint = Fingerprint { size: CHUNK_LEN, ..Fingerprint::default() };
    records.push(Record::Partial {
        slot: 0,
        path: path(4),
        fingerprint,
        object_size: 1 << 16,
        tag: 60,
        number: 1,
        map: Some([6; 32]),
        digest: DigestKind::Xxh3,
    });
    let (bytes, _) = encode(&records);

    let here = replay_for(&bytes, BOOT, false).expect("a journal");
    assert!(here.volatile && here.partials.contains_key(&path(4)));
    assert_eq!(here.done, HashMap::from([(path(1), mark), (path(2), newer), (path(3), newer)]));
    for (boot, durable) in [(BOOT, true), (OTHER_BOOT, false), (OTHER_BOOT, true)] {
        let there = replay_for(&bytes, boot, durable).expect("a journal");
        assert!(!there.volatile && there.partials.is_empty());
        assert_eq!(there.done, HashMap::from([(path(1), mark)]));
        assert_eq!((there.tags, there.epoch_max), (vec![50, 60], 6));
    }
}

/// Goal: facts made without durability never become durable by compaction.
#[test]
#[should_panic(expected = "facts without durability")]
fn compaction_refuses_to_launder() {
    let mut records = opening(false, BOOT);
    records.push(Record::Done {
        path: path(1),
        mark: DoneMark::new(path(90), &Fingerprint::default(), [0; 32]),
    });
    let replayed = replay(&encode(&records).0);
    let [head, session] = opening(true, BOOT).try_into().expect("two records");
    compact(&replayed, head, session);
}
