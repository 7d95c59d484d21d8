//! Who may hold how many descriptors, from the limit of this process.
//!
//! Invariant: the shares together stay below the limit, also where both ends, or several copies, run in one
//! process, so that no entry fails for want of a descriptor, however deep a tree is. Each copy has a
//! [`Share`]; one for which too little is left does not begin. Threads and I/O threads beyond those that haul
//! takes unasked (`--readers`, `--writers`, `--io-threads`) are counted while a session has them ([`Claim`]),
//! and there are never so many of them that nothing is left for files.
//! Left out: threads that are added while a copy runs (`haul ctl`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

/// What the first copy of a process has at least, if there is so much: as much as a small limit leaves.
const FIRST_LEAST: u64 = 600;
/// Files and directories of a further copy, at least.
const FURTHER_LEAST: u64 = 64;

/// What the copies of this process have been promised.
#[derive(Debug, Default)]
struct Promised {
    copies: u64,
    descriptors: u64,
    /// What was open when there was no copy: the program's own.
    before: u64,
}

static PROMISED: Mutex<Promised> = Mutex::new(Promised { copies: 0, descriptors: 0, before: 0 });

fn promised() -> MutexGuard<'static, Promised> {
    // Plain numbers, whole at every panic that could happen under the lock.
    PROMISED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The descriptors of one copy, of both its ends where they run in this process, as long as this is held.
#[derive(Debug)]
pub struct Share {
    limit: u64,
    /// Of these, what threads that are more than usual hold.
    claimed: AtomicU64,
    promised: u64,
}

/// Too few descriptors are left for one more copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this process may have {limit} files open, of which {taken} are open or promised to copies that run; run fewer \
     copies at a time, or raise the limit (ulimit -n, LimitNOFILE=)"
)]
pub struct FewDescriptors {
    pub limit: u64,
    pub taken: u64,
}

/// See [`alone`].
static ALONE: AtomicBool = AtomicBool::new(false);

/// This process has no more than one copy at a time, which may have all that there is.
pub fn alone() {
    ALONE.store(true, Ordering::Release);
}

impl Share {
    /// For one more copy: half of what there is for the first one, a quarter of the rest for each further
    /// one, so that none ever fails for what another one holds; all of it for the only one of a process that
    /// is [`alone`].
    ///
    /// # Errors
    /// Other copies run, and have left too few.
    pub fn take() -> Result<Arc<Share>, FewDescriptors> {
        let mut promised = promised();
        if promised.copies == 0 {
            promised.before = open_now();
        }
        let taken = promised.before + promised.descriptors;
        let own = match promised.copies == 0 && ALONE.load(Ordering::Acquire) {
            true => limit().saturating_sub(taken).max(1),
            false => part(limit(), taken, promised.copies == 0)?,
        };
        promised.copies += 1;
        promised.descriptors += own;
        Ok(Arc::new(Share { limit: own, claimed: AtomicU64::new(0), promised: own }))
    }

    /// All that this process may have: for one that has nothing else to do.
    pub fn whole() -> Arc<Share> {
        Arc::new(Share { limit: limit(), claimed: AtomicU64::new(0), promised: 0 })
    }

    /// What there is of each kind, beside the threads that were claimed.
    pub fn budget(&self) -> Budget {
        share(self.limit, self.claimed.load(Ordering::Acquire))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.promised > 0 {
            let mut promised = promised();
            promised.copies -= 1;
            promised.descriptors -= self.promised;
        }
    }
}

/// What a copy gets of a process that may have `limit` descriptors, of which `taken` are.
fn part(limit: u64, taken: u64, first: bool) -> Result<u64, FewDescriptors> {
    let free = limit.saturating_sub(taken);
    let files = free.saturating_sub(RESERVED);
    match first {
        true => Ok((RESERVED + files / 2).max(FIRST_LEAST).min(free.max(1))),
        false if files < FURTHER_LEAST && !haul_mutant::removed("copies-share-descriptors") => {
            Err(FewDescriptors { limit, taken })
        }
        false => Ok(RESERVED + (files / 4).max(FURTHER_LEAST)),
    }
}

/// Descriptors that are open; 0 where the system does not tell.
fn open_now() -> u64 {
    // One of them is the directory itself.
    std::fs::read_dir("/proc/self/fd").map_or(0, |entries| (entries.count() as u64).saturating_sub(1))
}

/// Descriptors of threads and I/O threads that are more than usual, as long as this is held.
#[derive(Debug)]
pub struct Claim {
    share: Arc<Share>,
    taken: u64,
    short: bool,
}

impl Claim {
    /// For `asked` threads, of which `usual` are counted anyway, and `threads`. Says how many threads there
    /// may be: fewer where the copy's share allows no more.
    pub fn new(share: &Arc<Share>, asked: u16, usual: u16, io_threads: u16) -> (Claim, u16) {
        let mut granted = asked;
        let mut taken = 0;
        let claimed = share.claimed.fetch_update(Ordering::AcqRel, Ordering::Acquire, |claimed| {
            (taken, granted) = grant(share.limit, claimed, (asked, usual), io_threads);
            Some(claimed + taken)
        });
        debug_assert!(claimed.is_ok(), "the answer is never none");
        (Claim { share: share.clone(), taken, short: granted < asked }, granted)
    }

    /// There are fewer threads than were asked for.
    pub fn is_short(&self) -> bool {
        self.short
    }

    /// What files and directories of this copy may hold.
    pub fn budget(&self) -> Budget {
        self.share.budget()
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.share.claimed.fetch_sub(self.taken, Ordering::AcqRel);
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

/// What is left to who belongs to no copy.
pub fn budget() -> Budget {
    let promised = promised();
    share(limit(), promised.before + promised.descriptors)
}

/// More than a few thousand open files buy nothing.
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
        let (share, many) = (Share::whole(), 200);
        let before = share.budget();
        let (claim, granted) = Claim::new(&share, many, WRITERS_USUAL, 64);
        assert!(claim.taken > 0 && granted <= many && (share.limit < 4096 || !claim.is_short()));
        assert_eq!(share.claimed.load(Ordering::Acquire), claim.taken);
        drop(claim);
        assert_eq!((share.claimed.load(Ordering::Acquire), share.budget()), (0, before));
    }

    /// Goal: copies of one process stay below its limit together, whatever the program itself has open; the
    /// first is never refused, and a further one only where there is not enough.
    #[test]
    fn copies_share_the_limit() {
        for limit in [64, 256, 600, 1024, 4096, 20_000, NOFILE_MAX] {
            for own in [3, 100, 900] {
                let (mut taken, mut copies) = (own, 0);
                while let Ok(more) = part(limit, taken, copies == 0) {
                    let fits = sum(&share(more, 0)) + RESERVED;
                    assert!(more >= fits || copies == 0, "{limit}: {copies} copies, {more} for {fits}");
                    taken += more;
                    copies += 1;
                    assert!(taken <= limit.max(own + 1), "{limit}: {taken} of {copies} copies");
                }
                let want = match limit {
                    4096 => 5,
                    20_000 => 10,
                    NOFILE_MAX => 15,
                    _ => 1,
                };
                assert!(copies >= want, "{limit}, {own} open: {copies} copies");
            }
        }
    }

    /// Goal: what a copy had is there again when it is over.
    #[test]
    fn shares_end_with_their_copy() {
        let first = Share::take().expect("one copy");
        let before = promised().descriptors;
        let again: Vec<_> = std::iter::from_fn(|| Share::take().ok()).take(3).collect();
        drop(again);
        // Other tests of this process take none.
        assert_eq!(promised().descriptors, before);
        drop(first);
    }
}
