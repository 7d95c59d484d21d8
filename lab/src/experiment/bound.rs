//! The least time that congested storage allows: what a copy is held against that could not have been faster.
//!
//! In: what each target can do, a script of congestion, the bytes that each target has of the data. Out:
//! seconds. All that limits here is each target's rate as congestion leaves it: no cost of a request, no
//! host, no start; so nothing that has to move these bytes is faster, whatever it knows of the future.

use crate::targets::{Player, Script, ServiceSpec};

/// Steps of a script that are looked at: a day of them, at five seconds.
const STEPS_MAX: usize = 20_000;

/// Seconds from the script's beginning until the last target has moved its `bytes`; `None`: it never does.
///
/// `write`: which rate counts. Without a script all are well.
pub fn seconds(specs: &[ServiceSpec], script: Option<&Script>, bytes: f64, write: bool) -> Option<f64> {
    let count = u32::try_from(specs.len()).ok()?;
    let mut player = script.and_then(|script| Player::new(script.clone(), count).ok());
    let mut left = vec![bytes; specs.len()];
    let (mut now, mut last) = (0.0, 0.0f64);
    for _ in 0..STEPS_MAX {
        let step = player.as_mut().and_then(Player::advance);
        let lasts = step.as_ref().map_or(f64::INFINITY, |(lasts, _)| lasts.as_secs_f64());
        for (t, (spec, left)) in specs.iter().zip(&mut left).enumerate().filter(|(_, (_, left))| **left > 0.0)
        {
            let congestion = step.as_ref().map(|(_, all)| all[t]).unwrap_or_default();
            if congestion.frozen {
                continue;
            }
            let takes = *left / rate(spec, write) * congestion.slow;
            if takes <= lasts {
                last = last.max(now + takes);
                *left = 0.0;
            } else {
                *left *= 1.0 - lasts / takes;
            }
        }
        if left.iter().all(|left| *left <= 0.0) {
            return Some(last);
        }
        now += lasts;
    }
    None
}

/// Bytes a second of a target that is well, requests being as long as they are on average.
fn rate(spec: &ServiceSpec, write: bool) -> f64 {
    match if write { spec.write_rate } else { spec.read_rate } {
        0 => f64::INFINITY,
        rate => rate as f64 / (1.0 + spec.jitter / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(text: &str) -> Script {
        serde_json::from_str(text).unwrap()
    }

    /// Goal: the bound is what arithmetic says: slow targets move less, frozen ones nothing, and the last one
    /// counts.
    /// Method: two targets of 100 bytes a second, 1000 bytes each, under scripts whose end can be worked out.
    #[test]
    fn the_last_target_counts() {
        let spec = ServiceSpec { read_rate: 100, write_rate: 50, ..ServiceSpec::default() };
        let specs = vec![spec.clone(), ServiceSpec { jitter: 0.5, ..spec }];
        let is = |specs: &[ServiceSpec], script, bytes, write, wanted: f64| {
            let found = seconds(specs, script, bytes, write).unwrap();
            assert!((found - wanted).abs() < 1e-6, "{found} is not {wanted}");
        };
        is(&specs[..1], None, 1000.0, false, 10.0);
        is(&specs[..1], None, 1000.0, true, 20.0);
        // Jitter makes it a quarter longer.
        is(&specs, None, 1000.0, false, 12.5);
        let both = vec![specs[0].clone(); 2];
        // 5 s at a tenth: 50 bytes, then 950 of them.
        let slow = script(r#"{"steps":[{"for_ms":5000,"who":{"targets":[1]},"slow":10}]}"#);
        is(&both, Some(&slow), 1000.0, false, 14.5);
        let frozen =
            script(r#"{"steps":[{"for_ms":4000},{"for_ms":30000,"who":{"targets":[0]},"freeze":true}]}"#);
        is(&both, Some(&frozen), 1000.0, false, 40.0);
        // In turns: each loses 4.5 of its first 10 seconds.
        let turns = script(r#"{"repeat":true,"steps":[{"for_ms":5000,"who":{"next":1},"slow":10}]}"#);
        is(&both, Some(&turns), 550.0, false, 10.0);
        is(&both, Some(&turns), 500.0, false, 9.5);
    }

    /// Goal: what never ends has no bound, what takes no time none but zero, and the same seed gives the
    /// same.
    #[test]
    fn odd_ends() {
        let spec = ServiceSpec { read_rate: 100, ..ServiceSpec::default() };
        let never =
            script(r#"{"repeat":true,"steps":[{"for_ms":5000,"who":{"targets":[0]},"freeze":true}]}"#);
        assert_eq!(seconds(std::slice::from_ref(&spec), Some(&never), 1.0, false), None);
        assert_eq!(seconds(&[ServiceSpec::default()], None, 1000.0, false), Some(0.0));
        let drawn =
            script(r#"{"seed":5,"repeat":true,"steps":[{"for_ms":500,"who":{"random":3},"slow":7}]}"#);
        let specs = vec![spec; 9];
        let of = || seconds(&specs, Some(&drawn), 1000.0, false).unwrap();
        assert!(of() > 10.0 && of() < 70.0);
        assert_eq!(of().to_bits(), of().to_bits());
    }
}
