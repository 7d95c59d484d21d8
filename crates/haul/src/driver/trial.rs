//! A session that is measured: somebody else turns its streams, their congestion control and their buffers.
//!
//! In: what the source's end of a session sees of the network, about twenty times a second. Out: the setting
//! to use from now on. Whoever implements this ends the session by its `Handle`.
//! Invariant: while there is a trial nothing else turns these.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use haul_core::ids::{StreamId, Time};

use haul_transport::tcp::TcpSample;

/// Looks are so far apart, at least.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What is seen of the network at one moment. Counts are since the session began.
pub struct Look<'a> {
    /// The moment.
    pub now: Time,
    /// Payload that the sink has received, checked and taken, bytes: told about four times a second.
    pub taken: u64,
    /// When it was told so.
    pub taken_at: Time,
    /// Streams that carry data.
    pub streams: u16,
    /// Those of them that have a connection of their own, as the kernel sees it.
    pub flows: &'a [(StreamId, TcpSample)],
    /// Bytes of all connections that there were, headers and seals included: sent, and sent again.
    pub sent: u64,
    /// Of these, bytes that were sent again.
    pub again: u64,
    /// User and system time of this process.
    pub cpu: Duration,
}

/// A setting to use from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Data streams that carry data.
    pub streams: u16,
    /// `None`: what the connections have.
    pub control: Option<String>,
    /// Bytes under way that each send buffer holds; `None`: left as it is. The kernel's own growth does not
    /// come back.
    pub window: Option<u64>,
}

/// See the module.
pub trait Trial: Send {
    /// Decides what to do next. Must not block.
    fn look(&mut self, look: &Look<'_>) -> Option<Turn>;
    /// The last turn could not be made as a whole: why.
    fn refused(&mut self, why: String);
    /// What the other end is to hear, JSON, at most [`TRIAL_LEN_MAX`](haul_core::wire::TRIAL_LEN_MAX); asked
    /// until there is nothing more.
    fn say(&mut self) -> Option<Vec<u8>> {
        None
    }
}

/// A trial, shared with whoever wants its result.
pub type SharedTrial = Arc<Mutex<dyn Trial>>;
