//! How busy the processors of both ends are while payload moves, for the verdict and the report.
//!
//! In: `/proc/stat` and this process's processor time, now and then; what the other end says of its own. Out:
//! the far end's message; at the near end both. Each stretch of time counts by the payload that moved in it:
//! what a copy waits for at its start and end says nothing of its rate.

use std::cell::Cell;
use std::fs;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use haul_core::stage::Processors;
use haul_core::wire::Message;
use rustix::thread::{CpuSet, sched_getaffinity};

use super::{Watch, cpu_time};
use haul_transport::stream::ControlHandle;

/// Processors are looked at so often.
const EVERY: Duration = Duration::from_millis(500);
/// The kernel counts in steps of 10 ms: in less time than this it says little.
const SHORTEST: Duration = Duration::from_millis(100);

/// One end's part in it.
pub(super) struct Load {
    count: u16,
    allowed: Option<CpuSet>,
    last: Option<Look>,
    /// Busy shares times payload bytes, and these bytes.
    sum: f64,
    bytes: f64,
    far: Cell<Option<Processors>>,
}

/// What is known at one time.
struct Look {
    at: Instant,
    ticks: Option<Ticks>,
    own: Duration,
    payload: u64,
}

impl Load {
    pub(super) fn new() -> Load {
        let count = available_parallelism().map_or(1, |n| u16::try_from(n.get()).unwrap_or(u16::MAX));
        let allowed = sched_getaffinity(None).ok();
        let mut load = Load { count, allowed, last: None, sum: 0.0, bytes: 0.0, far: Cell::new(None) };
        load.take(Instant::now(), 0);
        load
    }

    /// Looks, if it is time. `payload`: bytes that this end sent or received.
    pub(super) fn look(&mut self, payload: impl FnOnce() -> u64) {
        let now = Instant::now();
        if self.last.as_ref().is_none_or(|last| now.duration_since(last.at) >= EVERY) {
            self.take(now, payload());
        }
    }

    /// The session is over: what this end found. The far end tells the other, before its report.
    pub(super) fn finish(
        &mut self,
        payload: u64,
        control: &ControlHandle,
        watch: &Watch,
    ) -> Option<Processors> {
        let now = Instant::now();
        if self.last.as_ref().is_some_and(|last| now.duration_since(last.at) >= SHORTEST) {
            self.take(now, payload);
        }
        let own = (self.bytes > 0.0).then(|| {
            let busy = (self.sum / self.bytes).clamp(0.0, 1.0) * f64::from(Processors::ALL);
            Processors { count: self.count, busy: busy.round() as u16 }
        });
        if let Some(own) = own.filter(|_| !watch.is_near()) {
            control.send(Message::Processors(own));
        }
        own
    }

    /// The other end says something, maybe of its processors. Whether it was that.
    pub(super) fn hear(&self, message: &Message) -> bool {
        let Message::Processors(far) = message else { return false };
        self.far.set(Some(*far));
        true
    }

    /// What the other end said.
    pub(super) fn far(&self) -> Option<Processors> {
        self.far.get()
    }

    fn take(&mut self, at: Instant, payload: u64) {
        let ticks = fs::read_to_string("/proc/stat").ok();
        let ticks = ticks.map(|text| Ticks::of(&text, |cpu| self.may_use(cpu)));
        let now = Look { at, ticks, own: cpu_time(), payload };
        if let Some(last) = &self.last {
            let bytes = now.payload.saturating_sub(last.payload) as f64;
            self.sum += busy(last, &now, self.count) * bytes;
            self.bytes += bytes;
        }
        self.last = Some(now);
    }

    fn may_use(&self, cpu: usize) -> bool {
        self.allowed.as_ref().is_none_or(|allowed| cpu < CpuSet::MAX_CPU && allowed.is_set(cpu))
    }
}

/// How busy the `count` processors that this process may use were between two looks, 0 to 1: by whatever runs
/// on them, or, where a quota ends before they do, by this process.
fn busy(from: &Look, to: &Look, count: u16) -> f64 {
    let machine = match (&from.ticks, &to.ticks) {
        (Some(from), Some(to)) if to.all > from.all => {
            1.0 - to.idle.saturating_sub(from.idle) as f64 / (to.all - from.all) as f64
        }
        _ => 0.0,
    };
    let time = to.at.duration_since(from.at).as_secs_f64() * f64::from(count.max(1));
    let own = to.own.saturating_sub(from.own).as_secs_f64() / time.max(1e-9);
    machine.max(own).clamp(0.0, 1.0)
}

/// Clock ticks of processors since boot.
#[derive(Debug, Default, PartialEq, Eq)]
struct Ticks {
    all: u64,
    /// Nothing was to be done, or only storage was waited for.
    idle: u64,
}

impl Ticks {
    /// Of the text of `/proc/stat`, the processors that are `allowed`; lines of another form count for
    /// nothing.
    fn of(text: &str, allowed: impl Fn(usize) -> bool) -> Ticks {
        let mut sum = Ticks::default();
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            let number = words.next().and_then(|word| word.strip_prefix("cpu")?.parse::<usize>().ok());
            if !number.is_some_and(&allowed) {
                continue;
            }
            // User, nice, system, idle, iowait, irq, softirq, steal; guests are in the first two.
            let ticks: Vec<u64> = words.take(8).map_while(|word| word.parse().ok()).collect();
            if ticks.len() < 5 {
                continue;
            }
            sum.all = ticks.iter().fold(sum.all, |sum, ticks| sum.saturating_add(*ticks));
            sum.idle = sum.idle.saturating_add(ticks[3]).saturating_add(ticks[4]);
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 10 1 20 100 7 2 3 5 4 0\ncpu1 1 0 2 50 0 0 0 0 0 0\n\
        cpu2 x\ncpux 1 1 1 1 1 1 1 1\nintr 5 6 7 8 9 10\n";

    /// Goal: of `/proc/stat` the processors count that this process may use, each once, guests not twice,
    /// storage that is waited for as idle and what the host took as not.
    #[test]
    fn ticks_are_those_of_own_processors() {
        assert_eq!(Ticks::of(STAT, |_| true), Ticks { all: 148 + 53, idle: 107 + 50 });
        assert_eq!(Ticks::of(STAT, |cpu| cpu == 1), Ticks { all: 53, idle: 50 });
        assert_eq!(Ticks::of("", |_| true), Ticks::default());
    }

    /// Goal: the machine's share or the own one, whichever is more, and never more than all; no clock that
    /// stands or runs back makes one up.
    #[test]
    fn busy_is_the_machines_share_or_the_own_one() {
        let start = Instant::now();
        let look = |ms: u64, all, idle, own| Look {
            at: start + Duration::from_millis(ms),
            ticks: Some(Ticks { all, idle }),
            own: Duration::from_millis(own),
            payload: 0,
        };
        let first = look(0, 1000, 500, 100);
        let of = |to: &Look| (busy(&first, to, 2) * 1000.0).round();
        assert_eq!(of(&look(1000, 1200, 510, 200)), 950.0, "190 of 200 ticks");
        assert_eq!(of(&look(1000, 1200, 690, 2060)), 980.0, "98 % of two processors for itself: a quota");
        assert_eq!(of(&look(1000, 1000, 500, 9100)), 1000.0);
        assert_eq!(of(&look(0, 900, 400, 50)), 0.0);
        assert_eq!(of(&Look { ticks: None, ..look(1000, 0, 0, 1100) }), 500.0);
    }

    /// Goal: time counts by the payload that moved in it.
    /// Method: a busy stretch with payload between a long idle one and another, which have none.
    #[test]
    fn stretches_without_payload_do_not_count() {
        let mut load = Load { last: None, sum: 0.0, bytes: 0.0, ..Load::new() };
        let now = Instant::now();
        load.take(now, 0);
        load.take(now + Duration::from_secs(1000), 0);
        assert_eq!((load.sum, load.bytes), (0.0, 0.0));
        // Processor time of a second within none.
        load.last.as_mut().expect("a look").own = Duration::ZERO;
        while cpu_time() < Duration::from_millis(5) {}
        load.take(now + Duration::from_secs(1000) + Duration::from_micros(1), 10);
        load.take(now + Duration::from_secs(9000), 10);
        assert_eq!((load.sum, load.bytes), (10.0, 10.0));
    }
}
