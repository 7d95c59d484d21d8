//! Certificates for tests, made as they run: authorities, people, proxies, lists.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use der::asn1::{BitString, ObjectIdentifier};
use der::{Decode, Encode};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use rustls::sign::SigningKey;
use std::sync::Arc;
use x509_cert::crl::{CertificateList, RevokedCert, TbsCertList};
use x509_cert::ext::Extension;
use x509_cert::name::Name;
use x509_cert::serial_number::SerialNumber;
use x509_cert::spki::SubjectPublicKeyInfoOwned;
use x509_cert::time::Validity;

use crate::cert::{BASIC_CONSTRAINTS, KEY_USAGE};
use crate::credential::Credential;
use crate::name::{Dn, tlv};
use crate::proxy::{Tbs, extension, sign, signed, time};
use crate::verify::{Authorities, provider};

/// When tests take place, as far as nobody looks at the clock.
pub(crate) const NOW: u64 = 1_800_000_000;
/// From before any clock to behind any.
pub(crate) const ALWAYS: (u64, u64) = (1_000_000_000, 4_000_000_000);
pub(crate) const SUBJECT_ALT_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.17");

pub(crate) fn now() -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(NOW))
}

/// A name of these parts.
pub(crate) fn dn(parts: &[(&str, &str)]) -> Dn {
    let mut all = Vec::new();
    for (kind, value) in parts {
        let (oid, tag) = match *kind {
            "CN" => ("2.5.4.3", 0x0c),
            "O" => ("2.5.4.10", 0x0c),
            "C" => ("2.5.4.6", 0x13),
            "emailAddress" => ("1.2.840.113549.1.9.1", 0x16),
            other => panic!("no kind {other}"),
        };
        let oid = ObjectIdentifier::new_unwrap(oid).to_der().expect("an identifier");
        all.extend(tlv(0x31, &tlv(0x30, &[oid, tlv(tag, value.as_bytes())].concat())));
    }
    Dn::of_der(&tlv(0x30, &all)).expect("a name")
}

/// A key.
pub(crate) struct Key {
    pub(crate) signing: Arc<dyn SigningKey>,
    der: Vec<u8>,
}

impl Key {
    pub(crate) fn new() -> Key {
        let random = aws_lc_rs::rand::SystemRandom::new();
        let der = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random).expect("a key");
        let der = der.as_ref().to_vec();
        Key { signing: provider_key(&der), der }
    }

    pub(crate) fn private(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.der.clone()))
    }

    pub(crate) fn spki(&self) -> SubjectPublicKeyInfoOwned {
        let der = self.signing.public_key().expect("a public key");
        SubjectPublicKeyInfoOwned::from_der(&der).expect("a public key")
    }
}

fn provider_key(der: &[u8]) -> Arc<dyn SigningKey> {
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(der.to_vec()));
    provider().key_provider.load_private_key(key).expect("a key")
}

/// What a certificate is to be, when it is not plain.
pub(crate) struct Made<'a> {
    pub(crate) subject: &'a Dn,
    pub(crate) issuer: &'a Dn,
    pub(crate) by: &'a Key,
    pub(crate) times: (u64, u64),
    pub(crate) extensions: Vec<Extension>,
    pub(crate) serial: u8,
}

pub(crate) fn certificate(key: &Key, made: Made<'_>) -> CertificateDer<'static> {
    let (_, signature) = (0, signed(&*made.by.signing, b"").expect("a signature").0);
    let tbs = Tbs {
        version: 2,
        serial: SerialNumber::new(&[made.serial]).expect("a number"),
        signature,
        issuer: Name::from_der(made.issuer.der()).expect("a name"),
        validity: Validity::new(time(made.times.0).expect("a time"), time(made.times.1).expect("a time")),
        subject: Name::from_der(made.subject.der()).expect("a name"),
        key: key.spki(),
        extensions: made.extensions,
    };
    sign(&tbs, &*made.by.signing).expect("a certificate").into()
}

/// Bits of a key usage, first as RFC 5280 has them.
pub(crate) fn usage(bits: u8) -> Extension {
    extension(KEY_USAGE, &[0x03, 0x02, 0x00, bits]).expect("an extension")
}

/// Digital signature and key encipherment.
pub(crate) const SIGNS: u8 = 0xa0;
/// Of certificates and lists.
pub(crate) const CERTIFIES: u8 = 0x06;

pub(crate) fn constraints(ca: bool) -> Extension {
    let value: &[u8] = if ca { &[0x30, 0x03, 0x01, 0x01, 0xff] } else { &[0x30, 0x00] };
    extension(BASIC_CONSTRAINTS, value).expect("an extension")
}

pub(crate) fn alternative(general_names: &[u8]) -> Extension {
    extension(SUBJECT_ALT_NAME, &tlv(0x30, general_names)).expect("an extension")
}

/// An authority of a grid, and what a host has of it.
pub(crate) struct Grid {
    pub(crate) name: Dn,
    pub(crate) key: Key,
    pub(crate) cert: CertificateDer<'static>,
    pub(crate) shelf: HashMap<String, Vec<u8>>,
}

impl Grid {
    pub(crate) fn new() -> Grid {
        Grid::called("Authority")
    }

    pub(crate) fn called(name: &str) -> Grid {
        let (name, key) = (dn(&[("CN", name)]), Key::new());
        let extensions = vec![constraints(true), usage(CERTIFIES)];
        let cert = certificate(
            &key,
            Made { subject: &name, issuer: &name, by: &key, times: ALWAYS, extensions, serial: 1 },
        );
        let mut grid = Grid { name, key, cert, shelf: HashMap::new() };
        grid.put("0", pem("CERTIFICATE", &grid.cert));
        grid.put("signing_policy", grid.policy("\"/O=Grid/*\""));
        grid
    }

    pub(crate) fn put(&mut self, what: &str, bytes: Vec<u8>) {
        self.shelf.insert(format!("{}.{what}", self.name.hash()), bytes);
    }

    pub(crate) fn policy(&self, subjects: &str) -> Vec<u8> {
        format!(
            "access_id_CA X509 '{}'\npos_rights globus CA:sign\ncond_subjects globus '{subjects}'\n",
            self.name
        )
        .into_bytes()
    }

    pub(crate) fn authorities(&self) -> Authorities {
        Authorities::new(self.shelf.clone())
    }

    /// The certificate of somebody.
    pub(crate) fn signs(&self, subject: &Dn, extensions: Vec<Extension>, times: (u64, u64)) -> Somebody {
        let key = Key::new();
        let made = Made { subject, issuer: &self.name, by: &self.key, times, extensions, serial: 42 };
        Somebody { chain: vec![certificate(&key, made)], name: subject.clone(), key }
    }

    pub(crate) fn user(&self, name: &str) -> Somebody {
        let subject = dn(&[("O", "Grid"), ("CN", name)]);
        self.signs(&subject, vec![constraints(false), usage(SIGNS)], ALWAYS)
    }

    /// A host by its address, `127.0.0.1`.
    pub(crate) fn host(&self) -> Somebody {
        let subject = dn(&[("O", "Grid"), ("CN", "host")]);
        let names = alternative(&tlv(0x87, &[127, 0, 0, 1]));
        self.signs(&subject, vec![constraints(false), usage(SIGNS), names], ALWAYS)
    }

    /// A list of what this authority takes back, as `by` signs it.
    pub(crate) fn list(&self, by: &Key, serials: &[u8], times: (u64, u64)) -> Vec<u8> {
        let (algorithm, _) = signed(&*by.signing, b"").expect("a signature");
        let revoked: Vec<RevokedCert> = serials
            .iter()
            .map(|serial| RevokedCert {
                serial_number: SerialNumber::new(&[*serial]).expect("a number"),
                revocation_date: time(times.0).expect("a time"),
                crl_entry_extensions: None,
            })
            .collect();
        let tbs = TbsCertList {
            version: x509_cert::Version::V2,
            signature: algorithm.clone(),
            issuer: Name::from_der(self.name.der()).expect("a name"),
            this_update: time(times.0).expect("a time"),
            next_update: Some(time(times.1).expect("a time")),
            revoked_certificates: (!revoked.is_empty()).then_some(revoked),
            crl_extensions: Some(vec![Extension {
                extn_id: ObjectIdentifier::new_unwrap("2.5.29.20"),
                critical: false,
                extn_value: der::asn1::OctetString::new(vec![0x02, 0x01, 0x01]).expect("a number"),
            }]),
        };
        let (_, signature) = signed(&*by.signing, &tbs.to_der().expect("a list")).expect("a signature");
        let signature = BitString::from_bytes(&signature).expect("bits");
        let list: CertificateList =
            CertificateList { tbs_cert_list: tbs, signature_algorithm: algorithm, signature };
        pem("X509 CRL", &list.to_der().expect("a list"))
    }
}

pub(crate) fn pem(label: &str, der: &[u8]) -> Vec<u8> {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for (i, three) in der.chunks(3).enumerate() {
        if i % 16 == 0 {
            text.push('\n');
        }
        let bits =
            three.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for n in 0..4 {
            let letter = LETTERS[usize::try_from(bits >> (18 - 6 * n) & 63).expect("small")];
            text.push(if n <= three.len() { char::from(letter) } else { '=' });
        }
    }
    format!("-----BEGIN {label}-----{text}\n-----END {label}-----\n").into_bytes()
}

/// Who has a chain and its key.
pub(crate) struct Somebody {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) name: Dn,
    pub(crate) key: Key,
}

impl Somebody {
    pub(crate) fn credential(&self) -> Credential {
        Credential::of(self.chain.clone(), self.key.private(), PathBuf::from("a test")).expect("a credential")
    }

    /// A proxy of RFC 3820, with what of it is to be different.
    pub(crate) fn proxy(&self, form: ProxyForm) -> Somebody {
        let subject = match form.subject {
            Some(subject) => subject,
            None => {
                Dn::of_der(&crate::proxy::below(self.name.der(), "12345").expect("a name")).expect("a name")
            }
        };
        let info = tlv(
            0x30,
            &[form.path_len.map(|len| vec![2, 1, len]).unwrap_or_default(), policy(form.language)].concat(),
        );
        let mut extensions =
            vec![usage(form.usage), extension(crate::cert::PROXY_INFO, &info).expect("an extension")];
        extensions[1].critical = form.critical;
        extensions.extend(form.more);
        let key = Key::new();
        let made = Made {
            subject: &subject,
            issuer: form.issuer.as_ref().unwrap_or(&self.name),
            by: form.by.unwrap_or(&self.key),
            times: form.times,
            extensions,
            serial: 7,
        };
        let chain = [certificate(&key, made)].into_iter().chain(self.chain.iter().cloned()).collect();
        Somebody { chain, name: subject, key }
    }
}

fn policy(language: &str) -> Vec<u8> {
    tlv(0x30, &ObjectIdentifier::new_unwrap(language).to_der().expect("an identifier"))
}

pub(crate) const ALL: &str = "1.3.6.1.5.5.7.21.1";
pub(crate) const LIMITED: &str = "1.3.6.1.4.1.3536.1.1.1.9";

pub(crate) struct ProxyForm<'a> {
    pub(crate) subject: Option<Dn>,
    pub(crate) issuer: Option<Dn>,
    pub(crate) by: Option<&'a Key>,
    pub(crate) times: (u64, u64),
    pub(crate) path_len: Option<u8>,
    pub(crate) language: &'a str,
    pub(crate) critical: bool,
    pub(crate) usage: u8,
    pub(crate) more: Vec<Extension>,
}

impl Default for ProxyForm<'_> {
    fn default() -> Self {
        ProxyForm {
            subject: None,
            issuer: None,
            by: None,
            times: ALWAYS,
            path_len: None,
            language: ALL,
            critical: true,
            usage: SIGNS,
            more: Vec::new(),
        }
    }
}
