use std::collections::{HashSet, VecDeque};

use super::*;

const STRICT: OrderPolicy = OrderPolicy::Strict;
const SERIAL: OrderPolicy = OrderPolicy::Serial;

fn request(id: u64, file: u64, offset: u64) -> Request<u64> {
    Request { id, file, target: file % 2, offset, len: 10 }
}

/// What the caller turns away in a step.
#[derive(Clone, Copy, Default)]
struct Busy {
    file: Option<u64>,
    target: Option<u64>,
}

impl Busy {
    fn room(self, request: &Request<u64>) -> Room {
        if self.target == Some(request.target) {
            Room::TargetBusy
        } else if self.file == Some(request.file) {
            Room::FileBusy
        } else {
            Room::Free
        }
    }
}

/// The queue beside lists that are searched from end to end.
#[derive(Clone)]
struct World {
    queue: Queue<u64>,
    policy: OrderPolicy,
    threads: Vec<usize>,
    /// With the thread that it was dealt to (strict).
    waiting: Vec<(Request<u64>, usize)>,
    in_flight: Vec<Request<u64>>,
    /// Files in the order in which they came first, and how many requests came since they were dealt.
    dealt: Vec<(u64, usize)>,
}

impl World {
    fn new(policy: OrderPolicy, threads: usize) -> World {
        World {
            queue: Queue::new(policy, threads),
            policy,
            threads: (0..threads).collect(),
            waiting: Vec::new(),
            in_flight: Vec::new(),
            dealt: Vec::new(),
        }
    }

    fn deal(&mut self, file: u64) -> usize {
        let at = self.dealt.iter().position(|(known, _)| *known == file).unwrap_or_else(|| {
            self.dealt.push((file, 0));
            self.dealt.len() - 1
        });
        self.dealt[at].1 += 1;
        self.threads[(at + self.dealt[at].1 - 1) % self.threads.len()]
    }

    fn push(&mut self, request: Request<u64>) {
        let thread = self.deal(request.file);
        self.waiting.push((request, thread));
        let told = self.queue.push(request);
        assert_eq!(told, (self.policy == STRICT).then_some(thread));
    }

    /// All that the definitions allow `thread` to issue now: at most one of each file.
    fn allowed(&self, thread: usize, busy: Busy) -> Vec<Request<u64>> {
        let mut allowed: Vec<Request<u64>> = Vec::new();
        let mut waiting: Vec<_> = self.waiting.iter().collect();
        waiting.sort_by_key(|(request, _)| (request.offset, request.id));
        for (request, dealt_to) in waiting {
            let mine = self.policy != STRICT || *dealt_to == thread;
            let held = self.policy == SERIAL && self.in_flight.iter().any(|other| other.file == request.file);
            let first = !allowed.iter().any(|other| other.file == request.file);
            if mine && !held && first && busy.room(request) == Room::Free {
                allowed.push(*request);
            }
        }
        allowed
    }

    fn next(&mut self, thread: usize, busy: Busy) -> Option<Request<u64>> {
        let allowed = self.allowed(thread, busy);
        let taken = self.queue.next(thread, |request| busy.room(request));
        match taken {
            Some(request) => {
                assert!(allowed.contains(&request), "{request:?} is not one of {allowed:?}");
                self.waiting.retain(|(other, _)| *other != request);
                self.in_flight.push(request);
            }
            None => assert!(allowed.is_empty(), "thread {thread} waits though {allowed:?} may start"),
        }
        taken
    }

    fn complete(&mut self, at: usize) {
        let request = self.in_flight.remove(at);
        self.queue.on_completed(request.id);
    }

    /// As after a switch: all that waits is dealt by file and offset.
    fn deal_anew(&mut self) {
        self.dealt.clear();
        let mut waiting: Vec<_> = std::mem::take(&mut self.waiting);
        waiting.sort_by_key(|(request, _)| (request.file, request.offset, request.id));
        // Files of which something is in flight have their turn too.
        let mut files: Vec<u64> = waiting.iter().map(|(request, _)| request.file).collect();
        files.extend(self.in_flight.iter().map(|request| request.file));
        files.sort_unstable();
        files.dedup();
        self.dealt = files.into_iter().map(|file| (file, 0)).collect();
        self.waiting = waiting.into_iter().map(|(request, _)| (request, self.deal(request.file))).collect();
    }

    fn check(&self) {
        assert_eq!(self.queue.len(), self.waiting.len());
        assert_eq!(self.queue.in_flight(), self.in_flight.len());
    }
}

/// Every schedule from here on.
fn explore(world: &World, to_push: &[Request<u64>], worlds: &mut u64) {
    *worlds += 1;
    world.check();
    if let Some((request, rest)) = to_push.split_first() {
        let mut next = world.clone();
        next.push(*request);
        explore(&next, rest, worlds);
    }
    for busy in [Busy::default(), Busy { file: Some(1), target: None }, Busy { file: None, target: Some(0) }]
    {
        for thread in 0..world.threads.len() {
            let mut next = world.clone();
            if next.next(thread, busy).is_some() {
                explore(&next, to_push, worlds);
            }
        }
    }
    for at in 0..world.in_flight.len() {
        let mut next = world.clone();
        next.complete(at);
        explore(&next, to_push, worlds);
    }
}

/// Goal: each policy allows what its definition says, no more and no less, whoever asks when.
/// Method: every schedule of pushes, takes and completions of all orders of arrival in two worlds (three
/// requests of one file; two of one and one of another), against lists.
#[test]
fn small_worlds_follow_the_definitions() {
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    let mut worlds = 0;
    for policy in OrderPolicy::ALL {
        // Only strict tells threads apart.
        for threads in 1..=if policy == STRICT { 3 } else { 1 } {
            for order in orders {
                for files in [[1, 1, 1], [1, 2, 1]] {
                    let to_push: Vec<_> =
                        order.iter().map(|i| request(*i, files[*i as usize], i * 10)).collect();
                    explore(&World::new(policy, threads), &to_push, &mut worlds);
                }
            }
        }
    }
    assert!(worlds > 50_000, "{worlds}");
}

/// Goal: the same in large worlds, with switches of policy and threads that come and go under way.
/// Method: seeded schedules of 400 steps, several files, any order of arrival, against lists.
#[test]
fn random_schedules_follow_the_definitions() {
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut world = World::new(OrderPolicy::ALL[seed as usize % 4], rng.usize(1..6));
        let mut offsets: Vec<u64> = (0..300).collect();
        rng.shuffle(&mut offsets);
        let mut id = 0;
        for _ in 0..400 {
            match rng.u32(0..100) {
                0..40 if id < 300 => {
                    world.push(request(id, rng.u64(0..4), offsets[id as usize] * 10));
                    id += 1;
                }
                0..75 => {
                    let busy = Busy {
                        file: rng.bool().then(|| rng.u64(0..4)),
                        target: (rng.u32(0..4) == 0).then(|| rng.u64(0..2)),
                    };
                    let thread = world.threads[rng.usize(0..world.threads.len())];
                    world.next(thread, busy);
                }
                75..98 => {
                    if !world.in_flight.is_empty() {
                        world.complete(rng.usize(0..world.in_flight.len()));
                    }
                }
                98 => {
                    let policy = OrderPolicy::ALL[rng.usize(0..4)];
                    world.queue.set_policy(policy);
                    if policy != world.policy {
                        world.policy = policy;
                        world.deal_anew();
                    }
                }
                _ => {
                    let threads: Vec<usize> = (0..6).filter(|_| rng.bool()).collect();
                    if !threads.is_empty() {
                        world.queue.set_threads(threads.clone());
                        world.threads = threads;
                        if world.policy == STRICT {
                            world.deal_anew();
                        } else {
                            // Who would get it shows only after a switch, which deals anew.
                            world.dealt.clear();
                        }
                    }
                }
            }
            world.check();
        }
    }
}

/// What was issued, by whom, and what was in flight then.
struct Issue {
    thread: usize,
    request: Request<u64>,
    in_flight: Vec<Request<u64>>,
    waiting: Vec<Request<u64>>,
}

/// A sequential reader pushes in order; threads and completions come at random.
fn sequential_trace(policy: OrderPolicy, threads: usize, stalled: Option<usize>, seed: u64) -> Vec<Issue> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut queue = Queue::new(policy, threads);
    let (mut waiting, mut in_flight, mut trace) = (Vec::new(), Vec::new(), Vec::new());
    let mut pushed = 0;
    for _ in 0..2000 {
        match rng.u32(0..3) {
            0 if pushed < 200 => {
                let next = request(pushed, 7, pushed * 10);
                queue.push(next);
                waiting.push(next);
                pushed += 1;
            }
            0 | 1 => {
                let thread = rng.usize(0..threads);
                if Some(thread) == stalled {
                    continue;
                }
                if let Some(request) = queue.next(thread, |_| Room::Free) {
                    trace.push(Issue {
                        thread,
                        request,
                        in_flight: in_flight.clone(),
                        waiting: waiting.clone(),
                    });
                    waiting.retain(|other| *other != request);
                    in_flight.push(request);
                }
            }
            _ => {
                if !in_flight.is_empty() {
                    let request: Request<u64> = in_flight.swap_remove(rng.usize(0..in_flight.len()));
                    queue.on_completed(request.id);
                }
            }
        }
    }
    trace
}

/// Goal: strict is XDD's: thread t issues the offsets t, t + n, t + 2n, .. in this order and no other.
/// Method: traces of a sequential reader on 1 to 5 threads.
#[test]
fn strict_deals_offsets_round_robin() {
    for seed in 0..50 {
        let threads = 1 + seed as usize % 5;
        let trace = sequential_trace(STRICT, threads, None, seed);
        assert_eq!(trace.len(), 200);
        for thread in 0..threads {
            let issued: Vec<u64> =
                trace.iter().filter(|i| i.thread == thread).map(|i| i.request.offset / 10).collect();
            let class: Vec<u64> = (thread as u64..200).step_by(threads).collect();
            assert_eq!(issued, class);
        }
    }
}

/// Goal: under strict a thread that stalls holds up nobody.
/// Method: one thread never asks; the others issue all of theirs.
#[test]
fn strict_does_not_wait_for_a_stalled_thread() {
    for seed in 0..20 {
        let trace = sequential_trace(STRICT, 4, Some(1), seed);
        for thread in [0, 2, 3] {
            assert_eq!(trace.iter().filter(|i| i.thread == thread).count(), 50, "seed {seed}");
        }
        assert!(trace.iter().all(|i| i.thread != 1));
    }
}

/// Goal: serial never has two of a file in flight, and goes up.
/// Method: traces of a sequential reader.
#[test]
fn serial_waits_for_the_one_before() {
    for seed in 0..20 {
        let trace = sequential_trace(SERIAL, 3, None, seed);
        assert!(trace.len() > 100);
        assert!(trace.iter().all(|issue| issue.in_flight.is_empty()));
        assert!(trace.windows(2).all(|pair| pair[0].request.offset < pair[1].request.offset));
    }
}

/// Goal: loose goes up over all threads together, and waits for no completion.
/// Method: traces of a sequential reader.
#[test]
fn loose_releases_in_order_and_waits_for_nothing() {
    for seed in 0..20 {
        let trace = sequential_trace(OrderPolicy::Loose, 3, None, seed);
        assert_eq!(trace.len(), 200);
        assert!(trace.iter().any(|issue| issue.in_flight.len() > 3));
        for issue in trace {
            assert!(issue.waiting.iter().all(|other| issue.request.offset <= other.offset));
        }
    }
}

/// Goal: what a sink did not get holds nothing up, whatever the policy.
/// Method: every second offset, from the end to the beginning; all of it is issued.
#[test]
fn missing_offsets_are_not_waited_for() {
    for policy in OrderPolicy::ALL {
        let mut queue = Queue::new(policy, 3);
        for i in (0..20).rev() {
            queue.push(request(i, 1, i * 20));
        }
        let mut issued = HashSet::new();
        for turn in 0..100 {
            if let Some(request) = queue.next(turn % 3, |_| Room::Free) {
                issued.insert(request.id);
                queue.on_completed(request.id);
            }
        }
        assert_eq!(issued.len(), 20, "{policy}");
        assert!(queue.is_empty());
    }
}

/// Goal: no file and no target starves, though others with lower and higher numbers never end.
/// Method: new files arrive with each take; the old ones are taken within as many takes as files waited.
#[test]
fn files_and_targets_take_turns() {
    for policy in [OrderPolicy::Serial, OrderPolicy::Loose, OrderPolicy::None] {
        let mut queue = Queue::new(policy, 1);
        let mut id = 0;
        let mut push = |queue: &mut Queue<u64>, file: u64, target: u64| {
            queue.push(Request { id, file, target, offset: id, len: 1 });
            id += 1;
        };
        for _ in 0..100 {
            push(&mut queue, 49, 0);
        }
        for _ in 0..5 {
            push(&mut queue, 50, 0);
            push(&mut queue, 51, 1);
        }
        let mut old = VecDeque::new();
        for step in 0..60 {
            // Target 0 is crowded, target 1 has the one file.
            push(&mut queue, 100 + step, 0);
            push(&mut queue, step % 49, 0);
            let taken = queue.next(0, |_| Room::Free).unwrap();
            queue.on_completed(taken.id);
            if taken.file == 50 || taken.file == 51 {
                old.push_back((step, taken.file));
            }
        }
        let of_crowded = old.iter().find(|(_, file)| *file == 50).map(|(step, _)| *step);
        let of_other: Vec<u64> = old.iter().filter(|(_, file)| *file == 51).map(|(step, _)| *step).collect();
        assert_eq!(of_crowded, Some(2), "{policy}: the second turn of its target");
        assert_eq!(of_other, [1, 3, 5, 7, 9], "{policy}: each second turn is the other target's");
    }
}

/// Goal: a thread joins what lies side by side, and strict deals it so that it can.
/// Method: pieces of 10 in order, joined to 40, on two threads; each thread gets whole runs.
#[test]
fn neighbours_are_taken_as_one() {
    for policy in OrderPolicy::ALL {
        let mut queue = Queue::new(policy, 2);
        queue.set_join_max(40);
        for i in 0..16 {
            queue.push(request(i, 1, i * 10));
        }
        for turn in 0..4 {
            let thread = turn % 2;
            let mut joined = vec![queue.next(thread, |_| Room::Free).unwrap()];
            while let Some(next) =
                queue.take_adjacent(thread, joined.last().unwrap(), 40 - 10 * joined.len() as u32)
            {
                joined.push(next);
            }
            let ids: Vec<u64> = joined.iter().map(|request| request.id).collect();
            let first = 4 * turn as u64;
            assert_eq!(ids, [first, first + 1, first + 2, first + 3], "{policy}");
            if policy == SERIAL {
                for id in ids {
                    assert!(queue.next(thread, |_| Room::Free).is_none());
                    queue.on_completed(id);
                }
            }
        }
        assert!(queue.is_empty());
    }
}

/// Goal: a gap, a file's end and the limit stop joining.
#[test]
fn only_neighbours_are_joined() {
    let mut queue = Queue::new(OrderPolicy::None, 1);
    for (id, file, offset) in [(0, 1, 0), (1, 1, 20), (2, 3, 10), (3, 1, 30)] {
        queue.push(request(id, file, offset));
    }
    let first = queue.next(0, |_| Room::Free).unwrap();
    assert_eq!(first.id, 0);
    assert_eq!(queue.take_adjacent(0, &first, 100), None);
    let _other = queue.next(0, |_| Room::Free).unwrap();
    let second = queue.next(0, |_| Room::Free).unwrap();
    assert_eq!(second.id, 1);
    assert_eq!(queue.take_adjacent(0, &second, 9), None);
    assert_eq!(queue.take_adjacent(0, &second, 10).map(|request| request.id), Some(3));
}

/// Goal: with a reader slower than its threads, strict still deals round-robin, and many files leave little.
/// Method: each request completes before the next is pushed; then more files than are remembered.
#[test]
fn strict_remembers_whose_turn_it_is_but_not_for_ever() {
    let mut queue = Queue::new(STRICT, 3);
    for i in 0..12 {
        assert_eq!(queue.push(request(i, 0, i * 10)), Some(i as usize % 3));
        let taken = queue.next(i as usize % 3, |_| Room::Free).unwrap();
        queue.on_completed(taken.id);
    }
    for file in 1..3 * REMEMBERED_MAX as u64 {
        let thread = queue.push(request(file, file, 0)).unwrap();
        assert_eq!(thread, file as usize % 3, "files begin at one thread after another");
        let taken = queue.next(thread, |_| Room::Free).unwrap();
        queue.on_completed(taken.id);
    }
    assert_eq!(queue.files.len(), REMEMBERED_MAX);
    assert!(queue.remembered.len() <= REMEMBERED_MAX);
    queue.set_policy(OrderPolicy::None);
    assert!(queue.files.is_empty());
}

/// Goal: thousands of requests that may not start cost one look at their target, not one each.
/// Method: 10,000 files of a busy target and one of another; the looks are counted.
#[test]
fn what_is_turned_away_is_not_looked_at_one_by_one() {
    let mut queue = Queue::new(OrderPolicy::None, 1);
    for file in 0..10_000 {
        queue.push(Request { id: file, file, target: 0, offset: 0, len: 1 });
    }
    queue.push(Request { id: 10_000, file: 10_000, target: 1, offset: 0, len: 1 });
    let mut looks = 0;
    let taken = queue.next(0, |request| {
        looks += 1;
        if request.target == 0 { Room::TargetBusy } else { Room::Free }
    });
    assert_eq!((taken.map(|request| request.id), looks), (Some(10_000), 2));
}
