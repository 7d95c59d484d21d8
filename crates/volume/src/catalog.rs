//! The catalog of a volume: names, attributes, numbers; who keeps it, serves it and asks it.
//!
//! In: a directory of its own on a disk of this host, requests of clients. Out: answers that last.
//! What is asked and answered is in `haul_core::volume::catalog`, with what clients can count on.
//! Reading order: [`store`], [`tree`]; [`holds`], [`desk`], [`server`]; [`client`].

pub mod client;
pub mod desk;
pub mod holds;
#[cfg(test)]
mod model;
pub mod server;
pub mod store;
pub mod tree;
