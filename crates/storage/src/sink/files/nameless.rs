//! Temporaries without a name: small files in a directory that this run made, where nothing can stand.
//!
//! In: a file of a bundle. Out: its temporary, which is nobody's but ours and goes with its descriptor, and
//! gets its final name by its descriptor, so that nothing else can be published in its place.
//! What it is for: a name that is given once costs a file system half of what it costs to make one, find it,
//! and make it another one; a directory is searched for each.
//! What must hold: what the journal may speak of has the name that it speaks of; what has objects, too, for
//! these look for it.
//! Only on file systems of which it is known what a sync of a file without a name is worth before it gets
//! one: ext2 to ext4 and XFS put on media all that happened before, and tmpfs has none. (btrfs syncs no such
//! file.)
//! Left out: names at which something stands. There a rename is needed, and for that a name.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use haul_core::entry::Name;
use haul_core::transfer::SMALL_LEN_MAX;
use haul_core::wire::{Failure, FailureKind};
use rustix::fs::{FsWord, Mode};
use rustix::io::{Result as OsResult, retry_on_intr};

use super::{Files, OpenFile, descriptor};
use crate::io::IoFile;
use crate::sink::fault;
use crate::sink::names::{NO_FILE, temp_name};

/// ext2 to ext4, XFS, tmpfs.
const KNOWN: [FsWord; 3] = [0xef53, 0x5846_5342, 0x0102_1994];

/// Set-id bits come last, for a write takes them away.
const PERMISSIONS: u32 = 0o777;

/// Whether temporaries need no names here.
pub(super) struct Nameless {
    is_known: bool,
    /// It was tried.
    works: OnceLock<bool>,
}

impl Nameless {
    /// `kind`: of the destination's file system, if that is known.
    pub(super) fn new(kind: Option<FsWord>) -> Nameless {
        Nameless { is_known: kind.is_some_and(|kind| KNOWN.contains(&kind)), works: OnceLock::new() }
    }
}

impl Files {
    /// The temporary of a file of a bundle needs no name until it is published in `dir`, which it lies in.
    pub(super) fn goes_nameless(&self, open: &OpenFile, dir: &OwnedFd) -> bool {
        let may = self.nameless.is_known
            && open.size <= SMALL_LEN_MAX
            && self.tree.one_target().is_some()
            && self.tree.was_created(open.parent);
        may && *self.nameless.works.get_or_init(|| self.try_nameless(dir).is_ok())
    }

    /// Makes the temporary, with the device that it lies on. It has what it is to have of `mode` at once:
    /// nobody sees it before it has its name.
    pub(super) fn create_nameless(
        &self,
        open: &OpenFile,
        dir: &OwnedFd,
        mode: u32,
    ) -> Result<(OwnedFd, u64), Failure> {
        open.nameless.store(true, Ordering::Release);
        let mode = mode & PERMISSIONS;
        let made = self.tree.jail().create_nameless(dir, Mode::from_raw_mode(mode)).map_err(|errno| {
            let path = self.tree.path_of(open.parent, &open.temp);
            fault::os_at(FailureKind::Create, "create", &path, errno, dir)
        })?;
        let _ = open.made_with.set(mode);
        Ok((made, self.tree.target_of(open.parent).device()))
    }

    /// Makes a file without a name, gives it one, and removes it.
    fn try_nameless(&self, dir: &OwnedFd) -> OsResult<()> {
        let jail = self.tree.jail();
        let name = Name::new(b"haul~nameless").expect("a legal name");
        let name = temp_name(&name, self.tag, NO_FILE);
        let file = jail.create_nameless(dir, Mode::RUSR)?;
        jail.link_open(&file, dir, &name)?;
        jail.unlink(dir, &name)
    }

    /// Gives the temporary its name, if it has none. One that is not `whole` is its owner's alone from then
    /// on, as any other temporary is.
    ///
    /// # Errors
    /// It cannot have it.
    pub(in crate::sink) fn name(&self, open: &OpenFile, file: &IoFile, whole: bool) -> Result<(), Failure> {
        if open.has_name() || haul_mutant::removed("promised-temporaries-have-names") {
            return Ok(());
        }
        let dir = self.tree.dirfd(open.parent)?;
        let fd = descriptor(file);
        let closed = match whole || haul_mutant::removed("private-temporaries") {
            true => Ok(()),
            false => retry_on_intr(|| rustix::fs::fchmod(fd, Mode::RUSR | Mode::WUSR)),
        };
        closed.and_then(|()| self.tree.jail().link_open(fd, &dir, &open.temp)).map_err(|errno| {
            let path = self.tree.path_of(open.parent, &open.temp);
            fault::os_at(FailureKind::Create, "name", &path, errno, &dir)
        })?;
        open.nameless.store(false, Ordering::Release);
        Ok(())
    }
}
