//! Opening TLS 1.3 records: record in, payload out, in one pass of the cipher, to where the caller wants it
//! or in place.
//!
//! Invariants: what was not sealed by the peer as its next record is never called payload; after an error
//! nothing more opens. No panic on any bytes.

use aws_lc_rs::aead::Aad;

use super::record::{Fault, HEADER_LEN, Key, Kind, PLAIN_LEN_MAX, TAG_LEN, record_len};

/// Opens one direction's records.
pub struct Opener {
    key: Key,
    fault: Option<Fault>,
}

impl Opener {
    pub fn new(key: Key) -> Opener {
        Opener { key, fault: None }
    }

    /// Bytes that [`Opener::open_into`] needs for a record of `len` bytes: the payload and one more.
    pub fn room(len: usize) -> usize {
        len.saturating_sub(HEADER_LEN + TAG_LEN)
    }

    /// Opens `record`, exactly one as by [`record_len`], into the front of `out`, which has [`Opener::room`]
    /// for it. Tells its kind and the payload's length. What lies behind the payload in that room is
    /// scribbled upon.
    ///
    /// # Errors
    /// It is not the peer's next record; `out` holds nothing of use then.
    pub fn open_into(&mut self, record: &[u8], out: &mut [u8]) -> Result<(Kind, usize), Fault> {
        self.guarded(|key| {
            let (head, sealed, tag) = parts(record)?;
            let out = out.get_mut(..sealed.len()).ok_or(Fault::TooLong)?;
            let nonce = key.next_nonce()?;
            key.aead
                .open_separate_gather(nonce, Aad::from(head), sealed, tag, out)
                .map_err(|_| Fault::Forged)?;
            unwrap(out)
        })
    }

    /// Opens `record` where it is: the payload is behind the header, [`HEADER_LEN`]. Else like
    /// [`Opener::open_into`].
    ///
    /// # Errors
    /// As [`Opener::open_into`].
    pub fn open_in_place(&mut self, record: &mut [u8]) -> Result<(Kind, usize), Fault> {
        self.guarded(|key| {
            parts(record)?;
            let (head, sealed) = record.split_at_mut(HEADER_LEN);
            let nonce = key.next_nonce()?;
            let plain =
                key.aead.open_in_place(nonce, Aad::from(&*head), sealed).map_err(|_| Fault::Forged)?;
            unwrap(plain)
        })
    }

    fn guarded<T>(&mut self, open: impl FnOnce(&mut Key) -> Result<T, Fault>) -> Result<T, Fault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        open(&mut self.key).inspect_err(|fault| self.fault = Some(*fault))
    }
}

/// Header, ciphertext with the kind at its end, tag.
fn parts(record: &[u8]) -> Result<(&[u8], &[u8], &[u8]), Fault> {
    if record_len(record)? != Some(record.len()) {
        return Err(Fault::NoRecord);
    }
    let (head, body) = record.split_at(HEADER_LEN);
    let (sealed, tag) = body.split_at(body.len() - TAG_LEN);
    Ok((head, sealed, tag))
}

/// Kind and length of what is inside: the kind is the last byte that is not padding.
fn unwrap(inner: &[u8]) -> Result<(Kind, usize), Fault> {
    let len = inner.iter().rposition(|byte| *byte != 0).ok_or(Fault::Unexpected)?;
    debug_assert!(len <= PLAIN_LEN_MAX);
    Ok((Kind::from_byte(inner[len]).ok_or(Fault::Unexpected)?, len))
}
