//! The near end after the start: dials further streams, and control again.
//!
//! In: what the first connections were made with. Out: joins, each tried once in a thread of its own.
//! Invariants: the same keys and the same secret as at the start; ssh is not asked again. A new address of the far end
//! is only where to dial, never whom to trust.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use haul_core::ids::{SessionEpoch, StreamId};

use super::listener::{self, Session};
use super::message::Listening;
use super::near::dial_candidates;
use crate::transport::rejoin::{Dial, JoinEvent};
use crate::transport::{Link, Post, tcp, tls};

/// How long the network may take to connect, and all of it until the stream is joined.
const CONNECT_WAIT: Duration = Duration::from_secs(3);
const JOIN_WAIT: Duration = Duration::from_secs(8);

/// What a later connection needs.
pub(super) struct Redial {
    /// The host's name as dialled at the start.
    pub name: String,
    pub at: Listening,
    pub session: Session,
    pub identity: tls::Identity,
    pub pin: tls::Pin,
    /// Bytes under way that a receive buffer shall hold; `None` leaves it to the system.
    pub window: Option<u64>,
    /// Where the far end was reached last.
    pub addr: Mutex<SocketAddr>,
}

/// Dials with what the start left.
pub(super) struct Redialler(pub Arc<Redial>);

struct Failed {
    why: String,
    refused: bool,
}

impl Redial {
    fn addr(&self) -> SocketAddr {
        *self.addr.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A socket to the far end: where it was reached last, and for control wherever it may be now.
    fn connect(&self, stream: StreamId, deadline: Instant) -> Result<(SocketAddr, TcpStream), Failed> {
        let addr = self.addr();
        let error = match tcp::connect(&addr, self.window.filter(|_| stream != StreamId(0)), CONNECT_WAIT) {
            Ok(socket) => return Ok((addr, socket)),
            Err(error) => error,
        };
        let refused = error.kind() == io::ErrorKind::ConnectionRefused;
        // Its name may mean another address by now; one that refuses is the right host, and haul is gone from it.
        if stream == StreamId(0) && !refused {
            let sockets = dial_candidates(self.name.clone(), &self.at, deadline);
            let left = deadline.saturating_duration_since(Instant::now()).min(CONNECT_WAIT);
            if let Ok(found) = sockets.recv_timeout(left) {
                return Ok(found);
            }
        }
        Err(Failed { why: format!("connecting to {addr}: {error}"), refused })
    }

    fn join(&self, stream: StreamId, epoch: SessionEpoch) -> Result<Link, Failed> {
        let deadline = Instant::now() + JOIN_WAIT;
        let (addr, socket) = self.connect(stream, deadline)?;
        let left = deadline.saturating_duration_since(Instant::now());
        let joined = listener::join(socket, &self.identity, &self.pin, &self.session, (stream, epoch), left);
        let link = joined.map_err(|e| Failed { why: format!("joining at {addr}: {e}"), refused: false })?;
        *self.addr.lock().unwrap_or_else(PoisonError::into_inner) = addr;
        Ok(link)
    }
}

impl Dial for Redialler {
    fn dial(&self, stream: StreamId, epoch: SessionEpoch, post: Post<JoinEvent>) {
        let redial = self.0.clone();
        let failed = post.clone();
        let work = move || match redial.join(stream, epoch) {
            Ok(link) if stream == StreamId(0) => post(JoinEvent::Control { epoch, link }),
            Ok(link) => post(JoinEvent::Stream { stream, epoch, link }),
            Err(Failed { why, refused }) => post(JoinEvent::Failed { stream, why, refused }),
        };
        if let Err(e) = thread::Builder::new().name("haul-dial".into()).spawn(work) {
            failed(JoinEvent::Failed { stream, why: format!("starting a thread: {e}"), refused: false });
        }
    }
}
