//! The seam by which streams come up after the start, and control again.
//!
//! In: what one end wants joined. Out: [`JoinEvent`]s, posted from threads that are not the driver's; asking
//! never blocks. The end that dialled dials again ([`Dial`]); the end that listened goes on listening
//! ([`Door`]). Both are made where the first connections were ([`super::bootstrap`]); links in one process
//! and the streams in an ssh pipe have neither: what is lost there is lost ([`Joins::Never`]).
//! Left out: when to dial, and how often: `haul_core::transfer::stream_dialler` and the driver.

use std::sync::Arc;
use std::time::Duration;

use haul_core::ids::{SessionEpoch, StreamId};
use socket2::{SockRef, TcpKeepalive};

use super::{Link, Post};

/// A connection whose peer acknowledges nothing for so long, or takes nothing, is cut: what was on its way
/// goes again over another one. The longest rest of TCP between two tries is reached after a gap of this
/// order anyway.
pub const STALL_MAX: Duration = Duration::from_secs(10);
/// A silent connection is probed after this time and again so often, so that an end that only reads notices
/// that the other is gone, and that tables of address translators remember it.
pub const KEEPALIVE: Duration = Duration::from_secs(5);

/// What came of a join.
pub enum JoinEvent {
    /// A data stream is up, under the epoch of its join.
    Stream { stream: StreamId, epoch: SessionEpoch, link: Link },
    /// Control is up again, under a higher epoch.
    Control { epoch: SessionEpoch, link: Link },
    /// This end dialled, and it did not come up. `refused`: nobody listens there any more, or somebody on the
    /// way says so.
    Failed { stream: StreamId, why: String, refused: bool },
}

/// What the channel that is trusted tells of the program at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Nothing: it may well be there.
    Unknown,
    /// That channel has ended: with the program, or with the network.
    Orphaned,
    /// It has ended.
    Ended,
}

/// The dialling end.
pub trait Dial: Send + Sync {
    /// Dials this stream (0: control) of the session. Exactly one event follows, within some ten seconds.
    fn dial(&self, stream: StreamId, epoch: SessionEpoch, post: Post<JoinEvent>);
    /// The session runs. Returns the streams of its start that are still being dialled; one event follows for
    /// each.
    fn open(&self, _post: Post<JoinEvent>) -> Vec<StreamId> {
        Vec::new()
    }
    /// This stream, which was up, is over.
    fn left(&self, _stream: StreamId) {}
    /// What is known of the other end besides.
    fn peer(&self) -> Peer {
        Peer::Unknown
    }
}

/// The listening end.
pub trait Door: Send + Sync {
    /// From now on streams beyond those of the start may join; each is posted.
    fn open(&self, post: Post<JoinEvent>);
    /// This stream is over: another one may take its place.
    fn left(&self, stream: StreamId);
    /// The trusted channel that started this end has ended: with its connections gone too, the other end is
    /// dead.
    fn is_orphaned(&self) -> bool;
}

/// How streams come up after the start.
#[derive(Clone)]
pub enum Joins {
    Never,
    Dial(Arc<dyn Dial>),
    Accept(Arc<dyn Door>),
}

/// Bounds how long a TCP connection may stand still.
///
/// # Errors
/// The system's answer.
pub fn bound_stalls(socket: &std::net::TcpStream) -> std::io::Result<()> {
    let socket = SockRef::from(socket);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE))?;
    socket.set_tcp_user_timeout(Some(STALL_MAX))
}
