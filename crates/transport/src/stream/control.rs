//! The control stream: messages both ways, over one connection after another.
//!
//! In: messages to send, links (a first one, and others under higher epochs when it was lost). Out: the
//! peer's messages, each once and in order, and the word that a link was lost. Each link has a writing and a
//! reading thread.
//! Invariants: nothing that a link of an older epoch brings has any effect once another was attached (one
//! lock holds the epoch and the numbers); what was sent is kept until the peer said that it came, and sent
//! again where it did not (`haul_core::resend`); sending never blocks. What was posted and not taken is
//! bounded ([`WAITING_MAX`], [`WAITING_LEN_MAX`]): beyond that the link is not read. That cannot dead-lock,
//! for whoever takes messages waits for nothing that control brings but these.

use std::collections::VecDeque;
use std::io::{BufReader, Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use haul_core::ids::{SessionEpoch, StreamId};
use haul_core::resend::{Incoming, Kept, Outgoing};
use haul_core::wire::{
    CONTROL_LEN_MAX, Decoded, FrameHeader, Message, RESUME_LEN, ResumeFrom, decode_message, encode_message,
};

use super::loss::{Loss, Witness};
use super::{bad_frame, check_seq, guarded, read_exact, read_header, spawn, write_failed};
use crate::{Link, Post, TransportError};

/// Control frames are written together up to this many bytes (one more frame may go over it).
const BATCH_LEN: usize = 256 * 1024;
/// Most messages that were posted and wait to be taken, and how long their bodies may be together before no
/// other is read, bytes. An honest peer rarely has a tenth of it on its way.
pub const WAITING_MAX: usize = 1024;
pub const WAITING_LEN_MAX: usize = 8 * 1024 * 1024;
/// How long a control stream that is being closed waits for what was sent to be written, and then for the
/// peer's end.
const CLOSE_WRITE_WAIT: Duration = Duration::from_secs(5);
const CLOSE_PEER_WAIT: Duration = Duration::from_secs(2);

/// What happens on the control stream.
#[derive(Debug, PartialEq, Eq)]
pub enum ControlEvent {
    Message(Message),
    /// The link of this epoch is lost, and why. Nothing comes until another one is attached.
    Lost {
        epoch: SessionEpoch,
        why: String,
        how: Loss,
    },
}

impl ControlEvent {
    /// Tells the stream that this event was received: there is room for another. Whoever is posted to says so
    /// of each, or nothing more comes.
    pub fn taken(&self, handle: &ControlHandle) {
        if let ControlEvent::Message(_) = self {
            handle.taken();
        }
    }
}

/// Starts control streams.
pub struct ControlStream;

/// The sending side of a control stream. Dropping it cuts the stream.
pub struct ControlHandle {
    shared: Arc<Shared>,
    ended: bool,
}

struct Shared {
    post: Post<ControlEvent>,
    state: Mutex<ControlState>,
    changed: Condvar,
    stale: AtomicU64,
}

struct ControlState {
    out: Outgoing,
    into: Incoming,
    /// Lengths of the messages that were posted and not taken, and their sum, bytes.
    waiting: VecDeque<usize>,
    waiting_len: usize,
    epoch: SessionEpoch,
    /// The present link has a connection of its own: what was written to it goes out without this process.
    own: bool,
    /// Cuts the present link; `None`: it is lost.
    closer: Option<Arc<dyn Fn() + Send + Sync>>,
    /// The peer said where to go on; before that nothing is sent.
    ready: bool,
    /// No message is taken any more; what waits is written.
    closing: bool,
    /// A message could not be kept: no link mends that.
    broken: bool,
    /// The present link's threads are over.
    write_over: bool,
    read_over: bool,
}

impl ControlState {
    fn is_full(&self) -> bool {
        (self.waiting.len() >= WAITING_MAX || self.waiting_len >= WAITING_LEN_MAX)
            && !haul_mutant::removed("control-flood")
    }
}

impl Shared {
    /// Waits until another message may be posted. False: the link of `epoch` is not to be read any more.
    fn wait_for_room(&self, epoch: SessionEpoch) -> bool {
        let mut state = self.lock();
        loop {
            if state.epoch != epoch {
                return false;
            }
            // Nobody takes what comes behind the end.
            if state.closing || !state.is_full() {
                return true;
            }
            if state.closer.is_none() {
                return false;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn send(&self, message: Message) {
        let mut body = Vec::new();
        let kind = encode_message(&message, &mut body);
        let mut state = self.lock();
        if state.closing || state.broken {
            return;
        }
        let pushed = state.out.push(Kept { kind, body });
        let (epoch, closer) = (state.epoch, state.closer.take_if(|_| pushed.is_err()));
        state.broken = pushed.is_err();
        state.read_over |= state.broken;
        drop(state);
        self.changed.notify_all();
        if let Some(closer) = closer {
            closer();
        }
        if let Err(error) = pushed {
            (self.post)(ControlEvent::Lost { epoch, why: error.to_string(), how: Loss::Broken });
        }
    }

    fn lock(&self) -> MutexGuard<'_, ControlState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The link of `epoch` is lost. Told once, and not at all when this end closes or has another link.
    /// `cut`: nothing more can be written either.
    fn lose(&self, epoch: SessionEpoch, why: String, how: Loss, cut: bool) {
        let mut state = self.lock();
        if state.epoch != epoch {
            return;
        }
        let closer = if cut { state.closer.take() } else { state.closer.clone() };
        let tell = !state.closing && !state.read_over;
        state.read_over = true;
        drop(state);
        self.changed.notify_all();
        if let Some(closer) = closer.filter(|_| cut) {
            closer();
        }
        if tell {
            (self.post)(ControlEvent::Lost { epoch, why, how });
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
        let state = ControlState {
            out: Outgoing::default(),
            into: Incoming::default(),
            waiting: VecDeque::new(),
            waiting_len: 0,
            epoch,
            own: link.connection.is_some(),
            closer: Some(link.closer.clone()),
            ready: true,
            closing: false,
            broken: false,
            write_over: false,
            read_over: false,
        };
        let shared = Arc::new(Shared {
            post,
            state: Mutex::new(state),
            changed: Condvar::new(),
            stale: AtomicU64::new(0),
        });
        let handle = ControlHandle { shared: shared.clone(), ended: false };
        start(&shared, link, epoch, false)?;
        Ok(handle)
    }
}

/// The two threads of one link.
fn start(shared: &Arc<Shared>, link: Link, epoch: SessionEpoch, again: bool) -> Result<(), TransportError> {
    let witness = Witness::default();
    let (reader, writer) = (witness.reader(link.reader), witness.writer(link.writer));
    {
        let (shared, witness) = (shared.clone(), witness.clone());
        spawn("haul-ctl-write".into(), move || {
            if let Err(why) = guarded(|| write_control(writer, epoch, again, &shared)) {
                shared.lose(epoch, why, witness.loss(), true);
            }
            let mut state = shared.lock();
            if state.epoch == epoch {
                state.write_over = true;
            }
            drop(state);
            shared.changed.notify_all();
        })?;
    }
    let shared = shared.clone();
    spawn("haul-ctl-read".into(), move || {
        match guarded(|| read_control(reader, epoch, again, &shared)) {
            // The peer says no more, but may still read: it waits for our end (see `close`).
            Ok(()) => shared.lose(epoch, "the peer closed the control stream".into(), Loss::Ended, false),
            Err(why) => shared.lose(epoch, why, witness.loss(), true),
        }
    })
}

impl ControlHandle {
    /// Queues a message. Never blocks; after the stream was closed the message is dropped. While the link is
    /// lost it waits for the next.
    ///
    /// Edge: when the peer leaves more untaken than `haul_core::resend` keeps, the link is lost for good.
    pub fn send(&self, message: Message) {
        self.shared.send(message);
    }

    /// Whoever has it sends as [`ControlHandle::send`] does, on any thread, and keeps nothing open.
    pub fn sender(&self) -> impl Fn(Message) + Send + Sync + 'static {
        let shared = self.shared.clone();
        move |message| shared.send(message)
    }

    /// See [`ControlEvent::taken`]. Messages are taken in the order in which they came.
    fn taken(&self) {
        let mut state = self.shared.lock();
        let was_full = state.is_full();
        let len = state.waiting.pop_front().unwrap_or(0);
        state.waiting_len -= len;
        let wake = was_full && !state.is_full();
        drop(state);
        if wake {
            self.shared.changed.notify_all();
        }
    }

    /// Goes on over another link, whose epoch must be higher than all before; else the link is dropped.
    /// Whatever the link before it still brings has no effect.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn attach(&self, link: Link, epoch: SessionEpoch) -> Result<(), TransportError> {
        let mut state = self.shared.lock();
        if epoch <= state.epoch || state.closing || state.broken {
            drop(state);
            (link.closer)();
            return Ok(());
        }
        let before = state.closer.replace(link.closer.clone());
        (state.epoch, state.own) = (epoch, link.connection.is_some());
        (state.ready, state.write_over, state.read_over) = (false, false, false);
        drop(state);
        self.shared.changed.notify_all();
        if let Some(closer) = before {
            closer();
        }
        start(&self.shared, link, epoch, true)
    }

    /// Cuts the present link, because its peer is silent. `Lost` follows.
    pub fn cut(&self, why: &str) {
        let epoch = self.epoch();
        self.shared.lose(epoch, why.into(), Loss::Silent, true);
    }

    /// The other end has much to take that it was told already: what can wait waits.
    pub fn is_behind(&self) -> bool {
        self.shared.lock().out.is_behind()
    }

    /// The epoch of the present link, or of the last one.
    pub fn epoch(&self) -> SessionEpoch {
        self.shared.lock().epoch
    }

    /// Frames of another epoch that were dropped.
    pub fn stale(&self) -> u64 {
        self.shared.stale.load(Ordering::Relaxed)
    }

    /// Writes what was sent, says goodbye, gives the peer a moment to end too, and closes. Takes at most
    /// 7 s, and no time when the peer closes as well or the link is lost. Messages may still be posted
    /// meanwhile; `Lost` is not.
    pub fn close(&mut self) {
        self.close_after(true);
    }

    /// As [`ControlHandle::close`], where the peer has said its last word: a link with a connection of its
    /// own is left to the kernel, which delivers what was written.
    pub fn close_at_once(&mut self) {
        let own = self.shared.lock().own;
        self.close_after(!own);
    }

    fn close_after(&mut self, peer: bool) {
        let mut state = self.shared.lock();
        if std::mem::replace(&mut state.closing, true) {
            return;
        }
        self.shared.changed.notify_all();
        let wait = |mut state: MutexGuard<'_, ControlState>, wait, over: fn(&ControlState) -> bool| {
            let deadline = Instant::now() + wait;
            while state.closer.is_some() && !over(&state) {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return false;
                }
                let waited = self.shared.changed.wait_timeout(state, left);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            over(&state)
        };
        // To end both at once would tear up what is still on its way to the peer; so only when it must be.
        self.ended = wait(state, CLOSE_WRITE_WAIT, |state| state.write_over)
            && peer
            && wait(self.shared.lock(), CLOSE_PEER_WAIT, |state| state.read_over);
        if !self.ended {
            self.end();
        }
    }

    fn end(&self) {
        let mut state = self.shared.lock();
        state.closing = true;
        let closer = state.closer.take();
        drop(state);
        self.shared.changed.notify_all();
        if let Some(closer) = closer {
            closer();
        }
    }
}

impl Drop for ControlHandle {
    fn drop(&mut self) {
        if !self.ended {
            self.end();
        }
    }
}

fn write_control(
    mut writer: Box<dyn Write + Send>,
    epoch: SessionEpoch,
    again: bool,
    shared: &Shared,
) -> Result<(), String> {
    if again {
        let received = shared.lock().into.last();
        let resume = ResumeFrom { epoch, received }.encode();
        writer.write_all(&resume).and_then(|()| writer.flush()).map_err(write_failed)?;
    }
    let mut batch = Vec::new();
    loop {
        let mut state = shared.lock();
        loop {
            if state.epoch != epoch || state.closer.is_none() {
                return Ok(());
            }
            while state.ready
                && batch.len() < BATCH_LEN
                && let Some((seq, kept)) = state.out.take_next()
            {
                let (len, kind, stream) = (kept.body.len() as u32, kept.kind, StreamId(0));
                batch.extend_from_slice(&FrameHeader { len, kind, flags: 0, stream, epoch, seq }.encode());
                batch.extend_from_slice(&kept.body);
            }
            if !batch.is_empty() {
                break;
            }
            if state.closing && state.out.is_written() {
                return Ok(());
            }
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        writer.write_all(&batch).and_then(|()| writer.flush()).map_err(write_failed)?;
        batch.clear();
    }
}

fn read_control(
    reader: Box<dyn Read + Send>,
    epoch: SessionEpoch,
    again: bool,
    shared: &Shared,
) -> Result<(), String> {
    let mut reader = BufReader::with_capacity(64 * 1024, reader);
    if again {
        let mut bytes = [0; RESUME_LEN];
        read_exact(&mut reader, &mut bytes)?;
        let resume = ResumeFrom::decode(&bytes).map_err(bad_frame)?;
        if resume.epoch != epoch {
            return Err(format!("the peer resumes epoch {} on a link of {epoch}", resume.epoch));
        }
        let mut state = shared.lock();
        if state.epoch != epoch {
            return Ok(());
        }
        state.out.resume(resume.received).map_err(|e| e.to_string())?;
        state.ready = true;
        drop(state);
        shared.changed.notify_all();
    }
    let mut body = Vec::new();
    while shared.wait_for_room(epoch)
        && let Some(header) = read_header(&mut reader)?
    {
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
        if header.epoch != epoch && !haul_mutant::removed("control-epoch") {
            shared.stale.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        let decoded = decode_message(header.kind, &body).map_err(bad_frame)?;
        let mut state = shared.lock();
        if state.epoch != epoch {
            // Another link took over: the peer sends this again there.
            return Ok(());
        }
        check_seq(header.seq, state.into.last() + 1)?;
        state.into.take(header.seq, len).map_err(|e| e.to_string())?;
        match decoded {
            Decoded::Message(Message::Received(number)) => {
                state.out.received(number).map_err(|e| e.to_string())?;
            }
            // Under the lock, so that nothing is told after another link took over.
            Decoded::Message(message) if !(state.closing && state.is_full()) => {
                state.waiting.push_back(len);
                state.waiting_len += len;
                (shared.post)(ControlEvent::Message(message));
            }
            Decoded::Message(_) | Decoded::Ignored => {}
        }
        if let Some(number) = state.into.to_tell() {
            let mut body = Vec::new();
            let kind = encode_message(&Message::Received(number), &mut body);
            state.out.push(Kept { kind, body }).map_err(|e| e.to_string())?;
            drop(state);
            shared.changed.notify_all();
        }
    }
    Ok(())
}
