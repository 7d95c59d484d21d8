//! What `stat` says of an entry, in our own types.

use std::os::fd::BorrowedFd;

use haul_core::entry::{Fingerprint, Meta, Name, Timestamp};
use rustix::fs::{AtFlags, FileType, Stat, statat};
use rustix::io::Errno;

/// An entry as one `stat` showed it.
#[derive(Clone, Copy, Debug)]
pub(in crate::storage) struct Seen {
    pub(in crate::storage) kind: FileType,
    pub(in crate::storage) meta: Meta,
    pub(in crate::storage) fingerprint: Fingerprint,
    pub(in crate::storage) links: u64,
    /// Bytes that the file system holds for it.
    pub(in crate::storage) allocated: u64,
}

impl Seen {
    pub(in crate::storage) fn is_file(&self) -> bool {
        self.kind == FileType::RegularFile
    }
}

impl From<Stat> for Seen {
    // The widths of these fields differ between the CPUs that Linux runs on.
    #[allow(clippy::unnecessary_cast)]
    fn from(stat: Stat) -> Seen {
        let mtime = Timestamp { secs: stat.st_mtime as i64, nanos: stat.st_mtime_nsec as u32 };
        let ctime = Timestamp { secs: stat.st_ctime as i64, nanos: stat.st_ctime_nsec as u32 };
        Seen {
            kind: FileType::from_raw_mode(stat.st_mode as _),
            meta: Meta {
                mode: stat.st_mode as u32 & 0o7777,
                uid: stat.st_uid as u32,
                gid: stat.st_gid as u32,
                mtime,
            },
            fingerprint: Fingerprint {
                size: u64::try_from(stat.st_size).unwrap_or(0),
                mtime,
                ctime,
                ino: stat.st_ino as u64,
            },
            links: stat.st_nlink as u64,
            allocated: (stat.st_blocks as u64).saturating_mul(512),
        }
    }
}

/// Looks at `name` in `dir`, not through a symlink.
pub(in crate::storage) fn look_at(dir: BorrowedFd<'_>, name: &Name) -> Result<Seen, Errno> {
    statat(dir, name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW).map(Seen::from)
}
