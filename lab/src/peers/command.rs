//! `lab peers`: which peers there are, their packages, and the proof that each moves a tree byte for byte.
//!
//! In: names. Out: a line each. What is installed comes from Debian, by `scripts/needs.sh`, which starts no
//! daemon.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, fs};

use anyhow::{Context as _, bail, ensure};
use clap::{Args, Subcommand};

use super::{Job, PEERS, Peer, find};
use crate::host::{self, Bench, Setup};
use crate::process;
use crate::wan::{Change, Up};
use crate::workload::Workload;

/// The path if none is named: short and not slow.
const RTT_NS: u64 = 2_000_000;
const RATE: u64 = 1_000_000_000;
/// Several directories' worth would take longer and show no more; the large one has several objects and an
/// odd end.
const MANY: Workload = Workload { files: 60, size: 10_007, seed: 1 };
const LARGE: Workload = Workload { files: 1, size: (9 << 20) + 13, seed: 2 };

/// Programs that haul is compared with
#[derive(Subcommand)]
pub enum Peers {
    /// Name, version and setting of each
    List,
    /// Install their packages from Debian; starts no daemons
    Install {
        /// Default: all
        names: Vec<String>,
    },
    /// Move a tiny tree and a file with each over a short network, and compare every byte
    Check(Check),
}

#[derive(Args)]
pub struct Check {
    /// Default: all that are installed
    names: Vec<String>,
    /// Over loopback instead of a network of its own
    #[arg(long)]
    loopback: bool,
    /// Round trip 2 ms and 1 Gbit/s if nothing else is said
    #[command(flatten)]
    change: Change,
    /// How long each copy may take (30s)
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = crate::wan::parse_time)]
    limit: u64,
    /// Directory for the data; no blanks in its name
    #[arg(long, default_value = "/tmp")]
    dir: PathBuf,
    /// A setting for those peers that are named, as NAME=VALUE
    #[arg(long, value_name = "SETTING", value_parser = setting, requires = "names")]
    set: Vec<(String, String)>,
}

fn setting(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("a setting is NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Does what was asked for.
///
/// # Errors
/// With what failed; `check` after all of them have been tried.
pub fn run(peers: Peers) -> anyhow::Result<()> {
    match peers {
        Peers::List => PEERS.iter().try_for_each(|peer| {
            let version =
                peer.version().unwrap_or_else(|_| format!("not installed: {}", peer.packages().join(" ")));
            say(&format!("{:<10} {version}\n           {}", peer.name(), peer.about()))
        }),
        Peers::Install { names } => install(&chosen(&names)?),
        Peers::Check(check) => check.run(),
    }
}

/// Those that are named, or all.
fn chosen(names: &[String]) -> anyhow::Result<Vec<&'static dyn Peer>> {
    if names.is_empty() { Ok(PEERS.to_vec()) } else { names.iter().map(|name| find(name)).collect() }
}

fn say(line: &str) -> anyhow::Result<()> {
    writeln!(std::io::stdout(), "{line}").context("write to standard output")
}

fn install(peers: &[&'static dyn Peer]) -> anyhow::Result<()> {
    let root = env::var_os("LAB_ROOT").map_or_else(|| PathBuf::from("."), PathBuf::from);
    let script = root.join("scripts/needs.sh");
    ensure!(
        script.exists(),
        "{} is not there; start this by lab/lab, or in the repository",
        script.display()
    );
    let mut packages: Vec<_> = peers.iter().flat_map(|peer| peer.packages()).collect();
    packages.sort();
    packages.dedup();
    let status = Command::new(script).arg("packages").args(packages).status().context("run needs.sh")?;
    ensure!(status.success(), "needs.sh: {status}");
    for peer in peers {
        say(&format!("{:<10} {}", peer.name(), peer.version()?))?;
    }
    Ok(())
}

impl Check {
    fn run(&self) -> anyhow::Result<()> {
        process::hear_signals()?;
        let mut peers = chosen(&self.names)?;
        if self.names.is_empty() {
            peers.retain(|peer| match peer.version() {
                Ok(_) => true,
                Err(_) => {
                    eprintln!("lab: {} is not installed, and left out", peer.name());
                    false
                }
            });
        }
        let mut change = self.change.clone();
        change.rtt = change.rtt.or(change.delay.is_none().then_some(RTT_NS));
        change.rate = change.rate.or(Some(RATE));
        let wan = (!self.loopback).then(|| Up::new(None, change));
        let bench = Bench::up(&Setup { wan, dir: self.dir.clone(), haul: host::haul() })?;
        let data = [("many", MANY), ("large", LARGE)].map(|(name, workload)| {
            let dir = bench.near().root.join(name);
            workload.make(&dir).map(|()| (workload, dir))
        });
        let [many, large] = data;
        let data = [many?, large?];
        let settings = self.set.iter().cloned().collect();
        let limit = Duration::from_nanos(self.limit);
        let mut failed = 0;
        for peer in peers {
            let began = Instant::now();
            match check(peer, &bench, &data, &settings, limit) {
                Ok(what) => {
                    say(&format!("{:<10} ok: {what}, {:.1} s", peer.name(), began.elapsed().as_secs_f64()))?
                }
                Err(error) if error.is::<process::Interrupted>() => return Err(error),
                Err(error) => {
                    say(&format!("{:<10} FAILED: {error:#}", peer.name()))?;
                    failed += 1;
                }
            }
        }
        if failed > 0 {
            bail!("{failed} peers failed");
        }
        Ok(())
    }
}

/// Moves both data sets, and says what was found.
fn check(
    peer: &dyn Peer,
    bench: &Bench,
    data: &[(Workload, PathBuf)],
    settings: &BTreeMap<String, String>,
    limit: Duration,
) -> anyhow::Result<&'static str> {
    peer.version()?;
    let _server = peer.start(bench)?;
    let mut result = "every byte is the same";
    for (workload, from) in data {
        let to = bench.far().root.join(format!("{}-{}", peer.name(), workload.files));
        fs::create_dir(&to).with_context(|| format!("make {}", to.display()))?;
        let said = peer.copy(&Job { bench, workload, from, to: &to, settings, limit })?;
        if said.memory_only {
            let moved = said.bytes.zip(said.seconds).filter(|(bytes, seconds)| *bytes > 0 && *seconds > 0.0);
            moved.context("it moved nothing")?;
            result = "moved bytes, nothing to compare";
        } else {
            workload.check(from, &to)?;
        }
        fs::remove_dir_all(&to).with_context(|| format!("remove {}", to.display()))?;
    }
    Ok(result)
}
