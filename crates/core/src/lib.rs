//! haul-core: the part of haul that decides.
//!
//! In: events (a frame arrived, an object was read, a stream was lost, time passed).
//! Out: actions (read this, send that, write, commit). No OS, no clock, no thread, and no payload
//! byte: buffers are ids. So one seed replays any order of events, and the brain of a real
//! transfer is the brain of the simulator.
//!
//! Reading order: [`ids`], [`entry`], [`extents`], [`digest`], [`wire`], [`journal`], [`transfer`], [`job`];
//! [`io`], [`layout`], [`reliability`], [`resend`], [`schedule`], [`tune`] and [`volume`] stand alone.
//!
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

// For `Arc`, which shares lists that never change; what else `sync` has is not for this crate.
extern crate alloc;

pub mod change;
pub mod digest;
pub mod entry;
pub mod extents;
pub mod id_map;
pub mod ids;
pub mod io;
pub mod job;
pub mod journal;
pub mod layout;
pub mod metadata;
pub mod reliability;
pub mod resend;
pub mod schedule;
pub mod stage;
pub mod transfer;
pub mod tune;
pub mod volume;
pub mod wire;
