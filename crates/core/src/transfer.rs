//! The two session machines and what they ask of the driver.
//!
//! [`source::Source`] and [`sink::Sink`] take events by `handle_*` and yield actions by `poll_action`.
//! The operations that they ask of storage are in [`op`].

pub mod op;
