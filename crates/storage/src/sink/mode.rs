//! Direct or buffered: what a file system allows, and what the live transfer says.
//!
//! In: each write and sync as it begins and ends. Out: the mode for the next file (or the rest of one), and
//! in words why. The decision itself is core's `Chooser`; here are its clock and its windows.
//!
//! The clock of a mode runs while at least one write or sync of it is in flight, so waiting for the network
//! does not count against storage, and parallel writes do not count twice. A window ends at a commit, behind
//! its syncs: what the cache took in counts only together with the time to get it onto media.
//!
//! Without durability no sync is made for the comparison either. What is compared then is how fast data is
//! taken, which is what such a copy is about; a sync would make it wait for what its user declined. For the
//! same reason a file keeps the mode in which it began (a change needs a sync).

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use haul_core::io::choose::{Chooser, Window};
use haul_core::io::{IoMode, IoPolicy};
use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;

use super::lock;

/// What direct I/O asks of memory and offsets where the kernel does not tell (before Linux 6.1): a page,
/// which is a multiple of every logical block in use.
const ALIGN_UNTOLD: u32 = 4096;

/// What direct I/O on a file asks for, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Alignment {
    memory: u32,
    offset: u32,
}

/// A write as far as alignment is concerned.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Where the payload begins in memory.
    pub(super) address: usize,
    /// Bytes from there that belong to the write's buffer.
    pub(super) room: usize,
    pub(super) offset: u64,
    pub(super) len: usize,
    /// Of the file.
    pub(super) size: u64,
    pub(super) request_size: u32,
}

impl Alignment {
    /// What the kernel says of the file; `None`: no direct I/O here.
    pub(super) fn probe(fd: impl AsFd) -> Option<Alignment> {
        let asked = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
        let untold = Alignment { memory: ALIGN_UNTOLD, offset: ALIGN_UNTOLD };
        match asked {
            Ok(stat) if stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0 => {
                Alignment::told(stat.stx_dio_mem_align, stat.stx_dio_offset_align)
            }
            // Whether it works is seen when it is tried.
            _ => Some(untold),
        }
    }

    /// As the kernel told it; zero stands for "not supported".
    fn told(memory: u32, offset: u32) -> Option<Alignment> {
        let good = memory.is_power_of_two() && offset.is_power_of_two();
        good.then_some(Alignment { memory, offset })
    }

    /// Bytes to write beyond the payload so that this write can be direct; `None`: it cannot.
    pub(super) fn pad(&self, shape: &Shape) -> Option<usize> {
        let offset = u64::from(self.offset);
        // Requests are cut at multiples of their size, so they are aligned if it is.
        let fits = shape.address.is_multiple_of(self.memory as usize)
            && shape.offset.is_multiple_of(offset)
            && shape.request_size.is_multiple_of(self.offset.max(self.memory));
        let pad = shape.len.next_multiple_of(self.offset as usize) - shape.len;
        // In the middle of a file a pad would overwrite what follows.
        let tail = shape.offset + shape.len as u64 == shape.size;
        (fits && (pad == 0 || tail) && shape.len + pad <= shape.room).then_some(pad)
    }
}

/// The choice of a session.
pub(super) struct Choice {
    policy: IoPolicy,
    durable: bool,
    state: Mutex<ModesState>,
    /// Descriptors for direct I/O there may be; files that find none left are written through the cache.
    direct_files_max: usize,
    /// One more than there are.
    direct_files: Arc<()>,
}

struct ModesState {
    chooser: Chooser,
    /// In the order of [`IoMode::ALL`].
    clocks: [Clock; 2],
    /// Direct I/O was refused.
    refused: bool,
}

/// The right to one descriptor for direct I/O.
pub(super) struct DirectSlot {
    _counted: Arc<()>,
}

/// Time in which something was in flight, and what was written in it.
#[derive(Default)]
struct Clock {
    in_flight: u32,
    since: Option<Instant>,
    busy: Duration,
    bytes: u64,
}

impl Clock {
    fn begin(&mut self, now: Instant) {
        if self.in_flight == 0 {
            self.since = Some(now);
        }
        self.in_flight += 1;
    }
    fn end(&mut self, now: Instant, bytes: u64) {
        self.bytes += bytes;
        self.in_flight -= 1;
        if self.in_flight == 0 {
            self.settle(now);
            self.since = None;
        }
    }
    fn settle(&mut self, now: Instant) {
        if let Some(since) = self.since {
            self.busy += now.saturating_duration_since(since);
            self.since = Some(now);
        }
    }
    /// What was counted since the last time.
    fn take(&mut self, now: Instant) -> (u64, Duration) {
        self.settle(now);
        (std::mem::take(&mut self.bytes), std::mem::take(&mut self.busy))
    }
}

impl Choice {
    /// A choice with so many descriptors for direct I/O.
    pub(super) fn new(policy: IoPolicy, durable: bool, direct_files_max: usize) -> Choice {
        // Buffered to begin with: it takes any length and any alignment.
        let chooser = Chooser::new(policy, IoMode::Buffered);
        let state = ModesState { chooser, clocks: Default::default(), refused: false };
        Choice { policy, durable, state: Mutex::new(state), direct_files_max, direct_files: Arc::new(()) }
    }

    /// The mode for what begins now.
    pub(super) fn mode(&self) -> IoMode {
        lock(&self.state).chooser.mode()
    }

    /// The mode for the next write of a file that is written in `current`.
    pub(super) fn mode_under_way(&self, current: IoMode) -> IoMode {
        if self.durable { self.mode() } else { current }
    }

    /// Whether direct I/O can come up at all.
    pub(super) fn may_be_direct(&self) -> bool {
        self.policy != IoPolicy::Buffered && !lock(&self.state).refused
    }

    /// A descriptor for direct I/O may be opened, if there are not enough of them.
    pub(super) fn direct_slot(&self) -> Option<DirectSlot> {
        // Under the lock, so that two do not take the last one.
        let _state = lock(&self.state);
        let free = Arc::strong_count(&self.direct_files) <= self.direct_files_max;
        free.then(|| DirectSlot { _counted: self.direct_files.clone() })
    }

    /// A write or sync begins.
    pub(super) fn begin(&self, mode: IoMode) {
        lock(&self.state).clocks[mode as usize].begin(Instant::now());
    }

    /// It ended, with so many payload bytes written.
    pub(super) fn end(&self, mode: IoMode, bytes: u64) {
        lock(&self.state).clocks[mode as usize].end(Instant::now(), bytes);
    }

    /// The syncs of a commit are over: a window ends.
    pub(super) fn on_commit(&self) {
        let mut state = lock(&self.state);
        let now = Instant::now();
        for mode in IoMode::ALL {
            let (bytes, busy) = state.clocks[mode as usize].take(now);
            if !busy.is_zero() {
                state.chooser.on_window(Window { mode, bytes, busy });
            }
        }
    }

    /// The files lie on several storage targets.
    pub(super) fn on_targets(&self) {
        lock(&self.state).chooser.on_targets();
    }

    /// The file system does not take direct I/O.
    pub(super) fn on_refused(&self, errno: Errno) {
        let mut state = lock(&self.state);
        if !state.refused {
            state.refused = true;
            state.chooser.on_refused(haul_base::errno::text(errno));
        }
    }

    /// For people: the mode, and why.
    pub(super) fn report(&self) -> String {
        lock(&self.state).chooser.choice().to_string()
    }
}

#[cfg(test)]
#[path = "mode_tests.rs"]
mod tests;
