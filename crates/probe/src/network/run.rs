//! A probe of a network from beginning to end.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use haul_core::transfer::SessionEnd;

use super::bench::{Bench, Seen};
use super::far::Heard;
use super::tried::{Shared, sweep};
use super::{
    End, Event, FORMAT, KIND, LeftOut, Network, NetworkError, Only, Point, Request, TIME_LIMIT_MAX, Way,
    judge,
};
use haul::api::{self, Error, ErrorKind, Handle, Observer};
use haul::options::{NetworkTrial, StorageQuestion};
use haul::trial::Hears;
use haul::trial::SharedTrial;
use haul::trial::{self, Call, Connection, Over};
use haul_transport::path::EndFacts;

/// Settings that a request may name.
const STREAMS: std::ops::RangeInclusive<u16> = 1..=64;

/// Probes the network to a host, or from it. Blocks; events come from haul's own threads.
///
/// # Errors
/// See [`NetworkError`]. A session that broke off after something was measured is a result, with a remark.
pub fn run(
    request: &Request,
    observer: Arc<dyn Fn(Event) + Send + Sync>,
    handle: &Handle,
) -> Result<Network, NetworkError> {
    run_with(request, None, &mut |_| false, observer, handle)
}

/// [`run`], with a question of the storage there that is answered first: `hear` takes the answers, and says
/// whether it wants more.
pub(crate) fn run_with(
    request: &Request,
    question: Option<StorageQuestion>,
    hear: &mut dyn FnMut(&str) -> bool,
    observer: Arc<dyn Fn(Event) + Send + Sync>,
    handle: &Handle,
) -> Result<Network, NetworkError> {
    check(request)?;
    // Ends this session alone when it is stopped: the caller's may be in use elsewhere.
    let ours = handle.below();
    let notes: Arc<dyn Observer> = Arc::new(Notes { tell: observer.clone() });
    let call = Call { host: &request.host, remote: &request.remote, question, hear };
    let ended = match request.way {
        Way::To => forth(request, call, &observer, &notes, &ours),
        Way::From => back(request, call, &observer, &notes, &ours),
    };
    let stopped = handle.stopped();
    let Measured { arrived, points, left_out, seen, over } = match ended {
        _ if stopped => return Err(NetworkError::Stopped),
        Ok(measured) => measured,
        Err(text) => return Err(NetworkError::Session(text)),
    };
    if points.is_empty() {
        let why = match &over.end {
            SessionEnd::Failed(failure) => failure.text.to_string(),
            _ => "nothing arrived in the time: give it more".into(),
        };
        return Err(NetworkError::Session(why));
    }
    Ok(finish(request, &arrived, (points, left_out), &seen, &over))
}

/// A session that is over, and what was measured in it.
struct Measured {
    arrived: Arrived,
    points: Vec<Point>,
    left_out: Vec<LeftOut>,
    seen: Seen,
    over: Over,
}

/// From here to there: the bench is here.
fn forth(
    request: &Request,
    call: Call<'_>,
    observer: &Arc<dyn Fn(Event) + Send + Sync>,
    notes: &Arc<dyn Observer>,
    ours: &Handle,
) -> Result<Measured, String> {
    let mut made: Option<(Arc<Mutex<Option<Bench>>>, Arrived)> = None;
    let over = trial::run(call, notes, ours, |connection| {
        let (sweep, settings) = sweep(&request.only, request.full, connection).map_err(usage)?;
        let arrived = Arrived::of(connection);
        observer(arrived.started(settings));
        let limits = (request.time_limit, request.bytes_limit.unwrap_or(u64::MAX));
        let tell = observer.clone();
        let bench = Bench::new(
            sweep,
            connection.rtt.unwrap_or_default(),
            limits,
            ours.clone(),
            Box::new(move |e| tell(e)),
        );
        let bench = Arc::new(Mutex::new(Some(bench)));
        made = Some((bench.clone(), arrived));
        Ok(Arc::new(Mutex::new(Shared(bench))) as SharedTrial)
    })
    .map_err(|error| error.text)?;
    let (bench, arrived) = made.ok_or("the session ended before it began")?;
    let bench = bench.lock().unwrap_or_else(PoisonError::into_inner).take();
    let (sweep, seen) = bench.expect("taken once, here").into_parts();
    let (points, left_out) = sweep.into_parts();
    Ok(Measured { arrived, points, left_out, seen, over })
}

/// From there to here: the far end measures, and says what it saw.
fn back(
    request: &Request,
    call: Call<'_>,
    observer: &Arc<dyn Fn(Event) + Send + Sync>,
    notes: &Arc<dyn Observer>,
    ours: &Handle,
) -> Result<Measured, String> {
    let ask = NetworkTrial {
        time_ms: u64::try_from(request.time_limit.as_millis()).unwrap_or(u64::MAX),
        bytes: request.bytes_limit,
        full: request.full,
        only: request.only.clone(),
        rmem_fixed: None,
    };
    let heard: Arc<Mutex<(Heard, Option<Arrived>)>> = Arc::default();
    let over = trial::run_back(call, ask, notes, ours, |connection| {
        let (heard, observer, ours) = (heard.clone(), observer.clone(), ours.clone());
        heard.lock().unwrap_or_else(PoisonError::into_inner).1 = Some(Arrived::of(&connection));
        // One that is too old to measure would send for ever.
        let watchdog = Watchdog::start(SAYS_NOTHING, ours.clone()).map_err(local)?;
        Ok(Arc::new(move |json: &[u8]| {
            watchdog.fed();
            let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
            let (heard, arrived) = &mut *heard;
            let began = heard.began.is_some();
            let event = heard.hear(json);
            if let (false, Some((settings, own, direct)), Some(arrived)) = (began, &heard.began, arrived) {
                (arrived.own, arrived.direct) = (own.clone(), *direct);
                observer(arrived.started(*settings));
            }
            if heard.refused.is_some() {
                ours.stop();
            }
            event.into_iter().for_each(|event| observer(event));
        }) as Hears)
    })
    .map_err(|error| error.text)?;
    let (heard, arrived) = std::mem::take(&mut *heard.lock().unwrap_or_else(PoisonError::into_inner));
    if let Some(why) = heard.refused {
        return Err(why);
    }
    if heard.began.is_none() && matches!(over.end, SessionEnd::Stopped) {
        return Err(
            "the haul at the far host says nothing of what it measures: it is too old for that".into()
        );
    }
    let arrived = arrived.ok_or("the session ended before it began")?;
    let Heard { points, left_out, seen, .. } = heard;
    Ok(Measured { arrived, points, left_out, seen: seen.unwrap_or_default(), over })
}

/// Measures a session within this process, from memory to memory, for at most so long. The last point, and
/// the share of the source in the work.
pub(crate) fn run_local(
    time_limit: Duration,
    observer: &Arc<dyn Fn(Event) + Send + Sync>,
    handle: &Handle,
) -> Result<(Point, f64), NetworkError> {
    let ours = handle.below();
    let notes: Arc<dyn Observer> = Arc::new(Notes { tell: observer.clone() });
    let mut made = None;
    let only = Only { streams: vec![haul_core::wire::STREAMS_MAX], ..Only::default() };
    let ended = trial::run_local(&notes, &ours, |connection| {
        let (sweep, _) = sweep(&only, false, connection).map_err(usage)?;
        let tell = observer.clone();
        let limits = (time_limit, u64::MAX);
        let bench = Bench::new(sweep, Duration::ZERO, limits, ours.clone(), Box::new(move |e| tell(e)));
        let bench = Arc::new(Mutex::new(Some(bench)));
        made = Some(bench.clone());
        Ok(Arc::new(Mutex::new(Shared(bench))) as SharedTrial)
    });
    let (_, share) = match ended {
        _ if handle.stopped() => return Err(NetworkError::Stopped),
        Ok(ended) => ended,
        Err(error) => return Err(NetworkError::Session(error.text)),
    };
    let bench = made.and_then(|bench| bench.lock().unwrap_or_else(PoisonError::into_inner).take());
    let points = bench.map(|bench| bench.into_parts().0.into_parts().0).unwrap_or_default();
    let last = points.into_iter().next_back();
    let nothing = || NetworkError::Session("nothing was measured in the time: give it more".into());
    last.map(|point| (point, share)).ok_or_else(nothing)
}

/// A far end that says nothing at all for this long was never asked: its haul is too old to know that it is
/// to measure.
const SAYS_NOTHING: Duration = Duration::from_secs(15);

/// Stops a session in which nothing is said.
struct Watchdog(Sender<()>);

impl Watchdog {
    fn start(wait: Duration, handle: Handle) -> Result<Watchdog, String> {
        let (feed, fed) = bounded::<()>(1);
        let watch = move || {
            if fed.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                handle.stop();
            }
        };
        let thread = thread::Builder::new().name("haul-watchdog".into()).spawn(watch);
        thread.map(|_| Watchdog(feed)).map_err(|e| format!("starting a thread: {e}"))
    }

    /// It says something.
    fn fed(&self) {
        let _ = self.0.try_send(());
    }
}

fn check(request: &Request) -> Result<(), NetworkError> {
    let bad = |text: &str| Err(NetworkError::BadRequest(text.into()));
    if request.host.is_empty() {
        return bad("a host is needed, as for ssh");
    }
    if request.time_limit.is_zero() || request.time_limit > TIME_LIMIT_MAX {
        return bad("the time limit is at most an hour, and not zero");
    }
    if request.only.streams.iter().any(|n| !STREAMS.contains(n)) {
        return bad("streams are numbers from 1 to 64");
    }
    Ok(())
}

fn usage(text: String) -> Error {
    Error::new(ErrorKind::Usage, text)
}

fn local(text: String) -> Error {
    Error::new(ErrorKind::Local, text)
}

/// What is kept of the meeting.
struct Arrived {
    address: Option<std::net::IpAddr>,
    path: String,
    protect: String,
    rtt: Option<Duration>,
    near: End,
    far: Option<End>,
    /// The system's own congestion control.
    own: String,
    direct: bool,
}

impl Arrived {
    fn of(connection: &Connection) -> Arrived {
        let end = |facts: EndFacts| End { limits: facts.limits, cpus: facts.cpus };
        Arrived {
            address: connection.address,
            path: connection.path.clone(),
            protect: connection.protect.clone(),
            rtt: connection.rtt,
            near: end(connection.near),
            far: connection.far.map(end),
            own: connection.controls.first().cloned().unwrap_or_default(),
            direct: !connection.controls.is_empty(),
        }
    }

    fn started(&self, settings: usize) -> Event {
        let (address, path) = (self.address, self.path.clone());
        Event::Started { address, path, rtt: self.rtt.unwrap_or_default().as_secs_f64(), settings }
    }
}

fn finish(
    request: &Request,
    arrived: &Arrived,
    (points, left_out): (Vec<Point>, Vec<LeftOut>),
    seen: &Seen,
    over: &Over,
) -> Network {
    let mut remarks = Vec::new();
    if let SessionEnd::Failed(failure) = &over.end {
        remarks.push(format!("the session broke off: {}", failure.text));
    }
    if !arrived.direct {
        remarks
            .push("all data goes through ssh: streams share its connection, and nothing can be set".into());
    }
    if points.iter().any(|point| point.rising) {
        remarks.push(
            "some rates still rose when they were taken (marked with +): the path is long, or loses".into(),
        );
    }
    let best = judge::best(&points);
    let recommended = judge::recommended(&points, &arrived.own);
    let rtt = match seen.rtt_min {
        // A far end may say anything.
        rtt if rtt > 0.0 => Duration::try_from_secs_f64(rtt).ok(),
        _ => arrived.rtt,
    };
    let (near, far) = (Some(&arrived.near), arrived.far.as_ref());
    let (source, sink, whose) = match request.way {
        Way::To => (near, far, "this host"),
        Way::From => (far, near, "the far host"),
    };
    let cpus = source.map_or(1, |source| source.cpus);
    let per_gb = |time: Duration| time.as_secs_f64() / (seen.taken.max(1) as f64 / 1e9);
    Network {
        format: FORMAT,
        kind: KIND.into(),
        haul: env!("CARGO_PKG_VERSION").into(),
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        way: request.way,
        to: request.host.clone(),
        address: arrived.address,
        path: arrived.path.clone(),
        protect: arrived.protect.clone(),
        taken: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs()),
        seconds: seen.seconds,
        joined_in: Some(over.joined_in.as_secs_f64()),
        bytes: seen.taken,
        rtt_min: rtt.unwrap_or_default().as_secs_f64(),
        rtt_median: seen.rtt_median,
        rtt_p99: seen.rtt_p99,
        loss: seen.again as f64 / seen.sent.max(1) as f64,
        mtu: seen.mtu,
        mss: seen.mss,
        reordering: seen.reordering,
        reorderings: seen.reorderings,
        near: arrived.near,
        far: arrived.far,
        limited_by: recommended
            .as_ref()
            .map_or(String::new(), |best| judge::limited_by(&points, best, (cpus, whose))),
        advice: source.zip(sink).and_then(|(source, sink)| judge::advice(rtt, source, sink, &points)),
        points,
        left_out,
        best,
        recommended,
        cpu_near: Some(per_gb(over.cpu_near)),
        cpu_far: over.cpu_far.map(per_gb),
        remarks,
    }
}

/// Hears the session, and passes its notes on.
struct Notes {
    tell: Arc<dyn Fn(Event) + Send + Sync>,
}

impl Observer for Notes {
    fn event(&self, event: api::Event) {
        if let api::Event::Note(text) = event {
            (self.tell)(Event::Note(text));
        }
    }
}
