//! Why a call failed.

use std::fmt;

use haul_base::role::Role;
use haul_core::wire::{Failure, FailureKind};
use haul_launch::{BootstrapError, BootstrapKind};
use rustix::io::Errno;

/// Why a call failed: whose fault it is, to be matched on, and a sentence for people. What else is known of
/// it is told by [`errno`](Error::errno), [`end`](Error::end) and [`path`](Error::path).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Whose fault it is.
    pub kind: ErrorKind,
    /// One sentence: what was done to what, the cause, and what to do.
    pub text: String,
    errno: Option<i32>,
    end: Option<Role>,
    path: Option<Box<[u8]>>,
}

/// Whose fault it is that a call failed. The words in brackets are those of JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The call makes no sense as it stands, and nothing was done (`usage`).
    Usage,
    /// There is no such file or directory (`not_found`).
    NotFound,
    /// The user may not do that there (`permission`).
    Permission,
    /// A file system or a quota is full (`no_space`).
    NoSpace,
    /// The file system can only be read (`read_only`).
    ReadOnly,
    /// Storage of either end, for any other reason: what it said is in the text (`storage`).
    Storage,
    /// A file of the source changed or vanished while it was read (`changed`).
    Changed,
    /// The far end could not be reached, or the connection to it was lost (`network`). To try again may help.
    Network,
    /// The far end was not started: there is no ssh program here, ssh has no login there or does not know the
    /// host, or no haul runs there and none could be brought (`launch`). To try again does not help; somebody
    /// has to install or allow something.
    Launch,
    /// The other end is of another version, or did what no haul of its version does (`peer`).
    Peer,
    /// The owner of an end forbids it (`refused`).
    Refused,
    /// This host lacked a thread, memory or the like, or haul has a fault (`local`).
    Local,
}

/// What ssh says where another attempt does not help: the key of the host is another one, or that host wants
/// another key of the user's.
const NO_LOGIN: [&str; 3] =
    ["Host key verification failed", "Permission denied (", "Too many authentication failures"];

impl Error {
    /// An error of this kind, of which no more is known than the sentence.
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> Error {
        Error { kind, text: text.into(), errno: None, end: None, path: None }
    }

    /// What the system call that failed said, if one did; as the host has it that made the call.
    pub fn errno(&self) -> Option<i32> {
        self.errno
    }

    /// The end that it happened at, if it was one of the two. Whether that is here or at another host is what
    /// the caller asked for.
    pub fn end(&self) -> Option<Role> {
        self.end
    }

    /// The source or the destination that it is about, as the caller named it. Files below them that are not
    /// copied end no run: [`Event::Failed`](crate::api::Event::Failed) names these.
    pub fn path(&self) -> Option<&[u8]> {
        self.path.as_deref()
    }

    pub(crate) fn usage(text: impl Into<String>) -> Error {
        Error::new(ErrorKind::Usage, text)
    }

    pub(crate) fn local(text: impl Into<String>) -> Error {
        Error::new(ErrorKind::Local, text)
    }

    /// A system call on storage failed.
    pub(crate) fn system(text: impl Into<String>, errno: i32) -> Error {
        Error::new(ErrorKind::of_errno(errno), text).with_errno(errno)
    }

    /// What an end says of itself as a whole.
    pub(crate) fn failed(failure: &Failure) -> Error {
        let kind = ErrorKind::of(failure.kind, failure.errno);
        let error = Error::new(kind, &*failure.text).with_errno(failure.errno);
        Error { end: end_of(failure.kind), ..error }
    }

    /// The far end, which is the `far` one, was not reached or not started.
    pub(crate) fn launch(error: &BootstrapError, far: Role) -> Error {
        let kind = match (error.kind, error.ssh_exit) {
            (BootstrapKind::Usage, _) => ErrorKind::Usage,
            // ssh says it in English whatever the locale.
            (BootstrapKind::Ssh, Some(255)) if NO_LOGIN.iter().any(|words| error.what.contains(words)) => {
                ErrorKind::Launch
            }
            // 255 is ssh's own. Any other code is that of what ssh ran there, or of the shell that found no
            // ssh here.
            (BootstrapKind::Ssh, None | Some(255)) => ErrorKind::Network,
            (BootstrapKind::Closed, _) => ErrorKind::Network,
            (BootstrapKind::Ssh | BootstrapKind::Chatter, _) => ErrorKind::Launch,
            (BootstrapKind::Kernel | BootstrapKind::NoProgram | BootstrapKind::Push, _) => ErrorKind::Launch,
            (BootstrapKind::Version | BootstrapKind::Peer, _) => ErrorKind::Peer,
            (BootstrapKind::Refused, _) => ErrorKind::Refused,
            // Nobody is told of it: the copy was stopped.
            (BootstrapKind::Local | BootstrapKind::Stopped, _) => ErrorKind::Local,
        };
        let end = match error.kind {
            BootstrapKind::Chatter | BootstrapKind::Kernel | BootstrapKind::NoProgram => Some(far),
            BootstrapKind::Push | BootstrapKind::Version | BootstrapKind::Peer => Some(far),
            BootstrapKind::Refused => Some(far),
            BootstrapKind::Local => Some(far.other()),
            BootstrapKind::Usage | BootstrapKind::Ssh | BootstrapKind::Closed => None,
            BootstrapKind::Stopped => None,
        };
        let errno = error.source.as_ref().and_then(std::io::Error::raw_os_error);
        Error { end, errno, ..Error::new(kind, error.to_string()) }
    }

    /// 0: no system call failed.
    pub(crate) fn with_errno(self, errno: i32) -> Error {
        Error { errno: Some(errno).filter(|errno| *errno != 0), ..self }
    }

    /// It is about this path, of this end.
    pub(crate) fn about(self, end: Role, path: Option<&[u8]>) -> Error {
        Error { end: Some(end), path: path.map(Into::into), ..self }
    }
}

/// The end that does what fails so.
fn end_of(kind: FailureKind) -> Option<Role> {
    match kind {
        FailureKind::Walk
        | FailureKind::Open
        | FailureKind::Read
        | FailureKind::Changed
        | FailureKind::Vanished => Some(Role::Source),
        FailureKind::Create
        | FailureKind::Write
        | FailureKind::Sync
        | FailureKind::Publish
        | FailureKind::Metadata => Some(Role::Sink),
        FailureKind::Digest
        | FailureKind::Protocol
        | FailureKind::Usage
        | FailureKind::Local
        | FailureKind::Network => None,
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Error {}

impl ErrorKind {
    /// The kind as JSON has it.
    pub fn name(self) -> &'static str {
        match self {
            ErrorKind::Usage => "usage",
            ErrorKind::NotFound => "not_found",
            ErrorKind::Permission => "permission",
            ErrorKind::NoSpace => "no_space",
            ErrorKind::ReadOnly => "read_only",
            ErrorKind::Storage => "storage",
            ErrorKind::Changed => "changed",
            ErrorKind::Network => "network",
            ErrorKind::Launch => "launch",
            ErrorKind::Peer => "peer",
            ErrorKind::Refused => "refused",
            ErrorKind::Local => "local",
        }
    }

    /// Whose fault it is that this failed, where a system call said `errno` (0: none did).
    pub(crate) fn of(kind: FailureKind, errno: i32) -> ErrorKind {
        match kind {
            FailureKind::Usage => ErrorKind::Usage,
            FailureKind::Changed | FailureKind::Vanished => ErrorKind::Changed,
            FailureKind::Protocol => ErrorKind::Peer,
            FailureKind::Network => ErrorKind::Network,
            FailureKind::Local => ErrorKind::Local,
            FailureKind::Walk
            | FailureKind::Open
            | FailureKind::Read
            | FailureKind::Create
            | FailureKind::Write
            | FailureKind::Sync
            | FailureKind::Publish
            | FailureKind::Metadata
            | FailureKind::Digest => ErrorKind::of_errno(errno),
        }
    }

    /// What storage said. It may be the other end's, and so any number.
    fn of_errno(errno: i32) -> ErrorKind {
        let known = [
            (Errno::NOENT, ErrorKind::NotFound),
            (Errno::ACCESS, ErrorKind::Permission),
            (Errno::PERM, ErrorKind::Permission),
            (Errno::NOSPC, ErrorKind::NoSpace),
            (Errno::DQUOT, ErrorKind::NoSpace),
            (Errno::ROFS, ErrorKind::ReadOnly),
            (Errno::MFILE, ErrorKind::Local),
            (Errno::NFILE, ErrorKind::Local),
            (Errno::NOMEM, ErrorKind::Local),
        ];
        let found = known.iter().find(|(known, _)| known.raw_os_error() == errno);
        found.map_or(ErrorKind::Storage, |(_, kind)| *kind)
    }
}

/// What failed at an entry. The words in brackets are those of JSON, where they are the `stage`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// A directory of the source was not read, or something in it is nothing that can be copied (`walk`).
    Walk,
    /// A file of the source was not opened (`open`).
    Open,
    /// It was not read (`read`).
    Read,
    /// It was read, and changed meanwhile (`changed`).
    Changed,
    /// It was there when its directory was read, and was there no more when it was to be read (`vanished`).
    Vanished,
    /// The entry was not made at the destination (`create`).
    Create,
    /// It was not written (`write`).
    Write,
    /// It was written, and did not get onto media (`sync`).
    Sync,
    /// It was complete, and did not get its name (`publish`).
    Publish,
    /// Its mode, times, owner or the like were not set (`metadata`).
    Metadata,
    /// What was read again was not what had been written (`digest`).
    Digest,
    /// The other end did what no haul of its version does (`protocol`).
    Protocol,
    /// What was asked for makes no sense (`usage`).
    Usage,
    /// The host lacked a thread, memory or the like (`local`).
    Local,
    /// The connection to the other end was lost (`network`).
    Network,
}

impl Operation {
    /// All of them.
    pub const ALL: &'static [Operation] = &[
        Operation::Walk,
        Operation::Open,
        Operation::Read,
        Operation::Changed,
        Operation::Vanished,
        Operation::Create,
        Operation::Write,
        Operation::Sync,
        Operation::Publish,
        Operation::Metadata,
        Operation::Digest,
        Operation::Protocol,
        Operation::Usage,
        Operation::Local,
        Operation::Network,
    ];

    /// The operation as JSON has it.
    pub fn name(self) -> &'static str {
        self.kind().name()
    }

    fn kind(self) -> FailureKind {
        match self {
            Operation::Walk => FailureKind::Walk,
            Operation::Open => FailureKind::Open,
            Operation::Read => FailureKind::Read,
            Operation::Changed => FailureKind::Changed,
            Operation::Vanished => FailureKind::Vanished,
            Operation::Create => FailureKind::Create,
            Operation::Write => FailureKind::Write,
            Operation::Sync => FailureKind::Sync,
            Operation::Publish => FailureKind::Publish,
            Operation::Metadata => FailureKind::Metadata,
            Operation::Digest => FailureKind::Digest,
            Operation::Protocol => FailureKind::Protocol,
            Operation::Usage => FailureKind::Usage,
            Operation::Local => FailureKind::Local,
            Operation::Network => FailureKind::Network,
        }
    }
}

impl From<FailureKind> for Operation {
    fn from(kind: FailureKind) -> Operation {
        match kind {
            FailureKind::Walk => Operation::Walk,
            FailureKind::Open => Operation::Open,
            FailureKind::Read => Operation::Read,
            FailureKind::Changed => Operation::Changed,
            FailureKind::Vanished => Operation::Vanished,
            FailureKind::Create => Operation::Create,
            FailureKind::Write => Operation::Write,
            FailureKind::Sync => Operation::Sync,
            FailureKind::Publish => Operation::Publish,
            FailureKind::Metadata => Operation::Metadata,
            FailureKind::Digest => Operation::Digest,
            FailureKind::Protocol => Operation::Protocol,
            FailureKind::Usage => Operation::Usage,
            FailureKind::Local => Operation::Local,
            FailureKind::Network => Operation::Network,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each operation is one of core's, and each has its own word.
    #[test]
    fn operations_are_those_of_core() {
        let mut words: Vec<_> = Operation::ALL.iter().map(|operation| operation.name()).collect();
        assert!(Operation::ALL.iter().all(|operation| Operation::from(operation.kind()) == *operation));
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), Operation::ALL.len());
    }

    /// Goal: storage that says why is told apart, and what is no matter of storage is not.
    #[test]
    fn an_errno_of_storage_tells_the_kind() {
        for (errno, kind) in [
            (Errno::NOENT, ErrorKind::NotFound),
            (Errno::ACCESS, ErrorKind::Permission),
            (Errno::PERM, ErrorKind::Permission),
            (Errno::NOSPC, ErrorKind::NoSpace),
            (Errno::DQUOT, ErrorKind::NoSpace),
            (Errno::ROFS, ErrorKind::ReadOnly),
            (Errno::IO, ErrorKind::Storage),
        ] {
            let errno = errno.raw_os_error();
            assert_eq!(ErrorKind::of(FailureKind::Write, errno), kind);
            assert_eq!(ErrorKind::of(FailureKind::Network, errno), ErrorKind::Network);
        }
        assert_eq!(ErrorKind::of(FailureKind::Vanished, 2), ErrorKind::Changed);
        for errno in [0, -1, 4096, i32::MIN, i32::MAX] {
            assert_eq!(ErrorKind::of(FailureKind::Create, errno), ErrorKind::Storage, "from a peer");
        }
    }
}
