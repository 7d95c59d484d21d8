//! Data connections: who may come, where one may go, which are kept for the next transfer.
//!
//! In: `PASV`, `PORT` and their kin. Out: connections that do not block.
//! What must hold: a connection comes from, and goes to, the host of the control connection, unless the
//! server was told that others may take part, or who is there shows whose he is; never to a port below
//! [`PORT_MIN`]. There is one listener at a time, whatever was asked for how often. Who dials and does not
//! show whose he is keeps nobody else waiting.
//! Left out: what goes through them. What protects them is a [`Guard`].

mod dial;

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use haul_gridftp::mode_e::Channel;
use rustix::event::{PollFd, PollFlags, poll};

use crate::config::{CHANNELS_MAX, CONNECT_WITHIN, SHOWN_WITHIN, plain_ip};
use crate::control::{Abort, Control, timespec};
use crate::progress::Progress;

/// Ports below are those of services: a server that dials them speaks to others in its own name.
pub const PORT_MIN: u16 = 1_024;
/// Largest buffer of a connection that a client may ask for.
const BUFFER_MAX: u64 = 64 << 20;
/// Who says nothing for so long is the first to give way to others.
const SPOKEN_WITHIN: Duration = Duration::from_secs(2);
/// Most threads that look at who is there, with those that were told to end and have not yet.
const LIVING_MAX: usize = 2 * CHANNELS_MAX;

/// One data connection: bytes in the clear, or what protects them. It does not block.
pub trait Stream: Read + Write + Send {
    /// What `poll` waits for.
    fn fd(&self) -> BorrowedFd<'_>;
    /// The socket itself, if what goes through it is what is written here.
    fn plain(&self) -> Option<&TcpStream>;
    /// Bytes were taken from the socket that nobody has read, so that it may show nothing and a read yield
    /// some.
    fn holds(&self) -> bool {
        false
    }
    /// Says that nothing more comes; to be called again if it would block.
    ///
    /// # Errors
    /// The connection broke.
    fn end(&mut self) -> io::Result<()> {
        self.flush()
    }
}

impl Stream for TcpStream {
    fn fd(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }
    fn plain(&self) -> Option<&TcpStream> {
        Some(self)
    }
}

/// What protects data connections, as `PROT` and `DCAU` want it.
pub trait Guard: Send {
    /// Makes of a new socket what is read and written. `dialled`: this end connected.
    ///
    /// # Errors
    /// The other end is not who it must be.
    fn wrap(&self, socket: TcpStream, dialled: bool) -> io::Result<Box<dyn Stream>>;
    /// The same for a thread of its own, where it waits for the other end.
    fn apart(&self) -> Option<Box<dyn Guard>> {
        None
    }
    /// The other end shows who it is, so that it may be on any host.
    fn identifies(&self) -> bool;
    /// Why there can be no connection as it was agreed, if that is so, and the code of the reply.
    fn hindrance(&self) -> Option<(u16, &'static str)> {
        None
    }
    /// Which way goes what comes next.
    fn set_way(&mut self, _way: Way) {}
    /// The other end begins when it has heard that the transfer does.
    fn begins_late(&self) -> bool {
        false
    }
}

/// Nothing does.
pub struct Clear;

impl Guard for Clear {
    fn wrap(&self, socket: TcpStream, _dialled: bool) -> io::Result<Box<dyn Stream>> {
        Ok(Box::new(socket))
    }
    fn identifies(&self) -> bool {
        false
    }
}

/// Which way a connection's bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To the client.
    Out,
    /// From it.
    In,
}

/// A data connection, with what MODE E knows of it.
pub struct Conn {
    pub stream: Box<dyn Stream>,
    pub channel: Channel,
    /// What came behind the end of the last transfer.
    pub unread: Vec<u8>,
    /// It is one of this transfer's.
    pub counted: bool,
    /// The other end has said that it closes it.
    pub closing: bool,
}

impl Conn {
    fn new(stream: Box<dyn Stream>) -> Conn {
        Conn { stream, channel: Channel::new(), unread: Vec::new(), counted: false, closing: false }
    }

    /// Ends it so that nobody takes its end for one of the data.
    pub fn reset(self) {
        let _ = rustix::net::sockopt::set_socket_linger(self.stream.fd(), Some(std::time::Duration::ZERO));
    }
}

/// Where data connections come from or go to.
enum Route {
    None,
    Listening(TcpListener),
    Dial(SocketAddr),
}

/// Why a route is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("data connections go to the host that asks for them, and to no other")]
    Foreign,
    #[error("data connections go to no port below {PORT_MIN}")]
    Service,
}

/// A connection whose other end shows whose it is, or is to.
struct Waiting {
    id: u64,
    /// The one that its thread looks at.
    socket: TcpStream,
    /// It is from the host of the control connection.
    is_own: bool,
    since: Instant,
    has_spoken: Arc<AtomicBool>,
    /// It was shut, and only its thread is still there.
    is_over: bool,
}

impl Waiting {
    /// Its thread ends at once.
    fn shut(&mut self) {
        self.is_over = true;
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }

    /// Who has the greatest gives way first: who says nothing, then who is of another host, then the oldest.
    fn rank(&self) -> (bool, bool, Duration) {
        let age = self.since.elapsed();
        let is_silent = age >= SPOKEN_WITHIN && !self.has_spoken.load(Ordering::Relaxed);
        (is_silent, !self.is_own, age)
    }
}

/// What a thread found out.
type Found = (u64, io::Result<Conn>);

/// Connections whose other ends show whose they are, each on a thread of its own.
struct Showing {
    waiting: Vec<Waiting>,
    ids: u64,
    done: (Sender<Found>, Receiver<Found>),
    /// A byte comes through it with each that is done.
    bell: (UnixStream, UnixStream),
}

impl Showing {
    fn new() -> io::Result<Showing> {
        let bell = UnixStream::pair()?;
        bell.0.set_nonblocking(true)?;
        bell.1.set_nonblocking(true)?;
        Ok(Showing { waiting: Vec::new(), ids: 0, done: channel(), bell })
    }

    /// One more may come; with it another one gives way, if all places are taken.
    fn has_room(&self) -> bool {
        self.waiting.len() < LIVING_MAX || haul_mutant::removed("ftpd-threads-are-bounded")
    }

    fn begin(&mut self, guard: Box<dyn Guard>, socket: TcpStream, is_own: bool) -> io::Result<()> {
        let mut living: Vec<_> = self.waiting.iter_mut().filter(|one| !one.is_over).collect();
        if living.len() >= CHANNELS_MAX
            && let Some(first) = living.iter_mut().max_by_key(|one| one.rank())
        {
            first.shut();
        }
        let (done, mut bell) = (self.done.0.clone(), self.bell.1.try_clone()?);
        let (id, has_spoken) = (self.ids, Arc::new(AtomicBool::new(false)));
        let one = Waiting {
            id,
            socket: socket.try_clone()?,
            is_own,
            since: Instant::now(),
            has_spoken: Arc::clone(&has_spoken),
            is_over: false,
        };
        std::thread::Builder::new().name("show".into()).spawn(move || {
            // Who dials speaks first.
            let mut fds = [PollFd::new(&socket, PollFlags::IN)];
            let found = match poll(&mut fds, Some(&timespec(SHOWN_WITHIN))) {
                Ok(0) => Err(ErrorKind::TimedOut.into()),
                _ => {
                    has_spoken.store(true, Ordering::Relaxed);
                    guard.wrap(socket, false).map(Conn::new)
                }
            };
            // Where nobody waits any more, it ends with this.
            let _ = done.send((id, found));
            let _ = bell.write(&[0]);
        })?;
        self.ids += 1;
        self.waiting.push(one);
        Ok(())
    }

    /// The next that was found out of one that still counts. While more may be there, the bell rings on.
    fn next(&mut self) -> Option<io::Result<Conn>> {
        loop {
            let (id, found) = match self.done.1.try_recv() {
                Ok(found) => found,
                Err(_) => {
                    // A byte may come behind what it tells of: then it wakes once for nothing.
                    let _ = self.bell.0.read(&mut [0; LIVING_MAX]);
                    // This one came meanwhile, and the bytes that were read may be others' as well.
                    let found = self.done.1.try_recv().ok()?;
                    let _ = self.bell.1.write(&[0]);
                    found
                }
            };
            let at = self.waiting.iter().position(|one| one.id == id).expect("each is told of once");
            if !self.waiting.swap_remove(at).is_over {
                return Some(found);
            }
        }
    }

    /// Whoever is there comes to nothing. Their threads count until they have ended.
    fn forget(&mut self) {
        self.waiting.iter_mut().filter(|one| !one.is_over).for_each(Waiting::shut);
    }
}

impl Drop for Showing {
    fn drop(&mut self) {
        self.forget();
    }
}

/// All that a session has of data connections.
pub struct Data {
    pub guard: Box<dyn Guard>,
    peer: IpAddr,
    local: SocketAddr,
    ports: Option<(u16, u16)>,
    third_party: bool,
    buffer: Option<u64>,
    route: Route,
    /// Connections that are kept from the transfer before.
    pub kept: Vec<Conn>,
    pub kept_way: Option<Way>,
    /// `PASV` is answered when the name is known.
    pub delayed: bool,
    /// One that was delayed is due.
    pub due: bool,
    showing: Option<Showing>,
    /// Why the last that came was sent away.
    sent_away: Option<io::Error>,
}

impl Data {
    pub fn new(peer: SocketAddr, local: SocketAddr, ports: Option<(u16, u16)>, third_party: bool) -> Data {
        Data {
            guard: Box::new(Clear),
            peer: plain_ip(peer),
            local,
            ports,
            third_party,
            buffer: None,
            route: Route::None,
            kept: Vec::new(),
            kept_way: None,
            delayed: false,
            due: false,
            showing: None,
            sent_away: None,
        }
    }

    /// What protects connections from now on. Those that are kept are of before.
    pub fn set_guard(&mut self, guard: Box<dyn Guard>) {
        self.drop_kept();
        self.forget_showing();
        self.guard = guard;
    }

    /// Whether connections may come from there and go there.
    fn may_reach(&self, address: SocketAddr) -> bool {
        self.third_party || self.guard.identifies() || plain_ip(address) == self.peer
    }

    /// Forgets all that was agreed.
    pub fn close(&mut self) {
        self.route = Route::None;
        self.forget_showing();
        self.due = false;
        self.drop_kept();
    }

    fn forget_showing(&mut self) {
        self.showing.iter_mut().for_each(Showing::forget);
    }

    pub fn drop_kept(&mut self) {
        self.kept.clear();
        self.kept_way = None;
    }

    /// Buffers of connections from now on; 0: as the system has them.
    pub fn set_buffer(&mut self, len: u64) {
        self.buffer = (len > 0).then_some(len.min(BUFFER_MAX));
    }

    /// Listens, at the address that the client reached.
    ///
    /// # Errors
    /// No port is free.
    pub fn listen(&mut self) -> io::Result<SocketAddr> {
        self.close();
        self.sent_away = None;
        let listener = self.bind()?;
        listener.set_nonblocking(true)?;
        if let Some(len) = self.buffer {
            let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&listener, len as usize);
        }
        let port = listener.local_addr()?.port();
        self.route = Route::Listening(listener);
        Ok(SocketAddr::new(plain_ip(self.local), port))
    }

    fn bind(&self) -> io::Result<TcpListener> {
        let ip = self.local.ip();
        let at = |port| {
            let mut address = self.local;
            address.set_ip(ip);
            address.set_port(port);
            TcpListener::bind(address)
        };
        let Some((first, last)) = self.ports else { return at(0) };
        // Anywhere in the range, so that nobody knows which is next.
        let count = u32::from(last - first) + 1;
        let mut random = [0; 4];
        let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
        let start = u32::from_ne_bytes(random) % count;
        let mut failed = io::Error::from(ErrorKind::AddrInUse);
        for i in 0..count {
            let port = u32::from(first) + (start + i) % count;
            match at(u16::try_from(port).expect("within a range of ports")) {
                Ok(listener) => return Ok(listener),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// Data will go to this address.
    ///
    /// # Errors
    /// It must not.
    pub fn dial_to(&mut self, address: SocketAddr) -> Result<(), Refused> {
        if !self.may_reach(address) {
            return Err(Refused::Foreign);
        }
        if address.port() < PORT_MIN {
            return Err(Refused::Service);
        }
        self.close();
        self.route = Route::Dial(address);
        Ok(())
    }

    /// The control connection is of IPv6.
    pub fn is_ipv6(&self) -> bool {
        plain_ip(self.local).is_ipv6()
    }

    pub fn is_listening(&self) -> bool {
        matches!(self.route, Route::Listening(_))
    }

    pub fn is_dialling(&self) -> bool {
        matches!(self.route, Route::Dial(_))
    }

    /// A connection can come about.
    pub fn is_agreed(&self) -> bool {
        self.due || !matches!(self.route, Route::None)
    }

    /// What `poll` waits for, for one more connection.
    pub fn listener_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let listener = match &self.route {
            Route::Listening(listener) => Some(listener.as_fd()),
            _ => None,
        };
        // Where nothing is listened at, nobody is waited for.
        let showing = self.showing.as_ref().filter(|_| listener.is_some());
        let has_room = showing.is_none_or(Showing::has_room);
        listener.filter(|_| has_room).into_iter().chain(showing.map(|showing| showing.bell.0.as_fd()))
    }

    /// Takes the next connection that is there, if it is from a host that it may be from.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn accept(&mut self) -> io::Result<Option<Conn>> {
        // As many strangers as this are sent away at a time, before others have their turn.
        for _ in 0..CHANNELS_MAX {
            // Anybody may dial a port: who does not show whose he is ends nothing but his own connection.
            match self.showing.as_mut().and_then(Showing::next) {
                Some(Ok(conn)) => return Ok(Some(conn)),
                Some(Err(error)) => {
                    self.sent_away = Some(error);
                    continue;
                }
                None => {}
            }
            let Route::Listening(listener) = &self.route else { return Ok(None) };
            if self.showing.as_ref().is_some_and(|showing| !showing.has_room()) {
                return Ok(None);
            }
            match listener.accept() {
                Ok((socket, from)) if self.may_reach(from) => {
                    self.prepare(&socket)?;
                    let Some(guard) = self.guard.apart() else {
                        return Ok(Some(Conn::new(self.guard.wrap(socket, false)?)));
                    };
                    let showing = match &mut self.showing {
                        Some(showing) => showing,
                        none => none.insert(Showing::new()?),
                    };
                    showing.begin(guard, socket, plain_ip(from) == self.peer)?;
                }
                Ok(_) => {}
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return Ok(None),
                    ErrorKind::Interrupted | ErrorKind::ConnectionAborted => {}
                    _ => return Err(error),
                },
            }
        }
        Ok(None)
    }

    fn prepare(&self, socket: &TcpStream) -> io::Result<()> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        if let Some(len) = self.buffer {
            let _ = rustix::net::sockopt::set_socket_send_buffer_size(socket, len as usize);
            let _ = rustix::net::sockopt::set_socket_recv_buffer_size(socket, len as usize);
        }
        Ok(())
    }

    /// The one connection of a transfer in stream mode. The way to it is used up.
    ///
    /// # Errors
    /// The outer: the session has to see to it. The inner: there is none.
    pub fn open_one(
        &mut self,
        control: &mut Control,
        progress: &Progress,
    ) -> Result<io::Result<Conn>, Abort> {
        let conn = if self.is_listening() {
            self.await_one(control, progress)
        } else {
            self.dial(1, control, progress)
                .map(|dialled| dialled.map(|mut conns| conns.pop().expect("as many as were asked for")))
        };
        self.route = Route::None;
        self.forget_showing();
        conn
    }

    fn await_one(&mut self, control: &mut Control, progress: &Progress) -> Result<io::Result<Conn>, Abort> {
        let deadline = Instant::now() + CONNECT_WITHIN;
        loop {
            match self.accept() {
                Ok(Some(conn)) => return Ok(Ok(conn)),
                Ok(None) => {}
                Err(error) => return Ok(Err(error)),
            }
            let wanted: Vec<_> = self.listener_fds().map(|fd| (fd, PollFlags::IN)).collect();
            match control.wait(&wanted, deadline, Some(progress)) {
                Ok(_) => {}
                Err(Abort::Late) => {
                    return Ok(Err(self.sent_away.take().unwrap_or(ErrorKind::TimedOut.into())));
                }
                Err(abort) => {
                    // Who was sent away just now is perhaps why the client goes.
                    while let Some(found) = self.showing.as_mut().and_then(Showing::next) {
                        self.sent_away = found.err().or(self.sent_away.take());
                    }
                    return Err(abort);
                }
            }
        }
    }

    /// Why a connection was sent away since it was last listened, if one was and it was not told yet.
    pub fn why_sent_away(&mut self) -> Option<String> {
        self.sent_away.take().map(haul_base::errno::text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: whoever waits for the bell hears of all that were found out, also where several were at once.
    #[test]
    fn the_bell_rings_for_each() {
        let mut showing = Showing::new().expect("a bell");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("bound");
        for id in 0..3 {
            showing.waiting.push(Waiting {
                id,
                socket: TcpStream::connect(at).expect("connect"),
                is_own: true,
                since: Instant::now(),
                has_spoken: Arc::default(),
                is_over: false,
            });
            showing.done.0.send((id, Err(ErrorKind::TimedOut.into()))).expect("it is heard");
            showing.bell.1.write_all(&[0]).expect("ring");
        }
        let mut found = 0;
        while poll(&mut [PollFd::new(&showing.bell.0, PollFlags::IN)], Some(&timespec(Duration::ZERO)))
            .is_ok_and(|count| count == 1)
        {
            found += usize::from(showing.next().is_some());
        }
        assert_eq!(found, 3);
    }
}
