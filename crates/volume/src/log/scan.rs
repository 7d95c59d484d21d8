//! What a log has that is opened: its records, and where it is torn.
//!
//! In: the segments' bytes. Out: the records up to the first that is not whole, and where that is.
//! Invariant: what is not whole and was synced, as a later header says, is an error and nothing is cut.
//! What nothing later tells of cannot be told from what a power cut tore.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};

use haul_core::volume::gather::{Record, Seq};
use rustix::fs::Advice;
use rustix::io::{Errno, retry_on_intr};

use super::frame::{Head, Key, frame, synced_in};
use super::{Held, LogError, Segment, failed, segment_name};
use crate::disk::{Dir, Extent, SyncCall, read_at};

/// Longer is no segment of ours.
const SEGMENT_BYTES_MAX: u64 = u32::MAX as u64;

pub(super) struct Scan {
    pub(super) records: Vec<(Seq, Record<Held>)>,
    pub(super) segments: Vec<Segment>,
    pub(super) next: u64,
    /// Where the last record ends in the last segment.
    pub(super) end: u64,
    /// Bytes of all segments.
    pub(super) bytes: u64,
    /// The last segment is cut there.
    pub(super) torn: Option<u64>,
    /// Segments behind the torn one.
    pub(super) removes: Vec<OsString>,
}

/// The segments that there are, by their first records.
pub(super) fn segments_in(dir: &Dir) -> Result<Vec<u64>, LogError> {
    let names = dir.names().map_err(failed("read", dir.path()))?;
    let mut found: Vec<u64> = names
        .iter()
        .filter_map(|name| {
            let first = u64::from_str_radix(name.to_str()?.strip_suffix(".log")?, 16).ok()?;
            (segment_name(first) == name.to_str()?).then_some(first)
        })
        .collect();
    found.sort_unstable();
    Ok(found)
}

/// Reads the segments `found`, the first of which is the head's.
pub(super) fn scan(
    dir: &Dir,
    head: &Head,
    found: &[u64],
    key: &Key,
    sync: &SyncCall,
) -> Result<Scan, LogError> {
    let mut scan = Scan {
        records: Vec::new(),
        segments: Vec::new(),
        next: head.first,
        end: head.offset,
        bytes: 0,
        torn: None,
        removes: Vec::new(),
    };
    for (index, first) in found.iter().enumerate() {
        let (fd, bytes) = read_segment(dir, *first, sync)?;
        let mut at = if index == 0 { head.offset as usize } else { 0 };
        let base = scan.next;
        let mut offsets = Vec::new();
        scan.end = at as u64;
        while let Some(header) = bytes.get(at..).and_then(|rest| frame(rest, key)) {
            if header.seq != scan.next {
                break;
            }
            if let Some(record) = header.record() {
                scan.records.push((Seq(header.seq), record));
                offsets.push(at as u32);
                scan.next += 1;
                scan.end = at as u64 + header.frame_len();
            }
            at += header.frame_len() as usize;
        }
        scan.bytes += scan.end;
        scan.segments.push(Segment::new(*first, base, fd, offsets, scan.end));
        let is_short = at > bytes.len();
        let later = &found[index + 1..];
        // What stands behind the last record of a segment is the rest of one that began the next.
        if later.first() == Some(&scan.next) && !is_short {
            continue;
        }
        if at == bytes.len() && later.is_empty() {
            break;
        }
        // All before the head's record was synced, or it would not be the first.
        let mut synced = head.first.max(bytes.get(at..).map_or(0, |rest| synced_in(rest, key)));
        for first in later {
            synced = synced.max(synced_in(&read_segment(dir, *first, sync)?.1, key));
        }
        if synced > scan.next || is_short {
            let path = dir.path_of(segment_name(*first));
            return Err(LogError::Lost { path, offset: at as u64, seq: scan.next, synced });
        }
        scan.torn = Some(at as u64);
        scan.removes = later.iter().map(|first| segment_name(*first).into()).collect();
        break;
    }
    Ok(scan)
}

/// A segment, as it is on media: pages that an earlier life could not write back are clean, and still in
/// memory.
fn read_segment(dir: &Dir, first: u64, sync: &SyncCall) -> Result<(OwnedFd, Vec<u8>), LogError> {
    let name = segment_name(first);
    let path = dir.path_of(&name);
    let read = || {
        let fd = dir.file(&name)?;
        sync(fd.as_fd(), Extent::All)?;
        retry_on_intr(|| rustix::fs::fadvise(&fd, 0, None, Advice::DontNeed))?;
        let len = rustix::fs::fstat(&fd)?.st_size as u64;
        if len > SEGMENT_BYTES_MAX {
            return Err(Errno::FBIG);
        }
        let mut bytes = vec![0; len as usize];
        match read_at(&fd, &mut bytes, 0)? == bytes.len() {
            true => Ok((fd, bytes)),
            false => Err(Errno::IO),
        }
    };
    read().map_err(failed("read", path))
}
