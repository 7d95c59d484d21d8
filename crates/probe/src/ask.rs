//! A probe in the form of a copy: of what, with which options, and run.
//!
//! In: a request of one of the three kinds. Out: what it found. Left out: what a probe will cost before it
//! starts, for which there are `plan` and `run` apart.

use std::path::PathBuf;
use std::sync::Arc;

use haul::api::{Endpoint, Handle, RemoteOptions};

use super::{Probe, ProbeError, ProbeEvent, Request, network, path};

/// A request that can be measured; the three of this crate are.
pub trait Measure {
    /// What is told meanwhile.
    type Event;
    type Found;
    type Error;

    /// Measures it from beginning to end.
    ///
    /// # Errors
    /// As the kind's own `plan` and `run`.
    fn measure(
        &self,
        observer: Arc<dyn Fn(Self::Event) + Send + Sync>,
        handle: &Handle,
    ) -> Result<Self::Found, Self::Error>;
}

/// A probe that is about to be asked for.
///
/// ```
/// use std::time::Duration;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let here = tempfile::tempdir()?;
/// let probe = haul_probe::Request::of(here.path())
///     .options(|request| {
///         request.size = Some(1 << 20);
///         request.time_limit = Duration::from_secs(2);
///         request.network_ok = true;
///     })
///     .run(|event| println!("{event:?}"))?;
/// assert!(!probe.points.is_empty());
/// assert_eq!(std::fs::read_dir(here.path())?.count(), 0, "no scratch file stays");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is measured before `run`"]
pub struct Ask<R> {
    request: R,
    handle: Handle,
}

impl<R: Measure> Ask<R> {
    /// What this request says.
    pub fn new(request: R) -> Ask<R> {
        Ask { request, handle: Handle::new() }
    }

    /// Changes what the request says.
    pub fn options(mut self, change: impl FnOnce(&mut R)) -> Ask<R> {
        change(&mut self.request);
        self
    }

    /// Another thread stops the probe by a clone of `handle`.
    pub fn handle(mut self, handle: &Handle) -> Ask<R> {
        self.handle = handle.clone();
        self
    }

    /// Measures, and blocks until it is over. `observer` may be called from threads of haul's own.
    ///
    /// # Errors
    /// As the kind's own `plan` and `run`.
    pub fn run(self, observer: impl Fn(R::Event) + Send + Sync + 'static) -> Result<R::Found, R::Error> {
        self.request.measure(Arc::new(observer), &self.handle)
    }
}

impl Request {
    /// Asks for a probe of the storage at `path` with the default limits.
    pub fn of(path: impl Into<PathBuf>) -> Ask<Request> {
        Ask::new(Request::new(path))
    }
}

impl network::Request {
    /// Asks for a probe of the network to `host` with the default limits.
    pub fn of(host: impl Into<String>) -> Ask<network::Request> {
        Ask::new(network::Request::new(host, RemoteOptions::default()))
    }
}

impl path::Request {
    /// Asks for a probe of the path between the two ends of a copy with the default limits.
    pub fn of(source: impl Into<Endpoint>, destination: impl Into<Endpoint>) -> Ask<path::Request> {
        Ask::new(path::Request::new(source.into(), destination.into(), RemoteOptions::default()))
    }
}

impl Measure for Request {
    type Event = ProbeEvent;
    type Found = Probe;
    type Error = ProbeError;

    fn measure(
        &self,
        observer: Arc<dyn Fn(ProbeEvent) + Send + Sync>,
        handle: &Handle,
    ) -> Result<Probe, ProbeError> {
        super::run(&super::plan(self)?, &*observer, handle)
    }
}

impl Measure for network::Request {
    type Event = network::Event;
    type Found = network::Network;
    type Error = network::NetworkError;

    fn measure(
        &self,
        observer: Arc<dyn Fn(network::Event) + Send + Sync>,
        handle: &Handle,
    ) -> Result<network::Network, network::NetworkError> {
        network::run(self, observer, handle)
    }
}

impl Measure for path::Request {
    type Event = path::Event;
    type Found = path::PathProbe;
    type Error = path::PathError;

    fn measure(
        &self,
        observer: Arc<dyn Fn(path::Event) + Send + Sync>,
        handle: &Handle,
    ) -> Result<path::PathProbe, path::PathError> {
        path::run(&path::plan(self)?, observer, handle)
    }
}
