//! Byte layout of data frames: header, preamble, descriptor, payload.
//!
//! A reader takes them in that order: the header and the preamble have fixed sizes; the preamble bounds the
//! descriptor; the descriptor says whose the payload is, which then goes straight into its buffer.
//! Invariant: a decoded [`DataHeader`] is one that a sink may believe in all that needs no knowledge of the
//! file: ranges do not overflow, payload and entries add up, flags fit each other, and each range has exactly
//! the chaining values that it demands.

use super::codec::{Reader, Writer};
use super::frame::{FILE_LEN_MAX, FrameHeader, HEADER_LEN, OBJECT_LEN_MAX, kind};
use super::{BUNDLE_ENTRIES_MAX, CVS_MAX, DataEntry, DataHeader, DigestKind, SINK_TARGETS_MAX, WireError};
use crate::digest::subtrees;
use crate::ids::{FileId, Generation, SessionEpoch, SinkTarget, StreamId};

/// Length of what follows the header of a data frame, bytes.
pub const PREAMBLE_LEN: usize = 16;
/// Length of an entry without its chaining values, bytes.
pub const DATA_ENTRY_LEN: usize = 32;
const CV_LEN: usize = 32;
/// Longest descriptor, bytes: a bundle's entries have one value each, a single entry up to [`CVS_MAX`].
pub const DESCRIPTOR_LEN_MAX: usize = BUNDLE_ENTRIES_MAX * (DATA_ENTRY_LEN + CV_LEN);

const _: () = assert!(DATA_ENTRY_LEN + CVS_MAX * CV_LEN <= DESCRIPTOR_LEN_MAX);
const _: () = assert!(super::FRAME_LEN_MAX <= u32::MAX as usize);

const ROOT: u8 = 1;
const HOLE: u8 = 1 << 1;
const TAIL: u8 = 1 << 2;
const SEALED: u8 = 1 << 3;
/// The payload is the file's bytes as they are. No session is to have another one yet.
const CODEC_NONE: u8 = 0;
const DIGEST_BLAKE3: u8 = 1;
const DIGEST_XXH3: u8 = 2;

/// The fixed part of a data frame after its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataPreamble {
    pub entries: u16,
    /// Below [`SINK_TARGETS_MAX`]. Whether the session has sink targets the machines know.
    pub sink_target: SinkTarget,
    pub descriptor_len: u32,
    pub payload_len: u32,
}

impl DataPreamble {
    /// Reads the preamble; its lengths fit the limits and add up to the header's.
    pub fn decode(header: &FrameHeader, bytes: &[u8; PREAMBLE_LEN]) -> Result<DataPreamble, WireError> {
        if header.kind != kind::DATA {
            return Err(WireError::BadValue { what: "kind of a data frame", value: header.kind.into() });
        }
        let mut r = Reader::new(bytes);
        let entries = r.u16("data entries")?;
        let sink_target = SinkTarget(r.u16("data preamble, sink target")?);
        let descriptor_len = r.u32("data descriptor length")?;
        let payload_len = r.u32("data payload length")?;
        r.reserved::<4>("data preamble, volume generation")?;
        let preamble = DataPreamble { entries, sink_target, descriptor_len, payload_len };
        preamble.check()?;
        let total = PREAMBLE_LEN as u64 + u64::from(descriptor_len) + u64::from(payload_len);
        match total == u64::from(header.len) {
            true => Ok(preamble),
            false => Err(WireError::BadValue { what: "data frame length", value: header.len.into() }),
        }
    }

    fn check(&self) -> Result<(), WireError> {
        let entries = usize::from(self.entries);
        if entries == 0 {
            return Err(WireError::BadValue { what: "data entries", value: 0 });
        }
        at_most("data preamble, sink target", self.sink_target.0.into(), u64::from(SINK_TARGETS_MAX) - 1)?;
        at_most("data entries", entries as u64, BUNDLE_ENTRIES_MAX as u64)?;
        at_most("data descriptor length", self.descriptor_len.into(), DESCRIPTOR_LEN_MAX as u64)?;
        at_most("data payload length", self.payload_len.into(), OBJECT_LEN_MAX.into())?;
        let need = (entries * (DATA_ENTRY_LEN + CV_LEN)) as u64;
        match need.checked_sub(self.descriptor_len.into()) {
            None | Some(0) => Ok(()),
            Some(missing) => Err(WireError::Truncated { what: "data descriptor", missing }),
        }
    }
}

/// Frame header, preamble and descriptor; the payload follows from another buffer.
///
/// # Panics
/// If the peer would refuse it; all that [`decode_data_descriptor`] checks is our own invariant here.
pub fn encode_data_header(header: &DataHeader, stream: StreamId, epoch: SessionEpoch, seq: u64) -> Vec<u8> {
    let entries = &header.entries;
    let cvs: usize = entries.iter().map(|e| e.cvs.len()).sum();
    let descriptor_len = entries.len() * DATA_ENTRY_LEN + cvs * CV_LEN;
    let preamble = DataPreamble {
        entries: u16::try_from(entries.len()).unwrap_or(u16::MAX),
        sink_target: header.sink_target,
        descriptor_len: u32::try_from(descriptor_len).unwrap_or(u32::MAX),
        payload_len: u32::try_from(header.payload_len()).unwrap_or(u32::MAX),
    };
    let legal =
        preamble.check().and_then(|()| entries.iter().try_for_each(|e| check_entry(e, entries.len())));
    if let Err(error) = legal {
        panic!("own data frame is not legal: {error}");
    }
    let len = PREAMBLE_LEN as u32 + preamble.descriptor_len + preamble.payload_len;
    let mut out = Vec::with_capacity(HEADER_LEN + PREAMBLE_LEN + descriptor_len);
    let mut w = Writer::new(&mut out);
    w.raw(&FrameHeader { len, kind: kind::DATA, flags: 0, stream, epoch, seq }.encode());
    w.u16(preamble.entries);
    w.u16(preamble.sink_target.0);
    w.u32(preamble.descriptor_len);
    w.u32(preamble.payload_len);
    w.u32(0);
    for e in entries {
        w.u64(e.id.0);
        w.u32(e.generation.0);
        w.u64(e.offset);
        w.u32(e.len);
        w.u16(e.pass);
        let flag = |on: bool, bit: u8| if on { bit } else { 0 };
        w.u8(flag(e.root, ROOT) | flag(e.hole, HOLE) | flag(e.tail, TAIL) | flag(e.sealed, SEALED));
        w.u8(match e.digest {
            DigestKind::Blake3 => DIGEST_BLAKE3,
            DigestKind::Xxh3 => DIGEST_XXH3,
        });
        w.count("chaining values", e.cvs.len(), CVS_MAX);
        w.u8(CODEC_NONE);
        w.u8(0);
        for cv in &e.cvs {
            w.raw(cv);
        }
    }
    out
}

/// Reads the descriptor that `preamble` bounds.
pub fn decode_data_descriptor(preamble: &DataPreamble, bytes: &[u8]) -> Result<DataHeader, WireError> {
    preamble.check()?;
    let count = usize::from(preamble.entries);
    let mut r = Reader::new(bytes);
    let need = preamble.descriptor_len as usize;
    let mut r = match r.remaining().checked_sub(need) {
        Some(0) | None => Reader::new(r.take("data descriptor", need)?),
        Some(extra) => return Err(WireError::Trailing { what: "data descriptor", len: extra as u64 }),
    };
    // Bounded: `check` held the count against the descriptor's length, and `take` that against the bytes.
    let mut entries = Vec::with_capacity(count);
    let mut payload_len = 0;
    for _ in 0..count {
        let entry = decode_entry(&mut r)?;
        check_entry(&entry, count)?;
        payload_len += u64::from(entry.len);
        entries.push(entry);
    }
    r.finish("data descriptor")?;
    match payload_len == u64::from(preamble.payload_len) {
        true => Ok(DataHeader { sink_target: preamble.sink_target, entries }),
        false => Err(WireError::BadValue { what: "sum of the entries' lengths", value: payload_len }),
    }
}

fn decode_entry(r: &mut Reader<'_>) -> Result<DataEntry, WireError> {
    let id = FileId(r.u64("data entry id")?);
    let generation = Generation(r.u32("data entry generation")?);
    let offset = r.u64("data entry offset")?;
    let len = r.u32("data entry length")?;
    let pass = r.u16("data entry pass")?;
    let flags = r.u8("data entry flags")?;
    if flags & !(ROOT | HOLE | TAIL | SEALED) != 0 {
        return Err(WireError::BadValue { what: "data entry flags", value: flags.into() });
    }
    let digest = match r.u8("data entry digest kind")? {
        DIGEST_BLAKE3 => DigestKind::Blake3,
        DIGEST_XXH3 => DigestKind::Xxh3,
        other => return Err(WireError::BadValue { what: "data entry digest kind", value: other.into() }),
    };
    let cv_count = r.count("chaining values", CVS_MAX, CV_LEN)?;
    let codec = r.u8("data entry codec")?;
    if codec != CODEC_NONE && !haul_mutant::removed("codecs-are-agreed") {
        return Err(WireError::BadValue { what: "data entry codec", value: codec.into() });
    }
    r.reserved::<1>("data entry, reserved byte")?;
    let mut cvs = Vec::with_capacity(cv_count);
    for _ in 0..cv_count {
        cvs.push(r.array("chaining value")?);
    }
    let on = |bit| flags & bit != 0;
    Ok(DataEntry {
        id,
        generation,
        offset,
        len,
        root: on(ROOT),
        hole: on(HOLE),
        tail: on(TAIL),
        sealed: on(SEALED),
        pass,
        digest,
        cvs,
    })
}

/// What must hold of one of `count` entries of a frame.
fn check_entry(e: &DataEntry, count: usize) -> Result<(), WireError> {
    let bad = |what, value| Err(WireError::BadValue { what, value });
    let (len, cvs) = (u64::from(e.len), e.cvs.len() as u64);
    at_most("data entry length", len, OBJECT_LEN_MAX.into())?;
    at_most("chaining values", cvs, CVS_MAX as u64)?;
    match e.offset.checked_add(len) {
        Some(end) => at_most("end of a data entry", end, FILE_LEN_MAX)?,
        None => return bad("data entry offset", e.offset),
    }
    if e.hole {
        return bad("hole in a data entry (reserved)", 1);
    }
    if let Some(value) = e.cvs.iter().find(|value| !e.digest.is_value(value)) {
        return bad("chaining value of another digest, ends in", value[31].into());
    }
    if e.root {
        // The root covers the whole file, so it begins where the file does.
        if e.offset != 0 {
            return bad("offset of a whole file", e.offset);
        }
        if cvs != 1 {
            return bad("chaining values of a whole file", cvs);
        }
        return Ok(());
    }
    if count > 1 {
        return bad("bundle entry that is not a whole file", count as u64);
    }
    if len == 0 {
        return bad("length of a part of a file", 0);
    }
    if e.offset == 0 && e.tail {
        return bad("whole file without its root", len);
    }
    if !e.digest.is_aligned(e.offset, len, e.tail) {
        return bad("part of a file that is not made of whole chunks, at offset", e.offset);
    }
    if subtrees(e.offset, len, e.tail).count() as u64 != cvs {
        return bad("chaining values of a part of a file", cvs);
    }
    Ok(())
}

fn at_most(what: &'static str, len: u64, max: u64) -> Result<(), WireError> {
    match len <= max {
        true => Ok(()),
        false => Err(WireError::TooLong { what, len, max }),
    }
}
