//! How old a ctime must be before what is read of a file counts.
//!
//! In: the ctime that a `stat` showed, the file system's type, the clock from which this kernel takes the
//! times of files. Out: for how long reading has to wait.
//!
//! # Why
//!
//! A change is told by a later ctime, and ctime goes in steps: the *grain* of the file system. Two changes
//! within one step leave the same ctime. So a `stat` with a young ctime says nothing of a change that follows
//! in the same step, and bytes read in that step may be older than it. A change that begins a grain after the
//! `stat` gets another ctime. Therefore a read counts if it begins a grain after the `stat` returned, by the
//! monotonic clock of this host; whoever changed the file before, all reads then see that, and who changes it
//! later is seen by the look after the last read. Where ctime is already older than the grain by the clock
//! that gives the times, no step is shared any more, and nothing has to be waited for.
//!
//! # What it assumes
//!
//! - A file system of this kernel ([`Clocked::Here`]) takes ctime from the kernel's coarse clock, which steps
//!   at least every 10 ms (`CONFIG_HZ` is 100 or more; some take it finer). Five steps are waited for, for a
//!   tick can be late.
//! - A ctime of whole seconds comes from a file system that keeps no more (ext4 with inodes of 128 bytes, or
//!   what lies above one): two seconds. Any other ctime that has none of a second's parts merely waits
//!   longer.
//! - All others, and those whose clock is another host's ([`Clocked::Elsewhere`]), keep it no coarser than
//!   two seconds (FAT). Such a clock may be ahead or behind by [`SKEW_MAX`]: only a ctime that is older than
//!   that too is not waited for. However wrong the clock is, the wait itself is by the monotonic one.
//! - A clock that is set back while a copy runs can give a ctime twice; nothing here sees that.
//!
//! # Where mtimes go
//!
//! A destination may keep mtimes more coarsely than the source has them: a server in whole seconds. What is
//! changed after its copy, and within the same step of that, has another mtime here and the same one there,
//! and would be unchanged for the next run. So nothing of a file is read either before the step of its mtime
//! is over ([`settle_kept`]); by the same clocks of the source, for which time it is elsewhere says nothing.
//! An mtime that was set ahead of the clock is waited for no longer than one step.

use std::os::fd::AsFd;
use std::time::Duration;

use haul_core::entry::Timestamp;
use rustix::fs::fstatfs;
use rustix::time::{ClockId, clock_gettime};

/// How coarsely any file system keeps ctime.
pub const CTIME_GRAIN: Duration = Duration::from_secs(2);
/// The same on file systems of this kernel, with a margin.
pub const CTIME_GRAIN_LOCAL: Duration = Duration::from_millis(50);
/// By how much the clock of a file server may differ from ours, at most.
pub const SKEW_MAX: Duration = Duration::from_secs(60);

/// Whose clock gives the times of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clocked {
    /// This kernel's, to its tick.
    Here,
    /// This kernel's, but nobody knows how coarsely.
    Coarsely,
    /// That of another host, or nobody knows whose.
    Elsewhere,
}

impl Clocked {
    /// Of a file system of this type (`statfs`).
    pub(crate) fn of(kind: u64) -> Clocked {
        const EXT4: u64 = 0xef53;
        const XFS: u64 = 0x5846_5342;
        const BTRFS: u64 = 0x9123_683e;
        const TMPFS: u64 = 0x0102_1994;
        const F2FS: u64 = 0xf2f5_2010;
        const OVERLAYFS: u64 = 0x794c_7630;
        const ZFS: u64 = 0x2fc1_2fc1;
        const FAT: u64 = 0x4d44;
        const EXFAT: u64 = 0x2011_bab0;
        const PROC: u64 = 0x9fa0;
        const SYS: u64 = 0x6265_6572;
        match kind & 0xffff_ffff {
            EXT4 | XFS | BTRFS | TMPFS | F2FS => Clocked::Here,
            OVERLAYFS | ZFS | FAT | EXFAT | PROC | SYS => Clocked::Coarsely,
            _ => Clocked::Elsewhere,
        }
    }
}

/// For how long after a `stat` that showed this ctime a read does not count; zero if it is old enough. `now`:
/// the time of day at that `stat` or later.
pub(crate) fn settle(ctime: Timestamp, now: Timestamp, clocked: Clocked) -> Duration {
    let whole_seconds = ctime.nanos == 0 && !haul_mutant::removed("whole-seconds-are-coarse");
    let grain = match clocked {
        Clocked::Here if !whole_seconds => CTIME_GRAIN_LOCAL,
        _ => CTIME_GRAIN,
    };
    // One that lies ahead is young, by however much.
    let is_old = nanos(now) - nanos(ctime) >= (grain + skew_of(clocked)).as_nanos() as i128;
    if is_old { Duration::ZERO } else { grain }
}

/// The same where the destination keeps mtimes in steps of `kept`: for how long a read does not count, for a
/// change behind it could leave the mtime that is kept there as it is.
pub(crate) fn settle_kept(mtime: Timestamp, now: Timestamp, clocked: Clocked, kept: Duration) -> Duration {
    let (step, age) = (kept.as_nanos() as i128, nanos(now) - nanos(mtime));
    if kept.is_zero() || haul_mutant::removed("kept-times-are-waited-for") {
        return Duration::ZERO;
    }
    let left = match clocked {
        Clocked::Elsewhere if age < (kept + SKEW_MAX).as_nanos() as i128 => step,
        Clocked::Elsewhere => 0,
        // Steps are counted from 1970.
        Clocked::Here | Clocked::Coarsely => (step - nanos(mtime).rem_euclid(step) - age).clamp(0, step),
    };
    match u64::try_from(left) {
        Ok(left @ 1..) => Duration::from_nanos(left) + CTIME_GRAIN_LOCAL,
        _ => Duration::ZERO,
    }
}

/// For how long what is read of a file does not count behind a look at it that showed this ctime, where the
/// clock that gives ctimes is this host's: until it is a grain old. Zero elsewhere, where every look within a
/// minute of a change would cost seconds.
pub fn settle_here(file: impl AsFd, ctime: Timestamp) -> Duration {
    let now = clock_gettime(ClockId::Realtime);
    let now = Timestamp { secs: now.tv_sec, nanos: now.tv_nsec as u32 };
    if settle(ctime, now, Clocked::Coarsely).is_zero() {
        return Duration::ZERO;
    }
    let clocked = Clocked::of(fstatfs(file).map_or(0, |stat| stat.f_type as u64));
    match clocked {
        Clocked::Elsewhere => Duration::ZERO,
        _ => {
            let age = u64::try_from(nanos(now) - nanos(ctime)).unwrap_or(0);
            settle(ctime, now, clocked).saturating_sub(Duration::from_nanos(age))
        }
    }
}

fn skew_of(clocked: Clocked) -> Duration {
    if clocked == Clocked::Elsewhere { SKEW_MAX } else { Duration::ZERO }
}

fn nanos(time: Timestamp) -> i128 {
    i128::from(time.secs) * 1_000_000_000 + i128::from(time.nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what may still change unseen is waited for, by the grain that its ctime can have; what is old is
    /// not, and a clock that is wrong makes a wait longer, never shorter.
    /// Method: ctimes around each bound, and ahead of the clock.
    #[test]
    fn young_ctimes_settle() {
        let (tick, two) = (CTIME_GRAIN_LOCAL.as_millis() as i64, CTIME_GRAIN.as_millis() as i64);
        let skew = SKEW_MAX.as_millis() as i64;
        let at = |ms: i64, nanos: u32| Timestamp {
            secs: ms / 1000,
            nanos: (ms % 1000) as u32 * 1_000_000 + nanos,
        };
        // The clock, how old the ctime is by it, whether it has parts of a second, and what is waited for.
        let cases = [
            (Clocked::Here, 0, 1, tick),
            (Clocked::Here, tick - 1, 1, tick),
            (Clocked::Here, tick + 1, 1, 0),
            (Clocked::Here, -1, 1, tick),
            (Clocked::Here, -86_400_000, 1, tick),
            (Clocked::Here, tick + 1, 0, two),
            (Clocked::Here, two - 1, 0, two),
            (Clocked::Here, two, 0, 0),
            (Clocked::Coarsely, tick + 1, 1, two),
            (Clocked::Coarsely, two + 1, 1, 0),
            (Clocked::Elsewhere, two + 1, 1, two),
            (Clocked::Elsewhere, skew + two - 1, 1, two),
            (Clocked::Elsewhere, skew + two + 1, 1, 0),
            (Clocked::Elsewhere, -3_600_000, 1, two),
        ];
        for (clocked, age, nanos, wait) in cases {
            let ctime = at(1_000_000_000_000, nanos);
            let now = at(1_000_000_000_000 + age, 0);
            let found = settle(ctime, now, clocked);
            assert_eq!(found, Duration::from_millis(wait as u64), "{clocked:?}, {age} ms old, {nanos}");
        }
    }

    /// Goal: an mtime is waited for until no change can have the same one at a destination that keeps it more
    /// coarsely, and no longer.
    /// Method: steps of destinations, and mtimes around each bound.
    #[test]
    fn times_that_are_kept_coarsely_settle() {
        let at = |ms: i64| Timestamp { secs: ms / 1000, nanos: (ms % 1000) as u32 * 1_000_000 };
        // In the first of two seconds, and in the second one.
        let (first, second) = (1_000_000_000_200, 1_000_000_001_200);
        let tick = CTIME_GRAIN_LOCAL.as_millis() as u64;
        for (clocked, mtime, age, kept, wait) in [
            (Clocked::Here, first, 0, 0, 0),
            (Clocked::Here, first, 0, 1_000, 800 + tick),
            (Clocked::Here, first, 799, 1_000, 1 + tick),
            (Clocked::Here, first, 800, 1_000, 0),
            (Clocked::Here, first, 800, 2_000, 1_000 + tick),
            (Clocked::Here, second, 0, 2_000, 800 + tick),
            (Clocked::Coarsely, second, 800, 2_000, 0),
            (Clocked::Here, first, -5_000, 1_000, 1_000 + tick),
            (Clocked::Elsewhere, first, 60_999, 1_000, 1_000 + tick),
            (Clocked::Elsewhere, first, 61_000, 1_000, 0),
            (Clocked::Elsewhere, first, 0, 0, 0),
        ] {
            let found = settle_kept(at(mtime), at(mtime + age), clocked, Duration::from_millis(kept));
            assert_eq!(found, Duration::from_millis(wait), "{clocked:?}, {age} ms old, steps of {kept}");
        }
    }
}
