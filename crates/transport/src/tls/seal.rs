//! Sealing TLS 1.3 records: payload in, record out, in one pass of the cipher.
//!
//! Invariants: the payload is read once and not changed; every byte of the output is written once. Left out:
//! padding.

use aws_lc_rs::aead::Aad;

use super::record::{Fault, HEADER_LEN, Key, Kind, PLAIN_LEN_MAX, TRAILER_LEN, header};

/// Seals one direction's records.
pub struct Sealer {
    key: Key,
}

impl Sealer {
    pub fn new(key: Key) -> Sealer {
        Sealer { key }
    }

    /// Records sealed with the present key.
    pub fn sealed(&self) -> u64 {
        self.key.seq()
    }

    /// Puts the next record, `plain` as `kind`, at the front of `out` and returns its length: that of
    /// `plain`, at most [`PLAIN_LEN_MAX`], with [`HEADER_LEN`] before and [`TRAILER_LEN`] behind.
    ///
    /// # Errors
    /// [`Fault::TooLong`] if `plain` is too long for a record or `out` too short for it; nothing is sealed
    /// then.
    pub fn seal(&mut self, kind: Kind, plain: &[u8], out: &mut [u8]) -> Result<usize, Fault> {
        let len = HEADER_LEN + plain.len() + TRAILER_LEN;
        if plain.len() > PLAIN_LEN_MAX {
            return Err(Fault::TooLong);
        }
        let out = out.get_mut(..len).ok_or(Fault::TooLong)?;
        let (head, body) = out.split_at_mut(HEADER_LEN);
        let (body, trailer) = body.split_at_mut(plain.len());
        head.copy_from_slice(&header(plain.len() + TRAILER_LEN));
        let nonce = self.key.next_nonce()?;
        self.key
            .aead
            .seal_out_of_place_scatter(nonce, Aad::from(&*head), plain, body, &[kind as u8], trailer)
            .map_err(|_| Fault::Exhausted)?;
        Ok(len)
    }
}
