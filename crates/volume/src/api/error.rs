//! Why something of a volume was not done: with what, and what to do.

use std::io;

use haul_core::volume::catalog::Failure;
use rustix::io::Errno;

use crate::client::VolumeError;

/// Why something was not done.
///
/// As an [`io::Error`] it has the kind of the system's error and this text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {doing} {what}: {why}{}", .why.remedy())]
pub struct Error {
    doing: &'static str,
    /// A path, as it is shown.
    what: String,
    why: Why,
}

/// What was in the way.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Why {
    /// Servers did not do it.
    #[error(transparent)]
    Servers(VolumeError),
    /// The catalog did not.
    #[error("{}", .0.words)]
    Catalog(Failure),
    /// It cannot be, whoever is asked: a number of the system's errors, and why.
    #[error("{1}")]
    Refused(i32, String),
}

impl Why {
    pub(super) fn refused(errno: Errno, why: impl Into<String>) -> Why {
        Why::Refused(errno.raw_os_error(), why.into())
    }

    fn remedy(&self) -> &'static str {
        match self {
            Why::Servers(VolumeError::Late(..)) => {
                "; it may still be done. See which of the volume's servers are away, and start them again"
            }
            Why::Servers(VolumeError::Lost(_)) => "; write it again",
            Why::Servers(why) if why.is_loss() => {
                "; bring that server's files back, or write it anew; `haul volume fsck` names all that are so"
            }
            _ => "",
        }
    }
}

impl From<VolumeError> for Why {
    fn from(why: VolumeError) -> Why {
        Why::Servers(why)
    }
}

impl From<Failure> for Why {
    fn from(why: Failure) -> Why {
        Why::Catalog(why)
    }
}

impl Error {
    pub(super) fn new(doing: &'static str, what: impl Into<String>, why: impl Into<Why>) -> Error {
        Error { doing, what: what.into(), why: why.into() }
    }

    /// What was in the way.
    pub fn why(&self) -> &Why {
        &self.why
    }

    /// The system's error that is nearest to it, by its number.
    pub fn errno(&self) -> i32 {
        let errno = match &self.why {
            Why::Catalog(Failure { errno, .. })
            | Why::Refused(errno, _)
            | Why::Servers(VolumeError::Failed(_, errno)) => return *errno,
            Why::Servers(VolumeError::Range) => Errno::FBIG,
            Why::Servers(
                VolumeError::Lost(_) | VolumeError::Missing { .. } | VolumeError::OtherLength { .. },
            ) => Errno::IO,
            Why::Servers(VolumeError::Gone) => Errno::NOENT,
            Why::Servers(VolumeError::Busy) => Errno::BUSY,
            Why::Servers(VolumeError::Late(..)) => Errno::TIMEDOUT,
            Why::Servers(VolumeError::Closed) => Errno::BADF,
            Why::Servers(VolumeError::Unplaced) => Errno::STALE,
        };
        errno.raw_os_error()
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        io::Error::new(io::Error::from_raw_os_error(error.errno()).kind(), error)
    }
}

/// One of several ranges or blocks failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error} (number {number} of what was asked for, from 0)")]
pub struct OneFailed {
    /// Which one, in the order in which they were given, from 0: of those that failed the first that was
    /// known to.
    pub number: usize,
    /// Why.
    pub error: Error,
}
