//! Characterising a network: what `haul probe network HOST` measures, keeps and compares.
//!
//! In: a host and a budget. Out: a [`Network`]: one [`Point`] for each setting of streams, window and
//! congestion control that was tried, from memory here to memory there over the very connections that a copy
//! has; what was left out and why; round trips, losses, path MTU; the limits of both ends; and the setting to
//! use. Kept as the passport of the pair. Its JSON form is the contract of `--json` and of the passport file.
//!
//! Reading order: the words here, `sweep` (what is tried next), `bench` (one session in which it is),
//! [`run`], `far` (the same for the way from there to here, where the far end measures), then what is made of
//! the figures: `judge`, [`passport`].
//!
//! Left out: receive buffers, which would have to be set before a connection is made.

use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use haul::api::RemoteOptions;
pub use haul::options::Only;
pub use haul::passport::network::{
    Advice, Best, End, FORMAT, KIND, LeftOut, Limit, Network, Point, Setting, Way,
};
pub use haul::passport::pair as passport;
pub use haul_transport::tcp::HostLimits;

mod bench;
mod far;
mod judge;
mod run;
mod sweep;
mod tried;

pub(crate) use far::trial;
pub use run::run;
pub(crate) use run::{run_local, run_with};

/// [`Request::time_limit`] unless asked otherwise.
pub const TIME_LIMIT_DEFAULT: Duration = Duration::from_secs(60);
/// The most that [`Request::time_limit`] can be.
pub const TIME_LIMIT_MAX: Duration = Duration::from_secs(3600);

/// What to probe, and what it may cost.
#[derive(Clone, Debug)]
pub struct Request {
    /// As for ssh: may hold `user@`.
    pub host: String,
    pub remote: RemoteOptions,
    pub way: Way,
    /// The measurements end within this time, from when the two ends are joined; at most [`TIME_LIMIT_MAX`].
    pub time_limit: Duration,
    /// Most payload bytes in all; `None`: no limit but the time.
    pub bytes_limit: Option<u64>,
    /// Every combination of the settings instead of those that could be the best.
    pub full: bool,
    /// Only these settings; an empty list means all of them.
    pub only: Only,
}

impl Request {
    /// A probe of the network to `host` with the default limits.
    pub fn new(host: impl Into<String>, remote: RemoteOptions) -> Request {
        let (host, only) = (host.into(), Only::default());
        let way = Way::default();
        Request { host, remote, way, time_limit: TIME_LIMIT_DEFAULT, bytes_limit: None, full: false, only }
    }
}

/// Why there is no probe.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    #[error("{0}")]
    BadRequest(String),
    /// The other end cannot be reached or started, or the session broke off before anything was measured.
    #[error("{0}")]
    Session(String),
    #[error("the probe was stopped")]
    Stopped,
}

/// What a running probe tells, from haul's own threads.
#[derive(Clone, Debug)]
pub enum Event {
    /// One line for people.
    Note(String),
    /// The two ends are joined.
    Started {
        address: Option<IpAddr>,
        path: String,
        rtt: f64,
        settings: usize,
    },
    /// A point was measured.
    Point(Point),
    Progress(Progress),
}

/// How far a probe is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    pub setting: Setting,
    /// Measurements made.
    pub done: usize,
    pub bytes: u64,
    pub seconds: f64,
    /// What the time limit leaves.
    pub seconds_left: f64,
}
