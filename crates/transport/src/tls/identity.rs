//! Who the two ends of a connection are: a key pair for one session, and the key that the peer must hold.
//!
//! In: randomness; the peer's public key, from the trusted channel. Out: what rustls asks for to prove the
//! one and to check the other. Invariant: a peer is believed only with the pinned key, and only after it
//! signed this very handshake with it. Left out: names, chains, expiry: the key is the name and lives as long
//! as the session.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::Ed25519KeyPair;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs as provider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, PeerIncompatible, SignatureScheme};

use crate::TransportError;

/// One end's key pair, made for one session, or shared by those that are to know each other.
#[derive(Clone)]
pub struct Identity {
    pub(super) key: Arc<dyn SigningKey>,
    pub(super) public: SubjectPublicKeyInfoDer<'static>,
}

impl Identity {
    /// A fresh Ed25519 key pair.
    ///
    /// # Errors
    /// If the system has no randomness to give.
    pub fn generate() -> Result<Identity, TransportError> {
        let failed = |_| TransportError { what: "making a session key failed".into(), source: None };
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(failed)?;
        let der = PrivatePkcs8KeyDer::from(pkcs8.as_ref());
        let key = provider::sign::any_eddsa_type(&der).expect("a key that was just made is well-formed");
        let public = key.public_key().expect("Ed25519 keys know their public half").into_owned();
        Ok(Identity { key, public })
    }

    /// The Ed25519 key pair of a file: PKCS #8, in DER. For ends that share one.
    ///
    /// # Errors
    /// It is another key, or none.
    pub fn of_pkcs8(der: &[u8]) -> Result<Identity, TransportError> {
        let failed = || TransportError { what: "this is no key of Ed25519".into(), source: None };
        let key = provider::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(der)).map_err(|_| failed())?;
        let public = key.public_key().ok_or_else(failed)?.into_owned();
        Ok(Identity { key, public })
    }

    /// The public key, as a DER SubjectPublicKeyInfo: what the other end pins.
    pub fn public(&self) -> Vec<u8> {
        self.public.as_ref().to_vec()
    }

    pub(super) fn certified(&self) -> Arc<CertifiedKey> {
        Arc::new(CertifiedKey::new(vec![CertificateDer::from(self.public())], self.key.clone()))
    }
}

/// The one key (DER SubjectPublicKeyInfo) that the peer must prove to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin(pub Vec<u8>);

/// Believes one key of some, and only after it signed this handshake.
#[derive(Debug)]
pub(super) struct PinVerifier {
    pins: Vec<Pin>,
    crypto: Arc<CryptoProvider>,
    /// Which of them the peer showed; it counts once the handshake is over.
    shown: Arc<AtomicUsize>,
}

impl PinVerifier {
    pub(super) fn new(pins: &[Pin], crypto: Arc<CryptoProvider>) -> PinVerifier {
        PinVerifier { pins: pins.to_vec(), crypto, shown: Arc::default() }
    }

    pub(super) fn shown(&self) -> Arc<AtomicUsize> {
        self.shown.clone()
    }

    fn check_key(&self, key: &CertificateDer<'_>) -> Result<(), rustls::Error> {
        if haul_mutant::removed("pinned-key") {
            return Ok(());
        }
        let is_it = |pin: &Pin| verify_slices_are_equal(key.as_ref(), &pin.0).is_ok();
        let shown = self.pins.iter().position(is_it);
        let shown = shown.ok_or(CertificateError::ApplicationVerificationFailure)?;
        self.shown.store(shown, Ordering::Release);
        Ok(())
    }
    fn check_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        if haul_mutant::removed("handshake-signature") {
            return Ok(HandshakeSignatureValid::assertion());
        }
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        verify_tls13_signature_with_raw_key(
            message,
            &key,
            signed,
            &self.crypto.signature_verification_algorithms,
        )
    }
    fn no_tls12() -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }
}

impl ServerCertVerifier for PinVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.check_key(end_entity).map(|()| ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Self::no_tls12()
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.check_signature(message, cert, dss)
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for PinVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }
    fn client_auth_mandatory(&self) -> bool {
        true
    }
    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.check_key(end_entity).map(|()| ClientCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Self::no_tls12()
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.check_signature(message, cert, dss)
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
