//! The storage passport: the last probe of a file system, kept for the next transfer.
//!
//! In: a state directory (the caller's; nothing here reads the environment) and probes. Out: the passport of
//! a file system with its age, starting values for a transfer, and whether storage has changed since.
//!
//! One file per file system, `passports/<identity>.json`, the probe's own JSON form. It is replaced by
//! rename. A file that is damaged or of a newer haul is an error for the caller to tell and to go on without.

use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use haul_base::errno;
use haul_core::io::IoPolicy;
use serde_json::Value;

use super::{Best, Direction, Io, Pattern, Point, Probe, Setting, StorageIdentity};
use haul_storage::options::{Order, StorageOptions};

/// Where passports lie in the state directory.
const DIR: &str = "passports";
/// No passport is longer, bytes: a full probe has a thousand points of 300 bytes.
const FILE_MAX: u64 = 8 << 20;
/// Passports that are listed.
const PASSPORTS_MAX: usize = 10_000;
/// An older passport says nothing about a transfer.
pub const AGE_MAX: Duration = Duration::from_secs(90 * 24 * 3600);
/// A rate this far from the passport's is drift: a probe repeats itself within a tenth on a quiet system, and
/// a transfer has more to do than a probe.
pub const DRIFT: f64 = 0.25;
/// Direct or buffered is settled by the passport when the other reaches less than this share of the best.
const CLEARLY: f64 = 0.9;

/// A probe that was kept.
#[derive(Clone, Debug)]
pub struct Passport {
    /// What was measured.
    pub probe: Probe,
    /// Since it was measured.
    pub age: Duration,
}

/// Why a passport was not read or kept.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // The text of each says it.
pub enum PassportError {
    #[error("the passport {} is of format {format}, which this version of haul does not know (it knows {}): use a newer haul, or probe again", path.display(), super::FORMAT)]
    Newer { path: PathBuf, format: u64 },
    #[error("the passport {} is damaged and ignored ({why}): probe again to replace it", path.display())]
    Damaged { path: PathBuf, why: String },
    #[error("{op} {}: {}", path.display(), errno::text(source))]
    Io { op: &'static str, path: PathBuf, source: io::Error },
}

/// All passports of a state directory.
#[derive(Debug, Default)]
pub struct Listing {
    /// The youngest first.
    pub passports: Vec<Passport>,
    /// Files that are no passports for us.
    pub refused: Vec<PassportError>,
}

/// Storage is not what its passport says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drift {
    /// Read or written.
    pub direction: Direction,
    /// Bytes per second.
    pub was: f64,
    /// What it is.
    pub is: f64,
    /// Seconds since 1970 when the passport was taken.
    pub since: u64,
}

/// The passport of a file system, if there is one.
///
/// # Errors
/// It is there but cannot be read: see [`PassportError`]; go on without.
pub fn load(state: &Path, identity: &StorageIdentity) -> Result<Option<Passport>, PassportError> {
    read(&state.join(DIR).join(format!("{}.json", identity.id)))
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
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(listing),
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
    listing.passports.sort_by(|a, b| (a.age, &a.probe.storage.id).cmp(&(b.age, &b.probe.storage.id)));
    Ok(listing)
}

/// Keeps a probe of one direction beside what its file system's passport knows of the other. Returns where.
///
/// # Errors
/// As [`save`]'s. A passport that cannot be read is replaced.
pub fn add(state: &Path, probe: &Probe) -> Result<PathBuf, PassportError> {
    match load(state, &probe.storage) {
        Ok(Some(old)) => save(state, &merge(&old.probe, probe.clone())),
        Ok(None) | Err(_) => save(state, probe),
    }
}

/// A probe of one direction, with what an older one found of the other.
fn merge(old: &Probe, mut new: Probe) -> Probe {
    let has = [(Direction::Read, new.read_best.is_some()), (Direction::Write, new.write_best.is_some())];
    for (direction, has) in has {
        if has || age_of(old.taken) > AGE_MAX {
            continue;
        }
        match direction {
            Direction::Read => (new.read_best, new.read_flatness) = (old.read_best, old.read_flatness),
            Direction::Write => (new.write_best, new.write_flatness) = (old.write_best, old.write_flatness),
        }
        new.points.extend(old.points.iter().filter(|point| point.direction == direction).cloned());
        new.mistakes.extend(old.mistakes.iter().filter(|one| one.direction == direction).cloned());
        let what = if direction == Direction::Read { "reading" } else { "writing" };
        new.remarks.push(format!("{what} was measured on {}", date(old.taken)));
        break;
    }
    new
}

/// Keeps a probe as its file system's passport, instead of an older one. Returns where.
///
/// # Errors
/// The file cannot be written; an older passport stays.
pub fn save(state: &Path, probe: &Probe) -> Result<PathBuf, PassportError> {
    let dir = state.join(DIR);
    let path = dir.join(format!("{}.json", probe.storage.id));
    let failed = |op, path: &Path| {
        let path = path.to_owned();
        move |source| PassportError::Io { op, path, source }
    };
    if !is_plain(&probe.storage.id) {
        let refused = io::Error::new(io::ErrorKind::InvalidInput, "its identity cannot be a file's name");
        return Err(failed("keep passport", &path)(refused));
    }
    let json = serde_json::to_vec_pretty(probe).map_err(|e| failed("write", &path)(e.into()))?;
    keep(&path, json).map(|()| path)
}

/// Writes a passport in place of an older one, and makes its directory if need be.
pub(super) fn keep(path: &Path, mut json: Vec<u8>) -> Result<(), PassportError> {
    let failed = |op, path: &Path| {
        let path = path.to_owned();
        move |source| PassportError::Io { op, path, source }
    };
    let dir = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(dir).map_err(failed("make directory", dir))?;
    json.push(b'\n');
    // One name for each process: two that end at the same time both leave a whole file.
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let young = dir.join(format!(".{name}.{}", std::process::id()));
    let written = write_durably(&young, &json)
        .map_err(failed("write", &young))
        .and_then(|()| std::fs::rename(&young, path).map_err(failed("rename to", path)));
    if written.is_err() {
        // Nobody misses it.
        let _ = std::fs::remove_file(&young);
    }
    written
}

/// Reads a probe from its JSON form: a passport, or what `haul probe storage --json` printed (the last line
/// of it that is a probe or holds one under `probe`). `path` is for the error.
///
/// # Errors
/// [`PassportError::Newer`] or [`PassportError::Damaged`].
pub fn parse(json: &[u8], path: &Path) -> Result<Probe, PassportError> {
    let damaged = |why: String| PassportError::Damaged { path: path.to_owned(), why };
    let values: Result<Vec<Value>, _> = serde_json::Deserializer::from_slice(json).into_iter().collect();
    let values = values.map_err(|e| damaged(e.to_string()))?;
    let inner = |value: Value| match value {
        Value::Object(mut map) if !map.contains_key("format") => map.remove("probe"),
        value => Some(value),
    };
    let probe = values.into_iter().filter_map(inner).rfind(|value| value.get("format").is_some());
    let probe = probe.ok_or_else(|| damaged("no probe is in it".into()))?;
    // The version first: a newer form may differ in everything else.
    match probe.get("format").and_then(Value::as_u64) {
        Some(format) if format > u64::from(super::FORMAT) => {
            return Err(PassportError::Newer { path: path.to_owned(), format });
        }
        Some(1..) => {}
        _ => return Err(damaged("its format is no version".into())),
    }
    let probe: Probe = serde_json::from_value(probe).map_err(|e| damaged(e.to_string()))?;
    check(&probe).map_err(|why| damaged(why.into()))?;
    Ok(probe)
}

/// The best sequential setting of a direction. Of equal ones the least request size and depth.
pub fn best<'a>(points: impl Iterator<Item = &'a Point>, direction: Direction) -> Option<Best> {
    let points = points.filter(|point| {
        point.direction == direction && point.pattern == Pattern::Sequential && point.rate.is_finite()
    });
    let best = points.max_by(|a, b| a.rate.total_cmp(&b.rate).then(b.setting.cmp(&a.setting)))?;
    Some(Best { rate: best.rate, setting: best.setting })
}

/// Whether a rate that storage showed since (bytes per second; of a transfer that storage limited, or of a
/// new probe's best) is far from its passport's best.
pub fn drift(old: &Probe, direction: Direction, rate: f64) -> Option<Drift> {
    let best = match direction {
        Direction::Read => old.read_best,
        Direction::Write => old.write_best,
    };
    let was = best.map(|best| best.rate).filter(|was| *was > 0.0)?;
    let far = rate < was * (1.0 - DRIFT) || rate > was / (1.0 - DRIFT);
    (far && rate.is_finite()).then_some(Drift { direction, was, is: rate, since: old.taken })
}

/// How a transfer should start to drive this storage. Empty if the passport is too old ([`AGE_MAX`]) or has
/// no point of the direction. Direct or buffered, and the order, are left open unless one was clearly better:
/// the transfer itself compares the former.
pub fn starting_values(passport: &Passport, direction: Direction) -> StorageOptions {
    let probe = &passport.probe;
    let best = match direction {
        Direction::Read => probe.read_best,
        Direction::Write => probe.write_best,
    };
    let Some(mut best) = best.filter(|_| passport.age <= AGE_MAX) else { return StorageOptions::default() };
    let sequential = |point: &&Point| point.direction == direction && point.pattern == Pattern::Sequential;
    let points = || probe.points.iter().filter(sequential);
    // An ordering that is hardly better than none is noise, and keeps requests waiting for each other.
    let unordered = points().filter(|point| point.setting.order == Order::None);
    if let Some(free) = self::best(unordered, direction).filter(|free| free.rate >= best.rate * CLEARLY) {
        best = free;
    }
    let other = points().filter(|point| point.setting.io != best.setting.io);
    let other = other.map(|point| point.rate).reduce(f64::max);
    let io = match (other, best.setting.io) {
        (Some(rate), Io::Direct) if rate < best.rate * CLEARLY => IoPolicy::Direct,
        (Some(rate), Io::Buffered) if rate < best.rate * CLEARLY => IoPolicy::Buffered,
        _ => IoPolicy::Auto,
    };
    StorageOptions {
        io,
        order: Some(best.setting.order).filter(|order| *order != Order::None),
        request_size: Some(best.setting.request_size),
        depth: Some(best.setting.depth),
        ..StorageOptions::default()
    }
}

impl Drift {
    /// How much slower (below 0) or faster, as a share of what it was.
    pub fn change(&self) -> f64 {
        self.is / self.was - 1.0
    }

    /// "storage reads 30 % slower than on 2026-05-03"
    pub fn text(&self) -> String {
        let does = match self.direction {
            Direction::Read => "reads",
            Direction::Write => "writes",
        };
        let change = self.change();
        let how = if change < 0.0 { "slower" } else { "faster" };
        format!("storage {does} {:.0} % {how} than on {}", change.abs() * 100.0, date(self.since))
    }
}

impl Passport {
    /// "3 days", "5 hours"
    pub fn age_text(&self) -> String {
        age_text(self.age)
    }
}

/// "3 days", "5 hours"
pub(super) fn age_text(age: Duration) -> String {
    let seconds = age.as_secs();
    let (count, unit) = match seconds {
        0..60 => (seconds, "second"),
        60..3600 => (seconds / 60, "minute"),
        3600..172_800 => (seconds / 3600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}

fn read(path: &Path) -> Result<Option<Passport>, PassportError> {
    let Some(json) = read_file(path)? else { return Ok(None) };
    let probe = parse(&json, path)?;
    let age = age_of(probe.taken);
    Ok(Some(Passport { probe, age }))
}

/// A passport's file; `None`: there is none.
pub(super) fn read_file(path: &Path) -> Result<Option<Vec<u8>>, PassportError> {
    let failed = |source| PassportError::Io { op: "read", path: path.to_owned(), source };
    let mut json = Vec::new();
    match std::fs::File::open(path) {
        Ok(file) => file.take(FILE_MAX + 1).read_to_end(&mut json).map_err(failed)?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed(e)),
    };
    if json.len() as u64 > FILE_MAX {
        let why = format!("it has more than {FILE_MAX} bytes");
        return Err(PassportError::Damaged { path: path.to_owned(), why });
    }
    Ok(Some(json))
}

/// How long ago a second since 1970 was. A clock that was set back makes no passport older.
pub(super) fn age_of(taken: u64) -> Duration {
    let taken = UNIX_EPOCH.checked_add(Duration::from_secs(taken));
    taken.and_then(|taken| SystemTime::now().duration_since(taken).ok()).unwrap_or_default()
}

/// What no probe writes: settings that nothing could be started with, rates that are none.
fn check(probe: &Probe) -> Result<(), &'static str> {
    let good = |setting: &Setting, rate: f64| {
        setting.request_size.is_power_of_two()
            && (4 << 10..=64 << 20).contains(&setting.request_size)
            && (1..=256).contains(&setting.depth)
            && rate.is_finite()
            && rate >= 0.0
    };
    let bests =
        [probe.read_best, probe.write_best].into_iter().flatten().map(|best| (best.setting, best.rate));
    let points = probe.points.iter().map(|point| (point.setting, point.rate));
    match bests.chain(points).all(|(setting, rate)| good(&setting, rate)) {
        true if is_plain(&probe.storage.id) => Ok(()),
        true => Err("its identity is none"),
        false => Err("a setting in it is none"),
    }
}

fn is_plain(id: &str) -> bool {
    (1..=128).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = std::fs::File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// The day of a time in seconds since 1970, UTC.
///
/// Source: "chrono-Compatible Low-Level Date Algorithms" (H. Hinnant), `civil_from_days`.
pub(super) fn date(seconds: u64) -> String {
    let days = seconds / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // The year begins in March, so that the leap day is its last.
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
#[path = "storage_tests.rs"]
mod tests;
