//! What probes of paths found, told to people and programs: text and CSV here, JSON, and a page.

use std::fmt::Write;

use haul_probe::path::{Part, PathProbe};

use super::probe::rate;
use super::probe::table::columns;
use crate::escape;
use crate::progress::{bytes, time};

pub mod json;
pub mod page;

/// The name of a part for people.
pub fn part_name(part: &str) -> String {
    part.replace('_', " ")
}

/// What a part can give, in words.
pub fn gives(part: &Part) -> String {
    part.rate.map_or("no limit".into(), rate)
}

/// What it takes to begin, and how long the source will take, where that is known.
pub fn besides(probe: &PathProbe) -> String {
    // Shorter than anybody notices.
    let startup = probe.startup.filter(|startup| *startup >= 0.001);
    let startup = startup.map(|startup| format!(", and takes {} to begin", time(startup)));
    let whole = probe.bytes.zip(probe.expected_seconds);
    let whole = whole.map(|(size, seconds)| format!("; {} will take about {}", bytes(size), time(seconds)));
    startup.unwrap_or_default() + &whole.unwrap_or_default()
}

/// A whole probe, as text for a terminal.
pub fn text(probe: &PathProbe) -> String {
    let (source, destination) = (escape::text(&probe.source), escape::text(&probe.destination));
    let mut out = format!("{source} to {destination}, measured in {}\n\n", time(probe.seconds));
    let mut rows = Vec::new();
    for part in &probe.parts {
        let mark = if Some(&part.part) == probe.weakest.as_ref() { "*" } else { "" };
        rows.push(vec![
            escape::text(&part_name(&part.part)),
            format!("{mark}{}", gives(part)),
            escape::text(&part.place),
            escape::text(&part.how),
        ]);
    }
    columns(&mut out, &rows, 2);
    out.push('\n');
    if let Some(weakest) = &probe.weakest {
        let _ = writeln!(out, "weakest: {}", escape::text(&part_name(weakest)));
    }
    match probe.expected {
        Some(expected) => {
            let _ =
                writeln!(out, "a copy of large files will reach about {}{}", rate(expected), besides(probe));
        }
        None => out.push_str("nothing limits a copy that was measured\n"),
    }
    for remark in &probe.remarks {
        let _ = writeln!(out, "note: {}", escape::text(remark));
    }
    out
}

/// The parts as CSV, RFC 4180: a header, one line for each, CRLF. Rates in bytes per second, empty where
/// there is no limit.
pub fn csv(probe: &PathProbe) -> String {
    let mut out = "part,rate,weakest,place,how\r\n".to_owned();
    let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    for part in &probe.parts {
        let rate = part.rate.map_or(String::new(), |rate| rate.to_string());
        let weakest = Some(&part.part) == probe.weakest.as_ref();
        let (place, how) = (quoted(&part.place), quoted(&part.how));
        let _ = write!(out, "{},{rate},{weakest},{place},{how}\r\n", part.part);
    }
    out
}

#[cfg(test)]
#[path = "path/tests.rs"]
mod tests;
