//! Looks at a file, and that the catalog was told of it: see
//! [`gather::Request::Look`](crate::volume::gather::Request::Look).
//!
//! A look waits for none of this client's own writes: whoever wants them in it syncs before.

use super::turns::NO_ANSWER;
use super::{Asked, Client, OpNo, Outcome, Where};
use crate::ids::Time;
use crate::volume::gather;
use crate::volume::{ContentVersion, FileNo};

impl<B: Clone> Client<B> {
    /// Which version of its bytes has the file? It comes to [`Outcome::Looked`], or to a failure of
    /// [`gather::BUSY`] where somebody writes all the time.
    pub fn look(&mut self, now: Time, op: OpNo, file: FileNo) {
        self.now = self.now.max(now);
        self.reads.push_back(Asked::Look { op, file });
        self.begin_reads();
    }

    /// The catalog knows of what was written up to that version. It comes to [`Outcome::Told`]; where the
    /// gatherer does not hear it, somebody will tell the catalog again.
    pub fn told(&mut self, now: Time, op: OpNo, file: FileNo, version: ContentVersion) {
        self.now = self.now.max(now);
        self.reads.push_back(Asked::Told { op, file, version });
        self.begin_reads();
    }

    pub(super) fn looked(&mut self, op: OpNo, answer: gather::Answer) {
        let outcome = match answer {
            gather::Answer::Looked { version, end, untold } => Outcome::Looked { version, end, untold },
            gather::Answer::Told { counts } => Outcome::Told { counts },
            gather::Answer::Gone => Outcome::Gone,
            gather::Answer::Failed(errno) => Outcome::Failed(Where::Gatherer, errno),
            _ => Outcome::Failed(Where::Gatherer, NO_ANSWER),
        };
        self.done(op, outcome);
    }
}
