//! One direction of a long network: a drop-tail buffer, a bottleneck, random loss and a delay, in virtual
//! time.
//!
//! In: packets that arrived and when; a [`Path`] that may change. Out: the packets that survive, each with
//! the instant at which it is due at the far end. No clock and no system call: the daemon brings both.
//! Invariants: packets leave in the order in which they came, whatever the jitter and whatever changes;
//! nothing is due sooner than the delay after it came; memory is bounded by [`MEMORY_MAX`].
//! Left out: reordering and corruption, which the papers' paths did not show.

use std::collections::VecDeque;
use std::ops::Range;

use fastrand::Rng;
use serde::{Deserialize, Serialize};

use super::packet::{PACKET_LEN_MAX, Shape};

/// Nanoseconds of a clock that the caller chooses.
pub type Nanos = u64;

/// Upper bound of the packet bytes that one direction of one link may hold.
pub const MEMORY_MAX: u64 = 2 << 30;
/// Upper bound of delay and of jitter: 10 s.
pub const DELAY_MAX: Nanos = 10_000_000_000;
/// Upper bound of a rate: 1 Tbit/s.
pub const RATE_MAX: u64 = 1_000_000_000_000;
/// Lower bound of a rate: 1 kbit/s, where one full frame takes 12 s.
pub const RATE_MIN: u64 = 1_000;
/// Lower bound of a buffer: two full frames of 1500 bytes.
pub const BUFFER_MIN: u64 = 2 * 1538;
/// Memory is taken in pieces of this length.
const CHUNK_LEN: usize = 1 << 20;

const _: () = assert!(PACKET_LEN_MAX * 8 < CHUNK_LEN, "little is lost at the end of a chunk");

/// How one direction behaves.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Path {
    /// From the last bit at the bottleneck to the far end.
    pub delay_ns: Nanos,
    /// Added to the delay, evenly distributed from nothing to this.
    pub jitter_ns: Nanos,
    /// Bit/s of Ethernet frames, preamble and gap included.
    pub rate: u64,
    /// Probability that a segment is lost, 0 to 1.
    pub loss: f64,
    /// Bytes that may wait for the bottleneck.
    pub buffer: u64,
    /// A direction that is down loses all that comes; what is on its way still arrives.
    pub up: bool,
}

impl Path {
    /// Whether this can be emulated; the error says which value is wrong.
    pub fn check(&self) -> Result<(), String> {
        if self.delay_ns > DELAY_MAX || self.jitter_ns > DELAY_MAX {
            return Err(format!("delay and jitter go up to {} s each", DELAY_MAX / 1_000_000_000));
        }
        if !(RATE_MIN..=RATE_MAX).contains(&self.rate) {
            return Err(format!("the rate {} bit/s is not within 1 kbit/s and 1 Tbit/s", self.rate));
        }
        if !(0.0..=1.0).contains(&self.loss) {
            return Err(format!("the loss {} is not within 0 and 1", self.loss));
        }
        if self.buffer < BUFFER_MIN {
            return Err(format!(
                "a buffer of {} bytes passes no packet; give {BUFFER_MIN} or more",
                self.buffer
            ));
        }
        let held = self.on_the_way().saturating_add(self.buffer);
        if held > MEMORY_MAX {
            return Err(format!(
                "rate x (delay + jitter) and buffer come to {} MiB, more than the {} MiB that one direction may \
                 hold; lower one of them",
                held >> 20,
                MEMORY_MAX >> 20
            ));
        }
        Ok(())
    }

    /// Bytes that are on their way when the rate is used in full.
    pub fn on_the_way(&self) -> u64 {
        let bits = u128::from(self.rate) * u128::from(self.delay_ns + self.jitter_ns) / 1_000_000_000;
        u64::try_from(bits / 8).unwrap_or(u64::MAX)
    }
}

/// What became of the packets. Segments are counted, as a wire would carry them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Segments that came.
    pub packets: u64,
    /// Their bytes as Ethernet frames.
    pub bytes: u64,
    /// Packets as read, of up to 64 KiB each.
    pub super_packets: u64,
    /// Segments for which the buffer had no room.
    pub drops_buffer: u64,
    /// Segments lost at random.
    pub drops_loss: u64,
    /// Segments that came while the direction was down.
    pub drops_down: u64,
    /// Most bytes that waited for the bottleneck.
    pub backlog_max: u64,
}

#[derive(Clone, Copy)]
struct Waiting {
    due: Nanos,
    chunk: u64,
    offset: u32,
    len: u32,
}

/// One direction of one link.
pub struct Line {
    path: Path,
    pub counts: Counts,
    queue: VecDeque<Waiting>,
    arena: Arena,
    /// When the bottleneck has sent all that it took.
    free_at: Nanos,
    /// What the integer division of the last sending time left over, in bits x 10^9.
    rest: u64,
    due_last: Nanos,
    rng: Rng,
    /// Segments that pass before the next one is lost.
    until_loss: u64,
    kept: Vec<Range<usize>>,
    uncut: Vec<u8>,
}

impl Line {
    /// # Panics
    /// If `path` was not checked.
    pub fn new(path: Path, seed: u64) -> Line {
        path.check().expect("a path is checked before a line is made of it");
        let mut rng = Rng::with_seed(seed);
        let until_loss = draw_loss(&mut rng, path.loss);
        Line {
            path,
            counts: Counts::default(),
            queue: VecDeque::new(),
            arena: Arena::default(),
            free_at: 0,
            rest: 0,
            due_last: 0,
            rng,
            until_loss,
            kept: Vec::new(),
            uncut: Vec::new(),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Behaves differently from `now` on: bytes that wait for the bottleneck are sent at the new rate as far
    /// as that concerns packets that are still to come; packets that came before keep the instant at which
    /// they are due.
    ///
    /// # Panics
    /// If `path` was not checked.
    pub fn change(&mut self, path: Path, now: Nanos) {
        path.check().expect("a path is checked before a line is changed to it");
        let backlog = self.backlog(now);
        self.free_at = now + (u128::from(backlog) * 8_000_000_000 / u128::from(path.rate)) as Nanos;
        self.rest = 0;
        if path.loss != self.path.loss {
            self.until_loss = draw_loss(&mut self.rng, path.loss);
        }
        self.path = path;
    }

    /// Room for one packet, to be followed by [`Self::offer`]; nothing while memory is full.
    pub fn space(&mut self) -> Option<&mut [u8]> {
        self.arena.space(PACKET_LEN_MAX)
    }

    /// The first `len` bytes of [`Self::space`] hold a packet that came at `now`.
    pub fn offer(&mut self, len: usize, now: Nanos) {
        let shape = Shape::of(self.arena.tail(len));
        let all = shape.segments as u64;
        self.counts.packets += all;
        self.counts.super_packets += 1;
        self.counts.bytes += shape.cost(0..shape.segments);
        if !self.path.up {
            self.counts.drops_down += all;
            return;
        }
        let backlog = self.backlog(now);
        let fits = shape.fitting(self.path.buffer.saturating_sub(backlog));
        self.counts.drops_buffer += all - fits as u64;
        if fits == 0 {
            return;
        }
        let cost = shape.cost(0..fits);
        self.counts.backlog_max = self.counts.backlog_max.max(backlog + cost);
        let bits = cost * 8_000_000_000 + self.rest;
        self.rest = bits % self.path.rate;
        self.free_at = self.free_at.max(now) + bits / self.path.rate;
        let jitter = if self.path.jitter_ns > 0 { self.rng.u64(0..=self.path.jitter_ns) } else { 0 };
        let due = (self.free_at + self.path.delay_ns + jitter).max(self.due_last);

        self.draw_kept(fits);
        if self.kept.len() == 1 && self.kept[0].len() == shape.segments {
            self.commit(len, due);
        } else if !self.kept.is_empty() {
            self.uncut.clear();
            self.uncut.extend_from_slice(self.arena.tail(len));
            for at in 0..self.kept.len() {
                let range = self.kept[at].clone();
                let len = shape.cut_len(&range);
                let Some(space) = self.arena.space(len) else {
                    self.counts.drops_buffer += range.len() as u64;
                    continue;
                };
                shape.cut(&self.uncut, range, &mut space[..len]);
                self.commit(len, due);
            }
        }
    }

    /// When the first packet is due.
    pub fn next_due(&self) -> Option<Nanos> {
        self.queue.front().map(|first| first.due)
    }

    /// The first packet, with its virtio header.
    pub fn first(&self) -> Option<&[u8]> {
        self.queue.front().map(|first| self.arena.bytes(first))
    }

    /// Forgets the first packet.
    pub fn pop(&mut self) {
        self.queue.pop_front();
        self.arena.release(self.queue.front().map(|first| first.chunk));
    }

    /// Bytes that wait for the bottleneck.
    fn backlog(&self, now: Nanos) -> u64 {
        let wait = u128::from(self.free_at.saturating_sub(now));
        (wait * u128::from(self.path.rate) / 8_000_000_000) as u64
    }

    fn commit(&mut self, len: usize, due: Nanos) {
        let (chunk, offset) = self.arena.commit(len);
        self.queue.push_back(Waiting { due, chunk, offset, len: len as u32 });
        self.due_last = due;
    }

    /// Which of the first `fits` segments are not lost, as runs.
    fn draw_kept(&mut self, fits: usize) {
        self.kept.clear();
        let mut start = 0;
        while self.until_loss < (fits - start) as u64 {
            let lost = start + self.until_loss as usize;
            if lost > start {
                self.kept.push(start..lost);
            }
            self.counts.drops_loss += 1;
            start = lost + 1;
            self.until_loss = draw_loss(&mut self.rng, self.path.loss);
        }
        if fits > start {
            self.until_loss -= (fits - start) as u64;
            self.kept.push(start..fits);
        }
    }
}

/// How many segments pass before one is lost: a geometric draw, so that a path without loss costs nothing.
fn draw_loss(rng: &mut Rng, loss: f64) -> u64 {
    if loss <= 0.0 {
        return u64::MAX;
    }
    if loss >= 1.0 {
        return 0;
    }
    // 1 - [0, 1) is never zero; the conversion saturates.
    ((1.0 - rng.f64()).ln() / (1.0 - loss).ln()) as u64
}

/// Packets one after the other in chunks; the oldest go first. Freed chunks are used again, the last freed
/// one first, for it may still be in the processor's cache.
#[derive(Default)]
struct Arena {
    chunks: VecDeque<Box<[u8]>>,
    /// Number of `chunks[0]`.
    first: u64,
    /// Bytes in use of the last chunk.
    used: usize,
    spare: Vec<Box<[u8]>>,
}

/// What [`Path::check`] admits, and as much as a quarter again for packets that are late and chunks' ends.
const CHUNKS_MAX: usize = (MEMORY_MAX as usize / CHUNK_LEN) / 4 * 5;

impl Arena {
    fn space(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.chunks.is_empty() || CHUNK_LEN - self.used < len {
            if self.chunks.len() == CHUNKS_MAX {
                return None;
            }
            self.chunks.push_back(self.spare.pop().unwrap_or_else(|| vec![0; CHUNK_LEN].into_boxed_slice()));
            self.used = 0;
        }
        let used = self.used;
        self.chunks.back_mut().map(|chunk| &mut chunk[used..])
    }

    fn tail(&self, len: usize) -> &[u8] {
        &self.chunks.back().expect("space was given")[self.used..][..len]
    }

    fn commit(&mut self, len: usize) -> (u64, u32) {
        let place = (self.first + self.chunks.len() as u64 - 1, self.used as u32);
        self.used += len;
        place
    }

    fn bytes(&self, packet: &Waiting) -> &[u8] {
        &self.chunks[(packet.chunk - self.first) as usize][packet.offset as usize..][..packet.len as usize]
    }

    /// Nothing before `oldest` is needed any more; without it nothing at all.
    fn release(&mut self, oldest: Option<u64>) {
        if oldest.is_none() {
            self.used = 0;
        }
        let oldest = oldest.unwrap_or(self.first + self.chunks.len().saturating_sub(1) as u64);
        while self.first < oldest {
            self.spare.extend(self.chunks.pop_front());
            self.first += 1;
        }
    }
}

#[cfg(test)]
#[path = "line_tests.rs"]
mod tests;
