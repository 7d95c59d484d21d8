//! What is said over a connection of a volume, which leads from a client or a gatherer to one server, and the
//! bytes of it.
//!
//! In: bytes of a peer, or what a machine wants said. Out: the other of the two. The frames are those of a
//! transfer, on stream 1: a message here is one frame, and what has bytes is followed at once by one data
//! frame, whose only entry is "the whole" of them, with their root, so that they are checked as those of a
//! copy are. Without bytes there is none. Invariants: what [`encode`] makes, [`decode`] takes; nothing is
//! allocated beyond what the bytes at hand can fill; ranges do not overflow, and are not empty where that
//! would say nothing. Left out: whether somebody may say it, which the driver knows before.

pub(super) mod check;
mod costs;
mod ills;
#[cfg(test)]
mod tests;
mod tickets;

use std::ops::Range;
use std::time::Duration;

use self::check::{read_check, read_found, write_check, write_found};
pub use self::costs::{Costs, Heard};
use self::costs::{read_costs, write_costs};
pub use self::ills::{ILLS_MAX, Ill, Illness};
use self::ills::{read_ills, write_ills};
pub use self::tickets::{GivenTickets, TICKETS_MAX, Wanted};
use self::tickets::{read_given, read_sealed, read_wanted, write_given, write_sealed, write_wanted};
pub use super::VolumeId;
use super::catalog;
use super::check::{Check, Found};
use super::gather::{self, AppendNo, Part, Seq};
use super::layout::{Given, Placing, Striping};
use super::storage;
use super::ticket::Sealed;
use super::{ClientNo, ContentVersion, Epoch, FileNo, Incarnation, RequestNo, ServerNo, Session};
use crate::wire::codec::{Reader, Writer};
use crate::wire::volume_kind as kind;
use crate::wire::{FILE_LEN_MAX, OBJECT_LEN_MAX, WireError};

/// The stream that all frames of a volume's connection bear.
pub const STREAM: u16 = 1;
/// Most parts in one answer of a gatherer; a stripe that has more of them is brought before it is read.
pub const PARTS_MAX: usize = 16_384;
/// Most stripes of one map.
pub const MAP_MAX: u64 = 4096;
/// Most bytes of one request or answer.
pub const BYTES_MAX: u64 = OBJECT_LEN_MAX as u64;

/// Who opens a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Who {
    /// To both roles of a server.
    Client(ClientNo),
    /// To a storage server.
    Gatherer(ServerNo),
}

/// What a request was for the server that answers it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// How long the server was busy with it, what it did beside that at the same time taken off.
    pub busy: Duration,
    /// From its last byte's arrival to the answer.
    pub stayed: Duration,
    /// The part of its time for which the server was busy with other clients lately: of 65,535.
    pub others: u16,
}

/// Who looks after a volume, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visit {
    pub volume: VolumeId,
    /// A server; `None`: the catalog.
    pub to: Option<ServerNo>,
    /// It is to end, in order, once it has answered.
    pub end: bool,
}

/// How files of a placement lie: what a server must know before anybody uses one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Learn {
    pub volume: VolumeId,
    pub to: ServerNo,
    /// The one that the list is of.
    pub placing: Placing,
    pub list: Given,
}

/// Who was visited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Visited {
    /// The number of its process, on its host.
    pub process: u32,
    /// For how long it has run.
    pub since: Duration,
    /// Of a server: what writes to it cost, if any client said so.
    pub heard: Option<Box<Heard>>,
    /// What its disk, or others' for it, do not take; at most [`ILLS_MAX`].
    pub ills: Vec<Ill>,
    /// Of a server: the room on its disk, if it is known.
    pub room: Option<Room>,
}

/// The room on a disk, whoever uses it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Bytes that this user can still write.
    pub free: u64,
    /// Bytes.
    pub used: u64,
    /// The same number: the same disk, on one host.
    pub device: u64,
}

/// Stands for the catalog where a server's number is told.
const CATALOG: u16 = u16::MAX;
const _: () = assert!(catalog::SERVERS_MAX <= CATALOG as usize, "no server has this number");

/// How many bytes follow in a data frame.
pub type Following = u32;

/// See the head of this module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The first of a connection, from who opens it: whom it takes the server for, and how files lie on the
    /// volume's servers.
    Join {
        volume: VolumeId,
        who: Who,
        session: Session,
        to: ServerNo,
        striping: Striping,
    },
    /// What it may ask of the storage server from now on, and what of the gatherer.
    StorageJoined(Incarnation),
    GathererJoined(u32),
    /// The last of a connection: why it ends.
    Refused(Box<str>),
    /// From a client, and the answer: the gatherer heard what was said then. The number is the client's.
    Ping(u64),
    Pong(u64),
    Gather(RequestNo, gather::Request<Following>),
    /// Of [`gather::Answer::Read`] the parts' bytes follow, one part's behind the other's.
    Gathered(RequestNo, gather::Answer, Work),
    Recall(FileNo, Range<u64>),
    Store(RequestNo, storage::Request<Following>),
    Stored(RequestNo, storage::Answer<Following>, Work),
    /// In place of a join, and the answer, which is the last of a connection.
    Visit(Visit),
    Visited(Visited),
    /// From a client, now and then; there is no answer. To one that joined: what another client found.
    Costs(Costs),
    /// In place of a join, and again and again; and the answers.
    Check(Check),
    Found(Found),
    /// From a client: what it may do with a file, by this ticket. It has no answer.
    Ticket(Sealed),
    /// To a client: a request was not carried out, for want of another ticket.
    TicketWanted(Wanted),
    /// From the catalog, at any time: tickets for files, and in which term they are.
    Tickets(GivenTickets),
    /// In place of a join, and the answer, which is the last of a connection: the server knows it, and that
    /// lasts.
    Learn(Learn),
    Learnt,
    /// Between a client and the catalog, where only it, what ends a connection and pings are said.
    Catalog(catalog::Message),
}

impl Message {
    /// The number of its frame.
    pub fn kind(&self) -> u8 {
        match self {
            Message::Join { .. } => kind::JOIN,
            Message::StorageJoined(_) => kind::STORAGE_JOINED,
            Message::GathererJoined(_) => kind::GATHERER_JOINED,
            Message::Refused(_) => kind::REFUSED,
            Message::Ping(_) => kind::PING,
            Message::Pong(_) => kind::PONG,
            Message::Gather(..) => kind::GATHER,
            Message::Gathered(..) => kind::GATHERED,
            Message::Recall(..) => kind::RECALL,
            Message::Store(..) => kind::STORE,
            Message::Stored(..) => kind::STORED,
            Message::Visit(_) => kind::VISIT,
            Message::Visited(_) => kind::VISITED,
            Message::Costs(_) => kind::COSTS,
            Message::Check(_) => kind::CHECK,
            Message::Found(_) => kind::FOUND,
            Message::Ticket(_) => kind::TICKET,
            Message::TicketWanted(_) => kind::TICKET_WANTED,
            Message::Tickets(_) => kind::TICKETS,
            Message::Learn(_) => kind::LEARN,
            Message::Learnt => kind::LEARNT,
            Message::Catalog(message) => message.kind(),
        }
    }

    /// So many bytes follow in a data frame; at 0 no such frame follows.
    pub fn following(&self) -> Following {
        match self {
            Message::Gather(
                _,
                gather::Request::Write { bytes, .. } | gather::Request::Append { bytes, .. },
            )
            | Message::Store(_, storage::Request::Write { bytes, .. })
            | Message::Stored(_, storage::Answer::Read(bytes), _) => *bytes,
            // Their sum was checked.
            Message::Gathered(_, gather::Answer::Read { parts, .. }, _) => {
                parts.iter().map(|part| part.len as Following).sum()
            }
            _ => 0,
        }
    }
}

impl<B> gather::Request<B> {
    /// The same with other bytes.
    pub fn map<C>(self, bytes_of: impl FnOnce(B) -> C) -> gather::Request<C> {
        match self {
            gather::Request::Write { file, offset, len, bytes } => {
                gather::Request::Write { file, offset, len, bytes: bytes_of(bytes) }
            }
            gather::Request::Lease { file, stripes } => gather::Request::Lease { file, stripes },
            gather::Request::Release { file, stripes } => gather::Request::Release { file, stripes },
            gather::Request::Read { file, offset, len } => gather::Request::Read { file, offset, len },
            gather::Request::Map { file, stripes } => gather::Request::Map { file, stripes },
            gather::Request::Grow { file, epoch, end } => gather::Request::Grow { file, epoch, end },
            gather::Request::Sync { file } => gather::Request::Sync { file },
            gather::Request::Append { file, number, len, bytes } => {
                gather::Request::Append { file, number, len, bytes: bytes_of(bytes) }
            }
            gather::Request::Truncate { file, len } => gather::Request::Truncate { file, len },
            gather::Request::Remove { file } => gather::Request::Remove { file },
            gather::Request::Look { file } => gather::Request::Look { file },
            gather::Request::Told { file, version } => gather::Request::Told { file, version },
        }
    }
}

impl<B> storage::Request<B> {
    /// The same with other bytes.
    pub fn map<C>(self, bytes_of: impl FnOnce(B) -> C) -> storage::Request<C> {
        match self {
            storage::Request::Write { file, epoch, offset, bytes } => {
                storage::Request::Write { file, epoch, offset, bytes: bytes_of(bytes) }
            }
            storage::Request::Read { file, offset, len } => storage::Request::Read { file, offset, len },
            storage::Request::Sync { file } => storage::Request::Sync { file },
            storage::Request::Cut { file, epoch, from } => storage::Request::Cut { file, epoch, from },
            storage::Request::Remove { file, epoch } => storage::Request::Remove { file, epoch },
        }
    }
}

impl<B> storage::Answer<B> {
    /// The same with other bytes.
    pub fn map<C>(self, bytes_of: impl FnOnce(B) -> C) -> storage::Answer<C> {
        match self {
            storage::Answer::Written(life) => storage::Answer::Written(life),
            storage::Answer::Durable(life) => storage::Answer::Durable(life),
            storage::Answer::Read(bytes) => storage::Answer::Read(bytes_of(bytes)),
            storage::Answer::Void(epoch) => storage::Answer::Void(epoch),
            storage::Answer::Gone => storage::Answer::Gone,
            storage::Answer::Failed(errno) => storage::Answer::Failed(errno),
        }
    }
}

impl<B> gather::Record<B> {
    /// The same with other bytes.
    pub fn map<C>(self, bytes_of: impl FnOnce(B) -> C) -> gather::Record<C> {
        match self {
            gather::Record::Bytes { file, offset, len, bytes } => {
                gather::Record::Bytes { file, offset, len, bytes: bytes_of(bytes) }
            }
            gather::Record::End { file, end } => gather::Record::End { file, end },
            gather::Record::Brought { file, stripe, upto } => gather::Record::Brought { file, stripe, upto },
            gather::Record::Cut { file, from, epoch } => gather::Record::Cut { file, from, epoch },
            gather::Record::IsCut { file, from, epoch } => gather::Record::IsCut { file, from, epoch },
            gather::Record::Remove { file } => gather::Record::Remove { file },
            gather::Record::Gone { file } => gather::Record::Gone { file },
            gather::Record::LastCut { file, epoch } => gather::Record::LastCut { file, epoch },
            gather::Record::Client(client) => gather::Record::Client(client),
            gather::Record::Untold { file } => gather::Record::Untold { file },
            gather::Record::Told { file } => gather::Record::Told { file },
            gather::Record::Nothing => gather::Record::Nothing,
        }
    }
}

/// Appends the body of a message; its frame's kind is [`Message::kind`].
///
/// # Panics
/// If a list is longer than its maximum: that is our own doing.
pub fn encode(message: &Message, out: &mut Vec<u8>) {
    let w = &mut Writer::new(out);
    match message {
        Message::Join { volume, who, session, to, striping } => {
            w.raw(&volume.0);
            match who {
                Who::Client(client) => {
                    w.u8(0);
                    w.u64(client.0);
                }
                Who::Gatherer(server) => {
                    w.u8(1);
                    w.u64(server.0.into());
                }
            }
            w.u64(session.0);
            w.u16(to.0);
            w.u16(striping.servers);
            w.u64(striping.stripe_size);
        }
        Message::StorageJoined(life) => w.u64(life.0),
        Message::GathererJoined(life) => w.u32(*life),
        Message::Refused(text) => w.text(text),
        Message::Ping(number) | Message::Pong(number) => w.u64(*number),
        Message::Gather(number, request) => {
            w.u64(number.0);
            write_gather(w, request);
        }
        Message::Gathered(number, answer, work) => {
            w.u64(number.0);
            write_work(w, work);
            write_gathered(w, answer);
        }
        Message::Recall(file, stripes) => {
            w.u64(file.0);
            write_range(w, stripes);
        }
        Message::Store(number, request) => {
            w.u64(number.0);
            write_store(w, request);
        }
        Message::Stored(number, answer, work) => {
            w.u64(number.0);
            write_work(w, work);
            write_stored(w, answer);
        }
        Message::Visit(Visit { volume, to, end }) => {
            w.raw(&volume.0);
            w.u16(to.map_or(CATALOG, |server| server.0));
            w.u8((*end).into());
        }
        Message::Visited(Visited { process, since, heard, ills, room }) => {
            w.u32(*process);
            w.u64(nanos(*since));
            w.bool(heard.is_some());
            if let Some(heard) = heard {
                w.u64(nanos(heard.age));
                w.u16(heard.clients);
                write_costs(w, &heard.costs);
            }
            write_ills(w, ills);
            w.bool(room.is_some());
            if let Some(Room { free, used, device }) = room {
                w.u64(*free);
                w.u64(*used);
                w.u64(*device);
            }
        }
        Message::Costs(costs) => write_costs(w, costs),
        Message::Check(check) => write_check(w, check),
        Message::Found(found) => write_found(w, found),
        Message::Ticket(sealed) => write_sealed(w, sealed),
        Message::TicketWanted(wanted) => write_wanted(w, wanted),
        Message::Tickets(given) => write_given(w, given),
        Message::Learn(Learn { volume, to, placing, list }) => {
            w.raw(&volume.0);
            w.u16(to.0);
            w.u16(placing.code());
            list.write(w);
        }
        Message::Learnt => {}
        Message::Catalog(message) => catalog::wire::write(w, message),
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn write_work(w: &mut Writer<'_>, work: &Work) {
    w.u64(nanos(work.busy));
    w.u64(nanos(work.stayed));
    w.u16(work.others);
}

fn write_range(w: &mut Writer<'_>, range: &Range<u64>) {
    w.u64(range.start);
    w.u64(range.end);
}

fn write_epoch(w: &mut Writer<'_>, epoch: Epoch) {
    w.u32(epoch.gatherer);
    w.u32(epoch.fence);
}

fn write_version(w: &mut Writer<'_>, version: ContentVersion) {
    w.u32(version.gatherer);
    w.u64(version.changes);
}

fn write_gather(w: &mut Writer<'_>, request: &gather::Request<Following>) {
    match request {
        gather::Request::Write { file, offset, bytes, .. } => {
            w.u8(0);
            w.u64(file.0);
            w.u64(*offset);
            w.u32(*bytes);
        }
        gather::Request::Lease { file, stripes } => {
            w.u8(1);
            w.u64(file.0);
            write_range(w, stripes);
        }
        gather::Request::Release { file, stripes } => {
            w.u8(2);
            w.u64(file.0);
            write_range(w, stripes);
        }
        gather::Request::Read { file, offset, len } => {
            w.u8(3);
            w.u64(file.0);
            w.u64(*offset);
            w.u64(*len);
        }
        gather::Request::Map { file, stripes } => {
            w.u8(20);
            w.u64(file.0);
            write_range(w, stripes);
        }
        gather::Request::Sync { file } => {
            w.u8(4);
            w.u64(file.0);
        }
        gather::Request::Grow { file, epoch, end } => {
            w.u8(5);
            w.u64(file.0);
            write_epoch(w, *epoch);
            w.u64(*end);
        }
        gather::Request::Append { file, number, bytes, .. } => {
            w.u8(6);
            w.u64(file.0);
            w.u64(number.0);
            w.u32(*bytes);
        }
        gather::Request::Truncate { file, len } => {
            w.u8(7);
            w.u64(file.0);
            w.u64(*len);
        }
        gather::Request::Remove { file } => {
            w.u8(8);
            w.u64(file.0);
        }
        gather::Request::Look { file } => {
            w.u8(9);
            w.u64(file.0);
        }
        gather::Request::Told { file, version } => {
            w.u8(10);
            w.u64(file.0);
            write_version(w, *version);
        }
    }
}

fn write_gathered(w: &mut Writer<'_>, answer: &gather::Answer) {
    match answer {
        gather::Answer::Written => w.u8(0),
        gather::Answer::Leased { stripes, epoch } => {
            w.u8(1);
            write_range(w, stripes);
            write_epoch(w, *epoch);
        }
        gather::Answer::Read { parts, end } => {
            w.u8(2);
            w.u64(*end);
            w.count("parts", parts.len(), PARTS_MAX);
            for part in parts {
                w.u64(part.offset);
                w.u32(u32::try_from(part.len).expect("a part is no longer than a stripe"));
            }
        }
        gather::Answer::Durable => w.u8(3),
        gather::Answer::Failed(errno) => {
            w.u8(4);
            w.i32(*errno);
        }
        gather::Answer::Appended { offset } => {
            w.u8(5);
            w.u64(*offset);
        }
        gather::Answer::Reserved { offset } => {
            w.u8(6);
            w.u64(*offset);
        }
        gather::Answer::Truncated => w.u8(7),
        gather::Answer::Removed => w.u8(8),
        gather::Answer::Gone => w.u8(9),
        gather::Answer::Looked { version, end, untold } => {
            w.u8(10);
            write_version(w, *version);
            w.u64(*end);
            w.bool(*untold);
        }
        gather::Answer::Told { counts } => {
            w.u8(11);
            w.bool(*counts);
        }
        gather::Answer::Refused(errno) => {
            w.u8(12);
            w.i32(*errno);
        }
        gather::Answer::Map { gathered, end, version } => {
            w.u8(20);
            w.u64(*end);
            w.bool(version.is_some());
            write_version(w, version.unwrap_or_default());
            w.count("gathered stripes", gathered.len(), MAP_MAX as usize);
            gathered.iter().for_each(|stripes| write_range(w, stripes));
        }
    }
}

fn write_store(w: &mut Writer<'_>, request: &storage::Request<Following>) {
    match request {
        storage::Request::Write { file, epoch, offset, bytes } => {
            w.u8(0);
            w.u64(file.0);
            write_epoch(w, *epoch);
            w.u64(*offset);
            w.u32(*bytes);
        }
        storage::Request::Read { file, offset, len } => {
            w.u8(1);
            w.u64(file.0);
            w.u64(*offset);
            w.u64(*len);
        }
        storage::Request::Sync { file } => {
            w.u8(2);
            w.u64(file.0);
        }
        storage::Request::Cut { file, epoch, from } => {
            w.u8(3);
            w.u64(file.0);
            write_epoch(w, *epoch);
            w.u64(*from);
        }
        storage::Request::Remove { file, epoch } => {
            w.u8(4);
            w.u64(file.0);
            write_epoch(w, *epoch);
        }
    }
}

fn write_stored(w: &mut Writer<'_>, answer: &storage::Answer<Following>) {
    match answer {
        storage::Answer::Written(life) => {
            w.u8(0);
            w.u64(life.0);
        }
        storage::Answer::Durable(life) => {
            w.u8(1);
            w.u64(life.0);
        }
        storage::Answer::Read(bytes) => {
            w.u8(2);
            w.u32(*bytes);
        }
        storage::Answer::Void(epoch) => {
            w.u8(3);
            write_epoch(w, *epoch);
        }
        storage::Answer::Failed(errno) => {
            w.u8(4);
            w.i32(*errno);
        }
        storage::Answer::Gone => w.u8(5),
    }
}

/// Reads the body of a message of this kind, one of [`volume_kind`](kind).
///
/// # Errors
/// It is none. The connection cannot go on.
pub fn decode(kind: u8, body: &[u8]) -> Result<Message, WireError> {
    let r = &mut Reader::new(body);
    let message = match kind {
        kind::JOIN => {
            let volume = VolumeId(r.array("volume")?);
            let (tag, number) = (r.u8("who joins")?, r.u64("number of who joins")?);
            let who = match tag {
                0 => Who::Client(ClientNo(number)),
                1 => Who::Gatherer(ServerNo(
                    u16::try_from(number).map_err(|_| bad("number of a gatherer", number))?,
                )),
                other => return Err(bad("who joins", other.into())),
            };
            let session = Session(r.u64("session")?);
            let (to, servers) = (ServerNo(r.u16("server")?), r.u16("servers")?);
            let striping = Striping::new(r.u64("size of stripes")?, servers);
            Message::Join { volume, who, session, to, striping }
        }
        kind::STORAGE_JOINED => Message::StorageJoined(Incarnation(r.u64("life")?)),
        kind::GATHERER_JOINED => Message::GathererJoined(r.u32("life of a gatherer")?),
        kind::REFUSED => Message::Refused(r.text("why a connection ends")?),
        kind::PING => Message::Ping(r.u64("ping")?),
        kind::PONG => Message::Pong(r.u64("pong")?),
        kind::GATHER => Message::Gather(RequestNo(r.u64("request")?), read_gather(r)?),
        kind::GATHERED => {
            let (number, work) = (RequestNo(r.u64("request")?), read_work(r)?);
            Message::Gathered(number, read_gathered(r)?, work)
        }
        kind::RECALL => Message::Recall(FileNo(r.u64("file")?), read_stripes(r)?),
        kind::STORE => Message::Store(RequestNo(r.u64("request")?), read_store(r)?),
        kind::STORED => {
            let (number, work) = (RequestNo(r.u64("request")?), read_work(r)?);
            Message::Stored(number, read_stored(r)?, work)
        }
        kind::VISIT => {
            let (volume, to) = (VolumeId(r.array("volume")?), r.u16("who is visited")?);
            let to = (to != CATALOG).then_some(ServerNo(to));
            let end = match r.u8("whether it is to end")? {
                0 => false,
                1 => true,
                other => return Err(bad("whether it is to end", other.into())),
            };
            Message::Visit(Visit { volume, to, end })
        }
        kind::VISITED => {
            let process = r.u32("number of a process")?;
            let since = Duration::from_nanos(r.u64("how long it has run")?);
            let heard = match r.bool("whether clients told of costs")? {
                true => {
                    let age = Duration::from_nanos(r.u64("age of costs")?);
                    let clients = r.u16("clients that told of costs")?;
                    Some(Box::new(Heard { age, clients, costs: read_costs(r)? }))
                }
                false => None,
            };
            let ills = read_ills(r)?;
            let room = match r.bool("whether room is known")? {
                true => {
                    let (free, used) = (r.u64("bytes that are free")?, r.u64("bytes that are used")?);
                    Some(Room { free, used, device: r.u64("number of a disk")? })
                }
                false => None,
            };
            Message::Visited(Visited { process, since, heard, ills, room })
        }
        kind::COSTS => Message::Costs(read_costs(r)?),
        kind::CHECK => Message::Check(read_check(r)?),
        kind::FOUND => Message::Found(read_found(r)?),
        kind::TICKET => Message::Ticket(read_sealed(r)?),
        kind::TICKET_WANTED => Message::TicketWanted(read_wanted(r)?),
        kind::TICKETS => Message::Tickets(read_given(r)?),
        kind::LEARN => {
            let (volume, to) = (VolumeId(r.array("volume")?), ServerNo(r.u16("server")?));
            let code = r.u16("placement")?;
            let placing = Placing::from_code(code).filter(|placing| placing.list().is_some());
            let placing = placing.ok_or_else(|| bad("placement", code.into()))?;
            Message::Learn(Learn { volume, to, placing, list: Given::read(r)? })
        }
        kind::LEARNT => Message::Learnt,
        kind::CATALOG_JOIN..=kind::CATALOG_LAST => Message::Catalog(catalog::wire::read(kind, r)?),
        other => return Err(WireError::UnknownKind(other)),
    };
    match r.remaining() {
        0 => Ok(message),
        len => Err(WireError::Trailing { what: "a message of a volume", len: len as u64 }),
    }
}

fn bad(what: &'static str, value: u64) -> WireError {
    WireError::BadValue { what, value }
}

fn read_work(r: &mut Reader<'_>) -> Result<Work, WireError> {
    Ok(Work {
        busy: Duration::from_nanos(r.u64("time that a server was busy")?),
        stayed: Duration::from_nanos(r.u64("time that a request stayed")?),
        others: r.u16("time for others")?,
    })
}

/// A range of stripes, not empty.
fn read_stripes(r: &mut Reader<'_>) -> Result<Range<u64>, WireError> {
    let (start, end) = (r.u64("first stripe")?, r.u64("end of stripes")?);
    match start < end && end <= FILE_LEN_MAX {
        true => Ok(start..end),
        false => Err(bad("end of stripes", end)),
    }
}

/// The stripes of one map.
fn read_map(r: &mut Reader<'_>) -> Result<Range<u64>, WireError> {
    let stripes = read_stripes(r)?;
    match stripes.end - stripes.start {
        len if len > MAP_MAX => Err(WireError::TooLong { what: "stripes of a map", len, max: MAP_MAX }),
        _ => Ok(stripes),
    }
}

/// A range of bytes, not empty, that one request may have.
fn check_bytes(offset: u64, len: u64) -> Result<(), WireError> {
    if len == 0 {
        return Err(bad("length of a request", 0));
    }
    if len > BYTES_MAX {
        return Err(WireError::TooLong { what: "bytes of a request", len, max: BYTES_MAX });
    }
    match offset.checked_add(len).is_some_and(|end| end <= FILE_LEN_MAX) {
        true => Ok(()),
        false => Err(bad("offset of a request", offset)),
    }
}

fn read_epoch(r: &mut Reader<'_>) -> Result<Epoch, WireError> {
    Ok(Epoch { gatherer: r.u32("epoch")?, fence: r.u32("fence of an epoch")? })
}

fn read_version(r: &mut Reader<'_>) -> Result<ContentVersion, WireError> {
    Ok(ContentVersion { gatherer: r.u32("life of a version")?, changes: r.u64("version of a file")? })
}

fn read_end(r: &mut Reader<'_>) -> Result<u64, WireError> {
    let end = r.u64("end of a file")?;
    match end <= FILE_LEN_MAX {
        true => Ok(end),
        false => Err(WireError::TooLong { what: "end of a file", len: end, max: FILE_LEN_MAX }),
    }
}

fn read_gather(r: &mut Reader<'_>) -> Result<gather::Request<Following>, WireError> {
    let tag = r.u8("request of a gatherer")?;
    let file = FileNo(r.u64("file")?);
    Ok(match tag {
        0 => {
            let (offset, bytes) = (r.u64("offset")?, r.u32("bytes")?);
            check_bytes(offset, bytes.into())?;
            gather::Request::Write { file, offset, len: bytes.into(), bytes }
        }
        1 => gather::Request::Lease { file, stripes: read_stripes(r)? },
        2 => gather::Request::Release { file, stripes: read_stripes(r)? },
        3 => {
            let (offset, len) = (r.u64("offset")?, r.u64("length")?);
            check_bytes(offset, len)?;
            gather::Request::Read { file, offset, len }
        }
        20 => gather::Request::Map { file, stripes: read_map(r)? },
        4 => gather::Request::Sync { file },
        5 => gather::Request::Grow { file, epoch: read_epoch(r)?, end: read_end(r)? },
        6 => {
            let (number, bytes) = (AppendNo(r.u64("number of an append")?), r.u32("bytes")?);
            check_bytes(0, bytes.into())?;
            gather::Request::Append { file, number, len: bytes.into(), bytes }
        }
        7 => gather::Request::Truncate { file, len: read_end(r)? },
        8 => gather::Request::Remove { file },
        9 => gather::Request::Look { file },
        10 => gather::Request::Told { file, version: read_version(r)? },
        other => return Err(bad("request of a gatherer", other.into())),
    })
}

fn read_gathered(r: &mut Reader<'_>) -> Result<gather::Answer, WireError> {
    Ok(match r.u8("answer of a gatherer")? {
        0 => gather::Answer::Written,
        1 => gather::Answer::Leased { stripes: read_stripes(r)?, epoch: read_epoch(r)? },
        2 => {
            let end = read_end(r)?;
            let (mut from, mut before) = (0, 0);
            let parts = r.list("parts", PARTS_MAX, 12, |r| {
                let (offset, len) = (r.u64("offset of a part")?, u64::from(r.u32("length of a part")?));
                check_bytes(offset, len)?;
                if offset < before {
                    return Err(bad("offset of a part", offset));
                }
                before = offset + len;
                let part = Part { offset, len, seq: Seq(0), from };
                from += len;
                Ok(part)
            })?;
            if from > BYTES_MAX {
                return Err(WireError::TooLong { what: "bytes of parts", len: from, max: BYTES_MAX });
            }
            gather::Answer::Read { parts, end }
        }
        3 => gather::Answer::Durable,
        4 => gather::Answer::Failed(r.i32("errno")?),
        5 => gather::Answer::Appended { offset: read_end(r)? },
        6 => gather::Answer::Reserved { offset: read_end(r)? },
        7 => gather::Answer::Truncated,
        8 => gather::Answer::Removed,
        9 => gather::Answer::Gone,
        10 => {
            let (version, end) = (read_version(r)?, read_end(r)?);
            gather::Answer::Looked { version, end, untold: r.bool("whether the catalog knows")? }
        }
        11 => gather::Answer::Told { counts: r.bool("whether it counts")? },
        12 => gather::Answer::Refused(r.i32("errno")?),
        20 => {
            let (end, known) = (read_end(r)?, r.bool("whether the version is known")?);
            let version = match (known, read_version(r)?) {
                (true, version) => Some(version),
                (false, version) if version == ContentVersion::default() => None,
                (false, version) => return Err(bad("version that is not known", version.changes)),
            };
            let mut before = 0;
            let gathered = r.list("gathered stripes", MAP_MAX as usize, 16, |r| {
                let stripes = read_stripes(r)?;
                if stripes.start < before {
                    return Err(bad("first gathered stripe", stripes.start));
                }
                before = stripes.end;
                Ok(stripes)
            })?;
            gather::Answer::Map { gathered, end, version }
        }
        other => return Err(bad("answer of a gatherer", other.into())),
    })
}

fn read_store(r: &mut Reader<'_>) -> Result<storage::Request<Following>, WireError> {
    let tag = r.u8("request of a storage server")?;
    let file = FileNo(r.u64("file")?);
    Ok(match tag {
        0 => {
            let epoch = read_epoch(r)?;
            let (offset, bytes) = (r.u64("offset")?, r.u32("bytes")?);
            check_bytes(offset, bytes.into())?;
            storage::Request::Write { file, epoch, offset, bytes }
        }
        1 => {
            let (offset, len) = (r.u64("offset")?, r.u64("length")?);
            check_bytes(offset, len)?;
            storage::Request::Read { file, offset, len }
        }
        2 => storage::Request::Sync { file },
        3 => storage::Request::Cut { file, epoch: read_epoch(r)?, from: read_end(r)? },
        4 => storage::Request::Remove { file, epoch: read_epoch(r)? },
        other => return Err(bad("request of a storage server", other.into())),
    })
}

fn read_stored(r: &mut Reader<'_>) -> Result<storage::Answer<Following>, WireError> {
    Ok(match r.u8("answer of a storage server")? {
        0 => storage::Answer::Written(Incarnation(r.u64("life")?)),
        1 => storage::Answer::Durable(Incarnation(r.u64("life")?)),
        2 => {
            // None, where nothing of the file lies there.
            let bytes = r.u32("bytes")?;
            check_bytes(0, u64::from(bytes).max(1))?;
            storage::Answer::Read(bytes)
        }
        3 => storage::Answer::Void(read_epoch(r)?),
        4 => storage::Answer::Failed(r.i32("errno")?),
        5 => storage::Answer::Gone,
        other => return Err(bad("answer of a storage server", other.into())),
    })
}
