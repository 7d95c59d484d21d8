//! How a connection begins: who it is, and where control goes on.
//!
//! In: arrays of exactly the right size, read before anything else of a connection is believed.
//! Invariants: a proof is good for one stream, one epoch and one nonce; whoever takes joins takes each stream
//! id once, and control only under an epoch that is higher than all before, so that a join that was seen is
//! worth nothing. The session's secret itself never crosses a connection.

use std::fmt;

use super::WireError;
use super::codec::Reader;
use super::frame::{FrameHeader, HEADER_LEN, kind};
use crate::ids::{SessionEpoch, StreamId};

/// Length of a whole join frame, bytes.
pub const JOIN_LEN: usize = HEADER_LEN + 64;
/// Length of a whole answer to a join, bytes.
pub const JOINED_LEN: usize = HEADER_LEN + 1;
/// Length of a whole resume frame, bytes.
pub const RESUME_LEN: usize = HEADER_LEN + 8;

/// What the proof of a join is derived for, and for nothing else.
const PROOF_CONTEXT: &str = "haul 2026 join of a stream v1";

/// The first frame of the dialling end on every stream, control too: which stream of which session this is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Join {
    pub session: [u8; 16],
    /// Random for each join.
    pub nonce: [u8; 16],
    /// Made from the secret that both ends got through the trusted channel: [`Join::prove`].
    pub proof: [u8; 32],
    pub stream: StreamId,
    pub epoch: SessionEpoch,
}

// The proof must not get into logs.
impl fmt::Debug for Join {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Join {{ session: {:02x?}, stream: {}, epoch: {} }}", self.session, self.stream, self.epoch)
    }
}

impl Join {
    /// A join with its proof.
    pub fn prove(
        secret: &[u8; 32],
        session: [u8; 16],
        stream: StreamId,
        epoch: SessionEpoch,
        nonce: [u8; 16],
    ) -> Join {
        let proof = *proof(secret, &session, stream, epoch, &nonce).as_bytes();
        Join { session, nonce, proof, stream, epoch }
    }

    /// Was it made by one who knows `secret`? Takes the same time wherever they differ.
    pub fn is_proved_by(&self, secret: &[u8; 32]) -> bool {
        if haul_mutant::removed("join-proof") {
            return true;
        }
        // Hashes compare in constant time.
        proof(secret, &self.session, self.stream, self.epoch, &self.nonce) == blake3::Hash::from(self.proof)
    }

    /// The whole frame, header and body.
    pub fn encode(&self) -> [u8; JOIN_LEN] {
        let mut bytes = [0; JOIN_LEN];
        bytes[..HEADER_LEN].copy_from_slice(&start(kind::JOIN, JOIN_LEN, self.stream, self.epoch));
        bytes[HEADER_LEN..HEADER_LEN + 16].copy_from_slice(&self.session);
        bytes[HEADER_LEN + 16..HEADER_LEN + 32].copy_from_slice(&self.nonce);
        bytes[HEADER_LEN + 32..].copy_from_slice(&self.proof);
        bytes
    }

    /// Reads the whole frame.
    pub fn decode(bytes: &[u8; JOIN_LEN]) -> Result<Join, WireError> {
        let mut r = Reader::new(bytes);
        let header = fixed_header(&mut r, kind::JOIN)?;
        let session = r.array("join session")?;
        let nonce = r.array("join nonce")?;
        let proof = r.array("join proof")?;
        r.finish("join")?;
        Ok(Join { session, nonce, proof, stream: header.stream, epoch: header.epoch })
    }
}

fn proof(
    secret: &[u8; 32],
    session: &[u8; 16],
    stream: StreamId,
    epoch: SessionEpoch,
    nonce: &[u8; 16],
) -> blake3::Hash {
    let key = blake3::derive_key(PROOF_CONTEXT, secret);
    let mut hasher = blake3::Hasher::new_keyed(&key);
    hasher.update(session);
    hasher.update(&stream.0.to_le_bytes());
    hasher.update(&epoch.0.to_le_bytes());
    hasher.update(nonce);
    hasher.finalize()
}

/// The answer to a [`Join`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joined {
    Accepted,
    /// No such session here, or the proof is wrong.
    UnknownSession,
    /// The session goes on under a newer epoch.
    StaleEpoch,
    /// The stream came already, or there are as many as there may be.
    BadStream,
}

impl Joined {
    /// The whole frame, header and body, on the stream and with the epoch of the join.
    pub fn encode(self, stream: StreamId, epoch: SessionEpoch) -> [u8; JOINED_LEN] {
        let mut bytes = [0; JOINED_LEN];
        bytes[..HEADER_LEN].copy_from_slice(&start(kind::JOINED, JOINED_LEN, stream, epoch));
        bytes[HEADER_LEN] = match self {
            Joined::Accepted => 0,
            Joined::UnknownSession => 1,
            Joined::StaleEpoch => 2,
            Joined::BadStream => 3,
        };
        bytes
    }

    /// Reads the whole frame: the answer, and the stream and epoch that it is for.
    pub fn decode(bytes: &[u8; JOINED_LEN]) -> Result<(Joined, StreamId, SessionEpoch), WireError> {
        let mut r = Reader::new(bytes);
        let header = fixed_header(&mut r, kind::JOINED)?;
        let answer = match r.u8("joined answer")? {
            0 => Joined::Accepted,
            1 => Joined::UnknownSession,
            2 => Joined::StaleEpoch,
            3 => Joined::BadStream,
            other => return Err(WireError::BadValue { what: "joined answer", value: other.into() }),
        };
        r.finish("joined")?;
        Ok((answer, header.stream, header.epoch))
    }
}

/// The first frame of both ends on a control stream that was joined again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumeFrom {
    pub epoch: SessionEpoch,
    /// The number of the last control frame that came, under whatever epoch: what follows it is sent again.
    pub received: u64,
}

impl ResumeFrom {
    /// The whole frame, header and body.
    pub fn encode(&self) -> [u8; RESUME_LEN] {
        let mut bytes = [0; RESUME_LEN];
        bytes[..HEADER_LEN].copy_from_slice(&start(kind::RESUME, RESUME_LEN, StreamId(0), self.epoch));
        bytes[HEADER_LEN..].copy_from_slice(&self.received.to_le_bytes());
        bytes
    }

    /// Reads the whole frame.
    pub fn decode(bytes: &[u8; RESUME_LEN]) -> Result<ResumeFrom, WireError> {
        let mut r = Reader::new(bytes);
        let header = fixed_header(&mut r, kind::RESUME)?;
        if header.stream != StreamId(0) {
            return Err(WireError::BadValue { what: "stream of a resume", value: header.stream.0.into() });
        }
        let received = r.u64("resume: received")?;
        r.finish("resume")?;
        Ok(ResumeFrom { epoch: header.epoch, received })
    }
}

/// The header of a frame that begins a connection.
fn start(kind: u8, len: usize, stream: StreamId, epoch: SessionEpoch) -> [u8; HEADER_LEN] {
    let len = (len - HEADER_LEN) as u32;
    FrameHeader { len, kind, flags: 0, stream, epoch, seq: 0 }.encode()
}

/// The header of a frame of fixed kind and sequence 0.
fn fixed_header(r: &mut Reader<'_>, kind: u8) -> Result<FrameHeader, WireError> {
    let header = FrameHeader::decode(&r.array("frame header")?)?;
    if header.kind != kind {
        return Err(WireError::BadValue { what: "kind of a frame at the start", value: header.kind.into() });
    }
    if header.seq != 0 {
        return Err(WireError::BadValue { what: "sequence of a frame at the start", value: header.seq });
    }
    Ok(header)
}
