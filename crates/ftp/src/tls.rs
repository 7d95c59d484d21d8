//! TLS of a session: the control connection and each data connection (RFC 4217).
//!
//! In: whom to trust, a connection. Out: a connection that is protected, with a server that showed a
//! certificate for the name that the user typed.
//! Invariants: nothing is accepted without its certificate's check, and what should be protected never falls
//! back to plain; a data connection resumes the session of its own control connection: that shows both ends
//! that it is the one that was asked for. Who can redirect connections could lead it to another session.
//! Source of the authorities: the system's, as OpenSSL has them.

use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use haul_gsi::Wrapped;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg};
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, StreamOwned, version};

use crate::Error;
use crate::identity::{Identity, words_of};
use crate::server::{PORT_TLS, Server};
use haul_base::stop::Stop;

/// Sessions that one control connection keeps for its data connections: of one server.
const SESSIONS_MAX: usize = 8;
/// Reads of a socket for one read of what is protected on it that does not wait: records that bring nothing
/// do not hold up others.
const READS_MAX: u32 = 64;

/// Whom this host trusts to say who a server is.
#[derive(Clone, Debug)]
pub struct Trust {
    config: Arc<ClientConfig>,
    /// The same by TLS 1.2 alone.
    older: Arc<ClientConfig>,
    /// Which of the two, for all sessions that have this.
    uses: Arc<AtomicU8>,
    /// How often the server hung up on the older one.
    hung_up: Arc<AtomicU8>,
    tied: bool,
}

/// So often a server may hang up on TLS 1.2 before it counts as one that does not have it.
const HANG_UPS_MAX: u8 = 3;

/// Whatever both ends have; the older one; and never that one, for the server does not have it.
const ANY: u8 = 0;
const OLDER: u8 = 1;
const NOT_OLDER: u8 = 2;

impl Trust {
    /// The authorities of the system; where `SSL_CERT_FILE` or `SSL_CERT_DIR` is set, those of the file and
    /// the directories that they name, and no others. A server's own certificate among them counts as well.
    ///
    /// # Errors
    /// There are none, so that no server could be trusted; in words with what to do.
    pub fn system() -> Result<Trust, String> {
        // Where the file is missing the system's own would count, and nobody would know why.
        if let Some(file) = std::env::var_os("SSL_CERT_FILE").filter(|file| !file.is_empty())
            && let Err(error) = std::fs::File::open(&file)
        {
            let file = std::path::Path::new(&file).display();
            let why = haul_base::errno::text(&error);
            return Err(format!("SSL_CERT_FILE names {file}, which cannot be read: {why}"));
        }
        let found = rustls_native_certs::load_native_certs();
        let why = found.errors.first().map_or(String::new(), |error| format!(" ({error})"));
        Trust::in_these(found.certs).map_err(|error| {
            format!("{error}{why}; install ca-certificates, or name a file of certificates in SSL_CERT_FILE")
        })
    }

    /// The authorities of these certificates. What is no certificate is passed over.
    ///
    /// # Errors
    /// None is one.
    pub fn in_these(
        certificates: impl IntoIterator<Item = CertificateDer<'static>>,
    ) -> Result<Trust, String> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let identity = Arc::new(Identity::new(certificates.into_iter().collect(), provider.clone())?);
        let builder = || ClientConfig::builder_with_provider(provider.clone());
        let any = builder().with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
        let older =
            builder().with_protocol_versions(&[&version::TLS12]).map_err(|error| error.to_string())?;
        let config = any.dangerous().with_custom_certificate_verifier(identity.clone()).with_no_client_auth();
        let older = older.dangerous().with_custom_certificate_verifier(identity).with_no_client_auth();
        Ok(Trust {
            config: Arc::new(config),
            older: Arc::new(older),
            uses: Arc::new(AtomicU8::new(ANY)),
            hung_up: Arc::default(),
            tied: true,
        })
    }

    /// A data connection need not go on with the session of its control connection.
    #[must_use]
    pub fn untied(self) -> Trust {
        Trust { tied: false, ..self }
    }

    /// It must.
    pub fn is_tied(&self) -> bool {
        self.tied
    }
}

/// TLS of one session with one server.
pub(crate) struct Tls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    /// What shows a person which certificate the server has.
    shows: String,
    uses: Arc<AtomicU8>,
    hung_up: Arc<AtomicU8>,
    is_older: bool,
    tied: bool,
}

impl Tls {
    /// For the server as the user calls it.
    pub(crate) fn new(trust: &Trust, server: &Server) -> Result<Tls, Error> {
        let (host, port) = (&*server.host, server.port);
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|_| Error::Untrusted { to: host.into(), why: "its name is none".into() })?;
        let to = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let how = if port == PORT_TLS { "" } else { " -starttls ftp" };
        let shows = format!(
            "openssl s_client -connect {to}:{port}{how} </dev/null | openssl x509 -fingerprint -sha256"
        );
        let is_older = trust.uses.load(Ordering::Relaxed) == OLDER;
        let mut config = ClientConfig::clone(if is_older { &trust.older } else { &trust.config });
        // Of its own: servers that serve each session by a process of its own know only its sessions.
        config.resumption = Resumption::in_memory_sessions(SESSIONS_MAX);
        let (uses, hung_up) = (trust.uses.clone(), trust.hung_up.clone());
        Ok(Tls { config: Arc::new(config), name, shows, uses, hung_up, is_older, tied: trust.tied })
    }

    /// The server refuses a data connection. It may be that it wants each to be known again by the session of
    /// TLS: that of TLS 1.3 is good for as many connections as the server gave tickets, which come late where
    /// only this end sends; that of TLS 1.2 for all. The next session with this server has that one.
    pub(crate) fn is_not_known_again(&self) {
        let _ = self.uses.compare_exchange(ANY, OLDER, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// It begins with the control connection. Where the server does not have the older one, the next session
    /// has whatever it has; so it does where the server says nothing of it, but hangs up. One that does so
    /// again and again does not have it.
    pub(crate) fn begin(&self, socket: Bounded, patience: Duration) -> Result<Wire, Error> {
        let begun = self.protect(socket, patience);
        match &begun {
            Err(Error::Untrusted { .. }) if self.is_older => {
                self.uses.store(NOT_OLDER, Ordering::Relaxed);
                Err(Error::Closed { doing: "beginning TLS 1.2" })
            }
            Err(_) if self.is_older => {
                let next = match self.hung_up.fetch_add(1, Ordering::Relaxed) + 1 >= HANG_UPS_MAX {
                    true => NOT_OLDER,
                    false => ANY,
                };
                let _ = self.uses.compare_exchange(OLDER, next, Ordering::Relaxed, Ordering::Relaxed);
                begun
            }
            _ => begun,
        }
    }

    /// The same of a data connection, which is of this session.
    pub(crate) fn protect_data(&self, socket: Bounded, patience: Duration) -> Result<Wire, Error> {
        let wire = self.protect(socket, patience)?;
        let Wire::Protected(tls) = &wire else { return Ok(wire) };
        if !self.tied || tls.conn.handshake_kind() == Some(HandshakeKind::Resumed) {
            return Ok(wire);
        }
        // It may be that no ticket was left.
        self.is_not_known_again();
        Err(Error::Untied)
    }

    /// Makes the connection protected, within `patience`.
    pub(crate) fn protect(&self, mut socket: Bounded, patience: Duration) -> Result<Wire, Error> {
        let to = || self.name.to_str().into_owned();
        let failed = |cause| told((to(), &self.shows), patience, cause);
        let broken = |error: rustls::Error| failed(io::Error::new(io::ErrorKind::InvalidData, error));
        let connection = ClientConnection::new(self.config.clone(), self.name.clone()).map_err(broken)?;
        socket.until = Instant::now() + patience;
        let mut tls = StreamOwned::new(connection, socket);
        while tls.conn.is_handshaking() {
            match tls.conn.complete_io(&mut tls.sock) {
                Ok(_) => {}
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(failed(cause)),
            }
        }
        Ok(Wire::Protected(Box::new(tls)))
    }
}

/// What went wrong, in words that say what to do.
fn told((to, shows): (String, &str), patience: Duration, cause: io::Error) -> Error {
    let inner = cause.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let Some(error) = inner else {
        return match cause.kind() {
            io::ErrorKind::UnexpectedEof => Error::Closed { doing: "beginning TLS" },
            _ => Error::lost("beginning TLS", patience, cause),
        };
    };
    let why = words_of(error, shows);
    Error::Untrusted { to, why }
}

/// A connection, protected or not. Its reads and writes end at [`Wire::ends_at`], however slowly the other
/// end feeds them: under TLS one of them is many of the socket's.
pub(crate) enum Wire {
    Plain(Bounded),
    Protected(Box<StreamOwned<ClientConnection, Bounded>>),
    /// Of the grid: whose both ends are was shown, and perhaps all is protected.
    Grid(Box<Wrapped<Bounded>>),
}

impl Wire {
    /// As it is.
    pub(crate) fn plain(stream: impl Into<Socket>, stop: Stop) -> Wire {
        Wire::Plain(Bounded::new(stream, stop))
    }

    fn bounded(&mut self) -> &mut Bounded {
        match self {
            Wire::Plain(bounded) => bounded,
            Wire::Protected(tls) => &mut tls.sock,
            Wire::Grid(wrapped) => wrapped.stream_mut(),
        }
    }

    /// Until when what is read or written next must be there.
    pub(crate) fn ends_at(&mut self, until: Instant) {
        self.bounded().until = until;
    }

    /// Reads what is there now: `None`, if nothing is.
    pub(crate) fn read_now(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        self.bounded().set_waits(false);
        let read = loop {
            match self.read(buffer) {
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => break Ok(None),
                read => break read.map(Some),
            }
        };
        self.bounded().set_waits(true);
        read
    }

    /// Writes what is taken now of these, one behind the other: how much that is. Under TLS what was taken
    /// may still be here: see [`Wire::flush_now`].
    pub(crate) fn write_now(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.bounded().set_waits(false);
        let written = loop {
            match self.write_vectored(parts) {
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => break Ok(0),
                written => break written,
            }
        };
        self.bounded().set_waits(true);
        written
    }

    /// Whether all that was written is the system's to send.
    pub(crate) fn flush_now(&mut self) -> io::Result<bool> {
        self.bounded().set_waits(false);
        let flushed = loop {
            match self.flush() {
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => break Ok(false),
                flushed => break flushed.map(|()| true),
            }
        };
        self.bounded().set_waits(true);
        flushed
    }

    /// What is written goes in records of TLS.
    pub(crate) fn seals(&self) -> bool {
        match self {
            Wire::Plain(_) => false,
            Wire::Protected(_) => true,
            Wire::Grid(wrapped) => !matches!(**wrapped, Wrapped::Clear(_)),
        }
    }

    /// As the system has it: what can be waited for.
    pub(crate) fn socket(&self) -> &Socket {
        match self {
            Wire::Plain(bounded) => &bounded.stream,
            Wire::Protected(tls) => &tls.sock.stream,
            Wire::Grid(wrapped) => &wrapped.stream().stream,
        }
    }

    /// The other end's address, where it has one.
    pub(crate) fn peer(&self) -> io::Result<SocketAddr> {
        match self.socket() {
            Socket::Tcp(stream) => stream.peer_addr(),
            Socket::Local(_) => Err(io::ErrorKind::AddrNotAvailable.into()),
        }
    }

    /// This end's, as the other one sees it if nobody between the two changes that.
    pub(crate) fn local(&self) -> io::Result<SocketAddr> {
        match self.socket() {
            Socket::Tcp(stream) => stream.local_addr(),
            Socket::Local(_) => Err(io::ErrorKind::AddrNotAvailable.into()),
        }
    }

    /// Nothing more is written: the other end sees that this was all, and under TLS that nobody cut it off.
    pub(crate) fn end_writing(&mut self) -> io::Result<()> {
        match self {
            Wire::Plain(_) => {}
            Wire::Protected(tls) => {
                tls.conn.send_close_notify();
                tls.flush()?;
            }
            Wire::Grid(wrapped) => wrapped.end()?,
        }
        match self.socket() {
            Socket::Tcp(stream) => stream.shutdown(std::net::Shutdown::Write),
            Socket::Local(stream) => stream.shutdown(std::net::Shutdown::Write),
        }
    }

    /// A data connection that shows whose it is.
    pub(crate) fn is_of_grid(&self) -> bool {
        matches!(self, Wire::Grid(_))
    }

    /// Hears what the other end still says where nothing more is written: under TLS 1.3 that brings the
    /// tickets by which the next data connection is known to be the same client's, and each is good for one.
    pub(crate) fn hear_out(&mut self, until: Instant) {
        const READS_MAX: usize = 64;
        let Wire::Protected(tls) = self else { return };
        tls.sock.until = until;
        let mut buffer = [0; 1024];
        for _ in 0..READS_MAX {
            // Whatever it is, the server's word on the control connection counts.
            if !tls.read(&mut buffer).is_ok_and(|len| len > 0) {
                return;
            }
        }
    }

    /// From now on this ends what is waited for here.
    pub(crate) fn set_stop(&mut self, stop: Stop) {
        self.bounded().stop = stop;
    }
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Wire::Plain(bounded) => bounded.read(buffer),
            // Without the other end's last record it is an error: somebody on the way may have cut it off.
            Wire::Protected(tls) => tls.read(buffer),
            Wire::Grid(wrapped) => wrapped.read(buffer),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Wire::Plain(bounded) => bounded.write(bytes),
            Wire::Protected(tls) => tls.write(bytes),
            Wire::Grid(wrapped) => wrapped.write(bytes),
        }
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Wire::Plain(bounded) => bounded.write_vectored(parts),
            Wire::Protected(tls) => tls.write_vectored(parts),
            Wire::Grid(wrapped) => wrapped.write_vectored(parts),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Wire::Plain(bounded) => bounded.flush(),
            Wire::Protected(tls) => tls.flush(),
            Wire::Grid(wrapped) => wrapped.flush(),
        }
    }
}

/// A connection as the system has it.
pub(crate) enum Socket {
    Tcp(TcpStream),
    /// With a program of this host.
    Local(UnixStream),
}

impl From<TcpStream> for Socket {
    fn from(stream: TcpStream) -> Socket {
        Socket::Tcp(stream)
    }
}

impl From<UnixStream> for Socket {
    fn from(stream: UnixStream) -> Socket {
        Socket::Local(stream)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(stream) => stream.as_fd(),
            Socket::Local(stream) => stream.as_fd(),
        }
    }
}

impl Socket {
    fn try_clone(&self) -> io::Result<Socket> {
        Ok(match self {
            Socket::Tcp(stream) => Socket::Tcp(stream.try_clone()?),
            Socket::Local(stream) => Socket::Local(stream.try_clone()?),
        })
    }

    fn read_within(&mut self, left: Duration, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.set_read_timeout(Some(left)).and_then(|()| stream.read(buffer)),
            Socket::Local(stream) => stream.set_read_timeout(Some(left)).and_then(|()| stream.read(buffer)),
        }
    }

    fn write_within(&mut self, left: Duration, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.set_write_timeout(Some(left)).and_then(|()| stream.write(bytes)),
            Socket::Local(stream) => stream.set_write_timeout(Some(left)).and_then(|()| stream.write(bytes)),
        }
    }
}

/// A socket whose reads and writes end at a point in time, and when a stop is wanted.
pub(crate) struct Bounded {
    stream: Socket,
    until: Instant,
    /// When the wait began that ends then.
    begun: Instant,
    stop: Stop,
    /// It waits for what is not there yet.
    waits: bool,
    /// Where it does not: how often it still reads.
    reads: u32,
}

impl Bounded {
    /// Nothing is read or written until somebody says until when.
    pub(crate) fn new(stream: impl Into<Socket>, stop: Stop) -> Bounded {
        let now = Instant::now();
        Bounded { stream: stream.into(), until: now, begun: now, stop, waits: true, reads: READS_MAX }
    }

    /// Whether what is read or written next waits for what is not there yet.
    pub(crate) fn set_waits(&mut self, waits: bool) {
        (self.waits, self.reads) = (waits, READS_MAX);
    }

    /// The same socket, to be used in its place.
    ///
    /// # Errors
    /// There is no descriptor for it.
    pub(crate) fn try_clone(&self) -> io::Result<Bounded> {
        Ok(Bounded::new(self.stream.try_clone()?, self.stop.clone()))
    }

    /// Until when what is read or written next must be there.
    pub(crate) fn ends_at(&mut self, until: Instant) {
        (self.until, self.begun) = (until, Instant::now());
    }

    /// How long something may be waited for before somebody looks whether a stop is wanted.
    pub(crate) fn until_look(&self) -> io::Result<Duration> {
        self.stop.check_of(self.begun)?;
        Ok(self.stop.until_look(self.left()?))
    }

    pub(crate) fn socket(&self) -> &Socket {
        &self.stream
    }

    fn left(&self) -> io::Result<Duration> {
        match self.until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(left),
        }
    }
}

impl Read for Bounded {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.waits {
            self.reads = self.reads.checked_sub(1).ok_or(io::ErrorKind::WouldBlock)?;
            return Ok(recv(&self.stream, buffer, RecvFlags::DONTWAIT)?.1);
        }
        loop {
            self.stop.check_of(self.begun)?;
            let left = self.stop.until_look(self.left()?);
            match self.stream.read_within(left, buffer) {
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.waits {
            return self.write_vectored(&[IoSlice::new(bytes)]);
        }
        loop {
            self.stop.check_of(self.begun)?;
            let left = self.stop.until_look(self.left()?);
            match self.stream.write_within(left, bytes) {
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {}
                written => return written,
            }
        }
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        if !self.waits {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            return Ok(sendmsg(&self.stream, parts, &mut SendAncillaryBuffer::default(), flags)?);
        }
        let first = parts.iter().find(|part| !part.is_empty());
        first.map_or(Ok(0), |first| self.write(first))
    }

    fn flush(&mut self) -> io::Result<()> {
        // Sockets keep nothing back.
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use rustls::pki_types::pem::PemObject as _;

    use super::*;
    use haul_base::stop::Stop;

    /// Goal: a server that refuses data connections, and hangs up where TLS 1.2 begins, is not asked for that
    /// for ever.
    /// Method: each round is a session whose data connection was refused, and the next one, if it is by TLS
    /// 1.2.
    #[test]
    fn who_hangs_up_on_the_older_one_is_not_asked_for_ever() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/certificates/ca.pem");
        let trust = Trust::in_these([CertificateDer::from_pem_file(path).expect("read it")]).expect("one");
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bind");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || listener.incoming().for_each(drop));
        let server = Server::parse(crate::Protocol::Ftps, "u:p@127.0.0.1:2121").expect("a server");
        let mut asked = 0;
        for _ in 0..4 * HANG_UPS_MAX {
            Tls::new(&trust, &server).expect("a session").is_not_known_again();
            let next = Tls::new(&trust, &server).expect("a session");
            if next.is_older {
                asked += 1;
                let socket = Bounded::new(TcpStream::connect(address).expect("dial"), Stop::never());
                assert!(next.begin(socket, Duration::from_secs(20)).is_err(), "it hangs up");
            }
        }
        assert_eq!(asked, HANG_UPS_MAX);
    }
}
