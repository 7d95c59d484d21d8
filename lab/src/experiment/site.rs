//! What an experiment runs on: scratch directories, modelled storage, and a bench for each network.
//!
//! In: an [`Experiment`]. Out: places, each with a source directory for every workload and an empty
//! destination.
//! Invariant: dropping a [`Sites`] removes all of it, whatever had happened; benches go first, then what they
//! stood on.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use rustix::fs::{statfs, statvfs};
use serde_json::Value;

use super::file::Experiment;
use super::storage::{Medium, Spec, Storage};
use super::words::network;
use super::{machine, own, table};
use crate::host::{Bench, Setup};
use crate::targets::{self, Script};
use crate::{process, wan};

/// What `statfs` says of a tmpfs.
const TMPFS: i64 = 0x0102_1994;
const PING_PATIENCE: Duration = Duration::from_secs(60);
/// Echoes on the idle path.
const PINGS: &str = "20";

/// All of them.
pub struct Sites {
    // Dropped in this order.
    pub sites: Vec<Site>,
    models: Vec<Model>,
    plays: Vec<Play>,
    scratches: Vec<Scratch>,
}

/// One network with both its hosts.
pub struct Site {
    pub name: String,
    pub bench: Bench,
    /// A directory for each workload, in their order; empty if no competitor reads files.
    pub from: Vec<PathBuf>,
    /// The destination.
    pub to: PathBuf,
    /// Processes that play network and storage.
    pub emulators: Vec<i32>,
    /// The network's name for `lab wan stats`.
    pub network: Option<String>,
    /// What ping saw.
    pub seen: Value,
    /// Reads and writes go to something that a page cache would hide.
    pub cached: bool,
    /// The modelled storage of both ends.
    pub plays: Vec<Play>,
}

/// Modelled storage, and what congests it.
#[derive(Clone)]
pub struct Play {
    pub model: String,
    pub is_sink: bool,
    pub congestion: Option<Script>,
    pub targets: u32,
}

/// Targets take their time, until this is dropped.
pub struct Playing<'a>(&'a [Play]);

impl Playing<'_> {
    /// Who is slow when begins anew.
    pub fn begin(&self) -> anyhow::Result<()> {
        for play in self.0.iter().filter(|play| play.congestion.is_some()) {
            targets::play(&play.model, play.congestion.as_ref())?;
        }
        Ok(())
    }
}

impl Drop for Playing<'_> {
    fn drop(&mut self) {
        for play in self.0 {
            let ended = targets::play(&play.model, None).and_then(|()| targets::ease(&play.model, true));
            if let Err(error) = ended {
                eprintln!("lab: ease targets {}: {error:#}", play.model);
            }
        }
    }
}

/// A directory that goes with us.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("lab: remove {}: {error}", self.0.display());
        }
    }
}

/// A `lab targets` of our own.
struct Model {
    name: String,
    mount: PathBuf,
    pid: i32,
}

impl Model {
    /// `scratch` is for what its process reads.
    fn up(name: String, storage: &Storage, scratch: &Path) -> anyhow::Result<Model> {
        let targets = storage.targets.unwrap_or(1);
        let spec = match &storage.spec {
            None => String::new(),
            Some(Spec::Named(name)) => name.clone(),
            Some(own) => {
                let path = scratch.join("spec.json");
                fs::write(&path, own.json()?).with_context(|| format!("write {}", path.display()))?;
                path.display().to_string()
            }
        };
        let count = storage.stripe_count.unwrap_or(targets).to_string();
        let targets = targets.to_string();
        let mut command = Command::new(std::env::current_exe().context("find this program")?);
        command.args(["targets", "up", "--name", &name, "--model", &targets, "--spec", &spec]);
        command.args(["--stripe-size", storage.stripe_size(), "--stripe-count", &count]);
        // Its daemon must outlive the command that starts it, which nothing does that is run through
        // `process`.
        let output = command.output().context("run lab targets")?;
        ensure!(
            output.status.success(),
            "lab targets up: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        let mut model = Model { name, mount: PathBuf::new(), pid: 0 };
        let said: Value = serde_json::from_slice(&output.stdout).context("read what lab targets says")?;
        model.mount = said["mount"].as_str().context("no mount")?.into();
        model.pid = said["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).context("no pid")?;
        // Data sets are made and compared in no time.
        targets::ease(&model.name, true)?;
        Ok(model)
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        let down = || {
            let mut command = Command::new(std::env::current_exe().context("find this program")?);
            let output = command.args(["targets", "down", &self.name]).output().context("run lab targets")?;
            ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
            anyhow::Ok(())
        };
        if let Err(error) = down() {
            eprintln!("lab: take targets {} down: {error:#}", self.name);
        }
    }
}

impl Sites {
    /// Makes everything. `dir` is where scratch directories go, if the user has said so.
    ///
    /// # Errors
    /// Naming what cannot be made; what had been made is removed.
    pub fn up(experiment: &Experiment, dir: Option<&Path>, haul: &Path) -> anyhow::Result<Sites> {
        let mut all =
            Sites { sites: Vec::new(), models: Vec::new(), plays: Vec::new(), scratches: Vec::new() };
        let [near, far] = [("near", &experiment.source), ("far", &experiment.sink)].map(|(end, storage)| {
            all.place(end, storage, dir).with_context(|| format!("storage of the {end} host"))
        });
        let ((near, near_pid), (far, far_pid)) = (near?, far?);
        let uses = experiment
            .competitors
            .iter()
            .filter_map(|one| Some(own::ends(own::find(&one.peer)?, &one.settings)));
        let [reads, writes] = uses.fold([false; 2], |[a, b], [c, d]| [a | c, b | d]);
        let mut from = Vec::new();
        let mut most = 0;
        for (index, spec) in experiment.workloads.iter().enumerate() {
            let workload = spec.workload()?;
            most = most.max(workload.bytes());
            let dir = near.join(format!("from-{index}"));
            if reads {
                room(&near, workload.bytes(), "the source")?;
                workload.make(&dir)?;
            }
            from.push(dir);
        }
        if writes {
            room(&far, most, "the sink")?;
        }
        for name in &experiment.networks {
            if process::interrupted() {
                return Err(process::Interrupted.into());
            }
            let wan = network(name)?.map(|wan| wan::Up { any_rate: experiment.any_rate, ..wan });
            // The hosts' own directories lie where the destination does, unless that is a model, which no
            // server exports.
            let hosts =
                if experiment.sink.on == Medium::Model { all.scratches[0].0.clone() } else { far.clone() };
            let bench = Bench::up(&Setup { wan, dir: hosts, haul: haul.to_owned() })
                .with_context(|| format!("network {name}"))?;
            let to = match experiment.sink.on {
                Medium::Model => far.join("to"),
                _ => bench.far().root.join("to"),
            };
            fs::create_dir_all(&to).with_context(|| format!("make {}", to.display()))?;
            // What `lab wan up` has said of it; nothing of loopback.
            let described = &bench.line.described;
            let network = described["name"].as_str().map(str::to_owned);
            let pid = described["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
            let set_ms = network.is_some().then_some(bench.line.rtt.as_secs_f64() * 1e3);
            let mut seen = set_ms.map(|set_ms| ping(&bench, set_ms)).transpose()?.unwrap_or_default();
            if let Some(proof) = described["proof"].as_array() {
                // Of all NICs together.
                for key in ["goodput_gbit", "goodput_possible_gbit"] {
                    seen[key] = proof.iter().filter_map(|nic| nic[key].as_f64()).sum::<f64>().into();
                }
            }
            let emulators = pid.into_iter().chain(near_pid).chain(far_pid).collect();
            let cached = [&experiment.source, &experiment.sink]
                .iter()
                .any(|storage| matches!(storage.on, Medium::Disk | Medium::Model));
            all.sites.push(Site {
                name: name.clone(),
                bench,
                from: from.clone(),
                to,
                emulators,
                network,
                seen,
                cached,
                plays: all.plays.clone(),
            });
        }
        Ok(all)
    }

    /// The directory of an end's storage, and the process that plays it.
    fn place(
        &mut self,
        end: &str,
        storage: &Storage,
        dir: Option<&Path>,
    ) -> anyhow::Result<(PathBuf, Option<i32>)> {
        let base = match (storage.on, dir) {
            (Medium::Disk, dir) => dir.unwrap_or(Path::new("/var/tmp")),
            (Medium::Tmpfs, Some(dir)) if is_tmpfs(dir)? => dir,
            _ => Path::new("/dev/shm"),
        };
        if (storage.on == Medium::Disk) == is_tmpfs(base)? {
            let wanted = if storage.on == Medium::Disk {
                "is to be a disk, but it is a tmpfs"
            } else {
                "is to be a tmpfs"
            };
            bail!("{} {wanted}; name another one by --dir", base.display());
        }
        let scratch = base.join(format!("haul-lab-run-{}-{end}", std::process::id()));
        fs::create_dir(&scratch).with_context(|| format!("make {}", scratch.display()))?;
        self.scratches.push(Scratch(scratch.clone()));
        fs::set_permissions(&scratch, fs::Permissions::from_mode(0o700))
            .with_context(|| format!("change {}", scratch.display()))?;
        if storage.on != Medium::Model {
            return Ok((scratch, None));
        }
        let model = Model::up(format!("run-{}-{end}", std::process::id()), storage, &scratch)?;
        self.plays.push(Play {
            model: model.name.clone(),
            is_sink: end == "far",
            congestion: storage.congestion.clone(),
            targets: storage.targets.unwrap_or(1),
        });
        let place = (model.mount.clone(), Some(model.pid));
        self.models.push(model);
        Ok(place)
    }
}

impl Site {
    /// Empties the destination, hands everything to the disks, and forgets what was cached.
    pub fn clear(&self) -> anyhow::Result<()> {
        for entry in fs::read_dir(&self.to).with_context(|| format!("list {}", self.to.display()))? {
            let (path, is_dir) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?.is_dir())))?;
            let removed = if is_dir { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.with_context(|| format!("remove {}", path.display()))?;
        }
        rustix::fs::sync();
        if self.cached { machine::drop_caches() } else { Ok(()) }
    }

    /// From now on modelled targets take their time.
    pub fn play(&self) -> anyhow::Result<Playing<'_>> {
        let playing = Playing(&self.plays);
        self.plays.iter().try_for_each(|play| targets::ease(&play.model, false))?;
        Ok(playing)
    }
}

fn is_tmpfs(dir: &Path) -> anyhow::Result<bool> {
    Ok(statfs(dir).with_context(|| format!("look at {}", dir.display()))?.f_type as i64 == TMPFS)
}

/// Errors: it does not fit, with what would.
fn room(dir: &Path, bytes: u64, end: &str) -> anyhow::Result<()> {
    let found = statvfs(dir).with_context(|| format!("look at {}", dir.display()))?;
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    // Some is left to others; a model answers for what it may use.
    ensure!(
        bytes + bytes / 10 <= free,
        "{end} at {} has {free} bytes free, too few for {bytes}; lower `scale` or `size`, or name another --dir",
        dir.display()
    );
    Ok(())
}

/// The idle path, as ping sees it.
fn ping(bench: &Bench, set_ms: f64) -> anyhow::Result<Value> {
    let mut command = bench.near().command("ping");
    command.args(["-n", "-q", "-i", "0.02", "-c", PINGS, "-W", "5", &bench.far().address]);
    let said = bench.run(&mut command, PING_PATIENCE).context("ping the far host (package iputils-ping)")?;
    let (min, mean) = wan::parse_ping(&said.stdout)
        .with_context(|| format!("no answer to ping: {}", said.stdout.trim()))?;
    Ok(table::seen(min, mean, set_ms))
}
