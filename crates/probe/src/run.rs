//! A probe from its scratch file to its figures.
//!
//! In: a plan, somebody who listens, a stop. Out: a [`Probe`]. The scratch file is filled first, which takes
//! at most a quarter of the time, then [`Sweep`] says what is measured and [`Bench`] measures it. What goes
//! wrong with a part of it (direct I/O, a cache that stays, settings that are too slow) is a remark.

use std::cell::Cell;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::io::Errno;

use super::measure::{Bench, Trouble};
use super::scratch::Scratch;
use super::sweep::{Grid, IN_FLIGHT_MAX, Spent, Sweep, Task, in_flight};
use super::{
    Direction, FORMAT, Io, Pattern, Plan, Probe, ProbeError, ProbeEvent, ProbeProgress, Setting,
    StoragePhase, judge,
};
use haul::api::Handle;
use haul_storage::io::{self, Engine, EngineConfig};
use haul_storage::options::Order;

/// Requests in flight that the engine has room for: the deepest setting and a sync.
const ENGINE_DEPTH: usize = 257;
/// Progress is told this often.
const TELL_EVERY: Duration = Duration::from_millis(200);
/// How the scratch file is written, and its size's unit.
const FILL_REQUEST: u32 = 1 << 20;
const FILL_DEPTH: u16 = 4;
/// A step of the filling ends with a sync: the first is so long, the others take about this many seconds.
const FILL_FIRST: u64 = 4 << 20;
const FILL_SECONDS: f64 = 0.5;
/// Filling takes this share of the time and of the bytes at most.
const FILL_SHARE: f64 = 0.25;
/// What storage is taken to give before anything is known of it, bytes per second: a disk.
const RATE_UNKNOWN: f64 = 1e8;
/// Kept of the time for giving the scratch file back: a share, and seconds at most.
const RESERVE_SHARE: f64 = 0.02;
const RESERVE_MAX: f64 = 1.0;
/// Measurements are to end in this share of the time, so that a slow one at the end is not cut off.
const SWEEP_SHARE: f64 = 0.95;

/// Runs a probe within the limits of its plan. No scratch file stays, however it ends.
///
/// # Errors
/// Storage refused what no probe can do without, or `stop` was called ([`ProbeError::Stopped`]).
pub fn run(plan: &Plan, observer: &dyn Fn(ProbeEvent), stop: &Handle) -> Result<Probe, ProbeError> {
    let config =
        EngineConfig { name: plan.request.engine, depth: ENGINE_DEPTH, registered_max: IN_FLIGHT_MAX };
    let opened = io::open(&config);
    let path = plan.request.path.clone();
    let engine = opened.map_err(|source| ProbeError::Io { op: "open an I/O engine for", path, source })?;
    run_on(plan, engine, observer, stop)
}

/// [`run`] with a given engine.
fn run_on(
    plan: &Plan,
    engine: Box<dyn Engine>,
    observer: &dyn Fn(ProbeEvent),
    stop: &Handle,
) -> Result<Probe, ProbeError> {
    let start = Instant::now();
    let path = &plan.request.path;
    let failed = |op: &'static str| move |source| ProbeError::Io { op, path: path.clone(), source };
    let scratch = match &plan.request.file {
        Some(file) => Scratch::of_file(file)?,
        None => Scratch::create(path, plan.size)?,
    };
    let facts = engine.facts();
    let mut remarks = facts.remarks.clone();
    if scratch.direct.is_none() {
        remarks.push("the file system refuses direct I/O: only buffered I/O was measured".into());
    }
    if scratch.removed > 0 {
        remarks.push(format!("{} scratch files of dead probes were removed", scratch.removed));
    }
    observer(ProbeEvent::Started { engine: facts.name.into(), size: plan.size, remarks: remarks.clone() });
    let teller = Teller {
        observer,
        start,
        last: Cell::new(None),
        state: Cell::new((StoragePhase::Fill, 0, plan.settings)),
        seconds_left: Cell::new(plan.seconds_max),
    };
    let pulse = |bytes| teller.tell(bytes);
    let reserve = (plan.seconds_max * RESERVE_SHARE).min(RESERVE_MAX);
    let end = Duration::from_secs_f64((plan.seconds_max - reserve).max(0.0));
    let mut bench = Bench::new(engine, scratch, start, end, stop, &pulse);
    let mut probing = Probing { plan, bench: &mut bench, start, end, remarks };
    let rate = probing.fill()?;
    let mut only_buffered = probing.bench.scratch.direct.is_none();
    let mut grid = Grid::new(&plan.request, probing.bench.size);
    if only_buffered {
        if plan.request.only.io == [Io::Direct] {
            return Err(failed("direct I/O, and nothing else, was asked for on")(Errno::INVAL.into()));
        }
        grid.forget_direct();
    }
    let limit = Spent { bytes: plan.bytes_max, seconds: end.as_secs_f64() * SWEEP_SHARE };
    let mut sweep = Sweep::new(grid, limit, rate);
    while let Some(task) = sweep.next(probing.spent()) {
        let (done, total) = sweep.done_of();
        teller.state.set((sweep.phase(), done, total));
        teller.seconds_left.set(sweep.seconds_left(probing.spent()));
        match probing.bench.measure(&task) {
            Ok(point) => {
                observer(ProbeEvent::Point(point.clone()));
                sweep.record(point);
            }
            Err(Trouble::TooSlow) => sweep.left_out(),
            Err(Trouble::NoDirect) if !only_buffered => {
                only_buffered = true;
                sweep.forget_direct();
                probing
                    .remarks
                    .push("storage refused direct requests: only buffered I/O was measured".into());
            }
            Err(Trouble::OutOfTime) => {
                let stuck = probing.bench.engine.in_flight();
                let text = if stuck > 0 { ", with requests that storage had not answered" } else { "" };
                probing.remarks.push(format!("the time was over in the middle of a measurement{text}"));
                break;
            }
            Err(trouble) => return Err(probing.error(trouble)),
        }
    }
    if sweep.points().is_empty() {
        return Err(probing.error(Trouble::TooSlow));
    }
    Ok(probing.finish(&sweep, facts.name))
}

struct Probing<'a, 'b> {
    plan: &'a Plan,
    bench: &'a mut Bench<'b>,
    start: Instant,
    end: Duration,
    remarks: Vec<String>,
}

impl Probing<'_, '_> {
    fn spent(&self) -> Spent {
        Spent { bytes: self.bench.bytes(), seconds: self.start.elapsed().as_secs_f64() }
    }

    /// Fills the scratch file, and says at what rate, bytes per second.
    fn fill(&mut self) -> Result<f64, ProbeError> {
        if self.plan.request.file.is_some() {
            self.bench.size = self.plan.size;
            self.bench.scratch.drop_cache();
            return Ok(RATE_UNKNOWN);
        }
        let (begun, most) = (Instant::now(), self.end.as_secs_f64() * FILL_SHARE);
        let mut step = FILL_FIRST;
        let mut rate = FILL_FIRST as f64;
        while self.bench.size < self.plan.size {
            let left = most - begun.elapsed().as_secs_f64();
            if self.bench.size > 0 && left <= 0.0 {
                break;
            }
            let bytes = step.min(self.plan.size - self.bench.size);
            let io = if self.bench.scratch.direct.is_some() { Io::Direct } else { Io::Buffered };
            let setting = Setting { request_size: FILL_REQUEST, depth: FILL_DEPTH, order: Order::None, io };
            let task = Task {
                phase: StoragePhase::Fill,
                direction: Direction::Write,
                pattern: Pattern::Sequential,
                setting,
                bytes,
                bytes_min: bytes.min(in_flight(&setting)),
                seconds: left.max(0.0),
                rate,
            };
            match self.bench.measure(&task) {
                Ok(point) => {
                    self.bench.size += point.bytes / u64::from(FILL_REQUEST) * u64::from(FILL_REQUEST);
                    rate = point.rate;
                    step = (rate * FILL_SECONDS) as u64;
                    step = step.clamp(FILL_FIRST, super::sweep::POINT_BYTES_MAX);
                    step -= step % u64::from(FILL_REQUEST);
                    if point.bytes < u64::from(FILL_REQUEST) {
                        break;
                    }
                }
                Err(Trouble::NoDirect) if self.bench.scratch.direct.is_some() => {
                    self.bench.scratch.direct = None;
                    self.remarks
                        .push("storage refused direct requests: only buffered I/O was measured".into());
                }
                Err(trouble) => return Err(self.error(trouble)),
            }
        }
        self.bench.scratch.drop_cache();
        if self.bench.scratch.is_cached(self.bench.size) == Some(true) {
            self.remarks.push(
                "the page cache does not let go of the scratch file: buffered reads measured memory".into(),
            );
        }
        self.bench.scratch.drop_cache();
        if self.bench.size < self.plan.size {
            self.remarks.push(format!(
                "the scratch file has {} bytes instead of {}: writing it took its share of the time",
                self.bench.size, self.plan.size
            ));
        }
        Ok(rate)
    }

    fn error(&self, trouble: Trouble) -> ProbeError {
        let path = self.bench.scratch.dir().to_owned();
        match trouble {
            Trouble::Stopped => ProbeError::Stopped,
            Trouble::Io { op, errno } => ProbeError::Io { op, path, source: errno.into() },
            Trouble::Engine(source) => ProbeError::Io { op: "drive the scratch file in", path, source },
            Trouble::OutOfTime | Trouble::TooSlow | Trouble::NoDirect => ProbeError::Io {
                op: "measure",
                path,
                source: std::io::Error::new(
                    std::io::ErrorKind::TimedOut,
                    "storage was too slow for the time limit: give it more time",
                ),
            },
        }
    }

    fn finish(mut self, sweep: &Sweep, engine: &str) -> Probe {
        let points = sweep.points();
        if sweep.left_out_count() > 0 {
            self.remarks.push(format!(
                "{} measurements were left out: the limits of bytes and time had no room for them",
                sweep.left_out_count()
            ));
        }
        let (read_best, write_best) = (sweep.best(Direction::Read), sweep.best(Direction::Write));
        let mut mistakes = judge::mistakes(&points, read_best.as_ref(), Direction::Read);
        mistakes.extend(judge::mistakes(&points, write_best.as_ref(), Direction::Write));
        Probe {
            format: FORMAT,
            haul: env!("CARGO_PKG_VERSION").into(),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            path: self.plan.request.path.to_string_lossy().into_owned(),
            storage: self.plan.identity.clone(),
            taken: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs()),
            engine: engine.into(),
            size: self.bench.size,
            seconds: self.start.elapsed().as_secs_f64(),
            bytes_read: self.bench.bytes_read,
            bytes_written: self.bench.bytes_written,
            read_flatness: judge::flatness(&points, Direction::Read),
            write_flatness: judge::flatness(&points, Direction::Write),
            points,
            read_best,
            write_best,
            mistakes,
            remarks: self.remarks,
        }
    }
}

/// Tells progress, not too often.
struct Teller<'a> {
    observer: &'a dyn Fn(ProbeEvent),
    start: Instant,
    last: Cell<Option<Instant>>,
    /// StoragePhase, measurements made, measurements in all.
    state: Cell<(StoragePhase, usize, usize)>,
    seconds_left: Cell<f64>,
}

impl Teller<'_> {
    fn tell(&self, bytes: u64) {
        if self.last.get().is_some_and(|last| last.elapsed() < TELL_EVERY) {
            return;
        }
        self.last.set(Some(Instant::now()));
        let (phase, done, points_total) = self.state.get();
        let seconds = self.start.elapsed().as_secs_f64();
        let seconds_left = self.seconds_left.get();
        let progress = ProbeProgress { phase, done, points_total, bytes, seconds, seconds_left };
        (self.observer)(ProbeEvent::Progress(progress));
    }
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
