//! The control connection: commands out, replies in.
//!
//! In: commands. Out: replies, each within the session's patience from when it is waited for, however slowly
//! a server sends it.
//! Invariants: after an error of the connection nothing more is sent; what is told of a command is its verb
//! and its path, never a password; nor is it told where the server repeats it; how the server reads the byte
//! 0xff is asked only where no answer is due.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use haul_base::escape;
use haul_base::stop::Stop;
use haul_gridftp::command::Command;
use haul_gridftp::line::Iac;
use haul_gridftp::reply::{Class, Reply, ReplyReader};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::gsi::{Channel, Context, Credential, DELEGATED_BY_NO_RSA, decoded};
use crate::nodes::Nodes;
use crate::ssh::{self, Heard, Running, Ssh};
use crate::tls::{Socket, Tls, Wire};
use crate::{Error, Server};

mod iac;

use iac::Reads;

/// Bytes of commands that are under way together, so that both ends never wait for each other.
pub const COMMANDS_LEN_MAX: usize = 16 * 1024;
/// Bytes of commands in one record of TLS. ProFTPD takes some 4 KiB at once, and does not look at what is
/// left of a record until another one comes.
const RECORD_LEN_MAX: usize = 1024;
/// Most of a server's text in an error.
const TEXT_LEN_MAX: usize = 300;
const BUFFER_LEN: usize = 16 * 1024;
/// Most tokens that the two ends of GSI exchange; they need four.
const ROUNDS_MAX: usize = 16;

/// The security of the grid, where commands and replies are wrapped.
struct Gsi {
    context: Context,
    reader: ReplyReader,
    /// What was unwrapped and not read yet.
    plain: Vec<u8>,
}

/// How long the answer to `QUIT` is waited for, which comes at once of a server that lives; and, of that, the
/// end of the connection behind it, which is when the server counts the session no more.
const LEAVING: Duration = Duration::from_secs(1);
const HANGING_UP: Duration = Duration::from_millis(100);
/// Who waits for it looks as often whether somebody wants an end.
const LEAVES_LOOK: Duration = Duration::from_millis(20);

/// How long a server may take to see that nobody listens any more.
pub(crate) const GIVING_UP: Duration = Duration::from_secs(10);

/// A control connection.
pub(crate) struct Control {
    stream: Wire,
    tls: Option<Tls>,
    gsi: Option<Gsi>,
    /// What data connections show, where they do.
    channel: Option<Channel>,
    reader: ReplyReader,
    reads: Reads,
    /// Commands whose last reply did not come yet.
    due: usize,
    buffer: Vec<u8>,
    /// What of the buffer was not looked at yet.
    rest: std::ops::Range<usize>,
    patience: Duration,
    stop: Stop,
    /// The password, which a server may say, too.
    secret: String,
    /// Something of it is not as it must be any more.
    broken: bool,
    /// The server agreed to a place in a file (`REST`), and nothing has gone there since.
    placed: bool,
    /// When the server said something last.
    heard: Instant,
    /// From a command to its answer, at best.
    quickest: Option<Duration>,
    /// Where the server is, of which this connection does not tell.
    told_at: Option<IpAddr>,
    /// Where it has its data, as far as it was asked.
    pub(crate) nodes: Nodes,
    /// Last, so that the connection is closed by then.
    ssh: Option<Running>,
}

impl Control {
    /// Connects to the first of the server's addresses that answers.
    pub(crate) fn connect(
        server: &Server,
        at: Option<SocketAddr>,
        (patience, stop): (Duration, &Stop),
    ) -> Result<Control, Error> {
        let to = || server.shown();
        let unreached = |cause| Error::unreached(to(), patience, cause);
        let (host, port, stops) = (server.host.clone(), server.port, stop.clone());
        let dial = move || {
            let addresses: Vec<SocketAddr> = match at {
                Some(at) => vec![at],
                None => (host.as_str(), port).to_socket_addrs()?.collect(),
            };
            let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
            for address in addresses {
                stops.check()?;
                match TcpStream::connect_timeout(&address, patience) {
                    Ok(stream) => return Ok(stream),
                    Err(cause) => last = cause,
                }
            }
            Err(last)
        };
        // Neither can be interrupted: the name's addresses are asked for, and they are dialled.
        let stream = stop.unless_asked("haul-ftp-dial", dial).and_then(|dialled| dialled);
        let secret = if server.has_no_password() { "" } else { server.password() };
        let over = |stream| Control::over(stream, (patience, stop), secret.to_owned());
        stream.and_then(over).map_err(unreached)
    }

    /// Has ssh start the server.
    pub(crate) fn start(
        server: &Server,
        ssh: &Ssh,
        (patience, stop): (Duration, &Stop),
    ) -> Result<Control, Error> {
        let (socket, running) = ssh::start(server, ssh)?;
        let stream = Wire::plain(socket, stop.clone());
        let mut control = Control::with(stream, (patience, stop), String::new());
        control.ssh = Some(running);
        let until = Instant::now() + Running::patience(ssh, patience);
        let mut came = Vec::new();
        loop {
            match ssh::hear(&came) {
                Heard::Speaks(at, address) => {
                    came.drain(..at);
                    control.told_at = address;
                    (control.rest, control.buffer) = (0..came.len(), came);
                    return Ok(control);
                }
                Heard::NoServer => {
                    let why = "there is neither .globus/sshftp nor /etc/grid-security/sshftp at the host; \
                               globus-gridftp-server-enable-sshftp makes one";
                    return Err(Error::Broken { doing: "starting the server by ssh", why });
                }
                Heard::TooMuch => {
                    let why = "the host's shell says more than 64 KiB before the server does";
                    return Err(Error::Broken { doing: "starting the server by ssh", why });
                }
                Heard::More => {}
            }
            let mut buffer = [0; 4096];
            control.stream.ends_at(until);
            match control.stream.read(&mut buffer) {
                Ok(0) => return Err(control.ssh.as_mut().expect("it was started").ended()),
                Ok(len) => came.extend_from_slice(&buffer[..len]),
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) if cause.kind() == io::ErrorKind::ConnectionReset => {
                    return Err(control.ssh.as_mut().expect("it was started").ended());
                }
                Err(cause) => return Err(Error::lost("starting the server by ssh", patience, cause)),
            }
        }
    }

    fn over(stream: TcpStream, waits: (Duration, &Stop), secret: String) -> io::Result<Control> {
        stream.set_nodelay(true)?;
        let stream = Wire::plain(stream, waits.1.clone());
        Ok(Control::with(stream, waits, secret))
    }

    fn with(stream: Wire, (patience, stop): (Duration, &Stop), secret: String) -> Control {
        let (reader, buffer) = (ReplyReader::new(Iac::Plain), vec![0; BUFFER_LEN]);
        Control {
            stream,
            tls: None,
            gsi: None,
            channel: None,
            reader,
            reads: Reads::Unasked(None),
            due: 0,
            buffer,
            rest: 0..0,
            patience,
            stop: stop.clone(),
            secret,
            broken: false,
            placed: false,
            heard: Instant::now(),
            quickest: None,
            told_at: None,
            nodes: Nodes::default(),
            ssh: None,
        }
    }

    /// Goes on under TLS. What the server said before that, or somebody in its name, is not heard under it.
    pub(crate) fn protect(&mut self, tls: Tls) -> Result<(), Error> {
        const DOING: &str = "beginning TLS";
        self.broken = true;
        if !self.rest.is_empty() || !self.reader.is_idle() {
            return Err(Error::Broken { doing: DOING, why: "the server said more before it than was asked" });
        }
        let Wire::Plain(socket) = &self.stream else { return Err(Error::Closed { doing: DOING }) };
        let socket = socket.try_clone().map_err(|cause| Error::Lost { doing: DOING, cause })?;
        self.stream = tls.begin(socket, self.patience)?;
        self.tls = Some(tls);
        self.broken = false;
        Ok(())
    }

    /// What protects a data connection, where the control connection is protected.
    pub(crate) fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// Goes on under GSI: a context is made.
    pub(crate) fn secure(&mut self, mut context: Context) -> Result<(), Error> {
        const DOING: &str = "beginning the security of the grid";
        let auth = Command::With("AUTH", b"GSSAPI");
        let reply = self.ask(&auth)?;
        if reply.code() != 334 {
            return Err(self.refused(&auth, &reply));
        }
        let mut heard = Vec::new();
        for _ in 0..ROUNDS_MAX {
            let token = context.step(&heard).inspect_err(|_| self.broken = true)?;
            let adat = Command::With("ADAT", token.as_bytes());
            let reply = self.ask(&adat)?;
            let said = reply.text().strip_prefix(b"ADAT=");
            heard = said.map_or(Ok(Vec::new()), decoded)?;
            match reply.code() {
                335 => {}
                235 => {
                    if !context.stands() || !heard.is_empty() || !self.rest.is_empty() {
                        break;
                    }
                    let reader = ReplyReader::new(Iac::Plain);
                    self.gsi = Some(Gsi { context, reader, plain: Vec::new() });
                    return Ok(());
                }
                _ => {
                    let mut error = self.refused(&adat, &reply);
                    if let Error::Refused { said, .. } = &mut error
                        && context.delegated_by_no_rsa()
                    {
                        *said = DELEGATED_BY_NO_RSA.to_owned();
                    }
                    return Err(error);
                }
            }
        }
        self.broken = true;
        Err(Error::Broken { doing: DOING, why: "the two do not come to an end" })
    }

    /// Data connections show from now on that they are of this session, and what of them is protected.
    pub(crate) fn protect_channel(&mut self, credential: &Credential) {
        let delegated = self.gsi.as_ref().and_then(|gsi| gsi.context.delegated());
        self.channel = credential.channel(delegated);
    }

    /// The same.
    pub(crate) fn channel(&self) -> Option<&Channel> {
        self.channel.as_ref()
    }

    /// Where this connection goes.
    pub(crate) fn peer(&self) -> io::Result<SocketAddr> {
        self.stream.peer()
    }

    /// Where data connections go; `None`: where the server says, which came through ssh from a host that is
    /// known.
    pub(crate) fn host(&self) -> io::Result<Option<IpAddr>> {
        match self.ssh {
            Some(_) => Ok(self.told_at),
            None => self.peer().map(|peer| Some(peer.ip())),
        }
    }

    /// This host, as the server sees it, if nobody between the two changes that.
    pub(crate) fn local(&self) -> io::Result<SocketAddr> {
        self.stream.local()
    }

    /// For who waits for what comes.
    pub(crate) fn socket(&self) -> &Socket {
        self.stream.socket()
    }

    /// Something of what was read was not looked at yet.
    pub(crate) fn has_rest(&self) -> bool {
        !self.rest.is_empty() || self.gsi.as_ref().is_some_and(|gsi| !gsi.plain.is_empty())
    }

    /// What is under way cannot be told from what comes next any more.
    pub(crate) fn set_broken(&mut self) {
        self.broken = true;
    }

    /// The server agreed to a place in a file (`REST`), or something goes there now.
    pub(crate) fn set_placed(&mut self, placed: bool) {
        self.placed = placed;
    }

    /// What goes next goes to a place that was meant for something else.
    pub(crate) fn is_placed(&self) -> bool {
        self.placed
    }

    /// Waits until there is something to read on one of two connections, but not for longer than this.
    pub(crate) fn wait_for_either(&self, other: &Control, time: Duration) {
        is_readable(&[self.stream.socket(), other.stream.socket()], time);
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    pub(crate) fn is_hung_up(&self) -> bool {
        self.broken || is_hung_up(self.stream.socket())
    }

    /// The server said something that nobody asked for, or ended it, as far as that shows: under protection
    /// something may be there that is no word of it.
    pub(crate) fn is_over(&self) -> bool {
        self.broken || !self.stream.seals() && is_readable(&[self.stream.socket()], Duration::ZERO)
    }

    /// How long an answer took, at best: a server thinks about some things, and none comes sooner than the
    /// way takes.
    pub(crate) fn quickest(&self) -> Option<Duration> {
        self.quickest
    }

    /// For how long the server has said nothing.
    pub(crate) fn silent_for(&self) -> Duration {
        self.heard.elapsed()
    }

    /// Asks whether the server is there; whatever it says to that, it is. Waits as long as `waits` says,
    /// which is asked often, and no longer than the patience, or than somebody who can end it has it.
    pub(crate) fn ask_whether_there(&mut self, waits: &mut dyn FnMut() -> bool) -> Result<(), Error> {
        const LOOKS_EVERY: Duration = Duration::from_millis(100);
        let noop = Command::Bare("NOOP");
        self.send(std::slice::from_ref(&noop))?;
        let begun = Instant::now();
        while begun.elapsed() < self.patience && !self.stop.is_asked_of(begun) && waits() {
            match self.ready_reply()? {
                None => drop(is_readable(&[self.stream.socket()], LOOKS_EVERY)),
                Some(reply) if reply.class() == Class::Preliminary => {}
                Some(reply) if matches!(reply.code(), 225 | 226 | 421 | 426) => {
                    self.broken = true;
                    return Err(self.refused(&noop, &reply));
                }
                Some(_) => return Ok(()),
            }
        }
        self.broken = true;
        Err(Error::silent("asking whether the server is there", self.patience))
    }

    /// Says that nothing more is asked, and hears the server end the session: one that takes few has room for
    /// the next one only then. Waits for that no longer than [`LEAVING`], and not where something is under
    /// way still, the session is lost, or somebody wants an end of all that is waited for.
    pub(crate) fn take_leave(&mut self) {
        if self.is_hung_up() {
            return;
        }
        let is_idle = self.due == 0;
        let begun = Instant::now();
        let until = begun + LEAVING.min(self.patience);
        let said = self.send(&[Command::Bare("QUIT")]);
        if said.is_err() || !is_idle || haul_mutant::removed("ftp-sessions-are-seen-to-end") {
            return;
        }
        let goes_on = |until: Instant, stop: &Stop| Instant::now() < until && !stop.is_asked_of(begun);
        while goes_on(until, &self.stop) {
            match self.ready_reply() {
                Ok(None) => drop(is_readable(&[self.stream.socket()], LEAVES_LOOK)),
                Ok(Some(reply)) if reply.class() == Class::Preliminary => {}
                Ok(Some(_)) => break,
                // It is over.
                Err(_) => return,
            }
        }
        let until = until.min(Instant::now() + HANGING_UP);
        while goes_on(until, &self.stop) && !is_hung_up(self.stream.socket()) {
            hangs_up(self.stream.socket(), LEAVES_LOOK);
        }
    }

    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }

    /// Whoever can end what is waited for here.
    pub(crate) fn stop(&self) -> &Stop {
        &self.stop
    }

    /// From now on nobody else ends what is waited for here.
    pub(crate) fn heed(&mut self, stop: &Stop) {
        self.stop = stop.clone();
        self.stream.set_stop(stop.clone());
    }

    /// Sends commands in one piece: their replies come in this order.
    pub(crate) fn send(&mut self, commands: &[Command<'_>]) -> Result<(), Error> {
        const DOING: &str = "sending a command";
        if self.broken {
            return Err(Error::Closed { doing: DOING });
        }
        let mut lines = Vec::with_capacity(commands.len());
        for command in commands {
            let mut line = Vec::new();
            command.encode(Iac::Plain, &mut line)?;
            if line.contains(&0xff) {
                let iac = self.find_iac()?;
                line.clear();
                command.encode(iac, &mut line)?;
            }
            lines.push(line);
        }
        self.due += lines.len();
        let mut bytes = Vec::new();
        for mut line in lines {
            if let Some(gsi) = &mut self.gsi {
                line = gsi.context.wrap(&line)?;
            }
            bytes.append(&mut line);
        }
        let is_whole = !self.stream.seals() || haul_mutant::removed("ftp-commands-go-in-short-records");
        let piece_len = if is_whole { usize::MAX } else { RECORD_LEN_MAX };
        self.stream.ends_at(Instant::now() + self.patience);
        let mut pieces = bytes.chunks(piece_len);
        let written = pieces.try_for_each(|piece| self.stream.write_all(piece));
        written.and_then(|()| self.stream.flush()).map_err(|cause| {
            self.broken = true;
            Error::lost(DOING, self.patience, cause)
        })
    }

    /// The next reply.
    pub(crate) fn reply(&mut self) -> Result<Reply, Error> {
        self.reply_within(Wait::of(self.patience))
    }

    /// The same within another time.
    pub(crate) fn any_reply_within(&mut self, patience: Duration) -> Result<Reply, Error> {
        self.reply_within(Wait::of(patience))
    }

    /// The same, of a server that sees that nobody listens any more.
    pub(crate) fn reply_after_all(&mut self) -> Result<Reply, Error> {
        self.reply_within(Wait::of(GIVING_UP.min(self.patience)))
    }

    fn reply_within(&mut self, wait: Wait) -> Result<Reply, Error> {
        let result = self.next_reply(Some(wait));
        self.note(&result);
        result.map(|reply| reply.expect("it is waited for"))
    }

    /// The next reply, if all of it is there: nothing is waited for.
    pub(crate) fn ready_reply(&mut self) -> Result<Option<Reply>, Error> {
        let result = self.next_reply(None);
        self.note(&result);
        result
    }

    /// A reply, or none, came.
    fn note(&mut self, result: &Result<Option<Reply>, Error>) {
        self.broken |= result.is_err();
        if let Ok(Some(reply)) = result
            && reply.class() != Class::Preliminary
        {
            // A server may say more than it was asked.
            self.due = self.due.saturating_sub(1);
        }
    }

    /// The next reply, as it was before it was wrapped. `None`: nothing is waited for, and it is not there.
    fn next_reply(&mut self, wait: Option<Wait>) -> Result<Option<Reply>, Error> {
        const DOING: &str = "waiting for an answer";
        loop {
            if let Some(Gsi { reader, plain, .. }) = &mut self.gsi {
                let (taken, reply) = reader.feed(plain)?;
                plain.drain(..taken);
                if let Some(reply) = reply {
                    return Ok(Some(reply));
                }
            }
            let Some(reply) = self.reply_as_it_comes(wait)? else { return Ok(None) };
            let Some(Gsi { context, plain, .. }) = &mut self.gsi else { return Ok(Some(reply)) };
            match reply.code() {
                // RFC 2228: what is protected against being read and changed.
                632 => {}
                421 => return Err(Error::Closed { doing: DOING }),
                _ => {
                    let why = "the server, or somebody in its name, says something that is not protected";
                    return Err(Error::Broken { doing: DOING, why });
                }
            }
            let lines = reply.lines();
            let ends = if lines.len() > 1 { lines.last() } else { None };
            for token in std::iter::once(reply.text()).chain(reply.inner()).chain(ends.map(|line| &**line)) {
                plain.extend(context.unwrap(token)?);
            }
        }
    }

    fn reply_as_it_comes(&mut self, wait: Option<Wait>) -> Result<Option<Reply>, Error> {
        const DOING: &str = "waiting for an answer";
        let Wait { until, patience } = wait.unwrap_or(Wait::of(self.patience));
        if Instant::now() > until {
            return Err(Error::silent(DOING, patience));
        }
        if self.broken {
            return Err(Error::Closed { doing: DOING });
        }
        loop {
            let (taken, reply) = self.reader.feed(&self.buffer[self.rest.clone()])?;
            self.rest.start += taken;
            if let Some(reply) = reply {
                self.heard = Instant::now();
                return Ok(Some(reply));
            }
            if wait.is_none() && !is_readable(&[self.stream.socket()], Duration::ZERO) {
                return Ok(None);
            }
            self.stream.ends_at(until);
            match self.stream.read(&mut self.buffer) {
                Ok(0) => return Err(Error::Closed { doing: DOING }),
                Ok(len) => self.rest = 0..len,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => self.rest = 0..0,
                Err(cause) => return Err(Error::lost(DOING, patience, cause)),
            }
            if Instant::now() > until {
                return Err(Error::silent(DOING, patience));
            }
        }
    }

    /// The last reply to a command: preliminary ones are passed over.
    pub(crate) fn last_reply(&mut self) -> Result<Reply, Error> {
        self.last_reply_within(self.patience)
    }

    /// The same within another time, however many preliminary ones come.
    pub(crate) fn last_reply_within(&mut self, patience: Duration) -> Result<Reply, Error> {
        let wait = Wait::of(patience);
        loop {
            let reply = self.reply_within(wait)?;
            if reply.class() != Class::Preliminary {
                return Ok(reply);
            }
        }
    }

    /// Sends one command that moves no data; its last reply, whatever it says of that.
    pub(crate) fn ask(&mut self, command: &Command<'_>) -> Result<Reply, Error> {
        let asked = Instant::now();
        self.send(std::slice::from_ref(command))?;
        let reply = self.last_reply()?;
        let took = asked.elapsed();
        self.quickest = Some(self.quickest.map_or(took, |quickest| quickest.min(took)));
        match reply.code() {
            // Of a transfer before it.
            code @ (225 | 226 | 426) => Err(Error::OutOfStep { said: said(command), code }),
            _ => Ok(reply),
        }
    }

    /// Sends commands that move no data in one piece; the last reply to each, whatever it says of that.
    pub(crate) fn ask_all(&mut self, commands: &[Command<'_>]) -> Result<Vec<Reply>, Error> {
        let asked = Instant::now();
        self.send(commands)?;
        self.answers(commands, asked)
    }

    /// The last reply to each of these, which were sent then, in one piece.
    pub(crate) fn answers(&mut self, commands: &[Command<'_>], asked: Instant) -> Result<Vec<Reply>, Error> {
        let mut replies = Vec::with_capacity(commands.len());
        for command in commands {
            let reply = match self.last_reply() {
                Ok(reply) => reply,
                // Who refuses a login may hang up behind it, whatever else was asked together with it.
                Err(error) => return Err(self.refused_login(commands, &replies).unwrap_or(error)),
            };
            if replies.is_empty() {
                let took = asked.elapsed();
                self.quickest = Some(self.quickest.map_or(took, |quickest| quickest.min(took)));
            }
            match reply {
                // Of a transfer before it.
                reply if matches!(reply.code(), 225 | 226 | 426) => {
                    return Err(Error::OutOfStep { said: said(command), code: reply.code() });
                }
                // Nothing is said behind it; and who refuses a login may say it in place of hanging up.
                reply if reply.code() == 421 => {
                    let refused = self.refused_login(commands, &replies);
                    return Err(refused.unwrap_or_else(|| self.refused(command, &reply)));
                }
                reply => replies.push(reply),
            }
        }
        Ok(replies)
    }

    /// What the server said of a login among these, as far as they were answered, if it refused that.
    fn refused_login(&self, commands: &[Command<'_>], replies: &[Reply]) -> Option<Error> {
        let mut answered = commands.iter().zip(replies);
        let is_it = |(command, reply): &(&Command<'_>, &Reply)| {
            let is_login = matches!(command, Command::With("USER" | "PASS" | "ACCT", _));
            let refuses = matches!(reply.class(), Class::Transient | Class::Permanent);
            is_login && refuses && !haul_mutant::removed("ftp-refused-logins-are-heard")
        };
        answered.find(is_it).map(|(command, reply)| self.refused(command, reply))
    }

    /// As [`Control::ask`] for what must be answered by 2yz.
    pub(crate) fn want(&mut self, command: &Command<'_>) -> Result<Reply, Error> {
        let reply = self.ask(command)?;
        self.done(command, reply)
    }

    /// A reply that says that it is done; else what the server said.
    pub(crate) fn done(&self, command: &Command<'_>, reply: Reply) -> Result<Reply, Error> {
        match reply.class() {
            Class::Completed => Ok(reply),
            _ => Err(self.refused(command, &reply)),
        }
    }

    /// A reply of this very code, as the command has it when it is done. Any other that says that it is done
    /// is the answer to something else: after a transfer that was given up some servers say more than one
    /// thing.
    pub(crate) fn exactly(&self, command: &Command<'_>, code: u16, reply: Reply) -> Result<Reply, Error> {
        match reply.class() {
            _ if reply.code() == code => Ok(reply),
            Class::Completed => Err(Error::OutOfStep { said: said(command), code: reply.code() }),
            _ => Err(self.refused(command, &reply)),
        }
    }

    /// What the server said of a command.
    pub(crate) fn refused(&self, command: &Command<'_>, reply: &Reply) -> Error {
        // What Globus says for people stands in a line of its own.
        let own = reply.inner().find_map(|line| line.strip_prefix(b"GridFTP-Error-String: "));
        let words = match own {
            Some(own) => own.trim_ascii().to_vec(),
            // The cause comes behind the first line, where there are several.
            None => {
                let all = std::iter::once(reply.text()).chain(reply.inner()).map(<[u8]>::trim_ascii);
                all.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(&b"; "[..])
            }
        };
        let text = match reply.lines().iter().any(|line| self.tells(line)) {
            true => "in words with the password in them".into(),
            false => escape::text(&String::from_utf8_lossy(&words)).replace('\n', " "),
        };
        let text = text.trim().chars().take(TEXT_LEN_MAX).collect();
        if reply.code() == 425
            && let Some(tls) = &self.tls
        {
            tls.is_not_known_again();
        }
        Error::Refused { said: said(command), code: meant(reply), text }
    }

    /// Whether the password stands in what the server says. Then nothing of that is told: what is left out of
    /// a text would stand in the words around it.
    pub(crate) fn tells(&self, text: &[u8]) -> bool {
        let secret = self.secret.as_bytes();
        !secret.is_empty() && text.windows(secret.len()).any(|part| part == secret)
    }
}

/// The other end has closed it, or it is lost, whatever there still is to be read.
fn is_hung_up(socket: &Socket) -> bool {
    let ends = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    let mut one = [PollFd::new(socket, PollFlags::RDHUP)];
    poll(&mut one, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok() && one[0].revents().intersects(ends)
}

/// Waits for the same, no longer than this.
fn hangs_up(socket: &Socket, time: Duration) {
    let mut one = [PollFd::new(socket, PollFlags::RDHUP)];
    let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    let _ = poll(&mut one, Some(&time));
}

/// There is something to read on one of them, or comes within this time.
fn is_readable(sockets: &[&Socket], time: Duration) -> bool {
    let mut all: Vec<PollFd<'_>> = sockets.iter().map(|socket| PollFd::new(*socket, PollFlags::IN)).collect();
    let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    // Of an error the read tells.
    poll(&mut all, Some(&time)).is_ok_and(|ready| ready > 0)
}

/// How long a reply is waited for, and until when.
#[derive(Clone, Copy)]
struct Wait {
    until: Instant,
    patience: Duration,
}

impl Wait {
    fn of(patience: Duration) -> Wait {
        Wait { until: Instant::now() + patience, patience }
    }
}

/// A command as people may see it.
pub(crate) fn said(command: &Command<'_>) -> String {
    match command {
        Command::Bare(verb) => (*verb).to_owned(),
        Command::Path(verb, path) => format!("{verb} {}", escape::name(path)),
        Command::With(verb @ ("USER" | "PASS" | "ACCT" | "ADAT" | "DCSC"), _) => (*verb).to_owned(),
        Command::With(verb, argument) => format!("{verb} {}", escape::name(argument)),
        Command::Type(_) => "TYPE".into(),
        Command::Rest(offset) => format!("REST {offset}"),
        Command::RestRanges(_) => "REST".into(),
        Command::Mode(mode) => format!("MODE {}", char::from(*mode)),
        Command::Port(address) => format!("PORT {address}"),
        Command::Eprt(address) => format!("EPRT {address}"),
        Command::Spor(_) => "SPOR".into(),
        Command::Spas6 => "SPAS".into(),
        Command::OptsRetr { .. } => "OPTS RETR".into(),
        Command::OptsDelayedPassive => "OPTS PASV".into(),
        Command::OptsStorTickets => "OPTS STOR".into(),
        Command::Allo(_) => "ALLO".into(),
        Command::Mfmt { path, .. } => format!("MFMT {}", escape::name(path)),
        Command::SiteChmod { path, .. } => format!("SITE CHMOD {}", escape::name(path)),
        Command::Epsv => "EPSV".into(),
        Command::Dcau(_) => "DCAU".into(),
        Command::Prot(_) => "PROT".into(),
        Command::Pbsz(_) => "PBSZ".into(),
        Command::Eret { path, .. } => format!("ERET {}", escape::name(path)),
        Command::Esto { path, .. } => format!("ESTO {}", escape::name(path)),
        Command::Cksm { algorithm, path, .. } => format!("CKSM {algorithm} {}", escape::name(path)),
        _ => "a command".into(),
    }
}

/// The number that a refusal has elsewhere. The front end of a striped server of Globus says of a path that
/// is not there, or may not be seen, what others say of a command that they do not know (500), and the cause
/// behind it.
fn meant(reply: &Reply) -> u16 {
    const OF_PATHS: [&[u8]; 3] = [b"c=PATH_NOT_FOUND", b"c=PERMISSION_DENIED", b"c=NOT_A_DIRECTORY"];
    let is_of_path = || {
        let mut words = reply.text().split(u8::is_ascii_whitespace);
        words.any(|word| word == b"GlobusError:") && words.any(|word| OF_PATHS.contains(&word))
    };
    match reply.code() {
        500 if is_of_path() => 550,
        code => code,
    }
}
