//! Who may hold how many descriptors, from the limit of this process.
//!
//! Invariant: the shares together stay below the limit, also where both ends run in one process, so that no
//! entry fails for want of a descriptor, however deep a tree is.
//! Threads and I/O threads beyond those that haul takes unasked (`--readers`, `--writers`, `--io-threads`)
//! are counted while a session has them ([`Claim`]), and there are never so many of them that nothing is left
//! for files.
//! Left out: threads that are added while a copy runs (`haul ctl`).

use std::sync::atomic::{AtomicU64, Ordering};

use haul_core::wire::STREAMS_MAX;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What haul asks of the system at most: some systems allow billions, and tables grow with it.
const NOFILE_MAX: u64 = 65_536;
/// Data streams, control, and what the shell's connection takes.
const STREAMS: u64 = STREAMS_MAX as u64 + 6;
/// Rings of both ends: a ring and its eventfd for each I/O thread that is started unasked, and one more end
/// that is torn down.
const RINGS: u64 = 40;
/// Files that threads of both ends open for a moment, one each or two.
const MOMENTARY: u64 = 40;
/// Journal, owner file, spill file, sockets that listen, logs, libraries.
const OTHERS: u64 = 26;
const RESERVED: u64 = STREAMS + RINGS + MOMENTARY + OTHERS;
/// Threads and I/O threads of an end that are in [`MOMENTARY`] and [`RINGS`].
pub const READERS_USUAL: u16 = 8;
pub const WRITERS_USUAL: u16 = 32;
pub const IO_THREADS_USUAL: u16 = 4;
/// Why there are fewer threads than were asked for.
pub const FEW_DESCRIPTORS: &str = "as many as the limit on open files allows";
/// What one more of either holds: a file and its directory, a ring and its eventfd.
const EACH: u64 = 2;

/// Descriptors that are claimed in this process.
static CLAIMED: AtomicU64 = AtomicU64::new(0);

/// Descriptors of threads and I/O threads that are more than usual, as long as this is held.
#[derive(Debug)]
pub struct Claim {
    taken: u64,
    short: bool,
}

impl Claim {
    /// For `asked` threads, of which `usual` are counted anyway, and `threads`. Says how many threads there
    /// may be: fewer where the limit of this process allows no more.
    pub fn new(asked: u16, usual: u16, io_threads: u16) -> (Claim, u16) {
        let mut granted = asked;
        let mut taken = 0;
        let claimed = CLAIMED.fetch_update(Ordering::AcqRel, Ordering::Acquire, |claimed| {
            (taken, granted) = grant(limit(), claimed, (asked, usual), io_threads);
            Some(claimed + taken)
        });
        debug_assert!(claimed.is_ok(), "the answer is never none");
        (Claim { taken, short: granted < asked }, granted)
    }

    /// There are fewer threads than were asked for.
    pub fn is_short(&self) -> bool {
        self.short
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        CLAIMED.fetch_sub(self.taken, Ordering::AcqRel);
    }
}

/// What such a claim takes, and how many threads it has.
fn grant(limit: u64, claimed: u64, (asked, usual): (u16, u16), io_threads: u16) -> (u64, u16) {
    if haul_mutant::removed("threads-are-counted") {
        return (0, asked);
    }
    let io_threads = EACH * u64::from(io_threads.saturating_sub(IO_THREADS_USUAL));
    // Half of what there is stays for files and directories.
    let room = (limit.saturating_sub(RESERVED) / 2).saturating_sub(claimed + io_threads) / EACH;
    let more = asked.saturating_sub(usual).min(u16::try_from(room).unwrap_or(u16::MAX));
    (io_threads + EACH * u64::from(more), asked.min(usual) + more)
}

fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(NOFILE_MAX)
}

/// Descriptors of each kind, at least 4 each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Files being written, whose epoch is not over.
    pub sink_files: usize,
    /// Second descriptors of such files, for direct I/O.
    pub sink_direct: usize,
    pub sink_dirs: usize,
    pub source_files: usize,
    pub source_dirs: usize,
    /// Directories on the walk's way down.
    pub walk_dirs: usize,
}

/// The shares of this process. More than a few thousand open files buy nothing.
pub fn budget() -> Budget {
    share(limit(), CLAIMED.load(Ordering::Acquire))
}

fn share(limit: u64, claimed: u64) -> Budget {
    let free = limit.saturating_sub(RESERVED + claimed);
    let part = |divisor: u64, max: u64| (free / divisor).clamp(4, max) as usize;
    Budget {
        sink_files: (free / 16 * 7).clamp(4, 4096) as usize,
        sink_direct: part(16, 1024),
        sink_dirs: part(8, 256),
        source_files: part(8, 512),
        source_dirs: part(8, 256),
        walk_dirs: part(8, 256),
    }
}

/// Raises the number of descriptors that this process may have to what it is allowed. Failing to is no
/// error: [`budget`] follows the limit as it is.
pub fn raise_nofile() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.unwrap_or(NOFILE_MAX).min(NOFILE_MAX);
    if limit.current.is_some_and(|current| current < wanted) {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the shares fit into the limit, beside what is reserved.
    /// Method: limits from the smallest usual one up.
    #[test]
    fn shares_fit_the_limit() {
        for limit in [256, 600, 1024, 4096, 20_000, NOFILE_MAX] {
            let Budget { sink_files, sink_direct, sink_dirs, source_files, source_dirs, walk_dirs } =
                share(limit, 0);
            let dirs = sink_dirs + source_dirs + walk_dirs;
            let taken = (sink_files + sink_direct + source_files + dirs) as u64;
            assert!(taken + RESERVED <= limit, "{limit}: {taken}");
        }
    }

    fn sum(budget: &Budget) -> u64 {
        let Budget { sink_files, sink_direct, sink_dirs, source_files, source_dirs, walk_dirs } = budget;
        (sink_files + sink_direct + sink_dirs + source_files + source_dirs + walk_dirs) as u64
    }

    /// Goal: threads and I/O threads of both ends, as many as can be asked for, fit into the limit with the
    /// shares of files; those that are usual are never fewer than asked, and where there is room all are.
    /// Method: numbers of each, with limits from one that leaves little.
    #[test]
    fn threads_beyond_the_usual_are_counted() {
        let numbers = [1, 4, 8, 9, 32, 33, 100, 256];
        for limit in [600, 1024, 4096, 20_000] {
            for (readers, writers) in numbers.iter().flat_map(|r| numbers.map(|w| (*r, w))) {
                for io_threads in [1, 4, 16, 64] {
                    let (first, reading) = grant(limit, 0, (readers, READERS_USUAL), io_threads);
                    let (second, writing) = grant(limit, first, (writers, WRITERS_USUAL), io_threads);
                    let more = |threads: u16, usual: u16| 2 * u64::from(threads.saturating_sub(usual));
                    let held = more(reading, READERS_USUAL)
                        + more(writing, WRITERS_USUAL)
                        + 2 * more(io_threads, IO_THREADS_USUAL);
                    let shares = sum(&share(limit, first + second));
                    assert!(held + shares + RESERVED <= limit, "{limit}: {held} and {shares}");
                    assert!(reading <= readers && reading >= readers.min(READERS_USUAL));
                    assert!(writing <= writers && writing >= writers.min(WRITERS_USUAL));
                    assert!(limit < 4096 || (reading, writing) == (readers, writers));
                }
            }
        }
    }

    /// Goal: what a session claimed is there again when it is over.
    #[test]
    fn claims_end_with_their_session() {
        let (limit, many) = (limit(), 200);
        let (claim, granted) = Claim::new(many, WRITERS_USUAL, 64);
        let with = CLAIMED.load(Ordering::Acquire);
        assert!(
            claim.taken > 0 && with >= claim.taken && granted <= many && (limit < 4096 || !claim.is_short())
        );
        let taken = claim.taken;
        drop(claim);
        // Other tests have no more than usual.
        assert_eq!(CLAIMED.load(Ordering::Acquire), with - taken);
    }
}
