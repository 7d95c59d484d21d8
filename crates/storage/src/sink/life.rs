//! What an owner file says, and whether the process lives that it speaks of.
//!
//! In: what the file says, and what this process is. Out: alive, dead, or not to be told from here.
//! What must hold: `Dead` is a proof. The owner said so as its last word, or the process is gone, by its
//! number and start time in a namespace that we see, or its machine was booted since; such a process writes
//! nothing any more. So `/proc` is believed only if it is that of our own namespace (in a sandbox it can be
//! that of the namespace above), and a process whose other threads still are, in a system call that cannot be
//! broken off, is not gone.
//! Assumed: no two machines have name, machine id and the addresses of their network hardware in common. One
//! that shows no such hardware (in a container) cannot prove that it was booted since.

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
    /// The owner ended in good order before the job was complete: nothing of it is under way any more. What
    /// it was stays to be told.
    #[serde(default)]
    pub over: bool,
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
pub(crate) fn judge(info: &OwnerInfo, here: &OwnerInfo) -> Life {
    if info.over {
        return Life::Dead;
    }
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
    match process(&info.pid.to_string()) {
        Some(Process { start, ended, .. }) if differs(start, info) || ended == Ended::Wholly => Life::Dead,
        Some(Process { ended: Ended::No, .. }) => Life::Alive,
        // It was killed and can still write; or it exists, but /proc hides other users' processes.
        _ => Life::Unknown,
    }
}

/// It is another process of the same number.
fn differs(start: u64, info: &OwnerInfo) -> bool {
    start != info.pid_start && !haul_mutant::removed("process-numbers-return")
}

/// What `/proc` says of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    /// When it started, clock ticks since boot.
    pub(super) start: u64,
    pub(super) ended: Ended,
}

/// How far a process has come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    No,
    /// Its first thread has, but others have not.
    Partly,
    /// All of it, and it waits for its parent.
    Wholly,
}

/// What `/proc` says of the process `pid`, or `self`.
pub(super) fn process(pid: &str) -> Option<Process> {
    parse_process(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)
}

fn parse_process(stat: &[u8]) -> Option<Process> {
    // The name of the program stands in parentheses and may hold anything, also parentheses.
    let after = stat.iter().rposition(|b| *b == b')')?;
    let mut fields = std::str::from_utf8(&stat[after + 1..]).ok()?.split_ascii_whitespace();
    // Fields 3, 20 and 22: its state, the number of its threads (also of those of a dead first one), its
    // start.
    let state = fields.next()?;
    let threads: u64 = fields.nth(16)?.parse().ok()?;
    let start = fields.nth(1)?.parse().ok()?;
    let ended = match state {
        "Z" | "X" | "x" if threads > 1 && !haul_mutant::removed("threads-outlive-their-process") => {
            Ended::Partly
        }
        "Z" | "X" | "x" => Ended::Wholly,
        _ => Ended::No,
    };
    Some(Process { start, ended })
}

/// The name of our process namespace, where `proc` shows that one: a process of the same number in another
/// would be taken for one of ours. And of our time namespace, by whose clock the starts of processes are
/// told.
fn namespace_shown_by(proc: &std::path::Path, pid: u32) -> Option<String> {
    let me = std::fs::read_link(proc.join("self")).ok()?;
    if me.to_str() != Some(&pid.to_string()) && !haul_mutant::removed("proc-is-of-our-namespace") {
        return None;
    }
    let name = |kind| std::fs::read_link(proc.join("self/ns").join(kind));
    let mut shown = name("pid").ok()?.to_string_lossy().into_owned();
    // Kernels before 5.6 have one time.
    if let Ok(time) = name("time") {
        shown.push_str(&time.to_string_lossy());
    }
    Some(shown.chars().take(HOST_CHARS_MAX).collect())
}

fn read_line(path: &str) -> String {
    std::fs::read_to_string(path)
        .map(|text| text.trim().chars().take(HOST_CHARS_MAX).collect())
        .unwrap_or_default()
}

/// What tells this machine from another made of the same image: the addresses of its network hardware, as
/// sysfs shows it in `net`. `None`: there is none to be seen.
fn hardware(net: &std::path::Path) -> Option<String> {
    let mut addresses = Vec::new();
    for entry in std::fs::read_dir(net).ok()?.flatten() {
        // What is made by software has no device, and another address at the next boot.
        let address = std::fs::read_to_string(entry.path().join("address")).unwrap_or_default();
        let is_address = address.bytes().any(|byte| byte.is_ascii_hexdigit() && byte != b'0');
        if is_address
            && (entry.path().join("device").exists() || haul_mutant::removed("images-are-no-machines"))
        {
            addresses.push(address.trim().to_owned());
        }
    }
    addresses.sort();
    let hash = blake3::hash(addresses.join(" ").as_bytes());
    (!addresses.is_empty()).then(|| hash.to_hex()[..16].to_owned())
}

/// This process as an owner.
pub(crate) fn here() -> OwnerInfo {
    let system = rustix::system::uname();
    let host: String = system.nodename().to_string_lossy().chars().take(HOST_CHARS_MAX).collect();
    let image = Some(read_line("/etc/machine-id")).filter(|id| !id.is_empty()).unwrap_or(host.clone());
    let machine_id = match hardware("/sys/class/net".as_ref()) {
        Some(hardware) => format!("{image}-{hardware}"),
        None => String::new(),
    };
    let pid_ns = namespace_shown_by("/proc".as_ref(), std::process::id()).unwrap_or_default();
    OwnerInfo {
        host,
        machine_id,
        boot: read_line("/proc/sys/kernel/random/boot_id"),
        pid_ns,
        pid: rustix::process::getpid().as_raw_nonzero().get(),
        pid_start: process("self").map_or(0, |process| process.start),
        ..OwnerInfo::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a process is gone when all of its threads are; its name may hold anything.
    #[test]
    fn processes_end_with_their_last_thread() {
        let of = |state: &str, threads: u32| {
            let line =
                format!("7 (a) b) (c) {state} 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 12345 99 3\n");
            parse_process(line.as_bytes()).expect("a process")
        };
        let process = |ended| Process { start: 12345, ended };
        assert_eq!(of("S", 9), process(Ended::No));
        assert_eq!(of("D", 1), process(Ended::No));
        assert_eq!(of("Z", 1), process(Ended::Wholly));
        assert_eq!(of("X", 0), process(Ended::Wholly));
        assert_eq!(of("Z", 3), process(Ended::Partly));
        assert_eq!(parse_process(b"7 (a) Z 1"), None);
        assert_eq!(process_of_this(), Ended::No);
    }

    fn process_of_this() -> Ended {
        process("self").expect("of this").ended
    }

    /// Goal: a `/proc` of another namespace says nothing of ours.
    #[test]
    fn a_foreign_proc_names_no_namespace() {
        let me = std::process::id();
        assert!(namespace_shown_by("/proc".as_ref(), me).is_some());
        assert_eq!(namespace_shown_by("/proc".as_ref(), me + 1), None);
        assert_eq!(namespace_shown_by("/proc/self".as_ref(), me), None);
    }

    /// Goal: machines of one image are told apart by their hardware, and one that shows none is not known
    /// again.
    #[test]
    fn machines_of_one_image_differ() {
        let make = |cards: &[(&str, &str, bool)]| {
            let net = tempfile::tempdir().expect("tempdir");
            for (name, address, real) in cards {
                let card = net.path().join(name);
                std::fs::create_dir(&card).expect("mkdir");
                std::fs::write(card.join("address"), format!("{address}\n")).expect("write");
                if *real {
                    std::fs::create_dir(card.join("device")).expect("mkdir");
                }
            }
            hardware(net.path())
        };
        let (one, two) = (("eth0", "52:54:00:aa:00:01", true), ("eth1", "52:54:00:aa:00:02", true));
        let soft = ("veth0", "0a:58:00:00:00:01", false);
        let nothing = ("lo", "00:00:00:00:00:00", true);
        assert!(make(&[one]).is_some());
        assert_eq!(make(&[one, two]), make(&[two, soft, nothing, one]));
        assert_ne!(make(&[one]), make(&[two]));
        assert_eq!((make(&[soft, nothing]), make(&[])), (None, None));
        assert_eq!(hardware("/none".as_ref()), None);
    }
}
