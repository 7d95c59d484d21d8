//! The gatherer of files: takes small writes into its log, brings them to the storage servers, and says who
//! may write directly.
//!
//! In: requests of clients, what became of the log's appends and syncs and of pushes, time. Out: appends,
//! syncs, pushes, recalls of leases, answers.
//! Invariants: a stripe that others have a lease on takes nothing; a stripe of which the log has bytes is
//! leased to nobody; what comes for a stripe is done in the order in which it came; bytes leave the log
//! when they are on media at the storage server and no newer ones of the same place are in the log; a push
//! bears the file's epoch, and there is one push of a stripe at a time.
//! Left out: which life of a storage server a push is for, and waiting for one that is not there: the driver
//! says that a push came to nothing.

mod append;
mod cut;
mod facts;
mod leases;
mod log;
mod look;
mod map;
mod stripe;
mod words;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

pub use self::append::AppendNo;
use self::append::LastAppend;
pub use self::cut::CutNo;
use self::cut::Cutting;
pub use self::facts::Facts;
use self::look::Contents;
pub use self::look::{BUSY, LOOK_MAX};
use self::stripe::{Queued, Stripe, WantedLease, cut, within};
pub use self::words::{Action, Answer, Part, PushNo, Record, Request, Seq, Settings, is_mute};

use super::{ClientNo, Epoch, FileNo, RequestNo, Session};
use crate::ids::Time;

/// A lease runs out so long after its client was heard.
///
/// The client counts from when it spoke, and the gatherer from when it heard: the client stops first, and no
/// clock is compared with another.
pub const LEASE: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct File<B> {
    fence: u32,
    end: u64,
    /// Where the next append stands: behind what is under way too.
    tail: u64,
    /// The end that a record of the log says, and which record.
    noted: Option<(u64, Seq)>,
    stripes: BTreeMap<u64, Stripe<B>>,
    cutting: Option<Cutting>,
    /// The epoch from which on lengths count, and where the log says so.
    last_cut: Option<(Epoch, Seq)>,
    contents: Contents,
    /// What waits for a cut, in the order in which it came.
    later: VecDeque<(ClientNo, RequestNo, Request<B>)>,
}

#[derive(Debug)]
struct Client {
    /// Its leases run out then.
    until: Time,
    /// The log says that there is such a client, and that lasts.
    is_known: bool,
    /// Where it says so.
    noted: Option<Seq>,
}

#[derive(Debug)]
enum Appending {
    Bytes { client: ClientNo, number: RequestNo, file: FileNo, part: Part },
    Append { client: ClientNo, file: FileNo, part: Part },
    Told { client: ClientNo, number: RequestNo },
    Other,
}

#[derive(Debug)]
enum Syncing {
    Client(ClientNo, RequestNo),
    /// A client that wants its first lease.
    Known(ClientNo),
    /// Something of a stripe was brought.
    Brought(FileNo, u64),
    /// A file has grown for an append.
    Reserved {
        client: ClientNo,
        file: FileNo,
        offset: u64,
    },
    /// A file is to be cut.
    Cut(FileNo),
    /// It is.
    IsCut(FileNo),
    /// It is removed.
    Gone(FileNo),
    /// The log says since that record that a file is written.
    Untold(FileNo, Seq),
    /// What was looked at lasts; the answer, and who asked.
    Looked(Vec<(ClientNo, RequestNo)>, Answer),
    /// Records before this one are of no use when this sync is over: what replaced them lasts then.
    Forget(Seq),
}

#[derive(Debug)]
struct Pushing {
    file: FileNo,
    stripe: u64,
    parts: Vec<Part>,
}

/// The gatherer of some files, in one life.
#[derive(Debug)]
pub struct Gatherer<B> {
    settings: Settings,
    life: u32,
    now: Time,
    /// Until then clients of an earlier life may have leases; who of them was heard in this one has none.
    grace: Option<Time>,
    earlier: BTreeMap<ClientNo, Seq>,
    /// What came in that time.
    held: VecDeque<(ClientNo, RequestNo, Request<B>)>,
    files: BTreeMap<FileNo, File<B>>,
    /// Those that were removed.
    gone: BTreeSet<FileNo>,
    clients: BTreeMap<ClientNo, Client>,
    /// Each client's newest connection, and whether it still counts; of older ones nothing does.
    sessions: BTreeMap<ClientNo, (Session, bool)>,
    appends: BTreeMap<(FileNo, ClientNo), LastAppend>,
    wanted: BTreeMap<u64, WantedLease>,
    next_wanted: u64,
    next_seq: u64,
    appending: BTreeMap<Seq, Appending>,
    /// Those that wait for a sync of all records before one, and those that the running sync is for.
    to_sync: Vec<(Seq, Syncing)>,
    syncing: Option<Vec<Syncing>>,
    pushes: BTreeMap<PushNo, Pushing>,
    next_push: u64,
    cuts: BTreeMap<CutNo, FileNo>,
    next_cut: u64,
    /// Files whose cut or fence came to nothing.
    cut_again: VecDeque<(Time, FileNo)>,
    fences: BTreeMap<CutNo, FileNo>,
    /// Looks that wait, and until when, in that order; some are over.
    looking: VecDeque<(Time, FileNo)>,
    forgotten: Seq,
    failed: Option<i32>,
    actions: VecDeque<Action<B>>,
}

impl<B> Gatherer<B> {
    /// A life begins with what the log of earlier ones says, in its order, from `first` on: what was before
    /// that was forgotten. `life` is higher than that of all before it, and lasts already.
    pub fn new<'a>(
        settings: Settings,
        life: u32,
        now: Time,
        first: Seq,
        log: impl IntoIterator<Item = (Seq, &'a Record<B>)>,
    ) -> Gatherer<B>
    where
        B: 'a,
    {
        let mut gatherer = Gatherer {
            settings,
            life,
            now,
            grace: None,
            earlier: BTreeMap::new(),
            held: VecDeque::new(),
            files: BTreeMap::new(),
            gone: BTreeSet::new(),
            clients: BTreeMap::new(),
            sessions: BTreeMap::new(),
            appends: BTreeMap::new(),
            wanted: BTreeMap::new(),
            next_wanted: 0,
            next_seq: first.0,
            appending: BTreeMap::new(),
            to_sync: Vec::new(),
            syncing: None,
            pushes: BTreeMap::new(),
            next_push: 0,
            cuts: BTreeMap::new(),
            next_cut: 0,
            cut_again: VecDeque::new(),
            fences: BTreeMap::new(),
            looking: VecDeque::new(),
            forgotten: first,
            failed: None,
            actions: VecDeque::new(),
        };
        for (seq, record) in log {
            gatherer.next_seq = gatherer.next_seq.max(seq.0 + 1);
            match record {
                Record::Bytes { file, offset, len, .. } => {
                    let part = Part { offset: *offset, len: *len, seq, from: 0 };
                    gatherer.stripe(*file, offset / settings.stripe_size).cover(part);
                    gatherer.grow(*file, offset + len);
                }
                Record::End { file, end } => {
                    gatherer.grow(*file, *end);
                    gatherer.file(*file).noted = Some((*end, seq));
                }
                Record::Brought { file, stripe, upto } => {
                    gatherer.stripe(*file, *stripe).parts.retain(|_, part| part.seq > *upto);
                }
                Record::Cut { file, from, epoch } => {
                    gatherer.file(*file).cutting = Some(Cutting::of_log(*from, *epoch, seq));
                }
                Record::IsCut { file, from, epoch } => {
                    gatherer.is_cut(*file, *from, *epoch, seq);
                    gatherer.file(*file).cutting = None;
                }
                Record::Remove { file } => {
                    gatherer.file(*file).cutting = Some(Cutting::removal_of_log(seq));
                }
                Record::Gone { file } => _ = gatherer.forget_file(*file),
                Record::LastCut { file, epoch } => gatherer.file(*file).last_cut = Some((*epoch, seq)),
                Record::Client(client) => _ = gatherer.earlier.insert(*client, seq),
                Record::Untold { file } => gatherer.file(*file).contents.was_untold(seq),
                Record::Told { file } => gatherer.file(*file).contents.was_told(),
                Record::Nothing => {}
            }
        }
        let cut = gatherer.files.iter().filter(|(_, state)| state.cutting.is_some());
        let cut: Vec<FileNo> = cut.map(|(file, _)| *file).collect();
        // What the log says may not last yet.
        cut.into_iter().for_each(|file| gatherer.sync(Syncing::Cut(file)));
        gatherer.grace = (!gatherer.earlier.is_empty()).then(|| now.after(LEASE));
        gatherer
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action<B>> {
        self.actions.pop_front()
    }

    fn file(&mut self, file: FileNo) -> &mut File<B> {
        self.files.entry(file).or_insert_with(|| File {
            fence: 0,
            end: 0,
            tail: 0,
            noted: None,
            stripes: BTreeMap::new(),
            cutting: None,
            last_cut: None,
            contents: Contents::default(),
            later: VecDeque::new(),
        })
    }

    fn stripe(&mut self, file: FileNo, stripe: u64) -> &mut Stripe<B> {
        self.file(file).stripes.entry(stripe).or_default()
    }

    fn grow(&mut self, file: FileNo, end: u64) {
        let file = self.file(file);
        file.end = file.end.max(end);
        file.tail = file.tail.max(end);
    }

    fn epoch(&mut self, file: FileNo) -> Epoch {
        Epoch { gatherer: self.life, fence: self.file(file).fence }
    }

    /// Time passes: leases run out.
    pub fn tick(&mut self, now: Time) {
        self.now = self.now.max(now);
        if self.grace.is_some_and(|grace| grace <= now) {
            self.end_grace();
        }
        self.cut_those_left();
        self.end_late_looks();
        let gone: Vec<ClientNo> =
            self.clients.iter().filter(|(_, client)| client.until <= now).map(|(no, _)| *no).collect();
        for client in gone {
            self.clients.remove(&client);
            // Nobody waits for who may be frozen, and what is under way of it is not to come ever so late.
            if let Some((_, counts)) = self.sessions.get_mut(&client) {
                *counts = false;
            }
            self.actions.push_back(Action::Drop(client));
            self.leave(client);
        }
    }

    /// When [`Gatherer::tick`] has something to do next.
    pub fn next_deadline(&self) -> Option<Time> {
        let again = self.cut_again.front().map(|(when, _)| *when);
        let looks = self.looking.front().map(|(until, _)| *until);
        self.clients.values().map(|client| client.until).chain(self.grace).chain(again).chain(looks).min()
    }

    fn is_of_now(&self, client: ClientNo, session: Session) -> bool {
        self.sessions.get(&client) == Some(&(session, true))
    }

    /// A client is there; it says so now and then. False: its connection counts no more, and it does not hear
    /// that it was heard.
    pub fn hear(&mut self, now: Time, client: ClientNo, session: Session) -> bool {
        self.tick(now);
        let is_of_now = self.is_of_now(client, session);
        if is_of_now {
            self.note(client);
        }
        is_of_now
    }

    fn note(&mut self, client: ClientNo) {
        let until = self.now.after(LEASE);
        let new = Client { until, is_known: false, noted: None };
        self.clients.entry(client).or_insert(new).until = until;
    }

    /// A client speaks over a new connection: it uses no lease of before any more, and asks again for what
    /// was not answered.
    ///
    /// A session whose number is not higher than that of the client's last is late, and none.
    pub fn join(&mut self, now: Time, client: ClientNo, session: Session) {
        self.tick(now);
        if self.sessions.get(&client).is_some_and(|(last, _)| *last >= session) {
            return;
        }
        self.sessions.insert(client, (session, true));
        self.note(client);
        self.leave(client);
        if self.earlier.remove(&client).is_some() && self.earlier.is_empty() {
            self.end_grace();
        }
    }

    /// Nothing that a client said over its last connection counts any more.
    fn leave(&mut self, client: ClientNo) {
        self.held.retain(|(other, ..)| *other != client);
        let mut appends = Vec::new();
        for (file, state) in &mut self.files {
            for stripe in state.stripes.values_mut() {
                let is_its = |one: &Queued<B>| one.writer() == Some(client);
                let has = stripe.queue.iter().any(|one| is_its(one) && matches!(one, Queued::Append { .. }));
                appends.extend(has.then_some(*file));
                stripe.queue.retain(|one| !is_its(one));
            }
        }
        appends.into_iter().for_each(|file| self.leave_append(client, file));
        self.leave_cuts(client);
        self.leave_looks(client);
        // What it wrote under a lease may be under way still.
        self.void_leases(client);
    }

    /// Nobody has a lease of an earlier life any more.
    fn end_grace(&mut self) {
        if self.grace.take().is_none() {
            return;
        }
        self.earlier.clear();
        for (client, number, request) in std::mem::take(&mut self.held) {
            self.take(client, number, request);
        }
        self.go_on_all_looks();
    }

    /// A client asks for something.
    pub fn handle_request(
        &mut self,
        now: Time,
        (client, session): (ClientNo, Session),
        number: RequestNo,
        request: Request<B>,
    ) {
        if !self.hear(now, client, session) {
            return;
        }
        let waits = request.changes().is_some() || matches!(request, Request::Release { .. });
        match waits && self.grace.is_some() {
            true => self.held.push_back((client, number, request)),
            false => self.take(client, number, request),
        }
    }

    fn answer(&mut self, client: ClientNo, number: RequestNo, answer: Answer) {
        self.actions.push_back(Action::Answer(client, number, answer));
    }

    fn take(&mut self, client: ClientNo, number: RequestNo, request: Request<B>) {
        if let Some(errno) = self.failed
            && !matches!(
                request,
                Request::Read { .. } | Request::Map { .. } | Request::Release { .. } | Request::Look { .. }
            )
        {
            return match request {
                Request::Grow { .. } => {}
                _ => self.answer(client, number, Answer::Failed(errno)),
            };
        }
        if self.gone.contains(&request.file()) {
            return self.answer_for_gone(client, number, &request);
        }
        let is_cut = |file: FileNo| self.files.get(&file).is_some_and(|file| file.cutting.is_some());
        if request.changes().is_some_and(is_cut) {
            return self.take_later(client, number, request);
        }
        match request {
            Request::Write { file, offset, len, bytes } => {
                let at = offset / self.settings.stripe_size;
                self.give_back(client, file, at);
                let stripe = self.stripe(file, at);
                stripe.queue.push_back(Queued::Write { client, number, offset, len, bytes });
                self.go_on(file, at);
            }
            Request::Lease { file, stripes } => {
                let wanted = self.next_wanted;
                self.next_wanted += 1;
                for at in stripes.clone() {
                    self.stripe(file, at).queue.push_back(Queued::Lease(wanted));
                }
                self.wanted.insert(wanted, WantedLease { client, number, file, stripes: stripes.clone() });
                self.make_known(client);
                self.make_untold(file);
                stripes.for_each(|at| self.go_on(file, at));
            }
            Request::Release { file, stripes } => {
                for at in stripes {
                    self.give_back(client, file, at);
                    self.go_on(file, at);
                }
            }
            Request::Read { file, offset, len } => {
                let size = self.settings.stripe_size;
                let state = self.file(file);
                let stripes = offset / size..(offset + len).div_ceil(size);
                let in_range = state.stripes.range(stripes).flat_map(|(_, stripe)| stripe.parts.values());
                let parts = in_range.copied().filter_map(|part| within(part, offset, offset + len)).collect();
                let end = state.end;
                self.answer(client, number, Answer::Read { parts, end });
            }
            Request::Map { file, stripes } => self.map(client, number, file, stripes),
            Request::Grow { file, epoch, end } => {
                let state = self.file(file);
                let counts = state.last_cut.is_none_or(|(last, _)| epoch >= last);
                if counts && end > state.end {
                    self.note_untold(file);
                    self.grow(file, end);
                    self.changes(file);
                    self.note_end(file);
                }
            }
            Request::Sync { .. } => self.sync(Syncing::Client(client, number)),
            Request::Append { file, number: append, len, bytes } => {
                self.take_append((client, number), file, append, len, bytes);
            }
            Request::Truncate { file, len } => self.begin_cut(client, number, file, len),
            Request::Remove { file } => self.begin_removal(client, number, file),
            Request::Look { file } => self.look(client, number, file),
            Request::Told { file, version } => {
                self.is_told((client, number), file, version);
            }
        }
    }

    /// Does what waits for a stripe, as far as it can be done.
    fn go_on(&mut self, file: FileNo, at: u64) {
        if self.gone.contains(&file) {
            return;
        }
        if self.file(file).cutting.is_some() {
            return self.go_on_cut(file);
        }
        self.go_on_looks(file);
        loop {
            let stripe = self.stripe(file, at);
            match stripe.queue.front() {
                None => break,
                Some(Queued::Write { client, .. }) => {
                    let client = *client;
                    let others: Vec<ClientNo> =
                        stripe.leases.iter().copied().filter(|other| *other != client).collect();
                    if !others.is_empty() {
                        return self.recall(file, at, &others);
                    }
                    let Some(Queued::Write { client, number, offset, len, bytes }) = stripe.queue.pop_front()
                    else {
                        unreachable!("it was just looked at")
                    };
                    stripe.appending += 1;
                    self.note_untold(file);
                    let state = self.file(file);
                    state.tail = state.tail.max(offset + len);
                    let part = Part { offset, len, seq: Seq(self.next_seq), from: 0 };
                    let appending = Appending::Bytes { client, number, file, part };
                    self.append(Record::Bytes { file, offset, len, bytes }, appending);
                }
                Some(Queued::Append { .. }) => {
                    // Its client's too: that does not know which stripe it will be.
                    let all: Vec<ClientNo> = stripe.leases.iter().copied().collect();
                    if !all.is_empty() {
                        return self.recall(file, at, &all);
                    }
                    let Some(Queued::Append { client, len, bytes }) = stripe.queue.pop_front() else {
                        unreachable!("it was just looked at")
                    };
                    self.do_append(client, (file, at), len, bytes);
                }
                Some(Queued::Lease(wanted)) => {
                    let (wanted, is_clean) = (*wanted, stripe.is_clean());
                    if !is_clean && self.wanted.contains_key(&wanted) {
                        return self.push(file, at);
                    }
                    if !self.lease(wanted) {
                        return;
                    }
                }
            }
        }
        let state = self.file(file);
        if state.stripes.get(&at).is_some_and(Stripe::is_idle) {
            state.stripes.remove(&at);
        }
    }

    /// Brings what the log has of a stripe to where it lies.
    fn push(&mut self, file: FileNo, at: u64) {
        let epoch = self.epoch(file);
        let is_cut = self.first_cut(file).is_some_and(|first| first <= at);
        let stripe = self.stripe(file, at);
        if is_cut || stripe.pushing || stripe.parts.is_empty() || !self.may_push(file) {
            return;
        }
        let stripe = self.stripe(file, at);
        stripe.pushing = true;
        let parts: Vec<Part> = stripe.parts.values().copied().collect();
        let push = PushNo(self.next_push);
        self.next_push += 1;
        self.pushes.insert(push, Pushing { file, stripe: at, parts: parts.clone() });
        self.actions.push_back(Action::Push { push, file, stripe: at, epoch, parts });
    }

    /// Brings a stripe to where it lies, if there is anything to bring: of those that have lain longest the
    /// driver knows.
    pub fn push_stripe(&mut self, file: FileNo, at: u64) {
        if self.files.get(&file).is_some_and(|file| file.stripes.contains_key(&at)) {
            self.push(file, at);
        }
    }

    /// The stripe that the log's oldest bytes are of, among those that `may` be brought.
    pub fn oldest(&self, may: impl Fn(FileNo, u64) -> bool) -> Option<(FileNo, u64)> {
        let with_seq = self.stripes().filter(|(file, at, _)| may(*file, *at));
        let with_seq = with_seq.filter_map(|(file, at, stripe)| {
            stripe.parts.values().map(|part| part.seq).min().map(|seq| (seq, file, at))
        });
        with_seq.min().map(|(_, file, at)| (file, at))
    }

    fn stripes(&self) -> impl Iterator<Item = (FileNo, u64, &Stripe<B>)> {
        self.files
            .iter()
            .flat_map(|(file, state)| state.stripes.iter().map(move |(at, stripe)| (*file, *at, stripe)))
    }

    /// What the log has and is not brought: of which file and stripe, and how many bytes.
    pub fn waiting(&self) -> impl Iterator<Item = (FileNo, u64, u64)> {
        let with_len = self.stripes().map(|(file, at, stripe)| {
            let len: u64 = stripe.parts.values().map(|part| part.len).sum();
            (file, at, len)
        });
        with_len.filter(|(.., len)| *len > 0)
    }

    /// A push came to nothing because the server's disk refused it: it is brought again when asked, and who
    /// waits for a lease there hears why.
    ///
    /// # Panics
    /// There was no such push.
    pub fn push_refused(&mut self, push: PushNo, errno: i32) {
        let pushing = self.pushes.get(&push).expect("a push is over once");
        let (file, stripe) = (pushing.file, pushing.stripe);
        self.refuse_leases(file, stripe, errno);
        self.pushed(push, false);
    }

    /// What a push brought is on media where it lies, or it came to nothing and is brought again when asked.
    ///
    /// # Panics
    /// There was no such push.
    pub fn pushed(&mut self, push: PushNo, is_durable: bool) {
        let Pushing { file, stripe: at, parts } = self.pushes.remove(&push).expect("a push is over once");
        let stripe = self.stripe(file, at);
        stripe.pushing = false;
        let upto = parts.iter().map(|part| part.seq).max();
        if let Some(upto) = upto.filter(|_| is_durable) {
            for part in parts {
                // What came after it is newer, and not there.
                cut(&mut stripe.parts, part.offset, part.offset + part.len, |now| now.seq == part.seq);
            }
            stripe.noting += 1;
            // The next life would bring it again, over what is newer there.
            self.append(Record::Brought { file, stripe: at, upto }, Appending::Other);
            self.sync(Syncing::Brought(file, at));
        }
        self.forget();
        self.go_on(file, at);
    }
}
