//! Bytes that nobody meant: cut off, too many, changed, random, of kinds that are not known.

use fastrand::Rng;
use haul_core::ids::{SessionEpoch, SinkTarget, StreamId};
use haul_core::wire::*;

use crate::samples::{MESSAGES, bytes, data_header, decode_data, encode, encode_data, message};

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
            sink_target: SinkTarget(r.u16(..)),
            descriptor_len: r.u32(..400),
            payload_len: r.u32(..),
        };
        let _ = decode_data_descriptor(&preamble, &body);
    }
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
