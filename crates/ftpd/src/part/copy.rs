//! Bytes of a file that stands there, into a part that is empty.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::Failed;

/// Bytes that are copied before the client is looked after.
const COPY_LEN: usize = 16 << 20;

/// Copies the first bytes into a file that is empty. Holes stay holes.
pub(super) fn copy(
    from: &OwnedFd,
    to: &OwnedFd,
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
