//! A session with a destination, or with one of two servers that move data between them: opened when it is
//! needed, and again when it was lost. Sources, which may lie at several servers, have `session.rs`.

use std::thread;
use std::time::Duration;

use haul_core::reliability::ATTEMPTS;
use haul_ftp::{Error, Server, Session, Settings};

/// How long the first attempt after a failure waits; each further one waits twice as long.
const WAIT: Duration = Duration::from_millis(300);

/// A session with a server, if there is one now.
pub(super) struct Line {
    server: Server,
    session: Option<Session>,
    settings: Settings,
}

impl Line {
    pub(super) fn new(server: Server, settings: Settings) -> Line {
        Line { server, session: None, settings }
    }

    pub(super) fn with(server: Server, settings: Settings, session: Session) -> Line {
        Line { server, session: Some(session), settings }
    }

    /// The session; opened, if there is none.
    ///
    /// # Errors
    /// The server is not there, or takes no further one.
    pub(super) fn open(&mut self) -> Result<&mut Session, Error> {
        if self.session.as_ref().is_none_or(Session::is_broken) {
            self.session = Some(Session::open(&self.server, &self.settings)?);
        }
        Ok(self.session.as_mut().expect("just opened"))
    }

    /// There is a session, as far as anybody knows.
    pub(super) fn is_open(&self) -> bool {
        self.session.as_ref().is_some_and(|session| !session.is_broken())
    }

    /// It is of no use any more.
    pub(super) fn close(&mut self) {
        self.session = None;
    }

    /// Does something, and does it again over a new session while it may go well later.
    ///
    /// # Errors
    /// As the last attempt.
    pub(super) fn again<T>(
        &mut self,
        mut work: impl FnMut(&mut Session) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut attempt = 1;
        loop {
            let error = match self.open().and_then(&mut work) {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            if error.wants_another_session() {
                self.close();
            }
            if !may_help(&error, attempt) {
                return Err(error);
            }
            thread::sleep(pause(attempt));
            attempt += 1;
        }
    }
}

/// Whether another attempt may help, after so many. A server that was silent twice is left alone: each such
/// attempt takes as long as it has patience.
pub(super) fn may_help(error: &Error, attempts: u32) -> bool {
    error.is_passing() && attempts < if error.is_silence() { 2 } else { ATTEMPTS }
}

/// How long to wait after so many attempts.
pub(super) fn pause(attempts: u32) -> Duration {
    WAIT * 2_u32.pow(attempts.saturating_sub(1).min(6))
}
