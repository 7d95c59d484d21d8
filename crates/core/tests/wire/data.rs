//! Heads of data frames that contradict themselves.

use fastrand::Rng;
use haul_core::ids::{FileId, Generation, SessionEpoch, SinkTarget, StreamId};
use haul_core::wire::*;

use crate::samples::{data_entry, decode_data, encode_data};

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
        let mut frame =
            encode_data(&DataHeader { sink_target: SinkTarget::ANY, entries: vec![legal.clone()] });
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
        let frame = encode_data(&DataHeader { sink_target: SinkTarget::ANY, entries: vec![legal.clone()] });
        assert!(patched(at, &[frame[at] ^ 1]).is_err(), "length at byte {at}");
    }
    // A whole file without its root; a part that ends inside a chunk; an empty part.
    let whole = DataEntry { offset: 1 << 20, len: 1 << 20, tail: true, ..legal.clone() };
    let mut frame = encode_data(&DataHeader { sink_target: SinkTarget::ANY, entries: vec![whole] });
    assert!(decode_data(&frame).is_ok());
    frame[entry + 12..entry + 20].fill(0);
    assert!(matches!(
        decode_data(&frame),
        Err(WireError::BadValue { what: "whole file without its root", .. })
    ));
    let odd = DataEntry { len: 1025, tail: true, ..legal.clone() };
    let mut frame = encode_data(&DataHeader { sink_target: SinkTarget::ANY, entries: vec![odd] });
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

/// Goal: a bundle holds whole files only.
/// Method: the root flag of one entry of two is cleared.
#[test]
fn bundles_hold_whole_files_only() {
    let r = &mut Rng::with_seed(8);
    let entries = vec![data_entry(r, true), data_entry(r, true)];
    let mut frame = encode_data(&DataHeader { sink_target: SinkTarget::ANY, entries });
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
    let mut frame = encode_data(&DataHeader { sink_target: SinkTarget::ANY, entries: vec![part.clone()] });
    frame[entry + 12..entry + 20].fill(0);
    frame[entry + 26] |= 1;
    assert_eq!(decode_data(&frame), bad("chaining values of a whole file", 2));
    // One value too few for the range: the offset moves into a larger subtree's place.
    let single = DataEntry { offset: 1 << 20, cvs: vec![[1; 32]], ..part.clone() };
    let mut frame = encode_data(&DataHeader { sink_target: SinkTarget::ANY, entries: vec![single] });
    frame[entry + 12..entry + 20].copy_from_slice(&65_536u64.to_le_bytes());
    assert_eq!(decode_data(&frame), bad("chaining values of a part of a file", 1));
    // No value; the descriptor is as long as an entry with one value must be, so trailing would come later.
    let single = DataEntry { offset: 1 << 20, cvs: vec![[1; 32]], ..part.clone() };
    let mut frame = encode_data(&DataHeader { sink_target: SinkTarget::ANY, entries: vec![single.clone()] });
    frame[entry + 28] = 0;
    assert_eq!(decode_data(&frame), bad("chaining values of a part of a file", 0));
    // An empty part: no payload, and the frame says so.
    let mut frame = encode_data(&DataHeader { sink_target: SinkTarget::ANY, entries: vec![single] });
    frame[entry + 20..entry + 24].fill(0);
    frame[HEADER_LEN + 8..HEADER_LEN + 12].fill(0);
    let len = (frame.len() - HEADER_LEN) as u32;
    frame[..4].copy_from_slice(&len.to_le_bytes());
    assert_eq!(decode_data(&frame), bad("length of a part of a file", 0));
}
