//! Digests of files that were not moved, for the manifest.
//!
//! In: paths as the manifest names them. Out: an event for each: its digest, or why there is none.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crossbeam_channel::Receiver;
use haul_core::wire::SourceRoot;

use super::path_of;
use crate::api::{CopyRequest, Endpoint, Event, Observer};
use crate::driver::sink;
use crate::storage::source::roots::{RootTarget, resolve_sources};

/// Hashes the near end's copy of files that were not moved, for the manifest.
pub(super) fn hash_unchanged(request: &CopyRequest, paths: &Receiver<Vec<u8>>, observer: &dyn Observer) {
    // Not for each file: there may be many sources.
    let specs = match &request.destination {
        Endpoint::Local(_) => Vec::new(),
        Endpoint::Remote { .. } => {
            let typed: Vec<Vec<u8>> = request.sources.iter().map(|source| path_of(source).to_vec()).collect();
            resolve_sources(&typed, true, None).unwrap_or_default()
        }
    };
    let candidates = |path: &[u8]| -> Vec<PathBuf> {
        let below = |base: &Path, rest: &[u8]| base.join(OsStr::from_bytes(rest));
        match &request.destination {
            Endpoint::Local(destination) => {
                let sources: Vec<SourceRoot> = Vec::new();
                let root = sink::destination(destination, &sources, None);
                let whole = PathBuf::from(OsStr::from_bytes(destination));
                root.map(|(root, _)| below(&root, path)).into_iter().chain([whole]).collect()
            }
            Endpoint::Remote { .. } => {
                let single = specs.len() == 1;
                let found = specs.iter().filter_map(|spec| match &spec.target {
                    RootTarget::Contents => Some(below(&spec.path, path)),
                    RootTarget::Named(name) => {
                        let rest = path.strip_prefix(name.as_bytes());
                        match rest.and_then(|rest| rest.strip_prefix(b"/")) {
                            Some(rest) => Some(below(&spec.path, rest)),
                            None if rest == Some(b"") || single => Some(spec.path.clone()),
                            None => None,
                        }
                    }
                });
                found.collect()
            }
        }
    };
    for path in paths {
        let hashed = candidates(&path).into_iter().find(|path| path.is_file()).map(|file| {
            let mut hasher = blake3::Hasher::new();
            File::open(&file).and_then(|file| hasher.update_reader(file).map(|h| *h.finalize().as_bytes()))
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
