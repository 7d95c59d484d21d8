//! What a probe will cost.

use super::{Plan, ProbeError, Request};

/// Looks at the storage without a write, and says what a probe will cost at most.
///
/// # Errors
/// There can be no probe, or the user has to be asked first ([`ProbeError::AskFirst`]).
pub fn plan(request: &Request) -> Result<Plan, ProbeError> {
    Err(ProbeError::NotADirectory(request.path.clone()))
}
