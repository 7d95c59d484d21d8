//! TLS of a session: the control connection and each data connection (RFC 4217).
//!
//! In: whom to trust, a connection. Out: a connection that is protected, with a server that showed a
//! certificate for the name that the user typed.
//! Invariants: nothing is accepted without its certificate's check, and what should be protected never falls
//! back to plain; a data connection resumes the session of its own control connection, which servers ask for,
//! for it shows that both are the same client's.
//! Source of the checks: rustls and webpki; of the authorities: the system's, as OpenSSL has them.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{CertificateError, ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::Error;
use haul_base::stop::Stop;

/// Sessions that one control connection keeps for its data connections: of one server.
const SESSIONS_MAX: usize = 8;

/// Whom this host trusts to say who a server is.
#[derive(Clone, Debug)]
pub struct Trust(Arc<ClientConfig>);

impl Trust {
    /// The authorities of the system; where `SSL_CERT_FILE` or `SSL_CERT_DIR` is set, those of the file and
    /// the directories that they name, and no others.
    ///
    /// # Errors
    /// There are none, so that no server could be trusted; in words with what to do.
    pub fn system() -> Result<Trust, String> {
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
        let mut roots = RootCertStore::empty();
        let (known, _) = roots.add_parsable_certificates(certificates);
        if known == 0 {
            return Err("this host trusts no authority that could say who a server is".into());
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
        let config = builder.with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
        Ok(Trust(Arc::new(config.with_root_certificates(roots).with_no_client_auth())))
    }
}

/// TLS of one session with one server.
pub(crate) struct Tls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Tls {
    /// For the server that the user calls `host`.
    pub(crate) fn new(trust: &Trust, host: &str) -> Result<Tls, Error> {
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|_| Error::Untrusted { to: host.into(), why: "its name is none".into() })?;
        let mut config = ClientConfig::clone(&trust.0);
        // Of its own: servers that serve each session by a process of its own know only its sessions.
        config.resumption = Resumption::in_memory_sessions(SESSIONS_MAX);
        Ok(Tls { config: Arc::new(config), name })
    }

    /// Makes the connection protected, within `patience`.
    pub(crate) fn protect(&self, mut socket: Bounded, patience: Duration) -> Result<Wire, Error> {
        let to = || self.name.to_str().into_owned();
        let failed = |cause| told(to(), patience, cause);
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
fn told(to: String, patience: Duration, cause: io::Error) -> Error {
    let inner = cause.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let Some(error) = inner else {
        return match cause.kind() {
            io::ErrorKind::UnexpectedEof => Error::Closed { doing: "beginning TLS" },
            _ => Error::lost("beginning TLS", patience, cause),
        };
    };
    let why = words_of(error, "SSL_CERT_FILE can name a file with the certificate of another one");
    Error::Untrusted { to, why }
}

/// Why a certificate, or what else TLS needs, is not taken. `hint`: how to trust somebody else.
pub(crate) fn words_of(error: &rustls::Error, hint: &str) -> String {
    match error {
        // The second: another authority of the same name.
        rustls::Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => {
            format!("its certificate comes from no authority that this host trusts; {hint}")
        }
        rustls::Error::InvalidCertificate(error) => format!("its certificate is not valid: {error}"),
        error => error.to_string(),
    }
}

/// A connection, protected or not. Its reads and writes end at [`Wire::ends_at`], however slowly the other
/// end feeds them: under TLS one of them is many of the socket's.
pub(crate) enum Wire {
    Plain(Bounded),
    Protected(Box<StreamOwned<ClientConnection, Bounded>>),
}

impl Wire {
    /// As it is.
    pub(crate) fn plain(stream: TcpStream, stop: Stop) -> Wire {
        Wire::Plain(Bounded::new(stream, stop))
    }

    fn bounded(&mut self) -> &mut Bounded {
        match self {
            Wire::Plain(bounded) => bounded,
            Wire::Protected(tls) => &mut tls.sock,
        }
    }

    /// Until when what is read or written next must be there.
    pub(crate) fn ends_at(&mut self, until: Instant) {
        self.bounded().until = until;
    }

    pub(crate) fn tcp(&self) -> &TcpStream {
        match self {
            Wire::Plain(bounded) => &bounded.stream,
            Wire::Protected(tls) => &tls.sock.stream,
        }
    }

    /// Nothing more is written: the other end sees that this was all, and under TLS that nobody cut it off.
    pub(crate) fn end_writing(&mut self) -> io::Result<()> {
        if let Wire::Protected(tls) = self {
            tls.conn.send_close_notify();
            tls.flush()?;
        }
        self.tcp().shutdown(std::net::Shutdown::Write)
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
        }
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Wire::Plain(bounded) => bounded.write(bytes),
            Wire::Protected(tls) => tls.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Wire::Plain(bounded) => bounded.flush(),
            Wire::Protected(tls) => tls.flush(),
        }
    }
}

/// A socket whose reads and writes end at a point in time, and its reads when a stop is wanted, too.
pub(crate) struct Bounded {
    stream: TcpStream,
    until: Instant,
    stop: Stop,
}

impl Bounded {
    /// Nothing is read or written until somebody says until when.
    pub(crate) fn new(stream: TcpStream, stop: Stop) -> Bounded {
        Bounded { stream, until: Instant::now(), stop }
    }

    /// The same socket, to be used in its place.
    ///
    /// # Errors
    /// There is no descriptor for it.
    pub(crate) fn try_clone(&self) -> io::Result<Bounded> {
        Ok(Bounded::new(self.stream.try_clone()?, self.stop.clone()))
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
        loop {
            self.stop.check()?;
            self.stream.set_read_timeout(Some(self.stop.until_look(self.left()?)))?;
            match self.stream.read(buffer) {
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}
