//! The rounds of a measurement: every combination once in each, in an order that is drawn anew.
//!
//! In: an experiment. Out: [`Results`]. What changes over time (the machine, its caches, its neighbours) so
//! meets all combinations alike. Nothing is written here.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;

use super::build::Build;
use super::file::{Cell, Competitor, Experiment, Figure};
use super::flow::{FlowWatch, Frost};
use super::machine::{self, Machine};
use super::once::{self, End};
use super::result::{Contender, Key, Outcome, Results, Run};
use super::site::{Site, Sites};
use super::storage::Medium;
use super::table::short;
use super::watch::{self, Trace, Watch};
use super::words::scalar;
use super::{RunArgs, bound, own};
use crate::host::Bench;
use crate::peers::Job;
use crate::workload::Workload;
use crate::{host, process, wan};

/// Memory that the programs of one run take, about.
const PROGRAMS: u64 = 1 << 30;

/// A measurement.
pub struct Session<'a> {
    pub name: String,
    pub experiment: &'a Experiment,
    pub args: &'a RunArgs,
    pub root: &'a Path,
    /// What rounds are added to.
    pub earlier: Option<Results>,
}

/// The order of `cells` combinations in each round.
pub fn schedule(cells: usize, rounds: u32, seed: u64) -> Vec<Vec<usize>> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let round = |_| {
        let mut order: Vec<usize> = (0..cells).collect();
        rng.shuffle(&mut order);
        order
    };
    (0..rounds).map(round).collect()
}

impl Session<'_> {
    /// Measures, and gives what there is to `keep` after each round.
    ///
    /// # Errors
    /// The machine is busy; the set-up cannot be made; the build changed, or it, the machine or the
    /// experiment is not that of the earlier rounds; somebody wants to stop. All is removed then; what was
    /// kept stays.
    pub fn run(self, keep: &mut dyn FnMut(&Results) -> anyhow::Result<()>) -> anyhow::Result<Results> {
        let (experiment, args) = (self.experiment, self.args);
        process::hear_signals()?;
        let haul = host::haul();
        let build = Build::look(&haul, self.root)?;
        let cells = experiment.cells()?;
        let contenders: Vec<Contender> =
            experiment.competitors.iter().map(contender).collect::<anyhow::Result<_>>()?;
        let mut results = self.results(&cells, contenders, build.clone());
        if let Some(earlier) = &self.earlier {
            earlier.takes(&results)?;
        }
        if !args.busy {
            machine::wait_for_quiet(args.wait.unwrap_or_default(), &process::interrupted)?;
        }
        let rounds = experiment.rounds;
        eprintln!("lab: {}: {} combinations, {rounds} rounds", self.name, cells.len());
        let sites = Sites::up(experiment, args.dir.as_deref(), &haul)?;
        results.networks = sites.sites.iter().map(|site| (site.name.clone(), site.seen.clone())).collect();
        let orders = schedule(cells.len(), rounds, results.seed);
        for (round, order) in (1..).zip(orders).skip(results.rounds as usize) {
            let mut runs = Vec::new();
            for (place, index) in order.into_iter().enumerate() {
                let cell = &cells[index];
                let key = self.key(cell);
                let too_long = |run: &Run| run.outcome == Outcome::Over && run.key == key;
                // Not tried again: it would take as long as everything else together.
                if results.competitors[cell.competitor].absent.is_some() || results.runs.iter().any(too_long)
                {
                    continue;
                }
                build.same(&Build::look(&haul, self.root)?)?;
                let run = self.one(cell, key, &sites.sites[cell.network], round, place)?;
                eprintln!("lab: {}", line(&run, rounds));
                runs.push(run);
            }
            build.same(&Build::look(&haul, self.root)?)?;
            results.runs.append(&mut runs);
            results.rounds = round;
            results.command = self.command(round, results.seed);
            keep(&results)?;
        }
        Ok(results)
    }

    /// Those of the earlier rounds, or none yet.
    fn results(&self, cells: &[Cell], competitors: Vec<Contender>, build: Build) -> Results {
        let (experiment, args) = (self.experiment, self.args);
        let (mut dates, rounds, seed, runs, busy) = match &self.earlier {
            Some(earlier) => {
                (earlier.dates.clone(), earlier.rounds, earlier.seed, earlier.runs.clone(), earlier.busy)
            }
            None => {
                (Vec::new(), 0, args.seed.unwrap_or_else(|| fastrand::u64(1..1_000_000)), Vec::new(), false)
            }
        };
        dates.push(machine::date());
        Results {
            command: String::new(),
            name: self.name.clone(),
            title: experiment.title.clone(),
            question: experiment.question.clone(),
            reference: experiment.reference.clone(),
            note: experiment.note.clone(),
            plot: experiment.plot.clone(),
            ratio: experiment.ratio.clone(),
            better: experiment.better.clone(),
            counts: experiment.counts.clone(),
            limit: experiment.limit.clone(),
            rounds,
            quick: args.quick,
            busy: args.busy || busy,
            seed,
            dates,
            machine: Machine::look(),
            build,
            source: experiment.source.to_string(),
            sink: experiment.sink.to_string(),
            networks: BTreeMap::new(),
            competitors,
            cells: cells.iter().map(|cell| self.key(cell)).collect(),
            runs,
        }
    }

    fn one(&self, cell: &Cell, key: Key, site: &Site, round: u32, place: usize) -> anyhow::Result<Run> {
        let competitor = &self.experiment.competitors[cell.competitor];
        let peer = own::find(&competitor.peer).context("the peer is gone")?;
        let workload = self.experiment.workloads[cell.workload].workload()?;
        let from = &site.from[cell.workload];
        site.clear()?;
        let patience = if self.args.busy { Duration::ZERO } else { machine::QUIET_WAIT };
        let began_busy = !machine::quiet_between(patience, &process::interrupted)?;
        if process::interrupted() {
            return Err(process::Interrupted.into());
        }
        let stored = if self.experiment.sink.on == Medium::Tmpfs { workload.bytes() } else { 0 };
        machine::warm(stored + PROGRAMS)?;
        if let Some(network) = &site.network {
            wan::stats(network, true)?;
        }
        let job = Job {
            bench: &site.bench,
            workload: &workload,
            from,
            to: &site.to,
            settings: &cell.settings,
            limit: self.experiment.limit()?,
        };
        let watch = site.network.as_deref().map(|name| Watch::start(name, &site.bench, &competitor.troubles));
        let watch = watch.transpose()?;
        let playing = site.play()?;
        let congested = site.plays.iter().find(|play| play.congestion.is_some());
        let frost = congested.and_then(|play| Frost::of(play.congestion.as_ref()?, play.targets));
        let mut flow = None;
        let mut end = once::run(peer, &job, &site.emulators, || {
            playing.begin()?;
            let apart = frost.as_ref().map(|frost| frost.who.clone()).unwrap_or_default();
            flow = congested.map(|play| FlowWatch::start(&play.model, play.is_sink, apart)).transpose()?;
            Ok(())
        })?;
        let flow = flow.map(FlowWatch::finish);
        drop(playing);
        let trace = watch.map(Watch::finish);
        let network_stats =
            site.network.as_deref().map(|name| wan::stats(name, true)).transpose()?.unwrap_or(Value::Null);
        let to_check = end.outcome == Outcome::Ok && !end.memory_only;
        if to_check && let Err(error) = workload.check(from, &site.to) {
            end = End {
                outcome: Outcome::Failed,
                error: Some(format!("the bytes at the far end are wrong: {error:#}")),
                ..end
            };
        }
        // Space and memory are the next one's, also while it is waited for.
        site.clear()?;
        Ok(Run {
            round,
            place,
            key,
            settings: cell.settings.clone(),
            outcome: end.outcome,
            error: end.error,
            wall_seconds: end.wall_seconds,
            seconds: end.seconds,
            bytes: end.bytes,
            files: end.operations.unwrap_or(if end.memory_only { 0 } else { workload.files }),
            cpu_seconds: end.cpu_seconds,
            emulator_seconds: end.emulator_seconds,
            stolen: end.stolen,
            began_busy,
            checked: (to_check || end.checked) && end.outcome == Outcome::Ok,
            network_stats,
            line_rate: site.bench.line.rate.map(|rate| rate as f64 / 8.0),
            each_second: trace.as_ref().map(Trace::each_second).unwrap_or_default(),
            steady: trace.as_ref().and_then(Trace::steady),
            trace,
            bound: end.bound.or(self.bound(&workload, &site.bench)?),
            rest: frost.and_then(|frost| flow.as_ref()?.rest(&frost)),
            flow,
            said: end.said,
        })
    }

    /// The least time that congested storage and the line allow, s.
    fn bound(&self, workload: &Workload, bench: &Bench) -> anyhow::Result<Option<f64>> {
        let ends = [(&self.experiment.source, false), (&self.experiment.sink, true)];
        if ends.iter().all(|(end, _)| end.congestion.is_none()) {
            return Ok(None);
        }
        let line = bench.line.rate.map_or(0.0, |rate| rate as f64 / 8.0 * watch::PAYLOAD / watch::FRAME);
        let mut most = if line > 0.0 { workload.bytes() as f64 / line } else { 0.0 };
        for (end, write) in ends.into_iter().filter(|(end, _)| end.on == Medium::Model) {
            let specs = end.specs()?;
            let each = workload.bytes() as f64 / specs.len() as f64;
            match bound::seconds(&specs, end.congestion.as_ref(), each, write) {
                Some(seconds) => most = most.max(seconds),
                None => return Ok(None),
            }
        }
        Ok(Some(most))
    }

    fn key(&self, cell: &Cell) -> Key {
        Key {
            network: self.experiment.networks[cell.network].clone(),
            workload: self.experiment.workloads[cell.workload].name(),
            competitor: self.experiment.competitors[cell.competitor].label().to_owned(),
            axes: cell.axes.clone(),
        }
    }

    /// Repeats the measurement, in the same order.
    fn command(&self, rounds: u32, seed: u64) -> String {
        let mut words = vec!["lab/lab run".to_owned(), self.args.experiment.clone()];
        words.extend(self.args.quick.then(|| "--quick".to_owned()));
        words.push(format!("--rounds {rounds} --seed {seed}"));
        words.extend(self.args.dir.as_ref().map(|dir| format!("--dir {}", dir.display())));
        words.join(" ")
    }
}

fn contender(competitor: &Competitor) -> anyhow::Result<Contender> {
    let peer = own::find(&competitor.peer).context("the peer is gone")?;
    let (version, absent) = match peer.version() {
        Ok(version) => (Some(version), None),
        Err(error) if error.downcast_ref::<process::Interrupted>().is_some() => return Err(error),
        Err(error) => (None, Some(format!("{error:#}"))),
    };
    if let Some(why) = &absent {
        eprintln!("lab: {} cannot run here: {why}", competitor.label());
    }
    let text = |(key, value)| Ok(format!("{key} = {}", scalar(value)?));
    let settings = competitor.settings.iter().map(text).collect::<anyhow::Result<Vec<_>>>()?;
    let settings =
        if settings.is_empty() { String::new() } else { format!("; with {}", settings.join(", ")) };
    Ok(Contender {
        label: competitor.label().to_owned(),
        peer: competitor.peer.clone(),
        about: peer.about().to_owned() + &settings,
        version,
        absent,
    })
}

/// For whoever watches.
fn line(run: &Run, rounds: u32) -> String {
    let key = &run.key;
    let axes: String = key.axes.iter().map(|(name, value)| format!(" {name} {value}")).collect();
    let what = format!(
        "round {} of {rounds}: {} {} {}{axes}:",
        run.round, key.network, key.workload, key.competitor
    );
    match run.outcome {
        Outcome::Ok => {
            let rate = run.figure(Figure::Rate);
            let busy = if run.began_busy { ", began busy" } else { "" };
            let bound = run.bound.map_or_else(String::new, |bound| format!(" of {bound:.2}"));
            format!("{what} {rate:.0} MB/s in {:.2} s{bound}{busy}", run.seconds)
        }
        _ => format!("{what} {}", run.error.as_deref().map_or_else(|| "failed".into(), short)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every round has every combination once, in an order of its own, and the seed says which.
    /// Method: many rounds; sorted, each is all of them; the same seed twice, and another.
    #[test]
    fn rounds_are_interleaved_and_repeat_by_seed() {
        let rounds = schedule(12, 20, 7);
        assert_eq!(rounds.len(), 20);
        for round in &rounds {
            let mut sorted = round.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..12).collect::<Vec<_>>());
        }
        let mut different = rounds.clone();
        different.sort();
        different.dedup();
        assert!(different.len() > 15, "the rounds are alike");
        assert_eq!(schedule(12, 20, 7), rounds);
        assert_ne!(schedule(12, 20, 8), rounds);
        assert_eq!(schedule(12, 3, 7), rounds[..3], "more rounds do not change the first ones");
    }
}
