//! Files opened for reading: that it is the file which was announced, and a second descriptor for direct I/O.
//!
//! In: what the tree knows of a file. Out: an open file, whose identity was held against the fingerprint.
//! Invariants: both descriptors are of one file, or there is no second one. A file system without direct I/O
//! is no error: the reason is kept for the report.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use haul_core::io::IoMode;
use rustix::fs::{AtFlags, Mode, OFlags, Stat, StatxFlags, fcntl_setfl, fstat, openat, statx};
use rustix::io::Errno;

use super::cache;
use super::stat::Seen;
use super::view::FileView;
use crate::io::{IoFile, IoTarget};

/// `STATX_DIOALIGN` (Linux 6.1) and `STATX_DIO_READ_ALIGN` (Linux 6.14).
const STATX_DIOALIGN: StatxFlags = StatxFlags::from_bits_retain(0x2000);
const STATX_DIO_READ_ALIGN: StatxFlags = StatxFlags::from_bits_retain(0x0002_0000);
/// What direct I/O is taken to ask for where the kernel does not say: no device asks for more.
const ALIGN_UNKNOWN: u64 = 4096;
/// The alignment of our buffers.
const MEMORY_ALIGN: u64 = 4096;
/// The coarsest alignment that objects have.
pub(super) const ALIGN_MAX: u64 = 64 * 1024;

/// How a file is opened. Not O_NONBLOCK: that is added while it is not known to be a file.
const FLAGS: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC);

/// A file that stays open for its objects.
pub(crate) struct OpenFile {
    plain: Arc<IoFile>,
    dev: u64,
    ino: u64,
    /// Empty until it was tried; `None`: there is none.
    direct: OnceLock<Option<DirectFile>>,
    /// A direct read of this file was refused.
    direct_failed: AtomicBool,
}

/// The descriptor for direct reads.
pub(super) struct DirectFile {
    pub(super) file: Arc<IoFile>,
    /// Offsets and lengths are multiples of it, bytes; a power of two.
    pub(super) align: u64,
}

pub(super) enum OpenError {
    /// It is not the file that was announced.
    Changed(&'static str),
    Os(Errno),
}

impl From<Errno> for OpenError {
    fn from(errno: Errno) -> OpenError {
        match errno {
            Errno::LOOP | Errno::NOTDIR | Errno::NXIO | Errno::STALE => {
                OpenError::Changed("it, or a directory above it, is something else now")
            }
            errno => OpenError::Os(errno),
        }
    }
}

impl OpenFile {
    /// Opens a file to be kept. `dir`: opens the directory that it lies in; `name`: for people.
    pub(super) fn open(
        dir: impl FnOnce() -> Result<Arc<OwnedFd>, Errno>,
        view: &FileView,
        name: Box<str>,
    ) -> Result<OpenFile, OpenError> {
        let opened = open_view(dir, view, OFlags::empty())?;
        // A ring answers EAGAIN instead of waiting for storage if this stays. Only these flags can be set.
        fcntl_setfl(&opened.fd, opened.flags.intersection(OFlags::NOATIME)).map_err(OpenError::Os)?;
        cache::no_readahead(opened.fd.as_fd());
        let (dev, ino) = (device_of(&opened.stat), inode_of(&opened.stat));
        let plain = io_file(opened.fd, IoMode::Buffered, dev, name);
        let (direct, direct_failed) = (OnceLock::new(), AtomicBool::new(false));
        Ok(OpenFile { plain, dev, ino, direct, direct_failed })
    }

    pub(super) fn plain(&self) -> &Arc<IoFile> {
        &self.plain
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.plain.fd.as_ref().expect("a source's file has a descriptor").as_fd()
    }

    /// Device number of its file system.
    pub(super) fn dev(&self) -> u64 {
        self.dev
    }

    /// Whether it is still to be found out if there is a descriptor for direct reads.
    pub(super) fn is_direct_untried(&self) -> bool {
        self.direct.get().is_none()
    }

    /// The descriptor for direct reads, if one was opened and none of its reads was refused.
    pub(super) fn direct(&self) -> Option<&DirectFile> {
        let direct = self.direct.get()?.as_ref();
        direct.filter(|_| !self.direct_failed.load(Ordering::Relaxed))
    }

    /// A direct read was refused: this file is read through the cache from here on.
    pub(super) fn fail_direct(&self) {
        self.direct_failed.store(true, Ordering::Relaxed);
    }

    /// Opens the descriptor for direct reads, if that was not tried before.
    ///
    /// # Errors
    /// Why the file system does not do direct I/O. A name that is another file by now is no error.
    pub(super) fn open_direct(
        &self,
        dir: impl FnOnce() -> Result<Arc<OwnedFd>, Errno>,
        view: &FileView,
    ) -> Result<(), String> {
        if !self.is_direct_untried() {
            return Ok(());
        }
        let opened = align_of(self.fd()).and_then(|align| {
            let opened = match open_view(dir, view, OFlags::DIRECT) {
                Ok(opened) => opened,
                Err(OpenError::Os(Errno::INVAL)) => return Err("it refuses to open files so".to_owned()),
                // The look after the last read will see what happened; what is open is read.
                Err(_) => return Ok(None),
            };
            if (device_of(&opened.stat), inode_of(&opened.stat)) != (self.dev, self.ino) {
                return Ok(None);
            }
            let flags = opened.flags.intersection(OFlags::NOATIME) | OFlags::DIRECT;
            if fcntl_setfl(&opened.fd, flags).is_err() {
                return Ok(None);
            }
            let file = io_file(opened.fd, IoMode::Direct, self.dev, self.plain.name.clone());
            Ok(Some(DirectFile { file, align }))
        });
        let (file, result) = match opened {
            Ok(file) => (file, Ok(())),
            Err(why) => (None, Err(why)),
        };
        // Another thread may have been first; then ours is closed here.
        let _ = self.direct.set(file);
        result
    }
}

fn io_file(fd: OwnedFd, mode: IoMode, dev: u64, name: Box<str>) -> Arc<IoFile> {
    Arc::new(IoFile { fd: Some(fd), mode, target: IoTarget::Device(dev), one_writer: false, name })
}

/// What direct I/O on this file has to be aligned to.
///
/// # Errors
/// Why there is none.
fn align_of(fd: BorrowedFd<'_>) -> Result<u64, String> {
    let asked = statx(fd, c"", AtFlags::EMPTY_PATH, STATX_DIOALIGN | STATX_DIO_READ_ALIGN);
    let Ok(stat) = asked else { return Ok(ALIGN_UNKNOWN) };
    let knows = |flags: StatxFlags| stat.stx_mask & flags.bits() != 0;
    if !knows(STATX_DIOALIGN) {
        return Ok(ALIGN_UNKNOWN);
    }
    let read = if knows(STATX_DIO_READ_ALIGN) { stat.stx_dio_read_offset_align } else { 0 };
    let offset = if read > 0 { read } else { stat.stx_dio_offset_align };
    check_align(u64::from(stat.stx_dio_mem_align), u64::from(offset))
}

/// Holds what a file system asks for against what our objects and buffers have.
fn check_align(memory: u64, offset: u64) -> Result<u64, String> {
    if memory == 0 || offset == 0 {
        return Err("it says that it has none".to_owned());
    }
    if memory > MEMORY_ALIGN || offset > ALIGN_MAX || !offset.is_power_of_two() {
        return Err(format!("it asks for memory on {memory} and offsets on {offset} bytes"));
    }
    Ok(offset)
}

/// A file that was just opened, with what it is and how.
pub(super) struct Opened {
    pub(super) fd: OwnedFd,
    pub(super) stat: Stat,
    flags: OFlags,
}

/// Opens a file and makes sure that it is the one that was announced.
pub(super) fn open_view(
    dir: impl FnOnce() -> Result<Arc<OwnedFd>, Errno>,
    view: &FileView,
    more: OFlags,
) -> Result<Opened, OpenError> {
    let (fd, flags) = open_unseen(dir, view, more)?;
    let stat = fstat(&fd)?;
    check(&Seen::from(stat), view)?;
    // Of a descriptor for direct reads that was said before.
    if more.is_empty() && !view.has_its_attributes(fd.as_fd()) {
        return Err(OpenError::Changed(
            "got other extended attributes or lists since its directory was read",
        ));
    }
    Ok(Opened { fd, stat, flags })
}

/// Opens what stands at a file's name; with the flags that it has. For who reads it by position at once, and
/// [`check`]s behind that what it was: of what is no file nothing can be read so, and its descriptor does not
/// wait.
pub(super) fn open_unseen(
    dir: impl FnOnce() -> Result<Arc<OwnedFd>, Errno>,
    view: &FileView,
    more: OFlags,
) -> Result<(OwnedFd, OFlags), OpenError> {
    let dir = dir()?;
    let open = |flags| openat(&dir, view.name.as_bytes(), flags, Mode::empty()).map(|fd| (fd, flags));
    // O_NONBLOCK: a fifo that took the name must not hold us.
    let flags = FLAGS | view.follow_flags() | OFlags::NONBLOCK | more;
    match open(flags | OFlags::NOATIME) {
        // Only the owner may leave atime alone.
        Err(Errno::PERM) => Ok(open(flags)?),
        // A lease is being broken, or the file lies on tape: that is worth a wait, if it is a file.
        Err(Errno::AGAIN) if view.look(dir.as_fd())?.is_file() => {
            Ok(open(flags.difference(OFlags::NONBLOCK))?)
        }
        opened => Ok(opened?),
    }
}

/// Makes sure that what was opened is the file that was announced, or that file after it grew.
///
/// # Errors
/// It is another one, or changed.
pub(super) fn check(seen: &Seen, view: &FileView) -> Result<(), OpenError> {
    let (now, known) = (&seen.stamp, &view.stamp);
    if !seen.is_file() {
        return Err(OpenError::Changed("is no regular file any more"));
    }
    if !now.same_content(known) {
        if view.may_have_grown(now) {
            return Ok(());
        }
        return Err(OpenError::Changed("changed since its directory was read"));
    }
    // Some file systems (FUSE, CIFS) number their inodes anew at will: there ctime tells.
    if now.ino != known.ino && now.ctime != known.ctime {
        return Err(OpenError::Changed("was replaced since its directory was read"));
    }
    Ok(())
}

// The widths of these fields differ between the CPUs that Linux runs on.
#[allow(clippy::unnecessary_cast)]
pub(super) fn device_of(stat: &Stat) -> u64 {
    stat.st_dev as u64
}

#[allow(clippy::unnecessary_cast)]
fn inode_of(stat: &Stat) -> u64 {
    stat.st_ino as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: an alignment that our objects and buffers cannot keep means no direct I/O, never a wrong
    /// request.
    #[test]
    fn alignments_are_kept_or_refused() {
        for (memory, offset) in [(4, 512), (512, 512), (4096, 4096), (512, 65536)] {
            assert_eq!(check_align(memory, offset), Ok(offset));
        }
        assert_eq!(check_align(0, 0), Err("it says that it has none".to_owned()));
        for (memory, offset) in [(8192, 512), (512, 131_072), (512, 1000)] {
            assert!(check_align(memory, offset).is_err(), "{memory} {offset}");
        }
    }
}
