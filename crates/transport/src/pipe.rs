//! A link over two descriptors: the ends of pipes, such as those of one channel of an ssh connection.
//!
//! In: what is read, what is written, and something that lives as long. Out: a [`Link`]. What travels is
//! subframes (`wire::SubHeader`, channel 0) of at most 64 KiB; one of length 0 is the end. There is no thread
//! and no buffer here: who uses a half waits in the kernel.
//!
//! Invariants: the end of the pipe before the last subframe is an error, never EOF; the closer closes both
//! descriptors, as soon as nobody is inside a call on them, and wakes who is.

use std::any::Any;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use haul_core::wire::{SUBFRAME_LEN_MAX, SUBHEADER_LEN, SubHeader};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::{Guard, Link};

/// How long the last subframe may wait for room when a writer is dropped. Without it the other end hears of
/// an end in the middle.
const END_WAIT: Duration = Duration::from_secs(2);
/// What a pipe is made to hold, if the system allows; then fewer turns of the processes at its ends move as
/// much.
const PIPE_LEN: usize = 1 << 20;

/// A link that reads from `input` and writes to `output`; both become non-blocking. `keep` is dropped with
/// the last of them.
///
/// # Errors
/// The system refuses what is needed.
pub fn link(input: OwnedFd, output: OwnedFd, keep: Option<Box<dyn Any + Send>>) -> io::Result<Link> {
    for fd in [&input, &output] {
        fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)?;
        // A socket has no such length, and an unprivileged user's pipes may be at their limit.
        let _ = rustix::pipe::fcntl_setpipe_size(fd, PIPE_LEN);
    }
    let ends = Ends { input: Some(Arc::new(input)), output: Some(Arc::new(output)), keep };
    let shared = Arc::new(Shared { ends: Mutex::new(ends), cut: eventfd(0, EventfdFlags::CLOEXEC)? });
    let closer = {
        let shared = shared.clone();
        Arc::new(move || shared.cut())
    };
    Ok(Link {
        reader: Box::new(Reader {
            shared: shared.clone(),
            head: [0; SUBHEADER_LEN],
            head_len: 0,
            left: 0,
            ended: false,
        }),
        writer: Box::new(Writer { shared, broken: false }),
        closer,
        connection: None,
        guard: Guard::default(),
        hands: None,
    })
}

struct Shared {
    ends: Mutex<Ends>,
    /// Readable from the cut on.
    cut: OwnedFd,
}

struct Ends {
    input: Option<Arc<OwnedFd>>,
    output: Option<Arc<OwnedFd>>,
    keep: Option<Box<dyn Any + Send>>,
}

impl Ends {
    fn close(&mut self, input: bool, output: bool) {
        if input {
            self.input = None;
        }
        if output {
            self.output = None;
        }
        if self.input.is_none() && self.output.is_none() {
            self.keep = None;
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Ends> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cut(&self) {
        self.lock().close(true, true);
        // It cannot be full: this is written once per call, and nobody counts to 2^64.
        let _ = rustix::io::write(&self.cut, &1u64.to_ne_bytes());
    }

    fn input(&self) -> io::Result<Arc<OwnedFd>> {
        self.lock().input.clone().ok_or_else(|| io::ErrorKind::ConnectionAborted.into())
    }

    fn output(&self) -> io::Result<Arc<OwnedFd>> {
        self.lock().output.clone().ok_or_else(|| io::ErrorKind::BrokenPipe.into())
    }

    /// Waits until `fd` is ready or all is cut, at most until `deadline`.
    fn wait(&self, fd: &OwnedFd, flags: PollFlags, deadline: Option<Instant>) -> io::Result<()> {
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let left = left.map(|left| Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            });
            let mut fds = [PollFd::new(fd, flags), PollFd::from_borrowed_fd(self.cut.as_fd(), PollFlags::IN)];
            match poll(&mut fds, left.as_ref()) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) if fds[1].revents().is_empty() => return Ok(()),
                Ok(_) => return Err(io::ErrorKind::ConnectionAborted.into()),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

struct Reader {
    shared: Arc<Shared>,
    /// Of the next subframe, as far as it came.
    head: [u8; SUBHEADER_LEN],
    head_len: usize,
    /// Bytes of this subframe that are still to come.
    left: usize,
    ended: bool,
}

impl Reader {
    /// Body into `out`, and behind it the next header; how many bytes of the body came, 0 if none were left.
    fn fill(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let input = self.shared.input()?;
        loop {
            let body = out.len().min(self.left);
            let whole = body == self.left;
            let head = if whole { &mut self.head[self.head_len..] } else { &mut [] };
            let mut parts = [IoSliceMut::new(&mut out[..body]), IoSliceMut::new(head)];
            match rustix::io::readv(&*input, &mut parts) {
                Ok(0) => return Err(io::ErrorKind::ConnectionAborted.into()),
                Ok(n) => {
                    let came = n.min(body);
                    self.left -= came;
                    self.head_len += n - came;
                    return Ok(came);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => self.shared.wait(&input, PollFlags::IN, None)?,
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl Read for Reader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        loop {
            if self.ended {
                return Ok(0);
            }
            let came = self.fill(out)?;
            if self.head_len == SUBHEADER_LEN {
                let bad = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
                let head = SubHeader::decode(&self.head).map_err(|error| bad(error.to_string()))?;
                if head.channel != 0 {
                    return Err(bad(format!("subframe of channel {} in a pipe of one", head.channel)));
                }
                self.head_len = 0;
                self.left = head.len as usize;
                self.ended = head.len == 0;
            }
            if came > 0 {
                return Ok(came);
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.shared.lock().close(true, false);
    }
}

struct Writer {
    shared: Arc<Shared>,
    /// A subframe was written in part.
    broken: bool,
}

impl Writer {
    fn subframe(&mut self, body: &[u8], deadline: Option<Instant>) -> io::Result<()> {
        let output = self.shared.output()?;
        let head = SubHeader { channel: 0, len: body.len() as u32 }.encode();
        let mut done = 0;
        self.broken = true;
        while done < head.len() + body.len() {
            let parts = [
                IoSlice::new(&head[done.min(head.len())..]),
                IoSlice::new(&body[done.saturating_sub(head.len())..]),
            ];
            match rustix::io::writev(&*output, &parts) {
                Ok(n) => done += n,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => self.shared.wait(&output, PollFlags::OUT, deadline)?,
                Err(errno) => return Err(errno.into()),
            }
        }
        self.broken = false;
        Ok(())
    }
}

impl Write for Writer {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let body = &data[..data.len().min(SUBFRAME_LEN_MAX as usize)];
        if !body.is_empty() {
            self.subframe(body, None)?;
        }
        Ok(body.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.broken {
            // Who does not hear it hears of an end in the middle.
            let _ = self.subframe(&[], Some(Instant::now() + END_WAIT));
        }
        self.shared.lock().close(false, true);
    }
}
