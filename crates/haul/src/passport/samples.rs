//! Tests: probes and points of no storage.

use haul_storage::options::Order;

use super::{Direction, FORMAT, Io, Pattern, Point, Probe, Setting, StorageIdentity};

/// A sequential point at depth 4, no order, direct.
pub fn point(direction: Direction, request_size: u32) -> Point {
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
pub fn some_points(rng: &mut fastrand::Rng, count: usize) -> Vec<Point> {
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
pub fn some_probe(seed: u64) -> Probe {
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
