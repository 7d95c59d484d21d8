//! What changes something at a server: files that go there, names, directories, times and modes.
//!
//! In: paths as bytes, and the bytes of files. Out: the server's word on each, and what it says of what it
//! has.
//! Invariants: a file counts as taken only when the server said so behind its last byte, by `226` or `250`
//! ([`Session::stored`]), or why it was not; commands for many paths go out together, as many as both ends
//! take ([`together`]), and each has the answer that came in its place; a refusal is of one path, an error
//! that ends the session of all.
//! Left out: under which names files are written before they are whole, and what is compared: the store's.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use haul_gridftp::command::Command;
use haul_gridftp::line::Iac;
use haul_gridftp::reply::{Class, Reply};

use crate::control::{Control, GIVING_UP, said};
use crate::data::connected;
use crate::times::SetsTimes;
use crate::tls::Wire;
use crate::together::together;
use crate::{Error, Session};

const SENDING: &str = "sending to the server";
/// What is left of a patience, at least, when the last bytes are gone.
pub(crate) const SILENT_MIN: Duration = Duration::from_secs(1);
/// So much of a file a server makes the sum of in a second, at least.
const SUMMED_IN_A_SECOND: u64 = 16 << 20;

/// A sum of what a file holds, as `CKSM` calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sum {
    Sha256,
    Sha512,
    Sha1,
    Adler32,
}

impl Sum {
    /// From the one that says most.
    const ALL: [Sum; 4] = [Sum::Sha256, Sum::Sha512, Sum::Sha1, Sum::Adler32];

    /// As servers call it.
    pub fn name(self) -> &'static str {
        match self {
            Sum::Sha256 => "SHA256",
            Sum::Sha512 => "SHA512",
            Sum::Sha1 => "SHA1",
            Sum::Adler32 => "ADLER32",
        }
    }
}

/// How bytes go into a file that stands there, and the rest of it stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// `ESTO A`, which says just that.
    Esto,
    /// `REST` with `STOR`. What becomes of what stands behind is each server's own: some cut it off.
    Rest,
}

impl Way {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Way::Esto => "ESTO",
            Way::Rest => "REST with STOR",
        }
    }
}

/// A file that goes to a server.
pub struct Outgoing {
    stream: Wire,
    patience: Duration,
}

impl Outgoing {
    /// Sends all of it.
    ///
    /// # Errors
    /// The connection broke, or the server takes nothing for as long as the patience. Why, it may say itself:
    /// [`Session::broken_off`].
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        while !bytes.is_empty() {
            self.stream.ends_at(Instant::now() + self.patience);
            match self.stream.write(bytes) {
                Ok(0) => return Err(Error::Closed { doing: SENDING }),
                Ok(len) => bytes = &bytes[len..],
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(Error::lost(SENDING, self.patience, cause)),
            }
        }
        Ok(())
    }
}

/// One answer for each of some commands; an error of the whole ends the session.
pub type Each<T> = Result<Vec<Result<T, Error>>, Error>;

impl Session {
    /// Begins to send a file, which stands there under this name from now on.
    ///
    /// # Errors
    /// The server does not take it.
    pub fn store(&mut self, path: &[u8]) -> Result<Outgoing, Error> {
        self.store_from(path, 0)
    }

    /// The same, of a file that stands there up to this byte, from which on it is sent.
    ///
    /// # Errors
    /// The server does not take it so.
    pub fn store_from(&mut self, path: &[u8], at: u64) -> Result<Outgoing, Error> {
        self.leave_blocks()?;
        let rest = [Command::Rest(at)];
        let before = if at > 0 { &rest[..] } else { &[] };
        let stor = Command::Path("STOR", path);
        // Who refuses the one and obeys the other cuts off what stands there.
        let heard_first = !haul_mutant::removed("ftp-places-are-heard-before-files");
        let stream = connected(&mut self.control, &mut self.listens, (before, heard_first), stor)?;
        Ok(Outgoing { stream, patience: self.control.patience() })
    }

    /// Begins to send bytes into a file that stands there, from this byte of it on.
    ///
    /// # Errors
    /// The server does not take them.
    pub fn store_into(&mut self, path: &[u8], at: u64, way: Way) -> Result<Outgoing, Error> {
        if way == Way::Rest {
            return self.store_from(path, at);
        }
        self.leave_blocks()?;
        let esto = Command::Esto { offset: at, path };
        let stream = connected(&mut self.control, &mut self.listens, (&[], false), esto)?;
        Ok(Outgoing { stream, patience: self.control.patience() })
    }

    /// Whether the server says that it takes bytes into a file that stands there (`ESTO`).
    pub fn can_write_into(&self) -> bool {
        self.features.has("ESTO")
    }

    /// Whether the server says that it takes files from another byte on than the first.
    pub fn can_go_on(&self) -> bool {
        self.features.has_rest_stream()
    }

    /// Ends a file: the server's word that it has all of it. `more`: another one is sent next, so that the
    /// server is asked at the same time where it listens for that.
    ///
    /// # Errors
    /// It has not, or nobody knows.
    pub fn stored(&mut self, mut outgoing: Outgoing, path: &[u8], more: bool) -> Result<(), Error> {
        let (patience, begun) = (self.control.patience(), Instant::now());
        outgoing.stream.ends_at(begun + patience);
        let ended = outgoing.stream.end_writing().map_err(|cause| Error::lost(SENDING, patience, cause));
        if let Err(error) = ended {
            return Err(self.broken_off(outgoing, path, error));
        }
        let ahead = self.ask_ahead(more)?;
        outgoing.stream.hear_out(Instant::now() + GIVING_UP.min(patience));
        drop(outgoing);
        // All of that is one silence.
        let left = patience.saturating_sub(begun.elapsed()).max(SILENT_MIN.min(patience));
        let reply = self.control.last_reply_within(left)?;
        let stor = Command::Path("STOR", path);
        let reply = match ahead {
            Some(host) => self.hear_ahead(host, &stor, reply)?,
            None => reply,
        };
        match (reply.code(), reply.class()) {
            (226 | 250, _) => Ok(()),
            // It is of something else, and so may be what comes next.
            (code, Class::Completed) if !haul_mutant::removed("ftp-files-have-words-of-their-own") => {
                self.control.set_broken();
                Err(Error::OutOfStep { said: said(&stor), code })
            }
            (_, Class::Completed) => Ok(()),
            _ => Err(self.control.refused(&stor, &reply)),
        }
    }

    /// A file whose connection broke while it was sent: why, in the server's words where it has some.
    pub fn broken_off(&mut self, outgoing: Outgoing, path: &[u8], error: Error) -> Error {
        drop(outgoing);
        let patience = match error.is_silence() {
            // It has been waited for.
            true => Duration::ZERO,
            false => GIVING_UP.min(self.control.patience()),
        };
        match self.control.last_reply_within(patience) {
            Ok(reply) if !matches!(reply.class(), Class::Completed) => {
                self.control.refused(&Command::Path("STOR", path), &reply)
            }
            // It says that it has all of it, and did not take it.
            Ok(_) | Err(_) => error,
        }
    }

    /// Ends a file of which no more is sent. A part of it stands there.
    ///
    /// # Errors
    /// The session is over.
    pub fn abandon(&mut self, outgoing: Outgoing) -> Result<(), Error> {
        drop(outgoing);
        self.control.last_reply_within(GIVING_UP.min(self.control.patience())).map(drop)
    }

    /// Makes directories. Where one is answered by the word on something else, what was made of them is not
    /// known ([`Error::OutOfStep`]).
    ///
    /// # Errors
    /// The session is over.
    pub fn make_dirs(&mut self, paths: &[&[u8]]) -> Each<()> {
        let commands: Vec<_> = paths.iter().map(|path| Command::Path("MKD", path)).collect();
        let replies = self.each(&commands, self.control.patience())?;
        let mut made = Vec::with_capacity(commands.len());
        for (command, reply) in commands.iter().zip(replies) {
            let made_it = reply.and_then(|reply| word_on_dir(&self.control, command, reply));
            if let Err(error @ Error::OutOfStep { .. }) = made_it {
                self.control.set_broken();
                return Err(error);
            }
            made.push(made_it);
        }
        Ok(made)
    }

    /// Removes files.
    ///
    /// # Errors
    /// The session is over.
    pub fn remove(&mut self, paths: &[&[u8]]) -> Each<()> {
        let commands: Vec<_> = paths.iter().map(|path| Command::Path("DELE", path)).collect();
        self.each_done(&commands)
    }

    /// Gives files other names.
    ///
    /// # Errors
    /// The session is over.
    pub fn rename(&mut self, names: &[(&[u8], &[u8])]) -> Each<()> {
        let pairs = names.iter().map(|(from, to)| [Command::Path("RNFR", from), Command::Path("RNTO", to)]);
        let commands: Vec<_> = pairs.flatten().collect();
        let mut replies = self.each(&commands, self.control.patience())?.into_iter();
        let mut all = Vec::new();
        for pair in commands.chunks(2) {
            let (from, to) = (replies.next().expect("one for each"), replies.next().expect("one for each"));
            all.push(match from {
                Ok(from) if from.code() == 350 => to.and_then(|to| self.control.done(&pair[1], to)).map(drop),
                Ok(from) => Err(self.control.refused(&pair[0], &from)),
                Err(error) => Err(error),
            });
        }
        Ok(all)
    }

    /// What the server says of renaming something that is not there: why nothing can be renamed, perhaps, or
    /// that it is not there. `None`: it would take another name for it.
    ///
    /// # Errors
    /// The session is over, or of no use.
    pub fn refuses_rename(&mut self, nothing: &[u8]) -> Result<Option<Error>, Error> {
        let (from, to) = (Command::Path("RNFR", nothing), Command::Path("RNTO", nothing));
        let reply = self.each(&[from], self.control.patience())?.remove(0)?;
        match reply.code() {
            350 => {
                // There are servers that take nothing else behind that. Nothing gets its own name.
                self.each(&[to], self.control.patience())?;
                Ok(None)
            }
            400.. => Ok(Some(self.control.refused(&from, &reply))),
            code => Err(Error::OutOfStep { said: said(&from), code }),
        }
    }

    /// Says when files and directories were changed (`YYYYMMDDHHMMSS`, UTC). `None`: the server knows no way
    /// to be told.
    ///
    /// # Errors
    /// The session is over.
    pub fn set_times(&mut self, times: &[(&[u8], &str)]) -> Result<Option<Vec<Result<(), Error>>>, Error> {
        loop {
            let lines: Vec<Vec<u8>> = times
                .iter()
                .map(|(path, moment)| {
                    let before = match self.sets_times {
                        SetsTimes::SiteUtime => format!("UTIME {moment} "),
                        _ => format!("{moment} "),
                    };
                    [before.as_bytes(), path].concat()
                })
                .collect();
            let commands: Vec<Command<'_>> = match self.sets_times {
                SetsTimes::Mfmt => {
                    times.iter().map(|(path, moment)| Command::Mfmt { moment, path }).collect()
                }
                SetsTimes::SiteUtime => lines.iter().map(|line| Command::With("SITE", line)).collect(),
                SetsTimes::Mdtm => lines.iter().map(|line| Command::With("MDTM", line)).collect(),
                SetsTimes::Never => return Ok(None),
            };
            let all = self.each_done(&commands)?;
            let is_known = all.iter().any(Result::is_ok);
            self.did_times |= is_known;
            if is_known || all.is_empty() {
                return Ok(Some(all));
            }
            // What a server without a way says of `SITE` is its own. The last one it takes for a question
            // about a path that it has not, and those that have it refuse it for directories.
            let is_no_way = |error: &Error| match self.sets_times {
                SetsTimes::SiteUtime => matches!(error, Error::Refused { code: 500..=599, .. }),
                _ => error.is_unknown(),
            };
            if all.iter().all(|one| one.as_ref().is_err_and(is_no_way)) {
                self.sets_times = self.sets_times.next();
                continue;
            }
            return Ok(Some(all));
        }
    }

    /// Sets the modes of files and directories. `None`: the server does not know how.
    ///
    /// # Errors
    /// The session is over.
    pub fn set_modes(&mut self, modes: &[(&[u8], u32)]) -> Result<Option<Vec<Result<(), Error>>>, Error> {
        if !self.sets_modes {
            return Ok(None);
        }
        let mode = |(path, mode): &(&'_ [u8], u32)| (mode & 0o7777, path.to_vec());
        let owned: Vec<(u32, Vec<u8>)> = modes.iter().map(mode).collect();
        let commands: Vec<_> =
            owned.iter().map(|(mode, path)| Command::SiteChmod { mode: *mode, path }).collect();
        let all = self.each_done(&commands)?;
        self.did_modes |= all.iter().any(Result::is_ok);
        let unknown = |one: &Result<(), Error>| one.as_ref().is_err_and(Error::is_unknown);
        if !all.is_empty() && all.iter().all(unknown) {
            self.sets_modes = false;
            return Ok(None);
        }
        Ok(Some(all))
    }

    /// The sum that the server makes of what it holds, if it makes one that is known here: the strongest.
    pub fn sum(&self) -> Option<Sum> {
        let has = |sum: &Sum| {
            self.features.sums().any(|(name, _)| name.eq_ignore_ascii_case(sum.name().as_bytes()))
        };
        Sum::ALL.into_iter().find(has)
    }

    /// The sums of what the server holds of these files, of this many bytes each, as it makes them now.
    ///
    /// # Errors
    /// The session is over.
    pub fn sums(&mut self, sum: Sum, files: &[(&[u8], u64)]) -> Each<Vec<u8>> {
        let cksm = |(path, _): &(&'_ [u8], u64)| (path.to_vec(), 0, None);
        let bytes: u64 = files.iter().fold(0, |all, (_, len)| all.saturating_add(*len));
        self.each_sum(sum, &files.iter().map(cksm).collect::<Vec<_>>(), bytes)
    }

    /// The sums of parts of one file, each from an offset on and so many bytes long.
    ///
    /// # Errors
    /// The session is over.
    pub fn part_sums(&mut self, sum: Sum, path: &[u8], parts: &[(u64, u64)]) -> Each<Vec<u8>> {
        let cksm = |(offset, len): &(u64, u64)| (path.to_vec(), *offset, Some(*len));
        let bytes: u64 = parts.iter().fold(0, |all, (_, len)| all.saturating_add(*len));
        self.each_sum(sum, &parts.iter().map(cksm).collect::<Vec<_>>(), bytes)
    }

    fn each_sum(&mut self, sum: Sum, asked: &[(Vec<u8>, u64, Option<u64>)], bytes: u64) -> Each<Vec<u8>> {
        let algorithm = sum.name();
        let commands: Vec<_> = asked
            .iter()
            .map(|(path, offset, len)| Command::Cksm { algorithm, offset: *offset, len: *len, path })
            .collect();
        let replies = self.each(&commands, self.patience_with_sums(bytes))?;
        let told = commands.iter().zip(replies);
        told.map(|(command, reply)| {
            reply.map_or_else(|why| Ok(Err(why)), |reply| self.told_sum(command, reply))
        })
        .collect()
    }

    /// How long an answer is waited for while the server makes sums of so many bytes.
    pub(crate) fn patience_with_sums(&self, bytes: u64) -> Duration {
        self.control.patience() + Duration::from_secs(bytes / SUMMED_IN_A_SECOND)
    }

    /// What the server said when it was asked for a sum.
    pub(crate) fn told_sum(
        &self,
        command: &Command<'_>,
        reply: Reply,
    ) -> Result<Result<Vec<u8>, Error>, Error> {
        match self.control.exactly(command, 213, reply) {
            Err(error @ Error::OutOfStep { .. }) => Err(error),
            told => Ok(told.and_then(|reply| {
                let none = Error::Broken { doing: "asking for a sum", why: "what comes is none" };
                unhex(reply.text().trim_ascii()).ok_or(none)
            })),
        }
    }

    fn each_done(&mut self, commands: &[Command<'_>]) -> Each<()> {
        let replies = self.each(commands, self.control.patience())?;
        Ok(commands.iter().zip(replies).map(|(command, reply)| self.is_done(command, reply)).collect())
    }

    pub(crate) fn is_done(&self, command: &Command<'_>, reply: Result<Reply, Error>) -> Result<(), Error> {
        reply.and_then(|reply| self.control.done(command, reply)).map(drop)
    }

    /// The last reply to each of these commands, in their order; an error of one is that it cannot be said to
    /// this server.
    pub(crate) fn each(&mut self, commands: &[Command<'_>], patience: Duration) -> Each<Reply> {
        let (mut said, mut unsaid) = (Vec::with_capacity(commands.len()), Vec::with_capacity(commands.len()));
        for command in commands {
            let why = self.control.unsayable(command)?;
            if why.is_none() {
                said.push(*command);
            }
            unsaid.push(why);
        }
        let mut replies = Vec::with_capacity(said.len());
        let len = |command: &Command<'_>| {
            let mut line = Vec::new();
            // One that cannot be said is found out behind this.
            command.encode(Iac::Doubled, &mut line).map_or(0, |()| line.len())
        };
        for some in together(&said, len) {
            self.control.send(some)?;
            for command in some {
                let reply = self.control.last_reply_within(patience)?;
                match reply.code() {
                    421 => return Err(self.control.refused(command, &reply)),
                    // Of a transfer before it.
                    code @ (225 | 226 | 426) => {
                        self.control.set_broken();
                        return Err(Error::OutOfStep { said: self::said(command), code });
                    }
                    _ => replies.push(reply),
                }
            }
        }
        let mut replies = replies.into_iter();
        Ok(unsaid
            .into_iter()
            .map(|why| why.map_or_else(|| Ok(replies.next().expect("one for each")), Err))
            .collect())
    }
}

/// Of two digits a byte, in either case.
fn unhex(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    if text.is_empty() || !text.len().is_multiple_of(2) {
        return None;
    }
    text.chunks(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

/// A directory is made by 257 (RFC 959), and by 250, as some servers say. Any other 2yz is of something else,
/// and so may be what comes next.
pub(crate) fn word_on_dir(control: &Control, command: &Command<'_>, reply: Reply) -> Result<(), Error> {
    match (reply.code(), reply.class()) {
        (250 | 257, _) => Ok(()),
        (code, Class::Completed) if !haul_mutant::removed("ftp-directories-have-words-of-their-own") => {
            Err(Error::OutOfStep { said: said(command), code })
        }
        _ => control.done(command, reply).map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what a server says of a sum is one, or none; never a part of one.
    #[test]
    fn sums_are_whole() {
        assert_eq!(unhex(b"00ffA0"), Some(vec![0, 255, 160]));
        for bad in [&b""[..], b"0", b"0g", b"00 1", b"+1"] {
            assert_eq!(unhex(bad), None);
        }
    }
}
