//! Epochs: what was written since the last one becomes durable together.
//!
//! An epoch closes in three steps, each begun when the one before is over: files are synced (and complete
//! ones renamed), their directories are synced, one journal record says so. Only then does the source hear
//! of it. The next epoch fills meanwhile.
//!
//! Files are synced in sets, each on its own: parts of large files, large files that are complete, and small
//! files apart from each other, and, where the destination has several storage targets, by those that they
//! lie on. So neither a target that hangs nor many small files, each of which is a sync of its own, keep what
//! is written of others from becoming durable. What is synced meanwhile is journaled together, one record at
//! a time. While a set is being synced, its next files are held; a file is in one set at a time.
//!
//! What the record says, and what holds when it is on media, is decided by `job::facts`, to which an epoch is
//! told.
//!
//! A set has as many files as were synced in [`SYNC_TIME`] before, so that what is in one is soon durable, on
//! any storage. What a commit costs however few files it has (round trips to a server far away) counts for
//! nothing there: to make sets small would pay it more often, and save nothing. Epochs are longer then, too.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::file::Mark;
use super::{File, Sink, SinkAction, SinkPhase};
use crate::digest::{Root, Subtree};
use crate::ids::{DirId, FileId, Generation, Holder, SinkTarget, Time};
use crate::job::Temp;
use crate::job::facts::{Fact, Facts};
use crate::journal::{DirMark, Log, PathKey, Record};
use crate::transfer::op::{CommitItem, Publish, SinkOp};
use crate::transfer::{Ended, SMALL_LEN_MAX, SessionEnd};
use crate::wire::{DoneItem, Extent, Failure, FailureKind, ITEMS_MAX, Message, Outcome};

/// An epoch closes at the latest this long after its first write, bytes or files.
const INTERVAL: Duration = Duration::from_millis(250);
const BYTES_MAX: u64 = 256 * 1024 * 1024;
const FILES_MAX: usize = 1024;
/// Files that are synced together are as many as take about this long, within these bounds.
const SYNC_TIME: Duration = Duration::from_millis(500);
const FILES_MIN: usize = 32;
const FILES_FIRST: usize = 256;
/// The same of a store whose commits cost a time of their own: it is paid once for them all.
const FILES_FIRST_COSTLY: usize = 512;

/// What is synced apart from the rest; see the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SetKind {
    /// Parts of large files.
    Parts,
    /// Large files that are complete.
    Large,
    /// Small files, complete or not.
    Small,
}

impl SetKind {
    fn of(file: &File, complete: bool) -> SetKind {
        if haul_mutant::removed("kinds-of-epochs") {
            return SetKind::Small;
        }
        match (file.size() <= SMALL_LEN_MAX, complete) {
            (true, _) => SetKind::Small,
            (false, true) => SetKind::Large,
            (false, false) => SetKind::Parts,
        }
    }
}

/// Files of one kind on the same storage targets.
type Set = (SetKind, Vec<SinkTarget>);

/// How many files of a kind are synced together.
#[derive(Clone, Copy)]
struct Pace(usize);

impl Pace {
    /// So many files took so long, of which `cost` was no matter of how many.
    fn learn(&mut self, files: usize, took: Duration, cost: Duration) {
        let Pace(most) = self;
        let took = took.saturating_sub(cost);
        if took > SYNC_TIME {
            let fit = files as u128 * SYNC_TIME.as_nanos() / took.as_nanos().max(1);
            *most = (*most).min(usize::try_from(fit).unwrap_or(FILES_MAX)).max(FILES_MIN);
        } else if files >= *most {
            *most = (*most * 2).min(FILES_MAX);
        }
    }
}

#[derive(Default)]
struct Open {
    dirty: BTreeSet<FileId>,
    complete: BTreeSet<FileId>,
    links: Vec<FileId>,
    /// What the journal takes back; written before anything else.
    withdrawn: Vec<Fact<()>>,
    /// Files that begin when that is written.
    begin: Vec<(FileId, Generation)>,
    bytes: u64,
    since: Option<Time>,
}

#[derive(Default)]
struct Closing {
    dirty: Vec<(FileId, Generation, Temp, Vec<Subtree>)>,
    complete: Vec<(FileId, Generation)>,
    /// Without a root: it was cloned.
    published: Vec<(FileId, Generation, Option<Root>)>,
    links: Vec<FileId>,
    withdrawn: Vec<Fact<()>>,
    begin: Vec<(FileId, Generation)>,
    /// Sets of which it has files, and these.
    sets: Vec<Set>,
    files: Vec<FileId>,
    /// When they began to be synced.
    begun: Time,
}

impl Closing {
    fn take_in(&mut self, other: Closing) {
        self.dirty.extend(other.dirty);
        self.complete.extend(other.complete);
        self.published.extend(other.published);
        self.links.extend(other.links);
        self.withdrawn.extend(other.withdrawn);
        self.begin.extend(other.begin);
        self.sets.extend(other.sets);
        self.files.extend(other.files);
    }
}

pub(super) struct Epochs {
    open: Open,
    /// What is being synced, by the first file of its commit.
    syncing: BTreeMap<FileId, Closing>,
    /// Synced, and next to be journaled.
    synced: Option<Closing>,
    /// Being journaled.
    closing: Option<Closing>,
    /// Sets of which files are being synced or journaled.
    busy: BTreeSet<Set>,
    /// These files: one that is complete waits until its parts are journaled.
    under_way: BTreeSet<FileId>,
    /// Files of such sets, and what was too many for one, which wait; whether they are complete.
    held: BTreeMap<Set, BTreeMap<FileId, bool>>,
    /// By kind.
    paces: BTreeMap<SetKind, Pace>,
    /// What a commit takes, however few files it has.
    cost: Duration,
    /// Once its journal is broken nothing is acknowledged any more.
    facts: Facts<()>,
    /// Records that were made.
    journaled: u64,
}

impl Epochs {
    pub(super) fn new(by: Holder, log: Log, next_slot: u32) -> Epochs {
        Epochs {
            open: Open::default(),
            syncing: BTreeMap::new(),
            synced: None,
            closing: None,
            busy: BTreeSet::new(),
            under_way: BTreeSet::new(),
            held: BTreeMap::new(),
            paces: BTreeMap::new(),
            cost: Duration::ZERO,
            facts: Facts::new(by, log, next_slot),
            journaled: 0,
        }
    }

    /// Nothing is to be made durable.
    pub(super) fn is_idle(&self) -> bool {
        self.open.since.is_none() && self.held.is_empty() && self.is_settled()
    }

    /// Grows when something became durable.
    pub(super) fn journaled(&self) -> u64 {
        self.journaled
    }

    /// Nothing is being synced or journaled.
    fn is_settled(&self) -> bool {
        self.syncing.is_empty() && self.synced.is_none() && self.closing.is_none()
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.open.since.map(|since| since.after(self.interval()))
    }

    /// What takes longer to be committed is not committed more often than that pays.
    fn interval(&self) -> Duration {
        INTERVAL.max(self.cost / 2)
    }

    fn pace(&self, kind: SetKind) -> Pace {
        let first = if self.cost.is_zero() { FILES_FIRST } else { FILES_FIRST_COSTLY };
        self.paces.get(&kind).copied().unwrap_or(Pace(first))
    }

    fn files_max(&self, kind: SetKind) -> usize {
        self.pace(kind).0
    }

    pub(super) fn add_dirty(&mut self, id: FileId, bytes: u64, now: Time) {
        self.open.dirty.insert(id);
        self.open.bytes = self.open.bytes.saturating_add(bytes);
        self.open.since.get_or_insert(now);
    }

    pub(super) fn add_complete(&mut self, id: FileId, now: Time) {
        self.open.complete.insert(id);
        self.open.since.get_or_insert(now);
    }

    pub(super) fn add_link(&mut self, id: FileId, now: Time) {
        self.open.links.push(id);
        self.open.since.get_or_insert(now);
    }

    /// All in a directory ended well.
    pub(super) fn add_finished(&mut self, path: PathKey, mark: DirMark, now: Time) {
        self.facts.finish(path, mark);
        if self.facts.is_worth_a_write() {
            self.open.since.get_or_insert(now);
        }
    }

    /// A fact for the next write of the journal, which need not wait for anything.
    pub(super) fn say(&mut self, fact: Fact<()>) {
        self.open.withdrawn.push(fact);
        self.open.since.get_or_insert(Time::default());
    }

    /// This file begins when what was withdrawn so far is in the journal.
    pub(super) fn begin_after(&mut self, id: FileId, generation: Generation) {
        self.open.begin.push((id, generation));
        self.open.since.get_or_insert(Time::default());
    }

    /// What waited for sets that are free comes into the open epoch, as much as is synced together.
    fn refill(&mut self) {
        let most: BTreeMap<SetKind, usize> =
            self.held.keys().map(|set| (set.0, self.files_max(set.0))).collect();
        let Epochs { held, busy, under_way, open, .. } = self;
        held.retain(|set, files| {
            if busy.contains(set) {
                return true;
            }
            let most = most[&set.0];
            let next = files.iter().filter(|(id, _)| !under_way.contains(*id)).take(most);
            let next: Vec<(FileId, bool)> = next.map(|(id, complete)| (*id, *complete)).collect();
            for (id, complete) in &next {
                files.remove(id);
                match complete {
                    true => open.complete.insert(*id),
                    false => open.dirty.insert(*id),
                };
            }
            if !next.is_empty() {
                // They waited for long enough.
                open.since = Some(Time::default());
            }
            !files.is_empty()
        });
    }

    /// Encodes a record that goes to the journal by itself, in its turn.
    pub(super) fn note(&mut self, record: &Record) -> Result<Vec<u8>, Failure> {
        self.facts.note(record)
    }

    /// The journal refused a record: those behind it would not be read.
    pub(super) fn break_off(&mut self, failure: &Failure) {
        self.facts.break_off(failure);
    }

    /// The journal refused a record, and takes none any more.
    pub(super) fn is_broken(&self) -> bool {
        self.facts.broken().is_some()
    }

    pub(super) fn take_slot(&mut self) -> u32 {
        self.facts.take_slot()
    }

    fn is_due(&self, now: Time) -> bool {
        self.open.since.is_some_and(|since| {
            now >= since.after(self.interval())
                || self.open.bytes >= BYTES_MAX
                || self.open.complete.len() + self.open.links.len() >= FILES_MAX
        })
    }
}

impl Sink {
    /// A commit takes so long, however few files it has.
    pub fn set_commit_cost(&mut self, cost: Duration) {
        self.epochs.cost = cost;
    }

    pub(super) fn run_epochs(&mut self) {
        if self.epochs.open.since.is_none() {
            return;
        }
        // What is still deferred waits for descriptors, which this epoch holds.
        let starved = !(self.deferred.is_empty() && self.deferred_small.is_empty()) || self.cloning.waits();
        let last = self.end.is_some() || self.stop.is_some();
        let alone = self.writes == 0 && self.epochs.is_settled();
        if (alone && (last || starved)) || self.epochs.is_due(self.now) {
            self.close_epoch();
        }
    }

    fn close_epoch(&mut self) {
        let open = std::mem::take(&mut self.epochs.open);
        let Open { links, withdrawn, begin, dirty, complete, .. } = open;
        let rest = Closing { links, withdrawn, begin, ..Closing::default() };
        let mut parts: BTreeMap<Set, (Closing, Vec<CommitItem>)> = BTreeMap::new();
        let policy = self.config.policy;
        let dirty = dirty.into_iter().map(|id| (id, false));
        for (id, complete) in dirty.chain(complete.into_iter().map(|id| (id, true))) {
            let phase = if complete { SinkPhase::Committing } else { SinkPhase::Open };
            let due = |f: &File| f.phase == phase && (complete || f.is(Mark::InEpoch));
            let Some(file) = self.files.get(&id).filter(|file| due(file)) else { continue };
            let kind = SetKind::of(file, complete);
            let set = (kind, self.set_of(id));
            let full = parts.get(&set).is_some_and(|(_, items)| items.len() >= self.epochs.files_max(kind));
            if full || self.epochs.under_way.contains(&id) || self.epochs.busy.contains(&set) {
                *self.epochs.held.entry(set).or_default().entry(id).or_default() |= complete;
                continue;
            }
            let Some(file) = self.files.get_mut(&id) else { continue };
            let (closing, items) = parts.entry(set).or_default();
            file.mark(Mark::InCommit);
            if complete {
                closing.complete.push((id, file.kept.generation));
                let (meta, owner, no_replace) = (file.meta, policy.owner, policy.no_clobber);
                let verify =
                    file.digest.root().filter(|_| policy.verify).map(|root| (file.digest.kind(), root));
                let found = file.found;
                let publish = Publish { file: file.sink_file(id), meta, owner, found, no_replace, verify };
                items.push(CommitItem { id, publish: Some(publish) });
            } else {
                file.unmark(Mark::InEpoch);
                let written = std::mem::take(&mut file.written);
                closing.dirty.push((id, file.kept.generation, file.kept.temp, written));
                items.push(CommitItem { id, publish: None });
            }
        }
        for (set, (mut closing, items)) in parts {
            closing.sets.push(set.clone());
            closing.begun = self.now;
            closing.files = items.iter().map(|item| item.id).collect();
            self.epochs.under_way.extend(&closing.files);
            self.epochs.busy.insert(set);
            self.epochs.syncing.insert(items[0].id, closing);
            self.actions.push_back(SinkAction::Submit(SinkOp::Commit { durable: policy.durable, items }));
        }
        // Of what was held some may have ended meanwhile, and others can take its place.
        self.epochs.refill();
        let alone = self.epochs.facts.is_worth_a_write();
        if alone || !(rest.links.is_empty() && rest.withdrawn.is_empty() && rest.begin.is_empty()) {
            self.epoch_synced(rest);
        }
    }

    /// The next of what is synced is journaled.
    fn epoch_synced(&mut self, closing: Closing) {
        self.epochs.synced.get_or_insert_default().take_in(closing);
        if self.epochs.closing.is_none() {
            self.journal_synced();
        }
    }

    fn journal_synced(&mut self) {
        self.epochs.closing = self.epochs.synced.take();
        if self.epochs.closing.is_some() {
            self.sync_epoch_dirs();
        }
    }

    /// Files of the closing epoch are synced and renamed.
    pub(super) fn epoch_committed(&mut self, results: Vec<(FileId, Result<(), Failure>)>, lost: &[FileId]) {
        let first = results.first().map(|(id, _)| *id);
        let closing = first.and_then(|id| self.epochs.syncing.remove(&id));
        let mut closing = closing.expect("a commit belongs to a closing epoch");
        let took = self.now.since(closing.begun);
        for (kind, _) in &closing.sets {
            let mut pace = self.epochs.pace(*kind);
            pace.learn(results.len(), took, self.epochs.cost);
            self.epochs.paces.insert(*kind, pace);
        }
        let mut failed = BTreeSet::new();
        for (id, result) in results {
            if let Some(drain) = self.drains.get_mut(&id).filter(|d| d.in_commit) {
                // It was given up meanwhile.
                drain.in_commit = false;
                failed.insert(id);
                self.check_drain(id);
                continue;
            }
            let Some(file) = self.files.get_mut(&id) else { continue };
            file.unmark(Mark::InCommit);
            let Err(failure) = result else { continue };
            failed.insert(id);
            if failure.kind == FailureKind::Digest && self.begin_again(id, &failure) {
                continue;
            }
            if lost.contains(&id) && self.lose(id, &failure) {
                continue;
            }
            let leaves = self.is_of_the_stop(&failure);
            let Some(file) = self.files.get_mut(&id) else { continue };
            // The engine removed the temporary, for after a failed sync nothing in it can be believed. A
            // write that is under way may make it again, so it is discarded behind the last of these.
            file.mark(Mark::Broken);
            if leaves {
                continue;
            }
            let again = self.config.policy.verify && failure.kind == FailureKind::Digest;
            match again && file.phase == SinkPhase::Committing {
                true => self.send_back(id, failure),
                false => self.fail_file(id, failure),
            }
        }
        closing.dirty.retain(|(id, ..)| !failed.contains(id));
        for (id, generation) in &closing.complete {
            let of = |f: &&mut Box<File>| f.kept.generation == *generation && !failed.contains(id);
            if let Some(file) = self.files.get_mut(id).filter(of)
                && file.naming.handle_given(())
            {
                let root = file.digest.root().filter(|_| !file.is(Mark::Cloned));
                if root.is_some() || file.is(Mark::Cloned) {
                    closing.published.push((*id, *generation, root));
                }
            }
        }
        self.epoch_synced(closing);
    }

    /// Storage gave back other bytes than were written. The source decides whether it comes once more, as
    /// another generation.
    fn send_back(&mut self, id: FileId, failure: Failure) {
        let Some(file) = self.files.get_mut(&id) else { return };
        let generation = file.kept.generation;
        file.phase = SinkPhase::Withdrawn;
        self.discard(id);
        self.drop_map(id);
        self.counts.sent_back += 1;
        self.done.push(DoneItem { id, generation, outcome: Outcome::Failed(failure) });
    }

    fn sync_epoch_dirs(&mut self) {
        let closing = self.epochs.closing.as_ref().expect("an epoch is closing");
        let parents =
            closing.published.iter().filter_map(|(id, ..)| self.files.get(id).map(|f| f.kept.parent));
        let parents =
            parents.chain(closing.links.iter().filter_map(|id| self.links.get(id).map(|l| l.parent)));
        // The journal will name this temporary for the first time, so its name must be on media too.
        let fresh = closing.dirty.iter().filter_map(|(id, generation, ..)| {
            self.files.get(id).filter(|f| f.kept.is_unnamed() && f.is_of(*generation)).map(|f| f.kept.parent)
        });
        let parents = parents.chain(fresh);
        let dirs: BTreeSet<DirId> = parents.collect();
        let dirs: BTreeSet<DirId> = dirs.into_iter().flat_map(|dir| self.dirs.unlinked(dir)).collect();
        if dirs.is_empty() || !self.config.policy.durable {
            self.journal_epoch();
        } else {
            self.actions.push_back(SinkAction::Submit(SinkOp::SyncDirs { dirs: dirs.into_iter().collect() }));
        }
    }

    /// Directories of the closing epoch are synced.
    pub(super) fn epoch_dirs_synced(&mut self, results: Vec<(DirId, Result<(), Failure>)>) {
        let mut bad = BTreeSet::new();
        for (dir, result) in results {
            if let Err(failure) = result {
                bad.insert(dir);
                self.dirs.fail(dir, failure);
            }
        }
        let mut closing = self.epochs.closing.take().expect("a sync belongs to a closing epoch");
        let mut failed = Vec::new();
        let parent_of = |sink: &Sink, id: &FileId| {
            sink.files.get(id).map(|f| f.kept.parent).or_else(|| sink.links.get(id).map(|l| l.parent))
        };
        let mut keep = |sink: &mut Sink, id: &FileId| {
            let Some(parent) = parent_of(sink, id) else { return false };
            if sink.dirs.unlinked(parent).iter().any(|dir| bad.contains(dir)) {
                failed.push(*id);
                return false;
            }
            sink.dirs.mark_linked(parent);
            true
        };
        closing.published.retain(|(id, ..)| keep(self, id));
        closing.dirty.retain(|(id, generation, ..)| {
            let fresh = self.files.get(id).is_some_and(|f| f.kept.is_unnamed() && f.is_of(*generation));
            !fresh || keep(self, id)
        });
        closing.links.retain(|id| keep(self, id));
        for id in failed {
            let text = "the directory could not be synced; the name may not survive a power cut";
            let failure = Failure { kind: crate::wire::FailureKind::Sync, errno: 5, text: text.into() };
            if self.links.contains_key(&id) {
                self.end_link(id, Err(failure));
            } else {
                self.fail_file(id, failure);
            }
        }
        self.epochs.closing = Some(closing);
        self.journal_epoch();
    }

    /// One journal write for the whole epoch.
    fn journal_epoch(&mut self) {
        let mut closing = self.epochs.closing.take().expect("an epoch is closing");
        let (facts, at) = (&mut self.epochs.facts, ());
        closing.withdrawn.drain(..).for_each(|fact| facts.say(fact));
        for (id, generation, temp, subtrees) in closing.dirty.drain(..) {
            facts.say(Fact::Persisted { at, id, generation, temp, subtrees, wrong: Vec::new() });
        }
        for (id, generation, root) in closing.published.drain(..) {
            facts.say(Fact::Published { at, id, generation, root });
        }
        for id in closing.links.drain(..) {
            facts.say(Fact::Published { at, id, generation: Generation(0), root: None });
        }
        self.epochs.closing = Some(closing);
        if haul_mutant::removed("durable-when-journaled") {
            let facts = self.epochs.facts.believe(&mut self.files);
            self.follow(facts, Vec::new());
        }
        match self.epochs.facts.write(&mut self.files, &mut self.dirs) {
            Ok(Some(bytes)) if !bytes.is_empty() => {
                let durable = self.config.policy.durable;
                self.actions.push_back(SinkAction::Submit(SinkOp::Journal { bytes, durable }));
            }
            Ok(_) => self.epoch_journaled(Ok(())),
            Err(failure) => self.epoch_journaled(Err(failure)),
        }
    }

    /// The epoch is on media and the journal says so: the source hears of it.
    pub(super) fn epoch_journaled(&mut self, result: Result<(), Failure>) {
        let closing = self.epochs.closing.take().expect("a journal write belongs to a closing epoch");
        let facts = match self.epochs.facts.handle_journaled(result, &mut self.files, |()| true) {
            Ok(facts) => facts,
            Err(failure) => {
                if !self.is_fatal(&failure) {
                    self.begin_stop(SessionEnd::Failed(failure));
                }
                return self.free_sets(&closing.sets, &closing.files);
            }
        };
        self.epochs.journaled += 1;
        self.follow(facts, closing.begin);
        self.free_sets(&closing.sets, &closing.files);
    }

    /// The journal says so. `begin`: files that waited for that.
    fn follow(&mut self, facts: Vec<Fact<()>>, begin: Vec<(FileId, Generation)>) {
        let (mut extents, mut wrong, mut published) = (Vec::new(), Vec::new(), Vec::new());
        for fact in facts {
            match fact {
                Fact::Persisted { id, generation, subtrees, wrong: ranges, .. } => {
                    let extent = |s: Subtree| Extent { id, generation, offset: s.offset, len: s.len };
                    extents.extend(subtrees.into_iter().map(extent));
                    wrong.extend(ranges.into_iter().map(|(offset, len)| (id, generation, offset, len)));
                }
                Fact::Published { id, generation, root, .. } => published.push((id, generation, root)),
                Fact::Over { .. } | Fact::Forgotten { .. } | Fact::Noted(_) => {}
            }
        }
        for chunk in extents.chunks(ITEMS_MAX) {
            self.actions.push_back(SinkAction::Send(Message::Durable {
                by: self.config.agreed.lease,
                extents: chunk.to_vec(),
            }));
        }
        for (id, generation) in begin {
            self.begin(id, generation);
        }
        self.ask_again(wrong);
        for (id, generation, root) in published {
            if root.is_none() && !self.files.contains_key(&id) {
                self.end_link(id, Ok(()));
                continue;
            }
            let of = |f: &&mut Box<File>| f.kept.generation == generation && f.naming.was_given_by(());
            let Some(file) = self.files.get_mut(&id).filter(of) else { continue };
            // The engine closed it when it renamed it.
            file.unmark(Mark::HasTemp);
            self.files_open -= 1;
            let change = file.change;
            let (outcome, end) = match self.take_unkept(id) {
                None => (Outcome::Done { root, change }, Ended::Copied),
                // It is whole, and not all that it was to be: its other names are names of it all the same.
                Some(failure) => (Outcome::Failed(failure.clone()), Ended::Failed(failure)),
            };
            self.done.push(DoneItem { id, generation, outcome });
            self.first_ended(id, true);
            self.end_file(id, end, root);
        }
    }

    /// The next files of these sets may be synced; and what was synced meanwhile is journaled.
    fn free_sets(&mut self, sets: &[Set], files: &[FileId]) {
        for set in sets {
            self.epochs.busy.remove(set);
        }
        for id in files {
            self.epochs.under_way.remove(id);
        }
        self.epochs.refill();
        self.journal_synced();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: where a commit costs a time of its own, its files stay many: few would take as long. What they
    /// cost themselves counts as ever.
    #[test]
    fn what_a_commit_costs_itself_makes_no_small_ones() {
        let cost = Duration::from_secs(1);
        let mut pace = Pace(FILES_FIRST_COSTLY);
        for _ in 0..10 {
            pace.learn(64, cost * 5 / 4, cost);
        }
        assert_eq!(pace.0, FILES_FIRST_COSTLY);
        pace.learn(FILES_FIRST_COSTLY, cost * 5 / 4, cost);
        assert_eq!(pace.0, FILES_MAX);
        pace.learn(FILES_MAX, cost + 2 * SYNC_TIME, cost);
        assert_eq!(pace.0, FILES_MAX / 2);
        pace.learn(64, cost * 5 / 4, Duration::ZERO);
        assert_eq!(pace.0, FILES_MIN);
    }
}
