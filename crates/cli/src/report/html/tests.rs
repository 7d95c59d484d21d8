//! Pages held against what a reader of HTML needs: tags that match, texts that stay texts.

use std::collections::BTreeSet;

use super::*;

/// Elements that have no end.
const VOID: [&str; 2] = ["meta", "br"];

/// Checks a page: each tag closed in its place, each attribute quoted, no id twice, nothing asked of anybody.
///
/// # Panics
/// With what is wrong.
#[track_caller]
pub fn check_page(page: &str) {
    assert!(page.starts_with("<!DOCTYPE html>\n<html lang=\"en\">"), "it begins as HTML");
    let mut open: Vec<String> = Vec::new();
    let mut ids = BTreeSet::new();
    let mut wanted = Vec::new();
    let (style, rest) = page
        .split_once("<style>")
        .and_then(|(head, rest)| {
            let (style, body) = rest.split_once("</style>")?;
            Some((style.to_owned(), format!("{head}{body}")))
        })
        .expect("one style");
    for asks in ["url(", "@import", "@font-face", "expression(", "\\", "<"] {
        assert!(!style.contains(asks), "the style has {asks}");
    }
    let rest = rest.strip_prefix("<!DOCTYPE html>").expect("it begins as HTML");
    let mut parts = rest.split('<');
    assert_eq!(parts.next(), Some("\n"), "no text before the first tag");
    for part in parts {
        let (tag, text) = part.split_once('>').unwrap_or_else(|| panic!("a tag has no end: {part}"));
        assert!(!text.contains('>'), "a stray > in: {text}");
        for entity in text.split('&').skip(1) {
            let name = entity.split(';').next().unwrap_or_default();
            assert!(["amp", "lt", "gt", "quot", "#39"].contains(&name), "a stray & in: {text}");
        }
        assert!(!part.chars().any(|c| c.is_control() && c != '\n'), "a control character in: {part:?}");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "an end that does not match");
            continue;
        }
        let empty = tag.ends_with('/');
        let mut quoted = tag.trim_end_matches('/').split('"');
        let mut names = quoted.next().unwrap_or_default().to_owned();
        while let (Some(value), Some(next)) = (quoted.next(), quoted.next()) {
            let attribute = names.rsplit(' ').next().unwrap_or_default().to_owned();
            match attribute.as_str() {
                "id=" => assert!(ids.insert(value.to_owned()), "id {value} stands twice"),
                "aria-labelledby=" => wanted.extend(value.split(' ').map(str::to_owned)),
                "src=" | "href=" | "xlink:href=" | "style=" | "http-equiv=" => panic!("{attribute} in {tag}"),
                _ => assert!(!attribute.starts_with("on"), "{attribute} in {tag}"),
            }
            assert!(next.is_empty() || next.starts_with(' '), "attributes run into each other: {tag}");
            names += next;
        }
        let name = names.split(' ').next().unwrap_or_default().to_owned();
        let known = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        assert!(known && !name.is_empty(), "a strange tag: {tag}");
        assert!(
            !["script", "link", "img", "iframe", "object", "a", "use", "image"].contains(&name.as_str()),
            "{tag}"
        );
        if !empty && !VOID.contains(&name.as_str()) {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "never closed: {open:?}");
    for id in wanted {
        assert!(ids.contains(&id), "nothing has the id {id}");
    }
}

/// All that hostile names hold.
pub fn hostile() -> String {
    let controls: String = (0..0x20u8).map(char::from).collect();
    format!(
        "</title></style><script>alert(1)</script>\"' onload=x &amp; {controls}\u{7f}\u{9b}\u{202e}\u{2028}\u{feff}"
    )
}

fn map(text: &str, rows: usize, columns: usize) -> HeatMap {
    let value = |n: usize| (!n.is_multiple_of(7)).then_some(n as f64 * 1e7);
    HeatMap {
        title: text.into(),
        description: text.into(),
        x_label: text.into(),
        x: vec![text.into(); columns],
        y_label: text.into(),
        y: vec![text.into(); rows],
        values: (0..rows)
            .map(|row| (0..columns).map(|column| value(row * columns + column)).collect())
            .collect(),
        max: (rows * columns) as f64 * 1e7,
        best: Some((rows.saturating_sub(1), 0)),
    }
}

fn curves(text: &str, kind: Kind, count: usize, points: usize) -> Curves {
    Curves {
        title: text.into(),
        description: text.into(),
        x_label: text.into(),
        x: (0..points).map(|n| (f64::from(1 << n.min(20)), text.into())).collect(),
        legend: text.into(),
        kind,
        series: (0..count)
            .map(|n| Series {
                name: text.into(),
                points: (0..points).map(|p| (f64::from(1 << p.min(20)), (n * p) as f64 * 1e6)).collect(),
            })
            .collect(),
        max: (count * points) as f64 * 1e6,
    }
}

fn whole(text: &str) -> Page {
    Page::new(text)
        .text(text)
        .section(text)
        .facts(&[(text, text.into())])
        .list(&[text.into()])
        .heat_map(&map(text, 3, 4))
        .curves(&curves(text, Kind::Ordered, 5, 6))
        .curves(&curves(text, Kind::Unordered, 4, 1))
        .table(&Table {
            caption: text,
            columns: &[(text, true), ("b", false)],
            rows: vec![vec![text.into(), "x".into()]],
        })
        .section("two")
        .heat_map(&map(text, 1, 1))
}

/// Goal: a page is well formed, asks nothing of anybody, and has one title and a heading for each section.
#[test]
fn pages_are_well_formed() {
    let page = whole("plain").render();
    check_page(&page);
    assert_eq!(page.matches("<figure>").count(), 4);
    assert_eq!(page.matches("class=\"figures\"").count(), 2, "figures in a row share one");
    assert!(page.matches("<h2>").count() == 2 && page.matches("<section>").count() == 2);
    for word in ["http", "<script", "src=", "href=", "url("] {
        assert!(!page.contains(word), "{word}");
    }
    check_page(&Page::new("empty").render());
}

/// Goal: whatever a text holds, it stays a text, and what it held can still be told.
#[test]
fn texts_stay_texts() {
    let text = hostile();
    let page = whole(&text).render();
    check_page(&page);
    assert!(!page.contains("<script") && !page.contains("alert(1)<"));
    assert!(page.contains("&lt;script&gt;") && page.contains("\\x1b") && page.contains("\\u{202e}"));
    let mut random = fastrand::Rng::with_seed(11);
    let alphabet: Vec<char> = "<>&\"'/!-[]=;# \n\0\u{1b}\u{85}aé\u{10ffff}".chars().collect();
    for _ in 0..300 {
        let text: String =
            (0..random.usize(..20)).map(|_| alphabet[random.usize(..alphabet.len())]).collect();
        check_page(&whole(&text).render());
    }
}

/// Goal: figures of any extent and any values are drawn within their frame, or cut to it with a word.
/// Method: none, one and too many rows, curves and points; values that are no numbers.
#[test]
fn figures_of_any_extent_are_drawn() {
    for (rows, columns) in [(0, 0), (1, 0), (0, 1), (1, 1), (100, 100)] {
        let page = Page::new("t").heat_map(&map("x", rows, columns)).render();
        check_page(&page);
        assert!(page.matches("<g>").count() <= 24 * 24);
    }
    for (count, points) in [(0, 0), (1, 0), (0, 1), (1, 1), (40, 300)] {
        let page = Page::new("t").curves(&curves("x", Kind::Ordered, count, points)).render();
        check_page(&page);
        assert_eq!(page.contains("and 24 more"), count == 40);
    }
    for odd in [f64::NAN, f64::INFINITY, -1.0, 0.0, f64::MAX] {
        let mut broken = curves("x", Kind::Ordered, 3, 3);
        broken.series[1].points = vec![(odd, odd), (1.0, odd)];
        broken.max = odd;
        broken.x.push((odd, "odd".into()));
        let mut grid = map("x", 2, 2);
        grid.values[0][0] = Some(odd);
        grid.max = odd;
        let page = Page::new("t").curves(&broken).heat_map(&grid).render();
        check_page(&page);
        let drawn: String =
            page.split("points=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert!(!drawn.contains("NaN") && !drawn.contains("inf"), "{odd}: {drawn}");
    }
}

/// Goal: curves differ by shape, not by colour alone, and marks of a map have their number in words.
#[test]
fn figures_do_not_tell_by_colour_alone() {
    let page = Page::new("t").curves(&curves("x", Kind::Unordered, 4, 2)).render();
    let marks: BTreeSet<String> = page
        .split("<path d=\"")
        .skip(1)
        .filter_map(|rest| Some(rest.split('"').next()?.chars().filter(|c| "MLaZ".contains(*c)).collect()))
        .collect();
    assert!(marks.len() >= 3, "{marks:?}");
    let page = Page::new("t").heat_map(&map("x", 2, 2)).render();
    assert!(page.contains("<title>x, x: 20.0 MB/s</title>") && page.contains("not measured"));
}

/// Goal: a table of more rows than a page can hold says what it left out.
#[test]
fn tables_are_cut_aloud() {
    let rows = vec![vec!["x".to_owned()]; ROWS_MAX + 3];
    let page = Page::new("t").table(&Table { caption: "c", columns: &[("a", false)], rows }).render();
    check_page(&page);
    assert!(page.contains("3 more rows are not shown") && page.matches("<tr>").count() == ROWS_MAX + 1);
}
