//! The passport of a pair of hosts: the last probe of the network between them, kept for the next copy.
//!
//! In: a state directory (the caller's) and probes. Out: the passport of a host as typed, with its age, the
//! values that a copy starts with, and whether the network has changed since.
//!
//! One file per host as typed and way of the data, `networks/<name>-<hash>.json` (`-from.json` for data from
//! there), the probe's own JSON form, replaced by rename. It counts only while the name leads to the same
//! address. A file that is damaged or of a newer haul is an error for the caller to tell and to go on
//! without.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::network::{Best, FORMAT, KIND, Network, Way};
pub use super::storage::{AGE_MAX, DRIFT, PassportError};
use super::storage::{age_of, age_text, date, keep, read_file};
use crate::options::Start;

/// Where passports of networks lie in the state directory.
const DIR: &str = "networks";
/// Most passports that are listed.
const PASSPORTS_MAX: usize = 10_000;
/// Share of bytes sent again from which on a path counts as one that loses.
const LOSSY: f64 = 3e-5;
/// Characters of a host that are in the name of its file.
const NAME_MAX: usize = 64;

/// A probe that was kept.
#[derive(Clone, Debug)]
pub struct Passport {
    /// What was measured.
    pub probe: Network,
    /// Since it was measured.
    pub age: Duration,
}

impl Passport {
    /// "3 days", "5 hours"
    pub fn age_text(&self) -> String {
        age_text(self.age)
    }
}

/// All passports of a state directory.
#[derive(Debug, Default)]
pub struct Listing {
    /// The youngest first.
    pub passports: Vec<Passport>,
    /// Files that are no passports for us.
    pub refused: Vec<PassportError>,
}

/// The passport of the way to `host`, as typed, or of that from it, if there is one.
///
/// # Errors
/// It is there but cannot be read: see [`PassportError`]; go on without.
pub fn load(state: &Path, host: &str, way: Way) -> Result<Option<Passport>, PassportError> {
    // The hash may be another host's.
    let found = read(&path_of(state, host, way))?;
    Ok(found.filter(|passport| passport.probe.to == host && passport.probe.way == way))
}

/// All passports.
///
/// # Errors
/// The directory cannot be read; that there is none is no error.
pub fn list(state: &Path) -> Result<Listing, PassportError> {
    let dir = state.join(DIR);
    let failed = |source| PassportError::Io { op: "read directory", path: dir.clone(), source };
    let mut listing = Listing::default();
    let entries = match std::fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(listing),
        Err(e) => return Err(failed(e)),
    };
    for entry in entries.take(PASSPORTS_MAX) {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        match read(&path) {
            Ok(passport) => listing.passports.extend(passport),
            Err(refused) => listing.refused.push(refused),
        }
    }
    listing
        .passports
        .sort_by(|a, b| (a.age, &a.probe.to, a.probe.way).cmp(&(b.age, &b.probe.to, b.probe.way)));
    Ok(listing)
}

/// Keeps a probe as its pair's passport, instead of an older one. Returns where.
///
/// # Errors
/// The file cannot be written; an older passport stays.
pub fn save(state: &Path, probe: &Network) -> Result<PathBuf, PassportError> {
    let path = path_of(state, &probe.to, probe.way);
    let json = serde_json::to_vec_pretty(probe);
    let json = json.map_err(|e| PassportError::Io { op: "write", path: path.clone(), source: e.into() })?;
    keep(&path, json).map(|()| path)
}

/// How far the rate of a new probe is from an older one's, in words; `None`: not far.
pub fn drift(old: &Network, new: &Network) -> Option<String> {
    let rate = |probe: &Network| probe.best.as_ref().map(|best| best.rate).filter(|rate| *rate > 0.0);
    let (was, is) = (rate(old)?, rate(new)?);
    let change = is / was - 1.0;
    if is >= was * (1.0 - DRIFT) && is <= was / (1.0 - DRIFT) || !change.is_finite() {
        return None;
    }
    let how = if change < 0.0 { "less" } else { "more" };
    let moved = match (old.address, new.address) {
        (Some(then), Some(now)) if then != now => format!(" (then {then}, now {now})"),
        _ => String::new(),
    };
    let date = date(old.taken);
    Some(format!(
        "the network {} {} carries {:.0} % {how} than on {date}{moved}",
        if new.way == Way::To { "to" } else { "from" },
        new.to,
        change.abs() * 100.0
    ))
}

/// How a copy over this network starts. `None`: the passport is too old ([`AGE_MAX`]), or of data that went
/// through ssh.
pub fn start(passport: &Passport) -> Option<Start> {
    let probe = &passport.probe;
    let Best { setting, rate, loss } = probe.recommended.as_ref().filter(|_| passport.age <= AGE_MAX)?;
    Some(Start {
        address: probe.address?,
        streams: setting.streams,
        window: setting.window,
        congestion: Some(setting.congestion.clone()).filter(|name| !name.is_empty()),
        rate: *rate as u64,
        lossy: *loss > LOSSY,
        why: format!("from the network passport of {} ago", passport.age_text()),
    })
}

fn path_of(state: &Path, host: &str, way: Way) -> PathBuf {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' || c == '-' { c } else { '_' };
    let name: String = host.chars().take(NAME_MAX).map(plain).collect();
    let hash = blake3::hash(host.as_bytes()).to_hex();
    let way = if way == Way::From { "-from" } else { "" };
    state.join(DIR).join(format!("{}-{}{way}.json", name.trim_start_matches('.'), &hash[..8]))
}

fn read(path: &Path) -> Result<Option<Passport>, PassportError> {
    let Some(json) = read_file(path)? else { return Ok(None) };
    let probe = parse(&json, path)?;
    let age = age_of(probe.taken);
    Ok(Some(Passport { probe, age }))
}

/// Reads a probe from its JSON form. `path` is for the error.
///
/// # Errors
/// [`PassportError::Newer`] or [`PassportError::Damaged`].
pub fn parse(json: &[u8], path: &Path) -> Result<Network, PassportError> {
    let damaged = |why: String| PassportError::Damaged { path: path.to_owned(), why };
    let value: Value = serde_json::from_slice(json).map_err(|e| damaged(e.to_string()))?;
    if value.get("kind").and_then(Value::as_str) != Some(KIND) {
        return Err(damaged("it is no probe of a network".into()));
    }
    // The version first: a newer form may differ in everything else.
    match value.get("format").and_then(Value::as_u64) {
        Some(format) if format > u64::from(FORMAT) => {
            return Err(PassportError::Newer { path: path.to_owned(), format });
        }
        Some(1..) => {}
        _ => return Err(damaged("its format is no version".into())),
    }
    let probe: Network = serde_json::from_value(value).map_err(|e| damaged(e.to_string()))?;
    let good = |best: &Best| {
        (1..=64).contains(&best.setting.streams)
            && best.rate.is_finite()
            && best.rate >= 0.0
            && best.setting.window != Some(0)
            && best.setting.congestion.len() <= haul_transport::tcp::CONTROL_LEN_MAX
    };
    if ![&probe.best, &probe.recommended].into_iter().flatten().all(good) {
        return Err(damaged("a setting in it is none".into()));
    }
    Ok(probe)
}

#[cfg(test)]
#[path = "pair_tests.rs"]
mod tests;
