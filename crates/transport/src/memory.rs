//! A transport inside one process: two byte pipes, for tests and for copies on one host.
//!
//! In: a capacity. Out: two [`Link`]s that are connected. [`Pipe`], one direction, also serves
//! [`super::mux`].
//!
//! Invariants, as TCP has them: what was written before the writing end closed arrives, then EOF; whoever
//! writes to a reader that is gone gets `BrokenPipe`; the closer cuts both directions, and a reader that is
//! cut in the middle gets `ConnectionAborted`, never EOF.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::{Guard, Link};

/// Two ends of a link. Each direction holds at most `capacity` bytes (at least one).
pub fn pair(capacity: usize) -> (Link, Link) {
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
    };
    (end(&forth, &back), end(&back, &forth))
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
        });
    }

    /// Both ends fail at once. A reader that had everything up to the end still sees EOF.
    pub(super) fn cut(&self) {
        self.change(|state| {
            if !(state.ended && state.bytes.is_empty()) {
                state.cut = true;
                state.bytes = VecDeque::new();
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
