//! Data connections, and what comes over one.
//!
//! In: what is asked for. Out: its bytes, and the server's word that they were all.
//! Invariants: a data connection goes to the host that the control connection goes to, whatever address a
//! server names; it counts as ended well only when the server said so after its last byte.

use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use haul_gridftp::address::{Passive, parse_227, parse_229};
use haul_gridftp::command::Command;
use haul_gridftp::reply::{Class, Reply};

use crate::Error;
use crate::control::{Control, said};
use crate::tls::{Bounded, Wire};

const READING: &str = "reading from the server";

/// How a server listens for data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listens {
    /// `EPSV` was answered, or not tried yet.
    Extended,
    /// Only `PASV` is.
    Plain,
}

/// Something that comes over a data connection.
pub struct Incoming {
    stream: Wire,
    patience: Duration,
    /// Its last byte was read, as the end of the connection says.
    ended: bool,
}

impl Incoming {
    /// Reads what is there; 0 at the end.
    ///
    /// # Errors
    /// The connection broke, or nothing came for as long as the patience.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Error> {
        // Of content: records of TLS that bring none, or one that comes byte by byte, gain no time.
        self.stream.ends_at(Instant::now() + self.patience);
        loop {
            match self.stream.read(buffer) {
                Ok(len) => {
                    self.ended |= len == 0 && !buffer.is_empty();
                    return Ok(len);
                }
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(Error::lost(READING, self.patience, cause)),
            }
        }
    }

    /// Reads until `buffer` is full or the end is there; how much was read.
    ///
    /// # Errors
    /// As [`Incoming::read`].
    pub fn fill(&mut self, buffer: &mut [u8]) -> Result<usize, Error> {
        let mut at = 0;
        while at < buffer.len() {
            match self.read(&mut buffer[at..])? {
                0 => break,
                len => at += len,
            }
        }
        Ok(at)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }
}

/// Has the server listen, and connects.
pub(crate) fn open(control: &mut Control, listens: &mut Listens) -> Result<Bounded, Error> {
    let host = control.host().map_err(|cause| Error::Lost { doing: "opening a data connection", cause })?;
    let address = passive(control, host, listens)?;
    let patience = control.patience();
    let dial = move || TcpStream::connect_timeout(&address, patience);
    let stream = control.stop().unless_asked("haul-ftp-dial", dial).and_then(|dialled| dialled);
    let stream = stream.map_err(|cause| Error::unreached(format!("{address} (data)"), patience, cause))?;
    Ok(Bounded::new(stream, control.stop().clone()))
}

/// Where it listens. The address that it names is not looked at where its host is known: behind a gateway it
/// is a private one, and a server must not send us elsewhere.
fn passive(control: &mut Control, host: Option<IpAddr>, listens: &mut Listens) -> Result<SocketAddr, Error> {
    if let (Some(host), Listens::Extended) = (host, *listens) {
        let reply = control.ask(&Command::Epsv)?;
        let error = match control.exactly(&Command::Epsv, 229, reply) {
            Ok(reply) => {
                return Ok(match parse_229(reply.text())? {
                    Passive::Port(port) => SocketAddr::new(host, port),
                    Passive::Address(address) => SocketAddr::new(host, address.port()),
                });
            }
            Err(error @ Error::OutOfStep { .. }) => return Err(error),
            Err(error) => error,
        };
        if host.is_ipv6() || !error.is_unknown() && error.is_passing() {
            return Err(error);
        }
        *listens = Listens::Plain;
    }
    let pasv = Command::Bare("PASV");
    let reply = control.ask(&pasv)?;
    let reply = control.exactly(&pasv, 227, reply)?;
    let told = parse_227(reply.text())?;
    Ok(host.map_or(told, |host| SocketAddr::new(host, told.port())))
}

/// Begins what `last` asks for, with the commands `before` it, and reads the server's word that it begins.
pub(crate) fn begin(
    control: &mut Control,
    listens: &mut Listens,
    before: &[Command<'_>],
    last: Command<'_>,
) -> Result<Incoming, Error> {
    let stream = connected(control, listens, before, last)?;
    Ok(Incoming { stream, patience: control.patience(), ended: false })
}

/// The same, as the connection over which it comes or goes.
pub(crate) fn connected(
    control: &mut Control,
    listens: &mut Listens,
    before: &[Command<'_>],
    last: Command<'_>,
) -> Result<Wire, Error> {
    let stream = open(control, listens)?;
    let commands: Vec<Command<'_>> = before.iter().copied().chain([last]).collect();
    control.send(&commands)?;
    // What came before it is answered before it; the first refusal is what matters, and all are read.
    let mut failed = None;
    for command in before {
        let reply = control.last_reply()?;
        match command {
            Command::Rest(_) if reply.code() == 350 => {}
            _ if reply.class() == Class::Completed => {
                return Err(Error::OutOfStep { said: said(command), code: reply.code() });
            }
            command => drop(failed.get_or_insert(control.refused(command, &reply))),
        }
    }
    let reply = control.reply()?;
    if reply.class() == Class::Preliminary {
        let patience = control.patience();
        return match failed {
            None => protected(control, stream, &last),
            Some(error) => {
                give_up(control, Incoming { stream: Wire::Plain(stream), patience, ended: false })?;
                Err(error)
            }
        };
    }
    match reply.class() {
        Class::Completed | Class::Intermediate => {
            Err(Error::OutOfStep { said: said(&last), code: reply.code() })
        }
        _ => Err(failed.unwrap_or_else(|| control.refused(&last, &reply))),
    }
}

/// The data connection as it is to be used: under TLS, where the control connection is.
fn protected(control: &mut Control, stream: Bounded, of: &Command<'_>) -> Result<Wire, Error> {
    let Some(tls) = control.tls() else { return Ok(Wire::Plain(stream)) };
    let error = match tls.protect(stream, control.patience()) {
        Ok(wire) => return Ok(wire),
        Err(error) => error,
    };
    // The server may know why: what it says stands beside what was seen here.
    let Ok(reply) = control.last_reply_within(GIVING_UP.min(control.patience())) else { return Err(error) };
    if reply.class() == Class::Completed {
        return Err(error);
    }
    let Error::Refused { said, code, text } = control.refused(of, &reply) else { return Err(error) };
    Err(match error {
        // Whatever is said: a stranger is no passing trouble.
        Error::Untrusted { to, why } => {
            Error::Untrusted { to, why: format!("{why}; the server says {code} {text}") }
        }
        error => Error::Refused { said, code, text: format!("{text} ({error})") },
    })
}

/// Hears what the server says of what came: all of it, if that is what the end of the connection meant.
pub(crate) fn finish(control: &mut Control, incoming: Incoming, of: Command<'_>) -> Result<Reply, Error> {
    debug_assert!(incoming.has_ended());
    drop(incoming);
    let reply = control.last_reply()?;
    match reply.class() {
        Class::Completed => Ok(reply),
        _ => Err(control.refused(&of, &reply)),
    }
}

/// How long a server may take to see that nobody listens any more.
pub(crate) const GIVING_UP: Duration = Duration::from_secs(10);

/// Wants no more of it: the server sees a closed connection, and says whatever it says of that.
pub(crate) fn give_up(control: &mut Control, incoming: Incoming) -> Result<(), Error> {
    drop(incoming);
    control.last_reply_within(GIVING_UP.min(control.patience())).map(drop)
}
