//! What an owner file says, and whether the process lives that it speaks of.
//!
//! In: what the file says, and what this process is. Out: alive, dead, or not to be told from here.
//! What must hold: `Dead` is a proof. The process is gone, by its number and start time in a namespace that we see, or its
//! machine was booted since; such a process writes nothing any more.
//! Assumed: no two machines have both name and machine id in common.

use rustix::io::Errno;
use rustix::process::Pid;

use serde::{Deserialize, Serialize};

/// Longest host name in an owner file, characters.
const HOST_CHARS_MAX: usize = 64;

/// What an owner file says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerInfo {
    pub host: String,
    pub machine_id: String,
    pub boot: String,
    /// The process id means something only in this namespace.
    pub pid_ns: String,
    pub pid: i32,
    /// When the process started, in clock ticks since boot.
    pub pid_start: u64,
    pub epoch: u32,
    /// Inode of the directory in which this file was made: a copy of it elsewhere says nothing.
    #[serde(default)]
    pub dir_ino: u64,
    /// Counts up while the owner lives.
    pub beat: u64,
    /// When the job was taken, seconds since 1970.
    pub since: u64,
    /// The command, for people.
    pub what: String,
    /// The owner waits for a network that is down, and gives way to a run that is there.
    #[serde(default)]
    pub yields: bool,
    /// The owner ends: its near end is gone, or was stopped. It is waited for, for soon it is proven dead.
    #[serde(default)]
    pub ends: bool,
    /// It took the job from a run that was not proven dead, and the journal does not say so yet.
    #[serde(default)]
    pub follows_unproven: bool,
}

/// Whether an owner lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    Alive,
    /// And proven so: it can write nothing more.
    Dead,
    /// On another machine, or not to be seen from here: only its beat can tell.
    Unknown,
}

/// What can be said of an owner without watching it. Machine ids alone prove nothing: diskless nodes and
/// containers share an image, and with it the id.
pub(super) fn judge(info: &OwnerInfo, here: &OwnerInfo) -> Life {
    if info.boot.is_empty() || here.boot.is_empty() {
        return Life::Unknown;
    }
    if info.boot != here.boot {
        let same =
            !here.machine_id.is_empty() && info.machine_id == here.machine_id && info.host == here.host;
        return if same || haul_mutant::removed("boots-are-of-one-machine") {
            Life::Dead
        } else {
            Life::Unknown
        };
    }
    if (here.pid_ns.is_empty() || info.pid_ns != here.pid_ns)
        && !haul_mutant::removed("processes-are-of-one-namespace")
    {
        return Life::Unknown;
    }
    let Some(pid) = (info.pid > 0).then(|| Pid::from_raw(info.pid)).flatten() else { return Life::Unknown };
    if rustix::process::test_kill_process(pid) == Err(Errno::SRCH) {
        return Life::Dead;
    }
    match process_start(&info.pid.to_string()) {
        Some(start) if start == info.pid_start || haul_mutant::removed("process-numbers-return") => {
            Life::Alive
        }
        Some(_) => Life::Dead,
        // It exists, but /proc hides other users' processes.
        None => Life::Unknown,
    }
}

/// When a process started, clock ticks since boot; `Some(u64::MAX)` if it has ended and waits for its parent.
pub(super) fn process_start(pid: &str) -> Option<u64> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program stands in parentheses and may hold anything, also parentheses.
    let after = stat.iter().rposition(|b| *b == b')')?;
    let mut fields = std::str::from_utf8(&stat[after + 1..]).ok()?.split_ascii_whitespace();
    let state = fields.next()?;
    // Field 22; the state is field 3.
    let start = fields.nth(18)?.parse().ok()?;
    Some(if matches!(state, "Z" | "X" | "x") { u64::MAX } else { start })
}

fn read_line(path: &str) -> String {
    std::fs::read_to_string(path)
        .map(|text| text.trim().chars().take(HOST_CHARS_MAX).collect())
        .unwrap_or_default()
}

/// The id of this boot, which a journal without durability is bound to; zero if the system has none.
pub fn boot_id() -> [u8; 16] {
    let digits: String =
        read_line("/proc/sys/kernel/random/boot_id").chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).unwrap_or(0).to_be_bytes()
}

/// This process as an owner.
pub(super) fn here() -> OwnerInfo {
    let system = rustix::system::uname();
    let host: String = system.nodename().to_string_lossy().chars().take(HOST_CHARS_MAX).collect();
    let machine_id = Some(read_line("/etc/machine-id")).filter(|id| !id.is_empty()).unwrap_or(host.clone());
    let pid_ns = std::fs::read_link("/proc/self/ns/pid")
        .map(|link| link.to_string_lossy().chars().take(HOST_CHARS_MAX).collect())
        .unwrap_or_default();
    OwnerInfo {
        host,
        machine_id,
        boot: read_line("/proc/sys/kernel/random/boot_id"),
        pid_ns,
        pid: rustix::process::getpid().as_raw_nonzero().get(),
        pid_start: process_start("self").unwrap_or(0),
        ..OwnerInfo::default()
    }
}
