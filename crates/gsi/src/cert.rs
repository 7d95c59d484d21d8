//! One certificate: what of it matters here.
//!
//! In: DER. Out: its names, its times, what it may do, and of which kind it is.
//! Invariants: bounded; an extension that is there twice, or that does not decode, is an error, never its
//! absence. Nothing here trusts anything: that is `verify`'s.
//! Source: RFC 5280, RFC 3820; the older kinds of proxies as Globus had them.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use der::asn1::{ObjectIdentifier, OctetString};
use der::{Decode, Encode, Reader, Sequence, SliceReader};
use rustls::pki_types::{CertificateDer, UnixTime};
use x509_cert::Certificate;
use x509_cert::certificate::Version;
use x509_cert::ext::Extension;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::ext::pkix::{BasicConstraints, KeyUsage, SubjectAltName};

use crate::GsiError;
use crate::name::Dn;

/// Most bytes of a certificate.
pub const CERT_LEN_MAX: usize = 64 << 10;

pub(crate) const PROXY_INFO: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.1.14");
/// Of the draft that became RFC 3820.
const DRAFT_PROXY_INFO: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.4.1.3536.1.222");
const ANY_LANGUAGE: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.21.0");
pub(crate) const INHERIT_ALL: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.21.1");
const INDEPENDENT: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.21.2");
/// Of Globus: all but starting jobs.
pub(crate) const LIMITED: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.4.1.3536.1.1.1.9");
pub(crate) const BASIC_CONSTRAINTS: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.19");
pub(crate) const KEY_USAGE: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.15");
const EXT_KEY_USAGE: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.37");
const SUBJECT_ALT_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.17");
const ISSUER_ALT_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.18");
const SUBJECT_KEY_ID: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.14");
const AUTHORITY_KEY_ID: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.35");

/// RFC 3820, 3.8.
#[derive(Clone, Debug, Sequence)]
pub(crate) struct ProxyInfo {
    #[asn1(optional = "true")]
    pub(crate) path_len: Option<u32>,
    pub(crate) policy: ProxyPolicy,
}

#[derive(Clone, Debug, Sequence)]
pub(crate) struct ProxyPolicy {
    pub(crate) language: ObjectIdentifier,
    #[asn1(optional = "true")]
    pub(crate) policy: Option<OctetString>,
}

/// What a proxy may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// All that its issuer may.
    All,
    /// All but what Globus keeps from it: to start jobs. Files are open to it.
    Limited,
}

/// Of which kind a certificate is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Authority,
    /// Somebody's own.
    EndEntity,
    /// RFC 3820. `path_len`: so many proxies may come behind it.
    Proxy {
        rights: Rights,
        path_len: Option<u32>,
    },
}

/// Whether a certificate is valid now.
///
/// # Errors
/// It is not, or nobody can tell; in words, with its name and the date.
pub fn check_times(der: &[u8], now: UnixTime) -> Result<(), String> {
    let read = Certificate::from_der(der).map_err(|error| format!("it cannot be read: {error}"))?;
    let (tbs, now) = (read.tbs_certificate(), Duration::from_secs(now.as_secs()));
    let (begins, ends) = (tbs.validity().not_before, tbs.validity().not_after);
    let subject = tbs.subject().to_string();
    match (now < begins.to_unix_duration(), ends.to_unix_duration() <= now) {
        (true, _) => Err(format!("the certificate of {subject} is not valid before {begins}")),
        (_, true) => Err(format!("the certificate of {subject} expired at {ends}")),
        (false, false) => Ok(()),
    }
}

/// A certificate that was read.
pub(crate) struct Cert {
    pub(crate) der: CertificateDer<'static>,
    pub(crate) read: Certificate,
    pub(crate) subject: Dn,
    pub(crate) issuer: Dn,
    pub(crate) kind: Kind,
    pub(crate) usage: Option<KeyUsage>,
    pub(crate) begins: Duration,
    pub(crate) ends: Duration,
}

impl Cert {
    pub(crate) fn read(der: &[u8]) -> Result<Cert, GsiError> {
        let no = |why: &str| GsiError::untrusted(why);
        if der.len() > CERT_LEN_MAX {
            return Err(no("a certificate of its chain is longer than any real one"));
        }
        let read = Certificate::from_der(der).map_err(|error| {
            GsiError::Untrusted(format!("a certificate of its chain cannot be read: {error}"))
        })?;
        let tbs = read.tbs_certificate();
        let (subject, issuer) = (Dn::of_name(tbs.subject())?, Dn::of_name(tbs.issuer())?);
        let mut seen = Vec::new();
        for extension in tbs.extensions().into_iter().flatten() {
            if seen.contains(&extension.extn_id) {
                return Err(GsiError::Untrusted(format!(
                    "{subject} has the extension {} twice",
                    extension.extn_id
                )));
            }
            seen.push(extension.extn_id);
        }
        let unread = |what: &str| GsiError::Untrusted(format!("the {what} of {subject} cannot be read"));
        let extension =
            |oid| tbs.extensions().into_iter().flatten().find(move |e: &&Extension| e.extn_id == oid);
        let constraints = extension(BASIC_CONSTRAINTS)
            .map(|e| BasicConstraints::from_der(e.extn_value.as_bytes()))
            .transpose()
            .map_err(|_| unread("basic constraints"))?;
        let usage = extension(KEY_USAGE)
            .map(|e| KeyUsage::from_der(e.extn_value.as_bytes()))
            .transpose()
            .map_err(|_| unread("key usage"))?;
        let is_authority = constraints.as_ref().is_some_and(|constraints| constraints.ca);
        let (begins, ends) = (tbs.validity().not_before, tbs.validity().not_after);
        let kind = match extension(PROXY_INFO) {
            Some(extension) => {
                let info = ProxyInfo::from_der(extension.extn_value.as_bytes())
                    .map_err(|_| unread("proxy certificate information"))?;
                if !extension.critical {
                    return Err(GsiError::Untrusted(format!(
                        "{subject} is a proxy by an extension that is not critical"
                    )));
                }
                if is_authority {
                    return Err(GsiError::Untrusted(format!(
                        "{subject} is a proxy and an authority at once"
                    )));
                }
                Kind::Proxy { rights: rights(&info.policy, &subject)?, path_len: info.path_len }
            }
            None if extension(DRAFT_PROXY_INFO).is_some() => {
                return Err(GsiError::Untrusted(format!(
                    "{subject} is a proxy of the draft before RFC 3820, which is not taken; make one of RFC 3820 (grid-proxy-init \
                     -rfc)"
                )));
            }
            None if is_authority => Kind::Authority,
            None => {
                let behind = subject.common_name_behind(&issuer);
                if matches!(behind.as_deref(), Some(b"proxy" | b"limited proxy")) {
                    return Err(GsiError::Untrusted(format!(
                        "{subject} is a proxy of the old kind of Globus 2, which is not taken; make one of RFC 3820 \
                         (grid-proxy-init -rfc)"
                    )));
                }
                Kind::EndEntity
            }
        };
        let (begins, ends) = (begins.to_unix_duration(), ends.to_unix_duration());
        Ok(Cert { der: der.to_vec().into(), subject, issuer, kind, usage, begins, ends, read })
    }

    /// Of X.509: 1, 2 or 3.
    pub(crate) fn version(&self) -> u8 {
        match self.read.tbs_certificate().version() {
            Version::V1 => 1,
            Version::V2 => 2,
            Version::V3 => 3,
        }
    }

    /// Whether its time is now.
    pub(crate) fn check_time(&self, now: UnixTime) -> Result<(), GsiError> {
        let (now, subject) = (Duration::from_secs(now.as_secs()), &self.subject);
        if now < self.begins {
            return Err(GsiError::Untrusted(format!(
                "the certificate of {subject} is not valid yet (look at the clocks of both hosts)"
            )));
        }
        if now > self.ends {
            return Err(GsiError::Untrusted(format!("the certificate of {subject} has expired")));
        }
        Ok(())
    }

    /// What was signed, and by what its issuer signed it.
    pub(crate) fn signed(&self) -> Result<(&[u8], Vec<u8>, &[u8]), GsiError> {
        let unread = |_| GsiError::untrusted("a certificate cannot be read");
        let mut reader = SliceReader::new(&self.der).map_err(unread)?;
        let tbs = reader.sequence(|inner| {
            let tbs = inner.tlv_bytes()?;
            inner.drain(inner.remaining_len())?;
            Ok::<_, der::Error>(tbs)
        });
        let tbs = tbs.map_err(unread)?;
        let algorithm = self.read.signature_algorithm();
        if algorithm != self.read.tbs_certificate().signature() {
            return Err(GsiError::untrusted("a certificate names two algorithms for one signature"));
        }
        // As webpki has it: without the head of the sequence.
        let mut id = algorithm.oid.to_der().map_err(unread)?;
        if let Some(parameters) = &algorithm.parameters {
            id.extend(parameters.to_der().map_err(unread)?);
        }
        let signature = self.read.signature().as_bytes();
        Ok((tbs, id, signature.ok_or_else(|| GsiError::untrusted("a signature is no whole bytes"))?))
    }

    /// Its key, as it is encoded.
    pub(crate) fn spki(&self) -> Result<Vec<u8>, GsiError> {
        let key = self.read.tbs_certificate().subject_public_key_info();
        key.to_der().map_err(|_| GsiError::untrusted("a certificate's key cannot be read"))
    }

    pub(crate) fn has(&self, oid: ObjectIdentifier) -> bool {
        self.read.tbs_certificate().extensions().into_iter().flatten().any(|e| e.extn_id == oid)
    }

    /// Its further names that are those of hosts. What cannot be read is one, under which nobody is known.
    pub(crate) fn host_names(&self) -> Vec<String> {
        let mut all = self.read.tbs_certificate().extensions().into_iter().flatten();
        let Some(extension) = all.find(|e| e.extn_id == SUBJECT_ALT_NAME) else { return Vec::new() };
        let Ok(names) = SubjectAltName::from_der(extension.extn_value.as_bytes()) else {
            return vec!["names that cannot be read".into()];
        };
        let text = |name: &GeneralName| match name {
            GeneralName::DnsName(name) => Some(name.to_string()),
            GeneralName::IpAddress(address) => Some(match address.as_bytes() {
                [a, b, c, d] => Ipv4Addr::new(*a, *b, *c, *d).to_string(),
                bytes => <[u8; 16]>::try_from(bytes)
                    .map_or("an address that is none".into(), |bytes| Ipv6Addr::from(bytes).to_string()),
            }),
            _ => None,
        };
        names.0.iter().filter_map(text).collect()
    }

    /// What a proxy must not have, and what nobody here understands.
    pub(crate) fn check_extensions_of_proxy(&self) -> Result<(), GsiError> {
        let subject = &self.subject;
        if self.has(SUBJECT_ALT_NAME) || self.has(ISSUER_ALT_NAME) {
            return Err(GsiError::Untrusted(format!(
                "the proxy {subject} has a further name, which none may have"
            )));
        }
        let known =
            [BASIC_CONSTRAINTS, KEY_USAGE, EXT_KEY_USAGE, SUBJECT_KEY_ID, AUTHORITY_KEY_ID, PROXY_INFO];
        let mut all = self.read.tbs_certificate().extensions().into_iter().flatten();
        match all.find(|e| e.critical && !known.contains(&e.extn_id)) {
            None => Ok(()),
            Some(e) => Err(GsiError::Untrusted(format!(
                "the proxy {subject} has the critical extension {}, which is not understood",
                e.extn_id
            ))),
        }
    }
}

fn rights(policy: &ProxyPolicy, subject: &Dn) -> Result<Rights, GsiError> {
    let no = |why: String| Err(GsiError::Untrusted(format!("the proxy {subject} {why}")));
    match policy.language {
        INHERIT_ALL | LIMITED if policy.policy.is_some() => {
            no("has a policy in a language that has none".into())
        }
        INHERIT_ALL => Ok(Rights::All),
        LIMITED => Ok(Rights::Limited),
        INDEPENDENT => no("is an independent one: it has no rights of whom it is of".into()),
        ANY_LANGUAGE => no("may what two agreed upon, and nothing was".into()),
        language => no(format!("says what it may in the language {language}, which is not understood")),
    }
}
