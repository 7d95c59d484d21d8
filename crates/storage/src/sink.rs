//! The sink's storage: a jailed tree, an engine that writes into it, and what a job keeps beside its data.
//!
//! In: `SinkOp`s with payload. Out: `SinkDone`s; files that appear under their names whole or not at all.
//!
//! Reading order: [`names`], `stat` and `calls` (what the system is asked), [`tree`], `above` (the way to
//! the root), `files` (temporaries, what earlier runs left of them, and what stands there), [`looker`] (the
//! same, for dry runs), [`space`] (their blocks), `way` (of an object into its file), `mode_switch` (one
//! mode at a time), `syncs` (one sync at a time), `mode` (direct or buffered), `cache` (pages leave), `meta`
//! (owner, mode, mtime), `gives` (what of owners a user can keep), `fold` (names that are taken for one),
//! [`layout`] and [`stripes`] (several storage targets), `files/in_place` (without temporaries; `beside`:
//! into no source), [`engine`] (threads, and how each operation is done), [`owner`] (one run per job),
//! [`journal`] (restart markers), [`leftovers`] (what killed runs of this job left), [`here`] (whose a name
//! is), [`ours`] (whose a file is), [`claim`] (what a journal may claim), [`clean`] (debris of dead jobs),
//! `widened` (directories that were closed to us), `place` (a destination that cannot be used, in words),
//! `store` (all of it behind the seam of stores).
//!
//! What must hold: effects go through [`super::jail`] only; a run that lost its job publishes nothing.
//! Left out: sizes of system buffers, which are left to the kernel until the tuner measures them.

use std::sync::{Mutex, MutexGuard, PoisonError};

mod above;
mod beside;
mod cache;
mod calls;
pub mod claim;
pub mod clean;
mod confirm;
pub mod engine;
pub(crate) mod fault;
mod files;
pub mod fold;
mod gives;
pub mod here;
mod holes;
pub mod journal;
pub mod layout;
pub mod leftovers;
pub(crate) mod life;
pub mod looker;
mod meta;
mod mode;
mod mode_switch;
pub mod names;
pub mod ours;
pub mod owner;
mod place;
pub mod space;
mod stat;
pub mod store;
pub mod stripes;
mod syncs;
pub mod tree;
mod way;
mod whole_sync;
pub(crate) mod widened;

pub use beside::Beside;
pub use engine::{EngineConfig, OTHERS_DIRS, WriteEngine};
pub use files::adopt::Adopt;
pub use files::in_place::InPlace;
pub use gives::Foreseen;
pub use here::Jobs;
pub use journal::Journal;
pub use layout::{Ground, SinkLayout};
pub use leftovers::Left;
pub use meta::NotKeptCounters;
pub use names::{JobKey, tag_of, temp_name};
pub use ours::Ours;
pub use owner::{AcquireError, JobDir, Owner, OwnerInfo, Patience};
pub use stripes::Stripes;
pub use tree::SinkTree;
pub use whole_sync::WholeSync;

/// Locks, also after a panic elsewhere: every state behind these locks is whole between two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
