//! BeeGFS: an ioctl for the striping, and one for each target.
//!
//! Left out: stripes for a new file, which want an ioctl that makes it.

use std::os::fd::BorrowedFd;

use haul_core::layout::{Layout, beegfs};
use rustix::io::Errno;

use super::{AskError, NewFile, Parallel};
use haul_base::sys;

pub(super) const PROVIDER: Parallel = Parallel {
    name: "beegfs",
    magic: Some(0x1983_0326),
    kinds: &["beegfs", "beegfs_nodev"],
    source: None,
    keeps_positions: true,
    keeps_versions: false,
    new_file: NewFile::Striped,
    ask,
    make: None,
};

fn ask(file: BorrowedFd<'_>, _size: u64) -> Result<Layout, AskError> {
    let info = sys::beegfs_stripe_info(file)?;
    beegfs(&info, |index| {
        // Version 8 has wider numbers under the same name; the size in the request tells them apart.
        match sys::beegfs_stripe_target(file, index) {
            Err(Errno::NOTTY) => Ok(sys::beegfs_stripe_target_v7(file, index)?),
            target => Ok(target?),
        }
    })
}
