//! Many items that one job has done by the threads that are idle.
//!
//! In: items, and what is to be done with each. Out: the results, in their order.
//! Invariants: the job's own thread never waits for one that is not at work on an item; behind an item that
//! hangs no other waits for longer than the deadline of the pool, which calls for another thread then.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{Doing, Help, SPARED, SharedItems, Turn, lock};

/// Items that follow each other, in the order in which they are begun.
struct Run {
    next: usize,
    end: usize,
    /// Who is at it, by the number of the turn, and since when at its present item.
    held: Option<(u64, Instant)>,
}

/// What is left of the items, and what came of the others.
struct Left<R> {
    runs: Vec<Run>,
    /// Nobody was at this one so far, nor at those behind it.
    fresh: usize,
    ended: usize,
    results: Vec<Option<R>>,
}

impl<R> Left<R> {
    fn new(runs: Vec<Run>, count: usize) -> Left<R> {
        Left { runs, fresh: 0, ended: 0, results: (0..count).map(|_| None).collect() }
    }

    /// Nothing is left to begin.
    fn is_begun(&self) -> bool {
        self.runs.iter().all(|run| run.next >= run.end)
    }

    /// The item that this turn begins now, and its run: the next one of the run that it holds, or the first
    /// one of a run that nobody was at, or what is left of one whose holder is at one item for `late`.
    fn take(&mut self, turn: u64, held: Option<usize>, late: Duration) -> Option<(usize, usize)> {
        let now = Instant::now();
        let is_mine = |run: &usize| self.runs[*run].held.is_some_and(|(holder, _)| holder == turn);
        let is_left = |run: &usize| self.runs[*run].next < self.runs[*run].end;
        let run = held.filter(|run| is_mine(run) && is_left(run)).or_else(|| {
            if self.fresh < self.runs.len() {
                self.fresh += 1;
                return Some(self.fresh - 1);
            }
            let hangs = |run: &usize| {
                self.runs[*run].held.is_some_and(|(_, since)| now.duration_since(since) >= late)
            };
            (0..self.runs.len()).find(|run| is_left(run) && hangs(run))
        })?;
        let taken = &mut self.runs[run];
        taken.held = Some((turn, now));
        taken.next += 1;
        Some((run, taken.next - 1))
    }
}

impl<J: Send + 'static> Turn<J> {
    /// Does `work` on each item, together with threads that are idle. Returns the results in the items'
    /// order; `None`: `work` panicked. Each item is a step of its own, which `label` names.
    ///
    /// Threads that help are in a turn at the same target: its share of the threads is not exceeded. Without
    /// any this thread does all of it, so that it never waits for one that is not at work on an item.
    pub fn share<T, R>(
        &self,
        items: Arc<Vec<T>>,
        label: impl Fn(&T) -> Doing + Send + Sync + 'static,
        work: impl Fn(&T) -> R + Send + Sync + 'static,
    ) -> Vec<Option<R>>
    where
        T: Send + Sync + 'static,
        R: Send + 'static,
    {
        self.share_turns(items, label, move |item, _| work(item))
    }

    /// The same with work that hears in which turn it is.
    pub(crate) fn share_turns<T, R>(
        &self,
        items: Arc<Vec<T>>,
        label: impl Fn(&T) -> Doing + Send + Sync + 'static,
        work: impl Fn(&T, &Turn<J>) -> R + Send + Sync + 'static,
    ) -> Vec<Option<R>>
    where
        T: Send + Sync + 'static,
        R: Send + 'static,
    {
        self.share_runs(items, |_, _| false, label, work)
    }

    /// The same, where an item that `follows` the one before it is begun by the same thread behind it, for
    /// they would wait for each other: but not behind one that hangs.
    pub(crate) fn share_runs<T, R>(
        &self,
        items: Arc<Vec<T>>,
        follows: impl Fn(&T, &T) -> bool,
        label: impl Fn(&T) -> Doing + Send + Sync + 'static,
        work: impl Fn(&T, &Turn<J>) -> R + Send + Sync + 'static,
    ) -> Vec<Option<R>>
    where
        T: Send + Sync + 'static,
        R: Send + 'static,
    {
        let count = items.len();
        if count == 0 {
            return Vec::new();
        }
        let mut runs: Vec<Run> = Vec::new();
        for i in 0..count {
            match runs.last_mut() {
                Some(run) if follows(&items[i - 1], &items[i]) => run.end += 1,
                _ => runs.push(Run { next: i, end: i + 1, held: None }),
            }
        }
        let runs_count = runs.len();
        let shared = Arc::new((Mutex::new(Left::new(runs, count)), Condvar::new()));
        let threads = self.shared.lock().threads_each;
        // A step may count as late that much before its deadline is over, and somebody comes then.
        let late = self.shared.config.deadline / 2;
        let of_item: Arc<dyn Fn(u64) -> Doing + Send + Sync> = {
            let items = items.clone();
            Arc::new(move |i| label(&items[i as usize]))
        };
        let first = of_item.clone();
        let help: Help<J> = {
            let shared = shared.clone();
            Arc::new(move |turn| {
                let (state, all) = &*shared;
                let of_item = of_item.clone();
                let mut track = turn.track(move |i| of_item(i));
                let mut next = lock(state).take(turn.id, None, late);
                while let Some((run, i)) = next {
                    track.at(i as u64);
                    let result = catch_unwind(AssertUnwindSafe(|| work(&items[i], turn))).ok();
                    let mut state = lock(state);
                    state.results[i] = result;
                    state.ended += 1;
                    if state.ended == items.len() {
                        all.notify_one();
                    }
                    next = state.take(turn.id, Some(run), late);
                }
            })
        };
        // Some are left to other jobs: a few syncs of large files must not wait for those of a thousand small
        // ones. Where nobody is called now the pool calls somebody when an item hangs.
        let hands = (threads - threads / SPARED).min(runs_count) - 1;
        if count > 1 {
            let label = Arc::new(move || first(0));
            let share = SharedItems { id: self.id, target: self.target, hands, help: help.clone(), label };
            let mut state = self.shared.lock();
            state.shares.push_back(share);
            self.shared.call_hands(&mut state);
        }
        help(self);
        let over = || self.shared.lock().shares.retain(|share| share.id != self.id);
        let (state, all) = &*shared;
        if lock(state).is_begun() {
            over();
        }
        let mut left = lock(state);
        while left.ended < count {
            left = all.wait(left).unwrap_or_else(PoisonError::into_inner);
        }
        let results = std::mem::take(&mut left.results);
        drop(left);
        over();
        results
    }
}
