//! Striped volumes: servers and clients.
//!
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod catalog;
pub mod dial;
pub mod line;
pub mod log;
pub mod shelf;
