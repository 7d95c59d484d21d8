//! The simulated storage targets of `tests/scale.rs`, at the size that they are meant for: the table of
//! `docs/scheduling.md`, and what a decision costs.
//!
//! `cargo run --release -p haul-core --example scale`; `HAUL_SIM_PART`, `HAUL_SIM_SECONDS` and
//! `HAUL_SIM_SEEDS` say how large the world is (1: 1,008 targets), how long the transfer, and how many seeds
//! are run.

#[path = "../tests/scale/farm.rs"]
mod farm;
#[path = "../tests/scale/setting.rs"]
mod setting;
#[path = "../tests/scale/world.rs"]
#[allow(dead_code, reason = "the tests look at more of a run")]
mod world;

use std::collections::VecDeque;
use std::time::Duration;

use fastrand::Rng;
use haul_core::ids::{FileId, SinkTarget, TargetId, Time};
use haul_core::schedule::queue::RUNS_MAX;
use haul_core::schedule::{Limits, Policy, Run, Schedule};
use setting::{choice, policies, scenarios, setting};
use world::{bound, run};

#[expect(clippy::disallowed_methods, reason = "a long run is told how long")]
fn main() {
    let number = |name: &str, or: u64| std::env::var(name).ok().and_then(|s| s.parse().ok()).unwrap_or(or);
    print_table(
        number("HAUL_SIM_PART", 1) as usize,
        number("HAUL_SIM_SECONDS", 30),
        number("HAUL_SIM_SEEDS", 1),
    );
    println!();
    print_cost();
}

/// Prints how long a transfer takes under every policy, for a world of one part in `part`.
fn print_table(part: usize, seconds: u64, seeds: u64) {
    for (name, _) in scenarios(setting(part, seconds, 0)) {
        println!("\n{name}: seconds by seed, and the bound's part of them");
        let mut at = policies();
        at.insert(0, ("bound".to_owned(), Policy::ADAPTIVE, 0));
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

/// Prints what a decision costs under every policy: an object that is added, chosen and done, at 1,008
/// targets. The thread's processor time, the best of three; all that may be in flight is, and what was begun
/// first ends first; files of 64 objects on 4 targets of each end.
fn print_cost() {
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
                        let sink = SinkTarget((k + i) % targets + 1);
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
