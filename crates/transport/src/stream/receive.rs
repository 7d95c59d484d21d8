//! A data stream at the sink: one thread that reads frames and holds them against their digests.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use haul_core::ids::{SessionEpoch, StreamId};
use haul_core::stage::Stage;
use haul_core::wire::{
    DataEntry, DataHeader, DataPreamble, FrameHeader, PREAMBLE_LEN, decode_data_descriptor, kind,
};

use super::{
    CUT_OFF, Lap, bad_frame, check_seq, guarded, read_exact, read_failed, read_header, read_some, spawn,
};
use crate::frames::{CODE_LEN, FrameKeys};
use crate::memory::Hands;
use crate::{Link, Post, TransportError};
use haul_base::buffer::{Buffer, Exhausted, Pool};
use haul_base::digest::{self, RangeHasher};
use haul_base::meter::Meter;

/// An object is hashed in multiples of this while it comes, bytes: few enough to be in the cache still, and
/// whole subtrees.
const SLICE_LEN: usize = 64 * 1024;

/// What happens on a data stream at the sink.
#[derive(Debug)]
pub enum RecvEvent {
    /// A frame arrived. `good` says for each entry whether its payload fits its digest; `buffer` holds the
    /// payload of all entries, none if they have none.
    Data { stream: StreamId, seq: u64, header: DataHeader, buffer: Option<Buffer>, good: Vec<bool> },
    /// The stream is over after `frames` frames; `error` is `None` when the peer or this end closed it in
    /// good order. The last event.
    Lost { stream: StreamId, frames: u64, error: Option<String> },
}

/// A data stream at the sink. Dropping it cuts the stream.
pub struct DataReceiver {
    shared: Arc<RecvShared>,
}

struct RecvShared {
    /// Frames carry codes.
    keys: Option<FrameKeys>,
    stream: StreamId,
    epoch: SessionEpoch,
    pool: Pool,
    meter: Arc<Meter>,
    post: Post<RecvEvent>,
    closer: Arc<dyn Fn() + Send + Sync>,
    /// This end closed.
    over: AtomicBool,
    frames: AtomicU64,
}

impl DataReceiver {
    /// Receives data frames over `link` on a thread of its own, into buffers of `pool`.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn spawn(
        link: Link,
        stream: StreamId,
        epoch: SessionEpoch,
        pool: Pool,
        meter: Arc<Meter>,
        post: Post<RecvEvent>,
    ) -> Result<DataReceiver, TransportError> {
        let Link { reader, writer, closer, guard, hands, .. } = link;
        let shared = Arc::new(RecvShared {
            keys: guard.keys,
            stream,
            epoch,
            pool,
            meter,
            post,
            closer,
            over: AtomicBool::new(false),
            frames: AtomicU64::new(0),
        });
        let receiver = DataReceiver { shared: shared.clone() };
        spawn(format!("haul-recv-{stream}"), move || {
            let error = guarded(|| receive_frames((reader, hands), &shared)).err();
            // Nothing was said in this direction; the half was kept open as long as the stream.
            drop(writer);
            (shared.closer)();
            let error = if shared.over.load(Ordering::Acquire) { None } else { error };
            let frames = shared.frames.load(Ordering::Relaxed);
            (shared.post)(RecvEvent::Lost { stream, frames, error });
        })?;
        Ok(receiver)
    }

    /// Ends the stream at once; `Lost` without an error follows.
    pub fn close(&self) {
        self.shared.over.store(true, Ordering::Release);
        (self.shared.closer)();
    }
}

impl Drop for DataReceiver {
    fn drop(&mut self) {
        self.close();
    }
}

fn receive_frames(
    (mut reader, hands): (Box<dyn Read + Send>, Option<Hands>),
    shared: &RecvShared,
) -> Result<(), String> {
    let mut descriptor = Vec::new();
    let mut lap = Lap::start();
    loop {
        let Some(header) = read_header(&mut reader)? else {
            return match &shared.keys {
                // Whoever cuts a connection can make it look like an end; the frame that says so cannot be
                // made.
                Some(_) if !haul_mutant::removed("last-frame") => Err(CUT_OFF.into()),
                _ => Ok(()),
            };
        };
        if let (kind::DATA_END, Some(keys)) = (header.kind, &shared.keys) {
            check_code(keys, &mut reader, &[&header.encode()])?;
            check_place(&header, shared)?;
            return Ok(());
        }
        if header.kind != kind::DATA {
            return Err(misplaced(&header, shared));
        }
        let mut preamble_bytes = [0; PREAMBLE_LEN];
        read_exact(&mut reader, &mut preamble_bytes)?;
        let preamble = DataPreamble::decode(&header, &preamble_bytes).map_err(bad_frame)?;
        // Bounded by the decoder (DESCRIPTOR_LEN_MAX).
        descriptor.resize(preamble.descriptor_len as usize, 0);
        read_exact(&mut reader, &mut descriptor)?;
        if let Some(keys) = &shared.keys {
            // One header has one encoding, so that this is what came.
            check_code(keys, &mut reader, &[&header.encode(), &preamble_bytes, &descriptor])?;
        }
        let seq = check_place(&header, shared)?;
        let header = decode_data_descriptor(&preamble, &descriptor).map_err(bad_frame)?;
        let payload_len = preamble.payload_len as usize;
        let over_grant = |error: Exhausted| format!("the peer sent more than it was granted: {error}");
        let (buffer, good) = if payload_len == 0 {
            (None, check_payload(&header, &[]))
        } else if let Some(hands) = &hands {
            let buffer = hands.take().map_err(|error| read_failed(&error))?;
            if buffer.as_slice().len() != payload_len {
                let len = buffer.as_slice().len();
                return Err(format!("the peer sent a bad frame: {len} bytes instead of {payload_len}"));
            }
            let buffer = shared.pool.adopt(buffer).map_err(over_grant)?;
            let good = check_payload(&header, buffer.as_slice());
            (Some(buffer), good)
        } else {
            let mut buffer = shared.pool.take(payload_len).map_err(over_grant)?;
            let payload = buffer.as_mut_slice();
            let good = match &header.entries[..] {
                [object] if payload_len > SLICE_LEN => vec![read_object(&mut reader, object, payload)?],
                _ => {
                    read_exact(&mut reader, payload)?;
                    check_payload(&header, payload)
                }
            };
            (Some(buffer), good)
        };
        let (wall, cpu) = lap.lap();
        shared.meter.add_busy(Stage::SinkHost, cpu);
        shared.meter.add_idle(Stage::SinkHost, wall - cpu);
        shared.frames.store(seq, Ordering::Relaxed);
        (shared.post)(RecvEvent::Data { stream: shared.stream, seq, header, buffer, good });
    }
}

/// Reads an object and holds it against its digest while it comes: what came is hashed before the next falls
/// on it in the processor's cache.
fn read_object(reader: &mut impl Read, object: &DataEntry, payload: &mut [u8]) -> Result<bool, String> {
    let mut hasher = match object.root {
        true => RangeHasher::whole(object.digest),
        false => RangeHasher::part(object.digest, object.offset, payload.len() as u64, object.tail),
    };
    let (mut read, mut hashed) = (0, 0);
    while read < payload.len() {
        read += read_some(reader, &mut payload[read..])?;
        let whole = if read == payload.len() { read } else { read / SLICE_LEN * SLICE_LEN };
        hasher.update(&payload[hashed..whole]);
        hashed = whole;
    }
    Ok(object.cvs == hasher.finish() || haul_mutant::removed("object-digest"))
}

/// Reads the code behind a head and holds it against the head's parts.
fn check_code(keys: &FrameKeys, reader: &mut impl Read, head: &[&[u8]]) -> Result<(), String> {
    let mut code = [0; CODE_LEN];
    read_exact(reader, &mut code)?;
    match keys.opens(head, &code) {
        true => Ok(()),
        false => Err("a data frame was damaged or forged on the way: its code does not fit".into()),
    }
}

/// The frame is the next of this stream; tells its number.
fn check_place(header: &FrameHeader, shared: &RecvShared) -> Result<u64, String> {
    if haul_mutant::removed("frame-place") {
        return Ok(header.seq);
    }
    if header.stream != shared.stream || header.epoch != shared.epoch {
        return Err(misplaced(header, shared));
    }
    let seq = shared.frames.load(Ordering::Relaxed) + 1;
    check_seq(header.seq, seq)?;
    Ok(seq)
}

fn misplaced(header: &FrameHeader, shared: &RecvShared) -> String {
    format!(
        "the peer sent a bad frame: kind {:#04x}, stream {}, epoch {} on data stream {} of epoch {}",
        header.kind, header.stream, header.epoch, shared.stream, shared.epoch
    )
}

/// Holds each entry's part of the payload against its digest.
fn check_payload(header: &DataHeader, payload: &[u8]) -> Vec<bool> {
    let mut rest = payload;
    let mut check = |entry: &DataEntry| {
        let len = if entry.hole { 0 } else { entry.len as usize };
        let (data, behind) = rest.split_at_checked(len)?;
        rest = behind;
        Some(match entry.root {
            true => entry.cvs == [digest::root(entry.digest, data)],
            false => entry.cvs == digest::chaining_values(entry.digest, entry.offset, data, entry.tail),
        })
    };
    // Entries and payload add up, the decoder sees to that; an entry without payload would just be bad.
    let removed = haul_mutant::removed("object-digest");
    header.entries.iter().map(|entry| check(entry).unwrap_or(false) || removed).collect()
}
