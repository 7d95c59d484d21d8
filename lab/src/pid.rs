//! Processes that outlive the command that started them, so described that no other one gets their signals.
//!
//! In: a process id; later what was written down of it. Out: whether it still runs; its end.
//! Invariant: no process gets a signal but one whose id, start time and boot are those that were written
//! down.

use std::fs;
use std::os::fd::AsFd as _;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// How long a process may take to end when asked, before it is made to.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a killed process, and all that the kernel ends with it, may take to be gone.
const KILLED: Duration = Duration::from_secs(10);

/// A process, so described that another one with the same id is not mistaken for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    pub pid: i32,
    /// Clock ticks since boot.
    start: u64,
    boot: String,
}

impl Process {
    /// The running process with this id.
    ///
    /// # Errors
    /// If there is none.
    pub fn of(pid: u32) -> anyhow::Result<Process> {
        let path = format!("/proc/{pid}/stat");
        let stat = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        // The name may hold blanks and brackets; fields are counted behind its last bracket. The first is
        // field 3.
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
    ///
    /// # Errors
    /// If it may not be ended, or does not end.
    pub fn end(&self) -> anyhow::Result<()> {
        self.end_by(&[(Signal::TERM, PATIENCE), (Signal::KILL, KILLED)])
    }

    /// Ends it without asking, for nothing that it holds is to be kept; else as [`Process::end`].
    ///
    /// # Errors
    /// As [`Process::end`].
    pub fn kill(&self) -> anyhow::Result<()> {
        self.end_by(&[(Signal::KILL, KILLED)])
    }

    fn end_by(&self, steps: &[(Signal, Duration)]) -> anyhow::Result<()> {
        let Some(pid) = Pid::from_raw(self.pid) else { return Ok(()) };
        // The descriptor holds on to one process; that it is ours is looked at after it has been opened.
        let Ok(fd) = pidfd_open(pid, PidfdFlags::empty()) else { return Ok(()) };
        if !self.runs() {
            return Ok(());
        }
        for (signal, wait) in steps {
            match pidfd_send_signal(fd.as_fd(), *signal) {
                Ok(()) => {}
                Err(rustix::io::Errno::SRCH) => return Ok(()),
                Err(error) => return Err(error).with_context(|| format!("end process {}", self.pid)),
            }
            let timeout = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: 0 };
            if poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout))? > 0 {
                return Ok(());
            }
        }
        bail!("process {} does not end", self.pid)
    }

    /// Sends a signal that does not end it; one that does not run any more is an error.
    ///
    /// # Errors
    /// If it has ended, or may not be signalled.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = Pid::from_raw(self.pid).context("a process id")?;
        let fd =
            pidfd_open(pid, PidfdFlags::empty()).with_context(|| format!("find process {}", self.pid))?;
        if !self.runs() {
            bail!("process {} has ended", self.pid);
        }
        pidfd_send_signal(fd.as_fd(), signal).with_context(|| format!("signal process {}", self.pid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a process with the right id and the wrong start time gets no signal.
    /// Method: a child that sleeps, described with a start time one tick off; then described rightly.
    #[test]
    fn no_foreign_process_is_ended() {
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
}
