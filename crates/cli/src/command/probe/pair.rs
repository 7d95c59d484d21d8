//! `haul probe pair SOURCE.json SINK.json`.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use haul::errno;
use haul_probe::Probe;
use haul_probe::passport::{self, PassportError};

use super::super::{FAILED, complain};
use crate::args::probe::Pair;
use crate::report::probe::{json, table};

/// Longest file that is read as a probe: far more than one with every setting there is.
const FILE_LEN_MAX: u64 = 64 << 20;

pub fn run(args: &Pair) -> i32 {
    let (source, sink) = match (read(&args.source), read(&args.sink)) {
        (Ok(source), Ok(sink)) => (source, sink),
        (Err(error), _) | (_, Err(error)) => return complain(&error, FAILED),
    };
    let pairing = match haul_probe::pair(&source, &sink) {
        Ok(pairing) => pairing,
        Err(error) => return complain(&error.to_string(), FAILED),
    };
    let mut out = Vec::new();
    if args.json {
        json::pairing(&mut out, &source, &sink, &pairing).expect("memory takes all that is written");
    } else {
        out = table::pairing(&source, &sink, &pairing).into_bytes();
    }
    super::print(&out)
}

/// Reads a probe from any of the files that hold one.
fn read(path: &Path) -> Result<Probe, String> {
    let failed = |error| format!("cannot read {}: {}", path.display(), errno::text(error));
    let mut content = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(FILE_LEN_MAX + 1).read_to_end(&mut content).map_err(failed)?;
    if content.len() as u64 > FILE_LEN_MAX {
        return Err(format!("{} is far too long for a probe", path.display()));
    }
    passport::parse(&content, path).map_err(|error| match error {
        PassportError::Damaged { why, .. } => format!(
            "{} holds no probe ({why}): give a file of `haul probe storage --save-as`, the output of its --json, \
             or a storage passport",
            path.display()
        ),
        other => other.to_string(),
    })
}
