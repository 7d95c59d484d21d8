//! Operations on many items: divided by storage target, done by threads side by side, told as one.
//!
//! In: items, and where each lies. Out: one completion with the results in the items' order.
//! Invariants: items of one target are one task, so that a target which hangs holds up its own alone; every
//! item has a result, also where its work panicked, or its task was dropped before it began.

use std::sync::{Arc, Mutex};

use haul_base::escape;
use haul_core::entry::Name;
use haul_core::ids::DirId;
use haul_core::transfer::op::SinkDone;
use haul_core::wire::{Failure, FailureKind};

use super::{Sink, Task, guard};
use crate::SinkCompletion;
use crate::blocking_pool::Turn;
use crate::io::IoTarget;
use crate::owed::panic_point;
use crate::sink::{fault, lock};

/// Operations of metadata that an item costs for sure.
pub(super) type Cost<T> = fn(&Sink, &T) -> u32;

/// Where an item lies; without a name, the directory itself.
pub(super) struct Place(pub(super) DirId, pub(super) Option<Name>);

/// The storage target of an item, if that is not its directory's.
pub(super) fn no_target<T>(_: &Sink, _: &T) -> Option<IoTarget> {
    None
}

impl Sink {
    /// Does `work` on each item, those of one target together with the threads that are idle, and posts what
    /// `done` makes of the results, which are in the items' order. `cost`: operations of metadata.
    pub(super) fn split<T, R>(
        self: &Arc<Self>,
        (what, stage, cost): (&'static str, FailureKind, Cost<T>),
        items: Vec<T>,
        lies: impl Fn(&Sink, &T) -> Place + Send + Sync + Copy + 'static,
        own: impl Fn(&Sink, &T) -> Option<IoTarget>,
        work: impl Fn(&Sink, &T) -> Result<R, Failure> + Send + Sync + 'static,
        done: impl FnOnce(&Sink, &[T], Vec<Result<R, Failure>>) -> SinkDone + Send + 'static,
    ) where
        T: Send + Sync + 'static,
        R: Send + 'static,
    {
        let work = Arc::new(work);
        self.fan_out(what, items, lies, own, done, |fan_out, group| {
            let work = work.clone();
            move |sink: &Arc<Sink>, turn: &Turn<Task>| {
                if let Some(Place(_, Some(name))) = group.first().map(|i| lies(sink, &fan_out.items[*i])) {
                    panic_point("panic~split", &escape::within(name.as_bytes()));
                }
                let group = Arc::new(group);
                let (told, items) = (sink.clone(), fan_out.items.clone());
                let label = move |i: &usize| told.doing(what, lies(&told, &items[*i]));
                let (worker, items) = (sink.clone(), fan_out.items.clone());
                let work = move |i: &usize, turn: &Turn<Task>| {
                    worker.rate.take_telling(cost(&worker, &items[*i]), || turn.watch());
                    guard(stage, || work(&worker, &items[*i]))
                };
                let results = turn.share_turns(group.clone(), label, work).into_iter().map(whole).collect();
                fan_out.put(&group, results);
            }
        });
    }

    /// Splits items by target, and has what `part` makes of each group done by the pool.
    pub(super) fn fan_out<T, R, W>(
        self: &Arc<Self>,
        what: &'static str,
        items: Vec<T>,
        lies: impl Fn(&Sink, &T) -> Place + Send + Sync + Copy + 'static,
        own: impl Fn(&Sink, &T) -> Option<IoTarget>,
        done: impl FnOnce(&Sink, &[T], Vec<Result<R, Failure>>) -> SinkDone + Send + 'static,
        part: impl Fn(Arc<FanOut<T, R>>, Vec<usize>) -> W,
    ) where
        T: Send + Sync + 'static,
        R: Send + 'static,
        W: FnOnce(&Arc<Sink>, &Turn<Task>) + Send + 'static,
    {
        if items.is_empty() {
            return (self.post)(SinkCompletion { done: done(self, &[], Vec::new()) });
        }
        let mut groups: Vec<(IoTarget, Vec<usize>)> = Vec::new();
        match self.tree.one_target().filter(|_| !self.files.has_places()) {
            Some(target) => groups.push((target, (0..items.len()).collect())),
            None => {
                for (i, item) in items.iter().enumerate() {
                    let of_dir = || self.tree.target_of(lies(self, item).0);
                    let target = own(self, item).unwrap_or_else(of_dir);
                    match groups.iter_mut().find(|(known, _)| *known == target) {
                        Some((_, group)) => group.push(i),
                        None => groups.push((target, vec![i])),
                    }
                }
            }
        }
        let results = (groups.len(), items.iter().map(|_| None).collect());
        let fan_out = Arc::new(FanOut {
            items: Arc::new(items),
            results: Mutex::new(results),
            done: Mutex::new(Some(Box::new(done))),
            sink: self.clone(),
        });
        for (target, group) in groups {
            let (sink, items, first) = (self.clone(), fan_out.items.clone(), group[0]);
            let label = move || sink.doing(what, lies(&sink, &items[first]));
            self.submit(target, label, Task(Box::new(part(fan_out.clone(), group))));
        }
    }
}

/// An operation whose items are done in groups, each on its own.
pub(super) struct FanOut<T, R> {
    pub(super) items: Arc<Vec<T>>,
    /// Groups that are not done, and results.
    results: Mutex<(usize, Vec<Option<Result<R, Failure>>>)>,
    done: Mutex<Option<Done<T, R>>>,
    sink: Arc<Sink>,
}

type Done<T, R> = Box<dyn FnOnce(&Sink, &[T], Vec<Result<R, Failure>>) -> SinkDone + Send>;

impl<T, R> FanOut<T, R> {
    /// A group is done; with the last one, so is the operation.
    pub(super) fn put(&self, group: &[usize], results: Vec<Result<R, Failure>>) {
        let mut all = lock(&self.results);
        for (i, result) in group.iter().zip(results) {
            all.1[*i] = Some(result);
        }
        all.0 -= 1;
        if all.0 > 0 {
            return;
        }
        let results = std::mem::take(&mut all.1).into_iter().map(whole).collect();
        drop(all);
        self.tell(results);
    }

    fn tell(&self, results: Vec<Result<R, Failure>>) {
        if let Some(done) = lock(&self.done).take() {
            (self.sink.post)(SinkCompletion { done: done(&self.sink, &self.items, results) });
        }
    }
}

/// Groups that were never put, for their task was dropped or panicked, are told as failures of their items.
impl<T, R> Drop for FanOut<T, R> {
    fn drop(&mut self) {
        if haul_mutant::removed("owed-answers") {
            return;
        }
        let results = std::mem::take(&mut lock(&self.results).1);
        self.tell(results.into_iter().map(whole).collect());
    }
}

pub(super) fn pair<T, K, R>(
    items: &[T],
    key: impl Fn(&T) -> K,
    results: Vec<Result<R, Failure>>,
) -> Vec<(K, Result<R, Failure>)> {
    items.iter().map(key).zip(results).collect()
}

/// The result of an item. Each is guarded, so that there is one.
pub(super) fn whole<R>(result: Option<Result<R, Failure>>) -> Result<R, Failure> {
    result.unwrap_or_else(|| Err(fault::failure(FailureKind::Write, 0, "internal error: an item was lost")))
}
