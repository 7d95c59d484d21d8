//! A target in real time: the model behind a lock, and a thread that answers when requests are due.
//!
//! In: requests with what is to be done when they are served. Out: these calls, on the target's own thread,
//! and figures.
//! Invariants: each call is made once; a frozen target blocks nobody but those who wait for it; the lateness
//! of the thread does not add up, for the model starts the next request when the last one was due.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::service::{Congestion, Nanos, Request, ServiceSpec, Target};

/// What is done when a request is served.
pub type Done = Box<dyn FnOnce() + Send>;

/// One target and its thread, which ends with it.
pub struct Lane {
    shared: Arc<Shared>,
    /// Bytes of writes that were answered before they were done.
    dirty: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<LaneState>,
    changed: Condvar,
    epoch: Instant,
}

struct LaneState {
    target: Target<Done>,
    ended: bool,
    /// From start of service to its end.
    service: Histogram,
    /// From arrival to the end of service.
    response: Histogram,
    /// From the end of service to the answer: the error of this program.
    late: Histogram,
}

/// Room in a write-back cache, given back when dropped.
pub struct Dirty {
    of: Arc<AtomicU64>,
    len: u64,
}

impl Drop for Dirty {
    fn drop(&mut self) {
        self.of.fetch_sub(self.len, Ordering::Relaxed);
    }
}

impl Lane {
    pub fn start(number: usize, spec: ServiceSpec, seed: u64) -> std::io::Result<Lane> {
        let state = LaneState {
            target: Target::new(spec, seed),
            ended: false,
            service: Histogram::default(),
            response: Histogram::default(),
            late: Histogram::default(),
        };
        let shared =
            Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new(), epoch: Instant::now() });
        let of_thread = shared.clone();
        let thread =
            std::thread::Builder::new().name(format!("target-{number}")).spawn(move || of_thread.run())?;
        Ok(Lane { shared, dirty: Arc::default(), thread: Some(thread) })
    }

    /// Has a request served; `request.tag` is called when it is, at once if the target takes no time.
    pub fn submit(&self, request: Request<Done>) {
        let mut state = self.shared.lock();
        if state.target.is_instant() {
            state.target.count(request.write, request.len);
            state.service.add(0);
            state.response.add(0);
            drop(state);
            (request.tag)();
            return;
        }
        let now = self.shared.now();
        let due_before = state.target.next_due();
        state.target.submit(now, request);
        if state.target.next_due() != due_before {
            self.shared.changed.notify_one();
        }
    }

    /// Room for `len` bytes in the target's write-back cache, if there is.
    pub fn take_dirty(&self, len: u64) -> Option<Dirty> {
        let most = self.shared.lock().target.spec().write_back;
        let fits = |held: u64| (held + len <= most).then_some(held + len);
        self.dirty.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        Some(Dirty { of: self.dirty.clone(), len })
    }

    pub fn set_congestion(&self, congestion: Congestion) {
        let mut state = self.shared.lock();
        state.target.set_congestion(self.shared.now(), congestion);
        self.shared.changed.notify_one();
    }

    pub fn congestion(&self) -> Congestion {
        self.shared.lock().target.congestion()
    }

    pub fn spec(&self) -> ServiceSpec {
        self.shared.lock().target.spec().clone()
    }

    pub fn set_spec(&self, spec: ServiceSpec) {
        let mut state = self.shared.lock();
        state.target.set_spec(self.shared.now(), spec);
        self.shared.changed.notify_one();
    }

    /// Figures since the start; times in microseconds.
    pub fn stats(&self) -> Value {
        let state = self.shared.lock();
        let counts = &state.target.counts;
        json!({
            "requests": counts.reads + counts.writes,
            "reads": counts.reads,
            "writes": counts.writes,
            "read_bytes": counts.read_bytes,
            "written_bytes": counts.written_bytes,
            "seeks": counts.seeks,
            "busy_us": counts.busy / 1000,
            "queue": state.target.queue_len(),
            "queue_max": counts.queue_max,
            "dirty_bytes": self.dirty.load(Ordering::Relaxed),
            "service_mean_us": state.service.mean() / 1000,
            "service_p99_us": state.service.quantile(0.99) / 1000,
            "response_mean_us": state.response.mean() / 1000,
            "response_p99_us": state.response.quantile(0.99) / 1000,
            "late_mean_us": state.late.mean() / 1000,
            "late_p99_us": state.late.quantile(0.99) / 1000,
            "congestion": state.target.congestion(),
        })
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was already reported.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn now(&self) -> Nanos {
        u64::try_from(self.epoch.elapsed().as_nanos()).expect("584 years")
    }

    fn lock(&self) -> MutexGuard<'_, LaneState> {
        self.state.lock().expect("no call is made under this lock")
    }

    fn run(&self) {
        // Without this the kernel may be 50 us late on purpose. If it refuses, the figures say how late it
        // was.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        let mut state = self.lock();
        while !state.ended {
            let now = self.now();
            if let Some(served) = state.target.reap(now) {
                state.service.add(served.end - served.start);
                state.response.add(served.end - served.arrival);
                state.late.add(now - served.end);
                drop(state);
                (served.tag)();
                state = self.lock();
                continue;
            }
            let wait = state.target.next_due().map(|due| Duration::from_nanos(due - now));
            const POISON: &str = "no call is made under this lock";
            state = match wait {
                Some(wait) => self.changed.wait_timeout(state, wait).expect(POISON).0,
                None => self.changed.wait(state).expect(POISON),
            };
        }
    }
}

/// Counts of times, in classes of an eighth of their size.
#[derive(Default)]
struct Histogram {
    counts: Vec<u64>,
    sum: u128,
    all: u64,
}

/// Classes for each power of two.
const FINE: u64 = 8;

impl Histogram {
    fn add(&mut self, time: Nanos) {
        let class = Self::class(time);
        if self.counts.len() <= class {
            self.counts.resize(class + 1, 0);
        }
        self.counts[class] += 1;
        self.sum += u128::from(time);
        self.all += 1;
    }

    fn class(time: Nanos) -> usize {
        if time < FINE {
            return usize::try_from(time).expect("less than FINE");
        }
        let power = u64::from(time.ilog2());
        let class = (power - 2) * FINE + (time >> (power - 3)) - FINE;
        usize::try_from(class).expect("at most 64 * FINE")
    }

    /// The least time of a class.
    fn least(class: usize) -> Nanos {
        let class = class as u64;
        if class < FINE {
            return class;
        }
        (FINE + class % FINE) << (class / FINE - 1)
    }

    fn mean(&self) -> Nanos {
        u64::try_from(self.sum / u128::from(self.all.max(1))).expect("a mean of u64")
    }

    /// The least time of the class in which the quantile lies.
    fn quantile(&self, share: f64) -> Nanos {
        let rank = ((self.all as f64 * share).ceil() as u64).max(1);
        let mut below = 0;
        let class = self.counts.iter().position(|count| {
            below += count;
            below >= rank
        });
        class.map_or(0, Self::least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// Goal: the classes of the histogram are in order, fine enough, and without gaps.
    /// Method: the least time of each class, and the one before it; quantiles of known times.
    #[test]
    fn histogram_classes_tile_the_times() {
        for class in 1..61 * FINE as usize {
            let least = Histogram::least(class);
            assert_eq!(Histogram::class(least), class);
            assert_eq!(Histogram::class(least - 1), class - 1);
        }
        let mut histogram = Histogram::default();
        (1..=1000).for_each(|time| histogram.add(time * 1000));
        let p99 = histogram.quantile(0.99);
        assert!((870_000..=990_000).contains(&p99), "{p99}");
        assert_eq!(histogram.mean(), 500_500);
    }

    /// Goal: a request is not answered sooner than the model says, each once; a frozen lane answers after the
    /// thaw only.
    /// Method: requests of a few milliseconds on a real lane; the frost is seen through another lane, without
    /// a clock.
    #[test]
    fn lanes_are_never_faster_than_their_model() {
        let spec = ServiceSpec { overhead_us: 3000, ..ServiceSpec::default() };
        let (slow, quick) = (Lane::start(0, spec.clone(), 1).unwrap(), Lane::start(1, spec, 1).unwrap());
        let (tell, told) = channel();
        let submit = |lane: &Lane, tag: u32| {
            let tell = tell.clone();
            let tag: Done = Box::new(move || tell.send(tag).unwrap());
            lane.submit(Request { object: 1, offset: 0, len: 1, write: false, tag });
        };
        let start = Instant::now();
        (0..4).for_each(|tag| submit(&slow, tag));
        assert_eq!(told.iter().take(4).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert!(start.elapsed() >= Duration::from_millis(12));

        slow.set_congestion(Congestion { frozen: true, ..Congestion::default() });
        submit(&slow, 10);
        (20..23).for_each(|tag| submit(&quick, tag));
        assert_eq!(told.iter().take(3).collect::<Vec<_>>(), [20, 21, 22]);
        assert!(told.try_recv().is_err());
        slow.set_congestion(Congestion::default());
        assert_eq!(told.recv().unwrap(), 10);
        assert_eq!(slow.stats()["requests"], 5);
    }
}
