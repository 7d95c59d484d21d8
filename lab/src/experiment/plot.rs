//! Results as a picture: medians with the spread as bars, one panel for each network or whatever the
//! experiment says.
//!
//! In: [`Results`]. Out: SVG that is read on light and on dark pages, for it brings colours for both.
//! Own code, for a plotting library draws no style sheet, and that is what a dark page needs.

use std::fmt::Write as _;

use super::file::{Figure, Kind, Plot};
use super::result::{Group, Results, Spread};
use super::table::figure;

#[path = "over_time.rs"]
mod over_time;

const PANEL: (f64, f64) = (420.0, 240.0);
const LEFT: f64 = 64.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 46.0;
const GAP: f64 = 16.0;
const HEAD: f64 = 34.0;
const COLUMNS_MAX: usize = 2;
/// Colours that differ in brightness too; then they repeat.
const STYLE: &str = "svg{font:13px sans-serif;--ink:#1a202c;--grid:#d8dee6;--page:#fff}\
text{fill:var(--ink)}.page{fill:var(--page)}.grid{stroke:var(--grid)}.frame{stroke:var(--ink);fill:none}\
.spread{stroke:var(--ink);stroke-width:1.3;fill:none}\
.s0{--c:#1f6fb4}.s1{--c:#d9660a}.s2{--c:#218a3c}.s3{--c:#b32d4b}.s4{--c:#7a4fb0}.s5{--c:#7d6a16}.s6{--c:#0d8a8f}.s7{--c:#a03d93}.s8{--c:#6b7280}\
.line{stroke:var(--c);stroke-width:2;fill:none}.dot,.bar{fill:var(--c)}.thin{stroke:var(--c);stroke-width:1.3;fill:none}.limit{stroke-dasharray:6 4}\
@media(prefers-color-scheme:dark){svg{--ink:#e6e9ee;--grid:#3a4150;--page:#14181f}\
.s0{--c:#5aa9f0}.s1{--c:#ff9c4a}.s2{--c:#5cc878}.s3{--c:#f0708c}.s4{--c:#b48cf0}.s5{--c:#d8c24a}.s6{--c:#4fcdd2}.s7{--c:#e48ad8}.s8{--c:#a8b0bd}}";
const COLOURS: usize = 9;

/// A point: place on the x axis (none: a limit that holds for all of it), series, median and spread.
struct Point {
    x: Option<usize>,
    series: usize,
    spread: Spread,
}

/// Draws it; none if there is nothing to draw.
pub fn svg(results: &Results) -> Option<String> {
    let plot = &results.plot;
    let values = |name: &str| {
        let mut values: Vec<String> = Vec::new();
        for value in results.cells.iter().filter_map(|key| key.get(name)) {
            if !values.iter().any(|known| known == value) {
                values.push(value.to_owned());
            }
        }
        values
    };
    let (xs, series) = (values(&plot.x), values(&plot.series));
    let panels = plot.panels.as_deref().map_or_else(|| vec![String::new()], values);
    let groups = results.groups();
    let columns = panels.len().min(COLUMNS_MAX);
    let each = panels.len().div_ceil(columns.max(1));
    let rows = each * (plot.y.len() + usize::from(plot.over_time));
    let legend = legend(&series, columns as f64 * (PANEL.0 + GAP));
    let (width, height) =
        (columns as f64 * (PANEL.0 + GAP) + GAP, HEAD + rows as f64 * (PANEL.1 + GAP) + legend.1);
    let mut body = String::new();
    let mut drawn = 0;
    for (row, &y) in plot.y.iter().enumerate() {
        let points_of = |panel: &str| -> Vec<Point> {
            let here = groups.iter().filter(|group| is_in(plot, group, panel));
            here.filter_map(|group| {
                let at = |values: &[String], name: &str| {
                    group.key.get(name).and_then(|value| values.iter().position(|known| known == value))
                };
                // Who does not have the series' axis goes by its own name nowhere: it is drawn in the last
                // colour.
                let of = at(&series, &plot.series).unwrap_or(COLOURS - 1);
                Some(Point { x: at(&xs, &plot.x), series: of, spread: group.spread(y)? })
            })
            .collect()
        };
        let all: Vec<Vec<Point>> = panels.iter().map(|panel| points_of(panel)).collect();
        // One scale for all panels of a figure, so that they can be compared.
        let scale = Scale::of(all.iter().flatten(), plot.log_y);
        for (index, points) in all.iter().enumerate() {
            drawn += points.len();
            let line = row * each + index / columns;
            let x = GAP + (index % columns) as f64 * (PANEL.0 + GAP);
            let top = HEAD + legend.1 + line as f64 * (PANEL.1 + GAP);
            let _ = write!(body, r#"<g transform="translate({x:.0} {top:.0})">"#);
            panel(&mut body, &panels[index], points, &xs, &series, results, y, &scale);
            body += "</g>\n";
        }
    }
    if plot.over_time {
        let best = over_time::Range::of(&groups);
        for (index, name) in panels.iter().enumerate() {
            let here: Vec<_> = groups.iter().filter(|group| is_in(plot, group, name)).collect();
            let x = GAP + (index % columns) as f64 * (PANEL.0 + GAP);
            let line = plot.y.len() * each + index / columns;
            let top = HEAD + legend.1 + line as f64 * (PANEL.1 + GAP);
            let _ = write!(body, r#"<g transform="translate({x:.0} {top:.0})">"#);
            over_time::panel(&mut body, name, &here, &series, &plot.series, &best);
            body += "</g>\n";
        }
    }
    (drawn > 0).then(|| {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\">\n\
             <title>{title}</title><style>{STYLE}</style>\n<rect class=\"page\" width=\"100%\" height=\"100%\"/>\n\
             <text x=\"{GAP}\" y=\"22\" font-weight=\"bold\" font-size=\"15\">{title}{quick}</text>\n{}\n{body}</svg>\n",
            legend.0,
            title = escape(&results.title),
            quick = if results.quick { " (quick run, no result)" } else { "" },
        )
    })
}

fn is_in(plot: &Plot, group: &Group<'_>, panel: &str) -> bool {
    plot.panels.as_deref().is_none_or(|by| group.key.get(by).is_none_or(|at| at == panel))
}

/// The names of the series, in as many lines as they need; and their height.
fn legend(series: &[String], width: f64) -> (String, f64) {
    let (mut text, mut x, mut y) = (String::new(), GAP, HEAD + 8.0);
    for (index, name) in series.iter().enumerate() {
        let len = 34.0 + 7.5 * name.chars().count() as f64;
        if x + len > width && x > GAP {
            (x, y) = (GAP, y + 20.0);
        }
        let _ = write!(
            text,
            r#"<rect class="bar s{}" x="{x:.0}" y="{:.0}" width="14" height="10"/><text x="{:.0}" y="{y:.0}">{}</text>"#,
            index % COLOURS,
            y - 10.0,
            x + 20.0,
            escape(name)
        );
        x += len;
    }
    (text, y - HEAD + 10.0)
}

/// Values to pixels from the bottom.
struct Scale {
    log: bool,
    low: f64,
    high: f64,
    step: f64,
}

impl Scale {
    fn of<'a>(points: impl Iterator<Item = &'a Point>, log: bool) -> Scale {
        let (mut low, mut high) = (f64::INFINITY, 0.0f64);
        for point in points {
            high = high.max(point.spread.highest);
            low = low.min(point.spread.lowest.max(f64::MIN_POSITIVE));
        }
        if high <= 0.0 {
            (low, high) = (1.0, 1.0);
        }
        if log {
            return Scale {
                log,
                low: low.log10().floor(),
                high: high.log10().ceil().max(low.log10().floor() + 1.0),
                step: 1.0,
            };
        }
        // Four to eight lines, at 1, 2 or 5 times a power of ten.
        let raw = high / 5.0;
        let power = 10f64.powf(raw.log10().floor());
        let step =
            [1.0, 2.0, 5.0, 10.0].map(|by| by * power).into_iter().find(|step| *step >= raw).unwrap_or(raw);
        Scale { log, low: 0.0, high: (high / step).ceil() * step, step }
    }

    fn at(&self, value: f64) -> f64 {
        let value = if self.log { value.max(f64::MIN_POSITIVE).log10() } else { value };
        let part = ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        PANEL.1 - BOTTOM - part * (PANEL.1 - BOTTOM - TOP)
    }

    fn lines(&self) -> impl Iterator<Item = (f64, f64)> {
        let count = ((self.high - self.low) / self.step).round() as u32;
        (0..=count).map(|index| {
            let value = self.low + f64::from(index) * self.step;
            let value = if self.log { 10f64.powf(value) } else { value };
            (value, self.at(value))
        })
    }
}

fn panel(
    out: &mut String,
    name: &str,
    points: &[Point],
    xs: &[String],
    series: &[String],
    results: &Results,
    y: Figure,
    scale: &Scale,
) {
    let plot = &results.plot;
    let (right, bottom) = (PANEL.0 - 8.0, PANEL.1 - BOTTOM);
    let _ =
        write!(out, r#"<text x="{LEFT}" y="{:.0}" font-weight="bold">{}</text>"#, TOP - 8.0, escape(name));
    for (value, at) in scale.lines() {
        let _ = write!(
            out,
            r#"<path class="grid" d="M{LEFT} {at:.1}H{right}"/><text x="{:.0}" y="{:.1}" text-anchor="end">{}</text>"#,
            LEFT - 6.0,
            at + 4.0,
            label(value)
        );
    }
    let middle = (TOP + bottom) / 2.0;
    let title = if y == Figure::Files { results.unit(y) } else { y.title().to_owned() };
    let _ = write!(
        out,
        r#"<text transform="translate(12 {middle:.0}) rotate(-90)" text-anchor="middle">{}</text>"#,
        escape(&title)
    );
    let _ = write!(
        out,
        r#"<text x="{:.0}" y="{:.0}" text-anchor="middle">{}</text>"#,
        f64::midpoint(LEFT, right),
        PANEL.1 - 8.0,
        escape(&plot.x)
    );
    let places = places(xs, plot.log_x, plot.kind, right);
    for (value, at) in xs.iter().zip(&places) {
        let _ = write!(
            out,
            r#"<text x="{at:.1}" y="{:.0}" text-anchor="middle">{}</text>"#,
            bottom + 18.0,
            escape(value)
        );
    }
    let slot = (right - LEFT) / xs.len().max(1) as f64;
    for index in 0..series.len().max(COLOURS) {
        let own: Vec<&Point> = points.iter().filter(|point| point.series == index).collect();
        let class = format!("s{}", index % COLOURS);
        let limits = own.iter().filter(|point| point.x.is_none());
        for limit in limits {
            let at = scale.at(limit.spread.median);
            let _ = write!(out, r#"<path class="line limit {class}" d="M{LEFT} {at:.1}H{right}"/>"#);
        }
        let mut path = String::new();
        for point in &own {
            let Some(x) = point.x.and_then(|x| places.get(x)) else { continue };
            let [median, low, high] =
                [point.spread.median, point.spread.lowest, point.spread.highest].map(|value| scale.at(value));
            if plot.kind == Kind::Bars {
                let width = slot * 0.84 / series.len().max(1) as f64;
                let left = x - slot * 0.42 + width * index.min(series.len()) as f64;
                let middle = left + width / 2.0;
                let _ = write!(
                    out,
                    r#"<rect class="bar {class}" x="{left:.1}" y="{median:.1}" width="{:.1}" height="{:.1}"><title>{}</title></rect>"#,
                    width * 0.92,
                    bottom - median,
                    said(&point.spread, y)
                );
                let _ = write!(out, r#"<path class="spread" d="M{middle:.1} {low:.1}V{high:.1}"/>"#);
            } else {
                let _ = write!(path, "{}{x:.1} {median:.1}", if path.is_empty() { 'M' } else { 'L' });
                let _ = write!(
                    out,
                    r#"<path class="thin {class}" d="M{x:.1} {low:.1}V{high:.1}M{:.1} {low:.1}h6M{:.1} {high:.1}h6"/>"#,
                    x - 3.0,
                    x - 3.0
                );
                let _ = write!(
                    out,
                    r#"<circle class="dot {class}" cx="{x:.1}" cy="{median:.1}" r="3.5"><title>{}</title></circle>"#,
                    said(&point.spread, y)
                );
            }
        }
        if !path.is_empty() {
            let _ = write!(out, r#"<path class="line {class}" d="{path}"/>"#);
        }
    }
    let _ = write!(out, r#"<path class="frame" d="M{LEFT} {TOP}V{bottom}H{right}"/>"#);
}

/// Where each value stands: by its logarithm, else evenly.
fn places(xs: &[String], log: bool, kind: Kind, right: f64) -> Vec<f64> {
    let numbers: Option<Vec<f64>> = xs.iter().map(|value| value.parse().ok().map(f64::ln)).collect();
    let inner = (LEFT + 16.0, right - 16.0);
    match numbers {
        Some(logs) if log && kind == Kind::Lines && xs.len() > 1 => {
            let (low, high) = logs
                .iter()
                .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), at| (low.min(*at), high.max(*at)));
            logs.iter().map(|at| inner.0 + (at - low) / (high - low) * (inner.1 - inner.0)).collect()
        }
        _ => (0..xs.len())
            .map(|index| LEFT + (index as f64 + 0.5) * (right - LEFT) / xs.len() as f64)
            .collect(),
    }
}

/// A value at an axis, without noughts that say nothing.
fn label(value: f64) -> String {
    if value >= 10_000.0 { format!("{}k", trim(value / 1000.0)) } else { trim(value) }
}

fn trim(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn said(spread: &Spread, y: Figure) -> String {
    format!(
        "{} ({} .. {}) {}, n = {}",
        figure(spread.median),
        figure(spread.lowest),
        figure(spread.highest),
        y.unit(),
        spread.n
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
#[path = "plot_tests.rs"]
mod tests;
