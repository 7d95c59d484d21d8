//! Sessions with the servers of a source, as one thread has them: opened when they are needed, and again when
//! they were lost.
//!
//! In: what is to be asked there. Out: a session for it, or why there is none; what came of something that is
//! tried as long as the policy says.
//! Invariants: what waits before another attempt ends as soon as nobody wants the answer any more; who has a
//! session is known to [`Seats`](super::seats::Seats), whatever becomes of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use haul_base::stop::Stop;
use haul_ftp::{Error, Session};

use super::SILENT_AFTER;
use super::seats::Side;
use super::session::{Next, Sites, Tries, Why};

/// A session with a server, if there is one now.
#[derive(Default)]
pub(super) struct Line(Option<Session>);

/// A session with each of the servers, where there is one now.
pub(super) struct Lines {
    pub(super) sites: Arc<Sites>,
    lines: Vec<Line>,
    /// Since when no session could be opened with each of them, where that is so.
    unopened: Vec<Option<Instant>>,
    side: Side,
    /// Somebody wants what is asked over them.
    is_wanted: Box<dyn Fn() -> bool + Send>,
}

/// What came of something that was tried as long as it may go well.
pub(super) enum Again<T> {
    Done(T),
    /// It is to be tried at this one instead.
    Moves(usize, Error),
    Failed(Error),
}

/// See [`Lines::again`].
type Over<'a> = dyn Fn(&Error, Option<Instant>) -> bool + 'a;

impl Lines {
    /// `is_wanted`: somebody wants what is asked over them; else nobody waits for a session.
    pub(super) fn new(
        sites: &Arc<Sites>,
        side: Side,
        is_wanted: impl Fn() -> bool + Send + 'static,
    ) -> Lines {
        let lines = sites.all.iter().map(|_| Line::default()).collect();
        let unopened = vec![None; sites.all.len()];
        Lines { sites: sites.clone(), lines, unopened, side, is_wanted: Box::new(is_wanted) }
    }

    /// The same, with a session that is there already.
    pub(super) fn with(mut self, site: usize, session: Session) -> Lines {
        self.sites.seats.opened(self.side, site);
        self.lines[site] = Line(Some(session));
        self
    }

    /// The session; opened, if there is none. Where the server takes none and the other side has one, that is
    /// waited for, as [`Seats`](super::seats::Seats) has it.
    ///
    /// # Errors
    /// The server is not there, or takes no further one.
    pub(super) fn open(&mut self, site: usize) -> Result<&mut Session, Error> {
        if !self.is_open(site) {
            self.close(site);
            let session = self.enter(site).inspect_err(|_| {
                self.unopened[site].get_or_insert_with(Instant::now);
            })?;
            self.lines[site] = Line(Some(session));
            self.unopened[site] = None;
        }
        let Line(session) = &mut self.lines[site];
        Ok(session.as_mut().expect("just opened"))
    }

    /// A session that was left, or another one, which this side has from now on. Meanwhile those with other
    /// servers are left to whoever waits for them, or the two sides would wait for each other.
    fn enter(&mut self, site: usize) -> Result<Session, Error> {
        let (sites, side) = (self.sites.clone(), self.side);
        let mut waiting = None;
        loop {
            if let Some(session) = self.take_spare(site) {
                return Ok(session);
            }
            let (left, begun) = (sites.seats.left(site), Instant::now());
            let error = match sites.open(site, &Stop::never()) {
                Ok(session) => {
                    sites.heard(site);
                    sites.seats.opened(side, site);
                    return Ok(session);
                }
                Err(error) => error,
            };
            match error.is_network() {
                true => sites.unreached(site, begun),
                false => sites.heard(site),
            }
            // Whoever is too many is told so, or is not heard.
            let may_be_too_many = error.is_full() || error.is_network();
            if !may_be_too_many || haul_mutant::removed("ftp-one-session-is-shared") {
                return Err(error);
            }
            let waiting = waiting.get_or_insert_with(|| sites.seats.refused(side, site));
            let mut is_wanted = || {
                if !haul_mutant::removed("ftp-who-waits-leaves-the-others") {
                    self.hand_over();
                }
                (self.is_wanted)()
            };
            if !waiting.waits(left, error.is_full(), &mut is_wanted) {
                return Err(error);
            }
        }
    }

    /// A session that the other side left, if its server is there: far away a login takes several round
    /// trips.
    fn take_spare(&self, site: usize) -> Option<Session> {
        let seats = &self.sites.seats;
        let mut session = seats.take(self.side, site)?;
        let begun = Instant::now();
        let is_there = is_of_use(&session)
            && (session.silent_for() < SILENT_AFTER
                || session.ask_whether_there(|| begun.elapsed() < SILENT_AFTER).is_ok());
        if is_there && !haul_mutant::removed("ftp-walks-leave-their-session") {
            return Some(session);
        }
        drop(session);
        seats.closed(self.side, site);
        None
    }

    /// Since when no session could be opened, where none was since.
    pub(super) fn unopened_since(&self, site: usize) -> Option<Instant> {
        self.unopened[site]
    }

    /// There is a session, as far as anybody knows.
    pub(super) fn is_open(&self, site: usize) -> bool {
        let Line(session) = &self.lines[site];
        session.as_ref().is_some_and(|session| !session.is_broken())
    }

    /// The other side waits for one of these sessions.
    pub(super) fn are_wanted(&self) -> bool {
        let is_wanted = |site: usize| self.is_open(site) && self.sites.seats.is_wanted(self.side, site);
        (0..self.lines.len()).any(is_wanted)
    }

    /// Leaves those sessions that the other side waits for: there is nothing to ask over them.
    pub(super) fn hand_over(&mut self) {
        for site in 0..self.lines.len() {
            if self.is_open(site) && self.sites.seats.is_wanted(self.side, site) {
                self.leave(site);
            }
        }
    }

    /// Something came of it over the session. When it has hung up, that lay in a socket, and says nothing of
    /// whether it is still there.
    pub(super) fn heard(&self, site: usize) {
        let Line(session) = &self.lines[site];
        if session.as_ref().is_some_and(|session| !session.is_hung_up()) {
            self.sites.heard(site);
        }
    }

    /// What an error is to the policy. A server that took a session of this run and says that it has too many
    /// may not have noticed yet that one was closed, or the others have them for now.
    pub(super) fn why(&self, site: usize, error: &Error) -> Why {
        let why = Why::from(error);
        match error.is_full() && self.sites.seats.left(site) > 0 {
            true => why.passing(),
            false => why,
        }
    }

    /// Nothing more is asked over it here: whoever opens the first session of those that read has it, and who
    /// was refused one. Else the server is not to have one more for nothing.
    pub(super) fn leave(&mut self, site: usize) {
        let Line(session) = std::mem::take(&mut self.lines[site]);
        match session {
            Some(session) if is_of_use(&session) => self.sites.seats.leave(self.side, site, session),
            Some(session) => {
                drop(session);
                self.sites.seats.closed(self.side, site);
            }
            None => {}
        }
    }

    /// For how long nothing was heard of the server over the session, if there is one.
    pub(super) fn silent_for(&self, site: usize) -> Option<Duration> {
        let Line(session) = &self.lines[site];
        session.as_ref().filter(|session| !session.is_broken()).map(Session::silent_for)
    }

    /// The server is known to drop bytes of names.
    pub(super) fn drops_bytes(&self, site: usize) -> bool {
        let Line(session) = &self.lines[site];
        session.as_ref().is_some_and(|session| super::drops_bytes(self.sites.server(site), session))
    }

    /// It is of no use any more.
    pub(super) fn close(&mut self, site: usize) {
        let Line(session) = std::mem::take(&mut self.lines[site]);
        if let Some(session) = session {
            drop(session);
            self.sites.seats.closed(self.side, site);
        }
    }

    /// Does something about `path`, and does it again over a new session while the policy says so. `over`:
    /// after such an error nobody need be asked; it is told since when no session could be opened, where that
    /// is so. `wait`: waits so long; false: nobody wants it any more.
    pub(super) fn again<T>(
        &mut self,
        tries: &mut Tries,
        path: &[u8],
        (over, wait): (&Over<'_>, &dyn Fn(Duration) -> bool),
        mut work: impl FnMut(&mut Session) -> Result<T, Error>,
    ) -> Again<T> {
        loop {
            let site = tries.site;
            let error = match self.open(site).and_then(&mut work) {
                Ok(done) => {
                    self.heard(site);
                    return Again::Done(done);
                }
                Err(error) => error,
            };
            if error.wants_another_session() {
                self.close(site);
            }
            if over(&error, self.unopened[site]) {
                return Again::Failed(error);
            }
            match tries.failed(&self.sites, self.why(site, &error), path, 0) {
                Next::After(pause) if wait(pause) => {}
                Next::Site(to) => return Again::Moves(to, error),
                Next::After(_) | Next::Over => return Again::Failed(error),
            }
        }
    }
}

/// Somebody else may ask over it, as far as that shows.
fn is_of_use(session: &Session) -> bool {
    !session.is_hung_up() && !session.is_over()
}

impl Drop for Lines {
    fn drop(&mut self) {
        (0..self.lines.len()).for_each(|site| self.close(site));
    }
}

#[cfg(test)]
mod tests {
    use haul_core::reliability::Bounded;
    use haul_ftp::{Protocol, Security, Settings};

    use super::*;
    use crate::ftp::Server;
    use crate::ftp::test_server::TestServer;

    /// Goal: where each of two replicas takes one session, the walk and those that read never wait for each
    /// other, whichever has which.
    #[test]
    fn sessions_with_two_servers_are_left_crosswise() {
        let servers = [TestServer::taking(1), TestServer::taking(1)];
        let at = servers.iter().map(|server| {
            let server =
                Server::parse(Protocol::Ftp, &format!("127.0.0.1:{}", server.port)).expect("a server");
            let (patience, security) = (Duration::from_secs(30), Security::None);
            (server, Settings { patience, at: None, security, stop: Stop::never() })
        });
        let sites = Arc::new(Sites::new(at, Arc::new(Bounded)));
        let until = Instant::now() + Duration::from_secs(30);
        let mut sides =
            [Side::Walk, Side::Readers].map(|side| Lines::new(&sites, side, move || Instant::now() < until));
        for (site, lines) in sides.iter_mut().enumerate() {
            lines.open(site).expect("it takes one");
        }
        std::thread::scope(|scope| {
            for (site, mut lines) in sides.into_iter().enumerate() {
                scope.spawn(move || lines.open(1 - site).map(drop).expect("it is left"));
            }
        });
    }
}
