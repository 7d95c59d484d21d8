//! Looking after a volume: whoever holds its key sees whether a server or the catalog is there, and has it
//! end.
//!
//! In: where it listens. Out: that it answered, and how long that took. At the other end: what is answered,
//! and that somebody wants an end.
//! Invariants: a visit changes nothing but that; each wait has its end; whoever answers holds the volume's
//! key, as whoever asks does.
//! Left out: that it really has ended, which nobody can say of himself.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use haul_core::volume::wire::{Costs, Heard, ILLS_MAX, Ill, Message, Room, Visit, Visited, VolumeId};
use haul_core::volume::{ClientNo, ServerNo};
use haul_transport::tls::record::Fault;
use haul_transport::{Link, TransportError, tcp, tls};

use crate::dial::Keys;
use crate::disk::lock;
use crate::line::{Incoming, LineError, Outgoing};

/// Why nobody was met.
#[derive(Debug, thiserror::Error)]
pub enum VisitError {
    /// Nobody listens there.
    #[error("nobody listens at {0}")]
    Nobody(SocketAddr),
    #[error("connecting to {to}: {}", haul_base::errno::text(source))]
    Connect { to: SocketAddr, source: io::Error },
    /// Whoever listens there does not show this volume's key.
    #[error(
        "who listens at {to} is none of this volume, or does not know this access to it: {}",
        haul_base::errno::with_causes(source)
    )]
    Stranger { to: SocketAddr, source: TransportError },
    #[error("{to} did not answer within {} s", limit.as_secs())]
    Silent { to: SocketAddr, limit: Duration },
    #[error("asking {to}: {source}")]
    Line { to: SocketAddr, source: LineError },
    #[error("{to} refused: {why}")]
    Refused { to: SocketAddr, why: Box<str> },
}

/// So many clients are remembered by what they said of costs, and for so long.
const CLIENTS_MAX: usize = 64;
const COSTS_MAX: Duration = Duration::from_secs(24 * 3600);
/// A client that begins hears of what others found within this.
const FOUND_MAX: Duration = Duration::from_secs(600);
/// Who said something within this is there.
const LATELY: Duration = Duration::from_secs(60);

/// What was learnt by a visit.
#[derive(Clone, Debug)]
pub struct Met {
    pub visited: Visited,
    /// From the question to the answer.
    pub round_trip: Duration,
}

/// Visits a server, or with `None` the catalog. `end`: it is to end. `limit` bounds each of a few waits.
///
/// # Errors
/// It was not met; it may have been told to end all the same.
pub fn visit(
    keys: &Keys,
    at: SocketAddr,
    to: Option<ServerNo>,
    end: bool,
    limit: Duration,
) -> Result<Met, VisitError> {
    let visit = Visit { volume: keys.volume, to, end };
    meet(keys, at, limit, |incoming, outgoing| ask(incoming, outgoing, visit))
}

/// One question over a connection of its own: `ask` says it, and hears the answer or why there is none.
///
/// # Errors
/// The server was not met, or refuses.
pub(crate) fn meet<T>(
    keys: &Keys,
    at: SocketAddr,
    limit: Duration,
    ask: impl FnOnce(Incoming, Outgoing) -> Result<Result<T, Box<str>>, LineError>,
) -> Result<T, VisitError> {
    let (link, socket) = connect(keys, at, limit)?;
    socket.set_read_timeout(Some(limit)).map_err(|source| VisitError::Connect { to: at, source })?;
    let Link { reader, writer, closer, .. } = link;
    let asked = ask(Incoming::new(reader), Outgoing::new(writer));
    closer();
    match asked {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(why)) => Err(VisitError::Refused { to: at, why }),
        Err(LineError::Io(error))
            if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
        {
            Err(VisitError::Silent { to: at, limit })
        }
        // Whoever holds no key learns it only now: a server looks at it when its client's handshake is over.
        Err(LineError::Io(error)) if is_alert(&error) => {
            let what = "showing a key of the volume".into();
            Err(VisitError::Stranger { to: at, source: TransportError { what, source: Some(error) } })
        }
        Err(source) => Err(VisitError::Line { to: at, source }),
    }
}

/// Connects, and has whoever listens there show the volume's key, each within this time.
///
/// # Errors
/// See [`VisitError`]: who says nothing, or ends the connection, is no stranger for that.
pub(crate) fn connect(keys: &Keys, at: SocketAddr, limit: Duration) -> Result<(Link, TcpStream), VisitError> {
    let stream = tcp::connect(&at, None, None, limit).map_err(|source| match source.kind() {
        io::ErrorKind::ConnectionRefused => VisitError::Nobody(at),
        _ => VisitError::Connect { to: at, source },
    })?;
    let broken = |source| VisitError::Connect { to: at, source };
    let _ = stream.set_nodelay(true);
    let socket = stream.try_clone().map_err(broken)?;
    let link = tls::client(stream, &keys.identity, &keys.pin, limit)
        .map_err(|source| why_no_tls(at, limit, source))?;
    Ok((link, socket))
}

/// Why there was no handshake: somebody else listens there, or nobody said anything.
fn why_no_tls(to: SocketAddr, limit: Duration, error: TransportError) -> VisitError {
    let kind = error.source.as_ref().map(io::Error::kind);
    match kind {
        _ if haul_mutant::removed("volume-silence-is-no-stranger") => {}
        Some(io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => return VisitError::Silent { to, limit },
        Some(
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe,
        ) => return VisitError::Line { to, source: LineError::Cut },
        _ => {}
    }
    VisitError::Stranger { to, source: error }
}

/// The other end of a connection ended its TLS, and said why.
fn is_alert(error: &io::Error) -> bool {
    let fault = error.get_ref().and_then(|fault| fault.downcast_ref::<Fault>());
    matches!(fault, Some(Fault::Alert(_)))
}

fn ask(
    mut incoming: Incoming,
    mut outgoing: Outgoing,
    visit: Visit,
) -> Result<Result<Met, Box<str>>, LineError> {
    let begun = Instant::now();
    outgoing.send(&Message::Visit(visit), &[])?;
    outgoing.flush()?;
    match incoming.receive(|_| Ok(()))? {
        Some((Message::Visited(visited), _)) => Ok(Ok(Met { visited, round_trip: begun.elapsed() })),
        Some((Message::Refused(why), _)) => Ok(Err(why)),
        Some(_) => Err(LineError::Bad("something else than who it is")),
        None => Err(LineError::Cut),
    }
}

/// What a server's visitors are told, and what they want of it.
#[derive(Clone)]
pub struct Visits {
    started: Instant,
    shared: Arc<(Mutex<bool>, Condvar)>,
    /// What clients said of costs, and when, the newest last.
    costs: Arc<Mutex<VecDeque<(Instant, ClientNo, Costs)>>>,
    /// What disks did not take, as it was then.
    ills: Arc<Mutex<Vec<(Instant, Ill)>>>,
    /// On whose disk it lies, if that is to be told.
    dir: Option<Arc<Path>>,
}

impl Default for Visits {
    fn default() -> Visits {
        Visits {
            dir: None,
            started: Instant::now(),
            shared: Arc::default(),
            costs: Arc::default(),
            ills: Arc::default(),
        }
    }
}

/// The room on the disk of a directory.
fn room_at(dir: &Path) -> Option<Room> {
    let (disk, stat) = (rustix::fs::statvfs(dir).ok()?, rustix::fs::stat(dir).ok()?);
    let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
    let used = bytes(disk.f_blocks.saturating_sub(disk.f_bfree));
    Some(Room { free: bytes(disk.f_bavail), used, device: stat.st_dev })
}

impl Visits {
    /// Of a server whose directory this is.
    pub(crate) fn of(dir: PathBuf) -> Visits {
        Visits { dir: Some(dir.into()), ..Visits::default() }
    }

    /// The answer to a visitor. `of`, `me`: the volume that this is of, and which server.
    pub(crate) fn answer(&self, of: VolumeId, me: Option<ServerNo>, visit: &Visit) -> Message {
        if visit.volume != of {
            return Message::Refused("this is of another volume".into());
        }
        if visit.to != me {
            let name = |who: Option<ServerNo>| {
                who.map_or_else(|| "the catalog".to_owned(), |server| format!("server {}", server.0))
            };
            let why = format!("this is {} of the volume, and not {}", name(me), name(visit.to));
            return Message::Refused(why.into());
        }
        if visit.end {
            self.want_end();
        }
        let now = Instant::now();
        let heard = self.heard(now).map(Box::new);
        let older = |(at, ill): &(Instant, Ill)| Ill { since: ill.since + (now - *at), ..ill.clone() };
        let ills = lock(&self.ills).iter().map(older).collect();
        let (process, since) = (std::process::id(), self.started.elapsed());
        let room = self.dir.as_deref().and_then(room_at);
        Message::Visited(Visited { process, since, heard, ills, room })
    }

    /// This is what disks do not take now.
    pub(crate) fn tell(&self, ills: Vec<Ill>) {
        let now = Instant::now();
        *lock(&self.ills) = ills.into_iter().take(ILLS_MAX).map(|ill| (now, ill)).collect();
    }

    /// A client says what writes cost it.
    pub(crate) fn hear(&self, client: ClientNo, costs: Costs) {
        let mut all = lock(&self.costs);
        all.retain(|(_, other, _)| *other != client);
        all.push_back((Instant::now(), client, costs));
        while all.len() > CLIENTS_MAX {
            all.pop_front();
        }
    }

    /// What was said of costs, if it is not too old.
    fn heard(&self, now: Instant) -> Option<Heard> {
        let all = lock(&self.costs);
        let (at, _, costs) = all.back()?;
        let age_of = |at: &Instant| now.saturating_duration_since(*at);
        let (age, costs) = (age_of(at), costs.clone());
        let lately = all.iter().filter(|(at, ..)| age_of(at) <= LATELY).count();
        let clients = u16::try_from(lately).unwrap_or(u16::MAX);
        (age <= COSTS_MAX).then_some(Heard { costs, age, clients })
    }

    /// The newest that a client said whose threshold set itself, for one that begins; if it is not too old.
    pub(crate) fn found(&self, now: Instant) -> Option<Costs> {
        let all = lock(&self.costs);
        let (at, _, costs) = all.iter().rev().find(|(_, _, costs)| !costs.pinned)?;
        (now.saturating_duration_since(*at) <= FOUND_MAX).then(|| costs.clone())
    }

    /// Somebody wants an end.
    pub fn want_end(&self) {
        *lock(&self.shared.0) = true;
        self.shared.1.notify_all();
    }

    /// Waits until somebody wants an end, at most so long; whether one is wanted.
    pub fn wait(&self, limit: Duration) -> bool {
        let is_wanted = lock(&self.shared.0);
        let waited = self.shared.1.wait_timeout_while(is_wanted, limit, |wanted| !*wanted);
        *waited.unwrap_or_else(std::sync::PoisonError::into_inner).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: who begins hears of what was found last, of nothing that was pinned, and of nothing old.
    #[test]
    fn who_begins_hears_what_was_found() {
        let visits = Visits::default();
        let costs = |threshold, pinned| Costs { threshold, pinned, ..Costs::default() };
        visits.hear(ClientNo(1), costs(7, true));
        assert_eq!(visits.found(Instant::now()), None);
        visits.hear(ClientNo(2), costs(8, false));
        visits.hear(ClientNo(3), costs(9, false));
        visits.hear(ClientNo(4), costs(10, true));
        assert_eq!(visits.found(Instant::now()), Some(costs(9, false)));
        assert_eq!(visits.found(Instant::now() + 2 * FOUND_MAX), None);
    }

    /// Goal: the newest of what clients said of costs is told, with its age; what is remembered is bounded,
    /// and what is old goes.
    #[test]
    fn costs_are_bounded_and_aged() {
        let visits = Visits::default();
        assert_eq!(visits.heard(Instant::now()), None);
        for client in 0..200 {
            let costs = Costs { writes: client, ..Costs::default() };
            visits.hear(ClientNo(client % 150), costs);
        }
        assert_eq!(lock(&visits.costs).len(), CLIENTS_MAX);
        let now = Instant::now();
        let heard = visits.heard(now).expect("clients said so");
        assert_eq!((heard.costs.writes, usize::from(heard.clients)), (199, CLIENTS_MAX));
        let later = visits.heard(now + 2 * LATELY).expect("it is not too old");
        assert!(later.clients == 0 && later.age >= LATELY, "{later:?}");
        assert_eq!(visits.heard(now + 2 * COSTS_MAX), None);
    }

    /// Goal: who means another volume or another server ends nothing; who means this one does.
    #[test]
    fn only_who_is_meant_ends() {
        let (volume, me) = (VolumeId([3; 16]), Some(ServerNo(1)));
        let visits = Visits::default();
        let visit =
            |volume, to, end| visits.answer(volume, me, &Visit { volume: VolumeId([3; 16]), to, end });
        assert!(matches!(visit(VolumeId([4; 16]), me, true), Message::Refused(_)));
        for other in [None, Some(ServerNo(2))] {
            assert!(matches!(visit(volume, other, true), Message::Refused(_)));
        }
        assert!(matches!(visit(volume, me, false), Message::Visited(_)));
        assert!(!visits.wait(Duration::ZERO));
        let Message::Visited(visited) = visit(volume, me, true) else { panic!("refused") };
        assert_eq!(visited.process, std::process::id());
        assert!(visits.wait(Duration::ZERO) && visits.wait(Duration::from_secs(60)));
    }
}
