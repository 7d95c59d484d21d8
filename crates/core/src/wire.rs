//! The wire: frames, messages and their limits. See `docs/wire.md` for the byte layout.
//!
//! Invariant: nothing is allocated from a number that a peer sent; each list, string and frame has a
//! named maximum here.

mod codec;
mod frame;
mod message;

pub use frame::*;
pub use message::*;

pub(crate) use codec::{Reader, Writer};
