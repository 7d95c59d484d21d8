//! What is written: bytes that follow from the file and their place in it, and do not repeat with any stripe,
//! page or request.
//!
//! In: a seed. Out: the bytes of a range; whether others are they.

use anyhow::bail;

/// Bytes repeat after so many: a prime, so that no stripe begins with what another one begins with.
const PERIOD: usize = (1 << 20) + 7;
/// So far apart are the beginnings of one file and the next.
const APART: u64 = 104_729;

/// See the head of this module.
pub struct Content {
    pool: Vec<u8>,
}

impl Content {
    pub fn new(seed: u64) -> Content {
        let mut pool = vec![0; PERIOD];
        fastrand::Rng::with_seed(seed).fill(&mut pool);
        Content { pool }
    }

    fn start(file: u64, offset: u64) -> usize {
        let at = file.wrapping_mul(APART) % PERIOD as u64 + offset % PERIOD as u64;
        (at % PERIOD as u64) as usize
    }

    /// The pieces of the pool that are the bytes of a range, one after the other.
    fn pieces(&self, file: u64, offset: u64, len: usize) -> impl Iterator<Item = &[u8]> {
        let (mut at, mut left) = (Content::start(file, offset), len);
        std::iter::from_fn(move || {
            let len = left.min(PERIOD - at);
            let piece = (len > 0).then(|| &self.pool[at..at + len]);
            (at, left) = (0, left - len);
            piece
        })
    }

    pub fn bytes(&self, file: u64, offset: u64, len: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len as usize);
        self.pieces(file, offset, len as usize).for_each(|piece| bytes.extend_from_slice(piece));
        bytes
    }

    /// # Errors
    /// These are not the bytes that were written there.
    pub fn check(&self, file: u64, offset: u64, found: &[u8]) -> anyhow::Result<()> {
        let mut at = 0;
        for piece in self.pieces(file, offset, found.len()) {
            let here = &found[at..at + piece.len()];
            if here != piece {
                let differs = here.iter().zip(piece).position(|(a, b)| a != b).unwrap_or(0);
                let wrong = here.iter().zip(piece).filter(|(a, b)| a != b).count();
                let zeros = here.iter().zip(piece).filter(|(a, b)| a != b && **a == 0).count();
                bail!(
                    "wrong bytes in file {file}: the first at {}, {wrong} in {} bytes from {offset} on, {zeros} of them \
                     zeros",
                    offset + (at + differs) as u64,
                    found.len()
                );
            }
            at += piece.len();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a byte follows from file and place alone, however it is asked for; one that is wrong, moved by a
    /// stripe or of another file is found, and where.
    /// Method: ranges over the end of the period, in pieces and whole; bytes with one flipped.
    #[test]
    fn bytes_follow_from_their_place() {
        let content = Content::new(3);
        let whole = content.bytes(2, 100, 3 * PERIOD as u64);
        for (from, len) in [(0, 1), (PERIOD - 103, 10), (PERIOD, 2 * PERIOD)] {
            assert_eq!(content.bytes(2, 100 + from as u64, len as u64), whole[from..from + len]);
        }
        content.check(2, 100, &whole).unwrap();
        let mut wrong = whole.clone();
        wrong[PERIOD + 5] ^= 1;
        let why = content.check(2, 100, &wrong).unwrap_err().to_string();
        assert!(why.contains(&format!("first at {}", 105 + PERIOD)), "{why}");
        assert!(content.check(3, 100, &whole[..64]).is_err());
        for stripe in [16, 4096, 1 << 16, 1 << 20, 4 << 20] {
            assert!(content.check(2, 100 + stripe, &whole[..64]).is_err(), "{stripe}");
        }
        assert!(Content::new(4).check(2, 100, &whole[..64]).is_err());
    }
}
