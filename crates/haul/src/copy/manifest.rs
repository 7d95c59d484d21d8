//! Digests of files that were not moved, for the manifest.
//!
//! In: files as the manifest names them, and as they were reached at the source. Out: an event for each: its digest, or why there
//! is none.
//! Invariants: the digest is of the very entry that was found unmoved, also where several sources have one of its name.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crossbeam_channel::Receiver;

use crate::api::{CopyRequest, Endpoint, Event, Observer};
use crate::driver::{Unmoved, sink};

/// Hashes the near end's copy of files that were not moved, for the manifest.
pub(super) fn hash_unchanged(request: &CopyRequest, files: &Receiver<Unmoved>, observer: &dyn Observer) {
    let as_path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
    let candidates = |file: &Unmoved| -> Vec<PathBuf> {
        match &request.destination {
            Endpoint::Local(destination) => {
                let root = sink::destination(destination, &[], None);
                let below = root.map(|(root, _)| root.join(OsStr::from_bytes(&file.path)));
                below.into_iter().chain([as_path(destination)]).collect()
            }
            Endpoint::Remote { .. } => file.source.iter().map(|source| as_path(source)).collect(),
        }
    };
    for file in files {
        let found = candidates(&file).into_iter().find(|path| path.is_file());
        let Unmoved { path, .. } = file;
        let hashed = found.map(|found| {
            let mut hasher = blake3::Hasher::new();
            File::open(&found).and_then(|file| hasher.update_reader(file).map(|h| *h.finalize().as_bytes()))
        });
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
