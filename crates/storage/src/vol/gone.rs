//! Servers of a volume that are away: how long anybody waits for one, and when one is gone.
//!
//! In: what was begun at the servers; what the catalog did not answer. Out: what became of it; once that a
//! server is gone, for who ends the run then.
//! Invariants: a storage server is gone only if something waited in vain for as long as the run has patience,
//! and it was not heard for as long either; the catalog is if a call waited for so long. From then on nobody
//! waits for longer than [`GRACE`], which is for what was under way elsewhere: a run ends with one patience,
//! and not with one for each file.
//! Left out: what ends, and what is told of the files that are left (the machines of the session).

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use haul_core::volume::client::Where;
use haul_core::wire::{Failure, FailureKind};
use haul_volume::client::{VolumeError, Waiting};
use rustix::io::Errno;

use super::Volume;

/// How often who waits looks whether a server is gone.
const LOOK: Duration = Duration::from_millis(250);
/// What is under way when one is gone has so long.
const GRACE: Duration = Duration::from_secs(2);

type Tell = Box<dyn Fn(Failure) + Send + Sync>;

/// Whether a server is gone.
#[derive(Default)]
pub(super) struct Gone {
    /// Since when, and why. It is told before anybody else can see it.
    gone: Mutex<Option<(Instant, Failure)>>,
    /// Who wants to know, once.
    tell: OnceLock<Tell>,
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
        }
    }

    /// Something was not answered in time: whether that is because a server is gone. One that is away for
    /// less than that is watched until it is, or is back.
    fn judge(&self) -> Late {
        let (begun, mut back) = (Instant::now(), None);
        while !self.is_gone() {
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
        Late::Gone
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
        let failure = Failure { kind: FailureKind::Network, errno, text: text.into() };
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
