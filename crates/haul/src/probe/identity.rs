//! Which file system a path lies on.

use std::path::Path;

use super::{ProbeError, StorageIdentity};

/// The file system that `path` lies on. A path that does not exist yet counts as its nearest parent that does.
///
/// # Errors
/// The system does not tell.
pub fn identify(path: &Path) -> Result<StorageIdentity, ProbeError> {
    Err(ProbeError::NotADirectory(path.to_owned()))
}
