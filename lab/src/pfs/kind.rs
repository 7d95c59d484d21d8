//! The file systems that there are, and what each must say of itself.
//!
//! In: a choice with its options. Out: its programs, its servers' names and places, how it starts and how it
//! is mounted.
//! To add one: a file beside this, and one arm in each function.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::state::PfsState;
use super::{ceph, gluster, moosefs};

/// Seconds that a command of a file system may take, before it is ended.
const COMMAND_MAX: &str = "90";
/// Where master, monitor and the like listen, in the file system's own network namespace.
pub const ADDRESS: &str = "10.66.0.1";

/// Which file system, and how.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Gluster(gluster::Options),
    Moosefs(moosefs::Options),
    Ceph(ceph::Options),
}

/// A file system's name, where it has no options.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Which {
    Gluster,
    Moosefs,
    Ceph,
}

impl Which {
    pub fn name(self) -> &'static str {
        match self {
            Which::Gluster => "gluster",
            Which::Moosefs => "moosefs",
            Which::Ceph => "ceph",
        }
    }

    /// What its version command says.
    ///
    /// # Errors
    /// If one of its programs is missing, with how to get it.
    pub fn version(self) -> anyhow::Result<String> {
        let (programs, version): (&[&str], &[&str]) = match self {
            Which::Gluster => (gluster::PROGRAMS, &["glusterfs", "--version"]),
            Which::Moosefs => (moosefs::PROGRAMS, &["mfsmaster", "-v"]),
            Which::Ceph => (ceph::PROGRAMS, &["ceph-osd", "--version"]),
        };
        for program in programs {
            ensure!(
                found(program),
                "{program} is not installed: `lab pfs install {}` brings it",
                self.name()
            );
        }
        Ok(said(version[0], &version[1..])?.lines().next().unwrap_or_default().trim().to_owned())
    }
}

impl Kind {
    pub fn which(&self) -> Which {
        match self {
            Kind::Gluster(_) => Which::Gluster,
            Kind::Moosefs(_) => Which::Moosefs,
            Kind::Ceph(_) => Which::Ceph,
        }
    }

    /// Checks options against the number of servers.
    pub fn check(&self, servers: u32) -> anyhow::Result<()> {
        match self {
            Kind::Gluster(options) => options.check(servers),
            Kind::Moosefs(options) => options.check(servers),
            Kind::Ceph(options) => options.check(),
        }
    }

    /// Bytes of a device that are enough for a first test.
    pub fn size(&self) -> u64 {
        match self {
            Kind::Gluster(_) | Kind::Moosefs(_) => 4 << 30,
            Kind::Ceph(_) => 6 << 30,
        }
    }

    /// The file system on each device; none if the servers take them as they are.
    pub fn file_system(&self) -> Option<&'static str> {
        match self {
            Kind::Gluster(_) | Kind::Moosefs(_) => Some("xfs"),
            Kind::Ceph(_) => None,
        }
    }

    /// Name, data's place and process of server `at`, whose device is mounted (if it is) on `device`.
    pub fn server(&self, at: u32, device: &Path, work: &Path) -> (String, PathBuf, [String; 2]) {
        match self {
            Kind::Gluster(_) => gluster::server(at, device),
            Kind::Moosefs(_) => moosefs::server(at, device, work),
            Kind::Ceph(_) => ceph::server(at, work),
        }
    }

    /// The address of server `at`.
    pub fn address(&self, at: u32) -> String {
        format!("10.66.1.{}", at + 1)
    }

    /// Starts the servers; runs in the keeper, inside their namespaces.
    pub fn start(&self, state: &PfsState) -> anyhow::Result<()> {
        match self {
            Kind::Gluster(options) => gluster::start(state, options),
            Kind::Moosefs(_) => moosefs::start(state),
            Kind::Ceph(_) => ceph::start(state),
        }
    }

    /// The program of the mount, which stays in the foreground, and its arguments.
    pub fn client(&self, state: &PfsState) -> Vec<String> {
        match self {
            Kind::Gluster(_) => gluster::client(state),
            Kind::Moosefs(_) => moosefs::client(state),
            Kind::Ceph(_) => ceph::client(state),
        }
    }

    /// What is to be done through the mount before others use it.
    pub fn mounted(&self, state: &PfsState) -> anyhow::Result<()> {
        match self {
            Kind::Gluster(_) => Ok(()),
            Kind::Moosefs(options) => moosefs::mounted(state, options),
            Kind::Ceph(options) => ceph::mounted(state, options),
        }
    }
}

/// Whether a program is there, also in the places of daemons.
fn found(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let daemons = ["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(daemons).any(|dir| dir.join(program).is_file())
}

/// Runs a command of a file system, for a bounded time; gives back what it said.
///
/// # Errors
/// If it does not run, fails, or takes too long; with its own words.
pub fn said(program: &str, args: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("timeout")
        .args(["--kill-after=5", COMMAND_MAX, program])
        .args(args)
        .env("PATH", path())
        .current_dir("/")
        .output()
        .with_context(|| format!("run {program}"))?;
    let (said, erred) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(
        output.status.success(),
        "{program} {}: {}: {} {}",
        args.join(" "),
        match output.status.code() {
            Some(124) => format!("no end within {COMMAND_MAX} s"),
            _ => output.status.to_string(),
        },
        said.trim(),
        erred.trim()
    );
    Ok(said.into_owned())
}

/// The search path with the places of daemons.
pub fn path() -> String {
    format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default())
}

/// Writes a file of settings.
pub fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

/// Makes a directory.
pub fn make(path: &Path) -> anyhow::Result<()> {
    fs::create_dir(path).with_context(|| format!("create {}", path.display()))
}
