//! Servers of a volume that are away: how long anybody waits for one, and when one is gone.
//!
//! In: what was begun at the servers; what the catalog did not answer. Out: what became of it; once that a
//! server is gone, for who ends the run then.
//! Invariants: a storage server is gone only if something waited in vain for as long as the run has patience,
//! and it was not heard for as long either; the catalog is if a call waited for so long. From then on nobody
//! waits for longer than [`GRACE`], which is for what was under way elsewhere: a run ends with one patience,
//! and not with one for each file. So it does where a server has no room: what is written there is tried
//! again for one patience, which begins when it first had none. A disk that fails otherwise is not waited
//! for. Left out: what ends, and what is told of the files that are left (the machines of the session).

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use haul_core::volume::ServerNo;
use haul_core::volume::client::Where;
use haul_core::wire::{Failure, FailureKind};
use haul_volume::client::{VolumeError, Waiting};
use rustix::io::Errno;

use super::Volume;

/// How often who waits looks whether a server is gone.
const LOOK: Duration = Duration::from_millis(250);
/// What is under way when one is gone has so long.
const GRACE: Duration = Duration::from_secs(2);
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
    /// This one was away, and is there again.
    Back(Where),
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

    /// The same for what was begun before.
    ///
    /// # Errors
    /// As [`Waiting::wait`].
    pub(super) fn wait_for<T>(
        &self,
        begun: Waiting<T>,
        again: impl FnOnce() -> Waiting<T>,
    ) -> Result<T, VolumeError> {
        match self.settle(&begun) {
            Err(late @ VolumeError::Late(..)) => match self.judge() {
                Late::Back(_) => self.settle(&again()),
                Late::Gone | Late::Itself => Err(late),
            },
            result => result,
        }
    }

    /// Waits for what is not to be begun twice. Where a server was away and came back too late, nobody knows
    /// what became of it, and what it was for counts as lost.
    ///
    /// # Errors
    /// As [`Waiting::wait`].
    pub(super) fn wait_once<T>(&self, begun: &Waiting<T>) -> Result<T, VolumeError> {
        match self.settle(begun) {
            Err(late @ VolumeError::Late(..)) => match self.judge() {
                Late::Back(of) => Err(VolumeError::Lost(of)),
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

    /// The run is to end, or is not any more: nobody waits then for a server that is away.
    pub(super) fn set_ends(&self, ends: bool) {
        let mut since = self.gone.ends.lock().unwrap_or_else(PoisonError::into_inner);
        *since = ends.then(|| since.unwrap_or_else(Instant::now));
    }

    /// Whether the run has been to end for a while.
    fn is_ending(&self) -> bool {
        let since = *self.gone.ends.lock().unwrap_or_else(PoisonError::into_inner);
        since.is_some_and(|since| since.elapsed() >= GRACE)
            && !haul_mutant::removed("stopped-volumes-are-left")
    }

    /// Whether the run is to end, and a server is away.
    fn gives_up(&self) -> bool {
        self.is_ending() && self.client.away().is_ok_and(|away| !away.is_empty())
    }

    fn settle<T>(&self, begun: &Waiting<T>) -> Result<T, VolumeError> {
        loop {
            if let Some(result) = begun.wait_for(LOOK) {
                return result;
            }
            if let Some((since, failure)) = &*self.gone.lock()
                && since.elapsed() >= GRACE
            {
                return Err(VolumeError::Late(self.patience, failure.text.clone().into()));
            }
            if self.gives_up() {
                let why = "the run was to end, and did not wait for a server that is away".into();
                return Err(VolumeError::Late(GRACE, why));
            }
        }
    }

    /// Something was not answered in time: whether that is because a server is gone. One that is away for
    /// less than that is watched until it is, or is back.
    fn judge(&self) -> Late {
        let (begun, mut back) = (Instant::now(), None);
        while !self.is_gone() && !self.gives_up() {
            let Ok(away) = self.client.away() else { return Late::Itself };
            let Some(away) = away.into_iter().max_by_key(|away| away.time) else {
                return back.map_or(Late::Itself, Late::Back);
            };
            if away.time >= self.patience {
                let server = usize::from(away.server.0);
                let at = self.facts.servers.get(server).map_or("", |at| &**at);
                self.lose(&format!("server {server}, {at}"), away.time, &away.why);
                return Late::Gone;
            }
            // One that comes and goes is not waited for without end.
            if begun.elapsed() > self.patience {
                return Late::Itself;
            }
            back = Some(Where::Storage(away.server));
            thread::sleep(LOOK);
        }
        if self.is_gone() { Late::Gone } else { Late::Itself }
    }

    /// The catalog did not answer.
    pub(super) fn lose_catalog(&self, why: &str) {
        // Whoever else waits for it has waited for long enough.
        self.catalog.hurry(GRACE);
        self.lose(&format!("catalog, {}", self.catalog_at), self.patience, why);
    }

    fn lose(&self, who: &str, time: Duration, why: &str) {
        let name = haul_base::escape::name(self.name.as_bytes());
        let text = format!(
            "volume {name}: its {who}, is gone, and was not heard for {} s: {why}; start it again (`haul volume start {name}`; \
             `haul volume health {name}` says who answers), and the same command goes on",
            time.as_secs()
        );
        let errno = Errno::TIMEDOUT.raw_os_error();
        self.end_run(Failure { kind: FailureKind::Network, errno, text: text.into() });
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
