//! A file system, by descriptors and haul's jail.

use std::ffi::OsStr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use haul_core::entry::{Name, Timestamp};
use haul_storage::jail::Jail;
use haul_storage::source::age;
use rustix::fs::{AtFlags, FlockOperation, Mode, Timespec, Timestamps};
use rustix::io::Errno;

use super::{Dir, Entries, Entry, Fault, File, FileType, Inner, Stat};

/// See [`Dir`].
pub struct PosixDir {
    fd: OwnedFd,
    jail: Jail,
}

/// See [`File`].
pub struct PosixFile(OwnedFd);

impl From<OwnedFd> for PosixFile {
    fn from(fd: OwnedFd) -> PosixFile {
        PosixFile(fd)
    }
}

impl Stat {
    // Types of these fields differ between systems.
    #[allow(clippy::unnecessary_cast)]
    fn of(stat: &rustix::fs::Stat) -> Stat {
        Stat {
            kind: FileType::from_raw_mode(stat.st_mode),
            mode: stat.st_mode & 0o7777,
            links: stat.st_nlink as u64,
            uid: stat.st_uid,
            gid: stat.st_gid,
            len: u64::try_from(stat.st_size).unwrap_or(0),
            mtime: (stat.st_mtime, stat.st_mtime_nsec as i64),
            version: (stat.st_ctime, stat.st_ctime_nsec as i64),
            dev: stat.st_dev,
            ino: stat.st_ino,
        }
    }
}

impl PosixDir {
    /// A directory that is served.
    ///
    /// # Errors
    /// It is none, or not for us.
    pub fn root(path: &Path) -> Result<PosixDir, Errno> {
        let fd = Jail::open_root(path)?;
        let jail = Jail::probe(&fd);
        Ok(PosixDir { fd, jail })
    }

    /// What stands at a name, to be changed. A link that came meanwhile is no file of ours.
    fn path(&self, name: &Name) -> Result<OwnedFd, Fault> {
        let open = self.jail.open_path(&self.fd, name)?;
        match FileType::from_raw_mode(rustix::fs::fstat(&open)?.st_mode) {
            FileType::Symlink => Err(Errno::LOOP.into()),
            _ => Ok(open),
        }
    }
}

impl Dir for PosixDir {
    fn inner(&self) -> Inner<'_> {
        Inner::Posix(self.fd.as_fd())
    }

    fn again(&self) -> Result<Box<dyn Dir>, Fault> {
        let fd = self.fd.try_clone();
        let fd = fd.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::MFILE))?;
        Ok(Box::new(PosixDir { fd, jail: self.jail }))
    }

    fn stat(&self) -> Result<Stat, Fault> {
        Ok(Stat::of(&rustix::fs::fstat(&self.fd)?))
    }

    fn can_enter(&self) -> Result<(), Fault> {
        Ok(rustix::fs::statat(&self.fd, ".", AtFlags::empty()).map(drop)?)
    }

    fn look(&self, name: &Name) -> Result<Stat, Fault> {
        Ok(Stat::of(&self.jail.stat(&self.fd, name)?))
    }

    fn identity(&self, name: &Name) -> Result<(u64, u64), Fault> {
        Ok(self.look(name)?.identity())
    }

    fn link(&self, name: &Name) -> Result<Vec<u8>, Fault> {
        Ok(rustix::fs::readlinkat(&self.fd, name.as_bytes(), Vec::new())?.into_bytes())
    }

    fn entries(&self, _looks: bool) -> Result<Entries, Fault> {
        // It opens the directory anew: who lists moves the place in a descriptor that is shared.
        let entries = rustix::fs::Dir::read_from(&self.fd)?;
        let named = entries.map(|entry| -> Result<Entry, Fault> {
            let name = entry?.file_name().to_bytes().to_vec();
            Ok(Entry { name, seen: None })
        });
        let is_above = |name: &[u8]| matches!(name, b"." | b"..");
        Ok(Box::new(named.filter(move |entry: &Result<Entry, Fault>| {
            entry.as_ref().map_or(true, |entry| !is_above(&entry.name))
        })))
    }

    fn open_dir(&self, name: &Name) -> Result<Box<dyn Dir>, Fault> {
        let fd = self.jail.open_dir(&self.fd, name)?;
        Ok(Box::new(PosixDir { fd, jail: self.jail }))
    }

    fn open(&self, name: &Name, write: bool) -> Result<Box<dyn File>, Fault> {
        Ok(Box::new(PosixFile(self.jail.open_file(&self.fd, name, write)?)))
    }

    fn make(&self, name: &Name) -> Result<Box<dyn File>, Fault> {
        Ok(Box::new(PosixFile(self.jail.create_temp(&self.fd, name)?)))
    }

    fn make_dir(&self, name: &Name, mode: u32) -> Result<(), Fault> {
        self.jail.make_dir(&self.fd, name)?;
        let open = self.jail.open_dir(&self.fd, name)?;
        Ok(rustix::fs::fchmod(&open, Mode::from_raw_mode(mode))?)
    }

    fn remove(&self, name: &Name) -> Result<(), Fault> {
        Ok(self.jail.unlink(&self.fd, name)?)
    }

    fn remove_dir(&self, name: &Name) -> Result<(), Fault> {
        Ok(rustix::fs::unlinkat(&self.fd, name.as_bytes(), AtFlags::REMOVEDIR)?)
    }

    fn rename(&self, from: &Name, to_dir: &dyn Dir, to: &Name) -> Result<(), Fault> {
        let Inner::Posix(to_dir) = to_dir.inner() else { return Err(Errno::XDEV.into()) };
        let (from, to) = (OsStr::from_bytes(from.as_bytes()), OsStr::from_bytes(to.as_bytes()));
        Ok(rustix::io::retry_on_intr(|| rustix::fs::renameat(&self.fd, from, to_dir, to))?)
    }

    fn set_mode(&self, name: &Name, mode: u32) -> Result<(), Fault> {
        Ok(self.jail.set_mode(self.path(name)?, Mode::from_raw_mode(mode))?)
    }

    fn set_mtime(&self, name: &Name, secs: i64, nanos: u32) -> Result<(), Fault> {
        let time = Timespec { tv_sec: secs, tv_nsec: nanos.into() };
        let omit = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
        let times = Timestamps { last_access: omit, last_modification: time };
        Ok(self.jail.set_times(self.path(name)?, &times)?)
    }

    fn sync(&self) -> Result<(), Fault> {
        match rustix::fs::fsync(&self.fd) {
            // File systems without names that last say so.
            Err(Errno::INVAL) => Ok(()),
            other => Ok(other?),
        }
    }

    fn free(&self) -> Option<u64> {
        let stat = rustix::fs::fstatvfs(&self.fd).ok()?;
        stat.f_bavail.checked_mul(stat.f_frsize)
    }

    fn has_users(&self) -> bool {
        true
    }
}

impl File for PosixFile {
    fn stat(&self) -> Result<Stat, Fault> {
        Ok(Stat::of(&rustix::fs::fstat(&self.0)?))
    }

    fn settles(&self, seen: &Stat) -> Duration {
        let (secs, nanos) = seen.version;
        age::settle_here(&self.0, Timestamp { secs, nanos: nanos as u32 })
    }

    fn length(&self) -> Result<u64, Fault> {
        Ok(self.stat()?.len)
    }

    fn identity(&self) -> Result<(u64, u64), Fault> {
        Ok(self.stat()?.identity())
    }

    fn read_at(&self, bytes: &mut [u8], at: u64) -> Result<usize, Fault> {
        Ok(rustix::io::retry_on_intr(|| rustix::io::pread(&self.0, &mut *bytes, at))?)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> Result<(), Fault> {
        let (mut bytes, mut at) = (bytes, at);
        while !bytes.is_empty() {
            match rustix::io::pwrite(&self.0, bytes, at) {
                Ok(0) => return Err(Errno::IO.into()),
                Ok(len) => (at, bytes) = (at + len as u64, &bytes[len..]),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<(), Fault> {
        Ok(rustix::fs::ftruncate(&self.0, len)?)
    }

    fn set_mode(&self, mode: u32) -> Result<(), Fault> {
        Ok(rustix::fs::fchmod(&self.0, Mode::from_raw_mode(mode))?)
    }

    fn sync_data(&self) -> Result<(), Fault> {
        Ok(rustix::fs::fdatasync(&self.0)?)
    }

    fn sync(&self) -> Result<(), Fault> {
        Ok(rustix::fs::fsync(&self.0)?)
    }

    fn lock(&self) -> Result<(), Fault> {
        Ok(rustix::fs::flock(&self.0, FlockOperation::NonBlockingLockExclusive)?)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}
