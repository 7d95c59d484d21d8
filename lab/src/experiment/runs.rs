//! The runs of a measurement, one a line, for other programs.
//!
//! In: results. Out: CSV (RFC 4180): a header, then each run in the order in which it was made.
//! Left out: what programs said, and what was seen over time; that is in `NAME.json`.

use std::fmt::Write as _;

use super::result::{Outcome, Results, Run};

/// The columns. Times are seconds, sizes bytes, rates bytes per second.
const HEADER: &str = "round,place,network,workload,competitor,axes,settings,outcome,error,wall_seconds,\
    seconds,bytes,files,cpu_seconds,emulator_seconds,stolen_share,began_busy,checked,line_rate,bound_seconds,\
    steady_rate,reach_seconds,others_before,others_during";

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
    let number = |figure: Option<f64>| figure.map_or_else(String::new, |figure| figure.to_string());
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
        number(run.rest.map(|rest| rest.before)),
        number(run.rest.map(|rest| rest.during)),
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
