//! The body of a record: type and fields, little-endian.
//!
//! Invariant: one record has one encoding, so decoding refuses what encoding would not have written (other
//! flags, bytes left over, empty lists).

use super::{
    DirMark, DoneMark, PathKey, RECORD_LEN_MAX, Record, RootId, SUBTREES_PER_RECORD, TAGS_MAX,
    WIDENED_PATH_LEN_MAX, Widened,
};
use crate::digest::{DigestKind, Subtree};
use crate::entry::{Fingerprint, Timestamp, Version};
use crate::ids::{HOSTS_MAX, Holder};

const HEAD: u8 = 1;
const SESSION: u8 = 2;
const TAGS: u8 = 3;
const PARTIAL: u8 = 4;
const DURABLE: u8 = 5;
const WITHDRAWN: u8 = 6;
const DONE: u8 = 7;
const UNPROVEN: u8 = 8;
const WIDENED: u8 = 9;
const NARROWED: u8 = 10;
const FINISHED: u8 = 11;
const REOPENED: u8 = 12;

/// What a mode is made of, without its kind.
const MODE_MAX: u32 = 0o7777;

/// Kinds of digests, as on the wire.
const BLAKE3: u8 = 1;
const XXH3: u8 = 2;

/// Offset, length, chaining value.
const SUBTREE_LEN: usize = 8 + 8 + 32;
const TAG_LEN: usize = 4;
const LEASE_LEN: usize = 2 + 4;

const _: () = assert!(1 + 4 + LEASE_LEN + SUBTREES_PER_RECORD * SUBTREE_LEN <= RECORD_LEN_MAX);
const _: () = assert!(TAGS_MAX * TAG_LEN < RECORD_LEN_MAX);
const _: () = assert!(1 + 4 + 8 + 4 + WIDENED_PATH_LEN_MAX <= RECORD_LEN_MAX);

/// Appends the body of `record`. Its lists fit one record and are not empty.
pub(super) fn encode(record: &Record, out: &mut Vec<u8>) {
    match record {
        Record::Head { job, root } => {
            out.push(HEAD);
            out.extend_from_slice(job);
            put_short(root.as_bytes(), out);
        }
        Record::Session { epoch, tag, boot, durable, lease } => {
            out.push(SESSION);
            out.extend_from_slice(&epoch.to_le_bytes());
            out.extend_from_slice(&tag.to_le_bytes());
            out.extend_from_slice(boot);
            out.push(u8::from(*durable));
            put_lease(*lease, out);
        }
        Record::Tags { tags } => encode_tags(TAGS, tags, out),
        Record::Unproven { tags } => encode_tags(UNPROVEN, tags, out),
        Record::Partial { slot, path, fingerprint, object_size, tag, number, map, digest } => {
            out.push(PARTIAL);
            out.extend_from_slice(&slot.to_le_bytes());
            out.extend_from_slice(&path.0);
            out.extend_from_slice(&fingerprint.size.to_le_bytes());
            put_time(&fingerprint.mtime, out);
            put_version(&fingerprint.version, out);
            out.extend_from_slice(&object_size.to_le_bytes());
            out.extend_from_slice(&tag.to_le_bytes());
            out.extend_from_slice(&number.to_le_bytes());
            out.push(u8::from(map.is_some()));
            out.extend_from_slice(map.as_ref().map_or(&[][..], |digest| digest));
            out.push(match digest {
                DigestKind::Blake3 => BLAKE3,
                DigestKind::Xxh3 => XXH3,
            });
        }
        Record::Durable { slot, by, subtrees } => encode_durable(*slot, *by, subtrees, out),
        Record::Withdrawn { slot } => {
            out.push(WITHDRAWN);
            out.extend_from_slice(&slot.to_le_bytes());
        }
        Record::Done { path, mark } => {
            out.push(DONE);
            out.extend_from_slice(&path.0);
            out.extend_from_slice(&mark.parent.0);
            out.extend_from_slice(&mark.size.to_le_bytes());
            put_time(&mark.mtime, out);
            out.extend_from_slice(&mark.root);
        }
        Record::Finished { path, mark } => {
            out.push(FINISHED);
            out.extend_from_slice(&path.0);
            out.extend_from_slice(&mark.parent.0);
            put_time(&mark.mtime, out);
            put_version(&mark.version, out);
        }
        Record::Reopened { path } => {
            out.push(REOPENED);
            out.extend_from_slice(&path.0);
        }
        Record::Widened { slot, dir: Widened { path, ino, mode } } => {
            out.push(WIDENED);
            out.extend_from_slice(&slot.to_le_bytes());
            out.extend_from_slice(&ino.to_le_bytes());
            out.extend_from_slice(&mode.to_le_bytes());
            out.extend_from_slice(path);
        }
        Record::Narrowed { slot } => {
            out.push(NARROWED);
            out.extend_from_slice(&slot.to_le_bytes());
        }
    }
}

/// The body of a [`Record::Tags`].
pub(super) fn encode_all_tags(tags: &[u32], out: &mut Vec<u8>) {
    encode_tags(TAGS, tags, out);
}

/// The body of a [`Record::Unproven`].
pub(super) fn encode_unproven(tags: &[u32], out: &mut Vec<u8>) {
    encode_tags(UNPROVEN, tags, out);
}

fn encode_tags(kind: u8, tags: &[u32], out: &mut Vec<u8>) {
    out.push(kind);
    for tag in tags {
        out.extend_from_slice(&tag.to_le_bytes());
    }
}

/// The body of a [`Record::Durable`].
pub(super) fn encode_durable(slot: u32, by: Holder, subtrees: &[Subtree], out: &mut Vec<u8>) {
    out.push(DURABLE);
    out.extend_from_slice(&slot.to_le_bytes());
    put_lease(by, out);
    for subtree in subtrees {
        out.extend_from_slice(&subtree.offset.to_le_bytes());
        out.extend_from_slice(&subtree.len.to_le_bytes());
        out.extend_from_slice(&subtree.cv);
    }
}

fn put_time(time: &Timestamp, out: &mut Vec<u8>) {
    out.extend_from_slice(&time.secs.to_le_bytes());
    out.extend_from_slice(&time.nanos.to_le_bytes());
}

fn put_lease(lease: Holder, out: &mut Vec<u8>) {
    out.extend_from_slice(&lease.host.to_le_bytes());
    out.extend_from_slice(&lease.epoch.to_le_bytes());
}

fn put_version(version: &Version, out: &mut Vec<u8>) {
    put_short(version.as_bytes(), out);
}

/// A `u8` length and that many bytes.
fn put_short(bytes: &[u8], out: &mut Vec<u8>) {
    out.push(u8::try_from(bytes.len()).expect("identities and versions are short"));
    out.extend_from_slice(bytes);
}

/// The record of a body; `None` if it is none of this format. Allocates no more than `body` is long.
pub(super) fn decode(body: &[u8]) -> Option<Record> {
    let mut fields = Fields(body);
    let [kind] = fields.take()?;
    let record = match kind {
        HEAD => Record::Head { job: fields.take()?, root: RootId::new(fields.short()?)? },
        SESSION => Record::Session {
            epoch: fields.u32()?,
            tag: fields.u32()?,
            boot: fields.take()?,
            durable: fields.bool()?,
            lease: fields.lease()?,
        },
        TAGS => Record::Tags { tags: fields.list(TAGS_MAX, Fields::u32)? },
        UNPROVEN => Record::Unproven { tags: fields.list(TAGS_MAX, Fields::u32)? },
        PARTIAL => Record::Partial {
            slot: fields.u32()?,
            path: PathKey(fields.take()?),
            fingerprint: Fingerprint {
                size: fields.u64()?,
                mtime: fields.time()?,
                version: fields.version()?,
            },
            object_size: fields.u32()?,
            tag: fields.u32()?,
            number: fields.u64()?,
            map: if fields.bool()? { Some(fields.take()?) } else { None },
            digest: match fields.take()? {
                [BLAKE3] => DigestKind::Blake3,
                [XXH3] => DigestKind::Xxh3,
                _ => return None,
            },
        },
        DURABLE => Record::Durable {
            slot: fields.u32()?,
            by: fields.lease()?,
            subtrees: fields.list(SUBTREES_PER_RECORD, |fields| {
                Some(Subtree { offset: fields.u64()?, len: fields.u64()?, cv: fields.take()? })
            })?,
        },
        WITHDRAWN => Record::Withdrawn { slot: fields.u32()? },
        DONE => Record::Done {
            path: PathKey(fields.take()?),
            mark: DoneMark {
                parent: PathKey(fields.take()?),
                size: fields.u64()?,
                mtime: fields.time()?,
                root: fields.take()?,
            },
        },
        FINISHED => Record::Finished {
            path: PathKey(fields.take()?),
            mark: DirMark {
                parent: PathKey(fields.take()?),
                mtime: fields.time()?,
                version: fields.version()?,
            },
        },
        REOPENED => Record::Reopened { path: PathKey(fields.take()?) },
        WIDENED => {
            let (slot, ino) = (fields.u32()?, fields.u64()?);
            let mode = fields.u32().filter(|mode| *mode <= MODE_MAX)?;
            let path = fields.rest(WIDENED_PATH_LEN_MAX)?;
            Record::Widened { slot, dir: Widened { path, ino, mode } }
        }
        NARROWED => Record::Narrowed { slot: fields.u32()? },
        _ => return None,
    };
    fields.0.is_empty().then_some(record)
}

/// What is left of a body.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }
    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }
    fn lease(&mut self) -> Option<Holder> {
        Some(Holder { host: self.u16().filter(|host| *host < HOSTS_MAX)?, epoch: self.u32()? })
    }
    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
    fn bool(&mut self) -> Option<bool> {
        match self.take()? {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        }
    }
    fn time(&mut self) -> Option<Timestamp> {
        Some(Timestamp { secs: self.take().map(i64::from_le_bytes)?, nanos: self.u32()? })
    }
    /// A `u8` length and that many bytes.
    fn short(&mut self) -> Option<&[u8]> {
        let [len] = self.take()?;
        let (bytes, rest) = self.0.split_at_checked(len.into())?;
        self.0 = rest;
        Some(bytes)
    }
    fn version(&mut self) -> Option<Version> {
        Version::new(self.short()?)
    }
    /// All that is left: at least one byte, at most `len_max`.
    fn rest(&mut self, len_max: usize) -> Option<Box<[u8]>> {
        let rest = std::mem::take(&mut self.0);
        (1..=len_max).contains(&rest.len()).then(|| rest.into())
    }
    /// Items to the end of the body: at least one, at most `count_max`.
    fn list<T>(&mut self, count_max: usize, item: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let mut items = Vec::new();
        while !self.0.is_empty() && items.len() < count_max {
            items.push(item(self)?);
        }
        (!items.is_empty()).then_some(items)
    }
}
