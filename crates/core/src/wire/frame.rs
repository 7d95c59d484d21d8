//! Byte layout of the fixed parts: frame header, subframe header. Joins are in `join`.
//!
//! In: arrays of exactly the right size, so that a reader can take fixed bytes before it trusts a length.
//! Invariant: a decoded header's `len` is within the limit of its kind.

use super::codec::{Reader, Writer};
use super::{DESCRIPTOR_LEN_MAX, JOIN_LEN, JOINED_LEN, PREAMBLE_LEN, RESUME_LEN, WireError};
use crate::ids::{SessionEpoch, StreamId};

/// Length of a frame header, bytes.
pub const HEADER_LEN: usize = 24;
/// Shortest and longest object, bytes. An object size is a power of two between them.
pub const OBJECT_LEN_MIN: u32 = 64 * 1024;
pub const OBJECT_LEN_MAX: u32 = 64 * 1024 * 1024;
/// Longest body of a data frame: preamble, descriptor, payload.
pub const FRAME_LEN_MAX: usize = PREAMBLE_LEN + DESCRIPTOR_LEN_MAX + OBJECT_LEN_MAX as usize;
/// Longest body of any other frame.
pub const CONTROL_LEN_MAX: usize = 1024 * 1024;
/// Longest file: the largest offset that file systems can address.
pub const FILE_LEN_MAX: u64 = i64::MAX as u64;

/// A power of two from [`OBJECT_LEN_MIN`] to [`OBJECT_LEN_MAX`].
pub fn object_size_is_legal(size: u32) -> bool {
    size.is_power_of_two() && (OBJECT_LEN_MIN..=OBJECT_LEN_MAX).contains(&size)
}

/// Frame kinds. Numbers are never used twice.
pub mod kind {
    pub const JOIN: u8 = 0x01;
    pub const JOINED: u8 = 0x02;
    pub const DATA: u8 = 0x03;
    /// The last frame of a data stream that is authenticated and not encrypted.
    pub const DATA_END: u8 = 0x04;
    pub const HELLO: u8 = 0x10;
    pub const SOURCES: u8 = 0x11;
    pub const DESTINATION: u8 = 0x12;
    pub const ANNOUNCE: u8 = 0x13;
    pub const DIR_END: u8 = 0x14;
    pub const STATE: u8 = 0x15;
    pub const SEALED: u8 = 0x16;
    pub const WITHDRAW: u8 = 0x17;
    pub const END: u8 = 0x18;
    pub const GRANT: u8 = 0x19;
    pub const WRITTEN: u8 = 0x1a;
    pub const DURABLE: u8 = 0x1b;
    pub const DONE: u8 = 0x1c;
    pub const RESEND: u8 = 0x1d;
    pub const STREAM_CLOSED: u8 = 0x1e;
    pub const STOP: u8 = 0x1f;
    pub const STOPPED: u8 = 0x20;
    pub const COMPLETE: u8 = 0x21;
    pub const REPORT: u8 = 0x22;
    pub const ABORT: u8 = 0x23;
    pub const PING: u8 = 0x24;
    pub const PONG: u8 = 0x25;
    pub const TROUBLE: u8 = 0x26;
    pub const HOLES: u8 = 0x27;
    pub const RECEIVED: u8 = 0x28;
    pub const STREAMS: u8 = 0x29;
    pub const RESUME: u8 = 0x2a;
    pub const FILE_LAYOUT: u8 = 0x2b;
    pub const SOURCE_ROOTS: u8 = 0x2c;
    pub const NOT_HELD: u8 = 0x2d;
    pub const METADATA: u8 = 0x2e;
    // 0x30 to 0x3f are for what several ends of one job say to each other, 0x40 to 0x6f for volumes.
    /// First of the kinds that a receiver who does not know them reads and drops.
    pub const IGNORABLE: u8 = 0x80;
    pub const TARGET_HEALTH: u8 = 0x80;
    pub const NOTICE: u8 = 0x81;
    pub const FILE_TARGETS: u8 = 0x82;
    pub const OBJECT_LEN: u8 = 0x83;
    pub const PLACED: u8 = 0x84;
    pub const LIVE_SETTINGS: u8 = 0x88;
    pub const TRIAL: u8 = 0x89;
    pub const TARGET_TABLE: u8 = 0x8a;
    pub const ASK_TABLE: u8 = 0x8b;
    pub const UNWELL_TARGETS: u8 = 0x8c;
    pub const CHOICES: u8 = 0x8d;
    pub const PROCESSORS: u8 = 0x8e;
    pub const TIME_GRAIN: u8 = 0x8f;
    pub const OWNER_NAMES: u8 = 0x90;
}

/// Kinds of the frames of volumes; see [`volume::wire`](crate::volume::wire). 0x40 to 0x4f are for the
/// servers, 0x50 to 0x5f for the catalog, 0x60 to 0x6f for tickets, 0x70 to 0x77 for placements that
/// applications give.
pub mod volume_kind {
    pub const JOIN: u8 = 0x40;
    pub const STORAGE_JOINED: u8 = 0x41;
    pub const GATHERER_JOINED: u8 = 0x42;
    pub const REFUSED: u8 = 0x43;
    pub const PING: u8 = 0x44;
    pub const PONG: u8 = 0x45;
    pub const GATHER: u8 = 0x46;
    pub const GATHERED: u8 = 0x47;
    pub const RECALL: u8 = 0x48;
    pub const STORE: u8 = 0x49;
    pub const STORED: u8 = 0x4a;
    pub const VISIT: u8 = 0x4b;
    pub const VISITED: u8 = 0x4c;
    pub const COSTS: u8 = 0x4d;
    /// The last that is known to this version.
    pub const LAST: u8 = COSTS;
    pub const CATALOG_JOIN: u8 = 0x50;
    pub const CATALOG_JOINED: u8 = 0x51;
    pub const CATALOG_ASK: u8 = 0x52;
    pub const CATALOG_ANSWER: u8 = 0x53;
    /// The last of the catalog's that is known to this version.
    pub const CATALOG_LAST: u8 = CATALOG_ANSWER;
    pub const CHECK: u8 = 0x54;
    pub const FOUND: u8 = 0x55;
    /// The last of those who look after a volume.
    pub const CHECK_LAST: u8 = FOUND;
    pub const TICKET: u8 = 0x60;
    pub const TICKET_WANTED: u8 = 0x61;
    pub const TICKETS: u8 = 0x62;
    /// The last of tickets that is known to this version.
    pub const TICKETS_LAST: u8 = TICKETS;
    pub const LEARN: u8 = 0x70;
    pub const LEARNT: u8 = 0x71;
}

/// What a frame kind of the wire is to this version.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KindClass {
    Join,
    Joined,
    Resume,
    Data,
    DataEnd,
    Control,
    Ignorable,
    /// Said over a connection of a volume, and nowhere else.
    Volume,
    Unknown,
}

fn class_of(kind: u8) -> KindClass {
    match kind {
        kind::JOIN => KindClass::Join,
        kind::JOINED => KindClass::Joined,
        kind::RESUME => KindClass::Resume,
        kind::DATA => KindClass::Data,
        kind::DATA_END => KindClass::DataEnd,
        kind::HELLO..=kind::STREAMS | kind::FILE_LAYOUT..=kind::METADATA => KindClass::Control,
        volume_kind::JOIN..=volume_kind::LAST
        | volume_kind::CATALOG_JOIN..=volume_kind::CATALOG_LAST
        | volume_kind::CHECK..=volume_kind::CHECK_LAST
        | volume_kind::TICKET..=volume_kind::TICKETS_LAST
        | volume_kind::LEARN..=volume_kind::LEARNT => KindClass::Volume,
        kind::IGNORABLE.. => KindClass::Ignorable,
        _ => KindClass::Unknown,
    }
}

/// The first bytes of every frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Bytes after the header.
    pub len: u32,
    /// One of [`kind`].
    pub kind: u8,
    /// No bit has a meaning in v1: zero.
    pub flags: u8,
    /// The stream that carries the frame; 0 is control.
    pub stream: StreamId,
    /// Frames of an older epoch are dropped before they act.
    pub epoch: SessionEpoch,
    /// Counts the frames of one direction of a stream; the join is 0. On control it goes on over a re-join.
    pub seq: u64,
}

impl FrameHeader {
    /// The bytes of this header.
    ///
    /// # Panics
    /// If the peer would refuse it: a length over the limit of its kind, an unknown kind, flags.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        if let Err(error) = self.check() {
            panic!("own frame header is not legal: {error}");
        }
        let mut bytes = [0; HEADER_LEN];
        bytes[..4].copy_from_slice(&self.len.to_le_bytes());
        bytes[4] = self.kind;
        bytes[5] = self.flags;
        bytes[6..8].copy_from_slice(&self.stream.0.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.epoch.0.to_le_bytes());
        // 12..16: the sender's host and two reserved bytes, where both ends know SENDER_HOST, which none does
        // yet.
        bytes[16..].copy_from_slice(&self.seq.to_le_bytes());
        bytes
    }

    /// Reads a header; its length is checked against the limit of its kind.
    ///
    /// Edge: an unknown kind that may be ignored is `Ok`; read `len` bytes and give them to
    /// [`decode_message`](super::decode_message), or drop them.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<FrameHeader, WireError> {
        let header = FrameHeader::decode_any(bytes)?;
        match header.is_of_volume() {
            true => Err(WireError::UnknownKind(header.kind)),
            false => Ok(header),
        }
    }

    /// Reads a header of a volume's connection: of one of its messages, or of data.
    pub fn decode_of_volume(bytes: &[u8; HEADER_LEN]) -> Result<FrameHeader, WireError> {
        let header = FrameHeader::decode_any(bytes)?;
        match header.is_of_volume() || header.kind == kind::DATA {
            true => Ok(header),
            false => Err(WireError::UnknownKind(header.kind)),
        }
    }

    fn decode_any(bytes: &[u8; HEADER_LEN]) -> Result<FrameHeader, WireError> {
        let mut r = Reader::new(bytes);
        let len = r.u32("frame length")?;
        let kind = r.u8("frame kind")?;
        let flags = r.u8("frame flags")?;
        let stream = StreamId(r.u16("frame stream")?);
        let epoch = SessionEpoch(r.u32("frame epoch")?);
        r.reserved::<4>("frame header, reserved bytes")?;
        let seq = r.u64("frame sequence")?;
        let header = FrameHeader { len, kind, flags, stream, epoch, seq };
        header.check()?;
        Ok(header)
    }

    /// A known or ignorable kind other than join, joined, resume and data: the body is for
    /// [`decode_message`](super::decode_message).
    pub fn is_message(&self) -> bool {
        matches!(class_of(self.kind), KindClass::Control | KindClass::Ignorable)
    }

    /// It is of a volume: the body is for [`decode`](crate::volume::wire::decode).
    pub fn is_of_volume(&self) -> bool {
        class_of(self.kind) == KindClass::Volume
    }

    fn check(&self) -> Result<(), WireError> {
        let len = u64::from(self.len);
        let exact = |what, want: usize| match len == want as u64 {
            true => Ok(()),
            false => Err(WireError::BadValue { what, value: len }),
        };
        let at_most = |what, max: usize| match len <= max as u64 {
            true => Ok(()),
            false => Err(WireError::TooLong { what, len, max: max as u64 }),
        };
        match class_of(self.kind) {
            KindClass::Join => exact("join length", JOIN_LEN - HEADER_LEN)?,
            KindClass::Joined => exact("joined length", JOINED_LEN - HEADER_LEN)?,
            KindClass::Resume => exact("resume length", RESUME_LEN - HEADER_LEN)?,
            KindClass::Data => at_most("data frame length", FRAME_LEN_MAX)?,
            KindClass::DataEnd => exact("length of the end of data", 0)?,
            KindClass::Control | KindClass::Ignorable | KindClass::Volume => {
                at_most("control frame length", CONTROL_LEN_MAX)?
            }
            KindClass::Unknown => return Err(WireError::UnknownKind(self.kind)),
        }
        if self.flags != 0 {
            return Err(WireError::BadValue { what: "frame flags", value: self.flags.into() });
        }
        if self.kind == kind::DATA && self.stream == StreamId(0) {
            return Err(WireError::BadValue { what: "stream of a data frame", value: 0 });
        }
        Ok(())
    }
}

/// Length of a subframe header, bytes.
pub const SUBHEADER_LEN: usize = 8;
/// Longest body of a subframe: a control subframe waits for at most one of these.
pub const SUBFRAME_LEN_MAX: u32 = 64 * 1024;

/// The head of a subframe: how several streams share the one ssh connection. `channel` is the stream's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubHeader {
    pub channel: u16,
    /// Bytes after this header. 0: the sender says nothing more on this channel.
    pub len: u32,
}

impl SubHeader {
    /// The bytes of this header.
    ///
    /// # Panics
    /// If `len` is over [`SUBFRAME_LEN_MAX`].
    pub fn encode(&self) -> [u8; SUBHEADER_LEN] {
        assert!(self.len <= SUBFRAME_LEN_MAX, "own subframe of {} bytes", self.len);
        let mut bytes = [0; SUBHEADER_LEN];
        bytes[..2].copy_from_slice(&self.channel.to_le_bytes());
        bytes[4..].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// Reads a header.
    pub fn decode(bytes: &[u8; SUBHEADER_LEN]) -> Result<SubHeader, WireError> {
        let mut r = Reader::new(bytes);
        let channel = r.u16("subframe channel")?;
        r.reserved::<2>("subframe header, reserved bytes")?;
        let len = r.u32("subframe length")?;
        if len > SUBFRAME_LEN_MAX {
            return Err(WireError::TooLong {
                what: "subframe length",
                len: len.into(),
                max: SUBFRAME_LEN_MAX.into(),
            });
        }
        Ok(SubHeader { channel, len })
    }
}

/// Header and body of a frame of `kind`.
pub(super) fn frame(kind: u8, stream: StreamId, epoch: SessionEpoch, seq: u64, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(body.len()).expect("bodies are bounded");
    let header = FrameHeader { len, kind, flags: 0, stream, epoch, seq }.encode();
    let mut out = Vec::with_capacity(HEADER_LEN + body.len());
    let mut w = Writer::new(&mut out);
    w.raw(&header);
    w.raw(body);
    out
}
