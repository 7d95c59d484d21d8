//! A data stream at the source: one thread that writes frames.

use std::io::{self, IoSlice, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use haul_core::ids::{BufferId, SessionEpoch, StreamId};
use haul_core::stage::Stage;
use haul_core::wire::{DataHeader, encode_data_header};

use super::{Lap, guarded, spawn, write_failed};
use crate::frames::FrameKeys;
use crate::memory::Hands;
use crate::pace::Pacer;
use crate::{Link, Post, TransportError};
use haul_base::buffer::Buffer;
use haul_base::meter::Meter;

/// Most data frames that wait on one stream. Grants and the pool bound them well below.
pub const SEND_QUEUE_MAX: usize = 64 * 1024;
/// Data frames are flushed after this many bytes even when more are waiting, so that the word that they are
/// sent is not late.
const FLUSH_LEN: usize = 1024 * 1024;

/// What happens on a data stream at the source.
#[derive(Debug, PartialEq, Eq)]
pub enum SendEvent {
    /// Frame `seq` was handed to the kernel and its buffer is back in the pool.
    Sent { stream: StreamId, seq: u64, buffer_id: Option<BufferId> },
    /// The stream is over; frames that were not told as sent may or may not arrive. The last event.
    Lost { stream: StreamId, error: String },
}

/// A data stream at the source. Dropping it without [`DataSender::close`] cuts the stream.
pub struct DataSender {
    shared: Arc<SendShared>,
    queue: Option<Sender<SendJob>>,
    seq: u64,
}

struct SendShared {
    /// Frames carry codes.
    keys: Option<FrameKeys>,
    stream: StreamId,
    epoch: SessionEpoch,
    meter: Arc<Meter>,
    post: Post<SendEvent>,
    closer: Arc<dyn Fn() + Send + Sync>,
    over: AtomicBool,
    queued: AtomicUsize,
    pacer: Arc<Pacer>,
}

struct SendJob {
    header: DataHeader,
    buffer: Option<Buffer>,
    seq: u64,
}

impl SendShared {
    fn lose(&self, error: String) {
        if !self.over.swap(true, Ordering::AcqRel) {
            (self.post)(SendEvent::Lost { stream: self.stream, error });
        }
        (self.closer)();
    }
}

impl DataSender {
    /// Sends data frames over `link` from a thread of its own, not faster than `pacer` allows.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn spawn(
        link: Link,
        stream: StreamId,
        epoch: SessionEpoch,
        meter: Arc<Meter>,
        post: Post<SendEvent>,
        pacer: Arc<Pacer>,
    ) -> Result<DataSender, TransportError> {
        let Link { reader, writer, closer, guard, hands, .. } = link;
        let shared = Arc::new(SendShared {
            keys: guard.keys,
            stream,
            epoch,
            meter,
            post,
            closer,
            over: AtomicBool::new(false),
            queued: AtomicUsize::new(0),
            pacer,
        });
        // Counted by `queued`; a bounded channel would make room for all at once.
        let (queue, jobs) = crossbeam_channel::unbounded();
        let sender = DataSender { shared: shared.clone(), queue: Some(queue), seq: 0 };
        spawn(format!("haul-send-{stream}"), move || {
            if let Err(error) = guarded(|| send_frames((writer, hands), jobs, &shared)) {
                shared.lose(error);
            }
            // Nothing is said in this direction; the half stays open as long as the stream.
            drop(reader);
        })?;
        Ok(sender)
    }

    /// Queues a frame and returns its sequence number: 1, 2, 3... Never blocks; after the stream was lost or
    /// closed the frame is dropped, and its buffer with it. `buffer` holds exactly the payload of `header`'s
    /// entries; none if they have none.
    ///
    /// Edge: when [`SEND_QUEUE_MAX`] frames wait already, the stream is lost.
    pub fn submit(&mut self, header: DataHeader, buffer: Option<Buffer>) -> u64 {
        self.seq += 1;
        if let Some(queue) = &self.queue {
            if self.shared.queued.fetch_add(1, Ordering::Relaxed) >= SEND_QUEUE_MAX {
                self.shared.lose(format!("{SEND_QUEUE_MAX} data frames wait to be sent"));
            } else {
                // It fails when the thread is gone, and then `Lost` was posted.
                let _ = queue.send(SendJob { header, buffer, seq: self.seq });
            }
        }
        self.seq
    }

    /// Takes no more frames. What was submitted is sent, then the peer sees a clean end. Does not wait.
    pub fn close(&mut self) {
        self.queue = None;
    }

    /// Cuts the stream at once, also while it is closing. No event follows.
    pub fn abort(&mut self) {
        self.queue = None;
        self.shared.over.store(true, Ordering::Release);
        (self.shared.closer)();
    }
}

impl Drop for DataSender {
    fn drop(&mut self) {
        if self.queue.is_some() {
            self.abort();
        }
    }
}

fn send_frames(
    (mut writer, hands): (Box<dyn Write + Send>, Option<Hands>),
    jobs: Receiver<SendJob>,
    shared: &SendShared,
) -> Result<(), String> {
    // Frames that were written and not flushed.
    let mut pending: Vec<(u64, Option<BufferId>)> = Vec::new();
    let mut pending_len = 0;
    let mut sent = 0;
    let mut lap = Lap::start();
    loop {
        let waiting = jobs.try_recv().ok();
        if !pending.is_empty() && (waiting.is_none() || pending_len >= FLUSH_LEN) {
            writer.flush().map_err(write_failed)?;
            shared.count_write(lap.lap());
            for (seq, buffer_id) in pending.drain(..) {
                (shared.post)(SendEvent::Sent { stream: shared.stream, seq, buffer_id });
            }
            pending_len = 0;
        }
        let job = match waiting {
            Some(job) => job,
            None => match jobs.recv() {
                Ok(job) => job,
                Err(_) => return shared.end(&mut *writer, sent).map_err(write_failed),
            },
        };
        shared.count_wait(lap.lap());
        shared.queued.fetch_sub(1, Ordering::Relaxed);
        let SendJob { header, buffer, seq } = job;
        let buffer_id = buffer.as_ref().map(Buffer::id);
        let payload = buffer.as_ref().map_or(&[][..], Buffer::as_slice);
        let len = payload.len();
        assert_eq!(payload.len() as u64, header.payload_len(), "a buffer holds the payload of its entries");
        let mut head = encode_data_header(&header, shared.stream, shared.epoch, seq);
        if let Some(keys) = &shared.keys {
            let code = keys.seal(&head);
            head.extend_from_slice(&code);
        }
        sent = seq;
        if let Some(hands) = &hands {
            shared.await_turn(len, &mut lap);
            shared.hand_over(hands, &mut *writer, &head, buffer).map_err(write_failed)?;
        } else if shared.pacer.rate().is_some() {
            writer.write_all(&head).map_err(write_failed)?;
            shared.write_paced(&mut *writer, payload, &mut lap).map_err(write_failed)?;
        } else if shared.keys.is_some() {
            write_both(&mut *writer, &head, payload).map_err(write_failed)?;
        } else {
            writer.write_all(&head).and_then(|()| writer.write_all(payload)).map_err(write_failed)?;
        }
        pending_len += head.len() + len;
        pending.push((seq, buffer_id));
        shared.count_write(lap.lap());
    }
}

/// Head and payload from where they are, in as few system calls as the kernel takes them.
fn write_both(writer: &mut dyn Write, mut head: &[u8], mut payload: &[u8]) -> io::Result<()> {
    while !head.is_empty() {
        let n = writer.write_vectored(&[IoSlice::new(head), IoSlice::new(payload)])?;
        if n == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        let of_head = n.min(head.len());
        head = &head[of_head..];
        payload = &payload[n - of_head..];
    }
    writer.write_all(payload)
}

impl SendShared {
    /// Says that frame `sent` was the last, where the link itself does not.
    fn end(&self, writer: &mut dyn Write, sent: u64) -> io::Result<()> {
        match &self.keys {
            Some(keys) => writer.write_all(&keys.last(self.stream, self.epoch, sent + 1)),
            None => Ok(()),
        }
    }
    /// Waits until the turn of all of `len` bytes has come.
    fn await_turn(&self, mut len: usize, lap: &mut Lap) {
        while len > 0 && self.pacer.rate().is_some() {
            self.count_write(lap.lap());
            len -= self.pacer.take(len, || self.over.load(Ordering::Acquire));
            self.count_wait(lap.lap());
        }
    }
    /// Gives the frame to the other end of this process. Its payload is there when the head is read, and
    /// taken, so that it is in no pool of this end, when this returns.
    fn hand_over(
        &self,
        hands: &Hands,
        writer: &mut dyn Write,
        head: &[u8],
        buffer: Option<Buffer>,
    ) -> io::Result<()> {
        // Nobody takes what the head does not say: a bundle whose files all turned out empty.
        let payload = buffer.filter(|buffer| !buffer.as_slice().is_empty());
        payload.map_or(Ok(()), |payload| hands.give(payload))?;
        writer.write_all(head).and_then(|()| writer.flush())?;
        hands.given()
    }
    /// Writes `payload` in pieces, each when its turn comes.
    fn write_paced(&self, writer: &mut dyn Write, mut payload: &[u8], lap: &mut Lap) -> io::Result<()> {
        while !payload.is_empty() {
            self.count_write(lap.lap());
            let len = self.pacer.take(payload.len(), || self.over.load(Ordering::Acquire));
            self.count_wait(lap.lap());
            let (piece, rest) = payload.split_at(len);
            // Flushed, for what the link holds back would leave in one burst later.
            writer.write_all(piece).and_then(|()| writer.flush())?;
            payload = rest;
        }
        Ok(())
    }
    fn count_wait(&self, (wall, _): (Duration, Duration)) {
        self.meter.add_idle(Stage::Network, wall);
        self.meter.add_idle(Stage::SourceHost, wall);
    }
    fn count_write(&self, (wall, cpu): (Duration, Duration)) {
        self.meter.add_busy(Stage::Network, wall - cpu);
        self.meter.add_idle(Stage::Network, cpu);
        self.meter.add_busy(Stage::SourceHost, cpu);
        self.meter.add_idle(Stage::SourceHost, wall - cpu);
    }
}
