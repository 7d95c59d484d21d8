//! Digests of files that were not moved, for the manifest.
//!
//! In: files as the manifest names them, and as they were reached at the source. Out: an event for each: its
//! digest, or why there is none.
//! Invariants: the digest is of the very entry that was found unmoved, also where several sources have one of
//! its name, and of what was copied of it, if it was. A source's file is hashed as the version that the
//! session copied or found right; what became of it since is none. No symbolic link is followed at the end of
//! a path, but at a source whose links are followed.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crossbeam_channel::Receiver;
use haul_core::wire::FailureKind;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::driver::Unmoved;
use crate::error::{ErrorKind, Operation};
use crate::events::{Event, Observer};
use crate::options::Changed;
use crate::request::CopyRequest;
use haul_storage::sink::store::destination as root_of;
use haul_storage::source::{Stamp, version_of};

/// Hashes the near end's copy of files that were not moved, for the manifest.
pub(super) fn hash_unchanged(request: &CopyRequest, files: &Receiver<Unmoved>, observer: &dyn Observer) {
    let as_path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
    let options = &request.options;
    let base = match request.destination.local_path() {
        Some(_) => options.to.unwrap_or(0),
        None => options.range.map_or(0, |range| range.offset),
    };
    let follows = request.destination.local_path().is_none() && options.link_rule().follows();
    let grows = request.options.changed == Changed::Prefix;
    let candidates = |file: &Unmoved| -> (Vec<PathBuf>, Option<Version>) {
        match (request.destination.local_path(), &file.source) {
            (Some(destination), _) => {
                let root = root_of(destination, &[], None);
                let below = root.map(|(root, _)| root.join(OsStr::from_bytes(&file.path)));
                (below.into_iter().chain([as_path(destination)]).collect(), None)
            }
            (None, Some((source, known))) => {
                (vec![as_path(source)], Some(Version { known: *known, grows: grows && file.len.is_some() }))
            }
            (None, None) => (Vec::new(), None),
        }
    };
    for file in files {
        let (paths, version) = candidates(&file);
        let found = paths.iter().find_map(|path| open(path, follows).transpose());
        let Unmoved { path, len, .. } = file;
        let hashed = found.map(|found| {
            let found = found?;
            check(&found, version)?;
            (&found).seek(SeekFrom::Start(base))?;
            let root = hash(&found, len)?;
            check(&found, version)?;
            Ok(root)
        });
        match hashed {
            Some(Ok(root)) => observer.event(Event::Digest { path, root, bytes: len }),
            Some(Err(e)) => {
                let e: io::Error = e;
                let errno = e.raw_os_error().unwrap_or(0);
                let text = format!("hashing for the manifest: {}", haul_base::errno::text(e));
                observer.event(unread(path, errno, text));
            }
            None => {
                let text = "the file is gone, it is not in the manifest".to_owned();
                observer.event(unread(path, Errno::NOENT.raw_os_error(), text));
            }
        }
    }
}

/// A file that was not hashed.
fn unread(path: Vec<u8>, errno: i32, text: String) -> Event {
    let kind = ErrorKind::of(FailureKind::Read, errno);
    Event::Failed { path, kind, operation: Operation::Read, errno, text }
}

/// What a source's file has to be for its hash to be that of the copy.
#[derive(Clone, Copy)]
struct Version {
    known: Stamp,
    /// Of a file that grows its beginning was copied, which stays.
    grows: bool,
}

/// Opens a regular file. `None`: there is none of this name.
fn open(path: &Path, follows: bool) -> io::Result<Option<File>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let flags = if follows { flags } else { flags | OFlags::NOFOLLOW };
    let looked = if follows { path.metadata() } else { path.symlink_metadata() };
    // A device is not opened to see that it is one.
    if !looked.is_ok_and(|meta| meta.is_file()) {
        return Ok(None);
    }
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    Ok(version_of(file.as_fd())?.map(|_| file))
}

/// # Errors
/// The file is another version.
fn check(file: &File, version: Option<Version>) -> io::Result<()> {
    let Some(Version { known, grows }) = version else { return Ok(()) };
    let now = version_of(file.as_fd())?;
    let grown = now.is_some_and(|now| grows && now.ino == known.ino && now.size >= known.size);
    match now == Some(known) || grown || haul_mutant::removed("the-copied-version-is-hashed") {
        true => Ok(()),
        false => Err(io::Error::other("it changed after it was copied, and is not in the manifest")),
    }
}

/// The hash of a file, or of its first `len` bytes.
///
/// # Errors
/// It cannot be read, or has not as many.
fn hash(file: impl Read, len: Option<u64>) -> io::Result<[u8; 32]> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(file.take(len.unwrap_or(u64::MAX)))?;
    match len.is_some_and(|len| hasher.count() < len) {
        true => Err(io::Error::other("it is shorter than what was copied of it")),
        false => Ok(*hasher.finalize().as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what became of a file after it was copied is not hashed for the copy, nor what a link leads to
    /// that took its name.
    /// Method: files that were changed, replaced, replaced by a link, and that grew.
    #[test]
    fn only_the_copied_version_is_hashed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let make = || {
            std::fs::write(&path, "copied").unwrap();
            version_of(File::open(&path).unwrap().as_fd()).unwrap().unwrap()
        };
        let is = |known, grows| {
            let file = open(&path, false).unwrap().expect("a file");
            check(&file, Some(Version { known, grows })).is_ok()
        };
        let known = make();
        assert!(is(known, false) && is(known, true));
        // Later than the grain of any ctime here.
        std::thread::sleep(std::time::Duration::from_millis(50));
        std::fs::write(&path, "cOpied").unwrap();
        assert!(!is(known, false));
        std::fs::write(&path, "copied, and more").unwrap();
        assert!(is(known, true) && !is(known, false));
        std::fs::write(&path, "less").unwrap();
        assert!(!is(known, true));
        let known = make();
        std::fs::write(dir.path().join("other"), "copied").unwrap();
        std::fs::rename(dir.path().join("other"), &path).unwrap();
        assert!(!is(known, true));
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", &path).unwrap();
        assert!(open(&path, false).unwrap().is_none());
        assert!(open(&path, true).unwrap().is_some());
    }

    /// Goal: the hash of what was copied is not that of what a file has grown to since, nor of less.
    #[test]
    fn what_was_copied_is_hashed() {
        let hash_of = |bytes: &[u8]| Some(*blake3::hash(bytes).as_bytes());
        assert_eq!(hash(&b"grown"[..], Some(3)).ok(), hash_of(b"gro"));
        assert_eq!(hash(&b"grown"[..], Some(5)).ok(), hash_of(b"grown"));
        assert_eq!(hash(&b"grown"[..], None).ok(), hash_of(b"grown"));
        assert!(hash(&b"grown"[..], Some(6)).is_err());
    }
}
