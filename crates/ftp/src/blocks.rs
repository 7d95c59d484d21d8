//! Files that come in blocks (MODE E), each with its place: large ones over several connections that the
//! server makes, small ones one behind the other over one that stays.
//!
//! In: a file, which of its bytes are there already, room for others. Out: each of these once, at its place,
//! and the server's word that they were all.
//! Invariants: a byte that comes twice, lies outside of the file, or is missing at the end is an error, and
//! so is a connection more than the server said it made; no byte is held here, what has no room waits in its
//! socket; whoever is silent for as long as the patience while there is room is given up; after an error
//! within a transfer the session is over, for what comes then cannot be told from what comes next.
//!
//! Why twice is an error: without authentication of data connections anybody at the server's address can
//! connect to us, too. He can break a transfer, but to put a byte of his own into a file he would have to
//! keep the server's own one away, which it sends, and says that it did.
//!
//! `ERET` is not used: Globus counts its blocks from the beginning of the part, which proves no place.
//! `REST` with ranges and `RETR` brings what is missing, counted from the beginning of the file.
//! All nodes of a striped server send, to the one place where this end listens: `SPOR` names it once a node.
//! Left out: buffer sizes (`SBUF`): a size that somebody sets ends the system's own search for one.

use std::time::{Duration, Instant};

use haul_gridftp::FtpError;
use haul_gridftp::command::Command;
use haul_gridftp::mode_e::{Event, Transfer};
use haul_gridftp::ranges::Ranges;
use haul_gridftp::reply::Class;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::callers::Callers;
use crate::control::said;
use crate::data::leave_place;
use crate::gsi::OTHER;
use crate::lanes::{Heard, Lanes};
use crate::session::{Asked, mlst};
use crate::{Error, Session};

/// How long a server may take to make its first data connection. One that a firewall keeps from it is not
/// made later either.
const CALLED_WITHIN: Duration = Duration::from_secs(10);
/// The same where it most likely cannot: this host has a private address, and it has not.
const CALLED_BACK_WITHIN: Duration = Duration::from_secs(3);
/// Bytes that are read from one connection before the others are looked at.
const TURN_LEN: usize = 1 << 20;
const MOVING: &str = "reading from the server";

/// Where what comes goes.
pub trait Room {
    /// Room for what the file has from `offset` on, up to `len` bytes and at least one; `None`: not now.
    fn room(&mut self, offset: u64, len: u64) -> Option<&mut [u8]>;
    /// So many bytes came there.
    fn came(&mut self, offset: u64, len: usize);
}

/// A file that comes in blocks.
pub struct Coming {
    said: String,
    size: u64,
    transfer: Transfer,
    /// What is there, or comes in a block that began.
    claimed: Ranges,
    /// The server said that it begins, and that it is done.
    begun: bool,
    told: bool,
    /// A connection ended before its end of data. If it was the server's, the server will say so; if it says
    /// that all was sent, it was somebody else's, and so is perhaps what came over it.
    lost: Option<Error>,
    /// It comes over one connection, and others are asked for behind it.
    alone: bool,
    others_follow: bool,
    /// Since when nothing came that there was room for.
    since: Instant,
}

/// What a turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Something came.
    Came,
    /// Nothing did.
    Nothing,
    /// Nothing can come, for there is no room for what comes next on any connection.
    NoRoom,
    /// All came, and the server says so. The file is over.
    Whole,
}

/// What is lined up.
#[derive(Clone, Copy, Debug)]
pub enum Wanted<'a> {
    /// All of a file.
    File(&'a [u8]),
    /// What is at a path.
    Facts(&'a [u8]),
}

impl Session {
    /// Whether the server gives files in blocks. Nobody was seen to do it under TLS, and who of the two
    /// begins that is nowhere written; and where ssh stands between there is no address that the server could
    /// connect to.
    pub fn has_blocks(&self) -> bool {
        let is_bare = self.control.tls().is_none();
        is_bare && self.control.local().is_ok() && self.has_mlsd && self.features.has("PARALLEL")
    }

    /// Data come as they are from now on.
    pub(crate) fn stream_mode(&mut self) -> Result<(), Error> {
        if self.lanes.take().is_some() {
            self.control.want(&Command::Mode(b'S'))?;
        }
        Ok(())
    }

    /// Data come in blocks from now on, over so many connections; with the commands `behind` it, whose
    /// replies are still to come, in the same round trip.
    fn block_mode(&mut self, connections: u32, behind: &[Command<'_>]) -> Result<(), Error> {
        if let Some(lanes) = &mut self.lanes
            && lanes.wanted == connections
        {
            match lanes.are_kept() {
                Ok(true) => return self.control.send(behind),
                Ok(false) => {}
                Err(error) => {
                    self.control.set_broken();
                    return Err(error);
                }
            }
        }
        leave_place(&mut self.control)?;
        let ends = self.control.local().and_then(|local| Ok((local, self.control.peer()?)));
        let ends = ends.map_err(|cause| Error::Lost { doing: MOVING, cause })?;
        let callers = self.control.channel().cloned();
        let callers = callers.map(|channel| Callers::new(channel, self.control.patience()));
        // Over one connection one node sends.
        let nodes = if self.features.has("SPOR") { self.control.nodes.count() } else { 1 };
        let senders = connections.min(nodes as u32).max(1);
        let hosts = self.control.nodes.hosts();
        let lanes = Lanes::listen(ends, hosts, (connections, senders), callers, self.control.stop())?;
        let places = lanes.places()?;
        let commands = [
            Command::Mode(b'E'),
            // Each node makes so many.
            Command::OptsRetr { parallelism: connections.div_ceil(senders), layout: None },
            match places[..] {
                [place] if place.is_ipv4() => Command::Port(place),
                [place] => Command::Eprt(place),
                _ => Command::Spor(&places),
            },
        ];
        let together = !haul_mutant::removed("ftp-blocks-are-asked-for-together");
        let all: Vec<Command<'_>> =
            commands.iter().chain(behind.iter().filter(|_| together)).copied().collect();
        self.control.send(&all)?;
        let mut replies = Vec::with_capacity(commands.len());
        for _ in &commands {
            replies.push(self.control.last_reply()?);
        }
        for (command, reply) in commands.iter().zip(replies) {
            match command {
                // Then it makes as many as it likes.
                Command::OptsRetr { .. }
                    if matches!(reply.class(), Class::Transient | Class::Permanent)
                        && reply.code() != 421 => {}
                command => {
                    let done = self.control.exactly(command, 200, reply);
                    if done.is_err() {
                        // In which mode it is now is not worth to be found out, nor what it makes of the
                        // rest.
                        self.control.set_broken();
                    }
                    done?;
                }
            }
        }
        if !together {
            self.control.send(behind)?;
        }
        self.lanes = Some(lanes);
        Ok(())
    }

    /// Asks for a file of `size` bytes, but for what is in `have`.
    ///
    /// # Errors
    /// The server does not give files in blocks, or the session is over.
    pub fn begin_blocks(
        &mut self,
        path: &[u8],
        (size, have): (u64, &Ranges),
        connections: u32,
    ) -> Result<Coming, Error> {
        let retr = Command::Path("RETR", path);
        let rest = Command::RestRanges(have);
        let commands = [rest, retr];
        self.block_mode(connections, if have.is_empty() { &commands[1..] } else { &commands })?;
        if !have.is_empty() {
            let reply = self.control.last_reply()?;
            if reply.code() != 350 {
                // What it sends now is not what was asked for.
                self.control.set_broken();
                return Err(self.control.refused(&rest, &reply));
            }
        }
        Coming::new(&retr, size, have.clone(), self.senders())
    }

    fn senders(&self) -> u32 {
        self.lanes.as_ref().map_or(1, |lanes| lanes.senders)
    }

    /// Takes what is there of a file, into room for it, and waits at most as long as `wait` for something.
    ///
    /// # Errors
    /// As they say. After one that the server did not answer instead of beginning, the session is over.
    pub fn receive(
        &mut self,
        coming: &mut Coming,
        room: &mut dyn Room,
        wait: Duration,
    ) -> Result<Turn, Error> {
        let turn = self.turn(coming, room, wait);
        if turn.is_err() && (coming.begun || !matches!(turn, Err(Error::Refused { .. }))) {
            self.lanes = None;
            self.control.set_broken();
        }
        turn
    }

    fn turn(&mut self, coming: &mut Coming, room: &mut dyn Room, wait: Duration) -> Result<Turn, Error> {
        const CLOSED: Error = Error::Closed { doing: MOVING };
        let Some(lanes) = &mut self.lanes else { return Err(CLOSED) };
        self.control.stop().check().map_err(|stop| Error::Lost { doing: MOVING, cause: stop.into() })?;
        // What there is room for, and what waits for none.
        let (mut more, mut wants, mut full) = (self.control.has_rest() && !coming.told, Vec::new(), 0);
        for (at, lane) in lanes.all.iter().enumerate() {
            if !coming.begun || lane.channel.is_at_end() {
                continue;
            }
            let (offset, left) = lane.channel.expected();
            if left > 0 && room.room(offset, left).is_none() {
                full += 1;
                continue;
            }
            more |= lane.more;
            wants.push(at);
        }
        let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(wants.len() + 2);
        // Before the server says that it begins, nobody is let in, and nobody is waited for. Where
        // connections show whose they are it says so behind that.
        let opens = coming.begun || lanes.callers.is_some();
        let door = if opens { PollFlags::IN } else { PollFlags::empty() };
        fds.push(PollFd::new(&lanes.listener, door));
        fds.extend(wants.iter().map(|at| PollFd::new(lanes.all[*at].wire.socket(), PollFlags::IN)));
        if !coming.told {
            fds.push(PollFd::new(self.control.socket(), PollFlags::IN));
        }
        let fixed = fds.len();
        fds.extend(lanes.callers.iter().filter(|_| opens).flat_map(Callers::waits));
        // Where nothing has room, who has to make some is waited for elsewhere.
        let wait = if more || full > 0 && wants.is_empty() { Duration::ZERO } else { wait };
        let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
        match poll(&mut fds, Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Error::Lost { doing: MOVING, cause: errno.into() }),
        }
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let knocks = opens && is_ready(&fds[0]);
        let ready: Vec<bool> = fds[1..=wants.len()].iter().map(is_ready).collect();
        let told = fds[wants.len() + 1..fixed].first().is_some_and(is_ready) || self.control.has_rest();
        drop(fds);

        let mut came = false;
        if told && !coming.told {
            // One that says nothing new does not count as something that came.
            came |= self.hear(coming)?;
        }
        let Some(lanes) = &mut self.lanes else { return Err(CLOSED) };
        let mut new = if knocks { lanes.accept()? } else { 0 };
        if opens && let Some(callers) = &mut lanes.callers {
            came |= callers.go_on();
        }
        if coming.begun {
            // One more than the file has is the next one's: there are servers that make one for each.
            let is_alone = coming.alone && !haul_mutant::removed("ftp-a-lane-is-of-its-file");
            new += lanes.admit(if is_alone { 1 } else { usize::MAX })?;
        }
        for _ in 0..new {
            coming.count(|transfer| transfer.handle_channel())?;
        }
        came |= new > 0;
        if coming.begun {
            // From the last one on: one that is lost goes.
            for (at, is_ready) in wants.into_iter().zip(ready).rev() {
                // None of them may be there any more.
                if lanes.all.get(at).is_some_and(|lane| is_ready || lane.more) {
                    came |= match coming.look(lanes, at, room) {
                        Err(error @ (Error::Closed { .. } | Error::Lost { .. }))
                            if !haul_mutant::removed("ftp-lost-lane-is-the-servers") =>
                        {
                            lanes.all.swap_remove(at);
                            coming.lost.get_or_insert(error);
                            true
                        }
                        looked => looked?,
                    };
                }
            }
        }
        let over = lanes.all.iter().all(|lane| lane.channel.is_at_end());
        if coming.told && coming.lost.is_some() {
            let why = "a data connection was cut off, and the server says that all was sent: somebody else sends as well";
            return Err(Error::Misfit(format!("{}: {why}", coming.said)));
        }
        if coming.told && over && coming.transfer.is_complete() {
            coming.end(lanes)?;
            return Ok(Turn::Whole);
        }
        if came {
            coming.since = Instant::now();
            return Ok(Turn::Came);
        }
        if full > 0
            && coming.begun
            && lanes.all.iter().filter(|lane| !lane.channel.is_at_end()).count() == full
        {
            // It is not the server that is waited for. Where a connection is still to come, it may be.
            coming.since = Instant::now();
            return Ok(Turn::NoRoom);
        }
        let patience = self.control.patience();
        let within = if lanes.are_behind_a_gateway() { CALLED_BACK_WITHIN } else { CALLED_WITHIN };
        let within = within.min(patience);
        if lanes.all.is_empty() && coming.since.elapsed() >= within && !lanes.has_callers() {
            return Err(lanes.uncalled(within));
        }
        if coming.since.elapsed() >= patience {
            // Whoever is here did not show who he is in time.
            if lanes.all.is_empty() && (lanes.refused().is_some() || lanes.has_callers()) {
                return Err(lanes.uncalled(patience));
            }
            if let Some(error) = coming.lost.take() {
                return Err(error);
            }
            if coming.told {
                let why =
                    "the server says that all was sent, and it did not come, or somebody else sends as well";
                return Err(Error::Misfit(format!("{}: {why}", coming.said)));
            }
            return Err(Error::silent(MOVING, patience));
        }
        Ok(Turn::Nothing)
    }

    /// The next reply about a file that comes: whether it says something new.
    fn hear(&mut self, coming: &mut Coming) -> Result<bool, Error> {
        let reply = match (self.control.reply(), coming.lost.take()) {
            (Ok(reply), lost) => {
                coming.lost = lost;
                reply
            }
            // What was lost first says more.
            (Err(_), Some(lost)) => return Err(lost),
            (Err(error), None) => return Err(error),
        };
        let out_of_step = || Error::OutOfStep { said: coming.said.clone(), code: reply.code() };
        match reply.class() {
            Class::Preliminary if coming.begun => Ok(false),
            Class::Preliminary => {
                let Some(lanes) = &mut self.lanes else { return Err(out_of_step()) };
                if reply.code() == 125 {
                    // Over the connections that are there.
                    if lanes.all.is_empty() {
                        return Err(out_of_step());
                    }
                    for lane in &mut lanes.all {
                        lane.channel.next_transfer();
                        lane.more = true;
                        coming.transfer.handle_channel()?;
                    }
                } else {
                    lanes.all.clear();
                }
                coming.begun = true;
                Ok(true)
            }
            Class::Completed if coming.begun && matches!(reply.code(), 226 | 250) => {
                coming.told = true;
                Ok(true)
            }
            Class::Completed | Class::Intermediate => Err(out_of_step()),
            _ => match (coming.lost.take(), self.lanes.as_ref().and_then(Lanes::refused)) {
                (Some(lost), _) => Err(lost),
                (None, why) => Err(self.control.refused(&Command::Bare(""), &reply).of(&coming.said, why)),
            },
        }
    }

    /// Everything that was lined up was taken, and files can be lined up without a round trip more.
    pub fn is_ready_for_a_line(&self) -> bool {
        self.lanes.as_ref().is_some_and(|lanes| lanes.wanted == 1 && lanes.lined_up == 0)
    }

    /// Asks for small files and for facts of paths, in this order, and waits for nothing. Each is then to be
    /// taken, in the same order, before anything else is asked; more can be lined up meanwhile. The files
    /// come over one connection: over several nobody could say whose file a block is that comes early.
    ///
    /// Edge: what is lined up behind others must not hold more commands than both ends take without
    /// listening ([`crate::COMMANDS_LEN_MAX`] together), nor a byte 0xff in a path where the server was not
    /// asked about it.
    ///
    /// # Errors The server does not give files so, or the session is over.
    pub fn line_up(&mut self, wanted: &[Wanted<'_>]) -> Result<(), Error> {
        let commands = wanted.iter().map(|wanted| match *wanted {
            Wanted::File(path) => Command::Path("RETR", path),
            Wanted::Facts(path) => Command::Path("MLST", path),
        });
        let commands: Vec<Command<'_>> = commands.collect();
        match self.lanes.as_ref().is_none_or(|lanes| lanes.lined_up == 0) {
            true => self.block_mode(1, &commands)?,
            false => self.control.send(&commands)?,
        }
        if let Some(lanes) = &mut self.lanes {
            lanes.lined_up += wanted.len();
        }
        Ok(())
    }

    /// Takes the file that is next: all of it, into room for its length.
    ///
    /// # Errors
    /// It does not come. Where the session is not over ([`Session::is_broken`]), that is of this file alone.
    pub fn next_file(&mut self, path: &[u8], room: &mut [u8]) -> Result<(), Error> {
        let (retr, senders) = (Command::Path("RETR", path), self.senders());
        let mut coming = Coming::new(&retr, room.len() as u64, Ranges::new(), senders)?;
        if let Some(lanes) = &mut self.lanes {
            lanes.lined_up = lanes.lined_up.saturating_sub(1);
            coming.others_follow = lanes.lined_up > 0;
            coming.alone = true;
        }
        let mut room = Slice(room);
        loop {
            if self.receive(&mut coming, &mut room, haul_base::stop::LOOK)? == Turn::Whole {
                return Ok(());
            }
            if self.lanes.as_ref().is_some_and(|lanes| lanes.all.len() > 1) {
                // Which file it is of could not be told.
                self.lanes = None;
                self.control.set_broken();
                let why = "the server makes more data connections than it was asked for";
                return Err(Error::Misfit(why.into()));
            }
        }
    }

    /// Takes the facts that are next.
    ///
    /// # Errors
    /// As [`Session::facts`]; then the session is over.
    pub fn next_facts(&mut self, path: &[u8]) -> Result<Asked, Error> {
        if let Some(lanes) = &mut self.lanes {
            lanes.lined_up = lanes.lined_up.saturating_sub(1);
        }
        let reply = self.control.last_reply()?;
        let asked = mlst(&self.control, &Command::Path("MLST", path), &reply);
        if asked.is_err() {
            self.control.set_broken();
        }
        asked
    }
}

/// Room for all of a file.
struct Slice<'a>(&'a mut [u8]);

impl Room for Slice<'_> {
    fn room(&mut self, offset: u64, len: u64) -> Option<&mut [u8]> {
        // It was looked at whether a block lies within the file.
        self.0.get_mut(offset as usize..(offset + len) as usize)
    }
    fn came(&mut self, _: u64, _: usize) {}
}

impl Coming {
    fn new(command: &Command<'_>, size: u64, have: Ranges, senders: u32) -> Result<Coming, Error> {
        Ok(Coming {
            said: said(command),
            size,
            transfer: Transfer::new(senders)?,
            claimed: have,
            begun: false,
            told: false,
            lost: None,
            alone: false,
            others_follow: false,
            since: Instant::now(),
        })
    }

    /// Takes what one connection brings; whether that is something.
    fn look(&mut self, lanes: &mut Lanes, at: usize, room: &mut dyn Room) -> Result<bool, Error> {
        let lane = &mut lanes.all[at];
        let (mut came, mut taken) = (false, 0);
        lane.more = true;
        while !lane.channel.is_at_end() && taken < TURN_LEN {
            let (offset, left) = lane.channel.expected();
            let place = match left {
                0 => None,
                left => match room.room(offset, left) {
                    None => return Ok(came),
                    Some(place) => {
                        let len = place.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                        Some(&mut place[..len])
                    }
                },
            };
            match lane.look(place)? {
                Heard::Nothing => {
                    lane.more = false;
                    return Ok(came);
                }
                Heard::Payload(len) => {
                    room.came(offset, len);
                    taken += len;
                }
                Heard::Part | Heard::Event(Event::Payload { .. }) => {}
                Heard::Event(Event::Block { offset, len }) => self.claim(offset, len)?,
                Heard::Event(Event::Mark(mark)) => self.count(|transfer| transfer.handle_mark(mark))?,
            }
            came = true;
        }
        Ok(came)
    }

    /// Counts an end or a connection. Where one was lost, the numbers are nothing to go by.
    fn count(&mut self, count: impl FnOnce(&mut Transfer) -> Result<(), FtpError>) -> Result<(), Error> {
        match self.lost {
            Some(_) => Ok(()),
            None => Ok(count(&mut self.transfer)?),
        }
    }

    /// A block of these bytes begins.
    fn claim(&mut self, offset: u64, len: u64) -> Result<(), Error> {
        let end = offset.saturating_add(len);
        if end > self.size {
            let why = format!(
                "{}: the server gives bytes {offset} to {end} of a file of {} bytes",
                self.said, self.size
            );
            return Err(Error::Resized(why));
        }
        if self.claimed.overlaps(offset, end) && !haul_mutant::removed("ftp-blocks-once") {
            let why = format!(
                "{}: bytes {offset} to {end}, or some of them, come twice, or were not asked for: the server \
                 is in error, or somebody else sends as well",
                self.said
            );
            return Err(Error::Misfit(why));
        }
        Ok(self.claimed.insert(offset, end)?)
    }

    /// All connections are at their ends, and the server says that this is all.
    fn end(&self, lanes: &mut Lanes) -> Result<(), Error> {
        // Whatever connected before the server said so is known to the system by now.
        if !self.others_follow
            && let Some(callers) = &mut lanes.callers
        {
            // None of them is the server's, or none that it said it made.
            callers.clear();
        } else if !self.others_follow && lanes.accept()? > 0 {
            let why =
                "more data connections were made than the server says it made: somebody else sends as well";
            return Err(Error::Misfit(format!("{}: {why}", self.said)));
        }
        match self.claimed.missing(self.size).next() {
            None => Ok(()),
            Some(_) if haul_mutant::removed("ftp-blocks-all") => Ok(()),
            Some((start, end)) if end == self.size => {
                let why = format!("{}: the server's copy ends after {start} bytes", self.said);
                Err(Error::Resized(why))
            }
            Some((start, end)) => {
                let why = format!("the server leaves bytes {start} to {end} out, and says that this is all");
                Err(Error::Misfit(format!("{}: {why}", self.said)))
            }
        }
    }
}

impl Error {
    /// The server's word on something else. `refused`: nobody came whom this end took, and why.
    fn of(self, what: &str, refused: Option<&str>) -> Error {
        match (self, refused) {
            // That a file is not there has nothing to do with who came.
            (Error::Refused { code, text, .. }, Some(why)) if code != 550 => {
                let why = format!("{why}; the server says {code} {text}");
                Error::Untrusted { to: OTHER.into(), why }
            }
            (Error::Refused { code, text, .. }, _) => Error::Refused { said: what.to_owned(), code, text },
            (error, _) => error,
        }
    }
}
