//! CephFS: an attribute for the striping; the kernel client also says which OSD has an object.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;

use haul_core::layout::{Layout, ceph};

use super::{AskError, attribute};
use haul_base::sys;

/// Most objects whose place is asked for, each with a system call of its own; where the others lie stays open.
const ASKED_MAX: u64 = 4096;

pub(super) fn ask(file: BorrowedFd<'_>, size: u64) -> Result<Layout, AskError> {
    let striping = ceph(&attribute(file, "ceph.file.layout")?)?;
    let mut places = BTreeMap::new();
    let mut offset = 0;
    // One stripe unit of each object tells where all of it lies; the first of a set come one after another.
    'sets: while offset < size.max(1) {
        for position in 0..striping.stripe_count {
            let at = offset.saturating_add(position.saturating_mul(striping.stripe_unit));
            // ceph-fuse has no such question: ENOTTY at the first one.
            match sys::ceph_data_location(file, at) {
                Ok(osd) if (places.len() as u64) < ASKED_MAX => {
                    places.insert(striping.object_at(at), osd);
                }
                _ => break 'sets,
            }
        }
        offset = offset.saturating_add(striping.set_len());
    }
    Ok(striping.layout(size, |object| places.get(&object).copied())?)
}
