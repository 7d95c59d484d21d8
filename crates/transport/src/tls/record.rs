//! TLS 1.3 records (RFC 8446, section 5) and the few messages in them that may follow a handshake.
//!
//! In: bytes. Out: lengths, kinds, what a message wants. No I/O and no allocation; sealing is in
//! [`super::seal`], opening in [`super::open`].
//!
//! Invariants: nothing of a record is believed before it was opened, but its length, and that is bounded. A
//! [`Key`] gives each nonce once. Left out, because neither end of haul ever sends them: padding of our own,
//! messages in parts, session tickets, certificates asked for later; they end the connection.

use aws_lc_rs::aead::{Algorithm, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

/// What comes before the ciphertext: outer type, version, length. It is what the tag covers besides.
pub const HEADER_LEN: usize = 5;
/// Most payload in one record, bytes.
pub const PLAIN_LEN_MAX: usize = 16 * 1024;
/// The tag of both ciphers, bytes.
pub const TAG_LEN: usize = 16;
/// What is behind the payload: its kind, and the tag.
pub const TRAILER_LEN: usize = 1 + TAG_LEN;
/// Longest record, bytes. The RFC leaves room for longer tags than these ciphers have.
pub const RECORD_LEN_MAX: usize = HEADER_LEN + PLAIN_LEN_MAX + TRAILER_LEN;

/// What a record carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Alert = 21,
    Handshake = 22,
    Data = 23,
}

impl Kind {
    pub(super) fn from_byte(byte: u8) -> Option<Kind> {
        [Kind::Alert, Kind::Handshake, Kind::Data].into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// Why a connection cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("the peer sent what is no TLS record")]
    NoRecord,
    #[error("the peer sent a TLS record that is too long")]
    TooLong,
    #[error("a TLS record was damaged or forged on the way")]
    Forged,
    #[error("the peer sent a TLS message that has no place here")]
    Unexpected,
    #[error("the peer sends TLS records without data")]
    Flood,
    #[error("the peer ended the connection: TLS alert {0} ({name})", name = alert_name(*.0))]
    Alert(u8),
    #[error("no more records can be sealed or opened with this key")]
    Exhausted,
}

impl Fault {
    /// The alert that tells the peer, if there is anything to tell.
    pub fn alert(self) -> Option<u8> {
        Some(match self {
            Fault::NoRecord | Fault::Unexpected | Fault::Flood => 10,
            Fault::Forged => 20,
            Fault::TooLong => 22,
            Fault::Exhausted => 80,
            Fault::Alert(_) => return None,
        })
    }
}

/// The alerts that a peer can have reason to send, by the names of RFC 8446.
fn alert_name(alert: u8) -> &'static str {
    match alert {
        10 => "unexpected_message",
        20 => "bad_record_mac",
        22 => "record_overflow",
        40 => "handshake_failure",
        42 => "bad_certificate",
        43 => "unsupported_certificate",
        45 => "certificate_expired",
        46 => "certificate_unknown",
        47 => "illegal_parameter",
        48 => "unknown_ca",
        49 => "access_denied",
        50 => "decode_error",
        51 => "decrypt_error",
        80 => "internal_error",
        90 => "user_canceled",
        116 => "certificate_required",
        120 => "no_application_protocol",
        _ => "unknown",
    }
}

/// One direction's key, and the number of the next record.
pub struct Key {
    pub(super) aead: LessSafeKey,
    iv: [u8; NONCE_LEN],
    seq: u64,
}

impl Key {
    /// A key of `algorithm`, AES-GCM or ChaCha20-Poly1305, whose next record is number `seq`. `None` if `key`
    /// is not of the algorithm's length.
    pub fn new(algorithm: &'static Algorithm, key: &[u8], iv: [u8; NONCE_LEN], seq: u64) -> Option<Key> {
        let key = UnboundKey::new(algorithm, key).ok()?;
        Some(Key { aead: LessSafeKey::new(key), iv, seq })
    }

    /// Records that were sealed or opened with it.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// The next record's nonce, for once (RFC 8446, 5.3).
    pub(super) fn next_nonce(&mut self) -> Result<Nonce, Fault> {
        let mut nonce = self.iv;
        for (byte, seq) in nonce[NONCE_LEN - 8..].iter_mut().zip(self.seq.to_be_bytes()) {
            *byte ^= seq;
        }
        if haul_mutant::removed("record-number") {
            return Ok(Nonce::assume_unique_for_key(self.iv));
        }
        self.seq = self.seq.checked_add(1).ok_or(Fault::Exhausted)?;
        Ok(Nonce::assume_unique_for_key(nonce))
    }
}

/// The header of a record whose ciphertext (tag and all) has `len` bytes, at most [`RECORD_LEN_MAX`].
pub(super) fn header(len: usize) -> [u8; HEADER_LEN] {
    let [high, low] = (len as u16).to_be_bytes();
    [Kind::Data as u8, 3, 3, high, low]
}

/// The whole length of the record that begins with `bytes`; `None` while its header is not there.
///
/// # Errors
/// It is no record of TLS 1.3 after a handshake, or longer than one can be.
pub fn record_len(bytes: &[u8]) -> Result<Option<usize>, Fault> {
    let [kind, major, minor, high, low, ..] = *bytes else { return Ok(None) };
    if [kind, major, minor] != [Kind::Data as u8, 3, 3] {
        return Err(Fault::NoRecord);
    }
    let len = HEADER_LEN + usize::from(u16::from_be_bytes([high, low]));
    match len {
        RECORD_LEN_MAX.. if len > RECORD_LEN_MAX => Err(Fault::TooLong),
        _ if len < HEADER_LEN + TRAILER_LEN => Err(Fault::NoRecord),
        _ => Ok(Some(len)),
    }
}

/// What an opened record means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    Data,
    /// What follows is sealed with the next key; the peer may want us to change ours too.
    KeyUpdate {
        answer: bool,
    },
    /// The peer sends no more.
    Close,
}

/// What a record of `kind` with `body` means.
///
/// # Errors
/// The peer gave up, or sent a message that has no place here.
pub fn meaning(kind: Kind, body: &[u8]) -> Result<Meaning, Fault> {
    match (kind, body) {
        (Kind::Data, _) => Ok(Meaning::Data),
        // A message may not be in parts around a change of keys, so that it fills its record.
        (Kind::Handshake, [KEY_UPDATE, 0, 0, 1, answer @ (0 | 1)]) => {
            Ok(Meaning::KeyUpdate { answer: *answer == 1 })
        }
        (Kind::Alert, [_, CLOSE_NOTIFY]) => Ok(Meaning::Close),
        (Kind::Alert, [_, alert]) => Err(Fault::Alert(*alert)),
        _ if haul_mutant::removed("message-in-its-place") => Ok(Meaning::Data),
        _ => Err(Fault::Unexpected),
    }
}

const KEY_UPDATE: u8 = 24;
const CLOSE_NOTIFY: u8 = 0;
const WARNING: u8 = 1;
const FATAL: u8 = 2;

/// A change of the sender's key; the peer need not change its own for it, it counts for itself.
pub const KEY_UPDATE_MESSAGE: [u8; 5] = [KEY_UPDATE, 0, 0, 1, 0];
/// The sender's end in good order.
pub const CLOSE_MESSAGE: [u8; 2] = [WARNING, CLOSE_NOTIFY];

/// The sender's end because of `alert`.
pub fn fatal_message(alert: u8) -> [u8; 2] {
    [FATAL, alert]
}
