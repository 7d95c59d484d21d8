//! The library: copies between two ends, and what steers and watches them.
//!
#![doc = include_str!("../README.md")]
//!
//! Some items are public and not shown here: the agent and what it is asked for, and sessions that are
//! measured. They are for the program `haul` and for `haul-probe`, which are other crates, and are no part of
//! what `docs/stable.md` promises.
#![deny(unsafe_code)]
#![warn(missing_docs)]

pub mod api;
mod clean;
mod contained;
mod copy;
pub mod ctl;
mod driver;
pub mod endpoint;
mod error;
mod events;
mod handle;
mod layout;
mod modes;
pub mod options;
mod owner_map;
pub mod passport;
pub mod process;
mod request;
mod summary;
mod target_tables;
#[doc(hidden)]
pub mod trial;

/// Files of striped volumes as a program uses them. No part yet of what `docs/stable.md` promises.
#[cfg(feature = "volume")]
pub mod volume {
    pub use haul_volume::access::{Access, AccessError};
    pub use haul_volume::api::*;
    pub use haul_volume::client::VolumeError;

    // For the program `haul`.
    #[doc(hidden)]
    pub use haul_storage::vol::{are_ours, lasts};
}

pub use haul_base::{errno, escape, kernel, size};
