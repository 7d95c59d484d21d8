//! Many links through one byte pipe: ssh's stdin and stdout, where no port can be reached.
//!
//! In: a reader and a writer of bytes, how many channels. Out: a [`Link`] per channel; channel 0 is control.
//! What travels is subframes (`wire::SubHeader`) of at most 64 KiB. One of length 0 ends its channel; one of
//! length 0 whose channel has the bit [`CUT`] cuts it in the middle.
//!
//! Invariants: a control subframe waits for at most one data subframe of its own end; the data channels take
//! turns. A channel's sender is held back when [`SEND_QUEUE_LEN`] bytes wait. The end of the pipe before
//! every channel ended is an error in each of them, never EOF.
//!
//! Why it cannot dead-lock: the reading thread always drains the pipe into the channels' receive pipes, each
//! of `receive_capacity` bytes, and only waits when one of them is full. Whoever reads a data channel waits
//! for nothing else: it has a buffer for every byte that was granted, hashes and posts, and posts never wait.
//! So a full receive pipe empties whatever control does, and with a `receive_capacity` of all that may be
//! granted control is not even delayed. Memory is used as bytes come, not before. Control's own pipe is as
//! large; its reader posts too, and waits only for messages to be taken, by a loop that waits for nothing
//! from the pipe.
//!
//! Left out: flow control per channel. Grants do that, one level up.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use haul_base::errno;
use haul_core::wire::{SUBFRAME_LEN_MAX, SUBHEADER_LEN, SubHeader};

use super::memory::{Pipe, PipeReader};
use super::{Guard, Link, TransportError};

/// Most bytes of a channel that wait to be written.
pub const SEND_QUEUE_LEN: usize = 1024 * 1024;
/// In the channel of a subframe without body: the channel ends here in the middle.
pub const CUT: u16 = 1 << 15;

/// Splits a byte pipe into links, channel 0 (control) first.
///
/// `receive_capacity`: bytes of each channel that may wait for its reader; see the module's head for the
/// right number. `on_end` is called once, from the reading thread, when the pipe has nothing more to give:
/// `None` after a clean end, else why.
///
/// The pipe's writer is dropped (so that ssh sees the end of its input) when all links' writers are.
///
/// # Errors
/// If the two threads cannot be started.
///
/// # Panics
/// If there is no channel, or more than the wire can name.
pub fn mux(
    reader: Box<dyn Read + Send>,
    writer: Box<dyn Write + Send>,
    channels: u16,
    receive_capacity: usize,
    on_end: Box<dyn FnOnce(Option<String>) + Send>,
) -> Result<Vec<Link>, TransportError> {
    assert!(channels > 0 && channels < CUT);
    let shared = Arc::new(Shared {
        outbox: Mutex::new(Outbox {
            queues: (0..channels).map(|_| Queue::default()).collect(),
            turn: 0,
            broken: false,
        }),
        changed: Condvar::new(),
        inbox: (0..channels).map(|_| Arc::new(Pipe::new(receive_capacity))).collect(),
    });
    let failed =
        |source| TransportError { what: "starting a thread for the ssh pipe".into(), source: Some(source) };
    {
        let shared = shared.clone();
        let run = move || {
            let result = std::panic::catch_unwind(AssertUnwindSafe(|| shared.write_all(writer)));
            if !matches!(result, Ok(Ok(()))) {
                shared.break_off();
            }
        };
        std::thread::Builder::new().name("haul-mux-write".into()).spawn(run).map_err(failed)?;
    }
    {
        let shared = shared.clone();
        let run = move || {
            let result = std::panic::catch_unwind(AssertUnwindSafe(|| shared.read_all(reader)));
            let result = result.unwrap_or_else(|_| Err(io::Error::other("the reader of the pipe panicked")));
            if result.is_err() {
                shared.break_off();
            }
            on_end(result.err().map(errno::text));
        };
        std::thread::Builder::new().name("haul-mux-read".into()).spawn(run).map_err(failed)?;
    }
    Ok((0..channels).map(|channel| Shared::link(&shared, channel)).collect())
}

struct Shared {
    outbox: Mutex<Outbox>,
    changed: Condvar,
    inbox: Vec<Arc<Pipe>>,
}

struct Outbox {
    queues: Vec<Queue>,
    /// The data channel that was served last.
    turn: usize,
    broken: bool,
}

#[derive(Default)]
struct Queue {
    bytes: VecDeque<u8>,
    /// The channel's writer is gone.
    ended: bool,
    cut: bool,
    /// The end was taken to be sent.
    told: bool,
}

/// What is sent next.
enum Next {
    Bytes(u16, usize),
    End(u16),
    Finished,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn link(shared: &Arc<Shared>, channel: u16) -> Link {
        let inbox = shared.inbox[usize::from(channel)].clone();
        let closer = {
            let (shared, inbox) = (shared.clone(), inbox.clone());
            Arc::new(move || {
                shared.change(channel, |queue| {
                    // A channel that ended well and was told so stays that way.
                    queue.cut |= !(queue.ended && queue.bytes.is_empty());
                    queue.ended = true;
                    queue.bytes = VecDeque::new();
                });
                inbox.cut();
            })
        };
        Link {
            reader: Box::new(PipeReader(inbox)),
            writer: Box::new(ChannelWriter { shared: shared.clone(), channel }),
            closer,
            connection: None,
            guard: Guard::default(),
            hands: None,
        }
    }

    fn change(&self, channel: u16, change: impl FnOnce(&mut Queue)) {
        change(&mut self.lock().queues[usize::from(channel)]);
        self.changed.notify_all();
    }

    /// The pipe is no good any more: every channel fails at once.
    fn break_off(&self) {
        let mut outbox = self.lock();
        outbox.broken = true;
        for queue in &mut outbox.queues {
            queue.bytes = VecDeque::new();
        }
        drop(outbox);
        self.changed.notify_all();
        for pipe in &self.inbox {
            pipe.cut();
        }
    }

    /// The writing thread.
    fn write_all(&self, mut writer: Box<dyn Write + Send>) -> io::Result<()> {
        let mut frame = Vec::with_capacity(SUBHEADER_LEN + SUBFRAME_LEN_MAX as usize);
        loop {
            frame.clear();
            let mut outbox = self.lock();
            let next = loop {
                if outbox.broken {
                    return Err(io::ErrorKind::BrokenPipe.into());
                }
                match outbox.next() {
                    Some(next) => break next,
                    None => outbox = self.changed.wait(outbox).unwrap_or_else(PoisonError::into_inner),
                }
            };
            match next {
                Next::Bytes(channel, len) => {
                    frame.extend_from_slice(&SubHeader { channel, len: len as u32 }.encode());
                    let body = frame.len();
                    frame.resize(body + len, 0);
                    outbox.queues[usize::from(channel)].bytes.read_exact(&mut frame[body..])?;
                }
                Next::End(channel) => {
                    let queue = &mut outbox.queues[usize::from(channel)];
                    queue.told = true;
                    let channel = if queue.cut { channel | CUT } else { channel };
                    frame.extend_from_slice(&SubHeader { channel, len: 0 }.encode());
                }
                Next::Finished => return writer.flush(),
            }
            drop(outbox);
            self.changed.notify_all();
            writer.write_all(&frame)?;
            writer.flush()?;
        }
    }

    /// The reading thread. `Ok` when the pipe ended after every channel did.
    fn read_all(&self, mut reader: Box<dyn Read + Send>) -> io::Result<()> {
        let mut open: Vec<bool> = vec![true; self.inbox.len()];
        let mut body = vec![0; SUBFRAME_LEN_MAX as usize];
        loop {
            let mut head = [0; SUBHEADER_LEN];
            if !read_or_end(&mut reader, &mut head)? {
                return if open.contains(&true) { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) };
            }
            let head = SubHeader::decode(&head)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            let channel = usize::from(head.channel & !CUT);
            let cut = head.channel & CUT != 0;
            if !open.get(channel).copied().unwrap_or(false) || (cut && head.len > 0) {
                let text = format!("subframe of {} bytes for channel {channel}, which is not open", head.len);
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            let pipe = &self.inbox[channel];
            if head.len > 0 {
                let body = &mut body[..head.len as usize];
                reader.read_exact(body)?;
                // A channel that nobody reads any more is drained all the same.
                let _ = write_pipe(pipe, body);
            } else {
                open[channel] = false;
                if cut {
                    pipe.cut();
                    // Whoever writes to it must hear of it too, and our end is told back.
                    self.change(channel as u16, |queue| {
                        queue.cut = true;
                        queue.ended = true;
                        queue.bytes = VecDeque::new();
                    });
                } else {
                    pipe.end();
                }
            }
        }
    }
}

impl Outbox {
    /// Control first, then the data channels in turn; an end after its channel's last byte.
    fn next(&mut self) -> Option<Next> {
        let data = self.queues.len() - 1;
        let order = (0..data).map(|i| 1 + (self.turn + i) % data);
        for channel in std::iter::once(0).chain(order) {
            let queue = &self.queues[channel];
            let found = if !queue.bytes.is_empty() {
                Next::Bytes(channel as u16, queue.bytes.len().min(SUBFRAME_LEN_MAX as usize))
            } else if queue.ended && !queue.told {
                Next::End(channel as u16)
            } else {
                continue;
            };
            if channel > 0 {
                self.turn = channel;
            }
            return Some(found);
        }
        self.queues.iter().all(|queue| queue.told).then_some(Next::Finished)
    }
}

/// Fills `out`, or tells that the reader ended before its first byte.
fn read_or_end(reader: &mut impl Read, out: &mut [u8]) -> io::Result<bool> {
    let mut len = 0;
    while len < out.len() {
        match reader.read(&mut out[len..]) {
            Ok(0) if len == 0 => return Ok(false),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => len += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

fn write_pipe(pipe: &Pipe, mut data: &[u8]) -> io::Result<()> {
    while !data.is_empty() {
        let n = pipe.write(data)?;
        data = &data[n..];
    }
    Ok(())
}

struct ChannelWriter {
    shared: Arc<Shared>,
    channel: u16,
}

impl Write for ChannelWriter {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let mut outbox = self.shared.lock();
        loop {
            let broken = outbox.broken;
            let queue = &mut outbox.queues[usize::from(self.channel)];
            if broken || queue.ended {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            let n = data.len().min(SEND_QUEUE_LEN - queue.bytes.len());
            if n > 0 || data.is_empty() {
                queue.bytes.extend(&data[..n]);
                drop(outbox);
                self.shared.changed.notify_all();
                return Ok(n);
            }
            outbox = self.shared.changed.wait(outbox).unwrap_or_else(PoisonError::into_inner);
        }
    }
    /// What is queued will be written as soon as the pipe takes it; nothing is held back.
    fn flush(&mut self) -> io::Result<()> {
        if self.shared.lock().broken { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    }
}

impl Drop for ChannelWriter {
    fn drop(&mut self) {
        self.shared.change(self.channel, |queue| queue.ended = true);
    }
}
