//! System calls as the sink needs them: all bytes of a write, all names of a directory, times, and odd
//! answers taken.

use std::os::fd::AsFd;

use haul_core::entry::Timestamp;
use rustix::fs::{Dir, FileType, Timespec, Timestamps};
use rustix::io::{Errno, Result as OsResult, retry_on_intr};

/// Writes all of `data`, however the kernel splits it.
pub(super) fn write_all_at(fd: impl AsFd, mut data: &[u8], mut offset: u64) -> OsResult<()> {
    while !data.is_empty() {
        match retry_on_intr(|| rustix::io::pwrite(&fd, data, offset))? {
            0 => return Err(Errno::IO),
            written => {
                data = &data[written..];
                offset += written as u64;
            }
        }
    }
    Ok(())
}

/// Puts the names in a directory on media. File systems that cannot (some FUSE ones) answer `EINVAL`, and
/// then do it by themselves or not at all.
pub(super) fn sync_dir(fd: impl AsFd) -> OsResult<()> {
    match retry_on_intr(|| rustix::fs::fsync(&fd)) {
        Err(Errno::INVAL) => Ok(()),
        other => other,
    }
}

/// Calls `each` with the names in a directory, without `.` and `..`.
pub(super) fn each_name(dir: impl AsFd, mut each: impl FnMut(&[u8], FileType)) -> OsResult<()> {
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            each(name, entry.file_type());
        }
    }
    Ok(())
}

/// The times to set for this mtime; atime stays. `None`: nanoseconds that the kernel would read as a command.
pub(super) fn times(mtime: Timestamp) -> Option<Timestamps> {
    (mtime.nanos < 1_000_000_000).then(|| Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        last_modification: Timespec { tv_sec: mtime.secs, tv_nsec: i64::from(mtime.nanos) },
    })
}

pub(super) fn set_mtime(fd: impl AsFd, mtime: Timestamp) -> OsResult<()> {
    rustix::fs::futimens(fd, &times(mtime).ok_or(Errno::INVAL)?)
}
