//! Where files are, as an application sees it: one interface for a volume and for directories.
//!
//! In: a place in words. Out: clients of it.
//! Invariants: what was synced lasts; a name that was made, renamed or removed lasts when that returns.

use std::path::PathBuf;

use anyhow::Context as _;
use serde_json::Value;

use super::dirs::Dirs;
use super::volume::Volume;
use crate::targets::parse_size;

/// Told of a read: where its bytes are from, and these.
pub type See<'a> = dyn FnMut(u64, &[u8]) -> anyhow::Result<()> + 'a;

/// Where files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// The directory with accesses to volumes, and the name of one.
    Volume(PathBuf, String),
    /// Several: each is a device, and stripes go to them in turns.
    Dirs(Vec<PathBuf>),
}

/// What is smaller is gathered, of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threshold {
    Pinned(u64),
    Adaptive,
}

/// How a client works.
#[derive(Clone, Debug)]
pub struct Options {
    pub threshold: Threshold,
    /// Requests that are under way.
    pub depth: usize,
    /// Bytes of a stripe over several directories.
    pub stripe: u64,
}

/// One client; threads of it may share it.
pub trait Client: Send + Sync {
    /// A file that is not there yet.
    fn create(&self, name: &str) -> anyhow::Result<Box<dyn File + '_>>;
    fn open(&self, name: &str) -> anyhow::Result<Box<dyn File + '_>>;
    fn exists(&self, name: &str) -> anyhow::Result<bool>;
    fn rename(&self, from: &str, to: &str) -> anyhow::Result<()>;
    fn unlink(&self, name: &str) -> anyhow::Result<()>;
    /// Bytes of a stripe, if the place says.
    fn stripe(&self) -> Option<u64>;
    /// What it has to say of itself.
    fn about(&self) -> Value;
}

/// An open file.
pub trait File: Send {
    /// May return before it is written; who reads or syncs by this file waits for it.
    fn write(&mut self, offset: u64, bytes: Vec<u8>) -> anyhow::Result<()>;
    /// Behind the end that the file has; returns when it stands there.
    fn append(&mut self, bytes: Vec<u8>) -> anyhow::Result<()>;
    /// What was written lasts.
    fn sync(&mut self) -> anyhow::Result<()>;
    /// Reads the ranges, in their order.
    fn read(&mut self, ranges: &[(u64, u64)], see: &mut See<'_>) -> anyhow::Result<()>;
    /// Connects to whatever the first request would have to wait for.
    fn ready(&mut self) -> anyhow::Result<()>;
}

impl At {
    /// # Errors
    /// It is not there, or cannot be reached.
    pub fn client(&self, options: &Options) -> anyhow::Result<Box<dyn Client>> {
        Ok(match self {
            At::Volume(state, name) => {
                let volume = Volume::connect(state, name, options);
                Box::new(volume.with_context(|| format!("connect to the volume {name}"))?)
            }
            At::Dirs(dirs) => Box::new(Dirs::new(dirs.clone(), options.stripe)),
        })
    }
}

/// `volume:DIR:NAME` or `dirs:DIR,...`.
pub fn parse_at(text: &str) -> Result<At, String> {
    let wrong = || format!("{text:?} is neither volume:DIRECTORY:NAME nor dirs:DIRECTORY,...");
    match text.split_once(':').ok_or_else(wrong)? {
        ("volume", rest) => {
            let (dir, name) = rest.rsplit_once(':').ok_or_else(wrong)?;
            Ok(At::Volume(dir.into(), name.into()))
        }
        ("dirs", dirs) if dirs.split(',').all(|dir| !dir.is_empty()) => {
            Ok(At::Dirs(dirs.split(',').map(PathBuf::from).collect()))
        }
        _ => Err(wrong()),
    }
}

/// Bytes, `all` or `adaptive`.
pub fn parse_threshold(text: &str) -> Result<Threshold, String> {
    match text {
        "adaptive" => Ok(Threshold::Adaptive),
        "all" => Ok(Threshold::Pinned(u64::MAX)),
        bytes => parse_size(bytes).map(Threshold::Pinned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: places and thresholds are read as they are written, and what is neither is refused.
    #[test]
    fn places_are_read_from_words() {
        assert_eq!(parse_at("volume:/a:b:v"), Ok(At::Volume("/a:b".into(), "v".into())));
        assert_eq!(parse_at("dirs:/a,/b"), Ok(At::Dirs(vec!["/a".into(), "/b".into()])));
        for wrong in ["", "volume:", "volume:/a", "dirs:", "dirs:/a,", "dir:/a", "/a"] {
            assert!(parse_at(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_threshold("0"), Ok(Threshold::Pinned(0)));
        assert_eq!(parse_threshold("32KiB"), Ok(Threshold::Pinned(32 << 10)));
        assert_eq!(parse_threshold("all"), Ok(Threshold::Pinned(u64::MAX)));
        assert!(parse_threshold("some").is_err());
    }
}
