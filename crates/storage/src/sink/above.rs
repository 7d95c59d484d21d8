//! The way to the destination: its missing directories, and their names on media.
//!
//! In: the path of the destination root, and its descriptor. Out: the root is there, and the names that lead
//! to it are synced.
//! Left out: what lies below it (`tree`).

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::calls::sync_dir;

/// Directories above the destination that are synced; so many no path has.
const CLIMB_MAX: usize = 4096;

/// Makes the missing directories of `path`: the last one with `mode`, if there is one, and those above it as
/// the umask says. False: nothing was missing.
pub(super) fn make_root(path: &Path, mode: Option<Mode>) -> rustix::io::Result<bool> {
    let errno = |e: std::io::Error| e.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error);
    // Without dots and slashes at its end: nobody can make these.
    let path: PathBuf = path.components().collect();
    let Some(mode) = mode.filter(|_| !haul_mutant::removed("made-root-is-no-wider")) else {
        let missing = rustix::fs::stat(&path).is_err();
        std::fs::create_dir_all(&path).map_err(errno)?;
        return Ok(missing);
    };
    if let Some(above) = path.parent().filter(|above| !above.as_os_str().is_empty()) {
        std::fs::create_dir_all(above).map_err(errno)?;
    }
    // Private first: the umask may leave too little of the mode, and a default ACL too much.
    match rustix::fs::mkdir(&path, Mode::RWXU) {
        Ok(()) => {}
        Err(Errno::EXIST) => return Ok(false),
        Err(errno) => return Err(errno),
    }
    let made = rustix::fs::open(
        &path,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    // A setgid that it has from its parent is the destination's own.
    let keep = Mode::from_raw_mode(rustix::fs::fstat(&made)?.st_mode) & Mode::SGID;
    match rustix::fs::fchmod(&made, mode | keep) {
        Ok(()) | Err(Errno::PERM | Errno::OPNOTSUPP | Errno::INVAL) => Ok(true),
        Err(errno) => Err(errno),
    }
}

/// Puts the names of a directory and of those above it on media, up to where its file system is mounted: an
/// earlier run may have made them and been killed before it synced anything. No clock says whether that was
/// long ago.
///
/// Edge: a directory that we may not read cannot be synced. Nothing above it was made by us then.
pub(super) fn sync_above(root: &OwnedFd) -> rustix::io::Result<usize> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut here = rustix::fs::fstat(root)?;
    let mut above: Option<OwnedFd> = None;
    for synced in 0..CLIMB_MAX {
        let below = above.as_ref().unwrap_or(root);
        let fd = match rustix::fs::openat(below, c"..", flags, Mode::empty()) {
            Err(Errno::ACCESS | Errno::PERM) => return Ok(synced),
            other => other?,
        };
        let stat = rustix::fs::fstat(&fd)?;
        if stat.st_dev != here.st_dev
            || stat.st_ino == here.st_ino
            || haul_mutant::removed("sync-above-the-root")
        {
            return Ok(synced);
        }
        match sync_dir(&fd) {
            // Nothing was made there.
            Err(Errno::ROFS) => return Ok(synced),
            other => other?,
        }
        (here, above) = (stat, Some(fd));
    }
    Ok(CLIMB_MAX)
}
