//! haul-ftpd: a server of FTP and GridFTP.
//!
//! In: sockets that listen, a directory or a volume. Out: its files to clients, and theirs into it.
//! What must hold: whoever connects is hostile. Each session is a process of its own, which may do what its
//! login may and nothing else ([`monitor`]); every effect on files is by an open directory and one name
//! ([`store`]); a file gets its name when all of it is on media ([`part`]); nothing is waited for without
//! end, and nothing is kept without bound ([`config`] has the limits). Left out: printing, signals and the
//! environment, which are the program's.
//!
//! Reading order: [`config`], [`monitor`], [`people`], [`session`], [`control`], [`lock`], [`relay`],
//! [`store`], [`tree`], [`part`], [`data`], [`guard`], [`tls`], [`send`], [`receive`], [`link`].
//!
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod config;
pub mod control;
pub mod data;
pub mod guard;
pub mod link;
pub mod listing;
pub mod lock;
pub mod log;
pub mod monitor;
pub mod part;
pub mod people;
pub mod progress;
pub mod receive;
pub mod relay;
pub mod seen;
pub mod send;
pub mod session;
pub mod store;
pub mod sums;
pub mod tls;
pub mod transfer;
pub mod tree;
