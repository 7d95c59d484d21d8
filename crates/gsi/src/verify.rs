//! Whether a chain of certificates is somebody's, and whose: the one place that says so.
//!
//! In: a chain as TLS brings it, whoever is trusted, the time. Out: who it is, or why not.
//! Invariants: nobody is anybody before everything was checked: signatures, times, names and constraints up
//! to an authority of this host (webpki), its policies, its revocation lists, and each proxy by RFC 3820.
//! What is not understood is refused. A missing policy is a refusal, as Globus has it; a missing list is
//! none; a list that has expired, or cannot be read, is.
//! Source: RFC 5280 and 3820; `globus_gsi_callback.c`, which this is stricter than where it says so: a proxy
//! follows only RFC 3820, and nothing but authorities stands behind somebody's own certificate.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use der::{Decode, Reader, SliceReader, Tag};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, ServerName, SubjectPublicKeyInfoDer, TrustAnchor, UnixTime,
};
use webpki::{
    BorrowedCertRevocationList, CertRevocationList, EndEntityCert, ExpirationPolicy,
    ExtendedKeyUsageValidator, KeyPurposeIdIter, KeyUsage, OwnedCertRevocationList, RawPublicKeyEntity,
    RequiredEkuNotFoundContext, RevocationCheckDepth, RevocationOptionsBuilder, UnknownStatusPolicy,
};
use x509_cert::time::Time;

use crate::GsiError;
use crate::cert::{Cert, Kind, Rights};
use crate::name::Dn;
use crate::policy::{POLICY_LEN_MAX, Policy};
use crate::shelf::Shelf;

/// Most certificates of a chain: proxies, whose they are, authorities.
pub const CHAIN_MAX: usize = 24;
/// Most names of authorities that a chain leads through.
const NAMES_MAX: usize = 16;
/// Most files of one kind about one name.
const FILES_MAX: u32 = 10;
/// Most bytes of a file with certificates.
const CERTS_LEN_MAX: u64 = 1 << 20;
/// Most files of revocation lists that are kept.
const KNOWN_MAX: usize = 64;
/// Most bytes of a revocation list.
const LIST_LEN_MAX: u64 = 32 << 20;

/// Who somebody is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Of his own certificate: who he is, whichever proxy he comes by.
    pub identity: Dn,
    /// So many proxies are between it and what he came by.
    pub proxies: usize,
    /// What he may is limited.
    pub rights: Rights,
    /// Until when all of it is valid, in seconds since 1970.
    pub ends: u64,
}

/// For what a certificate is shown.
#[derive(Clone, Debug)]
pub enum Purpose<'a> {
    /// To be the host of this name.
    Host(&'a str),
    /// To be somebody.
    Somebody,
}

/// Whom this host trusts to say who somebody is.
#[derive(Clone, Debug)]
pub struct Authorities {
    shelf: Arc<dyn Shelf>,
    /// Revocation lists that were read, by their files.
    known: Arc<Mutex<HashMap<String, Arc<Lists>>>>,
}

/// A file of revocation lists, as it was and as it was read.
struct Lists {
    bytes: Vec<u8>,
    lists: Vec<CertRevocationList<'static>>,
    /// The last of them begins to be valid then.
    begins: Duration,
}

impl fmt::Debug for Lists {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} lists", self.lists.len())
    }
}

impl Lists {
    fn decode(bytes: Vec<u8>) -> Result<Lists, String> {
        let unread = |why: String| format!("cannot be read ({why}); fetch it anew (fetch-crl)");
        let (mut lists, mut begins) = (Vec::new(), Duration::ZERO);
        for der in CertificateRevocationListDer::pem_slice_iter(&bytes) {
            let der = der.map_err(|error| unread(error.to_string()))?;
            let list =
                BorrowedCertRevocationList::from_der(&der).map_err(|error| unread(error.to_string()))?;
            let list: OwnedCertRevocationList = list.to_owned().map_err(|error| unread(error.to_string()))?;
            begins = begins.max(self::begins(&der).ok_or_else(|| unread("it has no time".into()))?);
            lists.push(list.into());
        }
        if lists.is_empty() {
            return Err("holds none; fetch it anew (fetch-crl)".into());
        }
        Ok(Lists { bytes, lists, begins })
    }
}

/// What is known of the names that a chain leads through.
#[derive(Default)]
struct Gathered {
    anchors: Vec<Cert>,
    between: Vec<Cert>,
    names: Vec<Dn>,
    /// Why one that would fit does not count.
    flaw: Option<GsiError>,
}

impl Authorities {
    pub fn new(shelf: impl Shelf + 'static) -> Authorities {
        Authorities { shelf: Arc::new(shelf), known: Arc::default() }
    }

    /// Who it is that shows this chain, his own certificate or proxy first. That he has its key is not
    /// shown by that, but by who signs with it.
    ///
    /// # Errors
    /// He is nobody that this host knows; in words that say why.
    pub fn verify(
        &self,
        chain: &[CertificateDer<'_>],
        purpose: &Purpose<'_>,
        now: UnixTime,
    ) -> Result<Verified, GsiError> {
        if chain.len() > CHAIN_MAX {
            return Err(GsiError::untrusted("its chain of certificates is longer than any real one"));
        }
        let chain = chain.iter().map(|der| Cert::read(der)).collect::<Result<Vec<_>, _>>()?;
        let proxies = chain.iter().take_while(|cert| matches!(cert.kind, Kind::Proxy { .. })).count();
        let (shown, behind) = chain.split_at(proxies);
        let Some((own, behind)) = behind.split_first() else {
            return Err(match shown.is_empty() {
                true => GsiError::untrusted("it shows no certificate"),
                false => GsiError::untrusted("it shows proxies, and nothing that says whose they are"),
            });
        };
        if own.kind == Kind::Authority {
            return Err(GsiError::Untrusted(format!("it comes as {}, which is an authority", own.subject)));
        }
        if let Some(foreign) = behind.iter().find(|cert| cert.kind != Kind::Authority) {
            return Err(GsiError::Untrusted(format!(
                "behind the certificate of {} stands that of {}, which is no authority",
                own.subject, foreign.subject
            )));
        }
        // The cheap ones first.
        let mut ends = own.ends;
        for cert in shown.iter().chain([own]) {
            cert.check_time(now)?;
            ends = ends.min(cert.ends);
        }
        self.check_own(own, behind, purpose, now)?;
        let rights = check_proxies(shown, own)?;
        Ok(Verified { identity: own.subject.clone(), proxies, rights, ends: ends.as_secs() })
    }

    /// Somebody's own certificate, up to an authority of this host.
    fn check_own(
        &self,
        own: &Cert,
        behind: &[Cert],
        purpose: &Purpose<'_>,
        now: UnixTime,
    ) -> Result<(), GsiError> {
        let words =
            |error: webpki::Error| GsiError::Untrusted(format!("its certificate is not valid: {error}"));
        let gathered = self.gather(own, behind, now)?;
        let anchors: Vec<TrustAnchor<'_>> = gathered
            .anchors
            .iter()
            .map(|cert| webpki::anchor_from_trusted_cert(&cert.der))
            .collect::<Result<_, _>>()
            .map_err(words)?;
        let Some(nearest) = gathered.names.first().filter(|_| !anchors.is_empty()) else {
            return Err(gathered.flaw.unwrap_or_else(|| self.unknown(&own.issuer)));
        };
        let between: Vec<CertificateDer<'_>> =
            behind.iter().chain(&gathered.between).map(|cert| cert.der.clone()).collect();
        let lists = self.lists(&gathered.names, now)?;
        let lists: Vec<&CertRevocationList<'_>> = lists.iter().flat_map(|lists| &lists.lists).collect();
        let revocation = RevocationOptionsBuilder::new(&lists).ok().map(|builder| {
            builder
                .with_depth(RevocationCheckDepth::Chain)
                .with_status_policy(UnknownStatusPolicy::Allow)
                .with_expiration_policy(ExpirationPolicy::Enforce)
                .build()
        });
        let all: Vec<&Cert> = [own].into_iter().chain(behind).chain(&gathered.between).collect();
        let refused = RefCell::new(None);
        let policies = RefCell::new(BTreeMap::new());
        let lets = |path: &webpki::VerifiedPath<'_>| {
            let ders = path.intermediate_certificates().map(|cert| cert.der());
            let result = [own.der.clone()].into_iter().chain(ders).try_for_each(|der| {
                let cert = all.iter().find(|cert| cert.der == der);
                let cert =
                    cert.ok_or_else(|| GsiError::untrusted("its chain is not the one that it shows"))?;
                self.check_policy(cert, &mut policies.borrow_mut())
            });
            result.map_err(|error| {
                refused.replace(Some(error));
                webpki::Error::NameConstraintViolation
            })
        };
        let certificate = EndEntityCert::try_from(&own.der).map_err(words)?;
        let algorithms = provider().signature_verification_algorithms.all;
        let usage = Usage { of_host: matches!(purpose, Purpose::Host(_)) };
        let verified =
            certificate.verify_for_usage(algorithms, &anchors, &between, now, usage, revocation, Some(&lets));
        if let Err(error) = verified {
            let list = || format!("{}.r0 in {}", nearest.hash(), self.shelf.place());
            return Err(match (refused.take(), error) {
                (Some(refused), webpki::Error::NameConstraintViolation) => refused,
                (_, webpki::Error::CertRevoked) => {
                    GsiError::Untrusted(format!("the certificate of {} was revoked", own.subject))
                }
                (_, webpki::Error::CrlExpired { .. }) => GsiError::Untrusted(format!(
                    "the revocation list of its authority has expired ({}): nobody knows what was revoked since; fetch a new one \
                     (fetch-crl)",
                    list()
                )),
                (_, webpki::Error::InvalidCrlSignatureForPublicKey) => GsiError::Untrusted(format!(
                    "the revocation list of its authority ({}) is not signed by it",
                    list()
                )),
                // The second: another authority of the same name.
                (_, webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey) => {
                    self.unknown(&own.issuer)
                }
                (_, error) => words(error),
            });
        }
        match purpose {
            Purpose::Host(host) => check_host(&certificate, own, host),
            Purpose::Somebody => Ok(()),
        }
    }

    fn unknown(&self, issuer: &Dn) -> GsiError {
        GsiError::Untrusted(format!(
            "its certificate comes from no authority that this host trusts (of {issuer} there is no {}.0 in {} that fits); \
             X509_CERT_DIR can name a directory with the certificate of another one",
            issuer.hash(),
            self.shelf.place()
        ))
    }

    /// What this host has of the authorities above a certificate.
    fn gather(&self, own: &Cert, behind: &[Cert], now: UnixTime) -> Result<Gathered, GsiError> {
        let mut gathered = Gathered::default();
        let mut asked: Vec<Dn> = [own].into_iter().chain(behind).map(|cert| cert.issuer.clone()).collect();
        asked.reverse();
        while let Some(name) = asked.pop() {
            if gathered.names.contains(&name) {
                continue;
            }
            if gathered.names.len() == NAMES_MAX {
                return Err(GsiError::untrusted(
                    "its chain leads through more authorities than any real one",
                ));
            }
            let hash = name.hash();
            for number in 0..FILES_MAX {
                let file = format!("{hash}.{number}");
                let Some(bytes) = self.read(&file, CERTS_LEN_MAX)? else { break };
                for der in CertificateDer::pem_slice_iter(&bytes).flatten() {
                    let cert = match Cert::read(&der) {
                        Ok(cert) if cert.subject == name => cert,
                        Ok(_) => continue,
                        Err(error) => {
                            let place = self.shelf.place();
                            gathered.flaw = Some(GsiError::Untrusted(format!("{file} in {place}: {error}")));
                            continue;
                        }
                    };
                    if let Err(error) = cert.check_time(now) {
                        gathered.flaw = Some(error);
                    } else if cert.subject == cert.issuer {
                        gathered.anchors.push(cert);
                    } else {
                        asked.push(cert.issuer.clone());
                        gathered.between.push(cert);
                    }
                }
            }
            gathered.names.push(name);
        }
        Ok(gathered)
    }

    /// The revocation lists that this host has of these authorities.
    fn lists(&self, names: &[Dn], now: UnixTime) -> Result<Vec<Arc<Lists>>, GsiError> {
        let mut all = Vec::new();
        for name in names {
            let hash = name.hash();
            for number in 0..FILES_MAX {
                let file = format!("{hash}.r{number}");
                let Some(bytes) = self.read(&file, LIST_LEN_MAX)? else { break };
                let place = format!("the revocation list {file} in {}", self.shelf.place());
                let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
                // One of a large authority takes longer to decode than all the rest.
                let lists = match known.get(&file).filter(|lists| lists.bytes == bytes) {
                    Some(lists) => lists.clone(),
                    None => {
                        let lists = Lists::decode(bytes);
                        let lists =
                            Arc::new(lists.map_err(|why| GsiError::Untrusted(format!("{place} {why}")))?);
                        if known.len() >= KNOWN_MAX {
                            known.clear();
                        }
                        known.insert(file, lists.clone());
                        lists
                    }
                };
                drop(known);
                if !lists.lists.iter().any(|list| is_of(list, name)) {
                    return Err(GsiError::Untrusted(format!(
                        "{place} is another authority's; fetch it anew (fetch-crl)"
                    )));
                }
                if lists.begins > Duration::from_secs(now.as_secs()) {
                    return Err(GsiError::Untrusted(format!("{place} is not valid yet")));
                }
                all.push(lists);
            }
        }
        Ok(all)
    }

    fn check_policy(&self, cert: &Cert, read: &mut BTreeMap<String, Policy>) -> Result<(), GsiError> {
        let file = format!("{}.signing_policy", cert.issuer.hash());
        let place = format!("{file} in {}", self.shelf.place());
        if !read.contains_key(&file) {
            let text = self.read(&file, POLICY_LEN_MAX as u64)?.ok_or_else(|| {
                GsiError::Untrusted(format!(
                    "this host has no signing policy of {} ({place}), and without one it speaks for nobody; it comes with the \
                     authority's certificate",
                    cert.issuer
                ))
            })?;
            let policy = Policy::parse(&text)
                .map_err(|why| GsiError::Untrusted(format!("the signing policy {place} {why}")))?;
            read.insert(file.clone(), policy);
        }
        read[&file].check(&cert.issuer, &cert.subject, &place)
    }

    fn read(&self, file: &str, len_max: u64) -> Result<Option<Vec<u8>>, GsiError> {
        self.shelf.read(file, len_max).map_err(|error| {
            let place = self.shelf.place();
            GsiError::Untrusted(format!(
                "{file} in {place} cannot be read: {}",
                haul_base::errno::text(&error)
            ))
        })
    }
}

/// What this crate computes with.
pub(crate) fn provider() -> CryptoProvider {
    aws_lc_rs::default_provider()
}

/// The proxies between somebody's own certificate and the one that he shows; what the last of them may.
fn check_proxies(shown: &[Cert], own: &Cert) -> Result<Rights, GsiError> {
    let (mut issuer, mut rights, mut left) = (own, Rights::All, None::<u32>);
    for proxy in shown.iter().rev() {
        let Kind::Proxy { rights: its, path_len } = proxy.kind else { continue };
        let no = |why: &str| Err(GsiError::Untrusted(format!("the proxy {} {why}", proxy.subject)));
        if proxy.issuer != issuer.subject {
            return no("is not of whose certificate stands behind it");
        }
        if proxy.subject.common_name_behind(&issuer.subject).is_none() {
            return no("has another name than its issuer's and one common name behind it");
        }
        if issuer.usage.as_ref().is_some_and(|usage| !usage.digital_signature()) {
            return no("was signed with a key that is not for signing");
        }
        if proxy.usage.as_ref().is_some_and(|usage| !usage.digital_signature() || usage.key_cert_sign()) {
            return no("has a key of another use than a proxy's");
        }
        proxy.check_extensions_of_proxy()?;
        if left == Some(0) {
            return no("comes behind one that lets no further proxy come");
        }
        left = [left.map(|left| left - 1), path_len].into_iter().flatten().min();
        if rights == Rights::Limited && its != Rights::Limited {
            return no("claims more than the limited one that it comes from");
        }
        rights = its;
        check_signature(proxy, issuer)?;
        issuer = proxy;
    }
    Ok(rights)
}

fn check_signature(cert: &Cert, issuer: &Cert) -> Result<(), GsiError> {
    let (signed, algorithm, signature) = cert.signed()?;
    let key = SubjectPublicKeyInfoDer::from(issuer.spki()?);
    check_signed(&key, &algorithm, signed, signature).map_err(|()| {
        GsiError::Untrusted(format!(
            "the certificate of {} was not signed by {}",
            cert.subject, issuer.subject
        ))
    })
}

/// Whether a signature by this algorithm is of this key.
pub(crate) fn check_signed(
    key: &SubjectPublicKeyInfoDer<'_>,
    algorithm: &[u8],
    signed: &[u8],
    signature: &[u8],
) -> Result<(), ()> {
    let key = RawPublicKeyEntity::try_from(key).map_err(|_| ())?;
    let provider = provider();
    let mut fitting = provider
        .signature_verification_algorithms
        .all
        .iter()
        .filter(|known| known.signature_alg_id().as_ref() == algorithm);
    fitting.any(|known| key.verify_signature(*known, signed, signature).is_ok()).then_some(()).ok_or(())
}

/// RFC 2818, and where a certificate has no further names, its common name, which may begin with `host/`.
fn check_host(certificate: &EndEntityCert<'_>, own: &Cert, host: &str) -> Result<(), GsiError> {
    let name = ServerName::try_from(host)
        .map_err(|_| GsiError::Untrusted(format!("{host} is no name that a certificate could be for")))?;
    if certificate.verify_is_valid_for_subject_name(&name).is_ok() {
        return Ok(());
    }
    let names = own.host_names();
    let other = match names.is_empty() {
        true => {
            let common = own.subject.common_name().unwrap_or_default();
            if common.strip_prefix("host/").unwrap_or(&common).eq_ignore_ascii_case(host) {
                return Ok(());
            }
            own.subject.to_string()
        }
        false => names.join(", "),
    };
    Err(GsiError::Untrusted(format!("its certificate is for {other}, and not for {host}")))
}

/// When a revocation list begins to be valid.
fn begins(der: &[u8]) -> Option<Duration> {
    let read = || {
        let mut reader = SliceReader::new(der)?;
        reader.sequence(|list| {
            let begins = list.sequence(|tbs| {
                if Tag::peek(tbs)? == Tag::Integer {
                    tbs.tlv_bytes()?;
                }
                tbs.tlv_bytes()?;
                tbs.tlv_bytes()?;
                let begins = Time::decode(tbs)?;
                tbs.drain(tbs.remaining_len())?;
                Ok::<_, der::Error>(begins)
            })?;
            list.drain(list.remaining_len())?;
            Ok::<_, der::Error>(begins)
        })
    };
    read().ok().map(Time::to_unix_duration)
}

/// Whether a list says of itself that it is this authority's. What it tells of its issuer are the contents of
/// the name, without tag and length, which are at most four bytes here.
fn is_of(list: &CertRevocationList<'_>, name: &Dn) -> bool {
    name.der().strip_suffix(list.issuer()).is_some_and(|head| (2..=4).contains(&head.len()))
}

/// What the certificate of a host must be for; and that of somebody, who is on a data connection either end.
struct Usage {
    of_host: bool,
}

impl ExtendedKeyUsageValidator for Usage {
    fn validate(&self, iter: KeyPurposeIdIter<'_, '_>) -> Result<(), webpki::Error> {
        if self.of_host {
            return KeyUsage::server_auth().validate(iter);
        }
        let mut present = Vec::new();
        for purpose in iter {
            present.push(purpose?.to_decoded_oid());
        }
        let known = [&[1, 3, 6, 1, 5, 5, 7, 3, 1][..], &[1, 3, 6, 1, 5, 5, 7, 3, 2]];
        if present.is_empty() || present.iter().any(|purpose| known.contains(&&purpose[..])) {
            return Ok(());
        }
        let required = KeyUsage::client_auth();
        Err(webpki::Error::RequiredEkuNotFoundContext(RequiredEkuNotFoundContext { required, present }))
    }
}

#[cfg(test)]
#[path = "verify_tests.rs"]
mod tests;
