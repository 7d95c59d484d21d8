//! Files of parts: made, locked, found again, removed.

use haul_core::entry::Name;
use rustix::io::Errno;

use super::{Failed, Names};
use crate::store::{Dir, File};
use crate::tree::{Tree, regular};

/// The bits of a mode that let others write. Of a file with an access control list the first is the mask.
const WRITTEN_BY_OTHERS: u32 = 0o022;

/// Opens and locks what an earlier upload left.
pub(super) fn lock_earlier(dir: &dyn Dir, part: &Name) -> Result<Option<Box<dyn File>>, Failed> {
    let file = match dir.open(part, true) {
        Ok(file) => file,
        Err(fault) if fault.is(Errno::NOENT) => return Ok(None),
        Err(fault) => return Err(Failed::of("open an earlier part")(fault)),
    };
    let stat = file.stat().map_err(Failed::of("look at an earlier part"))?;
    regular(&stat)?;
    lock(&*file)?;
    // Somebody may have replaced it before the lock.
    match dir.identity(part) {
        Ok(here) if here == stat.identity() => Ok(Some(file)),
        _ => Err(Failed::Busy),
    }
}

/// Whether this session's user made the file, and nobody else can have written into it since, as far as the
/// file system tells users apart. `next`: a name that is free for whoever has the lock of the part.
pub(super) fn is_ours(dir: &dyn Dir, next: &Name, file: &dyn File) -> bool {
    // In a volume nobody else knows what this user's parts are called.
    if !dir.has_users() {
        return true;
    }
    let Ok(stat) = file.stat() else { return false };
    let is_as = |uid: u32, mode: u32| stat.uid == uid && stat.mode & WRITTEN_BY_OTHERS & !mode == 0;
    if is_as(rustix::process::geteuid().as_raw(), 0) || haul_mutant::removed("ftpd-parts-are-their-users") {
        return true;
    }
    // A file system may take all users for one, or give all files one mode: then so is what is made there.
    let made = remove(dir, next).ok().and_then(|()| dir.make(next).ok());
    let made = made.and_then(|made| made.stat().ok());
    let _ = remove(dir, next);
    made.is_some_and(|made| is_as(made.uid, made.mode))
}

pub(super) fn create(dir: &dyn Dir, part: &Name) -> Result<Box<dyn File>, Failed> {
    let file = dir.make(part).map_err(|fault| match fault.errno {
        Errno::EXIST => Failed::Busy,
        _ => Failed::of("make the file")(fault),
    })?;
    lock(&*file)?;
    Ok(file)
}

fn lock(file: &dyn File) -> Result<(), Failed> {
    match file.lock() {
        Ok(()) => Ok(()),
        Err(fault) if fault.is(Errno::AGAIN) => Err(Failed::Busy),
        Err(fault) => Err(Failed::of("lock the part")(fault)),
    }
}

pub(super) fn remove(dir: &dyn Dir, name: &Name) -> Result<(), Failed> {
    match dir.remove(name) {
        Ok(()) => Ok(()),
        Err(fault) if fault.is(Errno::NOENT) => Ok(()),
        Err(fault) => Err(Failed::of("remove an earlier part")(fault)),
    }
}

/// Removes what an upload to this name left that has ended. False: it left nothing.
///
/// # Errors
/// It runs; or the system says no.
pub fn remove_left(tree: &Tree, dir: &dyn Dir, name: &Name) -> Result<bool, Failed> {
    let names = Names::of(tree, name);
    let Some(_locked) = lock_earlier(dir, &names.part)? else { return Ok(false) };
    for file in [&names.record, &names.next_record, &names.next_part, &names.part] {
        remove(dir, file)?;
    }
    dir.sync().map_err(Failed::of("sync the directory"))?;
    Ok(true)
}
