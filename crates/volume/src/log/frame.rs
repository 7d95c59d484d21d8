//! Records of the log as bytes, and the log's head.
//!
//! A record is a header, its payload and a check of both. The header has a check of its own, so that its
//! length is believed, and so that it tells what was synced though its payload is torn. Checks are keyed with
//! the log's id, which no client knows: nothing that a payload says is taken for a record, nor is what an
//! older log left on the disk.
//!
//! ```text
//! 0 magic, 4 kind, 8 length of the payload, 16 sequence number, 24 all before this one was synced,
//! 32 three fields, 56 check; 72 payload; check
//! ```

use haul_core::volume::gather::{Record, Seq};
use haul_core::volume::wire::BYTES_MAX;
use haul_core::volume::{ClientNo, Epoch, FileNo};

use super::Held;

pub(super) const HEADER_LEN: usize = 72;
pub(super) const CHECK_LEN: usize = 16;
const HEADER_CHECKED: usize = HEADER_LEN - CHECK_LEN;
const MAGIC: [u8; 4] = *b"hvlr";
pub(super) const HEAD_LEN: usize = 64;
const HEAD_CHECKED: usize = HEAD_LEN - CHECK_LEN;
const HEAD_MAGIC: [u8; 8] = *b"haullog1";

/// No record: it says only what was synced.
const SYNCED: u8 = 0;
const BYTES: u8 = 1;
const END: u8 = 2;
const BROUGHT: u8 = 3;
const CLIENT: u8 = 4;
const CUT: u8 = 5;
const IS_CUT: u8 = 6;
const LAST_CUT: u8 = 7;
const REMOVE: u8 = 8;
const GONE: u8 = 9;
const UNTOLD: u8 = 10;
const TOLD: u8 = 11;
const NOTHING: u8 = 12;

/// What the checks of one log are made with.
#[derive(Clone)]
pub(super) struct Key([u8; 32]);

impl Key {
    pub(super) fn new(id: &[u8; 16]) -> Key {
        Key(blake3::derive_key("haul volume, log of a gatherer, version 1", id))
    }

    fn check(&self, parts: &[&[u8]]) -> [u8; CHECK_LEN] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        for part in parts {
            hasher.update(part);
        }
        *hasher.finalize().as_bytes().first_chunk().expect("32 bytes have 16")
    }

    /// What stands behind the payload.
    pub(super) fn seal(&self, header: &[u8; HEADER_LEN], payload: &[u8]) -> [u8; CHECK_LEN] {
        self.check(&[header, payload])
    }
}

/// A header, and in it all of a record but its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    kind: u8,
    /// Of the payload.
    pub(super) len: u32,
    pub(super) seq: u64,
    /// All records before that one were synced when this was written.
    pub(super) synced: u64,
    fields: [u64; 3],
}

impl Header {
    /// `None`: a record that nobody may append.
    pub(super) fn of(seq: u64, synced: u64, record: &Record<&[u8]>) -> Option<Header> {
        let (kind, len, fields) = match record {
            Record::Bytes { file, offset, len, bytes } => {
                if *len != bytes.len() as u64 || *len > BYTES_MAX {
                    return None;
                }
                (BYTES, *len as u32, [file.0, *offset, 0])
            }
            Record::End { file, end } => (END, 0, [file.0, *end, 0]),
            Record::Brought { file, stripe, upto } => (BROUGHT, 0, [file.0, *stripe, upto.0]),
            Record::Client(client) => (CLIENT, 0, [client.0, 0, 0]),
            Record::Cut { file, from, epoch } => (CUT, 0, [file.0, *from, packed(*epoch)]),
            Record::IsCut { file, from, epoch } => (IS_CUT, 0, [file.0, *from, packed(*epoch)]),
            Record::Remove { file } => (REMOVE, 0, [file.0, 0, 0]),
            Record::Gone { file } => (GONE, 0, [file.0, 0, 0]),
            Record::LastCut { file, epoch } => (LAST_CUT, 0, [file.0, packed(*epoch), 0]),
            Record::Untold { file } => (UNTOLD, 0, [file.0, 0, 0]),
            Record::Told { file } => (TOLD, 0, [file.0, 0, 0]),
            Record::Nothing => (NOTHING, 0, [0; 3]),
        };
        Some(Header { kind, len, seq, synced, fields })
    }

    pub(super) fn synced(next: u64, synced: u64) -> Header {
        Header { kind: SYNCED, len: 0, seq: next, synced, fields: [0; 3] }
    }

    pub(super) fn encode(&self, key: &Key) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = self.kind;
        bytes[8..12].copy_from_slice(&self.len.to_le_bytes());
        let [a, b, c] = self.fields;
        for (at, number) in [(16, self.seq), (24, self.synced), (32, a), (40, b), (48, c)] {
            bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        let check = key.check(&[&bytes[..HEADER_CHECKED]]);
        bytes[HEADER_CHECKED..].copy_from_slice(&check);
        bytes
    }

    /// The header at the beginning of `bytes`, if a whole one is there.
    pub(super) fn decode(bytes: &[u8], key: &Key) -> Option<Header> {
        let bytes: &[u8; HEADER_LEN] = bytes.first_chunk()?;
        if !bytes.starts_with(&MAGIC) {
            return None;
        }
        let header = Header {
            kind: bytes[4],
            len: u32::from_le_bytes(*bytes[8..].first_chunk()?),
            seq: number(bytes, 16),
            synced: number(bytes, 24),
            fields: [number(bytes, 32), number(bytes, 40), number(bytes, 48)],
        };
        // The check too: its encoding is the only one.
        (header.kind <= NOTHING && u64::from(header.len) <= BYTES_MAX && header.encode(key) == *bytes)
            .then_some(header)
    }

    /// With header and check, bytes.
    pub(super) fn frame_len(&self) -> u64 {
        (HEADER_LEN + CHECK_LEN) as u64 + u64::from(self.len)
    }

    /// `None`: it only says what was synced.
    pub(super) fn record(&self) -> Option<Record<Held>> {
        let [a, b, c] = self.fields;
        match self.kind {
            BYTES => {
                let len = self.len.into();
                Some(Record::Bytes { file: FileNo(a), offset: b, len, bytes: Held { len } })
            }
            END => Some(Record::End { file: FileNo(a), end: b }),
            BROUGHT => Some(Record::Brought { file: FileNo(a), stripe: b, upto: Seq(c) }),
            CLIENT => Some(Record::Client(ClientNo(a))),
            CUT => Some(Record::Cut { file: FileNo(a), from: b, epoch: unpacked(c) }),
            IS_CUT => Some(Record::IsCut { file: FileNo(a), from: b, epoch: unpacked(c) }),
            REMOVE => Some(Record::Remove { file: FileNo(a) }),
            GONE => Some(Record::Gone { file: FileNo(a) }),
            LAST_CUT => Some(Record::LastCut { file: FileNo(a), epoch: unpacked(b) }),
            UNTOLD => Some(Record::Untold { file: FileNo(a) }),
            TOLD => Some(Record::Told { file: FileNo(a) }),
            NOTHING => Some(Record::Nothing),
            _ => None,
        }
    }
}

fn packed(epoch: Epoch) -> u64 {
    u64::from(epoch.gatherer) << 32 | u64::from(epoch.fence)
}

fn unpacked(number: u64) -> Epoch {
    Epoch { gatherer: (number >> 32) as u32, fence: number as u32 }
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("the caller has so many bytes"))
}

/// The frame at the beginning of `bytes`, if a whole one is there.
pub(super) fn frame(bytes: &[u8], key: &Key) -> Option<Header> {
    let header = Header::decode(bytes, key)?;
    let (head, rest) = bytes.split_first_chunk()?;
    let (payload, rest) = rest.split_at_checked(header.len as usize)?;
    (rest.first_chunk() == Some(&key.seal(head, payload))).then_some(header)
}

/// Before which record all was synced, as far as any header in `bytes` says so.
pub(super) fn synced_in(bytes: &[u8], key: &Key) -> u64 {
    let starts = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(&MAGIC));
    starts.filter_map(|at| Header::decode(&bytes[at..], key)).map(|header| header.synced).max().unwrap_or(0)
}

/// Where a log begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) id: [u8; 16],
    /// Records before it are forgotten.
    pub(super) first: u64,
    /// Where it is, or will be: the segment, by the first record that it ever had, and the offset in it.
    pub(super) segment: u64,
    pub(super) offset: u64,
}

impl Head {
    pub(super) fn encode(&self) -> [u8; HEAD_LEN] {
        let mut bytes = [0; HEAD_LEN];
        bytes[..8].copy_from_slice(&HEAD_MAGIC);
        bytes[8..24].copy_from_slice(&self.id);
        for (at, number) in [(24, self.first), (32, self.segment), (40, self.offset)] {
            bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        let check = Key::new(&self.id).check(&[&bytes[..HEAD_CHECKED]]);
        bytes[HEAD_CHECKED..].copy_from_slice(&check);
        bytes
    }

    /// `None`: damaged.
    pub(super) fn decode(bytes: &[u8]) -> Option<Head> {
        let whole: &[u8; HEAD_LEN] = bytes.try_into().ok()?;
        let head = Head {
            id: *whole[8..].first_chunk()?,
            first: number(whole, 24),
            segment: number(whole, 32),
            offset: number(whole, 40),
        };
        (head.encode() == *whole).then_some(head)
    }
}
