//! What storage and transport have in common: payload buffers, digests, meters of the stages, system calls
//! that no library wraps, the words of errors, and names that are safe to show. Neither knows the other.
//!
#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

use std::sync::Arc;

pub mod buffer;
pub mod bytes;
pub mod digest;
pub mod errno;
pub mod escape;
pub mod kernel;
pub mod meter;
pub mod mounts;
pub mod role;
pub mod size;
pub mod stop;
pub mod sys;
pub mod users;
pub mod way;

/// Takes events from any thread. Never blocks.
pub type Post<T> = Arc<dyn Fn(T) + Send + Sync>;
