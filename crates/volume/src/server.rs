//! A server of a volume: a storage server, and the gatherer of some of its files.
//!
//! In: a directory, a listener, where the other servers are, the volume's keys. Out: a server that runs until
//! it is dropped.
//! Invariants: nobody is heard who holds no key of the volume, and of nobody what his key does not allow;
//! each connection holds so much memory at most; what cannot be believed ends its connection, and nothing
//! else.
//!
//! Threads: one decides ([`brain`]); some do what the disk does ([`disk`]); each connection has one that
//! reads and one that writes; one accepts, and one for each other server connects to it.

mod brain;
mod care;
mod check;
mod disk;
mod event;
mod push;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, unbounded};
use haul_core::ids::Time;
use haul_core::volume::check::Check;
use haul_core::volume::client::Striping;
use haul_core::volume::gather::{self, Gatherer, Record, Seq, Settings};
use haul_core::volume::rights::{self, Party};
use haul_core::volume::storage;
use haul_core::volume::ticket::{PARTED_TERMS, Tickets};
use haul_core::volume::wire::{Learn, Message, Visit, Who};
use haul_core::volume::{FileNo, ServerNo};
use haul_transport::{Link, TransportError};

use self::brain::Brain;
use self::check::Checks;
use self::disk::Disk;
use self::event::{Event, LineNo};
use crate::catalog::client::Terms;
use crate::dial::{Dialler, Keys, To};
use crate::door::{Guests, admit};
use crate::line::{Bytes, Incoming, LineError, Mouth, speak};
use crate::log::Log;
use crate::reserve::Reserve;
use crate::shelf::{Of, Shelf};
use crate::visit::Visits;

/// Bytes of requests of one connection that are not answered, at most. Clients have half as much under way.
pub const ALLOWANCE: u64 = 128 << 20;
/// A request holds so much at least, however few bytes it has.
const HELD_MIN: u64 = 8 << 10;
/// Requests of one connection that are not answered, at most, those without bytes too.
const REQUESTS_MAX: usize = 1 << 20;
/// Stripes of one request.
const STRIPES_MAX: u64 = 4096;
/// Connections at a time.
const CONNECTIONS_MAX: usize = 1024;
/// Who connects has so long to show who it is, and to join.
const JOIN_MAX: Duration = Duration::from_secs(10);
/// The log's beginning is given up when so many records are of no use.
const FORGET_RECORDS: u64 = 4096;
/// Kept on its disk for its next start, bytes: so that it has a life, and its log room, where there is no
/// other.
const RESERVE: u64 = 1 << 20;
const _: () = assert!(RESERVE > crate::log::ROOM);

/// How much of the allowance a request holds until it is answered: what came with it, or what is to be read.
pub(crate) fn held_by(message: &Message) -> u64 {
    let bytes = match message {
        Message::Gather(_, gather::Request::Read { len, .. })
        | Message::Store(_, storage::Request::Read { len, .. }) => *len,
        message => message.following().into(),
    };
    if bytes == 0 { 0 } else { bytes.max(HELD_MIN) }
}

/// What a server is told.
pub struct Config {
    /// Its directory, on the disk that it serves.
    pub root: PathBuf,
    pub keys: Keys,
    pub me: ServerNo,
    /// Where each server of the volume listens, itself among them.
    pub servers: Vec<SocketAddr>,
    /// Bytes.
    pub stripe_size: u64,
    /// Threads for the disk.
    pub threads: usize,
    /// Told what goes wrong, in words.
    pub notice: Arc<dyn Fn(&str) + Send + Sync>,
}

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error(transparent)]
    Shelf(#[from] crate::shelf::ShelfError),
    #[error(transparent)]
    Log(#[from] crate::log::LogError),
    #[error(
        "{} has bytes of file {} in its log and does not know how that lies: bring back what was in its lists",
        root.display(), file.0
    )]
    Unplaced { root: PathBuf, file: FileNo },
    #[error("starting the volume's server: {what}")]
    Io { what: &'static str, source: io::Error },
}

/// A server that runs. Dropping it ends it as a kill does, but that what waits is said.
pub struct Server {
    events: Sender<Event>,
    over: Arc<AtomicBool>,
    at: SocketAddr,
    visits: Visits,
    ended: Arc<AtomicBool>,
    brain: Option<JoinHandle<()>>,
    accepts: Option<JoinHandle<()>>,
    _others: Vec<Dialler>,
}

impl Server {
    /// Starts a server with a listener; a life begins.
    ///
    /// # Errors
    /// Its directory is not one of this server, another serves it, its log is damaged, or the system gives no
    /// threads.
    pub fn start(config: &Config, listener: TcpListener) -> Result<Server, ServerError> {
        Server::start_for(config, Guests::default(), listener)
    }

    /// The same, for others than servers too, who hold keys of their own.
    ///
    /// # Errors
    /// As of [`Server::start`].
    pub fn start_for(config: &Config, guests: Guests, listener: TcpListener) -> Result<Server, ServerError> {
        let servers = u16::try_from(config.servers.len()).unwrap_or(u16::MAX);
        let failed = |what| move |source| ServerError::Io { what, source };
        let of =
            Of { volume: config.keys.volume, server: config.me, servers, stripe_size: config.stripe_size };
        let shelf = Arc::new(Shelf::open(&config.root, &of)?);
        let striping = shelf.striping();
        let (mut log, first, records) = Log::open(&config.root.join("log"), crate::log::Settings::default())?;
        shelf.bind_log(&log.id())?;
        let (log_id, weak_log) = (log.id(), log.reader().downgrade());
        let reserve =
            Reserve::of(&config.root, RESERVE).map_err(|errno| failed("its directory")(errno.into()))?;
        let life = match shelf.begin_life() {
            Err(why)
                if why.is_full()
                    && !haul_mutant::removed("volume-starts-on-a-full-disk")
                    && reserve.give_up() =>
            {
                shelf.begin_life()?
            }
            begun => begun?,
        };
        // Where there is none, what has no bytes may have to wait for it.
        if log.take_room().is_err() && reserve.give_up() {
            let _ = log.take_room();
        }
        let _ = reserve.fill();
        let started = Instant::now();
        let settings = Settings { stripe_size: config.stripe_size, forget_records: FORGET_RECORDS };
        let records: Vec<(Seq, Record<Bytes>)> =
            records.into_iter().map(|(seq, record)| (seq, record.map(|_| Bytes::default()))).collect();
        let replay = records.iter().map(|(seq, record)| (*seq, record));
        // It would bring what it has of such a file to where it does not belong.
        if let Some(file) =
            records.iter().filter_map(|(_, record)| file_of(record)).find(|file| !striping.knows(*file))
        {
            return Err(ServerError::Unplaced { root: config.root.clone(), file });
        }
        let gatherer = Gatherer::new(settings, life, Time::default(), first, replay);
        let (events, heard) = unbounded();
        let disk = Disk::start((&shelf, reserve), log, config.threads.max(1), &events);
        let disk = disk.map_err(failed("its threads"))?;
        let visits = Visits::of(config.root.clone());
        let tells = (config.notice.clone(), visits.clone());
        let mut brain = Brain::new((config.me, striping.clone(), life), started, gatherer, disk, tells);
        let parted = guests.term() * PARTED_TERMS;
        let kept = shelf.kept_term();
        brain.tickets = guests.tickets.clone().map(|key| Tickets::new(key, config.keys.volume, parted, kept));
        let ended = brain.ended.clone();
        let thread = std::thread::Builder::new().name("haul-vol-brain".into());
        let brain = thread.spawn(move || brain.run(&heard)).map_err(failed("its threads"))?;
        let mut others = Vec::new();
        for (number, to) in config.servers.iter().enumerate() {
            let other = ServerNo(number as u16);
            if other != config.me {
                let events = events.clone();
                let post = move |line| _ = events.send(Event::Other(other, line));
                // Sessions go on rising over lives.
                let first = u64::from(life) << 32;
                let to = To { server: other, at: *to, striping: striping.clone() };
                let dialler = Dialler::start(config.keys.clone(), to, Who::Gatherer(config.me), first, post);
                others.push(dialler.map_err(failed("its threads"))?);
            }
        }
        let at = listener.local_addr().map_err(failed("its address"))?;
        let over = Arc::new(AtomicBool::new(false));
        let checks = Checks {
            me: config.me,
            striping: striping.clone(),
            shelf: Arc::downgrade(&shelf),
            log: weak_log,
            log_id,
            events: events.clone(),
        };
        let door = Door {
            keys: config.keys.clone(),
            guests,
            me: config.me,
            checks,
            striping: striping.clone(),
            events: events.clone(),
            visits: visits.clone(),
            over: over.clone(),
        };
        let thread = std::thread::Builder::new().name("haul-vol-accept".into());
        let accepts = thread.spawn(move || door.accept(&listener)).map_err(failed("its threads"))?;
        let (brain, accepts) = (Some(brain), Some(accepts));
        Ok(Server { events, over, at, visits, ended, brain, accepts, _others: others })
    }

    /// What is to be told of terms that the catalog counts.
    pub fn terms(&self) -> Terms {
        let events = self.events.clone();
        Arc::new(move |term, raised| _ = events.send(Event::Term(term, raised)))
    }

    /// Whether it has ended by itself, as its directory was removed under it.
    pub fn is_over(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Where it listens.
    pub fn at(&self) -> SocketAddr {
        self.at
    }

    /// Whether somebody who holds the volume's key wants it to end, which is left to whoever runs it.
    pub fn visits(&self) -> &Visits {
        &self.visits
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        let _ = self.events.send(Event::Stop);
        // It waits for one.
        let _ = TcpStream::connect_timeout(&self.at, Duration::from_secs(1));
        for thread in [self.brain.take(), self.accepts.take()].into_iter().flatten() {
            let _ = thread.join();
        }
    }
}

/// Which file a record of the log is of.
fn file_of<B>(record: &Record<B>) -> Option<FileNo> {
    match record {
        Record::Bytes { file, .. }
        | Record::End { file, .. }
        | Record::Brought { file, .. }
        | Record::Cut { file, .. }
        | Record::IsCut { file, .. }
        | Record::Remove { file }
        | Record::Gone { file }
        | Record::LastCut { file, .. }
        | Record::Untold { file }
        | Record::Told { file } => Some(*file),
        Record::Client(_) | Record::Nothing => None,
    }
}

struct Door {
    keys: Keys,
    guests: Guests,
    me: ServerNo,
    checks: Checks,
    striping: Striping,
    events: Sender<Event>,
    visits: Visits,
    over: Arc<AtomicBool>,
}

impl Door {
    fn accept(self, listener: &TcpListener) {
        let door = Arc::new(self);
        let (open, mut next) = (Arc::new(AtomicUsize::new(0)), 0);
        loop {
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(_) if door.over.load(Ordering::Acquire) => return,
                Err(_) => {
                    // No descriptors, or one that is gone already.
                    std::thread::sleep(Duration::from_millis(20));
                    continue;
                }
            };
            if door.over.load(Ordering::Acquire) {
                return;
            }
            if open.load(Ordering::Acquire) >= CONNECTIONS_MAX {
                continue;
            }
            open.fetch_add(1, Ordering::AcqRel);
            let (line, of_door, is_open) = (LineNo(next), door.clone(), open.clone());
            next += 1;
            let thread = std::thread::Builder::new().name("haul-vol-hear".into());
            let started = thread.spawn(move || {
                if let Ok((link, party)) = of_door.handshake(stream) {
                    of_door.hear(link, party, line);
                }
                is_open.fetch_sub(1, Ordering::AcqRel);
            });
            if started.is_err() {
                open.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// What no client or gatherer of this volume says: bytes of two stripes, more stripes than one request
    /// has, something of a file to who does not gather it.
    fn check(&self, message: &Message) -> Result<(), String> {
        let stripe_size = self.striping.stripe_size;
        let file = match message {
            Message::Gather(_, request) => Some(request.file()),
            Message::Store(_, request) => Some(request.file()),
            _ => None,
        };
        if let Some(file) = file.filter(|file| !self.striping.knows(*file))
            && !haul_mutant::removed("volume-servers-know-placements")
        {
            return Err(format!(
                "server {} was never told how file {} lies: its directory is older than that",
                self.me.0, file.0
            ));
        }
        if let Message::Gather(_, request) = message
            && self.striping.gatherer(request.file()) != self.me
        {
            return Err("another server gathers this file".into());
        }
        let in_one = |offset: u64, len: u64| match offset % stripe_size + len <= stripe_size {
            true => Ok(()),
            false => Err("a request has bytes of more than one stripe".to_owned()),
        };
        match message {
            Message::Gather(
                _,
                gather::Request::Write { offset, len, .. } | gather::Request::Read { offset, len, .. },
            )
            | Message::Store(_, storage::Request::Read { offset, len, .. }) => in_one(*offset, *len),
            Message::Store(_, storage::Request::Write { offset, bytes, .. }) => {
                in_one(*offset, u64::from(*bytes))
            }
            Message::Gather(
                _,
                gather::Request::Lease { stripes, .. } | gather::Request::Release { stripes, .. },
            ) if stripes.end - stripes.start > STRIPES_MAX => {
                Err(format!("a request has more than {STRIPES_MAX} stripes"))
            }
            _ => Ok(()),
        }
    }

    fn handshake(&self, stream: TcpStream) -> Result<(Link, Party), TransportError> {
        let _ = stream.set_nodelay(true);
        admit(stream, &self.keys, &self.guests, JOIN_MAX)
    }

    fn hear(&self, link: Link, party: Party, line: LineNo) {
        let Ok((mut incoming, mouth)) = speak(link, "haul-vol-say", Some(REQUESTS_MAX)) else { return };
        if self.join(&mut incoming, party, line, mouth).is_some() {
            // Whatever it was that ended it; with the last mouth the connection ends.
            let _ = self.events.send(Event::Gone(line));
        }
    }

    /// Answers who checks, one question after the other, until he has no more.
    fn check_for(&self, first: Check, incoming: &mut Incoming, mouth: &Mouth) {
        let mut next = Some(first);
        while let Some(Check { volume, to, ask }) = next {
            if volume != self.keys.volume || to != self.me {
                let why = format!("this is server {} of another volume, or of this one", self.me.0);
                return mouth.say(Message::Refused(why.into()), Bytes::default());
            }
            mouth.say(Message::Found(self.checks.answer(ask)), Bytes::default());
            next = match incoming.receive(|_| Ok(())) {
                Ok(Some((Message::Check(check), _))) => Some(check),
                _ => None,
            };
        }
    }

    /// Learns how files of a placement lie, and says that it knows it.
    fn learn(&self, Learn { volume, to, placing, list }: Learn) -> Message {
        if volume != self.keys.volume || to != self.me {
            let why = format!("this is server {} of another volume, or of this one", self.me.0);
            return Message::Refused(why.into());
        }
        match self.checks.shelf.upgrade().map(|shelf| shelf.learn(placing, &list)) {
            Some(Ok(())) => Message::Learnt,
            Some(Err(error)) => Message::Refused(haul_base::errno::with_causes(&error).into()),
            None => Message::Refused("the server ends".into()),
        }
    }

    /// Hears a connection until it ends; `None`: it was not joined.
    fn join(&self, incoming: &mut Incoming, party: Party, line: LineNo, mouth: Mouth) -> Option<()> {
        let (message, _) = incoming.receive(|_| Ok(())).ok().flatten()?;
        let is_of_readers = !matches!(
            message,
            Message::Check(_) | Message::Learn(_) | Message::Visit(Visit { end: true, .. })
        );
        if !is_of_readers && !party.may_change() {
            mouth.say(Message::Refused(rights::in_words(rights::READ_ONLY).into()), Bytes::default());
            return None;
        }
        if let Message::Visit(visit) = message {
            mouth.say(self.visits.answer(self.keys.volume, Some(self.me), &visit), Bytes::default());
            return None;
        }
        if let Message::Check(check) = message {
            self.check_for(check, incoming, &mouth);
            return None;
        }
        if let Message::Learn(learn) = message {
            mouth.say(self.learn(learn), Bytes::default());
            return None;
        }
        let Message::Join { volume, who, session, to, striping } = message else {
            mouth.say(Message::Refused("the first that is said is a join".into()), Bytes::default());
            return None;
        };
        if volume != self.keys.volume {
            mouth.say(Message::Refused("this server is of another volume".into()), Bytes::default());
            return None;
        }
        if to != self.me || striping != self.striping {
            let why = format!(
                "this is server {} of {}, stripes of {} bytes, and not server {} of {}, stripes of {} bytes",
                self.me.0,
                self.striping.servers,
                self.striping.stripe_size,
                to.0,
                striping.servers,
                striping.stripe_size
            );
            mouth.say(Message::Refused(why.into()), Bytes::default());
            return None;
        }
        let is_such = match who {
            Who::Client(client) => party.has_number(client.0),
            Who::Gatherer(_) => party.is_server(),
        };
        if !is_such {
            let why = "with this access to the volume nobody is such a client, or a server";
            mouth.say(Message::Refused(why.into()), Bytes::default());
            return None;
        }
        let held = Arc::new(AtomicU64::new(0));
        let came = Event::Came { line, who, party, session, mouth: mouth.clone(), held: held.clone() };
        self.events.send(came).ok()?;
        if let (Who::Client(_), Some(found)) = (who, self.visits.found(Instant::now())) {
            mouth.say(Message::Costs(found), Bytes::default());
        }
        let allow = |message: &Message| {
            self.check(message)?;
            let more = held_by(message);
            match held.fetch_add(more, Ordering::AcqRel) + more <= ALLOWANCE {
                true => Ok(()),
                false => Err("more at a time than is allowed".to_owned()),
            }
        };
        loop {
            match incoming.receive(allow) {
                // For whoever looks after it, and for nothing that it decides.
                Ok(Some((Message::Costs(costs), _))) => match who {
                    // Of writes, which a reader does not make.
                    Who::Client(_) if !party.may_change() => {}
                    Who::Client(client) => self.visits.hear(client, costs),
                    Who::Gatherer(_) => return Some(()),
                },
                Ok(Some((message, bytes))) => self.events.send(Event::Said(line, message, bytes)).ok()?,
                // Who says what cannot be heard is told so.
                Err(LineError::Refused(why)) => {
                    mouth.say(Message::Refused(why.into()), Bytes::default());
                    return Some(());
                }
                Ok(None) | Err(_) => return Some(()),
            }
        }
    }
}
