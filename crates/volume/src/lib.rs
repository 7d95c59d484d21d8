//! Striped volumes: servers and clients.
//!
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod dial;
pub mod line;
mod disk;
pub mod log;
pub mod shelf;
