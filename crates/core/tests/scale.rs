//! Many storage targets at both ends, and others who use them too: how long a transfer takes under each
//! policy.
//!
//! `farm` is the storage of an end, `world` the transfer, `setting` what is compared. The scheduling is
//! core's own; one seed gives the same run, event by event. `make sim-targets` prints the table of
//! `docs/scheduling.md` (`examples/scale.rs`).

#[path = "scale/farm.rs"]
mod farm;
#[path = "scale/setting.rs"]
mod setting;
#[path = "scale/world.rs"]
mod world;

use farm::Load;
use haul_core::schedule::Policy;
use setting::{choice, lads, policies, scenarios, setting};
use world::{Choice, Setting, bound, run};

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

/// Goal: congestion of the source's targets, which moves, costs the adaptive policy at most a tenth of what
/// is possible, and no numbers for LADS do better.
#[test]
fn adaptive_goes_round_a_congested_source() {
    let adaptive = reached(1, choice(Policy::ADAPTIVE, PART, 16), 1..3);
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
    let at_sink = reached(2, choice(Policy::ADAPTIVE, PART, 16), 1..3);
    let at_both = reached(3, choice(Policy::ADAPTIVE, PART, 16), 1..3);
    let without = reached(2, choice(Policy::ROUND_ROBIN, PART, 4), 1..3);
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
            let out = run(s, choice(Policy::ADAPTIVE, PART, 16));
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
