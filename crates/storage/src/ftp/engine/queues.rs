//! What the threads of a source share: the operations that wait for a session, and the answers owed for them.
//!
//! In: operations as they are submitted. Out: each to the thread that takes it.
//! Invariants: each is answered once, by whoever took it, or as given up.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use haul_core::digest::DigestKind;
use haul_core::ids::FileId;
use haul_core::transfer::op::{SourceDone, SourceOp};
use haul_core::wire::{Failure, FailureKind};
use haul_ftp::Error;

use super::ends::Ends;
use super::logins::{Logins, Opens};
use super::parts::Parts;
use super::ways::Ways;
use crate::ftp::names::Shared;
use crate::ftp::session::{Sites, Tries};
use crate::ftp::{SILENT_AFTER, failed, said};
use crate::owed::Owed;
use crate::source::WallClock;
use crate::store::{NetworkFacet, StoreNetwork};
use crate::{Post, SourceCompletion};
use haul_base::buffer::Buffer;
use haul_base::meter::Meter;
use haul_base::stop::LOOK;

/// Whose files come in blocks, or in a line: where the source lies at several servers, nobody's do.
pub(super) const SITE: usize = 0;

/// What all threads of a source share.
pub(super) struct Common {
    pub(super) sites: Arc<Sites>,
    pub(super) names: Shared,
    pub(super) clock: WallClock,
    pub(super) kind: DigestKind,
    pub(super) meter: Arc<Meter>,
    pub(super) post: Post<SourceCompletion>,
    pub(super) queues: Mutex<Queues>,
    pub(super) ready: Condvar,
    pub(super) ends: Ends,
    /// What an earlier run had of a file is believed, by the length and time that the server tells.
    pub(super) trusts: bool,
    pub(super) ways: Ways,
    /// What was read of each file, where it may have to be shown that another replica has the same.
    pub(super) parts: Parts,
    pub(super) network: Network,
}

#[derive(Default)]
pub(super) struct Queues {
    /// Objects, by the session that they lie on.
    pub(super) objects: Vec<VecDeque<Work>>,
    pub(super) other: VecDeque<Work>,
    /// Sessions that the server does not take.
    pub(super) refused: Vec<bool>,
    /// Sessions that the server took.
    pub(super) open: Vec<bool>,
    /// Sessions that are opened before there is anything for them.
    pub(super) opening: usize,
    /// Where files are read whose own session is refused: each as a whole by one.
    homes: HashMap<FileId, usize>,
    /// Sessions that were silent, and are asked whether they are there.
    pub(super) asking: Vec<bool>,
    /// Sessions that have nothing to do, and can be asked whether the server is there; and those that are to
    /// be asked.
    pub(super) idle: Vec<bool>,
    pub(super) to_ask: Vec<bool>,
    /// When those that were refused are tried again.
    pub(super) logins: Logins,
    /// Since when each session is at what.
    pub(super) busy: Vec<Option<(Instant, &'static str, FileId)>>,
    pub(super) ends: bool,
}

/// An operation, and the answer that is owed for it.
pub(super) struct Work {
    pub(super) op: SourceOp,
    pub(super) buffer: Option<Buffer>,
    pub(super) owed: Owed<SourceCompletion>,
}

/// The network that the source is reached over.
#[derive(Default)]
pub(super) struct Network {
    pub(super) connections: AtomicU16,
    pub(super) bytes: AtomicU64,
    pub(super) round_trip: Option<Duration>,
}

impl Network {
    /// So many bytes came.
    pub(super) fn count(&self, len: usize) {
        self.bytes.fetch_add(len as u64, Ordering::Relaxed);
    }
}

impl NetworkFacet for Network {
    fn look(&self) -> StoreNetwork {
        StoreNetwork {
            connections: self.connections.load(Ordering::Relaxed),
            round_trip: self.round_trip,
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
    fn set_connections(&self, _: u16) -> u16 {
        // Files are cut for as many as there are at the start.
        self.connections.load(Ordering::Relaxed)
    }
}

impl Queues {
    pub(super) fn new(sessions: usize) -> Queues {
        Queues {
            objects: (0..sessions).map(|_| VecDeque::new()).collect(),
            refused: vec![false; sessions],
            open: vec![false; sessions],
            asking: vec![false; sessions],
            idle: vec![false; sessions],
            to_ask: vec![false; sessions],
            busy: vec![None; sessions],
            ..Queues::default()
        }
    }

    /// Takes an operation. What is of a file goes to `session`, on which it lies, or to the one that has its
    /// files.
    pub(super) fn add(&mut self, session: usize, work: Work) {
        match work.op {
            SourceOp::Read { id, .. } | SourceOp::Look { id, .. } => {
                let session = self.home(id, session);
                self.objects[session].push_back(work);
            }
            _ => self.other.push_back(work),
        }
    }

    /// Whether the server has taken other sessions than this one.
    pub(super) fn has_others(&self, session: usize) -> bool {
        self.open.iter().enumerate().any(|(other, open)| *open && other != session)
    }

    /// The same, of those that may do what this one is not given.
    pub(super) fn has_others_there(&self, session: usize) -> bool {
        (0..self.open.len()).any(|other| other != session && self.open[other] && !self.asking[other])
    }

    /// Whether one more session may be opened ahead. At a near server what a login costs it (under GSI a key
    /// that it makes) delays the sessions that are open: their number is doubled, at most. At a far one it is
    /// round trips that a login takes, and all take them together. No more are opened than things wait, each
    /// of which is one session's.
    pub(super) fn may_open(&self, is_near: bool) -> bool {
        let open = self.open.iter().filter(|open| **open).count();
        let waits = match haul_mutant::removed("ftp-few-reads-have-few-logins") {
            true => usize::MAX,
            false => self.other.len(),
        };
        self.opening < waits && (!is_near || self.opening < open.max(1))
    }

    /// Whether a session that was refused is tried again. `left`: how many sessions were closed so far.
    pub(super) fn opens_again(&self, left: u64) -> Opens {
        let waits = !self.other.is_empty() || self.objects.iter().any(|own| !own.is_empty());
        let are_busy = self.open.iter().zip(&self.busy).all(|(open, busy)| !open || busy.is_some());
        self.logins.opens(waits && are_busy, left, Instant::now())
    }

    /// The server does not take this session, and what it was at goes to others, with all that waits for it.
    pub(super) fn refuse(&mut self, session: usize, work: Option<Work>) {
        (self.refused[session], self.open[session], self.busy[session]) = (true, false, None);
        match work {
            Some(work) if matches!(work.op, SourceOp::Read { .. } | SourceOp::Look { .. }) => {
                self.objects[session].push_front(work);
            }
            Some(work) => self.other.push_front(work),
            None => {}
        }
        for work in std::mem::take(&mut self.objects[session]) {
            self.add(session, work);
        }
    }

    /// The session that reads a file which lies on `session`.
    fn home(&mut self, id: FileId, session: usize) -> usize {
        let mut home = self.homes.get(&id).copied().unwrap_or(session);
        while self.refused[home] && !haul_mutant::removed("ftp-file-has-one-session") {
            // The shortest queue, and one that the server took before one that it may not take.
            let all = (0..self.objects.len()).filter(|other| !self.refused[*other]);
            let Some(next) = all.min_by_key(|other| (!self.open[*other], self.objects[*other].len())) else {
                break;
            };
            home = next;
            self.homes.insert(id, home);
        }
        home
    }

    pub(super) fn forget(&mut self, id: FileId) {
        self.homes.remove(&id);
    }
}

impl Common {
    pub(super) fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a session that meets this is over, and its work is that of the others: the server takes no
    /// further one while it has some. It says so; or it was never heard of over this one, for it closes those
    /// that are too many, or lets them wait. One that was open once is over where it is not opened again,
    /// since
    /// `lost`, and the server is there for others meanwhile.
    /// What was said of a session stays said, until it is tried again, and others know it at once: of two
    /// that meet this at the same time one stays.
    pub(super) fn leaves(&self, session: usize, error: &Error, lost: Option<Instant>) -> bool {
        let queues = self.lock();
        if queues.refused[session] {
            return true;
        }
        let is_network = error.is_network() && !self.sites.has_replicas();
        let is_further = is_network
            && !queues.open[session]
            && !haul_mutant::removed("ftp-sessions-that-are-not-greeted-are-over");
        let has_others = queues.has_others(session);
        drop(queues);
        let leaves = error.is_full() || is_further || is_network && has_others && self.is_there_since(lost);
        let mut queues = self.lock();
        let leaves = leaves && queues.has_others(session);
        if leaves && !haul_mutant::removed("ftp-one-of-two-stays") {
            (queues.refused[session], queues.open[session]) = (true, false);
            let left = self.sites.seats.left(SITE);
            queues.logins.refused(error.is_full(), left, Instant::now());
        }
        leaves
    }

    /// The server was heard of over another session since this one could not be opened; if need be those that
    /// have nothing to do ask it.
    fn is_there_since(&self, lost: Option<Instant>) -> bool {
        let Some(lost) = lost.filter(|_| !haul_mutant::removed("ftp-lost-sessions-leave-their-work")) else {
            return false;
        };
        let is_heard = || self.sites.was_heard_since(SITE, lost);
        if is_heard() {
            return true;
        }
        let until = Instant::now() + 2 * SILENT_AFTER;
        let mut queues = self.lock();
        let Queues { to_ask, idle, .. } = &mut *queues;
        to_ask.iter_mut().zip(idle).for_each(|(asks, idle)| *asks |= *idle);
        self.ready.notify_all();
        while !queues.ends && !is_heard() && queues.to_ask.contains(&true) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let woken = self.ready.wait_timeout(queues, left.min(LOOK));
            queues = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        is_heard()
    }

    /// The failure of a file at a server.
    pub(super) fn failure(&self, site: usize, kind: FailureKind, path: &[u8], error: &Error) -> Failure {
        failed(self.sites.server(site), kind, path, error)
    }

    /// Something came to nothing after these attempts. Where the servers are gone, that is told first.
    pub(super) fn given_up(&self, tries: &Tries, failure: Failure) -> Failure {
        if let Some(failure) = tries.gone(&self.sites, failure.errno) {
            (self.post)(SourceCompletion { done: SourceDone::Gone { failure }, buffer: None });
        }
        failure
    }

    pub(super) fn say(&self, site: usize, kind: FailureKind, path: &[u8], why: &str) -> Failure {
        said(self.sites.server(site), kind, path, why)
    }

    /// Waits before another attempt. False: nobody wants the answer any more.
    pub(super) fn wait(&self, pause: Duration) -> bool {
        let until = Instant::now() + pause;
        let mut queues = self.lock();
        while !queues.ends {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            queues = self.ready.wait_timeout(queues, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        false
    }
}

/// The answer to an operation, until it is settled or given up.
pub(super) fn owed(post: &Post<SourceCompletion>, op: &SourceOp) -> Owed<SourceCompletion> {
    let (post, op) = (post.clone(), op.clone());
    Owed::new(FailureKind::Read, move |answer: Result<SourceCompletion, Failure>| {
        post(answer.unwrap_or_else(|failure| SourceCompletion { done: refuse(op, &failure), buffer: None }));
    })
}

/// The completion of an operation that came to nothing.
pub(super) fn refuse(op: SourceOp, failure: &Failure) -> SourceDone {
    let failed = failure.clone();
    match op {
        SourceOp::Read { id, generation, offset, len, target, .. } => {
            SourceDone::Read { id, generation, offset, len, target, service: None, result: Err(failed) }
        }
        SourceOp::ReadBundle { files } => {
            let buffer = haul_core::ids::BufferId(u32::MAX);
            let items = files.into_iter().map(|file| (file, Err(failure.clone()))).collect();
            SourceDone::ReadBundle { buffer, items }
        }
        SourceOp::Refresh { id, generation } => SourceDone::Refresh { id, generation, result: Err(failed) },
        SourceOp::Look { id, generation }
        | SourceOp::Map { id, generation }
        | SourceOp::Verify { id, generation, .. }
        | SourceOp::HashFile { id, generation, .. } => {
            SourceDone::Look { id, generation, result: Err(failed) }
        }
        // These are answered where they are submitted.
        SourceOp::Locate { .. } | SourceOp::Forget { .. } | SourceOp::ForgetDir { .. } => {
            SourceDone::Locate { files: Vec::new() }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use haul_base::stop::Stop;
    use haul_core::reliability::Bounded;
    use haul_ftp::{Protocol, Security, Server, Settings};

    use super::*;
    use crate::ftp::names::Names;
    use crate::source::wall_clock;

    /// Of sessions with one server, of which these are open.
    fn common(open: &[bool]) -> Common {
        let server = Server::parse(Protocol::Ftp, "h").expect("a server");
        let (patience, security) = (Duration::from_secs(1), Security::None);
        let settings = Settings { patience, at: None, security, stop: Stop::never() };
        let mut queues = Queues::new(open.len());
        queues.open = open.to_vec();
        Common {
            sites: Arc::new(Sites::new([(server, settings)], Arc::new(Bounded))),
            names: Arc::new(Names::new(open.len(), [0; 16], (None, Duration::ZERO))),
            clock: wall_clock(),
            kind: DigestKind::Blake3,
            meter: Arc::new(Meter::default()),
            post: Arc::new(|_| {}),
            queues: Mutex::new(queues),
            ready: Condvar::new(),
            ends: Ends::default(),
            trusts: false,
            ways: Ways::new(false, None),
            parts: Parts::default(),
            network: Network::default(),
        }
    }

    fn full() -> Error {
        Error::Refused { said: "USER".into(), code: 421, text: "too many".into() }
    }

    /// Goal: of two sessions that are refused at the same time one leaves, and the other one has the work;
    /// what was said of each stays.
    #[test]
    fn of_two_that_are_refused_one_stays() {
        for _ in 0..200 {
            let (common, both) = (common(&[true, true, false]), Barrier::new(2));
            let left = thread::scope(|scope| {
                let ask = |session| {
                    both.wait();
                    common.leaves(session, &full(), None)
                };
                let threads = [0, 1].map(|session| scope.spawn(move || ask(session)));
                threads.map(|thread| thread.join().expect("no panic"))
            });
            assert!(left[0] != left[1], "{left:?}");
            let again = [0, 1].map(|session| common.leaves(session, &full(), None));
            assert_eq!(again, left);
        }
    }

    /// Goal: a session that was open once and is not opened again leaves its work where the server was heard
    /// of over another one since, and not else.
    #[test]
    fn a_lost_session_leaves_its_work_where_the_server_is_there() {
        let lost = || Error::Lost { doing: "connecting", cause: std::io::ErrorKind::ConnectionReset.into() };
        let since = Some(Instant::now());
        let gone = common(&[true, true]);
        assert!(!gone.leaves(0, &lost(), since) && !gone.leaves(0, &lost(), None));
        let alone = common(&[true, false]);
        alone.sites.heard(SITE);
        assert!(!alone.leaves(0, &lost(), since));
        let there = common(&[true, true]);
        there.sites.heard(SITE);
        assert!(!there.leaves(0, &lost(), None), "it was lost, and perhaps is there again");
        assert!(there.leaves(0, &lost(), since));
        assert!(!there.leaves(1, &lost(), since), "it is the last one");
    }

    /// Goal: no more sessions are opened ahead than there is something for, however far the server is; at a
    /// near one no more at a time than there are.
    #[test]
    fn one_thing_is_worth_one_login() {
        let post: Post<SourceCompletion> = Arc::new(|_| {});
        for (works, is_near, want) in
            [(0, false, 0), (1, false, 1), (3, false, 3), (20, false, 8), (20, true, 1)]
        {
            let mut queues = Queues::new(8);
            for _ in 0..works {
                let op = SourceOp::ReadBundle { files: Vec::new() };
                let owed = owed(&post, &op);
                queues.add(0, Work { op, buffer: None, owed });
            }
            for _ in 0..8 {
                queues.opening += usize::from(queues.may_open(is_near));
            }
            assert_eq!(queues.opening, want, "{works} {is_near}");
        }
    }
}
