//! A run: hosts, connections, disks and a clock.
//!
//! Every connection is a line in each direction, in order, with delays. A host that is frozen does nothing
//! until it thaws, and what came for it waits. A host that crashes comes back with what its disk kept: what
//! was synced, and of the rest any part, or all of it if the process alone was killed.

mod gathering;
mod ops;
mod probe;
mod trouble;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;

use haul_core::ids::Time;
use haul_core::volume::client::{self, Client, OpNo, Outcome, Striping};
use haul_core::volume::gather::{self, CutNo, Gatherer, Record, Seq, Settings};
use haul_core::volume::layout::{Given, Lists, Placing};
use haul_core::volume::storage::{self, Done, Peer, Storage};
use haul_core::volume::threshold::Path;
use haul_core::volume::{ClientNo, FileNo, Incarnation, RequestNo, ServerNo, Session};

use super::hosts::{
    BROKEN, Bytes, ClientHost, Event, FULL, GathererHost, Host, Message, Op, Push, StorageHost, Task,
    host_of, part_bytes,
};
use super::judge::{Cut, Judge, NOWHERE, Place, Write};

pub use probe::Probe;

const MS: u64 = 1_000_000;
/// Of so many requests of clients one is not taken, for its ticket is over.
const TICKETS_OVER: u32 = 12;
const STRIPE: u64 = 8;
/// Trouble ends then, and everything is to be over soon after that.
const TROUBLE: u64 = 60_000 * MS;
const END: u64 = 600_000 * MS;
/// The gatherer as a peer of storage servers.
const GATHERER_PEER: u64 = 1000;
/// Clients are heard so often.
const PING: u64 = 2000 * MS;

/// The number of a file, by which some lie in runs of several stripes, and some as a list says.
fn numbered(file: u64) -> FileNo {
    let given = Placing::given(0).map_or(0, Placing::code);
    let code = [2, given, 0, 3][(file % 4) as usize];
    Placing::from_code(code).expect("there is such a one").number(file)
}

/// The one list that there is.
struct OneList(Arc<Given>);

impl Lists for OneList {
    fn list(&self, placing: Placing) -> Option<Arc<Given>> {
        (placing == Placing::given(0)?).then(|| self.0.clone())
    }
}

/// The last of them has two stripes, and then the first one.
fn striping_of(servers: u16) -> Striping {
    let list = Given::new([(servers - 1, 2), (0, 1)]).expect("a list");
    Striping::new(STRIPE, servers).with_lists(Arc::new(OneList(Arc::new(list))))
}

pub struct World {
    /// Of each file.
    stripes: u64,
    /// Files that names lead to, and how many there ever were.
    names: Vec<u64>,
    files: u64,
    random: fastrand::Rng,
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    what: BTreeMap<u64, Event>,
    next_event: u64,
    storages: Vec<StorageHost>,
    gatherer: GathererHost,
    clients: Vec<ClientHost>,
    /// Connections that stand: from, to, number, and when the last message of each direction arrives.
    lines: BTreeMap<(Host, Host), (u64, u64, u64)>,
    next_line: u64,
    /// Which client made a line.
    numbers: BTreeMap<u64, u64>,
    frozen: BTreeSet<Host>,
    parked: BTreeMap<Host, Vec<Event>>,
    judge: Judge,
    next_write: u32,
    next_op: u64,
    next_client: u64,
    ops_max: u32,
    /// Most of what clients do is to look whether anything changed.
    probes: bool,
    log: VecDeque<String>,
    steps: u64,
    calm: bool,
}

/// Returns how many events there were, and how many places were read twice in one version.
pub fn run(clients: u16, servers: u16, seed: u64) -> (u64, u64) {
    let mut world = World::new(clients, servers, seed);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.run()));
    if let Err(panic) = result {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let text = text.unwrap_or_else(|| "it panicked".into());
        let last: Vec<String> = world.log.iter().cloned().collect();
        panic!("{text}\n{}", last.join("\n"));
    }
    (world.steps, world.judge.compared)
}

impl World {
    fn new(clients: u16, servers: u16, seed: u64) -> World {
        let storage = || StorageHost {
            life: 0,
            machine: None,
            kept: BTreeMap::new(),
            cached: BTreeMap::new(),
            full: false,
            sick: false,
            failed: BTreeSet::new(),
        };
        let client = || ClientHost {
            life: 0,
            machine: None,
            number: 0,
            ops: BTreeMap::new(),
            parts: BTreeMap::new(),
            done: 0,
        };
        let mut random = fastrand::Rng::with_seed(seed);
        let probes = seed % 3 == 2;
        let (stripes, files) = match probes {
            true => (random.u64(1..=2), 1),
            false => (random.u64(1..=4), random.u64(1..=2)),
        };
        World {
            stripes,
            names: (0..files).collect(),
            files,
            random,
            now: 0,
            events: BinaryHeap::new(),
            what: BTreeMap::new(),
            next_event: 0,
            storages: (0..servers).map(|_| storage()).collect(),
            gatherer: GathererHost {
                life: 0,
                machine: None,
                log: VecDeque::new(),
                synced: 0,
                first: Seq(0),
                full: false,
                servers: BTreeMap::new(),
                pushes: Vec::new(),
                cuts: BTreeMap::new(),
                waiting: Vec::new(),
                next: 0,
            },
            clients: (0..clients).map(|_| client()).collect(),
            lines: BTreeMap::new(),
            next_line: 1,
            numbers: BTreeMap::new(),
            frozen: BTreeSet::new(),
            parked: BTreeMap::new(),
            judge: Judge::default(),
            next_write: 1,
            next_op: 0,
            next_client: 1,
            ops_max: if probes { 400 } else { 120 },
            probes,
            log: VecDeque::new(),
            steps: 0,
            calm: false,
        }
    }

    fn striping(&self) -> Striping {
        striping_of(self.storages.len() as u16)
    }

    fn say(&mut self, text: impl FnOnce() -> String) {
        if self.log.len() >= 120 {
            self.log.pop_front();
        }
        let text = format!("{:>9.3} {}", self.now as f64 / MS as f64, text());
        self.log.push_back(text);
    }

    fn at(&mut self, when: u64, event: Event) {
        let number = self.next_event;
        self.next_event += 1;
        self.events.push(Reverse((when, number)));
        self.what.insert(number, event);
    }

    fn after(&mut self, low: u64, high: u64, event: Event) {
        let delay = self.random.u64(low..=high);
        self.at(self.now + delay, event);
    }

    fn run(&mut self) {
        for server in 0..self.storages.len() as u16 {
            self.start(Host::Storage(server));
        }
        self.start(Host::Gatherer);
        for client in 0..self.clients.len() as u16 {
            self.start(Host::Client(client));
        }
        self.after(0, 3000 * MS, Event::Trouble);
        while let Some(Reverse((when, number))) = self.events.pop() {
            assert!(when < END, "it never ends: {}", self.open_ops());
            self.now = when;
            self.steps += 1;
            let event = self.what.remove(&number).expect("an event comes once");
            if let Some(host) = host_of(&event)
                && self.frozen.contains(&host)
            {
                self.parked.entry(host).or_default().push(event);
                continue;
            }
            self.handle(event);
            if self.calm && self.is_over() {
                break;
            }
        }
        assert!(self.is_over(), "nothing happens any more: {}", self.open_ops());
        self.check_disks();
    }

    fn open_ops(&self) -> String {
        let ops = self.clients.iter().map(|client| format!("{:?}", client.ops));
        ops.collect::<Vec<_>>().join("; ")
    }

    fn is_over(&self) -> bool {
        let all_up = self.storages.iter().all(|storage| storage.machine.is_some());
        let over = |client: &ClientHost| client.done >= self.ops_max && client.ops.is_empty();
        all_up && self.gatherer.machine.is_some() && self.clients.iter().all(over)
    }

    /// All that is left: every place reads as it may.
    fn check_disks(&mut self) {
        let now = self.now + 1;
        let written = self.judge.writes.values().filter(|write| write.offset < NOWHERE);
        let far = written.map(|write| write.offset + write.len).max().unwrap_or(0) + 20 * STRIPE;
        let mut gathered: BTreeMap<(FileNo, u64), (Seq, u32)> = BTreeMap::new();
        let machine = self.gatherer.machine.as_mut().expect("it is up");
        for file in 0..self.files {
            let request = gather::Request::Read { file: numbered(file), offset: 0, len: far };
            machine.join(Time(now), ClientNo(0), Session(1 + file));
            machine.handle_request(Time(now), (ClientNo(0), Session(1 + file)), RequestNo(0), request);
            while let Some(action) = machine.poll_action() {
                if let gather::Action::Answer(_, _, gather::Answer::Read { parts, end }) = action {
                    self.judge.ends(file, end, now);
                    for part in parts {
                        let bytes = part_bytes(&self.gatherer.log, &part);
                        for (i, byte) in bytes.into_iter().enumerate() {
                            gathered.insert((numbered(file), part.offset + i as u64), (part.seq, byte));
                        }
                    }
                }
            }
        }
        for file in 0..self.files {
            for at in 0..far {
                let server = self.striping().server(numbered(file), at / STRIPE);
                let storage = &self.storages[usize::from(server.0)];
                let key = (numbered(file), at);
                let stored = storage.cached.get(&key).or_else(|| storage.kept.get(&key)).copied();
                let shown = gathered.get(&key).map(|(_, byte)| *byte).or(stored).unwrap_or(0);
                if let Err(text) = self.judge.shown(file, at, shown, now) {
                    panic!("in the end {text}");
                }
            }
        }
    }

    fn life(&self, host: Host) -> u32 {
        match host {
            Host::Client(client) => self.clients[client as usize].life,
            Host::Gatherer => self.gatherer.life,
            Host::Storage(server) => self.storages[server as usize].life,
        }
    }

    fn is_up(&self, host: Host) -> bool {
        match host {
            Host::Client(client) => self.clients[client as usize].machine.is_some(),
            Host::Gatherer => self.gatherer.machine.is_some(),
            Host::Storage(server) => self.storages[server as usize].machine.is_some(),
        }
    }

    fn start(&mut self, host: Host) {
        self.say(|| format!("{host:?} starts"));
        match host {
            Host::Storage(server) => {
                let storage = &mut self.storages[server as usize];
                storage.life += 1;
                storage.failed.clear();
                storage.machine = Some(Storage::new(Incarnation(u64::from(storage.life))));
            }
            Host::Gatherer => {
                let now = Time(self.now);
                let gatherer = &mut self.gatherer;
                gatherer.life += 1;
                let settings =
                    Settings { stripe_size: STRIPE, forget_records: 1 + u64::from(gatherer.life % 2) * 7 };
                let log = gatherer.log.iter().map(|(seq, record)| (*seq, record));
                gatherer.machine = Some(Gatherer::new(settings, gatherer.life, now, gatherer.first, log));
                let life = gatherer.life;
                self.after(0, 500 * MS, Event::Tick(life));
                self.after(0, 3000 * MS, Event::PushSome(life));
                for server in 0..self.storages.len() as u16 {
                    self.after(0, 5 * MS, Event::Connect(Host::Gatherer, Host::Storage(server), life));
                }
            }
            Host::Client(no) => {
                let striping = self.striping();
                let number = self.next_client;
                self.next_client += 1;
                let client = &mut self.clients[no as usize];
                client.life += 1;
                client.number = number;
                client.machine = Some(Client::new(striping));
                let life = client.life;
                self.after(0, 50 * MS, Event::Act(no, life));
                self.after(PING, PING, Event::Ping(no, life));
                self.after(0, 5 * MS, Event::Connect(host, Host::Gatherer, life));
                for server in 0..self.storages.len() as u16 {
                    self.after(0, 5 * MS, Event::Connect(host, Host::Storage(server), life));
                }
            }
        }
    }

    /// A message goes over a connection, if that stands.
    fn send(&mut self, from: Host, to: Host, message: Message) {
        let (key, back) = match (from, to) {
            (Host::Client(_), _) | (Host::Gatherer, Host::Storage(_)) => ((from, to), false),
            _ => ((to, from), true),
        };
        let delay = match self.random.u32(0..40) {
            0 => self.random.u64(0..300 * MS),
            _ => self.random.u64(0..2 * MS),
        };
        let Some(line) = self.lines.get_mut(&key) else { return };
        let last = if back { &mut line.2 } else { &mut line.1 };
        *last = (self.now + delay).max(*last + 1);
        let (when, number) = (*last, line.0);
        self.at(when, Event::Arrive(from, to, number, message));
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Arrive(from, to, line, message) => {
                let key = match (from, to) {
                    (Host::Client(_), _) | (Host::Gatherer, Host::Storage(_)) => (from, to),
                    _ => (to, from),
                };
                // What was sent before a line broke arrives at servers all the same.
                let stands = self.lines.get(&key).is_some_and(|stands| stands.0 == line);
                let to_server = key == (from, to);
                if self.is_up(to) && (stands || to_server) {
                    self.arrive(from, to, line, message);
                }
            }
            Event::StorageDone(server, life, op, what) => {
                let storage = &mut self.storages[server as usize];
                if storage.life != life || storage.machine.is_none() {
                    return;
                }
                let is_failed = |file: &FileNo| storage.failed.contains(file);
                let done = match what {
                    storage::Op::Write { file, .. }
                    | storage::Op::Cut { file, .. }
                    | storage::Op::Sync { file }
                        if is_failed(&file) =>
                    {
                        Done::Failed(BROKEN)
                    }
                    storage::Op::Write { file, offset, bytes } => {
                        let (len, full) = (bytes.len(), storage.full);
                        let written = if full { self.random.usize(0..len) } else { len };
                        for (i, byte) in bytes.into_iter().take(written).enumerate() {
                            storage.cached.insert((file, offset + i as u64), byte);
                        }
                        if full { Done::Failed(FULL) } else { Done::Written }
                    }
                    storage::Op::Sync { file } if std::mem::take(&mut storage.sick) => {
                        storage.failed.insert(file);
                        let behind = (file, 0)..=(file, u64::MAX);
                        let of_it: Vec<(FileNo, u64)> =
                            storage.cached.range(behind).map(|(key, _)| *key).collect();
                        for key in of_it {
                            let byte = storage.cached.remove(&key).expect("it was just there");
                            if self.random.bool() {
                                storage.kept.insert(key, byte);
                            }
                        }
                        // Not by a call of this world, of which `storage` is a part.
                        let servers = self.storages.len() as u16;
                        let striping = striping_of(servers);
                        let is_here = |write: &Write| {
                            let at = striping.server(file, write.offset / STRIPE);
                            numbered(write.file) == file && at == ServerNo(server)
                        };
                        self.judge.loses(|write| write.is_direct && is_here(write));
                        self.say(|| format!("storage {server} fails to sync {file:?}"));
                        let storage = &mut self.storages[server as usize];
                        storage.machine.as_mut().expect("it is up").done(op, Done::Failed(BROKEN));
                        return self.poll_storage(server);
                    }
                    storage::Op::Cut { .. } | storage::Op::Remove { .. } => {
                        let (file, from) = match what {
                            storage::Op::Cut { file, from } => (file, from),
                            storage::Op::Remove { file } => (file, 0),
                            other => unreachable!("{other:?}"),
                        };
                        let behind = (file, from)..=(file, u64::MAX);
                        let kept = storage.kept.range(behind.clone()).map(|(key, _)| *key);
                        let cached = storage.cached.range(behind).map(|(key, _)| *key);
                        for key in kept.chain(cached).collect::<Vec<_>>() {
                            storage.cached.insert(key, 0);
                        }
                        Done::Written
                    }
                    storage::Op::Read { file, offset, len } => {
                        let byte = |at| {
                            let key = (file, at);
                            storage.cached.get(&key).or_else(|| storage.kept.get(&key)).copied().unwrap_or(0)
                        };
                        Done::Read((offset..offset + len).map(byte).collect())
                    }
                    storage::Op::Sync { file } => {
                        let (synced, rest) = std::mem::take(&mut storage.cached)
                            .into_iter()
                            .partition(|((of, _), _)| *of == file);
                        storage.cached = rest;
                        let synced: BTreeMap<(FileNo, u64), u32> = synced;
                        storage.kept.extend(synced);
                        Done::Synced
                    }
                };
                storage.machine.as_mut().expect("it is up").done(op, done);
                self.poll_storage(server);
            }
            Event::Appended(life, seq, record) => {
                if self.gatherer.life != life || self.gatherer.machine.is_none() {
                    return;
                }
                let is_refused = self.gatherer.full && matches!(record, Record::Bytes { .. });
                let record = if is_refused { Record::Nothing } else { record };
                self.gatherer.log.push_back((seq, record));
                let machine = self.gatherer.machine.as_mut().expect("it is up");
                match is_refused {
                    true => machine.refused(seq, FULL),
                    false => machine.appended(seq, Ok(())),
                }
                self.poll_gatherer();
            }
            Event::LogSynced(life, upto) => {
                if self.gatherer.life != life || self.gatherer.machine.is_none() {
                    return;
                }
                self.gatherer.synced = self.gatherer.synced.max(upto as u64);
                self.gatherer.machine.as_mut().expect("it is up").synced(Ok(()));
                self.poll_gatherer();
            }
            Event::Act(client, life) => self.act(client, life),
            Event::Ping(client, life) => {
                if self.clients[client as usize].life == life && self.is_up(Host::Client(client)) {
                    self.send(Host::Client(client), Host::Gatherer, Message::Ping(self.now));
                    self.after(PING, PING, Event::Ping(client, life));
                }
            }
            Event::Tick(life) => {
                if self.gatherer.life == life && self.gatherer.machine.is_some() {
                    let now = Time(self.now);
                    self.gatherer.machine.as_mut().expect("it is up").tick(now);
                    self.poll_gatherer();
                    self.after(100 * MS, 500 * MS, Event::Tick(life));
                }
            }
            Event::PushSome(life) => {
                if self.gatherer.life == life && self.gatherer.machine.is_some() {
                    let (file, stripe) = (self.random.u64(0..self.files), self.random.u64(0..self.stripes));
                    let machine = self.gatherer.machine.as_mut().expect("it is up");
                    match self.random.bool() {
                        true => machine.push_stripe(numbered(file), stripe),
                        false => {
                            if let Some((file, stripe)) = machine.oldest(|_, _| true) {
                                machine.push_stripe(file, stripe);
                            }
                        }
                    }
                    self.poll_gatherer();
                    self.after(0, 3000 * MS, Event::PushSome(life));
                }
            }
            Event::Later(life, action) => {
                if self.gatherer.life == life && self.gatherer.machine.is_some() {
                    self.gatherer_does(action);
                    self.poll_gatherer();
                }
            }
            Event::Connect(from, to, life) => {
                if self.life(from) != life || !self.is_up(from) || self.lines.contains_key(&(from, to)) {
                    return;
                }
                if !self.is_up(to) {
                    return self.after(MS, 300 * MS, Event::Connect(from, to, life));
                }
                self.lines.insert((from, to), (self.next_line, self.now, self.now));
                if let Host::Client(no) = from {
                    self.numbers.insert(self.next_line, self.clients[no as usize].number);
                }
                self.next_line += 1;
                let message = if to == Host::Gatherer { Message::JoinGatherer } else { Message::JoinStorage };
                self.send(from, to, message);
            }
            Event::Lost(from, to, life) => {
                if self.life(from) == life && self.is_up(from) && !self.lines.contains_key(&(from, to)) {
                    self.lost(from, to);
                }
            }
            Event::Trouble => self.trouble(),
            Event::Room(host) => self.has_room(host),
            Event::Thaw(host) => {
                if self.frozen.remove(&host) {
                    self.say(|| format!("{host:?} thaws"));
                    for event in self.parked.remove(&host).unwrap_or_default() {
                        self.at(self.now, event);
                    }
                }
            }
            Event::Restart(host) => {
                if !self.is_up(host) {
                    self.start(host);
                }
            }
        }
    }

    fn arrive(&mut self, from: Host, to: Host, line: u64, message: Message) {
        let now = Time(self.now);
        match (from, to) {
            (Host::Client(_), Host::Gatherer) => {
                let (client, session) = (ClientNo(self.numbers[&line]), Session(line));
                let machine = self.gatherer.machine.as_mut().expect("it is up");
                match message {
                    Message::JoinGatherer => {
                        machine.join(now, client, session);
                        let life = self.gatherer.life;
                        self.send(to, from, Message::GathererJoined(life));
                    }
                    Message::Ping(said) => {
                        if machine.hear(now, client, session) {
                            self.send(to, from, Message::Pong(said));
                        }
                    }
                    // Its ticket was of a term that is over.
                    Message::ToGatherer(number, request)
                        if !gather::is_mute(&request) && self.random.u32(0..TICKETS_OVER) == 0 =>
                    {
                        self.send(to, from, Message::NotTaken(number));
                    }
                    Message::ToGatherer(number, request) => {
                        machine.handle_request(now, (client, session), number, request);
                    }
                    other => unreachable!("{other:?}"),
                }
                self.poll_gatherer();
            }
            (Host::Gatherer, Host::Client(no)) => {
                let machine = self.clients[no as usize].machine.as_mut().expect("it is up");
                match message {
                    Message::GathererJoined(life) => machine.gatherer_joined(now, life),
                    Message::Pong(said) => machine.heard(now, Time(said)),
                    Message::Recall(file, stripes) => machine.recalled(now, file, stripes),
                    Message::NotTaken(number) => machine.not_taken(now, number),
                    Message::FromGatherer(number, answer, parts) => {
                        for (part, bytes) in parts {
                            let key = (part.seq, part.offset, part.len);
                            self.clients[no as usize].parts.insert(key, bytes);
                        }
                        let machine = self.clients[no as usize].machine.as_mut().expect("it is up");
                        machine.gatherer_answered(now, number, answer);
                    }
                    other => unreachable!("{other:?}"),
                }
                self.poll_client(no);
            }
            (from, Host::Storage(server)) => {
                let peer = match from {
                    Host::Client(_) => Peer(self.numbers[&line]),
                    _ => Peer(GATHERER_PEER),
                };
                let machine = self.storages[server as usize].machine.as_mut().expect("it is up");
                match message {
                    Message::JoinStorage => machine.handle_join(peer, Session(line)),
                    Message::ToStorage(number, _)
                        if from != Host::Gatherer && self.random.u32(0..TICKETS_OVER) == 0 =>
                    {
                        self.send(to, from, Message::NotTaken(number));
                    }
                    Message::ToStorage(number, request) => {
                        machine.handle_request(peer, Session(line), number, request);
                    }
                    other => unreachable!("{other:?}"),
                }
                self.poll_storage(server);
            }
            (Host::Storage(server), Host::Client(no)) => {
                let machine = self.clients[no as usize].machine.as_mut().expect("it is up");
                match message {
                    Message::StorageJoined(incarnation) => {
                        machine.server_joined(now, ServerNo(server), incarnation);
                    }
                    Message::FromStorage(number, answer) => {
                        machine.storage_answered(now, ServerNo(server), number, answer);
                    }
                    Message::NotTaken(number) => machine.not_taken(now, number),
                    other => unreachable!("{other:?}"),
                }
                self.poll_client(no);
            }
            (Host::Storage(server), Host::Gatherer) => {
                match message {
                    Message::StorageJoined(incarnation) => {
                        self.gatherer.servers.insert(server, incarnation);
                        for action in std::mem::take(&mut self.gatherer.waiting) {
                            self.gatherer_does(action);
                        }
                    }
                    Message::FromStorage(number, answer) => self.push_answered(number, answer),
                    other => unreachable!("{other:?}"),
                }
                self.poll_gatherer();
            }
            other => unreachable!("{other:?}"),
        }
    }

    fn poll_storage(&mut self, server: u16) {
        while let Some(action) =
            self.storages[server as usize].machine.as_mut().and_then(|machine| machine.poll_action())
        {
            let life = self.storages[server as usize].life;
            match action {
                storage::Action::Do(op, what) => {
                    let slow = match self.random.u32(0..60) {
                        0 => 12_000 * MS,
                        1..4 => 500 * MS,
                        _ => 3 * MS,
                    };
                    self.after(0, slow, Event::StorageDone(server, life, op, what));
                }
                storage::Action::Answer(peer, session, number, answer) => {
                    self.send_to_peer(server, peer, session, Message::FromStorage(number, answer));
                }
                storage::Action::Joined(peer, session, incarnation) => {
                    self.send_to_peer(server, peer, session, Message::StorageJoined(incarnation));
                }
            }
        }
    }

    fn send_to_peer(&mut self, server: u16, peer: Peer, session: Session, message: Message) {
        let host = match peer.0 {
            GATHERER_PEER => Some(Host::Gatherer),
            number => {
                let no = self.clients.iter().position(|client| client.number == number);
                no.map(|no| Host::Client(no as u16))
            }
        };
        let Some(host) = host else { return };
        if self.lines.get(&(host, Host::Storage(server))).is_some_and(|line| line.0 == session.0) {
            self.send(Host::Storage(server), host, message);
        }
    }
}
