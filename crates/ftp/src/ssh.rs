//! A server that ssh starts: the control connection is ssh's own (`sshftp://`).
//!
//! In: the user's ssh command, a host. Out: a socket whose other end is ssh's stdin and stdout; where the
//! server says that it is; ssh's last words, where it ends.
//! Invariants: what runs at the host is a constant; a host or a user never reaches ssh as an option; what is
//! read before the server speaks has a bound; ssh is gone when the session is.
//! Source: `gridftp-ssh` of the Grid Community Toolkit, which starts `.globus/sshftp` in the home directory,
//! or else `/etc/grid-security/sshftp`. Data connections are no matter of ssh's.

use std::io::{self, Read};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use haul_base::escape;

use crate::{Error, Server};

/// How an `sshftp://` server is reached.
#[derive(Clone, Debug)]
pub struct Ssh {
    /// The remote shell and its arguments; none: `ssh`.
    pub words: Vec<String>,
    /// Somebody can answer what ssh asks, in the first session alone.
    pub interactive: bool,
}

/// What begins the line that is said before the server speaks.
const MARK: &[u8] = b"HAUL-SSHFTP ";
const NONE: &[u8] = b"none";
/// Run at the host, by whatever shell the user has there.
const REMOTE: &str = "exec sh -c 'echo \"HAUL-SSHFTP at $SSH_CONNECTION\"; \
                      for server in \"$HOME\"/.globus/sshftp /etc/grid-security/sshftp; do \
                      if [ -f \"$server\" ]; then exec \"$server\"; fi; done; echo \"HAUL-SSHFTP none\"'";
/// What shells may say before that.
const CHATTER_MAX: usize = 64 * 1024;
/// Most of ssh's words in an error, bytes.
const WORDS_LEN_MAX: usize = 1000;
/// How long ssh may take to end when nobody needs it, and to say why it ended.
const ENDS_WITHIN: Duration = Duration::from_secs(1);
/// How long a person may take to answer.
const ANSWER_WAIT: Duration = Duration::from_secs(600);
/// Words of an ssh that will not come in another time either; it says them in English whatever the locale.
const LASTING: [&str; 5] = [
    "Permission denied",
    "Host key verification failed",
    "Could not resolve hostname",
    "REMOTE HOST IDENTIFICATION HAS CHANGED",
    "command not found",
];

/// The ssh of a session.
pub(crate) struct Running {
    child: Child,
    /// What it says at its end.
    words: Receiver<Vec<u8>>,
    shown: String,
}

/// Starts it. The socket is its stdin and stdout.
///
/// # Errors
/// There is none here.
pub(crate) fn start(server: &Server, ssh: &Ssh) -> Result<(UnixStream, Running), Error> {
    let shown = server.shown();
    let unstarted = |cause: io::Error| Error::Connect { to: format!("{shown} (ssh)"), cause };
    let (ours, theirs) = UnixStream::pair().map_err(unstarted)?;
    let also = theirs.try_clone().map_err(unstarted)?;
    // Ctrl-C is haul's to answer: see `haul_launch::ssh`.
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' INT; exec \"$@\"", "sh"]);
    match ssh.words.is_empty() {
        true => command.arg("ssh"),
        false => command.args(&ssh.words),
    };
    if !ssh.interactive {
        command.arg("-oBatchMode=yes");
    }
    if server.port != crate::server::PORT_SSH {
        command.arg(format!("-oPort={}", server.port));
    }
    let user = if server.is_anonymous() { String::new() } else { format!("{}@", server.user()) };
    command.args(["-T", "--", &format!("{user}{}", server.host), REMOTE]);
    command.stdin(OwnedFd::from(theirs)).stdout(OwnedFd::from(also)).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(unstarted)?;
    // The command would keep the other end of the socket open, and nobody would hear that ssh ended.
    drop(command);
    let words = listen(child.stderr.take());
    Ok((ours, Running { child, words, shown }))
}

/// Keeps the last words of ssh, on a thread that ends with its stderr.
fn listen(stderr: Option<ChildStderr>) -> Receiver<Vec<u8>> {
    let (sender, words) = channel();
    let Some(mut stderr) = stderr else { return words };
    let hear = move || {
        let (mut last, mut buffer) = (Vec::new(), [0; 1024]);
        while let Ok(len @ 1..) = stderr.read(&mut buffer) {
            last.extend_from_slice(&buffer[..len]);
            let old = last.len().saturating_sub(WORDS_LEN_MAX);
            last.drain(..old);
        }
        let _ = sender.send(last);
    };
    // Without a thread its words are lost, and nothing else.
    let _ = thread::Builder::new().name("haul-ftp-ssh".into()).spawn(hear);
    words
}

impl Running {
    /// How long the server's first word is waited for.
    pub(crate) fn patience(ssh: &Ssh, patience: Duration) -> Duration {
        if ssh.interactive { patience.max(ANSWER_WAIT) } else { patience }
    }

    /// It ended before the server spoke.
    pub(crate) fn ended(&mut self) -> Error {
        let words = self.words.recv_timeout(ENDS_WITHIN).unwrap_or_default();
        let words = String::from_utf8_lossy(&words);
        let said: Vec<&str> = words.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let said = said[said.len().saturating_sub(3)..].join("; ");
        let passing = !LASTING.iter().any(|lasting| said.contains(lasting));
        let why = match said.is_empty() {
            true => "ssh ended before the server spoke".to_owned(),
            false => format!("ssh ended before the server spoke: {}", escape::text(&said).replace('\n', " ")),
        };
        Error::Ssh { to: self.shown.clone(), why, passing }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let until = Instant::now() + ENDS_WITHIN;
        // The socket is closed by now.
        while let Ok(None) = self.child.try_wait() {
            if Instant::now() > until {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// What was heard of the server before its first word.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// So many bytes were before it, and there it is, if that was said.
    Speaks(usize, Option<IpAddr>),
    /// There is no server at the host.
    NoServer,
    More,
    TooMuch,
}

/// Looks for the server's first word in what came so far.
pub(crate) fn hear(came: &[u8]) -> Heard {
    let mut at = 0;
    while let Some(end) = came[at..].iter().position(|byte| *byte == b'\n') {
        let line = came[at..at + end].strip_suffix(b"\r").unwrap_or(&came[at..at + end]);
        // Whoever is bound to one command at the host has the server speak at once.
        if line.len() >= 4 && line.starts_with(b"220") && (line[3] == b' ' || line[3] == b'-') {
            return Heard::Speaks(at, None);
        }
        at += end + 1;
        // The shell's own words may stand before it in the line.
        let Some(mark) = line.windows(MARK.len()).position(|part| part == MARK) else { continue };
        let rest = &line[mark + MARK.len()..];
        if rest == NONE {
            return Heard::NoServer;
        }
        // CLIENT PORT SERVER PORT.
        let text = String::from_utf8_lossy(rest);
        let address = text.split_whitespace().nth(3).and_then(|word| word.parse().ok());
        // What was said of it is for what comes next.
        return match hear_none(&came[at..]) {
            Some(none) => none,
            None => Heard::Speaks(at, address),
        };
    }
    if came.len() > CHATTER_MAX { Heard::TooMuch } else { Heard::More }
}

/// What comes behind the mark, where that is not known to be the server.
fn hear_none(came: &[u8]) -> Option<Heard> {
    let none = [MARK, NONE].concat();
    match came.len() < none.len() {
        // A server's greeting differs in its first byte.
        true if none.starts_with(came) => Some(Heard::More),
        _ => came.starts_with(&none).then_some(Heard::NoServer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the server's first word is found behind what shells say, in whatever pieces it comes.
    #[test]
    fn the_first_word_is_found() {
        let whole = b"motd\nHAUL-SSHFTP at 10.0.0.1 5000 10.0.0.2 22\n220 ready\r\n";
        let at = whole.windows(4).position(|part| part == b"220 ").expect("it is there");
        for len in 0..whole.len() {
            match hear(&whole[..len]) {
                Heard::More => assert!(len <= at),
                heard => assert_eq!((heard, len > at), (Heard::Speaks(at, "10.0.0.2".parse().ok()), true)),
            }
        }
        assert_eq!(hear(b"220-hello\r\n"), Heard::Speaks(0, None));
        assert_eq!(hear(b"chat\n220 hello\r\n"), Heard::Speaks(5, None));
        assert_eq!(hear(b"HAUL-SSHFTP at \nHAUL-SSHFTP none\n"), Heard::NoServer);
        assert_eq!(hear(b"\x1b[0mHAUL-SSHFTP at ::1 1 ::2 22\n2"), Heard::Speaks(32, "::2".parse().ok()));
        assert_eq!(hear(&vec![b'x'; CHATTER_MAX + 1]), Heard::TooMuch);
        assert_eq!(hear(&b"x\n".repeat(CHATTER_MAX)), Heard::TooMuch);
    }
}
