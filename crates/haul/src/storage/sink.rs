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

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

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

/// Descriptors that are left to everything but files being written: streams, logs, libraries.
const FDS_RESERVED: u64 = 128;
/// Most files that are worth having open at once.
const FDS_OPEN_MAX: u64 = 4096;
/// What haul asks of the system at most: some systems allow billions, and tables grow with it.
const NOFILE_MAX: u64 = 65_536;

/// Files that may be open for writing at once, from the limit of this process; at least 16.
pub fn fds_open_max() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(NOFILE_MAX);
    let taken = FDS_RESERVED + tree::DIR_FDS_MAX as u64;
    limit.saturating_sub(taken).clamp(16, FDS_OPEN_MAX) as usize
}

/// Raises the number of descriptors that this process may have to what it is allowed. Failing to is no
/// error: [`fds_open_max`] follows the limit as it is.
pub fn raise_nofile() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.unwrap_or(NOFILE_MAX).min(NOFILE_MAX);
    if limit.current.is_some_and(|current| current < wanted) {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum });
    }
}

/// Locks, also after a panic elsewhere: every state behind these locks is whole between two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
