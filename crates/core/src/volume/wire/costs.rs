//! What clients say of costs, and visitors hear of them.
//!
//! Invariant: lengths rise, so that whoever draws a line through them has one.

use std::time::Duration;

use super::bad;
use crate::volume::cost::CLASSES;
use crate::wire::WireError;
use crate::wire::codec::{Reader, Writer};

/// What clients of late said that writes to a server cost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// The newest, and how old that is.
    pub costs: Costs,
    pub age: Duration,
    /// Clients that said something in the last minute; 0: the newest is older.
    pub clients: u16,
}

/// What writes to one server cost a client of late.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// What is smaller is gathered, bytes; `u64::MAX`: everything is.
    pub threshold: u64,
    /// It does not set itself.
    pub pinned: bool,
    /// Writes that it began, to whichever server.
    pub writes: u64,
    /// Mean length in bytes and cost in nanoseconds, for each power of two that something is known of; at
    /// most [`CLASSES`].
    pub direct: Vec<(u64, u64)>,
    pub gather: Vec<(u64, u64)>,
}

pub(super) fn write_costs(w: &mut Writer<'_>, costs: &Costs) {
    w.u64(costs.threshold);
    w.bool(costs.pinned);
    w.u64(costs.writes);
    for points in [&costs.direct, &costs.gather] {
        w.count("costs", points.len(), CLASSES);
        for (len, cost) in points {
            w.u64(*len);
            w.u64(*cost);
        }
    }
}

pub(super) fn read_costs(r: &mut Reader<'_>) -> Result<Costs, WireError> {
    let (threshold, pinned, writes) =
        (r.u64("write threshold")?, r.bool("whether it is pinned")?, r.u64("writes")?);
    let mut points = || {
        let mut before = 0;
        r.list("costs", CLASSES, 16, |r| {
            let (len, cost) = (r.u64("mean length of writes")?, r.u64("cost of a write")?);
            if len <= before {
                return Err(bad("mean length of writes", len));
            }
            before = len;
            Ok((len, cost))
        })
    };
    let (direct, gather) = (points()?, points()?);
    Ok(Costs { threshold, pinned, writes, direct, gather })
}
