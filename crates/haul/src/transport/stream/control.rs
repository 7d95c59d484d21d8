//! The control stream: messages both ways, a writing and a reading thread.

use std::io::{BufReader, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError};
use haul_core::ids::{SessionEpoch, StreamId};
use haul_core::wire::{CONTROL_LEN_MAX, Decoded, Message, decode_message, encode_frame};

use super::{bad_frame, check_seq, guarded, read_exact, read_header, spawn, write_failed};
use crate::transport::{Link, Post, TransportError};

/// Most control messages that wait to be written. A peer that lets so many pile up has stopped reading.
pub const CONTROL_QUEUE_MAX: usize = 4096;
/// Control frames are written together up to this many bytes (one more frame may go over it).
const BATCH_LEN: usize = 256 * 1024;
/// How long a control stream that is being closed waits for what was sent to be written, and then for the
/// peer's end.
const CLOSE_WRITE_WAIT: Duration = Duration::from_secs(5);
const CLOSE_PEER_WAIT: Duration = Duration::from_secs(2);

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
    /// Both directions ended in good order: nothing is left to cut.
    ended: bool,
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
        self.end(why);
        (self.closer)();
    }

    /// Tells that the stream is over and cuts nothing: what waits to be written still can be.
    fn end(&self, why: String) {
        if !self.over.swap(true, Ordering::AcqRel) {
            (self.post)(ControlEvent::Lost(why));
        }
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
        let Link { reader, writer, closer, .. } = link;
        let shared =
            Arc::new(ControlShared { post, closer, over: AtomicBool::new(false), stale: AtomicU64::new(0) });
        let (queue, jobs) = crossbeam_channel::bounded(CONTROL_QUEUE_MAX);
        // Nothing is ever sent on these two: their ends are dropped when the threads end.
        let (write_alive, written) = crossbeam_channel::bounded(0);
        let (read_alive, read) = crossbeam_channel::bounded(0);
        let handle =
            ControlHandle { shared: shared.clone(), queue: Some(queue), written, read, ended: false };
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
                // The peer says no more, but may still read: it waits for our end (see `close`).
                Ok(()) => shared.end("the peer closed the control stream".into()),
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
        let Some(queue) = self.queue.take() else { return };
        // Before the queue's end is dropped: from then on the peer may hear of the end and answer it.
        self.shared.over.store(true, Ordering::Release);
        drop(queue);
        // Nothing is ever sent on these two: disconnected means that the thread ended and dropped its half.
        let ended = |thread: &Receiver<()>, wait| {
            matches!(thread.recv_timeout(wait), Err(RecvTimeoutError::Disconnected))
        };
        // To end both at once would tear up what is still on its way to the peer; so only when it must be.
        self.ended = ended(&self.written, CLOSE_WRITE_WAIT) && ended(&self.read, CLOSE_PEER_WAIT);
        if !self.ended {
            (self.shared.closer)();
        }
    }
}

impl Drop for ControlHandle {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
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
