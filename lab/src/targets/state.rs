//! What is up: one directory for each set of targets, from which a later call, also after a crash, takes it
//! down.
//!
//! In: names. Out: what stands under them; and removal. Invariant: what is made is written down before it is
//! made, and nothing is removed that is not written down here or mounted below a set's own directory.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use rustix::mount::{UnmountFlags, unmount};
use serde::{Deserialize, Serialize};

use crate::pid::Process;

const ROOT: &str = "/run/haul-lab/targets";
const NAME_MAX: usize = 32;

/// One set of targets.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct VolumeState {
    pub name: String,
    /// `devices` or `model`.
    pub kind: String,
    pub mount: PathBuf,
    pub targets: u32,
    /// The process that serves a model.
    pub daemon: Option<Process>,
    /// Made by us, removed with all in it.
    pub data: Option<PathBuf>,
    pub images: Vec<PathBuf>,
    /// Device (major:minor) of each target.
    pub devices: Vec<String>,
    /// Bytes a second for each target: read, write; 0 is without limit.
    pub rates: Vec<[u64; 2]>,
}

/// The directory of a set.
pub fn dir(name: &str) -> PathBuf {
    Path::new(ROOT).join(name)
}

/// Where a set is mounted.
pub fn mount(name: &str) -> PathBuf {
    dir(name).join("mnt")
}

/// # Errors
/// If `name` is no plain word that can be part of a path.
pub fn check_name(name: &str) -> anyhow::Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    ensure!(
        (1..=NAME_MAX).contains(&name.len()) && name.chars().all(plain),
        "name {name:?}: up to {NAME_MAX} letters, digits, - and _"
    );
    Ok(())
}

/// Takes a name for a new set.
///
/// Errors: not root, a name that is no plain word, a set of this name.
pub fn create(name: &str) -> anyhow::Result<()> {
    check_name(name)?;
    ensure!(rustix::process::geteuid().is_root(), "targets are mounted: this must be run as root");
    fs::create_dir_all(ROOT).with_context(|| format!("create {ROOT}"))?;
    match fs::create_dir(dir(name)) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {
            bail!("targets {name:?} are up, or were left by a crash: `lab targets down {name}` removes them")
        }
        made => made.with_context(|| format!("create {}", dir(name).display()))?,
    }
    fs::create_dir(mount(name)).with_context(|| format!("create {}", mount(name).display()))
}

impl VolumeState {
    pub fn save(&self) -> anyhow::Result<()> {
        let (path, new) = (dir(&self.name).join("state.json"), dir(&self.name).join("state.new"));
        fs::write(&new, serde_json::to_vec(self)?).with_context(|| format!("write {}", new.display()))?;
        fs::rename(&new, &path).with_context(|| format!("rename to {}", path.display()))
    }

    pub fn load(name: &str) -> anyhow::Result<VolumeState> {
        let path = dir(name).join("state.json");
        let text =
            fs::read(&path).with_context(|| format!("no targets {name:?}: read {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("read {}", path.display()))
    }
}

/// The names of all sets, also of those that a crash left.
pub fn names() -> anyhow::Result<Vec<String>> {
    let entries = match fs::read_dir(ROOT) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| format!("list {ROOT}"))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry?.file_name().into_string());
    }
    names.sort();
    Ok(names)
}

/// Removes a set and everything that belongs to it.
pub fn remove(name: &str) -> anyhow::Result<()> {
    // A set that crashed before it wrote anything down has nothing but its directories.
    let state = VolumeState::load(name).unwrap_or_default();
    if let Some(daemon) = &state.daemon {
        // Nothing of it is kept, so it need not be asked.
        daemon.kill()?;
    }
    for device in &state.devices {
        super::devices::throttle(device, [0, 0], None)?;
    }
    for mount in mounts_below(&dir(name))? {
        // Lazily: a user that holds a file open keeps the mount for itself, and nobody else sees it.
        unmount(&mount, UnmountFlags::DETACH).with_context(|| format!("unmount {}", mount.display()))?;
    }
    for image in &state.images {
        super::devices::detach(image)?;
        remove_if_there(fs::remove_file(image), image)?;
    }
    if let Some(data) = &state.data {
        remove_if_there(fs::remove_dir_all(data), data)?;
    }
    let mount = mount(name);
    if let Ok(entries) = fs::read_dir(&mount) {
        for entry in entries {
            // remove_dir, so that a mount that came back is an error and not an empty file system.
            let path = entry?.path();
            fs::remove_dir(&path).with_context(|| format!("remove {}", path.display()))?;
        }
    }
    remove_if_there(fs::remove_dir(&mount), &mount)?;
    remove_if_there(fs::remove_dir_all(dir(name)), &dir(name))
}

/// Makes it no error that what was to be removed is not there.
pub fn remove_if_there(removed: std::io::Result<()>, path: &Path) -> anyhow::Result<()> {
    match removed {
        Err(e) if e.kind() != ErrorKind::NotFound => {
            Err(e).with_context(|| format!("remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// All mount points at and below a directory, the last mounted first.
pub fn mounts_below(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let table = fs::read_to_string("/proc/self/mountinfo").context("read /proc/self/mountinfo")?;
    let mut found: Vec<PathBuf> = table
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(PathBuf::from)
        .filter(|mount| mount.starts_with(dir))
        .collect();
    found.reverse();
    Ok(found)
}
