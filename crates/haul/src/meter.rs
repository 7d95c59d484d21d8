//! Where the time goes: thread time of each stage, busy, starved or blocked.
//!
//! A thread of a stage calls [`Meter::busy`] around its work; while it waits, it asks which kind of waiting
//! it is ([`Meter::set_idle`] is set by the driver, which knows).

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use haul_core::stage::{Stage, StageTime};

/// Thread time of the five stages. Shared by all threads of one end.
#[derive(Default)]
pub struct Meter {
    cells: [Cell; 5],
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
        let cell = self.cell(stage);
        let which =
            if cell.idle_is_blocked.load(Ordering::Relaxed) == 0 { &cell.starved } else { &cell.blocked };
        which.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }
    /// The driver says why threads of `stage` wait from now on: for the stage after (`blocked`) or before.
    pub fn set_idle(&self, stage: Stage, blocked: bool) {
        self.cell(stage).idle_is_blocked.store(u8::from(blocked), Ordering::Relaxed);
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
