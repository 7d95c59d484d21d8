//! The security of the grid: GSI over a control connection (RFC 2228 with GSSAPI tokens that are TLS).
//!
//! In: whom to trust and as whom to come, tokens of the server. Out: tokens for it; then commands wrapped and
//! replies unwrapped.
//! Invariants: nothing is accepted without the check of the server's certificate; once the context stands
//! nothing of the server counts that is not wrapped. Nothing is delegated.
//! Source: RFC 2228; the tokens as Globus has them: each is a piece of the bytes of one TLS connection, in
//! which the initiator says `0` when it delegates nothing.
//! Left out: protected data connections (`DCAU A`, `PROT P`), which need a delegated credential.

use std::env;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use data_encoding::BASE64;
use rustls::client::{ResolvesClientCert, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ClientConnection, RootCertStore, SignatureScheme};

use crate::Error;
use crate::tls::words_of;

/// Where a host keeps the authorities of its grid.
const AUTHORITIES: &str = "/etc/grid-security/certificates";
/// Most of a file of certificates.
const FILE_LEN_MAX: u64 = 1 << 20;
/// Most bytes of what a server says within one token.
const PLAIN_LEN_MAX: usize = 4 << 20;
/// Most files of a directory of authorities.
const AUTHORITIES_MAX: usize = 4096;

/// Whom this user trusts, and as whom he comes.
#[derive(Clone, Debug)]
pub struct Credential {
    config: Arc<ClientConfig>,
    /// Where it was found, for people.
    pub from: PathBuf,
}

impl Credential {
    /// The user's proxy (`X509_USER_PROXY`, or `/tmp/x509up_uUID`), else his certificate and key
    /// (`X509_USER_CERT` and `X509_USER_KEY`, or those in `~/.globus`); the authorities of `X509_CERT_DIR`,
    /// `~/.globus/certificates` or `/etc/grid-security/certificates`.
    ///
    /// # Errors
    /// There is none, others can read it, or nobody would say who a server is; in words with what to do.
    pub fn find() -> Result<Credential, String> {
        let home = env::var_os("HOME").map(PathBuf::from);
        let named = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let globus = |name: &str| home.as_ref().map(|home| home.join(".globus").join(name));
        let uid = rustix::process::geteuid();
        let usual = PathBuf::from(format!("/tmp/x509up_u{}", uid.as_raw()));
        let proxy = named("X509_USER_PROXY").or_else(|| usual.exists().then_some(usual));
        let (from, key_from) = match proxy {
            Some(proxy) => (proxy.clone(), proxy),
            None => {
                let cert = named("X509_USER_CERT").or_else(|| globus("usercert.pem"));
                let key = named("X509_USER_KEY").or_else(|| globus("userkey.pem"));
                match (cert.filter(|path| path.exists()), key) {
                    (Some(cert), Some(key)) => (cert, key),
                    _ => {
                        return Err("there is no proxy (X509_USER_PROXY, /tmp/x509up_u…) and no certificate of the user's; make \
                                    one, for instance with grid-proxy-init"
                            .into());
                    }
                }
            }
        };
        let certs = CertificateDer::pem_slice_iter(&read(&from, false)?).collect::<Result<Vec<_>, _>>();
        let certs = certs.map_err(|error| format!("{}: {error}", from.display()))?;
        if certs.is_empty() {
            return Err(format!("{} holds no certificate", from.display()));
        }
        let key = PrivateKeyDer::from_pem_slice(&read(&key_from, true)?).map_err(|_| {
            let key = key_from.display();
            format!(
                "{key} holds no key that can be used; one with a passphrase needs a proxy (grid-proxy-init)"
            )
        })?;
        let authorities = named("X509_CERT_DIR")
            .or_else(|| globus("certificates").filter(|path| path.is_dir()))
            .unwrap_or_else(|| AUTHORITIES.into());
        let roots = authorities_of(&authorities)?;
        Credential::of(roots, certs, key, from)
    }

    /// The same of parts: authorities; the user's chain, his own certificate first; its key; where they are
    /// from.
    ///
    /// # Errors
    /// The key is of no kind that can be used.
    pub fn of(
        roots: RootCertStore,
        certs: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        from: PathBuf,
    ) -> Result<Credential, String> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config =
            config(roots, (certs, key), provider).map_err(|error| format!("{}: {error}", from.display()))?;
        Ok(Credential { config: Arc::new(config), from })
    }
}

/// All of a file. `secret`: it must be the user's alone.
fn read(path: &Path, secret: bool) -> Result<Vec<u8>, String> {
    let shown = path.display();
    let failed = |error: io::Error| format!("{shown}: {}", haul_base::errno::text(&error));
    // Anybody may have put a FIFO into /tmp under that name: it is not waited for.
    let flags = rustix::fs::OFlags::NONBLOCK.union(rustix::fs::OFlags::NOCTTY);
    let flags = i32::try_from(flags.bits()).map_err(|error| error.to_string())?;
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    let facts = file.metadata().map_err(failed)?;
    if !facts.is_file() {
        return Err(format!("{shown} is no regular file"));
    }
    if secret && (facts.mode() & 0o077 != 0 || facts.uid() != rustix::process::geteuid().as_raw()) {
        return Err(format!("{shown} holds a key, and is not this user's alone; chmod 600 it"));
    }
    let mut bytes = Vec::new();
    file.take(FILE_LEN_MAX).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// The authorities of a directory as OpenSSL has it: files `HASH.N`.
fn authorities_of(dir: &Path) -> Result<RootCertStore, String> {
    let shown = dir.display();
    let none = |why: &str| {
        format!("{shown} {why}: nobody could say who a server is (X509_CERT_DIR names another directory)")
    };
    let entries = fs::read_dir(dir)
        .map_err(|error| none(&format!("cannot be read ({})", haul_base::errno::text(&error))))?;
    let mut roots = RootCertStore::empty();
    for entry in entries.flatten().take(AUTHORITIES_MAX) {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_one = name.split_once('.').is_some_and(|(hash, n)| {
            hash.len() == 8
                && hash.bytes().all(|b| b.is_ascii_hexdigit())
                && n.bytes().all(|b| b.is_ascii_digit())
        });
        if is_one && let Ok(bytes) = read(&entry.path(), false) {
            roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&bytes).flatten());
        }
    }
    if roots.is_empty() { Err(none("holds no certificate of an authority")) } else { Ok(roots) }
}

fn config(
    roots: RootCertStore,
    (certs, key): (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>),
    provider: Arc<CryptoProvider>,
) -> Result<ClientConfig, String> {
    let key = provider.key_provider.load_private_key(key).map_err(|error| error.to_string())?;
    // A proxy's certificate has an extension that webpki does not know; the server is who checks it.
    let mine = Arc::new(Mine(Arc::new(CertifiedKey::new(certs, key))));
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .build()
        .map_err(|error| error.to_string())?;
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_webpki_verifier(verifier)
        .with_client_cert_resolver(mine);
    Ok(config)
}

/// As whom the user comes, whoever asks.
#[derive(Debug)]
struct Mine(Arc<CertifiedKey>);

impl ResolvesClientCert for Mine {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// The context of one control connection.
pub(crate) struct Context {
    connection: ClientConnection,
    host: String,
    /// It was said that nothing is delegated.
    said: bool,
}

impl Context {
    pub(crate) fn new(credential: &Credential, host: &str) -> Result<Context, Error> {
        let untrusted = |why: String| Error::Untrusted { to: host.into(), why };
        let name = ServerName::try_from(host.to_owned()).map_err(|_| untrusted("its name is none".into()))?;
        let connection = ClientConnection::new(credential.config.clone(), name);
        let connection = connection.map_err(|error| untrusted(error.to_string()))?;
        Ok(Context { connection, host: host.into(), said: false })
    }

    /// The next token for the server, after what it said. `None`: there is nothing more to say.
    pub(crate) fn step(&mut self, token: &[u8]) -> Result<Option<String>, Error> {
        // What it says within the handshake is a byte without a meaning.
        self.feed(token)?;
        if !self.connection.is_handshaking() && !self.connection.wants_write() {
            if self.said {
                return Ok(None);
            }
            self.said = true;
            self.connection.writer().write_all(b"0").map_err(|_| self.broken())?;
        }
        Ok(Some(self.tokens()?))
    }

    /// What was heard within a token.
    fn feed(&mut self, mut token: &[u8]) -> Result<Vec<u8>, Error> {
        let mut plain = Vec::new();
        while !token.is_empty() {
            self.connection.read_tls(&mut token).map_err(|_| self.broken())?;
            let state = self.connection.process_new_packets().map_err(|error| Error::Untrusted {
                to: self.host.clone(),
                why: words_of(
                    &error,
                    "X509_CERT_DIR can name a directory with the certificate of another one",
                ),
            })?;
            let have = plain.len();
            if have + state.plaintext_bytes_to_read() > PLAIN_LEN_MAX {
                return Err(self.broken());
            }
            plain.resize(have + state.plaintext_bytes_to_read(), 0);
            self.connection.reader().read_exact(&mut plain[have..]).map_err(|_| self.broken())?;
        }
        Ok(plain)
    }

    fn tokens(&mut self) -> Result<String, Error> {
        let mut bytes = Vec::new();
        while self.connection.wants_write() {
            self.connection.write_tls(&mut bytes).map_err(|_| self.broken())?;
        }
        Ok(BASE64.encode(&bytes))
    }

    /// The line of a command as it goes to the server.
    pub(crate) fn wrap(&mut self, line: &[u8]) -> Result<Vec<u8>, Error> {
        self.connection.writer().write_all(line).map_err(|_| self.broken())?;
        Ok([b"ENC ", self.tokens()?.as_bytes(), b"\r\n"].concat())
    }

    /// What stands in a token of the server's.
    pub(crate) fn unwrap(&mut self, token: &[u8]) -> Result<Vec<u8>, Error> {
        let token = decoded(token)?;
        self.feed(&token)
    }

    fn broken(&self) -> Error {
        Error::Broken {
            doing: "the security of the grid",
            why: "what the server says is not of this session",
        }
    }
}

/// A token as it stands in a reply.
pub(crate) fn decoded(token: &[u8]) -> Result<Vec<u8>, Error> {
    let broken =
        |_| Error::Broken { doing: "the security of the grid", why: "a token of the server is no base64" };
    BASE64.decode(token.trim_ascii()).map_err(broken)
}
