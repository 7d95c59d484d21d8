//! Keeps as many streams as are wanted, and control: which is dialled, and when.
//!
//! In: streams that came up, were lost or could not be joined; control that went dark and came back; time.
//! Out: ids to dial. Only the end that dials has one.
//! Invariants: an id is used once; what fails is tried again after a rest that doubles up to [`REST_MAX`],
//! with jitter, so that many ends that lost the same router do not come back at once; at most [`DIALS_MAX`]
//! are dialled at a time, and none while control is dark.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::ids::{StreamId, Time};
use crate::wire::STREAMS_MAX;

/// Streams that are dialled at a time, at most.
pub const DIALS_MAX: usize = 8;
/// The rest after the first failure, and the longest.
const REST_MIN: Duration = Duration::from_millis(100);
const REST_MAX: Duration = Duration::from_secs(5);
/// The longest rest after a stream that did come up and was soon lost.
const REST_LOST_MAX: Duration = Duration::from_secs(1);
/// A stream that lived so long was no failure.
const STEADY: Duration = Duration::from_secs(1);

/// A rest that doubles with each failure, between half of it and all of it.
#[derive(Debug)]
pub struct Backoff {
    failures: u32,
    random: u64,
}

impl Backoff {
    /// `seed`: what the jitter begins with.
    pub fn new(seed: u64) -> Backoff {
        // Seeds that are close begin far apart; it is never zero.
        Backoff { failures: 0, random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32) | 1 }
    }

    /// It failed (again): how long to rest.
    pub fn failed(&mut self) -> Duration {
        let full = REST_MIN.saturating_mul(1 << self.failures.min(16)).min(REST_MAX);
        self.failures = self.failures.saturating_add(1);
        // xorshift64: jitter needs no more.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        full / 2 + (full / 2).mul_f64((self.random >> 11) as f64 / (1u64 << 53) as f64)
    }

    /// It worked.
    pub fn worked(&mut self) {
        self.failures = 0;
    }
}

/// Decides when streams are dialled.
#[derive(Debug)]
pub struct StreamDialler {
    wanted: u16,
    up: BTreeMap<StreamId, Time>,
    dialling: BTreeSet<StreamId>,
    /// The next id; `None`: all were used.
    next: Option<u16>,
    backoff: Backoff,
    not_before: Time,
    dark: bool,
}

impl StreamDialler {
    /// `up`: the streams of the start. `seed`: what the jitter begins with.
    pub fn new(up: impl IntoIterator<Item = StreamId>, seed: u64) -> StreamDialler {
        let up: BTreeMap<StreamId, Time> = up.into_iter().map(|id| (id, Time(0))).collect();
        let next = up.keys().next_back().map_or(Some(1), |id| id.0.checked_add(1));
        let wanted = up.len() as u16;
        let (dialling, backoff) = (BTreeSet::new(), Backoff::new(seed));
        StreamDialler { wanted, up, dialling, next, backoff, not_before: Time(0), dark: false }
    }

    /// A stream of the start is being dialled already.
    pub fn begun(&mut self, id: StreamId) {
        self.dialling.insert(id);
        self.next = self.next.and_then(|next| next.max(id.0).checked_add(u16::from(id.0 >= next)));
    }

    /// So many streams shall be up: 1 to [`STREAMS_MAX`]. None is closed because fewer are wanted.
    pub fn want(&mut self, streams: u16) {
        self.wanted = streams.clamp(1, STREAMS_MAX);
    }

    /// Control was lost, or is back.
    pub fn set_dark(&mut self, dark: bool, now: Time) {
        if self.dark && !dark {
            self.backoff.worked();
            self.not_before = now;
        }
        self.dark = dark;
    }

    /// A stream that was dialled is up.
    pub fn joined(&mut self, id: StreamId, now: Time) {
        if self.dialling.remove(&id) {
            self.up.insert(id, now);
        }
    }

    /// A stream that the other end dialled is up.
    pub fn came(&mut self, id: StreamId, now: Time) {
        self.up.insert(id, now);
    }

    /// A stream that was dialled did not come up.
    pub fn failed(&mut self, id: StreamId, now: Time) {
        if self.dialling.remove(&id) {
            self.rest(now, REST_MAX);
        }
    }

    /// A stream is lost. False: it was not up.
    pub fn lost(&mut self, id: StreamId, now: Time) -> bool {
        let Some(since) = self.up.remove(&id) else { return false };
        match now.since(since) >= STEADY {
            true => self.backoff.worked(),
            false => self.rest(now, REST_LOST_MAX),
        }
        true
    }

    fn rest(&mut self, now: Time, max: Duration) {
        self.not_before = self.not_before.max(now.after(self.backoff.failed().min(max)));
    }

    /// The next stream to dial now, if any is missing.
    pub fn poll_dial(&mut self, now: Time) -> Option<StreamId> {
        if !self.is_short() || now < self.not_before {
            return None;
        }
        let id = self.next?;
        self.next = id.checked_add(1);
        self.dialling.insert(StreamId(id));
        Some(StreamId(id))
    }

    fn is_short(&self) -> bool {
        let all = self.up.len() + self.dialling.len();
        !self.dark && self.dialling.len() < DIALS_MAX && all < usize::from(self.wanted)
    }

    /// When [`StreamDialler::poll_dial`] has something, if nothing else happens before.
    pub fn next_deadline(&self) -> Option<Time> {
        (self.is_short() && self.next.is_some()).then_some(self.not_before)
    }

    /// Streams that are up.
    pub fn up(&self) -> usize {
        self.up.len()
    }

    /// As many as are wanted, or more, are up.
    pub fn is_full(&self) -> bool {
        self.up.len() >= usize::from(self.wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn dials(dialler: &mut StreamDialler, now: Time) -> Vec<u16> {
        std::iter::from_fn(|| dialler.poll_dial(now).map(|id| id.0)).collect()
    }

    /// Goal: what is missing is dialled under new ids, at once where a stream had lived, and never in the
    /// dark.
    #[test]
    fn what_is_missing_is_dialled() {
        let mut dialler = StreamDialler::new((1..=3).map(StreamId), 7);
        assert_eq!(dials(&mut dialler, Time(0)), []);
        let now = Time(10 * SECOND);
        dialler.lost(StreamId(2), now);
        dialler.lost(StreamId(2), now);
        dialler.lost(StreamId(9), now);
        assert_eq!(dialler.next_deadline(), Some(Time(0)));
        assert_eq!(dials(&mut dialler, now), [4]);
        dialler.joined(StreamId(4), now);
        dialler.want(STREAMS_MAX + 9);
        assert_eq!(dials(&mut dialler, now).len(), DIALS_MAX);
        (5..=12).for_each(|id| dialler.joined(StreamId(id), now));
        dialler.set_dark(true, now);
        assert_eq!((dials(&mut dialler, now), dialler.next_deadline()), (vec![], None));
        dialler.set_dark(false, now);
        assert_eq!(dials(&mut dialler, now).first(), Some(&13));
        dialler.want(0);
        (13..=20).for_each(|id| dialler.joined(StreamId(id), now));
        assert_eq!(dials(&mut dialler, now), [], "none is closed, none is dialled");
    }

    /// Goal: streams of the start that are still on their way are not dialled twice, and their ids are used
    /// once.
    #[test]
    fn what_is_on_its_way_is_waited_for() {
        let mut dialler = StreamDialler::new((1..=2).map(StreamId), 7);
        (3..=5).for_each(|id| dialler.begun(StreamId(id)));
        dialler.want(5);
        assert_eq!(dials(&mut dialler, Time(0)), []);
        dialler.joined(StreamId(3), Time(1));
        dialler.failed(StreamId(4), Time(1));
        assert_eq!((dialler.up(), dials(&mut dialler, Time(SECOND))), (3, vec![6]));
        let mut dialler = StreamDialler::new([StreamId(1)], 7);
        dialler.begun(StreamId(u16::MAX));
        dialler.want(3);
        assert_eq!(dials(&mut dialler, Time(0)), [], "ids run out");
    }

    /// Goal: failures rest longer and longer, within a bound and with jitter; success ends that; ids run out.
    #[test]
    fn failures_rest() {
        let mut dialler = StreamDialler::new([StreamId(1)], 3);
        let mut now = Time(SECOND);
        dialler.lost(StreamId(1), now);
        let mut rests = Vec::new();
        for _ in 0..12 {
            let due = dialler.next_deadline().expect("one is missing").max(now);
            rests.push(due.since(now));
            assert!(due == now || dialler.poll_dial(Time(due.0 - 1)).is_none());
            now = due;
            let [id] = dials(&mut dialler, now)[..] else { panic!("one is dialled") };
            dialler.failed(StreamId(id), now);
        }
        assert_eq!(rests[0], Duration::ZERO, "it had lived for a second");
        assert!(rests[1..].iter().all(|rest| (REST_MIN / 2..=REST_MAX).contains(rest)), "{rests:?}");
        assert!(rests[11] >= REST_MAX / 2 && rests[10] != rests[11], "{rests:?}");
        let mut other = Backoff::new(99);
        assert_ne!(Backoff::new(3).failed(), other.failed(), "jitter follows the seed");
        let mut dialler = StreamDialler::new([StreamId(u16::MAX)], 3);
        dialler.lost(StreamId(u16::MAX), now);
        assert_eq!((dialler.poll_dial(now), dialler.next_deadline()), (None, None));
    }
}
