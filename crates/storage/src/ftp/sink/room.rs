//! Whether a server has no room, where what it says of that may be anything.
//!
//! In: a file that it took a part of, and its word. Out: that word, or a clearer one.
//! Invariants: nothing is asked behind a stop; what was put there to ask goes again, or is doubted as any
//! temporary is.
//! Why: ProFTPD says `451 ... Input/output error` where its system took a part of what it wrote, as of a disk
//! that gets full under it, and `452 ... No space left on device` where it took nothing. As long as what it
//! took stands there, the next file gets the second answer.

use haul_core::transfer::op::SinkFile;
use haul_ftp::Error;

use super::sending::Sending;
use super::writer::Writer;
use crate::sink::names::temp_name;

/// More than a file system keeps beside a file's metadata, and few enough to cost nothing.
const ASKED_LEN: usize = 256 << 10;
/// So many files are put there: the first may fill what a large one left.
const ASKS: usize = 3;

impl Writer {
    /// What the server means, which took a part of `file`: that it has no room, where it says so of a few
    /// bytes more; else `error`.
    pub(super) fn asked_of_room(&mut self, file: &SinkFile, error: Error) -> Error {
        let is_stopped = || self.common.not_begun(&[]).is_some();
        if !error.may_be_no_room() || is_stopped() || haul_mutant::removed("ftp-full-disks-are-asked-for") {
            return error;
        }
        let mut put = Vec::new();
        let mut told = None;
        for _ in 0..ASKS {
            let name = temp_name(&file.name, self.common.tag, self.common.number());
            let temp = self.common.tree.path(file.parent, &name);
            self.begins("write", &temp);
            let answer = self.put(&temp);
            put.push(temp);
            match answer {
                Err(answer) if answer.is_no_room() => {
                    told = Some(answer);
                    break;
                }
                Err(answer) if answer.may_be_no_room() => self.see(&answer),
                Err(answer) => {
                    self.see(&answer);
                    break;
                }
                Ok(()) => break,
            }
        }
        let paths: Vec<&[u8]> = put.iter().map(Vec::as_slice).collect();
        let removed = self.line.open().and_then(|session| session.remove(&paths));
        for (n, path) in put.iter().enumerate() {
            if !removed.as_ref().is_ok_and(|removed| removed.get(n).is_some_and(Result::is_ok)) {
                self.common.doubt(path.clone());
            }
        }
        if let Err(answer) = removed {
            self.see(&answer);
        }
        told.unwrap_or(error)
    }

    fn put(&mut self, temp: &[u8]) -> Result<(), Error> {
        let common = self.common.clone();
        let session = self.line.open()?;
        let sending = Sending::begin(session, &common.lanes, (temp, 0, ASKED_LEN as u64), None);
        let mut sending = sending.inspect_err(|error| common.note_refusal(temp, error))?;
        match sending.write(Ok(&mut *session), &vec![0; ASKED_LEN]) {
            Ok(()) => sending.stored(session, temp, false),
            Err(error) => Err(sending.broken_off(session, temp, error)),
        }
    }
}
