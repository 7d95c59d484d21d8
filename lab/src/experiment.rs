//! `lab run` and `lab list`: questions put to programs on networks and storage of our own, answered by
//! measurement.
//!
//! In: small TOML files, `lab/experiments/NAME.toml`. Out: `NAME.md`, `NAME.csv`, `NAME.svg`, and
//! `NAME.json`, which is too long to be kept in the repository.
//! Invariants: a result is of one build of haul; every combination is in it, also one that failed or could
//! not run; bytes that were not compared are said to be; nothing is measured on a machine that is busy unless
//! the result says so.
//! Read in this order: `file` and `storage` (what is asked), `session` (the rounds), `site` (on what), `once`
//! (a run), `result`, `table`, `runs`, `plot` (what is told), `watch` and `flow` (what happens meanwhile),
//! `bound` (what would have been possible), `machine`, `build` (whether it counts), `own` and `volume` (what
//! is measured besides peers). A measurement that was stopped keeps its finished rounds; `--add` measures
//! more of them with the very same program.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use clap::Args;

use file::Experiment;
use result::Results;

mod bound;
mod build;
mod file;
mod flow;
pub mod machine;
mod once;
mod own;
mod plot;
mod result;
mod runs;
mod session;
mod site;
mod storage;
mod table;
mod volume;
mod watch;
mod words;

const FOLDER: &str = "lab/experiments";

/// Measure what an experiment asks, and write table, raw figures and plot
#[derive(Args)]
pub struct RunArgs {
    /// Name of an experiment, as `lab list` prints it, or path of a TOML file
    experiment: String,
    /// In place of what the experiment says; with --add how many more
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(file::ROUNDS_MAX)))]
    rounds: Option<u32>,
    /// One round of fewer cells, to see that it works; these are no results
    #[arg(long)]
    quick: bool,
    /// Directory for the results (default: docs/results; with --quick target/lab-results)
    #[arg(long)]
    out: Option<PathBuf>,
    /// Directory for data while it runs (default: /dev/shm for tmpfs, /var/tmp for disk)
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Wait so long for the machine to be quiet, as 5m
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    wait: Option<Duration>,
    /// Measure on a busy machine, too; the results say so
    #[arg(long, conflicts_with = "wait")]
    busy: bool,
    /// Add rounds to those of the results that are there, of the same program and experiment; the seed is
    /// theirs
    #[arg(long, conflicts_with_all = ["quick", "seed"])]
    add: bool,
    /// Seed of the order within rounds (default: another one each time)
    #[arg(long)]
    seed: Option<u64>,
}

fn parse_time(text: &str) -> Result<Duration, String> {
    words::parse_time(text).map_err(|error| format!("{error:#}"))
}

/// `lab list`: name, title and duration of each experiment.
///
/// # Errors
/// There are none, or one cannot be read; the others are listed all the same.
pub fn list() -> anyhow::Result<()> {
    let folder = root()?.join(FOLDER);
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "toml") {
            names.extend(path.file_stem().and_then(|stem| stem.to_str()).map(str::to_owned));
        }
    }
    names.sort();
    let width = names.iter().map(String::len).max().unwrap_or(0);
    let mut wrong = Vec::new();
    for name in &names {
        match load(&folder.join(format!("{name}.toml"))) {
            Ok(one) => writeln!(std::io::stdout(), "{name:width$}  {:>5}  {}", one.duration, one.title)?,
            Err(error) => wrong.push(format!("{error:#}")),
        }
    }
    if wrong.is_empty() { Ok(()) } else { bail!("{}", wrong.join("\n")) }
}

/// `lab run`.
///
/// # Errors
/// The machine is busy; the experiment cannot be; something of it failed, after the results have been
/// written.
pub fn run(args: &RunArgs) -> anyhow::Result<()> {
    let root = root()?;
    let is_path = args.experiment.contains('/') || args.experiment.ends_with(".toml");
    let path = if is_path {
        PathBuf::from(&args.experiment)
    } else {
        root.join(FOLDER).join(format!("{}.toml", args.experiment))
    };
    let name =
        path.file_stem().and_then(|stem| stem.to_str()).context("an experiment has a name")?.to_owned();
    let mut experiment = load(&path).with_context(|| "`lab list` shows what there is")?;
    if args.quick {
        experiment = experiment.quick();
    }
    if let Some(rounds) = args.rounds {
        experiment.rounds = rounds;
    }
    let default = if args.quick { "target/lab-results" } else { "docs/results" };
    let out = args.out.clone().unwrap_or_else(|| root.join(default));
    // Before the measurement: nobody waits half an hour to hear that there is no place for it.
    fs::create_dir_all(&out).with_context(|| format!("make {}", out.display()))?;
    let earlier = if args.add { Some(read(&out.join(format!("{name}.json")))?) } else { None };
    if let Some(earlier) = &earlier {
        experiment.rounds = earlier.rounds.saturating_add(experiment.rounds);
        ensure!(
            experiment.rounds <= file::ROUNDS_MAX,
            "{} has {} rounds already; {} is the most",
            out.join(format!("{name}.json")).display(),
            earlier.rounds,
            file::ROUNDS_MAX
        );
    }
    let session = session::Session { name, experiment: &experiment, args, root: &root, earlier };
    // After each round: who stops it, or a machine that fails, leaves the finished ones.
    let results = session.run(&mut |results| write(results, &out))?;
    write!(std::io::stdout(), "{}", table::table(&results)).context("write to standard output")?;
    eprintln!("lab: {}", out.join(format!("{}.md", results.name)).display());
    match results.failures() {
        0 => Ok(()),
        failures => bail!("{failures} of {} runs failed; the results name them", results.runs.len()),
    }
}

fn load(path: &Path) -> anyhow::Result<Experiment> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    Experiment::parse(&path.display().to_string(), &text)
}

/// The repository: where `lab/lab` says, or around where we are.
fn root() -> anyhow::Result<PathBuf> {
    if let Some(root) = std::env::var_os("LAB_ROOT") {
        return Ok(PathBuf::from(root));
    }
    let here = std::env::current_dir().context("find the current directory")?;
    let found = here.ancestors().find(|dir| dir.join(FOLDER).is_dir());
    found
        .map(Path::to_path_buf)
        .with_context(|| format!("no {FOLDER} here or above; call lab/lab of the repository"))
}

/// The raw figures of an earlier measurement.
fn read(path: &Path) -> anyhow::Result<Results> {
    let text = fs::read(path).with_context(|| {
        format!(
            "read {}, to add to it (the repository does not keep these files: rounds can be added where the first ones \
             were measured)",
            path.display()
        )
    })?;
    serde_json::from_slice(&text).with_context(|| format!("{} has no results of this lab", path.display()))
}

/// All files, each whole or not at all.
fn write(results: &Results, out: &Path) -> anyhow::Result<()> {
    let picture = plot::svg(results);
    let json = serde_json::to_string_pretty(results).context("write the raw figures")?;
    let page = table::page(results, picture.is_some());
    let files = [
        ("json", Some(json + "\n")),
        ("csv", Some(runs::csv(results))),
        ("svg", picture),
        ("md", Some(page)),
    ];
    for (end, text) in files {
        let path = out.join(format!("{}.{end}", results.name));
        let Some(text) = text else {
            // One of an earlier measurement would be taken for ours.
            let _ = fs::remove_file(&path);
            continue;
        };
        let new = out.join(format!(".{}.{end}.new", results.name));
        fs::write(&new, text).with_context(|| format!("write {}", new.display()))?;
        fs::rename(&new, &path).with_context(|| format!("rename to {}", path.display()))?;
    }
    Ok(())
}
