//! How a failed system call becomes a [`Failure`]: operation, path, cause, what to do.

use std::os::fd::AsFd;

use haul_base::errno;
use haul_core::tune::show_amount;
use haul_core::wire::{Failure, FailureKind, TEXT_LEN_MAX};
use rustix::io::Errno;

/// A failure with this text, cut to what the wire carries.
pub(super) fn failure(kind: FailureKind, errno: i32, text: impl Into<String>) -> Failure {
    let mut text = text.into();
    let cut = (0..=text.len().min(TEXT_LEN_MAX)).rev().find(|at| text.is_char_boundary(*at));
    text.truncate(cut.unwrap_or(0));
    Failure { kind, errno, text: text.into() }
}

/// A failed system call: `what` was tried (`"create"`) on `path`.
pub(super) fn os(kind: FailureKind, what: &str, path: &str, errno: Errno) -> Failure {
    failure(kind, errno.raw_os_error(), format!("{what} {path}: {}", errno::text(errno)))
}

/// Like [`os`], and where space ran out says which resource of the file system that holds `fd` it was.
pub(super) fn os_at(kind: FailureKind, what: &str, path: &str, errno: Errno, fd: impl AsFd) -> Failure {
    match space(errno, fd) {
        Some(space) => {
            failure(kind, errno.raw_os_error(), format!("{what} {path}: {}; {space}", errno::text(errno)))
        }
        None => os(kind, what, path, errno),
    }
}

/// Bytes that the file system that holds `fd` has for us; `None`: nobody can say, or they are not what is
/// short.
pub(crate) fn free(fd: impl AsFd) -> Option<u64> {
    let room = rustix::fs::fstatvfs(fd).ok()?;
    let inodes = room.f_files == 0 || room.f_favail > 0;
    inodes.then(|| room.f_bavail.saturating_mul(room.f_frsize))
}

/// What ran out and what is left, if that is what `errno` says.
fn space(errno: Errno, fd: impl AsFd) -> Option<String> {
    if errno != Errno::NOSPC && errno != Errno::DQUOT {
        return None;
    }
    let room = rustix::fs::fstatvfs(fd).ok()?;
    let free = room.f_bavail.saturating_mul(room.f_frsize);
    // Some file systems keep no count of inodes and say 0 of 0.
    let no_inodes = room.f_files > 0 && room.f_favail == 0;
    let left = format!("{} and {} inodes are free to us", show_amount(free), room.f_favail);
    Some(match errno {
        Errno::DQUOT => format!("the quota is used up; on the file system {left}"),
        _ if no_inodes => format!("the file system is out of inodes: {left}; remove files, then run again"),
        _ => format!("the file system is out of blocks: {left}; make room, then run again"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a failure's text never exceeds what the wire carries, and no control byte is shown raw.
    /// Method: a path longer than the limit, of characters of two bytes; a name with escape and newline.
    #[test]
    fn texts_are_bounded_and_harmless() {
        let failure = os(FailureKind::Write, "write", &"é".repeat(TEXT_LEN_MAX), Errno::IO);
        assert!(failure.text.len() <= TEXT_LEN_MAX);
        assert_eq!(haul_base::escape::within(b"a\x1b[31m\n\xff"), "a\\u{1b}[31m\\n\u{fffd}");
    }
}
