//! Direct or buffered: what the user asked for, what file systems allow, and what was measured.
//!
//! In: reads that begin and end in each mode; refusals. Out: the mode of the next one, and the reason for
//! people. A mode's clock runs while at least one of its reads is in flight, so that what many do at a time
//! is counted once. Reads that the page cache answers are kept out of it. Modes change without a barrier: a
//! read is right in either one, and stragglers of the mode before do not count.
//!
//! Left out: a choice for each file system. One that refuses is remembered; the others are measured together.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use haul_core::io::choose::{Chooser, Window};
use haul_core::io::{IoMode, IoPolicy};

/// File systems whose refusal is remembered; of others each file finds out by itself.
const REFUSED_MAX: usize = 1024;

/// The choice of a session's source.
pub(super) struct Modes {
    is_direct_possible: bool,
    state: Mutex<ModesState>,
}

struct ModesState {
    chooser: Chooser,
    clocks: [BusyClock; 2],
    /// A direct read came back whole, so that a refusal is not everybody's.
    direct_works: bool,
    /// Why a file system does no direct I/O, by device number.
    refused: BTreeMap<u64, Box<str>>,
}

/// Time in which at least one read was in flight.
#[derive(Default)]
struct BusyClock {
    in_flight: u32,
    since: Option<Instant>,
    busy: Duration,
}

impl BusyClock {
    fn begin(&mut self, now: Instant) {
        if self.in_flight == 0 {
            self.since = Some(now);
        }
        self.in_flight += 1;
    }

    fn end(&mut self, now: Instant) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if let Some(since) = self.since {
            self.busy += now.saturating_duration_since(since);
            self.since = (self.in_flight > 0).then_some(now);
        }
    }

    /// What was counted since it was last taken.
    fn take(&mut self) -> Duration {
        std::mem::take(&mut self.busy)
    }
}

impl Modes {
    /// Under [`IoPolicy::Auto`] direct comes first: it leaves the page cache alone and costs no copy, and
    /// where it is slower that is found out.
    pub(super) fn new(policy: IoPolicy) -> Modes {
        Modes {
            is_direct_possible: policy != IoPolicy::Buffered,
            state: Mutex::new(ModesState {
                chooser: Chooser::new(policy, IoMode::Direct),
                clocks: Default::default(),
                direct_works: false,
                refused: BTreeMap::new(),
            }),
        }
    }

    /// Whether direct reads come into question at all on this file system.
    pub(super) fn may_be_direct(&self, dev: u64) -> bool {
        self.is_direct_possible && !self.lock().refused.contains_key(&dev)
    }

    /// The mode of the next read.
    pub(super) fn mode(&self) -> IoMode {
        self.lock().chooser.mode()
    }

    /// A read that storage has to answer begins.
    pub(super) fn begin(&self, mode: IoMode) {
        self.lock().clocks[mode as usize].begin(Instant::now());
    }

    /// It ended, with `bytes` of payload; none if it failed.
    pub(super) fn end(&self, mode: IoMode, bytes: u64) {
        let mut state = self.lock();
        let clock = &mut state.clocks[mode as usize];
        clock.end(Instant::now());
        if bytes == 0 {
            return;
        }
        let busy = clock.take();
        state.direct_works |= mode == IoMode::Direct;
        state.chooser.on_window(Window { mode, bytes, busy });
    }

    /// The file system does no direct I/O.
    pub(super) fn on_refused(&self, dev: u64, why: &str) {
        let mut state = self.lock();
        if state.refused.len() < REFUSED_MAX {
            state.refused.insert(dev, why.into());
        }
    }

    /// The mode and why, for people.
    pub(super) fn report(&self) -> String {
        let state = self.lock();
        let mut chooser = state.chooser.clone();
        if let (false, Some(why)) = (state.direct_works, state.refused.values().next()) {
            chooser.on_refused(&**why);
        }
        chooser.choice().to_string()
    }

    fn lock(&self) -> MutexGuard<'_, ModesState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: time in which several reads are in flight is counted once, and no time twice.
    /// Method: reads that overlap, touch, and leave a gap, with what was counted taken in between.
    #[test]
    fn the_clock_counts_the_union() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut clock = BusyClock::default();
        clock.begin(at(0));
        clock.begin(at(10));
        clock.end(at(30));
        assert_eq!(clock.take(), Duration::from_millis(30));
        clock.end(at(50));
        assert_eq!(clock.take(), Duration::from_millis(20));
        clock.begin(at(100));
        clock.end(at(101));
        clock.begin(at(101));
        clock.end(at(105));
        assert_eq!(clock.take(), Duration::from_millis(5));
        assert_eq!(clock.take(), Duration::ZERO);
    }

    /// Goal: a refusal is believed of its file system, and told only while direct reads work nowhere.
    #[test]
    fn a_refusal_is_of_one_file_system() {
        let modes = Modes::new(IoPolicy::Direct);
        modes.on_refused(7, "it has none");
        assert!(!modes.may_be_direct(7) && modes.may_be_direct(8));
        assert!(modes.report().starts_with("buffered (direct is refused: it has none"), "{}", modes.report());
        modes.begin(IoMode::Direct);
        modes.end(IoMode::Direct, 0);
        assert!(modes.report().starts_with("buffered"), "a failed read proves nothing");
        modes.begin(IoMode::Direct);
        modes.end(IoMode::Direct, 1);
        assert!(modes.report().starts_with("direct"), "{}", modes.report());
        assert!(!Modes::new(IoPolicy::Buffered).may_be_direct(8));
    }
}
