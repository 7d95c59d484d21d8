//! The ssh clients of a session's further channels, and how a child ends.

use std::process::{Child, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

/// How long the clients may take to end, all together, when their pipes are closed.
const END_WAIT: Duration = Duration::from_secs(2);

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
