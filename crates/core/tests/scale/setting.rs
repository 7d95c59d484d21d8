//! What is compared: a world, how its targets fare, and the policies with what each may have in flight.

use std::time::Duration;

use haul_core::schedule::{LadsNumbers, Limits, Policy};

use crate::farm::{Load, Shape};
use crate::world::{Choice, Setting};

/// 1,008 targets on 144 servers and 100 Gb/s, divided by `part`, for so many seconds at the link's rate.
pub fn setting(part: usize, seconds: u64, seed: u64) -> Setting {
    let shape = Shape {
        targets: 1008 / part,
        servers: 144 / part,
        units: 2,
        overhead: Duration::from_millis(4),
        unit_rate: 50e6,
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

pub fn scenarios(s: Setting) -> [(&'static str, Setting); 4] {
    [
        ("quiet", s),
        ("source congested", Setting { source: CONGESTED, ..s }),
        ("sink congested", Setting { sink: CONGESTED, ..s }),
        ("both congested", Setting { source: CONGESTED, sink: CONGESTED, ..s }),
    ]
}

pub fn choice(policy: Policy, part: u32, each: u32) -> Choice {
    let feedback = policy == Policy::ADAPTIVE;
    Choice { policy, limits: Limits { total: 512 / part, each }, feedback }
}

pub fn lads(threshold: u64, skips: u32) -> Policy {
    let (threshold, window) = (Duration::from_millis(threshold), Duration::from_secs(1));
    Policy::lads(LadsNumbers { threshold, window, skips })
}

/// Policies to compare, by name, with the requests that each target may have.
pub fn policies() -> Vec<(String, Policy, u32)> {
    let mut all = vec![("file".to_owned(), Policy::FILE, 1)];
    all.extend([1, 4].map(|each| (format!("round-robin, {each} each"), Policy::ROUND_ROBIN, each)));
    for threshold in [50, 200] {
        for skips in [5, 50] {
            all.push((format!("lads, T {threshold} ms, M {skips}"), lads(threshold, skips), 2));
        }
    }
    all.push(("adaptive".to_owned(), Policy::ADAPTIVE, 16));
    all
}
