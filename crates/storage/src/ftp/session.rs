//! Where the source lies, once or in several replicas, and what becomes of what failed there. Sessions that
//! are opened when they are needed, and again when they were lost, are in `lines.rs`.
//!
//! In: what failed. Out: what the policy makes of it: again, at another replica, or not.
//! Invariants: all sessions with a server go to the address that was reached first. Servers count as gone
//! only if no session could be opened with any of them for [`QUIET`], and meanwhile none of the others gave
//! anything to any session.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use haul_base::stop::Stop;
use haul_core::reliability::{ATTEMPTS, Decision, Reliability, Step, Trouble};
use haul_core::wire::{Failure, FailureKind};
use haul_ftp::{Error, Security, Server, Session, Settings};

use super::seats::Seats;
use super::shown;

/// For so long nothing is heard of a server that is gone: shorter, and one that is slow would count as such.
const QUIET: Duration = Duration::from_secs(2);
/// How often that is waited for, where the policy has given up: in each of these times another session had
/// something of the server.
const LOOKS_MAX: u32 = 3;

/// A server that the source lies at.
pub(super) struct Site {
    pub(super) server: Server,
    pub(super) settings: Settings,
    /// Where it was reached first: behind one name there may be several that differ.
    at: OnceLock<SocketAddr>,
    /// A session with it was begun.
    asked: AtomicBool,
    /// Something was said to it, a login at least.
    reached: AtomicBool,
    /// What it did not give was taken from another replica, and why; nothing new is begun here as long as
    /// there is one that was not left.
    left: AtomicBool,
    why: Mutex<Option<String>>,
    /// Files that were read here to their end.
    files: AtomicU64,
    /// Times that it had other content than what had come of a file from elsewhere.
    differed: AtomicU64,
    life: Mutex<Life>,
}

/// What is known of whether a server is there.
#[derive(Default)]
struct Life {
    /// When it last did something for any session.
    heard: Option<Instant>,
    /// Since when no session could be opened with it, for it was not reached.
    unreached: Option<Instant>,
}

/// All of them, the first one that of the command's source.
pub(super) struct Sites {
    pub(super) all: Vec<Site>,
    retry: Arc<dyn Reliability>,
    /// How often the way to one of them was lost or not to be had, and waited for.
    lost: AtomicU64,
    /// Who has a session with which of them, or was refused one.
    pub(super) seats: Seats<Session>,
}

impl Site {
    /// Something was said to it, be it that it refused.
    pub(super) fn was_reached(&self) -> bool {
        self.reached.load(Ordering::Relaxed) || haul_mutant::removed("ftp-unreached-replicas-are-not-told")
    }
}

impl Sites {
    pub(super) fn new(
        all: impl IntoIterator<Item = (Server, Settings)>,
        retry: Arc<dyn Reliability>,
    ) -> Sites {
        let site = |(server, settings)| Site {
            server,
            settings,
            at: OnceLock::new(),
            asked: AtomicBool::new(false),
            reached: AtomicBool::new(false),
            left: AtomicBool::new(false),
            why: Mutex::default(),
            files: AtomicU64::new(0),
            differed: AtomicU64::new(0),
            life: Mutex::default(),
        };
        let all: Vec<Site> = all.into_iter().map(site).collect();
        let seats = Seats::new(all.len());
        Sites { all, retry, lost: AtomicU64::new(0), seats }
    }

    /// There is more than one.
    pub(super) fn has_replicas(&self) -> bool {
        self.all.len() > 1
    }

    pub(super) fn server(&self, site: usize) -> &Server {
        &self.all[site].server
    }

    /// Opens a session with one of them, as long as nobody wants an end.
    ///
    /// # Errors
    /// The server is not there, or takes no further one.
    pub(super) fn open(&self, site: usize, stop: &Stop) -> Result<Session, Error> {
        let Site { server, settings, at, .. } = &self.all[site];
        let open = |at| {
            let mut settings = Settings { at, stop: stop.clone(), ..settings.clone() };
            if let Security::Ssh(ssh) = &mut settings.security {
                // Nobody is asked twice, nor in the middle of a copy.
                ssh.interactive &= !self.all[site].asked.swap(true, Ordering::Relaxed);
            }
            let opened = Session::open(server, &settings);
            if !opened.as_ref().is_err_and(Error::is_unheard) {
                self.all[site].reached.store(true, Ordering::Relaxed);
            }
            opened
        };
        let session = open(at.get().copied())?;
        let Some(reached) = session.address() else { return Ok(session) };
        match *at.get_or_init(|| reached) {
            first if first == reached => Ok(session),
            // Two were opened at a time, and went to different addresses.
            first => open(Some(first)),
        }
    }

    /// Where something is begun that should come from `site`: there, or where that was left at another one.
    pub(super) fn instead_of(&self, site: usize) -> usize {
        let is_left = |site: &usize| self.all[*site].left.load(Ordering::Relaxed);
        match is_left(&site) {
            true => self.after(site).find(|other| !is_left(other)).unwrap_or(site),
            false => site,
        }
    }

    /// The others, in the order in which they are tried.
    fn after(&self, site: usize) -> impl Iterator<Item = usize> + use<> {
        let count = self.all.len();
        (1..count).map(move |step| (site + step) % count)
    }

    fn leave(&self, site: usize, is_gone: bool, why: &str) {
        let Site { left, why: kept, .. } = &self.all[site];
        left.fetch_or(is_gone, Ordering::Relaxed);
        if self.all.iter().all(|site| site.left.load(Ordering::Relaxed)) {
            // None is better than any other.
            self.all.iter().for_each(|site| site.left.store(false, Ordering::Relaxed));
        }
        kept.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| why.to_owned());
    }

    fn life(&self, site: usize) -> MutexGuard<'_, Life> {
        self.all[site].life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It gave something to a session, or said something.
    pub(super) fn heard(&self, site: usize) {
        *self.life(site) = Life { heard: Some(Instant::now()), unreached: None };
    }

    /// It gave something to a session, or said something, since then.
    pub(super) fn was_heard_since(&self, site: usize, then: Instant) -> bool {
        self.life(site).heard.is_some_and(|heard| heard > then)
    }

    /// No session could be opened with it by an attempt that was begun then.
    pub(super) fn unreached(&self, site: usize, begun: Instant) {
        let mut life = self.life(site);
        let since = life.heard.map_or(begun, |heard| heard.max(begun));
        life.unreached.get_or_insert(since);
    }

    /// For how long none of them could be reached; `None`: one of them can, as far as anybody knows.
    fn gone_for(&self) -> Option<Duration> {
        let since = (0..self.all.len()).map(|site| self.life(site).unreached);
        since.map(|since| since.map(|since| since.elapsed())).min().flatten()
    }

    /// A file was read there, from its beginning to its end.
    pub(super) fn gave(&self, site: usize) {
        self.all[site].files.fetch_add(1, Ordering::Relaxed);
    }

    /// It showed other content than what had come of a file from another one.
    pub(super) fn differed(&self, site: usize) {
        self.all[site].differed.fetch_add(1, Ordering::Relaxed);
    }

    /// How often the way there was lost and waited for, for people; nothing where that never was.
    pub(super) fn lost(&self) -> Option<String> {
        match self.lost.load(Ordering::Relaxed) {
            0 => None,
            1 => Some("once, and waited for".into()),
            times => Some(format!("{times} times, and waited for")),
        }
    }

    /// What was used of them, for people.
    pub(super) fn used(&self) -> Option<String> {
        let one = |site: &Site| {
            let why = site.why.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let why = why.map(|why| format!(" (left once at least: {why})")).unwrap_or_default();
            let differs = match site.differed.load(Ordering::Relaxed) {
                0 => "",
                _ => ", and had other content than what had come of a file before, which began anew",
            };
            let files = site.files.load(Ordering::Relaxed);
            format!("{} gave {files} files{why}{differs}", site.server.url())
        };
        self.has_replicas().then(|| self.all.iter().map(one).collect::<Vec<_>>().join("; "))
    }
}

/// How something failed, as a policy is told it.
pub(super) struct Why {
    kind: FailureKind,
    passing: bool,
    silent: bool,
    /// The server itself, or the way to it, is to blame, and not this one path.
    is_gone: bool,
    text: String,
}

impl Why {
    /// It may go well later, whatever the server said.
    pub(super) fn passing(self) -> Why {
        Why { passing: true, ..self }
    }

    /// It is not there, or not what was meant.
    pub(super) fn lasting(kind: FailureKind, text: impl Into<String>) -> Why {
        Why { kind, passing: false, silent: false, is_gone: false, text: text.into() }
    }
}

impl From<&Error> for Why {
    fn from(error: &Error) -> Why {
        let kind = if error.is_network() { FailureKind::Network } else { FailureKind::Read };
        Why {
            kind,
            passing: error.is_passing(),
            silent: error.is_silence(),
            is_gone: error.is_network() || error.is_full(),
            text: error.to_string(),
        }
    }
}

/// How often and where something was tried.
pub(super) struct Tries {
    step: Step,
    pub(super) site: usize,
    attempts: u32,
    /// When it failed first.
    since: Option<Instant>,
    tried: Vec<bool>,
    /// How often it was tried again only to see whether the servers are gone; and that they are, in words.
    looks: u32,
    gone: Option<String>,
}

/// What becomes of it.
pub(super) enum Next {
    After(Duration),
    Site(usize),
    Over,
}

impl Tries {
    pub(super) fn new(step: Step, sites: &Sites, site: usize) -> Tries {
        let mut tried = vec![false; sites.all.len()];
        tried[site] = true;
        Tries { step, site, attempts: 1, since: None, tried, looks: 0, gone: None }
    }

    /// It failed so often before, in another way.
    pub(super) fn count(&mut self, before: u32) {
        self.attempts = self.attempts.saturating_add(before);
    }

    /// It failed once more. `marker`: so much of it is safe.
    pub(super) fn failed(&mut self, sites: &Sites, why: Why, path: &[u8], marker: u64) -> Next {
        let Why { kind, passing, silent, is_gone, text } = why;
        if kind != FailureKind::Network {
            sites.heard(self.site);
        }
        let others = self.tried.iter().filter(|tried| !**tried).count();
        let trouble = Trouble {
            step: self.step,
            about: &shown(sites.server(self.site), path),
            text: &text,
            kind,
            passing,
            silent,
            attempts: self.attempts,
            since: self.since.get_or_insert_with(Instant::now).elapsed(),
            marker,
            others: u16::try_from(others).unwrap_or(u16::MAX),
        };
        match sites.retry.decide(&trouble) {
            Decision::After(pause) => {
                // At the start there was none to lose.
                let is_lost = kind == FailureKind::Network && self.step != Step::Start;
                sites.lost.fetch_add(u64::from(is_lost), Ordering::Relaxed);
                if others == 0 && self.attempts > ATTEMPTS {
                    // Those that were left may be back.
                    self.tried.fill(false);
                    self.tried[self.site] = true;
                }
                self.attempts = self.attempts.saturating_add(1);
                Next::After(pause)
            }
            Decision::Replica => match sites.after(self.site).find(|site| !self.tried[*site]) {
                Some(to) => {
                    sites.leave(self.site, is_gone, &text);
                    (self.site, self.attempts, self.tried[to]) = (to, 1, true);
                    Next::Site(to)
                }
                None => self.give_up(sites, kind, text),
            },
            Decision::GiveUp => self.give_up(sites, kind, text),
        }
    }

    /// The policy has given it up: a little later it is tried once more, where that may show whether all
    /// servers are gone.
    fn give_up(&mut self, sites: &Sites, kind: FailureKind, text: String) -> Next {
        if kind != FailureKind::Network || self.step == Step::Start {
            return Next::Over;
        }
        match sites.gone_for() {
            Some(quiet) if quiet >= QUIET => self.gone = Some(text),
            Some(quiet) if self.looks < LOOKS_MAX => {
                self.looks += 1;
                return Next::After(QUIET - quiet);
            }
            _ => {}
        }
        Next::Over
    }

    /// It came to nothing because no server of the source can be reached any more: nothing else can be had of
    /// them, either. The failure says so; `errno` is that of the last attempt.
    pub(super) fn gone(&self, sites: &Sites, errno: i32) -> Option<Failure> {
        let why = self.gone.as_deref()?;
        let text = format!("the source's server is gone: {}: {why}", sites.server(self.site).url());
        Some(Failure { kind: FailureKind::Read, errno, text: text.into() })
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use haul_core::reliability::Bounded;
    use haul_ftp::Protocol;

    use super::*;

    fn sites(count: usize) -> Sites {
        let one = |n| {
            let server = Server::parse(Protocol::Ftp, &format!("h{n}")).expect("a server");
            let (patience, security) = (Duration::from_secs(1), Security::None);
            (server, Settings { patience, at: None, security, stop: Stop::never() })
        };
        Sites::new((0..count).map(one), Arc::new(Bounded))
    }

    fn refused() -> Error {
        Error::Connect { to: "h".into(), cause: io::ErrorKind::ConnectionRefused.into() }
    }

    /// Something fails at the last of them as often as the policy has it; `meanwhile` comes before each time.
    fn fails(sites: &Sites, error: &Error, meanwhile: impl Fn(u32)) -> (Tries, u32) {
        let mut tries = Tries::new(Step::File, sites, 0);
        for times in 1..100 {
            meanwhile(times);
            if let Next::Over = tries.failed(sites, error.into(), b"/f", 0) {
                return (tries, times);
            }
        }
        panic!("it is tried for ever");
    }

    /// Goal: servers are gone when none of them was reached for some time, and not where one of them, or
    /// another session with it, still has something; nor where one says that it does not want this session.
    #[test]
    fn servers_are_gone_when_none_is_heard_of() {
        let long_ago = Instant::now() - 2 * QUIET;
        let one = sites(1);
        one.unreached(0, long_ago);
        let (tries, times) = fails(&one, &refused(), |_| {});
        assert_eq!((tries.looks, times), (0, ATTEMPTS));
        let why = tries.gone(&one, 111).expect("it is gone");
        assert!(why.errno == 111 && why.text.contains("ftp://h0"), "{why:?}");

        // It was just heard of: a look later on decides.
        let one = sites(1);
        one.heard(0);
        let (tries, _) = fails(&one, &refused(), |times| match times {
            ..=ATTEMPTS => one.unreached(0, Instant::now()),
            _ => one.all[0].life.lock().expect("nobody panics").unreached = Some(long_ago),
        });
        assert!(tries.looks == 1 && tries.gone(&one, 111).is_some());

        // Another session has something of it again and again.
        let (tries, times) = fails(&one, &refused(), |_| {
            one.heard(0);
            one.unreached(0, Instant::now());
        });
        assert_eq!((tries.looks, times), (LOOKS_MAX, ATTEMPTS + LOOKS_MAX));
        assert!(tries.gone(&one, 111).is_none());

        // This session can be opened, and is lost each time.
        one.heard(0);
        let lost = Error::Lost { doing: "reading", cause: io::ErrorKind::ConnectionReset.into() };
        let (tries, times) = fails(&one, &lost, |_| {});
        assert!(times == ATTEMPTS && tries.gone(&one, 0).is_none());

        // Refused by the server's word, however long it was not reached before.
        one.unreached(0, long_ago);
        let full = Error::Refused { said: "USER".into(), code: 421, text: "too many".into() };
        assert!(fails(&one, &full, |_| {}).0.gone(&one, 0).is_none());

        // One of two replicas is there.
        let two = sites(2);
        two.unreached(0, long_ago);
        two.heard(1);
        assert!(fails(&two, &refused(), |_| {}).0.gone(&two, 111).is_none());
        two.unreached(0, long_ago);
        two.all[1].life.lock().expect("nobody panics").unreached = Some(long_ago);
        assert!(fails(&two, &refused(), |_| {}).0.gone(&two, 111).is_some());
    }

    /// Goal: what an attempt that was begun long ago meets says nothing of the time before the server was
    /// last heard of.
    #[test]
    fn a_late_answer_is_no_long_silence() {
        let one = sites(1);
        one.heard(0);
        one.unreached(0, Instant::now() - 2 * QUIET);
        assert!(one.gone_for().is_some_and(|quiet| quiet < QUIET));
        one.heard(0);
        assert_eq!(one.gone_for(), None);
    }
}
