//! Sessions that are measured, for whoever measures the way between two hosts: joined, protected and driven
//! as a copy is, from memory to memory.

pub use crate::copy::trial::{Call, Connection, Over, Prober, run, run_back, run_local};
pub use crate::driver::sink::Hears;
pub use crate::driver::trial::{Look, SharedTrial, Trial, Turn};
