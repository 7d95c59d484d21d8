//! Byte layout of what is told of storage targets for people, reading and writing.
//!
//! Invariant: what is read can be shown: names have their bound, no state has more rows than targets, and no
//! more targets are claimed than an end can have. What names say is the peer's.

use std::time::Duration;

use super::WireError;
use super::codec::{Reader, Writer};
use super::parts::{health_number, read_health};
use crate::schedule::TARGETS_MAX;
use crate::schedule::table::{NAME_LEN_MAX, ROWS_MAX, Row, Table, UNWELL_MAX, Unwell, UnwellTargets};

/// A name of one byte, its length, and what follows of fixed length.
const ROW_LEN_MIN: usize = 44;
const UNWELL_LEN_MIN: usize = 19;

/// Longest body of a [`Message::TargetTable`](super::Message::TargetTable).
pub const TABLE_LEN_MAX: usize = 8 + 2 + ROWS_MAX * (ROW_LEN_MIN - 1 + NAME_LEN_MAX);
const _: () = assert!(TABLE_LEN_MAX <= 8 * 1024);

pub(super) fn write_table(w: &mut Writer<'_>, table: &Table) {
    assert!(table.is_sound(), "own table has more rows than targets");
    for count in table.counts {
        w.u16(count);
    }
    w.count("rows", table.rows.len(), ROWS_MAX);
    for row in &table.rows {
        write_name(w, &row.name);
        w.u8(health_number(row.health));
        w.u32(row.waiting);
        w.u32(row.in_flight);
        w.u64(nanos(row.service));
        w.u64(nanos(row.best));
        w.u64(row.done);
        w.u64(row.bytes);
    }
}

pub(super) fn read_table(r: &mut Reader<'_>) -> Result<Table, WireError> {
    let mut counts = [0; 4];
    for count in &mut counts {
        *count = r.u16("count of targets")?;
    }
    let rows = r.list("rows", ROWS_MAX, ROW_LEN_MIN, |r| {
        Ok(Row {
            name: read_name(r)?,
            health: read_health(r)?,
            waiting: r.u32("objects that wait")?,
            in_flight: r.u32("objects in flight")?,
            service: Duration::from_nanos(r.u64("service time")?),
            best: Duration::from_nanos(r.u64("best service time")?),
            done: r.u64("objects done")?,
            bytes: r.u64("bytes done")?,
        })
    })?;
    let table = Table { counts, rows };
    match table.is_sound() {
        true => Ok(table),
        false => Err(WireError::BadValue { what: "count of targets", value: table.targets().into() }),
    }
}

pub(super) fn write_unwell(w: &mut Writer<'_>, unwell: &UnwellTargets) {
    assert!(usize::from(unwell.others) <= TARGETS_MAX, "own targets are few");
    w.count("unwell targets", unwell.named.len(), UNWELL_MAX);
    for target in &unwell.named {
        write_name(w, &target.name);
        w.u64(nanos(target.congested));
        w.u64(nanos(target.hung));
    }
    w.u16(unwell.others);
}

pub(super) fn read_unwell(r: &mut Reader<'_>) -> Result<UnwellTargets, WireError> {
    let named = r.list("unwell targets", UNWELL_MAX, UNWELL_LEN_MIN, |r| {
        Ok(Unwell {
            name: read_name(r)?,
            congested: Duration::from_nanos(r.u64("time congested")?),
            hung: Duration::from_nanos(r.u64("time hung")?),
        })
    })?;
    match r.u16("other unwell targets")? {
        others if usize::from(others) <= TARGETS_MAX => Ok(UnwellTargets { named, others }),
        others => {
            let (what, max) = ("other unwell targets", TARGETS_MAX as u64);
            Err(WireError::TooLong { what, len: others.into(), max })
        }
    }
}

fn write_name(w: &mut Writer<'_>, name: &str) {
    assert!(!name.is_empty(), "own targets have names");
    w.bytes("name of a target", name.as_bytes(), NAME_LEN_MAX);
}

fn read_name(r: &mut Reader<'_>) -> Result<Box<str>, WireError> {
    let what = "name of a target";
    let name = r.bytes(what, NAME_LEN_MAX)?;
    if name.is_empty() {
        return Err(WireError::BadValue { what, value: 0 });
    }
    std::str::from_utf8(name).map(Box::from).map_err(|_| WireError::BadText { what })
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("a table tells no longer times")
}
