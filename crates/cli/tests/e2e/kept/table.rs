//! The tables of docs/metadata.md: what is known of each file system and kind.
//!
//! In: the page, and the columns that were found. Out: the page with these in the place of its own.
//! What must hold: what was not found stays as it was, and nothing is made up: a file system of which nothing
//! was ever found is named as not tested.

use std::collections::BTreeMap;

use super::kinds::KINDS;
use super::places::FILE_SYSTEMS;

const BEGIN: &str = "<!-- kept: ";
const END: &str = "<!-- end of kept -->";
const NOT_TESTED: &str = "Not tested: ";
/// The two tables.
pub const DESTINATION: &str = "destination";
pub const SOURCE: &str = "source";

/// What becomes of each kind, by its title.
pub type Column = BTreeMap<String, String>;

/// The page, in which the table `which` has these columns, by the titles of file systems.
pub fn with(page: &str, which: &str, found: &BTreeMap<String, Column>) -> String {
    let mark = format!("{BEGIN}{which} -->\n");
    let (before, rest) = page.split_once(&mark).expect("the page has the table's mark");
    let (table, after) = rest.split_once(END).expect("the page has the mark of its end");
    let mut columns = read(table);
    columns.extend(found.clone());
    // A user who copies from it finds what root finds, but for what is closed to him.
    let systems = FILE_SYSTEMS.iter().filter(|system| which == DESTINATION || !system.by_a_user);
    let titles = systems.map(|system| system.title).collect();
    format!("{before}{mark}{}{END}{after}", write(titles, &columns))
}

/// The cells of a line.
fn cells(line: &str) -> Vec<String> {
    // What stands within code may be anything but a bar.
    let inner = line.trim().trim_start_matches('|').trim_end_matches('|');
    inner.split('|').map(|cell| cell.trim().to_owned()).collect()
}

fn read(table: &str) -> BTreeMap<String, Column> {
    let mut lines = table.lines().filter(|line| line.starts_with('|'));
    let titles = lines.next().map(cells).unwrap_or_default();
    let mut columns = BTreeMap::<String, Column>::new();
    for row in lines.skip(1).map(cells) {
        let Some((kind, row)) = row.split_first() else { continue };
        for (title, cell) in titles.iter().skip(1).zip(row) {
            columns.entry(title.clone()).or_default().insert(kind.clone(), cell.clone());
        }
    }
    columns
}

fn write(titles: Vec<&str>, columns: &BTreeMap<String, Column>) -> String {
    let (known, unknown): (Vec<&str>, Vec<&str>) =
        titles.into_iter().partition(|title| columns.contains_key(*title));
    let mut text = format!("| | {} |\n|---|{}\n", known.join(" | "), "---|".repeat(known.len()));
    for kind in KINDS {
        let row = known.iter().map(|title| columns[*title].get(kind.title).map_or("", String::as_str));
        text += &format!("| {} | {} |\n", kind.title, row.collect::<Vec<_>>().join(" | "));
    }
    if !unknown.is_empty() {
        text += &format!("\n{NOT_TESTED}{}.\n", unknown.join("; "));
    }
    text
}
