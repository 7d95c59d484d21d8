//! Probes of networks for programs: JSON objects, one a line, as docs/probe.schema.json says.
//!
//! Invariant: `network_started` comes first (when the ends have met) and `network_summary` last; it holds the
//! whole probe.

use std::io::{self, Write};
use std::net::IpAddr;

use haul_probe::network::{Best, Network, Point};
use serde::Serialize;

/// Version of the schema.
const SCHEMA: u32 = 1;

#[derive(Serialize)]
#[serde(tag = "event")]
enum Line<'a> {
    #[serde(rename = "network_started")]
    Started {
        schema: u32,
        haul: &'a str,
        time: String,
        to: &'a str,
        address: Option<IpAddr>,
        path: &'a str,
        rtt: f64,
        settings: usize,
        seconds_max: f64,
    },
    #[serde(rename = "network_point")]
    Point(&'a Point),
    #[serde(rename = "network_summary")]
    Summary {
        status: &'a str,
        exit_code: i32,
        error: Option<&'a str>,
        #[serde(flatten)]
        found: Found<'a>,
    },
    #[serde(rename = "network_passport")]
    Passport { schema: u32, age_seconds: u64, probe: &'a Network },
}

/// What a summary holds. A probe that did not end recommends nothing, and says so.
#[derive(Serialize)]
#[serde(untagged)]
enum Found<'a> {
    Probe(&'a Network),
    Nothing { recommended: Option<Best> },
}

/// How a probe ended.
pub struct Ending<'a> {
    pub status: &'a str,
    pub exit_code: i32,
    pub error: Option<&'a str>,
    pub probe: Option<&'a Network>,
}

/// What was met.
pub struct Start<'a> {
    pub to: &'a str,
    pub address: Option<IpAddr>,
    pub path: &'a str,
    pub rtt: f64,
    pub settings: usize,
    pub seconds_max: f64,
}

pub fn started(out: &mut impl Write, start: &Start, time: String) -> io::Result<()> {
    let Start { to, address, path, rtt, settings, seconds_max } = *start;
    let haul = env!("CARGO_PKG_VERSION");
    let schema = SCHEMA;
    write(out, &Line::Started { schema, haul, time, to, address, path, rtt, settings, seconds_max })
}

pub fn point(out: &mut impl Write, point: &Point) -> io::Result<()> {
    write(out, &Line::Point(point))
}

pub fn summary(out: &mut impl Write, ending: &Ending) -> io::Result<()> {
    let found = match ending.probe {
        Some(probe) => Found::Probe(probe),
        None => Found::Nothing { recommended: None },
    };
    let Ending { status, exit_code, error, .. } = *ending;
    write(out, &Line::Summary { status, exit_code, error, found })
}

pub fn passport(out: &mut impl Write, probe: &Network, age_seconds: u64) -> io::Result<()> {
    write(out, &Line::Passport { schema: SCHEMA, age_seconds, probe })
}

fn write(out: &mut impl Write, line: &Line) -> io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    out.write_all(b"\n")?;
    out.flush()
}
