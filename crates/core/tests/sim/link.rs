//! The network between the two ends: one control stream, several data streams.
//!
//! Each stream keeps its own order and has its own delays. A data stream may break: what its sender had not
//! handed over is gone, and of what was on its way a prefix arrives. Streams join later, each end learns of
//! it in its own time. Control may break and be joined again: of what was on its way a prefix may come, also
//! after the re-join, when it must have no effect. Everything crosses as encoded frames.

use std::collections::VecDeque;

use fastrand::Rng;
use haul_core::ids::{SessionEpoch, StreamId};
use haul_core::resend::{Incoming, Kept, Outgoing};
use haul_core::wire::{
    DataHeader, DataPreamble, Decoded, FrameHeader, HEADER_LEN, Message, PREAMBLE_LEN,
    decode_data_descriptor, decode_message, encode_data_header, encode_message,
};

const EPOCH: SessionEpoch = SessionEpoch(1);

/// A data frame; `blocks` are the keys of each entry's payload.
pub struct Frame {
    bytes: Vec<u8>,
    pub blocks: Vec<Vec<u8>>,
    pub seq: u64,
    pub cost: u64,
}

impl Frame {
    pub fn new(header: &DataHeader, stream: StreamId, seq: u64, blocks: Vec<Vec<u8>>, cost: u64) -> Frame {
        Frame { bytes: encode_data_header(header, stream, EPOCH, seq), blocks, seq, cost }
    }

    pub fn header(&self) -> DataHeader {
        let (head, rest) = self.bytes.split_first_chunk::<HEADER_LEN>().expect("a whole frame");
        let head = FrameHeader::decode(head).expect("a legal header");
        assert_eq!(head.seq, self.seq);
        let (preamble, descriptor) = rest.split_first_chunk::<PREAMBLE_LEN>().expect("a whole frame");
        let preamble = DataPreamble::decode(&head, preamble).expect("a legal preamble");
        decode_data_descriptor(&preamble, descriptor).expect("a legal descriptor")
    }
}

/// What the sender's thread tells the source.
pub enum Told {
    Sent(u64),
    Lost,
}

/// One data stream.
pub struct Stream {
    pub id: StreamId,
    /// Neither end nor the network broke it.
    pub up: bool,
    /// Given to the sender's thread.
    pub queue: VecDeque<Frame>,
    /// Taken by the network.
    pub wire: VecDeque<Frame>,
    pub told: VecDeque<Told>,
    seq: u64,
    /// Frames that arrived.
    pub arrived: u64,
    /// The sink's machine heard of the end.
    pub sink_told: bool,
    /// The ends know of it; one that will never know has missed it.
    pub source_knows: bool,
    pub sink_knows: bool,
    pub missed: bool,
}

impl Stream {
    /// A stream of the start.
    pub fn new(id: StreamId) -> Stream {
        Stream { source_knows: true, sink_knows: true, ..Stream::joining(id) }
    }

    /// A stream that joins later: neither end knows of it yet.
    pub fn joining(id: StreamId) -> Stream {
        Stream {
            id,
            up: true,
            queue: VecDeque::new(),
            wire: VecDeque::new(),
            told: VecDeque::new(),
            seq: 0,
            arrived: 0,
            sink_told: false,
            source_knows: false,
            sink_knows: false,
            missed: false,
        }
    }

    pub fn next_seq(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }

    /// The stream breaks. Returns what the buffers of its queue cost. `by_source`: it is not told of it.
    pub fn cut(&mut self, rng: &mut Rng, by_source: bool) -> u64 {
        if !self.up {
            return 0;
        }
        self.up = false;
        self.wire.truncate(rng.usize(..=self.wire.len()));
        if !by_source {
            self.told.push_back(Told::Lost);
        }
        self.queue.drain(..).map(|frame| frame.cost).sum()
    }
}

/// One direction of the control stream.
#[derive(Default)]
pub struct Control {
    out: Outgoing,
    into: Incoming,
    epoch: u32,
    frames: VecDeque<Vec<u8>>,
    /// No connection: what is sent waits for the next.
    dark: bool,
    /// The sender is gone: after the last frame the receiver hears of it.
    pub over: bool,
    pub told: bool,
}

impl Control {
    pub fn send(&mut self, message: &Message) {
        let mut body = Vec::new();
        let kind = encode_message(message, &mut body);
        self.out.push(Kept { kind, body }).expect("what a session can have open fits");
        self.write();
    }

    fn write(&mut self) {
        while !self.dark
            && let Some((seq, kept)) = self.out.take_next()
        {
            let (len, epoch) = (kept.body.len() as u32, SessionEpoch(self.epoch));
            let head = FrameHeader { len, kind: kept.kind, flags: 0, stream: StreamId(0), epoch, seq };
            self.frames.push_back([&head.encode()[..], &kept.body].concat());
        }
    }

    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// What arrives next, if it is not from before; and what the sender shall be told of it, in the other
    /// direction.
    pub fn take(&mut self) -> (Option<Message>, Option<Message>) {
        let Some(bytes) = self.frames.pop_front() else { return (None, None) };
        let (head, body) = bytes.split_first_chunk::<HEADER_LEN>().expect("a whole frame");
        let head = FrameHeader::decode(head).expect("a legal header");
        if head.epoch.0 != self.epoch {
            return (None, None);
        }
        self.into.take(head.seq, body.len()).expect("no gap and nothing twice");
        let tell = self.into.to_tell().map(Message::Received);
        match decode_message(head.kind, body).expect("a legal message") {
            Decoded::Message(message) => (Some(message), tell),
            Decoded::Ignored => (None, tell),
        }
    }

    /// The receiver said, in the other direction, what came.
    pub fn received(&mut self, number: u64) {
        self.out.received(number).expect("it was sent");
    }

    /// The connection breaks.
    pub fn darken(&mut self, rng: &mut Rng) {
        self.dark = true;
        self.frames.truncate(rng.usize(..=self.frames.len()));
    }

    /// Control is joined again, under a higher epoch.
    pub fn rejoin(&mut self) {
        self.epoch += 1;
        self.dark = false;
        self.out.resume(self.into.last()).expect("the receiver says what it has");
        self.write();
    }

    /// The sender is gone; `whole`: what it sent still arrives, else a prefix of it.
    pub fn cut(&mut self, rng: &mut Rng, whole: bool) {
        if !whole {
            self.frames.truncate(rng.usize(..=self.frames.len()));
        }
        self.over = true;
    }
}
