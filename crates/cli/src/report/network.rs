//! What probes of networks found, told to people and programs.
//!
//! In: a [`Network`] of the library. Out: [`table`] for terminals, [`json`] and [`csv`] for programs,
//! [`page`] for browsers.
//! Here: the words and the groups of points that all of them share.

use std::collections::{BTreeMap, BTreeSet};

use haul_probe::network::{End, Network, Point, Setting};

use super::probe::size;

pub mod csv;
pub mod json;
pub mod page;
pub mod table;

/// A setting in words.
pub fn setting(setting: &Setting) -> String {
    let count = match setting.streams {
        1 => "1 stream".into(),
        n => format!("{n} streams"),
    };
    let control = match setting.congestion.as_str() {
        "" => String::new(),
        name => format!(", {name}"),
    };
    format!("{count}{control}, {}", window(setting.window))
}

pub fn window(window: Option<u64>) -> String {
    window.map_or("the kernel's own window".into(), |bytes| format!("window {}", size(bytes)))
}

/// Seconds as milliseconds; what is not known is a dash.
pub fn millis(seconds: f64) -> String {
    match seconds * 1e3 {
        ms if ms.is_nan() || ms <= 0.0 => "-".into(),
        ms if ms < 1.0 => format!("{ms:.3} ms"),
        ms if ms < 10.0 => format!("{ms:.2} ms"),
        ms => format!("{ms:.1} ms"),
    }
}

/// A share in percent, small ones exactly.
pub fn share(share: f64) -> String {
    match share * 100.0 {
        0.0 => "0 %".into(),
        p if p < 0.01 => format!("{p:.4} %"),
        p if p < 1.0 => format!("{p:.3} %"),
        p => format!("{p:.1} %"),
    }
}

/// One end's limits.
pub fn end(end: &End) -> String {
    let of = |bytes: Option<u64>| bytes.map_or("?".into(), size);
    let l = &end.limits;
    format!(
        "receive {} grown, {} fixed; send {} grown, {} fixed; {} processors",
        of(l.rmem_auto),
        of(l.rmem_fixed),
        of(l.wmem_auto),
        of(l.wmem_fixed),
        end.cpus
    )
}

/// Rates over streams, one row for each congestion control and window.
pub struct Grid {
    pub counts: Vec<u16>,
    pub rows: Vec<(String, Option<u64>)>,
    /// Median rate, and whether it still rose.
    cells: BTreeMap<Setting, (f64, bool)>,
}

impl Grid {
    pub fn of(probe: &Network) -> Grid {
        let mut groups: BTreeMap<&Setting, Vec<&Point>> = BTreeMap::new();
        for point in &probe.points {
            groups.entry(&point.setting).or_default().push(point);
        }
        let median = |mut points: Vec<&Point>| {
            points.sort_by(|a, b| a.rate.total_cmp(&b.rate));
            let rate = f64::midpoint(points[(points.len() - 1) / 2].rate, points[points.len() / 2].rate);
            (rate, points.iter().any(|point| point.rising))
        };
        let cells: BTreeMap<Setting, (f64, bool)> =
            groups.into_iter().map(|(setting, points)| (setting.clone(), median(points))).collect();
        let all = || probe.points.iter().map(|p| &p.setting).chain(probe.left_out.iter().map(|l| &l.setting));
        let counts: BTreeSet<u16> = all().map(|setting| setting.streams).collect();
        let mut rows: Vec<(String, Option<u64>)> = Vec::new();
        for setting in all() {
            let row = (setting.congestion.clone(), setting.window);
            // A window that was tried nowhere is named below the table only.
            let tried = row.1.is_none() || probe.points.iter().any(|p| p.setting.window == row.1);
            if tried && !rows.contains(&row) {
                rows.push(row);
            }
        }
        Grid { counts: counts.into_iter().collect(), rows, cells }
    }

    /// What a row is called.
    pub fn name((control, window): &(String, Option<u64>)) -> String {
        let control = if control.is_empty() { "streams" } else { control };
        window.map_or(control.into(), |bytes| format!("{control}, {}", size(bytes)))
    }

    pub fn cell(&self, row: &(String, Option<u64>), streams: u16) -> Option<(f64, bool)> {
        let setting = Setting { streams, window: row.1, congestion: row.0.clone() };
        self.cells.get(&setting).copied()
    }

    pub fn max(&self) -> f64 {
        self.cells.values().map(|(rate, _)| *rate).fold(0.0, f64::max)
    }
}

/// Reasons for what was left out, each with the number of settings.
pub fn reasons(probe: &Network) -> Vec<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for left in &probe.left_out {
        *counts.entry(left.why.as_str()).or_default() += 1;
    }
    counts.into_iter().map(|(why, count)| format!("{count} settings were not measured: {why}")).collect()
}

#[cfg(test)]
#[path = "network/tests.rs"]
mod tests;
