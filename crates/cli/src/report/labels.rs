//! Words that texts and JSON have in common.

use haul::api::Status;

/// The word for a status, in JSON and in texts.
pub fn status(status: Status) -> &'static str {
    match status {
        Status::Complete => "complete",
        Status::Partial => "partial",
        Status::Failed => "failed",
        Status::Interrupted => "interrupted",
    }
}
