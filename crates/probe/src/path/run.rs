//! A probe of a path from beginning to end.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use haul_core::stage::Stage;

use super::super::network::{self as net, Limit, Network, NetworkError, Way};
use super::super::{self as probe, Direction, Plan, Probe, ProbeError, ProbeEvent};
use super::answer::{Told, in_words};
use super::judge::{self, Host, Session, Storage, Verdict};
use super::place::{self, Limits};
use super::{Event, FORMAT, KIND, Part, PathError, PathPhase, PathProbe, Progress, Request, Shares};
use super::{TIME_LIMIT_MAX, TIME_LIMIT_MIN};
use haul::api::{Endpoint, Handle};
use haul::escape;
use haul::options::StorageQuestion;

/// Figures of a far end are cut after so many points, and texts after so many characters.
const POINTS_MAX: usize = 10_000;
const TEXT_MAX: usize = 512;

/// What is known before anything is measured.
pub struct Planned {
    request: Request,
    source: Option<Plan>,
    sink: Option<Plan>,
    shares: Shares,
    /// What the user should know before it starts, in words.
    pub warnings: Vec<String>,
}

impl Planned {
    /// What it takes at most.
    pub fn time(&self) -> Duration {
        self.request.time_limit
    }

    /// Most bytes read and written at each storage.
    pub fn bytes(&self) -> u64 {
        self.request.bytes_limit
    }
}

/// Looks at what lies here, without a write.
///
/// # Errors
/// What cannot be probed, in words that say what to do.
pub fn plan(request: &Request) -> Result<Planned, PathError> {
    if !(TIME_LIMIT_MIN..=TIME_LIMIT_MAX).contains(&request.time_limit) {
        let (least, most) = (TIME_LIMIT_MIN.as_secs(), TIME_LIMIT_MAX.as_secs());
        return Err(PathError::BadRequest(format!("the time limit must be from {least} to {most} seconds")));
    }
    // A made-up end has no storage; a server has one, which is not measured.
    let served =
        [&request.source, &request.destination].into_iter().find(|end| end.place().server().is_some());
    if let Some(end) = served {
        let shown = escape::name(&end.shown());
        return Err(PathError::BadRequest(format!(
            "{shown}: a probe measures paths of file systems, and not what a server has"
        )));
    }
    let shares = Shares::of(request.time_limit, request.far().is_some());
    let limits = Limits { time: shares.storage, bytes: request.bytes_limit, network_ok: request.network_ok };
    let here = |endpoint: &Endpoint, direction| match endpoint.host() {
        Some(_) => Ok(None),
        None => {
            let found = place::request(endpoint.place(), None, direction, limits).map_err(|e| refuse(&e))?;
            found.map(|found| probe::plan(&found).map_err(|e| refuse(&e))).transpose()
        }
    };
    let source = here(&request.source, Direction::Read)?;
    let sink = here(&request.destination, Direction::Write)?;
    let warnings = [&source, &sink].into_iter().flatten().flat_map(|plan| plan.warnings.clone()).collect();
    Ok(Planned { request: request.clone(), source, sink, shares, warnings })
}

fn refuse(error: &ProbeError) -> PathError {
    match error {
        ProbeError::BadRequest(_) | ProbeError::AskFirst(_) => PathError::BadRequest(in_words(error)),
        ProbeError::Stopped => PathError::Stopped,
        error => PathError::Failed(error.to_string()),
    }
}

/// Measures a path. Blocks; events come from haul's own threads too. What is written into is without a name,
/// and gone however this ends.
///
/// # Errors
/// See [`PathError`].
pub fn run(
    planned: &Planned,
    observer: Arc<dyn Fn(Event) + Send + Sync>,
    handle: &Handle,
) -> Result<PathProbe, PathError> {
    let start = Instant::now();
    let request = &planned.request;
    let tell = |phase, seconds_left: f64, bytes| {
        let seconds = start.elapsed().as_secs_f64();
        observer(Event::Progress(Progress { phase, seconds, seconds_left, bytes }));
    };
    let near = |plan: &Option<Plan>, direction| {
        let Some(plan) = plan else { return Ok(None) };
        let observe = |event| {
            if let ProbeEvent::Progress(p) = event {
                tell(PathPhase::of(direction), p.seconds_left, p.bytes);
            }
        };
        probe::run(plan, &observe, handle).map(Some).map_err(|e| refuse(&e))
    };
    let mut remarks = Vec::new();
    let (source, network, session, sink) = match request.far() {
        None => {
            let source = near(&planned.source, Direction::Read)?;
            let forward = forward(&observer, start);
            let (point, share) =
                net::run_local(planned.shares.session, &forward, handle).map_err(|e| broken(&e))?;
            let cost = point.cpu_seconds / point.bytes.max(1) as f64;
            let sink = near(&planned.sink, Direction::Write)?;
            (source, None, Session::Local { rate: point.rate, cost, share }, sink)
        }
        Some((host, way)) => {
            let (network, far) = ask(planned, (host, way), &observer, (handle, start))?;
            let session = session_of(&network);
            if session.is_none() {
                remarks.push(
                    "the far end did not say what it spent: its host is taken to be as this one".into(),
                );
            }
            let session = session.unwrap_or_else(|| session_alone(&network));
            let here = |plan, direction| near(plan, direction);
            let (source, sink) = match way {
                Way::To => (here(&planned.source, Direction::Read)?, far),
                Way::From => (far, here(&planned.sink, Direction::Write)?),
            };
            (source, Some(network), session, sink)
        }
    };
    let [from, to] = [(&source, Direction::Read), (&sink, Direction::Write)]
        .map(|(found, direction)| found.as_ref().and_then(|found| storage_of(found, direction)));
    let verdict = judge::judge(from, session, to);
    let startup = network.as_ref().map_or(0.0, |network| {
        let streams = network.recommended.as_ref().map_or(1, |best| best.setting.streams);
        let joined_in = network.joined_in.unwrap_or(0.0);
        judge::startup(joined_in, network.rtt_min, streams, verdict.expected.unwrap_or(0.0))
    });
    let bytes = place::size(&request.source);
    if let Some(network) = &network {
        remarks.extend(network.remarks.iter().cloned());
    }
    for found in [&source, &sink].into_iter().flatten() {
        remarks.extend(found.remarks.iter().map(|remark| format!("{}: {remark}", found.path)));
    }
    Ok(PathProbe {
        format: FORMAT,
        kind: KIND.into(),
        haul: env!("CARGO_PKG_VERSION").into(),
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        source: shown(&request.source),
        destination: shown(&request.destination),
        taken: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs()),
        seconds: start.elapsed().as_secs_f64(),
        parts: parts(request, &verdict, (&source, &sink), network.as_ref()),
        weakest: verdict.weakest.map(|stage| stage.name().to_owned()),
        expected: verdict.expected,
        startup: Some(startup),
        bytes,
        expected_seconds: bytes.zip(verdict.expected).map(|(bytes, rate)| startup + bytes as f64 / rate),
        source_storage: source,
        network,
        sink_storage: sink,
        remarks,
    })
}

fn forward(
    observer: &Arc<dyn Fn(Event) + Send + Sync>,
    start: Instant,
) -> Arc<dyn Fn(net::Event) + Send + Sync> {
    let observer = observer.clone();
    Arc::new(move |event| match event {
        net::Event::Note(text) => observer(Event::Note(text)),
        net::Event::Point(point) => observer(Event::Point(point)),
        net::Event::Progress(p) => {
            let (seconds, seconds_left, bytes) = (start.elapsed().as_secs_f64(), p.seconds_left, p.bytes);
            observer(Event::Progress(Progress { phase: PathPhase::Session, seconds, seconds_left, bytes }));
        }
        net::Event::Started { .. } => {}
    })
}

fn broken(error: &NetworkError) -> PathError {
    match error {
        NetworkError::BadRequest(text) => PathError::BadRequest(text.clone()),
        NetworkError::Session(text) => PathError::Failed(text.clone()),
        NetworkError::Stopped => PathError::Stopped,
    }
}

/// One call of the far end: its storage first, then the network to it, in the direction of the data.
fn ask(
    planned: &Planned,
    (host, way): (&str, Way),
    observer: &Arc<dyn Fn(Event) + Send + Sync>,
    (handle, start): (&Handle, Instant),
) -> Result<(Network, Option<Probe>), PathError> {
    let request = &planned.request;
    let (endpoint, direction) = match way {
        Way::To => (&request.destination, Direction::Write),
        Way::From => (&request.source, Direction::Read),
    };
    let question = StorageQuestion {
        place: endpoint.place().clone(),
        direction,
        time_ms: u64::try_from(planned.shares.storage.as_millis()).unwrap_or(u64::MAX),
        bytes: request.bytes_limit,
        network_ok: request.network_ok,
        keep: request.keep,
    };
    let answer: RefCell<Option<Result<Option<Probe>, String>>> = RefCell::new(None);
    let mut hear = |json: &str| {
        let cut = |text: String| text.chars().take(TEXT_MAX).collect::<String>();
        match serde_json::from_str(json) {
            Ok(Told::Progress { seconds_left, bytes, .. }) => {
                let (phase, seconds) = (PathPhase::of(direction), start.elapsed().as_secs_f64());
                observer(Event::Progress(Progress { phase, seconds, seconds_left, bytes }));
            }
            Ok(Told::Note(text)) => observer(Event::Note(format!("{host}: {}", cut(text)))),
            Ok(Told::Nothing) => drop(answer.borrow_mut().replace(Ok(None))),
            Ok(Told::Found(mut found)) => {
                found.points.truncate(POINTS_MAX);
                found.remarks.truncate(POINTS_MAX);
                drop(answer.borrow_mut().replace(Ok(Some(*found))));
            }
            Ok(Told::Failed(text)) => drop(answer.borrow_mut().replace(Err(cut(text)))),
            // A later haul may say more.
            Err(_) => {}
        }
        !handle.stopped() && !matches!(&*answer.borrow(), Some(Err(_)))
    };
    let call = net::Request {
        way,
        time_limit: planned.shares.session,
        ..net::Request::new(host, request.remote.clone())
    };
    let forward = forward(observer, start);
    let network = net::run_with(&call, Some(question), &mut hear, forward, handle);
    match (network, answer.into_inner()) {
        (_, Some(Err(text))) => Err(PathError::Failed(format!("{host}: {text}"))),
        (Err(error), _) => Err(broken(&error)),
        (Ok(_), None) => Err(PathError::Failed(format!(
            "the haul on {host} does not answer questions of its storage: it is too old for that"
        ))),
        (Ok(network), Some(Ok(far))) => Ok((network, far)),
    }
}

/// What the network's probe says of both hosts; `None`: one of them did not say what it spent.
fn session_of(network: &Network) -> Option<Session> {
    let best = network.recommended.as_ref()?;
    let far = network.far.as_ref()?;
    let host = |cpus: u16, per_gb: f64| Host { cpus: f64::from(cpus), cost: per_gb / 1e9 };
    let (near, far) = (host(network.near.cpus, network.cpu_near?), host(far.cpus, network.cpu_far?));
    let (source, sink) = match network.way {
        Way::To => (near, far),
        Way::From => (far, near),
    };
    let mut of = network.points.iter().filter(|point| point.setting == best.setting);
    let hosts_limit = of.next_back().is_some_and(|point| point.limit == Limit::Hosts);
    Some(Session::Pair { rate: best.rate, hosts_limit, source, sink })
}

fn session_alone(network: &Network) -> Session {
    let rate = network.recommended.as_ref().map_or(0.0, |best| best.rate);
    let host = Host { cpus: f64::from(network.near.cpus), cost: network.cpu_near.unwrap_or(0.0) / 1e9 };
    Session::Pair { rate, hosts_limit: false, source: host, sink: host }
}

/// The best of a direction, and what it cost.
fn storage_of(found: &Probe, direction: Direction) -> Option<Storage> {
    let best = match direction {
        Direction::Read => found.read_best,
        Direction::Write => found.write_best,
    }?;
    let point =
        found.points.iter().find(|point| point.direction == direction && point.setting == best.setting);
    let cost = point.map_or(0.0, |point| point.cpu_seconds / point.bytes.max(1) as f64);
    Some(Storage { rate: best.rate, cost })
}

fn parts(
    request: &Request,
    verdict: &Verdict,
    (source, sink): (&Option<Probe>, &Option<Probe>),
    network: Option<&Network>,
) -> Vec<Part> {
    let host = |endpoint: &Endpoint| endpoint.host().unwrap_or("this host").to_owned();
    let storage = |found: &Option<Probe>, direction| match found {
        None => (String::new(), "no storage".to_owned()),
        Some(found) => {
            let best = if direction == Direction::Read { found.read_best } else { found.write_best };
            let how = best.map_or("nothing was measured".into(), |best| {
                let setting = best.setting;
                let io = if setting.io == probe::Io::Direct { "direct" } else { "buffered" };
                format!("{} in flight, each {} bytes, {io}", setting.depth, setting.request_size)
            });
            (format!("{} ({})", found.storage.mount_point, found.storage.kind), how)
        }
    };
    let of_host = match network {
        Some(_) => "by what its processors spent on each byte, from memory to memory and on its storage",
        None => "both ends share its processors, from memory to memory and on both storages",
    };
    let all = Stage::ALL.iter().zip(verdict.rates);
    all.map(|(stage, rate)| {
        let (place, how) = match stage {
            Stage::SourceStorage => storage(source, Direction::Read),
            Stage::SinkStorage => storage(sink, Direction::Write),
            Stage::SourceHost => (host(&request.source), of_host.to_owned()),
            Stage::SinkHost => (host(&request.destination), of_host.to_owned()),
            Stage::Network => match network {
                None => (String::new(), "both ends are in one process".into()),
                Some(network) => {
                    let how = network.recommended.as_ref().map_or(String::new(), |best| {
                        format!("{} streams, {}", best.setting.streams, best.setting.congestion)
                    });
                    (network.path.clone(), how)
                }
            },
        };
        Part { part: stage.name().to_owned(), rate, place, how }
    })
    .collect()
}

fn shown(endpoint: &Endpoint) -> String {
    String::from_utf8_lossy(&endpoint.shown()).into_owned()
}
