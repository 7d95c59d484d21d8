//! haul-gridftp: the grammar of FTP and GridFTP.
//!
//! In: bytes of control and data connections, in any pieces. Out: replies, addresses, features, entries of
//! listings, markers and blocks as types; and the same written as bytes.
//! Invariants: nothing that a peer can send panics; every line, list and number has a named maximum; a name
//! that is yielded is one legal component of a path.
//! Left out: what to say next, sockets, TLS and time. Those are the client's and the server's.
//!
//! Reading order: [`reply`], [`command`], [`address`], [`features`], [`listing`], [`markers`], [`mode_e`].
//!
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod address;
pub mod command;
mod error;
pub mod features;
pub mod line;
pub mod list;
pub mod listing;
pub mod markers;
pub mod mode_e;
pub mod ranges;
pub mod reply;
pub mod request;
mod text;

pub use error::FtpError;
