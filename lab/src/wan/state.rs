//! What stands, written down before it is made, so that it can be removed also after a crash.
//!
//! In: the name of a network. Out: a file with its process and namespaces, and whether that process still
//! runs.
//! Invariant: no process gets a signal but one that is the [`Process`] in the file.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};

use crate::pid::Process;

/// Longest name of a network: the namespaces' names are built of it.
const NAME_MAX: usize = 32;

/// A network as it was set up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WanState {
    pub name: String,
    /// The daemon; before it runs, the command that sets the network up.
    pub process: Process,
    pub namespaces: [String; 2],
    pub nics: usize,
    /// Its packets are carried by a guest kernel (`lab kernel wan`), whose first process is written down.
    #[serde(default)]
    pub kernel: bool,
}

/// The folder of state files, sockets and logs; made if need be.
///
/// # Errors
/// If it cannot be made, or belongs to someone else.
pub fn dir() -> anyhow::Result<PathBuf> {
    let uid = rustix::process::geteuid();
    let dir = if uid.is_root() {
        PathBuf::from("/run/haul-lab")
    } else {
        PathBuf::from(format!("/tmp/haul-lab-{}", uid.as_raw()))
    };
    match fs::DirBuilder::new().mode(0o700).create(&dir) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("make {}", dir.display()));
        }
        _ => {}
    }
    let found = fs::symlink_metadata(&dir).with_context(|| format!("look at {}", dir.display()))?;
    if !found.is_dir() || found.uid() != uid.as_raw() {
        bail!("{} is not our own directory; remove it", dir.display());
    }
    Ok(dir)
}

/// # Errors
/// If `name` cannot be part of a namespace's and a file's name.
pub fn check_name(name: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_' || c == '.';
    if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(fits) || name.starts_with(['-', '.']) {
        return Err(format!(
            "a name has 1 to {NAME_MAX} letters, digits, - _ ., and begins with neither - nor ."
        ));
    }
    Ok(name.to_owned())
}

/// `wan-NAME.SUFFIX` in [`dir`].
pub fn file(name: &str, suffix: &str) -> anyhow::Result<PathBuf> {
    Ok(dir()?.join(format!("wan-{name}.{suffix}")))
}

impl WanState {
    /// Takes the name: fails if a network with it is written down already.
    pub fn claim(&self) -> anyhow::Result<()> {
        let path = file(&self.name, "json")?;
        let made = fs::File::options().write(true).create_new(true).open(&path);
        let mut made = made.with_context(|| format!("make {}", path.display()))?;
        made.write_all(&serde_json::to_vec(self)?).with_context(|| format!("write {}", path.display()))
    }

    /// Replaces what is written down.
    pub fn update(&self) -> anyhow::Result<()> {
        let (path, new) = (file(&self.name, "json")?, file(&self.name, "new")?);
        fs::write(&new, serde_json::to_vec(self)?).with_context(|| format!("write {}", new.display()))?;
        fs::rename(&new, &path).with_context(|| format!("rename to {}", path.display()))
    }

    /// What is written down of `name`.
    pub fn read(name: &str) -> anyhow::Result<Option<WanState>> {
        let path = file(name, "json")?;
        match fs::read(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
            // A crash between making and writing the file leaves it empty: nothing was made by then.
            Ok(bytes) if bytes.is_empty() => {
                remove_files(name)?;
                Ok(None)
            }
            Ok(bytes) => {
                let state = serde_json::from_slice(&bytes);
                state.map(Some).with_context(|| format!("understand {}; remove it by hand", path.display()))
            }
        }
    }

    /// All that is written down, by name.
    pub fn all() -> anyhow::Result<Vec<WanState>> {
        let dir = dir()?;
        let mut names = Vec::new();
        for entry in fs::read_dir(&dir).with_context(|| format!("list {}", dir.display()))? {
            let entry = entry?.file_name();
            let name = entry.to_str().and_then(|name| name.strip_prefix("wan-")?.strip_suffix(".json"));
            names.extend(name.map(str::to_owned));
        }
        names.sort();
        let states: anyhow::Result<Vec<_>> = names.iter().map(|name| WanState::read(name)).collect();
        Ok(states?.into_iter().flatten().collect())
    }
}

/// Forgets `name`, with socket and log.
pub fn remove_files(name: &str) -> anyhow::Result<()> {
    for suffix in ["sock", "log", "new", "json"] {
        remove_file(&file(name, suffix)?)?;
    }
    Ok(())
}

fn remove_file(path: &Path) -> anyhow::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: names cannot leave the folder or be taken for options.
    /// Method: a table.
    #[test]
    fn wan_names_are_plain() {
        for good in ["wan", "a.b-c_d", "rtt-0.28ms"] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in ["", "a/b", "..", "-x", "lossy-0.01%", "a b", &"x".repeat(33)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }
}
