//! What protects data connections under GSI (`DCAU`, `PROT`): both ends show whose they are before a byte of
//! data goes, by what the client delegated.
//!
//! In: a new socket. Out: what is read and written. What must hold: without what was agreed there is no
//! connection; none is ever less protected than that.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use haul_gsi::channel::{self, ChannelError};
use haul_gsi::{Authorities, Credential, Expects, Level, Side, Wrapped};
use rustix::event::{PollFd, PollFlags, poll};

use crate::config::SHOWN_WITHIN;
use crate::control::timespec;
use crate::data::{Guard, Stream};

/// Both ends show whose they are.
#[derive(Clone)]
pub struct Shown {
    pub mine: Credential,
    pub authorities: Authorities,
    pub expects: Expects,
    pub level: Level,
}

impl Guard for Shown {
    fn wrap(&self, socket: TcpStream, dialled: bool) -> io::Result<Box<dyn Stream>> {
        let side = if dialled { Side::Dialled } else { Side::Listened };
        let socket = Patient { socket, until: Instant::now() + SHOWN_WITHIN };
        let with = (&self.mine, &self.authorities, &self.expects);
        match channel::wrap(socket, side, self.level, with) {
            Ok((wrapped, _)) => Ok(Box::new(wrapped.map(|patient| patient.socket))),
            Err(ChannelError::Io(error)) => Err(error),
            Err(ChannelError::Gsi(error)) => Err(io::Error::other(error)),
        }
    }

    fn apart(&self) -> Option<Box<dyn Guard>> {
        Some(Box::new(self.clone()))
    }

    fn identifies(&self) -> bool {
        true
    }
}

/// There can be no connection.
pub struct Nothing(pub u16, pub &'static str);

impl Guard for Nothing {
    fn wrap(&self, _: TcpStream, _: bool) -> io::Result<Box<dyn Stream>> {
        Err(io::Error::other(self.1))
    }

    fn identifies(&self) -> bool {
        false
    }

    fn hindrance(&self) -> Option<(u16, &'static str)> {
        Some((self.0, self.1))
    }
}

impl Stream for Wrapped<TcpStream> {
    fn fd(&self) -> BorrowedFd<'_> {
        self.stream().as_fd()
    }

    fn plain(&self) -> Option<&TcpStream> {
        match self {
            Wrapped::Clear(socket) => Some(socket),
            _ => None,
        }
    }

    fn holds(&self) -> bool {
        Wrapped::holds(self)
    }

    fn end(&mut self) -> io::Result<()> {
        Wrapped::end(self)
    }
}

/// A socket that does not block, and is waited for until then.
pub(crate) struct Patient {
    pub(crate) socket: TcpStream,
    pub(crate) until: Instant,
}

impl Patient {
    fn wait(&self, flags: PollFlags) -> io::Result<()> {
        wait(&self.socket, flags, self.until)
    }
}

/// Waits for a socket, until then.
pub(crate) fn wait(socket: impl AsFd, flags: PollFlags, until: Instant) -> io::Result<()> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    match poll(&mut [PollFd::new(&socket, flags)], Some(&timespec(left))) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

impl Read for Patient {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.socket.read(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(PollFlags::IN)?,
                other => return other,
            }
        }
    }
}

impl Write for Patient {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.socket.write(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(PollFlags::OUT)?,
                other => return other,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}
