//! TLS 1.3 over TCP, each end pinned to the other's raw public key (RFC 7250).
//!
//! In: a connected socket, our [`Identity`], the peer's [`Pin`] (it came through ssh), a deadline for the
//! handshake. Out: a [`Link`].
//!
//! Invariants: nothing but TLS 1.3 with exactly the pinned key on the other side becomes a link; the key
//! exchange is signed and the signature is checked. No resumption, no tickets, no early data, so nothing can
//! be replayed. A connection that ends without `close_notify` is an error, never EOF. Neither half holds a
//! lock while it waits for the socket.
//!
//! A client learns only at its first read that the server refused its key: in TLS 1.3 its handshake is over
//! before the server has seen the key.
//!
//! The handshake is rustls' ([`handshake`]). The records behind it are sealed and opened here ([`record`],
//! [`seal`], [`open`]) with the keys that it made, each byte in one pass of the cipher between the caller's
//! buffer and the socket's; [`halves`] reads and writes them. On the wire it is TLS 1.3 as anybody speaks it.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption, UnbufferedClientConnection};
use rustls::crypto::{CryptoProvider, aws_lc_rs as provider};
use rustls::pki_types::ServerName;
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage, UnbufferedServerConnection};
use rustls::{ClientConfig, Error, ServerConfig};

use super::{Link, TransportError};
use handshake::handshake;
use identity::PinVerifier;
pub use identity::{Identity, Pin};

mod halves;
mod handshake;
mod identity;
pub mod open;
#[cfg(test)]
mod peer_tests;
pub mod record;
#[cfg(test)]
mod record_tests;
pub mod seal;
#[cfg(test)]
mod tests;

/// The application protocol that both ends must name.
const ALPN: &[u8] = b"haul/1";

/// Makes a link of a connection that we dialled.
///
/// `deadline` bounds the whole handshake, however slowly the peer sends.
///
/// # Errors
/// The peer does not hold the pinned key, does not speak TLS 1.3 and `haul/1`, is too slow, or is gone.
/// The stream is closed then.
pub fn client(
    stream: TcpStream,
    identity: &Identity,
    pin: &Pin,
    deadline: Duration,
) -> Result<Link, TransportError> {
    let config = client_config(crypto(), identity, pin).map_err(refused)?;
    handshake(client_connection(config).map_err(refused)?, stream, deadline)
}

/// Makes a link of a connection that we accepted; otherwise like [`client`].
///
/// # Errors
/// As [`client`]; from a listener they mean a stray connection, to be counted and forgotten.
pub fn server(
    stream: TcpStream,
    identity: &Identity,
    pin: &Pin,
    deadline: Duration,
) -> Result<Link, TransportError> {
    server_of(stream, identity, std::slice::from_ref(pin), deadline).map(|(link, _)| link)
}

/// The same for peers of whom each holds one of several keys; which of them, by its place among `pins`.
///
/// # Errors
/// As [`server`].
pub fn server_of(
    stream: TcpStream,
    identity: &Identity,
    pins: &[Pin],
    deadline: Duration,
) -> Result<(Link, usize), TransportError> {
    let (config, shown) = server_config(crypto(), identity, pins).map_err(refused)?;
    let link = handshake(server_connection(config).map_err(refused)?, stream, deadline)?;
    Ok((link, shown.load(Ordering::Acquire)))
}

fn client_config(crypto: CryptoProvider, identity: &Identity, pin: &Pin) -> Result<ClientConfig, Error> {
    let crypto = Arc::new(crypto);
    let verifier = Arc::new(PinVerifier::new(std::slice::from_ref(pin), crypto.clone()));
    let mut config = ClientConfig::builder_with_provider(crypto)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(identity.certified())));
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    config.enable_early_data = false;
    config.enable_sni = false;
    config.enable_secret_extraction = true;
    Ok(config)
}

fn client_connection(config: ClientConfig) -> Result<UnbufferedClientConnection, Error> {
    UnbufferedClientConnection::new(Arc::new(config), no_name())
}

/// A name is required and means nothing: the key is the name.
fn no_name() -> ServerName<'static> {
    ServerName::try_from("haul").expect("a legal name")
}

/// With it comes which of the pins the peer showed, once the handshake is over.
fn server_config(
    crypto: CryptoProvider,
    identity: &Identity,
    pins: &[Pin],
) -> Result<(ServerConfig, Arc<AtomicUsize>), Error> {
    let crypto = Arc::new(crypto);
    let verifier = Arc::new(PinVerifier::new(pins, crypto.clone()));
    let shown = verifier.shown();
    let mut config = ServerConfig::builder_with_provider(crypto)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(identity.certified())));
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    config.enable_secret_extraction = true;
    Ok((config, shown))
}

fn server_connection(config: ServerConfig) -> Result<UnbufferedServerConnection, Error> {
    UnbufferedServerConnection::new(Arc::new(config))
}

/// What we offer: one cipher, the one that this CPU is fast at, and the other for peers that are not.
fn crypto() -> CryptoProvider {
    use provider::cipher_suite::{TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256};
    let mut suites = vec![TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256];
    if !cpu_has_aes() {
        suites.reverse();
    }
    CryptoProvider { cipher_suites: suites, ..provider::default_provider() }
}

fn cpu_has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return false;
}

fn refused(error: Error) -> TransportError {
    TransportError { what: "TLS handshake failed".into(), source: Some(invalid(error)) }
}

fn invalid(error: Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
