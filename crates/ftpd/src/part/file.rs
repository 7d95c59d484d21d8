//! Files of parts: made, locked, found again, removed.

use std::os::fd::OwnedFd;

use haul_core::entry::Name;
use haul_storage::jail::Jail;
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::{Failed, Names};
use crate::tree::{Tree, regular, sync_dir};

/// The bits of a mode that let others write. Of a file with an access control list the first is the mask.
const WRITTEN_BY_OTHERS: u32 = 0o022;

/// Opens and locks what an earlier upload left.
pub(super) fn lock_earlier(jail: Jail, dir: &OwnedFd, part: &Name) -> Result<Option<OwnedFd>, Failed> {
    let file = match jail.open_file(dir, part, true) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(Failed::System { what: "open an earlier part", errno }),
    };
    let stat = rustix::fs::fstat(&file).map_err(Failed::of("look at an earlier part"))?;
    regular(&stat)?;
    lock(&file)?;
    // Somebody may have replaced it before the lock.
    match jail.stat(dir, part) {
        Ok(here) if (here.st_dev, here.st_ino) == (stat.st_dev, stat.st_ino) => Ok(Some(file)),
        _ => Err(Failed::Busy),
    }
}

/// Whether this session's user made the file, and nobody else can have written into it since, as far as the
/// file system tells users apart. `next`: a name that is free for whoever has the lock of the part.
pub(super) fn is_ours(jail: Jail, dir: &OwnedFd, next: &Name, file: &OwnedFd) -> bool {
    let Ok(stat) = rustix::fs::fstat(file) else { return false };
    let is_as = |uid: u32, mode: u32| stat.st_uid == uid && stat.st_mode & WRITTEN_BY_OTHERS & !mode == 0;
    if is_as(rustix::process::geteuid().as_raw(), 0) || haul_mutant::removed("ftpd-parts-are-their-users") {
        return true;
    }
    // A file system may take all users for one, or give all files one mode: then so is what is made there.
    let made = remove(jail, dir, next).ok().and_then(|()| jail.create_temp(dir, next).ok());
    let made = made.and_then(|made| rustix::fs::fstat(&made).ok());
    let _ = remove(jail, dir, next);
    made.is_some_and(|made| is_as(made.st_uid, made.st_mode))
}

pub(super) fn create(jail: Jail, dir: &OwnedFd, part: &Name) -> Result<OwnedFd, Failed> {
    let file = jail.create_temp(dir, part).map_err(|errno| match errno {
        Errno::EXIST => Failed::Busy,
        errno => Failed::System { what: "make the file", errno },
    })?;
    lock(&file)?;
    Ok(file)
}

fn lock(file: &OwnedFd) -> Result<(), Failed> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(Errno::AGAIN) => Err(Failed::Busy),
        Err(errno) => Err(Failed::System { what: "lock the part", errno }),
    }
}

pub(super) fn remove(jail: Jail, dir: &OwnedFd, name: &Name) -> Result<(), Failed> {
    match jail.unlink(dir, name) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(Failed::System { what: "remove an earlier part", errno }),
    }
}

/// Removes what an upload to this name left that has ended. False: it left nothing.
///
/// # Errors
/// It runs; or the system says no.
pub fn remove_left(tree: &Tree, dir: &OwnedFd, name: &Name) -> Result<bool, Failed> {
    let (jail, names) = (tree.jail(), Names::of(tree, name));
    let Some(_locked) = lock_earlier(jail, dir, &names.part)? else { return Ok(false) };
    for file in [&names.record, &names.next_record, &names.next_part, &names.part] {
        remove(jail, dir, file)?;
    }
    sync_dir(dir).map_err(Failed::of("sync the directory"))?;
    Ok(true)
}
