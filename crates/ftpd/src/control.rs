//! The control connection: lines come, replies go, and nobody is waited for without end.
//!
//! In: a [`Stream`] that does not block, and the socket of the monitor. Out: one line after another; replies
//! on the wire.
//! Invariants: while [`QUEUE_MAX`] lines or as many bytes as the longest has are held, nothing more is read.
//! Left out: what a line means. The byte 0xff goes and comes as it is: RFC 959 makes this connection one of
//! Telnet, which doubles it, and nearly no client does.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use haul_gridftp::command::COMMAND_LEN_MAX;
use haul_gridftp::line::{Iac, LineReader};
use haul_gridftp::reply::Reply;
use haul_gridftp::request::Request;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use crate::config::{
    ANSWER_WITHIN, Answer, Claim, END_NOW, LINE_LEN_BEFORE_LOGIN, QUEUE_MAX, REPLY_WITHIN, SPOKE, STOP,
    Secret,
};
use crate::lock::{Lock, Seal};
use crate::progress::Progress;

/// Longest line behind a login where a token stands in it: base64, and what protects it.
const SEALED_LEN_MAX: usize = 2 * COMMAND_LEN_MAX;

/// What a control connection is made of: bytes in the clear, or what TLS makes of them. It does not block.
pub trait Stream: Read + Write + Send {
    /// What `poll` waits for.
    fn fd(&self) -> BorrowedFd<'_>;
    /// Something can be read though the socket may show nothing.
    fn holds(&self) -> bool {
        false
    }
}

impl Stream for TcpStream {
    fn fd(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }
}

/// To the process that protects what is said.
impl Stream for UnixStream {
    fn fd(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }
}

/// Why there is no next line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The client has closed the connection, or it broke.
    Gone,
    /// Nothing came in time.
    Silent,
    /// A line was too long.
    TooLong,
    /// A token is not of this session.
    Broken,
    /// The server ends; the monitor said so.
    Stopping,
    /// The monitor itself is gone.
    Orphaned,
}

/// Why a transfer does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abort {
    /// The client said `ABOR`.
    Asked,
    /// There is nobody to tell it any more.
    Gone(End),
    /// Nothing was ready until the deadline.
    Late,
}

pub struct Control {
    stream: Box<dyn Stream>,
    monitor: UnixStream,
    reader: LineReader,
    queue: VecDeque<(Vec<u8>, Seal)>,
    /// What protects it, if anything does.
    lock: Option<Lock>,
    /// How the last line that counts came, and the replies to it go.
    seal: Seal,
    /// The last line came as it was where nothing may.
    bare: bool,
    /// Bytes of the lines in `queue`.
    held: usize,
    /// Why no more lines come, once those that are held are over.
    end: Option<End>,
    /// The monitor wants an end.
    stopping: bool,
    /// And that at once.
    ending: bool,
    orphaned: bool,
    /// A reply could not be sent.
    mute: bool,
    /// The last reply of one line.
    said: Vec<u8>,
}

impl Control {
    pub fn new(stream: Box<dyn Stream>, monitor: UnixStream, logged_in: bool) -> Control {
        let len_max = if logged_in { COMMAND_LEN_MAX } else { LINE_LEN_BEFORE_LOGIN };
        Control {
            stream,
            monitor,
            reader: LineReader::new("command", len_max),
            queue: VecDeque::new(),
            lock: None,
            seal: Seal::Bare,
            bare: false,
            held: 0,
            end: None,
            stopping: false,
            ending: false,
            orphaned: false,
            mute: false,
            said: Vec::new(),
        }
    }

    /// Lines may be longer from now on: the client has shown who it is.
    pub fn trust(&mut self) {
        let len_max = if self.lock.is_some() { SEALED_LEN_MAX } else { COMMAND_LEN_MAX };
        let reader = LineReader::new("command", len_max);
        let held = std::mem::replace(&mut self.reader, reader).finish();
        self.take_bytes(&held);
    }

    /// From now on nothing counts that is not protected by this: neither what comes nor what has come.
    pub fn protect(&mut self, lock: Lock) {
        self.lock = Some(lock);
        self.seal = Seal::Private;
    }

    /// From now on all goes through what `protect` makes of the socket.
    ///
    /// # Errors
    /// It makes nothing of it.
    pub fn go_under<E: Into<io::Error>>(
        &mut self,
        protect: impl FnOnce(TcpStream) -> Result<Box<dyn Stream>, E>,
    ) -> io::Result<()> {
        let socket = TcpStream::from(self.stream.fd().try_clone_to_owned()?);
        self.stream = protect(socket).map_err(Into::into)?;
        Ok(())
    }

    /// Something was said behind the last line.
    pub fn has_unread(&mut self) -> bool {
        self.fill();
        !self.queue.is_empty() || !self.reader.is_empty()
    }

    /// What protects it.
    pub fn lock(&self) -> Option<&Lock> {
        self.lock.as_ref()
    }

    /// Whether the last line came as it was where nothing may; then it is refused here, in the clear. What
    /// answers other lines stays protected.
    pub fn refuse_bare(&mut self) -> bool {
        if self.bare {
            let seal = std::mem::replace(&mut self.seal, Seal::Bare);
            self.say(533, "Only what is protected counts here: ENC.");
            self.seal = seal;
        }
        self.bare
    }

    /// Tells the monitor that another process goes on for this login, with what was read and not obeyed.
    ///
    /// # Errors
    /// The monitor does not take it.
    pub fn hand_over(mut self, mut claim: Claim) -> io::Result<()> {
        let mut unread = Vec::new();
        for (line, _) in self.queue.drain(..) {
            unread.extend_from_slice(&line);
            unread.extend_from_slice(b"\r\n");
        }
        unread.extend_from_slice(&self.reader.finish());
        claim.with.unread = Secret(unread);
        tell(&mut self.monitor, &claim)
    }

    /// Tells the monitor that the client has said something.
    pub fn tell_spoke(&mut self) {
        // Where it does not hear that, the session is taken for a silent one.
        let _ = self.monitor.write(SPOKE);
    }

    /// Asks the monitor who somebody is here. With the answer comes the connection to who serves him, if
    /// that is another process.
    ///
    /// # Errors
    /// The monitor does not answer.
    pub fn claim(&mut self, claim: &Claim) -> io::Result<(Answer, Option<OwnedFd>)> {
        tell(&mut self.monitor, claim)?;
        self.monitor.set_nonblocking(true)?;
        let until = Instant::now() + ANSWER_WITHIN;
        let (mut heard, mut with) = (Vec::new(), None);
        loop {
            while let Some(end) = heard.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = heard.drain(..=end).collect();
                match &line[..] {
                    STOP => self.stopping = true,
                    END_NOW => (self.stopping, self.ending) = (true, true),
                    line => return Ok((serde_json::from_slice(line).map_err(io::Error::other)?, with)),
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            let mut fds = [PollFd::from_borrowed_fd(self.monitor.as_fd(), PollFlags::IN)];
            let _ = poll(&mut fds, Some(&timespec(left)));
            let mut bytes = [0; 4096];
            let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut beside = RecvAncillaryBuffer::new(&mut space);
            let mut parts = [io::IoSliceMut::new(&mut bytes)];
            let flags = RecvFlags::CMSG_CLOEXEC;
            match rustix::net::recvmsg(&self.monitor, &mut parts, &mut beside, flags) {
                Ok(came) if came.bytes == 0 => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(came) => {
                    for message in beside.drain() {
                        if let RecvAncillaryMessage::ScmRights(fds) = message {
                            with = fds.last().or(with);
                        }
                    }
                    heard.extend_from_slice(&bytes[..came.bytes]);
                }
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// What passes lines on waits: for `other` with these flags, and for more lines. Returns what of `other`
    /// is ready.
    ///
    /// # Errors
    /// Nothing is to be passed on any more: the client is gone, or the monitor.
    pub fn wait_to_relay(&mut self, other: BorrowedFd<'_>, flags: PollFlags) -> Result<PollFlags, End> {
        let wants = self.wants();
        let holds = wants && self.stream.holds();
        let (ready, by_client, by_monitor) = {
            let mut fds = vec![
                PollFd::from_borrowed_fd(other, flags),
                PollFd::from_borrowed_fd(self.monitor.as_fd(), PollFlags::IN),
            ];
            if wants {
                fds.push(PollFd::from_borrowed_fd(self.stream.fd(), PollFlags::IN));
            }
            let now = holds.then_some(timespec(Duration::ZERO));
            match poll(&mut fds, now.as_ref()) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => return Ok(PollFlags::empty()),
                Err(_) => return Err(End::Gone),
            }
            let is = |fd: &PollFd<'_>| !fd.revents().is_empty();
            (fds[0].revents(), holds || fds.get(2).is_some_and(is), is(&fds[1]))
        };
        if by_monitor {
            // Who serves hears the same, and says what is to be said.
            self.hear_monitor();
        }
        if by_client {
            self.fill();
        }
        match (self.orphaned, self.mute, self.end) {
            (true, ..) => Err(End::Orphaned),
            (_, true, _) => Err(End::Gone),
            (_, _, Some(end)) if end == End::Gone || self.queue.is_empty() => Err(end),
            _ => Ok(ready),
        }
    }

    /// A line that is there.
    pub fn take_line(&mut self) -> Option<Vec<u8>> {
        self.pop()
    }

    /// Bytes that another process has read.
    pub fn take_unread(&mut self, bytes: &[u8]) {
        self.take_bytes(bytes);
    }

    /// The next line; waits for it until `deadline`.
    ///
    /// # Errors
    /// There is none, and will not be.
    pub fn next_line(&mut self, deadline: Instant) -> Result<Vec<u8>, End> {
        loop {
            // Nobody is there whom a line could be obeyed for.
            if self.orphaned || self.mute || self.end == Some(End::Gone) {
                return Err(self.ended().unwrap_or(End::Gone));
            }
            if self.ending {
                return Err(End::Stopping);
            }
            if let Some(line) = self.pop() {
                return Ok(line);
            }
            if let Some(end) = self.ended() {
                return Err(end);
            }
            match self.wait(&[], deadline, None) {
                Ok(_) => {}
                // It stays in the queue and is answered in its turn.
                Err(Abort::Asked) => {}
                Err(Abort::Late) => return Err(End::Silent),
                Err(Abort::Gone(end)) => return Err(end),
            }
        }
    }

    fn ended(&self) -> Option<End> {
        if self.orphaned {
            return Some(End::Orphaned);
        }
        if self.mute {
            return Some(End::Gone);
        }
        self.end.or(self.stopping.then_some(End::Stopping))
    }

    /// A line is there, or no line ever comes again.
    pub fn has_next(&self) -> bool {
        !self.queue.is_empty() || self.ended().is_some()
    }

    /// Why what is under way is to end, as far as can be known now: an `ABOR` has come, or the client has
    /// hung up, and what it did not say it will not say.
    pub fn aborted(&mut self, within: Duration) -> Option<Abort> {
        let deadline = Instant::now() + within;
        loop {
            self.fill();
            self.hear_monitor();
            if self.has_abor() {
                return Some(Abort::Asked);
            }
            if self.orphaned {
                return Some(Abort::Gone(End::Orphaned));
            }
            if self.ending {
                return Some(Abort::Gone(End::Stopping));
            }
            if self.end == Some(End::Gone) || self.mute {
                return Some(Abort::Gone(End::Gone));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || !self.wants() {
                return None;
            }
            let mut fds = [PollFd::from_borrowed_fd(self.stream.fd(), PollFlags::IN | PollFlags::RDHUP)];
            let _ = poll(&mut fds, Some(&timespec(left)));
        }
    }

    /// What the client said last, as far as it has come, is that it goes; or it has closed the connection.
    pub fn wants_to_go(&self) -> bool {
        self.end == Some(End::Gone) || self.queue.iter().any(|line| self.is_short(line, &Request::Quit))
    }

    /// The server ends, and who is served is to come to an end.
    pub fn is_stopping(&self) -> bool {
        self.stopping
    }

    /// `ABOR` is among the lines that wait.
    fn has_abor(&self) -> bool {
        self.queue.iter().any(|line| self.is_short(line, &Request::Abor))
    }

    /// Waits until one of `wanted` is ready, or `deadline`; takes what the client and the monitor say
    /// meanwhile. In a transfer (`progress` is there) `ABOR` and `STAT` count at once, and what is due of
    /// it is told. Returns which are ready: none, if only lines came.
    ///
    /// # Errors
    /// The transfer is to end.
    pub fn wait(
        &mut self,
        wanted: &[(BorrowedFd<'_>, PollFlags)],
        deadline: Instant,
        progress: Option<&Progress>,
    ) -> Result<Vec<bool>, Abort> {
        let in_transfer = progress.is_some();
        if let Some(due) = progress.and_then(Progress::due) {
            self.send(&due);
        }
        let wants = self.wants();
        let holds = wants && self.stream.holds();
        let left = match holds {
            true => Duration::ZERO,
            false => {
                let next = progress.and_then(Progress::next).unwrap_or(deadline);
                deadline.min(next).saturating_duration_since(Instant::now())
            }
        };
        let (ready, by_client, by_monitor, count) = {
            let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(wanted.len() + 2);
            fds.extend(wanted.iter().map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)));
            fds.push(PollFd::from_borrowed_fd(self.monitor.as_fd(), PollFlags::IN));
            if wants {
                fds.push(PollFd::from_borrowed_fd(self.stream.fd(), PollFlags::IN));
            }
            let count = match poll(&mut fds, Some(&timespec(left))) {
                Ok(count) => count,
                Err(rustix::io::Errno::INTR) => return Ok(vec![false; wanted.len()]),
                Err(_) => return Err(Abort::Gone(End::Gone)),
            };
            let is = |fd: &PollFd<'_>| !fd.revents().is_empty();
            let ready: Vec<bool> = fds[..wanted.len()].iter().map(is).collect();
            (ready, holds || wants && is(&fds[wanted.len() + 1]), is(&fds[wanted.len()]), count)
        };
        if by_monitor {
            self.hear_monitor();
        }
        if by_client {
            self.fill();
        }
        if self.orphaned {
            return Err(Abort::Gone(End::Orphaned));
        }
        if self.ending {
            return Err(Abort::Gone(End::Stopping));
        }
        if in_transfer {
            if self.mute || self.end.is_some_and(|end| end != End::Stopping) && self.queue.is_empty() {
                return Err(Abort::Gone(self.end.unwrap_or(End::Gone)));
            }
            self.answer_at_once(progress)?;
        } else if self.stopping && self.queue.is_empty() {
            return Err(Abort::Gone(End::Stopping));
        }
        if count == 0 && Instant::now() >= deadline {
            return Err(Abort::Late);
        }
        Ok(ready)
    }

    /// `ABOR` and `STAT` among the lines that wait.
    fn answer_at_once(&mut self, progress: Option<&Progress>) -> Result<(), Abort> {
        if self.has_abor() {
            return Err(Abort::Asked);
        }
        // Only one that nothing waits before: answers come in order.
        while self.queue.front().is_some_and(|line| self.is_short(line, &Request::Stat(None))) {
            self.pop();
            if let Some(progress) = progress {
                self.say(213, &progress.in_words());
            }
        }
        Ok(())
    }

    fn wants(&self) -> bool {
        self.end.is_none() && self.queue.len() < QUEUE_MAX && self.held < COMMAND_LEN_MAX
    }

    fn pop(&mut self) -> Option<Vec<u8>> {
        let (line, seal) = self.queue.pop_front()?;
        self.held -= line.len();
        self.bare = self.lock.is_some() && seal == Seal::Bare;
        if !self.bare {
            self.seal = seal;
        }
        Some(line)
    }

    /// A line that counts is this request, which is one of a word.
    fn is_short(&self, (line, seal): &(Vec<u8>, Seal), wanted: &Request<'_>) -> bool {
        let counts = self.lock.is_none() || *seal != Seal::Bare;
        counts && line.len() < 16 && Request::parse(line).as_ref() == Ok(wanted)
    }

    fn hear_monitor(&mut self) {
        let mut word = [0; 64];
        match self.monitor.read(&mut word) {
            Ok(0) => self.orphaned = true,
            // Whatever it says in the middle is that the server ends.
            Ok(len) => {
                self.stopping = true;
                self.ending |= word[..len].contains(&END_NOW[0]);
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.orphaned = true,
        }
    }

    /// Takes what is there.
    fn fill(&mut self) {
        let mut bytes = [0; 16 << 10];
        while self.wants() {
            match self.stream.read(&mut bytes) {
                Ok(0) => self.end = Some(End::Gone),
                Ok(len) => self.take_bytes(&bytes[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.end = Some(End::Gone),
            }
        }
    }

    fn take_bytes(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.reader.feed(rest) {
                Ok((taken, line)) => {
                    rest = &rest[taken..];
                    let Some(line) = line else { continue };
                    let opened = match &mut self.lock {
                        Some(lock) => lock.open(line),
                        None => Ok((line, Seal::Bare)),
                    };
                    let Ok((line, seal)) = opened else {
                        self.end = Some(End::Broken);
                        return;
                    };
                    self.held += line.len();
                    self.queue.push_back((line, seal));
                }
                Err(_) => {
                    self.end = Some(End::TooLong);
                    return;
                }
            }
        }
    }

    /// Sends a reply of one line.
    pub fn say(&mut self, code: u16, text: &str) {
        self.say_bytes(code, text.as_bytes());
    }

    /// The same with a name in it; bytes that would end the line are replaced.
    pub fn say_bytes(&mut self, code: u16, text: &[u8]) {
        let text: Vec<u8> =
            text.iter().map(|b| if matches!(b, b'\r' | b'\n' | 0) { b'?' } else { *b }).collect();
        self.said = [code.to_string().as_bytes(), b" ", &text].concat();
        let reply = Reply::new(code, [text]).expect("one line without its end");
        self.send(&reply);
    }

    /// The last reply of one line.
    pub fn said(&self) -> &[u8] {
        &self.said
    }

    /// Sends a reply.
    pub fn send(&mut self, reply: &Reply) {
        let mut bytes = Vec::new();
        reply.encode(Iac::Plain, &mut bytes);
        if let Some(lock) = &mut self.lock {
            let mut sealed = Vec::new();
            // What cannot be protected is not said.
            self.mute |= lock.close(&bytes, self.seal, &mut sealed).is_err();
            bytes = sealed;
        }
        if !self.mute && self.write_all(&bytes).is_err() {
            self.mute = true;
        }
    }

    fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let deadline = Instant::now() + REPLY_WITHIN;
        loop {
            // What protects it may have taken all, and not have sent it.
            let gone = match bytes.is_empty() {
                true => self.stream.flush().map(|()| None),
                false => self.stream.write(bytes).map(Some),
            };
            match gone {
                Ok(None) => return Ok(()),
                Ok(Some(0)) => return Err(ErrorKind::WriteZero.into()),
                Ok(Some(len)) => bytes = &bytes[len..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(ErrorKind::TimedOut.into());
                    }
                    // A monitor that is gone ends this, too: nobody would end it otherwise.
                    let mut fds = [PollFd::from_borrowed_fd(self.stream.fd(), PollFlags::OUT)];
                    let _ = poll(&mut fds, Some(&timespec(left.min(Duration::from_secs(1)))));
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// A line for the monitor, which takes it at once.
fn tell(monitor: &mut UnixStream, claim: &Claim) -> io::Result<()> {
    let mut line = serde_json::to_vec(claim).expect("plain fields serialise");
    line.push(b'\n');
    monitor.set_nonblocking(false)?;
    monitor.set_write_timeout(Some(ANSWER_WITHIN))?;
    monitor.write_all(&line)
}

pub fn timespec(time: Duration) -> Timespec {
    // A part of a millisecond is waited for: what is due then would else be looked at in a loop.
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}
