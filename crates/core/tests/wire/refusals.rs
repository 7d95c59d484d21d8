//! What could do harm, or makes no sense, is refused by the decoders of messages.

use fastrand::Rng;
use haul_core::entry::{EntryKind, Extras, Fingerprint, Meta, Name, Version};
use haul_core::ids::{DirId, FileId, Generation, SessionEpoch, SinkTarget, StreamId};
use haul_core::layout::STRIPES_MAX;
use haul_core::schedule::table::{NAME_LEN_MAX as TARGET_NAME_MAX, ROWS_MAX, UNWELL_MAX};
use haul_core::stage::Processors;
use haul_core::wire::*;

use crate::samples::{announced, data_header, decode_data, encode, encode_data, hello, message};

/// Goal: a count over its named maximum is refused as such, before its items are looked at.
/// Method: for each list the maximum plus one, with a body that could hold that many.
#[test]
fn lists_over_their_maximum_are_refused() {
    // Kind, bytes before the count, maximum.
    let lists = [
        (kind::HELLO, 30, CAPABILITIES_MAX),
        (kind::SOURCES, 2, ITEMS_MAX),
        (kind::ANNOUNCE, 0, ANNOUNCE_ENTRIES_MAX),
        (kind::DIR_END, 0, ITEMS_MAX),
        (kind::STATE, 0, ITEMS_MAX),
        (kind::SEALED, 0, ITEMS_MAX),
        (kind::WRITTEN, 8, ITEMS_MAX),
        (kind::DURABLE, 6, ITEMS_MAX),
        (kind::DONE, 0, ITEMS_MAX),
        (kind::RESEND, 0, ITEMS_MAX),
        (kind::NOT_HELD, 0, ITEMS_MAX),
        (kind::TARGET_HEALTH, 0, ITEMS_MAX),
        (kind::HOLES, 13, ITEMS_MAX),
        (kind::FILE_LAYOUT, 0, ITEMS_MAX),
        (kind::FILE_TARGETS, 12, TARGET_COMPONENTS_MAX),
        (kind::FILE_TARGETS, 30, FILE_SINK_TARGETS_MAX),
        (kind::TARGET_TABLE, 8, ROWS_MAX),
        (kind::UNWELL_TARGETS, 0, UNWELL_MAX),
        (kind::CHOICES, 0, CHOICES_MAX),
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

/// Goal: what a sink says of targets has one form: sink targets below their maximum, 0 where it means
/// nothing, components that rise from the file's start, not more sink targets in all than the maximum.
/// Method: legal bodies, changed in one way each.
#[test]
fn senseless_targets_are_refused() {
    let file = |parts: &[(u64, u64, Vec<u16>)]| {
        let mut body = vec![0; 12];
        body.extend((parts.len() as u16).to_le_bytes());
        for (start, stripe, sink_targets) in parts {
            body.extend([start.to_le_bytes(), stripe.to_le_bytes()].concat());
            body.extend((sink_targets.len() as u16).to_le_bytes());
            sink_targets.iter().for_each(|sink_target| body.extend(sink_target.to_le_bytes()));
        }
        decode_message(kind::FILE_TARGETS, &body)
    };
    let last = SINK_TARGETS_MAX - 1;
    let parts = |count: u64| (0..count).map(|n| (n, 1, vec![1; FILE_SINK_TARGETS_MAX / 4]));
    assert!(file(&[(0, 1, vec![0, last]), (1, u64::MAX, vec![1])]).is_ok());
    assert!(file(&parts(4).collect::<Vec<_>>()).is_ok());
    for bad in [
        vec![],
        vec![(1, 1, vec![1])],
        vec![(0, 0, vec![1])],
        vec![(0, 1, vec![])],
        vec![(0, 1, vec![SINK_TARGETS_MAX])],
        vec![(0, 1, vec![1]), (0, 1, vec![1])],
        vec![(0, 1, vec![1]), (9, 1, vec![1]), (8, 1, vec![1])],
        parts(4).chain([(9, 1, vec![1])]).collect(),
        vec![(0, 1, vec![1; STRIPES_MAX + 1])],
    ] {
        assert!(file(&bad).is_err(), "{bad:?}");
    }
    let health = |sink_target: u16, state: u8| {
        let mut body = vec![0; 2 + 35];
        body[0] = 1;
        body[2..4].copy_from_slice(&sink_target.to_le_bytes());
        body[4] = state;
        decode_message(kind::TARGET_HEALTH, &body)
    };
    assert!(health(1, 3).is_ok() && health(last, 0).is_ok());
    for (sink_target, state) in [(0, 0), (SINK_TARGETS_MAX, 0), (u16::MAX, 0), (1, 4), (1, 255)] {
        assert!(health(sink_target, state).is_err(), "sink target {sink_target}, state {state}");
    }
    let grant = |sink_target: u16| {
        decode_message(kind::GRANT, &[&[0; 6][..], &sink_target.to_le_bytes(), &[0; 8]].concat())
    };
    assert!(grant(0).is_ok() && grant(last).is_ok());
    assert!(grant(SINK_TARGETS_MAX).is_err() && grant(u16::MAX).is_err());
    // A data frame that names one.
    let mut frame =
        encode_data(&DataHeader { sink_target: SinkTarget(last), ..data_header(&mut Rng::with_seed(8)) });
    assert_eq!(decode_data(&frame).map(|header| header.sink_target), Ok(SinkTarget(last)));
    frame[HEADER_LEN + 2..HEADER_LEN + 4].copy_from_slice(&SINK_TARGETS_MAX.to_le_bytes());
    assert!(matches!(decode_data(&frame), Err(WireError::TooLong { .. })));
}

/// Goal: no table claims what cannot be: names that are none, too long or no text, unknown states, more rows
/// of a state than targets, more targets than an end can have.
/// Method: legal bodies, changed in one way each; the largest table fits its bound.
#[test]
fn senseless_tables_are_refused() {
    let body = |counts: [u16; 4], rows: &[(&[u8], u8)]| {
        let mut body = counts.map(u16::to_le_bytes).concat();
        body.extend((rows.len() as u16).to_le_bytes());
        for (name, state) in rows {
            body.extend((name.len() as u16).to_le_bytes());
            body.extend(*name);
            body.push(*state);
            body.extend([0xff; 40]);
        }
        body
    };
    let table = |counts, rows: &[(&[u8], u8)]| decode_message(kind::TARGET_TABLE, &body(counts, rows));
    let long = [b'x'; TARGET_NAME_MAX + 1];
    let longest = &long[1..];
    type Rows<'a> = &'a [(&'a [u8], u8)];
    let good: [([u16; 4], Rows); 3] =
        [([0; 4], &[]), ([4095, 0, 0, 1], &[(longest, 3)]), ([0, 2, 0, 0], &[(b"a", 1), (b"\x1b[2J", 1)])];
    for (counts, rows) in good {
        assert!(table(counts, rows).is_ok(), "{counts:?}");
    }
    let most = body([32, 0, 0, 0], &[(longest, 0); ROWS_MAX]);
    assert!(decode_message(kind::TARGET_TABLE, &most).is_ok() && most.len() == TABLE_LEN_MAX);
    let bad: [([u16; 4], Rows); 8] = [
        ([4096, 0, 0, 1], &[]),
        ([u16::MAX; 4], &[]),
        ([9, 0, 0, 0], &[(b"a", 1)]),
        ([1, 0, 0, 0], &[(b"a", 0), (b"b", 0)]),
        ([9; 4], &[(b"a", 4)]),
        ([9; 4], &[(b"", 0)]),
        ([9; 4], &[(&long, 0)]),
        ([9; 4], &[(b"\xff", 0)]),
    ];
    for (counts, rows) in bad {
        assert!(table(counts, rows).is_err(), "{counts:?} {rows:?}");
    }
    let unwell = |name: &[u8], others: u16| {
        let mut body = vec![1, 0];
        body.extend((name.len() as u16).to_le_bytes());
        body.extend([name, &[0xff; 16]].concat());
        body.extend(others.to_le_bytes());
        decode_message(kind::UNWELL_TARGETS, &body)
    };
    assert!(unwell(longest, 4096).is_ok());
    assert!(unwell(b"", 0).is_err() && unwell(&long, 0).is_err() && unwell(b"\xff", 0).is_err());
    assert!(unwell(b"a", 4097).is_err());
}

/// Goal: no processors are busier than all the time.
#[test]
fn processors_that_are_too_busy_are_refused() {
    let say = |busy: u16| decode_message(kind::PROCESSORS, &[[4, 0], busy.to_le_bytes()].concat());
    assert!(say(0).is_ok() && say(Processors::ALL).is_ok());
    for busy in [Processors::ALL + 1, u16::MAX] {
        assert!(matches!(say(busy), Err(WireError::BadValue { value, .. }) if value == u64::from(busy)));
    }
}

/// Goal: live settings beyond what can be asked for are refused, each by its name.
/// Method: a legal body with one count at its maximum, then one more.
#[test]
fn live_settings_over_their_maximum_are_refused() {
    let max = [STREAMS_MAX, LIVE_THREADS_MAX, LIVE_THREADS_MAX];
    for (at, (max, name)) in max.into_iter().zip(["streams", "readers", "writers"]).enumerate() {
        let mut body = [0; 15];
        let at = 9 + 2 * at;
        body[at..at + 2].copy_from_slice(&max.to_le_bytes());
        assert!(decode_message(kind::LIVE_SETTINGS, &body).is_ok(), "{name}");
        body[at..at + 2].copy_from_slice(&(max + 1).to_le_bytes());
        match decode_message(kind::LIVE_SETTINGS, &body) {
            Err(error @ WireError::TooLong { .. }) => assert!(error.to_string().contains(name), "{error}"),
            other => panic!("{name}: {other:?}"),
        }
    }
    assert!(decode_message(kind::LIVE_SETTINGS, &[2; 15]).is_err(), "paused is a bool");
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
    for bits in [0x400, 0xffff] {
        let (kind, mut body) = encode(&message(1, r));
        body[..2].copy_from_slice(&u16::to_le_bytes(bits));
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
        extras: Extras::default(),
    };
    let (kind, body) = encode(&Message::Announce(vec![entry.clone()]));
    let patched = |at: usize, bytes: &[u8]| {
        let mut body = body.clone();
        body[at..at + bytes.len()].copy_from_slice(bytes);
        decode_message(kind, &body)
    };
    assert!(patched(0, &[]).is_ok());
    let refused: [(&str, usize, &[u8]); 12] = [
        ("root announced", 2, &[0]),
        ("mode above 07777", 22, &0o10000u32.to_le_bytes()),
        ("nanoseconds", 42, &1_000_000_000u32.to_le_bytes()),
        ("kind 0", 46, &[0]),
        ("kind 4", 46, &[4]),
        ("slash", 48, b"/b"),
        ("dots", 48, b".."),
        ("NUL", 48, b"a\0"),
        ("size", 50, &(1u64 << 63).to_le_bytes()),
        ("version longer than 32 bytes", 70, &[33]),
        ("object size not a power of two", 71, &(3u32 << 20).to_le_bytes()),
        ("object size under 64 KiB", 71, &(1u32 << 15).to_le_bytes()),
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
        kind: EntryKind::Dir { version: Version::NONE },
        extras: Extras::default(),
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
    let optional = [0x99, 0, 0, 2, 0, 9, 9];
    let two = [optional, optional].concat();
    assert_eq!(with(&optional, 7), Ok(Decoded::Message(plain.clone())));
    assert_eq!(with(&two, 14), Ok(Decoded::Message(plain)));
    let required = [0x99, 0, 1, 2, 0, 9, 9];
    assert_eq!(with(&required, 7), Err(WireError::UnknownRequired { what: "extra field", kind: 0x99 }));
    assert!(with(&optional, 8).is_err());
    assert!(with(&optional, 6).is_err());
    assert!(with(&[0x99, 0, 0, 3, 0, 9, 9], 7).is_err());
}

/// Goal: how a file is cut has one form: a legal object size, and stripes of a size and a number or none at
/// all.
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
    let grain = |grain: u32| decode_message(kind::TIME_GRAIN, &grain.to_le_bytes());
    assert!(grain(1).is_ok() && grain(u32::MAX).is_ok() && grain(0).is_err());
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
            extras: Extras::default(),
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
    assert!(with(EntryKind::Dir { version: Version::NONE }, &mark).is_err());
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
    assert!(with(EntryKind::Dir { version: Version::NONE }, &marks[5..]).is_err());
}
