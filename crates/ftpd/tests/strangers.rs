//! Who dials a data port and does not show whose he is: nobody waits for him, and nothing of him is left.
//! And whom the server dials: all at the same time.
//!
//! The guard is a fake: who is there is known by one byte, and is waited for without end.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use haul_ftpd::config::CHANNELS_MAX;
use haul_ftpd::control::Control;
use haul_ftpd::data::{Conn, Data, Guard, Stream};
use haul_ftpd::progress::Progress;

/// Far above what anything takes here.
const PATIENCE: Duration = Duration::from_secs(60);

/// Lets in who says `k`; `living` are those that it waits for.
#[derive(Clone)]
struct ByOneByte {
    living: Arc<AtomicUsize>,
}

impl Guard for ByOneByte {
    fn wrap(&self, mut socket: TcpStream, _: bool) -> io::Result<Box<dyn Stream>> {
        self.living.fetch_add(1, Ordering::SeqCst);
        socket.set_nonblocking(false)?;
        let mut byte = [0];
        let shown = loop {
            match socket.read_exact(&mut byte) {
                Ok(()) if byte == *b"k" => break Ok(Box::new(socket) as Box<dyn Stream>),
                Ok(()) => {}
                Err(error) => break Err(error),
            }
        };
        self.living.fetch_sub(1, Ordering::SeqCst);
        shown
    }
    fn apart(&self) -> Option<Box<dyn Guard>> {
        Some(Box::new(self.clone()))
    }
    fn identifies(&self) -> bool {
        true
    }
}

/// The data connections of a session whose client is at 127.0.0.1, and how many are waited for.
fn data() -> (Data, Arc<AtomicUsize>) {
    let client = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port");
    let local: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let mut data = Data::new(client, local, None, false);
    let living = Arc::new(AtomicUsize::new(0));
    data.set_guard(Box::new(ByOneByte { living: Arc::clone(&living) }));
    (data, living)
}

fn dial(from: &str, to: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let fd = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    let from: SocketAddr = format!("{from}:0").parse().expect("an address");
    bind(&fd, &from).expect("bind");
    connect(&fd, &to).expect("connect");
    TcpStream::from(fd)
}

/// Takes whoever comes for a while; who is there, if anybody has shown who he is.
fn accept(data: &mut Data, within: Duration) -> Option<Conn> {
    let until = Instant::now() + within;
    loop {
        if let Some(conn) = data.accept().expect("accept") {
            return Some(conn);
        }
        if Instant::now() >= until {
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Goal: however many are there and say nothing, the client's connection is taken.
/// Method: more than there are places, before it and all the while.
#[test]
fn silent_strangers_give_way() {
    let (mut data, _) = data();
    let at = data.listen().expect("listen");
    let mut strangers: Vec<_> = (0..CHANNELS_MAX + 6)
        .map(|_| {
            let stranger = dial("127.0.0.7", at);
            assert!(accept(&mut data, Duration::ZERO).is_none());
            stranger
        })
        .collect();
    let mut own = dial("127.0.0.1", at);
    strangers.extend((0..CHANNELS_MAX / 2).map(|_| dial("127.0.0.7", at)));
    own.write_all(b"k").expect("show");
    assert!(accept(&mut data, PATIENCE).is_some(), "strangers hold all places");
}

/// Goal: the connection of the client's own host that speaks stays, though it is the oldest of all.
#[test]
fn who_is_of_the_clients_host_stays() {
    let (mut data, living) = data();
    let at = data.listen().expect("listen");
    let mut own = dial("127.0.0.1", at);
    own.write_all(b"-").expect("begin to show");
    while living.load(Ordering::SeqCst) == 0 {
        assert!(accept(&mut data, Duration::from_millis(2)).is_none());
    }
    let mut strangers = Vec::new();
    for _ in 0..3 * CHANNELS_MAX {
        let mut stranger = dial("127.0.0.7", at);
        stranger.write_all(b"-").expect("begin to show");
        strangers.push(stranger);
        assert!(accept(&mut data, Duration::ZERO).is_none());
    }
    own.write_all(b"k").expect("show");
    assert!(accept(&mut data, PATIENCE).is_some(), "the client's own connection gave way");
}

/// Goal: what is agreed anew leaves no thread and no socket of those that were there before.
/// Method: many times as many as there are places, and a new port for each lot.
#[test]
fn those_of_before_are_gone() {
    let (mut data, living) = data();
    let mut strangers = Vec::new();
    for round in 0..6 {
        let at = data.listen().expect("listen");
        for _ in 0..CHANNELS_MAX / 2 {
            let mut stranger = dial("127.0.0.7", at);
            stranger.write_all(b"-").expect("begin to show");
            stranger.set_read_timeout(Some(PATIENCE)).expect("a patience");
            strangers.push(stranger);
        }
        let until = Instant::now() + PATIENCE;
        while living.load(Ordering::SeqCst) < CHANNELS_MAX / 2 {
            assert!(Instant::now() < until, "round {round}: not all are looked at");
            assert!(accept(&mut data, Duration::from_millis(2)).is_none());
        }
        data.close();
        while living.load(Ordering::SeqCst) > 0 {
            assert!(Instant::now() < until, "round {round}: threads live on");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    for mut stranger in strangers {
        assert!(matches!(stranger.read(&mut [0]), Ok(0) | Err(_)), "it is told something");
    }
}

/// Waits for whoever it is until it is told to end, and does not hear that a socket was shut.
#[derive(Clone)]
struct Stubborn {
    living: Arc<AtomicUsize>,
    ends: Arc<AtomicBool>,
}

impl Guard for Stubborn {
    fn wrap(&self, _: TcpStream, _: bool) -> io::Result<Box<dyn Stream>> {
        self.living.fetch_add(1, Ordering::SeqCst);
        while !self.ends.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.living.fetch_sub(1, Ordering::SeqCst);
        Err(io::ErrorKind::ConnectionAborted.into())
    }
    fn apart(&self) -> Option<Box<dyn Guard>> {
        Some(Box::new(self.clone()))
    }
    fn identifies(&self) -> bool {
        true
    }
}

/// Goal: threads that were told to end and do not yet are bounded, with all others; when they end, others
/// come.
#[test]
fn threads_are_bounded() {
    let (mut data, _) = data();
    let (living, ends) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    data.set_guard(Box::new(Stubborn { living: Arc::clone(&living), ends: Arc::clone(&ends) }));
    let at = data.listen().expect("listen");
    let mut strangers = Vec::new();
    let mut come = |data: &mut Data, count: usize| {
        for _ in 0..count {
            let mut stranger = dial("127.0.0.7", at);
            stranger.write_all(b"-").expect("begin to show");
            strangers.push(stranger);
            assert!(accept(data, Duration::ZERO).is_none());
        }
    };
    come(&mut data, CHANNELS_MAX * 3 / 2);
    let until = Instant::now() + PATIENCE;
    while living.load(Ordering::SeqCst) < CHANNELS_MAX * 3 / 2 {
        assert!(Instant::now() < until, "not all are looked at");
        std::thread::sleep(Duration::from_millis(2));
    }
    come(&mut data, CHANNELS_MAX * 2);
    assert!(accept(&mut data, Duration::from_millis(300)).is_none());
    let most = living.load(Ordering::SeqCst);
    assert!(most <= 2 * CHANNELS_MAX, "{most} threads");
    ends.store(true, Ordering::SeqCst);
    while living.load(Ordering::SeqCst) > 0 {
        assert!(Instant::now() < until, "threads live on");
        assert!(accept(&mut data, Duration::from_millis(2)).is_none());
    }
}

/// Goal: connections that the server makes are under way all at once, so that eight take the round trips of
/// one.
/// Method: the client shows whose the first is when it has the last.
#[test]
fn dials_are_made_at_once() {
    let (mut data, living) = data();
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    data.dial_to(listener.local_addr().expect("an address")).expect("it may be dialled");
    let monitor = UnixStream::pair().expect("a pair");
    let socket = TcpListener::bind("127.0.0.1:0").expect("listen");
    let client = TcpStream::connect(socket.local_addr().expect("an address")).expect("connect");
    let served = socket.accept().expect("accept").0;
    served.set_nonblocking(true).expect("a socket that does not wait");
    let mut control = Control::new(Box::new(served), monitor.1, true);
    let taker = std::thread::spawn(move || {
        let mut all: Vec<_> = (0..8).map(|_| listener.accept().expect("accept").0).collect();
        for socket in &mut all {
            socket.write_all(b"k").expect("show");
        }
        all
    });
    let dialled = data.dial(8, &mut control, &Progress::new("RETR"));
    let conns = dialled.expect("nobody wants an end").expect("all come up");
    assert_eq!(conns.len(), 8);
    assert_eq!(living.load(Ordering::SeqCst), 0);
    drop((taker.join().expect("the taker"), client, monitor.0));
}
