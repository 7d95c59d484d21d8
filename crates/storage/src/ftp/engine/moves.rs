//! A file that comes from another replica than before.
//!
//! In: a file, and the server that is to have it too. Out: whether it goes on there, or starts afresh.
//! Invariants: no byte of it is given away that is not of one version: what came from elsewhere before is
//! read there as well, and must be the same, byte by byte; a replica of another size is none, and with one
//! of another time the file starts afresh, as what it is there.

use haul_core::ids::{FileId, Generation};
use haul_core::wire::{Failure, FailureKind};
use haul_ftp::{Asked, Error, Incoming, Kind};

use super::came::Moved;
use super::ends::AGAIN_LEN;
use super::parts::Part;
use super::reader::Reader;
use crate::ftp::names::{Told, is_young};
use crate::ftp::session::Why;
use crate::ftp::time_of;

impl Reader {
    /// Has a file come from the server `to`, if that has it.
    pub(super) fn move_file(&mut self, id: FileId, told: &Told, to: usize) -> Result<Moved, (Why, Failure)> {
        let common = self.common.clone();
        let path = common.names.path_at(id, to).unwrap_or_default();
        let none = |why: &str| {
            let failure = common.say(to, FailureKind::Read, &path, why);
            Err((Why::lasting(FailureKind::Read, why), failure))
        };
        let asked = self.lines.open(to).and_then(|session| session.facts(&path));
        let facts = match asked {
            Ok(Asked::Is(facts)) => facts,
            Ok(Asked::Not(text) | Asked::Untold(text)) => return none(&format!("the server says: {text}")),
            Err(error) => {
                if error.ends_session() {
                    self.lines.close(to);
                }
                let failure = common.failure(to, FailureKind::Read, &path, &error);
                return Err(((&error).into(), failure));
            }
        };
        if facts.kind != Some(Kind::File) || facts.is_symlink() || facts.modify.is_none() {
            return none("this replica does not tell that it has a file there, and of when");
        }
        if facts.size != told.facts.size && !haul_mutant::removed("ftp-replicas-have-one-size") {
            return none("this replica has a file of another size there");
        }
        common.names.move_to(id, to, &facts);
        let same_time = facts.modify == told.facts.modify;
        if !same_time && !haul_mutant::removed("ftp-replicas-of-another-time-begin-anew") {
            let why = "this replica has another time there: it is read from its beginning";
            return Ok(Moved::Anew(common.say(to, FailureKind::Changed, &path, why)));
        }
        if is_young((common.clock)().secs, time_of(&facts).secs) {
            // A change from now on shows when it is looked at again.
            common.wait(common.names.settles());
        }
        Ok(Moved::GoesOn)
    }

    /// Begins to read a file at `offset`, from a server that must first show that it has `parts`, which came
    /// from another one. `None`: it has not, or they lie behind.
    pub(super) fn begin_shown(
        &mut self,
        site: usize,
        (id, generation): (FileId, Generation),
        path: &[u8],
        (parts, offset): (Vec<Part>, u64),
    ) -> Result<Option<Incoming>, Error> {
        if parts.iter().any(|part| part.at + part.len > offset) {
            return Ok(None);
        }
        let mut incoming = self.lines.open(site)?.begin(path, 0)?;
        let (mut at, mut tail) = (0, Vec::new());
        let mut parts = parts.into_iter().peekable();
        let mut buffer = Vec::new();
        while at < offset {
            // What nobody was given lies between.
            let (len, part) = match parts.peek() {
                Some(part) if part.at == at => (part.len, parts.next()),
                Some(part) if part.at < at => {
                    // They overlap, which objects do not.
                    self.lines.open(site)?.give_up(incoming)?;
                    return Ok(None);
                }
                Some(part) => ((part.at - at).min(AGAIN_LEN as u64), None),
                None => ((offset - at).min(AGAIN_LEN as u64), None),
            };
            buffer.resize(len as usize, 0);
            let read = incoming.fill(&mut buffer)?;
            self.common.network.count(read);
            self.lines.heard(site);
            at += read as u64;
            if read < buffer.len() || part.is_some_and(|part| !part.is(&buffer)) {
                self.lines.open(site)?.give_up(incoming)?;
                return Ok(None);
            }
            tail.extend_from_slice(&buffer[buffer.len().saturating_sub(AGAIN_LEN)..]);
            tail.drain(..tail.len().saturating_sub(AGAIN_LEN));
        }
        if offset > 0 && !self.common.ends.agree(id, generation, offset, &tail) {
            self.lines.open(site)?.give_up(incoming)?;
            return Ok(None);
        }
        self.common.parts.shown(id, generation, site);
        Ok(Some(incoming))
    }
}
