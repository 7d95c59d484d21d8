//! The link between a front end and a data node: who does not hold the key is nobody to it, and what somebody
//! on the way changes, says again or leaves out ends it. That somebody is a fake, between two real ends.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use haul_ftpd::config::Secret;
use haul_ftpd::link;

/// Far above what anything takes here.
const PATIENCE: Duration = Duration::from_secs(30);
/// Before the bytes of a record of TLS: its kind, a version, its length.
const HEADER_LEN: usize = 5;

/// A key of Ed25519 in PKCS #8, as `openssl genpkey` writes it.
fn key(seed: u8) -> Secret {
    let head = [48, 46, 2, 1, 0, 48, 5, 6, 3, 43, 101, 112, 4, 34, 4, 32];
    Secret([&head[..], &[seed; 32]].concat())
}

fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let address = listener.local_addr().expect("an address");
    (listener, address)
}

/// A node that takes one link.
fn node(seed: u8) -> (SocketAddr, JoinHandle<std::io::Result<UnixStream>>) {
    let (listener, address) = listen();
    (address, thread::spawn(move || link::accept(listener.accept()?.0, &key(seed))))
}

fn waits(socket: UnixStream) -> UnixStream {
    socket.set_nonblocking(false).expect("a socket that waits");
    socket.set_read_timeout(Some(PATIENCE)).expect("a patience");
    socket
}

/// All that comes up to the end of the link.
fn rest(mut socket: &UnixStream) -> Vec<u8> {
    let mut heard = Vec::new();
    match socket.read_to_end(&mut heard) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        Err(error) => panic!("it does not end: {error}, behind {:?}", String::from_utf8_lossy(&heard)),
    }
    heard
}

fn hears(mut socket: &UnixStream, wanted: &[u8]) {
    let mut heard = vec![0; wanted.len()];
    socket.read_exact(&mut heard).expect("what was said");
    assert_eq!(heard, wanted);
}

/// Goal: both ends want the key of the other, and neither hears a word of one that has another.
#[test]
fn both_ends_hold_the_key() {
    let (at, node_end) = node(1);
    let front = waits(link::dial(at, &key(1)).expect("the same key"));
    let node_end = waits(node_end.join().expect("no panic").expect("the same key"));
    (&front).write_all(b"NODE {}\r\n").expect("say it");
    hears(&node_end, b"NODE {}\r\n");
    (&node_end).write_all(b"200 done\r\n").expect("say it");
    hears(&front, b"200 done\r\n");

    let (at, node_end) = node(1);
    let front = link::dial(at, &key(2));
    let accepted = node_end.join().expect("no panic");
    assert!(accepted.is_err(), "the node took a front end with another key");
    assert!(front.is_err(), "the front end took a node with another key");
}

/// What is done to the next record on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    Nothing,
    /// One bit of its content, or of its header, is another.
    Alters(usize),
    /// It comes twice.
    Repeats,
    /// It does not come, and the one behind it does.
    Drops,
    /// In its place comes one that the other side said.
    Reflects,
}

/// Somebody on the way, in one direction.
struct Way {
    does: Arc<Mutex<Does>>,
    /// All that was said, record by record.
    said: Arc<Mutex<Vec<Vec<u8>>>>,
}

fn record(from: &mut TcpStream) -> Option<Vec<u8>> {
    let mut record = vec![0; HEADER_LEN];
    from.read_exact(&mut record).ok()?;
    let len = usize::from(u16::from_be_bytes([record[3], record[4]]));
    record.resize(HEADER_LEN + len, 0);
    from.read_exact(&mut record[HEADER_LEN..]).ok()?;
    Some(record)
}

impl Way {
    fn new() -> Way {
        Way { does: Arc::new(Mutex::new(Does::Nothing)), said: Arc::default() }
    }

    fn pass(&self, mut from: TcpStream, mut to: TcpStream, back: &Way) {
        let (does, said, theirs) = (self.does.clone(), self.said.clone(), back.said.clone());
        thread::spawn(move || {
            while let Some(mut next) = record(&mut from) {
                said.lock().expect("no panic").push(next.clone());
                let pieces = match std::mem::replace(&mut *does.lock().expect("no panic"), Does::Nothing) {
                    Does::Nothing => vec![next],
                    Does::Alters(at) => {
                        next[at] ^= 1;
                        vec![next]
                    }
                    Does::Repeats => vec![next.clone(), next],
                    Does::Drops => vec![],
                    Does::Reflects => {
                        vec![theirs.lock().expect("no panic").last().expect("they said something").clone()]
                    }
                };
                if pieces.iter().any(|piece| to.write_all(piece).is_err()) {
                    break;
                }
            }
            let _ = to.shutdown(Shutdown::Both);
            let _ = from.shutdown(Shutdown::Both);
        });
    }
}

/// Goal: a record that was changed, comes again, is missing before the next one or is the other side's own is
/// not heard, nor is anything behind it, and both ends see that it is over; in both directions. What was
/// recorded of a whole link is none at another time.
#[test]
fn what_somebody_on_the_way_does_ends_it() {
    let all = [Does::Alters(HEADER_LEN + 2), Does::Alters(1), Does::Repeats, Does::Drops, Does::Reflects];
    for (does, is_up) in all.into_iter().flat_map(|does| [(does, true), (does, false)]) {
        let (at, node_end) = node(1);
        let (listener, between) = listen();
        let (up, down) = (Way::new(), Way::new());
        let front = thread::spawn(move || link::dial(between, &key(1)));
        let near = listener.accept().expect("the front end comes").0;
        let far = TcpStream::connect(at).expect("the node is there");
        up.pass(near.try_clone().expect("one more"), far.try_clone().expect("one more"), &down);
        down.pass(far, near, &up);
        let front = waits(front.join().expect("no panic").expect("the same key"));
        let node_end = waits(node_end.join().expect("no panic").expect("the same key"));
        // Behind these the handshake is over in both directions.
        for (mut says, hears_it) in [(&front, &node_end), (&node_end, &front)] {
            says.write_all(b"one\r\n").expect("say it");
            hears(hears_it, b"one\r\n");
        }
        let (way, mut says, hears_it) = match is_up {
            true => (&up, &front, &node_end),
            false => (&down, &node_end, &front),
        };
        let count = || way.said.lock().expect("no panic").len();
        let before = count();
        *way.does.lock().expect("no panic") = does;
        says.write_all(b"two\r\n").expect("say it");
        // In a record of its own.
        while count() == before {
            thread::yield_now();
        }
        let _ = says.write_all(b"three\r\n");
        let heard = rest(hears_it);
        let heard = String::from_utf8_lossy(&heard);
        // What was said once may be lost with what ends it.
        let is_once = does == Does::Repeats && heard == "two\r\n";
        assert!(heard.is_empty() || is_once, "{does:?}, from the front end: {is_up}: {heard:?}");
        assert_eq!(rest(says), b"", "{does:?}, from the front end: {is_up}");

        let (at, node_end) = node(1);
        let mut again = TcpStream::connect(at).expect("the node is there");
        let recorded = up.said.lock().expect("no panic").concat();
        again.write_all(&recorded).expect("say all of it again");
        again.shutdown(Shutdown::Write).expect("that is all");
        assert!(node_end.join().expect("no panic").is_err(), "a recorded link is taken for one");
    }
}
