//! Who a server under TLS is: the check of its certificate.
//!
//! In: the certificates that this host trusts, and what a server shows. Out: whether it is the one that was
//! meant; if not, words that say what to do.
//! Invariants: a certificate counts if one of the trusted ones vouches for it, or if it is one of these
//! itself, byte for byte; in either case it must be valid now and for the name that was typed, and the server
//! shows by a signature that it has the key.
//! Source: rustls and webpki. webpki takes no certificate of an authority (CA:TRUE) for a server's, whoever
//! trusts it. Many instruments and NAS boxes have just such ones, for `openssl req -x509` makes them by
//! itself, and OpenSSL's own clients take them where they are trusted.
//! Left out: what else a certificate that is trusted itself says it is for; who names it means it.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, RootCertStore, SignatureScheme};

/// Checks certificates of servers.
#[derive(Debug)]
pub(crate) struct Identity {
    authorities: Arc<WebPkiServerVerifier>,
    /// All that are trusted, as they came.
    named: Vec<CertificateDer<'static>>,
}

impl Identity {
    /// By these certificates. What is none is passed over.
    ///
    /// # Errors
    /// None is one.
    pub(crate) fn new(
        named: Vec<CertificateDer<'static>>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Identity, String> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(named.iter().cloned());
        let authorities = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
        let authorities = authorities
            .map_err(|_| "this host trusts no authority that could say who a server is".to_owned())?;
        Ok(Identity { authorities, named })
    }

    fn is_named(&self, shown: &CertificateDer<'_>) -> bool {
        self.named.iter().any(|named| named == shown)
            || haul_mutant::removed("ftp-named-certificates-are-compared")
    }
}

impl ServerCertVerifier for Identity {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verdict = self.authorities.verify_server_cert(shown, between, name, ocsp, now);
        match &verdict {
            // Both are said only of a certificate that is valid now.
            Err(error) if (is_authoritys(error) || is_nobodys(error)) && self.is_named(shown) => {
                if !haul_mutant::removed("ftp-named-certificates-have-names") {
                    verify_server_name(&ParsedCertificate::try_from(shown)?, name)?;
                }
                Ok(ServerCertVerified::assertion())
            }
            _ => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.authorities.verify_tls12_signature(message, shown, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.authorities.verify_tls13_signature(message, shown, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authorities.supported_verify_schemes()
    }
}

/// It is a certificate of an authority, which comes as a server. The checks have no other name for that.
fn is_authoritys(error: &rustls::Error) -> bool {
    matches!(error, rustls::Error::InvalidCertificate(CertificateError::Other(other))
        if other.to_string().contains("CaUsedAsEndEntity"))
}

/// Nobody who is trusted vouches for it.
fn is_nobodys(error: &rustls::Error) -> bool {
    matches!(error, rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer))
}

/// Why a certificate, or what else TLS needs, is not taken. `shows`: the command that shows what the server
/// has.
pub(crate) fn words_of(error: &rustls::Error, shows: &str) -> String {
    let named = format!(
        "name a file with that very certificate in SSL_CERT_FILE: `{shows}` shows it, and its fingerprint must be the server's"
    );
    match error {
        error if is_authoritys(error) => format!(
            "its certificate is one of an authority (CA:TRUE), with which a server may come only where it is trusted itself; {named}. \
             Or make it another one, with openssl by -addext basicConstraints=critical,CA:FALSE"
        ),
        // The second: another authority of the same name.
        rustls::Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => format!(
            "its certificate comes from no authority that this host trusts; SSL_CERT_FILE can name a file with the certificate of \
             another one; or {named}"
        ),
        rustls::Error::InvalidCertificate(error) => format!("its certificate is not valid: {error}"),
        error => error.to_string(),
    }
}
