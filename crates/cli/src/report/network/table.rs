//! Probes of networks for people at a terminal: plain text, made safe to show.

use std::fmt::Write;

use haul_probe::network::passport::Passport;
use haul_probe::network::{Network, Way};

use super::{Grid, end, millis, reasons, setting, share};
use crate::escape;
use crate::progress::{bytes, time};
use crate::report::html::scale::Unit;
use crate::report::probe::rate;
use crate::report::probe::table::columns;

/// A whole probe.
pub fn probe(probe: &Network) -> String {
    let mut out = String::new();
    let at = probe.address.map_or(String::new(), |address| format!(" ({address})"));
    let (here, there) = (escape::text(&probe.host), escape::text(&probe.to) + &at);
    let (from, to) = match probe.way {
        Way::To => (here, there),
        Way::From => (there, here),
    };
    let _ = writeln!(
        out,
        "{from} to {to}, {}, {}: {} in {}",
        escape::text(&probe.path),
        escape::text(&probe.protect),
        bytes(probe.bytes),
        time(probe.seconds)
    );
    let _ = writeln!(
        out,
        "  round trip {}, under load {} median, {} 99th percentile; {} sent again",
        millis(probe.rtt_min),
        millis(probe.rtt_median),
        millis(probe.rtt_p99),
        share(probe.loss)
    );
    if probe.mtu > 0 {
        let _ =
            writeln!(out, "  path MTU {} bytes, segments of {}; {}", probe.mtu, probe.mss, reordering(probe));
    }
    let _ = writeln!(out, "  buffers here:  {}", end(&probe.near));
    let far = probe.far.as_ref().map_or("it does not say".into(), end);
    let _ = writeln!(out, "  buffers there: {far}");
    let grid = Grid::of(probe);
    let unit = Unit::rate(grid.max());
    let _ = writeln!(out, "\nmemory to memory, {}; across: streams", unit.name);
    let mut rows = vec![vec![String::new()]];
    rows[0].extend(grid.counts.iter().map(u16::to_string));
    let chosen = probe.recommended.as_ref().map(|best| &best.setting);
    for row in &grid.rows {
        let mut cells = vec![escape::text(&Grid::name(row))];
        for count in &grid.counts {
            let is_chosen = chosen.is_some_and(|chosen| {
                (chosen.streams, chosen.window, &chosen.congestion) == (*count, row.1, &row.0)
            });
            let mark = if is_chosen { "*" } else { "" };
            cells.push(grid.cell(row, *count).map_or("-".into(), |(rate, rising)| {
                format!("{mark}{}{}", unit.show(rate), if rising { "+" } else { "" })
            }));
        }
        rows.push(cells);
    }
    columns(&mut out, &rows, 1);
    out.push('\n');
    verdict(&mut out, probe);
    for remark in reasons(probe).iter().chain(&probe.remarks) {
        let _ = writeln!(out, "note: {}", escape::text(remark));
    }
    out
}

/// What was seen of segments that overtook others.
pub fn reordering(probe: &Network) -> String {
    match (probe.reorderings, probe.reordering) {
        (0, _) => "no reordering".into(),
        (times, most) => format!("reordering seen {times} times, by up to {most} segments"),
    }
}

fn verdict(out: &mut String, probe: &Network) {
    if let Some(best) = &probe.recommended {
        let _ = writeln!(
            out,
            "use: {}: {}, {} sent again",
            escape::text(&setting(&best.setting)),
            rate(best.rate),
            share(best.loss)
        );
    }
    if let Some(best) = probe.best.as_ref().filter(|best| Some(*best) != probe.recommended.as_ref()) {
        let _ = writeln!(out, "fastest: {}: {}", escape::text(&setting(&best.setting)), rate(best.rate));
    }
    if !probe.limited_by.is_empty() {
        let _ = writeln!(out, "limited by {}", escape::text(&probe.limited_by));
    }
    match &probe.advice {
        Some(advice) => {
            let _ = writeln!(out, "would help: {}", escape::text(&advice.text));
        }
        None => out.push_str("no setting of the system's buffers would help\n"),
    }
    let cpu = |cpu: Option<f64>| cpu.map_or("?".into(), |cpu| format!("{cpu:.2}"));
    let (near, far) = (cpu(probe.cpu_near), cpu(probe.cpu_far));
    let _ = writeln!(out, "processors: {near} s per GB here, {far} there");
}

/// Passports of networks, one line each.
pub fn passports(found: &[Passport]) -> String {
    let mut rows = vec![["network", "address", "age", "rate", "with"].map(String::from).to_vec()];
    for passport in found {
        let probe = &passport.probe;
        let best = probe.recommended.as_ref();
        rows.push(vec![
            format!("{} {}", if probe.way == Way::To { "to" } else { "from" }, escape::text(&probe.to)),
            probe.address.map_or("-".into(), |address| address.to_string()),
            passport.age_text(),
            best.map_or("-".into(), |best| rate(best.rate)),
            best.map_or("-".into(), |best| escape::text(&setting(&best.setting))),
        ]);
    }
    let mut out = String::new();
    columns(&mut out, &rows, 5);
    out
}
