//! Striped volumes: what is decided about them, without a clock, a socket or a byte of anybody's.
//!
//! Reading order: [`cost`], [`threshold`].

pub mod cost;
pub mod threshold;
