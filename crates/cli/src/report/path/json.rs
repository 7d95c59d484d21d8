//! Probes of paths for programs: JSON objects, one a line, as docs/probe.schema.json says.
//!
//! Invariant: `path_started` comes first and `path_summary` last; it holds the whole probe.

use std::io::{self, Write};

use haul_probe::network::Point;
use haul_probe::path::PathProbe;
use serde::Serialize;

/// Version of the schema.
const SCHEMA: u32 = 1;

#[derive(Serialize)]
#[serde(tag = "event")]
enum Line<'a> {
    #[serde(rename = "path_started")]
    Started {
        schema: u32,
        haul: &'a str,
        time: String,
        seconds_max: f64,
        bytes_max: u64,
        warnings: &'a [String],
    },
    #[serde(rename = "network_point")]
    Point(&'a Point),
    #[serde(rename = "path_summary")]
    Summary {
        status: &'a str,
        exit_code: i32,
        error: Option<&'a str>,
        #[serde(flatten)]
        found: Found<'a>,
    },
}

/// What a summary holds. A probe that did not end expects nothing, and says so.
#[derive(Serialize)]
#[serde(untagged)]
enum Found<'a> {
    Probe(&'a PathProbe),
    Nothing { expected: Option<f64> },
}

/// How a probe ended.
pub struct Ending<'a> {
    pub status: &'a str,
    pub exit_code: i32,
    pub error: Option<&'a str>,
    pub probe: Option<&'a PathProbe>,
}

pub fn started(
    out: &mut impl Write,
    (seconds_max, bytes_max): (f64, u64),
    warnings: &[String],
    time: String,
) -> io::Result<()> {
    let haul = env!("CARGO_PKG_VERSION");
    write(out, &Line::Started { schema: SCHEMA, haul, time, seconds_max, bytes_max, warnings })
}

pub fn point(out: &mut impl Write, point: &Point) -> io::Result<()> {
    write(out, &Line::Point(point))
}

pub fn summary(out: &mut impl Write, ending: &Ending) -> io::Result<()> {
    let found = ending.probe.map_or(Found::Nothing { expected: None }, Found::Probe);
    let Ending { status, exit_code, error, .. } = *ending;
    write(out, &Line::Summary { status, exit_code, error, found })
}

fn write(out: &mut impl Write, line: &Line) -> io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    out.write_all(b"\n")?;
    out.flush()
}
