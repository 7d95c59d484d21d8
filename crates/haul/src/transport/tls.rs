//! TLS 1.3 over TCP, each end pinned to the other's raw public key (RFC 7250).
//!
//! In: a connected socket, our [`Identity`], the peer's [`Pin`] (it came through ssh), a deadline for the
//! handshake. Out: a [`Link`].
//!
//! Invariants: nothing but TLS 1.3 with exactly the pinned key on the other side becomes a link; the key
//! exchange is signed and the signature is checked. No resumption, no tickets, no early data, so nothing can be
//! replayed. A connection that ends without `close_notify` is an error, never EOF. Neither half holds
//! the connection's lock while it waits for the socket.
//!
//! A client learns only at its first read that the server refused its key: in TLS 1.3 its handshake is over
//! before the server has seen the key.
//!
//! Record layer: rustls' unbuffered API, for the buffered one reads the socket in steps of 4 KiB. It costs one
//! copy and one allocation per record more than needed in each direction; a record layer of our own would
//! replace [`Reader`] and [`Writer`] here, and nothing else.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption, UnbufferedClientConnection};
use rustls::crypto::{CryptoProvider, aws_lc_rs as provider};
use rustls::pki_types::ServerName;
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, UnbufferedConnectionCommon, UnbufferedStatus, WriteTraffic,
};
use rustls::{ClientConfig, ServerConfig};
use socket2::{SockRef, TcpKeepalive};

use super::{Link, TransportError};
use identity::PinVerifier;
pub use identity::{Identity, Pin};

mod identity;

/// The application protocol that both ends must name.
const ALPN: &[u8] = b"haul/1";
/// Most plaintext in one TLS record, bytes (RFC 8446), and what a record adds to it at most.
const RECORD_LEN: usize = 16 * 1024;
const RECORD_OVERHEAD: usize = 256 + 5;
/// Plaintext that is sealed before it goes to the socket in one write, bytes: large enough that a system call
/// costs little, small enough that it is still in the cache when the kernel copies it.
const WRITE_LEN: usize = 256 * 1024;
/// What one read of the socket takes at most, bytes.
const READ_LEN: usize = 256 * 1024;
/// Most bytes of a peer's handshake that are held, bytes. A hello is under 1 KiB and a flight under 2 KiB.
const HANDSHAKE_LEN_MAX: usize = 64 * 1024;
/// A peer that acknowledges nothing for so long is gone.
const USER_TIMEOUT: Duration = Duration::from_secs(30);
/// An idle connection is probed after this time, and again so often.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// Makes a link of a connection that we dialled.
///
/// `deadline` bounds the whole handshake, however slowly the peer sends.
///
/// # Errors
/// The peer does not hold the pinned key, does not speak TLS 1.3 and `haul/1`, is too slow, or is gone.
/// The stream is closed then.
pub fn client(
    stream: TcpStream,
    identity: &Identity,
    pin: &Pin,
    deadline: Duration,
) -> Result<Link, TransportError> {
    client_with(crypto(), stream, identity, pin, deadline)
}

/// Makes a link of a connection that we accepted; otherwise like [`client`].
///
/// # Errors
/// As [`client`]; from a listener they mean a stray connection, to be counted and forgotten.
pub fn server(
    stream: TcpStream,
    identity: &Identity,
    pin: &Pin,
    deadline: Duration,
) -> Result<Link, TransportError> {
    server_with(crypto(), stream, identity, pin, deadline)
}

fn client_with(
    crypto: CryptoProvider,
    stream: TcpStream,
    identity: &Identity,
    pin: &Pin,
    deadline: Duration,
) -> Result<Link, TransportError> {
    let crypto = Arc::new(crypto);
    let verifier = Arc::new(PinVerifier { pin: pin.clone(), crypto: crypto.clone() });
    let mut config = ClientConfig::builder_with_provider(crypto)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(refused)?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(identity.certified())));
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    config.enable_early_data = false;
    // A name is required and means nothing: the key is the name.
    config.enable_sni = false;
    let name = ServerName::try_from("haul").expect("a legal name");
    let conn = UnbufferedClientConnection::new(Arc::new(config), name).map_err(refused)?;
    handshake(conn, stream, deadline)
}

fn server_with(
    crypto: CryptoProvider,
    stream: TcpStream,
    identity: &Identity,
    pin: &Pin,
    deadline: Duration,
) -> Result<Link, TransportError> {
    let crypto = Arc::new(crypto);
    let verifier = Arc::new(PinVerifier { pin: pin.clone(), crypto: crypto.clone() });
    let mut config = ServerConfig::builder_with_provider(crypto)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(refused)?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(identity.certified())));
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    let conn = UnbufferedServerConnection::new(Arc::new(config)).map_err(refused)?;
    handshake(conn, stream, deadline)
}

/// What we offer: one cipher, the one that this CPU is fast at, and the other for peers that are not.
fn crypto() -> CryptoProvider {
    use provider::cipher_suite::{TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256};
    let mut suites = vec![TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256];
    if !cpu_has_aes() {
        suites.reverse();
    }
    CryptoProvider { cipher_suites: suites, ..provider::default_provider() }
}

fn cpu_has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return false;
}

fn refused(error: rustls::Error) -> TransportError {
    TransportError { what: "TLS handshake failed".into(), source: Some(invalid(error)) }
}

fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// The two roles of a connection, which rustls keeps apart as types.
trait Role: Send + 'static {
    type Data: Send;
    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;
    fn common(&mut self) -> &mut UnbufferedConnectionCommon<Self::Data>;
}

impl Role for UnbufferedClientConnection {
    type Data = rustls::client::ClientConnectionData;
    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }
    fn common(&mut self) -> &mut UnbufferedConnectionCommon<Self::Data> {
        self
    }
}

impl Role for UnbufferedServerConnection {
    type Data = rustls::server::ServerConnectionData;
    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }
    fn common(&mut self) -> &mut UnbufferedConnectionCommon<Self::Data> {
        self
    }
}

/// Runs the handshake to its end and splits the connection.
fn handshake<C: Role>(conn: C, stream: TcpStream, deadline: Duration) -> Result<Link, TransportError> {
    let failed = |source| TransportError { what: "TLS handshake failed".into(), source: Some(source) };
    let mut conn = conn;
    let (incoming, rest, at_end) = match shake(&mut conn, &stream, Instant::now() + deadline) {
        Ok(shaken) => shaken,
        Err(error) => {
            // Somebody else may hold a duplicate of the socket; the peer must see the end all the same.
            let _ = stream.shutdown(Shutdown::Both);
            return Err(failed(error));
        }
    };
    tune(&stream).map_err(failed)?;
    let stream = Arc::new(stream);
    let shared = Arc::new(Shared { conn: Mutex::new(conn), stream: stream.clone() });
    Ok(Link {
        socket: Some(stream.clone()),
        reader: Box::new(Reader { shared: shared.clone(), incoming, rest, rest_start: 0, at_end }),
        writer: Box::new(Writer { shared, out: Vec::new(), len: 0, plain: 0, broken: false }),
        closer: Arc::new(move || {
            let _ = stream.shutdown(Shutdown::Both);
        }),
    })
}

/// The handshake under an absolute deadline. What the peer sent beyond it comes back: ciphertext, the
/// plaintext of at most one record, and whether that was all.
fn shake<C: Role>(
    conn: &mut C,
    mut stream: &TcpStream,
    deadline: Instant,
) -> io::Result<(Incoming, Vec<u8>, bool)> {
    let mut rest = Vec::new();
    let mut at_end = false;
    let mut incoming = Incoming::new(HANDSHAKE_LEN_MAX);
    let mut out = Vec::new();
    let remaining = || {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::Error::from(io::ErrorKind::TimedOut)) } else { Ok(left) }
    };
    let send = |mut bytes: &[u8]| -> io::Result<()> {
        while !bytes.is_empty() {
            stream.set_write_timeout(Some(remaining()?))?;
            match (&mut &*stream).write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => bytes = &bytes[n..],
                Err(error) => retry(error)?,
            }
        }
        Ok(())
    };
    loop {
        let status = conn.process(incoming.filled());
        let discard = status.discard;
        let mut need_more = false;
        let mut done = false;
        match status.state {
            Ok(ConnectionState::EncodeTlsData(mut data)) => encode(|to| data.encode(to), &mut out)?,
            Ok(ConnectionState::TransmitTlsData(data)) => {
                send(&out)?;
                out.clear();
                data.done();
            }
            Ok(ConnectionState::BlockedHandshake) => need_more = true,
            Ok(ConnectionState::WriteTraffic(_)) => done = true,
            // The peer's first record came along with the end of its handshake.
            Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                while let Some(record) = traffic.next_record() {
                    rest.extend_from_slice(record.map_err(invalid)?.payload);
                }
                done = true;
            }
            Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => {
                at_end = true;
                done = true;
            }
            Ok(state) => return Err(io::Error::other(format!("unexpected TLS state {state:?}"))),
            Err(error) => {
                // The alert tells the peer why; that it arrives is not promised.
                let status = conn.process(&mut []);
                if let Ok(ConnectionState::EncodeTlsData(mut data)) = status.state
                    && encode(|to| data.encode(to), &mut out).is_ok()
                {
                    let _ = send(&out);
                }
                return Err(invalid(error));
            }
        }
        incoming.discard(discard);
        if done && !conn.common().is_handshaking() {
            stream.set_read_timeout(None)?;
            stream.set_write_timeout(None)?;
            return Ok((incoming.grow(READ_LEN), rest, at_end));
        }
        if at_end {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if need_more || done {
            stream.set_read_timeout(Some(remaining()?))?;
            match incoming.read_from(&mut stream) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) => retry(error)?,
            }
        }
    }
}

/// An interrupted call is made again; a timed-out one too, until the deadline itself says no.
fn retry(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Ok(()),
        _ => Err(error),
    }
}

/// Encodes a handshake message at the end of `out`.
fn encode(
    mut encode: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>,
    out: &mut Vec<u8>,
) -> io::Result<()> {
    let len = out.len();
    match encode(&mut []) {
        Ok(_) => Ok(()),
        Err(EncodeError::InsufficientSize(need)) => {
            out.resize(len + need.required_size, 0);
            let n = encode(&mut out[len..]).map_err(io::Error::other)?;
            out.truncate(len + n);
            Ok(())
        }
        Err(error) => Err(io::Error::other(error)),
    }
}

fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE))?;
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))
}

/// What both halves share. The lock is held for sealing and opening only.
struct Shared<C> {
    conn: Mutex<C>,
    stream: Arc<TcpStream>,
}

fn poisoned<T>(_: T) -> io::Error {
    io::Error::other("the TLS connection failed in its other half")
}

/// Ciphertext from the socket: `bytes[start..end]` is not opened yet.
struct Incoming {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Incoming {
    fn new(len: usize) -> Incoming {
        Incoming { bytes: vec![0; len], start: 0, end: 0 }
    }
    fn filled(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.end]
    }
    fn discard(&mut self, len: usize) {
        self.start += len;
    }
    /// The same bytes in a buffer of `len`, which is no shorter.
    fn grow(mut self, len: usize) -> Incoming {
        self.bytes.resize(len, 0);
        self
    }
    /// Is the first record there whole? Saves taking the lock to find out that it is not.
    fn has_record(&self) -> bool {
        match self.bytes[self.start..self.end] {
            [_, _, _, high, low, ..] => {
                self.end - self.start >= 5 + usize::from(u16::from_be_bytes([high, low]))
            }
            _ => false,
        }
    }
    /// One read of the socket into all the room there is. A record that is there in part (under 17 KiB) moves
    /// to the front first, so that reads stay large.
    fn read_from(&mut self, mut from: impl Read) -> io::Result<usize> {
        self.bytes.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        if self.end == self.bytes.len() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the peer's TLS message is too long"));
        }
        let n = from.read(&mut self.bytes[self.end..])?;
        self.end += n;
        Ok(n)
    }
}

struct Reader<C> {
    shared: Arc<Shared<C>>,
    incoming: Incoming,
    /// Plaintext of a record that did not fit where it was wanted.
    rest: Vec<u8>,
    rest_start: usize,
    /// `close_notify` came.
    at_end: bool,
}

impl<C: Role> Reader<C> {
    /// Opens whole records into `out` until it is full. 0: there was no payload in what is here.
    fn open(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let mut conn = self.shared.conn.lock().map_err(poisoned)?;
        let mut len = 0;
        while len < out.len() && !self.at_end && self.incoming.has_record() {
            let status = conn.process(self.incoming.filled());
            let mut discard = status.discard;
            match status.state.map_err(invalid)? {
                ConnectionState::ReadTraffic(mut traffic) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record.map_err(invalid)?;
                        discard += record.discard;
                        let n = record.payload.len().min(out.len() - len);
                        out[len..len + n].copy_from_slice(&record.payload[..n]);
                        len += n;
                        self.rest.extend_from_slice(&record.payload[n..]);
                    }
                }
                ConnectionState::PeerClosed | ConnectionState::Closed => self.at_end = true,
                // A record without payload: a key update. Its answer waits in rustls for the next write. That
                // nothing was consumed means a message in parts, of which TLS 1.3 has none that we allow.
                ConnectionState::WriteTraffic(_) if discard > 0 => {}
                state => return Err(io::Error::other(format!("unexpected TLS state {state:?}"))),
            }
            self.incoming.discard(discard);
        }
        Ok(len)
    }
}

impl<C: Role> Read for Reader<C> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.rest_start < self.rest.len() {
                let n = (&self.rest[self.rest_start..]).read(out)?;
                self.rest_start += n;
                return Ok(n);
            }
            self.rest.clear();
            self.rest_start = 0;
            if out.is_empty() {
                return Ok(0);
            }
            if self.incoming.has_record() {
                let n = self.open(out)?;
                if n > 0 {
                    return Ok(n);
                }
            }
            if self.at_end {
                return Ok(0);
            }
            if !self.incoming.has_record() && self.incoming.read_from(&*self.shared.stream)? == 0 {
                // The socket ended without close_notify: cut off by somebody, or the peer died.
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

/// Seals into `out` and writes it when [`WRITE_LEN`] bytes of plaintext are in it, or on flush.
struct Writer<C: Role> {
    shared: Arc<Shared<C>>,
    out: Vec<u8>,
    /// Sealed bytes in `out`, and the plaintext bytes that they hold.
    len: usize,
    plain: usize,
    /// A write failed: what follows would not fit what came before.
    broken: bool,
}

impl<C: Role> Writer<C> {
    /// Puts what `seal` makes (and what rustls has to say before it) behind what is in `out`.
    fn seal(
        &mut self,
        mut seal: impl FnMut(&mut WriteTraffic<'_, C::Data>, &mut [u8]) -> Result<usize, EncryptError>,
    ) -> io::Result<()> {
        let mut conn = self.shared.conn.lock().map_err(poisoned)?;
        loop {
            let status = conn.process(&mut []);
            match status.state.map_err(invalid)? {
                ConnectionState::WriteTraffic(mut traffic) => loop {
                    match seal(&mut traffic, &mut self.out[self.len..]) {
                        Ok(n) => {
                            self.len += n;
                            return Ok(());
                        }
                        Err(EncryptError::InsufficientSize(need)) => {
                            self.out.resize(self.len + need.required_size, 0);
                        }
                        Err(error) => return Err(io::Error::other(error)),
                    }
                },
                ConnectionState::EncodeTlsData(mut message) => {
                    self.out.truncate(self.len);
                    encode(|to| message.encode(to), &mut self.out)?;
                    self.len = self.out.len();
                }
                // It goes out with what is sealed after it.
                ConnectionState::TransmitTlsData(message) => message.done(),
                ConnectionState::PeerClosed => {}
                ConnectionState::Closed => return Err(io::ErrorKind::BrokenPipe.into()),
                state => return Err(io::Error::other(format!("unexpected TLS state {state:?}"))),
            }
        }
    }

    fn send(&mut self) -> io::Result<()> {
        let result = (&*self.shared.stream).write_all(&self.out[..self.len]);
        self.broken |= result.is_err();
        self.len = 0;
        self.plain = 0;
        result
    }

    fn check(&self) -> io::Result<()> {
        if self.broken { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    }
}

impl<C: Role> Write for Writer<C> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.check()?;
        if data.is_empty() {
            return Ok(0);
        }
        if self.out.is_empty() {
            self.out = vec![0; WRITE_LEN + WRITE_LEN.div_ceil(RECORD_LEN) * RECORD_OVERHEAD];
        }
        let data = &data[..data.len().min(WRITE_LEN - self.plain)];
        if let Err(error) = self.seal(|traffic, out| traffic.encrypt(data, out)) {
            self.broken = true;
            return Err(error);
        }
        self.plain += data.len();
        if self.plain == WRITE_LEN {
            self.send()?;
        }
        Ok(data.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        self.check()?;
        self.send()
    }
}

impl<C: Role> Drop for Writer<C> {
    /// Says goodbye, so that the peer knows that this was all. Nobody is left to hear of an error here: the
    /// peer then sees a truncation, which is the truth.
    fn drop(&mut self) {
        if self.broken {
            return;
        }
        if self.seal(|traffic, out| traffic.queue_close_notify(out)).is_err() {
            return;
        }
        let _ = self.send();
        let _ = self.shared.stream.shutdown(Shutdown::Write);
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use rustls::{SupportedCipherSuite, Tls13CipherSuite};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn tcp_pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let dialled = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (dialled, listener.accept().unwrap().0)
    }

    fn pin(identity: &Identity) -> Pin {
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
        fn resolve(
            &self,
            _: &[&[u8]],
            _: &[rustls::SignatureScheme],
        ) -> Option<Arc<rustls::sign::CertifiedKey>> {
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
        let verifier = Arc::new(PinVerifier { pin: server, crypto: crypto.clone() });
        let config = ClientConfig::builder_with_provider(crypto)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let mut config = match identity {
            Some(identity) => config.with_client_cert_resolver(Arc::new(
                AlwaysResolvesClientRawPublicKeys::new(identity.certified()),
            )),
            None => config.with_client_cert_resolver(Arc::new(Keyless)),
        };
        config.alpn_protocols = vec![alpn.to_vec()];
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
    /// Method: a client that sends the start of a record byte by byte, for far longer than the deadline, until it is
    /// cut off.
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

    /// Goal: data crosses key updates in both directions, thousands of them.
    /// Method: a cipher whose limit is 20 records; 16 MB each way, at once, against plain expectations.
    #[test]
    fn data_crosses_key_updates() {
        let rustls::SupportedCipherSuite::Tls13(suite) = provider::cipher_suite::TLS13_AES_128_GCM_SHA256;
        let common = rustls::crypto::CipherSuiteCommon {
            suite: suite.common.suite,
            hash_provider: suite.common.hash_provider,
            confidentiality_limit: 20,
        };
        let short: &'static Tls13CipherSuite = Box::leak(Box::new(Tls13CipherSuite {
            common,
            hkdf_provider: suite.hkdf_provider,
            aead_alg: suite.aead_alg,
            quic: None,
        }));
        let crypto = move || CryptoProvider {
            cipher_suites: vec![SupportedCipherSuite::Tls13(short)],
            ..provider::default_provider()
        };
        let [a, b] = [(); 2].map(|()| Identity::generate().unwrap());
        let (a_pin, b_pin) = (pin(&a), pin(&b));
        let (dialled, accepted) = tcp_pair();
        let far = std::thread::spawn(move || server_with(crypto(), accepted, &b, &a_pin, LONG).unwrap());
        let near = client_with(crypto(), dialled, &a, &b_pin, LONG).unwrap();
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
                    writer.write_all(data).unwrap();
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
}
