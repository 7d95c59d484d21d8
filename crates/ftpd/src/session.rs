//! One session: what the client says, one command after another, until it goes.
//!
//! In: a control connection, and what the monitor told. Out: replies; files through [`Tree`] and [`Upload`];
//! a log line for each transfer.
//! What must hold: before a login nothing of the tree is looked at; what the login may not change is not
//! changed; one command runs at a time, and its replies come in its turn.
//!
//! [`Upload`]: crate::part::Upload

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use haul_core::entry::Name;
use haul_gridftp::command::StripeLayout;
use haul_gridftp::request::{Family, Opts, Request, Restart};
use haul_gridftp::{address, reply::Reply};

use crate::config::{
    Access, Claim, Config, Handed, IDLE_MAX, Login, Parts, Passed, REFUSED_MAX, Secret, Start,
};
use crate::control::{self, Control, End};
use crate::data::{Data, Refused};
use crate::listing::Wanted;
use crate::log::Log;
use crate::part::Upload;
use crate::sums::ALGORITHMS;
use crate::tree::{Tree, shown};

mod files;
mod moving;
mod node;
mod secure;
mod stripes;

/// Who may log in without being known.
const ANONYMOUS: [&str; 2] = ["anonymous", "ftp"];

/// What is agreed for the next transfer.
struct Parameters {
    /// `S` or `E`.
    mode: u8,
    parallelism: usize,
    restart: Option<Restart>,
    allo: Option<u64>,
    /// Markers are told in stream mode, too, and so often.
    markers: Option<Duration>,
    facts: Wanted,
    /// How stripes lie in a file, if the client said so.
    layout: Option<StripeLayout>,
}

impl Parameters {
    fn new() -> Parameters {
        Parameters {
            mode: b'S',
            parallelism: 1,
            restart: None,
            allo: None,
            markers: None,
            facts: Wanted::ALL,
            layout: None,
        }
    }
}

/// A session.
pub struct Session {
    control: Control,
    log: Log,
    config: Config,
    peer: SocketAddr,
    data: Data,
    /// The name that the client gave, before its password.
    named: Option<String>,
    login: Option<Login>,
    tree: Option<Tree>,
    here: Vec<Name>,
    with: Parameters,
    rename_from: Option<Vec<Name>>,
    /// What is obeyed now has a line in the log.
    has_logged: bool,
    epsv_only: bool,
    before_login: bool,
    secure: secure::Secure,
    /// The address that the client reached.
    local: SocketAddr,
    node_key: Option<Secret>,
    /// At a node: the part that the front end says comes next.
    joined: Option<Upload>,
    /// What is agreed with several nodes.
    stripes: Option<stripes::Stripes>,
}

/// How a session goes on after a command.
enum Then {
    Next,
    Leave,
    /// Another process goes on.
    HandOver(Claim),
    /// Another process serves, and this one passes on what is said.
    Relay(UnixStream),
}

/// How a session ended.
enum Over {
    Ended(&'static str),
    /// Another process goes on for this login.
    Handed(Claim),
    /// Another process serves, by this one.
    Relayed(UnixStream),
}

/// Runs a session to its end.
///
/// # Errors
/// The sockets cannot be used as they must be.
pub fn run(control: OwnedFd, monitor: UnixStream, start: Start, log: Log) -> io::Result<()> {
    let is_relayed = start.after.as_ref().is_some_and(|after| after.with.relayed);
    let (control, is_linked) = match (start.config.is_node, &start.node_key) {
        (false, _) => (control, false),
        (true, None) => return Err(io::Error::other("a node without its key")),
        (true, Some(_)) if haul_mutant::removed("ftpd-nodes-want-the-key") => (control, false),
        (true, Some(key)) => match crate::link::accept(TcpStream::from(control), key) {
            Ok(linked) => (linked.into(), true),
            // Whoever that was has heard nothing.
            Err(error) => {
                let mut log = log;
                let why = format!("this is no front end of ours: {}", haul_base::errno::text(&error));
                log.note("refused", Some(start.peer), None, &why);
                return Ok(());
            }
        },
    };
    let is_relayed = is_relayed || is_linked;
    let control: Box<dyn control::Stream> = match is_relayed {
        true => {
            let control = UnixStream::from(control);
            control.set_nonblocking(true)?;
            Box::new(control)
        }
        false => {
            let control = TcpStream::from(control);
            control.set_nonblocking(true)?;
            control.set_nodelay(true)?;
            let _ = rustix::net::sockopt::set_socket_keepalive(&control, true);
            Box::new(control)
        }
    };
    monitor.set_nonblocking(true)?;
    let logged_in = start.after.is_some() || is_linked;
    let mut session = Session {
        data: Data::new(start.peer, start.local, start.config.data_ports, start.config.third_party),
        control: Control::new(control, monitor, logged_in),
        secure: secure::Secure::new(start.host, start.tls),
        log,
        config: start.config,
        peer: start.peer,
        named: None,
        login: None,
        tree: None,
        here: Vec::new(),
        with: Parameters::new(),
        rename_from: None,
        has_logged: false,
        epsv_only: false,
        before_login: start.before_login,
        local: start.local,
        node_key: start.node_key,
        joined: None,
        stripes: None,
    };
    if is_linked {
        let login = Login { user: "front end".into(), access: Access::Write, identity: None };
        session.enter(login, None);
    }
    match start.after {
        None if is_linked => {}
        None => session.control.say(220, "haul GridFTP server ready."),
        Some(Handed { login, with: Passed { unread, delegated, agreed, tls, .. } }) => {
            session.control.take_unread(&unread.0);
            session.secure.agreed = agreed;
            if let Some(known) = tls {
                session
                    .secure
                    .go_on_under_tls(known, session.config.tls_any_data)
                    .map_err(io::Error::other)?;
            }
            session.enter(login, delegated);
        }
    }
    match session.serve() {
        Over::Ended(why) => {
            if let Some(login) = &session.login {
                session.log.note("end", Some(session.peer), Some(&login.user), why);
            }
            Ok(())
        }
        Over::Handed(claim) => session.control.hand_over(claim),
        Over::Relayed(server) => {
            let control = session.control;
            // Of keys and contexts only the connection's own is used from here on. What is freed is not
            // wiped.
            drop((session.secure, session.data));
            crate::relay::run(control, server);
            Ok(())
        }
    }
}

impl Session {
    fn serve(&mut self) -> Over {
        let mut login_until =
            Some(Instant::now() + self.config.login_within).filter(|_| self.login.is_none());
        let (mut refused, mut spoke) = (0, false);
        loop {
            let idle_until = Instant::now() + IDLE_MAX;
            let until = login_until.map_or(idle_until, |login| login.min(idle_until));
            let line = match self.control.next_line(until) {
                Ok(line) => line,
                Err(end) => return Over::Ended(self.leave(end)),
            };
            // Who always has something to say has no longer than who says nothing.
            if login_until.is_some_and(|until| Instant::now() > until) {
                return Over::Ended(self.leave(End::Silent));
            }
            if login_until.is_some() && !std::mem::replace(&mut spoke, true) {
                self.control.tell_spoke();
            }
            if self.control.refuse_bare() {
                refused += 1;
                if refused > REFUSED_MAX {
                    return Over::Ended("too many bad commands");
                }
                continue;
            }
            if self.config.is_node && line.starts_with(node::VERB) {
                // It may hold a key.
                let line = zeroize::Zeroizing::new(line);
                self.on_task(&line[node::VERB.len()..]);
                continue;
            }
            let then = match Request::parse(&line) {
                Ok(request) => {
                    let (then, is_refused) = self.obey(request);
                    refused = if is_refused { refused + 1 } else { 0 };
                    then
                }
                Err(why) => {
                    refused += 1;
                    if is_transfer(&line) {
                        self.forget_transfer();
                    }
                    self.control.say(why.code, &why.words);
                    Then::Next
                }
            };
            if refused > REFUSED_MAX {
                self.control.say(421, "Too many commands that cannot be obeyed; goodbye.");
                return Over::Ended("too many bad commands");
            }
            match then {
                Then::Next => {}
                Then::Leave => return Over::Ended("goodbye"),
                Then::HandOver(claim) => return Over::Handed(claim),
                Then::Relay(server) => return Over::Relayed(server),
            }
            if self.login.is_some() {
                login_until = None;
            }
        }
    }

    fn leave(&mut self, end: End) -> &'static str {
        match end {
            End::Gone => "the client is gone",
            End::Silent if self.login.is_none() => {
                self.control.say(421, "No login in time; goodbye.");
                "no login in time"
            }
            End::Silent => {
                self.control.say(421, "Nothing was said for too long; goodbye.");
                "idle"
            }
            End::TooLong => {
                self.control.say(500, "The line is too long.");
                self.control.say(421, "What follows cannot be understood; goodbye.");
                "a line that is too long"
            }
            End::Broken => {
                self.control.say(421, "A token is not of this session; goodbye.");
                "a token that is not of its session"
            }
            End::Stopping => {
                self.control.say(421, "The server ends; come again later.");
                "the server ends"
            }
            End::Orphaned => "the monitor is gone",
        }
    }

    /// Does what is said. With it: whether it was refused.
    fn obey(&mut self, request: Request<'_>) -> (Then, bool) {
        if self.login.is_none() && !is_before_login(&request) {
            self.control.say(530, "Please log in first: USER and PASS.");
            return (Then::Next, true);
        }
        if !matches!(request, Request::Rnto(_)) {
            self.rename_from = None;
        }
        let code = match request {
            Request::User(name) => {
                if self.login.is_some() {
                    return (self.said(530, "You are logged in; connect anew to be somebody else."), true);
                }
                if self.config.tls_required && !self.control_is_protected() {
                    let shown: String = String::from_utf8_lossy(name).chars().take(64).collect();
                    self.log.note("refused", Some(self.peer), Some(&shown), "534 no login without TLS");
                    return (self.said(534, "Nobody logs in here without TLS: AUTH TLS."), true);
                }
                self.named = Some(String::from_utf8_lossy(name).into_owned());
                return (self.said(331, "Please tell the password; any will do."), false);
            }
            Request::Pass(_) => return self.pass(),
            Request::Quit => {
                self.control.say(221, "Goodbye.");
                return (Then::Leave, false);
            }
            Request::Noop => self.plain(200, "Still here."),
            Request::Acct => self.plain(202, "No account is needed."),
            Request::Syst => self.plain(215, "UNIX Type: L8"),
            Request::Lang => self.plain(200, "English is spoken."),
            Request::Abor => self.plain(226, "No transfer is under way."),
            Request::Help => self.help(),
            Request::SiteHelp => self.site_help(),
            Request::SiteClient(text) => {
                let text = String::from_utf8_lossy(&text[..text.len().min(200)]).into_owned();
                let user = self.login.as_ref().map(|login| login.user.clone());
                self.log.note("client", Some(self.peer), user.as_deref(), &text);
                self.plain(250, "Noted.")
            }
            Request::Feat => self.feat(),
            Request::Opts(opts) => self.opts(opts),
            // Bytes travel as they are in either.
            Request::Type(letter) => self.plain(200, &format!("Type is {}.", char::from(letter))),
            Request::Mode(b'E') if self.secure.is_under_tls() => {
                self.plain(504, "Under TLS there is stream mode: MODE S.")
            }
            Request::Mode(letter) => {
                if letter != self.with.mode {
                    self.stripes = None;
                    self.data.drop_kept();
                }
                self.with.mode = letter;
                self.plain(200, &format!("Mode is {}.", char::from(letter)))
            }
            Request::Stru => self.plain(200, "Structure is F."),
            Request::Sbuf(len) => {
                self.data.set_buffer(len);
                self.plain(200, "Buffers are set for connections to come.")
            }
            Request::Allo(len) => {
                self.with.allo = Some(len);
                self.plain(200, "So much is expected.")
            }
            Request::Rest(restart) => {
                let text = match &restart {
                    Restart::Offset(offset) => format!("The next transfer begins at {offset}."),
                    Restart::Ranges(ranges) => {
                        format!("The next transfer leaves out {} bytes.", ranges.total())
                    }
                };
                self.with.restart = Some(restart).filter(|restart| *restart != Restart::Offset(0));
                self.plain(350, &text)
            }
            Request::Pasv => self.passive(Ask::Pasv),
            Request::Epsv(family) => self.extended_passive(family),
            Request::Spas(_) if self.has_nodes() => self.passive_nodes(),
            Request::Spas(six) => self.passive(if six { Ask::Spas6 } else { Ask::Spas }),
            Request::Port(address) => self.active(address),
            Request::Eprt(address) => self.active(address),
            Request::Spor(addresses) => match addresses[..] {
                [only] => self.active(only),
                [_, _, ..] if self.has_nodes() => self.active_nodes(&addresses),
                [_, _, ..] => self.plain(504, "There is one stripe here: SPOR with one address."),
                [] => self.plain(501, "SPOR wants an address."),
            },
            Request::Dcau(how) => self.dcau(how),
            Request::Pbsz(len) => self.pbsz(len),
            Request::Prot(letter) => self.prot(letter),
            Request::Security { verb, argument } => return self.security(&verb, argument),
            Request::Pwd => {
                let here = self.here.clone();
                self.told(257, &here, b" is where you are.")
            }
            other => self.on_files(other),
        };
        // That a file is not there, or not for this user, answers a command: who is about to send many files
        // asks for each of them first.
        (Then::Next, code >= 500 && !(550..=553).contains(&code))
    }

    /// A transfer is refused before it begins: what was said for it is not for the next one, and what a
    /// sender puts into a connection for it is not either.
    fn forget_transfer(&mut self) {
        self.with.restart = None;
        self.with.allo = None;
        self.data.close();
        self.stripes = None;
    }

    fn plain(&mut self, code: u16, text: &str) -> u16 {
        self.control.say(code, text);
        code
    }

    fn said(&mut self, code: u16, text: &str) -> Then {
        self.control.say(code, text);
        Then::Next
    }

    /// A reply that begins with a path between quotes, in which a quote is doubled (RFC 959, appendix II).
    fn told(&mut self, code: u16, way: &[Name], text: &[u8]) -> u16 {
        let mut line = vec![b'"'];
        for byte in shown(way) {
            line.push(byte);
            if byte == b'"' {
                line.push(byte);
            }
        }
        line.push(b'"');
        line.extend_from_slice(text);
        self.control.say_bytes(code, &line);
        code
    }

    fn pass(&mut self) -> (Then, bool) {
        if self.login.is_some() {
            return (self.said(503, "You are logged in."), true);
        }
        let Some(user) = self.named.take() else {
            return (self.said(503, "Say USER first."), true);
        };
        let is_anonymous = ANONYMOUS.iter().any(|name| user.eq_ignore_ascii_case(name));
        if !is_anonymous && self.control.lock().is_some() {
            return self.claim(user);
        }
        if self.config.anonymous.is_none() || !is_anonymous {
            let shown: String = user.chars().take(64).collect();
            self.log.note("refused", Some(self.peer), Some(&shown), "no such login");
            let text = match (self.secure.is_under_tls(), &self.config.authorities) {
                (true, _) => "Under TLS only anonymous is served.",
                (_, Some(_)) => "Show who you are first: AUTH GSSAPI.",
                _ => "This login is not served here; anonymous is.",
            };
            return (self.said(530, text), true);
        }
        if self.before_login && !self.control_is_protected() {
            let claim = Claim {
                who: crate::config::Who::Anonymous,
                with: Passed {
                    unread: Secret(Vec::new()),
                    delegated: None,
                    agreed: self.secure.agreed.clone(),
                    tls: None,
                    relayed: false,
                },
            };
            return (Then::HandOver(claim), false);
        }
        // The monitor counts who has logged in.
        self.claim(user)
    }

    /// The login is good, and this process may act for it.
    fn enter(&mut self, mut login: Login, delegated: Option<Parts>) {
        match Tree::of(&self.config.root, self.config.volume.as_ref()) {
            Ok(tree) => {
                if !tree.can_change() {
                    login.access = Access::Read;
                }
                self.tree = Some(tree);
                self.control.trust();
                let tls = if self.secure.is_under_tls() { "under TLS" } else { "" };
                let shown = login.identity.as_deref().unwrap_or(tls);
                self.log.note("login", Some(self.peer), Some(&login.user), shown);
                self.protect_data(&login, delegated);
                self.control.say(230, "Logged in.");
                self.login = Some(login);
            }
            Err(why) => {
                self.log.note("error", Some(self.peer), Some(&login.user), &why);
                self.control.say(530, "What is served here cannot be opened; tell who runs this server.");
            }
        }
    }

    fn help(&mut self) -> u16 {
        let lines = [
            "These commands are known.",
            " USER PASS QUIT NOOP HELP SYST FEAT OPTS LANG TYPE MODE STRU SBUF ALLO REST ABOR STAT",
            " PASV EPSV PORT EPRT SPAS SPOR RETR STOR APPE ERET ESTO MLST MLSD NLST LIST",
            " SIZE MDTM MFMT CKSM CWD CDUP PWD MKD RMD DELE RNFR RNTO SITE DCAU PBSZ PROT",
            "End.",
        ];
        self.lines(214, &lines)
    }

    fn site_help(&mut self) -> u16 {
        self.lines(214, &["These SITE commands are known.", " HELP CLIENTINFO CHMOD", "End."])
    }

    fn feat(&mut self) -> u16 {
        let sums: String = ALGORITHMS.iter().map(|algorithm| format!("{algorithm}:10;")).collect();
        let (gsi, tls) = (self.config.authorities.is_some(), self.config.tls);
        // Whoever shows whose he is may come from anywhere.
        let is_open = self.config.third_party || self.data.guard.identifies();
        let more = [
            (" AUTH GSSAPI", gsi),
            (" AUTH TLS", tls),
            (" DCAU", gsi),
            (" PBSZ", gsi || tls),
            (" PROT", gsi || tls),
            (" STOR Tickets;", tls),
            (" THIRD-PARTY NO", !is_open),
        ];
        let lines = [
            "These are known.".to_owned(),
            " CKSM ".to_owned() + &sums,
            " EPRT".into(),
            " EPSV".into(),
            " ERET".into(),
            " ESTO".into(),
            " MDTM".into(),
            " MFMT".into(),
            format!(" MLST {}", self.with.facts.in_words(true)),
            " PARALLEL".into(),
            " PASV AllowDelayed;".into(),
            " REST STREAM".into(),
            " SBUF".into(),
            " SIZE".into(),
            " SPAS".into(),
            " SPOR".into(),
            " TVFS".into(),
            " UTF8".into(),
        ];
        let more = more.into_iter().filter(|(_, is)| *is).map(|(line, _)| line.to_owned());
        let lines: Vec<String> = lines.into_iter().chain(more).chain(["End.".into()]).collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        self.lines(211, &lines)
    }

    fn lines(&mut self, code: u16, lines: &[&str]) -> u16 {
        let lines = lines.iter().map(|line| line.as_bytes());
        let reply = Reply::new(code, lines).expect("some lines of plain text");
        self.control.send(&reply);
        code
    }

    fn opts(&mut self, opts: Opts) -> u16 {
        match opts {
            Opts::Retr { parallelism, markers, layout } => {
                if let Some(count) = parallelism {
                    let count = (count as usize).min(crate::config::CHANNELS_MAX);
                    if count != self.with.parallelism && self.data.kept_way == Some(crate::data::Way::Out) {
                        self.data.drop_kept();
                    }
                    self.with.parallelism = count;
                }
                if layout.is_some() {
                    self.with.layout = layout;
                }
                if let Some(every) = markers {
                    self.with.markers = (every > 0).then(|| Duration::from_secs(every));
                }
                self.plain(200, "OPTS RETR is set.")
            }
            Opts::DelayedPassive(on) => {
                self.data.delayed = on;
                self.plain(200, "OPTS PASV is set.")
            }
            Opts::StorTickets(on) => {
                self.tell_senders(on);
                self.plain(200, "OPTS STOR is set.")
            }
            Opts::Mlst(names) => {
                self.with.facts = Wanted::of(&names);
                let text = format!("MLST OPTS {}", self.with.facts.in_words(false));
                self.plain(200, text.trim_end())
            }
            Opts::Utf8 => self.plain(200, "Names are bytes, and UTF-8 is welcome."),
        }
    }

    fn passive(&mut self, ask: Ask) -> u16 {
        if self.epsv_only {
            return self.plain(501, "After EPSV ALL only EPSV is served.");
        }
        self.stripes = None;
        if ask == Ask::Pasv && self.data.delayed {
            self.data.close();
            self.data.due = true;
            return self.plain(200, "Passive delayed.");
        }
        let at = match self.data.listen() {
            Ok(at) => at,
            Err(error) => return self.no_port(&error),
        };
        let reply = match ask {
            Ask::Pasv => address::text_227(at).and_then(|text| Reply::new(227, [text.into_bytes()])),
            Ask::Spas if at.is_ipv6() => {
                self.data.close();
                return self.plain(522, "This connection is of IPv6: SPAS 2.");
            }
            Ask::Spas | Ask::Spas6 => address::spas_reply(&[at]),
        };
        match reply {
            Ok(reply) => {
                self.control.send(&reply);
                reply.code()
            }
            Err(_) => {
                self.data.close();
                self.plain(522, "This connection is of IPv6: EPSV.")
            }
        }
    }

    fn extended_passive(&mut self, family: Family) -> u16 {
        let six = self.data.is_ipv6();
        match family {
            Family::All => {
                self.epsv_only = true;
                return self.plain(200, "From now on EPSV alone.");
            }
            Family::V4 if six => return self.plain(522, "This connection is of IPv6, use (2)."),
            Family::V6 if !six => return self.plain(522, "This connection is of IPv4, use (1)."),
            _ => {}
        }
        self.stripes = None;
        match self.data.listen() {
            Ok(at) => {
                let text = address::text_229(at.port()).expect("a port that is listened at is not 0");
                self.plain(229, &text)
            }
            Err(error) => self.no_port(&error),
        }
    }

    fn no_port(&mut self, error: &io::Error) -> u16 {
        let text = haul_base::errno::text(error);
        self.plain(425, &format!("No port for data connections is free: {text}."))
    }

    fn active(&mut self, address: SocketAddr) -> u16 {
        if self.epsv_only {
            return self.plain(501, "After EPSV ALL only EPSV is served.");
        }
        self.stripes = None;
        match self.data.dial_to(address) {
            Ok(()) => self.plain(200, "Data will go there."),
            Err(why) => {
                self.log.note("refused", Some(self.peer), None, &format!("data to {address}: {why}"));
                let hint = match why {
                    Refused::Foreign => "; who runs this server may allow it: --third-party",
                    Refused::Service => "",
                };
                self.plain(504, &format!("This address is refused: {why}{hint}."))
            }
        }
    }

    /// Data may go by several nodes, which serve one user. Under TLS there is stream mode, which this process
    /// does itself.
    fn has_nodes(&self) -> bool {
        !self.config.nodes.is_empty() && self.node_key.is_some() && !self.secure.is_under_tls()
    }

    fn may_write(&self) -> bool {
        self.login.as_ref().is_some_and(|login| login.access == Access::Write)
    }

    fn access(&self) -> Access {
        self.login.as_ref().map_or(Access::Read, |login| login.access)
    }

    fn user(&self) -> String {
        self.login.as_ref().map(|login| login.user.clone()).unwrap_or_default()
    }
}

/// What asks for a port.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ask {
    Pasv,
    Spas,
    Spas6,
}

/// A line that is no request was to be one of a transfer.
fn is_transfer(line: &[u8]) -> bool {
    const VERBS: [&[u8]; 8] = [b"RETR", b"ERET", b"STOR", b"ESTO", b"APPE", b"MLSD", b"NLST", b"LIST"];
    // Before the verb there may be bytes of Telnet.
    let begin = line.iter().position(u8::is_ascii_alphabetic).unwrap_or(line.len());
    let word = line[begin..].split(|b| !b.is_ascii_alphabetic()).next().unwrap_or_default();
    VERBS.iter().any(|verb| word.eq_ignore_ascii_case(verb))
}

fn is_before_login(request: &Request<'_>) -> bool {
    matches!(
        request,
        Request::User(_)
            | Request::Pass(_)
            | Request::Quit
            | Request::Noop
            | Request::Help
            | Request::Syst
            | Request::Feat
            | Request::Lang
            | Request::Opts(_)
            | Request::Security { .. }
            | Request::Pbsz(_)
            | Request::Prot(_)
    )
}
