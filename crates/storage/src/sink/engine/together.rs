//! Small files that are committed together: all of them are brought to what they are to be, then to media if
//! that is wanted, and then they get their names, those of one directory one behind the other: a file system
//! takes a directory's names one at a time, and threads that wait for each other there use up the processors.
//! None waits for one that hangs (`blocking_pool/share.rs`).
//!
//! In: the files of a commit on one storage target. Out: what became of each.
//! Invariants: no durable file gets its name before it is on media, by a sync of its own or one of the file
//! system that began when the last of them was whole; one that fails leaves the others alone.

use std::sync::Arc;
use std::time::Instant;

use haul_core::transfer::SMALL_LEN_MAX;
use haul_core::transfer::op::{CommitItem, Publish};
use haul_core::wire::{Failure, FailureKind};

use super::commit::Whole;
use super::fan_out::{Cost, Place, whole};
use super::{Sink, Task, guard};
use crate::blocking_pool::{Doing, Turn};
use crate::meta_rate::cost;
use crate::sink::cache::drop_pages;
use crate::sink::files::descriptor;
use crate::sink::whole_sync::WholeSync;

/// A file of the commit, by its place in the group.
struct Ready(usize, Whole);

/// What is done to each, what fails then, and what that costs.
type Stage = (&'static str, FailureKind, Cost<CommitItem>);

/// Those items of a commit that go together, and the thread that commits them.
#[derive(Clone, Copy)]
struct Group<'a> {
    turn: &'a Turn<Task>,
    items: &'a Arc<Vec<CommitItem>>,
    places: &'a [usize],
}

impl Sink {
    /// Whether these may be committed together.
    pub(super) fn may_go_together(&self, items: &[CommitItem], durable: bool) -> bool {
        let is_small = |item: &CommitItem| {
            let publish = item.publish.as_ref();
            publish.is_some_and(|publish| publish.verify.is_none() && publish.file.size <= SMALL_LEN_MAX)
        };
        let may_sync = self.whole_sync.is_some() || !durable;
        may_sync && self.files.in_place.is_none() && items.iter().all(is_small)
    }

    /// Commits those of the `items` that `group` says, in its order.
    pub(super) fn commit_together(
        self: &Arc<Self>,
        turn: &Turn<Task>,
        items: &Arc<Vec<CommitItem>>,
        group: &[usize],
        durable: bool,
    ) -> Vec<Result<(), Failure>> {
        let all = Group { turn, items, places: group };
        let made = self.share(
            all,
            ("metadata", FailureKind::Publish, |sink: &Sink, item: &CommitItem| {
                sink.cost_of_setting(published(item).owner)
            }),
            group.to_vec(),
            (|i: &usize| *i, |_: &usize, _: &usize| false),
            |sink, item, _| {
                sink.may_commit(item)?;
                Ok(sink.make_whole(published(item)))
            },
        );
        // Of a file that may not be committed all is said by then.
        let begun: Vec<bool> = made.iter().map(Result::is_ok).collect();
        let mut results: Vec<Result<(), Failure>> = Vec::with_capacity(group.len());
        let mut all_made = Vec::new();
        for (at, made) in made.into_iter().enumerate() {
            results.push(made.and_then(|made| made).map(|made| all_made.push(Ready(at, made))));
        }
        match self.whole_sync.as_ref().filter(|_| durable) {
            Some(whole_sync) => self.finish_durable(all, whole_sync, all_made, &mut results),
            None => self.name_all(all, all_made, &mut results, |_, made| Sink::is_believed(&made.open)),
        }
        for ((i, result), _) in group.iter().zip(&results).zip(begun).filter(|(_, begun)| *begun) {
            self.committed(&items[*i], result);
        }
        results
    }

    /// Has them on media, some by a sync of each, the others by one of the file system, and named.
    fn finish_durable(
        self: &Arc<Self>,
        all: Group<'_>,
        whole_sync: &WholeSync,
        files: Vec<Ready>,
        results: &mut [Result<(), Failure>],
    ) {
        let Group { turn, items, places: group } = all;
        let (mut together, alone): (Vec<_>, Vec<_>) =
            files.into_iter().partition(|Ready(_, made)| whole_sync.covers(made.made));
        let bytes = together.iter().map(|Ready(at, _)| published(&items[group[*at]]).file.size).sum();
        let rest = together.split_off(whole_sync.plan(together.len(), bytes));
        let tried = together.len();
        let since = Instant::now();
        self.finish_each(all, together, results);
        whole_sync.each_took(tried, since);
        self.finish_each(all, alone, results);
        let count = rest.len();
        let label = {
            let (sink, items, first) = (self.clone(), items.clone(), group[0]);
            move |_| sink.doing("sync the file system of", sink.place_of_item(&items[first]))
        };
        let mut track = turn.track(label);
        track.at(0);
        let is_synced = count > 0 && whole_sync.sync(count);
        drop(track);
        match is_synced {
            true => self.name_all(all, rest, results, Sink::unless_failed),
            false => self.finish_each(all, rest, results),
        }
    }

    /// Gives them their names, those of a directory one behind the other, each unless it `may` not have it.
    fn name_all(
        self: &Arc<Self>,
        of: Group<'_>,
        mut files: Vec<Ready>,
        results: &mut [Result<(), Failure>],
        may: impl Fn(&Sink, &Whole) -> Result<(), Failure> + Send + Sync + 'static,
    ) {
        let dir_of = |Ready(at, _): &Ready| published(&of.items[of.places[*at]]).file.parent;
        files.sort_by_key(dir_of);
        let stage: Stage = ("publish", FailureKind::Publish, |_, _| cost::NAME);
        let follows = |one: &Ready, next: &Ready| dir_of(one) == dir_of(next);
        self.finish(of, stage, files, results, follows, move |sink, item, made| {
            may(sink, made)?;
            sink.give_whole(published(item), made)
        });
    }

    /// Syncs each by itself, and gives it its name at once: none waits for the others.
    fn finish_each(self: &Arc<Self>, of: Group<'_>, files: Vec<Ready>, results: &mut [Result<(), Failure>]) {
        let stage: Stage = ("sync", FailureKind::Sync, |_, _| cost::NAME);
        self.finish(
            of,
            stage,
            files,
            results,
            |_, _| false,
            |sink, item, made| {
                sink.sync_whole(published(item), made)?;
                sink.give_whole(published(item), made)
            },
        );
    }

    /// Does the last `work` on each of the `files`, behind the one that it `follows`, and says what became of
    /// it.
    fn finish(
        self: &Arc<Self>,
        of: Group<'_>,
        stage: Stage,
        files: Vec<Ready>,
        results: &mut [Result<(), Failure>],
        follows: impl Fn(&Ready, &Ready) -> bool,
        work: impl Fn(&Sink, &CommitItem, &Whole) -> Result<(), Failure> + Send + Sync + 'static,
    ) {
        let places: Vec<usize> = files.iter().map(|Ready(at, _)| *at).collect();
        let group = of.places.to_vec();
        let place = move |Ready(at, _): &Ready| group[*at];
        let ended = self.share(of, stage, files, (place, follows), move |sink, item, Ready(_, made)| {
            work(sink, item, made)
        });
        for (at, result) in places.into_iter().zip(ended) {
            results[at] = result;
        }
    }

    /// Its pages leave the cache, behind a sync of the file system.
    ///
    /// # Errors
    /// A sync of it failed before: nothing makes its data right again.
    fn unless_failed(&self, made: &Whole) -> Result<(), Failure> {
        Sink::is_believed(&made.open)?;
        drop_pages(descriptor(&made.temp));
        Ok(())
    }

    /// Does `work` on each of the `files` with the threads that are idle; `of` says which item a file is, and
    /// one that `follows` the one before it is done behind that.
    fn share<T: Send + Sync + 'static, R: Send + 'static>(
        self: &Arc<Self>,
        Group { turn, items, .. }: Group<'_>,
        (what, stage, cost): Stage,
        files: Vec<T>,
        (of, follows): (impl Fn(&T) -> usize + Send + Sync + Clone + 'static, impl Fn(&T, &T) -> bool),
        work: impl Fn(&Sink, &CommitItem, &T) -> Result<R, Failure> + Send + Sync + 'static,
    ) -> Vec<Result<R, Failure>> {
        let (told, of_told, items_told) = (self.clone(), of.clone(), items.clone());
        let label =
            move |file: &T| -> Doing { told.doing(what, told.place_of_item(&items_told[of_told(file)])) };
        let (sink, items) = (self.clone(), items.clone());
        let work = move |file: &T, turn: &Turn<Task>| {
            let item = &items[of(file)];
            sink.rate.take_telling(cost(&sink, item), || turn.watch());
            guard(stage, || work(&sink, item, file))
        };
        turn.share_runs(Arc::new(files), follows, label, work).into_iter().map(whole).collect()
    }

    fn place_of_item(&self, item: &CommitItem) -> Place {
        let file = &published(item).file;
        Place(file.parent, Some(file.name.clone()))
    }
}

/// Only such go together.
fn published(item: &CommitItem) -> &Publish {
    item.publish.as_ref().expect("it is complete")
}
