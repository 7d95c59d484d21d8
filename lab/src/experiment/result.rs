//! What was measured: all runs as they were, and the figures that are made of them.
//!
//! In: runs, one after the other. Out: median and spread for each combination.
//! Invariant: nothing is left out. Who could not run, failed or took too long is here, with the reason.

use std::collections::BTreeMap;

use anyhow::ensure;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::build::Build;
use super::file::{Figure, Plot};
use super::flow::{Flow, Rest};
use super::machine::Machine;
use super::watch::{self, Steady, Trace};

/// A result file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    pub name: String,
    pub title: String,
    pub question: String,
    pub reference: Option<String>,
    pub note: Option<String>,
    pub plot: Plot,
    pub ratio: Vec<String>,
    /// The better one of these, all others are held against too.
    #[serde(default)]
    pub better: Vec<String>,
    /// What `files` of a run are, where they are none.
    #[serde(default)]
    pub counts: Option<String>,
    /// The limit of a run, as in the file.
    pub limit: String,
    pub rounds: u32,
    pub quick: bool,
    /// Whoever measured did not care whether the machine was quiet.
    pub busy: bool,
    pub seed: u64,
    /// Repeats it.
    pub command: String,
    /// Of each sitting that measured rounds.
    #[serde(alias = "date", deserialize_with = "one_or_more")]
    pub dates: Vec<String>,
    pub machine: Machine,
    pub build: Build,
    pub source: String,
    pub sink: String,
    /// What each network was seen to be.
    pub networks: BTreeMap<String, Value>,
    pub competitors: Vec<Contender>,
    /// Every combination, in the order of the experiment.
    pub cells: Vec<Key>,
    pub runs: Vec<Run>,
}

/// A measurement of one sitting has its date alone.
fn one_or_more<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Dates {
        One(String),
        All(Vec<String>),
    }
    Ok(match Dates::deserialize(from)? {
        Dates::One(date) => vec![date],
        Dates::All(dates) => dates,
    })
}

/// Who was measured, or why not.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Contender {
    pub label: String,
    pub peer: String,
    pub about: String,
    pub version: Option<String>,
    /// Why it could not run here.
    pub absent: Option<String>,
}

/// What a run is of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    pub network: String,
    pub workload: String,
    pub competitor: String,
    pub axes: BTreeMap<String, String>,
}

impl Key {
    /// Its value of `network`, `workload`, `competitor` or an axis.
    pub fn get(&self, dimension: &str) -> Option<&str> {
        match dimension {
            "network" => Some(&self.network),
            "workload" => Some(&self.workload),
            "competitor" => Some(&self.competitor),
            axis => self.axes.get(axis).map(String::as_str),
        }
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Ok,
    Failed,
    /// It took longer than the limit and was ended.
    Over,
}

/// One run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    pub round: u32,
    /// Its place in the round.
    pub place: usize,
    #[serde(flatten)]
    pub key: Key,
    pub settings: BTreeMap<String, String>,
    pub outcome: Outcome,
    /// What it said of its failure.
    pub error: Option<String>,
    /// From its start to its end.
    pub wall_seconds: f64,
    /// Those that count for the rate: of the wall, or what it said itself where it moves no files.
    pub seconds: f64,
    pub bytes: u64,
    pub files: u64,
    /// Of the whole machine without emulators, during `seconds`.
    pub cpu_seconds: f64,
    /// Of the processes that play networks and storage.
    pub emulator_seconds: f64,
    /// Part of the machine that its host took for others meanwhile, 0 to 1.
    #[serde(default)]
    pub stolen: f64,
    /// The machine was not quiet when it began.
    pub began_busy: bool,
    /// Every byte at the far end was held against the source.
    pub checked: bool,
    /// What the network says of it.
    pub network_stats: Value,
    /// Bytes of frames that all lines carry a second; none on loopback.
    #[serde(default)]
    pub line_rate: Option<f64>,
    /// What the network carried over time, and what that comes to.
    #[serde(default)]
    pub trace: Option<Trace>,
    #[serde(default)]
    pub steady: Option<Steady>,
    /// Bytes of frames that the network carried in each second.
    #[serde(default)]
    pub each_second: Vec<f64>,
    /// The least time that congested storage and the line allow, s.
    #[serde(default)]
    pub bound: Option<f64>,
    /// What congested storage was asked for over time; what its other targets did while one was frozen.
    #[serde(default)]
    pub flow: Option<Flow>,
    #[serde(default)]
    pub rest: Option<Rest>,
    /// What the program says of it.
    pub said: Value,
}

impl Run {
    /// In the unit of [`Figure::unit`].
    pub fn figure(&self, figure: Figure) -> f64 {
        let gigabytes = (self.bytes as f64 / 1e9).max(f64::MIN_POSITIVE);
        match figure {
            Figure::Rate => gigabytes * 1e3 / self.seconds,
            Figure::Cpu => self.cpu_seconds / gigabytes,
            Figure::Seconds => self.seconds,
            // Without files it has no such figure.
            Figure::Files if self.files == 0 => f64::NAN,
            Figure::Files => self.files as f64 / self.seconds,
            Figure::Share => {
                let room = self.line_rate.unwrap_or(f64::NAN) * watch::PAYLOAD / watch::FRAME;
                self.bytes as f64 / self.seconds / room * 100.0
            }
            Figure::Steady => {
                let rate = self.steady.map_or(f64::NAN, |steady| steady.rate);
                rate / self.line_rate.unwrap_or(f64::NAN) * 100.0
            }
            Figure::Sustained => {
                let best = self.each_second.iter().copied().reduce(f64::max).unwrap_or(f64::NAN);
                self.bytes as f64 / self.seconds / (best * watch::PAYLOAD / watch::FRAME) * 100.0
            }
            Figure::Reach => self.steady.map_or(f64::NAN, |steady| steady.reach),
            Figure::Bound => self.bound.unwrap_or(f64::NAN) / self.seconds * 100.0,
            Figure::Rest => self.rest.map_or(f64::NAN, |rest| rest.during / rest.before * 100.0),
            Figure::Each if self.files == 0 => f64::NAN,
            Figure::Each => self.bytes as f64 / self.files as f64 / 1024.0,
        }
    }

    /// What held it back, in its own words.
    pub fn limited_by(&self) -> Option<&str> {
        self.said["limited_by"].as_str()
    }

    /// Objects that it sent again.
    pub fn resent(&self) -> Option<f64> {
        self.said["objects_resent"].as_f64()
    }

    /// How late the emulator of its network was with packets, µs: `p99` or `max`.
    pub fn late(&self, which: &str) -> Option<f64> {
        self.network_stats["lateness_us"][which].as_f64()
    }

    /// Share of `processors` that were busy, emulators included.
    pub fn busy(&self, processors: usize) -> f64 {
        let emulators = self.emulator_seconds * self.seconds / self.wall_seconds.max(f64::MIN_POSITIVE);
        (self.cpu_seconds + emulators) / self.seconds / processors.max(1) as f64
    }
}

impl Figure {
    pub fn unit(self) -> &'static str {
        match self {
            Figure::Rate => "MB/s",
            Figure::Cpu => "CPU s/GB",
            Figure::Seconds => "s",
            Figure::Files => "files/s",
            Figure::Share => "% of the line",
            Figure::Steady => "% steady",
            Figure::Sustained => "% of the peak",
            Figure::Reach => "s to reach it",
            Figure::Bound => "% of the bound",
            Figure::Rest => "% in the frost",
            Figure::Each => "KiB each",
        }
    }

    /// For a plot's axis.
    pub fn title(self) -> &'static str {
        match self {
            Figure::Rate => "rate, MB/s",
            Figure::Cpu => "processor time, s/GB",
            Figure::Seconds => "time, s",
            Figure::Files => "files/s",
            Figure::Share => "share of the line, %",
            Figure::Steady => "share of the line in steady state, %",
            Figure::Sustained => "rate over the whole run, of the best second's, %",
            Figure::Reach => "time to reach it, s",
            Figure::Bound => "share of the bound's rate, %",
            Figure::Rest => "rate of the others in the frost, %",
            Figure::Each => "memory, KiB each",
        }
    }
}

/// Median and spread of some figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub lowest: f64,
    pub highest: f64,
    pub n: usize,
}

impl Spread {
    /// None of no figures.
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut all: Vec<f64> = figures.into_iter().filter(|figure| figure.is_finite()).collect();
        all.sort_by(f64::total_cmp);
        let (lowest, highest) = (*all.first()?, *all.last()?);
        let middle = all.len() / 2;
        let median = if all.len() % 2 == 1 { all[middle] } else { (all[middle - 1] + all[middle]) / 2.0 };
        Some(Spread { median, lowest, highest, n: all.len() })
    }
}

/// All runs of one combination.
pub struct Group<'a> {
    pub key: &'a Key,
    pub runs: Vec<&'a Run>,
}

impl Group<'_> {
    pub fn spread(&self, figure: Figure) -> Option<Spread> {
        let good = self.runs.iter().filter(|run| run.outcome == Outcome::Ok);
        Spread::of(good.map(|run| run.figure(figure)))
    }
}

impl Results {
    /// Whether rounds of `new`, which has none yet, can join it.
    ///
    /// # Errors
    /// The program, the machine or the experiment is another one; or these are no results.
    pub fn takes(&self, new: &Results) -> anyhow::Result<()> {
        ensure!(!self.quick, "those of --quick are no results, and no rounds can be added to them");
        ensure!(
            self.build.hash == new.build.hash,
            "the rounds that are there are of another program ({}); figures of two builds are not put together",
            self.build.describe()
        );
        ensure!(
            self.machine == new.machine,
            "the rounds that are there are of another machine, or of this one with another kernel"
        );
        // What a competitor is has its settings in it.
        let asks = |results: &Results| {
            let who = |one: &Contender| (one.label.clone(), one.about.clone(), one.version.clone());
            let competitors: Vec<_> = results.competitors.iter().map(who).collect();
            (competitors, results.source.clone(), results.sink.clone(), results.limit.clone())
        };
        ensure!(
            self.cells == new.cells && asks(self) == asks(new),
            "the experiment or a peer has changed since the rounds that are there"
        );
        Ok(())
    }

    /// Runs by combination, in the order of the experiment; one that was never run has none.
    pub fn groups(&self) -> Vec<Group<'_>> {
        let runs = |key: &Key| self.runs.iter().filter(|run| run.key == *key).collect();
        self.cells.iter().map(|key| Group { key, runs: runs(key) }).collect()
    }

    /// Of figures, what one is called in a table.
    pub fn unit(&self, figure: Figure) -> String {
        match &self.counts {
            Some(counts) if figure == Figure::Files => format!("{counts}/s"),
            _ => figure.unit().to_owned(),
        }
    }

    /// Whether anything failed: then the whole ends with an error, whatever was written.
    pub fn failures(&self) -> usize {
        self.runs.iter().filter(|run| run.outcome == Outcome::Failed).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: rounds of another program, of other combinations, or on top of a quick look are refused; results
    /// of one sitting are read, whose date was a text.
    /// Method: a recorded result, and each difference alone.
    #[test]
    fn rounds_join_only_their_own() {
        let results: Results = serde_json::from_str(super::super::table::tests::RECORDED).unwrap();
        assert_eq!(results.dates.len(), 1);
        results.takes(&results).unwrap();
        let refused = |change: &dyn Fn(&mut Results)| {
            let mut new = results.clone();
            change(&mut new);
            results.takes(&new).unwrap_err().to_string()
        };
        assert!(refused(&|new| new.build.hash = "other".into()).contains("another program"));
        assert!(refused(&|new| new.machine.processors += 1).contains("another machine"));
        assert!(refused(&|new| drop(new.cells.pop())).contains("has changed"));
        assert!(refused(&|new| new.sink.push('!')).contains("has changed"));
        assert!(refused(&|new| new.competitors[0].about.push('!')).contains("has changed"));
        assert!(refused(&|new| new.competitors[0].version = None).contains("has changed"));
        let quick = Results { quick: true, ..results.clone() };
        assert!(quick.takes(&results).unwrap_err().to_string().contains("--quick"));
    }

    /// Goal: medians of odd and even counts, extremes, and nothing of nothing.
    /// Method: a table.
    #[test]
    fn medians_and_spreads() {
        let spread = |figures: &[f64]| Spread::of(figures.iter().copied());
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[f64::NAN]), None);
        assert_eq!(spread(&[3.0]), Some(Spread { median: 3.0, lowest: 3.0, highest: 3.0, n: 1 }));
        assert_eq!(spread(&[9.0, 1.0, 2.0]), Some(Spread { median: 2.0, lowest: 1.0, highest: 9.0, n: 3 }));
        assert_eq!(
            spread(&[10.0, 4.0, 1.0, 2.0]),
            Some(Spread { median: 3.0, lowest: 1.0, highest: 10.0, n: 4 })
        );
    }
}
