//! Self-contained pages: one HTML file with headings, facts, tables and figures, readable without network.
//!
//! In: texts and numbers of a report, any text hostile. Out: one string with its own styles and inline SVG.
//! Invariants: no script, link, font or image is asked of anybody; every text passes [`escaped`]; a figure
//! says in words what it shows, has its numbers in it, and does not tell by colour alone; light and dark by
//! the reader's own setting, light on paper. Left out: interaction, and charts of more than one unit.

use std::fmt::Write;

mod curves;
mod heat;
pub mod scale;

pub use curves::{Curves, Kind, Series};
pub use heat::HeatMap;

const STYLE: &str = include_str!("html/style.css");
/// Most rows of a table: a page of more can be opened nowhere. What is left out is said.
const ROWS_MAX: usize = 10_000;

/// A table: its columns with whether they hold numbers, and its rows in their order.
pub struct Table<'a> {
    pub caption: &'a str,
    pub columns: &'a [(&'a str, bool)],
    pub rows: Vec<Vec<String>>,
}

/// A page that is being written, from the top.
pub struct Page {
    title: String,
    body: String,
    /// Figures so far, for ids that nothing else has.
    figures: usize,
    /// A row of figures is open.
    row: bool,
    section: bool,
}

impl Page {
    pub fn new(title: &str) -> Page {
        let body = format!("<h1>{}</h1>\n", escaped(title));
        Page { title: title.into(), body, figures: 0, row: false, section: false }
    }

    /// Begins a section; it ends where the next begins.
    pub fn section(mut self, heading: &str) -> Page {
        self.end_row();
        if self.section {
            self.body += "</section>\n";
        }
        self.section = true;
        let _ = writeln!(self.body, "<section>\n<h2>{}</h2>", escaped(heading));
        self
    }

    /// A paragraph.
    pub fn text(mut self, text: &str) -> Page {
        self.end_row();
        let _ = writeln!(self.body, "<p>{}</p>", escaped(text));
        self
    }

    /// Names and what they stand for.
    pub fn facts(mut self, facts: &[(&str, String)]) -> Page {
        self.end_row();
        self.body += "<dl>\n";
        for (name, value) in facts {
            let _ = writeln!(self.body, "<div><dt>{}</dt><dd>{}</dd></div>", escaped(name), escaped(value));
        }
        self.body += "</dl>\n";
        self
    }

    /// A list of sentences; nothing when there are none.
    pub fn list(mut self, items: &[String]) -> Page {
        self.end_row();
        if !items.is_empty() {
            let items: String = items.iter().map(|item| format!("<li>{}</li>\n", escaped(item))).collect();
            let _ = writeln!(self.body, "<ul>\n{items}</ul>");
        }
        self
    }

    pub fn heat_map(self, map: &HeatMap) -> Page {
        self.figure(|id| map.svg(id))
    }

    pub fn curves(self, curves: &Curves) -> Page {
        self.figure(|id| curves.svg(id))
    }

    /// A table that scrolls by itself where the window is narrow.
    pub fn table(mut self, table: &Table) -> Page {
        self.end_row();
        let class = |numeric: bool| if numeric { " class=\"n\"" } else { "" };
        let _ = write!(
            self.body,
            "<div class=\"scroll\" tabindex=\"0\">\n<table>\n<caption>{}</caption>\n<thead><tr>",
            escaped(table.caption)
        );
        for (name, numeric) in table.columns {
            let _ = write!(self.body, "<th scope=\"col\"{}>{}</th>", class(*numeric), escaped(name));
        }
        self.body += "</tr></thead>\n<tbody>\n";
        for row in table.rows.iter().take(ROWS_MAX) {
            self.body += "<tr>";
            for (cell, (_, numeric)) in row.iter().zip(table.columns) {
                let _ = write!(self.body, "<td{}>{}</td>", class(*numeric), escaped(cell));
            }
            self.body += "</tr>\n";
        }
        self.body += "</tbody>\n</table>\n</div>\n";
        match table.rows.len().saturating_sub(ROWS_MAX) {
            0 => self,
            more => self.text(&format!("{more} more rows are not shown.")),
        }
    }

    /// The whole file.
    pub fn render(mut self) -> String {
        self.end_row();
        if self.section {
            self.body += "</section>\n";
        }
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n\
             <title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{}</main>\n</body>\n</html>\n",
            escaped(&self.title),
            self.body
        )
    }

    /// Figures that follow each other stand side by side where there is room.
    fn figure(mut self, draw: impl FnOnce(usize) -> String) -> Page {
        if !self.row {
            self.body += "<div class=\"figures\">\n";
            self.row = true;
        }
        self.figures += 1;
        self.body += &draw(self.figures);
        self
    }

    fn end_row(&mut self) {
        if std::mem::take(&mut self.row) {
            self.body += "</div>\n";
        }
    }
}

/// A text as HTML and as the value of an attribute in double quotes. What steers or hides text is made
/// visible.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in crate::escape::text(text).chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            _ => out.push(c),
        }
    }
    out
}

/// The beginning of a figure: its caption, and what it shows in words. Ended by [`FIGURE_END`].
fn figure_start(id: usize, title: &str, description: &str, width: f64, height: f64) -> String {
    let (title, description) = (escaped(title), escaped(description));
    format!(
        "<figure>\n<figcaption>{title}</figcaption>\n\
         <svg role=\"img\" aria-labelledby=\"f{id}t f{id}d\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\">\n<title id=\"f{id}t\">{title}</title>\n<desc id=\"f{id}d\">{description}</desc>\n"
    )
}

const FIGURE_END: &str = "</svg>\n</figure>\n";

#[cfg(test)]
#[path = "html/tests.rs"]
pub mod tests;
