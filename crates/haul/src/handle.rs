//! A copy that runs, in the hands of others: stopped, paused, its live settings changed, its state looked at.
//!
//! In: wishes, from any thread. Out: what the near end's driver reads in each of its turns, five a second at
//! least, and what it says of how things stand.
//! Invariant: a wish that cannot come true is refused when it is spoken, as soon as that is known; before the
//! two ends have met it is kept, and dropped with a note where the other end cannot follow.
//! Left out: who may ask (see [`crate::ctl`]), and how live settings are changed (see
//! `driver::live_settings`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use haul_core::schedule::table::Table;
use haul_core::tune::rate::RATE_MIN;
use haul_core::wire::{LIVE_THREADS_MAX, LiveSettings, RATE_UNLIMITED, STREAMS_MAX};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::events::Progress;
use crate::target_tables::{Sides, TargetTable, TargetTables};
use haul_base::role::Role;
use haul_base::stop::Stop;

/// Why a live setting cannot be turned that only the far end could turn.
pub(crate) const FAR_IS_FIXED: &str = "the other end cannot change this live: its haul is too old for it";

/// Why there are no writers to turn, where only the far end knew.
pub(crate) const FAR_HAS_NO_WRITERS: &str = "there are none, for nothing is stored at the other end";

/// What can be turned while a copy runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LiveSetting {
    /// Payload bytes a second over all streams, [`RATE_MIN`] at least; 0: no limit.
    Rate,
    /// Data streams that carry new data.
    Streams,
    /// Operations in flight at each storage target of the source.
    Readers,
    /// The same at the sink.
    Writers,
}

impl LiveSetting {
    /// In the order of [`CopyState::settings`].
    pub const ALL: [LiveSetting; 4] =
        [LiveSetting::Rate, LiveSetting::Streams, LiveSetting::Readers, LiveSetting::Writers];

    /// As the user types it.
    pub fn name(self) -> &'static str {
        match self {
            LiveSetting::Rate => "rate",
            LiveSetting::Streams => "streams",
            LiveSetting::Readers => "readers",
            LiveSetting::Writers => "writers",
        }
    }

    /// Smallest and largest value.
    pub fn range(self) -> (u64, u64) {
        match self {
            LiveSetting::Rate => (0, u64::MAX),
            LiveSetting::Streams => (1, STREAMS_MAX.into()),
            LiveSetting::Readers | LiveSetting::Writers => (1, LIVE_THREADS_MAX.into()),
        }
    }
}

/// A live setting as it stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingState {
    /// What somebody wished while the copy ran.
    pub asked: Option<u64>,
    /// What is so. `None` before the two ends have met, and of what an end does not tell or does not have. Of
    /// the rate, from then on ([`CopyPhase::Running`]), `None` is no limit: an end that keeps to one says so.
    pub now: Option<u64>,
    /// Why it cannot be changed while this copy runs.
    pub fixed: Option<String>,
}

/// What a copy is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum CopyPhase {
    /// The two ends are being joined.
    #[default]
    Starting,
    /// Data may move.
    Running,
    /// Nothing new is read or sent.
    Paused,
    /// It was told to stop.
    Stopping,
    /// It is over; its summary says how it ended.
    Ended,
}

/// All that can be seen of a copy that runs.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CopyState {
    /// What it is doing.
    pub phase: CopyPhase,
    /// In the order of [`LiveSetting::ALL`].
    pub settings: [SettingState; 4],
    /// How far it is.
    pub progress: Progress,
}

/// Stops, pauses and steers a copy from another thread; cloning shares it.
///
/// A handle is for one copy at a time: a second one is refused while the first runs. After the end of a copy
/// it may be given to another, which begins without what was wished of the one before; only a stop holds for
/// good.
#[derive(Clone, Debug, Default)]
pub struct Handle(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    /// Its stop is this one's as well.
    above: Option<Handle>,
    /// This copy alone is to stop: its observer panicked.
    broken: AtomicBool,
    ended: AtomicBool,
    paused: AtomicBool,
    /// Counts wishes, so that a driver need not look at them each time.
    changes: AtomicU64,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// A copy with this handle runs.
    runs: bool,
    /// The ends have met.
    joined: bool,
    asked: [Option<u64>; 4],
    now: [Option<u64>; 4],
    fixed: [Option<&'static str>; 4],
    /// Most data streams that this session can have.
    streams_max: Option<u16>,
    /// Why the copy cannot be paused.
    no_pause: Option<&'static str>,
    /// Why a number of streams says nothing of this copy.
    no_streams: Option<&'static str>,
    progress: Progress,
    tables: TargetTables,
    /// When somebody last looked at the storage targets.
    looked: Option<Instant>,
}

/// For so long somebody who looked is taken to look on.
const LOOK_LASTS: Duration = Duration::from_secs(5);

impl Handle {
    /// A handle of a copy that is yet to begin.
    pub fn new() -> Handle {
        Handle::default()
    }

    /// A copy begins. Of what was wished before, a stop holds: whoever asked for it may not have known which
    /// copy runs. All else holds where no copy had this handle before, and is dropped where one had. False: a
    /// copy with this handle runs.
    pub(crate) fn begin(&self) -> bool {
        let mut inner = self.lock();
        if std::mem::replace(&mut inner.runs, true) {
            return false;
        }
        if self.0.ended.swap(false, Ordering::AcqRel) {
            *inner = Inner { runs: true, ..Inner::default() };
            self.0.paused.store(false, Ordering::Release);
        }
        self.0.broken.store(false, Ordering::Release);
        inner.joined = false;
        true
    }

    /// Its copy is over.
    pub(crate) fn end(&self) {
        self.lock().runs = false;
        self.0.ended.store(true, Ordering::Release);
    }

    /// Asks for a graceful end: the open epoch is closed, the job can be resumed. A copy whose two ends have
    /// not met yet ends within a second, whatever it waits for, and has changed nothing. May be called often.
    /// It holds for good: a copy that is given this handle later is over at once.
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::Release);
    }

    /// The same for the copy that runs, and for none after it.
    pub(crate) fn break_off(&self) {
        self.0.broken.store(true, Ordering::Release);
    }

    /// Whether somebody asked for an end.
    pub fn stopped(&self) -> bool {
        let own = self.0.stop.load(Ordering::Acquire) || self.0.broken.load(Ordering::Acquire);
        own || self.0.above.as_ref().is_some_and(Handle::stopped)
    }

    /// A handle of its own that is stopped when this one is, and by itself.
    #[doc(hidden)]
    pub fn below(&self) -> Handle {
        Handle(Arc::new(Shared { above: Some(self.clone()), ..Shared::default() }))
    }

    /// The same for whoever waits for what is no session yet.
    pub(crate) fn as_stop(&self) -> Stop {
        if haul_mutant::removed("stop-before-the-ends-meet") {
            return Stop::never();
        }
        let handle = self.clone();
        Stop::when(move || handle.stopped())
    }

    /// Pauses the copy or lets it go on, effective within a second: nothing new is read or sent, what is on
    /// its way lands and becomes durable.
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

    /// Turns a live setting, effective within a second and without a new connection.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`](crate::api::ErrorKind): the value is out of its range, or cannot be changed in
    /// this copy.
    pub fn set(&self, setting: LiveSetting, value: u64) -> Result<(), Error> {
        let ((min, max), name) = (setting.range(), setting.name());
        if !(min..=max).contains(&value) {
            return Err(Error::usage(format!("{name} {value}: it is a number from {min} to {max}")));
        }
        if setting == LiveSetting::Rate && (1..RATE_MIN).contains(&value) {
            return Err(Error::usage(format!(
                "rate {value}: it is {RATE_MIN} bytes a second at least, or 0 for no limit"
            )));
        }
        let mut inner = self.lock();
        let ruled_out = inner.no_streams.filter(|_| setting == LiveSetting::Streams);
        if let Some(why) = ruled_out.or(inner.fixed[setting as usize]) {
            return Err(Error::usage(format!("{name} stays as it is: {why}")));
        }
        if let (LiveSetting::Streams, Some(max)) =
            (setting, inner.streams_max.filter(|max| value > u64::from(*max)))
        {
            return Err(Error::usage(format!(
                "streams {value}: this copy has {max}, and no more can join it: both ends are in one process, its \
                 data goes through ssh, or its `patience` is 0"
            )));
        }
        inner.asked[setting as usize] = Some(value);
        self.changed(&inner);
        Ok(())
    }

    /// How things stand.
    pub fn state(&self) -> CopyState {
        let inner = self.lock();
        let phase = match (inner.joined, self.stopped(), self.paused()) {
            _ if self.0.ended.load(Ordering::Acquire) => CopyPhase::Ended,
            (_, true, _) => CopyPhase::Stopping,
            (false, ..) => CopyPhase::Starting,
            (true, false, true) => CopyPhase::Paused,
            (true, false, false) => CopyPhase::Running,
        };
        let settings = std::array::from_fn(|i| SettingState {
            asked: inner.asked[i],
            now: inner.now[i],
            fixed: inner.fixed[i].map(str::to_owned),
        });
        CopyState { phase, settings, progress: inner.progress.clone() }
    }

    /// The storage targets of both ends, as far as they are known. Whoever asks looks: tables are taken, and
    /// asked of the other end, from now on for a few seconds.
    pub fn targets(&self) -> Sides {
        let now = Instant::now();
        let mut inner = self.lock();
        inner.looked = Some(now);
        inner.tables.sides(now)
    }

    /// Whether somebody looks at the storage targets.
    pub(crate) fn is_looked_at(&self) -> bool {
        self.lock().looked.is_some_and(|looked| looked.elapsed() < LOOK_LASTS)
    }

    /// How the targets of an end stand now; returns them as they are shown.
    pub(crate) fn note_table(&self, end: Role, table: &Table, now: Instant) -> TargetTable {
        self.lock().tables.take(end, table, now)
    }

    /// The targets of this end will not be known.
    pub(crate) fn no_table(&self, end: Role, why: &'static str) {
        self.lock().tables.none(end, why);
    }

    /// A number that grows with every wish.
    pub(crate) fn changes(&self) -> u64 {
        self.0.changes.load(Ordering::Acquire)
    }

    /// What is wished, in all.
    pub(crate) fn live_settings(&self) -> LiveSettings {
        let inner = self.lock();
        let count = |setting: LiveSetting| {
            inner.asked[setting as usize].map_or(0, |n| u16::try_from(n).unwrap_or(u16::MAX))
        };
        LiveSettings {
            paused: self.paused(),
            rate: match inner.asked[LiveSetting::Rate as usize] {
                None => 0,
                Some(0) => RATE_UNLIMITED,
                Some(rate) => rate,
            },
            streams: count(LiveSetting::Streams),
            readers: count(LiveSetting::Readers),
            writers: count(LiveSetting::Writers),
        }
    }

    /// The ends have met; `streams`: most data streams that the session can have. What can not be changed in
    /// this session is dropped; returns what somebody wished of it.
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
        for setting in LiveSetting::ALL {
            if fixed[setting as usize].is_some() && inner.asked[setting as usize].take().is_some() {
                dropped.push(setting.name());
            }
        }
        if no_pause.is_some() && self.0.paused.swap(false, Ordering::AcqRel) {
            dropped.push("pause");
        }
        dropped
    }

    /// A number of streams says nothing of this copy, and why.
    pub(crate) fn rule_out_streams(&self, why: &'static str) {
        let mut inner = self.lock();
        inner.no_streams = Some(why);
        inner.asked[LiveSetting::Streams as usize] = None;
    }

    /// A live setting turns out not to be one in this session, and why. True: somebody had wished something
    /// of it.
    pub(crate) fn fix(&self, setting: LiveSetting, why: &'static str) -> bool {
        let mut inner = self.lock();
        inner.fixed[setting as usize] = Some(why);
        inner.asked[setting as usize].take().is_some()
    }

    /// How live settings stand at one end; of what it does not decide it says 0.
    pub(crate) fn stands(&self, here: &[LiveSetting], settings: LiveSettings) {
        let mut inner = self.lock();
        for setting in here {
            let value = match setting {
                LiveSetting::Rate if settings.rate == RATE_UNLIMITED => 0,
                LiveSetting::Rate => settings.rate,
                LiveSetting::Streams => settings.streams.into(),
                LiveSetting::Readers => settings.readers.into(),
                LiveSetting::Writers => settings.writers.into(),
            };
            inner.now[*setting as usize] = (value > 0).then_some(value);
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

    /// Goal: wishes are kept within their ranges and counted; what is fixed is refused, and what was wished
    /// of it before that was known is dropped and named.
    #[test]
    fn wishes_are_checked_and_counted() {
        let handle = Handle::new();
        assert_eq!((handle.state().phase, handle.changes()), (CopyPhase::Starting, 0));
        let streams = u64::from(STREAMS_MAX);
        for (setting, bad) in [
            (LiveSetting::Streams, 0),
            (LiveSetting::Streams, streams + 1),
            (LiveSetting::Readers, 257),
            (LiveSetting::Rate, 1),
        ] {
            assert!(handle.set(setting, bad).is_err_and(|error| error.text.contains(setting.name())));
        }
        assert_eq!(handle.changes(), 0);
        for (setting, value) in [
            (LiveSetting::Rate, 100_000),
            (LiveSetting::Streams, 2),
            (LiveSetting::Readers, 3),
            (LiveSetting::Writers, 4),
        ] {
            handle.set(setting, value).expect("in its range");
        }
        handle.pause(true).expect("nothing is known against it");
        let want = LiveSettings { paused: true, rate: 100_000, streams: 2, readers: 3, writers: 4 };
        assert_eq!((handle.live_settings(), handle.changes()), (want, 5));

        let mut fixed = [None; 4];
        fixed[LiveSetting::Writers as usize] = Some(FAR_IS_FIXED);
        assert_eq!(handle.join(3, fixed, None), ["writers"]);
        assert!(handle.set(LiveSetting::Writers, 4).is_err_and(|error| error.text.contains("too old")));
        assert_eq!(handle.live_settings(), LiveSettings { writers: 0, ..want });
        assert!(handle.set(LiveSetting::Streams, 4).is_err_and(|error| error.text.contains("has 3")));
        assert_eq!(handle.state().phase, CopyPhase::Paused);
        handle.stands(
            &[LiveSetting::Streams, LiveSetting::Rate],
            LiveSettings { streams: 1, ..LiveSettings::default() },
        );
        let state = handle.state();
        assert_eq!(
            state.settings[LiveSetting::Streams as usize],
            SettingState { asked: Some(2), now: Some(1), fixed: None }
        );
        assert_eq!(state.settings[LiveSetting::Rate as usize].now, None);
        handle.set(LiveSetting::Rate, 0).expect("a limit can be lifted");
        assert_eq!(handle.live_settings().rate, RATE_UNLIMITED, "which is not the same as nobody asking");
        handle.stands(&[LiveSetting::Rate], LiveSettings { rate: RATE_UNLIMITED, ..LiveSettings::default() });
        assert_eq!(handle.state().settings[LiveSetting::Rate as usize].now, None);
        assert!(state.settings[LiveSetting::Writers as usize].fixed.is_some());

        assert_eq!(handle.join(3, fixed, Some(FAR_IS_FIXED)), ["pause"]);
        assert!(!handle.paused() && handle.pause(true).is_err());
        handle.stop();
        assert_eq!(handle.state().phase, CopyPhase::Stopping);
    }
}
