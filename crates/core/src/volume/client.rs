//! A client of a volume: which write goes where and when, and what a sync waits for.
//!
//! In: writes, reads and syncs of the application, in pieces that lie in one stripe each; answers of
//! gatherer and storage servers; connections that come and go; time. Out: requests, and what became of the
//! application's. Invariants: a direct write goes out under a lease that is good by this host's clock, got
//! over the connection to the gatherer that stands; in a stripe no direct write and no gathered one are
//! under way at a time, and what overlaps goes out in the order in which it came, one after the other; a
//! sync succeeds only if every server with anything of the file that was not synced before says that it
//! lasts, in the life in which it took it; what changes a file as a whole waits for the client's writes
//! before it, and those after it wait for it. Left out: which path a write takes
//! ([`threshold`](super::threshold)), small writes put together, and waiting with an end: the driver gives
//! up what takes too long.

mod again;
mod look;
mod map;
mod sync;
mod turns;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use self::sync::Syncing;
use self::turns::Turn;
use super::gather::{self, LEASE};
pub use super::layout::Striping;
use super::storage;
use super::threshold::Path;
use super::{ContentVersion, Epoch, FileNo, Incarnation, RequestNo, ServerNo};
use crate::ids::Time;

/// What the application asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpNo(pub u64);

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<B> {
    Written,
    Synced,
    /// The bytes stand there.
    Appended {
        offset: u64,
    },
    /// The file has grown: the bytes are to be written there.
    Reserved {
        offset: u64,
    },
    /// The file ends there, and that lasts.
    Truncated,
    /// The file is removed, and that lasts.
    Removed,
    /// It was removed.
    Gone,
    /// What the gatherer has of the range, over what the storage server has; and where the file ends.
    Read {
        gathered: Vec<gather::Part>,
        stored: B,
        end: u64,
    },
    /// The file is of that version, and ends there; `untold`: it was written since the catalog was told.
    Looked {
        version: ContentVersion,
        end: u64,
        untold: bool,
    },
    /// The gatherer heard what the catalog knows. False: the file is of another version by now, and it counts
    /// for nothing.
    Told {
        counts: bool,
    },
    /// Where the file ends, and what the gatherer said besides.
    Length {
        gathered: Vec<gather::Part>,
        end: u64,
    },
    /// These stripes are gathered, of those that were asked for, and the file ends there; of that version it
    /// is if nobody can write it directly.
    Map {
        gathered: Vec<Range<u64>>,
        end: u64,
        version: Option<ContentVersion>,
    },
    /// A server ended a life with writes that no sync was for.
    Lost(Where),
    /// The disk says no.
    Failed(Where, i32),
}

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Where {
    Gatherer,
    Storage(ServerNo),
}

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<B> {
    /// Say so to the gatherer.
    ToGatherer(RequestNo, gather::Request<B>),
    /// Say so to a storage server.
    ToStorage(ServerNo, RequestNo, storage::Request<B>),
    /// Tell the application.
    Done(OpNo, Outcome<B>),
}

#[derive(Clone, Debug)]
struct Piece<B> {
    op: OpNo,
    path: Path,
    offset: u64,
    len: u64,
    bytes: B,
}

#[derive(Debug)]
struct Stripe<B> {
    /// What is to go out, in this order.
    queue: VecDeque<Piece<B>>,
    /// Under way, and over which path: offset and length of each.
    under_way: Vec<(u64, u64)>,
    path: Path,
    lease: Option<Epoch>,
    /// A lease was asked for.
    asked: bool,
    /// The gatherer wants the lease back.
    recalled: bool,
}

impl<B> Default for Stripe<B> {
    fn default() -> Stripe<B> {
        Stripe {
            queue: VecDeque::new(),
            under_way: Vec::new(),
            path: Path::Gather,
            lease: None,
            asked: false,
            recalled: false,
        }
    }
}

impl<B> Stripe<B> {
    /// A piece is not under way any more.
    fn is_back(&mut self, piece: &Piece<B>) {
        let at = self.under_way.iter().position(|one| *one == (piece.offset, piece.len));
        self.under_way.swap_remove(at.expect("what is under way was sent"));
    }
}

#[derive(Debug)]
struct File<B> {
    stripes: BTreeMap<u64, Stripe<B>>,
    /// What waits for a change of the whole file, and that change, in their order.
    turns: VecDeque<Turn<B>>,
    /// The first of them was said to the gatherer.
    is_turning: bool,
    /// Writes that are not over; and so many of them are in stripes.
    writes: BTreeSet<OpNo>,
    in_stripes: u32,
    /// Servers with something that is not synced, and the life in which they took it.
    dirty: BTreeMap<ServerNo, Incarnation>,
    gathered: Option<u32>,
    /// Where it ends by what was written directly under an epoch, as far as the gatherer is not known to
    /// have that on media. Of two the newer says less.
    ends: BTreeMap<Epoch, u64>,
    /// The last write that is over, of those that began.
    written: Option<OpNo>,
    /// Who lost what was not synced; told by the next sync.
    lost: Option<Where>,
    /// In their order; the first is under way, or waits for writes.
    syncs: VecDeque<Syncing>,
}

impl<B> Default for File<B> {
    fn default() -> File<B> {
        File {
            stripes: BTreeMap::new(),
            turns: VecDeque::new(),
            is_turning: false,
            writes: BTreeSet::new(),
            in_stripes: 0,
            dirty: BTreeMap::new(),
            gathered: None,
            ends: BTreeMap::new(),
            written: None,
            lost: None,
            syncs: VecDeque::new(),
        }
    }
}

#[derive(Debug)]
enum Asked<B> {
    /// `epoch`: of a lease, under which it is written directly.
    Write {
        file: FileNo,
        stripe: u64,
        piece: Piece<B>,
        epoch: Option<Epoch>,
    },
    Change {
        file: FileNo,
    },
    Lease {
        file: FileNo,
        stripes: Range<u64>,
        at: Time,
    },
    Sync {
        file: FileNo,
        op: OpNo,
    },
    Look {
        op: OpNo,
        file: FileNo,
    },
    Told {
        op: OpNo,
        file: FileNo,
        version: ContentVersion,
    },
    Length {
        op: OpNo,
        file: FileNo,
    },
    Map {
        op: OpNo,
        file: FileNo,
        stripes: Range<u64>,
    },
    Gathered {
        op: OpNo,
        file: FileNo,
        offset: u64,
        len: u64,
    },
    Stored {
        op: OpNo,
        file: FileNo,
        offset: u64,
        len: u64,
        gathered: Vec<gather::Part>,
        end: u64,
    },
}

/// A client's connections to a volume, and its files there.
#[derive(Debug)]
pub struct Client<B> {
    striping: Striping,
    now: Time,
    /// When the gatherer was spoken to last, of that which it certainly heard.
    heard: Option<Time>,
    gatherer: Option<u32>,
    servers: BTreeMap<ServerNo, Incarnation>,
    files: BTreeMap<FileNo, File<B>>,
    /// What was asked of whom, and is not answered.
    asked: BTreeMap<RequestNo, (Where, Asked<B>)>,
    /// Reads that wait for a server.
    reads: VecDeque<Asked<B>>,
    next: u64,
    actions: VecDeque<Action<B>>,
}

impl<B: Clone> Client<B> {
    /// One that is connected to nobody yet.
    pub fn new(striping: Striping) -> Client<B> {
        Client {
            striping,
            now: Time::default(),
            heard: None,
            gatherer: None,
            servers: BTreeMap::new(),
            files: BTreeMap::new(),
            asked: BTreeMap::new(),
            reads: VecDeque::new(),
            next: 0,
            actions: VecDeque::new(),
        }
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action<B>> {
        self.actions.pop_front()
    }

    /// The gatherer heard what was said at `said` over the connection that stands: its leases are good for a
    /// while from then on.
    pub fn heard(&mut self, now: Time, said: Time) {
        self.now = self.now.max(now);
        self.heard = self.heard.max(Some(said));
    }

    fn leases_are_good(&self) -> bool {
        self.heard.is_some_and(|heard| self.now < heard.after(LEASE))
    }

    /// The gatherer's new connection: this client has no leases any more. `life` is the gatherer's.
    pub fn gatherer_joined(&mut self, now: Time, life: u32) {
        self.now = self.now.max(now);
        self.gatherer_lost();
        self.gatherer = Some(life);
        for file in self.files.values_mut() {
            if file.gathered.is_some_and(|before| before != life) {
                file.gathered = None;
                file.loses(Where::Gatherer);
            }
        }
        self.go_on_everywhere();
    }

    /// The connection to the gatherer is gone.
    pub fn gatherer_lost(&mut self) {
        self.gatherer = None;
        self.heard = None;
        for file in self.files.values_mut() {
            for stripe in file.stripes.values_mut() {
                stripe.lease = None;
                stripe.asked = false;
                stripe.recalled = false;
            }
        }
        self.ask_again(Where::Gatherer);
    }

    /// A storage server's new connection, in which nothing of an older one is carried out any more.
    pub fn server_joined(&mut self, now: Time, server: ServerNo, incarnation: Incarnation) {
        self.now = self.now.max(now);
        self.server_lost(server);
        self.servers.insert(server, incarnation);
        for file in self.files.values_mut() {
            if file.dirty.get(&server).is_some_and(|before| *before != incarnation) {
                file.dirty.remove(&server);
                file.loses(Where::Storage(server));
            }
        }
        self.go_on_everywhere();
    }

    /// The connection to a storage server is gone.
    pub fn server_lost(&mut self, server: ServerNo) {
        self.servers.remove(&server);
        self.ask_again(Where::Storage(server));
    }

    fn file(&mut self, file: FileNo) -> &mut File<B> {
        self.files.entry(file).or_default()
    }

    fn stripe(&mut self, file: FileNo, stripe: u64) -> &mut Stripe<B> {
        self.file(file).stripes.entry(stripe).or_default()
    }

    fn ask(&mut self, of: Where, asked: Asked<B>) -> RequestNo {
        let number = RequestNo(self.next);
        self.next += 1;
        self.asked.insert(number, (of, asked));
        number
    }

    fn ask_gatherer(&mut self, asked: Asked<B>, request: gather::Request<B>) {
        let number = self.ask(Where::Gatherer, asked);
        self.actions.push_back(Action::ToGatherer(number, request));
    }

    /// There is no answer to it.
    fn tell_gatherer(&mut self, request: gather::Request<B>) {
        self.actions.push_back(Action::ToGatherer(RequestNo(self.next), request));
        self.next += 1;
    }

    fn ask_storage(&mut self, server: ServerNo, asked: Asked<B>, request: storage::Request<B>) {
        let number = self.ask(Where::Storage(server), asked);
        self.actions.push_back(Action::ToStorage(server, number, request));
    }

    /// Which write of the application a request is, as long as that is under way; `None`: something else.
    pub fn write_of(&self, number: RequestNo) -> Option<OpNo> {
        match self.asked.get(&number) {
            Some((_, Asked::Write { piece, .. })) => Some(piece.op),
            _ => None,
        }
    }

    /// The application writes bytes that lie in one stripe.
    pub fn write(
        &mut self,
        now: Time,
        op: OpNo,
        path: Path,
        file: FileNo,
        (offset, len): (u64, u64),
        bytes: B,
    ) {
        self.now = self.now.max(now);
        let state = self.file(file);
        state.writes.insert(op);
        state.turns.push_back(Turn::Write(Piece { op, path, offset, len, bytes }));
        self.take_turns(file);
    }

    /// The application reads a range that lies in one stripe.
    pub fn read(&mut self, now: Time, op: OpNo, file: FileNo, offset: u64, len: u64) {
        self.now = self.now.max(now);
        self.reads.push_back(Asked::Gathered { op, file, offset, len });
        self.begin_reads();
    }

    /// The application wants to know where a file ends: its gatherer knows that alone.
    pub fn length(&mut self, now: Time, op: OpNo, file: FileNo) {
        self.now = self.now.max(now);
        self.reads.push_back(Asked::Length { op, file });
        self.begin_reads();
    }

    fn begin_reads(&mut self) {
        for read in std::mem::take(&mut self.reads) {
            match read {
                // A range of no bytes cannot be asked for.
                Asked::Length { file, .. } if self.gatherer.is_some() => {
                    self.ask_gatherer(read, gather::Request::Read { file, offset: 0, len: 1 });
                }
                Asked::Gathered { file, offset, len, .. } if self.gatherer.is_some() => {
                    self.ask_gatherer(read, gather::Request::Read { file, offset, len });
                }
                Asked::Map { file, ref stripes, .. } if self.gatherer.is_some() => {
                    let stripes = stripes.clone();
                    self.ask_gatherer(read, gather::Request::Map { file, stripes });
                }
                Asked::Look { file, .. } if self.gatherer.is_some() => {
                    self.ask_gatherer(read, gather::Request::Look { file });
                }
                Asked::Told { file, version, .. } if self.gatherer.is_some() => {
                    self.ask_gatherer(read, gather::Request::Told { file, version });
                }
                Asked::Stored { file, offset, len, .. } => {
                    let server = self.striping.server(file, offset / self.striping.stripe_size);
                    match self.servers.contains_key(&server) {
                        true => self.ask_storage(server, read, storage::Request::Read { file, offset, len }),
                        false => self.reads.push_back(read),
                    }
                }
                read => self.reads.push_back(read),
            }
        }
    }

    fn go_on_everywhere(&mut self) {
        let all: Vec<(FileNo, u64)> = self
            .files
            .iter()
            .flat_map(|(file, state)| state.stripes.keys().map(move |stripe| (*file, *stripe)))
            .collect();
        all.into_iter().for_each(|(file, at)| self.go_on(file, at));
        let files: Vec<FileNo> = self.files.keys().copied().collect();
        for file in files {
            self.take_turns(file);
            self.begin_syncs(file);
        }
        self.begin_reads();
    }

    /// Sends what can go out of a stripe.
    fn go_on(&mut self, file: FileNo, at: u64) {
        let server = self.striping.server(file, at);
        let (is_good, gatherer) = (self.leases_are_good(), self.gatherer.is_some());
        let is_there = self.servers.contains_key(&server);
        loop {
            let stripe = self.stripe(file, at);
            if stripe.recalled && stripe.under_way.is_empty() {
                stripe.recalled = false;
                stripe.lease = None;
                self.tell_gatherer(gather::Request::Release { file, stripes: at..at + 1 });
                continue;
            }
            let Some(first) = stripe.queue.front() else { break };
            let overlaps = |(offset, len): &(u64, u64)| {
                *offset < first.offset + first.len && first.offset < offset + len
            };
            let waits = !stripe.under_way.is_empty() && stripe.path != first.path;
            if waits || stripe.under_way.iter().any(overlaps) {
                break;
            }
            let path = first.path;
            match path {
                Path::Gather => {
                    if !gatherer {
                        break;
                    }
                    // The lease ends with it, and the gatherer knows.
                    stripe.lease = None;
                    stripe.recalled = false;
                    let piece = self.send_first(file, at, path);
                    let (offset, len, bytes) = (piece.offset, piece.len, piece.bytes.clone());
                    let asked = Asked::Write { file, stripe: at, piece, epoch: None };
                    self.ask_gatherer(asked, gather::Request::Write { file, offset, len, bytes });
                }
                Path::Direct => {
                    if stripe.recalled || !is_there || !gatherer {
                        break;
                    }
                    let Some(epoch) = stripe.lease.filter(|_| is_good) else {
                        self.want_lease(file, at);
                        break;
                    };
                    let piece = self.send_first(file, at, path);
                    let (offset, bytes) = (piece.offset, piece.bytes.clone());
                    let asked = Asked::Write { file, stripe: at, piece, epoch: Some(epoch) };
                    let request = storage::Request::Write { file, epoch, offset, bytes };
                    self.ask_storage(server, asked, request);
                }
            }
        }
    }

    fn send_first(&mut self, file: FileNo, at: u64, path: Path) -> Piece<B> {
        let stripe = self.stripe(file, at);
        stripe.path = path;
        let piece = stripe.queue.pop_front().expect("it was just looked at");
        stripe.under_way.push((piece.offset, piece.len));
        piece
    }

    fn want_lease(&mut self, file: FileNo, at: u64) {
        let stripe = self.stripe(file, at);
        // Under an older lease something may be under way: that is over first.
        if stripe.asked || !stripe.under_way.is_empty() {
            return;
        }
        stripe.asked = true;
        stripe.lease = None;
        let stripes = at..at + 1;
        let asked = Asked::Lease { file, stripes: stripes.clone(), at: self.now };
        self.ask_gatherer(asked, gather::Request::Lease { file, stripes });
    }

    /// The gatherer wants leases back.
    pub fn recalled(&mut self, now: Time, file: FileNo, stripes: Range<u64>) {
        self.now = self.now.max(now);
        for at in stripes {
            let stripe = self.stripe(file, at);
            // What is under way to the gatherer ends it, as the gatherer knows.
            if stripe.under_way.is_empty() || stripe.path == Path::Direct {
                stripe.recalled = true;
                self.go_on(file, at);
            }
        }
    }

    /// The gatherer answers.
    pub fn gatherer_answered(&mut self, now: Time, number: RequestNo, answer: gather::Answer) {
        self.now = self.now.max(now);
        let Some((Where::Gatherer, _)) = self.asked.get(&number) else { return };
        let (_, asked) = self.asked.remove(&number).expect("it was just there");
        match (asked, answer) {
            (Asked::Write { file, stripe, piece, .. }, gather::Answer::Written) => {
                let life = self.gatherer;
                self.file(file).gathered = life;
                self.written(file, stripe, &piece, Outcome::Written);
            }
            (Asked::Write { file, stripe, piece, .. }, gather::Answer::Failed(errno)) => {
                self.written(file, stripe, &piece, Outcome::Failed(Where::Gatherer, errno));
            }
            (Asked::Write { file, stripe, piece, .. }, gather::Answer::Gone) => {
                // Perhaps for want of a ticket, and the gatherer counts on a lease that should end with it.
                self.tell_gatherer(gather::Request::Release { file, stripes: stripe..stripe + 1 });
                self.written(file, stripe, &piece, Outcome::Gone);
            }
            (
                Asked::Length { op, .. } | Asked::Map { op, .. } | Asked::Gathered { op, .. },
                gather::Answer::Gone,
            ) => {
                self.done(op, Outcome::Gone);
            }
            (
                Asked::Length { op, .. } | Asked::Map { op, .. } | Asked::Gathered { op, .. },
                gather::Answer::Failed(errno),
            ) => {
                self.done(op, Outcome::Failed(Where::Gatherer, errno));
            }
            (Asked::Map { op, .. }, gather::Answer::Map { gathered, end, version }) => {
                self.done(op, Outcome::Map { gathered, end, version });
            }
            (Asked::Length { op, .. }, gather::Answer::Read { parts: gathered, end }) => {
                self.done(op, Outcome::Length { gathered, end });
            }
            (Asked::Look { op, .. } | Asked::Told { op, .. }, answer) => self.looked(op, answer),
            (Asked::Change { file }, answer) => self.changed(file, answer),
            (Asked::Lease { file, at: said, .. }, gather::Answer::Leased { stripes, epoch }) => {
                self.heard(now, said);
                for at in stripes {
                    let stripe = self.stripe(file, at);
                    stripe.asked = false;
                    stripe.lease = Some(epoch);
                    self.go_on(file, at);
                }
            }
            (Asked::Lease { file, stripes, .. }, gather::Answer::Failed(errno)) => {
                self.no_lease(file, stripes, &Outcome::Failed(Where::Gatherer, errno));
            }
            (Asked::Lease { file, stripes, .. }, gather::Answer::Refused(errno)) => {
                for at in stripes {
                    let of = Where::Storage(self.striping.server(file, at));
                    self.no_lease(file, at..at + 1, &Outcome::Failed(of, errno));
                }
            }
            (Asked::Lease { file, stripes, .. }, gather::Answer::Gone) => {
                self.no_lease(file, stripes, &Outcome::Gone);
            }
            (Asked::Sync { file, op }, gather::Answer::Durable) => {
                self.sync_answered(file, op, Where::Gatherer, Some(Ok(None)));
            }
            (Asked::Sync { file, op }, gather::Answer::Failed(errno)) => {
                self.sync_answered(file, op, Where::Gatherer, Some(Err(errno)));
            }
            (Asked::Gathered { op, file, offset, len }, gather::Answer::Read { parts, end }) => {
                self.reads.push_back(Asked::Stored { op, file, offset, len, gathered: parts, end });
                self.begin_reads();
            }
            _ => {}
        }
    }

    /// There is no lease on stripes: what waits for it comes to nothing.
    fn no_lease(&mut self, file: FileNo, stripes: Range<u64>, outcome: &Outcome<B>) {
        for at in stripes {
            let stripe = self.stripe(file, at);
            stripe.asked = false;
            for piece in std::mem::take(&mut stripe.queue) {
                self.end_write(file, piece.op, outcome.clone());
            }
        }
    }

    /// A storage server answers.
    pub fn storage_answered(
        &mut self,
        now: Time,
        server: ServerNo,
        number: RequestNo,
        answer: storage::Answer<B>,
    ) {
        self.now = self.now.max(now);
        if self.asked.get(&number).is_none_or(|(of, _)| *of != Where::Storage(server)) {
            return;
        }
        let (_, asked) = self.asked.remove(&number).expect("it was just there");
        match (asked, answer) {
            (Asked::Write { file, stripe, piece, epoch }, storage::Answer::Written(incarnation)) => {
                let state = self.file(file);
                state.dirty.entry(server).or_insert(incarnation);
                state.reaches(epoch.unwrap_or_default(), piece.offset + piece.len);
                self.written(file, stripe, &piece, Outcome::Written);
            }
            (Asked::Write { file, stripe, piece, .. }, storage::Answer::Void(_)) => {
                let state = self.stripe(file, stripe);
                state.is_back(&piece);
                state.lease = None;
                state.queue.push_front(piece);
                self.go_on(file, stripe);
            }
            (Asked::Write { file, stripe, piece, .. }, storage::Answer::Gone) => {
                self.written(file, stripe, &piece, Outcome::Gone);
            }
            (Asked::Write { file, stripe, piece, .. }, storage::Answer::Failed(errno)) => {
                self.written(file, stripe, &piece, Outcome::Failed(Where::Storage(server), errno));
            }
            (Asked::Sync { file, op }, storage::Answer::Durable(incarnation)) => {
                self.sync_answered(file, op, Where::Storage(server), Some(Ok(Some(incarnation))));
            }
            (Asked::Sync { file, op }, storage::Answer::Failed(errno)) => {
                self.sync_answered(file, op, Where::Storage(server), Some(Err(errno)));
            }
            (Asked::Stored { op, gathered, end, .. }, storage::Answer::Read(stored)) => {
                self.done(op, Outcome::Read { gathered, stored, end });
            }
            (Asked::Stored { op, .. }, storage::Answer::Failed(errno)) => {
                self.done(op, Outcome::Failed(Where::Storage(server), errno));
            }
            _ => {}
        }
    }

    fn done(&mut self, op: OpNo, outcome: Outcome<B>) {
        self.actions.push_back(Action::Done(op, outcome));
    }

    fn written(&mut self, file: FileNo, at: u64, piece: &Piece<B>, outcome: Outcome<B>) {
        self.stripe(file, at).is_back(piece);
        self.end_write(file, piece.op, outcome);
        self.go_on(file, at);
    }

    fn end_write(&mut self, file: FileNo, op: OpNo, outcome: Outcome<B>) {
        let state = self.file(file);
        state.writes.remove(&op);
        state.in_stripes -= 1;
        if matches!(outcome, Outcome::Written) {
            state.written = state.written.max(Some(op));
        }
        self.done(op, outcome);
        self.take_turns(file);
        self.begin_syncs(file);
    }
}
