//! Probes for people at a terminal: plain text, made safe to show.

use std::fmt::Write;

use haul_probe::passport::Passport;
use haul_probe::{Direction, Io, Pairing, Pattern, Probe, Setting};

use super::{DIRECTIONS, Grid, IOS, Orders};
use super::{best, direction, flatness, io, percent, rate, setting, size, storage};
use crate::escape;
use crate::progress::{bytes, time};
use crate::report::html::scale::Unit;

/// Columns of a name at the left of a table.
const NAME_WIDTH: usize = 10;

/// A whole probe.
pub fn probe(probe: &Probe) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{}: {}", escape::name(probe.path.as_bytes()), escape::text(&storage(probe)));
    let _ = writeln!(
        out,
        "  {} at {}; scratch file of {}, read {}, wrote {} in {}",
        escape::text(&probe.engine),
        escape::text(&probe.host),
        size(probe.size),
        bytes(probe.bytes_read),
        bytes(probe.bytes_written),
        time(probe.seconds)
    );
    for direction in DIRECTIONS {
        for pattern in [Pattern::Sequential, Pattern::Random] {
            if let Some(grid) = Grid::of(probe, direction, pattern) {
                let marked = best(probe, direction).filter(|_| pattern == Pattern::Sequential);
                sweep(&mut out, &grid, direction, pattern, marked.map(|best| &best.setting));
            }
        }
        if let Some(found) = Orders::of(probe, direction) {
            orders(&mut out, &found, direction, best(probe, direction).map(|best| &best.setting));
        }
    }
    out.push('\n');
    for direction in DIRECTIONS {
        verdict(&mut out, probe, direction);
    }
    for remark in &probe.remarks {
        let _ = writeln!(out, "note: {}", escape::text(remark));
    }
    out
}

/// Rates over request size and depth, direct and buffered side by side.
fn sweep(out: &mut String, grid: &Grid, way: Direction, pattern: Pattern, best: Option<&Setting>) {
    let unit = Unit::rate(grid.max());
    let ios: Vec<Io> = IOS.into_iter().filter(|io| grid.has(*io)).collect();
    let sides: Vec<&str> = ios.iter().map(|way| io(*way)).collect();
    let _ = writeln!(
        out,
        "\n{}, {}, {}, {}, order {}; across: requests in flight, down: request size",
        direction(way),
        super::pattern(pattern),
        unit.name,
        sides.join(" / "),
        grid.order.policy()
    );
    let mut rows = vec![vec![String::new()]];
    rows[0].extend(grid.depths.iter().map(|depth| depth.to_string()));
    for bytes in &grid.sizes {
        let mut row = vec![size((*bytes).into())];
        for depth in &grid.depths {
            let mut cells = Vec::new();
            for io in &ios {
                let is_best = best.is_some_and(|best| grid.is_at(best, *io, *bytes, *depth));
                let mark = if is_best { "*" } else { "" };
                let shown = grid.rate(*io, *bytes, *depth).map_or("-".into(), |rate| unit.show(rate));
                cells.push(format!("{mark}{shown}"));
            }
            // Nothing measured at all is one dash.
            let nothing = cells.iter().all(|cell| cell == "-");
            row.push(if nothing { "-".into() } else { cells.join("/") });
        }
        rows.push(row);
    }
    columns(out, &rows, 1);
}

fn orders(out: &mut String, found: &Orders, way: Direction, best: Option<&Setting>) {
    let max = found.curves.iter().flat_map(|(_, curve)| curve).map(|(_, rate)| *rate).fold(0.0, f64::max);
    let unit = Unit::rate(max);
    let _ = writeln!(
        out,
        "\n{}, ordering policies, {}, {} requests, {}; across: requests in flight",
        direction(way),
        unit.name,
        size(found.request_size.into()),
        io(found.io)
    );
    let mut depths: Vec<u16> =
        found.curves.iter().flat_map(|(_, curve)| curve).map(|(depth, _)| *depth).collect();
    depths.sort_unstable();
    depths.dedup();
    let mut rows = vec![vec![String::new()]];
    rows[0].extend(depths.iter().map(|depth| depth.to_string()));
    for (order, curve) in &found.curves {
        let mut row = vec![order.policy().to_string()];
        for depth in &depths {
            let rate = curve.iter().find(|(at, _)| at == depth);
            let here =
                Setting { request_size: found.request_size, depth: *depth, order: *order, io: found.io };
            let mark = if best == Some(&here) { "*" } else { "" };
            row.push(rate.map_or("-".into(), |(_, rate)| format!("{mark}{}", unit.show(*rate))));
        }
        rows.push(row);
    }
    columns(out, &rows, 1);
}

/// The best setting, how flat it is, and what mistakes cost.
fn verdict(out: &mut String, probe: &Probe, way: Direction) {
    let Some(best) = best(probe, way) else { return };
    let _ = writeln!(out, "best {}: {} with {}", direction(way), rate(best.rate), setting(&best.setting));
    let _ = writeln!(out, "  {}", flatness(probe, way));
    for mistake in probe.mistakes.iter().filter(|mistake| mistake.direction == way) {
        let what = escape::text(&mistake.what);
        let _ = writeln!(out, "  {what}: {}, {} lost", rate(mistake.rate), percent(mistake.penalty));
    }
}

/// Rows with their columns aligned: the first `left` to the left, the others to the right.
pub fn columns(out: &mut String, rows: &[Vec<String>], left: usize) {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cell = |row: &Vec<String>, column: usize| row.get(column).map_or(0, |cell| cell.chars().count());
    let width = |column| rows.iter().map(|row| cell(row, column)).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count).map(width).collect();
    for row in rows {
        let mut line = String::from(" ");
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            let _ = match column {
                0 => write!(line, " {cell:<0$}", width.max(NAME_WIDTH)),
                _ if column < left => write!(line, "  {cell:<width$}"),
                _ => write!(line, "  {cell:>width$}"),
            };
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

/// Which settings of two storages match.
pub fn pairing(source: &Probe, sink: &Probe, pairing: &Pairing) -> String {
    let mut out = String::new();
    let side = |probe: &Probe| {
        let (host, path) = (escape::text(&probe.host), escape::name(probe.path.as_bytes()));
        format!("{host}:{path}, {}", escape::text(&storage(probe)))
    };
    let _ = writeln!(out, "source  {}", side(source));
    let _ = writeln!(out, "        read {} with {}", rate(pairing.read.rate), setting(&pairing.read.setting));
    let _ = writeln!(out, "sink    {}", side(sink));
    let _ =
        writeln!(out, "        write {} with {}", rate(pairing.write.rate), setting(&pairing.write.setting));
    let limit = match pairing.limited_by {
        Direction::Read => "reading at the source",
        Direction::Write => "writing at the sink",
    };
    let _ = writeln!(out, "expect  {}, limited by {limit}", rate(pairing.rate));
    let _ = writeln!(out, "        {}", escape::text(&pairing.reason));
    for (what, other) in [
        ("each side with the other's best setting", pairing.swapped_rate),
        ("1 MiB requests, one in flight, buffered, at both", pairing.naive_rate),
    ] {
        let Some(other) = other else { continue };
        let lost = 1.0 - other / pairing.rate;
        let cost = if lost > 0.005 { format!(", {} lost", percent(lost)) } else { ", nothing lost".into() };
        let _ = writeln!(out, "  {what}: {}{cost}", rate(other));
    }
    out
}

/// Passports, one line each, and what is to be said about them.
pub fn passports(found: &[(Passport, Vec<String>)]) -> String {
    if found.is_empty() {
        return "no storage passport is kept yet: `haul probe storage PATH` makes one\n".into();
    }
    let head = ["storage", "kind", "mounted on", "age", "read", "write"].map(String::from);
    let mut rows = vec![head.to_vec()];
    for (passport, _) in found {
        let probe = &passport.probe;
        let shown = |way| best(probe, way).map_or("-".into(), |best| rate(best.rate));
        rows.push(vec![
            escape::text(&probe.storage.source),
            escape::text(&probe.storage.kind),
            escape::name(probe.storage.mount_point.as_bytes()),
            passport.age_text(),
            shown(Direction::Read),
            shown(Direction::Write),
        ]);
    }
    let mut out = String::new();
    columns(&mut out, &rows, 3);
    for (passport, hints) in found {
        for hint in hints {
            let _ = writeln!(out, "{}: {}", escape::text(&passport.probe.storage.source), escape::text(hint));
        }
    }
    out
}
