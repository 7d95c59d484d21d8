//! Small files that go in blocks one behind the other over one connection, and wait for nothing in between:
//! the bytes of a file go before the server's word that it begins with it, and the next file is said before
//! this one is over. A round trip is paid once, and not a file.
//!
//! In: files in their order, each first said and then given. Out: what the server says of each, in that
//! order.
//! Whose a byte is: a server takes files in the order in which they were said, and of a connection that it
//! keeps it reads up to the end of data of the file that it has begun (GFD.20); what comes behind that waits
//! for the next one. So each file's bytes are those between two ends of data, as long as each file that was
//! said is begun.
//! Invariants: where one is refused of which something was given, the next one would get its bytes: the
//! connection is closed and the session is over, and no word that comes behind that counts. A file is stored
//! if the server said that it begins with it, over the connection that was there, and then that it has all of
//! it, and not before its last byte had left; all before it were over by then. Whoever is silent for as long
//! as the patience is given up. Replies are heard while bytes wait, so that both ends never wait for each
//! other.
//! That a server keeps to its order is its word. What it has of each file must be compared with what was sent
//! (by its sum) before it counts; of a server that makes no sums nothing is to be sent so.
//! Left out: how many files are under way ([`Pipeline::has_room`] is about commands alone), and what becomes
//! of those behind one that was refused.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use haul_gridftp::command::Command;
use haul_gridftp::mode_e::Header;
use haul_gridftp::ranges::Ranges;
use haul_gridftp::reply::{Class, Reply};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::lanes::{Outlet, SENDING};
use super::{Going, HEARD_MAX, early, lost_or_refused};
use crate::control::{COMMANDS_LEN_MAX, GIVING_UP, said};
use crate::{Error, Session};

/// Of a command, beside its path.
const COMMAND_LEN: usize = "STOR \r\n".len();
const CLOSES: &str = "the server closes data connections behind a file";
const BEGINS: &str = "the server does not keep data connections from one file to the next";

/// What became of a file.
#[derive(Debug)]
pub enum Over {
    /// The server says that it has all of it.
    Stored,
    /// The server does not take it, and nothing of it went.
    Refused(Error),
}

/// Files that were said to one session and are not over. All else that is asked of the session waits until
/// there are none.
pub struct Pipeline {
    files: VecDeque<Underway>,
    /// What became of the first ones, that nobody took yet.
    over: VecDeque<Over>,
    /// The number of the first file.
    first: u64,
    commands_len: usize,
    /// Since when nothing went, and the server said nothing new.
    since: Instant,
}

impl Default for Pipeline {
    fn default() -> Pipeline {
        Pipeline {
            files: VecDeque::new(),
            over: VecDeque::new(),
            first: 0,
            commands_len: 0,
            since: Instant::now(),
        }
    }
}

/// A file that was said.
struct Underway {
    going: Going,
    /// The server said that it begins with it.
    begun: bool,
    /// Over a connection that was there before.
    were_there: bool,
    /// Something of it was given to the connection, its end at least.
    is_given: bool,
    /// All of it, up to this byte of all that the connection was given.
    ends_at: Option<u64>,
}

impl Pipeline {
    /// The server said that it begins with the first file that is not over.
    pub fn has_begun(&self) -> bool {
        self.files.front().is_some_and(|file| file.begun)
    }

    /// A file of this path can be said without a wait for the server to hear of it.
    pub fn has_room(&self, path: &[u8]) -> bool {
        self.files.is_empty() || self.commands_len + COMMAND_LEN + path.len() <= COMMANDS_LEN_MAX
    }

    /// Says a file that comes next; its number, by which it is given. Waits for a connection, and for the
    /// server's word that it begins, only where there is no connection yet.
    ///
    /// Edge: a path with a byte 0xff ends the line where others wait, for the server may have to be asked
    /// about it, and cannot be then.
    ///
    /// # Errors
    /// The session is over, with all files; or the server does not take files so, which can be only where
    /// there are no others.
    pub fn say(&mut self, session: &mut Session, path: &[u8], size: u64) -> Result<u64, Error> {
        if self.files.is_empty() {
            session.outlets(1)?;
            self.since = Instant::now();
        }
        let stor = Command::Path("STOR", path);
        if let Err(error) = session.control.send(std::slice::from_ref(&stor)) {
            return Err(self.ended(session, error));
        }
        let Some(outlets) = &mut session.outlets else { return Err(CLOSED) };
        outlets.lined_up += 1;
        let is_fresh = !outlets.fresh.is_empty();
        let number = self.first + self.files.len() as u64;
        self.commands_len += COMMAND_LEN + path.len();
        self.files.push_back(Underway {
            going: Going::new(path, size),
            begun: false,
            were_there: !is_fresh,
            is_given: false,
            ends_at: None,
        });
        if is_fresh {
            let answered = session.first_answer(&stor).and_then(|reply| self.take(session, &reply));
            answered.map_err(|error| self.ended(session, error))?;
        }
        Ok(number)
    }

    /// Gives a file that was said, after all before it. What the connection holds of it then is the
    /// connection's. `early`: before the server says that it begins with it.
    ///
    /// Edge: one that was refused meanwhile is not given (false).
    ///
    /// # Errors
    /// The session is over, with all files but those that were over before ([`Pipeline::ready`]).
    pub fn give(
        &mut self,
        session: &mut Session,
        number: u64,
        bytes: &[u8],
        early: bool,
    ) -> Result<bool, Error> {
        let given = self.give_all(session, number, bytes, early);
        given.map_err(|error| self.ended(session, error))
    }

    /// What became of the first file, if that is known by now.
    ///
    /// # Errors
    /// As [`Pipeline::give`].
    pub fn ready(&mut self, session: &mut Session) -> Result<Option<Over>, Error> {
        if self.over.is_empty() && !self.files.is_empty() {
            let heard = self.turn(session);
            heard.map_err(|error| self.ended(session, error))?;
        }
        Ok(self.over.pop_front())
    }

    /// The same, of a session that is over.
    pub fn known(&mut self) -> Option<Over> {
        self.over.pop_front()
    }

    /// What became of the first file, which is waited for.
    ///
    /// # Errors
    /// As [`Pipeline::give`].
    pub fn next(&mut self, session: &mut Session) -> Result<Over, Error> {
        loop {
            if let Some(over) = self.ready(session)? {
                return Ok(over);
            }
            let waited = self.wait(session, false);
            waited.map_err(|error| self.ended(session, error))?;
        }
    }

    fn at(&self, number: u64) -> Option<usize> {
        number.checked_sub(self.first).map(|at| at as usize).filter(|at| *at < self.files.len())
    }

    fn give_all(
        &mut self,
        session: &mut Session,
        number: u64,
        mut bytes: &[u8],
        early: bool,
    ) -> Result<bool, Error> {
        loop {
            self.turn(session)?;
            let Some(at) = self.at(number) else { return Ok(false) };
            let file = &mut self.files[at];
            if !early && !file.begun {
                self.wait(session, false)?;
                continue;
            }
            if file.going.size - file.going.at != bytes.len() as u64 {
                let size = file.going.size;
                return Err(Error::Misfit(format!("{} bytes of a file of {size}", bytes.len())));
            }
            let lane = lane_of(session)?;
            if lane.is_closed {
                return Err(CLOSED);
            }
            let mut moved = false;
            while file.ends_at.is_none() && lane.is_free() {
                let len = bytes.len().min(lane.block_len());
                let is_last = len == bytes.len();
                let header = Header::data(file.going.at, len as u64)?.encode();
                let last = Header::ends(1, false)?.next().map(|end| end.encode());
                let last = last.as_ref().filter(|_| is_last).map_or(&[][..], |end| &end[..]);
                let header = if len > 0 { &header[..] } else { &[] };
                if !lane.put([header, &bytes[..len], last])? {
                    break;
                }
                (moved, file.is_given) = (true, true);
                bytes = &bytes[len..];
                file.going.at += len as u64;
                if is_last {
                    file.going.ended = true;
                    file.ends_at = Some(lane.given());
                }
            }
            let is_done = file.ends_at.is_some();
            if moved {
                self.since = Instant::now();
            }
            if is_done {
                return Ok(true);
            }
            self.wait(session, true)?;
        }
    }

    /// Has the connection take what it can, and hears what the server says; waits for nothing.
    fn turn(&mut self, session: &mut Session) -> Result<(), Error> {
        if self.files.is_empty() {
            return Ok(());
        }
        if lane_of(session)?.push()? {
            self.since = Instant::now();
        }
        for _ in 0..HEARD_MAX {
            if self.files.is_empty() {
                break;
            }
            let Some(reply) = session.control.ready_reply()? else { break };
            self.take(session, &reply)?;
        }
        Ok(())
    }

    /// Takes what the server says of the first file.
    fn take(&mut self, session: &mut Session, reply: &Reply) -> Result<(), Error> {
        let Some(file) = self.files.front_mut() else { return Err(CLOSED) };
        let out_of_step = |going: &Going| {
            let said = said(&Command::Path("STOR", &going.path));
            Err(Error::OutOfStep { said, code: reply.code() })
        };
        match reply.class() {
            // Of a second one, or of the next file: what came in between would be another file's.
            Class::Preliminary if file.begun && file.were_there && matches!(reply.code(), 125 | 150) => {
                out_of_step(&file.going)
            }
            Class::Preliminary if file.begun => {
                let before = file.going.since;
                file.going.mark(reply)?;
                self.since = if file.going.since > before { Instant::now() } else { self.since };
                Ok(())
            }
            // It waits for connections that nobody makes.
            Class::Preliminary if file.were_there && reply.code() != 125 => Err(Error::Unkept(BEGINS)),
            Class::Preliminary => {
                file.begun = true;
                self.answered(session);
                Ok(())
            }
            Class::Completed if file.begun && matches!(reply.code(), 226 | 250) => {
                let out = match &session.outlets {
                    Some(outlets) => outlets.all.first().map_or(0, Outlet::taken),
                    None => 0,
                };
                if file.ends_at.is_none_or(|end| end > out) {
                    return Err(early(&file.going));
                }
                self.pass(Over::Stored);
                Ok(())
            }
            Class::Completed | Class::Intermediate => out_of_step(&file.going),
            _ => {
                let error = session.control.refused(&Command::Path("STOR", &file.going.path), reply);
                if file.begun {
                    return Err(error);
                }
                let (were_there, is_given) = (file.were_there, file.is_given);
                self.answered(session);
                if were_there && !session.are_kept()? {
                    return Err(Error::Unkept(CLOSES));
                }
                if is_given && !haul_mutant::removed("ftp-what-was-given-of-a-refused-file-ends-the-line") {
                    return Err(error);
                }
                if !were_there {
                    // Over connections that were not begun nothing can be told from anything.
                    session.close_outlets();
                }
                self.pass(Over::Refused(error));
                Ok(())
            }
        }
    }

    /// One of the commands was answered.
    fn answered(&mut self, session: &mut Session) {
        self.since = Instant::now();
        if let Some(outlets) = &mut session.outlets {
            outlets.lined_up = outlets.lined_up.saturating_sub(1);
        }
    }

    /// The first file is over.
    fn pass(&mut self, over: Over) {
        self.since = Instant::now();
        if let Some(file) = self.files.pop_front() {
            self.commands_len -= COMMAND_LEN + file.going.path.len();
            self.first += 1;
            self.over.push_back(over);
        }
    }

    /// Waits until the connection takes something, where something is to go, or the server says something;
    /// not for longer than the patience.
    fn wait(&mut self, session: &mut Session, gives: bool) -> Result<(), Error> {
        let stopped = session.control.stop().check_of(self.since);
        stopped.map_err(|stop| Error::Lost { doing: SENDING, cause: stop.into() })?;
        let patience = session.control.patience();
        let left = patience.checked_sub(self.since.elapsed()).filter(|left| *left > Duration::ZERO);
        let Some(left) = left else { return Err(Error::silent(SENDING, patience)) };
        let time = match session.control.has_rest() {
            true => Duration::ZERO,
            false => session.control.stop().until_look(left),
        };
        let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
        let Some(lane) = session.outlets.as_mut().and_then(|outlets| outlets.all.first_mut()) else {
            return Err(CLOSED);
        };
        let wants = gives || !lane.is_out()?;
        let flags = if wants { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let mut fds = vec![PollFd::new(session.control.socket(), PollFlags::IN)];
        if !lane.is_closed {
            fds.push(PollFd::new(lane.wire.socket(), flags));
        }
        match poll(&mut fds, Some(&time)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Error::Lost { doing: SENDING, cause: errno.into() }),
        }
        let ends = PollFlags::IN | PollFlags::HUP | PollFlags::ERR;
        let speaks = fds.get(1).is_some_and(|fd| fd.revents().intersects(ends));
        drop(fds);
        if speaks && !lane.hears_nothing()? {
            if wants {
                return Err(CLOSED);
            }
            // It does not keep it, and has all that was given so far, or says that it has not.
            lane.is_closed = true;
        }
        Ok(())
    }

    /// Why it is over: in the server's words where it has some. What it said of files before that counts,
    /// nothing behind it, and all is closed.
    fn ended(&mut self, session: &mut Session, error: Error) -> Error {
        if !matches!(error, Error::Closed { .. } | Error::Lost { .. }) || session.control.is_broken() {
            return session.end_blocks(error);
        }
        let out = session.outlets.as_ref().and_then(|outlets| outlets.all.first()).map_or(0, Outlet::taken);
        // Of its connection it sees that nothing more comes.
        session.outlets = None;
        let until = Instant::now() + GIVING_UP.min(session.control.patience());
        let error = loop {
            let Some(file) = self.files.front_mut() else { break error };
            let left = until.saturating_duration_since(Instant::now());
            let Ok(reply) = session.control.any_reply_within(left) else { break error };
            match reply.class() {
                Class::Preliminary if file.begun => {}
                Class::Preliminary if file.were_there && reply.code() != 125 => break Error::Unkept(BEGINS),
                Class::Preliminary => file.begun = true,
                // It is not known to be another's, nor to be cut off: that its sum says.
                Class::Completed if file.begun && file.ends_at.is_some_and(|end| end <= out) => {
                    self.pass(Over::Stored);
                }
                Class::Completed | Class::Intermediate => break error,
                _ if !file.begun && file.were_there => break Error::Unkept(CLOSES),
                _ => {
                    let stor = Command::Path("STOR", &file.going.path);
                    break lost_or_refused(session.control.refused(&stor, &reply), error);
                }
            }
        };
        session.end_blocks(error)
    }
}

const CLOSED: Error = Error::Closed { doing: SENDING };

fn lane_of(session: &mut Session) -> Result<&mut Outlet, Error> {
    session.outlets.as_mut().and_then(|outlets| outlets.all.first_mut()).ok_or(CLOSED)
}

impl Going {
    /// Nothing of it went.
    pub(super) fn new(path: &[u8], size: u64) -> Going {
        Going {
            path: path.to_vec(),
            size,
            at: 0,
            ended: false,
            safe: Ranges::new(),
            moved: 0,
            since: Instant::now(),
        }
    }
}
