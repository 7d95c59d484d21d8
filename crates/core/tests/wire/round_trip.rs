//! What is encoded is decoded unchanged; long lists are cut and long texts too.

use fastrand::Rng;
use haul_core::digest::Subtree;
use haul_core::entry::{EntryKind, Extras, LINK_LEN_MAX, NAME_LEN_MAX, Name};
use haul_core::ids::{DirId, FileId, Generation, Holder, SessionEpoch, SinkTarget, StreamId};
use haul_core::wire::*;

use crate::samples::{
    MESSAGES, announced, bytes, data_entry, data_header, decode_data, done, encode, encode_data, header_of,
    index_of, message, number, state, target_health,
};

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
        let (a, s, d) = (announced(r), state(r), done(r));
        assert_eq!(announced_len(&a) + 2, encode(&Message::Announce(vec![a])).1.len());
        assert_eq!(state_len(&s) + 2, encode(&Message::FileStates(vec![s])).1.len());
        assert_eq!(done_len(&d) + 2, encode(&Message::Done(vec![d])).1.len());
    }
}

/// Goal: data headers survive the round trip, decoded in the steps of a reader.
/// Method: seeded random objects and bundles, and the largest of both.
#[test]
fn data_headers_survive_the_round_trip() {
    let r = &mut Rng::with_seed(2);
    let mut samples: Vec<DataHeader> = (0..3000).map(|_| data_header(r)).collect();
    samples.push(DataHeader {
        sink_target: SinkTarget::ANY,
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
            extras: Extras::default(),
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
    let parts = Message::FileStates(states).split();
    assert_eq!(parts.iter().map(|p| encode(p).1.len().min(1)).sum::<usize>(), parts.len());
    assert!(parts.len() > 1);

    let failure = Failure { kind: FailureKind::Write, errno: 28, text: "x".repeat(5000).into() };
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
    let policy = SinkOptions::PLAIN;
    for count in [0, 1, ROOTS_PART_MAX, ROOTS_PART_MAX + 1, 2 * ROOTS_PART_MAX, ROOTS_MAX] {
        let root = |i: usize| {
            let name: Vec<u8> = format!("{i:0255}").into_bytes();
            SourceRoot::Named { name: Name::new(&name).expect("legal"), is_dir: i.is_multiple_of(2) }
        };
        let roots: Vec<SourceRoot> = (0..count).map(root).collect();
        let mut parts = Message::Sources { roots: roots.clone(), policy }.split();
        assert_eq!(parts.len(), count.div_ceil(ROOTS_PART_MAX).max(1));
        assert!(parts.iter().all(|p| encode(p).1.len() <= CONTROL_LEN_MAX));
        let Some(Message::Sources { roots: last, policy: said }) = parts.pop() else {
            panic!("it comes last")
        };
        let ahead = parts.into_iter().flat_map(|part| match part {
            Message::SourceRoots(part) if !part.is_empty() => part,
            other => panic!("{other:?}"),
        });
        assert!(ahead.chain(last).eq(roots) && said == policy);
    }
    assert_eq!(Message::DirEnd(vec![]).split(), vec![Message::DirEnd(vec![])]);
    assert_eq!(Message::Ping(1).split(), vec![Message::Ping(1)]);
}

/// Goal: a long path of a trouble is cut like a text, and never fails the frame.
#[test]
fn long_paths_are_cut() {
    let failure = Failure { kind: FailureKind::Walk, errno: 13, text: "denied".into() };
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
    assert!(panics(move || drop(encode(&durable(vec![extent; ITEMS_MAX + 1])))));
    assert!(!panics(move || drop(encode(&durable(vec![extent; ITEMS_MAX])))));
    let names =
        vec![SourceRoot::Named { name: Name::new(&[b'n'; 255]).expect("legal"), is_dir: false }; ITEMS_MAX];
    let policy = SinkOptions::PLAIN;
    assert!(panics(move || drop(encode(&Message::Sources { roots: names, policy }))), "over 1 MiB");
    assert!(panics(move || drop(encode(&durable(vec![Extent { offset: u64::MAX, ..extent }])))));
    let mut entry = data_entry(&mut Rng::with_seed(9), true);
    entry.hole = true;
    assert!(panics(move || drop(encode_data(&DataHeader {
        sink_target: SinkTarget::ANY,
        entries: vec![entry]
    }))));
    assert!(panics(|| drop(encode_data(&DataHeader { sink_target: SinkTarget::ANY, entries: vec![] }))));
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

fn durable(extents: Vec<Extent>) -> Message {
    Message::Durable { by: Holder::ALONE, extents }
}
