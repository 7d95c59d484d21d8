//! How much credit may be out at the source or in buffers here.
//!
//! In: what was granted, came and was freed so far, bytes of credit, and the path's round trip. Out: a
//! window, which only grows. It begins small, for memory that nobody needs is not to be touched, and doubles
//! while it is what holds the source.

use std::time::Duration;

use crate::ids::Time;

/// Credit that is always granted: bytes (or a quarter of the memory), and frames of the largest kind that
/// came.
const LEN_MIN: u64 = 64 << 20;
const FRAMES_MIN: u64 = 16;
/// A path is full when one round trip's worth is out. Another is for what was freed and not granted yet, what
/// storage has, and a rate that rises.
const TRIPS: u64 = 3;
/// What comes within less time says nothing of a rate.
const LOOK_MIN: Duration = Duration::from_millis(5);

/// Credit so far, bytes: each only grows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Credit {
    pub(super) granted: u64,
    /// What the frames that came have cost.
    pub(super) received: u64,
    pub(super) freed: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Window {
    len: u64,
    /// The bound that no window exceeds.
    memory: u64,
    /// Zero: not known, and nothing is made of it.
    round_trip: Duration,
    /// When the rate was looked at, and what had come by then.
    looked: (Time, u64),
    /// Round trips in which something came; those in which the window held it up and could not be larger.
    trips: u64,
    held: u64,
}

impl Window {
    /// `memory`, bytes, is never exceeded.
    pub(super) fn new(memory: u64, round_trip: Option<Duration>) -> Window {
        let round_trip = round_trip.unwrap_or_default();
        Window { len: 0, memory, round_trip, looked: (Time::default(), 0), trips: 0, held: 0 }
    }

    /// It would have been larger most of the time, with more memory.
    pub(super) fn is_held_by_memory(&self) -> bool {
        self.held * 2 > self.trips
    }

    /// The path was measured anew.
    pub(super) fn set_round_trip(&mut self, round_trip: Duration) {
        self.round_trip = round_trip;
    }

    /// The window from now on, bytes. `frame_cost_max` is the dearest frame so far; `idle` says that a
    /// storage target which files go to has nothing here.
    ///
    /// It doubles when storage keeps up and nearly all that was granted has come, or more than a part of it
    /// ([`TRIPS`]) comes within a round trip: then a longer path, or a faster one, needs a larger one. It
    /// doubles as well for an idle target: what others are slow to write must not keep it waiting.
    pub(super) fn open(&mut self, now: Time, credit: Credit, frame_cost_max: u64, idle: bool) -> u64 {
        let floor = LEN_MIN.min(self.memory / 4).max(FRAMES_MIN * frame_cost_max);
        self.len = self.len.max(floor.min(self.memory));
        let coming = credit.granted.saturating_sub(credit.received);
        let here = credit.received.saturating_sub(credit.freed);
        let came = self.trip(now, credit.received);
        let fills = came.is_some_and(|came| came > self.len / TRIPS);
        let keeps_up = here <= self.len / 4 * 3 || idle;
        self.trips += u64::from(came.is_some_and(|came| came > 0));
        self.held += u64::from(self.len == self.memory && fills && keeps_up && coming > self.len / 2);
        if credit.granted > 0 && keeps_up && (coming < self.len / 4 || fills) {
            self.len = self.len.saturating_mul(2).min(self.memory);
        }
        self.len
    }

    /// What comes in a round trip, if one has passed since the last look.
    fn trip(&mut self, now: Time, received: u64) -> Option<u64> {
        let (at, then) = self.looked;
        let span = now.since(at);
        if span < self.round_trip.max(LOOK_MIN) {
            return None;
        }
        self.looked = (now, received);
        let came = u128::from(received.saturating_sub(then));
        let came = came.saturating_mul(self.round_trip.as_nanos()) / span.as_nanos().max(1);
        Some(u64::try_from(came).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: u64 = 600 << 20;
    const FRAME: u64 = 4 << 20;

    /// The window after ten seconds of a path of this length and rate (bytes per second), whose packets come
    /// evenly and whose source has always something to send; storage holds what came for as long as `storage`
    /// says.
    fn window_of(memory: u64, round_trip_ms: u64, rate: u64, storage_ms: u64) -> Window {
        let mut window = Window::new(memory, Some(Duration::from_millis(round_trip_ms)));
        // Per millisecond: the total granted by the end of it, and the total received.
        let (mut granted, mut received) = (vec![0_u64], vec![0_u64]);
        for ms in 1..=10_000_u64 {
            let ago =
                |line: &[u64], by: u64| line.get((ms.saturating_sub(by)) as usize).copied().unwrap_or(0);
            // What was granted a round trip ago can be here now.
            let may = if ms > round_trip_ms { ago(&granted, round_trip_ms.max(1)) } else { 0 };
            received.push((received[ms as usize - 1] + rate / 1000).min(may));
            let freed = if ms > storage_ms { ago(&received, storage_ms) } else { 0 };
            let credit = Credit { granted: granted[ms as usize - 1], received: received[ms as usize], freed };
            let len = window.open(Time(ms * 1_000_000), credit, FRAME, false);
            // As the sink does it: an eighth at least.
            let owed = (len + freed).saturating_sub(credit.granted);
            granted.push(credit.granted + if owed >= len / 8 { owed } else { 0 });
        }
        window
    }

    /// Goal: a window is never what holds a path that memory suffices for, however evenly its packets come;
    /// and one that suffices stays as it is.
    /// Method: paths of the papers' round trips, 1 and 10 Gbit/s.
    #[test]
    fn a_window_fills_any_path() {
        for (round_trip, rate) in
            [(128, 1_250_000_000), (163, 1_250_000_000), (27, 1_250_000_000), (163, 125_000_000)]
        {
            let product = rate / 1000 * round_trip;
            let len = window_of(MEMORY, round_trip, rate, 0).len;
            assert!(
                len >= (2 * product).min(MEMORY),
                "{round_trip} ms, {rate}: {len}, {product} are under way"
            );
        }
        assert_eq!(window_of(MEMORY, 27, 125_000_000, 0).len, LEN_MIN);
        assert_eq!(window_of(MEMORY, 0, 1_250_000_000, 0).len, LEN_MIN);
    }

    /// Goal: what storage takes its time for is not the path's need.
    /// Method: storage that holds everything for a second, behind a path of 1 Gbit/s.
    #[test]
    fn slow_storage_opens_no_window() {
        assert!(window_of(MEMORY, 27, 125_000_000, 1000).len <= 2 * LEN_MIN);
    }

    /// Goal: memory that is too small for a path is named, and memory that suffices is not, nor where storage
    /// is slow.
    #[test]
    fn too_little_memory_is_known() {
        assert!(window_of(64 << 20, 128, 1_250_000_000, 0).is_held_by_memory());
        assert!(!window_of(MEMORY, 128, 1_250_000_000, 0).is_held_by_memory());
        assert!(!window_of(64 << 20, 128, 125_000_000, 0).is_held_by_memory());
        assert!(!window_of(64 << 20, 27, 125_000_000, 1000).is_held_by_memory());
    }

    /// Goal: a window never exceeds the memory, and begins as a quarter of a small one.
    #[test]
    fn memory_bounds_it() {
        let mut window = Window::new(8 << 20, Some(Duration::from_millis(128)));
        let open = |window: &mut Window, ms: u64, received: u64| {
            let credit = Credit { granted: received, received, freed: received };
            window.open(Time(ms * 1_000_000), credit, 64 << 10, false)
        };
        assert_eq!(open(&mut window, 0, 0), 2 << 20);
        assert_eq!((1..20).map(|ms| open(&mut window, ms * 200, ms << 30)).max(), Some(8 << 20));
    }
}
