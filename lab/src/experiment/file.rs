//! An experiment as it is written down: a small TOML file that says what is asked, and what is measured to
//! answer it.
//!
//! In: the text of a file. Out: an [`Experiment`] of which everything has been looked at that can be without
//! running it.
//! Invariant: what is not known, or cannot be together, is refused with the name of its key; nothing is
//! guessed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde::{Deserialize, Serialize};

use super::own;
use super::storage::{Medium, Storage};
use super::watch::Trouble;
use super::words::{network, parse_size, parse_time, scalar};
use crate::peers::Peer;
use crate::workload::Workload;

/// Most cells of one experiment: more is a mistake, or takes days.
const CELLS_MAX: usize = 1000;
/// Most rounds.
pub const ROUNDS_MAX: u32 = 100;
/// Bytes of one workload, at most: 1 TiB.
const BYTES_MAX: u64 = 1 << 40;
/// What a cell has besides its axes.
const DIMENSIONS: [&str; 3] = ["network", "workload", "competitor"];

/// What the file says.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    pub title: String,
    pub question: String,
    /// Paper and figure that it repeats.
    pub reference: Option<String>,
    /// What the reader should know of how it differs from that.
    pub note: Option<String>,
    /// How long all of it takes, roughly.
    pub duration: String,
    pub rounds: u32,
    /// After this a run is ended and shown as such.
    pub limit: String,
    /// `loopback`, a preset of `lab wan`, or its options: `rtt=50ms rate=10Gbit`.
    pub networks: Vec<String>,
    /// Networks need not carry their rate, for this machine may not; the results say what they do carry.
    #[serde(default)]
    pub any_rate: bool,
    pub source: Storage,
    pub sink: Storage,
    #[serde(rename = "workload")]
    pub workloads: Vec<WorkloadSpec>,
    #[serde(rename = "competitor")]
    pub competitors: Vec<Competitor>,
    #[serde(default, rename = "axis")]
    pub axes: Vec<Axis>,
    /// Labels of competitors that all others are held against.
    #[serde(default)]
    pub ratio: Vec<String>,
    /// Labels of competitors: against the better one of these all others are held too.
    #[serde(default)]
    pub better: Vec<String>,
    /// What is counted, where it is not files: `transactions`.
    pub counts: Option<String>,
    pub plot: Plot,
    /// What `--quick` leaves of it.
    #[serde(default)]
    pub quick: Quick,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadSpec {
    pub files: u64,
    pub size: String,
    /// The part of `files` that is really moved, for machines that are too small for all. The results name
    /// it.
    pub scale: Option<f64>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Competitor {
    pub peer: String,
    /// As the results call it; if not said, the peer's name.
    pub label: Option<String>,
    /// By the peer's own names.
    #[serde(default)]
    pub settings: BTreeMap<String, toml::Value>,
    /// Which axes it has; it is measured at every combination of them.
    #[serde(default)]
    pub axes: Vec<String>,
    /// Of these axes only some values.
    #[serde(default)]
    pub only: BTreeMap<String, Vec<toml::Value>>,
    /// What befalls each of its runs.
    #[serde(default)]
    pub troubles: Vec<Trouble>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Axis {
    pub name: String,
    pub values: Vec<toml::Value>,
    /// Settings that get its value; if not said, the one of its own name.
    pub set: Option<Vec<String>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plot {
    pub kind: Kind,
    /// `network`, `workload`, `competitor` or an axis; so are `series` and `panels`.
    pub x: String,
    /// One row of panels for each.
    pub y: Vec<Figure>,
    pub series: String,
    pub panels: Option<String>,
    /// Below them, what the line carried in each second: of each competitor the run of the median time.
    #[serde(default)]
    pub over_time: bool,
    #[serde(default)]
    pub log_x: bool,
    #[serde(default)]
    pub log_y: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Lines,
    Bars,
}

/// What is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Figure {
    Rate,
    Cpu,
    Seconds,
    Files,
    /// Payload, of what the line has room for: over the whole run, and in steady state.
    Share,
    Steady,
    /// Payload over the whole run, of what the line carried in its best second.
    Sustained,
    /// Time until then.
    Reach,
    /// The least time that congested storage and the line allow, of the time that it took.
    Bound,
    /// Rate of the other targets while one is frozen, of their rate before.
    Rest,
    /// Bytes of each thing that is counted: memory.
    Each,
}

/// In place of what the experiment says; what is not said stays.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quick {
    pub networks: Option<Vec<String>>,
    #[serde(default, rename = "workload")]
    pub workloads: Vec<WorkloadSpec>,
    /// Labels of those that stay.
    pub competitors: Option<Vec<String>>,
    #[serde(default)]
    pub axes: BTreeMap<String, Vec<toml::Value>>,
}

/// One combination to measure.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    pub network: usize,
    pub workload: usize,
    pub competitor: usize,
    pub axes: BTreeMap<String, String>,
    pub settings: BTreeMap<String, String>,
}

impl Experiment {
    /// Reads and checks a file's text; `path` is for errors.
    ///
    /// # Errors
    /// Naming file, key and what is wrong with it.
    pub fn parse(path: &str, text: &str) -> anyhow::Result<Experiment> {
        let experiment: Experiment = toml::from_str(text).with_context(|| format!("read {path}"))?;
        experiment.check().with_context(|| format!("in {path}"))?;
        // What `--quick` leaves must be right too, and be known to be before somebody asks for it.
        experiment.clone().quick().check().with_context(|| format!("in {path}, with [quick]"))?;
        Ok(experiment)
    }

    /// What `--quick` leaves: one round of fewer cells.
    pub fn quick(mut self) -> Experiment {
        let quick = std::mem::take(&mut self.quick);
        self.rounds = 1;
        if let Some(networks) = quick.networks {
            self.networks = networks;
        }
        if !quick.workloads.is_empty() {
            self.workloads = quick.workloads;
        }
        if let Some(labels) = quick.competitors {
            self.competitors.retain(|competitor| labels.iter().any(|label| label == competitor.label()));
            self.ratio.retain(|label| labels.contains(label));
            self.better.retain(|label| labels.contains(label));
        }
        for axis in &mut self.axes {
            if let Some(values) = quick.axes.get(&axis.name) {
                axis.values.clone_from(values);
            }
        }
        self
    }

    fn check(&self) -> anyhow::Result<()> {
        for (key, text) in
            [("title", &self.title), ("question", &self.question), ("duration", &self.duration)]
        {
            ensure!(!text.trim().is_empty(), "{key} is empty");
        }
        parse_time(&self.duration).context("duration")?;
        self.limit()?;
        ensure!((1..=ROUNDS_MAX).contains(&self.rounds), "rounds = {}: 1 to {ROUNDS_MAX}", self.rounds);
        self.source.check().context("[source]")?;
        self.sink.check().context("[sink]")?;
        ensure!(!self.networks.is_empty(), "networks: none is named");
        for network in &self.networks {
            self::network(network).context("networks")?;
        }
        unique("networks", self.networks.iter().map(String::as_str))?;
        ensure!(!self.workloads.is_empty(), "workload: none is named");
        for spec in &self.workloads {
            let workload = spec.workload().context("[[workload]]")?;
            self.source.check_even(&workload).context("[source] and [[workload]]")?;
            self.sink.check_even(&workload).context("[sink] and [[workload]]")?;
        }
        let names = self.workloads.iter().map(WorkloadSpec::name).collect::<Vec<_>>();
        unique("[[workload]]", names.iter().map(String::as_str))?;
        for axis in &self.axes {
            axis.check().with_context(|| format!("[[axis]] {:?}", axis.name))?;
        }
        unique("[[axis]]", self.axes.iter().map(|axis| axis.name.as_str()))?;
        ensure!(!self.competitors.is_empty(), "competitor: none is named");
        for competitor in &self.competitors {
            self.check_competitor(competitor)
                .with_context(|| format!("[[competitor]] {:?}", competitor.label()))?;
        }
        unique("[[competitor]] label", self.competitors.iter().map(Competitor::label))?;
        for axis in &self.axes {
            let used = self.competitors.iter().any(|competitor| competitor.axes.contains(&axis.name));
            ensure!(used, "[[axis]] {:?}: no competitor has it", axis.name);
        }
        for label in &self.ratio {
            ensure!(self.has_label(label), "ratio: no competitor is called {label:?}");
        }
        for label in &self.better {
            ensure!(self.has_label(label), "better: no competitor is called {label:?}");
        }
        for label in self.quick.competitors.iter().flatten() {
            ensure!(self.has_label(label), "[quick] competitors: none is called {label:?}");
        }
        for (name, values) in &self.quick.axes {
            let known = self.axes.iter().any(|axis| axis.name == *name);
            ensure!(
                known && !values.is_empty(),
                "[quick] axes: there is no axis {name:?}, or it has no values"
            );
        }
        self.check_plot().context("[plot]")?;
        let cells = self.cells()?.len();
        ensure!((1..=CELLS_MAX).contains(&cells), "{cells} combinations: 1 to {CELLS_MAX} can be measured");
        Ok(())
    }

    fn has_label(&self, label: &str) -> bool {
        self.competitors.iter().any(|competitor| competitor.label() == label)
    }

    fn check_competitor(&self, competitor: &Competitor) -> anyhow::Result<()> {
        let peer = &competitor.peer;
        let Some(found) = own::find(peer) else {
            let names: Vec<_> = own::all().map(Peer::name).collect();
            bail!("peer = {peer:?} is not known; there are {}", names.join(", "));
        };
        let [reads, writes] = own::ends(found, &competitor.settings);
        for (end, storage, uses) in [("source", &self.source, reads), ("sink", &self.sink, writes)] {
            ensure!(
                !uses || storage.on != Medium::None,
                "peer = {peer:?} needs files, but [{end}] is on none"
            );
        }
        for (key, value) in &competitor.settings {
            scalar(value).with_context(|| format!("settings.{key}"))?;
        }
        for trouble in &competitor.troubles {
            trouble.check().context("troubles")?;
            ensure!(
                self.networks.iter().all(|network| network != "loopback"),
                "troubles: nothing can befall loopback"
            );
        }
        let mut keys: BTreeSet<&str> = competitor.settings.keys().map(String::as_str).collect();
        for name in &competitor.axes {
            let axis = self.axes.iter().find(|axis| axis.name == *name);
            let axis = axis.with_context(|| format!("axes: there is no [[axis]] {name:?}"))?;
            for key in axis.sets() {
                ensure!(keys.insert(key), "axes: {key:?} is set twice");
            }
        }
        for (name, values) in &competitor.only {
            ensure!(competitor.axes.contains(name), "only: it has no axis {name:?}");
            ensure!(!values.is_empty(), "only: no value of {name:?}");
        }
        Ok(())
    }

    /// Everything that differs among cells must be told apart in the plot, or points would be drawn over each
    /// other.
    fn check_plot(&self) -> anyhow::Result<()> {
        let plot = &self.plot;
        ensure!(
            (1..=4).contains(&plot.y.len()),
            "y: one to four of rate, cpu, seconds, files, share, steady, sustained, reach, bound, rest, each"
        );
        let shown: Vec<&String> =
            [Some(&plot.x), Some(&plot.series), plot.panels.as_ref()].into_iter().flatten().collect();
        for name in &shown {
            let known =
                DIMENSIONS.contains(&name.as_str()) || self.axes.iter().any(|axis| axis.name == **name);
            ensure!(known, "{name:?} is neither network, workload, competitor nor an axis");
        }
        ensure!(
            plot.x != plot.series
                && plot.panels.as_ref().is_none_or(|panels| *panels != plot.x && *panels != plot.series),
            "x, series and panels must differ"
        );
        let counts = [self.networks.len(), self.workloads.len(), self.competitors.len()];
        let axes = self.axes.iter().map(|axis| (axis.name.as_str(), axis.values.len()));
        for (name, count) in DIMENSIONS.into_iter().zip(counts).chain(axes) {
            ensure!(
                count < 2 || shown.iter().any(|at| *at == name),
                "{name} has {count} values, and is neither x, series nor panels"
            );
        }
        if plot.log_x {
            let axis = self.axes.iter().find(|axis| axis.name == plot.x);
            let axis = axis.context("log_x, but x is no axis of numbers")?;
            for value in &axis.values {
                let value = scalar(value)?;
                let number: Option<f64> = value.parse().ok();
                ensure!(
                    number.is_some_and(|number| number > 0.0),
                    "log_x, but {value:?} of {:?} is no positive number",
                    axis.name
                );
            }
        }
        ensure!(
            !(plot.log_y && plot.kind == Kind::Bars),
            "log_y: bars begin at zero, which no logarithm shows"
        );
        Ok(())
    }

    /// After this a run is ended.
    pub fn limit(&self) -> anyhow::Result<Duration> {
        let limit = parse_time(&self.limit).context("limit")?;
        ensure!(!limit.is_zero(), "limit: no run takes no time");
        Ok(limit)
    }

    /// Every combination, in the order of the file.
    pub fn cells(&self) -> anyhow::Result<Vec<Cell>> {
        let mut cells = Vec::new();
        for network in 0..self.networks.len() {
            for workload in 0..self.workloads.len() {
                for (index, competitor) in self.competitors.iter().enumerate() {
                    let mut settings = BTreeMap::new();
                    for (key, value) in &competitor.settings {
                        settings.insert(key.clone(), scalar(value)?);
                    }
                    let mut some =
                        vec![Cell { network, workload, competitor: index, axes: BTreeMap::new(), settings }];
                    for axis in self.axes.iter().filter(|axis| competitor.axes.contains(&axis.name)) {
                        let mut next = Vec::new();
                        let only = competitor.only.get(&axis.name);
                        let values: Vec<_> = axis
                            .values
                            .iter()
                            .filter(|value| only.is_none_or(|only| only.contains(value)))
                            .collect();
                        for (cell, value) in
                            some.iter().flat_map(|cell| values.iter().map(move |value| (cell, *value)))
                        {
                            let (mut cell, value) = (cell.clone(), scalar(value)?);
                            for key in axis.sets() {
                                cell.settings.insert(key.to_owned(), value.clone());
                            }
                            cell.axes.insert(axis.name.clone(), value);
                            next.push(cell);
                        }
                        some = next;
                        ensure!(some.len() <= CELLS_MAX, "more than {CELLS_MAX} combinations of axes");
                    }
                    cells.append(&mut some);
                }
            }
        }
        Ok(cells)
    }
}

impl WorkloadSpec {
    /// # Errors
    /// It is empty, too large, or no number.
    pub fn workload(&self) -> anyhow::Result<Workload> {
        let scale = self.scale.unwrap_or(1.0);
        ensure!(scale > 0.0 && scale <= 1.0, "scale = {scale}: more than 0, at most 1");
        let size = parse_size(&self.size).context("size")?;
        let files = (self.files as f64 * scale).round() as u64;
        ensure!(files > 0, "files = {}, scale = {scale}: no file is left", self.files);
        let fits = files.checked_mul(size).is_some_and(|bytes| (1..=BYTES_MAX).contains(&bytes));
        ensure!(fits, "{files} files of {size} bytes: 1 byte to 1 TiB in all");
        Ok(Workload { files, size, seed: 1 })
    }

    /// `10000 x 1MiB`, and how much of it is moved if not all.
    pub fn name(&self) -> String {
        let files = format!("{} x {}", self.files, self.size);
        match self.scale {
            Some(scale) if scale != 1.0 => format!("{files} (scale {scale})"),
            _ => files,
        }
    }
}

impl Competitor {
    pub fn label(&self) -> &str {
        self.label.as_deref().unwrap_or(&self.peer)
    }
}

impl Axis {
    fn sets(&self) -> impl Iterator<Item = &str> {
        let own = self.set.is_none().then_some(self.name.as_str());
        self.set.iter().flatten().map(String::as_str).chain(own)
    }

    fn check(&self) -> anyhow::Result<()> {
        ensure!(
            !DIMENSIONS.contains(&self.name.as_str()) && !self.name.is_empty(),
            "it cannot be called that"
        );
        ensure!(!self.values.is_empty(), "values: none");
        let values = self.values.iter().map(scalar).collect::<anyhow::Result<Vec<_>>>()?;
        unique("values", values.iter().map(String::as_str))?;
        ensure!(self.sets().next().is_some(), "set: no setting");
        Ok(())
    }
}

fn unique<'a>(key: &str, names: impl Iterator<Item = &'a str>) -> anyhow::Result<()> {
    let mut seen = BTreeSet::new();
    for name in names {
        ensure!(seen.insert(name), "{key}: {name:?} is there twice");
    }
    Ok(())
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
