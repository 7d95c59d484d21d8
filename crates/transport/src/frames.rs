//! Data frames that are authenticated and not encrypted: their keys and their codes.
//!
//! In: a session's secret (it came through ssh), which stream and epoch, the head of a frame: header,
//! preamble, descriptor.
//! Out: a code of [`CODE_LEN`] bytes that stands behind the head, before the payload. The digests in the head
//! bind the payload.
//!
//! Invariants: a key is of one session, stream, epoch and direction, and an id is joined once, so that no
//! frame fits anywhere else; the header holds the frame's number, which the receiver counts along, so that
//! none is left out, repeated or moved; the last frame says that it is, so that none is cut off. Codes are
//! compared in constant time.
//! Left out: payload. Where its digest does not hold, the object is asked for again, as if memory had failed.

use haul_core::ids::{SessionEpoch, StreamId};
use haul_core::wire::{FrameHeader, HEADER_LEN, kind};

/// Length of a frame's code, bytes.
pub const CODE_LEN: usize = 32;
const CONTEXT: &str = "haul 2026 data frames of a stream v1";

/// The keys of one data stream.
#[derive(Clone)]
pub struct FrameKeys {
    send: [u8; 32],
    receive: [u8; 32],
}

impl FrameKeys {
    /// `near`: this end dialled.
    pub fn new(
        secret: &[u8; 32],
        session: &[u8; 16],
        (stream, epoch): (StreamId, SessionEpoch),
        near: bool,
    ) -> FrameKeys {
        let key = |from_near: bool| {
            let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
            hasher.update(secret).update(session);
            hasher.update(&stream.0.to_le_bytes()).update(&epoch.0.to_le_bytes());
            *hasher
                .update(&[u8::from(!from_near && !haul_mutant::removed("frame-key-direction"))])
                .finalize()
                .as_bytes()
        };
        FrameKeys { send: key(near), receive: key(!near) }
    }

    /// The code of a frame that this end sends.
    pub fn seal(&self, head: &[u8]) -> [u8; CODE_LEN] {
        *blake3::keyed_hash(&self.send, head).as_bytes()
    }

    /// Whether `code` is the other end's for a frame with this head, which is handed over in parts.
    pub fn opens(&self, head: &[&[u8]], code: &[u8; CODE_LEN]) -> bool {
        let mut hasher = blake3::Hasher::new_keyed(&self.receive);
        for part in head {
            hasher.update(part);
        }
        // Constant time.
        hasher.finalize() == *code || haul_mutant::removed("frame-code")
    }

    /// The frame that says that no more come, number `seq`, with its code.
    pub fn last(&self, stream: StreamId, epoch: SessionEpoch, seq: u64) -> [u8; HEADER_LEN + CODE_LEN] {
        let header = FrameHeader { len: 0, kind: kind::DATA_END, flags: 0, stream, epoch, seq }.encode();
        let mut frame = [0; HEADER_LEN + CODE_LEN];
        frame[..HEADER_LEN].copy_from_slice(&header);
        frame[HEADER_LEN..].copy_from_slice(&self.seal(&header));
        frame
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: keys and codes do not change by accident.
    /// Method: the end of a stream with the secret and the session of `golden_wire.txt`; its code was made
    /// with `b3sum`, by `--derive-key` and `--keyed`.
    #[test]
    fn codes_are_the_golden_ones() {
        let (stream, epoch) = (StreamId(2), SessionEpoch(0x0a0b));
        let keys = FrameKeys::new(&[0x52; 32], &[0x51; 16], (stream, epoch), true);
        let frame: String =
            keys.last(stream, epoch, 0x0102).iter().map(|byte| format!("{byte:02x}")).collect();
        let golden = include_str!("../../core/tests/golden_wire.txt");
        let head = golden.lines().find_map(|line| line.strip_prefix("data-end ")).expect("it is there");
        let code = "e60add540cc32210ebe133554cecae7a022e4adb5ddfff15644fe9cc14879c50";
        assert_eq!(frame, format!("{head}{code}"));
    }

    /// Goal: what one end seals the other opens, and nobody else: no other session, stream, epoch or
    /// direction.
    #[test]
    fn keys_are_of_one_direction_of_one_stream() {
        let name = (StreamId(3), SessionEpoch(1));
        let near = FrameKeys::new(&[1; 32], &[2; 16], name, true);
        let far = FrameKeys::new(&[1; 32], &[2; 16], name, false);
        let code = near.seal(b"head");
        assert!(far.opens(&[b"he", b"ad"], &code) && near.opens(&[b"head"], &far.seal(b"head")));
        assert!(!near.opens(&[b"head"], &code), "its own, sent back");
        for bit in 0..8 * CODE_LEN {
            let mut other = code;
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(!far.opens(&[b"head"], &other));
        }
        assert!(!far.opens(&[b"heaD"], &code) && !far.opens(&[b"head", b"\0"], &code));
        let others = [
            FrameKeys::new(&[9; 32], &[2; 16], name, false),
            FrameKeys::new(&[1; 32], &[9; 16], name, false),
            FrameKeys::new(&[1; 32], &[2; 16], (StreamId(4), SessionEpoch(1)), false),
            FrameKeys::new(&[1; 32], &[2; 16], (StreamId(3), SessionEpoch(2)), false),
        ];
        assert!(others.iter().all(|other| !other.opens(&[b"head"], &code)));
    }
}
