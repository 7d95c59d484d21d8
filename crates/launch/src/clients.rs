//! The ssh of a session, the clients of its further channels, and how a child ends.

use std::process::{Child, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use haul_base::stop::Stop;
use rustix::process::{Pid, Signal, kill_process};

/// How long a process, or all clients together, may take to end when their pipes are closed.
pub(super) const END_WAIT: Duration = Duration::from_secs(2);
/// The same where somebody waits for a stop.
const STOP_WAIT: Duration = Duration::from_millis(200);
/// How long a process that was told to end may take to put its terminal right, and to end its own.
const TERM_WAIT: Duration = Duration::from_millis(500);

/// The ssh of a session. Dropped, it gets a moment to end by itself (its pipes are closed by then), is told
/// to end, and killed.
pub(super) struct Process {
    pub child: Child,
    /// Who may want it to end soon.
    pub stop: Stop,
}

impl Drop for Process {
    fn drop(&mut self) {
        let wait = if self.stop.is_asked() { STOP_WAIT } else { END_WAIT };
        if wait_child(&mut self.child, wait).is_some() {
            return;
        }
        // It has not been waited for, so the number is its own.
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        if wait_child(&mut self.child, TERM_WAIT).is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Clients of the channels. Dropped, they get a moment to end by themselves, all together; their pipes are
/// closed by then.
#[derive(Default)]
pub(super) struct Clients(pub(super) Vec<Child>);

impl Clients {
    pub(super) fn end(&mut self, limit: Duration) {
        let deadline = Instant::now() + limit;
        for child in &mut self.0 {
            if wait_child(child, deadline.saturating_duration_since(Instant::now())).is_none() {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.end(END_WAIT);
    }
}

/// Waits until `child` has ended, at most `limit`.
pub(super) fn wait_child(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(5)),
            _ => return None,
        }
    }
}
