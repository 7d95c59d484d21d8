use haul_probe::path::{FORMAT, KIND};
use serde_json::Value;

use super::*;
use crate::report::html::tests::{check_page, hostile};
use crate::report::validator;

fn synthetic(word: &str) -> PathProbe {
    let part = |part: &str, rate| Part {
        part: part.into(),
        rate,
        place: word.into(),
        how: format!("\"{word}\", x"),
    };
    PathProbe {
        format: FORMAT,
        kind: KIND.into(),
        haul: "0.1.0".into(),
        host: word.into(),
        source: word.into(),
        destination: "me@dtn:/scratch".into(),
        taken: 1_790_000_000,
        seconds: 61.0,
        parts: vec![
            part("source_storage", Some(2e9)),
            part("source_host", Some(3e9)),
            part("network", None),
            part("sink_host", Some(1e9)),
            part("sink_storage", Some(1.5e8)),
        ],
        weakest: Some("sink_storage".into()),
        expected: Some(1.5e8),
        startup: Some(0.5),
        bytes: Some(3_000_000_000),
        expected_seconds: Some(20.5),
        source_storage: None,
        network: None,
        sink_storage: None,
        remarks: vec![word.into()],
    }
}

/// Goal: every form has all five parts and names the weakest and the rate to expect; what others wrote is
/// made safe in each.
#[test]
fn every_form_says_what_was_found() {
    let text = text(&synthetic("plain"));
    for part in [
        "source storage",
        "3.00 GB/s",
        "network",
        "no limit",
        "*150 MB/s",
        "weakest: sink storage",
        "about 150 MB/s, and takes 0.5 s to begin; 3.00 GB will take about 21 s\n",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let csv = csv(&synthetic("plain"));
    assert_eq!(csv.lines().count(), 6);
    assert!(csv.contains("sink_storage,150000000,true,\"plain\",\"\"\"plain\"\", x\"\r\n"), "{csv}");
    assert!(csv.contains("network,,false,"));
    check_page(&page::probe(&synthetic("plain")));
    check_page(&page::probe(&synthetic(&hostile())));
    let safe = super::text(&synthetic("a\x1b[2Jb\r"));
    assert!(safe.chars().all(|c| c == '\n' || !c.is_control()), "{safe:?}");
}

/// Goal: the last event holds the probe, and one that failed says that nothing is to be expected.
#[test]
fn the_last_event_holds_the_probe() {
    let line = |ending: &json::Ending| {
        let mut out = Vec::new();
        json::summary(&mut out, ending).unwrap();
        serde_json::from_slice::<Value>(&out).unwrap()
    };
    let probe = synthetic("plain");
    let whole = line(&json::Ending { status: "complete", exit_code: 0, error: None, probe: Some(&probe) });
    assert!(
        whole["event"] == "path_summary" && whole["expected"] == 1.5e8 && whole["weakest"] == "sink_storage"
    );
    assert_eq!(serde_json::from_value::<PathProbe>(whole).unwrap(), probe);
    let failed = line(&json::Ending { status: "failed", exit_code: 1, error: Some("no"), probe: None });
    assert!(failed["expected"].is_null() && failed["error"] == "no");
}

/// Goal: every line of `--json` is as the schema says.
#[test]
fn events_follow_the_schema() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/probe.schema.json");
    let schema: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let mut out = Vec::new();
    json::started(&mut out, (90.0, 1 << 32), &["w".into()], "2026-01-01T00:00:00Z".into()).unwrap();
    let probe = synthetic("plain");
    for (status, probe) in [("complete", Some(&probe)), ("failed", None)] {
        json::summary(&mut out, &json::Ending { status, exit_code: 0, error: None, probe }).unwrap();
    }
    let text = String::from_utf8(out).unwrap();
    assert_eq!(text.lines().count(), 3);
    for line in text.lines() {
        let value: Value = serde_json::from_str(line).unwrap();
        validator::validate(&value, &schema, &schema).unwrap_or_else(|error| panic!("{error}\n{line}"));
    }
    let wrong = text.lines().nth(1).unwrap().replace("sink_host", "elsewhere");
    let wrong: Value = serde_json::from_str(&wrong).unwrap();
    assert!(validator::validate(&wrong, &schema, &schema).is_err(), "the schema bites");
}
