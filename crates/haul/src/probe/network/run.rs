//! A probe of a network from beginning to end.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use haul_core::transfer::SessionEnd;

use super::bench::{Bench, Seen, quantile};
use super::sweep::{Can, Sweep};
use super::{End, Event, FORMAT, KIND, Network, NetworkError, Request, TIME_LIMIT_MAX, judge};
use crate::api::{self, Control, Observer};
use crate::copy::trial::{self, Met, Over};
use crate::driver::trial::SharedTrial;
use crate::transport::path::EndFacts;

/// Settings that a request may name.
const STREAMS: std::ops::RangeInclusive<u16> = 1..=64;

/// Probes the network to a host. Blocks; events come from haul's own threads.
///
/// # Errors
/// See [`NetworkError`]. A session that broke off after something was measured is a result, with a remark.
pub fn run(
    request: &Request,
    observer: Arc<dyn Fn(Event) + Send + Sync>,
    control: &Control,
) -> Result<Network, NetworkError> {
    check(request)?;
    // Ends this session alone: the caller's may be in use elsewhere.
    let (asked, ours) = (control.clone(), Control::new());
    let notes: Arc<dyn Observer> = Arc::new(Notes { tell: observer.clone(), asked, ours: ours.clone() });
    let mut made: Option<(Arc<Mutex<Option<Bench>>>, Arrived)> = None;
    let outcome = trial::run((&request.host, &request.remote), &notes, &ours, |met| {
        let (sweep, settings) = sweep(request, met)?;
        let arrived = Arrived::of(met);
        observer(Event::Started {
            address: met.address,
            path: met.path.clone(),
            rtt: met.rtt.unwrap_or_default().as_secs_f64(),
            settings,
        });
        let limits = (request.time_limit, request.bytes_limit.unwrap_or(u64::MAX));
        let tell = observer.clone();
        let bench =
            Bench::new(sweep, met.rtt.unwrap_or_default(), limits, ours.clone(), Box::new(move |e| tell(e)));
        let bench = Arc::new(Mutex::new(Some(bench)));
        made = Some((bench.clone(), arrived));
        Ok(Arc::new(Mutex::new(Shared(bench))) as SharedTrial)
    });
    let stopped = control.stopped();
    let over = match outcome {
        Err(_) if stopped => return Err(NetworkError::Stopped),
        Err(text) => return Err(NetworkError::Session(text)),
        Ok(over) => over,
    };
    let Some((bench, arrived)) = made else { return Err(NetworkError::Stopped) };
    let bench = bench.lock().unwrap_or_else(PoisonError::into_inner).take();
    let (sweep, seen) = bench.expect("taken once, here").into_parts();
    if stopped {
        return Err(NetworkError::Stopped);
    }
    if sweep.points().is_empty() {
        let why = match &over.end {
            SessionEnd::Failed(failure) => failure.text.to_string(),
            _ => "nothing arrived in the time: give it more".into(),
        };
        return Err(NetworkError::Session(why));
    }
    Ok(finish(request, &arrived, sweep, seen, &over))
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

/// What is to be tried over what was met, and the number of settings.
fn sweep(request: &Request, met: &Met) -> Result<(Sweep, usize), String> {
    let missing = request.only.controls.iter().find(|name| !met.controls.contains(name));
    if let Some(name) = missing.filter(|_| !met.controls.is_empty()) {
        let can = met.controls.join(", ");
        return Err(format!("congestion control '{name}' cannot be used here; possible are: {can}"));
    }
    let fixed = |limit: Option<u64>| limit.map_or(0, |bytes| bytes / 2);
    let far = met.far.map_or(0, |far| fixed(far.limits.rmem_fixed));
    let window = match met.controls.is_empty() {
        true => 0,
        false => fixed(met.near.limits.wmem_fixed).min(far),
    };
    let can = Can { streams: met.streams, controls: met.controls.clone(), window };
    let sweep = Sweep::new(&can, &request.only, request.full);
    let settings = sweep.settings();
    Ok((sweep, settings))
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
    fn of(met: &Met) -> Arrived {
        let end = |facts: EndFacts| End { limits: facts.limits, cpus: facts.cpus };
        Arrived {
            address: met.address,
            path: met.path.clone(),
            protect: met.protect.clone(),
            rtt: met.rtt,
            near: end(met.near),
            far: met.far.map(end),
            own: met.controls.first().cloned().unwrap_or_default(),
            direct: !met.controls.is_empty(),
        }
    }
}

fn finish(request: &Request, arrived: &Arrived, sweep: Sweep, seen: Seen, over: &Over) -> Network {
    let Seen { mut rtts, mut remarks, .. } = seen;
    rtts.sort_by(f32::total_cmp);
    let (points, left_out) = sweep.into_parts();
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
        rtt if rtt > 0.0 => Some(Duration::from_secs_f64(rtt)),
        _ => arrived.rtt,
    };
    let per_gb = |time: Duration| time.as_secs_f64() / (seen.taken.max(1) as f64 / 1e9);
    Network {
        format: FORMAT,
        kind: KIND.into(),
        haul: env!("CARGO_PKG_VERSION").into(),
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        to: request.host.clone(),
        address: arrived.address,
        path: arrived.path.clone(),
        protect: arrived.protect.clone(),
        taken: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs()),
        seconds: seen.seconds,
        bytes: seen.taken,
        rtt_min: rtt.unwrap_or_default().as_secs_f64(),
        rtt_median: quantile(&rtts, 0.5),
        rtt_p99: quantile(&rtts, 0.99),
        loss: seen.again as f64 / seen.sent.max(1) as f64,
        mtu: seen.mtu,
        mss: seen.mss,
        reordering: seen.reordering,
        reorderings: seen.reorderings.values().map(|n| u64::from(*n)).sum(),
        near: arrived.near,
        far: arrived.far,
        limited_by: recommended
            .as_ref()
            .map_or(String::new(), |best| judge::limited_by(&points, best, arrived.near.cpus)),
        advice: judge::advice(rtt, &arrived.near, arrived.far.as_ref(), &points),
        points,
        left_out,
        best,
        recommended,
        cpu_near: Some(per_gb(over.cpu_near)),
        cpu_far: over.cpu_far.map(per_gb),
        remarks,
    }
}

/// The bench, which stays here when the session is over.
struct Shared(Arc<Mutex<Option<Bench>>>);

impl crate::driver::trial::Trial for Shared {
    fn look(&mut self, look: &crate::driver::trial::Look<'_>) -> Option<crate::driver::trial::Turn> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).as_mut()?.look(look)
    }

    fn refused(&mut self, why: String) {
        if let Some(bench) = self.0.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            bench.refused(why);
        }
    }
}

/// Hears the session: passes its notes on, and ends it when the caller wants that.
struct Notes {
    tell: Arc<dyn Fn(Event) + Send + Sync>,
    asked: Control,
    ours: Control,
}

impl Observer for Notes {
    fn event(&self, event: api::Event) {
        match event {
            api::Event::Note(text) => (self.tell)(Event::Note(text)),
            // About five times a second.
            api::Event::Progress(_) if self.asked.stopped() => self.ours.stop(),
            _ => {}
        }
    }
}
