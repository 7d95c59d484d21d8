//! Processes of one test, found by a mark in their environment, so that no other test's are ever touched.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// The variable that marks each process of a run; its value is unique to the run's near or far end.
pub const MARK: &str = "HAUL_TEST_MARK";

/// Longest time that a process which must end may take.
const GONE_WITHIN: Duration = Duration::from_secs(60);

/// How often a condition is looked at, and one that takes long to look at.
const LOOK_EVERY: Duration = Duration::from_millis(1);
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_millis(20);

/// The processes that carry `MARK=mark`, without shells, tracers and ssh: what is left is haul.
pub fn marked(mark: &str) -> Vec<Pid> {
    of_mark(mark, |name| {
        !matches!(name, "sh" | "bash" | "dash" | "env" | "ssh" | "strace" | "nsenter" | "setpriv" | "unshare")
    })
}

/// The ssh clients that carry `MARK=mark`, the oldest first.
pub fn marked_ssh(mark: &str) -> Vec<Pid> {
    of_mark(mark, |name| name == "ssh")
}

fn of_mark(mark: &str, wanted: impl Fn(&str) -> bool) -> Vec<Pid> {
    let entry = format!("{MARK}={mark}").into_bytes();
    let Ok(dir) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = dir.filter_map(|process| process.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let mut found: Vec<Pid> = pids
        .filter(|pid| {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
            let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
            environment.split(|byte| *byte == 0).any(|variable| variable == entry) && wanted(&name)
        })
        .filter_map(Pid::from_raw)
        .collect();
    found.sort_by_key(|pid| (began(*pid), pid.as_raw_nonzero()));
    found
}

/// The process `top` and all that it and its children have started, for those that rename themselves and with
/// that lose their environment.
pub fn descendants(top: u32) -> Vec<Pid> {
    let numbers = std::fs::read_dir("/proc").into_iter().flatten();
    let pids = numbers.filter_map(|process| process.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let all: Vec<Pid> = pids.filter_map(Pid::from_raw).collect();
    let mut found: Vec<Pid> = all.iter().copied().filter(|pid| number(*pid) == top).collect();
    let mut seen = 0;
    while seen < found.len() {
        let parent = u64::from(number(found[seen]));
        found.extend(all.iter().filter(|pid| field(**pid, 4) == Some(parent)));
        seen += 1;
    }
    found
}

/// Those of these that have a file open whose path holds `part`.
pub fn holding(pids: &[Pid], part: &str) -> Vec<Pid> {
    let holds = |pid: &Pid| {
        let open =
            std::fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())).into_iter().flatten().flatten();
        open.filter_map(|fd| std::fs::read_link(fd.path()).ok())
            .any(|path| path.to_string_lossy().contains(part))
    };
    pids.iter().copied().filter(holds).collect()
}

fn number(pid: Pid) -> u32 {
    pid.as_raw_nonzero().get().unsigned_abs()
}

/// When a process began, in ticks since the machine did. Its number says nothing about that: numbers begin
/// again at 1.
fn began(pid: Pid) -> Option<u64> {
    field(pid, 22)
}

/// A field of `man proc_pid_stat`, from the third on.
fn field(pid: Pid, index: usize) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The name, field 2, may hold anything, also spaces and parentheses.
    text.rsplit_once(')')?.1.split_whitespace().nth(index - 3)?.parse().ok()
}

/// Sends a signal to each; one that has ended meanwhile is none of our business.
pub fn signal_all(pids: &[Pid], signal: Signal) {
    for pid in pids {
        let _ = kill_process(*pid, signal);
    }
}

/// Bytes that these processes have written by `write` and its kin (not by `send`) since they began: what they
/// asked for, or what is to reach storage, for writes through a ring are counted only there.
pub fn written(pids: &[Pid]) -> u64 {
    pids.iter().filter_map(|pid| written_by(*pid)).sum()
}

fn written_by(pid: Pid) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{}/io", pid.as_raw_nonzero())).ok()?;
    let count = |what: &str| text.lines().find_map(|line| line.strip_prefix(what)?.parse::<u64>().ok());
    Some(count("wchar: ")?.max(count("write_bytes: ").unwrap_or(0)))
}

/// The numbers of `fsync` and `fdatasync`.
const SYNCS: [&str; 2] = if cfg!(target_arch = "x86_64") { ["74", "75"] } else { ["82", "83"] };

/// The number of `syncfs`.
const WHOLE_SYNC: &str = if cfg!(target_arch = "x86_64") { "306" } else { "267" };

/// Threads of these processes that are in a sync of a file now.
pub fn in_syncs(pids: &[Pid]) -> usize {
    in_calls(pids, &SYNCS)
}

/// Threads of these processes that are in a sync of a file system now.
pub fn in_whole_syncs(pids: &[Pid]) -> usize {
    in_calls(pids, &[WHOLE_SYNC])
}

fn in_calls(pids: &[Pid], numbers: &[&str]) -> usize {
    let threads = |pid: &Pid| {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).ok()?;
        let calls = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("syscall")).ok());
        Some(
            calls
                .filter(|call| call.split(' ').next().is_some_and(|number| numbers.contains(&number)))
                .count(),
        )
    };
    pids.iter().filter_map(threads).sum()
}

/// Waits until no process carries the mark.
///
/// # Panics
/// If one is still there after a minute: nothing may outlive the two ends.
pub fn wait_gone(mark: &str) {
    let ended = wait_until(GONE_WITHIN, || marked(mark).is_empty());
    let left = marked(mark);
    let lines: Vec<PathBuf> = left
        .iter()
        .filter_map(|pid| std::fs::read_link(format!("/proc/{}/exe", pid.as_raw_nonzero())).ok())
        .collect();
    assert!(ended, "processes outlive their run: {left:?} {lines:?}");
}

/// Looks again and again until `done`, at most `within`; whether it came true.
pub fn wait_until(within: Duration, mut done: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + within;
    loop {
        let begun = Instant::now();
        if done() {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
        // A look at all processes takes longer, and others want the processor, too.
        std::thread::sleep((begun.elapsed() * 2).clamp(LOOK_EVERY, LOOK_AT_LEAST_EVERY));
    }
}
