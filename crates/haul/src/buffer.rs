//! Payload buffers: page-aligned, pooled, bounded. STUB: being written; signatures are final.
//!
//! Invariant: the bytes handed out (rounded up to slots, `wire::credit_cost`) never exceed the limit.

use haul_core::ids::BufferId;

/// A bounded pool of buffers; cloning shares it.
#[derive(Clone)]
pub struct Pool;

/// The pool's limit is reached. From a stream this means that the peer sent more than it was granted.
#[derive(Debug, thiserror::Error)]
#[error("buffer pool of {limit} bytes is exhausted")]
pub struct Exhausted {
    pub limit: u64,
}

/// A page-aligned buffer of `len` payload bytes; goes back to its pool when dropped.
pub struct Buffer;

impl Pool {
    /// A pool that hands out at most `limit` bytes at a time.
    pub fn new(_limit: u64) -> Pool {
        todo!()
    }
    /// A buffer of `len` bytes (content unspecified, never uninitialised memory). Never blocks.
    pub fn take(&self, _len: usize) -> Result<Buffer, Exhausted> {
        todo!()
    }
    /// Bytes handed out now, and the most that ever were.
    pub fn in_use(&self) -> (u64, u64) {
        todo!()
    }
}

impl Buffer {
    /// Unique among the live buffers of the process.
    pub fn id(&self) -> BufferId {
        todo!()
    }
    pub fn as_slice(&self) -> &[u8] {
        todo!()
    }
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        todo!()
    }
    /// Shortens the payload (a bundle whose files shrank). Never grows.
    pub fn truncate(&mut self, _len: usize) {
        todo!()
    }
}
