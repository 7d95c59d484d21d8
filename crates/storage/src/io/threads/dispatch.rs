//! What waits, which I/O thread gets it, and what becomes of transfers. Plain state; the I/O threads share it
//! under a lock.
//!
//! In: transfers, I/O threads that are free or asleep, settled pieces, the time. Out: requests for I/O
//! threads, I/O threads to be woken, transfers that ended.
//!
//! A request is *released* when the ordering policy and the slots let it start and an I/O thread has room: it
//! is in flight from then on, and that I/O thread is *owed* one. IoThreads that are awake release for
//! themselves; for an I/O thread that sleeps the others do, and wake it. So an I/O thread is woken only for a
//! request that is there for it, and a request that may start never waits for a sleeping I/O thread. Any I/O
//! thread that is owed one takes the one released first (under strict: of its own), so that requests leave
//! here in the order in which the policy let them go.
//!
//! Invariants: what is owed is what is released and not taken. An I/O thread has at most its share in flight,
//! stuck requests not counted, and with them never more than its engine takes.
//!
//! Left out: giving up what waits of a transfer after its first errno; it fails as quickly.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use haul_core::ids::Time;
use haul_core::io::OrderPolicy;
use haul_core::io::order::{self, Queue, REMEMBERED_MAX, Room};
use haul_core::io::slots::{Slots, TARGET_DEPTHS};

use super::super::{IoFile, IoKind, IoTarget, PARTS_MAX, Waker};
use super::request::{Piece, Request, Settled};
use super::{Assembly, ServiceStats, Transfer, TransferDone};
use crate::Stuck;

/// For so long requests are kept in the order in which they are taken, behind an I/O thread that is issuing.
/// Who is longer at it hangs in the kernel (FUSE may block a request that is handed over), and order is not
/// worth the wait.
const ISSUE_MAX: Duration = Duration::from_millis(100);
/// Most targets that are remembered: for their service, and for having refused uncached requests.
const TARGETS_MAX: usize = 4096;

/// All that the I/O threads share.
pub(super) struct Dispatch<T> {
    pub(super) request_size: u32,
    deadline: Duration,
    started: Instant,
    queue: Queue<IoTarget>,
    slots: Slots<IoTarget>,
    io_threads: Vec<IoThread>,
    /// So many of them are to be used.
    threads_wanted: usize,
    files: HashMap<FileKey, FileUse>,
    next_file: u64,
    /// Files without transfers, the longest so first, that keep their names: the order queue knows whose turn
    /// it is in them. Some may have transfers again.
    unused: VecDeque<FileKey>,
    transfers: HashMap<u64, Assembly<T>>,
    next_transfer: u64,
    waiting: HashMap<u64, Request>,
    next_request: u64,
    /// For any I/O thread that is owed one, or for one alone (strict).
    released: VecDeque<(Option<usize>, u64, Request)>,
    flying: HashMap<u64, Flying>,
    /// Files (by address) whose one write is in flight.
    written: HashSet<usize>,
    /// Requests of each target that wait or hold a slot.
    targets: HashMap<IoTarget, usize>,
    refused: HashSet<IoTarget>,
    service: BTreeMap<IoTarget, ServiceStats>,
    /// The I/O thread that issues requests where their order counts, and since when.
    issuing: Option<(usize, Instant)>,
    /// IoThreads that wait for it to be done.
    held_up: Vec<usize>,
    closed: bool,
}

/// What is kept in order together: address of the file, its part on one target, kind, uncached.
pub(super) type FileKey = (usize, IoTarget, u8, bool);

/// The order queue's name for it, and how many transfers use it.
struct FileUse {
    key: u64,
    transfers: usize,
    /// Keeps the address from being another file's.
    _address: Weak<IoFile>,
    /// It stands in `Dispatch::unused`.
    unused: bool,
}

struct IoThread {
    /// It gets requests; else it only ends what it has.
    used: bool,
    waker: Waker,
    /// Waits in its engine and can be woken.
    asleep: bool,
    broken: bool,
    owed: usize,
    /// Requests that it took, those that are stuck apart.
    running: usize,
    stuck: usize,
    /// Most with its engine.
    engine_depth: usize,
}

/// A request that is in flight.
struct Flying {
    file: Arc<IoFile>,
    target: IoTarget,
    kind: IoKind,
    offset: u64,
    since: Instant,
    /// Joined into one: what the order queue knows.
    ids: Vec<u64>,
    /// Who took it.
    io_thread: Option<usize>,
    stuck: bool,
}

impl<T> Dispatch<T> {
    pub(super) fn new(
        depth: usize,
        request_size: u32,
        order: OrderPolicy,
        deadline: Duration,
    ) -> Dispatch<T> {
        let mut queue = Queue::new(order, 0);
        queue.set_join_max(request_size);
        Dispatch {
            request_size,
            deadline,
            started: Instant::now(),
            queue,
            slots: Slots::new(u32::try_from(depth).unwrap_or(u32::MAX), TARGET_DEPTHS, 0),
            io_threads: Vec::new(),
            threads_wanted: usize::MAX,
            files: HashMap::new(),
            next_file: 0,
            unused: VecDeque::new(),
            transfers: HashMap::new(),
            next_transfer: 0,
            waiting: HashMap::new(),
            next_request: 0,
            released: VecDeque::new(),
            flying: HashMap::new(),
            written: HashSet::new(),
            targets: HashMap::new(),
            refused: HashSet::new(),
            service: BTreeMap::new(),
            issuing: None,
            held_up: Vec::new(),
            closed: false,
        }
    }

    /// One more I/O thread, and its index; its engine takes `engine_depth`, of which `stuck` may hang.
    pub(super) fn add_thread(&mut self, waker: Waker, engine_depth: usize, stuck: usize) -> usize {
        self.io_threads.push(IoThread {
            used: true,
            waker,
            asleep: false,
            broken: false,
            owed: 0,
            running: 0,
            stuck: 0,
            engine_depth,
        });
        self.set_threads(stuck);
        self.io_threads.len() - 1
    }

    /// The last I/O thread could not be started.
    pub(super) fn drop_thread(&mut self, stuck: usize) {
        self.io_threads.pop();
        self.set_threads(stuck);
    }

    fn set_threads(&mut self, stuck: usize) {
        let stuck_max = u32::try_from(stuck * self.io_threads.len()).unwrap_or(u32::MAX);
        self.slots.set_stuck_max(stuck_max);
        self.choose_threads();
    }

    /// From now on requests go to so many I/O threads, at least one; the others end what they have.
    pub(super) fn use_threads(&mut self, io_threads: usize) {
        self.threads_wanted = io_threads.max(1);
        self.choose_threads();
    }

    /// The first I/O threads whose engines work, as many as are wanted; where none works, they all say so.
    fn choose_threads(&mut self) {
        let works = |i: &usize| !self.io_threads[*i].broken;
        let mut chosen: Vec<usize> =
            (0..self.io_threads.len()).filter(works).take(self.threads_wanted).collect();
        if chosen.is_empty() {
            chosen = (0..self.io_threads.len()).collect();
        }
        for (i, io_thread) in self.io_threads.iter_mut().enumerate() {
            io_thread.used = chosen.contains(&i);
        }
        self.queue.set_threads(chosen);
    }

    fn threads_used(&self) -> usize {
        self.io_threads.iter().filter(|io_thread| io_thread.used).count()
    }

    pub(super) fn thread_count(&self) -> usize {
        self.io_threads.len()
    }

    pub(super) fn set_order(&mut self, order: OrderPolicy) {
        self.queue.set_policy(order);
    }

    pub(super) fn set_depth(&mut self, depth: usize) {
        self.slots.set_depth(u32::try_from(depth).unwrap_or(u32::MAX));
    }

    pub(super) fn set_request_size(&mut self, request_size: u32) {
        self.request_size = request_size;
        self.queue.set_join_max(request_size);
    }

    /// Whether an I/O thread may take requests and issue them now. Where they have to reach the engines in
    /// the order in which they are taken only one I/O thread does at a time, from here to
    /// [`Dispatch::issued`]; nobody waits for it under a lock. One that may not is woken when it may.
    pub(super) fn may_issue(&mut self, io_thread: usize, now: Instant) -> bool {
        if self.queue.policy() != OrderPolicy::Loose {
            return true;
        }
        let in_time = |since: Instant| now.saturating_duration_since(since) < ISSUE_MAX;
        if self.issuing.is_some_and(|(who, since)| who != io_thread && in_time(since)) {
            if !self.held_up.contains(&io_thread) {
                self.held_up.push(io_thread);
            }
            return false;
        }
        self.issuing = Some((io_thread, now));
        true
    }

    /// An I/O thread has issued what it took. Appends whom to wake.
    pub(super) fn issued(&mut self, io_thread: usize, wakes: &mut Vec<Waker>) {
        if self.issuing.is_some_and(|(who, _)| who == io_thread) {
            self.issuing = None;
        }
        for io_thread in std::mem::take(&mut self.held_up) {
            wakes.push(self.io_threads[io_thread].waker.clone());
        }
    }

    /// Whether [`Dispatch::issued`] is to be told of this I/O thread.
    pub(super) fn is_issuing(&self, io_thread: usize) -> bool {
        self.issuing.is_some_and(|(who, _)| who == io_thread)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Cuts a transfer into requests, which wait from now on.
    pub(super) fn submit(&mut self, transfer: Transfer<T>) {
        let Transfer { tag, file, target, kind, offset, buffer, start, len, pad, uncached } = transfer;
        let id = self.next_transfer;
        self.next_transfer += 1;
        let refused = uncached && self.refused.contains(&target);
        let asked = uncached && !refused;
        let file_key = (Arc::as_ptr(&file).addr(), target, kind as u8, asked);
        let next_file = &mut self.next_file;
        let file_use = self.files.entry(file_key).or_insert_with(|| {
            *next_file += 1;
            FileUse { key: *next_file, transfers: 0, _address: Arc::downgrade(&file), unused: false }
        });
        file_use.transfers += 1;
        let key = file_use.key;
        let buffer_len = buffer.as_slice().len();
        let parts = buffer.split(start, len, self.request_size as usize);
        let count = parts.len();
        let mut at = 0;
        for (i, part) in parts.into_iter().enumerate() {
            let piece = Piece { transfer: id, at, pad: if i + 1 == count { pad } else { 0 } };
            let place = offset.saturating_add(at as u64);
            let request = order::Request {
                id: self.next_request,
                file: key,
                target,
                offset: place,
                len: part.len() as u32,
            };
            at += part.len();
            self.next_request += 1;
            self.queue.push(request);
            let ours = Request::new((file.clone(), target), kind, place, asked, (piece, part));
            self.waiting.insert(request.id, ours);
        }
        *self.targets.entry(target).or_default() += count;
        let assembly = Assembly {
            tag,
            file,
            file_key,
            offset,
            start,
            len,
            buffer_len,
            settled: Vec::with_capacity(count),
            left: count,
            begun: None,
            ended: None,
            refused_uncached: refused,
        };
        self.transfers.insert(id, assembly);
    }

    /// Releases what may start: for `me`, which is awake, as long as it has room, then for those that sleep,
    /// least loaded first. Appends whom to wake, each once.
    pub(super) fn release(&mut self, me: Option<usize>, now: Instant, wakes: &mut Vec<Waker>) {
        self.tick(now);
        if let Some(me) = me {
            while self.release_one(me, now) {}
        }
        if self.queue.is_empty() {
            return;
        }
        let strict = self.queue.policy() == OrderPolicy::Strict;
        let mut idle: Vec<usize> =
            (0..self.io_threads.len()).filter(|i| self.io_threads[*i].asleep).collect();
        while !self.queue.is_empty() && !idle.is_empty() {
            idle.sort_by_key(|i| self.io_threads[*i].owed + self.io_threads[*i].running);
            let Some(at) = idle.iter().position(|i| self.may_take(*i)) else { break };
            let io_thread = idle[at];
            if self.release_one(io_thread, now) {
                let state = &mut self.io_threads[io_thread];
                // One that was owed something before was woken then, or is when it may issue.
                if state.owed == 1 {
                    wakes.push(state.waker.clone());
                }
            } else if strict {
                // Nothing is dealt to this one; perhaps to another.
                idle.remove(at);
            } else {
                break;
            }
        }
    }

    /// Whether an I/O thread has room for one more.
    fn may_take(&self, io_thread: usize) -> bool {
        let state = &self.io_threads[io_thread];
        let share = (self.slots.depth() as usize).div_ceil(self.threads_used().max(1));
        // Each target has a depth of its own.
        let share_max = share * self.targets.len().clamp(1, TARGET_DEPTHS as usize);
        let running = state.owed + state.running;
        state.used && running < share_max && running + state.stuck < state.engine_depth
    }

    fn release_one(&mut self, io_thread: usize, now: Instant) -> bool {
        if self.closed || !self.may_take(io_thread) {
            return false;
        }
        let Dispatch { queue, slots, waiting, written, .. } = self;
        let head = queue.next(io_thread, |request| {
            let ours = &waiting[&request.id];
            if !slots.may_start(request.target) {
                Room::TargetBusy
            } else if has_one_writer(ours) && written.contains(&Arc::as_ptr(&ours.file).addr()) {
                Room::FileBusy
            } else {
                Room::Free
            }
        });
        let Some(head) = head else { return false };
        let mut request = waiting.remove(&head.id).expect("what is in the queue waits");
        let (mut last, mut ids) = (head, vec![head.id]);
        while request.may_be_continued() && request.piece_count() < PARTS_MAX {
            let room = (self.request_size as usize).saturating_sub(request.len());
            let Some(next) = queue.take_adjacent(io_thread, &last, room as u32) else { break };
            request.append(waiting.remove(&next.id).expect("what is in the queue waits"));
            ids.push(next.id);
            last = next;
        }
        slots.start(head.id, head.target, time(self.started, now), self.deadline);
        if has_one_writer(&request) {
            written.insert(Arc::as_ptr(&request.file).addr());
        }
        // Joined requests are one from here on.
        lower(&mut self.targets, request.target, ids.len() - 1);
        let flying = Flying {
            file: request.file.clone(),
            target: request.target,
            kind: request.kind,
            offset: request.offset,
            since: now,
            ids,
            io_thread: None,
            stuck: false,
        };
        self.flying.insert(head.id, flying);
        let only = (queue.policy() == OrderPolicy::Strict).then_some(io_thread);
        self.released.push_back((only, head.id, request));
        self.io_threads[io_thread].owed += 1;
        true
    }

    /// A request for an I/O thread to issue now.
    pub(super) fn take(&mut self, io_thread: usize) -> Option<(u64, Request)> {
        if self.io_threads[io_thread].owed == 0 {
            return None;
        }
        // Its own first: nobody else may take those. (There are none, or only such, unless the policy
        // changed.)
        let place = |only| self.released.iter().position(|(of, ..)| *of == only);
        let at = place(Some(io_thread)).or_else(|| place(None))?;
        let (_, id, mut request) = self.released.remove(at).expect("it was just found");
        if request.uncached && self.refused.contains(&request.target) {
            request.uncached = false;
            self.mark_refused(&request);
        }
        let flying = self.flying.get_mut(&id).expect("what is released is in flight");
        flying.io_thread = Some(io_thread);
        let state = &mut self.io_threads[io_thread];
        state.owed -= 1;
        match flying.stuck {
            true => state.stuck += 1,
            false => state.running += 1,
        }
        Some((id, request))
    }

    /// An I/O thread goes to wait in its engine, unless there is something for it that it may issue.
    pub(super) fn sleep(&mut self, io_thread: usize) -> bool {
        let held_up = self.held_up.contains(&io_thread);
        let state = &mut self.io_threads[io_thread];
        state.asleep = state.owed == 0 || held_up;
        state.asleep
    }

    pub(super) fn wake_up(&mut self, io_thread: usize) {
        self.io_threads[io_thread].asleep = false;
    }

    /// An I/O thread's engine does not go on.
    pub(super) fn on_broken(&mut self, io_thread: usize) {
        if !std::mem::replace(&mut self.io_threads[io_thread].broken, true) {
            self.choose_threads();
        }
    }

    /// Takes the slots of those past their deadline.
    fn tick(&mut self, now: Instant) {
        if self.slots.tick(time(self.started, now)) == 0 {
            return;
        }
        for stuck in self.slots.stuck() {
            let Some(flying) = self.flying.get_mut(&stuck.id) else { continue };
            if std::mem::replace(&mut flying.stuck, true) {
                continue;
            }
            lower(&mut self.targets, flying.target, 1);
            if let Some(io_thread) = flying.io_thread {
                self.io_threads[io_thread].running -= 1;
                self.io_threads[io_thread].stuck += 1;
            }
        }
    }

    /// A request's time with the engine, when it came back.
    pub(super) fn on_answer(&mut self, target: IoTarget, service: Duration) {
        if self.service.len() < TARGETS_MAX || self.service.contains_key(&target) {
            let stats = self.service.entry(target).or_default();
            stats.count += 1;
            stats.total += service;
            stats.max = stats.max.max(service);
        }
    }

    /// The request's target refused it, because it was uncached; no other will try.
    pub(super) fn on_refused(&mut self, request: &Request) {
        if self.refused.len() < TARGETS_MAX {
            self.refused.insert(request.target);
        }
        self.mark_refused(request);
    }

    fn mark_refused(&mut self, request: &Request) {
        for transfer in request.transfers() {
            if let Some(assembly) = self.transfers.get_mut(&transfer) {
                assembly.refused_uncached = true;
            }
        }
    }

    /// Pieces that need nothing more. `times`: when the answer's operation was submitted and completed.
    pub(super) fn settle(
        &mut self,
        settled: impl IntoIterator<Item = Settled>,
        times: (Instant, Instant),
        done: &mut Vec<TransferDone<T>>,
    ) {
        for piece in settled {
            let id = piece.transfer;
            // Of a transfer that was dropped there is nothing to tell.
            let Some(assembly) = self.transfers.get_mut(&id) else { continue };
            if !assembly.take(piece, times) {
                continue;
            }
            let assembly = self.transfers.remove(&id).expect("it was just there");
            self.on_transfer_over(assembly.file_key);
            done.push(assembly.finish());
        }
    }

    fn on_transfer_over(&mut self, key: FileKey) {
        let file_use = self.files.get_mut(&key).expect("a file is known while it has transfers");
        file_use.transfers -= 1;
        if file_use.transfers == 0 && !std::mem::replace(&mut file_use.unused, true) {
            self.unused.push_back(key);
        }
        while self.unused.len() > REMEMBERED_MAX {
            let oldest = self.unused.pop_front().expect("longer than its bound");
            let file_use = self.files.get_mut(&oldest).expect("an unused file is kept");
            file_use.unused = false;
            if file_use.transfers == 0 {
                self.files.remove(&oldest);
            }
        }
    }

    /// A request is over; its slot is free.
    pub(super) fn on_over(&mut self, id: u64, now: Instant) {
        let flying = self.flying.remove(&id).expect("what is over was in flight");
        self.slots.end(id, time(self.started, now));
        for id in flying.ids {
            self.queue.on_completed(id);
        }
        if flying.file.one_writer && flying.kind == IoKind::Write {
            self.written.remove(&Arc::as_ptr(&flying.file).addr());
        }
        if !flying.stuck {
            lower(&mut self.targets, flying.target, 1);
        }
        if let Some(io_thread) = flying.io_thread {
            match flying.stuck {
                true => self.io_threads[io_thread].stuck -= 1,
                false => self.io_threads[io_thread].running -= 1,
            }
        }
    }

    /// Requests past their deadline, the oldest first.
    pub(super) fn stuck(&mut self, now: Instant) -> Vec<Stuck> {
        self.tick(now);
        let ids = self.slots.stuck().map(|stuck| stuck.id);
        ids.filter_map(|id| {
            // Those of an I/O thread that panicked are gone.
            let flying = self.flying.get(&id)?;
            Some(Stuck {
                what: match flying.kind {
                    IoKind::Read => "read",
                    IoKind::Write => "write",
                    IoKind::Sync => "sync",
                },
                name: flying.file.name.to_string(),
                offset: flying.offset,
                since: now.saturating_duration_since(flying.since),
            })
        })
        .collect()
    }

    pub(super) fn service(&self) -> Vec<(IoTarget, ServiceStats)> {
        self.service.iter().map(|(target, stats)| (*target, *stats)).collect()
    }

    /// IoThreads that wait in their engines.
    #[cfg(test)]
    pub(super) fn asleep(&self) -> usize {
        self.io_threads.iter().filter(|io_thread| io_thread.asleep).count()
    }

    /// IoThreads without an engine that works.
    #[cfg(test)]
    pub(super) fn broken(&self) -> usize {
        self.io_threads.iter().filter(|io_thread| io_thread.broken).count()
    }

    /// An I/O thread panicked. What it left half done is no base to go on from: nothing is taken from now on,
    /// and nothing that is here is ever answered. Returns all of it, to be dropped without the lock, and
    /// appends whom to wake.
    pub(super) fn abandon(
        &mut self,
        io_thread: usize,
        wakes: &mut Vec<Waker>,
    ) -> (Vec<Request>, Vec<Assembly<T>>) {
        let (requests, mut transfers) = self.close(wakes);
        transfers.extend(self.transfers.drain().map(|(_, assembly)| assembly));
        // Nobody brings these back.
        self.flying.retain(|_, flying| flying.io_thread != Some(io_thread));
        (requests, transfers)
    }

    /// Nothing is taken from now on. Returns what was not begun, to be dropped without the lock, and appends
    /// whom to wake.
    pub(super) fn close(&mut self, wakes: &mut Vec<Waker>) -> (Vec<Request>, Vec<Assembly<T>>) {
        self.closed = true;
        let mut requests: Vec<Request> = self.waiting.drain().map(|(_, request)| request).collect();
        for (_, id, request) in std::mem::take(&mut self.released) {
            self.flying.remove(&id);
            self.slots.end(id, Time::default());
            requests.push(request);
        }
        for io_thread in &mut self.io_threads {
            io_thread.owed = 0;
            wakes.push(io_thread.waker.clone());
        }
        let lost: HashSet<u64> = requests.iter().flat_map(Request::transfers).collect();
        let transfers = lost.iter().filter_map(|id| self.transfers.remove(id)).collect();
        (requests, transfers)
    }
}

fn has_one_writer(request: &Request) -> bool {
    request.file.one_writer && request.kind == IoKind::Write
}

fn time(started: Instant, now: Instant) -> Time {
    Time::default().after(now.saturating_duration_since(started))
}

/// Takes `count` from a target's; forgets it at none.
fn lower(targets: &mut HashMap<IoTarget, usize>, target: IoTarget, count: usize) {
    if count == 0 {
        return;
    }
    let left = targets.get_mut(&target).expect("a target is known while it has requests");
    *left -= count;
    if *left == 0 {
        targets.remove(&target);
    }
}
