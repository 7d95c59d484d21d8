//! The sink's storage: a jailed tree, an engine that writes into it, and what a job keeps beside its data.
//!
//! In: `SinkOp`s with payload. Out: `SinkDone`s; files that appear under their names whole or not at all.
//!
//! Reading order: [`names`], [`tree`], `files` (temporaries), [`space`] (their blocks), `data` (the way of an object
//! into its file), `gate` (one mode at a time), `mode` (direct or buffered), `cache` (pages leave), [`places`] and [`stripes`] (several storage targets), `commit`
//! (metadata, sync, rename), [`engine`] (threads), `gather` (many items), `keeper` (the journal's thread), [`owner`] (one run per job), [`journal`] (restart markers),
//! [`clean`] (debris of dead jobs).
//!
//! What must hold: effects go through [`super::jail`] only; a run that lost its job publishes nothing.
//! Left out: sizes of system buffers, which are left to the kernel until the tuner measures them.

use std::sync::{Mutex, MutexGuard, PoisonError};

mod cache;
pub mod clean;
mod commit;
mod data;
pub mod engine;
mod fault;
mod files;
mod gate;
mod gather;
pub mod journal;
mod keeper;
pub mod look;
mod mode;
pub mod names;
pub mod owner;
pub mod places;
pub mod space;
pub mod stripes;
pub mod tree;
mod verify;

pub use commit::{NotKept, NotKeptCounters};
pub use engine::{EngineConfig, WriteEngine};
pub use journal::Journal;
pub use names::{JobKey, tag_of, temp_name};
pub use owner::{AcquireError, JobDir, Owner, OwnerInfo, Patience};
pub use places::{Ground, Places};
pub use stripes::Stripes;
pub use tree::SinkTree;

/// Locks, also after a panic elsewhere: every state behind these locks is whole between two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
