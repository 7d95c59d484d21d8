//! How long a storage target takes: a queue with a service-time model, in virtual time.
//!
//! In: requests with their arrival, and what is wrong with the target just now. Out: the same requests, each
//! with the instant at which it was done. Invariants: no clock is read here, time is an argument; a request
//! that is reaped late does not delay the next one, for that starts when the slot became free; nothing ends
//! while the target is frozen.
//! Left out: an elevator. Requests are served as they came, apart from those that take a free slot of a deep
//! target.

use std::collections::VecDeque;

use fastrand::Rng;
use serde::{Deserialize, Serialize};

/// Nanoseconds since the target was made.
pub type Nanos = u64;

const SECOND: u64 = 1_000_000_000;

/// Most requests that a target serves at once.
pub const DEPTH_MAX: u32 = 4096;

/// What a target can do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServiceSpec {
    /// Bytes a second, shared by all requests in service; 0 is without limit.
    pub read_rate: u64,
    /// Bytes a second, shared by all requests in service; 0 is without limit.
    pub write_rate: u64,
    /// Paid by every request, in its slot, in microseconds.
    pub overhead_us: u64,
    /// Least and most cost of a request that does not begin where the one before ended, in microseconds.
    pub seek_us: [u64; 2],
    /// Cost instead of that when the way is within `short_seek_len` of the same object; microseconds.
    pub short_seek_us: u64,
    /// Bytes; 0 is no discount.
    pub short_seek_len: u64,
    /// Requests served at once: their overhead and seeks overlap, their bytes do not.
    pub depth: u32,
    /// Every request takes up to this share longer, evenly drawn.
    pub jitter: f64,
    /// Bytes of writes that are answered before they are done; 0 is write-through.
    pub write_back: u64,
}

impl Default for ServiceSpec {
    fn default() -> Self {
        ServiceSpec {
            read_rate: 0,
            write_rate: 0,
            overhead_us: 0,
            seek_us: [0, 0],
            short_seek_us: 0,
            short_seek_len: 0,
            depth: 1,
            jitter: 0.0,
            write_back: 0,
        }
    }
}

impl ServiceSpec {
    /// A target by name: `null`, `ssd`, `disk` or `array`.
    pub fn preset(name: &str) -> Option<ServiceSpec> {
        let rates = |rate| ServiceSpec { read_rate: rate, write_rate: rate, ..ServiceSpec::default() };
        Some(match name {
            "null" => ServiceSpec { depth: DEPTH_MAX, ..ServiceSpec::default() },
            "ssd" => ServiceSpec {
                read_rate: 2_000_000_000,
                write_rate: 1_200_000_000,
                overhead_us: 80,
                depth: 32,
                jitter: 0.1,
                ..ServiceSpec::default()
            },
            // The single drives of the XDD papers.
            "disk" => ServiceSpec {
                overhead_us: 100,
                seek_us: [8000, 8000],
                short_seek_us: 1000,
                short_seek_len: 2 << 20,
                ..rates(100_000_000)
            },
            // Their arrays: every seek moves all heads.
            "array" => ServiceSpec { overhead_us: 100, seek_us: [4000, 8000], ..rates(1_000_000_000) },
            _ => return None,
        })
    }

    /// Says what cannot be.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=DEPTH_MAX).contains(&self.depth) {
            return Err(format!("depth {} is not within 1 and {DEPTH_MAX}", self.depth));
        }
        if self.seek_us[0] > self.seek_us[1] {
            return Err(format!("seek_us {:?}: the least exceeds the most", self.seek_us));
        }
        if !(0.0..=100.0).contains(&self.jitter) {
            return Err(format!("jitter {} is not within 0 and 100", self.jitter));
        }
        Ok(())
    }
}

/// What is wrong with a target just now.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Congestion {
    /// Everything takes this many times as long.
    pub slow: f64,
    /// And so much longer, in microseconds.
    pub extra_us: u64,
    /// Answers nothing.
    pub frozen: bool,
}

impl Default for Congestion {
    fn default() -> Self {
        Congestion { slow: 1.0, extra_us: 0, frozen: false }
    }
}

/// One contiguous range of one object, on this target.
pub struct Request<T> {
    pub object: u64,
    pub offset: u64,
    pub len: u64,
    pub write: bool,
    /// The caller's; comes back with the answer.
    pub tag: T,
}

/// A request that is done.
pub struct Served<T> {
    pub arrival: Nanos,
    pub start: Nanos,
    pub end: Nanos,
    pub tag: T,
}

struct InService<T> {
    arrival: Nanos,
    start: Nanos,
    end: Nanos,
    tag: T,
}

/// One target: its queue, its slots and the place of its head.
pub struct Target<T> {
    spec: ServiceSpec,
    congestion: Congestion,
    rng: Rng,
    waiting: VecDeque<(Nanos, Request<T>)>,
    /// At most `spec.depth`.
    in_service: Vec<InService<T>>,
    /// Object and offset at which the last request that was started will have ended.
    head: Option<(u64, u64)>,
    /// When the bytes of all started requests are through.
    pipe_free: Nanos,
    frozen_since: Option<Nanos>,
    /// Nothing starts before this: the last thaw.
    floor: Nanos,
    busy_until: Nanos,
    pub counts: Counts,
}

/// What a target has done since it was made.
#[derive(Clone, Default)]
pub struct Counts {
    pub reads: u64,
    pub writes: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub seeks: u64,
    /// Time with a request in service.
    pub busy: Nanos,
    pub queue_max: usize,
}

impl<T> Target<T> {
    pub fn new(spec: ServiceSpec, seed: u64) -> Self {
        Target {
            spec,
            congestion: Congestion::default(),
            rng: Rng::with_seed(seed),
            waiting: VecDeque::new(),
            in_service: Vec::new(),
            head: None,
            pipe_free: 0,
            frozen_since: None,
            floor: 0,
            busy_until: 0,
            counts: Counts::default(),
        }
    }

    pub fn spec(&self) -> &ServiceSpec {
        &self.spec
    }

    pub fn congestion(&self) -> Congestion {
        self.congestion
    }

    /// Requests that wait or are in service.
    pub fn queue_len(&self) -> usize {
        self.waiting.len() + self.in_service.len()
    }

    /// Whether a request that comes now would be done now.
    pub fn is_instant(&self) -> bool {
        let spec = &self.spec;
        spec.read_rate == 0
            && spec.write_rate == 0
            && spec.overhead_us == 0
            && spec.seek_us[1] == 0
            && self.congestion.extra_us == 0
            && !self.congestion.frozen
            && self.queue_len() == 0
    }

    /// Counts a request without serving it; for the caller who saw `is_instant`.
    pub fn count(&mut self, write: bool, len: u64) {
        let counts = &mut self.counts;
        if write {
            counts.writes += 1;
            counts.written_bytes += len;
        } else {
            counts.reads += 1;
            counts.read_bytes += len;
        }
        counts.queue_max = counts.queue_max.max(1);
    }

    /// Takes a request that arrives at `now`, which must not go backwards.
    pub fn submit(&mut self, now: Nanos, request: Request<T>) {
        self.count(request.write, request.len);
        self.waiting.push_back((now, request));
        self.counts.queue_max = self.counts.queue_max.max(self.queue_len());
        self.fill(now);
    }

    /// When the next request is done, if nothing changes.
    pub fn next_due(&self) -> Option<Nanos> {
        if self.frozen_since.is_some() {
            return None;
        }
        self.in_service.iter().map(|one| one.end).min()
    }

    /// The next request that is done by `now`, in the order of their ends.
    pub fn reap(&mut self, now: Nanos) -> Option<Served<T>> {
        let now = self.frozen_since.unwrap_or(now).min(now);
        let at = (0..self.in_service.len()).min_by_key(|at| self.in_service[*at].end)?;
        if self.in_service[at].end > now {
            return None;
        }
        let InService { arrival, start, end, tag } = self.in_service.swap_remove(at);
        // The slot was free from `end` on, however late it is now.
        self.fill(end);
        Some(Served { arrival, start, end, tag })
    }

    /// Changes what is wrong with the target. What is in service goes on at the new pace (`extra_us` is for
    /// what is not yet in service), and stands still while there is frost.
    pub fn set_congestion(&mut self, now: Nanos, congestion: Congestion) {
        let before = std::mem::replace(&mut self.congestion, congestion);
        if let (Some(since), false) = (self.frozen_since, congestion.frozen) {
            self.frozen_since = None;
            self.move_ends(since, |end| end + now.saturating_sub(since));
            self.floor = now;
        }
        let at = self.frozen_since.unwrap_or(now);
        let pace = congestion.slow / before.slow;
        if pace != 1.0 {
            self.move_ends(at, |end| at + ((end - at) as f64 * pace) as u64);
        }
        if congestion.frozen && self.frozen_since.is_none() {
            self.frozen_since = Some(now);
        }
        if before.frozen && !congestion.frozen {
            self.fill(now);
        }
    }

    /// Changes when what was to end after `at` ends.
    fn move_ends(&mut self, at: Nanos, moved: impl Fn(Nanos) -> Nanos) {
        let ends = self.in_service.iter_mut().map(|one| &mut one.end).chain([&mut self.pipe_free]);
        ends.filter(|end| **end > at).for_each(|end| *end = moved(*end));
    }

    /// Changes what the target can do, for what is not yet in service.
    pub fn set_spec(&mut self, now: Nanos, spec: ServiceSpec) {
        self.spec = spec;
        self.fill(now);
    }

    /// Starts what waits, as far as there are slots, which are free from `free` on.
    fn fill(&mut self, free: Nanos) {
        while self.in_service.len() < self.spec.depth as usize {
            let Some((arrival, _)) = self.waiting.front() else { return };
            let start = (*arrival).max(free).max(self.floor);
            if self.frozen_since.is_some_and(|since| start >= since) {
                return;
            }
            let (arrival, request) = self.waiting.pop_front().expect("looked at it");
            let end = self.serve(start, &request);
            self.counts.busy += end.saturating_sub(start.max(self.busy_until));
            self.busy_until = self.busy_until.max(end);
            self.in_service.push(InService { arrival, start, end, tag: request.tag });
        }
    }

    /// When a request that starts at `start` ends. Moves the head.
    fn serve(&mut self, start: Nanos, request: &Request<T>) -> Nanos {
        let spec = &self.spec;
        let seek_us = match self.head {
            Some((object, offset)) if object == request.object && offset == request.offset => 0,
            Some((object, offset))
                if object == request.object && offset.abs_diff(request.offset) <= spec.short_seek_len =>
            {
                self.counts.seeks += 1;
                spec.short_seek_us
            }
            _ => {
                self.counts.seeks += 1;
                self.rng.u64(spec.seek_us[0]..=spec.seek_us[1])
            }
        };
        self.head = Some((request.object, request.offset + request.len));
        let stretch = self.congestion.slow * (1.0 + spec.jitter * self.rng.f64());
        let stretched = |time: u128| (time as f64 * stretch) as u64;
        let position =
            stretched(u128::from(spec.overhead_us + seek_us) * 1000) + self.congestion.extra_us * 1000;
        let rate = if request.write { spec.write_rate } else { spec.read_rate };
        let transfer = match rate {
            0 => 0,
            rate => stretched(u128::from(request.len) * u128::from(SECOND) / u128::from(rate)),
        };
        let end = (start + position).max(self.pipe_free) + transfer;
        if rate > 0 {
            self.pipe_free = end;
        }
        end
    }
}

#[cfg(test)]
#[path = "service_tests.rs"]
mod tests;
