//! The two session machines and what they ask of the driver.
//!
//! [`source::Source`] and [`sink::Sink`] take events by `handle_*` and yield actions by `poll_action`.
//! The operations that they ask of storage are in [`op`]. [`stream_dialler`] decides when lost streams are
//! dialled again.

pub mod op;
pub mod sink;
pub mod source;
pub mod stream_dialler;

use crate::extents::ExtentMap;
use crate::wire::{Failure, FailureKind};

/// How an entry ended, for the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    Copied,
    /// It was there already.
    Unchanged,
    /// `--no-clobber` or `--update` forbade it.
    Skipped,
    Failed(Failure),
}

/// How a directory or a link ended that changed this.
pub fn other_end(change: crate::change::Change) -> Ended {
    if change.is_none() { Ended::Unchanged } else { Ended::Copied }
}

/// How a link, or a FIFO, socket or device, ended that changed this: one that is what it should be is no
/// copy, whatever of its metadata was set, as a file is none whose mode alone was.
pub fn link_end(change: crate::change::Change) -> Ended {
    use crate::change::Change;
    let is_made = change.has(Change::NEW.with(Change::TARGET, true));
    if is_made { Ended::Copied } else { Ended::Unchanged }
}

/// How a session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// Every entry ended; what could be copied is published (and on media, if durable).
    Complete,
    /// Stopped in good order; the journal keeps what is durable.
    Stopped,
    /// The session cannot go on; the journal keeps what is durable.
    Failed(Failure),
}

/// The way to the other end is gone.
fn lost(text: &str) -> Failure {
    Failure { kind: FailureKind::Network, errno: 0, text: text.into() }
}

/// The other end did not do what the protocol says.
pub(crate) fn protocol(text: &str) -> Failure {
    Failure { kind: FailureKind::Protocol, errno: 0, text: text.into() }
}

/// How often objects of one file are asked for again at most: on average every object once, and a small
/// file some times more. Beyond that something is broken that no repetition mends.
pub fn resends_max(size: u64, map: Option<&ExtentMap>, object_size: u32) -> u64 {
    let (data, extents) = map.map_or((size, 0), |map| (map.data_len(), map.extents().len() as u64));
    16 + extents + data.div_ceil(u64::from(object_size.max(1)))
}

/// How often a file is begun anew at most that the store lost, with all that had come of it.
const LOST_MAX: u8 = 16;

/// What is read and sent at once and holds the byte at `at`, as offset and length: an object; of a sparse
/// file the piece of it that lies in one data extent. `None` in a hole and behind the end.
fn piece_at(size: u64, map: Option<&ExtentMap>, object_size: u32, at: u64) -> Option<(u64, u64)> {
    let object_size = u64::from(object_size);
    if at >= size.max(1) {
        return None;
    }
    let mut start = at - at % object_size;
    let mut end = start.saturating_add(object_size).min(size);
    if let Some(map) = map {
        let extent = map.at(at)?;
        (start, end) = (start.max(extent.offset), end.min(extent.end()));
    }
    Some((start, end - start))
}

/// Entries announced and not yet ended, at most.
pub const ENTRIES_MAX: u32 = 32 * 1024;
/// Files up to this size travel whole in a bundle, bytes.
pub const SMALL_LEN_MAX: u64 = 256 * 1024;
/// Payload of a bundle, bytes, at most.
pub const BUNDLE_LEN_MAX: u64 = 1024 * 1024;
