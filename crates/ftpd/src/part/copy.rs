//! Bytes of a file that stands there, into a part that is empty.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;

use super::Failed;
use crate::store::{Fault, File};

/// Bytes that are copied before the client is looked after.
const COPY_LEN: usize = 16 << 20;

/// Bytes that pass this process at a time where the system cannot copy.
const PIECE_LEN: usize = 1 << 20;

/// Copies the first bytes into a file that is empty.
pub(super) fn copy(
    from: &dyn File,
    to: &dyn File,
    len: u64,
    is_wanted: &mut dyn FnMut() -> bool,
) -> Result<(), Failed> {
    if let (Some(from), Some(to)) = (from.fd(), to.fd()) {
        return copy_in_system(from, to, len, is_wanted);
    }
    let failed = |fault: Fault| Failed::of("copy what stands there")(fault);
    let (mut at, mut buffer) = (0, vec![0; PIECE_LEN]);
    while at < len {
        if !is_wanted() {
            return Err(Failed::Aborted);
        }
        let want = usize::try_from(len - at).unwrap_or(PIECE_LEN).min(PIECE_LEN);
        let got = from.read_at(&mut buffer[..want], at).map_err(failed)?;
        if got == 0 {
            return Err(Failed::Changed);
        }
        to.write_at(&buffer[..got], at).map_err(failed)?;
        at += got as u64;
    }
    Ok(())
}

/// The same between files of the system. Holes stay holes.
fn copy_in_system(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    len: u64,
    is_wanted: &mut dyn FnMut() -> bool,
) -> Result<(), Failed> {
    use rustix::fs::{SeekFrom, seek};
    let failed = Failed::of("copy what stands there");
    let (mut at, mut by_hand) = (0, false);
    let mut buffer = Vec::new();
    // Up to here there is no hole, as far as the file system tells.
    let mut data_end = 0;
    while at < len {
        if !is_wanted() {
            return Err(Failed::Aborted);
        }
        if at >= data_end {
            (at, data_end) = match seek(from, SeekFrom::Data(at)) {
                Ok(start) => (start, seek(from, SeekFrom::Hole(start)).unwrap_or(len)),
                // Nothing but a hole up to the end.
                Err(Errno::NXIO) => (len, len),
                Err(_) => (at, len),
            };
            if at >= len {
                break;
            }
        }
        let want = usize::try_from(len.min(data_end.max(at + 1)) - at).unwrap_or(usize::MAX).min(COPY_LEN);
        let (mut read, mut written) = (at, at);
        let moved = if by_hand {
            buffer.resize(1 << 20, 0);
            let got = rustix::io::pread(from, &mut buffer[..want.min(1 << 20)], at).map_err(&failed)?;
            let mut put = 0;
            while put < got {
                put += rustix::io::pwrite(to, &buffer[put..got], at + put as u64).map_err(&failed)?;
            }
            got
        } else {
            match rustix::fs::copy_file_range(from, Some(&mut read), to, Some(&mut written), want) {
                Ok(moved) => moved,
                Err(Errno::INTR) => continue,
                Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM) => {
                    by_hand = true;
                    continue;
                }
                Err(errno) => return Err(failed(errno)),
            }
        };
        if moved == 0 {
            return Err(Failed::Changed);
        }
        at += moved as u64;
    }
    // A hole at the end has no bytes that make the file so long.
    rustix::fs::ftruncate(to, len).map_err(failed)
}
