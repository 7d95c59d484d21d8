//! System calls that no library wraps.
//!
//! In: descriptors and ranges. Out: the kernel's answer as it is; what to do when a call is not there is the
//! caller's to decide.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// Pages that [`resident`] can be asked about at a time.
pub const RESIDENT_PAGES_MAX: usize = 16_384;

/// `cachestat(2)` has this number on every architecture.
const SYS_CACHESTAT: libc::c_long = 451;

#[repr(C)]
struct CacheRange {
    offset: u64,
    len: u64,
}

#[repr(C)]
#[derive(Default)]
struct CacheCounts {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// How many pages of a range (bytes, `len` not zero) are in the page cache.
///
/// # Errors
/// ENOSYS before Linux 6.5; EPERM where the caller may neither write the file nor owns it; EOPNOTSUPP for
/// what has no page cache.
pub fn cached_pages(fd: impl AsFd, offset: u64, len: u64) -> Result<u64, Errno> {
    Ok(cache_counts(fd, offset, len)?.cached)
}

/// Pages of the whole file that are in the page cache, and how many of these are dirty or under write-back.
/// `None`: the kernel cannot tell.
#[cfg(any(test, feature = "testing"))]
pub fn cached_and_dirty(fd: impl AsFd) -> Option<(u64, u64)> {
    let counts = cache_counts(fd, 0, 0).ok()?;
    Some((counts.cached, counts.dirty + counts.writeback))
}

#[allow(unsafe_code)]
fn cache_counts(fd: impl AsFd, offset: u64, len: u64) -> Result<CacheCounts, Errno> {
    let range = CacheRange { offset, len };
    let mut counts = CacheCounts::default();
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: both structures are laid out as the kernel's and live through the call.
    let result = unsafe { libc::syscall(SYS_CACHESTAT, fd, &raw const range, &raw mut counts, 0) };
    if result == 0 { Ok(counts) } else { Err(last_errno()) }
}

/// What XFS says of its geometry (`struct xfs_fsop_geom_v1`); here its UUID alone matters.
#[repr(C, align(8))]
struct XfsGeometry {
    before: [u8; 64],
    uuid: [u8; 16],
    after: [u8; 32],
}

/// `_IOR('X', 100, struct xfs_fsop_geom_v1)`.
const XFS_IOC_FSGEOMETRY_V1: u32 = rustix::ioctl::opcode::read::<XfsGeometry>(b'X', 100);
const _: () = assert!(size_of::<XfsGeometry>() == 112);

/// The UUID of the XFS that an open file or directory lies on.
///
/// # Errors
/// ENOTTY, or what the file system says to what it does not know: it is none.
#[allow(unsafe_code)]
pub fn xfs_uuid(fd: impl AsFd) -> Result<[u8; 16], Errno> {
    const XFS_MAGIC: rustix::fs::FsWord = 0x5846_5342;
    // Another file system may take the number for something else.
    if rustix::fs::fstatfs(&fd)?.f_type != XFS_MAGIC {
        return Err(Errno::NOTTY);
    }
    let mut geometry = XfsGeometry { before: [0; 64], uuid: [0; 16], after: [0; 32] };
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: the kernel fills a structure of that size, which the number says, and which lives through the
    // call.
    let result = unsafe { libc::ioctl(fd, XFS_IOC_FSGEOMETRY_V1 as libc::Ioctl, &raw mut geometry) };
    if result == 0 { Ok(geometry.uuid) } else { Err(last_errno()) }
}

/// Says for each page from `offset` (a page's multiple) on whether it is in the page cache, one bool per
/// entry of `resident`.
///
/// Edge: a caller that may neither write the file nor owns it is told that all pages are.
///
/// # Errors
/// Of `mmap` and `mincore`: ENODEV for a file that cannot be mapped, ENOMEM.
///
/// # Panics
/// If more than [`RESIDENT_PAGES_MAX`] are asked for, or none.
#[allow(unsafe_code)]
pub fn resident(fd: impl AsFd, offset: u64, resident: &mut [bool]) -> Result<(), Errno> {
    assert!(!resident.is_empty() && resident.len() <= RESIDENT_PAGES_MAX);
    let len = resident.len() * rustix::param::page_size();
    let offset = libc::off_t::try_from(offset).map_err(|_| Errno::INVAL)?;
    let fd = fd.as_fd().as_raw_fd();
    let mut pages = vec![0_u8; resident.len()];
    // SAFETY: a fresh mapping that nothing may touch (PROT_NONE) and nothing does, so that a file which
    // shrinks cannot raise a signal. `pages` has a byte for each of its pages, and it is unmapped once, here.
    let result = unsafe {
        let address = libc::mmap(std::ptr::null_mut(), len, libc::PROT_NONE, libc::MAP_SHARED, fd, offset);
        if address == libc::MAP_FAILED {
            return Err(last_errno());
        }
        let asked = libc::mincore(address, len, pages.as_mut_ptr());
        let result = if asked == 0 { Ok(()) } else { Err(last_errno()) };
        libc::munmap(address, len);
        result
    };
    for (to, page) in resident.iter_mut().zip(pages) {
        *to = page & 1 == 1;
    }
    result
}

/// Asks for huge pages behind this memory. Where there are none it stays as it is.
#[allow(unsafe_code)]
pub fn want_huge_pages(memory: &mut [u8]) {
    if cfg!(miri) {
        // It knows no such advice.
        return;
    }
    // SAFETY: the advice changes what is behind the range, which is ours alone, and never its content. A
    // range that begins within a page is refused.
    unsafe { libc::madvise(memory.as_mut_ptr().cast(), memory.len(), libc::MADV_HUGEPAGE) };
}

/// Starts write-back of the dirty pages in `offset..offset + len` and waits for none of it.
///
/// # Errors
/// `ESPIPE` and `EINVAL` for what has no pages; `ENOSYS` where the kernel was built without it.
#[allow(unsafe_code)]
pub fn sync_file_range_write(fd: impl AsFd, offset: u64, len: u64) -> Result<(), Errno> {
    let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) else {
        return Err(Errno::INVAL);
    };
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: no memory of ours is named; the descriptor is borrowed, so it is open.
    let result = unsafe { libc::sync_file_range(fd, offset, len, libc::SYNC_FILE_RANGE_WRITE) };
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}

/// The OSD that has the object in which `offset` of a CephFS file lies; the kernel client's
/// `CEPH_IOC_GET_DATALOC`.
///
/// # Errors
/// ENOTTY where there is no such question (ceph-fuse, or no CephFS); ENOENT if no OSD has it; others of the
/// client.
pub fn ceph_data_location(fd: impl AsFd, offset: u64) -> Result<u64, Errno> {
    /// `struct ceph_ioctl_dataloc`; the address has the size of `sockaddr_storage`.
    #[repr(C)]
    struct DataLocation {
        file_offset: u64,
        object_offset: u64,
        object_no: u64,
        object_size: u64,
        object_name: [u8; 64],
        block_offset: u64,
        block_size: u64,
        osd: i64,
        osd_addr: [u64; 16],
    }
    const _: () = assert!(size_of::<DataLocation>() == 0xf8);
    // SAFETY: its fields are integers, and fill its size.
    #[allow(unsafe_code)]
    unsafe impl Numbers for DataLocation {}
    let mut location = DataLocation {
        file_offset: offset,
        object_offset: 0,
        object_no: 0,
        object_size: 0,
        object_name: [0; 64],
        block_offset: 0,
        block_size: 0,
        osd: -1,
        osd_addr: [0; 16],
    };
    ask(fd, 0xc0f8_9703, &mut location)?;
    u64::try_from(location.osd).map_err(|_| Errno::NOENT)
}

/// What `BEEGFS_IOC_GET_STRIPEINFO` answers: pattern and chunk size (32 bits each), number of targets (16),
/// padding.
///
/// # Errors
/// ENOTTY if this is no BeeGFS; others of its client.
pub fn beegfs_stripe_info(fd: impl AsFd) -> Result<[u8; 12], Errno> {
    let mut info = [0_u32; 3];
    ask(fd, 0x800c_6619, &mut info)?;
    let mut bytes = [0; 12];
    for (to, word) in bytes.chunks_exact_mut(4).zip(info) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    Ok(bytes)
}

/// The target, or group of targets, at position `index` of a file's stripe: `BEEGFS_IOC_GET_STRIPETARGET_V2`.
///
/// # Errors
/// ENOTTY before BeeGFS 8; others of its client.
pub fn beegfs_stripe_target(fd: impl AsFd, index: u32) -> Result<u32, Errno> {
    // u32 index, target or group, two targets, two nodes; two names of 256 bytes.
    let mut target = [0_u32; 6 + 128];
    target[0] = index;
    ask(fd, 0x8218_661a, &mut target)?;
    Ok(target[1])
}

/// The same for BeeGFS 7: `BEEGFS_IOC_GET_STRIPETARGET`.
///
/// # Errors
/// EINVAL for an index that does not fit; others of its client.
pub fn beegfs_stripe_target_v7(fd: impl AsFd, index: u32) -> Result<u32, Errno> {
    // u16 index, target, node; a name of 256 bytes.
    let mut target = [0_u16; 3 + 128];
    target[0] = u16::try_from(index).map_err(|_| Errno::INVAL)?;
    ask(fd, 0x8106_661a, &mut target)?;
    Ok(u32::from(target[1]))
}

/// What the kernel may fill: numbers without gaps, in which any bytes are valid.
///
/// # Safety
/// Only for such types.
#[allow(unsafe_code)]
unsafe trait Numbers {}
// SAFETY: an array of integers has no gaps, and any bytes are one.
#[allow(unsafe_code)]
unsafe impl<const N: usize> Numbers for [u16; N] {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl<const N: usize> Numbers for [u32; N] {}

/// An ioctl that reads and fills numbers. Their size is part of `request`, and the kernel moves no more.
#[allow(unsafe_code)]
fn ask<T: Numbers>(fd: impl AsFd, request: u32, about: &mut T) -> Result<(), Errno> {
    assert_eq!(request >> 16 & 0x3fff, size_of::<T>() as u32, "the size in the request is the structure's");
    // SAFETY: the pointer is to live numbers of the size that the request names, and any bytes are valid in
    // them.
    let result =
        unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), libc::c_ulong::from(request) as _, &raw mut *about) };
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}

/// What the kernel says of a TCP connection, in the layout of its `struct tcp_info`: as much of `info` as it
/// filled. Older kernels fill less.
///
/// # Errors
/// Of `getsockopt`: ENOTSOCK, EOPNOTSUPP for what is no TCP socket.
#[allow(unsafe_code)]
pub fn tcp_info(fd: impl AsFd, info: &mut [u8]) -> Result<usize, Errno> {
    let mut len = libc::socklen_t::try_from(info.len()).map_err(|_| Errno::INVAL)?;
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `len` bytes, which `info` has, and says in `len` how many it wrote.
    let result = unsafe {
        libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut len)
    };
    if result == 0 { Ok((len as usize).min(info.len())) } else { Err(last_errno()) }
}

/// Lets a TCP connection's receive window grow up to `bytes`, as far as its buffer goes.
///
/// # Errors
/// Of `setsockopt`: ENOTSOCK, EOPNOTSUPP for what is no TCP socket.
#[allow(unsafe_code)]
pub fn set_window_clamp(fd: impl AsFd, bytes: u64) -> Result<(), Errno> {
    let clamp = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: the kernel reads one `c_int`, which lives until the call is over.
    let result = unsafe {
        libc::setsockopt(
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_WINDOW_CLAMP,
            (&raw const clamp).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Ends this process with this code, whatever its threads do just now. No library's work at an exit is done:
/// what that takes away (locks, random state) a thread that still runs may be using, and then the process
/// would abort in place of its code.
#[allow(unsafe_code)]
pub fn exit_at_once(code: i32) -> ! {
    // SAFETY: it takes a number, touches no memory of ours and does not return.
    unsafe { libc::_exit(code) }
}

/// A descriptor that this process was started with, by its number: once more, and not for programs that it
/// starts.
///
/// # Errors
/// EBADF where nothing is open under the number.
#[allow(unsafe_code)]
pub fn inherited(number: RawFd) -> Result<OwnedFd, Errno> {
    if number < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: the number is used for this one call, which says EBADF where nothing is open; what comes back
    // is a descriptor of its own.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_dupfd_cloexec(fd, 3)
}

/// Programs that are started from now on get no descriptor of this process but the first three, and what they
/// are given on purpose.
///
/// # Errors
/// Some may get through.
#[allow(unsafe_code)]
pub fn keep_descriptors() -> Result<(), Errno> {
    // SAFETY: a flag of descriptors is set, none is closed; all arguments are numbers.
    let done =
        unsafe { libc::syscall(libc::SYS_close_range, 3_u32, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if done == 0 {
        return Ok(());
    }
    // A kernel before 5.11 does not know the call or the flag.
    let entries = std::fs::read_dir("/proc/self/fd");
    for entry in entries.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))? {
        let number = entry.ok().and_then(|entry| entry.file_name().to_str()?.parse::<RawFd>().ok());
        let Some(number) = number.filter(|number| *number >= 3) else { continue };
        // SAFETY: the number is used for this one call, which says EBADF where nothing is open.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        match rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC) {
            // The descriptor of the list itself may be this one.
            Ok(()) | Err(Errno::BADF) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Has a program start as somebody else, with these groups and no others, from its first instruction on. It
/// does not start where this cannot be, or where it could become root again.
#[allow(unsafe_code)]
pub fn start_as(command: &mut Command, uid: u32, gid: u32, groups: &[u32]) {
    let groups: Vec<Gid> = groups.iter().copied().map(Gid::from_raw).collect();
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    let become_him = move || {
        // The groups first, for who is not root any more cannot change them.
        set_thread_groups(&groups)?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
        let is_him = rustix::process::getuid() == uid
            && rustix::process::geteuid() == uid
            && rustix::process::getgid() == gid
            && rustix::process::getegid() == gid;
        let comes_back = !uid.is_root() && set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).is_ok();
        if is_him && !comes_back { Ok(()) } else { Err(Errno::PERM.into()) }
    };
    // SAFETY: between the fork and the program it makes system calls and nothing else: it neither allocates
    // nor takes a lock.
    unsafe { command.pre_exec(become_him) };
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
