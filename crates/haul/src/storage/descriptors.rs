//! Who may hold how many descriptors, from the limit of this process.
//!
//! Invariant: the shares together stay below the limit, also where both ends run in one process, so that no
//! entry fails for want of a descriptor. The walk holds one per level besides, out of its own share.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What haul asks of the system at most: some systems allow billions, and tables grow with it.
const NOFILE_MAX: u64 = 65_536;
/// Descriptors that are left to streams, logs, libraries and files that are open for a moment.
const RESERVED: u64 = 128;

/// Descriptors of each kind, at least 8 each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Files being written, whose epoch is not over.
    pub sink_files: usize,
    /// Second descriptors of such files, for direct I/O.
    pub sink_direct: usize,
    pub sink_dirs: usize,
    pub source_files: usize,
    pub source_dirs: usize,
}

/// The shares of this process. More than a few thousand open files buy nothing.
pub fn budget() -> Budget {
    share(getrlimit(Resource::Nofile).current.unwrap_or(NOFILE_MAX))
}

fn share(limit: u64) -> Budget {
    let free = limit.saturating_sub(RESERVED);
    let part = |divisor: u64, max: u64| (free / divisor).clamp(8, max) as usize;
    Budget {
        sink_files: (free / 16 * 7).clamp(8, 4096) as usize,
        sink_direct: part(16, 1024),
        sink_dirs: part(8, 256),
        source_files: part(8, 512),
        source_dirs: part(8, 256),
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

    /// Goal: the shares fit into the limit, with an eighth left to the walk.
    /// Method: limits from the smallest usual one up.
    #[test]
    fn shares_fit_the_limit() {
        for limit in [256, 600, 1024, 4096, 20_000, NOFILE_MAX] {
            let Budget { sink_files, sink_direct, sink_dirs, source_files, source_dirs } = share(limit);
            let taken = (sink_files + sink_direct + sink_dirs + source_files + source_dirs) as u64;
            assert!(taken + RESERVED + (limit - RESERVED) / 8 <= limit, "{limit}: {taken}");
        }
    }
}
