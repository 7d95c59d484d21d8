//! What the transfers have in common: how one ends.

use std::io;

use haul_gridftp::FtpError;

use crate::config::STALL_MAX;
use crate::control::{Abort, End};
use crate::part::Failed;
use crate::tree::Lost;

/// Why a transfer did not come to its end.
#[derive(Debug)]
pub enum Stop {
    Abort(Abort),
    /// A data connection.
    Data(io::Error),
    /// What came through one is not what must come.
    Wire(FtpError),
    /// An upload's file.
    Upload(Failed),
    /// A file or directory that is read.
    Read(Lost),
    /// A file that is shorter than it was.
    Shrank,
    /// The connections that were to come did not, or ended too early.
    Missing(&'static str),
    /// A data node; code and words of the reply.
    Node(u16, String),
}

impl From<Abort> for Stop {
    fn from(abort: Abort) -> Stop {
        Stop::Abort(abort)
    }
}
impl From<Failed> for Stop {
    fn from(failed: Failed) -> Stop {
        Stop::Upload(failed)
    }
}
impl From<Lost> for Stop {
    fn from(lost: Lost) -> Stop {
        Stop::Read(lost)
    }
}
impl From<FtpError> for Stop {
    fn from(error: FtpError) -> Stop {
        Stop::Wire(error)
    }
}

impl Stop {
    /// Code and words of the reply.
    pub fn reply(&self) -> (u16, String) {
        let text = |error: &io::Error| haul_base::errno::text(error);
        match self {
            Stop::Abort(Abort::Asked) => (426, "The transfer was aborted, as you asked.".into()),
            Stop::Abort(Abort::Late) => {
                (426, format!("No data connection moved for {} s.", STALL_MAX.as_secs()))
            }
            Stop::Abort(Abort::Gone(End::Orphaned | End::Stopping)) => (421, "The server ends.".into()),
            Stop::Abort(Abort::Gone(_)) => (426, "The control connection is gone.".into()),
            Stop::Data(error) => (426, format!("The data connection failed: {}.", text(error))),
            Stop::Wire(error) => {
                (426, format!("What came through a data connection is not MODE E: {error}."))
            }
            // What somebody else has done with its part is not known.
            Stop::Upload(failed @ Failed::Moved) => (failed.code(), format!("The upload failed: {failed}.")),
            Stop::Upload(failed) => (failed.code(), format!("Nothing was changed: {failed}.")),
            Stop::Read(lost) => (451, format!("It cannot be read: {lost}.")),
            Stop::Shrank => (451, "The file became shorter while it was read.".into()),
            Stop::Missing(what) => (426, format!("{what}.")),
            Stop::Node(code, why) => (*code, format!("{why}.")),
        }
    }
}
