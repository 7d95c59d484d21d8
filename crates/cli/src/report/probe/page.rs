//! Probes as pages: the curves and maps of XDD's papers (figures 14 to 25), from one's own storage.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use haul_probe::passport::Passport;
use haul_probe::{Direction, Io, Pattern, Probe};

use super::{DIRECTIONS, Grid, IOS, Orders};
use super::{best, direction, flatness, io, pattern, percent, rate, setting, size, storage};
use crate::escape;
use crate::progress::{bytes, time};
use crate::report::html::{Curves, HeatMap, Kind, Page, Series, Table};

/// A whole probe.
pub fn probe(probe: &Probe) -> String {
    let title = format!("Storage probe: {} on {}", path(probe), probe.host);
    let mut page = Page::new(&title).facts(&facts(probe));
    if !probe.remarks.is_empty() {
        page = page.section("Remarks").list(&probe.remarks);
    }
    page = verdicts(page, probe);
    for way in DIRECTIONS {
        page = sweep(page, probe, way);
    }
    page = orders(page, probe);
    page = random(page, probe);
    if !probe.points.is_empty() {
        page = points(page.section("All measurements"), probe);
    }
    page.render()
}

/// All passports, each with its maps.
pub fn passports(found: &[(Passport, Vec<String>)]) -> String {
    let mut page = Page::new("Storage passports");
    if found.is_empty() {
        return page.text("No storage passport is kept yet.").render();
    }
    let shown = |probe: &Probe, way| best(probe, way).map_or("–".into(), |best| rate(best.rate));
    let row = |(passport, hints): &(Passport, Vec<String>)| {
        let probe = &passport.probe;
        vec![
            storage(probe),
            probe.host.clone(),
            passport.age_text(),
            shown(probe, Direction::Read),
            shown(probe, Direction::Write),
            hints.join("; "),
        ]
    };
    let columns: [(&str, bool); 6] = [
        ("storage", false),
        ("host", false),
        ("age", false),
        ("read", true),
        ("write", true),
        ("hints", false),
    ];
    page = page.table(&Table {
        caption: "What earlier probes found",
        columns: &columns,
        rows: found.iter().map(row).collect(),
    });
    for (passport, _) in found {
        let probe = &passport.probe;
        page = page.section(&storage(probe)).facts(&facts(probe)).list(&probe.remarks);
        page = verdict_tables(page, probe);
        for way in DIRECTIONS {
            if let Some(grid) = Grid::of(probe, way, Pattern::Sequential) {
                page = maps(page, probe, &grid, way, Pattern::Sequential);
            }
        }
    }
    page.render()
}

fn path(probe: &Probe) -> String {
    escape::name(probe.path.as_bytes())
}

fn facts(probe: &Probe) -> Vec<(&'static str, String)> {
    // A file may name any second; far ones cannot be written as a date.
    let taken = UNIX_EPOCH
        .checked_add(Duration::from_secs(probe.taken))
        .filter(|time| *time < UNIX_EPOCH + YEAR_9999)
        .map_or("unknown".into(), |time: SystemTime| {
            humantime::format_rfc3339_seconds(time).to_string().replace('T', " ").replace('Z', " UTC")
        });
    vec![
        ("host", probe.host.clone()),
        ("directory", path(probe)),
        ("storage", storage(probe)),
        ("size of the file system", bytes(probe.storage.size)),
        ("identity", probe.storage.id.clone()),
        ("taken", taken),
        ("by", format!("haul {}, engine {}", probe.haul, probe.engine)),
        ("scratch file", size(probe.size)),
        ("took", time(probe.seconds)),
        ("read", bytes(probe.bytes_read)),
        ("written", bytes(probe.bytes_written)),
    ]
}

/// Up to which second since 1970 a date has four digits of a year.
const YEAR_9999: Duration = Duration::from_secs(253_402_300_800);

fn verdicts(page: Page, probe: &Probe) -> Page {
    if probe.read_best.is_none() && probe.write_best.is_none() {
        return page.section("Best settings").text("No sequential setting was measured.");
    }
    verdict_tables(page.section("Best settings"), probe)
}

fn verdict_tables(mut page: Page, probe: &Probe) -> Page {
    let mut rows = Vec::new();
    for way in DIRECTIONS {
        let Some(best) = best(probe, way) else { continue };
        let s = &best.setting;
        rows.push(vec![
            direction(way).into(),
            rate(best.rate),
            size(s.request_size.into()),
            s.depth.to_string(),
            s.order.policy().to_string(),
            io(s.io).into(),
            flatness(probe, way),
        ]);
    }
    if !rows.is_empty() {
        let columns = [
            ("direction", false),
            ("rate", true),
            ("request size", true),
            ("in flight", true),
            ("order", false),
            ("I/O", false),
            ("how flat the optimum is", false),
        ];
        page = page.table(&Table { caption: "Fastest sequential settings", columns: &columns, rows });
    }
    let mistakes: Vec<Vec<String>> = probe
        .mistakes
        .iter()
        .map(|m| {
            let way = direction(m.direction).into();
            vec![m.what.clone(), way, rate(m.rate), percent(m.penalty), setting(&m.setting)]
        })
        .collect();
    if mistakes.is_empty() {
        return page;
    }
    let columns =
        [("mistake", false), ("direction", false), ("rate", true), ("lost", true), ("setting", false)];
    page.table(&Table { caption: "What the classic mistakes cost", columns: &columns, rows: mistakes })
}

/// Maps and curves of one direction.
fn sweep(page: Page, probe: &Probe, way: Direction) -> Page {
    let Some(grid) = Grid::of(probe, way, Pattern::Sequential) else { return page };
    let heading = match way {
        Direction::Read => "Sequential reads",
        Direction::Write => "Sequential writes",
    };
    let mut page = page.section(heading);
    if way == Direction::Write {
        page = page.text("The rate includes the sync that makes the data durable.");
    }
    page = maps(page, probe, &grid, way, Pattern::Sequential);
    for how in IOS.into_iter().filter(|how| grid.has(*how)) {
        page = page.curves(&by_depth(&grid, way, how));
    }
    for how in IOS.into_iter().filter(|how| grid.has(*how)) {
        page = page.curves(&by_size(&grid, way, how));
    }
    page
}

/// One map for each way of I/O, with one scale of colours.
fn maps(mut page: Page, probe: &Probe, grid: &Grid, way: Direction, which: Pattern) -> Page {
    let best = best(probe, way).filter(|_| which == Pattern::Sequential).map(|best| best.setting);
    for how in IOS.into_iter().filter(|how| grid.has(*how)) {
        let row = |size: &u32| grid.depths.iter().map(|depth| grid.rate(how, *size, *depth)).collect();
        let place = best.filter(|best| best.io == how && best.order == grid.order).and_then(|best| {
            let row = grid.sizes.iter().position(|size| *size == best.request_size)?;
            Some((row, grid.depths.iter().position(|depth| *depth == best.depth)?))
        });
        let outlined = if place.is_some() { ", the best outlined" } else { "" };
        page = page.heat_map(&HeatMap {
            title: format!(
                "{}, {} {}s, order {}{outlined}",
                io(how),
                pattern(which),
                direction(way),
                grid.order.policy()
            ),
            description: format!(
                "Heat map of the {} rate over request size (rows) and requests in flight (columns), {} I/O. \
                 The highest rate of this direction is {}.",
                direction(way),
                io(how),
                rate(grid.max())
            ),
            x_label: "requests in flight".into(),
            x: grid.depths.iter().map(u16::to_string).collect(),
            y_label: "request size".into(),
            y: grid.sizes.iter().map(|bytes| size((*bytes).into())).collect(),
            values: grid.sizes.iter().map(row).collect(),
            max: grid.max(),
            best: place,
        });
    }
    page
}

/// Rate over requests in flight, one curve for each request size.
fn by_depth(grid: &Grid, way: Direction, how: Io) -> Curves {
    let series = |bytes: &u32| Series {
        name: size((*bytes).into()),
        points: grid
            .depths
            .iter()
            .filter_map(|depth| Some((f64::from(*depth), grid.rate(how, *bytes, *depth)?)))
            .collect(),
    };
    Curves {
        title: format!("{} {}s over requests in flight", io(how), direction(way)),
        description: format!(
            "{} rate over the number of requests in flight, {} I/O, one curve for each request size.",
            direction(way),
            io(how)
        ),
        x_label: "requests in flight".into(),
        x: depth_ticks(&grid.depths),
        legend: "request size".into(),
        kind: Kind::Ordered,
        series: grid.sizes.iter().map(series).collect(),
        max: grid.max(),
    }
}

/// Rate over request size, one curve for each number of requests in flight.
fn by_size(grid: &Grid, way: Direction, how: Io) -> Curves {
    let series = |depth: &u16| Series {
        name: depth.to_string(),
        points: grid
            .sizes
            .iter()
            .filter_map(|size| Some((f64::from(*size), grid.rate(how, *size, *depth)?)))
            .collect(),
    };
    Curves {
        title: format!("{} {}s over request size", io(how), direction(way)),
        description: format!(
            "{} rate over the request size, {} I/O, one curve for each number of requests in flight.",
            direction(way),
            io(how)
        ),
        x_label: "request size".into(),
        x: grid.sizes.iter().map(|bytes| (f64::from(*bytes), size((*bytes).into()))).collect(),
        legend: "in flight".into(),
        kind: Kind::Ordered,
        series: grid.depths.iter().map(series).collect(),
        max: grid.max(),
    }
}

fn depth_ticks(depths: &[u16]) -> Vec<(f64, String)> {
    depths.iter().map(|depth| (f64::from(*depth), depth.to_string())).collect()
}

/// The ordering policies of both directions, beside each other.
fn orders(page: Page, probe: &Probe) -> Page {
    let found: Vec<(Direction, Orders)> =
        DIRECTIONS.into_iter().filter_map(|way| Some((way, Orders::of(probe, way)?))).collect();
    if found.is_empty() {
        return page;
    }
    let mut page = page.section("Ordering policies").text(
        "Strict deals offsets round-robin to the threads; serial starts a request when the one before has \
         completed; loose issues in order and waits for nothing; none promises no order.",
    );
    for (way, orders) in found {
        let rates = || orders.curves.iter().flat_map(|(_, curve)| curve);
        let mut depths: Vec<u16> = rates().map(|(depth, _)| *depth).collect();
        depths.sort_unstable();
        depths.dedup();
        let (size, how) = (size(orders.request_size.into()), io(orders.io));
        page = page.curves(&Curves {
            title: format!("{}s, {size} requests, {how}", direction(way)),
            description: format!(
                "{} rate over requests in flight, {size} requests, {how} I/O, one curve for each ordering policy.",
                direction(way)
            ),
            x_label: "requests in flight".into(),
            x: depth_ticks(&depths),
            legend: "order".into(),
            kind: Kind::Unordered,
            series: orders
                .curves
                .iter()
                .map(|(order, curve)| Series {
                    name: order.policy().to_string(),
                    points: curve.iter().map(|(depth, rate)| (f64::from(*depth), *rate)).collect(),
                })
                .collect(),
            max: rates().map(|(_, rate)| *rate).fold(0.0, f64::max),
        });
    }
    page
}

/// Random offsets held against sequential ones, all else the same.
fn random(page: Page, probe: &Probe) -> Page {
    let mut rows = Vec::new();
    let mut grids = Vec::new();
    for way in DIRECTIONS {
        let Some(grid) = Grid::of(probe, way, Pattern::Random) else { continue };
        let sequential = Grid::of(probe, way, Pattern::Sequential).filter(|other| other.order == grid.order);
        for ((how, bytes, depth), found) in grid.cells() {
            let other = sequential.as_ref().and_then(|other| other.rate(how, bytes, depth));
            let lost = other.map(|other| (1.0 - found / other).max(0.0));
            rows.push(vec![
                direction(way).into(),
                size(bytes.into()),
                depth.to_string(),
                io(how).into(),
                grid.order.policy().to_string(),
                rate(found),
                other.map_or("–".into(), rate),
                lost.map_or("–".into(), percent),
            ]);
        }
        grids.push((way, grid));
    }
    if rows.is_empty() {
        return page;
    }
    let columns = [
        ("direction", false),
        ("request size", true),
        ("in flight", true),
        ("I/O", false),
        ("order", false),
        ("random", true),
        ("sequential", true),
        ("lost", true),
    ];
    let caption = "Random against sequential offsets";
    let mut page = page.section("Random offsets").table(&Table { caption, columns: &columns, rows });
    // A map of one row or column shows nothing that the table does not.
    for (way, grid) in grids.iter().filter(|(_, grid)| grid.sizes.len() > 1 && grid.depths.len() > 1) {
        page = maps(page, probe, grid, *way, Pattern::Random);
    }
    page
}

fn points(page: Page, probe: &Probe) -> Page {
    let columns = [
        ("direction", false),
        ("pattern", false),
        ("I/O", false),
        ("order", false),
        ("request size", true),
        ("in flight", true),
        ("rate", true),
        ("bytes", true),
        ("took", true),
        ("processor", true),
        ("service, median", true),
        ("99th percentile", true),
    ];
    let millis = |seconds: f64| format!("{:.2} ms", seconds * 1e3);
    let row = |p: &haul_probe::Point| {
        let s = &p.setting;
        vec![
            direction(p.direction).into(),
            pattern(p.pattern).into(),
            io(s.io).into(),
            s.order.policy().to_string(),
            size(s.request_size.into()),
            s.depth.to_string(),
            rate(p.rate),
            bytes(p.bytes),
            format!("{:.2} s", p.seconds),
            format!("{:.2} s", p.cpu_seconds),
            millis(p.service_median),
            millis(p.service_p99),
        ]
    };
    page.table(&Table {
        caption: "Every setting that was measured",
        columns: &columns,
        rows: probe.points.iter().map(row).collect(),
    })
}
