//! Our halves against a plain rustls, and against a peer that does as it pleases.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use provider::cipher_suite::{TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256};
use rustls::{ClientConnection, ServerConnection, StreamOwned};

use super::halves::Keys;
use super::handshake::agree;
use super::open::Opener;
use super::record::{
    CLOSE_MESSAGE, Fault, HEADER_LEN, KEY_UPDATE_MESSAGE, Kind, PLAIN_LEN_MAX, fatal_message, header,
    record_len,
};
use super::seal::Sealer;
use super::tests::{LONG, crypto_with, pin, tcp_pair};
use super::*;

/// A plain rustls at the other end, in either role.
enum Plain {
    Client(StreamOwned<ClientConnection, TcpStream>),
    Server(StreamOwned<ServerConnection, TcpStream>),
}

impl Plain {
    fn refresh(&mut self) {
        match self {
            Plain::Client(tls) => tls.conn.refresh_traffic_keys().unwrap(),
            Plain::Server(tls) => tls.conn.refresh_traffic_keys().unwrap(),
        }
    }
    fn close(&mut self) {
        match self {
            Plain::Client(tls) => tls.conn.send_close_notify(),
            Plain::Server(tls) => tls.conn.send_close_notify(),
        }
        self.io().flush().unwrap();
    }
    fn io(&mut self) -> &mut (dyn ReadWrite + '_) {
        match self {
            Plain::Client(tls) => tls,
            Plain::Server(tls) => tls,
        }
    }
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

/// Our link, and rustls at its other end; `client`: we are the client.
fn with_rustls(client: bool, crypto: &(dyn Fn() -> CryptoProvider + Sync)) -> (Link, Plain) {
    let [a, b] = [(); 2].map(|()| Identity::generate().unwrap());
    let (ours, theirs) = tcp_pair();
    std::thread::scope(|scope| match client {
        true => {
            let config = server_config(crypto(), &b, &[pin(&a)]).unwrap().0;
            let link = scope.spawn(|| {
                let config = client_config(crypto(), &a, &pin(&b)).unwrap();
                handshake(client_connection(config).unwrap(), ours, LONG).unwrap()
            });
            let mut tls = StreamOwned::new(ServerConnection::new(Arc::new(config)).unwrap(), theirs);
            while tls.conn.is_handshaking() {
                tls.conn.complete_io(&mut tls.sock).unwrap();
            }
            (link.join().unwrap(), Plain::Server(tls))
        }
        false => {
            let config = client_config(crypto(), &b, &pin(&a)).unwrap();
            let link = scope.spawn(|| {
                let config = server_config(crypto(), &a, &[pin(&b)]).unwrap().0;
                handshake(server_connection(config).unwrap(), ours, LONG).unwrap()
            });
            let mut tls =
                StreamOwned::new(ClientConnection::new(Arc::new(config), no_name()).unwrap(), theirs);
            while tls.conn.is_handshaking() {
                tls.conn.complete_io(&mut tls.sock).unwrap();
            }
            (link.join().unwrap(), Plain::Client(tls))
        }
    })
}

/// Goal: plain rustls understands us and we understand it, in both roles, with both ciphers, across key
/// updates that either side begins, and each other's end.
/// Method: rounds of seeded data there and back; in some rustls asks for our new key too; in some series both
/// ends are worn after 20 records; then rustls says goodbye, and we do.
#[test]
fn plain_rustls_understands_us() {
    for suite in [TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256] {
        for (client, limit) in [(true, 1 << 24), (false, 1 << 24), (true, 20), (false, 20)] {
            let (mut link, mut peer) = with_rustls(client, &|| crypto_with(suite, limit));
            for round in 0..30 {
                let mut data = vec![0; [1, 100_000, 16_384, 40_000, 3][round % 5]];
                fastrand::Rng::with_seed(round as u64).fill(&mut data);
                let mut got = vec![0; data.len()];
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        link.writer.write_all(&data).unwrap();
                        link.writer.flush().unwrap();
                    });
                    peer.io().read_exact(&mut got).unwrap();
                });
                assert!(got == data, "round {round}, to rustls");
                if round % 3 == 0 {
                    peer.refresh();
                }
                got.fill(0);
                std::thread::scope(|scope| {
                    let (data, peer) = (&data, &mut peer);
                    scope.spawn(move || {
                        peer.io().write_all(data).unwrap();
                        peer.io().flush().unwrap();
                    });
                    link.reader.read_exact(&mut got).unwrap();
                });
                assert!(got == data, "round {round}, from rustls");
            }
            peer.close();
            assert_eq!(link.reader.read(&mut [0; 10]).unwrap(), 0);
            drop(link.writer);
            assert_eq!(peer.io().read_to_end(&mut Vec::new()).unwrap(), 0);
        }
    }
}

/// A peer with the right keys that sends what it likes.
struct Rogue {
    stream: TcpStream,
    sealer: Sealer,
    opener: Opener,
    keys: Keys,
}

impl Rogue {
    fn send(&mut self, kind: Kind, plain: &[u8]) {
        let mut record = vec![0; HEADER_LEN + plain.len() + 17];
        self.sealer.seal(kind, plain, &mut record).unwrap();
        // We may have hung up already.
        let _ = self.stream.write_all(&record);
    }
    fn next_tx(&mut self) {
        self.sealer = Sealer::new(self.keys.next_tx().unwrap());
    }
    /// The next record of ours.
    fn receive(&mut self) -> (Kind, Vec<u8>) {
        let mut record = vec![0; HEADER_LEN];
        self.stream.read_exact(&mut record).unwrap();
        record.resize(record_len(&record).unwrap().unwrap(), 0);
        self.stream.read_exact(&mut record[HEADER_LEN..]).unwrap();
        let (kind, len) = self.opener.open_in_place(&mut record).unwrap();
        (kind, record[HEADER_LEN..][..len].to_vec())
    }
}

fn with_rogue() -> (Link, Rogue) {
    with_rogue_by(&crypto)
}

fn with_rogue_by(crypto: &(dyn Fn() -> CryptoProvider + Sync)) -> (Link, Rogue) {
    let [a, b] = [(); 2].map(|()| Identity::generate().unwrap());
    let (ours, theirs) = tcp_pair();
    std::thread::scope(|scope| {
        let link = scope.spawn(|| {
            let config = server_config(crypto(), &a, &[pin(&b)]).unwrap().0;
            handshake(server_connection(config).unwrap(), ours, LONG).unwrap()
        });
        let conn = client_connection(client_config(crypto(), &b, &pin(&a)).unwrap()).unwrap();
        let parts = agree(conn, &theirs, LONG).unwrap();
        let (sealer, opener, keys) = parts.split();
        (link.join().unwrap(), Rogue { stream: theirs, sealer, opener, keys })
    })
}

/// What our reader says in the end, and what it read before.
fn read_all(link: &mut Link) -> (Vec<u8>, Result<(), String>) {
    let mut got = Vec::new();
    let mut buffer = vec![0; 50_000];
    loop {
        match link.reader.read(&mut buffer) {
            Ok(0) => return (got, Ok(())),
            Ok(n) => got.extend_from_slice(&buffer[..n]),
            Err(error) => return (got, Err(error.to_string())),
        }
    }
}

/// Goal: what a peer must not send ends both halves with a clear error, and tells the peer by the right
/// alert.
/// Method: one misdeed each after some data that must arrive; our writer is tried, then dropped.
#[test]
fn misdeeds_end_the_connection() {
    type Misdeed = fn(&mut Rogue);
    let cases: [(Misdeed, Fault); 13] = [
        (|peer| (0..40).for_each(|_| peer.send(Kind::Data, &[])), Fault::Flood),
        (
            |peer| {
                for _ in 0..40 {
                    peer.send(Kind::Handshake, &KEY_UPDATE_MESSAGE);
                    peer.next_tx();
                }
            },
            Fault::Flood,
        ),
        (|peer| peer.send(Kind::Handshake, &[4, 0, 0, 1, 0]), Fault::Unexpected),
        (|peer| peer.send(Kind::Handshake, &[24, 0, 0]), Fault::Unexpected),
        (|peer| peer.send(Kind::Handshake, &[24, 0, 0, 1, 7]), Fault::Unexpected),
        (|peer| peer.send(Kind::Alert, &[1]), Fault::Unexpected),
        (|peer| peer.send(Kind::Alert, &fatal_message(80)), Fault::Alert(80)),
        (|peer| peer.stream.write_all(&header(PLAIN_LEN_MAX + 18)).unwrap(), Fault::TooLong),
        (|peer| peer.stream.write_all(&header(16)).unwrap(), Fault::NoRecord),
        (|peer| peer.stream.write_all(&[20, 3, 3, 0, 1, 1]).unwrap(), Fault::NoRecord),
        (|peer| peer.stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap(), Fault::NoRecord),
        (|peer| peer.stream.write_all(&[&header(30)[..], &[5; 30]].concat()).unwrap(), Fault::Forged),
        // The key was to change after this message, and did not.
        (
            |peer| {
                peer.send(Kind::Handshake, &KEY_UPDATE_MESSAGE);
                peer.send(Kind::Data, &[1]);
            },
            Fault::Forged,
        ),
    ];
    for (misdeed, fault) in cases {
        let (mut link, mut peer) = with_rogue();
        peer.send(Kind::Data, b"before");
        let mut before = [0; 6];
        link.reader.read_exact(&mut before).unwrap();
        assert_eq!(&before, b"before");
        misdeed(&mut peer);
        assert_eq!(read_all(&mut link), (Vec::new(), Err(fault.to_string())));
        // It stays so, and the other half knows.
        assert_eq!(read_all(&mut link).1, Err(fault.to_string()));
        assert_eq!(link.writer.write(&[1]).unwrap_err().to_string(), fault.to_string());
        drop(link.writer);
        if let Some(alert) = fault.alert() {
            assert_eq!(peer.receive(), (Kind::Alert, fatal_message(alert).to_vec()));
        }
        assert_eq!(peer.stream.read(&mut [0]).unwrap(), 0, "nothing follows");
    }
}

/// Goal: up to the limit, records without payload are no fault, and what comes between them resets the count.
#[test]
fn some_idle_records_are_no_flood() {
    let (mut link, mut peer) = with_rogue();
    for _ in 0..5 {
        (0..31).for_each(|_| peer.send(Kind::Data, &[]));
        peer.send(Kind::Handshake, &KEY_UPDATE_MESSAGE);
        peer.next_tx();
        peer.send(Kind::Data, &[8; 10]);
    }
    peer.send(Kind::Alert, &CLOSE_MESSAGE);
    assert_eq!(read_all(&mut link), (vec![8; 50], Ok(())));
}

/// Goal: a peer that wants us to change our key gets what it wants, once, before the next data.
/// Method: three requests at once; then our records are opened as the RFC says.
#[test]
fn requested_key_update_is_answered() {
    let (mut link, mut peer) = with_rogue();
    for _ in 0..3 {
        peer.send(Kind::Handshake, &[24, 0, 0, 1, 1]);
        peer.next_tx();
    }
    peer.send(Kind::Data, &[1]);
    link.reader.read_exact(&mut [0]).unwrap();
    link.writer.write_all(b"data").unwrap();
    link.writer.flush().unwrap();
    assert_eq!(peer.receive(), (Kind::Handshake, KEY_UPDATE_MESSAGE.to_vec()));
    peer.opener = Opener::new(peer.keys.next_rx().unwrap());
    assert_eq!(peer.receive(), (Kind::Data, b"data".to_vec()));
    link.writer.write_all(b"more").unwrap();
    link.writer.flush().unwrap();
    assert_eq!(peer.receive(), (Kind::Data, b"more".to_vec()));
}

/// Goal: no key seals more records than it may.
/// Method: a cipher whose limit is 4 records; the records are counted as they come.
#[test]
fn worn_keys_are_changed() {
    let (mut link, mut peer) = with_rogue_by(&|| crypto_with(TLS13_CHACHA20_POLY1305_SHA256, 4));
    for i in 0..20 {
        link.writer.write_all(&[i]).unwrap();
    }
    link.writer.flush().unwrap();
    for i in 0..20 {
        if i > 0 && i % 3 == 0 {
            assert_eq!(peer.receive(), (Kind::Handshake, KEY_UPDATE_MESSAGE.to_vec()));
            peer.opener = Opener::new(peer.keys.next_rx().unwrap());
        }
        assert_eq!(peer.receive(), (Kind::Data, vec![i]));
    }
}

/// Goal: EOF is what `close_notify` says and nothing else; nothing behind it is read; the other direction
/// goes on.
/// Method: a socket that ends without it, between records and in each part of one; then data behind a
/// `close_notify`.
#[test]
fn only_close_notify_is_an_end() {
    for missing in [0, 1, 16, 20, 24] {
        let (mut link, mut peer) = with_rogue();
        let mut record = vec![0; HEADER_LEN + 3 + 17];
        peer.send(Kind::Data, b"whole");
        peer.sealer.seal(Kind::Data, b"cut", &mut record).unwrap();
        peer.stream.write_all(&record[..record.len() - missing]).unwrap();
        peer.stream.shutdown(Shutdown::Write).unwrap();
        let (got, end) = read_all(&mut link);
        assert_eq!(got, if missing == 0 { &b"wholecut"[..] } else { b"whole" });
        assert!(end.is_err());
    }
    let (mut link, mut peer) = with_rogue();
    peer.send(Kind::Data, b"all");
    peer.send(Kind::Alert, &CLOSE_MESSAGE);
    peer.send(Kind::Data, b"late");
    assert_eq!(read_all(&mut link), (b"all".to_vec(), Ok(())));
    assert_eq!(read_all(&mut link), (Vec::new(), Ok(())));
    link.writer.write_all(b"still here").unwrap();
    drop(link.writer);
    assert_eq!(peer.receive(), (Kind::Data, b"still here".to_vec()));
    assert_eq!(peer.receive(), (Kind::Alert, CLOSE_MESSAGE.to_vec()));
}

/// Goal: payload fits buffers of any size, and records of any size.
/// Method: seeded records into seeded reads, against what was sent.
#[test]
fn records_and_buffers_of_any_size() {
    let (mut link, mut peer) = with_rogue();
    let mut rng = fastrand::Rng::with_seed(4);
    let sizes: Vec<usize> =
        (0..300).map(|_| [rng.usize(1..40), rng.usize(1..=PLAIN_LEN_MAX)][rng.usize(0..2)]).collect();
    let mut data = vec![0; sizes.iter().sum()];
    rng.fill(&mut data);
    std::thread::scope(|scope| {
        let data = &data;
        scope.spawn(move || {
            let mut rest = &data[..];
            for size in sizes {
                peer.send(Kind::Data, &rest[..size]);
                rest = &rest[size..];
            }
            peer.send(Kind::Alert, &CLOSE_MESSAGE);
        });
        let mut got = Vec::new();
        loop {
            let mut buffer =
                vec![0; [rng.usize(1..40), rng.usize(1..100_000), 16_384, 16_385][rng.usize(0..4)]];
            match link.reader.read(&mut buffer).unwrap() {
                0 => break,
                n => got.extend_from_slice(&buffer[..n]),
            }
        }
        assert!(got == *data);
    });
}
