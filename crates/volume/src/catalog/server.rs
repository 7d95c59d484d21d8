//! Serves a catalog over connections.
//!
//! In: a listener, the keys of the volume, an open [`Store`]. Out: answers. One thread has the store: it
//! takes what has come from all connections, does it in one transaction, and answers when that lasts. So
//! many clients share what a sync costs.
//! Invariants: connections, what waits for the store, and what waits for a client that does not listen are
//! bounded; who holds no key of the volume is not heard, and of nobody what his key does not allow; of one
//! client only the newest connection is heard, and nothing that an older one said later.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{io, thread};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use haul_core::volume::catalog::{Answer, Failure, Message as Catalog, PAGE_MAX, Request};
use haul_core::volume::rights::{self, Party};
use haul_core::volume::wire::{Ill, Illness, Message, TICKETS_MAX, Visit};
use haul_core::volume::{ClientNo, FileNo, RequestNo, Session};
use haul_transport::Link;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::SILENCE_MAX;
use super::asks::{Asks, Held, Numbers, Sifted};
use super::desk::{Asked, Desk, Said};
use super::giver::Giver;
use super::holds::{Clock, GRACE, Holds};
use super::store::Store;
use super::tree::{NAMED, OfTicket};
use crate::dial::Keys;
use crate::door::{Guests, admit};
use crate::line::{Bytes, Incoming, LineError, Mouth, speak};
use crate::visit::Visits;

/// Connections at a time; each has two threads.
const CONNECTIONS_MAX: usize = 1024;
/// A client has so long to show its key and to join.
const JOIN_MAX: Duration = Duration::from_secs(10);
/// What waits for the store; who asks more waits.
const WAITING_MAX: usize = 4096;
/// Most requests that share a transaction.
pub const GROUP_MAX: usize = 256;
/// How often the store's thread looks at the clock when nobody asks anything, and the listener's whether it
/// is over.
const TICK: Duration = Duration::from_millis(250);

/// All that is asked for at a time goes with one message.
const _: () = assert!(PAGE_MAX <= TICKETS_MAX);

/// What connections tell the thread of the store.
enum Event {
    Join {
        line: u64,
        party: Party,
        client: Option<ClientNo>,
        session: Session,
        mouth: Mouth,
    },
    Ask {
        line: u64,
        number: RequestNo,
        request: Request,
    },
    Gone {
        line: u64,
    },
    /// A server said which numbers it has.
    Numbers(Numbers),
}

impl Event {
    /// Something may be made: it waits until it is known which numbers servers have files under.
    fn wants_a_number(&self) -> bool {
        let Event::Ask { request, .. } = self else { return false };
        matches!(request, Request::Create { .. } | Request::Mkdir { .. } | Request::Symlink { .. })
    }
}

/// How a catalog is served.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Most requests that share a transaction: 1 to [`GROUP_MAX`].
    pub group_max: usize,
    /// A client that went has so long to come back, and everybody after a start.
    pub grace: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options { group_max: GROUP_MAX, grace: GRACE }
    }
}

/// A catalog that is served until this is dropped.
pub struct Server {
    over: Arc<AtomicBool>,
    address: SocketAddr,
    visits: Visits,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Starts to serve.
    ///
    /// # Errors
    /// No thread can be started, or the listener is none.
    pub fn start(store: Store, keys: Keys, listener: TcpListener, options: Options) -> io::Result<Server> {
        Server::start_for(store, (keys, Guests::default()), listener, options)
    }

    /// The same, for others than servers too, who hold keys of their own.
    ///
    /// # Errors
    /// As of [`Server::start`].
    pub fn start_for(
        store: Store,
        keys: (Keys, Guests),
        listener: TcpListener,
        options: Options,
    ) -> io::Result<Server> {
        Server::start_beside(store, keys, listener, options, &[])
    }

    /// The same; these servers, each at its `host:port`, are asked which numbers they have files under, and
    /// no number is given before all have answered.
    ///
    /// # Errors
    /// As of [`Server::start`]; the disk's.
    pub fn start_beside(
        store: Store,
        keys: (Keys, Guests),
        listener: TcpListener,
        options: Options,
        servers: &[String],
    ) -> io::Result<Server> {
        let over = Arc::new(AtomicBool::new(false));
        let address = listener.local_addr()?;
        let (post, events) = bounded(WAITING_MAX);
        let visits = Visits::default();
        let mut server = Server { over: over.clone(), address, visits: visits.clone(), threads: Vec::new() };
        let is_over = over.clone();
        let owner = thread::Builder::new().name("haul-cat-store".into());
        let told = visits.clone();
        let (Keys { volume, .. }, guests) = &keys;
        let giver = guests.tickets.clone().map(|key| Giver::new(key, *volume, guests.term()));
        let asks = match servers {
            [] => Asks::nobody(),
            servers => {
                let post = post.clone();
                let post = move |numbers| _ = post.send(Event::Numbers(numbers));
                Asks::begin(&store, &keys.0, servers, &over, post)?
            }
        };
        let held = Held::new(asks);
        let work = move || own(store, &events, options, (giver, held), (&is_over, &told));
        server.threads.push(owner.spawn(work)?);
        let listen = thread::Builder::new().name("haul-cat-listen".into());
        server.threads.push(listen.spawn(move || listen_on(&listener, (&keys, &visits), &post, &over))?);
        Ok(server)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether somebody who holds the volume's key wants it to end, which is left to whoever runs it.
    pub fn visits(&self) -> &Visits {
        &self.visits
    }

    /// Whether it has ended by itself, which it does when its disk fails.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn listen_on(
    listener: &TcpListener,
    (keys, visits): (&(Keys, Guests), &Visits),
    post: &Sender<Event>,
    over: &Arc<AtomicBool>,
) {
    let open = Arc::new(AtomicUsize::new(0));
    let tick = Timespec { tv_sec: 0, tv_nsec: TICK.as_nanos() as i64 };
    let mut line = 0;
    while !over.load(Ordering::Acquire) {
        let mut ready = [PollFd::new(listener, PollFlags::IN)];
        if !matches!(poll(&mut ready, Some(&tick)), Ok(1..)) {
            continue;
        }
        // What fails here was the connection's fault, or passes.
        let Ok((stream, _)) = listener.accept() else {
            thread::sleep(Duration::from_millis(10));
            continue;
        };
        if open.fetch_add(1, Ordering::AcqRel) >= CONNECTIONS_MAX {
            open.fetch_sub(1, Ordering::AcqRel);
            continue;
        }
        line += 1;
        let (keys, visits, post) = (keys.clone(), visits.clone(), post.clone());
        let counted = Counted(open.clone());
        let serve = move || {
            let _counted = counted;
            hear(stream, (&keys, &visits), line, &post);
        };
        // Where no thread can be had the connection is dropped, and its client tries again.
        let _ = thread::Builder::new().name("haul-cat-line".into()).spawn(serve);
    }
}

/// Counts a connection as long as it lives.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// One connection, from its handshake to its end.
fn hear(stream: TcpStream, (keys, visits): (&(Keys, Guests), &Visits), line: u64, post: &Sender<Event>) {
    let _ = stream.set_nodelay(true);
    let Ok(socket) = stream.try_clone() else { return };
    let (keys, guests) = keys;
    let Ok((link, party)) = admit(stream, keys, guests, JOIN_MAX) else { return };
    let Link { closer, .. } = &link;
    let closer = closer.clone();
    let Ok((mut incoming, mouth)) = speak(link, "haul-cat-say", Some(WAITING_MAX)) else { return };
    let why = match joined(&mut incoming, &socket, (keys, visits), (line, party), &mouth, post) {
        // It was a visitor; with the last mouth the connection ends.
        Ok(false) => return,
        Ok(true) => {
            let why = listen_to(&mut incoming, (line, party), &mouth, post);
            let _ = post.send(Event::Gone { line });
            why
        }
        Err(error) => Err(error),
    };
    match why {
        // The thread that says it ends the connection then.
        Err(LineError::Refused(why)) => mouth.say(Message::Refused(why.into()), Bytes::default()),
        Err(LineError::Bad(what)) => mouth.say(Message::Refused(what.into()), Bytes::default()),
        Err(LineError::Wire(error)) => {
            mouth.say(Message::Refused(error.to_string().into()), Bytes::default());
        }
        Err(LineError::Cut | LineError::Io(_)) | Ok(()) => closer(),
    }
}

/// Hears the join, which is the first of a connection; or answers a visitor, and says that it was one.
fn joined(
    incoming: &mut Incoming,
    socket: &TcpStream,
    (keys, visits): (&Keys, &Visits),
    (line, party): (u64, Party),
    mouth: &Mouth,
    post: &Sender<Event>,
) -> Result<bool, LineError> {
    let timeout = |time| socket.set_read_timeout(Some(time)).map_err(LineError::Io);
    timeout(JOIN_MAX)?;
    socket.set_write_timeout(Some(SILENCE_MAX)).map_err(LineError::Io)?;
    match incoming.receive(only_catalog)? {
        Some((Message::Catalog(Catalog::Join { volume, client, session }), _)) => {
            if volume != keys.volume {
                return Err(LineError::Refused("this is the catalog of another volume".into()));
            }
            if client.is_some_and(|client| !party.has_number(client.0)) {
                let why = "with this access to the volume nobody is such a client";
                return Err(LineError::Refused(why.into()));
            }
            timeout(SILENCE_MAX)?;
            post.send(Event::Join { line, party, client, session, mouth: mouth.clone() })
                .map_err(|_| LineError::Refused("the catalog ends".into()))?;
            Ok(true)
        }
        Some((Message::Visit(Visit { end: true, .. }), _)) if !party.may_change() => {
            Err(LineError::Refused(rights::in_words(rights::READ_ONLY).into()))
        }
        Some((Message::Visit(visit), _)) => {
            mouth.say(visits.answer(keys.volume, None, &visit), Bytes::default());
            Ok(false)
        }
        Some(_) => Err(LineError::Refused("who does not join is not heard".into())),
        None => Err(LineError::Cut),
    }
}

/// What a catalog hears, and nothing with bytes behind it.
fn only_catalog(message: &Message) -> Result<(), String> {
    match message {
        Message::Catalog(Catalog::Join { .. } | Catalog::Ask(..)) | Message::Ping(_) | Message::Visit(_) => {
            Ok(())
        }
        _ => Err("this is nothing that a catalog is told".into()),
    }
}

fn listen_to(
    incoming: &mut Incoming,
    (line, party): (u64, Party),
    mouth: &Mouth,
    post: &Sender<Event>,
) -> Result<(), LineError> {
    while let Some((message, _)) = incoming.receive(only_catalog)? {
        match message {
            Message::Ping(number) => mouth.say(Message::Pong(number), Bytes::default()),
            Message::Catalog(Catalog::Ask(number, request)) => {
                if let Err(errno) = party.may_ask(&request) {
                    let failure = Failure { errno, words: rights::in_words(errno).into() };
                    let answer = Catalog::Answer(number, Answer::Failed(failure));
                    mouth.say(Message::Catalog(answer), Bytes::default());
                    continue;
                }
                let event = Event::Ask { line, number, request };
                post.send(event).map_err(|_| LineError::Refused("the catalog ends".into()))?;
            }
            _ => return Err(LineError::Refused("a connection joins once".into())),
        }
    }
    Ok(())
}

/// A connection, as the thread of the store knows it.
struct Line {
    mouth: Mouth,
    party: Party,
    /// Known once it was given one.
    client: Option<ClientNo>,
}

/// The connections of the thread that has the store.
#[derive(Default)]
struct Lines {
    lines: HashMap<u64, Line>,
    /// The newest session of each client, and its connection while it stands. Clients are as many as were
    /// given numbers, each of which cost a sync.
    clients: HashMap<ClientNo, (Session, Option<u64>)>,
    /// Clients whose connection was gone before they could be told that they joined.
    gone: Vec<ClientNo>,
}

fn own(
    store: Store,
    events: &Receiver<Event>,
    options: Options,
    (mut giver, mut held): (Option<Giver>, Held<Event>),
    (over, visits): (&AtomicBool, &Visits),
) {
    let facts = store.facts().clone();
    let mut desk = Desk::with_holds(store, Holds::with_grace(options.grace));
    let mut lines = Lines::default();
    let mut clock = Clock::start(Instant::now());
    // Since when there is no room, as visitors hear it.
    let mut told = None;
    visits.tell(held.ills(Duration::ZERO));
    while !over.load(Ordering::Acquire) {
        let first = match events.recv_timeout(TICK) {
            Ok(event) => Some(event),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => break,
        };
        let now = clock.look(Instant::now());
        if let Some(giver) = giver.as_mut()
            && giver.turn(now, desk.store())
        {
            for Line { mouth, party, .. } in lines.lines.values().filter(|line| line.client.is_some()) {
                mouth.say(Message::Tickets(giver.given(*party, Vec::new())), Bytes::default());
            }
        }
        let rest = first.is_some().then(|| events.try_iter().take(options.group_max.max(1) - 1));
        // Who asked; a group has none from connections that are not heard any more.
        let mut group: Vec<_> = lines.gone.drain(..).map(Asked::Gone).collect();
        let mut whose: Vec<_> = group.iter().map(|_| For::Nobody).collect();
        let came: Vec<_> = first.into_iter().chain(rest.into_iter().flatten()).collect();
        let said = came.iter().filter_map(|event| match event {
            Event::Numbers(numbers) => Some(numbers),
            _ => None,
        });
        let is_news = said.map(|numbers| held.hear(numbers)).count() > 0;
        let Sifted { ready, refused } = held.sift(came, desk.store(), Event::wants_a_number);
        if let Some(words) = (!refused.is_empty()).then(|| held.why(&facts.servers)) {
            refused.into_iter().for_each(|event| lines.refuse(event, &words));
        }
        for event in ready {
            if let Some((who, asked)) = lines.hear(event) {
                whose.push(who);
                group.push(asked);
            }
        }
        desk.look_for_room();
        if group.is_empty() && !desk.is_due(now) && desk.full() == told && !is_news && !desk.must_look(now) {
            continue;
        }
        let all = desk.serve(now, &group);
        // Servers hear it before whoever asked for it hears that it is done.
        let nameless = desk.take_nameless();
        if let Some(giver) = giver.as_ref().filter(|_| !haul_mutant::removed("catalog-tells-of-epochs")) {
            lines.tell_servers(giver, &nameless);
        }
        for (who, said) in whose.into_iter().zip(all) {
            lines.say(who, said, &facts, giver.as_ref());
        }
        if desk.full() != told || is_news {
            told = desk.full();
            let errno = rustix::io::Errno::NOSPC.raw_os_error();
            let ill = |at| Ill { what: Illness::Catalog, errno, since: now.saturating_sub(at) };
            visits.tell(told.map(ill).into_iter().chain(held.ills(now)).collect());
        }
        desk.look_whether_it_is_there(now);
        if let Some(Failure { words, .. }) = desk.ill() {
            for line in lines.lines.values() {
                line.mouth.say(Message::Refused(words.clone()), Bytes::default());
            }
            over.store(true, Ordering::Release);
        }
    }
    lines.lines.values().for_each(|line| line.mouth.close());
}

/// Whom an answer is for.
enum For {
    /// A connection that joins, in this session.
    Join(u64, Session),
    Ask(u64, RequestNo, bool),
    Nobody,
}

impl Lines {
    fn hear(&mut self, event: Event) -> Option<(For, Asked)> {
        match event {
            Event::Join { line, party, client, session, mouth } => {
                if let Some(client) = client {
                    let known = self.clients.get(&client).copied();
                    if known.is_some_and(|(newest, _)| session <= newest)
                        && !haul_mutant::removed("catalog-older-sessions")
                    {
                        let why = "a newer connection of this client was heard";
                        mouth.say(Message::Refused(why.into()), Bytes::default());
                        return None;
                    }
                    if let Some((_, Some(old))) = known
                        && let Some(old) = self.lines.remove(&old)
                    {
                        old.mouth.close();
                    }
                    // From here on nothing of the older one is heard.
                    if known.is_some() {
                        self.clients.insert(client, (session, None));
                    }
                }
                self.lines.insert(line, Line { mouth, party, client: None });
                let asked = match (client, party) {
                    (None, Party::Reader) => Asked::NewReader,
                    (client, _) => Asked::Join(client),
                };
                Some((For::Join(line, session), asked))
            }
            Event::Ask { line, number, request } => {
                let client = self.lines.get(&line)?.client;
                let Some(client) = client else {
                    // It did not wait for its number.
                    self.end(line, "who has not joined is not heard");
                    return None;
                };
                let leaves = request == Request::Leave;
                Some((For::Ask(line, number, leaves), Asked::Ask(client, number, request)))
            }
            Event::Gone { line } => {
                let client = self.lines.remove(&line)?.client?;
                if let Some((_, current)) = self.clients.get_mut(&client) {
                    *current = None;
                }
                Some((For::Nobody, Asked::Gone(client)))
            }
            Event::Numbers(_) => None,
        }
    }

    /// Answers that what was asked could not be done in time.
    fn refuse(&self, event: Event, words: &str) {
        if let Event::Ask { line, number, .. } = event
            && let Some(line) = self.lines.get(&line)
        {
            let errno = rustix::io::Errno::TIMEDOUT.raw_os_error();
            let answer = Answer::Failed(Failure { errno, words: words.into() });
            line.mouth.say(Message::Catalog(Catalog::Answer(number, answer)), Bytes::default());
        }
    }

    fn end(&mut self, line: u64, why: &str) {
        if let Some(line) = self.lines.remove(&line) {
            line.mouth.say(Message::Refused(why.into()), Bytes::default());
        }
    }

    /// Tells the servers which files have no name any more.
    fn tell_servers(&self, giver: &Giver, nameless: &[FileNo]) {
        let servers =
            || self.lines.values().filter(|line| line.party == Party::Server && line.client.is_some());
        for files in nameless.chunks(TICKETS_MAX) {
            for Line { mouth, .. } in servers() {
                mouth.say(Message::Tickets(giver.raised(files)), Bytes::default());
            }
        }
    }

    /// Gives the client of a connection tickets for what it is told of; of which files it got some.
    fn give(&self, line: u64, giver: Option<&Giver>, of: &[(FileNo, OfTicket)]) -> Vec<FileNo> {
        let (Some(giver), Some(line)) = (giver, self.lines.get(&line)) else { return Vec::new() };
        let Some(client) = line.client else { return Vec::new() };
        let give = |(file, of): &(FileNo, OfTicket)| giver.give(line.party, client, *file, *of);
        let tickets: Vec<_> = of.iter().filter_map(give).collect();
        let given = tickets.iter().map(|sealed| sealed.ticket.file).collect();
        if !tickets.is_empty() {
            line.mouth.say(Message::Tickets(giver.given(line.party, tickets)), Bytes::default());
        }
        given
    }

    fn say(
        &mut self,
        who: For,
        said: Said,
        facts: &haul_core::volume::catalog::Facts,
        giver: Option<&Giver>,
    ) {
        let say = |line: Option<&Line>, message| {
            if let Some(line) = line {
                line.mouth.say(Message::Catalog(message), Bytes::default());
            }
        };
        match (who, said) {
            (For::Join(line, session), Said::Joined(client)) => {
                // Others of this client may have come with the same group.
                match self.clients.get(&client).copied() {
                    Some((newest, _)) if newest > session => {
                        return self.end(line, "a newer connection of this client was heard");
                    }
                    Some((_, Some(old))) if old != line => self.end(old, "the client has a newer connection"),
                    _ => {}
                }
                let current = self.lines.get_mut(&line).map(|there| {
                    there.client = Some(client);
                    line
                });
                if current.is_none() {
                    self.gone.push(client);
                }
                self.clients.insert(client, (session, current));
                if let (Some(giver), Some(Line { mouth, party, .. })) = (giver, self.lines.get(&line)) {
                    mouth.say(Message::Tickets(giver.given(*party, Vec::new())), Bytes::default());
                }
                say(self.lines.get(&line), Catalog::Joined { client, facts: facts.clone() });
            }
            (For::Join(line, _), Said::Answer(Answer::Failed(failure))) => self.end(line, &failure.words),
            (For::Join(line, _), _) => self.end(line, "no client has this number"),
            (For::Ask(line, number, _), Said::Tickets(of)) => {
                let given = match giver.is_none_or(Giver::is_ready) {
                    true => Answer::Files(self.give(line, giver, &of)),
                    // What is said of a file that gets none is that nobody can use it.
                    false => Answer::Failed(Failure {
                        errno: rustix::io::Errno::NOSPC.raw_os_error(),
                        words: "it cannot begin a term of tickets: its disk is full, or fails".into(),
                    }),
                };
                say(self.lines.get(&line), Catalog::Answer(number, given));
            }
            (For::Ask(line, number, leaves), Said::Answer(answer)) => {
                if let Answer::Made { entry, .. } | Answer::Entry(entry) = &answer
                    && let (Some(file), Some(_)) = (entry.file(), entry.parent)
                {
                    // One without a name is asked for by itself: whether it can be used still is to be looked
                    // up.
                    self.give(line, giver, &[(file, OfTicket::File { epoch: NAMED })]);
                }
                say(self.lines.get(&line), Catalog::Answer(number, answer));
                if leaves && let Some(line) = self.lines.get_mut(&line) {
                    line.client = None;
                }
            }
            (For::Ask(line, number, _), Said::Again(answer)) => {
                say(self.lines.get(&line), Catalog::Answer(number, answer));
            }
            (For::Ask(..) | For::Nobody, _) => {}
        }
    }
}
