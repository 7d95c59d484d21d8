//! Which request may be issued next, and by which thread: the ordering policies as XDD's papers define them.
//!
//! In: requests in whatever order they come, threads that ask for one, completions. Out: requests, each once.
//! What waits is ordered by offset within its file; an offset that was not pushed is never waited for, since
//! at a sink the object that brings it may need a buffer that others hold. Targets take turns, and the files
//! of a target take turns, so that none starves.
//!
//! - *Strict*: a file's k-th request is dealt to thread k modulo threads when it is pushed, and nobody else
//!   takes it, so that a reader which pushes in order has its offsets dealt round-robin. A thread takes its
//!   own in ascending order and never heeds another's. The second file begins at the second thread, and so
//!   on, or small files would all fall to the first. What waits is dealt anew, by offset, when the threads or
//!   the policy change.
//! - *Serial*: the lowest offset, and only when nothing of its file is in flight.
//! - *Loose*: the lowest offset. It is the caller's to issue requests in the order in which he got them.
//! - *None*: whatever is next. That is the lowest offset too, for neighbours can then be joined, but nobody
//!   may build on it, and the caller need keep no order between getting a request and issuing it.
//!
//! Requests side by side may go to storage as one ([`Queue::take_adjacent`]); the policies see them as one.
//!
//! Invariant: a file stands once in the ring of a class (a thread under strict, else all threads together) if
//! it has something that the class may take as far as the policy goes, and perhaps if it had. So a step costs
//! the logarithm of what waits, and one look at each target and file that the caller turns away.
//!
//! Left out: a bound of what waits. Who pushes holds a buffer for it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hash;

use super::OrderPolicy;

/// Most files that have nothing here any more, but whose turn to be dealt is remembered (strict).
pub const REMEMBERED_MAX: usize = 1024;

/// One request to storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<T> {
    /// The caller's, unique among those that wait or are in flight.
    pub id: u64,
    /// What is kept in order: a file. (With layouts: a file's part on one target.)
    pub file: u64,
    /// Where it goes; all requests of a `file` go to the same.
    pub target: T,
    pub offset: u64,
    pub len: u32,
}

/// Whether the caller can have a request start now. The answer is good for the whole file or target, as long
/// as one call of [`Queue::next`] lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    Free,
    /// Nothing of this file may start (it has its one writer).
    FileBusy,
    /// Nothing of this target may start (its slots are taken).
    TargetBusy,
}

/// What waits, and who may take it. See the module's head.
#[derive(Clone, Debug)]
pub struct Queue<T> {
    policy: OrderPolicy,
    /// The threads that live; under strict, class i is the i-th of them.
    threads: Vec<usize>,
    join_max: u32,
    files: BTreeMap<u64, File<T>>,
    /// One per thread under strict, else one.
    classes: Vec<Class<T>>,
    /// The file of each request that was taken and has not completed.
    in_flight: HashMap<u64, u64>,
    waiting: usize,
    /// The class at which the next new file begins to be dealt.
    begin: usize,
    /// Files without requests, the longest so first; some may have requests again.
    remembered: VecDeque<u64>,
}

/// A file with requests that wait or are in flight, or (strict) whose turn is remembered.
#[derive(Clone, Debug)]
struct File<T> {
    target: T,
    /// By class, then offset and id.
    waiting: Vec<BTreeMap<(u64, u64), Request<T>>>,
    /// By class: whether the file stands in its ring.
    queued: Vec<bool>,
    in_flight: usize,
    /// The class that gets the next request.
    turn: usize,
    /// Where the requests that were dealt last end, if they are side by side, and their bytes.
    run: Option<(u64, u32)>,
    /// It stands in `Queue::remembered`.
    remembered: bool,
}

/// The requests that the same threads may take: targets, and files of each, in the order of their turns.
#[derive(Clone, Debug)]
struct Class<T> {
    targets: VecDeque<T>,
    rings: HashMap<T, VecDeque<u64>>,
}

impl<T> Default for Class<T> {
    fn default() -> Class<T> {
        Class { targets: VecDeque::new(), rings: HashMap::new() }
    }
}

impl<T: Copy + Eq + Hash> Queue<T> {
    /// An empty queue for the threads 0 to `threads`.
    pub fn new(policy: OrderPolicy, threads: usize) -> Queue<T> {
        let mut queue = Queue {
            policy,
            threads: (0..threads).collect(),
            join_max: 0,
            files: BTreeMap::new(),
            classes: Vec::new(),
            in_flight: HashMap::new(),
            waiting: 0,
            begin: 0,
            remembered: VecDeque::new(),
        };
        queue.classes = vec![Class::default(); queue.class_count()];
        queue
    }

    /// Requests that arrive one after another and lie side by side are dealt to one thread as long as they
    /// are no longer than this together, so that it can join them; 0 (at first): each is dealt on its own.
    pub fn set_join_max(&mut self, len: u32) {
        self.join_max = len;
    }

    /// Switches the policy for all that waits. What is in flight still counts.
    pub fn set_policy(&mut self, policy: OrderPolicy) {
        if self.policy != policy {
            self.policy = policy;
            self.deal_anew();
        }
    }

    pub fn policy(&self) -> OrderPolicy {
        self.policy
    }

    /// The threads that live from now on: one ended, or was added. Requests that were taken stay with who has
    /// them.
    pub fn set_threads(&mut self, threads: impl IntoIterator<Item = usize>) {
        self.threads = threads.into_iter().collect();
        self.threads.sort_unstable();
        self.threads.dedup();
        if self.policy == OrderPolicy::Strict {
            self.deal_anew();
        }
    }

    /// Requests that wait.
    pub fn len(&self) -> usize {
        self.waiting
    }

    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Requests that were taken and have not completed.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Adds a request. Says which thread alone may take it; `None`: any.
    pub fn push(&mut self, request: Request<T>) -> Option<usize> {
        let class_count = self.class_count();
        if !self.files.contains_key(&request.file) {
            self.files.insert(request.file, File::new(request.target, self.begin, class_count));
            self.begin = (self.begin + 1) % class_count;
        }
        let file = self.files.get_mut(&request.file).expect("it was just put there");
        debug_assert!(file.target == request.target, "a file has one target");
        let class = file.deal(&request, self.join_max, class_count);
        file.waiting[class].insert((request.offset, request.id), request);
        self.waiting += 1;
        if self.policy != OrderPolicy::Serial || file.in_flight == 0 {
            file.enqueue(request.file, class, &mut self.classes[class]);
        }
        if self.policy == OrderPolicy::Strict { self.threads.get(class).copied() } else { None }
    }

    /// The request that `thread` is to issue now, in flight from here on; `None` if there is none that the
    /// policy lets it have and `may` has room for.
    pub fn next(&mut self, thread: usize, mut may: impl FnMut(&Request<T>) -> Room) -> Option<Request<T>> {
        let class = self.class_of(thread)?;
        let mut at = 0;
        while let Some(&target) = self.classes[class].targets.get(at) {
            if let Some(request) = self.next_of(class, target, &mut may) {
                let Class { targets, rings } = &mut self.classes[class];
                targets.remove(at);
                if rings.contains_key(&target) {
                    targets.push_back(target);
                }
                return Some(request);
            }
            if self.classes[class].rings.contains_key(&target) {
                at += 1;
            } else {
                self.classes[class].targets.remove(at);
            }
        }
        None
    }

    /// The request that begins where `last`, which `thread` took just now, ends: to be issued as one with it.
    /// Only the next in order of the file, if it has at most `len_max` bytes. In flight from here on.
    pub fn take_adjacent(&mut self, thread: usize, last: &Request<T>, len_max: u32) -> Option<Request<T>> {
        let class = self.class_of(thread)?;
        let file = self.files.get_mut(&last.file)?;
        let (&key, &request) = file.waiting[class].first_key_value()?;
        if request.offset != end_of(last) || request.len > len_max {
            return None;
        }
        file.waiting[class].remove(&key);
        file.in_flight += 1;
        self.waiting -= 1;
        self.in_flight.insert(request.id, request.file);
        Some(request)
    }

    /// A request that was taken has completed (or failed, or was given up). Unknown ids are ignored.
    pub fn on_completed(&mut self, id: u64) {
        let Some(key) = self.in_flight.remove(&id) else { return };
        let file = self.files.get_mut(&key).expect("a file with requests in flight is kept");
        file.in_flight -= 1;
        if file.in_flight == 0 {
            if self.policy == OrderPolicy::Serial && !file.waiting[0].is_empty() {
                file.enqueue(key, 0, &mut self.classes[0]);
            }
            self.forget_if_over(key);
        }
    }

    /// The next of one target. Removes what has no place in its ring any more, and the ring if it is empty.
    fn next_of(
        &mut self,
        class: usize,
        target: T,
        may: &mut impl FnMut(&Request<T>) -> Room,
    ) -> Option<Request<T>> {
        let mut at = 0;
        let mut taken = None;
        while let Some(&key) = self.classes[class].rings.get(&target).and_then(|ring| ring.get(at)) {
            let file = self.files.get_mut(&key).expect("a file in a ring is kept");
            let head = file.waiting[class].first_key_value().map(|(key, request)| (*key, *request));
            let room = head.map(|(_, request)| may(&request));
            match room {
                Some(Room::FileBusy) => {
                    at += 1;
                    continue;
                }
                Some(Room::TargetBusy) => return None,
                Some(Room::Free) | None => {}
            }
            let ring = self.classes[class].rings.get_mut(&target).expect("it was just looked at");
            ring.remove(at);
            file.queued[class] = false;
            if let Some((place, request)) = head {
                file.waiting[class].remove(&place);
                file.in_flight += 1;
                self.waiting -= 1;
                self.in_flight.insert(request.id, key);
                // Under serial its completion puts the file back.
                if self.policy != OrderPolicy::Serial && !file.waiting[class].is_empty() {
                    ring.push_back(key);
                    file.queued[class] = true;
                }
                taken = Some(request);
            }
            if ring.is_empty() {
                self.classes[class].rings.remove(&target);
            }
            if taken.is_some() {
                break;
            }
            self.forget_if_over(key);
        }
        taken
    }

    /// Deals all that waits as if it came now, by offset.
    fn deal_anew(&mut self) {
        let class_count = self.class_count();
        self.classes = vec![Class::default(); class_count];
        self.remembered.clear();
        self.begin = 0;
        let files = std::mem::take(&mut self.files);
        for (key, old) in files {
            let requests: BTreeMap<_, _> = old.waiting.into_iter().flatten().collect();
            if requests.is_empty() && old.in_flight == 0 {
                continue;
            }
            let mut file = File::new(old.target, self.begin, class_count);
            self.begin = (self.begin + 1) % class_count;
            file.in_flight = old.in_flight;
            for (place, request) in requests {
                let class = file.deal(&request, self.join_max, class_count);
                file.waiting[class].insert(place, request);
                if self.policy != OrderPolicy::Serial || file.in_flight == 0 {
                    file.enqueue(key, class, &mut self.classes[class]);
                }
            }
            self.files.insert(key, file);
        }
    }

    /// Drops a file that has nothing here any more; under strict only from so many on.
    fn forget_if_over(&mut self, key: u64) {
        let Some(file) = self.files.get_mut(&key).filter(|file| file.is_over()) else { return };
        if self.policy != OrderPolicy::Strict {
            self.files.remove(&key);
            return;
        }
        if !file.remembered {
            file.remembered = true;
            self.remembered.push_back(key);
        }
        while self.remembered.len() > REMEMBERED_MAX {
            let oldest = self.remembered.pop_front().expect("longer than its bound");
            if let Some(file) = self.files.get_mut(&oldest) {
                file.remembered = false;
                if file.is_over() {
                    self.files.remove(&oldest);
                }
            }
        }
    }

    fn class_count(&self) -> usize {
        // Without threads what waits is kept in one class, which nobody has.
        if self.policy == OrderPolicy::Strict { self.threads.len().max(1) } else { 1 }
    }

    fn class_of(&self, thread: usize) -> Option<usize> {
        match self.policy {
            OrderPolicy::Strict => self.threads.binary_search(&thread).ok(),
            _ => Some(0),
        }
    }
}

impl<T: Copy + Eq + Hash> File<T> {
    fn new(target: T, turn: usize, class_count: usize) -> File<T> {
        File {
            target,
            waiting: vec![BTreeMap::new(); class_count],
            queued: vec![false; class_count],
            in_flight: 0,
            turn,
            run: None,
            remembered: false,
        }
    }

    /// The class that gets this request.
    fn deal(&mut self, request: &Request<T>, join_max: u32, class_count: usize) -> usize {
        let joined = self.run.filter(|(end, _)| *end == request.offset);
        let joined = joined.and_then(|(_, len)| len.checked_add(request.len)).filter(|len| *len <= join_max);
        self.run = Some((end_of(request), joined.unwrap_or(request.len)));
        if joined.is_some() {
            return (self.turn + class_count - 1) % class_count;
        }
        let class = self.turn;
        self.turn = (class + 1) % class_count;
        class
    }

    /// Puts the file at the end of a ring, if it is not in it.
    fn enqueue(&mut self, key: u64, class: usize, to: &mut Class<T>) {
        if std::mem::replace(&mut self.queued[class], true) {
            return;
        }
        let ring = to.rings.entry(self.target).or_default();
        if ring.is_empty() {
            to.targets.push_back(self.target);
        }
        ring.push_back(key);
    }

    fn is_over(&self) -> bool {
        self.in_flight == 0
            && self.waiting.iter().all(BTreeMap::is_empty)
            && self.queued.iter().all(|queued| !queued)
    }
}

/// The byte after the last.
fn end_of<T>(request: &Request<T>) -> u64 {
    request.offset.saturating_add(u64::from(request.len))
}

#[cfg(test)]
#[path = "order_tests.rs"]
mod tests;
