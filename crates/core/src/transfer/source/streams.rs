//! What is on its way on each data stream, until the sink says that it took it.
//!
//! Invariant: a frame's buffer is counted as used until the network took it, and its credit until the sink
//! took it or said that it never will.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU16;

use crate::ids::{FileId, Generation, StreamId};
use crate::wire::DataHeader;

/// Frames given to one stream and not yet taken by the network, at most.
pub const QUEUED_MAX: u32 = 2;

struct InFlight {
    seq: u64,
    /// Credit.
    cost: u64,
    /// What its buffer counts.
    held: u64,
    sent: bool,
    objects: Vec<(FileId, Generation, u64)>,
}

#[derive(Default)]
struct Stream {
    next_seq: u64,
    queued: u32,
    received: u64,
    in_flight: VecDeque<InFlight>,
    lost: bool,
    settled: bool,
}

/// The data streams of a session.
#[derive(Default)]
pub(super) struct Streams {
    streams: BTreeMap<StreamId, Stream>,
    /// Streams that get frames, at most; `None`: all.
    wanted: Option<NonZeroU16>,
}

impl Streams {
    pub(super) fn open(&mut self, id: StreamId) {
        self.streams.insert(id, Stream::default());
    }

    /// Streams that get frames, at most; 0: all.
    pub(super) fn set_wanted(&mut self, count: u16) {
        self.wanted = NonZeroU16::new(count);
    }

    /// The stream with the fewest queued frames, if any of those that are wanted has room.
    pub(super) fn free(&self) -> Option<StreamId> {
        let wanted = self.wanted.map_or(usize::MAX, |count| usize::from(count.get()));
        let live = self.streams.iter().filter(|(_, s)| !s.lost).take(wanted);
        let free = live.filter(|(_, s)| s.queued < QUEUED_MAX);
        free.min_by_key(|(_, s)| s.queued).map(|(id, _)| *id)
    }

    /// A frame goes to a stream.
    pub(super) fn push(&mut self, id: StreamId, header: &DataHeader, cost: u64, held: u64) {
        let stream = self.streams.get_mut(&id).expect("free() named it");
        stream.next_seq += 1;
        stream.queued += 1;
        let objects = header.entries.iter().map(|e| (e.id, e.generation, e.offset)).collect();
        stream.in_flight.push_back(InFlight { seq: stream.next_seq, cost, held, sent: false, objects });
    }

    /// The network took a frame; returns what its buffer counted.
    pub(super) fn sent(&mut self, id: StreamId, seq: u64) -> u64 {
        let Some(stream) = self.streams.get_mut(&id).filter(|s| !s.settled) else { return 0 };
        let Some(frame) = stream.in_flight.iter_mut().find(|f| f.seq == seq && !f.sent) else { return 0 };
        frame.sent = true;
        stream.queued -= 1;
        let held = frame.held;
        stream.trim();
        held
    }

    /// The sink took `count` frames from this stream in all.
    pub(super) fn received(&mut self, id: StreamId, count: u64) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.received = stream.received.max(count.min(stream.next_seq));
            stream.trim();
        }
    }

    /// The stream is gone; true the first time.
    pub(super) fn lose(&mut self, id: StreamId) -> bool {
        match self.streams.get_mut(&id) {
            Some(stream) if !stream.lost => {
                stream.lost = true;
                true
            }
            _ => false,
        }
    }

    /// The sink took `frames` from a lost stream and will take no more. Returns the objects that it never
    /// got, and what their buffers and their credit counted.
    pub(super) fn settle(&mut self, id: StreamId, frames: u64) -> (Vec<(FileId, Generation, u64)>, u64, u64) {
        let Some(stream) = self.streams.get_mut(&id).filter(|s| s.lost && !s.settled) else {
            return (Vec::new(), 0, 0);
        };
        stream.settled = true;
        let (mut objects, mut buffers, mut credit) = (Vec::new(), 0, 0);
        for frame in std::mem::take(&mut stream.in_flight) {
            if !frame.sent {
                buffers += frame.held;
            }
            if frame.seq > frames {
                credit += frame.cost;
                objects.extend(frame.objects);
            }
        }
        (objects, buffers, credit)
    }

    /// There were streams, and none is left.
    pub(super) fn all_lost(&self) -> bool {
        !self.streams.is_empty() && self.streams.values().all(|s| s.lost)
    }
}

impl Stream {
    fn trim(&mut self) {
        while self.in_flight.front().is_some_and(|f| f.sent && f.seq <= self.received) {
            self.in_flight.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: with fewer streams wanted only the first get frames, each up to its queue; a lost one makes room for the
    /// next; with none named all do.
    #[test]
    fn only_wanted_streams_get_frames() {
        let mut streams = Streams::default();
        (1..=3).for_each(|id| streams.open(StreamId(id)));
        let fill = |streams: &mut Streams| {
            let mut got = Vec::new();
            while let Some(id) = streams.free() {
                streams.push(id, &DataHeader { entries: Vec::new() }, 0, 0);
                got.push(id.0);
            }
            got
        };
        streams.set_wanted(2);
        assert_eq!(fill(&mut streams), [1, 2, 1, 2]);
        streams.lose(StreamId(1));
        assert_eq!(fill(&mut streams), [3, 3]);
        streams.sent(StreamId(3), 1);
        streams.set_wanted(1);
        assert_eq!(fill(&mut streams), []);
        streams.set_wanted(0);
        assert_eq!(fill(&mut streams), [3]);
    }
}
