//! What the line carried over time, as a panel of a picture: of each competitor one run.
//!
//! In: groups of runs with bytes of each second. Out: lines, as steps of a second. All panels have one scale.

use std::fmt::Write as _;

use super::super::result::{Group, Outcome, Run};
use super::super::watch;
use super::{BOTTOM, COLOURS, LEFT, PANEL, TOP, escape, label};

/// How far the axes go: seconds, and MB/s.
pub(super) struct Range {
    seconds: f64,
    rate: f64,
}

impl Range {
    /// At least a second and 1 MB/s.
    pub(super) fn of(groups: &[Group<'_>]) -> Range {
        let shown = || groups.iter().filter_map(middle);
        let rates = shown().flat_map(|run| run.each_second.iter().copied().map(payload));
        Range {
            seconds: shown().map(|run| run.each_second.len() as f64).fold(1.0, f64::max),
            rate: rates.fold(1.0, f64::max),
        }
    }
}

/// The run of the median time; of two the faster one.
fn middle<'a>(group: &Group<'a>) -> Option<&'a Run> {
    let good = |run: &&&Run| run.outcome == Outcome::Ok && !run.each_second.is_empty();
    let mut runs: Vec<&Run> = group.runs.iter().filter(good).copied().collect();
    runs.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    runs.get(runs.len().saturating_sub(1) / 2).copied()
}

/// MB of TCP's payload in so many bytes of frames.
fn payload(bytes: f64) -> f64 {
    bytes * watch::PAYLOAD / watch::FRAME / 1e6
}

/// `series` are the values that have colours, in their order; `by` is what they are values of.
pub(super) fn panel(
    out: &mut String,
    name: &str,
    groups: &[&Group<'_>],
    series: &[String],
    by: &str,
    range: &Range,
) {
    let (right, bottom) = (PANEL.0 - 8.0, PANEL.1 - BOTTOM);
    let at = |seconds: f64, rate: f64| {
        (LEFT + seconds / range.seconds * (right - LEFT), bottom - rate / range.rate * (bottom - TOP))
    };
    let _ =
        write!(out, r#"<text x="{LEFT}" y="{:.0}" font-weight="bold">{}</text>"#, TOP - 8.0, escape(name));
    for part in [0.0, 0.25, 0.5, 0.75, 1.0] {
        let (x, y) = at(range.seconds * part, range.rate * part);
        let _ = write!(
            out,
            r#"<path class="grid" d="M{LEFT} {y:.1}H{right}"/><text x="{:.0}" y="{:.1}" text-anchor="end">{}</text><text x="{x:.1}" y="{:.0}" text-anchor="middle">{}</text>"#,
            LEFT - 6.0,
            y + 4.0,
            label((range.rate * part).round()),
            bottom + 18.0,
            label((range.seconds * part * 10.0).round() / 10.0),
        );
    }
    let middle_of = (TOP + bottom) / 2.0;
    let _ = write!(
        out,
        r#"<text transform="translate(12 {middle_of:.0}) rotate(-90)" text-anchor="middle">rate over time, MB/s</text><text x="{:.0}" y="{:.0}" text-anchor="middle">seconds</text>"#,
        f64::midpoint(LEFT, right),
        PANEL.1 - 8.0,
    );
    for group in groups {
        let Some(run) = middle(group) else { continue };
        let of = group.key.get(by).and_then(|value| series.iter().position(|known| known == value));
        let mut path = String::new();
        for (second, bytes) in run.each_second.iter().enumerate() {
            let (from, y) = at(second as f64, payload(*bytes));
            let (to, _) = at(second as f64 + 1.0, 0.0);
            let _ = write!(path, "{}{from:.1} {y:.1}H{to:.1}", if path.is_empty() { 'M' } else { 'L' });
        }
        let class = of.unwrap_or(COLOURS - 1) % COLOURS;
        let _ = write!(out, r#"<path class="thin s{class}" d="{path}"/>"#);
    }
    let _ = write!(out, r#"<path class="frame" d="M{LEFT} {TOP}V{bottom}H{right}"/>"#);
}
