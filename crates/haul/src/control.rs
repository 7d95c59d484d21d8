//! A copy that runs, in the hands of others: stopped, paused, its knobs turned, its state looked at.
//!
//! In: wishes, from any thread. Out: what the near end's driver reads in each of its turns, five a second at least,
//! and what it says of how things stand.
//! Invariant: a wish that cannot come true is refused when it is spoken, as soon as that is known; before the two ends
//! have met it is kept, and dropped with a note where the other end cannot follow.
//! Left out: who may ask (see [`crate::ctl`]), and how knobs are turned (see `driver::steer`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use haul_core::schedule::table::Table;
use haul_core::tune::rate::RATE_MIN;
use haul_core::wire::{KNOB_THREADS_MAX, Knobs, RATE_UNLIMITED, STREAMS_MAX};
use serde::{Deserialize, Serialize};

use crate::board::{Board, Sides, TargetTable};
use crate::error::Error;
use crate::events::Progress;
use haul_base::role::Role;

/// Why a knob cannot be turned that only the far end could turn.
pub(crate) const FAR_IS_FIXED: &str = "the other end cannot change this live: its haul is too old for it";

/// Why there are no writers to turn, where only the far end knew.
pub(crate) const FAR_HAS_NO_WRITERS: &str = "there are none, for nothing is stored at the other end";

/// What can be turned while a copy runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Knob {
    /// Payload bytes a second over all streams, [`RATE_MIN`] at least; 0: no limit.
    Rate,
    /// Data streams that carry new data.
    Streams,
    /// Operations in flight at each storage target of the source.
    Readers,
    /// The same at the sink.
    Writers,
}

impl Knob {
    pub const ALL: [Knob; 4] = [Knob::Rate, Knob::Streams, Knob::Readers, Knob::Writers];

    /// As the user types it.
    pub fn name(self) -> &'static str {
        match self {
            Knob::Rate => "rate",
            Knob::Streams => "streams",
            Knob::Readers => "readers",
            Knob::Writers => "writers",
        }
    }

    /// Smallest and largest value.
    pub fn range(self) -> (u64, u64) {
        match self {
            Knob::Rate => (0, u64::MAX),
            Knob::Streams => (1, STREAMS_MAX.into()),
            Knob::Readers | Knob::Writers => (1, KNOB_THREADS_MAX.into()),
        }
    }
}

/// A knob as it stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// What somebody wished while the copy ran.
    pub asked: Option<u64>,
    /// What is so; `None`: not known (yet), and for the rate: no limit.
    pub now: Option<u64>,
    /// Why it cannot be changed while this copy runs.
    pub fixed: Option<String>,
}

/// What a copy is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The two ends are being joined.
    #[default]
    Starting,
    Running,
    Paused,
    Stopping,
}

/// All that can be seen of a copy that runs.
#[derive(Clone, Debug, Default)]
pub struct State {
    pub phase: Phase,
    /// In the order of [`Knob::ALL`].
    pub knobs: [Setting; 4],
    pub progress: Progress,
}

/// Stops, pauses and steers a copy from another thread; cloning shares it.
#[derive(Clone, Debug, Default)]
pub struct Control(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    paused: AtomicBool,
    /// Counts wishes, so that a driver need not look at them each time.
    changes: AtomicU64,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// The ends have met.
    joined: bool,
    asked: [Option<u64>; 4],
    now: [Option<u64>; 4],
    fixed: [Option<&'static str>; 4],
    /// Most data streams that this session can have.
    streams_max: Option<u16>,
    /// Why the copy cannot be paused.
    no_pause: Option<&'static str>,
    progress: Progress,
    board: Board,
    /// When somebody last looked at the storage targets.
    looked: Option<Instant>,
}

/// For so long somebody who looked is taken to look on.
const LOOK_LASTS: Duration = Duration::from_secs(5);

impl Control {
    pub fn new() -> Control {
        Control::default()
    }

    /// Asks for a graceful end: the open epoch is closed, the job can be resumed. May be called often.
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::Release);
    }

    /// Whether somebody asked for an end.
    pub fn stopped(&self) -> bool {
        self.0.stop.load(Ordering::Acquire)
    }

    /// Pauses the copy or lets it go on, effective within a second: nothing new is read or sent, what is on its way
    /// lands and becomes durable.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`](crate::api::ErrorKind): the source is at the other end, which cannot do it.
    pub fn pause(&self, paused: bool) -> Result<(), Error> {
        let inner = self.lock();
        if let Some(why) = inner.no_pause {
            return Err(Error::usage(format!("this copy cannot be paused: {why}")));
        }
        self.0.paused.store(paused, Ordering::Release);
        self.changed(&inner);
        Ok(())
    }

    /// Whether it is to be paused.
    pub fn paused(&self) -> bool {
        self.0.paused.load(Ordering::Acquire)
    }

    /// Turns a knob, effective within a second and without a new connection.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`](crate::api::ErrorKind): the value is out of its range, or cannot be changed in this copy.
    pub fn set(&self, knob: Knob, value: u64) -> Result<(), Error> {
        let ((min, max), name) = (knob.range(), knob.name());
        if !(min..=max).contains(&value) {
            return Err(Error::usage(format!("{name} {value}: it is a number from {min} to {max}")));
        }
        if knob == Knob::Rate && (1..RATE_MIN).contains(&value) {
            return Err(Error::usage(format!(
                "rate {value}: it is {RATE_MIN} bytes a second at least, or 0 for no limit"
            )));
        }
        let mut inner = self.lock();
        if let Some(why) = inner.fixed[knob as usize] {
            return Err(Error::usage(format!("{name} stays as it is: {why}")));
        }
        if let (Knob::Streams, Some(max)) = (knob, inner.streams_max.filter(|max| value > u64::from(*max))) {
            return Err(Error::usage(format!(
                "streams {value}: this copy has {max}, and no more can join it: both ends are in one process, its \
                 data goes through ssh, or its --patience is 0s"
            )));
        }
        inner.asked[knob as usize] = Some(value);
        self.changed(&inner);
        Ok(())
    }

    /// How things stand.
    pub fn state(&self) -> State {
        let inner = self.lock();
        let phase = match (inner.joined, self.stopped(), self.paused()) {
            (_, true, _) => Phase::Stopping,
            (false, ..) => Phase::Starting,
            (true, false, true) => Phase::Paused,
            (true, false, false) => Phase::Running,
        };
        let knobs = std::array::from_fn(|i| Setting {
            asked: inner.asked[i],
            now: inner.now[i],
            fixed: inner.fixed[i].map(str::to_owned),
        });
        State { phase, knobs, progress: inner.progress.clone() }
    }

    /// The storage targets of both ends, as far as they are known. Whoever asks looks: tables are taken, and asked of the
    /// other end, from now on for a few seconds.
    pub fn targets(&self) -> Sides {
        let now = Instant::now();
        let mut inner = self.lock();
        inner.looked = Some(now);
        inner.board.sides(now)
    }

    /// Whether somebody looks at the storage targets.
    pub(crate) fn is_looked_at(&self) -> bool {
        self.lock().looked.is_some_and(|looked| looked.elapsed() < LOOK_LASTS)
    }

    /// How the targets of an end stand now; returns them as they are shown.
    pub(crate) fn note_table(&self, end: Role, table: &Table, now: Instant) -> TargetTable {
        self.lock().board.take(end, table, now)
    }

    /// The targets of this end will not be known.
    pub(crate) fn no_table(&self, end: Role, why: &'static str) {
        self.lock().board.none(end, why);
    }

    /// A number that grows with every wish.
    pub(crate) fn changes(&self) -> u64 {
        self.0.changes.load(Ordering::Acquire)
    }

    /// What is wished, in all.
    pub(crate) fn knobs(&self) -> Knobs {
        let inner = self.lock();
        let count =
            |knob: Knob| inner.asked[knob as usize].map_or(0, |n| u16::try_from(n).unwrap_or(u16::MAX));
        Knobs {
            paused: self.paused(),
            rate: match inner.asked[Knob::Rate as usize] {
                None => 0,
                Some(0) => RATE_UNLIMITED,
                Some(rate) => rate,
            },
            streams: count(Knob::Streams),
            readers: count(Knob::Readers),
            writers: count(Knob::Writers),
        }
    }

    /// The ends have met; `streams`: most data streams that the session can have. What can not be changed in this session is dropped; returns what
    /// somebody wished of it.
    pub(crate) fn join(
        &self,
        streams: u16,
        fixed: [Option<&'static str>; 4],
        no_pause: Option<&'static str>,
    ) -> Vec<&'static str> {
        let mut dropped = Vec::new();
        let mut inner = self.lock();
        inner.joined = true;
        inner.streams_max = Some(streams);
        inner.fixed = fixed;
        inner.no_pause = no_pause;
        for knob in Knob::ALL {
            if fixed[knob as usize].is_some() && inner.asked[knob as usize].take().is_some() {
                dropped.push(knob.name());
            }
        }
        if no_pause.is_some() && self.0.paused.swap(false, Ordering::AcqRel) {
            dropped.push("pause");
        }
        dropped
    }

    /// A knob turns out not to be one in this session, and why. True: somebody had wished something of it.
    pub(crate) fn fix(&self, knob: Knob, why: &'static str) -> bool {
        let mut inner = self.lock();
        inner.fixed[knob as usize] = Some(why);
        inner.asked[knob as usize].take().is_some()
    }

    /// How knobs stand at one end; of what it does not decide it says 0.
    pub(crate) fn stands(&self, here: &[Knob], knobs: Knobs) {
        let mut inner = self.lock();
        for knob in here {
            let value = match knob {
                Knob::Rate if knobs.rate == RATE_UNLIMITED => 0,
                Knob::Rate => knobs.rate,
                Knob::Streams => knobs.streams.into(),
                Knob::Readers => knobs.readers.into(),
                Knob::Writers => knobs.writers.into(),
            };
            inner.now[*knob as usize] = (value > 0).then_some(value);
        }
    }

    pub(crate) fn note_progress(&self, progress: &Progress) {
        self.lock().progress = progress.clone();
    }

    /// Counted under the lock, so that nobody sees the number before what it counts.
    fn changed(&self, _held: &MutexGuard<'_, Inner>) {
        self.0.changes.fetch_add(1, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Plain fields, whole at every panic that could happen under the lock.
        self.0.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: wishes are kept within their ranges and counted; what is fixed is refused, and what was wished of it
    /// before that was known is dropped and named.
    #[test]
    fn wishes_are_checked_and_counted() {
        let control = Control::new();
        assert_eq!((control.state().phase, control.changes()), (Phase::Starting, 0));
        let streams = u64::from(STREAMS_MAX);
        for (knob, bad) in
            [(Knob::Streams, 0), (Knob::Streams, streams + 1), (Knob::Readers, 257), (Knob::Rate, 1)]
        {
            assert!(control.set(knob, bad).is_err_and(|error| error.text.contains(knob.name())));
        }
        assert_eq!(control.changes(), 0);
        for (knob, value) in
            [(Knob::Rate, 100_000), (Knob::Streams, 2), (Knob::Readers, 3), (Knob::Writers, 4)]
        {
            control.set(knob, value).expect("in its range");
        }
        control.pause(true).expect("nothing is known against it");
        let want = Knobs { paused: true, rate: 100_000, streams: 2, readers: 3, writers: 4 };
        assert_eq!((control.knobs(), control.changes()), (want, 5));

        let mut fixed = [None; 4];
        fixed[Knob::Writers as usize] = Some(FAR_IS_FIXED);
        assert_eq!(control.join(3, fixed, None), ["writers"]);
        assert!(control.set(Knob::Writers, 4).is_err_and(|error| error.text.contains("too old")));
        assert_eq!(control.knobs(), Knobs { writers: 0, ..want });
        assert!(control.set(Knob::Streams, 4).is_err_and(|error| error.text.contains("has 3")));
        assert_eq!(control.state().phase, Phase::Paused);
        control.stands(&[Knob::Streams, Knob::Rate], Knobs { streams: 1, ..Knobs::default() });
        let state = control.state();
        assert_eq!(
            state.knobs[Knob::Streams as usize],
            Setting { asked: Some(2), now: Some(1), fixed: None }
        );
        assert_eq!(state.knobs[Knob::Rate as usize].now, None);
        control.set(Knob::Rate, 0).expect("a limit can be lifted");
        assert_eq!(control.knobs().rate, RATE_UNLIMITED, "which is not the same as nobody asking");
        control.stands(&[Knob::Rate], Knobs { rate: RATE_UNLIMITED, ..Knobs::default() });
        assert_eq!(control.state().knobs[Knob::Rate as usize].now, None);
        assert!(state.knobs[Knob::Writers as usize].fixed.is_some());

        assert_eq!(control.join(3, fixed, Some(FAR_IS_FIXED)), ["pause"]);
        assert!(!control.paused() && control.pause(true).is_err());
        control.stop();
        assert_eq!(control.state().phase, Phase::Stopping);
    }
}
