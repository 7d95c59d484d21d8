//! Files that go to a server in blocks (MODE E), each block with its place, over connections that this end
//! makes: large ones over several, small ones one behind the other over one that stays.
//!
//! In: a file's path and length, its bytes in ascending order. Out: each of these once, and the server's word
//! that it has all.
//! Invariants: not a byte of a file goes before the server said that it begins with this one, so that none
//! can be taken for another's; after an error behind that all connections are closed and the session is over,
//! for what they still hold cannot be told from what comes next; the server's word counts only behind the
//! last byte and the end of data of each connection; whoever takes nothing for as long as the patience is
//! given up.
//!
//! What a server says meanwhile (`111`, `112`) shows that it is there, and no more: it proves no byte. One
//! that says that it has what was not sent is wrong.
//! A striped server (`SPAS`) gets the connections of a file spread over its nodes, and any of them any block;
//! of each node they end for themselves.
//! Left out: which node gets which block; files that go on in their middle (`onward`).

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use haul_gridftp::address::parse_spas;
use haul_gridftp::command::Command;
use haul_gridftp::markers::{PERFORMANCE, Performance, RESTART, parse_restart};
use haul_gridftp::mode_e::Header;
use haul_gridftp::ranges::Ranges;
use haul_gridftp::reply::{Class, Reply};
use haul_gsi::Side;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::channel;
use crate::control::{GIVING_UP, said};
use crate::data::{leave_place, passive, with_word};
use crate::nodes::node;
use crate::sender::lanes::{OUTLETS_MAX, Outlet, SENDING, dial};
use crate::tls::{Bounded, Wire};
use crate::{Error, Session};

pub(crate) use crate::sender::lanes::Outlets;
pub use crate::sender::pipeline::{Over, Pipeline};

mod lanes;
mod onward;
mod pipeline;

/// Replies that are heard before connections are looked at again.
const HEARD_MAX: usize = 64;

/// A file that goes in blocks.
pub struct Going {
    path: Vec<u8>,
    size: u64,
    /// The byte that comes next.
    at: u64,
    /// The ends of data were given to the connections.
    ended: bool,
    /// What the server says that it has, or took.
    safe: Ranges,
    moved: u64,
    /// Since when nothing went, and the server said nothing new.
    since: Instant,
}

impl Session {
    /// Whether the server may take files in blocks. Who of the two begins TLS there is nowhere written, and
    /// nobody was seen to do it; of the grid that is known.
    pub fn sends_blocks(&self) -> bool {
        self.control.tls().is_none() && self.features.has("PARALLEL")
    }

    /// Data go as they are from now on.
    pub(crate) fn leave_blocks(&mut self) -> Result<(), Error> {
        if self.outlets.take().is_some() {
            self.control.want(&Command::Mode(b'S'))?;
        }
        self.stream_mode()
    }

    /// The connections are made anew for the next file.
    pub fn close_outlets(&mut self) {
        if let Some(outlets) = &mut self.outlets {
            *outlets = Outlets::default();
        }
    }

    /// Data go in blocks from now on, over so many connections: those that are there, or new ones.
    fn outlets(&mut self, connections: u32) -> Result<(), Error> {
        // A node that nobody comes to waits for somebody, and the server with it: all are dialled, or one.
        let connections = match self.control.nodes.count() as u32 {
            nodes if nodes <= connections || connections < 2 => connections,
            _ if haul_mutant::removed("ftp-nodes-are-all-dialled") => connections,
            nodes if nodes <= OUTLETS_MAX => nodes,
            _ => 1,
        };
        match &mut self.outlets {
            Some(outlets) => match outlets.are_kept(connections) {
                Ok(true) => return Ok(()),
                Ok(false) => *outlets = Outlets::default(),
                Err(error) => return Err(self.end_blocks(error)),
            },
            None => {
                self.stream_mode()?;
                leave_place(&mut self.control)?;
                self.control.want(&Command::Mode(b'E'))?;
                self.outlets = Some(Outlets::default());
            }
        }
        let mut addresses = self.nodes(connections as usize)?;
        if addresses.is_empty() {
            let host = self.control.host().map_err(failed)?;
            addresses.push(passive(&mut self.control, host, &mut self.listens)?);
        }
        let waits = (self.control.patience(), self.control.stop());
        let fresh = dial(&addresses, connections.clamp(1, OUTLETS_MAX), waits)?;
        if let Some(outlets) = &mut self.outlets {
            outlets.nodes = addresses.len();
            outlets.fresh = fresh;
        }
        Ok(())
    }

    /// Where the nodes of a striped server listen, up to so many; none where it is not striped, or where one
    /// of them is not to be used.
    fn nodes(&mut self, max: usize) -> Result<Vec<SocketAddr>, Error> {
        if max < 2 || self.control.nodes.count() < 2 {
            return Ok(Vec::new());
        }
        let ends = self.control.peer().and_then(|peer| Ok((peer.ip(), self.control.local()?.ip())));
        let (control, local) = ends.map_err(failed)?;
        let (control, local) = (control.to_canonical(), local.to_canonical());
        let spas = if control.is_ipv6() { Command::Spas6 } else { Command::Bare("SPAS") };
        let reply = self.control.ask(&spas)?;
        let reply = self.control.exactly(&spas, 229, reply)?;
        let told = parse_spas(&reply)?;
        let used = told.iter().map(|told| {
            let used = node(*told, control, local)?;
            self.control.nodes.has(used.ip()).then_some(used)
        });
        let used: Option<Vec<SocketAddr>> = used.take(max).collect();
        Ok(used.unwrap_or_default())
    }

    /// Says that these files come next, in this order, over so many connections, and waits for nothing. Each
    /// is then to be begun by [`Session::next_store`] and ended before anything else is asked; more can be
    /// said meanwhile.
    ///
    /// Edge: a path with a byte 0xff is refused where others wait, for the server may have to be asked about
    /// it.
    ///
    /// # Errors
    /// The server does not take files so, or the session is over.
    pub fn line_up_stores(&mut self, paths: &[&[u8]], connections: u32) -> Result<(), Error> {
        if self.outlets.as_ref().is_none_or(|outlets| outlets.lined_up == 0) {
            self.outlets(connections)?;
        }
        let commands: Vec<_> = paths.iter().map(|path| Command::Path("STOR", path)).collect();
        self.control.send(&commands)?;
        if let Some(outlets) = &mut self.outlets {
            outlets.lined_up += paths.len();
        }
        Ok(())
    }

    /// Begins the file that is next: the server's word that it takes it.
    ///
    /// # Errors
    /// It does not. Where the session is not over ([`Session::is_broken`]), that is of this file alone.
    pub fn next_store(&mut self, path: &[u8], size: u64) -> Result<Going, Error> {
        let stor = Command::Path("STOR", path);
        let Some(outlets) = &mut self.outlets else { return Err(Error::Closed { doing: SENDING }) };
        outlets.lined_up = outlets.lined_up.saturating_sub(1);
        let others_follow = outlets.lined_up > 0;
        let were_there = outlets.fresh.is_empty();
        let reply = match self.first_answer(&stor) {
            Ok(reply) => reply,
            Err(error) => return Err(self.end_blocks(error)),
        };
        match reply.class() {
            Class::Preliminary if were_there && reply.code() != 125 => {
                // It waits for connections that nobody makes.
                let why = "the server does not keep data connections from one file to the next";
                Err(self.end_blocks(Error::Unkept(why)))
            }
            Class::Preliminary => Ok(Going::new(path, size)),
            Class::Completed | Class::Intermediate => {
                let error = Error::OutOfStep { said: said(&stor), code: reply.code() };
                Err(self.end_blocks(error))
            }
            _ => {
                let error = self.control.refused(&stor, &reply);
                if were_there && !self.are_kept()? {
                    let why = "the server closes data connections behind a file";
                    return Err(self.end_blocks(Error::Unkept(why)));
                }
                if !were_there {
                    // Over connections that were not begun nothing can be told from anything.
                    self.close_outlets();
                    if others_follow {
                        self.control.set_broken();
                    }
                }
                Err(error)
            }
        }
    }

    /// The first answer to a `STOR`, and the connections for it, if it is a good one.
    fn first_answer(&mut self, stor: &Command<'_>) -> Result<Reply, Error> {
        let Some(outlets) = &mut self.outlets else { return Err(Error::Closed { doing: SENDING }) };
        let mut fresh = std::mem::take(&mut outlets.fresh).into_iter();
        let channel = self.control.channel().cloned();
        let (reply, wires) = match (channel, fresh.len()) {
            (_, 0) => return self.control.reply(),
            (None, _) => (self.control.reply()?, fresh.map(Wire::Plain).collect()),
            (Some(channel), _) => {
                let Some(first) = fresh.next() else { return self.control.reply() };
                let patience = self.control.patience();
                // A server says that it begins when the first connection that it took, of each of its nodes,
                // has shown whose it is. Which one that is nobody here knows: they may have come there in
                // another order than they were dialled in. So all begin now, and not the others behind that
                // word.
                let others: Vec<_> =
                    match haul_mutant::removed("ftp-all-connections-show-whose-they-are-at-once") {
                        true if outlets.nodes < 2 => Vec::new(),
                        _ => fresh.by_ref().collect(),
                    };
                let ends: io::Result<Vec<_>> = others.iter().map(Bounded::try_clone).collect();
                let ends = ends.map_err(failed)?;
                let control = &mut self.control;
                let (reply, wires) = std::thread::scope(|scope| {
                    let shake = |socket| channel.protect(socket, Side::Dialled, patience);
                    let begin = |socket| scope.spawn(move || shake(socket));
                    let mut shakes: Vec<_> = others.into_iter().map(begin).collect();
                    let begun = channel::begin(&channel, control, first, Side::Dialled);
                    if !matches!(&begun, Ok((reply, Ok(_))) if reply.class() == Class::Preliminary) {
                        // Nobody comes to the others any more.
                        for end in ends {
                            let _ = rustix::net::shutdown(end.socket(), rustix::net::Shutdown::Both);
                        }
                        return Err(begun);
                    }
                    let (reply, first) = begun.map_err(Err)?;
                    shakes.extend(fresh.map(begin));
                    let ended = |shake: std::thread::ScopedJoinHandle<'_, _>| {
                        shake.join().unwrap_or(Err(Error::Closed { doing: SENDING }))
                    };
                    let all = std::iter::once(first).chain(shakes.into_iter().map(ended));
                    Ok((reply, all.collect::<Result<Vec<Wire>, Error>>()))
                })
                .or_else(|begun| match begun? {
                    (reply, Err(error)) if reply.class() == Class::Preliminary => Ok((reply, Err(error))),
                    (reply, Err(error @ Error::Untrusted { .. })) => {
                        Err(with_word(&self.control, error, &reply, stor))
                    }
                    (reply, _) => Ok((reply, Ok(Vec::new()))),
                })?;
                if reply.class() != Class::Preliminary {
                    return Ok(reply);
                }
                let wires = wires?;
                (reply, wires)
            }
        };
        let wires: Vec<Wire> = wires;
        if let Some(outlets) = &mut self.outlets {
            outlets.all = wires.into_iter().map(Outlet::new).collect();
        }
        Ok(reply)
    }

    fn are_kept(&mut self) -> Result<bool, Error> {
        let kept = self.outlets.as_mut().map(|outlets| outlets.are_kept(outlets.all.len() as u32));
        kept.unwrap_or(Ok(false)).map_err(|error| self.end_blocks(error))
    }

    /// The session is over, with all connections, for this reason.
    fn end_blocks(&mut self, error: Error) -> Error {
        self.outlets = None;
        self.control.set_broken();
        error
    }

    /// Sends the next bytes of a file; what connections hold of them then is theirs.
    ///
    /// # Errors
    /// The session is over.
    pub fn send(&mut self, going: &mut Going, bytes: &[u8]) -> Result<(), Error> {
        self.give_going(going, bytes).map_err(|error| self.broke_off(going, error))
    }

    /// Ends a file: the server's word that it has all of it.
    ///
    /// # Errors
    /// It has not, or nobody knows; the session is over.
    pub fn sent(&mut self, mut going: Going) -> Result<(), Error> {
        self.end_going(&mut going).map_err(|error| self.broke_off(&going, error))
    }

    /// Why a file was broken off: in the server's words where it has some. All is closed then.
    fn broke_off(&mut self, going: &Going, error: Error) -> Error {
        if !matches!(error, Error::Closed { .. } | Error::Lost { .. }) || self.control.is_broken() {
            return self.end_blocks(error);
        }
        // Of all connections it sees that nothing more comes.
        self.outlets = None;
        let patience = GIVING_UP.min(self.control.patience());
        let error = match self.control.last_reply_within(patience) {
            Ok(reply) if !matches!(reply.class(), Class::Completed) => {
                lost_or_refused(self.control.refused(&Command::Path("STOR", &going.path), &reply), error)
            }
            Ok(_) | Err(_) => error,
        };
        self.end_blocks(error)
    }

    fn give_going(&mut self, going: &mut Going, mut bytes: &[u8]) -> Result<(), Error> {
        going.since = Instant::now();
        let end = going.at.saturating_add(bytes.len() as u64);
        if end > going.size || going.ended {
            return Err(Error::Misfit(format!("{} bytes of a file of {}", end, going.size)));
        }
        loop {
            if self.hear_going(going)? {
                return Err(early(going));
            }
            let Some(outlets) = &mut self.outlets else { return Err(Error::Closed { doing: SENDING }) };
            let (count, mut full, mut moved) = (outlets.all.len(), 0, false);
            while !bytes.is_empty() && full < count {
                let at = outlets.turn % count;
                outlets.turn = (at + 1) % count;
                let lane = &mut outlets.all[at];
                moved |= lane.push()?;
                let len = bytes.len().min(lane.block_len());
                let header = Header::data(going.at, len as u64)?.encode();
                let is_last = going.at + len as u64 == going.size && count == 1;
                // Where there is one connection, all of a small file goes by one call.
                let last = Header::ends(1, false)?.next().map(|end| end.encode());
                let last = last.as_ref().filter(|_| is_last).map_or(&[][..], |end| &end[..]);
                if !lane.is_free() || !lane.put([&header, &bytes[..len], last])? {
                    full += 1;
                    continue;
                }
                bytes = &bytes[len..];
                going.at += len as u64;
                going.ended = is_last;
                (full, moved) = (0, true);
            }
            if bytes.is_empty() {
                return Ok(());
            }
            self.wait_going(going, moved)?;
        }
    }

    fn end_going(&mut self, going: &mut Going) -> Result<(), Error> {
        if going.at != going.size {
            return Err(Error::Misfit(format!("{} bytes of a file of {}", going.at, going.size)));
        }
        going.since = Instant::now();
        let Some(outlets) = &mut self.outlets else { return Err(Error::Closed { doing: SENDING }) };
        if !going.ended {
            for node in 0..outlets.nodes {
                let lanes = outlets.all.iter_mut().skip(node).step_by(outlets.nodes);
                let ends = Header::ends(lanes.len() as u64, false)?;
                for (lane, end) in lanes.zip(ends) {
                    lane.add(&end.encode());
                }
            }
            going.ended = true;
        }
        loop {
            let Some(outlets) = &mut self.outlets else { return Err(Error::Closed { doing: SENDING }) };
            let (mut moved, mut out) = (false, true);
            for lane in &mut outlets.all {
                moved |= lane.push()?;
                out &= lane.is_out()?;
            }
            if self.hear_going(going)? {
                if !out {
                    return Err(early(going));
                }
                if let Some(outlets) = &mut self.outlets
                    && outlets.all.iter().any(|lane| lane.is_closed)
                {
                    outlets.all.clear();
                }
                return Ok(());
            }
            self.wait_going(going, moved)?;
        }
    }

    /// Hears what the server says of a file meanwhile, and waits for nothing: whether it says that it has
    /// all.
    fn hear_going(&mut self, going: &mut Going) -> Result<bool, Error> {
        for _ in 0..HEARD_MAX {
            let Some(reply) = self.control.ready_reply()? else { return Ok(false) };
            match reply.class() {
                Class::Preliminary => going.mark(&reply)?,
                Class::Completed if matches!(reply.code(), 226 | 250) => return Ok(true),
                Class::Completed | Class::Intermediate => {
                    let stor = Command::Path("STOR", &going.path);
                    return Err(Error::OutOfStep { said: said(&stor), code: reply.code() });
                }
                _ => return Err(self.control.refused(&Command::Path("STOR", &going.path), &reply)),
            }
        }
        Ok(false)
    }

    /// Waits until a connection takes something or the server says something; not for longer than the
    /// patience.
    fn wait_going(&mut self, going: &mut Going, moved: bool) -> Result<(), Error> {
        self.control
            .stop()
            .check_of(going.since)
            .map_err(|stop| Error::Lost { doing: SENDING, cause: stop.into() })?;
        let patience = self.control.patience();
        if moved {
            going.since = Instant::now();
        }
        let left = patience.checked_sub(going.since.elapsed()).filter(|left| *left > Duration::ZERO);
        let Some(left) = left else { return Err(Error::silent(SENDING, patience)) };
        let Some(outlets) = &mut self.outlets else { return Err(Error::Closed { doing: SENDING }) };
        let has_rest = self.control.has_rest();
        let mut fds = Vec::with_capacity(outlets.all.len() + 1);
        fds.push(PollFd::new(self.control.socket(), PollFlags::IN));
        let mut open = Vec::with_capacity(outlets.all.len());
        for (at, lane) in outlets.all.iter_mut().enumerate().filter(|(_, lane)| !lane.is_closed) {
            let wants = !going.ended || !lane.is_out()?;
            open.push((at, if wants { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN }));
        }
        fds.extend(open.iter().map(|(at, flags)| PollFd::new(outlets.all[*at].wire.socket(), *flags)));
        let time = if has_rest { Duration::ZERO } else { self.control.stop().until_look(left) };
        let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
        match poll(&mut fds, Some(&time)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Error::Lost { doing: SENDING, cause: errno.into() }),
        }
        let speaks =
            |fd: &PollFd<'_>| fd.revents().intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR);
        let ready: Vec<usize> =
            open.iter().zip(&fds[1..]).filter(|(_, fd)| speaks(fd)).map(|((at, _), _)| *at).collect();
        drop(fds);
        for at in ready {
            let lane = &mut outlets.all[at];
            if lane.hears_nothing()? {
                continue;
            }
            if !going.ended || !lane.is_out().unwrap_or(false) {
                return Err(Error::Closed { doing: SENDING });
            }
            // It does not keep it, and has all of it.
            lane.is_closed = true;
        }
        Ok(())
    }
}

impl Going {
    /// What the server says that it has, which proves nothing.
    pub fn safe(&self) -> &Ranges {
        &self.safe
    }

    /// What the server says that it has, or took: something new shows that it is at work.
    fn mark(&mut self, reply: &Reply) -> Result<(), Error> {
        let before = (self.safe.total(), self.moved);
        match reply.code() {
            RESTART => {
                let Ok(ranges) = parse_restart(reply) else { return Ok(()) };
                let end = ranges.list().last().map_or(0, |(_, end)| *end);
                if end > self.at && !haul_mutant::removed("ftp-markers-name-what-was-sent") {
                    let why =
                        format!("the server says that it has bytes up to {end}, and {} were sent", self.at);
                    return Err(Error::Misfit(why));
                }
                // Of more ranges than can be counted nothing follows.
                let _ = self.safe.merge(&ranges);
            }
            PERFORMANCE => {
                let told = Performance::parse(reply).map_or(0, |told| told.moved);
                self.moved = self.moved.max(told.min(self.at));
            }
            _ => {}
        }
        if (self.safe.total(), self.moved) > before {
            self.since = Instant::now();
        }
        Ok(())
    }
}

fn failed(cause: io::Error) -> Error {
    Error::Lost { doing: "opening a data connection", cause }
}

/// Its word comes before all was sent.
fn early(going: &Going) -> Error {
    let said = said(&Command::Path("STOR", &going.path));
    Error::Misfit(format!("{said}: the server says that it has all before all was sent"))
}

/// What the server says of a connection that broke: that it broke is what was seen here, and may pass.
fn lost_or_refused(refused: Error, lost: Error) -> Error {
    let Error::Refused { code, text, .. } = &refused else { return refused };
    let text = text.to_ascii_lowercase();
    let says_lost = ["end-of-file", "end of file", "connection reset", "broken pipe"];
    if *code >= 500 && says_lost.iter().any(|words| text.contains(words)) && !refused.is_no_room() {
        return lost;
    }
    refused
}
