//! GlusterFS: an attribute in words.

use std::os::fd::BorrowedFd;

use haul_core::layout::{Layout, gluster};

use super::{AskError, NewFile, Parallel, attribute};

pub(super) const PROVIDER: Parallel = Parallel {
    name: "glusterfs",
    magic: None,
    kinds: &["glusterfs", "fuse.glusterfs"],
    source: None,
    keeps_positions: false,
    keeps_versions: false,
    new_file: NewFile::Whole,
    ask,
    make: None,
};

/// Root may ask by the trusted name, which says the same in every version; others by the plain one.
fn ask(file: BorrowedFd<'_>, _size: u64) -> Result<Layout, AskError> {
    let value =
        attribute(file, "trusted.glusterfs.pathinfo").or_else(|_| attribute(file, "glusterfs.pathinfo"))?;
    Ok(gluster(&value)?)
}
