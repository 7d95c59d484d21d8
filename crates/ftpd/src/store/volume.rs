//! A volume, by its client: names from its catalog, bytes from all of its servers at once.
//!
//! What must hold: each directory is known by its number, so that nothing leads out of the one that is
//! served; a write that did not come back is waited for before anything is called written or safe.
//! A volume knows no locks, so that whoever may go on with an upload locks a file of his own user's beside
//! the access ([`Locks`]): all servers of one user that see it exclude each other. Parts bear a tag that is
//! made with these locks, and servers that do not see them never look for each other's parts. Left out: room
//! that is left; users, for whoever has the key of a volume may do everything in it.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use haul_core::entry::Name;
use haul_core::volume::ContentVersion;
use haul_volume::access::Access;
use haul_volume::api::{self, Kind, OpenOptions, Writing};
use rustix::fs::{CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::{Dir, Entries, Entry, Fault, File, FileType, Inner, Round, Stat};
use crate::config;

/// Bytes that a file holds of what was read ahead.
const AHEAD: u64 = 16 << 20;
/// Bytes that are written at a time, before the oldest are waited for.
const UNDER_WAY_MAX: usize = 16 << 20;
/// Bytes of a token of locks.
const TOKEN_LEN: usize = 16;
/// So often a lock is taken anew whose file was removed meanwhile.
const ATTEMPTS: u32 = 100;

/// See [`Dir`].
pub struct VolumeDir {
    dir: api::Dir,
    locks: Option<Arc<Locks>>,
}

/// See [`File`].
pub struct VolumeFile {
    file: api::File,
    /// How many servers the volume has.
    servers: u64,
    locks: Option<Arc<Locks>>,
    lock: Mutex<Option<Lock>>,
    under_way: Mutex<UnderWay>,
}

/// Writes that nobody has waited for.
#[derive(Default)]
struct UnderWay {
    writes: VecDeque<Writing>,
    bytes: usize,
    /// One that failed: then so does all that is asked of the file.
    failed: Option<Fault>,
}

/// Where locks of files of one volume lie, in a directory of the user's.
struct Locks {
    dir: PathBuf,
    /// What their names begin with.
    volume: String,
    tag: u32,
}

/// One that is held: its file goes with it.
struct Lock {
    path: PathBuf,
    _file: OwnedFd,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the client of the volume says. Where the volume is, is nobody's business who is served.
fn fault(error: api::Error) -> Fault {
    let errno = haul_base::errno::of(error.errno()).unwrap_or(Errno::IO);
    let is_plain = matches!(
        errno,
        Errno::NOENT | Errno::EXIST | Errno::NOTDIR | Errno::ISDIR | Errno::NOTEMPTY | Errno::INVAL
    );
    let words = (!is_plain).then(|| error.why().to_string().into());
    Fault { errno, words }
}

/// Connects to a volume, and opens the directory of it that is served. With it: what this user's parts there
/// are known by.
///
/// # Errors
/// In words.
pub fn open(served: &config::Volume, path: &[u8]) -> Result<(VolumeDir, u32), String> {
    use std::os::unix::ffi::OsStrExt as _;
    let access = Access::read(&served.state, &served.name).map_err(|why| why.to_string())?;
    let volume = api::Volume::open(&access).map_err(|why| why.to_string())?;
    let dir = volume.open_dir(std::ffi::OsStr::from_bytes(path)).map_err(|why| why.to_string())?;
    // Who may only read locks nothing.
    let locks = match access.read_only {
        true => None,
        false => Some(Arc::new(Locks::open(&served.state.join("gridftp"), &access)?)),
    };
    let tag = locks.as_ref().map_or(0, |locks| locks.tag);
    Ok((VolumeDir { dir, locks }, tag))
}

/// A version that nothing else has: of a file that somebody writes all the time.
fn no_version() -> (i64, i64) {
    static NEXT: AtomicI64 = AtomicI64::new(0);
    (-1, NEXT.fetch_add(1, Ordering::Relaxed))
}

fn since_1970(time: SystemTime) -> (i64, i64) {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => (i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos().into()),
        Err(before) => {
            let before = before.duration();
            let secs = -i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
            match before.subsec_nanos() {
                0 => (secs, 0),
                nanos => (secs - 1, i64::from(1_000_000_000 - nanos)),
            }
        }
    }
}

fn stat_of(stat: &api::Stat, version: Option<ContentVersion>) -> Stat {
    let kind = match stat.kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Link(_) => FileType::Symlink,
    };
    let version = match version {
        Some(version) => (version.gatherer.into(), i64::try_from(version.changes).unwrap_or(i64::MAX)),
        None if kind == FileType::RegularFile => no_version(),
        None => (0, 0),
    };
    Stat {
        kind,
        mode: stat.mode,
        links: 1,
        uid: stat.uid,
        gid: stat.gid,
        len: stat.len,
        mtime: since_1970(stat.mtime),
        version,
        dev: 0,
        ino: stat.number,
    }
}

impl VolumeDir {
    /// The access to the volume is not for reading alone.
    pub fn can_change(&self) -> bool {
        self.locks.is_some()
    }

    fn below(&self, dir: api::Dir) -> Box<dyn Dir> {
        Box::new(VolumeDir { dir, locks: self.locks.clone() })
    }

    fn file(&self, name: &Name, options: &OpenOptions) -> Result<Box<dyn File>, Fault> {
        let file = self.dir.open_file(name, options).map_err(fault)?;
        let servers = self.dir.volume().servers().len() as u64;
        let (locks, lock, under_way) = (self.locks.clone(), Mutex::default(), Mutex::default());
        Ok(Box::new(VolumeFile { file, servers, locks, lock, under_way }))
    }
}

impl Dir for VolumeDir {
    fn inner(&self) -> Inner<'_> {
        Inner::Volume(&self.dir)
    }

    fn again(&self) -> Result<Box<dyn Dir>, Fault> {
        Ok(self.below(self.dir.clone()))
    }

    fn stat(&self) -> Result<Stat, Fault> {
        Ok(stat_of(&self.dir.stat().map_err(fault)?, None))
    }

    fn can_enter(&self) -> Result<(), Fault> {
        Ok(())
    }

    fn look(&self, name: &Name) -> Result<Stat, Fault> {
        let (stat, version) = self.dir.lookup(name).map_err(fault)?;
        Ok(stat_of(&stat, version))
    }

    fn identity(&self, name: &Name) -> Result<(u64, u64), Fault> {
        Ok((0, self.dir.number_of(name).map_err(fault)?))
    }

    fn link(&self, name: &Name) -> Result<Vec<u8>, Fault> {
        match self.dir.lookup(name).map_err(fault)?.0.kind {
            Kind::Link(target) => Ok(target.into()),
            Kind::File | Kind::Directory => Err(Errno::INVAL.into()),
        }
    }

    fn entries(&self, looks: bool) -> Result<Entries, Fault> {
        Ok(Box::new(self.dir.entries(looks).map(move |entry| {
            let (name, stat) = entry.map_err(fault)?;
            let link = match &stat.kind {
                Kind::Link(target) => Some(target.to_vec()),
                Kind::File | Kind::Directory => None,
            };
            let seen = looks.then(|| (stat_of(&stat, None), link));
            Ok(Entry { name: name.as_bytes().to_vec(), seen })
        })))
    }

    fn open_dir(&self, name: &Name) -> Result<Box<dyn Dir>, Fault> {
        Ok(self.below(self.dir.open_dir(name).map_err(fault)?))
    }

    fn open(&self, name: &Name, write: bool) -> Result<Box<dyn File>, Fault> {
        self.file(name, OpenOptions::new().read(true).write(write).ahead(AHEAD))
    }

    fn make(&self, name: &Name) -> Result<Box<dyn File>, Fault> {
        self.file(name, OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).ahead(AHEAD))
    }

    fn make_dir(&self, name: &Name, mode: u32) -> Result<(), Fault> {
        self.dir.mkdir(name, mode).map_err(fault)
    }

    fn remove(&self, name: &Name) -> Result<(), Fault> {
        self.dir.unlink(name).map_err(fault)
    }

    fn remove_dir(&self, name: &Name) -> Result<(), Fault> {
        self.dir.rmdir(name).map_err(fault)
    }

    fn rename(&self, from: &Name, to_dir: &dyn Dir, to: &Name) -> Result<(), Fault> {
        match to_dir.inner() {
            Inner::Volume(to_dir) => self.dir.rename(from, to_dir, to).map_err(fault),
            Inner::Posix(_) => Err(Errno::XDEV.into()),
        }
    }

    fn set_mode(&self, name: &Name, mode: u32) -> Result<(), Fault> {
        self.dir.set_mode(name, mode).map_err(fault)
    }

    fn set_mtime(&self, name: &Name, secs: i64, nanos: u32) -> Result<(), Fault> {
        self.dir.set_mtime(name, secs, nanos).map_err(fault)
    }

    /// The catalog has synced each change before it said so.
    fn sync(&self) -> Result<(), Fault> {
        Ok(())
    }

    fn free(&self) -> Option<u64> {
        None
    }

    fn has_users(&self) -> bool {
        false
    }
}

impl VolumeFile {
    /// Waits for writes that are under way, until no more than so many bytes are.
    fn settle(&self, bytes_max: usize) -> Result<(), Fault> {
        let mut under_way = lock(&self.under_way);
        while under_way.bytes > bytes_max {
            let Some(write) = under_way.writes.pop_front() else { break };
            under_way.bytes -= write.bytes();
            if let Err(why) = write.wait() {
                under_way.failed.get_or_insert(fault(why));
            }
        }
        under_way.failed.clone().map_or(Ok(()), Err)
    }
}

impl File for VolumeFile {
    fn stat(&self) -> Result<Stat, Fault> {
        self.settle(0)?;
        let (stat, version) = self.file.look().map_err(fault)?;
        Ok(stat_of(&stat, version))
    }

    fn length(&self) -> Result<u64, Fault> {
        self.settle(0)?;
        self.file.len().map_err(fault)
    }

    fn identity(&self) -> Result<(u64, u64), Fault> {
        Ok((0, self.file.number()))
    }

    fn read_at(&self, bytes: &mut [u8], at: u64) -> Result<usize, Fault> {
        self.settle(0)?;
        self.file.pread(bytes, at).map_err(fault)
    }

    fn ahead(&self, ranges: &[(u64, u64)]) {
        let ranges: Vec<_> = ranges.iter().map(|(start, end)| *start..*end).collect();
        // What fails of it is told by the read that needs it.
        let _ = self.file.prefetch(&ranges);
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> Result<(), Fault> {
        self.settle(UNDER_WAY_MAX)?;
        let write = self.file.begin_write(bytes.to_vec(), at).map_err(fault)?;
        let mut under_way = lock(&self.under_way);
        under_way.bytes += write.bytes();
        under_way.writes.push_back(write);
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<(), Fault> {
        self.settle(0)?;
        self.file.set_len(len).map_err(fault)
    }

    fn set_mode(&self, mode: u32) -> Result<(), Fault> {
        self.file.set_mode(mode).map_err(fault)
    }

    fn sync_data(&self) -> Result<(), Fault> {
        self.settle(0)?;
        self.file.sync_data().map_err(fault)
    }

    fn sync(&self) -> Result<(), Fault> {
        self.settle(0)?;
        self.file.sync().map_err(fault)
    }

    fn round(&self) -> Option<Round> {
        let blocks = self.file.blocks().ok()?;
        let round = Round { size: blocks.size(), count: self.servers, first: blocks.get(0)?.server.into() };
        // One that lies in parts shows that among the first.
        let is_in_turn =
            |block: api::Block| u64::from(block.server) == (round.first + block.number) % round.count;
        let all = (0..2 * round.count).map_while(|number| blocks.get(number)).all(is_in_turn);
        (round.count > 0 && all).then_some(round)
    }

    fn lock(&self) -> Result<(), Fault> {
        let locks = self.locks.as_ref().ok_or(Errno::ROFS)?;
        let held = locks.take(self.file.number())?;
        *lock(&self.lock) = Some(held);
        Ok(())
    }
}

impl Locks {
    /// Those in this directory, which is made if it is not there.
    fn open(dir: &Path, access: &Access) -> Result<Locks, String> {
        let failed = |errno: Errno| format!("locks of uploads in {}: {}", dir.display(), Fault::from(errno));
        match rustix::fs::mkdirat(CWD, dir, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(failed(errno)),
        }
        let token = token(dir).map_err(failed)?;
        let tag = u32::from_le_bytes([token[0], token[1], token[2], token[3]]);
        let volume = access.volume.0.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Locks { dir: dir.to_owned(), volume, tag })
    }

    /// Locks the file of that number.
    fn take(&self, number: u64) -> Result<Lock, Fault> {
        let path = self.dir.join(format!("{}-{number}", self.volume));
        let words = |errno: Errno| Fault {
            errno,
            words: Some(format!("a lock of it cannot be kept: {}", haul_base::errno::text(errno)).into()),
        };
        for _ in 0..ATTEMPTS {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let file = rustix::fs::openat(CWD, &path, flags, Mode::RUSR | Mode::WUSR).map_err(words)?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::AGAIN) if haul_mutant::removed("ftpd-volume-parts-are-locked") => {}
                Err(Errno::AGAIN) => return Err(Errno::AGAIN.into()),
                Err(errno) => return Err(words(errno)),
            }
            // Whoever had it before may have removed it before it was locked here.
            let here = rustix::fs::stat(&path).map(|stat| (stat.st_dev, stat.st_ino));
            let ours = rustix::fs::fstat(&file).map(|stat| (stat.st_dev, stat.st_ino));
            if here.is_ok() && here == ours {
                return Ok(Lock { path, _file: file });
            }
        }
        Err(Errno::AGAIN.into())
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // While it is locked: nobody else can have taken it for his.
        let _ = rustix::fs::unlink(&self.path);
    }
}

/// What all who lock here know and nobody else: made by the first.
fn token(dir: &Path) -> Result<[u8; TOKEN_LEN], Errno> {
    let path = dir.join("token");
    let read = || -> Result<[u8; TOKEN_LEN], Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(CWD, &path, flags, Mode::empty())?;
        let mut token = [0; TOKEN_LEN];
        match rustix::io::retry_on_intr(|| rustix::io::pread(&file, &mut token, 0))? {
            TOKEN_LEN => Ok(token),
            _ => Err(Errno::IO),
        }
    };
    match read() {
        Err(Errno::NOENT) => {}
        other => return other,
    }
    let mut token = [0; TOKEN_LEN];
    match rustix::rand::getrandom(&mut token, rustix::rand::GetRandomFlags::empty())? {
        TOKEN_LEN => {}
        _ => return Err(Errno::IO),
    }
    // It is whole as soon as it has its name.
    let new = dir.join(format!("token.{}.new", std::process::id()));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(CWD, &new, flags, Mode::RUSR | Mode::WUSR)?;
    let written = match rustix::io::retry_on_intr(|| rustix::io::pwrite(&file, &token, 0)) {
        Ok(TOKEN_LEN) => rustix::fs::fsync(&file),
        Ok(_) => Err(Errno::IO),
        Err(errno) => Err(errno),
    };
    let named = written.and_then(|()| rustix::fs::link(&new, &path));
    let _ = rustix::fs::unlink(&new);
    match named {
        Ok(()) | Err(Errno::EXIST) => read(),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locks(dir: &Path) -> Locks {
        let token = token(dir).expect("a token");
        Locks {
            dir: dir.to_owned(),
            volume: "v".into(),
            tag: u32::from_le_bytes([token[0], token[1], token[2], token[3]]),
        }
    }

    /// Goal: who has a lock has it alone, and it goes with him; all who see the directory have one token, and
    /// who sees another has another.
    #[test]
    fn locks_are_one_at_a_time() {
        let (dir, other) = (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("another"));
        let (first, second) = (locks(dir.path()), locks(dir.path()));
        assert_eq!(first.tag, second.tag);
        assert_ne!(first.tag, locks(other.path()).tag);
        let held = first.take(7).expect("free");
        assert!(second.take(7).is_err_and(|fault| fault.is(Errno::AGAIN)));
        assert!(second.take(8).is_ok());
        drop(held);
        let held = second.take(7).expect("free again");
        assert!(first.take(7).is_err());
        drop(held);
        let left: Vec<_> = std::fs::read_dir(dir.path()).expect("list").collect();
        assert_eq!(left.len(), 1, "the token alone");
    }

    /// Goal: times before 1970 are told as the system tells them, with nanoseconds above zero.
    #[test]
    fn times_are_told_as_the_system_does() {
        let at = |nanos: i64| match nanos {
            0.. => UNIX_EPOCH + std::time::Duration::from_nanos(nanos.unsigned_abs()),
            _ => UNIX_EPOCH - std::time::Duration::from_nanos(nanos.unsigned_abs()),
        };
        let told =
            [0, 1, 1_500_000_000, -1, -1_000_000_000, -1_500_000_000].map(|nanos| since_1970(at(nanos)));
        let right = [(0, 0), (0, 1), (1, 500_000_000), (-1, 999_999_999), (-1, 0), (-2, 500_000_000)];
        assert_eq!(told, right);
    }
}
