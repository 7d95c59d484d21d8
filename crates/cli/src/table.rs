//! The table of storage targets, for people: how those of both ends stand.
//!
//! In: [`Sides`] as the engine tells them, a width and a height. Out: lines of text that fit them; of many
//! targets the first rows, and what the others are. Names are made safe to show.
//! Left out: terminals, see `live`.

use haul::api::{Health, Side, Sides, TargetRow, TargetTable};
use haul::options::Role;

use crate::escape;
use crate::progress::{bytes, count};

/// A table that is older than this is said to be so, seconds.
const OLD: f64 = 3.0;
/// Least columns that a name has.
const NAME_MIN: usize = 8;
/// From the worst to the best.
const STATES: [Health; 4] = [Health::Hung, Health::Congested, Health::Resting, Health::Healthy];

/// A column besides the name: its head, its width, what stands in it.
struct Column {
    head: &'static str,
    width: usize,
    cell: fn(&TargetRow) -> String,
}

/// The least important last.
const COLUMNS: [Column; 7] = [
    Column { head: "state", width: 10, cell: |row| row.state.name().into() },
    Column { head: "queue", width: 8, cell: |row| count(row.queue) },
    Column { head: "in flight", width: 10, cell: |row| count(row.in_flight) },
    Column { head: "MiB now", width: 9, cell: now },
    Column { head: "at best", width: 9, cell: |row| row.best_seconds.map_or("-".into(), span) },
    Column { head: "done", width: 10, cell: |row| count(row.done) },
    Column {
        head: "rate",
        width: 11,
        cell: |row| row.bytes_per_second.map_or("-".into(), |rate| format!("{}/s", bytes(rate as u64))),
    },
];

/// How long 1 MiB takes now. From a target that hangs nothing comes back.
fn now(row: &TargetRow) -> String {
    match row.state {
        Health::Hung => "-".into(),
        _ => row.service_seconds.map_or("-".into(), span),
    }
}

/// Both ends, at most `width` columns, at most `height` lines if that is six or more.
pub fn lines(sides: &Sides, width: usize, height: usize) -> Vec<String> {
    // A head, a head of columns and a last line each.
    let room = height.saturating_sub(6);
    let rows = |end| sides.side(end).table.as_ref().map_or(0, |table| table.shown.len());
    let (source, sink) = (rows(Role::Source), rows(Role::Sink));
    let half = room / 2;
    let source_max = if sink < half { room - sink } else { room - half };
    let sink_max = if source < room - half { room - source } else { half };
    let mut out = of_side(Role::Source, &sides.source, width, source_max);
    out.extend(of_side(Role::Sink, &sides.sink, width, sink_max));
    out
}

fn of_side(end: Role, side: &Side, width: usize, rows_max: usize) -> Vec<String> {
    let end = end.name();
    let Some(table) = &side.table else {
        let why = side.why_not.as_deref().unwrap_or("not known yet");
        return vec![cut(&format!("{end}: {}", escape::name(why.as_bytes())), width)];
    };
    let old = side.age.filter(|age| *age > OLD);
    let old = old.map_or_else(String::new, |age| format!(" (as of {} ago)", crate::progress::time(age)));
    let what = match table.targets {
        0 => "no storage targets are told apart".into(),
        1 => "one storage target".into(),
        n => format!("{} storage targets: {}", count(n.into()), states(|state| table.count(state))),
    };
    let mut out = vec![cut(&format!("{end}: {what}{old}"), width)];
    if table.shown.is_empty() || rows_max == 0 {
        return out;
    }
    let shown = &table.shown[..table.shown.len().min(rows_max)];
    out.extend(rows(shown, width));
    let rest = |state| {
        let shown = shown.iter().filter(|row| row.state == state).count();
        table.count(state).saturating_sub(u32::try_from(shown).unwrap_or(u32::MAX))
    };
    out.extend(more(table, shown.len(), rest).map(|line| cut(&line, width)));
    out
}

/// What is not shown.
fn more(table: &TargetTable, shown: usize, rest: impl Fn(Health) -> u32) -> Option<String> {
    let left = u64::from(table.targets).saturating_sub(shown as u64);
    (left > 0).then(|| format!("  and {} more: {}", count(left), states(rest)))
}

/// `1 hung, 6 healthy`
fn states(count_of: impl Fn(Health) -> u32) -> String {
    let told = STATES.iter().map(|state| (state, count_of(*state))).filter(|(_, n)| *n > 0);
    told.map(|(state, n)| format!("{} {}", count(n.into()), state.name())).collect::<Vec<_>>().join(", ")
}

fn rows(shown: &[TargetRow], width: usize) -> Vec<String> {
    let names: Vec<String> = shown.iter().map(|row| escape::name(row.name.as_bytes())).collect();
    let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).max(NAME_MIN);
    let mut columns = &COLUMNS[..];
    let taken = |columns: &[Column]| 2 + columns.iter().map(|column| column.width + 1).sum::<usize>();
    while taken(columns) + NAME_MIN > width && columns.len() > 1 {
        columns = &columns[..columns.len() - 1];
    }
    let room = width.saturating_sub(taken(columns)).clamp(NAME_MIN, longest);
    let line = |name: &str, cell: &dyn Fn(&Column) -> String| {
        let mut out = format!("  {:<room$}", cut_front(name, room));
        for (at, column) in columns.iter().enumerate() {
            let (cell, width) = (cell(column), column.width);
            // Words to the left, numbers to the right.
            out += &if at == 0 { format!(" {cell:<width$}") } else { format!(" {cell:>width$}") };
        }
        cut(out.trim_end(), width)
    };
    let head = line("target", &|column| column.head.into());
    let rows = shown.iter().zip(&names).map(|(row, name)| line(name, &|column| (column.cell)(row)));
    [head].into_iter().chain(rows).collect()
}

/// The beginning of a line.
fn cut(line: &str, width: usize) -> String {
    line.chars().take(width).collect()
}

/// The end of a name, which tells more than its beginning.
fn cut_front(name: &str, width: usize) -> String {
    let over = name.chars().count().saturating_sub(width);
    match over {
        0 => name.into(),
        _ => "…".chars().chain(name.chars().skip(over + 1)).collect(),
    }
}

/// A short time: `120 us`, `4.1 ms`, `41 ms`, `1.3 s`.
fn span(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if s < 999.5e-6 => (s * 1e6, "us"),
        s if s < 0.9995 => (s * 1e3, "ms"),
        s => (s, "s"),
    };
    // Below ten with a digit more, but of what is hardly anything.
    if value < 9.95 && unit != "us" { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, state: Health) -> TargetRow {
        TargetRow {
            name: name.into(),
            state,
            queue: 1234,
            in_flight: 4,
            service_seconds: Some(0.0482),
            best_seconds: Some(0.0041),
            done: 98,
            bytes: 98 << 20,
            bytes_per_second: Some(12.3e6),
        }
    }

    fn table(end: Role, targets: u32, shown: Vec<TargetRow>) -> Side {
        let of = |state: Health| shown.iter().filter(|row| row.state == state).count() as u32;
        let [hung, congested, resting, healthy] = STATES.map(of);
        let healthy = healthy + targets - shown.len() as u32;
        let table = TargetTable { end, targets, healthy, congested, resting, hung, shown };
        Side { table: Some(table), age: Some(0.1), why_not: None }
    }

    /// Goal: a table says what there is to say of both ends, and of an end that tells nothing, why.
    #[test]
    fn both_ends_are_shown() {
        let unknown = TargetRow {
            service_seconds: None,
            best_seconds: None,
            bytes_per_second: None,
            ..row("b", Health::Hung)
        };
        let source = table(
            Role::Source,
            1000,
            vec![unknown, row("OST0001", Health::Congested), row("OST0002", Health::Healthy)],
        );
        let sink = Side { why_not: Some("too old\x1b[2J".into()), ..Side::default() };
        let want = "\
source: 1,000 storage targets: 1 hung, 1 congested, 998 healthy
  target   state         queue  in flight   MiB now   at best       done        rate
  b        hung          1,234          4         -         -         98           -
  OST0001  congested     1,234          4     48 ms    4.1 ms         98   12.3 MB/s
  OST0002  healthy       1,234          4     48 ms    4.1 ms         98   12.3 MB/s
  and 997 more: 997 healthy
sink: too old\\x1b[2J";
        assert_eq!(lines(&Sides { source, sink }, 100, 100).join("\n"), want);
        let lone = Side { age: Some(12.0), ..table(Role::Sink, 1, vec![row("device 8:1", Health::Healthy)]) };
        let none = table(Role::Source, 0, Vec::new());
        let text = lines(&Sides { source: none, sink: lone }, 100, 100).join("\n");
        assert!(
            text.starts_with(
                "source: no storage targets are told apart\nsink: one storage target (as of 12 s ago)\n"
            ),
            "{text}"
        );
        assert_eq!(lines(&Sides::default(), 80, 24), ["source: not known yet", "sink: not known yet"]);
    }

    /// Goal: whatever is told, and however small the terminal, lines fit it, nothing steers it, and nothing
    /// panics.
    /// Method: seeded tables with names of any bytes and numbers of any size.
    #[test]
    fn tables_fit_the_terminal() {
        let mut rng = fastrand::Rng::with_seed(3);
        for _ in 0..3000 {
            let mut side = |end| {
                let shown: Vec<TargetRow> = (0..rng.usize(..40))
                    .map(|_| TargetRow {
                        name: (0..rng.usize(..60)).map(|_| rng.char(..)).collect(),
                        state: STATES[rng.usize(..4)],
                        queue: rng.u64(..) >> rng.u32(..64),
                        in_flight: rng.u64(..) >> rng.u32(..64),
                        service_seconds: rng.bool().then(|| rng.f64() * 10f64.powi(rng.i32(-9..12))),
                        done: rng.u64(..) >> rng.u32(..64),
                        bytes_per_second: rng.bool().then(|| rng.f64() * 1e30),
                        ..row("", Health::Healthy)
                    })
                    .collect();
                // Counts that do not fit, as a job that lies would tell.
                let mut side = table(end, shown.len() as u32 + rng.u32(..2000), shown);
                side.table.as_mut().unwrap().healthy = rng.u32(..9);
                side
            };
            let sides = Sides { source: side(Role::Source), sink: side(Role::Sink) };
            let (width, height) = (rng.usize(..200), rng.usize(..60));
            let lines = lines(&sides, width, height);
            assert!(lines.len() <= height.max(6), "{height}: {lines:#?}");
            for line in &lines {
                assert!(line.chars().count() <= width, "{width}: {line}");
                assert!(!line.chars().any(char::is_control), "{line:?}");
            }
        }
    }

    /// Goal: times are short and near, also at the edges of units.
    #[test]
    fn times_read_well() {
        for (seconds, text) in [
            (0.0, "0 us"),
            (0.00012, "120 us"),
            (0.0009994, "999 us"),
            (0.0009996, "1.0 ms"),
            (0.00996, "10 ms"),
            (0.0413, "41 ms"),
            (0.9994, "999 ms"),
            (0.9996, "1.0 s"),
            (1.26, "1.3 s"),
            (120.0, "120 s"),
        ] {
            assert_eq!(span(seconds), text);
        }
    }
}
