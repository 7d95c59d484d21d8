//! Data connections that the server made, until both ends showed whose they are (`DCAU A`).
//!
//! In: connections as they come. Out: those at whose other end is the user's own.
//! Invariants: not a byte of data is read from any other; nothing here waits, and nobody is waited for longer
//! than the patience; there are at most [`CALLERS_MAX`], and who came first gives way to who comes then,
//! those first who come from elsewhere than the server said. Whoever is refused ends nothing: he may be
//! anybody.

use std::io;
use std::time::{Duration, Instant};

use haul_gsi::channel::ChannelError;
use haul_gsi::{Handshake, Side};
use rustix::event::{PollFd, PollFlags};

use crate::Error;
use crate::gsi::Channel;
use crate::tls::{Bounded, Wire};

/// Most that are looked at together.
const CALLERS_MAX: usize = 64;

/// See the module.
pub(crate) struct Callers {
    channel: Channel,
    patience: Duration,
    all: Vec<Caller>,
    /// Those that are the user's own and were not taken yet.
    ready: Vec<Wire>,
    /// Why somebody was refused; who showed that he is somebody else says more than who hung up.
    refused: Option<String>,
}

struct Caller {
    socket: Bounded,
    handshake: Handshake,
    until: Instant,
    /// He comes from where the server is, or said that its data are.
    is_near: bool,
}

impl Callers {
    pub(crate) fn new(channel: Channel, patience: Duration) -> Callers {
        Callers { channel, patience, all: Vec::new(), ready: Vec::new(), refused: None }
    }

    /// Somebody connected. `is_near`: from where the server is, or said that its data are.
    ///
    /// # Errors
    /// This end has nothing to show.
    pub(crate) fn add(&mut self, mut socket: Bounded, is_near: bool) -> Result<(), Error> {
        socket.set_waits(haul_mutant::removed("ftp-callers-hold-up-nobody"));
        let handshake = self.channel.handshake(Side::Listened)?;
        if self.all.len() == CALLERS_MAX {
            if haul_mutant::removed("ftp-callers-give-way") {
                return Ok(());
            }
            let far = self.all.iter().position(|caller| !caller.is_near);
            if far.is_none() && !is_near {
                return Ok(());
            }
            let _ = self.all.remove(far.unwrap_or(0));
        }
        self.all.push(Caller { socket, handshake, until: Instant::now() + self.patience, is_near });
        Ok(())
    }

    /// What each of them waits for.
    pub(crate) fn waits(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.all.iter().map(|caller| {
            let wants = if caller.handshake.wants_write() { PollFlags::OUT } else { PollFlags::IN };
            PollFd::new(caller.socket.socket(), wants)
        })
    }

    /// Goes on with each as far as it goes now; whether one is the user's own.
    pub(crate) fn go_on(&mut self) -> bool {
        let had = self.ready.len();
        for mut caller in std::mem::take(&mut self.all) {
            // So much may be read each time anew: this is a look at all, whoever something came from.
            if !haul_mutant::removed("ftp-callers-are-heard-again") {
                caller.socket.set_waits(haul_mutant::removed("ftp-callers-hold-up-nobody"));
            }
            let gone = caller.handshake.go_on(&mut caller.socket);
            let ended = match gone {
                Err(ChannelError::Io(cause)) if is_for_now(&cause) && Instant::now() < caller.until => {
                    self.all.push(caller);
                    continue;
                }
                Ok(()) => caller.handshake.end(caller.socket),
                Err(error) => Err(error),
            };
            match ended {
                Ok((wrapped, _)) if self.ready.len() < CALLERS_MAX => {
                    self.ready.push(Wire::Grid(Box::new(wrapped)));
                }
                Ok(_) => {}
                Err(ChannelError::Gsi(error)) => self.refused = Some(error.to_string()),
                Err(ChannelError::Io(cause)) if is_for_now(&cause) => {
                    let within = self.patience.as_secs_f64();
                    let why = || format!("it did not show who it is within {within} s");
                    let _ = self.refused.get_or_insert_with(why);
                }
                Err(ChannelError::Io(_)) => {
                    let why = || "it hung up before it showed who it is".into();
                    let _ = self.refused.get_or_insert_with(why);
                }
            }
        }
        self.ready.len() > had
    }

    /// The next one that is the user's own.
    pub(crate) fn next(&mut self) -> Option<Wire> {
        (!self.ready.is_empty()).then(|| self.ready.remove(0))
    }

    /// Somebody is here who may be the server's.
    pub(crate) fn has_some(&self) -> bool {
        !self.all.is_empty() || !self.ready.is_empty()
    }

    /// Nobody of those who are here is wanted any more.
    pub(crate) fn clear(&mut self) {
        self.all.clear();
        self.ready.clear();
        self.refused = None;
    }

    /// Why somebody was refused since they were cleared.
    pub(crate) fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }
}

fn is_for_now(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
