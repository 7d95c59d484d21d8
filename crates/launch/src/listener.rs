//! The one port of the end that listens: who comes in, and who does not.
//!
//! In: addresses, a [`Session`] with its secret, the other end's key. Out: joined streams, each once; first
//! those of the start, then, once the driver has opened the door, others and control again. Who comes in has
//! [`HANDSHAKE_WAIT`] to say a word, and then gets a thread and as long again to finish TLS with the pinned
//! key and to prove which stream it is. Whoever fails is closed and counted, and learns nothing. Where there
//! are too many, of those who say nothing and of those who talk, the one goes that [`Strangers`] names.
//! Invariants: at most [`places`] strangers of each kind at a time, and [`LIVE_MAX`] streams that are ours; a
//! stream id is taken once; control only under an epoch above all before, data only under control's (at the
//! start under the first, for all are dialled together); the port is closed when the listener is dropped.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use haul_core::ids::{SessionEpoch, StreamId};
use haul_core::wire::{JOIN_LEN, Join, Joined, STREAMS_MAX};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use socket2::{Domain, Protocol, Socket, Type};

use super::join_handshake::{Session, prepare, set_timeouts, settle};
use super::message::LINKS_MAX;
use super::strangers::Strangers;
use haul_transport::rejoin::{Door, JoinEvent};
use haul_transport::{Link, Post, tcp, tls};

/// Most connections at a time that have not shown who they are, of those that say nothing and of those that
/// talk: more than all streams of a start. Each is one descriptor, or two. Fewer where a process may not have
/// many.
const PLACES_MAX: usize = 96;
pub(super) const PLACES_FEW: usize = 64;
const DESCRIPTORS_MANY: u64 = 4096;
/// Threads of those who were sent away end at once, if the system lets them run. Of all strangers there are
/// at most so many for each place.
const THREADS_PER_PLACE: usize = 4;
/// Addresses of ours that are remembered.
const KNOWN_MAX: usize = 32;
/// Connections that are taken in at a time.
const ACCEPT_MAX: usize = 64;
/// Most data streams of ours that are open at a time. The end that dials replaces one that this end has not
/// yet seen go.
const LIVE_MAX: usize = 2 * STREAMS_MAX as usize;
/// The epoch of a session's start.
pub(super) const FIRST_EPOCH: SessionEpoch = SessionEpoch(1);
/// How long a connection may take to show who it is.
pub(super) const HANDSHAKE_WAIT: Duration = Duration::from_secs(5);
/// Connections that wait to be taken in, at most; more than all streams of a start.
const BACKLOG: i32 = 128;
/// So many free ports are tried until one is free at all addresses.
const FREE_PORTS_MAX: u16 = 16;
/// Rest after the system had no descriptor or memory for a connection.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// Who came, and who may come.
struct Guests {
    /// The highest epoch of control; 0: control has not joined yet.
    epoch: SessionEpoch,
    /// Ids that came; never more than there are ids.
    used: BTreeSet<StreamId>,
    live: BTreeSet<StreamId>,
    /// Data streams of the start.
    streams: u16,
    /// Where joins go when the session runs; before that only those of the start are taken, into a channel.
    post: Option<Post<JoinEvent>>,
}

impl Guests {
    /// May this stream join? If so, it has.
    fn admit(&mut self, join: &Join, session: &Session) -> Joined {
        if join.session != session.id || !join.is_proved_by(&session.secret) {
            return Joined::UnknownSession;
        }
        let at_start = self.post.is_none();
        if join.stream == StreamId(0) {
            let stale = join.epoch <= self.epoch && !haul_mutant::removed("control-joins-newer");
            if stale || (at_start && join.epoch != FIRST_EPOCH) {
                return Joined::StaleEpoch;
            }
            self.epoch = join.epoch;
            return Joined::Accepted;
        }
        // Those of the start come together with control, in any order.
        let present = if at_start { FIRST_EPOCH } else { self.epoch };
        if join.epoch != present {
            return Joined::StaleEpoch;
        }
        let live_max = if haul_mutant::removed("streams-are-bounded") { usize::MAX } else { LIVE_MAX };
        let too_many = if at_start { join.stream.0 > self.streams } else { self.live.len() >= live_max };
        if too_many || !self.used.insert(join.stream) && !haul_mutant::removed("streams-join-once") {
            return Joined::BadStream;
        }
        self.live.insert(join.stream);
        Joined::Accepted
    }
}

/// What the threads of one listener share.
struct Desk {
    session: Session,
    identity: tls::Identity,
    pin: tls::Pin,
    guests: Mutex<Guests>,
    /// Addresses that ours come from.
    known: Mutex<BTreeSet<IpAddr>>,
    /// Those who talk, each with a thread.
    talking: Mutex<Strangers<Arc<TcpStream>>>,
    threads: AtomicUsize,
    strays: Arc<AtomicU64>,
    joined: Sender<(StreamId, Link)>,
}

/// Where a [`Listener`] listens, always on one port.
#[derive(Clone, Debug)]
pub(super) enum At {
    /// Every address of this host, of IPv6 and IPv4, whatever it may be at any time.
    Everywhere,
    /// These, as far as it can; at least one.
    Only(Vec<IpAddr>),
}

/// An open port. Dropping it closes the port; connections in their handshake end by themselves.
pub(super) struct Listener {
    /// The first that it listens on.
    pub addr: SocketAddr,
    /// Addresses that it does not listen on, and why.
    pub failed: Vec<(IpAddr, io::Error)>,
    /// Streams of the start as they join. Each stream comes at most once.
    pub joined: Receiver<(StreamId, Link)>,
    desk: Arc<Desk>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    /// The pipe of ssh has ended.
    pub orphaned: Arc<AtomicBool>,
}

impl Listener {
    /// Listens on the first free port of `ports` (inclusive; `None`: any). `known`: addresses that the other
    /// end may come from, as far as that is known. `window`: bytes under way that each connection's receive
    /// buffer shall hold.
    ///
    /// # Errors
    /// None of the addresses can be listened on: the system's answer, for the last port of the range.
    pub(super) fn open(
        at: &At,
        ports: Option<(u16, u16)>,
        (session, streams): (Session, u16),
        (identity, pin): (tls::Identity, tls::Pin),
        known: BTreeSet<IpAddr>,
        strays: Arc<AtomicU64>,
        window: Option<u64>,
    ) -> io::Result<Listener> {
        let (sockets, failed) = bind(at, ports)?;
        for socket in &sockets {
            socket.set_nonblocking(true)?;
            if let Some(window) = window {
                tcp::fix_receive(socket, window.saturating_mul(2))?;
            }
        }
        let addr =
            sockets.first().map_or(Err(io::ErrorKind::InvalidInput.into()), TcpListener::local_addr)?;
        // Room for every stream there can be: a joined one never waits here.
        let (sender, joined) = bounded(LINKS_MAX);
        let (used, live) = (BTreeSet::new(), BTreeSet::new());
        let guests = Guests { epoch: SessionEpoch(0), used, live, streams, post: None };
        let desk = Arc::new(Desk {
            session,
            identity,
            pin,
            guests: Mutex::new(guests),
            known: Mutex::new(known.into_iter().map(|ip| ip.to_canonical()).collect()),
            talking: Mutex::new(Strangers::new(places())),
            threads: AtomicUsize::new(0),
            strays,
            joined: sender,
        });
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let thread = {
            let (stop, desk) = (Arc::clone(&stop), Arc::clone(&desk));
            thread::Builder::new()
                .name("haul-listen".into())
                .spawn(move || accept_loop(&sockets, &stop, &desk))?
        };
        let orphaned = Arc::new(AtomicBool::new(false));
        Ok(Listener { addr, failed, joined, desk, stop, thread: Some(thread), orphaned })
    }
}

impl Listener {
    /// Was control taken in? True before the near end can know it; its link may still be on the way here.
    pub(super) fn has_control(&self) -> bool {
        self.desk.guests().epoch >= FIRST_EPOCH
    }
}

impl Door for Listener {
    fn open(&self, post: Post<JoinEvent>) {
        let mut guests = self.desk.guests();
        // Those of the start that nobody waited for.
        for (stream, link) in self.joined.try_iter() {
            post(JoinEvent::Stream { stream, epoch: FIRST_EPOCH, link });
        }
        guests.post = Some(post);
    }
    fn left(&self, stream: StreamId) {
        self.desk.guests().live.remove(&stream);
    }
    fn is_orphaned(&self) -> bool {
        self.orphaned.load(Ordering::Acquire)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Sockets that listen, all on one port, and the addresses that none could be had for.
type Bound = (Vec<TcpListener>, Vec<(IpAddr, io::Error)>);

/// A port that is free at as many of the addresses as can be listened on at all.
fn bind(at: &At, ports: Option<(u16, u16)>) -> io::Result<Bound> {
    // Port 0: the kernel's choice for the first address, which another address may have in use.
    let tries: Vec<u16> = match ports {
        Some((first, last)) => (first..=last).collect(),
        None => vec![0; FREE_PORTS_MAX.into()],
    };
    let mut error = io::ErrorKind::InvalidInput.into();
    for port in tries {
        let (sockets, failed) = match at {
            At::Everywhere => match listen(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port)) {
                Ok(socket) => (vec![socket], Vec::new()),
                // A host without IPv6.
                Err(e) if e.kind() != io::ErrorKind::AddrInUse => {
                    bind_each(&[Ipv4Addr::UNSPECIFIED.into()], port)
                }
                Err(e) => (Vec::new(), vec![(Ipv6Addr::UNSPECIFIED.into(), e)]),
            },
            At::Only(addresses) => bind_each(addresses, port),
        };
        let in_use = failed.iter().any(|(_, e)| e.kind() == io::ErrorKind::AddrInUse);
        if !in_use && !sockets.is_empty() {
            return Ok((sockets, failed));
        }
        if let Some((_, e)) = failed.into_iter().next() {
            error = e;
        }
        if !in_use && ports.is_none() {
            break;
        }
    }
    Err(error)
}

fn bind_each(addresses: &[IpAddr], mut port: u16) -> Bound {
    let (mut sockets, mut failed) = (Vec::new(), Vec::new());
    for &address in addresses {
        let bound = listen(SocketAddr::new(address, port)).and_then(|socket| {
            port = socket.local_addr()?.port();
            Ok(socket)
        });
        match bound {
            Ok(socket) => sockets.push(socket),
            Err(e) => failed.push((address, e)),
        }
    }
    (sockets, failed)
}

fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if addr.is_ipv6() {
        // `::` is IPv4's addresses too, whatever the system's default is.
        socket.set_only_v6(!addr.ip().is_unspecified())?;
    }
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Places for strangers of each kind.
fn places() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    if limit.is_some_and(|limit| limit < DESCRIPTORS_MANY) { PLACES_FEW } else { PLACES_MAX }
}

/// One who has said nothing yet, and how long he may.
struct Silent {
    socket: TcpStream,
    until: Instant,
}

fn accept_loop(sockets: &[TcpListener], stop: &OwnedFd, desk: &Arc<Desk>) {
    let mut silent: Strangers<Silent> = Strangers::new(places());
    loop {
        let (spoke, hears) = {
            let mut fds: Vec<_> = sockets.iter().map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
            fds.push(PollFd::new(stop, PollFlags::IN));
            let waiting: Vec<u64> = silent.iter().map(|(number, ..)| number).collect();
            fds.extend(silent.iter().map(|(_, _, silent)| PollFd::new(&silent.socket, PollFlags::IN)));
            // The oldest has the least time left.
            let left = silent.iter().next().map(|(_, _, first)| {
                let left = first.until.saturating_duration_since(Instant::now());
                // Not less than is left, or the loop would spin for the rest.
                Timespec { tv_sec: left.as_secs() as i64 + 1, tv_nsec: 0 }
            });
            match poll(&mut fds, left.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
            let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
            let (doors, guests) = fds.split_at(sockets.len());
            if guests.first().is_none_or(is_ready) {
                return;
            }
            let spoke: Vec<u64> = waiting
                .into_iter()
                .zip(&guests[1..])
                .filter(|(_, fd)| is_ready(fd))
                .map(|(n, _)| n)
                .collect();
            (spoke, doors.iter().map(is_ready).collect::<Vec<_>>())
        };
        for number in spoke {
            if let Some(Silent { socket, .. }) = silent.leave(number) {
                hear(socket, desk);
            }
        }
        let now = Instant::now();
        let late: Vec<u64> = silent
            .iter()
            .take_while(|(_, _, silent)| silent.until <= now)
            .map(|(number, ..)| number)
            .collect();
        for number in late {
            drop(silent.leave(number));
        }
        for (socket, _) in sockets.iter().zip(hears).filter(|(_, ready)| *ready) {
            accept(socket, stop, desk, &mut silent);
        }
    }
}

fn accept(socket: &TcpListener, stop: &OwnedFd, desk: &Desk, silent: &mut Strangers<Silent>) {
    for _ in 0..ACCEPT_MAX {
        match socket.accept() {
            Ok((socket, from)) => {
                // A stray until it has shown that it is ours: one that says nothing would else be counted too
                // late.
                desk.strays.fetch_add(1, Ordering::Relaxed);
                let stranger = Silent { socket, until: Instant::now() + HANDSHAKE_WAIT };
                // Who has to go for it is closed.
                silent.enter(from.ip().to_canonical(), stranger, &desk.known());
            }
            // No descriptor or memory left: the connection stays in the queue and poll would spin.
            Err(e)
                if !matches!(
                    e.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted
                ) =>
            {
                let rest = Timespec { tv_sec: 0, tv_nsec: ACCEPT_REST.subsec_nanos().into() };
                let _ = poll(&mut [PollFd::new(stop, PollFlags::IN)], Some(&rest));
                return;
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => {}
        }
    }
}

/// Gives a connection that has said something its thread.
fn hear(socket: TcpStream, desk: &Arc<Desk>) {
    if desk.threads.load(Ordering::Relaxed) >= THREADS_PER_PLACE * places() {
        return;
    }
    let Ok(from) = socket.peer_addr() else { return };
    let Ok(timer) = prepare(&socket, HANDSHAKE_WAIT).map(Arc::new) else { return };
    let known = desk.known();
    let (number, goes) = desk.talking().enter(from.ip().to_canonical(), timer.clone(), &known);
    if let Some(goes) = goes {
        // Its thread hears that at once.
        let _ = goes.shutdown(std::net::Shutdown::Both);
    }
    desk.threads.fetch_add(1, Ordering::Relaxed);
    let at_desk = Arc::clone(desk);
    let spawned = thread::Builder::new().name("haul-join".into()).spawn(move || {
        let _ = at_desk.admit(socket, &timer, number);
        at_desk.talking().leave(number);
        at_desk.threads.fetch_sub(1, Ordering::Relaxed);
    });
    if spawned.is_err() {
        desk.talking().leave(number);
        desk.threads.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Desk {
    fn guests(&self) -> MutexGuard<'_, Guests> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self) -> BTreeSet<IpAddr> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn talking(&self) -> MutexGuard<'_, Strangers<Arc<TcpStream>>> {
        self.talking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ours come from there.
    fn knows(&self, from: IpAddr) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() < KNOWN_MAX {
            known.insert(from.to_canonical());
        }
    }

    /// Takes a stream in; `None` if it is not ours. `timer`: the same socket.
    fn admit(&self, socket: TcpStream, timer: &TcpStream, number: u64) -> Option<()> {
        let from = socket.peer_addr().ok()?;
        let mut link = tls::server(socket, &self.identity, &self.pin, HANDSHAKE_WAIT).ok()?;
        // It has the near end's key. One that ends now was not needed, for another of its connections was
        // faster.
        self.strays.fetch_sub(1, Ordering::Relaxed);
        self.knows(from.ip());
        // No stranger any more: nobody takes its place.
        self.talking().leave(number)?;
        let stray = || {
            self.strays.fetch_add(1, Ordering::Relaxed);
        };
        set_timeouts(timer, Some(HANDSHAKE_WAIT)).ok()?;
        let mut name = [0; JOIN_LEN];
        if let Err(e) = link.reader.read_exact(&mut name) {
            if e.kind() != io::ErrorKind::UnexpectedEof {
                stray();
            }
            return None;
        }
        let name = Join::decode(&name).inspect_err(|_| stray()).ok()?;
        let answer = self.guests().admit(&name, &self.session);
        if answer != Joined::Accepted {
            stray();
        }
        let said = link.writer.write_all(&answer.encode(name.stream, name.epoch));
        let said = said.and_then(|()| link.writer.flush()).and_then(|()| settle(timer));
        if answer != Joined::Accepted {
            return None;
        }
        let guarded = self.session.guard(&mut link, (name.stream, name.epoch), false);
        let mut guests = self.guests();
        if said.is_err() || guarded.is_err() {
            guests.live.remove(&name.stream);
            return None;
        }
        match (&guests.post, name.stream) {
            // Fails only if the start is over and failed.
            (None, stream) => drop(self.joined.try_send((stream, link))),
            (Some(post), StreamId(0)) => post(JoinEvent::Control { epoch: name.epoch, link }),
            (Some(post), stream) => post(JoinEvent::Stream { stream, epoch: name.epoch, link }),
        }
        Some(())
    }
}

#[cfg(test)]
#[path = "listener_tests.rs"]
mod tests;
