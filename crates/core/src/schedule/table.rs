//! The storage targets of one end as people see them: a few rows, the most interesting first, how many
//! targets there are beside, and which of them were unwell for how long.
//!
//! In: how each target stands, its name, time. Out: a [`Table`] and a list of [`Unwell`] that fit a message.
//! Invariants: at most [`ROWS_MAX`] rows and [`UNWELL_MAX`] unwell ones, names of at most [`NAME_LEN_MAX`]
//! bytes; the counts are of all targets, and no state has more rows than targets.
//! Left out: rates, which follow from two tables; how a table is drawn.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use super::{Health, TARGETS_MAX, TargetState};
use crate::ids::{TargetId, Time};

/// Most rows of a table.
pub const ROWS_MAX: usize = 32;
/// Longest name of a target in a table, bytes; a longer one is cut.
pub const NAME_LEN_MAX: usize = 128;
/// Most targets that a report names because they were unwell.
pub const UNWELL_MAX: usize = 4;
/// A target that was hung for less than this, or congested for less than [`CONGESTED_MIN`] or than one part
/// in [`CONGESTED_PART`] of the time, is not worth a sentence.
const HUNG_MIN: Duration = Duration::from_secs(1);
const CONGESTED_MIN: Duration = Duration::from_secs(2);
const CONGESTED_PART: u32 = 20;

/// The targets of an end at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// How many targets there are in each state, in the order of [`Health::ALL`]; together at most
    /// [`TARGETS_MAX`].
    pub counts: [u16; 4],
    /// The unhealthy ones first, worst before others, then those with most to do. No more of any state than
    /// `counts`.
    pub rows: Vec<Row>,
}

/// One target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// 1 to [`NAME_LEN_MAX`] bytes; of the other end whatever it says.
    pub name: Box<str>,
    pub health: Health,
    /// Objects that wait, and that are with the target.
    pub waiting: u32,
    pub in_flight: u32,
    /// How long a request takes now and at best, scaled to 1 MiB; zero: not known. At most `u64::MAX`
    /// nanoseconds.
    pub service: Duration,
    pub best: Duration,
    /// Requests that came back, and their bytes.
    pub done: u64,
    pub bytes: u64,
}

/// A target that was unwell while it had something to do, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unwell {
    /// As [`Row::name`].
    pub name: Box<str>,
    /// Congested or resting, and hung. At most `u64::MAX` nanoseconds each.
    pub congested: Duration,
    pub hung: Duration,
}

/// The targets that were unwell over a session, the worst first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnwellTargets {
    /// At most [`UNWELL_MAX`].
    pub named: Vec<Unwell>,
    /// As unwell as to be told, and not named; at most [`TARGETS_MAX`].
    pub others: u16,
}

impl Table {
    /// The table of these targets; `name` is asked for those that are shown.
    pub fn of(targets: impl Iterator<Item = TargetState>, name: impl Fn(TargetId) -> String) -> Table {
        let mut all: Vec<TargetState> = targets.take(TARGETS_MAX).collect();
        let mut counts = [0; 4];
        for target in &all {
            counts[target.health as usize] += 1;
        }
        all.sort_unstable_by_key(|t| {
            let busy = t.waiting.saturating_add(t.in_flight.into());
            (Reverse(rank(t.health)), Reverse(busy), Reverse(t.done), t.target)
        });
        all.truncate(ROWS_MAX);
        let rows = all.iter().map(|t| Row {
            name: shown_name(name(t.target)),
            health: t.health,
            waiting: u32::try_from(t.waiting).unwrap_or(u32::MAX),
            in_flight: t.in_flight,
            service: tellable(t.service),
            best: tellable(t.best),
            done: t.done,
            bytes: t.bytes,
        });
        Table { counts, rows: rows.collect() }
    }

    /// How many targets there are.
    pub fn targets(&self) -> u32 {
        self.counts.iter().map(|count| u32::from(*count)).sum()
    }

    /// Whether no state has more rows than targets, nor the table more targets than an end can have.
    pub fn is_sound(&self) -> bool {
        let rows = |health| self.rows.iter().filter(|row| row.health == health).count();
        self.targets() as usize <= TARGETS_MAX
            && Health::ALL.iter().all(|health| rows(*health) <= usize::from(self.counts[*health as usize]))
    }
}

/// That it rests makes a congested target neither better nor worse.
fn rank(health: Health) -> u8 {
    match health {
        Health::Healthy => 0,
        Health::Congested | Health::Resting => 1,
        Health::Hung => 2,
    }
}

/// The longest beginning that may be told; something where there is nothing.
fn shown_name(name: String) -> Box<str> {
    let end = (0..=name.len().min(NAME_LEN_MAX)).rev().find(|end| name.is_char_boundary(*end));
    match &name[..end.unwrap_or(0)] {
        "" => "?".into(),
        name => name.into(),
    }
}

fn tellable(time: Duration) -> Duration {
    Duration::from_nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// Counts how long targets are unwell.
#[derive(Clone, Debug, Default)]
pub struct Troubles {
    /// When it was told last; `None`: nothing that counts has begun.
    since: Option<Time>,
    /// Congested, hung.
    of: BTreeMap<TargetId, (Duration, Duration)>,
}

impl Troubles {
    /// The targets that are unwell now, of those that have something to do. They count as having been so
    /// since the last call.
    pub fn note(&mut self, unwell: impl Iterator<Item = (TargetId, Health)>, now: Time) {
        let Some(since) = self.since.replace(now) else { return };
        for (target, health) in unwell {
            let (congested, hung) = self.of.entry(target).or_default();
            match health {
                Health::Healthy => {}
                Health::Congested | Health::Resting => *congested += now.since(since),
                Health::Hung => *hung += now.since(since),
            }
        }
    }

    /// What passes until the next [`Troubles::note`] counts for no target.
    pub fn rest(&mut self) {
        self.since = None;
    }

    /// Those that were unwell for long enough to be told, in a session of this length.
    pub fn worst(&self, whole: Duration, name: impl Fn(TargetId) -> String) -> UnwellTargets {
        let least = CONGESTED_MIN.max(whole / CONGESTED_PART);
        let mut worst: Vec<(TargetId, Duration, Duration)> = Vec::new();
        for (target, (congested, hung)) in &self.of {
            if *hung >= HUNG_MIN || *congested + *hung >= least {
                worst.push((*target, *congested, *hung));
            }
        }
        worst.sort_by_key(|(target, congested, hung)| (Reverse(*hung), Reverse(*congested), *target));
        let others = u16::try_from(worst.len().saturating_sub(UNWELL_MAX)).expect("few targets");
        let named = worst.iter().take(UNWELL_MAX).map(|(target, congested, hung)| Unwell {
            name: shown_name(name(*target)),
            congested: tellable(*congested),
            hung: tellable(*hung),
        });
        UnwellTargets { named: named.collect(), others }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(target: u16, health: Health, waiting: u64, in_flight: u32) -> TargetState {
        TargetState {
            target: TargetId(target),
            health,
            waiting,
            in_flight,
            window: 4,
            service: Duration::from_millis(3),
            best: Duration::from_millis(2),
            done: 7,
            bytes: 9,
        }
    }

    fn name(target: TargetId) -> String {
        format!("OST{target}")
    }

    /// Goal: of many targets the unhealthy come first, then the busiest; all are counted, and none is shown
    /// that is less interesting than one that is not.
    /// Method: seeded crowds of up to the most targets that there are.
    #[test]
    fn the_most_interesting_targets_are_shown() {
        let mut rng = fastrand::Rng::with_seed(6);
        for crowd in [0, 1, 5, ROWS_MAX, ROWS_MAX + 1, 1008, TARGETS_MAX] {
            let states: Vec<TargetState> = (0..crowd)
                .map(|t| {
                    let health = Health::ALL[if rng.u8(..50) == 0 { rng.usize(1..4) } else { 0 }];
                    state(t as u16, health, rng.u64(..20), rng.u32(..3))
                })
                .collect();
            let table = Table::of(states.iter().copied(), name);
            assert_eq!(table.targets() as usize, crowd);
            assert_eq!(table.rows.len(), crowd.min(ROWS_MAX));
            assert!(table.is_sound());
            let interest = |health: Health, waiting: u64, in_flight: u32| {
                // In the order of `Health::ALL`.
                ([0, 1, 1, 2][health as usize], waiting + u64::from(in_flight))
            };
            let rows: Vec<_> =
                table.rows.iter().map(|r| interest(r.health, r.waiting.into(), r.in_flight)).collect();
            assert!(rows.is_sorted_by(|a, b| a >= b), "{rows:?}");
            let mut all: Vec<_> = states.iter().map(|s| interest(s.health, s.waiting, s.in_flight)).collect();
            all.sort_by_key(|interest| Reverse(*interest));
            assert_eq!(rows, all[..rows.len()]);
            for row in &table.rows {
                let target: usize = row.name["OST".len()..].parse().unwrap();
                assert_eq!(
                    (row.health, u64::from(row.waiting)),
                    (states[target].health, states[target].waiting)
                );
            }
        }
    }

    /// Goal: what cannot be told as it is becomes what can: names that are too long, or none; times and
    /// counts.
    #[test]
    fn rows_can_be_told() {
        let mut odd = state(1, Health::Hung, u64::MAX, 1);
        odd.service = Duration::MAX;
        let long = Table::of([odd].into_iter(), |_| format!("x{}", "é".repeat(300)));
        let row = &long.rows[0];
        assert_eq!((row.name.len(), row.name.chars().count()), (NAME_LEN_MAX - 1, NAME_LEN_MAX / 2));
        assert_eq!((row.waiting, row.service), (u32::MAX, Duration::from_nanos(u64::MAX)));
        assert_eq!(&*Table::of([odd].into_iter(), |_| String::new()).rows[0].name, "?");
        let unsound = Table { counts: [0; 4], ..long };
        assert!(!unsound.is_sound() && !Table { counts: [4096, 0, 0, 1], rows: Vec::new() }.is_sound());
    }

    /// Goal: time counts for the state that a target is in, not while the session rests, and only what is
    /// worth a sentence is told, the worst first.
    #[test]
    fn troubles_are_told_by_their_length() {
        let at = |ms: u64| Time(ms * 1_000_000);
        let secs = Duration::from_secs;
        let mut troubles = Troubles::default();
        let mut now = 0;
        let mut pass = |troubles: &mut Troubles, ms: u64, unwell: &[(u16, Health)]| {
            for _ in 0..ms / 200 {
                now += 200;
                troubles.note(unwell.iter().map(|(t, health)| (TargetId(*t), *health)), at(now));
            }
        };
        pass(&mut troubles, 200, &[]);
        pass(&mut troubles, 3000, &[(1, Health::Congested), (2, Health::Resting)]);
        pass(&mut troubles, 2000, &[(1, Health::Resting), (3, Health::Hung)]);
        pass(&mut troubles, 800, &[(4, Health::Hung)]);
        troubles.rest();
        pass(&mut troubles, 200, &[(2, Health::Hung)]);
        let told = |whole: u64| {
            let worst = troubles.worst(secs(whole), name);
            let named = worst.named.iter().map(|u| (u.name.to_string(), u.congested, u.hung));
            (named.collect::<Vec<_>>(), worst.others)
        };
        let hung = ("OST3".to_owned(), secs(0), secs(2));
        let most = ("OST1".to_owned(), secs(5), secs(0));
        assert_eq!(told(10), (vec![hung.clone(), most.clone(), ("OST2".to_owned(), secs(3), secs(0))], 0));
        assert_eq!(told(80), (vec![hung.clone(), most], 0), "a twentieth is four seconds");
        assert_eq!(told(10_000), (vec![hung], 0));
        let all: Vec<(u16, Health)> = (0..100).map(|t| (t, Health::Hung)).collect();
        pass(&mut troubles, 2000, &all);
        let worst = troubles.worst(secs(10), name);
        assert_eq!((worst.named.len(), worst.others), (UNWELL_MAX, 96));
    }
}
