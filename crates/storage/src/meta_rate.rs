//! How many operations of metadata an end makes in a second, at most.
//!
//! In: entries, each with the operations that it costs. Out: leave to begin, at once or after a wait.
//! Invariants: in any time no more operations begin than the rate allows in that time and [`BURST`] together,
//! and those of the entries that are under way, one for each thread; who came first begins first; nobody
//! waits after the rate was lifted. Who waits says so again and again, so that nobody takes it for hung. What
//! an entry costs for sure is taken before it is begun. What it turns out to cost beyond that is charged
//! where it is made, also with a lock held, for that never waits: what begins later does.
//! Left out: what an operation costs the storage. A `stat` counts as much as a `rename`. Reading, writing,
//! syncing and what is done once in a copy or once for a file system are not counted.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Operations a second that can be asked for: below the least an entry takes minutes, and no storage makes
/// more than the most.
pub const RATES: [u64; 2] = [1, 10_000_000];
/// What was not used in so much time may be used at once: it hides how coarsely threads wake.
const BURST: Duration = Duration::from_millis(50);
/// How often who waits looks around, where nothing asks for more.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// What entries cost, in operations.
pub(crate) mod cost {
    /// A look at a name.
    pub(crate) const LOOK: u32 = 1;
    /// Extended attributes and lists: their names, and what they are, or what they become.
    pub(crate) const ATTRIBUTES: u32 = 2;
    /// The list behind a mode.
    pub(crate) const LIST: u32 = 1;
    /// Where a symbolic link leads.
    pub(crate) const READ_LINK: u32 = 1;
    /// Opening, and a look at what was opened.
    pub(crate) const OPEN: u32 = 2;
    /// A look at what is open, and at its name.
    pub(crate) const LOOK_AGAIN: u32 = 2;
    /// Making a directory, or finding that it stands; opening it, and a look at it.
    pub(crate) const MAKE_DIR: u32 = 3;
    /// Making a file, a link or a special file.
    pub(crate) const CREATE: u32 = 1;
    /// Mode, times, and a look at what became of them.
    pub(crate) const SET: u32 = 3;
    /// Whose it is, and whose it becomes.
    pub(crate) const OWNER: u32 = 2;
    /// A look at the name that a file gets, and the name.
    pub(crate) const NAME: u32 = 2;
    /// A further name.
    pub(crate) const LINK: u32 = 1;
    /// Removing a name.
    pub(crate) const REMOVE: u32 = 1;
}

type Clock = Box<dyn Fn() -> Duration + Send + Sync>;

/// The rate of an end.
#[derive(Default)]
pub(crate) struct MetaRate {
    /// `None`: as many as there are.
    limit: Option<Limit>,
}

struct Limit {
    per_second: u64,
    clock: Clock,
    state: Mutex<State>,
    lifted: Condvar,
}

struct State {
    bucket: Bucket,
    /// Nobody waits any more.
    lifted: bool,
    operations: u64,
    /// Of these, those that did not begin at once.
    waited: u64,
}

/// When operations may begin, by the rate alone.
struct Bucket {
    per_second: u64,
    /// When the next may, at a steady rate.
    next: Duration,
}

impl Bucket {
    /// When `operations` more may begin, that are asked for `now`.
    fn take(&mut self, now: Duration, operations: u32) -> Duration {
        let begin = self.next.max(now.saturating_sub(BURST));
        // Rounded up: the rate is never exceeded.
        let nanos = (u128::from(operations) * 1_000_000_000).div_ceil(u128::from(self.per_second));
        self.next = begin.saturating_add(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)));
        begin
    }
}

impl MetaRate {
    /// At most so many operations a second; `None`: as many as there are.
    pub(crate) fn new(per_second: Option<u64>) -> MetaRate {
        let begin = Instant::now();
        MetaRate::with_clock(per_second, Box::new(move || begin.elapsed()))
    }

    fn with_clock(per_second: Option<u64>, clock: Clock) -> MetaRate {
        let limit = |per_second: u64| {
            let per_second = per_second.max(1);
            let bucket = Bucket { per_second, next: Duration::ZERO };
            let state = Mutex::new(State { bucket, lifted: false, operations: 0, waited: 0 });
            Limit { per_second, clock, state, lifted: Condvar::new() }
        };
        MetaRate { limit: per_second.map(limit) }
    }

    /// Waits until so many operations may begin, or the rate is lifted.
    pub(crate) fn take(&self, operations: u32) {
        self.take_telling(operations, || (LOOK_EVERY, None::<fn()>));
    }

    /// The same on a thread that is watched: `watch` says how often it has to tell that it waits, and how. It
    /// is asked only where there is a wait.
    pub(crate) fn take_telling<T: Fn()>(
        &self,
        operations: u32,
        watch: impl FnOnce() -> (Duration, Option<T>),
    ) {
        let Some(limit) = self.limit.as_ref().filter(|_| operations > 0) else { return };
        let mut state = limit.lock();
        state.operations += u64::from(operations);
        if state.lifted {
            return;
        }
        let now = (limit.clock)();
        let begin = state.bucket.take(now, operations);
        if begin <= now {
            return;
        }
        state.waited += u64::from(operations);
        let (every, tell) = watch();
        while !state.lifted {
            let left = begin.saturating_sub((limit.clock)());
            if left.is_zero() {
                break;
            }
            let waited = limit.lifted.wait_timeout(state, left.min(every));
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            // It has locks of its own.
            tell.iter().for_each(|tell| tell());
            state = limit.lock();
        }
    }

    /// Counts operations of an entry that is under way, beyond those that were taken for it: these are made
    /// at once, and what begins later waits for them.
    pub(crate) fn charge(&self, operations: u32) {
        let Some(limit) = self.limit.as_ref().filter(|_| operations > 0) else { return };
        let mut state = limit.lock();
        state.operations += u64::from(operations);
        if !state.lifted {
            let now = (limit.clock)();
            state.bucket.take(now, operations);
        }
    }

    /// Nobody waits for it from now on: what was begun shall end.
    pub(crate) fn lift(&self) {
        if let Some(limit) = &self.limit {
            limit.lock().lifted = true;
            limit.lifted.notify_all();
        }
    }

    /// For the report: its name, and what it did.
    pub(crate) fn report(&self, end: &str) -> Option<(String, String)> {
        let limit = self.limit.as_ref()?;
        let State { operations, waited, .. } = *limit.lock();
        let did = match waited {
            0 => format!("{operations} operations, none waited for it"),
            _ => format!("it held the copy back: {waited} of {operations} operations waited for it"),
        };
        Some((format!("metadata rate at the {end}"), format!("{}/s, as asked ({did})", limit.per_second)))
    }
}

impl Limit {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc::channel;

    use super::*;

    /// A rate whose clock stands until it is turned: to so many milliseconds.
    fn turned(per_second: u64) -> (Arc<MetaRate>, Arc<AtomicU64>) {
        let millis = Arc::new(AtomicU64::new(0));
        let shown = millis.clone();
        let clock = Box::new(move || Duration::from_millis(shown.load(Ordering::SeqCst)));
        (Arc::new(MetaRate::with_clock(Some(per_second), clock)), millis)
    }

    /// Looks at the clock often, for nobody wakes it when that is turned.
    fn take(rate: &MetaRate, operations: u32, told: &AtomicU64) {
        let tell = || {
            told.fetch_add(1, Ordering::SeqCst);
        };
        rate.take_telling(operations, || (Duration::from_millis(1), Some(tell)));
    }

    /// Goal: whatever is asked for and when, no window has more operations than the rate allows in it and in
    /// a burst, but for those of one entry; and who always asks gets all of the rate.
    /// Method: seeded entries of different costs, with and without pauses; all windows between two of them.
    #[test]
    fn no_window_has_more() {
        for seed in 0..20 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let per_second = [7, 1000, 12_345, 1_000_000][seed as usize % 4];
            let mut bucket = Bucket { per_second, next: Duration::ZERO };
            let (mut now, mut begun) = (Duration::ZERO, Vec::new());
            let pauses = seed % 2 == 0;
            for _ in 0..300 {
                let operations = rng.u32(1..=5);
                now = now.max(bucket.take(now, operations));
                begun.push((now, u64::from(operations)));
                if pauses && rng.u8(..) < 20 {
                    now += Duration::from_millis(rng.u64(0..500));
                }
            }
            for first in 0..begun.len() {
                let mut sum = 0;
                for (at, operations) in &begun[first..] {
                    sum += operations;
                    let window = (*at - begun[first].0 + BURST).as_secs_f64();
                    assert!(
                        sum as f64 <= window * per_second as f64 + 5.0,
                        "seed {seed}: {sum} in {window} s"
                    );
                }
            }
            let all: u64 = begun.iter().map(|(_, operations)| operations).sum();
            if !pauses {
                assert!(all as f64 >= 0.99 * (now.as_secs_f64() * per_second as f64), "seed {seed}");
            }
        }
    }

    /// Goal: who has to wait waits until the clock is there, tells all the while that it waits, and is
    /// counted.
    /// Method: 10 a second and a clock that stands; the third of three entries has its turn at 200 ms.
    #[test]
    fn a_wait_is_told_and_ends_by_the_clock() {
        let (rate, millis) = turned(10);
        let told = Arc::new(AtomicU64::new(0));
        take(&rate, 1, &told);
        assert_eq!(told.load(Ordering::SeqCst), 0, "the first begins at once");
        let (done, ended) = channel();
        let waiter = {
            let (rate, told) = (rate.clone(), told.clone());
            std::thread::spawn(move || {
                for i in 0..2 {
                    take(&rate, 1, &told);
                    done.send(i).expect("heard");
                }
            })
        };
        let stands = || {
            let until = told.load(Ordering::SeqCst) + 5;
            while told.load(Ordering::SeqCst) < until {
                assert!(ended.try_recv().is_err(), "the clock stands");
                std::thread::yield_now();
            }
        };
        stands();
        millis.store(100, Ordering::SeqCst);
        assert_eq!(ended.recv(), Ok(0));
        stands();
        millis.store(200, Ordering::SeqCst);
        assert_eq!(ended.recv(), Ok(1));
        waiter.join().expect("no panic");
        let (name, text) = rate.report("sink").expect("there is a rate");
        assert_eq!(name, "metadata rate at the sink");
        assert_eq!(text, "10/s, as asked (it held the copy back: 2 of 3 operations waited for it)");
    }

    /// Goal: what an entry turns out to cost is counted, does not wait, and is waited for by what begins
    /// later.
    /// Method: 10 a second and a clock that stands; one is taken and two are charged, so that the next has
    /// its turn at 300 ms.
    #[test]
    fn who_comes_later_waits_for_what_was_charged() {
        let (rate, millis) = turned(10);
        let told = Arc::new(AtomicU64::new(0));
        take(&rate, 1, &told);
        rate.charge(2);
        assert_eq!(told.load(Ordering::SeqCst), 0, "neither waits");
        millis.store(299, Ordering::SeqCst);
        let waiter = {
            let (rate, told) = (rate.clone(), told.clone());
            std::thread::spawn(move || take(&rate, 1, &told))
        };
        while told.load(Ordering::SeqCst) < 5 {
            assert!(!waiter.is_finished(), "the clock stands");
            std::thread::yield_now();
        }
        millis.store(300, Ordering::SeqCst);
        waiter.join().expect("no panic");
        let (_, text) = rate.report("sink").expect("there is a rate");
        assert_eq!(text, "10/s, as asked (it held the copy back: 1 of 4 operations waited for it)");
        rate.lift();
        rate.charge(1000);
        rate.take(1);
    }

    /// Goal: a rate that is lifted lets all go on that wait, and nobody waits again.
    /// Method: four threads wait for years by a clock that stands.
    #[test]
    fn lifted_nobody_waits() {
        let (rate, _) = turned(1);
        rate.take(1_000_000_000);
        let waiters: Vec<_> = (0..4)
            .map(|_| {
                let rate = rate.clone();
                std::thread::spawn(move || rate.take(1))
            })
            .collect();
        rate.lift();
        waiters.into_iter().for_each(|waiter| waiter.join().expect("no panic"));
        rate.take(7);
    }

    /// Goal: without a rate nothing is counted nor told.
    #[test]
    fn without_a_rate_nothing_is_told() {
        let rate = MetaRate::new(None);
        rate.take(u32::MAX);
        assert_eq!(rate.report("source"), None);
    }
}
