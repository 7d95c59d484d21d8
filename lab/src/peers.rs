//! Programs that haul is compared with, and haul itself: each at its best known setting.
//!
//! In: two hosts, a workload that lies on the near one, a directory on the far one. Out: the bytes there, and
//! what the program said of it. Who calls takes the time, counts the processors and checks the bytes; a peer
//! only copies.
//! Left out: peers that Debian does not have.

use std::any::Any;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::host::Bench;
use crate::process;
use crate::workload::Workload;

mod command;
mod fio;
mod ftp;
mod grid;
mod gridftp;
mod haul;
mod iperf3;
mod lftp;
mod rclone;
mod rsync;
mod scp;
mod striped;
mod tar;
mod xrootd;

pub use command::{Peers, run};

/// All of them, in the order of tables.
pub const PEERS: &[&dyn Peer] = &[
    &haul::Haul,
    &rsync::Rsync,
    &scp::Scp,
    &rclone::Rclone,
    &gridftp::Gridftp,
    &ftp::ALL[0],
    &ftp::ALL[1],
    &ftp::ALL[2],
    &ftp::ALL[3],
    &ftp::ALL[4],
    &ftp::ALL[5],
    &ftp::ALL[6],
    &ftp::ALL[7],
    &ftp::ALL[8],
    &striped::STRIPED_HAUL,
    &striped::STRIPED_GLOBUS,
    &xrootd::Xrootd,
    &lftp::Lftp,
    &tar::Tar,
    &tar::SshTar,
    &iperf3::Iperf3,
    &fio::Fio,
];

/// How long a program may take to say its version.
const VERSION_PATIENCE: Duration = Duration::from_secs(20);

/// The peer of this name.
///
/// # Errors
/// There is none; the error lists them.
pub fn find(name: &str) -> anyhow::Result<&'static dyn Peer> {
    let names = || PEERS.iter().map(|peer| peer.name()).collect::<Vec<_>>().join(", ");
    let found = PEERS.iter().find(|peer| peer.name() == name).copied();
    found.with_context(|| format!("no peer is called {name}; there are {}", names()))
}

/// A program that moves a workload from the near host to the far one.
pub trait Peer: Sync {
    /// As experiments name it.
    fn name(&self) -> &'static str;
    /// One sentence for the table: its setting, how it protects the data on the way, and whether its end
    /// means that the data is on media.
    fn about(&self) -> &'static str;
    /// Debian's packages that bring it; empty if none is needed.
    fn packages(&self) -> &'static [&'static str];
    /// What it is the limit of (`network`, `storage`), if it moves no files: no competitor, but what is held
    /// against.
    fn limit(&self) -> Option<&'static str> {
        None
    }
    /// What it calls its version.
    ///
    /// # Errors
    /// It is not installed.
    fn version(&self) -> anyhow::Result<String>;
    /// Starts what must run at the far end before the clock. Dropping it ends what was started, by process
    /// id.
    ///
    /// The thread that calls must outlive what is returned: servers end with it.
    ///
    /// # Errors
    /// With the server's own words.
    fn start(&self, bench: &Bench) -> anyhow::Result<Box<dyn Any>>;
    /// Moves the workload. Returns when the program has ended.
    ///
    /// # Errors
    /// It failed, then its own words are in the error; it took longer than the job's limit, then
    /// [`process::OverLimit`] is in its chain; an unknown setting. Nothing of the copy runs any more.
    fn copy(&self, job: &Job<'_>) -> anyhow::Result<Said>;
}

/// One copy to make.
pub struct Job<'a> {
    pub bench: &'a Bench,
    pub workload: &'a Workload,
    /// Where the workload lies, on the near host: a directory.
    pub from: &'a Path,
    /// An empty directory of the far host. `from`'s content goes into it.
    pub to: &'a Path,
    /// Settings that differ from the best known, by the peer's own names: an experiment's axis.
    pub settings: &'a BTreeMap<String, String>,
    /// How long it may take.
    pub limit: Duration,
}

impl Job<'_> {
    /// The value of a setting: the job's, or else this one.
    pub fn setting(&self, name: &str, best: impl Into<String>) -> String {
        self.settings.get(name).cloned().unwrap_or_else(|| best.into())
    }

    /// A setting that is `yes` or `no`; no if it is not set.
    pub fn flag(&self, name: &str) -> anyhow::Result<bool> {
        match self.settings.get(name).map_or("no", String::as_str) {
            "yes" => Ok(true),
            "no" => Ok(false),
            other => anyhow::bail!("the setting {name} is yes or no, not {other}"),
        }
    }

    /// Refuses settings that are not `known`: a misspelt one would be measured as the best one.
    pub fn check_settings(&self, known: &[&str]) -> anyhow::Result<()> {
        for name in self.settings.keys() {
            ensure!(
                known.contains(&name.as_str()),
                "no setting is called {name}; there are {}",
                known.join(", ")
            );
        }
        Ok(())
    }

    /// `from` with a slash behind it: its content, for those who know the difference.
    fn source_slash(&self) -> String {
        format!("{}/", self.from.display())
    }
}

/// Who we are: the user that the far sshd lets in.
fn user() -> String {
    let uid = rustix::process::geteuid();
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let found = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == uid.as_raw().to_string()).then(|| name.to_owned())
    });
    found.unwrap_or_else(|| "root".to_owned())
}

/// The first line that a program answers, on whichever output.
fn ask_version(program: &str, args: &[&str], package: &str) -> anyhow::Result<String> {
    let missing = || format!("{program} is not installed: `lab peers install` (package {package})");
    let (_, said) =
        process::finish(Command::new(program).args(args), VERSION_PATIENCE).with_context(missing)?;
    let lines = said.stdout.lines().chain(said.stderr.lines()).map(str::trim);
    lines
        .into_iter()
        .find(|line| !line.is_empty())
        .map(str::to_owned)
        .with_context(|| format!("{program} says no version"))
}

/// What a peer says of its copy.
#[derive(Clone, Debug, Default)]
pub struct Said {
    /// Its own figure for how long the bytes took, seconds: for those that move no files (iperf3).
    pub seconds: Option<f64>,
    /// Bytes that it moved, if it moves no files.
    pub bytes: Option<u64>,
    /// Its own figure for what the machine's processors did in these seconds.
    pub cpu_seconds: Option<f64>,
    /// What it counts in place of files: transactions, names.
    pub operations: Option<u64>,
    /// The least time in which its devices can take or give the bytes, s.
    pub bound: Option<f64>,
    /// Nothing lies at the far end, so that there is nothing to check.
    pub memory_only: bool,
    /// It has compared every byte itself.
    pub checked: bool,
    /// What else is worth keeping, as JSON: kept with the raw figures.
    pub more: Value,
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// A job between hosts that are not there, for command lines.
    pub(super) struct Fixture {
        pub bench: Bench,
        pub workload: Workload,
        settings: BTreeMap<String, String>,
        ends: [PathBuf; 2],
    }

    impl Fixture {
        pub(super) fn new(settings: &[(&str, &str)]) -> Fixture {
            Fixture {
                bench: Bench::of_nothing(),
                workload: Workload { files: 3, size: 1000, seed: 1 },
                settings: settings
                    .iter()
                    .map(|(name, value)| (name.to_string(), value.to_string()))
                    .collect(),
                ends: ["/from", "/to"].map(PathBuf::from),
            }
        }

        pub(super) fn job(&self) -> Job<'_> {
            Job {
                bench: &self.bench,
                workload: &self.workload,
                from: &self.ends[0],
                to: &self.ends[1],
                settings: &self.settings,
                limit: Duration::from_secs(60),
            }
        }
    }

    /// Goal: every peer can be found by its name, and a wrong one is told which there are.
    /// Method: all of them; one that is none.
    #[test]
    fn peers_have_names() {
        for peer in PEERS {
            assert_eq!(find(peer.name()).unwrap().name(), peer.name());
        }
        assert!(find("carrier-pigeon").err().unwrap().to_string().contains("rsync"));
    }
}
