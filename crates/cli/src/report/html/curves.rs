//! Curves: a value over one setting, one curve for each value of another.

use std::fmt::Write;

use super::scale::{self, Log2, ORDERED_STEPS, UNORDERED_STEPS, Unit};
use super::{FIGURE_END, escaped, figure_start};

/// Most curves that can be told apart; a table holds the rest, and the figure says so.
const SERIES_MAX: usize = 16;
/// Most points of a curve.
const POINTS_MAX: usize = 256;

const WIDTH: f64 = 580.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 58.0;
/// Where the plot ends and the names of the curves begin.
const RIGHT: f64 = 440.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = 268.0;
/// Room that a name on the x axis takes.
const NAME_WIDTH: f64 = 50.0;
const LEGEND_GAP: f64 = 16.0;

/// Whether the curves follow an order, as sizes do, which their colours then show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ordered,
    Unordered,
}

/// One curve.
pub struct Series {
    pub name: String,
    /// Position on the x axis (above zero) and value.
    pub points: Vec<(f64, f64)>,
}

/// A figure of curves.
pub struct Curves {
    pub title: String,
    /// What it shows, for those who cannot see it.
    pub description: String,
    pub x_label: String,
    /// Ticks of the x axis: position and name. The axis gives equal room to each doubling.
    pub x: Vec<(f64, String)>,
    /// What tells the curves apart.
    pub legend: String,
    pub kind: Kind,
    pub series: Vec<Series>,
    /// The value that the y axis must hold, so that figures beside each other can share it.
    pub max: f64,
}

impl Curves {
    pub(super) fn svg(&self, id: usize) -> String {
        let mut out = figure_start(id, &self.title, &self.description, WIDTH, HEIGHT);
        let unit = Unit::rate(self.max);
        let ticks = scale::ticks(self.max / unit.per);
        let top = ticks.last().copied().unwrap_or(1.0) * unit.per;
        let y = |value: f64| BOTTOM - (value / top).clamp(0.0, 1.0) * (BOTTOM - TOP);
        y_axis(&mut out, &ticks, unit, y);
        let x = self.x_axis(&mut out);

        let shown: Vec<(usize, &Series)> = self.series.iter().take(SERIES_MAX).enumerate().collect();
        let colour = |index: usize| match self.kind {
            Kind::Ordered => format!("o{}", scale::spread(index, shown.len(), ORDERED_STEPS)),
            Kind::Unordered => format!("c{}", index % UNORDERED_STEPS),
        };
        let mut ends = Vec::new();
        for (index, series) in &shown {
            let sound = series.points.iter().filter(|(px, value)| on_axis(*px) && value.is_finite());
            let points: Vec<(f64, f64, f64)> =
                sound.take(POINTS_MAX).map(|(px, value)| (x.at(*px), y(*value), *value)).collect();
            let line: Vec<String> = points.iter().map(|(x, y, _)| format!("{x:.1},{y:.1}")).collect();
            let class = colour(*index);
            let _ = writeln!(out, "<g class=\"{class}\"><polyline points=\"{}\"/>", line.join(" "));
            for (x, y, value) in &points {
                let (name, value) = (escaped(&series.name), unit.show(*value));
                let mark = mark(*index, *x, *y);
                let _ =
                    writeln!(out, "<path d=\"{mark}\"><title>{name}: {value} {}</title></path>", unit.name);
            }
            out += "</g>\n";
            ends.extend(points.last().map(|(x, y, _)| (*index, (*x, *y), series.name.as_str())));
        }
        self.legend(&mut out, ends, colour);
        let (x, y, label) = (f64::midpoint(LEFT, RIGHT), BOTTOM + 40.0, escaped(&self.x_label));
        let _ = writeln!(out, "<text class=\"axis mid\" x=\"{x}\" y=\"{y}\">{label}</text>");
        out + FIGURE_END
    }

    /// The axis of the setting; where names would touch, some are left out.
    fn x_axis(&self, out: &mut String) -> Log2 {
        let ticks = || self.x.iter().filter(|(position, _)| on_axis(*position));
        let positions = || ticks().map(|(position, _)| *position);
        let (low, high) = (positions().fold(f64::INFINITY, f64::min), positions().fold(0.0, f64::max));
        // Curves do not touch the axis.
        let axis = Log2::new(low.min(high), high, LEFT + 16.0, RIGHT - 16.0);
        let mut free = f64::NEG_INFINITY;
        for (position, name) in ticks() {
            let x = axis.at(*position);
            let _ = writeln!(
                out,
                "<line class=\"base\" x1=\"{x:.1}\" y1=\"{BOTTOM}\" x2=\"{x:.1}\" y2=\"{}\"/>",
                BOTTOM + 4.0
            );
            // Short names need less room.
            let room = NAME_WIDTH.min(8.0 * name.chars().count() as f64 + 6.0);
            if x - room / 2.0 >= free {
                let name = escaped(name);
                let y = BOTTOM + 18.0;
                let _ = writeln!(out, "<text class=\"tick mid\" x=\"{x:.1}\" y=\"{y}\">{name}</text>");
                free = x + room / 2.0;
            }
        }
        axis
    }

    /// Each curve's name beside its end, as near as its neighbours allow.
    fn legend(
        &self,
        out: &mut String,
        mut ends: Vec<(usize, (f64, f64), &str)>,
        colour: impl Fn(usize) -> String,
    ) {
        ends.sort_by(|(_, a, _), (_, b, _)| a.1.total_cmp(&b.1));
        let wanted: Vec<f64> = ends.iter().map(|(_, (_, y), _)| *y).collect();
        let places = scale::apart(&wanted, LEGEND_GAP, TOP + 8.0, BOTTOM);
        let _ = writeln!(
            out,
            "<text class=\"axis\" x=\"{}\" y=\"12\">{}</text>",
            RIGHT + 14.0,
            escaped(&self.legend)
        );
        for ((index, (x, y), name), place) in ends.iter().zip(places) {
            let (class, name, mark) = (colour(*index), escaped(name), mark(*index, RIGHT + 20.0, place));
            let (from, to, text) = (x + 6.0, RIGHT + 12.0, RIGHT + 30.0);
            let _ = writeln!(
                out,
                "<line class=\"lead\" x1=\"{from:.1}\" y1=\"{y:.1}\" x2=\"{to}\" y2=\"{place:.1}\"/>\
                 <g class=\"{class}\"><path d=\"{mark}\"/></g>\
                 <text class=\"tick\" x=\"{text}\" y=\"{:.1}\">{name}</text>",
                place + 4.0
            );
        }
        let more = self.series.len().saturating_sub(SERIES_MAX);
        if more > 0 {
            let y = BOTTOM + 18.0;
            let _ =
                writeln!(out, "<text class=\"tick\" x=\"{}\" y=\"{y}\">and {more} more</text>", RIGHT + 14.0);
        }
    }
}

/// Whether an axis of doublings has this position.
fn on_axis(position: f64) -> bool {
    position.is_finite() && position > 0.0
}

fn y_axis(out: &mut String, ticks: &[f64], unit: Unit, y: impl Fn(f64) -> f64) {
    let digits = ticks.get(1).map_or(0, |step| scale::tick_digits(*step));
    for tick in ticks {
        let at = y(tick * unit.per);
        let class = if *tick == 0.0 { "base" } else { "grid" };
        let _ = writeln!(
            out,
            "<line class=\"{class}\" x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{RIGHT}\" y2=\"{at:.1}\"/>\
             <text class=\"tick end\" x=\"{}\" y=\"{:.1}\">{tick:.digits$}</text>",
            LEFT - 8.0,
            at + 4.0
        );
    }
    let _ = writeln!(out, "<text class=\"axis end\" x=\"{}\" y=\"12\">{}</text>", LEFT - 8.0, unit.name);
}

/// A mark of its own shape for each of six neighbours, so that curves differ without colour too.
fn mark(index: usize, x: f64, y: f64) -> String {
    let path = |points: &[(f64, f64)]| {
        let points: Vec<String> =
            points.iter().map(|(dx, dy)| format!("{:.1} {:.1}", x + dx, y + dy)).collect();
        format!("M{}Z", points.join("L"))
    };
    match index % 6 {
        0 => format!("M{:.1} {y:.1}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z", x - 4.0),
        1 => path(&[(-3.7, -3.7), (3.7, -3.7), (3.7, 3.7), (-3.7, 3.7)]),
        2 => path(&[(0.0, -5.0), (4.6, 3.4), (-4.6, 3.4)]),
        3 => path(&[(0.0, -5.4), (5.4, 0.0), (0.0, 5.4), (-5.4, 0.0)]),
        4 => path(&[(0.0, 5.0), (4.6, -3.4), (-4.6, -3.4)]),
        _ => path(&[
            (-1.5, -4.7),
            (1.5, -4.7),
            (1.5, -1.5),
            (4.7, -1.5),
            (4.7, 1.5),
            (1.5, 1.5),
            (1.5, 4.7),
            (-1.5, 4.7),
            (-1.5, 1.5),
            (-4.7, 1.5),
            (-4.7, -1.5),
            (-1.5, -1.5),
        ]),
    }
}
