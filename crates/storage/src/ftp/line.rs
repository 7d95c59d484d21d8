//! A session with a destination, or with one of two servers that move data between them: opened when it is
//! needed, and again when it was lost; and what becomes of what failed there. Sources, which may lie at
//! several servers, have `session.rs`.
//!
//! In: what failed. Out: what the policy makes of it: again, after a pause, or not; once that the server is
//! gone, where somebody wants to know that.
//! Invariants: a pause ends as soon as nobody wants what comes behind it; of a server that is gone for all
//! sessions the time counts from when it last did something for any of them, so that what waits behind each
//! other does not wait for that long each. What decides whether it is gone is in `there`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use haul_base::stop::Stop;
use haul_core::reliability::{Bounded, Decision, Reliability, Step, Trouble};
use haul_core::wire::{Failure, FailureKind};
use haul_ftp::{Asked, Error, Server, Session, Settings};

use super::there::{There, Verdict};
use super::{shown, unless};

/// What becomes of what fails at a server.
pub(super) struct Retry {
    server: Server,
    /// What failed there, unless the network did.
    kind: FailureKind,
    policy: Arc<dyn Reliability>,
    /// Nobody wants anything of it any more.
    over: Stop,
    /// Since when it has been gone.
    gone: Mutex<Option<Instant>>,
    /// How often the way to it was lost or not to be had, and waited for.
    lost: AtomicU64,
    /// Nobody wants anything of it any more, and it was not there to end what was under way.
    left: AtomicBool,
    /// Whether it is there, and gives data connections.
    there: Mutex<There>,
    /// Who wants to know, once, that nothing goes there any more.
    tell: OnceLock<Box<dyn Fn(Failure) + Send + Sync>>,
}

/// How often and since when something was tried.
pub(super) struct Attempts {
    step: Step,
    count: u32,
    /// When it failed first.
    since: Option<Instant>,
    /// How often it was tried again only to see whether the server is gone.
    looks: u32,
}

impl Attempts {
    pub(super) fn new(step: Step) -> Attempts {
        Attempts { step, count: 0, since: None, looks: 0 }
    }

    /// It came further than ever before: from now on the time counts anew, though not the attempts.
    pub(super) fn came_on(&mut self) {
        self.since = None;
    }
}

impl Retry {
    pub(super) fn new(
        (server, kind): (&Server, FailureKind),
        policy: Arc<dyn Reliability>,
        over: Stop,
    ) -> Arc<Retry> {
        Arc::new(Retry {
            server: server.clone(),
            kind,
            policy,
            over,
            gone: Mutex::default(),
            lost: AtomicU64::new(0),
            left: AtomicBool::new(false),
            there: Mutex::default(),
            tell: OnceLock::new(),
        })
    }

    /// Has `tell` know, once, that nothing can be had of the server any more.
    pub(super) fn tell_when_gone(&self, tell: impl Fn(Failure) + Send + Sync + 'static) {
        let _ = self.tell.set(Box::new(tell));
    }

    /// Nothing goes there any more, and why.
    pub(super) fn tell(&self, failure: Failure) {
        if let Some(tell) = self.tell.get() {
            tell(failure);
        }
    }

    fn there(&self) -> MutexGuard<'_, There> {
        self.there.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server did something.
    pub(super) fn well(&self) {
        *self.gone.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.heard();
    }

    /// It took or said something, whatever comes of that.
    pub(super) fn heard(&self) {
        self.there().heard();
    }

    /// A data connection with it came up.
    pub(super) fn connected(&self) {
        self.there().connected();
    }

    /// Something about `path` failed once more, of which so many bytes are safe: how long to wait before the
    /// next attempt; `None`: it failed.
    pub(super) fn failed(
        &self,
        tries: &mut Attempts,
        error: &Error,
        path: &[u8],
        marker: u64,
    ) -> Option<Duration> {
        let now = Instant::now();
        let gone = match error.is_network() || error.is_full() {
            true => Some(*self.gone.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(now)),
            false => None,
        };
        if let Error::Refused { said, code: 500.., .. } = error
            && ["STOR ", "ESTO "].iter().any(|verb| said.starts_with(verb))
        {
            // That is said behind the connection for it.
            self.connected();
        }
        tries.count = tries.count.saturating_add(1);
        let since = *tries.since.get_or_insert(now);
        let trouble = Trouble {
            step: tries.step,
            about: &shown(&self.server, path),
            text: &error.to_string(),
            kind: if error.is_network() { FailureKind::Network } else { self.kind },
            passing: error.is_passing(),
            silent: error.is_silence(),
            attempts: tries.count,
            since: now - gone.map_or(since, |gone| gone.min(since)),
            marker,
            others: 0,
        };
        let decision = match haul_mutant::removed("ftp-sinks-ask-the-policy") {
            true => Bounded.decide(&trouble),
            false => self.policy.decide(&trouble),
        };
        match decision {
            Decision::After(pause) => {
                // At the start there was none to lose.
                let is_lost = error.is_network() && !matches!(tries.step, Step::Start);
                self.lost.fetch_add(u64::from(is_lost), Ordering::Relaxed);
                Some(pause)
            }
            Decision::Replica | Decision::GiveUp => self.give_up(tries, error),
        }
    }

    /// The policy has given it up. Where that may be because the server is gone, that is told; or it is tried
    /// once more a little later, to see that.
    fn give_up(&self, tries: &mut Attempts, error: &Error) -> Option<Duration> {
        let tell = self.tell.get().filter(|_| !matches!(tries.step, Step::Start) && !self.over.is_asked())?;
        let verdict = self.there().judge(error, tries.looks);
        let (url, why) = (self.server.url(), error.to_string());
        let text = match verdict {
            Verdict::Itself => return None,
            Verdict::Look(pause) => {
                tries.looks += 1;
                return Some(pause);
            }
            Verdict::Gone => {
                let whose = if self.kind == FailureKind::Read { "source" } else { "destination" };
                format!("the {whose}'s server is gone: {url}: {why}")
            }
            Verdict::Barred(_) if error.is_untrusted_for_data() => {
                format!("{url}: it answers commands, and data connections to it are not taken: {why}")
            }
            Verdict::Barred(ever) => {
                let so_far = if ever {
                    "no data connection to it comes up any more"
                } else {
                    "no data connection to it ever came up"
                };
                format!(
                    "{url}: it answers commands, and {so_far}: {why}; its data ports may be blocked by a firewall: have its range \
                     of passive ports, which its administrator knows, opened for this host"
                )
            }
        };
        tell(Failure { kind: self.kind, errno: error.errno(), text: text.into() });
        None
    }

    /// How often the way there was lost and waited for, for people; nothing where that never was.
    pub(super) fn words(&self) -> Option<String> {
        match self.lost.load(Ordering::Relaxed) {
            0 => None,
            1 => Some("once, and waited for".into()),
            times => Some(format!("{times} times, and waited for")),
        }
    }

    /// Opens a session, unless nobody wants more than the end of what is under way, and the server was not
    /// there for that.
    pub(super) fn open(&self, server: &Server, settings: &Settings) -> Result<Session, Error> {
        if self.left.load(Ordering::Relaxed) && self.over.is_asked() {
            let cause = haul_base::stop::Stopped.into();
            return Err(Error::Lost { doing: "connecting again", cause });
        }
        let begun = Instant::now();
        let opened = Session::open(server, settings);
        if opened.as_ref().is_err_and(Error::is_network) {
            if settings.stop.is_asked() {
                // It was not waited for: that says nothing of the server.
                return opened;
            }
            self.there().unreached(begun);
            if self.over.is_asked() {
                self.left.store(true, Ordering::Relaxed);
            }
        } else {
            self.there().heard();
        }
        opened
    }

    /// Waits before another attempt. False: nobody wants it any more.
    pub(super) fn wait(&self, pause: Duration) -> bool {
        unless(&self.over, pause)
    }
}

/// A session with a server, if there is one now.
pub(super) struct Line {
    server: Server,
    session: Option<Session>,
    settings: Settings,
    retry: Arc<Retry>,
    /// What it is used for at the moment, for people.
    about: Vec<u8>,
}

impl Line {
    pub(super) fn new(server: Server, settings: Settings, retry: &Arc<Retry>) -> Line {
        Line { server, session: None, settings, retry: retry.clone(), about: Vec::new() }
    }

    pub(super) fn with(server: Server, settings: Settings, retry: &Arc<Retry>, session: Session) -> Line {
        Line { session: Some(session), ..Line::new(server, settings, retry) }
    }

    /// What it is used for from now on.
    pub(super) fn set_about(&mut self, path: &[u8]) {
        path.clone_into(&mut self.about);
    }

    /// The session; opened, if there is none.
    ///
    /// # Errors
    /// The server is not there, or takes no further one.
    pub(super) fn open(&mut self) -> Result<&mut Session, Error> {
        if self.session.as_ref().is_none_or(Session::is_broken) {
            self.session = None;
            self.session = Some(self.retry.open(&self.server, &self.settings)?);
        }
        Ok(self.session.as_mut().expect("just opened"))
    }

    /// The session, if there is one.
    pub(super) fn now(&mut self) -> Option<&mut Session> {
        self.session.as_mut().filter(|session| !session.is_broken())
    }

    /// There is a session, as far as anybody knows.
    pub(super) fn is_open(&self) -> bool {
        self.session.as_ref().is_some_and(|session| !session.is_broken())
    }

    /// It is of no use any more.
    pub(super) fn close(&mut self) {
        self.session = None;
    }

    /// Does something, and does it again over a new session while the policy says so.
    ///
    /// # Errors
    /// As the last attempt.
    pub(super) fn again<T>(
        &mut self,
        mut work: impl FnMut(&mut Session) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut tries = Attempts::new(Step::List);
        loop {
            let error = match self.open().and_then(&mut work) {
                Ok(done) => {
                    self.retry.well();
                    return Ok(done);
                }
                Err(error) => error,
            };
            if error.wants_another_session() {
                self.close();
            }
            let pause = self.retry.failed(&mut tries, &error, &self.about, 0);
            if !pause.is_some_and(|pause| self.retry.wait(pause)) {
                return Err(error);
            }
        }
    }
}

impl Line {
    /// Does something about several things, and again about those of which the server says "later", while the
    /// policy says so. `work` is given which of them are open, by their numbers.
    ///
    /// # Errors
    /// The session is over: nothing is known of any of them.
    pub(super) fn again_of_each<T>(
        &mut self,
        count: usize,
        mut work: impl FnMut(&mut Session, &[usize]) -> Result<Vec<Result<T, Error>>, Error>,
    ) -> Result<Vec<Result<T, Error>>, Error> {
        let (mut each, mut tries) = (Each::new(count), Attempts::new(Step::List));
        loop {
            if let Some((_, error)) = each.later() {
                let pause = self.retry.failed(&mut tries, error, &self.about, 0);
                if !pause.is_some_and(|pause| self.retry.wait(pause)) {
                    return Ok(each.told());
                }
            }
            let open = each.open();
            if open.is_empty() {
                return Ok(each.told());
            }
            let told = self.again(|session| work(session, &open))?;
            each.put(open, told);
        }
    }

    /// What is at each of these paths. What is said for now of one of them is no word on the others: where it
    /// stays so, that one is not told.
    ///
    /// # Errors
    /// The session is over.
    pub(super) fn facts_of(&mut self, paths: &[&[u8]]) -> Result<Vec<Asked>, Error> {
        let told = self.again_of_each(paths.len(), |session, open| {
            let paths: Vec<&[u8]> = open.iter().map(|at| paths[*at]).collect();
            session.facts_of_each(&paths)
        })?;
        told.into_iter().map(or_untold).collect()
    }

    /// What is at a path.
    ///
    /// # Errors
    /// As [`Line::facts_of`].
    pub(super) fn facts(&mut self, path: &[u8]) -> Result<Asked, Error> {
        let told = self.facts_of(&[path])?.pop();
        Ok(told.unwrap_or_else(|| Asked::Untold(String::new())))
    }
}

/// Of what a server says "later" to the end nothing is told, nor of what cannot be said to it.
///
/// # Errors
/// It said something else.
pub(super) fn or_untold(told: Result<Asked, Error>) -> Result<Asked, Error> {
    match told {
        Err(Error::Refused { code, text, .. }) if (400..500).contains(&code) => {
            Ok(Asked::Untold(format!("{code} {text}")))
        }
        Err(error @ Error::Unsayable(_)) => Ok(Asked::Untold(error.to_string())),
        told => told,
    }
}

/// What is said of several things, some of which are asked about again.
pub(super) struct Each<T>(Vec<Option<Result<T, Error>>>);

impl<T> Each<T> {
    pub(super) fn new(count: usize) -> Each<T> {
        Each((0..count).map(|_| None).collect())
    }

    pub(super) fn of(told: Vec<Result<T, Error>>) -> Each<T> {
        Each(told.into_iter().map(Some).collect())
    }

    /// One of which the server said "later", or that is open for what it said of another, and in which words.
    pub(super) fn later(&self) -> Option<(usize, &Error)> {
        let mut all = self.0.iter().enumerate();
        all.find_map(|(at, told)| {
            let error = told.as_ref()?.as_ref().err()?;
            error.is_open().then_some((at, error))
        })
    }

    /// Asks about those that are open, by their numbers. What is said of one of them, and will not be another
    /// thing later, is no word on the others.
    ///
    /// # Errors
    /// Some are open still.
    pub(super) fn ask(
        &mut self,
        work: impl FnOnce(&[usize]) -> Result<Vec<Result<T, Error>>, Error>,
    ) -> Result<(), Error> {
        let open = self.open();
        let told = work(&open)?;
        self.put(open, told);
        let passes = |told: &Option<Result<T, Error>>| matches!(told, Some(Err(error)) if error.is_passing());
        let later = self.0.iter().position(passes).and_then(|at| self.0[at].take());
        later.map_or(Ok(()), |told| told.map(drop))
    }

    /// What was said of each; `None`: it is open, for a reason that all have.
    pub(super) fn each(self) -> Vec<Option<Result<T, Error>>> {
        self.0
    }

    /// Those that are to be asked about.
    pub(super) fn open(&self) -> Vec<usize> {
        let is_open = |told: &Option<Result<T, Error>>| match told {
            None => true,
            Some(told) => told.as_ref().is_err_and(Error::is_open),
        };
        (0..self.0.len()).filter(|at| is_open(&self.0[*at])).collect()
    }

    /// What was said of these.
    pub(super) fn put(&mut self, open: Vec<usize>, told: Vec<Result<T, Error>>) {
        for (at, told) in open.into_iter().zip(told) {
            self.0[at] = Some(told);
        }
    }

    /// All that was said, where all were asked about.
    pub(super) fn told(self) -> Vec<Result<T, Error>> {
        self.0.into_iter().flatten().collect()
    }
}

/// Opens the first session with a server, as long as the policy says so.
///
/// # Errors
/// As the last attempt.
pub(super) fn reach(
    server: &Server,
    settings: &Settings,
    (retry, path): (&Retry, &[u8]),
) -> Result<Session, Error> {
    let mut tries = Attempts::new(Step::Start);
    loop {
        let error = match Session::open(server, settings) {
            Ok(session) => return Ok(session),
            Err(error) => error,
        };
        let pause = retry.failed(&mut tries, &error, path, 0);
        if settings.stop.is_asked() || !pause.is_some_and(|pause| retry.wait(pause)) {
            return Err(error);
        }
    }
}
