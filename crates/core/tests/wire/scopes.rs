//! Refusals of what reaches beyond one pair of POSIX ends: hosts, shards, ranges, other kinds, metadata in
//! pieces, codecs.

use fastrand::Rng;
use haul_core::entry::*;
use haul_core::ids::{DirId, FileId, Generation, HOSTS_MAX, Holder};
use haul_core::wire::*;

use crate::samples::{data_header, decode_data, encode, encode_data, metadata};

fn announced(kind: EntryKind, extras: Extras) -> Announced {
    Announced {
        id: FileId(5),
        generation: Generation(1),
        parent: DirId::ROOT,
        name: Name::new(b"f").expect("legal"),
        meta: Meta::default(),
        kind,
        extras,
    }
}

fn file(size: u64) -> EntryKind {
    let fingerprint = Fingerprint { size, ..Fingerprint::default() };
    EntryKind::File { fingerprint, object_size: 4 << 20, sparse: false, striped: false }
}

/// The entry with extra fields as they are given.
fn with_extras(kind: EntryKind, extra: &[u8]) -> Result<Decoded, WireError> {
    let (kind, mut body) = encode(&Message::Announce(vec![announced(kind, Extras::default())]));
    let end = body.len();
    body[end - 2..].copy_from_slice(&(extra.len() as u16).to_le_bytes());
    body.extend_from_slice(extra);
    decode_message(kind, &body)
}

fn range_bytes(source: u64, sink: u64, len: u64, flags: u8) -> Vec<u8> {
    let numbers = [source, sink, len].map(u64::to_le_bytes).concat();
    [&[1, 0, 1, 25, 0][..], &numbers, &[flags]].concat()
}

/// Goal: a range that its file does not have, that would share a page with another host's, or that overflows
/// is refused; a partial transfer is as long as its entry, and may come from anywhere and go anywhere.
/// Method: a file of 40 MiB and a bit in objects of 4 MiB; ranges around each edge.
#[test]
fn ranges_lie_in_their_file() {
    const M: u64 = 1 << 20;
    let size = 40 * M + 5;
    let read = |source, sink, len, flags| with_extras(file(size), &range_bytes(source, sink, len, flags));
    for (source, sink, len, flags) in [
        (0, 0, size, 0),
        (0, 0, 4 * M, 0),
        (36 * M, 36 * M, 4 * M + 5, 0),
        (8 * M, 8 * M, 16 * M, 0),
        (1, 7, size, 1),
        (size - 1, 0, size, 1),
        (0, (1 << 62) + 1, size, 1),
    ] {
        let range = FileRange { source, sink, len, partial: flags == 1 };
        let told = Message::Announce(vec![announced(
            file(size),
            Extras { range: Some(range), ..Extras::default() },
        )]);
        assert_eq!(read(source, sink, len, flags), Ok(Decoded::Message(told)), "{source} {len}");
    }
    for (source, sink, len, flags) in [
        (0, 0, 0, 0),
        (0, 0, 0, 1),
        (0, 4 * M, 4 * M, 0),
        (M, M, 3 * M, 0),
        (0, 0, 4 * M + 1, 0),
        (40 * M, 40 * M, 6, 0),
        (0, 0, size + 1, 1),
        (0, 0, size - 1, 1),
        (u64::MAX, 0, size, 1),
        (2, 0, u64::MAX, 1),
        (0, u64::MAX, size, 1),
        (0, 1 << 63, size, 1),
        (0, 0, 4 * M, 2),
    ] {
        assert!(read(source, sink, len, flags).is_err(), "{source} {sink} {len} {flags}");
    }
    let good = range_bytes(0, 0, 4 * M, 0);
    let optional = [&[1, 0, 0][..], &good[3..]].concat();
    let long = [&[1, 0, 1, 26, 0][..], &good[5..], &[0]].concat();
    for bad in [&[&good[..], &good].concat(), &optional, &long] {
        assert!(with_extras(file(size), bad).is_err(), "{bad:?}");
    }
    assert!(with_extras(EntryKind::Fifo, &good).is_err(), "only files have ranges");
}

/// Goal: the mark of metadata has one form, and only files, directories and links have it.
#[test]
fn marks_of_metadata_have_one_form() {
    let mark = [5, 0, 1, 0, 0];
    let dir = || EntryKind::Dir { version: Version::NONE };
    assert!(with_extras(file(1), &mark).is_ok() && with_extras(dir(), &mark).is_ok());
    let bad: [&[u8]; 3] = [&[5, 0, 0, 0, 0], &[5, 0, 1, 1, 0, 7], &[mark, mark].concat()];
    for extra in bad {
        assert!(with_extras(dir(), extra).is_err(), "{extra:?}");
    }
    let link = EntryKind::Symlink { target: b"t"[..].into() };
    assert!(with_extras(link, &mark).is_ok() && with_extras(EntryKind::Socket, &mark).is_ok());
    assert!(with_extras(EntryKind::HardLink { to: FileId(1) }, &mark).is_err());
}

/// Goal: a hard link leads to an entry that can have been announced, a device is of a kind, no kind is beyond
/// those.
/// Method: legal announcements, changed in one way each.
#[test]
fn other_kinds_have_one_form() {
    let body_of = |kind| encode(&Message::Announce(vec![announced(kind, Extras::default())]));
    // The kind is at 46, the name is one byte, what follows begins at 49.
    let with = |kind: EntryKind, at: usize, bytes: &[u8]| {
        let (kind, mut body) = body_of(kind);
        body[at..at + bytes.len()].copy_from_slice(bytes);
        decode_message(kind, &body)
    };
    let link = || EntryKind::HardLink { to: FileId(4) };
    let to = |id: FileId| with(link(), 49, &id.0.to_le_bytes());
    assert!(to(FileId(1)).is_ok() && to(FileId::new(3, 9)).is_ok(), "of another shard any can be");
    for bad in [0, 5, 6] {
        assert!(to(FileId(bad)).is_err(), "{bad}");
    }
    let device = || EntryKind::Device { block: true, major: 1, minor: 2 };
    assert!(with(device(), 49, &[0]).is_ok() && with(device(), 49, &[2]).is_err());
    assert!(with(EntryKind::Fifo, 46, &[5]).is_ok() && with(EntryKind::Fifo, 46, &[8]).is_err());
}

/// Goal: no piece of metadata is longer, or lies further behind, than its value, none but attributes have
/// names, and what ends an entry ends a value.
/// Method: one legal piece, changed in one way each.
#[test]
fn senseless_pieces_are_refused() {
    let good = MetadataPiece {
        id: FileId(1),
        generation: Generation(1),
        namespace: Namespace::Xattr,
        name: b"user.x"[..].into(),
        total: 100,
        offset: 60,
        piece: [7; 40].into(),
        last: true,
    };
    let read = |piece: &MetadataPiece| {
        let (kind, body) = encode(&Message::Metadata(vec![piece.clone()]));
        decode_message(kind, &body)
    };
    let empty = MetadataPiece { total: 0, offset: 0, piece: [].into(), ..good.clone() };
    let most = MetadataPiece { total: METADATA_VALUE_LEN_MAX, last: false, ..good.clone() };
    let acl = MetadataPiece { namespace: Namespace::Nfs4Acl, name: [].into(), ..good.clone() };
    for piece in [&good, &empty, &most, &acl] {
        assert_eq!(read(piece), Ok(Decoded::Message(Message::Metadata(vec![piece.clone()]))));
    }
    for bad in [
        MetadataPiece { total: METADATA_VALUE_LEN_MAX + 1, last: false, ..good.clone() },
        MetadataPiece { total: 99, ..good.clone() },
        MetadataPiece { total: 101, ..good.clone() },
        MetadataPiece { offset: u32::MAX, ..good.clone() },
        MetadataPiece { piece: [].into(), last: false, ..good.clone() },
        MetadataPiece { name: [].into(), ..good.clone() },
        MetadataPiece { name: b"user\0x"[..].into(), ..good.clone() },
        MetadataPiece { namespace: Namespace::AccessAcl, ..good.clone() },
    ] {
        assert!(read(&bad).is_err(), "{bad:?}");
    }
    let (kind, body) = encode(&Message::Metadata(vec![metadata(&mut Rng::with_seed(5))]));
    // 5 is kept for layouts of Lustre.
    for namespace in [0, 5, 255] {
        let mut body = body.clone();
        body[14] = namespace;
        assert!(decode_message(kind, &body).is_err(), "{namespace}");
    }
}

/// Goal: nobody says anything as a host that there cannot be, and a payload is in no codec that was not
/// agreed on.
#[test]
fn hosts_and_codecs_are_bounded() {
    let grant = |host| {
        let (kind, mut body) = encode(&Message::Grant { by: Holder::ALONE, sink_target: 0, total: 1 });
        body[..2].copy_from_slice(&u16::to_le_bytes(host));
        decode_message(kind, &body)
    };
    assert!(grant(HOSTS_MAX - 1).is_ok());
    assert!(matches!(grant(HOSTS_MAX), Err(WireError::TooLong { what: "host", .. })));
    let frame = encode_data(&data_header(&mut Rng::with_seed(7)));
    for codec in [1, 2, 255] {
        let mut frame = frame.clone();
        frame[HEADER_LEN + PREAMBLE_LEN + 30] = codec;
        let what = "data entry codec";
        assert_eq!(decode_data(&frame), Err(WireError::BadValue { what, value: codec.into() }));
    }
}

/// Goal: an end of version 2 is told apart by its hello, and both ends say both ranges.
/// Method: the hello of version 2 as it was fixed then; the newest that its range can be; held against ours
/// from either side.
#[test]
fn version_2_is_refused_in_words() {
    let line = include_str!("../hello_of_version_2.txt");
    let hex = line.trim_end().strip_prefix("hello-of-version-2 ").expect("its label");
    let bytes: Vec<u8> =
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
    let header = FrameHeader::decode(bytes.first_chunk().expect("a header")).expect("as ever");
    assert_eq!(header.kind, kind::HELLO);
    let Ok(Decoded::Message(Message::Hello(old))) = decode_message(header.kind, &bytes[HEADER_LEN..]) else {
        panic!("a hello keeps its layout")
    };
    assert_eq!((old.version_min, old.version_max), (1, 2));
    let ours = Hello {
        version_min: VERSION_MIN,
        version_max: VERSION,
        session: old.session,
        capabilities: vec![],
        limits: old.limits,
    };
    for (near, far, words) in [(&ours, &old, ["3-3", "1-2"]), (&old, &ours, ["1-2", "3-3"])] {
        let told = negotiate(near, far).expect_err("no common version").to_string();
        let [this, peer] = words;
        assert!(told.contains(&format!("this end speaks {this}, the peer {peer}")), "{told}");
        assert!(told.contains("use the same haul on both ends"), "{told}");
    }
}
