//! Probes of networks as pages: the curves of XDD's papers (figures 9 to 13), from one's own path.

use haul_probe::network::{Network, Way};

use super::table::reordering;
use super::{Grid, end, millis, reasons, setting, share, window};
use crate::progress::{bytes, time};
use crate::report::html::{Curves, HeatMap, Kind, Page, Series, Table};
use crate::report::probe::rate;

/// A whole probe.
pub fn probe(probe: &Network) -> String {
    let (from, to) = ends(probe);
    let mut page = Page::new(&format!("Network probe: {from} to {to}")).facts(&facts(probe));
    let remarks: Vec<String> = reasons(probe).into_iter().chain(probe.remarks.clone()).collect();
    if !remarks.is_empty() {
        page = page.section("Remarks").list(&remarks);
    }
    page = verdict(page.section("What to use"), probe);
    let grid = Grid::of(probe);
    if !probe.points.is_empty() {
        page = map(page.section("Rate over streams"), probe, &grid).curves(&curves(&grid));
        page = points(page.section("All measurements"), probe);
    }
    page.render()
}

/// Where the data came from, and where it went.
fn ends(probe: &Network) -> (&String, &String) {
    match probe.way {
        Way::To => (&probe.host, &probe.to),
        Way::From => (&probe.to, &probe.host),
    }
}

fn facts(probe: &Network) -> Vec<(&'static str, String)> {
    let (from, to) = ends(probe);
    vec![
        ("from", from.clone()),
        ("to", to.clone()),
        ("path", format!("{}, {}", probe.path, probe.protect)),
        ("round trip", millis(probe.rtt_min)),
        ("under load, median", millis(probe.rtt_median)),
        ("under load, 99th percentile", millis(probe.rtt_p99)),
        ("sent again", share(probe.loss)),
        ("path MTU", probe.mtu.to_string()),
        ("reordering", reordering(probe)),
        ("buffers here", end(&probe.near)),
        ("buffers there", probe.far.as_ref().map_or("it does not say".into(), end)),
        ("took", time(probe.seconds)),
        ("moved", bytes(probe.bytes)),
        ("by", format!("haul {}", probe.haul)),
    ]
}

fn verdict(mut page: Page, probe: &Network) -> Page {
    let mut rows = Vec::new();
    for (name, best) in [("use", &probe.recommended), ("fastest", &probe.best)] {
        let Some(best) = best else { continue };
        rows.push(vec![name.into(), setting(&best.setting), rate(best.rate), share(best.loss)]);
    }
    let columns = [("", false), ("setting", false), ("rate", true), ("sent again", true)];
    page = page.table(&Table {
        caption: "The cheapest of the fast ones, and the fastest",
        columns: &columns,
        rows,
    });
    if !probe.limited_by.is_empty() {
        page = page.text(&format!("Limited by {}.", probe.limited_by));
    }
    match &probe.advice {
        Some(advice) => page.text(&format!("Would help: {}", advice.text)),
        None => page.text("No setting of the system's buffers would help."),
    }
}

fn map(page: Page, probe: &Network, grid: &Grid) -> Page {
    let row = |row: &(String, Option<u64>)| {
        grid.counts.iter().map(|count| grid.cell(row, *count).map(|(rate, _)| rate)).collect()
    };
    let best = probe.recommended.as_ref().and_then(|best| {
        let s = &best.setting;
        let row = grid.rows.iter().position(|row| *row == (s.congestion.clone(), s.window))?;
        Some((row, grid.counts.iter().position(|count| *count == s.streams)?))
    });
    page.heat_map(&HeatMap {
        title: "Rate over streams, the one to use outlined".into(),
        description: format!(
            "Heat map of the rate over streams (columns) and congestion control and window (rows). The highest is {}.",
            rate(grid.max())
        ),
        x_label: "streams".into(),
        x: grid.counts.iter().map(u16::to_string).collect(),
        y_label: "congestion control".into(),
        y: grid.rows.iter().map(Grid::name).collect(),
        values: grid.rows.iter().map(row).collect(),
        max: grid.max(),
        best,
    })
}

fn curves(grid: &Grid) -> Curves {
    let series = |row: &(String, Option<u64>)| Series {
        name: Grid::name(row),
        points: grid
            .counts
            .iter()
            .filter_map(|count| Some((f64::from(*count), grid.cell(row, *count)?.0)))
            .collect(),
    };
    Curves {
        title: "Rate over streams".into(),
        description: "Rate over the number of streams, one curve for each congestion control and window."
            .into(),
        x_label: "streams".into(),
        x: grid.counts.iter().map(|count| (f64::from(*count), count.to_string())).collect(),
        legend: "congestion control".into(),
        kind: Kind::Unordered,
        series: grid.rows.iter().map(series).collect(),
        max: grid.max(),
    }
}

fn points(page: Page, probe: &Network) -> Page {
    let columns = [
        ("streams", true),
        ("congestion control", false),
        ("window", false),
        ("rate", true),
        ("bytes", true),
        ("took", true),
        ("sent again", true),
        ("round trip, median", true),
        ("99th percentile", true),
        ("processor", true),
        ("held by", false),
    ];
    let row = |p: &haul_probe::network::Point| {
        vec![
            p.setting.streams.to_string(),
            p.setting.congestion.clone(),
            window(p.setting.window),
            format!("{}{}", rate(p.rate), if p.rising { ", rising" } else { "" }),
            bytes(p.bytes),
            format!("{:.2} s", p.seconds),
            share(p.loss()),
            millis(p.rtt_median),
            millis(p.rtt_p99),
            format!("{:.2} s", p.cpu_seconds),
            p.limit.name().into(),
        ]
    };
    let rows = probe.points.iter().map(row).collect();
    page.table(&Table { caption: "Every measurement", columns: &columns, rows })
}
