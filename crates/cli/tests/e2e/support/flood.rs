//! Strangers at a port: many that hold a connection and say nothing, and many more that come and go.
//!
//! No connection waits for anything, so that a port whose queue is full, or that is not there yet, holds
//! nobody up. It ends with its owner, and by itself after [`TURNS_MAX`] turns.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A turn brings one new connection at least: some 300 a second.
const TURN: Duration = Duration::from_millis(3);
const TURNS_MAX: usize = 200_000;
/// Connections that come and go stay for so many turns; half of them say something meanwhile.
const STAY: usize = 100;
/// Whether one has come is asked when so many more were dialled.
const ASKED_AFTER: usize = 5;
/// A TLS record of which no more comes.
const LITTLE: [u8; 8] = [0x16, 3, 1, 2, 0, 1, 0, 1];

pub struct Flood {
    over: Arc<AtomicBool>,
    came: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    /// In the network of `namespace`, from these addresses in turn: `held` silent connections to `to`, opened
    /// again whenever they are closed, and the others.
    pub fn start(namespace: &str, from: &[Ipv4Addr], to: SocketAddrV4, held: usize) -> Flood {
        let (over, came) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let network = std::fs::File::open(format!("/run/netns/{namespace}")).expect("the namespace");
        let (ends, counts, from) = (over.clone(), came.clone(), from.to_vec());
        let flood = move || {
            // Of this thread alone.
            move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network)).expect("setns");
            let mut addresses = from.iter().cycle();
            let mut dial = || dial(*addresses.next().expect("some address"), to);
            let mut silent: Vec<Option<OwnedFd>> = (0..held).map(|_| None).collect();
            let mut passing = VecDeque::new();
            for turn in 0..TURNS_MAX {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                for socket in &mut silent {
                    if !socket.as_ref().is_some_and(is_open) {
                        *socket = dial();
                    }
                }
                passing.extend(dial());
                if turn % 2 == 0
                    && let Some(socket) = passing.get(passing.len() / 2)
                {
                    let _ = rustix::net::send(socket, &LITTLE, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
                }
                let before_last = passing.len().checked_sub(1 + ASKED_AFTER).and_then(|at| passing.get(at));
                counts.fetch_add(before_last.is_some_and(has_come).into(), Ordering::Relaxed);
                if passing.len() > STAY {
                    passing.pop_front();
                }
                std::thread::sleep(TURN);
            }
        };
        Flood { over, came, thread: Some(std::thread::spawn(flood)) }
    }

    /// More of them come.
    pub fn lasts(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Connections that came, and were taken for one by the system at least.
    pub fn came(&self) -> u64 {
        self.came.load(Ordering::Relaxed)
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|end| end.is_ok()) || std::thread::panicking(), "the flood failed");
    }
}

fn dial(from: Ipv4Addr, to: SocketAddrV4) -> Option<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).ok()?;
    rustix::net::bind(&socket, &SocketAddrV4::new(from, 0)).ok()?;
    match rustix::net::connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Some(socket),
        Err(_) => None,
    }
}

/// Nobody has closed or refused it.
fn is_open(socket: &OwnedFd) -> bool {
    let peeked = rustix::net::recv(socket, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT);
    matches!(peeked, Err(Errno::AGAIN)) || peeked.is_ok_and(|(_, len)| len > 0)
}

/// The other host's system took it, whatever became of it then.
fn has_come(socket: &OwnedFd) -> bool {
    rustix::net::getpeername(socket).is_ok()
        || matches!(rustix::net::sockopt::socket_error(socket), Ok(Err(Errno::CONNRESET)))
}
