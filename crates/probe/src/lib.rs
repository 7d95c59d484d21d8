//! Characterising storage: what `haul probe storage` measures, keeps and compares.
//!
//! In: a directory and a budget. Out: a [`Probe`]: one [`Point`] for each setting that was tried, the best of
//! them, how flat the optimum is, and what the classic mistakes cost. Kept as the mount's storage passport.
//! Its JSON form is the contract of `--json`, of the passport file and of `haul probe pair`.
//!
//! Reading order: the words here, [`plan`] (what it will cost, without a write), [`run`], then what is made
//! of the figures: `judge`, [`pair`], [`passport`]; [`network`] and [`path`] are probes of their own.
//!
//! Left out: more than one scratch file at a time, and metadata rates.
//!
#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use haul::passport::identity::identify;
pub use haul::passport::{
    Best, Direction, FORMAT, Io, Mistake, Pattern, Point, Probe, Setting, StorageIdentity,
    storage as passport,
};
use haul_storage::options::{EngineName, Order};

mod ask;
mod deal;
mod judge;
mod measure;
pub mod network;
mod pair;
pub mod path;
mod plan;
mod run;
mod scratch;
mod sweep;

pub use ask::{Ask, Measure};
pub use pair::pair;
pub use plan::plan;
pub use run::run;

/// This host as a far end that is asked to measure; see [`haul::api::agent`].
pub struct Here;

impl haul::trial::Prober for Here {
    fn answer(
        &self,
        question: &haul::options::StorageQuestion,
        home_and_state: (Option<&Path>, Option<&Path>),
        tell: &mut dyn FnMut(String) -> bool,
    ) {
        path::answer(question, home_and_state, tell);
    }

    fn trial(
        &self,
        ask: &haul::options::NetworkTrial,
        connection: &haul::trial::Connection,
        handle: &haul::api::Handle,
    ) -> haul::trial::SharedTrial {
        network::trial(ask, connection, handle)
    }
}

/// A read side and a write side matched for a transfer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pairing {
    pub read: Best,
    pub write: Best,
    /// Bytes per second to expect: what the slower side does with its setting.
    pub rate: f64,
    pub limited_by: Direction,
    /// Why these settings, in words.
    pub reason: String,
    /// The rate when each side used the other's best setting, and when both used request size 1 MiB, depth 1,
    /// buffered.
    pub swapped_rate: Option<f64>,
    pub naive_rate: Option<f64>,
}

/// What to probe, and what it may cost.
#[derive(Clone, Debug)]
pub struct Request {
    /// A directory on the storage to probe; the scratch file lies in it while the probe runs.
    pub path: PathBuf,
    /// Read this regular file instead of a scratch file: nothing is written, and only reading can be
    /// measured.
    pub file: Option<PathBuf>,
    /// Bytes of the scratch file; `None`: 1 GiB, or what fits the limits.
    pub size: Option<u64>,
    /// The whole probe ends within this time, at most [`TIME_LIMIT_MAX`].
    pub time_limit: Duration,
    /// Most bytes read and written together, the scratch file's making included.
    pub bytes_limit: u64,
    /// Every combination of the settings instead of a coarse grid and what is near the best of it.
    pub full: bool,
    pub directions: Vec<Direction>,
    /// Only these settings; an empty list means all of them.
    pub only: Only,
    pub engine: EngineName,
    /// The user has agreed that a network file system, which others share, gets loaded.
    pub network_ok: bool,
}

/// Settings to which a probe is narrowed. An empty list narrows nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Only {
    /// Powers of two from 4 KiB to 64 MiB.
    pub request_sizes: Vec<u32>,
    /// 1 to 256.
    pub depths: Vec<u16>,
    pub orders: Vec<Order>,
    pub io: Vec<Io>,
    pub patterns: Vec<Pattern>,
}

/// The most that [`Request::time_limit`] can be: a scratch file that nobody wrote to for a day is dead for
/// sure.
pub const TIME_LIMIT_MAX: Duration = Duration::from_secs(12 * 3600);
/// [`Request::time_limit`] unless asked otherwise.
pub const TIME_LIMIT_DEFAULT: Duration = Duration::from_secs(60);
/// [`Request::bytes_limit`] unless asked otherwise.
pub const BYTES_LIMIT_DEFAULT: u64 = 8 << 30;

impl Request {
    /// A probe of the storage at `path` with the default limits.
    pub fn new(path: impl Into<PathBuf>) -> Request {
        Request {
            path: path.into(),
            file: None,
            size: None,
            time_limit: TIME_LIMIT_DEFAULT,
            bytes_limit: BYTES_LIMIT_DEFAULT,
            full: false,
            directions: vec![Direction::Read, Direction::Write],
            only: Only::default(),
            engine: EngineName::Auto,
            network_ok: false,
        }
    }
}

/// What a probe will do, made without a write. What it says is the most; [`run`] keeps to it.
#[derive(Clone, Debug)]
pub struct Plan {
    pub request: Request,
    pub identity: StorageIdentity,
    /// Bytes of the scratch file.
    pub size: u64,
    /// Most bytes read and written together, the scratch file's making included.
    pub bytes_max: u64,
    pub seconds_max: f64,
    /// Most settings that are measured (each perhaps several times).
    pub settings: usize,
    /// What the user should know before it starts, in words.
    pub warnings: Vec<String>,
}

/// Why there is no probe.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error("{} is not a directory: give a directory on the storage to probe", .0.display())]
    NotADirectory(PathBuf),
    #[error("{} is on a file system that is mounted read-only: nothing can be probed there", .0.display())]
    ReadOnly(PathBuf),
    #[error("{} cannot be written to: the probe needs a scratch file there", .0.display())]
    NotWritable(PathBuf),
    /// `needed`: what has to be free before the scratch file is made.
    #[error(
        "not enough space at {}: a scratch file of {size} bytes needs {needed} bytes free, {free} are; ask for a smaller size",
        path.display()
    )]
    Space { path: PathBuf, size: u64, needed: u64, free: u64 },
    #[error("{0}")]
    BadRequest(String),
    /// Others share this file system: ask the user, then set [`Request::network_ok`].
    #[error("{} is a network file system ({}, {}), which others share: the probe would load it", .0.mount_point, .0.kind, .0.source)]
    AskFirst(Box<StorageIdentity>),
    #[error("{op} {}: {source}", path.display())]
    Io { op: &'static str, path: PathBuf, source: io::Error },
    #[error("the probe was stopped; its scratch file is removed")]
    Stopped,
    /// Two probes that cannot be paired.
    #[error("{0}")]
    Pair(String),
}

impl From<haul::passport::identity::Unidentified> for ProbeError {
    fn from(error: haul::passport::identity::Unidentified) -> ProbeError {
        let haul::passport::identity::Unidentified { op, path, source } = error;
        ProbeError::Io { op, path, source }
    }
}

/// What a running probe tells, on the thread that called [`run`].
#[derive(Clone, Debug)]
pub enum ProbeEvent {
    /// The scratch file is there. `engine`: what was opened.
    Started { engine: String, size: u64, remarks: Vec<String> },
    /// A point was measured.
    Point(Point),
    /// Several times a second.
    Progress(ProbeProgress),
}

/// How far a probe is.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeProgress {
    pub phase: StoragePhase,
    /// Measurements made, and the most that there will be.
    pub done: usize,
    pub points_total: usize,
    /// Bytes read and written so far.
    pub bytes: u64,
    pub seconds: f64,
    /// An estimate, never more than the time limit leaves.
    pub seconds_left: f64,
}

/// What a probe is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StoragePhase {
    /// The scratch file is filled.
    Fill,
    /// A coarse grid of request sizes and depths, direct and buffered.
    Grid,
    /// What is near the best.
    Refine,
    /// Ordering policies.
    Order,
    /// Random offsets.
    Random,
    /// The classic mistakes that were not measured yet.
    Mistakes,
    /// The best once more, so that the best is no accident.
    Repeat,
}

impl StoragePhase {
    /// The name in progress and reports.
    pub fn name(self) -> &'static str {
        match self {
            StoragePhase::Fill => "fill",
            StoragePhase::Grid => "grid",
            StoragePhase::Refine => "refine",
            StoragePhase::Order => "order",
            StoragePhase::Random => "random",
            StoragePhase::Mistakes => "mistakes",
            StoragePhase::Repeat => "repeat",
        }
    }
}

#[cfg(test)]
mod tests;
