//! The data nodes of a striped server, as its front end uses them for one client.
//!
//! In: what the client agreed (`SPAS`, `SPOR`), a file. Out: its bytes by the nodes, their markers as those
//! of one transfer.
//! What must hold: an upload is whole only when every node said that all that came to it is on media and that
//! it writes no more; a node to which nobody connected counts for that only where `ALLO` announced just the
//! bytes that came to the others, for else nobody knows what it would have got. After anything that goes
//! wrong the links are closed, by which nodes end what they do, and nothing is published.
//! Where both ends of data connections show whose they are, nodes are told what the client delegated, over
//! their links, for his session alone; it is never written anywhere.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use haul_gridftp::address::{self, host_port};
use haul_gridftp::line::Iac;
use haul_gridftp::markers::{PERFORMANCE, Performance, RESTART, parse_restart, restart};
use haul_gridftp::reply::{Class, Reply, ReplyReader};
use rustix::event::PollFlags;

use super::Session;
use super::node::{Stripe, Task, VERB, listed};
use crate::config::{CHANNELS_MAX, CONNECT_WITHIN, Secret};
use crate::control::{Abort, Control};
use crate::data::Way;
use crate::guard::wait;
use crate::link;
use crate::part::Upload;
use crate::progress::Progress;
use crate::seen::Seen;
use crate::store::Round;
use crate::transfer::Stop;
use crate::tree::{Tree, shown};
use zeroize::Zeroizing;

/// So long a node may take for an answer to what needs no client.
const ANSWERS_WITHIN: Duration = Duration::from_secs(15);
/// The same to end what it does: what it has is synced then.
const ENDS_WITHIN: Duration = Duration::from_secs(10);
/// Who waits for nodes looks so often whether that is still worth it.
const LOOKS_EVERY: Duration = Duration::from_secs(1);
/// A node tells how far it is at each marker, also where nothing comes to it and where its client takes
/// nothing. One that misses so many waits for a file system that hangs, or is stopped; its link stands all
/// the same.
const MARKERS_MISSED_MAX: u32 = 60;
const SILENT_MIN: Duration = Duration::from_secs(20);

/// Where all bytes came to some nodes the others wait for at least so long: their sender may be about to
/// connect, if only to say that it has nothing, and one that is refused takes the transfer for failed.
const LATE_MIN: Duration = Duration::from_millis(20);

/// And at most.
const LATE_MAX: Duration = Duration::from_secs(2);

/// How long that is where the first connection came after `took`: what is slow to come to one node is to the
/// others.
fn late_by(took: Duration) -> Duration {
    if haul_mutant::removed("ftpd-nodes-wait-for-who-is-late") {
        return Duration::ZERO;
    }
    LATE_MAX.min(LATE_MIN + 2 * took)
}

/// The transfer was agreed with nodes, and is not any more.
const NOT_AGREED: &str = "Nothing is agreed with the data nodes any more";

/// What the client agreed with several nodes, one for each stripe.
pub(super) struct Stripes {
    nodes: Vec<Node>,
    pub(super) way: Way,
    pace: Pace,
}

/// A link to a node, which has one stripe.
struct Node {
    at: SocketAddr,
    socket: UnixStream,
    reader: ReplyReader,
    unread: Vec<u8>,
    state: State,
    /// It waits for nobody.
    is_idle: bool,
    /// Bytes that it says it has moved of this transfer.
    moved: u64,
    /// When it last said anything.
    heard: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No data connection came.
    Waits,
    Moves,
    Done,
}

/// How often nodes tell that they go on, and when one that does not has failed.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// Told to the nodes.
    every: Duration,
    silent_max: Duration,
}

impl Pace {
    /// A client may have markers more often than the server's own, not less: nodes that are given up after so
    /// many of the server's are never told to be silent for longer.
    fn new(server: Duration, client: Option<Duration>) -> Pace {
        let asked = client.unwrap_or(server);
        let every =
            if haul_mutant::removed("ftpd-nodes-are-told-their-pace") { server } else { asked.min(server) };
        Pace { every, silent_max: SILENT_MIN.max(server.saturating_mul(MARKERS_MISSED_MAX)) }
    }
}

/// What nodes said together.
enum Turn {
    Goes,
    Over,
}

impl Node {
    /// To a node that serves this client.
    fn open(at: SocketAddr, key: &Secret, task: &Task) -> io::Result<Node> {
        let socket = link::dial(at, key)?;
        let reader = ReplyReader::new(Iac::Plain);
        let (unread, state, heard) = (Vec::new(), State::Waits, Instant::now());
        let mut node = Node { at, socket, reader, unread, state, is_idle: false, moved: 0, heard };
        node.answer(230)?;
        node.ask(&said(task), 200)?;
        node.ask("MODE E", 200)?;
        Ok(node)
    }

    fn say(&mut self, line: &str) -> io::Result<()> {
        let until = Instant::now() + ANSWERS_WITHIN;
        // It may hold a key.
        let line = Zeroizing::new(format!("{line}\r\n"));
        let mut bytes = line.as_bytes();
        while !bytes.is_empty() {
            match self.socket.write(bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(len) => bytes = &bytes[len..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(PollFlags::OUT, until)?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn wait(&self, flags: PollFlags, until: Instant) -> io::Result<()> {
        wait(&self.socket, flags, until)
    }

    /// The next reply, if it is there.
    fn reply(&mut self) -> io::Result<Option<Reply>> {
        loop {
            let (taken, reply) = self.reader.feed(&self.unread).map_err(io::Error::other)?;
            self.unread.drain(..taken);
            if reply.is_some() {
                return Ok(reply);
            }
            let mut bytes = [0; 4096];
            match self.socket.read(&mut bytes) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(len) => self.unread.extend_from_slice(&bytes[..len]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn next(&mut self, until: Instant) -> io::Result<Reply> {
        loop {
            if let Some(reply) = self.reply()? {
                return Ok(reply);
            }
            self.wait(PollFlags::IN, until)?;
        }
    }

    fn answer(&mut self, code: u16) -> io::Result<Reply> {
        let reply = self.next(Instant::now() + ANSWERS_WITHIN)?;
        if reply.code() == code {
            return Ok(reply);
        }
        Err(io::Error::other(String::from_utf8_lossy(reply.text()).into_owned()))
    }

    fn ask(&mut self, line: &str, code: u16) -> io::Result<Reply> {
        self.say(line)?;
        self.answer(code)
    }

    fn refused(&self, reply: &Reply) -> Stop {
        let text = String::from_utf8_lossy(reply.text());
        Stop::Node(reply.code(), format!("The data node {}: {}", self.at, text.trim_end_matches('.')))
    }

    /// What went wrong there, for the client and the log.
    fn lost(&self, error: &io::Error) -> Stop {
        let why = match error.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => "is gone".into(),
            ErrorKind::TimedOut => "does not answer".into(),
            _ => format!("fails: {error}"),
        };
        Stop::Node(426, format!("The data node {} {why}", self.at))
    }
}

fn said(task: &Task) -> Zeroizing<String> {
    let task = Zeroizing::new(serde_json::to_string(task).expect("plain fields serialise"));
    Zeroizing::new(String::from_utf8_lossy(VERB).into_owned() + &task)
}

impl Stripes {
    /// Begins a transfer at every node, by what each is to do.
    fn begin(&mut self, task: impl Fn(usize) -> String) -> Result<(), Stop> {
        for (index, node) in self.nodes.iter_mut().enumerate() {
            (node.state, node.is_idle, node.moved) = (State::Waits, false, 0);
            node.heard = Instant::now();
            node.say(&task(index)).map_err(|error| node.lost(&error))?;
        }
        Ok(())
    }

    /// Every node says that this is as the front end sees it, before anything is done at any of them.
    fn all_see(&mut self, task: &Task) -> Result<(), Stop> {
        let line = said(task);
        for node in &mut self.nodes {
            node.say(&line).map_err(|error| node.lost(&error))?;
        }
        for node in &mut self.nodes {
            let reply = node.next(Instant::now() + ANSWERS_WITHIN).map_err(|error| node.lost(&error))?;
            if reply.code() != 200 {
                return Err(node.refused(&reply));
            }
        }
        Ok(())
    }

    /// Waits for what nodes say, and takes it.
    fn turn(
        &mut self,
        control: &mut Control,
        mut upload: Option<&mut Upload>,
        (progress, tells): (&Progress, bool),
        within: Duration,
    ) -> Result<Turn, Stop> {
        let count = self.nodes.len();
        let going: Vec<usize> = (0..count).filter(|i| self.nodes[*i].state != State::Done).collect();
        if going.is_empty() {
            return Ok(Turn::Over);
        }
        let wanted: Vec<(BorrowedFd<'_>, PollFlags)> =
            going.iter().map(|i| (self.nodes[*i].socket.as_fd(), PollFlags::IN)).collect();
        // Whether anything moves each node sees itself, as long as it runs; a host that is gone ends its
        // link.
        match control.wait(&wanted, Instant::now() + within, Some(progress)) {
            Err(Abort::Late) => {}
            other => drop(other?),
        }
        for index in going {
            loop {
                let is_first = self.nodes.iter().all(|node| node.state == State::Waits);
                let node = &mut self.nodes[index];
                let reply = node.reply().map_err(|error| node.lost(&error))?;
                let Some(reply) = reply else {
                    let looks = upload.is_some() || !haul_mutant::removed("ftpd-silent-senders-are-given-up");
                    let is_silent = looks && node.heard.elapsed() > self.pace.silent_max;
                    if is_silent && !haul_mutant::removed("ftpd-nodes-that-hang-are-given-up") {
                        return Err(node.lost(&ErrorKind::TimedOut.into()));
                    }
                    break;
                };
                node.heard = Instant::now();
                match reply.code() {
                    PERFORMANCE => {
                        let moved = Performance::parse(&reply)?.moved;
                        // A node counts the bytes of a transfer, and so they never get fewer.
                        progress.add(usize::try_from(moved.saturating_sub(node.moved)).unwrap_or(0));
                        node.moved = node.moved.max(moved);
                        if tells {
                            let told = Performance::parse(&reply)?;
                            let (stripe, stripes) = (index as u32, count as u32);
                            control.send(&Performance { stripe, stripes, ..told }.reply());
                        }
                    }
                    RESTART => {
                        let ranges = parse_restart(&reply)?;
                        if let Some(upload) = &mut upload {
                            upload.arrived(&ranges)?;
                            if tells && upload.is_recorded() {
                                control.send(&restart(&ranges));
                            }
                        }
                    }
                    _ if reply.class() == Class::Preliminary => {
                        if is_first {
                            let kept = reply.code() == 125;
                            let text =
                                if kept { "The data connections are open" } else { "The nodes have begun" };
                            control
                                .say(if kept { 125 } else { 150 }, &format!("{text}; the transfer begins."));
                        }
                        node.state = State::Moves;
                    }
                    // From an earlier command, which needs no more.
                    200 => {}
                    226 => {
                        node.state = State::Done;
                        break;
                    }
                    // Nobody agreed on anything with it, as where all went to others before.
                    425 if node.state == State::Waits && upload.is_some() => {
                        node.is_idle = true;
                        break;
                    }
                    _ => return Err(node.refused(&reply)),
                }
            }
        }
        Ok(Turn::Goes)
    }

    /// Those to whom nobody came write nothing from here on, not if somebody comes now either, and are no
    /// more.
    fn dismiss(&mut self) -> Result<(), Stop> {
        let until = Instant::now() + ENDS_WITHIN;
        for node in self.nodes.iter_mut().filter(|node| node.state == State::Waits && !node.is_idle) {
            let ended = node.say("ABOR").and_then(|()| {
                loop {
                    let reply = node.next(until)?;
                    match reply.code() {
                        426 => return Ok(()),
                        _ if reply.code() != RESTART && reply.class() == Class::Preliminary => {}
                        // Something came to it after all.
                        _ => return Err(io::Error::other("somebody came late")),
                    }
                }
            });
            ended.map_err(|error| node.lost(&error))?;
        }
        self.nodes.retain(|node| node.state == State::Done);
        Ok(())
    }

    /// Something went wrong: what nodes have is told still, and all is over.
    fn end(mut self, control: &mut Control, upload: &mut Upload, tells: bool) {
        let until = Instant::now() + ENDS_WITHIN;
        for node in &mut self.nodes {
            if node.state == State::Moves && node.say("ABOR").is_err() {
                node.state = State::Done;
            }
        }
        for node in self.nodes.iter_mut().filter(|node| node.state == State::Moves) {
            while let Ok(reply) = node.next(until) {
                match reply.code() {
                    RESTART => {
                        let Ok(ranges) = parse_restart(&reply) else { break };
                        if upload.arrived(&ranges).is_err() {
                            return;
                        }
                        if tells && upload.is_recorded() {
                            control.send(&restart(&ranges));
                        }
                    }
                    _ if reply.class() == Class::Preliminary => {}
                    _ => break,
                }
            }
        }
    }
}

impl Session {
    /// Each node listens. The code of the reply.
    pub(super) fn passive_nodes(&mut self) -> u16 {
        if self.epsv_only {
            return self.plain(501, "After EPSV ALL only EPSV is served.");
        }
        self.data.close();
        let six = self.data.is_ipv6();
        let ask = if six { "SPAS 2" } else { "SPAS" };
        let listens = |node: &mut Node| {
            let reply = node.ask(ask, 229)?;
            let told = address::parse_spas(&reply).map_err(io::Error::other)?;
            told.first().copied().ok_or_else(|| io::Error::from(ErrorKind::InvalidData))
        };
        let mut addresses = Vec::new();
        let all = self.config.nodes.clone();
        let pace = self.pace();
        match self.nodes(&all, pace, |node, _| listens(node).map(|at| addresses.push(at))) {
            Ok(nodes) => self.stripes = Some(Stripes { nodes, way: Way::In, pace }),
            Err(why) => return self.plain(425, &format!("SPAS: {why}.")),
        }
        match address::spas_reply(&addresses) {
            Ok(reply) => {
                self.control.send(&reply);
                reply.code()
            }
            Err(_) => {
                self.stripes = None;
                self.plain(522, "The nodes are of another family of addresses: SPAS 2.")
            }
        }
    }

    /// Each stripe has a node, which will dial its address. The code of the reply.
    pub(super) fn active_nodes(&mut self, addresses: &[SocketAddr]) -> u16 {
        self.stripes = None;
        if addresses.len() > CHANNELS_MAX {
            return self.plain(504, "These are more stripes than a transfer has connections here.");
        }
        // The first last: what is told of names goes there, from this host.
        for address in addresses.iter().rev() {
            if self.epsv_only || self.data.dial_to(*address).is_err() {
                return self.active(*address);
            }
        }
        let all = self.config.nodes.clone();
        let at: Vec<SocketAddr> = all.iter().copied().cycle().take(addresses.len()).collect();
        let dials = |node: &mut Node, index: usize| {
            let to = addresses[index];
            let line = host_port(to)
                .map_or_else(|_| format!("EPRT {}", address::extended(to)), |text| format!("PORT {text}"));
            node.ask(&line, 200).map(drop)
        };
        let pace = self.pace();
        match self.nodes(&at, pace, dials) {
            Ok(nodes) => {
                self.stripes = Some(Stripes { nodes, way: Way::Out, pace });
                self.plain(200, "Data will go there.")
            }
            Err(why) => {
                self.data.close();
                self.plain(425, &format!("SPOR: {why}."))
            }
        }
    }

    fn pace(&self) -> Pace {
        Pace::new(self.config.marker_interval, self.with.markers)
    }

    fn nodes(
        &mut self,
        at: &[SocketAddr],
        pace: Pace,
        mut each: impl FnMut(&mut Node, usize) -> io::Result<()>,
    ) -> Result<Vec<Node>, String> {
        self.stripes = None;
        let Some(key) = self.node_key.clone() else { return Err("there is no key for nodes".into()) };
        let (markers, shown) = (pace.every, self.shown_at_nodes()?);
        let task = Task::Serve { client: self.peer, third_party: self.config.third_party, markers, shown };
        let mut nodes = Vec::new();
        for (index, at) in at.iter().enumerate() {
            let opened = Node::open(*at, &key, &task);
            let opened = opened.and_then(|mut node| each(&mut node, index).map(|()| node));
            match opened {
                Ok(node) => nodes.push(node),
                Err(error) => {
                    let why = format!("the data node {at}: {}", haul_base::errno::text(&error));
                    self.log.note("error", Some(self.peer), None, &why);
                    return Err(why);
                }
            }
        }
        Ok(nodes)
    }

    /// What comes next goes to nodes.
    pub(super) fn is_taken_by_nodes(&self) -> bool {
        self.with.mode == b'E' && self.stripes.as_ref().is_some_and(|stripes| stripes.way == Way::In)
    }

    /// What is asked for next comes from nodes.
    pub(super) fn is_sent_by_nodes(&self) -> bool {
        self.with.mode == b'E' && self.stripes.as_ref().is_some_and(|stripes| stripes.way == Way::Out)
    }

    /// Has the nodes take all that comes; how many there were.
    pub(super) fn receive_by_nodes(
        &mut self,
        tree: &Tree,
        upload: &mut Upload,
        path: &[u8],
        expected: Option<u64>,
        progress: &Progress,
    ) -> Result<usize, Stop> {
        let Some(mut stripes) = self.stripes.take() else { return Err(Stop::Missing(NOT_AGREED)) };
        let whole = shown(&tree.components(&self.here, path)?);
        let (part, seen, held) = upload.give_to_nodes()?;
        let (held, at) = (listed(&held), upload.at);
        let (path, part) = (Secret(whole), Secret(part.as_bytes().to_vec()));
        let take = said(&Task::Take { path: path.clone() });
        stripes.all_see(&Task::Look { path, part, seen, at, held })?;
        let (begun, mut since, mut first) = (Instant::now(), None, None);
        let mut within = LOOKS_EVERY;
        let mut came = stripes.begin(|_| take.to_string());
        let came = loop {
            let turn =
                came.and_then(|()| stripes.turn(&mut self.control, Some(upload), (progress, true), within));
            match turn {
                Ok(Turn::Over) => break Ok(()),
                Ok(Turn::Goes) => came = Ok(()),
                Err(stop) => break Err(stop),
            }
            if first.is_none() && stripes.nodes.iter().any(|node| node.state != State::Waits) {
                first = Some(begun.elapsed());
            }
            let is = |state| stripes.nodes.iter().filter(|node| node.state == state).count();
            if is(State::Done) == 0 || is(State::Moves) > 0 || is(State::Waits) == 0 {
                (since, within) = (None, LOOKS_EVERY);
                continue;
            }
            let waits: Instant = *since.get_or_insert_with(Instant::now);
            if expected.is_some_and(|said| upload.at == 0 && upload.has_all(said)) {
                if waits.elapsed() >= late_by(first.unwrap_or_default()) {
                    break Ok(());
                }
                within = LATE_MIN;
                continue;
            }
            if waits.elapsed() >= CONNECT_WITHIN {
                break Err(Stop::Missing(
                    "No data connection came to some of the nodes, and without ALLO nobody knows whether that is all",
                ));
            }
        };
        match came.and_then(|()| stripes.dismiss()) {
            Ok(()) => {
                let count = stripes.nodes.len();
                self.stripes = Some(stripes);
                Ok(count)
            }
            Err(stop) => {
                stripes.end(&mut self.control, upload, true);
                Err(stop)
            }
        }
    }

    /// Has the nodes send these ranges of a file, which lies so; how many there were.
    pub(super) fn send_by_nodes(
        &mut self,
        tree: &Tree,
        path: &[u8],
        seen: Seen,
        (ranges, base, size): (&[(u64, u64)], u64, u64),
        round: Option<Round>,
        progress: &Progress,
    ) -> Result<usize, Stop> {
        let Some(mut stripes) = self.stripes.take() else { return Err(Stop::Missing(NOT_AGREED)) };
        let whole = shown(&tree.components(&self.here, path)?);
        let count = stripes.nodes.len() as u64;
        let stripes_of = Stripe::of_nodes(count, self.with.layout, size, round);
        let parallelism = self.with.parallelism;
        stripes.begin(|index| {
            let stripe = stripes_of(index as u64);
            let (path, ranges) = (Secret(whole.clone()), ranges.to_vec());
            let task = said(&Task::Send { path, seen, ranges, base, stripe });
            format!("OPTS RETR Parallelism={parallelism},{parallelism},{parallelism};\r\n{}", *task)
        })?;
        while let Turn::Goes = stripes.turn(&mut self.control, None, (progress, false), LOOKS_EVERY)? {}
        self.stripes = Some(stripes);
        Ok(count as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: whatever a client asks for, no node is given up that tells as often as it was told to.
    #[test]
    fn nodes_are_told_to_speak_in_time() {
        let times = [1, 999, 1_000, 5_000, 60_000, 600_000, u64::from(u32::MAX) * 1_000];
        let times = times.map(Duration::from_millis);
        for server in times {
            for client in times.into_iter().map(Some).chain([None]) {
                let pace = Pace::new(server, client);
                assert!(
                    pace.every * MARKERS_MISSED_MAX <= pace.silent_max,
                    "{server:?} {client:?}: {pace:?}"
                );
                assert!(pace.every <= client.unwrap_or(server), "{server:?} {client:?}: {pace:?}");
                assert_eq!(pace.silent_max, SILENT_MIN.max(server * MARKERS_MISSED_MAX));
            }
        }
    }
}
