//! What probes found, told to people and programs.
//!
//! In: a [`Probe`] of the library, measured just now or long ago, perhaps from a file that somebody sent.
//! Out: [`table`] for terminals, [`json`] and [`csv`] for programs, [`page`] for browsers.
//! Here: the words and the groups of points that all of them share.

use std::collections::{BTreeMap, BTreeSet};

use haul::options::Order;
use haul_probe::{Best, Direction, Io, Pattern, Point, Probe, Setting};

use crate::progress::bytes;

pub mod csv;
pub mod json;
pub mod live;
pub mod page;
pub mod table;

/// Both directions, as they are shown.
pub const DIRECTIONS: [Direction; 2] = [Direction::Read, Direction::Write];
/// Both ways of I/O, as they are shown.
pub const IOS: [Io; 2] = [Io::Direct, Io::Buffered];
/// All ordering policies, as they are shown.
const ORDERS: [Order; 4] = [Order::Strict, Order::Serial, Order::Loose, Order::None];

pub fn direction(direction: Direction) -> &'static str {
    match direction {
        Direction::Read => "read",
        Direction::Write => "write",
    }
}

pub fn io(io: Io) -> &'static str {
    match io {
        Io::Direct => "direct",
        Io::Buffered => "buffered",
    }
}

pub fn pattern(pattern: Pattern) -> &'static str {
    match pattern {
        Pattern::Sequential => "sequential",
        Pattern::Random => "random",
    }
}

/// An amount in binary units, as request sizes are: `64 KiB`, `1 MiB`, and in decimal ones where it is none.
pub fn size(n: u64) -> String {
    for (unit, name) in [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")] {
        if n >= unit && n.is_multiple_of(unit) {
            return format!("{} {name}", n / unit);
        }
    }
    bytes(n)
}

/// A rate with its unit.
pub fn rate(rate: f64) -> String {
    // Saturates; what is no number is zero.
    format!("{}/s", bytes(rate as u64))
}

/// A share of 1 in percent.
pub fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// A setting in words.
pub fn setting(s: &Setting) -> String {
    let size = size(s.request_size.into());
    format!("{size} requests, {} in flight, {}, order {}", s.depth, io(s.io), s.order.policy())
}

/// The best setting of a direction.
pub fn best(probe: &Probe, direction: Direction) -> Option<&Best> {
    match direction {
        Direction::Read => probe.read_best.as_ref(),
        Direction::Write => probe.write_best.as_ref(),
    }
}

/// How flat the optimum of a direction is, in words.
pub fn flatness(probe: &Probe, direction: Direction) -> String {
    let share = match direction {
        Direction::Read => probe.read_flatness,
        Direction::Write => probe.write_flatness,
    };
    let word = match share {
        _ if share >= 0.5 => "flat: the setting hardly matters",
        _ if share >= 0.15 => "broad: the setting matters some",
        _ => "sharp: the setting matters a lot",
    };
    format!("{} of all sequential settings reach 90 % of it ({word})", percent(share))
}

/// The storage in words. Names in it are as the system tells them: escape the text before it is shown.
pub fn storage(probe: &Probe) -> String {
    let s = &probe.storage;
    let network = if s.network { ", network" } else { "" };
    format!("{} ({}{network}) on {}", s.source, s.kind, s.mount_point)
}

/// Rates over request size and requests in flight, for one ordering policy.
pub struct Grid {
    pub order: Order,
    pub sizes: Vec<u32>,
    pub depths: Vec<u16>,
    rates: BTreeMap<(Io, u32, u16), f64>,
}

impl Grid {
    /// The points of a direction and a pattern, of the policy that most of them have. `None`: there are none.
    pub fn of(probe: &Probe, direction: Direction, pattern: Pattern) -> Option<Grid> {
        let points = || probe.points.iter().filter(|p| p.direction == direction && p.pattern == pattern);
        let count = |order| points().filter(|p| p.setting.order == order).count();
        let order = ORDERS.into_iter().max_by_key(|order| count(*order))?;
        let rates = medians(points().filter(|p| p.setting.order == order), |p| {
            (p.setting.io, p.setting.request_size, p.setting.depth)
        });
        let sizes: BTreeSet<u32> = rates.keys().map(|(_, size, _)| *size).collect();
        let depths: BTreeSet<u16> = rates.keys().map(|(_, _, depth)| *depth).collect();
        let grid =
            Grid { order, sizes: sizes.into_iter().collect(), depths: depths.into_iter().collect(), rates };
        (!grid.rates.is_empty()).then_some(grid)
    }

    pub fn rate(&self, io: Io, size: u32, depth: u16) -> Option<f64> {
        self.rates.get(&(io, size, depth)).copied()
    }

    /// Way of I/O, request size and depth of all cells, with their rates.
    pub fn cells(&self) -> impl Iterator<Item = ((Io, u32, u16), f64)> {
        self.rates.iter().map(|(cell, rate)| (*cell, *rate))
    }

    /// Whether the cell of these is that of a setting.
    pub fn is_at(&self, setting: &Setting, io: Io, size: u32, depth: u16) -> bool {
        *setting == Setting { request_size: size, depth, order: self.order, io }
    }

    /// Whether anything was measured this way.
    pub fn has(&self, io: Io) -> bool {
        self.rates.keys().any(|(which, ..)| *which == io)
    }

    pub fn max(&self) -> f64 {
        self.rates.values().copied().fold(0.0, f64::max)
    }
}

/// Rates of the ordering policies over requests in flight, all else the same.
pub struct Orders {
    pub request_size: u32,
    pub io: Io,
    /// Each policy that was measured, with its depths and rates.
    pub curves: Vec<(Order, Vec<(u16, f64)>)>,
}

impl Orders {
    /// Of all request sizes and ways of I/O the one that most policies were measured with.
    pub fn of(probe: &Probe, direction: Direction) -> Option<Orders> {
        let points = || {
            let wanted = |p: &&Point| p.direction == direction && p.pattern == Pattern::Sequential;
            probe.points.iter().filter(wanted)
        };
        let at = |io, size| {
            let here = points().filter(move |p| p.setting.io == io && p.setting.request_size == size);
            medians(here, |p| (p.setting.order.policy(), p.setting.depth))
        };
        let orders =
            |rates: &BTreeMap<_, f64>| rates.keys().map(|(order, _)| *order).collect::<BTreeSet<_>>().len();
        let places: BTreeSet<(Io, u32)> = points().map(|p| (p.setting.io, p.setting.request_size)).collect();
        let (rates, io, request_size) = places
            .into_iter()
            .map(|(io, size)| (at(io, size), io, size))
            .max_by_key(|(rates, ..)| (orders(rates), rates.len()))?;
        if orders(&rates) < 2 {
            return None;
        }
        let curve = |order: Order| {
            let of = rates.iter().filter(move |((which, _), _)| *which == order.policy());
            (order, of.map(|((_, depth), rate)| (*depth, *rate)).collect::<Vec<_>>())
        };
        let curves = ORDERS.into_iter().map(curve).filter(|(_, curve)| !curve.is_empty()).collect();
        Some(Orders { request_size, io, curves })
    }
}

/// The median rate of each group of points: what was measured several times is one setting still.
fn medians<'a, K: Ord>(
    points: impl Iterator<Item = &'a Point>,
    key: impl Fn(&Point) -> K,
) -> BTreeMap<K, f64> {
    let mut groups: BTreeMap<K, Vec<f64>> = BTreeMap::new();
    for point in points {
        groups.entry(key(point)).or_default().push(point.rate);
    }
    let median = |mut rates: Vec<f64>| {
        rates.sort_by(f64::total_cmp);
        f64::midpoint(rates[(rates.len() - 1) / 2], rates[rates.len() / 2])
    };
    groups.into_iter().map(|(key, rates)| (key, median(rates))).collect()
}

#[cfg(test)]
#[path = "probe/tests.rs"]
pub mod tests;
