//! BeeGFS: an ioctl for the striping, and one for each target.

use std::os::fd::BorrowedFd;

use haul_core::layout::{Layout, beegfs};
use rustix::io::Errno;

use super::AskError;
use haul_base::sys;

pub(super) fn ask(file: BorrowedFd<'_>) -> Result<Layout, AskError> {
    let info = sys::beegfs_stripe_info(file)?;
    beegfs(&info, |index| {
        // Version 8 has wider numbers under the same name; the size in the request tells them apart.
        match sys::beegfs_stripe_target(file, index) {
            Err(Errno::NOTTY) => Ok(sys::beegfs_stripe_target_v7(file, index)?),
            target => Ok(target?),
        }
    })
}
