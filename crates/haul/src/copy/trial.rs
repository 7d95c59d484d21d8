//! A session that moves nothing from nowhere to nowhere, for whoever measures the way between: joined,
//! protected and driven as a copy is.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use haul_core::transfer::SessionEnd;

use super::ends::{memory, patience, sink_request, source_request};
use super::{Remote, memory_links};
use crate::driver::sink::{Hears, SinkRequest};
use crate::driver::trial::SharedTrial;
use crate::driver::{Links, Report, Watch, cpu_time, sink, source};
use crate::endpoint::Endpoint;
use crate::endpoint::Place;
use crate::error::Error;
use crate::events::Observer;
use crate::handle::Handle;
use crate::options::{AgentRequest, NetworkTrial, Options, StorageQuestion};
use crate::request::{CopyRequest, RemoteOptions};
use haul_base::role::Role;
use haul_storage::descriptors::Share;
use haul_storage::null::NULL;
use haul_transport::pace::Pacer;
use haul_transport::path::{self, EndFacts};
use haul_transport::tcp::HostLimits;

/// More than any session moves, bytes.
const ENDLESS: u64 = 1 << 58;
/// Objects are smaller than those of a copy, so that the sink's answers say more exactly what has come.
const OBJECT_SIZE: u32 = 1 << 20;
/// Two from the start: with one, other paths than the first are not looked for.
const STREAMS_FIRST: u16 = 2;
/// A network that is down is waited for so long, seconds.
const PATIENCE: u32 = 20;

/// Two ends that have met.
pub struct Connection {
    /// The far end's address; `None`: through ssh.
    pub address: Option<IpAddr>,
    /// Where the data goes, in words, and what protects it.
    pub path: String,
    /// `tls`, `integrity`, `ssh` or `local`.
    pub protect: String,
    /// Of the control stream, before any load; `None`: not known.
    pub rtt: Option<Duration>,
    /// What this end is.
    pub near: EndFacts,
    /// What the other end is, if it said.
    pub far: Option<EndFacts>,
    /// Most streams that there can be.
    pub streams: u16,
    /// Congestion controls that can be set, the system's own first; empty: nothing can be set.
    pub controls: Vec<String>,
}

/// What a far end does that is asked to measure. The program brings it, for measuring is no part of moving.
pub trait Prober: Send + Sync {
    /// Answers a question of the near end by JSON texts that it gives to `tell`, the last one the answer, at
    /// least one every few seconds; `false` from there: nobody wants to hear more. `home`: the user's
    /// directory; `state`: where the passports of this host lie.
    fn answer(
        &self,
        question: &StorageQuestion,
        home_and_state: (Option<&Path>, Option<&Path>),
        tell: &mut dyn FnMut(String) -> bool,
    );

    /// What measures a session whose source this end is. It ends the session by `control`.
    fn trial(&self, ask: &NetworkTrial, connection: &Connection, handle: &Handle) -> SharedTrial;
}

/// A session that is over.
pub struct Over {
    /// How it ended.
    pub end: SessionEnd,
    /// User and system time of both ends in all.
    pub cpu_near: Duration,
    /// The same of the far end, if it said.
    pub cpu_far: Option<Duration>,
    /// How long it took to join them.
    pub joined_in: Duration,
}

/// Whom to call, and what to ask there before the session.
pub struct Call<'a> {
    /// As the user typed it.
    pub host: &'a str,
    /// How it is reached and started.
    pub remote: &'a RemoteOptions,
    /// What is asked before the session.
    pub question: Option<StorageQuestion>,
    /// Takes the answers; `false`: enough.
    pub hear: &'a mut dyn FnMut(&str) -> bool,
}

impl Call<'_> {
    fn connect(
        &mut self,
        mut ask: AgentRequest,
        observer: &Arc<dyn Observer>,
        handle: &Handle,
    ) -> Result<(Links, Remote), Error> {
        ask.question = self.question.take();
        // The patience is that of a session that runs; ssh has its own time.
        let options = Options { streams: Some(STREAMS_FIRST), patience: None, ..ask.options.clone() };
        let destination = Endpoint::new(Some(self.host.to_owned()), Place::root(&NULL));
        let request = CopyRequest {
            sources: Vec::new(),
            destination,
            replicas: Vec::new(),
            options,
            remote: self.remote.clone(),
            dry_run: false,
            verbose: false,
            targets: false,
            state_home: None,
            picks: None,
        };
        let (links, remote) =
            super::connect_and_hear((&request, self.host), &ask, observer, handle, self.hear)?;
        Ok((Links { patience: patience(&ask.options), ..links }, remote))
    }
}

fn options() -> Options {
    Options { object_size: Some(OBJECT_SIZE), patience: Some(PATIENCE), ..Options::default() }
}

fn endless() -> Vec<Place> {
    vec![Place::sized(&NULL, ENDLESS)]
}

/// What can be set on the data streams.
fn controls(links: &Links) -> Vec<String> {
    let connection = links.data.first().and_then(|(_, link)| link.connection.clone());
    connection.map_or(Vec::new(), |connection| {
        let (mut all, own) = (connection.controls(), connection.control().unwrap_or_default());
        all.sort_by_key(|name| *name != own);
        all
    })
}

/// The source of a session that is measured by `trial`.
fn source(links: &Links, rtt: Option<Duration>, trial: SharedTrial) -> source::SourceRequest {
    // The trial turns what this end would look for by itself.
    let pinned = Options { streams: Some(STREAMS_FIRST), ..options() };
    let memory = memory(&options(), rtt);
    let pacer = Arc::new(Pacer::new(None));
    debug_assert!(!links.data.is_empty());
    let mut from = source_request(endless(), &pinned, None, memory, (&Share::whole(), &pacer));
    from.trial = Some(trial);
    from
}

fn connection_of(remote: &Remote, links: &Links) -> Connection {
    let controls = controls(links);
    let joins = !controls.is_empty();
    Connection {
        address: remote.address,
        path: remote.path.clone(),
        protect: remote.protect.clone(),
        rtt: path::rtt(&links.control),
        near: EndFacts::here(None, remote.address, None),
        far: remote.far,
        streams: if joins { haul_core::wire::STREAMS_MAX } else { links.data.len() as u16 },
        controls,
    }
}

fn watch(observer: &Arc<dyn Observer>, handle: &Handle) -> Watch {
    Watch { observer: Some(observer.clone()), handle: handle.clone(), ..Watch::silent() }
}

fn over(report: Report, begin: Duration, joined_in: Duration) -> Over {
    let cpu_far = report.far.map(|far| Duration::from_nanos(far.cpu));
    Over { end: report.end, cpu_near: cpu_time().saturating_sub(begin), cpu_far, joined_in }
}

/// Joins this host with another, data from here to there, and gives the session to the trial that `make`
/// makes of what was met, until it stops `control`.
///
/// # Errors
/// The ends cannot be joined, `handle` was stopped before they were, or `make` refused.
pub fn run(
    mut call: Call<'_>,
    observer: &Arc<dyn Observer>,
    handle: &Handle,
    make: impl FnOnce(&Connection) -> Result<SharedTrial, Error>,
) -> Result<Over, Error> {
    let begin = cpu_time();
    let destination = Some(Place::root(&NULL));
    let ask = AgentRequest::new(Role::Sink, Vec::new(), destination, options());
    let (links, remote) = call.connect(ask, observer, handle)?;
    let connection = connection_of(&remote, &links);
    let from = source(&links, connection.rtt, make(&connection)?);
    let report = source::run(links, &from, &watch(observer, handle));
    let joined_in = remote.took;
    drop(remote);
    Ok(over(report, begin, joined_in))
}

/// The same with data from there to here: the far end measures as `trial` says, and `hears` takes what it
/// says of it; until somebody stops `control`, or the far end is done.
///
/// # Errors
/// As [`run`]'s, `met` being what may refuse.
pub fn run_back(
    mut call: Call<'_>,
    trial: NetworkTrial,
    observer: &Arc<dyn Observer>,
    handle: &Handle,
    connection: impl FnOnce(Connection) -> Result<Hears, Error>,
) -> Result<Over, Error> {
    let begin = cpu_time();
    // Pinned: the far end's own search is the trial's.
    let pinned = Options { streams: Some(STREAMS_FIRST), ..options() };
    let mut ask = AgentRequest::new(Role::Source, endless(), None, pinned);
    let rmem_fixed = HostLimits::here().rmem_fixed;
    ask.trial = Some(NetworkTrial { rmem_fixed, ..trial });
    let (links, remote) = call.connect(ask, observer, handle)?;
    let memory = memory(&options(), path::rtt(&links.control)).value;
    let hears = connection(connection_of(&remote, &links))?;
    let destination = Place::root(&NULL);
    let to = sink_request(destination, &options(), None, memory, &Share::whole());
    let to = SinkRequest { hears: Some(hears), ..to };
    let report = sink::run(links, &to, &watch(observer, handle));
    let joined_in = remote.took;
    drop(remote);
    Ok(over(report, begin, joined_in))
}

/// A session within this process, from memory to memory. The share of the source in the time that threads
/// worked comes with it.
///
/// # Errors
/// As [`run`]'s.
pub fn run_local(
    observer: &Arc<dyn Observer>,
    handle: &Handle,
    make: impl FnOnce(&Connection) -> Result<SharedTrial, Error>,
) -> Result<(Over, f64), Error> {
    let begin = cpu_time();
    let (near, far) = memory_links(&options());
    let here = EndFacts::here(None, None, None);
    let connection = Connection {
        address: None,
        path: "local".into(),
        protect: "local".into(),
        rtt: None,
        near: here,
        far: Some(here),
        streams: near.data.len() as u16,
        controls: Vec::new(),
    };
    let from = source(&near, None, make(&connection)?);
    let memory = memory(&options(), None).value;
    let to = sink_request(Place::root(&NULL), &options(), None, memory, &Share::whole());
    let watch = watch(observer, handle);
    let ran = thread::scope(|scope| {
        let from = scope.spawn(|| source::run(near, &from, &watch));
        let to = sink::run(far, &to, &Watch::silent());
        from.join().map(|from| (from, to))
    });
    let (from, to) = ran.map_err(|_| Error::local("internal error in the source end"))?;
    let busy = |report: &Report| report.own.stages.iter().map(|stage| stage.busy as f64).sum::<f64>();
    let share = busy(&from) / (busy(&from) + busy(&to)).max(1.0);
    Ok((over(from, begin, Duration::ZERO), share))
}

/// The trial of an agent that was asked to measure. It ends the session by `control`.
pub(super) fn far(prober: &dyn Prober, ask: &NetworkTrial, links: &Links, handle: &Handle) -> SharedTrial {
    let controls = controls(links);
    let joins = !controls.is_empty();
    let near = EndFacts::here(None, None, None);
    let limits = HostLimits { rmem_fixed: ask.rmem_fixed, ..HostLimits::default() };
    let connection = Connection {
        address: None,
        path: String::new(),
        protect: String::new(),
        rtt: path::rtt(&links.control),
        near,
        far: Some(EndFacts { limits, ..near }),
        streams: if joins { haul_core::wire::STREAMS_MAX } else { links.data.len() as u16 },
        controls,
    };
    prober.trial(ask, &connection, handle)
}
