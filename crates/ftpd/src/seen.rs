//! Which version of a file was looked at, and whether it stands still.
//!
//! In: a file that is open, looks at it. Out: a look behind which a read counts; whether what was read is of
//! one version.
//! What must hold: a write between a look of [`settled`] and [`is_unchanged`] is seen by the latter, where
//! the file system's times are this host's and in a volume. A write that had begun a while before the look
//! and goes on is not: the system moves the time once for each call, at its beginning.

use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::store::{Fault, File, Stat};

/// How long a file is waited for that is another at each look; two looks are had in any case.
const PATIENCE: Duration = Duration::from_secs(1);

/// A version of a file: what a look at it tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    dev: u64,
    pub ino: u64,
    pub size: u64,
    mtime: (i64, i64),
    version: (i64, i64),
}

impl Seen {
    /// The same wherever it is looked at: the number of the device is each host's own.
    pub fn of(stat: &Stat) -> Seen {
        Seen { dev: 0, ..Seen::here(stat) }
    }

    /// For looks of this host alone.
    pub fn here(stat: &Stat) -> Seen {
        Seen { dev: stat.dev, ino: stat.ino, size: stat.len, mtime: stat.mtime, version: stat.version }
    }
}

/// The file that is open is as it was at a look before: not written to, and not replaced by its name either.
pub fn is_unchanged(file: &dyn File, before: &Stat) -> bool {
    file.stat().is_ok_and(|now| Seen::here(&now) == Seen::here(before))
}

/// A look behind which each write shows: `first`, or a later one where that was too young. `None`: it is
/// written to all the time.
///
/// # Errors
/// It cannot be looked at.
pub fn settled(file: &dyn File, first: Stat) -> Result<Option<Stat>, Fault> {
    let (mut stat, mut waited, mut looks) = (first, Duration::ZERO, 0);
    while looks < 2 || waited < PATIENCE {
        let wait = file.settles(&stat);
        if wait.is_zero() || haul_mutant::removed("ftpd-young-files-settle") {
            return Ok(Some(stat));
        }
        thread::sleep(wait);
        (waited, looks) = (waited + wait, looks + 1);
        let now = file.stat()?;
        if Seen::here(&now) == Seen::here(&stat) {
            return Ok(Some(stat));
        }
        stat = now;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::FileExt as _;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::SystemTime;

    use super::*;
    use crate::store::posix::PosixFile;

    fn open(file: &fs::File) -> PosixFile {
        PosixFile::from(OwnedFd::from(file.try_clone().unwrap()))
    }

    /// Goal: behind a look at a file that was written just now, no write leaves its times as they are.
    /// Method: a byte is written right behind each look, which is what a tick hides; 8 files.
    #[test]
    fn what_was_written_just_now_settles() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..8 {
            let file = fs::File::create(dir.path().join(number.to_string())).unwrap();
            file.write_all_at(b"old", 0).unwrap();
            let open = open(&file);
            let stat = open.stat().unwrap();
            let stat = settled(&open, stat).unwrap().expect("nobody writes");
            file.write_all_at(b"new", 0).unwrap();
            assert!(!is_unchanged(&open, &stat), "the write of {number} is not seen");
        }
    }

    /// Goal: what is old is not waited for, though it is looked at as often as one likes.
    #[test]
    fn what_is_old_is_settled() {
        let dir = tempfile::tempdir().unwrap();
        let file = fs::File::create(dir.path().join("x")).unwrap();
        let mut stat = open(&file).stat().unwrap();
        assert!(!open(&file).settles(&stat).is_zero());
        stat.version.0 -= 3;
        assert!(open(&file).settles(&stat).is_zero());
        // A clock that was set back.
        stat.version.0 += 3_600;
        assert!(open(&file).settles(&stat) <= Duration::from_secs(2));
    }

    /// Goal: the look that counts is the last one where somebody wrote meanwhile, and none where he goes on.
    #[test]
    fn what_is_written_meanwhile_is_looked_at_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = fs::File::create(dir.path().join("x")).unwrap();
        file.write_all_at(b"old", 0).unwrap();
        let open = open(&file);
        let stat = open.stat().unwrap();
        file.write_all_at(b"longer", 0).unwrap();
        let later = settled(&open, stat).unwrap().expect("nobody writes any more");
        assert_eq!(later.len, 6);

        let ends = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut times = 0;
                while !ends.load(Ordering::Relaxed) {
                    times += 1;
                    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(times);
                    file.set_modified(time).unwrap();
                    thread::yield_now();
                }
            });
            file.write_all_at(b"young", 0).unwrap();
            // He may have no processor for as long as a look takes.
            let never =
                (0..100).any(|_| open.stat().and_then(|stat| settled(&open, stat)).unwrap().is_none());
            ends.store(true, Ordering::Relaxed);
            assert!(never);
        });
    }
}
