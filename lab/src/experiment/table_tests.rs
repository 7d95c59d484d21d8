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
