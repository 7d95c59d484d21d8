//! Effects in a directory: by its descriptor and one name.
//!
//! In: names of ours. Out: descriptors, bytes, errors of the system.
//! Invariant: no symbolic link is followed, but one that the path of the first directory leads over; what is
//! opened as a file is a regular one.
//! Left out: what stands in the files.

use std::ffi::{OsStr, OsString};
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags};
use rustix::io::{Errno, Result, retry_on_intr};

const FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);
const DIR_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// How something is made last: of a file its bytes, or all that is known of it or of a directory. `Start`:
/// its bytes are on their way, and nothing is said of whether they arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    Start,
    Bytes,
    All,
}

pub(crate) type SyncCall = Box<dyn Fn(BorrowedFd<'_>, Extent) -> Result<()> + Send + Sync>;

/// The system's call; `ESTALE` where what was synced has no name any more, for nobody finds that again.
pub(crate) fn sync_call(fd: BorrowedFd<'_>, extent: Extent) -> Result<()> {
    retry_on_intr(|| match extent {
        // From the beginning to the end, whatever that is. Some file systems have none.
        Extent::Start => match haul_base::sys::sync_file_range_write(fd, 0, 0) {
            Err(Errno::SPIPE | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(()),
            started => started,
        },
        Extent::Bytes => rustix::fs::fdatasync(fd),
        Extent::All => rustix::fs::fsync(fd),
    })?;
    if extent == Extent::Start { Ok(()) } else { has_name(fd) }
}

/// # Errors
/// `ESTALE`: it was removed.
pub(crate) fn has_name(fd: impl AsFd) -> Result<()> {
    match rustix::fs::fstat(fd)?.st_nlink {
        0 if !haul_mutant::removed("volume-syncs-have-names") => Err(Errno::STALE),
        _ => Ok(()),
    }
}

/// What another thread's panic left is whole: each change under these locks is one.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An open directory.
#[derive(Debug)]
pub(crate) struct Dir {
    fd: OwnedFd,
    /// For people.
    path: PathBuf,
}

impl Dir {
    pub(crate) fn open(path: &Path) -> Result<Dir> {
        let fd = retry_on_intr(|| rustix::fs::openat(CWD, path, DIR_FLAGS, Mode::empty()))?;
        Ok(Dir { fd, path: path.to_owned() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether what its path leads to is still this directory, which was not removed.
    pub(crate) fn is_there(&self) -> bool {
        let (own, named) = (rustix::fs::fstat(&self.fd), rustix::fs::stat(&self.path));
        let same = |own: &rustix::fs::Stat, named: &rustix::fs::Stat| {
            (own.st_dev, own.st_ino) == (named.st_dev, named.st_ino) && own.st_nlink > 0
        };
        matches!((own, named), (Ok(own), Ok(named)) if same(&own, &named))
    }

    pub(crate) fn path_of(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.path.join(name.as_ref())
    }

    /// The same directory once more.
    pub(crate) fn again(&self) -> Result<Dir> {
        Ok(Dir { fd: self.fd.try_clone().map_err(|_| Errno::MFILE)?, path: self.path.clone() })
    }

    /// Opens a directory in this one.
    pub(crate) fn sub(&self, name: impl AsRef<OsStr>) -> Result<Dir> {
        let name = name.as_ref();
        let flags = DIR_FLAGS | OFlags::NOFOLLOW;
        let fd = retry_on_intr(|| rustix::fs::openat(&self.fd, name, flags, Mode::empty()))?;
        Ok(Dir { fd, path: self.path.join(name) })
    }

    /// Makes a directory in this one, for the owner alone, if nothing of that name is there.
    pub(crate) fn make_sub(&self, name: impl AsRef<OsStr>) -> Result<()> {
        match retry_on_intr(|| rustix::fs::mkdirat(&self.fd, name.as_ref(), Mode::RWXU)) {
            Err(Errno::EXIST) => Ok(()),
            other => other,
        }
    }

    /// Opens a file to read and write it.
    pub(crate) fn file(&self, name: impl AsRef<OsStr>) -> Result<OwnedFd> {
        self.open_file(name.as_ref(), OFlags::empty())
    }

    /// Makes a file, which must not be there.
    pub(crate) fn make_file(&self, name: impl AsRef<OsStr>) -> Result<OwnedFd> {
        self.open_file(name.as_ref(), OFlags::CREATE | OFlags::EXCL)
    }

    /// Opens a file, or makes it; it has no bytes then.
    pub(crate) fn empty_file(&self, name: impl AsRef<OsStr>) -> Result<OwnedFd> {
        self.open_file(name.as_ref(), OFlags::CREATE | OFlags::TRUNC)
    }

    fn open_file(&self, name: &OsStr, more: OFlags) -> Result<OwnedFd> {
        // Nobody waits for the other end of a fifo.
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = retry_on_intr(|| rustix::fs::openat(&self.fd, name, flags | more, FILE_MODE))?;
        match FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) {
            FileType::RegularFile => Ok(fd),
            _ => Err(Errno::NOTSUP),
        }
    }

    /// What a small file says, at most `len_max` bytes of it.
    pub(crate) fn read_small(&self, name: &str, len_max: usize) -> Result<Option<Vec<u8>>> {
        let fd = match self.file(name) {
            Err(Errno::NOENT) => return Ok(None),
            other => other?,
        };
        let mut bytes = vec![0; len_max];
        let len = read_at(&fd, &mut bytes, 0)?;
        bytes.truncate(len);
        Ok(Some(bytes))
    }

    /// Gives a small file these bytes, all of them or what it had, and has that last.
    pub(crate) fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let new = format!("{name}.new");
        let written = self.empty_file(&new).and_then(|fd| {
            write_at(&fd, &mut [IoSlice::new(bytes)], 0)?;
            retry_on_intr(|| rustix::fs::fsync(&fd))?;
            retry_on_intr(|| rustix::fs::renameat(&self.fd, &new, &self.fd, name))
        });
        if let Err(errno) = written {
            // It would be emptied by the next attempt.
            let _ = self.remove(&new);
            return Err(errno);
        }
        self.sync()
    }

    /// Removes a file.
    pub(crate) fn remove(&self, name: impl AsRef<OsStr>) -> Result<()> {
        retry_on_intr(|| rustix::fs::unlinkat(&self.fd, name.as_ref(), AtFlags::empty()))
    }

    /// Removes a directory that has nothing in it.
    pub(crate) fn remove_dir(&self, name: impl AsRef<OsStr>) -> Result<()> {
        retry_on_intr(|| rustix::fs::unlinkat(&self.fd, name.as_ref(), AtFlags::REMOVEDIR))
    }

    /// What lies in it.
    pub(crate) fn names(&self) -> Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.fd)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name.to_vec()));
            }
        }
        names.sort_by(|a, b| a.as_bytes().cmp(b.as_bytes()));
        Ok(names)
    }

    /// How long a file is, if it is there.
    pub(crate) fn len_of(&self, name: impl AsRef<OsStr>) -> Result<Option<u64>> {
        match retry_on_intr(|| rustix::fs::statat(&self.fd, name.as_ref(), AtFlags::SYMLINK_NOFOLLOW)) {
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile => Err(Errno::NOTSUP),
            Ok(stat) => Ok(Some(stat.st_size as u64)),
        }
    }

    /// Makes last which names are in it.
    pub(crate) fn sync(&self) -> Result<()> {
        retry_on_intr(|| rustix::fs::fsync(&self.fd))
    }

    /// Takes the lock that keeps others out until what is returned is dropped; `EWOULDBLOCK` if somebody
    /// has it.
    pub(crate) fn lock(&self, name: &str) -> Result<Lock> {
        let fd = match self.file(name) {
            Err(Errno::NOENT) => match self.make_file(name) {
                Err(Errno::EXIST) => self.file(name)?,
                other => other?,
            },
            other => other?,
        };
        retry_on_intr(|| rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive))?;
        // Whoever comes later has to meet this one.
        let (ours, named) =
            (rustix::fs::fstat(&fd)?, rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)?);
        match (ours.st_dev, ours.st_ino) == (named.st_dev, named.st_ino) {
            true => Ok(Lock(fd)),
            false => Err(Errno::STALE),
        }
    }

    /// Whether somebody has that lock. Nothing is made.
    pub(crate) fn is_locked(&self, name: &str) -> bool {
        let Ok(fd) = self.file(name) else { return false };
        let taken = retry_on_intr(|| rustix::fs::flock(&fd, FlockOperation::NonBlockingLockShared));
        taken == Err(Errno::WOULDBLOCK)
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A lock that is held.
#[derive(Debug)]
pub(crate) struct Lock(OwnedFd);

impl Drop for Lock {
    fn drop(&mut self) {
        // A process that is being started has the descriptor too, until it runs its own program.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

/// Writes all of `slices`, one behind the other.
pub(crate) fn write_at(fd: impl AsFd, mut slices: &mut [IoSlice<'_>], mut offset: u64) -> Result<()> {
    // Empty ones in front would look like a disk that takes nothing.
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        match retry_on_intr(|| rustix::io::pwritev(&fd, slices, offset))? {
            0 => return Err(Errno::IO),
            len => {
                IoSlice::advance_slices(&mut slices, len);
                offset += len as u64;
            }
        }
    }
    Ok(())
}

/// Fills `bytes` as far as the file has any. How many those are.
pub(crate) fn read_at(fd: impl AsFd, bytes: &mut [u8], offset: u64) -> Result<usize> {
    let mut filled = 0;
    while filled < bytes.len() {
        match retry_on_intr(|| rustix::io::pread(&fd, &mut bytes[filled..], offset + filled as u64))? {
            0 => break,
            len => filled += len,
        }
    }
    Ok(filled)
}
