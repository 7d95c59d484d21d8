//! What is on its way on each data stream, until the sink says that it took it.
//!
//! Invariants: a frame's buffer is counted as used until the network took it, and its credit until the sink
//! took it or said that it never will; a stream id lives once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::ids::{FileId, Generation, SinkTarget, StreamId};
use crate::wire::DataHeader;

/// Frames given to one stream and not yet taken by the network, at most.
pub const QUEUED_MAX: u32 = 2;

struct InFlight {
    seq: u64,
    /// Credit.
    cost: u64,
    /// What its buffer counts.
    held: u64,
    /// Where it goes at the sink; it took credit of that, too.
    sink_target: SinkTarget,
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
    /// It gets no frames; it stays open.
    parked: bool,
}

/// What is left of a stream that is over.
#[derive(Default)]
pub(super) struct Settled {
    /// Objects that the sink never got.
    pub(super) lost: Vec<(FileId, Generation, u64)>,
    /// What their buffers counted, and their credit: in all, and of sink targets.
    pub(super) buffers: u64,
    pub(super) credit: u64,
    pub(super) sink_targets: Vec<(SinkTarget, u64)>,
}

/// The data streams of a session.
#[derive(Default)]
pub(super) struct Streams {
    streams: BTreeMap<StreamId, Stream>,
    /// So many get frames; `None`: nobody said, all.
    wanted: Option<u16>,
    /// Streams that are over: lost, and settled. At most as many as there are ids.
    over: BTreeSet<StreamId>,
}

impl Streams {
    /// A stream is up; false if its id was used before, or the sink said already that it is closed.
    pub(super) fn open(&mut self, id: StreamId) -> bool {
        if self.over.contains(&id) || self.streams.contains_key(&id) {
            return false;
        }
        self.streams.insert(id, Stream::default());
        self.arrange();
        true
    }

    /// From now on so many streams get frames, the oldest; the others are parked. Returns how many are
    /// missing.
    pub(super) fn want(&mut self, wanted: u16) -> u16 {
        self.wanted = Some(wanted);
        self.arrange();
        wanted.saturating_sub(self.up().count() as u16)
    }

    fn arrange(&mut self) {
        if let Some(wanted) = self.wanted {
            let up = self.streams.values_mut().filter(|s| !s.lost);
            up.enumerate().for_each(|(i, stream)| stream.parked = i >= usize::from(wanted));
        }
    }

    pub(super) fn set_parked(&mut self, id: StreamId, parked: bool) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.parked = parked;
        }
    }

    /// Streams that are up, by id, and whether each is parked.
    pub(super) fn up(&self) -> impl DoubleEndedIterator<Item = (StreamId, bool)> {
        self.streams.iter().filter(|(_, s)| !s.lost).map(|(id, s)| (*id, s.parked))
    }

    /// The stream with the fewest queued frames, if any has room. Where all are parked, none is.
    pub(super) fn free(&self) -> Option<StreamId> {
        let parked = self.up().all(|(_, parked)| parked);
        let free =
            self.streams.iter().filter(|(_, s)| !s.lost && s.parked == parked && s.queued < QUEUED_MAX);
        free.min_by_key(|(_, s)| s.queued).map(|(id, _)| *id)
    }

    /// A frame goes to a stream.
    pub(super) fn push(
        &mut self,
        id: StreamId,
        header: &DataHeader,
        (cost, held): (u64, u64),
        sink_target: SinkTarget,
    ) {
        let stream = self.streams.get_mut(&id).expect("free() named it");
        stream.next_seq += 1;
        stream.queued += 1;
        let objects = header.entries.iter().map(|e| (e.id, e.generation, e.offset)).collect();
        stream.in_flight.push_back(InFlight {
            seq: stream.next_seq,
            cost,
            held,
            sink_target,
            sent: false,
            objects,
        });
    }

    /// The network took a frame; returns what its buffer counted.
    pub(super) fn sent(&mut self, id: StreamId, seq: u64) -> u64 {
        let Some(stream) = self.streams.get_mut(&id) else { return 0 };
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
                self.arrange();
                true
            }
            _ => false,
        }
    }

    /// The sink took `frames` from a stream and will take no more: it is over.
    pub(super) fn settle(&mut self, id: StreamId, frames: u64) -> Settled {
        self.over.insert(id);
        let mut settled = Settled::default();
        let Some(stream) = self.streams.remove(&id) else { return settled };
        for frame in stream.in_flight {
            if !frame.sent {
                settled.buffers += frame.held;
            }
            if frame.seq > frames {
                settled.credit += frame.cost;
                if frame.sink_target != SinkTarget::ANY {
                    settled.sink_targets.push((frame.sink_target, frame.cost));
                }
                settled.lost.extend(frame.objects);
            }
        }
        settled
    }

    /// There were streams, and none is left.
    pub(super) fn all_lost(&self) -> bool {
        !(self.streams.is_empty() && self.over.is_empty()) && self.streams.values().all(|s| s.lost)
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

    /// Goal: with fewer streams wanted only the oldest get frames, each up to its queue; a lost one makes
    /// room for the next, one that joins fills a gap, and a parked one is used again when more are wanted.
    #[test]
    fn only_wanted_streams_get_frames() {
        let mut streams = Streams::default();
        (1..=3).for_each(|id| assert!(streams.open(StreamId(id))));
        let fill = |streams: &mut Streams| {
            let mut got = Vec::new();
            while let Some(id) = streams.free() {
                let header = DataHeader { sink_target: SinkTarget::ANY, entries: Vec::new() };
                streams.push(id, &header, (0, 0), SinkTarget::ANY);
                got.push(id.0);
            }
            got
        };
        assert_eq!(streams.want(2), 0);
        assert_eq!(fill(&mut streams), [1, 2, 1, 2]);
        streams.lose(StreamId(1));
        assert_eq!(fill(&mut streams), [3, 3]);
        streams.sent(StreamId(3), 1);
        assert_eq!(streams.want(1), 0);
        assert_eq!(fill(&mut streams), []);
        assert_eq!(streams.want(4), 2, "two of four are missing");
        assert_eq!(fill(&mut streams), [3]);
        assert!(streams.open(StreamId(4)));
        assert_eq!(fill(&mut streams), [4, 4]);
    }
}
