//! Heat maps: a value for each pair of two settings, as a coloured cell with its number in it.

use std::fmt::Write;

use super::scale::{self, HEAT_STEPS, Unit};
use super::{FIGURE_END, escaped, figure_start};

/// Most rows and columns that are drawn; a table holds the rest.
const CELLS_MAX: usize = 24;

const CELL_WIDTH: f64 = 58.0;
const CELL_HEIGHT: f64 = 30.0;
const LEFT: f64 = 92.0;
const TOP: f64 = 4.0;
/// Below the cells: names of columns, the axis, the ramp.
const BOTTOM: f64 = 92.0;
const RAMP_WIDTH: f64 = 22.0;
/// From so many rows on there is room for the name of their axis beside them.
const ROWS_BESIDE: usize = 3;

/// A map of values over two settings.
pub struct HeatMap {
    pub title: String,
    /// What it shows, for those who cannot see it.
    pub description: String,
    pub x_label: String,
    pub x: Vec<String>,
    pub y_label: String,
    /// From the top.
    pub y: Vec<String>,
    /// One row for each of `y`, one value for each of `x`. `None`: not measured.
    pub values: Vec<Vec<Option<f64>>>,
    /// The value of the strongest colour, so that maps beside each other can share it.
    pub max: f64,
    /// Row and column of the cell that is outlined.
    pub best: Option<(usize, usize)>,
}

impl HeatMap {
    pub(super) fn svg(&self, id: usize) -> String {
        let (columns, rows) = (self.x.len().clamp(1, CELLS_MAX), self.y.len().min(CELLS_MAX));
        let unit = Unit::rate(self.max);
        // A narrow map still has room for its ramp.
        let width =
            (LEFT + CELL_WIDTH * columns as f64 + 2.0).max(LEFT + RAMP_WIDTH * HEAT_STEPS as f64 + 90.0);
        let height = TOP + CELL_HEIGHT * rows as f64 + BOTTOM;
        let mut out = figure_start(id, &self.title, &self.description, width, height);
        self.axes(&mut out, columns, rows);
        for (row, name) in self.y.iter().enumerate().take(rows) {
            let y = TOP + CELL_HEIGHT * row as f64;
            for (column, other) in self.x.iter().enumerate().take(columns) {
                let x = LEFT + CELL_WIDTH * column as f64;
                let value = self.values.get(row).and_then(|row| row.get(column)).copied().flatten();
                cell(&mut out, (x, y), value, self.max, unit, &format!("{name}, {other}"));
            }
        }
        // Last, for no neighbour may cover it.
        if let Some((row, column)) = self.best.filter(|(row, column)| *row < rows && *column < columns) {
            let (x, y) = (LEFT + CELL_WIDTH * column as f64, TOP + CELL_HEIGHT * row as f64);
            let (width, height) = (CELL_WIDTH - 2.0, CELL_HEIGHT - 2.0);
            let _ = writeln!(
                out,
                "<rect class=\"best\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"2\"/>"
            );
        }
        self.ramp(&mut out, TOP + CELL_HEIGHT * rows as f64 + 62.0, unit);
        out + FIGURE_END
    }

    fn axes(&self, out: &mut String, columns: usize, rows: usize) {
        let bottom = TOP + CELL_HEIGHT * rows as f64;
        for (row, name) in self.y.iter().enumerate().take(rows) {
            let y = TOP + CELL_HEIGHT * (row as f64 + 0.5) + 3.0;
            let name = escaped(name);
            let _ = writeln!(out, "<text class=\"tick end\" x=\"{}\" y=\"{y}\">{name}</text>", LEFT - 8.0);
        }
        for (column, name) in self.x.iter().enumerate().take(columns) {
            let x = LEFT + CELL_WIDTH * (column as f64 + 0.5) - 1.0;
            let (y, name) = (bottom + 16.0, escaped(name));
            let _ = writeln!(out, "<text class=\"tick mid\" x=\"{x}\" y=\"{y}\">{name}</text>");
        }
        let (x, y) = (LEFT + CELL_WIDTH * columns as f64 / 2.0 - 1.0, bottom + 36.0);
        if rows < ROWS_BESIDE {
            let label = escaped(&format!("{}; rows: {}", self.x_label, self.y_label));
            let _ = writeln!(out, "<text class=\"axis\" x=\"{LEFT}\" y=\"{y}\">{label}</text>");
            return;
        }
        let label = escaped(&self.x_label);
        let _ = writeln!(out, "<text class=\"axis mid\" x=\"{x}\" y=\"{y}\">{label}</text>");
        let (y, label) = (TOP + CELL_HEIGHT * rows as f64 / 2.0, escaped(&self.y_label));
        let _ = writeln!(
            out,
            "<text class=\"axis mid\" x=\"12\" y=\"{y}\" transform=\"rotate(-90 12 {y})\">{label}</text>"
        );
    }

    /// What the colours mean.
    fn ramp(&self, out: &mut String, y: f64, unit: Unit) {
        let _ = writeln!(out, "<text class=\"tick end\" x=\"{}\" y=\"{}\">0</text>", LEFT - 8.0, y + 10.0);
        for step in 0..HEAT_STEPS {
            let x = LEFT + RAMP_WIDTH * step as f64;
            let _ = writeln!(
                out,
                "<rect class=\"h{step}\" x=\"{x}\" y=\"{y}\" width=\"{RAMP_WIDTH}\" height=\"12\"/>"
            );
        }
        let x = LEFT + RAMP_WIDTH * HEAT_STEPS as f64 + 8.0;
        let (value, name) = (unit.show(self.max), unit.name);
        let _ = writeln!(out, "<text class=\"tick\" x=\"{x}\" y=\"{}\">{value} {name}</text>", y + 10.0);
    }
}

fn cell(out: &mut String, (x, y): (f64, f64), value: Option<f64>, max: f64, unit: Unit, name: &str) {
    let (width, height) = (CELL_WIDTH - 2.0, CELL_HEIGHT - 2.0);
    let place = format!("x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"2\"");
    let (tx, ty) = (x + width / 2.0, y + height / 2.0 + 4.0);
    let name = escaped(name);
    let _ = match value {
        Some(value) => {
            let (step, shown) = (scale::step(value, max, HEAT_STEPS), unit.show(value));
            writeln!(
                out,
                "<g><title>{name}: {shown} {}</title><rect class=\"h{step}\" {place}/>\
                 <text class=\"cell t{step}\" x=\"{tx}\" y=\"{ty}\">{shown}</text></g>",
                unit.name
            )
        }
        None => writeln!(
            out,
            "<g><title>{name}: not measured</title><rect class=\"none\" {place}/>\
             <text class=\"cell tick\" x=\"{tx}\" y=\"{ty}\">–</text></g>"
        ),
    };
}
