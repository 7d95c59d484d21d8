//! Probes and points that other tests of the probe use.

use super::*;

/// A sequential point at depth 4, no order, direct.
pub(super) fn point(direction: Direction, request_size: u32) -> Point {
    let setting = Setting { request_size, depth: 4, order: Order::None, io: Io::Direct };
    Point {
        direction,
        pattern: Pattern::Sequential,
        setting,
        rate: 0.0,
        bytes: 1 << 30,
        seconds: 1.0,
        cpu_seconds: 0.25,
        service_median: 0.001,
        service_p99: 0.002,
    }
}

/// Points of any settings and rates; no setting twice.
pub(super) fn some_points(rng: &mut fastrand::Rng, count: usize) -> Vec<Point> {
    let mut points: Vec<Point> = Vec::new();
    while points.len() < count {
        let direction = if rng.bool() { Direction::Read } else { Direction::Write };
        let mut new = point(direction, 1 << rng.u32(16..25));
        new.pattern = if rng.u8(..) < 200 { Pattern::Sequential } else { Pattern::Random };
        new.setting.depth = 1 << rng.u32(0..6);
        new.setting.order = [Order::Strict, Order::Serial, Order::Loose, Order::None][rng.usize(0..4)];
        new.setting.io = if rng.bool() { Io::Direct } else { Io::Buffered };
        new.rate = f64::from(rng.u32(1..1000)) * 1e6;
        // Short in binary, for JSON numbers are good to the last digit but one.
        new.cpu_seconds = f64::from(rng.u8(..)) / 256.0;
        let key = |p: &Point| (p.direction, p.pattern, p.setting);
        if points.iter().all(|p| key(p) != key(&new)) {
            points.push(new);
        }
    }
    points
}

/// A probe of its own storage without points.
pub(super) fn some_probe(seed: u64) -> Probe {
    let text = |what: &str| format!("{what}-{seed}");
    Probe {
        format: FORMAT,
        haul: "0.1.0".into(),
        host: text("host"),
        path: "/data".into(),
        storage: StorageIdentity {
            id: text("uuid"),
            kind: "ext4".into(),
            source: text("/dev/sd"),
            mount_point: "/".into(),
            size: 1 << 40,
            network: false,
        },
        taken: 1_700_000_000 + seed,
        engine: "uring".into(),
        size: 1 << 30,
        seconds: 60.0,
        bytes_read: 1 << 32,
        bytes_written: 1 << 31,
        points: Vec::new(),
        read_best: None,
        write_best: None,
        read_flatness: 0.5,
        write_flatness: 0.25,
        mistakes: Vec::new(),
        remarks: vec![text("remark")],
    }
}

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
