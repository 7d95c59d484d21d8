//! Programs that haul is compared with, and haul itself: each at its best known setting.
//!
//! In: two hosts, a workload that lies on the near one, a directory on the far one. Out: the bytes there, and what the
//! program said of it. Who calls takes the time, counts the processors and checks the bytes; a peer only copies.
//! Left out: peers that Debian does not have.

use std::any::Any;
use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::host::Bench;
use crate::workload::Workload;

/// A program that moves a workload from the near host to the far one.
pub trait Peer: Sync {
    /// As experiments name it.
    fn name(&self) -> &'static str;
    /// One sentence for the table: its setting, how it protects the data on the way, and whether its end means that
    /// the data is on media.
    fn about(&self) -> &'static str;
    /// Debian's packages that bring it; empty if none is needed.
    fn packages(&self) -> &'static [&'static str];
    /// What it calls its version.
    ///
    /// # Errors
    /// It is not installed.
    fn version(&self) -> anyhow::Result<String>;
    /// Starts what must run at the far end before the clock. Dropping it ends what was started, by process id.
    ///
    /// # Errors
    /// With the server's own words.
    fn start(&self, bench: &Bench) -> anyhow::Result<Box<dyn Any>>;
    /// Moves the workload. Returns when the program has ended.
    ///
    /// # Errors
    /// It failed; its own words are in the error.
    fn copy(&self, job: &Job<'_>) -> anyhow::Result<Said>;
}

/// One copy to make.
pub struct Job<'a> {
    pub bench: &'a Bench,
    pub workload: &'a Workload,
    /// Where the workload lies, on the near host: a directory.
    pub from: &'a Path,
    /// An empty directory of the far host. `from`'s content goes into it.
    pub to: &'a Path,
    /// Settings that differ from the best known, by the peer's own names: an experiment's axis.
    pub settings: &'a BTreeMap<String, String>,
}

/// What a peer says of its copy.
#[derive(Clone, Debug, Default)]
pub struct Said {
    /// Its own figure for how long the bytes took, seconds: for those that move no files (iperf3).
    pub seconds: Option<f64>,
    /// Bytes that it moved, if it moves no files.
    pub bytes: Option<u64>,
    /// It moves no files, so that there is nothing to check at the far end.
    pub memory_only: bool,
    /// What else is worth keeping, as JSON: kept with the raw figures.
    pub more: Value,
}
