//! The handshake: who becomes a link and who does not.

use std::io::{Read, Write};
use std::net::TcpListener;

use rustls::crypto::CipherSuiteCommon;
use rustls::{SupportedCipherSuite, Tls13CipherSuite};

use super::*;

pub(super) const LONG: Duration = Duration::from_secs(60);

pub(super) fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let dialled = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (dialled, listener.accept().unwrap().0)
}

pub(super) fn pin(identity: &Identity) -> Pin {
    Pin(identity.public())
}

/// Runs our server against `client` on the other end of the connection.
fn serve<T: Send>(
    ours: &Identity,
    theirs: &Pin,
    client: impl FnOnce(TcpStream) -> T + Send,
) -> (Result<Link, TransportError>, T) {
    let (dialled, accepted) = tcp_pair();
    std::thread::scope(|scope| {
        let peer = scope.spawn(move || client(dialled));
        let link = server(accepted, ours, theirs, LONG);
        (link, peer.join().unwrap())
    })
}

fn cause(result: Result<Link, TransportError>) -> String {
    match result {
        Ok(_) => "a link".into(),
        Err(error) => error.source.map_or(String::new(), |error| error.to_string()),
    }
}

/// Goal: only the pinned key becomes a link, in both directions.
/// Method: a third key in place of the client's, then of the server's. The client with the wrong key finds
/// its link dead at the first read.
#[test]
fn another_key_is_refused() {
    let [a, b, c] = [(); 3].map(|()| Identity::generate().unwrap());
    let (link, client_link) = serve(&a, &pin(&b), |stream| client(stream, &c, &pin(&a), LONG));
    assert!(cause(link).contains("invalid peer certificate"));
    if let Ok(mut link) = client_link {
        assert!(link.reader.read(&mut [0]).is_err());
    }
    let (link, client_link) = serve(&a, &pin(&b), |stream| client(stream, &b, &pin(&c), LONG));
    assert!(cause(client_link).contains("invalid peer certificate"));
    assert!(link.is_err());
}

/// Goal: of peers that hold one key of several it is known which, and one of another key is none of them.
#[test]
fn it_is_known_whose_key_was_shown() {
    let [a, b, c, d] = [(); 4].map(|()| Identity::generate().unwrap());
    let pins = [pin(&b), pin(&c)];
    let shown = |theirs: &Identity| {
        let (dialled, accepted) = tcp_pair();
        std::thread::scope(|scope| {
            scope.spawn(|| client(dialled, theirs, &pin(&a), LONG));
            server_of(accepted, &a, &pins, LONG).map(|(_, shown)| shown).ok()
        })
    };
    assert_eq!([&b, &c, &d].map(shown), [Some(0), Some(1), None]);
}

/// Goal: knowing the pinned key is not enough: the handshake must be signed with it.
/// Method: a client that shows the right public key and signs with another.
#[test]
fn stolen_public_key_is_refused() {
    let [a, b, c] = [(); 3].map(|()| Identity::generate().unwrap());
    let thief = Identity { key: c.key, public: b.public.clone() };
    let (link, _) = serve(&a, &pin(&b), |stream| client(stream, &thief, &pin(&a), LONG));
    assert!(cause(link).contains("BadSignature"));
    let owner = Identity { key: a.key.clone(), public: a.public.clone() };
    let (link, client_link) =
        serve(&thief, &pin(&a), |stream| client(stream, &owner, &Pin(b.public()), LONG));
    assert!(cause(client_link).contains("BadSignature"));
    assert!(link.is_err());
}

/// Offers to show a raw key and then has none.
#[derive(Debug)]
struct Keyless;

impl rustls::client::ResolvesClientCert for Keyless {
    fn resolve(&self, _: &[&[u8]], _: &[rustls::SignatureScheme]) -> Option<Arc<rustls::sign::CertifiedKey>> {
        None
    }
    fn only_raw_public_keys(&self) -> bool {
        true
    }
    fn has_certs(&self) -> bool {
        true
    }
}

fn bare_client(
    stream: TcpStream,
    server: Pin,
    identity: Option<&Identity>,
    alpn: &[u8],
) -> Result<Link, TransportError> {
    let crypto = Arc::new(crypto());
    let verifier = Arc::new(PinVerifier::new(&[server], crypto.clone()));
    let config = ClientConfig::builder_with_provider(crypto)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match identity {
        Some(identity) => config.with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(
            identity.certified(),
        ))),
        None => config.with_client_cert_resolver(Arc::new(Keyless)),
    };
    config.alpn_protocols = vec![alpn.to_vec()];
    config.enable_secret_extraction = true;
    let name = ServerName::try_from("haul").unwrap();
    handshake(UnbufferedClientConnection::new(Arc::new(config), name).unwrap(), stream, LONG)
}

/// Goal: a client without a key, or of another protocol, is refused.
#[test]
fn no_client_key_and_other_protocols_are_refused() {
    let [a, b] = [(); 2].map(|()| Identity::generate().unwrap());
    let (link, _) = serve(&a, &pin(&b), |stream| bare_client(stream, pin(&a), None, ALPN));
    let why = cause(link);
    assert!(why.contains("no certificates"), "{why}");
    let (link, _) = serve(&a, &pin(&b), |stream| bare_client(stream, pin(&a), Some(&b), b"http/1.1"));
    assert!(link.is_err());
    let (link, other) = serve(&a, &pin(&b), |stream| bare_client(stream, pin(&a), Some(&b), ALPN));
    assert!(link.is_ok() && other.is_ok(), "the bare client itself is at fault");
}

/// Goal: TLS 1.2 is refused, and junk too, without a panic.
/// Method: the hello of a TLS 1.2 client by hand; seeded junk.
#[test]
fn tls12_and_junk_are_refused() {
    let [a, b] = [(); 2].map(|()| Identity::generate().unwrap());
    let mut hello = vec![0x16, 3, 1, 0, 55, 1, 0, 0, 51, 3, 3];
    hello.extend([0x11; 32]);
    // No session, one suite (ECDHE-RSA-AES128-GCM-SHA256), no compression, signature_algorithms.
    hello.extend([0, 0, 2, 0xc0, 0x2f, 1, 0, 0, 8, 0, 13, 0, 4, 0, 2, 4, 1]);
    assert_eq!(hello.len(), 60);
    let (link, answer) = serve(&a, &pin(&b), |mut stream| {
        stream.write_all(&hello).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    });
    let why = cause(link);
    assert!(why.contains("Tls12NotOffered") || why.contains("SupportedVersions"), "{why}");
    assert_eq!(answer.first(), Some(&0x15), "an alert says why");
    for seed in 0..50 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut junk = vec![0; rng.usize(1..3000)];
        rng.fill(&mut junk);
        let (link, ()) = serve(&a, &pin(&b), |mut stream| drop(stream.write_all(&junk)));
        assert!(link.is_err());
    }
}

/// Goal: the deadline is one for the whole handshake: a peer that sends a byte now and then does not move it.
/// Method: a client that sends the start of a record byte by byte, for far longer than the deadline, until it
/// is cut off.
#[test]
fn trickling_peer_meets_the_deadline() {
    let [a, b] = [(); 2].map(|()| Identity::generate().unwrap());
    let (mut dialled, accepted) = tcp_pair();
    let trickle = std::thread::spawn(move || {
        dialled.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let record = [&[0x16, 3, 1, 0x40, 0, 1, 0, 0x3f, 0xf0][..], &[0; 500]].concat();
        for byte in record {
            if dialled.write_all(&[byte]).is_err() || matches!(dialled.read(&mut [0]), Ok(0)) {
                return true;
            }
        }
        false
    });
    let link = server(accepted, &a, &pin(&b), Duration::from_millis(300));
    assert!(link.is_err());
    assert!(trickle.join().unwrap(), "the server cut the connection");
}

/// Goal: the cipher that this CPU is fast at is what two equal ends use, and the CPU is asked.
#[test]
fn cipher_follows_the_cpu() {
    let first = crypto().cipher_suites[0];
    assert_eq!(first == provider::cipher_suite::TLS13_AES_128_GCM_SHA256, cpu_has_aes());
    assert_eq!(crypto().cipher_suites.len(), 2);
}

/// What both ends offer, with a cipher that must change its keys after `limit` records.
pub(super) fn crypto_with(suite: SupportedCipherSuite, limit: u64) -> CryptoProvider {
    let SupportedCipherSuite::Tls13(suite) = suite else { panic!("{suite:?} is of TLS 1.2") };
    let common = CipherSuiteCommon {
        suite: suite.common.suite,
        hash_provider: suite.common.hash_provider,
        confidentiality_limit: limit,
    };
    let short: &'static Tls13CipherSuite = Box::leak(Box::new(Tls13CipherSuite {
        common,
        hkdf_provider: suite.hkdf_provider,
        aead_alg: suite.aead_alg,
        quic: None,
    }));
    CryptoProvider { cipher_suites: vec![SupportedCipherSuite::Tls13(short)], ..provider::default_provider() }
}

/// Goal: data crosses key updates in both directions, hundreds of them.
/// Method: a cipher whose limit is 20 records; 16 MB each way, at once, in records of 1000 bytes.
#[test]
fn data_crosses_key_updates() {
    let crypto = || crypto_with(provider::cipher_suite::TLS13_AES_128_GCM_SHA256, 20);
    let [a, b] = [(); 2].map(|()| Identity::generate().unwrap());
    let (a_pin, b_pin) = (pin(&a), pin(&b));
    let (dialled, accepted) = tcp_pair();
    let far = std::thread::spawn(move || {
        let conn = server_connection(server_config(crypto(), &b, &[a_pin]).unwrap().0).unwrap();
        handshake(conn, accepted, LONG).unwrap()
    });
    let conn = client_connection(client_config(crypto(), &a, &b_pin).unwrap()).unwrap();
    let near = handshake(conn, dialled, LONG).unwrap();
    let far = far.join().unwrap();
    let data: Vec<u8> = {
        let mut data = vec![0; 16_000_000];
        fastrand::Rng::with_seed(9).fill(&mut data);
        data
    };
    std::thread::scope(|scope| {
        for mut writer in [near.writer, far.writer] {
            let data = &data;
            scope.spawn(move || {
                for piece in data.chunks(1000) {
                    writer.write_all(piece).unwrap();
                }
                writer.flush().unwrap();
            });
        }
        for mut reader in [near.reader, far.reader] {
            let data = &data;
            scope.spawn(move || {
                let mut got = Vec::new();
                reader.read_to_end(&mut got).unwrap();
                assert!(got == *data);
            });
        }
    });
}

/// Goal: what the client sends right behind its handshake is not lost with rustls, key updates and the end
/// included.
/// Method: a relay holds back all that the client sends after its hello and delivers it in one piece.
#[test]
fn records_may_come_with_the_handshake() {
    let crypto = || crypto_with(provider::cipher_suite::TLS13_AES_128_GCM_SHA256, 3);
    let [a, b] = [(); 2].map(|()| Identity::generate().unwrap());
    let (a_pin, b_pin) = (pin(&a), pin(&b));
    let (near, mut relay_near) = tcp_pair();
    let (mut relay_far, far) = tcp_pair();
    let (mut back_from, mut back_to) = (relay_far.try_clone().unwrap(), relay_near.try_clone().unwrap());
    std::thread::spawn(move || std::io::copy(&mut back_from, &mut back_to));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let conn = client_connection(client_config(crypto(), &a, &b_pin).unwrap()).unwrap();
            let mut link = handshake(conn, near, LONG).unwrap();
            for i in 0..10 {
                link.writer.write_all(&[i; 100]).unwrap();
            }
            drop(link.writer);
            // The socket stays open until the other end has all.
            let _ = link.reader.read(&mut [0]);
        });
        scope.spawn(move || {
            let mut hello = vec![0; 5];
            relay_near.read_exact(&mut hello).unwrap();
            hello.resize(5 + usize::from(u16::from_be_bytes([hello[3], hello[4]])), 0);
            relay_near.read_exact(&mut hello[5..]).unwrap();
            relay_far.write_all(&hello).unwrap();
            let mut held = Vec::new();
            relay_near.read_to_end(&mut held).unwrap();
            relay_far.write_all(&held).unwrap();
        });
        let conn = server_connection(server_config(crypto(), &b, &[a_pin]).unwrap().0).unwrap();
        let mut link = handshake(conn, far, LONG).unwrap();
        let mut got = Vec::new();
        link.reader.read_to_end(&mut got).unwrap();
        assert_eq!(got, (0..10).flat_map(|i| [i; 100]).collect::<Vec<u8>>());
        (link.closer)();
    });
}
