//! Probes for programs: JSON objects, one a line, as docs/probe.schema.json says.
//!
//! Invariant: of `haul probe storage`, `started` comes first and `summary` last. The summary holds the whole
//! probe in the library's own form, so that the file of `--json` can be given to `haul probe pair`.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

use haul_probe::passport::Passport;
use haul_probe::{Best, Pairing, Plan, Point, Probe, StorageIdentity};
use serde::Serialize;

use crate::report::json::PathFields;

/// Version of the schema.
const SCHEMA: u32 = 1;

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum Line<'a> {
    Started {
        schema: u32,
        haul: &'a str,
        time: String,
        #[serde(flatten)]
        path: PathFields,
        storage: &'a StorageIdentity,
        size: u64,
        bytes_max: u64,
        seconds_max: f64,
        settings: usize,
        warnings: &'a [String],
    },
    Point(&'a Point),
    Summary {
        status: &'a str,
        exit_code: i32,
        error: Option<&'a str>,
        #[serde(flatten)]
        found: Found<'a>,
    },
    Pairing {
        schema: u32,
        source: Side<'a>,
        sink: Side<'a>,
        #[serde(flatten)]
        pairing: &'a Pairing,
    },
    Passport {
        schema: u32,
        age_seconds: u64,
        hints: &'a [String],
        probe: &'a Probe,
    },
    Refused {
        error: String,
    },
}

/// What a summary holds. A probe that did not end has no best, and says so.
#[derive(Serialize)]
#[serde(untagged)]
enum Found<'a> {
    Probe(&'a Probe),
    Nothing { read_best: Option<Best>, write_best: Option<Best> },
}

/// One side of a pairing.
#[derive(Serialize)]
struct Side<'a> {
    host: &'a str,
    path: &'a str,
    storage: &'a StorageIdentity,
    taken: u64,
}

impl Side<'_> {
    fn of(probe: &Probe) -> Side<'_> {
        Side { host: &probe.host, path: &probe.path, storage: &probe.storage, taken: probe.taken }
    }
}

/// How a probe ended.
pub struct Ending<'a> {
    pub status: &'a str,
    pub exit_code: i32,
    pub error: Option<&'a str>,
    pub probe: Option<&'a Probe>,
}

pub fn started(out: &mut impl Write, plan: &Plan, time: String) -> io::Result<()> {
    write(
        out,
        &Line::Started {
            schema: SCHEMA,
            haul: env!("CARGO_PKG_VERSION"),
            time,
            path: PathFields::new(plan.request.path.as_os_str().as_bytes()),
            storage: &plan.identity,
            size: plan.size,
            bytes_max: plan.bytes_max,
            seconds_max: plan.seconds_max,
            settings: plan.settings,
            warnings: &plan.warnings,
        },
    )
}

pub fn point(out: &mut impl Write, point: &Point) -> io::Result<()> {
    write(out, &Line::Point(point))
}

pub fn summary(out: &mut impl Write, ending: &Ending) -> io::Result<()> {
    let found = match ending.probe {
        Some(probe) => Found::Probe(probe),
        None => Found::Nothing { read_best: None, write_best: None },
    };
    let Ending { status, exit_code, error, .. } = *ending;
    write(out, &Line::Summary { status, exit_code, error, found })
}

pub fn pairing(out: &mut impl Write, source: &Probe, sink: &Probe, pairing: &Pairing) -> io::Result<()> {
    write(out, &Line::Pairing { schema: SCHEMA, source: Side::of(source), sink: Side::of(sink), pairing })
}

pub fn passport(out: &mut impl Write, passport: &Passport, hints: &[String]) -> io::Result<()> {
    let age_seconds = passport.age.as_secs();
    write(out, &Line::Passport { schema: SCHEMA, age_seconds, hints, probe: &passport.probe })
}

/// A file in the state directory that is no passport.
pub fn refused(out: &mut impl Write, error: String) -> io::Result<()> {
    write(out, &Line::Refused { error })
}

fn write(out: &mut impl Write, line: &Line) -> io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    out.write_all(b"\n")?;
    out.flush()
}
