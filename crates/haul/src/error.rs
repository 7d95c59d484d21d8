//! Why a call failed.

use std::fmt;

use haul_core::wire::FailureKind;
use haul_launch::{BootstrapError, BootstrapKind};

/// Why a call failed: whose fault it is, to be matched on, and a sentence for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Whose fault it is.
    pub kind: ErrorKind,
    /// One sentence: what was done to what, the cause, and what to do.
    pub text: String,
}

/// Whose fault it is that a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The call makes no sense as it stands, and nothing was done.
    Usage,
    /// Storage of either end: what it said, and at what path, is in the text.
    Storage,
    /// A file of the source changed or vanished while it was read.
    Changed,
    /// The far end could not be reached or started, or the connection to it was lost.
    Network,
    /// The other end is of another version, or did what no haul of its version does.
    Peer,
    /// The owner of an end forbids it.
    Refused,
    /// This host lacked a thread, memory or the like, or haul has a fault.
    Local,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, text: impl Into<String>) -> Error {
        Error { kind, text: text.into() }
    }

    pub(crate) fn usage(text: impl Into<String>) -> Error {
        Error::new(ErrorKind::Usage, text)
    }

    pub(crate) fn local(text: impl Into<String>) -> Error {
        Error::new(ErrorKind::Local, text)
    }

    pub(crate) fn storage(text: impl Into<String>) -> Error {
        Error::new(ErrorKind::Storage, text)
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
            ErrorKind::Storage => "storage",
            ErrorKind::Changed => "changed",
            ErrorKind::Network => "network",
            ErrorKind::Peer => "peer",
            ErrorKind::Refused => "refused",
            ErrorKind::Local => "local",
        }
    }

    /// Whose fault a failure in this stage is.
    pub(crate) fn of(kind: FailureKind) -> ErrorKind {
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
            | FailureKind::Digest => ErrorKind::Storage,
        }
    }
}

impl From<BootstrapError> for Error {
    fn from(error: BootstrapError) -> Error {
        let kind = match error.kind {
            BootstrapKind::Usage => ErrorKind::Usage,
            BootstrapKind::Ssh | BootstrapKind::Closed | BootstrapKind::Chatter => ErrorKind::Network,
            BootstrapKind::Kernel | BootstrapKind::NoProgram | BootstrapKind::Push => ErrorKind::Network,
            BootstrapKind::Version | BootstrapKind::Peer => ErrorKind::Peer,
            BootstrapKind::Refused => ErrorKind::Refused,
            BootstrapKind::Local => ErrorKind::Local,
        };
        Error::new(kind, error.to_string())
    }
}
