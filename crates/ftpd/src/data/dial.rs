//! Connections that this end makes.
//!
//! In: the address that the client named. Out: connections to it, as many as are wanted.
//! What must hold: all are under way at the same time, so that eight cost the round trips of one; a client
//! that wants to go is not kept for what does not come.

use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::{Conn, Data, Guard, Refused, Route};
use crate::config::{CONNECT_WITHIN, SHOWN_WITHIN};
use crate::control::{Abort, Control};
use crate::progress::Progress;

/// A connection that is dialled comes about within this time, or a client that wants to go is not kept for
/// it.
const SOON: Duration = Duration::from_secs(3);

impl Data {
    /// Dials so many times at once, and hears the client meanwhile.
    ///
    /// # Errors
    /// The outer: the session has to see to it. The inner: nobody answers, or the guard refuses who does.
    pub fn dial(
        &mut self,
        count: usize,
        control: &mut Control,
        progress: &Progress,
    ) -> Result<io::Result<Vec<Conn>>, Abort> {
        let mut all_begun = Vec::with_capacity(count);
        for _ in 0..count {
            match self.begin_to_dial() {
                Ok(socket) => all_begun.push(socket),
                Err(error) => return Ok(Err(error)),
            }
        }
        let mut conns = Vec::with_capacity(count);
        let mut showing = Vec::new();
        for socket in all_begun {
            let is_there = connected(&socket, control, progress)?;
            if let Err(error) = is_there.and_then(|()| self.prepare(&socket)) {
                return Ok(Err(error));
            }
            let shown = match self.guard.apart() {
                None => self.guard.wrap(socket, true).map(Conn::new),
                Some(guard) => match Shown::begin(guard, socket) {
                    // Where connections are known by tickets of the session, each brings the one for the
                    // next.
                    Ok(shown) if !self.guard.identifies() => shown.end(control, progress)?,
                    Ok(shown) => {
                        showing.push(shown);
                        continue;
                    }
                    Err(error) => Err(error),
                },
            };
            match shown {
                Ok(conn) => conns.push(conn),
                Err(error) => return Ok(Err(error)),
            }
        }
        for shown in showing {
            match shown.end(control, progress)? {
                Ok(conn) => conns.push(conn),
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Ok(conns))
    }

    fn begin_to_dial(&self) -> io::Result<TcpStream> {
        let Route::Dial(address) = self.route else { return Err(ErrorKind::NotConnected.into()) };
        // What was agreed of protection since then counts.
        if !self.may_reach(address) {
            return Err(io::Error::other(Refused::Foreign));
        }
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        if haul_mutant::removed("ftpd-dials-hear-the-client") {
            return TcpStream::connect_timeout(&address, CONNECT_WITHIN);
        }
        match rustix::net::connect(&socket, &address) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS | rustix::io::Errno::INTR) => Ok(socket.into()),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Waits until it is there. The errors are those of [`Data::dial`].
fn connected(
    socket: &TcpStream,
    control: &mut Control,
    progress: &Progress,
) -> Result<io::Result<()>, Abort> {
    match wait_for((socket.as_fd(), PollFlags::OUT), CONNECT_WITHIN, control, progress) {
        Ok(()) => {
            let came = rustix::net::sockopt::socket_error(socket).and_then(|came| came);
            Ok(came.map_err(io::Error::from))
        }
        Err(Abort::Late) => Ok(Err(ErrorKind::TimedOut.into())),
        Err(abort) => Err(abort),
    }
}

/// Both ends of a connection show whose it is, on a thread of its own. Who is not waited for to the end is
/// cut off.
struct Shown {
    bell: UnixStream,
    socket: TcpStream,
    found: Receiver<io::Result<Conn>>,
    is_over: bool,
}

impl Shown {
    fn begin(guard: Box<dyn Guard>, socket: TcpStream) -> io::Result<Shown> {
        let (bell, theirs) = UnixStream::pair()?;
        let (other, (done, found)) = (socket.try_clone()?, channel());
        std::thread::Builder::new().name("show".into()).spawn(move || {
            let _ = done.send(guard.wrap(socket, true).map(Conn::new));
            drop(theirs);
        })?;
        Ok(Shown { bell, socket: other, found, is_over: false })
    }

    fn end(mut self, control: &mut Control, progress: &Progress) -> Result<io::Result<Conn>, Abort> {
        // It ends by itself before that.
        match wait_for((self.bell.as_fd(), PollFlags::IN), SHOWN_WITHIN * 2, control, progress) {
            Ok(()) => {
                self.is_over = true;
                Ok(self.found.recv().unwrap_or_else(|_| Err(ErrorKind::BrokenPipe.into())))
            }
            Err(Abort::Late) => Ok(Err(ErrorKind::TimedOut.into())),
            Err(abort) => Err(abort),
        }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if !self.is_over {
            let _ = self.socket.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// Waits until this is ready, at most so long; a client that wants to go is not kept for what does not come.
fn wait_for(
    wanted: (BorrowedFd<'_>, PollFlags),
    within: Duration,
    control: &mut Control,
    progress: &Progress,
) -> Result<(), Abort> {
    let begun = Instant::now();
    loop {
        let is_slow = begun.elapsed() >= SOON;
        if is_slow && control.wants_to_go() {
            return Err(Abort::Asked);
        }
        let deadline = begun + if is_slow { within } else { SOON.min(within) };
        match control.wait(&[wanted], deadline, Some(progress)) {
            Ok(ready) if ready[0] => return Ok(()),
            Ok(_) => {}
            Err(Abort::Late) if begun.elapsed() < within => {}
            Err(abort) => return Err(abort),
        }
    }
}
