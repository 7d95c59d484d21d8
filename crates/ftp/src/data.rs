//! Data connections, and what comes over one.
//!
//! In: what is asked for. Out: its bytes, and the server's word that they were all.
//! Invariants: a data connection goes to the host that the control connection goes to, or to one of the
//! server's nodes (`nodes.rs`), whatever address it names; it counts as ended well only when the server said
//! so after its last byte. A place in a file (`REST`) is of the file that it was said for, and of no later
//! one.

use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use haul_gridftp::address::{Passive, parse_227, parse_229};
use haul_gridftp::command::Command;
use haul_gridftp::reply::{Class, Reply};
use haul_gsi::Side;

use crate::Error;
use crate::channel;
use crate::control::{Control, GIVING_UP, said};
use crate::dialling::{Dialling, Listens};
use crate::tls::{Bounded, Wire};

const READING: &str = "reading from the server";
const DIALLING: &str = "connecting for data";
/// What the server says of something for which no data connection came up it says within this time, if it
/// does not wait for one.
const UNDIALLED: Duration = Duration::from_secs(2);

/// Something that comes over a data connection.
pub struct Incoming {
    stream: Wire,
    patience: Duration,
    /// Its last byte was read, as the end of the connection says.
    ended: bool,
    /// It was protected, and nothing of that said that it is the end.
    cut: bool,
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
                // Globus ends its connections without TLS saying so. Of what has a length that was told over
                // the control connection, that is held against it.
                Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof && self.stream.is_of_grid() => {
                    self.ended |= !buffer.is_empty();
                    self.cut = true;
                    return Ok(0);
                }
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

    /// It was protected, and its end may be that of whoever is on the way.
    pub fn may_be_cut(&self) -> bool {
        self.cut
    }
}

/// Where it listens. The address that it names is not looked at where its host is known: behind a gateway it
/// is a private one, and a server must not send us elsewhere. A striped server's data are at its nodes, and
/// `EPSV` has no word for these.
pub(crate) fn passive(
    control: &mut Control,
    host: Option<IpAddr>,
    listens: &mut Listens,
) -> Result<SocketAddr, Error> {
    if let Some(address) = listens.take_known() {
        return Ok(address);
    }
    let is_at_nodes = control.nodes.are_elsewhere() && host.is_some_and(|host| host.is_ipv4());
    if let (Some(host), true, false) = (host, listens.is_extended(), is_at_nodes) {
        let reply = control.ask(&Command::Epsv)?;
        let error = match control.exactly(&Command::Epsv, 229, reply) {
            Ok(reply) => return told_place(control, host, &reply),
            Err(error @ Error::OutOfStep { .. }) => return Err(error),
            Err(error) => error,
        };
        if host.is_ipv6() || !error.is_unknown() && error.is_passing() {
            return Err(error);
        }
        listens.set_plain();
    }
    let pasv = Command::Bare("PASV");
    let reply = control.ask(&pasv)?;
    let reply = control.exactly(&pasv, 227, reply)?;
    let told = parse_227(reply.text())?;
    if control.nodes.has(told.ip()) {
        return Ok(told);
    }
    Ok(host.map_or(told, |host| SocketAddr::new(host, told.port())))
}

/// Where it listens by its answer to `EPSV`.
pub(crate) fn told_place(control: &Control, host: IpAddr, reply: &Reply) -> Result<SocketAddr, Error> {
    Ok(match parse_229(reply.text())? {
        Passive::Port(port) => SocketAddr::new(host, port),
        Passive::Address(address) if control.nodes.has(address.ip()) => address,
        Passive::Address(address) => SocketAddr::new(host, address.port()),
    })
}

/// Begins what `last` asks for, with the commands `before` it, and reads the server's word that it begins.
pub(crate) fn begin(
    control: &mut Control,
    listens: &mut Listens,
    before: &[Command<'_>],
    last: Command<'_>,
) -> Result<Incoming, Error> {
    let stream = connected(control, listens, (before, false), last)?;
    Ok(Incoming { stream, patience: control.patience(), ended: false, cut: false })
}

/// The same, as the connection over which it comes or goes. `heard_first`: the server has agreed to what is
/// `before` it, before it hears of `last`.
pub(crate) fn connected(
    control: &mut Control,
    listens: &mut Listens,
    (before, heard_first): (&[Command<'_>], bool),
    last: Command<'_>,
) -> Result<Wire, Error> {
    const OPENING: &str = "opening a data connection";
    if !before.iter().any(|command| matches!(command, Command::Rest(_))) {
        leave_place(control)?;
    }
    let host = control.host().map_err(|cause| Error::Lost { doing: OPENING, cause })?;
    let address = passive(control, host, listens)?;
    if heard_first {
        for command in before {
            let reply = control.ask(command)?;
            control.exactly(command, 350, reply)?;
            control.set_placed(true);
        }
    }
    let before = if heard_first { &[] } else { before };
    let commands: Vec<Command<'_>> = before.iter().copied().chain([last]).collect();
    let patience = control.patience();
    let unreached = |cause| Error::unreached_for_data(address, patience, cause);
    let dialling = Dialling::begin(address).map_err(unreached)?;
    // Where data connections come up, nobody waits for one before he says what it is for: that is a round
    // trip. Else the server is to hear of nothing that comes to nothing.
    let early = listens.come_up() && !haul_mutant::removed("ftp-dials-and-says-together");
    if early {
        control.send(&commands)?;
    }
    let stream = match dialling.end(patience, control.stop()) {
        Ok(stream) => stream,
        Err(cause) if early => return Err(undialled(control, (before, &last), cause)),
        Err(cause) => return Err(unreached(cause)),
    };
    // Where both ends show whose they are, small pieces go to and fro.
    stream.set_nodelay(true).map_err(|cause| Error::Lost { doing: OPENING, cause })?;
    let stream = Bounded::new(stream, control.stop().clone());
    listens.set_come_up();
    if !early {
        control.send(&commands)?;
    }
    // What came before it is answered before it; the first refusal is what matters, and all are read.
    let mut failed = None;
    for command in before {
        let reply = control.last_reply()?;
        match command {
            Command::Rest(_) if reply.code() == 350 => control.set_placed(true),
            _ if reply.class() == Class::Completed => {
                return Err(Error::OutOfStep { said: said(command), code: reply.code() });
            }
            command => drop(failed.get_or_insert(control.refused(command, &reply))),
        }
    }
    // Of the grid, both ends show whose they are before the server says that it begins.
    let (reply, wire) = match control.channel().cloned() {
        Some(channel) if failed.is_none() => channel::begin(&channel, control, stream, Side::Dialled)?,
        _ => (control.reply()?, Ok(Wire::Plain(stream))),
    };
    if reply.class() == Class::Preliminary {
        control.set_placed(false);
        let patience = control.patience();
        if let Some(error) = failed {
            // Whatever comes is not what was asked for.
            if let Ok(stream) = wire {
                give_up(control, Incoming { stream, patience, ended: false, cut: false })?;
            }
            return Err(error);
        }
        let stream = match wire {
            Ok(Wire::Plain(stream)) => protected(control, stream),
            wire => wire,
        };
        return stream.map_err(|error| after_all(control, error, &last));
    }
    match (reply.class(), wire) {
        (Class::Completed | Class::Intermediate, _) => {
            Err(Error::OutOfStep { said: said(&last), code: reply.code() })
        }
        // Whoever came to the data connection is not whom it should be, and the server may say what it saw.
        (_, Err(error @ Error::Untrusted { .. })) => Err(with_word(control, error, &reply, &last)),
        _ => Err(failed.unwrap_or_else(|| control.refused(&last, &reply))),
    }
}

/// A place in a file that the server agreed to, and that nothing went to, is the beginning again: servers
/// keep it over other commands, and would have the next file go there.
///
/// # Errors
/// The server does not say so, and the session is over.
pub(crate) fn leave_place(control: &mut Control) -> Result<(), Error> {
    if !control.is_placed() || haul_mutant::removed("ftp-places-are-of-one-file") {
        return Ok(());
    }
    let rest = Command::Rest(0);
    let reply = control.ask(&rest)?;
    if reply.code() != 350 {
        control.set_broken();
        return Err(Error::OutOfStep { said: said(&rest), code: reply.code() });
    }
    control.set_placed(false);
    Ok(())
}

/// The server knows what a data connection is for that did not come up. It may have refused that meanwhile;
/// else it waits for the connection, and the session is of no use.
fn undialled(
    control: &mut Control,
    (before, last): (&[Command<'_>], &Command<'_>),
    cause: io::Error,
) -> Error {
    let patience = control.patience();
    for command in before.iter().chain([last]) {
        match control.last_reply_within(UNDIALLED.min(patience)) {
            Ok(reply) if matches!(reply.class(), Class::Transient | Class::Permanent) => {
                if !std::ptr::eq(command, last) {
                    control.set_broken();
                }
                return control.refused(command, &reply);
            }
            Ok(_) if !std::ptr::eq(command, last) => control.set_placed(true),
            Ok(_) | Err(_) => break,
        }
    }
    control.set_broken();
    Error::lost(DIALLING, patience, cause)
}

/// The data connection as it is to be used: under TLS, where the control connection is.
fn protected(control: &Control, stream: Bounded) -> Result<Wire, Error> {
    match control.tls() {
        None => Ok(Wire::Plain(stream)),
        Some(tls) => tls.protect_data(stream, control.patience()),
    }
}

/// What went wrong with a data connection after the server said that it begins, with what it says of that.
fn after_all(control: &mut Control, error: Error, of: &Command<'_>) -> Error {
    // It waits for another connection, and says nothing until nobody has come for long; nor is there another
    // ticket to come with.
    if matches!(error, Error::Untied) {
        control.set_broken();
        return error;
    }
    let Ok(reply) = control.last_reply_within(GIVING_UP.min(control.patience())) else { return error };
    if reply.class() == Class::Completed { error } else { with_word(control, error, &reply, of) }
}

/// The server may know why: what it says stands beside what was seen here.
pub(crate) fn with_word(control: &Control, error: Error, reply: &Reply, of: &Command<'_>) -> Error {
    let Error::Refused { said, code, text } = control.refused(of, reply) else { return error };
    match error {
        // Whatever is said: a stranger is no passing trouble.
        Error::Untrusted { to, why } => {
            Error::Untrusted { to, why: format!("{why}; the server says {code} {text}") }
        }
        error => Error::Refused { said, code, text: format!("{text} ({error})") },
    }
}

/// Hears what the server says of what came: all of it, if that is what the end of the connection meant.
pub(crate) fn finish(control: &mut Control, incoming: Incoming, of: Command<'_>) -> Result<Reply, Error> {
    debug_assert!(incoming.has_ended());
    drop(incoming);
    let reply = control.last_reply()?;
    match (reply.code(), reply.class()) {
        (226 | 250, _) => Ok(reply),
        // It is of something else: that all came is not said, and what is said next may be of this.
        (code, Class::Completed) if !haul_mutant::removed("ftp-what-came-has-a-word-of-its-own") => {
            control.set_broken();
            Err(Error::OutOfStep { said: said(&of), code })
        }
        (_, Class::Completed) => Ok(reply),
        _ => Err(control.refused(&of, &reply)),
    }
}

/// Wants no more of it: the server sees a closed connection, and says whatever it says of that.
pub(crate) fn give_up(control: &mut Control, incoming: Incoming) -> Result<(), Error> {
    drop(incoming);
    control.last_reply_within(GIVING_UP.min(control.patience())).map(drop)
}
