//! What stands, written down before it is made, so that it can be removed also after a crash.
//!
//! In: the name of a network. Out: a file with its process and namespaces, and whether that process still runs.
//! Invariant: no process gets a signal but one whose id, start time and boot are those in the file.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// Longest name of a network: the namespaces' names are built of it.
const NAME_MAX: usize = 32;
/// How long a process may take to end when asked, before it is made to.
const PATIENCE: Duration = Duration::from_secs(2);

/// A process, so described that another one with the same id is not mistaken for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    pub pid: i32,
    /// Clock ticks since boot.
    start: u64,
    boot: String,
}

/// A network as it was set up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State {
    pub name: String,
    /// The daemon; before it runs, the command that sets the network up.
    pub process: Process,
    pub namespaces: [String; 2],
    pub nics: usize,
    /// Its packets are carried by a guest kernel (`lab kernel wan`), whose first process is written down.
    #[serde(default)]
    pub kernel: bool,
}

impl Process {
    /// The running process with this id.
    ///
    /// # Errors
    /// If there is none.
    pub fn of(pid: u32) -> anyhow::Result<Process> {
        let path = format!("/proc/{pid}/stat");
        let stat = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        // The name may hold blanks and brackets; fields are counted behind its last bracket. The first is field 3.
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        let mut fields = fields.split_whitespace();
        if fields.next() == Some("Z") {
            bail!("process {pid} has ended");
        }
        let start = fields.nth(18).and_then(|start| start.parse().ok());
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").context("read the boot's id")?;
        Ok(Process {
            pid: i32::try_from(pid).context("a process id")?,
            start: start.with_context(|| format!("no start time in {path}"))?,
            boot: boot.trim().to_owned(),
        })
    }

    pub fn runs(&self) -> bool {
        u32::try_from(self.pid).is_ok_and(|pid| Process::of(pid).is_ok_and(|found| found == *self))
    }

    /// Ends it, first by asking; returns when it is gone. One that does not run any more is left alone.
    pub fn end(&self) -> anyhow::Result<()> {
        self.signal(&[Signal::TERM, Signal::KILL])
    }

    /// Ends it without asking: for one that has nothing to put in order, or hears nothing.
    pub fn kill(&self) -> anyhow::Result<()> {
        self.signal(&[Signal::KILL])
    }

    fn signal(&self, signals: &[Signal]) -> anyhow::Result<()> {
        let Some(pid) = Pid::from_raw(self.pid) else { return Ok(()) };
        // The descriptor holds on to one process; that it is ours is looked at after it has been opened.
        let Ok(fd) = pidfd_open(pid, PidfdFlags::empty()) else { return Ok(()) };
        if !self.runs() {
            return Ok(());
        }
        for signal in signals {
            match pidfd_send_signal(fd.as_fd(), *signal) {
                Ok(()) => {}
                Err(rustix::io::Errno::SRCH) => return Ok(()),
                Err(error) => return Err(error).with_context(|| format!("end process {}", self.pid)),
            }
            let timeout = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
            if poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout))? > 0 {
                return Ok(());
            }
        }
        bail!("process {} does not end", self.pid)
    }
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

impl State {
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
    pub fn read(name: &str) -> anyhow::Result<Option<State>> {
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
    pub fn all() -> anyhow::Result<Vec<State>> {
        let dir = dir()?;
        let mut names = Vec::new();
        for entry in fs::read_dir(&dir).with_context(|| format!("list {}", dir.display()))? {
            let entry = entry?.file_name();
            let name = entry.to_str().and_then(|name| name.strip_prefix("wan-")?.strip_suffix(".json"));
            names.extend(name.map(str::to_owned));
        }
        names.sort();
        let states: anyhow::Result<Vec<_>> = names.iter().map(|name| State::read(name)).collect();
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

    /// Goal: a process with the right id and the wrong start time gets no signal.
    /// Method: a child that sleeps, described with a start time one tick off; then described rightly.
    #[test]
    fn wan_ends_no_foreign_process() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("start sleep");
        let ours = Process::of(child.id()).expect("it runs");
        let foreign = Process { start: ours.start + 1, ..ours.clone() };
        assert!(ours.runs() && !foreign.runs());
        foreign.end().expect("nothing to do");
        assert!(child.try_wait().expect("look at the child").is_none(), "it still runs");
        ours.end().expect("end it");
        child.wait().expect("collect the child");
        assert!(!ours.runs());
        ours.end().expect("nothing to do");
    }

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
