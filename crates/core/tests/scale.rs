//! Many storage targets at both ends, and others who use them too: how long a transfer takes under each policy.
//!
//! `farm` is the storage of an end, `world` the transfer. The scheduling is core's own; one seed gives the same run, event by
//! event. `make sim-targets` prints the table of `docs/scheduling.md`.

#[path = "scale/farm.rs"]
mod farm;
#[path = "scale/world.rs"]
mod world;

use std::collections::VecDeque;
use std::time::Duration;

use farm::{Load, Shape};
use fastrand::Rng;
use haul_core::ids::{Class, FileId, TargetId, Time};
use haul_core::schedule::queue::RUNS_MAX;
use haul_core::schedule::{LadsNumbers, Limits, Policy, Run, Schedule};
use world::{Choice, Setting, bound, run};

/// 1,008 targets on 144 servers and 100 Gb/s, divided by `part`, for so many seconds at the link's rate.
fn setting(part: usize, seconds: u64, seed: u64) -> Setting {
    let shape = Shape {
        targets: 1008 / part,
        servers: 144 / part,
        lanes: 2,
        overhead: Duration::from_millis(4),
        lane_rate: 50e6,
        server_rate: 1.25e9,
    };
    let (link, object, file_objects) = (12.5e9 / part as f64, 1 << 20, 64);
    Setting {
        shape,
        source: Load::default(),
        sink: Load::default(),
        link,
        round_trip: Duration::from_millis(27),
        memory: (2 << 30) / part as u64,
        object,
        file_objects,
        stripes: 4,
        files: (link * seconds as f64) as u64 / (object * file_objects),
        seed,
    }
}

/// A fifth of the targets has a fifteenth of its speed, somewhere else every five seconds.
const CONGESTED: Load = Load { share: 0.2, left: 1.0 / 15.0, frozen: None };

fn scenarios(s: Setting) -> [(&'static str, Setting); 4] {
    [
        ("quiet", s),
        ("source congested", Setting { source: CONGESTED, ..s }),
        ("sink congested", Setting { sink: CONGESTED, ..s }),
        ("both congested", Setting { source: CONGESTED, sink: CONGESTED, ..s }),
    ]
}

fn choice(policy: Policy, part: u32, each: u32) -> Choice {
    let feedback = policy == Policy::Adaptive;
    Choice { policy, limits: Limits { total: 512 / part, each }, feedback }
}

fn lads(threshold: u64, skips: u32) -> Policy {
    let (threshold, window) = (Duration::from_millis(threshold), Duration::from_secs(1));
    Policy::Lads(LadsNumbers { threshold, window, skips })
}

/// Policies to compare, by name, with the requests that each target may have.
fn policies() -> Vec<(String, Policy, u32)> {
    let mut all = vec![("file".to_owned(), Policy::File, 1)];
    all.extend([1, 4].map(|each| (format!("round-robin, {each} each"), Policy::RoundRobin, each)));
    for threshold in [50, 200] {
        for skips in [5, 50] {
            all.push((format!("lads, T {threshold} ms, M {skips}"), lads(threshold, skips), 2));
        }
    }
    all.push(("adaptive".to_owned(), Policy::Adaptive, 16));
    all
}

fn print_table(part: usize, seconds: u64, seeds: u64) {
    for (name, _) in scenarios(setting(part, seconds, 0)) {
        println!("\n{name}: seconds by seed, and the bound's part of them");
        let mut at = policies();
        at.insert(0, ("bound".to_owned(), Policy::Adaptive, 0));
        for (label, policy, each) in at {
            let mut cells = String::new();
            let mut sum = (0.0, 0.0);
            for seed in 1..=seeds {
                let all = scenarios(setting(part, seconds, seed));
                let s = all.iter().find(|(n, _)| *n == name).expect("it is there").1;
                let least = bound(&s).0 as f64 / 1e9;
                let time = match each {
                    0 => least,
                    each => run(&s, choice(policy, part as u32, each)).end.0 as f64 / 1e9,
                };
                cells += &format!("{time:8.2}");
                sum = (sum.0 + least, sum.1 + time);
            }
            println!("{label:24} {cells}   {:.2}", sum.0 / sum.1);
        }
    }
}

/// Goal: the table of `docs/scheduling.md`.
#[test]
#[ignore = "prints a table"]
#[expect(clippy::disallowed_methods, reason = "a long run is told how long")]
fn table() {
    let number = |name: &str, or: u64| std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or(or);
    print_table(
        number("HAUL_SIM_PART", 1) as usize,
        number("HAUL_SIM_SECONDS", 30),
        number("HAUL_SIM_SEEDS", 1),
    );
}

/// Goal: what a decision costs: an object that is added, chosen and done, at 1,008 targets, printed for every policy.
/// Method: the thread's processor time, the best of three; all that may be in flight is, and what was begun first ends first; files of 64 objects on 4 targets of each end.
#[test]
#[ignore = "prints a measurement"]
fn cost() {
    let (targets, rounds) = (1008_u16, 1_000_000_u64);
    for (name, policy, each) in policies().into_iter().rev() {
        let mut best = f64::MAX;
        for _ in 0..3 {
            let mut schedule = Schedule::new(policy, Limits { total: 1024, each });
            let mut flying = VecDeque::new();
            let (mut file, mut now) = (0, Time(0));
            let mut rng = Rng::with_seed(7);
            let begun = spent();
            for _ in 0..rounds {
                now = now.after(Duration::from_micros(80));
                if schedule.room() > RUNS_MAX / 2 && file * 64 < rounds {
                    let (t, k) = (rng.u16(0..targets), rng.u16(0..targets));
                    for i in 0..4 {
                        let sink = Class((k + i) % targets + 1);
                        let run =
                            Run { file: FileId(file), sink, first: i.into(), count: 16, group: 1, step: 4 };
                        schedule.add(TargetId((t + i * 251) % targets), run).expect("there is room");
                    }
                    file += 1;
                }
                while let Some(issue) = schedule.next(now) {
                    flying.push_back((issue.target, now));
                }
                if let Some((target, since)) = flying.pop_front() {
                    let service = now.since(since).mul_f64(0.7 + 0.6 * rng.f64());
                    schedule.done(target, 1 << 20, service, now);
                }
            }
            best = best.min((spent() - begun) / rounds as f64);
        }
        println!("{name:24} {best:6.0} ns an object");
    }
}

/// Nanoseconds that this thread had a processor, so that neighbours do not count.
fn spent() -> f64 {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    told.split(' ').next().and_then(|nanos| nanos.parse().ok()).expect("a number")
}

/// A smaller world has a part in so many: 63 targets on 9 servers, and 6.25 Gb/s.
const PART: u32 = 16;

fn small(seed: u64) -> Setting {
    setting(PART as usize, 60, seed)
}

/// The part of the bound's rate that a policy reaches over some seeds.
fn reached(scenario: usize, choice: Choice, seeds: std::ops::Range<u64>) -> f64 {
    let mut sum = (0.0, 0.0);
    for seed in seeds {
        let s = scenarios(small(seed))[scenario].1;
        sum = (sum.0 + bound(&s).0 as f64, sum.1 + run(&s, choice).end.0 as f64);
    }
    sum.0 / sum.1
}

/// Goal: congestion of the source's targets, which moves, costs the adaptive policy at most a tenth of what is possible, and
/// no numbers for LADS do better.
#[test]
fn adaptive_goes_round_a_congested_source() {
    let adaptive = reached(1, choice(Policy::Adaptive, PART, 16), 1..3);
    assert!(adaptive >= 0.9, "{adaptive:.3} of the bound");
    for threshold in [50, 100, 200] {
        for skips in [5, 50] {
            let lads = reached(1, choice(lads(threshold, skips), PART, 2), 1..3);
            assert!(adaptive >= lads, "{adaptive:.3}; T {threshold} ms, M {skips}: {lads:.3}");
        }
    }
}

/// Goal: the same at the sink, where LADS gained nothing; and at both ends at once.
#[test]
fn adaptive_goes_round_a_congested_sink() {
    let at_sink = reached(2, choice(Policy::Adaptive, PART, 16), 1..3);
    let at_both = reached(3, choice(Policy::Adaptive, PART, 16), 1..3);
    let without = reached(2, choice(Policy::RoundRobin, PART, 4), 1..3);
    assert!(at_sink >= 0.85 && at_both >= 0.75, "{at_sink:.3} at the sink, {at_both:.3} at both ends");
    assert!(at_sink >= 1.5 * without, "{at_sink:.3} against {without:.3}");
}

/// Goal: a target that is frozen for 30 seconds, at either end, costs the rest at most a tenth of its rate.
#[test]
fn a_frozen_target_costs_its_own_objects() {
    for end in 0..2 {
        let quiet = small(5);
        let frozen = Load { frozen: Some((17, 1, 31)), ..Load::default() };
        let s =
            if end == 0 { Setting { source: frozen, ..quiet } } else { Setting { sink: frozen, ..quiet } };
        let rate = |s: &Setting| {
            let out = run(s, choice(Policy::Adaptive, PART, 16));
            out.rest_bytes as f64 / out.rest_end.0 as f64
        };
        let part = rate(&s) / rate(&quiet);
        assert!(part >= 0.9, "end {end}: {part:.3} of the rate");
    }
}

/// Goal: a run is its seed.
#[test]
fn a_seed_is_a_run() {
    for (_, policy, each) in policies() {
        let of = |seed| {
            let s = scenarios(Setting { files: 40, ..small(seed) })[3].1;
            run(&s, choice(policy, PART, each))
        };
        assert_eq!(of(1), of(1));
        assert_ne!(of(1).trace, of(2).trace);
    }
}
