//! TLS of either end, with `verify` as its only word about the other one.
//!
//! In: as whom this end comes, whom it trusts, whom it expects. Out: a connection; after its handshake, who
//! the other end is.
//! Invariants: no handshake is over without [`Authorities::verify`], a signature with the key of what was
//! verified, and whoever was expected. Sessions are never resumed, for a resumed one shows no certificate.

use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::{CryptoProvider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, DistinguishedName, Error,
    OtherError, PeerMisbehaved, ServerConfig, ServerConnection, SignatureScheme,
};

use crate::GsiError;
use crate::cert::Cert;
use crate::credential::Credential;
use crate::name::Dn;
use crate::verify::{Authorities, Purpose, Verified, provider};

/// Whom this end expects at the other one.
#[derive(Clone, Debug)]
pub(crate) enum Who {
    /// The host of this name.
    Host(String),
    /// Who has this very name, by whichever proxy.
    Identity(Dn),
    /// The same by this certificate alone (DER).
    Proxy(Dn, Vec<u8>),
    /// Who is called so.
    Called(String),
    /// Anybody that this host knows.
    Anybody,
}

/// Looks at who the other end is, once.
#[derive(Debug)]
pub(crate) struct Peer {
    authorities: Authorities,
    who: Who,
    provider: CryptoProvider,
    outcome: Mutex<Outcome>,
}

#[derive(Debug, Default)]
struct Outcome {
    verified: Option<(Verified, Vec<CertificateDer<'static>>)>,
    failed: Option<GsiError>,
}

impl Peer {
    pub(crate) fn new(authorities: &Authorities, who: Who) -> Arc<Peer> {
        let (authorities, outcome) = (authorities.clone(), Mutex::default());
        Arc::new(Peer { authorities, who, provider: provider(), outcome })
    }

    /// Who it is, and by which chain.
    pub(crate) fn verified(&self) -> Option<(Verified, Vec<CertificateDer<'static>>)> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner).verified.clone()
    }

    /// Why it was not taken.
    pub(crate) fn failed(&self) -> Option<GsiError> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner).failed.clone()
    }

    pub(crate) fn authorities(&self) -> &Authorities {
        &self.authorities
    }

    fn look(
        &self,
        own: &CertificateDer<'_>,
        behind: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        let chain: Vec<CertificateDer<'static>> =
            [own].into_iter().chain(behind).map(|cert| cert.clone().into_owned()).collect();
        let mut outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        match self.judged(&chain, now) {
            Ok(verified) => {
                outcome.verified = Some((verified, chain));
                Ok(())
            }
            Err(error) => {
                outcome.failed = Some(error.clone());
                Err(Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(error)))))
            }
        }
    }

    fn judged(&self, chain: &[CertificateDer<'static>], now: UnixTime) -> Result<Verified, GsiError> {
        let purpose = match &self.who {
            Who::Host(host) => Purpose::Host(host),
            _ => Purpose::Somebody,
        };
        let verified = self.authorities.verify(chain, &purpose, now)?;
        let (is_whom, whom) = match &self.who {
            Who::Host(_) | Who::Anybody => (true, ""),
            Who::Identity(dn) | Who::Proxy(dn, _) => (verified.identity == *dn, dn.text()),
            Who::Called(text) => (verified.identity.is_called(text), &**text),
        };
        if !is_whom {
            let identity = &verified.identity;
            return Err(GsiError::Untrusted(format!("the other end is {identity}, and should be {whom}")));
        }
        if let Who::Proxy(_, der) = &self.who
            && chain.first().is_none_or(|own| own.as_ref() != der)
        {
            let why = "the other end is of another session than this one: it shows a proxy that was not delegated in this one";
            return Err(GsiError::untrusted(why));
        }
        Ok(verified)
    }

    /// A signature with the key of the certificate, which webpki would not read if it is a proxy.
    fn signed12(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = key_of(cert)?;
        let key = webpki::RawPublicKeyEntity::try_from(&key).map_err(|_| bad_signature())?;
        let known = self.provider.signature_verification_algorithms.mapping;
        let (_, algorithms) = known
            .iter()
            .find(|(scheme, _)| *scheme == dss.scheme)
            .ok_or(Error::PeerMisbehaved(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme))?;
        let fits = algorithms.iter().any(|one| key.verify_signature(*one, message, dss.signature()).is_ok());
        if fits { Ok(HandshakeSignatureValid::assertion()) } else { Err(bad_signature()) }
    }

    fn signed13(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls13_signature_with_raw_key(message, &key_of(cert)?, dss, known)
    }

    fn schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn bad_signature() -> Error {
    Error::InvalidCertificate(CertificateError::BadSignature)
}

fn key_of(cert: &CertificateDer<'_>) -> Result<SubjectPublicKeyInfoDer<'static>, Error> {
    let key = Cert::read(cert).and_then(|cert| cert.spki());
    key.map(SubjectPublicKeyInfoDer::from)
        .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))
}

impl ServerCertVerifier for Peer {
    fn verify_server_cert(
        &self,
        own: &CertificateDer<'_>,
        behind: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.look(own, behind, now).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed12(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed13(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

impl ClientCertVerifier for Peer {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        own: &CertificateDer<'_>,
        behind: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.look(own, behind, now).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed12(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed13(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

/// As whom this end comes, whoever asks.
#[derive(Debug)]
pub(crate) struct Mine(pub(crate) Arc<CertifiedKey>);

impl ResolvesClientCert for Mine {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl ResolvesServerCert for Mine {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }
}

/// The end that begins.
pub(crate) fn client(mine: &Credential, peer: &Arc<Peer>) -> Result<ClientConnection, GsiError> {
    let here = |error: Error| GsiError::Here(error.to_string());
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider()))
        .with_safe_default_protocol_versions()
        .map_err(here)?
        .dangerous()
        .with_custom_certificate_verifier(peer.clone())
        .with_client_cert_resolver(Arc::new(Mine(mine.certified().clone())));
    config.resumption = Resumption::disabled();
    // Which name it should have is `Peer`'s to say, and no name is said in the clear.
    config.enable_sni = false;
    let name = ServerName::try_from("peer.invalid").map_err(|_| GsiError::Here("a name is none".into()))?;
    ClientConnection::new(Arc::new(config), name).map_err(here)
}

/// The end that waits, and asks for a certificate.
pub(crate) fn server(mine: &Credential, peer: &Arc<Peer>) -> Result<ServerConnection, GsiError> {
    let here = |error: Error| GsiError::Here(error.to_string());
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider()))
        .with_safe_default_protocol_versions()
        .map_err(here)?
        .with_client_cert_verifier(peer.clone())
        .with_cert_resolver(Arc::new(Mine(mine.certified().clone())));
    config.session_storage = Arc::new(NoServerSessionStorage {});
    // A ticket would stand where the other end expects a byte.
    config.send_tls13_tickets = 0;
    ServerConnection::new(Arc::new(config)).map_err(here)
}
