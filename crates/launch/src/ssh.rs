//! The ssh process: its command line, its pipe, its words, its end.
//!
//! In: a [`RemoteSpec`]. Out: bytes from and to the far end; each line that ssh writes to stderr, escaped,
//! once: what it says last before it fails is in the error, all else goes to `notes`, while a person may have
//! to act on it at the latest after [`HOLD_MAX`].
//! Invariants: the remote command is the constant that the caller gives; a host never reaches ssh as an
//! option; where nobody can answer ssh is told never to ask. No thread runs until the session is up: one
//! `poll` waits for all three pipes, so neither side can fill a pipe that nobody empties; and it looks often
//! enough whether somebody wants an end.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::clients::{Clients, END_WAIT, Process, wait_child};
use super::message::{self, CHATTER_MAX, MAGIC};
use super::shell::{Lines, Notes, quote};
use super::{BootstrapError, BootstrapKind, RemoteSpec};
use haul_base::escape;
use haul_base::stop::{LOOK, Stop};

/// How long the far end may be silent once it has said its first word.
pub(super) const ANSWER_WAIT: Duration = Duration::from_secs(60);
/// Starts each line of the `sh` stage.
pub(super) const STAGE0: &[u8] = b"HAUL-STAGE0 1 ";
/// Longest line of the `sh` stage after [`STAGE0`], bytes.
const STAGE0_LEN_MAX: usize = 4096;
/// A line of ssh's is held back so long where somebody may be asked, for it may be what ssh says of its
/// failure, but also a banner or a token that waits for a person. Where nobody is, it is held until the far
/// end speaks or ssh ends.
const HOLD_MAX: Duration = Duration::from_millis(500);
/// So many lines are an error's; those before are told as they are.
const QUOTED_MAX: usize = 4;
/// What `ssh -v` says of itself begins so, and is no reason for anything.
const DEBUG: &str = "debug";
/// Programs that answer ssh's questions, on a terminal that they make for it.
const ANSWERERS: [&str; 1] = ["sshpass"];
/// How long to wait for the rest of stderr when ssh is gone: a ControlPersist master keeps it open forever.
const STDERR_WAIT: Duration = Duration::from_millis(300);

/// The destination argument for ssh: `host` or `user@host`, without the brackets of an IPv6 address.
///
/// # Errors
/// If ssh or a terminal could take it for something else: empty, a leading `-`, blanks or control bytes.
pub(super) fn destination(spec: &RemoteSpec) -> Result<String, BootstrapError> {
    let (user, host) = match spec.host.rsplit_once('@') {
        Some((user, host)) if spec.user.is_none() => (Some(user), host),
        _ => (spec.user.as_deref(), spec.host.as_str()),
    };
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    for (what, text) in [("host", Some(bare)), ("user", user)] {
        let Some(text) = text else { continue };
        let bad = |why: &str| {
            Err(BootstrapError::new(
                BootstrapKind::Usage,
                format!("'{}' cannot be a {what}: it {why}", escape::line(text.as_bytes())),
            ))
        };
        if text.is_empty() {
            return bad("is empty");
        }
        if text.starts_with('-') && !haul_mutant::removed("hosts-are-no-options") {
            return bad("starts with '-'");
        }
        if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return bad("has blanks or control bytes in it");
        }
    }
    Ok(match user {
        Some(user) => format!("{user}@{bare}"),
        None => bare.to_string(),
    })
}

/// The host of `spec` as a name or address to dial.
pub(super) fn dial_name(spec: &RemoteSpec) -> &str {
    let host = spec.host.rsplit_once('@').map_or(spec.host.as_str(), |(_, host)| host);
    host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host)
}

/// Program and arguments for the whole run.
///
/// The terminal sends Ctrl-C to the whole foreground group. ssh must outlive it, for the streams may run in
/// it and the open epoch has to be closed first; a group of its own would keep it from asking for a
/// password. So it starts with SIGINT ignored, which ssh leaves as it is, and which only a shell can arrange
/// without `unsafe`. The shell sees a constant; all words are arguments.
///
/// `sharing`: options behind the user's own, of which ssh takes the first.
pub(super) fn command_line(
    spec: &RemoteSpec,
    sharing: &[OsString],
    remote: &str,
) -> Result<Vec<OsString>, BootstrapError> {
    let destination = destination(spec)?;
    let mut words: Vec<OsString> = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh"].map(OsString::from).into();
    match spec.ssh.is_empty() {
        true => words.push("ssh".into()),
        false => words.extend(spec.ssh.iter().map(OsString::from)),
    }
    words.extend_from_slice(sharing);
    // Whoever answers is behind these words, or could be asked.
    let program = spec.ssh.first().map_or("ssh", |word| word.rsplit('/').next().unwrap_or_default());
    if !spec.interactive && !ANSWERERS.contains(&program) && !haul_mutant::removed("batch-mode") {
        words.push("-oBatchMode=yes".into());
    }
    words.extend(["-T", "--", &destination, remote].map(OsString::from));
    Ok(words)
}

/// What the far end said next.
pub(super) enum Mark {
    /// A line of the `sh` stage, without [`STAGE0`].
    Stage0(Vec<u8>),
    /// The magic: haul itself speaks from here on.
    Magic,
}

/// What a wait ended with.
#[derive(PartialEq, Eq)]
enum Event {
    /// More bytes from the far end.
    More,
    /// Bytes can be written.
    Writable,
    /// stdout is closed: ssh is gone, or going.
    Eof,
    TimedOut,
}

/// The ssh process while the session is being set up.
pub(super) struct Ssh {
    stdin: ChildStdin,
    stdout: ChildStdout,
    stderr: Option<ChildStderr>,
    /// Bytes from stdout that nobody took yet.
    buffer: Vec<u8>,
    eof: bool,
    chatter: Vec<u8>,
    words: Lines,
    /// Lines of stderr that nobody has seen, and since when there are some.
    held: (Vec<String>, Option<Instant>),
    shown: String,
    /// Longest silence that is put up with. `None` while a person may be typing a password.
    silence: Option<Duration>,
    /// haul itself has spoken.
    spoke: bool,
    /// Each wait ends when somebody wants an end.
    stop: Stop,
    /// Last, so that the pipes are closed when it waits.
    child: Process,
}

impl Ssh {
    /// Runs ssh with the constant command `remote`. `sharing`: see [`command_line`].
    pub(super) fn start(
        spec: &RemoteSpec,
        sharing: &[OsString],
        remote: &str,
        silence: Option<Duration>,
    ) -> Result<Ssh, BootstrapError> {
        let words = command_line(spec, sharing, remote)?;
        let local = |source| BootstrapError::local("cannot start ssh", source);
        let mut child = Command::new(&words[0])
            .args(&words[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(local)?;
        let stdin = child.stdin.take().expect("stdin was piped");
        let stdout = child.stdout.take().expect("stdout was piped");
        let stderr = child.stderr.take();
        set_nonblocking(&stdin, true).map_err(local)?;
        Ok(Ssh {
            stdin,
            stdout,
            stderr,
            buffer: Vec::new(),
            eof: false,
            chatter: Vec::new(),
            words: Lines::default(),
            held: (Vec::new(), None),
            shown: escape::line(dial_name(spec).as_bytes()),
            silence,
            spoke: false,
            stop: spec.stop.clone(),
            child: Process { child, stop: spec.stop.clone() },
        })
    }

    /// The host as it is shown to the user.
    pub(super) fn host(&self) -> &str {
        &self.shown
    }

    /// Set when the far end's shell says that haul has ended there.
    pub(super) fn far_ended(&self) -> Arc<AtomicBool> {
        self.words.ended.clone()
    }

    /// Nobody types any more: from here on silence has an end.
    pub(super) fn set_silence(&mut self, silence: Duration) {
        self.silence = Some(silence);
    }

    /// Waits for bytes from the far end, or, if `write`, until some can be written to it.
    fn wait(
        &mut self,
        write: bool,
        deadline: Option<Instant>,
        notes: Notes<'_>,
    ) -> Result<Event, BootstrapError> {
        let local = |e| BootstrapError::local("cannot wait for ssh", e);
        loop {
            self.stop.check()?;
            if self.eof && !write {
                return Ok(Event::Eof);
            }
            let due = self.held.1.filter(|_| self.silence.is_none()).map(|since| since + HOLD_MAX);
            let look = (!self.stop.is_never()).then(|| Instant::now() + LOOK);
            let until = deadline.into_iter().chain(due).chain(look).min();
            let timeout = until.map(|until| until.saturating_duration_since(Instant::now()));
            let timeout = timeout.map(|t| Timespec {
                tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: t.subsec_nanos().into(),
            });
            if self.eof && write {
                // ssh has closed its stdin too, or will never read it again.
                return Ok(Event::Eof);
            }
            let (out, inp, err) = {
                // Only what is waited for: a broken pipe is always ready.
                let mut fds = vec![PollFd::new(&self.stdout, PollFlags::IN)];
                if write {
                    fds.push(PollFd::new(&self.stdin, PollFlags::OUT));
                }
                if let Some(stderr) = &self.stderr {
                    fds.push(PollFd::new(stderr, PollFlags::IN));
                }
                match poll(&mut fds, timeout.as_ref()) {
                    Ok(0) if due.is_some_and(|due| due <= Instant::now()) => {
                        self.release(notes);
                        continue;
                    }
                    Ok(0) if deadline.is_some_and(|deadline| deadline <= Instant::now()) => {
                        return Ok(Event::TimedOut);
                    }
                    Ok(0) => continue,
                    Ok(_) => {}
                    Err(rustix::io::Errno::INTR) => continue,
                    Err(e) => return Err(local(e.into())),
                }
                let ready = |i: usize| fds.get(i).is_some_and(|fd| !fd.revents().is_empty());
                (ready(0), write && ready(1), ready(1 + usize::from(write)))
            };
            if err {
                self.read_stderr();
            }
            if out {
                let mut chunk = [0; 16 * 1024];
                match self.stdout.read(&mut chunk) {
                    Ok(0) => self.eof = true,
                    Ok(n) => {
                        self.buffer.extend_from_slice(&chunk[..n]);
                        // It goes on: what was said was no failure.
                        self.release(notes);
                        if !write {
                            return Ok(Event::More);
                        }
                    }
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(local(e)),
                }
            }
            if write && inp {
                return Ok(Event::Writable);
            }
        }
    }

    fn read_stderr(&mut self) {
        let Some(stderr) = &mut self.stderr else { return };
        let mut chunk = [0; 4096];
        let (held, since) = &mut self.held;
        match stderr.read(&mut chunk) {
            Ok(0) => self.stderr = None,
            Ok(n) => self.words.push(&chunk[..n], &mut |line| {
                held.push(line);
                since.get_or_insert_with(Instant::now);
            }),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => self.stderr = None,
        }
    }

    /// Tells what was held back.
    fn release(&mut self, notes: Notes<'_>) {
        self.held.1 = None;
        self.held.0.drain(..).for_each(notes);
    }

    fn silence_deadline(&self) -> Option<Instant> {
        self.silence.map(|s| Instant::now() + s)
    }

    /// Sends all of `bytes`. `Ok(false)`: the far end does not read any more; it may have said why.
    pub(super) fn send(&mut self, mut bytes: &[u8], notes: Notes<'_>) -> Result<bool, BootstrapError> {
        while !bytes.is_empty() {
            match self.wait(true, self.silence_deadline(), notes)? {
                Event::Writable => match self.stdin.write(bytes) {
                    Ok(n) => bytes = &bytes[n..],
                    Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                    Err(_) => return Ok(false),
                },
                Event::Eof => return Ok(false),
                Event::More => {}
                Event::TimedOut => return Err(self.silent(notes)),
            }
        }
        Ok(true)
    }

    /// Skips what the far shell says until the next [`Mark`].
    ///
    /// # Errors
    /// If the far end is gone, silent, or has said more than [`CHATTER_MAX`] bytes of its own in all.
    pub(super) fn next_mark(&mut self, notes: Notes<'_>) -> Result<Mark, BootstrapError> {
        // All of the buffer before this was searched in vain.
        let mut searched = 0;
        loop {
            let find = |needle: &[u8]| {
                self.buffer[searched..]
                    .windows(needle.len())
                    .position(|w| w == needle)
                    .map(|at| searched + at)
            };
            let (magic, stage) = (find(MAGIC), find(STAGE0));
            if let Some(at) = magic.filter(|m| stage.is_none_or(|s| *m < s)) {
                self.skip_chatter(at)?;
                self.buffer.drain(..MAGIC.len());
                self.spoke = true;
                return Ok(Mark::Magic);
            }
            if let Some(at) = stage {
                self.skip_chatter(at)?;
                let line = &self.buffer[STAGE0.len()..];
                if let Some(len) = line.iter().position(|b| *b == b'\n') {
                    let line = line[..len].to_vec();
                    self.buffer.drain(..STAGE0.len() + len + 1);
                    return Ok(Mark::Stage0(line));
                }
                if line.len() > STAGE0_LEN_MAX {
                    return Err(BootstrapError::new(
                        BootstrapKind::Peer,
                        format!("{} answered with an endless line", self.shown),
                    ));
                }
                searched = 0;
            } else {
                searched = self.buffer.len().saturating_sub(STAGE0.len() - 1);
                if self.chatter.len() + searched > CHATTER_MAX {
                    return Err(self.too_much_chatter(self.buffer.len()));
                }
            }
            match self.wait(false, self.silence_deadline(), notes)? {
                Event::Eof => {
                    let rest = self.buffer.len();
                    self.chatter.extend(self.buffer.drain(..rest));
                    return Err(self.ended(notes));
                }
                Event::TimedOut => return Err(self.silent(notes)),
                Event::More | Event::Writable => {}
            }
        }
    }

    fn skip_chatter(&mut self, len: usize) -> Result<(), BootstrapError> {
        if self.chatter.len() + len > CHATTER_MAX {
            return Err(self.too_much_chatter(len));
        }
        self.chatter.extend(self.buffer.drain(..len));
        Ok(())
    }

    fn too_much_chatter(&mut self, len: usize) -> BootstrapError {
        self.chatter.extend_from_slice(&self.buffer[..len]);
        BootstrapError::new(
            BootstrapKind::Chatter,
            format!(
                "the shell of {} prints more than {CHATTER_MAX} bytes before haul starts: {}",
                self.shown,
                quote(&self.chatter)
            ),
        )
        .remedy("silence its startup files for non-interactive shells")
    }

    /// Receives one frame of the agent's.
    pub(super) fn read_frame<T: serde::de::DeserializeOwned>(
        &mut self,
        notes: Notes<'_>,
    ) -> Result<T, BootstrapError> {
        let bad = |shown: &str, e: io::Error| BootstrapError {
            source: Some(e),
            ..BootstrapError::new(
                BootstrapKind::Peer,
                format!("haul on {shown} said something unintelligible"),
            )
        };
        loop {
            if let Some(head) = self.buffer.first_chunk::<4>() {
                let len = message::frame_len(*head).map_err(|e| bad(&self.shown, e))?;
                if self.buffer.len() >= 4 + len {
                    let frame: Vec<u8> = self.buffer.drain(..4 + len).collect();
                    return message::read_frame(&mut &frame[..]).map_err(|e| bad(&self.shown, e));
                }
            }
            match self.wait(false, self.silence_deadline(), notes)? {
                Event::Eof => return Err(self.ended(notes)),
                Event::TimedOut => return Err(self.silent(notes)),
                Event::More | Event::Writable => {}
            }
        }
    }

    fn silent(&mut self, notes: Notes<'_>) -> BootstrapError {
        let seconds = self.silence.unwrap_or_default().as_secs();
        let words = self.quoted_words(notes);
        BootstrapError::new(
            BootstrapKind::Peer,
            format!("{} did not answer within {seconds} s{words}", self.shown),
        )
    }

    /// The error for a far end that closed the pipe: ssh's own words and exit code.
    pub(super) fn ended(&mut self, notes: Notes<'_>) -> BootstrapError {
        let status = wait_child(&mut self.child.child, END_WAIT);
        let deadline = Instant::now() + STDERR_WAIT;
        while self.stderr.is_some() {
            let Some(stderr) = &self.stderr else { break };
            let mut fds = [PollFd::new(stderr, PollFlags::IN)];
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut fds, Some(&left)) {
                Ok(0) | Err(_) => break,
                Ok(_) => self.read_stderr(),
            }
        }
        let held = &mut self.held.0;
        self.words.end(&mut |line| held.push(line));
        let exit = status.and_then(|s| s.code());
        let how = match status {
            Some(status) => match (status.code(), status.signal()) {
                (Some(code), _) => format!("ended with exit code {code}"),
                (None, signal) => format!("was killed by signal {}", signal.unwrap_or(0)),
            },
            None => "closed its output".to_string(),
        };
        let when = if self.spoke { "while haul was starting there" } else { "before haul spoke" };
        let words = self.quoted_words(notes);
        let mut what = format!("ssh to {} {how} {when}{words}", self.shown);
        if !self.spoke && !self.chatter.is_empty() {
            what.push_str(&format!("; the far shell had printed: {}", quote(&self.chatter)));
        }
        let mut error = BootstrapError::new(BootstrapKind::Ssh, what);
        error.ssh_exit = exit;
        if exit == Some(255) {
            error = error.remedy("see that this ssh command works by itself");
        }
        error
    }

    /// What was said last and nobody has seen, for an error; the rest of that is told.
    fn quoted_words(&mut self, notes: Notes<'_>) -> String {
        self.held.1 = None;
        let held = std::mem::take(&mut self.held.0);
        let (told, mut words): (Vec<_>, Vec<_>) = held.into_iter().partition(|line| line.starts_with(DEBUG));
        let late = words.len().saturating_sub(QUOTED_MAX);
        told.into_iter().chain(words.drain(..late)).for_each(notes);
        if words.is_empty() { String::new() } else { format!(": {}", words.join(" / ")) }
    }

    /// The session has its own connections: ssh only has to end in good time.
    pub(super) fn into_guard(self) -> SshGuard {
        let Ssh { mut child, stdin, stdout, stderr, words, held, .. } = self;
        child.stop = Stop::never();
        let words = follow(stderr, words, held.0);
        SshGuard { words, _pipe: (Some(stdin), Some(stdout)), _clients: Clients::default(), child }
    }

    /// All streams use the pipe, and the channels of `clients`: its reading and its writing end.
    pub(super) fn into_pipe(self, clients: Clients) -> Result<(Pipe, ChildStdin, SshGuard), BootstrapError> {
        let Ssh { mut child, stdin, stdout, stderr, words, held, buffer, .. } = self;
        child.stop = Stop::never();
        let words = follow(stderr, words, held.0);
        let guard = SshGuard { words, _pipe: (None, None), _clients: clients, child };
        set_nonblocking(&stdin, false).map_err(|e| BootstrapError::local("cannot use the pipe to ssh", e))?;
        Ok((Pipe { ahead: io::Cursor::new(buffer), stdout }, stdin, guard))
    }
}

/// The reading end of the ssh pipe, beginning with what was read ahead.
pub(super) struct Pipe {
    ahead: io::Cursor<Vec<u8>>,
    stdout: ChildStdout,
}

impl Read for Pipe {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self.ahead.read(buf)? {
            0 => self.stdout.read(buf),
            n => Ok(n),
        }
    }
}

/// Keeps the ssh process of a session. Dropped, it closes the pipe, gives ssh a moment, and then kills it.
pub struct SshGuard {
    words: Arc<Mutex<Lines>>,
    /// Held open while the session lives; with `Path::Ssh` the streams have it.
    _pipe: (Option<ChildStdin>, Option<ChildStdout>),
    /// Before the first ssh, which waits for them.
    _clients: Clients,
    /// Last, as in [`Ssh`].
    child: Process,
}

impl SshGuard {
    /// The session is over in good order: ssh ends by itself when the far end does, and nobody waits for
    /// that. A thread reaps it, and kills it if it stays; when this process ends before, ssh is on its own.
    ///
    /// Edge: where the streams had the pipe, what they wrote last may still be on its way, and ssh is waited
    /// for.
    pub fn leave(self) {
        let SshGuard { _pipe: (Some(stdin), stdout), child, .. } = self else { return };
        drop((stdin, stdout));
        // Without the thread it is waited for.
        let _ = thread::Builder::new().name("haul-ssh-end".into()).spawn(move || drop(child));
    }

    /// What ssh (and the far end's stderr) wrote since the session came up, escaped; the last lines only.
    /// Each line is given once.
    pub fn take_words(&self) -> Vec<String> {
        self.words.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The process id of ssh.
    pub fn pid(&self) -> u32 {
        self.child.child.id()
    }
}

/// Reads the rest of stderr on a thread, so that ssh never waits for a reader. `held`: lines that nobody has
/// seen.
fn follow(stderr: Option<ChildStderr>, mut words: Lines, held: Vec<String>) -> Arc<Mutex<Lines>> {
    words.keep(held);
    let words = Arc::new(Mutex::new(words));
    if let Some(mut stderr) = stderr {
        let words = Arc::clone(&words);
        let spawned = thread::Builder::new().name("haul-ssh-words".into()).spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(n @ 1..) = stderr.read(&mut chunk) {
                words.lock().unwrap_or_else(PoisonError::into_inner).push(&chunk[..n], &mut |_| {});
            }
        });
        // Without that thread ssh gets EPIPE for its words, which it survives.
        drop(spawned);
    }
    words
}

fn set_nonblocking(fd: impl AsFd, on: bool) -> io::Result<()> {
    let flags = fcntl_getfl(&fd)?;
    Ok(fcntl_setfl(&fd, if on { flags | OFlags::NONBLOCK } else { flags - OFlags::NONBLOCK })?)
}

#[cfg(test)]
#[path = "ssh_tests.rs"]
mod tests;
