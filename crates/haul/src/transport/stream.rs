//! The threads that speak frames over links: control, data out, data in.
//!
//! In: a [`Link`] that was joined already (its next frame is sequence 1 in both directions), messages and
//! payload to send. Out: events, posted from the stream's own threads; a post never blocks.
//!
//! Invariants: a frame counts only with the right stream, epoch and sequence number. What cannot be decoded ends the
//! stream, once, with a text that says what it was; a panic in a thread does the same. Nothing is
//! allocated from a length before it was held against its limit; payload goes only into the pool's buffers. A
//! data stream's receiver waits for nothing but its link, see [`super::mux`].
//!
//! Metering: a thread counts its whole time for each stage that it serves, so that shares compare. The
//! CPU time of writing (sealing, copying into the kernel) is the source host's, the rest of it the network's.

use std::any::Any;
use std::io::{self, BufReader, Read, Write};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TryRecvError, TrySendError};
use haul_core::ids::{BufferId, SessionEpoch, StreamId};
use haul_core::stage::Stage;
use haul_core::wire::{
    CONTROL_LEN_MAX, DataEntry, DataHeader, DataPreamble, Decoded, FrameHeader, HEADER_LEN, Message,
    PREAMBLE_LEN, WireError, decode_data_descriptor, decode_message, encode_data_header, encode_frame, kind,
};
use rustix::time::{ClockId, clock_gettime};

use super::{Link, Post, TransportError};
use crate::buffer::{Buffer, Pool};
use crate::digest;
use crate::meter::Meter;

/// Most control messages that wait to be written. A peer that lets so many pile up has stopped reading.
pub const CONTROL_QUEUE_MAX: usize = 4096;
/// Most data frames that wait on one stream. Grants and the pool bound them well below.
pub const SEND_QUEUE_MAX: usize = 64 * 1024;
/// Control frames are written together up to this many bytes (one more frame may go over it).
const BATCH_LEN: usize = 256 * 1024;
/// Data frames are flushed after this many bytes even when more are waiting, so that the word that they are
/// sent is not late.
const FLUSH_LEN: usize = 1024 * 1024;
/// How long a control stream that is being closed waits for what was sent to be written, and then for the
/// peer's end.
const CLOSE_WRITE_WAIT: Duration = Duration::from_secs(5);
const CLOSE_PEER_WAIT: Duration = Duration::from_secs(2);

/// Runs a thread's work; a panic becomes an error.
fn guarded<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let text = |panic: Box<dyn Any + Send>| {
        let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(format!("a stream thread panicked: {}", text.unwrap_or_default()))
    };
    std::panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(text)
}

fn spawn(name: String, work: impl FnOnce() + Send + 'static) -> Result<(), TransportError> {
    match std::thread::Builder::new().name(name.clone()).spawn(work) {
        Ok(_) => Ok(()),
        Err(source) => {
            Err(TransportError { what: format!("starting the thread {name}"), source: Some(source) })
        }
    }
}

/// Reads a frame's header; `None` when the stream ended before its first byte.
fn read_header(reader: &mut impl Read) -> Result<Option<FrameHeader>, String> {
    let mut bytes = [0; HEADER_LEN];
    let first = loop {
        match reader.read(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => break result.map_err(|error| read_failed(&error))?,
        }
    };
    if first == 0 {
        return Ok(None);
    }
    read_exact(reader, &mut bytes[first..])?;
    FrameHeader::decode(&bytes).map(Some).map_err(bad_frame)
}

fn read_exact(reader: &mut impl Read, out: &mut [u8]) -> Result<(), String> {
    reader.read_exact(out).map_err(|error| read_failed(&error))
}

fn read_failed(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the connection was cut off by the peer or the network".into(),
        _ => format!("reading from the peer: {error}"),
    }
}

fn write_failed(error: io::Error) -> String {
    format!("writing to the peer: {error}")
}

fn bad_frame(error: WireError) -> String {
    let mut text = format!("the peer sent a bad frame: {error}");
    let mut source = std::error::Error::source(&error);
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// The order of frames: each must be the next.
fn check_seq(seq: u64, want: u64) -> Result<(), String> {
    match seq == want {
        true => Ok(()),
        false => Err(format!("the peer sent a bad frame: number {seq} instead of {want}")),
    }
}

/// What happens on the control stream.
#[derive(Debug, PartialEq, Eq)]
pub enum ControlEvent {
    Message(Message),
    /// The stream is over, and why. The last event.
    Lost(String),
}

/// Starts control streams.
pub struct ControlStream;

/// The sending side of a control stream. Dropping it cuts the stream.
pub struct ControlHandle {
    shared: Arc<ControlShared>,
    queue: Option<Sender<Message>>,
    written: Receiver<()>,
    read: Receiver<()>,
}

struct ControlShared {
    post: Post<ControlEvent>,
    closer: Arc<dyn Fn() + Send + Sync>,
    /// `Lost` was posted, or this end closed: no `Lost` any more.
    over: AtomicBool,
    stale: AtomicU64,
}

impl ControlShared {
    fn lose(&self, why: String) {
        if !self.over.swap(true, Ordering::AcqRel) {
            (self.post)(ControlEvent::Lost(why));
        }
        (self.closer)();
    }
}

impl ControlStream {
    /// Speaks control messages over `link` from two threads.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn spawn(
        link: Link,
        epoch: SessionEpoch,
        post: Post<ControlEvent>,
    ) -> Result<ControlHandle, TransportError> {
        let Link { reader, writer, closer } = link;
        let shared =
            Arc::new(ControlShared { post, closer, over: AtomicBool::new(false), stale: AtomicU64::new(0) });
        let (queue, jobs) = crossbeam_channel::bounded(CONTROL_QUEUE_MAX);
        // Nothing is ever sent on these two: their ends are dropped when the threads end.
        let (write_alive, written) = crossbeam_channel::bounded(0);
        let (read_alive, read) = crossbeam_channel::bounded(0);
        let handle = ControlHandle { shared: shared.clone(), queue: Some(queue), written, read };
        {
            let shared = shared.clone();
            spawn("haul-ctl-write".into(), move || {
                if let Err(why) = guarded(|| write_control(writer, &jobs, epoch)) {
                    shared.lose(why);
                }
                drop(write_alive);
            })?;
        }
        spawn("haul-ctl-read".into(), move || {
            let result = guarded(|| read_control(reader, epoch, &shared));
            match result {
                Ok(()) if shared.over.load(Ordering::Acquire) => {}
                Ok(()) => shared.lose("the peer closed the control stream".into()),
                Err(why) => shared.lose(why),
            }
            drop(read_alive);
        })?;
        Ok(handle)
    }
}

impl ControlHandle {
    /// Queues a message. Never blocks; after the stream was lost or closed the message is dropped.
    ///
    /// Edge: when [`CONTROL_QUEUE_MAX`] messages wait already, the stream is lost.
    pub fn send(&self, message: Message) {
        let Some(queue) = &self.queue else { return };
        if let Err(TrySendError::Full(_)) = queue.try_send(message) {
            self.shared.lose(format!(
                "the peer does not read: {CONTROL_QUEUE_MAX} control messages wait to be sent"
            ));
        }
    }

    /// Frames of another epoch that were dropped.
    pub fn stale(&self) -> u64 {
        self.shared.stale.load(Ordering::Relaxed)
    }

    /// Writes what was sent, says goodbye, gives the peer a moment to end too, and closes. Takes at most
    /// 7 s, and no time when the peer closes as well. Messages may still be posted meanwhile; `Lost` is not.
    pub fn close(&mut self) {
        if self.queue.take().is_none() {
            return;
        }
        self.shared.over.store(true, Ordering::Release);
        // An error is what says that the thread has ended; so does the time.
        let _ = self.written.recv_timeout(CLOSE_WRITE_WAIT);
        // To close a socket with unread bytes in it would tear up what is still on its way to the peer.
        let _ = self.read.recv_timeout(CLOSE_PEER_WAIT);
        (self.shared.closer)();
    }
}

impl Drop for ControlHandle {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Release);
        (self.shared.closer)();
    }
}

fn write_control(
    mut writer: Box<dyn Write + Send>,
    jobs: &Receiver<Message>,
    epoch: SessionEpoch,
) -> Result<(), String> {
    let mut seq = 0;
    let mut batch = Vec::new();
    while let Ok(first) = jobs.recv() {
        let mut next = Some(first);
        while let Some(message) = next {
            seq += 1;
            batch.extend_from_slice(&encode_frame(&message, StreamId(0), epoch, seq));
            next = if batch.len() < BATCH_LEN { jobs.try_recv().ok() } else { None };
        }
        writer.write_all(&batch).and_then(|()| writer.flush()).map_err(write_failed)?;
        batch.clear();
    }
    Ok(())
}

fn read_control(
    reader: Box<dyn Read + Send>,
    epoch: SessionEpoch,
    shared: &ControlShared,
) -> Result<(), String> {
    let mut reader = BufReader::with_capacity(64 * 1024, reader);
    let mut body = Vec::new();
    let mut seq = 0;
    while let Some(header) = read_header(&mut reader)? {
        if !header.is_message() || header.stream != StreamId(0) {
            return Err(format!(
                "the peer sent a bad frame: kind {:#04x} of stream {} on the control stream",
                header.kind, header.stream
            ));
        }
        let len = header.len as usize;
        assert!(len <= CONTROL_LEN_MAX, "a decoded header is within its limit");
        body.resize(len, 0);
        read_exact(&mut reader, &mut body)?;
        if header.epoch != epoch {
            shared.stale.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        seq += 1;
        check_seq(header.seq, seq)?;
        match decode_message(header.kind, &body).map_err(bad_frame)? {
            Decoded::Message(message) => (shared.post)(ControlEvent::Message(message)),
            Decoded::Ignored => {}
        }
    }
    Ok(())
}

/// A clock of the wall and of this thread's CPU time.
struct Lap {
    wall: Instant,
    cpu: Duration,
}

impl Lap {
    fn start() -> Lap {
        let cpu = clock_gettime(ClockId::ThreadCPUTime);
        Lap { wall: Instant::now(), cpu: Duration::new(cpu.tv_sec as u64, cpu.tv_nsec as u32) }
    }
    /// Wall and CPU time since the start; the CPU time is never the longer one. Starts again.
    fn lap(&mut self) -> (Duration, Duration) {
        let now = Lap::start();
        let wall = now.wall - self.wall;
        let cpu = now.cpu.saturating_sub(self.cpu).min(wall);
        *self = now;
        (wall, cpu)
    }
}

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
    stream: StreamId,
    epoch: SessionEpoch,
    meter: Arc<Meter>,
    post: Post<SendEvent>,
    closer: Arc<dyn Fn() + Send + Sync>,
    over: AtomicBool,
    queued: AtomicUsize,
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
    /// Sends data frames over `link` from a thread of its own.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn spawn(
        link: Link,
        stream: StreamId,
        epoch: SessionEpoch,
        meter: Arc<Meter>,
        post: Post<SendEvent>,
    ) -> Result<DataSender, TransportError> {
        let Link { reader, writer, closer } = link;
        let shared = Arc::new(SendShared {
            stream,
            epoch,
            meter,
            post,
            closer,
            over: AtomicBool::new(false),
            queued: AtomicUsize::new(0),
        });
        // Counted by `queued`; a bounded channel would make room for all at once.
        let (queue, jobs) = crossbeam_channel::unbounded();
        let sender = DataSender { shared: shared.clone(), queue: Some(queue), seq: 0 };
        spawn(format!("haul-send-{stream}"), move || {
            if let Err(error) = guarded(|| send_frames(writer, jobs, &shared)) {
                shared.lose(error);
            }
            // Nothing is said in this direction; the half stays open as long as the stream.
            drop(reader);
        })?;
        Ok(sender)
    }

    /// Queues a frame and returns its sequence number: 1, 2, 3... Never blocks; after the stream was lost or closed the
    /// frame is dropped, and its buffer with it. `buffer` holds exactly the payload of `header`'s entries; none if they
    /// have none.
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
    mut writer: Box<dyn Write + Send>,
    jobs: Receiver<SendJob>,
    shared: &SendShared,
) -> Result<(), String> {
    // Frames that were written and not flushed.
    let mut pending: Vec<(u64, Option<BufferId>)> = Vec::new();
    let mut pending_len = 0;
    let mut lap = Lap::start();
    loop {
        let waiting = match jobs.try_recv() {
            Ok(job) => Some(job),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => None,
        };
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
                Err(_) => return Ok(()),
            },
        };
        shared.count_wait(lap.lap());
        shared.queued.fetch_sub(1, Ordering::Relaxed);
        let SendJob { header, buffer, seq } = job;
        let payload = buffer.as_ref().map_or(&[][..], Buffer::as_slice);
        assert_eq!(payload.len() as u64, header.payload_len(), "a buffer holds the payload of its entries");
        let head = encode_data_header(&header, shared.stream, shared.epoch, seq);
        writer.write_all(&head).and_then(|()| writer.write_all(payload)).map_err(write_failed)?;
        pending_len += head.len() + payload.len();
        pending.push((seq, buffer.as_ref().map(Buffer::id)));
        drop(buffer);
        shared.count_write(lap.lap());
    }
}

impl SendShared {
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

/// What happens on a data stream at the sink.
#[derive(Debug)]
pub enum RecvEvent {
    /// A frame arrived. `good` says for each entry whether its payload fits its digest; `buffer` holds the payload of
    /// all entries, none if they have none.
    Data { stream: StreamId, seq: u64, header: DataHeader, buffer: Option<Buffer>, good: Vec<bool> },
    /// The stream is over after `frames` frames; `error` is `None` when the peer or this end closed it in good
    /// order. The last event.
    Lost { stream: StreamId, frames: u64, error: Option<String> },
}

/// A data stream at the sink. Dropping it cuts the stream.
pub struct DataReceiver {
    shared: Arc<RecvShared>,
}

struct RecvShared {
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
        let Link { reader, writer, closer } = link;
        let shared = Arc::new(RecvShared {
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
            let error = guarded(|| receive_frames(reader, &shared)).err();
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

fn receive_frames(mut reader: Box<dyn Read + Send>, shared: &RecvShared) -> Result<(), String> {
    let mut descriptor = Vec::new();
    let mut lap = Lap::start();
    while let Some(header) = read_header(&mut reader)? {
        if header.kind != kind::DATA || header.stream != shared.stream || header.epoch != shared.epoch {
            return Err(format!(
                "the peer sent a bad frame: kind {:#04x}, stream {}, epoch {} on data stream {} of epoch {}",
                header.kind, header.stream, header.epoch, shared.stream, shared.epoch
            ));
        }
        let seq = shared.frames.load(Ordering::Relaxed) + 1;
        check_seq(header.seq, seq)?;
        let mut preamble = [0; PREAMBLE_LEN];
        read_exact(&mut reader, &mut preamble)?;
        let preamble = DataPreamble::decode(&header, &preamble).map_err(bad_frame)?;
        // Bounded by the decoder (DESCRIPTOR_LEN_MAX).
        descriptor.resize(preamble.descriptor_len as usize, 0);
        read_exact(&mut reader, &mut descriptor)?;
        let header = decode_data_descriptor(&preamble, &descriptor).map_err(bad_frame)?;
        let payload_len = preamble.payload_len as usize;
        let buffer = if payload_len == 0 {
            None
        } else {
            let mut buffer = shared
                .pool
                .take(payload_len)
                .map_err(|error| format!("the peer sent more than it was granted: {error}"))?;
            read_exact(&mut reader, buffer.as_mut_slice())?;
            Some(buffer)
        };
        let good = check_payload(&header, buffer.as_ref().map_or(&[], Buffer::as_slice));
        let (wall, cpu) = lap.lap();
        shared.meter.add_busy(Stage::SinkHost, cpu);
        shared.meter.add_idle(Stage::SinkHost, wall - cpu);
        shared.frames.store(seq, Ordering::Relaxed);
        (shared.post)(RecvEvent::Data { stream: shared.stream, seq, header, buffer, good });
    }
    Ok(())
}

/// Holds each entry's part of the payload against its digest.
fn check_payload(header: &DataHeader, payload: &[u8]) -> Vec<bool> {
    let mut rest = payload;
    let mut check = |entry: &DataEntry| {
        let len = if entry.hole { 0 } else { entry.len as usize };
        let (data, behind) = rest.split_at_checked(len)?;
        rest = behind;
        Some(match entry.root {
            true => entry.cvs == [digest::root(data)],
            false => entry.cvs == digest::chaining_values(entry.offset, data, entry.tail),
        })
    };
    // Entries and payload add up, the decoder sees to that; an entry without payload would just be bad.
    header.entries.iter().map(|entry| check(entry).unwrap_or(false)).collect()
}
