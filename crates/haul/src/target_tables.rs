//! The storage targets of both ends, as people and programs see them.
//!
//! In: tables of core, of this end or of the other one, each when it was taken or came. Out: the same with
//! rates, for events and for who asks through the control socket.
//! Invariants: as many rows as core's tables have; what a peer says of its targets is text without control
//! characters, and numbers, and no more of it is believed.
//! Left out: when tables are taken and asked for (`driver::view`).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use haul_core::layout::TargetName;
use haul_core::schedule::Health;
use haul_core::schedule::table::Table;
use serde::{Deserialize, Serialize};

use haul_base::role::Role;

/// Weight of the newest measurement in a rate.
const NEWEST: f64 = 0.4;
/// Measurements over less than this say nothing.
const MEASURE_MIN: Duration = Duration::from_millis(100);

/// The storage targets of one end at a moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetTable {
    /// Of which end.
    pub end: Role,
    /// How many there are, in all and in each state.
    pub targets: u32,
    /// As fast as their peers.
    pub healthy: u32,
    /// Slower than they were.
    pub congested: u32,
    /// Asked for nothing for a while.
    pub resting: u32,
    /// Those that do not answer.
    pub hung: u32,
    /// Those that are shown: unhealthy ones first, then those with most to do.
    pub shown: Vec<TargetRow>,
}

/// A storage target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetRow {
    /// As its file system calls it; of the far end whatever that says.
    pub name: String,
    /// How it fares.
    #[serde(with = "HealthJson")]
    pub state: Health,
    /// Objects that wait for their turn there, and that are with the target.
    pub queue: u64,
    /// Objects that are with the target.
    pub in_flight: u64,
    /// How long a request of 1 MiB takes now, and at best; `None`: not known.
    pub service_seconds: Option<f64>,
    /// How long it takes at best.
    pub best_seconds: Option<f64>,
    /// Objects done, and their bytes.
    pub done: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Smoothed over a few seconds; `None`: not known yet.
    pub bytes_per_second: Option<f64>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase", remote = "Health")]
enum HealthJson {
    Healthy,
    Congested,
    Resting,
    Hung,
}

/// What is known of the targets of one end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// The newest one, if there is one.
    pub table: Option<TargetTable>,
    /// Seconds since the table was taken.
    pub age: Option<f64>,
    /// Why there is none, and never will be in this copy.
    pub why_not: Option<String>,
}

/// What is known of the targets of both.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sides {
    /// Those of the source.
    pub source: Side,
    /// Those of the sink.
    pub sink: Side,
}

/// A target that was unwell while it had something to do.
#[derive(Clone, Debug, PartialEq)]
pub struct SlowTarget {
    /// Of which end.
    pub end: Role,
    /// As in [`TargetRow`].
    pub name: String,
    /// Congested, or resting for it; and hung.
    pub congested: Duration,
    /// Those that do not answer.
    pub hung: Duration,
}

impl TargetTable {
    /// How many targets are in this state.
    pub fn count(&self, state: Health) -> u32 {
        match state {
            Health::Healthy => self.healthy,
            Health::Congested => self.congested,
            Health::Resting => self.resting,
            Health::Hung => self.hung,
        }
    }
}

impl Sides {
    /// Those of one end.
    pub fn side(&self, end: Role) -> &Side {
        match end {
            Role::Source => &self.source,
            Role::Sink => &self.sink,
        }
    }
}

/// Keeps the last table of each end.
#[derive(Debug, Default)]
pub(crate) struct TargetTables {
    source: Kept,
    sink: Kept,
}

#[derive(Debug, Default)]
struct Kept {
    table: Option<(TargetTable, Instant)>,
    why_not: Option<&'static str>,
    /// Of the targets that were shown last: bytes, when they were measured, their rate.
    before: HashMap<Box<str>, (u64, Instant, Option<f64>)>,
}

impl TargetTables {
    /// Takes the next table of an end, which came now; returns it with its rates.
    pub(crate) fn take(&mut self, end: Role, table: &Table, now: Instant) -> TargetTable {
        let kept = self.kept(end);
        let mut seen = HashMap::new();
        let shown = table.rows.iter().map(|row| {
            let before = kept.before.get(&row.name);
            let measured = measure(before, row.bytes, now);
            seen.insert(row.name.clone(), measured);
            let time = |time: Duration| (!time.is_zero()).then_some(time.as_secs_f64());
            TargetRow {
                // The far end's may be anything.
                name: TargetName::new(&row.name).to_string(),
                state: row.health,
                queue: row.waiting.into(),
                in_flight: row.in_flight.into(),
                service_seconds: time(row.service),
                best_seconds: time(row.best),
                done: row.done,
                bytes: row.bytes,
                bytes_per_second: measured.2,
            }
        });
        let shown = shown.collect();
        let [healthy, congested, resting, hung] = table.counts.map(u32::from);
        let table = TargetTable { end, targets: table.targets(), healthy, congested, resting, hung, shown };
        kept.before = seen;
        kept.table = Some((table.clone(), now));
        table
    }

    /// There will be no table of this end.
    pub(crate) fn none(&mut self, end: Role, why: &'static str) {
        self.kept(end).why_not = Some(why);
    }

    pub(crate) fn sides(&self, now: Instant) -> Sides {
        Sides { source: self.source.side(now), sink: self.sink.side(now) }
    }

    fn kept(&mut self, end: Role) -> &mut Kept {
        match end {
            Role::Source => &mut self.source,
            Role::Sink => &mut self.sink,
        }
    }
}

impl Kept {
    fn side(&self, now: Instant) -> Side {
        let age = |at: Instant| now.saturating_duration_since(at).as_secs_f64();
        Side {
            table: self.table.as_ref().map(|(table, _)| table.clone()),
            age: self.table.as_ref().map(|(_, at)| age(*at)),
            why_not: self.why_not.map(str::to_owned),
        }
    }
}

/// Bytes, when, and the rate since before.
fn measure(
    before: Option<&(u64, Instant, Option<f64>)>,
    bytes: u64,
    now: Instant,
) -> (u64, Instant, Option<f64>) {
    let Some(&(old, at, rate)) = before else { return (bytes, now, None) };
    let passed = now.saturating_duration_since(at);
    if passed < MEASURE_MIN {
        return (old, at, rate);
    }
    // A peer's number may fall.
    let newest = bytes.saturating_sub(old) as f64 / passed.as_secs_f64();
    (bytes, now, Some(rate.map_or(newest, |rate| rate + (newest - rate) * NEWEST)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use haul_core::schedule::table::Row;

    fn table(rows: &[(&str, u64)]) -> Table {
        let row = |(name, bytes): &(&str, u64)| Row {
            name: (*name).into(),
            health: Health::Healthy,
            waiting: 1,
            in_flight: 2,
            service: Duration::from_millis(3),
            best: Duration::ZERO,
            done: 4,
            bytes: *bytes,
        };
        Table { counts: [9, 0, 1, 2], rows: rows.iter().map(row).collect() }
    }

    /// Goal: a target's rate follows from what is told of it twice, apart for each end and each target,
    /// whatever a peer says.
    /// Method: tables half a second apart, in which targets come and go, and bytes fall.
    #[test]
    fn rates_follow_from_two_tables() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut tables = TargetTables::default();
        let rates = |table: &TargetTable| {
            table.shown.iter().map(|row| (row.name.clone(), row.bytes_per_second)).collect::<Vec<_>>()
        };
        let first = tables.take(Role::Source, &table(&[("a", 100), ("b", 7)]), at(0));
        assert_eq!(rates(&first), [("a".into(), None), ("b".into(), None)]);
        assert_eq!((first.targets, first.healthy, first.hung), (12, 9, 2));
        assert_eq!((first.shown[0].service_seconds, first.shown[0].best_seconds), (Some(0.003), None));
        let other = tables.take(Role::Sink, &table(&[("a", 900)]), at(400));
        assert_eq!(rates(&other), [("a".into(), None)], "another end's");
        let next = tables.take(Role::Source, &table(&[("a", 600), ("c", 5)]), at(500));
        assert_eq!(rates(&next), [("a".into(), Some(1000.0)), ("c".into(), None)]);
        let soon = tables.take(Role::Source, &table(&[("a", 601)]), at(550));
        assert_eq!(rates(&soon), [("a".into(), Some(1000.0))]);
        let fell = tables.take(Role::Source, &table(&[("a", 0), ("b", u64::MAX)]), at(1000));
        assert_eq!(rates(&fell), [("a".into(), Some(600.0)), ("b".into(), None)]);
        tables.none(Role::Sink, "too old");
        let sides = tables.sides(at(3000));
        assert_eq!((sides.source.age, sides.source.table), (Some(2.0), Some(fell)));
        assert_eq!(sides.sink.why_not.as_deref(), Some("too old"));
    }

    /// Goal: what is told through the socket is read as it was, and fits a reply at its largest.
    #[test]
    fn tables_fit_a_reply() {
        use haul_core::schedule::table::{NAME_LEN_MAX, ROWS_MAX};
        // What becomes longest of a byte of a name.
        let name = "\u{1}".repeat(NAME_LEN_MAX);
        let rows = vec![(&*name, u64::MAX); ROWS_MAX];
        let mut tables = TargetTables::default();
        let now = Instant::now();
        for (end, ms) in [(Role::Source, 0), (Role::Sink, 0), (Role::Source, 333), (Role::Sink, 333)] {
            tables.take(end, &table(&rows), now + Duration::from_millis(ms));
        }
        let sides = tables.sides(now);
        let json = serde_json::to_string(&sides).unwrap();
        assert!(json.len() + 4096 < crate::ctl::REPLY_LEN_MAX, "{}", json.len());
        assert_eq!(serde_json::from_str::<Sides>(&json).unwrap(), sides);
        assert!(json.contains("\"state\":\"healthy\"") && json.contains("\"end\":\"sink\""));
    }
}
