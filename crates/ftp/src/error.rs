//! What went wrong with a server.

use std::fmt::Display;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use haul_base::stop::Stopped;
use haul_gridftp::FtpError;

/// How waiting for a connection is told.
const CONNECTING: &str = "connect to ";
/// How what listens for data is told from what listens for commands.
const DATA: &str = " (data)";
/// What servers say where there is no room, in small letters. The last one is vsftpd's, which says it of
/// whatever it cannot write.
const NO_ROOM: [&str; 6] = [
    "no space",
    "not enough space",
    "insufficient storage",
    "disk full",
    "quota",
    "failure writing to local file",
];

/// What servers say where the user may not, in small letters: the system's words; those of Windows; of
/// pyftpdlib; of haul's own server as it was.
const DENIED: [&str; 9] = [
    "permission denied",
    "access denied",
    "access is denied",
    "not permitted",
    "read-only",
    "read only",
    "not enough privileges",
    "not authorized",
    "may not change anything",
];
/// What servers say by `550` of what somebody uses, and of what passes, in small letters.
const PASSES: [&str; 11] = [
    "busy",
    "in use",
    "used by",
    "locked",
    "another process",
    "temporar",
    "try again",
    "later",
    "too many",
    "timed out",
    "i/o error",
];

/// Why something came to nothing. No text holds a password.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("connect to {to}: {}", words(cause))]
    Connect { to: String, cause: io::Error },
    /// It was there, and is not any more.
    #[error("{doing}: {}", words(cause))]
    Lost { doing: &'static str, cause: io::Error },
    /// It said nothing for as long as anybody waits.
    #[error("{doing}: the server is silent for {} s", patience.as_secs_f64())]
    Silent { doing: String, patience: Duration },
    #[error("{doing}: the server closed the connection")]
    Closed { doing: &'static str },
    /// What came is not FTP.
    #[error("the server's answer is not understood: {0}")]
    Grammar(#[from] FtpError),
    /// The server's own word.
    #[error("{said}: the server answers {code} {text}")]
    Refused { said: String, code: u16, text: String },
    /// A directory that is there, and that the server could not list.
    #[error(
        "{said}: names in it are renamed or removed while the server lists it, which ends its listing ({text})"
    )]
    Restless { said: String, text: String },
    /// An answer that belongs to something else: which answer is of what cannot be told any more.
    #[error("{said}: the server answers {code}, which is no answer to that")]
    OutOfStep { said: String, code: u16 },
    /// TLS did not come up, or the server is not the one that was meant.
    #[error("TLS with {to}: {why}")]
    Untrusted { to: String, why: String },
    /// A data connection may be of another session than this one, by somebody on the way.
    #[error(
        "a data connection did not go on with the TLS session of its control connection, so that nobody can tell whose it is"
    )]
    Untied,
    /// The ssh that should start a server ended; in its words.
    #[error("ssh to {to}: {why}")]
    Ssh { to: String, why: String, passing: bool },
    /// A name that cannot be said to this server, for what it would take it for is not known.
    #[error("{0}")]
    Unsayable(&'static str),
    /// It should have connected to this host, for data, and did not.
    #[error(
        "the server made no data connection to this host within {} s{}",
        within.as_secs_f64(), others(*stranger, refused.as_deref())
    )]
    Uncalled { within: Duration, stranger: Option<IpAddr>, refused: Option<String> },
    /// Data connections are not there any more where they should be kept.
    #[error("{0}")]
    Unkept(&'static str),
    /// The file has another length than the server told.
    #[error("{0}")]
    Resized(String),
    /// What comes is no file, or not all of it comes from the server.
    #[error("{0}")]
    Misfit(String),
    #[error("{doing}: {why}")]
    Broken { doing: &'static str, why: &'static str },
}

fn others(stranger: Option<IpAddr>, refused: Option<&str>) -> String {
    let from = |ip| format!("; one came from {ip}, which is not the server's address, and was refused");
    let other = |why| format!("; one that came was refused: {why}");
    stranger.map_or(String::new(), from) + &refused.map_or(String::new(), other)
}

/// The system's words, without its number.
fn words(cause: &io::Error) -> String {
    if cause.kind() == io::ErrorKind::UnexpectedEof {
        return "the connection was cut off".into();
    }
    let text = cause.to_string();
    text.rfind(" (os error").map_or(text.clone(), |end| text[..end].to_owned())
}

impl Error {
    /// A call on a connection that came to nothing while somebody waited so long.
    pub(crate) fn lost(doing: &'static str, patience: Duration, cause: io::Error) -> Error {
        match ran_out(&cause) {
            true => Error::silent(doing, patience),
            false => Error::Lost { doing, cause },
        }
    }

    /// The same of a connection that was to be made.
    pub(crate) fn unreached(to: String, patience: Duration, cause: io::Error) -> Error {
        match ran_out(&cause) {
            true => Error::silent(&format!("{CONNECTING}{to}"), patience),
            false => Error::Connect { to, cause },
        }
    }

    /// The same of one for data.
    pub(crate) fn unreached_for_data(to: impl Display, patience: Duration, cause: io::Error) -> Error {
        Error::unreached(format!("{to}{DATA}"), patience, cause)
    }

    pub(crate) fn silent(doing: &str, patience: Duration) -> Error {
        Error::Silent { doing: doing.to_owned(), patience }
    }

    /// The session can be used no more.
    pub fn ends_session(&self) -> bool {
        match self {
            Error::Refused { code, .. } => *code == 421,
            Error::Unsayable(_) | Error::Restless { .. } => false,
            _ => true,
        }
    }

    /// Whatever is asked again is asked over another session: this one is over, or opens no data connection.
    /// Under TLS a server may refuse each further data connection of a session that it does not know again.
    pub fn wants_another_session(&self) -> bool {
        self.ends_session() || matches!(self, Error::Refused { code: 425, .. })
    }

    /// The server heard nothing of what was to be asked: a connection for it was not made, or it cannot be
    /// said.
    pub fn is_unheard(&self) -> bool {
        match self {
            Error::Connect { .. } | Error::Unsayable(_) => true,
            Error::Silent { doing, .. } => doing.starts_with(CONNECTING),
            _ => false,
        }
    }

    /// A data connection was not made: who answers commands was not reached where it said that it listens.
    pub fn is_unreached_for_data(&self) -> bool {
        match self {
            Error::Connect { to, .. } => to.ends_with(DATA),
            Error::Silent { doing, .. } => doing.starts_with(CONNECTING) && doing.ends_with(DATA),
            _ => false,
        }
    }

    /// Who is at the other end of a data connection did not show that he is the user's own, or nobody takes
    /// what he showed.
    pub fn is_untrusted_for_data(&self) -> bool {
        matches!(self, Error::Untrusted { to, .. } if to == crate::gsi::OTHER)
    }

    /// The same may go well later, or over another connection.
    pub fn is_passing(&self) -> bool {
        match self {
            Error::Connect { .. } | Error::Lost { .. } | Error::Silent { .. } => true,
            Error::Closed { .. } | Error::OutOfStep { .. } | Error::Unkept(_) | Error::Untied => true,
            Error::Restless { .. } => true,
            Error::Refused { code: 450, text, .. } => !says_gone(text) && !is_empty_listing(text),
            // Globus says 500 of all that goes wrong, and then in words that a connection for data broke.
            Error::Refused { code: 500, text, .. } if says_broken(text) => true,
            Error::Refused { code, .. } => (400..500).contains(code),
            Error::Ssh { passing, .. } => *passing,
            Error::Grammar(_) | Error::Untrusted { .. } | Error::Misfit(_) => false,
            Error::Resized(_) => false,
            Error::Broken { .. } | Error::Unsayable(_) | Error::Uncalled { .. } => false,
        }
    }

    /// The server says of this one thing that it is to be asked for again; the session is as it was.
    pub fn is_for_later(&self) -> bool {
        matches!(self, Error::Refused { .. })
            && self.is_passing()
            && !self.wants_another_session()
            && !self.is_no_room()
            && !haul_mutant::removed("ftp-later-is-asked-again")
    }

    /// It is of this one thing alone, among several that were asked about together: it is for later, or not
    /// known, for nobody can tell which answer is whose ([`crate::Session::facts_of_each`]); in either case
    /// it can be asked again.
    pub fn is_open(&self) -> bool {
        self.is_for_later() || matches!(self, Error::OutOfStep { .. })
    }

    /// The server said nothing for as long as anybody waits.
    pub fn is_silence(&self) -> bool {
        match self {
            Error::Silent { .. } => true,
            // Who ends a wait for the server has waited for it.
            Error::Lost { cause, .. } if cause.get_ref().is_some_and(|inner| inner.is::<Stopped>()) => true,
            Error::Connect { cause, .. } | Error::Lost { cause, .. } => {
                cause.kind() == io::ErrorKind::TimedOut
            }
            _ => false,
        }
    }

    /// The system's number for it, where it has one or there is an obvious one: 0 where not.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Connect { cause, .. } | Error::Lost { cause, .. } => cause.raw_os_error().unwrap_or(0),
            // ETIMEDOUT.
            Error::Silent { .. } => 110,
            // EACCES.
            Error::Refused { code: 530 | 532, .. } => 13,
            error if error.is_denied() => 13,
            // EREMOTEIO: it is the server's own, and no number of a system tells more.
            error if error.is_refused_for_good() => 121,
            // EILSEQ.
            Error::Unsayable(_) => 84,
            Error::Ssh { why, .. } if why.contains("Permission denied") => 13,
            _ => 0,
        }
    }

    /// The network, or whoever should be at its other end, is to blame.
    pub fn is_network(&self) -> bool {
        match self {
            Error::Connect { .. } | Error::Lost { .. } | Error::Silent { .. } | Error::Closed { .. } => true,
            Error::Uncalled { .. } | Error::Ssh { .. } => true,
            Error::Grammar(_) | Error::Refused { .. } | Error::OutOfStep { .. } => false,
            Error::Resized(_)
            | Error::Restless { .. }
            | Error::Unkept(_)
            | Error::Misfit(_)
            | Error::Untied
            | Error::Untrusted { .. }
            | Error::Broken { .. }
            | Error::Unsayable(_) => false,
        }
    }

    /// The server takes no further session of this user now.
    pub fn is_full(&self) -> bool {
        match self {
            // Where it went well before: a host takes only so many logins at a time.
            Error::Ssh { .. } => true,
            Error::Refused { said, code, .. } => {
                *code == 421 || (*code == 530 && said == "PASS") || (*code == 530 && said == "USER")
            }
            _ => false,
        }
    }

    /// The server has no room for what it is sent, or not for this user: by its number, and where it has none
    /// of its own for that, by its words.
    pub fn is_no_room(&self) -> bool {
        let Error::Refused { code, text, .. } = self else { return false };
        let text = text.to_ascii_lowercase();
        let says = |words: &str| text.contains(words);
        // RFC 959: 452 and 552; 552 is what some say of a name or an option, too.
        matches!(code, 452 | 552) || matches!(code, 400..=599) && NO_ROOM.iter().any(|words| says(words))
    }

    /// The server took a part of what it was sent and no more, for its system did so: the words of a disk
    /// that gets full (ProFTPD), and of one that fails.
    pub fn may_be_no_room(&self) -> bool {
        let Error::Refused { code: 400..=599, text, .. } = self else { return false };
        text.to_ascii_lowercase().contains("input/output error") && !self.is_no_room()
    }

    /// The user may not, by the server's words: numbers say that of a path that is not there as well.
    pub fn is_denied(&self) -> bool {
        let Error::Refused { said, code: 500 | 550..=553, text } = self else { return false };
        let text = own_words(said, text);
        DENIED.iter().any(|words| text.contains(words))
            && !haul_mutant::removed("ftp-denials-have-many-words")
            || text.contains("permission denied")
    }

    /// The server refuses this one thing, and would again: a 5 in front is of what is not to be asked for
    /// once more as it is (RFC 959, 4.2). Not what its words say passes, nor what it does not find, nor
    /// `500`, which Globus says of all that goes wrong, and 503, which is of the order of commands.
    pub fn is_refused_for_good(&self) -> bool {
        let Error::Refused { said, code: 501 | 502 | 504 | 550 | 551 | 553, text } = self else {
            return false;
        };
        if self.is_no_room() || haul_mutant::removed("ftp-refusals-last") {
            return false;
        }
        let text = own_words(said, text);
        !says_gone(&text) && !PASSES.iter().any(|words| text.contains(words))
    }

    /// There is nothing of that name, or it may not be had: the server does not tell which one.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Error::Refused { code: 550, .. })
    }

    /// The server does not know the command, or not with this argument.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Error::Refused { code: 500..=504, .. })
    }
}

/// The server's words in small letters, without the path that they repeat: what that is called says nothing.
fn own_words(said: &str, text: &str) -> String {
    let path = said.split_once(' ').map_or("", |(_, path)| path);
    let text = if path.contains('/') { text.replace(path, "") } else { text.to_owned() };
    text.to_ascii_lowercase()
}

/// The words of a refusal say that a connection was there and broke: those of Globus's servers, for which the
/// system's are in them.
fn says_broken(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    text.contains("globus_xio")
        && ["connection reset", "broken pipe", "connection timed out"]
            .iter()
            .any(|words| text.contains(words))
        && !haul_mutant::removed("ftp-broken-connections-are-tried-again")
}

/// The words of a refusal say that there is nothing of that name. There are servers that say so by `450`,
/// which else is what they say of what somebody uses.
pub fn says_gone(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    ["no such", "not found", "not exist", "cannot find"].iter().any(|words| text.contains(words))
}

/// The same of a directory with nothing in it, which some refuse to list.
fn is_empty_listing(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    ["no files", "no file "].iter().any(|words| text.contains(words))
}

/// The waiting came to its end, as the library says of connecting and the system of reading and writing. What
/// the system gives up by itself (`ETIMEDOUT`) is another matter, for it took another time.
fn ran_out(cause: &io::Error) -> bool {
    cause.kind() == io::ErrorKind::WouldBlock
        || (cause.kind() == io::ErrorKind::TimedOut && cause.raw_os_error().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what a server says for now is asked for again; what it says by the same number of what is not
    /// there is not, nor a full disk, nor what is over with its session.
    #[test]
    fn what_is_for_later_is_told_from_what_is_gone() {
        let refused = |code, text: &str| Error::Refused { said: "CKSM x".into(), code, text: text.into() };
        for (code, text) in [(450, "busy"), (451, "later"), (450, "another upload of this file is under way")]
        {
            assert!(refused(code, text).is_passing() && refused(code, text).is_for_later(), "{code} {text}");
        }
        for (code, text) in [
            (450, "x: No such file or directory"),
            (450, "No files found"),
            (450, "x not found"),
            (550, "busy"),
        ] {
            assert!(
                !refused(code, text).is_passing() && !refused(code, text).is_for_later(),
                "{code} {text}"
            );
        }
        for (code, text) in [(452, "no room"), (451, "No space left on device"), (421, "bye"), (425, "no")] {
            assert!(!refused(code, text).is_for_later(), "{code} {text}");
        }
    }

    /// Goal: what a server refuses for good is told from what passes, and from what is not there; a user who
    /// may not is known by what servers say of that. The names of what they say it of count for nothing.
    #[test]
    fn refusals_for_good_are_told_from_those_that_pass() {
        let refused =
            |said: &str, code, text: &str| Error::Refused { said: said.into(), code, text: text.into() };
        let errno = |said: &str, code, text: &str| refused(said, code, text).errno();
        for (code, text) in [
            (550, "Not enough privileges."),
            (550, "Permission denied: this login may not change anything here."),
            (550, "This login may not change anything here."),
            (550, "Access is denied. "),
            (553, "x: Read-only file system"),
            (550, "This is a read-only server"),
            (500, "Command failed. : System error in open: Permission denied"),
        ] {
            assert_eq!(errno("STOR x", code, text), 13, "{code} {text}");
        }
        for (code, text) in [
            (550, "Failed to open file."),
            (550, "no"),
            (501, "Syntax error in parameters or arguments."),
            (553, "Could not create file."),
            (550, "/locked/in use.later: is no file"),
        ] {
            assert_eq!(errno("RETR /locked/in use.later", code, text), 121, "{code} {text}");
        }
        for (code, text) in [
            (550, "The process cannot access the file because it is being used by another process."),
            (550, "x: Device or resource busy"),
            (550, "x: file is locked"),
            (550, "x: No such file or directory"),
            (450, "no"),
            (500, "Command failed. : callback failed."),
            (503, "Bad sequence of commands."),
            (552, "no"),
            (550, "Insufficient storage space"),
        ] {
            assert_eq!(errno("RETR x", code, text), 0, "{code} {text}");
        }
    }

    /// Goal: what is advised where no data connection shows whose it is stands where that is what failed, and
    /// not in what is said of a connection that another one made good.
    #[test]
    fn a_cause_is_no_advice() {
        assert!(!Error::Untied.to_string().contains("untied"), "{}", Error::Untied);
    }

    /// Goal: a connection for data that broke under one of Globus's servers is tried again, and what else it
    /// says by the same number is not.
    #[test]
    fn a_connection_that_broke_is_tried_again() {
        let refused = |text: &str| Error::Refused { said: "RETR x".into(), code: 500, text: text.into() };
        let broke = "Command failed. : callback failed.; globus_xio: System error in writev: Connection reset by peer; \
                     globus_xio: A system call failed: Connection reset by peer";
        assert!(refused(broke).is_passing());
        for text in [
            "Command failed. : globus_xio: Unable to connect to 10.0.0.1:35525",
            "Command failed. : open error: No such file or directory",
            "connection reset: what is that?",
        ] {
            assert!(!refused(text).is_passing(), "{text}");
        }
    }

    /// Goal: a full disk is known by what servers say of it, whatever their number; what they say of other
    /// trouble with a disk is not one.
    #[test]
    fn no_room_is_known_by_its_words() {
        let refused = |code, text: &str| Error::Refused { said: "STOR x".into(), code, text: text.into() };
        for (code, text) in [
            (452, "no"),
            (552, "Exceeded storage allocation."),
            (451, "x: No space left on device"),
            (451, "Failure writing to local file."),
            (451, "Disk quota exceeded"),
            (500, "Command failed. : System error in write: No space left on device"),
            (550, "Insufficient storage space"),
        ] {
            assert!(refused(code, text).is_no_room(), "{code} {text}");
        }
        for (code, text) in
            [(451, "my disk is odd"), (426, "Failure writing network stream."), (226, "No space")]
        {
            assert!(!refused(code, text).is_no_room(), "{code} {text}");
        }
        assert!(!Error::Closed { doing: "no space" }.is_no_room());
        let odd = refused(451, "Transfer aborted. Input/output error");
        assert!(odd.may_be_no_room() && !odd.is_no_room() && odd.is_passing());
        assert!(!refused(452, "Transfer aborted. No space left on device").may_be_no_room(), "it is");
    }
}
