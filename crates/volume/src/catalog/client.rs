//! A client of a catalog: calls that wait for their answers, over a connection that is made again when it is
//! lost.
//!
//! In: calls, from any threads. Out: answers, or why there are none.
//! Invariants: a call that changes names is done once however often its connection breaks; what was opened is
//! told again after each loss; each wait ends with the patience that was given. When a call ends by that, it
//! may have been done, or may be done later: nobody knows.
//! Left out: names of several components, and where links lead; the length and the bytes of files.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use haul_core::entry::{Meta, Name};
use haul_core::volume::catalog::{
    Answer, Checked, Entry, EntryNo, Facts, Failure, Known, Message as Catalog, Noting, PAGE_MAX, Place,
    Request, Setting, WINDOW,
};
use haul_core::volume::layout::{Given, Placing};
use haul_core::volume::ticket::Term;
use haul_core::volume::wire::Message;
use haul_core::volume::{ClientNo, FileNo, RequestNo, ServerNo, Session};
use rustix::io::Errno;

pub use away::Attends;
pub use tickets::Tickets;

use super::SILENCE_MAX;
use crate::dial::{Keys, connect};
use crate::line::{Bytes, Mouth, speak};
use crate::lists::Known as Lists;
use crate::wallet::Wallet;

mod away;
mod tickets;

/// Between two tries to connect, at first and at most.
const REST: Duration = Duration::from_millis(50);
const REST_MAX: Duration = Duration::from_secs(2);
/// How often the catalog is told that the client is there.
const PING: Duration = Duration::from_secs(1);
/// Numbers of requests that may be done twice are counted from here: those that may not fill [`WINDOW`]
/// slots.
const REPEATABLE: u64 = 1 << 62;

/// A client of one catalog. When it is dropped, the catalog believes for a while that it may come back; see
/// [`Client::leave`].
pub struct Client {
    shared: Arc<Shared>,
    patience: Duration,
}

/// Is told of each term of tickets that the catalog tells of, and of files whose epoch it raised.
pub type Terms = Arc<dyn Fn(Term, Vec<(FileNo, u32)>) + Send + Sync>;

struct Shared {
    keys: Keys,
    to: SocketAddr,
    lists: Arc<Lists>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    started: Instant,
    me: Option<(ClientNo, Facts)>,
    session: u64,
    /// While a connection stands on which the catalog has answered the join.
    mouth: Option<Mouth>,
    /// Ends the connection, also one that has not joined yet.
    close: Option<Arc<dyn Fn() + Send + Sync>>,
    /// When the catalog was heard last, or a connection to it was made.
    heard: Option<Instant>,
    /// When it said anything last.
    said: Option<Instant>,
    /// Since when something was asked and nothing was answered, also where who asked it has given up.
    missed: Option<Instant>,
    /// The last numbers: of what is done once, and of what may be repeated.
    once: u64,
    repeatable: u64,
    waiting: BTreeMap<u64, Waiting>,
    wallet: Wallet,
    terms: Option<Terms>,
    /// What is open or is being opened, and how often.
    open: BTreeMap<EntryNo, u32>,
    /// What was open and is lost: the catalog had to believe that this client is gone.
    lost: BTreeSet<EntryNo>,
    /// Why there is no connection.
    why: String,
    /// Since when calls have to end sooner, and how soon: see [`away`].
    hurry: Option<(Instant, Duration)>,
    /// Who is asked whether calls wait on.
    attends: Option<Attends>,
    over: bool,
}

impl Default for State {
    fn default() -> State {
        State {
            started: Instant::now(),
            me: None,
            session: 0,
            mouth: None,
            close: None,
            heard: None,
            said: None,
            missed: None,
            once: 1,
            repeatable: REPEATABLE,
            waiting: BTreeMap::new(),
            wallet: Wallet::default(),
            terms: None,
            open: BTreeMap::new(),
            lost: BTreeSet::new(),
            why: String::new(),
            hurry: None,
            attends: None,
            over: false,
        }
    }
}

/// A call that has not returned.
struct Waiting {
    request: Request,
    answer: Option<Answer>,
    /// Since when; `None`: nothing is held up by it.
    since: Option<Instant>,
    /// Files that other calls closed since this one, which opens a file, was asked.
    closed: Vec<EntryNo>,
}

impl Client {
    /// Connects, and gets a number. `patience` bounds this, and each call.
    ///
    /// # Errors
    /// The catalog was not heard in time, or refuses.
    pub fn connect(keys: Keys, to: SocketAddr, patience: Duration) -> Result<Client, Failure> {
        Client::connect_with(keys, to, patience, None)
    }

    /// The same; `attends` is asked while this waits, and later calls, until it is [set](Client::attend).
    ///
    /// # Errors
    /// As of that, and ECANCELED.
    pub fn connect_with(
        keys: Keys,
        to: SocketAddr,
        patience: Duration,
        attends: Option<Attends>,
    ) -> Result<Client, Failure> {
        let state = State { attends, ..State::default() };
        let shared = Arc::new(Shared {
            keys,
            to,
            lists: Arc::default(),
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let client = Client { shared: shared.clone(), patience };
        let failure = |error: io::Error| Failure {
            errno: error.raw_os_error().unwrap_or(Errno::AGAIN.raw_os_error()),
            words: format!("starting a thread: {}", haul_base::errno::text(&error)).into(),
        };
        let line = shared.clone();
        let named = |name: &str| thread::Builder::new().name(name.into());
        named("haul-cat-dial").spawn(move || line.keep_connected()).map_err(failure)?;
        named("haul-cat-ping").spawn(move || shared.ping()).map_err(failure)?;
        let limit = (Instant::now(), patience);
        let mut state = client.shared.lock();
        while state.me.is_none() {
            state = client.shared.wait(state, limit)?;
        }
        drop(state);
        Ok(client)
    }

    /// Calls wait for so long from here on.
    pub fn be_patient(&mut self, patience: Duration) {
        self.patience = patience;
    }

    pub fn number(&self) -> ClientNo {
        self.shared.me().0
    }

    pub fn facts(&self) -> Facts {
        self.shared.me().1
    }

    /// The term of tickets that it is, as far as the catalog told.
    pub fn term(&self) -> Term {
        self.shared.lock().wallet.term()
    }

    /// Tells of the term that it is, and of each later one when it begins.
    pub fn tell_terms(&self, terms: Terms) {
        let mut state = self.shared.lock();
        terms(state.wallet.term(), Vec::new());
        state.terms = Some(terms);
    }

    /// What whoever speaks to servers for this client needs.
    pub fn tickets(&self) -> Tickets {
        Tickets { shared: self.shared.clone(), patience: self.patience }
    }

    /// What is known here of how files lie whose placement a program gave: of each file that the catalog has
    /// named to this client, for whoever reads or writes it.
    pub fn lists(&self) -> Arc<Lists> {
        self.shared.lists.clone()
    }

    /// Has it known how files lie that another one named.
    ///
    /// # Errors
    /// The catalog's: it does not know it, or is not heard.
    pub fn learn(&self, files: impl IntoIterator<Item = FileNo>) -> Result<(), Failure> {
        for placing in files.into_iter().map(Placing::of).filter(|placing| placing.list().is_some()) {
            if haul_core::volume::layout::Lists::list(&*self.shared.lists, placing).is_some() {
                continue;
            }
            let list = match self.ask(Request::List(placing))? {
                Answer::List(list) => list,
                other => return Err(nonsense(&other)),
            };
            self.knows(placing, list)?;
        }
        Ok(())
    }

    fn knows(&self, placing: Placing, list: Given) -> Result<(), Failure> {
        self.shared.lists.learn(placing, list).map_err(|another| Failure {
            errno: Errno::STALE.raw_os_error(),
            words: another.to_string().into(),
        })
    }

    /// Which placing files have that are to lie so: see [`teach`](crate::lists::teach) before any is made.
    ///
    /// # Errors
    /// As [`Client::call`]: the volume takes none, or no more; it has not all those servers.
    pub fn place(&self, list: &Given) -> Result<Placing, Failure> {
        match self.ask(Request::Place(list.clone()))? {
            Answer::Placed(placing) => self.knows(placing, list.clone()).map(|()| placing),
            other => Err(nonsense(&other)),
        }
    }

    /// Asks, and waits for the answer; how the files lie that it names is known then.
    ///
    /// # Errors
    /// The catalog's, or ETIMEDOUT.
    pub fn call(&self, request: Request) -> Result<Answer, Failure> {
        let answer = self.ask(request)?;
        match &answer {
            Answer::Made { entry, .. } | Answer::Entry(entry) => self.learn(entry.file())?,
            Answer::Page { entries, .. } => {
                self.learn(entries.iter().filter_map(|(_, entry)| entry.file()))?
            }
            Answer::Files(files) => self.learn(files.iter().copied())?,
            _ => {}
        }
        Ok(answer)
    }

    fn ask(&self, request: Request) -> Result<Answer, Failure> {
        self.ask_as(request, false)
    }

    fn ask_as(&self, request: Request, is_beside: bool) -> Result<Answer, Failure> {
        let limit = (Instant::now(), self.patience);
        let mut state = self.shared.lock();
        while request.is_once() && !state.has_slot() {
            state = self.shared.wait(state, limit)?;
        }
        let number = if is_beside { state.ask_beside(request) } else { state.ask(request) };
        self.wait_for(state, number, limit)
    }

    /// Waits for the answer to what was asked under this number.
    fn wait_for<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        number: u64,
        limit: (Instant, Duration),
    ) -> Result<Answer, Failure> {
        let mut late = None;
        while state.waiting.get(&number).is_some_and(|waiting| waiting.answer.is_none()) && late.is_none() {
            state = match self.shared.wait(state, limit) {
                Ok(state) => state,
                Err(failure) => {
                    late = Some(failure);
                    self.shared.lock()
                }
            };
        }
        let mut waiting = state.waiting.remove(&number).expect("nobody else takes it");
        let answer = waiting.answer.take();
        if answer.is_none() {
            state.gives_up(&waiting.request);
        }
        drop(state);
        self.shared.changed.notify_all();
        let Some(answer) = answer else { return Err(late.expect("it was waited for")) };
        match answer {
            Answer::Failed(failure) => Err(failure),
            // Another call closed this very file meanwhile: the catalog does not know that this one has it.
            Answer::Made { entry, new } if waiting.closed.contains(&entry.id) => {
                match self.call(Request::Open(vec![entry.id])) {
                    Ok(Answer::Opened { lost }) if lost.is_empty() => {
                        // It was counted twice.
                        self.shared.lock().less(entry.id);
                        Ok(Answer::Made { entry, new })
                    }
                    other => {
                        self.shared.lock().less(entry.id);
                        other.and(Err(gone()))
                    }
                }
            }
            answer => Ok(answer),
        }
    }

    fn made(&self, request: Request) -> Result<(Entry, bool), Failure> {
        match self.call(request)? {
            Answer::Made { entry, new } => Ok((entry, new)),
            other => Err(nonsense(&other)),
        }
    }

    fn entry(&self, request: Request) -> Result<Entry, Failure> {
        match self.call(request)? {
            Answer::Entry(entry) => Ok(entry),
            other => Err(nonsense(&other)),
        }
    }

    fn done(&self, request: Request) -> Result<(), Failure> {
        match self.call(request)? {
            Answer::Done => Ok(()),
            other => Err(nonsense(&other)),
        }
    }

    /// # Errors
    /// As [`Client::call`]; so with all below.
    pub fn mkdir(&self, at: Place, meta: Meta) -> Result<Entry, Failure> {
        self.made(Request::Mkdir { at, meta }).map(|(entry, _)| entry)
    }

    /// Makes a file, or with `exclusive` unset takes the one that is there; and opens it if asked to. Says
    /// whether it is new.
    pub fn create(
        &self,
        at: Place,
        meta: Meta,
        exclusive: bool,
        open: bool,
    ) -> Result<(Entry, bool), Failure> {
        self.create_placed(at, meta, exclusive, open, Placing::ROUND_ROBIN)
    }

    /// The same; a new one lies as `placing` says.
    pub fn create_placed(
        &self,
        at: Place,
        meta: Meta,
        exclusive: bool,
        open: bool,
        placing: Placing,
    ) -> Result<(Entry, bool), Failure> {
        self.made(Request::Create { at, meta, exclusive, open, placing })
    }

    pub fn symlink(&self, at: Place, meta: Meta, target: &[u8]) -> Result<Entry, Failure> {
        self.made(Request::Symlink { at, meta, target: target.into() }).map(|(entry, _)| entry)
    }

    pub fn lookup(&self, at: Place) -> Result<Entry, Failure> {
        self.entry(Request::Lookup(at))
    }

    pub fn stat(&self, id: EntryNo) -> Result<Entry, Failure> {
        self.entry(Request::Stat(id))
    }

    pub fn set_attr(&self, id: EntryNo, set: Setting) -> Result<Entry, Failure> {
        self.entry(Request::SetAttr { id, set })
    }

    /// The same of what holds up nothing: it is not [told](Client::waits) to wait.
    pub fn set_attr_beside(&self, id: EntryNo, set: Setting) -> Result<Entry, Failure> {
        match self.ask_as(Request::SetAttr { id, set }, true)? {
            Answer::Entry(entry) => Ok(entry),
            other => Err(nonsense(&other)),
        }
    }

    /// A page of a directory, and whether there are more entries behind it.
    pub fn read_dir(&self, dir: EntryNo, after: Option<Name>) -> Result<(Vec<(Name, Entry)>, bool), Failure> {
        match self.call(Request::ReadDir { dir, after, max: PAGE_MAX as u16 })? {
            Answer::Page { entries, more } => Ok((entries, more)),
            other => Err(nonsense(&other)),
        }
    }

    pub fn rename(&self, from: Place, to: Place, noreplace: bool) -> Result<(), Failure> {
        self.done(Request::Rename { from, to, noreplace })
    }

    pub fn unlink(&self, at: Place) -> Result<(), Failure> {
        self.done(Request::Unlink(at))
    }

    pub fn rmdir(&self, at: Place) -> Result<(), Failure> {
        self.done(Request::Rmdir(at))
    }

    /// The bytes of this file stay from here on, until it was closed as often as it was opened.
    pub fn open(&self, file: EntryNo) -> Result<(), Failure> {
        match self.call(Request::Open(vec![file]))? {
            Answer::Opened { lost } if lost.is_empty() => Ok(()),
            Answer::Opened { .. } => Err(gone()),
            other => Err(nonsense(&other)),
        }
    }

    pub fn close(&self, file: EntryNo) -> Result<(), Failure> {
        let mut state = self.shared.lock();
        if state.lost.contains(&file) || !state.less(file) {
            return Ok(());
        }
        // Under one lock with the count: who opens it from here on is heard later than this.
        state.note_closed(&[file]);
        let number = state.ask(Request::Close(vec![file]));
        self.wait_for(state, number, (Instant::now(), self.patience)).map(drop)
    }

    /// The same, and nobody waits for it.
    pub fn close_soon(&self, file: EntryNo) {
        let mut state = self.shared.lock();
        if !state.lost.contains(&file) && state.less(file) {
            state.tell_closed(vec![file]);
        }
    }

    /// Whether a file that was opened is not open any more, because the catalog did not hear this client for
    /// too long, and its name went.
    pub fn is_lost(&self, file: EntryNo) -> bool {
        self.shared.lock().lost.contains(&file)
    }

    /// Files above `after` whose bytes this server is to remove.
    pub fn to_remove(&self, server: ServerNo, after: FileNo) -> Result<Vec<FileNo>, Failure> {
        match self.call(Request::ToRemove { server, after })? {
            Answer::Files(files) => Ok(files),
            other => Err(nonsense(&other)),
        }
    }

    /// This server has removed the bytes of these files; at most [`PAGE_MAX`] of them.
    pub fn removed(&self, server: ServerNo, files: Vec<FileNo>) -> Result<(), Failure> {
        self.done(Request::Removed { server, files })
    }

    /// What is known of entries beside their attributes, at most [`PAGE_MAX`] of them, in their order.
    /// Whether a file has a home is asked after a look at it, and not before: see
    /// [`contents`](crate::contents).
    pub fn known(&self, ids: Vec<EntryNo>) -> Result<Vec<Option<Known>>, Failure> {
        let asked = ids.len();
        match self.call(Request::Known(ids))? {
            Answer::Known(all) if all.len() == asked => Ok(all),
            other => Err(nonsense(&other)),
        }
    }

    /// Notes what is to be known of entries, at most [`PAGE_MAX`] of them; of which of them it was noted.
    pub fn note(&self, place: &str, files: Vec<Noting>) -> Result<Vec<FileNo>, Failure> {
        match self.call(Request::Note { place: place.into(), files })? {
            Answer::Files(noted) => Ok(noted),
            other => Err(nonsense(&other)),
        }
    }

    /// Has the catalog look at all that it has. Nobody else is answered meanwhile.
    pub fn check(&self) -> Result<Checked, Failure> {
        match self.call(Request::Check)? {
            Answer::Checked(checked) => Ok(checked),
            other => Err(nonsense(&other)),
        }
    }

    /// Ends for good: the catalog forgets this client at once.
    pub fn leave(self) -> Result<(), Failure> {
        self.done(Request::Leave)
    }

    /// Breaks the connection, which is made again: for tests of those who use this.
    pub fn break_connection(&self) {
        if let Some(close) = &self.shared.lock().close {
            close();
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.over = true;
        state.mouth = None;
        if let Some(close) = state.close.take() {
            close();
        }
        drop(state);
        self.shared.changed.notify_all();
    }
}

fn gone() -> Failure {
    Failure { errno: Errno::NOENT.raw_os_error(), words: "the file is not there any more".into() }
}

fn nonsense(answer: &Answer) -> Failure {
    Failure { errno: Errno::PROTO.raw_os_error(), words: format!("the catalog answered {answer:?}").into() }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn me(&self) -> (ClientNo, Facts) {
        self.lock().me.clone().expect("it has joined once")
    }

    fn ping(&self) {
        let mut state = self.lock();
        let mut number = 0;
        while !state.over {
            // A catalog that is not heard for too long is gone, also where the network says nothing of it.
            if let Some(close) = &state.close
                && state.heard.is_some_and(|heard| heard.elapsed() > SILENCE_MAX)
            {
                close();
            }
            if let Some(mouth) = &state.mouth {
                number += 1;
                mouth.say(Message::Ping(number), Bytes::default());
            }
            let next = Instant::now() + PING;
            // Calls wake this too.
            while !state.over && Instant::now() < next {
                let left = next.saturating_duration_since(Instant::now());
                state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    fn keep_connected(&self) {
        let mut rest = REST;
        loop {
            let why = self.talk();
            let mut state = self.lock();
            // Where the catalog took the client, it is tried again soon.
            let stood = state.mouth.take().is_some();
            state.close = None;
            state.why = why;
            rest = if stood { REST } else { (rest * 2).min(REST_MAX) };
            let next = Instant::now() + rest;
            while !state.over && Instant::now() < next {
                let left = next.saturating_duration_since(Instant::now());
                state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            }
            if state.over {
                return;
            }
        }
    }

    /// One connection; says why it ended.
    fn talk(&self) -> String {
        let link = match connect(&self.keys, self.to) {
            Ok(link) => link,
            Err(error) => return haul_base::errno::with_causes(&error),
        };
        let (mut incoming, mouth) = match speak(link, "haul-cat-say", None) {
            Ok(both) => both,
            Err(error) => return format!("starting a thread: {}", haul_base::errno::text(&error)),
        };
        let close = mouth.closer();
        {
            let mut state = self.lock();
            if state.over {
                close();
                return String::new();
            }
            state.close = Some(close.clone());
            state.heard = Some(Instant::now());
            state.session += 1;
            let client = state.me.as_ref().map(|(client, _)| *client);
            let join = Catalog::Join { volume: self.keys.volume, client, session: Session(state.session) };
            mouth.say(Message::Catalog(join), Bytes::default());
        }
        let mut mouth = Some(mouth);
        let why = loop {
            let message = match incoming.receive(|_| Ok(())) {
                Ok(Some((message, _))) => message,
                Ok(None) => break "the catalog ended it".to_owned(),
                Err(error) => break error.to_string(),
            };
            let mut state = self.lock();
            let now = Some(Instant::now());
            (state.heard, state.said) = (now, now);
            match message {
                Message::Catalog(Catalog::Joined { client, facts }) => {
                    let Some(mouth) = mouth.take() else { break "the catalog joined twice".to_owned() };
                    if state.me.as_ref().is_some_and(|(me, _)| *me != client) {
                        break "the catalog takes this client for another".to_owned();
                    }
                    state.me = Some((client, facts));
                    state.has_done();
                    state.go_on(mouth);
                }
                Message::Catalog(Catalog::Answer(number, answer)) => {
                    state.hear(number, answer);
                    state.has_done();
                }
                Message::Tickets(mut given) => {
                    if let Some(terms) = &state.terms {
                        terms(given.term, std::mem::take(&mut given.raised));
                    }
                    state.wallet.put(given);
                }
                Message::Pong(_) => continue,
                Message::Refused(why) => break format!("the catalog ended it: {why}"),
                _ => break "the catalog said what it never says".to_owned(),
            }
            drop(state);
            self.changed.notify_all();
        };
        close();
        why
    }
}

impl State {
    /// Whether one more request may be under way that must not be done twice: the slot that the catalog would
    /// remember it in has nothing that may still be asked for.
    fn has_slot(&self) -> bool {
        let next = self.once + 1;
        self.waiting.keys().next().is_none_or(|oldest| next < oldest.saturating_add(WINDOW))
    }

    /// Asks it, and says under which number.
    fn ask(&mut self, request: Request) -> u64 {
        let number = self.ask_beside(request);
        if let Some(waiting) = self.waiting.get_mut(&number) {
            waiting.since = Some(Instant::now());
        }
        number
    }

    /// The same of what holds up nothing.
    fn ask_beside(&mut self, request: Request) -> u64 {
        let next = if request.is_once() { &mut self.once } else { &mut self.repeatable };
        *next += 1;
        let number = *next;
        if let Request::Open(files) = &request {
            for file in files {
                *self.open.entry(*file).or_insert(0) += 1;
            }
        }
        if let Some(mouth) = &self.mouth {
            mouth.say(Message::Catalog(Catalog::Ask(RequestNo(number), request.clone())), Bytes::default());
        }
        self.missed.get_or_insert_with(Instant::now);
        self.waiting.insert(number, Waiting { request, answer: None, since: None, closed: Vec::new() });
        number
    }

    /// Counts a file as open once less; says whether nobody here has it open now.
    fn less(&mut self, file: EntryNo) -> bool {
        let Some(count) = self.open.get_mut(&file) else { return false };
        *count -= 1;
        if *count == 0 {
            self.open.remove(&file);
            return true;
        }
        false
    }

    /// A call that opens ends without an answer.
    fn gives_up(&mut self, request: &Request) {
        if let Request::Open(files) = request {
            let closed: Vec<_> = files.iter().copied().filter(|file| self.less(*file)).collect();
            self.tell_closed(closed);
        }
    }

    /// Calls that open something may find one of these: they are told that it was closed since.
    fn note_closed(&mut self, files: &[EntryNo]) {
        for waiting in self.waiting.values_mut() {
            if matches!(waiting.request, Request::Create { open: true, .. }) {
                waiting.closed.extend(files);
            }
        }
    }

    /// Says that these are closed, without waiting for an answer.
    fn tell_closed(&mut self, files: Vec<EntryNo>) {
        if files.is_empty() {
            return;
        }
        self.note_closed(&files);
        self.repeatable += 1;
        let ask = Catalog::Ask(RequestNo(self.repeatable), Request::Close(files));
        if let Some(mouth) = &self.mouth {
            mouth.say(Message::Catalog(ask), Bytes::default());
        }
    }

    /// A new connection stands: what is open is told again first, then what was not answered is asked again.
    fn go_on(&mut self, mouth: Mouth) {
        let ask = |number, request| {
            mouth.say(Message::Catalog(Catalog::Ask(RequestNo(number), request)), Bytes::default());
        };
        let open: Vec<_> = self.open.keys().copied().collect();
        for page in open.chunks(PAGE_MAX) {
            // Nobody waits for these answers; see `hear`.
            self.repeatable += 1;
            ask(self.repeatable, Request::Open(page.to_vec()));
        }
        for (number, waiting) in &self.waiting {
            if waiting.answer.is_none() {
                ask(*number, waiting.request.clone());
            }
        }
        self.mouth = Some(mouth);
    }

    fn hear(&mut self, number: RequestNo, answer: Answer) {
        let Some(waiting) = self.waiting.get_mut(&number.0) else {
            match answer {
                // What was open and could not be told again is lost.
                Answer::Opened { lost } => {
                    let was_open = |file: &EntryNo| self.open.remove(file).is_some();
                    let lost: Vec<_> = lost.into_iter().filter(was_open).collect();
                    self.lost.extend(lost);
                }
                // Its call has given up; it may have opened it.
                Answer::Made { entry, .. } if !self.open.contains_key(&entry.id) => {
                    self.tell_closed(vec![entry.id]);
                }
                _ => {}
            }
            return;
        };
        if waiting.answer.is_some() {
            return;
        }
        let (mut more, mut less) = (None, Vec::new());
        match (&waiting.request, &answer) {
            (Request::Create { open: true, .. }, Answer::Made { entry, .. }) => more = Some(entry.id),
            (Request::Open(_), Answer::Opened { lost }) => less.clone_from(lost),
            (Request::Open(files), _) => less.clone_from(files),
            _ => {}
        }
        waiting.answer = Some(answer);
        for file in less {
            self.less(file);
        }
        if let Some(file) = more {
            *self.open.entry(file).or_insert(0) += 1;
        }
    }
}
