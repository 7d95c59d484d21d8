use super::super::table::tests::RECORDED;
use super::*;

/// Every element is closed, in order, and nothing stands bare that XML reserves: enough to tell a broken
/// picture.
fn check_xml(text: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find('<') {
        let (before, tag) = rest.split_at(start);
        let end = tag.find('>').expect("a tag ends");
        assert!(!before.contains('>'), "a bare > in {before:?}");
        for (at, _) in before.match_indices('&') {
            let entity = before[at..].split_inclusive(';').next().unwrap();
            assert!(["&amp;", "&lt;", "&gt;", "&quot;"].contains(&entity), "a bare & in {before:?}");
        }
        let inner = &tag[1..end];
        assert!(inner.matches('"').count() % 2 == 0 && !inner.contains('<'), "{inner}");
        let name = inner.split_whitespace().next().unwrap();
        if let Some(name) = name.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "closed out of order");
        } else if !inner.ends_with('/') {
            open.push(name);
        }
        rest = &tag[end + 1..];
    }
    assert!(open.is_empty() && rest.trim().is_empty(), "{open:?} is left open");
}

/// Goal: a picture is whole XML, has each point with its spread, units at its axes, names of series, and
/// colours for dark pages; what has no place on the x axis is a line across.
/// Method: a recorded result as lines and as bars.
#[test]
fn pictures_have_all_points() {
    let mut results: Results = serde_json::from_str(RECORDED).unwrap();
    let lines = svg(&results).unwrap();
    check_xml(&lines);
    // haul at 1 and 2 threads have a rate; rsync, scp and lftp none.
    assert_eq!(lines.matches("<circle").count(), 2);
    assert_eq!(lines.matches("class=\"line limit").count(), 1, "iperf3 has no threads");
    for words in [
        "rate, MB/s",
        "threads",
        "Title &amp; more",
        ">haul<",
        ">iperf3<",
        "prefers-color-scheme:dark",
        "500 (250 .. 1000) MB/s, n = 3",
    ] {
        assert!(lines.contains(words), "{words:?} is not in {lines}");
    }
    results.plot.kind = Kind::Bars;
    results.plot.x = "network".into();
    results.plot.y = vec![Figure::Rate, Figure::Cpu];
    results.cells.retain(|key| key.get("threads") != Some("1"));
    let bars = svg(&results).unwrap();
    check_xml(&bars);
    assert_eq!(
        bars.matches("<rect class=\"bar").count(),
        5 + 2 * 2,
        "a legend of five, and two bars in each panel"
    );
    assert!(bars.contains("processor time, s/GB") && bars.contains(">lan<"));
    results.runs.clear();
    assert!(svg(&results).is_none(), "nothing was measured");
}

/// Goal: scales hold all spreads, begin at zero or at a power of ten, and have a few lines.
/// Method: figures of very different sizes.
#[test]
fn scales_hold_all_points() {
    for high in [0.003, 1.0, 9.7, 1234.0, 5e6] {
        let point = Point {
            x: Some(0),
            series: 0,
            spread: Spread { median: high / 2.0, lowest: high / 30.0, highest: high, n: 3 },
        };
        for log in [false, true] {
            let scale = Scale::of(std::iter::once(&point), log);
            let lines: Vec<_> = scale.lines().collect();
            assert!((2..=12).contains(&lines.len()), "{high}: {lines:?}");
            assert!(lines.last().unwrap().0 >= high * 0.999 && lines[0].0 <= high / 30.0, "{lines:?}");
            assert!(scale.at(high) < scale.at(high / 2.0) && scale.at(high) >= TOP - 0.01);
        }
    }
}
