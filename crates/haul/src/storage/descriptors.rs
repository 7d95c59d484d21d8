//! Who may hold how many descriptors, from the limit of this process.
//!
//! Invariant: the shares together stay below the limit, also where both ends run in one process, so that no
//! entry fails for want of a descriptor, however deep a tree is.
//! Left out: more threads than haul takes by itself (`--readers`, `--writers`, `--threads`), each of which can hold two.

use haul_core::wire::STREAMS_MAX;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What haul asks of the system at most: some systems allow billions, and tables grow with it.
const NOFILE_MAX: u64 = 65_536;
/// Data streams, control, and what the shell's connection takes.
const STREAMS: u64 = STREAMS_MAX as u64 + 6;
/// Rings of both ends: a ring and its eventfd for each lane that is started unasked, and one more end that is torn down.
const RINGS: u64 = 40;
/// Files that threads of both ends open for a moment, one each or two.
const MOMENTARY: u64 = 40;
/// Journal, owner file, spill file, sockets that listen, logs, libraries.
const OTHERS: u64 = 26;
const RESERVED: u64 = STREAMS + RINGS + MOMENTARY + OTHERS;

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
    share(getrlimit(Resource::Nofile).current.unwrap_or(NOFILE_MAX))
}

fn share(limit: u64) -> Budget {
    let free = limit.saturating_sub(RESERVED);
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
                share(limit);
            let dirs = sink_dirs + source_dirs + walk_dirs;
            let taken = (sink_files + sink_direct + source_files + dirs) as u64;
            assert!(taken + RESERVED <= limit, "{limit}: {taken}");
        }
    }
}
