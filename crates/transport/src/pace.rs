//! The user's limit on the rate, shared by all streams of the end that sends.
//!
//! In: a limit that may change at any time, bytes about to be sent. Out: a wait. The arithmetic is core's
//! ([`haul_core::tune::rate`]); this adds the clock, the lock and the sleep.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use haul_core::ids::Time;
use haul_core::tune::rate::{Bucket, RATE_MIN, piece};

/// A wait is cut into pieces of this length, so that a stop or a new limit is noticed.
const NAP: Duration = Duration::from_millis(100);

/// One limit for all streams.
pub struct Pacer {
    /// Bytes per second; 0: none.
    rate: AtomicU64,
    bucket: Mutex<Bucket>,
    start: Instant,
    /// Time that streams spent waiting, nanoseconds, summed over the streams.
    waited: AtomicU64,
}

impl Pacer {
    /// `rate`: bytes per second; `None`: no limit.
    pub fn new(rate: Option<u64>) -> Pacer {
        let pacer = Pacer {
            rate: AtomicU64::new(0),
            bucket: Mutex::default(),
            start: Instant::now(),
            waited: AtomicU64::new(0),
        };
        pacer.set(rate);
        pacer
    }

    /// A new limit from now on; [`RATE_MIN`] at least. The same as before: nothing happens.
    pub fn set(&self, rate: Option<u64>) {
        let rate = rate.map_or(0, |rate| rate.max(RATE_MIN));
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        if self.rate.load(Ordering::Relaxed) == rate {
            return;
        }
        // Turns that were given out by the old limit are void: who waits for one goes on at once.
        *bucket = Bucket::default();
        self.rate.store(rate, Ordering::Relaxed);
    }

    /// The limit, bytes per second.
    pub fn rate(&self) -> Option<u64> {
        Some(self.rate.load(Ordering::Relaxed)).filter(|rate| *rate > 0)
    }

    /// Time that streams spent waiting, summed over the streams.
    pub fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited.load(Ordering::Relaxed))
    }

    /// How many of the next `len` bytes (not zero) to send now, after this has waited for their turn. `over`
    /// ends the wait.
    pub fn take(&self, len: usize, over: impl Fn() -> bool) -> usize {
        let Some(rate) = self.rate() else { return len };
        let len = len.min(piece(rate));
        let wait = {
            let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Time(self.start.elapsed().as_nanos() as u64);
            bucket.take(now, len as u64, rate)
        };
        let begin = Instant::now();
        loop {
            let left = wait.saturating_sub(begin.elapsed());
            // A new limit: what is waited for was reckoned by the old one.
            if left.is_zero() || over() || self.rate() != Some(rate) {
                break;
            }
            thread::sleep(left.min(NAP));
        }
        self.waited.fetch_add(begin.elapsed().as_nanos() as u64, Ordering::Relaxed);
        len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: without a limit nothing waits and nothing is cut.
    #[test]
    fn no_limit_no_wait() {
        let pacer = Pacer::new(None);
        assert_eq!((pacer.take(64 << 20, || false), pacer.rate()), (64 << 20, None));
        assert_eq!(pacer.waited(), Duration::ZERO);
    }

    /// Goal: several threads together keep the limit; what they waited is counted.
    #[test]
    fn threads_share_the_limit() {
        let pacer = Pacer::new(Some(20_000_000));
        let begin = Instant::now();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut left = 1_500_000;
                    while left > 0 {
                        left -= pacer.take(left, || false);
                    }
                });
            }
        });
        // 6 MB at 20 MB/s are 300 ms, less the grain and the last piece of each thread.
        assert!(begin.elapsed() >= Duration::from_millis(240), "{:?}", begin.elapsed());
        assert!(pacer.waited() > Duration::ZERO);
    }

    /// Goal: a wait ends when the stream is over, and when the limit is lifted.
    /// Method: waits of more than a minute.
    #[test]
    fn a_wait_can_be_ended() {
        let pacer = Pacer::new(Some(1));
        assert_eq!(pacer.rate(), Some(RATE_MIN));
        for _ in 0..1000 {
            pacer.take(usize::MAX, || true);
        }
        thread::scope(|scope| {
            let waits = scope.spawn(|| pacer.take(usize::MAX, || false));
            thread::sleep(Duration::from_millis(50));
            assert!(!waits.is_finished(), "{:?}", pacer.waited());
            pacer.set(None);
            waits.join().unwrap();
        });
        assert!(pacer.waited() < Duration::from_secs(30));
    }
}
