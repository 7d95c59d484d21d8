//! haul: the part of haul that does. Storage engines, transports, the driver, and the public API.
//!
//! Dependencies: `cli -> haul -> core`. In here `driver -> storage, transport`; these two never name each
//! other and share only [`buffer`], [`digest`] and [`meter`].
#![deny(unsafe_code)]

pub mod api;
mod board;
pub mod buffer;
mod clean;
mod control;
mod copy;
pub mod ctl;
pub mod digest;
mod driver;
pub mod endpoint;
pub mod escape;
pub mod job;
pub mod kernel;
pub mod meter;
mod mounts;
pub mod probe;
pub mod size;
pub mod storage;
mod sys;
pub mod transport;
mod users;
