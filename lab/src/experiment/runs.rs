//! The runs of a measurement, one a line, for other programs.
//!
//! In: results. Out: CSV (RFC 4180): a header, then each run in the order in which it was made.
//! Invariant: every figure that a table or a picture is made of is here, so that both can be made again.
//! Left out: all else that programs said, and what was seen over time; that is in `NAME.json`.

use std::fmt::Write as _;

use super::result::{Outcome, Results, Run};
use super::watch::Trace;

/// The columns. Names end in their unit; a share is of 1, and what has no unit is a count or a word.
const HEADER: &str = "round,place,network,workload,competitor,axes,settings,outcome,error,wall_seconds,\
    seconds,bytes,files,cpu_seconds,emulator_seconds,stolen_share,began_busy,checked,line_bytes_per_second,\
    bound_seconds,steady_bytes_per_second,reach_seconds,back_seconds,others_before_bytes_per_second,\
    others_during_bytes_per_second,others_after_bytes_per_second,limited_by,objects_resent,\
    connections_killed,times_dark,troubles_failed,lateness_p99_us,lateness_max_us,\
    bytes_each_second";

/// A line for each run. An empty field: there is no such figure.
pub fn csv(results: &Results) -> String {
    let mut text = HEADER.to_owned() + "\n";
    for run in &results.runs {
        let _ = writeln!(text, "{}", line(run));
    }
    text
}

fn line(run: &Run) -> String {
    let pairs = |map: &std::collections::BTreeMap<String, String>| {
        map.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(";")
    };
    let outcome = match run.outcome {
        Outcome::Ok => "ok",
        Outcome::Failed => "failed",
        Outcome::Over => "over",
    };
    // What is endless, as the wait for data that never flowed again, is no figure: JSON has none for it
    // either.
    let number = |figure: Option<f64>| {
        figure.filter(|figure| figure.is_finite()).map_or_else(String::new, |figure| figure.to_string())
    };
    let befell = run.trace.as_ref().map(Trace::befell);
    let count = |count: Option<usize>| count.map_or_else(String::new, |count| count.to_string());
    let fields = [
        run.round.to_string(),
        run.place.to_string(),
        run.key.network.clone(),
        run.key.workload.clone(),
        run.key.competitor.clone(),
        pairs(&run.key.axes),
        pairs(&run.settings),
        outcome.to_owned(),
        run.error.clone().unwrap_or_default(),
        run.wall_seconds.to_string(),
        run.seconds.to_string(),
        run.bytes.to_string(),
        run.files.to_string(),
        run.cpu_seconds.to_string(),
        run.emulator_seconds.to_string(),
        run.stolen.to_string(),
        run.began_busy.to_string(),
        run.checked.to_string(),
        number(run.line_rate),
        number(run.bound),
        number(run.steady.map(|steady| steady.rate)),
        number(run.steady.map(|steady| steady.reach)),
        number(run.steady.and_then(|steady| steady.back)),
        number(run.rest.map(|rest| rest.before)),
        number(run.rest.map(|rest| rest.during)),
        number(run.rest.and_then(|rest| rest.after)),
        run.limited_by().unwrap_or_default().to_owned(),
        number(run.resent()),
        count(befell.map(|befell| befell.kills)),
        count(befell.map(|befell| befell.downs)),
        count(befell.map(|befell| befell.failed)),
        number(run.late("p99")),
        number(run.late("max")),
        run.each_second.iter().map(|bytes| format!("{bytes:.0}")).collect::<Vec<_>>().join(";"),
    ];
    fields.map(|field| quoted(&field)).join(",")
}

/// A field as RFC 4180 has it. Line breaks become spaces, so that a run is a line.
fn quoted(field: &str) -> String {
    let field = field.replace(['\r', '\n'], " ");
    if field.contains([',', '"']) { format!("\"{}\"", field.replace('"', "\"\"")) } else { field }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::super::file::Figure;
    use super::super::flow::Rest;
    use super::super::watch::Steady;
    use super::super::{plot, table};
    use super::*;

    /// Goal: every run is a line with as many fields as the header, whatever it said; no figure is invented.
    /// Method: recorded results with odd words in them.
    #[test]
    fn a_run_is_a_line() {
        let mut results: Results = serde_json::from_str(super::super::table::tests::RECORDED).unwrap();
        results.runs[0].error = Some("a, \"b\"\nc".into());
        let text = csv(&results);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 1 + results.runs.len());
        assert!(lines[1].contains(",\"a, \"\"b\"\" c\","), "{}", lines[1]);
        results.runs[0].error = None;
        let fields = |line: &str| line.split(',').count();
        let text = csv(&results);
        assert_eq!(fields(text.lines().nth(1).unwrap()), fields(HEADER), "{text}");
    }

    /// Goal: nothing that a table or a picture tells is only in the JSON.
    /// Method: recorded results with all kinds of figures; their runs, read back from the lines alone, give
    /// the same page and the same pictures.
    #[test]
    fn tables_and_pictures_can_be_made_of_the_lines() {
        let mut results: Results = serde_json::from_str(super::super::table::tests::RECORDED).unwrap();
        results.plot.y = vec![Figure::Rate, Figure::Share, Figure::Steady, Figure::Bound, Figure::Rest];
        results.plot.y.push(Figure::Sustained);
        results.plot.over_time = true;
        for (index, run) in results.runs.iter_mut().enumerate() {
            let some = index as f64 + 1.0;
            run.stolen = some / 10.0;
            run.line_rate = Some(1.25e9);
            run.bound = Some(some / 7.0);
            run.steady = Some(Steady { rate: 1e8 / some, reach: some / 3.0, back: Some(some * 1.5) });
            run.each_second = vec![1e7, 5e7 * some, 2e7];
            run.rest = Some(Rest { before: 3e8 / some, during: 2e8, after: Some(1e8 * some) });
            let troubles = ["kill", "kill failed: no ss", "down", "up", "up failed: no ip"];
            let troubles = troubles.iter().map(|what| (some, (*what).to_owned())).collect();
            run.trace = Some(Trace { troubles, ..Trace::default() });
            run.said["objects_resent"] = serde_json::json!(index + 3);
        }
        // One whose data never flowed again, as JSON has it too.
        results.runs[0].steady.as_mut().unwrap().back = Some(f64::INFINITY);
        let again = Results { runs: read(&csv(&results)), ..results.clone() };
        assert_eq!(table::page(&again, true), table::page(&results, true));
        assert_eq!(plot::svg(&again), plot::svg(&results));
    }

    /// The runs as the lines have them.
    fn read(text: &str) -> Vec<Run> {
        let mut lines = text.lines().map(split);
        let head = lines.next().unwrap();
        lines.map(|line| run(&head.iter().cloned().zip(line).collect())).collect()
    }

    fn split(line: &str) -> Vec<String> {
        let (mut fields, mut inside) = (vec![String::new()], false);
        let mut chars = line.chars().peekable();
        while let Some(one) = chars.next() {
            match one {
                '"' if inside && chars.next_if_eq(&'"').is_some() => fields.last_mut().unwrap().push('"'),
                '"' => inside = !inside,
                ',' if !inside => fields.push(String::new()),
                other => fields.last_mut().unwrap().push(other),
            }
        }
        fields
    }

    fn run(fields: &BTreeMap<String, String>) -> Run {
        let word = |name: &str| Some(fields[name].clone()).filter(|word| !word.is_empty());
        let value = |name: &str| word(name).map(|word| serde_json::from_str::<Value>(&word).unwrap());
        let pairs = |name: &str| {
            let pairs = fields[name].split(';').filter_map(|pair| pair.split_once('='));
            pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect::<BTreeMap<_, _>>()
        };
        let numbers = |name: &str| -> Vec<f64> {
            fields[name].split(';').filter_map(|number| number.parse().ok()).collect()
        };
        let troubles =
            [("kill", "connections_killed"), ("down", "times_dark"), ("failed", "troubles_failed")];
        let count = |name: &str| value(name).and_then(|count| count.as_u64()).unwrap_or_default();
        let troubles: Vec<(f64, &str)> = troubles
            .iter()
            .flat_map(|(what, name)| vec![(0.0, *what); usize::try_from(count(name)).unwrap()])
            .collect();
        let steady = value("steady_bytes_per_second").map(
            |rate| json!({ "rate": rate, "reach": value("reach_seconds"), "back": value("back_seconds") }),
        );
        let [before, during, after] =
            ["before", "during", "after"].map(|when| value(&format!("others_{when}_bytes_per_second")));
        let run = json!({
            "round": value("round"), "place": value("place"), "network": word("network"),
            "workload": word("workload"), "competitor": word("competitor"), "axes": pairs("axes"),
            "settings": pairs("settings"), "outcome": word("outcome"), "error": word("error"),
            "wall_seconds": value("wall_seconds"), "seconds": value("seconds"), "bytes": value("bytes"),
            "files": value("files"), "cpu_seconds": value("cpu_seconds"),
            "emulator_seconds": value("emulator_seconds"), "stolen": value("stolen_share"),
            "began_busy": value("began_busy"), "checked": value("checked"),
            "line_rate": value("line_bytes_per_second"), "bound": value("bound_seconds"), "steady": steady,
            "each_second": numbers("bytes_each_second"),
            "rest": before.map(|before| json!({ "before": before, "during": during, "after": after })),
            "trace": value("times_dark").map(|_| json!({ "carried": [], "troubles": troubles })),
            "said": { "limited_by": word("limited_by"), "objects_resent": value("objects_resent") },
            "network_stats":
                { "lateness_us": { "p99": value("lateness_p99_us"), "max": value("lateness_max_us") } },
        });
        serde_json::from_value(run).unwrap()
    }

    /// Goal: results in the repository are of this form.
    #[test]
    fn committed_runs_have_these_columns() {
        let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/results");
        let mut seen = 0;
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "csv") {
                let text = std::fs::read_to_string(&path).unwrap();
                assert_eq!(text.lines().next(), Some(HEADER), "{}", path.display());
                assert!(text.lines().count() > 1, "{}", path.display());
                seen += 1;
            }
        }
        assert!(seen >= 18, "only {seen} results");
    }
}
