//! The names of things inside one session. A type for each, so that they cannot be mixed.

use std::cmp::Ordering;
use std::fmt;
use std::time::Duration;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

id! {
    /// A directory entry of the job: file, directory or symlink. The upper 16 bits are the shard, the
    /// lower 48 the entry's number in it; the job is fixed for a session. Entries share one number space,
    /// so a directory's `DirId` is the number of the entry that announced it.
    FileId(u64)
}
id! {
    /// A directory. `DirId::ROOT` is the destination root and is never announced.
    DirId(u64)
}
id! {
    /// One network connection that carries data. 0 is the control stream.
    StreamId(u16)
}
id! {
    /// A payload buffer that the driver holds.
    BufferId(u32)
}
id! {
    /// A storage target of one end: a number from 0 on, given by who knows the layouts, in the order in which
    /// targets are met. At the source those of the source; at the sink those of the sink.
    TargetId(u16)
}
id! {
    /// The storage target of the sink that an object goes to, as the sink numbers them for the source. 0:
    /// any, or not known.
    SinkTarget(u16)
}
id! {
    /// The version of a file's fingerprint: objects of an older one are refused.
    Generation(u32)
}
id! {
    /// The fencing epoch of a session: nothing from an older one may act.
    SessionEpoch(u32)
}

id! {
    /// A host of a job that many hosts work at, as the job numbers them.
    HostId(u16)
}
id! {
    /// What a pair of ends works under: a number that no other pair of the job has, nor the same pair when it
    /// joins again. The upper 32 bits are the session epoch of the coordinator that gave it, so that those of
    /// an earlier run of the job are lower.
    Lease(u64)
}

/// A pair of ends: what reads at `source` is written at `sink`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PairId {
    pub source: HostId,
    pub sink: HostId,
}

impl Lease {
    /// Lease `number` of the run with this epoch.
    pub fn new(epoch: SessionEpoch, number: u32) -> Lease {
        Lease(u64::from(epoch.0) << 32 | u64::from(number))
    }

    /// The epoch of the run that gave it.
    pub fn epoch(self) -> SessionEpoch {
        SessionEpoch((self.0 >> 32) as u32)
    }
}

/// Most shards of a session, and most hosts of one side.
pub const SHARDS_MAX: u16 = 1024;
pub const HOSTS_MAX: u16 = 1024;

/// Who of several hosts of one side says something, under which lease. In a session of one pair
/// [`Holder::ALONE`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Holder {
    /// Below [`HOSTS_MAX`].
    pub host: u16,
    /// Rises whenever somebody else takes over what the host had: nothing that an older one says may act.
    pub epoch: u32,
}

/// What a lease is to one who knows which is agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leased {
    Agreed,
    /// Of a host that lost what it had to another: has no effect.
    Stale,
    /// Nobody agreed to it: the session ends.
    Unknown,
}

impl Holder {
    /// The one host of a side that has no other.
    pub const ALONE: Holder = Holder { host: 0, epoch: 0 };

    /// Holds what a message names against what is `agreed`.
    pub fn judge(self, agreed: Holder) -> Leased {
        if haul_mutant::removed("leases-are-agreed") {
            return Leased::Agreed;
        }
        match (self.host == agreed.host, self.epoch.cmp(&agreed.epoch)) {
            (true, Ordering::Equal) => Leased::Agreed,
            (true, Ordering::Less) => Leased::Stale,
            _ => Leased::Unknown,
        }
    }
}

impl SinkTarget {
    /// Any storage target of the sink.
    pub const ANY: SinkTarget = SinkTarget(0);

    /// That of a target of the sink; [`SinkTarget::ANY`] of one beyond
    /// [`SINK_TARGETS_MAX`](crate::wire::SINK_TARGETS_MAX).
    pub fn of(target: TargetId) -> SinkTarget {
        match target.0.checked_add(1) {
            Some(number) if number < crate::wire::SINK_TARGETS_MAX => SinkTarget(number),
            _ => SinkTarget::ANY,
        }
    }

    /// The target of this sink target; `None`: any.
    pub fn target(self) -> Option<TargetId> {
        self.0.checked_sub(1).map(TargetId)
    }
}

impl DirId {
    /// The destination root.
    pub const ROOT: DirId = DirId(0);
}

impl FileId {
    /// Entry `number` (below 2^48) of `shard`.
    pub fn new(shard: u16, number: u64) -> Self {
        assert!(number < 1 << 48);
        FileId(u64::from(shard) << 48 | number)
    }
    /// The part of the job that gave the number.
    pub fn shard(self) -> u16 {
        (self.0 >> 48) as u16
    }
    /// The same number as a directory.
    pub fn as_dir(self) -> DirId {
        DirId(self.0)
    }
}

impl DirId {
    /// The entry that announced this directory.
    pub fn as_file(self) -> FileId {
        FileId(self.0)
    }
}

/// Time since the session began, in nanoseconds. Core never reads a clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub u64);

impl Time {
    /// This moment plus `d`.
    pub fn after(self, d: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
    /// How long ago `earlier` was; zero if it lies ahead.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: only what was agreed acts: an older lease of the host is late, everything else was never agreed.
    /// Method: small hosts and epochs around one that is agreed, and one pair alone.
    #[test]
    fn leases_are_held_against_the_agreed_one() {
        let lease = |host, epoch| Holder { host, epoch };
        let agreed = lease(2, 5);
        for host in 0..4 {
            for epoch in 3..8 {
                let expected = match (host, epoch) {
                    (2, 5) => Leased::Agreed,
                    (2, ..5) => Leased::Stale,
                    _ => Leased::Unknown,
                };
                assert_eq!(lease(host, epoch).judge(agreed), expected, "{host} {epoch}");
            }
        }
        assert_eq!(Holder::ALONE.judge(Holder::ALONE), Leased::Agreed);
        assert_eq!(lease(0, 1).judge(Holder::ALONE), Leased::Unknown);
        assert_eq!(lease(1, 0).judge(Holder::ALONE), Leased::Unknown);
    }

    #[test]
    fn ids_know_their_shard() {
        for shard in [0, 1, u16::MAX] {
            assert_eq!(FileId::new(shard, 5).shard(), shard);
        }
    }
}
