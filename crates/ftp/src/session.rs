//! A session: login, what the server can, questions about paths, files that come.
//!
//! In: a server and as whom, paths as bytes. Out: facts, listings, bytes.
//! Invariants: one transfer at a time; a file that comes is ended ([`Session::finish`], [`Session::give_up`])
//! before anything else is asked.

use std::net::SocketAddr;
use std::time::Duration;

use haul_base::stop::Stop;
use haul_gridftp::command::{Command, DataAuth};
use haul_gridftp::features::Features;
use haul_gridftp::reply::Class;

use crate::control::Control;
use crate::data::{self, Incoming};
use crate::dialling::Listens;
use crate::gsi::{Context, Credential, DataSecurity};
use crate::lanes::Lanes;
use crate::nodes::Nodes;
use crate::sender::Outlets;
use crate::server::PORT_TLS;
use crate::ssh::Ssh;
use crate::times::SetsTimes;
use crate::tls::{Tls, Trust};
use crate::{Error, Server};

mod facts;
mod list;

pub use facts::Asked;
pub(crate) use facts::{bear, mlst};
pub use list::may_lack_links;

/// In place of a greeting that came before a session was protected.
const UNPROTECTED: &[u8] = b"its greeting was not protected";
/// Longest message of a protected data connection, as Globus asks for it. In TLS it has no meaning.
const PBSZ: u32 = 1 << 20;
/// Commands of two servers that are under way together, of which each waits for the other one.
pub(crate) const PIPELINE_MAX: usize = 64;

/// How a session behaves.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long a server may be silent.
    pub patience: Duration,
    /// Where the server is; `None`: its name says.
    pub at: Option<SocketAddr>,
    pub security: Security,
    /// Whoever can end what is waited for, the opening included.
    pub stop: Stop,
}

/// What protects a session, and who says that the server is the one that was meant.
#[derive(Clone, Debug)]
pub enum Security {
    /// Nothing and nobody.
    None,
    /// TLS, for commands and data.
    Tls(Trust),
    /// GSI, for commands, and for data as the credential says.
    Gsi(Credential),
    /// ssh, for commands; data go as they are.
    Ssh(Ssh),
}

/// A session with a server.
pub struct Session {
    pub(crate) control: Control,
    pub(crate) features: Features,
    pub(crate) listens: Listens,
    /// How it is told when a file was changed, as far as anybody asked.
    pub(crate) sets_times: SetsTimes,
    pub(crate) sets_modes: bool,
    /// It set some, and it set times.
    pub(crate) did_modes: bool,
    pub(crate) did_times: bool,
    /// Data come in blocks (MODE E), where somebody asked for that; else as they are.
    pub(crate) lanes: Option<Lanes>,
    /// The same of files that go there.
    pub(crate) outlets: Option<Outlets>,
    /// `MLSD` and `MLST` are there.
    pub(crate) has_mlsd: bool,
    /// That is known, by its word or by an answer: what it says of a path is of that path.
    pub(crate) knows_mlst: bool,
    /// A directory was listed by `MLSD`.
    did_mlsd: bool,
    has_mdtm: bool,
    /// `MLSD` is refused, where `MLST` is not.
    no_mlsd: bool,
    /// An answer to `MLST` names what it is of, as far as anybody knows.
    names_paths: bool,
    /// `MLSD` says what is a symbolic link.
    tells_links: bool,
    /// It knows `LIST`, as far as anybody asked.
    has_list: bool,
    /// `LIST` was seen to tell of each name what it is.
    lists_kinds: bool,
    /// The last greeting, for people.
    banner: Vec<u8>,
}

impl Session {
    /// Connects and logs in.
    ///
    /// # Errors
    /// The server is not there, or does not take the user.
    pub fn open(server: &Server, settings: &Settings) -> Result<Session, Error> {
        let waits = (settings.patience, &settings.stop);
        let mut control = match &settings.security {
            Security::Ssh(ssh) => Control::start(server, ssh, waits)?,
            _ => Control::connect(server, settings.at, waits)?,
        };
        let tls = match &settings.security {
            Security::Tls(trust) => Some(Tls::new(trust, server)?),
            Security::None | Security::Gsi(_) | Security::Ssh(_) => None,
        };
        // At that port TLS is there from the first byte on.
        let (early, late) = if server.port == PORT_TLS { (tls, None) } else { (None, tls) };
        if let Some(tls) = early {
            control.protect(tls)?;
        }
        let greeting = control.last_reply()?;
        let hello = Command::Bare("the connection");
        let said = control.done(&hello, greeting)?.lines().join(&b' ');
        let is_protected = late.is_none() && !matches!(settings.security, Security::Gsi(_));
        let banner = match is_protected {
            // Anybody on the way may have said it: nothing follows from it, and nobody is shown it.
            false => UNPROTECTED.to_vec(),
            true if control.tells(&said) => b"?".to_vec(),
            true => said.clone(),
        };
        if let Security::None | Security::Ssh(_) = settings.security {
            control.set_reads_by(&said);
        }
        if let Some(tls) = late {
            let auth = Command::With("AUTH", b"TLS");
            let reply = control.ask(&auth)?;
            control.exactly(&auth, 234, reply)?;
            control.protect(tls)?;
        }
        // Before the login, so that a server that does not protect its data gets no password.
        let data_protected = control.tls().is_none() || protect_data(&mut control, false)?;
        let (mut user, mut password) = (server.user(), server.password());
        if let Security::Gsi(credential) = &settings.security {
            control.secure(Context::new(credential, &server.host)?)?;
            // As whom the server's own map has this certificate; and no password is ever needed.
            user = if server.is_anonymous() { ":globus-mapping:" } else { user };
            password = "";
        }
        let user = Command::With("USER", user.as_bytes());
        let reply = control.ask(&user)?;
        let password = Command::With("PASS", password.as_bytes());
        let mut wanted = match reply.class() {
            Class::Completed => Vec::new(),
            Class::Intermediate if reply.code() == 331 => vec![password],
            _ => return Err(control.refused(&user, &reply)),
        };
        if !data_protected {
            for password in wanted.drain(..) {
                control.want(&password)?;
            }
            protect_data(&mut control, true)?;
        }
        if let Security::Gsi(credential) = &settings.security {
            wanted.extend(protections(credential));
        }
        // Far away each answer takes a round trip, and none of these depends on another one.
        let feat = Command::Bare("FEAT");
        let all: Vec<Command<'_>> = wanted.iter().copied().chain([feat]).collect();
        let together = if haul_mutant::removed("ftp-logins-ask-together") { 1 } else { all.len() };
        let mut replies = Vec::with_capacity(all.len());
        for some in all.chunks(together) {
            replies.extend(control.ask_all(some)?);
        }
        let reply = replies.pop().expect("one for each");
        for (command, reply) in wanted.iter().zip(replies) {
            control.done(command, reply)?;
        }
        if let Security::Gsi(credential) = &settings.security
            && credential.data() != DataSecurity::None
        {
            control.protect_channel(credential);
        }
        // A server without FEAT has said nothing.
        let told = Features::parse(&reply).ok();
        let features = told.clone().unwrap_or_default();
        set_up(&mut control, &features)?;
        let has_mlsd = told.as_ref().is_none_or(|told| told.mlst().next().is_some());
        let knows_mlst = features.mlst().next().is_some();
        let has_mdtm = told.as_ref().is_none_or(|told| told.has("MDTM"));
        let tells_links = features.mlst().any(|fact| fact.name.eq_ignore_ascii_case(b"UNIX.slink"));
        let listens = Listens::default();
        let has_list = true;
        let mut session = Session {
            control,
            features,
            listens,
            lanes: None,
            outlets: None,
            sets_times: SetsTimes::Mfmt,
            sets_modes: true,
            did_modes: false,
            did_times: false,
            has_mlsd,
            knows_mlst,
            did_mlsd: false,
            has_mdtm,
            no_mlsd: false,
            names_paths: true,
            tells_links,
            has_list,
            lists_kinds: false,
            banner,
        };
        if session.control.tls().is_some() && session.features.has_stor_tickets() {
            // Each is good for one data connection, and this end hears them out (`Wire::hear_out`).
            session.control.ask(&Command::OptsStorTickets)?;
        }
        Ok(session)
    }

    /// It takes no data connection from the other one, and makes none to it: by its own word it serves hosts
    /// of its clients alone, and that one is none.
    pub fn shuns(&self, other: &Session) -> bool {
        let ends = (self.control.local().ok(), other.address());
        let is_client =
            matches!(ends, (Some(own), Some(other)) if own.ip().to_canonical() == other.ip().to_canonical());
        self.features.has_no_third_party() && !is_client
    }

    /// Where the server was reached.
    pub fn address(&self) -> Option<SocketAddr> {
        self.control.peer().ok()
    }

    /// What the server greets with, or that this is not to be shown.
    pub fn banner(&self) -> &[u8] {
        &self.banner
    }

    /// From a command to its answer, at best so far.
    pub fn round_trip(&self) -> Option<Duration> {
        self.control.quickest()
    }

    /// From now on nobody else ends what is waited for.
    pub fn heed(&mut self, stop: &Stop) {
        self.control.heed(stop);
    }

    /// It cannot be used any more.
    pub fn is_broken(&self) -> bool {
        self.control.is_broken()
    }

    /// The server has hung up, or the connection is lost: what still comes was sent before.
    pub fn is_hung_up(&self) -> bool {
        self.control.is_hung_up()
    }

    /// The server ended it meanwhile, or said what nobody asked for, as far as that shows; asked where no
    /// answer is due.
    pub fn is_over(&self) -> bool {
        self.control.is_over()
    }

    /// The server does not answer what it is asked while a file is under way.
    pub fn is_asked_nothing_ahead(&self) -> bool {
        self.listens.is_never()
    }

    /// For how long the server has said nothing.
    pub fn silent_for(&self) -> Duration {
        self.control.silent_for()
    }

    /// Asks whether the server is there, where nothing else is under way: any answer says so. Waits as long
    /// as `waits` says, which is asked often, and no longer than the patience.
    ///
    /// # Errors
    /// It did not answer, and the session is over.
    pub fn ask_whether_there(&mut self, mut waits: impl FnMut() -> bool) -> Result<(), Error> {
        self.control.ask_whether_there(&mut waits)
    }

    /// A file can be read from any byte on.
    pub fn can_seek(&self) -> bool {
        self.features == Features::default() || self.features.has("REST")
    }

    /// Where the login leads, as an absolute path.
    ///
    /// # Errors
    /// The server does not tell.
    pub fn home(&mut self) -> Result<Vec<u8>, Error> {
        const DOING: &str = "asking where the login leads";
        let pwd = Command::Bare("PWD");
        let reply = self.control.ask(&pwd)?;
        let reply = self.control.exactly(&pwd, 257, reply)?;
        // RFC 959, appendix II: in quotes, and a quote in it twice.
        let none = Error::Broken { doing: DOING, why: "what comes is no path" };
        let mut rest = reply.text().iter().copied().skip_while(|byte| *byte != b'"').skip(1).peekable();
        let mut path = Vec::new();
        while let Some(byte) = rest.next() {
            match (byte, rest.peek()) {
                (b'"', Some(b'"')) => path.push(rest.next().unwrap_or(b'"')),
                (b'"', _) if path.starts_with(b"/") => return Ok(path),
                (b'"', _) => return Err(none),
                (byte, _) => path.push(byte),
            }
        }
        Err(none)
    }

    /// Begins to read a file from `offset` on.
    ///
    /// # Errors
    /// The server does not give it, or not from there.
    pub fn begin(&mut self, path: &[u8], offset: u64) -> Result<Incoming, Error> {
        self.leave_blocks()?;
        let rest = [Command::Rest(offset)];
        // Some servers refuse REST 0, and none needs it.
        let before = if offset > 0 { &rest[..] } else { &[] };
        data::begin(&mut self.control, &mut self.listens, before, Command::Path("RETR", path))
    }

    /// Ends a file whose last byte was read: the server's word on whether that was all.
    ///
    /// # Errors
    /// It was not, or nobody knows.
    pub fn finish(&mut self, incoming: Incoming, path: &[u8]) -> Result<(), Error> {
        if !incoming.has_ended() {
            let why = "more came than the file has";
            self.give_up(incoming)?;
            return Err(Error::Broken { doing: "reading a file", why });
        }
        data::finish(&mut self.control, incoming, Command::Path("RETR", path)).map(drop)
    }

    /// Ends a file of which no more is wanted.
    ///
    /// # Errors
    /// The session is over.
    pub fn give_up(&mut self, incoming: Incoming) -> Result<(), Error> {
        data::give_up(&mut self.control, incoming)
    }
}

/// Wants data connections to be protected, which are plain until somebody says so (RFC 4217, 9). Whether they
/// are: without a login there are servers that do not talk of it.
fn protect_data(control: &mut Control, logged_in: bool) -> Result<bool, Error> {
    for command in [Command::With("PBSZ", b"0"), Command::With("PROT", b"P")] {
        let reply = control.ask(&command)?;
        if !logged_in && matches!(reply.code(), 503 | 530) {
            return Ok(false);
        }
        control.done(&command, reply)?;
    }
    Ok(true)
}

/// Facts to ask for, if one of them is off unless somebody asks.
fn facts_to_want(features: &Features) -> Option<Vec<&'static str>> {
    const WANTED: [&str; 8] =
        ["Type", "Size", "Modify", "UNIX.mode", "UNIX.slink", "Unique", "Perm", "X.count"];
    let told = |fact: &str, may_be_on: bool| {
        let is_it = |told: &[u8]| told.eq_ignore_ascii_case(fact.as_bytes());
        features.mlst().any(|told| (may_be_on || !told.is_on) && is_it(told.name))
    };
    let is_any_off = WANTED.iter().any(|fact| told(fact, false));
    is_any_off.then(|| WANTED.into_iter().filter(|fact| told(fact, true)).collect())
}

/// Bytes are to come as they are; which facts are wanted; and where a GridFTP server has its data, if it says
/// so. All is asked in one round trip.
fn set_up(control: &mut Control, features: &Features) -> Result<(), Error> {
    let as_they_are = Command::Type(b'I');
    let ends =
        control.peer().and_then(|peer| Ok((peer.ip().to_canonical(), control.local()?.ip().to_canonical())));
    // Under TLS and by ssh data go to one place alone.
    let ends = ends.ok().filter(|_| features.has("SPAS") && control.tls().is_none());
    let spas = ends.map(|ends| if ends.0.is_ipv6() { Command::Spas6 } else { Command::Bare("SPAS") });
    let wanted = facts_to_want(features);
    let facts = wanted.as_ref().map(|wanted| Command::OptsMlst(wanted));
    let all: Vec<Command<'_>> = [Some(as_they_are), facts, spas].into_iter().flatten().collect();
    let mut replies = control.ask_all(&all)?.into_iter();
    let reply = replies.next().expect("one for each");
    control.done(&as_they_are, reply)?;
    // Without that of the facts they are those that are told anyway; without nodes it is asked for one place
    // then, as any other.
    if let Some(ends) = ends
        && let Some(reply) = replies.next_back().filter(|reply| reply.code() == 229)
    {
        control.nodes = Nodes::of(&reply, ends);
    }
    Ok(())
}

/// What wants both ends of data connections to show whose they are, and data to be protected; or neither.
fn protections(credential: &Credential) -> Vec<Command<'static>> {
    let prot = match credential.data() {
        // Without a delegated credential the server could not show on a data connection who it is.
        DataSecurity::None => return vec![Command::Dcau(DataAuth::None)],
        DataSecurity::Shown => b'C',
        DataSecurity::Private => b'P',
    };
    vec![Command::Dcau(DataAuth::Own), Command::Pbsz(PBSZ), Command::Prot(prot)]
}

impl Drop for Session {
    fn drop(&mut self) {
        self.control.take_leave();
    }
}
