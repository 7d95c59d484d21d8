//! The first process of the servers' namespaces: it starts them, collects what ends, and takes them all along
//! when it is killed.
//!
//! In: a [`PfsState`] as the plan. Out: servers that answer, in namespaces of their own (network, mounts,
//! processes), so that several file systems with the same fixed paths and ports stand side by side and
//! nothing of the machine is touched.
//! Left out: an orderly end. Nothing that the servers hold is to be kept, so they are killed.

use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, bail};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{WaitOptions, wait};

use super::kind;
use super::state::{self, PfsState};
use crate::pid::Process;

/// Starts the keeper of a file system, and waits until its servers are up.
///
/// # Errors
/// With the servers' own words; what was started is written down.
pub fn start(state: &mut PfsState) -> anyhow::Result<()> {
    let log = fs::File::create(state::log(&state.name)).context("create the log")?;
    let mut child = Command::new("setsid")
        .args(["nsenter", &format!("--net=/run/netns/{}", state.namespace()), "--"])
        .args(["unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child=KILL", "--"])
        .arg(std::env::current_exe().context("find the own program")?)
        .args(["pfs", "keep"])
        .env("PATH", kind::path())
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .context("run setsid, nsenter and unshare (package util-linux)")?;
    let mut output = BufReader::new(child.stdout.take().expect("stdout is piped"));
    let begun = plan(state, &mut child, &mut output);
    if begun.is_err() {
        // It has heard nothing yet, or has said why it ends.
        drop(child.stdin.take());
    }
    begun
}

/// Writes the keeper down before it gets anything to do; if we die in between, it hears nothing and ends.
fn plan(state: &mut PfsState, child: &mut Child, output: &mut impl BufRead) -> anyhow::Result<()> {
    let mut said = String::new();
    output.read_line(&mut said).context("hear the keeper")?;
    let Ok(pid) = said.trim().parse() else {
        bail!("the keeper did not start: {}", read_log(&state.name));
    };
    state.keeper = Some(Process::of(pid)?);
    state.save()?;
    let mut input = child.stdin.take().expect("stdin is piped");
    serde_json::to_writer(&mut input, state).context("tell the keeper what to do")?;
    drop(input);
    said.clear();
    output.read_line(&mut said).context("hear the keeper")?;
    match serde_json::from_str::<Result<(), String>>(&said) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => bail!("{error}"),
        Err(_) => bail!("the keeper ended unasked: {}", read_log(&state.name)),
    }
}

fn read_log(name: &str) -> String {
    fs::read_to_string(state::log(name)).unwrap_or_default().trim().to_owned()
}

/// The keeper itself: what [`start`] started. Returns only if there is nothing to keep.
pub fn keep() -> anyhow::Result<()> {
    // /proc is still that of the machine, and so are its ids.
    let pid = fs::read_link("/proc/self").context("read /proc/self")?;
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{}", pid.display()).and_then(|()| stdout.flush()).context("tell the own id")?;
    let state: PfsState = serde_json::from_reader(std::io::stdin()).context("hear what to do")?;
    let begun = begin(&state);
    let answer: Result<(), String> = begun.as_ref().map(|_| ()).map_err(|error| format!("{error:#}"));
    writeln!(stdout, "{}", serde_json::to_string(&answer)?).context("tell what has come of it")?;
    begun?;
    let null = fs::File::options().write(true).open("/dev/null").context("open /dev/null")?;
    rustix::stdio::dup2_stdout(&null).context("let go of standard output")?;
    loop {
        match wait(WaitOptions::empty()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            // No server is left; whoever takes the rest down finds us by our id.
            Err(_) => std::thread::park(),
        }
    }
}

fn begin(state: &PfsState) -> anyhow::Result<()> {
    isolate(&state.data)?;
    if let Some(file_system) = state.kind.file_system() {
        for (at, server) in state.servers.iter().enumerate() {
            let place = state.data.join(at.to_string());
            mount(&server.device, &place, file_system, MountFlags::NOATIME, None)
                .with_context(|| format!("mount {} on {}", server.device.display(), place.display()))?;
        }
    }
    kind::said("ip", &["addr", "add", &format!("{}/32", kind::ADDRESS), "dev", "lo"])?;
    for server in &state.servers {
        kind::said("ip", &["addr", "add", &format!("{}/32", server.address), "dev", "lo"])?;
    }
    state.kind.start(state)
}

/// Makes our mounts our own: a process list of this namespace, an empty /run, and none of what others have
/// mounted and will want to remove. Where `data` lies on is left.
fn isolate(data: &Path) -> anyhow::Result<()> {
    let table = fs::read_to_string("/proc/self/mountinfo").context("read /proc/self/mountinfo")?;
    for line in table.lines().rev() {
        let Some((place, what)) = line.split_once(" - ") else { continue };
        let Some(place) = place.split(' ').nth(4) else { continue };
        let (kind, source) = what.split_once(' ').unwrap_or((what, ""));
        // A copy of such a mount would keep its device, its server or its namespace from going away.
        let held = source.starts_with("/dev/loop") || kind.starts_with("fuse") || place.starts_with("/run/");
        if held && !data.starts_with(place) {
            // It may be gone already.
            let _ = unmount(place, UnmountFlags::DETACH);
        }
    }
    mount("proc", "/proc", "proc", MountFlags::empty(), None).context("mount /proc")?;
    mount("tmpfs", "/run", "tmpfs", MountFlags::empty(), Some(c"mode=755")).context("mount /run")
}
