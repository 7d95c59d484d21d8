//! Pairs of ends: who lives, under which lease, how fast, and what becomes of the work of one that is lost.
//!
//! In: pairs that join, are heard, are lost. Out: leases; work that others may take.
//! Invariants: a pair has one lease at a time, and no lease is given twice; when one ends, everything that it
//! had is given back at once, and what of that could still be acted upon is fenced before another end gets
//! it.

use std::collections::BTreeSet;

use super::entry::{At, EntryPhase, Out};
use super::*;

/// How often time is to be told.
pub(super) const TICK: Duration = Duration::from_millis(100);
/// A rate is looked at over this long.
const RATE_TIME: Duration = Duration::from_millis(500);
/// What an entry costs beside its bytes, in bytes of the same time.
pub(super) const ENTRY_COST: u64 = 256 * 1024;

pub(super) struct Pair {
    pub(super) lease: Lease,
    pub(super) heard: Time,
    /// When something that it had was last over.
    pub(super) moved: Time,
    pub(super) works: BTreeSet<(FileId, u64)>,
    /// Directories that it finishes, and files that it seals, publishes or removes.
    pub(super) dirs: BTreeSet<DirId>,
    pub(super) acts: BTreeSet<FileId>,
    /// What it was given and did not end, as cost.
    pub(super) owed: u64,
    rate: u64,
    /// Of the look that goes on: since when, and what was done.
    since: Time,
    done: u64,
}

impl Pair {
    fn new(lease: Lease, now: Time) -> Pair {
        Pair {
            lease,
            heard: now,
            moved: now,
            works: BTreeSet::new(),
            dirs: BTreeSet::new(),
            acts: BTreeSet::new(),
            owed: 0,
            rate: 0,
            since: now,
            done: 0,
        }
    }

    pub(super) fn held(&self) -> usize {
        self.works.len() + self.dirs.len() + self.acts.len()
    }

    /// Cost a second; `None`: nobody knows yet.
    pub(super) fn rate(&self) -> Option<u64> {
        (self.rate > 0).then_some(self.rate)
    }

    /// Takes work upon it.
    pub(super) fn load(&mut self, cost: u64, now: Time) {
        if self.owed == 0 {
            // It had nothing to do: that says nothing of how fast it is.
            (self.since, self.done, self.moved) = (now, 0, now);
        }
        self.owed = self.owed.saturating_add(cost);
    }

    /// Something of this cost is over.
    pub(super) fn did(&mut self, cost: u64, now: Time) {
        self.moved = now;
        self.done = self.done.saturating_add(cost);
        self.owed = self.owed.saturating_sub(cost);
        let span = now.since(self.since);
        if span >= RATE_TIME {
            let came = u128::from(self.done) * 1_000_000_000 / span.as_nanos().max(1);
            let came = u64::try_from(came).unwrap_or(u64::MAX).max(1);
            self.rate = if self.rate == 0 { came } else { self.rate / 4 * 3 + came / 4 }.max(1);
            (self.since, self.done) = (now, 0);
        }
    }

    /// It need not do this any more.
    pub(super) fn unload(&mut self, cost: u64) {
        self.owed = self.owed.saturating_sub(cost);
    }
}

/// As [`Coordinator::is_live`].
pub(super) fn is_live(pairs: &BTreeMap<PairId, Pair>, (pair, lease): At) -> bool {
    let live = pairs.get(&pair).is_some_and(|held| held.lease == lease);
    live || haul_mutant::removed("ended-leases-have-no-effect")
}

/// What a range costs, as far as it is not persisted.
pub(super) fn cost(out: &Out) -> u64 {
    out.left.saturating_add(if out.kind == WorkKind::Whole { ENTRY_COST } else { 0 })
}

impl Coordinator {
    /// A pair of ends is ready for work. One that was there before comes under a new lease, and what it had
    /// is given back as if it had been lost.
    ///
    /// # Errors
    /// If there are too many.
    pub fn handle_joined(&mut self, pair: PairId, now: Time) -> Result<Lease, Refused> {
        self.now = self.now.max(now);
        if let Some(old) = self.pairs.get(&pair) {
            let lease = old.lease;
            self.end_lease((pair, lease), Proof::Unknown, "the pair joined again");
        }
        if self.pairs.len() >= PAIRS_MAX {
            return Err(Refused::Pairs);
        }
        self.leases += 1;
        let lease = Lease::new(self.config.epoch, self.leases);
        self.pairs.insert(pair, Pair::new(lease, self.now));
        Ok(lease)
    }

    /// The pair lives. Whatever else comes of it says so as well.
    pub fn handle_heard(&mut self, (pair, lease): At, now: Time) {
        self.now = self.now.max(now);
        self.hears(pair, lease);
    }

    /// The pair is lost, as far as anybody can see.
    pub fn handle_lost(&mut self, (pair, lease): At, proof: Proof, now: Time) {
        self.now = self.now.max(now);
        if self.pairs.get(&pair).is_some_and(|held| held.lease == lease) {
            self.end_lease((pair, lease), proof, "the pair was lost");
        }
    }

    /// Who does what under the lease that pairs have now: for those who show it.
    pub fn lease_of(&self, pair: PairId) -> Option<Lease> {
        self.pairs.get(&pair).map(|pair| pair.lease)
    }

    /// It is written down, where sinks look before they give a name, that this lease ended.
    pub fn handle_fenced(&mut self, lease: Lease) {
        for id in self.fences.remove(&lease).unwrap_or_default() {
            if let Some(file) = self.files.get_mut(&id) {
                file.fences -= 1;
            }
            self.advance(id);
        }
    }

    /// Whether this lease is the pair's: else nothing that comes under it has any effect.
    pub(super) fn is_live(&self, at: At) -> bool {
        is_live(&self.pairs, at)
    }

    /// As [`Coordinator::is_live`], and that it lives.
    pub(super) fn hears(&mut self, pair: PairId, lease: Lease) -> bool {
        let now = self.now;
        if let Some(held) = self.pairs.get_mut(&pair).filter(|held| held.lease == lease) {
            held.heard = now;
        }
        self.is_live((pair, lease))
    }

    /// What the pair said cannot be.
    pub(super) fn violates(&mut self, at: At, text: &'static str) {
        if self.is_live(at) {
            self.end_lease(at, Proof::Unknown, text);
        }
    }

    /// Pairs that were not heard for too long have no lease any more.
    pub(super) fn end_silent(&mut self) {
        let Some(most) = self.config.lease_time else { return };
        let silent = self.pairs.iter().filter(|(_, held)| self.now.since(held.heard) > most);
        let silent: Vec<At> = silent.map(|(pair, held)| (*pair, held.lease)).collect();
        for at in silent {
            self.end_lease(at, Proof::Unknown, "nothing was heard for too long");
        }
    }

    pub(super) fn end_lease(&mut self, at: At, proof: Proof, text: &'static str) {
        let (pair, lease) = at;
        let Some(held) = self.pairs.remove(&pair) else { return };
        self.actions.push_back(Action::End { pair, lease, text });
        // What it said and the journal did not hear yet is not believed.
        let mut files = self.facts.drop_of(at);
        for dir in held.dirs {
            self.dirs.again(dir);
        }
        if haul_mutant::removed("ranges-are-given-back") {
            return;
        }
        files.extend(held.works.iter().map(|(id, _)| *id));
        files.extend(held.acts);
        let mut fenced = Vec::new();
        for id in files {
            if self.take_back(id, at, proof) {
                fenced.push(id);
            } else {
                self.advance(id);
            }
        }
        if !fenced.is_empty() {
            self.fences.insert(lease, fenced);
            self.actions.push_back(Action::Fence { pair, lease });
        }
    }

    /// What a pair had of a file under a lease that ended is nobody's. True if that must be written down
    /// before another gets it, for the pair might give it its name.
    fn take_back(&mut self, id: FileId, at: At, proof: Proof) -> bool {
        let spare = self.take_temp();
        let Some(file) = self.files.get_mut(&id) else { return false };
        let (temp, before) = (file.kept.temp, file.out.len());
        let mut wrote = false;
        file.out.retain(|_, out| {
            let writes = match out.kind {
                WorkKind::Begin => false,
                WorkKind::Read => out.from != out.to,
                WorkKind::Whole | WorkKind::Range => true,
            };
            wrote |= out.at == at && out.to == temp && writes;
            out.at != at
        });
        let had = file.out.len() < before;
        let unknown = proof == Proof::Unknown;
        let mut names = false;
        let had_right = file.naming.take_back(at);
        match &mut file.phase {
            EntryPhase::Beginning if had => file.phase = EntryPhase::New,
            EntryPhase::Sealing(act) if *act == Some(at) => file.phase = EntryPhase::Shared,
            EntryPhase::Ending(_, act) if *act == Some(at) => *act = None,
            EntryPhase::Publishing if had_right => {
                names = true;
                file.phase = EntryPhase::Shared;
                file.naming.doubt();
            }
            EntryPhase::Whole if had_right => {
                names = true;
                file.phase = EntryPhase::New;
            }
            EntryPhase::Published if had_right => {
                names = true;
                // Where it went in ranges all of it is durable.
                let ranges = file.kept.durable.is_complete() && !file.is_link;
                file.phase = if ranges { EntryPhase::Shared } else { EntryPhase::New };
                if ranges {
                    file.naming.doubt();
                }
                // That it is done is perhaps in the journal, and voids what was said of its parts.
                file.kept.say_anew();
            }
            _ => {}
        }
        file.former.extend(file.copy.take());
        if names && file.phase == EntryPhase::New && file.kept.durable.is_empty() {
            // Another end begins with a temporary of its own.
            file.former.push(std::mem::replace(&mut file.kept.temp, spare));
            file.touched = false;
        } else if unknown && wrote && !haul_mutant::removed("written-late-is-left") {
            file.move_to(spare);
            if file.phase == EntryPhase::New {
                file.phase = EntryPhase::Shared;
            }
        }
        let fence = names && unknown && !haul_mutant::removed("ended-leases-are-written-down");
        file.fences += u32::from(fence);
        fence
    }
}
