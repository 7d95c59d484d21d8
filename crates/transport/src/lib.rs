//! Transports: how frames get from one end to the other.
//!
//! A transport makes [`Link`]s: one for control, N for data. The threads in [`stream`] speak frames over any
//! link, so that a new transport is one file that makes links: [`memory`] in one process, [`tls`] over TCP,
//! [`mux`] through one byte pipe such as ssh's, [`pipe`] over one of its own. The crate `haul-launch` chooses
//! among them. [`rejoin`] is how links come up after the start.
//!
//! What every link keeps, and `tests/transport_conformance.rs` checks for each:
//! - bytes arrive whole and in order, both directions at once, each half used by its own thread;
//! - dropping the writer, after a flush, ends that direction: the peer reads EOF after the last byte, and
//!   only then. An end in the middle is an error, never EOF;
//! - the closer ends both directions at once and wakes whoever waits in them. It may lose what was not
//!   read yet, so that it is for ends in anger, or for after the peer's EOF;
//! - a writer may hold bytes back until it is flushed.
//!
#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;

pub mod frames;
#[cfg(test)]
mod frames_tests;
pub mod memory;
pub mod mux;
pub mod pace;
pub mod path;
pub mod pipe;
mod protect;
pub mod rejoin;
pub mod routes;
pub mod stream;
pub mod tcp;
pub mod tls;

use frames::FrameKeys;
pub use protect::Protect;
pub use tcp::TcpSample;

/// A reliable, ordered byte pipe in both directions, already authenticated.
pub struct Link {
    pub reader: Box<dyn Read + Send>,
    pub writer: Box<dyn Write + Send>,
    /// Ends both directions at once and wakes whoever waits in them.
    pub closer: Arc<dyn Fn() + Send + Sync>,
    /// The connection below, to ask and to set. `None`: there is none of its own.
    pub connection: Option<Arc<dyn Connection>>,
    pub guard: Guard,
    /// Payload does not go by the bytes, but from hand to hand. `None`: the other end may be anywhere.
    pub hands: Option<memory::Hands>,
}

/// What lies below a link that has a connection of its own: what can be asked of it and set while it is used.
/// Each answer may be that there is none, and nothing that cannot be set ends anything.
pub trait Connection: Send + Sync {
    /// The other end has ended it, or it broke, whatever may still be there to read.
    fn is_left(&self) -> bool;
    /// From where to where it goes.
    fn ends(&self) -> Option<[SocketAddr; 2]> {
        None
    }
    /// How it fares: round trips, what is under way, what was lost.
    fn sample(&self) -> Option<TcpSample> {
        None
    }
    /// The congestion control that it has, and those that it could have.
    fn control(&self) -> Option<String> {
        None
    }
    fn controls(&self) -> Vec<String> {
        Vec::new()
    }
    /// Sets the congestion control, for what this end sends.
    ///
    /// # Errors
    /// It cannot be had; the text names those that can.
    fn set_control(&self, _name: &str) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Keeps what waits to be sent where any stream can take it.
    fn bound_unsent(&self) {}
    /// Fixes the buffer that it sends from at so many bytes, and says how many it has now.
    ///
    /// # Errors
    /// It cannot be set.
    fn fix_send(&self, _bytes: u64) -> io::Result<u64> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Widens the buffer that it receives into, and says how many bytes it has now.
    ///
    /// # Errors
    /// It cannot be set.
    fn widen_receive(&self, _bytes: u64) -> io::Result<u64> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// How many bytes that buffer has.
    fn receive_buffer(&self) -> Option<u64> {
        None
    }
}

/// What guards the data frames of a link: the link itself, or, once it is [`bare`](Link::bare), codes of
/// their own.
#[derive(Default)]
pub struct Guard {
    /// Each ends the link's own protection of what follows: of what is read, and of what is written.
    unseal: Option<(Unseal, Unseal)>,
    /// Set where frames carry codes.
    pub keys: Option<FrameKeys>,
}

/// Ends a link's own protection of what follows in one direction.
pub type Unseal = Arc<dyn Fn() + Send + Sync>;

impl Guard {
    /// Of a link that protects what it carries until these are called, for what is read and for what is
    /// written.
    fn of(incoming: Unseal, outgoing: Unseal) -> Guard {
        Guard { unseal: Some((incoming, outgoing)), keys: None }
    }
}

impl Link {
    /// From here on what is written goes to the connection as it is, unencrypted, and its frames carry codes
    /// made with `keys`. The other end does the same at the same byte of either direction. Nothing may be
    /// half written.
    ///
    /// # Errors
    /// A link that protects by other means (in one process, in ssh's pipe) stays as it is.
    pub fn bare(&mut self, keys: FrameKeys) -> Result<(), TransportError> {
        self.bare_out(keys).map(|incoming| incoming())
    }

    /// As [`Link::bare`], where something protected is still to be read: what is written is bare from here
    /// on, what is read once the returned function was called.
    ///
    /// # Errors
    /// As [`Link::bare`].
    pub fn bare_out(&mut self, keys: FrameKeys) -> Result<Unseal, TransportError> {
        let Some((incoming, outgoing)) = self.guard.unseal.clone() else {
            return Err(TransportError {
                what: "this connection cannot go without encryption".into(),
                source: None,
            });
        };
        outgoing();
        self.guard.keys = Some(keys);
        Ok(incoming)
    }
}

impl Link {
    /// The other end has ended the connection, or it broke, whatever may still be there to read. False where
    /// the link has no connection of its own.
    pub fn is_left(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.is_left())
    }
}

pub use haul_base::Post;
/// What went wrong between the two ends.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct TransportError {
    pub what: String,
    #[source]
    pub source: Option<io::Error>,
}
