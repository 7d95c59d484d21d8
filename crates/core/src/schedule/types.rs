//! The words of scheduling: policies, limits, runs of objects, how targets fare.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::{POLICIES, Rule, adaptive, file, lads, round_robin};
use crate::ids::{FileId, SinkTarget, TargetId};

/// How targets are chosen: one of [`POLICIES`], with its numbers.
#[derive(Clone, Copy)]
pub struct Policy {
    kind: &'static PolicyKind,
    numbers: Numbers,
}

/// The numbers of a policy, as a user gives them; zeros behind its last one.
type Numbers = [u32; 3];
/// Largest number of a policy; the smallest is 1.
const NUMBER_MAX: u32 = 1_000_000;

/// A policy, as a line of [`POLICIES`].
pub struct PolicyKind {
    /// In options and reports.
    pub(super) name: &'static str,
    /// What its numbers are called, with commas between them; at most three.
    pub(super) numbers: &'static str,
    /// What each of them says.
    pub(super) meaning: &'static str,
    pub(super) rule: fn(Numbers) -> Box<dyn Rule + Send>,
}

/// The three numbers of LADS: a target whose mean service time over `window` is above `threshold` is skipped
/// `skips` times.
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
    /// In flight at one target: what the fixed policies give each, and what adaptive windows never exceed. At
    /// least 1 is taken. (Not heeded by [`Policy::FILE`].)
    pub each: u32,
}

/// Objects of one file that lie on one target, and go to one target of the sink.
///
/// Its k-th object, from 0, is number `first + k / group * step + k % group` of the file. So a stripe of one
/// object in a file of 4 stripes is `group: 1, step: 4`; of three objects `group: 3, step: 12`.
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
    /// One file after another, whatever targets they lie on: to compare with.
    pub const FILE: Policy = Policy::of(&file::POLICY, [0; 3]);
    /// Targets take turns; those with all the requests that they may have are skipped.
    pub const ROUND_ROBIN: Policy = Policy::of(&round_robin::POLICY, [0; 3]);
    /// As that, with a window of requests for each target that finds itself: the default.
    pub const ADAPTIVE: Policy = Policy::of(&adaptive::POLICY, [0; 3]);

    /// As that, and congested targets are skipped some times. Whole milliseconds of the numbers are heeded.
    pub fn lads(numbers: LadsNumbers) -> Policy {
        let ms = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        Policy::of(&lads::POLICY, [ms(numbers.threshold), ms(numbers.window), numbers.skips])
    }

    /// All that may be typed, with this word before the last one.
    pub fn forms(word: &str) -> String {
        let forms: Vec<String> = POLICIES.iter().map(PolicyKind::form).collect();
        let (last, others) = forms.split_last().expect("there is a policy");
        format!("{}, {word} {last}", others.join(", "))
    }

    const fn of(kind: &'static PolicyKind, numbers: Numbers) -> Policy {
        Policy { kind, numbers }
    }

    /// The name in options and reports.
    pub fn name(self) -> &'static str {
        self.kind.name
    }

    /// What it decides by.
    pub(super) fn rule(self) -> Box<dyn Rule + Send> {
        (self.kind.rule)(self.numbers)
    }
}

impl Default for Policy {
    fn default() -> Policy {
        Policy::of(&POLICIES[0], [0; 3])
    }
}

/// No two have the same name.
impl PartialEq for Policy {
    fn eq(&self, other: &Policy) -> bool {
        (self.kind.name, self.numbers) == (other.kind.name, other.numbers)
    }
}

impl Eq for Policy {}

impl PolicyKind {
    /// What a user types, with the names of the numbers in their places.
    pub fn form(&self) -> String {
        let colon = if self.numbers.is_empty() { "" } else { ":" };
        format!("{}{colon}{}", self.name, self.numbers)
    }

    fn count(&self) -> usize {
        self.numbers.split(',').filter(|name| !name.is_empty()).count()
    }
}

/// As users type it: the name, with the numbers of one that has some: `lads:T,W,M`.
impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name)?;
        for (n, number) in self.numbers[..self.kind.count()].iter().enumerate() {
            write!(f, "{}{number}", if n == 0 { ":" } else { "," })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What is no policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub struct NoPolicy;

impl fmt::Display for NoPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "one of {} is expected: ", Policy::forms("and"))?;
        for kind in POLICIES.iter().filter(|kind| !kind.meaning.is_empty()) {
            write!(f, "{}, ", kind.meaning)?;
        }
        write!(f, "each from 1 to {NUMBER_MAX}")
    }
}

impl FromStr for Policy {
    type Err = NoPolicy;

    fn from_str(text: &str) -> Result<Policy, NoPolicy> {
        let (name, given) = text.split_once(':').map_or((text, None), |(name, given)| (name, Some(given)));
        let kind = POLICIES.iter().find(|kind| kind.name == name).ok_or(NoPolicy)?;
        if given.map_or(0, |given| given.split(',').count()) != kind.count() {
            return Err(NoPolicy);
        }
        let mut numbers = [0; 3];
        for (number, text) in numbers.iter_mut().zip(given.into_iter().flat_map(|given| given.split(','))) {
            *number = text.parse().map_err(|_| NoPolicy)?;
            if !(1..=NUMBER_MAX).contains(number) {
                return Err(NoPolicy);
            }
        }
        Ok(Policy::of(kind, numbers))
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
        for text in [
            "",
            "lads",
            "lads:",
            "lads:1,2",
            "lads:1,2,3,4",
            "lads:0,1,1",
            "lads:1,1,9999999",
            "File",
            "file:",
            "file:1",
        ] {
            assert_eq!(text.parse::<Policy>(), Err(NoPolicy), "{text}");
        }
        let told = NoPolicy.to_string();
        assert!(told.starts_with("one of adaptive, round-robin, file") && told.contains(" and "), "{told}");
        assert!(
            POLICIES.iter().all(|kind| told.contains(&kind.form()) && told.contains(kind.meaning)),
            "{told}"
        );
        assert!(told.ends_with("each from 1 to 1000000"), "{told}");
    }

    /// Goal: the list is sound: the default is first, names differ, each policy is told by its name, and
    /// numbers have places.
    #[test]
    fn the_list_is_sound() {
        assert_eq!(Policy::default(), Policy::ADAPTIVE);
        for (n, kind) in POLICIES.iter().enumerate() {
            assert!(POLICIES[..n].iter().all(|other| other.name != kind.name), "{}", kind.name);
            assert!(kind.count() <= 3 && (kind.count() == 0) == kind.meaning.is_empty(), "{}", kind.name);
            let numbers = vec!["7"; kind.count()].join(",");
            let typed = format!("{}{}{numbers}", kind.name, if numbers.is_empty() { "" } else { ":" });
            let policy: Policy = typed.parse().expect("what is typed");
            assert_eq!((policy.name(), policy.to_string()), (kind.name, typed));
        }
    }
}
