//! Hosts of a run, what they say to each other, and what happens.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use haul_core::volume::client::{Client, OpNo};
use haul_core::volume::gather::{self, CutNo, Gatherer, Part, PushNo, Record, Seq};
use haul_core::volume::storage::{self, Storage};
use haul_core::volume::{FileNo, Incarnation, RequestNo};

use super::world::Probe;

pub type Bytes = Vec<u32>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Host {
    Client(u16),
    Gatherer,
    Storage(u16),
}

#[derive(Clone, Debug)]
pub enum Message {
    /// Client to gatherer.
    JoinGatherer,
    GathererJoined(u32),
    Ping(u64),
    Pong(u64),
    ToGatherer(RequestNo, gather::Request<Bytes>),
    FromGatherer(RequestNo, gather::Answer, Vec<(Part, Bytes)>),
    Recall(FileNo, std::ops::Range<u64>),
    /// To storage servers, of clients and of the gatherer.
    JoinStorage,
    StorageJoined(Incarnation),
    ToStorage(RequestNo, storage::Request<Bytes>),
    FromStorage(RequestNo, storage::Answer<Bytes>),
    /// A server took no request of this number, for want of a ticket.
    NotTaken(RequestNo),
}

#[derive(Clone, Debug)]
pub enum Event {
    /// A message of a connection arrives.
    Arrive(Host, Host, u64, Message),
    /// An operation of a host in one life is over.
    StorageDone(u16, u32, storage::OpNo, storage::Op<Bytes>),
    Appended(u32, Seq, Record<Bytes>),
    LogSynced(u32, usize),
    /// A client does something.
    Act(u16, u32),
    Ping(u16, u32),
    Tick(u32),
    /// A host connects to another.
    Connect(Host, Host, u32),
    /// It hears that a connection to another is gone.
    Lost(Host, Host, u32),
    PushSome(u32),
    /// The gatherer's driver comes to something.
    Later(u32, gather::Action<Bytes>),
    Trouble,
    /// A disk has room again.
    Room(Host),
    Thaw(Host),
    Restart(Host),
}

pub struct StorageHost {
    pub life: u32,
    pub machine: Option<Storage<Bytes>>,
    /// What lasts, and what does not yet.
    pub kept: BTreeMap<(FileNo, u64), u32>,
    pub cached: BTreeMap<(FileNo, u64), u32>,
    /// There is no room: a write ends in its middle.
    pub full: bool,
    /// The next sync fails.
    pub sick: bool,
    /// Files of which a sync failed in this life: nothing of them is written or synced any more.
    pub failed: BTreeSet<FileNo>,
}

/// `ENOSPC` and `EIO`.
pub const FULL: i32 = 28;
pub const BROKEN: i32 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    Push(PushNo),
    /// One server's part of a cut.
    Cut(CutNo),
}

/// What the gatherer has a storage server do, and sync.
pub struct Push {
    pub task: Task,
    pub server: u16,
    pub file: FileNo,
    /// Requests that are not answered yet.
    pub open: BTreeSet<RequestNo>,
    pub incarnation: Incarnation,
    pub syncing: bool,
    /// It comes to nothing, and what the disk said if it did; but what is not answered may still be done.
    pub failed: Option<Option<i32>>,
}

pub struct GathererHost {
    pub life: u32,
    pub machine: Option<Gatherer<Bytes>>,
    pub log: VecDeque<(Seq, Record<Bytes>)>,
    /// So many records of the log last; those before the first of it were forgotten.
    pub synced: u64,
    pub first: Seq,
    /// There is no room for bytes.
    pub full: bool,
    pub servers: BTreeMap<u16, Incarnation>,
    pub pushes: Vec<Push>,
    /// Servers that have not cut yet, and whether the others did.
    pub cuts: BTreeMap<CutNo, (u16, bool)>,
    pub waiting: Vec<gather::Action<Bytes>>,
    pub next: u64,
}

pub struct ClientHost {
    pub life: u32,
    pub machine: Option<Client<Bytes>>,
    pub number: u64,
    pub ops: BTreeMap<OpNo, Op>,
    /// The gatherer's bytes of reads, as they came with the answers.
    pub parts: BTreeMap<(Seq, u64, u64), Bytes>,
    pub done: u32,
}

#[derive(Clone, Debug)]
pub enum Op {
    Write(u32),
    Read {
        file: u64,
        offset: u64,
        len: u64,
        begun: u64,
    },
    /// The first half of a read: whether the stripe is gathered.
    Map {
        file: u64,
        offset: u64,
        len: u64,
        begun: u64,
    },
    /// Writes that are over, for which it is, and all that were begun before: if it fails these may be lost.
    Sync {
        writes: Vec<u32>,
        begun: Vec<u32>,
    },
    Cut(u32),
    Append(u32),
    Probe(Probe),
    Told,
}

pub fn host_of(event: &Event) -> Option<Host> {
    match event {
        Event::Arrive(_, to, ..) => Some(*to),
        Event::StorageDone(server, ..) => Some(Host::Storage(*server)),
        Event::Appended(..)
        | Event::LogSynced(..)
        | Event::Tick(_)
        | Event::PushSome(_)
        | Event::Later(..) => Some(Host::Gatherer),
        Event::Act(client, _) | Event::Ping(client, _) => Some(Host::Client(*client)),
        Event::Connect(from, ..) | Event::Lost(from, ..) => Some(*from),
        Event::Trouble | Event::Room(_) | Event::Thaw(_) | Event::Restart(_) => None,
    }
}

/// The bytes of a part, out of the log.
pub fn part_bytes(log: &VecDeque<(Seq, Record<Bytes>)>, part: &Part) -> Bytes {
    let record = log.iter().find(|(seq, _)| *seq == part.seq);
    match record {
        Some((_, Record::Bytes { bytes, .. })) => {
            bytes[part.from as usize..(part.from + part.len) as usize].to_vec()
        }
        other => panic!("the log has no bytes of {part:?}: {other:?}"),
    }
}
