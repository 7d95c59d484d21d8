//! CephFS: an attribute for the striping; the kernel client also says which OSD has an object. A new file
//! takes its stripes while it is empty.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use haul_core::entry::Name;
use haul_core::layout::{Layout, Striping, ceph, ceph_wish};
use rustix::fs::{XattrFlags, fsetxattr};
use rustix::io::Errno;

use super::{AskError, NewFile, Parallel, attribute};
use crate::jail::Jail;
use haul_base::sys;

pub(super) const PROVIDER: Parallel = Parallel {
    name: "cephfs",
    magic: Some(0x00C3_6400),
    kinds: &["ceph", "fuse.ceph", "fuse.ceph-fuse"],
    source: None,
    keeps_positions: true,
    keeps_versions: true,
    new_file: NewFile::Striped,
    ask,
    make: Some(make),
};

const ATTRIBUTE: &str = "ceph.file.layout";

/// Most objects whose place is asked for, each with a system call of its own; where the others lie stays
/// open.
const ASKED_MAX: u64 = 4096;

fn ask(file: BorrowedFd<'_>, size: u64) -> Result<Layout, AskError> {
    let striping = ceph(&attribute(file, ATTRIBUTE)?)?;
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

fn make(jail: &Jail, dir: &OwnedFd, name: &Name, wanted: Striping) -> Result<OwnedFd, Errno> {
    let wish = ceph_wish(wanted).ok_or(Errno::INVAL)?;
    let file = jail.create_temp(dir, name)?;
    fsetxattr(file.as_fd(), ATTRIBUTE, wish.as_bytes(), XattrFlags::empty())?;
    Ok(file)
}
