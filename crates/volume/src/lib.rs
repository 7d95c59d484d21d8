//! Striped volumes: servers and clients.
//!
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod disk;
pub mod log;
pub mod shelf;
