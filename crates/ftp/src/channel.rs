//! Data connections of GridFTP servers that show whose they are, and perhaps protect what they bring (`DCAU`,
//! `PROT`).
//!
//! In: a data connection that is up, whoever dialled it. Out: a [`Wire`] to the user's own at its other
//! end, and what the server said meanwhile.
//! Invariants: no data go before the other end showed that it comes in this user's name; a server that
//! refuses is heard at once, although nobody comes to the data connection then.
//! Source: seen at Globus: it says `150` behind the handshake on the data connection. Others may say it
//! before.

use std::io::{self, Read, Write};
use std::time::Instant;

use haul_gridftp::reply::{Class, Reply};
use haul_gsi::Side;
use haul_gsi::channel::ChannelError;
use rustix::event::{PollFd, PollFlags, poll};

use crate::Error;
use crate::control::Control;
use crate::gsi::{BEGINNING, Channel, OTHER, untrusted};
use crate::tls::{Bounded, Wire};

/// Has both ends of the first connection of a transfer show whose they are; it was asked for and not
/// answered yet: the first answer, and the connection where that says that it begins.
pub(crate) fn begin(
    channel: &Channel,
    control: &mut Control,
    mut socket: Bounded,
    side: Side,
) -> Result<(Reply, Result<Wire, Error>), Error> {
    let patience = control.patience();
    socket.ends_at(Instant::now() + patience);
    let mut heard = Heard { control, said: None, failed: None };
    let watched = Watched { socket, heard: &mut heard };
    let with = (&channel.mine, &channel.authorities, &channel.expects);
    let wrapped = match haul_gsi::channel::wrap(watched, side, channel.level, with) {
        Ok((wrapped, _)) => Ok(Wire::Grid(Box::new(wrapped.map(|watched| watched.socket)))),
        Err(ChannelError::Gsi(error)) => Err(untrusted(OTHER, error)),
        Err(ChannelError::Io(cause)) => Err(Error::lost(BEGINNING, patience, cause)),
    };
    if let Some(failed) = heard.failed {
        return Err(failed);
    }
    match (heard.said, wrapped) {
        (Some(said), wrapped) => Ok((said, wrapped)),
        (None, Ok(wire)) => Ok((control.reply()?, Ok(wire))),
        // It sees that nobody is there, and may know why that is.
        (None, Err(error)) => match control.reply_after_all() {
            Ok(said) => Ok((said, Err(error))),
            Err(_) => Err(error),
        },
    }
}

/// What the server says while a data connection comes up.
struct Heard<'a> {
    control: &'a mut Control,
    said: Option<Reply>,
    failed: Option<Error>,
}

/// A data connection whose reads end when the server refuses.
struct Watched<'a, 'b> {
    socket: Bounded,
    heard: &'a mut Heard<'b>,
}

impl Watched<'_, '_> {
    /// Waits until there is something to read here. An error: the server refused, or something went wrong.
    fn wait(&mut self) -> io::Result<()> {
        while self.heard.said.is_none() {
            let left = self.socket.until_look()?;
            let control = self.heard.control.has_rest();
            if !control {
                let mut ends = [
                    PollFd::new(self.socket.socket(), PollFlags::IN),
                    PollFd::new(self.heard.control.socket(), PollFlags::IN),
                ];
                let time = rustix::time::Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
                match poll(&mut ends, Some(&time)) {
                    Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                    Ok(_) if !ends[0].revents().is_empty() => return Ok(()),
                    Ok(_) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            match self.heard.control.reply() {
                Ok(reply) => {
                    let begins = reply.class() == Class::Preliminary;
                    self.heard.said = Some(reply);
                    if !begins {
                        return Err(io::Error::other("the server refused"));
                    }
                }
                Err(error) => {
                    self.heard.failed = Some(error);
                    return Err(io::Error::other("the server is gone"));
                }
            }
        }
        Ok(())
    }
}

impl Read for Watched<'_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.wait()?;
        self.socket.read(buffer)
    }
}

impl Write for Watched<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}
