use super::*;

/// Recorded from a run, and made small: a limit, haul with an axis, a peer that is too slow, one that fails,
/// one that is not here.
pub const RECORDED: &str = include_str!("recorded.json");

/// Goal: the page has every combination with its figures, what it is held against, and why others have none.
/// Method: a recorded result, and the lines that it must have.
#[test]
fn a_page_has_all_that_was_measured() {
    let results: Results = serde_json::from_str(RECORDED).unwrap();
    let page = page(&results, true);
    let row = |start: &[&str]| {
        let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
        let found = page
            .lines()
            .map(cells)
            .find(|row| row.iter().skip(1).zip(start).all(|(a, b)| a == b) && row.len() > start.len() + 2);
        found.unwrap_or_else(|| panic!("no row {start:?} in {page}"))
    };
    // 1 GB in 2, 1 and 4 s; the limit moves it in 0.5 s.
    let haul = row(&["haul", "2"]);
    assert_eq!(haul[3..7], ["500 (250 .. 1000)", "1.50 (1.00 .. 3.00)", "0.250", "0.250"]);
    assert_eq!(haul[7], "3");
    assert!(
        haul[8].contains("1 began while the machine was busy") && haul[8].contains("limited by network"),
        "{haul:?}"
    );
    assert_eq!(row(&["iperf3", ""])[3], "2000");
    assert!(row(&["scp", ""])[8].contains("over 3m"));
    assert_eq!(row(&["rsync", ""])[3], "-");
    assert!(row(&["lftp", ""])[8].contains("cannot run here: lftp is not installed"));
    for words in [
        "# Title & more",
        r"**failed** 1 of 1: rsync: code 23 \| oh |",
        "Why?",
        "![Title & more](name.svg)",
        "lab/lab run name --rounds 3 --seed 7",
        "commit 0123456789ab, **with changes that no commit has**",
        "2 x Some CPU, 24 GiB, Linux 6.1",
        "| lan | 0.200 | 0.210 / 0.233 | +0.010 | 9.20 / 9.41 | 61 / 900 |",
        "iperf 3.12",
        "[name.csv](name.csv)",
    ] {
        assert!(page.contains(words), "{words:?} is not in {page}");
    }
    assert!(!page.contains("quick run") && !page.contains("without regard"));
    assert_eq!(results.failures(), 1);
    let quick = super::page(&Results { quick: true, busy: true, ..results }, false);
    assert!(quick.contains("quick run") && quick.contains("--busy") && !quick.contains(".svg"));
}

/// Goal: figures have three digits that count.
/// Method: a table.
#[test]
fn figures_have_three_digits() {
    for (value, text) in [
        (0.0, "0"),
        (1234.5, "1234"),
        (99.96, "100"),
        (12.34, "12.3"),
        (9.996, "10.0"),
        (1.2345, "1.23"),
        (0.01234, "0.012"),
    ] {
        assert_eq!(figure(value), text);
    }
}

/// Goal: who is held against the better one of several has its part of that, at the same values alone; where
/// nothing but names is counted, the columns say so.
/// Method: a recorded result, in which two are held against the limit and one that failed; the same without
/// bytes.
#[test]
fn the_better_of_several_is_the_measure() {
    let mut results: Results = serde_json::from_str(RECORDED).unwrap();
    let rows = |results: &Results| -> Vec<Vec<String>> {
        let page = page(results, false);
        let lines = page.lines().filter(|line| line.starts_with("| "));
        lines.map(|line| line.split('|').map(|cell| cell.trim().to_owned()).collect()).collect()
    };
    results.better = vec!["iperf3".into(), "rsync".into()];
    let axes: std::collections::BTreeMap<String, String> = [("threads".into(), "2".into())].into();
    results.cells.iter_mut().filter(|key| key.competitor == "iperf3").for_each(|key| key.axes = axes.clone());
    results
        .runs
        .iter_mut()
        .filter(|run| run.key.competitor == "iperf3")
        .for_each(|run| run.key.axes = axes.clone());
    let table = rows(&results);
    let at = table[0].iter().position(|cell| cell == "of the better of iperf3, rsync").unwrap();
    let cell = |competitor: &str, threads: &str| {
        let row = table.iter().find(|row| row[1] == competitor && row[2] == threads).unwrap();
        row[at].clone()
    };
    assert_eq!(cell("haul", "2"), "0.250");
    assert_eq!(cell("haul", "1"), "-");
    assert_eq!(cell("iperf3", "2"), "");
    results.counts = Some("names".into());
    for run in &mut results.runs {
        (run.bytes, run.files) = (0, 10);
    }
    let table = rows(&results);
    let has = |head: &str| table[0].iter().any(|cell| cell == head);
    assert!(has("names/s") && has("s") && !has("MB/s") && !has("CPU s/GB"), "{:?}", table[0]);
    // Ten in 2, 1 and 4 s, beside ten in 0.5 s.
    let at = table[0].iter().position(|cell| cell == "of the better of iperf3, rsync").unwrap();
    assert!(table.iter().any(|row| row[1] == "haul" && row[2] == "2" && row[at] == "0.250"), "{table:?}");
}
