//! Where the time goes: thread time of each stage, busy, starved or blocked.
//!
//! A thread of a stage calls [`Meter::busy`] around its work; while it waits, it asks which kind of waiting
//! it is ([`Meter::set_idle`] is set by the driver, which knows).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use haul_core::stage::{Stage, StageTime};

/// Thread time of the five stages. Shared by all threads of one end.
#[derive(Default)]
pub struct Meter {
    cells: [Cell; 5],
    /// Since when the clock of `pause` counts; set at the first pause.
    epoch: OnceLock<Instant>,
    /// The last time that someone paused the session: from, to (nanoseconds; [`u64::MAX`] while it lasts).
    pause: [AtomicU64; 2],
}

#[derive(Default)]
struct Cell {
    busy: AtomicU64,
    starved: AtomicU64,
    blocked: AtomicU64,
    idle_is_blocked: AtomicU8,
}

impl Meter {
    /// Runs `work` and counts its time as busy.
    pub fn busy<T>(&self, stage: Stage, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        self.add_busy(stage, start.elapsed());
        result
    }
    /// Counts time as busy.
    pub fn add_busy(&self, stage: Stage, time: Duration) {
        self.cell(stage).busy.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }
    /// Counts time in which a thread of `stage` did the work of the stage after.
    pub fn add_blocked(&self, stage: Stage, time: Duration) {
        self.cell(stage).blocked.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }
    /// Counts time in which a thread of `stage` waited, as the kind of waiting that the driver last set.
    pub fn add_idle(&self, stage: Stage, time: Duration) {
        let time = self.outside_of_pause(time);
        let cell = self.cell(stage);
        let which =
            if cell.idle_is_blocked.load(Ordering::Relaxed) == 0 { &cell.starved } else { &cell.blocked };
        which.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }
    /// The driver says why threads of `stage` wait from now on: for the stage after (`blocked`) or before.
    pub fn set_idle(&self, stage: Stage, blocked: bool) {
        self.cell(stage).idle_is_blocked.store(u8::from(blocked), Ordering::Relaxed);
    }
    /// While the session is paused no waiting is counted, for it is nobody's. (Of a wait that spans several
    /// pauses, the last one is taken off.)
    pub fn set_paused(&self, paused: bool) {
        let [from, to] = &self.pause;
        let now = nanos(self.epoch.get_or_init(Instant::now).elapsed());
        let lasts = to.load(Ordering::Relaxed) == u64::MAX;
        if paused && !lasts {
            from.store(now, Ordering::Relaxed);
            to.store(u64::MAX, Ordering::Relaxed);
        } else if !paused && lasts {
            to.store(now, Ordering::Relaxed);
        }
    }
    /// What of a wait that ends now lay outside of the last pause.
    fn outside_of_pause(&self, time: Duration) -> Duration {
        let Some(epoch) = self.epoch.get() else { return time };
        let now = nanos(epoch.elapsed());
        let [from, to] = &self.pause;
        let begun = now.saturating_sub(nanos(time));
        let (from, to) = (from.load(Ordering::Relaxed).max(begun), to.load(Ordering::Relaxed).min(now));
        time.saturating_sub(Duration::from_nanos(to.saturating_sub(from)))
    }
    /// The time counted so far, in the order of [`Stage::ALL`].
    pub fn read(&self) -> [StageTime; 5] {
        std::array::from_fn(|i| {
            let cell = &self.cells[i];
            StageTime {
                busy: cell.busy.load(Ordering::Relaxed),
                starved: cell.starved.load(Ordering::Relaxed),
                blocked: cell.blocked.load(Ordering::Relaxed),
            }
        })
    }
    fn cell(&self, stage: Stage) -> &Cell {
        &self.cells[stage as usize]
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what was waited while the session was paused counts for no stage, whenever the wait ends.
    /// Method: waits within a pause, across its end and without any.
    #[test]
    fn waits_in_a_pause_are_not_counted() {
        let starved = |meter: &Meter| meter.read()[Stage::Network as usize].starved;
        let meter = Meter::default();
        meter.add_idle(Stage::Network, Duration::from_millis(3));
        assert_eq!(starved(&meter), 3_000_000);
        let begun = Instant::now();
        meter.set_paused(true);
        std::thread::sleep(Duration::from_millis(20));
        meter.add_idle(Stage::Network, begun.elapsed());
        assert!(starved(&meter) < 13_000_000, "most of it was in the pause");
        let before = starved(&meter);
        meter.set_paused(false);
        let paused = begun.elapsed();
        meter.add_idle(Stage::Network, begun.elapsed() + Duration::from_millis(5));
        let counted = starved(&meter) - before;
        assert!(counted >= 5_000_000, "what lay before the pause counts");
        assert!(counted < 5_000_000 + nanos(begun.elapsed() - paused) + 10_000_000, "and the pause does not");
    }
}
