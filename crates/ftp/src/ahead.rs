//! Where the server listens for the next file, asked before it said its word on the one that goes.
//!
//! In: the two answers, of which one is to `EPSV` and one is the word on the file. Out: that word, and where
//! the server listens, if it told that.
//! Invariant: a file counts as taken only where one of the two can be nothing else than the server's word
//! that it has it: `226` or `250`, which no `EPSV` is answered by, and the other one a place behind it, or a
//! refusal by a number that is of commands, or by `450` in words that name `EPSV` (ProFTPD). Of all other
//! pairs nothing is believed: the session is over, the file goes again, and the server is not asked so any
//! more.
//!
//! A server that obeys `EPSV` while it still takes the file may have ended that for it (pyftpdlib closes the
//! data connection). So a file is doubted whatever is said of it behind a place, and nothing is asked of a
//! server that tells no length by which a file that was cut off would show.

use std::net::IpAddr;

use haul_gridftp::command::Command;
use haul_gridftp::reply::{Class, Reply};

use crate::control::said;
use crate::data::told_place;
use crate::store::SILENT_MIN;
use crate::{Error, Session};

/// What an answer can be where one is to `EPSV` and one to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    /// That the file is there, and nothing else.
    Stored,
    /// That the file is not there, and nothing else.
    Lost,
    /// Where the server listens, and nothing else.
    Place,
    /// That `EPSV` is not for now, or not known; by few servers, that the file is not there.
    Refused,
    Other,
}

/// The server says by its words that this is of `EPSV`.
fn names_epsv(reply: &Reply) -> bool {
    reply.lines().iter().any(|line| line.to_ascii_uppercase().windows(4).any(|word| word == b"EPSV"))
}

impl Session {
    /// Asks where the server listens for the next file, if that may be asked now: from where it does.
    pub(crate) fn ask_ahead(&mut self, more: bool) -> Result<Option<IpAddr>, Error> {
        let tells_lengths = self.features.has("SIZE") || self.features.mlst().next().is_some();
        let may = more && !self.control.nodes.are_elsewhere() && tells_lengths;
        let host = self.control.host().ok().flatten().filter(|_| may);
        let Some(pause) = self.listens.asks_ahead(self.control.quickest()).filter(|_| host.is_some()) else {
            return Ok(None);
        };
        std::thread::sleep(pause);
        self.control.send(&[Command::Epsv])?;
        Ok(host)
    }

    /// Of two answers, of which this is the first, the one to the file; the other one may tell where the
    /// server listens for the next.
    ///
    /// # Errors
    /// Nobody can tell what is whose, or the word on the file does not come.
    pub(crate) fn hear_ahead(
        &mut self,
        host: IpAddr,
        stor: &Command<'_>,
        first: Reply,
    ) -> Result<Reply, Error> {
        let trip = self.control.quickest().unwrap_or_default();
        let before = self.word(stor, &first);
        // The answer to `EPSV` comes right behind the word on the file, or it never does; that word takes the
        // time that the server needs.
        let patience = match before {
            Word::Refused => self.control.patience(),
            _ => (trip * 4).max(SILENT_MIN).min(self.control.patience()),
        };
        let second = match self.control.last_reply_within(patience) {
            Ok(second) => second,
            Err(error) => {
                // The session is over. What the server said of the file alone stands.
                self.listens.set_never();
                return match before {
                    Word::Stored | Word::Lost => Ok(first),
                    Word::Place | Word::Other => self.doubted(stor, first),
                    Word::Refused => Err(error),
                };
            }
        };
        let is_no_room = |reply: &Reply| self.control.refused(stor, reply).is_no_room();
        let (first_is, second_is) = (is_no_room(&first), is_no_room(&second));
        match (before, self.word(stor, &second)) {
            (Word::Stored | Word::Lost | Word::Refused, Word::Place) => {
                match told_place(&self.control, host, &second) {
                    Ok(address) => self.listens.told(address),
                    Err(_) => self.listens.told_nothing(),
                }
                Ok(first)
            }
            (Word::Stored | Word::Lost, Word::Refused) => {
                self.listens.told_nothing();
                Ok(first)
            }
            // No port, no further command: neither is said of a file that was taken.
            (Word::Stored, Word::Lost) if matches!(second.code(), 421 | 425 | 530) && !second_is => {
                self.listens.told_nothing();
                Ok(first)
            }
            // It was busy with the file when it was asked. Who does not know what it is asked does not later.
            (Word::Refused, Word::Stored | Word::Lost) => {
                match first.class() {
                    Class::Permanent => self.listens.set_never(),
                    _ => self.listens.told_nothing(),
                }
                Ok(second)
            }
            // What tells of a full disk is no answer to `EPSV`, and ends more than this file.
            (Word::Place | Word::Lost, Word::Lost) if first_is || second_is => {
                self.listens.set_never();
                Ok(if first_is { first } else { second })
            }
            // As an `ABOR` is answered: what comes behind it cannot be told.
            (Word::Lost, _) if first.class() == Class::Transient => {
                self.listens.set_never();
                self.control.set_broken();
                Ok(first)
            }
            _ => self.doubted(stor, first),
        }
    }

    fn word(&self, stor: &Command<'_>, reply: &Reply) -> Word {
        match (reply.code(), reply.class()) {
            (226 | 250, _) => Word::Stored,
            (229, _) => Word::Place,
            (_, Class::Transient | Class::Permanent) if self.control.refused(stor, reply).is_no_room() => {
                Word::Lost
            }
            // Who ended the file for what it was asked may say so, and `226` behind it as of an `ABOR`.
            (450, _) if !names_epsv(reply) && !haul_mutant::removed("ftp-busy-servers-name-the-command") => {
                Word::Lost
            }
            (450 | 500..=504, _) => Word::Refused,
            (_, Class::Transient | Class::Permanent) => Word::Lost,
            _ => Word::Other,
        }
    }

    /// What is whose cannot be told, nor whether the file is there.
    fn doubted(&mut self, stor: &Command<'_>, first: Reply) -> Result<Reply, Error> {
        self.listens.set_never();
        if haul_mutant::removed("ftp-doubted-files-go-again") {
            return Ok(first);
        }
        self.control.set_broken();
        Err(Error::OutOfStep { said: said(stor), code: first.code() })
    }
}
