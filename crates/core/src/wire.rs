//! The wire: frames, messages and their limits. See `docs/wire.md` for the byte layout.
//!
//! In: bytes of a peer, or messages of our own machines. Out: the other of the two.
//! Invariants: nothing is allocated from a number that a peer sent beyond what the bytes at hand can fill;
//! each list, string and frame has a named maximum; what an encoder here makes, the decoder here takes.
//! Left out: order and meaning (which message may come when, whether a sequence number fits) belong to the
//! streams and to the session machines.
//!
//! Reading order: [`message`](Message) says what is said, with `failure` and `report` for what went wrong and
//! what was measured; `frame` the fixed parts; `join` how a connection begins; `encode` and `decode` the
//! control messages (`parts` what several have in common, `entries` what is announced, `tables` what is for
//! people, `job` those of a job of many hosts); `data` the data frames; `negotiate` what two hellos agree on.

pub(crate) mod codec;
mod data;
mod decode;
mod encode;
mod entries;
mod error;
mod failure;
mod frame;
mod job;
mod join;
mod message;
mod negotiate;
mod parts;
mod report;
mod tables;

pub use data::*;
pub use decode::*;
pub use encode::*;
pub use entries::announced_len;
pub use error::*;
pub use failure::*;
pub use frame::*;
pub use job::*;
pub use join::*;
pub use message::*;
pub use negotiate::*;
pub use parts::LIST_LEN_MAX;
pub use report::*;
pub use tables::TABLE_LEN_MAX;
