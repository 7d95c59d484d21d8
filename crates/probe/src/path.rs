//! Characterising a whole path: what `haul probe path SRC DST` measures and says.
//!
//! In: the two ends of a copy, and a budget. Out: a [`PathProbe`]: the five parts that a byte passes, with
//! the rate that each can give, the weakest, and the rate that a copy will have. Storage is probed at the end
//! where it lies, the network as `haul probe network` does in the direction of the data, and with it both
//! hosts: from memory to memory through the very code that copies.
//!
//! Reading order: the words here, `place` (where the storage of an end is probed), `answer` (the far end's
//! part), [`run`], `judge` (what is made of the figures).
//!
//! Left out: what is learnt only by a copy, as how the files' sizes and names slow it down.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::network::{self, Network, Way};
use super::{Direction, Probe};
use haul::api::{Endpoint, RemoteOptions};

mod answer;
mod judge;
mod place;
mod run;

pub(crate) use answer::answer;
pub use run::{plan, run};

/// The version of the JSON form.
pub const FORMAT: u32 = 1;
/// What the JSON form says it is.
pub const KIND: &str = "path";
/// [`Request::time_limit`] unless asked otherwise, and where it shall be quick.
pub const TIME_LIMIT_DEFAULT: Duration = Duration::from_secs(90);
pub const TIME_LIMIT_QUICK: Duration = Duration::from_secs(30);
/// The least, and the most, that it can be.
pub const TIME_LIMIT_MIN: Duration = Duration::from_secs(10);
pub const TIME_LIMIT_MAX: Duration = Duration::from_secs(3600);
/// [`Request::bytes_limit`] unless asked otherwise, and where it shall be quick.
pub const BYTES_LIMIT_DEFAULT: u64 = 4 << 30;
pub const BYTES_LIMIT_QUICK: u64 = 1 << 30;

/// One of the five parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// A name of `haul_core::stage::Stage`.
    pub part: String,
    /// What it can give, bytes per second; `None`: it does not limit (there is none, or both ends are in one
    /// process).
    pub rate: Option<f64>,
    /// Where it is, and how the rate was found, in words.
    pub place: String,
    pub how: String,
}

/// All that a probe found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PathProbe {
    pub format: u32,
    /// [`KIND`].
    pub kind: String,
    /// The program's version.
    pub haul: String,
    /// This host.
    pub host: String,
    /// The ends as typed.
    pub source: String,
    pub destination: String,
    /// Seconds since 1970.
    pub taken: u64,
    pub seconds: f64,
    /// In the order in which a byte meets them.
    pub parts: Vec<Part>,
    /// The name of the part that limits.
    pub weakest: Option<String>,
    /// What a copy of large files will reach, bytes per second; `None`: nothing limits it that was measured.
    pub expected: Option<f64>,
    /// What it takes besides, to begin and to end, seconds; `None`: an older haul measured.
    #[serde(default)]
    pub startup: Option<f64>,
    /// Content of the source, where its name or one look says how much it is, bytes; and how long a copy of
    /// it will take, seconds.
    #[serde(default)]
    pub bytes: Option<u64>,
    #[serde(default)]
    pub expected_seconds: Option<f64>,
    /// What the parts were made of.
    pub source_storage: Option<Probe>,
    pub network: Option<Network>,
    pub sink_storage: Option<Probe>,
    /// What was left out or did not work, in words.
    pub remarks: Vec<String>,
}

/// What to probe, and what it may cost.
#[derive(Clone, Debug)]
pub struct Request {
    /// As for a copy; one of them may be remote.
    pub source: Endpoint,
    pub destination: Endpoint,
    pub remote: RemoteOptions,
    /// The whole takes at most this, from when the two ends are joined; [`TIME_LIMIT_MIN`] to
    /// [`TIME_LIMIT_MAX`].
    pub time_limit: Duration,
    /// Most bytes read and written at each storage.
    pub bytes_limit: u64,
    /// The user has agreed that network file systems, which others share, get loaded.
    pub network_ok: bool,
    /// The far end keeps what is found of its storage as its passport. What is found here the caller keeps.
    pub keep: bool,
}

impl Request {
    /// A probe with the default limits.
    pub fn new(source: Endpoint, destination: Endpoint, remote: RemoteOptions) -> Request {
        Request {
            source,
            destination,
            remote,
            time_limit: TIME_LIMIT_DEFAULT,
            bytes_limit: BYTES_LIMIT_DEFAULT,
            network_ok: false,
            keep: true,
        }
    }

    /// The remote end's host, and the way of the data.
    fn far(&self) -> Option<(&str, Way)> {
        let from = self.source.host().map(|host| (host, Way::From));
        self.destination.host().map(|host| (host, Way::To)).or(from)
    }
}

/// How long each part of a probe takes at most. Their sum is the time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shares {
    storage: Duration,
    session: Duration,
}

impl Shares {
    /// The session of a pair finds the best setting of a network; that within one process has nothing to look
    /// for.
    fn of(time_limit: Duration, is_remote: bool) -> Shares {
        let session = if is_remote { time_limit.mul_f64(0.5) } else { time_limit.mul_f64(0.2) };
        Shares { storage: (time_limit - session) / 2, session }
    }
}

/// Why there is no probe.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    #[error("{0}")]
    BadRequest(String),
    #[error("{0}")]
    Failed(String),
    #[error("the probe was stopped; its scratch files are removed")]
    Stopped,
}

/// What is being measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PathPhase {
    SourceStorage,
    /// The network and both hosts.
    Session,
    SinkStorage,
}

impl PathPhase {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            PathPhase::SourceStorage => "storage of the source",
            PathPhase::Session => "network and hosts",
            PathPhase::SinkStorage => "storage of the destination",
        }
    }

    fn of(direction: Direction) -> PathPhase {
        match direction {
            Direction::Read => PathPhase::SourceStorage,
            Direction::Write => PathPhase::SinkStorage,
        }
    }
}

/// What a running probe tells, from haul's own threads too.
#[derive(Clone, Debug)]
pub enum Event {
    /// One line for people.
    Note(String),
    Progress(Progress),
    /// A measurement of the network.
    Point(network::Point),
}

/// How far a probe is.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    pub phase: PathPhase,
    /// Since the probe began, and what the phase's limit leaves.
    pub seconds: f64,
    pub seconds_left: f64,
    /// Bytes moved in this phase.
    pub bytes: u64,
}

#[cfg(test)]
#[path = "path/tests.rs"]
mod tests;
