//! Results as a page: what was asked, the table, and all that is needed to believe or to repeat it.
//!
//! In: [`Results`]. Out: Markdown. Every figure is a median with its extremes and how many runs it is of.

use std::fmt::Write as _;

use serde_json::Value;

use super::file::Figure;
use super::machine::STOLEN_MOST;
use super::result::{Group, Outcome, Results, Run, Spread};
use super::watch::{Befell, Trace};

/// Words of a failure in the table; the file of all runs has more.
const WORDS_MAX: usize = 200;

/// The whole page. `picture` says that NAME.svg lies beside it.
pub fn page(results: &Results, picture: bool) -> String {
    let mut page = format!("# {}\n\n", results.title);
    if results.quick {
        page += "**A quick run: one round of fewer cells. These figures are no results.**\n\n";
    }
    if results.busy {
        page += "**Measured without regard to who else used the machine (--busy).**\n\n";
    }
    let _ = writeln!(page, "{}\n", results.question.trim());
    if let Some(reference) = &results.reference {
        let _ = writeln!(page, "After: {}\n", reference.trim());
    }
    if let Some(note) = &results.note {
        let _ = writeln!(page, "{}\n", note.trim());
    }
    if picture {
        let _ = writeln!(page, "![{}]({}.svg)\n", results.title.replace(['[', ']'], ""), results.name);
    }
    page += &table(results);
    page += "\nMedian (lowest .. highest) of n runs. ";
    page += "Processor time is that of the whole machine during the run, without the emulators of networks and storage.\n";
    page += &remarks(results);
    page += &set_up(results);
    page
}

/// The table alone, for a terminal too.
pub fn table(results: &Results) -> String {
    let workloads = varies(results, "workload");
    let networks = varies(results, "network");
    let axes = axes(results);
    let files = results.runs.iter().any(|run| run.files > 1);
    let mut head: Vec<String> = Vec::new();
    head.extend(workloads.then(|| "workload".to_owned()));
    head.extend(networks.then(|| "network".to_owned()));
    head.push("competitor".into());
    head.extend(axes.iter().cloned());
    // Where nothing but names and starts is measured, no bytes are.
    let each = results.plot.y.contains(&Figure::Each);
    let moved = results.runs.is_empty() || results.runs.iter().any(|run| run.bytes > 0);
    let bytes = moved && !each;
    let files = files && !each;
    head.extend(each.then(|| Figure::Each.unit().to_owned()));
    head.extend(bytes.then(|| Figure::Rate.unit().to_owned()));
    head.extend(files.then(|| results.unit(Figure::Files)));
    let lines = results.runs.iter().any(|run| run.steady.is_some());
    const OF_LINES: [Figure; 3] = [Figure::Share, Figure::Steady, Figure::Reach];
    head.extend(OF_LINES.iter().filter(|_| lines).map(|figure| figure.unit().to_owned()));
    let peaks = results.plot.y.contains(&Figure::Sustained);
    head.extend(peaks.then(|| Figure::Sustained.unit().to_owned()));
    let bound = results.runs.iter().any(|run| run.bound.is_some());
    let frost = results.runs.iter().any(|run| run.rest.is_some());
    const OF_BOUND: [Figure; 2] = [Figure::Seconds, Figure::Bound];
    head.extend(OF_BOUND.iter().filter(|_| bound).map(|figure| figure.unit().to_owned()));
    let timed = !bound && !bytes;
    head.extend(timed.then(|| Figure::Seconds.unit().to_owned()));
    head.extend(frost.then(|| Figure::Rest.unit().to_owned()));
    let emulated = results.runs.iter().any(|run| run.emulator_seconds > 0.0);
    head.extend((lines || bound).then(|| "CPUs busy, %".to_owned()));
    head.extend(bytes.then(|| Figure::Cpu.unit().to_owned()));
    head.extend(emulated.then(|| "emulator, CPUs".to_owned()));
    head.extend(results.ratio.iter().map(|label| format!("of {label}")));
    let better = !results.better.is_empty();
    head.extend(better.then(|| format!("of the better of {}", results.better.join(", "))));
    head.push("n".into());
    head.push("remarks".into());
    let groups = results.groups();
    let rows = groups.iter().map(|group| {
        let key = group.key;
        let mut row: Vec<String> = Vec::new();
        row.extend(workloads.then(|| key.workload.clone()));
        row.extend(networks.then(|| key.network.clone()));
        row.push(key.competitor.clone());
        row.extend(axes.iter().map(|axis| key.get(axis).unwrap_or_default().to_owned()));
        row.extend(each.then(|| spread(group.spread(Figure::Each))));
        row.extend(bytes.then(|| spread(group.spread(Figure::Rate))));
        row.extend(files.then(|| spread(group.spread(Figure::Files))));
        row.extend(OF_LINES.iter().filter(|_| lines).map(|figure| spread(group.spread(*figure))));
        row.extend(peaks.then(|| spread(group.spread(Figure::Sustained))));
        let good = || group.runs.iter().filter(|run| run.outcome == Outcome::Ok);
        let busy = Spread::of(good().map(|run| run.busy(results.machine.processors) * 100.0));
        row.extend(OF_BOUND.iter().filter(|_| bound).map(|figure| spread(group.spread(*figure))));
        row.extend(timed.then(|| spread(group.spread(Figure::Seconds))));
        row.extend(frost.then(|| spread(group.spread(Figure::Rest))));
        row.extend((lines || bound).then(|| busy.map_or_else(|| "-".into(), |busy| figure(busy.median))));
        row.extend(bytes.then(|| spread(group.spread(Figure::Cpu))));
        let emulator = Spread::of(good().map(|run| run.emulator_seconds / run.wall_seconds));
        row.extend(emulated.then(|| emulator.map_or_else(String::new, |share| figure(share.median))));
        row.extend(results.ratio.iter().map(|label| ratio(group, &groups, label)));
        row.extend(better.then(|| best_ratio(group, &groups, &results.better)));
        row.push(group.spread(Figure::Seconds).map_or(0, |spread| spread.n).to_string());
        row.push(remark(results, group));
        row
    });
    let rows: Vec<Vec<String>> = rows.collect();
    layout(&head, &rows)
}

/// Columns of equal width, so that it can be read as text too.
fn layout(head: &[String], rows: &[Vec<String>]) -> String {
    let mut table = String::new();
    let all = || std::iter::once(head).chain(rows.iter().map(Vec::as_slice));
    let width = |at: usize| all().map(|row| row[at].chars().count()).max().unwrap_or(0).max(3);
    // The last column has sentences.
    let widths: Vec<usize> =
        (0..head.len()).map(|at| if at + 1 == head.len() { 3 } else { width(at) }).collect();
    for (index, row) in all().enumerate() {
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(table, "| {:width$} ", cell.replace('|', "\\|").replace('\n', " "));
        }
        table += "|\n";
        if index == 0 {
            table.extend(widths.iter().map(|width| format!("|{}", "-".repeat(width + 2))));
            table += "|\n";
        }
    }
    table
}

fn varies(results: &Results, dimension: &str) -> bool {
    let mut values = results.cells.iter().map(|key| key.get(dimension));
    let first = values.next();
    values.any(|value| Some(value) != first)
}

/// Names of all axes, each once.
fn axes(results: &Results) -> Vec<String> {
    let mut axes: Vec<String> = results.cells.iter().flat_map(|key| key.axes.keys().cloned()).collect();
    axes.sort();
    axes.dedup();
    axes
}

/// Three digits that count.
pub fn figure(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        large if large >= 99.95 => format!("{value:.0}"),
        large if large >= 9.995 => format!("{value:.1}"),
        large if large >= 0.9995 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn spread(spread: Option<Spread>) -> String {
    match spread {
        None => "-".into(),
        Some(one) if one.n == 1 => figure(one.median),
        Some(all) => format!("{} ({} .. {})", figure(all.median), figure(all.lowest), figure(all.highest)),
    }
}

/// Its rate as a part of that of `label`, on the same network with the same workload; the fastest setting of
/// `label`, if none is the same.
fn ratio(group: &Group<'_>, groups: &[Group<'_>], label: &str) -> String {
    if group.key.competitor == label {
        return String::new();
    }
    let same = |other: &&Group<'_>| {
        let (a, b) = (group.key, other.key);
        b.competitor == label && a.network == b.network && a.workload == b.workload
    };
    let exact = groups.iter().filter(same).find(|other| other.key.axes == group.key.axes);
    let best = || groups.iter().filter(same).filter_map(rate).max_by(f64::total_cmp);
    match (rate(group), exact.map_or_else(best, rate)) {
        (Some(own), Some(other)) if other > 0.0 => figure(own / other),
        _ => "-".into(),
    }
}

/// Median of its bytes a second; where it moves none, of what it counts.
fn rate(group: &Group<'_>) -> Option<f64> {
    let median = |figure| group.spread(figure).map(|spread| spread.median);
    median(Figure::Rate).filter(|rate| *rate > 0.0).or_else(|| median(Figure::Files))
}

/// Its rate as a part of that of the best one of these labels, at the very same values.
fn best_ratio(group: &Group<'_>, groups: &[Group<'_>], labels: &[String]) -> String {
    if labels.contains(&group.key.competitor) {
        return String::new();
    }
    let is_one = |other: &&Group<'_>| {
        let (a, b) = (group.key, other.key);
        labels.contains(&b.competitor)
            && (&a.network, &a.workload, &a.axes) == (&b.network, &b.workload, &b.axes)
    };
    let best = groups.iter().filter(is_one).filter_map(rate).max_by(f64::total_cmp);
    match (rate(group), best) {
        (Some(own), Some(best)) if best > 0.0 => figure(own / best),
        _ => "-".into(),
    }
}

/// What is to be known of a row beside its figures.
fn remark(results: &Results, group: &Group<'_>) -> String {
    let mut remarks = Vec::new();
    let contender = results.competitors.iter().find(|one| one.label == group.key.competitor);
    if let Some(why) = contender.and_then(|one| one.absent.as_ref()) {
        remarks.push(format!("cannot run here: {}", short(why)));
    }
    let count = |test: &dyn Fn(&&&Run) -> bool| group.runs.iter().filter(test).count();
    if count(&|run| run.outcome == Outcome::Over) > 0 {
        remarks.push(format!("over {}: ended, and not tried again", results.limit));
    }
    let failed = count(&|run| run.outcome == Outcome::Failed);
    if failed > 0 {
        let words = group.runs.iter().rev().find_map(|run| run.error.as_deref()).unwrap_or("no words");
        remarks.push(format!("**failed** {failed} of {}: {}", group.runs.len(), short(words)));
    }
    let busy = count(&|run| run.began_busy && run.outcome == Outcome::Ok);
    if busy > 0 {
        remarks.push(format!("{busy} began while the machine was busy"));
    }
    let stolen = count(&|run| run.stolen > STOLEN_MOST);
    if stolen > 0 {
        let most = group.runs.iter().map(|run| run.stolen).fold(0.0, f64::max);
        remarks.push(format!("{stolen} while the host took up to {:.0} % of the machine", 100.0 * most));
    }
    if count(&|run| run.outcome == Outcome::Ok && !run.checked) > 0 {
        remarks.push("no files to check".into());
    }
    let mut limits: Vec<&str> = group.runs.iter().filter_map(|run| run.limited_by()).collect();
    limits.sort_unstable();
    limits.dedup();
    if !limits.is_empty() {
        remarks.push(format!("limited by {}", limits.join(", ")));
    }
    remarks.extend(troubles(group));
    remarks.extend(rest(group));
    remarks.join("; ")
}

/// What befell the runs, and what it cost them.
fn troubles(group: &Group<'_>) -> Option<String> {
    let good = || group.runs.iter().filter(|run| run.outcome == Outcome::Ok);
    let all = good().filter_map(|run| run.trace.as_ref()).map(Trace::befell);
    let Befell { kills, downs, failed } = all.fold(Befell::default(), Befell::and);
    if kills + downs == 0 {
        return None;
    }
    let mut text = format!("{kills} connections killed, {downs} times dark, in all runs");
    if failed > 0 {
        let _ = write!(text, " ({failed} of these failed)");
    }
    let again = Spread::of(good().filter_map(|run| run.resent()));
    if let Some(again) = again {
        let _ = write!(text, "; objects sent again: {}", spread(Some(again)));
    }
    let back = Spread::of(good().filter_map(|run| run.steady.and_then(|steady| steady.back)));
    if let Some(back) = back {
        let _ = write!(text, "; data flowed again after {} s", spread(Some(back)));
    }
    Some(text)
}

/// Rates of the targets beside a frozen one.
fn rest(group: &Group<'_>) -> Option<String> {
    let good = || group.runs.iter().filter(|run| run.outcome == Outcome::Ok).filter_map(|run| run.rest);
    let mega = |rate: f64| rate / 1e6;
    let [before, during] = [
        Spread::of(good().map(|rest| mega(rest.before)))?,
        Spread::of(good().map(|rest| mega(rest.during)))?,
    ];
    let after = Spread::of(good().filter_map(|rest| rest.after).map(mega));
    let after = after.map_or_else(|| "-".to_owned(), |after| figure(after.median));
    let [before, during] = [before, during].map(|spread| figure(spread.median));
    Some(format!("the others had {before} MB/s before the frost, {during} in it, {after} after"))
}

pub(super) fn short(words: &str) -> String {
    let line = words.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(WORDS_MAX) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

/// Networks as they were seen, and what haul needed of memory.
fn remarks(results: &Results) -> String {
    let mut text = String::new();
    let mut bounds: Vec<(&str, f64)> = Vec::new();
    for run in &results.runs {
        if let Some(bound) = run.bound
            && !bounds.contains(&(run.key.workload.as_str(), bound))
        {
            bounds.push((run.key.workload.as_str(), bound));
        }
    }
    let one_each =
        (1..).zip(&bounds).all(|(at, (name, _))| bounds[at..].iter().all(|(other, _)| other != name));
    if !bounds.is_empty() && !one_each {
        text += "\nThe bound is the least time in which all targets and the line can move their part of the bytes.\n";
    } else if !bounds.is_empty() {
        text += "\nThe bound is the least time in which all targets, as congestion leaves them, and the line can move their part: ";
        let each = bounds.iter().map(|(workload, bound)| format!("{} s for {workload}", figure(*bound)));
        text += &each.collect::<Vec<_>>().join(", ");
        text += ".\n";
    }
    if results.networks.values().any(|seen| !seen.is_null()) {
        text += "\n## Networks\n\n| network | round trip set, ms | ping min / mean, ms | error of the shortest, ms | iperf3 / room for, Gbit/s | late p99 / max, µs, worst run | CPUs, median |\n|---|---|---|---|---|---|---|\n";
        for (name, seen) in results.networks.iter().filter(|(_, seen)| !seen.is_null()) {
            let number = |key: &str| seen[key].as_f64().unwrap_or(f64::NAN);
            let runs =
                || results.runs.iter().filter(|run| run.key.network == *name && run.outcome == Outcome::Ok);
            let late = |key: &str| runs().filter_map(|run| run.late(key)).fold(0.0, f64::max);
            let share = Spread::of(runs().map(|run| run.emulator_seconds / run.wall_seconds));
            let _ = writeln!(
                text,
                "| {name} | {} | {:.3} / {:.3} | {:+.3} | {} | {:.0} / {:.0} | {} |",
                figure(number("set_ms")),
                number("min_ms"),
                number("mean_ms"),
                number("min_ms") - number("set_ms"),
                // Results of before this was kept have none.
                seen["goodput_gbit"].as_f64().map_or_else(
                    || "-".into(),
                    |goodput| format!("{} / {}", figure(goodput), figure(number("goodput_possible_gbit")))
                ),
                late("p99"),
                late("max"),
                share.map_or_else(|| "-".into(), |share| figure(share.median)),
            );
        }
    }
    text
}

fn set_up(results: &Results) -> String {
    let mut text = String::from("\n## How it was measured\n\n");
    let machine = &results.machine;
    let command = format!("`{}`", results.command);
    for (name, value) in [
        ("Repeat", &command),
        ("Date", &results.dates.join(", ")),
        ("haul", &results.build.describe()),
        (
            "Machine",
            &format!(
                "{} x {}, {} GiB, Linux {}, TCP {}",
                machine.processors,
                machine.processor,
                machine.memory,
                machine.kernel,
                machine.congestion_control
            ),
        ),
        ("Source", &results.source),
        ("Sink", &results.sink),
        (
            "Rounds",
            &format!(
                "{}, each with every combination once, in an order drawn with seed {}; destination emptied, everything synced \
                 and memory had at hand between runs, outside of the clock",
                results.rounds, results.seed
            ),
        ),
    ] {
        let _ = writeln!(text, "- {name}: {value}");
    }
    text += "\n| competitor | version | is |\n|---|---|---|\n";
    for one in &results.competitors {
        let version = one.version.as_deref().or(one.absent.as_deref()).unwrap_or("unknown");
        let cell = |text: &str| text.replace('|', "\\|").replace('\n', " ");
        let _ = writeln!(text, "| {} | {} | {} |", one.label, cell(&short(version)), cell(&one.about));
    }
    let _ = writeln!(text, "\nAll runs, one a line: [{0}.csv]({0}.csv).", results.name);
    text
}

/// Nothing was seen of loopback.
pub fn seen(min_ms: f64, mean_ms: f64, set_ms: f64) -> Value {
    serde_json::json!({ "min_ms": min_ms, "mean_ms": mean_ms, "set_ms": set_ms })
}

#[cfg(test)]
#[path = "table_tests.rs"]
pub mod tests;
