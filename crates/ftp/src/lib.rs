//! haul-ftp: a client of FTP servers.
//!
//! In: a [`Server`], paths as bytes. Out: a [`Session`] that lists directories, tells facts of files and
//! gives their bytes. Everything blocks, each wait at most as long as the session's patience; who wants
//! several things at a time opens several sessions.
//! Invariants: nothing that a server sends panics or grows without a bound; a password is in no error and in
//! no `Debug`; a file counts as whole only when the server said so behind its last byte;
//! one that was sent only when the server said that it has it, behind its last byte;
//! where TLS is wanted nothing but the greeting goes without.
//! Left out: names below a path (who lists joins them), hashing, retries, and what is done with the bytes.
//!
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod ahead;
mod blocks;
mod callers;
mod channel;
mod control;
mod data;
mod dialling;
mod error;
mod gsi;
mod identity;
mod lanes;
mod listed;
pub mod netrc;
mod nodes;
pub mod pair;
mod sender;
pub mod server;
mod session;
mod several;
mod ssh;
pub mod steer;
mod store;
mod times;
mod tls;
mod together;

pub use blocks::{Coming, Room, Turn, Wanted};
pub use control::COMMANDS_LEN_MAX;
pub use data::Incoming;
pub use error::{Error, says_gone};
pub use gsi::{Credential, DELEGATED_BY_NO_RSA, DataSecurity};
pub use haul_gridftp::listing::{Facts, Kind, Moment, write_moment};
pub use haul_gridftp::ranges::Ranges;
pub use listed::Listed;
pub use sender::{Going, Over, Pipeline};
pub use server::{Protocol, Server};
pub use session::{Asked, Security, Session, Settings, may_lack_links};
pub use several::Set;
pub use ssh::Ssh;
pub use store::{Outgoing, Sum, Way};
pub use tls::Trust;
