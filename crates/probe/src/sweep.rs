//! Which setting is measured next, and what the measurement may cost.
//!
//! In: the limits, what was spent so far, the points measured. Out: [`Task`]s, one at a time, and at the end
//! the points and the best of them. No clock and no storage here: the seconds are the caller's.
//!
//! All combinations would take an hour, so it goes from coarse to fine: a grid of request sizes and three
//! depths, direct and buffered; what is near the best of it; ordering policies at the best; random offsets at
//! the best few; the classic mistakes; and the best few again, for the best of many noisy figures is too
//! good. Directions take turns, so that a probe that runs out of time knows as much of one as of the other.
//!
//! Invariant: the bytes of all tasks never exceed the limit, and none is handed out that cannot be expected
//! to end in time. What is left is shared among the measurements that are to come, so what a slow one takes
//! too much, the others get less.

use std::collections::{BTreeMap, VecDeque};

use super::judge;
use super::{Best, Direction, Io, Only, Pattern, Point, Request, Setting, StoragePhase};
use haul_storage::options::Order;

/// Most bytes of one measurement, unless its requests in flight take more.
pub(super) const POINT_BYTES_MAX: u64 = 256 << 20;
/// Most bytes in flight, which is the most that buffers take.
pub(super) const IN_FLIGHT_MAX: u64 = 512 << 20;
/// No measurement takes longer, seconds, if it has moved what it must.
const POINT_SECONDS_MAX: f64 = 1.0;
/// A measurement that needs more than this many times its share is left out.
const DEAR: u64 = 2;
/// Every request in flight is made once, and again until this many bytes were; less would measure a burst.
const AGAIN: u64 = 16 << 20;
/// A measurement in the time's share may move this many times what is expected of it.
const FASTER: f64 = 4.0;

const REQUEST_SIZES: [u32; 5] = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];
const DEPTHS: [u16; 6] = [1, 2, 4, 8, 16, 32];
/// The depths of the grid.
const DEPTHS_COARSE: [u16; 3] = [4, 16, 1];
/// Depths at which orderings are compared, besides the best.
const DEPTHS_ORDER: [u16; 2] = [4, 16];
const ORDERS: [Order; 4] = [Order::None, Order::Strict, Order::Loose, Order::Serial];
const PHASES: [StoragePhase; 6] = [
    StoragePhase::Grid,
    StoragePhase::Refine,
    StoragePhase::Order,
    StoragePhase::Random,
    StoragePhase::Mistakes,
    StoragePhase::Repeat,
];

/// Most measurements of a direction in a phase after the grid.
const REFINE_MAX: usize = 6;
const ORDER_MAX: usize = 7;
const RANDOM_MAX: usize = 3;
const MISTAKES_MAX: usize = 6;
/// The best so many, and the mistakes, are measured [`SAMPLES`] times. Two rounds, for what was second may
/// turn out to be first.
const TOP: usize = 3;
const SAMPLES: usize = 3;
const ROUNDS: usize = 2;

/// Measurements of a direction in a round of repeats.
const REPEATS: usize = (TOP + MISTAKES_MAX) * (SAMPLES - 1);

/// What a point measures.
pub(super) type Key = (Direction, Pattern, Setting);

/// One measurement to make.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Task {
    pub phase: StoragePhase,
    pub direction: Direction,
    pub pattern: Pattern,
    pub setting: Setting,
    /// Never more than this is moved; a multiple of the request size, at most the scratch file.
    pub bytes: u64,
    /// At least this is, if there is time: every request in flight, and some of them again.
    pub bytes_min: u64,
    /// After so long nothing more is issued.
    pub seconds: f64,
    /// Bytes per second to expect.
    pub rate: f64,
}

/// What the probe has taken so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Spent {
    pub bytes: u64,
    pub seconds: f64,
}

/// The settings that may be measured.
#[derive(Clone, Debug)]
pub(super) struct Grid {
    only: Only,
    directions: Vec<Direction>,
    full: bool,
    size: u64,
}

impl Grid {
    pub(super) fn new(request: &Request, size: u64) -> Grid {
        let mut directions = request.directions.clone();
        directions.sort();
        directions.dedup();
        Grid { only: request.only.clone(), directions, full: request.full, size }
    }

    /// Most settings that are measured, 0 if none can be.
    pub(super) fn settings_max(&self) -> usize {
        let grid = self.first().len();
        match grid {
            0 => 0,
            _ => grid + self.later_max(),
        }
    }

    /// Most measurements.
    pub(super) fn measurements_max(&self) -> usize {
        self.settings_max() + self.repeats_max()
    }

    fn later_max(&self) -> usize {
        match self.full {
            true => 0,
            // In each round of repeats another setting may be the best, with other mistakes.
            false => {
                let each = REFINE_MAX + ORDER_MAX + RANDOM_MAX + MISTAKES_MAX * (1 + ROUNDS);
                self.directions.len() * each
            }
        }
    }

    fn repeats_max(&self) -> usize {
        self.directions.len() * REPEATS * ROUNDS
    }

    /// The grid of the first phase, the most telling settings first.
    fn first(&self) -> Vec<Key> {
        let depths: &[u16] = if self.full { &DEPTHS } else { &DEPTHS_COARSE };
        let orders: &[Order] = if self.full { &ORDERS } else { &ORDERS[..1] };
        let patterns = [Pattern::Sequential, Pattern::Random];
        let patterns = if self.full { &patterns[..] } else { &patterns[..1] };
        let mut keys = Vec::new();
        for pattern in narrowed(&self.only.patterns, patterns) {
            for order in narrowed(&self.only.orders, orders) {
                for depth in narrowed(&self.only.depths, depths) {
                    for request_size in
                        narrowed(&self.only.request_sizes, &[2, 0, 4, 3, 1].map(|i| REQUEST_SIZES[i]))
                    {
                        for io in narrowed(&self.only.io, &[Io::Direct, Io::Buffered]) {
                            for direction in &self.directions {
                                keys.push((*direction, pattern, Setting { request_size, depth, order, io }));
                            }
                        }
                    }
                }
            }
        }
        keys.retain(|(_, _, setting)| self.fits(setting));
        keys
    }

    /// Direct I/O does not work.
    pub(super) fn forget_direct(&mut self) {
        self.only.io = vec![Io::Buffered];
    }

    /// Whether a later phase may measure this.
    fn allows(&self, (_, pattern, setting): &Key) -> bool {
        fn free<T: PartialEq>(list: &[T], value: &T) -> bool {
            list.is_empty() || list.contains(value)
        }
        let only = &self.only;
        free(&only.patterns, pattern)
            && free(&only.request_sizes, &setting.request_size)
            && free(&only.depths, &setting.depth)
            && free(&only.orders, &setting.order)
            && free(&only.io, &setting.io)
            && self.fits(setting)
    }

    fn fits(&self, setting: &Setting) -> bool {
        in_flight(setting) <= self.size.min(IN_FLIGHT_MAX)
    }
}

/// What was asked for, else `all`.
fn narrowed<T: Copy + PartialEq>(only: &[T], all: &[T]) -> Vec<T> {
    let mut list: Vec<T> = Vec::new();
    for value in if only.is_empty() { all } else { only } {
        if !list.contains(value) {
            list.push(*value);
        }
    }
    list
}

/// Bytes in flight with this setting.
pub(super) fn in_flight(setting: &Setting) -> u64 {
    let depth = if setting.order == Order::Serial { 1 } else { setting.depth };
    u64::from(setting.request_size) * u64::from(depth)
}

/// The course of a probe.
pub(super) struct Sweep {
    grid: Grid,
    limit: Spent,
    /// The phases that are to come, the next one first.
    phases: VecDeque<StoragePhase>,
    phase: StoragePhase,
    rounds: usize,
    queue: VecDeque<Key>,
    samples: BTreeMap<Key, Vec<Point>>,
    /// The scratch file was written at this rate, bytes per second.
    fill_rate: f64,
    done: usize,
    left_out: usize,
}

impl Sweep {
    /// `limit`: the most to spend in all; `fill_rate`: what is known of the storage before the first point.
    pub(super) fn new(grid: Grid, limit: Spent, fill_rate: f64) -> Sweep {
        let queue = grid.first().into();
        let phases = match grid.full {
            true => [StoragePhase::Repeat].into(),
            false => PHASES[1..].to_vec().into(),
        };
        Sweep {
            grid,
            limit,
            phases,
            phase: StoragePhase::Grid,
            rounds: 0,
            queue,
            samples: BTreeMap::new(),
            fill_rate: fill_rate.max(1.0),
            done: 0,
            left_out: 0,
        }
    }

    /// The next measurement, `None` when all are made or the limits allow no more.
    pub(super) fn next(&mut self, spent: Spent) -> Option<Task> {
        loop {
            while let Some(key) = self.queue.pop_front() {
                match self.task(key, spent) {
                    Some(task) => return Some(task),
                    None => self.left_out += 1,
                }
            }
            if self.phase == StoragePhase::Repeat && self.rounds < ROUNDS {
                self.rounds += 1;
            } else {
                self.phase = self.phases.pop_front()?;
                self.rounds = 1;
            }
            self.queue = self.fill_queue().into();
        }
    }

    /// Takes a measurement.
    pub(super) fn record(&mut self, point: Point) {
        self.done += 1;
        self.samples.entry((point.direction, point.pattern, point.setting)).or_default().push(point);
    }

    /// A measurement was given up.
    pub(super) fn left_out(&mut self) {
        self.left_out += 1;
    }

    /// Direct I/O does not work after all.
    pub(super) fn forget_direct(&mut self) {
        let is_direct = |(_, _, setting): &Key| setting.io == Io::Direct;
        self.queue.retain(|key| !is_direct(key));
        self.samples.retain(|key, _| !is_direct(key));
        self.grid.forget_direct();
    }

    pub(super) fn phase(&self) -> StoragePhase {
        self.phase
    }

    /// Measurements made, and the most that there will be.
    pub(super) fn done_of(&self) -> (usize, usize) {
        (self.done, self.done + self.queue.len() + self.later())
    }

    /// Settings for which the limits had no room.
    pub(super) fn left_out_count(&self) -> usize {
        self.left_out
    }

    /// Seconds that what is left will take, if it goes on as it went.
    pub(super) fn seconds_left(&self, spent: Spent) -> f64 {
        let (done, total) = self.done_of();
        let most = (self.limit.seconds - spent.seconds).max(0.0);
        let each = (spent.seconds / done.max(1) as f64).min(POINT_SECONDS_MAX);
        most.min((total - done) as f64 * each)
    }

    /// The points, one for each setting: the median of its measurements.
    pub(super) fn points(&self) -> Vec<Point> {
        self.samples.values().map(|samples| median(samples).clone()).collect()
    }

    /// The best sequential setting: of those that were measured several times, if there are any.
    pub(super) fn best(&self, direction: Direction) -> Option<Best> {
        let repeated =
            self.samples.values().any(|samples| judge::is_of(&samples[0], direction) && samples.len() > 1);
        let candidates = self.samples.values().filter(|samples| !repeated || samples.len() > 1);
        judge::best(candidates.map(|samples| median(samples)), direction)
    }

    /// Measurements of phases that are still to come, about.
    fn later(&self) -> usize {
        let each = |phase: &StoragePhase| match phase {
            StoragePhase::Fill | StoragePhase::Grid => 0,
            StoragePhase::Refine => REFINE_MAX,
            StoragePhase::Order => ORDER_MAX,
            StoragePhase::Random => RANDOM_MAX,
            StoragePhase::Mistakes => MISTAKES_MAX,
            StoragePhase::Repeat => REPEATS,
        };
        self.phases.iter().map(each).sum::<usize>() * self.grid.directions.len()
    }

    fn task(&self, (direction, pattern, setting): Key, spent: Spent) -> Option<Task> {
        let size = self.grid.size;
        let request = u64::from(setting.request_size);
        let first = in_flight(&setting);
        let again = first.min(AGAIN).max(request);
        let bytes_min = (first + again).min(size / request * request);
        let shares = (1 + self.queue.len() + self.later()) as u64;
        let bytes_left = self.limit.bytes.saturating_sub(spent.bytes);
        let seconds_left = (self.limit.seconds - spent.seconds).max(0.0);
        let bytes_share = (bytes_left / shares).min(POINT_BYTES_MAX);
        let rate = self.rate_expected(direction);
        let seconds_needed = bytes_min as f64 / rate;
        let seconds_share = seconds_left / shares as f64;
        let dear = bytes_min > DEAR * bytes_share || seconds_needed > DEAR as f64 * seconds_share;
        if dear || bytes_min > bytes_left || seconds_needed > seconds_left {
            return None;
        }
        let seconds = seconds_share.min(POINT_SECONDS_MAX);
        // What is written into the page cache has to reach storage before the measurement ends.
        let slack = if setting.io == Io::Buffered && direction == Direction::Write { 1.0 } else { FASTER };
        let bytes = bytes_share.min((rate * seconds * slack) as u64).max(bytes_min).min(size);
        let bytes = bytes / request * request;
        Some(Task { phase: self.phase, direction, pattern, setting, bytes, bytes_min, seconds, rate })
    }

    /// What storage may be expected to do: the median of what it did.
    fn rate_expected(&self, direction: Direction) -> f64 {
        let points = self.samples.values().filter(|samples| samples[0].direction == direction);
        let mut rates: Vec<f64> = points.map(|samples| samples[0].rate).collect();
        rates.sort_by(f64::total_cmp);
        rates.get(rates.len() / 2).copied().unwrap_or(self.fill_rate).max(1.0)
    }

    /// What the phase that begins measures; directions take turns.
    fn fill_queue(&self) -> Vec<Key> {
        let mut lists: Vec<VecDeque<Key>> =
            self.grid.directions.iter().map(|direction| self.wanted(*direction).into()).collect();
        let mut keys = Vec::new();
        while lists.iter().any(|list| !list.is_empty()) {
            keys.extend(lists.iter_mut().filter_map(VecDeque::pop_front));
        }
        keys
    }

    fn wanted(&self, direction: Direction) -> Vec<Key> {
        let top = self.top(direction, Pattern::Sequential);
        let Some(best) = top.first() else { return Vec::new() };
        let sequential = |setting| (direction, Pattern::Sequential, setting);
        let (keys, most): (Vec<Key>, usize) = match self.phase {
            StoragePhase::Fill | StoragePhase::Grid => (Vec::new(), 0),
            StoragePhase::Refine => {
                let second = top.iter().find(|setting| setting.request_size != best.request_size);
                let at = [Some(best), second].into_iter().flatten();
                let keys =
                    at.flat_map(|setting| DEPTHS.map(|depth| sequential(Setting { depth, ..*setting })));
                (keys.collect(), REFINE_MAX)
            }
            StoragePhase::Order => {
                let mut keys = Vec::new();
                for depth in [best.depth].into_iter().chain(DEPTHS_ORDER) {
                    keys.extend(ORDERS.map(|order| sequential(Setting { depth, order, ..*best })));
                }
                // The depth means nothing where one request waits for the other.
                keys.retain(|(_, _, setting)| setting.order != Order::Serial || setting.depth == best.depth);
                (keys, ORDER_MAX)
            }
            StoragePhase::Random => {
                let top = top.iter().take(RANDOM_MAX);
                (top.map(|setting| (direction, Pattern::Random, *setting)).collect(), RANDOM_MAX)
            }
            StoragePhase::Mistakes => {
                let mistakes = judge::mistakes_of(best);
                (
                    mistakes.into_iter().map(|(_, pattern, setting)| (direction, pattern, setting)).collect(),
                    MISTAKES_MAX,
                )
            }
            StoragePhase::Repeat => {
                let pattern = Pattern::Sequential;
                let mut keys: Vec<Key> =
                    top.iter().take(TOP).map(|setting| (direction, pattern, *setting)).collect();
                let mistakes = judge::mistakes_of(best).into_iter();
                keys.extend(mistakes.map(|(_, pattern, setting)| (direction, pattern, setting)));
                keys.retain(|key| self.grid.allows(key));
                let missing = |round: usize| {
                    let samples =
                        move |key: &&Key| self.samples.get(*key).map_or(0, Vec::len) + round < SAMPLES;
                    let mut missing: Vec<Key> = Vec::new();
                    for key in keys.iter().filter(samples) {
                        if !missing.contains(key) {
                            missing.push(*key);
                        }
                    }
                    missing
                };
                return (0..SAMPLES - 1).flat_map(missing).collect();
            }
        };
        let mut fresh: Vec<Key> = Vec::new();
        for key in keys {
            if !self.samples.contains_key(&key) && !fresh.contains(&key) && self.grid.allows(&key) {
                fresh.push(key);
            }
        }
        fresh.truncate(most);
        fresh
    }

    /// The settings of a direction, the best first.
    fn top(&self, direction: Direction, pattern: Pattern) -> Vec<Setting> {
        let points = self.samples.values().map(|samples| median(samples));
        let mut points: Vec<&Point> =
            points.filter(|point| point.direction == direction && point.pattern == pattern).collect();
        points.sort_by(|a, b| b.rate.total_cmp(&a.rate));
        points.into_iter().map(|point| point.setting).collect()
    }
}

/// The measurement in the middle, the lower one of two.
fn median(samples: &[Point]) -> &Point {
    let mut order: Vec<&Point> = samples.iter().collect();
    order.sort_by(|a, b| a.rate.total_cmp(&b.rate));
    order[(order.len() - 1) / 2]
}

#[cfg(test)]
#[path = "sweep_tests.rs"]
mod tests;
