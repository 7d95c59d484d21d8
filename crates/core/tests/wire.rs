//! The wire format as an independent peer sees it: only the public interface is used.

#[path = "wire/damage.rs"]
mod damage;
#[path = "wire/data.rs"]
mod data;
#[path = "wire/golden.rs"]
mod golden;
#[path = "wire/job.rs"]
mod job;
#[path = "wire/negotiation.rs"]
mod negotiation;
#[path = "wire/refusals.rs"]
mod refusals;
#[path = "wire/round_trip.rs"]
mod round_trip;
#[path = "wire/samples.rs"]
mod samples;
#[path = "wire/scopes.rs"]
mod scopes;
