//! The catalog of a volume: names, attributes, numbers; who keeps it, serves it and asks it.
//!
//! In: a directory of its own on a disk of this host, requests of clients. Out: answers that last.
//! What is asked and answered is in `haul_core::volume::catalog`, with what clients can count on.
//! Reading order: [`store`], [`tree`], `lists`; [`holds`], [`desk`], [`server`]; [`client`].

use std::time::Duration;

mod asks;
pub mod client;
pub mod desk;
mod giver;
pub mod holds;
mod lists;
#[cfg(test)]
mod model;
pub mod server;
mod skips;
mod states;
pub mod store;
pub mod tree;

/// Who says nothing for so long, client or catalog, is taken for gone; clients that have nothing to say ping.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(30);
