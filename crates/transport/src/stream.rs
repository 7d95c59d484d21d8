//! The threads that speak frames over links: control, data out, data in.
//!
//! In: a [`Link`] that was joined already (its next frame is sequence 1 in both directions), messages and
//! payload to send. Out: events, posted from the stream's own threads; a post never blocks.
//!
//! Invariants: a frame counts only with the right stream, epoch and sequence number. What cannot be decoded
//! ends the stream, once, with a text that says what it was; a panic in a thread does the same. Nothing is
//! allocated from a length before it was held against its limit; payload goes only into the pool's buffers. A
//! data stream's receiver waits for nothing but its link, see [`super::mux`].
//!
//! Metering: a thread counts its whole time for each stage that it serves, so that shares compare. The
//! CPU time of writing (sealing, copying into the kernel) is the source host's, the rest of it the network's.

use std::any::Any;
use std::io::{self, Read};
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use haul_base::errno;
use haul_core::wire::{FrameHeader, HEADER_LEN, WireError};
use rustix::time::{ClockId, clock_gettime};

use super::TransportError;

mod control;
mod loss;
mod receive;
mod send;

pub use control::*;
pub use loss::Loss;
pub use receive::*;
pub use send::*;

/// The end of a connection that nobody announced.
const CUT_OFF: &str = "the connection was cut off by the peer or the network";

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

/// What is there, at least a byte.
fn read_some(reader: &mut impl Read, out: &mut [u8]) -> Result<usize, String> {
    loop {
        match reader.read(out) {
            Ok(0) => return Err(CUT_OFF.into()),
            Ok(n) => return Ok(n),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(read_failed(&error)),
        }
    }
}

fn read_failed(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => CUT_OFF.into(),
        _ => format!("reading from the peer: {}", errno::text(error)),
    }
}

fn write_failed(error: io::Error) -> String {
    format!("writing to the peer: {}", errno::text(error))
}

fn bad_frame(error: WireError) -> String {
    format!("the peer sent a bad frame: {}", errno::with_causes(&error))
}

/// The order of frames: each must be the next.
fn check_seq(seq: u64, want: u64) -> Result<(), String> {
    match seq == want {
        true => Ok(()),
        false => Err(format!("the peer sent a bad frame: number {seq} instead of {want}")),
    }
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
