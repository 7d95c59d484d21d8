//! The monitor: listens, counts, starts a process for each session, and ends them in good order.
//!
//! In: sockets that listen, a pipe that says when to end, and how a session's process is started. Out:
//! processes, each with its connection as standard input and a socket to the monitor as standard output.
//! What must hold: the monitor reads nothing that a client sent, but for the record of a login that a session
//! hands over, which it bounds and checks; there are never more sessions than the limits say, of all and of
//! one host; who has no place is told so; no session outlives the monitor, for each ends when its socket to
//! it does.
//! As root, a process before its login is somebody who owns nothing; behind it another one is started as the
//! user of the login, from the start: no process gives rights up that it could take again.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use crate::config::{Config, END_NOW, Handed, STOP, Start, plain_ip};
use crate::control::timespec;
use crate::log::Log;

/// Longest record of a login, with what the client said behind it.
const HANDED_LEN_MAX: usize = 8 << 20;
/// Connections that are accepted before others have their turn.
const ACCEPTS_MAX: usize = 64;
/// So long a session that has let go of its socket may take to end.
const END_WITHIN: Duration = Duration::from_secs(2);

/// Whom processes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ids {
    pub uid: u32,
    pub gid: u32,
}

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
}

/// A session's process.
struct Session {
    child: Child,
    socket: UnixStream,
    /// Kept for the process behind the login.
    control: Option<TcpStream>,
    peer: SocketAddr,
    heard: Vec<u8>,
    /// Another process goes on for its client, and counts in its place.
    is_followed: bool,
    /// It has let go of its socket, and must have ended by then.
    end_by: Option<Instant>,
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

    /// Serves until a byte comes through `stop`, and then until the sessions are over, or their grace is, or
    /// a second byte comes. `stopping` is called when the first one came.
    ///
    /// # Errors
    /// Nothing can be waited for.
    pub fn run(
        &mut self,
        mut listeners: Vec<TcpListener>,
        mut stop: UnixStream,
        stopping: impl FnOnce(),
    ) -> io::Result<()> {
        for listener in &listeners {
            listener.set_nonblocking(true)?;
        }
        stop.set_nonblocking(true)?;
        // Sessions inherit it: an allocator that gets huge pages takes 6 MiB of a process that needs one.
        let _ = rustix::thread::disable_transparent_huge_pages(true);
        let mut stopping = Some(stopping);
        let (mut end_by, mut kill_by) = (None, None);
        loop {
            let (by_stop, at_listeners, by_sessions) = self.wait(&listeners, &stop, kill_by.or(end_by))?;
            if by_stop && stop.read(&mut [0]).is_ok() {
                match stopping.take() {
                    Some(tell) => {
                        tell();
                        listeners.clear();
                        end_by = Some(Instant::now() + self.options.grace);
                        self.log.note("stop", None, None, &format!("{} sessions", self.sessions.len()));
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
        stop: &UnixStream,
        end_by: Option<Instant>,
    ) -> io::Result<(bool, Vec<bool>, Vec<usize>)> {
        let mut fds = vec![PollFd::new(stop, PollFlags::IN)];
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
        let at = fds[1..=listeners.len()].iter().map(is).collect();
        let by = open.iter().zip(&fds[1 + listeners.len()..]).filter(|(_, fd)| is(fd)).map(|(i, _)| *i);
        Ok((is(&fds[0]), at, by.collect()))
    }

    fn accept(&mut self, listener: &TcpListener) {
        let mut by_host: HashMap<IpAddr, usize> = HashMap::new();
        let mut of_all = 0;
        for session in self.sessions.iter().filter(|session| !session.is_followed) {
            of_all += 1;
            *by_host.entry(plain_ip(session.peer)).or_default() += 1;
        }
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
            let of_host = by_host.entry(plain_ip(peer)).or_default();
            let full = if of_all >= self.options.sessions_max {
                Some("There are too many sessions; come again later.")
            } else if *of_host >= self.options.sessions_per_host_max {
                Some("There are too many sessions of your host; end one, or come again later.")
            } else {
                None
            };
            if let Some(why) = full {
                self.turn_away(socket, peer, why);
                continue;
            }
            *of_host += 1;
            of_all += 1;
            let before_login = self.options.before_login;
            let start = Start {
                config: self.options.config.clone(),
                peer,
                before_login: before_login.is_some() && before_login != self.options.anonymous,
                after: None,
            };
            if let Err(error) = self.start(socket, peer, &start, before_login) {
                self.log.note("error", Some(peer), None, &format!("start a session: {error}"));
            }
        }
    }

    /// Says why, without waiting for anybody.
    fn turn_away(&mut self, socket: TcpStream, peer: SocketAddr, why: &str) {
        let _ = socket.set_nonblocking(true);
        let _ = (&socket).write(format!("421 {why}\r\n").as_bytes());
        // Of a flood not each is told.
        self.turned_away += 1;
        if self.turned_away.is_power_of_two() {
            let text = format!("{why} ({} so far)", self.turned_away);
            self.log.note("refused", Some(peer), None, &text);
        }
    }

    fn start(
        &mut self,
        socket: TcpStream,
        peer: SocketAddr,
        start: &Start,
        ids: Option<Ids>,
    ) -> io::Result<()> {
        // The socket's own mode, which a process before may have changed, is what the next one expects.
        let kept = if start.before_login { Some(socket.try_clone()?) } else { None };
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = (self.program)();
        if let Some(Ids { uid, gid }) = ids {
            // Groups beside this one are given up, too, where this process is root.
            command.gid(gid).uid(uid);
        }
        // A signal that a terminal sends to all is the monitor's to tell them.
        command.process_group(0);
        command
            .stdin(Stdio::from(OwnedFd::from(socket.try_clone()?)))
            .stdout(Stdio::from(OwnedFd::from(theirs)));
        let child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                let _ = socket.set_nonblocking(true);
                let _ = (&socket).write(b"421 No session can be started; come again later.\r\n");
                return Err(error);
            }
        };
        drop((command, socket));
        let mut session = Session {
            child,
            socket: ours,
            control: kept,
            peer,
            heard: Vec::new(),
            is_followed: false,
            end_by: None,
        };
        let mut line = serde_json::to_vec(start).expect("plain fields serialise");
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
        if session.heard.last() != Some(&b'\n') {
            return;
        }
        let heard = std::mem::take(&mut session.heard);
        // One process has one login, and one that serves already has none to hand over.
        let Some(control) = session.control.take() else { return };
        session.is_followed = true;
        let peer = session.peer;
        let Ok(handed) = serde_json::from_slice::<Handed>(&heard) else {
            let _ = session.child.kill();
            self.log.note("error", Some(peer), None, "a session handed over what is no login");
            return;
        };
        // The record says who it is; what that one may is not for a session to say.
        let login = crate::config::Login { user: "anonymous".into(), access: self.options.config.anonymous };
        let after = Some(Handed { login, ..handed });
        let start = Start { config: self.options.config.clone(), peer, before_login: false, after };
        if let Err(error) = self.start(control, peer, &start, self.options.anonymous) {
            self.log.note("error", Some(peer), None, &format!("start a session: {error}"));
        }
    }

    /// Forgets those that have ended.
    fn reap(&mut self) {
        let now = Instant::now();
        self.sessions.retain_mut(|session| {
            let Some(end_by) = session.end_by else { return true };
            match session.child.try_wait() {
                Ok(Some(_)) | Err(_) => false,
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
            let _ = session.child.wait();
        }
        self.sessions.clear();
    }
}

/// What a session's process does: it takes its connection and the socket to the monitor, and serves.
///
/// # Errors
/// They are not what they must be, or the monitor says nothing.
pub fn serve_session(control: OwnedFd, monitor: OwnedFd, out: Box<dyn Write + Send>) -> io::Result<()> {
    let (control, mut monitor) = (TcpStream::from(control), UnixStream::from(monitor));
    let start = read_start(&mut monitor)?;
    // Where a session hangs in a call and does not hear its monitor end, the system ends it.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    // Whatever is done from here on, no file that is run makes it somebody else.
    rustix::thread::set_no_new_privs(true)?;
    let log = Log::new(out, start.config.json_log);
    crate::session::run(control, monitor, start, log)
}

fn read_start(monitor: &mut UnixStream) -> io::Result<Start> {
    monitor.set_read_timeout(Some(Duration::from_secs(10)))?;
    let (mut line, mut byte) = (Vec::new(), [0; 4096]);
    while line.last() != Some(&b'\n') {
        match rustix::net::recv(monitor.as_fd(), &mut byte, rustix::net::RecvFlags::PEEK) {
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
