//! The words of scheduling: policies, limits, runs of objects, how targets fare.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::ids::{FileId, SinkTarget, TargetId};

/// How targets are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// One file after another, whatever targets they lie on: to compare with.
    File,
    /// Targets take turns; those with all the requests that they may have are skipped.
    RoundRobin,
    /// As that, and congested targets are skipped some times: by numbers that a user gives, as in the paper.
    Lads(LadsNumbers),
    /// As that, with a window of requests for each target that finds itself.
    #[default]
    Adaptive,
}

/// The three numbers of LADS: a target whose mean service time over `window` is above `threshold` is skipped `skips` times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LadsNumbers {
    /// T.
    pub threshold: Duration,
    /// W.
    pub window: Duration,
    /// M; at most 1,024 are heeded.
    pub skips: u32,
}

/// How many requests there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// In flight in all; at least 1 is taken.
    pub total: u32,
    /// In flight at one target: what the fixed policies give each, and what adaptive windows never exceed. At least 1 is
    /// taken. (Not heeded by [`Policy::File`].)
    pub each: u32,
}

/// Objects of one file that lie on one target, and go to one target of the sink.
///
/// Its k-th object, from 0, is number `first + k / group * step + k % group` of the file. So a stripe of one object in a
/// file of 4 stripes is `group: 1, step: 4`; of three objects `group: 3, step: 12`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub file: FileId,
    pub sink: SinkTarget,
    pub first: u64,
    /// Objects; at least 1.
    pub count: u64,
    /// Objects side by side; at least 1.
    pub group: u64,
    /// From the first of a group to the first of the next.
    pub step: u64,
}

/// An object that may be begun now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Issue {
    pub target: TargetId,
    pub file: FileId,
    pub sink: SinkTarget,
    /// Its number in the file.
    pub object: u64,
}

/// How a target fares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Health {
    #[default]
    Healthy,
    /// It takes much longer than it did, and than its peers.
    Congested,
    /// As that, and nothing is asked of it for a while.
    Resting,
    /// Nothing comes back from it.
    Hung,
}

/// A target, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetState {
    pub target: TargetId,
    pub health: Health,
    /// Objects that wait.
    pub waiting: u64,
    pub in_flight: u32,
    /// Most that it may have in flight now.
    pub window: u32,
    /// How long a request takes now and at best, scaled to 1 MiB; zero: not known.
    pub service: Duration,
    pub best: Duration,
    /// Requests that came back, and their bytes.
    pub done: u64,
    pub bytes: u64,
}

/// There is no room for more runs: see [`Schedule::room`](super::Schedule::room).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("as many runs of objects wait as can be kept")]
pub struct Full;

impl Limits {
    pub(super) fn sane(self) -> Limits {
        Limits { total: self.total.max(1), each: self.each.max(1) }
    }
}

impl Run {
    /// Objects side by side: `count` from number `first` on.
    pub fn objects(file: FileId, sink: SinkTarget, first: u64, count: u64) -> Run {
        Run { file, sink, first, count, group: count.max(1), step: 0 }
    }

    /// The number of its `k`-th object, from 0.
    pub(crate) fn object(&self, k: u64) -> u64 {
        self.first.saturating_add((k / self.group).saturating_mul(self.step)).saturating_add(k % self.group)
    }
}

impl Policy {
    /// The name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Policy::File => "file",
            Policy::RoundRobin => "round-robin",
            Policy::Lads(_) => "lads",
            Policy::Adaptive => "adaptive",
        }
    }
}

/// As users type it: the name, for LADS with its numbers: `lads:T,W,M`, T and W in milliseconds.
impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Policy::Lads(LadsNumbers { threshold, window, skips }) => {
                write!(f, ":{},{},{skips}", threshold.as_millis(), window.as_millis())
            }
            _ => Ok(()),
        }
    }
}

/// What is no policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "one of adaptive, round-robin, file, and lads:T,W,M is expected: T and W in milliseconds, M times, each from 1 to \
     1000000"
)]
pub struct NoPolicy;

impl FromStr for Policy {
    type Err = NoPolicy;

    fn from_str(text: &str) -> Result<Policy, NoPolicy> {
        match text {
            "adaptive" => return Ok(Policy::Adaptive),
            "round-robin" => return Ok(Policy::RoundRobin),
            "file" => return Ok(Policy::File),
            _ => {}
        }
        let numbers = text.strip_prefix("lads:").ok_or(NoPolicy)?.split(',').map(|number| {
            let number: u32 = number.parse().map_err(|_| NoPolicy)?;
            (1..=1_000_000).contains(&number).then_some(number).ok_or(NoPolicy)
        });
        let numbers: Vec<u32> = numbers.collect::<Result<_, _>>()?;
        let &[threshold, window, skips] = &numbers[..] else { return Err(NoPolicy) };
        let ms = |number: u32| Duration::from_millis(number.into());
        Ok(Policy::Lads(LadsNumbers { threshold: ms(threshold), window: ms(window), skips }))
    }
}

impl Health {
    /// From the best to the worst; each at its own number.
    pub const ALL: [Health; 4] = [Health::Healthy, Health::Congested, Health::Resting, Health::Hung];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Health::Healthy => "healthy",
            Health::Congested => "congested",
            Health::Resting => "resting",
            Health::Hung => "hung",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a policy is said as it is typed, and what is none is refused.
    #[test]
    fn policies_are_typed_and_told() {
        for text in ["adaptive", "round-robin", "file", "lads:30,1000,5"] {
            assert_eq!(text.parse::<Policy>().map(|policy| policy.to_string()).as_deref(), Ok(text));
        }
        for text in
            ["", "lads", "lads:", "lads:1,2", "lads:1,2,3,4", "lads:0,1,1", "lads:1,1,9999999", "File"]
        {
            assert_eq!(text.parse::<Policy>(), Err(NoPolicy), "{text}");
        }
    }
}
