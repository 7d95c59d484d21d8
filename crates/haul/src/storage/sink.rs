//! The sink's storage: a jailed tree, an engine that writes into it, and what a job keeps beside its data.
//!
//! In: `SinkOp`s with payload. Out: `SinkDone`s; files that appear under their names whole or not at all.
//!
//! Reading order: [`names`], [`tree`], `files` (temporaries), `commit` (metadata, sync, rename), [`engine`]
//! (threads), [`owner`] (one run per job), [`journal`] (restart markers), [`clean`] (debris of dead jobs).
//!
//! What must hold: effects go through [`super::jail`] only; a run that lost its job publishes nothing.
//! Left out: direct I/O, pre-allocation and an early start of write-back (`sync_file_range` has no safe
//! wrapper); sizes of system buffers are left to the kernel until the tuner measures them.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub mod clean;
mod commit;
pub mod engine;
mod fault;
mod files;
pub mod journal;
pub mod names;
pub mod owner;
pub mod tree;

pub use commit::{NotKept, NotKeptCounters};
pub use engine::{EngineConfig, WriteEngine};
pub use journal::Journal;
pub use names::{JobKey, tag_of, temp_name};
pub use owner::{AcquireError, JobDir, Owner, OwnerInfo, Patience};
pub use tree::SinkTree;

/// Locks, also after a panic elsewhere: every state behind these locks is whole between two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
