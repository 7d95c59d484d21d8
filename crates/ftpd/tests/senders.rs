//! Large files in blocks, from several threads at once: each byte once, and one end for all.
//!
//! The client is a fake that takes MODE E apart by the grammar's own reader.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::thread;

use haul_ftpd::control::{Abort, Control};
use haul_ftpd::data::Data;
use haul_ftpd::progress::Progress;
use haul_ftpd::send::{self, Blocks, FileFeed};
use haul_ftpd::store::posix::PosixFile;
use haul_ftpd::transfer::Stop;
use haul_gridftp::mode_e::{Channel, Event};

/// Above what several threads are for, and no number of blocks.
const LEN: u64 = (80 << 20) + 12_345;
const CONNECTIONS: usize = 8;

/// What a connection does with what comes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Taker {
    /// It takes all.
    All,
    /// It is gone behind the first megabytes.
    Goes,
    /// It takes nothing behind them.
    Stands,
}

/// What came through one connection: pieces with their places, and the count of ends if it was told.
type Came = (Vec<(u64, Vec<u8>)>, Option<u64>);

fn take(mut socket: TcpStream, taker: Taker) -> Came {
    let (mut pieces, mut count): Came = Default::default();
    let mut channel = Channel::new();
    let mut bytes = vec![0; 1 << 20];
    let mut taken = 0;
    while !channel.is_at_end() {
        if taker != Taker::All && taken > 3 << 20 {
            match taker {
                Taker::Goes => {
                    let none = std::time::Duration::ZERO;
                    rustix::net::sockopt::set_socket_linger(&socket, Some(none)).expect("a reset at the end");
                    return (pieces, count);
                }
                _ => thread::park(),
            }
        }
        let Ok(len @ 1..) = socket.read(&mut bytes) else { break };
        taken += len;
        let mut rest = &bytes[..len];
        loop {
            let (fed, event) = channel.feed(rest).expect("blocks");
            let part = &rest[..fed];
            rest = &rest[fed..];
            match event {
                Some(Event::Payload { offset, len }) => {
                    pieces.push((offset, part[part.len() - len..].to_vec()))
                }
                Some(Event::Mark(mark)) => count = count.or(mark.eof),
                Some(Event::Block { .. }) => {}
                None => break,
            }
        }
    }
    (pieces, count)
}

fn content() -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..LEN).map(|_| next()).collect()
}

/// Sends a file to takers, of which the first is `first`; the client says `line` meanwhile.
fn send(first: Taker, line: Option<&str>) -> (Result<(), Stop>, Vec<Came>, Vec<u8>) {
    let bytes = content();
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(&bytes).expect("write");
    let socket = TcpListener::bind("127.0.0.1:0").expect("listen");
    let mut client = TcpStream::connect(socket.local_addr().expect("an address")).expect("connect");
    let served = socket.accept().expect("accept").0;
    served.set_nonblocking(true).expect("a socket that does not wait");
    let monitor = UnixStream::pair().expect("a pair");
    let mut control = Control::new(Box::new(served), monitor.1, true);
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let local = "127.0.0.1:0".parse().expect("an address");
    let mut data = Data::new(client.local_addr().expect("an address"), local, None, false);
    data.dial_to(listener.local_addr().expect("an address")).expect("it may be dialled");
    let progress = Progress::new("RETR");
    let conns = data.dial(CONNECTIONS, &mut control, &progress).expect("nobody wants an end").expect("all");
    let takers: Vec<_> = (0..CONNECTIONS)
        .map(|i| {
            let socket = listener.accept().expect("accept").0;
            thread::spawn(move || take(socket, if i == 0 { first } else { Taker::All }))
        })
        .collect();
    if let Some(line) = line {
        client.write_all(line.as_bytes()).expect("a line");
    }
    let mut feed =
        FileFeed::new(Box::new(PosixFile::from(OwnedFd::from(file))), Blocks::new([(0, LEN)].into_iter()), 0);
    let sent = send::blocks(&mut control, &mut data, conns, &mut feed, &progress);
    if first == Taker::Stands {
        takers[0].thread().unpark();
    }
    let came = takers.into_iter().map(|taker| taker.join().expect("a taker")).collect();
    drop((monitor.0, client));
    (sent, came, bytes)
}

/// Goal: each byte comes once, at its place, over all connections together, and one of them tells how many
/// ends there are.
#[test]
fn each_byte_comes_once() {
    let (sent, came, bytes) = send(Taker::All, None);
    sent.expect("all is sent");
    let mut pieces: Vec<&(u64, Vec<u8>)> = came.iter().flat_map(|(pieces, _)| pieces).collect();
    pieces.sort_by_key(|(at, _)| *at);
    let mut next = 0;
    for (at, piece) in pieces {
        assert_eq!(*at, next, "bytes are missing, or came twice");
        next += piece.len() as u64;
        assert!(bytes[*at as usize..next as usize] == piece[..], "bytes from {at} on are others");
    }
    assert_eq!(next, LEN);
    let counts: Vec<u64> = came.iter().filter_map(|(_, count)| *count).collect();
    assert_eq!(counts, [CONNECTIONS as u64]);
}

/// Goal: where a connection is lost, the transfer fails, and no other one looks as if all had come.
#[test]
fn a_lost_connection_ends_all() {
    let (sent, came, _) = send(Taker::Goes, None);
    let Err(Stop::Data(_)) = sent else { panic!("{sent:?}") };
    let got: usize = came.iter().flat_map(|(pieces, _)| pieces).map(|(_, piece)| piece.len()).sum();
    assert!((got as u64) < LEN, "all came");
}

/// Goal: a client that wants an end is heard while the threads wait for connections that take nothing.
#[test]
fn an_abort_is_heard() {
    let (sent, _, _) = send(Taker::Stands, Some("ABOR\r\n"));
    let Err(Stop::Abort(Abort::Asked)) = sent else { panic!("{sent:?}") };
}
