//! The probe's own file: made, opened in both modes, and gone.
//!
//! In: a directory. Out: descriptors of a new file without a name. It has its name only while it is opened
//! for the second time, so no way out can leave it behind, be it a panic or a kill. (A network file system
//! keeps a file of its own for it until the descriptors are closed.)
//!
//! A name of a probe that was killed just then is removed when nobody wrote to the file for a day: no probe
//! takes so long ([`super::TIME_LIMIT_MAX`]).

use std::ffi::CStr;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use haul_core::io::IoMode;
use rustix::fs::{Advice, AtFlags, Dir, FallocateFlags, FileType, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

use super::{ProbeError, TIME_LIMIT_MAX};
use haul_storage::io::{IoFile, IoTarget};

/// How the names begin; six characters follow.
const PREFIX: &str = ".haul-probe.";
const TAG_LEN: usize = 6;
/// Names tried before giving up.
const TRIES_MAX: usize = 16;
/// Entries of the directory that are looked at for stale names.
const LOOK_MAX: usize = 10_000;
/// A scratch file is dead when it was not written to for so long.
const STALE: Duration = Duration::from_secs(24 * 3600);
/// Places at which the page cache is asked whether it was dropped, and the bytes that are read there.
const CACHE_SAMPLES: u64 = 8;
const SAMPLE_LEN: usize = 4096;

const _: () = assert!(TIME_LIMIT_MAX.as_secs() < STALE.as_secs());

/// The scratch file. Closed, and so given back, on drop.
pub(super) struct Scratch {
    pub(super) buffered: Arc<IoFile>,
    /// `None`: the file system refuses direct I/O.
    pub(super) direct: Option<Arc<IoFile>>,
    /// Stale scratch files that were removed.
    pub(super) removed: usize,
    dir: PathBuf,
}

impl Scratch {
    /// Makes one in a directory, with room for `size` bytes where the file system can promise that.
    pub(super) fn create(path: &Path, size: u64) -> Result<Scratch, ProbeError> {
        let failed =
            |op: &'static str| move |e: Errno| ProbeError::Io { op, path: path.to_owned(), source: e.into() };
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(path, flags, Mode::empty()).map_err(failed("open"))?;
        let removed = remove_stale(dir.as_fd());
        let (name, buffered) = create_named(dir.as_fd()).map_err(failed("make a scratch file in"))?;
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::DIRECT;
        let direct = rustix::fs::openat(&dir, &*name, flags, Mode::empty());
        rustix::fs::unlinkat(&dir, &*name, AtFlags::empty())
            .map_err(failed("remove the name of the scratch file in"))?;
        // Whoever put another file in its place between the two: that is not ours to write to.
        let same = |fd: &OwnedFd| match (rustix::fs::fstat(fd), rustix::fs::fstat(&buffered)) {
            (Ok(a), Ok(b)) => (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino),
            _ => false,
        };
        let direct = direct.ok().filter(same);
        // Not every file system can; then writing will tell.
        let reserved = rustix::fs::fallocate(&buffered, FallocateFlags::empty(), 0, size);
        if let Err(e @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) = reserved {
            return Err(failed("reserve space for the scratch file in")(e));
        }
        let file = |fd, mode| {
            let name = format!("scratch file in {}", path.display()).into();
            Arc::new(IoFile { fd: Some(fd), mode, target: IoTarget::default(), one_writer: false, name })
        };
        Ok(Scratch {
            buffered: file(buffered, IoMode::Buffered),
            direct: direct.map(|fd| file(fd, IoMode::Direct)),
            removed,
            dir: path.to_owned(),
        })
    }

    /// A file that is there takes its place: it is read, and nothing else.
    pub(super) fn of_file(path: &Path) -> Result<Scratch, ProbeError> {
        let open = |flags| rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC | flags, Mode::empty());
        let failed = |e: Errno| ProbeError::Io { op: "open", path: path.to_owned(), source: e.into() };
        let buffered = open(OFlags::NONBLOCK).map_err(failed)?;
        let direct = open(OFlags::NONBLOCK | OFlags::DIRECT).ok();
        let file = |fd, mode| {
            let name = path.display().to_string().into();
            Arc::new(IoFile { fd: Some(fd), mode, target: IoTarget::default(), one_writer: false, name })
        };
        Ok(Scratch {
            buffered: file(buffered, IoMode::Buffered),
            direct: direct.map(|fd| file(fd, IoMode::Direct)),
            removed: 0,
            dir: path.to_owned(),
        })
    }

    /// The directory that it was made in.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Drops its pages from the page cache; they have to be clean.
    pub(super) fn drop_cache(&self) {
        // Where this is refused the pages stay, which `is_cached` sees.
        let _ = rustix::fs::fadvise(self.fd(), 0, None, Advice::DontNeed);
    }

    /// Whether pages of its first `size` bytes are in the page cache; `None`: the file system does not tell.
    /// Looking may bring some in.
    pub(super) fn is_cached(&self, size: u64) -> Option<bool> {
        let mut cached = 0;
        for i in 0..CACHE_SAMPLES {
            let offset = size / CACHE_SAMPLES * i / SAMPLE_LEN as u64 * SAMPLE_LEN as u64;
            let mut bytes = [0; SAMPLE_LEN];
            let slices = &mut [IoSliceMut::new(&mut bytes)];
            match rustix::io::preadv2(self.fd(), slices, offset, ReadWriteFlags::NOWAIT) {
                Ok(_) => cached += 1,
                Err(Errno::AGAIN) => {}
                Err(_) => return None,
            }
        }
        Some(cached > CACHE_SAMPLES / 2)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.buffered.fd.as_ref().expect("a scratch file has a descriptor").as_fd()
    }
}

fn create_named(dir: BorrowedFd<'_>) -> Result<(String, OwnedFd), Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut last = Errno::EXIST;
    for _ in 0..TRIES_MAX {
        let name = format!("{PREFIX}{}", tag());
        match rustix::fs::openat(dir, &*name, flags, Mode::RUSR | Mode::WUSR) {
            Ok(fd) => return Ok((name, fd)),
            Err(Errno::EXIST) => last = Errno::EXIST,
            Err(e) => return Err(e),
        }
    }
    Err(last)
}

/// Six random letters and digits.
fn tag() -> String {
    const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let mut bytes = [0; TAG_LEN];
    // A name only has to be free; a kernel without random numbers still has time.
    if aws_lc_rs::rand::fill(&mut bytes).is_err() {
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64);
        bytes.copy_from_slice(&nanos.to_le_bytes()[..TAG_LEN]);
    }
    bytes.iter().map(|b| char::from(LETTERS[usize::from(b % 32)])).collect()
}

/// Removes scratch files of ours whose probe is dead, and says how many. What cannot be looked at stays.
fn remove_stale(dir: BorrowedFd<'_>) -> usize {
    let Ok(entries) = Dir::read_from(dir) else { return 0 };
    let user = rustix::process::geteuid().as_raw();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut removed = 0;
    for entry in entries.take(LOOK_MAX).flatten() {
        let name = entry.file_name();
        if !is_ours(name) {
            continue;
        }
        let Ok(stat) = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        let written = Duration::from_secs(stat.st_mtime.try_into().unwrap_or(0));
        let stale = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && stat.st_uid == user
            && now.saturating_sub(written) > STALE;
        if stale && rustix::fs::unlinkat(dir, name, AtFlags::empty()).is_ok() {
            removed += 1;
        }
    }
    removed
}

fn is_ours(name: &CStr) -> bool {
    let tag = name.to_bytes().strip_prefix(PREFIX.as_bytes());
    tag.is_some_and(|tag| tag.len() == TAG_LEN && tag.iter().all(u8::is_ascii_alphanumeric))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a scratch file has no name once it is there, and only dead ones of ours are cleared away.
    /// Method: files of all kinds that look like ones, with old and young dates.
    #[test]
    fn only_stale_scratch_files_go() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str, age: u64| {
            let file = std::fs::File::create(dir.path().join(name)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
        };
        let day = 24 * 3600;
        make(".haul-probe.abcdef", 2 * day);
        make(".haul-probe.ABC123", 2 * day);
        let kept = [".haul-probe.young2", ".haul-probe.toolong", ".haul-probe.a.b.cd", "haul-probe.abcdef"];
        make(kept[0], day / 2);
        kept[1..].iter().for_each(|name| make(name, 2 * day));
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join(".haul-probe.linked")).unwrap();
        std::fs::create_dir(dir.path().join(".haul-probe.direct")).unwrap();
        let scratch = Scratch::create(dir.path(), 1 << 20).unwrap();
        assert_eq!(scratch.removed, 2);
        let mut left: Vec<String> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        let mut expected: Vec<&str> = kept.to_vec();
        expected.extend([".haul-probe.linked", ".haul-probe.direct"]);
        expected.sort();
        assert_eq!(left, expected);
    }
}
