//! Striped volumes: servers and clients.
//!
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod access;
pub mod boot;
pub mod catalog;
pub mod check;
pub mod client;
pub mod contents;
pub mod dial;
mod disk;
pub mod drain;
pub mod fsck;
pub mod home;
pub mod key;
pub mod line;
pub mod log;
pub mod private;
pub mod server;
pub mod shelf;
pub mod sweep;
pub mod visit;
