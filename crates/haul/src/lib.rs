//! The library: copies between two ends, and what steers and watches them.
//!
#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

pub mod api;
mod board;
mod clean;
mod control;
mod copy;
pub mod ctl;
mod driver;
pub mod endpoint;
mod error;
mod events;
pub mod job;
mod layout;
pub mod passport;
pub mod process;
mod request;
mod summary;
pub mod trial;

pub use haul_base::{escape, kernel, size};
