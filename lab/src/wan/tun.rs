//! A TUN device with virtio headers and segmentation offload, and a thread that the scheduler prefers.
//!
//! In: a name, in the network namespace of the calling thread. Out: a descriptor on which each read yields
//! and each write delivers one packet of up to 64 KiB. The device lives as long as the descriptor. The only
//! file of the lab with unsafe code: three system calls that no library wraps.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{IntegerSetter, Updater, ioctl, opcode};

const TUNSETIFF: rustix::ioctl::Opcode = opcode::write::<libc::c_int>(b'T', 202);
const TUNSETOFFLOAD: rustix::ioctl::Opcode = opcode::write::<libc::c_uint>(b'T', 208);

/// Segmentation of TCP, with congestion marks, and checksums: since Linux 2.6.
const OFFLOAD_TCP: usize = 0x01 | 0x02 | 0x04 | 0x08;
/// Segmentation of UDP: since Linux 6.2.
const OFFLOAD_UDP: usize = 0x20 | 0x40;
/// Above ordinary threads, below what an administrator runs at a higher priority.
const PRIORITY: libc::c_int = 10;

/// `struct ifreq` as far as TUNSETIFF reads it.
#[repr(C)]
struct Request {
    name: [u8; libc::IFNAMSIZ],
    flags: libc::c_short,
    rest: [u8; 22],
}

/// Makes a device.
///
/// # Errors
/// If there is no `/dev/net/tun`, the process may not use it, or the name is taken.
pub fn open(name: &str) -> io::Result<OwnedFd> {
    let fd =
        rustix::fs::open("/dev/net/tun", OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    let flags = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    let mut request = Request { name: [0; libc::IFNAMSIZ], flags: flags as libc::c_short, rest: [0; 22] };
    // One byte stays zero and ends the name.
    let room = request.name.get_mut(..name.len()).filter(|room| room.len() < libc::IFNAMSIZ);
    room.ok_or(io::ErrorKind::InvalidInput)?.copy_from_slice(name.as_bytes());
    // SAFETY: TUNSETIFF reads a `struct ifreq` and writes one back, of 40 bytes at most; `Request` has that
    // size and its layout, and every pattern of bits is a valid one.
    unsafe { ioctl(fd.as_fd(), Updater::<TUNSETIFF, Request>::new(&mut request))? };
    let offload = |bits: usize| {
        // SAFETY: TUNSETOFFLOAD takes an integer of flags and no pointer.
        unsafe { ioctl(fd.as_fd(), IntegerSetter::<TUNSETOFFLOAD>::new_usize(bits)) }
    };
    offload(OFFLOAD_TCP | OFFLOAD_UDP).or_else(|_| offload(OFFLOAD_TCP))?;
    Ok(fd)
}

/// Has the calling thread run before all ordinary ones, and share a core with its like by turns.
///
/// # Errors
/// Without the right to do so (`CAP_SYS_NICE`).
pub fn prefer_this_thread() -> io::Result<()> {
    let parameter = libc::sched_param { sched_priority: PRIORITY };
    // SAFETY: a valid pointer to an initialised `sched_param`, read during the call only; 0 is the calling
    // thread.
    let code = unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const parameter) };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

const _: () = assert!(size_of::<Request>() == 40);
