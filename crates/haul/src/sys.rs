//! System calls that rustix does not wrap.
//!
//! In and out: descriptors and numbers; errors are errnos. Each call is its own function with its own reason
//! why it is sound.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// Starts write-back of the dirty pages in `offset..offset + len` and waits for none of it.
///
/// # Errors
/// `ESPIPE` and `EINVAL` for what has no pages; `ENOSYS` where the kernel was built without it.
pub(crate) fn sync_file_range_write(fd: impl AsFd, offset: u64, len: u64) -> Result<(), Errno> {
    let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) else {
        return Err(Errno::INVAL);
    };
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: no memory of ours is named; the descriptor is borrowed, so it is open.
    let result = unsafe { libc::sync_file_range(fd, offset, len, libc::SYNC_FILE_RANGE_WRITE) };
    match result {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

fn last_errno() -> Errno {
    std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}

/// How many pages of the file are in the page cache, and how many of these are dirty or under write-back.
/// `None`: the kernel cannot tell (before Linux 6.5).
#[cfg(test)]
pub(crate) fn cached_pages(fd: impl AsFd) -> Option<(u64, u64)> {
    /// `cachestat`, the same number on every architecture but alpha.
    const CACHESTAT: libc::c_long = 451;
    let range = [0u64, 0];
    // Pages in cache, dirty, under write-back, evicted, recently evicted.
    let mut found = [0u64; 5];
    // SAFETY: both pointers are to live memory as large as the kernel's structures (16 and 40 bytes), of which
    // it reads the first and writes the second; the descriptor is borrowed, so it is open.
    let result = unsafe {
        libc::syscall(
            CACHESTAT,
            fd.as_fd().as_raw_fd(),
            range.as_ptr(),
            found.as_mut_ptr(),
            0 as libc::c_uint,
        )
    };
    (result == 0).then_some((found[0], found[1] + found[2]))
}
