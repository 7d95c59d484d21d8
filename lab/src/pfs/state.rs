//! What is up: one directory for each file system, from which a later call, also after a crash, takes it
//! down.
//!
//! In: names. Out: what stands under them; and removal. Invariant: what is made is written down before it is
//! made. The servers, all that they start and what is mounted for them live in namespaces of their own, which
//! the kernel empties when their first process, the keeper, is killed: nothing has to be found one by one.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::mount::{UnmountFlags, unmount};
use serde::{Deserialize, Serialize};

use super::kind::Kind;
use crate::pid::Process;
use crate::targets::devices;
use crate::targets::state::{check_name, mounts_below, remove_if_there};
use crate::wan::netns;

const ROOT: &str = "/run/haul-lab/pfs";
/// How long the kernel may take to let go of a device after the last that used it has ended.
const DETACH_WAIT: Duration = Duration::from_secs(20);

/// One parallel file system. What is known before it starts is in it from the beginning: the keeper reads it
/// as its plan.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PfsState {
    pub name: String,
    pub kind: Kind,
    pub mount: PathBuf,
    /// Made by us, removed with all in it: images, mount points of devices, what daemons write.
    pub data: PathBuf,
    /// The first process of the servers' namespaces.
    pub keeper: Option<Process>,
    /// The process of the FUSE mount.
    pub client: Option<Process>,
    pub images: Vec<PathBuf>,
    pub servers: Vec<Server>,
}

/// A brick, a chunk server or an OSD, with a device for itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Server {
    /// As the file system names it.
    pub name: String,
    pub address: String,
    pub device: PathBuf,
    /// major:minor
    pub number: String,
    /// Where its data lies, in the servers' mount namespace.
    pub path: PathBuf,
    /// Its process: the program's name, and an argument that no other one has.
    pub mark: [String; 2],
    /// Bytes a second: read, write; 0 is without limit.
    pub rates: [u64; 2],
}

/// The directory of a file system.
pub fn dir(name: &str) -> PathBuf {
    Path::new(ROOT).join(name)
}

/// Where it is mounted.
pub fn mount(name: &str) -> PathBuf {
    dir(name).join("mnt")
}

/// What its processes say.
pub fn log(name: &str) -> PathBuf {
    dir(name).join("log")
}

/// Takes a name for a new file system.
///
/// # Errors
/// Not root, a name that is no plain word, one that is taken.
pub fn create(name: &str) -> anyhow::Result<()> {
    check_name(name)?;
    ensure!(rustix::process::geteuid().is_root(), "file systems are mounted: this must be run as root");
    fs::create_dir_all(ROOT).with_context(|| format!("create {ROOT}"))?;
    match fs::create_dir(dir(name)) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {
            bail!("{name:?} is up, or was left by a crash: `lab pfs down {name}` removes it")
        }
        made => made.with_context(|| format!("create {}", dir(name).display()))?,
    }
    fs::create_dir(mount(name)).with_context(|| format!("create {}", mount(name).display()))
}

impl PfsState {
    pub fn save(&self) -> anyhow::Result<()> {
        let (path, new) = (dir(&self.name).join("state.json"), dir(&self.name).join("state.new"));
        fs::write(&new, serde_json::to_vec(self)?).with_context(|| format!("write {}", new.display()))?;
        fs::rename(&new, &path).with_context(|| format!("rename to {}", path.display()))
    }

    pub fn load(name: &str) -> anyhow::Result<PfsState> {
        check_name(name)?;
        let path = dir(name).join("state.json");
        let text = fs::read(&path).with_context(|| {
            format!("no file system {name:?} (`lab pfs list` shows them): read {}", path.display())
        })?;
        serde_json::from_slice(&text).with_context(|| format!("read {}", path.display()))
    }

    /// The network namespace of servers and client.
    pub fn namespace(&self) -> String {
        namespace(&self.name)
    }

    /// What daemons write.
    pub fn work(&self) -> PathBuf {
        self.data.join("work")
    }

    /// Whether the servers' first process and the client run.
    pub fn runs(&self) -> bool {
        [&self.keeper, &self.client].iter().all(|process| process.as_ref().is_some_and(Process::runs))
    }

    /// The process of a server as it runs now.
    ///
    /// # Errors
    /// If there is none.
    pub fn process_of(&self, server: &Server) -> anyhow::Result<Process> {
        let [program, argument] = &server.mark;
        for pid in netns::processes(&self.namespace()) {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut words = line.split(|byte| *byte == 0);
            let is = words.next().and_then(|first| first.rsplit(|byte| *byte == b'/').next());
            if is == Some(program.as_bytes()) && words.any(|word| word == argument.as_bytes()) {
                return Process::of(pid);
            }
        }
        bail!(
            "no process {program} with argument {argument} runs: has it crashed? See {}",
            self.work().display()
        )
    }
}

fn namespace(name: &str) -> String {
    format!("haul-lab-pfs-{name}")
}

/// The names of all file systems, also of those that a crash left.
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

/// Removes a file system and everything that belongs to it.
///
/// # Errors
/// With what could not be removed; it stays written down, and a later call goes on from there.
pub fn remove(name: &str) -> anyhow::Result<()> {
    check_name(name)?;
    // One that crashed before it wrote anything down has nothing but its directories.
    let state = match dir(name).join("state.json").exists() {
        true => Some(PfsState::load(name)?),
        false => None,
    };
    for mount in mounts_below(&dir(name))? {
        // Lazily: a user that holds a file open keeps the mount for itself, and nobody else sees it.
        unmount(&mount, UnmountFlags::DETACH).with_context(|| format!("unmount {}", mount.display()))?;
    }
    if let Some(state) = &state {
        remove_parts(state)?;
    }
    remove_if_there(fs::remove_dir(mount(name)), &mount(name))?;
    remove_if_there(fs::remove_dir_all(dir(name)), &dir(name))
}

fn remove_parts(state: &PfsState) -> anyhow::Result<()> {
    if let Some(client) = &state.client {
        client.end()?;
    }
    // Before the servers, so that none of them waits for a slow device instead of ending.
    let keeper = state.keeper.as_ref().filter(|keeper| keeper.runs()).map(|keeper| keeper.pid);
    for (server, image) in state.servers.iter().zip(&state.images) {
        // Else its number may be someone else's by now.
        if devices::attached(image)? {
            devices::throttle(&server.number, [0, 0], keeper)?;
            devices::limit_dirty(&server.number, None)?;
        }
    }
    if let Some(keeper) = &state.keeper {
        keeper.kill()?;
    }
    for image in &state.images {
        detach(image)?;
        remove_if_there(fs::remove_file(image), image)?;
    }
    remove_if_there(fs::remove_dir_all(&state.data), &state.data)?;
    let namespace = state.namespace();
    if netns::exists(&namespace) {
        let left = netns::processes(&namespace);
        if !left.is_empty() {
            eprintln!("lab: these processes still hold the network namespace of {}: {left:?}", state.name);
        }
    }
    netns::remove(&namespace)
}

/// Detaches the device on an image, and waits until the kernel has: what was mounted for the servers it
/// unmounts in its own time.
fn detach(image: &Path) -> anyhow::Result<()> {
    let until = Instant::now() + DETACH_WAIT;
    while devices::attached(image)? {
        // The kernel may let go of it between looking and detaching, which then fails; the next look shows
        // that.
        let tried = devices::detach(image);
        if Instant::now() >= until {
            return tried.and_then(|()| bail!("the loop device on {} is still used", image.display()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
