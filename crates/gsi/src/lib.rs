//! haul-gsi: the security of the grid, for who has the sockets.
//!
//! In: certificates, keys, tokens of the other end, as bytes. Out: who the other end is, tokens for it, and
//! what is protected between the two.
//! Invariants: nobody is anybody without the checks of [`verify`], and there is no way around them; what
//! comes from the other end neither panics nor grows without a bound; a secret is in no error and in no
//! `Debug`.
//! Left out: sockets, replies, files but those of credentials and authorities; GSSAPI's own framing (`MIC`),
//! VOMS, proxies older than RFC 3820, credentials for data connections alone (`DCSC`).
//!
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod acceptor;
mod cert;
pub mod channel;
#[cfg(test)]
mod context_tests;
pub mod credential;
pub mod gridmap;
pub mod initiator;
pub mod name;
mod peer;
pub mod policy;
pub mod proxy;
pub mod shelf;
#[cfg(test)]
mod testing;
mod tokens;
pub mod verify;

pub use acceptor::Acceptor;
pub use cert::{Rights, check_times};
pub use channel::{Expects, Handshake, Level, Side, Wrapped};
pub use credential::Credential;
pub use gridmap::Gridmap;
pub use initiator::{Delegates, Initiator};
pub use name::Dn;
pub use policy::Policy;
pub use shelf::{Directory, Shelf};
pub use tokens::Step;
pub use verify::{Authorities, Purpose, Verified};

/// Why something came to nothing.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum GsiError {
    /// The other end is not whom it should be, or nobody that this host knows.
    #[error("{0}")]
    Untrusted(String),
    /// What it says is not of this session, or not in its order.
    #[error("{0}")]
    Broken(String),
    /// Something of this host: a credential, a directory.
    #[error("{0}")]
    Here(String),
}

impl GsiError {
    pub(crate) fn untrusted(why: &str) -> GsiError {
        GsiError::Untrusted(why.into())
    }

    pub(crate) fn broken(why: &str) -> GsiError {
        GsiError::Broken(why.into())
    }
}
