//! Striped volumes: servers and clients.
//!
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod catalog;
pub mod client;
pub mod dial;
mod disk;
pub mod line;
pub mod log;
pub mod server;
pub mod shelf;
pub mod sweep;
