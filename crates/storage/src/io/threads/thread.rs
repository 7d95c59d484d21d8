//! An I/O thread: one thread, one engine.
//!
//! In: requests that were released for it, answers of its engine. Out: operations, settled pieces,
//! completions.
//!
//! Invariants: new requests are issued before completions are told, so that storage is busy while the
//! callback hashes. Requests that go again keep their place, their slot, and their I/O thread. The I/O thread
//! sleeps only in its engine, at most [`WAIT_MAX`] at a time, and never while something is there that it may
//! issue. It waits for no other I/O thread, and for nothing under the lock of `dispatch`: an engine that
//! blocks holds up its own I/O thread. A panic outside of a callback ends all I/O threads, and nothing that
//! they have is left unanswered.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::super::{Engine, Full, IoDone};
use super::request::{Next, Request, Settled};
use super::{Shared, TransferDone};
use crate::owed::{panic_point, words_of};
use haul_base::buffer::Part;
use haul_base::errno;

/// A waiting I/O thread looks at the deadlines, and counts its time, this often.
const WAIT_MAX: Duration = Duration::from_millis(100);
/// After so many errors in a row an engine is given up; with [`FAILURE_PAUSE`] between them.
const FAILURES_MAX: u32 = 10;
const FAILURE_PAUSE: Duration = Duration::from_millis(10);

pub(super) struct IoThread<T> {
    index: usize,
    shared: Arc<Shared<T>>,
    engine: Box<dyn Engine>,
    /// With the engine.
    flying: HashMap<u64, Request>,
    /// To be issued, at once or at a time; seldom any, for these are second tries.
    again: Vec<(Instant, u64, Request)>,
    /// Errors of the engine in a row.
    failures: u32,
    broken: bool,
}

/// An answer of the engine, for the dispatch.
struct Answer {
    id: u64,
    settled: Vec<Settled>,
    times: (Instant, Instant),
    /// The request, if it goes on, and after which pause.
    next: Option<(Duration, Request)>,
    refused: bool,
    /// See [`Request`].
    file_target: super::IoTarget,
}

impl<T: Send + 'static> IoThread<T> {
    pub(super) fn new(index: usize, engine: Box<dyn Engine>, shared: Arc<Shared<T>>) -> IoThread<T> {
        IoThread {
            index,
            shared,
            engine,
            flying: HashMap::new(),
            again: Vec::new(),
            failures: 0,
            broken: false,
        }
    }

    /// The thread's life.
    pub(super) fn run(mut self) {
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.live())) else { return };
        let (index, shared) = (self.index, self.shared.clone());
        shared
            .remark(format!("I/O thread {index} panicked, and all I/O threads ended: {}", words_of(&*panic)));
        // What the engine has comes back to it, or is leaked: no memory goes that the kernel may still write
        // to.
        drop(catch_unwind(AssertUnwindSafe(move || drop(self))));
        if haul_mutant::removed("io-thread-panics-end-all") {
            return;
        }
        let mut wakes = Vec::new();
        let dropped = shared.lock().abandon(index, &mut wakes);
        wakes.iter().for_each(|wake| wake());
        drop(dropped);
    }

    fn live(&mut self) {
        let mut answers: Vec<Answer> = Vec::new();
        let mut reaped: VecDeque<IoDone> = VecDeque::new();
        let mut closed_since: Option<Instant> = None;
        let mut mark = Instant::now();
        loop {
            let (finished, asleep, closed) = self.turn(&mut answers);
            if !finished.is_empty() {
                let begun = Instant::now();
                finished.into_iter().for_each(|done| self.tell(done));
                // The callback's time is the callback's to count: storage only waits for it, and a device
                // that works meanwhile is waited for less afterwards.
                let told = begun.elapsed();
                self.shared.meter.add_blocked(self.shared.stage, told);
                mark += told;
            }
            if closed {
                let since = *closed_since.get_or_insert_with(Instant::now);
                if self.flying.is_empty() && self.again.is_empty() || since.elapsed() > self.shared.deadline {
                    return;
                }
            }
            if !asleep {
                continue;
            }
            self.wait(&mut reaped);
            let now = Instant::now();
            match self.in_flight() {
                0 => self.shared.meter.add_idle(self.shared.stage, now - mark),
                _ => self.shared.meter.add_busy(self.shared.stage, now - mark),
            }
            mark = now;
            answers.extend(reaped.drain(..).map(|done| answer(&mut self.flying, done)));
        }
    }

    /// Hands over what was answered, takes what may start and issues it. Returns what is to be told, whether
    /// the I/O thread is to wait in its engine, and whether the I/O threads are closed.
    fn turn(&mut self, answers: &mut Vec<Answer>) -> (Vec<TransferDone<T>>, bool, bool) {
        let (mut finished, mut wakes) = (Vec::new(), Vec::new());
        let mut batch = Vec::new();
        let shared = self.shared.clone();
        let mut dispatch = shared.lock();
        dispatch.wake_up(self.index);
        let now = Instant::now();
        for answer in answers.drain(..) {
            dispatch.on_answer(answer.file_target, answer.times.1.saturating_duration_since(answer.times.0));
            dispatch.settle(answer.settled, answer.times, &mut finished);
            match answer.next {
                Some((pause, request)) => {
                    if answer.refused {
                        dispatch.on_refused(&request);
                    }
                    self.again.push((now + pause, answer.id, request));
                }
                None => dispatch.on_over(answer.id, now),
            }
        }
        if self.broken {
            dispatch.on_broken(self.index);
        }
        let may_issue = dispatch.may_issue(self.index, now);
        dispatch.release(may_issue.then_some(self.index), now, &mut wakes);
        while may_issue && let Some(taken) = dispatch.take(self.index) {
            batch.push(taken);
        }
        let due = self.take_due(now);
        let nothing = batch.is_empty() && due.is_empty() && finished.is_empty();
        let asleep = nothing && dispatch.sleep(self.index);
        let closed = dispatch.is_closed();
        let ordered = dispatch.is_issuing(self.index);
        if ordered && batch.is_empty() && due.is_empty() {
            dispatch.issued(self.index, &mut wakes);
        }
        drop(dispatch);
        if !(due.is_empty() && batch.is_empty()) {
            for (id, request) in due.into_iter().chain(batch) {
                self.issue(id, request, answers);
            }
            if ordered {
                shared.lock().issued(self.index, &mut wakes);
            }
        }
        wakes.iter().for_each(|wake| wake());
        (finished, asleep, closed)
    }

    /// Second tries whose time has come.
    fn take_due(&mut self, now: Instant) -> Vec<(u64, Request)> {
        let due = self.again.extract_if(.., |(when, ..)| *when <= now);
        due.map(|(_, id, request)| (id, request)).collect()
    }

    fn issue(&mut self, id: u64, mut request: Request, answers: &mut Vec<Answer>) {
        panic_point("panic~io_thread", &request.file.name);
        let op = request.op(id);
        if self.broken {
            let now = Instant::now();
            self.flying.insert(id, request);
            let done = IoDone { op, result: Err(Errno::IO), submitted: now, completed: now };
            answers.push(answer(&mut self.flying, done));
            return;
        }
        match self.engine.submit(op) {
            Ok(()) => drop(self.flying.insert(id, request)),
            Err(Full(op)) => {
                // It takes fewer than it should. There is room when something ends.
                request.take_back(op);
                self.again.push((Instant::now() + WAIT_MAX, id, request));
            }
        }
    }

    /// Waits for the engine, for a wake, or until a second try is due.
    fn wait(&mut self, reaped: &mut VecDeque<IoDone>) {
        let now = Instant::now();
        let due = self.again.iter().map(|(when, ..)| when.saturating_duration_since(now)).min();
        let wait = due.map_or(WAIT_MAX, |due| due.min(WAIT_MAX));
        match self.engine.reap(reaped, wait) {
            Ok(()) => self.failures = 0,
            Err(error) => {
                self.failures = self.failures.saturating_add(1);
                if self.failures == FAILURES_MAX {
                    self.shared.remark(format!(
                        "I/O thread {} gave up its engine: {}",
                        self.index,
                        errno::text(error)
                    ));
                    self.broken = true;
                }
                std::thread::sleep(FAILURE_PAUSE);
            }
        }
    }

    /// Tells the caller, whose panic is his own: the others' transfers go on.
    fn tell(&self, done: TransferDone<T>) {
        let on_done = AssertUnwindSafe(|| (self.shared.on_done)(done));
        // The panic hook has said what there is to say.
        drop(catch_unwind(on_done));
    }

    fn in_flight(&self) -> usize {
        self.flying.len() + self.again.len()
    }
}

/// What becomes of a request whose operation ended.
fn answer(flying: &mut HashMap<u64, Request>, done: IoDone) -> Answer {
    let IoDone { op, result, submitted, completed } = done;
    let mut request = flying.remove(&op.key).expect("an engine returns what it was given, once");
    let parts: Vec<Part> = op.parts;
    let mut settled = Vec::new();
    let next = request.handle(parts, result, &mut settled);
    let file_target = request.target;
    let (next, refused) = match next {
        Next::Over => (None, false),
        Next::Again(pause) => (Some((pause, request)), false),
        Next::Cached => (Some((Duration::ZERO, request)), true),
    };
    Answer { id: op.key, settled, times: (submitted, completed), next, refused, file_target }
}
