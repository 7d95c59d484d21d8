//! The library: copies between two ends, and what steers and watches them.
//!
#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]
#![warn(missing_docs)]

pub mod api;
mod clean;
mod copy;
pub mod ctl;
mod driver;
pub mod endpoint;
mod error;
mod events;
mod handle;
mod layout;
pub mod options;
pub mod passport;
pub mod process;
mod request;
mod summary;
mod target_tables;
pub mod trial;

pub use haul_base::{errno, escape, kernel, size};
