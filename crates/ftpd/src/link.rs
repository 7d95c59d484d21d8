//! The link between a front end and a data node: commands of the one, replies of the other, under TLS 1.3.
//!
//! In: an address or a socket, the key that both hold. Out: a socket of this machine that says what the other
//! end says. What must hold: not a byte of a command counts that was not said by who holds the key, and who
//! does not hold it hears nothing; nobody is waited for without end.
//! The handshake and the records are `haul-transport`'s: each end shows a raw key and wants just that one of
//! the other. There is one key for all, so who has its file can be front end and node.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use haul_gsi::credential::read_file;
use haul_transport::Link;
use haul_transport::tls::{self, Identity, Pin};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject as _;

use crate::config::Secret;

/// So long the other end may take to answer, and to show who it is.
const WITHIN: Duration = Duration::from_secs(10);

/// Reads the key of all nodes: Ed25519, in PKCS #8 and PEM.
///
/// # Errors
/// It cannot be used; in words with what to do.
pub fn read_key(path: &Path) -> Result<Secret, String> {
    let shown = path.display();
    let bytes = read_file(path, true)?;
    let make = "openssl genpkey -algorithm ed25519 makes one";
    let der = PrivatePkcs8KeyDer::from_pem_slice(&bytes)
        .map_err(|_| format!("{shown} holds no key that can be used; {make}"))?;
    let secret = Secret(der.secret_pkcs8_der().to_vec());
    identity(&secret).map_err(|_| format!("{shown} holds no key of Ed25519; {make}"))?;
    Ok(secret)
}

fn identity(key: &Secret) -> io::Result<(Identity, Pin)> {
    let identity = Identity::of_pkcs8(&key.0).map_err(io::Error::other)?;
    let pin = Pin(identity.public());
    Ok((identity, pin))
}

/// To a node.
///
/// # Errors
/// It is not there, or does not hold the key.
pub fn dial(to: SocketAddr, key: &Secret) -> io::Result<UnixStream> {
    let (identity, pin) = identity(key)?;
    let socket = TcpStream::connect_timeout(&to, WITHIN)?;
    ready(&socket)?;
    pump(tls::client(socket, &identity, &pin, WITHIN).map_err(io::Error::other)?)
}

/// From a front end.
///
/// # Errors
/// It does not hold the key.
pub fn accept(socket: TcpStream, key: &Secret) -> io::Result<UnixStream> {
    let (identity, pin) = identity(key)?;
    ready(&socket)?;
    pump(tls::server(socket, &identity, &pin, WITHIN).map_err(io::Error::other)?)
}

fn ready(socket: &TcpStream) -> io::Result<()> {
    socket.set_nonblocking(false)?;
    socket.set_nodelay(true)?;
    // A host that is gone without a word is noticed.
    rustix::net::sockopt::set_socket_keepalive(socket, true)?;
    rustix::net::sockopt::set_tcp_keepidle(socket, WITHIN)?;
    rustix::net::sockopt::set_tcp_keepintvl(socket, WITHIN)?;
    rustix::net::sockopt::set_tcp_keepcnt(socket, 3)?;
    Ok(())
}

/// A socket that is read and written in place of the link; the end of either is that of both.
fn pump(link: Link) -> io::Result<UnixStream> {
    let (ours, theirs) = UnixStream::pair()?;
    let Link { mut reader, mut writer, closer, .. } = link;
    let (inward, mut outward, closes) = (theirs.try_clone()?, theirs, Arc::clone(&closer));
    let mut into = inward.try_clone()?;
    std::thread::Builder::new().name("link-in".into()).spawn(move || {
        copy(&mut reader, &mut into);
        let _ = inward.shutdown(Shutdown::Both);
        closes();
    })?;
    std::thread::Builder::new().name("link-out".into()).spawn(move || {
        copy(&mut outward, &mut writer);
        let _ = outward.shutdown(Shutdown::Both);
        closer();
    })?;
    ours.set_nonblocking(true)?;
    Ok(ours)
}

fn copy(from: &mut dyn Read, to: &mut dyn Write) {
    let mut bytes = zeroize::Zeroizing::new([0; 16 << 10]);
    loop {
        match from.read(&mut bytes[..]) {
            Ok(0) => return,
            Ok(len) => {
                if to.write_all(&bytes[..len]).and_then(|()| to.flush()).is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}
