//! Many items that one job has done by the threads that are idle.
//!
//! In: items, and what is to be done with each. Out: the results, in their order.
//! Invariants: the job's own thread never waits for one that is not at work on an item; behind an item that
//! hangs waits none but those that are to follow it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::{Doing, Help, SPARED, SharedItems, Turn, lock};

/// Results of a shared job: how many there are, and which.
struct Ended<R> {
    results: Mutex<(usize, Vec<Option<R>>)>,
    all: Condvar,
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
        self.share_runs(items, |_, _| false, label, work)
    }

    /// The same, where an item that `follows` the one before it is done by the same thread behind it: these
    /// would wait for each other.
    pub fn share_runs<T, R>(
        &self,
        items: Arc<Vec<T>>,
        follows: impl Fn(&T, &T) -> bool,
        label: impl Fn(&T) -> Doing + Send + Sync + 'static,
        work: impl Fn(&T) -> R + Send + Sync + 'static,
    ) -> Vec<Option<R>>
    where
        T: Send + Sync + 'static,
        R: Send + 'static,
    {
        let count = items.len();
        if count == 0 {
            return Vec::new();
        }
        // Where each run begins, and the end of the last.
        let is_first = |i: &usize| *i == 0 || !follows(&items[i - 1], &items[*i]);
        let mut bounds: Vec<usize> = (0..count).filter(is_first).collect();
        let runs = bounds.len();
        bounds.push(count);
        let threads = self.shared.lock().threads_each;
        let next = AtomicUsize::new(0);
        let ended = Arc::new(Ended {
            results: Mutex::new((0, (0..count).map(|_| None).collect())),
            all: Condvar::new(),
        });
        let of_item: Arc<dyn Fn(u64) -> Doing + Send + Sync> = {
            let items = items.clone();
            Arc::new(move |i| label(&items[i as usize]))
        };
        let first = of_item.clone();
        let help: Help<J> = {
            let ended = ended.clone();
            Arc::new(move |turn| {
                let of_item = of_item.clone();
                let mut track = turn.track(move |i| of_item(i));
                loop {
                    // One at a time: behind one that hangs no other may wait.
                    let run = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&[begin, end]) = bounds.get(run..run + 2) else { return };
                    for i in begin..end {
                        track.at(i as u64);
                        let result = catch_unwind(AssertUnwindSafe(|| work(&items[i]))).ok();
                        let mut results = lock(&ended.results);
                        results.1[i] = result;
                        results.0 += 1;
                        if results.0 == items.len() {
                            ended.all.notify_one();
                        }
                    }
                }
            })
        };
        // Some are left to other jobs: a few syncs of large files must not wait for those of a thousand small
        // ones.
        let hands = (threads - threads / SPARED).min(runs) - 1;
        if hands > 0 {
            let label = Arc::new(move || first(0));
            let share = SharedItems { id: self.id, target: self.target, hands, help: help.clone(), label };
            let mut state = self.shared.lock();
            state.shares.push_back(share);
            self.shared.call_hands(&mut state);
        }
        help(self);
        if hands > 0 {
            self.shared.lock().shares.retain(|share| share.id != self.id);
        }
        let mut results = lock(&ended.results);
        while results.0 < count {
            results = ended.all.wait(results).unwrap_or_else(PoisonError::into_inner);
        }
        std::mem::take(&mut results.1)
    }
}
