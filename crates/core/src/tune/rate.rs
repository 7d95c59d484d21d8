//! A limit on the rate: one bucket for all streams.
//!
//! In: bytes that are about to be sent, the limit, the time. Out: how long to wait first. What is sent in
//! pieces of [`piece`] is even at a scale of [`GRAIN`]; over any time the bytes let through are at most the
//! limit times that time, and [`GRAIN`]'s worth, and one piece for each stream.
//!
//! The limit is an argument of each call, so that it can change while data flows: what was promised before
//! keeps its turn, all that follows goes by the new one.

use std::time::Duration;

use crate::ids::Time;

/// Unused time is remembered for so long, and a piece takes about as long.
pub const GRAIN: Duration = Duration::from_millis(10);
/// Least limit, bytes per second: below it a piece would take too long for a stop to be noticed.
pub const RATE_MIN: u64 = 64 * 1024;
/// Bounds of a piece, bytes.
const PIECE_MIN: u64 = 4 * 1024;
const PIECE_MAX: u64 = 1024 * 1024;

/// How many bytes are sent at a time under a limit of `rate` bytes per second.
pub fn piece(rate: u64) -> usize {
    let bytes = u128::from(rate) * GRAIN.as_nanos() / 1_000_000_000;
    bytes.clamp(PIECE_MIN.into(), PIECE_MAX.into()) as usize
}

/// When the next byte may go.
#[derive(Clone, Debug, Default)]
pub struct Bucket {
    free: Time,
}

impl Bucket {
    /// Takes a turn for `len` bytes under a limit of `rate` bytes per second ([`RATE_MIN`] at least), and
    /// says how long to wait before they are sent. `now` never goes back.
    pub fn take(&mut self, now: Time, len: u64, rate: u64) -> Duration {
        let start = self.free.0.max(now.0.saturating_sub(GRAIN.as_nanos() as u64));
        let cost = u128::from(len) * 1_000_000_000 / u128::from(rate.max(RATE_MIN));
        self.free = Time(start.saturating_add(u64::try_from(cost).unwrap_or(u64::MAX)));
        Duration::from_nanos(start.saturating_sub(now.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Streams that send without end, in virtual time: what left in each grain of `seconds`.
    fn run(streams: usize, rate: impl Fn(u64) -> u64, seconds: u64) -> Vec<u64> {
        let mut bucket = Bucket::default();
        let grain = GRAIN.as_nanos() as u64;
        let mut sent = vec![0; (seconds * 1_000_000_000 / grain) as usize];
        let mut at = vec![0_u64; streams];
        loop {
            let (i, now) = at.iter().copied().enumerate().min_by_key(|(_, at)| *at).unwrap();
            let limit = rate(now);
            let len = piece(limit) as u64;
            let when = now + bucket.take(Time(now), len, limit).as_nanos() as u64;
            let Some(cell) = sent.get_mut((when / grain) as usize) else { return sent };
            *cell += len;
            // Writing takes a little, or an unlimited stream would never come to an end.
            at[i] = when + 1000;
        }
    }

    /// Goal: whatever the number of streams, together they keep the limit and use all of it, evenly.
    #[test]
    fn the_limit_is_kept_and_used() {
        for rate in [RATE_MIN, 1_000_000, 12_500_000, 1_250_000_000] {
            for streams in [1, 4, 64] {
                let sent = run(streams, |_| rate, 10);
                let total: u64 = sent.iter().sum();
                let (least, most) = (rate * 10 * 98 / 100, rate * 10 * 101 / 100 + 2 * piece(rate) as u64);
                assert!((least..=most).contains(&total), "{rate} by {streams}: {total}");
                // A tenth of a second is never more than 130 % of its share (and the start's grain).
                for tenth in sent.chunks(10) {
                    let burst: u64 = tenth.iter().sum();
                    assert!(
                        burst <= rate * 13 / 100 + 2 * piece(rate) as u64,
                        "{rate} by {streams}: {burst}"
                    );
                }
            }
        }
    }

    /// Goal: a new limit is in force within a tenth of a second, up and down.
    #[test]
    fn a_new_limit_takes_hold() {
        let limit =
            |now: u64| if (2_000_000_000..4_000_000_000).contains(&now) { 1_000_000 } else { 50_000_000 };
        let sent = run(8, limit, 6);
        let second = |from: usize| sent[from..from + 100].iter().sum::<u64>();
        assert!((45_000_000..=52_000_000).contains(&second(100)), "{}", second(100));
        assert!((900_000..=1_600_000).contains(&second(210)), "{}", second(210));
        assert!((45_000_000..=52_000_000).contains(&second(420)), "{}", second(420));
    }

    /// Goal: idle time is not saved up, and no number makes it overflow.
    #[test]
    fn idle_time_is_forgotten() {
        let mut bucket = Bucket::default();
        let hour = 3_600_000_000_000;
        assert_eq!(bucket.take(Time(hour), 1_000_000, 1_000_000), Duration::ZERO);
        assert_eq!(bucket.take(Time(hour), 1, 1_000_000), Duration::from_millis(990));
        bucket.take(Time(u64::MAX), u64::MAX, 0);
        bucket.take(Time(u64::MAX), u64::MAX, u64::MAX);
        assert_eq!((piece(1), piece(u64::MAX)), (4096, 1 << 20));
    }
}
