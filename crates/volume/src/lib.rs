//! Striped volumes: servers and clients.
//!
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod access;
pub mod api;
pub mod boot;
pub mod catalog;
pub mod check;
pub mod client;
pub mod contents;
pub mod dial;
mod disk;
pub mod door;
pub mod drain;
pub mod fsck;
pub mod home;
pub mod key;
pub mod line;
pub mod lists;
pub mod log;
pub mod place;
pub mod private;
mod reserve;
pub mod server;
pub mod shelf;
pub mod sweep;
pub mod visit;
mod wallet;

/// Whether the number of an error says that room lacks, and that nothing is broken.
pub fn is_full(errno: i32) -> bool {
    reserve::is_full_raw(errno)
}
