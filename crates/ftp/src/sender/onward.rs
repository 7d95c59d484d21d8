//! A file that goes on in blocks behind what the server has of it already.
//!
//! In: how far that reaches. Out: a file on its way whose next byte is that one.
//! Invariant: the server is told what it has (`REST`) and said that it heard (`350`) before it is told to
//! take the file: else it would cut off what is there.

use haul_gridftp::command::Command;
use haul_gridftp::ranges::Ranges;

use super::Going;
use crate::{Error, Session};

impl Session {
    /// Begins a file of `size` bytes whose first `at` stand there, over so many connections.
    ///
    /// # Errors
    /// The server does not take it so.
    pub fn next_store_from(
        &mut self,
        path: &[u8],
        (at, size): (u64, u64),
        connections: u32,
    ) -> Result<Going, Error> {
        let mut have = Ranges::new();
        have.insert(0, at)?;
        self.outlets(connections)?;
        let rest = Command::RestRanges(&have);
        let reply = self.control.ask(&rest)?;
        self.control.exactly(&rest, 350, reply)?;
        self.control.send(&[Command::Path("STOR", path)])?;
        if let Some(outlets) = &mut self.outlets {
            outlets.lined_up += 1;
        }
        let mut going = self.next_store(path, size)?;
        going.at = at;
        Ok(going)
    }
}
