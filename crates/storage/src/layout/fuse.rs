//! FUSE file systems that are none of the others: what answers as Lustre does is served so, under its own
//! name.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use haul_core::layout::{Layout, TargetName, lustre as decode};
use rustix::io::Errno;

use super::{AskError, PROVIDERS, Parallel, attribute, lustre};

/// The magic number of all of FUSE.
pub(super) const MAGIC: u32 = 0x6573_5546;

/// What any of them is asked. Its name is that of its mount: see [`name_of`].
pub(super) static OTHER: Parallel = Parallel {
    name: "fuse",
    magic: None,
    kinds: &[],
    keeps_positions: false,
    keeps_versions: false,
    ask,
    ..lustre::PROVIDER
};

/// What one calls itself, as the kernel has it in the kind of its mount; `fuse` if it says nothing. One that
/// takes a name which haul uses for something else keeps the word `fuse` before it.
pub(super) fn name_of(kind: &str) -> Arc<str> {
    let own = kind.split_once('.').map_or("", |(_, own)| own);
    let taken = |name: &str| name == "flat" || PROVIDERS.iter().any(|known| known.name == name);
    let name = match own {
        "" => "fuse",
        own if taken(own) => kind,
        own => own,
    };
    TargetName::new(name).as_str().into()
}

fn ask(file: BorrowedFd<'_>, _size: u64) -> Result<Layout, AskError> {
    match attribute(file, lustre::ATTRIBUTE) {
        Ok(value) => Ok(decode(&value)?),
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => Err(AskError::Nobody),
        Err(error) => Err(error.into()),
    }
}
