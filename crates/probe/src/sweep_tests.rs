use std::collections::HashSet;
use std::time::Duration;

use super::*;
use crate::tests::point;

/// Storage as the tests think it up: a rate for each setting, noise, and a fixed cost per measurement.
struct Model {
    rate: Box<dyn Fn(&Key) -> f64>,
    noise: f64,
    overhead: f64,
    rng: fastrand::Rng,
}

/// What a simulated probe did.
struct Outcome {
    sweep: Sweep,
    tasks: Vec<Task>,
    spent: Spent,
}

fn simulate(request: &Request, size: u64, model: &mut Model) -> Outcome {
    let limit = Spent { bytes: request.bytes_limit, seconds: request.time_limit.as_secs_f64() };
    let key = (Direction::Write, Pattern::Sequential, point(Direction::Write, 1 << 20).setting);
    let fill_rate = (model.rate)(&key);
    let mut spent = Spent { bytes: size, seconds: size as f64 / fill_rate };
    let mut sweep = Sweep::new(Grid::new(request, size), limit, fill_rate);
    let mut tasks = Vec::new();
    while let Some(task) = sweep.next(spent) {
        let key = (task.direction, task.pattern, task.setting);
        let rate = (model.rate)(&key) * (1.0 + model.noise * (model.rng.f64() - 0.5));
        // As a bench does it: time ends it once the least is moved.
        let in_time = (rate * task.seconds) as u64;
        let bytes = task.bytes.min(in_time.max(task.bytes_min));
        let seconds = bytes as f64 / rate;
        spent.bytes += bytes;
        spent.seconds += seconds + model.overhead;
        let (pattern, setting) = (task.pattern, task.setting);
        sweep.record(Point { pattern, setting, rate, bytes, seconds, ..point(task.direction, 1) });
        let (done, total) = sweep.done_of();
        assert!(done == tasks.len() + 1 && total >= done);
        tasks.push(task);
    }
    Outcome { sweep, tasks, spent }
}

fn flat(rate: f64) -> Model {
    Model { rate: Box::new(move |_| rate), noise: 0.0, overhead: 0.001, rng: fastrand::Rng::with_seed(1) }
}

fn some_request(rng: &mut fastrand::Rng) -> Request {
    let mut request = Request::new("/x");
    request.bytes_limit = rng.u64(1 << 25..1 << 35);
    request.time_limit = Duration::from_secs(rng.u64(2..200));
    request.full = rng.u8(..) < 30;
    if rng.bool() {
        request.only.depths = vec![1, rng.u16(1..257)];
    }
    if rng.bool() {
        request.only.request_sizes = vec![1 << rng.u32(12..27)];
    }
    if rng.bool() {
        request.only.orders = vec![[Order::Serial, Order::Strict][rng.usize(0..2)], Order::Loose];
    }
    if rng.u8(..) < 60 {
        request.only.patterns = vec![Pattern::Random];
    }
    if rng.u8(..) < 60 {
        request.directions = vec![Direction::Write];
    }
    request
}

/// Goal: whatever is asked for and however fast storage is, the bytes stay within the limit and never more is
/// in flight than allowed; only settings that were asked for are measured, none too often; and the plan's
/// count is the most.
/// Method: seeded requests and rates.
#[test]
fn limits_and_wishes_are_kept() {
    for seed in 0..300 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let request = some_request(&mut rng);
        let size = (request.bytes_limit / 8).next_multiple_of(1 << 20);
        let rates: Vec<f64> = (0..97).map(|_| 1e6 * f64::from(1 << rng.u32(0..14))).collect();
        let rate = move |(_, _, s): &Key| {
            rates[(s.request_size as usize / 4096 * 31 + usize::from(s.depth) * 7 + s.io as usize)
                % rates.len()]
        };
        let mut model = Model { rate: Box::new(rate), noise: 0.2, overhead: 0.0, rng };
        let outcome = simulate(&request, size, &mut model);
        assert!(outcome.spent.bytes <= request.bytes_limit, "seed {seed}");
        let grid = Grid::new(&request, size);
        let mut counts: BTreeMap<Key, usize> = BTreeMap::new();
        for task in &outcome.tasks {
            let key = (task.direction, task.pattern, task.setting);
            assert!(
                grid.allows(&key) && request.directions.contains(&task.direction),
                "seed {seed}: {task:?}"
            );
            assert!(in_flight(&task.setting) <= IN_FLIGHT_MAX.min(size));
            assert!(task.bytes >= task.bytes_min && task.bytes <= size && task.bytes > 0);
            assert!(task.bytes.is_multiple_of(u64::from(task.setting.request_size)));
            *counts.entry(key).or_default() += 1;
        }
        assert!(counts.len() <= grid.settings_max() && outcome.tasks.len() <= grid.measurements_max());
        assert!(counts.values().all(|count| *count <= SAMPLES));
    }
}

/// Goal: a probe uses the time that it has and does not exceed it, on slow and on fast storage; one that is
/// too slow for most settings still measures some.
#[test]
fn time_is_used_and_kept() {
    for rate in [2e6, 20e6, 200e6, 2e9, 20e9] {
        let mut request = Request::new("/x");
        request.bytes_limit = 1 << 40;
        let size = (rate as u64 * 10).clamp(1 << 26, 1 << 30) / (1 << 20) * (1 << 20);
        let outcome = simulate(&request, size, &mut flat(rate));
        assert!(outcome.spent.seconds <= 60.5, "{rate}: {} s", outcome.spent.seconds);
        assert!(!outcome.sweep.points().is_empty(), "{rate}");
        if rate >= 200e6 {
            assert!(outcome.tasks.len() > 60, "{rate}: {}", outcome.tasks.len());
        }
    }
}

/// Goal: with the limits of a default probe the setting that is said to be best reaches 95 % of the real
/// best.
/// Method: a model with one hill in request size and depth, direct better than buffered, 10 % noise.
#[test]
fn the_hill_is_found() {
    for seed in 0..50 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (top_size, top_depth) = (REQUEST_SIZES[rng.usize(0..5)], DEPTHS[rng.usize(0..6)]);
        let io = if rng.bool() { Io::Direct } else { Io::Buffered };
        let rate = move |(_, pattern, s): &Key| {
            let far = |a: f64, b: f64| (a.log2() - b.log2()).abs();
            let size = far(f64::from(s.request_size), f64::from(top_size)) / 2.0;
            let depth = far(f64::from(s.depth), f64::from(top_depth));
            let io = if s.io == io { 1.0 } else { 0.7 };
            let order = if s.order == Order::Serial { 0.5 } else { 1.0 };
            let pattern = if *pattern == Pattern::Random { 0.6 } else { 1.0 };
            400e6 * io * order * pattern * 0.9f64.powf(size + depth)
        };
        let fits = in_flight(&Setting { request_size: top_size, depth: top_depth, order: Order::None, io });
        if fits > 64 << 20 {
            // More than a default probe can measure.
            continue;
        }
        let mut model = Model { rate: Box::new(rate), noise: 0.1, overhead: 0.02, rng };
        let outcome = simulate(&Request::new("/x"), 1 << 30, &mut model);
        for direction in [Direction::Read, Direction::Write] {
            let best = outcome.sweep.best(direction).unwrap();
            let real = (model.rate)(&(direction, Pattern::Sequential, best.setting));
            assert!(
                real >= 0.9 * 400e6,
                "seed {seed}: {real:e} at {best:?}, top {top_size} {top_depth} {io:?}"
            );
        }
    }
}

/// Goal: a default probe with room measures everything that its report needs: orders, random offsets, each
/// mistake of the best, and the best several times.
#[test]
fn the_report_is_complete() {
    let rate = |(_, _, s): &Key| 100e6 + f64::from(s.depth) * 1e6 + f64::from(s.request_size >> 16);
    let mut model =
        Model { rate: Box::new(rate), noise: 0.0, overhead: 0.01, rng: fastrand::Rng::with_seed(1) };
    let outcome = simulate(&Request::new("/x"), 1 << 30, &mut model);
    let phases: HashSet<StoragePhase> = outcome.tasks.iter().map(|task| task.phase).collect();
    assert!(
        PHASES.iter().all(|phase| phases.contains(phase) || *phase == StoragePhase::Mistakes),
        "{phases:?}"
    );
    let points = outcome.sweep.points();
    for direction in [Direction::Read, Direction::Write] {
        let best = outcome.sweep.best(direction).unwrap();
        let orders: HashSet<Order> =
            points.iter().filter(|p| p.direction == direction).map(|p| p.setting.order).collect();
        assert_eq!(orders.len(), 4);
        let mistakes = judge::mistakes(&points, Some(&best), direction);
        assert!(mistakes.len() + 1 >= judge::mistakes_of(&best.setting).len(), "{mistakes:?}");
        let key = (direction, Pattern::Sequential, best.setting);
        assert_eq!(outcome.sweep.samples[&key].len(), SAMPLES);
    }
}

/// Goal: lucky figures do not become the best, however many there are: what is said to be best was measured
/// several times, and its rate is the median.
#[test]
fn luck_is_no_best() {
    let mut lucky = 30;
    let mut sweep =
        Sweep::new(Grid::new(&Request::new("/x"), 1 << 30), Spent { bytes: 1 << 40, seconds: 1e6 }, 1e8);
    while let Some(task) = sweep.next(Spent::default()) {
        let rate = if lucky > 0 { 1e10 } else { 1e8 + f64::from(task.setting.depth) };
        lucky -= 1;
        let (pattern, setting) = (task.pattern, task.setting);
        sweep.record(Point { pattern, setting, rate, bytes: task.bytes, ..point(task.direction, 1) });
    }
    for direction in [Direction::Read, Direction::Write] {
        assert!(sweep.best(direction).unwrap().rate < 1.1e8);
    }
}

/// Goal: once direct I/O turns out not to work, nothing direct is measured or reported.
#[test]
fn direct_is_forgotten() {
    let mut sweep =
        Sweep::new(Grid::new(&Request::new("/x"), 1 << 30), Spent { bytes: 1 << 40, seconds: 1e6 }, 1e8);
    let task = sweep.next(Spent::default()).unwrap();
    sweep.record(Point { setting: task.setting, rate: 1e9, ..point(task.direction, 1) });
    sweep.forget_direct();
    while let Some(task) = sweep.next(Spent::default()) {
        assert_eq!(task.setting.io, Io::Buffered);
        let (pattern, setting) = (task.pattern, task.setting);
        sweep.record(Point { pattern, setting, rate: 1e8, ..point(task.direction, 1) });
    }
    assert!(sweep.points().iter().all(|point| point.setting.io == Io::Buffered));
}
