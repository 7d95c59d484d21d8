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
use std::sync::Arc;

use rustls::{ClientConnection, Connection, ServerConnection, StreamOwned};

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
    /// Who has this very proxy, and its key: the one that was delegated to the server of this session, which
    /// nobody else has (`DCAU A`, at the end that delegated it). Of the identity alone one cannot tell from
    /// another session of the same user.
    Proxy(Dn, Vec<u8>),
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

    /// Bytes were taken from the connection that nobody has read: it need not show anything for a read to
    /// yield some.
    pub fn holds(&self) -> bool {
        match self {
            Wrapped::Clear(_) => false,
            Wrapped::Client(tls) => !tls.conn.wants_read(),
            Wrapped::Server(tls) => !tls.conn.wants_read(),
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
    with: (&Credential, &Authorities, &Expects),
) -> Result<(Wrapped<S>, Verified), ChannelError> {
    let mut handshake = Handshake::new(side, level, with)?;
    handshake.go_on(&mut stream)?;
    handshake.end(stream)
}

/// Both ends of a connection show who they are, over a stream that may have nothing to read, or no room to
/// write, for now.
pub struct Handshake {
    connection: Connection,
    peer: Arc<Peer>,
    side: Side,
    level: Level,
    step: Step,
    /// The record that comes: as long as is known of it, and how much of that is there.
    record: Vec<u8>,
    have: usize,
    /// Records that came.
    records: usize,
    /// Something was said since the last one.
    said: bool,
}

/// What comes next.
#[derive(Clone, Copy)]
enum Step {
    Shakes,
    /// The other end has this byte to say.
    Hears(u8),
    /// Nothing but what is to be written.
    Ends,
}

impl Handshake {
    /// As whom this end comes, whom it trusts and whom it expects.
    ///
    /// # Errors
    /// TLS cannot be had with the credential.
    pub fn new(
        side: Side,
        level: Level,
        (mine, authorities, expects): (&Credential, &Authorities, &Expects),
    ) -> Result<Handshake, GsiError> {
        let who = match expects {
            Expects::Identity(dn) => Who::Identity(dn.clone()),
            Expects::Proxy(dn, der) => Who::Proxy(dn.clone(), der.clone()),
            Expects::Subject(text) => Who::Called(text.clone()),
        };
        let peer = Peer::new(authorities, who);
        let connection = match side {
            Side::Dialled => client(mine, &peer)?.into(),
            Side::Listened => server(mine, &peer)?.into(),
        };
        let (step, record) = (Step::Shakes, Vec::new());
        Ok(Handshake { connection, peer, side, level, step, record, have: 0, records: 0, said: false })
    }

    /// Goes on to its end; then [`Handshake::end`] has what to read from. Where the stream's error is
    /// [`io::ErrorKind::WouldBlock`] it is to be called again when there is something to read, or room to
    /// write if [`Handshake::wants_write`].
    ///
    /// # Errors
    /// The other end is not whom it should be, or does not speak so; those of the stream.
    pub fn go_on(&mut self, stream: &mut (impl Read + Write)) -> Result<(), ChannelError> {
        loop {
            while self.connection.wants_write() {
                self.connection.write_tls(stream)?;
                self.said = true;
            }
            stream.flush()?;
            self.step = match self.step {
                Step::Shakes if self.connection.is_handshaking() => {
                    self.hear(stream)?;
                    Step::Shakes
                }
                Step::Shakes => match (self.level, self.side) {
                    (Level::Private, _) => Step::Ends,
                    (Level::Clear, Side::Dialled) => Step::Hears(0),
                    (Level::Clear, Side::Listened) => {
                        // What ended the handshake stands for the byte.
                        if !self.said {
                            self.connection.writer().write_all(&[0])?;
                        }
                        Step::Hears(b'0')
                    }
                },
                Step::Hears(byte) => {
                    self.hear(stream)?;
                    let mut heard = [0; 2];
                    let len = match self.connection.reader().read(&mut heard) {
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                        read => read?,
                    };
                    if heard[..len] != [byte] {
                        return Err(GsiError::broken("it does not say the byte that it should say").into());
                    }
                    if self.side == Side::Dialled {
                        self.connection.writer().write_all(b"0")?;
                    }
                    Step::Ends
                }
                Step::Ends => return Ok(()),
            };
        }
    }

    /// There is something that the stream had no room for.
    pub fn wants_write(&self) -> bool {
        self.connection.wants_write()
    }

    /// What to read from and write to once it is over, and who the other end is.
    ///
    /// # Errors
    /// It is not over.
    pub fn end<S: Read + Write>(self, stream: S) -> Result<(Wrapped<S>, Verified), ChannelError> {
        if !matches!(self.step, Step::Ends) || self.connection.wants_write() {
            return Err(GsiError::broken("the other end did not show who it is").into());
        }
        let verified = self.peer.verified().ok_or_else(|| GsiError::broken("it showed no certificate"))?.0;
        let wrapped = match (self.level, self.connection) {
            (Level::Clear, _) => Wrapped::Clear(stream),
            (Level::Private, Connection::Client(connection)) => {
                Wrapped::Client(Box::new(StreamOwned::new(connection, stream)))
            }
            (Level::Private, Connection::Server(connection)) => {
                Wrapped::Server(Box::new(StreamOwned::new(connection, stream)))
            }
        };
        Ok((wrapped, verified))
    }

    /// Reads exactly one record, so that what is behind it stays in the stream.
    fn hear(&mut self, stream: &mut (impl Read + Write)) -> Result<(), ChannelError> {
        const HEAD_LEN: usize = 5;
        if self.record.is_empty() {
            if self.records == RECORDS_MAX {
                return Err(GsiError::broken("the two do not come to an end").into());
            }
            self.record.resize(HEAD_LEN, 0);
        }
        self.fill(stream)?;
        if self.record.len() == HEAD_LEN {
            let len = usize::from(u16::from_be_bytes([self.record[3], self.record[4]]));
            if !(20..=23).contains(&self.record[0]) || self.record[1] != 3 || len > RECORD_LEN_MAX {
                let why = "the other end does not speak TLS on the data connection";
                return Err(GsiError::broken(why).into());
            }
            self.record.resize(HEAD_LEN + len, 0);
            self.fill(stream)?;
        }
        let record = std::mem::take(&mut self.record);
        (self.have, self.said) = (0, false);
        self.records += 1;
        let mut rest = &record[..];
        while !rest.is_empty() {
            self.connection.read_tls(&mut rest)?;
            if let Err(error) = self.connection.process_new_packets() {
                // It is told why, if it still listens.
                let _ = self.connection.write_tls(stream).and_then(|_| stream.flush());
                let error = self
                    .peer
                    .failed()
                    .unwrap_or_else(|| GsiError::Broken(format!("TLS on the data connection: {error}")));
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Reads what is missing of the record, as long as it is known.
    fn fill(&mut self, stream: &mut impl Read) -> io::Result<()> {
        while self.have < self.record.len() {
            match stream.read(&mut self.record[self.have..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => self.have += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "channel_tests.rs"]
mod tests;
