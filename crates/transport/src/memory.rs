//! A transport inside one process: two byte pipes, for tests and for copies on one host.
//!
//! In: a capacity. Out: two [`Link`]s that are connected. [`Pipe`], one direction, also serves
//! [`super::mux`].
//!
//! Between the ends of one process payload need not be copied into a pipe and out of it again: a link of
//! [`handing_pair`] has [`Hands`], by which the buffer itself goes over, beside the bytes of its frame's
//! head.
//!
//! Invariants, as TCP has them: what was written before the writing end closed arrives, then EOF; whoever
//! writes to a reader that is gone gets `BrokenPipe`; the closer cuts both directions, and a reader that is
//! cut in the middle gets `ConnectionAborted`, never EOF.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use haul_base::buffer::Buffer;

use super::{Guard, Link};

/// Two ends of a link over which payload goes from hand to hand. What it has besides is a [`pair`]'s.
pub fn handing_pair(capacity: usize) -> (Link, Link) {
    ends(capacity, true)
}

/// Two ends of a link. Each direction holds at most `capacity` bytes (at least one).
pub fn pair(capacity: usize) -> (Link, Link) {
    ends(capacity, false)
}

fn ends(capacity: usize, hands_over: bool) -> (Link, Link) {
    let (forth, back) = (Arc::new(Pipe::new(capacity)), Arc::new(Pipe::new(capacity)));
    let closer: Arc<dyn Fn() + Send + Sync> = {
        let (forth, back) = (forth.clone(), back.clone());
        Arc::new(move || {
            forth.cut();
            back.cut();
        })
    };
    let end = |write: &Arc<Pipe>, read: &Arc<Pipe>| Link {
        reader: Box::new(PipeReader(read.clone())),
        writer: Box::new(PipeWriter(write.clone())),
        closer: closer.clone(),
        connection: None,
        guard: Guard::default(),
        hands: hands_over.then(|| Hands { give: write.clone(), take: read.clone() }),
    };
    (end(&forth, &back), end(&back, &forth))
}

/// How payload goes over between two ends of one process: each buffer from hand to hand. What is cut or over
/// for the link's bytes is so here.
pub struct Hands {
    give: Arc<Pipe>,
    take: Arc<Pipe>,
}

impl Hands {
    /// Holds a buffer out to the other end. The one before must have been taken.
    ///
    /// # Errors
    /// The other end is gone.
    pub fn give(&self, buffer: Buffer) -> io::Result<()> {
        self.give.give(buffer)
    }

    /// Waits until what was given last was taken.
    ///
    /// # Errors
    /// The other end is gone; perhaps with the buffer.
    pub fn given(&self) -> io::Result<()> {
        self.give.given()
    }

    /// Waits for a buffer and takes it.
    ///
    /// # Errors
    /// The other end is gone, or none will come.
    pub fn take(&self) -> io::Result<Buffer> {
        self.take.take()
    }
}

/// Bytes in flight between two threads, bounded.
pub(super) struct Pipe {
    capacity: usize,
    state: Mutex<PipeState>,
    changed: Condvar,
}

#[derive(Default)]
struct PipeState {
    bytes: VecDeque<u8>,
    /// Payload that is held out to the reader.
    held_out: Option<Buffer>,
    /// No more will be written: EOF once drained.
    ended: bool,
    /// Nobody will read any more.
    deserted: bool,
    /// Ended in the middle.
    cut: bool,
}

impl Pipe {
    /// A pipe of at most `capacity` bytes, at least one. Memory is used as bytes come, not before.
    pub(super) fn new(capacity: usize) -> Pipe {
        Pipe { capacity: capacity.max(1), state: Mutex::default(), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, PipeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut PipeState)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// What was written arrives, then EOF.
    pub(super) fn end(&self) {
        self.change(|state| state.ended = true);
    }

    /// The reader is gone: writers fail.
    pub(super) fn desert(&self) {
        self.change(|state| {
            state.deserted = true;
            state.bytes = VecDeque::new();
            state.held_out = None;
        });
    }

    /// Both ends fail at once. A reader that had everything up to the end still sees EOF.
    pub(super) fn cut(&self) {
        self.change(|state| {
            if !(state.ended && state.bytes.is_empty() && state.held_out.is_none()) {
                state.cut = true;
                state.bytes = VecDeque::new();
                state.held_out = None;
            }
        });
    }

    /// Reads what is there, waits if nothing is.
    pub(super) fn read(&self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        let mut state = self.lock();
        loop {
            if state.cut {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            if !state.bytes.is_empty() {
                let n = state.bytes.read(out)?;
                drop(state);
                self.changed.notify_all();
                return Ok(n);
            }
            if state.ended {
                return Ok(0);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Writes what there is room for, waits if there is none.
    pub(super) fn write(&self, data: &[u8]) -> io::Result<usize> {
        let mut state = self.lock();
        loop {
            if state.cut || state.deserted || state.ended {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            let n = data.len().min(self.capacity - state.bytes.len());
            if n > 0 || data.is_empty() {
                state.bytes.extend(&data[..n]);
                drop(state);
                self.changed.notify_all();
                return Ok(n);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Pipe {
    fn give(&self, buffer: Buffer) -> io::Result<()> {
        let mut state = self.lock();
        if state.cut || state.deserted || state.ended {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        assert!(state.held_out.is_none(), "a buffer is given when the one before was taken");
        state.held_out = Some(buffer);
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    fn given(&self) -> io::Result<()> {
        let mut state = self.lock();
        while state.held_out.is_some() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        match state.cut || state.deserted {
            true => Err(io::ErrorKind::BrokenPipe.into()),
            false => Ok(()),
        }
    }

    fn take(&self) -> io::Result<Buffer> {
        let mut state = self.lock();
        loop {
            if state.cut {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            if let Some(buffer) = state.held_out.take() {
                drop(state);
                self.changed.notify_all();
                return Ok(buffer);
            }
            if state.ended {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The reading end of a pipe; dropping it deserts the pipe.
pub(super) struct PipeReader(pub(super) Arc<Pipe>);

impl Read for PipeReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.0.read(out)
    }
}

impl Drop for PipeReader {
    fn drop(&mut self) {
        self.0.desert();
    }
}

/// The writing end of a pipe; dropping it ends the pipe.
struct PipeWriter(Arc<Pipe>);

impl Write for PipeWriter {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.0.write(data)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for PipeWriter {
    fn drop(&mut self) {
        self.0.end();
    }
}
