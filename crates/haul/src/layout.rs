//! Where a file lies, as its file system tells.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use haul_base::errno;
use haul_base::role::Role;
use haul_core::layout::Layout;
use rustix::io::Errno;

use crate::error::Error;

/// Where a file lies.
#[derive(Clone, Debug)]
pub struct FileLayout {
    /// Bytes.
    pub size: u64,
    /// The parallel file system that says so. A FUSE file system that haul does not know, and that answers as
    /// Lustre does, goes by its own name. `flat` where nobody says more than the device.
    pub provider: String,
    /// Which range lies on which storage target.
    pub layout: Layout,
    /// A parallel file system was asked and gave no layout: its reason.
    pub why_flat: Option<String>,
}

/// Asks the file system where the regular file at `path` lies. Reads nothing of it.
///
/// # Errors
/// It cannot be opened, or is no regular file.
pub fn layout(path: &Path) -> Result<FileLayout, Error> {
    use rustix::fs::{FileType, Mode, OFlags, fstat, open};
    let bytes = Some(path.as_os_str().as_bytes());
    let failed = |what: &str, error: Errno| {
        let text = format!("{what} {}: {}", path.display(), errno::text(error));
        Error::system(text, error.raw_os_error()).about(Role::Source, bytes)
    };
    // Without waiting, for it may turn out to be a pipe.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = open(path, flags, Mode::empty()).map_err(|e| failed("open", e))?;
    let stat = fstat(&file).map_err(|e| failed("look at", e))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        let text = format!("{} is no regular file; only these have a layout", path.display());
        return Err(Error::usage(text).about(Role::Source, bytes));
    }
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let found = haul_storage::layout::layout_of(&file, size);
    let provider = found.provider.name().to_owned();
    Ok(FileLayout { size, provider, layout: found.layout, why_flat: found.why_flat })
}
