//! The monitor: listens, counts, starts a process for each session, and ends them in good order.
//!
//! In: sockets that listen, a pipe that says when to end, and how a session's process is started. Out:
//! processes, each with its connection as standard input and a socket to the monitor as standard output.
//! What must hold: the monitor reads nothing that a client sent, but for the record of a login that a session
//! hands over, which it bounds and checks; who somebody is here it says itself ([`People`]); there are never
//! more sessions than the limits say, of all and of one host; who has no place is told so; no session
//! outlives the monitor, for each ends when its socket to it does. Those in which nobody has logged in yet
//! have places of their own ([`STRANGERS_MAX`]): where all are taken, the oldest of the host that has most of
//! them gives way, one that has said nothing first, so that who is silent keeps nobody out.
//! As root, a process before its login is somebody who owns nothing; behind it another one is started as the
//! user of the login, from the start: no process gives rights up that it could take again.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use crate::config::{
    Answer, CLAIMS_MAX, Claim, Config, END_NOW, Handed, Login, Parts, SPOKE, STOP, STRANGER_STAYS,
    STRANGERS_MAX, Secret, Start, Who, plain_ip,
};
use crate::control::timespec;
use crate::log::Log;
use crate::people::{Ids, People};
use crate::tls::Host;
use zeroize::Zeroizing;

/// Longest record of a login, with what the client said behind it.
const HANDED_LEN_MAX: usize = 8 << 20;
/// Connections that are accepted before others have their turn.
const ACCEPTS_MAX: usize = 64;
/// So long a session that has let go of its socket may take to end.
const END_WITHIN: Duration = Duration::from_secs(2);

/// What the monitor is told beside the configuration of sessions.
pub struct Options {
    pub config: Config,
    /// Most sessions at a time, of all hosts and of one.
    pub sessions_max: usize,
    pub sessions_per_host_max: usize,
    /// When the server ends, transfers that run have so long to end by themselves.
    pub grace: Duration,
    /// Who a process is before a login, and for an anonymous one; `None`: who started the monitor.
    pub before_login: Option<Ids>,
    pub anonymous: Option<Ids>,
    /// Who comes by a certificate, and as which user.
    pub people: Option<People>,
    /// As whom this host comes under TLS.
    pub tls: Option<Host>,
    /// What front end and nodes know each other by.
    pub node_key: Option<Secret>,
}

/// What a byte tells the monitor.
pub struct Bells {
    /// It is to end.
    pub stop: UnixStream,
    /// It is to read its files again.
    pub reload: UnixStream,
}

/// A session's process.
struct Session {
    child: Child,
    socket: UnixStream,
    /// Kept for the process behind the login, and as whom this host came to the one before it.
    control: Option<TcpStream>,
    tls: Option<Parts>,
    peer: SocketAddr,
    local: SocketAddr,
    heard: Vec<u8>,
    /// So often it asked who somebody is here.
    claims: u32,
    /// Another process goes on for its client, and counts in its place; or it had to give way.
    is_followed: bool,
    since: Instant,
    /// The client has said something.
    spoke: bool,
    /// It has let go of its socket, and must have ended by then.
    end_by: Option<Instant>,
    /// Whom it serves, once somebody has logged in.
    user: Option<String>,
}

pub struct Monitor<'a> {
    options: Options,
    log: Log,
    /// How a session's process is called.
    program: Box<dyn Fn() -> Command + 'a>,
    sessions: Vec<Session>,
    turned_away: u64,
}

impl<'a> Monitor<'a> {
    pub fn new(options: Options, log: Log, program: Box<dyn Fn() -> Command + 'a>) -> Monitor<'a> {
        Monitor { options, log, program, sessions: Vec::new(), turned_away: 0 }
    }

    /// Serves until a byte comes through the bell that says so, and then until the sessions are over, or
    /// their grace is, or a second byte comes. `stopping` is called when the first one came.
    ///
    /// # Errors
    /// Nothing can be waited for.
    pub fn run(
        &mut self,
        mut listeners: Vec<TcpListener>,
        mut bells: Bells,
        stopping: impl FnOnce(),
    ) -> io::Result<()> {
        for listener in &listeners {
            listener.set_nonblocking(true)?;
        }
        bells.stop.set_nonblocking(true)?;
        bells.reload.set_nonblocking(true)?;
        // Sessions inherit it: an allocator that gets huge pages takes 6 MiB of a process that needs one.
        let _ = rustix::thread::disable_transparent_huge_pages(true);
        let mut stopping = Some(stopping);
        let (mut end_by, mut kill_by) = (None, None);
        loop {
            let ((by_stop, by_reload), at_listeners, by_sessions) =
                self.wait(&listeners, &bells, kill_by.or(end_by))?;
            // As often as it was asked for: once is enough.
            if by_reload && bells.reload.read(&mut [0; 64]).is_ok() {
                self.reload();
            }
            if by_stop && bells.stop.read(&mut [0]).is_ok() {
                match stopping.take() {
                    Some(tell) => {
                        tell();
                        listeners.clear();
                        end_by = Some(Instant::now() + self.options.grace);
                        let count = self.sessions.iter().filter(|session| !session.is_followed).count();
                        self.log.note("stop", None, None, &format!("{count} sessions"));
                        for session in &mut self.sessions {
                            let _ = session.socket.write_all(STOP);
                        }
                    }
                    None => end_by = Some(Instant::now()),
                }
            }
            for index in by_sessions {
                self.hear(index);
            }
            self.reap();
            for (index, is_ready) in at_listeners.into_iter().enumerate() {
                if is_ready && let Some(listener) = listeners.get(index) {
                    self.accept(listener);
                }
            }
            if let Some(end_by) = end_by {
                let now = Instant::now();
                match kill_by {
                    // Told so, they tell their clients and the log, and leave nothing that nobody asked for.
                    None if now >= end_by => {
                        for session in &mut self.sessions {
                            let _ = session.socket.write_all(END_NOW);
                        }
                        kill_by = Some(now + END_WITHIN);
                    }
                    Some(kill_by) if now >= kill_by => self.kill_all(),
                    _ => {}
                }
                if self.sessions.is_empty() {
                    return Ok(());
                }
            }
        }
    }

    /// Waits; which of all are ready.
    fn wait(
        &self,
        listeners: &[TcpListener],
        bells: &Bells,
        end_by: Option<Instant>,
    ) -> io::Result<((bool, bool), Vec<bool>, Vec<usize>)> {
        let mut fds =
            vec![PollFd::new(&bells.stop, PollFlags::IN), PollFd::new(&bells.reload, PollFlags::IN)];
        fds.extend(listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN)));
        let open: Vec<usize> =
            (0..self.sessions.len()).filter(|i| self.sessions[*i].end_by.is_none()).collect();
        fds.extend(open.iter().map(|i| PollFd::new(&self.sessions[*i].socket, PollFlags::IN)));
        let dying = open.len() < self.sessions.len();
        let soon = dying.then(|| Duration::from_millis(20));
        let left = end_by.map(|end| end.saturating_duration_since(Instant::now()));
        let limit = [soon, left].into_iter().flatten().min().map(timespec);
        match poll(&mut fds, limit.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let is = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let at = fds[2..2 + listeners.len()].iter().map(is).collect();
        let by = open.iter().zip(&fds[2 + listeners.len()..]).filter(|(_, fd)| is(fd)).map(|(i, _)| *i);
        Ok(((is(&fds[0]), is(&fds[1])), at, by.collect()))
    }

    fn accept(&mut self, listener: &TcpListener) {
        for _ in 0..ACCEPTS_MAX {
            let (socket, peer) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) => {
                    match error.kind() {
                        ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted => {}
                        _ => {
                            // Out of descriptors, or memory: it passes, and until then nobody is to spin.
                            self.log.note("error", None, None, &format!("accept: {error}"));
                            std::thread::sleep(Duration::from_millis(50));
                        }
                    }
                    return;
                }
            };
            if let Some(why) = self.full(plain_ip(peer)).or_else(|| self.make_room(plain_ip(peer)).err()) {
                self.turn_away(socket, peer, why);
                continue;
            }
            let Ok(local) = socket.local_addr() else { continue };
            let before_login = self.options.before_login.clone();
            let hands_over = self.hands_over();
            let start = Start {
                before_login: hands_over,
                host: self.options.people.as_ref().map(People::host),
                tls: self.options.tls.as_ref().map(Host::parts),
                // Who is served by another process is not known yet.
                node_key: self.options.node_key.clone().filter(|_| !hands_over && !self.has_others()),
                ..self.start_of(peer, local, &before_login)
            };
            // The socket's own mode, which a process before may have changed, is what the next one expects.
            let kept = if hands_over { socket.try_clone().ok() } else { None };
            if let Err(error) = self.start(socket.into(), kept, &start, before_login) {
                self.log.note("error", Some(peer), None, &format!("start a session: {error}"));
            }
        }
    }

    /// Why nobody of this host can log in now.
    fn full(&self, host: IpAddr) -> Option<&'static str> {
        let counts = |session: &Session| {
            session.user.is_some() || haul_mutant::removed("ftpd-strangers-have-their-own-places")
        };
        let is_in = |session: &&Session| counts(session) && !session.is_followed;
        let of_host = |session: &&Session| plain_ip(session.peer) == host;
        if self.sessions.iter().filter(is_in).count() >= self.options.sessions_max {
            Some("There are too many sessions; come again later.")
        } else if self.sessions.iter().filter(is_in).filter(of_host).count()
            >= self.options.sessions_per_host_max
        {
            Some("There are too many sessions of your host; end one, or come again later.")
        } else {
            None
        }
    }

    /// Makes room for one more in whose session nobody has logged in, if there is none.
    ///
    /// # Errors
    /// There is none for this host: too many of it came just now.
    fn make_room(&mut self, host: IpAddr) -> Result<(), &'static str> {
        let strangers = self.sessions.iter_mut().filter(|session| session.is_stranger());
        let mut by_host: HashMap<IpAddr, Vec<&mut Session>> = HashMap::new();
        strangers.for_each(|session| by_host.entry(plain_ip(session.peer)).or_default().push(session));
        let count: usize = by_host.values().map(Vec::len).sum();
        if count < STRANGERS_MAX {
            return Ok(());
        }
        // The newcomer is one of his host.
        by_host.entry(host).or_default();
        let most = by_host.iter_mut().max_by_key(|(of, all)| (all.len() + usize::from(**of == host), **of));
        let Some((greediest, all)) = most else { return Ok(()) };
        let Some(oldest) = all.iter_mut().min_by_key(|session| (session.spoke, session.since)) else {
            return Ok(());
        };
        if *greediest == host && oldest.since.elapsed() < STRANGER_STAYS {
            return Err("Too many of your host come without logging in; come again later.");
        }
        oldest.is_followed = true;
        let _ = oldest.child.kill();
        Ok(())
    }

    /// Says why, without waiting for anybody.
    fn turn_away(&mut self, socket: TcpStream, peer: SocketAddr, why: &str) {
        let _ = socket.set_nonblocking(true);
        let _ = (&socket).write(format!("421 {why}\r\n").as_bytes());
        self.note_refused(peer, why);
    }

    fn note_refused(&mut self, peer: SocketAddr, why: &str) {
        // Of a flood not each is told.
        self.turned_away += 1;
        if self.turned_away.is_power_of_two() {
            let text = format!("{why} ({} so far)", self.turned_away);
            self.log.note("refused", Some(peer), None, &text);
        }
    }

    /// What every session is told.
    fn start_of(&self, peer: SocketAddr, local: SocketAddr, ids: &Option<Ids>) -> Start {
        let uid = ids.as_ref().map_or_else(|| rustix::process::geteuid().as_raw(), |ids| ids.uid);
        let config = self.options.config.clone();
        let (host, tls, node_key, after) = (None, None, None, None);
        Start { config, peer, local, uid, before_login: false, host, tls, node_key, after }
    }

    /// Starts a process that serves this connection.
    fn start(
        &mut self,
        control: OwnedFd,
        kept: Option<TcpStream>,
        start: &Start,
        ids: Option<Ids>,
    ) -> io::Result<()> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = (self.program)();
        if let Some(Ids { uid, gid, groups }) = &ids {
            haul_base::sys::start_as(&mut command, *uid, *gid, groups);
        }
        // A signal that a terminal sends to all is the monitor's to tell them.
        command.process_group(0);
        command.stdin(Stdio::from(control.try_clone()?)).stdout(Stdio::from(OwnedFd::from(theirs)));
        let child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                if start.after.as_ref().is_none_or(|after| !after.with.relayed) {
                    let socket = TcpStream::from(control);
                    let _ = socket.set_nonblocking(true);
                    let _ = (&socket).write(b"421 No session can be started; come again later.\r\n");
                }
                return Err(error);
            }
        };
        drop((command, control));
        let mut session = Session {
            child,
            socket: ours,
            tls: start.tls.clone().filter(|_| kept.is_some()),
            control: kept,
            peer: start.peer,
            local: start.local,
            heard: Vec::new(),
            claims: 0,
            is_followed: false,
            since: Instant::now(),
            spoke: false,
            end_by: None,
            user: start.after.as_ref().map(|after| after.login.user.clone()),
        };
        let mut line = Zeroizing::new(serde_json::to_vec(start).expect("plain fields serialise"));
        line.push(b'\n');
        // Sessions take it at once; one that does not is not waited for.
        session.socket.set_write_timeout(Some(END_WITHIN))?;
        let told = session.socket.write_all(&line);
        session.socket.set_nonblocking(true)?;
        if told.is_err() {
            let _ = session.child.kill();
        }
        self.sessions.push(session);
        told
    }

    /// Takes what a session says: that it is over, or a login.
    fn hear(&mut self, index: usize) {
        let session = &mut self.sessions[index];
        let mut bytes = [0; 16 << 10];
        match session.socket.read(&mut bytes) {
            Ok(0) => session.end_by = Some(Instant::now() + END_WITHIN),
            Ok(len) => session.heard.extend_from_slice(&bytes[..len]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return,
            Err(_) => session.end_by = Some(Instant::now() + END_WITHIN),
        }
        if session.heard.len() > HANDED_LEN_MAX {
            session.heard = Vec::new();
            let _ = session.child.kill();
            return;
        }
        if session.heard.starts_with(SPOKE) {
            session.spoke = true;
            session.heard.drain(..SPOKE.len());
        }
        if session.heard.last() != Some(&b'\n') {
            return;
        }
        let heard = std::mem::take(&mut session.heard);
        session.claims += 1;
        let peer = session.peer;
        // One process has one login, and one that serves already has none to hand over.
        let claim = serde_json::from_slice::<Claim>(&heard).ok();
        let claim = claim.filter(|_| !session.is_followed && session.claims <= CLAIMS_MAX);
        let Some(claim) = claim else {
            let _ = session.child.kill();
            self.log.note("error", Some(peer), None, "a session handed over what is no login");
            return;
        };
        let (is_relayed, who) = (claim.with.relayed, claim.who.clone());
        let judged = match (&who, &claim.with.tls) {
            (Who::Shown { .. }, Some(_)) => Err("Under TLS only anonymous is served.".into()),
            _ => self.judge(&who),
        };
        // That others have not logged in counts for nothing here.
        if let (Ok(_), Some(why)) = (&judged, self.full(plain_ip(peer))) {
            return self.refuse_place(index, is_relayed, why);
        }
        let answer = match judged {
            // The same process serves: whoever started the monitor, or who is nobody in any case.
            Ok((login, None)) => {
                self.sessions[index].user = Some(login.user.clone());
                Ok((Answer::Go(login), None))
            }
            Ok((login, Some(ids))) => {
                self.follow(index, claim, login, ids).map(|relay| (Answer::Follows, relay)).map_err(|error| {
                    self.log.note("error", Some(peer), None, &format!("start a session: {error}"));
                    "No session can be started; come again later.".to_owned()
                })
            }
            Err(why) => Err(why),
        };
        let (answer, relay) = answer.unwrap_or_else(|why| (Answer::Refused(why), None));
        let session = &mut self.sessions[index];
        if !is_relayed {
            // It has ended, or is to.
            return;
        }
        if tell(&session.socket, &answer, relay).is_err() {
            let _ = session.child.kill();
        }
    }

    /// Who serves somebody anonymous is another user than who talked to him before.
    fn hands_over(&self) -> bool {
        let before_login = &self.options.before_login;
        before_login.is_some() && *before_login != self.options.anonymous
    }

    /// People of a grid are served by processes of their own, as other users than who talks to them first.
    fn has_others(&self) -> bool {
        self.options.people.is_some() && self.options.before_login.is_some()
    }

    /// There is no place for a login. `is_relayed`: its process waits for an answer; else it has ended.
    fn refuse_place(&mut self, index: usize, is_relayed: bool, why: &str) {
        let session = &mut self.sessions[index];
        let peer = session.peer;
        match session.control.take().filter(|_| !is_relayed) {
            Some(control) => self.turn_away(control, peer, why),
            None => {
                if tell(&session.socket, &Answer::Full(why.to_owned()), None).is_err() {
                    let _ = session.child.kill();
                }
                self.note_refused(peer, why);
            }
        }
    }

    /// Who somebody is here, and as whom a process serves him; `None`: as who asks.
    fn judge(&mut self, who: &Who) -> Result<(Login, Option<Ids>), String> {
        match who {
            Who::Anonymous => {
                let access = self.options.config.anonymous.ok_or("Nobody is anonymous here.")?;
                // The record says who it is; what that one may is not for a session to say.
                let ids = self.options.anonymous.clone().filter(|_| self.hands_over());
                Ok((Login::anonymous(access), ids))
            }
            Who::Shown { name, user } => {
                let people = self.options.people.as_ref().ok_or("Nobody comes by a certificate here.")?;
                let found = people.find(name, user.as_deref());
                found.map_err(|(shown, why)| {
                    self.log.note("refused", None, user.as_deref(), &format!("{shown}: {why}"));
                    format!("{shown}: {why}.")
                })
            }
        }
    }

    /// Starts the process that serves behind a login. The connection to it, where the one before it stays.
    fn follow(
        &mut self,
        index: usize,
        claim: Claim,
        login: Login,
        ids: Ids,
    ) -> io::Result<Option<UnixStream>> {
        let session = &mut self.sessions[index];
        let (peer, local, kept) = (session.peer, session.local, session.control.take());
        let shown = session.tls.take();
        let (control, relay) = match claim.with.relayed {
            true => {
                let (ours, theirs) = UnixStream::pair()?;
                (OwnedFd::from(theirs), Some(ours))
            }
            false => (kept.ok_or(ErrorKind::NotConnected)?.into(), None),
        };
        session.is_followed = true;
        let with = claim.with;
        // Data of a login under TLS are protected by who moves them, as whom the client knows already: files
        // may have been read again meanwhile.
        let tls = with.tls.as_ref().and(shown);
        let after = Some(Handed { login, with });
        let start_uid = ids.uid;
        let ids = Some(ids);
        // Nodes serve one user: to others they are not there, and their key is not, either.
        let is_nodes = self.options.anonymous.as_ref().is_some_and(|nodes| nodes.uid == start_uid);
        let node_key = self.options.node_key.clone().filter(|_| is_nodes);
        let start = Start { tls, node_key, after, ..self.start_of(peer, local, &ids) };
        self.start(control, None, &start, ids)?;
        Ok(relay)
    }

    /// Reads its files again, each on its own. What cannot be read leaves what was read of it before.
    fn reload(&mut self) {
        let Options { people, tls, config, .. } = &mut self.options;
        let mut broken = Vec::new();
        if let Some(people) = people {
            let wrong = people.read_again();
            let others = config.authorities.as_deref().map(crate::people::only_ours);
            let is_changed = others.and_then(Result::err);
            if wrong.is_empty() && is_changed.is_none() {
                self.log.note("reload", None, None, "the host's certificate and the gridmap were read");
            }
            broken.extend(wrong.into_iter().map(|why| format!("{why}; what was read before counts")));
            broken.extend(is_changed.map(|why| format!("{why}; until then nobody can show who he is")));
        }
        match tls.as_mut().map(|tls| tls.read_again()) {
            Some(Ok(())) => {
                self.log.note("reload", None, None, "the certificate of TLS and its key were read");
            }
            Some(Err(why)) => broken.push(format!("{why}; what was read before counts")),
            None => {}
        }
        for why in broken {
            self.log.note("error", None, None, &format!("reload: {why}"));
        }
    }

    /// Forgets those that have ended.
    fn reap(&mut self) {
        let now = Instant::now();
        let log = &mut self.log;
        self.sessions.retain_mut(|session| {
            let Some(end_by) = session.end_by else { return true };
            match session.child.try_wait() {
                Ok(Some(how)) => {
                    tell_end(log, session, how);
                    false
                }
                Err(_) => false,
                Ok(None) => {
                    if now >= end_by {
                        let _ = session.child.kill();
                    }
                    true
                }
            }
        });
    }

    fn kill_all(&mut self) {
        for session in &mut self.sessions {
            let _ = session.child.kill();
            if let Ok(how) = session.child.wait() {
                tell_end(&mut self.log, session, how);
            }
        }
        self.sessions.clear();
    }
}

impl Session {
    /// Nobody has logged in.
    fn is_stranger(&self) -> bool {
        self.user.is_none() && !self.is_followed && self.end_by.is_none()
    }
}

/// Says how a session's process ended, where that one cannot have said it.
fn tell_end(log: &mut Log, session: &Session, how: ExitStatus) {
    if session.user.is_none() && session.is_followed {
        // It gave way.
        return;
    }
    let why = match (how.signal(), how.code()) {
        (Some(signal), _) => format!("its process ended by signal {signal}"),
        (None, Some(code)) if code != 0 => format!("its process failed ({code})"),
        _ => return,
    };
    let event = if session.user.is_some() { "end" } else { "error" };
    log.note(event, Some(session.peer), session.user.as_deref(), &why);
}

/// Answers a session; with the answer goes a connection.
fn tell(socket: &UnixStream, answer: &Answer, with: Option<UnixStream>) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer).expect("plain fields serialise");
    line.push(b'\n');
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<_> = with.iter().map(AsFd::as_fd).collect();
    if !fds.is_empty() {
        beside.push(SendAncillaryMessage::ScmRights(&fds));
    }
    let sent = rustix::net::sendmsg(socket, &[io::IoSlice::new(&line)], &mut beside, SendFlags::NOSIGNAL)?;
    if sent == line.len() { Ok(()) } else { Err(ErrorKind::WriteZero.into()) }
}

/// What a session's process does: it takes its connection and the socket to the monitor, and serves.
///
/// # Errors
/// They are not what they must be, or the monitor says nothing.
pub fn serve_session(control: OwnedFd, monitor: OwnedFd, out: Box<dyn Write + Send>) -> io::Result<()> {
    let mut monitor = UnixStream::from(monitor);
    let start = read_start(&mut monitor)?;
    let is_whom =
        [rustix::process::getuid(), rustix::process::geteuid()].iter().all(|uid| uid.as_raw() == start.uid);
    if !is_whom {
        return Err(io::Error::new(ErrorKind::PermissionDenied, "this process is not who it must be"));
    }
    let has_key = start.after.as_ref().is_some_and(|after| after.with.delegated.is_some());
    let told = start.host.is_some() || start.tls.is_some() || start.node_key.is_some() || has_key;
    if told || start.config.volume.is_some() {
        // Others of the same user cannot look at the key that it was told, or that of a volume that it will
        // read, nor at what a client delegated.
        rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    }
    // Where a session hangs in a call and does not hear its monitor end, the system ends it.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    // Whatever is done from here on, no file that is run makes it somebody else.
    rustix::thread::set_no_new_privs(true)?;
    let log = Log::new(out, start.config.json_log);
    crate::session::run(control, monitor, start, log)
}

fn read_start(monitor: &mut UnixStream) -> io::Result<Start> {
    monitor.set_read_timeout(Some(Duration::from_secs(10)))?;
    let (mut line, mut byte) = (Zeroizing::new(Vec::new()), Zeroizing::new([0; 4096]));
    while line.last() != Some(&b'\n') {
        match rustix::net::recv(monitor.as_fd(), &mut byte[..], rustix::net::RecvFlags::PEEK) {
            Ok((0, _)) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok((len, _)) => {
                // No more than the line: what follows is said later, and to somebody else.
                let len = byte[..len].iter().position(|b| *b == b'\n').map_or(len, |at| at + 1);
                monitor.read_exact(&mut byte[..len])?;
                line.extend_from_slice(&byte[..len]);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    serde_json::from_slice(&line).map_err(io::Error::other)
}
