//! Delegation: a request for a proxy (PKCS#10), and the proxy that answers it (RFC 3820).
//!
//! In: at one end whose request it is, at the other the request and a credential. Out: bytes.
//! Invariants: a request is answered only where it is signed by the key that it is for; a proxy is never
//! valid longer than what it comes from, and gives no more rights than asked here; a proxy that came is
//! used only after the checks of `verify`, and where it is for our own key and of whom it should be.

use std::path::PathBuf;
use std::time::Duration;

use aws_lc_rs::rand;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use der::asn1::{Any, BitString, GeneralizedTime, ObjectIdentifier, OctetString, UtcTime};
use der::{Decode, Encode, Reader, Sequence, SliceReader};
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::sign::SigningKey;
use rustls::{SignatureAlgorithm, SignatureScheme};
use x509_cert::ext::Extension;
use x509_cert::name::Name;
use x509_cert::request::CertReq;
use x509_cert::serial_number::SerialNumber;
use x509_cert::spki::{AlgorithmIdentifierOwned, SubjectPublicKeyInfoOwned};
use x509_cert::time::{Time, Validity};

use crate::GsiError;
use crate::cert::{
    BASIC_CONSTRAINTS, Cert, INHERIT_ALL, KEY_USAGE, Kind, LIMITED, PROXY_INFO, ProxyInfo, ProxyPolicy,
    Rights,
};
use crate::credential::Credential;
use crate::name::tlv;
use crate::verify::{Authorities, CHAIN_MAX, Purpose, Verified, check_signed, provider};

/// Most bytes of a request.
const REQUEST_LEN_MAX: usize = 64 << 10;
/// A clock may be behind by so much.
const BEHIND: u64 = 300;

/// RFC 5280, 4.1, to be signed.
#[derive(Sequence)]
pub(crate) struct Tbs {
    #[asn1(context_specific = "0", tag_mode = "EXPLICIT")]
    pub(crate) version: u8,
    pub(crate) serial: SerialNumber,
    pub(crate) signature: AlgorithmIdentifierOwned,
    pub(crate) issuer: Name,
    pub(crate) validity: Validity,
    pub(crate) subject: Name,
    pub(crate) key: SubjectPublicKeyInfoOwned,
    #[asn1(context_specific = "3", tag_mode = "EXPLICIT")]
    pub(crate) extensions: Vec<Extension>,
}

/// A key whose proxy was asked for.
pub(crate) struct Asked {
    key: PrivateKeyDer<'static>,
    spki: Vec<u8>,
}

impl Asked {
    /// A new key, and the request for it.
    pub(crate) fn new() -> Result<(Asked, Vec<u8>), GsiError> {
        let failed = |_| GsiError::Here("no key could be made".into());
        let der = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &rand::SystemRandom::new())
            .map_err(|_| GsiError::Here("no key could be made".into()))?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(der.as_ref().to_vec()));
        let signing = provider().key_provider.load_private_key(key.clone_key()).map_err(failed)?;
        let spki =
            signing.public_key().ok_or_else(|| GsiError::Here("no key could be made".into()))?.to_vec();
        // Version 0, a name that nobody looks at, the key, no attributes.
        let subject = [0x30, 0x00];
        let info = tlv(0x30, &[&[0x02, 0x01, 0x00], &subject[..], &spki, &[0xa0, 0x00]].concat());
        let (algorithm, signature) = signed(&*signing, &info)?;
        let algorithm = algorithm.to_der().map_err(|_| GsiError::Here("no request could be made".into()))?;
        let bits = tlv(0x03, &[&[0][..], &signature].concat());
        Ok((Asked { key, spki }, tlv(0x30, &[info, algorithm, bits].concat())))
    }

    /// The credential of what came for it: the proxy, perhaps others behind it, of whom came by `chain`.
    pub(crate) fn answered(
        self,
        answer: &[u8],
        chain: &[CertificateDer<'static>],
        whose: &Verified,
        (authorities, now): (&Authorities, UnixTime),
    ) -> Result<Credential, GsiError> {
        let unread = |_| GsiError::broken("what it delegates is no certificate");
        let mut reader = SliceReader::new(answer).map_err(unread)?;
        let first = reader.tlv_bytes().map_err(unread)?;
        // Some send their chain again.
        while !reader.is_finished() {
            reader.tlv_bytes().map_err(unread)?;
        }
        let proxy = Cert::read(first)?;
        if proxy.spki()? != self.spki {
            return Err(GsiError::untrusted(
                "what it delegates is for another key than the one that was asked for",
            ));
        }
        let all: Vec<CertificateDer<'static>> =
            [proxy.der].into_iter().chain(chain.iter().cloned()).take(CHAIN_MAX + 1).collect();
        let verified = authorities.verify(&all, &Purpose::Somebody, now)?;
        if verified.identity != whose.identity || verified.proxies != whose.proxies + 1 {
            return Err(GsiError::untrusted("what it delegates is of somebody else"));
        }
        Credential::of(all, self.key, PathBuf::from("what was delegated")).map_err(GsiError::Here)
    }
}

/// The proxy among the certificates of an answer: DER.
pub(crate) fn first(answer: &[u8]) -> Result<Vec<u8>, GsiError> {
    let unread = |_| GsiError::broken("what is delegated is no certificate");
    let mut reader = SliceReader::new(answer).map_err(unread)?;
    Ok(reader.tlv_bytes().map_err(unread)?.to_vec())
}

/// The proxy of a credential for who asks, as long as `lifetime` at most and never longer than itself.
///
/// # Errors
/// The request is none, or not signed by its own key; the credential lets no proxy come.
pub fn answer(
    request: &[u8],
    of: &Credential,
    rights: Rights,
    (lifetime, now): (Duration, UnixTime),
) -> Result<Vec<u8>, GsiError> {
    let no = |why: &str| GsiError::Broken(format!("its request for a proxy {why}"));
    if request.len() > REQUEST_LEN_MAX {
        return Err(no("is longer than any real one"));
    }
    let read = CertReq::from_der(request).map_err(|_| no("cannot be read"))?;
    let key = read.info.public_key.to_der().map_err(|_| no("has no key"))?;
    let mut reader = SliceReader::new(request).map_err(|_| no("cannot be read"))?;
    let info = reader.sequence(|inner| {
        let info = inner.tlv_bytes()?;
        inner.drain(inner.remaining_len())?;
        Ok::<_, der::Error>(info)
    });
    let info = info.map_err(|_| no("cannot be read"))?;
    let mut algorithm = read.algorithm.oid.to_der().map_err(|_| no("cannot be read"))?;
    if let Some(parameters) = &read.algorithm.parameters {
        algorithm.extend(parameters.to_der().map_err(|_| no("cannot be read"))?);
    }
    let signature = read.signature.as_bytes().ok_or_else(|| no("is not signed"))?;
    check_signed(&SubjectPublicKeyInfoDer::from(&key[..]), &algorithm, info, signature)
        .map_err(|()| no("is not signed by the key that it is for, or by one that is too weak"))?;
    let ends = now.as_secs().saturating_add(lifetime.as_secs()).min(of.ends());
    issue(of, &read.info.public_key, &Form { rights, path_len: None, begins: now.as_secs() - BEHIND, ends })
}

/// What a proxy is to be.
pub(crate) struct Form {
    pub(crate) rights: Rights,
    pub(crate) path_len: Option<u32>,
    pub(crate) begins: u64,
    pub(crate) ends: u64,
}

/// A proxy of a credential for a key.
pub(crate) fn issue(
    of: &Credential,
    key: &SubjectPublicKeyInfoOwned,
    form: &Form,
) -> Result<Vec<u8>, GsiError> {
    let failed = |why: String| GsiError::Here(format!("no proxy of {} could be made: {why}", of.identity()));
    let issuer = Cert::read(&of.chain()[0])?;
    if issuer.usage.as_ref().is_some_and(|usage| !usage.digital_signature()) {
        return Err(failed("its key is not for signing".into()));
    }
    let mut rights = form.rights;
    if let Kind::Proxy { rights: its, path_len } = issuer.kind {
        if path_len == Some(0) {
            return Err(failed("it is a proxy that lets no further one come".into()));
        }
        if its == Rights::Limited {
            rights = Rights::Limited;
        }
    }
    let mut number = [0; 8];
    rand::fill(&mut number).map_err(|_| failed("there is no randomness".into()))?;
    // Positive, and not 0.
    number[0] = number[0] & 0x7f | 0x40;
    let name = u64::from_be_bytes(number).to_string();
    let der = |error: der::Error| failed(error.to_string());
    let subject =
        below(issuer.subject.der(), &name).ok_or_else(|| failed("its name cannot be read".into()))?;
    let language = match rights {
        Rights::All => INHERIT_ALL,
        Rights::Limited => LIMITED,
    };
    let info = ProxyInfo { path_len: form.path_len, policy: ProxyPolicy { language, policy: None } };
    let extensions = vec![
        // Digital signature, key encipherment.
        extension(KEY_USAGE, &[0x03, 0x02, 0x05, 0xa0]).map_err(der)?,
        extension(PROXY_INFO, &info.to_der().map_err(der)?).map_err(der)?,
    ];
    let tbs = Tbs {
        version: 2,
        serial: SerialNumber::new(&number).map_err(der)?,
        signature: algorithm(scheme(&**of.key())?.1).map_err(der)?,
        issuer: Name::from_der(issuer.subject.der()).map_err(der)?,
        validity: Validity::new(time(form.begins).map_err(der)?, time(form.ends).map_err(der)?),
        subject: Name::from_der(&subject).map_err(der)?,
        key: key.clone(),
        extensions,
    };
    sign(&tbs, &**of.key())
}

/// A certificate of what is to be signed.
pub(crate) fn sign(tbs: &Tbs, key: &dyn SigningKey) -> Result<Vec<u8>, GsiError> {
    let failed = |_| GsiError::Here("a certificate could not be encoded".into());
    let tbs = tbs.to_der().map_err(failed)?;
    let (algorithm, signature) = signed(key, &tbs)?;
    let bits = BitString::from_bytes(&signature).and_then(|bits| bits.to_der()).map_err(failed)?;
    Ok(tlv(0x30, &[tbs, algorithm.to_der().map_err(failed)?, bits].concat()))
}

pub(crate) fn signed(
    key: &dyn SigningKey,
    bytes: &[u8],
) -> Result<(AlgorithmIdentifierOwned, Vec<u8>), GsiError> {
    let (scheme, oid) = scheme(key)?;
    let failed = || GsiError::Here("nothing could be signed with the key".into());
    let signer = key.choose_scheme(&[scheme]).ok_or_else(failed)?;
    let signature = signer.sign(bytes).map_err(|_| failed())?;
    Ok((algorithm(oid).map_err(|_| failed())?, signature))
}

/// How a key signs, and what that is called in certificates.
fn scheme(key: &dyn SigningKey) -> Result<(SignatureScheme, &'static str), GsiError> {
    let known = match key.algorithm() {
        SignatureAlgorithm::RSA => vec![(SignatureScheme::RSA_PKCS1_SHA256, "1.2.840.113549.1.1.11")],
        SignatureAlgorithm::ECDSA => vec![
            (SignatureScheme::ECDSA_NISTP256_SHA256, "1.2.840.10045.4.3.2"),
            (SignatureScheme::ECDSA_NISTP384_SHA384, "1.2.840.10045.4.3.3"),
            (SignatureScheme::ECDSA_NISTP521_SHA512, "1.2.840.10045.4.3.4"),
        ],
        SignatureAlgorithm::ED25519 => vec![(SignatureScheme::ED25519, "1.3.101.112")],
        _ => Vec::new(),
    };
    let mut known = known.into_iter().filter(|(scheme, _)| key.choose_scheme(&[*scheme]).is_some());
    known.next().ok_or_else(|| GsiError::Here("the key is of a kind that signs no proxies".into()))
}

fn algorithm(oid: &str) -> Result<AlgorithmIdentifierOwned, der::Error> {
    let is_rsa = oid.starts_with("1.2.840.113549.");
    let oid = ObjectIdentifier::new(oid)?;
    Ok(AlgorithmIdentifierOwned { oid, parameters: is_rsa.then(Any::null) })
}

/// The encoding of a name with one common name more behind it.
pub(crate) fn below(name: &[u8], common: &str) -> Option<Vec<u8>> {
    let mut reader = SliceReader::new(name).ok()?;
    let inner = reader.sequence(|inner| inner.read_slice(inner.remaining_len()).map(<[u8]>::to_vec)).ok()?;
    let part = tlv(0x30, &[vec![0x06, 0x03, 0x55, 0x04, 0x03], tlv(0x13, common.as_bytes())].concat());
    Some(tlv(0x30, &[inner, tlv(0x31, &part)].concat()))
}

pub(crate) fn extension(oid: ObjectIdentifier, value: &[u8]) -> Result<Extension, der::Error> {
    Ok(Extension {
        extn_id: oid,
        critical: oid != BASIC_CONSTRAINTS || !value.is_empty(),
        extn_value: OctetString::new(value)?,
    })
}

pub(crate) fn time(secs: u64) -> Result<Time, der::Error> {
    let since = Duration::from_secs(secs);
    match UtcTime::from_unix_duration(since) {
        Ok(time) => Ok(Time::UtcTime(time)),
        Err(_) => GeneralizedTime::from_unix_duration(since).map(Time::GeneralTime),
    }
}
