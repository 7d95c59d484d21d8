//! What `stat` says of an entry, in our own types.

use std::os::fd::BorrowedFd;

use haul_core::entry::{Meta, Name, Node, Timestamp};
use rustix::fs::{AtFlags, FileType, Stat, Statx, StatxFlags, fstat, statat, statx};
use rustix::io::Errno;

/// By what one version of a file is told from another here. `st_dev` is not in it: it differs between the
/// hosts of a shared file system. What others are told of it is in [`version`](super::version).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    pub size: u64,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub ino: u64,
}

impl Stamp {
    /// Size and mtime agree: the content is taken to be the same unless digests say otherwise.
    pub(crate) fn same_content(&self, other: &Stamp) -> bool {
        self.size == other.size && self.mtime == other.mtime
    }
}

/// An entry as one `stat` showed it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) kind: FileType,
    pub(crate) meta: Meta,
    pub(crate) stamp: Stamp,
    pub(crate) links: u64,
    /// Bytes that the file system holds for it.
    pub(crate) allocated: u64,
    /// What `stat` calls its file system.
    pub(crate) dev: u64,
    /// Of a device, which one it is.
    pub(crate) rdev: u64,
}

impl Seen {
    pub(crate) fn is_file(&self) -> bool {
        self.kind == FileType::RegularFile
    }

    /// What it is that is neither file, directory nor link.
    pub(crate) fn node(&self) -> Option<Node> {
        node_of(self.kind, self.rdev)
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
            stamp: Stamp {
                size: u64::try_from(stat.st_size).unwrap_or(0),
                mtime,
                ctime,
                ino: stat.st_ino as u64,
            },
            links: stat.st_nlink as u64,
            allocated: (stat.st_blocks as u64).saturating_mul(512),
            dev: stat.st_dev as u64,
            rdev: stat.st_rdev as u64,
        }
    }
}

impl From<Statx> for Seen {
    fn from(stat: Statx) -> Seen {
        let time = |time: rustix::fs::StatxTimestamp| Timestamp { secs: time.tv_sec, nanos: time.tv_nsec };
        let mtime = time(stat.stx_mtime);
        let mode = u32::from(stat.stx_mode);
        Seen {
            kind: FileType::from_raw_mode(mode),
            meta: Meta { mode: mode & 0o7777, uid: stat.stx_uid, gid: stat.stx_gid, mtime },
            stamp: Stamp { size: stat.stx_size, mtime, ctime: time(stat.stx_ctime), ino: stat.stx_ino },
            links: u64::from(stat.stx_nlink),
            allocated: stat.stx_blocks.saturating_mul(512),
            dev: rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor),
            rdev: rustix::fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor),
        }
    }
}

/// What an entry is that is neither file, directory nor link; `rdev`: of a device, which one.
pub(crate) fn node_of(kind: FileType, rdev: u64) -> Option<Node> {
    let device = |block| {
        let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
        Some(Node::Device { block, major, minor })
    };
    match kind {
        FileType::Fifo => Some(Node::Fifo),
        FileType::Socket => Some(Node::Socket),
        FileType::BlockDevice => device(true),
        FileType::CharacterDevice => device(false),
        _ => None,
    }
}

/// Looks at `name` in `dir`, not through a symlink.
pub(crate) fn look_at(dir: BorrowedFd<'_>, name: &Name) -> Result<Seen, Errno> {
    statat(dir, name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW).map(Seen::from)
}

/// Looks at what the link `name` in `dir` leads to.
pub(crate) fn look_through(dir: BorrowedFd<'_>, name: &Name) -> Result<Seen, Errno> {
    statat(dir, name.as_bytes(), AtFlags::empty()).map(Seen::from)
}

/// As [`look_at`], or where it is `followed` as [`look_through`], from whoever keeps the file: a network file
/// system asks its server, whatever it has cached.
pub(crate) fn look_surely(dir: BorrowedFd<'_>, name: &Name, followed: bool) -> Result<Seen, Errno> {
    let follow = if followed { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
    match statx(dir, name.as_bytes(), follow | AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS) {
        Ok(stat) => Ok(stat.into()),
        Err(errno) if is_unknown(errno) && followed => look_through(dir, name),
        Err(errno) if is_unknown(errno) => look_at(dir, name),
        Err(errno) => Err(errno),
    }
}

/// As [`look_surely`], of an open file.
pub(crate) fn look_into(fd: BorrowedFd<'_>) -> Result<Seen, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    match statx(fd, c"", flags, StatxFlags::BASIC_STATS) {
        Ok(stat) => Ok(stat.into()),
        Err(errno) if is_unknown(errno) => fstat(fd).map(Seen::from),
        Err(errno) => Err(errno),
    }
}

/// The version of an open file, as the walk and later looks know it. `None`: it is no regular file.
pub fn version_of(fd: BorrowedFd<'_>) -> Result<Option<Stamp>, Errno> {
    let seen = look_into(fd)?;
    Ok(seen.is_file().then_some(seen.stamp))
}

/// What a sandbox says that does not know `statx`. (Some say `EPERM`.)
fn is_unknown(errno: Errno) -> bool {
    matches!(errno, Errno::NOSYS | Errno::PERM | Errno::INVAL)
}
