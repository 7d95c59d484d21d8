//! Asks a server what it has, to hold that against the catalog.
//!
//! In: where it listens. Out: what it says of its files, question by question over one connection.
//! Invariants: nothing is changed by it; each wait has its end. Left out: what it means
//! ([`fsck`](crate::fsck)).

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use haul_core::volume::ServerNo;
use haul_core::volume::check::{Ask, Check, Found};
use haul_core::volume::wire::Message;
use haul_transport::Link;

use crate::dial::Keys;
use crate::line::{Incoming, LineError, Outgoing};
use crate::visit::{VisitError, connect};

/// A connection to one server.
pub struct Checker {
    keys: Keys,
    at: SocketAddr,
    to: ServerNo,
    limit: Duration,
    incoming: Incoming,
    outgoing: Outgoing,
    closer: Arc<dyn Fn() + Send + Sync>,
}

impl Checker {
    /// Connects. `met` bounds each step of this, and `limit` the wait for each answer.
    ///
    /// # Errors
    /// The server was not met.
    pub fn connect_within(
        keys: &Keys,
        at: SocketAddr,
        to: ServerNo,
        (met, limit): (Duration, Duration),
    ) -> Result<Checker, VisitError> {
        let (link, socket) = connect(keys, at, met)?;
        let broken = |source| VisitError::Connect { to: at, source };
        socket.set_read_timeout(Some(limit)).map_err(broken)?;
        let Link { reader, writer, closer, .. } = link;
        let (incoming, outgoing) = (Incoming::new(reader), Outgoing::new(writer));
        Ok(Checker { keys: keys.clone(), at, to, limit, incoming, outgoing, closer })
    }

    pub fn server(&self) -> ServerNo {
        self.to
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// It did not come. Nothing can be asked over this connection any more.
    pub fn ask(&mut self, ask: Ask) -> Result<Found, VisitError> {
        let check = Message::Check(Check { volume: self.keys.volume, to: self.to, ask });
        let said = self.outgoing.send(&check, &[]).and_then(|()| self.outgoing.flush());
        match said.and_then(|()| self.incoming.receive(|_| Ok(()))) {
            Ok(Some((Message::Found(found), _))) => Ok(found),
            Ok(Some((Message::Refused(why), _))) => Err(VisitError::Refused { to: self.at, why }),
            Ok(Some(_)) => {
                let source = LineError::Bad("something else than what the server has");
                Err(VisitError::Line { to: self.at, source })
            }
            Ok(None) => Err(VisitError::Line { to: self.at, source: LineError::Cut }),
            Err(LineError::Io(error))
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
            {
                Err(VisitError::Silent { to: self.at, limit: self.limit })
            }
            Err(source) => Err(VisitError::Line { to: self.at, source }),
        }
    }
}

impl Drop for Checker {
    fn drop(&mut self) {
        (self.closer)();
    }
}
