//! Lustre: an attribute, which also takes the stripes of a new file.
//!
//! A file gets its objects when it is opened to write. So it is made without being opened (`mknod`), opened
//! to read, told its stripes, and then opened to write, as archives are unpacked there.

use std::os::fd::{BorrowedFd, OwnedFd};

use haul_core::entry::Name;
use haul_core::layout::{Layout, LayoutError, Striping, lustre, lustre_wish};
use rustix::fs::{XattrFlags, fsetxattr, fstat};
use rustix::io::Errno;

use super::{AskError, NewFile, Parallel, attribute};
use crate::jail::Jail;

pub(super) const PROVIDER: Parallel = Parallel {
    name: "lustre",
    magic: Some(0x0BD0_0BD0),
    kinds: &["lustre"],
    source: None,
    keeps_positions: true,
    keeps_versions: true,
    new_file: NewFile::Striped,
    ask,
    make: Some(make),
};

pub(super) const ATTRIBUTE: &str = "lustre.lov";

fn ask(file: BorrowedFd<'_>, _size: u64) -> Result<Layout, AskError> {
    match attribute(file, ATTRIBUTE) {
        Ok(value) => Ok(lustre(&value)?),
        // Lustre's word for a file that has none of its own.
        Err(Errno::NODATA) => Err(LayoutError::NoObjects.into()),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Err(AskError::Nobody),
        Err(error) => Err(error.into()),
    }
}

pub(super) fn make(jail: &Jail, dir: &OwnedFd, name: &Name, wanted: Striping) -> Result<OwnedFd, Errno> {
    let wish = lustre_wish(wanted).ok_or(Errno::INVAL)?;
    jail.make_unopened(dir, name)?;
    let reads = jail.open_file(dir, name, false)?;
    fsetxattr(&reads, ATTRIBUTE, &wish, XattrFlags::empty())?;
    let file = jail.open_file(dir, name, true)?;
    let same = |a: &OwnedFd, b: &OwnedFd| -> Result<bool, Errno> {
        let (a, b) = (fstat(a)?, fstat(b)?);
        Ok((a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
    };
    // Somebody who may write in the directory could have put another one in its place.
    if same(&reads, &file)? { Ok(file) } else { Err(Errno::STALE) }
}
