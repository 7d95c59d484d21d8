//! What a run waits for at a volume: said to people while it does.
//!
//! In: when waits begin and end, who is there. Out: one line of what is waited for, for how long it was and
//! may be. Before a copy has begun whoever waits says it himself, again and again, and hears whether anybody
//! wants him to ([`Volume::attend`]); from then on the session asks ([`Volume::in_wait`]).
//! Left out: how long anybody waits (`gone`).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use haul_base::escape;
use haul_base::stop::Stop;
use haul_core::volume::ServerNo;
use haul_volume::catalog::client::Attends;

use super::Volume;

/// What takes less time is no wait that anybody wants to hear of.
const SAID_AFTER: Duration = Duration::from_secs(1);
/// It is said anew as often.
const SAID_EVERY: Duration = Duration::from_secs(1);

/// Waits for storage servers that are under way.
#[derive(Default)]
pub(super) struct Waits {
    begun: Mutex<(u64, BTreeMap<u64, Instant>)>,
    /// Before the copy has begun.
    setting_up: Mutex<Option<Arc<SettingUp>>>,
}

/// One of them.
pub(super) struct Wait<'a>(&'a Waits, u64);

/// A copy that has not begun.
pub(super) struct SettingUp {
    stop: Stop,
    said: Mutex<Option<Instant>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Waits {
    pub(super) fn begin(&self, since: Instant) -> Wait<'_> {
        let (last, begun) = &mut *lock(&self.begun);
        *last += 1;
        begun.insert(*last, since);
        Wait(self, *last)
    }

    /// Since when the first of them waits.
    fn first(&self) -> Option<Instant> {
        lock(&self.begun).1.values().min().copied()
    }

    pub(super) fn set_up(&self, setting_up: Option<Arc<SettingUp>>) {
        *lock(&self.setting_up) = setting_up;
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        lock(&self.0.begun).1.remove(&self.1);
    }
}

impl SettingUp {
    pub(super) fn new(stop: &Stop) -> Arc<SettingUp> {
        Arc::new(SettingUp { stop: stop.clone(), said: Mutex::new(None) })
    }

    /// Says what is waited for since then, if it is time to; false: nobody wants to wait any more.
    fn attend(&self, since: Instant, what: impl FnOnce() -> Option<String>) -> bool {
        if haul_mutant::removed("waits-before-a-copy-are-said") {
            return true;
        }
        if since.elapsed() >= SAID_AFTER {
            let mut said = lock(&self.said);
            if said.is_none_or(|said| said.elapsed() >= SAID_EVERY)
                && let Some(what) = what()
            {
                *said = Some(Instant::now());
                self.stop.say(&what);
            }
        }
        !self.stop.is_asked()
    }

    /// What a client of the catalog of this volume, which is there, asks.
    pub(super) fn of_catalog(self: &Arc<SettingUp>, catalog: String) -> Attends {
        let setting_up = self.clone();
        Arc::new(move |since, patience, why| {
            setting_up.attend(since, || why.map(|why| in_words(since.elapsed(), patience, &catalog, why)))
        })
    }
}

/// What is waited for.
fn in_words(time: Duration, patience: Duration, what: &str, why: &str) -> String {
    let why = escape::text(why);
    format!("waiting {} s of {} s for {what}: {why}", time.as_secs(), patience.as_secs())
}

/// The catalog of a volume, for people: at this place.
pub(super) fn catalog_in_words(volume: &str, place: &str) -> String {
    format!("the catalog of volume {}, {place}", escape::name(volume.as_bytes()))
}

impl Volume {
    /// Something waits since then for a server. While the copy has not begun: false as soon as nobody wants
    /// that any more.
    pub(super) fn attend(&self, since: Instant) -> bool {
        let setting_up = lock(&self.waits.setting_up).clone();
        setting_up.is_none_or(|setting_up| setting_up.attend(since, || self.in_wait()))
    }

    /// The copy begins: the session asks what it waits for, and says when it is to end.
    pub(super) fn begins(&self) {
        self.waits.set_up(None);
        self.catalog.attend(None);
    }

    /// What something waits for, if the catalog or a server is away, or has no room.
    pub(super) fn in_wait(&self) -> Option<String> {
        let said = |time: Duration, what: &str, why: &str| {
            (time >= SAID_AFTER && !self.is_gone()).then(|| in_words(time, self.patience, what, why))
        };
        let catalog = || catalog_in_words(&self.name, &self.catalog_place);
        if let Some((time, why)) = self.catalog.waits() {
            return said(time, &catalog(), &why);
        }
        if let Some((server, time)) = self.lacks_room() {
            let what = format!("room at {}", self.server_of_volume(server));
            return said(time, &what, "its disk is full");
        }
        let time = self.waits.first()?.elapsed();
        let away = self.away().ok()?.into_iter().max_by_key(|away| away.time);
        match (away, self.catalog.away()) {
            (Some(away), _) => said(time, &self.server_of_volume(away.server), &away.why),
            (None, Some((_, why))) => said(time, &catalog(), &why),
            (None, None) => None,
        }
    }

    fn server_of_volume(&self, server: ServerNo) -> String {
        let (name, place) = (escape::name(self.name.as_bytes()), self.place_of(server));
        format!("server {} of volume {name}, {place}", server.0)
    }
}
