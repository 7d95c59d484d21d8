//! The thread of a server that decides: it owns the machines of both roles, and hears everybody.
//!
//! In: events of connections, of the disk, of connections to other servers; time. Out: what the machines want
//! done.
//! Invariants: what a machine says goes to the connection of the session that it is said to, or nowhere; the
//! log forgets nothing that is just being read; what a disk does not take is told to visitors.

mod refused;
mod ticketed;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use haul_core::ids::Time;
use haul_core::volume::gather::{self, CutNo, Gatherer, Part, PushNo, Seq};
use haul_core::volume::layout::Striping;
use haul_core::volume::rights::Party;
use haul_core::volume::storage::{self, Peer, Storage};
use haul_core::volume::ticket::{Ticket, Tickets};
use haul_core::volume::wire::{Message, PARTS_MAX, Who, Work};
use haul_core::volume::{ClientNo, FileNo, Incarnation, RequestNo, ServerNo, Session};
use haul_core::wire::FILE_LEN_MAX;

use super::care::{Care, Push};
use super::disk::{Disk, Job, LogJob};
use super::event::{Asker, Event, LineNo};
use super::push::{Begins, Refusal, Said, Task, Tasks};
use super::{REQUESTS_MAX, held_by};
use crate::dial::Line;
use crate::line::{Bytes, Mouth};
use crate::visit::Visits;

/// Clients and gatherers are peers of a storage server by numbers of their own.
const GATHERERS: u64 = 1 << 63;
/// What lies longest is brought as often as this.
const PUSH_EVERY: Duration = Duration::from_millis(200);
/// A log of so many bytes is long: a quarter of what it may have.
const LOG_LONG: u64 = 1 << 30;
/// A push that came to nothing is tried again after so long.
const PUSH_REST: Duration = Duration::from_secs(1);
/// Visitors are told of what is so old at most.
const TELL_EVERY: Duration = Duration::from_millis(500);
/// So often it is looked whether the server's directory is there.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Room for the next start is looked for as often, where it lacks.
const RESERVE_EVERY: Duration = Duration::from_secs(5);

/// For which part of late time something was busy: what is older counts less.
#[derive(Default)]
struct Busy {
    seconds: f64,
    at: Option<Instant>,
}

impl Busy {
    const MEMORY: f64 = 1.0;

    /// Adds a time that ends now; returns the part, from 0 on.
    fn add(&mut self, now: Instant, time: Duration) -> f64 {
        let passed = self.at.map_or(0.0, |at| now.duration_since(at).as_secs_f64());
        self.at = Some(now);
        self.seconds = self.seconds * (-passed / Busy::MEMORY).exp() + time.as_secs_f64();
        self.seconds / Busy::MEMORY
    }
}

fn in_words(errno: i32) -> String {
    haul_base::errno::text(std::io::Error::from_raw_os_error(errno))
}

fn peer_of(who: Who) -> Peer {
    match who {
        Who::Client(client) => Peer(client.0),
        Who::Gatherer(server) => Peer(GATHERERS | u64::from(server.0)),
    }
}

struct Connected {
    who: Who,
    party: Party,
    session: Session,
    /// The ticket that was shown of each file, what it is called, and itself if the catalog gave it.
    shown: BTreeMap<FileNo, (u64, Option<Ticket>)>,
    mouth: Mouth,
    held: Arc<AtomicU64>,
    /// What was asked and is not answered, since when, and the bytes that it holds.
    asked: BTreeMap<RequestNo, (Instant, u64)>,
    busy: Busy,
}

pub(super) struct Brain {
    pub(super) me: ServerNo,
    pub(super) striping: Striping,
    pub(super) life: u32,
    pub(super) started: Instant,
    pub(super) storage: Storage<Bytes>,
    pub(super) gatherer: Gatherer<Bytes>,
    pub(super) disk: Disk,
    pub(super) notice: Arc<dyn Fn(&str) + Send + Sync>,
    /// What whoever is no server needs; `None`: he needs nothing.
    pub(super) tickets: Option<Tickets>,
    lines: BTreeMap<LineNo, Connected>,
    /// The newest connection of each.
    of: BTreeMap<Who, LineNo>,
    tasks: Tasks,
    /// Cuts and removals that are under way: at how many servers, and whether all of them went well.
    cuts: BTreeMap<CutNo, (u16, bool)>,
    /// Pushes that came to nothing, and when the gatherer is told.
    failed: Vec<(Instant, PushNo)>,
    care: Care,
    /// Why the log takes no bytes, and since when; why it takes nothing more in this life; and what the disk
    /// said first of stripes, but that it is full.
    log_full: Option<(i32, Instant)>,
    log_failed: Option<(i32, Instant)>,
    disk_failed: Option<(i32, Instant)>,
    visits: Visits,
    told: Instant,
    /// When room for the next start was looked for last; `None`: it is there.
    reserved: Option<Instant>,
    /// Other servers to which there is no connection, and since when.
    parted: BTreeMap<ServerNo, Instant>,
    /// When it was looked last whether the directory is there, and whether that is under way.
    looked: Instant,
    looks: bool,
    /// Set when it ends by itself.
    pub(super) ended: Arc<AtomicBool>,
    /// The first record of what is being read from the log, and how often.
    reading: BTreeMap<Seq, u32>,
    forget: Option<Seq>,
    pushed_last: Instant,
    /// Bytes, when it was appended to last.
    log_len: u64,
    /// How long the disk was busy with what is being answered.
    took: Duration,
    /// With what clients asked.
    busy: Busy,
}

impl Brain {
    pub(super) fn new(
        (me, striping, life): (ServerNo, Striping, u32),
        started: Instant,
        gatherer: Gatherer<Bytes>,
        disk: Disk,
        (notice, visits): (Arc<dyn Fn(&str) + Send + Sync>, Visits),
    ) -> Brain {
        let others = (0..striping.servers).map(ServerNo).filter(|other| *other != me);
        let parted = others.map(|other| (other, started)).collect();
        Brain {
            me,
            striping,
            life,
            started,
            storage: Storage::new(Incarnation(life.into())),
            gatherer,
            disk,
            notice,
            tickets: None,
            lines: BTreeMap::new(),
            of: BTreeMap::new(),
            tasks: Tasks::new(),
            cuts: BTreeMap::new(),
            failed: Vec::new(),
            care: Care::default(),
            log_full: None,
            log_failed: None,
            disk_failed: None,
            visits,
            told: Instant::now(),
            reserved: Some(Instant::now()),
            parted,
            looked: Instant::now(),
            looks: false,
            ended: Arc::default(),
            reading: BTreeMap::new(),
            forget: None,
            pushed_last: Instant::now(),
            log_len: 0,
            took: Duration::ZERO,
            busy: Busy::default(),
        }
    }

    fn now(&self) -> Time {
        Time(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Hears events until it is told to stop.
    pub(super) fn run(mut self, events: &Receiver<Event>) {
        // To itself it needs no connection.
        self.storage.handle_join(peer_of(Who::Gatherer(self.me)), Session(1));
        loop {
            self.act();
            match events.recv_timeout(self.pause()) {
                Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                // Nothing more is told to last.
                Ok(Event::Looked(Some(gone))) => {
                    let gone = gone.display();
                    (self.notice)(&format!(
                        "{gone} was removed, moved or replaced while it was served, or its log was: what lay there is not \
                         there any more, and this server ends; bring it back"
                    ));
                    self.ended.store(true, Ordering::Release);
                    break;
                }
                Ok(event) => self.hear(event),
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.tick();
        }
        for line in self.lines.values() {
            line.mouth.say(Message::Refused("the server ends".into()), Bytes::default());
        }
    }

    fn pause(&self) -> Duration {
        let now = self.now();
        let due = self.gatherer.next_deadline().map_or(PUSH_EVERY, |due| due.since(now));
        due.clamp(Duration::from_millis(1), PUSH_EVERY)
    }

    fn tick(&mut self) {
        self.gatherer.tick(self.now());
        let now = Instant::now();
        let (due, later) = self.failed.drain(..).partition(|(when, _)| *when <= now);
        self.failed = later;
        let due: Vec<(Instant, PushNo)> = due;
        due.into_iter().for_each(|(_, push)| self.gatherer.pushed(push, false));
        // A log that grows long is brought as fast as it goes, one stripe after the other.
        if now.duration_since(self.pushed_last) >= PUSH_EVERY || self.log_len > LOG_LONG {
            self.pushed_last = now;
            // Who is away or refuses holds up nobody else.
            let may = |file, stripe| {
                let server = self.striping.server(file, stripe);
                self.tasks.hears(server) && self.care.takes(server, file)
            };
            if let Some((file, stripe)) = self.gatherer.oldest(may) {
                self.gatherer.push_stripe(file, stripe);
            }
        }
        self.look_after_refused(now);
        if self.reserved.is_some_and(|last| now.duration_since(last) >= RESERVE_EVERY) {
            self.reserved = Some(now);
            self.disk.does(Job::Reserve);
        }
        if !self.looks && now.duration_since(self.looked) >= LOOK_EVERY {
            (self.looks, self.looked) = (true, now);
            self.disk.does(Job::Look);
        }
        if now.duration_since(self.told) >= TELL_EVERY {
            self.tell(now);
        }
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::Came { line, who, party, session, mouth, held } => {
                self.came(line, (who, party), session, mouth, held);
            }
            Event::Said(line, message, bytes) => self.said(line, message, bytes),
            Event::Term(term, raised) => self.told_of_tickets(term, &raised),
            Event::Gone(line) => {
                if let Some(gone) = self.lines.remove(&line)
                    && self.of.get(&gone.who) == Some(&line)
                {
                    self.of.remove(&gone.who);
                }
            }
            Event::Carried(op, done, took) => {
                self.took = took;
                if let storage::Done::Failed(errno) = &done {
                    self.note_failed(*errno, false);
                }
                self.storage.done(op, done);
            }
            Event::Appended(seq, result, took, len) => {
                self.took = took;
                self.log_len = len;
                if let Err(errno) = result {
                    self.note_failed(errno, true);
                }
                self.gatherer.appended(seq, result);
            }
            Event::Refused(seq, errno) => self.gatherer.refused(seq, errno),
            Event::LogFull(errno) => {
                self.log_full = errno.map(|errno| (errno, Instant::now()));
                (self.notice)(&match errno {
                    Some(errno) => format!(
                        "nothing is gathered here for want of room: {}; make room on this server's disk, and it goes on",
                        in_words(errno)
                    ),
                    None => "there is room again, and what comes is gathered".into(),
                });
            }
            Event::Looked(_) => self.looks = false,
            Event::Reserved(is_there) => self.reserved = (!is_there).then(Instant::now),
            Event::LogSynced(result, took) => {
                self.took = took;
                if let Err(errno) = result {
                    self.note_failed(errno, true);
                }
                self.gatherer.synced(result);
            }
            Event::PartsRead(asker, parts, end, result) => {
                self.is_read(&parts);
                let (answer, bytes) = match result {
                    Ok(bytes) => (gather::Answer::Read { parts, end }, bytes),
                    Err(errno) => (gather::Answer::Failed(errno), Bytes::default()),
                };
                self.answer(asker, |work| Message::Gathered(asker.number, answer, work), bytes);
            }
            Event::PushRead(push, result) => {
                let pieces = match result {
                    Ok(pieces) => pieces,
                    Err(errno) => {
                        (self.notice)(&format!("the log cannot be read: {}", in_words(errno)));
                        return self.is_over(Task::Push(push), Err(None));
                    }
                };
                let said = self.tasks.read(push, pieces);
                self.say_to(said);
            }
            Event::Other(server, line) => self.other(server, line),
            // Nobody waits any more where the answer cannot be sent.
            Event::Facts(files, reply) => {
                let facts = files.into_iter().map(|file| self.gatherer.facts(file)).collect();
                let _ = reply.send(facts);
            }
            Event::GatheredBehind(after, max, reply) => {
                let _ = reply.send(self.gatherer.gathered_behind(after, max));
            }
            Event::Trouble(text) => (self.notice)(&text),
            Event::Stop | Event::TermKept => {}
        }
    }

    fn came(
        &mut self,
        line: LineNo,
        (who, party): (Who, Party),
        session: Session,
        mouth: Mouth,
        held: Arc<AtomicU64>,
    ) {
        let before = self.of.get(&who).and_then(|line| self.lines.get(line)).map(|line| line.session);
        let is_known = match who {
            Who::Client(client) => client.0 < GATHERERS,
            Who::Gatherer(server) => server.0 < self.striping.servers && server != self.me,
        };
        if !is_known || before.is_some_and(|before| before >= session) {
            let why = if is_known {
                "a newer connection of the same one stands"
            } else {
                "it is none of this volume"
            };
            return mouth.say(Message::Refused(why.into()), Bytes::default());
        }
        if let Some(old) = self.of.insert(who, line).and_then(|old| self.lines.remove(&old)) {
            old.mouth.close();
        }
        self.lines.insert(
            line,
            Connected {
                who,
                party,
                session,
                shown: BTreeMap::new(),
                mouth,
                held,
                asked: BTreeMap::new(),
                busy: Busy::default(),
            },
        );
        if let Who::Client(client) = who {
            self.gatherer.join(self.now(), client, session);
            self.say(line, Message::GathererJoined(self.life));
        }
        self.storage.handle_join(peer_of(who), session);
    }

    fn say(&self, line: LineNo, message: Message) {
        if let Some(line) = self.lines.get(&line) {
            line.mouth.say(message, Bytes::default());
        }
    }

    fn refuse(&mut self, line: LineNo, why: &str) {
        if let Some(gone) = self.lines.remove(&line) {
            self.of.remove(&gone.who);
            gone.mouth.say(Message::Refused(why.into()), Bytes::default());
        }
    }

    /// Answers what was asked over a connection, if that stands.
    fn answer(&mut self, asker: Asker, message: impl FnOnce(Work) -> Message, bytes: Bytes) {
        // One operation answers one request; of a sync that many waited for each has a part, and the first
        // all.
        let busy = std::mem::take(&mut self.took);
        if let Some(line) = self.lines.get_mut(&asker.line)
            && let Some((since, held)) = line.asked.remove(&asker.number)
        {
            let now = Instant::now();
            line.held.fetch_sub(held, Ordering::AcqRel);
            let others = match line.who {
                Who::Client(_) => self.busy.add(now, busy) - line.busy.add(now, busy),
                // What is brought here belongs to what was gathered: direct writes are not dearer for it.
                Who::Gatherer(_) => 0.0,
            };
            let others = others.clamp(0.0, 1.0);
            let work = Work { busy, stayed: now - since, others: (others * 65_535.0) as u16 };
            line.mouth.say(message(work), bytes);
        }
    }

    fn said(&mut self, line: LineNo, message: Message, bytes: Bytes) {
        let now = self.now();
        let Some(from) = self.lines.get_mut(&line) else { return };
        let (who, session) = (from.who, from.session);
        let number = match &message {
            Message::Gather(number, _) | Message::Store(number, _) => Some(*number),
            _ => None,
        };
        if let Some(number) = number
            && from.asked.insert(number, (Instant::now(), held_by(&message))).is_some()
        {
            return self.refuse(line, "two requests had one number");
        }
        if from.asked.len() > REQUESTS_MAX {
            return self.refuse(line, "more requests at a time than are allowed");
        }
        if let Message::Ticket(sealed) = &message {
            return self.shown(line, sealed);
        }
        if !self.may(line, &message) {
            return;
        }
        let Some(from) = self.lines.get_mut(&line) else { return };
        match (who, message) {
            (Who::Client(client), Message::Ping(said)) => {
                if self.gatherer.hear(now, client, session) {
                    self.say(line, Message::Pong(said));
                }
            }
            (Who::Client(client), Message::Gather(number, request)) => {
                let request = request.map(|_| bytes);
                if gather::is_mute(&request) {
                    // They have no answer.
                    from.asked.remove(&number);
                }
                self.gatherer.handle_request(now, (client, session), number, request);
            }
            (who, Message::Store(number, request)) => {
                let request = request.map(|_| bytes);
                self.storage.handle_request(peer_of(who), session, number, request);
            }
            _ => self.refuse(line, "that is said by servers alone"),
        }
    }

    /// Does what the machines want.
    fn act(&mut self) {
        loop {
            if let Some(action) = self.storage.poll_action() {
                self.storage_acts(action);
            } else if let Some(action) = self.gatherer.poll_action() {
                self.gatherer_acts(action);
            } else {
                return;
            }
        }
    }

    /// The connection of a peer's session.
    fn line_of(&self, who: Who, session: Option<Session>) -> Option<LineNo> {
        let line = *self.of.get(&who)?;
        let is_it =
            self.lines.get(&line).is_some_and(|one| session.is_none_or(|session| one.session == session));
        is_it.then_some(line)
    }

    fn storage_acts(&mut self, action: storage::Action<Bytes>) {
        let who_of = |peer: Peer| match peer.0 & GATHERERS {
            0 => Who::Client(ClientNo(peer.0)),
            _ => Who::Gatherer(ServerNo(peer.0 as u16)),
        };
        match action {
            storage::Action::Do(number, op) => self.disk.does(Job::Carry(number, op)),
            storage::Action::Joined(peer, session, life) => {
                let who = who_of(peer);
                if who == Who::Gatherer(self.me) {
                    let begins = self.tasks.joined(self.me, life);
                    return self.begin(begins);
                }
                if let Some(line) = self.line_of(who, Some(session)) {
                    self.say(line, Message::StorageJoined(life));
                }
            }
            storage::Action::Answer(peer, session, number, answer) => {
                let who = who_of(peer);
                if who == Who::Gatherer(self.me) {
                    return self.task_answered(number, answer);
                }
                let mut bytes = Bytes::default();
                let answer = answer.map(|read| {
                    bytes = read;
                    bytes.len() as u32
                });
                if let Some(line) = self.line_of(who, Some(session)) {
                    self.answer(Asker { line, number }, |work| Message::Stored(number, answer, work), bytes);
                }
            }
        }
    }

    fn gatherer_acts(&mut self, action: gather::Action<Bytes>) {
        match action {
            gather::Action::Append(seq, record) => self.disk.logs(LogJob::Append(seq, record)),
            gather::Action::Sync => self.disk.logs(LogJob::Sync),
            gather::Action::Answer(client, number, answer) => {
                let Some(line) = self.line_of(Who::Client(client), None) else { return };
                let asker = Asker { line, number };
                match answer {
                    gather::Answer::Read { parts, end } if !parts.is_empty() => {
                        self.read_parts(asker, parts, end)
                    }
                    answer => {
                        self.answer(asker, |work| Message::Gathered(number, answer, work), Bytes::default())
                    }
                }
            }
            gather::Action::Drop(client) => {
                if let Some(line) = self.line_of(Who::Client(client), None) {
                    self.refuse(line, "it was not heard for too long");
                }
            }
            gather::Action::Recall(client, file, stripes) => {
                if let Some(line) = self.line_of(Who::Client(client), None) {
                    self.say(line, Message::Recall(file, stripes));
                }
            }
            gather::Action::Push { push, file, stripe, epoch, parts } => {
                let server = self.striping.server(file, stripe);
                self.begin_push(Push { push, server, file, epoch, parts });
            }
            gather::Action::Cut { cut, file, epoch, from } => {
                self.cuts.insert(cut, (self.striping.servers, true));
                for server in 0..self.striping.servers {
                    let begins = self.tasks.cut(cut, ServerNo(server), file, epoch, from);
                    self.begin(begins);
                }
            }
            gather::Action::Remove { cut, file, epoch } => {
                self.cuts.insert(cut, (self.striping.servers, true));
                for server in 0..self.striping.servers {
                    let begins = self.tasks.remove(cut, ServerNo(server), file, epoch);
                    self.begin(begins);
                }
            }
            gather::Action::Fence { cut, file, epoch, stripes } => {
                let servers: Vec<ServerNo> = self.striping.servers_of(file, &stripes).collect();
                self.cuts.insert(cut, (servers.len() as u16, true));
                for server in servers {
                    let begins = self.tasks.cut(cut, server, file, epoch, FILE_LEN_MAX);
                    self.begin(begins);
                }
            }
            gather::Action::Forget(first) => {
                self.forget = self.forget.max(Some(first));
                self.forget_what_is_read();
            }
        }
    }

    /// Reads parts of the log for who asked.
    fn read_parts(&mut self, asker: Asker, parts: Vec<Part>, end: u64) {
        if parts.len() > PARTS_MAX {
            // The client asks for less at a time.
            let answer = gather::Answer::Failed(rustix::io::Errno::TOOBIG.raw_os_error());
            return self.answer(
                asker,
                |work| Message::Gathered(asker.number, answer, work),
                Bytes::default(),
            );
        }
        if let Some(first) = parts.iter().map(|part| part.seq).min() {
            *self.reading.entry(first).or_default() += 1;
        }
        self.disk.does(Job::Parts(asker, parts, end));
    }

    fn is_read(&mut self, parts: &[Part]) {
        if let Some(first) = parts.iter().map(|part| part.seq).min()
            && let Some(count) = self.reading.get_mut(&first)
        {
            *count -= 1;
            if *count == 0 {
                self.reading.remove(&first);
            }
        }
        self.forget_what_is_read();
    }

    fn forget_what_is_read(&mut self) {
        let is_free = |first: Seq| self.reading.keys().next().is_none_or(|reads| *reads >= first);
        if let Some(first) = self.forget.filter(|first| is_free(*first)) {
            self.forget = None;
            self.disk.logs(LogJob::Forget(first));
        }
    }

    fn begin(&mut self, begins: Begins) {
        for (push, parts) in begins.reads {
            self.disk.does(Job::Push(push, parts));
        }
        self.say_to(begins.said);
    }

    fn say_to(&mut self, said: impl IntoIterator<Item = Said>) {
        for (server, number, request) in said {
            if server == self.me {
                self.storage.handle_request(peer_of(Who::Gatherer(self.me)), Session(1), number, request);
            } else {
                self.tasks.say(server, number, request);
            }
        }
    }

    fn task_answered(&mut self, number: RequestNo, answer: storage::Answer<Bytes>) {
        let (said, over) = self.tasks.answered(number, &answer);
        self.say_to(said);
        if let Some((task, became)) = over {
            self.is_over(task, became);
        }
    }

    fn is_over(&mut self, task: Task, became: Result<(), Refusal>) {
        let place = self.tasks.place(task);
        self.tasks.is_over(task);
        match task {
            Task::Push(push) => {
                let now = Instant::now();
                let refused = became.err().flatten();
                if let Some((server, file)) = place {
                    let of = (push, server, file);
                    let is_new = self.care.is_over(now, of, became.is_ok(), refused);
                    if let Some(errno) = refused.filter(|_| is_new) {
                        self.note_refused(now, server, errno);
                    }
                }
                match (became, refused) {
                    (Ok(()), _) => self.gatherer.pushed(push, true),
                    (Err(_), Some(errno)) => self.gatherer.push_refused(push, errno),
                    (Err(_), None) => self.failed.push((now + PUSH_REST, push)),
                }
            }
            Task::Cut(cut, _) => {
                let Some((left, all)) = self.cuts.get_mut(&cut) else { return };
                *left -= 1;
                *all &= became.is_ok();
                if *left == 0 {
                    let all = *all;
                    self.cuts.remove(&cut);
                    self.gatherer.was_cut(cut, all);
                }
            }
        }
    }

    fn other(&mut self, server: ServerNo, line: Line) {
        match line {
            Line::Up(_, mouth) => self.tasks.up(server, mouth),
            Line::Said(Message::StorageJoined(life), _) => {
                self.care.is_there(Instant::now(), server);
                self.parted.remove(&server);
                let begins = self.tasks.joined(server, life);
                self.begin(begins);
            }
            Line::Said(Message::Stored(number, answer, _), bytes) => {
                self.task_answered(number, answer.map(|_| bytes));
            }
            Line::Said(..) => {}
            Line::Down(why) => {
                self.parted.entry(server).or_insert_with(Instant::now);
                let lost = self.tasks.down(server);
                if !lost.is_empty() {
                    (self.notice)(&format!("server {} of the volume is lost: {why}", server.0));
                }
                lost.into_iter().for_each(|task| self.is_over(task, Err(None)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Goal: no client's number is that of a gatherer.
    #[test]
    fn peers_are_told_apart() {
        let all: BTreeSet<u64> = [
            Who::Client(ClientNo(0)),
            Who::Client(ClientNo(GATHERERS - 1)),
            Who::Gatherer(ServerNo(0)),
            Who::Gatherer(ServerNo(u16::MAX)),
        ]
        .map(|who| peer_of(who).0)
        .into();
        assert_eq!(all.len(), 4);
    }
}
