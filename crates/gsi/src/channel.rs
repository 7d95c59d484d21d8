//! Data connections between two who must show who they are (`DCAU`), and perhaps protect what they say
//! (`PROT`).
//!
//! In: a connection that is up, which end of TLS this is (who dialled begins), as whom it comes, whom it
//! expects, and what is to be protected. Out: what to read from and write to.
//! Invariants: not a byte of data goes before the other end was verified to be whom it should be. Without
//! protection exactly the bytes of the handshake are read, and none behind them.
//! Source: seen at Globus: under `PROT C` the end that waited says a byte behind the handshake, the other one
//! `0`, and then data go as they are; under `PROT S` and `P` they go in TLS, without these.

use std::io::{self, IoSlice, Read, Write};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use rustls::{ClientConnection, ConnectionCommon, ServerConnection, SideData, StreamOwned};

use crate::GsiError;
use crate::credential::Credential;
use crate::name::Dn;
use crate::peer::{Peer, Who, client, server};
use crate::verify::{Authorities, Verified};

/// Longest record of TLS, behind its head.
const RECORD_LEN_MAX: usize = (16 << 10) + 2048;
/// Most records of a handshake.
const RECORDS_MAX: usize = 64;

/// Which end of TLS this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It dialled.
    Dialled,
    /// It listened.
    Listened,
}

/// What of the data is protected, once both ends showed who they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Nothing (`PROT C`).
    Clear,
    /// All is encrypted and cannot be changed (`PROT P`; `PROT S` is the same in TLS as it is today).
    Private,
}

/// Whom a data connection must lead to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expects {
    /// Oneself, or who has one's proxy (`DCAU A`).
    Identity(Dn),
    /// Who is called so (`DCAU S`).
    Subject(String),
}

/// Why a data connection did not come up.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    #[error(transparent)]
    Gsi(#[from] GsiError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What to read from and write to.
pub enum Wrapped<S: Read + Write> {
    Clear(S),
    Client(Box<StreamOwned<ClientConnection, S>>),
    Server(Box<StreamOwned<ServerConnection, S>>),
}

impl<S: Read + Write> Wrapped<S> {
    /// The connection below.
    pub fn stream(&self) -> &S {
        match self {
            Wrapped::Clear(stream) => stream,
            Wrapped::Client(tls) => &tls.sock,
            Wrapped::Server(tls) => &tls.sock,
        }
    }

    /// The same, to be set.
    pub fn stream_mut(&mut self) -> &mut S {
        match self {
            Wrapped::Clear(stream) => stream,
            Wrapped::Client(tls) => &mut tls.sock,
            Wrapped::Server(tls) => &mut tls.sock,
        }
    }

    /// Over another stream, which is the same connection.
    pub fn map<T: Read + Write>(self, other: impl FnOnce(S) -> T) -> Wrapped<T> {
        match self {
            Wrapped::Clear(stream) => Wrapped::Clear(other(stream)),
            Wrapped::Client(tls) => {
                let StreamOwned { conn, sock } = *tls;
                Wrapped::Client(Box::new(StreamOwned { conn, sock: other(sock) }))
            }
            Wrapped::Server(tls) => {
                let StreamOwned { conn, sock } = *tls;
                Wrapped::Server(Box::new(StreamOwned { conn, sock: other(sock) }))
            }
        }
    }

    /// Says that nothing more comes, so that the other end does not take it for cut off. What is in the clear
    /// says that by its connection alone.
    ///
    /// # Errors
    /// The connection broke.
    pub fn end(&mut self) -> io::Result<()> {
        match self {
            Wrapped::Clear(_) => return Ok(()),
            Wrapped::Client(tls) => tls.conn.send_close_notify(),
            Wrapped::Server(tls) => tls.conn.send_close_notify(),
        }
        self.flush()
    }
}

impl<S: Read + Write> Read for Wrapped<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Wrapped::Clear(stream) => stream.read(buffer),
            // Without the other end's last record it is an error: somebody on the way may have cut it off.
            Wrapped::Client(tls) => tls.read(buffer),
            Wrapped::Server(tls) => tls.read(buffer),
        }
    }
}

impl<S: Read + Write> Write for Wrapped<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Wrapped::Clear(stream) => stream.write(bytes),
            Wrapped::Client(tls) => tls.write(bytes),
            Wrapped::Server(tls) => tls.write(bytes),
        }
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Wrapped::Clear(stream) => stream.write_vectored(parts),
            Wrapped::Client(tls) => tls.write_vectored(parts),
            Wrapped::Server(tls) => tls.write_vectored(parts),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Wrapped::Clear(stream) => stream.flush(),
            Wrapped::Client(tls) => tls.flush(),
            Wrapped::Server(tls) => tls.flush(),
        }
    }
}

/// Has both ends of a connection that is up show who they are. Its reads and writes end as the stream's do.
///
/// # Errors
/// The other end is not whom it should be, or does not speak so; the connection broke.
pub fn wrap<S: Read + Write>(
    mut stream: S,
    side: Side,
    level: Level,
    (mine, authorities, expects): (&Credential, &Authorities, &Expects),
) -> Result<(Wrapped<S>, Verified), ChannelError> {
    let who = match expects {
        Expects::Identity(dn) => Who::Identity(dn.clone()),
        Expects::Subject(text) => Who::Called(text.clone()),
    };
    let peer = Peer::new(authorities, who);
    let wrapped = match side {
        Side::Dialled => {
            let mut connection = client(mine, &peer)?;
            shake(&mut connection, &mut stream, &peer)?;
            match level {
                Level::Clear => {
                    if hear(&mut connection, &mut stream, &peer)? != [0] {
                        return Err(GsiError::broken("it does not say the byte that it should say").into());
                    }
                    say(&mut connection, &mut stream, b"0")?;
                    Wrapped::Clear(stream)
                }
                Level::Private => Wrapped::Client(Box::new(StreamOwned::new(connection, stream))),
            }
        }
        Side::Listened => {
            let mut connection = server(mine, &peer)?;
            let said_last = shake(&mut connection, &mut stream, &peer)?;
            match level {
                Level::Clear => {
                    // What ended the handshake stands for the byte.
                    if !said_last {
                        say(&mut connection, &mut stream, &[0])?;
                    }
                    if hear(&mut connection, &mut stream, &peer)? != *b"0" {
                        return Err(GsiError::broken("it does not say the byte that it should say").into());
                    }
                    Wrapped::Clear(stream)
                }
                Level::Private => Wrapped::Server(Box::new(StreamOwned::new(connection, stream))),
            }
        }
    };
    let (verified, _) = peer.verified().ok_or_else(|| GsiError::broken("it showed no certificate"))?;
    Ok((wrapped, verified))
}

/// Runs the handshake; whether this end said the last of it.
fn shake<C, D, S>(connection: &mut C, stream: &mut S, peer: &Arc<Peer>) -> Result<bool, ChannelError>
where
    C: DerefMut + Deref<Target = ConnectionCommon<D>>,
    D: SideData,
    S: Read + Write,
{
    for _ in 0..RECORDS_MAX {
        let mut said = false;
        while connection.wants_write() {
            connection.write_tls(stream)?;
            said = true;
        }
        if said {
            stream.flush()?;
        }
        if !connection.is_handshaking() {
            return Ok(said);
        }
        record(connection, stream, peer)?;
    }
    Err(GsiError::broken("the two do not come to an end").into())
}

/// Reads exactly one record, so that what is behind it stays in the stream.
fn record<C, D, S>(connection: &mut C, stream: &mut S, peer: &Arc<Peer>) -> Result<(), ChannelError>
where
    C: DerefMut + Deref<Target = ConnectionCommon<D>>,
    D: SideData,
    S: Read + Write,
{
    let mut record = vec![0; 5];
    read_all(stream, &mut record)?;
    let len = usize::from(u16::from_be_bytes([record[3], record[4]]));
    if !(20..=23).contains(&record[0]) || record[1] != 3 || len > RECORD_LEN_MAX {
        return Err(GsiError::broken("the other end does not speak TLS on the data connection").into());
    }
    record.resize(5 + len, 0);
    read_all(stream, &mut record[5..])?;
    let mut rest = &record[..];
    while !rest.is_empty() {
        connection.read_tls(&mut rest)?;
        if let Err(error) = connection.process_new_packets() {
            // It is told why, if it still listens.
            let _ = connection.write_tls(stream).and_then(|_| stream.flush());
            let error = peer
                .failed()
                .unwrap_or_else(|| GsiError::Broken(format!("TLS on the data connection: {error}")));
            return Err(error.into());
        }
    }
    Ok(())
}

fn read_all(stream: &mut impl Read, mut buffer: &mut [u8]) -> io::Result<()> {
    while !buffer.is_empty() {
        match stream.read(buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(len) => buffer = &mut buffer[len..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn hear<C, D, S>(connection: &mut C, stream: &mut S, peer: &Arc<Peer>) -> Result<Vec<u8>, ChannelError>
where
    C: DerefMut + Deref<Target = ConnectionCommon<D>>,
    D: SideData,
    S: Read + Write,
{
    record(connection, stream, peer)?;
    let mut heard = [0; 2];
    match connection.reader().read(&mut heard) {
        Ok(len) => Ok(heard[..len].to_vec()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}

fn say<C, D, S>(connection: &mut C, stream: &mut S, what: &[u8]) -> Result<(), ChannelError>
where
    C: DerefMut + Deref<Target = ConnectionCommon<D>>,
    D: SideData,
    S: Read + Write,
{
    connection.writer().write_all(what)?;
    while connection.wants_write() {
        connection.write_tls(stream)?;
    }
    Ok(stream.flush()?)
}

#[cfg(test)]
#[path = "channel_tests.rs"]
mod tests;
