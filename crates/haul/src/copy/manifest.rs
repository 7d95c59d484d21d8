//! Digests of files that were not moved, for the manifest.
//!
//! In: files as the manifest names them, and as they were reached at the source. Out: an event for each: its digest, or why there
//! is none.
//! Invariants: the digest is of the very entry that was found unmoved, also where several sources have one of its name, and of what was
//! copied of it, if it was.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crossbeam_channel::Receiver;

use crate::api::{CopyRequest, Event, Observer};
use crate::driver::Unmoved;
use crate::storage::sink::store::destination as root_of;

/// Hashes the near end's copy of files that were not moved, for the manifest.
pub(super) fn hash_unchanged(request: &CopyRequest, files: &Receiver<Unmoved>, observer: &dyn Observer) {
    let as_path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
    let candidates = |file: &Unmoved| -> Vec<PathBuf> {
        match request.destination.local_path() {
            Some(destination) => {
                let root = root_of(destination, &[], None);
                let below = root.map(|(root, _)| root.join(OsStr::from_bytes(&file.path)));
                below.into_iter().chain([as_path(destination)]).collect()
            }
            None => file.source.iter().map(|source| as_path(source)).collect(),
        }
    };
    for file in files {
        let found = candidates(&file).into_iter().find(|path| path.is_file());
        let Unmoved { path, len, .. } = file;
        let hashed = found.map(|found| File::open(&found).and_then(|file| hash(file, len)));
        match hashed {
            Some(Ok(root)) => observer.event(Event::Digest { path, root }),
            Some(Err(e)) => {
                let (stage, errno) = ("read".to_owned(), e.raw_os_error().unwrap_or(0));
                observer.event(Event::Failed {
                    path,
                    stage,
                    errno,
                    text: format!("hashing for the manifest: {e}"),
                });
            }
            None => {
                let text = "the file is gone, it is not in the manifest".to_owned();
                observer.event(Event::Failed { path, stage: "read".into(), errno: 2, text });
            }
        }
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
