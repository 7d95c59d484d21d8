//! The far end's one port: who comes in, and who does not.
//!
//! In: an address, a [`Session`] with its tickets, the near end's key. Out: joined streams, each once.
//! Each accepted socket gets a thread and [`HANDSHAKE_WAIT`] to finish TLS with the pinned key and to name its
//! stream with that stream's ticket. Whoever fails is closed and counted, and learns nothing.
//! Invariants: at most [`PREAUTH_MAX`] strangers at a time; the port is closed when the listener is dropped.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use haul_core::ids::{SessionEpoch, StreamId};
use haul_core::wire::{JOIN_LEN, JOINED_LEN, Join, Joined};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::message::LINKS_MAX;
use crate::transport::{Link, TransportError, tcp, tls};

/// Most connections at a time that have not shown who they are; one more is closed at once.
pub(super) const PREAUTH_MAX: usize = 64;
/// How long a connection may take to show who it is.
pub(super) const HANDSHAKE_WAIT: Duration = Duration::from_secs(5);
/// Rest after the system had no descriptor or memory for a connection.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// What the streams of one session have in common.
#[derive(Clone)]
pub(super) struct Session {
    pub id: [u8; 16],
    pub epoch: SessionEpoch,
    /// One per stream, control first. At most [`LINKS_MAX`].
    pub tickets: Vec<[u8; 32]>,
}

impl Session {
    /// A session with random names for control and `streams` data streams.
    pub(super) fn new(streams: u16) -> io::Result<Session> {
        let random =
            |bytes: &mut [u8]| aws_lc_rs::rand::fill(bytes).map_err(|_| io::Error::other("no entropy"));
        let mut id = [0; 16];
        random(&mut id)?;
        let mut tickets = vec![[0; 32]; usize::from(streams) + 1];
        tickets.iter_mut().try_for_each(|t| random(t))?;
        Ok(Session { id, epoch: SessionEpoch(0), tickets })
    }

    /// Is this a stream of ours, and does it know its ticket?
    fn admits(&self, join: &Join) -> Joined {
        let Some(ticket) = self.tickets.get(usize::from(join.stream.0)) else { return Joined::BadStream };
        let known = aws_lc_rs::constant_time::verify_slices_are_equal(ticket, &join.ticket).is_ok();
        match known && join.session == self.id {
            false => Joined::UnknownSession,
            true if join.epoch != self.epoch => Joined::StaleEpoch,
            true => Joined::Accepted,
        }
    }
}

/// The near end's half: TLS, then the stream's name, then the far end's word that it is joined. All within
/// `wait`, as far as TLS keeps to it.
pub(super) fn join(
    socket: TcpStream,
    identity: &tls::Identity,
    pin: &tls::Pin,
    session: &Session,
    stream: StreamId,
    wait: Duration,
) -> Result<Link, TransportError> {
    let failed = |what: &str, e: io::Error| TransportError { what: what.into(), source: Some(e) };
    let wait = wait.max(Duration::from_millis(1));
    let timer = prepare(&socket, wait).map_err(|e| failed("prepare a connection", e))?;
    let mut link = tls::client(socket, identity, pin, wait)?;
    set_timeouts(&timer, Some(wait)).map_err(|e| failed("prepare a connection", e))?;
    let ticket = session.tickets[usize::from(stream.0)];
    let name = Join { session: session.id, ticket, stream, epoch: session.epoch };
    let mut answer = [0; JOINED_LEN];
    (|| {
        link.writer.write_all(&name.encode())?;
        link.writer.flush()?;
        link.reader.read_exact(&mut answer)
    })()
    .map_err(|e| failed("join a session", e))?;
    match Joined::decode(&answer) {
        Ok((Joined::Accepted, s, e)) if (s, e) == (stream, session.epoch) => {}
        answer => {
            let what = format!("the far end did not take stream {stream}: {answer:?}");
            return Err(TransportError { what, source: None });
        }
    }
    set_timeouts(&timer, None).map_err(|e| failed("prepare a connection", e))?;
    Ok(link)
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

/// What the threads of one listener share.
struct Desk {
    session: Session,
    identity: tls::Identity,
    pin: tls::Pin,
    /// Streams that came already.
    taken: Arc<Mutex<[bool; LINKS_MAX]>>,
    strangers: AtomicUsize,
    strays: Arc<AtomicU64>,
    joined: Sender<(StreamId, Link)>,
}

/// An open port. Dropping it closes the port; connections in their handshake end by themselves.
pub(super) struct Listener {
    pub addr: SocketAddr,
    /// Streams as they join. Each stream comes at most once.
    pub joined: Receiver<(StreamId, Link)>,
    taken: Arc<Mutex<[bool; LINKS_MAX]>>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Listens on `address`, on the first free port of `ports` (inclusive; `None`: any). `window`: bytes under way that each
    /// connection's receive buffer shall hold.
    ///
    /// # Errors
    /// The system's answer, for the last port of the range.
    pub(super) fn open(
        address: IpAddr,
        ports: Option<(u16, u16)>,
        session: Session,
        identity: tls::Identity,
        pin: tls::Pin,
        strays: Arc<AtomicU64>,
        window: Option<u64>,
    ) -> io::Result<Listener> {
        assert!(session.tickets.len() <= LINKS_MAX);
        let (first, last) = ports.unwrap_or((0, 0));
        let mut result = Err(io::ErrorKind::InvalidInput.into());
        for port in first..=last {
            result = TcpListener::bind((address, port));
            if result.is_ok() {
                break;
            }
        }
        let socket = result?;
        socket.set_nonblocking(true)?;
        if let Some(window) = window {
            tcp::fix_receive(&socket, window.saturating_mul(2))?;
        }
        let addr = socket.local_addr()?;
        // Room for every stream there can be: a joined one never waits here.
        let (sender, joined) = bounded(LINKS_MAX);
        let taken = Arc::new(Mutex::new([false; LINKS_MAX]));
        let desk = Arc::new(Desk {
            session,
            identity,
            pin,
            taken: Arc::clone(&taken),
            strangers: AtomicUsize::new(0),
            strays,
            joined: sender,
        });
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let thread = {
            let stop = Arc::clone(&stop);
            thread::Builder::new()
                .name("haul-listen".into())
                .spawn(move || accept_loop(&socket, &stop, &desk))?
        };
        Ok(Listener { addr, joined, taken, stop, thread: Some(thread) })
    }
}

impl Listener {
    /// Was control taken in? True before the near end can know it; its link may still be on the way here.
    pub(super) fn has_control(&self) -> bool {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)[0]
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

fn accept_loop(socket: &TcpListener, stop: &OwnedFd, desk: &Arc<Desk>) {
    loop {
        let mut fds = [PollFd::new(socket, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) if !fds[1].revents().is_empty() => return,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
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
    /// Takes a stream in; `None` if it is not ours.
    fn admit(&self, socket: TcpStream) -> Option<()> {
        let timer = prepare(&socket, HANDSHAKE_WAIT).ok()?;
        let mut link = tls::server(socket, &self.identity, &self.pin, HANDSHAKE_WAIT).ok()?;
        set_timeouts(&timer, Some(HANDSHAKE_WAIT)).ok()?;
        let mut name = [0; JOIN_LEN];
        link.reader.read_exact(&mut name).ok()?;
        let name = Join::decode(&name).ok()?;
        let mut answer = self.session.admits(&name);
        if answer == Joined::Accepted {
            let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
            if std::mem::replace(&mut taken[usize::from(name.stream.0)], true) {
                answer = Joined::BadStream;
            }
        }
        if answer == Joined::Accepted {
            self.strays.fetch_sub(1, Ordering::Relaxed);
        }
        link.writer.write_all(&answer.encode(name.stream, name.epoch)).ok()?;
        link.writer.flush().ok()?;
        if answer != Joined::Accepted {
            return None;
        }
        set_timeouts(&timer, None).ok()?;
        // Fails only if the listener is gone, and the session with it.
        let _ = self.joined.try_send((name.stream, link));
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::Ipv4Addr;

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
            let session = Session::new(2).unwrap();
            let strays = Arc::new(AtomicU64::new(0));
            let (pin_near, pin_far) = (tls::Pin(near.public()), tls::Pin(far.public()));
            let here = Ipv4Addr::LOCALHOST.into();
            let listener =
                Listener::open(here, None, session.clone(), far, pin_near, Arc::clone(&strays), None)
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
            join(self.socket(), identity, &self.far, session, StreamId(stream), HANDSHAKE_WAIT)
        }
        /// Waits until all handshakes are over.
        fn settle(&self, strays: u64) {
            while self.strays.load(Ordering::Relaxed) < strays {
                thread::yield_now();
            }
            assert_eq!(self.strays.load(Ordering::Relaxed), strays);
        }
    }

    /// Goal: only streams of this session, with its keys and tickets, each once, come out; all else is
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
            for wrong in [
                other(&|s| s.tickets[2][31] ^= 1),
                other(&|s| s.tickets.swap(1, 2)),
                other(&|s| s.id[0] ^= 1),
                other(&|s| s.epoch = SessionEpoch(1)),
            ] {
                assert!(bench.join(&bench.near, &wrong, 2).is_err());
            }
            let mut more = bench.session.clone();
            more.tickets.push([0; 32]);
            assert!(bench.join(&bench.near, &more, 3).is_err());
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
}
