//! `lab targets`: storage targets on one machine, real ones with a throttle or a model with service times.
//!
//! In: a number of targets and what they can do. Out: mounts; one JSON line that says where; figures of each
//! target.
//! Invariants: `up` leaves nothing behind when it fails, `down` nothing at all, also after a crash;
//! everything that is seeded repeats. Read in this order: `service` (how long a request takes), `stripe` and
//! `lov` (where bytes lie, and how that is asked), `lane` and `volume` (the same in real time), `tree`,
//! `file`, `store` and `mount` (the file system), `daemon`, `state`, `devices`.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};

use crate::pid::Process;
use daemon::Ask;
pub use script::{Player, Script};
pub use service::ServiceSpec;
use spec::{ModelSpec, SpaceSpec};
pub use spec::{describe, parse_size, targets as specs};
use state::VolumeState;
use volume::Setting;

mod daemon;
pub mod devices;
mod file;
mod lane;
mod lov;
mod mount;
mod script;
mod service;
pub mod spec;
pub mod state;
mod store;
mod stripe;
mod tree;
mod volume;

/// Storage targets: real devices with a throttle, or a striped file system with a service-time model
#[derive(Args)]
pub struct TargetsArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make and mount targets; prints one JSON line with name, mount, targets, pid
    Up(Box<Up>),
    /// Change one target (or `all`) while it is used
    Set(Set),
    /// Play a congestion script, instead of the one that plays
    Script {
        name: String,
        /// JSON file; none ends the script that plays
        script: Option<PathBuf>,
    },
    /// Print figures of each target as JSON
    Stats { name: String },
    /// Print what is up, as JSON
    List,
    /// Unmount and remove targets, also what a crash left
    Down {
        #[arg(required_unless_present = "all")]
        name: Option<String>,
        /// All of them
        #[arg(long, conflicts_with = "name")]
        all: bool,
    },
    /// The process of a model
    #[command(hide = true)]
    Serve { name: String },
}

#[derive(Args)]
struct Up {
    /// So many loop devices, each with a file system of its own
    #[arg(long, value_name = "N", required_unless_present = "model", conflicts_with = "model")]
    devices: Option<u32>,
    /// So many modelled targets below one striped file system
    #[arg(long, value_name = "N")]
    model: Option<u32>,
    /// What they are called
    #[arg(long, default_value = "targets")]
    name: String,
    /// Directory for image files (default /var/tmp), or for the data of a model (default: memory)
    #[arg(long)]
    dir: Option<PathBuf>,

    /// Devices: bytes of each
    #[arg(long, value_parser = parse_size, default_value = "1GiB", conflicts_with = "model")]
    size: u64,
    /// Devices: file system
    #[arg(long, value_enum, default_value = "xfs", conflicts_with = "model")]
    fs: FileSystem,
    /// Devices: bytes a second, each way
    #[arg(long, value_parser = parse_size, conflicts_with = "model")]
    rate: Option<u64>,

    /// Model: what a target can do: null, ssd, disk, array, or a JSON file
    #[arg(long, default_value = "ssd", conflicts_with = "devices")]
    spec: String,
    /// Model: targets of a file (default: all)
    #[arg(long, value_name = "C", conflicts_with = "devices")]
    stripe_count: Option<u32>,
    /// Model: bytes of a stripe
    #[arg(long, value_name = "S", value_parser = parse_size, default_value = "1MiB", conflicts_with = "devices")]
    stripe_size: u64,
    /// Model: keep no data; reads give zeros
    #[arg(long, conflicts_with_all = ["devices", "dir"])]
    null: bool,
    /// Model: keep data in memory, at most so much (default: half of what is free)
    #[arg(long, value_name = "MAX", value_parser = parse_size, num_args = 0..=1, default_missing_value = "0",
        conflicts_with_all = ["devices", "dir", "null"])]
    memory: Option<u64>,
    /// Model: congestion script, a JSON file
    #[arg(long, conflicts_with = "devices")]
    script: Option<PathBuf>,
    /// Model: name of the pool that new files lie in
    #[arg(long, default_value = "", conflicts_with = "devices")]
    pool: String,
    /// Model: as on Lustre, a layout set after a file was opened has no effect
    #[arg(long, conflicts_with = "devices")]
    strict_layout: bool,
    /// Model: upper and lower case of a name are one, as on file systems of other systems
    #[arg(long, conflicts_with = "devices")]
    fold: bool,
    /// Model: seed of all that is drawn
    #[arg(long, default_value_t = 1, conflicts_with = "devices")]
    seed: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum FileSystem {
    Xfs,
    Ext4,
}

#[derive(Args)]
struct Set {
    name: String,
    /// Number of a target, or `all`
    #[arg(value_parser = parse_target)]
    target: Which,
    /// Bytes a second; 0 is without limit
    #[arg(long, value_parser = parse_size)]
    read_rate: Option<u64>,
    /// Bytes a second; 0 is without limit
    #[arg(long, value_parser = parse_size)]
    write_rate: Option<u64>,
    /// Model: everything takes so many times as long; 1 is well
    #[arg(long, value_name = "FACTOR")]
    slow: Option<f64>,
    /// Model: everything takes so many microseconds longer
    #[arg(long, value_name = "MICROSECONDS")]
    extra_us: Option<u64>,
    /// Model: answer nothing
    #[arg(long, conflicts_with = "thaw")]
    freeze: bool,
    /// Model: answer again
    #[arg(long)]
    thaw: bool,
}

#[derive(Clone, Copy)]
struct Which(Option<u32>);

fn parse_target(text: &str) -> Result<Which, String> {
    match text {
        "all" => Ok(Which(None)),
        text => text
            .parse()
            .map(|at| Which(Some(at)))
            .map_err(|_| format!("{text:?} is neither a number nor all")),
    }
}

/// Has a model play a script from its beginning, instead of the one that plays; none ends that.
///
/// # Errors
/// Its process does not answer, or the script cannot be played.
pub fn play(name: &str, script: Option<&Script>) -> anyhow::Result<()> {
    daemon::ask(name, &Ask::Script(script.cloned())).map(drop)
}

/// Lets the targets of a model take no time, or again what they are specified to take.
///
/// # Errors
/// Its process does not answer.
pub fn ease(name: &str, eased: bool) -> anyhow::Result<()> {
    daemon::ask(name, &Ask::Ease(eased)).map(drop)
}

/// Figures of each target of a model, as `lab targets stats` prints them.
///
/// # Errors
/// Its process does not answer.
pub fn model_stats(name: &str) -> anyhow::Result<Value> {
    daemon::ask(name, &Ask::Stats)
}

/// Runs one command.
pub fn run(args: TargetsArgs) -> anyhow::Result<()> {
    match args.command {
        Command::Up(up) => {
            state::create(&up.name)?;
            let made = match (up.devices, up.model) {
                (Some(count), _) => devices::up(&devices_spec(&up, count)),
                (None, count) => {
                    model_spec(&up, count.unwrap_or(0)).and_then(|(spec, data)| daemon::start(&spec, data))
                }
            };
            match made {
                Ok(made) => println!("{made}"),
                Err(e) => {
                    state::remove(&up.name).with_context(|| format!("remove after: {e:#}"))?;
                    return Err(e);
                }
            }
            Ok(())
        }
        Command::Set(set) => change(&set),
        Command::Script { name, script } => {
            ensure!(
                VolumeState::load(&name)?.kind == "model",
                "{name:?} are devices: only a model plays scripts"
            );
            let script = script.as_deref().map(read_script).transpose()?;
            daemon::ask(&name, &Ask::Script(script)).map(drop)
        }
        Command::Stats { name } => {
            let state = VolumeState::load(&name)?;
            let stats = match &state.kind[..] {
                "model" => daemon::ask(&name, &Ask::Stats)?,
                _ => devices::stats(&state)?,
            };
            println!("{}", json!({ "name": name, "targets": stats }));
            Ok(())
        }
        Command::List => {
            let all: Vec<Value> = state::names()?
                .iter()
                .map(|name| match VolumeState::load(name) {
                    Ok(state) => {
                        let alive = state.daemon.as_ref().is_none_or(Process::runs);
                        json!({ "name": name, "kind": state.kind, "mount": state.mount, "targets": state.targets, "alive": alive })
                    }
                    Err(_) => json!({ "name": name, "alive": false }),
                })
                .collect();
            println!("{}", Value::Array(all));
            Ok(())
        }
        Command::Down { name, .. } => {
            let names = name.map_or_else(state::names, |name| Ok(vec![name]))?;
            for name in names {
                ensure!(state::dir(&name).is_dir() && !name.contains('/'), "no targets {name:?}");
                state::remove(&name).with_context(|| format!("remove targets {name:?}"))?;
            }
            Ok(())
        }
        Command::Serve { name } => daemon::serve(&name),
    }
}

fn devices_spec(up: &Up, count: u32) -> devices::DevicesSpec {
    devices::DevicesSpec {
        name: up.name.clone(),
        count,
        size: up.size,
        file_system: match up.fs {
            FileSystem::Xfs => "xfs",
            FileSystem::Ext4 => "ext4",
        },
        rate: up.rate.unwrap_or(0),
        dir: up.dir.clone().unwrap_or_else(|| "/var/tmp".into()),
    }
}

/// The model that is wanted, and the directory that is made for its data.
fn model_spec(up: &Up, count: u32) -> anyhow::Result<(ModelSpec, Option<PathBuf>)> {
    let data = up.dir.as_ref().map(|dir| dir.join(format!("haul-lab-{}", up.name)));
    let space = match (&data, up.null, up.memory.unwrap_or(0)) {
        (Some(data), _, _) => {
            ensure!(!data.exists(), "{} is there: is it left by a crash?", data.display());
            SpaceSpec::Directory(data.clone())
        }
        (None, true, _) => SpaceSpec::Null,
        (None, false, 0) => SpaceSpec::Memory(memory_free()? / 2),
        (None, false, most) => SpaceSpec::Memory(most),
    };
    ensure!(count <= stripe::TARGETS_MAX, "{count} targets: 1 to {} can be had", stripe::TARGETS_MAX);
    let spec = ModelSpec {
        name: up.name.clone(),
        mount: state::mount(&up.name),
        targets: spec::targets(&up.spec, count)?,
        stripe_size: u32::try_from(up.stripe_size).context("a stripe has less than 4 GiB")?,
        stripe_count: up.stripe_count.unwrap_or(count),
        pool: up.pool.clone(),
        space,
        strict_layout: up.strict_layout,
        fold: up.fold,
        seed: up.seed,
        script: up.script.as_deref().map(read_script).transpose()?,
    };
    spec.check()?;
    if let Some(script) = &spec.script {
        script::Player::new(script.clone(), count)?;
    }
    Ok((spec, data))
}

fn read_script(path: &std::path::Path) -> anyhow::Result<Script> {
    let text = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("read {}", path.display()))
}

/// Bytes that the kernel calls available.
fn memory_free() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").context("read /proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib: u64 =
        line.and_then(|line| line.split_whitespace().next()?.parse().ok()).context("no MemAvailable")?;
    Ok(kib << 10)
}

fn change(set: &Set) -> anyhow::Result<()> {
    let mut state = VolumeState::load(&set.name)?;
    let target = set.target.0;
    if state.kind == "model" {
        let setting = Setting {
            slow: set.slow,
            extra_us: set.extra_us,
            freeze: if set.freeze || set.thaw { Some(set.freeze) } else { None },
            read_rate: set.read_rate,
            write_rate: set.write_rate,
        };
        ensure!(setting != Setting::default(), "nothing to change: see --help");
        return daemon::ask(&set.name, &Ask::Set { target, setting }).map(drop);
    }
    ensure!(
        set.slow.is_none() && set.extra_us.is_none() && !set.freeze && !set.thaw,
        "{:?} are devices: only their --read-rate and --write-rate can be changed",
        set.name
    );
    ensure!(set.read_rate.is_some() || set.write_rate.is_some(), "nothing to change: see --help");
    let means = devices::set(&mut state, target, set.read_rate, set.write_rate)?;
    println!("{}", json!({ "throttle": means }));
    Ok(())
}
