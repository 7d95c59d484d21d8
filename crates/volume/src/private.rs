//! Files that nobody else may read: keys stand in them.
//!
//! In: a path. Out: bytes, which are wiped when they are dropped; or what is wrong with the file.
//! Invariants: a file of somebody else, or that others may read or write, is not used; a new one is whole or
//! not there, and takes the place of another one only where it replaces it.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};
use zeroize::Zeroizing;

use crate::disk::Dir;

/// Longer is none of these files, bytes.
pub(crate) const LEN_MAX: u64 = 4 << 20;

/// Why a file is not used.
#[derive(Debug, thiserror::Error)]
pub enum PrivateError {
    #[error("cannot {op} {}: {}", path.display(), haul_base::errno::text(source))]
    Io { op: &'static str, path: PathBuf, source: io::Error },
    #[error("{} is no plain file", .0.display())]
    Kind(PathBuf),
    #[error("{} is of the user {uid}, and holds a key: only one's own is used", path.display())]
    Owner { path: PathBuf, uid: u32 },
    #[error("{} holds a key and can be used by others (its mode is {mode:03o}): chmod 600 it", path.display())]
    Mode { path: PathBuf, mode: u32 },
    #[error("{} is longer than such a file can be", .0.display())]
    Long(PathBuf),
}

fn failed(op: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PrivateError {
    let path = path.to_owned();
    move |source| PrivateError::Io { op, path, source }
}

/// What a file says.
pub(crate) fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, PrivateError> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let fd = retry_on_intr(|| rustix::fs::openat(CWD, path, flags, Mode::empty()));
    let fd = fd.map_err(|errno| failed("open", path)(errno.into()))?;
    let stat = rustix::fs::fstat(&fd).map_err(|errno| failed("look at", path)(errno.into()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(PrivateError::Kind(path.into()));
    }
    let (mode, uid) = (stat.st_mode & 0o777, stat.st_uid);
    if uid != rustix::process::geteuid().as_raw() {
        return Err(PrivateError::Owner { path: path.into(), uid });
    }
    if mode & 0o077 != 0 && !haul_mutant::removed("volume-keys-are-private") {
        return Err(PrivateError::Mode { path: path.into(), mode });
    }
    let len = u64::try_from(stat.st_size).ok().filter(|len| *len <= LEN_MAX);
    let len = len.ok_or_else(|| PrivateError::Long(path.into()))?;
    // One that grows would leave copies of itself.
    let mut bytes = Zeroizing::new(Vec::with_capacity(len as usize + 1));
    File::from(fd).take(len + 1).read_to_end(&mut bytes).map_err(failed("read", path))?;
    match bytes.len() as u64 <= len {
        true => Ok(bytes),
        false => Err(PrivateError::Long(path.into())),
    }
}

/// Makes a file of that name in a directory, with these bytes; `EEXIST` if there is one.
pub(crate) fn write_new(dir: &Dir, name: &str, bytes: &[u8]) -> rustix::io::Result<()> {
    write(dir, name, bytes, |new| retry_on_intr(|| rustix::fs::linkat(dir, new, dir, name, AtFlags::empty())))
}

/// The same in the place of one that is there.
pub(crate) fn replace(dir: &Dir, name: &str, bytes: &[u8]) -> rustix::io::Result<()> {
    write(dir, name, bytes, |new| retry_on_intr(|| rustix::fs::renameat(dir, new, dir, name)))
}

fn write(
    dir: &Dir,
    name: &str,
    bytes: &[u8],
    give_name: impl Fn(&str) -> rustix::io::Result<()>,
) -> rustix::io::Result<()> {
    // No other writer's, and no name that anything here goes by.
    let new = format!(".{name}.{}.new", std::process::id());
    let written = dir.empty_file(&new).and_then(|fd| {
        rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
        crate::disk::write_at(&fd, &mut [std::io::IoSlice::new(bytes)], 0)?;
        retry_on_intr(|| rustix::fs::fsync(&fd))?;
        give_name(&new)
    });
    let removed = dir.remove(&new);
    written?;
    match removed {
        Ok(()) | Err(Errno::NOENT) => dir.sync(),
        Err(errno) => Err(errno),
    }
}
