//! Room that is kept on a disk for what is small and must be written although the disk is full: a server
//! could not start again otherwise, nor a catalog have files unlinked.
//!
//! In: a directory of ours. Out: a file in it that has blocks and says nothing; it goes when its room is
//! needed, and comes again, as large as it can be, when there is room.
//! Invariants: it is never larger than it was asked to be; nothing that counts depends on its being there.
//! Left out: file systems that give no blocks in advance; there nothing is kept.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::FallocateFlags;
use rustix::io::{Errno, Result, retry_on_intr};

use crate::disk::Dir;

/// Its name.
pub(crate) const NAME: &str = "reserve";
/// Less is not worth a file, bytes.
const LEN_MIN: u64 = 64 << 10;

/// Whether it is room that lacks, and nothing is broken.
pub(crate) fn is_full(errno: Errno) -> bool {
    errno == Errno::NOSPC || errno == Errno::DQUOT
}

/// The same of the number of an error.
pub(crate) fn is_full_raw(errno: i32) -> bool {
    is_full(Errno::from_raw_os_error(errno))
}

/// See the head of this module.
pub(crate) struct Reserve {
    dir: Dir,
    /// Bytes.
    len: u64,
    /// It is ours to fill.
    is_used: AtomicBool,
}

impl Reserve {
    /// That of a directory; nothing of it is made.
    pub(crate) fn of(dir: &Path, len: u64) -> Result<Reserve> {
        Ok(Reserve { dir: Dir::open(dir)?, len, is_used: AtomicBool::new(false) })
    }

    /// Gives its room to what is written next. Whether it had any.
    pub(crate) fn give_up(&self) -> bool {
        if self.dir.remove(NAME).is_err() {
            return false;
        }
        self.is_used.store(true, Ordering::Relaxed);
        // Some file systems give the room back when it lasts that the file is gone.
        let _ = self.dir.sync();
        true
    }

    /// Takes as much room as there is, up to its length. Whether it has all of that, or never will.
    ///
    /// # Errors
    /// The system's, but for a disk that is full.
    pub(crate) fn fill(&self) -> Result<bool> {
        self.is_used.store(true, Ordering::Relaxed);
        let fd = match self.dir.file(NAME) {
            Err(Errno::NOENT) => match self.dir.make_file(NAME) {
                Err(errno) if is_full(errno) => return Ok(false),
                other => other?,
            },
            other => other?,
        };
        let has = rustix::fs::fstat(&fd)?.st_size as u64;
        let mut len = self.len;
        while len > has && len >= LEN_MIN {
            match retry_on_intr(|| rustix::fs::fallocate(&fd, FallocateFlags::empty(), has, len - has)) {
                Ok(()) => return Ok(len == self.len),
                Err(errno) if is_full(errno) => {
                    // A part of it may have been taken.
                    retry_on_intr(|| rustix::fs::ftruncate(&fd, has))?;
                    len = len.saturating_sub((self.len / 8).max(1));
                }
                // None in advance.
                Err(_) => return Ok(true),
            }
        }
        Ok(has >= self.len)
    }
}

impl Drop for Reserve {
    /// What the end of something else gave back is taken for its next start.
    fn drop(&mut self) {
        if self.is_used.load(Ordering::Relaxed) {
            let _ = self.fill();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: it has the room that it says, once, and gives it back.
    #[test]
    fn it_is_filled_and_given_up() {
        let dir = tempfile::tempdir().expect("a directory");
        let reserve = Reserve::of(dir.path(), 1 << 20).expect("it opens");
        assert!(!reserve.give_up(), "there is none");
        assert!(reserve.fill().expect("filled"));
        assert!(reserve.fill().expect("filled"));
        let len = dir.path().join(NAME).metadata().expect("there").len();
        assert!(len == 1 << 20 || len == 0, "{len}: all of it, or the file system gives none in advance");
        assert!(reserve.give_up());
        assert_eq!(std::fs::read_dir(dir.path()).expect("read").count(), 0);
        drop(reserve);
        assert!(dir.path().join(NAME).exists(), "it is there for who comes next");
    }
}
