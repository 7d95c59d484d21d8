//! Where the storage of one end is probed.
//!
//! In: a path as typed. Out: a probe's request for the file system that a copy would read from or write to. A
//! source of a large file is read itself, so that nothing is written there; else a scratch file is made
//! beside the data. A destination that is not there yet counts as its nearest parent that is.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::super::{Direction, Only, Pattern, ProbeError, Request};
use haul::api::{Endpoint, Place};
use haul_base::users;

/// A source's own file is read if it has so many bytes.
const FILE_MIN: u64 = 256 << 20;
/// Entries of a source directory that are looked at for one.
const LOOK_MAX: usize = 1000;
/// And levels of directories, the first entries of each.
const LEVELS_MAX: usize = 4;

/// The most that a probe of one storage may cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) time: Duration,
    pub(super) bytes: u64,
    pub(super) network_ok: bool,
}

/// What to probe; `None`: the end is no storage (what is made up, or thrown away). `home`: what `~` stands
/// for where no shell saw the path.
///
/// # Errors
/// A source that is not there.
pub(super) fn request(
    place: &Place,
    home: Option<&Path>,
    direction: Direction,
    limits: Limits,
) -> Result<Option<Request>, ProbeError> {
    let Some(typed) = place.file_path() else { return Ok(None) };
    // One that cannot be expanded is not there, which is said of it as it was typed.
    let path = home.and_then(|home| users::expand(typed, home).ok());
    let path = path.unwrap_or_else(|| PathBuf::from(OsStr::from_bytes(typed)));
    let (dir, file) = match direction {
        Direction::Read => source(&path)?,
        Direction::Write => (sink(&path), None),
    };
    let size = file.is_none().then_some(limits.bytes / 4);
    Ok(Some(Request {
        file,
        // A quarter of the bytes fills it, the others are for measurements.
        size: size.map(|size| size.min(1 << 30)),
        time_limit: limits.time,
        bytes_limit: limits.bytes,
        directions: vec![direction],
        only: Only { patterns: vec![Pattern::Sequential], ..Only::default() },
        network_ok: limits.network_ok,
        ..Request::new(dir)
    }))
}

/// How much a source is, as far as its name says it, or one look at a file of this host. Not of directories,
/// which would be walked.
pub(super) fn size(source: &Endpoint) -> Option<u64> {
    source.place().size().or_else(|| {
        let meta = std::fs::metadata(OsStr::from_bytes(source.local_path()?)).ok()?;
        meta.is_file().then_some(meta.len())
    })
}

fn source(path: &Path) -> Result<(PathBuf, Option<PathBuf>), ProbeError> {
    let failed = |source| ProbeError::Io { op: "look at", path: path.to_owned(), source };
    let meta = std::fs::metadata(path).map_err(failed)?;
    if meta.is_dir() {
        return Ok((path.to_owned(), largest(path)));
    }
    let file = is_large(&meta).then(|| path.to_owned());
    Ok((parent(path), file))
}

/// The nearest directory that is there.
fn sink(path: &Path) -> PathBuf {
    let mut at = path.to_owned();
    while !at.is_dir() {
        let up = parent(&at);
        if up == at {
            break;
        }
        at = up;
    }
    at
}

fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(up) if up.as_os_str().is_empty() => PathBuf::from("."),
        Some(up) => up.to_owned(),
        None => path.to_owned(),
    }
}

/// A regular file that is large enough, and no sparse one, whose holes would be read for nothing.
fn is_large(meta: &std::fs::Metadata) -> bool {
    meta.is_file() && meta.len() >= FILE_MIN && meta.blocks().saturating_mul(512) >= meta.len() / 10 * 9
}

/// The largest file that is found soon, if there is one that is large enough.
fn largest(dir: &Path) -> Option<PathBuf> {
    let (mut best, mut looked) = (None, 0);
    let mut level = vec![dir.to_owned()];
    for _ in 0..LEVELS_MAX {
        let mut next = Vec::new();
        for dir in level {
            for entry in std::fs::read_dir(dir).ok().into_iter().flatten().flatten() {
                looked += 1;
                if looked > LOOK_MAX {
                    return best.map(|(_, path)| path);
                }
                let meta: io::Result<_> = entry.metadata();
                match meta {
                    Ok(meta) if meta.is_dir() => next.push(entry.path()),
                    Ok(meta) if is_large(&meta) && best.as_ref().is_none_or(|(len, _)| *len < meta.len()) => {
                        best = Some((meta.len(), entry.path()));
                    }
                    _ => {}
                }
            }
        }
        level = next;
    }
    best.map(|(_, path)| path)
}
