//! The one port of the end that listens: who comes in, and who does not.
//!
//! In: addresses, a [`Session`] with its secret, the other end's key. Out: joined streams, each once; first those of the
//! start, then, once the driver has opened the door, others and control again.
//! Each accepted socket gets a thread and [`HANDSHAKE_WAIT`] to finish TLS with the pinned key and to prove which
//! stream it is. Whoever fails is closed and counted, and learns nothing.
//! Invariants: at most [`PREAUTH_MAX`] strangers at a time, and [`LIVE_MAX`] streams that are ours; a stream id is taken
//! once; control only under an epoch above all before, data only under control's (at the start under the first, for all
//! are dialled together); the port is closed when the listener is dropped.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use haul_core::ids::{SessionEpoch, StreamId};
use haul_core::wire::{JOIN_LEN, JOINED_LEN, Join, Joined, STREAMS_MAX};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use socket2::{Domain, Protocol, Socket, Type};

use super::message::LINKS_MAX;
use crate::transport::frames::FrameKeys;
use crate::transport::path;
use crate::transport::rejoin::{Door, JoinEvent, bound_stalls};
use crate::transport::{Link, Post, TransportError, Unseal, tcp, tls};

/// Most connections at a time that have not shown who they are; one more is closed at once.
pub(super) const PREAUTH_MAX: usize = 64;
/// Most data streams of ours that are open at a time. The end that dials replaces one that this end has not yet seen go.
const LIVE_MAX: usize = 2 * STREAMS_MAX as usize;
/// The epoch of a session's start.
pub(super) const FIRST_EPOCH: SessionEpoch = SessionEpoch(1);
/// How long a connection may take to show who it is.
pub(super) const HANDSHAKE_WAIT: Duration = Duration::from_secs(5);
/// How long the answer to a name may take that nobody waits for; and to send it.
const JOINED_WAIT: Duration = Duration::from_secs(10);
/// Connections that wait to be taken in, at most; more than all streams of a start.
const BACKLOG: i32 = 128;
/// So many free ports are tried until one is free at all addresses.
const FREE_PORTS_MAX: u16 = 16;
/// Rest after the system had no descriptor or memory for a connection.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// What the streams of one session have in common.
#[derive(Clone)]
pub(super) struct Session {
    pub id: [u8; 16],
    /// Each join is proved with it ([`Join::prove`]); it came through ssh.
    pub secret: [u8; 32],
    /// Data streams are authenticated and not encrypted.
    pub bare: bool,
}

impl Session {
    /// A session with random names.
    pub(super) fn new() -> io::Result<Session> {
        let mut session = Session { id: [0; 16], secret: [0; 32], bare: false };
        random(&mut session.id)?;
        random(&mut session.secret)?;
        Ok(session)
    }
}

impl Session {
    /// A stream that joined, as its frames will be guarded.
    fn guard(
        &self,
        link: &mut Link,
        name: (StreamId, SessionEpoch),
        near: bool,
    ) -> Result<(), TransportError> {
        self.frame_keys(name, near).map_or(Ok(()), |keys| link.bare(keys))
    }

    /// The keys of a stream whose frames guard themselves.
    fn frame_keys(&self, name: (StreamId, SessionEpoch), near: bool) -> Option<FrameKeys> {
        (self.bare && name.0 != StreamId(0)).then(|| FrameKeys::new(&self.secret, &self.id, name, near))
    }
}

/// Fills `bytes` from the kernel.
pub(super) fn random(bytes: &mut [u8]) -> io::Result<()> {
    aws_lc_rs::rand::fill(bytes).map_err(|_| io::Error::other("no entropy"))
}

/// A connection whose other end has shown that it is ours. It has no name yet; who is not needed may be dropped.
pub(super) struct Met {
    link: Link,
    timer: TcpStream,
}

/// TLS: the near end's first part of a join. All within `wait`, as far as TLS keeps to it.
pub(super) fn meet(
    socket: TcpStream,
    identity: &tls::Identity,
    pin: &tls::Pin,
    wait: Duration,
) -> Result<Met, TransportError> {
    let wait = wait.max(Duration::from_millis(1));
    let timer = prepare(&socket, wait).map_err(unprepared)?;
    let link = tls::client(socket, identity, pin, wait)?;
    Ok(Met { link, timer })
}

impl Met {
    /// Says the stream's name, and waits for the far end's word that it is joined.
    pub(super) fn join(
        self,
        session: &Session,
        (stream, epoch): (StreamId, SessionEpoch),
        wait: Duration,
    ) -> Result<Link, TransportError> {
        let Met { mut link, timer } = self;
        set_timeouts(&timer, Some(wait.max(Duration::from_millis(1)))).map_err(unprepared)?;
        let mut answer = [0; JOINED_LEN];
        let said = introduce(&mut link, session, (stream, epoch));
        said.and_then(|()| link.reader.read_exact(&mut answer)).map_err(unjoined)?;
        accepted(&answer, (stream, epoch)).map_err(|what| TransportError { what, source: None })?;
        settle(&timer).map_err(unprepared)?;
        session.guard(&mut link, (stream, epoch), true)?;
        Ok(link)
    }

    /// [`Met::join`] without waiting for the answer, so that what is said next travels with the name. The answer comes before
    /// all else that is read: a refusal, or none within [`JOINED_WAIT`], is the error of the first read.
    pub(super) fn join_at_once(
        self,
        session: &Session,
        name: (StreamId, SessionEpoch),
    ) -> Result<Link, TransportError> {
        let Met { mut link, timer } = self;
        set_timeouts(&timer, Some(JOINED_WAIT)).map_err(unprepared)?;
        introduce(&mut link, session, name).map_err(unjoined)?;
        settle(&timer).and_then(|()| timer.set_read_timeout(Some(JOINED_WAIT))).map_err(unprepared)?;
        let unseal = match session.frame_keys(name, true) {
            Some(keys) => Some(link.bare_out(keys)?),
            None => None,
        };
        let answer = Some(Answer { timer, name, bytes: [0; JOINED_LEN], len: 0, unseal });
        Ok(Link { reader: Box::new(Answered { inner: link.reader, answer }), ..link })
    }

    /// The round-trip time, as far as the handshake shows it.
    pub(super) fn rtt(&self) -> Option<Duration> {
        path::rtt(&self.link)
    }
}

/// Names the stream, with a proof.
fn introduce(
    link: &mut Link,
    session: &Session,
    (stream, epoch): (StreamId, SessionEpoch),
) -> io::Result<()> {
    let mut nonce = [0; 16];
    random(&mut nonce)?;
    let name = Join::prove(&session.secret, session.id, stream, epoch, nonce);
    link.writer.write_all(&name.encode())?;
    link.writer.flush()
}

/// Is the answer to this name that it is taken? Else what it is.
fn accepted(answer: &[u8; JOINED_LEN], (stream, epoch): (StreamId, SessionEpoch)) -> Result<(), String> {
    match Joined::decode(answer) {
        Ok((Joined::Accepted, s, e)) if (s, e) == (stream, epoch) => Ok(()),
        answer => Err(format!("the far end did not take stream {stream}: {answer:?}")),
    }
}

/// The reading half of a stream whose name was not answered yet.
struct Answered {
    inner: Box<dyn Read + Send>,
    /// `None`: it was, and the stream is taken.
    answer: Option<Answer>,
}

struct Answer {
    timer: TcpStream,
    name: (StreamId, SessionEpoch),
    bytes: [u8; JOINED_LEN],
    /// So much of it came.
    len: usize,
    /// What follows the answer guards itself.
    unseal: Option<Unseal>,
}

impl Read for Answered {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while let Some(answer) = &mut self.answer {
            if answer.len == JOINED_LEN {
                accepted(&answer.bytes, answer.name).map_err(io::Error::other)?;
                answer.timer.set_read_timeout(None)?;
                answer.unseal.iter().for_each(|unseal| unseal());
                self.answer = None;
                break;
            }
            let silent = |e: io::Error| match e.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                    let what = format!("the far end did not answer the join of stream {}", answer.name.0);
                    io::Error::new(io::ErrorKind::TimedOut, what)
                }
                _ => e,
            };
            match self.inner.read(&mut answer.bytes[answer.len..]).map_err(silent)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => answer.len += n,
            }
        }
        self.inner.read(out)
    }
}

fn unjoined(error: io::Error) -> TransportError {
    TransportError { what: "join a session".into(), source: Some(error) }
}

fn unprepared(error: io::Error) -> TransportError {
    TransportError { what: "prepare a connection".into(), source: Some(error) }
}

/// Bounds each wait on `socket`, and keeps a second handle to change that behind TLS.
fn prepare(socket: &TcpStream, wait: Duration) -> io::Result<TcpStream> {
    socket.set_nonblocking(false)?;
    socket.set_nodelay(true)?;
    let timer = socket.try_clone()?;
    set_timeouts(&timer, Some(wait))?;
    Ok(timer)
}

fn set_timeouts(socket: &TcpStream, wait: Option<Duration>) -> io::Result<()> {
    socket.set_read_timeout(wait)?;
    socket.set_write_timeout(wait)
}

/// Joined: reads wait as long as it takes, but the connection may not stand still.
fn settle(socket: &TcpStream) -> io::Result<()> {
    set_timeouts(socket, None)?;
    bound_stalls(socket)
}

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
            if join.epoch <= self.epoch || (at_start && join.epoch != FIRST_EPOCH) {
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
        let too_many = if at_start { join.stream.0 > self.streams } else { self.live.len() >= LIVE_MAX };
        if too_many || !self.used.insert(join.stream) {
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
    strangers: AtomicUsize,
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
    /// Listens on the first free port of `ports` (inclusive; `None`: any). `window`: bytes under way that each
    /// connection's receive buffer shall hold.
    ///
    /// # Errors
    /// None of the addresses can be listened on: the system's answer, for the last port of the range.
    pub(super) fn open(
        at: &At,
        ports: Option<(u16, u16)>,
        (session, streams): (Session, u16),
        identity: tls::Identity,
        pin: tls::Pin,
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
            strangers: AtomicUsize::new(0),
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

fn accept_loop(sockets: &[TcpListener], stop: &OwnedFd, desk: &Arc<Desk>) {
    loop {
        let mut fds: Vec<_> = sockets.iter().map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
        fds.push(PollFd::new(stop, PollFlags::IN));
        match poll(&mut fds, None) {
            Ok(_) if fds.last().is_none_or(|stop| !stop.revents().is_empty()) => return,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
        for (socket, _) in sockets.iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty()) {
            accept(socket, stop, desk);
        }
    }
}

fn accept(socket: &TcpListener, stop: &OwnedFd, desk: &Arc<Desk>) {
    match socket.accept() {
        Ok((stranger, _)) => receive(stranger, desk),
        // No descriptor or memory left: the connection stays in the queue and poll would spin.
        Err(e)
            if !matches!(
                e.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted
            ) =>
        {
            let rest = Timespec { tv_sec: 0, tv_nsec: ACCEPT_REST.subsec_nanos().into() };
            let _ = poll(&mut [PollFd::new(stop, PollFlags::IN)], Some(&rest));
        }
        Err(_) => {}
    }
}

/// Gives a connection its thread, if there is room.
fn receive(socket: TcpStream, desk: &Arc<Desk>) {
    if desk.strangers.fetch_add(1, Ordering::Relaxed) >= PREAUTH_MAX {
        desk.strangers.fetch_sub(1, Ordering::Relaxed);
        desk.strays.fetch_add(1, Ordering::Relaxed);
        return;
    }
    // A stray until it has shown that it is ours: one that says nothing would else be counted too late.
    desk.strays.fetch_add(1, Ordering::Relaxed);
    let at_desk = Arc::clone(desk);
    let spawned = thread::Builder::new().name("haul-join".into()).spawn(move || {
        let _ = at_desk.admit(socket);
        at_desk.strangers.fetch_sub(1, Ordering::Relaxed);
    });
    if spawned.is_err() {
        desk.strangers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Desk {
    fn guests(&self) -> MutexGuard<'_, Guests> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a stream in; `None` if it is not ours.
    fn admit(&self, socket: TcpStream) -> Option<()> {
        let timer = prepare(&socket, HANDSHAKE_WAIT).ok()?;
        let mut link = tls::server(socket, &self.identity, &self.pin, HANDSHAKE_WAIT).ok()?;
        // It has the near end's key. One that ends now was not needed, for another of its connections was faster.
        self.strays.fetch_sub(1, Ordering::Relaxed);
        let stray = || {
            self.strays.fetch_add(1, Ordering::Relaxed);
        };
        set_timeouts(&timer, Some(HANDSHAKE_WAIT)).ok()?;
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
        let said = said.and_then(|()| link.writer.flush()).and_then(|()| settle(&timer));
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
mod tests {
    use std::io::Write;

    use super::*;

    struct Bench {
        listener: Listener,
        strays: Arc<AtomicU64>,
        session: Session,
        near: tls::Identity,
        far: tls::Pin,
    }

    impl Bench {
        fn new() -> Bench {
            let (near, far) = (tls::Identity::generate().unwrap(), tls::Identity::generate().unwrap());
            let session = Session::new().unwrap();
            let strays = Arc::new(AtomicU64::new(0));
            let (pin_near, pin_far) = (tls::Pin(near.public()), tls::Pin(far.public()));
            let here = Ipv4Addr::LOCALHOST.into();
            let listener = Listener::open(
                &At::Only(vec![here]),
                None,
                (session.clone(), 2),
                far,
                pin_near,
                Arc::clone(&strays),
                None,
            )
            .unwrap();
            Bench { listener, strays, session, near, far: pin_far }
        }
        fn socket(&self) -> TcpStream {
            TcpStream::connect(self.listener.addr).unwrap()
        }
        fn join(
            &self,
            identity: &tls::Identity,
            session: &Session,
            stream: u16,
        ) -> Result<Link, TransportError> {
            self.join_at(identity, session, stream, 1)
        }
        fn join_at(
            &self,
            identity: &tls::Identity,
            session: &Session,
            stream: u16,
            epoch: u32,
        ) -> Result<Link, TransportError> {
            let name = (StreamId(stream), SessionEpoch(epoch));
            meet(self.socket(), identity, &self.far, HANDSHAKE_WAIT)?.join(session, name, HANDSHAKE_WAIT)
        }
        /// Waits until all handshakes are over.
        fn settle(&self, strays: u64) {
            while self.strays.load(Ordering::Relaxed) < strays {
                thread::yield_now();
            }
            assert_eq!(self.strays.load(Ordering::Relaxed), strays);
        }
    }

    /// Goal: only streams of this session, with its keys and its secret, each once, come out; all else is
    /// counted, and does not keep ours from joining.
    /// Method: each kind of stranger there is, before, between and after the streams.
    #[test]
    fn strangers_are_counted_and_nothing_else() {
        let bench = Bench::new();
        let mut strays = 0;
        let mut strangers = |bench: &Bench| {
            let half_open = bench.socket();
            let mut junk = bench.socket();
            junk.write_all(&[0x16; 600]).unwrap();
            let wrong_key = tls::Identity::generate().unwrap();
            assert!(bench.join(&wrong_key, &bench.session, 1).is_err());
            let other = |change: &dyn Fn(&mut Session)| {
                let mut session = bench.session.clone();
                change(&mut session);
                session
            };
            for wrong in [other(&|s| s.secret[31] ^= 1), other(&|s| s.id[0] ^= 1)] {
                assert!(bench.join(&bench.near, &wrong, 2).is_err());
            }
            assert!(bench.join_at(&bench.near, &bench.session, 2, 2).is_err(), "an epoch that is not");
            assert!(bench.join_at(&bench.near, &bench.session, 0, 0).is_err(), "an epoch before the first");
            assert!(bench.join(&bench.near, &bench.session, 3).is_err(), "more than were asked for");
            drop((half_open, junk));
            strays += 8;
            bench.settle(strays);
        };
        strangers(&bench);
        let mut links = Vec::new();
        for stream in [0, 2, 1] {
            links.push(bench.join(&bench.near, &bench.session, stream).unwrap());
            let (joined, link) = bench.listener.joined.recv().unwrap();
            assert_eq!(joined, StreamId(stream));
            links.push(link);
            strangers(&bench);
        }
        assert!(bench.join(&bench.near, &bench.session, 1).is_err(), "a stream joins once");
        assert!(bench.listener.joined.try_recv().is_err());
    }

    /// Goal: at the start data streams are taken before control has come, each once and under the first epoch only.
    #[test]
    fn data_may_come_before_control() {
        let bench = Bench::new();
        let join = |stream, epoch| bench.join_at(&bench.near, &bench.session, stream, epoch);
        let mut kept = vec![join(2, 1).unwrap()];
        for (stream, epoch, why) in
            [(1, 0, "no epoch"), (1, 2, "a later epoch"), (2, 1, "twice"), (3, 1, "more than were asked for")]
        {
            assert!(join(stream, epoch).is_err(), "{why}");
        }
        kept.push(join(0, 1).unwrap());
        kept.push(join(1, 1).unwrap());
        // Each is handed on by a thread of its own, behind the answer.
        let mut came: Vec<u16> = (0..3).map(|_| bench.listener.joined.recv().unwrap().0.0).collect();
        came.sort();
        assert_eq!(came, [0, 1, 2]);
    }

    /// Goal: who does not wait for the answer to its name hears it before anything else: what follows an acceptance is
    /// read whole, a refusal and silence are errors that say so.
    #[test]
    fn an_answer_that_nobody_waited_for_is_heard() {
        let bench = Bench::new();
        let at_once = |stream| {
            let met = meet(bench.socket(), &bench.near, &bench.far, HANDSHAKE_WAIT).unwrap();
            met.join_at_once(&bench.session, (StreamId(stream), FIRST_EPOCH)).unwrap()
        };
        let mut taken = at_once(1);
        taken.writer.write_all(b"at once").and_then(|()| taken.writer.flush()).unwrap();
        let (_, mut far) = bench.listener.joined.recv().unwrap();
        let mut bytes = [0; 7];
        far.reader.read_exact(&mut bytes).unwrap();
        far.writer.write_all(&bytes).and_then(|()| far.writer.flush()).unwrap();
        taken.reader.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"at once");
        let refused = at_once(1).reader.read(&mut bytes).unwrap_err();
        assert!(refused.to_string().contains("did not take stream 1: Ok((BadStream"), "{refused}");

        struct Silent;
        impl Read for Silent {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::ErrorKind::WouldBlock.into())
            }
        }
        let answer = Answer {
            timer: bench.socket(),
            name: (StreamId(7), FIRST_EPOCH),
            bytes: [0; JOINED_LEN],
            len: 3,
            unseal: None,
        };
        let silent = Answered { inner: Box::new(Silent), answer: Some(answer) }.read(&mut bytes).unwrap_err();
        assert_eq!(silent.kind(), io::ErrorKind::TimedOut);
        assert!(silent.to_string().contains("did not answer the join of stream 7"), "{silent}");
    }

    /// Goal: no more than the maximum of strangers is held; the next is closed at once, and room that
    /// becomes free is used again.
    #[test]
    fn strangers_are_bounded() {
        let bench = Bench::new();
        let mut held: Vec<TcpStream> = (0..PREAUTH_MAX).map(|_| bench.socket()).collect();
        let mut excess = bench.socket();
        assert!(matches!(io::Read::read(&mut excess, &mut [0]), Ok(0) | Err(_)), "closed without a word");
        bench.settle(1 + PREAUTH_MAX as u64);
        held.clear();
        // Room comes back as their threads see that they hung up; tries until then are strays themselves.
        while bench.join(&bench.near, &bench.session, 0).is_err() {
            thread::yield_now();
        }
    }

    /// Goal: the port is closed when the listener is dropped.
    #[test]
    fn port_dies_with_the_listener() {
        let bench = Bench::new();
        let addr = bench.listener.addr;
        drop(bench.listener);
        assert_eq!(TcpStream::connect(addr).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }

    /// Goal: once the door is open, streams join under new ids and control under higher epochs; what was used, what is
    /// older, and more than there may be, is refused.
    /// Method: a join of each kind, and then a flood of them.
    #[test]
    fn later_joins_are_new_and_bounded() {
        let bench = Bench::new();
        let mut kept: Vec<Link> =
            (0..=2).map(|stream| bench.join(&bench.near, &bench.session, stream).unwrap()).collect();
        // As the agent does: the door opens when those of the start have come.
        kept.extend((0..=2).map(|_| bench.listener.joined.recv().unwrap().1));
        let (post, events) = crossbeam_channel::unbounded();
        bench.listener.open(Arc::new(move |event| drop(post.send(event))));
        let join = |stream, epoch| bench.join_at(&bench.near, &bench.session, stream, epoch);
        kept.push(join(3, 1).unwrap());
        assert!(matches!(events.recv().unwrap(), JoinEvent::Stream { stream: StreamId(3), .. }));
        for (stream, epoch, why) in [
            (3, 1, "an id that is used"),
            (2, 1, "an id of the start"),
            (0, 1, "control under its present epoch"),
            (4, 2, "data ahead of control"),
        ] {
            assert!(join(stream, epoch).is_err(), "{why}");
        }
        kept.push(join(0, 5).unwrap());
        let control = |event| matches!(event, JoinEvent::Control { epoch: SessionEpoch(5), .. });
        assert!(control(events.recv().unwrap()));
        for (stream, epoch, why) in
            [(0, 5, "control twice"), (0, 4, "an older control"), (4, 1, "data of an older epoch")]
        {
            assert!(join(stream, epoch).is_err(), "{why}");
        }
        let wrong = Session { secret: [0; 32], ..bench.session.clone() };
        assert!(bench.join_at(&bench.near, &wrong, 4, 5).is_err(), "a wrong proof");
        let mut next = 4;
        while let Ok(link) = join(next, 5) {
            kept.push(link);
            next += 1;
        }
        assert_eq!(usize::from(next) - 1, LIVE_MAX, "so many are open");
        assert!(join(next + 1, 5).is_err());
        bench.listener.left(StreamId(3));
        kept.push(join(next + 2, 5).unwrap());
        assert!(join(next + 3, 5).is_err());
    }
}
