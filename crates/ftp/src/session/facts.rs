//! What is at paths, asked together.
//!
//! In: paths. Out: what the server says of each.
//! Invariants: an answer counts for the path that it is of; where nobody can tell whose answers are, for the
//! server says more than it was asked, they count for none, and the session is over.

use haul_gridftp::command::Command;
use haul_gridftp::listing::{Facts, Kind, Moment, parse_mlst, parse_moment};
use haul_gridftp::ranges::FILE_LEN_MAX;
use haul_gridftp::reply::{Class, Reply};

use super::Session;
use crate::Error;
use crate::control::{Control, said};
use crate::together::{COMMAND_LEN, together};

/// Most bytes of answers about several paths, which are held until all are there.
const ANSWERS_LEN_MAX: usize = 8 << 20;

/// What a server has at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    Is(Facts),
    /// Nothing, or nothing that may be seen; in the server's words.
    Not(String),
    /// The server does not say what it is; in its number and its words.
    Untold(String),
}

impl Session {
    /// What is at a path.
    ///
    /// # Errors
    /// The session is over, or the server answers anything else than that it is there or not.
    pub fn facts(&mut self, path: &[u8]) -> Result<Asked, Error> {
        let mut all = self.facts_of(&[path])?;
        Ok(all.pop().expect("one answer for one path"))
    }

    /// What is at each of these paths, in their order, asked together.
    ///
    /// # Errors
    /// As [`Session::facts`].
    pub fn facts_of(&mut self, paths: &[&[u8]]) -> Result<Vec<Asked>, Error> {
        self.facts_of_each(paths)?.into_iter().collect()
    }

    /// The same where what is said of one of them, or that it cannot be said to this server, is no word on
    /// the others. Where the server says more than it was asked ([`Error::OutOfStep`]), that is of those of
    /// which nobody can tell which answer is theirs, and the session is over ([`Session::is_broken`]): what
    /// is said of the others stands.
    ///
    /// # Errors
    /// The session is over.
    pub fn facts_of_each(&mut self, paths: &[&[u8]]) -> Result<Vec<Result<Asked, Error>>, Error> {
        let (mut said, mut unsaid) = (Vec::with_capacity(paths.len()), Vec::with_capacity(paths.len()));
        for path in paths {
            let why = self.control.unsayable(&Command::Path("MLST", path))?;
            if why.is_none() {
                said.push(*path);
            }
            unsaid.push(why);
        }
        let mut told = self.facts_of_sayable(&said)?.into_iter();
        let none = || Err(Error::Broken { doing: "asking for facts", why: "none came" });
        let one = |why: Option<Error>| why.map_or_else(|| told.next().unwrap_or_else(none), Err);
        Ok(unsaid.into_iter().map(one).collect())
    }

    fn facts_of_sayable(&mut self, paths: &[&[u8]]) -> Result<Vec<Result<Asked, Error>>, Error> {
        let mut all = Vec::with_capacity(paths.len());
        let mut answers_len = 0;
        let commands_of_one = if self.has_mlsd { 1 } else { 2 };
        for some in together(paths, |path| commands_of_one * (COMMAND_LEN + path.len())) {
            if self.has_mlsd {
                let first = all.len();
                let commands: Vec<_> = some.iter().map(|path| Command::Path("MLST", path)).collect();
                self.control.send(&commands)?;
                let (mut unknown, mut replies) = (false, Vec::with_capacity(commands.len()));
                for command in &commands {
                    let reply = self.control.last_reply()?;
                    bear(&mut answers_len, &reply)?;
                    self.knows_mlst |= reply.code() == 250;
                    // Globus says 500 of a name that it does not understand.
                    unknown |= !self.knows_mlst && self.control.refused(command, &reply).is_unknown();
                    all.push(if unknown {
                        Ok(Asked::Not(String::new()))
                    } else {
                        mlst(&self.control, command, &reply)
                    });
                    replies.push(reply);
                }
                if !unknown {
                    let lost = |told: &Result<Asked, Error>| matches!(told, Err(Error::OutOfStep { .. }));
                    let lost = all[first..].iter().position(lost);
                    if lost.is_some() {
                        self.control.set_broken();
                    }
                    let sure = match lost {
                        Some(sure) => sure,
                        None => self.sure_of(some, &replies)?,
                    };
                    if sure < some.len() {
                        all.truncate(first + sure);
                        let said = |path: &&[u8]| said(&Command::Path("MLST", path));
                        let lost = paths[all.len()..]
                            .iter()
                            .map(|path| Error::OutOfStep { said: said(path), code: 250 });
                        all.extend(lost.map(Err));
                        return Ok(all);
                    }
                    continue;
                }
                self.has_mlsd = false;
                all.truncate(first);
            }
            self.sizes_and_times(some, &mut all, &mut answers_len)?;
        }
        Ok(all)
    }

    /// Of how many of these paths, from the first on, the replies to `MLST` are certain: each names the path
    /// that it is of. Where one names another it may be that the server leaves something out of what it is
    /// told; or it answered an earlier one twice, which shows in what it says next. Then the session is over.
    pub(crate) fn sure_of(&mut self, paths: &[&[u8]], replies: &[Reply]) -> Result<usize, Error> {
        let (mut sure, mut strays) = (0, false);
        for (at, (path, reply)) in paths.iter().zip(replies).enumerate() {
            match names_it(path, reply) {
                Some(true) if !strays => sure = at + 1,
                Some(false) => strays = true,
                _ => {}
            }
        }
        if !strays || !self.names_paths || haul_mutant::removed("ftp-answers-are-of-their-paths") {
            return Ok(paths.len());
        }
        // Its answer has a number that none to `MLST` has: one that was left over is not taken for it.
        let said = self.control.ask(&Command::Bare("PWD"))?;
        if said.code() == 257 {
            // Of one that never names what it is asked about nothing can be told by that.
            self.names_paths = sure > 0;
            return Ok(paths.len());
        }
        self.control.set_broken();
        Ok(sure)
    }

    /// The same where there is no `MLST`: a size is a file's, and what can be entered is a directory. All are
    /// asked together.
    fn sizes_and_times(
        &mut self,
        paths: &[&[u8]],
        all: &mut Vec<Result<Asked, Error>>,
        answers_len: &mut usize,
    ) -> Result<(), Error> {
        let has_mdtm = self.has_mdtm;
        let ask = |path| {
            let time = has_mdtm.then_some(Command::Path("MDTM", path));
            [Some(Command::Path("SIZE", path)), time].into_iter().flatten()
        };
        let commands: Vec<_> = paths.iter().flat_map(|path| ask(path)).collect();
        self.control.send(&commands)?;
        let mut told = Vec::with_capacity(paths.len());
        for _ in paths {
            let size = self.control.last_reply()?;
            bear(answers_len, &size)?;
            let time = if has_mdtm { Some(self.control.last_reply()?) } else { None };
            time.as_ref().map_or(Ok(()), |time| bear(answers_len, time))?;
            told.push((size, time));
        }
        let first = all.len();
        let mut entered = Vec::new();
        for (path, (size, time)) in paths.iter().zip(told) {
            let command = Command::Path("SIZE", path);
            let refusal = self.control.refused(&command, &size);
            if size.class() != Class::Completed && (refusal.is_unavailable() || refusal.is_unknown()) {
                entered.push((all.len() - first, *path, size.clone(), time.clone()));
            }
            all.push(self.size_and_time(path, &size, time.as_ref()));
        }
        // What has no size may be a directory.
        let commands: Vec<_> = entered.iter().map(|(_, path, ..)| Command::Path("CWD", path)).collect();
        self.control.send(&commands)?;
        for (at, _, _, time) in entered {
            let reply = self.control.last_reply()?;
            if reply.class() == Class::Completed {
                let modify = told_time(time.as_ref());
                all[first + at] = modify
                    .map(|modify| Asked::Is(Facts { kind: Some(Kind::Dir), modify, ..Facts::default() }));
            }
        }
        Ok(())
    }

    fn size_and_time(&self, path: &[u8], told: &Reply, time: Option<&Reply>) -> Result<Asked, Error> {
        let size = Command::Path("SIZE", path);
        let modify = told_time(time)?;
        if told.class() == Class::Completed {
            self.control.exactly(&size, 213, told.clone())?;
            let digits = std::str::from_utf8(told.text().trim_ascii()).ok();
            let size = digits.and_then(|digits| digits.parse().ok()).filter(|size| *size <= FILE_LEN_MAX);
            let size = size.ok_or(Error::Broken { doing: "asking for a size", why: "what comes is none" })?;
            let facts = Facts { kind: Some(Kind::File), size: Some(size), modify, ..Facts::default() };
            return Ok(Asked::Is(facts));
        }
        untold(&self.control, &size, told)
    }
}

/// Counts the bytes of answers that are held together.
///
/// # Errors
/// They are more than any server needs.
pub(crate) fn bear(answers_len: &mut usize, reply: &Reply) -> Result<(), Error> {
    *answers_len += reply.lines().iter().map(|line| line.len()).sum::<usize>();
    match *answers_len > ANSWERS_LEN_MAX {
        true => Err(Error::Broken { doing: "asking for facts", why: "the answers are longer than 8 MiB" }),
        false => Ok(()),
    }
}

/// What `MDTM` was answered.
fn told_time(reply: Option<&Reply>) -> Result<Option<Moment>, Error> {
    match reply {
        Some(reply) if reply.code() == 213 => Ok(Some(parse_moment(reply.text().trim_ascii())?)),
        _ => Ok(None),
    }
}

pub(crate) fn mlst(control: &Control, command: &Command<'_>, reply: &Reply) -> Result<Asked, Error> {
    match reply.class() {
        Class::Completed if reply.code() != 250 => {
            control.exactly(command, 250, reply.clone()).map(|_| Asked::Not(String::new()))
        }
        Class::Completed => {
            let line = reply.lines().get(1).filter(|_| reply.lines().len() > 2);
            let line = line.ok_or(Error::Broken { doing: "asking for facts", why: "none came" })?;
            Ok(Asked::Is(parse_mlst(line)?.0))
        }
        _ => untold(control, command, reply),
    }
}

/// Whether an answer to `MLST` names this path, by its last name: servers name all of it or that alone.
/// `None`: it names none.
fn names_it(path: &[u8], reply: &Reply) -> Option<bool> {
    let line = reply.lines().get(1).filter(|_| reply.code() == 250 && reply.lines().len() > 2)?;
    let (_, told) = parse_mlst(line).ok()?;
    let last = |path: &[u8]| -> Option<Vec<u8>> {
        let name = path.rsplit(|byte| *byte == b'/').next()?;
        (!matches!(name, b"" | b"." | b"..")).then(|| name.to_vec())
    };
    Some(last(path)? == last(told)?)
}

/// What a refusal says of one path; an error is what it says of the session, and what passes.
fn untold(control: &Control, command: &Command<'_>, reply: &Reply) -> Result<Asked, Error> {
    match control.refused(command, reply) {
        Error::Refused { code: 550, text, .. } => Ok(Asked::Not(text)),
        error @ Error::Refused { code: 530 | 532, .. } => Err(error),
        // What may pass is asked for again.
        error if error.is_passing() => Err(error),
        Error::Refused { code: code @ (450 | 500..), text, .. } => {
            Ok(Asked::Untold(format!("{code} {text}")))
        }
        error => Err(error),
    }
}
