//! Transports: how frames get from one end to the other.
//!
//! A transport makes [`Link`]s: one for control, N for data. The threads in [`stream`] speak frames over any
//! link, so that a new transport is one file that makes links: [`memory`] in one process, [`tls`] over TCP,
//! [`mux`] through one byte pipe such as ssh's. [`bootstrap`] chooses among them. [`rejoin`] is how links come up after
//! the start.
//!
//! What every link keeps, and `tests/transport_conformance.rs` checks for each:
//! - bytes arrive whole and in order, both directions at once, each half used by its own thread;
//! - dropping the writer, after a flush, ends that direction: the peer reads EOF after the last byte, and
//!   only then. An end in the middle is an error, never EOF;
//! - the closer ends both directions at once and wakes whoever waits in them. It may lose what was not
//!   read yet, so that it is for ends in anger, or for after the peer's EOF;
//! - a writer may hold bytes back until it is flushed.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub mod bootstrap;
pub mod memory;
pub mod mux;
pub mod pace;
pub mod path;
pub mod rejoin;
pub mod routes;
pub mod stream;
pub mod tcp;
pub mod tls;

/// A reliable, ordered byte pipe in both directions, already authenticated.
pub struct Link {
    pub reader: Box<dyn Read + Send>,
    pub writer: Box<dyn Write + Send>,
    /// Ends both directions at once and wakes whoever waits in them.
    pub closer: Arc<dyn Fn() + Send + Sync>,
    /// The connection below, to ask ([`tcp::sample`]) and to set; never to read or write. `None`: there is none of
    /// its own.
    pub socket: Option<Arc<TcpStream>>,
}

impl Link {
    /// The other end has ended the connection, or it broke, whatever may still be there to read. False where the link has
    /// no connection of its own.
    pub fn is_left(&self) -> bool {
        let Some(socket) = &self.socket else { return false };
        let mut fds = [PollFd::new(&**socket, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&now)).is_ok() && !fds[0].revents().is_empty()
    }
}

/// Takes events from any thread. Never blocks.
pub type Post<T> = Arc<dyn Fn(T) + Send + Sync>;

/// What went wrong between the two ends.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct TransportError {
    pub what: String,
    #[source]
    pub source: Option<io::Error>,
}
