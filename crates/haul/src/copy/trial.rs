//! A session that moves nothing from nowhere to nowhere, for whoever measures the way between: joined, protected and driven
//! as a copy is.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use haul_core::transfer::SessionEnd;

use super::{connect, source_request};
use crate::api::{Control, CopyRequest, Endpoint, Observer, RemoteOptions};
use crate::driver::trial::SharedTrial;
use crate::driver::{Watch, cpu_time, source};
use crate::job::{AgentRequest, Options, PathBytes, Role};
use crate::storage::descriptors::raise_nofile;
use crate::storage::null;
use crate::transport::pace::Pacer;
use crate::transport::path::{self, EndFacts};
use crate::transport::tcp;

/// More than any session moves, bytes.
const ENDLESS: u64 = 1 << 58;
/// Objects are smaller than those of a copy, so that the sink's answers say more exactly what has come.
const OBJECT_SIZE: u32 = 1 << 20;
/// Two from the start: with one, other paths than the first are not looked for.
const STREAMS_FIRST: u16 = 2;
/// A network that is down is waited for so long, seconds.
const PATIENCE: u32 = 20;

/// Two ends that have met.
pub(crate) struct Met {
    /// The far end's address; `None`: through ssh.
    pub(crate) address: Option<IpAddr>,
    /// Where the data goes, in words, and what protects it.
    pub(crate) path: String,
    pub(crate) protect: String,
    pub(crate) rtt: Option<Duration>,
    pub(crate) near: EndFacts,
    pub(crate) far: Option<EndFacts>,
    /// Most streams that there can be.
    pub(crate) streams: u16,
    /// Congestion controls that can be set, the system's own first; empty: nothing can be set.
    pub(crate) controls: Vec<String>,
}

/// A session that is over.
pub(crate) struct Over {
    pub(crate) end: SessionEnd,
    /// User and system time of both ends in all.
    pub(crate) cpu_near: Duration,
    pub(crate) cpu_far: Option<Duration>,
}

/// Joins this host with `host` and gives the session to the trial that `make` makes of what was met, until it stops
/// `control`.
///
/// # Errors
/// The ends cannot be joined, or `make` refused: a sentence for people.
pub(crate) fn run(
    (host, remote): (&str, &RemoteOptions),
    observer: &Arc<dyn Observer>,
    control: &Control,
    make: impl FnOnce(&Met) -> Result<SharedTrial, String>,
) -> Result<Over, String> {
    raise_nofile();
    let begin = cpu_time();
    let options = Options { object_size: Some(OBJECT_SIZE), patience: Some(PATIENCE), ..Options::default() };
    let sources = vec![PathBytes(format!("null://{ENDLESS}").into_bytes())];
    let request = CopyRequest {
        sources: Vec::new(),
        destination: Endpoint::Remote { host: host.to_owned(), path: null::SINK.to_vec() },
        options: Options { streams: Some(STREAMS_FIRST), ..options.clone() },
        remote: remote.clone(),
        dry_run: false,
        verbose: false,
        state_home: None,
    };
    let ask = AgentRequest {
        role: Role::Sink,
        sources: Vec::new(),
        destination: Some(PathBytes(null::SINK.to_vec())),
        options: options.clone(),
    };
    let (links, met) = connect(&request, host, &ask, observer)?;
    let socket = links.data.first().and_then(|(_, link)| link.socket.clone());
    let controls = socket.map_or(Vec::new(), |socket| {
        let (mut all, own) = (tcp::controls(), tcp::control(&*socket).unwrap_or_default());
        all.sort_by_key(|name| *name != own);
        all
    });
    let rtt = path::rtt(&links.control);
    let joins = !controls.is_empty();
    let trial = make(&Met {
        address: met.address,
        path: met.path.clone(),
        protect: met.protect.clone(),
        rtt,
        near: EndFacts::here(None, met.address, None),
        far: met.far,
        streams: if joins { haul_core::wire::STREAMS_MAX } else { links.data.len() as u16 },
        controls,
    })?;
    let memory = super::memory(&options, rtt);
    let pacer = Arc::new(Pacer::new(None));
    // The trial turns what this end would look for by itself.
    let pinned = Options { streams: Some(STREAMS_FIRST), ..options };
    let mut from = source_request(sources, &pinned, None, memory, &pacer);
    from.trial = Some(trial);
    let watch =
        Watch { observer: Some(observer.clone()), control: control.clone(), verbose: false, manifest: None };
    let report = source::run(links, &from, &watch);
    drop(met);
    let cpu_far = report.far.map(|far| Duration::from_nanos(far.cpu));
    Ok(Over { end: report.end, cpu_near: cpu_time().saturating_sub(begin), cpu_far })
}
