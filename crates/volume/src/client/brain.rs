//! The thread of a client: one machine for each server as a gatherer, and one connection to each server.
//!
//! Invariants: each thing that is wanted is answered once; over a connection no more bytes are under way than
//! its server allows; an answer counts only over the connection over which it was asked.

mod costs;
mod pieces;
mod ticketed;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use haul_core::ids::Time;
use haul_core::volume::client::{Action, Client as Machine, OpNo, Outcome, Striping, Where};
use haul_core::volume::gather::{self, Part};
use haul_core::volume::storage;
use haul_core::volume::threshold::{self, Counts, Path, Served, Threshold};
use haul_core::volume::ticket::Sealed;
use haul_core::volume::wire::{Message, Work};
use haul_core::volume::{ContentVersion, FileNo, RequestNo, ServerNo};

use super::came::nowhere;
use super::renew::{Asks, Held, Renewal, Shown};
use super::{Away, Came, Config, Look, Map, Piece as Asked, READ_MAX, Read, VolumeError};
use crate::dial::Line;
use crate::line::{Bytes, Mouth};
use crate::server::{ALLOWANCE, held_by};

/// Bytes that are under way to or from one server.
const WINDOW: u64 = ALLOWANCE / 2;
/// Each gatherer hears as often that the client is there.
const PING_EVERY: Duration = Duration::from_secs(1);
/// Each server is heard every [`PING_EVERY`]; one that is not heard for so long says nothing.
const SILENT: Duration = Duration::from_secs(5);
const _: () = assert!(SILENT.as_millis() > 3 * PING_EVERY.as_millis());

type Reply<T> = Sender<Result<T, VolumeError>>;

/// Hears what became of a piece; it must not wait for anything.
pub(super) type Tell = Box<dyn FnOnce(Result<Came, VolumeError>) + Send>;

/// What the application wants.
pub(super) enum Want {
    Write {
        file: FileNo,
        offset: u64,
        bytes: Bytes,
        reply: Reply<()>,
    },
    Read {
        file: FileNo,
        offset: u64,
        len: u64,
        reply: Reply<Read>,
    },
    Sync {
        file: FileNo,
        reply: Reply<()>,
    },
    Append {
        file: FileNo,
        bytes: Bytes,
        reply: Reply<u64>,
    },
    Truncate {
        file: FileNo,
        len: u64,
        reply: Reply<()>,
    },
    Remove {
        file: FileNo,
        reply: Reply<()>,
    },
    Look {
        file: FileNo,
        reply: Reply<Look>,
    },
    Told {
        file: FileNo,
        version: ContentVersion,
        reply: Reply<bool>,
    },
    Map {
        file: FileNo,
        stripes: Range<u64>,
        reply: Reply<Map>,
    },
    /// Its answer is told at once when it is there.
    Piece {
        piece: Asked,
        to: Tell,
    },
    Threshold {
        reply: Reply<(u64, Counts)>,
    },
    Pin {
        threshold: u64,
    },
    Away {
        reply: Reply<Vec<Away>>,
    },
}

pub(super) enum Event {
    Want(Want),
    Line(ServerNo, Line),
    /// For these files the catalog was asked for tickets: for which of them it gave some, if it answered.
    Tickets(Vec<FileNo>, Option<Vec<FileNo>>),
    Stop,
}

enum Answer {
    Done(Reply<()>),
    Read(Reply<Read>, Read, u64),
    Look(Reply<Look>, Look),
    Told(Reply<bool>, bool),
    Map(Reply<Map>, Map),
    Piece(Tell, Option<Came>),
    /// With the bytes, until they stand there, and where that is.
    Append(Reply<u64>, Option<(FileNo, Bytes)>, u64),
}

/// Something that the application waits for.
struct Wanted {
    /// Pieces that are not over.
    left: usize,
    failed: Option<VolumeError>,
    answer: Option<Answer>,
    of: Vec<ServerNo>,
    /// Of a write: what the threshold waits to hear of.
    write: Option<(threshold::Request, Vec<Served>)>,
    is_sync: bool,
}

/// A piece of it: at a machine, of what is wanted; for reads, where. Of a write: when it was sent last.
struct Piece {
    wanted: u64,
    offset: u64,
    len: u64,
    begun: Time,
    sent: Option<Time>,
}

struct Connection {
    mouth: Mouth,
    /// What was asked, of which machine and by what number there, and the bytes that it holds.
    asked: BTreeMap<RequestNo, (usize, RequestNo, u64)>,
    held: u64,
    /// What waits for the window.
    waiting: VecDeque<(usize, RequestNo, Message, Bytes, u64)>,
    storage_joined: bool,
    gatherer_joined: bool,
    /// The ticket that was shown of each file.
    shown: BTreeMap<FileNo, u64>,
}

pub(super) struct Brain {
    /// `None`: servers want none.
    pub(super) tickets: Option<Renewal>,
    striping: Striping,
    threshold: Threshold,
    /// What the answer that is being heard was for its server.
    work: Option<(ServerNo, Work)>,
    patience: Duration,
    started: Instant,
    machines: Vec<Machine<Bytes>>,
    connections: BTreeMap<ServerNo, Connection>,
    /// Why a server is not there.
    down: BTreeMap<ServerNo, String>,
    /// When each server was heard last.
    heard: Vec<Instant>,
    wanted: BTreeMap<u64, Wanted>,
    /// When each of them is late, in that order; some are over.
    dues: VecDeque<(Instant, u64)>,
    pieces: BTreeMap<(usize, OpNo), Piece>,
    /// The bytes of a read that the gatherer has, until the storage server's are there.
    gathered: BTreeMap<(usize, RequestNo), (Vec<Part>, Bytes)>,
    next: u64,
    /// Numbers of requests, over all connections: what a gatherer answers late it answers over the newest
    /// one, and nothing else may have the number there.
    next_request: u64,
    pinged: Instant,
    /// When servers heard of costs last, and of how many writes.
    told: (Option<Instant>, u64),
}

impl Brain {
    pub(super) fn new(config: &Config, striping: Striping) -> Brain {
        Brain {
            tickets: None,
            threshold: Threshold::new(config.servers.len(), config.write_threshold),
            work: None,
            patience: config.patience,
            started: Instant::now(),
            machines: (0..striping.servers).map(|_| Machine::new(striping.clone())).collect(),
            striping,
            connections: BTreeMap::new(),
            down: BTreeMap::new(),
            heard: vec![Instant::now(); config.servers.len()],
            wanted: BTreeMap::new(),
            dues: VecDeque::new(),
            pieces: BTreeMap::new(),
            gathered: BTreeMap::new(),
            next: 0,
            next_request: 0,
            pinged: Instant::now(),
            told: (None, 0),
        }
    }

    fn now(&self) -> Time {
        Time(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    pub(super) fn run(mut self, events: &Receiver<Event>) {
        loop {
            self.act();
            let due = self.dues.front();
            let pause = due.map_or(PING_EVERY, |(due, _)| due.saturating_duration_since(Instant::now()));
            match events.recv_timeout(pause.clamp(Duration::from_millis(1), PING_EVERY)) {
                Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => return self.tell_costs(),
                Ok(Event::Want(want)) => self.want(want),
                Ok(Event::Line(server, line)) => self.line(server, line),
                Ok(Event::Tickets(files, given)) => self.tickets_told(files, given),
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.tick();
        }
    }

    fn tick(&mut self) {
        if self.pinged.elapsed() >= PING_EVERY {
            self.pinged = Instant::now();
            let now = self.now();
            let joined = self.connections.values().filter(|connection| connection.gatherer_joined);
            joined.for_each(|connection| connection.mouth.say(Message::Ping(now.0), Bytes::default()));
            self.tell_costs_now_and_then();
        }
        let now = Instant::now();
        while let Some((due, no)) = self.dues.front().copied()
            && (due <= now || !self.wanted.contains_key(&no))
        {
            self.dues.pop_front();
            let Some(wanted) = self.wanted.get(&no) else { continue };
            let why = wanted.of.iter().find_map(|server| {
                self.down.get(server).map(|why| format!("server {} of the volume: {why}", server.0))
            });
            let why = why.or_else(|| self.no_ticket());
            let silent = || {
                let names: Vec<String> = wanted.of.iter().map(|server| server.0.to_string()).collect();
                format!(
                    "server {} is connected and has not answered; `haul volume health` says which servers do not reach \
                     each other",
                    names.join(" or ")
                )
            };
            let why = why.unwrap_or_else(silent);
            let error = VolumeError::Late(self.patience, why);
            if let Some(wanted) = self.wanted.get_mut(&no) {
                // It may come to an end still, and nobody hears of it.
                match wanted.answer.take() {
                    Some(Answer::Done(reply)) => _ = reply.send(Err(error)),
                    Some(Answer::Read(reply, ..)) => _ = reply.send(Err(error)),
                    Some(Answer::Look(reply, _)) => _ = reply.send(Err(error)),
                    Some(Answer::Told(reply, _)) => _ = reply.send(Err(error)),
                    Some(Answer::Map(reply, _)) => _ = reply.send(Err(error)),
                    Some(Answer::Piece(tell, _)) => tell(Err(error)),
                    Some(Answer::Append(reply, ..)) => _ = reply.send(Err(error)),
                    None => {}
                }
            }
        }
    }

    /// The machine of the server that gathers a file.
    fn machine_of(&self, file: FileNo) -> usize {
        self.striping.gatherer(file).0.into()
    }

    /// Where a byte of a file lies.
    fn server_of(&self, file: FileNo, at: u64) -> ServerNo {
        self.striping.server(file, at / self.striping.stripe_size)
    }

    fn op(&mut self, machine: usize, wanted: u64, (offset, len): (u64, u64)) -> OpNo {
        let op = OpNo(self.next);
        self.next += 1;
        let piece = Piece { wanted, offset, len, begun: self.now(), sent: None };
        self.pieces.insert((machine, op), piece);
        op
    }

    fn wants(&mut self, left: usize, answer: Answer, of: Vec<ServerNo>) -> u64 {
        let no = self.next;
        self.next += 1;
        self.dues.push_back((Instant::now() + self.patience, no));
        let wanted = Wanted { left, failed: None, answer: Some(answer), of, write: None, is_sync: false };
        self.wanted.insert(no, wanted);
        if left == 0 {
            self.end(no);
        }
        no
    }

    /// Which servers may have to do with a range.
    fn servers_of(&self, machine: usize, file: FileNo, pieces: &[(u64, u64)]) -> Vec<ServerNo> {
        let storage = pieces.iter().map(|(at, _)| self.server_of(file, *at));
        storage.chain([ServerNo(machine as u16)]).collect()
    }

    fn want(&mut self, want: Want) {
        let now = self.now();
        match want {
            Want::Write { file, offset, bytes, reply } => {
                let machine = self.machine_of(file);
                let len = bytes.len() as u64;
                let pieces = cut(self.striping.stripe_size, offset, len, u64::MAX);
                let size = self.striping.stripe_size;
                let each = |(at, len): &(u64, u64)| threshold::Piece {
                    server: self.server_of(file, *at).0.into(),
                    stripe: at / size,
                    len: *len,
                    behind: size - (at % size + len),
                };
                let each: Vec<threshold::Piece> = pieces.iter().map(each).collect();
                let of = self.servers_of(machine, file, &pieces);
                let wanted = self.wants(pieces.len(), Answer::Done(reply), of);
                let Some(waits) = self.wanted.get_mut(&wanted) else { return };
                let request = self.threshold.begin(now, (file, len), machine, &each, None);
                let path = request.path;
                waits.write = Some((request, Vec::new()));
                for (at, len) in pieces {
                    let op = self.op(machine, wanted, (at, len));
                    let from = (at - offset) as usize;
                    let piece = match len as usize == bytes.len() {
                        true => bytes.clone(),
                        false => Arc::new(bytes[from..from + len as usize].to_vec()),
                    };
                    self.machines[machine].write(now, op, path, file, (at, len), piece);
                }
            }
            Want::Read { file, offset, len, reply } => {
                let machine = self.machine_of(file);
                let pieces = cut(self.striping.stripe_size, offset, len, READ_MAX);
                let read = Read { bytes: vec![0; len as usize], end: 0, nowhere: None };
                let of = self.servers_of(machine, file, &pieces);
                if pieces.is_empty() {
                    let wanted = self.wants(1, Answer::Read(reply, read, offset), of);
                    let op = self.op(machine, wanted, (offset, 0));
                    return self.machines[machine].length(now, op, file);
                }
                let wanted = self.wants(pieces.len(), Answer::Read(reply, read, offset), of);
                for (at, len) in pieces {
                    let op = self.op(machine, wanted, (at, len));
                    self.machines[machine].read(now, op, file, at, len);
                }
            }
            Want::Append { file, bytes, reply } => {
                let machine = self.machine_of(file);
                let of = (0..self.machines.len()).map(|server| ServerNo(server as u16)).collect();
                let answer = Answer::Append(reply, Some((file, bytes.clone())), 0);
                let len = bytes.len() as u64;
                let wanted = self.wants(1, answer, of);
                let op = self.op(machine, wanted, (0, len));
                self.machines[machine].append(now, op, file, len, bytes);
            }
            Want::Truncate { file, len, reply } => {
                let machine = self.machine_of(file);
                let of = (0..self.machines.len()).map(|server| ServerNo(server as u16)).collect();
                let wanted = self.wants(1, Answer::Done(reply), of);
                let op = self.op(machine, wanted, (0, 0));
                self.machines[machine].truncate(now, op, file, len);
            }
            Want::Remove { file, reply } => {
                let machine = self.machine_of(file);
                let of = (0..self.machines.len()).map(|server| ServerNo(server as u16)).collect();
                let wanted = self.wants(1, Answer::Done(reply), of);
                let op = self.op(machine, wanted, (0, 0));
                self.machines[machine].remove(now, op, file);
            }
            Want::Look { file, reply } => {
                let machine = self.machine_of(file);
                // All of them may have to say that nothing more comes.
                let of = (0..self.machines.len()).map(|server| ServerNo(server as u16)).collect();
                let wanted = self.wants(1, Answer::Look(reply, Look::default()), of);
                let op = self.op(machine, wanted, (0, 0));
                self.machines[machine].look(now, op, file);
            }
            Want::Told { file, version, reply } => {
                let machine = self.machine_of(file);
                let of = self.servers_of(machine, file, &[]);
                let wanted = self.wants(1, Answer::Told(reply, false), of);
                let op = self.op(machine, wanted, (0, 0));
                self.machines[machine].told(now, op, file, version);
            }
            Want::Map { file, stripes, reply } => self.want_map(file, stripes, reply),
            Want::Piece { piece, to } => self.want_piece(&piece, to),
            Want::Pin { threshold } => self.threshold.pin(threshold),
            Want::Threshold { reply } => {
                let _ = reply.send(Ok((self.threshold.threshold(), self.threshold.counts())));
            }
            Want::Away { reply } => _ = reply.send(Ok(self.away())),
            Want::Sync { file, reply } => {
                let machine = self.machine_of(file);
                let of = (0..self.machines.len()).map(|server| ServerNo(server as u16)).collect();
                let wanted = self.wants(1, Answer::Done(reply), of);
                if let Some(waits) = self.wanted.get_mut(&wanted) {
                    waits.is_sync = true;
                    self.threshold.sync_begins(now);
                }
                let op = self.op(machine, wanted, (0, 0));
                self.machines[machine].sync(now, op, file);
            }
        }
    }

    fn end(&mut self, no: u64) {
        let Some(wanted) = self.wanted.remove(&no) else { return };
        let now = self.now();
        if wanted.is_sync {
            self.threshold.sync_ends(now);
        }
        if let Some((request, served)) = wanted.write {
            // What was asked again after a connection broke tells nothing of what writes cost.
            match wanted.failed.is_none() && !served.is_empty() {
                true => self.threshold.end(now, request, &served),
                false => self.threshold.give_up(now, request),
            }
        }
        match (wanted.answer, wanted.failed) {
            (Some(Answer::Done(reply)), failed) => _ = reply.send(failed.map_or(Ok(()), Err)),
            (Some(Answer::Look(reply, look)), failed) => _ = reply.send(failed.map_or(Ok(look), Err)),
            (Some(Answer::Told(reply, told)), failed) => _ = reply.send(failed.map_or(Ok(told), Err)),
            (Some(Answer::Map(reply, map)), failed) => _ = reply.send(failed.map_or(Ok(map), Err)),
            (Some(Answer::Piece(tell, came)), failed) => {
                tell(failed.map_or_else(|| came.ok_or(VolumeError::Closed), Err));
            }
            (Some(Answer::Read(reply, read, _)), failed) => _ = reply.send(failed.map_or(Ok(read), Err)),
            (Some(Answer::Append(reply, _, at)), failed) => _ = reply.send(failed.map_or(Ok(at), Err)),
            (None, _) => {}
        }
    }

    fn line(&mut self, server: ServerNo, line: Line) {
        let now = self.now();
        match line {
            Line::Up(_, mouth) => {
                let connection = Connection {
                    mouth,
                    asked: BTreeMap::new(),
                    held: 0,
                    waiting: VecDeque::new(),
                    storage_joined: false,
                    gatherer_joined: false,
                    shown: BTreeMap::new(),
                };
                self.connections.insert(server, connection);
            }
            Line::Down(why) => {
                self.down.insert(server, why);
                if let Some(tickets) = &mut self.tickets {
                    tickets.lost(server);
                }
                if let Some(connection) = self.connections.remove(&server) {
                    if connection.storage_joined {
                        self.machines.iter_mut().for_each(|machine| machine.server_lost(server));
                    }
                    if connection.gatherer_joined {
                        self.machines[usize::from(server.0)].gatherer_lost();
                    }
                }
            }
            Line::Said(message, bytes) => {
                let Some(connection) = self.connections.get_mut(&server) else { return };
                if let Some(heard) = self.heard.get_mut(usize::from(server.0)) {
                    *heard = Instant::now();
                }
                match message {
                    Message::StorageJoined(life) => {
                        connection.storage_joined = true;
                        self.down.remove(&server);
                        self.machines.iter_mut().for_each(|machine| machine.server_joined(now, server, life));
                    }
                    Message::GathererJoined(life) => {
                        connection.gatherer_joined = true;
                        self.machines[usize::from(server.0)].gatherer_joined(now, life);
                    }
                    Message::Pong(said) => self.machines[usize::from(server.0)].heard(now, Time(said)),
                    Message::Recall(file, stripes) => {
                        self.machines[usize::from(server.0)].recalled(now, file, stripes);
                    }
                    Message::Gathered(number, answer, work) => {
                        if matches!(answer, gather::Answer::Durable) {
                            self.threshold.synced(Path::Gather, server.0.into(), work.busy);
                        }
                        self.work = Some((server, work));
                        self.gathered(server, number, answer, bytes);
                    }
                    Message::Stored(number, answer, work) => {
                        if matches!(answer, storage::Answer::Durable(_)) {
                            self.threshold.synced(Path::Direct, server.0.into(), work.busy);
                        }
                        self.work = Some((server, work));
                        if let Some((machine, number)) = self.is_answered(server, number) {
                            let answer = answer.map(|_| bytes);
                            self.machines[machine].storage_answered(now, server, number, answer);
                        }
                    }
                    Message::TicketWanted(wanted) => self.ticket_wanted(server, wanted),
                    Message::Costs(found) => self.threshold.start_at(found.threshold),
                    // A server that says what clients say is none.
                    _ => connection.mouth.close(),
                }
            }
        }
    }

    /// Which servers are not heard.
    fn away(&self) -> Vec<Away> {
        let servers = self.heard.iter().enumerate().map(|(server, heard)| (ServerNo(server as u16), heard));
        let away = servers.filter_map(|(server, heard)| {
            let joined = |one: &&Connection| one.storage_joined && one.gatherer_joined;
            let why = match (self.connections.get(&server).filter(joined), self.down.get(&server)) {
                (Some(_), _) if heard.elapsed() < SILENT => return None,
                (Some(_), _) => "it is connected, and says nothing".into(),
                (None, Some(why)) => why.clone(),
                (None, None) => "it took no connection yet".into(),
            };
            Some(Away { server, time: heard.elapsed(), why })
        });
        away.collect()
    }

    /// Of which machine it was asked, and by what number.
    fn is_answered(&mut self, server: ServerNo, number: RequestNo) -> Option<(usize, RequestNo)> {
        let connection = self.connections.get_mut(&server)?;
        let (machine, number, held) = connection.asked.remove(&number)?;
        connection.held -= held;
        self.send_waiting(server);
        Some((machine, number))
    }

    fn gathered(&mut self, server: ServerNo, number: RequestNo, answer: gather::Answer, bytes: Bytes) {
        let now = self.now();
        let Some((machine, number)) = self.is_answered(server, number) else { return };
        let answer = match answer {
            gather::Answer::Read { parts, end } => {
                // Marked with the number of the question: the outcome brings them back.
                let mut parts = parts;
                parts.iter_mut().for_each(|part| part.seq = gather::Seq(number.0));
                if !parts.is_empty() {
                    self.gathered.insert((machine, number), (parts.clone(), bytes));
                }
                gather::Answer::Read { parts, end }
            }
            answer => answer,
        };
        self.machines[machine].gatherer_answered(now, number, answer);
    }

    fn act(&mut self) {
        for at in 0..self.machines.len() {
            while let Some(action) = self.machines[at].poll_action() {
                if let Action::ToGatherer(number, _) | Action::ToStorage(_, number, _) = &action
                    && let Some(op) = self.machines[at].write_of(*number)
                {
                    let now = self.now();
                    if let Some(piece) = self.pieces.get_mut(&(at, op)) {
                        piece.sent = Some(now);
                    }
                }
                match action {
                    Action::ToGatherer(number, request) => {
                        let mut bytes = Bytes::default();
                        let request = request.map(|write: Bytes| {
                            bytes = write;
                            bytes.len() as u32
                        });
                        self.send(ServerNo(at as u16), at, number, Asks::Gather(request), bytes);
                    }
                    Action::ToStorage(server, number, request) => {
                        let mut bytes = Bytes::default();
                        let request = request.map(|write: Bytes| {
                            bytes = write;
                            bytes.len() as u32
                        });
                        self.send(server, at, number, Asks::Store(request), bytes);
                    }
                    Action::Done(op, outcome) => self.done(at, op, outcome),
                }
            }
        }
    }

    fn send(&mut self, server: ServerNo, machine: usize, of: RequestNo, asks: Asks, bytes: Bytes) {
        // The machine hears that the connection is gone, and asks again.
        if !self.connections.contains_key(&server) {
            return;
        }
        let held = Held { server, machine, of, asks, bytes };
        let shown = match &mut self.tickets {
            None => Shown::Goes(held, None),
            Some(tickets) => tickets.show(held),
        };
        match shown {
            Shown::Goes(held, ticket) => self.send_with(held, ticket),
            Shown::Waits => {}
            Shown::Gone(held) => self.gone(held),
        }
    }

    /// Sends what needs no ticket any more but this one.
    fn send_with(&mut self, Held { server, machine, of, asks, bytes }: Held, ticket: Option<Sealed>) {
        let Some(connection) = self.connections.get_mut(&server) else { return };
        if let Some(sealed) = ticket {
            connection.shows(sealed);
        }
        let number = RequestNo(self.next_request);
        self.next_request += 1;
        let message = asks.message(number);
        let held = held_by(&message);
        if held == 0 {
            connection.asks(machine, of, number, message, bytes, 0);
        } else {
            connection.waiting.push_back((machine, of, message, bytes, held));
            self.send_waiting(server);
        }
    }

    fn send_waiting(&mut self, server: ServerNo) {
        let Some(connection) = self.connections.get_mut(&server) else { return };
        while let Some((_, _, _, _, held)) = connection.waiting.front() {
            if connection.held > 0 && connection.held + held > WINDOW {
                return;
            }
            let Some((machine, of, message, bytes, held)) = connection.waiting.pop_front() else { return };
            connection.held += held;
            let number = match &message {
                Message::Gather(number, _) | Message::Store(number, _) => *number,
                _ => return,
            };
            connection.asks(machine, of, number, message, bytes, held);
        }
    }

    /// The file has grown for an append that lies in several stripes: its bytes go there.
    fn write_appended(&mut self, machine: usize, no: u64, offset: u64) {
        let now = self.now();
        let Some(Wanted { left, answer: Some(Answer::Append(_, bytes, at)), .. }) = self.wanted.get_mut(&no)
        else {
            // Nobody waits for it any more; zeros stand there.
            self.wanted.remove(&no);
            return;
        };
        *at = offset;
        let Some((file, bytes)) = bytes.take() else { return };
        let pieces = cut(self.striping.stripe_size, offset, bytes.len() as u64, u64::MAX);
        *left = pieces.len();
        let len = bytes.len() as u64;
        let path = if len < self.threshold.threshold() { Path::Gather } else { Path::Direct };
        for (at, len) in pieces {
            let op = self.op(machine, no, (at, len));
            let from = (at - offset) as usize;
            let piece = Arc::new(bytes[from..from + len as usize].to_vec());
            self.machines[machine].write(now, op, path, file, (at, len), piece);
        }
    }

    /// Whether a look is what the application waits for there.
    fn looks(&self, no: u64) -> bool {
        self.wanted.get(&no).is_some_and(|wanted| matches!(wanted.answer, Some(Answer::Look(..))))
    }

    fn done(&mut self, machine: usize, op: OpNo, outcome: Outcome<Bytes>) {
        let Some(piece) = self.pieces.remove(&(machine, op)) else { return };
        let (no, at, len, now) = (piece.wanted, piece.offset, piece.len, self.now());
        let mut over = None;
        if matches!(outcome, Outcome::Written)
            && let Some((server, work)) = self.work.take()
            && let Some(Wanted { write: Some((_, served)), .. }) = self.wanted.get_mut(&no)
        {
            let (server, others) = (server.0.into(), f64::from(work.others) / 65_535.0);
            let sent = piece.sent.unwrap_or(piece.begun);
            let (took, waited) = (now.since(sent), sent.since(piece.begun));
            served.push(Served { server, len, busy: work.busy, stayed: work.stayed, others, took, waited });
        }
        let failed = match outcome {
            Outcome::Written | Outcome::Synced | Outcome::Truncated | Outcome::Removed => None,
            Outcome::Told { counts } => {
                if let Some(Wanted { answer: Some(Answer::Told(_, told)), .. }) = self.wanted.get_mut(&no) {
                    *told = counts;
                }
                None
            }
            Outcome::Gone => Some(VolumeError::Gone),
            Outcome::Appended { offset } => {
                if let Some(Wanted { answer: Some(Answer::Append(_, bytes, at)), .. }) =
                    self.wanted.get_mut(&no)
                {
                    (*bytes, *at) = (None, offset);
                }
                None
            }
            Outcome::Reserved { offset } => return self.write_appended(machine, no, offset),
            Outcome::Looked { version, end, untold } => {
                if let Some(Wanted { answer: Some(Answer::Look(_, look)), .. }) = self.wanted.get_mut(&no) {
                    *look = Look { version, end, untold };
                }
                None
            }
            Outcome::Map { gathered, end, version } => {
                if let Some(Wanted { answer: Some(Answer::Map(_, map)), .. }) = self.wanted.get_mut(&no) {
                    *map = Map { gathered, end, version };
                }
                None
            }
            Outcome::Read { gathered, stored, end } => {
                over = Some((gathered, stored, end));
                None
            }
            Outcome::Length { gathered, end } => {
                // What came with it is nobody's.
                if let Some(number) = gathered.first().map(|part| RequestNo(part.seq.0)) {
                    self.gathered.remove(&(machine, number));
                }
                if let Some(Wanted { answer: Some(Answer::Read(_, read, _)), .. }) = self.wanted.get_mut(&no)
                {
                    read.end = read.end.max(end);
                }
                None
            }
            Outcome::Lost(of) => Some(VolumeError::Lost(of)),
            Outcome::Failed(_, gather::BUSY) if self.looks(no) => Some(VolumeError::Busy),
            Outcome::Failed(Where::Gatherer, errno) => {
                Some(VolumeError::Failed(ServerNo(machine as u16), errno))
            }
            Outcome::Failed(Where::Storage(server), errno) => Some(VolumeError::Failed(server, errno)),
        };
        let of_gatherer =
            over.as_ref().and_then(|(parts, ..)| parts.first()).map(|part| RequestNo(part.seq.0));
        let from_gatherer = of_gatherer.and_then(|number| self.gathered.remove(&(machine, number)));
        let Some(wanted) = self.wanted.get_mut(&no) else { return };
        if let Some(Answer::Piece(_, came)) = &mut wanted.answer
            && let Some((_, stored, end)) = over.take()
        {
            *came = Some(Came::new((at, len), stored, from_gatherer.clone(), end));
        }
        if let Some((_, stored, end)) = over
            && let Some(Answer::Read(_, read, offset)) = &mut wanted.answer
        {
            read.end = read.end.max(end);
            let from = (at - *offset) as usize;
            read.bytes[from..from + stored.len()].copy_from_slice(&stored);
            let parts = from_gatherer.as_ref().map_or(&[][..], |(parts, _)| parts);
            let nowhere = nowhere((at, len), stored.len(), parts, end);
            read.nowhere = read.nowhere.into_iter().chain(nowhere).min();
            for part in from_gatherer.iter().flat_map(|(parts, _)| parts) {
                let bytes = &from_gatherer.as_ref().expect("it has the part").1;
                let (to, len) = ((part.offset - *offset) as usize, part.len as usize);
                read.bytes[to..to + len]
                    .copy_from_slice(&bytes[part.from as usize..part.from as usize + len]);
            }
        }
        wanted.failed = wanted.failed.take().or(failed);
        wanted.left -= 1;
        if wanted.left == 0 {
            self.end(no);
        }
    }
}

/// Ranges of one stripe each, of at most `max` bytes.
fn cut(stripe_size: u64, offset: u64, len: u64, max: u64) -> Vec<(u64, u64)> {
    let (mut at, end, mut pieces) = (offset, offset + len, Vec::new());
    while at < end {
        let piece = (end - at).min(stripe_size - at % stripe_size).min(max);
        pieces.push((at, piece));
        at += piece;
    }
    pieces
}

impl Connection {
    fn asks(
        &mut self,
        machine: usize,
        of: RequestNo,
        number: RequestNo,
        message: Message,
        bytes: Bytes,
        held: u64,
    ) {
        // These are not answered.
        let is_mute = matches!(&message, Message::Gather(_, request) if gather::is_mute(request));
        if !is_mute {
            self.asked.insert(number, (machine, of, held));
        }
        self.mouth.say(message, bytes);
    }
}
