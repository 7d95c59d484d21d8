//! TLS for who is not known (RFC 4217): the control connection behind `AUTH TLS`, and data connections under
//! `PROT P`.
//!
//! In: certificate and key of this host, sockets. Out: what is read and written. On either connection this
//! end is the server of TLS, whoever dialled.
//! Invariants: nothing is read or written that is not protected, and a connection that ends without the last
//! word of TLS has not ended but broken; sessions are known to this client's processes alone, and no more
//! than [`SESSIONS_MAX`] of them. A data connection goes on with one of them, which only this client can, or
//! is none of his: else somebody on the way could lead it to another session. Files that cannot be used
//! leave what was read before.
//! Left out: who the client is, which its certificate does not show.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use haul_gsi::Wrapped;
use haul_gsi::credential::{read_file, read_unchanged};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::StoresServerSessions;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{HandshakeKind, ServerConfig, ServerConnection, StreamOwned};

use crate::config::{Known, Parts, SHOWN_WITHIN, Secret};
use crate::control;
use crate::data::{self, Guard, Way};
use crate::guard::Patient;

/// Sessions that a client can go on with: each connection may bring two. Those of the control connection are
/// the first, and stay: there are clients that know no others.
const SESSIONS_MAX: usize = 64;
const CONTROL_TICKETS: usize = 8;
/// Why a data connection is not taken.
const NOT_OF_SESSION: &str = "it did not go on with the TLS session of the control connection, which Python's ftplib cannot; \
     --tls-any-data has this server take such clients";
/// Most certificates of a chain.
const CHAIN_MAX: usize = 16;

/// As whom this host comes under TLS: its files, and what they say.
pub struct Host {
    cert: PathBuf,
    key: PathBuf,
    parts: Parts,
}

impl Host {
    /// Of these files.
    ///
    /// # Errors
    /// One cannot be used; in words with what to do.
    pub fn read(cert: PathBuf, key: PathBuf) -> Result<Host, String> {
        let mut host = Host { cert, key, parts: Vec::new() };
        host.read_again()?;
        Ok(host)
    }

    /// Reads the files again.
    ///
    /// # Errors
    /// One cannot be used; then nothing has changed.
    pub fn read_again(&mut self) -> Result<(), String> {
        let cert = format!("--tls-cert: {}", self.cert.display());
        let key = format!("--tls-key: {}", self.key.display());
        let is_one = self.cert == self.key;
        let bytes = if is_one { read_file(&self.cert, true) } else { read_unchanged(&self.cert) };
        let bytes = bytes.map_err(|why| format!("--tls-cert: {why}"))?;
        let chain = CertificateDer::pem_slice_iter(&bytes).take(CHAIN_MAX + 1).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|error| format!("{cert}: {error}"))?;
        if chain.is_empty() {
            return Err(format!("{cert} holds no certificate"));
        }
        if chain.len() > CHAIN_MAX {
            return Err(format!("{cert} has more certificates than any real one"));
        }
        // Of those behind it clients know others, where these have expired.
        haul_gsi::check_times(&chain[0], UnixTime::now()).map_err(|why| format!("{cert}: {why}"))?;
        // What was looked at is what is used.
        let bytes = match is_one {
            true => bytes,
            false => read_file(&self.key, true).map_err(|why| format!("--tls-key: {why}"))?,
        };
        let secret = PrivateKeyDer::from_pem_slice(&bytes)
            .map_err(|_| format!("{key} holds no key that can be used; it must have no passphrase"))?;
        let certs = chain.iter().map(|cert| Secret(cert.to_vec()));
        let parts: Parts = [Secret(secret.secret_der().to_vec())].into_iter().chain(certs).collect();
        certified(&parts).map_err(|why| format!("{cert}, {key}: {why}"))?;
        self.parts = parts;
        Ok(())
    }

    /// Key and certificates.
    pub fn parts(&self) -> Parts {
        self.parts.clone()
    }
}

/// Key and certificates as TLS wants them: they belong together.
fn certified(parts: &Parts) -> Result<CertifiedKey, String> {
    let (key, certs) = parts.split_first().ok_or("there is no key")?;
    let key = PrivateKeyDer::try_from(key.0.clone())?;
    let chain = certs.iter().map(|cert| CertificateDer::from(cert.0.clone())).collect();
    CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider()).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => "the key is not that of the certificate".to_owned(),
        other => other.to_string(),
    })
}

/// TLS of one session.
#[derive(Clone)]
pub struct Tls {
    /// To who gets data, who reads what is said to him.
    out: Arc<ServerConfig>,
    /// To who brings data: he may close without having read, and what he has not read would then have the
    /// system throw away what he wrote. So he is told no session to go on with, unless he said that he reads.
    inward: Arc<ServerConfig>,
    tells_senders: bool,
    sessions: Arc<Sessions>,
    way: Way,
    /// Data connections need not go on with a session.
    takes_any: bool,
}

impl Tls {
    /// As whom this host comes, and the sessions that the client can go on with. `takes_any`: his data
    /// connections need not.
    ///
    /// # Errors
    /// Key and certificates cannot be used.
    pub fn new(parts: &Parts, known: Known, takes_any: bool) -> Result<Tls, String> {
        let certified = Arc::new(SingleCertAndKey::from(certified(parts)?));
        let sessions = Arc::new(Sessions(Mutex::new(known.into())));
        let builder = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
        let mut out = builder.with_no_client_auth().with_cert_resolver(certified);
        out.session_storage = sessions.clone();
        out.alpn_protocols = vec![b"ftp".to_vec()];
        let mut inward = out.clone();
        inward.send_tls13_tickets = 0;
        let (out, inward) = (Arc::new(out), Arc::new(inward));
        Ok(Tls { out, inward, tells_senders: false, sessions, way: Way::Out, takes_any })
    }

    /// Who brings data hears his connections out (`OPTS STOR Tickets=1;`), or may not.
    pub fn tell_senders(&mut self, on: bool) {
        self.tells_senders = on;
    }

    /// The sessions that the client can go on with.
    pub fn known(&self) -> Known {
        self.sessions.lock().iter().cloned().collect()
    }

    /// A control connection, whose handshake goes on as it is read.
    ///
    /// # Errors
    /// TLS cannot be had.
    pub fn control(&self, socket: TcpStream) -> Result<Box<dyn control::Stream>, rustls::Error> {
        let mut config = ServerConfig::clone(&self.out);
        config.send_tls13_tickets = CONTROL_TICKETS;
        let connection = ServerConnection::new(Arc::new(config))?;
        Ok(Box::new(Spoken(StreamOwned::new(connection, socket))))
    }
}

impl Guard for Tls {
    fn wrap(&self, socket: TcpStream, _dialled: bool) -> io::Result<Box<dyn data::Stream>> {
        let config = match self.way {
            Way::Out => &self.out,
            Way::In if self.tells_senders => &self.out,
            Way::In => &self.inward,
        };
        let connection = ServerConnection::new(config.clone()).map_err(io::Error::other)?;
        let socket = Patient { socket, until: Instant::now() + SHOWN_WITHIN };
        let mut tls = StreamOwned::new(connection, socket);
        while tls.conn.is_handshaking() {
            match tls.conn.complete_io(&mut tls.sock) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                done => drop(done?),
            }
        }
        if !self.takes_any && tls.conn.handshake_kind() != Some(HandshakeKind::Resumed) {
            return Err(io::Error::other(NOT_OF_SESSION));
        }
        Ok(Box::new(Wrapped::Server(Box::new(tls)).map(|patient| patient.socket)))
    }

    fn apart(&self) -> Option<Box<dyn Guard>> {
        Some(Box::new(self.clone()))
    }

    fn identifies(&self) -> bool {
        false
    }

    fn set_way(&mut self, way: Way) {
        self.way = way;
    }

    fn begins_late(&self) -> bool {
        true
    }
}

/// A control connection under TLS.
struct Spoken(StreamOwned<ServerConnection, TcpStream>);

impl control::Stream for Spoken {
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.sock.as_fd()
    }

    fn holds(&self) -> bool {
        !self.0.conn.is_handshaking() && !self.0.conn.wants_read()
    }
}

impl Read for Spoken {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.read(bytes)
    }
}

impl Write for Spoken {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Nothing can be said yet, and nobody is to wait until it can.
        if self.0.conn.is_handshaking() {
            return Err(ErrorKind::NotConnected.into());
        }
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Sessions, the oldest first. Each is good for as many connections as the client likes: only he has its key,
/// and nothing is taken of a connection before that was shown (no early data).
struct Sessions(Mutex<VecDeque<(Secret, Secret)>>);

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(Secret, Secret)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} sessions", self.lock().len())
    }
}

impl StoresServerSessions for Sessions {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        let mut sessions = self.lock();
        sessions.retain(|(known, _)| known.0 != key);
        if sessions.len() == SESSIONS_MAX {
            sessions.remove(CONTROL_TICKETS);
        }
        sessions.push_back((Secret(key), Secret(value)));
        true
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.lock().iter().find(|(known, _)| known.0 == key).map(|(_, value)| value.0.clone())
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.get(key)
    }

    fn can_cache(&self) -> bool {
        true
    }
}
