//! What the figures of a probe look like outside.

pub(super) use haul::passport::samples::{point, some_points, some_probe};

use super::*;

/// Goal: the JSON form holds all of a probe, with the names that its readers rely on.
/// Method: there and back, and a look at the names.
#[test]
fn probes_survive_json() {
    let mut rng = fastrand::Rng::with_seed(9);
    let mut probe = some_probe(3);
    probe.points = some_points(&mut rng, 100);
    probe.read_best = judge::best(probe.points.iter(), Direction::Read);
    probe.mistakes = judge::mistakes(&probe.points, probe.read_best.as_ref(), Direction::Read);
    probe.mistakes.iter_mut().for_each(|mistake| mistake.penalty = 0.25);
    let json = serde_json::to_string(&probe).unwrap();
    assert_eq!(serde_json::from_str::<Probe>(&json).unwrap(), probe);
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    for name in ["rate", "request_size", "depth", "order", "io"] {
        assert!(value["read_best"].get(name).is_some(), "{name}");
    }
    assert_eq!(value["write_best"], serde_json::Value::Null);
}
