//! A probe of a network that never was, told in every form.

use haul_probe::network::HostLimits;
use haul_probe::network::{Advice, Best, FORMAT, KIND, LeftOut, Limit};
use serde_json::Value;

use super::*;
use crate::report::html::tests::{check_page, hostile};
use crate::report::validator;

/// A long path in round figures: 25 MB/s each stream, 120 MB/s in all.
fn synthetic() -> Network {
    let setting =
        |streams, congestion: &str, window| Setting { streams, window, congestion: congestion.into() };
    let mut points = Vec::new();
    for (control, each) in [("cubic", 2.5e7), ("bbr", 5e7)] {
        for streams in [1_u16, 2, 4, 8] {
            let rate = (each * f64::from(streams)).min(1.2e8);
            points.push(Point {
                setting: setting(streams, control, None),
                rate,
                bytes: rate as u64,
                seconds: 1.0,
                sent: rate as u64,
                resent: rate as u64 / 5000,
                rtt_min: 0.1281,
                rtt_median: 0.1291,
                rtt_p99: 0.15,
                cpu_seconds: 0.06,
                limit: Limit::Window,
                rising: streams == 2,
            });
        }
    }
    let window = Point { setting: setting(4, "bbr", Some(16 << 20)), ..points[6].clone() };
    points.push(window);
    let limits = HostLimits {
        rmem_auto: Some(6 << 20),
        wmem_auto: Some(4 << 20),
        rmem_fixed: Some(425_984),
        wmem_fixed: None,
    };
    let near = End { limits, cpus: 4 };
    let best = Best { setting: setting(4, "bbr", None), rate: 1.2e8, loss: 2e-4 };
    let left = |streams, control: &str| LeftOut {
        setting: setting(streams, control, None),
        why: "more streams brought nothing more twice".into(),
    };
    Network {
        format: FORMAT,
        kind: KIND.into(),
        haul: "0.1.0".into(),
        host: "dtn1".into(),
        way: haul_probe::network::Way::To,
        to: "me@dtn2.example.org".into(),
        address: Some([192, 0, 2, 7].into()),
        path: "tcp to 192.0.2.7:50000".into(),
        protect: "tls".into(),
        taken: 1_790_000_000,
        seconds: 41.5,
        joined_in: Some(0.6),
        bytes: 4 << 30,
        rtt_min: 0.1281,
        rtt_median: 0.1291,
        rtt_p99: 0.15,
        loss: 2e-4,
        mtu: 1500,
        mss: 1448,
        reordering: 12,
        reorderings: 7,
        near,
        far: Some(End { cpus: 8, ..near }),
        left_out: vec![left(16, "cubic"), left(16, "bbr")],
        best: Some(Best { setting: setting(8, "bbr", None), ..best.clone() }),
        recommended: Some(best),
        points,
        limited_by: "the path".into(),
        advice: Some(Advice { text: "net.ipv4.tcp_wmem max 4 MiB".into() }),
        cpu_near: Some(0.41),
        cpu_far: None,
        remarks: vec!["some rates still rose".into()],
    }
}

/// The same with every text hostile.
fn poisoned() -> Network {
    let mut probe = synthetic();
    let text = hostile();
    let fields = [&mut probe.haul, &mut probe.host, &mut probe.to, &mut probe.path, &mut probe.protect];
    for field in fields.into_iter().chain([&mut probe.limited_by, &mut probe.remarks[0]]) {
        field.clone_from(&text);
    }
    for point in &mut probe.points {
        point.setting.congestion.clone_from(&text);
    }
    for left in &mut probe.left_out {
        (left.why, left.setting.congestion) = (text.clone(), text.clone());
    }
    for best in [&mut probe.best, &mut probe.recommended].into_iter().flatten() {
        best.setting.congestion.clone_from(&text);
    }
    probe.advice = Some(Advice { text });
    probe
}

/// Goal: the table has each rate in its place, marks the one to use and those that rose, and shows what was
/// not measured as such.
#[test]
fn the_table_has_each_rate_in_its_place() {
    let text = table::probe(&synthetic());
    let line = |begin: &str| {
        let found = text.lines().find(|line| line.trim_start().starts_with(begin));
        found.unwrap_or_else(|| panic!("no line {begin}: {text}")).split_whitespace().collect::<Vec<_>>()
    };
    assert_eq!(line("1 "), ["1", "2", "4", "8", "16"]);
    assert_eq!(line("cubic"), ["cubic", "25.0", "50.0+", "100", "120", "-"]);
    assert_eq!(line("bbr "), ["bbr", "50.0", "100+", "*120", "120", "-"]);
    assert_eq!(line("bbr, 16 MiB")[3..], ["-", "-", "120", "-", "-"]);
    for part in [
        "round trip 128.1 ms",
        "path MTU 1500 bytes, segments of 1448",
        "reordering seen 7 times, by up to 12",
        "use: 4 streams, bbr, the kernel's own window: 120 MB/s, 0.020 % sent again",
        "would help: net.ipv4.tcp_wmem",
        "2 settings were not measured: more streams",
        "processors: 0.41 s per GB here, ? there",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

/// Goal: hostile names do no harm in any form.
#[test]
fn hostile_names_do_no_harm() {
    for probe in [synthetic(), poisoned()] {
        check_page(&page::probe(&probe));
        let text = table::probe(&probe);
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
        let csv = csv::points(&probe);
        assert_eq!(csv.split_terminator("\r\n").count(), probe.points.len() + 1);
        assert!(csv.split_terminator("\r\n").all(|line| line.matches(',').count() == 13), "{csv}");
    }
}

/// Goal: every line of `--json` is as the schema says.
#[test]
fn events_follow_the_schema() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/probe.schema.json");
    let schema: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let mut out = Vec::new();
    for probe in [synthetic(), poisoned()] {
        let start = json::Start {
            to: &probe.to,
            address: probe.address,
            path: &probe.path,
            rtt: 0.1,
            settings: 21,
            seconds_max: 60.0,
        };
        json::started(&mut out, &start, "2026-01-01T00:00:00Z".into()).unwrap();
        json::point(&mut out, &probe.points[0]).unwrap();
        json::passport(&mut out, &probe, 7).unwrap();
        for (status, probe) in [("complete", Some(&probe)), ("failed", None)] {
            json::summary(&mut out, &json::Ending { status, exit_code: 0, error: None, probe }).unwrap();
        }
    }
    let text = String::from_utf8(out).unwrap();
    assert_eq!(text.lines().count(), 10);
    for line in text.lines() {
        let value: Value = serde_json::from_str(line).unwrap();
        validator::validate(&value, &schema, &schema).unwrap_or_else(|error| panic!("{error}\n{line}"));
    }
}
