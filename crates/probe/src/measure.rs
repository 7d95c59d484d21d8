//! One measurement: a setting, a pattern, so many bytes.
//!
//! In: a [`Task`]. Out: a [`Point`]. Each of the `depth` slots is an issuer as XDD's threads are, all over
//! one engine. A measurement ends when it moved enough or its time is over; what was written is synced within
//! it.
//!
//! Sequential measurements begin where the last one ended and go round the scratch file, so that a cache
//! below the file system answers as little as possible. What is written is noise that differs from page to
//! page, so that neither compression nor deduplication answers either. Pages leave the page cache after each
//! buffered measurement.
//!
//! Service time is submit to complete; of a buffered write, which completes in memory, submit to the end of
//! the sync.
//!
//! Invariants: never more bytes are submitted than the task has. Nothing waits for storage beyond the hard
//! end or a stop: what is in flight then is left to the engine, and the bench is of no more use.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use haul_core::wire::credit_cost;
use rustix::io::Errno;

use super::deal::Deal;
use super::scratch::Scratch;
use super::sweep::{Task, in_flight};
use super::{Direction, Io, Pattern, Point, StoragePhase};
use haul::api::Handle;
use haul_base::buffer::{Buffer, Part, Pool};
use haul_storage::io::{Engine, IoDone, IoFile, IoKind, IoOp};

/// The engine is asked for news at least this often, to notice a stop.
const TICK: Duration = Duration::from_millis(50);
/// Service times kept of one measurement.
const SERVICE_MAX: usize = 1 << 16;
/// Interrupted requests that are made again in one measurement.
const RETRIES_MAX: usize = 1000;
/// Written noise differs from page to page.
const PAGE: usize = 4096;
/// The key of a sync; requests have the numbers of their slots.
const SYNC: u64 = u64::MAX;

/// Why there is no point.
#[derive(Debug)]
pub(super) enum Trouble {
    Stopped,
    /// The probe's time is over, perhaps with requests in flight that storage does not answer.
    OutOfTime,
    /// Too little was moved in the time that there was.
    TooSlow,
    /// Storage does not take direct requests.
    NoDirect,
    Io {
        op: &'static str,
        errno: Errno,
    },
    /// The engine is broken, or memory is not to be had.
    Engine(std::io::Error),
}

/// What measures: engine, scratch file, buffers.
pub(super) struct Bench<'a> {
    pub(super) engine: Box<dyn Engine>,
    pub(super) scratch: Scratch,
    /// Bytes of the scratch file that are filled.
    pub(super) size: u64,
    pub(super) bytes_read: u64,
    pub(super) bytes_written: u64,
    arena: Option<Buffer>,
    noise: Noise,
    /// Where the next sequential measurement begins.
    cursor: u64,
    start: Instant,
    /// Nothing is waited for after this time since `start`.
    end: Duration,
    stop: &'a Handle,
    /// Called while a measurement runs, with all bytes so far.
    pulse: &'a dyn Fn(u64),
}

/// A measurement under way.
struct Flight {
    file: Arc<IoFile>,
    kind: IoKind,
    request: usize,
    deal: Deal,
    parts: Vec<Option<Part>>,
    /// Of each slot: the number of its request.
    numbers: Vec<u64>,
    offsets: Offsets,
    submitted: u64,
    moved: u64,
    retries: usize,
    services: Vec<f64>,
    /// Buffered writes: when they were submitted, for they are done only with the sync.
    unsynced: Option<Vec<Instant>>,
}

/// Where request `i` goes, in requests.
enum Offsets {
    Sequential { first: u64, slots: u64 },
    Random(Vec<u64>),
}

impl Offsets {
    fn at(&self, i: u64) -> u64 {
        match self {
            Offsets::Sequential { first, slots } => (first + i) % slots,
            Offsets::Random(list) => list[i as usize],
        }
    }
}

impl<'a> Bench<'a> {
    pub(super) fn new(
        engine: Box<dyn Engine>,
        scratch: Scratch,
        start: Instant,
        end: Duration,
        stop: &'a Handle,
        pulse: &'a dyn Fn(u64),
    ) -> Bench<'a> {
        let mut seed = [0; 8];
        // The noise only has to differ from that of earlier probes.
        if aws_lc_rs::rand::fill(&mut seed).is_err() {
            seed = std::process::id().to_le_bytes().repeat(2).try_into().unwrap_or_default();
        }
        Bench {
            engine,
            scratch,
            size: 0,
            bytes_read: 0,
            bytes_written: 0,
            arena: None,
            noise: Noise(u64::from_le_bytes(seed)),
            cursor: 0,
            start,
            end,
            stop,
            pulse,
        }
    }

    /// Bytes moved so far, in both directions.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes_read + self.bytes_written
    }

    /// Makes a measurement. The scratch file grows by it if it is of [`StoragePhase::Fill`].
    pub(super) fn measure(&mut self, task: &Task) -> Result<Point, Trouble> {
        let setting = task.setting;
        let file = match setting.io {
            Io::Buffered => self.scratch.buffered.clone(),
            Io::Direct => self.scratch.direct.clone().ok_or(Trouble::NoDirect)?,
        };
        let request = u64::from(setting.request_size);
        let count = task.bytes / request;
        let depth = usize::from(setting.depth).min(count.max(1) as usize);
        let slots = self.size / request;
        let offsets = match (task.phase, task.pattern) {
            (StoragePhase::Fill, _) => Offsets::Sequential { first: slots, slots: u64::MAX },
            (_, Pattern::Sequential) => Offsets::Sequential { first: self.cursor / request, slots },
            (_, Pattern::Random) => Offsets::Random(self.noise.distinct(count, slots)),
        };
        let (kind, op) = match task.direction {
            Direction::Read => (IoKind::Read, "read"),
            Direction::Write => (IoKind::Write, "write"),
        };
        let arena = self.arena(depth * setting.request_size as usize).map_err(Trouble::Engine)?;
        let whole = arena.as_slice().len();
        let parts = arena.split(0, depth * setting.request_size as usize, setting.request_size as usize);
        let in_memory = kind == IoKind::Write && setting.io == Io::Buffered;
        let mut flight = Flight {
            file,
            kind,
            request: setting.request_size as usize,
            deal: Deal::new(setting.order.policy(), depth, count),
            parts: parts.into_iter().map(Some).collect(),
            numbers: vec![0; depth],
            offsets,
            submitted: 0,
            moved: 0,
            retries: RETRIES_MAX,
            services: Vec::new(),
            unsynced: in_memory.then(Vec::new),
        };
        let (cpu, begun) = (cpu_time(), Instant::now());
        match self.fly(&mut flight, task, begun, op) {
            Ok(()) => {}
            Err(Trouble::NoDirect) => {
                // The next measurement must not find what this one left.
                let mut done = VecDeque::new();
                while self.engine.in_flight() > 0 {
                    self.reap(&mut done)?;
                    done.clear();
                }
                return Err(Trouble::NoDirect);
            }
            Err(trouble) => return Err(trouble),
        }
        if kind == IoKind::Write {
            let synced = self.sync(&flight.file)?;
            let waited = flight.unsynced.iter().flatten().map(|from| (synced - *from).as_secs_f64());
            flight.services.extend(waited);
        }
        let seconds = begun.elapsed().as_secs_f64().max(1e-9);
        let cpu_seconds = cpu_time().saturating_sub(cpu).as_secs_f64();
        self.cursor = match task.pattern {
            Pattern::Sequential => (self.cursor + flight.submitted) % self.size.max(request),
            Pattern::Random => self.cursor,
        };
        let parts: Option<Vec<Part>> = flight.parts.into_iter().collect();
        self.arena = parts.map(|parts| Buffer::join(parts, whole));
        if setting.io == Io::Buffered {
            self.scratch.drop_cache();
        }
        if flight.moved == 0 || (flight.moved < task.bytes_min.min(in_flight(&setting))) {
            return Err(Trouble::TooSlow);
        }
        flight.services.sort_by(f64::total_cmp);
        Ok(Point {
            direction: task.direction,
            pattern: task.pattern,
            setting,
            rate: flight.moved as f64 / seconds,
            bytes: flight.moved,
            seconds,
            cpu_seconds,
            service_median: quantile(&flight.services, 0.5),
            service_p99: quantile(&flight.services, 0.99),
        })
    }

    /// Issues requests and takes them back until the task is done.
    fn fly(
        &mut self,
        flight: &mut Flight,
        task: &Task,
        begun: Instant,
        op: &'static str,
    ) -> Result<(), Trouble> {
        let mut done: VecDeque<IoDone> = VecDeque::new();
        let mut open = true;
        loop {
            while open {
                let time_over = begun.elapsed().as_secs_f64() >= task.seconds;
                // What is not on media yet has to get there before the end.
                let pending = match flight.unsynced {
                    Some(_) => flight.submitted,
                    None => (self.engine.in_flight() * flight.request) as u64,
                };
                let left = self.end.saturating_sub(self.start.elapsed()).as_secs_f64();
                let too_late = pending as f64 / task.rate > left;
                if (time_over && flight.submitted >= task.bytes_min) || too_late {
                    open = false;
                    break;
                }
                let Some((slot, number)) = flight.deal.start() else { break };
                self.issue(flight, slot, number)?;
            }
            if self.engine.in_flight() == 0 {
                return Ok(());
            }
            self.reap(&mut done)?;
            for done in done.drain(..) {
                self.land(flight, done, op)?;
            }
        }
    }

    fn issue(&mut self, flight: &mut Flight, slot: usize, number: u64) -> Result<(), Trouble> {
        let mut part = flight.parts[slot].take().expect("a free slot has its part");
        let len = part.len() as u64;
        if flight.kind == IoKind::Write {
            self.noise.stamp(part.as_mut_slice());
            self.bytes_written += len;
        } else {
            self.bytes_read += len;
        }
        flight.submitted += len;
        flight.numbers[slot] = number;
        let op = IoOp {
            key: slot as u64,
            file: flight.file.clone(),
            kind: flight.kind,
            offset: flight.offsets.at(number) * len,
            parts: vec![part],
            pad: 0,
            uncached: false,
        };
        self.submit(op)
    }

    fn submit(&mut self, op: IoOp) -> Result<(), Trouble> {
        let full =
            || Trouble::Engine(std::io::Error::other("the engine takes fewer requests than it was made for"));
        self.engine.submit(op).map_err(|_| full())
    }

    fn land(&mut self, flight: &mut Flight, done: IoDone, op: &'static str) -> Result<(), Trouble> {
        let slot = done.op.key as usize;
        match done.result {
            Ok(moved) => flight.moved += moved as u64,
            Err(Errno::INTR | Errno::AGAIN) if flight.retries > 0 => {
                flight.retries -= 1;
                return self.submit(done.op);
            }
            Err(Errno::INVAL | Errno::OPNOTSUPP) if Arc::ptr_eq(&flight.file, self.direct()) => {
                return Err(Trouble::NoDirect);
            }
            Err(errno) => return Err(Trouble::Io { op, errno }),
        }
        match &mut flight.unsynced {
            Some(list) if list.len() < SERVICE_MAX => list.push(done.submitted),
            None if flight.services.len() < SERVICE_MAX => {
                flight.services.push((done.completed - done.submitted).as_secs_f64());
            }
            _ => {}
        }
        flight.parts[slot] = done.op.parts.into_iter().next();
        flight.deal.end(slot, flight.numbers[slot]);
        Ok(())
    }

    fn direct(&self) -> &Arc<IoFile> {
        self.scratch.direct.as_ref().unwrap_or(&self.scratch.buffered)
    }

    /// Waits until everything written is on media, and says when it was.
    fn sync(&mut self, file: &Arc<IoFile>) -> Result<Instant, Trouble> {
        for _ in 0..RETRIES_MAX {
            self.submit(IoOp {
                key: SYNC,
                file: file.clone(),
                kind: IoKind::Sync,
                offset: 0,
                parts: Vec::new(),
                pad: 0,
                uncached: false,
            })?;
            let mut done = VecDeque::new();
            while done.is_empty() {
                self.reap(&mut done)?;
            }
            match done.pop_front().map(|done| (done.result, done.completed)) {
                Some((Err(Errno::INTR | Errno::AGAIN), _)) => {}
                Some((Err(errno), _)) => return Err(Trouble::Io { op: "sync", errno }),
                Some((Ok(_), completed)) => return Ok(completed),
                None => {}
            }
        }
        Err(Trouble::Io { op: "sync", errno: Errno::INTR })
    }

    /// Takes what ended; looks at stop and time when nothing did.
    fn reap(&mut self, done: &mut VecDeque<IoDone>) -> Result<(), Trouble> {
        let left = self.end.saturating_sub(self.start.elapsed());
        if self.stop.stopped() {
            return Err(Trouble::Stopped);
        }
        if left.is_zero() {
            return Err(Trouble::OutOfTime);
        }
        (self.pulse)(self.bytes());
        self.engine.reap(done, TICK.min(left)).map_err(Trouble::Engine)
    }

    /// Noise in memory, at least `len` bytes.
    fn arena(&mut self, len: usize) -> std::io::Result<Buffer> {
        if let Some(arena) = self.arena.take_if(|arena| arena.as_slice().len() >= len) {
            return Ok(arena);
        }
        self.arena = None;
        let len = len.next_power_of_two();
        let pool = Pool::new(credit_cost(len as u64));
        let mut arena = pool.take(len).map_err(std::io::Error::other)?;
        self.noise.fill(arena.as_mut_slice());
        Ok(arena)
    }
}

/// Fast random numbers (SplitMix64) that nobody's secret depends on.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for word in bytes.chunks_exact_mut(8) {
            word.copy_from_slice(&self.next().to_le_bytes());
        }
    }

    /// Makes each page differ from all that were written before.
    fn stamp(&mut self, bytes: &mut [u8]) {
        for page in bytes.chunks_exact_mut(PAGE) {
            page[..8].copy_from_slice(&self.next().to_le_bytes());
        }
    }

    /// `count` different numbers below `below` (fewer if there are not so many), in random order.
    fn distinct(&mut self, count: u64, below: u64) -> Vec<u64> {
        let count = count.min(below);
        if count > below / 2 {
            let mut all: Vec<u64> = (0..below).collect();
            for i in 0..count {
                let other = i + self.next() % (below - i);
                all.swap(i as usize, other as usize);
            }
            all.truncate(count as usize);
            return all;
        }
        let (mut seen, mut list) = (HashSet::new(), Vec::new());
        while (list.len() as u64) < count {
            let number = self.next() % below;
            if seen.insert(number) {
                list.push(number);
            }
        }
        list
    }
}

/// User and system time of this process.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Of a sorted list; 0 if it is empty.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * share).round() as usize).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: random offsets never repeat and lie in the file, however many are asked for.
    #[test]
    fn random_offsets_are_distinct() {
        let mut noise = Noise(1);
        for (count, below) in [(0, 0), (1, 1), (5, 5), (9, 5), (10, 1000), (600, 1000), (1000, 1000)] {
            let list = noise.distinct(count, below);
            assert_eq!(list.len() as u64, count.min(below));
            assert!(list.iter().all(|number| *number < below));
            assert_eq!(list.iter().collect::<HashSet<_>>().len(), list.len());
        }
    }

    /// Goal: no two pages that are written are the same, also when the same memory is written again.
    #[test]
    fn pages_differ() {
        let mut noise = Noise(1);
        let mut bytes = vec![0; 64 * PAGE];
        noise.fill(&mut bytes);
        let mut seen = HashSet::new();
        for _ in 0..4 {
            noise.stamp(&mut bytes);
            assert!(bytes.chunks(PAGE).all(|page| seen.insert(page.to_vec())));
        }
    }

    /// Goal: the median and the last of few and many.
    #[test]
    fn quantiles_are_of_the_list() {
        assert_eq!(quantile(&[], 0.5), 0.0);
        assert_eq!(quantile(&[3.0], 0.99), 3.0);
        let many: Vec<f64> = (0..=100).map(f64::from).collect();
        assert_eq!((quantile(&many, 0.5), quantile(&many, 0.99)), (50.0, 99.0));
    }
}
