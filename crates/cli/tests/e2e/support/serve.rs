//! `haul serve gridftp` in tests: it is started at a free port, and spoken to by plain sockets.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::run::{Haul, Running};

/// Far above what a client needs here, in seconds; one that takes longer hangs.
pub const CLIENT_SECONDS: &str = "110";
/// The same of an answer.
pub const SOON: Duration = Duration::from_secs(30);
/// Other ports are tried when somebody took the chosen one first.
const ATTEMPTS: u32 = 20;

/// Starts what `command` makes for a port of `host` that is free; it says `listens` when it does.
pub fn started(host: &str, listens: &str, command: impl Fn(u16) -> Haul) -> (u16, Running) {
    for _ in 0..ATTEMPTS {
        let port = TcpListener::bind((host, 0)).and_then(|socket| socket.local_addr());
        let port = port.expect("a free port").port();
        if let Some(running) = listening(command(port), listens) {
            return (port, running);
        }
    }
    panic!("the server does not start");
}

/// The same at a port that is chosen already; `None`: that is taken.
pub fn listening(command: Haul, listens: &str) -> Option<Running> {
    let mut running = command.start();
    running.until(|running| running.stderr().contains(listens)).then_some(running)
}

/// A control connection, of which nothing was read.
pub fn connect(port: u16) -> io::Result<BufReader<TcpStream>> {
    let socket = TcpStream::connect(("127.0.0.1", port))?;
    socket.set_read_timeout(Some(SOON))?;
    Ok(BufReader::new(socket))
}

/// One that was greeted.
pub fn greeted(port: u16) -> BufReader<TcpStream> {
    let mut talk = connect(port).expect("connect");
    assert!(line(&mut talk).starts_with("220"));
    talk
}

pub fn line(talk: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    talk.read_line(&mut line).expect("a line in time");
    line
}

pub fn ask(talk: &mut BufReader<TcpStream>, said: &str) -> String {
    talk.get_mut().write_all(format!("{said}\r\n").as_bytes()).expect("say a line");
    line(talk)
}

/// Dials from this address of this host.
pub fn dial_from(host: [u8; 4], port: u16) -> BufReader<TcpStream> {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    bind(&socket, &SocketAddr::from((host, 0))).expect("bind it");
    connect(&socket, &SocketAddr::from(([127, 0, 0, 1], port))).expect("connect");
    let socket = TcpStream::from(socket);
    socket.set_read_timeout(Some(SOON)).expect("set a patience");
    BufReader::new(socket)
}

/// A port of this host that answers nobody: all places of its queue are taken, by those who are held here.
pub fn deaf() -> (u16, Vec<OwnedFd>) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, listen, socket, socket_with};
    let listener = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    bind(&listener, &SocketAddr::from(([127, 0, 0, 1], 0))).expect("bind it");
    listen(&listener, 0).expect("listen");
    let listener = TcpListener::from(listener);
    let at = listener.local_addr().expect("an address");
    let mut held = Vec::new();
    let is_full = (0..16).any(|_| {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let caller = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).expect("a socket");
        let _ = connect(&caller, &at);
        let a_while = Timespec { tv_sec: 0, tv_nsec: 300_000_000 };
        let waits = poll(&mut [PollFd::new(&caller, PollFlags::OUT)], Some(&a_while)).expect("poll") == 0;
        held.push(caller);
        waits
    });
    assert!(is_full, "the port still answers");
    held.push(listener.into());
    (at.port(), held)
}
