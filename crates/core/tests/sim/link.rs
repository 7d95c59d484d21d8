//! The network between the two ends: one control stream, several data streams.
//!
//! Each stream keeps its own order and has its own delays. A data stream may break: what its sender had not
//! handed over is gone, and of what was on its way a prefix arrives. Everything crosses as encoded frames.

use std::collections::VecDeque;

use fastrand::Rng;
use haul_core::ids::{SessionEpoch, StreamId};
use haul_core::wire::{
    DataHeader, DataPreamble, Decoded, FrameHeader, HEADER_LEN, Message, PREAMBLE_LEN,
    decode_data_descriptor, decode_message, encode_data_header, encode_frame,
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
}

impl Stream {
    pub fn new(id: StreamId) -> Stream {
        let (queue, wire, told) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        Stream { id, up: true, queue, wire, told, seq: 0, arrived: 0, sink_told: false }
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
    frames: VecDeque<Vec<u8>>,
    seq: u64,
    /// The sender is gone: after the last frame the receiver hears of it.
    pub over: bool,
    pub told: bool,
}

impl Control {
    pub fn send(&mut self, message: &Message) {
        self.seq += 1;
        self.frames.push_back(encode_frame(message, StreamId(0), EPOCH, self.seq));
    }

    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub fn take(&mut self) -> Option<Message> {
        let bytes = self.frames.pop_front()?;
        let (head, body) = bytes.split_first_chunk::<HEADER_LEN>().expect("a whole frame");
        let head = FrameHeader::decode(head).expect("a legal header");
        match decode_message(head.kind, body).expect("a legal message") {
            Decoded::Message(message) => Some(message),
            Decoded::Ignored => None,
        }
    }

    /// The sender is gone; `whole`: what it sent still arrives, else a prefix of it.
    pub fn cut(&mut self, rng: &mut Rng, whole: bool) {
        if !whole {
            self.frames.truncate(rng.usize(..=self.frames.len()));
        }
        self.over = true;
    }
}
