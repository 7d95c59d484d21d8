//! Servers of a volume that are away: how long anybody waits for one, and when one is gone.
//!
//! In: what was begun at the servers; what the catalog did not answer. Out: what became of it; once that a
//! server is gone, for who ends the run then.
//! Invariants: a storage server is gone only if something waited in vain for as long as the run has patience,
//! and it was not heard for as long either; the catalog is if a call waited for so long, or what waits for
//! its tickets. From then on nobody waits for longer than [`GRACE`], which is for what was under way
//! elsewhere, and what begins behind that ends at once: a run ends with one patience, and not with one for
//! each file. So it does where a server has no room: what is written there is tried again for one patience,
//! which begins when it first had none. A disk that fails otherwise is not waited for. A run that is to end
//! has as little patience with a server, or the catalog, that is away. A run that reads goes on without a
//! storage server that is gone: what needs it fails at once, by its name, and all else is read; when the
//! server is there again it is asked again. Left out: what is said of waits
//! (`waits`), what ends, and what is told of the files that are left (the machines of the session).

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use haul_core::volume::client::Where;
use haul_core::volume::{FileNo, ServerNo};
use haul_core::wire::{Failure, FailureKind};
use haul_volume::client::{Away, VolumeError, Waiting};
use rustix::io::Errno;

use super::Volume;

/// How often who waits looks whether a server is gone.
const LOOK: Duration = Duration::from_millis(250);
/// What is under way when one is gone has so long.
const GRACE: Duration = Duration::from_secs(2);
/// Without the catalog a run that is to end has so long for what needs it not.
const CATALOG_GRACE: Duration = Duration::from_secs(6);
/// Whether a server that a run goes on without is there again is looked after so long.
const THERE_AGAIN: Duration = Duration::from_secs(1);
/// A server that had no room is asked again after so long.
const ROOM_AGAIN: Duration = Duration::from_secs(1);
/// Errors of a disk that do not pass by themselves.
const BROKEN: [Errno; 6] = [Errno::IO, Errno::ROFS, Errno::NODEV, Errno::NXIO, Errno::UCLEAN, Errno::STALE];

type Tell = Box<dyn Fn(Failure) + Send + Sync>;

/// Whether a server is gone.
#[derive(Default)]
pub(super) struct Gone {
    /// Since when, and why. It is told before anybody else can see it.
    gone: Mutex<Option<(Instant, Failure)>>,
    /// Servers without room, and since when.
    full: Mutex<BTreeMap<ServerNo, Instant>>,
    /// Who wants to know, once.
    tell: OnceLock<Tell>,
    /// Since when the run is to end.
    ends: Mutex<Option<Instant>>,
    without: Mutex<Without>,
}

/// Storage servers that are gone, and that a run goes on without.
#[derive(Default)]
struct Without {
    /// It does.
    goes_on: bool,
    /// Why what needs one of them comes to nothing.
    servers: BTreeMap<ServerNo, String>,
    /// When it was looked last whether they are there again.
    looked: Option<Instant>,
}

impl Gone {
    fn lock(&self) -> MutexGuard<'_, Option<(Instant, Failure)>> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why something came to nothing.
enum Late {
    /// A server is gone.
    Gone,
    /// This one was away, and is there again; `None`: the catalog, whose tickets servers want.
    Back(Option<Where>),
    /// All servers are there.
    Itself,
}

impl Volume {
    /// Waits for what `begin` began. Where a server was away and came back too late, it is begun once more:
    /// only for what may be done twice.
    ///
    /// # Errors
    /// As [`Waiting::wait`].
    pub(super) fn wait<T>(&self, begin: impl Fn() -> Waiting<T>) -> Result<T, VolumeError> {
        self.wait_for(begin(), begin)
    }

    /// The same of what comes to nothing without these servers.
    ///
    /// # Errors
    /// As [`Waiting::wait`].
    pub(super) fn wait_at<T>(
        &self,
        needs: &[ServerNo],
        begin: impl Fn() -> Waiting<T>,
    ) -> Result<T, VolumeError> {
        match self.lacks(needs) {
            Some(why) => Err(why),
            None => self.wait_for_at(needs, begin(), begin),
        }
    }

    /// The same for what was begun before.
    ///
    /// # Errors
    /// As [`Waiting::wait`].
    pub(super) fn wait_for<T>(
        &self,
        begun: Waiting<T>,
        again: impl FnOnce() -> Waiting<T>,
    ) -> Result<T, VolumeError> {
        self.wait_for_at(&[], begun, again)
    }

    /// The same of what comes to nothing without these servers.
    ///
    /// # Errors
    /// As [`Waiting::wait`].
    pub(super) fn wait_for_at<T>(
        &self,
        needs: &[ServerNo],
        begun: Waiting<T>,
        again: impl FnOnce() -> Waiting<T>,
    ) -> Result<T, VolumeError> {
        match self.settle(needs, &begun) {
            Err(late @ VolumeError::Late(..)) => match self.lacks(needs) {
                Some(why) => Err(why),
                None => match self.judge() {
                    Late::Back(_) => self.settle(needs, &again()),
                    Late::Gone | Late::Itself => Err(self.lacks(needs).unwrap_or(late)),
                },
            },
            result => result,
        }
    }

    /// The run reads, and goes on without storage servers that are gone.
    pub(super) fn goes_on_without(&self) {
        self.without().goes_on = !haul_mutant::removed("reads-go-on-without-servers");
    }

    fn without(&self) -> MutexGuard<'_, Without> {
        self.gone.without.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why what needs these servers comes to nothing: the run goes on without one of them.
    fn lacks(&self, needs: &[ServerNo]) -> Option<VolumeError> {
        let mut without = self.without();
        if without.servers.is_empty() {
            return None;
        }
        if without.looked.is_none_or(|at| at.elapsed() >= THERE_AGAIN)
            && let Ok(away) = self.client.away()
        {
            without.looked = Some(Instant::now());
            without.servers.retain(|server, _| away.iter().any(|away| away.server == *server));
        }
        let why = needs.iter().find_map(|server| without.servers.get(server))?;
        Some(VolumeError::Late(self.patience, why.clone()))
    }

    /// Whether this is said of a server that the run goes on without.
    pub(super) fn is_said(&self, why: &str) -> bool {
        self.without().servers.values().any(|said| said == why)
    }

    /// Servers that are away, but for those that the run goes on without.
    pub(super) fn away(&self) -> Result<Vec<Away>, VolumeError> {
        let mut away = self.client.away()?;
        let without = self.without();
        away.retain(|away| !without.servers.contains_key(&away.server));
        Ok(away)
    }

    /// Who has to answer for a look at a file.
    pub(super) fn needed_to_look(&self, file: FileNo) -> Vec<ServerNo> {
        let striping = self.client.striping();
        if striping.knows(file) { vec![striping.gatherer(file)] } else { Vec::new() }
    }

    /// Who has to answer for bytes of a file.
    pub(super) fn needed_for(&self, file: FileNo, from: u64, len: u64) -> Vec<ServerNo> {
        let (striping, mut needs) = (self.client.striping(), self.needed_to_look(file));
        if !needs.is_empty() {
            let stripes =
                from / striping.stripe_size..from.saturating_add(len).div_ceil(striping.stripe_size);
            needs.extend(striping.servers_of(file, &stripes));
        }
        needs
    }

    /// Waits for what is not to be begun twice. Where a server was away and came back too late, nobody knows
    /// what became of it, and what it was for counts as lost.
    ///
    /// # Errors
    /// As [`Waiting::wait`].
    pub(super) fn wait_once<T>(&self, begun: &Waiting<T>) -> Result<T, VolumeError> {
        match self.settle(&[], begun) {
            Err(late @ VolumeError::Late(..)) => match self.judge() {
                Late::Back(of) => Err(VolumeError::Lost(of.unwrap_or(Where::Gatherer))),
                Late::Gone | Late::Itself => Err(late),
            },
            result => result,
        }
    }

    /// The same as [`Volume::wait`] for a write. Where a server has no room for it, it is made again until
    /// there is some, or the patience is over; a disk that fails otherwise ends the run.
    ///
    /// # Errors
    /// As [`Waiting::wait`].
    pub(super) fn wait_for_room<T>(&self, begin: impl Fn() -> Waiting<T>) -> Result<T, VolumeError> {
        let mut refused = None;
        loop {
            match self.wait(&begin) {
                Err(why @ VolumeError::Failed(server, errno)) if haul_volume::is_full(errno) => {
                    let full = || self.gone.full.lock().unwrap_or_else(PoisonError::into_inner);
                    let time = full().entry(server).or_insert_with(Instant::now).elapsed();
                    refused = Some(server);
                    let left = self.patience.saturating_sub(time);
                    if left.is_zero()
                        || self.is_gone()
                        || self.is_ending()
                        || haul_mutant::removed("full-volumes-are-waited-for")
                    {
                        self.lose_disk(server, errno, time);
                        return Err(why);
                    }
                    thread::sleep(ROOM_AGAIN.min(left));
                }
                result => {
                    self.is_broken(&result);
                    if let (Ok(_), Some(server)) = (&result, refused) {
                        self.gone.full.lock().unwrap_or_else(PoisonError::into_inner).remove(&server);
                    }
                    return result;
                }
            }
        }
    }

    /// A server that had no room for something, and for how long.
    pub(super) fn lacks_room(&self) -> Option<(ServerNo, Duration)> {
        let full = self.gone.full.lock().unwrap_or_else(PoisonError::into_inner);
        full.iter().map(|(server, since)| (*server, since.elapsed())).max_by_key(|(_, time)| *time)
    }

    /// Something that is not to be done again: a disk that did not take it ends the run.
    pub(super) fn is_broken<T>(&self, result: &Result<T, VolumeError>) {
        if let Err(VolumeError::Failed(server, errno)) = result
            && (haul_volume::is_full(*errno) || BROKEN.contains(&Errno::from_raw_os_error(*errno)))
        {
            self.lose_disk(*server, *errno, Duration::ZERO);
        }
    }

    /// The disk of a server does not take what is written.
    fn lose_disk(&self, server: ServerNo, errno: i32, time: Duration) {
        let name = haul_base::escape::name(self.name.as_bytes());
        let cause = haul_base::errno::text(std::io::Error::from_raw_os_error(errno));
        let server = self.server_in_words(server);
        let waited = match time.as_secs() {
            0 => String::new(),
            seconds => format!(", and had none for {seconds} s"),
        };
        let text = match haul_volume::is_full(errno) {
            true => format!(
                "volume {name}: its {server}, has no room{waited}: {cause}; make room on that disk (`haul volume rm` removes \
                 files of the volume), and the same command goes on"
            ),
            false => format!(
                "volume {name}: the disk of its {server}, failed: {cause}; look after that disk and start the server again \
                 (`haul volume stop {name}`, `haul volume start {name}`), and the same command goes on"
            ),
        };
        self.end_run(Failure { kind: FailureKind::Write, errno, text: text.into() });
    }

    /// The run is to end, or is not any more: nobody waits then for what is away.
    pub(super) fn set_ends(&self, ends: bool) {
        let mut since = self.gone.ends.lock().unwrap_or_else(PoisonError::into_inner);
        *since = ends.then(|| since.unwrap_or_else(Instant::now));
        drop(since);
        let hurries = self.is_gone() || (ends && !haul_mutant::removed("stopped-catalogs-are-left"));
        self.catalog.hurry(hurries.then_some(GRACE));
    }

    /// For how long the run has been to end.
    pub(super) fn ends_for(&self) -> Option<Duration> {
        let since = *self.gone.ends.lock().unwrap_or_else(PoisonError::into_inner);
        since.map(|since| since.elapsed())
    }

    /// Whether the run has been to end for a while.
    fn is_ending(&self) -> bool {
        self.ends_for().is_some_and(|time| time >= GRACE) && !haul_mutant::removed("stopped-volumes-are-left")
    }

    /// Whether the run is to end, and a server is away, or the catalog is for longer.
    fn gives_up(&self) -> bool {
        if !self.is_ending() {
            return false;
        }
        let is_long = self.ends_for().is_some_and(|time| time >= CATALOG_GRACE);
        (is_long && self.catalog.away().is_some()) || self.away().is_ok_and(|away| !away.is_empty())
    }

    /// Why nothing is waited for any more, if one is gone for longer than what was under way has.
    fn left(&self) -> Option<VolumeError> {
        match &*self.gone.lock() {
            Some((since, failure)) if since.elapsed() >= GRACE => {
                Some(VolumeError::Late(self.patience, failure.text.clone().into()))
            }
            _ => None,
        }
    }

    fn settle<T>(&self, needs: &[ServerNo], begun: &Waiting<T>) -> Result<T, VolumeError> {
        let since = Instant::now();
        let mut waits = None;
        loop {
            // There may be thousands of them.
            let look = if self.left().is_some() { Duration::ZERO } else { LOOK };
            if let Some(result) = begun.wait_for(look) {
                return result;
            }
            if let Some(late) = self.left().or_else(|| self.lacks(needs)) {
                return Err(late);
            }
            if self.gives_up() {
                let why = "the run was to end, and did not wait for a server that is away".into();
                return Err(VolumeError::Late(GRACE, why));
            }
            let _ = waits.get_or_insert_with(|| self.waits.begin(since));
            if !self.attend(since) {
                return Err(VolumeError::Late(since.elapsed(), "a stop was asked for".into()));
            }
        }
    }

    /// Something was not answered in time: whether that is because a server is gone, or the catalog. One that
    /// is away for less than that is watched until it is, or is back.
    fn judge(&self) -> Late {
        let (begun, mut back) = (Instant::now(), None);
        while !self.is_gone() && !self.gives_up() {
            let Ok(away) = self.away() else { return Late::Itself };
            let gone: Vec<_> = away.iter().filter(|away| away.time >= self.patience).cloned().collect();
            match (away.into_iter().max_by_key(|away| away.time), self.catalog.away()) {
                (Some(_), _) if !gone.is_empty() => {
                    gone.iter().for_each(|away| self.lose_server(away));
                    return Late::Gone;
                }
                (None, Some((time, why))) if time >= self.patience => {
                    self.lose_catalog(&why);
                    return Late::Gone;
                }
                (Some(away), _) => back = Some(Some(Where::Storage(away.server))),
                (None, Some(_)) => back = back.or(Some(None)),
                (None, None) => return back.map_or(Late::Itself, Late::Back),
            }
            // One that comes and goes is not waited for without end.
            if begun.elapsed() > self.patience || !self.attend(begun) {
                return Late::Itself;
            }
            thread::sleep(LOOK);
        }
        if self.is_gone() { Late::Gone } else { Late::Itself }
    }

    /// The catalog did not answer.
    pub(super) fn lose_catalog(&self, why: &str) {
        // Whoever else waits for it has waited for long enough.
        self.catalog.hurry(Some(GRACE));
        self.lose(&format!("catalog, {}", self.catalog_place), self.patience, why);
    }

    /// A storage server is gone: the run ends, or goes on without it.
    fn lose_server(&self, away: &Away) {
        let failure = self.is_lost(&self.server_in_words(away.server), away.time, &away.why);
        let mut without = self.without();
        if without.goes_on {
            without.servers.entry(away.server).or_insert_with(|| failure.text.into());
            return;
        }
        drop(without);
        self.end_run(failure);
    }

    fn lose(&self, who: &str, time: Duration, why: &str) {
        self.end_run(self.is_lost(who, time, why));
    }

    fn is_lost(&self, who: &str, time: Duration, why: &str) -> Failure {
        let name = haul_base::escape::name(self.name.as_bytes());
        let text = format!(
            "volume {name}: its {who}, is gone, and was not heard for {} s: {why}; start it again (`haul volume start {name}`; \
             `haul volume health {name}` says who answers), and the same command goes on",
            time.as_secs()
        );
        let errno = Errno::TIMEDOUT.raw_os_error();
        Failure { kind: FailureKind::Network, errno, text: text.into() }
    }

    /// Tells once why nothing goes on.
    fn end_run(&self, failure: Failure) {
        let mut gone = self.gone.lock();
        if gone.is_none() && !haul_mutant::removed("gone-volumes-end-the-run") {
            *gone = Some((Instant::now(), failure.clone()));
            if let Some(tell) = self.gone.tell.get() {
                tell(failure);
            }
        }
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone.lock().is_some()
    }

    /// That a server is gone, if one is.
    pub(super) fn gone(&self) -> Option<Failure> {
        self.gone.lock().as_ref().map(|(_, failure)| failure.clone())
    }

    /// Has `tell` know, once, that a server is gone: before what met it fails.
    pub(super) fn tell_when_gone(&self, tell: impl Fn(Failure) + Send + Sync + 'static) {
        let _ = self.gone.tell.set(Box::new(tell));
    }
}
