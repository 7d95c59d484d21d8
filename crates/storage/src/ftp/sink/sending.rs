//! A file on its way to a server: in blocks, or as it is.
//!
//! In: a session, a file's bytes in their order. Out: the server's word that it has all, or why not.

use std::sync::Arc;

use haul_core::ids::FileId;
use haul_ftp::{Error, Going, Outgoing, Ranges, Session};

use super::lanes::Lanes;
use super::standing::Standing;
use super::sums::FileSumming;
use crate::ftp::share::Active;

/// A file that a session is in the middle of.
pub(super) struct Open {
    pub(super) id: FileId,
    /// The byte that comes next.
    pub(super) at: u64,
    /// What it is called as long as it is not whole.
    pub(super) temp: Vec<u8>,
    /// None as long as what stands there is compared, and if nothing is missing.
    pub(super) sending: Option<Sending>,
    /// What stands there of it, as long as that is compared.
    pub(super) standing: Option<Standing>,
    /// Where it goes on behind what is believed: the bytes before that, and where they begin.
    pub(super) tail: Option<(u64, Vec<u8>)>,
    /// The sum of what came of it; elsewhere while more comes.
    pub(super) summing: Option<FileSumming>,
}

/// A file on its way.
pub(super) enum Sending {
    /// Over one connection, as it is.
    Plain(Outgoing),
    Blocks {
        going: Going,
        _active: Active,
    },
}

impl Sending {
    /// Has the server begin to take a file, over so many connections in blocks, from this byte on; up to that
    /// it has it.
    ///
    /// # Errors
    /// It does not.
    pub(super) fn begin(
        session: &mut Session,
        lanes: &Arc<Lanes>,
        (temp, at, size): (&[u8], u64, u64),
        connections: Option<u32>,
    ) -> Result<Sending, Error> {
        let Some(connections) = connections else {
            return session.store_from(temp, at).map(Sending::Plain);
        };
        if lanes.is_unkept() {
            session.close_outlets();
        }
        if at > 0 {
            let _active = lanes.begin(connections);
            let going = session.next_store_from(temp, (at, size), connections)?;
            return Ok(Sending::Blocks { going, _active });
        }
        session.line_up_stores(&[temp], connections)?;
        let _active = lanes.begin(connections);
        Ok(Sending::Blocks { going: session.next_store(temp, size)?, _active })
    }

    /// Sends its next bytes.
    ///
    /// # Errors
    /// They do not go. Why, [`Sending::broken_off`] says.
    pub(super) fn write(&mut self, session: Result<&mut Session, Error>, bytes: &[u8]) -> Result<(), Error> {
        match self {
            Sending::Plain(outgoing) => outgoing.write(bytes),
            Sending::Blocks { going, .. } => session.and_then(|session| session.send(going, bytes)),
        }
    }

    /// Ends it: the server's word that it has all of it. `more`: another one follows.
    ///
    /// # Errors
    /// It has not, or nobody knows.
    pub(super) fn stored(self, session: &mut Session, temp: &[u8], more: bool) -> Result<(), Error> {
        match self {
            Sending::Plain(outgoing) => session.stored(outgoing, temp, more),
            Sending::Blocks { going, .. } => session.sent(going),
        }
    }

    /// Why it broke, in the server's words where it has some.
    pub(super) fn broken_off(self, session: &mut Session, temp: &[u8], error: Error) -> Error {
        match self {
            Sending::Plain(outgoing) => session.broken_off(outgoing, temp, error),
            // It was heard already.
            Sending::Blocks { .. } => error,
        }
    }

    /// What the server says that it has so far, where it says anything.
    pub(super) fn safe(&self) -> Option<&Ranges> {
        match self {
            Sending::Plain(_) => None,
            Sending::Blocks { going, .. } => Some(going.safe()).filter(|safe| !safe.is_empty()),
        }
    }

    pub(super) fn is_in_blocks(&self) -> bool {
        matches!(self, Sending::Blocks { .. })
    }
}
