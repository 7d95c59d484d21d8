//! As whom somebody comes: a chain of certificates and the key of its first.
//!
//! In: files, or what was delegated. Out: what TLS shows, who that is, until when.
//! Invariants: a file with a key must be this user's alone and no other file's name; the key is the
//! certificate's; it is in no `Debug`.

use std::env;
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::SignatureAlgorithm;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::sign::{CertifiedKey, SigningKey};

use crate::cert::{Cert, Kind};
use crate::name::Dn;
use crate::shelf::Directory;
use crate::verify::{Authorities, CHAIN_MAX, provider};

/// Where a host keeps the authorities of its grid.
const AUTHORITIES: &str = "/etc/grid-security/certificates";
/// Most of a file of certificates.
const FILE_LEN_MAX: u64 = 1 << 20;

/// As whom somebody comes.
#[derive(Clone)]
pub struct Credential {
    certified: Arc<CertifiedKey>,
    /// The key as it is written, for [`Credential::to_der`].
    secret: Arc<PrivateKeyDer<'static>>,
    identity: Dn,
    is_proxy: bool,
    /// Until when all of it is valid, in seconds since 1970.
    ends: u64,
    /// Where it is from, for people.
    pub from: PathBuf,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential").field("identity", &self.identity).field("from", &self.from).finish()
    }
}

impl Credential {
    /// The user's proxy (`X509_USER_PROXY`, or `/tmp/x509up_uUID`), else his certificate and key
    /// (`X509_USER_CERT` and `X509_USER_KEY`, or those in `~/.globus`).
    ///
    /// # Errors
    /// There is none, it has expired, or others can read it; in words with what to do.
    pub fn find() -> Result<Credential, String> {
        let uid = rustix::process::geteuid();
        let usual = PathBuf::from(format!("/tmp/x509up_u{}", uid.as_raw()));
        // A link that leads nowhere is there, too.
        let proxy = named("X509_USER_PROXY").or_else(|| usual.symlink_metadata().is_ok().then_some(usual));
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
        let credential = Credential::read(&from, &key_from)?;
        credential.check()?;
        credential.check_version()?;
        Ok(credential)
    }

    /// Whether what shows who somebody is can be shown on a data connection, where each end checks it.
    ///
    /// # Errors
    /// It is of an old version, which nobody takes there; in words with what to do.
    fn check_version(&self) -> Result<(), String> {
        let old = self.chain().iter().find_map(|der| {
            let cert = Cert::read(der).ok()?;
            let version = cert.version();
            (version < 3 && !matches!(cert.kind, Kind::Authority)).then_some((cert, version))
        });
        let Some((cert, version)) = old else { return Ok(()) };
        Err(format!(
            "{}: the certificate of {} is of version {version} of X.509, which nobody takes: it must be one of version 3. Have its \
             authority make one (it has extensions: `openssl x509 -req -in REQUEST -CA CA -CAkey KEY -extfile FILE`, where FILE says \
             keyUsage=critical,digitalSignature), and then a new proxy where you use one",
            self.from.display(),
            cert.subject
        ))
    }

    /// Whether it is valid now.
    ///
    /// # Errors
    /// It has expired; in words with what to do.
    pub fn check(&self) -> Result<(), String> {
        self.check_time(UnixTime::now())
    }

    fn check_time(&self, now: UnixTime) -> Result<(), String> {
        let now = now.as_secs();
        if self.ends > now {
            return Ok(());
        }
        let (from, ago) = (self.from.display(), (now - self.ends) / 60);
        Err(format!(
            "{from}: the credential of {} expired {ago} min ago; make a new one, for instance with grid-proxy-init",
            self.identity
        ))
    }

    /// Of two files, which may be one: certificates, the one of the key first, and the key.
    ///
    /// # Errors
    /// They cannot be read, or used, or others can read the key; in words with what to do.
    pub fn read(certs: &Path, key: &Path) -> Result<Credential, String> {
        let is_one = certs == key;
        let bytes = read_file(certs, is_one)?;
        let chain = CertificateDer::pem_slice_iter(&bytes).take(CHAIN_MAX + 1).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|error| format!("{}: {error}", certs.display()))?;
        if chain.is_empty() {
            return Err(format!("{} holds no certificate", certs.display()));
        }
        // What was looked at is what is used.
        let key_bytes = if is_one { bytes } else { read_file(key, true)? };
        let key = PrivateKeyDer::from_pem_slice(&key_bytes).map_err(|_| {
            format!(
                "{} holds no key that can be used; one with a passphrase needs a proxy (grid-proxy-init)",
                key.display()
            )
        })?;
        Credential::of(chain, key, certs.into())
    }

    /// The same of parts: the chain, the key of its first, where they are from.
    ///
    /// # Errors
    /// The key is of no kind that can be used, or not the certificate's; there is nobody whose it is.
    pub fn of(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        from: PathBuf,
    ) -> Result<Credential, String> {
        let failed = |why: String| format!("{}: {why}", from.display());
        let secret = Arc::new(key.clone_key());
        let key = provider().key_provider.load_private_key(key).map_err(|error| failed(error.to_string()))?;
        if chain.len() > CHAIN_MAX {
            return Err(failed("has more certificates than any real one".into()));
        }
        let mut ends = u64::MAX;
        let (mut first, mut identity) = (None, None);
        for der in &chain {
            let cert = Cert::read(der).map_err(|error| failed(error.to_string()))?;
            ends = ends.min(cert.ends.as_secs());
            if matches!(cert.kind, Kind::EndEntity) && identity.is_none() {
                identity = Some(cert.subject.clone());
            }
            first.get_or_insert(cert);
        }
        let (Some(first), Some(identity)) = (first, identity) else {
            return Err(failed("there is no certificate that says whose it is".into()));
        };
        let spki = key.public_key().ok_or_else(|| failed("the key is of no known kind".into()))?;
        if first.spki().map_err(|error| failed(error.to_string()))? != spki.as_ref() {
            return Err(failed("the key is not that of the certificate".into()));
        }
        let is_proxy = matches!(first.kind, Kind::Proxy { .. });
        let certified = Arc::new(CertifiedKey::new(chain, key));
        Ok(Credential { certified, secret, identity, is_proxy, ends, from })
    }

    /// The key, and the certificates behind it, for another process that may have them: all of it is secret.
    pub fn to_der(&self) -> Vec<Vec<u8>> {
        let chain = self.certified.cert.iter().map(|cert| cert.to_vec());
        [self.secret.secret_der().to_vec()].into_iter().chain(chain).collect()
    }

    /// Of what [`Credential::to_der`] gave.
    ///
    /// # Errors
    /// It is none.
    pub fn of_der(parts: Vec<Vec<u8>>, from: PathBuf) -> Result<Credential, String> {
        let mut parts = parts.into_iter();
        let key = parts.next().and_then(|key| PrivateKeyDer::try_from(key).ok());
        let key = key.ok_or_else(|| format!("{}: there is no key that can be used", from.display()))?;
        Credential::of(parts.map(CertificateDer::from).collect(), key, from)
    }

    /// Whose it is.
    pub fn identity(&self) -> &Dn {
        &self.identity
    }

    /// It stands for somebody, and is not his own.
    pub fn is_proxy(&self) -> bool {
        self.is_proxy
    }

    /// Its key is one of RSA.
    pub fn is_by_rsa(&self) -> bool {
        self.certified.key.algorithm() == SignatureAlgorithm::RSA
    }

    /// Until when it is valid, in seconds since 1970.
    pub fn ends(&self) -> u64 {
        self.ends
    }

    pub(crate) fn certified(&self) -> &Arc<CertifiedKey> {
        &self.certified
    }

    pub(crate) fn chain(&self) -> &[CertificateDer<'static>] {
        &self.certified.cert
    }

    pub(crate) fn key(&self) -> &Arc<dyn SigningKey> {
        &self.certified.key
    }
}

/// The authorities of `X509_CERT_DIR`, `~/.globus/certificates` or `/etc/grid-security/certificates`.
///
/// # Errors
/// Nobody would say who anybody is; in words with what to do.
pub fn authorities() -> Result<Authorities, String> {
    let dir = named("X509_CERT_DIR")
        .or_else(|| globus("certificates").filter(|path| path.is_dir()))
        .unwrap_or_else(|| AUTHORITIES.into());
    let shown = dir.display();
    let none = |why: &str| {
        format!("{shown} {why}: nobody could say who a server is (X509_CERT_DIR names another directory)")
    };
    match Directory::has_authority(&dir) {
        Ok(true) => Ok(Authorities::new(Directory(dir))),
        Ok(false) => Err(none("holds no certificate of an authority")),
        Err(error) => Err(none(&format!("cannot be read ({})", haul_base::errno::text(&error)))),
    }
}

fn named(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn globus(name: &str) -> Option<PathBuf> {
    env::var_os("HOME").map(|home| PathBuf::from(home).join(".globus").join(name))
}

/// All of a file. `secret`: it must be the user's alone.
///
/// # Errors
/// It cannot be read, or others can read or change what is secret; in words with what to do.
pub fn read_file(path: &Path, secret: bool) -> Result<Vec<u8>, String> {
    read_of(path, secret, false)
}

/// All of a file that everybody may read, and nobody change but root and this user.
///
/// # Errors
/// It cannot be read, or others can change it; in words with what to do.
pub fn read_unchanged(path: &Path) -> Result<Vec<u8>, String> {
    read_of(path, false, true)
}

fn read_of(path: &Path, secret: bool, unchanged: bool) -> Result<Vec<u8>, String> {
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
    if secret && facts.uid() != rustix::process::geteuid().as_raw() {
        return Err(format!(
            "{shown} holds a key and belongs to another user (uid {}), who could change it or have put it there; it is not used",
            facts.uid()
        ));
    }
    if secret && facts.mode() & 0o077 != 0 {
        return Err(format!(
            "{shown} holds a key, and others than this user can read or change it (mode {:03o}); chmod 600 it, and make a new \
             one if somebody may have read it",
            facts.mode() & 0o777
        ));
    }
    let ours = [0, rustix::process::geteuid().as_raw()];
    if unchanged && (!ours.contains(&facts.uid()) || facts.mode() & 0o022 != 0) {
        return Err(format!(
            "others can change {shown} (uid {}, mode {:03o}), and it says who this host is; chown it, and chmod 644 it",
            facts.uid(),
            facts.mode() & 0o777
        ));
    }
    let mut bytes = Vec::new();
    file.take(FILE_LEN_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_LEN_MAX {
        return Err(format!("{shown} is longer than any real one"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    use super::*;
    use crate::testing::{Grid, NOW, ProxyForm, Somebody, pem};

    fn file(who: &Somebody) -> Vec<u8> {
        let mut bytes = pem("CERTIFICATE", &who.chain[0]);
        bytes.extend(pem("PRIVATE KEY", who.key.private().secret_der()));
        who.chain[1..].iter().for_each(|cert| bytes.extend(pem("CERTIFICATE", cert)));
        bytes
    }

    /// Goal: a proxy's file is read where it is this user's alone, and refused with the reason where not.
    #[test]
    fn a_proxy_must_be_its_users_alone() {
        let dir = std::env::temp_dir().join(format!("haul-gsi-credential-{}", std::process::id()));
        fs::create_dir(&dir).expect("make a directory");
        let (path, grid) = (dir.join("proxy"), Grid::new());
        let proxy = grid.user("alice").proxy(ProxyForm::default());
        let read = |bytes: &[u8], mode| {
            let _ = fs::remove_file(&path);
            fs::write(&path, bytes).expect("write the proxy");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("set its mode");
            Credential::read(&path, &path)
        };
        let mine = read(&file(&proxy), 0o600).expect("a credential");
        assert_eq!((mine.identity().text(), mine.is_proxy()), ("/O=Grid/CN=alice", true));
        assert!(!format!("{mine:?}").contains("PRIVATE"), "{mine:?}");
        for (bytes, mode, why) in [
            (file(&proxy), 0o644, "others than this user can read"),
            (file(&proxy), 0o620, "(mode 620); chmod 600"),
            (Vec::new(), 0o600, "holds no certificate"),
            (pem("CERTIFICATE", &proxy.chain[0]), 0o600, "holds no key"),
            (vec![b' '; 2 << 20], 0o600, "longer than any real one"),
            (
                file(&Somebody { chain: grid.user("bob").chain, ..proxy }),
                0o600,
                "the key is not that of the certificate",
            ),
        ] {
            let error = read(&bytes, mode).expect_err(why);
            assert!(error.contains(why), "{error}");
        }
        if rustix::process::geteuid().is_root() {
            let proxy = grid.user("alice").proxy(ProxyForm::default());
            read(&file(&proxy), 0o600).expect("a credential");
            std::os::unix::fs::chown(&path, Some(4242), None).expect("give it away");
            let error = Credential::read(&path, &path).expect_err("another user's");
            assert!(error.contains("belongs to another user (uid 4242)"), "{error}");
        }
        fs::remove_dir_all(&dir).expect("clean up");
    }

    /// Goal: what has expired is said to have, and when.
    #[test]
    fn an_expired_proxy_is_said_to_be() {
        let short = ProxyForm { times: (NOW - 1000, NOW), ..ProxyForm::default() };
        let mine = Grid::new().user("alice").proxy(short).credential();
        let at = |secs| mine.check_time(UnixTime::since_unix_epoch(Duration::from_secs(secs)));
        assert_eq!(at(NOW - 1), Ok(()));
        let error = at(NOW + 120).expect_err("it has expired");
        assert!(error.contains("/O=Grid/CN=alice expired 2 min ago"), "{error}");
    }
}
