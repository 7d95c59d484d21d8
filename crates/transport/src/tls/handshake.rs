//! The handshake: rustls, up to the point where both ends have their keys.
//!
//! In: a connection that rustls has not begun, a socket, a deadline. Out: a [`Link`].
//!
//! Invariants: the deadline is absolute, however slowly the peer sends. rustls is given no byte of the
//! records behind the handshake: what it knew of them would be lost with it. A socket that did not become a
//! link is shut down.

use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use rustls::ExtractedSecrets;
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::kernel::KernelConnection;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedConnectionCommon, UnbufferedStatus};
use socket2::{SockRef, TcpKeepalive};

use super::halves::{Incoming, Parts};
use super::invalid;
use crate::{Link, TransportError};

/// Most bytes of a peer's handshake that are held, bytes. A hello is under 1 KiB and a flight under 2 KiB.
const HANDSHAKE_LEN_MAX: usize = 64 * 1024;
/// A peer that acknowledges nothing for so long is gone.
const USER_TIMEOUT: Duration = Duration::from_secs(30);
/// An idle connection is probed after this time, and again so often.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// The two roles of a connection, which rustls keeps apart as types.
pub(super) trait Role: Sized {
    type Data: Send + 'static;
    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;
    fn common(&mut self) -> &mut UnbufferedConnectionCommon<Self::Data>;
    fn secrets(self) -> Result<(ExtractedSecrets, KernelConnection<Self::Data>), rustls::Error>;
}

impl Role for UnbufferedClientConnection {
    type Data = ClientConnectionData;
    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }
    fn common(&mut self) -> &mut UnbufferedConnectionCommon<Self::Data> {
        self
    }
    fn secrets(self) -> Result<(ExtractedSecrets, KernelConnection<Self::Data>), rustls::Error> {
        self.dangerous_into_kernel_connection()
    }
}

impl Role for UnbufferedServerConnection {
    type Data = ServerConnectionData;
    fn process<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }
    fn common(&mut self) -> &mut UnbufferedConnectionCommon<Self::Data> {
        self
    }
    fn secrets(self) -> Result<(ExtractedSecrets, KernelConnection<Self::Data>), rustls::Error> {
        self.dangerous_into_kernel_connection()
    }
}

/// Runs the handshake to its end and splits the connection.
pub(super) fn handshake<C: Role>(
    conn: C,
    stream: TcpStream,
    deadline: Duration,
) -> Result<Link, TransportError> {
    match agree(conn, &stream, deadline) {
        Ok(parts) => Ok(parts.into_link(stream)),
        Err(source) => {
            // Somebody else may hold a duplicate of the socket; the peer must see the end all the same.
            let _ = stream.shutdown(Shutdown::Both);
            Err(TransportError { what: "TLS handshake failed".into(), source: Some(source) })
        }
    }
}

/// Runs the handshake to its end and takes the keys over.
pub(super) fn agree<C: Role>(mut conn: C, stream: &TcpStream, deadline: Duration) -> io::Result<Parts> {
    let incoming = shake(&mut conn, stream, Instant::now() + deadline)?;
    tune(stream)?;
    let (secrets, kernel) = conn.secrets().map_err(invalid)?;
    Parts::new(incoming, secrets, kernel)
}

/// The handshake under an absolute deadline. What the peer sent beyond it comes back.
fn shake<C: Role>(conn: &mut C, mut stream: &TcpStream, deadline: Instant) -> io::Result<Incoming> {
    let mut incoming = Incoming::new(HANDSHAKE_LEN_MAX);
    // What rustls sees of it: whole records, one more each time that it cannot go on, and of the last one
    // what is there, so that junk is refused early. A record in part is never consumed.
    let (mut whole, mut shown) = (0, 0);
    let mut out = Vec::new();
    let remaining = || {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::Error::from(io::ErrorKind::TimedOut)) } else { Ok(left) }
    };
    let send = |mut bytes: &[u8]| -> io::Result<()> {
        while !bytes.is_empty() {
            stream.set_write_timeout(Some(remaining()?))?;
            match (&mut &*stream).write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => bytes = &bytes[n..],
                Err(error) => retry(error)?,
            }
        }
        Ok(())
    };
    loop {
        let status = conn.process(&mut incoming.filled()[..shown]);
        let discard = status.discard;
        let mut need_more = false;
        let mut done = false;
        match status.state {
            Ok(ConnectionState::EncodeTlsData(mut data)) => encode(|to| data.encode(to), &mut out)?,
            Ok(ConnectionState::TransmitTlsData(data)) => {
                send(&out)?;
                out.clear();
                data.done();
            }
            Ok(ConnectionState::BlockedHandshake) => need_more = true,
            Ok(ConnectionState::WriteTraffic(_)) => done = true,
            Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Ok(state) => return Err(io::Error::other(format!("unexpected TLS state {state:?}"))),
            Err(error) => {
                // The alert tells the peer why; that it arrives is not promised.
                let status = conn.process(&mut []);
                if let Ok(ConnectionState::EncodeTlsData(mut data)) = status.state
                    && encode(|to| data.encode(to), &mut out).is_ok()
                {
                    let _ = send(&out);
                }
                return Err(invalid(error));
            }
        }
        incoming.discard(discard);
        whole -= discard;
        shown -= discard;
        if done && !conn.common().is_handshaking() {
            stream.set_read_timeout(None)?;
            stream.set_write_timeout(None)?;
            return Ok(incoming);
        }
        if need_more || done {
            if shown == incoming.filled().len() {
                stream.set_read_timeout(Some(remaining()?))?;
                match incoming.read_from(&mut stream) {
                    Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(_) => {}
                    Err(error) => retry(error)?,
                }
            }
            if let Some(len) = raw_record(&incoming.filled()[whole..]) {
                whole += len;
                shown = whole;
            } else {
                shown = incoming.filled().len();
            }
        }
    }
}

/// The length of the first record, of whatever kind, if it is there whole. rustls judges what it says.
fn raw_record(bytes: &[u8]) -> Option<usize> {
    let [_, _, _, high, low, ..] = *bytes else { return None };
    let len = 5 + usize::from(u16::from_be_bytes([high, low]));
    (len <= bytes.len()).then_some(len)
}

/// An interrupted call is made again; a timed-out one too, until the deadline itself says no.
fn retry(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Ok(()),
        _ => Err(error),
    }
}

/// Encodes a handshake message at the end of `out`.
fn encode(
    mut encode: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>,
    out: &mut Vec<u8>,
) -> io::Result<()> {
    let len = out.len();
    match encode(&mut []) {
        Ok(_) => Ok(()),
        Err(EncodeError::InsufficientSize(need)) => {
            out.resize(len + need.required_size, 0);
            let n = encode(&mut out[len..]).map_err(io::Error::other)?;
            out.truncate(len + n);
            Ok(())
        }
        Err(error) => Err(io::Error::other(error)),
    }
}

fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE))?;
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))
}
