//! How a connection was lost: what is done about it depends on that.
//!
//! In: what reading and writing a link came to. Out: a [`Loss`].

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// How a connection was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Nothing comes any more: a network that is down, a host that is gone, an address that changed.
    Silent,
    /// The peer, or somebody in its name, ended the connection: it is closed, or reset.
    Ended,
    /// What came breaks the protocol, or this end failed. Another connection mends nothing.
    Broken,
}

/// Remembers how the halves of one link failed.
#[derive(Clone, Default)]
pub(super) struct Witness(Arc<AtomicU8>);

const NOTHING: u8 = 0;
const ENDED: u8 = 1;
const SILENT: u8 = 2;

impl Witness {
    /// What it was; `Broken` if no half failed by itself.
    pub(super) fn loss(&self) -> Loss {
        match self.0.load(Ordering::Acquire) {
            NOTHING => Loss::Broken,
            SILENT => Loss::Silent,
            _ => Loss::Ended,
        }
    }

    fn saw(&self, what: u8) {
        // The first failure is the cause; what follows from it says little.
        let _ = self.0.compare_exchange(NOTHING, what, Ordering::AcqRel, Ordering::Acquire);
    }

    fn failed(&self, error: &io::Error) {
        use io::ErrorKind::{HostUnreachable, Interrupted, NetworkDown, NetworkUnreachable, TimedOut};
        match error.kind() {
            Interrupted => {}
            TimedOut | HostUnreachable | NetworkUnreachable | NetworkDown => self.saw(SILENT),
            _ => self.saw(ENDED),
        }
    }

    pub(super) fn reader(&self, inner: Box<dyn Read + Send>) -> Box<dyn Read + Send> {
        Box::new(Watched { inner, witness: self.clone() })
    }

    pub(super) fn writer(&self, inner: Box<dyn Write + Send>) -> Box<dyn Write + Send> {
        Box::new(Watched { inner, witness: self.clone() })
    }
}

struct Watched<T> {
    inner: T,
    witness: Witness,
}

impl<T: Read> Read for Watched<T> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let result = self.inner.read(out);
        match &result {
            Ok(0) if !out.is_empty() => self.witness.saw(ENDED),
            Ok(_) => {}
            Err(error) => self.witness.failed(error),
        }
        result
    }
}

impl<T: Write> Write for Watched<T> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.inner.write(data).inspect_err(|error| self.witness.failed(error))
    }
    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush().inspect_err(|error| self.witness.failed(error))
    }
}
