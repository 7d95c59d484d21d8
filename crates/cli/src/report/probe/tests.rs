//! A probe of a storage that never was, told in every form.

use std::time::Duration;

use haul_probe::passport::Passport;
use haul_probe::{Mistake, Pairing, StorageIdentity};
use serde_json::Value;

use super::*;
use crate::report::html::tests::{check_page, hostile};
use crate::report::validator;

/// A flash disk in round figures: grows with depth and size, buffered half as fast, writes slower.
pub fn synthetic() -> Probe {
    let mut points = Vec::new();
    let mut random = fastrand::Rng::with_seed(1);
    let mut measure = |direction, pattern, io, order, request_size: u32, depth: u16| {
        let flow = f64::from(request_size) * f64::from(depth);
        let top = match direction {
            Direction::Read => 2.6e9,
            Direction::Write => 1.3e9,
        };
        let mut rate = top * flow / (flow + 1.2e6);
        if io == Io::Buffered {
            rate = (rate * 1.4).min(top * 0.55);
        }
        if pattern == Pattern::Random {
            rate *= 0.8;
        }
        rate *= match order {
            Order::Serial => 0.3,
            Order::Strict => 0.92,
            Order::Loose => 0.97,
            Order::None => 1.0,
        };
        rate *= 0.97 + 0.06 * random.f64();
        points.push(Point {
            direction,
            pattern,
            setting: Setting { request_size, depth, order, io },
            rate,
            bytes: 1 << 28,
            seconds: 268_435_456.0 / rate,
            cpu_seconds: 0.05,
            service_median: flow / rate,
            service_p99: 3.0 * flow / rate,
        });
    };
    for direction in DIRECTIONS {
        for io in IOS {
            for size in [16, 18, 20, 22, 24] {
                for depth in [1, 2, 4, 8, 16, 32] {
                    measure(direction, Pattern::Sequential, io, Order::None, 1 << size, depth);
                }
            }
        }
        for order in [Order::Strict, Order::Serial, Order::Loose] {
            for depth in [1, 4, 16, 32] {
                measure(direction, Pattern::Sequential, Io::Direct, order, 1 << 20, depth);
            }
        }
        for size in [16, 20] {
            for depth in [1, 16] {
                measure(direction, Pattern::Random, Io::Direct, Order::None, 1 << size, depth);
            }
        }
    }
    let best = |direction| {
        let of = points.iter().filter(|p| p.direction == direction && p.pattern == Pattern::Sequential);
        of.max_by(|a, b| a.rate.total_cmp(&b.rate)).map(|p| Best { rate: p.rate, setting: p.setting })
    };
    let (read_best, write_best) = (best(Direction::Read), best(Direction::Write));
    let mistake = |what: &str, direction, request_size, depth, io, penalty| Mistake {
        what: what.into(),
        direction,
        setting: Setting { request_size, depth, order: Order::None, io },
        rate: 2.6e9 * (1.0 - penalty),
        penalty,
    };
    Probe {
        format: haul_probe::FORMAT,
        haul: "0.1.0".into(),
        host: "dtn1".into(),
        path: "/scratch/user".into(),
        storage: StorageIdentity {
            id: "1f2e3d4c".into(),
            kind: "xfs".into(),
            source: "/dev/nvme0n1".into(),
            mount_point: "/scratch".into(),
            size: 1 << 40,
            network: false,
        },
        taken: 1_790_000_000,
        engine: "uring".into(),
        size: 1 << 30,
        seconds: 58.2,
        bytes_read: 5 << 30,
        bytes_written: 3 << 30,
        points,
        read_best,
        write_best,
        read_flatness: 0.42,
        write_flatness: 0.08,
        mistakes: vec![
            mistake("requests of 64 KiB, one at a time", Direction::Read, 65536, 1, Io::Direct, 0.95),
            mistake("buffered reads", Direction::Read, 1 << 24, 32, Io::Buffered, 0.45),
            mistake("buffered writes", Direction::Write, 1 << 20, 1, Io::Buffered, 0.61),
        ],
        remarks: vec!["buffered writes above 8 in flight were left out: no time".into()],
    }
}

/// The same with every text hostile.
fn poisoned() -> Probe {
    let mut probe = synthetic();
    let text = hostile();
    for field in [&mut probe.haul, &mut probe.host, &mut probe.path, &mut probe.engine] {
        field.clone_from(&text);
    }
    let s = &mut probe.storage;
    for field in [&mut s.id, &mut s.kind, &mut s.source, &mut s.mount_point] {
        field.clone_from(&text);
    }
    probe.mistakes[0].what.clone_from(&text);
    probe.remarks.push(text);
    probe
}

fn passports() -> Vec<(Passport, Vec<String>)> {
    [synthetic(), poisoned()]
        .map(|probe| {
            (Passport { probe, age: Duration::from_secs(3 * 86400) }, vec!["old: probe again".into()])
        })
        .into()
}

fn matched() -> Pairing {
    let probe = synthetic();
    Pairing {
        read: probe.read_best.unwrap(),
        write: probe.write_best.unwrap(),
        rate: 1.3e9,
        limited_by: Direction::Write,
        reason: "the sink writes slower than the source reads".into(),
        swapped_rate: Some(1.04e9),
        naive_rate: Some(0.26e9),
    }
}

/// Goal: the table holds each measured setting once, marks the best, and says what mistakes cost.
#[test]
fn tables_hold_the_sweep() {
    let probe = synthetic();
    let text = table::probe(&probe);
    let head = "read, sequential, GB/s, direct / buffered, order none; across: requests in flight, down: request size";
    let rows: Vec<&str> = text.split(head).nth(1).unwrap().lines().skip(1).take(6).collect();
    assert_eq!(rows[0].split_whitespace().collect::<Vec<_>>(), ["1", "2", "4", "8", "16", "32"]);
    assert!(rows[1].starts_with("  64 KiB") && rows[5].starts_with("  16 MiB"), "{text}");
    assert!(rows[1..].iter().all(|row| row.matches('/').count() == 6), "{text}");
    assert_eq!(text.matches('*').count(), 2, "the best of each direction: {text}");
    let mut other = synthetic();
    let setting = Setting { request_size: 1 << 20, depth: 16, order: Order::Strict, io: Io::Direct };
    other.read_best = Some(Best { rate: 3e9, setting });
    let marked: Vec<String> =
        table::probe(&other).lines().filter(|line| line.contains('*')).map(str::to_owned).collect();
    assert!(marked.len() == 2 && marked[0].starts_with("  strict"), "{marked:?}");
    assert_eq!(page::probe(&other).matches("class=\"best\"").count(), 1, "only where its order is shown");
    for line in
        ["buffered reads: 1.43 GB/s, 45 % lost", "  serial", "42 % of all sequential settings", "note: "]
    {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 110), "{text}");
    assert!(!table::probe(&poisoned()).chars().any(|c| c.is_control() && c != '\n'));
}

/// Goal: points measured several times are one cell, their median; a policy that few points have is no sweep.
#[test]
fn repeats_are_one_setting() {
    let mut probe = synthetic();
    let again = probe.points[0].clone();
    for rate in [1.0, 1e12] {
        probe.points.push(Point { rate, ..again.clone() });
    }
    let grid = Grid::of(&probe, Direction::Read, Pattern::Sequential).unwrap();
    assert_eq!(grid.rate(Io::Direct, 1 << 16, 1), Some(again.rate));
    assert_eq!((grid.sizes.len(), grid.depths.len()), (5, 6));
    let orders = Orders::of(&probe, Direction::Write).unwrap();
    assert_eq!((orders.request_size, orders.io, orders.curves.len()), (1 << 20, Io::Direct, 4));
    probe.points.clear();
    assert!(Grid::of(&probe, Direction::Read, Pattern::Sequential).is_none());
    assert!(Orders::of(&probe, Direction::Read).is_none());
    table::probe(&probe);
    check_page(&page::probe(&probe));
}

/// Goal: the page has every map, curve and point, is well formed, and texts from disks stay texts.
#[test]
fn pages_hold_everything() {
    let page = page::probe(&synthetic());
    check_page(&page);
    let count = synthetic().points.len();
    // 2 directions x (2 maps, 2 + 2 curves), 2 of orders, 2 of random offsets.
    assert_eq!(page.matches("<figure>").count(), 16);
    let (_, table) = page.split_once("All measurements").unwrap();
    assert_eq!(table.matches("<tr>").count(), count + 1);
    let (_, random) = page.split_once("Random against sequential offsets").unwrap();
    assert_eq!(random.split("</table>").next().unwrap().matches("<tr>").count(), 2 * 4 + 1);
    assert!(page.contains("2026-09-21 14:13:20 UTC"), "the date");
    assert!(!page.contains("http"));
    check_page(&page::probe(&poisoned()));
    check_page(&page::passports(&passports()));
    check_page(&page::passports(&[]));
    let mut odd = synthetic();
    odd.taken = u64::MAX;
    for (point, rate) in odd.points.iter_mut().zip([f64::NAN, f64::INFINITY, -1.0]) {
        point.rate = rate;
    }
    check_page(&page::probe(&odd));
    table::probe(&odd);
}

/// Goal: the pairing says both settings, the rate to expect, what limits it, and what other settings would
/// cost.
#[test]
fn pairings_say_what_to_expect() {
    let text = table::pairing(&synthetic(), &poisoned(), &matched());
    for part in
        ["expect  1.30 GB/s, limited by writing at the sink", "20 % lost", "80 % lost", "dtn1:/scratch/user"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'));
}

/// Goal: the list of passports names each storage, and the empty one says what to do.
#[test]
fn lists_name_each_storage() {
    let text = table::passports(&passports());
    assert!(text.contains("/dev/nvme0n1") && text.contains("old: probe again"), "{text}");
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'));
    assert!(table::passports(&[]).contains("haul probe storage"));
}

/// Goal: CSV has one line a point, each with as many fields as the header, and ends lines as RFC 4180 wants.
#[test]
fn csv_holds_each_point() {
    let probe = synthetic();
    let text = csv::points(&probe);
    let lines: Vec<&str> = text.split_terminator("\r\n").collect();
    assert_eq!(lines.len(), probe.points.len() + 1);
    assert!(lines.iter().all(|line| line.split(',').count() == 12 && !line.contains(['\r', '\n', '"'])));
    assert!(text.ends_with("\r\n"));
    assert!(lines[1].starts_with("read,sequential,direct,none,65536,1,"), "{}", lines[1]);
}

/// Goal: every line is what docs/probe.schema.json says, each field in it, and a summary is a probe again.
#[test]
fn lines_follow_the_schema() {
    let root: Value = serde_json::from_str(include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/probe.schema.json"
    )))
    .unwrap();
    let mut out = Vec::new();
    let probe = poisoned();
    let plan = haul_probe::Plan {
        request: haul_probe::Request::new("/x"),
        identity: probe.storage.clone(),
        size: 1 << 30,
        bytes_max: 8 << 30,
        seconds_max: 60.0,
        settings: 84,
        warnings: vec!["the file system is nearly full".into()],
    };
    json::started(&mut out, &plan, "2026-01-01T00:00:00Z".into()).unwrap();
    json::point(&mut out, &probe.points[0]).unwrap();
    json::pairing(&mut out, &probe, &probe, &matched()).unwrap();
    json::passport(&mut out, &passports()[0].0, &["old".into()]).unwrap();
    json::refused(&mut out, "damaged".into()).unwrap();
    let failed = json::Ending { status: "failed", exit_code: 1, error: Some("no space"), probe: None };
    json::summary(&mut out, &failed).unwrap();
    let whole = json::Ending { status: "complete", exit_code: 0, error: None, probe: Some(&probe) };
    json::summary(&mut out, &whole).unwrap();
    let text = String::from_utf8(out).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 7);
    for line in &lines {
        validator::validate(line, &root, &root).unwrap();
        let name = line["event"].as_str().unwrap();
        assert_eq!(validator::unknown_fields(line, &root["$defs"][name]), [""; 0], "{name}");
    }
    let summary = lines.last().unwrap();
    for best in ["read_best", "write_best"] {
        for field in ["rate", "request_size", "depth", "order", "io"] {
            assert!(!summary[best][field].is_null(), "{best}.{field}");
        }
    }
    let again: Probe = serde_json::from_value(summary.clone()).unwrap();
    // Floats may lose their last bit on the way.
    assert_eq!(
        (again.points.len(), &again.host, &again.storage),
        (probe.points.len(), &probe.host, &probe.storage)
    );
    assert_eq!(again.read_best.map(|best| best.setting), probe.read_best.map(|best| best.setting));
    let mut wrong = summary.clone();
    wrong["read_best"]["io"] = "both".into();
    assert!(validator::validate(&wrong, &root, &root).is_err(), "the schema bites");
}

/// Goal: the live line tells the phase, what is left and the best so far, and fits any width.
#[test]
fn live_lines_fit() {
    use haul_probe::{ProbeEvent, ProbeProgress, StoragePhase};
    let mut live = live::Live::default();
    assert_eq!(live.line(80), "");
    let probe = synthetic();
    for point in &probe.points {
        live.update(&ProbeEvent::Point(point.clone()));
    }
    live.update(&ProbeEvent::Progress(ProbeProgress {
        phase: StoragePhase::Grid,
        done: 12,
        points_total: 84,
        bytes: 3_200_000_000,
        seconds: 14.0,
        seconds_left: 46.0,
    }));
    let line = live.line(200);
    assert!(line.starts_with("grid: 12 of at most 84, 46 s left, best read 2."), "{line}");
    assert!(line.ends_with("3.20 GB moved"), "{line}");
    for width in 0..120 {
        assert!(live.line(width).chars().count() <= width);
    }
}
