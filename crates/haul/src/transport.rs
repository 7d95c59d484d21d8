//! Transports: how frames get from one end to the other.
//!
//! A transport makes [`Link`]s: one for control, N for data. The threads in [`stream`] speak frames over any
//! link, so that a new transport is one file that makes links.

use std::io::{self, Read, Write};
use std::sync::Arc;

pub mod bootstrap;
pub mod memory;
pub mod mux;
pub mod stream;
pub mod tls;

/// A reliable, ordered byte pipe in both directions, already authenticated.
pub struct Link {
    pub reader: Box<dyn Read + Send>,
    pub writer: Box<dyn Write + Send>,
    /// Ends both directions at once and wakes whoever waits in them.
    pub closer: Arc<dyn Fn() + Send + Sync>,
}

/// What went wrong between the two ends.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct TransportError {
    pub what: String,
    #[source]
    pub source: Option<io::Error>,
}
